"""Every module of the book, with inputs to try it on, for the tests that ask all.

The sizes of all axes are distinct primes wherever the module allows it, so that a
module that confuses two axes fails. An input is described by its axes: a name
stands for a size that may vary, a number for one that the module fixes.
"""

import inspect
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pkgutil import walk_packages
from typing import Any, Literal

import torch
from einops import rearrange
from torch import Tensor, nn

import transformers_hw
from transformers_hw import (
    MultiHeadAttention,
    PatchEmbedding,
    SelfAttention,
    Seq2Seq,
    VisionTransformer,
)
from transformers_hw import attention_as_convolution as ac
from transformers_hw import positional_encoding as pe
from transformers_hw import self_attention as sa
from transformers_hw import transformer as tf
from transformers_hw.seq2seq import GRU, RNN, Alignment
from transformers_hw.vision_transformer import AttentionPooling

SIZES = {"b": 3, "n": 5, "k": 7, "rows": 5, "columns": 7}
OTHER_SIZES = ({"b": 5, "n": 7, "k": 11, "rows": 7, "columns": 11},)
OTHER_SIZES += ({"b": 7, "n": 3, "k": 2, "rows": 3, "columns": 2},)
# 22 is 2 heads times 11, the least width that is even and shares no size.
DIM, HEADS, HIDDEN, VOCABULARY = 22, 2, 13, 17


@dataclass(frozen=True)
class Input:
    """A tensor argument: numbers, token ids below a bound, or a mask."""

    axes: str
    kind: Literal["float", "ids", "mask"] = "float"
    below: int = 0

    def shape(self, sizes: dict[str, int]) -> list[int]:
        return [sizes[x] if x in sizes else int(x) for x in self.axes.split()]

    def make(self, sizes: dict[str, int], dtype: torch.dtype) -> Tensor:
        shape = self.shape(sizes)
        if self.kind == "ids":
            return torch.randint(1, self.below, shape)
        if self.kind == "mask":
            mask = torch.rand(shape) > 0.4
            # Each row sees something; what blind rows give has tests of its own.
            mask[..., 0] = True
            return mask
        return torch.randn(shape, dtype=dtype)


def _plainly(module: nn.Module, **inputs: Any) -> Any:
    return module(**inputs)


@dataclass(frozen=True)
class Entry:
    """A module and how to call it.

    Attributes:
        name: The class, and the variant if there are several.
        build: Makes the module; takes `device` and `dtype` if it has parameters.
        inputs: The tensors of a call.
        output: The axes of the (first) output.
        call: Calls the module with the inputs.
        dropout: Whether `build` takes `dropout`.
        placed: Whether `build` takes `device` and `dtype`.
        fixed: Named axes whose sizes a compiled graph fixes.
        sizes: Named axes that have just this size.
        equivariant: An axis whose reordering reorders the output alike.
        invariant: An axis whose reordering changes nothing.
        causal: The input and axis whose later positions earlier outputs ignore.
        padded: An input, and the mask that says which of its tokens are real.
    """

    name: str
    build: Callable[..., nn.Module]
    inputs: dict[str, Input]
    output: str
    call: Callable[..., Any] = _plainly
    dropout: bool = False
    placed: bool = True
    fixed: frozenset[str] = frozenset()
    sizes: dict[str, int] = field(default_factory=dict)
    equivariant: str | None = None
    invariant: str | None = None
    causal: tuple[str, str] | None = None
    padded: tuple[str, str] | None = None

    def make(self, dtype: torch.dtype = torch.float64, **options: Any) -> nn.Module:
        """Build the module with parameters that are all different from one another."""
        torch.manual_seed(1)
        if self.placed:
            options = {"dtype": dtype, **options}
        if self.dropout:
            options = {"dropout": 0.0, **options}
        module = self.build(**options)
        with torch.no_grad():
            for parameter in module.parameters():
                if not parameter.is_meta:
                    parameter.add_(0.1 * torch.randn_like(parameter))
        return module

    def example(
        self, sizes: dict[str, int] | None = None, dtype: torch.dtype = torch.float64
    ) -> dict[str, Tensor]:
        torch.manual_seed(2)
        chosen = {**(SIZES if sizes is None else sizes), **self.sizes}
        return {name: x.make(chosen, dtype) for name, x in self.inputs.items()}

    def resized(
        self, dtype: torch.dtype = torch.float64
    ) -> Iterator[dict[str, Tensor]]:
        """Give inputs of several sizes, but where a graph fixes them."""
        kept = {axis: SIZES[axis] for axis in self.fixed}
        for sizes in (SIZES, *OTHER_SIZES):
            yield self.example({**sizes, **kept}, dtype)

    def free_axes(self) -> dict[str, dict[int, Any]]:
        """Give the axes of the inputs that an exported graph leaves open."""
        free = SIZES.keys() - self.fixed - self.sizes.keys()
        return {
            name: {
                i: torch.export.Dim.DYNAMIC
                for i, axis in enumerate(x.axes.split())
                if axis in free
            }
            for name, x in self.inputs.items()
        }

    def floats(self) -> list[str]:
        return [name for name, x in self.inputs.items() if x.kind == "float"]


