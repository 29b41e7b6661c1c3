"""How sharp is it?

A query of width d = 16 scores 8 with the first key and 4 with the second, before
scaling. Attention multiplies scores by 1/√d. How many times as much weight does the
first key get as the second? Give the ratio to two decimals.
"""

import math

from transformers_hw.exercises.kinds import Number

exercise = Number(
    level="warm-up",
    read="attention#the-scale-is-a-dial",
    hints=(
        "The sum in the softmax cancels in a ratio of two weights.",
        "The ratio is exp(β (s₁ - s₂)) with β = 1/√16.",
    ),
    tolerance=0.01,
)


@exercise.solution
def ratio():
    """Return exp((8 - 4) / √16) = e."""
    return math.exp((8 - 4) / math.sqrt(16))


@exercise.wrong("You left out the scale: 4 is the difference of unscaled scores.")
def unscaled():
    """Forget the scale."""
    return math.exp(8 - 4)


@exercise.wrong("You divided the difference by d = 16. The scale is 1/√16 = 1/4.")
def by_width():
    """Divide by d."""
    return math.exp((8 - 4) / 16)


@exercise.wrong(
    "That is the ratio of the scores. Weights are exponentials of scores, so their "
    "ratio depends on the difference of the scores."
)
def ratio_of_scores():
    """Divide the scores."""
    return 8 / 4


@exercise.wrong(
    "That is the weight of the first key if there are two. The question asks for the "
    "ratio of the two weights."
)
def weight():
    """Give the weight."""
    return 1 / (1 + math.exp(-1))


@exercise.wrong(
    "That is the second weight divided by the first. The first key has the larger "
    "score, so the ratio must exceed 1."
)
def upside_down():
    """Divide the other way around."""
    return math.exp(-1)
