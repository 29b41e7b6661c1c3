"""An encoder of texts: BERT."""

from typing import Unpack

import torch
import torch.nn.functional as F
from einops import rearrange, reduce
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from transformers_hw._checks import (
    check_axes,
    check_below,
    check_float,
    check_integers,
    check_mask,
    check_sizes,
)
from transformers_hw.positional_encoding import LearnedPositions
from transformers_hw.transformer.parts import LayerNorm
from transformers_hw.transformer.stacks import Encoder, LayerOptions


class Bert(nn.Module):
    r"""Encode texts: each token in the light of all others.

    A token, its position and the segment it belongs to have an embedding each. Their
    sum is normalised, and a post-norm encoder without a causal mask does the rest:

    $$
    h = \operatorname{Encoder}\!\big(N(E_{w_i} + P_i + S_{g_i})\big)_{i = 1, \dots, n}
    $$

    Args:
        vocabulary: Number of tokens.
        dim: Width of a token.
        depth: Number of layers.
        heads: Number of attention heads.
        hidden_dim: Width of the feed-forward networks' hidden layers; `4 * dim` by
            default.
        length: The most tokens of a text.
        segments: Number of segments.
        summary: Whether there is a layer that sums up a text from its first token.
        **options: Of each
            [`EncoderLayer`][transformers_hw.transformer.EncoderLayer]; `norm` is
            `"post"`, `activation` `"gelu"` and `eps` $10^{-12}$ by default.

    Raises:
        ValueError: If an argument is not valid.

    Examples:
        >>> model = Bert(100, dim=12, depth=2, heads=3, length=16)
        >>> model(torch.tensor([[7, 8, 9], [7, 9, 0]])).shape
        torch.Size([2, 3, 12])

    References:
        Devlin et al. (2019), [BERT](https://arxiv.org/abs/1810.04805), section 3 and
        figure 2.
    """

    def __init__(
        self,
        vocabulary: int,
        *,
        dim: int,
        depth: int,
        heads: int,
        hidden_dim: int | None = None,
        length: int = 512,
        segments: int = 2,
        summary: bool = True,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__()
        check_sizes(vocabulary=vocabulary, dim=dim, length=length, segments=segments)
        layers: LayerOptions = {
            "norm": "post",
            "activation": "gelu",
            "eps": 1e-12,
            **options,
        }
        device, dtype = options.get("device"), options.get("dtype")
        place = {"device": device, "dtype": dtype}
        self.tokens = nn.Embedding(vocabulary, dim, **place)
        self.positions = LearnedPositions(length, dim, **place)
        self.segments = nn.Embedding(segments, dim, **place)
        self.norm = LayerNorm(dim, eps=layers.get("eps", 1e-12), **place)
        self.dropout = nn.Dropout(options.get("dropout", 0.0))
        hidden_dim = 4 * dim if hidden_dim is None else hidden_dim
        self.encoder = Encoder(dim, heads, hidden_dim, depth, **layers)
        self.summary = nn.Linear(dim, dim, **place) if summary else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw embeddings and the summary as small as the paper's; zero the bias."""
        for layer in (self.tokens, self.segments, self.summary):
            if layer is not None:
                nn.init.trunc_normal_(layer.weight, std=0.02)
        if self.summary is not None:
            nn.init.zeros_(self.summary.bias)

    def forward(
        self,
        tokens: Int[Tensor, "b n"],
        *,
        padding_mask: Bool[Tensor, "b n"] | None = None,
        segments: Int[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b n d"]:
        """Encode texts.

        Args:
            tokens: The texts' tokens.
            padding_mask: Which tokens are real; all by default.
            segments: Which segment each token belongs to; the first by default.

        Returns:
            A vector for each token, the last hidden states.

        Raises:
            TypeError: If tokens or segments are not integers.
            ValueError: If shapes do not fit, a text is too long, or a number is none
                of a token or a segment.
        """
        check_integers("tokens", tokens, "batch", "length")
        check_below("tokens", tokens, self.tokens.num_embeddings)
        if segments is None:
            segments = torch.zeros_like(tokens)
        check_integers("segments", segments, *tokens.shape)
        check_below("segments", segments, self.segments.num_embeddings)
        embedded = self.positions(self.tokens(tokens)) + self.segments(segments)
        return self.encoder(
            self.dropout(self.norm(embedded)), padding_mask=padding_mask
        )

    def summarise(self, hidden: Float[Tensor, "b n d"]) -> Float[Tensor, "b d"]:
        """Sum up each text from its first token, as BERT's pooler does.

        Args:
            hidden: What `forward` gave.

        Returns:
            A vector for each text, of numbers between -1 and 1.

        Raises:
            TypeError: If `hidden` is not floating-point.
            ValueError: If the shape does not fit, or the model has no layer for it.
        """
        if self.summary is None:
            raise ValueError(
                "the model must have been made with summary=True, got summary=False."
            )
        check_float("hidden", hidden, "batch", "length", self.summary.in_features)
        return torch.tanh(self.summary(hidden[:, 0]))


def mean_of_tokens(
    hidden: Float[Tensor, "b n d"], padding_mask: Bool[Tensor, "b n"]
) -> Float[Tensor, "b d"]:
    r"""Represent each text by the mean of its real tokens, of length one.

    Then the product of two such vectors is the cosine of the angle between them.

    Args:
        hidden: A vector for each token.
        padding_mask: Which tokens are real.

    Returns:
        A vector of length one for each text; zero for a text without tokens.

    Raises:
        TypeError: If `hidden` is not floating-point, or the mask not boolean.
        ValueError: If the shapes do not fit.

    Examples:
        >>> hidden = torch.tensor([[[3.0, 4.0], [9.0, 9.0]]])
        >>> mean_of_tokens(hidden, torch.tensor([[True, False]]))
        tensor([[0.6000, 0.8000]])

    References:
        Reimers & Gurevych (2019), [Sentence-BERT](https://arxiv.org/abs/1908.10084),
        section 3.
    """
    check_float("hidden", hidden, "batch", "length", "width")
    check_mask("padding_mask", padding_mask, "a real token")
    check_axes("padding_mask", padding_mask, *hidden.shape[:2])
    real = hidden.masked_fill(~rearrange(padding_mask, "b n -> b n 1"), 0.0)
    # Over all places, zeros included, it has the same direction.
    mean = reduce(real, "b n d -> b d", "mean")
    return F.normalize(mean, dim=-1, eps=torch.finfo(mean.dtype).tiny)
