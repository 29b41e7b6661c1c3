r"""The convolution that an attention layer is, read off its heads.

Far from the border, a Gaussian layer is a convolution with the taps
$\sum_h p_h(\delta) W^{(h)}$, and a finite window holds nearly all of them.
"""

import copy
import math
from typing import NamedTuple

import torch
from einops import einsum, rearrange, reduce
from jaxtyping import Float
from torch import Tensor, nn

from transformers_hw._checks import check_sizes
from transformers_hw.attention_as_convolution.gaussian import GaussianSelfAttention

# Past this, a layer is so flat that its convolution would be no use to anyone.
LARGEST_RADIUS = 500


class EffectiveConvolution(NamedTuple):
    r"""A convolution in the place of an attention layer, and how far off it can be.

    Both bounds are per output channel, for pictures with $|x| \le 1$; for others they
    scale with $\max |x|$.

    Attributes:
        convolution: It pads by replication, and keeps a picture's size.
        interior_error: Holds at pixels whose window lies within the picture.
        border_error: Holds at all pixels.
    """

    convolution: nn.Conv2d
    interior_error: Float[Tensor, " e"]
    border_error: Float[Tensor, " e"]


def effective_kernel(
    layer: GaussianSelfAttention, size: int
) -> Float[Tensor, "e d size size"]:
    r"""Read the kernel of the convolution that a Gaussian layer is, off the border.

    $$
    T_\delta = \sum_h p_h(\delta)\, W^{(h)}, \qquad
    p_h(\delta) = \frac{e^{-(\delta-\Delta_h)^\top M_h (\delta-\Delta_h)}}
    {\sum_{\delta' \in \mathbb{Z}^2} e^{-(\delta'-\Delta_h)^\top M_h
    (\delta'-\Delta_h)}}
    $$

    Look at this, rather than at the centres, to see what a trained layer does: soft
    heads that overlap can be un-mixed by their $W^{(h)}$, of either sign.

    Args:
        layer: The layer, trained or not.
        size: Rows and columns of the window around the query, an odd number. What
            lies outside is left out, not shared out.

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
    weights = _window(_offset_weights(layer, at_least=size // 2), size)
    return _kernel(layer, weights)


def convolution_from_attention(
    layer: GaussianSelfAttention, *, share: float = 0.999
) -> EffectiveConvolution:
    r"""Give the convolution that comes close to a Gaussian layer, and the error.

    The kernel is the smallest odd square that holds at least `share` of every head's
    weight. **The bound:** let $\varepsilon_h$ be what head $h$ has outside the window
    $B$, and let the picture $A$, seen from the query, hold the window. The layer's
    weights are $p_h/p_h(A)$ on $A$, the convolution's $p_h$ on $B$. They differ by

    $$
    \sum_{\delta\in B} \left(\frac{p_h(\delta)}{p_h(A)} - p_h(\delta)\right)
    + \sum_{\delta\in A\setminus B} \frac{p_h(\delta)}{p_h(A)}
    = 1 - p_h(B) = \varepsilon_h,
    $$

    whatever the picture, so that output channel $e$ is off by at most
    $\max|x| \sum_h \varepsilon_h \lVert W^{(h)}_{:,e} \rVert_1$. Where the window
    leaves the picture, the layer renormalises and the convolution replicates; both
    weights sum to at most one, so that 2 takes the place of $\varepsilon_h$. Hard
    heads clamp, which is replication: for them the error is zero everywhere.

    Args:
        layer: The layer, trained or not.
        share: How much of each head's weight the window must hold, below one.

    Returns:
        The convolution, which takes pictures channels first, and the bounds.

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
    weights = _offset_weights(layer, at_least=0)
    size = 1
    while bool((_held(weights, size) < share).any()) and size < weights.shape[1]:
        size += 2
    _, dim, output_dim = layer.value_weight.shape
    conv = nn.Conv2d(
        dim,
        output_dim,
        size,
        padding=size // 2,
        padding_mode="replicate",
        bias=layer.bias is not None,
        device=layer.value_weight.device,
        dtype=layer.value_weight.dtype,
    )
    with torch.no_grad():
        conv.weight.copy_(_kernel(layer, _window(weights, size)))
        if conv.bias is not None and layer.bias is not None:
            conv.bias.copy_(layer.bias)
    scale = reduce(layer.value_weight.detach().abs(), "h d e -> h e", "sum")
    outside = (1.0 - _held(weights, size)).clamp(min=0.0).to(scale.dtype)
    anywhere = torch.zeros_like(outside) if layer.hard else 2 * torch.ones_like(outside)
    return EffectiveConvolution(
        conv,
        einsum(outside, scale, "h, h e -> e"),
        einsum(anywhere, scale, "h, h e -> e"),
    )


def _offset_weights(
    layer: GaussianSelfAttention, *, at_least: int
) -> Float[Tensor, "heads side side"]:
    # A picture so large that what is left of any head beyond it is below rounding.
    exact = copy.deepcopy(layer).double()
    reach = float(exact.head_centers().detach().abs().max()) + 1.0
    if exact.log_sharpness is not None:
        reach += math.sqrt(45.0 / _least_curvature(exact))
    radius = max(at_least, math.ceil(reach))
    if radius > LARGEST_RADIUS:
        raise ValueError(
            f"the layer's weights must lie within {LARGEST_RADIUS} pixels of the "
            f"query, got heads that reach {radius}."
        )
    middle = slice(radius, radius + 1)
    with torch.no_grad():
        weights = exact.weights(
            2 * radius + 1, 2 * radius + 1, queries=(middle, middle)
        )
    return rearrange(weights, "h 1 1 k l -> h k l")


def _least_curvature(layer: GaussianSelfAttention) -> float:
    first, second = (a.detach() for a in layer._alphas())
    if layer.shear is None:
        return float(torch.minimum(first, second).min())
    # det(LLᵀ) / trace(LLᵀ) is below the smaller eigenvalue, and near it when flat.
    trace = first + second + layer.shear.detach().square()
    return float((first * second / trace).min())


def _held(weights: Tensor, size: int) -> Tensor:
    return reduce(_window(weights, size), "h k l -> h", "sum")


def _window(weights: Tensor, size: int) -> Tensor:
    start = (weights.shape[1] - size) // 2
    return weights[:, start : start + size, start : start + size]


def _kernel(layer: GaussianSelfAttention, weights: Tensor) -> Tensor:
    values = layer.value_weight.detach()
    kernel = einsum(weights, values.double(), "h k l, h d e -> e d k l")
    return kernel.to(values.dtype)
