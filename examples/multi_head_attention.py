"""Figures of chapter 3: what heads share, and what one head alone cannot do.

One head and two learn to add a linear function of the previous token to another of the
next, which takes two paths through the sequence.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

from transformers_hw import MultiHeadAttention
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
from transformers_hw.lab.plotting import Theme, heatmap, label_line, plot_runs
from transformers_hw.positional_encoding import OneHotPositions
from transformers_hw.summary import count_parameters

CHANNELS, SHARES = 12, (1, 2, 3, 4, 6, 12)


@dataclass(frozen=True)
class Contender:
    """A layer that is trained on the task."""

    label: str
    heads: int
    content: bool  # whether queries and keys contain the tokens, not only positions


CONTENDERS = {
    "one_head": Contender("one head", 1, content=False),
    "one_head_content": Contender("one head, content too", 1, content=True),
    "two_heads": Contender("two heads", 2, content=False),
}


@dataclass(frozen=True)
class Config(TrainingExampleConfig):
    """Settings of the task of the two neighbors."""

    steps: int = 300
    """Training steps for each layer."""
    length: int = 8
    """Number of tokens."""
    dim: int = 4
    """Dimension of a token."""


PRESETS = {
    "quick": Config(),
    "cpu": Config(steps=6_000, length=12, batch_size=128, seeds=5),
}


def compute(experiment: Experiment[Config]) -> None:
    """Compare heads with groups, then train one head and two on the task."""
    config = experiment.config
    experiment.results |= connectivity()
    first, second = torch.randn(2, config.dim, config.dim, dtype=torch.float64).float()
    floor = one_head_floor(first, second)
    experiment.results["floor"] = floor
    experiment.metrics["one_head_floor"] = round(floor.item(), 5)
    metrics = experiment.metrics
    metrics |= {"last_loss": {}, "last_loss_range": {}}
    for name in CONTENDERS:
        curves = [
            learning_curve(experiment, name, first, second, seed)
            for seed in config.all_seeds
        ]
        experiment.results[f"loss.{name}"] = torch.tensor(curves)
        values = spread((curve[-1] for curve in curves), digits=5)
        metrics["last_loss"][name] = values.pop("mean")
        metrics["last_loss_range"][name] = values


def summary(metrics: Metrics) -> str:
    """Return the outcome in words."""
    rows = [
        f"{CONTENDERS[name].label}: mean squared error {loss:.5f}"
        for name, loss in metrics["last_loss"].items()
    ]
    least = metrics["one_head_floor"]
    floor = f"one head with positions alone cannot get below {least:.5f}"
    return "\n".join([*rows, floor])


def connectivity() -> Results:
    """Find which inputs each output channel depends on, for heads and for groups."""
    x = torch.randn(1, 5, CHANNELS, requires_grad=True)
    layer = MultiHeadAttention(CHANNELS, 3)
    layer.output_proj = nn.Identity()  # type: ignore[assignment]
    grouped = nn.Conv1d(CHANNELS, CHANNELS, 1, groups=3)
    found = {}
    for name, output in (("heads", layer(x)), ("groups", grouped(x.mT).mT)):
        rows = [
            torch.autograd.grad(output[..., channel].sum(), x, retain_graph=True)[0]
            for channel in range(CHANNELS)
        ]
        found[f"seen.{name}"] = (torch.stack(rows).abs().sum((1, 2)) > 0).float()
    found["parameters.heads"] = torch.tensor(
        [count_parameters(MultiHeadAttention(CHANNELS, h, bias=False)) for h in SHARES]
    )
    found["parameters.groups"] = torch.tensor(
        [
            4 * count_parameters(nn.Conv1d(CHANNELS, CHANNELS, 1, groups=g, bias=False))
            for g in SHARES
        ]
    )
    return found


def one_head_floor(first: Tensor, second: Tensor) -> Tensor:
    r"""Return the least error of a head whose weights depend on positions alone.

    It gives $aW$ to one neighbor and $bW$ to the other, with $a, b \ge 0$. For the
    direction $(a, b) = (\cos\theta, \sin\theta)$ the best $W$ is $aW_1 + bW_2$, and
    leaves $\lVert W_1\rVert^2 + \lVert W_2\rVert^2 - \lVert aW_1 + bW_2\rVert^2$.
    """
    angles = torch.linspace(0, math.pi / 2, 1001)
    mixed = torch.stack(
        [
            (angle.cos() * first + angle.sin() * second).square().sum()
            for angle in angles
        ]
    )
    return (first.square().sum() + second.square().sum() - mixed.max()) / len(first)


class Neighbors(nn.Module):
    """Heads that attend by one-hot positions, optionally by content as well."""

    def __init__(self, config: Config, contender: Contender) -> None:
        super().__init__()
        self.positions = OneHotPositions(config.length)
        self.start = 0 if contender.content else config.dim
        self.attention = MultiHeadAttention(
            config.dim + config.length - self.start,
            contender.heads,
            values_dim=config.dim,
            head_dim=config.length,
            value_head_dim=config.dim,
            output_dim=config.dim,
        )

    def forward(self, x: Tensor) -> Tensor:
        """Average the tokens, with weights from positions (and content)."""
        known = self.positions(x)[..., self.start :]
        return self.attention(known, known, x)


def learning_curve(
    experiment: Experiment[Config],
    name: str,
    first: Tensor,
    second: Tensor,
    seed: int,
) -> list[float]:
    """Train a layer to give $x_{i-1}W_1 + x_{i+1}W_2$; return its training loss."""
    config = experiment.config

    def make(samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(samples, config.length, config.dim, generator=generator)
        return x, x[:, :-2] @ first.T + x[:, 2:] @ second.T

    def objective(model: nn.Module, batch: tuple[Tensor, ...]) -> dict[str, Tensor]:
        x, target = batch
        loss = F.mse_loss(model(x)[:, 1:-1], target, reduction="sum")
        return {"loss": loss, "count": torch.tensor(target.numel())}

    _, progress = experiment.train(
        name,
        lambda: Neighbors(config, CONTENDERS[name]),
        GeneratedBatches(make, config.batch_size, seed=seed),
        objective,
        seed=seed,
        steps=config.steps,
        evaluate_every=max(1, config.steps // 50),
        learning_rate=1e-2,
        weight_decay=0.0,
        identity={
            "length": config.length,
            "matrices": [first.tolist(), second.tolist()],
        },
    )
    return [entry["train"]["loss"] for entry in progress.history]


def drawings(results: Results, metrics: Metrics) -> Drawings:
    """Return the figures."""

    def sharing(figure: Figure, theme: Theme) -> None:
        left, middle, right = figure.subplots(1, 3, width_ratios=[1, 1, 1.35])
        for axes, name, title in (
            (left, "heads", "three heads"),
            (middle, "groups", "three groups"),
        ):
            heatmap(axes, theme, results[f"seen.{name}"], limit=1.3)
            axes.set(title=title, xlabel="input channels", ylabel="output channels")
        for name, style, marker in (("heads", "-", "o"), ("groups", "--", "s")):
            right.plot(
                SHARES, results[f"parameters.{name}"], style, marker=marker, ms=4
            )
        label_line(right, "heads", (12, 576), theme.series[0])
        label_line(right, "groups", (12, 48), theme.series[1])
        right.set(title="parameters", xlabel="heads or groups", ylim=(0, 640))

    def task(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        for (name, contender), color in zip(
            CONTENDERS.items(), theme.series, strict=False
        ):
            runs = results[f"loss.{name}"]
            done = torch.linspace(0, 1, runs.shape[1] + 1)[1:]
            plot_runs(axes, done, runs, color=color)
            # Two of the lines end at one height; their labels should not.
            lift = {"one_head": 1.45, "one_head_content": 0.65}.get(name, 1.0)
            end = (1.0, runs[:, -1].mean().item() * lift)
            label_line(axes, contender.label, end, color)
        floor = results["floor"].item()
        axes.axhline(floor, color=theme.ink, linestyle=":")
        axes.annotate(
            "least error of one head that knows only positions",
            (0.42, floor * 0.6),
            va="top",
        )
        axes.set(
            yscale="log", xlabel="fraction of training", ylabel="mean squared error"
        )
        axes.set(title=r"$x_{i-1}W_1 + x_{i+1}W_2$: two heads can, one cannot")

    return {"sharing": (sharing, 2.7), "neighbors": (task, 3.2)}


if __name__ == "__main__":
    run_example("multi_head_attention", PRESETS, compute, drawings, summary)
