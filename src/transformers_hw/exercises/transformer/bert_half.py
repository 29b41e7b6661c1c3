"""The second half of a BERT layer.

Write `bert_half(x, w_1, b_1, w_2, b_2, gamma, beta, eps)`: what a BERT encoder layer
does after its self-attention and the norm that follows it. The tokens `x` have shape
(..., d). The branch is a feed-forward network: rows times `w_1`, of shape (d, f), plus
`b_1`; the exact GELU, z (1 + erf(z/√2)) / 2 for each number z; rows times `w_2`, of
shape (f, d), plus `b_2`. BERT is post-norm: add the branch to `x`, and normalize the
sum by a layer norm over the last axis, with the biased variance, ε under the root,
`gamma` and `beta`. Leave dropout out. The result has the shape of `x`. For the error
function, use `np.vectorize(math.erf)`.
"""

import math

import numpy as np
from einops import einsum

from transformers_hw.exercises.kinds import Code

exercise = Code(
    level="core",
    read="transformer#what-the-order-does-to-training",
    hints=(
        "The formula is LN(x + gelu(x W_1 + b_1) W_2 + b_2).",
        "What is added is the input of this half, as it came in.",
        "There is one norm, and it comes last.",
    ),
    points=3,
    questions=("eth-2d", "nyu-1.4d"),
)


@exercise.cases
def cases(rng):
    """Yield one token, sequences, a grid of tokens, and a wide hidden layer."""
    yield (
        np.array([[1.0, 3.0, 8.0]]),
        np.array([[1.0, 0.0], [0.0, -1.0], [0.0, 0.0]]),
        np.array([0.0, 2.0]),
        np.array([[2.0, 0.0, 0.0], [0.0, 3.0, 0.0]]),
        np.array([0.0, 0.0, 1.0]),
        np.array([1.0, 1.0, 1.0]),
        np.array([0.0, 0.0, 0.0]),
        1e-12,
    )
    for shape, f, eps in (
        ((4, 5), 3, 1e-12),
        ((2, 3, 4), 6, 1e-5),
        ((2, 2, 3, 6), 8, 0.1),
        ((1, 3), 20, 1e-12),
    ):
        d = shape[-1]
        yield (
            rng.normal(size=shape),
            rng.normal(size=(d, f)),
            rng.normal(size=f),
            rng.normal(size=(f, d)) / np.sqrt(f),
            rng.normal(size=d),
            1 + 0.3 * rng.normal(size=d),
            rng.normal(size=d),
            eps,
        )


@exercise.solution
def bert_half(x, w_1, b_1, w_2, b_2, gamma, beta, eps):
    """Return the tokens after the feed-forward network, the residual and the norm."""
    from math import erf

    hidden = x @ w_1 + b_1
    hidden = hidden * (1 + np.vectorize(erf)(hidden / np.sqrt(2))) / 2
    total = x + hidden @ w_2 + b_2
    centered = total - total.mean(axis=-1, keepdims=True)
    deviation = np.sqrt(total.var(axis=-1, keepdims=True) + eps)
    return gamma * centered / deviation + beta


@exercise.right
def by_einsum(x, w_1, b_1, w_2, b_2, gamma, beta, eps):
    """Name the axes."""
    hidden = einsum(x, w_1, "... d, d f -> ... f") + b_1
    hidden = hidden * 0.5 * np.vectorize(math.erfc)(-hidden / math.sqrt(2))
    total = x + einsum(hidden, w_2, "... f, f d -> ... d") + b_2
    mean = total.mean(-1, keepdims=True)
    square = (total**2).mean(-1, keepdims=True)
    return (total - mean) * (square - mean**2 + eps) ** -0.5 * gamma + beta


@exercise.right
def token_by_token(x, w_1, b_1, w_2, b_2, gamma, beta, eps):
    """Treat each token alone, with plain loops over hidden units."""
    output = np.empty(x.shape)
    for at in np.ndindex(*x.shape[:-1]):
        total = x[at] + b_2
        for unit in range(len(b_1)):
            z = float(x[at] @ w_1[:, unit] + b_1[unit])
            total = total + z * (1 + math.erf(z / math.sqrt(2))) / 2 * w_2[unit]
        total = total - total.mean()
        output[at] = gamma * total / np.sqrt((total**2).mean() + eps) + beta
    return output


