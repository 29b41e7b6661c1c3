"""One number per distance.

A layer learns one bias for each distance between two tokens, up to a largest distance:
all distances beyond it share the outermost bias. Write `distance_bias(table, length)`.
The table has 2·k + 1 entries for the distances -k, ..., k, in this order: entry 0
belongs to distance -k. The distance from query i to key j is j - i. Return the biases
of all pairs, of shape (length, length), with distances clipped to -k and k.
"""

import numpy as np

from transformers_hw.exercises.kinds import Code

exercise = Code(
    level="core",
    read="positional_encoding#t5-a-number-per-distance",
    hints=(
        "First make the table of distances j - i, then clip it, then use it as an "
        "index.",
        "Distance -k is entry 0, so add k before indexing.",
    ),
)


@exercise.cases
def cases(rng):
    """Yield a table that suffices, some that must be clipped, and one entry."""
    yield np.array([10.0, 20.0, 30.0]), 2
    yield np.array([1.0, 2.0, 3.0, 4.0, 5.0]), 5
    yield rng.normal(size=7), 3
    yield np.array([4.0]), 3
    yield rng.normal(size=3), 6


@exercise.solution
def distance_bias(table, length):
    """Return the bias of every query and key."""
    k = len(table) // 2
    distance = np.arange(length) - np.arange(length)[:, None]
    return table[np.clip(distance, -k, k) + k]


@exercise.right
def by_loops(table, length):
    """Look up pair by pair."""
    k = len(table) // 2
    return np.array(
        [
            [table[min(max(j - i, -k), k) + k] for j in range(length)]
            for i in range(length)
        ]
    )


@exercise.right
def by_padding(table, length):
    """Extend the table, then take a window of it for each query."""
    longer = np.pad(table, length, mode="edge")
    middle = length + len(table) // 2
    return np.stack([longer[middle - i : middle - i + length] for i in range(length)])


@exercise.wrong(
    "The distance has the wrong sign, so left and right are exchanged. For query i and "
    "key j it is j - i: a key after the query has a positive distance."
)
def mirrored(table, length):
    """Use i - j."""
    k = len(table) // 2
    distance = np.arange(length)[:, None] - np.arange(length)
    return table[np.clip(distance, -k, k) + k]


@exercise.wrong(
    "You index with the distance itself. Negative indices count from the end in "
    "Python, so distance 0 reads the first entry, which belongs to -k. Add k first."
)
def without_offset(table, length):
    """Forget that the table begins at -k."""
    k = len(table) // 2
    distance = np.arange(length) - np.arange(length)[:, None]
    return table[np.clip(distance, -k, k)]


@exercise.wrong(
    "Distances beyond the table wrap around to its other end. Clip them, so that all "
    "far keys on one side share the outermost bias."
)
def wrapped(table, length):
    """Take distances modulo the size of the table."""
    k = len(table) // 2
    distance = np.arange(length) - np.arange(length)[:, None]
    return table[(distance + k) % len(table)]


@exercise.wrong(
    "Distances beyond the table get no bias. They share the outermost entry: clip the "
    "distance to -k and k."
)
def zero_beyond(table, length):
    """Give far pairs a bias of zero."""
    k = len(table) // 2
    distance = np.arange(length) - np.arange(length)[:, None]
    inside = np.abs(distance) <= k
    return np.where(inside, table[np.clip(distance, -k, k) + k], 0.0)


@exercise.wrong(
    "You use the distance without its sign, so both sides get the biases of later "
    "keys. The table has entries of its own for keys before the query."
)
def without_sign(table, length):
    """Take absolute distances."""
    k = len(table) // 2
    distance = np.abs(np.arange(length) - np.arange(length)[:, None])
    return table[np.minimum(distance, k) + k]


@exercise.wrong(
    "Without clipping, distances beyond k point outside the table. Limit them to -k "
    "and k before you add k: np.clip(distance, -k, k)."
)
def not_clipped(table, length):
    """Index with distances of any size."""
    k = len(table) // 2
    return table[np.arange(length) - np.arange(length)[:, None] + k]
