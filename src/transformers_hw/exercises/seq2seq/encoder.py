"""An encoder for texts of different lengths.

Write `encode(inputs, lengths, w_ih, w_hh, b)`: run a recurrent layer over a batch of
texts. `inputs` has shape (batch, m, d). Text i has `lengths[i]` tokens, at least 1 and
at most m, and the rows after them are padding. The states start from zero, and a step
computes tanh(W_ih x + W_hh h + b), with `w_ih` of shape (d_h, d), `w_hh` (d_h, d_h) and
`b` (d_h,). Return the list `[states, last]`. In `states`, of shape (batch, m, d_h),
entry (i, t) is the state of text i after reading tokens 0 to t, and zero where position
t is padding. In `last`, of shape (batch, d_h), row i is the state of text i after its
last *real* token, which the decoder starts from.
"""

import numpy as np

from transformers_hw.exercises.kinds import Code

exercise = Code(
    level="core",
    read="seq2seq#the-recurrent-layer",
    hints=(
        "Loop over the positions, with the whole batch in each step: inputs[:, t] has "
        "shape (batch, d).",
        "real = np.arange(m) < lengths[:, None] says which positions hold tokens; "
        "multiply the stacked states by it.",
        "The last real token of text i stands at position lengths[i] - 1.",
    ),
    points=2,
    questions=("eecs-1a", "eecs-1b"),
)


@exercise.cases
def cases(rng):
    """Yield the chapter's queue, random layers, no padding, and texts of one token."""
    yield (
        np.array([[[1.0], [-1.0], [-1.0]], [[-1.0], [1.0], [0.0]]]),
        np.array([3, 2]),
        np.array([[2.0], [0.0]]),
        np.array([[0.0, 0.0], [2.0, 0.0]]),
        np.array([0.0, 0.1]),
    )
    for lengths, m, d, d_h in (
        ([2, 5, 3], 5, 2, 4),
        ([4, 4], 4, 5, 3),
        ([1, 6, 2, 5], 6, 3, 2),
        ([1], 1, 4, 2),
    ):
        yield (
            rng.normal(size=(len(lengths), m, d)),
            np.array(lengths),
            0.7 * rng.normal(size=(d_h, d)),
            0.7 * rng.normal(size=(d_h, d_h)),
            0.5 * rng.normal(size=d_h),
        )


@exercise.solution
def encode(inputs, lengths, w_ih, w_hh, b):
    """Return the states of all texts, and the last state of each."""
    batch, m, _ = inputs.shape
    h, states = np.zeros((batch, len(b))), []
    for t in range(m):
        h = np.tanh(inputs[:, t] @ w_ih.T + h @ w_hh.T + b)
        states.append(h)
    real = np.arange(m) < lengths[:, None]
    states = np.stack(states, axis=1) * real[:, :, None]
    return [states, states[np.arange(batch), lengths - 1]]


@exercise.right
def text_by_text(inputs, lengths, w_ih, w_hh, b):
    """Read one text after the other, without its padding."""
    batch, m, _ = inputs.shape
    states, last = np.zeros((batch, m, len(b))), np.zeros((batch, len(b)))
    for i in range(batch):
        for t in range(lengths[i]):
            last[i] = np.tanh(w_ih @ inputs[i, t] + w_hh @ last[i] + b)
            states[i, t] = last[i]
    return [states, last]


@exercise.right
def keeping_the_state(inputs, lengths, w_ih, w_hh, b):
    """Keep the old state of a text where there is padding."""
    last = np.zeros((len(inputs), len(b)))
    states = np.zeros((*inputs.shape[:2], len(b)))
    for t in range(inputs.shape[1]):
        real = (t < lengths)[:, None]
        new = np.tanh(inputs[:, t] @ w_ih.T + last @ w_hh.T + b)
        states[:, t], last = np.where(real, new, 0.0), np.where(real, new, last)
    return [states, last]


