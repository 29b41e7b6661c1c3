"""What a layer cannot do without positions.

A layer of self-attention has no positions and no mask, and you may choose its weights.
Which of these can it compute exactly, for all inputs of three or more tokens?
"""

from transformers_hw.exercises.kinds import Choice

exercise = Choice(
    level="core",
    read="self_attention#what-symmetry-forbids",
    hints=(
        "Equal tokens get equal outputs, wherever they stand.",
        "Which of the wanted outputs stay the same if other tokens trade places?",
    ),
    options={
        "a": "The tokens in reverse order.",
        "b": "The difference of each token and the one before it.",
        "c": "The mean of all tokens, at every position.",
        "d": "The first token, at every position.",
    },
    answer="c",
    reasons={
        "a": "A permutation other than the identity needs positions: equal tokens "
        "would have to get different outputs.",
        "b": "“Before” is a matter of position. In 2, 2, 8 the first two tokens are "
        "equal, and only one of them has another 2 before it.",
        "c": "With W_q = 0 all scores are equal, and every output is the mean. It does "
        "not depend on the order, as the symmetry demands.",
        "d": "Exchange the first two tokens: the output would have to change "
        "everywhere, but equivariance only lets rows move.",
    },
)
