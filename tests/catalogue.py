"""Every module of the book, with inputs to try it on, for the tests that ask all.

The sizes of all axes are distinct primes wherever the module allows it, so that a
module that confuses two axes fails. An input is described by its axes: a name
stands for a size that may vary, a number for one that the module fixes.
"""

import inspect
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from pkgutil import walk_packages
from typing import Any, Literal

import torch
from einops import rearrange
from torch import Tensor, nn

import transformers_hw
from transformers_hw.attention_as_convolution import (
    AbsolutePositionalEmbedding,
    BertFFN,
    ConvolutionAsAttention,
    ConvolutionAxis,
    GaussianSelfAttention,
    LearnedRelativeSelfAttention,
    PictureBert,
    PictureBertLayer,
    RelativePositionalEmbedding,
    RelativeTableAttention,
    attention_from_convolution,
)
from transformers_hw.multi_head_attention import MultiHeadAttention
from transformers_hw.positional_encoding import (
    LearnedPositions,
    LearnedPositions2D,
    OneHotPositions,
    PositionalEncoding,
    RelativePositionBias,
    SinusoidalPositions,
    SinusoidalPositions2D,
)
from transformers_hw.self_attention import (
    FixedLengthOneHotPositions,
    SelfAttention,
    ZeroPaddedSelfAttention,
    convolution_attention,
    identity_attention,
    permutation_attention,
    pointwise_linear_attention,
)
from transformers_hw.seq2seq import GRU, RNN, Alignment, Seq2Seq
from transformers_hw.transformer import (
    Bert,
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    FeedForward,
    LayerNorm,
    Transformer,
)
from transformers_hw.vision_transformer import (
    LearnedAxes2D,
    PatchEmbedding,
    VisionTransformer,
)

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
        causal: The input and axis whose later places earlier outputs ignore.
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

    def floats(self) -> list[str]:
        return [name for name, x in self.inputs.items() if x.kind == "float"]

    def axis(self, axes: str, name: str) -> int | None:
        return axes.split().index(name) if name in axes.split() else None


def tensors(output: object) -> list[Tensor]:
    """Give the tensors of an output, however it is nested."""
    return [x for x in torch.utils._pytree.tree_leaves(output) if isinstance(x, Tensor)]


def _with(**options: Any) -> Callable[..., Any]:
    return partial(_plainly, **options)


def _for_lengths(module: nn.Module, query: Tensor, key: Tensor) -> Tensor:
    return module(query.shape[1], key.shape[1])


def _positions() -> Iterator[Entry]:
    tokens = {"x": Input(f"b n {DIM}")}
    joined = f"b n {DIM}"
    yield Entry(
        "OneHotPositions",
        partial(OneHotPositions, 13),
        tokens,
        f"b n {DIM + 13}",
        placed=False,
    )
    yield Entry(
        "SinusoidalPositions",
        partial(SinusoidalPositions, DIM),
        tokens,
        joined,
        placed=False,
    )
    yield Entry("LearnedPositions", partial(LearnedPositions, 13, DIM), tokens, joined)
    yield Entry(
        "LearnedPositions concatenated",
        partial(LearnedPositions, 13, 11, combine="concatenate"),
        tokens,
        f"b n {DIM + 11}",
    )
    grid = {"x": Input("b rows columns 8")}
    yield Entry(
        "SinusoidalPositions2D",
        partial(SinusoidalPositions2D, 8),
        grid,
        "b rows columns 8",
        placed=False,
    )
    yield Entry(
        "LearnedPositions2D",
        partial(LearnedPositions2D, (5, 7), 8),
        grid,
        "b rows columns 8",
        sizes={"rows": 5, "columns": 7},
    )
    yield Entry(
        "LearnedPositions2D resampled",
        partial(LearnedPositions2D, (2, 3), 8),
        grid,
        "b rows columns 8",
    )
    yield Entry(
        "RelativePositionBias",
        partial(RelativePositionBias, HEADS, 3),
        {"query": Input("b n 11"), "key": Input("b k 11")},
        f"{HEADS} n k",
        call=_for_lengths,
    )


