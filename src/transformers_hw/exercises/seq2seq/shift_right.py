"""The inputs of teacher forcing.

Write `decoder_inputs(target, begin)`. `target` holds token numbers, one text per row,
of shape (batch, n). Return what the decoder reads under teacher forcing, of the same
shape: at each step the target token before the one it has to write, and the token
`begin` at the first step.
"""

import numpy as np

from transformers_hw.exercises.kinds import Code

exercise = Code(
    level="warm-up",
    read="seq2seq#teacher-forcing",
    hints=(
        "To write M, E, end, the decoder reads begin, M, E.",
        "Each row moves by one to the right. What falls off at the end is never read.",
        "np.concatenate joins a column of begin tokens with target[:, :-1].",
    ),
    questions=("eecs-1a",),
)


@exercise.cases
def cases(rng):
    """Yield one text, batches of several sizes, and texts of one token."""
    yield np.array([[7, 5, 2]]), 1
    yield rng.integers(3, 60, size=(2, 4)), 1
    yield rng.integers(3, 60, size=(5, 3)), 2
    yield rng.integers(3, 60, size=(3, 1)), 0
    yield rng.integers(3, 60, size=(4, 6)), 99


@exercise.solution
def decoder_inputs(target, begin):
    """Return the target, shifted right by one token."""
    first = np.full((len(target), 1), begin)
    return np.concatenate([first, target[:, :-1]], axis=1)


@exercise.right
def by_filling(target, begin):
    """Fill a new array."""
    inputs = np.empty_like(target)
    inputs[:, 0] = begin
    inputs[:, 1:] = target[:, :-1]
    return inputs


@exercise.right
def by_padding(target, begin):
    """Pad on the left, and cut off the last token."""
    return np.pad(target, ((0, 0), (1, 0)), constant_values=begin)[:, :-1]


@exercise.right
def by_lists(target, begin):
    """Build each row as a list."""
    return np.array([[begin, *row][: len(row)] for row in target.tolist()])


@exercise.wrong(
    "The target is not shifted: at each step the decoder reads the very token it has "
    "to write. The loss would fall to almost zero, and the model would be useless."
)
def not_shifted(target, begin):
    """Feed the target itself."""
    return target.copy()


@exercise.wrong(
    "You shift to the left, so the decoder reads the token *after* the one it has to "
    "write. It reads the one before: begin comes first, and the last token drops out."
)
def shifted_left(target, begin):
    """Shift in the other direction."""
    last = np.full((len(target), 1), begin)
    return np.concatenate([target[:, 1:], last], axis=1)


@exercise.wrong(
    "The last token wraps around to the front, as np.roll does. The first input must "
    "be the begin token; the end of the text is not known when the decoder starts."
)
def rolled(target, begin):
    """Roll the tokens of each row."""
    return np.roll(target, 1, axis=1)


@exercise.wrong(
    "There is one input too many: n tokens are to be written, so n are read. Drop the "
    "last target token, which nothing comes after."
)
def one_too_many(target, begin):
    """Put begin in front, and keep everything."""
    return np.pad(target, ((0, 0), (1, 0)), constant_values=begin)


@exercise.wrong(
    "The begin token has replaced the first target token, and nothing has moved. From "
    "the second step on, the decoder still reads what it has to write. Shift, then "
    "begin."
)
def overwritten(target, begin):
    """Replace the first token only."""
    inputs = target.copy()
    inputs[:, 0] = begin
    return inputs
