"""Layer norm.

Write `layer_norm(x, gamma, beta, eps)`. The tokens `x` have shape (..., d): the last
axis holds the features of a token, and each token is normalized by itself. Subtract its
mean, divide by the root of its variance plus ε, multiply by `gamma`, and add `beta`;
both have shape (d,). The variance is the biased one, with d in the denominator, and ε
stands under the root. A token of equal entries must not become NaN. The result has the
shape of `x`.
"""

import numpy as np
from einops import reduce

from transformers_hw.exercises.kinds import Code

exercise = Code(
    level="core",
    read="transformer#layer-norm",
    hints=(
        "Mean and variance run over the last axis. With keepdims=True they broadcast "
        "against the tokens.",
        "NumPy's x.var divides by d, as wanted. PyTorch's x.var divides by d - 1 "
        "unless told otherwise.",
        "Check yourself: with gamma = 1, beta = 0 and a tiny eps, (1, 3, 8) becomes "
        "(-1.02, -0.34, 1.36).",
    ),
    points=2,
    questions=("eth-2c", "nyu-1.4e"),
)


@exercise.cases
def cases(rng):
    """Yield two tokens, batches, a large ε, one token, and equal entries."""
    yield (
        np.array([[1.0, 3.0, 8.0], [2.0, 2.0, 5.0]]),
        np.array([1.0, 1.0, 2.0]),
        np.array([0.0, 0.0, 1.0]),
        1e-12,
    )
    for shape, eps in (((2, 4, 5), 1e-5), ((5, 4), 0.5), ((3, 2, 2, 6), 0.1)):
        d = shape[-1]
        x = 3 * rng.normal(size=shape) + 1
        yield x, rng.normal(size=d), rng.normal(size=d), eps
    yield rng.normal(size=7), rng.normal(size=7), rng.normal(size=7), 1e-12
    yield np.full((2, 3), 4.0), rng.normal(size=3), rng.normal(size=3), 1e-5


@exercise.solution
def layer_norm(x, gamma, beta, eps):
    """Return the normalized tokens, scaled by gamma and moved by beta."""
    mean = x.mean(axis=-1, keepdims=True)
    variance = x.var(axis=-1, keepdims=True)
    return gamma * (x - mean) / np.sqrt(variance + eps) + beta


@exercise.right
def by_reduce(x, gamma, beta, eps):
    """Take means of entries and of squares."""
    centered = x - reduce(x, "... d -> ... 1", "mean")
    variance = reduce(centered**2, "... d -> ... 1", "mean")
    return centered * (variance + eps) ** -0.5 * gamma + beta


@exercise.right
def token_by_token(x, gamma, beta, eps):
    """Treat each token alone."""
    output = np.empty(x.shape)
    for at in np.ndindex(*x.shape[:-1]):
        mean = sum(x[at]) / len(x[at])
        variance = sum((value - mean) ** 2 for value in x[at]) / len(x[at])
        output[at] = (x[at] - mean) / np.sqrt(variance + eps) * gamma + beta
    return output


def _norm(x, gamma, beta, eps, axis=-1, ddof=0):
    mean = x.mean(axis=axis, keepdims=True)
    variance = x.var(axis=axis, keepdims=True, ddof=ddof)
    return gamma * (x - mean) / np.sqrt(variance + eps) + beta


@exercise.wrong(
    "Your variance divides by d - 1. Layer norm uses the biased variance, with d in "
    "the denominator, so that the normalized token has a variance of 1."
)
def unbiased(x, gamma, beta, eps):
    """Divide by d - 1."""
    return _norm(x, gamma, beta, eps, ddof=1)


@exercise.wrong(
    "You add ε to the standard deviation. It belongs under the root, next to the "
    "variance; with a large ε, such as 0.5, you see the difference."
)
def eps_outside(x, gamma, beta, eps):
    """Add ε after the root."""
    mean, std = x.mean(-1, keepdims=True), x.std(-1, keepdims=True)
    return gamma * (x - mean) / (std + eps) + beta


@exercise.wrong(
    "ε is missing. A token of equal entries has variance 0, and 0/0 is not a number."
)
def without_eps(x, gamma, beta, eps):
    """Forget ε."""
    return _norm(x, gamma, beta, 0.0)


@exercise.wrong(
    "One mean and one variance serve all tokens, so a token's output depends on the "
    "other tokens. Each token has its own: use axis=-1 with keepdims=True."
)
def over_everything(x, gamma, beta, eps):
    """Normalize over all axes."""
    return gamma * (x - x.mean()) / np.sqrt(x.var() + eps) + beta


@exercise.wrong(
    "You normalize each feature over the tokens, much as batch norm does. Layer norm "
    "normalizes each token over its features, the last axis."
)
def over_tokens(x, gamma, beta, eps):
    """Normalize over the first axis."""
    return _norm(x, gamma, beta, eps, axis=0)


@exercise.wrong(
    "You divide by the variance instead of its root, so the result does not have "
    "variance 1. Doubling a token should leave its norm the same, and here it does not."
)
def by_the_variance(x, gamma, beta, eps):
    """Forget the root."""
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return gamma * (x - mean) / (variance + eps) + beta


@exercise.wrong(
    "You divide by the root of the mean square without subtracting the mean first. "
    "That is RMS norm; layer norm centers each token."
)
def rms_norm(x, gamma, beta, eps):
    """Do not center."""
    return gamma * x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) + beta


@exercise.wrong(
    "The tokens are normalized, but `gamma` and `beta` are missing. Multiply by gamma, "
    "then add beta."
)
def without_gamma_and_beta(x, gamma, beta, eps):
    """Return the normalized tokens."""
    return _norm(x, 1.0, 0.0, eps)
