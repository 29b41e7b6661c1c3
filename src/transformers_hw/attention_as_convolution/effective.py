r"""The way back: the convolution that a Gaussian attention layer is.

Far from the border, the layer is a convolution with the taps
$\sum_h p_h(\delta) W^{(h)}$, and a finite window holds nearly all of their weight.
"""

import copy
import math
from typing import NamedTuple

import torch
from einops import einsum, rearrange, reduce
from jaxtyping import Float
from torch import Tensor, nn

from transformers_hw._engine.arguments import check_sizes
from transformers_hw._engine.shapes import checked
from transformers_hw.attention_as_convolution.gaussian import GaussianSelfAttention

# Kernels of layers that are flatter than this would be too large to be useful.
LARGEST_RADIUS = 500


class EffectiveConvolution(NamedTuple):
    r"""A convolution that approximates an attention layer, and bounds on the error.

    Both bounds are per output channel, for images with $|x| \le 1$; for others they
    scale with $\max |x|$.

    Attributes:
        convolution: A convolution with replicate padding that keeps the image's size.
        interior_error: Bound at pixels whose window lies within the image.
        border_error: Bound at all pixels.
    """

    convolution: nn.Conv2d
    interior_error: Float[Tensor, " e"]
    border_error: Float[Tensor, " e"]


