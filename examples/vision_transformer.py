"""Figures of chapter 7: a Vision Transformer on small pictures, and what it learnt."""

import itertools
import math
import time
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
from transformers_hw.lab.batching import Part, PictureBatches
from transformers_hw.lab.example import (
    Drawings,
    ExampleConfig,
    Metrics,
    Results,
    run_example,
    training_folder,
)
from transformers_hw.lab.objectives import classify
from transformers_hw.lab.optimisation import TrainingConfig
from transformers_hw.lab.pictures import Pictures, Split, load_pictures
from transformers_hw.lab.plotting import Theme, heatmap, label_line
from transformers_hw.lab.seeds import derived_seed, seeded_generator
from transformers_hw.lab.training import evaluate, train
from transformers_hw.probes import (
    attention_distance,
    attention_rollout,
    capture_weights,
    patch_filters,
    position_similarity,
)
from transformers_hw.vision_transformer import PicturePositions, Pool

MAIN, RIVAL = "ViT", "convolutions"
# By name in the figures, the positions of four small models.
POSITIONS: dict[str, PicturePositions] = {
    "none": "none",
    "learned, 1-D": "learned",
    "learned, 2-D": "learned_axes",
    "sinusoidal": "sinusoidal",
}
MEASURES = [(on, of) for on in ("train", "test") for of in ("loss", "accuracy")]


@dataclass(frozen=True)
class Sizes:
    """The sizes of a Vision Transformer."""

    dim: int = 96
    """Width of a token."""
    depth: int = 6
    """Number of layers."""
    heads: int = 3
    """Number of attention heads."""
    hidden_dim: int = 192
    """Width of the feed-forward networks' hidden layers."""


@dataclass(frozen=True)
class Config(ExampleConfig):
    """Which pictures, which models, and how long to train them."""

    data: str = "cifar10"
    """Pictures, as for load_pictures."""
    patch: int = 4
    """Height and width of a patch."""
    pool: Pool = "mean"
    """What the main model's head sees."""
    main: Sizes = Sizes()
    """The model that all but one of the figures are about."""
    small: Sizes = Sizes(dim=64, depth=4, heads=4, hidden_dim=128)
    """Each of the four models that differ in their positions."""
    epochs: int = 20
    """How often the main model sees every picture."""
    rival_epochs: int = 5
    """How often the convolutional network sees every picture."""
    samples_of_1_percent: int = 20_000
    """Pictures seen in training on 1 % of them, repetitions counted."""
    samples_of_10_percent: int = 100_000
    """Pictures seen in training on 10 % of them, repetitions counted."""
    position_epochs: int = 6
    """How often the models that differ in their positions see their pictures."""
    position_fraction: float = 0.3
    """Which part of the pictures they see."""
    batch_size: int = 64
    """Pictures in a batch."""
    learning_rate: float = 1e-3
    """The greatest learning rate of AdamW."""
    weight_decay: float = 0.05
    """How strongly weights decay."""
    warmup: float = 0.1
    """Part of the steps over which the learning rate rises."""
    crop_padding: int = 2
    """By how many pixels pictures are shifted, at most."""
    flip: bool = True
    """Whether pictures are mirrored."""
    probed: int = 512
    """Test pictures over which attention distances are averaged."""


PRESETS = {
    "quick": Config(
        data="digits",
        patch=2,
        main=Sizes(dim=32, depth=3, heads=2, hidden_dim=64),
        small=Sizes(dim=16, depth=2, heads=2, hidden_dim=32),
        epochs=8,
        rival_epochs=4,
        samples_of_1_percent=1_000,
        samples_of_10_percent=2_000,
        position_epochs=6,
        position_fraction=1.0,
        batch_size=64,
        learning_rate=3e-3,
        crop_padding=1,
        flip=False,
        probed=64,
    ),
    "cpu": Config(),
    "gpu": Config(
        pool="class",
        main=Sizes(dim=384, depth=12, heads=6, hidden_dim=1536),
        small=Sizes(dim=192, depth=12, heads=3, hidden_dim=768),
        epochs=300,
        rival_epochs=300,
        samples_of_1_percent=1_500_000,
        samples_of_10_percent=5_000_000,
        position_epochs=100,
        position_fraction=1.0,
        batch_size=1024,
        weight_decay=0.1,
        probed=2048,
    ),
}


