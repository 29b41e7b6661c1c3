"""A convolution by heads.

Write `convolve(image, kernel)`: a convolution as hard heads compute it, one head for
each tap. `image` has shape (rows, columns, c), one row vector per pixel. `kernel` has
the layout of PyTorch's `Conv2d`, (e, c, K, K) for e output channels, and its entries
[:, :, a, b] belong to the offset (a - K // 2, b - K // 2), key minus query. Each head
fetches the pixel at its offset from the query, multiplies it by its tap, and the
results are added. If the pixel lies outside the image, the head takes the nearest one:
it clamps row and column. The result has shape (rows, columns, e). K may be even.
"""

import numpy as np
from einops import einsum

from transformers_hw.exercises.kinds import Code

exercise = Code(
    level="core",
    read="attention_as_convolution#the-theorem",
    hints=(
        "For one offset, all queries can fetch at once: compute the row numbers and "
        "the column numbers to fetch, clamp them with np.clip, and index.",
        "image[i[:, None], j] with two vectors of numbers fetches a whole image.",
        "The tap of PyTorch's kernel is `kernel[:, :, a, b]`, of shape (e, c). A row "
        "vector is multiplied by its transpose.",
    ),
    points=3,
    questions=("eth-1c.2", "eth-1e.1"),
)


@exercise.cases
def cases(rng):
    """Yield right minus left, then even kernels, one tap, and a large kernel."""
    slope = np.array([[[[0.0, 0.0, 0.0], [-1.0, 0.0, 1.0], [0.0, 0.0, 0.0]]]])
    yield np.array([[[1.0], [2.0], [5.0]], [[0.0], [4.0], [4.0]]]), slope
    for rows, columns, c, e, k in (
        (4, 5, 2, 3, 3),
        (3, 4, 3, 2, 2),
        (5, 6, 2, 1, 4),
        (3, 2, 4, 3, 1),
        (2, 3, 1, 2, 5),
    ):
        yield rng.normal(size=(rows, columns, c)), rng.normal(size=(e, c, k, k))


@exercise.solution
def convolve(image, kernel):
    """Return the sum of what the heads bring."""
    rows, columns, _ = image.shape
    size = kernel.shape[-1]
    output = 0.0
    for a, b in np.ndindex(size, size):
        i = np.clip(np.arange(rows) + a - size // 2, 0, rows - 1)
        j = np.clip(np.arange(columns) + b - size // 2, 0, columns - 1)
        fetched = image[i[:, None], j]
        output = output + einsum(fetched, kernel[:, :, a, b], "i j c, e c -> i j e")
    return output


@exercise.right
def by_padding(image, kernel):
    """Repeat the border, and slide windows over the image."""
    size = kernel.shape[-1]
    pad = (size // 2, (size - 1) // 2)
    padded = np.pad(image, (pad, pad, (0, 0)), mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, (size, size), (0, 1))
    return np.einsum("ijcab,ecab->ije", windows, kernel)


@exercise.right
def by_weights(image, kernel):
    """Build the one-hot weights of every head, as attention has them."""
    rows, columns, channels = image.shape
    size, pixels = kernel.shape[-1], image.reshape(-1, channels)
    output = np.zeros((len(pixels), len(kernel)))
    for a in range(size):
        for b in range(size):
            weights = np.zeros((len(pixels), len(pixels)))
            for q, (i, j) in enumerate(np.ndindex(rows, columns)):
                down = min(max(i + a - size // 2, 0), rows - 1)
                across = min(max(j + b - size // 2, 0), columns - 1)
                weights[q, down * columns + across] = 1.0
            output += weights @ pixels @ kernel[:, :, a, b].T
    return output.reshape(rows, columns, -1)


def _convolve(image, kernel, sign=1, first=None, mode="clip"):
    (rows, columns, _), size = image.shape, kernel.shape[-1]
    first = -(size // 2) if first is None else first
    output = np.zeros((rows, columns, len(kernel)))
    for a, b in np.ndindex(size, size):
        i = np.arange(rows) + sign * (a + first)
        j = np.arange(columns) + sign * (b + first)
        fetched = image.take(i, 0, mode=mode).take(j, 1, mode=mode)
        output += fetched @ kernel[:, :, a, b].T
    return output


@exercise.wrong(
    "The kernel is flipped, rows and columns reversed, as in the textbooks of signal "
    "processing. Here tap and offset belong together as they are: nothing is turned."
)
def flipped_kernel(image, kernel):
    """Turn the kernel by 180 degrees."""
    return _convolve(image, kernel[:, :, ::-1, ::-1])


@exercise.wrong(
    "Your heads fetch at query - offset. For odd kernels that looks like a flipped "
    "kernel; for even ones the heads miss the pixels above and to the left. The offset "
    "is key minus query, so fetch at query + offset."
)
def mirrored_shift(image, kernel):
    """Fetch on the opposite side."""
    return _convolve(image, kernel, sign=-1)


@exercise.wrong(
    "Pixels outside the image count as zeros. Weights sum to 1, so a head cannot fetch "
    "nothing: it takes the nearest pixel."
)
def zero_padding(image, kernel):
    """Pad with zeros."""
    (rows, columns, channels), size = image.shape, kernel.shape[-1]
    padded = np.zeros((rows + 2 * size, columns + 2 * size, channels))
    padded[size:-size, size:-size] = image
    return _convolve(padded, kernel)[size:-size, size:-size]


@exercise.wrong(
    "Your image is periodic: what leaves it on one side comes back on the other, as "
    "np.roll and negative indices do. Clamp the numbers of rows and columns instead."
)
def wrapped(image, kernel):
    """Take positions modulo the size of the image."""
    return _convolve(image, kernel, mode="wrap")


@exercise.wrong(
    "Your window starts at the query: the first tap is at offset (0, 0). It belongs "
    "at K // 2 rows up and K // 2 columns to the left. Subtract K // 2 from a and b."
)
def window_from_the_query(image, kernel):
    """Forget to center the window."""
    return _convolve(image, kernel, first=0)


@exercise.wrong(
    "Odd kernels are right, but for even K your window lies one pixel too far down and "
    "to the right. The first offset is -(K // 2), so subtract K // 2, not (K - 1) // 2."
)
def even_window_mirrored(image, kernel):
    """Start at minus half of K - 1."""
    return _convolve(image, kernel, first=-((kernel.shape[-1] - 1) // 2))


@exercise.wrong(
    "Rows and columns of the kernel are exchanged. In kernel[:, :, a, b], the first "
    "number, a, moves the row, and b moves the column."
)
def transposed_kernel(image, kernel):
    """Let a move the column."""
    return _convolve(image, kernel.swapaxes(2, 3))
