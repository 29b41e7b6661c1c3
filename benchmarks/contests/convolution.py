"""Gaussian attention against dense layers, and convolutions written as attention.

The two dense peers of Gaussian attention take one softmax over all pairs of pixels.
The tabulated one follows Cordonnier, Loukas & Jaggi's program (epfml/attention-cnn):
its scores come from a table of all offsets, 335 MB at 64 × 64 pixels. The other
computes the scores from their formula.
"""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
import torchvision
from einops import einsum, rearrange, reduce
from measuring import PASSES, Pair, Row, forward
from torch import Tensor, nn

from transformers_hw.attention_as_convolution import (
    GaussianSelfAttention,
    PaddedAttention,
    attention_from_convolution,
    attentionize,
)

DIM, HEADS = 128, 9
IMAGES = ((8, 16), (16, 8), (32, 4), (64, 4))  # side, batch
# Input channels, output channels, kernel size, side, batch.
CONVOLUTIONS = ((64, 64, 3, 32, 8), (64, 128, 5, 28, 4), (256, 256, 3, 14, 8))


def rows() -> Iterator[Row]:
    """Yield all comparisons."""
    for side, batch in IMAGES:
        case = f"{side} × {side} pixels, {HEADS} heads, dim {DIM}, batch {batch}"
        for mode in PASSES:
            for peer in DENSE:
                if side == 64 and peer == "dense":
                    continue  # minutes of work; the published layer suffices there
                build = _gaussian(side, batch, peer, mode)
                yield Row("gaussian_attention", case, peer, mode, build, side == 16)
    group = "convolution_as_attention"
    for sizes in CONVOLUTIONS:
        inputs, outputs, kernel, side, batch = sizes
        case = f"{kernel} × {kernel}, {inputs} to {outputs} channels, {side} × {side}"
        case = f"{case}, batch {batch}"
        for peer, make in (
            ("torch attention", _attention),
            ("torch convolution", lambda theirs, _: theirs),
        ):
            build = _converted(make, *sizes)
            yield Row(group, case, peer, "forward", build, side < 20)
    case = "ResNet-18, 224 × 224, batch 2"
    yield Row(group, case, "torchvision", "forward", _residual_network)


def gaussian_flops(side: int, batch: int) -> int:
    """Count the operations of Gaussian attention's matrix products.

    Each head mixes rows, then columns, of all channels, and projects them.
    """
    return 2 * batch * side**2 * HEADS * DIM * (side + side + DIM)


class Tabulated(nn.Module):
    """Dense attention with scores from a table of five terms per offset."""

    def __init__(self, side: int, layer: GaussianSelfAttention) -> None:
        super().__init__()
        at = torch.arange(side).float()
        down = rearrange(at, "k -> 1 1 k 1") - rearrange(at, "i -> i 1 1 1")
        right = rearrange(at, "l -> 1 1 1 l") - rearrange(at, "j -> 1 j 1 1")
        terms = torch.broadcast_tensors(down, right, down**2, right**2, down * right)
        self.table = torch.stack(terms, dim=-1)
        self.centers = nn.Parameter(layer.head_centers().detach().clone())
        self.spreads = nn.Parameter(torch.ones(layer.heads))
        self.value = _value_projection(layer)

    def forward(self, x: Tensor) -> Tensor:
        """Attend from every pixel to every pixel."""
        precision = self.spreads**2
        zero = torch.zeros_like(precision)
        down, right = self.centers.unbind(dim=1)
        terms = [-2 * precision * down, -2 * precision * right]
        target = -0.5 * torch.stack([*terms, precision, precision, zero], dim=-1)
        scores = einsum(self.table, target, "i j k l t, h t -> i j h k l")
        joint = rearrange(scores, "i j h k l -> i j h (k l)").softmax(dim=-1)
        weights = rearrange(joint, "i j h (k l) -> i j h k l", k=x.shape[1])
        mixed = einsum(weights, x, "i j h k l, b k l d -> b i j h d")
        return self.value(rearrange(mixed, "b i j h d -> b i j (h d)"))


class Dense(nn.Module):
    """Dense attention with scores from squared distances."""

    def __init__(self, side: int, layer: GaussianSelfAttention) -> None:
        super().__init__()
        at = torch.arange(side).float()
        self.pixels = torch.cartesian_prod(at, at)
        self.centers = nn.Parameter(layer.head_centers().detach().clone())
        self.sharpness = nn.Parameter(torch.full((layer.heads,), layer.sharpness))
        self.value = _value_projection(layer)

    def forward(self, x: Tensor) -> Tensor:
        """Attend from every pixel to every pixel."""
        offsets = self.pixels - rearrange(self.pixels, "q two -> q 1 two")
        from_center = offsets - rearrange(self.centers, "h two -> h 1 1 two")
        distances = from_center.square().sum(dim=-1)
        scores = -rearrange(self.sharpness, "h -> h 1 1") * distances
        pixels = rearrange(x, "b i j d -> b (i j) d")
        mixed = einsum(scores.softmax(dim=-1), pixels, "h q k, b k d -> b q h d")
        output = self.value(rearrange(mixed, "b q h d -> b q (h d)"))
        return rearrange(output, "b (i j) e -> b i j e", i=x.shape[1])


DENSE = {"dense, tabulated": Tabulated, "dense": Dense}


def _value_projection(layer: GaussianSelfAttention) -> nn.Linear:
    merged = rearrange(layer.value_weight.detach(), "h d e -> e (h d)")
    projection = nn.Linear(merged.shape[1], merged.shape[0])
    with torch.no_grad():
        projection.weight.copy_(merged)
        projection.bias.zero_()
    return projection


def _gaussian(side: int, batch: int, peer: str, mode: str) -> Callable[[], Pair]:
    def build() -> Pair:
        ours = GaussianSelfAttention(DIM, HEADS)
        theirs = DENSE[peer](side, ours)
        x = torch.randn(batch, side, side, DIM)
        return Pair(PASSES[mode](ours, x), PASSES[mode](theirs, x))

    return build


def _converted(
    make: Callable[[nn.Conv2d, PaddedAttention], Callable[[Tensor], Tensor]],
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


def _attention(theirs: nn.Conv2d, ours: PaddedAttention) -> Callable[[Tensor], Tensor]:
    """Return the same heads in PyTorch's attention, selecting pixels by a mask."""
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
        value = einsum(padded, values, "b k l d, h d e -> b h k l e")
        value = rearrange(value, "b h k l e -> b h (k l) e")
        # All scores are zero, so that only the mask decides.
        key = value.new_zeros(*value.shape[:3], 1)
        query = value.new_zeros(*value.shape[:2], side**2, 1)
        heads = F.scaled_dot_product_attention(query, key, value, attn_mask=masks[0])
        mixed = reduce(heads, "b h (i j) e -> b e i j", "sum", i=side)
        return mixed if bias is None else mixed + rearrange(bias, "e -> e 1 1")

    return attend


def _residual_network() -> Pair:
    theirs = torchvision.models.resnet18(weights=None).eval()
    x = torch.randn(2, 3, 224, 224)
    return Pair(forward(attentionize(theirs), x), forward(theirs, x))
