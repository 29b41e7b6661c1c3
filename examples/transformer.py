"""Figures of chapter 6: where to normalize, why positions, and who attends where.

Deep, narrow Transformers learn to reverse a sequence, with pre-norm and post-norm, with
and without warm-up of the learning rate. Shallow ones learn to reverse or to sort, with
and without positions. One more learns to change the case of short texts, and shows the
three uses of attention.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator
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
from transformers_hw.transformer import Transformer

CASE = ChangeOfCase()
BEGIN, FIRST, VOCAB_SIZE = 1, 2, 12
# By name: the label, the norm, and whether to warm up.
NORMS = {
    "pre_norm": ("pre-norm", "pre", False),
    "pre_norm_warmup": ("pre-norm, warm-up", "pre", True),
    "post_norm": ("post-norm", "post", False),
    "post_norm_warmup": ("post-norm, warm-up", "post", True),
}
DEPTHS = (2, 4, 8, 16)
# By name: the label, and the attention layers.
USES = {
    "encoder": ("encoder", "encoder.layers.{}.attention"),
    "decoder": ("decoder, masked", "decoder.layers.{}.self_attention"),
    "cross": ("decoder to encoder", "decoder.layers.{}.cross_attention"),
}
SHOWN = "<U> I am a pupil"

Make = Callable[[int, torch.Generator], tuple[Tensor, ...]]


@dataclass(frozen=True)
class Config(TrainingExampleConfig):
    """Settings of the models and of their training."""

    steps: int = 10
    """Training steps of the deep models, and of the shallow ones."""
    length: int = 8
    """Tokens in a sequence to reverse or to sort."""
    depth: int = 3
    """Layers of encoder and of decoder, of the deep models."""
    dim: int = 16
    """Dimension of a token."""
    case_steps: int = 20
    """Training steps on the change of case."""
    draws: int = 2
    """Initializations over which each gradient is averaged."""


PRESETS = {
    "quick": Config(batch_size=32),
    "cpu": Config(steps=400, depth=6, dim=32, batch_size=64, case_steps=800, draws=16),
    "gpu": Config(
        steps=20_000,
        length=64,
        depth=12,
        dim=512,
        batch_size=256,
        case_steps=20_000,
        draws=16,
    ),
}


def compute(experiment: Experiment[Config]) -> None:
    """Compare norms, then positions with none, then look at attention."""
    config, results, metrics = experiment.config, experiment.results, experiment.metrics
    results |= gradients_at_initialization(config, experiment.device)
    metrics |= {"last_loss": {}, "accuracy": {}, "minutes": {}}
    for name, (_, norm, warm) in NORMS.items():
        # No clipping and a constant rate: only the models differ.
        train(
            experiment,
            name,
            lambda norm=norm: make_model(config, norm=norm, depth=config.depth),
            reverse(config),
            warmup_steps=config.steps // 4 if warm else 0,
        )
    for task, make in (("reverse", reverse(config)), ("sort", sort(config))):
        for which, positions in (("with", "sinusoidal"), ("without", None)):
            train(
                experiment,
                f"{task}_{which}_positions",
                lambda positions=positions: make_model(
                    config, norm="pre", depth=2, positions=positions
                ),
                make,
                warmup_steps=config.steps // 10,
            )
    metrics["floor_without_order"] = round(floor_without_order(config.length), 4)
    metrics["gradient_of_last_layer"] = {
        norm: {
            str(depth): round(gradient.item(), 4)
            for depth, gradient in zip(DEPTHS, results[f"last.{norm}"], strict=True)
        }
        for norm in ("pre", "post")
    }
    for norm in ("pre", "post"):
        by_layer = results[f"by_layer.{norm}"]
        ratio = (by_layer[-1] / by_layer[0]).item()
        metrics[f"gradient_last_over_first_{norm}"] = round(ratio, 3)
    dim = 2 * config.dim
    model = train(
        experiment,
        "change_of_case",
        lambda: Transformer(len(CASE), dim=dim, heads=2, hidden_dim=4 * dim, depth=2),
        change_case,
        steps=config.case_steps,
        warmup_steps=config.case_steps // 20,
        schedule="cosine",
        clip_norm=1.0,
    )
    uses = uses_of_attention(model, experiment.device)
    results |= uses
    # The prompt, which names the task, is the first token of the source.
    metrics["encoder_weight_on_prompt"] = {
        f"layer_{layer + 1}": round(
            uses[f"weights.encoder.{layer}"][..., 0].mean().item(), 3
        )
        for layer in (0, 1)
    }


def make_model(config: Config, **options: Any) -> Transformer:
    """Build a model that reads and writes sequences of tokens."""
    sizes = {"dim": config.dim, "heads": 2, "hidden_dim": 4 * config.dim}
    return Transformer(VOCAB_SIZE, **sizes, **options)


def reverse(config: Config) -> Make:
    """Return a task that is all about order: sequences, and the same backwards."""

    def make(samples: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        source = draw(config, samples, generator)
        return source, shifted(source.flip(1)), source.flip(1)

    return make


def sort(config: Config) -> Make:
    """Return a task in which the order of the source is irrelevant: sorting."""

    def make(samples: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        source = draw(config, samples, generator)
        target = source.sort(dim=1).values
        return source, shifted(target), target

    return make


def draw(config: Config, samples: int, generator: torch.Generator) -> Tensor:
    """Draw sequences of uniformly distributed tokens."""
    shape = (samples, config.length)
    return torch.randint(FIRST, VOCAB_SIZE, shape, generator=generator)


def change_case(samples: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    """Draw texts of up to twelve characters whose case is to be changed."""
    return CASE.sample(samples, min_length=1, max_length=12, generator=generator)


def shifted(target: Tensor) -> Tensor:
    """Return the decoder's inputs: the begin token, and all but the last target."""
    return F.pad(target[:, :-1], (1, 0), value=BEGIN)


