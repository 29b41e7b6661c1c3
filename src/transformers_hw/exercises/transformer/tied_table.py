"""One table, in and out.

Write `in_and_out(tokens, table, positions, outputs)`. One table of embeddings, of shape
(v, d), serves both ends of a model. On the way in, each of the n token numbers in
`tokens` becomes its row of the table times √d, and then its positional encoding, a row
of `positions` of shape (n, d), is added. On the way out, each of the t rows of
`outputs`, of shape (t, d), is compared with all rows of the table. Its v logits are the
dot products, without a bias or a scale. Return the list `[inputs, logits]`, of shapes
(n, d) and (t, v).
"""

import numpy as np
from einops import einsum

from transformers_hw.exercises.kinds import Code

exercise = Code(
    level="warm-up",
    read="transformer#in-and-out-embeddings",
    hints=(
        "table[tokens] picks a row for each token.",
        "Scale first, then add the positions, which are not scaled.",
        "All dot products of the outputs with the rows of the table are one matrix "
        "product with a transposed matrix.",
    ),
)


@exercise.cases
def cases(rng):
    """Yield a table of four rows, then other sizes, one token, and one output."""
    yield (
        np.array([2, 0]),
        np.array(
            [[1.0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 1], [2, 0, 0, 1], [0, 0, 3, 0]]
        ),
        np.array([[0.0, 1, 0, 1], [0.5, 0.5, 0, 0]]),
        np.array([[1.0, 0, 2, 0]]),
    )
    for n, t, v, d in ((4, 3, 7, 5), (3, 6, 4, 9), (1, 2, 6, 3), (5, 1, 10, 2)):
        yield (
            rng.integers(0, v, size=n),
            rng.normal(size=(v, d)),
            rng.normal(size=(n, d)),
            rng.normal(size=(t, d)),
        )


@exercise.solution
def in_and_out(tokens, table, positions, outputs):
    """Return the inputs of the model, and the logits of its outputs."""
    inputs = table[tokens] * np.sqrt(table.shape[-1]) + positions
    return [inputs, outputs @ table.T]


@exercise.right
def by_one_hot(tokens, table, positions, outputs):
    """Pick rows by a product with one-hot vectors."""
    hot = np.eye(len(table))[tokens]
    logits = einsum(outputs, table, "t d, v d -> t v")
    return [hot @ table * table.shape[1] ** 0.5 + positions, logits]


@exercise.right
def by_loops(tokens, table, positions, outputs):
    """Go token by token, and row by row."""
    root = np.sqrt(positions.shape[-1])
    inputs = [
        table[token] * root + own for token, own in zip(tokens, positions, strict=True)
    ]
    logits = [[y @ row for row in table] for y in outputs]
    return [np.array(inputs), np.array(logits)]


@exercise.wrong(
    "The embeddings are not scaled. Rows of length about 1 would drown in positional "
    "encodings of length √(d/2): multiply them by √d on the way in."
)
def without_scale(tokens, table, positions, outputs):
    """Forget √d."""
    return [table[tokens] + positions, outputs @ table.T]


@exercise.wrong(
    "The positions are scaled, too: you add first and multiply afterwards. Scale the "
    "embedding alone, so that the two come to a similar size."
)
def scaled_positions(tokens, table, positions, outputs):
    """Scale the sum."""
    inputs = (table[tokens] + positions) * np.sqrt(table.shape[-1])
    return [inputs, outputs @ table.T]


@exercise.wrong(
    "You scale by the root of the vocabulary size, the number of rows. The d in √d is "
    "the width of a row, table.shape[-1]."
)
def root_of_the_vocabulary(tokens, table, positions, outputs):
    """Use the number of rows."""
    return [table[tokens] * np.sqrt(len(table)) + positions, outputs @ table.T]


@exercise.wrong(
    "The logits are computed with the scaled table. The factor √d belongs to the way "
    "in; on the way out it would make the softmax far too sharp."
)
def scaled_logits(tokens, table, positions, outputs):
    """Scale the table once, for both ends."""
    scaled = table * np.sqrt(table.shape[-1])
    return [scaled[tokens] + positions, outputs @ scaled.T]


@exercise.wrong(
    "You divide by √d. In attention, scores are divided by a root; embeddings are "
    "multiplied by it, because their rows are short."
)
def divided(tokens, table, positions, outputs):
    """Divide by √d."""
    inputs = table[tokens] / np.sqrt(table.shape[-1]) + positions
    return [inputs, outputs @ table.T]


@exercise.wrong(
    "You return probabilities. Logits are the dot products themselves; the softmax "
    "comes later, in the loss or when a token is chosen."
)
def probabilities(tokens, table, positions, outputs):
    """Apply a softmax to the logits."""
    inputs, logits = in_and_out(tokens, table, positions, outputs)
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return [inputs, powers / powers.sum(axis=-1, keepdims=True)]


@exercise.wrong(
    "You divide the logits by √d, as attention does with its scores. Here they are the "
    "plain dot products."
)
def divided_logits(tokens, table, positions, outputs):
    """Divide the logits by √d."""
    inputs, logits = in_and_out(tokens, table, positions, outputs)
    return [inputs, logits / np.sqrt(table.shape[-1])]
