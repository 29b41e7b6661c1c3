"""A shifted image.

A Vision Transformer *without* position embeddings has patches of 16 by 16 pixels and
applies its head to the mean of the output tokens. An image whose sides are multiples of
16 is shifted to the right by s pixels; what leaves it on the right comes back in on the
left. For which s are the logits guaranteed to stay the same, whatever the weights are?
"""

from transformers_hw.exercises.kinds import Choice

exercise = Choice(
    level="warm-up",
    read="vision_transformer#what-a-convolution-knows-beforehand",
    hints=(
        "Which patches does the model cut from the shifted image?",
        "Without positions, what matters is which patches there are, and not where.",
    ),
    options={
        "a": "For every s, since the model has no notion of position.",
        "b": "For no s but 0 and the full width: a Vision Transformer is not a "
        "convolution.",
        "c": "For multiples of 16.",
        "d": "For s below 16, since each patch then still overlaps its old position.",
    },
    answer="c",
    reasons={
        "a": "The encoder has no notion of position, but the cut has one. After a "
        "shift by 8 pixels, every patch holds halves of two old ones, and E has "
        "a weight of its own for each pixel of a patch.",
        "b": "It is not a convolution of stride 1. But its patch embedding commutes "
        "with shifts by whole patches, and the rest ignores their order.",
        "c": "Such a shift moves whole patches. The model gets the same patches in "
        "another order; the encoder permutes its outputs, and their mean stays.",
        "d": "Overlap is not enough: a patch that moves by a few pixels is another "
        "vector, and becomes another token.",
    },
)
