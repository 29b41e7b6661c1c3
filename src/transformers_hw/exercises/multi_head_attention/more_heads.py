"""From eight heads to sixteen.

A layer has width 512 and eight heads of width 64. You rebuild it with sixteen heads of
width 32 and change nothing else. What changes?
"""

from transformers_hw.exercises.kinds import Choice

exercise = Choice(
    level="core",
    read="multi_head_attention#what-a-layer-costs",
    hints=(
        "Count the weights of the query projection before and after.",
        "How many tables of attention weights does the layer compute, and how large "
        "are they?",
    ),
    options={
        "a": "The layer has twice as many parameters.",
        "b": "Parameters and multiplications stay the same; twice as many tables of "
        "weights are computed, each from narrower vectors.",
        "c": "The layer can attend twice as far.",
        "d": "The scale 1/√d_k stays the same, since the width of the layer does.",
    },
    answer="b",
    reasons={
        "a": "The heads share the width: sixteen blocks of 32 columns make the same "
        "512 × 512 matrix.",
        "b": "Projections cost the same, and the scores cost n² · 512 in total either "
        "way. Only the number of tables grows, and each B_r has rank at most 32.",
        "c": "Every head already reaches every token. Heads add different ways to "
        "attend, not reach.",
        "d": "The scale follows the head: 1/√64 becomes 1/√32, because narrower "
        "vectors are compared.",
    },
)
