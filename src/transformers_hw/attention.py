r"""Attention: a weighted average of values, weighted by comparing queries and keys.

Rows are tokens, as in PyTorch: $Q \in \mathbb{R}^{q\times d}$,
$K \in \mathbb{R}^{k\times d}$, $V \in \mathbb{R}^{k\times v}$, and the output is

$$
H = A V, \qquad A = \operatorname{softmax}(\beta\, Q K^\top)
\in \mathbb{R}^{q\times k},
$$

where the softmax runs over each row and the scale $\beta$ is $1/\sqrt d$ by default.
Texts that keep tokens in columns write $H^\top = V^\top A^\top$ for the same thing.

Two paths compute it and agree, gradients included: the one below, which forms $A$
and can return it, and PyTorch's fused kernel, which never stores $A$.
"""

import math
from functools import partial
from typing import Any, Literal, overload

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor

from transformers_hw._engine.arguments import (
    check_dropout,
    check_lengths,
    check_one_dtype,
    check_scale,
    check_sizes,
    check_softcap,
    check_window,
)
from transformers_hw._engine.kernels import (
    LARGE_SCALE,
    autocast_off,
    cap,
    fused_attention,
    fusible,
    hide,
    intersect,
    level,
    scale_gaps,
    softmax_or_zero,
    widen,
)
from transformers_hw._engine.shapes import checked
from transformers_hw._engine.windows import attend_in_blocks, in_blocks


def _textbook_attention(
    query: Float[Tensor, "*batch q d"],
    key: Float[Tensor, "*batch k d"],
    value: Float[Tensor, "*batch k v"],
    mask: Bool[Tensor, "*#batch #q #k"] | None,
    bias: Float[Tensor, "*#batch #q #k"] | None,
    scale: float,
    softcap: float | None,
    dropout: float,
) -> tuple[Float[Tensor, "*batch q v"], Float[Tensor, "*batch q k"]]:
    with autocast_off(query):
        scores = einsum(widen(query), widen(key), "... q d, ... k d -> ... q k")
        scores, scale = cap(scores, scale, softcap)
        weights = softmax(scores, scale, mask=mask, bias=bias).to(value.dtype)
    output = einsum(F.dropout(weights, dropout), value, "... q k, ... k v -> ... q v")
    return output, weights


