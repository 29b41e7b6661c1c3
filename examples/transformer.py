"""Figures of chapter 6: where to normalise, what positions are for, who looks where.

Deep, narrow Transformers learn to write a sequence backwards, normalising before or
after each sublayer, with and without a learning rate that warms up. Shallow ones learn
to write backwards, or to sort, with and without positions. One more learns to change
the case of short texts, and shows its three kinds of attention at work.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator
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
from transformers_hw.seq2seq import ChangeOfCase
from transformers_hw.transformer import Transformer

CASE = ChangeOfCase()
BEGIN, FIRST, VOCABULARY = 1, 2, 12
# By name: where to normalise, and whether to warm up.
ORDERS = {
    "pre-norm": ("pre", False),
    "pre-norm, warm-up": ("pre", True),
    "post-norm": ("post", False),
    "post-norm, warm-up": ("post", True),
}
DEPTHS = (2, 4, 8, 16)
USES = {
    "encoder": "encoder.layers.{}.attention",
    "decoder, masked": "decoder.layers.{}.self_attention",
    "decoder to encoder": "decoder.layers.{}.cross_attention",
}
SHOWN = "<U> I am a pupil"

Make = Callable[[int, torch.Generator], tuple[Tensor, ...]]


@dataclass(frozen=True)
class Config(ExampleConfig):
    """How large the models are, and how long they learn."""

    steps: int = 10
    """Steps of training of the deep models, and of the shallow ones."""
    length: int = 8
    """Tokens in a sequence to reverse or to sort."""
    depth: int = 3
    """Layers of encoder and of decoder, of the deep models."""
    dim: int = 16
    """Width of a token."""
    batch_size: int = 32
    """Sequences in a batch."""
    case_steps: int = 20
    """Steps of training on the change of case."""
    draws: int = 2
    """Models to draw for each gradient at the start."""


PRESETS = {
    "quick": Config(),
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


def compute(config: Config, device: torch.device) -> tuple[Results, Metrics]:
    """Compare orders of layers, then positions with none, then look at attention."""
    results = gradients_at_start(config, device)
    metrics: Metrics = {"last_loss": {}, "accuracy": {}, "minutes": {}}

    def note(name: str, history: list[dict], minutes: float) -> None:
        losses = [entry["train"]["loss"] for entry in history]
        results[f"loss.{name}"] = torch.tensor(losses)
        results[f"steps.{name}"] = torch.tensor([entry["step"] for entry in history])
        metrics["last_loss"][name] = round(losses[-1], 4)
        metrics["accuracy"][name] = round(history[-1]["train"]["accuracy"], 4)
        metrics["minutes"][name] = minutes

    for name, (norm, warm) in ORDERS.items():
        torch.manual_seed(config.seed)
        model = made(config, norm=norm, depth=config.depth)
        warmup = config.steps // 4 if warm else 0
        # The plain rate, and no clipping: what is compared is the models.
        note(name, *learn(config, model, name, reverse(config), warmup=warmup))
    for task, make in (("reverse", reverse(config)), ("sort", sort(config))):
        for positions in ("sinusoidal", None):
            torch.manual_seed(config.seed)
            model = made(config, norm="pre", depth=2, positions=positions)
            name = f"{task}, {'without' if positions is None else 'with'} positions"
            note(name, *learn(config, model, name, make, warmup=config.steps // 10))
    metrics["floor_without_order"] = round(floor_without_order(config.length), 4)
    metrics["gradient_of_last_layer"] = {
        norm: {
            str(depth): round(results[f"last.{norm}"][place].item(), 4)
            for place, depth in enumerate(DEPTHS)
        }
        for norm in ("pre", "post")
    }
    for norm in ("pre", "post"):
        by_layer = results[f"by_layer.{norm}"]
        metrics[f"gradient_last_over_first_{norm}"] = round(
            (by_layer[-1] / by_layer[0]).item(), 3
        )
    torch.manual_seed(config.seed)
    model = Transformer(
        len(CASE), dim=2 * config.dim, heads=2, hidden_dim=8 * config.dim, depth=2
    )
    note("change of case", *learn_case(config, model))
    uses = uses_of_attention(model, device)
    results.update(uses)
    # The prompt, which says what the task is, comes first in the source.
    metrics["encoder_weight_on_prompt"] = {
        f"layer {layer + 1}": round(
            uses[f"weights.encoder.{layer}"][..., 0].mean().item(), 3
        )
        for layer in (0, 1)
    }
    return results, metrics


def made(config: Config, **options: object) -> Transformer:
    """Make a model that reads and writes the numbers of a sequence."""
    sizes = {"dim": config.dim, "heads": 2, "hidden_dim": 4 * config.dim}
    return Transformer(VOCABULARY, **sizes, **options)  # type: ignore[arg-type]


def reverse(config: Config) -> Make:
    """Give sequences, and the same backwards: a task that is all about order."""

    def make(samples: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        source = drawn(config, samples, generator)
        return source, shifted(source.flip(1)), source.flip(1)

    return make


def sort(config: Config) -> Make:
    """Give sequences, and the same sorted: the order of the source does not matter."""

    def make(samples: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        source = drawn(config, samples, generator)
        target = source.sort(dim=1).values
        return source, shifted(target), target

    return make


def drawn(config: Config, samples: int, generator: torch.Generator) -> Tensor:
    """Draw sequences, all tokens alike likely."""
    shape = (samples, config.length)
    return torch.randint(FIRST, VOCABULARY, shape, generator=generator)


def shifted(target: Tensor) -> Tensor:
    """Give what the decoder reads: the begin token, and all but the last target."""
    return F.pad(target[:, :-1], (1, 0), value=BEGIN)


def floor_without_order(length: int) -> float:
    r"""Give the least loss per token of a model to which the source is a bag.

    It knows how often each token occurs, $c_k$ times, but all of the
    $n!/\prod_k c_k!$ orders are alike likely. With $v$ kinds of tokens, the mean is
    $\frac1n(\ln n! - v\,\mathbb{E} \ln c!)$, where $c$ is binomial with $p = 1/v$.
    """
    kinds = VOCABULARY - FIRST
    repeats = sum(
        math.comb(length, c)
        * (kinds - 1) ** (length - c)
        / kinds**length
        * math.lgamma(c + 1)
        for c in range(length + 1)
    )
    return (math.lgamma(length + 1) - kinds * repeats) / length


def gradients_at_start(config: Config, device: torch.device) -> Results:
    """Give the gradient of untrained models, layer by layer, a mean over draws.

    It is that of the second weights of the decoder's feed-forward networks.
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
                model = made(config, norm=norm, depth=depth).to(device)
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


