"""Attention and Transformers: a textbook you can import.

Each chapter is a module: `attention`, `positional_encoding`, `multi_head_attention`,
`self_attention`, `seq2seq`, `transformer`, `vision_transformer` and
`attention_as_convolution`. The names below are the ones you are likely to look for
first; everything else is imported from its module.
"""

from transformers_hw.attention import (
    attention_weights,
    causal_mask,
    dot_product_attention,
    padding_mask,
    softmax,
    window_mask,
)
from transformers_hw.attention_as_convolution import (
    GaussianSelfAttention,
    attention_from_convolution,
    attentionize,
    convolution_from_attention,
)
from transformers_hw.multi_head_attention import KeyValueCache, MultiHeadAttention
from transformers_hw.positional_encoding import (
    LearnedPositions,
    LearnedPositions2D,
    RelativePositionBias,
    SinusoidalPositions,
    SinusoidalPositions2D,
)
from transformers_hw.probes import (
    attention_distance,
    attention_rollout,
    capture_weights,
)
from transformers_hw.self_attention import SelfAttention
from transformers_hw.seq2seq import Seq2Seq
from transformers_hw.transformer import (
    Bert,
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    FeedForward,
    LanguageModel,
    LayerNorm,
    RMSNorm,
    Transformer,
)
from transformers_hw.vision_transformer import PatchEmbedding, VisionTransformer

__version__ = "0.1.0"

__all__ = [
    "Bert",
    "Decoder",
    "DecoderLayer",
    "Encoder",
    "EncoderLayer",
    "FeedForward",
    "GaussianSelfAttention",
    "KeyValueCache",
    "LanguageModel",
    "LayerNorm",
    "LearnedPositions",
    "LearnedPositions2D",
    "MultiHeadAttention",
    "PatchEmbedding",
    "RMSNorm",
    "RelativePositionBias",
    "SelfAttention",
    "Seq2Seq",
    "SinusoidalPositions",
    "SinusoidalPositions2D",
    "Transformer",
    "VisionTransformer",
    "attention_distance",
    "attention_from_convolution",
    "attention_rollout",
    "attention_weights",
    "attentionize",
    "capture_weights",
    "causal_mask",
    "convolution_from_attention",
    "dot_product_attention",
    "padding_mask",
    "softmax",
    "window_mask",
]
