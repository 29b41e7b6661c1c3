"""The two layers: of the encoder and of the decoder."""

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from transformers_hw._checks import check_choice, check_sizes
from transformers_hw.multi_head_attention import KeyValueCache, MultiHeadAttention
from transformers_hw.transformer.parts import Activation, FeedForward, LayerNorm

NormPlace = Literal["pre", "post"]


class EncoderLayer(nn.Module):
    """Let tokens look at each other, then transform each alone.

    Args:
        dim: Width of a token.
        heads: Number of attention heads.
        hidden_dim: Width of the feed-forward network's hidden layer.
        norm: `"pre"` or `"post"`, where to normalise.
        activation: Of the feed-forward network.
        dropout: Probability of dropping a weight, a hidden unit, or a feature
            that is about to be added to a token.
        eps: Of the layer normalisations.
        bias: Whether projections and normalisations have biases.
        device: Where to put the parameters.
        dtype: Type of the parameters.

    Raises:
        ValueError: If an argument is not valid.

    Examples:
        >>> EncoderLayer(12, heads=3, hidden_dim=48)(torch.randn(2, 5, 12)).shape
        torch.Size([2, 5, 12])

    References:
        Vaswani et al. (2017), [Attention Is All You Need
        ](https://arxiv.org/abs/1706.03762), section 3.1; Xiong et al. (2020), [On
        Layer Normalization in the Transformer Architecture
        ](https://arxiv.org/abs/2002.04745), figure 1, for the two places of the norm.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        hidden_dim: int,
        *,
        norm: NormPlace = "pre",
        activation: Activation = "relu",
        dropout: float = 0.0,
        eps: float = 1e-5,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_choice("norm", norm, ("pre", "post"))
        place = {"device": device, "dtype": dtype}
        self.norm = norm
        self.attention = MultiHeadAttention(
            dim, heads, dropout=dropout, bias=bias, **place
        )
        self.attention_norm = LayerNorm(dim, eps=eps, bias=bias, **place)
        self.feed_forward = FeedForward(
            dim, hidden_dim, activation=activation, dropout=dropout, bias=bias, **place
        )
        self.feed_forward_norm = LayerNorm(dim, eps=eps, bias=bias, **place)
        self.dropout = nn.Dropout(dropout)

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
        """Transform a sequence; the masks are those of `MultiHeadAttention`.

        Args:
            x: The tokens.
            mask: Which tokens may see which.
            padding_mask: Which tokens are real.
            bias: Added to the scores.
            causal: Whether later tokens are hidden from earlier ones.
            first: Give only so many tokens, the first: only these ask, while all
                are looked at. All by default.

        Returns:
            The transformed tokens that were asked for.

        Raises:
            ValueError: If `first` is not a number of tokens, or is given together
                with `causal`, which aligns the last of those who ask with the last
                token.
        """
        if first is not None:
            check_sizes(first=first)
            if first > x.shape[1] or causal:
                raise ValueError(
                    f"first must be at most {x.shape[1]}, the tokens there are, and "
                    f"not be given if causal, got {first} and causal={causal}."
                )
            # A mask of one row is for all who ask.
            mask, bias = (m if m is None else m[..., :first, :] for m in (mask, bias))

        def attend(x: Tensor) -> Tensor:
            masks = {"mask": mask, "padding_mask": padding_mask, "bias": bias}
            return self.attention(_first(x, first), x, **masks, causal=causal)[0]

        x = _residual(self, x, attend, self.attention_norm, first)
        return _residual(self, x, self.feed_forward, self.feed_forward_norm)


class DecoderLayer(nn.Module):
    """Look at the tokens so far, then at the encoder's output, then transform.

    Args:
        dim: Width of a token.
        heads: Number of attention heads.
        hidden_dim: Width of the feed-forward network's hidden layer.
        norm: `"pre"` or `"post"`, where to normalise.
        activation: Of the feed-forward network.
        dropout: As in
            [`EncoderLayer`][transformers_hw.transformer.EncoderLayer].
        eps: Of the layer normalisations.
        bias: Whether projections and normalisations have biases.
        device: Where to put the parameters.
        dtype: Type of the parameters.

    Raises:
        ValueError: If an argument is not valid.

    Examples:
        >>> layer = DecoderLayer(12, heads=3, hidden_dim=48)
        >>> layer(torch.randn(2, 5, 12), torch.randn(2, 7, 12)).shape
        torch.Size([2, 5, 12])
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        hidden_dim: int,
        *,
        norm: NormPlace = "pre",
        activation: Activation = "relu",
        dropout: float = 0.0,
        eps: float = 1e-5,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_choice("norm", norm, ("pre", "post"))
        place = {"device": device, "dtype": dtype}
        self.norm = norm
        self.self_attention = MultiHeadAttention(
            dim, heads, dropout=dropout, bias=bias, **place
        )
        self.self_attention_norm = LayerNorm(dim, eps=eps, bias=bias, **place)
        self.cross_attention = MultiHeadAttention(
            dim, heads, dropout=dropout, bias=bias, **place
        )
        self.cross_attention_norm = LayerNorm(dim, eps=eps, bias=bias, **place)
        self.feed_forward = FeedForward(
            dim, hidden_dim, activation=activation, dropout=dropout, bias=bias, **place
        )
        self.feed_forward_norm = LayerNorm(dim, eps=eps, bias=bias, **place)
        self.dropout = nn.Dropout(dropout)

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
        cache: tuple[KeyValueCache, KeyValueCache] | None = None,
    ) -> Float[Tensor, "b t d"]:
        """Transform target tokens in the light of the encoder's output.

        Args:
            x: Target tokens.
            memory: The encoder's output.
            mask: Which target tokens may see which.
            padding_mask: Which target tokens are real.
            causal: Whether later target tokens are hidden from earlier ones.
            memory_mask: Which target tokens may see which of the memory's.
            memory_padding_mask: Which tokens of the memory are real.
            cache: The keys and values of self- and of cross-attention, for
                decoding step by step.

        Returns:
            The transformed target tokens.
        """
        own, other = cache or (None, None)

        def attend_to_self(x: Tensor) -> Tensor:
            masks = {"mask": mask, "padding_mask": padding_mask, "causal": causal}
            return self.self_attention(x, **masks, cache=own)[0]

        def attend_to_memory(x: Tensor) -> Tensor:
            masks = {"mask": memory_mask, "padding_mask": memory_padding_mask}
            return self.cross_attention(x, memory, **masks, cache=other)[0]

        x = _residual(self, x, attend_to_self, self.self_attention_norm)
        x = _residual(self, x, attend_to_memory, self.cross_attention_norm)
        return _residual(self, x, self.feed_forward, self.feed_forward_norm)


def _residual(
    layer: EncoderLayer | DecoderLayer,
    x: Tensor,
    sublayer: Callable[[Tensor], Tensor],
    norm: LayerNorm,
    first: int | None = None,
) -> Tensor:
    if layer.norm == "pre":
        return _first(x, first) + layer.dropout(sublayer(norm(x)))
    return norm(_first(x, first) + layer.dropout(sublayer(x)))


def _first(x: Tensor, first: int | None) -> Tensor:
    return x if first is None else x[:, :first]
