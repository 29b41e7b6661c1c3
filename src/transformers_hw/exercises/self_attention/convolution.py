"""A convolution from heads.

A layer has k heads, k odd. Head r, counted from 0, attends with all its weight to the
token at distance r - (k - 1)/2: the first head attends farthest to the left. At the
ends of the sequence it attends to the nearest token there is (replicate padding). Its
matrix is matrices[r], of shape (d, e). Write `convolution(x, matrices)` for tokens `x`
of shape (n, d): the sum of what all heads contribute, of shape (n, e). It is a
convolution as deep learning uses the word, without flipping the kernel.
"""

import numpy as np

from transformers_hw.exercises.kinds import Code

exercise = Code(
    level="challenge",
    read="self_attention#layers-that-are-convolutions",
    hints=(
        "Head r at position i reads row i + r - (k - 1) // 2 of x.",
        "np.clip keeps the row numbers between 0 and n - 1.",
        "The output is a sum over heads of x[rows] @ matrices[r].",
    ),
    points=3,
    questions=("nyu-1.3e",),
)


@exercise.cases
def cases(rng):
    """Yield the edge of the chapter, then wider kernels and a short sequence."""
    edge = np.array([[2.0], [2.0], [8.0], [8.0]])
    yield edge, np.array([[[-1.0]], [[0.0]], [[1.0]]])
    for n, k, d, e in ((6, 3, 2, 4), (7, 5, 3, 2), (5, 1, 2, 3), (2, 5, 2, 2)):
        yield rng.normal(size=(n, d)), rng.normal(size=(k, d, e))


def _heads(x, matrices, rows):
    n, k = len(x), len(matrices)
    return sum(x[rows(np.arange(n), r, k // 2, n)] @ matrices[r] for r in range(k))


@exercise.solution
def convolution(x, matrices):
    """Return the sum of all heads' contributions."""
    n, k = len(x), len(matrices)
    output = 0.0
    for r, matrix in enumerate(matrices):
        rows = np.clip(np.arange(n) + r - k // 2, 0, n - 1)
        output = output + x[rows] @ matrix
    return output


@exercise.right
def by_padding(x, matrices):
    """Pad both ends, then take windows."""
    n, k = len(x), len(matrices)
    padded = np.pad(x, ((k // 2, k // 2), (0, 0)), mode="edge")
    windows = np.stack([padded[r : r + n] for r in range(k)])
    return np.einsum("knd,kde->ne", windows, matrices)


@exercise.right
def by_tables(x, matrices):
    """Write down the attention matrix of each head."""
    n, k = len(x), len(matrices)
    output = np.zeros((n, matrices.shape[-1]))
    for r in range(k):
        table = np.zeros((n, n))
        for i in range(n):
            table[i, min(max(i + r - k // 2, 0), n - 1)] = 1.0
        output += table @ x @ matrices[r]
    return output


@exercise.wrong(
    "The kernel is flipped: your first head looks to the right. Here head 0 looks "
    "farthest to the left. (Mathematicians flip; deep learning does not.)"
)
def flipped(x, matrices):
    """Turn the kernel around."""
    return _heads(x, matrices[::-1], lambda i, r, h, n: np.clip(i + r - h, 0, n - 1))


@exercise.wrong(
    "The ends wrap around: the first position reads the last token. Attend to the "
    "nearest token instead, so clip the row numbers."
)
def circular(x, matrices):
    """Wrap around at the ends."""
    return _heads(x, matrices, lambda i, r, h, n: (i + r - h) % n)


@exercise.wrong(
    "Beyond the ends you read zeros. An attention head cannot: its weights sum to 1, "
    "so it must attend to some token, here the nearest one."
)
def zero_padded(x, matrices):
    """Pad with zeros."""
    half = len(matrices) // 2
    padded = np.pad(x, ((half, half), (0, 0)))
    return sum(padded[r : r + len(x)] @ w for r, w in enumerate(matrices))


@exercise.wrong(
    "Your heads begin at the query itself and look to the right only. The middle head, "
    "number (k - 1)/2, is the one that stays."
)
def not_centered(x, matrices):
    """Start at distance zero."""
    return _heads(x, matrices, lambda i, r, h, n: np.clip(i + r, 0, n - 1))


@exercise.wrong(
    "This averages the heads. Their contributions are added; dividing by k changes the "
    "kernel."
)
def averaged(x, matrices):
    """Divide by the number of heads."""
    total = _heads(x, matrices, lambda i, r, h, n: np.clip(i + r - h, 0, n - 1))
    return total / len(matrices)


@exercise.wrong(
    "Beyond the ends you mirror the sequence. Here all positions beyond an end read "
    "the token at that end: clip the row numbers."
)
def reflected(x, matrices):
    """Pad by reflection."""
    n, k = len(x), len(matrices)
    rows = np.arange(n)[:, None] + np.arange(k) - (k - 1) // 2
    rows = np.abs(rows)
    rows = np.clip(np.where(rows > n - 1, 2 * (n - 1) - rows, rows), 0, n - 1)
    return sum(x[rows[:, r]] @ matrices[r] for r in range(k))
