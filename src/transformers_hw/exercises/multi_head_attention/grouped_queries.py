"""Heads that share keys and values.

Write `grouped_attention(query, key, value)` for grouped-query attention. `query` has
shape (h, n, d): h heads of queries. `key` and `value` have shape (g, m, d): g heads of
keys and values, where g divides h. The first h/g heads of queries use the first head of
keys and values, the next h/g the second, and so on. Scale by 1/√d, use no mask, and
return the outputs of all heads, of shape (h, n, d).
"""

import numpy as np

from transformers_hw.exercises.kinds import Code

exercise = Code(
    level="core",
    read="multi_head_attention#sharing-keys-and-values",
    hints=(
        "Give every head of queries its keys and values first; then this is ordinary "
        "attention, head by head.",
        "np.repeat(key, r, axis=0) repeats each head r times in place: 0, 0, 1, 1.",
        "With r = h // g, query head i uses keys and values number i // r.",
    ),
    points=2,
)


@exercise.cases
def cases(rng):
    """Yield groups of two, three and one, and one group for all."""
    for h, g, n, m, d in ((4, 2, 3, 5, 2), (6, 2, 1, 4, 3), (3, 3, 2, 2, 4)):
        yield rng.normal(size=(h, n, d)), *rng.normal(size=(2, g, m, d))
    yield rng.normal(size=(4, 2, 5)), *rng.normal(size=(2, 1, 3, 5))


def _attend(query, key, value, scale=None):
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = scale * np.einsum("hnd,hmd->hnm", query, key)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hnm,hmd->hnd", powers / powers.sum(-1, keepdims=True), value)


@exercise.solution
def grouped_attention(query, key, value):
    """Return the outputs of all heads."""
    r = len(query) // len(key)
    key, value = np.repeat(key, r, axis=0), np.repeat(value, r, axis=0)
    scores = query @ key.transpose(0, 2, 1) / np.sqrt(query.shape[-1])
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ value


@exercise.right
def by_loops(query, key, value):
    """Take head by head."""
    r = len(query) // len(key)
    heads = [
        _attend(q[None], key[None, i // r], value[None, i // r])[0]
        for i, q in enumerate(query)
    ]
    return np.stack(heads)


@exercise.right
def by_more_queries(query, key, value):
    """Let the heads of a group be more queries of one head."""
    h, n, d = query.shape
    return _attend(query.reshape(len(key), -1, d), key, value).reshape(h, n, d)


@exercise.right
def by_broadcasting(query, key, value):
    """Give groups an axis of their own."""
    g = len(key)
    h, n, d = query.shape
    scores = np.einsum("grnd,gmd->grnm", query.reshape(g, h // g, n, d), key) / d**0.5
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    weights = powers / powers.sum(-1, keepdims=True)
    return np.einsum("grnm,gmd->grnd", weights, value).reshape(h, n, d)


@exercise.wrong(
    "Your heads share in turns: head 0 uses keys 0, head 1 keys 1, and so on. "
    "Neighboring heads should share: repeat each head of keys in place (np.repeat), "
    "not the whole list (np.tile)."
)
def in_turns(query, key, value):
    """Repeat the list of heads."""
    r = len(query) // len(key)
    return _attend(query, np.tile(key, (r, 1, 1)), np.tile(value, (r, 1, 1)))


@exercise.wrong(
    "All your heads use the first keys and values. That is multi-query attention; here "
    "each group has its own."
)
def the_first_for_all(query, key, value):
    """Use one head of keys and values."""
    r = len(query)
    return _attend(query, np.repeat(key[:1], r, 0), np.repeat(value[:1], r, 0))


@exercise.wrong(
    "You average the keys and values of all heads before you attend. Every head of "
    "queries uses one head of keys and values as it is."
)
def averaged(query, key, value):
    """Share by averaging."""
    r = len(query)
    key, value = key.mean(0, keepdims=True), value.mean(0, keepdims=True)
    return _attend(query, np.repeat(key, r, 0), np.repeat(value, r, 0))


@exercise.wrong(
    "You average the queries of a group. Heads of one group share keys and values, not "
    "queries: each keeps its own queries, weights and output."
)
def shared_queries(query, key, value):
    """Share the queries, too."""
    h, n, d = query.shape
    r = h // len(key)
    mean = query.reshape(-1, r, n, d).mean(1)
    return np.repeat(_attend(mean, key, value), r, axis=0)


@exercise.wrong("The scores are not scaled: divide them by √d before the softmax.")
def unscaled(query, key, value):
    """Forget the scale."""
    r = len(query) // len(key)
    return _attend(query, np.repeat(key, r, 0), np.repeat(value, r, 0), 1.0)


@exercise.wrong(
    "You share the keys by groups, but the values in turns. Both belong together: "
    "repeat the values in the same way as the keys."
)
def values_in_turns(query, key, value):
    """Repeat values in another order."""
    r = len(query) // len(key)
    return _attend(query, np.repeat(key, r, 0), np.tile(value, (r, 1, 1)))
