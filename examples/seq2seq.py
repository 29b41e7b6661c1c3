"""Figures of chapter 5: where the bottleneck breaks, and the way around it.

Three models learn to change the case of short texts: a recurrent encoder and decoder,
the same two with attention, and a Transformer. All are then tested on longer texts than
they were trained on. The recurrent ones are trained with states of several widths.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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
    minutes,
    run_example,
)
from transformers_hw.lab.objectives import cross_entropy_sums
from transformers_hw.lab.plotting import Theme, heatmap, label_line
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

    steps: int = 40
    """Training steps for each model."""
    length: int = 4
    """Longest training text, in characters; tests go up to twice that."""
    widths: tuple[int, ...] = (8, 16)
    """Widths of the recurrent state; models are compared at the widest."""
    dim: int = 32
    """Dimension of a token, for the recurrent models."""
    transformer_dim: int = 16
    """Dimension of a token, for the Transformer."""
    samples: int = 50
    """Test texts of each length."""


PRESETS = {
    "quick": Config(batch_size=32),
    "cpu": Config(
        steps=1_000,
        length=12,
        batch_size=128,
        widths=(16, 32, 64, 128),
        transformer_dim=48,
        samples=500,
    ),
    "gpu": Config(
        steps=30_000,
        length=50,
        batch_size=512,
        widths=(64, 128, 256, 512, 1_024),
        dim=128,
        transformer_dim=256,
        samples=2_000,
    ),
}


def compute(experiment: Experiment[Config]) -> None:
    """Train every model, then test each on texts of every length."""
    config, results = experiment.config, experiment.results
    results["widths"] = torch.tensor(config.widths)
    metrics = experiment.metrics
    metrics |= {"trained_length": config.length, "widths": {}, "minutes": {}}
    models: dict[str, nn.Module] = {}
    for name, attention in ((RNN, None), (RNN_ATTENTION, "additive")):
        metrics["widths"][name] = {}
        for width in config.widths:

            def make(width: int = width, attention: Any = attention) -> Seq2Seq:
                return Seq2Seq(
                    len(TASK), dim=config.dim, hidden_dim=width, attention=attention
                )

            models[name] = train(experiment, f"{name}_{width}", make, 1e-2)
            texts, _ = accuracies(experiment, models[name])
            results[f"texts.{name}.{width}"] = texts
            metrics["widths"][name][str(width)] = {
                "longest_text_mostly_right": longest_mostly_right(texts),
                "texts_right_at_trained_length": rounded(texts[config.length - 1]),
            }
    dim = config.transformer_dim
    models[TRANSFORMER] = train(
        experiment,
        TRANSFORMER,
        lambda: Transformer(len(TASK), dim=dim, heads=2, hidden_dim=4 * dim, depth=2),
        3e-3,
    )
    metrics["models"] = {}
    for name, model in models.items():
        texts, characters = accuracies(experiment, model)
        results[f"texts.{name}"], results[f"characters.{name}"] = texts, characters
        metrics["models"][name] = {
            "parameters": count_parameters(model),
            "longest_text_mostly_right": longest_mostly_right(texts),
            "texts_right_at_trained_length": rounded(texts[config.length - 1]),
            "texts_right_at_twice_that": rounded(texts[-1]),
            "characters_right_at_twice_that": rounded(characters[-1]),
        }
    metrics["offsets"] = {}
    for name in (RNN_ATTENTION, TRANSFORMER):
        weights, offsets = alignment(experiment, models[name])
        results[f"alignment.{name}"] = weights
        metrics["offsets"][name] = offsets


def train(
    experiment: Experiment[Config],
    name: str,
    make_model: Callable[[], nn.Module],
    rate: float,
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

    model, progress = experiment.train(
        name,
        make_model,
        GeneratedBatches(make, config.batch_size, seed=config.seed),
        objective,
        steps=config.steps,
        evaluate_every=max(1, config.steps // 20),
        learning_rate=rate,
        warmup_steps=config.steps // 20,
        weight_decay=0.0,
        identity={"length": config.length},
    )
    experiment.metrics["minutes"][name] = minutes(progress)
    return model


@torch.no_grad()
def accuracies(
    experiment: Experiment[Config], model: nn.Module
) -> tuple[Tensor, Tensor]:
    """Return the fractions of texts and of characters right, by length.

    A text is right if all its characters are and it ends where it should.
    """
    texts, characters = [], []
    for length in range(1, 2 * experiment.config.length + 1):
        source, _, target = test_texts(experiment, length)
        tokens = model.generate(  # type: ignore[operator]
            source, begin=TASK.begin, end=TASK.end, max_length=length + 1
        )
        right = F.pad(tokens, (0, length + 1 - tokens.shape[1])) == target
        texts.append(right.all(1).float().mean())
        characters.append(right[:, :-1].float().mean())
    return torch.stack(texts).cpu(), torch.stack(characters).cpu()


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
) -> tuple[Tensor, dict[str, float]]:
    """Return the alignment on one text, and how far ahead a model attends in general.

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
    shares = {
        str(n): rounded((offsets[:, head] == n).float().mean()) for n in (0, 1, 2, 3)
    }
    shown = [x.to(experiment.device) for x in TASK.batch([SHOWN])]
    return weights_of(shown[0], shown[1])[0, head].cpu(), shares


