"""Figures of chapter 6: where to normalize, why positions, and who attends where.

Deep, narrow Transformers learn to reverse a sequence, with pre-norm and post-norm, with
and without warm-up, at several learning rates. Shallow ones learn to reverse or to
sort, with and without positions. All are trained from several seeds. One more learns to
change the case of short texts, and shows the three uses of attention.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
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
    spread,
)
from transformers_hw.lab.objectives import cross_entropy_sums
from transformers_hw.lab.plotting import Theme, dot_runs, heatmap, label_line, plot_runs
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
LEARNED = 0.99  # accuracy from which a model has learned a task
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

    steps: int = 150
    """Training steps of the deep models, and of the shallow ones."""
    length: int = 8
    """Tokens in a sequence to reverse or to sort."""
    depth: int = 4
    """Layers of encoder and of decoder, of the deep models."""
    dim: int = 32
    """Dimension of a token."""
    rates: tuple[float, ...] = (3e-3,)
    """Learning rates of the deep models; the shallow ones have the middle one."""
    case_steps: int = 150
    """Training steps on the change of case."""
    draws: int = 4
    """Initializations over which each gradient is averaged."""

    @property
    def middle_rate(self) -> int:
        """The index of the middle learning rate."""
        return len(self.rates) // 2


PRESETS = {
    "quick": Config(),
    "cpu": Config(
        steps=400,
        depth=6,
        seeds=5,
        rates=(1e-3, 3e-3, 1e-2),
        case_steps=800,
        draws=16,
    ),
    "gpu": Config(
        steps=20_000,
        length=64,
        depth=12,
        dim=512,
        batch_size=256,
        seeds=5,
        rates=(1e-4, 3e-4, 1e-3),
        case_steps=20_000,
        draws=16,
    ),
}


def compute(experiment: Experiment[Config]) -> None:
    """Compare norms, then positions with none, then look at attention."""
    config, results, metrics = experiment.config, experiment.results, experiment.metrics
    results |= gradients_at_initialization(config, experiment.device)
    metrics |= {"rates": config.rates, **gradient_metrics(results)}
    metrics["norms"] = {
        name: [
            train_from_seeds(
                experiment,
                f"{name}_rate_{number}",
                partial(make_model, config, norm=norm, depth=config.depth),
                reverse(config),
                # No clipping and a constant rate: only the models differ.
                learning_rate=rate,
                warmup_steps=config.steps // 4 if warm else 0,
                schedule="constant",
                clip_norm=None,
            )
            for number, rate in enumerate(config.rates)
        ]
        for name, (_, norm, warm) in NORMS.items()
    }
    metrics["positions"] = {
        f"{task}_{which}": train_from_seeds(
            experiment,
            f"{task}_{which}_positions",
            partial(make_model, config, norm="pre", depth=2, positions=positions),
            make,
            learning_rate=config.rates[config.middle_rate],
            warmup_steps=config.steps // 10,
        )
        for task, make in (("reverse", reverse(config)), ("sort", sort(config)))
        for which, positions in (("with", "sinusoidal"), ("without", None))
    }
    metrics["floor_without_order"] = round(floor_without_order(config.length), 4)
    dim = 2 * config.dim
    model, history, _ = train(
        experiment,
        "change_of_case",
        partial(Transformer, len(CASE), dim=dim, heads=2, hidden_dim=4 * dim, depth=2),
        change_case,
        seed=config.seed,
        steps=config.case_steps,
        learning_rate=3e-3,
        warmup_steps=config.case_steps // 20,
    )
    uses = uses_of_attention(model, experiment.device)
    results |= uses
    metrics["change_of_case"] = {"accuracy": round(history[-1]["accuracy"], 4)}
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
    """Return the gradient norms of untrained models by layer, for every draw.

    They are those of the output projections of the decoder's feed-forward networks.
    """
    source, target_inputs, target = (
        x.to(device)
        for x in reverse(config)(64, torch.Generator().manual_seed(config.seed))
    )

    def gradients(norm: str, depth: int, draw: int) -> Tensor:
        torch.manual_seed(draw)
        model = make_model(config, norm=norm, depth=depth).to(device)
        weights = [
            weight
            for name, weight in model.decoder.named_parameters()
            if name.endswith("feed_forward.output_proj.weight")
        ]
        loss = F.cross_entropy(model(source, target_inputs).mT, target)
        found = torch.autograd.grad(loss, weights)
        return torch.stack([x.norm() for x in found]).cpu()

    found: Results = {}
    for norm in ("pre", "post"):
        by_depth = {
            depth: torch.stack(
                [gradients(norm, depth, draw) for draw in range(config.draws)]
            )
            for depth in {*DEPTHS, config.depth}
        }
        found[f"by_layer.{norm}"] = by_depth[config.depth]
        last = [by_depth[depth][:, -1] for depth in DEPTHS]
        found[f"last.{norm}"] = torch.stack(last, dim=1)
    return found


def gradient_metrics(results: Results) -> Metrics:
    """Return the gradients of the last layer by depth, and ratios of layers."""
    metrics: Metrics = {"gradient_of_last_layer": {}}
    for norm in ("pre", "post"):
        by_layer, last = results[f"by_layer.{norm}"], results[f"last.{norm}"]
        metrics["gradient_of_last_layer"][norm] = {
            str(depth): spread(x.tolist())
            for depth, x in zip(DEPTHS, last.T, strict=True)
        }
        last_over_first = by_layer[:, -1] / by_layer[:, 0]
        shallow_over_deep = last[:, 0] / last[:, -1]
        metrics[f"gradient_last_over_first_{norm}"] = spread(last_over_first.tolist())
        metrics[f"gradient_2_over_16_layers_{norm}"] = spread(
            shallow_over_deep.tolist()
        )
    return metrics


def train_from_seeds(
    experiment: Experiment[Config],
    name: str,
    make_model: Callable[[], nn.Module],
    make: Make,
    **options: Any,
) -> Metrics:
    """Train a model from every seed; keep its losses, and report how they ended."""
    trained = [
        train(experiment, name, make_model, make, seed=seed, **options)
        for seed in experiment.config.all_seeds
    ]
    losses = [[entry["loss"] for entry in history] for _, history, _ in trained]
    accuracies = [history[-1]["accuracy"] for _, history, _ in trained]
    steps = [entry["step"] for entry in trained[0][1]]
    experiment.results["steps"] = torch.tensor(steps)
    experiment.results[f"loss.{name}"] = torch.tensor(losses)
    return {
        "last_loss": spread(curve[-1] for curve in losses),
        "accuracy": spread(accuracies),
        "seeds_that_learned": sum(accuracy >= LEARNED for accuracy in accuracies),
        "minutes": spread(took for _, _, took in trained),
    }


def train(
    experiment: Experiment[Config],
    name: str,
    make_model: Callable[[], nn.Module],
    make: Make,
    *,
    seed: int,
    **options: Any,
) -> tuple[nn.Module, list[dict[str, float]], float]:
    """Train a model; return it, its losses on fresh samples, and the minutes."""
    config = experiment.config

    def objective(model: nn.Module, batch: tuple[Tensor, ...]) -> dict[str, Tensor]:
        source, target_inputs, target = batch
        logits = model(source, target_inputs)
        return cross_entropy_sums(logits, target, padding_token=CASE.pad)

    options = {"steps": config.steps, **options}
    model, progress = experiment.train(
        name,
        make_model,
        GeneratedBatches(make, config.batch_size, seed=seed),
        objective,
        seed=seed,
        evaluate_every=max(1, options["steps"] // 40),
        weight_decay=0.0,
        identity={"length": config.length},
        **options,
    )
    history = [{"step": x["step"], **x["train"]} for x in progress.history]
    return model, history, minutes(progress)


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
        f"{label}, learning rate {rate:g}: loss {cell['last_loss']['mean']:.3f}, "
        f"accuracy {cell['accuracy']['mean']:.1%}"
        for name, (label, _, _) in NORMS.items()
        for rate, cell in zip(metrics["rates"], metrics["norms"][name], strict=True)
    ]
    rows += [
        f"to {name.replace('_', ' ')} positions: loss {cell['last_loss']['mean']:.3f}"
        for name, cell in metrics["positions"].items()
    ]
    floor = metrics["floor_without_order"]
    return "\n".join([*rows, f"least loss if the order is unknown: {floor:.3f}"])


def drawings(results: Results, metrics: Metrics) -> Drawings:
    """Return the figures."""
    rates, steps = metrics["rates"], results["steps"]

    def norms(figure: Figure, theme: Theme) -> None:
        left, right = figure.subplots(1, 2, sharey=True)
        middle = len(rates) // 2
        for number, (name, (label, norm, warm)) in enumerate(NORMS.items()):
            color = theme.series[0 if norm == "pre" else 1]
            runs = results[f"loss.{name}_rate_{middle}"]
            line = plot_runs(left, steps, runs, color=color, ls="--" if warm else "-")
            line.set_label(label)
            fill = {"markerfacecolor": "none"} if warm else {}
            for place in range(len(rates)):
                last = results[f"loss.{name}_rate_{place}"][:, -1]
                dot_runs(right, place + (number - 1.5) / 6, last, color=color, **fill)
        left.set(yscale="log", xlabel="step", ylabel="loss per token")
        left.set_title(f"reversing a sequence, learning rate {rates[middle]:g}")
        figure.legend(loc="outside lower center", ncols=4)
        right.set(title="at the end, for every seed", xlabel="learning rate")
        right.set_xticks(range(len(rates)), [f"{rate:g}" for rate in rates])

    def gradients(figure: Figure, theme: Theme) -> None:
        left, right = figure.subplots(1, 2)
        for norm, color in zip(("pre", "post"), theme.series, strict=False):
            by_layer, last = results[f"by_layer.{norm}"], results[f"last.{norm}"]
            depth = by_layer.shape[1]
            dots = {"color": color, "marker": "o", "ms": 4}
            plot_runs(left, range(1, depth + 1), by_layer, **dots)
            end = (depth, by_layer[:, -1].mean().item())
            label_line(left, f"{norm}-norm", end, color)
            plot_runs(right, DEPTHS, last, **dots)
            end = (DEPTHS[-1], last[:, -1].mean().item())
            label_line(right, f"{norm}-norm", end, color)
        start = results["last.pre"][:, 0].mean().item()
        guide = [start * math.sqrt(DEPTHS[0] / depth) for depth in DEPTHS]
        right.plot(DEPTHS, guide, ":", color=theme.ink)
        below = (DEPTHS[-1], 0.88 * guide[-1])
        label_line(right, r"$\propto 1/\sqrt{L}$", below, theme.ink)
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
                runs, color = results[f"loss.{task}_{which}_positions"], theme.series
                plot_runs(axes, steps, runs, color=color[number])
                # Two of the lines end at one height; their labels should not.
                lift = 0.85 if (task, which) == ("sort", "without") else 0.15
                end = (steps[-1].item(), runs[:, -1].mean().item() + lift)
                label_line(axes, f"{which}\npositions", end, color[number])
            axes.set(title=f"to {task} tokens", xlabel="step")
        floor = metrics["floor_without_order"]
        left.axhline(floor, color=theme.ink, linestyle=":")
        start = 0.33 * steps[-1].item()
        left.annotate("least if the order is unknown", (start, floor * 0.96), va="top")
        left.set(ylabel="loss per token", ylim=(0, None))

    def uses(figure: Figure, theme: Theme) -> None:
        read, written = token_names()
        grid = figure.subplots(2, 3)
        for head, row in enumerate(grid):
            for axes, (use, (label, _)) in zip(row, USES.items(), strict=True):
                heatmap(axes, theme, results[f"weights.{use}.0"][head], limit=1.1)
                keys = ["begin", *written[:-1]] if use == "decoder" else read
                queries = read if use == "encoder" else ["begin", *written[:-1]]
                axes.set_xticks(range(len(keys)), keys)
                axes.set_yticks(range(len(queries)), queries)
                axes.tick_params(length=0, labelsize=8)
                axes.set_aspect("auto")
                axes.set_title(f"{label}, head {head + 1}", size=9.5)
                for tick in axes.get_xticklabels():
                    tick.set_rotation(90 if len(tick.get_text()) > 1 else 0)

    return {
        "norms": (norms, 3.4),
        "gradients": (gradients, 2.8),
        "positions": (positions, 2.8),
        "uses": (uses, 5.4),
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