@overload
def dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    return_weights: Literal[True],
    **_: Any,
) -> tuple[Tensor, Tensor]: ...
@overload
def dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    return_weights: Literal[False] = False,
    **_: Any,
) -> Tensor: ...
@checked
def dot_product_attention(
    query: Float[Tensor, "*batch q d"],
    key: Float[Tensor, "*batch k d"],
    value: Float[Tensor, "*batch k v"],
    *,
    mask: Bool[Tensor, "*#batch #q #k"] | None = None,
    bias: Float[Tensor, "*#batch #q #k"] | None = None,
    causal: bool = False,
    window: int | None = None,
    sinks: int = 0,
    scale: float | None = None,
    softcap: float | None = None,
    dropout: float = 0.0,
    return_weights: bool = False,
) -> (
    Float[Tensor, "*batch q v"]
    | tuple[Float[Tensor, "*batch q v"], Float[Tensor, "*batch q k"]]
):
    r"""Average the values, weighted by how well each key matches the query.

    $$
    H = A V, \qquad
    A = \operatorname{softmax}\!\left(\beta\, Q K^\top + B\right)
    $$

    The rows of $A$ are nonnegative and sum to one, so every output is a convex
    combination of values: $\beta = 0$ averages the visible values, and
    $\beta \to \infty$ selects one.

    A masked key and its value have no influence, to the last bit, as long as products
    with them are finite. NaN and infinities are not hidden: as in PyTorch, a masked
    value is weighted by zero, and $0 \cdot \mathrm{NaN}$ is NaN. (The `padding_mask`
    of [`MultiHeadAttention`][transformers_hw.multi_head_attention.MultiHeadAttention]
    hides even those.)

    Args:
        query: The queries $Q$, one per row.
        key: The keys $K$, which the queries are compared with.
        value: The values $V$, one per key.
        mask: Where `True`, that query may see that key. A query that sees no key
            gets a zero output, never NaN.
        bias: $B$, added to the scaled scores; relative positions enter here.
        causal: Whether a query sees only keys up to its own position, where the last
            query is aligned with the last key (see
            [`causal_mask`][transformers_hw.attention.causal_mask]).
        window: $w$: a query sees only keys less than $w$ positions away, so at most
            $w$ of them if `causal` (see
            [`window_mask`][transformers_hw.attention.window_mask]). Unless the weights
            or a mask or bias for single queries is asked for, time and memory grow
            with the length, not with its square.
        sinks: How many of the first keys a query sees whether or not they are in its
            window.
        scale: $\beta \ge 0$, $1/\sqrt d$ by default; `math.inf` is hard attention, in
            which keys that tie share the weight.
        softcap: $c > 0$, which bounds the scaled scores $s$ before the bias is added:
            $c \tanh(s / c)$ lies between $-c$ and $c$. PyTorch's kernel cannot do this.
        dropout: Probability of dropping a weight. Dropout acts whenever this is not
            zero; a module passes zero when it is not training.
        return_weights: Whether to return the weights too. Otherwise PyTorch's fused
            kernel runs, which need not store $A$ but may have no second derivative;
            `torch.nn.attention.sdpa_kernel` selects another.

    Returns:
        The output $H$; with `return_weights`, the pair of $H$ and the weights $A$
        before dropout.

    Raises:
        TypeError: If an argument has the wrong type, such as an integer mask.
        ValueError: If shapes do not fit together, or a number is out of range.

    Examples:
        Two keys, and a query that matches the second far better:

        >>> query, key = torch.tensor([[0.0, 9.0]]), torch.eye(2)
        >>> value = torch.tensor([[10.0], [20.0]])
        >>> dot_product_attention(query, key, value)
        tensor([[19.9828]])
        >>> output, weights = dot_product_attention(
        ...     query, key, value, return_weights=True
        ... )
        >>> weights
        tensor([[0.0017, 0.9983]])

    References:
        Vaswani et al. (2017), [Attention Is All You Need
        ](https://arxiv.org/abs/1706.03762), section 3.2.1.
    """
    check_one_dtype(query=query, key=key, value=value)
    check_dropout(dropout)
    beta = _scale(scale, query)
    check_softcap(softcap, beta)
    if window is not None or sinks:
        check_window(window, sinks)
        near = {"causal": causal, "window": window, "sinks": sinks}
        if not return_weights and in_blocks(query, key, mask, bias, window, sinks):
            options = {"scale": beta, "softcap": softcap, "dropout": dropout}
            attend: Any = partial(dot_product_attention, **options)
            return attend_in_blocks(attend, query, key, value, mask, **near)
        mask, causal = _within(mask, query, key, **near), False
    if not return_weights and softcap is None and fusible(beta):
        masks = {"mask": mask, "bias": bias, "causal": causal}
        return fused_attention(query, key, value, **masks, scale=beta, dropout=dropout)
    mask = _within(mask, query, key) if causal else mask
    output, weights = _textbook_attention(
        query, key, value, mask, bias, beta, softcap, dropout
    )
    return (output, weights) if return_weights else output


