"""Figures of chapter 4: layers built weight by weight, and their error when soft."""

import math
from dataclasses import dataclass

import torch
from matplotlib.figure import Figure
from torch import Tensor

from transformers_hw.lab.experiment import (
    Drawings,
    ExampleConfig,
    Experiment,
    Metrics,
    Results,
    run_example,
)
from transformers_hw.lab.plotting import Theme, heatmap
from transformers_hw.self_attention import (
    convolution_attention,
    identity_attention,
    off_target_mass,
    permutation_attention,
    pointwise_linear_attention,
)

LENGTH = 9
SHUFFLE = [3, 0, 2, 8, 6, 7, 5, 1, 4]
KERNEL = (-1.0, 2.0, -0.5)
SHARPNESS = (1.0, 3.0, math.inf)


@dataclass(frozen=True)
class Config(ExampleConfig):
    """Number of samples."""

    steps: int = 49
    """Number of values of the sharpness."""
    length: int = 64
    """Number of tokens whose error is measured."""


PRESETS = {"quick": Config(), "cpu": Config(steps=97, length=512)}


def compute(experiment: Experiment[Config]) -> None:
    """Build the layers, compute their weights, and measure their errors."""
    x = torch.randn(1, LENGTH, 1, dtype=torch.float64)
    kernel = torch.tensor(KERNEL, dtype=torch.float64).reshape(1, 1, 3)
    for sharpness in SHARPNESS:
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
            experiment.results[f"weights.{name}.{sharpness:g}"] = weights[0]
    found = errors(experiment.config, experiment.device)
    experiment.results |= found
    worst = (found["measured"] - found["stated"]).abs().max().item()
    experiment.metrics["largest_difference_from_the_formula"] = worst
    experiment.metrics |= fall(found["sharpness"], found["measured"])


def fall(sharpness: Tensor, measured: Tensor) -> Metrics:
    """Compare errors at a third and at two thirds of the largest sharpness."""
    first, second = len(sharpness) // 3, 2 * len(sharpness) // 3
    return {
        "errors_fall_by": round((measured[first] / measured[second]).min().item()),
        "exponential_falls_by": round(math.exp(sharpness[second] - sharpness[first])),
    }


def summary(metrics: Metrics) -> str:
    """Return the outcome in words."""
    worst = metrics["largest_difference_from_the_formula"]
    measured, exponential = metrics["errors_fall_by"], metrics["exponential_falls_by"]
    return (
        f"Between two values of the sharpness c, errors of soft layers fall by a "
        f"factor of {measured:,}, and exp(-c) by {exponential:,}\n"
        f"Measured and derived errors differ by at most {worst:.1e}"
    )


@torch.no_grad()
def errors(config: Config, device: torch.device) -> Results:
    """Measure the error of soft layers, and compute it by the formula."""
    n, dim = config.length, 4
    x = torch.randn(1, n, dim, dtype=torch.float64, device=device)
    order = torch.randperm(n)
    factory = {"device": device, "dtype": torch.float64}
    matrix = torch.randn(3, dim, **factory)
    kernel = torch.randn(3, dim, 5, **factory)
    sharpness = torch.linspace(0, 30, config.steps, dtype=torch.float64)
    measured, stated = [], []
    for c in sharpness.tolist():
        pairs = [
            [make(s) for s in (c, math.inf)]
            for make in (
                lambda s: identity_attention(n, dim, sharpness=s, **factory),
                lambda s: permutation_attention(order, dim, sharpness=s, **factory),
                lambda s: pointwise_linear_attention(matrix, length=n, sharpness=s),
                lambda s: convolution_attention(
                    kernel, length=n, padding_mode="replicate", sharpness=s
                ),
            )
        ]
        # Softening replaces a token by a mixture with the mean of the others.
        mean_of_others = (x.sum(dim=1, keepdim=True) - x) / (n - 1)
        softened = x + off_target_mass(n, c) * (mean_of_others - x)
        measured.append([(soft(x) - hard(x)).norm() for soft, hard in pairs])
        stated.append([(hard(softened) - hard(x)).norm() for _, hard in pairs])
    return {
        "sharpness": sharpness,
        "measured": torch.tensor(measured, dtype=torch.float64),
        "stated": torch.tensor(stated, dtype=torch.float64),
    }


def drawings(results: Results, metrics: Metrics) -> Drawings:
    """Return the figures."""

    def matrices(figure: Figure, theme: Theme) -> None:
        names = ("identity", "permutation", "convolution")
        columns = [("identity", 0), ("permutation", 0)]
        columns += [("convolution", head) for head in range(len(KERNEL))]
        axes = figure.subplots(len(SHARPNESS), len(columns))
        for row, sharpness in zip(axes, SHARPNESS, strict=True):
            for cell, (name, head) in zip(row, columns, strict=True):
                weights = results[f"weights.{name}.{sharpness:g}"][head]
                heatmap(cell, theme, weights, limit=1.0)
            label = "hard" if math.isinf(sharpness) else f"c = {sharpness:g}"
            row[0].set_ylabel(label)
        titles = [*names[:2], *(f"tap {tap:g}" for tap in KERNEL)]
        for cell, title in zip(axes[0], titles, strict=True):
            cell.set_title(title)

    def curve(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        names = ("identity", "permutation", "position-wise linear layer", "convolution")
        for i, name in enumerate(names):
            color = theme.series[i]
            x = results["sharpness"]
            # Permuting tokens does not change how far softening moves them.
            style = "--" if name == "permutation" else "-"
            axes.plot(x, results["stated"][:, i], style, color=color, label=name)
            few = slice(None, None, 4)
            axes.plot(x[few], results["measured"][few, i], "o", color=color, ms=3.5)
        axes.set(
            yscale="log", xlabel="sharpness c", ylabel="distance from the exact layer"
        )
        axes.set(title="lines: the derived error; dots: measured")
        axes.legend()

    return {"matrices": (matrices, 4.4), "error": (curve, 3.4)}


if __name__ == "__main__":
    run_example("self_attention", PRESETS, compute, drawings, summary)
