"""Figures of chapter 3: what heads share, and what one head alone cannot do."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

from transformers_hw import MultiHeadAttention, OneHotPositions
from transformers_hw.lab.batching import GeneratedBatches
from transformers_hw.lab.example import (
    Drawings,
    ExampleConfig,
    Metrics,
    Results,
    run_example,
    training_folder,
)
from transformers_hw.lab.optimisation import TrainingConfig
from transformers_hw.lab.plotting import Theme, heatmap, label_line
from transformers_hw.lab.training import train

CHANNELS, SHARES = 12, (1, 2, 3, 4, 6, 12)
# By name: the number of heads, and whether they may look at contents.
CONTENDERS = {
    "one head": (1, False),
    "one head, contents too": (1, True),
    "two heads": (2, False),
}


@dataclass(frozen=True)
class Config(ExampleConfig):
    """How long to train on the task of the two neighbours."""

    steps: int = 300
    """Steps of training, for each number of heads."""
    length: int = 8
    """Number of tokens."""
    dim: int = 4
    """Width of a token."""
    batch_size: int = 64
    """Sequences in a batch."""


PRESETS = {
    "quick": Config(),
    "cpu": Config(steps=6_000, length=12, batch_size=128),
    "gpu": Config(steps=20_000, length=32, dim=16, batch_size=512),
}


def compute(config: Config, device: torch.device) -> tuple[Results, Metrics]:
    """Compare heads with groups, then train one head and more on the task."""
    results = connectivity()
    first, second = (
        torch.randn(2, config.dim, config.dim, dtype=torch.float64).float().unbind(0)
    )
    results["floor"] = one_head_floor(first, second)
    losses = {}
    for name, (heads, contents) in CONTENDERS.items():
        curve = learn(config, Neighbours(config, heads, contents), name, first, second)
        results[f"loss.{name}"] = curve
        losses[name] = round(curve[-1].item(), 5)
    floor = round(results["floor"].item(), 5)
    return results, {"last_loss": losses, "one_head_floor": floor}


def connectivity() -> Results:
    """Say which input channels each output channel of a head, or group, can see."""
    x = torch.randn(1, 5, CHANNELS, requires_grad=True)
    layer = MultiHeadAttention(CHANNELS, 3)
    layer.output_proj = nn.Identity()  # type: ignore[assignment]
    grouped = nn.Conv1d(CHANNELS, CHANNELS, 1, groups=3)
    found = {}
    for name, output in (("heads", layer(x)[0]), ("groups", grouped(x.mT).mT)):
        rows = [
            torch.autograd.grad(output[..., channel].sum(), x, retain_graph=True)[0]
            for channel in range(CHANNELS)
        ]
        found[f"seen.{name}"] = (torch.stack(rows).abs().sum((1, 2)) > 0).float()
    found["parameters.heads"] = torch.tensor(
        [count(MultiHeadAttention(CHANNELS, h, bias=False)) for h in SHARES]
    )
    found["parameters.groups"] = torch.tensor(
        [
            4 * count(nn.Conv1d(CHANNELS, CHANNELS, 1, groups=g, bias=False))
            for g in SHARES
        ]
    )
    return found


def count(layer: nn.Module) -> int:
    """Count a layer's parameters."""
    return sum(parameter.numel() for parameter in layer.parameters())


def one_head_floor(first: Tensor, second: Tensor) -> Tensor:
    r"""Give the least error of a head whose weights depend on positions alone.

    It gives $aW$ to one neighbour and $bW$ to the other, with $a, b \ge 0$. For the
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


class Neighbours(nn.Module):
    """Heads that find their places by one-hot codes, and may look at tokens as well."""

    def __init__(self, config: Config, heads: int, contents: bool) -> None:
        super().__init__()
        self.positions = OneHotPositions(config.length)
        self.looks_from = 0 if contents else config.dim
        self.attention = MultiHeadAttention(
            config.dim + config.length - self.looks_from,
            heads,
            values_dim=config.dim,
            head_dim=config.length,
            value_head_dim=config.dim,
            output_dim=config.dim,
        )

    def forward(self, x: Tensor) -> Tensor:
        """Average the tokens' values, with weights from codes (and tokens)."""
        known = self.positions(x)[..., self.looks_from :]
        return self.attention(known, known, x)[0]


def learn(
    config: Config, model: nn.Module, name: str, first: Tensor, second: Tensor
) -> Tensor:
    """Train heads to give $W_1 x_{i-1} + W_2 x_{i+1}$; give the loss over time."""

    def make(samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(samples, config.length, config.dim, generator=generator)
        return x, x[:, :-2] @ first.T + x[:, 2:] @ second.T

    def objective(model: nn.Module, batch: tuple[Tensor, ...]) -> dict[str, Tensor]:
        x, wanted = batch
        inside = model(x)[:, 1:-1]
        loss = F.mse_loss(inside, wanted, reduction="sum")
        return {"loss": loss, "count": torch.tensor(wanted.numel())}

    points = 50
    progress = train(
        model,
        GeneratedBatches(
            make,
            config.batch_size,
            steps_per_epoch=max(1, config.steps // points),
            seed=config.seed,
        ),
        objective,
        TrainingConfig(
            out=training_folder(config, name.replace(" ", "-")),
            steps=config.steps,
            batch_size=config.batch_size,
            learning_rate=1e-2,
            weight_decay=0.0,
            seed=config.seed,
            device=config.device,
            start_over=True,
        ),
    )
    return torch.tensor([entry["train"]["loss"] for entry in progress.history])


def drawings(results: Results, metrics: Metrics) -> Drawings:
    """Say how each figure is drawn."""

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
        right.set(title="parameters", xlabel="how many", ylim=(0, 640))

    def task(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        for name, colour in zip(CONTENDERS, theme.series, strict=False):
            curve = results[f"loss.{name}"]
            axes.plot(torch.linspace(0, 1, len(curve) + 1)[1:], curve, color=colour)
            # Two of the lines end in one place; their names should not.
            lift = {"one head": 1.45, "one head, contents too": 0.65}.get(name, 1.0)
            label_line(axes, name, (1.0, curve[-1].item() * lift), colour)
        floor = results["floor"].item()
        axes.axhline(floor, color=theme.ink, linestyle=":")
        axes.annotate(
            "least error of one head that knows only places",
            (0.15, floor * 0.6),
            va="top",
        )
        axes.set(yscale="log", xlabel="training done", ylabel="mean squared error")
        axes.set(title=r"$W_1 x_{i-1} + W_2 x_{i+1}$: two heads can, one cannot")

    return {"sharing": (sharing, 2.7), "neighbours": (task, 3.2)}


if __name__ == "__main__":
    run_example(
        "multi_head_attention", presets=PRESETS, compute=compute, drawings=drawings
    )
