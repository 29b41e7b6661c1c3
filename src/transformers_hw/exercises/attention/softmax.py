"""Softmax with a scale.

Write `softmax(scores, scale)`. It multiplies the scores by the scale, takes
exponentials, and divides each row by its sum, so that every row becomes weights that
sum to 1. Rows run along the last axis; there may be any number of axes before it. One
row may hold scores around 1000 and another scores around -1000; no weight may overflow
or become NaN.
"""

import numpy as np

from transformers_hw.exercises.kinds import Code

exercise = Code(
    level="warm-up",
    read="attention#the-scale-is-a-dial",
    hints=(
        "The sum that you divide by runs over the last axis only: axis=-1.",
        "With keepdims=True, the sums keep an axis of length 1 and divide row by row.",
        "Subtracting the largest score of a row before taking exponentials changes no "
        "weight, and no exponential can then exceed 1.",
    ),
    questions=("nyu-1.1b",),
)


@exercise.cases
def cases(rng):
    """Yield rows, stacks of rows, a scale of zero, and large scores."""
    yield np.array([[0.0, 1.0, 2.0], [1.0, 1.0, 1.0]]), 1.0
    yield rng.normal(size=(3, 4)), 0.5
    yield rng.normal(size=(2, 3, 5)), 2.0
    yield rng.normal(size=(2, 6)), 0.0
    rows = [[1000.0, 999.0], [400.0, 399.0], [-1000.0, -1002.0]]
    yield np.array(rows), 2.0


@exercise.solution
def softmax(scores, scale):
    """Return the weights of each row of scores."""
    scaled = scale * scores
    weights = np.exp(scaled - scaled.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


@exercise.right
def row_by_row(scores, scale):
    """Work on one row after the other."""
    rows = []
    for row in np.reshape(scale * scores, (-1, scores.shape[-1])):
        powers = [np.exp(x - max(row)) for x in row]
        rows.append([x / sum(powers) for x in powers])
    return np.reshape(rows, scores.shape)


@exercise.right
def by_logarithms(scores, scale):
    """Subtract the logarithm of the sum."""
    scaled = scale * scores
    return np.exp(scaled - np.logaddexp.reduce(scaled, axis=-1, keepdims=True))


@exercise.wrong(
    "You divide by the sum of all exponentials, so all weights together sum to 1. "
    "Every row needs its own sum: keep the last axis apart with axis=-1, keepdims=True."
)
def one_sum_for_all(scores, scale):
    """Divide by the sum over all axes."""
    weights = np.exp(scale * scores - (scale * scores).max())
    return weights / weights.sum()


@exercise.wrong(
    "Your weights sum to 1 down the columns. A row holds the scores of one query, so "
    "the sum must run over the last axis, axis=-1."
)
def over_the_first_axis(scores, scale):
    """Divide by the sum over the first axis."""
    scaled = scale * scores
    weights = np.exp(scaled - scaled.max(axis=0))
    return weights / weights.sum(axis=0)


@exercise.wrong(
    "Large scores overflow: exp(1000) is infinite, and infinity divided by infinity is "
    "not a number. Subtract the largest score of each row first; the weights stay the "
    "same."
)
def overflowing(scores, scale):
    """Take exponentials of the scores as they are."""
    weights = np.exp(scale * scores)
    return weights / weights.sum(axis=-1, keepdims=True)


@exercise.wrong(
    "The scale has no effect. It multiplies the scores before the exponential; a "
    "factor after it cancels when you divide by the sum."
)
def scale_that_cancels(scores, scale):
    """Forget the scale, or multiply exponentials by it."""
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


@exercise.wrong(
    "You divide the scores by the scale. Here the scale β multiplies them, as in "
    "softmax(β · scores); a *temperature* would divide."
)
def divided_by_the_scale(scores, scale):
    """Divide by the scale, as by a temperature."""
    scaled = scores / scale
    weights = np.exp(scaled - scaled.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


@exercise.wrong(
    "The largest score of each row is subtracted, as it should be, but you divide by "
    "one sum for all rows. Give sum axis=-1 and keepdims=True, too."
)
def own_maximum_but_one_sum(scores, scale):
    """Subtract the maximum of a row, and divide by the sum over all axes."""
    scaled = scale * scores
    weights = np.exp(scaled - scaled.max(axis=-1, keepdims=True))
    return weights / weights.sum()


@exercise.wrong(
    "You subtract one maximum from all rows. If another row lies far below it, all its "
    "exponentials become 0, and 0/0 is NaN. Subtract the maximum of each row."
)
def one_maximum_for_all(scores, scale):
    """Subtract the maximum over all axes."""
    scaled = scale * scores
    weights = np.exp(scaled - scaled.max())
    return weights / weights.sum(axis=-1, keepdims=True)


@exercise.wrong(
    "You subtract the largest score before it is scaled. With a scale above 1, the "
    "exponents can still be large: scale first, then take the maximum."
)
def unscaled_maximum(scores, scale):
    """Subtract the maximum of the unscaled scores."""
    weights = np.exp(scale * scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


@exercise.wrong(
    "You sum along axis 1, which is the last axis of a matrix only. With more axes, "
    "rows run along the last one: axis=-1."
)
def over_axis_one(scores, scale):
    """Divide by the sum over the second axis."""
    scaled = scale * scores
    weights = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)
