r"""The Transformer: attention and position-wise networks, stacked.

A layer adds two things to every token: what attention gathered from the other
tokens, and what a small network computes from the token alone. With $N$ for the
layer norm and $f$ for either, the two orders in use are

$$
\text{post-norm: } x \leftarrow N(x + f(x)),
\qquad
\text{pre-norm: } x \leftarrow x + f(N(x)).
$$

The paper is post-norm. Pre-norm keeps a path from output to input that no layer norm
interrupts, and ends with one layer norm after the last layer.

The files, in the order of reading: `parts` (norms, GELU, feed-forward networks),
`config` (the settings of a layer), `layers`, `stacks` (encoder and decoder), `model`
(the Transformer, and beam search), `bert`, `language_model` (GPT-2, Llama, and
sampling), and `training` (loss and learning rate).
"""

from transformers_hw.transformer.bert import Bert, BertConfig, mean_pool
from transformers_hw.transformer.config import LayerConfig, LayerOptions, StackConfig
from transformers_hw.transformer.language_model import (
    LanguageModel,
    LanguageModelConfig,
    filtered_logits,
)
from transformers_hw.transformer.layers import DecoderLayer, EncoderLayer
from transformers_hw.transformer.model import Transformer, TransformerConfig
from transformers_hw.transformer.parts import (
    DropPath,
    FeedForward,
    LayerNorm,
    LayerScale,
    RMSNorm,
    SwiGLU,
    gelu,
    layer_norm,
    rms_norm,
)
from transformers_hw.transformer.stacks import Decoder, DecoderCache, Encoder
from transformers_hw.transformer.training import (
    label_smoothing_loss,
    transformer_learning_rate,
)

__all__ = [
    "Bert",
    "BertConfig",
    "Decoder",
    "DecoderCache",
    "DecoderLayer",
    "DropPath",
    "Encoder",
    "EncoderLayer",
    "FeedForward",
    "LanguageModel",
    "LanguageModelConfig",
    "LayerConfig",
    "LayerNorm",
    "LayerOptions",
    "LayerScale",
    "RMSNorm",
    "StackConfig",
    "SwiGLU",
    "Transformer",
    "TransformerConfig",
    "filtered_logits",
    "gelu",
    "label_smoothing_loss",
    "layer_norm",
    "mean_pool",
    "rms_norm",
    "transformer_learning_rate",
]
