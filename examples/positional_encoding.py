"""Figures of chapter 2: the encodings, their products, and how far they generalize.

A layer of self-attention learns to copy the token three positions back, with learned
and with sinusoidal positions, and is tested on sequences twice as long.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from transformers_hw import LearnedPositions, SelfAttention, SinusoidalPositions
from transformers_hw.lab.batching import GeneratedBatches
from transformers_hw.lab.experiment import (
    Drawings,
    Experiment,
    Metrics,
    Results,
    TrainingExampleConfig,
    run_example,
    spread,
)
from transformers_hw.lab.objectives import cross_entropy_sums
from transformers_hw.lab.plotting import Theme, heatmap, label_line, plot_runs
from transformers_hw.lab.seeds import seeded_generator
from transformers_hw.positional_encoding import OneHotPositions, PositionalEncoding

VOCAB_SIZE, OFFSET = 16, 3


@dataclass(frozen=True)
class Config(TrainingExampleConfig):
    """Settings of the copying task."""

    steps: int = 300
    """Training steps for each encoding."""
    length: int = 16
    """Length of the training sequences; test sequences are twice as long."""
    dim: int = 32
    """Dimension of an encoding."""


PRESETS = {
    "quick": Config(),
    "cpu": Config(steps=2_000, length=32, dim=64, batch_size=128, seeds=5),
    "gpu": Config(steps=30_000, length=256, dim=256, batch_size=512, seeds=5),
}


class Copier(nn.Module):
    """One layer of self-attention and a linear readout."""

    def __init__(self, positions: PositionalEncoding) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB_SIZE, VOCAB_SIZE)
        self.attention = SelfAttention(VOCAB_SIZE, positions=positions, head_dim=64)
        self.readout = nn.Linear(VOCAB_SIZE, VOCAB_SIZE)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the token to copy, at every position."""
        return self.readout(self.attention(self.embedding(tokens), causal=True))


def compute(experiment: Experiment[Config]) -> None:
    """Compute encodings and their products, then train with two kinds of them."""
    config = experiment.config
    sinusoidal = SinusoidalPositions(48).embeddings(64)
    counted = torch.arange(1, 9, dtype=torch.float64)
    experiment.results |= {
        "embeddings.sinusoidal": sinusoidal.float(),
        "embeddings.one_hot": OneHotPositions(64).embeddings(64).float(),
        "products": (sinusoidal @ sinusoidal.T)[0],
        "wavelengths": 2 * math.pi / SinusoidalPositions(16).frequencies(),
        "wavelengths_from_one": 2 * math.pi * 10_000 ** (counted / 8),
    }
    experiment.metrics["length"] = config.length
    for name, make in {
        "learned": lambda: LearnedPositions(
            2 * config.length, config.dim, combine="concatenate"
        ),
        "sinusoidal": lambda: SinusoidalPositions(config.dim, combine="concatenate"),
    }.items():
        accuracy = torch.stack(
            [
                copying_accuracy(experiment, name, make, seed)
                for seed in config.all_seeds
            ]
        )
        experiment.results[f"copied.{name}"] = accuracy
        seen, beyond = accuracy[:, OFFSET:].tensor_split([config.length - OFFSET], 1)
        for where, found in (("within", seen), ("beyond", beyond)):
            values = spread(found.mean(1).tolist())
            experiment.metrics[f"{name}_{where}"] = values.pop("mean")
            experiment.metrics[f"{name}_{where}_range"] = values


