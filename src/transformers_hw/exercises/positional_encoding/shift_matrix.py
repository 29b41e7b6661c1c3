"""A step is a turn.

Sinusoidal encodings pair their coordinates: p_t = (sin ω₀t, cos ω₀t, sin ω₁t, cos ω₁t,
...). Write `shift_matrix(frequencies, offset)`: the matrix M that takes p_t to
p_{t+offset} for every t, p_t M = p_{t+offset}. Encodings are *rows*, so M multiplies
from the right. It has shape (2 n, 2 n) for n frequencies, and is block diagonal.
"""

import numpy as np

from transformers_hw.exercises.kinds import Code

exercise = Code(
    level="core",
    read="positional_encoding#a-step-is-a-turn",
    hints=(
        "Write sin(a + b) and cos(a + b) by the addition theorems, with a = ωt and "
        "b = ω · offset.",
        "For one frequency, (sin a, cos a) times a 2 × 2 matrix must be (sin(a + b), "
        "cos(a + b)). Its first *column* makes the sine.",
        "The block is [[cos b, -sin b], [sin b, cos b]].",
    ),
    points=2,
    questions=("quiz-2.5",),
)


@exercise.cases
def cases(rng):
    """Yield one hand, several, a step back, and none."""
    yield np.array([np.pi / 6]), 1
    yield np.array([1.0, 0.1]), 3
    yield rng.random(4) + 0.1, -2
    yield np.array([1.0, 0.5, 0.25]), 0
    yield rng.random(3) + 0.1, 7


@exercise.solution
def shift_matrix(frequencies, offset):
    """Return the matrix that moves every encoding by the offset."""
    matrix = np.zeros((2 * len(frequencies), 2 * len(frequencies)))
    for i, angle in enumerate(frequencies * offset):
        pair = slice(2 * i, 2 * i + 2)
        matrix[pair, pair] = [
            [np.cos(angle), -np.sin(angle)],
            [np.sin(angle), np.cos(angle)],
        ]
    return matrix


@exercise.right
def by_solving(frequencies, offset):
    """Solve for the matrix from the encodings of a few positions."""
    n = len(frequencies)
    times = np.arange(2 * n)[:, None] * 0.37

    def encode(t):
        angles = t * frequencies
        return np.stack([np.sin(angles), np.cos(angles)], -1).reshape(len(t), -1)

    return np.linalg.solve(encode(times), encode(times + offset))


@exercise.right
def by_kronecker_products(frequencies, offset):
    """Add up one block per frequency."""
    angles = np.asarray(frequencies) * offset
    turn = np.array([[0.0, -1.0], [1.0, 0.0]])
    return np.kron(np.diag(np.cos(angles)), np.eye(2)) + np.kron(
        np.diag(np.sin(angles)), turn
    )


def _blocks(angles, block):
    matrix = np.zeros((2 * len(angles), 2 * len(angles)))
    for i, angle in enumerate(angles):
        matrix[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = block(
            np.cos(angle), np.sin(angle)
        )
    return matrix


@exercise.wrong(
    "Your matrix shifts the other way, to p_{t - offset}. That is the right matrix for "
    "columns, M p_t; for rows, p_t M, it must be transposed."
)
def mirrored(frequencies, offset):
    """Use the matrix for columns."""
    return _blocks(frequencies * offset, lambda c, s: [[c, s], [-s, c]])


@exercise.wrong(
    "You turn by the frequency alone. A shift by `offset` positions turns each hand by "
    "frequency times offset."
)
def without_offset(frequencies, offset):
    """Forget the offset."""
    return _blocks(frequencies, lambda c, s: [[c, -s], [s, c]])


@exercise.wrong(
    "This is the rotation for pairs in the order (cos, sin). Here the sine comes "
    "first, and your blocks reflect instead of turning: their determinant is -1."
)
def reflecting(frequencies, offset):
    """Mix up the order of sine and cosine."""
    return _blocks(frequencies * offset, lambda c, s: [[s, c], [c, -s]])


@exercise.wrong(
    "The blocks stand in two halves, as if all sines came first. Sine and cosine of "
    "one frequency are neighbors here, so the 2 × 2 blocks lie along the diagonal."
)
def in_halves(frequencies, offset):
    """Arrange the matrix for sines first."""
    angles = frequencies * offset
    c, s = np.diag(np.cos(angles)), np.diag(np.sin(angles))
    return np.block([[c, -s], [s, c]])


@exercise.wrong(
    "Every hand turns by the same angle, the offset. Hand i turns by its own "
    "frequency times the offset."
)
def without_frequencies(frequencies, offset):
    """Forget the frequencies."""
    return _blocks(np.full(len(frequencies), offset), lambda c, s: [[c, -s], [s, c]])
