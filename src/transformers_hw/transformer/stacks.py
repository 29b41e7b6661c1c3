"""Layers stacked: the encoder and the decoder."""

from typing import TypedDict, Unpack

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from transformers_hw._checks import check_sizes
from transformers_hw.multi_head_attention import KeyValueCache
from transformers_hw.transformer.layers import DecoderLayer, EncoderLayer, NormPlace
from transformers_hw.transformer.parts import Activation, LayerNorm


class LayerOptions(TypedDict, total=False):
    """What a stack passes on to each of its layers.

    Attributes:
        norm: `"pre"` (the default) or `"post"`, where to normalise.
        activation: `"relu"` (the default), `"gelu"` or `"gelu_tanh"`.
        dropout: Probability of dropping in training; zero by default.
        eps: Of the layer normalisations; $10^{-5}$ by default.
        bias: Whether projections and normalisations have biases; they do by
            default.
        device: Where to put the parameters.
        dtype: Type of the parameters.
    """

    norm: NormPlace
    activation: Activation
    dropout: float
    eps: float
    bias: bool
    device: torch.device | str | None
    dtype: torch.dtype | None


class Encoder(nn.Module):
    """Stack encoder layers.

    Args:
        dim: Width of a token.
        heads: Number of attention heads.
        hidden_dim: Width of the feed-forward networks' hidden layers.
        depth: Number of layers.
        final_norm: Whether to normalise after the last layer; by default just
            where it is needed, for pre-norm.
        **options: Of each
            [`EncoderLayer`][transformers_hw.transformer.EncoderLayer].

    Raises:
        ValueError: If an argument is not valid.

    Examples:
        >>> encoder = Encoder(12, heads=3, hidden_dim=48, depth=2, norm="post")
        >>> encoder(torch.randn(2, 5, 12)).shape
        torch.Size([2, 5, 12])
    """

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
        check_sizes(depth=depth)
        self.layers = nn.ModuleList(
            EncoderLayer(dim, heads, hidden_dim, **options) for _ in range(depth)
        )
        self.final_norm = _final_norm(dim, final_norm, options)

    def forward(
        self,
        x: Float[Tensor, "b n d"],
        *,
        mask: Bool[Tensor, "*#b_h #n #n"] | None = None,
        padding_mask: Bool[Tensor, "b n"] | None = None,
        bias: Float[Tensor, "*#b_h #n #n"] | None = None,
        causal: bool = False,
        first: int | None = None,
    ) -> Float[Tensor, "b m d"]:
        """Transform a sequence; the options are those of `EncoderLayer`.

        With `first`, all layers but the last give all tokens: the next one looks at
        them. Of the last layer only those that are asked for are computed.
        """
        masks = {"mask": mask, "padding_mask": padding_mask, "bias": bias}
        *others, last = self.layers
        for layer in others:
            x = layer(x, **masks, causal=causal)
        return self.final_norm(last(x, **masks, causal=causal, first=first))


class DecoderCache:
    """The keys and values of every decoder layer, for decoding step by step.

    Args:
        depth: Number of layers.
    """

    def __init__(self, depth: int) -> None:
        check_sizes(depth=depth)
        self.layers = [(KeyValueCache(), KeyValueCache()) for _ in range(depth)]

    @property
    def length(self) -> int:
        """Number of target tokens seen so far."""
        return self.layers[0][0].length

    def select(self, rows: Int[Tensor, " chosen"]) -> None:
        """Keep these rows of the batch, which must share their source in pairs.

        Only self-attention is reordered: the beams of one sample look at the
        same memory.
        """
        for own, _ in self.layers:
            own.select(rows)


class Decoder(nn.Module):
    """Stack decoder layers.

    Args:
        dim: Width of a token.
        heads: Number of attention heads.
        hidden_dim: Width of the feed-forward networks' hidden layers.
        depth: Number of layers.
        final_norm: Whether to normalise after the last layer; by default just
            where it is needed, for pre-norm.
        **options: Of each
            [`DecoderLayer`][transformers_hw.transformer.DecoderLayer].

    Raises:
        ValueError: If an argument is not valid.

    Examples:
        >>> decoder = Decoder(12, heads=3, hidden_dim=48, depth=2)
        >>> decoder(torch.randn(2, 5, 12), torch.randn(2, 7, 12)).shape
        torch.Size([2, 5, 12])
    """

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
        check_sizes(depth=depth)
        self.layers = nn.ModuleList(
            DecoderLayer(dim, heads, hidden_dim, **options) for _ in range(depth)
        )
        self.final_norm = _final_norm(dim, final_norm, options)

    def forward(
        self,
        x: Float[Tensor, "b t d"],
        memory: Float[Tensor, "b s d"],
        *,
        mask: Bool[Tensor, "*#b_h #t #keys"] | None = None,
        padding_mask: Bool[Tensor, "b keys"] | None = None,
        causal: bool = True,
        memory_mask: Bool[Tensor, "*#b_h #t #s"] | None = None,
        memory_padding_mask: Bool[Tensor, "b s"] | None = None,
        cache: DecoderCache | None = None,
    ) -> Float[Tensor, "b t d"]:
        """Transform target tokens; the options are those of `DecoderLayer`."""
        caches = [None] * len(self.layers) if cache is None else cache.layers
        if len(caches) != len(self.layers):
            raise ValueError(
                f"cache must be for {len(self.layers)} layers, got {len(caches)}."
            )
        for layer, layer_cache in zip(self.layers, caches, strict=True):
            x = layer(
                x,
                memory,
                mask=mask,
                padding_mask=padding_mask,
                causal=causal,
                memory_mask=memory_mask,
                memory_padding_mask=memory_padding_mask,
                cache=layer_cache,
            )
        return self.final_norm(x)


def _final_norm(dim: int, wanted: bool | None, options: LayerOptions) -> nn.Module:
    if wanted is None:
        wanted = options.get("norm", "pre") == "pre"
    if not wanted:
        return nn.Identity()
    return LayerNorm(
        dim,
        eps=options.get("eps", 1e-5),
        bias=options.get("bias", True),
        device=options.get("device"),
        dtype=options.get("dtype"),
    )
