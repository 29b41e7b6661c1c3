"""Speed-ups that were not taken, and what they would have gained."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from measuring import Pair, compare, difference, forward, with_backward
from torch import Tensor, nn

from transformers_hw import MultiHeadAttention
from transformers_hw.attention import attention
from transformers_hw.attention_as_convolution import attention_from_convolution
from transformers_hw.transformer import EncoderLayer


def measure(budget: float) -> list[dict[str, Any]]:
    """Time each against what the book has; `gain` is the book's time by its."""
    found = []
    for what, why, build in WAYS:
        torch.manual_seed(0)
        difference(build())
        result = compare(build, budget=budget)
        gain = round(1.0 / result["ratio"], 3)
        found.append({"what": what, "gain": gain, "why": why})
    return found


class _Packed(nn.Module):
    """Put the weights of three projections together at each call."""

    def __init__(self, layer: MultiHeadAttention) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        layer = self.layer
        projections = (layer.query_proj, layer.key_proj, layer.value_proj)
        weight = torch.cat([p.weight for p in projections])
        bias = torch.cat([p.bias for p in projections])
        axes = "b n (three h d) -> three b h n d"
        parts = F.linear(x, weight, bias)
        heads = rearrange(parts, axes, three=3, h=layer.heads)
        output, _ = attention(*heads)
        return layer.output_proj(rearrange(output, "b h n d -> b n (h d)"))


def _packed(dim: int, length: int, batch: int, *, train: bool) -> Callable[[], Pair]:
    def build() -> Pair:
        layer = MultiHeadAttention(dim, dim // 64)
        x = torch.randn(batch, length, dim)
        run = with_backward if train else forward
        return Pair(run(layer, x), run(_Packed(layer), x))

    return build


def _convolution() -> Pair:
    convolution = nn.Conv2d(64, 64, 3, padding="same")
    x = torch.randn(8, 64, 32, 32)
    return Pair(
        forward(attention_from_convolution(convolution), x), forward(convolution, x)
    )


def _in_place() -> Pair:
    layer = EncoderLayer(192, 4, 768, activation="gelu")
    x = torch.randn(32, 65, 192)

    def in_place(x: Tensor) -> Tensor:
        x = layer.attention(layer.attention_norm(x))[0].add_(x)
        return layer.feed_forward(layer.feed_forward_norm(x)).add_(x)

    return Pair(forward(layer, x), forward(in_place, x))


def _without_checks() -> Pair:
    shape = (1, 3, 16, 64)
    q, k, v = (torch.randn(shape) for _ in range(3))
    return Pair(
        forward(attention, q, k, v), forward(F.scaled_dot_product_attention, q, k, v)
    )


def _written_out() -> Pair:
    shape = (16, 8, 128, 64)
    q, k, v = (torch.randn(shape) for _ in range(3))
    return Pair(
        forward(attention, q, k, v), forward(attention, q, k, v, return_weights=True)
    )


def _tanh() -> Pair:
    x = torch.randn(16, 197, 768)
    return Pair(forward(nn.GELU(), x), forward(nn.GELU("tanh"), x), tolerance=1e-3)


WAYS = (
    (
        "one packed projection for query, key and value; dim 192, N 65, batch 32",
        "Three projections read as the formula does, and cross-attention needs them.",
        _packed(192, 65, 32, train=False),
    ),
    (
        "the same, with gradients",
        "Hooks on a projection, and what takes its place, would be passed over unseen.",
        _packed(192, 65, 32, train=True),
    ),
    (
        "the same with gradients; dim 768, N 197, batch 4",
        "Packing at every call copies the weights, which are larger here.",
        _packed(768, 197, 4, train=True),
    ),
    (
        "hard heads carried out by PyTorch's convolution; 3 × 3, 64 channels, 32 × 32",
        "It would be the convolution again, where the book shows attention doing it.",
        _convolution,
    ),
    (
        "residuals added in place; encoder layer, dim 192, 4 heads, N 65, batch 32",
        "What a hook was given, a sublayer's output, would change behind its back.",
        _in_place,
    ),
    (
        "attention without checks of its input; N 16, one sample",
        "On so little work the checks are seen; in a model they are not.",
        _without_checks,
    ),
    (
        "attention written out where there are few keys; N 128, 8 heads, batch 16",
        "It gains without gradients only, and only where freed memory is kept.",
        _written_out,
    ),
    (
        "GELU by the hyperbolic tangent; 16 × 197 × 768 numbers",
        "It is another function, of use only where it is the faster one.",
        _tanh,
    ),
)
