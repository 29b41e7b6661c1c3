r"""Positional encodings: telling attention where a token stands.

Attention alone is permutation equivariant: if the tokens are shuffled, the outputs
are shuffled the same way. A vector for each position tells the tokens apart. These
vectors $P \in \mathbb{R}^{n\times p}$ are added to the tokens, $X + P$, or
concatenated with them, $[X \; P]$. Relative positions enter the scores instead.

The files, in the order of reading: `absolute` (a vector for each position), `relative`
(a number for each distance, added to the scores), and `rotary` (queries and keys that
are turned by their positions).
"""

from transformers_hw.positional_encoding.absolute import (
    AxialPositions2D,
    Combination,
    LearnedPositions,
    LearnedPositions2D,
    OneHotPositions,
    PositionalEncoding,
    SinusoidalPositions,
    SinusoidalPositions2D,
)
from transformers_hw.positional_encoding.relative import (
    BucketedPositions,
    RelativePositionBias,
    alibi_bias,
    alibi_slopes,
)
from transformers_hw.positional_encoding.rotary import (
    RotaryPositions,
    RotaryPositions2D,
    RotaryScaling,
)

__all__ = [
    "AxialPositions2D",
    "BucketedPositions",
    "Combination",
    "LearnedPositions",
    "LearnedPositions2D",
    "OneHotPositions",
    "PositionalEncoding",
    "RelativePositionBias",
    "RotaryPositions",
    "RotaryPositions2D",
    "RotaryScaling",
    "SinusoidalPositions",
    "SinusoidalPositions2D",
    "alibi_bias",
    "alibi_slopes",
]
