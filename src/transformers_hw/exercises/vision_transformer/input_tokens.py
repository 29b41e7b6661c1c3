"""What enters the encoder.

Write `input_tokens(patches, embedding, bias, class_token, positions)`: the first line
of the model, from flattened patches to the input of the encoder. `patches` has shape
(b, N, p), for b images of N patches; `embedding` has shape (p, d) and `bias` (d,), and
together they embed each patch. `class_token` has shape (d,), and `positions` has shape
(N + 1, d). The class token comes first, and it has a position as well: row 0 of the
table. Return an array of shape (b, N + 1, d).
"""

import numpy as np
from einops import einsum

from transformers_hw.exercises.kinds import Code

exercise = Code(
    level="core",
    read="vision_transformer#the-model-in-four-formulas",
    hints=(
        "Embed first: the class token is already of width d and needs no embedding.",
        "Each image needs its own copy of the class token before you can join it to "
        "the patches along the axis of tokens.",
        "Add the whole table once, after joining.",
    ),
    points=2,
    questions=("nyu-1.5c", "nyu-2"),
)


@exercise.cases
def cases(rng):
    """Yield one image with integers, then random ones, and a single patch."""
    yield (
        np.array([[[1.0, 0.0], [0.0, 2.0]]]),
        np.array([[1.0, 1.0], [1.0, -1.0]]),
        np.array([0.5, 0.5]),
        np.array([7.0, 8.0]),
        np.array([[10.0, 10.0], [20.0, 20.0], [30.0, 30.0]]),
    )
    for b, n, p, d in ((2, 4, 3, 5), (3, 2, 6, 4), (1, 6, 2, 3), (4, 1, 5, 2)):
        yield (
            rng.normal(size=(b, n, p)),
            rng.normal(size=(p, d)),
            rng.normal(size=d),
            rng.normal(size=d),
            rng.normal(size=(n + 1, d)),
        )


@exercise.solution
def input_tokens(patches, embedding, bias, class_token, positions):
    """Return the tokens of each image, the class token first."""
    tokens = einsum(patches, embedding, "b n p, p d -> b n d") + bias
    first = np.broadcast_to(class_token, (len(tokens), 1, len(class_token)))
    return np.concatenate([first, tokens], axis=1) + positions


@exercise.right
def by_filling(patches, embedding, bias, class_token, positions):
    """Start from the positions, and add to them."""
    tokens = np.tile(positions, (len(patches), 1, 1)).astype(float)
    tokens[:, 0] += class_token
    tokens[:, 1:] += patches @ embedding + bias
    return tokens


@exercise.right
def image_by_image(patches, embedding, bias, class_token, positions):
    """Stack the rows of one image at a time."""
    return np.stack(
        [
            np.vstack([class_token, own @ embedding + bias]) + positions
            for own in patches
        ]
    )


def _joined(patches, embedding, bias, class_token, *, last=False):
    tokens = patches @ embedding + bias
    extra = np.broadcast_to(class_token, (len(tokens), 1, tokens.shape[-1]))
    return np.concatenate([tokens, extra] if last else [extra, tokens], axis=1)


@exercise.wrong(
    "The class token stands at the end. It comes first: the head reads row 0, and row "
    "0 of the positions belongs to it."
)
def appended(patches, embedding, bias, class_token, positions):
    """Put the class token behind the patches."""
    return _joined(patches, embedding, bias, class_token, last=True) + positions


@exercise.wrong(
    "The class token gets no position. The table has N + 1 rows, and its first row is "
    "added to the class token."
)
def class_without_position(patches, embedding, bias, class_token, positions):
    """Add positions to patches only."""
    tokens = _joined(patches, embedding, bias, class_token)
    tokens[:, 1:] += positions[1:]
    return tokens


@exercise.wrong(
    "The bias of the patch embedding is added to the class token, too. The class "
    "token comes from no patch: join it after embedding."
)
def bias_on_class_token(patches, embedding, bias, class_token, positions):
    """Add the bias after joining."""
    tokens = _joined(patches, embedding, np.zeros_like(bias), class_token)
    return tokens + bias + positions


@exercise.wrong(
    "The positions are off by one: the first patch gets row 0, and the class token "
    "the last row. Row 0 is the class token's, and patch i, counted from 1, has row i."
)
def positions_off_by_one(patches, embedding, bias, class_token, positions):
    """Give the class token the last row of the table."""
    tokens = _joined(patches, embedding, bias, class_token)
    return tokens + np.roll(positions, 1, axis=0)


@exercise.wrong(
    "The class token has replaced the first patch, so there are only N tokens and the "
    "top left corner of the image is lost. It joins the patches as one more row."
)
def first_patch_replaced(patches, embedding, bias, class_token, positions):
    """Write the class token over the first patch."""
    tokens = patches @ embedding + bias
    tokens[:, 0] = class_token
    return tokens + positions[:-1]
