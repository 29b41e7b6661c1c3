"""Precision, queries that see no key, and PyTorch's fused attention."""

import math
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor

HALF_PRECISIONS = (torch.float16, torch.bfloat16)
# Products with larger scales may overflow, and float32 takes their inverses for zero.
LARGE_SCALE = 1e15
# PyTorch's kernel may multiply queries and keys by the root of the scale; in float32 a
# larger one parts keys whose scores are equal.
LARGEST_FUSED_SCALE = 1e3
# How far from zero the rows of a bias must lie, and may lie, to be shifted there.
BIASES_TO_SHIFT = (100.0, 1e20)


def autocast_off(x: Tensor) -> AbstractContextManager[object]:
    """Turn autocast off on the device of `x`, if it is on.

    Scores of half-precision rows overflow long before their softmax does.
    """
    device = x.device.type
    # Tensors without data have no autocast to ask about.
    if device != "meta" and torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()


def autocast_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype that autocast gives to products with `x`."""
    device = x.device.type
    if torch.is_autocast_enabled(device) and x.dtype != torch.float64:
        return torch.get_autocast_dtype(device)
    return x.dtype


def widen(x: Tensor) -> Tensor:
    """Turn half precision into float32; wider types stay as they are."""
    return x.float() if x.dtype in HALF_PRECISIONS else x


def exact_dtype(device: torch.device | str | None) -> torch.dtype:
    """Return the widest dtype of a device, for angles of far positions."""
    # In float32 the angle of position one million is off by 0.06 radians. Apple's
    # GPUs have nothing better.
    on_apple = device is not None and torch.device(device).type == "mps"
    return torch.float32 if on_apple else torch.float64


def cap(scores: Tensor, scale: float, softcap: float | None) -> tuple[Tensor, float]:
    """Scale scores and bound them by a soft cap, if there is one.

    Returns:
        The scores, and the scale that is still to be applied.
    """
    if softcap is None:
        return scores, scale
    ratio = min(scale / softcap, torch.finfo(scores.dtype).max)
    return softcap * torch.tanh(ratio * scores), 1.0


def scale_gaps(
    scores: Tensor, scale: float, mask: Tensor | None, bias: Tensor | None
) -> Tensor:
    """Scale how far each visible score lies below the largest of its row.

    Softmax does not see the shift, and no product overflows to infinity. An infinite
    scale gives zero at the maxima and -inf elsewhere, without a gradient.
    """
    if not scores.shape[-1]:
        return scores
    if bias is not None:
        mask = intersect(mask, bias > -math.inf)
    gaps = scores - hide(scores.detach(), mask).amax(dim=-1, keepdim=True)
    if scale == math.inf:
        scaled = gaps.detach().masked_fill(gaps < 0, -math.inf)
    else:
        limits = torch.finfo(scores.dtype)
        scaled = (min(scale, limits.max) * gaps).clamp(min=limits.min)
    return hide(scaled, mask)


def level(bias: Tensor, mask: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return the bias, -inf where hidden, with rows far from zero shifted to it.

    Softmax ignores the shift; without it, a row of -1e5 would cost the scores their
    digits in float32. Rows that swallow the scores even in float64 stay as they are.
    """
    bias = hide(bias.to(torch.promote_types(bias.dtype, dtype)), mask)
    if not bias.shape[-1]:
        return bias
    top = bias.detach().amax(dim=-1, keepdim=True)
    (near, far), size = BIASES_TO_SHIFT, top.abs()
    return bias - top.where((size > near) & (size < far), 0.0)


def softmax_or_zero(logits: Tensor, *, sure: bool) -> Tensor:
    """Apply softmax to each row; a row of -inf gives zeros.

    The softmax of such a row would be NaN, and so would the gradients of all others.
    If it is `sure` that there is none, nobody looks for it.
    """
    if sure:
        return logits.softmax(dim=-1)
    blind = (logits == -math.inf).all(dim=-1, keepdim=True)
    return logits.masked_fill(blind, 0.0).softmax(dim=-1).masked_fill(blind, 0.0)


def fusible(scale: float) -> bool:
    """Tell whether PyTorch's kernel can take the scale.

    The kernel multiplies what it has hidden, -inf, by the scale, which must not round
    to zero.
    """
    return 1.0 / LARGE_SCALE <= scale <= LARGEST_FUSED_SCALE


def fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None,
    bias: Tensor | None,
    causal: bool,
    scale: float,
    dropout: float,
) -> Tensor:
    """Compute attention by PyTorch's kernel, which need not store the weights."""
    # The kernel aligns the first query with the first key; for equal lengths,
    # and only then, that is also our alignment of the last with the last.
    queries, keys = query.shape[-2], key.shape[-2]
    plain = causal and mask is None and bias is None
    if queries != keys:  # a compiler compares symbols, and the kernel wants a bool
        plain = False
    if causal and not plain and queries > 1:
        ones = torch.ones(queries, keys, dtype=torch.bool, device=query.device)
        mask = intersect(mask, ones.tril(keys - queries))
    if mask is not None and mask.dtype != torch.bool:
        # Only while torch compiles, and checks no signature: the kernel would add it.
        raise TypeError(f"mask must be a boolean tensor, got {mask.dtype}.")
    options = {"dropout_p": dropout, "is_causal": plain, "scale": scale}
    fused = F.scaled_dot_product_attention
    if bias is None:
        return fused(query, key, value, attn_mask=mask, **options)
    # The kernel has one dtype for all, and autocast would choose that of the queries.
    # It may not hold the bias: in float16, 1e5 is infinite.
    result = autocast_dtype(query)
    wide = torch.promote_types(result, bias.dtype)
    bias = level(bias, mask, torch.promote_types(wide, torch.float32)).to(wide)
    with autocast_off(query):
        rows = (x.to(wide) for x in (query, key, value))
        return fused(*rows, attn_mask=bias, **options).to(result)


def hide(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Set the scores that a mask hides to -inf."""
    return scores if mask is None else scores.masked_fill(~mask, -math.inf)


def intersect(mask: Tensor | None, other: Tensor | None) -> Tensor | None:
    """Let a query see a key only where both masks do; `None` shows everything."""
    if mask is None or other is None:
        return other if mask is None else mask
    return mask & other
