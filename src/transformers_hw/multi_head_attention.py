r"""Multi-head attention: several attentions side by side, each in a subspace.

$$
\operatorname{MultiHead}(X, C) = [H_1 \; \cdots \; H_h]\, W_o,
\qquad
H_i = \operatorname{softmax}\!\left(\frac{X W_q^{(i)} (C W_k^{(i)})^\top}
{\sqrt{d_k}}\right) C W_v^{(i)}
$$

The queries come from $X$, the keys and values from the context $C$: with
$C = X$ this is self-attention, otherwise cross-attention. Several heads may share their
keys and values, which makes the cache of a decoder smaller.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Unpack, overload

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from transformers_hw._engine.arguments import (
    Factory,
    check_dropout,
    check_eps,
    check_lengths,
    check_scale,
    check_sizes,
    check_softcap,
    check_window,
    named_parts,
    share_of_head,
    warn_if_all_is_padding,
)
from transformers_hw._engine.groups import attend_in_groups
from transformers_hw._engine.kernels import intersect
from transformers_hw._engine.shapes import check_shape, checked
from transformers_hw.attention import dot_product_attention

PROJECTIONS = ("query", "key", "value", "output")
QueryKeyNorm = Literal["layer", "rms"]
NORMS = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}


class KeyValueCache:
    r"""Keys and values of the tokens so far, so that a new token costs one row.

    The caller makes one per layer and passes it at each step; the layer appends to it
    and keeps nothing itself. The buffer doubles when it is full, so that $n$ steps
    copy $O(n)$ rows in all. It is meant for decoding, without gradients.

    A layer that sees only a window needs no more than that: with `window`, the cache
    forgets what no later query can see, and its size stays bounded.

    Args:
        window: Window of the layer, or `None` to keep everything.
        sinks: How many of the first tokens to keep in any case.

    Attributes:
        length: Number of tokens that were appended.

    Raises:
        ValueError: If `window` is not positive or `sinks` is negative.

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

    @checked
    def __init__(self, *, window: int | None = None, sinks: int = 0) -> None:
        if window is not None:
            check_sizes(window=window)
        check_lengths(sinks=sinks)
        self.window, self.sinks = window, sinks
        self.length = 0
        self._stored = 0
        self._key: Tensor | None = None
        self._value: Tensor | None = None

    def append(
        self, key: Float[Tensor, "b h n d"], value: Float[Tensor, "b h n v"]
    ) -> tuple[Float[Tensor, "b h k d"], Float[Tensor, "b h k v"]]:
        """Append new keys and values, and return all that the new tokens may see.

        Raises:
            ValueError: If batch or heads differ from what is stored.
        """
        self._forget()
        self._key = self._extended(self._key, key)
        self._value = self._extended(self._value, value)
        self.length += key.shape[2]
        self._stored += key.shape[2]
        return self.read()

    def read(self) -> tuple[Float[Tensor, "b h k d"], Float[Tensor, "b h k v"]]:
        """Return all stored keys and values.

        Raises:
            ValueError: If nothing is stored yet.
        """
        if self._key is None or self._value is None:
            raise ValueError("the cache must hold keys and values, got an empty one.")
        return self._key[:, :, : self._stored], self._value[:, :, : self._stored]

    @checked
    def select(self, rows: Int[Tensor, " chosen"]) -> None:
        """Reorder the batch; beam search repeats some rows and drops others."""
        rows = rows.long()  # bytes would be a mask
        if self._key is not None and self._value is not None:
            self._key, self._value = self._key[rows], self._value[rows]

    def _select_columns(self, mask: Tensor | None) -> Tensor | None:
        """Take the columns of stored tokens from a mask or bias of all tokens."""
        if mask is None or self._stored == self.length or mask.shape[-1] == 1:
            return mask
        recent = self.length - (self._stored - self.sinks)
        return torch.cat([mask[..., : self.sinks], mask[..., recent:]], dim=-1)

    def _forget(self) -> None:
        """Drop what the next token cannot see."""
        if self.window is None or self._key is None or self._value is None:
            return
        first, recent = self.sinks, self.window - 1
        if self._stored > 2 * (first + recent) + 1:  # not at every step: it copies
            last = slice(self._stored - recent, self._stored)
            self._key, self._value = (
                torch.cat([x[:, :, :first], x[:, :, last]], dim=2)
                for x in (self._key, self._value)
            )
            self._stored = first + recent

    def _extended(self, buffer: Tensor | None, new: Tensor) -> Tensor:
        b, h, n, width = new.shape
        if buffer is None:
            return new
        if (b, h, width) != (*buffer.shape[:2], buffer.shape[-1]):
            raise ValueError(
                "new keys and values must fit the cache's batch, heads and width, "
                f"{(*buffer.shape[:2], buffer.shape[-1])}, got {(b, h, width)}."
            )
        if self._stored + n > buffer.shape[2]:
            room = new.new_empty(b, h, 2 * (self._stored + n), width)
            room[:, :, : self._stored] = buffer[:, :, : self._stored]
            buffer = room
        buffer[:, :, self._stored : self._stored + n] = new
        return buffer