def compute(config: Config, device: torch.device) -> tuple[Results, Metrics]:
    """Train all models, the most wanted first, and look into the first of them."""
    pictures = load_pictures(config.data).to(device)
    school = School(config, pictures, device)
    everything = len(pictures.train)
    main = school.learn(
        f"{MAIN} 100 percent",
        lambda: school.transformer(config.main, pool=config.pool),
        pictures.train,
        samples=config.epochs * everything,
        measured=config.epochs,
    )
    width = convolutions_width(count(main), pictures)

    def rival() -> nn.Module:
        return Convolutions(width, pictures)

    school.learn(
        f"{RIVAL} 100 percent",
        rival,
        pictures.train,
        samples=config.rival_epochs * everything,
        measured=config.rival_epochs,
    )
    for percent, samples in (
        (10, config.samples_of_10_percent),
        (1, config.samples_of_1_percent),
    ):
        few = pictures.train.subset(percent / 100, seed=config.seed)
        for name, make in (
            (MAIN, lambda: school.transformer(config.main, pool=config.pool)),
            (RIVAL, rival),
        ):
            school.learn(
                f"{name} {percent} percent", make, few, samples=samples, measured=4
            )
    part = pictures.train.subset(config.position_fraction, seed=config.seed)
    shuffled = {}
    for name, positions in POSITIONS.items():

        def small(positions: PicturePositions = positions) -> nn.Module:
            return school.transformer(config.small, pool="mean", positions=positions)

        model = school.learn(
            f"positions {name}",
            small,
            part,
            samples=config.position_epochs * len(part),
            measured=config.position_epochs,
        )
        shuffled[name] = school.accuracy_on_shuffled_patches(model)
    results, metrics = school.look_into(main)
    return school.results | results, metrics | {
        "models": school.metrics,
        "earlier_seconds": school.earlier,
        "accuracy_on_shuffled_patches": shuffled,
        "million_multiply_adds": {
            MAIN: school.million_multiply_adds(main),
            RIVAL: school.million_multiply_adds(rival().to(device)),
        },
    }


