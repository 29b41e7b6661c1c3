r"""Attention: a query asks, keys are compared with it, values are averaged.

Rows are tokens here, as in PyTorch: $Q \in \mathbb{R}^{q\times d}$,
$K \in \mathbb{R}^{k\times d}$, $V \in \mathbb{R}^{k\times v}$, and the output is

$$
H = A V, \qquad A = \operatorname{softargmax}_\beta(Q K^\top)
\in \mathbb{R}^{q\times k}.
$$

Texts that keep tokens in columns write $H^\top = V^\top A^\top$ for the same thing.

Two paths compute it and agree, gradients included: the textbook one, which
forms $A$ and can return it, and PyTorch's fused kernel, which never stores $A$.
"""

import math
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from transformers_hw._checks import (
    check_beta,
    check_dropout,
    check_float,
    check_integers,
    check_lengths,
    check_mask,
    check_one_dtype,
)

HALF_PRECISIONS = (torch.float16, torch.bfloat16)


def softargmax(
    scores: Float[Tensor, "*axes k"],
    beta: float = 1.0,
    *,
    mask: Bool[Tensor, "*#axes #k"] | None = None,
    bias: Float[Tensor, "*#axes #k"] | None = None,
) -> Float[Tensor, "*axes k"]:
    r"""Turn scores into weights that sum to one, larger scores weighing more.

    $$
    \operatorname{softargmax}_\beta(s)_j
    = \frac{m_j\, e^{\beta s_j + b_j}}{\sum_l m_l\, e^{\beta s_l + b_l}}
    $$

    With $\beta = 0$ the visible entries weigh the same (up to $e^{b}$); as
    $\beta \to \infty$ only the largest remain. `beta=math.inf` gives that limit
    exactly: entries that tie for the maximum share the weight, in proportion to
    $e^{b_j}$, hence equally without a bias. It is piecewise constant, so its
    gradient with respect to the scores is zero.

    Half-precision scores are exponentiated and normalised in float32.

    Args:
        scores: $s$; the last axis is normalised.
        beta: $\beta \ge 0$, the inverse temperature; it may be infinite.
        mask: $m$; where `True` (one), the entry is visible. A row that sees
            nothing gets all-zero weights.
        bias: $b$, added to the scaled scores. $-\infty$ hides an entry.

    Returns:
        Weights of the shape and type of `scores`.

    Raises:
        TypeError: If `mask` is not boolean or `bias` not floating-point.
        ValueError: If `beta` is negative or not a number, or if `mask` or
            `bias` does not broadcast to `scores`.

    Examples:
        >>> scores = torch.tensor([1.0, 3.0, 3.0])
        >>> softargmax(scores, 0.0)
        tensor([0.3333, 0.3333, 0.3333])
        >>> softargmax(scores, math.inf)
        tensor([0.0000, 0.5000, 0.5000])
        >>> softargmax(scores, mask=torch.tensor([True, False, False]))
        tensor([1., 0., 0.])

    References:
        LeCun calls the usual "softmax" a softargmax, since its limit points at
        the maximum; [`torch.nn.Softmax`][torch.nn.Softmax] is the case
        $\beta = 1$.
    """
    check_float("scores", scores, "...", "k")
    check_beta("beta", beta)
    _check_mask_and_bias(mask, bias, scores.shape, least_axes=1)
    logits = scores.float() if scores.dtype in HALF_PRECISIONS else scores
    if beta == math.inf:
        if bias is not None:
            mask = bias > -math.inf if mask is None else mask & (bias > -math.inf)
        shown = _hide(logits, mask).detach()
        behind = shown - shown.amax(dim=-1, keepdim=True)
        logits = behind.masked_fill(behind < 0, -math.inf)
    elif beta != 1.0:
        logits = beta * logits
    if bias is not None:
        logits = logits + bias
    logits = _hide(logits, mask)
    if mask is None and bias is None:
        return logits.softmax(dim=-1).to(scores.dtype)
    # Softmax of a row of -inf is NaN, and its gradient would spoil other rows too.
    blind = (logits == -math.inf).all(dim=-1, keepdim=True)
    weights = logits.masked_fill(blind, 0.0).softmax(dim=-1)
    return weights.masked_fill(blind, 0.0).to(scores.dtype)


