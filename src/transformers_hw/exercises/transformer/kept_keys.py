"""What may be kept.

While a decoder writes, it keeps the keys and values of all tokens so far, in every
layer, and computes them only for the new token. The results are the same as without
this cache. An encoder that reads a growing text and sees all positions could not do so.
Why?
"""

from transformers_hw.exercises.kinds import Choice

exercise = Choice(
    level="core",
    read="transformer#writing-greedy-search-the-cache-beams",
    hints=(
        "The keys of layer 2 are computed from the output of layer 1. On which tokens "
        "does that output depend, at position 3 say?",
        "What changes at position 3, in an encoder and in a decoder, when token 9 is "
        "appended?",
    ),
    questions=("quiz-2.4",),
    options={
        "a": "The weights of a decoder are fixed in use; those of an encoder are not.",
        "b": "A decoder is masked, so what it computes at a position never depends on "
        "later tokens. In an encoder, a new token changes all positions from the first "
        "layer on.",
        "c": "Keys and values depend on their own token alone, and an encoder has no "
        "positional encodings to tell old tokens from new ones.",
        "d": "The weights of earlier queries would no longer sum to 1 in an encoder, "
        "while in a decoder the new token takes no weight.",
    },
    answer="b",
    reasons={
        "a": "All weights are fixed in use, in both. Keys and values also depend on "
        "the tokens, and these are what differs.",
        "b": "With the causal mask, appending a token leaves earlier positions as they "
        "are, layer by layer. In an encoder, position 3 attends to token 9 as well, so "
        "its output, and its keys in the next layer, change.",
        "c": "That holds in the first layer only. Further up, keys are computed from "
        "outputs of attention, which contain other tokens. Encoders do have "
        "positional encodings.",
        "d": "A softmax always sums to 1 over what it sees. And the new token does "
        "take weight: its own query attends to itself.",
    },
)
