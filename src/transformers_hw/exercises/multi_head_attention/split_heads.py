"""Split into heads.

Write `split_heads(x, heads)`. A projection gave `x` of shape (batch, n, heads · d),
with the columns of head 1 first, then those of head 2, and so on. Return an array of
shape (batch, heads, n, d).
"""

import numpy as np
from einops import rearrange

from transformers_hw.exercises.kinds import Code

exercise = Code(
    level="warm-up",
    read="multi_head_attention#splitting-and-joining",
    hints=(
        "Split the last axis into two, heads first. Then move the axis of heads "
        "forward.",
        "In einops the pattern is `b n (h d) -> b h n d`.",
    ),
)


@exercise.cases
def cases(rng):
    """Yield numbers that one can follow, then random ones of other sizes."""
    yield np.arange(12.0).reshape(1, 3, 4), 2
    yield rng.normal(size=(2, 5, 6)), 3
    yield rng.normal(size=(3, 4, 10)), 2
    yield rng.normal(size=(2, 1, 7)), 7
    yield rng.normal(size=(1, 6, 5)), 1


@exercise.solution
def split_heads(x, heads):
    """Return one matrix for each head."""
    return rearrange(x, "b n (h d) -> b h n d", h=heads)


@exercise.right
def by_reshape(x, heads):
    """Split the last axis, then exchange two axes."""
    b, n, _ = x.shape
    return x.reshape(b, n, heads, -1).transpose(0, 2, 1, 3)


@exercise.right
def by_slices(x, heads):
    """Cut out the columns of each head."""
    return np.stack(np.split(x, heads, axis=-1), axis=1)


@exercise.wrong(
    "The shape is right, and the contents are not: reshape fills the new shape in "
    "reading order, so a head gets whole tokens instead of columns. Split the last "
    "axis first, then move the axis of heads."
)
def reshaped_at_once(x, heads):
    """Reshape without moving an axis."""
    b, n, width = x.shape
    return x.reshape(b, heads, n, width // heads)


@exercise.wrong(
    "The heads take turns: head 1 has columns 0, h, 2h, ... Here each head has a block "
    "of neighboring columns, so the axis of heads comes first: (h d), not (d h)."
)
def interleaved(x, heads):
    """Put the heads last."""
    return rearrange(x, "b n (d h) -> b h n d", h=heads)


@exercise.wrong(
    "The axis of heads stands behind the tokens. It must come before them, so that "
    "attention treats heads like a batch."
)
def not_moved(x, heads):
    """Leave the heads behind the tokens."""
    return rearrange(x, "b n (h d) -> b n h d", h=heads)


@exercise.wrong(
    "Tokens and coordinates are exchanged: the last axis should be the coordinates d, "
    "the one before it the tokens n."
)
def transposed(x, heads):
    """Exchange tokens and coordinates."""
    return rearrange(x, "b n (h d) -> b h d n", h=heads)