class Block(nn.Module):
    """Two convolutions of 3 by 3, and a way past them."""

    def __init__(self, channels: int, wider: int, stride: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(channels, wider, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(wider),
            nn.ReLU(),
            nn.Conv2d(wider, wider, 3, padding=1, bias=False),
            nn.BatchNorm2d(wider),
        )
        self.past = nn.Identity()
        if stride > 1:
            self.past = nn.Conv2d(channels, wider, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Add what the convolutions find to what came."""
        return F.relu(self.past(x) + self.convolutions(x))


class Convolutions(nn.Sequential):
    """Four residual blocks, each of half the resolution and twice the channels."""

    def __init__(self, width: int, pictures: Pictures) -> None:
        super().__init__(
            nn.Conv2d(pictures.train.pictures.shape[1], width, 3, padding=1),
            Block(width, width, 1),
            *(Block(width * i, width * i * 2, 2) for i in (1, 2, 4)),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8 * width, len(pictures.classes)),
        )


def convolutions_width(parameters: int, pictures: Pictures) -> int:
    """Say how wide a convolutional network of so many parameters is."""

    def miss(width: int) -> int:
        with torch.device("meta"):
            return abs(count(Convolutions(width, pictures)) - parameters)

    return min(range(1, 257), key=miss)


def count(model: nn.Module) -> int:
    """Count a model's parameters."""
    return sum(parameter.numel() for parameter in model.parameters())


class Stretches:
    """Batches without end, measured after stretches that are all of one length."""

    def __init__(self, batches: PictureBatches, steps: int) -> None:
        self.batches, self.steps_per_epoch = batches, steps

    def part(self, step: int, *, rank: int = 0, size: int = 1) -> Part:
        """Give a process its share of a batch."""
        return self.batches.part(step, rank=rank, size=size)


class School:
    """Trains models on one recipe, and keeps their curves and marks."""

    def __init__(
        self, config: Config, pictures: Pictures, device: torch.device
    ) -> None:
        self.config, self.pictures, self.device = config, pictures, device
        self.digest = pictures.describe()["digest"]
        self.mean, self.std = pictures.train.statistics()
        self.results: Results = {}
        self.metrics: Metrics = {}
        self.earlier = 0.0

    def transformer(
        self, sizes: Sizes, *, pool: Pool, positions: PicturePositions = "learned"
    ) -> VisionTransformer:
        """Build a Vision Transformer for the pictures."""
        channels, height, width = self.pictures.train.pictures.shape[1:]
        return VisionTransformer(
            (height, width),
            self.config.patch,
            classes=len(self.pictures.classes),
            channels=channels,
            pool=pool,
            positions=positions,
            **asdict(sizes),
        )

    def batches(self, split: Split, size: int, **options: Any) -> PictureBatches:
        """Give batches of a split, normalised as the training pictures are."""
        return PictureBatches(split, size, mean=self.mean, std=self.std, **options)

    def learn(
        self,
        name: str,
        make: Callable[[], nn.Module],
        split: Split,
        *,
        samples: int,
        measured: int,
    ) -> Any:
        """Train a model, or take up its training; keep its curve and its marks."""
        config = self.config
        # Not the order of trainings, nor a break between them, changes a model.
        torch.manual_seed(derived_seed(name, config.seed))
        model = make()
        varied = {"crop_padding": config.crop_padding, "flip": config.flip}
        batches = self.batches(
            split, config.batch_size, seed=config.seed, shuffle=True, **varied
        )
        # The last batch of an epoch is smaller.
        mean_size = len(split) / batches.steps_per_epoch
        stretch = math.ceil(samples / (measured * mean_size))
        start = time.monotonic()
        progress = train(
            model,
            Stretches(batches, stretch),
            classify,
            TrainingConfig(
                out=training_folder(config, name.replace(",", "").replace(" ", "-")),
                steps=stretch * measured,
                batch_size=config.batch_size,
                learning_rate=config.learning_rate,
                weight_decay=config.weight_decay,
                warmup_steps=int(config.warmup * stretch * measured),
                seed=config.seed,
                device=config.device,
            ),
            evaluations={"test": self.batches(self.pictures.test, 500)},
            about={
                "data": self.digest,
                "pictures": len(split),
                "model": repr(model),
                "pool": getattr(model, "pool", None),
                **varied,
            },
        )
        self.earlier += max(0.0, progress.seconds - (time.monotonic() - start))
        last = progress.history[-1]
        seen = round(last["step"] * mean_size)
        self.results[f"curve.{name}"] = torch.tensor(
            [
                [
                    entry["step"] / batches.steps_per_epoch,
                    *(entry[on][of] for on, of in MEASURES),
                ]
                for entry in progress.history
            ]
        )
        self.metrics[name] = {
            "parameters": count(model),
            "pictures": len(split),
            "samples": seen,
            "epochs": round(last["step"] / batches.steps_per_epoch, 1),
            "minutes": round(progress.seconds / 60, 1),
            "samples_per_second": round(seen / progress.seconds),
            "train_accuracy": round(last["train"]["accuracy"], 4),
            "test_accuracy": round(last["test"]["accuracy"], 4),
            "test_loss": round(last["test"]["loss"], 4),
        }
        return model

    def accuracy_on_shuffled_patches(self, model: nn.Module) -> float:
        """Measure a model on test pictures whose patches have all changed places."""
        split, patch = self.pictures.test, self.config.patch
        rows = split.pictures.shape[2] // patch
        cut = "b c (r i) (s j) -> b (r s) c i j"
        patches = rearrange(split.pictures, cut, i=patch, j=patch)
        generator = seeded_generator("places", self.config.seed)
        order = torch.randperm(patches.shape[1], generator=generator)
        join = "b (r s) c i j -> b c (r i) (s j)"
        moved = Split(rearrange(patches[:, order], join, r=rows), split.labels)
        found = evaluate(model, self.batches(moved, 500), classify, device=self.device)
        return round(found["accuracy"], 4)

    def million_multiply_adds(self, model: nn.Module) -> float:
        """Count what a model multiplies and adds for one picture."""
        (picture, _), _ = self.batches(self.pictures.test, 1).part(0)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model.eval()(picture)
        return round(counter.get_total_flops() / 2e6, 1)

    @torch.no_grad()
    def look_into(self, model: VisionTransformer) -> tuple[Results, Metrics]:
        """Read positions, filters, attention distances and rollout from a model."""
        model.eval()
        codes = model.positions.codes(model.grid)  # type: ignore[operator]
        filters = model.patch_embedding.proj.weight
        components = min(28, len(filters) - 1, filters.shape[1])
        spread = filters - reduce(filters, "filters pixels -> pixels", "mean")
        strengths = torch.linalg.svdvals(spread).square()
        torch.manual_seed(self.config.seed)
        fresh = self.transformer(self.config.main, pool=self.config.pool).to(
            self.device
        )
        tokens = model.grid[0] * model.grid[1] + int(model.pool == "class")
        even = torch.full((tokens, tokens), 1 / tokens)
        one_of_each = self.pictures.test.subset(1e-9, seed=self.config.seed)
        (inputs, labels), _ = self.batches(one_of_each, len(one_of_each)).part(0)
        guesses = model(inputs)
        with capture_weights(model) as weights:
            model.encode(inputs)
        layers = [calls[0] for calls in weights.values()]
        names = self.pictures.classes
        results = {
            "codes": codes,
            "similarity": position_similarity(codes),
            "filters": patch_filters(model.patch_embedding, components),
            "filter_shares": strengths / strengths.sum(),
            "distances": self.distances(model),
            "distances_untrained": self.distances(fresh),
            "distance_even": self.distance(model, even),
            "pictures": one_of_each.pictures,
            "rollout": looked_at(model, layers),
            "attention_of_one_picture": torch.stack([x[0] for x in layers]).half(),
        }
        shown = [
            {"is": names[label], "said": names[int(guess)]}
            for label, guess in zip(labels, guesses.argmax(dim=-1), strict=True)
        ]
        return results, {
            "shown": shown,
            "mean_cosine_of_codes": mean_cosines(results["similarity"]),
            "variance_of_first_10_components": rounded(
                results["filter_shares"][:10].sum()
            ),
            "distance_in_pixels": {
                f"layer {layer}": {
                    "nearest head": rounded(x.min()),
                    "mean": rounded(x.mean()),
                    "farthest head": rounded(x.max()),
                }
                for layer, x in enumerate(results["distances"], start=1)
            }
            | {"even look": rounded(results["distance_even"])},
        }

    def distances(self, model: VisionTransformer) -> Tensor:
        """Measure how far each head of each layer looks, averaged over pictures."""
        part = min(1.0, self.config.probed / len(self.pictures.test))
        batches = self.batches(self.pictures.test.subset(part), 128)
        found = []
        for step in range(batches.steps_per_epoch):
            with capture_weights(model.eval()) as weights:
                model.encode(batches.part(step).tensors[0])
            found.append([self.distance(model, calls[0]) for calls in weights.values()])
        layers = [torch.cat(layer) for layer in zip(*found, strict=True)]
        return torch.stack([reduce(x, "b heads -> heads", "mean") for x in layers])

    def distance(self, model: VisionTransformer, weights: Tensor) -> Tensor:
        """Measure how far weights of a model look."""
        class_token, patch = model.pool == "class", self.config.patch
        return attention_distance(
            weights, model.grid, patch=patch, class_token=class_token
        )


def rounded(x: Tensor) -> float:
    """Give a number for the record."""
    return round(x.item(), 3)


def mean_cosines(cosines: Tensor) -> dict[str, float]:
    """Average the likeness of places in one row, in one column, and in neither."""
    places = torch.meshgrid(*map(torch.arange, cosines.shape), indexing="ij")
    rows, columns = places[0] - places[2], places[1] - places[3]
    cosines = cosines.cpu()
    return {
        "same row": rounded(cosines[(rows == 0) & (columns != 0)].mean()),
        "same column": rounded(cosines[(rows != 0) & (columns == 0)].mean()),
        "neither": rounded(cosines[(rows != 0) & (columns != 0)].mean()),
        "next to it": rounded(cosines[rows.abs() + columns.abs() == 1].mean()),
    }


def looked_at(model: VisionTransformer, layers: list[Tensor]) -> Tensor:
    """Share out what the model's head sees over the patches it came from."""
    rollout = attention_rollout(layers)
    if model.pool == "class":
        rollout = rollout[:, :1, 1:]
    # The head sees the mean of the tokens, hence of their rows.
    shares = reduce(rollout, "b q k -> b k", "mean")
    shares = shares / reduce(shares, "b k -> b 1", "sum")
    return rearrange(shares, "b (r s) -> b r s", r=model.grid[0])


def drawings(results: Results, metrics: Metrics) -> Drawings:
    """Say how each figure is drawn."""
    models = metrics["models"]

    def curves(figure: Figure, theme: Theme) -> None:
        left, right = figure.subplots(1, 2)
        epochs, *measured = results[f"curve.{MAIN} 100 percent"].unbind(1)
        for (on, of), curve in zip(MEASURES, measured, strict=True):
            axes = left if of == "loss" else right
            colour = theme.series[on == "train"]
            axes.plot(epochs, curve, "-" if on == "test" else "--", color=colour)
            axes.set(title=of, xlabel="epoch", xlim=(0, epochs[-1]))
            name = "test" if on == "test" else "training"
            label_line(axes, name, (epochs[-1].item(), curve[-1].item()), colour)
        as_percent(right)

    def data_sizes(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        for name, colour, style, drop in (
            (MAIN, theme.series[0], "o-", -10),
            (RIVAL, theme.series[1], "s--", 9),
        ):
            runs = [models[f"{name} {percent} percent"] for percent in (1, 10, 100)]
            for run in runs:
                axes.annotate(
                    f"{run['test_accuracy']:.1%}",
                    (run["pictures"], run["test_accuracy"]),
                    xytext=(0, drop),
                    textcoords="offset points",
                    color=colour,
                    ha="center",
                    va="center",
                )
            sizes = [run["pictures"] for run in runs]
            axes.plot(
                sizes, [run["test_accuracy"] for run in runs], style, color=colour
            )
            end = (sizes[-1], runs[-1]["test_accuracy"])
            # The two lines nearly meet; their names should not.
            lift = 0.04 if name == RIVAL else -0.03
            label_line(axes, f"       {name}", (end[0], end[1] + lift), colour)
            axes.set_xscale("log")
            axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axes.minorticks_off()
        axes.set(xlabel="training pictures", ylim=(0, 1))
        axes.set(title="test accuracy of two networks of one size")
        as_percent(axes)

    def positions(figure: Figure, theme: Theme) -> None:
        left, right = figure.subplots(1, 2, width_ratios=[1.3, 1], sharey=True)
        shuffled = metrics["accuracy_on_shuffled_patches"]
        styles = zip(POSITIONS, theme.series, ("-", "--", "-.", ":"), strict=False)
        for place, (name, colour, style) in enumerate(styles):
            epochs, *_, accuracy = results[f"curve.positions {name}"].unbind(1)
            left.plot(epochs, accuracy, style, color=colour, label=name)
            right.bar(place - 0.2, accuracy[-1], 0.36, color=colour)
            right.bar(place + 0.2, shuffled[name], 0.36, fill=False, edgecolor=colour)
        right.set_xticks(
            range(len(POSITIONS)), [name.replace(", ", "\n") for name in POSITIONS]
        )
        for label, colour in zip(right.get_xticklabels(), theme.series, strict=False):
            label.set_color(colour)
        left.set(xlabel="epoch", title="test accuracy while learning")
        left.legend(loc="lower right")
        right.set(title="filled: at the end; hollow: patches shuffled")
        as_percent(left)

    def similarity(figure: Figure, theme: Theme) -> None:
        left, right = figure.subplots(1, 2)
        cosines = results["similarity"]
        rows, columns = cosines.shape[:2]
        # A line of nothing between the tiles.
        tiles = F.pad(cosines, (0, 1, 0, 1), value=math.nan)
        mosaic = rearrange(tiles, "i j k l -> (i k) (j l)")[:-1, :-1]
        heatmap(left, theme, mosaic, signed=True, limit=1.0)
        left.set(title="a tile for each place: all others, compared")
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
        right.set(title="mean, by columns and rows apart")
        figure.colorbar(image, ax=(left, right), label="cosine", shrink=0.8)

    def filters(figure: Figure, theme: Theme) -> None:
        found, shares = results["filters"], results["filter_shares"]
        across = min(7, len(found))
        left, right = cast(Any, figure.subfigures(1, 2, width_ratios=[1.6, 1]))
        grid = left.subplots(-(-len(found) // across), across, squeeze=False)
        for axes in grid.flat:
            axes.set_axis_off()
        for axes, component in zip(grid.flat, found, strict=False):
            show_picture(axes, 0.5 + 0.5 * component / component.abs().max())
        left.suptitle("principal components of the patch filters", fontsize=10)
        axes = right.subplots()
        axes.plot(range(1, len(shares) + 1), shares.cumsum(0))
        axes.set(title="variance they hold", xlabel="components", ylim=(0, 1.02))
        as_percent(axes)

    def distance(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        even = results["distance_even"].item()
        for name, key, colour, face, side in (
            ("before training", "distances_untrained", theme.series[5], "none", 0.12),
            ("trained", "distances", theme.series[0], theme.series[0], -0.12),
        ):
            far = results[key]
            layers = torch.arange(1, len(far) + 1)
            places = (layers + side).repeat_interleave(far.shape[1])
            axes.scatter(
                places,
                far.flatten(),
                26,
                edgecolors=colour,
                facecolors=face,
                label=name,
            )
            axes.set_xticks(layers)
        axes.axhline(even, color=theme.ink, linestyle=":", label="an even look")
        axes.set(xlabel="layer", ylabel="pixels")
        axes.set(title="how far each head looks, on average")
        axes.legend(loc="lower right")

    def rollout(figure: Figure, theme: Theme) -> None:
        shares = results["rollout"] * results["rollout"][0].numel()
        half = len(shares) // 2
        grid = figure.subplots(4, half)
        # A single patch should not make all others pale.
        top = (shares - 1).abs().quantile(0.99).item()
        for number, (picture, share, names) in enumerate(
            zip(results["pictures"], shares, metrics["shown"], strict=True)
        ):
            row, column = divmod(number, half)
            show_picture(grid[2 * row, column], picture)
            wrong = "" if names["is"] == names["said"] else f"\n(said: {names['said']})"
            grid[2 * row, column].set_title(names["is"] + wrong, fontsize=8)
            below = grid[2 * row + 1, column]
            image = heatmap(below, theme, share - 1, signed=True, limit=top)
            if number == 0:
                bar = figure.colorbar(image, ax=grid, shrink=0.5, ticks=[-top, 0, top])
                bar.ax.set_yticklabels(["less", "as an\neven look", "more"])

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


def show_picture(axes: Axes, picture: Tensor) -> None:
    """Show a picture of one channel, or of three."""
    axes.imshow(
        rearrange(picture, "c h w -> h w c"), cmap="gray", interpolation="nearest"
    )
    axes.set_axis_off()


if __name__ == "__main__":
    run_example(
        "vision_transformer",
        presets=PRESETS,
        compute=compute,
        drawings=drawings,
        data=lambda config: load_pictures(config.data).describe(),
    )
