"""Heads of queries that share keys and values."""

from collections.abc import Callable
from typing import Any

import torch
from einops import rearrange, repeat
from torch import Tensor

from transformers_hw._engine.kernels import intersect


def attend_in_groups(
    attend: Callable[..., Any],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    **options: Any,
) -> Any:
    """Attend with each head of keys and values serving several heads of queries.

    Args:
        attend: `dot_product_attention`.
        query: `(b, heads, q, d)`.
        key: `(b, groups, k, d)`, where the groups divide the heads.
        value: `(b, groups, k, v)`.
        **options: Keywords of `attend`.

    Returns:
        What `attend` returns of heads with keys and values of their own.
    """
    size = query.shape[1] // key.shape[1]
    if size == 1:
        return attend(query, key, value, **options)
    if query.shape[2] == 1:
        return _attend_as_queries(attend, query, key, value, size, **options)
    key, value = (repeat(x, "b g k d -> b (g r) k d", r=size) for x in (key, value))
    return attend(query, key, value, **options)


def _attend_as_queries(
    attend: Callable[..., Any],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    size: int,
    *,
    mask: Tensor | None,
    bias: Tensor | None,
    causal: bool,
    window: int | None,
    sinks: int,
    **options: Any,
) -> Any:
    """Let one query of several heads be several queries of one head.

    Nothing of the keys is copied, which is what makes decoding fast. The last query
    sees all keys under a causal mask, but for its window.
    """
    keys = key.shape[2]
    if window is not None:
        at = torch.arange(keys, device=key.device)
        near = (at > keys - 1 - window) | (at < sinks)
        mask = intersect(mask, rearrange(near, "k -> 1 k"))

    def folded(x: Tensor | None) -> Tensor | None:
        if x is None or x.ndim < 3 or x.shape[-3] == 1:
            return x
        return rearrange(x, "... (g r) 1 k -> ... g r k", r=size)

    found = attend(
        rearrange(query, "b (g r) 1 d -> b g r d", r=size),
        key,
        value,
        mask=folded(mask),
        bias=folded(bias),
        **options,
    )
    unfold = "b g r d -> b (g r) 1 d"
    if isinstance(found, tuple):
        return tuple(rearrange(x, unfold) for x in found)
    return rearrange(found, unfold)
