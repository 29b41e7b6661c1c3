"""Scores of a Gaussian head.

Write `gaussian_scores(rows, columns, query, center, sharpness)`: the scores of one
query pixel with all pixels of an image, for a Gaussian head. The score of a key is
-α ‖δ - Δ‖², where the offset δ is key minus query, Δ is the head's center, and α its
sharpness. `query` and `center` are pairs (row, column), and pixels are counted from 0.
The result has shape (rows, columns), one score for each key. Return the scores
themselves: do not apply the softmax.
"""

import numpy as np

from transformers_hw.exercises.kinds import Code

exercise = Code(
    level="warm-up",
    read="attention_as_convolution#scores-that-know-only-the-offset",
    hints=(
        "The score is 0 at the pixel query + center, if it is in the image, and "
        "negative elsewhere.",
        "A squared distance is a sum over the two axes. Compute one vector for the "
        "rows and one for the columns, and add them with broadcasting.",
        "Along the rows, δ - Δ is np.arange(rows) - query[0] - center[0].",
    ),
    questions=("eth-1b.1",),
)


@exercise.cases
def cases(rng):
    """Yield the chapter's row of pixels, then images, and a center outside."""
    yield 1, 4, (0, 1), (0.0, 1.0), 2.0
    yield 3, 5, (1, 2), (-1.0, 2.0), 0.5
    yield 4, 3, (0, 2), (2.0, 1.0), 3.0
    yield 5, 4, (3, 1), (0.5, -0.25), 1.5
    yield 2, 3, (1, 0), (-4.0, 7.0), 1.0


@exercise.solution
def gaussian_scores(rows, columns, query, center, sharpness):
    """Return the score of each key pixel."""
    down = np.arange(rows) - query[0] - center[0]
    across = np.arange(columns) - query[1] - center[1]
    return -sharpness * (down[:, None] ** 2 + across**2)


@exercise.right
def by_loops(rows, columns, query, center, sharpness):
    """Take one key at a time."""
    scores = np.zeros((rows, columns))
    for key in np.ndindex(rows, columns):
        offset = np.subtract(key, query)
        scores[key] = -sharpness * np.sum((offset - np.array(center)) ** 2)
    return scores


@exercise.right
def by_multiplying_out(rows, columns, query, center, sharpness):
    """Expand the square, and keep the constant."""
    keys = np.moveaxis(np.indices((rows, columns)), 0, -1)
    offsets, delta = keys - np.array(query), np.array(center)
    squares = (offsets**2).sum(-1) - 2 * offsets @ delta + delta @ delta
    return -sharpness * squares


def _scores(rows, columns, target, sharpness):
    down, across = np.arange(rows) - target[0], np.arange(columns) - target[1]
    return -sharpness * (down[:, None] ** 2 + across**2)


@exercise.wrong(
    "Your head attends to query - center: your offset is query minus key. Here it is "
    "key minus query, so a center of (0, 1) means one column to the *right*."
)
def mirrored(rows, columns, query, center, sharpness):
    """Take query minus key."""
    target = np.subtract(query, center)
    return _scores(rows, columns, target, sharpness)


@exercise.wrong(
    "The query plays no part: your scores are largest at the pixel with the center's "
    "coordinates. A center is relative, so subtract the query from each key first."
)
def absolute(rows, columns, query, center, sharpness):
    """Read the center as a pixel of the image."""
    return _scores(rows, columns, center, sharpness)


@exercise.wrong(
    "You multiply by the distance, not by its square. Only the square makes the "
    "weights a Gaussian, and only the square expands into a dot product."
)
def not_squared(rows, columns, query, center, sharpness):
    """Take the root."""
    squares = -_scores(rows, columns, np.add(query, center), 1.0)
    return -sharpness * np.sqrt(squares)


@exercise.wrong(
    "The coordinates of the center are exchanged. As for every pixel here, the first "
    "one counts rows, downwards, and the second one columns."
)
def x_before_y(rows, columns, query, center, sharpness):
    """Read the center as (column, row)."""
    return _scores(rows, columns, np.add(query, center[::-1]), sharpness)


@exercise.wrong(
    "You divide by 2α, as if α were a variance. It is a sharpness: the larger α, the "
    "narrower the head. The variance is 1/(2α)."
)
def as_variance(rows, columns, query, center, sharpness):
    """Divide by twice the sharpness."""
    return _scores(rows, columns, np.add(query, center), 0.5 / sharpness)


@exercise.wrong(
    "Your scores are too large by α ‖Δ‖²: the last term of the expanded square is "
    "missing. Softmax would ignore it, but here the score is 0 at the target."
)
def without_constant(rows, columns, query, center, sharpness):
    """Leave out the term that is the same for all keys."""
    scores = _scores(rows, columns, np.add(query, center), sharpness)
    return scores + sharpness * np.dot(center, center)


@exercise.wrong(
    "The center plays no part: your scores are largest at the query itself. Subtract "
    "the center from each offset."
)
def without_center(rows, columns, query, center, sharpness):
    """Measure the distance from the query."""
    return _scores(rows, columns, query, sharpness)


@exercise.wrong(
    "You return weights, with the softmax applied. The scores are what enters the "
    "softmax."
)
def weights(rows, columns, query, center, sharpness):
    """Apply the softmax."""
    scores = _scores(rows, columns, np.add(query, center), sharpness)
    powers = np.exp(scores - scores.max())
    return powers / powers.sum()
