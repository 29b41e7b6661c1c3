"""The parts of the assignment on attention as convolution.

Offsets are key minus query, as in the exercises: a head with center (0, 1) attends one
column to the right.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from einops import einsum, rearrange
from torch import Tensor

from transformers_hw.attention_as_convolution import GaussianSelfAttention
from transformers_hw.exercises.assignments import Part, tensor
from transformers_hw.exercises.kinds import Code, Function
from transformers_hw.positional_encoding import SinusoidalPositions2D

# --- absolute positions of a grid ---

grid = Code(
    level="core",
    read="positional_encoding#clock-hands",
    hints=(
        "Encode the row numbers and the column numbers separately, each by sinusoids "
        "of width dim / 2.",
        "The vector of pixel (i, j) is row i of the first table, followed by row j of "
        "the second.",
        "Repeat the first table along the columns, the second along the rows, and join "
        "them along the last axis.",
    ),
)


@grid.cases
def grid_cases(rng):
    """Yield a small grid, then grids that are not square."""
    yield 2, 3, 4
    yield 4, 2, 8
    yield 3, 3, 12
    yield 1, 5, 4


def _parts(rows: int, columns: int, dim: int) -> list[Tensor]:
    table = SinusoidalPositions2D(dim).embeddings((rows, columns))
    return [*rearrange(table, "i j (two d) -> two i j d", two=2)]


@grid.solution
def absolute_positions(rows, columns, dim):
    """Return the book's table."""
    return torch.cat(_parts(rows, columns, dim), dim=-1)


@grid.wrong(
    "The halves are exchanged: the row comes first, in the first half of each vector, "
    "and the column second."
)
def columns_first(rows, columns, dim):
    """Put the column first."""
    return torch.cat(_parts(rows, columns, dim)[::-1], dim=-1)


@grid.wrong(
    "You add the encodings of row and column. Then (1, 2) and (2, 1) have the same "
    "vector. Give each its own half."
)
def added(rows, columns, dim):
    """Add instead of joining."""
    down, across = _parts(rows, columns, 2 * dim)
    return down + across


@grid.wrong(
    "You number the pixels from first to last and encode that number, so the end of "
    "one row and the start of the next are neighbors. Encode row and column apart."
)
def in_reading_order(rows, columns, dim):
    """Encode the number of the pixel."""
    _, numbers = _parts(1, rows * columns, 2 * dim)
    return rearrange(numbers, "1 (i j) d -> i j d", i=rows)


# --- weights of Gaussian heads, for all pairs of pixels ---

weights = Code(
    level="core",
    read="attention_as_convolution#scores-that-know-only-the-offset",
    hints=(
        "List all pixels once, of shape (N, 2). Offsets are keys minus queries: "
        "pixels[None, :] - pixels[:, None], of shape (N, N, 2).",
        "score_vectors takes a matrix of offsets, so flatten them to (N · N, 2). Its "
        "two results multiply to scores of shape (N · N, heads).",
        "The softmax of a query runs over all N keys. Reshape to rows and columns "
        "after it.",
    ),
)


@weights.cases
def weights_cases(rng):
    """Yield one head on a row of pixels, then several heads on images."""
    yield np.array([[0.0, 1.0]]), np.array([2.0]), 1, 3
    for h, rows, columns in ((2, 3, 4), (4, 2, 3), (1, 4, 3)):
        yield 1.5 * rng.normal(size=(h, 2)), rng.random(h) + 0.2, rows, columns


def _scores(centers: Any, sharpness: Any, rows: int, columns: int) -> Tensor:
    centers, sharpness = tensor(centers), tensor(sharpness)
    pixels = torch.cartesian_prod(torch.arange(rows), torch.arange(columns))
    pixels = pixels.reshape(rows, columns, 2)
    offsets = pixels - rearrange(pixels, "i j two -> i j 1 1 two")
    away = offsets - rearrange(centers, "h two -> h 1 1 1 1 two")
    return -rearrange(sharpness, "h -> h 1 1 1 1") * away.square().sum(dim=-1)