@checked
def attention_weights(
    query: Float[Tensor, "*batch q d"],
    key: Float[Tensor, "*batch k d"],
    *,
    mask: Bool[Tensor, "*#batch #q #k"] | None = None,
    bias: Float[Tensor, "*#batch #q #k"] | None = None,
    causal: bool = False,
    window: int | None = None,
    sinks: int = 0,
    scale: float | None = None,
    softcap: float | None = None,
) -> Float[Tensor, "*batch q k"]:
    r"""Return the attention weights of each query over the keys.

    $$A = \operatorname{softmax}\!\left(\beta\, Q K^\top + B\right)$$

    If the entries of a query and a key are independent with mean 0 and variance 1,
    their dot product has variance $d$. The default $\beta = 1/\sqrt d$ brings the
    scores back to variance 1, where the softmax has useful gradients.

    Args:
        query: The queries $Q$, one per row.
        key: The keys $K$, which the queries are compared with.
        mask: Where `True`, that query may see that key.
        bias: $B$, added to the scaled scores.
        causal: Whether later keys are hidden from earlier queries.
        window: How far a query sees; see `dot_product_attention`.
        sinks: How many of the first keys it sees beyond its window.
        scale: $\beta$, $1/\sqrt d$ by default; `math.inf` is hard attention.
        softcap: Bound of the scaled scores.

    Returns:
        $A$, whose rows sum to one, or to zero where a query sees no key.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If shapes do not fit together, or `scale` is negative or NaN.

    Examples:
        >>> attention_weights(torch.zeros(3, 4), torch.ones(3, 4), causal=True)
        tensor([[1.0000, 0.0000, 0.0000],
                [0.5000, 0.5000, 0.0000],
                [0.3333, 0.3333, 0.3333]])
    """
    check_one_dtype(query=query, key=key)
    beta = _scale(scale, query)
    check_softcap(softcap, beta)
    if causal or window is not None or sinks:
        check_window(window, sinks)
        near = {"causal": causal, "window": window, "sinks": sinks}
        mask = _within(mask, query, key, **near)
    with autocast_off(query):
        scores = einsum(widen(query), widen(key), "... q d, ... k d -> ... q k")
        scores, beta = cap(scores, beta, softcap)
        return softmax(scores, beta, mask=mask, bias=bias)


@checked
def softmax(
    scores: Float[Tensor, "*axes k"],
    scale: float = 1.0,
    *,
    mask: Bool[Tensor, "*#axes #k"] | None = None,
    bias: Float[Tensor, "*#axes #k"] | None = None,
) -> Float[Tensor, "*axes k"]:
    r"""Turn scores into positive weights that sum to one.

    $$
    \operatorname{softmax}_\beta(s)_j
    = \frac{m_j\, e^{\beta s_j + b_j}}{\sum_l m_l\, e^{\beta s_l + b_l}}
    $$

    At $\beta = 0$ all visible entries weigh the same (up to $e^{b}$); as
    $\beta \to \infty$ only the largest keep their weight. `scale=math.inf` gives that
    limit exactly: entries that tie for the maximum share the weight in proportion to
    $e^{b_j}$, and equally without a bias. The limit is piecewise constant, so its
    gradient with respect to the scores is zero.

    Half-precision scores are exponentiated and normalized in float32.

    Args:
        scores: $s$; the last axis is normalized.
        scale: $\beta \ge 0$, the inverse temperature; it may be infinite.
        mask: $m$; where `True` (one), the entry is visible. A row that sees nothing
            gets all-zero weights.
        bias: $b$, added to the scaled scores. $-\infty$ hides an entry.

    Returns:
        Weights of the shape and dtype of `scores`.

    Raises:
        TypeError: If `mask` is not boolean or `bias` is not floating-point.
        ValueError: If `scale` is negative or NaN, or if `mask` or `bias` does not
            broadcast to `scores`.

    Examples:
        >>> scores = torch.tensor([1.0, 3.0, 3.0])
        >>> softmax(scores, 0.0)
        tensor([0.3333, 0.3333, 0.3333])
        >>> softmax(scores, math.inf)
        tensor([0.0000, 0.5000, 0.5000])
        >>> softmax(scores, mask=torch.tensor([True, False, False]))
        tensor([1., 0., 0.])

    References:
        LeCun calls this function softargmax, since its limit points at the maximum;
        [`torch.nn.Softmax`][torch.nn.Softmax] is the case $\beta = 1$.
    """
    check_scale("scale", scale)
    huge = scale > LARGE_SCALE  # infinity, too
    logits = widen(scores)
    logits = scale_gaps(logits, scale, mask, bias) if huge else scale * logits
    if bias is not None:
        logits = logits + (bias if huge else level(bias, mask, logits.dtype))
    weights = softmax_or_zero(hide(logits, mask), sure=mask is None and bias is None)
    return weights.to(scores.dtype)