def floor_without_order(length: int) -> float:
    r"""Return the least loss per token of a model to which the source is a bag.

    It knows how often each token occurs, $c_k$ times, but all of the
    $n!/\prod_k c_k!$ orders are equally likely. With $v$ kinds of tokens, the mean is
    $\frac1n(\ln n! - v\,\mathbb{E} \ln c!)$, where $c$ is binomial with $p = 1/v$.
    """
    kinds = VOCAB_SIZE - FIRST
    repeats = sum(
        math.comb(length, c)
        * (kinds - 1) ** (length - c)
        / kinds**length
        * math.lgamma(c + 1)
        for c in range(length + 1)
    )
    return (math.lgamma(length + 1) - kinds * repeats) / length


def gradients_at_initialization(config: Config, device: torch.device) -> Results:
    """Return the gradient norms of untrained models by layer, averaged over draws.

    They are those of the output projections of the decoder's feed-forward networks.
    """
    source, target_inputs, target = (
        x.to(device)
        for x in reverse(config)(64, torch.Generator().manual_seed(config.seed))
    )
    found: Results = {}
    for norm in ("pre", "post"):
        last = []
        for depth in sorted({*DEPTHS, config.depth}):
            total = torch.zeros(depth)
            for draw in range(config.draws):
                torch.manual_seed(draw)
                model = make_model(config, norm=norm, depth=depth).to(device)
                weights = [
                    weight
                    for name, weight in model.decoder.named_parameters()
                    if name.endswith("feed_forward.output_proj.weight")
                ]
                loss = F.cross_entropy(model(source, target_inputs).mT, target)
                gradients = torch.autograd.grad(loss, weights)
                total += torch.stack([x.norm() for x in gradients]).cpu()
            if depth == config.depth:
                found[f"by_layer.{norm}"] = total / config.draws
            if depth in DEPTHS:
                last.append(total[-1] / config.draws)
        found[f"last.{norm}"] = torch.stack(last)
    return found


