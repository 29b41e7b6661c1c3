"""Figures of chapter 7: a Vision Transformer on small images, and what it learned.

Its parts: `main` trains a Vision Transformer and probes it. `initialization` compares
Vision Transformers that start in different ways with a ResNet of as many parameters, on
all images, on 10 % and on 1 % of them. `positions` compares kinds of positions.
"""

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, cast

import timm
import torch
import torch.nn.functional as F
import torchvision
from einops import rearrange, reduce
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from transformers_hw import VisionTransformer
from transformers_hw.attention_as_convolution import initialize
from transformers_hw.lab.batching import ImageBatches
from transformers_hw.lab.checkpoint import Progress
from transformers_hw.lab.dataset import Split
from transformers_hw.lab.experiment import (
    Drawings,
    Experiment,
    ImageExampleConfig,
    Metrics,
    Part,
    Results,
    minutes,
    run_parts,
    spread,
)
from transformers_hw.lab.objectives import classify
from transformers_hw.lab.plotting import (
    Drawing,
    Theme,
    dot_runs,
    heatmap,
    label_line,
    plain_text,
    plot_runs,
)
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
from transformers_hw.summary import count_parameters
from transformers_hw.vision_transformer import Pool

PERCENTS = (10, 1, 100)
# How often models that differ in their positions are tested, at most.
TESTS = 10
POSITIONS = {
    "none": "none",
    "learned": "learned, 1-D",
    "axial": "learned, 2-D",
    "sinusoidal": "sinusoidal",
}
# How they start: as large as sinusoids, whose mean square is one half; or small, as
# `VisionTransformer` starts a table, to see which layout it learns.
LARGE, SMALL = math.sqrt(0.5), 0.02
# By name: the label, and the keywords of `initialize`; `None` is to leave a model as
# it is.
NOTHING = {"attend": None, "values": False, "whiten": False}
STARTS: dict[str, tuple[str, dict[str, Any] | None]] = {
    "default": ("default", None),
    "mimetic": ("mimetic", NOTHING | {"attend": "mimetic", "values": True}),
    "shifts": ("shifts", NOTHING | {"attend": "shifts"}),
    "values": ("values", NOTHING | {"values": True}),
    "whitened": ("whitening", NOTHING | {"whiten": True}),
    "all": ("shifts + values + whitening", {}),
}
RESNETS = {"resnet": "ResNet", "resnet_whitened": "ResNet + whitening"}
# Those that are also compared on 1 % and on all of the images.
COMPARED = ("default", "all", "resnet")
# Other libraries' models, on 1 % and on 10 % of the images.
LIBRARIES = ("timm", "torchvision")
# Those whose heads are drawn.
MAPPED = ("vit_default", "vit_all")
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

    parts: tuple[str, ...] = ()
    """Parts to run: main, initialization, positions; all by default."""
    data: str = "cifar10"
    """Images: digits, cifar10, or a folder or zip of train/ and test/."""
    seeds: int = 3
    """Number of seeds, and of subsets of the images, but for the main model."""
    patch_size: int = 4
    """Height and width of a patch."""
    pool: Pool = "mean"
    """Pooling of the main model."""
    main: Sizes = Sizes()
    """Sizes of the main model."""
    started: Sizes = Sizes(dim=48, depth=4, heads=3, hidden_dim=96)
    """Sizes of the models that differ in how they start."""
    small: Sizes = Sizes(dim=48, depth=3, heads=3, hidden_dim=96)
    """Sizes of the models that differ in their positions."""
    epochs: int = 60
    """Training epochs of the main model."""
    smoothing: float = 0.1
    """Label smoothing of the main model."""
    main_crop_padding: int = 4
    """Largest shift of a training image of the main model, in pixels."""
    main_erase: int = 12
    """Side of the square erased from a training image of the main model, in pixels."""
    main_learning_rate: float = 1e-3
    """Peak learning rate of the main model."""
    samples_of_1_percent: int = 15_000
    """Images seen in training on 1 % of them, counting repetitions."""
    samples_of_10_percent: int = 60_000
    """Images seen in training on 10 % of them, counting repetitions."""
    samples_of_100_percent: int = 100_000
    """Images seen in training on all of them, counting repetitions."""
    validation_fraction: float = 0.1
    """Fraction of the training images to choose a way to start by."""
    position_epochs: int = 40
    """Training epochs of the models that differ in their positions."""
    position_fraction: float = 0.1
    """Fraction of the images they are trained on."""
    warmup: float = 0.1
    """Fraction of the steps over which the learning rate rises."""
    crop_padding: int = 2
    """Largest shift of a training image, in pixels."""
    flip: bool = True
    """Whether to mirror half of the training images."""
    probe_images: int = 512
    """Test images over which attention is averaged."""


