"""Figures of chapter 8: heads that find their places, and a ResNet without convolution.

The trainings go into folders of their own, and a run that was stopped goes on.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import torch
from einops import rearrange, reduce
from matplotlib.figure import Figure, SubFigure
from matplotlib.patches import Circle, Rectangle
from torch import Tensor, nn
from torch.nn.utils import parametrize

from transformers_hw.attention_as_convolution import (
    GaussianSelfAttention,
    PictureBert,
    attentionize,
    convolution_from_attention,
    effective_kernel,
    verify_limit,
)
from transformers_hw.attention_as_convolution.picture_bert import Encoding
from transformers_hw.lab.batching import PictureBatches
from transformers_hw.lab.checkpoint import Progress
from transformers_hw.lab.example import (
    Drawings,
    ExampleConfig,
    Metrics,
    Results,
    run_example,
    training_folder,
)
from transformers_hw.lab.objectives import classify
from transformers_hw.lab.optimisation import Optimiser, TrainingConfig
from transformers_hw.lab.pictures import Pictures, load_pictures
from transformers_hw.lab.plotting import LIGHT, Theme, heatmap, label_line
from transformers_hw.lab.training import evaluate, train
from transformers_hw.transformer import gelu

ENCODINGS: dict[str, Encoding] = {
    "Gaussian": "gaussian",
    "learned": "learned",
    "learned + content": "learned+content",
}
RESNET = "ResNet"
# Settings that a training depends on, besides those of any training.
ABOUT = (
    *("share", "varied", "haste", "dim", "depth", "heads", "hidden_dim", "dropout"),
    *("widths", "blocks"),
)
GRID, SHOWN_ALPHAS = 9, (0.1, 0.5, 3.0)
# By name: the centre (query minus key), the query, and the pixels it should look at.
LIMITS = {
    "on a pixel": ((2, -3), (5, 3), [(3, 6)]),
    "between four": ((1.5, 1.5), (5, 5), [(3, 3), (3, 4), (4, 3), (4, 4)]),
    "outside": ((2, 3), (1, 2), [(0, 0)]),
}
# How much of each head's weight the convolution's window is to hold.
SHARES = (0.9, 0.99, 0.999)
WINDOW = 13
DISTANCES = (
    "kernel_size",
    "error_inside",
    "bound_inside",
    "error_anywhere",
    "bound_anywhere",
)
# So small a share of a class is one picture.
FEWEST, SHOWN_PICTURE = 1e-9, 3


@dataclass(frozen=True)
class Config(ExampleConfig):
    """What is trained on what, and for how long."""

    data: str = "digits"
    """Pictures: digits, cifar10, or a folder or zip of train/ and test/."""
    share: float = 1.0
    """How much of the training pictures to use."""
    watched_share: float = 1.0
    """How much of the test pictures to measure on after each epoch."""
    varied: bool = False
    """Whether to shift and mirror the pictures in training."""
    epochs: int = 6
    """Epochs of the model whose heads are watched."""
    patch: int = 1
    """Pixels on the side of a token of that model."""
    compared_epochs: int = 6
    """Epochs of each of the models that are compared."""
    compared_patch: int = 1
    """Pixels on the side of a token of those."""
    batch_size: int = 50
    """Pictures in a batch."""
    optimiser: Optimiser = "adamw"
    """What to train with."""
    learning_rate: float = 2e-3
    """The greatest learning rate."""
    weight_decay: float = 0.01
    """How strongly to pull weights towards zero."""
    haste: float = 10.0
    """How much longer AdamW's steps of centres and spreads are than of weights."""
    dim: int = 16
    """Width of a token, and of a head."""
    depth: int = 2
    """Layers of attention."""
    heads: int = 9
    """Heads in a layer."""
    hidden_dim: int = 32
    """Width of the small networks' hidden layers."""
    dropout: float = 0.0
    """How much to drop in training."""
    widths: tuple[int, ...] = (8, 16)
    """Channels of the ResNet's stages."""
    blocks: int = 1
    """Blocks of two convolutions in each stage."""
    tensorboard: bool = False
    """Whether to write curves, and the moving heads, for TensorBoard."""
    start_over: bool = False
    """Whether to disregard what was trained before."""


