"""Attention and Transformers: a textbook you can import."""

from transformers_hw.attention import (
    attention,
    attention_weights,
    causal_mask,
    padding_mask,
    softargmax,
)
from transformers_hw.multi_head_attention import KeyValueCache, MultiHeadAttention
from transformers_hw.positional_encoding import (
    LearnedPositions,
    LearnedPositions2D,
    OneHotPositions,
    PositionalEncoding,
    RelativePositionBias,
    SinusoidalPositions,
    SinusoidalPositions2D,
)
from transformers_hw.transformer import (
    Decoder,
    DecoderCache,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    FeedForward,
    LayerNorm,
    LayerOptions,
    Transformer,
    gelu,
    label_smoothing_loss,
    layer_norm,
    transformer_learning_rate,
)

__version__ = "0.1.0"

__all__ = [
    "Decoder",
    "DecoderCache",
    "DecoderLayer",
    "Encoder",
    "EncoderLayer",
    "FeedForward",
    "KeyValueCache",
    "LayerNorm",
    "LayerOptions",
    "LearnedPositions",
    "LearnedPositions2D",
    "MultiHeadAttention",
    "OneHotPositions",
    "PositionalEncoding",
    "RelativePositionBias",
    "SinusoidalPositions",
    "SinusoidalPositions2D",
    "Transformer",
    "attention",
    "attention_weights",
    "causal_mask",
    "gelu",
    "label_smoothing_loss",
    "layer_norm",
    "padding_mask",
    "softargmax",
    "transformer_learning_rate",
]