@weights.solution
def head_weights(centers, sharpness, rows, columns):
    """Return the weights (head, query row, query column, key row, key column)."""
    scores = _scores(centers, sharpness, rows, columns)
    return scores.flatten(-2).softmax(dim=-1).reshape(scores.shape)


@weights.wrong(
    "Your heads attend to query - center. The offset is key minus query, so a center "
    "of (0, 1) means one column to the *right*."
)
def mirrored(centers, sharpness, rows, columns):
    """Take query minus key."""
    return head_weights(-centers, sharpness, rows, columns)


@weights.wrong(
    "Each row of keys sums to 1 by itself. The keys are all pixels of the image: one "
    "softmax runs over rows and columns together."
)
def row_by_row(centers, sharpness, rows, columns):
    """Take the softmax over the last axis only."""
    return _scores(centers, sharpness, rows, columns).softmax(dim=-1)


@weights.wrong("These are scores, not weights: the softmax is missing.")
def without_softmax(centers, sharpness, rows, columns):
    """Forget the softmax, up to a constant for each query and head."""
    scores = _scores(centers, sharpness, rows, columns)
    square = tensor(centers).square().sum(dim=-1) * tensor(sharpness)
    return scores + rearrange(square, "h -> h 1 1 1 1")


# --- Gaussian self-attention ---

attention = Code(
    level="core",
    read="attention_as_convolution#the-layer-seen-from-one-pixel",
    hints=(
        "self.positions(rows, columns) gives the weights, the same ones for every "
        "image: h i j k l, for head, query and key.",
        "A head averages the pixels of the image with its weights, multiplies by its "
        "matrix, and all heads are added.",
        "One einsum does all of it: `h i j k l, b k l d, h d e -> b i j e`. Then add "
        "the bias.",
    ),
)


def attention_of(layer_class: Any) -> Function:
    """Wrap a class as a function of an image and of all parameters."""

    def run(x, centers, sharpness, value_weight, bias):
        heads, dim, _ = value_weight.shape
        layer = layer_class(dim, heads).double()
        own = {
            "positions.centers": centers,
            "positions.log_sharpness": sharpness.log(),
            "value_weight": value_weight,
            "bias": bias,
        }
        layer.load_state_dict(own)
        return layer(x)

    return run


@attention.cases
def attention_cases(rng):
    """Yield a row of pixels and one head, then images and several heads."""
    yield (
        np.array([[[[1.0], [2.0], [5.0]]]]),
        np.array([[0.0, 1.0]]),
        np.array([1.0]),
        np.array([[[2.0]]]),
        np.array([1.0]),
    )
    for b, rows, columns, d, h in ((2, 3, 4, 2, 3), (1, 4, 2, 3, 9), (3, 2, 2, 4, 2)):
        yield (
            rng.normal(size=(b, rows, columns, d)),
            rng.normal(size=(h, 2)),
            rng.random(h) + 0.2,
            rng.normal(size=(h, d, d)),
            rng.normal(size=d),
        )


@attention.solution
def gaussian_attention(x, centers, sharpness, value_weight, bias):
    """Compute the book's layer."""
    heads, dim, _ = value_weight.shape
    layer = GaussianSelfAttention(dim, heads, dtype=torch.float64)
    own = {
        "centers": centers,
        "log_sharpness": np.log(sharpness),
        "value_weight": value_weight,
        "bias": bias,
    }
    layer.load_state_dict({name: tensor(value) for name, value in own.items()})
    return layer(tensor(x))


@attention.wrong(
    "You average over the heads. A layer adds them: concatenating heads and "
    "multiplying by the output projection is a sum."
)
def heads_averaged(x, centers, sharpness, value_weight, bias):
    """Divide by the number of heads."""
    few = value_weight / len(value_weight)
    return gaussian_attention(x, centers, sharpness, few, bias)


