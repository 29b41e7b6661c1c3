"""Attention with a mask, and rows that see nothing.

Write `masked_attention(scores, value, mask)`. The scores have shape (..., n, m), the
values (..., m, e), and the mask (..., n, m) is True where a query may attend to a key.
The scores are scaled already. Masked keys get no weight at all, however large their
scores, and the other weights of the row sum to 1. A query that may attend to no key
gets an output of zeros: not NaN, and not the mean of the values.
"""

import numpy as np

from transformers_hw.exercises.kinds import Code

exercise = Code(
    level="challenge",
    read="attention#masks-who-may-see-whom",
    hints=(
        "A score of -inf becomes the weight exp(-inf) = 0, exactly.",
        "In a row of nothing but -inf, the largest score is -inf, too, and -inf minus "
        "-inf is NaN. Treat such rows apart.",
        "Where the largest score is -inf, subtract 0 instead; where the sum is 0, "
        "divide by 1. np.where does both.",
    ),
    points=3,
)


@exercise.cases
def cases(rng):
    """Yield plain masks first, then blind rows, then large scores."""
    value = np.array([[1.0, 0.0], [0.0, 1.0], [4.0, 4.0]])
    mask = np.array([[True, True, False], [False, True, False]])
    yield np.array([[0.0, 0.0, 9.0], [1.0, 2.0, 3.0]]), value, mask
    yield (
        rng.normal(size=(2, 4, 5)),
        rng.normal(size=(2, 5, 3)),
        rng.random((2, 4, 5)) < 0.6,
    )
    blind = np.array([[False, False, False], [True, False, True]])
    yield rng.normal(size=(2, 3)), value, blind
    yield np.array([[1000.0, -1000.0, 990.0]]), value, np.array([[False, True, True]])
    yield np.array([[-2e9, -2e9, 0.0]]), value, np.array([[True, True, False]])


@exercise.solution
def masked_attention(scores, value, mask):
    """Return the averages of the values that each query may attend to."""
    scores = np.where(mask, scores, -np.inf)
    largest = scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(largest), largest, 0.0))
    total = weights.sum(axis=-1, keepdims=True)
    return weights / np.where(total > 0, total, 1.0) @ value


@exercise.right
def row_by_row(scores, value, mask):
    """Pick out the visible keys of every row."""
    shape = (*scores.shape[:-1], value.shape[-1])
    value = np.broadcast_to(value, (*scores.shape[:-2], *value.shape[-2:]))
    output = np.zeros(shape)
    for at in np.ndindex(*scores.shape[:-1]):
        seen = np.flatnonzero(mask[at])
        if len(seen):
            own = scores[at][seen]
            powers = np.exp(own - own.max())
            output[at] = powers / powers.sum() @ value[at[:-1]][seen]
    return output


@exercise.right
def cleaning_up(scores, value, mask):
    """Let blind rows become NaN, and replace them."""
    scores = np.where(mask, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)
    return np.nan_to_num(weights) @ value


def _softmax(scores):
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


@exercise.wrong(
    "A row that sees nothing comes out as NaN: all its scores are -inf, and the "
    "softmax divides zero by zero. One NaN in a batch spoils every gradient. Return "
    "zero there."
)
def nan_on_blind_rows(scores, value, mask):
    """Set masked scores to minus infinity, and no more."""
    return _softmax(np.where(mask, scores, -np.inf)) @ value


@exercise.wrong(
    "A large negative number such as -1e9 is not minus infinity. In a row that sees "
    "nothing all scores are equal, so the output is the mean of values that the query "
    "must not see; and a true score below -1e9 would lose to a masked one."
)
def large_negative_number(scores, value, mask):
    """Use -1e9 in place of minus infinity."""
    return _softmax(np.where(mask, scores, -1e9)) @ value


@exercise.wrong(
    "You mask after the softmax, so the weights of a row no longer sum to 1: masked "
    "keys took part in the denominator. Mask the scores before the softmax."
)
def masked_after_softmax(scores, value, mask):
    """Set weights to zero without normalizing again."""
    return (_softmax(scores) * mask) @ value


@exercise.wrong(
    "Masked scores are set to 0, but exp(0) is 1: they still get weight. Set them to "
    "minus infinity."
)
def score_of_zero(scores, value, mask):
    """Set masked scores to zero."""
    return _softmax(np.where(mask, scores, 0.0)) @ value


@exercise.wrong(
    "The mask is read the wrong way around: here True means that a query may attend to "
    "the key."
)
def inverted(scores, value, mask):
    """Mask what may be seen."""
    weights = np.nan_to_num(_softmax(np.where(mask, -np.inf, scores)))
    return weights @ value


@exercise.wrong(
    "The maximum that you subtract includes masked scores. If one of them is much "
    "larger than the rest, all visible exponentials become 0 and the row is lost. Mask "
    "the scores first, then take the maximum."
)
def maximum_of_masked_scores(scores, value, mask):
    """Mask the exponentials, and normalize again."""
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True)) * mask
    total = weights.sum(axis=-1, keepdims=True)
    return weights / np.where(total > 0, total, 1.0) @ value


@exercise.wrong(
    "Exponentials of large scores overflow: exp(1000) is infinite. Subtract the "
    "largest visible score of each row first."
)
def overflowing(scores, value, mask):
    """Take exponentials of the scores as they are."""
    weights = np.exp(scores) * mask
    total = weights.sum(axis=-1, keepdims=True)
    return weights / np.where(total > 0, total, 1.0) @ value
