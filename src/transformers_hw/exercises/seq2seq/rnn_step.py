"""One step of a recurrent layer.

Write `rnn_step(x, h, w_ih, w_hh, b)`: one step of a plain recurrent layer for a batch
of texts. Row i of `x`, of shape (batch, d), is the new input of text i. Row i of `h`,
of shape (batch, d_h), is its old state. For each text, compute the new state tanh(W_ih
x + W_hh h + b), where x and h are columns, as in the chapter: `w_ih` has shape (d_h,
d), `w_hh` (d_h, d_h) and `b` (d_h,). Return the new states as rows, of shape (batch,
d_h).
"""

import numpy as np
from einops import einsum

from transformers_hw.exercises.kinds import Code

exercise = Code(
    level="warm-up",
    read="seq2seq#the-recurrent-layer",
    hints=(
        "For a single text, the step is np.tanh(w_ih @ x + w_hh @ h + b).",
        "A matrix that multiplies columns from the left multiplies rows, transposed, "
        "from the right.",
        "Both products are added before the tanh, which comes last.",
    ),
    questions=("eecs-1a",),
)


@exercise.cases
def cases(rng):
    """Yield the chapter's queue, other sizes, a single text, and saturated units."""
    yield (
        np.array([[1.0], [-1.0]]),
        np.array([[0.5, 0.0], [-0.5, 1.0]]),
        np.array([[2.0], [0.0]]),
        np.array([[0.0, 0.0], [2.0, 0.0]]),
        np.array([0.0, 0.5]),
    )
    for batch, d, d_h, size in ((3, 4, 5, 0.5), (4, 2, 3, 0.5), (1, 6, 2, 0.5)):
        yield (
            rng.normal(size=(batch, d)),
            np.tanh(rng.normal(size=(batch, d_h))),
            size * rng.normal(size=(d_h, d)),
            size * rng.normal(size=(d_h, d_h)),
            size * rng.normal(size=d_h),
        )
    yield (
        np.array([[30.0, -30.0]]),
        np.zeros((1, 2)),
        np.eye(2),
        np.eye(2),
        np.zeros(2),
    )


@exercise.solution
def rnn_step(x, h, w_ih, w_hh, b):
    """Return the new state of each text, one per row."""
    return np.tanh(x @ w_ih.T + h @ w_hh.T + b)


@exercise.right
def by_einsum(x, h, w_ih, w_hh, b):
    """Name the axes: i for input, j for the old state, o for the new one."""
    read = einsum(x, w_ih, "batch i, o i -> batch o")
    recalled = einsum(h, w_hh, "batch j, o j -> batch o")
    return np.tanh(read + recalled + b)


@exercise.right
def text_by_text(x, h, w_ih, w_hh, b):
    """Treat each text as columns."""
    pairs = zip(x, h, strict=True)
    return np.stack([np.tanh(w_ih @ own + w_hh @ state + b) for own, state in pairs])


@exercise.right
def with_one_matrix(x, h, w_ih, w_hh, b):
    """Join input and state, and both matrices."""
    joined = np.concatenate([x, h], axis=1)
    return np.tanh(joined @ np.concatenate([w_ih, w_hh], axis=1).T + b)


@exercise.wrong(
    "W_hh is used transposed. It multiplies columns from the left, so rows need "
    "h @ w_hh.T. Shapes cannot tell you, because W_hh is square; try the chapter's "
    "queue, where the first number must move into the second."
)
def transposed_recurrence(x, h, w_ih, w_hh, b):
    """Multiply the rows by W_hh itself."""
    return np.tanh(x @ w_ih.T + h @ w_hh + b)


@exercise.wrong(
    "You squash the input and the old state separately and then add, so a state can "
    "leave the interval from -1 to 1. Add first, and apply tanh once, to the sum."
)
def two_squashes(x, h, w_ih, w_hh, b):
    """Apply tanh to each product."""
    return np.tanh(x @ w_ih.T + b) + np.tanh(h @ w_hh.T)


@exercise.wrong(
    "The tanh is missing. Without it, the step is linear, and the numbers of a state "
    "can grow without bound from step to step."
)
def linear(x, h, w_ih, w_hh, b):
    """Forget tanh."""
    return x @ w_ih.T + h @ w_hh.T + b


@exercise.wrong(
    "The old state plays no part. Then the layer has no memory: add W_hh h inside the "
    "tanh."
)
def without_memory(x, h, w_ih, w_hh, b):
    """Read the input only."""
    return np.tanh(x @ w_ih.T + b)


@exercise.wrong(
    "The old state is added as it is, outside of the tanh. The state reaches the next "
    "step only through W_hh, inside the tanh; adding it would be a residual connection."
)
def residual(x, h, w_ih, w_hh, b):
    """Add the old state to the new one."""
    return h + np.tanh(x @ w_ih.T + h @ w_hh.T + b)


@exercise.wrong(
    "The bias b is missing. Add it to the two products, inside the tanh; b[o] belongs "
    "to unit o in every row."
)
def without_bias(x, h, w_ih, w_hh, b):
    """Forget b."""
    return np.tanh(x @ w_ih.T + h @ w_hh.T)
