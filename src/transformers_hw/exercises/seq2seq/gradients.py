"""Back through time.

A decoder with the states s_0, ..., s_n updates them by s_i = tanh(W_hh s_{i-1} + ...).
Each state but s_0 also enters the loss of its own step: row i - 1 of `direct`, of shape
(n, d_h), is ∂L_i/∂s_i. Write `gradients(states, w_hh, direct)`: the gradients of the
total loss L_1 + ... + L_n with respect to all states, of shape (n + 1, d_h). Row i
belongs to s_i, so row 0 is the gradient that the encoder receives. `states`, of shape
(n, d_h), holds s_1, ..., s_n. The matrix `w_hh` multiplies columns from the left, as in
the chapter; gradients are rows.
"""

import numpy as np

from transformers_hw.exercises.kinds import Code

exercise = Code(
    level="challenge",
    read="seq2seq#backpropagation-through-time",
    hints=(
        "Start at the end: only L_n depends on s_n. Then go back step by step.",
        "From s_i to s_{i-1}, a gradient is multiplied from the right by the Jacobian "
        "diag(1 - s_i²) W_hh.",
        "A row times diag(1 - s_i²) is a product entry by entry, so one step back is "
        "(g * (1 - s_i**2)) @ w_hh, plus the direct part of s_{i-1}.",
    ),
    points=4,
    questions=("eecs-1a",),
)


@exercise.cases
def cases(rng):
    """Yield two steps of one unit, longer runs, one step, and one loss at the end."""
    yield np.array([[0.5], [0.0]]), np.array([[2.0]]), np.array([[1.0], [3.0]])
    for n, d_h in ((4, 3), (2, 5), (1, 2), (6, 4)):
        yield (
            np.tanh(rng.normal(size=(n, d_h))),
            rng.normal(size=(d_h, d_h)),
            rng.normal(size=(n, d_h)),
        )
    last = np.zeros((5, 2))
    last[-1] = 1.0, -2.0
    yield np.tanh(rng.normal(size=(5, 2))), rng.normal(size=(2, 2)), last


@exercise.solution
def gradients(states, w_hh, direct):
    """Return the gradient of the total loss with respect to s_0, ..., s_n."""
    n, width = states.shape
    total = np.zeros((n + 1, width))
    total[1:] = direct
    for i in range(n, 0, -1):
        total[i - 1] += (total[i] * (1 - states[i - 1] ** 2)) @ w_hh
    return total


@exercise.right
def by_jacobians(states, w_hh, direct):
    """Multiply by one Jacobian after the other, from the last step."""
    rows, gradient = [], np.zeros(states.shape[1])
    for s, own in zip(states[::-1], direct[::-1], strict=True):
        gradient = gradient + own
        rows.append(gradient)
        gradient = gradient @ np.diag(1 - s**2) @ w_hh
    return np.stack([*rows, gradient])[::-1]


@exercise.right
def by_all_paths(states, w_hh, direct):
    """Add up the products of Jacobians of all pairs of steps."""
    n, width = states.shape
    jacobians = [(1 - s**2)[:, None] * w_hh for s in states]
    total = np.zeros((n + 1, width))
    for start in range(n + 1):
        product = np.eye(width)
        for end in range(start, n + 1):
            if end > start:
                product = jacobians[end - 1] @ product
            if end > 0:
                total[start] += direct[end - 1] @ product
    return total


def _back(states, direct, step):
    n, width = states.shape
    total = np.concatenate([np.zeros((1, width)), direct])
    for i in range(n, 0, -1):
        total[i - 1] += step(total[i], i)
    return total


@exercise.wrong(
    "The slopes of tanh are missing: you multiply by W_hh alone. That is right only "
    "for states near zero; elsewhere each unit shrinks the gradient by 1 - s²."
)
def without_slopes(states, w_hh, direct):
    """Multiply by W_hh only."""
    return _back(states, direct, lambda g, i: g @ w_hh)


@exercise.wrong(
    "W_hh is transposed. Columns go forward by W_hh s, so rows come back by g @ w_hh. "
    "Check it against a numerical derivative."
)
def transposed(states, w_hh, direct):
    """Multiply by the transposed matrix."""
    return _back(states, direct, lambda g, i: (g * (1 - states[i - 1] ** 2)) @ w_hh.T)


@exercise.wrong(
    "The slopes come after W_hh, with the factors of the Jacobian exchanged. Going "
    "back, the gradient first meets the tanh of the step, then its matrix: "
    "g diag(1 - s²) W_hh."
)
def slopes_last(states, w_hh, direct):
    """Exchange the factors."""
    return _back(states, direct, lambda g, i: (g @ w_hh) * (1 - states[i - 1] ** 2))


@exercise.wrong(
    "You take the slope as 1 - tanh(s)². The states have been through tanh already, so "
    "the slope is 1 - s²."
)
def squashed_twice(states, w_hh, direct):
    """Apply tanh to the states again."""
    slopes = 1 - np.tanh(states) ** 2
    return _back(states, direct, lambda g, i: (g * slopes[i - 1]) @ w_hh)


@exercise.wrong(
    "Only the last loss goes back. Every state also affects the loss of its own step: "
    "add the direct part of each step on the way."
)
def last_loss_only(states, w_hh, direct):
    """Drop the direct parts of earlier steps."""
    last = np.zeros_like(direct)
    last[-1] = direct[-1]
    return _back(states, last, lambda g, i: (g * (1 - states[i - 1] ** 2)) @ w_hh)


@exercise.wrong(
    "Each gradient goes back by one step only: you pass on the direct part instead of "
    "the total gradient of the later state. What comes from further on must travel, "
    "too."
)
def one_step_only(states, w_hh, direct):
    """Pass on the direct part."""
    passed = (direct * (1 - states**2)) @ w_hh
    zero = np.zeros((1, states.shape[1]))
    return np.concatenate([zero, direct]) + np.concatenate([passed, zero])


@exercise.wrong(
    "The slopes belong to the wrong step, one too early. From s_i back to s_{i-1} the "
    "slope is 1 - s_i², and s_i is row i - 1 of `states`, which begins with s_1."
)
def slopes_of_the_step_before(states, w_hh, direct):
    """Count the rows of the states from s_0."""
    return _back(states, direct, lambda g, i: (g * (1 - states[i - 2] ** 2)) @ w_hh)
