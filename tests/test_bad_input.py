"""Malformed calls: each is refused, saying what was wanted and what came.

They run without the type-checking import hook, as for whoever installs the package.
Under the hook they are refused as well, mostly by the hook itself.
"""

import importlib
import math
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, zeros

CHAPTERS = (
    "attention",
    "positional_encoding",
    "multi_head_attention",
    "self_attention",
    "seq2seq",
    "transformer",
    "vision_transformer",
    "attention_as_convolution",
    "probes",
    "pretrained",
)
# As one object of unknown type: the calls below are not meant to pass type checkers.
book: Any = SimpleNamespace()
for chapter in CHAPTERS:
    vars(book).update(vars(importlib.import_module(f"transformers_hw.{chapter}")))


def ints(*shape: int) -> Tensor:
    return torch.ones(shape, dtype=torch.int64)


ids = ints


def true(*shape: int) -> Tensor:
    return torch.ones(shape, dtype=torch.bool)


def qkv() -> tuple[Tensor, Tensor, Tensor]:
    return zeros(2, 3, 5, 11), zeros(2, 3, 7, 11), zeros(2, 3, 7, 13)


def mha() -> Any:
    return book.MultiHeadAttention(12, 3)


def cache(batch: int) -> Any:
    """Give a cache that holds seven tokens."""
    filled = book.KeyValueCache()
    filled.append(zeros(batch, 3, 7, 4), zeros(batch, 3, 7, 4))
    return filled


def transformer(**options: Any) -> Any:
    sizes = {"dim": 12, "heads": 3, "hidden_dim": 7, "depth": 1}
    return book.Transformer(17, **{**sizes, **options})


def bert(**options: Any) -> Any:
    sizes = {"dim": 12, "depth": 1, "heads": 3, "length": 5}
    return book.Bert(17, **{**sizes, **options})


def vit(**options: Any) -> Any:
    sizes = {"classes": 7, "dim": 12, "depth": 1, "heads": 3}
    pictures = {"picture": (8, 12), "patch": 4}
    return book.VisionTransformer(**{**pictures, **sizes, **options})