def attention_weights(
    query: Float[Tensor, "*batch q d"],
    key: Float[Tensor, "*batch k d"],
    *,
    mask: Bool[Tensor, "*#batch #q #k"] | None = None,
    bias: Float[Tensor, "*#batch #q #k"] | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Float[Tensor, "*batch q k"]:
    r"""Say how much each query looks at each key.

    $$
    A = \operatorname{softargmax}\!\left(\beta\, Q K^\top + B\right),
    \qquad \beta = 1/\sqrt{d} \text{ by default}
    $$

    If the entries of a query and a key are independent with mean 0 and variance
    1, their product has variance $d$; dividing by $\sqrt d$ keeps the scores of
    order one, where softargmax has gradients.

    The arguments are those of
    [`attention`][transformers_hw.attention.attention].

    Args:
        query: $Q$, one row per question asked.
        key: $K$, one row per item that can answer.
        mask: Where `True`, that query may see that key.
        bias: $B$, added to the scaled scores.
        causal: Hide later keys from earlier queries.
        scale: $\beta$; `math.inf` is hard attention.

    Returns:
        $A$, whose rows sum to one, or to zero where a query sees no key.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If shapes do not fit together, or $\beta$ is no such number.

    Examples:
        >>> attention_weights(torch.zeros(3, 4), torch.ones(3, 4), causal=True)
        tensor([[1.0000, 0.0000, 0.0000],
                [0.5000, 0.5000, 0.0000],
                [0.3333, 0.3333, 0.3333]])
    """
    _check_query_and_key(query, key)
    if mask is not None or bias is not None:
        scores = (*query.shape[:-1], key.shape[-2])
        _check_mask_and_bias(mask, bias, scores, least_axes=2)
    return _weights(query, key, mask, bias, scale, causal=causal)


def attention(
    query: Float[Tensor, "*batch q d"],
    key: Float[Tensor, "*batch k d"],
    value: Float[Tensor, "*batch k v"],
    *,
    mask: Bool[Tensor, "*#batch #q #k"] | None = None,
    bias: Float[Tensor, "*#batch #q #k"] | None = None,
    causal: bool = False,
    scale: float | None = None,
    dropout: float = 0.0,
    return_weights: bool = False,
) -> tuple[Float[Tensor, "*batch q v"], Float[Tensor, "*batch q k"] | None]:
    r"""Average the values, weighted by how well each key matches the query.

    $$
    H = A V, \qquad
    A = \operatorname{softargmax}\!\left(\beta\, Q K^\top + B\right),
    \qquad \beta = 1/\sqrt{d} \text{ by default}
    $$

    The rows of $A$ are nonnegative and sum to one, so every output is a convex
    combination of values: $\beta \to 0$ averages the visible values,
    $\beta \to \infty$ selects one.

    A masked key and its value have no influence, not in the last bit, whatever
    finite numbers they hold. NaN and infinities are not hidden: as in PyTorch,
    a masked value is weighted by zero, and $0 \cdot \mathrm{NaN}$ is NaN. (The
    `padding_mask` of
    [`MultiHeadAttention`][transformers_hw.multi_head_attention.MultiHeadAttention]
    hides even those.)

    Args:
        query: $Q$, one row per question asked.
        key: $K$, one row per item that can answer.
        value: $V$, what each item answers with.
        mask: Where `True`, that query may see that key. A query that sees no
            key gets a zero output, never NaN.
        bias: $B$, added to the scaled scores; relative positions enter here.
        causal: Let a query see only keys up to its own position, where the
            last query stands at the last key (see
            [`causal_mask`][transformers_hw.attention.causal_mask]).
        scale: $\beta \ge 0$, the inverse temperature; `math.inf` is hard
            attention, in which keys that tie share.
        dropout: Probability of dropping a weight. It acts whenever it is not
            zero: a module passes zero when it is not training.
        return_weights: Compute $A$ explicitly and return it. Otherwise
            PyTorch's fused kernel runs, which need not store $A$, but may have no
            second derivative: see `torch.nn.attention.sdpa_kernel` for another.

    Returns:
        The output $H$, and the weights $A$ before dropout, or `None`.

    Raises:
        TypeError: If an argument has the wrong type, such as an integer mask.
        ValueError: If shapes do not fit together, or a number is out of range.

    Examples:
        Two keys, the query matching the second far better:

        >>> query, key = torch.tensor([[0.0, 9.0]]), torch.eye(2)
        >>> value = torch.tensor([[10.0], [20.0]])
        >>> output, weights = attention(query, key, value, return_weights=True)
        >>> weights
        tensor([[0.0017, 0.9983]])
        >>> output
        tensor([[19.9828]])

    References:
        Vaswani et al. (2017), [Attention Is All You Need
        ](https://arxiv.org/abs/1706.03762), section 3.2.1.
    """
    _check_query_and_key(query, key)
    _check_value(value, key)
    if mask is not None or bias is not None:
        scores = (*query.shape[:-1], key.shape[-2])
        _check_mask_and_bias(mask, bias, scores, least_axes=2)
    check_dropout(dropout)
    if return_weights or scale == math.inf:
        weights = _weights(query, key, mask, bias, scale, causal=causal)
        weights = weights.to(value.dtype)
        kept = F.dropout(weights, dropout) if dropout else weights
        return kept @ value, weights if return_weights else None
    # The kernel aligns the first query with the first key; for equal lengths,
    # and only then, that is also our alignment of the last with the last.
    square = causal and query.shape[-2] == key.shape[-2]
    plainly_causal = square and mask is None and bias is None
    if causal and not plainly_causal and query.shape[-2] > 1:
        mask = _causal_and(mask, query, key)
    output = F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask if bias is None else _hide(bias, mask).to(query.dtype),
        dropout_p=dropout,
        is_causal=plainly_causal,
        scale=_beta(scale, width=query.shape[-1]),
    )
    return output, None