def tensors(output: object) -> list[Tensor]:
    """Give the tensors of an output, however it is nested."""
    return [x for x in torch.utils._pytree.tree_leaves(output) if isinstance(x, Tensor)]


def _with(**options: Any) -> Callable[..., Any]:
    return partial(_plainly, **options)


def _for_lengths(module: nn.Module, query: Tensor, key: Tensor) -> Tensor:
    return module(query.shape[1], key.shape[1])


def _for_grid(module: nn.Module, x: Tensor) -> Tensor:
    return module(x.shape[1], x.shape[2])


def _on_a_grid(module: nn.Module, x: Tensor) -> Tensor:
    patches = rearrange(x, "b i j k -> b (i j) k")
    turned = module(patches, (x.shape[1], x.shape[2]))
    return rearrange(turned, "b (i j) k -> b i j k", i=x.shape[1])


def _images(module: nn.Module, images: Tensor) -> Tensor:
    """Call with images given patch by patch: rows of 2 pixels, columns of 3."""
    pixels = rearrange(images, "b c rows i columns j -> b c (rows i) (columns j)")
    return module(pixels)


def _inputs(**axes: str) -> dict[str, Input]:
    """Describe inputs; those called masks are masks."""
    kinds = {True: "mask", False: "float"}
    return {name: Input(x, kinds[name.endswith("mask")]) for name, x in axes.items()}


def _ids(below: int = VOCABULARY, **axes: str) -> dict[str, Input]:
    return {name: Input(x, "ids", below) for name, x in axes.items()}


def _family(
    inputs: dict[str, Input], output: str, build: Any = None, **shared: Any
) -> Callable[..., Entry]:
    """Give a constructor of entries that have most in common."""

    def entry(
        name: str, build: Any = build, inputs: Any = inputs, output: str = output, **own
    ) -> Entry:
        return Entry(name, build, inputs, output, **{**shared, **own})

    return entry


TOKENS, OUT = _inputs(x=f"b n {DIM}"), f"b n {DIM}"
FIXED_GRID = {"rows": 5, "columns": 7}


def _positions() -> Iterator[Entry]:
    line = _family(TOKENS, OUT)
    one_hot = partial(pe.OneHotPositions, 13)
    yield line("OneHotPositions", one_hot, output=f"b n {DIM + 13}", placed=False)
    sinusoids = partial(pe.SinusoidalPositions, DIM)
    yield line("SinusoidalPositions", sinusoids, placed=False)
    yield line("LearnedPositions", partial(pe.LearnedPositions, 13, DIM))
    joined = partial(pe.LearnedPositions, 13, 11, combine="concatenate")
    yield line("LearnedPositions concatenated", joined, output=f"b n {DIM + 11}")
    grid = _family(_inputs(x="b rows columns 8"), "b rows columns 8")
    sinusoids = partial(pe.SinusoidalPositions2D, 8)
    yield grid("SinusoidalPositions2D", sinusoids, placed=False)
    learned = partial(pe.LearnedPositions2D, (5, 7), 8)
    yield grid("LearnedPositions2D", learned, sizes=FIXED_GRID)
    resampled = partial(pe.LearnedPositions2D, (2, 3), 8)
    yield grid("LearnedPositions2D resampled", resampled)
    yield grid("AxialPositions2D", partial(pe.AxialPositions2D, (2, 3), 8))
    bias = partial(pe.RelativePositionBias, HEADS, 3)
    pair = _inputs(query="b n 11", key="b k 11")
    yield Entry("RelativePositionBias", bias, pair, f"{HEADS} n k", call=_for_lengths)
    buckets = partial(pe.BucketedPositions, HEADS, buckets=8, max_distance=11)
    yield Entry("BucketedPositions", buckets, pair, f"{HEADS} n k", call=_for_lengths)
    wide = {"placed": False, "sizes": {"k": 13}}
    rotary = partial(pe.RotaryPositions, 6, layout="halves")
    yield Entry("RotaryPositions", rotary, _inputs(x="b n k"), "b n k", **wide)
    cells = _inputs(x="b rows columns k")
    rotary = partial(pe.RotaryPositions2D, 8)
    grid = _family(cells, "b rows columns k", call=_on_a_grid, **wide)
    yield grid("RotaryPositions2D", rotary)


