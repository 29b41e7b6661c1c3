"""BERT: a Transformer encoder of texts."""

from dataclasses import KW_ONLY, dataclass, replace
from typing import Unpack

import torch
from einops import einsum, rearrange, reduce
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from transformers_hw._engine.arguments import check_below, check_sizes
from transformers_hw._engine.shapes import checked
from transformers_hw.positional_encoding import LearnedPositions
from transformers_hw.transformer.config import (
    Activation,
    LayerConfig,
    LayerOptions,
    Norm,
    split_options,
)
from transformers_hw.transformer.parts import norm_of
from transformers_hw.transformer.stacks import Encoder


@dataclass(frozen=True)
class BertConfig(LayerConfig):
    """The settings of a BERT: `Bert(**asdict(config))` builds it again.

    Attributes:
        depth: Number of layers.
        vocab_size: Number of tokens.
        max_length: Greatest number of tokens of a text.
        num_segments: Number of segments.
        pooler: Whether there is a pooler.
        norm: Where the layer norm stands.
        activation: Activation of the feed-forward networks.
        eps: Added to the variance in each layer norm, for numerical stability.
    """

    depth: int
    vocab_size: int
    max_length: int
    num_segments: int
    pooler: bool
    _: KW_ONLY
    norm: Norm = "post"
    activation: Activation = "gelu"
    eps: float = 1e-12

    def __post_init__(self) -> None:
        """Raise unless sizes are positive."""
        super().__post_init__()
        check_sizes(
            vocab_size=self.vocab_size,
            max_length=self.max_length,
            num_segments=self.num_segments,
        )


class Bert(nn.Module):
    r"""Encode texts: each token in the context of all others.

    A token, its position and its segment have an embedding each. The sum of the three
    is normalized and passes through a post-norm encoder without a causal mask:

    $$
    h = \operatorname{Encoder}\!\big(N(E_{w_i} + P_i + S_{g_i})\big)_{i = 1, \dots, n}
    $$

    Args:
        vocab_size: Number of tokens.
        dim: Width of a token.
        depth: Number of layers.
        heads: Number of attention heads.
        hidden_dim: Width of the feed-forward networks' hidden layers; `4 * dim` by
            default.
        max_length: Greatest number of tokens of a text.
        num_segments: Number of segments.
        pooler: Whether there is a pooler, a layer on top of the first token.
        **options: Keywords of
            [`LayerOptions`][transformers_hw.transformer.LayerOptions]; here `norm` is
            `"post"`, `activation` `"gelu"` and `eps` $10^{-12}$ by default.

    Raises:
        ValueError: If a number is out of range, a name is unknown, or `heads` does not
            divide `dim`.

    Examples:
        >>> model = Bert(100, dim=12, depth=2, heads=3, max_length=16)
        >>> model(torch.tensor([[7, 8, 9], [7, 9, 0]])).shape
        torch.Size([2, 3, 12])

    References:
        Devlin et al. (2019), [BERT](https://arxiv.org/abs/1810.04805), section 3 and
        figure 2.
    """

    @checked
    def __init__(
        self,
        vocab_size: int,
        *,
        dim: int,
        depth: int,
        heads: int,
        hidden_dim: int | None = None,
        max_length: int = 512,
        num_segments: int = 2,
        pooler: bool = True,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__()
        settings, factory = split_options(options)
        sizes = (dim, heads, 4 * dim if hidden_dim is None else hidden_dim, depth)
        self.config = config = BertConfig(
            *sizes, vocab_size, max_length, num_segments, pooler, **settings
        )
        self.token_embedding = nn.Embedding(vocab_size, dim, **factory)
        self.positions = LearnedPositions(max_length, dim, **factory)
        self.segment_embedding = nn.Embedding(num_segments, dim, **factory)
        self.norm = norm_of(replace(config, bias=True), **factory)
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = Encoder(*sizes, **config.options, **factory)
        self.pooler = nn.Linear(dim, dim, **factory) if pooler else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw embeddings and the pooler with deviation 0.02; zero its bias."""
        for layer in (self.token_embedding, self.segment_embedding, self.pooler):
            if layer is not None:
                nn.init.trunc_normal_(layer.weight, std=0.02)
        if self.pooler is not None:
            nn.init.zeros_(self.pooler.bias)

    @checked
    def forward(
        self,
        tokens: Int[Tensor, "b n"],
        *,
        padding_mask: Bool[Tensor, "b n"] | None = None,
        segments: Int[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b n {self.config.dim}"]:
        """Encode texts.

        Args:
            tokens: Tokens of the texts.
            padding_mask: Which tokens are real; all by default.
            segments: Segment of each token; the first by default.

        Returns:
            A vector for each token, the last hidden states.

        Raises:
            ValueError: If a text is too long, or a token or segment is not below its
                number.
        """
        segments = torch.zeros_like(tokens) if segments is None else segments
        check_below("tokens", tokens, self.config.vocab_size)
        check_below("segments", segments, self.config.num_segments)
        embedded = self.positions(self.token_embedding(tokens))
        embedded = self.norm(embedded + self.segment_embedding(segments))
        return self.encoder(self.dropout(embedded), padding_mask=padding_mask)

    @checked
    def pool(
        self, hidden: Float[Tensor, "b n {self.config.dim}"]
    ) -> Float[Tensor, "b {self.config.dim}"]:
        """Represent each text by its first token, as BERT's pooler does.

        Args:
            hidden: Output of `forward`.

        Returns:
            A vector for each text, with entries between -1 and 1.

        Raises:
            ValueError: If the model has no pooler.
        """
        if self.pooler is None:
            raise ValueError(
                "the model must have been made with pooler=True, got pooler=False."
            )
        return torch.tanh(self.pooler(hidden[:, 0]))


@checked
def mean_pool(
    hidden: Float[Tensor, "b n d"], padding_mask: Bool[Tensor, "b n"]
) -> Float[Tensor, "b d"]:
    r"""Represent each text by the mean of its real tokens.

    For cosine similarities, normalize the means: `F.normalize(mean, dim=-1)`.

    Args:
        hidden: A vector for each token.
        padding_mask: Which tokens are real.

    Returns:
        A vector for each text; zero for a text without tokens.

    Examples:
        >>> hidden = torch.tensor([[[3.0, 4.0], [5.0, 0.0], [9.0, 9.0]]])
        >>> mean_pool(hidden, torch.tensor([[True, True, False]]))
        tensor([[4., 2.]])

    References:
        Reimers & Gurevych (2019), [Sentence-BERT](https://arxiv.org/abs/1908.10084),
        section 3.
    """
    # Padding may be anything, even NaN, which no weight of zero would remove.
    real = hidden.masked_fill(~rearrange(padding_mask, "b n -> b n 1"), 0.0)
    count = reduce(padding_mask, "b n -> b 1", "sum").clamp(min=1)
    count = count.to(torch.promote_types(hidden.dtype, torch.float32))
    weights = (padding_mask / count).to(hidden.dtype)
    return einsum(weights, real, "b n, b n d -> b d")