def causal_mask(
    queries: int, keys: int | None = None, *, device: torch.device | str | None = None
) -> Bool[Tensor, "queries keys"]:
    r"""Let each query see the keys up to its own position.

    $$m_{ij} = \text{True} \iff j \le i + (k - q)$$

    The last query is aligned with the last key, so that the queries can be the
    newest rows of a longer history, as in step-by-step decoding. With more
    queries than keys, the first $q - k$ queries see nothing.

    Args:
        queries: Number of queries $q$.
        keys: Number of keys $k$, or `None` for as many as queries.
        device: Where to put the mask.

    Returns:
        The mask, `True` where a query may see a key.

    Raises:
        ValueError: If a number is negative.

    Examples:
        >>> causal_mask(2, 4).int()
        tensor([[1, 1, 1, 0],
                [1, 1, 1, 1]], dtype=torch.int32)
    """
    keys = queries if keys is None else keys
    check_lengths(queries=queries, keys=keys)
    last = torch.arange(queries, device=device) + (keys - queries)
    return torch.arange(keys, device=device) <= rearrange(last, "q -> q 1")


def padding_mask(
    lengths: Int[Tensor, "*batch"], length: int | None = None
) -> Bool[Tensor, "*batch length"]:
    """Mark the real tokens of sequences that are padded to a common length.

    Args:
        lengths: How many real tokens each sequence begins with.
        length: The common length, or `None` for the longest of `lengths`.

    Returns:
        The mask, `True` for a real token. For
        [`attention`][transformers_hw.attention.attention] over batches it needs
        axes for the queries (and heads):
        `rearrange(mask, "b k -> b 1 1 k")`.

    Raises:
        TypeError: If `lengths` is not an integer tensor.
        ValueError: If a length is negative or exceeds `length`.

    Examples:
        >>> padding_mask(torch.tensor([1, 3])).int()
        tensor([[1, 0, 0],
                [1, 1, 1]], dtype=torch.int32)
    """
    check_integers("lengths", lengths, "...")
    longest = int(lengths.max()) if lengths.numel() else 0
    length = longest if length is None else length
    if longest > length or (lengths.numel() and int(lengths.min()) < 0):
        raise ValueError(
            f"lengths must be between 0 and the common length {length}, "
            f"got {lengths.tolist()}."
        )
    positions = torch.arange(length, device=lengths.device)
    return positions < rearrange(lengths, "... -> ... 1")


