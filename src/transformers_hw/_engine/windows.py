"""Attention within a window, block by block, at a cost that grows with the length."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

# Blocks shorter than this are not worth their overhead.
SHORTEST_BLOCK = 64


def in_blocks(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    window: int | None,
    sinks: int,
) -> bool:
    """Tell whether blocks can be cut, and spare more than half of the scores."""
    for_all = bias is None and (mask is None or mask.shape[-2] == 1)
    # While a compiler traces, lengths may be symbols.
    if window is None or window < 1 or not for_all or torch.compiler.is_compiling():
        return False
    block = max(window, SHORTEST_BLOCK)
    enough = key.shape[-2] > 2 * (block + 2 * window + sinks)
    return enough and query.shape[-2] > block and sinks >= 0


def attend_in_blocks(
    attend: Callable[..., Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    causal: bool,
    window: int,
    sinks: int,
) -> Tensor:
    """Cut queries into blocks, and let each attend to the keys in its reach.

    The block of queries i, …, i + n - 1 reaches the keys from i - w + 1 on: up to
    i + n - 1 if causal, else up to i + n + w - 2. Sinks are appended to every block.

    Args:
        attend: Attention of `(query, key, value, mask=)`, with any leading axes.
        query: Queries, with any leading axes.
        key: Keys; the last is aligned with the last query.
        value: Values.
        mask: Which keys may be seen, the same for all queries: `(..., 1, #k)`.
        causal: Whether later keys are hidden.
        window: w, how many keys a query reaches to each side, itself included.
        sinks: How many of the first keys every query sees, too.
    """
    near = {"causal": causal, "window": window, "sinks": sinks}
    if query.ndim == 2:
        query, key, value = (rearrange(x, "n d -> 1 n d") for x in (query, key, value))
        return attend_in_blocks(attend, query, key, value, mask, **near)[0]
    (*batch, queries, _), keys = query.shape, key.shape[-2]
    block = max(window, SHORTEST_BLOCK)
    blocks = -(-queries // block)
    reach = block + (window - 1) * (1 if causal else 2)
    first = keys - queries - (window - 1)
    # Negative padding crops.
    ends = (-first, first + (blocks - 1) * block + reach - keys)

    def cut(x: Tensor) -> Tensor:
        padded = F.pad(x, (0, 0, *ends))
        return rearrange(
            padded.unfold(-2, reach, block), "... blocks d k -> ... blocks k d"
        )

    ones = [1] * len(batch)
    visible = torch.ones(*ones, 1, keys, dtype=torch.bool, device=query.device)
    visible = visible if mask is None else visible & mask
    columns = rearrange(visible, "... 1 k -> ... k 1")
    in_reach = rearrange(cut(columns), "... blocks k 1 -> ... blocks 1 k")
    at = torch.arange(block, device=query.device)[:, None]
    ahead = torch.arange(reach, device=query.device) - (window - 1) - at
    seen = in_reach & (ahead > -window) & (ahead < (1 if causal else window))
    rows = [cut(key), cut(value)]
    if sinks:
        positions = torch.arange(blocks * block, device=query.device) + keys - queries
        positions = rearrange(positions, "(blocks i) -> blocks i 1", blocks=blocks)
        ahead = torch.arange(sinks, device=query.device) - positions
        far = ahead <= -window if causal else abs(ahead) >= window
        extra = far & rearrange(visible[..., :sinks], "... 1 s -> ... 1 1 s")
        extra = extra.expand(*seen.shape[:-1], sinks)
        seen = torch.cat([seen, extra], dim=-1)
        rows = [
            torch.cat([x, y[..., None, :sinks, :].expand(*batch, blocks, -1, -1)], -2)
            for x, y in zip(rows, (key, value), strict=True)
        ]
    cut_queries = F.pad(query, (0, 0, 0, blocks * block - queries))
    cut_queries = rearrange(
        cut_queries, "... (blocks i) d -> ... blocks i d", blocks=blocks
    )
    # Blocks join the batch: the fused kernel takes four axes, and heads share the mask.
    axes = "... h blocks i d -> (... blocks) h i d"
    seen = seen.expand(*batch[:-1], *seen.shape[-4:])
    inputs = (rearrange(x, axes) for x in (cut_queries, *rows))
    output = attend(*inputs, mask=rearrange(seen, axes))
    output = output.unflatten(0, (*batch[:-1], blocks))
    output = rearrange(output, "... blocks h i d -> ... h (blocks i) d")
    return output[..., :queries, :]
