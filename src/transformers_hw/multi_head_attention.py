r"""Multi-head attention: several attentions side by side, each in its own space.

$$
\operatorname{MultiHead}(X, C) = [H_1 \; \cdots \; H_h]\, W_o,
\qquad
H_i = \operatorname{softargmax}\!\left(\frac{X W_q^{(i)} (C W_k^{(i)})^\top}
{\sqrt{d_k}}\right) C W_v^{(i)}
$$

The queries come from $X$, the keys and values from the context $C$: with
$C = X$ this is self-attention, otherwise cross-attention.
"""

from collections.abc import Collection

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from transformers_hw._checks import (
    check_axes,
    check_beta,
    check_dropout,
    check_float,
    check_mask,
    check_sizes,
)
from transformers_hw.attention import attention

PROJECTIONS = ("query", "key", "value", "output")


class KeyValueCache:
    r"""Keys and values of the tokens so far, so that a new token costs one row.

    The caller makes one per layer and passes it at each step; the layer appends
    to it and keeps nothing itself. Space is doubled when it runs out, so that
    $n$ steps copy $O(n)$ rows altogether. It is meant for decoding, without
    gradients.

    Examples:
        >>> layer = MultiHeadAttention(8, 2).eval()
        >>> tokens = torch.randn(1, 5, 8)
        >>> cache = KeyValueCache()
        >>> with torch.no_grad():
        ...     whole, _ = layer(tokens, causal=True)
        ...     steps = [
        ...         layer(tokens[:, i : i + 1], causal=True, cache=cache)[0]
        ...         for i in range(5)
        ...     ]
        >>> torch.allclose(torch.cat(steps, dim=1), whole, atol=1e-6)
        True
        >>> cache.length
        5
    """

    def __init__(self) -> None:
        self.length = 0
        self._key: Tensor | None = None
        self._value: Tensor | None = None

    def append(
        self, key: Float[Tensor, "b h n d"], value: Float[Tensor, "b h n v"]
    ) -> tuple[Float[Tensor, "b h k d"], Float[Tensor, "b h k v"]]:
        """Store new keys and values, and give all stored so far.

        Raises:
            ValueError: If batch or heads differ from what is stored.
        """
        self._key = self._stored(self._key, key)
        self._value = self._stored(self._value, value)
        self.length += key.shape[2]
        return self.read()

    def read(self) -> tuple[Float[Tensor, "b h k d"], Float[Tensor, "b h k v"]]:
        """Give all stored keys and values.

        Raises:
            ValueError: If nothing is stored yet.
        """
        if self._key is None or self._value is None:
            raise ValueError("the cache must hold keys and values, got an empty one.")
        return self._key[:, :, : self.length], self._value[:, :, : self.length]

    def select(self, rows: Int[Tensor, " chosen"]) -> None:
        """Keep these rows of the batch, in this order; beam search repeats some."""
        if self._key is not None and self._value is not None:
            self._key, self._value = self._key[rows], self._value[rows]

    def _stored(self, buffer: Tensor | None, new: Tensor) -> Tensor:
        b, h, n, width = new.shape
        if buffer is None:
            return new
        if (b, h, width) != (*buffer.shape[:2], buffer.shape[-1]):
            raise ValueError(
                "new keys and values must fit the cache's batch, heads and width, "
                f"{(*buffer.shape[:2], buffer.shape[-1])}, got {(b, h, width)}."
            )
        if self.length + n > buffer.shape[2]:
            room = new.new_empty(b, h, 2 * (self.length + n), width)
            room[:, :, : self.length] = buffer[:, :, : self.length]
            buffer = room
        buffer[:, :, self.length : self.length + n] = new
        return buffer