def _weights(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    scale: float | None,
    *,
    causal: bool,
) -> Tensor:
    beta = _beta(scale, width=query.shape[-1])
    if causal:
        mask = _causal_and(mask, query, key)
    hard = beta == math.inf
    # Products of half-precision rows overflow long before their softargmax does,
    # and autocast would turn them into half precision again.
    with _exactly(query.device.type):
        if query.dtype in HALF_PRECISIONS:
            query, key = query.float(), key.float()
        # Heads are views of wider rows, which products would copy more slowly; a name
        # for the copies would keep them longer than they are needed.
        scores = (
            (1.0 if hard else beta)
            * query.contiguous()
            @ rearrange(key.contiguous(), "... k d -> ... d k")
        )
        if mask is None and bias is None and not hard and _may_overwrite():
            return torch.softmax(scores, dim=-1, out=scores)
        return softargmax(scores, beta if hard else 1.0, mask=mask, bias=bias)


def _exactly(device: str) -> AbstractContextManager[object]:
    if torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()


def _may_overwrite() -> bool:
    """Say whether nothing asks again for a tensor that a function made itself.

    That holds in inference mode. A compiler finds it out without being told, and
    could not trace the question.
    """
    return not torch.compiler.is_compiling() and torch.is_inference_mode_enabled()


def _hide(scores: Tensor, mask: Tensor | None) -> Tensor:
    return scores if mask is None else scores.masked_fill(~mask, -math.inf)


def _causal_and(mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor:
    causal = causal_mask(query.shape[-2], key.shape[-2], device=query.device)
    return causal if mask is None else causal & mask


def _beta(scale: float | None, *, width: int) -> float:
    if scale is None:
        return 1.0 / math.sqrt(width)
    check_beta("scale", scale)
    return scale


def _check_query_and_key(query: Tensor, key: Tensor) -> None:
    check_float("query", query, "...", "q", "d")
    check_float("key", key, "...", "k", "d")
    *batch, _, width = query.shape
    *same, _, as_wide = key.shape
    if batch != same or width != as_wide:
        raise ValueError(
            "query (..., q, d) and key (..., k, d) must agree in all but their "
            f"lengths, got {tuple(query.shape)} and {tuple(key.shape)}."
        )
    if width == 0:
        raise ValueError(f"query must have a width, got shape {tuple(query.shape)}.")
    check_one_dtype(query=query, key=key)


def _check_value(value: Tensor, key: Tensor) -> None:
    check_float("value", value, "...", "k", "v")
    if value.shape[:-1] != key.shape[:-1]:
        raise ValueError(
            "key (..., k, d) and value (..., k, v) must agree in all but their "
            f"widths, got {tuple(key.shape)} and {tuple(value.shape)}."
        )
    check_one_dtype(key=key, value=value)


def _check_mask_and_bias(
    mask: Tensor | None,
    bias: Tensor | None,
    shape: tuple[int, ...],
    *,
    least_axes: int,
) -> None:
    if mask is not None:
        check_mask("mask", mask, "may see; numbers to add to the scores are a bias")
    if bias is not None:
        check_float("bias", bias, "...")
    for name, x in (("mask", mask), ("bias", bias)):
        if x is None:
            continue
        aligned = zip(reversed(x.shape), reversed(shape), strict=False)
        fits = all(size in (1, wanted) for size, wanted in aligned)
        if not fits or not least_axes <= x.dim() <= len(shape):
            raise ValueError(
                f"{name} must have at least {least_axes} axes and broadcast to the "
                f"scores' shape {tuple(shape)}, got {tuple(x.shape)}."
            )