def longest_mostly_right(texts: Tensor) -> int:
    """Return the length up to which more than half of the texts are right."""
    return int((texts > 0.5).long().cumprod(dim=0).sum())


def rounded(share: Tensor) -> float:
    """Return a fraction to report."""
    return round(share.item(), 4)


def summary(metrics: Metrics) -> str:
    """Return the outcome in words."""
    length = metrics["trained_length"]
    return "\n".join(
        f"{LABELS[name]}: {model['texts_right_at_trained_length']:.1%} of texts of "
        f"{length} characters right, more than half right up to "
        f"{model['longest_text_mostly_right']} characters"
        for name, model in metrics["models"].items()
    )


def drawings(results: Results, metrics: Metrics) -> Drawings:
    """Return the figures."""
    trained = metrics["trained_length"]

    def lengths(figure: Figure, theme: Theme) -> None:
        left, right = figure.subplots(1, 2, sharey=True)
        for axes, kind in ((left, "texts"), (right, "characters")):
            axes.axvspan(0.5, trained + 0.5, color=theme.faint, alpha=0.35, lw=0)
            for number, (name, label) in enumerate(LABELS.items()):
                curve = results[f"{kind}.{name}"]
                style = (0, (4, 1.5)) if name == TRANSFORMER else "-"
                count = torch.arange(1, len(curve) + 1)
                axes.plot(count, curve, color=theme.series[number], linestyle=style)
                if kind == "texts":
                    # Two of the lines coincide; their labels should not.
                    level = (0.75, 0.75, 0.3)[number]
                    near = (RNN,) if name == RNN else (RNN_ATTENTION, TRANSFORMER)
                    ends = [int((results[f"texts.{x}"] > level).sum()) for x in near]
                    text = label.replace(" and ", "\nand ")
                    label_line(axes, text, (max(ends) + 1, level), theme.series[number])
            axes.set(
                title=f"{kind} right", xlabel="characters in the text", ylim=(0, 1.08)
            )
            axes.set_xlim(0.5, 2 * trained)
            axes.yaxis.set_major_formatter(lambda y, _: f"{y:.0%}")
        middle = trained / 2 + 0.5
        right.annotate("training lengths", (middle, 0.04), ha="center")

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
        both = figure.subplots(2, 1)
        widths = results["widths"].tolist()
        for axes, name in zip(both, (RNN, RNN_ATTENTION), strict=True):
            table = torch.stack([results[f"texts.{name}.{w}"] for w in widths])
            table = table[:, :trained]
            heatmap(axes, theme, table, limit=1.3)
            axes.set_aspect("auto")
            for row, shares in enumerate(table):
                for column, share in enumerate(shares.tolist()):
                    axes.annotate(
                        f"{share:.0%}",
                        (column, row),
                        ha="center",
                        va="center",
                        size=8,
                        color=theme.paper if share > 0.45 else theme.ink,
                    )
            axes.set_xticks(range(trained), [f"{n}" for n in range(1, trained + 1)])
            axes.set_yticks(range(len(widths)), [f"{width}" for width in widths])
            axes.tick_params(length=0)
            with_or_without = "without" if name == RNN else "with"
            axes.set(title=f"texts right, {with_or_without} attention", ylabel="units")
        both[-1].set_xlabel("characters in the text")

    return {
        "lengths": (lengths, 3.0),
        "alignment": (alignments, 3.7),
        "bottleneck": (bottleneck, 3.9),
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
    axes.annotate(
        "boxes: one token ahead",
        (0, len(written) - 0.7),
        color=theme.series[1],
        va="bottom",
        size=8,
    )
    axes.set(xlabel="token read", ylabel="token written")


if __name__ == "__main__":
    run_example("seq2seq", PRESETS, compute, drawings, summary)