PRESETS = {
    "quick": Config(),
    "cpu": Config(
        data="cifar10",
        share=0.2,
        watched_share=0.2,
        varied=True,
        epochs=10,
        patch=2,
        compared_epochs=8,
        compared_patch=4,
        haste=20.0,
        dim=48,
        depth=4,
        hidden_dim=96,
        widths=(16, 32, 64),
        blocks=2,
    ),
    # The paper's sizes and recipe; its ResNet has 18 layers.
    "gpu": Config(
        data="cifar10",
        varied=True,
        epochs=300,
        patch=2,
        compared_epochs=300,
        compared_patch=2,
        batch_size=100,
        optimiser="sgd",
        learning_rate=0.1,
        weight_decay=1e-4,
        haste=1.0,
        dim=400,
        depth=6,
        hidden_dim=512,
        dropout=0.1,
        widths=(64, 128, 256, 512),
        blocks=2,
    ),
}


def compute(config: Config, device: torch.device) -> tuple[Results, Metrics]:
    """Train a model and watch its heads, then others to compare; measure them all."""
    pictures = load_pictures(config.data)
    results, metrics = limits()
    watched = Lesson(config, pictures, "Gaussian", config.patch, config.epochs)
    earlier = 0.0

    def learnt(lesson: Lesson) -> tuple[nn.Module, Progress]:
        nonlocal earlier
        start = time.monotonic()
        model, progress = lesson.learn()
        earlier += max(0.0, progress.seconds - (time.monotonic() - start))
        return model, progress

    known = model, progress = learnt(watched)
    metrics["watched"] = watched.outcome(model, progress, device)
    results.update(heads_over_time(watched.model(), progress, metrics))
    results.update(as_convolutions(model, watched, metrics, device))
    metrics["compared"], metrics["classes"] = {}, list(pictures.classes)
    for name in (*ENCODINGS, RESNET):
        lesson = Lesson(
            config, pictures, name, config.compared_patch, config.compared_epochs
        )
        # At the paper's sizes, one of those compared is the one that was watched.
        model, progress = known if lesson == watched else learnt(lesson)
        metrics["compared"][name] = lesson.outcome(model, progress, device)
        results[f"accuracy.{name}"] = torch.tensor(
            [entry["test"]["accuracy"] for entry in progress.history]
        )
        results[f"epoch.{name}"] = torch.tensor(
            [entry["epoch"] for entry in progress.history]
        )
        if name == RESNET:
            results.update(without_convolutions(model, lesson, metrics, device))
    return results, metrics | {"earlier_seconds": earlier}


