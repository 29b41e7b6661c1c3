"""From an image to patches.

Write `patchify(image, size)`: cut an image into square patches. Image files store
colors last, so `image` has the shape (H, W, C), and both H and W are multiples of
`size`. Return an array with one row per patch, of shape (N, C · size²). The patches are
in reading order: along the top row of the image first, from left to right. Within a row
of the result, the order is (c, i, j), as in the weights of a convolution: all pixels of
the first channel come first, and those are in reading order, too.
"""

import numpy as np
from einops import rearrange

from transformers_hw.exercises.kinds import Code

exercise = Code(
    level="core",
    read="vision_transformer#patch-embedding",
    hints=(
        "A row of pixels has two numbers: the patch row r it belongs to, and its place "
        "i within that patch. The vertical axis is (r i), with r outside.",
        "The horizontal axis is (s j) in the same way. Split both axes, then move r "
        "and s together, and c, i and j together.",
        "The result is `(r s) (c i j)`, with i and j of length `size`.",
    ),
    points=2,
    questions=("nyu-1.5a", "nyu-2"),
)


@exercise.cases
def cases(rng):
    """Yield a tiny gray image, color images of several shapes, and extreme sizes."""
    yield np.arange(8.0).reshape(2, 4, 1), 2
    yield rng.normal(size=(4, 6, 3)), 2
    yield rng.normal(size=(9, 6, 2)), 3
    yield rng.normal(size=(8, 12, 3)), 4
    yield rng.normal(size=(2, 3, 4)), 1
    yield rng.normal(size=(5, 5, 2)), 5


@exercise.solution
def patchify(image, size):
    """Return the patches, one per row."""
    pattern = "(r i) (s j) c -> (r s) (c i j)"
    return rearrange(image, pattern, i=size, j=size)


@exercise.right
def by_transposing(image, size):
    """Split two axes, move them, and merge."""
    height, width, channels = image.shape
    split = image.reshape(height // size, size, width // size, size, channels)
    return split.transpose(0, 2, 4, 1, 3).reshape(-1, channels * size * size)


@exercise.right
def by_slices(image, size):
    """Cut out one patch at a time."""
    height, width, _ = image.shape
    patches = []
    for top in range(0, height, size):
        for left in range(0, width, size):
            patch = image[top : top + size, left : left + size]
            patches.append(np.moveaxis(patch, -1, 0).flatten())
    return np.array(patches)


@exercise.wrong(
    "A plain reshape cuts in reading order, so each of your patches is a strip of "
    "pixels and not a square. Split height and width first, then move the axes."
)
def strips(image, size):
    """Reshape without moving axes."""
    return image.reshape(-1, image.shape[-1] * size * size)


@exercise.wrong(
    "The patches are right, but the numbers within each row are in the order "
    "(i, j, c), pixel by pixel. Here channels come first. With weights of the other "
    "order, every token would be wrong."
)
def channels_last(image, size):
    """Flatten pixel by pixel."""
    return rearrange(image, "(r i) (s j) c -> (r s) (i j c)", i=size, j=size)


@exercise.wrong(
    "Your patches go down the columns of the grid. Reading order goes along its rows: "
    "the second patch lies to the right of the first."
)
def down_the_columns(image, size):
    """Number the patches column by column."""
    return rearrange(image, "(r i) (s j) c -> (s r) (c i j)", i=size, j=size)


@exercise.wrong(
    "Your patches hold pixels from all over the image, at regular gaps. You split "
    "the axes as (i r) and (j s). Neighboring pixels share a patch, so the patch "
    "number must be the outer one of the two."
)
def scattered(image, size):
    """Split the axes the other way around."""
    return rearrange(image, "(i r) (j s) c -> (r s) (c i j)", i=size, j=size)


@exercise.wrong(
    "Every patch is transposed: within a channel you read down its columns. The order "
    "(c, i, j) changes the column j fastest."
)
def transposed(image, size):
    """Read each patch column by column."""
    return rearrange(image, "(r i) (s j) c -> (r s) (c j i)", i=size, j=size)
