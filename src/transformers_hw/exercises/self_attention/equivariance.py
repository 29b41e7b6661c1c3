"""A measure of equivariance.

A layer maps tokens to outputs, both in rows. You ran it on tokens X, which gave `kept`,
and on the rearranged tokens X[order], which gave `moved`. Write `equivariance_gap(kept,
moved, order)`: the largest absolute difference between what the layer returned and what
a permutation equivariant layer would have returned on the rearranged tokens. Return a
number; for an equivariant layer it is zero, up to rounding.
"""

import numpy as np

from transformers_hw.exercises.kinds import Code

exercise = Code(
    level="core",
    read="self_attention#what-symmetry-forbids",
    hints=(
        "Rearranging rows is indexing: x[order].",
        "An equivariant layer returns layer(X[order]) = layer(X)[order].",
    ),
)


@exercise.cases
def cases(rng):
    """Yield outputs of layers with positions and without."""
    order = np.array([1, 2, 0])
    yield np.array([[1.0], [2.0], [4.0]]), np.array([[2.0], [4.0], [0.0]]), order
    for n, d in ((4, 2), (5, 3), (6, 1)):
        kept, order = rng.normal(size=(n, d)), np.roll(np.arange(n), 2)
        yield kept, kept[order], order
        yield kept, kept[order] + rng.normal(size=(n, d)), order
    kept = rng.normal(size=(4, 1))
    order = np.array([3, 0, 1, 2])
    yield kept, kept[order] - np.array([[5.0], [0.0], [1.0], [0.0]]), order


@exercise.solution
def equivariance_gap(kept, moved, order):
    """Return the largest difference from equivariance."""
    return np.abs(moved - kept[order]).max()


@exercise.right
def by_matrix(kept, moved, order):
    """Multiply by a permutation matrix."""
    return float(np.max(np.abs(moved - np.eye(len(kept))[order] @ kept)))


@exercise.right
def by_loop(kept, moved, order):
    """Go through the rows."""
    return max(np.abs(moved[i] - kept[j]).max() for i, j in enumerate(order))


@exercise.wrong(
    "You compare with the outputs in the old order. That would be *in*variance. The "
    "outputs of an equivariant layer move with their tokens."
)
def invariance(kept, moved, order):
    """Forget to rearrange the output."""
    return np.abs(moved - kept).max()


@exercise.wrong(
    "The output is rearranged by the inverse order: row i of `moved` belongs to token "
    "order[i]."
)
def inverse(kept, moved, order):
    """Use the inverse permutation."""
    return np.abs(moved - kept[np.argsort(order)]).max()


@exercise.wrong(
    "Without absolute values, large negative differences are overlooked. Take np.abs "
    "before the maximum."
)
def signed(kept, moved, order):
    """Forget the absolute value."""
    return (moved - kept[order]).max()


@exercise.wrong(
    "This is the mean difference. One row that is wrong among many should show: take "
    "the maximum."
)
def mean(kept, moved, order):
    """Average the differences."""
    return np.abs(moved - kept[order]).mean()


@exercise.wrong(
    "The largest signed difference is not the largest difference: entries of `moved` "
    "that are too large count as negative. Take absolute values first."
)
def signed_the_other_way(kept, moved, order):
    """Forget the absolute value of the opposite difference."""
    return (kept[order] - moved).max()


@exercise.wrong(
    "You return the norm of all differences together. The task asks for the largest "
    "single one: np.abs(...).max()."
)
def norm(kept, moved, order):
    """Take the root of the sum of squares."""
    return np.linalg.norm(moved - kept[order])