class Residual(nn.Module):
    """Two convolutions, and a way around them."""

    def __init__(self, channels: int, output_channels: int, stride: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(channels, output_channels, 3, stride, 1, bias=False),
            nn.BatchNorm2d(output_channels),
            nn.ReLU(),
            nn.Conv2d(output_channels, output_channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(output_channels),
        )
        self.around = nn.Identity()
        if channels != output_channels:
            self.around = nn.Sequential(
                nn.Conv2d(channels, output_channels, 1, stride, bias=False),
                nn.BatchNorm2d(output_channels),
            )

    def forward(self, x: Tensor) -> Tensor:
        """Add what the convolutions found."""
        return (self.around(x) + self.convolutions(x)).relu()


def small_resnet(
    channels: int, classes: int, widths: Sequence[int], blocks: int
) -> nn.Sequential:
    """Make a ResNet for small pictures, as He et al. (2016, section 4.2) did."""
    stem = [nn.Conv2d(channels, widths[0], 3, padding=1, bias=False)]
    stages = [nn.Sequential(*stem, nn.BatchNorm2d(widths[0]), nn.ReLU())]
    for number, width in enumerate(widths):
        before = widths[max(0, number - 1)]
        first = Residual(before, width, stride=2 if number else 1)
        more = (Residual(width, width, stride=1) for _ in range(blocks - 1))
        stages.append(nn.Sequential(first, *more))
    pooled = (nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(*stages, *pooled, nn.Linear(widths[-1], classes))


class Hasten(nn.Module):
    """Hold a parameter in larger units, so that AdamW moves it by larger steps."""

    def __init__(self, unit: float) -> None:
        super().__init__()
        self.unit = unit

    def forward(self, x: Tensor) -> Tensor:
        """Give the parameter."""
        return self.unit * x

    def right_inverse(self, x: Tensor) -> Tensor:
        """Give what is to be learnt."""
        return x / self.unit


@dataclass(frozen=True)
class Lesson:
    """A model, and the pictures it learns from."""

    config: Config
    pictures: Pictures
    name: str
    patch: int
    epochs: int

    def model(self) -> nn.Module:
        """Make the model as it is before training."""
        config = self.config
        channels, side, _ = self.pictures.train.pictures.shape[1:]
        classes = len(self.pictures.classes)
        torch.manual_seed(config.seed)
        if self.name == RESNET:
            return small_resnet(channels, classes, config.widths, config.blocks)
        bert = PictureBert(
            classes,
            encoding=ENCODINGS[self.name],
            channels=channels,
            patch=self.patch,
            dim=config.dim,
            depth=config.depth,
            heads=config.heads,
            hidden_dim=config.hidden_dim,
            dropout=config.dropout,
            longest=side // self.patch,
        )
        for attention in gaussian_layers(bert):
            for part in ("centers", "log_sharpness"):
                unit = Hasten(config.haste)
                parametrize.register_parametrization(attention, part, unit)
        return bert

    def batches(self, *, share: float | None = None) -> PictureBatches:
        """Give pictures to train on, or a share of those to test with."""
        config, training = self.config, share is None
        train = self.pictures.train.subset(config.share, seed=config.seed)
        mean, std = train.statistics()
        return PictureBatches(
            train if share is None else self.pictures.test.subset(share),
            config.batch_size if training else 250,
            mean=mean,
            std=std,
            seed=config.seed,
            shuffle=training,
            crop_padding=4 if training and config.varied else 0,
            flip=training and config.varied,
        )

    def one_of_each_class(self) -> Tensor:
        """Give one test picture of each class."""
        return self.batches(share=FEWEST).part(0).tensors[0]

    def learn(self) -> tuple[nn.Module, Progress]:
        """Train the model, or go on, or find that all is done."""
        config, model, batches = self.config, self.model(), self.batches()
        kind = self.name.lower().replace(" + ", "-")
        out = training_folder(config, f"{kind}-patch-{self.patch}-for-{self.epochs}")
        steps = self.epochs * batches.steps_per_epoch
        about = {k: v for k, v in asdict(config).items() if k in ABOUT}
        about |= {"name": self.name, "patch": self.patch}
        callbacks = []
        if gaussian_layers(model):
            callbacks.append(Watch(model, out if config.tensorboard else None))
        progress = train(
            model,
            batches,
            classify,
            TrainingConfig(
                out=out,
                epochs=self.epochs,
                batch_size=config.batch_size,
                learning_rate=config.learning_rate,
                weight_decay=config.weight_decay,
                optimiser=config.optimiser,
                warmup_steps=steps // 20,
                clip_norm=1.0 if config.optimiser == "adamw" else None,
                seed=config.seed,
                device=config.device,
                tensorboard=config.tensorboard,
                start_over=config.start_over,
            ),
            evaluations={"test": self.batches(share=config.watched_share)},
            callbacks=callbacks,
            about=about | {"pictures": self.pictures.describe()["digest"]},
        )
        for attention in gaussian_layers(model):
            for part in ("centers", "log_sharpness"):
                parametrize.remove_parametrizations(attention, part)
        return model.eval(), progress

    def outcome(
        self, model: nn.Module, progress: Progress, device: torch.device
    ) -> Metrics:
        """Say how large the model is, how long it trained and how well it does."""
        found = evaluate(model, self.batches(share=1.0), classify, device=device)
        return {
            "parameters": sum(x.numel() for x in model.parameters()),
            "minutes": round(progress.seconds / 60, 2),
            "pictures_seen": self.epochs * len(self.batches().split),
            "test_accuracy": round(found["accuracy"], 4),
        }


def gaussian_layers(model: nn.Module) -> list[GaussianSelfAttention]:
    """Give the layers of a model whose heads have centres."""
    return [x for x in model.modules() if isinstance(x, GaussianSelfAttention)]


def places(model: nn.Module) -> Tensor:
    """Give row, column and spread of each head: its standard deviation, in tokens."""
    found = []
    for attention in gaussian_layers(model):
        centers, logs = attention.centers, attention.log_sharpness
        if centers is not None and logs is not None:
            spread = rearrange((-logs / 2).exp() / math.sqrt(2), "h -> h 1")
            found.append(torch.cat([centers, spread], dim=1).detach().cpu())
    return torch.stack(found)


class Watch:
    """Note where the heads are after each epoch; show it live, in TensorBoard.

    Args:
        model: The model before training.
        folder: The training's folder, if TensorBoard is to read there.
    """

    def __init__(self, model: nn.Module, folder: Path | None) -> None:
        self.trail = [places(model)]
        self.folder = folder
        self.writer: Any = None

    def __call__(self, model: nn.Module, epoch: int) -> Mapping[str, Any]:
        """Note the places, for the history."""
        self.trail.append(places(model))
        if self.folder is not None:
            self.show(torch.stack(self.trail), self.folder, epoch)
        return {"places": self.trail[-1].tolist()}

    def show(self, trail: Tensor, folder: Path, epoch: int) -> None:
        """Write the way of the heads so far, as a figure and as numbers."""
        if self.writer is None:
            # Importing it takes seconds.
            from torch.utils.tensorboard.writer import SummaryWriter

            self.writer = SummaryWriter(str(folder / "tensorboard"))
        figure = Figure(figsize=(7.2, 6.4), layout="constrained")
        draw_trails(figure, LIGHT, trail)
        self.writer.add_figure("heads", figure, epoch)
        moved = (trail[-1] - trail[0])[..., :2].norm(dim=-1).mean(1).tolist()
        spread = trail[-1, ..., 2].mean(1).tolist()
        for name, values in (("moved", moved), ("spread", spread)):
            for layer, value in enumerate(values, 1):
                self.writer.add_scalar(f"{name}/layer {layer}", value, epoch)
        self.writer.flush()


def limits() -> tuple[Results, Metrics]:
    """Sharpen heads, and compare the two GELUs: what needs no training."""
    alphas = torch.linspace(0.2, 20.0, 100, dtype=torch.float64)
    results = {"limit.alpha": alphas}
    results["limit.bound"] = 4 * (-alphas).exp() / (1 - (-3 * alphas).exp())
    for name, (center, query, targets) in LIMITS.items():
        grid = (GRID, GRID)
        maps = verify_limit(center, alphas.tolist(), grid=grid, query=query)
        off = maps.clone()
        for target in targets:
            off[:, *target] = 0.0
        results[f"limit.off.{name}"] = reduce(off, "a k l -> a", "sum")
        results[f"limit.maps.{name}"] = verify_limit(
            center, SHOWN_ALPHAS, grid=grid, query=query
        ).float()
    x = torch.linspace(-5.0, 5.0, 100_001, dtype=torch.float64)
    difference = gelu(x, approximate="tanh") - gelu(x)
    place = difference.abs().argmax()
    results["gelu.x"] = x[::200]
    results["gelu.exact"], results["gelu.difference"] = (
        gelu(x[::200]),
        difference[::200],
    )
    return results, {
        "gelu_largest_difference": difference[place].abs().item(),
        "gelu_largest_difference_at": round(x[place].abs().item(), 3),
    }


def heads_over_time(start: nn.Module, progress: Progress, metrics: Metrics) -> Results:
    """Put together where the heads were, and say how far they moved."""
    later = [torch.tensor(entry["places"]) for entry in progress.history]
    trail = torch.stack([places(start), *later])
    moved = (trail[-1] - trail[0])[..., :2].norm(dim=-1)
    metrics["tokens_moved_mean"] = [round(x, 2) for x in moved.mean(1).tolist()]
    metrics["tokens_moved_most"] = [round(x, 2) for x in moved.amax(1).tolist()]
    metrics["spread_mean"] = [round(x, 2) for x in trail[-1, ..., 2].mean(1).tolist()]
    return {"places": trail}


@torch.no_grad()
def as_convolutions(
    model: nn.Module, lesson: Lesson, metrics: Metrics, device: torch.device
) -> Results:
    """Read a convolution off every layer, and measure how far the two are apart."""
    layers = gaussian_layers(model)
    pictures = lesson.one_of_each_class()[:9]
    inputs = outputs_of(model, layers, pictures.to(device), inputs=True)
    found: dict[str, list[Tensor]] = {"taps": [], "filters": [], "energy": []}
    measured = []
    for layer, x in zip(layers, inputs, strict=True):
        kernel = effective_kernel(layer, WINDOW).cpu().double()
        taps = rearrange(kernel, "e d k l -> (k l) (e d)")
        filters, strengths, _ = torch.linalg.svd(taps, full_matrices=False)
        peak = filters.gather(0, filters.abs().argmax(0, keepdim=True))
        shape = {"k": WINDOW, "l": WINDOW}
        filters = rearrange(filters * peak.sign(), "(k l) f -> f k l", **shape)
        found["taps"].append(reduce(kernel**2, "e d k l -> k l", "sum").sqrt().float())
        found["filters"].append(filters[:3].float())
        found["energy"].append((strengths**2 / (strengths**2).sum())[:9])
        # A picture's own activations, nine to a mosaic, which has more inside.
        mosaic = rearrange(x, "(p q) i j d -> 1 (p i) (q j) d", p=3)
        measured.append([distance(layer, x, mosaic, share) for share in SHARES])
    results = {f"kernel.{name}": torch.stack(x) for name, x in found.items()}
    results["kernel.distance"] = torch.tensor(measured)
    told = results["kernel.distance"][:, SHARES.index(0.999)]
    for name, column in zip(DISTANCES, told.unbind(1), strict=True):
        # A window larger than the mosaic has no inside, and JSON has no such number.
        metrics[f"convolution_{name}"] = [
            None if math.isnan(x) else round(x, 4) for x in column.tolist()
        ]
    return results


def distance(
    layer: GaussianSelfAttention, x: Tensor, mosaic: Tensor, share: float
) -> list[float]:
    """Measure a layer against its convolution; see `DISTANCES`."""
    convolution, inside, anywhere = convolution_from_attention(layer, share=share)
    size = convolution.kernel_size[0]

    def error(pictures: Tensor, margin: int) -> float:
        rows, columns = (slice(margin, n - margin) for n in pictures.shape[1:3])
        wanted = layer(pictures, queries=(rows, columns))[0]
        given = convolution(rearrange(pictures, "b i j d -> b d i j"))
        return (rearrange(given, "b d i j -> b i j d") - wanted).abs().max().item()

    beside = error(x, 0)
    # Without padding, a convolution gives what it gives inside.
    convolution.padding, convolution.padding_mode = (0, 0), "zeros"
    within = error(mosaic, size // 2) if size <= mosaic.shape[1] else math.nan
    output = layer(x)[0] - (0.0 if layer.bias is None else layer.bias)
    typical = output.square().mean().sqrt().item()
    largest = mosaic.abs().max().item()
    return [
        float(size),
        within / typical,
        inside.max().item() * largest / typical,
        beside / typical,
        anywhere.max().item() * largest / typical,
    ]


@torch.no_grad()
def without_convolutions(
    model: nn.Module, lesson: Lesson, metrics: Metrics, device: torch.device
) -> Results:
    """Replace all convolutions of a model by attention, and look for a difference."""
    replaced = attentionize(model)
    pictures = lesson.one_of_each_class()
    stages = len(lesson.config.widths) + 1
    shown = lesson.pictures.test.subset(FEWEST).pictures[SHOWN_PICTURE]
    results = {"resnet.picture": rearrange(shown, "c h w -> h w c")}
    maps = {}
    for name, one in (("convolution", model), ("attention", replaced)):
        one = cast(nn.Sequential, one)
        maps[name] = outputs_of(one, [*one[:stages], one[-1]], pictures.to(device))
    differences = []
    for stage, (wanted, given) in enumerate(zip(*maps.values(), strict=True)):
        differences.append((given - wanted).abs().max().item())
        if stage < stages:
            own = wanted[SHOWN_PICTURE]
            liveliest = own.flatten(1).std(dim=1).argmax()
            results[f"resnet.{stage}.convolution"] = own[liveliest]
            results[f"resnet.{stage}.attention"] = given[SHOWN_PICTURE, liveliest]
        else:
            results["resnet.logits.convolution"] = wanted
            results["resnet.logits.attention"] = given
    few = lesson.batches(share=min(1.0, 1000 / len(lesson.pictures.test)))
    agreed = total = 0
    for step in range(few.steps_per_epoch):
        x = few.part(step).tensors[0].to(device)
        agreed += int((model(x).argmax(1) == replaced(x).argmax(1)).sum())
        total += len(x)
    metrics["resnet_map_largest_difference"] = differences[:-1]
    metrics["resnet_logit_largest_difference"] = differences[-1]
    metrics["resnet_largest_logit"] = maps["convolution"][-1].abs().max().item()
    metrics["resnet_predictions_compared"] = total
    metrics["resnet_predictions_equal"] = agreed
    metrics["resnet_heads"] = sum(layer.heads for layer in gaussian_layers(replaced))
    metrics["resnet_convolutions_replaced"] = len(gaussian_layers(replaced))
    return results


def outputs_of(
    model: nn.Module, parts: Sequence[nn.Module], x: Tensor, *, inputs: bool = False
) -> list[Tensor]:
    """Give what parts of a model put out, or take in, when it sees pictures."""
    seen: list[Tensor] = []

    def keep(_: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
        seen.append(given[0] if inputs else output)

    hooks = [part.register_forward_hook(keep) for part in parts]
    model(x)
    for hook in hooks:
        hook.remove()
    return seen


def halves(figure: Figure, widths: Sequence[float]) -> list[SubFigure]:
    """Divide a figure into a left and a right part."""
    grid = figure.add_gridspec(1, len(widths), width_ratios=widths)
    return [figure.add_subfigure(part) for part in grid]


def scientific(x: float) -> str:
    """Write a small number as one would by hand."""
    digits, power = f"{x:.0e}".split("e")
    return rf"${digits}\cdot10^{{{int(power)}}}$"


def draw_trails(figure: Figure, theme: Theme, trail: Tensor) -> None:
    """Draw each layer's heads on their way, with a circle for how far they see."""
    depth = trail.shape[1]
    rows = 1 if depth < 4 else 2
    panels = figure.subplots(rows, -(-depth // rows), squeeze=False)
    for number, (axes, heads) in enumerate(
        zip(panels.flat, trail.unbind(1), strict=False), 1
    ):
        kernel = Rectangle((-1.5, -1.5), 3, 3, fc="none", ec=theme.ink, lw=0.8, ls=":")
        axes.add_patch(kernel)
        axes.plot(0, 0, "s", color=theme.ink, ms=5)
        for head, way in enumerate(heads.unbind(1)):
            colour = theme.series[head % len(theme.series)]
            row, column, spread = way.unbind(1)
            axes.plot(column, row, color=colour, lw=1.2)
            for at, fill in ((0, theme.paper), (-1, colour)):
                axes.plot(
                    column[at], row[at], "o", ms=4.5, mfc=fill, mec=colour, zorder=3
                )
            end, radius = (column[-1].item(), row[-1].item()), spread[-1].item()
            axes.add_patch(Circle(end, radius, fc=colour, alpha=0.12, lw=0))
            axes.add_patch(Circle(end, radius, fc="none", ec=colour, lw=0.8))
        reach = heads[..., :2].abs().max().item() + 1.5
        axes.set(title=f"layer {number}", aspect="equal")
        axes.set(xlim=(-reach, reach), ylim=(reach, -reach))
        axes.locator_params(integer=True, nbins=7)
    figure.supylabel("tokens below the query", fontsize=9)
    figure.supxlabel(
        "tokens to the right of the query ■, with a 3 × 3 window around it\n"
        "○ before training   ● after it, with a circle of one standard deviation",
        fontsize=9,
    )


def drawings(results: Results, metrics: Metrics) -> Drawings:
    """Say how each figure is drawn."""

    def limit(figure: Figure, theme: Theme) -> None:
        left, right = halves(figure, [1, 1.3])
        cells = left.subplots(len(LIMITS), len(SHOWN_ALPHAS))
        left.supxlabel("□ the query   ○ what is nearest to its aim", fontsize=8)
        axes = right.subplots()
        alphas, bound = results["limit.alpha"], results["limit.bound"]
        axes.plot(alphas, bound, ":", color=theme.ink, lw=3)
        for cell, alpha in zip(cells[0], SHOWN_ALPHAS, strict=True):
            cell.set_title(rf"$\alpha = {alpha:g}$")
        for row, colour, named, (name, (_, query, targets)) in zip(
            cells, theme.series, (1e-4, 3e-7, 1e-10), LIMITS.items(), strict=False
        ):
            for cell, x in zip(row, results[f"limit.maps.{name}"], strict=True):
                heatmap(cell, theme, x)
                cell.plot(*query[::-1], "s", mfc="none", mec=theme.ink, ms=6)
                for target in targets:
                    cell.plot(*target[::-1], "o", mfc="none", mec=colour, ms=9)
            row[0].set_ylabel(name, color=colour)
            off = results[f"limit.off.{name}"]
            axes.plot(alphas, off, color=colour)
            crossed = alphas[(off.log() - math.log(named)).abs().argmin()].item()
            label_line(axes, name, (crossed, 2 * named), colour)
        axes.annotate("bound", (4.0, 4 * bound[19].item()))
        axes.axhline(2.0**-25, color=theme.ink, lw=0.8)
        text = "below this line, the target's\nweight is 1 in float32"
        axes.annotate(text, (19.7, 2.0**-25 / 4), ha="right", va="top", fontsize=8)
        axes.set(yscale="log", xlim=(0, 20), ylim=(1e-11, 10))
        axes.set(title="weight beside the target", xlabel=r"sharpness $\alpha$")

    def gelus(figure: Figure, theme: Theme) -> None:
        left, right = figure.subplots(1, 2)
        x, exact, off = (
            results[f"gelu.{name}"] for name in ("x", "exact", "difference")
        )
        left.plot(x, exact, color=theme.series[0], lw=4, alpha=0.35)
        left.plot(x, exact + off, "--", color=theme.series[1])
        left.annotate(r"exact: $x\,\Phi(x)$", (0.2, 3.4), color=theme.series[0])
        left.annotate("with tanh", (0.2, 2.8), color=theme.series[1])
        left.set(title="two GELUs, one line", xlabel="$x$")
        right.plot(x, 1e4 * off, color=theme.series[2])
        right.set(title="their difference, tanh minus exact", xlabel="$x$")
        right.set(ylabel=r"$\times\,10^{-4}$", ylim=(-3, 7))
        most = 1e4 * metrics["gelu_largest_difference"]
        place = metrics["gelu_largest_difference_at"]
        right.plot([-place, place], [most, most], "o", color=theme.ink, ms=4)
        text = rf"at most ${most:.3f}\cdot10^{{-4}}$, at $|x| = {place:.3f}$"
        right.annotate(text, (0, most + 0.8), ha="center")

    def centres(figure: Figure, theme: Theme) -> None:
        draw_trails(figure, theme, results["places"])

    def kernels(figure: Figure, theme: Theme) -> None:
        depth, filters = results["kernel.filters"].shape[:2]
        left, right = halves(figure, [1.2, 1])
        cells = left.subplots(depth, filters + 1, squeeze=False)
        for layer, row in enumerate(cells):
            taps = results["kernel.taps"][layer]
            shown = [(taps / taps.max(), False)]
            shown += [(x, True) for x in results["kernel.filters"][layer]]
            for cell, (x, signed) in zip(row, shown, strict=True):
                heatmap(cell, theme, x, signed=signed)
                middle = WINDOW // 2
                cell.plot(middle, middle, "s", mfc="none", mec=theme.ink, ms=3, mew=0.6)
            row[0].set_ylabel(f"layer {layer + 1}")
            for cell, energy in zip(
                row[1:], results["kernel.energy"][layer], strict=False
            ):
                cell.set_xlabel(f"{energy:.0%}", fontsize=8, labelpad=1)
        cells[0, 0].set_title("taps")
        for number, cell in enumerate(cells[0, 1:], 1):
            cell.set_title(f"part {number}")
        left.supxlabel(
            "taps: how much each offset from the query □ weighs\n"
            "parts: their singular vectors, and share of the squares",
            fontsize=8,
        )
        axes = right.subplots()
        distances = results["kernel.distance"][:, SHARES.index(0.999)]
        layers = torch.arange(1, depth + 1)
        sizes = distances[:, 0].int().tolist()
        for colour, name, error, bound in (
            (theme.series[0], "inside", 1, 2),
            (theme.series[1], "with\nborder", 3, 4),
        ):
            axes.vlines(
                layers, distances[:, error], distances[:, bound], color=colour, lw=0.8
            )
            axes.plot(layers, distances[:, bound], "_", color=colour, ms=12, mew=2)
            axes.plot(layers, distances[:, error], "o", color=colour, ms=5)
            height = 0.3 * distances[-1, bound].item()
            label_line(axes, name, (depth + 0.1, height), colour)
        axes.set(yscale="log", xlim=(0.5, depth + 1.6))
        axes.set_xticks(
            layers.tolist(),
            [f"{n}\n{k}×{k}" for n, k in enumerate(sizes, 1)],
            fontsize=8,
        )
        axes.set(title="attention against convolution", xlabel="layer, and its kernel")
        axes.set_ylabel("largest error ● and bound –, in typical outputs")

    def comparison(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        compared = metrics["compared"]
        curves = {name: 100 * results[f"accuracy.{name}"] for name in compared}
        every = torch.cat(list(curves.values()))
        # Names keep apart where lines do not.
        gap, lowest = 0.07 * (every.max() - every.min()).item(), 0.0
        colours = dict(zip(compared, theme.series, strict=False))
        for name, curve in sorted(curves.items(), key=lambda item: item[1][-1].item()):
            epochs = results[f"epoch.{name}"]
            axes.plot(epochs, curve, "o-", color=colours[name], ms=3)
            height = max(lowest, curve[-1].item())
            lowest = height + gap
            text = f"{name} ({compared[name]['parameters']:,})"
            label_line(axes, text, (epochs[-1].item(), height), colours[name])
        seen = compared[RESNET]["pictures_seen"]
        axes.set(title=f"after {seen:,} pictures each (and number of parameters)")
        axes.set(xlabel="epochs", ylabel="test accuracy, %")

    def resnet(figure: Figure, theme: Theme) -> None:
        differences = metrics["resnet_map_largest_difference"]
        stages = len(differences)
        grid = figure.add_gridspec(3, stages + 2, width_ratios=[1] * stages + [0.1, 2])
        titles = ["first layer"] + [f"stage {n}" for n in range(1, stages)]
        for stage, (title, most) in enumerate(zip(titles, differences, strict=True)):
            wanted, given = (
                results[f"resnet.{stage}.{name}"]
                for name in ("convolution", "attention")
            )
            rows = ((wanted, False), (given, False), (given - wanted, True))
            for number, (x, signed) in enumerate(rows):
                cell = figure.add_subplot(grid[number, stage])
                limit = (most or 1.0) if signed else wanted.max().item()
                heatmap(cell, theme, x, signed=signed, limit=limit)
                if stage == 0:
                    cell.set_ylabel(("convolution", "attention", "difference")[number])
                if number == 0:
                    cell.set_title(title)
                if number == 2:
                    text = f"at most {scientific(most)}" if most else "none"
                    cell.set_xlabel(text, fontsize=8)
        picture = figure.add_subplot(grid[0, -1])
        picture.imshow(results["resnet.picture"], cmap="gray")
        picture.set_axis_off()
        axes = figure.add_subplot(grid[1:, -1])
        classes = metrics["classes"]
        for name, marker, size in (("convolution", "o", 8), ("attention", "x", 5)):
            logits = results[f"resnet.logits.{name}"][SHOWN_PICTURE]
            axes.plot(
                logits, range(len(classes)), marker, ms=size, mfc="none", label=name
            )
        axes.set_yticks(range(len(classes)), classes, fontsize=7)
        axes.legend(fontsize=7, handletextpad=0)
        most = scientific(metrics["resnet_logit_largest_difference"])
        axes.set(title=f"logits: at most {most} apart")
        axes.set(ylim=(len(classes) - 0.5, -0.5))

    return {
        "limit": (limit, 3.4),
        "gelus": (gelus, 2.6),
        "centres": (centres, 3.0 if results["places"].shape[1] < 4 else 6.4),
        "kernels": (kernels, 0.8 + 0.95 * len(results["kernel.taps"])),
        "comparison": (comparison, 3.2),
        "resnet": (resnet, 3.6),
    }


if __name__ == "__main__":
    run_example(
        "attention_as_convolution",
        presets=PRESETS,
        compute=compute,
        drawings=drawings,
        data=lambda config: load_pictures(config.data).describe(),
    )
