"""One step with a cache.

A decoder has stored the keys and values of earlier tokens. Write `step(query, key,
value, keys, values)` for one head: `query`, `key` and `value`, of shape (d,), belong to
the new token; `keys` and `values`, of shape (t, d), to the t tokens before it (t may be
0). Append the new key and value, let the query attend to all stored tokens, its own
included, with scale 1/√d, and return the list `[output, keys, values]`: the output of
shape (d,), and the two longer arrays of shape (t + 1, d). The arrays that were given
must stay as they are.
"""

import numpy as np

from transformers_hw.exercises.kinds import Code

exercise = Code(
    level="challenge",
    read="multi_head_attention#key-value-cache",
    hints=(
        "np.concatenate makes new arrays; the new key must become a row first: "
        "key[None].",
        "No mask is needed: everything that is stored lies in the past.",
        "The output is a single vector of shape (d,).",
    ),
    points=3,
)


@exercise.cases
def cases(rng):
    """Yield a first step, and later ones."""
    yield (
        np.array([1.0, 0.0]),
        np.array([2.0, 0.0]),
        np.array([5.0, 7.0]),
        np.array([[0.0, 1.0]]),
        np.array([[1.0, 1.0]]),
    )
    for t, d in ((3, 4), (5, 2), (0, 3)):
        yield (*rng.normal(size=(3, d)), *rng.normal(size=(2, t, d)))


def _attend(query, keys, values, scale=None):
    scores = keys @ query * (len(query) ** -0.5 if scale is None else scale)
    powers = np.exp(scores - scores.max())
    return powers / powers.sum() @ values


@exercise.solution
def step(query, key, value, keys, values):
    """Return the output, and keys and values with the new ones appended."""
    keys = np.concatenate([keys, key[None]])
    values = np.concatenate([values, value[None]])
    scores = keys @ query / np.sqrt(len(query))
    weights = np.exp(scores - scores.max())
    return [weights / weights.sum() @ values, keys, values]


@exercise.right
def by_stacking(query, key, value, keys, values):
    """Stack rows, and average in a loop."""
    keys, values = np.vstack([keys, key]), np.vstack([values, value])
    powers = [np.exp(query @ k / np.sqrt(len(query))) for k in keys]
    output = sum(p * v for p, v in zip(powers, values, strict=True)) / sum(powers)
    return [output, keys, values]


@exercise.right
def by_inserting(query, key, value, keys, values):
    """Insert at the end."""
    keys = np.insert(keys, len(keys), key, axis=0)
    values = np.append(values, value.reshape(1, -1), axis=0)
    return [_attend(query, keys, values), keys, values]


@exercise.wrong(
    "The new token does not attend to itself: you attend first and store afterwards. "
    "Append its key and value before computing scores."
)
def attends_before_storing(query, key, value, keys, values):
    """Attend to the past only."""
    output = _attend(query, keys, values) if len(keys) else np.zeros(len(query))
    return [output, np.vstack([keys, key]), np.vstack([values, value])]


@exercise.wrong(
    "The new key and value come first. The order of stored tokens is the order of the "
    "text: append at the end."
)
def prepends(query, key, value, keys, values):
    """Store at the front."""
    keys, values = np.vstack([key, keys]), np.vstack([value, values])
    return [_attend(query, keys, values), keys, values]


@exercise.wrong(
    "The cache does not grow: you return the keys and values as they were, so the next "
    "token will not see this one."
)
def forgets(query, key, value, keys, values):
    """Return the old cache."""
    output = _attend(query, np.vstack([keys, key]), np.vstack([values, value]))
    return [output, keys.copy(), values.copy()]


@exercise.wrong(
    "You scale by the number of stored tokens. The scale 1/√d depends on the width of "
    "a key, and stays the same however many there are."
)
def scale_of_length(query, key, value, keys, values):
    """Divide by the root of the number of keys."""
    keys, values = np.vstack([keys, key]), np.vstack([values, value])
    return [_attend(query, keys, values, len(keys) ** -0.5), keys, values]


@exercise.wrong(
    "The scores are not scaled. Divide them by √d before the softmax, as attention "
    "without a cache does."
)
def without_scale(query, key, value, keys, values):
    """Leave the scores as they are."""
    keys, values = np.vstack([keys, key]), np.vstack([values, value])
    return [_attend(query, keys, values, 1.0), keys, values]


@exercise.wrong(
    "The key was stored in place of the value as well. Keys decide where to attend, "
    "values what is brought back; store each in its own array."
)
def stores_keys_twice(query, key, value, keys, values):
    """Append the key to both."""
    keys, values = np.vstack([keys, key]), np.vstack([values, key])
    return [_attend(query, keys, values), keys, values]
