"""A squared distance as a dot product.

Write `score_vectors(offsets, centers, sharpnesses)`: turn the Gaussian score -α ‖δ -
Δ‖² into a dot product. `offsets` has shape (m, 2), one offset δ per row; `centers` has
shape (h, 2) and `sharpnesses` (h,), for h heads. Return the list `[r, v]`: r of shape
(m, 3), one vector for each offset, and v of shape (h, 3), one vector for each head. The
dot product of row i of r and row j of v must be the score of head j at offset i, up to
a constant for each head, which softmax ignores. All heads share the same r.

Several answers are right. What is compared is r vᵀ, of shape (m, h), after subtracting
the mean of each column.
"""

import numpy as np
from einops import reduce

from transformers_hw.exercises.kinds import Code

exercise = Code(
    level="core",
    read="attention_as_convolution#scores-that-know-only-the-offset",
    hints=(
        "Multiply out: ‖δ - Δ‖² has three terms. Which one does not depend on the key?",
        "What remains is a sum of products, each of something that belongs to the "
        "offset and something that belongs to the head.",
        "Take ‖δ‖², δ₁ and δ₂ for the offset. Which numbers multiply them?",
    ),
    points=2,
    questions=("eth-1b.1", "eth-1d.2"),
)


@exercise.cases
def cases(rng):
    """Yield three offsets and one head, then more heads than numbers in a vector."""
    row = np.array([[0.0, -1.0], [0.0, 0.0], [0.0, 1.0]])
    yield row, np.array([[0.0, 1.0]]), np.array([2.0])
    for m, h in ((4, 6), (9, 5), (7, 1), (5, 8)):
        yield (
            rng.integers(-4, 5, size=(m, 2)).astype(float),
            rng.normal(size=(h, 2)) * 2,
            rng.random(h) + 0.3,
        )


@exercise.view
def scores(result, offsets, centers, sharpnesses):
    """Compare the scores, up to a constant for each head."""
    r, v = (np.asarray(x, dtype=float) for x in result)
    for name, x, rows in (("r", r, len(offsets)), ("v", v, len(centers))):
        if x.shape != (rows, 3):
            raise ValueError(f"{name} must have shape ({rows}, 3), got {x.shape}")
    table = r @ v.T
    return table - table.mean(axis=0)


@exercise.solution
def score_vectors(offsets, centers, sharpnesses):
    """Return a vector for each offset, and one for each head."""
    squares = reduce(offsets**2, "m two -> m", "sum")
    r = np.column_stack([squares, offsets])
    v = np.column_stack([np.ones(len(centers)), -2 * centers])
    return r, -sharpnesses[:, None] * v


@exercise.right
def factors_moved(offsets, centers, sharpnesses):
    """Give the sign and the factor two to the offsets."""
    squares = (offsets**2).sum(-1, keepdims=True)
    r = np.concatenate([2 * offsets, -squares], axis=1)
    v = np.column_stack([centers, np.ones(len(centers))]) * sharpnesses[:, None]
    return r, v


@exercise.right
def along_diagonals(offsets, centers, sharpnesses):
    """Use sums and differences of the coordinates."""
    r = [[x * x + y * y, x + y, x - y] for x, y in offsets]
    v = [
        [-alpha, alpha * (x + y), alpha * (x - y)]
        for (x, y), alpha in zip(centers, sharpnesses, strict=True)
    ]
    return np.array(r), np.array(v)


def _vectors(offsets, centers, sharpnesses, factor):
    r = np.column_stack([(offsets**2).sum(-1), offsets])
    v = np.column_stack([np.ones(len(centers)), factor * centers])
    return r, -sharpnesses[:, None] * v


@exercise.wrong(
    "The sign of the linear terms is wrong: your score is -α ‖δ + Δ‖², so each head "
    "attends to the opposite side. Multiplying out gives -2 Δ·δ inside the brackets."
)
def mirrored(offsets, centers, sharpnesses):
    """Use +2Δ."""
    return _vectors(offsets, centers, sharpnesses, 2)


@exercise.wrong(
    "The factor 2 of the mixed term is missing. Your heads are centered at Δ/2, "
    "halfway between the query and the target."
)
def without_two(offsets, centers, sharpnesses):
    """Use -Δ."""
    return _vectors(offsets, centers, sharpnesses, -1)


@exercise.wrong(
    "The scores have the wrong sign: they grow with the distance, so the *farthest* "
    "key gets the largest weight. Do not lose the minus in front of α."
)
def positive(offsets, centers, sharpnesses):
    """Forget the minus sign."""
    return _vectors(offsets, centers, -sharpnesses, -2)


@exercise.wrong(
    "The first number of r is the length of the offset. It has to be the squared "
    "length, or the sum is not a complete square."
)
def root_taken(offsets, centers, sharpnesses):
    """Use the length instead of its square."""
    r, v = _vectors(offsets, centers, sharpnesses, -2)
    r[:, 0] = np.sqrt(r[:, 0])
    return r, v


@exercise.wrong(
    "The sharpness multiplies only the squared length. It multiplies the whole square, "
    "so the linear terms need it, too."
)
def sharpness_once(offsets, centers, sharpnesses):
    """Leave the linear terms without the sharpness."""
    r, _ = _vectors(offsets, centers, sharpnesses, -2)
    return r, np.column_stack([-sharpnesses, 2 * centers])


@exercise.wrong(
    "The sharpness is missing: all your heads have α = 1. Multiply each head's vector "
    "by its α."
)
def without_sharpness(offsets, centers, sharpnesses):
    """Leave the sharpness out."""
    return _vectors(offsets, centers, np.ones_like(sharpnesses), -2)