def _attentions() -> Iterator[Entry]:
    built = partial(MultiHeadAttention, DIM, HEADS)
    layer = _family(_inputs(query=OUT), OUT, built, dropout=True)
    past = {"causal": ("query", "n")}
    yield layer("MultiHeadAttention", equivariant="n")
    yield layer("MultiHeadAttention causal", call=_with(causal=True), **past)
    both = _with(causal=True, return_weights=True)
    yield layer("MultiHeadAttention causal, weights", call=both, **past)
    hard = partial(built, scale=math.inf)
    yield layer("MultiHeadAttention hard", hard, dropout=False, equivariant="n")
    shared = partial(built, kv_heads=1, qk_norm="rms")
    yield layer("MultiHeadAttention grouped, normalized", shared, equivariant="n")
    near = partial(built, window=2, sinks=1, softcap=3.0, qk_norm="layer")
    yield layer("MultiHeadAttention window", near, call=_with(causal=True), **past)
    widths = {"context_dim": 13, "values_dim": 17, "output_dim": 29}
    yield layer(
        "MultiHeadAttention cross",
        partial(MultiHeadAttention, 11, 2, head_dim=19, value_head_dim=23, **widths),
        _inputs(query="b n 11", context="b k 13", values="b k 17"),
        "b n 29",
        call=_with(return_weights=True),
        equivariant="n",
        invariant="k",
    )
    masks = {"mask": f"b {HEADS} n k", "padding_mask": "b k", "bias": f"{HEADS} n k"}
    yield layer(
        "MultiHeadAttention masked",
        partial(built, bias=("query", "value"), context_dim=13),
        _inputs(query=OUT, context="b k 13", **masks),
        equivariant="n",
        invariant="k",
        padded=("context", "padding_mask"),
    )


def _self_attentions() -> Iterator[Entry]:
    built = partial(SelfAttention, DIM, HEADS)
    layer = _family(TOKENS, OUT, built, dropout=True)
    yield layer("SelfAttention", equivariant="n")
    yield layer(
        "SelfAttention with positions",
        lambda **options: built(positions=pe.OneHotPositions(13), **options),
        _inputs(x=OUT, padding_mask="b n"),
        call=_with(causal=True, return_weights=True),
        causal=("x", "n"),
        padded=("x", "padding_mask"),
    )
    yield layer(
        "ZeroPaddedSelfAttention",
        lambda **x: sa.ZeroPaddedSelfAttention(built(**x), before=2, after=3),
        equivariant="n",
    )
    theorem, five = _family(TOKENS, OUT), {"n": 5}
    fixed = _family(TOKENS, f"b n {DIM + 5}", placed=False, sizes=five)
    one_hot = partial(sa.FixedLengthOneHotPositions, 5)
    yield fixed("FixedLengthOneHotPositions", one_hot)
    yield theorem("identity_attention", partial(sa.identity_attention, 13, DIM))
    order = partial(sa.permutation_attention, [3, 0, 4, 1, 2], DIM, sharpness=3.0)
    yield theorem("permutation_attention", order, sizes=five)
    for make, *width in (
        (sa.pointwise_linear_attention,),
        (sa.convolution_attention, 3),
    ):

        def build(make: Any = make, width: Any = width, **factory: Any) -> nn.Module:
            shape = (17, DIM, *width)
            kernel = torch.arange(math.prod(shape), **factory).view(shape).cos()
            return make(kernel, torch.arange(17, **factory).cos(), length=13)

        yield theorem(make.__name__, build, output="b n 17")


