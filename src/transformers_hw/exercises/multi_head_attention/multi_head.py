"""Multi-head self-attention.

Write `multi_head(x, w_q, w_k, w_v, w_o, heads)`. The tokens `x` have shape (n, d), and
all four matrices have shape (d, d). Project the tokens by w_q, w_k and w_v (rows times
matrix, no biases), split each into `heads` blocks of neighboring columns, let each head
attend by itself, with the scale that belongs to its own width, join the heads in order,
and multiply by w_o. The result has shape (n, d).
"""

import numpy as np
from einops import einsum, rearrange

from transformers_hw.exercises.kinds import Code

exercise = Code(
    level="core",
    read="multi_head_attention#ten-lines-of-code",
    hints=(
        "With the pattern `n (h d) -> h n d`, heads become a batch axis, and one "
        "einsum computes the scores of all of them.",
        "The vectors that are compared have width d / heads: that is the width in the "
        "scale.",
        "Joining is the reverse pattern, `h n d -> n (h d)`.",
    ),
    points=3,
    questions=("nyu-1.2a",),
)


@exercise.cases
def cases(rng):
    """Yield layers of several sizes, the first with matrices one can follow."""
    eye = np.eye(4)
    yield np.array([[1.0, 0, 2, 0], [0, 1, 0, 3]]), eye, eye, eye, eye, 2
    for n, d, heads in ((3, 6, 3), (5, 6, 2), (4, 5, 1), (2, 8, 8)):
        matrices = rng.normal(size=(4, d, d)) / np.sqrt(d)
        yield rng.normal(size=(n, d)), *matrices, heads


def _layer(
    x, w_q, w_k, w_v, w_o, heads, pattern="n (h d) -> h n d", scale=None, axis=-1
):
    q, k, v = (rearrange(x @ w, pattern, h=heads) for w in (w_q, w_k, w_v))
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(scale or q.shape[-1])
    weights = np.exp(scores - scores.max(axis, keepdims=True))
    weights = weights / weights.sum(axis, keepdims=True)
    back = " -> ".join(reversed(pattern.split(" -> ")))
    return rearrange(weights @ v, back) @ w_o


@exercise.solution
def multi_head(x, w_q, w_k, w_v, w_o, heads):
    """Return the outputs of the layer, a row for each token."""
    q, k, v = (rearrange(x @ w, "n (h d) -> h n d", h=heads) for w in (w_q, w_k, w_v))
    scores = einsum(q, k, "h i d, h j d -> h i j") / np.sqrt(q.shape[-1])
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)
    joined = rearrange(einsum(weights, v, "h i j, h j d -> h i d"), "h n d -> n (h d)")
    return joined @ w_o


@exercise.right
def head_by_head(x, w_q, w_k, w_v, w_o, heads):
    """Loop over the heads, and concatenate."""
    outputs = []
    for parts in zip(
        *(np.split(w, heads, axis=1) for w in (w_q, w_k, w_v)), strict=True
    ):
        q, k, v = (x @ part for part in parts)
        powers = np.exp(q @ k.T / q.shape[1] ** 0.5)
        outputs.append(powers @ v / powers.sum(1, keepdims=True))
    return np.concatenate(outputs, axis=1) @ w_o


@exercise.right
def where_times_what(x, w_q, w_k, w_v, w_o, heads):
    """Add up the heads' contributions, each with its strip of w_o."""
    d, total = x.shape[1] // heads, 0.0
    for h in range(heads):
        own = slice(h * d, (h + 1) * d)
        scores = (x @ w_q[:, own]) @ (x @ w_k[:, own]).T / np.sqrt(d)
        weights = np.exp(scores - scores.max(1, keepdims=True))
        weights /= weights.sum(1, keepdims=True)
        total = total + weights @ x @ (w_v[:, own] @ w_o[own])
    return total


@exercise.wrong(
    "The scale is that of the whole layer, 1/√d. A head compares vectors of width "
    "d / heads, so its scale is one over the root of that."
)
def scale_of_the_layer(x, w_q, w_k, w_v, w_o, heads):
    """Divide by the root of the model's width."""
    return _layer(x, w_q, w_k, w_v, w_o, heads, scale=x.shape[1])


