"""A permutation as a picture.

Write `picture(order)`: the attention matrix T that rearranges tokens. `order` lists,
for each output position, the position of the token it receives, counted from 0: with
order = [1, 2, 0], output 0 receives token 1. Tokens are rows, so the output is T X, and
T has shape (n, n).
"""

import numpy as np

from transformers_hw.exercises.kinds import Code

exercise = Code(
    level="warm-up",
    read="self_attention#three-tokens-by-hand",
    hints=(
        "Row i of T holds the weights of output i, so it has a single 1, in column "
        "order[i].",
        "np.eye(n)[order] picks rows of the identity matrix.",
    ),
    questions=("nyu-1.3c",),
)


@exercise.cases
def cases(rng):
    """Yield a cycle of three first: it differs from its inverse."""
    yield (np.array([1, 2, 0]),)
    yield (np.array([2, 0, 3, 1]),)
    yield (np.array([0]),)
    yield (np.array([1, 2, 3, 4, 0]),)
    yield (rng.permutation(7),)


@exercise.solution
def picture(order):
    """Return the matrix that rearranges the rows."""
    return np.eye(len(order))[order]


@exercise.right
def by_comparison(order):
    """Compare every column's number with the wanted one."""
    return (np.arange(len(order)) == np.asarray(order)[:, None]).astype(float)


@exercise.right
def by_loop(order):
    """Write one entry per row."""
    matrix = np.zeros((len(order), len(order)))
    for i, j in enumerate(order):
        matrix[i, j] = 1.0
    return matrix


@exercise.wrong(
    "This is the inverse permutation: it sends token i *to* position order[i]. Row i "
    "must name the token that output i receives. A cycle of three tells the two apart."
)
def inverse(order):
    """Transpose the matrix."""
    return np.eye(len(order))[order].T


@exercise.wrong(
    "All tokens stay where they are: this is the identity. The order has no effect "
    "on it."
)
def identity(order):
    """Forget the order."""
    return np.eye(len(order))


@exercise.wrong(
    "You count positions from 1, so every token is taken from one position too early. "
    "Positions begin at 0 here."
)
def from_one(order):
    """Subtract one from the order."""
    return np.eye(len(order))[np.asarray(order) - 1]


@exercise.wrong(
    "This lists the order in one column of numbers instead of a picture. T has a row "
    "for every output and a column for every token."
)
def not_a_matrix(order):
    """Return the order itself."""
    return np.asarray(order, dtype=float)[:, None]
