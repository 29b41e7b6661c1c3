"""A causal mask.

Write `causal_mask(queries, keys)`, a boolean array of shape (queries, keys). Entry
(i, j) is True if query i may attend to key j. A query may attend to the key at its own
position and to all earlier ones. If there are more keys than queries, the queries are
the *last* ones of the sequence, as when a decoder has stored the keys of earlier
tokens: the last query may attend to every key.
"""

import numpy as np

from transformers_hw.exercises.kinds import Code

exercise = Code(
    level="core",
    read="attention#masks-who-may-see-whom",
    hints=(
        "Compare the position of the query with the position of the key, for all "
        "pairs: np.arange(...)[:, None] and np.arange(...).",
        "With 2 queries and 5 keys, the queries stand at positions 3 and 4.",
        "Query i stands at position i + keys - queries.",
    ),
)


@exercise.cases
def cases(rng):
    """Yield a square, one query, more keys than queries, and a single token."""
    yield 3, 3
    yield 2, 5
    yield 1, 4
    yield 1, 1
    yield 6, 7


@exercise.solution
def causal_mask(queries, keys):
    """Return which query may attend to which key."""
    position = np.arange(queries)[:, None] + keys - queries
    return np.arange(keys) <= position


@exercise.right
def by_a_triangle(queries, keys):
    """Take the lower triangle, moved to the right."""
    return np.tri(queries, keys, keys - queries, dtype=bool)


@exercise.right
def by_loops(queries, keys):
    """Fill in entry by entry."""
    mask = np.zeros((queries, keys), dtype=bool)
    for i in range(queries):
        for j in range(i + keys - queries + 1):
            mask[i, j] = True
    return mask


@exercise.wrong(
    "Your mask is inverted: True should mean that a query *may* attend. (PyTorch's "
    "nn.MultiheadAttention uses the opposite convention, which causes many such slips.)"
)
def inverted(queries, keys):
    """Say what is forbidden."""
    return ~np.tri(queries, keys, keys - queries, dtype=bool)


@exercise.wrong(
    "Your queries see the future: entry (i, j) is True for later keys. Only keys at "
    "the query's own position or before it are allowed, the lower triangle."
)
def future(queries, keys):
    """Take the upper triangle."""
    return np.triu(np.ones((queries, keys), dtype=bool), keys - queries)


@exercise.wrong(
    "No query may attend to its own position. A token may always see itself; "
    "otherwise the first one would see nothing at all."
)
def without_itself(queries, keys):
    """Forget the diagonal."""
    return np.tri(queries, keys, keys - queries - 1, dtype=bool)


@exercise.wrong(
    "With more keys than queries, you align the first query with the first key. The "
    "queries are the last tokens: the last query must see every key."
)
def aligned_at_the_start(queries, keys):
    """Take the lower triangle from the corner."""
    return np.tri(queries, keys, 0, dtype=bool)


@exercise.wrong(
    "Each query sees one key too many: the one right after its own position. The "
    "query's own position is the last that it may attend to."
)
def one_too_many(queries, keys):
    """Allow the next position as well."""
    return np.tri(queries, keys, keys - queries + 1, dtype=bool)


@exercise.wrong(
    "The queries are moved the wrong way. With more keys than queries they stand at "
    "the end, so query i has position i + keys - queries."
)
def moved_left(queries, keys):
    """Subtract the difference instead of adding it."""
    return np.tri(queries, keys, queries - keys, dtype=bool)