PRESETS = {
    "quick": Config(
        data="digits",
        patch_size=2,
        main=Sizes(dim=32, depth=3, heads=2, hidden_dim=64),
        started=Sizes(dim=32, depth=3, heads=2, hidden_dim=64),
        small=Sizes(dim=24, depth=2, heads=2, hidden_dim=48),
        seeds=1,
        epochs=25,
        main_crop_padding=1,
        main_erase=0,
        samples_of_1_percent=1_000,
        samples_of_10_percent=12_000,
        samples_of_100_percent=16_000,
        position_epochs=10,
        position_fraction=1.0,
        learning_rate=3e-3,
        main_learning_rate=3e-3,
        crop_padding=1,
        flip=False,
        probe_images=64,
    ),
    "cpu": Config(),
    "gpu": Config(
        pool="class",
        main=Sizes(dim=384, depth=12, heads=6, hidden_dim=1536),
        started=Sizes(dim=192, depth=12, heads=3, hidden_dim=768),
        small=Sizes(dim=192, depth=12, heads=3, hidden_dim=768),
        epochs=300,
        samples_of_1_percent=1_500_000,
        samples_of_10_percent=5_000_000,
        samples_of_100_percent=15_000_000,
        position_epochs=100,
        position_fraction=1.0,
        batch_size=1024,
        weight_decay=0.1,
        probe_images=2048,
    ),
}


def train(
    experiment: Experiment[Config],
    name: str,
    make_model: Callable[[], nn.Module],
    split: Split,
    *,
    samples: int,
    evaluations: int,
    tests: Mapping[str, Split] | None = None,
    seed: int | None = None,
    smoothing: float = 0.0,
    augmentation: Mapping[str, Any] | None = None,
    **options: Any,
) -> tuple[Any, Progress]:
    """Train a model on so many samples of a split, and test it now and then."""
    config = experiment.config
    seed = config.seed if seed is None else seed
    augmentation = {
        "crop_padding": config.crop_padding,
        "flip": config.flip,
        **(augmentation or {}),
    }
    batches = experiment.image_batches(
        split, config.batch_size, seed=seed, shuffle=True, **augmentation
    )
    # The last batch of an epoch is smaller.
    mean_size = len(split) / batches.steps_per_epoch
    interval = math.ceil(samples / (evaluations * mean_size))
    steps = interval * evaluations
    settings = {
        "learning_rate": config.learning_rate,
        "weight_decay": config.weight_decay,
    }
    return experiment.train(
        name,
        make_model,
        batches,
        partial(classify, smoothing=smoothing),
        evaluations={
            on: experiment.image_batches(test, 500)
            for on, test in (tests or {"test": experiment.dataset.test}).items()
        },
        seed=seed,
        steps=steps,
        evaluate_every=interval,
        warmup_steps=int(config.warmup * steps),
        identity={"images": len(split), "smoothing": smoothing, **augmentation},
        **{**settings, **options},
    )


def outcome(
    experiment: Experiment[Config],
    model: nn.Module,
    split: Split,
    found: list[Progress],
    tests: tuple[str, ...],
) -> Metrics:
    """Return size, cost and accuracies of a model that several seeds gave."""
    last = [progress.history[-1] for progress in found]
    seen = [sum(x["train"]["count"] for x in progress.history) for progress in found]
    return {
        "parameters": count_parameters(model),
        "million_multiply_adds": million_multiply_adds(experiment, model),
        "images": len(split),
        "samples": seen[0],
        "seeds": len(found),
        "minutes": spread(map(minutes, found), 1),
        "train_accuracy": spread(x["train"]["accuracy"] for x in last),
        **{f"{on}_accuracy": spread(x[on]["accuracy"] for x in last) for on in tests},
    }


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