@attention.wrong("The bias is missing: add it to every pixel, once for all heads.")
def without_bias(x, centers, sharpness, value_weight, bias):
    """Forget the bias."""
    return gaussian_attention(x, centers, sharpness, value_weight, np.zeros_like(bias))


@attention.wrong(
    "You add the bias once for every head. It belongs to the sum of the heads."
)
def bias_of_each_head(x, centers, sharpness, value_weight, bias):
    """Add the bias inside the sum."""
    more = len(value_weight) * bias
    return gaussian_attention(x, centers, sharpness, value_weight, more)


@attention.wrong(
    "The matrices are transposed. Pixels are rows, so a head multiplies x @ W with W = "
    "value_weight[h]: `h d e` in an einsum, with d the input."
)
def transposed(x, centers, sharpness, value_weight, bias):
    """Multiply by transposed matrices."""
    turned = np.swapaxes(value_weight, -1, -2)
    return gaussian_attention(x, centers, sharpness, turned, bias)


@attention.wrong(
    "Queries and keys are exchanged: you sum over the first pair of axes of the "
    "weights. Their order is head, query, key, and the sum runs over keys."
)
def over_queries(x, centers, sharpness, value_weight, bias):
    """Sum over the queries."""
    rows, columns = x.shape[1:3]
    own = head_weights(centers, sharpness, rows, columns)
    pattern = "h i j k l, b i j d, h d e -> b k l e"
    mixed = einsum(own, tensor(x), tensor(value_weight), pattern)
    return mixed + tensor(bias)


# --- the second half of a BERT layer: the exercise, for a class ---


def half_of(half_class: Any) -> Function:
    """Wrap a class as the exercise's function of matrices."""

    def bert_half(x, w_1, b_1, w_2, b_2, gamma, beta, eps):
        half = half_class(*w_1.shape, eps).double()
        own = {
            "hidden_proj.weight": w_1.mT,
            "hidden_proj.bias": b_1,
            "output_proj.weight": w_2.mT,
            "output_proj.bias": b_2,
            "norm.weight": gamma,
            "norm.bias": beta,
        }
        half.load_state_dict(own)
        return half(x)

    return bert_half


def weights_of(embedding_class: Any) -> Function:
    """Wrap a class as a function of its parameters and of a grid."""

    def run(centers, sharpness, rows, columns):
        heads = embedding_class(len(centers)).double()
        own = {"centers": centers, "log_sharpness": sharpness.log()}
        heads.load_state_dict(own)
        return heads(rows, columns)

    return run


def in_double_precision(written: Any) -> Function:
    """Make tensors of double precision the default while a function runs."""

    def run(*arguments):
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            return written(*arguments)
        finally:
            torch.set_default_dtype(before)

    return run


PARTS = {
    "sinusoids": Part(2, "positional_encoding/sinusoids", in_double_precision),
    "absolute_positions": Part(2, grid, needs=("sinusoids",)),
    "gaussian_scores": Part(
        2, "attention_as_convolution/gaussian_scores", in_double_precision
    ),
    "score_vectors": Part(2, "attention_as_convolution/score_vectors"),
    "relative_positions": Part(2, weights, weights_of, needs=("score_vectors",)),
    "verify_limit": Part(
        3,
        "attention_as_convolution/verify_limit",
        in_double_precision,
        needs=("gaussian_scores",),
    ),
    "gelus": Part(2, "transformer/gelus"),
    "layer_norm": Part(2, "transformer/layer_norm"),
    "bert_half": Part(
        3, "transformer/bert_half", half_of, needs=("gelus", "layer_norm")
    ),
    "convolution": Part(3, "attention_as_convolution/heads_as_convolution"),
    "gaussian_attention": Part(
        3, attention, attention_of, needs=("score_vectors", "relative_positions")
    ),
    "smoothed_loss": Part(2, "transformer/smoothed_loss"),
}
