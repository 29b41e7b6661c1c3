"""Parameters before the encoder.

A Vision Transformer reads color images of 96 by 96 pixels in patches of 8 by 8. Its
tokens have width 256. It has a patch embedding with a bias, a class token, and a
learned position embedding for every token. How many parameters are these, before the
first encoder layer?
"""

from transformers_hw.exercises.kinds import Number

exercise = Number(
    level="warm-up",
    read="vision_transformer#counting-tokens-parameters-and-work",
    hints=(
        "A flattened patch has 8 · 8 · 3 numbers.",
        "There are 12 · 12 patches, and the class token has a position of its own.",
        "Add up the matrix, its bias, the class token and the table.",
    ),
    tolerance=0.5,
    questions=("nyu-2",),
)


@exercise.solution
def parameters():
    """Return the sizes of the embedding, the class token and the table."""
    return 8 * 8 * 3 * 256 + 256 + 256 + (12 * 12 + 1) * 256


@exercise.wrong(
    "You are 256 short. Three parts have 256 numbers each and are easy to forget: the "
    "bias of the embedding, the class token, and the class token's position."
)
def one_vector_short():
    """Count a position for each patch only."""
    return 8 * 8 * 3 * 256 + 256 + 256 + 12 * 12 * 256


@exercise.wrong(
    "The table of positions is missing. It is learned, unlike the sinusoids of the "
    "first Transformer, so each of its rows counts."
)
def without_positions():
    """Forget the positions."""
    return 8 * 8 * 3 * 256 + 256 + 256


@exercise.wrong(
    "You left out the three color channels. A patch of 8 by 8 pixels has 192 numbers, "
    "not 64."
)
def one_channel():
    """Count gray patches."""
    return 8 * 8 * 256 + 256 + 256 + (12 * 12 + 1) * 256


@exercise.wrong(
    "You gave every patch a matrix of its own. One patch embedding is shared by all "
    "144 patches."
)
def matrix_per_patch():
    """Multiply the embedding by the number of patches."""
    return 144 * (8 * 8 * 3 * 256 + 256) + 256 + (12 * 12 + 1) * 256


@exercise.wrong(
    "You are 512 short: two vectors of 256 numbers are missing. Candidates are the "
    "bias of the embedding, the class token, and the class token's position."
)
def two_vectors_short():
    """Forget the class token altogether."""
    return 8 * 8 * 3 * 256 + 256 + 12 * 12 * 256