def some_images(experiment: Experiment[Config], split: Split) -> Tensor:
    """Return training images, normalized, to initialize a model by."""
    few = split.subset(min(1.0, 512 / len(split)))
    return experiment.image_batches(few, len(few)).batch(0).tensors[0]


# --- main ---


def main(experiment: Experiment[Config]) -> None:
    """Train a Vision Transformer that starts with local heads, and probe it."""
    config, dataset = experiment.config, experiment.dataset
    images = some_images(experiment, dataset.train)

    def make_model() -> VisionTransformer:
        model = make_vit(experiment, config.main, pool=config.pool)
        initialize(model, images.cpu())
        return model

    split = dataset.train
    model, progress = train(
        experiment,
        "vit",
        make_model,
        split,
        samples=config.epochs * len(split),
        evaluations=config.epochs,
        seed=config.seed,
        smoothing=config.smoothing,
        augmentation={
            "crop_padding": config.main_crop_padding,
            "erase": config.main_erase,
        },
        learning_rate=config.main_learning_rate,
    )
    experiment.results["curve"] = torch.tensor(
        [
            [entry["epoch"], *(entry[on][of] for on, of in MEASURES)]
            for entry in progress.history
        ]
    )
    experiment.metrics |= outcome(experiment, model, split, [progress], ("test",))
    experiment.metrics |= {
        "epochs": config.epochs,
        "samples_per_second": round(
            experiment.metrics["samples"] / max(progress.seconds, 1e-9)
        ),
    }
    torch.manual_seed(config.seed)
    probe(experiment, model, make_model())


