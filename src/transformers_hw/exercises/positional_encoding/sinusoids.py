"""Sinusoidal positions.

Write `sinusoids(length, width, base)`: the sinusoidal encodings of the positions
0, 1, ..., length - 1, one per row, of shape (length, width) with an even width. Pair i
of coordinates, counted from 0, holds sin(ω t) and cos(ω t) of position t, next to each
other, with the frequency ω = base ** (-2 i / width).
"""

import numpy as np
from einops import rearrange

from transformers_hw.exercises.kinds import Code

exercise = Code(
    level="core",
    read="positional_encoding#clock-hands",
    hints=(
        "There are width / 2 frequencies. An outer product of positions and "
        "frequencies gives all angles at once.",
        "Stack sines and cosines along a new last axis, then merge the last two axes.",
    ),
    points=2,
)


@exercise.cases
def cases(rng):
    """Yield a short table, a longer one, other bases, and a single position."""
    yield 3, 4, 10_000.0
    yield 7, 10, 10_000.0
    yield 5, 6, 100.0
    yield 1, 2, 10_000.0
    yield 12, 2, 7.0


@exercise.solution
def sinusoids(length, width, base):
    """Return the encodings, a row for each position."""
    frequencies = base ** (-np.arange(0, width, 2) / width)
    angles = np.arange(length)[:, None] * frequencies
    pairs = np.stack([np.sin(angles), np.cos(angles)], axis=-1)
    return rearrange(pairs, "t i two -> t (i two)")


@exercise.right
def by_slices(length, width, base):
    """Fill every other column."""
    table = np.zeros((length, width))
    angles = np.outer(np.arange(length), base ** (-2 * np.arange(width // 2) / width))
    table[:, 0::2], table[:, 1::2] = np.sin(angles), np.cos(angles)
    return table


@exercise.right
def by_loops(length, width, base):
    """Fill in number by number."""
    table = np.zeros((length, width))
    for t in range(length):
        for i in range(width // 2):
            angle = t / base ** (2 * i / width)
            table[t, 2 * i], table[t, 2 * i + 1] = np.sin(angle), np.cos(angle)
    return table


def _table(angles):
    return np.stack([np.sin(angles), np.cos(angles)], -1).reshape(len(angles), -1)


@exercise.wrong(
    "All sines come first, then all cosines. Here sine and cosine of one frequency "
    "stand next to each other. (Some libraries do it your way; weights trained with "
    "one layout do not fit the other.)"
)
def halves(length, width, base):
    """Put sines before cosines."""
    angles = np.outer(np.arange(length), base ** (-np.arange(0, width, 2) / width))
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


@exercise.wrong(
    "The frequencies fall twice as slowly as they should: the exponent is -2i / width, "
    "since i counts pairs of coordinates."
)
def exponent_without_two(length, width, base):
    """Use -i / width."""
    return _table(np.outer(np.arange(length), base ** (-np.arange(width // 2) / width)))


@exercise.wrong(
    "The exponent has the wrong sign, so frequencies grow to the base itself. The "
    "first hand turns fastest, and each further one more slowly."
)
def growing_frequencies(length, width, base):
    """Use +2i / width."""
    return _table(np.outer(np.arange(length), base ** (np.arange(0, width, 2) / width)))


@exercise.wrong(
    "Your positions begin at 1. The first row belongs to position 0: all sines are 0 "
    "there, and all cosines 1."
)
def from_one(length, width, base):
    """Count positions from one."""
    return _table(
        np.outer(np.arange(1, length + 1), base ** (-np.arange(0, width, 2) / width))
    )


@exercise.wrong(
    "Each column has a frequency of its own, so the sine and the cosine next to it "
    "belong to different hands. Both coordinates of a pair share one frequency."
)
def frequency_per_column(length, width, base):
    """Give every coordinate its own frequency."""
    angles = np.outer(np.arange(length), base ** (-np.arange(width) / width))
    return np.where(np.arange(width) % 2 == 0, np.sin(angles), np.cos(angles))


@exercise.wrong(
    "You count coordinates where the formula counts pairs: i = 0, 1, ... numbers the "
    "pairs, so coordinates 2i and 2i + 1 share the frequency base ** (-2i / width)."
)
def coordinates_for_pairs(length, width, base):
    """Use the number of the coordinate in place of that of the pair."""
    angles = np.outer(np.arange(length), base ** (-2 * np.arange(width) / width))
    return np.where(np.arange(width) % 2 == 0, np.sin(angles), np.cos(angles))


@exercise.wrong(
    "The cosine comes before the sine. In each pair the sine is first, so position 0 "
    "has the encoding 0, 1, 0, 1, ..."
)
def cosine_first(length, width, base):
    """Exchange sine and cosine."""
    angles = np.outer(np.arange(length), base ** (-np.arange(0, width, 2) / width))
    return np.stack([np.cos(angles), np.sin(angles)], -1).reshape(length, width)
