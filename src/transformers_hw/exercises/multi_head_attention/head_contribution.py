"""What one head contributes.

The output of a layer is a sum over heads, Σ A_r X B_r with B_r = W_v^(r) W_o^(r). Write
`contribution(weights, x, w_v, w_o, head)`: the term of one head, counted from 0.
`weights` has shape (h, n, n), one table of attention weights per head; `x` has shape
(n, d); `w_v` has shape (d, h · e), the blocks of the heads side by side; `w_o` has
shape (h · e, d), the strips of the heads below each other. The head dimension e need
not be d / h. The result has shape (n, d).
"""

import numpy as np

from transformers_hw.exercises.kinds import Code

exercise = Code(
    level="core",
    read="multi_head_attention#a-head-is-where-times-what",
    hints=(
        "Head r owns columns r·e to (r + 1)·e of w_v, and the same rows of w_o.",
        "e is the number of columns of w_v divided by the number of heads.",
    ),
    points=2,
)


@exercise.cases
def cases(rng):
    """Yield the headline of the chapter, then random layers."""
    where = np.array([[[1.0, 0.0], [0.5, 0.5]], [[0.0, 1.0], [0.2, 0.8]]])
    x = np.array([[1.0, 10.0], [3.0, 4.0]])
    values = np.array([[0.0, 0.0], [1.0, 1.0]])
    yield where, x, values, np.array([[1.0, 0.0], [2.0, 1.0]]), 1
    for h, n, d, e, head in (
        (3, 4, 5, 2, 0),
        (2, 3, 4, 3, 1),
        (4, 5, 3, 1, 2),
        (1, 2, 3, 4, 0),
    ):
        table = rng.random((h, n, n))
        yield (
            table / table.sum(-1, keepdims=True),
            rng.normal(size=(n, d)),
            rng.normal(size=(d, h * e)),
            rng.normal(size=(h * e, d)),
            head,
        )


@exercise.solution
def contribution(weights, x, w_v, w_o, head):
    """Return what one head adds to the output."""
    e = w_v.shape[1] // len(weights)
    own = slice(head * e, (head + 1) * e)
    return weights[head] @ x @ (w_v[:, own] @ w_o[own])


@exercise.right
def by_splitting(weights, x, w_v, w_o, head):
    """Split both matrices, and pick a part of each."""
    h = len(weights)
    values = x @ np.split(w_v, h, axis=1)[head]
    return weights[head] @ values @ np.split(w_o, h, axis=0)[head]


@exercise.right
def by_blanking(weights, x, w_v, w_o, head):
    """Run the layer with the strips of all other heads set to zero."""
    h, rows = len(weights), np.arange(len(w_o))
    strips = np.where((rows // (len(w_o) // h) == head)[:, None], w_o, 0.0)
    values = np.split(x @ w_v, h, axis=1)
    joined = np.concatenate(
        [a @ v for a, v in zip(weights, values, strict=True)], axis=1
    )
    return joined @ strips


def _sum(weights, x, w_v, w_o):
    values = np.split(x @ w_v, len(weights), axis=1)
    joined = [a @ v for a, v in zip(weights, values, strict=True)]
    return np.concatenate(joined, axis=1) @ w_o


@exercise.wrong(
    "That is the output of the whole layer: all heads are in it. Take the columns of "
    "w_v and the rows of w_o that belong to this head alone."
)
def all_heads(weights, x, w_v, w_o, head):
    """Add up all heads."""
    return _sum(weights, x, w_v, w_o)


@exercise.wrong(
    "You use this head's weights with the values and outputs of *all* heads. A head "
    "has its own block of w_v and its own strip of w_o."
)
def whole_matrices(weights, x, w_v, w_o, head):
    """Multiply by the whole matrices."""
    return weights[head] @ x @ w_v @ w_o


@exercise.wrong(
    "The heads' columns are taken in turns, every h-th one. They lie side by side as "
    "blocks: head r has columns r·e to (r + 1)·e."
)
def strided(weights, x, w_v, w_o, head):
    """Take every h-th column."""
    h = len(weights)
    return weights[head] @ x @ (w_v[:, head::h] @ w_o[head::h])


@exercise.wrong(
    "You count heads from 1: this is the contribution of the head before. The first "
    "head is number 0."
)
def from_one(weights, x, w_v, w_o, head):
    """Take the head before."""
    h, e = len(weights), w_v.shape[1] // len(weights)
    other = (head - 1) % h
    own = slice(other * e, (other + 1) * e)
    return weights[other] @ x @ (w_v[:, own] @ w_o[own])


@exercise.wrong(
    "The weights are transposed: row i of a table holds the weights of query i over "
    "the keys, so it multiplies the tokens from the left as it is."
)
def transposed(weights, x, w_v, w_o, head):
    """Use the weights of the keys over queries."""
    e = w_v.shape[1] // len(weights)
    own = slice(head * e, (head + 1) * e)
    return weights[head].T @ x @ (w_v[:, own] @ w_o[own])


@exercise.wrong(
    "You take d / h for the width of a head. Here e can be any number: divide the "
    "columns of w_v by the number of heads."
)
def width_of_the_tokens(weights, x, w_v, w_o, head):
    """Divide the width of the tokens by the number of heads."""
    e = x.shape[1] // len(weights)
    own = slice(head * e, (head + 1) * e)
    return weights[head] @ x @ (w_v[:, own] @ w_o[own])
