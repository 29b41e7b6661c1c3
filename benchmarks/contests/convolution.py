"""Gaussian attention against dense attention, and convolutions that are attention."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
import torchvision
from einops import einsum, rearrange, reduce
from measuring import Pair, Row, forward, with_backward
from torch import Tensor, nn

from transformers_hw.attention_as_convolution import (
    ConvolutionAsAttention,
    attention_from_convolution,
    attentionize,
)

sys.path.append(str(Path(__file__).parents[1]))
from gaussian_attention import DIM, contenders

# Input channels, output channels, kernel, side of the picture, batch.
CONVOLUTIONS = ((64, 64, 3, 32, 8), (64, 128, 5, 28, 4), (256, 256, 3, 14, 8))


def rows() -> Iterator[Row]:
    """Give all comparisons."""
    for side, batch in ((8, 16), (16, 8), (32, 4), (64, 4)):
        what = f"{side} × {side} pixels, 9 heads, dim {DIM}, batch {batch}"
        for mode in ("forward", "forward and backward"):
            for name, peer in (
                ("tabulated", "dense, from a table"),
                ("formed", "dense, formed"),
            ):
                build = _gaussian(side, batch, name, mode)
                yield Row("Gaussian attention", what, peer, mode, build, side == 16)
    group = "Convolution as attention"
    for inputs, outputs, kernel, side, batch in CONVOLUTIONS:
        what = f"{kernel} × {kernel}, {inputs} to {outputs} channels, {side} × {side}"
        what = f"{what}, batch {batch}"
        sizes = (inputs, outputs, kernel, side, batch)
        for peer, make in (
            ("torch, as attention", _attention),
            ("torch", lambda theirs, _: theirs),
        ):
            build = _converted(make, *sizes)
            yield Row(group, what, peer, "forward", build, side < 20)
    what = "ResNet-18, 224 × 224, batch 2"
    yield Row(group, what, "torchvision", "forward", _residual_network)


def _gaussian(side: int, batch: int, peer: str, mode: str) -> Callable[[], Pair]:
    def build() -> Pair:
        ours, theirs = contenders(side, peer)
        x = torch.randn(batch, side, side, DIM)
        run = forward if mode == "forward" else with_backward
        return Pair(run(ours, x), run(theirs, x))

    return build


def _converted(
    make: Callable[[nn.Conv2d, ConvolutionAsAttention], Callable[[Tensor], Tensor]],
    inputs: int,
    outputs: int,
    kernel: int,
    side: int,
    batch: int,
) -> Callable[[], Pair]:
    def build() -> Pair:
        theirs = nn.Conv2d(inputs, outputs, kernel, padding="same")
        ours = attention_from_convolution(theirs)
        x = torch.randn(batch, inputs, side, side)
        return Pair(forward(ours, x), forward(make(theirs, ours), x))

    return build


def _attention(
    theirs: nn.Conv2d, ours: ConvolutionAsAttention
) -> Callable[[Tensor], Tensor]:
    """Give the same heads in PyTorch's attention, where a mask says what they see."""
    pad = theirs.kernel_size[0] // 2
    values, bias = ours.attention.value_weight, theirs.bias
    masks: list[Tensor] = []

    def attend(x: Tensor) -> Tensor:
        side = x.shape[-1]
        inner = slice(pad, pad + side)
        padded = rearrange(F.pad(x, (pad,) * 4), "b c h w -> b h w c")
        if not masks:
            weights = ours.attention.weights(*padded.shape[1:3], queries=(inner, inner))
            masks.append(rearrange(weights > 0.5, "h i j k l -> h (i j) (k l)"))
        seen = einsum(padded, values, "b k l d, h d e -> b h k l e")
        seen = rearrange(seen, "b h k l e -> b h (k l) e")
        # All scores are zero: only the mask decides.
        nothing = seen.new_zeros(*seen.shape[:2], seen.shape[2], 1)
        asking = seen.new_zeros(*seen.shape[:2], side**2, 1)
        heads = F.scaled_dot_product_attention(
            asking, nothing, seen, attn_mask=masks[0]
        )
        mixed = reduce(heads, "b h (i j) e -> b e i j", "sum", i=side)
        return mixed if bias is None else mixed + rearrange(bias, "e -> e 1 1")

    return attend


def _residual_network() -> Pair:
    theirs = torchvision.models.resnet18(weights=None).eval()
    x = torch.randn(2, 3, 224, 224)
    return Pair(forward(attentionize(theirs), x), forward(theirs, x))
