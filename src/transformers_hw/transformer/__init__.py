r"""The Transformer: attention and position-wise networks, stacked.

A layer adds two things to every token: what attention gathered from the others,
and what a small network makes of the token alone. With $N$ for layer
normalisation, the two orders in use are

$$
\text{post-norm: } x \leftarrow N(x + f(x)),
\qquad
\text{pre-norm: } x \leftarrow x + f(N(x)).
$$

The paper is post-norm; pre-norm keeps a path from output to input that no
normalisation interrupts, and ends with one normalisation after the last layer.
"""

from transformers_hw.transformer.bert import Bert, mean_of_tokens
from transformers_hw.transformer.layers import DecoderLayer, EncoderLayer
from transformers_hw.transformer.model import Transformer
from transformers_hw.transformer.parts import FeedForward, LayerNorm, gelu, layer_norm
from transformers_hw.transformer.stacks import (
    Decoder,
    DecoderCache,
    Encoder,
    LayerOptions,
)
from transformers_hw.transformer.training import (
    label_smoothing_loss,
    transformer_learning_rate,
)

__all__ = [
    "Bert",
    "Decoder",
    "DecoderCache",
    "DecoderLayer",
    "Encoder",
    "EncoderLayer",
    "FeedForward",
    "LayerNorm",
    "LayerOptions",
    "Transformer",
    "gelu",
    "label_smoothing_loss",
    "layer_norm",
    "mean_of_tokens",
    "transformer_learning_rate",
]
