"""Label smoothing.

Write `smoothed_loss(logits, target, smoothing)`: the mean cross-entropy of n
predictions with smoothed labels. The scores `logits` have shape (n, C), and `target`,
of shape (n,), holds the right classes. Take a share `smoothing` away from the right
class and spread it uniformly over *all* C classes, the right one included. The loss of
a prediction is -Σ q log p, summed over the classes, where q is the smoothed label and p
the softmax of the scores. Return the mean over all n predictions, one number. Large
scores, such as 1000, must not overflow.
"""

import numpy as np

from transformers_hw.exercises.kinds import Code

exercise = Code(
    level="core",
    read="transformer#training",
    hints=(
        "With five classes and a share of 0.1, each class gets 0.02, and the right one "
        "0.9 more.",
        "Compute log p directly: the score minus the logarithm of the sum of "
        "exponentials, after subtracting the largest score.",
        "The loss of one prediction is -(1 - ε) log p of the right class, minus ε "
        "times the mean of log p over all classes.",
    ),
    points=2,
)


@exercise.cases
def cases(rng):
    """Yield two predictions, random ones, no smoothing, and large scores."""
    yield np.log([[0.7, 0.1, 0.1, 0.1], [0.2, 0.4, 0.3, 0.1]]), np.array([0, 2]), 0.2
    for n, classes, smoothing in ((5, 3, 0.1), (3, 8, 0.3), (1, 6, 0.5), (4, 5, 0.0)):
        yield (
            2 * rng.normal(size=(n, classes)),
            rng.integers(0, classes, size=n),
            smoothing,
        )
    yield np.array([[1000.0, 998.0, 0.0], [3.0, 1.0, 2.0]]), np.array([1, 0]), 0.1


@exercise.solution
def smoothed_loss(logits, target, smoothing):
    """Return the mean cross-entropy with smoothed labels."""
    n, classes = logits.shape
    label = np.full((n, classes), smoothing / classes)
    label[np.arange(n), target] += 1 - smoothing
    shifted = logits - logits.max(axis=-1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return -(label * log_p).sum(axis=-1).mean()


@exercise.right
def as_two_terms(logits, target, smoothing):
    """Mix the loss of the right class with the mean over all classes."""
    log_p = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    right = log_p[np.arange(len(target)), target].mean()
    return -(1 - smoothing) * right - smoothing * log_p.mean()


@exercise.right
def by_loops(logits, target, smoothing):
    """Add up class by class."""
    total = 0.0
    for scores, right in zip(logits, target, strict=True):
        high = max(scores)
        log_sum = high + np.log(sum(np.exp(score - high) for score in scores))
        for c, score in enumerate(scores):
            share = smoothing / len(scores) + (1 - smoothing) * (c == right)
            total -= share * (score - log_sum)
    return total / len(target)


def _log_p(logits):
    return logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)


def _hot(logits, target):
    return np.eye(logits.shape[-1])[target]


@exercise.wrong(
    "You spread the share over the other classes only, ε/(C - 1) each. Here all C "
    "classes get ε/C, so the right one keeps 1 - ε + ε/C."
)
def over_the_others(logits, target, smoothing):
    """Leave the right class out."""
    hot = _hot(logits, target)
    label = hot * (1 - smoothing) + (1 - hot) * smoothing / (logits.shape[-1] - 1)
    return -(label * _log_p(logits)).sum(-1).mean()


@exercise.wrong(
    "Your labels do not sum to 1: the right class has 1 - ε, and its own part of the "
    "share, ε/C, is lost. Add ε/C to every class."
)
def sum_below_one(logits, target, smoothing):
    """Overwrite the right class by 1 - ε."""
    hot = _hot(logits, target)
    label = hot * (1 - smoothing) + (1 - hot) * smoothing / logits.shape[-1]
    return -(label * _log_p(logits)).sum(-1).mean()


@exercise.wrong(
    "The predictions are smoothed instead of the labels: you take the logarithm of a "
    "mixture of p and 1/C. Mix the *labels*; the prediction stays the softmax."
)
def smoothed_predictions(logits, target, smoothing):
    """Mix the probabilities with uniform ones."""
    p = (1 - smoothing) * np.exp(_log_p(logits)) + smoothing / logits.shape[-1]
    return -np.log(p[np.arange(len(target)), target]).mean()


@exercise.wrong(
    "The labels are not smoothed; that is plain cross-entropy. Its least value is 0, "
    "and with smoothing it is the entropy of the label."
)
def unsmoothed(logits, target, smoothing):
    """Forget the smoothing."""
    return -(_hot(logits, target) * _log_p(logits)).sum(-1).mean()


@exercise.wrong(
    "You average over predictions and classes alike, so the loss is C times too small. "
    "Sum over the classes, and average over the predictions."
)
def mean_over_classes(logits, target, smoothing):
    """Take the mean over all entries."""
    label = (1 - smoothing) * _hot(logits, target) + smoothing / logits.shape[-1]
    return -(label * _log_p(logits)).mean()


@exercise.wrong(
    "Large scores overflow in your softmax: exp(1000) is infinite. Subtract the "
    "largest score of each prediction, and compute log p directly, without p."
)
def overflowing(logits, target, smoothing):
    """Take the logarithm of the softmax."""
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    label = (1 - smoothing) * _hot(logits, target) + smoothing / logits.shape[-1]
    return -(label * np.log(p)).sum(-1).mean()


@exercise.wrong(
    "A probability becomes 0, and its logarithm infinite. Do not compute p first: "
    "log p is the score minus the logarithm of the sum of exponentials."
)
def logarithm_of_zero(logits, target, smoothing):
    """Subtract the maximum, but take the logarithm of the softmax."""
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p = p / p.sum(-1, keepdims=True)
    label = (1 - smoothing) * _hot(logits, target) + smoothing / logits.shape[-1]
    return -(label * np.log(p)).sum(-1).mean()


@exercise.wrong(
    "You subtract one maximum from all predictions. Where all scores are far below it, "
    "every exponential is 0. Each row needs its own: max(axis=-1, keepdims=True)."
)
def one_maximum(logits, target, smoothing):
    """Subtract the largest score of all."""
    shifted = logits - logits.max()
    log_p = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    label = (1 - smoothing) * _hot(logits, target) + smoothing / logits.shape[-1]
    return -(label * log_p).sum(-1).mean()


@exercise.wrong(
    "You sum over the predictions, so the loss grows with n. Sum over the classes, and "
    "take the mean over the predictions."
)
def summed(logits, target, smoothing):
    """Add up the losses of all predictions."""
    return len(target) * smoothed_loss(logits, target, smoothing)