@checked
def effective_kernel(
    layer: GaussianSelfAttention, size: int
) -> Float[Tensor, "e d size size"]:
    r"""Return the effective kernel of a Gaussian layer: its taps away from the border.

    $$
    T_\delta = \sum_h p_h(\delta)\, W^{(h)}, \qquad
    p_h(\delta) = \frac{e^{-(\delta-\Delta_h)^\top M_h (\delta-\Delta_h)}}
    {\sum_{\delta' \in \mathbb{Z}^2} e^{-(\delta'-\Delta_h)^\top M_h
    (\delta'-\Delta_h)}}
    $$

    The kernel shows what a trained layer does; its centers alone do not, because the
    $W^{(h)}$ of soft heads that overlap, of either sign, can undo the overlap.

    Args:
        layer: The layer, trained or not.
        size: Rows and columns of the window around the query, an odd number. Weight
            outside is left out, not shared out.

    Returns:
        The kernel, in the layout of `nn.Conv2d.weight`.

    Raises:
        ValueError: If `size` is even or not positive, or the layer is too flat.

    Examples:
        >>> layer = GaussianSelfAttention(
        ...     1, heads=1, centers=[(0, 1)], sharpness=math.inf, bias=False
        ... )
        >>> _ = nn.init.ones_(layer.value_weight)
        >>> effective_kernel(layer, 3)[0, 0]
        tensor([[0., 0., 0.],
                [0., 0., 1.],
                [0., 0., 0.]])
    """
    check_sizes(size=size)
    if size % 2 == 0:
        raise ValueError(f"size must be odd, to have a middle, got {size}.")
    weights = offset_weights(layer, at_least=size // 2)
    return _kernel(layer, window(weights, size))


@checked
def convolution_from_attention(
    layer: GaussianSelfAttention, *, share: float = 0.999
) -> EffectiveConvolution:
    r"""Approximate a Gaussian attention layer by a convolution, and bound the error.

    The opposite direction,
    [`attention_from_convolution`
    ][transformers_hw.attention_as_convolution.attention_from_convolution], is exact.

    The kernel is the smallest odd square that holds at least `share` of every head's
    weight. **The bound:** let $\varepsilon_h$ be the weight of head $h$ outside the
    window $B$, and let the image $A$, seen from the query, contain the window. The
    layer's weights are $p_h/p_h(A)$ on $A$, the convolution's $p_h$ on $B$. They
    differ by

    $$
    \sum_{\delta\in B} \left(\frac{p_h(\delta)}{p_h(A)} - p_h(\delta)\right)
    + \sum_{\delta\in A\setminus B} \frac{p_h(\delta)}{p_h(A)}
    = 1 - p_h(B) = \varepsilon_h,
    $$

    for every image, so output channel $e$ is off by at most
    $\max|x| \sum_h \varepsilon_h \lVert W^{(h)}_{:,e} \rVert_1$. Where the window
    leaves the image, the layer renormalizes and the convolution replicates; both
    weights sum to at most one, so 2 takes the place of $\varepsilon_h$. Hard
    heads clamp, which is replication: for them the error is zero everywhere.

    Args:
        layer: The layer, trained or not.
        share: Share of each head's weight that the window must hold, below one.

    Returns:
        The convolution, which takes images channels first, and the bounds.

    Raises:
        ValueError: If `share` is not between zero and one, or the layer is so flat
            that the kernel would be larger than a thousand pixels.

    Examples:
        >>> layer = GaussianSelfAttention(3, heads=2, centers=[(0, 0), (1, -1)])
        >>> conv, interior_error, border_error = convolution_from_attention(layer)
        >>> conv.kernel_size
        (9, 9)
    """
    if not 0.0 < share < 1.0:
        raise ValueError(f"share must be between 0 and 1, got {share}.")
    weights = offset_weights(layer, at_least=0)
    size = 1
    while bool((_mass_inside(weights, size) < share).any()) and size < weights.shape[1]:
        size += 2
    conv = nn.Conv2d(
        layer.dim,
        layer.output_dim,
        size,
        padding=size // 2,
        padding_mode="replicate",
        bias=layer.bias is not None,
        device=layer.value_weight.device,
        dtype=layer.value_weight.dtype,
    )
    with torch.no_grad():
        conv.weight.copy_(_kernel(layer, window(weights, size)))
        if conv.bias is not None and layer.bias is not None:
            conv.bias.copy_(layer.bias)
    norms = reduce(layer.value_weight.detach().abs(), "h d e -> h e", "sum")
    outside = (1.0 - _mass_inside(weights, size)).clamp(min=0.0).to(norms.dtype)
    anywhere = torch.full_like(outside, 0.0 if layer.hard else 2.0)
    return EffectiveConvolution(
        conv,
        einsum(outside, norms, "h, h e -> e"),
        einsum(anywhere, norms, "h, h e -> e"),
    )


def offset_weights(
    layer: GaussianSelfAttention, *, at_least: int
) -> Float[Tensor, "heads side side"]:
    """Return the weights of the middle pixel of an image that is large enough."""
    exact = copy.deepcopy(layer).double()
    reach = float(exact.head_centers().detach().abs().max()) + 1.0
    if not layer.hard:
        reach += math.sqrt(45.0 / _least_curvature(exact))
    radius = max(at_least, math.ceil(reach))
    if radius > LARGEST_RADIUS:
        raise ValueError(
            f"the layer's weights must lie within {LARGEST_RADIUS} pixels of the "
            f"query, got heads that reach {radius}."
        )
    side, middle = 2 * radius + 1, slice(radius, radius + 1)
    with torch.no_grad():
        weights = exact.weights(side, side, queries=(middle, middle))
    return rearrange(weights, "h 1 1 k l -> h k l")


@torch.no_grad()
def _least_curvature(layer: GaussianSelfAttention) -> float:
    first, second = layer.alphas()
    if layer.shear is None:
        return float(torch.minimum(first, second).min())
    # det M / trace M is below the smaller eigenvalue, and near it when M is flat.
    trace = first + second + layer.shear.square()
    return float((first * second / trace).min())


def _mass_inside(weights: Tensor, size: int) -> Float[Tensor, " heads"]:
    return reduce(window(weights, size), "h k l -> h", "sum")


def window(weights: Tensor, size: int) -> Float[Tensor, "heads size size"]:
    """Return the middle of square maps, such as those of `offset_weights`."""
    start = (weights.shape[1] - size) // 2
    return weights[:, start : start + size, start : start + size]


def _kernel(layer: GaussianSelfAttention, weights: Tensor) -> Tensor:
    values = layer.value_weight.detach()
    kernel = einsum(weights, values.double(), "h k l, h d e -> e d k l")
    return kernel.to(values.dtype)