# --- what the main model learned ---


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
def probe(
    experiment: Experiment[Config],
    model: VisionTransformer,
    untrained: VisionTransformer,
) -> None:
    """Read positions, filters, attention distances and rollout from a model."""
    config, dataset = experiment.config, experiment.dataset
    embeddings = model.positions.embeddings(model.grid)  # type: ignore[operator]
    filters = model.patch_embedding.proj.weight
    components = min(28, len(filters) - 1, filters.shape[1])
    random = [explained(torch.randn_like(filters)) for _ in range(20)]
    tokens = model.grid[0] * model.grid[1] + (model.class_token is not None)
    uniform = torch.full((tokens, tokens), 1 / tokens)
    shown = dataset.test.one_per_class(seed=config.seed)
    (inputs, labels), _ = experiment.image_batches(shown, len(shown)).batch(0)
    with capture_weights(model) as weights:
        predicted = model(inputs).argmax(dim=-1)
    similarity = position_similarity(embeddings)
    distances = mean_distances(experiment, model)
    distance_uniform = distance(experiment, model, uniform)
    experiment.results |= {
        "embeddings": embeddings,
        "similarity": similarity,
        "filters": patch_filters(model.patch_embedding, components),
        "filter_shares": explained(filters),
        "filter_shares_random": torch.stack(random),
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
        "variance_of_first_10_components": rounded(explained(filters)[:10].sum()),
        "variance_of_first_10_components_random": spread(
            (rounded(x[:10].sum()) for x in random), 3
        ),
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


def explained(filters: Tensor) -> Tensor:
    """Return the share of the filters' variance in each principal component."""
    centered = filters - reduce(filters, "filters pixels -> pixels", "mean")
    variances = torch.linalg.svdvals(centered).square()
    return variances / variances.sum()


def probe_batches(experiment: Experiment[Config], batch_size: int) -> ImageBatches:
    """Return batches of the test images over which attention is averaged."""
    test = experiment.dataset.test
    part = min(1.0, experiment.config.probe_images / len(test))
    return experiment.image_batches(test.subset(part), batch_size)


def mean_distances(experiment: Experiment[Config], model: VisionTransformer) -> Tensor:
    """Return the mean attention distance of each head of each layer."""
    batches, found = probe_batches(experiment, 128), []
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
    """Average the cosines of positions that share a row, a column, or neither."""
    indices = torch.meshgrid(*map(torch.arange, cosines.shape), indexing="ij")
    rows, columns = indices[0] - indices[2], indices[1] - indices[3]
    mirrored = indices[1] + indices[3] == cosines.shape[1] - 1
    cosines = cosines.cpu()
    return {
        "same_row": rounded(cosines[(rows == 0) & (columns != 0)].mean()),
        "same_column": rounded(cosines[(rows != 0) & (columns == 0)].mean()),
        "neither": rounded(cosines[(rows != 0) & (columns != 0)].mean()),
        "adjacent": rounded(cosines[rows.abs() + columns.abs() == 1].mean()),
        "mirror_images": rounded(cosines[(rows == 0) & mirrored].mean()),
    }


# --- initialization ---


def initialization(experiment: Experiment[Config]) -> None:
    """Train models that start in different ways, and a ResNet, on much and few data.

    The way to start is chosen by the validation images; test images only report.
    """
    config, results, metrics = experiment.config, experiment.results, experiment.metrics
    train_split, validation = experiment.dataset.train.held_out(
        config.validation_fraction, seed=config.seed
    )
    tests = {"validation": validation, "test": experiment.dataset.test}
    samples = {
        1: config.samples_of_1_percent,
        10: config.samples_of_10_percent,
        100: config.samples_of_100_percent,
    }
    makers = network_makers(experiment)
    metrics["models"] = {}
    for percent in PERCENTS:
        chosen = [key for key in makers if is_compared(key, percent)]
        found: dict[tuple[str, str], list[Progress]] = {key: [] for key in chosen}
        # Seed by seed, so that all models have been trained as often when it is ended.
        for seed in config.all_seeds:
            split = train_split.subset(percent / 100, seed=seed)
            for key in chosen:
                name = "_".join(filter(None, key))
                model, progress = train(
                    experiment,
                    f"{name}_{percent}_percent",
                    partial(makers[key], split),
                    split,
                    samples=samples[percent],
                    evaluations=1,
                    tests=tests,
                    seed=seed,
                )
                found[key].append(progress)
                metrics["models"][f"{name}_{percent}_percent"] = outcome(
                    experiment, model, split, found[key], tuple(tests)
                )
                if seed == config.seed and percent == 10 and name in MAPPED:
                    torch.manual_seed(seed)
                    untrained: Any = makers[key](split).eval()
                    results[f"{name}.before"] = offset_maps(experiment, untrained)
                    results[f"{name}.after"] = offset_maps(experiment, model)
    conclude(experiment)


def is_compared(key: tuple[str, str], percent: int) -> bool:
    """Return whether a model is trained on that share of the images."""
    library, start = key
    if library in LIBRARIES:
        return percent < 100
    return percent == 10 or start in COMPARED


def network_makers(
    experiment: Experiment[Config],
) -> dict[tuple[str, str], Callable[[Split], nn.Module]]:
    """Return functions of the training images that build each model, by name."""
    config = experiment.config

    def started(
        build: Callable[[], nn.Module], options: dict[str, Any] | None, split: Split
    ) -> nn.Module:
        model = build()
        if options is not None:
            initialize(model, some_images(experiment, split).cpu(), **options)
        return model

    def vit() -> VisionTransformer:
        return make_vit(experiment, config.started, pool="mean")

    makers: dict[tuple[str, str], Callable[[Split], nn.Module]] = {
        ("vit", start): partial(started, vit, options)
        for start, (_, options) in STARTS.items()
    }
    width = resnet_width(count_parameters(vit()), experiment)
    makers["", "resnet"] = lambda _: make_resnet(width, experiment)
    makers["", "resnet_whitened"] = lambda split: whitened_resnet(
        make_resnet(width, experiment), some_images(experiment, split).cpu()
    )
    for library, build in (
        ("timm", make_timm_vit),
        ("torchvision", make_torchvision_vit),
    ):
        for start in ("default", "all"):
            maker = partial(started, partial(build, experiment), STARTS[start][1])
            makers[library, start] = maker
    return makers


def make_timm_vit(experiment: Experiment[Config]) -> nn.Module:
    """Build timm's Vision Transformer of the compared models' sizes."""
    sizes, (channels, side, _) = (
        experiment.config.started,
        experiment.dataset.train.images.shape[1:],
    )
    return timm.models.VisionTransformer(
        img_size=side,
        patch_size=experiment.config.patch_size,
        in_chans=channels,
        num_classes=len(experiment.dataset.classes),
        embed_dim=sizes.dim,
        depth=sizes.depth,
        num_heads=sizes.heads,
        mlp_ratio=sizes.hidden_dim / sizes.dim,
        class_token=False,
        global_pool="avg",
        fc_norm=False,
    )


def make_torchvision_vit(experiment: Experiment[Config]) -> nn.Module:
    """Build torchvision's Vision Transformer of the compared models' sizes."""
    sizes, (channels, side, _) = (
        experiment.config.started,
        experiment.dataset.train.images.shape[1:],
    )
    model = torchvision.models.VisionTransformer(
        side,
        experiment.config.patch_size,
        sizes.depth,
        sizes.heads,
        sizes.dim,
        sizes.hidden_dim,
        num_classes=len(experiment.dataset.classes),
    )
    if channels != 3:  # as many as the images have
        patch = experiment.config.patch_size
        model.conv_proj = nn.Conv2d(channels, sizes.dim, patch, patch)
    return model


def make_resnet(width: int, experiment: Experiment[Config]) -> nn.Sequential:
    """Build a ResNet of four stages for the images."""
    channels = experiment.dataset.train.images.shape[1]
    widths = [width * factor for factor in (1, 2, 4, 8)]
    return small_resnet(channels, len(experiment.dataset.classes), widths=widths)


@torch.no_grad()
def whitened_resnet(model: nn.Sequential, images: Tensor) -> nn.Sequential:
    """Let the first convolution start with whitened principal components."""
    first = cast(Any, model[0])[0]
    patches = rearrange(F.unfold(images, 3), "b p n -> (b n) p")
    variances, components = torch.linalg.eigh(torch.cov(patches.T))
    kept = min(first.out_channels, len(variances))
    scaled = components[:, -kept:] / (variances[-kept:] + 0.02).sqrt()
    shape = {"c": first.in_channels, "i": 3, "j": 3}
    first.weight[:kept] = rearrange(scaled, "(c i j) k -> k c i j", **shape)
    return model


def resnet_width(parameters: int, experiment: Experiment[Config]) -> int:
    """Return the width of the ResNet whose number of parameters is nearest."""

    def difference(width: int) -> int:
        with torch.device("meta"):
            return abs(count_parameters(make_resnet(width, experiment)) - parameters)

    return min(range(1, 257), key=difference)


@torch.no_grad()
def offset_maps(experiment: Experiment[Config], model: VisionTransformer) -> Tensor:
    """Return the mean weight of each head by offset of the key from the query.

    Offsets are averaged over the queries that have a key there.
    """
    (images, _), _ = probe_batches(experiment, 256).batch(0)
    with capture_weights(model.to(experiment.device).eval()) as weights:
        model(images)
    rows, columns = model.grid
    layers = torch.stack(
        [reduce(x[0], "b h q k -> h q k", "mean") for x in weights.values()]
    )
    grid = {"i": rows, "k": rows}
    maps = rearrange(layers.cpu(), "l h (i j) (k m) -> i j l h k m", **grid)
    total = torch.zeros(*maps.shape[2:4], 2 * rows - 1, 2 * columns - 1)
    times = torch.zeros(2 * rows - 1, 2 * columns - 1)
    for i, j in itertools.product(range(rows), range(columns)):
        there = slice(rows - 1 - i, 2 * rows - 1 - i)
        here = slice(columns - 1 - j, 2 * columns - 1 - j)
        total[..., there, here] += maps[i, j]
        times[there, here] += 1
    return total / times


def conclude(experiment: Experiment[Config]) -> None:
    """Note the chosen way to start, the gap it closes, and how local heads are."""
    metrics, models = experiment.metrics, experiment.metrics["models"]
    metrics["chosen"] = max(
        STARTS,
        key=lambda start: models[f"vit_{start}_10_percent"]["validation_accuracy"][
            "mean"
        ],
    )

    def gap_closed(percent: int, to: str = "resnet") -> float:
        default, local, other = (
            models[f"{name}_{percent}_percent"]["test_accuracy"]["mean"]
            for name in ("vit_default", "vit_all", to)
        )
        return round((local - default) / (other - default), 3)

    metrics["gap_closed"] = {
        f"of_{percent}_percent": gap_closed(percent) for percent in PERCENTS
    }
    metrics["gap_closed_to_whitened"] = gap_closed(10, "resnet_whitened")
    # Share of attention on the query and its eight neighbors, layer by layer.
    metrics["weight_within_3_by_3"] = {
        f"{name}_{when}": [
            rounded(within(x, 1).mean()) for x in experiment.results[f"{name}.{when}"]
        ]
        for name in MAPPED
        for when in ("before", "after")
    }


def within(maps: Tensor, radius: int) -> Tensor:
    """Return the share of a head's attention that is within a window around the query.

    An entry of a map is a mean over the queries that have a key at that offset.
    """
    rows, columns = (1 + n // 2 for n in maps.shape[-2:])
    down, right = torch.arange(1 - rows, rows), torch.arange(1 - columns, columns)
    have_a_key = torch.outer(rows - down.abs(), columns - right.abs())
    inside = torch.outer(down.abs() <= radius, right.abs() <= radius)
    shares = maps * have_a_key * inside / (rows * columns)
    return reduce(shares, "... i j -> ...", "sum")


# --- positions ---


def positions(experiment: Experiment[Config]) -> None:
    """Train models with four kinds of positions that start equally large.

    Two more tables start small; one of them never sees a mirrored image.
    """
    config, results, metrics = experiment.config, experiment.results, experiment.metrics
    kinds = {name: (name, LARGE, config.flip) for name in POSITIONS}
    kinds["learned_small"] = ("learned", SMALL, config.flip)
    if config.flip:
        kinds["learned_small_unmirrored"] = ("learned", SMALL, False)
    metrics |= {"epochs": config.position_epochs, "models": {}}
    shuffled, gains = {}, {}
    for name, (kind, std, flip) in kinds.items():
        found, curves, moved, cosines = [], [], [], []
        for seed in config.all_seeds:
            part = experiment.dataset.train.subset(config.position_fraction, seed=seed)
            model, progress = train(
                experiment,
                name,
                partial(make_small_vit, experiment, kind, std),
                part,
                samples=config.position_epochs * len(part),
                evaluations=min(TESTS, config.position_epochs),
                seed=seed,
                augmentation={"flip": flip},
            )
            found.append(progress)
            curves.append([x["test"]["accuracy"] for x in progress.history])
            moved.append(accuracy_on_shuffled_patches(experiment, model))
            if kind == "learned":
                table = model.positions.embeddings(model.grid).detach()
                cosines.append(position_similarity(table))
            metrics["models"][name] = outcome(experiment, model, part, found, ("test",))
        accuracies = torch.tensor(curves)
        results[f"accuracy.{name}"] = accuracies
        shuffled[name] = spread(moved)
        # Near zero if the models had stopped improving.
        earlier = accuracies[:, -1 - accuracies.shape[1] // 5]
        gains[name] = spread((accuracies[:, -1] - earlier).tolist())
        if cosines:
            results[f"similarity.{name}"] = torch.stack(cosines)
    metrics["accuracy_on_shuffled_patches"] = shuffled
    metrics["gain_in_last_fifth"] = gains
    metrics["mean_cosine_of_positions"] = {
        key.removeprefix("similarity."): {
            which: spread((found[which] for found in map(mean_cosines, x)), 3)
            for which in mean_cosines(x[0])
        }
        for key, x in results.items()
        if key.startswith("similarity.")
    }


def make_small_vit(
    experiment: Experiment[Config], kind: str, std: float
) -> VisionTransformer:
    """Build a small model whose positions, if learned, start with a standard deviation.

    The positions of the main model are set by `initialize`; these are free to learn.
    """
    model = make_vit(
        experiment, experiment.config.small, pool="mean", positions=cast(Any, kind)
    )
    for table in model.positions.parameters():
        nn.init.normal_(table, std=std)
    return model


# --- figures ---


def summarize_main(metrics: Metrics) -> str:
    """Return the outcome of the main model in words."""
    accuracy = metrics["test_accuracy"]["mean"]
    return (
        f"Vision Transformer, {metrics['parameters']:,} parameters, "
        f"{metrics['epochs']} epochs: {accuracy:.1%} of test images"
    )


def summarize_initialization(metrics: Metrics) -> str:
    """Return what the ways to start came to, in words."""
    rows = [
        f"{name.replace('_', ' ')}: {found['test_accuracy']['mean']:.1%} of test images"
        f" ({found['test_accuracy']['min']:.1%} to {found['test_accuracy']['max']:.1%})"
        for name, found in metrics["models"].items()
    ]
    closed = (
        f"{share:.0%} with {of.removeprefix('of_')}"
        for of, share in metrics["gap_closed"].items()
    )
    return "\n".join(
        [
            *rows,
            f"chosen by validation images: {metrics['chosen']}",
            "of the gap from vit default to resnet, vit all closes "
            + ", ".join(closed).replace("_", " "),
        ]
    )


def summarize_positions(metrics: Metrics) -> str:
    """Return what the kinds of positions came to, in words."""
    shuffled = metrics["accuracy_on_shuffled_patches"]
    return "\n".join(
        f"positions {name.replace('_', ' ')}: {found['test_accuracy']['mean']:.1%}, "
        f"with shuffled patches {shuffled[name]['mean']:.1%}"
        for name, found in metrics["models"].items()
    )


def draw_main(results: Results, metrics: Metrics) -> Drawings:
    """Return the figures of the main model."""

    def curves(figure: Figure, theme: Theme) -> None:
        left, right = figure.subplots(1, 2)
        epochs, *measured = results["curve"].unbind(1)
        for (on, of), curve in zip(MEASURES, measured, strict=True):
            axes = left if of == "loss" else right
            color = theme.series[on == "train"]
            axes.plot(epochs, curve, "-" if on == "test" else "--", color=color)
            axes.set(title=of, xlabel="epoch", xlim=(0, epochs[-1]))
            name = "test" if on == "test" else "training"
            label_line(axes, name, (epochs[-1].item(), curve[-1].item()), color)
        as_percent(right)

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
        count = torch.arange(1, len(shares) + 1)
        random = results["filter_shares_random"].cumsum(1)
        plot_runs(axes, count, random, color=theme.series[5], linestyle=":")
        axes.plot(count, shares.cumsum(0), color=theme.series[0])
        axes.annotate("trained", (24, 0.5), color=theme.series[0], fontsize=8)
        axes.annotate("random", (1, 0.6), color=theme.series[5], fontsize=8)
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
        axes.legend(loc="center right", bbox_to_anchor=(1.0, 0.42))

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
            label, guess = (plain_text(names[x]) for x in ("label", "predicted"))
            wrong = "" if label == guess else f"\n(predicted:\n{guess})"
            grid[2 * row, column].set_title(label + wrong, fontsize=8)
            below = grid[2 * row + 1, column]
            image = heatmap(below, theme, share - 1, signed=True, limit=top)
            if number == 0:
                bar = figure.colorbar(image, ax=grid, shrink=0.5, ticks=[-top, 0, top])
                bar.ax.set_yticklabels(["less", "uniform", "more"])

    return {
        "curves": (curves, 2.7),
        "filters": (filters, 2.6),
        "distance": (distance, 3.0),
        "rollout": (rollout, 5.2),
    }


def draw_initialization(results: Results, metrics: Metrics) -> Drawings:
    """Return the figures of the models that start in different ways."""
    models = metrics["models"]

    def data_sizes(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        percents, sizes = sorted(PERCENTS), []
        for number, (name, label) in enumerate(
            {
                "vit_default": "ViT",
                "vit_all": "ViT, local start",
                "resnet": "ResNet",
            }.items()
        ):
            color = theme.series[number]
            found = [models[f"{name}_{percent}_percent"] for percent in percents]
            sizes = [x["images"] for x in found]
            tests = [x["test_accuracy"] for x in found]
            axes.plot(sizes, [x["mean"] for x in tests], "o-", color=color, ms=4)
            for size, test in zip(sizes, tests, strict=True):
                axes.vlines(size, test["min"], test["max"], color=color, lw=2)
            label_line(axes, label, (sizes[-1], tests[-1]["mean"]), color)
        axes.set(xscale="log", xlabel="training images")
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axes.minorticks_off()
        axes.set(title="test accuracy after equally many samples")
        as_percent(axes)

    def starts(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        names = {f"vit_{name}": label for name, (label, _) in STARTS.items()} | RESNETS
        for number, name in enumerate(names):
            test = models[f"{name}_10_percent"]["test_accuracy"]
            color = theme.series[1 if name in RESNETS else 0]
            axes.plot([test["min"], test["max"]], [number] * 2, color=color, lw=2)
            axes.plot(test["mean"], number, "o", color=color)
            text = f"{test['mean']:.1%}"
            axes.annotate(
                text,
                (test["max"], number),
                xytext=(6, -3),
                fontsize=8,
                textcoords="offset points",
                color=color,
            )
        axes.set_yticks(range(len(names)), list(names.values()))
        axes.invert_yaxis()
        axes.set(title="test accuracy, trained on 10 % of the images")
        axes.margins(x=0.12)
        axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))

    def shifts(figure: Figure, theme: Theme) -> None:
        left, right = cast(Any, figure.subfigures(1, 2))
        for half, name, title in (
            (left, "vit_default", "default start"),
            (right, "vit_all", "local start"),
        ):
            before, after = results[f"{name}.before"], results[f"{name}.after"]
            layers, heads = before.shape[:2]
            cells = half.subplots(layers, 2 * heads, squeeze=False)
            for layer, row in enumerate(cells):
                maps = torch.cat([before[layer], after[layer]])
                for cell, x in zip(row, maps, strict=True):
                    heatmap(cell, theme, x)
                row[0].set_ylabel(layer + 1, fontsize=8)
            cells[0, heads // 2].set_title("before", fontsize=8)
            cells[0, heads + heads // 2].set_title("after training", fontsize=8)
            half.suptitle(title, fontsize=10)

    depth = len(results["vit_all.before"])
    return {
        "data-sizes": (data_sizes, 3.2),
        "starts": (starts, 3.6),
        "shifts": (shifts, 0.8 + 0.6 * depth),
    }


def draw_positions(results: Results, metrics: Metrics) -> Drawings:
    """Return the figures of the models that differ in their positions."""

    def positions(figure: Figure, theme: Theme) -> None:
        left, right = figure.subplots(1, 2, width_ratios=[1.3, 1], sharey=True)
        shuffled = metrics["accuracy_on_shuffled_patches"]
        styles = zip(POSITIONS, theme.series, ("-", "--", "-.", ":"), strict=False)
        for number, (name, color, style) in enumerate(styles):
            runs = results[f"accuracy.{name}"]
            tests = torch.arange(1, runs.shape[1] + 1)
            epochs = metrics["epochs"] / runs.shape[1] * tests
            line = plot_runs(left, epochs, runs, color=color, linestyle=style)
            line.set_label(POSITIONS[name])
            dot_runs(right, number - 0.15, runs[:, -1], color=color)
            moved = shuffled[name]
            ends = [moved["min"], moved["mean"], moved["max"]]
            dot_runs(right, number + 0.15, ends, color=color, markerfacecolor="none")
        labels = [label.replace(", ", "\n") for label in POSITIONS.values()]
        right.set_xticks(range(len(POSITIONS)), labels)
        for label, color in zip(right.get_xticklabels(), theme.series, strict=False):
            label.set_color(color)
        left.set(xlabel="epoch", title="test accuracy during training")
        left.legend(loc="lower right")
        right.set(title="filled: at the end; hollow: patches shuffled")
        as_percent(left)

    def mosaic(name: str) -> Drawing:
        return lambda figure, theme: draw_similarity(
            figure, theme, results[f"similarity.{name}"][0]
        )

    found = [key.partition(".")[2] for key in results if key.startswith("similarity.")]
    return {"positions": (positions, 2.9)} | {
        f"similarity-{name.replace('_', '-')}": (mosaic(name), 3.3) for name in found
    }


def draw_similarity(figure: Figure, theme: Theme, cosines: Tensor) -> None:
    """Draw the cosines of position embeddings, all and by offset."""
    left, right = figure.subplots(1, 2)
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
    right.set_xticks([0, columns - 1, 2 * columns - 2], [1 - columns, 0, columns - 1])
    right.set_yticks([0, rows - 1, 2 * rows - 2], [1 - rows, 0, rows - 1])
    right.set(title="mean, by offset in columns and rows")
    figure.colorbar(image, ax=(left, right), label="cosine", shrink=0.8)


def as_percent(axes: Axes) -> None:
    """Write shares as percentages."""
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def show_image(axes: Axes, image: Tensor) -> None:
    """Show an image of one channel, or of three."""
    axes.imshow(
        rearrange(image, "c h w -> h w c"), cmap="gray", interpolation="nearest"
    )
    axes.set_axis_off()


PARTS = {
    "main": Part(main, draw_main, summarize_main),
    "initialization": Part(
        initialization, draw_initialization, summarize_initialization
    ),
    "positions": Part(positions, draw_positions, summarize_positions),
}

if __name__ == "__main__":
    run_parts("vision_transformer", PRESETS, PARTS)