def copying_accuracy(
    experiment: Experiment[Config],
    name: str,
    make_positions: Callable[[], PositionalEncoding],
    seed: int,
) -> Tensor:
    """Train on short sequences; return the accuracy on longer ones, by position."""
    config = experiment.config

    def make(samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        shape = (samples, config.length)
        tokens = torch.randint(VOCAB_SIZE, shape, generator=generator)
        return tokens, tokens[:, :-OFFSET]

    def objective(model: nn.Module, batch: tuple[Tensor, ...]) -> dict[str, Tensor]:
        tokens, target = batch
        return cross_entropy_sums(model(tokens)[:, OFFSET:], target)

    model, _ = experiment.train(
        name,
        lambda: Copier(make_positions()),
        GeneratedBatches(make, config.batch_size, seed=seed),
        objective,
        seed=seed,
        steps=config.steps,
        evaluate_every=max(1, config.steps // 10),
        learning_rate=1e-2,
        weight_decay=0.0,
        identity={"length": config.length},
    )
    shape, generator = (2_000, 2 * config.length), seeded_generator("test", config.seed)
    tokens = torch.randint(VOCAB_SIZE, shape, generator=generator)
    with torch.no_grad():
        predicted = model.cpu()(tokens).argmax(-1)[:, OFFSET:]
    correct = (predicted == tokens[:, :-OFFSET]).float().mean(0)
    return torch.cat([torch.full((OFFSET,), math.nan), correct])


def summary(metrics: Metrics) -> str:
    """Return the outcome in words."""
    rows = [
        f"{name}: {metrics[f'{name}_within']:.1%} copied correctly up to the training "
        f"length {metrics['length']}, {metrics[f'{name}_beyond']:.1%} beyond it"
        for name in ("sinusoidal", "learned")
    ]
    return "\n".join([*rows, f"(chance: {1 / VOCAB_SIZE:.1%})"])


def drawings(results: Results, metrics: Metrics) -> Drawings:
    """Return the figures."""

    def embeddings(figure: Figure, theme: Theme) -> None:
        left, right = figure.subplots(1, 2, width_ratios=[48, 64])
        heatmap(left, theme, results["embeddings.sinusoidal"], signed=True)
        heatmap(right, theme, results["embeddings.one_hot"])
        for axes, title in ((left, "sinusoidal"), (right, "one-hot")):
            axes.set(title=title, xlabel="dimension", ylabel="position")

    def products(figure: Figure, theme: Theme) -> None:
        left, right = figure.subplots(1, 2)
        left.plot(results["products"] / results["products"][0], color=theme.series[0])
        left.set(
            title="similarity of two encodings", xlabel="distance", ylabel="cosine"
        )
        for name, label, marker in (
            ("wavelengths", "counted from 0", "o"),
            ("wavelengths_from_one", "counted from 1", "s"),
        ):
            right.plot(results[name], marker=marker, ms=4, label=label)
        for length, name in ((1, "2π"), (10_000, "10000·2π")):
            right.axhline(2 * math.pi * length, color=theme.ink, linestyle=":")
            right.annotate(name, (7, 2 * math.pi * length), va="bottom", ha="right")
        right.legend(loc="lower right", bbox_to_anchor=(1, 0.08))
        right.set(yscale="log", title="wavelengths of 16 dimensions", xlabel="pair")

    def beyond(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        length = metrics["length"]
        axes.axvspan(0, length - 0.5, color=theme.faint, alpha=0.35, linewidth=0)
        axes.annotate("training positions", (0.5, 1.03))
        for name, color in (
            ("sinusoidal", theme.series[0]),
            ("learned", theme.series[1]),
        ):
            runs = results[f"copied.{name}"]
            count = torch.arange(runs.shape[1])
            plot_runs(axes, count, runs, color=color, marker="o", ms=3)
            end = (len(count) - 1, runs[:, -5:].mean().item())
            label_line(axes, name, end, color)
        axes.axhline(1 / VOCAB_SIZE, color=theme.ink, linestyle=":")
        axes.annotate("chance", (0.5, 1 / VOCAB_SIZE + 0.02))
        axes.set(ylim=(0, 1.12), xlabel="position", ylabel="accuracy")
        axes.set(title=f"copying the token {OFFSET} positions back")

    return {
        "embeddings": (embeddings, 3.4),
        "products": (products, 3.0),
        "beyond": (beyond, 3.0),
    }


if __name__ == "__main__":
    run_example("positional_encoding", PRESETS, compute, drawings, summary)
