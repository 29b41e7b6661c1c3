"""What nine heads read at the border.

Write `reads(rows, columns, query, size)`: how often each pixel is read by the
size · size sharp heads of a kernel, for one query pixel. There is one head for each
offset of the window, key minus query. Along each axis the window reaches from
-⌊size/2⌋ to ⌊(size - 1)/2⌋, so for even sizes it reaches one pixel further up and
left. A head whose target lies outside the image attends to the nearest pixel. `query`
is a pair (row, column), counted from 0. The result has shape (rows, columns) and sums
to size · size.
"""

import numpy as np

from transformers_hw.exercises.kinds import Code

exercise = Code(
    level="core",
    read="attention_as_convolution#padding-dilation-stride",
    hints=(
        "Clamp the row and the column of each target to the image, and count.",
        "Several heads may clamp to the same pixel, and every one of them counts.",
        "Rows and columns are clamped independently: count along each axis, and take "
        "the outer product.",
    ),
    points=2,
    questions=("eth-1e.1",),
)


@exercise.cases
def cases(rng):
    """Yield a corner, an edge, the middle, even sizes, and a tiny image."""
    yield 3, 4, (0, 0), 3
    yield 4, 5, (3, 2), 3
    yield 5, 6, (2, 3), 3
    yield 4, 3, (0, 2), 2
    yield 5, 4, (4, 1), 4
    yield 2, 3, (1, 0), 7


@exercise.solution
def reads(rows, columns, query, size):
    """Return how many heads attend to each pixel."""
    offsets = np.arange(size) - size // 2
    i = np.clip(query[0] + offsets, 0, rows - 1)
    j = np.clip(query[1] + offsets, 0, columns - 1)
    return np.outer(np.bincount(i, minlength=rows), np.bincount(j, minlength=columns))


@exercise.right
def by_loops(rows, columns, query, size):
    """Send out one head at a time."""
    counts = np.zeros((rows, columns))
    for a in range(-(size // 2), (size + 1) // 2):
        for b in range(-(size // 2), (size + 1) // 2):
            i = min(max(query[0] + a, 0), rows - 1)
            j = min(max(query[1] + b, 0), columns - 1)
            counts[i, j] += 1
    return counts


@exercise.right
def by_nearest_pixels(rows, columns, query, size):
    """Find the pixel nearest to each target by its distance."""
    counts = np.zeros(rows * columns, dtype=int)
    pixels = np.array(list(np.ndindex(rows, columns)))
    for offset in np.ndindex(size, size):
        target = np.array(query) + offset - size // 2
        counts[((pixels - target) ** 2).sum(axis=1).argmin()] += 1
    return counts.reshape(rows, columns)


def _count(rows, columns, i, j):
    counts = np.zeros((rows, columns), dtype=int)
    np.add.at(counts, (i[:, None], j), 1)
    return counts


@exercise.wrong(
    "Your counts do not sum to size · size: heads that point outside are lost. Either "
    "you left them out, or you wrote `counts[i, j] += 1` with arrays of indices, which "
    "adds 1 to a repeated pixel only once; np.add.at or a loop counts repetitions."
)
def outside_left_out(rows, columns, query, size):
    """Count targets inside only."""
    offsets = np.arange(size) - size // 2
    i, j = query[0] + offsets, query[1] + offsets
    i, j = i[(i >= 0) & (i < rows)], j[(j >= 0) & (j < columns)]
    return _count(rows, columns, i, j)


@exercise.wrong(
    "Targets outside come back on the opposite side, as negative indices do in Python. "
    "The nearest pixel is at the border that they crossed: clamp."
)
def wrapped(rows, columns, query, size):
    """Take positions modulo the size of the image."""
    offsets = np.arange(size) - size // 2
    return _count(
        rows, columns, (query[0] + offsets) % rows, (query[1] + offsets) % columns
    )


@exercise.wrong(
    "Heads that point outside fall back to the query pixel. The scores know nothing of "
    "such a rule: they fall with the distance from the target, so the pixel nearest to "
    "it wins."
)
def back_to_the_query(rows, columns, query, size):
    """Let heads stay at home if their target is outside."""
    counts = np.zeros((rows, columns), dtype=int)
    for offset in np.ndindex(size, size):
        i, j = np.array(query) + offset - size // 2
        inside = 0 <= i < rows and 0 <= j < columns
        counts[(i, j) if inside else query] += 1
    return counts


@exercise.wrong(
    "Even windows reach one pixel further down and right in your answer. They start "
    "at -⌊size/2⌋: for size 2, the offsets are -1 and 0."
)
def even_window_mirrored(rows, columns, query, size):
    """Start at minus half of size minus one."""
    offsets = np.arange(size) - (size - 1) // 2
    i = np.clip(query[0] + offsets, 0, rows - 1)
    j = np.clip(query[1] + offsets, 0, columns - 1)
    return _count(rows, columns, i, j)


@exercise.wrong(
    "Targets outside are reflected back into the image. A sharp head takes the nearest "
    "pixel, and that is the one at the border."
)
def reflected(rows, columns, query, size):
    """Mirror the image at its border."""

    def back(at, length):
        if length == 1:
            return np.zeros_like(at)
        at = np.abs(at) % (2 * length - 2)
        return np.minimum(at, 2 * length - 2 - at)

    offsets = np.arange(size) - size // 2
    return _count(
        rows, columns, back(query[0] + offsets, rows), back(query[1] + offsets, columns)
    )


@exercise.wrong(
    "For odd sizes your window starts one pixel too early: Python reads -size // 2 as "
    "(-size) // 2 and rounds down, so -3 // 2 is -2. Write -(size // 2)."
)
def rounded_down(rows, columns, query, size):
    """Start at (-size) // 2."""
    offsets = np.arange(-size // 2, (size - 1) // 2 + 1)
    i = np.clip(query[0] + offsets, 0, rows - 1)
    j = np.clip(query[1] + offsets, 0, columns - 1)
    return _count(rows, columns, i, j)
