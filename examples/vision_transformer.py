"""Figures of chapter 7: a Vision Transformer on small images, and what it learned.

A ViT and a ResNet with as many parameters are trained on all images, on 10 % and on 1 %
of them; four small ViTs differ in their positions. The first ViT is then probed.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from einops import rearrange, reduce
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from transformers_hw import VisionTransformer
from transformers_hw.lab.dataset import Split
from transformers_hw.lab.experiment import (
    Drawings,
    Experiment,
    ImageExampleConfig,
    Metrics,
    Results,
    count_parameters,
    run_example,
)
from transformers_hw.lab.objectives import classify
from transformers_hw.lab.plotting import Theme, heatmap, label_line
from transformers_hw.lab.resnet import small_resnet
from transformers_hw.lab.seeds import seeded_generator
from transformers_hw.lab.training import evaluate
from transformers_hw.probes import (
    attention_distance,
    attention_rollout,
    capture_weights,
    patch_filters,
    position_similarity,
)
from transformers_hw.vision_transformer import Pool

PERCENTS = (100, 10, 1)
NETWORKS = {"vit": "ViT", "resnet": "ResNet"}
POSITIONS = {
    "none": "none",
    "learned": "learned, 1-D",
    "axial": "learned, 2-D",
    "sinusoidal": "sinusoidal",
}
MEASURES = [(on, of) for on in ("train", "test") for of in ("loss", "accuracy")]


@dataclass(frozen=True)
class Sizes:
    """Sizes of a Vision Transformer."""

    dim: int = 96
    """Dimension of a token."""
    depth: int = 6
    """Number of layers."""
    heads: int = 3
    """Number of attention heads."""
    hidden_dim: int = 192
    """Hidden dimension of the feed-forward networks."""


@dataclass(frozen=True)
class Config(ImageExampleConfig):
    """Settings of the models and of their training."""

    data: str = "cifar10"
    """Images: digits, cifar10, or a folder or zip of train/ and test/."""
    patch_size: int = 4
    """Height and width of a patch."""
    pool: Pool = "mean"
    """Pooling of the main model."""
    main: Sizes = Sizes()
    """Sizes of the model that most figures are about."""
    small: Sizes = Sizes(dim=64, depth=4, heads=4, hidden_dim=128)
    """Sizes of each of the four models that differ in their positions."""
    epochs: int = 20
    """Training epochs of the main model."""
    resnet_epochs: int = 5
    """Training epochs of the ResNet."""
    samples_of_1_percent: int = 20_000
    """Images seen in training on 1 % of them, counting repetitions."""
    samples_of_10_percent: int = 100_000
    """Images seen in training on 10 % of them, counting repetitions."""
    position_epochs: int = 6
    """Training epochs of the models that differ in their positions."""
    position_fraction: float = 0.3
    """Fraction of the images they are trained on."""
    warmup: float = 0.1
    """Fraction of the steps over which the learning rate rises."""
    crop_padding: int = 2
    """Largest shift of a training image, in pixels."""
    flip: bool = True
    """Whether to mirror half of the training images."""
    probe_images: int = 512
    """Test images over which attention distances are averaged."""


PRESETS = {
    "quick": Config(
        data="digits",
        patch_size=2,
        main=Sizes(dim=32, depth=3, heads=2, hidden_dim=64),
        small=Sizes(dim=16, depth=2, heads=2, hidden_dim=32),
        epochs=8,
        resnet_epochs=4,
        samples_of_1_percent=1_000,
        samples_of_10_percent=2_000,
        position_fraction=1.0,
        learning_rate=3e-3,
        crop_padding=1,
        flip=False,
        probe_images=64,
    ),
    "cpu": Config(),
    "gpu": Config(
        pool="class",
        main=Sizes(dim=384, depth=12, heads=6, hidden_dim=1536),
        small=Sizes(dim=192, depth=12, heads=3, hidden_dim=768),
        epochs=300,
        resnet_epochs=300,
        samples_of_1_percent=1_500_000,
        samples_of_10_percent=5_000_000,
        position_epochs=100,
        position_fraction=1.0,
        batch_size=1024,
        weight_decay=0.1,
        probe_images=2048,
    ),
}


def compute(experiment: Experiment[Config]) -> None:
    """Train all models, the main one first, and probe it."""
    config, train_split = experiment.config, experiment.dataset.train
    experiment.metrics["models"] = {}

    def vit() -> VisionTransformer:
        return make_vit(experiment, config.main, pool=config.pool)

    width = resnet_width(count_parameters(vit()), experiment)

    def resnet() -> nn.Module:
        return make_resnet(width, experiment)

    samples = {
        10: config.samples_of_10_percent,
        1: config.samples_of_1_percent,
    }
    models = {}
    for percent in PERCENTS:
        split = train_split.subset(percent / 100, seed=config.seed)
        for name, make, epochs in (
            ("vit", vit, config.epochs),
            ("resnet", resnet, config.resnet_epochs),
        ):
            models[name, percent] = train(
                experiment,
                f"{name}_{percent}_percent",
                make,
                split,
                samples=samples.get(percent, epochs * len(split)),
                evaluations=epochs if percent == 100 else 4,
            )
    part = train_split.subset(config.position_fraction, seed=config.seed)
    shuffled = experiment.metrics["accuracy_on_shuffled_patches"] = {}
    for name in POSITIONS:
        model = train(
            experiment,
            f"positions_{name}",
            lambda name=name: make_vit(
                experiment, config.small, pool="mean", positions=name
            ),
            part,
            samples=config.position_epochs * len(part),
            evaluations=config.position_epochs,
        )
        shuffled[name] = accuracy_on_shuffled_patches(experiment, model)
    experiment.metrics["million_multiply_adds"] = {
        name: million_multiply_adds(experiment, models[name, 100]) for name in NETWORKS
    }
    probe(experiment, models["vit", 100])


def make_vit(
    experiment: Experiment[Config], sizes: Sizes, **options: Any
) -> VisionTransformer:
    """Build a Vision Transformer for the images."""
    channels, height, width = experiment.dataset.train.images.shape[1:]
    return VisionTransformer(
        (height, width),
        experiment.config.patch_size,
        num_classes=len(experiment.dataset.classes),
        channels=channels,
        **asdict(sizes),
        **options,
    )


def make_resnet(width: int, experiment: Experiment[Config]) -> nn.Sequential:
    """Build a ResNet of four stages for the images."""
    channels = experiment.dataset.train.images.shape[1]
    widths = [width * factor for factor in (1, 2, 4, 8)]
    return small_resnet(channels, len(experiment.dataset.classes), widths=widths)


def resnet_width(parameters: int, experiment: Experiment[Config]) -> int:
    """Return the width of the ResNet whose number of parameters is nearest."""

    def difference(width: int) -> int:
        with torch.device("meta"):
            return abs(count_parameters(make_resnet(width, experiment)) - parameters)

    return min(range(1, 257), key=difference)


def train(
    experiment: Experiment[Config],
    name: str,
    make_model: Callable[[], nn.Module],
    split: Split,
    *,
    samples: int,
    evaluations: int,
) -> Any:
    """Train a model on so many samples; note its curve and its metrics."""
    config = experiment.config
    augmentation = {"crop_padding": config.crop_padding, "flip": config.flip}
    batches = experiment.image_batches(
        split, config.batch_size, seed=config.seed, shuffle=True, **augmentation
    )
    # The last batch of an epoch is smaller.
    mean_size = len(split) / batches.steps_per_epoch
    interval = math.ceil(samples / (evaluations * mean_size))
    steps = interval * evaluations
    model, progress = experiment.train(
        name,
        make_model,
        batches,
        classify,
        evaluations={"test": experiment.image_batches(experiment.dataset.test, 500)},
        steps=steps,
        evaluate_every=interval,
        learning_rate=config.learning_rate,
        weight_decay=config.weight_decay,
        warmup_steps=int(config.warmup * steps),
        identity={"images": len(split), "pool": config.pool, **augmentation},
    )
    last, seen = progress.history[-1], round(steps * mean_size)
    experiment.results[f"curve.{name}"] = torch.tensor(
        [
            [entry["epoch"], *(entry[on][of] for on, of in MEASURES)]
            for entry in progress.history
        ]
    )
    experiment.metrics["models"][name] = {
        "parameters": count_parameters(model),
        "images": len(split),
        "samples": seen,
        "epochs": round(last["epoch"], 1),
        "minutes": round(progress.seconds / 60, 1),
        "samples_per_second": round(seen / progress.seconds),
        "train_accuracy": round(last["train"]["accuracy"], 4),
        "test_accuracy": round(last["test"]["accuracy"], 4),
        "test_loss": round(last["test"]["loss"], 4),
    }
    return model


def accuracy_on_shuffled_patches(
    experiment: Experiment[Config], model: nn.Module
) -> float:
    """Measure a model on test images whose patches have been permuted."""
    split, patch = experiment.dataset.test, experiment.config.patch_size
    rows = split.images.shape[2] // patch
    cut = "b c (r i) (s j) -> b (r s) c i j"
    patches = rearrange(split.images, cut, i=patch, j=patch)
    generator = seeded_generator("patches", experiment.config.seed)
    order = torch.randperm(patches.shape[1], generator=generator)
    join = "b (r s) c i j -> b c (r i) (s j)"
    moved = Split(rearrange(patches[:, order], join, r=rows), split.labels)
    batches = experiment.image_batches(moved, 500)
    found = evaluate(model, batches, classify, device=experiment.device)
    return round(found["accuracy"], 4)


def million_multiply_adds(experiment: Experiment[Config], model: nn.Module) -> float:
    """Count the multiply-adds of a model for one image, in millions."""
    (image, _), _ = experiment.image_batches(experiment.dataset.test, 1).batch(0)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(image)
    return round(counter.get_total_flops() / 2e6, 1)


@torch.no_grad()
def probe(experiment: Experiment[Config], model: VisionTransformer) -> None:
    """Read positions, filters, attention distances and rollout from a model."""
    config, dataset = experiment.config, experiment.dataset
    embeddings = model.positions.embeddings(model.grid)  # type: ignore[operator]
    filters = model.patch_embedding.proj.weight
    components = min(28, len(filters) - 1, filters.shape[1])
    centered = filters - reduce(filters, "filters pixels -> pixels", "mean")
    variances = torch.linalg.svdvals(centered).square()
    torch.manual_seed(config.seed)
    untrained = make_vit(experiment, config.main, pool=config.pool)
    tokens = model.grid[0] * model.grid[1] + (model.class_token is not None)
    uniform = torch.full((tokens, tokens), 1 / tokens)
    shown = dataset.test.one_per_class(seed=config.seed)
    (inputs, labels), _ = experiment.image_batches(shown, len(shown)).batch(0)
    with capture_weights(model) as weights:
        predicted = model(inputs).argmax(dim=-1)
    similarity = position_similarity(embeddings)
    distances = mean_distances(experiment, model)
    distance_uniform = distance(experiment, model, uniform)
    explained = variances / variances.sum()
    experiment.results |= {
        "embeddings": embeddings,
        "similarity": similarity,
        "filters": patch_filters(model.patch_embedding, components),
        "filter_shares": explained,
        "distances": distances,
        "distances_untrained": mean_distances(
            experiment, untrained.to(experiment.device).eval()
        ),
        "distance_uniform": distance_uniform,
        "images": shown.images,
        "rollout": pooled_rollout(model, attention_rollout(weights)),
        "attention_of_one_image": torch.stack(
            [x[0][0] for x in weights.values()]
        ).half(),
    }
    names = dataset.classes
    experiment.metrics |= {
        "shown": [
            {"label": names[label], "predicted": names[int(guess)]}
            for label, guess in zip(labels, predicted, strict=True)
        ],
        "mean_cosine_of_positions": mean_cosines(similarity),
        "variance_of_first_10_components": rounded(explained[:10].sum()),
        "distance_in_pixels": {
            f"layer_{layer}": {
                "nearest_head": rounded(x.min()),
                "mean": rounded(x.mean()),
                "farthest_head": rounded(x.max()),
            }
            for layer, x in enumerate(distances, start=1)
        }
        | {"uniform": rounded(distance_uniform)},
    }


def mean_distances(experiment: Experiment[Config], model: VisionTransformer) -> Tensor:
    """Return the mean attention distance of each head of each layer."""
    test = experiment.dataset.test
    part = min(1.0, experiment.config.probe_images / len(test))
    batches = experiment.image_batches(test.subset(part), 128)
    found = []
    for step in range(batches.steps_per_epoch):
        with capture_weights(model) as weights:
            model(batches.batch(step).tensors[0])
        found.append(
            [distance(experiment, model, calls[0]) for calls in weights.values()]
        )
    layers = [torch.cat(layer) for layer in zip(*found, strict=True)]
    return torch.stack([reduce(x, "b heads -> heads", "mean") for x in layers])


def distance(
    experiment: Experiment[Config], model: VisionTransformer, weights: Tensor
) -> Tensor:
    """Return the attention distance of weights of a model."""
    return attention_distance(
        weights,
        model.grid,
        patch_size=experiment.config.patch_size,
        class_token=model.class_token is not None,
    )


def pooled_rollout(model: VisionTransformer, rollout: Tensor) -> Tensor:
    """Return how much of what the head sees comes from each patch."""
    if model.class_token is not None:
        rollout = rollout[:, :, 1:]
        rollout = rollout[:, :1] if model.config.pool == "class" else rollout[:, 1:]
    # The head sees the mean of the tokens, hence of their rows.
    shares = reduce(rollout, "b q k -> b k", "mean")
    shares = shares / reduce(shares, "b k -> b 1", "sum")
    return rearrange(shares, "b (r s) -> b r s", r=model.grid[0])


def rounded(x: Tensor) -> float:
    """Return a number for the record."""
    return round(x.item(), 3)


def mean_cosines(cosines: Tensor) -> dict[str, float]:
    """Average the cosines of positions in one row, in one column, and in neither."""
    indices = torch.meshgrid(*map(torch.arange, cosines.shape), indexing="ij")
    rows, columns = indices[0] - indices[2], indices[1] - indices[3]
    cosines = cosines.cpu()
    return {
        "same_row": rounded(cosines[(rows == 0) & (columns != 0)].mean()),
        "same_column": rounded(cosines[(rows != 0) & (columns == 0)].mean()),
        "neither": rounded(cosines[(rows != 0) & (columns != 0)].mean()),
        "adjacent": rounded(cosines[rows.abs() + columns.abs() == 1].mean()),
    }


def summary(metrics: Metrics) -> str:
    """Return the outcome in words."""
    models = metrics["models"]
    rows = [
        f"{label}, trained on {percent} %: "
        f"{models[f'{name}_{percent}_percent']['test_accuracy']:.1%} of test images"
        for percent in PERCENTS
        for name, label in NETWORKS.items()
    ]
    shuffled = metrics["accuracy_on_shuffled_patches"]
    rows += [
        f"positions {label}: {models[f'positions_{name}']['test_accuracy']:.1%}, "
        f"with shuffled patches {shuffled[name]:.1%}"
        for name, label in POSITIONS.items()
    ]
    return "\n".join(rows)


def drawings(results: Results, metrics: Metrics) -> Drawings:
    """Return the figures."""
    models = metrics["models"]

    def curves(figure: Figure, theme: Theme) -> None:
        left, right = figure.subplots(1, 2)
        epochs, *measured = results["curve.vit_100_percent"].unbind(1)
        for (on, of), curve in zip(MEASURES, measured, strict=True):
            axes = left if of == "loss" else right
            color = theme.series[on == "train"]
            axes.plot(epochs, curve, "-" if on == "test" else "--", color=color)
            axes.set(title=of, xlabel="epoch", xlim=(0, epochs[-1]))
            name = "test" if on == "test" else "training"
            label_line(axes, name, (epochs[-1].item(), curve[-1].item()), color)
        as_percent(right)

    def data_sizes(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        for name, color, style, drop in (
            ("vit", theme.series[0], "o-", -10),
            ("resnet", theme.series[1], "s--", 9),
        ):
            runs = [models[f"{name}_{percent}_percent"] for percent in PERCENTS[::-1]]
            for run in runs:
                axes.annotate(
                    f"{run['test_accuracy']:.1%}",
                    (run["images"], run["test_accuracy"]),
                    xytext=(0, drop),
                    textcoords="offset points",
                    color=color,
                    ha="center",
                    va="center",
                )
            sizes = [run["images"] for run in runs]
            axes.plot(sizes, [run["test_accuracy"] for run in runs], style, color=color)
            end = (sizes[-1], runs[-1]["test_accuracy"])
            # The two lines nearly meet; their labels should not.
            lift = 0.04 if name == "resnet" else -0.03
            label = f"       {NETWORKS[name]}"
            label_line(axes, label, (end[0], end[1] + lift), color)
            axes.set_xscale("log")
            axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axes.minorticks_off()
        axes.set(xlabel="training images", ylim=(0, 1))
        axes.set(title="test accuracy of two networks of one size")
        as_percent(axes)

    def positions(figure: Figure, theme: Theme) -> None:
        left, right = figure.subplots(1, 2, width_ratios=[1.3, 1], sharey=True)
        shuffled = metrics["accuracy_on_shuffled_patches"]
        styles = zip(POSITIONS, theme.series, ("-", "--", "-.", ":"), strict=False)
        for number, (name, color, style) in enumerate(styles):
            epochs, *_, accuracy = results[f"curve.positions_{name}"].unbind(1)
            left.plot(epochs, accuracy, style, color=color, label=POSITIONS[name])
            right.bar(number - 0.2, accuracy[-1], 0.36, color=color)
            right.bar(number + 0.2, shuffled[name], 0.36, fill=False, edgecolor=color)
        labels = [label.replace(", ", "\n") for label in POSITIONS.values()]
        right.set_xticks(range(len(POSITIONS)), labels)
        for label, color in zip(right.get_xticklabels(), theme.series, strict=False):
            label.set_color(color)
        left.set(xlabel="epoch", title="test accuracy during training")
        left.legend(loc="lower right")
        right.set(title="filled: at the end; hollow: patches shuffled")
        as_percent(left)

    def similarity(figure: Figure, theme: Theme) -> None:
        left, right = figure.subplots(1, 2)
        cosines = results["similarity"]
        rows, columns = cosines.shape[:2]
        # A blank line between the tiles.
        tiles = F.pad(cosines, (0, 1, 0, 1), value=math.nan)
        mosaic = rearrange(tiles, "i j k l -> (i k) (j l)")[:-1, :-1]
        heatmap(left, theme, mosaic, signed=True, limit=1.0)
        left.set(title="a tile for each position")
        total = torch.zeros(2 * rows - 1, 2 * columns - 1)
        times = torch.zeros_like(total)
        for i, j in itertools.product(range(rows), range(columns)):
            here = (slice(rows - 1 - i, 2 * rows - 1 - i),)
            here += (slice(columns - 1 - j, 2 * columns - 1 - j),)
            total[here] += cosines[i, j]
            times[here] += 1
        image = heatmap(right, theme, total / times, signed=True, limit=1.0)
        right.set_xticks(
            [0, columns - 1, 2 * columns - 2], [1 - columns, 0, columns - 1]
        )
        right.set_yticks([0, rows - 1, 2 * rows - 2], [1 - rows, 0, rows - 1])
        right.set(title="mean, by offset in columns and rows")
        figure.colorbar(image, ax=(left, right), label="cosine", shrink=0.8)

    def filters(figure: Figure, theme: Theme) -> None:
        found, shares = results["filters"], results["filter_shares"]
        across = min(7, len(found))
        left, right = cast(Any, figure.subfigures(1, 2, width_ratios=[1.6, 1]))
        grid = left.subplots(-(-len(found) // across), across, squeeze=False)
        for axes in grid.flat:
            axes.set_axis_off()
        for axes, component in zip(grid.flat, found, strict=False):
            show_image(axes, 0.5 + 0.5 * component / component.abs().max())
        left.suptitle("principal components of the patch filters", fontsize=10)
        axes = right.subplots()
        axes.plot(range(1, len(shares) + 1), shares.cumsum(0))
        axes.set(title="variance explained", xlabel="components", ylim=(0, 1.02))
        as_percent(axes)

    def distance(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        uniform = results["distance_uniform"].item()
        for name, key, color, face, side in (
            ("before training", "distances_untrained", theme.series[5], "none", 0.12),
            ("trained", "distances", theme.series[0], theme.series[0], -0.12),
        ):
            far = results[key]
            layers = torch.arange(1, len(far) + 1)
            x = (layers + side).repeat_interleave(far.shape[1])
            axes.scatter(
                x,
                far.flatten(),
                26,
                edgecolors=color,
                facecolors=face,
                label=name,
            )
            axes.set_xticks(layers)
        axes.axhline(uniform, color=theme.ink, linestyle=":", label="uniform attention")
        axes.set(xlabel="layer", ylabel="pixels")
        axes.set(title="attention distance of each head")
        axes.legend(loc="lower right")

    def rollout(figure: Figure, theme: Theme) -> None:
        shares = results["rollout"] * results["rollout"][0].numel()
        half = len(shares) // 2
        grid = figure.subplots(4, half)
        # A single patch should not make all others pale.
        top = (shares - 1).abs().quantile(0.99).item()
        for number, (image, share, names) in enumerate(
            zip(results["images"], shares, metrics["shown"], strict=True)
        ):
            row, column = divmod(number, half)
            show_image(grid[2 * row, column], image)
            label, guess = names["label"], names["predicted"]
            wrong = "" if label == guess else f"\n(predicted:\n{guess})"
            grid[2 * row, column].set_title(label + wrong, fontsize=8)
            below = grid[2 * row + 1, column]
            image = heatmap(below, theme, share - 1, signed=True, limit=top)
            if number == 0:
                bar = figure.colorbar(image, ax=grid, shrink=0.5, ticks=[-top, 0, top])
                bar.ax.set_yticklabels(["less", "uniform", "more"])

    return {
        "curves": (curves, 2.7),
        "data-sizes": (data_sizes, 3.2),
        "positions": (positions, 2.9),
        "similarity": (similarity, 3.3),
        "filters": (filters, 2.6),
        "distance": (distance, 3.0),
        "rollout": (rollout, 5.2),
    }


def as_percent(axes: Axes) -> None:
    """Write shares as percentages."""
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def show_image(axes: Axes, image: Tensor) -> None:
    """Show an image of one channel, or of three."""
    axes.imshow(
        rearrange(image, "c h w -> h w c"), cmap="gray", interpolation="nearest"
    )
    axes.set_axis_off()


if __name__ == "__main__":
    run_example("vision_transformer", PRESETS, compute, drawings, summary)
