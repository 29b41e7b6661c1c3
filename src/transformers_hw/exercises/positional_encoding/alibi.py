"""ALiBi: a penalty per step.

Write `alibi(slopes, length)`, the biases that ALiBi adds to the scores of causal
attention. `slopes` is an array with one slope per head, and the result has shape
(heads, length, length). Query i gets the bias
-slope · (i - j) for key j at or before its position; for later keys the bias is -inf,
since a causal query must not see them.
"""

import numpy as np

from transformers_hw.exercises.kinds import Code

exercise = Code(
    level="core",
    read="positional_encoding#alibi-a-penalty-per-step",
    hints=(
        "The distance i - j for all pairs: np.arange(length)[:, None] - "
        "np.arange(length).",
        "An outer product of slopes and distances needs two new axes for the slopes.",
        "np.where chooses between the penalty and -inf.",
    ),
)


@exercise.cases
def cases(rng):
    """Yield one head, several, and a single token."""
    yield np.array([1.0]), 3
    yield np.array([0.5, 0.25]), 4
    yield rng.random(3) + 0.1, 5
    yield np.array([2.0, 1.0]), 1


@exercise.solution
def alibi(slopes, length):
    """Return the biases of all heads."""
    distance = np.arange(length)[:, None] - np.arange(length)
    return np.where(distance >= 0, -slopes[:, None, None] * distance, -np.inf)


@exercise.right
def by_loops(slopes, length):
    """Fill in number by number."""
    bias = np.full((len(slopes), length, length), -np.inf)
    for h, slope in enumerate(slopes):
        for i in range(length):
            for j in range(i + 1):
                bias[h, i, j] = -slope * (i - j)
    return bias


@exercise.right
def by_einsum(slopes, length):
    """Multiply by an outer product, then hide the future."""
    steps = np.arange(length)
    bias = np.einsum("h,ij->hij", slopes, np.subtract.outer(-steps, -steps) * 1.0)
    bias[:, np.triu_indices(length, 1)[0], np.triu_indices(length, 1)[1]] = -np.inf
    return bias


@exercise.wrong(
    "Far keys get a bonus instead of a penalty. The bias is negative and falls with "
    "the distance: nearby keys are preferred."
)
def bonus(slopes, length):
    """Forget the minus sign."""
    distance = np.arange(length)[:, None] - np.arange(length)
    return np.where(distance >= 0, slopes[:, None, None] * distance, -np.inf)


@exercise.wrong(
    "Later keys are still visible. Causal attention needs -inf there, whatever the "
    "distance."
)
def future_visible(slopes, length):
    """Penalize the distance in both directions."""
    distance = np.abs(np.arange(length)[:, None] - np.arange(length))
    return -slopes[:, None, None] * distance


@exercise.wrong(
    "The mask is missing: for later keys, i - j is negative, so your bias even rewards "
    "them. A causal query must not see them: their bias is -inf."
)
def future_rewarded(slopes, length):
    """Use the formula for all keys."""
    distance = np.arange(length)[:, None] - np.arange(length)
    return -slopes[:, None, None] * distance


@exercise.wrong(
    "You hid the past and kept the future: rows are queries, so the lower triangle, "
    "where the key's index is at most the query's, stays visible."
)
def transposed(slopes, length):
    """Mix up queries and keys."""
    distance = np.arange(length) - np.arange(length)[:, None]
    return np.where(distance >= 0, -slopes[:, None, None] * distance, -np.inf)


@exercise.wrong(
    "All heads have the same slope. Each head has a slope of its own, so that some "
    "heads look far and others stay near."
)
def one_slope(slopes, length):
    """Use the first slope for all."""
    distance = np.arange(length)[:, None] - np.arange(length)
    bias = np.where(distance >= 0, -slopes[0] * distance, -np.inf)
    return np.stack([bias] * len(slopes))


@exercise.wrong(
    "Each query loses its own position: the bias there is -slope · 0 = 0, not -inf. "
    "Only keys with j > i are hidden."
)
def without_itself(slopes, length):
    """Hide the diagonal, too."""
    distance = np.arange(length)[:, None] - np.arange(length)
    return np.where(distance > 0, -slopes[:, None, None] * distance, -np.inf)


@exercise.wrong(
    "A mask of zeros and ones times -inf gives NaN wherever the mask is 0, since "
    "0 · inf is not a number. Choose with np.where instead of multiplying."
)
def zero_times_infinity(slopes, length):
    """Multiply a mask by minus infinity."""
    distance = np.arange(length)[:, None] - np.arange(length)
    return -slopes[:, None, None] * distance + (distance < 0) * -np.inf


@exercise.wrong(
    "Later keys get the bias 0, so they are visible and not even penalized. A causal "
    "query must not see them: their bias is -inf."
)
def future_for_free(slopes, length):
    """Clip the distance at zero."""
    distance = np.arange(length)[:, None] - np.arange(length)
    return -slopes[:, None, None] * np.maximum(distance, 0)
