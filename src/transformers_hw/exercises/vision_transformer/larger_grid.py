"""Positions for a larger image.

Write `resample(positions, old, new)`: stretch a table of position embeddings to another
grid. `positions` has shape (1 + r · s, d) for the grid `old` = (r, s). Row 0 belongs to
the class token and stays as it is; the others are the patches in reading order. Return
a table of shape (1 + R · S, d) for the grid `new` = (R, S).

Interpolate linearly along rows and along columns of the grid. Both grids cover the same
image, and an embedding belongs to the center of its patch. Count patches from 0, and
put the center of old patch i at the coordinate i. In the vertical direction, the center
of new patch t is then at (t + 1/2) · r / R - 1/2; horizontally, S and s take the place
of R and r. Beyond the outermost old centers, the embedding stays constant.
"""

import numpy as np
from einops import einsum, rearrange

from transformers_hw.exercises.kinds import Code

exercise = Code(
    level="challenge",
    read="vision_transformer#larger-images",
    hints=(
        "Put the class token's row aside, and fold the others into an array of shape "
        "(r, s, d).",
        "Along one axis, linear interpolation is a matrix: row t holds the shares of "
        "the old patches in the new patch t, at most two of them.",
        "Clip the new centers to the range of the old ones, from 0 to r - 1. An old "
        "patch at a distance x < 1 from a center has the share 1 - x.",
        "Check yourself: two columns with the values 0 and 4 become 0, 1, 3, 4.",
    ),
    points=3,
    questions=("nyu-1.5c", "quiz-2.7"),
)


@exercise.cases
def cases(rng):
    """Yield the chapter's row, larger grids, a smaller one, and the same one."""
    yield np.array([[9.0], [0.0], [4.0]]), (1, 2), (1, 4)
    for d, old, new in (
        (3, (2, 3), (4, 5)),
        (2, (3, 2), (5, 6)),
        (4, (4, 5), (3, 2)),
        (2, (3, 4), (3, 4)),
        (3, (1, 1), (2, 3)),
    ):
        yield rng.normal(size=(1 + old[0] * old[1], d)), old, new


@exercise.solution
def resample(positions, old, new):
    """Return the table for the new grid."""

    def shares(many, few):
        centers = (np.arange(many) + 0.5) * few / many - 0.5
        centers = np.clip(centers, 0, few - 1)
        return np.maximum(0, 1 - np.abs(centers[:, None] - np.arange(few)))

    grid = rearrange(positions[1:], "(r s) d -> r s d", r=old[0])
    down, across = shares(new[0], old[0]), shares(new[1], old[1])
    grid = einsum(down, across, grid, "i r, j s, r s d -> i j d")
    return np.vstack([positions[:1], rearrange(grid, "i j d -> (i j) d")])


@exercise.right
def by_numpy(positions, old, new):
    """Use np.interp along one axis and then along the other."""

    def along(grid, axis, many):
        few = grid.shape[axis]
        centers = (np.arange(many) + 0.5) * few / many - 0.5
        return np.apply_along_axis(
            lambda values: np.interp(centers, np.arange(few), values), axis, grid
        )

    grid = positions[1:].reshape(*old, -1)
    grid = along(along(grid, 0, new[0]), 1, new[1])
    return np.concatenate([positions[:1], grid.reshape(new[0] * new[1], -1)])


@exercise.right
def by_loops(positions, old, new):
    """Mix the four old patches around each new center."""
    table = [positions[0]]
    for t in range(new[0]):
        for u in range(new[1]):
            y = min(max((t + 0.5) * old[0] / new[0] - 0.5, 0), old[0] - 1)
            x = min(max((u + 0.5) * old[1] / new[1] - 0.5, 0), old[1] - 1)
            mix = 0.0
            for r in {int(y), min(int(y) + 1, old[0] - 1)}:
                for s in {int(x), min(int(x) + 1, old[1] - 1)}:
                    part = positions[1 + r * old[1] + s]
                    a = 1 - (y - int(y)) if r == int(y) else y - int(y)
                    b = 1 - (x - int(x)) if s == int(x) else x - int(x)
                    mix = mix + a * b * part
            table.append(mix)
    return np.array(table)


def _resample(positions, old, new, shares):
    grid = positions[1:].reshape(*old, -1)
    grid = np.einsum(
        "ir,js,rsd->ijd", shares(new[0], old[0]), shares(new[1], old[1]), grid
    )
    return np.vstack([positions[:1], grid.reshape(new[0] * new[1], -1)])


def _hat(centers, few):
    centers = np.clip(centers, 0, few - 1)
    return np.maximum(0, 1 - np.abs(centers[:, None] - np.arange(few)))


def _centers(many, few):
    return (np.arange(many) + 0.5) * few / many - 0.5


@exercise.wrong(
    "You place the first and the last new patch exactly on the first and the last old "
    "one. Patches have a width: the centers of smaller patches lie closer to the edge "
    "of the image than those of larger ones."
)
def ends_on_ends(positions, old, new):
    """Spread the new centers from the first old one to the last."""
    return _resample(
        positions, old, new, lambda a, b: _hat(np.linspace(0, b - 1, a), b)
    )


@exercise.wrong(
    "The halves are missing: t · r / R compares the upper edges of patches, and each "
    "new patch reads too far up and to the left. Compare centers."
)
def edges_for_centers(positions, old, new):
    """Forget the half patch."""
    return _resample(positions, old, new, lambda a, b: _hat(np.arange(a) * b / a, b))


@exercise.wrong(
    "You interpolate along the sequence of tokens, so the end of one row of patches "
    "runs into the start of the next. Fold the table into its grid first."
)
def along_the_sequence(positions, old, new):
    """Stretch the table as one long row."""
    before, after = old[0] * old[1], new[0] * new[1]
    mixed = _hat(_centers(after, before), before) @ positions[1:]
    return np.vstack([positions[:1], mixed])


@exercise.wrong(
    "Each new patch copies the nearest old one, so neighbors get the same position. "
    "Linear interpolation mixes the two old patches on either side of a center."
)
def nearest(positions, old, new):
    """Copy instead of mixing."""

    def shares(many, few):
        chosen = (2 * np.arange(many) + 1) * few // (2 * many)
        return (chosen[:, None] == np.arange(few)).astype(float)

    return _resample(positions, old, new, shares)


@exercise.wrong(
    "The class token's row is gone. It belongs to no place in the image, so set it "
    "aside, and put it back in front at the end."
)
def without_class_token(positions, old, new):
    """Return the patches only."""
    return _resample(positions, old, new, lambda a, b: _hat(_centers(a, b), b))[1:]


@exercise.wrong(
    "You forgot to subtract 1/2 at the end: the coordinate 0 is the *center* of the "
    "first old patch, half a patch from the edge of the image."
)
def from_the_edge(positions, old, new):
    """Count from the edge of the image."""
    return _resample(positions, old, new, lambda a, b: _hat(_centers(a, b) + 0.5, b))


@exercise.wrong(
    "Beyond the outermost old centers, you continue the line through the last two. The "
    "embedding stays constant there: clip the new centers to the range of the old ones."
)
def extrapolated(positions, old, new):
    """Continue the lines outside."""

    def shares(many, few):
        if few == 1:
            return np.ones((many, 1))
        centers = _centers(many, few)
        low = np.clip(np.floor(centers), 0, few - 2).astype(int)
        rest = (centers - low)[:, None]
        eye = np.eye(few)
        return (1 - rest) * eye[low] + rest * eye[low + 1]

    return _resample(positions, old, new, shares)
