"""Additive attention over an encoder's states.

Write `additive_attention(states, memory, u, w, v, mask)`. Rows are tokens: `states` has
shape (n, d_s), one decoder state s_i per row, and `memory` (m, d_h), one encoder state
h_j per row. The score of a pair is v · tanh(U s_i + W h_j), where s_i and h_j are
columns: `u` has shape (a, d_s), `w` (a, d_h) and `v` (a,). `mask`, of shape (m,), is
True at real source tokens and False at padding, which gets no weight at all; at least
one token is real. Return the list `[context, weights]`: the contexts, weighted averages
of the encoder states, of shape (n, d_h), and the weights, of shape (n, m).
"""

import numpy as np
from einops import einsum, rearrange

from transformers_hw.exercises.kinds import Code

exercise = Code(
    level="core",
    read="seq2seq#looking-back",
    hints=(
        "Project both sides first: states @ u.T has shape (n, a), memory @ w.T has "
        "shape (m, a).",
        "New axes add all pairs at once: (n, 1, a) + (1, m, a) has the shape "
        "(n, m, a).",
        "Set the scores of padding to -inf before the softmax over the source, the "
        "last axis.",
        "The context averages the encoder states themselves, not their projections.",
    ),
    points=3,
    questions=("eecs-1c",),
)


@exercise.cases
def cases(rng):
    """Yield two states of width 1, random ones, a single token, and large scores."""
    yield (
        np.array([[0.0], [2.0]]),
        np.array([[1.0, 0.0], [0.0, 1.0], [5.0, 5.0]]),
        np.array([[1.0]]),
        np.array([[2.0, -2.0]]),
        np.array([3.0]),
        np.array([True, True, False]),
    )
    for n, m, d_s, d_h, a in ((3, 5, 2, 4, 6), (2, 4, 5, 3, 2), (4, 6, 3, 2, 5)):
        mask = np.arange(m) < m - 2
        yield (
            rng.normal(size=(n, d_s)),
            rng.normal(size=(m, d_h)),
            rng.normal(size=(a, d_s)),
            rng.normal(size=(a, d_h)),
            rng.normal(size=a),
            mask,
        )
    yield (
        rng.normal(size=(2, 3)),
        rng.normal(size=(4, 2)),
        rng.normal(size=(1, 3)),
        rng.normal(size=(1, 2)),
        np.array([2000.0]),
        np.array([False, True, True, True]),
    )
    yield (
        rng.normal(size=(1, 2)),
        rng.normal(size=(1, 3)),
        rng.normal(size=(4, 2)),
        rng.normal(size=(4, 3)),
        rng.normal(size=4),
        np.array([True]),
    )


@exercise.solution
def additive_attention(states, memory, u, w, v, mask):
    """Return the contexts and the weights of all decoder states."""
    query, key = states @ u.T, memory @ w.T
    hidden = np.tanh(rearrange(query, "n a -> n 1 a") + rearrange(key, "m a -> 1 m a"))
    scores = np.where(mask, einsum(hidden, v, "n m a, a -> n m"), -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)
    return [weights @ memory, weights]


@exercise.right
def by_broadcasting(states, memory, u, w, v, mask):
    """Add axes by indexing, and multiply exponentials by the mask."""
    scores = np.tanh((states @ u.T)[:, None] + memory @ w.T) @ v
    scores = scores - scores[:, mask].max(axis=1, keepdims=True)
    powers = np.exp(np.minimum(scores, 0.0)) * mask
    weights = powers / powers.sum(1, keepdims=True)
    return [weights @ memory, weights]


@exercise.right
def pair_by_pair(states, memory, u, w, v, mask):
    """Score the real tokens one after the other."""
    weights = np.zeros((len(states), len(memory)))
    real = np.flatnonzero(mask)
    for i, s in enumerate(states):
        scores = np.array([v @ np.tanh(u @ s + w @ memory[j]) for j in real])
        powers = np.exp(scores - scores.max())
        weights[i, real] = powers / powers.sum()
    return [weights @ memory, weights]


def _scores(states, memory, u, w, v):
    return np.tanh((states @ u.T)[:, None] + memory @ w.T) @ v


def _attend(scores, memory, axis=-1):
    weights = np.exp(scores - scores.max(axis=axis, keepdims=True))
    weights = weights / weights.sum(axis=axis, keepdims=True)
    return [weights @ memory, weights]


@exercise.wrong(
    "The tanh is missing between the sum and v. Then the score is v · Us + v · Wh, and "
    "the part of the decoder state is the same for all tokens: it cancels in the "
    "softmax, and every step gets the same weights."
)
def without_tanh(states, memory, u, w, v, mask):
    """Keep the scores linear."""
    scores = ((states @ u.T)[:, None] + memory @ w.T) @ v
    return _attend(np.where(mask, scores, -np.inf), memory)


@exercise.wrong(
    "The tanh comes after v, so all scores lie between -1 and 1, and no weight can "
    "dominate. It belongs to the hidden layer: v multiplies what tanh returns."
)
def tanh_of_the_score(states, memory, u, w, v, mask):
    """Squash the score instead of the hidden layer."""
    scores = np.tanh(((states @ u.T)[:, None] + memory @ w.T) @ v)
    return _attend(np.where(mask, scores, -np.inf), memory)


@exercise.wrong(
    "Padding gets weight: the mask has no effect on the scores. Set the scores of "
    "padding to -inf before the softmax."
)
def without_mask(states, memory, u, w, v, mask):
    """Ignore the mask."""
    return _attend(_scores(states, memory, u, w, v), memory)


@exercise.wrong(
    "You remove padding after the softmax, so the weights of a step sum to less than "
    "1. Padding must not take part in the sum of exponentials, either."
)
def masked_too_late(states, memory, u, w, v, mask):
    """Set weights at padding to zero."""
    weights = _attend(_scores(states, memory, u, w, v), memory)[1] * mask
    return [weights @ memory, weights]


@exercise.wrong(
    "The mask is read the wrong way around: only padding gets weight. Here True marks "
    "the real tokens, which may be attended to."
)
def inverted_mask(states, memory, u, w, v, mask):
    """Hide the real tokens."""
    scores = _scores(states, memory, u, w, v)
    return _attend(np.where(mask, -np.inf, scores), memory)


@exercise.wrong(
    "The softmax runs over the decoder's steps. Each step needs weights that sum to 1 "
    "over the source tokens, the last axis of the scores."
)
def over_the_steps(states, memory, u, w, v, mask):
    """Normalize the columns."""
    scores = np.where(mask, _scores(states, memory, u, w, v), -np.inf)
    return _attend(scores, memory, axis=0)


@exercise.wrong(
    "You set the scores of padding to 0, but exp(0) = 1, so padding still gets weight. "
    "A score of -inf gets none."
)
def zero_scores(states, memory, u, w, v, mask):
    """Multiply the scores by the mask."""
    return _attend(_scores(states, memory, u, w, v) * mask, memory)


@exercise.wrong(
    "The contexts average the projected states W h_j. The projections serve the scores "
    "only; average the encoder states themselves, the rows of `memory`."
)
def average_of_projections(states, memory, u, w, v, mask):
    """Use the keys as values."""
    scores = np.where(mask, _scores(states, memory, u, w, v), -np.inf)
    weights = _attend(scores, memory)[1]
    return [weights @ (memory @ w.T), weights]