class MultiHeadAttention(nn.Module):
    r"""Project, attend in each head, concatenate, project back.

    With the usual widths ($d_k = d_v = d/h$) the number of parameters is
    $4d^2$ (and $4d$ biases) for any number of heads: heads share the width out,
    they do not multiply it.

    Args:
        dim: Width $d$ of the queries' input, and of the output.
        heads: Number of heads $h$.
        context_dim: Width of the context, where keys come from; `dim` by default.
        values_dim: Width of what values come from, if it is not the context.
        head_dim: $d_k$, width of a head's queries and keys; `dim / heads` by
            default, which must then be whole.
        value_head_dim: $d_v$, width of a head's values; $d_k$ by default.
        output_dim: Width of the output, if not `dim`.
        bias: Whether the projections have biases: all, none, or those named
            among `"query"`, `"key"`, `"value"`, `"output"`.
        scale: $\beta$ in place of $1/\sqrt{d_k}$; `math.inf` is hard attention.
        dropout: Probability of dropping a weight in training.
        device: Where to put the parameters.
        dtype: Type of the parameters.

    Raises:
        ValueError: If a width or number is not valid, or `dim` cannot be shared
            out among the heads.

    Examples:
        >>> layer = MultiHeadAttention(12, heads=3)
        >>> x, context = torch.randn(2, 5, 12), torch.randn(2, 7, 12)
        >>> layer(x)[0].shape
        torch.Size([2, 5, 12])
        >>> _, weights = layer(x, context, return_weights=True)
        >>> weights.shape
        torch.Size([2, 3, 5, 7])

    References:
        Vaswani et al. (2017), [Attention Is All You Need
        ](https://arxiv.org/abs/1706.03762), section 3.2.2.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        context_dim: int | None = None,
        values_dim: int | None = None,
        head_dim: int | None = None,
        value_head_dim: int | None = None,
        output_dim: int | None = None,
        bias: bool | Collection[str] = True,
        scale: float | None = None,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_sizes(dim=dim, heads=heads)
        if head_dim is None:
            if dim % heads:
                raise ValueError(
                    f"dim must be divisible by heads, got dim {dim} and {heads} heads; "
                    "head_dim sets a width that does not depend on dim."
                )
            head_dim = dim // heads
        context_dim = dim if context_dim is None else context_dim
        values_dim = context_dim if values_dim is None else values_dim
        value_head_dim = head_dim if value_head_dim is None else value_head_dim
        output_dim = dim if output_dim is None else output_dim
        check_sizes(
            context_dim=context_dim,
            values_dim=values_dim,
            head_dim=head_dim,
            value_head_dim=value_head_dim,
            output_dim=output_dim,
        )
        check_dropout(dropout)
        if scale is not None:
            check_beta("scale", scale)
        with_bias = _named_projections(bias)
        self.heads = heads
        self.scale = scale
        self.dropout = dropout

        def projection(name: str, inputs: int, outputs: int) -> nn.Linear:
            has_bias = name in with_bias
            return nn.Linear(inputs, outputs, bias=has_bias, device=device, dtype=dtype)

        self.query_proj = projection("query", dim, heads * head_dim)
        self.key_proj = projection("key", context_dim, heads * head_dim)
        self.value_proj = projection("value", values_dim, heads * value_head_dim)
        self.output_proj = projection("output", heads * value_head_dim, output_dim)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights by Glorot's rule and set biases to zero."""
        projections = (
            self.query_proj,
            self.key_proj,
            self.value_proj,
            self.output_proj,
        )
        for projection in projections:
            nn.init.xavier_uniform_(projection.weight)
            if projection.bias is not None:
                nn.init.zeros_(projection.bias)

    def forward(
        self,
        query: Float[Tensor, "b q d"],
        context: Float[Tensor, "b k c"] | None = None,
        values: Float[Tensor, "b k e"] | None = None,
        *,
        mask: Bool[Tensor, "*#b_h #q #keys"] | None = None,
        padding_mask: Bool[Tensor, "b keys"] | None = None,
        bias: Float[Tensor, "*#b_h #q #keys"] | None = None,
        causal: bool = False,
        cache: KeyValueCache | None = None,
        return_weights: bool = False,
    ) -> tuple[Float[Tensor, "b q out"], Float[Tensor, "b heads q keys"] | None]:
        """Attend from `query` to `context`, or to itself.

        Args:
            query: Where the queries come from.
            context: Where the keys come from; `query` itself by default.
            values: Where the values come from; the context by default.
            mask: Where `True`, that query may see that key: `(q, k)` for all,
                `(b, 1, q, k)` by sample, `(b, heads, q, k)` by head as well.
            padding_mask: Where `True`, the key is a real token, as made by
                [`padding_mask`][transformers_hw.attention.padding_mask]. What
                stands in the other places has no influence, even if it is NaN.
            bias: Added to the scaled scores, of a shape like the mask's or
                `(heads, q, k)`; relative positions enter here.
            causal: Let a query see only keys up to its own position, the last
                query standing at the last key.
            cache: Without a context, the new keys and values are appended to
                it, and the queries see all it holds; the masks then cover all
                of that. With a context, the first call fills it, and later
                calls skip the projections.
            return_weights: Also give the weights of every head.

        Returns:
            The output, and the weights before dropout, or `None`.

        Raises:
            TypeError: If an argument has the wrong type.
            ValueError: If shapes do not fit together.
        """
        source = query if context is None else context
        contents = source if values is None else values
        self._check_inputs(query, source, contents)
        stored = 0 if cache is None or context is not None else cache.length
        keys = stored + source.shape[1]
        if mask is not None:
            _check_mask(mask, (query.shape[0], self.heads, query.shape[1], keys))
        if padding_mask is not None:
            check_mask("padding_mask", padding_mask, "a real token")
            check_axes("padding_mask", padding_mask, query.shape[0], keys)
            real = rearrange(padding_mask, "b k -> b 1 1 k")
            mask = real if mask is None else mask & real
        key, value = self._keys_and_values(
            source, contents, padding_mask, cache, fixed=context is not None
        )
        output, weights = attention(
            self._split(self.query_proj(query)),
            key,
            value,
            mask=mask,
            bias=bias,
            causal=causal,
            scale=self.scale,
            dropout=self.dropout if self.training else 0.0,
            return_weights=return_weights,
        )
        return self.output_proj(rearrange(output, "b h q v -> b q (h v)")), weights

    def _split(self, x: Tensor) -> Tensor:
        return rearrange(x, "b n (h d) -> b h n d", h=self.heads)

    def _keys_and_values(
        self,
        source: Tensor,
        contents: Tensor,
        padding_mask: Tensor | None,
        cache: KeyValueCache | None,
        *,
        fixed: bool,
    ) -> tuple[Tensor, Tensor]:
        if cache is not None and fixed and cache.length:
            if cache.length != source.shape[1]:
                raise ValueError(
                    f"the cache holds a context of length {cache.length}, "
                    f"got one of length {source.shape[1]}."
                )
            return cache.read()
        if padding_mask is not None:
            padding = rearrange(~padding_mask[:, -source.shape[1] :], "b k -> b k 1")
            shared, source = contents is source, source.masked_fill(padding, 0.0)
            contents = source if shared else contents.masked_fill(padding, 0.0)
        key = self._split(self.key_proj(source))
        value = self._split(self.value_proj(contents))
        return (key, value) if cache is None else cache.append(key, value)

    def _check_inputs(self, query: Tensor, source: Tensor, contents: Tensor) -> None:
        check_float("query", query, "batch", "length", self.query_proj.in_features)
        check_float("context", source, "batch", "length", self.key_proj.in_features)
        check_float("values", contents, "batch", "length", self.value_proj.in_features)
        if not query.shape[0] == source.shape[0] == contents.shape[0]:
            raise ValueError(
                "query, context and values must have one batch size, got "
                f"{len(query)}, {len(source)} and {len(contents)}."
            )
        if source.shape[1] != contents.shape[1]:
            raise ValueError(
                "context and values must have one length, got "
                f"{source.shape[1]} and {contents.shape[1]}."
            )


def _named_projections(bias: bool | Collection[str]) -> Collection[str]:
    if isinstance(bias, bool):
        return PROJECTIONS if bias else ()
    if isinstance(bias, str) or not set(bias) <= set(PROJECTIONS):
        raise ValueError(
            f"bias must be True, False or names among {PROJECTIONS}, got {bias!r}."
        )
    return bias


def _check_mask(mask: Tensor, scores: tuple[int, int, int, int]) -> None:
    check_mask("mask", mask, "may see; numbers to add to the scores are a bias")
    aligned = zip(reversed(mask.shape), reversed(scores), strict=False)
    fits = all(size in (1, wanted) for size, wanted in aligned)
    if mask.dim() not in (2, 4) or not fits:
        raise ValueError(
            "mask must be (q, k) or (b, heads, q, k), where any may be 1: "
            f"{scores[2:]} or {scores}, got shape {tuple(mask.shape)}."
        )
