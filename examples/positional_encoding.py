"""Figures of chapter 2: the codes, what they tell, and how far they reach."""

import math
from dataclasses import dataclass

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from transformers_hw import (
    LearnedPositions,
    OneHotPositions,
    PositionalEncoding,
    SelfAttention,
    SinusoidalPositions,
)
from transformers_hw.lab.batching import GeneratedBatches
from transformers_hw.lab.example import (
    Drawings,
    ExampleConfig,
    Metrics,
    Results,
    run_example,
    training_folder,
)
from transformers_hw.lab.objectives import totals
from transformers_hw.lab.optimisation import TrainingConfig
from transformers_hw.lab.plotting import Theme, heatmap, label_line
from transformers_hw.lab.training import train

VOCABULARY, BACK = 16, 3


@dataclass(frozen=True)
class Config(ExampleConfig):
    """The task of copying the token three places back."""

    steps: int = 300
    """Steps of training, for each encoding."""
    length: int = 16
    """Length of the sequences that are trained on; twice that is tested."""
    dim: int = 32
    """Width of a code."""
    batch_size: int = 64
    """Sequences in a batch."""


PRESETS = {
    "quick": Config(),
    "cpu": Config(steps=6_000, length=32, dim=64, batch_size=128),
    "gpu": Config(steps=30_000, length=256, dim=256, batch_size=512),
}


def compute(config: Config, device: torch.device) -> tuple[Results, Metrics]:
    """Give the codes and their properties, then train with learnt and fixed ones."""
    sinusoidal = SinusoidalPositions(48)
    codes = sinusoidal.codes(64)
    counted = torch.arange(1, 9, dtype=torch.float64)
    results: Results = {
        "codes.sinusoidal": codes.float(),
        "codes.one_hot": OneHotPositions(64).codes(64).float(),
        "products": (codes @ codes.T)[0],
        "wavelengths": 2 * math.pi / SinusoidalPositions(16).frequencies(),
        "wavelengths_from_one": 2 * math.pi * 10_000 ** (counted / 8),
    }
    table = LearnedPositions(2 * config.length, config.dim, combine="concatenate")
    fixed = SinusoidalPositions(config.dim, combine="concatenate")
    encodings = {"learned": table, "sinusoidal": fixed}
    metrics: Metrics = {"length": config.length}
    for name, positions in encodings.items():
        right = copied(config, name, positions)
        results[f"copied.{name}"] = right
        seen, beyond = right[BACK : config.length], right[config.length :]
        metrics[f"{name}_within"] = round(seen.mean().item(), 4)
        metrics[f"{name}_beyond"] = round(beyond.mean().item(), 4)
    return results, metrics


class Copier(nn.Module):
    """One layer of self-attention and a readout: all that copying needs."""

    def __init__(self, positions: PositionalEncoding) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, VOCABULARY)
        self.attention = SelfAttention(VOCABULARY, positions=positions, head_dim=64)
        self.readout = nn.Linear(VOCABULARY, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """Give the logits of the token to copy, at every position."""
        return self.readout(self.attention(self.embedding(tokens), causal=True)[0])


def copied(config: Config, name: str, positions: PositionalEncoding) -> Tensor:
    """Train on short sequences; give the share copied right, by position, on longer."""

    def make(samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        shape = (samples, config.length)
        tokens = torch.randint(VOCABULARY, shape, generator=generator)
        return tokens, tokens[:, :-BACK]

    def objective(model: nn.Module, batch: tuple[Tensor, ...]) -> dict[str, Tensor]:
        tokens, wanted = batch
        return totals(model(tokens)[:, BACK:], wanted)

    model = Copier(positions)
    train(
        model,
        GeneratedBatches(
            make,
            config.batch_size,
            steps_per_epoch=max(1, config.steps // 10),
            seed=config.seed,
        ),
        objective,
        TrainingConfig(
            out=training_folder(config, name),
            steps=config.steps,
            batch_size=config.batch_size,
            learning_rate=1e-2,
            weight_decay=0.0,
            seed=config.seed,
            device=config.device,
            start_over=True,
        ),
    )
    model = model.cpu().eval()
    tokens = torch.randint(VOCABULARY, (2_000, 2 * config.length))
    with torch.no_grad():
        guesses = model(tokens).argmax(-1)[:, BACK:]
    right = (guesses == tokens[:, :-BACK]).float().mean(0)
    return torch.cat([torch.full((BACK,), math.nan), right])


def drawings(results: Results, metrics: Metrics) -> Drawings:
    """Say how each figure is drawn."""

    def codes(figure: Figure, theme: Theme) -> None:
        left, right = figure.subplots(1, 2, width_ratios=[48, 64])
        heatmap(left, theme, results["codes.sinusoidal"], signed=True)
        heatmap(right, theme, results["codes.one_hot"])
        for axes, title in ((left, "sinusoidal"), (right, "one-hot")):
            axes.set(title=title, xlabel="dimension", ylabel="position")

    def products(figure: Figure, theme: Theme) -> None:
        left, right = figure.subplots(1, 2)
        left.plot(results["products"] / results["products"][0], color=theme.series[0])
        left.set(title="a code times another", xlabel="distance", ylabel="cosine")
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
        axes.annotate("trained on these positions", (0.5, 1.03))
        for name, colour in (
            ("sinusoidal", theme.series[0]),
            ("learned", theme.series[1]),
        ):
            line = results[f"copied.{name}"]
            axes.plot(line, color=colour, marker="o", ms=3)
            label_line(axes, name, (len(line) - 1, line[-5:].mean().item()), colour)
        axes.axhline(1 / VOCABULARY, color=theme.ink, linestyle=":")
        axes.annotate("guessing", (0.5, 1 / VOCABULARY + 0.02))
        axes.set(ylim=(0, 1.12), xlabel="position", ylabel="copied right")
        axes.set(title=f"copying the token {BACK} places back")

    return {"codes": (codes, 3.4), "products": (products, 3.0), "beyond": (beyond, 3.0)}


if __name__ == "__main__":
    run_example(
        "positional_encoding", presets=PRESETS, compute=compute, drawings=drawings
    )
