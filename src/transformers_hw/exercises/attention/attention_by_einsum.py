"""Dot-product attention.

Write `attention(query, key, value)`: scaled dot-product attention without masks. Rows
are tokens: `query` has the shape (..., n, d), `key` (..., m, d) and `value`
(..., m, e). The scores of a query with all keys are divided by √d and turned into
weights by a softmax; the output, of shape (..., n, e), is the weighted average of the
values. The axes before the last two are a batch, which attention leaves alone.
"""

import numpy as np
from einops import einsum

from transformers_hw.exercises.kinds import Code

exercise = Code(
    level="core",
    read="attention#ten-lines-of-code",
    hints=(
        "Name the axes: q for queries, k for keys, d for their width, e for that of "
        "values. The scores are `... q d, ... k d -> ... q k`.",
        "The softmax runs over the keys, the last axis of the scores.",
        "The output is `... q k, ... k e -> ... q e`.",
    ),
    points=2,
    questions=("nyu-1.1a", "eecs-2a"),
)


@exercise.cases
def cases(rng):
    """Yield a tiny case, batches, one key, and values wider than keys."""
    eye = np.eye(2)
    yield eye, 2 * eye, np.array([[1.0, 0.0, 3.0], [0.0, 2.0, 1.0]])
    for batch, n, m, d, e in (
        ((), 3, 5, 4, 6),
        ((2,), 4, 3, 9, 5),
        ((2, 3), 2, 6, 5, 4),
    ):
        yield (
            rng.normal(size=(*batch, n, d)),
            rng.normal(size=(*batch, m, d)),
            rng.normal(size=(*batch, m, e)),
        )
    yield rng.normal(size=(3, 2)), rng.normal(size=(1, 2)), rng.normal(size=(1, 4))


@exercise.solution
def attention(query, key, value):
    """Return the weighted averages of the values, one for each query."""
    scores = einsum(query, key, "... q d, ... k d -> ... q k")
    scores = scores / np.sqrt(query.shape[-1])
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)
    return einsum(weights, value, "... q k, ... k e -> ... q e")


@exercise.right
def by_matrix_products(query, key, value):
    """Multiply matrices."""
    scores = query @ np.swapaxes(key, -1, -2) / query.shape[-1] ** 0.5
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (weights @ value) / weights.sum(-1)[..., None]


@exercise.right
def by_loops(query, key, value):
    """Take one query and one key at a time."""
    batch, (n, d), m = query.shape[:-2], query.shape[-2:], key.shape[-2]
    outputs = np.zeros((*batch, n, value.shape[-1]))
    for at in np.ndindex(*batch, n):
        own = at[:-1]
        scores = [query[at] @ key[(*own, j)] / np.sqrt(d) for j in range(m)]
        powers = np.exp(np.array(scores) - max(scores))
        for j in range(m):
            outputs[at] += powers[j] / powers.sum() * value[(*own, j)]
    return outputs


def _attend(scores, value, axis=-1):
    weights = np.exp(scores - scores.max(axis=axis, keepdims=True))
    return weights / weights.sum(axis=axis, keepdims=True) @ value


@exercise.wrong(
    "The scores are not scaled. Divide them by √d, the square root of the width of a "
    "query, before the softmax; without it, the weights sharpen as d grows."
)
def without_scale(query, key, value):
    """Forget to divide by √d."""
    return _attend(query @ np.swapaxes(key, -1, -2), value)


@exercise.wrong(
    "You divide by d. The scale is 1/√d: the standard deviation of a dot product of d "
    "random terms grows like √d, not like d."
)
def scale_without_root(query, key, value):
    """Divide by d."""
    return _attend(query @ np.swapaxes(key, -1, -2) / query.shape[-1], value)


@exercise.wrong(
    "You scale by the width of the values. Queries and keys are what is compared, so d "
    "is their width, query.shape[-1]."
)
def scale_of_values(query, key, value):
    """Divide by the root of the width of the values."""
    return _attend(query @ np.swapaxes(key, -1, -2) / value.shape[-1] ** 0.5, value)


@exercise.wrong(
    "The softmax runs over the queries, so each *key* hands out a total weight of 1. "
    "Each query needs weights that sum to 1 over the keys: the last axis of the scores."
)
def softmax_over_queries(query, key, value):
    """Normalize down the columns."""
    scores = query @ np.swapaxes(key, -1, -2) / query.shape[-1] ** 0.5
    return _attend(scores, value, axis=-2)


@exercise.wrong(
    "The scores multiply the values directly: the softmax is missing. Without it, "
    "weights can be negative and do not sum to 1, so the output is not an average."
)
def without_softmax(query, key, value):
    """Forget the softmax."""
    return query @ np.swapaxes(key, -1, -2) / query.shape[-1] ** 0.5 @ value


@exercise.wrong(
    "The scale comes after the softmax, where it only shrinks the output. It belongs "
    "inside: softmax(scores / √d)."
)
def scale_after_softmax(query, key, value):
    """Divide the weights instead of the scores."""
    return _attend(query @ np.swapaxes(key, -1, -2), value) / query.shape[-1] ** 0.5


@exercise.wrong(
    "This works for matrices and stops on a batch. With more than two axes, `.T` "
    "reverses all of them: use np.swapaxes(key, -1, -2). In an einsum, begin each "
    "part of the pattern with `...`."
)
def matrices_only(query, key, value):
    """Allow no axes before the last two."""
    if query.ndim > 2:
        raise ValueError("axes do not match")
    return _attend(query @ key.T / query.shape[-1] ** 0.5, value)