class HeadOptions(Factory, total=False):
    """Keywords for what heads share, how far they see, and how large scores get.

    Attributes:
        kv_heads: Number of heads $g$ of keys and values, which must divide $h$; each
            serves $h/g$ neighboring heads of queries. By default every head has its
            own; one for all is multi-query attention.
        qk_norm: Whether to normalize the queries and keys of each head, by
            `"layer"` norm or by root mean square (`"rms"`), so that scores cannot grow
            with their length.
        qk_eps: Added to the variance in these norms, for numerical stability;
            $10^{-6}$ by default.
        window: How far a query sees, as in
            [`dot_product_attention`][transformers_hw.attention.dot_product_attention].
        sinks: How many of the first keys it sees beyond its window.
        softcap: Bound of the scaled scores.
        device: Device of the parameters.
        dtype: Dtype of the parameters.
    """

    kv_heads: int | None
    qk_norm: QueryKeyNorm | None
    qk_eps: float
    window: int | None
    sinks: int
    softcap: float | None


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
    kv_heads: int
    qk_norm: QueryKeyNorm | None = None
    qk_eps: float = 1e-6
    window: int | None = None
    sinks: int = 0
    softcap: float | None = None

    def __post_init__(self) -> None:
        """Raise unless the options fit together."""
        check_eps(self.qk_eps)
        check_window(self.window, self.sinks)
        check_softcap(self.softcap, 0.0 if self.scale is None else self.scale)


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
        **options: Keywords of
            [`HeadOptions`][transformers_hw.multi_head_attention.HeadOptions].

    Raises:
        ValueError: If a number is out of range, or `heads` does not divide `dim` and
            `head_dim` is not given, or `kv_heads` does not divide `heads`.

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
        ](https://arxiv.org/abs/1706.03762), section 3.2.2; Ainslie et al. (2023), [GQA
        ](https://arxiv.org/abs/2305.13245), section 2, for shared keys and values;
        Henry et al. (2020), [Query-Key Normalization for Transformers
        ](https://arxiv.org/abs/2010.04245), for normalized ones.
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
        **options: Unpack[HeadOptions],
    ) -> None:
        super().__init__()
        settings: dict[str, Any] = {**options}
        factory = {name: settings.pop(name, None) for name in ("device", "dtype")}
        kv_heads = settings.pop("kv_heads", None)
        head_dim = share_of_head(dim, heads) if head_dim is None else head_dim
        context_dim = dim if context_dim is None else context_dim
        values_dim = context_dim if values_dim is None else values_dim
        value_head_dim = head_dim if value_head_dim is None else value_head_dim
        output_dim = dim if output_dim is None else output_dim
        kv_heads = heads if kv_heads is None else kv_heads
        check_sizes(
            dim=dim,
            heads=heads,
            kv_heads=kv_heads,
            context_dim=context_dim,
            values_dim=values_dim,
            head_dim=head_dim,
            value_head_dim=value_head_dim,
            output_dim=output_dim,
        )
        check_dropout(dropout)
        if scale is not None:
            check_scale("scale", scale)
        if heads % kv_heads:
            raise ValueError(
                f"kv_heads must divide heads, got {kv_heads} and {heads} heads."
            )
        with_bias = named_parts("bias", bias, PROJECTIONS)
        self.config = config = MultiHeadAttentionConfig(
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
            kv_heads,
            **settings,
        )
        self.dim, self.context_dim, self.values_dim = dim, context_dim, values_dim
        self.heads, self.kv_heads = heads, kv_heads
        self.scale = scale
        self.dropout = dropout

        def projection(name: str, inputs: int, outputs: int) -> nn.Linear:
            has_bias = name in with_bias
            return nn.Linear(inputs, outputs, bias=has_bias, **factory)

        self.query_proj = projection("query", dim, heads * head_dim)
        self.key_proj = projection("key", context_dim, kv_heads * head_dim)
        self.value_proj = projection("value", values_dim, kv_heads * value_head_dim)
        self.output_proj = projection("output", heads * value_head_dim, output_dim)
        self.query_norm = self.key_norm = None
        if config.qk_norm is not None:
            norm = partial(NORMS[config.qk_norm], head_dim, config.qk_eps, **factory)
            self.query_norm, self.key_norm = norm(), norm()
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
        rotary: Callable[..., Tensor] | None = None,
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
            rotary: What turns queries and keys by their positions, such as
                [`RotaryPositions`][transformers_hw.positional_encoding.RotaryPositions].
                It is called as `rotary(x, start=...)` with the position of the first.
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
        start = 0 if cache is None or context is not None else cache.length
        keys = start + source.shape[1]
        if padding_mask is not None:
            check_shape("padding_mask", padding_mask, query.shape[0], keys)
            if cache is None:
                warn_if_all_is_padding(padding_mask)
        if cache is not None:  # before it takes the new tokens
            for name, x in (("mask", mask), ("bias", bias)):
                if x is not None and x.shape[-1] != 1:
                    check_shape(name, x, "...", keys)
        if cache is not None and cache.window is not None:
            self._check_memory(cache)
        turn = None if rotary is None else partial(rotary, start=start)
        queries = self._prepared(query, self.query_proj, self.query_norm, turn)
        key, value = self._keys_and_values(
            source, contents, padding_mask, cache, turn, fixed=context is not None
        )
        if cache is not None and context is None:
            masks = (mask, bias, padding_mask)
            mask, bias, padding_mask = map(cache._select_columns, masks)
        if padding_mask is not None:
            mask = intersect(mask, rearrange(padding_mask, "b k -> b 1 1 k"))
        attend = partial(
            attend_in_groups,
            dot_product_attention,
            queries,
            key,
            value,
            mask=mask,
            bias=bias,
            causal=causal,
            window=self.config.window,
            sinks=self.config.sinks,
            scale=self.scale,
            softcap=self.config.softcap,
            dropout=self.dropout if self.training else 0.0,
        )
        if not return_weights:
            return self.output_proj(self._join(attend()))
        heads, weights = attend(return_weights=True)
        return self.output_proj(self._join(heads)), weights

    def _prepared(
        self,
        x: Tensor,
        projection: nn.Module,
        norm: nn.Module | None,
        turn: Callable[[Tensor], Tensor] | None,
    ) -> Tensor:
        """Project tokens, split heads, normalize and rotate them."""
        heads = self.heads if projection is self.query_proj else self.kv_heads
        x = self._split(projection(x), heads)
        x = x if norm is None else norm(x)
        return x if turn is None else turn(x)

    def _check_memory(self, cache: KeyValueCache) -> None:
        """Raise if the cache forgets what the layer can still see."""
        window, sinks = self.config.window, self.config.sinks
        if window is None or cache.window < window or cache.sinks < sinks:  # type: ignore[operator]
            raise ValueError(
                f"the cache must keep a window of {window} and {sinks} sinks, as the "
                f"layer sees them, got one that keeps {cache.window} and {cache.sinks}."
            )

    def _split(self, x: Tensor, heads: int) -> Tensor:
        return rearrange(x, "b n (h d) -> b h n d", h=heads)

    def _join(self, x: Tensor) -> Tensor:
        return rearrange(x, "b h n d -> b n (h d)")

    def _keys_and_values(
        self,
        source: Tensor,
        contents: Tensor,
        padding_mask: Tensor | None,
        cache: KeyValueCache | None,
        turn: Callable[[Tensor], Tensor] | None,
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
            new = padding_mask.shape[1] - source.shape[1]
            padding = rearrange(~padding_mask[:, new:], "b k -> b k 1")
            shared, source = contents is source, source.masked_fill(padding, 0.0)
            contents = source if shared else contents.masked_fill(padding, 0.0)
        key = self._prepared(source, self.key_proj, self.key_norm, turn)
        value = self._prepared(contents, self.value_proj, None, None)
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
        shared = "" if self.kv_heads == self.heads else f", kv_heads={self.kv_heads}"
        return f"{self.dim}, heads={self.heads}{shared}, dropout={self.dropout}{scale}"
