"""Where the output goes when a key moves.

One query attends to m keys. Move key j, counted from 0, so that its score, after
scaling, changes by `change`, and keep the other keys and all values. Write
`moved_output(weights, values, j, change)`: the query's output after the move, computed
from its old weights. `weights` has shape (m,) and sums to 1, `values` has shape (m, e),
and the result has shape (e,). The old scores are not given, and you do not need them.
"""

import numpy as np

from transformers_hw.exercises.kinds import Code

exercise = Code(
    level="challenge",
    read="attention#a-key-moves",
    hints=(
        "Only the exponential of one score changes, by the factor exp(change).",
        "The new denominator is the old one times 1 - a_j + a_j exp(change).",
        "So the new weight of key j is a_j exp(change) / (1 - a_j + a_j exp(change)), "
        "and all other weights shrink or grow by the same factor.",
    ),
    points=3,
    questions=("nyu-1.1e", "nyu-1.1f"),
)


@exercise.cases
def cases(rng):
    """Yield a small move, none, a large one in each direction, and a single key."""
    yield (
        np.array([0.5, 0.5]),
        np.array([[0.0, 2.0], [4.0, 0.0]]),
        1,
        float(np.log(3.0)),
    )
    for m, e, j, change in (
        (4, 3, 2, 0.7),
        (5, 2, 0, 0.0),
        (3, 4, 1, -2.5),
        (6, 2, 5, 4.0),
    ):
        weights = rng.random(m) + 0.1
        yield weights / weights.sum(), rng.normal(size=(m, e)), j, change
    yield np.array([1.0]), rng.normal(size=(1, 3)), 0, 1.5


@exercise.solution
def moved_output(weights, values, j, change):
    """Return the output after key j has moved."""
    moved = weights.copy()
    moved[j] *= np.exp(change)
    return moved @ values / moved.sum()


@exercise.right
def along_a_line(weights, values, j, change):
    """Slide along the line from the old output to the value of key j."""
    old, growth = weights @ values, weights[j] * np.expm1(change)
    return old + growth / (1 + growth) * (values[j] - old)


@exercise.right
def by_scores(weights, values, j, change):
    """Recover scores as logarithms of weights: a shift cancels."""
    scores = np.log(weights)
    scores[j] += change
    powers = np.exp(scores - scores.max())
    return sum(p * v for p, v in zip(powers / powers.sum(), values, strict=True))


@exercise.wrong(
    "You changed the weight of key j and left the others alone, so the weights no "
    "longer sum to 1. All of them share one denominator: divide by the new sum."
)
def not_normalized(weights, values, j, change):
    """Forget the denominator."""
    moved = weights.copy()
    moved[j] *= np.exp(change)
    return moved @ values


@exercise.wrong(
    "You added the change to the weight. It is added to the *score*, so the "
    "exponential of that score is multiplied by exp(change)."
)
def added_to_weight(weights, values, j, change):
    """Add to the weight."""
    moved = weights.copy()
    moved[j] += change
    return moved @ values / moved.sum()


@exercise.wrong(
    "This is the first-order estimate a_j · change · (v_j - output). It is right for "
    "small moves only; the exact weight follows from the factor exp(change)."
)
def first_order(weights, values, j, change):
    """Use the derivative."""
    old = weights @ values
    return old + weights[j] * change * (values[j] - old)


@exercise.wrong(
    "The move has the wrong sign: a score that rises by `change` multiplies the "
    "exponential by exp(+change)."
)
def wrong_sign(weights, values, j, change):
    """Move the other way."""
    moved = weights.copy()
    moved[j] *= np.exp(-change)
    return moved @ values / moved.sum()


@exercise.wrong(
    "You added the change to the weight itself, and the weights no longer sum to 1. "
    "The *score* changes: multiply the weight by exp(change), then divide by the sum."
)
def added_without_sum(weights, values, j, change):
    """Add to the weight, and do not normalize."""
    moved = weights.copy()
    moved[j] += change
    return moved @ values


@exercise.wrong(
    "You treat the weights as scores, so the output changes even if the key does not "
    "move. The scores are log(weights), up to a constant that cancels."
)
def softmax_of_weights(weights, values, j, change):
    """Take exponentials of the weights."""
    scores = weights.copy()
    scores[j] += change
    powers = np.exp(scores)
    return powers / powers.sum() @ values


@exercise.wrong(
    "That is how far the output moves. The task asks for the output after the move: "
    "do not subtract the old one."
)
def difference(weights, values, j, change):
    """Return the difference of the outputs."""
    moved = weights.copy()
    moved[j] *= np.exp(change)
    return moved @ values / moved.sum() - weights @ values


@exercise.wrong(
    "You multiply the weight by the change. The change is added to the score, and "
    "exp(score + change) = exp(score) · exp(change)."
)
def times_the_change(weights, values, j, change):
    """Multiply by the change without the exponential."""
    moved = weights.copy()
    moved[j] *= change
    return moved @ values / moved.sum()