def _attentions() -> Iterator[Entry]:
    built = partial(MultiHeadAttention, DIM, HEADS)
    own = {"query": Input(f"b n {DIM}")}
    output = f"b n {DIM}"
    yield Entry("MultiHeadAttention", built, own, output, dropout=True, equivariant="n")
    yield Entry(
        "MultiHeadAttention causal",
        built,
        own,
        output,
        call=_with(causal=True),
        dropout=True,
        causal=("query", "n"),
    )
    yield Entry(
        "MultiHeadAttention causal, weights",
        built,
        own,
        output,
        call=_with(causal=True, return_weights=True),
        dropout=True,
        causal=("query", "n"),
    )
    yield Entry(
        "MultiHeadAttention hard",
        partial(built, scale=math.inf),
        own,
        output,
        equivariant="n",
    )
    yield Entry(
        "MultiHeadAttention cross",
        partial(
            MultiHeadAttention,
            11,
            HEADS,
            context_dim=13,
            values_dim=17,
            head_dim=19,
            value_head_dim=23,
            output_dim=29,
        ),
        {
            "query": Input("b n 11"),
            "context": Input("b k 13"),
            "values": Input("b k 17"),
        },
        "b n 29",
        call=_with(return_weights=True),
        dropout=True,
        equivariant="n",
        invariant="k",
    )
    yield Entry(
        "MultiHeadAttention masked",
        partial(built, bias=("query", "value"), context_dim=13),
        {
            "query": Input(f"b n {DIM}"),
            "context": Input("b k 13"),
            "mask": Input(f"b {HEADS} n k", "mask"),
            "padding_mask": Input("b k", "mask"),
            "bias": Input(f"{HEADS} n k"),
        },
        output,
        dropout=True,
        equivariant="n",
        invariant="k",
        padded=("context", "padding_mask"),
    )


def _transformers() -> Iterator[Entry]:
    tokens = {"x": Input(f"b n {DIM}")}
    output = f"b n {DIM}"
    yield Entry("LayerNorm", partial(LayerNorm, DIM), tokens, output, equivariant="n")
    yield Entry(
        "FeedForward",
        partial(FeedForward, DIM, HIDDEN, activation="gelu"),
        tokens,
        output,
        dropout=True,
        equivariant="n",
    )
    masked = {
        **tokens,
        "mask": Input("n n", "mask"),
        "padding_mask": Input("b n", "mask"),
        "bias": Input(f"{HEADS} n n"),
    }
    for norm in ("pre", "post"):
        layer = partial(
            EncoderLayer, DIM, HEADS, HIDDEN, norm=norm, activation="gelu_tanh"
        )
        yield Entry(
            f"EncoderLayer {norm}",
            layer,
            tokens,
            output,
            dropout=True,
            equivariant="n",
        )
        decoder = partial(DecoderLayer, DIM, HEADS, HIDDEN, norm=norm, bias=False)
        both = {**tokens, "memory": Input(f"b k {DIM}")}
        yield Entry(
            f"DecoderLayer {norm}",
            decoder,
            both,
            output,
            dropout=True,
            invariant="k",
            causal=("x", "n"),
        )
    stack = partial(Encoder, DIM, HEADS, HIDDEN, 2)
    yield Entry("Encoder", stack, tokens, output, dropout=True, equivariant="n")
    yield Entry(
        "Encoder masked",
        stack,
        masked,
        output,
        dropout=True,
        padded=("x", "padding_mask"),
    )
    yield Entry(
        "Encoder causal",
        partial(stack, norm="post", final_norm=True),
        tokens,
        output,
        call=_with(causal=True),
        dropout=True,
        causal=("x", "n"),
    )
    stack = partial(Decoder, DIM, HEADS, HIDDEN, 2)
    yield Entry(
        "Decoder", stack, both, output, dropout=True, invariant="k", causal=("x", "n")
    )
    yield Entry(
        "Decoder masked",
        stack,
        {
            **both,
            "mask": Input(f"b {HEADS} n n", "mask"),
            "padding_mask": Input("b n", "mask"),
            "memory_mask": Input("n k", "mask"),
            "memory_padding_mask": Input("b k", "mask"),
        },
        output,
        dropout=True,
        invariant="k",
        causal=("x", "n"),
        padded=("memory", "memory_padding_mask"),
    )
    sizes = {"dim": DIM, "heads": HEADS, "hidden_dim": HIDDEN, "depth": 2}
    ids = {
        "source": Input("b k", "ids", VOCABULARY),
        "target": Input("b n", "ids", VOCABULARY),
    }
    translated = Entry(
        "Transformer",
        partial(Transformer, VOCABULARY, **sizes),
        ids,
        f"b n {VOCABULARY}",
        dropout=True,
        causal=("target", "n"),
    )
    yield translated
    yield replace(
        translated,
        name="Transformer untied",
        build=partial(
            Transformer,
            VOCABULARY,
            **sizes,
            source_vocabulary=19,
            tied=False,
            norm="post",
        ),
    )
    yield Entry(
        "Bert",
        partial(Bert, VOCABULARY, **sizes, length=13, segments=3),
        {
            "tokens": Input("b n", "ids", VOCABULARY),
            "segments": Input("b n", "ids", 3),
            "padding_mask": Input("b n", "mask"),
        },
        output,
        dropout=True,
    )


