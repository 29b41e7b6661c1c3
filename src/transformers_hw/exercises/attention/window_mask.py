"""A sliding window with sinks.

Write `window_mask(length, window, sinks)`, a boolean array of shape (length, length).
Entry (i, j) is True if query i may attend to key j. Queries never attend to later keys.
Of the others, a query sees the `window` keys that end with its own position, and the
first `sinks` keys of the sequence, however far away they are.
"""

import numpy as np

from transformers_hw.exercises.kinds import Code

exercise = Code(
    level="core",
    read="attention#long-sequences",
    hints=(
        "Start with the distance i - j of every query from every key: "
        "np.arange(length)[:, None] - np.arange(length).",
        "The window holds the keys at distances 0, 1, …, window - 1.",
        "A key is visible if it is in the window *or* among the sinks, *and* does not "
        "come after the query.",
    ),
)


@exercise.cases
def cases(rng):
    """Yield windows without sinks, with sinks, of one key, and of all keys."""
    yield 6, 3, 0
    yield 7, 2, 2
    yield 5, 1, 1
    yield 4, 9, 0
    yield 8, 3, 5


@exercise.solution
def window_mask(length, window, sinks):
    """Return which query may attend to which key."""
    distance = np.arange(length)[:, None] - np.arange(length)
    near = distance < window
    return (distance >= 0) & (near | (np.arange(length) < sinks))


@exercise.right
def by_triangles(length, window, sinks):
    """Take one triangle from another, and add the first columns."""
    mask = np.tri(length, dtype=bool) & ~np.tri(length, k=-window, dtype=bool)
    mask[:, :sinks] |= np.tri(length, dtype=bool)[:, :sinks]
    return mask


@exercise.right
def by_loops(length, window, sinks):
    """Fill in row by row."""
    mask = np.zeros((length, length), dtype=bool)
    for i in range(length):
        mask[i, max(0, i - window + 1) : i + 1] = True
        mask[i, : min(sinks, i + 1)] = True
    return mask


@exercise.right
def by_integers(length, window, sinks):
    """Work with zeros and ones."""
    mask = np.zeros((length, length), dtype=int)
    for distance in range(window):
        mask += np.eye(length, k=-distance, dtype=int)
    mask[:, :sinks] = 1
    return (mask * np.tri(length, dtype=int)) > 0


@exercise.wrong(
    "Your window holds window + 1 keys. It includes the query's own position, so only "
    "window - 1 earlier keys belong to it: the distance must be *less* than window."
)
def one_too_many(length, window, sinks):
    """Count the query's own position apart."""
    distance = np.arange(length)[:, None] - np.arange(length)
    near = distance <= window
    return (distance >= 0) & (near | (np.arange(length) < sinks))


@exercise.wrong(
    "Your sinks are visible too early: a query that comes before a sink sees it. Hide "
    "later keys from all queries, sinks included."
)
def sinks_from_the_past(length, window, sinks):
    """Add the sinks after the causal mask."""
    distance = np.arange(length)[:, None] - np.arange(length)
    return ((distance >= 0) & (distance < window)) | (np.arange(length) < sinks)


@exercise.wrong(
    "Your window reaches to both sides, so queries see later keys. Require i - j >= 0 "
    "as well."
)
def both_sides(length, window, sinks):
    """Take the distance without its sign."""
    distance = np.arange(length)[:, None] - np.arange(length)
    return (abs(distance) < window) | (np.arange(length) < sinks)


@exercise.wrong(
    "You join window and sinks by *and*: only sinks inside the window remain. A key is "
    "visible if it is in the window *or* a sink."
)
def both_at_once(length, window, sinks):
    """Require window and sink."""
    distance = np.arange(length)[:, None] - np.arange(length)
    near = distance < window
    return (distance >= 0) & near & (np.arange(length) < sinks)


@exercise.wrong(
    "You take the *last* keys for the sinks. Sinks are the first keys of the sequence, "
    "columns 0 to sinks - 1."
)
def last_keys(length, window, sinks):
    """Count sinks from the end."""
    distance = np.arange(length)[:, None] - np.arange(length)
    late = np.arange(length) >= length - sinks
    return (distance >= 0) & ((distance < window) | late)


@exercise.wrong(
    "Your sinks are missing: beyond its window, a query should still see the first "
    "`sinks` keys."
)
def without_sinks(length, window, sinks):
    """Forget the sinks."""
    distance = np.arange(length)[:, None] - np.arange(length)
    return (distance >= 0) & (distance < window)