def _recurrences() -> Iterator[Entry]:
    # Their loops over the steps are unrolled: a graph is for one length.
    steps = frozenset({"n", "k"})
    states = _inputs(x="b n 11", state="b 13")
    cell = _family(states, "b n 13", fixed=steps, causal=("x", "n"))
    yield cell("RNN", partial(RNN, 11, 13))
    yield cell("GRU", partial(GRU, 11, 13))
    masked = _inputs(x="b n 11", padding_mask="b n")
    padded = ("x", "padding_mask")
    yield cell("GRU padded", partial(GRU, 11, 13), masked, padded=padded)
    for score, width in (("dot", 13), ("bilinear", 11), ("additive", 11)):
        yield Entry(
            f"Alignment {score}",
            partial(Alignment, 13, width, score=score),
            _inputs(query="b n 13", memory=f"b k {width}", mask="b n k"),
            f"b n {width}",
            equivariant="n",
            invariant="k",
        )
    built = partial(Seq2Seq, VOCABULARY, dim=11, hidden_dim=13)
    ids = _ids(source="b k", target_inputs="b n")
    past = ("target_inputs", "n")
    model = _family(ids, f"b n {VOCABULARY}", fixed=steps, causal=past)
    yield model("Seq2Seq None", partial(built, cell="rnn", attention=None))
    yield model("Seq2Seq additive", partial(built, cell="gru", attention="additive"))


def _transformers() -> Iterator[Entry]:
    one = _family(TOKENS, OUT, dropout=True, equivariant="n")
    yield one("LayerNorm", partial(tf.LayerNorm, DIM), dropout=False)
    yield one("RMSNorm", partial(tf.RMSNorm, DIM), dropout=False)
    scale = partial(tf.LayerScale, DIM, initial=0.5)
    yield one("LayerScale", scale, dropout=False)
    drop_path = lambda dropout=0.0: tf.DropPath(dropout)  # noqa: E731
    anything = _inputs(x="b n k")
    yield one("DropPath", drop_path, anything, "b n k", placed=False)
    network = partial(tf.FeedForward, DIM, HIDDEN, activation="gelu")
    yield one("FeedForward", network)
    yield one("SwiGLU", partial(tf.SwiGLU, DIM, HIDDEN, norm="layer"))
    memory = {"x": OUT, "memory": f"b k {DIM}"}
    past = ("x", "n")
    two = _family(_inputs(**memory), OUT, dropout=True, invariant="k", causal=past)
    sizes = (DIM, HEADS, HIDDEN)
    for norm in ("pre", "post"):
        layer = partial(tf.EncoderLayer, *sizes, norm=norm, activation="gelu_tanh")
        yield one(f"EncoderLayer {norm}", layer)
        layer = partial(tf.DecoderLayer, *sizes, norm=norm, bias=False)
        yield two(f"DecoderLayer {norm}", layer)
    encoder, decoder = partial(tf.Encoder, *sizes, 2), partial(tf.Decoder, *sizes, 2)
    yield one("Encoder", encoder)
    rms = {"normalization": "rms", "activation": "swiglu", "hidden_norm": True}
    rms |= {"layer_scale": 0.5, "kv_heads": 1, "qk_norm": "rms", "head_dim": 6}
    yield one("Encoder rms", partial(encoder, **rms))
    masks = {"mask": "n n", "padding_mask": "b n", "bias": f"{HEADS} n n"}
    padded = ("x", "padding_mask")
    masked = _family(_inputs(x=OUT, **masks), OUT, dropout=True, padded=padded)
    yield masked("Encoder masked", encoder)
    causal = _family(TOKENS, OUT, dropout=True, call=_with(causal=True), causal=past)
    yield causal("Encoder causal", partial(encoder, norm="post", final_norm=True))
    yield two("Decoder", decoder)
    masks = {"mask": f"b {HEADS} n n", "padding_mask": "b n"}
    masks |= {"memory_mask": "n k", "memory_padding_mask": "b k"}
    padded = ("memory", "memory_padding_mask")
    yield two("Decoder masked", decoder, _inputs(**memory, **masks), padded=padded)
    options = {"dim": DIM, "heads": HEADS, "hidden_dim": HIDDEN, "depth": 2}
    built = partial(tf.Transformer, VOCABULARY, **options)
    ids, logits = _ids(source="b k", target="b n"), f"b n {VOCABULARY}"
    model = _family(ids, logits, built, dropout=True, causal=("target", "n"))
    yield model("Transformer")
    untied = partial(built, source_vocab_size=19, tied=False, norm="post")
    yield model("Transformer untied", untied)
    built = partial(tf.Bert, VOCABULARY, **options, max_length=13, num_segments=3)
    inputs = _ids(tokens="b n") | _ids(3, segments="b n") | _inputs(padding_mask="b n")
    yield Entry("Bert", built, inputs, OUT, dropout=True)
    built = partial(tf.LanguageModel, VOCABULARY, **options)
    text = _ids(tokens="b n")
    model = _family(text, logits, built, dropout=True, causal=("tokens", "n"))
    yield model("LanguageModel", partial(built, max_length=13))
    padded = {"inputs": text | _inputs(padding_mask="b n")}
    yield model("LanguageModel padded", partial(built, max_length=13), **padded)
    options = {"positions": "rotary", "head_dim": 6, "kv_heads": 1, "tied": False}
    options |= {"normalization": "rms", "activation": "swiglu", "bias": False}
    options |= {"rotary_scaling": {"factor": 4.0, "original_length": 5}}
    yield model("LanguageModel rotary", partial(built, **options))


