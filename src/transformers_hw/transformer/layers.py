"""The layers of the encoder and of the decoder."""

from collections.abc import Callable
from typing import Any, ClassVar, Unpack

from jaxtyping import Bool, Float
from torch import Tensor, nn

from transformers_hw._engine.shapes import checked
from transformers_hw.multi_head_attention import (
    PROJECTIONS,
    KeyValueCache,
    MultiHeadAttention,
)
from transformers_hw.transformer.config import (
    LayerConfig,
    LayerOptions,
    split_options,
)
from transformers_hw.transformer.parts import (
    DropPath,
    LayerNorm,
    LayerScale,
    RMSNorm,
    network_of,
    norm_of,
)


class _Layer(nn.Module):
    """What both layers share: attentions, a network, and a norm for each."""

    attentions: ClassVar[tuple[str, ...]]

    @checked
    def __init__(
        self, dim: int, heads: int, hidden_dim: int, **options: Unpack[LayerOptions]
    ) -> None:
        super().__init__()
        settings, factory = split_options(options)
        self.config = config = LayerConfig(dim, heads, hidden_dim, **settings)
        for name in self.attentions:
            own = name != "cross_attention"  # a window is around a token's own place
            near = {"window": config.window, "sinks": config.sinks} if own else {}
            attention = MultiHeadAttention(
                dim,
                heads,
                head_dim=config.head_dim,
                dropout=config.dropout,
                bias=config.biases(*PROJECTIONS),
                kv_heads=config.kv_heads,
                qk_norm=config.qk_norm,
                qk_eps=config.eps,
                softcap=config.softcap,
                **near,
                **factory,
            )
            self.add_module(name, attention)
        self.feed_forward = network_of(config, **factory)
        sublayers = (*self.attentions, "feed_forward")
        for name in sublayers:
            self.add_module(f"{name}_norm", norm_of(config, **factory))
        for name in sublayers:
            scale: nn.Module = nn.Identity()
            if config.layer_scale is not None:
                scale = LayerScale(dim, initial=config.layer_scale, **factory)
            self.add_module(f"{name}_scale", scale)
        self.dropout = nn.Dropout(config.dropout)
        self.drop_path = DropPath(config.drop_path)

    def _residual(
        self, x: Tensor, name: str, sublayer: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Add to `x` what a sublayer computes from it."""
        norm, scale = getattr(self, f"{name}_norm"), getattr(self, f"{name}_scale")
        if self.config.norm == "pre":
            return x + self.drop_path(scale(self.dropout(sublayer(norm(x)))))
        return norm(x + self.drop_path(scale(self.dropout(sublayer(x)))))


class EncoderLayer(_Layer):
    r"""Apply self-attention, then a position-wise feed-forward network.

    With $N$ for the layer norms, the two sublayers are

    $$
    \begin{aligned}
    \text{pre-norm:} \quad & y = x + \operatorname{MultiHead}(N(x)), &
    z &= y + \operatorname{FFN}(N(y)) \\
    \text{post-norm:} \quad & y = N(x + \operatorname{MultiHead}(x)), &
    z &= N(y + \operatorname{FFN}(y))
    \end{aligned}
    $$

    Args:
        dim: Width of a token.
        heads: Number of attention heads.
        hidden_dim: Width of the feed-forward network's hidden layer.
        **options: Keywords of
            [`LayerOptions`][transformers_hw.transformer.LayerOptions].

    Raises:
        ValueError: If a number is out of range, a name is unknown, or `heads` does not
            divide `dim`.

    Examples:
        >>> import torch
        >>> EncoderLayer(12, heads=3, hidden_dim=48)(torch.randn(2, 5, 12)).shape
        torch.Size([2, 5, 12])

    References:
        Vaswani et al. (2017), [Attention Is All You Need
        ](https://arxiv.org/abs/1706.03762), section 3.1; Xiong et al. (2020), [On
        Layer Normalization in the Transformer Architecture
        ](https://arxiv.org/abs/2002.04745), figure 1, for pre-norm and post-norm.
    """

    attentions = ("attention",)
    attention: MultiHeadAttention
    attention_norm: LayerNorm | RMSNorm
    feed_forward_norm: LayerNorm | RMSNorm

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
        cache: KeyValueCache | None = None,
    ) -> Float[Tensor, "b n {self.config.dim}"]:
        """Transform a sequence, with the masks of `MultiHeadAttention`.

        Args:
            x: Tokens.
            mask: Which tokens may see which.
            padding_mask: Which tokens are real.
            bias: Numbers added to the scores.
            causal: Whether later tokens are hidden from earlier ones.
            rotary: What turns queries and keys by their positions.
            cache: Keys and values of the tokens before these, for a causal layer that
                is called step by step; the masks then cover all tokens.

        Returns:
            The transformed tokens.
        """

        def attend(x: Tensor) -> Tensor:
            masks: dict[str, Any] = {"mask": mask, "padding_mask": padding_mask}
            masks |= {"bias": bias, "causal": causal}
            return self.attention(x, **masks, rotary=rotary, cache=cache)

        x = self._residual(x, "attention", attend)
        return self._residual(x, "feed_forward", self.feed_forward)


class DecoderLayer(_Layer):
    """Apply masked self-attention, cross-attention and a feed-forward network.

    Between the sublayers of an
    [`EncoderLayer`][transformers_hw.transformer.EncoderLayer] stands a third,
    cross-attention: its queries come from the target, its keys and values from the
    encoder's output.

    Args:
        dim: Width of a token.
        heads: Number of attention heads.
        hidden_dim: Width of the feed-forward network's hidden layer.
        **options: Keywords of
            [`LayerOptions`][transformers_hw.transformer.LayerOptions].

    Raises:
        ValueError: If a number is out of range, a name is unknown, or `heads` does not
            divide `dim`.

    Examples:
        >>> import torch
        >>> layer = DecoderLayer(12, heads=3, hidden_dim=48)
        >>> layer(torch.randn(2, 5, 12), torch.randn(2, 7, 12)).shape
        torch.Size([2, 5, 12])
    """

    attentions = ("self_attention", "cross_attention")
    self_attention: MultiHeadAttention
    self_attention_norm: LayerNorm | RMSNorm
    cross_attention: MultiHeadAttention
    cross_attention_norm: LayerNorm | RMSNorm
    feed_forward_norm: LayerNorm | RMSNorm

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
        cache: tuple[KeyValueCache, KeyValueCache] | None = None,
    ) -> Float[Tensor, "b t {self.config.dim}"]:
        """Transform target tokens, given the encoder's output.

        Args:
            x: Target tokens.
            memory: Output of the encoder.
            mask: Which target tokens may see which.
            padding_mask: Which target tokens are real.
            causal: Whether later target tokens are hidden from earlier ones.
            memory_mask: Which target tokens may see which tokens of the memory.
            memory_padding_mask: Which tokens of the memory are real.
            rotary: What turns the queries and keys of self-attention by their
                positions.
            cache: Keys and values of self-attention and of cross-attention, for
                decoding step by step.

        Returns:
            The transformed target tokens.
        """
        self_cache, cross_cache = cache or (None, None)

        def attend_to_self(x: Tensor) -> Tensor:
            masks: dict[str, Any] = {"mask": mask, "padding_mask": padding_mask}
            masks |= {"causal": causal, "rotary": rotary}
            return self.self_attention(x, **masks, cache=self_cache)

        def attend_to_memory(x: Tensor) -> Tensor:
            masks = {"mask": memory_mask, "padding_mask": memory_padding_mask}
            return self.cross_attention(x, memory, **masks, cache=cross_cache)

        x = self._residual(x, "self_attention", attend_to_self)
        x = self._residual(x, "cross_attention", attend_to_memory)
        return self._residual(x, "feed_forward", self.feed_forward)
