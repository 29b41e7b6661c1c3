"""Weights that draw a permutation.

The tokens are C = [X I]: each row holds the d numbers of a token, then the one-hot
encoding of its position, n numbers for n = len(order). Write `projections(order, d)`: a
list `[w_q, w_k, w_v]` of matrices, each with d + n rows, such that attention with
queries C w_q, keys C w_k and values C w_v and a very large scale returns the tokens in
the given order, for *all* X: output i is the token (its d numbers) at position
order[i]. Scores must not depend on the tokens. Queries and keys may be of any width,
and the values have width d.
"""

import numpy as np

from transformers_hw.exercises.kinds import Code

exercise = Code(
    level="core",
    read="self_attention#three-tokens-by-hand",
    hints=(
        "Let keys be the one-hot positions: w_k has zeros for the first d rows, and "
        "the identity below.",
        "Let query i name the position that it wants: below the zeros, row i of w_q is "
        "the one-hot vector of order[i].",
        "Values keep the token and drop the position: the identity above zeros.",
    ),
    points=3,
    questions=("nyu-1.3c",),
)


@exercise.cases
def cases(rng):
    """Yield a cycle of three, and longer ones."""
    yield np.array([1, 2, 0]), 1
    yield np.array([2, 0, 3, 1]), 3
    yield np.array([1, 2, 3, 4, 0]), 2
    yield np.array([0]), 2


@exercise.view
def view(result, order, d):
    """Run the layer with a large scale on random tokens."""
    n = len(order)
    x = np.random.default_rng(7).normal(size=(n, d))
    tokens = np.concatenate([x, np.eye(n)], axis=1)
    query, key, value = (tokens @ np.asarray(w) for w in result)
    scores = 1e3 * query @ key.T
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ value


@exercise.solution
def projections(order, d):
    """Return the matrices of queries, keys and values."""
    n = len(order)
    nothing = np.zeros((d, n))
    w_q = np.concatenate([nothing, np.eye(n)[order]])
    w_k = np.concatenate([nothing, np.eye(n)])
    w_v = np.concatenate([np.eye(d), np.zeros((n, d))])
    return [w_q, w_k, w_v]


@exercise.right
def moving_the_keys(order, d):
    """Let queries be positions, and let keys say who wants them."""
    n = len(order)
    w_k = np.zeros((d + n, n))
    for i, j in enumerate(order):
        w_k[d + j, i] = 1.0
    w_q = np.vstack([np.zeros((d, n)), np.eye(n)])
    return [w_q, w_k, np.vstack([np.eye(d), np.zeros((n, d))])]


@exercise.right
def larger(order, d):
    """Scale queries and keys: a hard head does not mind."""
    n = len(order)
    w_q = 3.0 * np.pad(np.eye(n)[order], ((d, 0), (0, 0)))
    w_k = 2.0 * np.pad(np.eye(n), ((d, 0), (0, 0)))
    return [w_q, w_k, np.eye(d + n)[:, :d]]


@exercise.wrong(
    "Your layer applies the inverse permutation. Query i must match the key of "
    "position order[i], and not the other way around."
)
def inverse(order, d):
    """Transpose the block of the queries."""
    n = len(order)
    w_q = np.pad(np.eye(n)[order].T, ((d, 0), (0, 0)))
    return [w_q, np.pad(np.eye(n), ((d, 0), (0, 0))), np.eye(d + n)[:, :d]]


@exercise.wrong(
    "Every token attends to itself: queries and keys are the same positions. The order "
    "must enter the queries."
)
def identity(order, d):
    """Leave the order out."""
    n = len(order)
    w = np.pad(np.eye(n), ((d, 0), (0, 0)))
    return [w, w, np.eye(d + n)[:, :d]]


@exercise.wrong(
    "The values carry the one-hot positions instead of the tokens. They should keep "
    "the first d columns of C and drop the rest."
)
def values_of_positions(order, d):
    """Bring positions back."""
    n = len(order)
    w_q = np.pad(np.eye(n)[order], ((d, 0), (0, 0)))
    w_k = np.pad(np.eye(n), ((d, 0), (0, 0)))
    return [w_q, w_k, w_k]


@exercise.wrong(
    "The values carry tokens *and* positions: the output has d + n columns. Only the d "
    "numbers of a token should come through."
)
def everything(order, d):
    """Keep the whole token."""
    n = len(order)
    w_q = np.pad(np.eye(n)[order], ((d, 0), (0, 0)))
    return [w_q, np.pad(np.eye(n), ((d, 0), (0, 0))), np.eye(d + n)]


@exercise.wrong(
    "All scores are equal, so every output is the mean of the tokens. The keys must "
    "tell positions apart."
)
def uniform(order, d):
    """Make no difference between keys."""
    n = len(order)
    zeros = np.zeros((d + n, n))
    return [zeros, zeros, np.eye(d + n)[:, :d]]


@exercise.wrong(
    "The blocks are stacked in the wrong order, so scores depend on the tokens. In C "
    "the d numbers of the token come first: the zeros of w_q and w_k belong on top."
)
def blocks_exchanged(order, d):
    """Put the zeros below."""
    n = len(order)
    w_q = np.pad(np.eye(n)[order], ((0, d), (0, 0)))
    return [w_q, np.pad(np.eye(n), ((0, d), (0, 0))), np.eye(d + n)[:, :d]]
