"""Optimizations that the book does without, and what they would gain.

Each function builds the pair of the optimized code and the book's, so that the ratio is
the gain. They all give the same output.
"""

import copy
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from measuring import Pair, compare, forward, forward_backward
from torch import Tensor, nn

from transformers_hw.attention import dot_product_attention
from transformers_hw.multi_head_attention import MultiHeadAttention
from transformers_hw.transformer import EncoderLayer, FeedForward
from transformers_hw.vision_transformer import VisionTransformer

DIM, HEADS, TOKENS, BATCH = 192, 4, 65, 32


def measure(budget: float) -> list[dict[str, Any]]:
    """Time each optimization against the book's code."""
    found = []
    for build in OPTIMIZATIONS:
        torch.manual_seed(0)
        result = compare(build, budget=budget)
        keys = ("ratio", "lower_quartile", "upper_quartile", "pairs")
        found.append({"name": build.__name__} | {key: result[key] for key in keys})
    return found


class _ClassTokenOnly(nn.Module):
    """A pre-norm encoder layer that computes only its first token."""

    def __init__(self, layer: EncoderLayer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, **_: Any) -> Tensor:
        layer = self.layer
        normalized = layer.attention_norm(x)
        x = x[:, :1] + layer.attention(normalized[:, :1], normalized)
        return x + layer.feed_forward(layer.feed_forward_norm(x))


def class_token_only() -> Pair:
    """In the last layer of a Vision Transformer, compute only the class token."""
    models = [
        VisionTransformer.from_preset("ViT-Ti/16", num_classes=10) for _ in range(2)
    ]
    optimized, book = models
    optimized.load_state_dict(book.state_dict())
    layers = optimized.encoder.layers
    layers[-1] = _ClassTokenOnly(layers[-1])
    images = torch.randn(8, 3, 224, 224)
    return Pair(forward(optimized, images), forward(book, images))


def in_place_activation() -> Pair:
    """Let the activation overwrite the hidden layer."""
    layer = FeedForward(DIM, 4 * DIM, activation="gelu")
    x = torch.randn(BATCH, TOKENS, DIM)

    def optimized(x: Tensor) -> Tensor:
        return layer.output_proj(torch.ops.aten.gelu_(layer.hidden_proj(x)))

    return Pair(forward(optimized, x), forward(layer, x))


def in_place_residuals() -> Pair:
    """Add the residuals in place."""
    layer = EncoderLayer(DIM, HEADS, 4 * DIM, activation="gelu")
    x = torch.randn(BATCH, TOKENS, DIM)

    def optimized(x: Tensor) -> Tensor:
        x = layer.attention(layer.attention_norm(x)).add_(x)
        return layer.feed_forward(layer.feed_forward_norm(x)).add_(x)

    return Pair(forward(optimized, x), forward(layer, x))


def in_place_softmax() -> Pair:
    """Let the softmax overwrite the scores, when the weights are returned."""
    query, key, value = (torch.randn(2, 8, 1024, 64) for _ in range(3))

    def optimized() -> tuple[Tensor, Tensor]:
        scores = (query * 64**-0.5) @ rearrange(key, "b h k d -> b h d k")
        weights = torch.softmax(scores, dim=-1, out=scores)
        return weights @ value, weights

    book = forward(dot_product_attention, query, key, value, return_weights=True)
    return Pair(forward(optimized), book)


class _Packed(nn.Module):
    """Self-attention that projects queries, keys and values by one matrix."""

    def __init__(self, layer: MultiHeadAttention) -> None:
        super().__init__()
        projections = (layer.query_proj, layer.key_proj, layer.value_proj)
        self.heads = layer.heads
        self.packed_proj = nn.Linear(DIM, 3 * DIM)
        self.output_proj = copy.deepcopy(layer.output_proj)
        with torch.no_grad():
            self.packed_proj.weight.copy_(torch.cat([p.weight for p in projections]))
            self.packed_proj.bias.copy_(torch.cat([p.bias for p in projections]))

    def forward(self, x: Tensor) -> Tensor:
        axes = "b n (three h d) -> three b h n d"
        heads = rearrange(self.packed_proj(x), axes, three=3, h=self.heads)
        output = dot_product_attention(*heads)
        return self.output_proj(rearrange(output, "b h n d -> b n (h d)"))


def packed_projections() -> Pair:
    """Project queries, keys and values by one matrix."""
    layer = MultiHeadAttention(DIM, HEADS)
    x = torch.randn(BATCH, TOKENS, DIM)
    return Pair(forward(_Packed(layer), x), forward(layer, x))


def packed_projections_backward() -> Pair:
    """Do the same, forward and backward."""
    layer = MultiHeadAttention(DIM, HEADS)
    x = torch.randn(BATCH, TOKENS, DIM)
    return Pair(forward_backward(_Packed(layer), x), forward_backward(layer, x))


def unchecked_input() -> Pair:
    """Call the attention kernel directly, on very little input."""
    inputs = [torch.randn(1, 3, 16, 64) for _ in range(3)]
    return Pair(
        forward(F.scaled_dot_product_attention, *inputs),
        forward(dot_product_attention, *inputs),
    )


OPTIMIZATIONS = (
    class_token_only,
    in_place_activation,
    in_place_residuals,
    in_place_softmax,
    packed_projections,
    packed_projections_backward,
    unchecked_input,
)
