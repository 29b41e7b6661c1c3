"""Registers take part, but are not read.

Write `pooled(patches, positions, class_token, registers, weights)`: a small model with
registers, from embedded patches to one vector per image. `patches` has shape (b, N, d).
Add `positions`, of shape (N, d), to the patches, and to no other token. Then build each
image's sequence: the class token, of shape (d,), the r registers, of shape (r, d), and
the patches, in this order. One layer follows: to the tokens z of an image it adds A z,
where A is that image's matrix in `weights`, of shape (b, 1 + r + N, 1 + r + N), with a
row for each query. Return the mean of the patches' tokens after the layer, of shape
(b, d). There may be no registers at all, r = 0.
"""

import numpy as np
from einops import einsum, reduce, repeat

from transformers_hw.exercises.kinds import Code

exercise = Code(
    level="core",
    read="vision_transformer#registers",
    hints=(
        "Add the positions first, while the patches still stand alone.",
        "The class token and the registers are the same for all images: repeat them b "
        "times before you join them to the patches.",
        "After the layer, the patches begin at index 1 + r. Index -r is not the end of "
        "a slice when r is 0.",
    ),
    points=2,
)


@exercise.cases
def cases(rng):
    """Yield one image with integers, then random ones, and no register."""
    yield (
        np.array([[[2.0, 0.0], [0.0, 4.0]]]),
        np.array([[1.0, 1.0], [3.0, 3.0]]),
        np.array([10.0, 0.0]),
        np.array([[0.0, 8.0]]),
        np.array(
            [
                [
                    [1.0, 0.0, 0.0, 0.0],
                    [0.0, 0.0, 0.5, 0.5],
                    [0.0, 0.5, 0.0, 0.5],
                    [0.5, 0.25, 0.25, 0.0],
                ]
            ]
        ),
    )
    for b, n, r, d in ((2, 4, 2, 3), (3, 2, 4, 5), (2, 5, 0, 4), (1, 3, 1, 2)):
        scores = np.exp(rng.normal(size=(b, 1 + r + n, 1 + r + n)))
        yield (
            rng.normal(size=(b, n, d)),
            rng.normal(size=(n, d)),
            rng.normal(size=d),
            rng.normal(size=(r, d)),
            scores / scores.sum(-1, keepdims=True),
        )


@exercise.solution
def pooled(patches, positions, class_token, registers, weights):
    """Return the mean of the patches' tokens for each image."""
    b, first = len(patches), np.vstack([class_token, registers])
    tokens = np.concatenate(
        [repeat(first, "r d -> b r d", b=b), patches + positions], axis=1
    )
    tokens = tokens + einsum(weights, tokens, "b q k, b k d -> b q d")
    return reduce(tokens[:, len(first) :], "b n d -> b d", "mean")


@exercise.right
def image_by_image(patches, positions, class_token, registers, weights):
    """Take one image at a time."""
    found = []
    for image, table in zip(patches, weights, strict=True):
        z = np.vstack([class_token, registers, image + positions])
        found.append((z + table @ z)[-len(image) :].mean(0))
    return np.array(found)


@exercise.right
def by_filling(patches, positions, class_token, registers, weights):
    """Fill an array, and average the rows of the weights first."""
    b, n, d = patches.shape
    z = np.empty((b, 1 + len(registers) + n, d))
    z[:, 0], z[:, 1:-n], z[:, -n:] = class_token, registers, patches + positions
    rows = weights[:, -n:].mean(1, keepdims=True)
    return z[:, -n:].mean(1) + (rows @ z)[:, 0]


@exercise.right
def with_padded_positions(patches, positions, class_token, registers, weights):
    """Give the other tokens positions of zero."""
    b, n, _ = patches.shape
    first = np.concatenate([class_token[None], registers])
    table = np.concatenate([np.zeros_like(first), positions])
    z = np.concatenate([np.tile(first, (b, 1, 1)), patches], axis=1) + table
    z = z + weights @ z
    return z[:, z.shape[1] - n :].sum(axis=1) / n


def _sequence(patches, positions, class_token, registers):
    first = np.concatenate([class_token[None], registers])
    first = np.repeat(first[None], len(patches), axis=0)
    return np.concatenate([first, patches + positions], axis=1)


@exercise.wrong(
    "You leave out the class token alone, tokens[:, 1:], as in a model without "
    "registers. The registers are in your mean. Begin at 1 + r."
)
def registers_in_the_mean(patches, positions, class_token, registers, weights):
    """Skip the class token only."""
    z = _sequence(patches, positions, class_token, registers)
    return (z + weights @ z)[:, 1:].mean(1)


@exercise.wrong(
    "You average all tokens. Only those of the patches are read: the class token and "
    "the registers come from no patch."
)
def mean_of_all(patches, positions, class_token, registers, weights):
    """Average everything."""
    z = _sequence(patches, positions, class_token, registers)
    return (z + weights @ z).mean(1)


@exercise.wrong(
    "You begin at index r. That leaves out the class token and all registers but the "
    "last: there are 1 + r tokens before the patches."
)
def one_register_left(patches, positions, class_token, registers, weights):
    """Forget that the class token counts."""
    z = _sequence(patches, positions, class_token, registers)
    return (z + weights @ z)[:, len(registers) :].mean(1)


@exercise.wrong(
    "You drop the registers before the layer, and so the patches never attend to them. "
    "Registers take part in every layer. They are left out only when tokens are read."
)
def dropped_too_early(patches, positions, class_token, registers, weights):
    """Run the layer without the registers."""
    z, r = _sequence(patches, positions, class_token, registers[:0]), len(registers)
    among = np.delete(np.delete(weights, np.s_[1 : 1 + r], 1), np.s_[1 : 1 + r], 2)
    return (z + among @ z)[:, 1:].mean(1)


@exercise.wrong(
    "The positions are added after joining, from the front of the sequence. So the "
    "class token gets the position of patch 1, and the last patches get none."
)
def positions_from_the_front(patches, positions, class_token, registers, weights):
    """Add the table to the first N tokens."""
    z = _sequence(patches, 0 * positions, class_token, registers)
    z[:, : len(positions)] += positions
    return (z + weights @ z)[:, 1 + len(registers) :].mean(1)


@exercise.wrong(
    "The positions are missing. Add them to the patches before you join the sequence."
)
def without_positions(patches, positions, class_token, registers, weights):
    """Forget the positions."""
    return pooled(patches, 0 * positions, class_token, registers, weights)


@exercise.wrong(
    "Your registers stand behind the patches. The rows and columns of `weights` belong "
    "to the order class token, registers, patches, and so do a checkpoint's weights."
)
def registers_last(patches, positions, class_token, registers, weights):
    """Append the registers."""
    r, n = len(registers), patches.shape[1]
    z = _sequence(patches, positions, class_token, registers)
    order = [0, *range(1 + r, 1 + r + n), *range(1, 1 + r)]
    z = z[:, order]
    return (z + weights @ z)[:, 1 : 1 + n].mean(1)


@exercise.wrong(
    "You return A z. The layer *adds* A z to the tokens, so z itself is missing from "
    "the sum: that is its residual connection."
)
def without_residual(patches, positions, class_token, registers, weights):
    """Return what attention brings."""
    z = _sequence(patches, positions, class_token, registers)
    return (weights @ z)[:, 1 + len(registers) :].mean(1)


@exercise.wrong(
    "You read the class token. This model has one, but its answer is the mean of the "
    "patches' tokens."
)
def class_token_read(patches, positions, class_token, registers, weights):
    """Pool by the class token."""
    z = _sequence(patches, positions, class_token, registers)
    return (z + weights @ z)[:, 0]