@checked
def causal_mask(
    queries: int, keys: int | None = None, *, device: torch.device | str | None = None
) -> Bool[Tensor, "queries keys"]:
    r"""Return a mask that lets each query see the keys up to its own position.

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


@checked
def window_mask(
    queries: int,
    keys: int | None = None,
    *,
    window: int,
    causal: bool = True,
    sinks: int = 0,
    device: torch.device | str | None = None,
) -> Bool[Tensor, "queries keys"]:
    r"""Return a mask that lets each query see the keys near its own position.

    $$
    m_{ij} = \text{True} \iff |j - i'| < w \;\text{ or }\; j < s,
    \qquad i' = i + (k - q)
    $$

    and, if `causal`, $j \le i'$ as well. As in
    [`causal_mask`][transformers_hw.attention.causal_mask], the last query is aligned
    with the last key. A causal window of $w$ holds $w$ keys: the query's own position
    and the $w - 1$ before it.

    Args:
        queries: Number of queries $q$.
        keys: Number of keys $k$, or `None` for as many as queries.
        window: $w$, the least distance that is too far.
        causal: Whether keys after the query are hidden.
        sinks: $s$: the first keys that are seen from everywhere.
        device: Where to put the mask.

    Returns:
        The mask, `True` where a query may see a key.

    Raises:
        ValueError: If `window` is not positive, or another number is negative.

    Examples:
        >>> window_mask(5, window=2, sinks=1).int()
        tensor([[1, 0, 0, 0, 0],
                [1, 1, 0, 0, 0],
                [1, 1, 1, 0, 0],
                [1, 0, 1, 1, 0],
                [1, 0, 0, 1, 1]], dtype=torch.int32)

    References:
        Beltagy et al. (2020), [Longformer](https://arxiv.org/abs/2004.05150), section
        3.1, for windows; Xiao et al. (2024), [Efficient Streaming Language Models with
        Attention Sinks](https://arxiv.org/abs/2309.17453), section 3, for sinks.
    """
    keys = queries if keys is None else keys
    check_lengths(queries=queries, keys=keys, sinks=sinks)
    check_sizes(window=window)
    key = torch.arange(keys, device=device)
    query = torch.arange(queries, device=device) + (keys - queries)
    ahead = key - rearrange(query, "q -> q 1")
    seen = (abs(ahead) < window) | (key < sinks)
    return seen & (ahead <= 0) if causal else seen


@checked
def padding_mask(
    lengths: Int[Tensor, " batch"], max_length: int | None = None
) -> Bool[Tensor, "batch max_length"]:
    """Mark the real tokens of sequences that are padded to a common length.

    `True` marks a real token: the opposite of the `key_padding_mask` of
    [`torch.nn.MultiheadAttention`][torch.nn.MultiheadAttention]. From token ids, the
    mask is `token_ids != padding_token`.

    Args:
        lengths: Numbers of real tokens, which come first in each sequence.
        max_length: The common length, or `None` for the longest of `lengths`.

    Returns:
        The mask, `True` for a real token. `dot_product_attention` needs axes for the
        queries and heads too: `rearrange(mask, "b k -> b 1 1 k")`.

    Raises:
        TypeError: If `lengths` is not an integer tensor.
        ValueError: If `lengths` has several axes, as token ids do, or a length is
            negative or exceeds `max_length`.

    Examples:
        >>> padding_mask(torch.tensor([1, 3])).int()
        tensor([[1, 0, 0],
                [1, 1, 1]], dtype=torch.int32)
    """
    longest = int(lengths.max()) if lengths.numel() else 0
    max_length = longest if max_length is None else max_length
    if longest > max_length or (lengths.numel() and int(lengths.min()) < 0):
        raise ValueError(
            f"lengths must be between 0 and the common length {max_length}, "
            f"got {lengths.tolist()}."
        )
    positions = torch.arange(max_length, device=lengths.device)
    return positions < rearrange(lengths, "... -> ... 1")


def _scale(scale: float | None, query: Tensor) -> float:
    if scale is not None:
        check_scale("scale", scale)
        return float(scale)
    if not query.shape[-1]:
        raise ValueError(f"query must have a width, got shape {tuple(query.shape)}.")
    return 1.0 / math.sqrt(query.shape[-1])


def _within(
    mask: Tensor | None,
    query: Tensor,
    key: Tensor,
    *,
    causal: bool = True,
    window: int | None = None,
    sinks: int = 0,
) -> Tensor | None:
    sizes, device = (query.shape[-2], key.shape[-2]), query.device
    if window is None:
        return intersect(mask, causal_mask(*sizes, device=device))
    near = window_mask(*sizes, window=window, causal=causal, sinks=sinks, device=device)
    return intersect(mask, near)
