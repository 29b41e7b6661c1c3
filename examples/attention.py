"""Figures of chapter 1: what the scale does, and how the output follows the keys.

No training: everything is computed from a few small tensors.
"""

import math
from dataclasses import dataclass

import torch
from matplotlib.figure import Figure
from torch import Tensor

from transformers_hw import attention_weights, dot_product_attention, softmax
from transformers_hw.lab.experiment import (
    Drawings,
    ExampleConfig,
    Experiment,
    Metrics,
    Results,
    run_example,
)
from transformers_hw.lab.plotting import Theme

SCORES = (1.0, 2.5, 0.2, 2.2, -1.0)


@dataclass(frozen=True)
class Config(ExampleConfig):
    """Number of samples."""

    samples: int = 200_000
    """Draws of the noise on a key."""


PRESETS = {
    "quick": Config(),
    "cpu": Config(samples=2_000_000),
}


def compute(experiment: Experiment[Config]) -> None:
    """Compute the numbers behind both figures."""
    results = experiment.results
    for part in (averaging_to_selecting, key_noise):
        found = part(experiment.config, experiment.device)
        results |= {f"{part.__name__}.{name}": x for name, x in found.items()}
    noise = results["key_noise.measured_mean"] / results["key_noise.stated_mean"]
    largest = results["averaging_to_selecting.weights"].amax(dim=-1)
    experiment.metrics |= {
        "second_order_ratio_at_small_noise": round(noise[0].item(), 3),
        "largest_weight": {
            "at_smallest_scale": round(largest[0].item(), 3),
            "at_largest_scale": round(largest[-1].item(), 3),
        },
    }


def summary(metrics: Metrics) -> str:
    """Return the outcome in words."""
    largest = metrics["largest_weight"]
    return (
        f"Largest of {len(SCORES)} weights: {largest['at_smallest_scale']} at the "
        f"smallest scale, {largest['at_largest_scale']} at the largest: averaging "
        "becomes selecting\n"
        "Measured over predicted second-order effect of noise on a key: "
        f"{metrics['second_order_ratio_at_small_noise']}"
    )


def averaging_to_selecting(config: Config, device: torch.device) -> Results:
    """Compute weights and their entropy, from uniform to one-hot."""
    betas = torch.logspace(-2, 2, 81, dtype=torch.float64)
    scores = torch.tensor(SCORES, dtype=torch.float64)
    weights = torch.stack([softmax(scores, beta.item()) for beta in betas])
    return {
        "beta": betas,
        "weights": weights,
        "entropy": torch.special.entr(weights).sum(-1),
    }


def key_noise(config: Config, device: torch.device) -> Results:
    """Measure how far the output moves when noise moves one key."""
    draw = torch.Generator().manual_seed(config.seed)
    size = {"generator": draw, "dtype": torch.float64}
    shapes = ((1, 8), (6, 8), (6, 3))
    query, key, value = (torch.randn(*shape, **size) for shape in shapes)
    beta = 1 / math.sqrt(8)
    output = dot_product_attention(query, key, value, scale=beta)
    a = attention_weights(query, key, scale=beta)[0, 2]
    far = value[2] - output[0]
    length = query.norm()
    sigmas = torch.logspace(-2, 0.5, 11, dtype=torch.float64)
    unit = torch.randn(config.samples, 8, **size)
    # Antithetic draws: the first order cancels exactly and leaves the second.
    unit = torch.cat([unit, -unit])
    moves = []
    for sigma in sigmas:
        shift = beta * sigma * unit @ query[0]
        without = (output[0] - a * value[2]) / (1 - a)
        moved = torch.sigmoid(torch.logit(a) + shift)
        outputs = without + moved[:, None] * (value[2] - without)
        step = outputs - output[0]
        moves.append((step.square().sum(-1).mean().sqrt(), step.mean(0).norm()))
    measured = torch.tensor(moves, dtype=torch.float64)
    spread = beta * sigmas * length
    return {
        "sigma": sigmas,
        "measured_rms": measured[:, 0],
        "stated_rms": a * far.norm() * spread,
        "measured_mean": measured[:, 1],
        "stated_mean": 0.5 * spread.square() * a * (1 - 2 * a).abs() * far.norm(),
        **tie(),
    }


def tie() -> Results:
    """Compute the output near a tie, for ever harder attention."""
    nudges = torch.linspace(-1, 1, 201, dtype=torch.float64)
    query = torch.tensor([[1.0]], dtype=torch.float64)
    value = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    betas = (1.0, 5.0, 25.0, math.inf)
    rows = [
        torch.stack(
            [
                dot_product_attention(
                    query, torch.stack([query[0], query[0] + nudge]), value, scale=beta
                )[0, 0]
                for nudge in nudges
            ]
        )
        for beta in betas
    ]
    return {
        "nudge": nudges,
        "beside_tie": torch.stack(rows),
        "tie_beta": torch.tensor(betas, dtype=torch.float64),
    }


def drawings(results: Results, metrics: Metrics) -> Drawings:
    """Return the figures."""

    def part(name: str) -> dict[str, Tensor]:
        start = name + "."
        return {
            k.removeprefix(start): x for k, x in results.items() if k.startswith(start)
        }

    def scale(figure: Figure, theme: Theme) -> None:
        data = part("averaging_to_selecting")
        above, below = figure.subplots(
            2, 1, sharex=True, gridspec_kw={"height_ratios": [1.15, 1]}
        )
        above.stackplot(
            data["beta"],
            *data["weights"].T,
            colors=theme.series,
            labels=[f"score {score:g}" for score in SCORES],
            alpha=0.85,
        )
        above.set(
            ylabel="weights", ylim=(0, 1), title="from uniform to one-hot weights"
        )
        above.legend(loc="upper left", bbox_to_anchor=(1, 1), handlelength=1)
        below.plot(data["beta"], data["entropy"], color=theme.ink)
        below.axhline(math.log(len(SCORES)), color=theme.faint, linestyle="--")
        below.annotate("log 5: uniform", (0.011, math.log(5)), va="bottom")
        below.set(xscale="log", xlabel="β", ylabel="entropy of the weights")
        below.set(xlim=(0.01, 100), ylim=(0, 1.85))

    def noise(figure: Figure, theme: Theme) -> None:
        data = part("key_noise")
        left, right = figure.subplots(1, 2)
        for name, label, color in (
            ("rms", "RMS change of the output", theme.series[0]),
            ("mean", "change of its mean", theme.series[1]),
        ):
            left.plot(data["sigma"], data[f"stated_{name}"], color=color, label=label)
            left.plot(data["sigma"], data[f"measured_{name}"], "o", color=color, ms=4)
        left.set(xscale="log", yscale="log", xlabel="σ of the noise on one key")
        left.set(title="lines: first and second order; dots: measured")
        left.legend(loc="upper left")
        for row, beta, color in zip(
            data["beside_tie"], data["tie_beta"].tolist(), theme.series, strict=False
        ):
            label = "hard" if math.isinf(beta) else f"β = {beta:g}"
            right.plot(data["nudge"], row, color=color, label=label)
        right.set(xlabel="nudge of one of two tied keys", ylabel="output")
        right.set(title="the jump of hard attention")
        right.legend(loc="upper left")

    return {
        "scale": (scale, 4.4),
        "key-noise": (noise, 3.2),
    }


if __name__ == "__main__":
    run_example("attention", PRESETS, compute, drawings, summary)
