"""Rotary positions.

Write `rope_scores(query, key, frequencies)`, the scores of rotary position embeddings.
`query` and `key` have shape (n, 2 f), and `frequencies` holds the f numbers ω_i. Row t
is the vector of position t, counted from 0, and its coordinates 2i and 2i + 1 form pair
i. Turn pair i of the vector at position t by the angle ω_i t, counterclockwise in the
plane (x, y) of the pair, in queries and keys alike. Return the dot products of all
turned queries with all turned keys, of shape (n, n), without a scale.
"""

import numpy as np
from einops import rearrange

from transformers_hw.exercises.kinds import Code

exercise = Code(
    level="challenge",
    read="positional_encoding#rope-turn-queries-and-keys",
    hints=(
        "A turn by θ sends (x, y) to (x cos θ - y sin θ, x sin θ + y cos θ).",
        "A pair can be read as the complex number x + iy; a turn multiplies it by "
        "exp(iθ).",
        "Check yourself: if all rows of query and key are equal, the score depends on "
        "the distance of the two positions only.",
    ),
    points=3,
)


@exercise.cases
def cases(rng):
    """Yield two positions with a quarter turn, then longer and wider ones."""
    right, up = np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([[0.0, 1.0], [1.0, 0.0]])
    yield right, up, np.array([np.pi / 2])
    for n, f in ((3, 2), (5, 3), (1, 4), (6, 1)):
        yield (
            rng.normal(size=(n, 2 * f)),
            rng.normal(size=(n, 2 * f)),
            rng.random(f) + 0.2,
        )


@exercise.solution
def rope_scores(query, key, frequencies):
    """Return the scores of turned queries with turned keys."""
    angles = np.arange(len(query))[:, None] * frequencies

    def turn(x):
        first, second = rearrange(x, "n (f two) -> two n f", two=2)
        cos, sin = np.cos(angles), np.sin(angles)
        turned = np.stack([first * cos - second * sin, first * sin + second * cos], -1)
        return rearrange(turned, "n f two -> n (f two)")

    return turn(query) @ turn(key).T


@exercise.right
def by_complex_numbers(query, key, frequencies):
    """Multiply by a phase."""
    phase = np.exp(1j * np.outer(np.arange(len(query)), frequencies))
    q, k = ((x[:, 0::2] + 1j * x[:, 1::2]) * phase for x in (query, key))
    return (q @ k.conj().T).real


@exercise.right
def by_distance(query, key, frequencies):
    """Turn the key by the distance only, pair by pair."""
    n = len(query)
    scores = np.zeros((n, n))
    for t in range(n):
        for s in range(n):
            for i, frequency in enumerate(frequencies):
                angle = frequency * (s - t)
                x, y = key[s, 2 * i : 2 * i + 2]
                turned = (
                    x * np.cos(angle) - y * np.sin(angle),
                    x * np.sin(angle) + y * np.cos(angle),
                )
                scores[t, s] += query[t, 2 * i : 2 * i + 2] @ turned
    return scores


def _turn(x, angles):
    pairs = (x[:, 0::2] + 1j * x[:, 1::2]) * np.exp(1j * angles)
    return np.stack([pairs.real, pairs.imag], -1).reshape(x.shape)


@exercise.wrong(
    "Only the queries are turned. Then the scores depend on absolute positions; turned "
    "alike, query and key meet in a score that depends on their distance."
)
def queries_only(query, key, frequencies):
    """Leave the keys alone."""
    return _turn(query, np.outer(np.arange(len(query)), frequencies)) @ key.T


@exercise.wrong(
    "Queries and keys turn in opposite directions, so the score depends on the sum of "
    "the positions. Turn both the same way."
)
def opposite_turns(query, key, frequencies):
    """Turn keys backwards."""
    angles = np.outer(np.arange(len(query)), frequencies)
    return _turn(query, angles) @ _turn(key, -angles).T


@exercise.wrong(
    "You pair coordinate i with coordinate i + f, the first half with the second. That "
    "layout exists, but here neighbors 2i and 2i + 1 form a pair."
)
def halves(query, key, frequencies):
    """Pair the halves."""
    angles, f = np.outer(np.arange(len(query)), frequencies), len(frequencies)

    def turn(x):
        pairs = (x[:, :f] + 1j * x[:, f:]) * np.exp(1j * angles)
        return np.concatenate([pairs.real, pairs.imag], axis=1)

    return turn(query) @ turn(key).T


@exercise.wrong(
    "The positions play no part: every row is turned by the same angles, which cancel "
    "in the dot product. Multiply the frequencies by the position t."
)
def same_turn(query, key, frequencies):
    """Forget the positions."""
    return query @ key.T


@exercise.wrong(
    "You turn clockwise. Counterclockwise, (x, y) becomes (x cos θ - y sin θ, "
    "x sin θ + y cos θ)."
)
def clockwise(query, key, frequencies):
    """Turn the other way."""
    angles = -np.outer(np.arange(len(query)), frequencies)
    return _turn(query, angles) @ _turn(key, angles).T


@exercise.wrong(
    "The turns are right, but you divide by √d. The task asks for plain dot products; "
    "attention scales them later."
)
def scaled(query, key, frequencies):
    """Scale the scores."""
    angles = np.outer(np.arange(len(query)), frequencies)
    return _turn(query, angles) @ _turn(key, angles).T / np.sqrt(query.shape[1])


@exercise.wrong(
    "Rows and columns are exchanged: row t belongs to query t, and column s to key s."
)
def keys_in_rows(query, key, frequencies):
    """Multiply keys by queries."""
    angles = np.outer(np.arange(len(query)), frequencies)
    return _turn(key, angles) @ _turn(query, angles).T
