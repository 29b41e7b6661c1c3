"""RMSNorm.

Write `rms_norm(x, gamma, eps)`. The tokens `x` have shape (..., d): the last axis holds
the features of a token, and each token is normalized by itself. Divide a token by the
root of the mean of its squares plus ε, and multiply the result by `gamma`, of shape
(d,). Nothing is subtracted and nothing is added at the end; ε stands under the root. A
token of zeros must not become NaN. The result has the shape of `x`.
"""

import numpy as np
from einops import reduce

from transformers_hw.exercises.kinds import Code

exercise = Code(
    level="core",
    read="transformer#rmsnorm-only-the-size",
    hints=(
        "By hand, with gamma = 1 and ε = 0: the squares of (1, 7) are 1 and 49, their "
        "mean is 25, its root is 5, and the result is (0.2, 1.4).",
        "The mean of the squares runs over the last axis. With keepdims=True it "
        "broadcasts against the tokens.",
        "Three steps are enough: square, take the mean and add ε, divide by the root. "
        "The factors in gamma come last.",
    ),
)


@exercise.cases
def cases(rng):
    """Yield two tokens, batches, a large ε, one token, and zeros."""
    yield np.array([[1.0, 7.0], [7.0, -1.0]]), np.array([1.0, 2.0]), 1e-12
    for shape, eps in (((3, 4), 1e-6), ((2, 3, 5), 0.5), ((2, 2, 2, 3), 1e-5)):
        yield 2 + rng.normal(size=shape), rng.normal(size=shape[-1]), eps
    yield rng.normal(size=7) - 1, rng.normal(size=7), 0.1
    yield np.zeros((2, 3)), rng.normal(size=3), 1e-5


@exercise.solution
def rms_norm(x, gamma, eps):
    """Return each token divided by its root mean square, times gamma."""
    mean_square = (x**2).mean(axis=-1, keepdims=True)
    return gamma * x / np.sqrt(mean_square + eps)


@exercise.right
def by_reduce(x, gamma, eps):
    """Name the axis that is averaged."""
    mean_square = reduce(x**2, "... d -> ... 1", "mean")
    return x * (mean_square + eps) ** -0.5 * gamma


@exercise.right
def by_length(x, gamma, eps):
    """Divide the squared length of a token by its number of features."""
    length = np.linalg.norm(x, axis=-1, keepdims=True)
    return x / np.sqrt(length**2 / x.shape[-1] + eps) * gamma


@exercise.right
def token_by_token(x, gamma, eps):
    """Treat each token alone."""
    output = np.empty(x.shape)
    for at in np.ndindex(*x.shape[:-1]):
        mean_square = sum(value * value for value in x[at]) / len(x[at])
        output[at] = x[at] / (mean_square + eps) ** 0.5 * gamma
    return output


def _norm(x, gamma, eps, axis=-1):
    return gamma * x / np.sqrt((x**2).mean(axis=axis, keepdims=True) + eps)


@exercise.wrong(
    "You subtract the mean first. That is layer norm without β; RMSNorm leaves the "
    "mean where it is and only divides."
)
def centered(x, gamma, eps):
    """Normalize as layer norm does."""
    return _norm(x - x.mean(axis=-1, keepdims=True), gamma, eps)


@exercise.wrong(
    "You divide by the standard deviation, whose squares are taken around the mean. "
    "RMSNorm takes the squares of the entries as they are."
)
def by_the_deviation(x, gamma, eps):
    """Divide by the root of the variance, without centering."""
    return gamma * x / np.sqrt(x.var(axis=-1, keepdims=True) + eps)


@exercise.wrong(
    "You divide by the length of the token, the root of the *sum* of squares. RMSNorm "
    "takes their mean, so that the features have size 1 for any d."
)
def by_the_length(x, gamma, eps):
    """Forget to divide by d."""
    return gamma * x / np.sqrt((x**2).sum(axis=-1, keepdims=True) + eps)


@exercise.wrong(
    "You add ε after the root. It belongs under the root, next to the mean of the "
    "squares; with a large ε, such as 0.5, you see the difference."
)
def eps_outside(x, gamma, eps):
    """Add ε to the root mean square."""
    return gamma * x / (np.sqrt((x**2).mean(axis=-1, keepdims=True)) + eps)


@exercise.wrong(
    "ε is missing. A token of zeros has root mean square 0, and 0/0 is not a number."
)
def without_eps(x, gamma, eps):
    """Forget ε."""
    return _norm(x, gamma, 0.0)


@exercise.wrong(
    "One mean of squares serves all tokens, so a token's output depends on the others. "
    "Each token has its own: use axis=-1 with keepdims=True."
)
def over_everything(x, gamma, eps):
    """Average over all axes."""
    return gamma * x / np.sqrt((x**2).mean() + eps)


@exercise.wrong(
    "You average the squares of each feature over the tokens. RMSNorm averages over "
    "the features of each token, the last axis."
)
def over_tokens(x, gamma, eps):
    """Average over the first axis."""
    return _norm(x, gamma, eps, axis=0)


@exercise.wrong(
    "You divide by the mean of the squares instead of its root. Doubling a token "
    "should leave its result the same, and here it halves it."
)
def without_the_root(x, gamma, eps):
    """Forget the root."""
    return gamma * x / ((x**2).mean(axis=-1, keepdims=True) + eps)


@exercise.wrong(
    "You divide by the mean of the absolute values. RMSNorm squares the entries, takes "
    "the mean, and then the root."
)
def by_absolute_values(x, gamma, eps):
    """Average sizes instead of squares."""
    return gamma * x / (np.abs(x).mean(axis=-1, keepdims=True) + eps)


@exercise.wrong(
    "The tokens have the right size, but `gamma` is missing. Multiply each feature by "
    "its factor at the end."
)
def without_gamma(x, gamma, eps):
    """Return the normalized tokens."""
    return _norm(x, 1.0, eps)


@exercise.wrong(
    "You multiply by gamma *before* you normalize, so gamma changes the root mean "
    "square and partly cancels. Normalize first."
)
def gamma_first(x, gamma, eps):
    """Scale the features, then normalize."""
    return _norm(gamma * x, 1.0, eps)
