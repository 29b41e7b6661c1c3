"""Shuffled words.

A layer of self-attention without positions and without a mask reads the words of a
sentence. Then the words are shuffled. What happens to the output of the layer?
"""

from transformers_hw.exercises.kinds import Choice

exercise = Choice(
    level="warm-up",
    read="positional_encoding#shuffled-rows-give-shuffled-outputs",
    hints=(
        "Does the weighted average of one word depend on the order in which the other "
        "words are listed?",
        "Which row of the output belongs to which word, before and after?",
    ),
    options={
        "a": "Nothing: the output is exactly the same matrix.",
        "b": "Each word keeps its output, and the rows are shuffled like the words.",
        "c": "Each word gets a new output, since its neighbors changed.",
        "d": "The rows are shuffled back into the original order.",
    },
    answer="b",
    reasons={
        "a": "That is permutation *invariance*, which a mean over all rows would have. "
        "The rows of the output follow the words.",
        "b": "A word's output is a sum over all words, in which order plays no part. "
        "So the layer is permutation equivariant.",
        "c": "Without positions the layer knows no neighbors: the weight of a pair of "
        "words depends on the two words alone.",
        "d": "The layer cannot know the original order: it never saw it.",
    },
)
