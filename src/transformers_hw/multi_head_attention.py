r"""Multi-head attention: several attentions side by side, each in a subspace.

$$
\operatorname{MultiHead}(X, C) = [H_1 \; \cdots \; H_h]\, W_o,
\qquad
H_i = \operatorname{softmax}\!\left(\frac{X W_q^{(i)} (C W_k^{(i)})^\top}
{\sqrt{d_k}}\right) C W_v^{(i)}
$$

The queries come from $X$, the keys and values from the context $C$: with
$C = X$ this is self-attention, otherwise cross-attention.
"""

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, overload

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from transformers_hw._engine.arguments import (
    check_dropout,
    check_scale,
    check_sizes,
    named_parts,
    share_of_head,
    warn_if_all_is_padding,
)
from transformers_hw._engine.kernels import intersect
from transformers_hw._engine.shapes import check_shape, checked
from transformers_hw.attention import dot_product_attention

PROJECTIONS = ("query", "key", "value", "output")


class KeyValueCache:
    r"""Keys and values of the tokens so far, so that a new token costs one row.

    The caller makes one per layer and passes it at each step; the layer appends to it
    and keeps nothing itself. The buffer doubles when it is full, so that $n$ steps
    copy $O(n)$ rows in all. It is meant for decoding, without gradients.

    Examples:
        >>> layer = MultiHeadAttention(8, 2).eval()
        >>> tokens = torch.randn(1, 5, 8)
        >>> cache = KeyValueCache()
        >>> with torch.no_grad():
        ...     whole = layer(tokens, causal=True)
        ...     steps = [
        ...         layer(tokens[:, i : i + 1], causal=True, cache=cache)
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
        """Append new keys and values, and return all stored so far.

        Raises:
            ValueError: If batch or heads differ from what is stored.
        """
        self._key = self._stored(self._key, key)
        self._value = self._stored(self._value, value)
        self.length += key.shape[2]
        return self.read()

    def read(self) -> tuple[Float[Tensor, "b h k d"], Float[Tensor, "b h k v"]]:
        """Return all stored keys and values.

        Raises:
            ValueError: If nothing is stored yet.
        """
        if self._key is None or self._value is None:
            raise ValueError("the cache must hold keys and values, got an empty one.")
        return self._key[:, :, : self.length], self._value[:, :, : self.length]

    def select(self, rows: Int[Tensor, " chosen"]) -> None:
        """Reorder the batch; beam search repeats some rows and drops others."""
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


@dataclass(frozen=True)
class MultiHeadAttentionConfig:
    """The settings of multi-head attention, from which it can be built again.

    `MultiHeadAttention(**asdict(config))` does so; its arguments are described there.
    """

    dim: int
    heads: int
    context_dim: int
    values_dim: int
    head_dim: int
    value_head_dim: int
    output_dim: int
    bias: tuple[str, ...]
    scale: float | None
    dropout: float


class MultiHeadAttention(nn.Module):
    r"""Project, attend in each head, concatenate, project back.

    With the usual widths ($d_k = d_v = d/h$) there are $4d^2$ parameters (and $4d$
    biases) for any number of heads: the heads divide the width among themselves.

    Args:
        dim: Width $d$ of the queries' input, and of the output.
        heads: Number of heads $h$.
        context_dim: Width of the context that keys come from; `dim` by default.
        values_dim: Width of the input of the values, if it is not the context.
        head_dim: $d_k$, the width of a head's queries and keys; `dim / heads` by
            default.
        value_head_dim: $d_v$, the width of a head's values; $d_k$ by default.
        output_dim: Width of the output, if not `dim`.
        bias: Whether the projections have biases: all, none, or those named
            among `"query"`, `"key"`, `"value"`, `"output"`.
        scale: $\beta$ in place of $1/\sqrt{d_k}$; `math.inf` is hard attention.
        dropout: Probability of dropping a weight in training.
        device: Device of the parameters.
        dtype: Dtype of the parameters.

    Raises:
        ValueError: If a number is out of range, or `heads` does not divide `dim` and
            `head_dim` is not given.

    Examples:
        >>> layer = MultiHeadAttention(12, heads=3)
        >>> x, context = torch.randn(2, 5, 12), torch.randn(2, 7, 12)
        >>> layer(x).shape
        torch.Size([2, 5, 12])
        >>> _, weights = layer(x, context, return_weights=True)
        >>> weights.shape
        torch.Size([2, 3, 5, 7])

    References:
        Vaswani et al. (2017), [Attention Is All You Need
        ](https://arxiv.org/abs/1706.03762), section 3.2.2.
    """

    @checked
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
        head_dim = share_of_head(dim, heads) if head_dim is None else head_dim
        context_dim = dim if context_dim is None else context_dim
        values_dim = context_dim if values_dim is None else values_dim
        value_head_dim = head_dim if value_head_dim is None else value_head_dim
        output_dim = dim if output_dim is None else output_dim
        check_sizes(
            dim=dim,
            heads=heads,
            context_dim=context_dim,
            values_dim=values_dim,
            head_dim=head_dim,
            value_head_dim=value_head_dim,
            output_dim=output_dim,
        )
        check_dropout(dropout)
        if scale is not None:
            check_scale("scale", scale)
        with_bias = named_parts("bias", bias, PROJECTIONS)
        self.config = MultiHeadAttentionConfig(
            dim,
            heads,
            context_dim,
            values_dim,
            head_dim,
            value_head_dim,
            output_dim,
            tuple(name for name in PROJECTIONS if name in with_bias),
            scale,
            dropout,
        )
        self.dim, self.context_dim, self.values_dim = dim, context_dim, values_dim
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
        """Draw weights by Glorot's uniform rule and set biases to zero."""
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

    @overload
    def forward(
        self, query: Tensor, *args: Any, return_weights: Literal[True], **_: Any
    ) -> tuple[Tensor, Tensor]: ...
    @overload
    def forward(
        self,
        query: Tensor,
        *args: Any,
        return_weights: Literal[False] = False,
        **_: Any,
    ) -> Tensor: ...
    @checked
    def forward(
        self,
        query: Float[Tensor, "b q {self.dim}"],
        context: Float[Tensor, "b k {self.context_dim}"] | None = None,
        values: Float[Tensor, "b k {self.values_dim}"] | None = None,
        *,
        mask: Bool[Tensor, "#q #keys"]
        | Bool[Tensor, "#b #{self.heads} #q #keys"]
        | None = None,
        padding_mask: Bool[Tensor, "b keys"] | None = None,
        bias: Float[Tensor, "*#b_h #q #keys"] | None = None,
        causal: bool = False,
        cache: KeyValueCache | None = None,
        return_weights: bool = False,
    ) -> (
        Float[Tensor, "b q out"]
        | tuple[Float[Tensor, "b q out"], Float[Tensor, "b heads q keys"]]
    ):
        """Attend from `query` to `context`, or to itself.

        Args:
            query: Input of the queries.
            context: Input of the keys; `query` itself by default.
            values: Input of the values; the context by default.
            mask: Where `True`, that query may see that key: `(q, k)` for all,
                `(b, 1, q, k)` by sample, `(b, heads, q, k)` by head as well.
            padding_mask: Where `True`, the key is a real token, as made by
                [`padding_mask`][transformers_hw.attention.padding_mask]; PyTorch's
                `key_padding_mask` is the opposite. Padding has no influence, even if
                it is NaN.
            bias: Numbers added to the scaled scores, of a shape like the mask's or
                `(heads, q, k)`; relative positions enter here.
            causal: Whether a query sees only keys up to its own position, where the
                last query is aligned with the last key.
            cache: Keys and values of earlier calls. Without a context, the new ones
                are appended, and the queries see all; the masks then cover all. With
                a context, the first call fills the cache, and later calls skip the
                projections.
            return_weights: Whether to return the weights of every head too.

        Returns:
            The output; with `return_weights`, also the weights before dropout.

        Raises:
            TypeError: If an argument has the wrong type.
            ValueError: If shapes do not fit together.
        """
        source = query if context is None else context
        contents = source if values is None else values
        stored = 0 if cache is None or context is not None else cache.length
        keys = stored + source.shape[1]
        if padding_mask is not None:
            check_shape("padding_mask", padding_mask, query.shape[0], keys)
            if cache is None:
                warn_if_all_is_padding(padding_mask)
            mask = intersect(mask, rearrange(padding_mask, "b k -> b 1 1 k"))
        key, value = self._keys_and_values(
            source, contents, padding_mask, cache, fixed=context is not None
        )
        attend = partial(
            dot_product_attention,
            self._split(self.query_proj(query)),
            key,
            value,
            mask=mask,
            bias=bias,
            causal=causal,
            scale=self.scale,
            dropout=self.dropout if self.training else 0.0,
        )
        if not return_weights:
            return self.output_proj(self._join(attend()))
        heads, weights = attend(return_weights=True)
        return self.output_proj(self._join(heads)), weights

    def _split(self, x: Tensor) -> Tensor:
        return rearrange(x, "b n (h d) -> b h n d", h=self.heads)

    def _join(self, x: Tensor) -> Tensor:
        return rearrange(x, "b h n d -> b n (h d)")

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

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:  # type: ignore[override]
        super()._load_from_state_dict(state_dict, prefix, *args)
        if f"{prefix}in_proj_weight" in state_dict:
            *_, errors = args
            errors.append(
                "These are weights of torch.nn.MultiheadAttention; "
                "transformers_hw.pretrained.from_torch converts the module."
            )

    def extra_repr(self) -> str:
        """Show the heads in `repr`."""
        scale = "" if self.scale is None else f", scale={self.scale}"
        return f"{self.dim}, heads={self.heads}, dropout={self.dropout}{scale}"