@exercise.wrong(
    "The heads are split in the wrong order: each takes every h-th column. A head has "
    "a block of neighboring columns, `(h d)` in a pattern."
)
def interleaved_heads(x, w_q, w_k, w_v, w_o, heads):
    """Split as (d h)."""
    return _layer(x, w_q, w_k, w_v, w_o, heads, pattern="n (d h) -> h n d")


@exercise.wrong(
    "The output projection is missing. Heads only meet there: without w_o, each writes "
    "into its own columns."
)
def without_output(x, w_q, w_k, w_v, w_o, heads):
    """Forget the output projection."""
    return _layer(x, w_q, w_k, w_v, np.eye(len(w_o)), heads)


@exercise.wrong(
    "There is only one head: `heads` has no effect. Split queries, keys and values "
    "before computing scores, so that each head has weights of its own."
)
def a_single_head(x, w_q, w_k, w_v, w_o, heads):
    """Attend with the full width."""
    return _layer(x, w_q, w_k, w_v, w_o, 1)


@exercise.wrong(
    "The heads take every h-th column and are joined in another order. Both go by "
    "blocks of neighboring columns: reshape to (n, heads, d / heads), heads first."
)
def interleaved_and_joined_in_blocks(x, w_q, w_k, w_v, w_o, heads):
    """Split as (d h), and join as (h d)."""
    eye, pattern = np.eye(len(w_o)), "n (d h) -> h n d"
    joined = _layer(x, w_q, w_k, w_v, eye, heads, pattern=pattern)
    return rearrange(joined, "n (d h) -> n (h d)", h=heads) @ w_o


@exercise.wrong(
    "The projections of queries, keys and values are transposed. Rows are tokens, so "
    "each is x @ w, as the output projection is."
)
def transposed_projections(x, w_q, w_k, w_v, w_o, heads):
    """Multiply by transposed matrices, except at the end."""
    return _layer(x, w_q.T, w_k.T, w_v.T, w_o, heads)


@exercise.wrong(
    "The matrices are transposed. Rows are tokens, so a projection is x @ w, not "
    "x @ w.T (nn.Linear stores its weight transposed, which often causes this)."
)
def transposed_matrices(x, w_q, w_k, w_v, w_o, heads):
    """Multiply by transposed matrices."""
    return _layer(x, w_q.T, w_k.T, w_v.T, w_o.T, heads)


@exercise.wrong(
    "The scores are not scaled. Each head divides its scores by the square root of its "
    "own width, d / heads."
)
def without_scale(x, w_q, w_k, w_v, w_o, heads):
    """Forget the scale."""
    return _layer(x, w_q, w_k, w_v, w_o, heads, scale=1.0)


@exercise.wrong(
    "The softmax runs over the queries. Each query needs weights that sum to 1 over "
    "the keys: the last axis of the scores."
)
def softmax_over_queries(x, w_q, w_k, w_v, w_o, heads):
    """Normalize down the columns."""
    return _layer(x, w_q, w_k, w_v, w_o, heads, axis=-2)


@exercise.wrong(
    "The softmax runs over the heads, so they share a weight of 1 for each pair of "
    "tokens. Each head has weights of its own, which sum to 1 over the keys."
)
def softmax_over_heads(x, w_q, w_k, w_v, w_o, heads):
    """Normalize over the axis of heads."""
    return _layer(x, w_q, w_k, w_v, w_o, heads, axis=0)


@exercise.wrong(
    "The heads are joined by reshape alone, which mixes tokens: the axis of heads is "
    "still first. Move it behind the tokens, then merge the last two axes."
)
def joined_at_once(x, w_q, w_k, w_v, w_o, heads):
    """Reshape (h, n, d) to (n, h d) without moving an axis."""
    joined = _layer(x, w_q, w_k, w_v, np.eye(len(w_o)), heads)
    by_head = rearrange(joined, "n (h d) -> h n d", h=heads)
    return by_head.reshape(x.shape) @ w_o


@exercise.wrong(
    "The heads are split by reshape alone: to (heads, n, d / heads) at once, so a head "
    "gets some of the tokens instead of some of the columns. Reshape to (n, heads, "
    "d / heads), then move the axis of heads to the front."
)
def split_and_joined_at_once(x, w_q, w_k, w_v, w_o, heads):
    """Reshape (n, h d) to (h, n, d), and back, without moving an axis."""
    n, d = x.shape
    q, k, v = ((x @ w).reshape(heads, n, d // heads) for w in (w_q, w_k, w_v))
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(d // heads)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True) @ v).reshape(n, d) @ w_o
