"""Figures of chapter 8: heads that find their positions, and a ResNet of attention.

Its parts: `limit` sharpens heads. `heads` trains an image model with Gaussian attention
and records where its heads go; `steps` does so briefly, from several seeds, with small
and with large steps of the centers. `models` compares it with learned relative
positions and with a ResNet, whose convolutions are then replaced by attention.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, cast

import torch
from einops import rearrange, reduce
from matplotlib.figure import Figure, SubFigure
from matplotlib.patches import Circle, Rectangle
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.utils.flop_counter import FlopCounterMode

from transformers_hw.attention_as_convolution import (
    GaussianSelfAttention,
    ImageBert,
    attentionize,
    convolution_from_attention,
    effective_kernel,
    head_metrics,
    verify_limit,
)
from transformers_hw.lab.batching import ImageBatches
from transformers_hw.lab.checkpoint import Progress
from transformers_hw.lab.experiment import (
    Drawings,
    Experiment,
    ImageExampleConfig,
    Metrics,
    Part,
    Results,
    run_parts,
    spread,
)
from transformers_hw.lab.objectives import classify
from transformers_hw.lab.optimization import Optimizer
from transformers_hw.lab.plotting import (
    LIGHT,
    WIDTH,
    Theme,
    dot_runs,
    heatmap,
    label_line,
    plain_text,
    plot_runs,
)
from transformers_hw.lab.resnet import small_resnet
from transformers_hw.summary import count_parameters
from transformers_hw.transformer import gelu

GAUSSIAN, RESNET = "gaussian", "resnet"
# By name: the label, and the encoding of the ImageBert.
MODELS = {
    GAUSSIAN: ("Gaussian", "gaussian"),
    "learned": ("learned", "learned"),
    "learned_content": ("learned + content", "learned+content"),
    RESNET: ("ResNet", None),
}
# Factors of the centers' steps that are compared.
STEP_SCALES = (1, 20)
GRID, SHOWN_ALPHAS = 9, (0.1, 0.5, 3.0)
# By name: the label, the center (query minus key), the query, and the nearest pixels.
LIMITS = {
    "on_pixel": ("on a pixel", (2, -3), (5, 3), [(3, 6)]),
    "between_four": (
        "between four",
        (1.5, 1.5),
        (5, 5),
        [(3, 3), (3, 4), (4, 3), (4, 4)],
    ),
    "outside": ("outside", (2, 3), (1, 2), [(0, 0)]),
}
# Fractions of each head's weight that the convolution's window is to hold.
SHARES = (0.9, 0.99, 0.999)
WINDOW = 13
DISTANCES = (
    "kernel_size",
    "error_inside",
    "bound_inside",
    "error_anywhere",
    "bound_anywhere",
)
SHOWN_IMAGE = 3
SVG_WIDTH = 72 * WIDTH
# A head with a larger standard deviation, in tokens, need not be within a figure.
WIDE = 4.0


@dataclass(frozen=True)
class Config(ImageExampleConfig):
    """Settings of the models and of their training."""

    parts: tuple[str, ...] = ()
    """Parts to run: limit, heads, steps, models; all by default."""
    batch_size: int = 50
    """Samples in a batch."""
    learning_rate: float = 2e-3
    """Peak learning rate."""
    weight_decay: float = 0.01
    """Weight decay."""
    optimizer: Optimizer = "adamw"
    """Optimizer."""
    fraction: float = 1.0
    """Fraction of the training images to use."""
    eval_fraction: float = 1.0
    """Fraction of the test images to evaluate on after each epoch."""
    augment: bool = False
    """Whether to shift and mirror the training images."""
    epochs: int = 6
    """Training epochs of the model whose heads are recorded."""
    patch_size: int = 1
    """Height and width of its patches."""
    short_epochs: int = 3
    """Training epochs of the models that compare steps of the centers."""
    short_fraction: float = 1.0
    """Fraction of the training images that these are trained on."""
    compared_epochs: int = 6
    """Training epochs of each of the models that are compared."""
    compared_patch_size: int = 1
    """Height and width of their patches."""
    center_lr_scale: float = 10.0
    """Factor of AdamW's steps for centers and spreads, relative to weights."""
    dim: int = 16
    """Dimension of a token, and of a head."""
    depth: int = 2
    """Number of layers."""
    heads: int = 9
    """Number of heads in a layer."""
    hidden_dim: int = 32
    """Hidden dimension of the feed-forward networks."""
    dropout: float = 0.0
    """Dropout probability."""
    attention_dropout: float = 0.0
    """Dropout probability of attention weights."""
    widths: tuple[int, ...] = (8, 16)
    """Channels of the ResNet's stages."""
    blocks: int = 1
    """Residual blocks in each stage."""