def _vision() -> Iterator[Entry]:
    images = _inputs(images="b 11 rows 2 columns 3")
    patches = _family(images, "b rows columns 13", call=_images)
    yield patches("PatchEmbedding", partial(PatchEmbedding, (2, 3), 11, 13))
    options = {"num_classes": 17, "dim": DIM, "heads": HEADS, "depth": 2}
    options |= {"hidden_dim": 13, "channels": 11}
    built = partial(VisionTransformer, (10, 21), (2, 3), **options)
    free = _family(images, "b 17", call=_images, dropout=True)
    fixed = partial(free, sizes=FIXED_GRID)
    yield fixed("VisionTransformer", built)
    mean = partial(built, pool="mean")
    yield fixed("VisionTransformer mean, axial", partial(mean, positions="axial"))
    unordered = partial(mean, positions="none")
    yield free("VisionTransformer mean, none", unordered, invariant="rows")
    with_token = partial(mean, class_token=True)
    yield fixed("VisionTransformer mean, class token", with_token)
    pooler = partial(built, pooler="tanh", bias=("output", "feed_forward"))
    yield fixed("VisionTransformer pooler, biases by name", pooler)
    resampled = partial(VisionTransformer, (4, 9), (2, 3), **options)
    yield free("VisionTransformer resampled", resampled)
    modern = {"registers": 3, "positions": "none", "rotary": {"base": 100.0}}
    modern |= {"head_dim": 8, "layer_scale": 0.5, "class_token": True}
    modern |= {"class_position": False, "embedding_norm": True, "pool": "attention"}
    yield free("VisionTransformer of today", partial(built, **modern))
    pooling = partial(AttentionPooling, DIM, HEADS, HIDDEN)
    tokens = _inputs(tokens=OUT)
    yield Entry(
        "AttentionPooling", pooling, tokens, f"b {DIM}", dropout=True, invariant="n"
    )


def _converted(dropout: float = 0.0, **factory: Any) -> ac.PaddedAttention:
    conv = nn.Conv2d(11, 13, 3, padding="same", **factory)
    layer = ac.attention_from_convolution(conv)
    layer.attention.dropout = dropout
    return layer


