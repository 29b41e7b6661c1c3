"""Read the weights of attention that PyTorch computes without showing them."""

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from transformers_hw._engine.kernels import autocast_off, softmax_or_zero, widen


class AttentionRecorder(TorchFunctionMode):
    """Hand on the weights of every attention that this thread computes meanwhile.

    It reads `scaled_dot_product_attention` and `multi_head_attention_forward`, which
    `nn.MultiheadAttention` calls. The calls themselves go on as they are. While any
    such mode is active, PyTorch takes none of the shortcuts that skip both functions.

    Args:
        record: Called with the weights, before dropout and without a graph.
    """

    def __init__(self, record: Callable[[Tensor], None]) -> None:
        super().__init__()
        self.record = record

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Record the weights of a call, and make it."""
        options = dict(kwargs or {})
        output = func(*args, **options)
        if func is F.scaled_dot_product_attention:
            self.record(_weights(*args, **options))
        elif func is F.multi_head_attention_forward:
            self.record(_module_weights(output[0], args, options))
        return output


@torch.no_grad()
def _weights(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Return the weights of `scaled_dot_product_attention`, called like this."""
    with autocast_off(query):
        query, key = (widen(x.detach()) for x in (query, key))
        if enable_gqa:
            key = key.repeat_interleave(query.shape[-3] // key.shape[-3], dim=-3)
        scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        scores = scale * (query @ key.mT)
        # torch.nn.attention.bias.CausalBias, which would import the compiler.
        if (materialize := getattr(attn_mask, "_materialize", None)) is not None:
            attn_mask = materialize(query.device)
        if is_causal:  # PyTorch aligns the first query with the first key.
            attn_mask = torch.ones_like(scores, dtype=torch.bool).tril()
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, -math.inf)
        elif attn_mask is not None:
            scores = scores + attn_mask.detach()
        return softmax_or_zero(scores, sure=attn_mask is None)


@torch.no_grad()
def _module_weights(
    output: Tensor, args: tuple[Any, ...], options: dict[str, Any]
) -> Tensor:
    """Return the weights of `multi_head_attention_forward`: `(b, heads, q, k)`.

    It is asked a second time, without dropout, and now for the weights of each head.
    """
    call = _signature().bind(*args, **options)
    batched = call.arguments["query"].dim() == 3
    call.arguments |= {
        "training": False,
        "need_weights": True,
        "average_attn_weights": False,
    }
    with torch._C.DisableTorchFunction():
        result: Any = F.multi_head_attention_forward(*call.args, **call.kwargs)
        weights: Tensor = result[1]
        # A query that sees no key has NaN here, and zero in the fused kernel.
        if output.isfinite().all():
            weights = weights.nan_to_num(0.0)
    return weights if batched else weights[None]


@functools.cache
def _signature() -> inspect.Signature:
    return inspect.signature(F.multi_head_attention_forward)