def _self_attentions() -> Iterator[Entry]:
    tokens = {"x": Input(f"b n {DIM}")}
    output = f"b n {DIM}"
    built = partial(SelfAttention, DIM, HEADS)
    yield Entry("SelfAttention", built, tokens, output, dropout=True, equivariant="n")
    yield Entry(
        "SelfAttention with positions",
        lambda **options: built(positions=OneHotPositions(13), **options),
        {**tokens, "padding_mask": Input("b n", "mask")},
        output,
        call=_with(causal=True, return_weights=True),
        dropout=True,
        causal=("x", "n"),
        padded=("x", "padding_mask"),
    )
    yield Entry(
        "FixedLengthOneHotPositions",
        partial(FixedLengthOneHotPositions, 5),
        tokens,
        f"b n {DIM + 5}",
        placed=False,
        sizes={"n": 5},
    )
    yield Entry(
        "ZeroPaddedSelfAttention",
        lambda **options: ZeroPaddedSelfAttention(built(**options), before=2, after=3),
        tokens,
        output,
        dropout=True,
        equivariant="n",
    )
    yield Entry(
        "identity_attention", partial(identity_attention, 13, DIM), tokens, output
    )
    yield Entry(
        "permutation_attention",
        partial(permutation_attention, [3, 0, 4, 1, 2], DIM, sharpness=3.0),
        tokens,
        output,
        sizes={"n": 5},
    )

    def kernel(shape: tuple[int, ...], place: dict[str, Any]) -> Tensor:
        return torch.arange(math.prod(shape), **place).view(shape).cos()

    yield Entry(
        "pointwise_linear_attention",
        lambda **place: pointwise_linear_attention(
            kernel((17, DIM), place), kernel((17,), place), length=13
        ),
        tokens,
        "b n 17",
    )
    yield Entry(
        "convolution_attention",
        lambda **place: convolution_attention(
            kernel((17, DIM, 3), place), kernel((17,), place), length=13
        ),
        tokens,
        "b n 17",
    )


