"""Figures of chapter 5: where the bottleneck breaks, and the way around it.

Three models learn to change the case of short texts: a recurrent encoder and decoder,
the same two with attention, and a Transformer. All are then asked about longer texts
than they were trained on. The recurrent ones are trained with states of several
widths, with and without attention.
"""

from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from einops import rearrange
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from transformers_hw.lab.batching import GeneratedBatches
from transformers_hw.lab.example import (
    Drawings,
    ExampleConfig,
    Metrics,
    Results,
    run_example,
    training_folder,
)
from transformers_hw.lab.objectives import totals
from transformers_hw.lab.optimisation import TrainingConfig
from transformers_hw.lab.plotting import Theme, heatmap, label_line
from transformers_hw.lab.training import train
from transformers_hw.probes import capture_weights
from transformers_hw.seq2seq import ChangeOfCase, Seq2Seq
from transformers_hw.transformer import Transformer

TASK = ChangeOfCase()
PLAIN, LOOKING, TRANSFORMER = "recurrence", "recurrence and attention", "Transformer"
SHOWN = "<U> I am a pupil"


@dataclass(frozen=True)
class Config(ExampleConfig):
    """What to train on, for how long, and how wide the states are."""

    steps: int = 40
    """Steps of training, for each model."""
    length: int = 4
    """Most characters of a text to train on; twice as many are tested."""
    batch_size: int = 32
    """Texts in a batch."""
    widths: tuple[int, ...] = (8, 16)
    """Widths of the recurrent state; models are compared at the widest."""
    dim: int = 32
    """Width of a token, for the recurrent models."""
    transformer_dim: int = 16
    """Width of a token, for the Transformer."""
    samples: int = 50
    """Texts of each length to test with."""


