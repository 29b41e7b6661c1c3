"""Layers stacked: the encoder and the decoder."""

from collections.abc import Callable
from typing import Any, ClassVar, Unpack

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from transformers_hw._engine.arguments import check_sizes
from transformers_hw._engine.shapes import checked
from transformers_hw.multi_head_attention import KeyValueCache
from transformers_hw.transformer.config import (
    LayerOptions,
    StackConfig,
    split_options,
)
from transformers_hw.transformer.layers import DecoderLayer, EncoderLayer
from transformers_hw.transformer.parts import norm_of


class DecoderCache:
    """The keys and values of every layer, for decoding step by step.

    Args:
        depth: Number of layers.
        window: Window of the layers, beyond which self-attention forgets; `None` to
            keep everything.
        sinks: How many of the first tokens to keep in any case.
    """

    @checked
    def __init__(
        self, depth: int, *, window: int | None = None, sinks: int = 0
    ) -> None:
        check_sizes(depth=depth)
        self.layers = [
            (KeyValueCache(window=window, sinks=sinks), KeyValueCache())
            for _ in range(depth)
        ]

    @property
    def length(self) -> int:
        """Number of target tokens seen so far."""
        return self.layers[0][0].length

    def select(self, rows: Int[Tensor, " chosen"]) -> None:
        """Reorder the batch in self-attention.

        Cross-attention stays as it is: the beams of one sample share their memory, so
        a row may only be replaced by a row of the same sample.
        """
        for self_cache, _ in self.layers:
            self_cache.select(rows)


class _Stack(nn.Module):
    """What both stacks share: layers of one kind, and perhaps a final norm."""

    layer: ClassVar[type[EncoderLayer] | type[DecoderLayer]]

    @checked
    def __init__(
        self,
        dim: int,
        heads: int,
        hidden_dim: int,
        depth: int,
        *,
        final_norm: bool | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__()
        settings, factory = split_options(options)
        sizes = (dim, heads, hidden_dim)
        self.config = config = StackConfig(*sizes, depth, final_norm, **settings)
        # Stochastic depth drops late layers more often than early ones.
        rates = [config.drop_path * (i + 1) / depth for i in range(depth)]
        layers = ({**options, "drop_path": rate} for rate in rates)
        self.layers = nn.ModuleList(self.layer(*sizes, **each) for each in layers)
        self.final_norm = nn.Identity()
        if config.ends_with_norm:
            self.final_norm = norm_of(config, **factory)

    def _caches(self, cache: DecoderCache | None) -> list[Any]:
        """Return the caches of each layer: of self- and of cross-attention."""
        caches = [None] * len(self.layers) if cache is None else cache.layers
        if len(caches) != len(self.layers):
            raise ValueError(
                f"cache must be for {len(self.layers)} layers, got {len(caches)}."
            )
        return caches


class Encoder(_Stack):
    """Stack encoder layers.

    Args:
        dim: Width of a token.
        heads: Number of attention heads.
        hidden_dim: Width of the feed-forward networks' hidden layers.
        depth: Number of layers.
        final_norm: Whether a layer norm follows the last layer; by default only after
            pre-norm layers, which need it.
        **options: Keywords of
            [`LayerOptions`][transformers_hw.transformer.LayerOptions].

    Raises:
        ValueError: If a number is out of range, a name is unknown, or `heads` does not
            divide `dim`.

    Examples:
        >>> import torch
        >>> encoder = Encoder(12, heads=3, hidden_dim=48, depth=2, norm="post")
        >>> encoder(torch.randn(2, 5, 12)).shape
        torch.Size([2, 5, 12])
    """

    layer = EncoderLayer

    @checked
    def forward(
        self,
        x: Float[Tensor, "b n {self.config.dim}"],
        *,
        mask: Bool[Tensor, "*#b_h #n #keys"] | None = None,
        padding_mask: Bool[Tensor, "b keys"] | None = None,
        bias: Float[Tensor, "*#b_h #n #keys"] | None = None,
        causal: bool = False,
        rotary: Callable[..., Tensor] | None = None,
        cache: DecoderCache | None = None,
    ) -> Float[Tensor, "b n {self.config.dim}"]:
        """Transform a sequence; the arguments are those of `EncoderLayer`."""
        masks: dict[str, Any] = {"mask": mask, "padding_mask": padding_mask}
        masks |= {"bias": bias, "causal": causal, "rotary": rotary}
        for layer, both in zip(self.layers, self._caches(cache), strict=True):
            x = layer(x, **masks, cache=both and both[0])
        return self.final_norm(x)


class Decoder(_Stack):
    """Stack decoder layers.

    Args:
        dim: Width of a token.
        heads: Number of attention heads.
        hidden_dim: Width of the feed-forward networks' hidden layers.
        depth: Number of layers.
        final_norm: Whether a layer norm follows the last layer; by default only after
            pre-norm layers, which need it.
        **options: Keywords of
            [`LayerOptions`][transformers_hw.transformer.LayerOptions].

    Raises:
        ValueError: If a number is out of range, a name is unknown, or `heads` does not
            divide `dim`.

    Examples:
        >>> import torch
        >>> decoder = Decoder(12, heads=3, hidden_dim=48, depth=2)
        >>> decoder(torch.randn(2, 5, 12), torch.randn(2, 7, 12)).shape
        torch.Size([2, 5, 12])
    """

    layer = DecoderLayer

    @checked
    def forward(
        self,
        x: Float[Tensor, "b t {self.config.dim}"],
        memory: Float[Tensor, "b s {self.config.dim}"],
        *,
        mask: Bool[Tensor, "*#b_h #t #keys"] | None = None,
        padding_mask: Bool[Tensor, "b keys"] | None = None,
        causal: bool = True,
        memory_mask: Bool[Tensor, "*#b_m #t #s"] | None = None,
        memory_padding_mask: Bool[Tensor, "b s"] | None = None,
        rotary: Callable[..., Tensor] | None = None,
        cache: DecoderCache | None = None,
    ) -> Float[Tensor, "b t {self.config.dim}"]:
        """Transform target tokens; the arguments are those of `DecoderLayer`."""
        for layer, both in zip(self.layers, self._caches(cache), strict=True):
            x = layer(
                x,
                memory,
                mask=mask,
                padding_mask=padding_mask,
                causal=causal,
                memory_mask=memory_mask,
                memory_padding_mask=memory_padding_mask,
                rotary=rotary,
                cache=both,
            )
        return self.final_norm(x)