def _run(inputs, lengths, w_ih, w_hh, b, carry=True):
    # All states, and which of them belong to tokens.
    h, states = np.zeros((len(inputs), len(b))), []
    for t in range(inputs.shape[1]):
        h = np.tanh(inputs[:, t] @ w_ih.T + carry * h @ w_hh.T + b)
        states.append(h)
    real = np.arange(inputs.shape[1]) < lengths[:, None]
    return np.stack(states, axis=1), real[:, :, None]


@exercise.wrong(
    "The last states are those at position m, after the padding of shorter texts has "
    "been read. Padding is not text: take the state at position lengths - 1 of each."
)
def last_of_the_padding(inputs, lengths, w_ih, w_hh, b):
    """Take the state after all positions."""
    states, real = _run(inputs, lengths, w_ih, w_hh, b)
    return [states * real, states[:, -1]]


@exercise.wrong(
    "For shorter texts, the last state is zero: you take it at a position of padding, "
    "which you have set to zero. The last real token is at position lengths - 1."
)
def last_is_zero(inputs, lengths, w_ih, w_hh, b):
    """Take the last position of the masked states."""
    states, real = _run(inputs, lengths, w_ih, w_hh, b)
    return [states * real, (states * real)[:, -1]]


@exercise.wrong(
    "Every step starts from zero again, so a state knows one token only. Carry the new "
    "state over to the next step."
)
def forgetting(inputs, lengths, w_ih, w_hh, b):
    """Start every step from zero."""
    states, real = _run(inputs, lengths, w_ih, w_hh, b, carry=False)
    states = states * real
    return [states, states[np.arange(len(inputs)), lengths - 1]]


@exercise.wrong(
    "The states are stored before the update, so entry t has not read token t yet, and "
    "the first one is always zero. Update first, then store."
)
def stored_too_early(inputs, lengths, w_ih, w_hh, b):
    """Store the state before each step."""
    states, real = _run(inputs, lengths, w_ih, w_hh, b)
    states = np.concatenate([np.zeros_like(states[:, :1]), states[:, :-1]], 1) * real
    return [states, states[np.arange(len(inputs)), lengths - 1]]


@exercise.wrong(
    "The states at padding are not zero. The recurrence runs on through the padding, "
    "and a decoder that attends to these states would read what is not there."
)
def states_at_padding(inputs, lengths, w_ih, w_hh, b):
    """Leave the states at padding as they come."""
    states, _ = _run(inputs, lengths, w_ih, w_hh, b)
    return [states, states[np.arange(len(inputs)), lengths - 1]]


@exercise.wrong(
    "At padding, `states` repeats the last state of a text. Keeping the state there is "
    "right for `last`, but in `states` positions of padding must be zero."
)
def repeated_at_padding(inputs, lengths, w_ih, w_hh, b):
    """Store the state that is kept, at padding as well."""
    states, last = encode(inputs, lengths, w_ih, w_hh, b)
    real = np.arange(inputs.shape[1]) < lengths[:, None]
    return [np.where(real[:, :, None], states, last[:, None]), last]


@exercise.wrong(
    "The last state is taken one token too early, at lengths - 2. Positions count from "
    "0, so a text of 3 tokens ends at position 2."
)
def one_too_early(inputs, lengths, w_ih, w_hh, b):
    """Take the state of the last token but one."""
    states, real = _run(inputs, lengths, w_ih, w_hh, b)
    at = np.maximum(lengths - 2, 0)
    return [states * real, states[np.arange(len(inputs)), at]]


@exercise.wrong(
    "W_hh is used transposed. The states are rows here, so the step needs h @ w_hh.T; "
    "W_hh is square, and shapes cannot tell you."
)
def transposed_recurrence(inputs, lengths, w_ih, w_hh, b):
    """Multiply the rows by W_hh itself."""
    return encode(inputs, lengths, w_ih, w_hh.T, b)