def _network(x, w_1, b_1, w_2, b_2):
    hidden = x @ w_1 + b_1
    hidden = hidden * (1 + np.vectorize(math.erf)(hidden / np.sqrt(2))) / 2
    return hidden @ w_2 + b_2


def _norm(x, gamma, beta, eps):
    centered = x - x.mean(axis=-1, keepdims=True)
    return gamma * centered / np.sqrt(x.var(axis=-1, keepdims=True) + eps) + beta


@exercise.wrong(
    "That is pre-norm: you normalize the input of the network, and nothing normalizes "
    "the sum. BERT is post-norm, so the norm comes after the addition."
)
def pre_norm(x, w_1, b_1, w_2, b_2, gamma, beta, eps):
    """Normalize before the network."""
    return x + _network(_norm(x, gamma, beta, eps), w_1, b_1, w_2, b_2)


@exercise.wrong(
    "The residual connection is missing: the network's output replaces the token. Add "
    "x to it before the norm, so that what the token knew is kept."
)
def without_residual(x, w_1, b_1, w_2, b_2, gamma, beta, eps):
    """Forget to add the input."""
    return _norm(_network(x, w_1, b_1, w_2, b_2), gamma, beta, eps)


@exercise.wrong(
    "You normalize the branch alone and add x afterwards. In post-norm, the norm takes "
    "the sum: it lies on the residual path."
)
def norm_of_the_branch(x, w_1, b_1, w_2, b_2, gamma, beta, eps):
    """Normalize, then add."""
    return x + _norm(_network(x, w_1, b_1, w_2, b_2), gamma, beta, eps)


@exercise.wrong(
    "Your nonlinearity is the ReLU, as in the first Transformer. BERT uses the GELU, "
    "which lets small negative numbers through in part."
)
def with_relu(x, w_1, b_1, w_2, b_2, gamma, beta, eps):
    """Use the ReLU."""
    total = x + np.maximum(x @ w_1 + b_1, 0) @ w_2 + b_2
    return _norm(total, gamma, beta, eps)


@exercise.wrong(
    "The nonlinearity is missing, so the two matrices act as one, W_1 W_2. Apply the "
    "GELU to the hidden units, between the two maps."
)
def linear(x, w_1, b_1, w_2, b_2, gamma, beta, eps):
    """Forget the GELU."""
    return _norm(x + (x @ w_1 + b_1) @ w_2 + b_2, gamma, beta, eps)


@exercise.wrong(
    "Your GELU is the approximation with tanh, so the results almost agree. BERT "
    "uses the exact form, with the error function."
)
def with_tanh(x, w_1, b_1, w_2, b_2, gamma, beta, eps):
    """Use the approximate GELU."""
    z = x @ w_1 + b_1
    z = z * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3))) / 2
    return _norm(x + z @ w_2 + b_2, gamma, beta, eps)


@exercise.wrong(
    "Your variance divides by d - 1. A layer norm divides by d: NumPy's var does so, "
    "and PyTorch's does not unless told to."
)
def unbiased(x, w_1, b_1, w_2, b_2, gamma, beta, eps):
    """Divide by d - 1 in the variance."""
    total = x + _network(x, w_1, b_1, w_2, b_2)
    centered = total - total.mean(axis=-1, keepdims=True)
    variance = total.var(axis=-1, keepdims=True, ddof=1)
    return gamma * centered / np.sqrt(variance + eps) + beta


@exercise.wrong(
    "The norm is missing: you return the sum of x and the branch. Post-norm ends each "
    "half of a layer with a layer norm."
)
def without_norm(x, w_1, b_1, w_2, b_2, gamma, beta, eps):
    """Return the sum."""
    return x + _network(x, w_1, b_1, w_2, b_2)
