"""Figures of chapter 4: layers built weight by weight, and what softness costs them."""

import math
from dataclasses import dataclass

import torch
from matplotlib.figure import Figure

from transformers_hw import (
    convolution_attention,
    identity_attention,
    off_target_mass,
    permutation_attention,
    pointwise_linear_attention,
)
from transformers_hw.lab.example import (
    Drawings,
    ExampleConfig,
    Metrics,
    Results,
    run_example,
)
from transformers_hw.lab.plotting import Theme, heatmap

LENGTH = 9
SHUFFLE = [3, 0, 2, 8, 6, 7, 5, 1, 4]
KERNEL = (-1.0, 2.0, -0.5)
SOFTNESS = (1.0, 3.0, math.inf)


@dataclass(frozen=True)
class Config(ExampleConfig):
    """How finely to sample."""

    steps: int = 25
    """Number of temperatures."""
    length: int = 16
    """Number of tokens whose error is measured."""


PRESETS = {
    "quick": Config(),
    "cpu": Config(steps=49, length=64),
    "gpu": Config(steps=97, length=512),
}


def compute(config: Config, device: torch.device) -> tuple[Results, Metrics]:
    """Build the layers, show their weights, and measure their errors."""
    results: Results = {}
    x = torch.randn(1, LENGTH, 1, dtype=torch.float64)
    kernel = torch.tensor(KERNEL, dtype=torch.float64).reshape(1, 1, 3)
    for sharpness in SOFTNESS:
        layers = {
            "identity": identity_attention(
                LENGTH, 1, sharpness=sharpness, dtype=x.dtype
            ),
            "permutation": permutation_attention(
                SHUFFLE, 1, sharpness=sharpness, dtype=x.dtype
            ),
            "convolution": convolution_attention(
                kernel, length=LENGTH, padding_mode="replicate", sharpness=sharpness
            ),
        }
        for name, layer in layers.items():
            _, weights = layer(x, return_weights=True)
            results[f"weights.{name}.{sharpness:g}"] = weights[0]
    results |= errors(config, device)
    worst = (results["measured"] - results["stated"]).abs().max().item()
    return results, {"largest_difference_from_the_formula": worst}


@torch.no_grad()
def errors(config: Config, device: torch.device) -> Results:
    """Measure how far soft layers are from the exact ones, beside what was derived."""
    n, dim = config.length, 4
    x = torch.randn(1, n, dim, dtype=torch.float64, device=device)
    order = torch.randperm(n)
    place = {"device": device, "dtype": torch.float64}
    matrix = torch.randn(3, dim, **place)
    kernel = torch.randn(3, dim, 5, **place)
    sharpness = torch.linspace(0, 30, config.steps, dtype=torch.float64)
    measured, stated = [], []
    for c in sharpness.tolist():
        pairs = [
            [identity_attention(n, dim, sharpness=s, **place) for s in (c, math.inf)],
            [
                permutation_attention(order, dim, sharpness=s, **place)
                for s in (c, math.inf)
            ],
            [
                pointwise_linear_attention(matrix, length=n, sharpness=s)
                for s in (c, math.inf)
            ],
            [
                convolution_attention(
                    kernel, length=n, padding_mode="replicate", sharpness=s
                )
                for s in (c, math.inf)
            ],
        ]
        # Softening replaces a token by a mixture with the mean of the others.
        mean_of_others = (x.sum(dim=1, keepdim=True) - x) / (n - 1)
        softened = x + off_target_mass(n, c) * (mean_of_others - x)
        exact = [hard(x)[0] for _, hard in pairs]
        measured.append(
            [(soft(x)[0] - y).norm() for (soft, _), y in zip(pairs, exact, strict=True)]
        )
        stated.append(
            [
                (hard(softened)[0] - y).norm()
                for (_, hard), y in zip(pairs, exact, strict=True)
            ]
        )
    return {
        "sharpness": sharpness,
        "measured": torch.tensor(measured, dtype=torch.float64),
        "stated": torch.tensor(stated, dtype=torch.float64),
    }


def drawings(results: Results, metrics: Metrics) -> Drawings:
    """Say how each figure is drawn."""

    def matrices(figure: Figure, theme: Theme) -> None:
        names = ("identity", "permutation", "convolution")
        columns = [("identity", 0), ("permutation", 0)]
        columns += [("convolution", head) for head in range(len(KERNEL))]
        axes = figure.subplots(len(SOFTNESS), len(columns))
        for row, sharpness in zip(axes, SOFTNESS, strict=True):
            for place, (name, head) in zip(row, columns, strict=True):
                weights = results[f"weights.{name}.{sharpness:g}"][head]
                heatmap(place, theme, weights, limit=1.0)
            label = "hard" if math.isinf(sharpness) else f"c = {sharpness:g}"
            row[0].set_ylabel(label)
        titles = [*names[:2], *(f"tap {tap:g}" for tap in KERNEL)]
        for place, title in zip(axes[0], titles, strict=True):
            place.set_title(title)

    def curve(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        names = ("identity", "permutation", "running linear layer", "convolution")
        for i, name in enumerate(names):
            colour = theme.series[i]
            x = results["sharpness"]
            # Moving tokens does not change how far softening moves them.
            style = "--" if name == "permutation" else "-"
            axes.plot(x, results["stated"][:, i], style, color=colour, label=name)
            axes.plot(x, results["measured"][:, i], "o", color=colour, ms=3.5)
        axes.set(
            yscale="log", xlabel="sharpness c", ylabel="distance from the exact layer"
        )
        axes.set(title="lines: the derived error; dots: measured")
        axes.legend()

    return {"matrices": (matrices, 4.4), "error": (curve, 3.4)}


if __name__ == "__main__":
    run_example("self_attention", presets=PRESETS, compute=compute, drawings=drawings)
