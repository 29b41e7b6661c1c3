"""Layer scale and stochastic depth.

Write `add_branch(tokens, branch, gain, draws, p, training)`: one residual connection of
a deep Vision Transformer. `tokens` and `branch` have shape (b, n, d): the tokens of b
images, and what a sublayer has computed from them. Layer scale multiplies the branch by
`gain`, of shape (d,), one factor per feature. In training, stochastic depth then drops
the whole branch of some images: image i loses it if `draws[i]` is below `p`, the
chapter's ρ. The array `draws` has shape (b,), with numbers drawn uniformly from 0 to 1,
and `p` is below 1. Branches that are kept are divided by 1 - p, so that the mean stays
what it was. Out of training nothing is dropped. Return tokens plus branch, of shape
(b, n, d).
"""

import numpy as np
from einops import rearrange

from transformers_hw.exercises.kinds import Code

exercise = Code(
    level="core",
    read="vision_transformer#deeper-models",
    hints=(
        "Work out one factor per image: 0 if its branch is dropped, 1 / (1 - p) if it "
        "is kept, and 1 for all images out of training.",
        "The factors have shape (b,) and must meet the first axis of the branch: give "
        'them the shape (b, 1, 1), for instance by rearrange(factor, "b -> b 1 1").',
        "The tokens themselves are never scaled and never dropped.",
    ),
    points=2,
)


@exercise.cases
def cases(rng):
    """Yield the chapter's example, random ones, no dropping, and evaluation."""
    yield (
        np.array([[[4.0, 2.0]], [[4.0, 2.0]], [[4.0, 2.0]]]),
        np.array([[[3.0, -6.0]], [[3.0, -6.0]], [[3.0, -6.0]]]),
        np.array([0.5, 0.25]),
        np.array([0.9, 0.1, 0.4]),
        0.25,
        True,
    )
    for b, n, d, p, training in (
        (4, 2, 3, 0.5, True),
        (5, 3, 2, 0.2, True),
        (4, 3, 5, 0.4, False),
        (3, 4, 2, 0.0, True),
        (6, 1, 4, 0.7, True),
    ):
        # Both kinds of images, with draws on both sides of 1 - p as well as of p.
        draws = np.resize([0.95, 0.05, 0.6, 0.3], b) + 0.04 * rng.random(b)
        yield (
            rng.normal(size=(b, n, d)),
            rng.normal(size=(b, n, d)),
            rng.normal(size=d),
            draws,
            p,
            training,
        )


@exercise.solution
def add_branch(tokens, branch, gain, draws, p, training):
    """Return the tokens plus what is left of the branch."""
    scaled = gain * branch
    if not training:
        return tokens + scaled
    kept = rearrange(draws >= p, "b -> b 1 1")
    return tokens + kept * scaled / (1 - p)


@exercise.right
def by_choice(tokens, branch, gain, draws, p, training):
    """Choose a factor for each image."""
    factor = np.where(draws < p, 0.0, 1 / (1 - p)) if training else np.ones(len(draws))
    return tokens + factor[:, None, None] * branch * gain


@exercise.right
def image_by_image(tokens, branch, gain, draws, p, training):
    """Go through the images, and skip those that are dropped."""
    result = tokens.copy()
    for i, draw in enumerate(draws):
        if not training:
            result[i] += branch[i] * gain
        elif draw >= p:
            result[i] += branch[i] * gain / (1 - p)
    return result


@exercise.right
def by_diagonal(tokens, branch, gain, draws, p, training):
    """Multiply by a diagonal matrix, and mix two answers."""
    whole = branch @ np.diag(gain)
    kept = np.ones_like(draws) if not training else (draws >= p) / (1 - p)
    return tokens + np.einsum("b,bnd->bnd", kept, whole)


def _factor(draws, p):
    return ((draws >= p) / (1 - p))[:, None, None]


@exercise.wrong(
    "Kept branches are not divided by 1 - p. Then the mean of what training adds is "
    "1 - p times the branch, and in evaluation every layer adds more than in training."
)
def not_rescaled(tokens, branch, gain, draws, p, training):
    """Drop and do no more."""
    kept = (draws >= p)[:, None, None] if training else 1.0
    return tokens + kept * gain * branch


@exercise.wrong(
    "You divide kept branches by p. A branch is kept with probability 1 - p, so "
    "dividing by 1 - p keeps the mean: (1 - p) · branch / (1 - p)."
)
def divided_by_p(tokens, branch, gain, draws, p, training):
    """Take the probability of dropping for that of keeping."""
    kept = (draws >= p)[:, None, None] / p if training and p else 1.0
    return tokens + kept * gain * branch


@exercise.wrong(
    "You multiply kept branches by 1 - p, which makes the mean smaller still. To make "
    "up for the branches that are missing, the others must grow: divide."
)
def multiplied(tokens, branch, gain, draws, p, training):
    """Shrink instead of enlarging."""
    kept = (draws >= p)[:, None, None] * (1 - p) if training else 1.0
    return tokens + kept * gain * branch


@exercise.wrong(
    "Branches are dropped in evaluation, too. A trained model should answer the same "
    "image in the same way each time: out of training, add the whole branch."
)
def dropped_in_evaluation(tokens, branch, gain, draws, p, training):
    """Ignore `training`."""
    return tokens + _factor(draws, p) * gain * branch


@exercise.wrong(
    "You drop the tokens along with the branch, so a dropped image is all zeros. Only "
    "the branch is dropped: the residual connection carries the tokens past it."
)
def tokens_dropped(tokens, branch, gain, draws, p, training):
    """Drop the sum."""
    factor = _factor(draws, p) if training else 1.0
    return factor * (tokens + gain * branch)


@exercise.wrong(
    "One draw decides for the whole batch. Each image has a draw of its own, draws[i], "
    "so that one batch trains many depths."
)
def one_for_all(tokens, branch, gain, draws, p, training):
    """Use the first draw for all."""
    factor = (draws[0] >= p) / (1 - p) if training else 1.0
    return tokens + factor * gain * branch


@exercise.wrong(
    "It is the other way round: the branch is dropped if the draw is *below* p, which "
    "happens with probability p. You keep it then."
)
def the_others(tokens, branch, gain, draws, p, training):
    """Keep what should be dropped."""
    factor = (draws < p)[:, None, None] / (1 - p) if training else 1.0
    return tokens + factor * gain * branch


@exercise.wrong(
    "Layer scale multiplies the whole sum, tokens included. It belongs to the branch "
    "alone. A small gain on the sum would shrink the tokens in every layer."
)
def gain_on_the_sum(tokens, branch, gain, draws, p, training):
    """Scale what leaves the layer."""
    factor = _factor(draws, p) if training else 1.0
    return gain * (tokens + factor * branch)


@exercise.wrong(
    "The gain is missing. Layer scale multiplies each feature of the branch by its own "
    "factor, in training and in evaluation."
)
def without_gain(tokens, branch, gain, draws, p, training):
    """Forget layer scale."""
    return add_branch(tokens, branch, np.ones_like(gain), draws, p, training)