PRESETS = {
    "quick": Config(
        epochs=30, center_lr_scale=20.0, compared_epochs=20, compared_patch_size=2
    ),
    "cpu": Config(
        data="cifar10",
        seeds=3,
        augment=True,
        epochs=30,
        patch_size=2,
        short_epochs=3,
        compared_epochs=8,
        compared_patch_size=4,
        center_lr_scale=20.0,
        dim=32,
        depth=3,
        hidden_dim=64,
        widths=(8, 16, 32),
        blocks=2,
        tensorboard=True,
    ),
    # The paper's sizes and nearly its recipe; its ResNet has 18 layers. Unlike in
    # the authors' program, biases and norms do not decay, spreads start without noise
    # and are learned as logarithms, and the ResNet's learning rate follows a cosine.
    "gpu": Config(
        data="cifar10",
        augment=True,
        seeds=3,
        epochs=300,
        short_epochs=300,
        patch_size=2,
        compared_epochs=300,
        compared_patch_size=2,
        batch_size=100,
        optimizer="sgd",
        learning_rate=0.1,
        weight_decay=1e-4,
        center_lr_scale=1.0,
        dim=400,
        depth=6,
        hidden_dim=512,
        dropout=0.1,
        attention_dropout=0.1,
        widths=(64, 128, 256, 512),
        blocks=2,
    ),
}


def heads(experiment: Experiment[Config]) -> None:
    """Train a model, record its heads, and read convolutions off it."""
    config = experiment.config
    model, progress = train(experiment, GAUSSIAN, config.patch_size, config.epochs)
    experiment.metrics["model"] = outcome(experiment, model, [progress])
    experiment.results["accuracy"] = accuracies([progress])[0]
    heads_over_time(experiment, progress)
    torch.manual_seed(config.seed)
    untrained = make_model(experiment, GAUSSIAN, config.patch_size)
    experiment.metrics["heads"] = measured_heads(model)
    experiment.metrics["heads_untrained"] = measured_heads(untrained)
    as_convolutions(experiment, model)


def steps(experiment: Experiment[Config]) -> None:
    """Train a model briefly from several seeds, with centers that move more or less."""
    config, metrics = experiment.config, experiment.metrics
    for scale in STEP_SCALES:
        found, first, trails = [], [], []
        for seed in config.all_seeds:
            model, progress = train(
                experiment,
                GAUSSIAN,
                config.patch_size,
                config.short_epochs,
                seed=seed,
                scale=scale,
                fraction=config.fraction * config.short_fraction,
            )
            found.append(progress)
            trails.append(trail_of(experiment, progress, config.patch_size, seed))
            first.append(head_metrics(gaussian_layers(model)[0]))
            metrics[f"scale_{scale}"] = outcome(experiment, model, found)
        trail = torch.stack(trails)
        experiment.results[f"heads.{scale}"] = trail
        experiment.results[f"accuracy.{scale}"] = accuracies(found)
        moved = (trail[:, -1] - trail[:, 0])[..., :2].norm(dim=-1)
        metrics[f"scale_{scale}"] |= {
            "tokens_moved": spread(moved.mean((1, 2)).tolist(), 2),
            "spread": spread(trail[:, -1, ..., 2].mean((1, 2)).tolist(), 2),
            # Of the first layer; a sharp head has half of its weight on one offset.
            "sharp_heads": spread(
                (sum(x > 0.5 for x in m.peak_weights) for m in first), 1
            ),
            "cells_3x3": spread((m.cells_3x3 for m in first), 1),
            "cells_5x5": spread((m.cells_5x5 for m in first), 1),
            "energy_3x3": spread(m.energy_3x3 for m in first),
        }


def models(experiment: Experiment[Config]) -> None:
    """Train the models to compare, from several seeds, and convert the ResNet."""
    config, results, metrics = experiment.config, experiment.results, experiment.metrics
    metrics["models"] = {}
    metrics["classes"] = list(experiment.dataset.classes)
    for name in MODELS:
        found = []
        for seed in config.all_seeds:
            sizes = (config.compared_patch_size, config.compared_epochs)
            model, progress = train(experiment, name, *sizes, seed=seed)
            found.append(progress)
            metrics["models"][name] = outcome(experiment, model, found)
            if name == RESNET and seed == config.seed:
                without_convolutions(experiment, cast(nn.Sequential, model))
        results[f"accuracy.{name}"] = accuracies(found)


def accuracies(found: list[Progress]) -> Tensor:
    """Return the test accuracy after every epoch, of every seed."""
    return torch.tensor(
        [[x["test"]["accuracy"] for x in progress.history] for progress in found]
    )


