"""A loss that leaves out padding.

Write `sequence_loss(logits, target, padding)`: the mean of -log p (natural logarithm)
over all target tokens of a batch that are not padding. The scores `logits` have shape
(batch, n, v), and their softmax over the vocabulary, the last axis, gives the
probabilities. `target`, of shape (batch, n), holds the right tokens, and the token
`padding` after the end of shorter texts. Every real token counts the same, whichever
text it stands in, and each text has at least one. Return one number. Large scores, such
as 1000, must not overflow.
"""

import numpy as np

from transformers_hw.exercises.kinds import Code

exercise = Code(
    level="core",
    read="seq2seq#teacher-forcing",
    hints=(
        "log softmax is the score minus the logarithm of the sum of exponentials; "
        "subtract the largest score first.",
        "np.take_along_axis(log_p, target[..., None], axis=-1) picks the entry of the "
        "right token at each step.",
        "Boolean indexing keeps the real tokens: loss[target != padding].mean().",
    ),
    points=2,
    questions=("eecs-1a",),
)


@exercise.cases
def cases(rng):
    """Yield two short texts, random batches, no padding, and large scores."""
    logits = np.log([[[0.5, 0.25, 0.25], [0.2, 0.2, 0.6]], [[0.1, 0.8, 0.1]] * 2])
    yield logits, np.array([[1, 2], [1, 0]]), 0
    for lengths, n, v, padding in (
        ([2, 5, 1], 5, 4, 0),
        ([3, 3], 3, 6, 5),
        ([4, 1], 6, 3, 1),
    ):
        token = rng.integers(0, v - 1, size=(len(lengths), n))
        token += token >= padding
        real = np.arange(n) < np.array(lengths)[:, None]
        logits = 2 * rng.normal(size=(len(lengths), n, v))
        yield logits, np.where(real, token, padding), padding
    yield np.array([[[1000.0, 998.0], [-1000.0, 1000.0]]]), np.array([[1, 0]]), 0


@exercise.solution
def sequence_loss(logits, target, padding):
    """Return the mean negative log-probability of the real tokens."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    loss = -np.take_along_axis(log_p, target[..., None], axis=-1)[..., 0]
    return loss[target != padding].mean()


@exercise.right
def by_loops(logits, target, padding):
    """Add up token by token, and count."""
    total, count = 0.0, 0
    for at in np.ndindex(*target.shape):
        if target[at] != padding:
            scores = logits[at] - logits[at].max()
            total += np.log(np.exp(scores).sum()) - scores[target[at]]
            count += 1
    return total / count


@exercise.right
def by_one_hot(logits, target, padding):
    """Multiply by one-hot targets, which are zero at padding."""
    log_p = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    real = target != padding
    hot = (np.arange(logits.shape[-1]) == target[..., None]) & real[..., None]
    return -(hot * log_p).sum() / real.sum()


def _losses(logits, target):
    log_p = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    return -np.take_along_axis(log_p, target[..., None], axis=-1)[..., 0]


@exercise.wrong(
    "Padding takes part: you average the loss of all positions, so the model is also "
    "trained to predict padding. Leave out positions whose target is padding."
)
def padding_counts(logits, target, padding):
    """Average over all positions."""
    return _losses(logits, target).mean()


@exercise.wrong(
    "The loss at padding is zero, but you divide by the number of all positions. The "
    "more padding a batch has, the smaller its loss. Divide by the number of real "
    "tokens."
)
def divided_by_all(logits, target, padding):
    """Set the loss at padding to zero, and take the mean."""
    return (_losses(logits, target) * (target != padding)).mean()


@exercise.wrong(
    "You take the mean of each text, and then the mean over texts. A token of a short "
    "text then counts more than one of a long text; here all tokens count the same."
)
def mean_of_means(logits, target, padding):
    """Average within texts, then over texts."""
    real = target != padding
    return ((_losses(logits, target) * real).sum(1) / real.sum(1)).mean()


@exercise.wrong(
    "That is the sum over the real tokens. Divide by their number, so that long and "
    "short batches have losses of the same size."
)
def summed(logits, target, padding):
    """Forget to divide."""
    return (_losses(logits, target) * (target != padding)).sum()


@exercise.wrong(
    "Large scores overflow: exp(1000) is infinite, and infinity divided by infinity is "
    "not a number. Subtract the largest score of each position first; the "
    "probabilities stay the same."
)
def overflowing(logits, target, padding):
    """Take exponentials of the scores as they are."""
    p = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    loss = -np.log(np.take_along_axis(p, target[..., None], axis=-1))[..., 0]
    return loss[target != padding].mean()


@exercise.wrong(
    "You average the probabilities first and take the logarithm of the mean. The loss "
    "is the mean of the logarithms: a single token with p near 0 must cost a lot."
)
def logarithm_of_the_mean(logits, target, padding):
    """Exchange mean and logarithm."""
    p = np.exp(-_losses(logits, target))
    return -np.log(p[target != padding].mean())
