"""A bright pixel moves.

A single hard head has the center (0, 1), key minus query: each query attends to the
pixel one column to its right. Its matrix is the identity. The image is black but for
one bright pixel, in the middle. Where is the bright pixel in the output?
"""

from transformers_hw.exercises.kinds import Choice

exercise = Choice(
    level="warm-up",
    read="attention_as_convolution#nine-heads-by-hand",
    hints=(
        "The output at a pixel is what its query fetched. Which query fetches the "
        "bright pixel?",
        "If the bright pixel is in column 5, then the query q with q + 1 = 5 gets it.",
    ),
    options={
        "a": "One column to the right of where it was.",
        "b": "One column to the left of where it was.",
        "c": "Where it was: a convolution commutes with shifts.",
        "d": "Spread over its row, since every query attends to the right.",
    },
    answer="b",
    reasons={
        "a": "Queries look to the right, so what they see comes from the right and "
        "moves to the left. In formulas, the output at q is the input at q + 1.",
        "b": "The query to the left of the bright pixel fetches it. So a head with "
        "center Δ moves the image by -Δ. This is the quickest check of a sign.",
        "c": "That means: if you shift the input, the output shifts along. The output "
        "can still be a shifted copy of the input, as it is here.",
        "d": "Each query fetches exactly one pixel, its right neighbor. Only one query "
        "has the bright pixel there.",
    },
)