class Scale(nn.Module):
    """Parametrize x as c·y, so that a step of AdamW moves x by c times as much."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, y: Tensor) -> Tensor:
        """Return the parameter x."""
        return self.factor * y

    def right_inverse(self, x: Tensor) -> Tensor:
        """Return the learned y."""
        return x / self.factor


def make_model(
    experiment: Experiment[Config], name: str, patch_size: int, scale: float = 1.0
) -> nn.Module:
    """Build an untrained model whose centers move by so much more in a step."""
    config, dataset = experiment.config, experiment.dataset
    channels, side, _ = dataset.train.images.shape[1:]
    num_classes, encoding = len(dataset.classes), MODELS[name][1]
    if encoding is None:
        sizes = {"widths": config.widths, "blocks": config.blocks}
        return small_resnet(channels, num_classes, **sizes)
    model = ImageBert(
        num_classes,
        encoding=encoding,  # type: ignore[arg-type]
        channels=channels,
        patch_size=patch_size,
        dim=config.dim,
        depth=config.depth,
        heads=config.heads,
        hidden_dim=config.hidden_dim,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        max_size=side // patch_size,
    )
    for layer in gaussian_layers(model):
        for part in ("centers", "log_sharpness"):
            parametrize.register_parametrization(layer, part, Scale(scale))
    return model


def batches_of_test(
    experiment: Experiment[Config], fraction: float = 1.0
) -> ImageBatches:
    """Return batches of a fraction of the test images."""
    return experiment.image_batches(experiment.dataset.test.subset(fraction), 250)


def one_per_class(experiment: Experiment[Config]) -> Tensor:
    """Return one test image of each class, normalized."""
    split = experiment.dataset.test.one_per_class()
    return experiment.image_batches(split, len(split)).batch(0).tensors[0]


def train(
    experiment: Experiment[Config],
    name: str,
    patch_size: int,
    epochs: int,
    *,
    seed: int | None = None,
    scale: float | None = None,
    fraction: float | None = None,
) -> tuple[nn.Module, Progress]:
    """Train a model, and record its heads if they have centers."""
    config = experiment.config
    fraction = config.fraction if fraction is None else fraction
    seed = config.seed if seed is None else seed
    scale = config.center_lr_scale if scale is None else scale
    batches = experiment.image_batches(
        experiment.dataset.train.subset(fraction, seed=seed),
        config.batch_size,
        seed=seed,
        shuffle=True,
        crop_padding=4 if config.augment else 0,
        flip=config.augment,
    )
    callbacks, folder = (), name
    if name == GAUSSIAN:
        callbacks = (HeadRecorder(untrained_heads(experiment, patch_size, seed)),)
        folder = f"{name}_scale_{scale:g}"
    return experiment.train(
        folder,
        lambda: make_model(experiment, name, patch_size, scale),
        batches,
        classify,
        evaluations={"test": batches_of_test(experiment, config.eval_fraction)},
        callbacks=callbacks,
        seed=seed,
        epochs=epochs,
        learning_rate=config.learning_rate,
        weight_decay=config.weight_decay,
        optimizer=config.optimizer,
        warmup_steps=epochs * batches.steps_per_epoch // 20,
        clip_norm=1.0 if config.optimizer == "adamw" else None,
        identity={"fraction": fraction, "augment": config.augment},
    )


def outcome(
    experiment: Experiment[Config], model: nn.Module, found: list[Progress]
) -> Metrics:
    """Return size, cost and accuracies of a model that several seeds gave."""
    last = [progress.history[-1] for progress in found]
    (image, _), _ = experiment.image_batches(experiment.dataset.test, 1).batch(0)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(image)
    return {
        "parameters": count_parameters(model),
        "million_multiply_adds": round(counter.get_total_flops() / 2e6, 1),
        "seeds": len(found),
        "images_seen": sum(x["train"]["count"] for x in found[0].history),
        "train_accuracy": spread(x["train"]["accuracy"] for x in last),
        "test_accuracy": spread(x["test"]["accuracy"] for x in last),
    }


def gaussian_layers(model: nn.Module) -> list[GaussianSelfAttention]:
    """Return the layers of a model whose heads have centers."""
    return [x for x in model.modules() if isinstance(x, GaussianSelfAttention)]


def head_positions(model: nn.Module) -> Tensor:
    """Return row, column and spread (standard deviation, in tokens) of each head."""
    found = []
    for layer in gaussian_layers(model):
        centers, logs = layer.centers, layer.log_sharpness
        if centers is not None and logs is not None:
            spread = rearrange((-logs / 2).exp() / math.sqrt(2), "h -> h 1")
            found.append(torch.cat([centers, spread], dim=1).detach().cpu())
    return torch.stack(found)


def measured_heads(model: nn.Module) -> list[Metrics]:
    """Return the metrics of each layer's heads, rounded."""
    return [
        {
            name: [round(x, 4) for x in value]
            if isinstance(value, list)
            else round(value, 4)
            for name, value in asdict(head_metrics(layer)).items()
        }
        for layer in gaussian_layers(model)
    ]


def untrained_heads(
    experiment: Experiment[Config], patch_size: int, seed: int
) -> Tensor:
    """Return the heads at initialization."""
    torch.manual_seed(seed)
    return head_positions(make_model(experiment, GAUSSIAN, patch_size))


def trail_of(
    experiment: Experiment[Config], progress: Progress, patch_size: int, seed: int
) -> Tensor:
    """Return where the heads were, before training and after every epoch."""
    untrained = untrained_heads(experiment, patch_size, seed)
    later = [torch.tensor(entry["heads"]) for entry in progress.history]
    return torch.stack([untrained, *later])


