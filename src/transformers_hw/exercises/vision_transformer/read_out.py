"""From tokens to logits.

Write `logits(tokens, gain, shift, head, bias)`: the last line of the model. `tokens`
has shape (b, n, d): what leaves the last encoder layer, for b images, with the class
token first. Apply the final layer norm, which subtracts the mean of a token, divides by
the square root of its variance plus 1e-6, multiplies by `gain` and adds `shift`, both
of shape (d,). The mean and the variance of a token are taken over its d numbers, and
the variance is the biased one, with d in the denominator. Then read the class token,
and apply the linear head of shape (d, K) with its `bias` of shape (K,). The result has
shape (b, K).
"""

import numpy as np
from einops import reduce

from transformers_hw.exercises.kinds import Code

exercise = Code(
    level="warm-up",
    read="vision_transformer#read-out",
    hints=(
        "Layer norm treats each token by itself, so you may pick the class token "
        "before or after it.",
        "The first axis counts images and the second counts tokens.",
        "np.var divides by the number of entries, which is what layer norm does.",
    ),
    questions=("nyu-1.5d",),
)


@exercise.cases
def cases(rng):
    """Yield one image with two tokens, then random ones, and a large scale."""
    yield (
        np.array([[[1.0, 3.0], [5.0, 1.0]]]),
        np.array([1.0, 2.0]),
        np.array([0.0, 1.0]),
        np.array([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]]),
        np.array([0.0, 0.0, 10.0]),
    )
    for b, n, d, k, scale in (
        (3, 4, 6, 2, 1.0),
        (2, 5, 3, 4, 0.1),
        (1, 3, 8, 5, 100.0),
        (4, 2, 5, 1, 1.0),
    ):
        yield (
            scale * rng.normal(size=(b, n, d)) + 1,
            rng.normal(size=d),
            rng.normal(size=d),
            rng.normal(size=(d, k)),
            rng.normal(size=k),
        )


@exercise.solution
def logits(tokens, gain, shift, head, bias):
    """Return one logit per class for each image."""
    token = tokens[:, 0]
    centered = token - reduce(token, "b d -> b 1", "mean")
    variance = reduce(centered**2, "b d -> b 1", "mean")
    return (centered / np.sqrt(variance + 1e-6) * gain + shift) @ head + bias


@exercise.right
def normalizing_all(tokens, gain, shift, head, bias):
    """Normalize every token, and then read the first."""
    mean, variance = tokens.mean(-1, keepdims=True), tokens.var(-1, keepdims=True)
    normal = (tokens - mean) / (variance + 1e-6) ** 0.5 * gain + shift
    return normal[:, 0, :] @ head + bias


@exercise.right
def image_by_image(tokens, gain, shift, head, bias):
    """Take one image at a time."""
    rows = []
    for image in tokens:
        x = image[0]
        x = (x - x.mean()) / np.sqrt(x.var() + 1e-6)
        rows.append(bias + head.T @ (x * gain + shift))
    return np.array(rows)


def _norm(tokens, gain, shift, axis=-1, freedom=0):
    mean = tokens.mean(axis, keepdims=True)
    variance = tokens.var(axis, keepdims=True, ddof=freedom)
    return (tokens - mean) / np.sqrt(variance + 1e-6) * gain + shift


@exercise.wrong(
    "The final layer norm is missing. Pre-norm layers leave their sums unnormalized, "
    "so the size of a token grows with depth, and the head is made for normalized ones."
)
def without_norm(tokens, gain, shift, head, bias):
    """Apply the head directly."""
    return tokens[:, 0] @ head + bias


@exercise.wrong(
    "You average over all tokens. That is mean pooling, and even that leaves out the "
    "class token. This head reads row 0 only."
)
def mean_of_tokens(tokens, gain, shift, head, bias):
    """Pool by the mean."""
    return _norm(tokens, gain, shift).mean(1) @ head + bias


@exercise.wrong(
    "You read the last token, a habit from language models with a causal mask. Here "
    "the class token comes first."
)
def last_token(tokens, gain, shift, head, bias):
    """Read the last token."""
    return _norm(tokens, gain, shift)[:, -1] @ head + bias


@exercise.wrong(
    "tokens[0] is the first *image*, with all its tokens. You want the first token of "
    "every image: index 0 of the second axis."
)
def first_image(tokens, gain, shift, head, bias):
    """Index the batch instead of the tokens."""
    return _norm(tokens, gain, shift)[0] @ head + bias


@exercise.wrong(
    "Mean and variance run over the tokens of an image. Layer norm treats each token "
    "by itself: they run over its d numbers, the last axis."
)
def norm_over_tokens(tokens, gain, shift, head, bias):
    """Normalize over the wrong axis."""
    return _norm(tokens, gain, shift, axis=1)[:, 0] @ head + bias


@exercise.wrong(
    "Your variance divides by d - 1. Layer norm divides by d, as np.var does; "
    "PyTorch's var divides by d - 1 unless told otherwise."
)
def unbiased(tokens, gain, shift, head, bias):
    """Divide by d - 1 in the variance."""
    return _norm(tokens, gain, shift, freedom=1)[:, 0] @ head + bias


@exercise.wrong(
    "The layer norm lacks its `gain` and `shift`. Multiply the normalized class token "
    "by gain and add shift, before the head."
)
def without_gain_and_shift(tokens, gain, shift, head, bias):
    """Return logits of the plain norm."""
    return logits(tokens, np.ones_like(gain), np.zeros_like(shift), head, bias)