def _convolutions() -> Iterator[Entry]:
    same, other = "b rows columns 11", "b rows columns 13"
    image = _inputs(x=same)
    layer, wider = _family(image, same), _family(image, other)
    gaussian = partial(ac.GaussianSelfAttention, 11, 17, output_dim=13)
    for kind in ("isotropic", "diagonal", "full"):
        call = _with(return_weights=kind == "diagonal")
        built = partial(gaussian, covariance=kind)
        yield wider(f"GaussianSelfAttention {kind}", built, call=call, dropout=True)
    centers = {"centers": [[0, 1], [-2, 0]], "sharpness": math.inf}
    hard = partial(ac.GaussianSelfAttention, 11, 2, output_dim=13, **centers)
    yield wider("GaussianSelfAttention hard", hard, dropout=True)
    table = partial(ac.RelativeTableAttention, 11, 17, (2, 3), output_dim=13)
    yield wider("RelativeTableAttention", partial(table, dilation=(2, 1)))
    relative = partial(ac.LearnedRelativeSelfAttention, 11, 2, max_size=13)
    for name, content in (("", False), (" with content", True)):
        built = partial(relative, content=content)
        yield layer(f"LearnedRelativeSelfAttention{name}", built, dropout=True)
    learned = partial(ac.AbsolutePositionalEmbedding, (5, 7), 11, kind="learned")
    yield layer("AbsolutePositionalEmbedding learned", learned, sizes=FIXED_GRID)
    between = _family(image, "2 rows columns rows columns", call=_for_grid)
    shifts = partial(ac.RelativePositionalEmbedding, [[0.0, 1.0], [-1.0, 0.5]])
    yield between("RelativePositionalEmbedding", shifts)
    yield layer("BertFFN", partial(ac.BertFFN, 11, 13), dropout=True)
    yield layer(
        "ImageBertLayer",
        lambda dropout=0.0, **factory: ac.ImageBertLayer(
            ac.GaussianSelfAttention(11, 2, dropout=dropout, **factory),
            11,
            13,
            dropout=dropout,
            **factory,
        ),
        dropout=True,
    )
    options = {"channels": 11, "patch_size": 2, "dim": 13, "depth": 2, "heads": 3}
    built = partial(ac.ImageBert, 17, hidden_dim=19, max_size=13, **options)
    images = _inputs(images="b 11 rows 2 columns 2")
    model = _family(images, "b 17", call=_images, dropout=True)
    for encoding in ("gaussian", "learned+content"):
        yield model(f"ImageBert {encoding}", partial(built, encoding=encoding))
    padded = _family(_inputs(x="b 11 rows columns"), "b 13 rows columns")
    yield padded("PaddedAttention", _converted, dropout=True)
    axes = (ac.ConvolutionAxis(2, 1, 1, 1, 0), ac.ConvolutionAxis(3, 1, 1, 1, 1))
    around = partial(ac.PaddedAttention, axes=axes, padding_mode="circular")
    tabulated = lambda **factory: around(table(**factory))  # noqa: E731
    yield padded("PaddedAttention tabulated", tabulated)


CATALOG = [
    *_positions(),
    *_attentions(),
    *_self_attentions(),
    *_recurrences(),
    *_transformers(),
    *_vision(),
    *_convolutions(),
]

# To compile and export takes seconds. The layers and models of chapters 4, 5, 7 and 8
# are traced by the tests of these chapters; the others here, but for parts of the
# models, and for variants that take no path that another does not.
TRACED_ELSEWHERE = {
    "GRU",
    "GaussianSelfAttention",
    "LearnedRelativeSelfAttention",
    "ImageBert",
    "RelativeTableAttention",
    "PaddedAttention",
    "SelfAttention",
    "Seq2Seq",
    "VisionTransformer",
    "ZeroPaddedSelfAttention",
}
SPARED = ("Alignment dot", "FeedForward", "LayerNorm", "RMSNorm", "SwiGLU")
SPARED += ("LearnedPositions concatenated", "Transformer untied")
SPARED += ("MultiHeadAttention", "MultiHeadAttention causal")


def traced() -> list[Entry]:
    """Give what the tests that ask all modules compile and export."""
    return [
        entry
        for entry in CATALOG
        if entry.name not in SPARED
        and not entry.name.startswith(("Decoder", "Encoder"))
        and type(entry.make()).__name__ not in TRACED_ELSEWHERE
    ]


# Their subclasses say what they leave open.
ABSTRACT = {pe.PositionalEncoding}


def public_modules() -> set[type[nn.Module]]:
    """Give every public module class that the book defines."""
    found: set[type[nn.Module]] = set()
    for info in walk_packages(transformers_hw.__path__, "transformers_hw."):
        if info.name.startswith("transformers_hw.lab"):
            continue
        for name, value in vars(import_module(info.name)).items():
            if (
                inspect.isclass(value)
                and issubclass(value, nn.Module)
                and value.__module__ == info.name
                and not name.startswith("_")
            ):
                found.add(value)
    return found - ABSTRACT