class HeadRecorder:
    """Record the heads at each evaluation; show them live in TensorBoard."""

    def __init__(self, untrained: Tensor) -> None:
        self.trail = [untrained]

    def __call__(self, model: nn.Module, step: int, writer: Any) -> Mapping[str, Any]:
        """Return the heads, for the history."""
        heads = head_positions(model)
        self.trail.append(heads)
        if writer is not None:
            figure = Figure(figsize=(7.2, 6.4), layout="constrained")
            draw_trails(figure, LIGHT, torch.stack(self.trail))
            writer.add_figure("heads", figure, step)
            moved = (heads - self.trail[0])[..., :2].norm(dim=-1).mean(1)
            spread = heads[..., 2].mean(1)
            for name, values in (("moved", moved), ("spread", spread)):
                for layer, value in enumerate(values.tolist(), 1):
                    writer.add_scalar(f"{name}/layer_{layer}", value, step)
            writer.flush()
        return {"heads": heads.tolist()}


def limit(experiment: Experiment[Config]) -> None:
    """Sharpen heads, and compare the two GELUs: what needs no training."""
    results = experiment.results
    alphas = torch.linspace(0.2, 20.0, 100, dtype=torch.float64)
    results["limit.alpha"] = alphas
    results["limit.bound"] = 4 * (-alphas).exp() / (1 - (-3 * alphas).exp())
    for name, (_, center, query, targets) in LIMITS.items():
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
    largest = difference.abs().argmax()
    results["gelu.x"], results["gelu.exact"] = x[::200], gelu(x[::200])
    results["gelu.difference"] = difference[::200]
    experiment.metrics |= {
        "gelu_largest_difference": difference[largest].abs().item(),
        "gelu_largest_difference_at": round(x[largest].abs().item(), 3),
    }


def heads_over_time(experiment: Experiment[Config], progress: Progress) -> None:
    """Collect where the heads were, and measure how far they moved."""
    config = experiment.config
    trail = trail_of(experiment, progress, config.patch_size, config.seed)
    moved = (trail[-1] - trail[0])[..., :2].norm(dim=-1)
    for name, values in (
        ("tokens_moved_mean", moved.mean(1)),
        ("tokens_moved_most", moved.amax(1)),
        ("spread_mean", trail[-1, ..., 2].mean(1)),
    ):
        experiment.metrics[name] = [round(x, 2) for x in values.tolist()]
    experiment.results["heads"] = trail


@torch.no_grad()
def as_convolutions(experiment: Experiment[Config], model: nn.Module) -> None:
    """Read a convolution off every layer, and measure how far the two are apart."""
    layers = gaussian_layers(model)
    inputs = outputs_of(model, layers, one_per_class(experiment)[:9], inputs=True)
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
        # The activations of nine images make a mosaic, which has more inside.
        mosaic = rearrange(x, "(p q) i j d -> 1 (p i) (q j) d", p=3)
        measured.append([distances(layer, x, mosaic, share) for share in SHARES])
    for name, tensors in found.items():
        experiment.results[f"kernel.{name}"] = torch.stack(tensors)
    by_share = experiment.results["kernel.distance"] = torch.tensor(measured)
    shown = by_share[:, SHARES.index(0.999)]
    for name, column in zip(DISTANCES, shown.unbind(1), strict=True):
        # A window larger than the mosaic has no inside, and JSON has no NaN.
        experiment.metrics[f"convolution_{name}"] = [
            None if math.isnan(x) else round(x, 4) for x in column.tolist()
        ]


