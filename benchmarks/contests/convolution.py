"""Gaussian attention against dense attention, and convolutions that are attention."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torchvision
from measuring import Pair, Row, forward, with_backward
from torch import nn

from transformers_hw.attention_as_convolution import (
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
        build = _converted(inputs, outputs, kernel, side, batch)
        yield Row(group, f"{what}, batch {batch}", "torch", "forward", build, side < 20)
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
    inputs: int, outputs: int, kernel: int, side: int, batch: int
) -> Callable[[], Pair]:
    def build() -> Pair:
        theirs = nn.Conv2d(inputs, outputs, kernel, padding="same")
        ours = attention_from_convolution(theirs)
        x = torch.randn(batch, inputs, side, side)
        return Pair(forward(ours, x), forward(theirs, x))

    return build


def _residual_network() -> Pair:
    theirs = torchvision.models.resnet18(weights=None).eval()
    x = torch.randn(2, 3, 224, 224)
    return Pair(forward(attentionize(theirs), x), forward(theirs, x))