PRESETS = {
    "quick": Config(),
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


def compute(config: Config, device: torch.device) -> tuple[Results, Metrics]:
    """Train every model, then ask each about texts of every length."""
    results: Results = {"widths": torch.tensor(config.widths)}
    metrics: Metrics = {"trained_length": config.length, "widths": {}, "minutes": {}}
    models: dict[str, nn.Module] = {}
    for name in (PLAIN, LOOKING):
        metrics["widths"][name] = {}
        for width in config.widths:
            models[name] = Seq2Seq(
                len(TASK),
                dim=config.dim,
                hidden_dim=width,
                attention="additive" if name == LOOKING else None,
            )
            run = f"{name}, {width} units"
            metrics["minutes"][run] = learn(config, models[name], run)
            texts, _ = tested(config, models[name], device)
            results[f"texts.{name}.{width}"] = texts
            metrics["widths"][name][str(width)] = {
                "longest_text_mostly_right": mostly_right(texts),
                "texts_right_at_trained_length": rounded(texts[config.length - 1]),
            }
    models[TRANSFORMER] = Transformer(
        len(TASK),
        dim=config.transformer_dim,
        heads=2,
        hidden_dim=4 * config.transformer_dim,
        depth=2,
    )
    metrics["minutes"][TRANSFORMER] = learn(config, models[TRANSFORMER], TRANSFORMER)
    metrics["models"] = {}
    for name, model in models.items():
        texts, characters = tested(config, model, device)
        results[f"texts.{name}"], results[f"characters.{name}"] = texts, characters
        metrics["models"][name] = {
            "parameters": sum(x.numel() for x in model.parameters()),
            "longest_text_mostly_right": mostly_right(texts),
            "texts_right_at_trained_length": rounded(texts[config.length - 1]),
            "texts_right_at_twice_that": rounded(texts[-1]),
            "characters_right_at_twice_that": rounded(characters[-1]),
        }
    metrics["offsets"] = {}
    for name in (LOOKING, TRANSFORMER):
        maps, offsets = looked_at(config, models[name], device)
        results[f"alignment.{name}"] = maps
        metrics["offsets"][name] = offsets
    return results, metrics


def learn(config: Config, model: nn.Module, name: str) -> float:
    """Train a model on texts of up to so many characters; give the minutes taken."""

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
        predicted = model(source, target_inputs)
        logits = predicted[0] if isinstance(predicted, tuple) else predicted
        return totals(logits, target, padding_token=TASK.pad)

    settings = asdict(config)
    kept = ("length", "dim", "transformer_dim")
    progress = train(
        model,
        GeneratedBatches(
            make,
            config.batch_size,
            steps_per_epoch=max(1, config.steps // 20),
            seed=config.seed,
        ),
        objective,
        TrainingConfig(
            out=training_folder(config, name.replace(", ", "-").replace(" ", "-")),
            steps=config.steps,
            batch_size=config.batch_size,
            learning_rate=3e-3 if isinstance(model, Transformer) else 1e-2,
            warmup_steps=config.steps // 20,
            weight_decay=0.0,
            seed=config.seed,
            device=config.device,
        ),
        about={"name": name, **{field: settings[field] for field in kept}},
    )
    return round(progress.seconds / 60, 2)


@torch.no_grad()
def tested(
    config: Config, model: nn.Module, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Let a model write; give the shares of texts and of characters right, by length.

    A text is right if all its characters are and it ends where it should.
    """
    model.to(device).eval()
    texts, characters = [], []
    for length in range(1, 2 * config.length + 1):
        source, _, target = sampled(config, config.samples, length, device)
        written = model.generate(  # type: ignore[operator]
            source, begin=TASK.begin, end=TASK.end, max_length=length + 1
        )
        tokens = written[0] if isinstance(written, tuple) else written
        right = F.pad(tokens, (0, length + 1 - tokens.shape[1])) == target
        texts.append(right.all(1).float().mean())
        characters.append(right[:, :-1].float().mean())
    return torch.stack(texts).cpu(), torch.stack(characters).cpu()


def sampled(
    config: Config, samples: int, length: int, device: torch.device
) -> list[Tensor]:
    """Draw texts of one length, to test with: the same ones for every model."""
    generator = torch.Generator().manual_seed(1_000 * (config.seed + 1) + length)
    lengths = {"min_length": length, "max_length": length}
    return [x.to(device) for x in TASK.sample(samples, **lengths, generator=generator)]


@torch.no_grad()
def looked_at(
    config: Config, model: nn.Module, device: torch.device
) -> tuple[Tensor, dict[str, float]]:
    """Give a model's alignment on the text shown, and how far on it looks in general.

    Of a Transformer's heads of cross attention it is the one that most often looks
    one token on.
    """

    def weights_of(source: Tensor, target_inputs: Tensor) -> Tensor:
        if isinstance(model, Seq2Seq):
            return rearrange(model(source, target_inputs)[1], "b q k -> b 1 q k")
        with capture_weights(model) as captured:
            model(source, target_inputs)
        crossing = [w for name, (w,) in captured.items() if "cross" in name]
        return torch.cat(crossing, dim=1)

    source, target_inputs, _ = sampled(config, config.samples, config.length, device)
    peaks = weights_of(source, target_inputs).argmax(dim=-1)
    offsets = peaks - torch.arange(peaks.shape[-1], device=device)
    head = (offsets == 1).float().mean(dim=(0, 2)).argmax()
    shares = {
        f"{on} on": rounded((offsets[:, head] == on).float().mean())
        for on in (0, 1, 2, 3)
    }
    shown = [x.to(device) for x in TASK.batch([SHOWN])]
    return weights_of(shown[0], shown[1])[0, head].cpu(), shares


def mostly_right(texts: Tensor) -> int:
    """Say up to which length more than half of the texts of every length are right."""
    return int((texts > 0.5).long().cumprod(dim=0).sum())


def rounded(share: Tensor) -> float:
    """Give a share as a number to report."""
    return round(share.item(), 4)


def drawings(results: Results, metrics: Metrics) -> Drawings:
    """Say how each figure is drawn."""
    trained = metrics["trained_length"]

    def lengths(figure: Figure, theme: Theme) -> None:
        left, right = figure.subplots(1, 2, sharey=True)
        for axes, kind in ((left, "texts"), (right, "characters")):
            axes.axvspan(0.5, trained + 0.5, color=theme.faint, alpha=0.35, lw=0)
            for place, name in enumerate((PLAIN, LOOKING, TRANSFORMER)):
                curve = results[f"{kind}.{name}"]
                style = (0, (4, 1.5)) if name == TRANSFORMER else "-"
                count = torch.arange(1, len(curve) + 1)
                axes.plot(count, curve, color=theme.series[place], linestyle=style)
                if kind == "texts":
                    # Two of the lines fall together; their names should not.
                    level = (0.75, 0.75, 0.3)[place]
                    rivals = (PLAIN,) if name == PLAIN else (LOOKING, TRANSFORMER)
                    ends = [int((results[f"texts.{x}"] > level).sum()) for x in rivals]
                    text = name.replace(" and ", "\nand ")
                    label_line(axes, text, (max(ends) + 1, level), theme.series[place])
            axes.set(
                title=f"{kind} right", xlabel="characters in the text", ylim=(0, 1.08)
            )
            axes.set_xlim(0.5, 2 * trained)
            axes.yaxis.set_major_formatter(lambda y, _: f"{y:.0%}")
        middle = trained / 2 + 0.5
        right.annotate("lengths trained on", (middle, 0.04), ha="center")

    def alignment(figure: Figure, theme: Theme) -> None:
        for axes, name in zip(
            figure.subplots(1, 2), (LOOKING, TRANSFORMER), strict=True
        ):
            draw_alignment(axes, theme, results[f"alignment.{name}"])
            axes.set_title(
                name if name == LOOKING else "Transformer, a head of cross attention"
            )

    def bottleneck(figure: Figure, theme: Theme) -> None:
        both = figure.subplots(2, 1)
        widths = results["widths"].tolist()
        for axes, name in zip(both, (PLAIN, LOOKING), strict=True):
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
            with_or_without = "with" if name == LOOKING else "without"
            axes.set(title=f"texts right, {with_or_without} attention", ylabel="units")
        both[-1].set_xlabel("characters in the text")

    return {
        "lengths": (lengths, 3.0),
        "alignment": (alignment, 3.7),
        "bottleneck": (bottleneck, 3.9),
    }


def draw_alignment(axes: Axes, theme: Theme, weights: Tensor) -> None:
    """Show where each token of the answer looks, and what one token on would be."""
    heatmap(axes, theme, weights, limit=1.1)
    spelt = {" ": "␣"}
    text, answer = SHOWN[4:], TASK.answer(SHOWN)
    read = [SHOWN[:3], *(spelt.get(x, x) for x in text), "end"]
    written = [*(spelt.get(x, x) for x in answer), "end"]
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
        "boxes: one token on",
        (0, len(written) - 0.7),
        color=theme.series[1],
        va="bottom",
        size=8,
    )
    axes.set(xlabel="token read", ylabel="token written")


if __name__ == "__main__":
    run_example("seq2seq", presets=PRESETS, compute=compute, drawings=drawings)