# What is wrong; the call; how it is refused; what was wanted, and what came, with an
# ellipsis for what is left out.
Row = tuple[str, Callable[[], object], type[Exception], str]
TABLE: list[Row] = [
    (
        "softargmax of integers",
        lambda: book.softargmax(ints(3)),
        TypeError,
        "scores must be a floating-point tensor, got torch.int64",
    ),
    (
        "softargmax of a list",
        lambda: book.softargmax([1.0, 2.0]),
        TypeError,
        "scores must be a floating-point tensor, got list",
    ),
    (
        "softargmax of a number",
        lambda: book.softargmax(torch.tensor(1.0)),
        ValueError,
        "scores must be (..., k), got shape ()",
    ),
    (
        "softargmax with NaN for beta",
        lambda: book.softargmax(zeros(3), math.nan),
        ValueError,
        "beta must be zero or greater, got nan",
    ),
    (
        "softargmax with negative beta",
        lambda: book.softargmax(zeros(3), -1.0),
        ValueError,
        "beta must be zero or greater, got -1.0",
    ),
    (
        "softargmax with a tensor for beta",
        lambda: book.softargmax(zeros(3), torch.tensor(1.0)),
        TypeError,
        "beta must be a number (math.inf selects the maximum), got Tensor",
    ),
    (
        "softargmax with an integer mask",
        lambda: book.softargmax(zeros(3), mask=ints(3)),
        TypeError,
        "mask must be a boolean tensor (True = may see … got torch.int64",
    ),
    (
        "softargmax with a mask of 0.0 and 1.0",
        lambda: book.softargmax(zeros(3), mask=torch.ones(3)),
        TypeError,
        "mask must be a boolean tensor (True = may see … got torch.float32",
    ),
    (
        "softargmax with a mask too long",
        lambda: book.softargmax(zeros(2, 3), mask=true(4)),
        ValueError,
        "mask must … broadcast to the scores' shape (2, 3), got (4,)",
    ),
    (
        "softargmax with a boolean bias",
        lambda: book.softargmax(zeros(3), bias=true(3)),
        TypeError,
        "bias must be a floating-point tensor, got torch.bool",
    ),
    (
        "softargmax with a bias too wide",
        lambda: book.softargmax(zeros(3), bias=zeros(2, 3)),
        ValueError,
        "bias must … broadcast to the scores' shape (3,), got (2, 3)",
    ),
    (
        "attention_weights with two widths",
        lambda: book.attention_weights(zeros(3, 5), zeros(7, 11)),
        ValueError,
        "must agree in all but their lengths, got (3, 5) and (7, 11)",
    ),
    (
        "attention_weights with NaN scale",
        lambda: book.attention_weights(zeros(3, 5), zeros(7, 5), scale=math.nan),
        ValueError,
        "scale must be zero or greater, got nan",
    ),
    (
        "attention with a byte mask",
        lambda: book.attention(*qkv(), mask=torch.ones(5, 7, dtype=torch.uint8)),
        TypeError,
        "mask must be a boolean tensor (True = may see … got torch.uint8",
    ),
    (
        "attention with a list for a mask",
        lambda: book.attention(*qkv(), mask=[[True]]),
        TypeError,
        "mask must be a boolean tensor (True = may see … got list",
    ),
    (
        "attention with a mask of 0.0 and 1.0",
        lambda: book.attention(*qkv(), mask=torch.ones(5, 7)),
        TypeError,
        "mask must be a boolean tensor (True = may see … got torch.float32",
    ),
    (
        "attention with a transposed mask",
        lambda: book.attention(*qkv(), mask=true(7, 5)),
        ValueError,
        "mask must … broadcast to the scores' shape (2, 3, 5, 7), got (7, 5)",
    ),
    (
        "attention with an integer bias",
        lambda: book.attention(*qkv(), bias=ints(5, 7)),
        TypeError,
        "bias must be a floating-point tensor, got torch.int64",
    ),
    (
        "attention with a bias for other heads",
        lambda: book.attention(*qkv(), bias=zeros(11, 5, 7)),
        ValueError,
        "bias must … broadcast to the scores' shape (2, 3, 5, 7), got (11, 5, 7)",
    ),
    (
        "attention with integer queries",
        lambda: book.attention(ints(5, 11), zeros(7, 11), zeros(7, 13)),
        TypeError,
        "query must be a floating-point tensor, got torch.int64",
    ),
    (
        "attention with None for a key",
        lambda: book.attention(zeros(5, 11), None, zeros(7, 13)),
        TypeError,
        "key must be a floating-point tensor, got NoneType",
    ),
    (
        "attention with a vector for a query",
        lambda: book.attention(zeros(11), zeros(7, 11), zeros(7, 13)),
        ValueError,
        "query must be (..., q, d), got shape (11,)",
    ),
    (
        "attention with two batches",
        lambda: book.attention(zeros(2, 5, 11), zeros(3, 7, 11), zeros(3, 7, 13)),
        ValueError,
        "must agree in all but their lengths, got (2, 5, 11) and (3, 7, 11)",
    ),
    (
        "attention with fewer values than keys",
        lambda: book.attention(zeros(5, 11), zeros(7, 11), zeros(6, 13)),
        ValueError,
        "must agree in all but their widths, got (7, 11) and (6, 13)",
    ),
    (
        "attention with two types",
        lambda: book.attention(zeros(5, 11).half(), zeros(7, 11), zeros(7, 13)),
        TypeError,
        "query and key must have one dtype, got torch.float16 and torch.float32",
    ),
    (
        "attention with values of another type",
        lambda: book.attention(zeros(5, 11), zeros(7, 11), zeros(7, 13).double()),
        TypeError,
        "key and value must have one dtype, got torch.float32 and torch.float64",
    ),
    (
        "attention with no width",
        lambda: book.attention(zeros(5, 0), zeros(7, 0), zeros(7, 13)),
        ValueError,
        "query must have a width, got shape (5, 0)",
    ),
    (
        "attention with a negative scale",
        lambda: book.attention(*qkv(), scale=-0.5),
        ValueError,
        "scale must be zero or greater, got -0.5",
    ),
    (
        "attention with NaN scale",
        lambda: book.attention(*qkv(), scale=math.nan),
        ValueError,
        "scale must be zero or greater, got nan",
    ),
    (
        "attention with a word for a scale",
        lambda: book.attention(*qkv(), scale="hard"),
        TypeError,
        "scale must be a number (math.inf selects the maximum), got str",
    ),
    (
        "attention with dropout 1",
        lambda: book.attention(*qkv(), dropout=1.0),
        ValueError,
        "dropout must be in [0, 1), got 1.0",
    ),
    (
        "attention with negative dropout",
        lambda: book.attention(*qkv(), dropout=-0.1),
        ValueError,
        "dropout must be in [0, 1), got -0.1",
    ),
    (
        "attention with NaN dropout",
        lambda: book.attention(*qkv(), dropout=math.nan),
        ValueError,
        "dropout must be in [0, 1), got nan",
    ),
    (
        "causal_mask of a negative length",
        lambda: book.causal_mask(-1),
        ValueError,
        "queries must be a whole number from 0 on, got -1",
    ),
    (
        "causal_mask of negative keys",
        lambda: book.causal_mask(3, -2),
        ValueError,
        "keys must be a whole number from 0 on, got -2",
    ),
    (
        "causal_mask of half a query",
        lambda: book.causal_mask(2.5),
        ValueError,
        "queries must be a whole number from 0 on, got 2.5",
    ),
    (
        "padding_mask of floats",
        lambda: book.padding_mask(torch.tensor([1.0, 2.0])),
        TypeError,
        "lengths must be a tensor of integers, got torch.float32",
    ),
    (
        "padding_mask of a list",
        lambda: book.padding_mask([1, 2]),
        TypeError,
        "lengths must be a tensor of integers, got list",
    ),
    (
        "padding_mask past the common length",
        lambda: book.padding_mask(torch.tensor([3, 8]), 5),
        ValueError,
        "lengths must be between 0 and the common length 5, got [3, 8]",
    ),
    (
        "padding_mask of a negative length",
        lambda: book.padding_mask(torch.tensor([3, -2])),
        ValueError,
        "lengths must be between 0 and the common length 3, got [3, -2]",
    ),
    (
        "positions without width",
        lambda: book.SinusoidalPositions(0),
        ValueError,
        "dim must be a whole number from 1 on, got 0",
    ),
    (
        "positions of odd width",
        lambda: book.SinusoidalPositions(7),
        ValueError,
        "dim must be even (sines and cosines), got 7",
    ),
    (
        "positions of base 0",
        lambda: book.SinusoidalPositions(6, base=0.0),
        ValueError,
        "base must be positive and finite, got 0.0",
    ),
    (
        "positions joined otherwise",
        lambda: book.SinusoidalPositions(6, combine="multiply"),
        ValueError,
        "combine must be one of ('add', 'concatenate'), got 'multiply'",
    ),
    (
        "positions of another width than the tokens",
        lambda: book.SinusoidalPositions(6)(zeros(5, 11)),
        ValueError,
        "tokens must be as wide … codes of width 6, got tokens of shape (5, 11)",
    ),
    (
        "positions of integers",
        lambda: book.SinusoidalPositions(6)(ints(5, 6)),
        TypeError,
        "x must be a floating-point tensor, got torch.int64",
    ),
    (
        "positions of a vector",
        lambda: book.SinusoidalPositions(6)(zeros(6)),
        ValueError,
        "x must be (..., n, d), got shape (6,)",
    ),
    (
        "positions before the first",
        lambda: book.SinusoidalPositions(6)(zeros(5, 6), start=-1),
        ValueError,
        "start must be a whole number from 0 on, got -1",
    ),
    (
        "one-hot positions past the last",
        lambda: book.OneHotPositions(5)(zeros(6, 3)),
        ValueError,
        "there are codes for 5 positions, but positions up to 6 were asked for",
    ),
    (
        "one-hot positions past the last, in pieces",
        lambda: book.OneHotPositions(5)(zeros(3, 3), start=3),
        ValueError,
        "there are codes for 5 positions, but positions up to 6 were asked for",
    ),
    (
        "one-hot positions of a negative length",
        lambda: book.OneHotPositions(-5),
        ValueError,
        "dim must be a whole number from 1 on, got -5",
    ),
    (
        "learned positions past the table",
        lambda: book.LearnedPositions(5, 3)(zeros(2, 6, 3)),
        ValueError,
        "there are codes for 5 positions, but positions up to 6 were asked for",
    ),
    (
        "learned positions without a table",
        lambda: book.LearnedPositions(0, 3),
        ValueError,
        "length must be a whole number from 1 on, got 0",
    ),
    (
        "learned positions of another width",
        lambda: book.LearnedPositions(5, 3)(zeros(2, 5, 7)),
        ValueError,
        "tokens must be as wide … codes of width 3, got tokens of shape (2, 5, 7)",
    ),
    (
        "codes of a negative length",
        lambda: book.LearnedPositions(5, 3).codes(-1),
        ValueError,
        "length must be a whole number from 0 on, got -1",
    ),
    (
        "an encoding that defines no codes",
        lambda: book.PositionalEncoding(6)(zeros(5, 6)),
        TypeError,
        "PositionalEncoding must define codes… asked for 5 positions from 0",
    ),
    (
        "2-D positions of width 6",
        lambda: book.SinusoidalPositions2D(6),
        ValueError,
        "dim must be a positive multiple of 4, got 6",
    ),
    (
        "2-D positions of a sequence",
        lambda: book.SinusoidalPositions2D(8)(zeros(5, 8)),
        ValueError,
        "x must be (..., rows, columns, d), got shape (5, 8)",
    ),
    (
        "2-D positions of another width",
        lambda: book.SinusoidalPositions2D(8)(zeros(2, 3, 5)),
        ValueError,
        "tokens must be as wide … codes of width 8, got tokens of shape (2, 3, 5)",
    ),
    (
        "a grid of three axes",
        lambda: book.LearnedPositions2D((2, 3, 5), 7),
        ValueError,
        "grid must be (rows, columns), got (2, 3, 5)",
    ),
    (
        "codes of a grid of one number",
        lambda: book.LearnedPositions2D((2, 3), 7).codes(3),
        ValueError,
        "grid must be (rows, columns), got 3",
    ),
    (
        "a grid without rows",
        lambda: book.LearnedPositions2D((0, 3), 7),
        ValueError,
        "rows must be a whole number from 1 on, got 0",
    ),
    (
        "a grid that is one number",
        lambda: book.LearnedPositions2D(3, 7),
        ValueError,
        "grid must be (rows, columns), got 3",
    ),
    (
        "codes of a grid without columns",
        lambda: book.LearnedPositions2D((2, 3), 7).codes((3, 0)),
        ValueError,
        "columns must be a whole number from 1 on, got 0",
    ),
    (
        "relative positions without heads",
        lambda: book.RelativePositionBias(0, 3),
        ValueError,
        "heads must be a whole number from 1 on, got 0",
    ),
    (
        "relative positions of no distance",
        lambda: book.RelativePositionBias(3, 0),
        ValueError,
        "max_distance must be a whole number from 1 on, got 0",
    ),
    (
        "relative positions of a negative length",
        lambda: book.RelativePositionBias(3, 5)(-2),
        ValueError,
        "queries must be a whole number from 0 on, got -2",
    ),
    (
        "heads that do not divide",
        lambda: book.MultiHeadAttention(13, 3),
        ValueError,
        "dim must be divisible by heads, got dim 13 and 3 heads",
    ),
    (
        "no heads",
        lambda: book.MultiHeadAttention(12, 0),
        ValueError,
        "heads must be a whole number from 1 on, got 0",
    ),
    (
        "a negative width",
        lambda: book.MultiHeadAttention(-12, 3),
        ValueError,
        "dim must be a whole number from 1 on, got -12",
    ),
    (
        "half a head",
        lambda: book.MultiHeadAttention(12, 1.5),
        ValueError,
        "heads must be a whole number from 1 on, got 1.5",
    ),
    (
        "dropout 1 in a layer",
        lambda: book.MultiHeadAttention(12, 3, dropout=1.0),
        ValueError,
        "dropout must be in [0, 1), got 1.0",
    ),
    (
        "NaN scale in a layer",
        lambda: book.MultiHeadAttention(12, 3, scale=math.nan),
        ValueError,
        "scale must be zero or greater, got nan",
    ),
    (
        "a boolean scale in a layer",
        lambda: book.MultiHeadAttention(12, 3, scale=True),
        TypeError,
        "scale must be a number (math.inf selects the maximum), got bool",
    ),
    (
        "a bias of no projection",
        lambda: book.MultiHeadAttention(12, 3, bias=("query", "queries")),
        ValueError,
        "bias must be True, False or names among … got ('query', 'queries')",
    ),
    (
        "a bias that is a word",
        lambda: book.MultiHeadAttention(12, 3, bias="query"),
        ValueError,
        "bias must be True, False or names among ('query', 'key', … got 'query'",
    ),
    (
        "values without a width",
        lambda: book.MultiHeadAttention(12, 3, value_head_dim=0),
        ValueError,
        "value_head_dim must be a whole number from 1 on, got 0",
    ),
    (
        "a query of another width",
        lambda: mha()(zeros(2, 5, 11)),
        ValueError,
        "query must be (batch, length, 12), got shape (2, 5, 11)",
    ),
    (
        "a query without a batch",
        lambda: mha()(zeros(5, 12)),
        ValueError,
        "query must be (batch, length, 12), got shape (5, 12)",
    ),
    (
        "a query of integers",
        lambda: mha()(ints(2, 5, 12)),
        TypeError,
        "query must be a floating-point tensor, got torch.int64",
    ),
    (
        "a context of another width",
        lambda: mha()(zeros(2, 5, 12), zeros(2, 7, 11)),
        ValueError,
        "context must be (batch, length, 12), got shape (2, 7, 11)",
    ),
    (
        "a context of another batch",
        lambda: mha()(zeros(2, 5, 12), zeros(3, 7, 12)),
        ValueError,
        "query, context and values must have one batch size, got 2, 3 and 3",
    ),
    (
        "values of another length",
        lambda: mha()(zeros(2, 5, 12), zeros(2, 7, 12), zeros(2, 6, 12)),
        ValueError,
        "context and values must have one length, got 7 and 6",
    ),
    (
        "a mask of three axes",
        lambda: mha()(zeros(2, 5, 12), mask=true(2, 5, 5)),
        ValueError,
        "mask must be (q, k) … (5, 5) or (2, 3, 5, 5), got shape (2, 5, 5)",
    ),
    (
        "an integer mask in a layer",
        lambda: mha()(zeros(2, 5, 12), mask=ints(5, 5)),
        TypeError,
        "mask must be a boolean tensor (True = may see … got torch.int64",
    ),
    (
        "a list for a mask in a layer",
        lambda: mha()(zeros(2, 5, 12), mask=[[True]]),
        TypeError,
        "mask must be a boolean tensor (True = may see … got list",
    ),
    (
        "a mask for other keys",
        lambda: mha()(zeros(2, 5, 12), zeros(2, 7, 12), mask=true(5, 5)),
        ValueError,
        "mask must be (q, k) … (5, 7) or (2, 3, 5, 7), got shape (5, 5)",
    ),
    (
        "a float padding mask",
        lambda: mha()(zeros(2, 5, 12), padding_mask=torch.ones(2, 5)),
        TypeError,
        "padding_mask must be a boolean tensor (True = a real … got torch.float32",
    ),
    (
        "a list for a padding mask",
        lambda: mha()(zeros(2, 5, 12), padding_mask=[[True]]),
        TypeError,
        "padding_mask must be a boolean tensor (True = a real token), got list",
    ),
    (
        "a padding mask of another batch",
        lambda: mha()(zeros(2, 5, 12), padding_mask=true(3, 5)),
        ValueError,
        "padding_mask must be (2, 5), got shape (3, 5)",
    ),
    (
        "a padding mask that is too short",
        lambda: mha()(zeros(2, 5, 12), padding_mask=true(2, 4)),
        ValueError,
        "padding_mask must be (2, 5), got shape (2, 4)",
    ),
    (
        "a padding mask that is too long",
        lambda: mha()(zeros(2, 5, 12), padding_mask=true(2, 6)),
        ValueError,
        "padding_mask must be (2, 5), got shape (2, 6)",
    ),
    (
        "a padding mask of four axes",
        lambda: mha()(zeros(2, 5, 12), padding_mask=true(2, 1, 1, 5)),
        ValueError,
        "padding_mask must be (2, 5), got shape (2, 1, 1, 5)",
    ),
    (
        "a cache of another batch",
        lambda: mha()(zeros(3, 1, 12), cache=cache(2)),
        ValueError,
        "new keys and values must fit … (2, 3, 4), got (3, 3, 4)",
    ),
    (
        "a mask and a padding mask that differ",
        lambda: mha()(zeros(2, 5, 12), mask=true(5, 6), padding_mask=true(2, 5)),
        ValueError,
        "mask must be (q, k) … (5, 5) or (2, 3, 5, 5), got shape (5, 6)",
    ),
    (
        "a padding mask that forgets what is stored",
        lambda: mha()(zeros(2, 1, 12), padding_mask=true(2, 1), cache=cache(2)),
        ValueError,
        "padding_mask must be (2, 8), got shape (2, 1)",
    ),
    (
        "a cache of another context",
        lambda: mha()(zeros(2, 1, 12), zeros(2, 6, 12), cache=cache(2)),
        ValueError,
        "the cache holds a context of length 7, got one of length 6",
    ),
    (
        "a cache read before it is filled",
        lambda: book.KeyValueCache().read(),
        ValueError,
        "the cache must hold keys and values, got an empty one",
    ),
    (
        "LayerNorm of nothing",
        lambda: book.LayerNorm(0),
        ValueError,
        "dim must be a whole number from 1 on, got 0",
    ),
    (
        "LayerNorm with negative eps",
        lambda: book.LayerNorm(5, eps=-1e-5),
        ValueError,
        "eps must be zero or greater, got -1e-05",
    ),
    (
        "LayerNorm with NaN eps",
        lambda: book.LayerNorm(5, eps=math.nan),
        ValueError,
        "eps must be zero or greater, got nan",
    ),
    (
        "LayerNorm of another width",
        lambda: book.LayerNorm(5)(zeros(2, 7)),
        ValueError,
        "x must be (..., 5), got shape (2, 7)",
    ),
    (
        "LayerNorm of integers",
        lambda: book.LayerNorm(5)(ints(2, 5)),
        TypeError,
        "x must be a floating-point tensor, got torch.int64",
    ),
    (
        "layer_norm with negative eps",
        lambda: book.layer_norm(zeros(5), eps=-0.5),
        ValueError,
        "eps must be zero or greater, got -0.5",
    ),
    (
        "layer_norm of integers",
        lambda: book.layer_norm(ints(5)),
        TypeError,
        "x must be a floating-point tensor, got torch.int64",
    ),
    (
        "layer_norm with other factors",
        lambda: book.layer_norm(zeros(2, 5), zeros(7)),
        ValueError,
        "weight must be (5,), got shape (7,)",
    ),
    (
        "gelu of another kind",
        lambda: book.gelu(zeros(5), approximate="sigmoid"),
        ValueError,
        "approximate must be one of ('none', 'tanh'), got 'sigmoid'",
    ),
    (
        "gelu of integers",
        lambda: book.gelu(ints(5)),
        TypeError,
        "x must be a floating-point tensor, got torch.int64",
    ),
    (
        "FeedForward without units",
        lambda: book.FeedForward(5, 0),
        ValueError,
        "hidden_dim must be a whole number from 1 on, got 0",
    ),
    (
        "FeedForward with another activation",
        lambda: book.FeedForward(5, 7, activation="swish"),
        ValueError,
        "activation must be one of ('relu', 'gelu', 'gelu_tanh'), got 'swish'",
    ),
    (
        "FeedForward with dropout 1",
        lambda: book.FeedForward(5, 7, dropout=1.0),
        ValueError,
        "dropout must be in [0, 1), got 1.0",
    ),
    (
        "FeedForward of another width",
        lambda: book.FeedForward(5, 7)(zeros(2, 6)),
        ValueError,
        "x must be (..., 5), got shape (2, 6)",
    ),
    (
        "EncoderLayer normed elsewhere",
        lambda: book.EncoderLayer(12, 3, 7, norm="both"),
        ValueError,
        "norm must be one of ('pre', 'post'), got 'both'",
    ),
    (
        "EncoderLayer with another activation",
        lambda: book.EncoderLayer(12, 3, 7, activation="tanh"),
        ValueError,
        "activation must be one of ('relu', 'gelu', 'gelu_tanh'), got 'tanh'",
    ),
    (
        "EncoderLayer with heads that do not divide",
        lambda: book.EncoderLayer(13, 3, 7),
        ValueError,
        "dim must be divisible by heads, got dim 13 and 3 heads",
    ),
    (
        "EncoderLayer with dropout 2",
        lambda: book.EncoderLayer(12, 3, 7, dropout=2.0),
        ValueError,
        "dropout must be in [0, 1), got 2.0",
    ),
    (
        "EncoderLayer on pictures",
        lambda: book.EncoderLayer(12, 3, 7)(zeros(2, 3, 5, 12)),
        ValueError,
        "query must be (batch, length, 12), got shape (2, 3, 5, 12)",
    ),
    (
        "EncoderLayer with a padding mask of another length",
        lambda: book.EncoderLayer(12, 3, 7)(zeros(2, 5, 12), padding_mask=true(2, 7)),
        ValueError,
        "padding_mask must be (2, 5), got shape (2, 7)",
    ),
    (
        "EncoderLayer asked for no token",
        lambda: book.EncoderLayer(12, 3, 7)(zeros(2, 5, 12), first=0),
        ValueError,
        "first must be a whole number from 1 on, got 0",
    ),
    (
        "EncoderLayer asked for more tokens than there are",
        lambda: book.EncoderLayer(12, 3, 7)(zeros(2, 5, 12), first=6),
        ValueError,
        "first must be at most 5, the tokens there are, and not be given if causal, "
        "got 6 and causal=False",
    ),
    (
        "Encoder asked for the first tokens of a causal sequence",
        lambda: book.Encoder(12, 3, 7, 2)(zeros(2, 5, 12), causal=True, first=1),
        ValueError,
        "not be given if causal, got 1 and causal=True",
    ),
    (
        "DecoderLayer normed elsewhere",
        lambda: book.DecoderLayer(12, 3, 7, norm="none"),
        ValueError,
        "norm must be one of ('pre', 'post'), got 'none'",
    ),
    (
        "DecoderLayer with a memory of another width",
        lambda: book.DecoderLayer(12, 3, 7)(zeros(2, 5, 12), zeros(2, 7, 11)),
        ValueError,
        "context must be (batch, length, 12), got shape (2, 7, 11)",
    ),
    (
        "DecoderLayer with a memory of another batch",
        lambda: book.DecoderLayer(12, 3, 7)(zeros(2, 5, 12), zeros(3, 7, 12)),
        ValueError,
        "query, context and values must have one batch size, got 2, 3 and 3",
    ),
    (
        "Encoder without layers",
        lambda: book.Encoder(12, 3, 7, 0),
        ValueError,
        "depth must be a whole number from 1 on, got 0",
    ),
    (
        "Encoder with a mask of other tokens",
        lambda: book.Encoder(12, 3, 7, 2)(zeros(2, 5, 12), mask=true(7, 7)),
        ValueError,
        "mask must be (q, k) … (5, 5) or (2, 3, 5, 5), got shape (7, 7)",
    ),
    (
        "Decoder without layers",
        lambda: book.Decoder(12, 3, 7, -1),
        ValueError,
        "depth must be a whole number from 1 on, got -1",
    ),
    (
        "Decoder with a cache of other layers",
        lambda: book.Decoder(12, 3, 7, 2)(
            zeros(2, 5, 12), zeros(2, 7, 12), cache=book.DecoderCache(3)
        ),
        ValueError,
        "cache must be for 2 layers, got 3",
    ),
    (
        "a cache without layers",
        lambda: book.DecoderCache(0),
        ValueError,
        "depth must be a whole number from 1 on, got 0",
    ),
    (
        "Transformer without words",
        lambda: book.Transformer(0),
        ValueError,
        "vocabulary must be a whole number from 1 on, got 0",
    ),
    (
        "Transformer of odd width",
        lambda: transformer(dim=11, heads=1),
        ValueError,
        "dim must be even (sines and cosines), got 11",
    ),
    (
        "Transformer with positions of another width",
        lambda: transformer(positions=book.LearnedPositions(5, 7))(
            ids(2, 5), ids(2, 3)
        ),
        ValueError,
        "tokens must be as wide … codes of width 7, got tokens of shape (2, 5, 12)",
    ),
    (
        "Transformer with unknown positions",
        lambda: transformer(positions="learned"),
        ValueError,
        "positions must be one of ('sinusoidal', None), got 'learned'",
    ),
    (
        "Transformer with padding outside the vocabulary",
        lambda: transformer(padding_token=17),
        ValueError,
        "padding_token must be a token from 0 to 16, got 17",
    ),
    (
        "Transformer without source words",
        lambda: transformer(source_vocabulary=0),
        ValueError,
        "source_vocabulary must be a whole number from 1 on, got 0",
    ),
    (
        "Transformer with dropout 1",
        lambda: transformer(dropout=1.0),
        ValueError,
        "dropout must be in [0, 1), got 1.0",
    ),
    (
        "a source of floats",
        lambda: transformer()(zeros(2, 5), ids(2, 3)),
        TypeError,
        "source must be a tensor of integers, got torch.float32",
    ),
    (
        "a source that is a list",
        lambda: transformer()([[1, 2]], ids(1, 3)),
        TypeError,
        "source must be a tensor of integers, got list",
    ),
    (
        "a source without a batch",
        lambda: transformer()(ids(5), ids(2, 3)),
        ValueError,
        "source must be (batch, length), got shape (5,)",
    ),
    (
        "a source id outside the vocabulary",
        lambda: transformer()(ids(2, 5) + 16, ids(2, 3)),
        ValueError,
        "source tokens must be from 0 to 16, got 17 to 17",
    ),
    (
        "a negative target id",
        lambda: transformer()(ids(2, 5), -ids(2, 3)),
        ValueError,
        "target tokens must be from 0 to 16, got -1 to -1",
    ),
    (
        "a target of another batch",
        lambda: transformer()(ids(2, 5), ids(3, 3)),
        ValueError,
        "query, context and values must have one batch size, got 3, 2 and 2",
    ),
    (
        "a Transformer past its positions",
        lambda: transformer(positions=book.LearnedPositions(4, 12))(
            ids(2, 5), ids(2, 3)
        ),
        ValueError,
        "there are codes for 4 positions, but positions up to 5 were asked for",
    ),
    (
        "generation of nothing",
        lambda: transformer().generate(ids(2, 5), begin=1, end=2, max_length=0),
        ValueError,
        "max_length must be a whole number from 1 on, got 0",
    ),
    (
        "generation without beams",
        lambda: transformer().generate(
            ids(2, 5), begin=1, end=2, max_length=3, beams=0
        ),
        ValueError,
        "beams must be a whole number from 1 on, got 0",
    ),
    (
        "generation that begins outside the vocabulary",
        lambda: transformer().generate(ids(2, 5), begin=17, end=2, max_length=3),
        ValueError,
        "begin must be a token from 0 to 16, got 17",
    ),
    (
        "generation that ends outside the vocabulary",
        lambda: transformer().generate(ids(2, 5), begin=1, end=-2, max_length=3),
        ValueError,
        "end must be a token from 0 to 16, got -2",
    ),
    (
        "smoothing of 1",
        lambda: book.label_smoothing_loss(zeros(3, 5), ids(3), smoothing=1.0),
        ValueError,
        "smoothing must be in [0, 1), got 1.0",
    ),
    (
        "targets of another length",
        lambda: book.label_smoothing_loss(zeros(3, 5), ids(2)),
        ValueError,
        "logits (..., classes) and targets (...) must match, got (3, 5) and (2,)",
    ),
    (
        "targets that are floats",
        lambda: book.label_smoothing_loss(zeros(3, 5), zeros(3)),
        TypeError,
        "targets must be a tensor of integers, got torch.float32",
    ),
    (
        "logits that are integers",
        lambda: book.label_smoothing_loss(ints(3, 5), ids(3)),
        TypeError,
        "logits must be a floating-point tensor, got torch.int64",
    ),
    (
        "a target that is no class",
        lambda: book.label_smoothing_loss(zeros(3, 5), torch.tensor([1, 2, 5])),
        ValueError,
        "targets must be from 0 to 4, got 1 to 5",
    ),
    (
        "padding that is no class",
        lambda: book.label_smoothing_loss(zeros(3, 5), ids(3), padding_token=7),
        ValueError,
        "padding_token must be a token from 0 to 4, got 7",
    ),
    (
        "the learning rate of step 0",
        lambda: book.transformer_learning_rate(0, dim=12),
        ValueError,
        "step must be a whole number from 1 on, got 0",
    ),
    (
        "the learning rate of no width",
        lambda: book.transformer_learning_rate(1, dim=0),
        ValueError,
        "dim must be a whole number from 1 on, got 0",
    ),
    (
        "the learning rate without a rise",
        lambda: book.transformer_learning_rate(1, dim=12, warmup=0),
        ValueError,
        "warmup must be a whole number from 1 on, got 0",
    ),
    (
        "SelfAttention with heads that do not divide",
        lambda: book.SelfAttention(13, 3),
        ValueError,
        "dim must be divisible by heads, got 13 and 3",
    ),
    (
        "SelfAttention with positions by name",
        lambda: book.SelfAttention(12, 3, positions="sinusoidal"),
        TypeError,
        "positions must be a PositionalEncoding, got str",
    ),
    (
        "SelfAttention with positions of another width",
        lambda: book.SelfAttention(12, 3, positions=book.SinusoidalPositions(6)),
        ValueError,
        "codes must be 12 wide, got 6",
    ),
    (
        "SelfAttention of another width",
        lambda: book.SelfAttention(12, 3)(zeros(2, 5, 11)),
        ValueError,
        "x must be (batch, length, 12), got shape (2, 5, 11)",
    ),
    (
        "SelfAttention past its positions",
        lambda: book.SelfAttention(12, 3, positions=book.LearnedPositions(5, 12))(
            zeros(2, 6, 12)
        ),
        ValueError,
        "there are codes for 5 positions, but positions up to 6 were asked for",
    ),
    (
        "negative padding",
        lambda: book.ZeroPaddedSelfAttention(
            book.SelfAttention(12, 3), before=-1, after=2
        ),
        ValueError,
        "padding must not be negative, got -1 and 2",
    ),
    (
        "a permutation that misses a place",
        lambda: book.permutation_attention([0, 2], 5),
        ValueError,
        "permutation must hold each of 0, …, 1 once, got [0, 2]",
    ),
    (
        "a permutation of fractions",
        lambda: book.permutation_attention([0.0, 1.0], 5),
        TypeError,
        "permutation must be a tensor of integers, got torch.float32",
    ),
    (
        "a permuted sequence of another length",
        lambda: book.permutation_attention([1, 0, 2], 5)(zeros(2, 4, 5)),
        ValueError,
        "there must be 3 tokens exactly, got 4",
    ),
    (
        "an identity past its length",
        lambda: book.identity_attention(3, 5)(zeros(2, 4, 5)),
        ValueError,
        "there are codes for 3 positions, but positions up to 4 were asked for",
    ),
    (
        "negative sharpness",
        lambda: book.identity_attention(3, 5, sharpness=-1.0),
        ValueError,
        "sharpness must be zero or greater, got -1.0",
    ),
    (
        "off-target mass of no token",
        lambda: book.off_target_mass(0, 1.0),
        ValueError,
        "length must be a whole number from 1 on, got 0",
    ),
    (
        "a convolution without taps",
        lambda: book.convolution_attention(zeros(5, 7, 0), length=3),
        ValueError,
        "taps must be a whole number from 1 on, got 0",
    ),
    (
        "a convolution of two axes",
        lambda: book.convolution_attention(zeros(5, 7), length=3),
        ValueError,
        "weight must be (out, in, taps), got shape (5, 7)",
    ),
    (
        "a convolution padded by reflection",
        lambda: book.convolution_attention(
            zeros(5, 7, 3), length=3, padding_mode="reflect"
        ),
        ValueError,
        "padding_mode must be one of ('zeros', 'replicate'), got 'reflect'",
    ),
    (
        "a convolution with another bias",
        lambda: book.convolution_attention(zeros(5, 7, 3), zeros(7), length=3),
        ValueError,
        "bias must be (5,), got shape (7,)",
    ),
    (
        "RNN without inputs",
        lambda: book.RNN(0, 5),
        ValueError,
        "input_dim must be a whole number from 1 on, got 0",
    ),
    (
        "RNN of another width",
        lambda: book.RNN(3, 5)(zeros(2, 7, 4)),
        ValueError,
        "x must be (batch, length, 3), got shape (2, 7, 4)",
    ),
    (
        "RNN without steps",
        lambda: book.RNN(3, 5)(zeros(2, 0, 3)),
        ValueError,
        "length must be a whole number from 1 on, got 0",
    ),
    (
        "RNN with a state of another batch",
        lambda: book.RNN(3, 5)(zeros(2, 7, 3), zeros(3, 5)),
        ValueError,
        "state must be (2, 5), got shape (3, 5)",
    ),
    (
        "GRU with a padding mask of another length",
        lambda: book.GRU(3, 5)(zeros(2, 7, 3), padding_mask=true(2, 6)),
        ValueError,
        "padding_mask must be (2, 7), got shape (2, 6)",
    ),
    (
        "GRU with an integer padding mask",
        lambda: book.GRU(3, 5)(zeros(2, 7, 3), padding_mask=ints(2, 7)),
        TypeError,
        "padding_mask must be a boolean tensor (True = a real step), got torch.int64",
    ),
    (
        "Alignment by another score",
        lambda: book.Alignment(3, 5, score="cosine"),
        ValueError,
        "score must be one of ('dot', 'bilinear', 'additive'), got 'cosine'",
    ),
    (
        "Alignment by products of two widths",
        lambda: book.Alignment(3, 5, score="dot"),
        ValueError,
        "dot needs one width, got 3 and 5",
    ),
    (
        "Alignment with a memory of another batch",
        lambda: book.Alignment(3, 5, score="bilinear")(zeros(2, 7, 3), zeros(3, 7, 5)),
        ValueError,
        "memory must be (2, keys, 5), got shape (3, 7, 5)",
    ),
    (
        "Seq2Seq of another cell",
        lambda: book.Seq2Seq(17, dim=3, hidden_dim=5, cell="lstm"),
        ValueError,
        "cell must be one of ('gru', 'rnn'), got 'lstm'",
    ),
    (
        "Seq2Seq with a word outside the vocabulary",
        lambda: book.Seq2Seq(17, dim=3, hidden_dim=5)(ids(2, 5) + 16, ids(2, 3)),
        ValueError,
        "source must be from 0 to 16, got 17 to 17",
    ),
    (
        "Seq2Seq that begins outside the vocabulary",
        lambda: book.Seq2Seq(17, dim=3, hidden_dim=5).generate(
            ids(2, 5), begin=17, end=2, max_length=3
        ),
        ValueError,
        "begin must be a token from 0 to 16, got 17",
    ),
    (
        "Bert without tokens",
        lambda: book.Bert(0, dim=12, depth=1, heads=3),
        ValueError,
        "vocabulary must be a whole number from 1 on, got 0",
    ),
    (
        "Bert without segments",
        lambda: bert(segments=0),
        ValueError,
        "segments must be a whole number from 1 on, got 0",
    ),
    (
        "Bert with heads that do not share the width",
        lambda: bert(heads=5),
        ValueError,
        "dim must be divisible by heads, got dim 12 and 5 heads",
    ),
    (
        "Bert on a text too long",
        lambda: bert()(ids(2, 6)),
        ValueError,
        "there are codes for 5 positions, but positions up to 6 were asked for",
    ),
    (
        "Bert on one text without a batch",
        lambda: bert()(ids(5)),
        ValueError,
        "tokens must be (batch, length), got shape (5,)",
    ),
    (
        "Bert on numbers",
        lambda: bert()(zeros(2, 5)),
        TypeError,
        "tokens must be a tensor of integers, got torch.float32",
    ),
    (
        "Bert on unknown tokens",
        lambda: bert()(17 * ids(2, 5)),
        ValueError,
        "tokens must be from 0 to 16, got 17 to 17",
    ),
    (
        "Bert on unknown segments",
        lambda: bert()(ids(2, 5), segments=2 * ids(2, 5)),
        ValueError,
        "segments must be from 0 to 1, got 2 to 2",
    ),
    (
        "Bert with segments of another length",
        lambda: bert()(ids(2, 5), segments=ids(2, 4)),
        ValueError,
        "segments must be (2, 5), got shape (2, 4)",
    ),
    (
        "Bert with a mask of another length",
        lambda: bert()(ids(2, 5), padding_mask=true(2, 4)),
        ValueError,
        "padding_mask must be (2, 5), got shape (2, 4)",
    ),
    (
        "a summary by a Bert without one",
        lambda: bert(summary=False).summarise(zeros(2, 5, 12)),
        ValueError,
        "the model must have been made with summary=True, got summary=False",
    ),
    (
        "a summary of another width",
        lambda: bert().summarise(zeros(2, 5, 13)),
        ValueError,
        "hidden must be (batch, length, 12), got shape (2, 5, 13)",
    ),
    (
        "the mean of one text's tokens without a batch",
        lambda: book.mean_of_tokens(zeros(5, 12), true(5)),
        ValueError,
        "hidden must be (batch, length, width), got shape (5, 12)",
    ),
    (
        "the mean of tokens with a mask of numbers",
        lambda: book.mean_of_tokens(zeros(2, 5, 12), torch.ones(2, 5)),
        TypeError,
        "padding_mask must be a boolean tensor (True = a real … got torch.float32",
    ),
    (
        "the mean of tokens with a mask of another length",
        lambda: book.mean_of_tokens(zeros(2, 5, 12), true(2, 4)),
        ValueError,
        "padding_mask must be (2, 5), got shape (2, 4)",
    ),
    (
        "a patch that does not divide",
        lambda: book.PatchEmbedding(3, 2, 5)(zeros(1, 2, 9, 8)),
        ValueError,
        "the patch must divide … got a patch of 3×3 and a picture of 9×8 pixels",
    ),
    (
        "a patch of three sizes",
        lambda: book.PatchEmbedding((2, 3, 5), 2, 5),
        ValueError,
        "patch must be one whole number or two, got (2, 3, 5)",
    ),
    (
        "a picture with other channels",
        lambda: book.PatchEmbedding(2, 3, 5)(zeros(1, 4, 6, 8)),
        ValueError,
        "pictures must be (batch, 3, height, width), got shape (1, 4, 6, 8)",
    ),
    (
        "LearnedAxes2D of odd width",
        lambda: book.LearnedAxes2D((2, 3), 5),
        ValueError,
        "dim must be positive and even, got 5",
    ),
    (
        "a picture that the patch does not divide",
        lambda: vit(picture=(8, 9)),
        ValueError,
        "the patch must divide … got a patch of 4×4 and a picture of 8×9 pixels",
    ),
    (
        "VisionTransformer pooled otherwise",
        lambda: vit(pool="max"),
        ValueError,
        "pool must be one of ('class', 'mean'), got 'max'",
    ),
    (
        "VisionTransformer that asks a class token it does not have",
        lambda: vit(class_token=False, pool="class"),
        ValueError,
        "pool 'class' needs a class token, got class_token=False",
    ),
    (
        "VisionTransformer with unknown positions",
        lambda: vit(positions="rotary"),
        ValueError,
        "positions must be one of ('learned', 'learned_axes', … got 'rotary'",
    ),
    (
        "VisionTransformer without classes",
        lambda: vit(classes=0),
        ValueError,
        "classes must be a whole number from 1 on, got 0",
    ),
    (
        "VisionTransformer on bytes",
        lambda: vit()(torch.ones(1, 3, 8, 12, dtype=torch.uint8)),
        TypeError,
        "pictures must be a floating-point tensor, got torch.uint8",
    ),
    (
        "a VisionTransformer of unknown size",
        lambda: book.VisionTransformer.from_preset("ViT-XL/16", classes=10),
        ValueError,
        "name must be one of ViT-Ti, ViT-S, ViT-B, ViT-L, … got 'ViT-XL/16'",
    ),
    (
        "Gaussian attention without heads",
        lambda: book.GaussianSelfAttention(5, 0),
        ValueError,
        "heads must be a whole number from 1 on, got 0",
    ),
    (
        "Gaussian attention of sharpness 0",
        lambda: book.GaussianSelfAttention(5, 3, sharpness=0.0),
        ValueError,
        "sharpness must be positive (math.inf is hard), got 0.0",
    ),
    (
        "Gaussian attention of another covariance",
        lambda: book.GaussianSelfAttention(5, 3, covariance="round"),
        ValueError,
        "covariance must be one of ('isotropic', 'diagonal', 'full'), got 'round'",
    ),
    (
        "Gaussian attention with centers for other heads",
        lambda: book.GaussianSelfAttention(5, 3, centers=[[0, 1]]),
        ValueError,
        "centers must be 3 pairs (row, column), one a head, got [[0, 1]]",
    ),
    (
        "hard Gaussian attention without centers",
        lambda: book.GaussianSelfAttention(5, 3, sharpness=math.inf),
        ValueError,
        "hard heads (infinite … got centers None and covariance 'isotropic'",
    ),
    (
        "Gaussian attention on a sequence",
        lambda: book.GaussianSelfAttention(5, 3)(zeros(2, 7, 5)),
        ValueError,
        "x must be (batch, rows, columns, 5), got shape (2, 7, 5)",
    ),
    (
        "Gaussian attention of another width",
        lambda: book.GaussianSelfAttention(5, 3)(zeros(2, 7, 11, 6)),
        ValueError,
        "x must be (batch, rows, columns, 5), got shape (2, 7, 11, 6)",
    ),
    (
        "Gaussian attention on another type",
        lambda: book.GaussianSelfAttention(5, 3)(zeros(2, 7, 11, 5).double()),
        TypeError,
        "x must have the layer's type torch.float32, got torch.float64",
    ),
    (
        "a table without rows",
        lambda: book.RelativeTableAttention(5, 3, (0, 2)),
        ValueError,
        "window (rows) must be a whole number from 1 on, got 0",
    ),
    (
        "a table on another width",
        lambda: book.RelativeTableAttention(5, 3, (3, 2))(zeros(2, 7, 11, 6)),
        ValueError,
        "x must be (batch, rows, columns, 5), got shape (2, 7, 11, 6)",
    ),
    (
        "learned relative attention past its table",
        lambda: book.LearnedRelativeSelfAttention(5, 3, longest=7)(zeros(2, 7, 11, 5)),
        ValueError,
        "x must have at most 7 rows and columns, got shape (2, 7, 11, 5)",
    ),
    (
        "absolute codes of another kind",
        lambda: book.AbsolutePositionalEmbedding((5, 7), 8, kind="random"),
        ValueError,
        "kind must be one of ('learned', 'sinusoidal'), got 'random'",
    ),
    (
        "absolute codes for another picture",
        lambda: book.AbsolutePositionalEmbedding((5, 7), 8)(zeros(2, 7, 5, 8)),
        ValueError,
        "x must be (batch, 5, 7, width), got shape (2, 7, 5, 8)",
    ),
    (
        "relative codes of a vector",
        lambda: book.RelativePositionalEmbedding([0.0, 1.0]),
        ValueError,
        "centers must be (heads, 2), got shape (2,)",
    ),
    (
        "relative codes of negative sharpness",
        lambda: book.RelativePositionalEmbedding([[0.0, 1.0]], sharpness=-1.0),
        ValueError,
        "sharpness must be positive and finite, got -1.0",
    ),
    (
        "BertFFN with dropout 1",
        lambda: book.BertFFN(5, 7, dropout=1.0),
        ValueError,
        "dropout must be in [0, 1), got 1.0",
    ),
    (
        "PictureBert of another encoding",
        lambda: book.PictureBert(encoding="rotary", dim=8, heads=2),
        ValueError,
        "encoding must be one of ('gaussian', 'learned', … got 'rotary'",
    ),
    (
        "PictureBert on a picture that tokens do not divide",
        lambda: book.PictureBert(dim=8, heads=2, depth=1)(zeros(2, 3, 7, 8)),
        ValueError,
        "pictures must be divisible into tokens of 2 x 2 … got shape (2, 3, 7, 8)",
    ),
    (
        "attention from a linear layer",
        lambda: book.attention_from_convolution(torch.nn.Linear(5, 7)),
        TypeError,
        "conv must be an nn.Conv1d or nn.Conv2d (no subclass, not … got Linear",
    ),
    (
        "attention from a convolution by most heads",
        lambda: book.attention_from_convolution(torch.nn.Conv2d(2, 3, 3), heads="most"),
        ValueError,
        "heads must be one of ('taps', 'fewest'), got 'most'",
    ),
    (
        "a kernel larger than the picture",
        lambda: book.attention_from_convolution(torch.nn.Conv2d(2, 3, 5))(
            zeros(1, 2, 4, 7)
        ),
        ValueError,
        "the padded picture must be at least 5 pixels long for this kernel, got 4",
    ),
    (
        "a sequence for a 2-D convolution",
        lambda: book.attention_from_convolution(torch.nn.Conv2d(2, 3, 3))(zeros(1, 7)),
        ValueError,
        "x must have a channel axis and 2 more, and may have a … got shape (1, 7)",
    ),
    (
        "the rollout of no layers",
        lambda: book.attention_rollout([]),
        ValueError,
        "weights must hold a tensor for each layer, got none",
    ),
    (
        "the rollout of layers of other lengths",
        lambda: book.attention_rollout([zeros(2, 3, 5, 5), zeros(2, 3, 7, 7)]),
        ValueError,
        "weights of a layer must be (2, heads, 5, 5), got shape (2, 3, 7, 7)",
    ),
    (
        "the distance on another grid",
        lambda: book.attention_distance(zeros(2, 6, 6), (2, 3)),
        ValueError,
        "weights must be (..., 7, 7), got shape (2, 6, 6)",
    ),
    (
        "the similarity of a list of codes",
        lambda: book.position_similarity(zeros(5, 7)),
        ValueError,
        "codes must be (rows, columns, p), got shape (5, 7)",
    ),
    (
        "weights that are a module",
        lambda: book.attention_from_torch(torch.nn.MultiheadAttention(12, 3), heads=3),
        TypeError,
        "weights must be a state dict or the path of a … got MultiheadAttention",
    ),
    (
        "weights with heads that do not share the width",
        lambda: book.attention_from_torch(
            torch.nn.MultiheadAttention(12, 3).state_dict(), heads=5
        ),
        ValueError,
        "dim must be divisible by heads, got dim 12 and 5 heads",
    ),
    (
        "weights that are no tensors",
        lambda: book.bert_from_huggingface({"pooler": 1.0}, heads=3),
        book.WeightsError,
        "weights must be tensors by name, got float for 'pooler'",
    ),
    (
        "weights in a pickle",
        lambda: book.vision_transformer_from_timm("model.bin", heads=3),
        book.WeightsError,
        "model.bin must be a .safetensors file: others can run code … are read",
    ),
    (
        "a linear layer for PyTorch's Transformer",
        lambda: book.to_torch(torch.nn.Linear(2, 3)),
        TypeError,
        "module must be attention, a layer or a stack of layers … got Linear",
    ),
    (
        "a linear layer for a model to save",
        lambda: book.save_model(torch.nn.Linear(2, 3), "model.safetensors"),
        TypeError,
        "model must be one of VisionTransformer, Transformer, Bert, … got Linear",
    ),
]
CALLS = pytest.mark.parametrize(
    ("call", "error", "message"),
    [row[1:] for row in TABLE],
    ids=[row[0] for row in TABLE],
)


def test_the_table_is_long_and_asks_every_chapter() -> None:
    assert len(TABLE) >= 80
    assert len({row[0] for row in TABLE}) == len(TABLE)
    for _, _, _, message in TABLE:
        assert re.search("got |asked for|are read", message)


@pytest.mark.unhooked
@CALLS
def test_a_malformed_call_is_refused(
    call: Callable[[], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        call()
    # No subclass: an IndexError from within would be one that slipped through.
    assert caught.type is error
    pattern = ".*".join(re.escape(part.strip()) for part in message.split("…"))
    assert re.search(pattern, str(caught.value)), str(caught.value)


@CALLS
def test_a_malformed_call_is_refused_under_the_hook_too(
    call: Callable[[], object], error: type[Exception], message: str
) -> None:
    assert issubclass(error, TypeError | ValueError), message
    with pytest.raises((TypeError, ValueError)):
        call()
