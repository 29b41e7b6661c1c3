"""Why divide by √d?

Queries and keys have d independent coordinates of mean 0 and variance 1. Why does
attention divide their dot products by √d?
"""

from transformers_hw.exercises.kinds import Choice

exercise = Choice(
    level="core",
    read="attention#the-scale-is-a-dial",
    hints=(
        "What is the variance of a sum of d independent products?",
        "What happens to a softmax, and to its gradient, if scores grow with d?",
    ),
    options={
        "a": "So that the weights of a row sum to 1.",
        "b": "So that scores have variance 1 at every width, and the softmax starts "
        "neither flat nor saturated.",
        "c": "So that scores lie between -1 and 1.",
        "d": "So that the largest weight does not depend on the number of keys.",
    },
    answer="b",
    reasons={
        "a": "The softmax makes every row sum to 1, whatever the scale.",
        "b": "Each product has variance 1, so a dot product has variance d; dividing "
        "by √d brings it back to 1. Unscaled, wide layers would start with nearly "
        "one-hot weights and tiny gradients.",
        "c": "A variance of 1 does not bound the scores: values beyond ±1 are common. "
        "Cosine similarity is what lies between -1 and 1.",
        "d": "More keys still share the weight of 1. The scale depends on the width d, "
        "not on the number of keys m.",
    },
)