def learn(
    config: Config, model: nn.Module, name: str, make: Make, *, warmup: int
) -> tuple[list[dict], float]:
    """Train at a constant rate; give the history, and the minutes taken."""

    def objective(model: nn.Module, batch: tuple[Tensor, ...]) -> dict[str, Tensor]:
        source, target_inputs, target = batch
        return totals(model(source, target_inputs), target, padding_token=CASE.pad)

    case = name == "change of case"
    steps = config.case_steps if case else config.steps
    settings = asdict(config)
    progress = train(
        model,
        GeneratedBatches(
            make,
            config.batch_size,
            steps_per_epoch=max(1, steps // 40),
            seed=config.seed,
        ),
        objective,
        TrainingConfig(
            out=training_folder(config, name.replace(",", "").replace(" ", "-")),
            steps=steps,
            batch_size=config.batch_size,
            learning_rate=3e-3,
            schedule="cosine" if case else "constant",
            warmup_steps=warmup,
            weight_decay=0.0,
            clip_norm=1.0 if case else None,
            seed=config.seed,
            device=config.device,
        ),
        about={"name": name, **{x: settings[x] for x in ("length", "depth", "dim")}},
    )
    return progress.history, round(progress.seconds / 60, 2)


def learn_case(config: Config, model: nn.Module) -> tuple[list[dict], float]:
    """Train a model to change the case of texts of up to twelve characters."""

    def make(samples: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        return CASE.sample(samples, min_length=1, max_length=12, generator=generator)

    return learn(config, model, "change of case", make, warmup=config.case_steps // 20)


@torch.no_grad()
def uses_of_attention(model: nn.Module, device: torch.device) -> Results:
    """Give the weights of all three uses on one text, layer by layer."""
    source, target_inputs, _ = (x.to(device) for x in CASE.batch([SHOWN]))
    with capture_weights(model.eval()) as captured:
        model(source, target_inputs)
    return {
        f"weights.{use}.{layer}": captured[place.format(layer)][0][0]
        for use, place in USES.items()
        for layer in (0, 1)
    }


def drawings(results: Results, metrics: Metrics) -> Drawings:
    """Say how each figure is drawn."""

    def curve(
        axes: Axes, name: str, colour: str, *, style: str = "-", lift: float = 0.0
    ) -> None:
        losses, steps = results[f"loss.{name}"], results[f"steps.{name}"]
        axes.plot(steps, losses, style, color=colour)
        text = name.rpartition(", ")[2].replace(" positions", "\npositions")
        text = name if name in ORDERS else text
        label_line(axes, text, (steps[-1].item(), losses[-1].item() + lift), colour)

    def norms(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        for name, (norm, warm) in ORDERS.items():
            colour = theme.series[0 if norm == "pre" else 1]
            curve(axes, name, colour, style="--" if warm else "-")
        axes.set(yscale="log", xlabel="step", ylabel="loss per token")
        axes.set_title("writing a sequence backwards, at one learning rate")

    def gradients(figure: Figure, theme: Theme) -> None:
        left, right = figure.subplots(1, 2)
        for norm, colour in zip(("pre", "post"), theme.series, strict=False):
            by_layer, last = results[f"by_layer.{norm}"], results[f"last.{norm}"]
            layers = range(1, len(by_layer) + 1)
            left.plot(layers, by_layer, marker="o", ms=4, color=colour)
            end = (len(by_layer), by_layer[-1].item())
            label_line(left, f"{norm}-norm", end, colour)
            right.plot(DEPTHS, last, marker="o", ms=4, color=colour)
            end = (DEPTHS[-1], last[-1].item())
            label_line(right, f"{norm}-norm", end, colour)
        start = results["last.pre"][0].item()
        guide = [start * math.sqrt(DEPTHS[0] / depth) for depth in DEPTHS]
        right.plot(DEPTHS, guide, ":", color=theme.ink)
        label_line(right, r"$\propto 1/\sqrt{L}$", (DEPTHS[-1], guide[-1]), theme.ink)
        left.set(title="by layer of the decoder", xlabel="layer")
        left.set(ylabel="norm of the gradient at the start", ylim=(0, None))
        right.set(title="last layer, by depth", xlabel="layers $L$", yscale="log")
        right.set(xscale="log")
        right.set_xticks(DEPTHS, [f"{depth}" for depth in DEPTHS])
        right.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        right.yaxis.set_major_formatter("{x:g}")
        right.minorticks_off()

    def positions(figure: Figure, theme: Theme) -> None:
        left, right = figure.subplots(1, 2, sharey=True)
        for axes, task in ((left, "reverse"), (right, "sort")):
            for place, which in enumerate(("with", "without")):
                # Two of the lines end in one place; their names should not.
                lift = 0.6 if (task, which) == ("sort", "without") else 0.15
                name = f"{task}, {which} positions"
                curve(axes, name, theme.series[place], lift=lift)
            axes.set(title=f"to {task} tokens", xlabel="step")
        floor = metrics["floor_without_order"]
        left.axhline(floor, color=theme.ink, linestyle=":")
        start = 0.33 * results["steps.reverse, with positions"][-1].item()
        left.annotate("least if order is unknown", (start, floor * 0.96), va="top")
        left.set(ylabel="loss per token", ylim=(0, None))

    def uses(figure: Figure, theme: Theme) -> None:
        read, written = token_names()
        grid = figure.subplots(2, 3)
        for layer, row in enumerate(grid):
            for axes, use in zip(row, USES, strict=True):
                heads = results[f"weights.{use}.{layer}"]
                heatmap(axes, theme, heads.mean(0), limit=1.1)
                keys = ["begin", *written[:-1]] if "masked" in use else read
                queries = read if use == "encoder" else ["begin", *written[:-1]]
                axes.set_xticks(range(len(keys)), keys)
                axes.set_yticks(range(len(queries)), queries)
                axes.tick_params(length=0, labelsize=6.5)
                axes.set_aspect("auto")
                axes.set_title(f"{use}, layer {layer + 1}", size=9)
                for label in axes.get_xticklabels():
                    label.set_rotation(90 if len(label.get_text()) > 1 else 0)

    return {
        "norms": (norms, 3.2),
        "gradients": (gradients, 2.8),
        "positions": (positions, 2.8),
        "uses": (uses, 5.2),
    }


def token_names() -> tuple[list[str], list[str]]:
    """Spell the tokens of the text shown, and of its answer."""
    text, answer = (
        [x.replace(" ", "␣") for x in words]
        for words in (SHOWN[4:], CASE.answer(SHOWN))
    )
    return [SHOWN[:3], *text, "end"], [*answer, "end"]


if __name__ == "__main__":
    run_example("transformer", presets=PRESETS, compute=compute, drawings=drawings)