def _recurrences() -> Iterator[Entry]:
    # Their loops over the steps are unrolled: a graph is for one length.
    steps = frozenset({"n", "k"})
    for kind in (RNN, GRU):
        yield Entry(
            kind.__name__,
            partial(kind, 11, 13),
            {"x": Input("b n 11"), "state": Input("b 13")},
            "b n 13",
            fixed=steps,
            causal=("x", "n"),
        )
    yield Entry(
        "GRU padded",
        partial(GRU, 11, 13),
        {"x": Input("b n 11"), "padding_mask": Input("b n", "mask")},
        "b n 13",
        fixed=steps,
        causal=("x", "n"),
        padded=("x", "padding_mask"),
    )
    for score in ("dot", "bilinear", "additive"):
        width = 13 if score == "dot" else 11
        yield Entry(
            f"Alignment {score}",
            partial(Alignment, 13, width, score=score),
            {
                "query": Input("b n 13"),
                "memory": Input(f"b k {width}"),
                "mask": Input("b n k", "mask"),
            },
            f"b n {width}",
            equivariant="n",
            invariant="k",
        )
    for attention in (None, "additive"):
        yield Entry(
            f"Seq2Seq {attention}",
            partial(
                Seq2Seq,
                VOCABULARY,
                dim=11,
                hidden_dim=13,
                cell="rnn" if attention is None else "gru",
                attention=attention,
            ),
            {
                "source": Input("b k", "ids", VOCABULARY),
                "target_inputs": Input("b n", "ids", VOCABULARY),
            },
            f"b n {VOCABULARY}",
            fixed=steps,
            causal=("target_inputs", "n"),
        )


def _pictures(module: nn.Module, pictures: Tensor) -> Tensor:
    """Call with pictures given patch by patch: rows of 2 pixels, columns of 3."""
    pixels = rearrange(pictures, "b c rows i columns j -> b c (rows i) (columns j)")
    return module(pixels)


def _vision() -> Iterator[Entry]:
    pictures = {"pictures": Input("b 11 rows 2 columns 3")}
    yield Entry(
        "PatchEmbedding",
        partial(PatchEmbedding, (2, 3), 11, 13),
        pictures,
        "b rows columns 13",
        call=_pictures,
    )
    yield Entry(
        "LearnedAxes2D",
        partial(LearnedAxes2D, (2, 3), 8),
        {"x": Input("b rows columns 8")},
        "b rows columns 8",
    )
    sizes = {"classes": 17, "dim": DIM, "heads": HEADS, "hidden_dim": 13, "depth": 2}
    built = partial(VisionTransformer, (10, 21), (2, 3), channels=11, **sizes)
    yield Entry(
        "VisionTransformer",
        built,
        pictures,
        "b 17",
        call=_pictures,
        dropout=True,
        sizes={"rows": 5, "columns": 7},
    )
    for positions in ("learned_axes", "none"):
        yield Entry(
            f"VisionTransformer mean, {positions}",
            partial(built, pool="mean", positions=positions),
            pictures,
            "b 17",
            call=_pictures,
            dropout=True,
            sizes={} if positions == "none" else {"rows": 5, "columns": 7},
            invariant="rows" if positions == "none" else None,
        )
    yield Entry(
        "VisionTransformer mean, class token",
        partial(built, pool="mean", class_token=True),
        pictures,
        "b 17",
        call=_pictures,
        dropout=True,
        sizes={"rows": 5, "columns": 7},
    )
    yield Entry(
        "VisionTransformer resampled",
        partial(VisionTransformer, (4, 9), (2, 3), channels=11, **sizes),
        pictures,
        "b 17",
        call=_pictures,
        dropout=True,
    )


def _for_grid(module: nn.Module, x: Tensor) -> Tensor:
    return module(x.shape[1], x.shape[2])


