"""Weight beside the target.

A Gaussian head gives the key at the offset δ a weight proportional to exp(-α ‖δ - Δ‖²).
Its sharpness is α = 3, its center Δ consists of two integers, and its target, the key
at δ = Δ, lies deep inside a large image. What weight does the pixel directly to the
right of the target get? Give it to three decimals.
"""

import math

from transformers_hw.exercises.kinds import Number

exercise = Number(
    level="core",
    read="attention_as_convolution#turning-up-the-sharpness",
    hints=(
        "Compared with the target, a pixel at the distance x has the weight exp(-3x²).",
        "Divide by the sum over all pixels of the image. It factors: it is the square "
        "of 1 + 2 exp(-3) + 2 exp(-12) + ...",
    ),
    tolerance=0.0003,
    questions=("eth-1d.1",),
)


@exercise.solution
def weight():
    """Return exp(-3) divided by the sum over both axes."""
    axis = sum(math.exp(-3 * m * m) for m in range(-9, 10))
    return math.exp(-3) / axis**2


@exercise.wrong(
    "That is exp(-3), the ratio to the target's weight. The target has less than 1 "
    "itself: divide by the sum over all pixels."
)
def ratio_only():
    """Forget to normalize."""
    return math.exp(-3)


@exercise.wrong(
    "You normalized over a single row of pixels. The rows above and below take weight, "
    "too, so the sum over one axis enters twice, as a square."
)
def one_axis():
    """Sum over a row."""
    return math.exp(-3) / sum(math.exp(-3 * m * m) for m in range(-9, 10))


@exercise.wrong(
    "That is the weight of all four direct neighbors together. The question asks for "
    "one of them."
)
def all_four():
    """Take all four neighbors."""
    return 4 * math.exp(-3) / sum(math.exp(-3 * m * m) for m in range(-9, 10)) ** 2


@exercise.wrong(
    "That is the weight of the target itself. Its neighbor has exp(-3) times as much."
)
def target():
    """Take the target."""
    return 1 / sum(math.exp(-3 * m * m) for m in range(-9, 10)) ** 2


@exercise.wrong(
    "You divided by the sum over the target and its four direct neighbors. The pixels "
    "on the diagonals have exp(-6) each, and they change the third decimal."
)
def without_diagonals():
    """Sum over five pixels."""
    return round(math.exp(-3) / (1 + 4 * math.exp(-3)), 3)
