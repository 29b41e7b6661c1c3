"""Precision, queries that see no key, and PyTorch's fused attention."""

import math
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor

HALF_PRECISIONS = (torch.float16, torch.bfloat16)


def autocast_off(x: Tensor) -> AbstractContextManager[object]:
    """Turn autocast off on the device of `x`, if it is on.

    Scores of half-precision rows overflow long before their softmax does.
    """
    device = x.device.type
    if torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()


def widen(x: Tensor) -> Tensor:
    """Turn half precision into float32; wider types stay as they are."""
    return x.float() if x.dtype in HALF_PRECISIONS else x


def keep_maxima(scores: Tensor, mask: Tensor | None, bias: Tensor | None) -> Tensor:
    """Return zero where a visible score is its row's largest, and -inf elsewhere."""
    if not scores.shape[-1]:
        return scores
    if bias is not None:
        mask = intersect(mask, bias > -math.inf)
    visible = hide(scores, mask).detach()
    behind = visible - visible.amax(dim=-1, keepdim=True)
    return hide(behind.masked_fill(behind < 0, -math.inf), mask)


def softmax_or_zero(logits: Tensor, *, sure: bool) -> Tensor:
    """Apply softmax to each row; a row of -inf gives zeros.

    The softmax of such a row would be NaN, and so would the gradients of all others.
    If it is `sure` that there is none, nobody looks for it.
    """
    if sure:
        return logits.softmax(dim=-1)
    blind = (logits == -math.inf).all(dim=-1, keepdim=True)
    return logits.masked_fill(blind, 0.0).softmax(dim=-1).masked_fill(blind, 0.0)


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
    plain = causal and queries == keys and mask is None and bias is None
    if causal and not plain and queries > 1:
        ones = torch.ones(queries, keys, dtype=torch.bool, device=query.device)
        mask = intersect(mask, ones.tril(keys - queries))
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask if bias is None else hide(bias, mask).to(query.dtype),
        dropout_p=dropout,
        is_causal=plain,
        scale=scale,
    )


def hide(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Set the scores that a mask hides to -inf."""
    return scores if mask is None else scores.masked_fill(~mask, -math.inf)


def intersect(mask: Tensor | None, other: Tensor | None) -> Tensor | None:
    """Let a query see a key only where both masks do; `None` shows everything."""
    if mask is None or other is None:
        return other if mask is None else mask
    return mask & other