def train(
    experiment: Experiment[Config],
    name: str,
    make_model: Callable[[], nn.Module],
    make: Make,
    **options: Any,
) -> nn.Module:
    """Train a model; note its losses, its accuracy and the time it took."""
    config = experiment.config

    def objective(model: nn.Module, batch: tuple[Tensor, ...]) -> dict[str, Tensor]:
        source, target_inputs, target = batch
        logits = model(source, target_inputs)
        return cross_entropy_sums(logits, target, padding_token=CASE.pad)

    fixed = {"steps": config.steps, "schedule": "constant", "clip_norm": None}
    options = {**fixed, **options}
    model, progress = experiment.train(
        name,
        make_model,
        GeneratedBatches(make, config.batch_size, seed=config.seed),
        objective,
        evaluate_every=max(1, options["steps"] // 40),
        learning_rate=3e-3,
        weight_decay=0.0,
        identity={"length": config.length},
        **options,
    )
    losses = [entry["train"]["loss"] for entry in progress.history]
    steps = [entry["step"] for entry in progress.history]
    experiment.results[f"loss.{name}"] = torch.tensor(losses)
    experiment.results[f"steps.{name}"] = torch.tensor(steps)
    last = progress.history[-1]["train"]
    experiment.metrics["last_loss"][name] = round(last["loss"], 4)
    experiment.metrics["accuracy"][name] = round(last["accuracy"], 4)
    experiment.metrics["minutes"][name] = minutes(progress)
    return model


@torch.no_grad()
def uses_of_attention(model: nn.Module, device: torch.device) -> Results:
    """Return the weights of all three uses on one text, layer by layer."""
    source, target_inputs, _ = (x.to(device) for x in CASE.batch([SHOWN]))
    with capture_weights(model) as captured:
        model(source, target_inputs)
    return {
        f"weights.{use}.{layer}": captured[layers.format(layer)][0][0]
        for use, (_, layers) in USES.items()
        for layer in (0, 1)
    }


def summary(metrics: Metrics) -> str:
    """Return the outcome in words."""
    rows = [
        f"{name.replace('_', ' ')}: loss {loss:.3f}, "
        f"accuracy {metrics['accuracy'][name]:.1%}"
        for name, loss in metrics["last_loss"].items()
    ]
    floor = metrics["floor_without_order"]
    return "\n".join([*rows, f"least loss if the order is unknown: {floor:.3f}"])


def drawings(results: Results, metrics: Metrics) -> Drawings:
    """Return the figures."""

    def curve(
        axes: Axes,
        name: str,
        label: str,
        color: str,
        *,
        style: str = "-",
        lift: float = 0.0,
    ) -> None:
        losses, steps = results[f"loss.{name}"], results[f"steps.{name}"]
        axes.plot(steps, losses, style, color=color)
        label_line(axes, label, (steps[-1].item(), losses[-1].item() + lift), color)

    def norms(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        for name, (label, norm, warm) in NORMS.items():
            color = theme.series[0 if norm == "pre" else 1]
            curve(axes, name, label, color, style="--" if warm else "-")
        axes.set(yscale="log", xlabel="step", ylabel="loss per token")
        axes.set_title("reversing a sequence, at one learning rate")

    def gradients(figure: Figure, theme: Theme) -> None:
        left, right = figure.subplots(1, 2)
        for norm, color in zip(("pre", "post"), theme.series, strict=False):
            by_layer, last = results[f"by_layer.{norm}"], results[f"last.{norm}"]
            layers = range(1, len(by_layer) + 1)
            left.plot(layers, by_layer, marker="o", ms=4, color=color)
            end = (len(by_layer), by_layer[-1].item())
            label_line(left, f"{norm}-norm", end, color)
            right.plot(DEPTHS, last, marker="o", ms=4, color=color)
            end = (DEPTHS[-1], last[-1].item())
            label_line(right, f"{norm}-norm", end, color)
        start = results["last.pre"][0].item()
        guide = [start * math.sqrt(DEPTHS[0] / depth) for depth in DEPTHS]
        right.plot(DEPTHS, guide, ":", color=theme.ink)
        label_line(right, r"$\propto 1/\sqrt{L}$", (DEPTHS[-1], guide[-1]), theme.ink)
        left.set(title="by layer of the decoder", xlabel="layer")
        left.set(ylabel="gradient norm at initialization", ylim=(0, None))
        right.set(title="last layer, by depth", xlabel="layers $L$", yscale="log")
        right.set(xscale="log")
        right.set_xticks(DEPTHS, [f"{depth}" for depth in DEPTHS])
        right.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        right.yaxis.set_major_formatter("{x:g}")
        right.minorticks_off()

    def positions(figure: Figure, theme: Theme) -> None:
        left, right = figure.subplots(1, 2, sharey=True)
        for axes, task in ((left, "reverse"), (right, "sort")):
            for number, which in enumerate(("with", "without")):
                # Two of the lines end at one height; their labels should not.
                lift = 0.6 if (task, which) == ("sort", "without") else 0.15
                name, label = f"{task}_{which}_positions", f"{which}\npositions"
                curve(axes, name, label, theme.series[number], lift=lift)
            axes.set(title=f"to {task} tokens", xlabel="step")
        floor = metrics["floor_without_order"]
        left.axhline(floor, color=theme.ink, linestyle=":")
        start = 0.33 * results["steps.reverse_with_positions"][-1].item()
        left.annotate("least if the order is unknown", (start, floor * 0.96), va="top")
        left.set(ylabel="loss per token", ylim=(0, None))

    def uses(figure: Figure, theme: Theme) -> None:
        read, written = token_names()
        grid = figure.subplots(2, 3)
        for layer, row in enumerate(grid):
            for axes, (use, (label, _)) in zip(row, USES.items(), strict=True):
                heads = results[f"weights.{use}.{layer}"]
                heatmap(axes, theme, heads.mean(0), limit=1.1)
                keys = ["begin", *written[:-1]] if use == "decoder" else read
                queries = read if use == "encoder" else ["begin", *written[:-1]]
                axes.set_xticks(range(len(keys)), keys)
                axes.set_yticks(range(len(queries)), queries)
                axes.tick_params(length=0, labelsize=6.5)
                axes.set_aspect("auto")
                axes.set_title(f"{label}, layer {layer + 1}", size=9)
                for tick in axes.get_xticklabels():
                    tick.set_rotation(90 if len(tick.get_text()) > 1 else 0)

    return {
        "norms": (norms, 3.2),
        "gradients": (gradients, 2.8),
        "positions": (positions, 2.8),
        "uses": (uses, 5.2),
    }


def token_names() -> tuple[list[str], list[str]]:
    """Return the tokens of the text shown, and of its answer."""
    text, answer = (
        [x.replace(" ", "␣") for x in words]
        for words in (SHOWN[4:], CASE.answer(SHOWN))
    )
    return [SHOWN[:3], *text, "end"], [*answer, "end"]


if __name__ == "__main__":
    run_example("transformer", PRESETS, compute, drawings, summary)
