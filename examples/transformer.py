"""Figures of chapter 6: where to normalize, why positions, and who attends where.

Deep, narrow Transformers learn to reverse a sequence, with pre-norm and post-norm, with
and without warm-up, at several learning rates. Shallow ones learn to reverse or to
sort, with and without positions. All are trained from several seeds. One more learns to
change the case of short texts, and shows the three uses of attention.

The part `language_model` trains a small decoder-only model to continue texts, character
by character, on the reference manual that comes with Python.
"""

import hashlib
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import cache, partial
from pydoc_data.topics import topics
from typing import Any

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator
from torch import Tensor, nn

from transformers_hw.lab.batching import Batch, GeneratedBatches, shard
from transformers_hw.lab.change_of_case import ChangeOfCase
from transformers_hw.lab.experiment import (
    Drawings,
    Experiment,
    Metrics,
    Part,
    Results,
    TrainingExampleConfig,
    minutes,
    run_parts,
    spread,
)
from transformers_hw.lab.objectives import cross_entropy_sums
from transformers_hw.lab.plotting import Theme, dot_runs, heatmap, label_line, plot_runs
from transformers_hw.probes import capture_weights
from transformers_hw.transformer import LanguageModel, Transformer

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
PROMPT = "The "
# Ways to choose the next character: arguments of `LanguageModel.generate`.
CHOICES: tuple[dict[str, float], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.5},
    {"temperature": 1.0},
    {"temperature": 1.5},
    {"temperature": 1.0, "top_p": 0.9},
)
VALIDATION = 0.1  # the last tenth of the manual
WORD = "[A-Za-z]{3,}"  # shorter ones are often known by chance

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
    parts: tuple[str, ...] = ()
    """Parts to run: language_model, or an empty name for the others; all by default."""
    text_steps: int = 400
    """Training steps of the language model."""
    text_dim: int = 48
    """Dimension of its tokens; a head has 16."""
    text_depth: int = 2
    """Its layers."""
    text_dropout: float = 0.0
    """Its dropout in training."""
    text_seeds: int = 1
    """Number of seeds to train it from."""
    text_batch_size: int = 32
    """Samples of the text in a batch."""
    context: int = 64
    """Characters in a sample of the text."""
    texts: int = 4
    """Texts that it writes with every way to choose the next character."""

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
        text_steps=1200,
        text_dim=96,
        text_depth=3,
        text_seeds=3,
        context=96,
        texts=64,
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
        text_steps=2_000,
        text_dim=384,
        text_depth=6,
        text_dropout=0.2,
        text_seeds=3,
        text_batch_size=64,
        context=256,
        texts=64,
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
    model, history = train(
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
    losses = [[entry["loss"] for entry in history] for _, history in trained]
    accuracies = [history[-1]["accuracy"] for _, history in trained]
    steps = [entry["step"] for entry in trained[0][1]]
    experiment.results["steps"] = torch.tensor(steps)
    experiment.results[f"loss.{name}"] = torch.tensor(losses)
    return {
        "last_loss": spread(curve[-1] for curve in losses),
        "accuracy": spread(accuracies),
        "seeds_that_learned": sum(accuracy >= LEARNED for accuracy in accuracies),
    }


def train(
    experiment: Experiment[Config],
    name: str,
    make_model: Callable[[], nn.Module],
    make: Make,
    *,
    seed: int,
    **options: Any,
) -> tuple[nn.Module, list[dict[str, float]]]:
    """Train a model; return it, and its losses on fresh samples."""
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
    return model, [{"step": x["step"], **x["train"]} for x in progress.history]


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


@cache
def manual() -> str:
    """Return Python's reference manual, each of its paragraphs once.

    Some topics of `help()` repeat others. A paragraph that stood twice could be learned
    by heart in training and found again in validation.
    """
    paragraphs = [text.split("\n\n") for _, text in sorted(topics.items())]
    unique = dict.fromkeys(one.strip("\n") for some in paragraphs for one in some)
    return "\n\n".join(one for one in unique if one)


@cache
def alphabet() -> str:
    """Return all characters of the manual; a token is an index into them."""
    return "".join(sorted(set(manual())))


@cache
def encoded() -> tuple[Tensor, Tensor]:
    """Return the tokens to train on, and those to validate with."""
    index = {character: i for i, character in enumerate(alphabet())}
    tokens = torch.tensor([index[character] for character in manual()])
    cut = round((1.0 - VALIDATION) * len(tokens))
    return tokens[:cut], tokens[cut:]


class Pieces:
    """All pieces of a text, one after the other, in one batch.

    Args:
        tokens: The text.
        length: Tokens in a piece.
    """

    steps_per_epoch = 1

    def __init__(self, tokens: Tensor, length: int) -> None:
        pieces = (len(tokens) - 1) // length
        self.inputs = tokens[: pieces * length].view(pieces, length)
        self.targets = tokens[1 : pieces * length + 1].view(pieces, length)

    def batch(self, step: int, *, rank: int = 0, world_size: int = 1) -> Batch:
        """Return a process's share of the pieces, and what follows each token."""
        own, weight = shard(len(self.inputs), rank=rank, world_size=world_size)
        return Batch((self.inputs[own], self.targets[own]), weight)


def language_model(experiment: Experiment[Config]) -> None:
    """Train a language model from several seeds, and let it write."""
    config, results, metrics = experiment.config, experiment.results, experiment.metrics
    training, validation = encoded()
    metrics["text"] = {
        "characters": len(manual()),
        "training": len(training),
        "validation": len(validation),
        "alphabet": len(alphabet()),
        "sha256": hashlib.sha256(manual().encode()).hexdigest(),
    }
    metrics["baselines"] = baselines(training, validation, len(alphabet()))
    make = partial(
        LanguageModel,
        len(alphabet()),
        dim=config.text_dim,
        heads=config.text_dim // 16,
        depth=config.text_depth,
        hidden_dim=8 * config.text_dim // 3,
        positions="rotary",
        normalization="rms",
        activation="swiglu",
        bias=False,
        dropout=config.text_dropout,
    )
    seeds = range(config.seed, config.seed + config.text_seeds)
    trained = [train_on_text(experiment, make, seed) for seed in seeds]
    models, histories, took = zip(*trained, strict=True)
    results["steps"] = torch.tensor([entry["step"] for entry in histories[0]])
    for split in ("train", "validation"):
        losses = [[entry[split]["loss"] for entry in one] for one in histories]
        results[f"loss.{split}"] = torch.tensor(losses)
        metrics[f"{split}_loss"] = spread(curve[-1] for curve in losses)
    last = results["loss.validation"][:, -1]
    metrics["validation_bits_per_character"] = spread((last / math.log(2)).tolist())
    metrics["perplexity"] = spread(last.exp().tolist())
    accuracies = [one[-1]["validation"]["accuracy"] for one in histories]
    metrics["accuracy"] = spread(accuracies)
    metrics["parameters"] = sum(x.numel() for x in models[0].parameters())
    metrics["minutes"] = spread(took)
    metrics["known_words_of_validation"] = round(known_words([decoded(validation)]), 4)
    limited = [with_window(model, config.context) for model in models]
    metrics["choices"] = [written(limited, config.texts, x) for x in CHOICES]
    metrics["without_window"] = written(models, config.texts, CHOICES[1])


def with_window(model: LanguageModel, window: int) -> LanguageModel:
    """Return the model with a window: no distance is longer than in training."""
    settings: dict[str, Any] = {**asdict(model.config), "window": window}
    limited = LanguageModel(**settings)
    limited.load_state_dict(model.state_dict())
    return limited.eval().to(model.embedding.weight.device)


def written(
    models: Iterable[LanguageModel], texts: int, choice: dict[str, float]
) -> Metrics:
    """Return what is known of texts that the models write, and the first of them."""
    found = [write(model, texts, choice) for model in models]
    return {
        **choice,
        "known_words": spread(map(known_words, found)),
        "sample": found[0][0],
    }


def baselines(training: Tensor, validation: Tensor, size: int) -> Metrics:
    """Return the losses of models that know no token, none before it, or one.

    Counts begin at one, so that a pair that was never seen has a probability.
    """
    single = torch.bincount(training, minlength=size) + 1.0
    pairs = torch.bincount(size * training[:-1] + training[1:], minlength=size**2)
    pair = pairs.view(size, size) + 1.0
    unigram = (single / single.sum()).log()[validation[1:]]
    bigram = (pair / pair.sum(dim=1, keepdim=True)).log()[
        validation[:-1], validation[1:]
    ]
    return {
        "uniform": round(math.log(size), 4),
        "unigram": round(-unigram.mean().item(), 4),
        "bigram": round(-bigram.mean().item(), 4),
    }


def train_on_text(
    experiment: Experiment[Config], make: Callable[[], LanguageModel], seed: int
) -> tuple[LanguageModel, list[dict[str, Any]], float]:
    """Train a language model; return it, its losses, and the minutes."""
    config = experiment.config
    training, validation = encoded()

    def draw(samples: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        most = len(training) - config.context
        start = torch.randint(most, (samples, 1), generator=generator)
        piece = training[start + torch.arange(config.context + 1)]
        return piece[:, :-1], piece[:, 1:]

    def objective(model: nn.Module, batch: tuple[Tensor, ...]) -> dict[str, Tensor]:
        inputs, targets = batch
        return cross_entropy_sums(model(inputs), targets)

    model, progress = experiment.train(
        "language_model",
        make,
        GeneratedBatches(draw, config.text_batch_size, seed=seed),
        objective,
        seed=seed,
        evaluations={"validation": Pieces(validation, config.context)},
        evaluate_every=max(1, config.text_steps // 20),
        steps=config.text_steps,
        batch_size=config.text_batch_size,
        learning_rate=3e-3,
        warmup_steps=config.text_steps // 20,
        identity={
            "context": config.context,
            "text": hashlib.sha256(manual().encode()).hexdigest(),
        },
    )
    return model, progress.history, minutes(progress)


def write(
    model: LanguageModel, texts: int, choice: dict[str, float], characters: int = 200
) -> list[str]:
    """Continue the prompt several times; a choice says how to draw characters."""
    prompt = torch.tensor([[alphabet().index(x) for x in PROMPT]] * texts)
    prompt = prompt.to(model.embedding.weight.device)
    torch.manual_seed(0)
    options: dict[str, Any] = {**choice}
    found = model.generate(prompt, characters, **options)
    return [PROMPT + decoded(text) for text in found]


def decoded(tokens: Tensor) -> str:
    """Return the text that tokens stand for."""
    return "".join(alphabet()[i] for i in tokens.tolist())


def known_words(texts: list[str]) -> float:
    """Return the share of words that occur in the text of the training.

    A text's first word is the prompt, and its last may be cut off.
    """
    known = set(re.findall(WORD, decoded(encoded()[0])))
    words = [word for x in texts for word in re.findall(WORD, x)[1:-1]]
    return sum(word in known for word in words) / max(1, len(words))


def summarize_language_model(metrics: Metrics) -> str:
    """Return the outcome of the language model in words."""
    rows = [f"{name}: loss {x:.3f}" for name, x in metrics["baselines"].items()]
    loss, accuracy = metrics["validation_loss"], metrics["accuracy"]
    rows += [f"language model: loss {loss['mean']:.3f}, {accuracy['mean']:.1%} right"]
    for x in metrics["choices"]:
        limit = f", top-p {x['top_p']}" if "top_p" in x else ""
        words = f"{x['known_words']['mean']:.1%} known words"
        rows += [f"T = {x['temperature']}{limit}: {words}, {x['sample']!r}"]
    return "\n".join(rows)


def draw_language_model(results: Results, metrics: Metrics) -> Drawings:
    """Return the figures of the language model."""

    def losses(figure: Figure, theme: Theme) -> None:
        axes, steps = figure.subplots(), results["steps"]
        for split, color in zip(("validation", "train"), theme.series, strict=False):
            runs = results[f"loss.{split}"]
            label = "training" if split == "train" else split
            plot_runs(axes, steps, runs, color=color).set_label(label)
        for name in ("unigram", "bigram"):
            loss = metrics["baselines"][name]
            axes.axhline(loss, color=theme.ink, linestyle=":")
            end = (steps[-1].item(), loss + 0.06)
            axes.annotate(name, end, color=theme.ink, ha="right", va="bottom")
        axes.set(xlabel="step", ylabel="loss per character (nats)", ylim=(0, None))
        figure.legend(loc="outside lower center", ncols=2)

    return {"losses": (losses, 3.0)}


PARTS = {
    "": Part(compute, drawings, summary),
    "language_model": Part(
        language_model, draw_language_model, summarize_language_model
    ),
}

if __name__ == "__main__":
    run_parts("transformer", PRESETS, PARTS)