def distances(
    layer: GaussianSelfAttention, x: Tensor, mosaic: Tensor, share: float
) -> list[float]:
    """Measure a layer against its convolution; see `DISTANCES`."""
    convolution, inside, anywhere = convolution_from_attention(layer, share=share)
    size = convolution.kernel_size[0]

    def error(images: Tensor, margin: int) -> float:
        rows, columns = (slice(margin, n - margin) for n in images.shape[1:3])
        expected = layer(images, queries=(rows, columns))
        found = convolution(rearrange(images, "b i j d -> b d i j"))
        return (rearrange(found, "b d i j -> b i j d") - expected).abs().max().item()

    beside = error(x, 0)
    # Without padding, a convolution gives only the inside.
    convolution.padding, convolution.padding_mode = (0, 0), "zeros"
    within = error(mosaic, size // 2) if size <= mosaic.shape[1] else math.nan
    output = layer(x) - (0.0 if layer.bias is None else layer.bias)
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
def without_convolutions(experiment: Experiment[Config], model: nn.Sequential) -> None:
    """Replace all convolutions of a model by attention, and look for a difference."""
    results, metrics = experiment.results, experiment.metrics
    replaced = cast(nn.Sequential, attentionize(model))
    images = one_per_class(experiment)
    stages = len(experiment.config.widths) + 1
    shown = experiment.dataset.test.one_per_class().images[SHOWN_IMAGE]
    results["resnet.image"] = rearrange(shown, "c h w -> h w c")
    maps = {
        name: outputs_of(one, [*one[:stages], one[-1]], images)
        for name, one in (("convolution", model), ("attention", replaced))
    }
    differences = []
    for stage, (expected, found) in enumerate(zip(*maps.values(), strict=True)):
        differences.append((found - expected).abs().max().item())
        if stage < stages:
            channels = expected[SHOWN_IMAGE]
            channel = channels.flatten(1).std(dim=1).argmax()
            results[f"resnet.{stage}.convolution"] = channels[channel]
            results[f"resnet.{stage}.attention"] = found[SHOWN_IMAGE, channel]
        else:
            results["resnet.logits.convolution"] = expected
            results["resnet.logits.attention"] = found
    few = batches_of_test(experiment, min(1.0, 1000 / len(experiment.dataset.test)))
    equal = total = 0
    for step in range(few.steps_per_epoch):
        x = few.batch(step).tensors[0]
        equal += int((model(x).argmax(1) == replaced(x).argmax(1)).sum())
        total += len(x)
    metrics |= {
        "resnet_map_largest_difference": differences[:-1],
        "resnet_logit_largest_difference": differences[-1],
        "resnet_largest_logit": maps["convolution"][-1].abs().max().item(),
        "resnet_predictions_compared": total,
        "resnet_predictions_equal": equal,
        "resnet_heads": sum(layer.heads for layer in gaussian_layers(replaced)),
        "resnet_convolutions_replaced": len(gaussian_layers(replaced)),
    }


def outputs_of(
    model: nn.Module, parts: Sequence[nn.Module], x: Tensor, *, inputs: bool = False
) -> list[Tensor]:
    """Return the outputs, or inputs, of parts of a model for a batch of images."""
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
    """Write the least number of one digit that a positive number is at most."""
    power = math.floor(math.log10(x))
    digit = math.ceil(x / 10**power)
    if digit == 10:
        digit, power = 1, power + 1
    return rf"${digit}\cdot10^{{{power}}}$"


def draw_trails(figure: Figure, theme: Theme, trail: Tensor) -> None:
    """Draw the trails of each layer's heads, with a circle for their spread."""
    depth = trail.shape[1]
    rows = 1 if depth < 4 else 2
    panels = figure.subplots(rows, -(-depth // rows), squeeze=False)
    for number, (axes, heads) in enumerate(
        zip(panels.flat, trail.unbind(1), strict=False), 1
    ):
        kernel = Rectangle((-1.5, -1.5), 3, 3, fc="none", ec=theme.ink, lw=0.8, ls=":")
        axes.add_patch(kernel)
        axes.plot(0, 0, "s", color=theme.ink, ms=5)
        for head, trajectory in enumerate(heads.unbind(1)):
            color, marker = head_style(theme, head)
            row, column, spread = trajectory.unbind(1)
            axes.plot(column, row, color=color, lw=1.2)
            for at, fill in ((0, theme.paper), (-1, color)):
                axes.plot(
                    column[at], row[at], marker, ms=4.5, mfc=fill, mec=color, zorder=3
                )
            end, radius = (column[-1].item(), row[-1].item()), spread[-1].item()
            axes.add_patch(Circle(end, radius, fc=color, alpha=0.12, lw=0))
            axes.add_patch(Circle(end, radius, fc="none", ec=color, lw=0.8))
        for (row, column), text in named_ends(heads[-1]):
            axes.annotate(
                text,
                (column, row),
                xytext=(4, 4),
                textcoords="offset points",
                fontsize=7,
                annotation_clip=True,
            )
        side = reach(heads)
        axes.set(title=f"layer {number}", aspect="equal")
        axes.set(xlim=(-side, side), ylim=(side, -side))
        axes.locator_params(integer=True, nbins=9)
    figure.supylabel("tokens below the query", fontsize=9)
    figure.supxlabel(
        "tokens to the right of the query ■, with a 3 × 3 window around it\n"
        "hollow: before training; filled: after it, with the head's number "
        "and a circle of one standard deviation",
        fontsize=9,
    )


def reach(heads: Tensor) -> float:
    """Return how far from the query a layer is drawn: as far as narrow heads were."""
    narrow = heads[-1, :, 2] <= WIDE
    ends = heads[[0, -1]][:, narrow if narrow.any() else ~narrow, :2]
    return max(1.5, ends.abs().max().item()) + 1


def head_style(theme: Theme, head: int) -> tuple[str, str]:
    """Return the color and the marker of a head, which differ from head to head."""
    again, number = divmod(head, len(theme.series))
    return theme.series[number], "osD^v"[again % 5]


def named_ends(ends: Tensor) -> list[tuple[tuple[float, float], str]]:
    """Return rows and columns, each with the numbers of all heads that are there."""
    groups: list[tuple[tuple[float, float], str]] = []
    for head, (row, column, _) in enumerate(ends.tolist(), 1):
        for place, (at, text) in enumerate(groups):
            if math.dist(at, (row, column)) < 0.3:
                groups[place] = (at, f"{text}, {head}")
                break
        else:
            groups.append(((row, column), str(head)))
    return groups


def movement(trail: Tensor, theme: Theme, *, still: bool = False) -> str:
    """Write an SVG in which the heads of each layer move as they did in training.

    It plays three times, and then shows the heads at the end of training, as it does
    from the beginning if it is `still`, or where the reader wants no motion.
    """
    times, depth, heads, _ = trail.shape
    columns = next(n for n in (3, 2, 1) if depth % n == 0 or n == 1)
    panel = SVG_WIDTH / columns
    side = panel - 20
    units = [side / (2 * reach(layer)) for layer in trail.unbind(1)]
    high = side + 24
    height = -(-depth // columns) * high + 36
    square = f"M{-side / 2:.1f} {-side / 2:.1f}h{side:.1f}v{side:.1f}h{-side:.1f}z"
    # The heads stay a while where they start, and longer where they end.
    stops = [8 + 72 * time / (times - 1) for time in range(times)]
    styles, shapes = [], []

    def animate(name: str, frames: Sequence[str]) -> None:
        steps = "".join(
            f"{stop:.4g}%{{transform:{frame}}}"
            for stop, frame in zip(stops, frames, strict=True)
        )
        # Before the first and after the last stop, the heads rest.
        rest = f"0%{{transform:{frames[0]}}}{steps}100%{{transform:{frames[-1]}}}"
        styles.append(f"@keyframes {name}{{{rest}}}#{name}{{animation-name:{name}}}")

    for layer, head in itertools.product(range(depth), range(heads)):
        color, unit = head_style(theme, head)[0], units[layer]
        path = trail[:, layer, head].tolist()
        at = [(unit * column, unit * row) for row, column, _ in path]
        dots = [f"translate({x:.1f}px,{y:.1f}px)" for x, y in at]
        rings = [
            f"{dot}scale({unit * spread:.1f})"
            for dot, (_, _, spread) in zip(dots, path, strict=True)
        ]
        dot, ring = f"d{layer}-{head}", f"r{layer}-{head}"
        animate(dot, dots)
        animate(ring, rings)
        if head == 0:
            x = layer % columns * panel + panel / 2
            y = layer // columns * high + 24 + side / 2
            window = 3 * unit
            shapes.append(
                f'</g><text x="{x:.1f}" y="{y - side / 2 - 8:.1f}">'
                f"layer {layer + 1}</text>"
                f'<g clip-path="url(#panel)" transform="translate({x:.1f} {y:.1f})">'
                f'<path class="frame" d="{square}"/>'
                f'<path class="window" d="M{-window / 2:.1f} {-window / 2:.1f}'
                f'h{window:.1f}v{window:.1f}h{-window:.1f}z"/>'
                '<path class="query" d="M-3.5-3.5h7v7h-7z"/>'
            )
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
        number = f'<text y="3.1">{head + 1}</text>'
        shapes.append(
            f'<g style="--c:{color}"><polyline points="{line}"/>'
            f'<circle class="m ring" id="{ring}" r="1" style="transform:{rings[-1]}"/>'
            f'<g class="m dot" id="{dot}" style="transform:{dots[-1]}">'
            f'<circle r="5.5"/>{number}</g></g>'
        )
    first, last = 60.0, SVG_WIDTH - 60
    animate("now", [f"translate({first + (last - first) * t / (times - 1):.1f}px,0)"
                    for t in range(times)])  # fmt: skip
    below = height - 16
    clock = (
        f'</g><g transform="translate(0 {below:.1f})">'
        f'<path class="window" d="M{first:g} 0H{last:g}"/>'
        f'<text x="{first - 30:g}" y="3">start</text>'
        f'<text x="{last + 30:g}" y="-3">epoch</text>'
        f'<text x="{last + 30:g}" y="8">{times - 1}</text>'
        f'<circle class="m" id="now" r="4" style="transform:translate({last:g}px,0)"/>'
    )
    moving = (
        "@media screen and (prefers-reduced-motion:no-preference)"
        f"{{.m{{animation:9s linear 3}}{''.join(styles)}}}"
    )
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" role="img" '
        f'viewBox="0 0 {SVG_WIDTH:g} {height:.1f}">'
        "<title>The heads of each layer move during training</title><style>"
        f"text{{font:9px 'DejaVu Sans',sans-serif;fill:{theme.ink};text-anchor:middle}}"
        f".dot text{{font-size:8px;fill:{theme.paper}}}.dot circle{{fill:var(--c)}}"
        f".window{{fill:none;stroke:{theme.ink};stroke-width:.8;stroke-dasharray:1 2}}"
        f".query,#now{{fill:{theme.ink}}}polyline{{fill:none;stroke:var(--c);opacity:.4}}"
        f".frame{{fill:none;stroke:{theme.ink};stroke-opacity:.4}}"
        ".ring{fill:var(--c);fill-opacity:.12;stroke:var(--c);stroke-width:.8;"
        f"vector-effect:non-scaling-stroke}}{'' if still else moving}</style>"
        f'<clipPath id="panel"><path d="{square}"/></clipPath>'
        f"<g>{''.join(shapes)}{clock}</g></svg>\n"
    )


def summarize_limit(metrics: Metrics) -> str:
    """Return what needs no training, in words."""
    return (
        f"the two GELUs differ by at most {metrics['gelu_largest_difference']:.3e}, at "
        f"|x| = {metrics['gelu_largest_difference_at']}"
    )


def summarize_heads(metrics: Metrics) -> str:
    """Return what the heads did, in words."""
    moved = ", ".join(f"{x:.2f}" for x in metrics["tokens_moved_mean"])
    cells = ", ".join(str(layer["cells_5x5"]) for layer in metrics["heads"])

    def energies(of: str) -> str:
        return ", ".join(f"{layer['energy_5x5']:.0%}" for layer in metrics[of])

    return (
        f"{metrics['model']['test_accuracy']['mean']:.1%} of test images\n"
        f"heads moved by {moved} tokens on average, layer by layer, and attend to "
        f"{cells} distinct cells of the 5 x 5 window\n"
        f"the 5 x 5 window holds {energies('heads')} of the kernels' squares, layer by "
        f"layer; before training it was {energies('heads_untrained')}"
    )


def summarize_steps(metrics: Metrics) -> str:
    """Return what steps of the centers do, in words."""
    return "\n".join(
        f"steps of centers times {scale}: {found['test_accuracy']['mean']:.1%} of test "
        f"images, heads moved by {found['tokens_moved']['mean']:.2f} tokens"
        for scale, found in ((x, metrics[f"scale_{x}"]) for x in STEP_SCALES)
    )


def summarize_models(metrics: Metrics) -> str:
    """Return the comparison in words."""
    rows = [
        f"{MODELS[name][0]}: {model['test_accuracy']['mean']:.1%} of test images, "
        f"{model['parameters']:,} parameters"
        for name, model in metrics["models"].items()
    ]
    return "\n".join(
        [
            *rows,
            f"ResNet, convolutions replaced by attention: "
            f"{metrics['resnet_predictions_equal']} of "
            f"{metrics['resnet_predictions_compared']} predictions equal, logits at "
            f"most {metrics['resnet_logit_largest_difference']:.0e} apart",
        ]
    )


def draw_limit(results: Results, metrics: Metrics) -> Drawings:
    """Return the figures of what needs no training."""

    def limit(figure: Figure, theme: Theme) -> None:
        left, right = halves(figure, [1, 1.3])
        cells = left.subplots(len(LIMITS), len(SHOWN_ALPHAS))
        left.supxlabel("□ the query   ○ nearest to its center", fontsize=8)
        axes = right.subplots()
        alphas, bound = results["limit.alpha"], results["limit.bound"]
        axes.plot(alphas, bound, ":", color=theme.ink, lw=3)
        for cell, alpha in zip(cells[0], SHOWN_ALPHAS, strict=True):
            cell.set_title(rf"$\alpha = {alpha:g}$")
        for row, color, named, (name, (label, _, query, targets)) in zip(
            cells, theme.series, (1e-4, 3e-7, 1e-10), LIMITS.items(), strict=False
        ):
            for cell, x in zip(row, results[f"limit.maps.{name}"], strict=True):
                heatmap(cell, theme, x)
                cell.plot(*query[::-1], "s", mfc="none", mec=theme.ink, ms=6)
                for target in targets:
                    cell.plot(*target[::-1], "o", mfc="none", mec=color, ms=9)
            row[0].set_ylabel(label, color=color)
            off = results[f"limit.off.{name}"]
            axes.plot(alphas, off, color=color)
            crossed = alphas[(off.log() - math.log(named)).abs().argmin()].item()
            label_line(axes, label, (crossed, 2 * named), color)
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
        at = metrics["gelu_largest_difference_at"]
        right.plot([-at, at], [most, most], "o", color=theme.ink, ms=4)
        text = rf"at most ${most:.3f}\cdot10^{{-4}}$, at $|x| = {at:.3f}$"
        right.annotate(text, (0, most + 0.8), ha="center")

    return {"limit": (limit, 3.4), "gelus": (gelus, 2.6)}


def draw_heads(results: Results, metrics: Metrics) -> Drawings:
    """Return the figures of the heads."""

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
        for color, name, error, bound in (
            (theme.series[0], "inside", 1, 2),
            (theme.series[1], "with\nborder", 3, 4),
        ):
            axes.vlines(
                layers, distances[:, error], distances[:, bound], color=color, lw=0.8
            )
            axes.plot(layers, distances[:, bound], "_", color=color, ms=12, mew=2)
            axes.plot(layers, distances[:, error], "o", color=color, ms=5)
            height = 0.3 * distances[-1, bound].item()
            label_line(axes, name, (depth + 0.1, height), color)
        axes.set(yscale="log", xlim=(0.5, depth + 1.6))
        axes.set_xticks(
            layers.tolist(),
            [f"{n}\n{k}×{k}" for n, k in enumerate(sizes, 1)],
            fontsize=8,
        )
        axes.set(title="attention against convolution", xlabel="layer, and its kernel")
        axes.set_ylabel("largest error ● and bound –, in typical outputs")

    return {
        "movement": partial(movement, results["heads"]),
        "movement-still": partial(movement, results["heads"], still=True),
        "kernels": (kernels, 0.8 + 0.95 * len(results["kernel.taps"])),
    }


def draw_steps(results: Results, metrics: Metrics) -> Drawings:
    """Return the figure of small and large steps of the centers."""

    def steps(figure: Figure, theme: Theme) -> None:
        panels = figure.subplots(1, 3)
        for number, scale in enumerate(STEP_SCALES):
            trail, color = results[f"heads.{scale}"], theme.series[number]
            moved = (trail[:, -1] - trail[:, 0])[..., :2].norm(dim=-1)
            for axes, values in zip(
                panels,
                (
                    moved.mean((1, 2)),
                    trail[:, -1, ..., 2].mean((1, 2)),
                    100 * results[f"accuracy.{scale}"][:, -1],
                ),
                strict=True,
            ):
                dot_runs(axes, number, values, color=color)
        titles = ("mean move, in tokens", "mean spread, in tokens", "test accuracy, %")
        for axes, title in zip(panels, titles, strict=True):
            axes.set_xticks(range(len(STEP_SCALES)), [f"× {x}" for x in STEP_SCALES])
            axes.set(title=title, xlim=(-0.5, len(STEP_SCALES) - 0.5))
        panels[1].set_xlabel("steps of centers and sharpness")
        panels[0].set_ylim(bottom=0)
        panels[1].axhline(1.0, color=theme.ink, lw=0.8, ls=":")

    return {"steps": (steps, 2.6)}


def draw_models(results: Results, metrics: Metrics) -> Drawings:
    """Return the figures of the models that are compared."""

    def comparison(figure: Figure, theme: Theme) -> None:
        left, right = figure.subplots(1, 2, width_ratios=[1, 1.3], sharey=True)
        compared = metrics["models"]
        styles = zip(compared, theme.series, ("-", "--", "-.", ":"), strict=False)
        labels = []
        for number, (name, color, style) in enumerate(styles):
            model, runs = compared[name], 100 * results[f"accuracy.{name}"]
            label = MODELS[name][0]
            passes = range(1, runs.shape[1] + 1)
            line = plot_runs(left, passes, runs, color=color, linestyle=style)
            line.set_label(label)
            dot_runs(right, number, runs[:, -1], color=color)
            labels.append(
                f"{label}\n{model['parameters'] / 1e3:.0f}k parameters\n"
                f"{2 * model['million_multiply_adds']:.0f} MFLOPs"
            )
        right.set_xticks(range(len(labels)), labels, fontsize=7)
        right.set(xlim=(-0.5, len(labels) - 0.5))
        seen = compared[RESNET]["images_seen"]
        right.set(title=f"after {seen:,} images")
        left.set(xlabel="passes through the data", title="test accuracy, %")
        left.legend(loc="lower right", fontsize=7)

    def resnet(figure: Figure, theme: Theme) -> None:
        differences = metrics["resnet_map_largest_difference"]
        stages = len(differences)
        grid = figure.add_gridspec(3, stages + 2, width_ratios=[1] * stages + [0.1, 2])
        titles = ["first layer"] + [f"stage {n}" for n in range(1, stages)]
        for stage, (title, most) in enumerate(zip(titles, differences, strict=True)):
            expected, found = (
                results[f"resnet.{stage}.{name}"]
                for name in ("convolution", "attention")
            )
            rows = ((expected, False), (found, False), (found - expected, True))
            for number, (x, signed) in enumerate(rows):
                cell = figure.add_subplot(grid[number, stage])
                limit = (most or 1.0) if signed else expected.max().item()
                heatmap(cell, theme, x, signed=signed, limit=limit)
                if stage == 0:
                    cell.set_ylabel(("convolution", "attention", "difference")[number])
                if number == 0:
                    cell.set_title(title)
                if number == 2:
                    text = f"at most {scientific(most)}" if most else "none"
                    cell.set_xlabel(text, fontsize=8)
        image = figure.add_subplot(grid[0, -1])
        image.imshow(results["resnet.image"], cmap="gray")
        image.set_axis_off()
        axes = figure.add_subplot(grid[1:, -1])
        classes = [*map(plain_text, metrics["classes"])]
        for name, marker, size in (("convolution", "o", 8), ("attention", "x", 5)):
            logits = results[f"resnet.logits.{name}"][SHOWN_IMAGE]
            axes.plot(
                logits, range(len(classes)), marker, ms=size, mfc="none", label=name
            )
        axes.set_yticks(range(len(classes)), classes, fontsize=7)
        axes.legend(fontsize=7, handletextpad=0)
        most = scientific(metrics["resnet_logit_largest_difference"])
        axes.set(title=f"logits: at most {most} apart")
        axes.set(ylim=(len(classes) - 0.5, -0.5))

    return {"comparison": (comparison, 3.2), "resnet": (resnet, 3.6)}


PARTS = {
    "limit": Part(limit, draw_limit, summarize_limit),
    "heads": Part(heads, draw_heads, summarize_heads),
    "steps": Part(steps, draw_steps, summarize_steps),
    "models": Part(models, draw_models, summarize_models),
}

if __name__ == "__main__":
    run_parts("attention_as_convolution", PRESETS, PARTS)
