"""Figures of chapter 5: where the bottleneck breaks, and the way around it.

Three models learn to change the case of short texts: a recurrent encoder and decoder,
the same two with attention, and a Transformer. All are then tested on longer texts than
they were trained on. The recurrent ones are trained with states of several widths, and
all of them from several seeds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from einops import rearrange
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from transformers_hw.lab.batching import GeneratedBatches
from transformers_hw.lab.change_of_case import ChangeOfCase
from transformers_hw.lab.experiment import (
    Drawings,
    Experiment,
    Metrics,
    Results,
    TrainingExampleConfig,
    run_example,
    spread,
)
from transformers_hw.lab.objectives import cross_entropy_sums
from transformers_hw.lab.plotting import Theme, heatmap, label_line, plot_runs
from transformers_hw.probes import capture_weights
from transformers_hw.seq2seq import Seq2Seq
from transformers_hw.summary import count_parameters
from transformers_hw.transformer import Transformer

TASK = ChangeOfCase()
RNN, RNN_ATTENTION, TRANSFORMER = "rnn", "rnn_attention", "transformer"
LABELS = {
    RNN: "recurrence",
    RNN_ATTENTION: "recurrence and attention",
    TRANSFORMER: "Transformer",
}
SHOWN = "<U> I am a pupil"


@dataclass(frozen=True)
class Config(TrainingExampleConfig):
    """Settings of the models and of their training."""

    steps: int = 400
    """Training steps for each model."""
    length: int = 6
    """Longest training text, in characters; tests go up to twice that."""
    widths: tuple[int, ...] = (8, 32)
    """Widths of the recurrent state; models are compared at the widest."""
    dim: int = 32
    """Dimension of a token, for the recurrent models."""
    transformer_dim: int = 32
    """Dimension of a token, for the Transformer."""
    samples: int = 200
    """Test texts of each length."""


PRESETS = {
    "quick": Config(),
    "cpu": Config(
        steps=1_000,
        length=12,
        batch_size=128,
        seeds=5,
        widths=(16, 32, 64, 128),
        transformer_dim=48,
        samples=500,
    ),
    "gpu": Config(
        steps=30_000,
        length=50,
        batch_size=512,
        seeds=5,
        widths=(64, 128, 256, 512, 1_024),
        dim=128,
        transformer_dim=256,
        samples=2_000,
    ),
}


def compute(experiment: Experiment[Config]) -> None:
    """Train every model from every seed, and test each on texts of every length."""
    config, results, metrics = experiment.config, experiment.results, experiment.metrics
    results["widths"] = torch.tensor(config.widths)
    metrics |= {"trained_length": config.length, "models": {}, "offsets": {}}
    models: dict[str, list[nn.Module]] = {}
    for name, attention in ((RNN, None), (RNN_ATTENTION, "additive")):
        for width in config.widths:
            sizes = {"dim": config.dim, "hidden_dim": width, "attention": attention}
            make_model = partial(Seq2Seq, len(TASK), **sizes)
            models[name] = measure(experiment, f"{name}_{width}", make_model, 1e-2)
    dim = config.transformer_dim
    sizes = {"dim": dim, "heads": 2, "hidden_dim": 4 * dim, "depth": 2}
    make_model = partial(Transformer, len(TASK), **sizes)
    models[TRANSFORMER] = measure(experiment, TRANSFORMER, make_model, 3e-3)
    for name in (RNN_ATTENTION, TRANSFORMER):
        maps, offsets = zip(
            *(alignment(experiment, model) for model in models[name]), strict=True
        )
        results[f"alignment.{name}"] = maps[0]
        metrics["offsets"][name] = {
            str(n): spread(x[n] for x in offsets) for n in (0, 1, 2, 3)
        }


def measure(
    experiment: Experiment[Config],
    name: str,
    make_model: Callable[[], nn.Module],
    rate: float,
) -> list[nn.Module]:
    """Train a model from every seed, test it, and note how many answers are right."""
    config = experiment.config
    models = [
        train(experiment, name, make_model, rate, seed) for seed in config.all_seeds
    ]
    tests = [accuracies(experiment, model) for model in models]
    found = {key: torch.stack([test[key] for test in tests]) for key in tests[0]}
    experiment.results |= {f"{key}.{name}": x for key, x in found.items()}
    texts, characters = found["texts"], found["characters"]
    experiment.metrics["models"][name] = {
        "parameters": count_parameters(models[0]),
        "longest_text_mostly_right": spread(map(longest_mostly_right, texts)),
        "texts_right_at_trained_length": spread(texts[:, config.length - 1].tolist()),
        "texts_right_at_twice_that": spread(texts[:, -1].tolist()),
        "characters_right_at_twice_that": spread(characters[:, -1].tolist()),
        "characters_right_at_trained_length": {
            reading: {
                which: spread(found[reading][:, place].tolist())
                for which, place in (("first", 0), ("last", -1))
            }
            for reading in ("written", "forced")
        },
    }
    return models


def train(
    experiment: Experiment[Config],
    name: str,
    make_model: Callable[[], nn.Module],
    rate: float,
    seed: int,
) -> nn.Module:
    """Train a model on texts of up to `config.length` characters."""
    config = experiment.config

    def make(samples: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        batch = TASK.sample(
            samples, min_length=1, max_length=config.length, generator=generator
        )
        # One shape for all batches: a loop over tokens is compiled anew for each.
        sizes = (config.length + 2, config.length + 1, config.length + 1)
        return tuple(
            F.pad(x, (0, size - x.shape[1]), value=TASK.pad)
            for x, size in zip(batch, sizes, strict=True)
        )

    def objective(model: nn.Module, batch: tuple[Tensor, ...]) -> dict[str, Tensor]:
        source, target_inputs, target = batch
        logits = model(source, target_inputs)
        return cross_entropy_sums(logits, target, padding_token=TASK.pad)

    model, _ = experiment.train(
        name,
        make_model,
        GeneratedBatches(make, config.batch_size, seed=seed),
        objective,
        seed=seed,
        steps=config.steps,
        evaluate_every=max(1, config.steps // 20),
        learning_rate=rate,
        warmup_steps=config.steps // 20,
        weight_decay=0.0,
        identity={"length": config.length},
    )
    return model


@torch.no_grad()
def accuracies(experiment: Experiment[Config], model: nn.Module) -> Results:
    """Return the fractions of texts and of characters right, by length and position.

    A text is right if all its characters are and it ends where it should; a character,
    if it is the wanted one at its position. Models read what they wrote before, except
    for `forced`, where they read the right characters.
    """
    trained = experiment.config.length
    texts, characters = [], []
    for length in range(1, 2 * trained + 1):
        source, _, target = test_texts(experiment, length)
        tokens = model.generate(  # type: ignore[operator]
            source, begin=TASK.begin, end=TASK.end, max_length=length + 1
        )
        right = F.pad(tokens, (0, length + 1 - tokens.shape[1])) == target
        texts.append(right.all(1).float().mean())
        characters.append(right[:, :-1].float().mean(0).cpu())
    source, target_inputs, target = test_texts(experiment, trained)
    forced = (model(source, target_inputs).argmax(-1) == target)[:, :-1]
    return {
        "texts": torch.stack(texts).cpu(),
        "characters": torch.stack([x.mean() for x in characters]),
        "written": characters[trained - 1],
        "written_at_twice": characters[-1],
        "forced": forced.float().mean(0).cpu(),
    }


def test_texts(experiment: Experiment[Config], length: int) -> list[Tensor]:
    """Draw test texts of one length, the same ones for every model."""
    seed, samples = experiment.config.seed, experiment.config.samples
    generator = torch.Generator().manual_seed(1_000 * (seed + 1) + length)
    lengths = {"min_length": length, "max_length": length}
    batch = TASK.sample(samples, **lengths, generator=generator)
    return [x.to(experiment.device) for x in batch]


@torch.no_grad()
def alignment(
    experiment: Experiment[Config], model: nn.Module
) -> tuple[Tensor, list[float]]:
    """Return the alignment on one text, and how often it is 0, 1, 2 or 3 tokens ahead.

    Of a Transformer's cross-attention heads it is the one that most often attends one
    token ahead.
    """

    def weights_of(source: Tensor, target_inputs: Tensor) -> Tensor:
        if isinstance(model, Seq2Seq):
            _, weights = model(source, target_inputs, return_weights=True)
            return rearrange(weights, "b q k -> b 1 q k")
        with capture_weights(model) as captured:
            model(source, target_inputs)
        crossing = [w for name, (w,) in captured.items() if "cross" in name]
        return torch.cat(crossing, dim=1)

    source, target_inputs, _ = test_texts(experiment, experiment.config.length)
    peaks = weights_of(source, target_inputs).argmax(dim=-1)
    offsets = peaks - torch.arange(peaks.shape[-1], device=peaks.device)
    head = (offsets == 1).float().mean(dim=(0, 2)).argmax()
    shares = [(offsets[:, head] == n).float().mean().item() for n in range(4)]
    shown = [x.to(experiment.device) for x in TASK.batch([SHOWN])]
    return weights_of(shown[0], shown[1])[0, head].cpu(), shares


def longest_mostly_right(texts: Tensor) -> int:
    """Return the length up to which more than half of the texts are right."""
    return int((texts > 0.5).long().cumprod(dim=0).sum())


def summary(metrics: Metrics) -> str:
    """Return the outcome in words."""
    length = metrics["trained_length"]
    rows = [
        f"texts of {length} characters that are right, and length up to which half are:"
    ]
    for name, model in metrics["models"].items():
        right = model["texts_right_at_trained_length"]["mean"]
        longest = model["longest_text_mostly_right"]["mean"]
        rows.append(f"  {name:20}{right:7.1%}{longest:6.1f}")
    return "\n".join(rows)


def drawings(results: Results, metrics: Metrics) -> Drawings:
    """Return the figures."""
    trained = metrics["trained_length"]
    widths = results["widths"].tolist()
    compared = {
        RNN: f"{RNN}_{widths[-1]}",
        RNN_ATTENTION: f"{RNN_ATTENTION}_{widths[-1]}",
        TRANSFORMER: TRANSFORMER,
    }

    def percent(axes: Axes, last: int) -> None:
        axes.set(xlim=(0.5, last + 0.5), ylim=(0, 1.08))
        axes.yaxis.set_major_formatter(lambda y, _: f"{y:.0%}")

    def compare(axes: Axes, theme: Theme, kind: str) -> None:
        for number, (name, model) in enumerate(compared.items()):
            runs = results[f"{kind}.{model}"]
            style = {"linestyle": (0, (4, 1.5))} if name == TRANSFORMER else {}
            count = torch.arange(1, runs.shape[1] + 1)
            plot_runs(axes, count, runs, color=theme.series[number], **style)

    def by_width(axes: Axes, theme: Theme, kind: str, name: str) -> None:
        for number, width in enumerate(widths):
            runs = results[f"{kind}.{name}_{width}"][:, :trained]
            color, count = theme.series[number], torch.arange(1, trained + 1)
            line = plot_runs(axes, count, runs, color=color, marker="o", ms=3)
            line.set_label(f"{width} units")
        percent(axes, trained)

    def lengths(figure: Figure, theme: Theme) -> None:
        left, right = figure.subplots(1, 2, sharey=True)
        for axes, kind in ((left, "texts"), (right, "characters")):
            axes.axvspan(0.5, trained + 0.5, color=theme.faint, alpha=0.35, lw=0)
            compare(axes, theme, kind)
            percent(axes, 2 * trained)
            axes.set(title=f"{kind} right", xlabel="length of the text")
        for number, (name, label) in enumerate(LABELS.items()):
            # Two of the lines coincide; their labels should not.
            level = (0.75, 0.75, 0.3)[number]
            near = (RNN,) if name == RNN else (RNN_ATTENTION, TRANSFORMER)
            curves = [results[f"texts.{compared[other]}"].mean(0) for other in near]
            end = max(int((curve > level).sum()) for curve in curves) + 1
            text = label.replace(" and ", "\nand ")
            label_line(left, text, (end, level), theme.series[number])
        right.annotate("training lengths", (trained / 2 + 0.5, 0.04), ha="center")

    def alignments(figure: Figure, theme: Theme) -> None:
        titles = {
            RNN_ATTENTION: LABELS[RNN_ATTENTION],
            TRANSFORMER: "Transformer, a cross-attention head",
        }
        for axes, (name, title) in zip(
            figure.subplots(1, 2), titles.items(), strict=True
        ):
            draw_alignment(axes, theme, results[f"alignment.{name}"])
            axes.set_title(title)

    def bottleneck(figure: Figure, theme: Theme) -> None:
        left, right = figure.subplots(1, 2, sharey=True)
        by_width(left, theme, "texts", RNN)
        by_width(right, theme, "texts", RNN_ATTENTION)
        left.set(title="without attention", ylabel="texts right")
        right.set(title="with attention")
        for axes in (left, right):
            axes.set(xlabel="length of the text")
        figure.legend(*left.get_legend_handles_labels(), loc="outside right upper")

    def positions(figure: Figure, theme: Theme) -> None:
        titles = {"written": "reading their own output", "forced": "teacher forcing"}
        panels = figure.subplots(1, 2, sharey=True)
        for axes, (kind, title) in zip(panels, titles.items(), strict=True):
            by_width(axes, theme, kind, RNN)
            runs = results[f"{kind}.{compared[RNN_ATTENTION]}"]
            count = torch.arange(1, trained + 1)
            plot_runs(axes, count, runs, color=theme.ink, ls="--", label="attention")
            axes.set(title=title, xlabel=f"position in a text of {trained}")
        panels[0].set_ylabel("characters right")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper")

    def beyond(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        span = axes.axvspan(0.5, trained + 0.5, color=theme.faint, alpha=0.35, lw=0)
        compare(axes, theme, "written_at_twice")
        percent(axes, 2 * trained)
        axes.set_xlabel(f"position in a text of {2 * trained}")
        axes.set_ylabel("characters right")
        handles, labels = [*axes.get_lines(), span], [*LABELS.values(), "trained on"]
        figure.legend(handles, labels, loc="outside right upper")

    return {
        "lengths": (lengths, 3.0),
        "alignment": (alignments, 3.7),
        "bottleneck": (bottleneck, 3.0),
        "positions": (positions, 3.0),
        "beyond": (beyond, 2.6),
    }


def draw_alignment(axes: Axes, theme: Theme, weights: Tensor) -> None:
    """Draw the weights of each output token, and a box one token ahead."""
    heatmap(axes, theme, weights, limit=1.1)
    text, answer = SHOWN[4:].replace(" ", "␣"), TASK.answer(SHOWN).replace(" ", "␣")
    read, written = [SHOWN[:3], *text, "end"], [*answer, "end"]
    axes.set_xticks(range(len(read)), read)
    axes.set_yticks(range(len(written)), written)
    axes.tick_params(length=0, labelsize=8, labeltop=True, labelbottom=False)
    axes.xaxis.get_major_ticks()[0].label2.set_color(theme.series[1])
    steps = torch.arange(len(written))
    axes.plot(
        steps + 1,
        steps,
        linestyle="none",
        marker="s",
        markersize=9,
        markerfacecolor="none",
        markeredgecolor=theme.series[1],
        markeredgewidth=1.2,
    )
    axes.set(xlabel="token read (boxes: one ahead)", ylabel="token written")


if __name__ == "__main__":
    run_example("seq2seq", PRESETS, compute, drawings, summary)
