"""Attention pooling: a learned query reads the tokens of an image."""

from typing import Unpack

import torch
from einops import rearrange, repeat
from jaxtyping import Float
from torch import Tensor, nn

from transformers_hw._engine.arguments import Factory
from transformers_hw._engine.shapes import checked
from transformers_hw.multi_head_attention import MultiHeadAttention
from transformers_hw.transformer import FeedForward, LayerNorm
from transformers_hw.transformer.config import Activation


class AttentionPooling(nn.Module):
    r"""Pool tokens with a learned query that attends to all of them.

    $$
    y = \operatorname{MultiHead}(p, Z), \qquad
    \operatorname{pool}(Z) = y + \operatorname{FFN}(N(y))
    $$

    The probe $p$ is the only query. A class token is a query as well, but it is
    updated by every layer, and patches attend to it; the probe appears once, at the
    end.

    Args:
        dim: Width of a token.
        heads: Number of attention heads.
        hidden_dim: Width of the feed-forward network's hidden layer.
        activation: Activation of the feed-forward network.
        dropout: Probability of dropping an attention weight or a hidden unit in
            training.
        eps: Added to the variance in the layer norm, for numerical stability.
        **factory: `device` and `dtype` of the parameters.

    Raises:
        ValueError: If a number is out of range, a name is unknown, or `heads` does not
            divide `dim`.

    Examples:
        >>> AttentionPooling(12, heads=3, hidden_dim=48)(torch.randn(2, 5, 12)).shape
        torch.Size([2, 12])

    References:
        Zhai et al. (2022), [Scaling Vision Transformers
        ](https://arxiv.org/abs/2106.04560), section 3.2; Lee et al. (2019), [Set
        Transformer](https://arxiv.org/abs/1810.00825), section 3.2.
    """

    @checked
    def __init__(
        self,
        dim: int,
        heads: int,
        hidden_dim: int,
        *,
        activation: Activation = "gelu",
        dropout: float = 0.0,
        eps: float = 1e-6,
        **factory: Unpack[Factory],
    ) -> None:
        super().__init__()
        self.dim = dim
        self.attention = MultiHeadAttention(dim, heads, dropout=dropout, **factory)
        self.norm = LayerNorm(dim, eps=eps, **factory)
        self.feed_forward = FeedForward(
            dim, hidden_dim, activation=activation, dropout=dropout, **factory
        )
        self.probe = nn.Parameter(torch.empty(dim, **factory))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the probe anew."""
        nn.init.trunc_normal_(self.probe, std=self.dim**-0.5)

    @checked
    def forward(
        self, tokens: Float[Tensor, "b n {self.dim}"]
    ) -> Float[Tensor, "b {self.dim}"]:
        """Return one vector for the tokens of each image."""
        probe = repeat(self.probe, "d -> b 1 d", b=tokens.shape[0])
        y = self.attention(probe, tokens)
        y = y + self.feed_forward(self.norm(y))
        return rearrange(y, "b 1 d -> b d")
