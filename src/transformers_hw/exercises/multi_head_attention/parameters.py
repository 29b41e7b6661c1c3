"""Counting parameters.

A layer of multi-head attention has width d = 512 and h = 8 heads of the usual width
d / h. All four projections have biases. How many parameters does it have?
"""

from transformers_hw.exercises.kinds import Number

exercise = Number(
    level="warm-up",
    read="multi_head_attention#counting-parameters",
    hints=(
        "Side by side, the query matrices of all heads form one square matrix.",
        "Four matrices of d × d, and four biases of d numbers.",
    ),
    tolerance=0.5,
)


@exercise.solution
def parameters():
    """Return 4 d² weights and 4 d biases."""
    d = 512
    return 4 * d * d + 4 * d


@exercise.wrong("You left out the biases: 4 · 512 of them.")
def without_biases():
    """Count weights only."""
    return 4 * 512 * 512


@exercise.wrong(
    "You forgot the output projection, which is as large as each of the other three."
)
def three_projections():
    """Count queries, keys and values."""
    return 3 * 512 * 512 + 3 * 512


@exercise.wrong(
    "You gave every head full-width projections. The heads divide the width: each has "
    "d × d/h matrices, so together they are as large as for one head."
)
def times_heads():
    """Multiply by the number of heads."""
    return 8 * (3 * 512 * 512 + 3 * 512) + 512 * 512 + 512


@exercise.wrong(
    "That is one head's share. All eight heads together have 4 d² + 4 d parameters."
)
def one_head():
    """Count one head."""
    return (4 * 512 * 512 + 4 * 512) // 8
