"""The kernel of soft heads.

Write `effective_kernel(centers, sharpnesses, matrices, reach)`: away from the border, a
layer of Gaussian heads is a convolution, and this is its kernel. `centers` has shape
(h, 2), `sharpnesses` (h,), and `matrices` (h, c, e): head number a has the
center `centers[a]` and the sharpness `sharpnesses[a]`, and multiplies what it fetches
by `matrices[a]`. Take the offsets from -reach to reach along both axes as all the keys
there are. The weight of a head with center Δ and sharpness α is proportional to
exp(-α ‖δ - Δ‖²) at the offset δ, key minus query, and its weights sum to 1 over these
offsets. Return the taps, an array of shape (2 reach + 1, 2 reach + 1, c, e), whose
entry [reach + δ₁, reach + δ₂] is the tap at the offset (δ₁, δ₂).
"""

import numpy as np
from einops import einsum, reduce

from transformers_hw.exercises.kinds import Code

exercise = Code(
    level="challenge",
    read="attention_as_convolution#which-convolution-is-this-layer",
    hints=(
        "The tap at δ is a sum over heads: the head's weight at δ times its matrix.",
        "Compute all weights first, of shape (h, 2 reach + 1, 2 reach + 1). They are a "
        "softmax over the last two axes together.",
        "Then a single einsum, `h i j, h c e -> i j c e`, is the whole kernel.",
    ),
    points=3,
    questions=("eth-1c.1",),
)


@exercise.cases
def cases(rng):
    """Yield one head, the chapter's three, random layers, and sharp heads."""
    yield np.array([[0.0, 1.0]]), np.array([1.0]), np.array([[[2.0]]]), 1
    yield (
        np.array([[0.0, -1.0], [0.0, 0.0], [0.0, 1.0]]),
        np.array([0.4, 0.4, 0.4]),
        np.array([[[-1.0]], [[3.0]], [[-1.0]]]),
        2,
    )
    for h, c, e, reach in ((4, 2, 3, 2), (2, 3, 1, 3), (5, 1, 2, 1)):
        yield (
            rng.uniform(-1.4, 1.4, size=(h, 2)),
            rng.random(h) + 0.2,
            rng.normal(size=(h, c, e)),
            reach,
        )
    yield (
        np.array([[-1.0, 1.0], [0.0, -2.0]]),
        np.array([30.0, 200.0]),
        rng.normal(size=(2, 2, 2)),
        2,
    )


@exercise.solution
def effective_kernel(centers, sharpnesses, matrices, reach):
    """Return the tap at each offset."""
    axis = np.arange(-reach, reach + 1)
    down, across = ((axis - centers[:, i, None]) ** 2 for i in (0, 1))
    squares = down[:, :, None] + across[:, None, :]
    weights = np.exp(-sharpnesses[:, None, None] * squares)
    weights = weights / reduce(weights, "h i j -> h 1 1", "sum")
    return einsum(weights, matrices, "h i j, h c e -> i j c e")


@exercise.right
def by_loops(centers, sharpnesses, matrices, reach):
    """Add up one head after another, offset by offset."""
    size = 2 * reach + 1
    kernel = np.zeros((size, size, *matrices.shape[1:]))
    for center, sharpness, matrix in zip(centers, sharpnesses, matrices, strict=True):
        weights = {
            at: np.exp(-sharpness * np.sum((np.array(at) - reach - center) ** 2))
            for at in np.ndindex(size, size)
        }
        for at, weight in weights.items():
            kernel[at] += weight / sum(weights.values()) * matrix
    return kernel


@exercise.right
def by_factors(centers, sharpnesses, matrices, reach):
    """Normalize along rows and along columns, and multiply."""
    squares = (np.arange(-reach, reach + 1) - centers[..., None]) ** 2
    parts = np.exp(-sharpnesses[:, None, None] * squares)
    parts = parts / parts.sum(axis=-1, keepdims=True)
    return np.einsum("hi,hj,hce->ijce", parts[:, 0], parts[:, 1], matrices)


def _powers(centers, sharpnesses, reach):
    squares = (np.arange(-reach, reach + 1) - centers[..., None]) ** 2
    squares = squares[:, 0, :, None] + squares[:, 1, None, :]
    return np.exp(-sharpnesses[:, None, None] * squares)


def _kernel(weights, matrices):
    return np.einsum("hij,hce->ijce", weights, matrices)


@exercise.wrong(
    "The weights of a head do not sum to 1: softmax divides the exponentials by their "
    "sum. Without it, wide heads count more than sharp ones."
)
def not_normalized(centers, sharpnesses, matrices, reach):
    """Use the exponentials as weights."""
    return _kernel(_powers(centers, sharpnesses, reach), matrices)


@exercise.wrong(
    "You normalize over the heads, so at each offset the heads compete. Every head has "
    "a softmax of its own, over the offsets."
)
def normalized_over_heads(centers, sharpnesses, matrices, reach):
    """Divide by the sum over heads."""
    powers = _powers(centers, sharpnesses, reach)
    total = powers.sum(axis=0, keepdims=True)
    return _kernel(powers / np.where(total > 0, total, 1.0), matrices)


@exercise.wrong(
    "You average over the heads. A layer adds its heads: concatenating them and "
    "multiplying by the output projection is a sum."
)
def averaged(centers, sharpnesses, matrices, reach):
    """Divide by the number of heads."""
    powers = _powers(centers, sharpnesses, reach)
    weights = powers / powers.sum((1, 2), keepdims=True)
    return _kernel(weights, matrices) / len(matrices)


@exercise.wrong(
    "The kernel is mirrored: a head with center (0, 1) adds to the tap on the left. "
    "With key minus query, its largest tap is one column to the right of the middle."
)
def mirrored(centers, sharpnesses, matrices, reach):
    """Use query minus key."""
    powers = _powers(-centers, sharpnesses, reach)
    return _kernel(powers / powers.sum((1, 2), keepdims=True), matrices)


@exercise.wrong(
    "You put each matrix at the offset nearest to its center, as if all heads were "
    "hard. A soft head adds to every tap, and where heads overlap, they add up or "
    "cancel."
)
def as_if_hard(centers, sharpnesses, matrices, reach):
    """Look at the centers only."""
    powers = _powers(centers, np.full(len(centers), 1.0), reach)
    best = powers.max(axis=(1, 2), keepdims=True)
    return _kernel((powers == best).astype(float), matrices)


@exercise.wrong(
    "Each row of a head's weights sums to 1 by itself. A head has one softmax over all "
    "offsets, so divide by the sum over both axes."
)
def row_by_row(centers, sharpnesses, matrices, reach):
    """Normalize along one axis."""
    squares = (np.arange(-reach, reach + 1) - centers[:, 1, None]) ** 2
    powers = np.exp(-sharpnesses[:, None] * squares)[:, None, :]
    weights = powers / powers.sum(axis=-1, keepdims=True)
    return _kernel(np.repeat(weights, 2 * reach + 1, axis=1), matrices)


@exercise.wrong(
    "The sharpness is missing: you use exp(-‖δ - Δ‖²) for all heads. Multiply the "
    "squared distance by each head's α."
)
def without_sharpness(centers, sharpnesses, matrices, reach):
    """Use the same sharpness for all heads."""
    powers = _powers(centers, np.ones_like(sharpnesses), reach)
    return _kernel(powers / powers.sum((1, 2), keepdims=True), matrices)
