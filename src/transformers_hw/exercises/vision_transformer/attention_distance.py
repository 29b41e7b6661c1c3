"""How far a head attends.

Write `attention_distance(weights, rows, columns, size)`: the attention distance of each
head, in pixels. `weights` has shape (h, 1 + N, 1 + N) with N = rows · columns: the
attention of h heads on one image, from queries (second axis) to keys (last axis). Token
0 is the class token; the others are the patches of the grid in reading order, squares
of `size` by `size` pixels. Drop the row and the column of the class token, and scale
the rest of each row to sum to 1 again. With these weights, average the distances from
the center of the query's patch to the centers of all patches. Then take the mean over
the queries. The result has shape (h,). Every patch gives some weight to patches.
"""

import numpy as np
from einops import einsum, reduce

from transformers_hw.exercises.kinds import Code

exercise = Code(
    level="core",
    read="vision_transformer#attention-distance",
    hints=(
        "Patch number t, counted from 0 without the class token, lies in row "
        "t // columns and in column t % columns of the grid.",
        "Make the table of all distances first, of shape (N, N). It is the same for "
        "all heads.",
        "Distances are straight lines: the root of the sum of two squares, times size.",
    ),
    points=2,
    questions=("quiz-2.8",),
)


@exercise.cases
def cases(rng):
    """Yield two patches by hand, then grids that are not square, and one patch."""
    half = [[1.0, 0.0, 0.0], [0.5, 0.25, 0.25], [0.0, 0.0, 1.0]]
    yield np.array([half]), 1, 2, 16
    for h, rows, columns, size in (
        (2, 2, 3, 4),
        (3, 3, 2, 16),
        (1, 4, 3, 8),
        (4, 3, 5, 2),
        (2, 1, 1, 16),
    ):
        table = rng.random((h, 1 + rows * columns, 1 + rows * columns)) ** 2 + 0.01
        yield table / table.sum(-1, keepdims=True), rows, columns, size


@exercise.solution
def attention_distance(weights, rows, columns, size):
    """Return the mean distance over which each head attends."""
    place = size * np.stack(np.divmod(np.arange(rows * columns), columns), axis=-1)
    distance = np.linalg.norm(place[:, None] - place, axis=-1)
    own = weights[:, 1:, 1:]
    own = own / reduce(own, "h q k -> h q 1", "sum")
    return einsum(own, distance, "h q k, q k -> h q").mean(axis=-1)


@exercise.right
def by_loops(weights, rows, columns, size):
    """Go through all pairs of patches."""
    means = np.zeros(len(weights))
    grid = [(r, s) for r in range(rows) for s in range(columns)]
    for head, table in enumerate(weights):
        for q, (r, s) in enumerate(grid, start=1):
            total = table[q].sum() - table[q, 0]
            for k, (t, u) in enumerate(grid, start=1):
                distance = size * ((r - t) ** 2 + (s - u) ** 2) ** 0.5
                means[head] += table[q, k] / total * distance / len(grid)
    return means


@exercise.right
def by_meshgrid(weights, rows, columns, size):
    """Use complex numbers as centers."""
    down, right = np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij")
    centers = (right + 1j * down).flatten() * size
    distance = np.abs(np.subtract.outer(centers, centers))
    own = weights[:, 1:, 1:]
    return ((own * distance).sum(-1) / own.sum(-1)).mean(-1)


def _distance(weights, steps):
    own = weights[:, 1:, 1:]
    return ((own * steps).sum(-1) / own.sum(-1)).mean(-1)


def _steps(rows, columns, width):
    down, right = np.divmod(np.arange(rows * columns), width)
    return np.subtract.outer(down, down), np.subtract.outer(right, right)


@exercise.wrong(
    "The rows no longer sum to 1 after the class token is dropped, so its share counts "
    "as a distance of 0. Divide each row by what is left of its sum."
)
def not_scaled_again(weights, rows, columns, size):
    """Drop the class token and no more."""
    distance = size * np.hypot(*_steps(rows, columns, columns))
    return (weights[:, 1:, 1:] * distance).sum(-1).mean(-1)


@exercise.wrong(
    "Your distances are counted in patches. In pixels, neighboring centers are `size` "
    "apart, which makes models with different patches comparable."
)
def in_patches(weights, rows, columns, size):
    """Forget the size of a patch."""
    return _distance(weights, np.hypot(*_steps(rows, columns, columns)))


@exercise.wrong(
    "You measure along the sequence of tokens, so the patch below is as far as a whole "
    "row. Distances are in the image: find row and column of each patch first."
)
def along_the_sequence(weights, rows, columns, size):
    """Use the difference of token numbers."""
    order = np.arange(rows * columns)
    return _distance(weights, size * np.abs(np.subtract.outer(order, order)))


@exercise.wrong(
    "Rows and columns of the grid are mixed up: you divide the patch number by the "
    "number of rows. A row of the grid holds `columns` patches. Square grids hide this "
    "slip."
)
def rows_for_columns(weights, rows, columns, size):
    """Divide by the number of rows."""
    return _distance(weights, size * np.hypot(*_steps(rows, columns, rows)))


@exercise.wrong(
    "You add the steps down and across. The distance between two centers is a straight "
    "line: the root of the sum of their squares."
)
def by_city_blocks(weights, rows, columns, size):
    """Add the absolute differences."""
    down, right = _steps(rows, columns, columns)
    return _distance(weights, size * (np.abs(down) + np.abs(right)))


@exercise.wrong(
    "You divide by the number of keys as well, N times too much. The weights of a "
    "query sum to 1, so their sum with the distances is an average already; take the "
    "mean over the queries only."
)
def mean_over_keys(weights, rows, columns, size):
    """Take the mean over both axes."""
    distance = size * np.hypot(*_steps(rows, columns, columns))
    return _distance(weights, distance) / (rows * columns)


@exercise.wrong(
    "You average the *squared* distances. Take the root of the two squares before you "
    "average."
)
def squared(weights, rows, columns, size):
    """Forget the root."""
    distance = size * np.hypot(*_steps(rows, columns, columns))
    return _distance(weights, distance**2)