def _convolutions() -> Iterator[Entry]:
    picture = {"x": Input("b rows columns 11")}
    output = "b rows columns 13"
    for covariance in ("isotropic", "diagonal", "full"):
        yield Entry(
            f"GaussianSelfAttention {covariance}",
            partial(
                GaussianSelfAttention, 11, 17, output_dim=13, covariance=covariance
            ),
            picture,
            output,
            call=_with(return_weights=covariance == "diagonal"),
        )
    yield Entry(
        "GaussianSelfAttention hard",
        partial(
            GaussianSelfAttention,
            11,
            2,
            output_dim=13,
            centers=[[0, 1], [-2, 0]],
            sharpness=math.inf,
        ),
        picture,
        output,
    )
    yield Entry(
        "RelativeTableAttention",
        partial(RelativeTableAttention, 11, 17, (2, 3), dilation=(2, 1), output_dim=13),
        picture,
        output,
    )
    for content in (False, True):
        yield Entry(
            "LearnedRelativeSelfAttention" + " with content" * content,
            partial(LearnedRelativeSelfAttention, 11, 2, longest=13, content=content),
            picture,
            "b rows columns 11",
        )
    yield Entry(
        "AbsolutePositionalEmbedding learned",
        partial(AbsolutePositionalEmbedding, (5, 7), 11, kind="learned"),
        picture,
        "b rows columns 11",
        sizes={"rows": 5, "columns": 7},
    )
    yield Entry(
        "RelativePositionalEmbedding",
        partial(RelativePositionalEmbedding, [[0.0, 1.0], [-1.0, 0.5]]),
        picture,
        "2 rows columns rows columns",
        call=_for_grid,
    )
    yield Entry(
        "BertFFN", partial(BertFFN, 11, 13), picture, "b rows columns 11", dropout=True
    )
    yield Entry(
        "PictureBertLayer",
        lambda dropout=0.0, **place: PictureBertLayer(
            GaussianSelfAttention(11, 2, **place), 11, 13, dropout=dropout, **place
        ),
        picture,
        "b rows columns 11",
        dropout=True,
    )
    for encoding in ("gaussian", "learned+content"):
        yield Entry(
            f"PictureBert {encoding}",
            partial(
                PictureBert,
                17,
                encoding=encoding,
                channels=11,
                patch=2,
                dim=13,
                depth=2,
                heads=3,
                hidden_dim=19,
                longest=13,
            ),
            {"pictures": Input("b 11 rows 2 columns 2")},
            "b 17",
            call=_pictures,
            dropout=True,
        )
    yield Entry(
        "ConvolutionAsAttention",
        lambda **place: attention_from_convolution(
            nn.Conv2d(11, 13, 3, padding="same", **place)
        ),
        {"x": Input("b 11 rows columns")},
        "b 13 rows columns",
    )
    yield Entry(
        "ConvolutionAsAttention tabulated",
        lambda **place: ConvolutionAsAttention(
            RelativeTableAttention(11, 17, (2, 3), output_dim=13, **place),
            axes=(ConvolutionAxis(2, 1, 1, 1, 0), ConvolutionAxis(3, 1, 1, 1, 1)),
            padding_mode="circular",
        ),
        {"x": Input("b 11 rows columns")},
        "b 13 rows columns",
    )


CATALOGUE = [
    *_positions(),
    *_attentions(),
    *_self_attentions(),
    *_recurrences(),
    *_transformers(),
    *_vision(),
    *_convolutions(),
]

# To compile and export takes seconds. The layers and models of chapters 4, 5, 7 and 8
# are traced by the tests of these chapters; the others here, but for variants that
# take no path that another does not.
TRACED_ELSEWHERE = {
    "GRU",
    "GaussianSelfAttention",
    "LearnedRelativeSelfAttention",
    "PictureBert",
    "RelativeTableAttention",
    "ConvolutionAsAttention",
    "SelfAttention",
    "Seq2Seq",
    "VisionTransformer",
    "ZeroPaddedSelfAttention",
}
SPARED = {
    "Alignment dot",
    "Decoder",
    "DecoderLayer post",
    "Encoder",
    "Encoder causal",
    "EncoderLayer post",
    "LearnedPositions concatenated",
    "MultiHeadAttention",
    "MultiHeadAttention causal",
    "Transformer untied",
}


def traced() -> list[Entry]:
    """Give what the tests that ask all modules compile and export."""
    return [
        entry
        for entry in CATALOGUE
        if entry.name not in SPARED
        and type(entry.make()).__name__ not in TRACED_ELSEWHERE
    ]


# Their subclasses say what they leave open.
ABSTRACT = {PositionalEncoding}


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
