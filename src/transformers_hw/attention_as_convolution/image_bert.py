r"""A BERT for images: the models of the paper's experiments.

Pixels are concatenated two by two into tokens, which keep their positions on a grid;
layers of attention and feed-forward networks follow, then the mean of all tokens, and a
linear classifier. The three models compared differ only in where the scores of their
attention come from.
"""

from dataclasses import dataclass
from typing import Literal, Unpack

import torch
from einops import rearrange, reduce
from jaxtyping import Float
from torch import Tensor, nn

from transformers_hw._engine.arguments import (
    Factory,
    check_dropout,
    check_sizes,
)
from transformers_hw._engine.shapes import checked
from transformers_hw.attention_as_convolution.gaussian import GaussianSelfAttention
from transformers_hw.attention_as_convolution.learned_relative import (
    LearnedRelativeSelfAttention,
)
from transformers_hw.transformer import FeedForward, LayerNorm
from transformers_hw.vision_transformer import PatchEmbedding

Encoding = Literal["gaussian", "learned", "learned+content"]


class BertFFN(nn.Module):
    r"""Apply the second half of a BERT layer: network, residual, layer norm.

    $$\operatorname{LayerNorm}(x + \operatorname{dropout}(\operatorname{GELU}(x W_1 +
    b_1) W_2 + b_2))$$

    Args:
        dim: Width of a token.
        hidden_dim: Width of the hidden layer.
        dropout: Probability of dropping an output of the network in training.
        eps: Added to the variance in the layer norm; BERT has $10^{-12}$.
        device: Device of the parameters.
        dtype: Dtype of the parameters.

    Raises:
        ValueError: If a size is not positive, or `dropout` is not a probability below
            one.

    Examples:
        >>> BertFFN(5, 11)(torch.randn(2, 3, 5)).shape
        torch.Size([2, 3, 5])
    """

    @checked
    def __init__(
        self,
        dim: int,
        hidden_dim: int,
        *,
        dropout: float = 0.0,
        eps: float = 1e-12,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_dropout(dropout)
        self.network = FeedForward(
            dim, hidden_dim, activation="gelu", device=device, dtype=dtype
        )
        self.dropout = nn.Dropout(dropout)
        self.norm = LayerNorm(dim, eps=eps, device=device, dtype=dtype)

    @checked
    def forward(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        """Transform each token."""
        return self.norm(x + self.dropout(self.network(x)))


class ImageBertLayer(nn.Module):
    r"""Attend over the image, then transform each token; a layer norm follows each.

    Args:
        attention: Layer that maps an image to an image of the same width.
        dim: Width of a token.
        hidden_dim: Width of the feed-forward network's hidden layer.
        dropout: Probability of dropping an output of either half in training.
        device: Device of the parameters.
        dtype: Dtype of the parameters.
    """

    @checked
    def __init__(
        self,
        attention: GaussianSelfAttention | LearnedRelativeSelfAttention,
        dim: int,
        hidden_dim: int,
        *,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.attention = attention
        self.output_proj = nn.Linear(dim, dim, device=device, dtype=dtype)
        self.dropout = nn.Dropout(dropout)
        self.norm = LayerNorm(dim, eps=1e-12, device=device, dtype=dtype)
        self.network = BertFFN(
            dim, hidden_dim, dropout=dropout, device=device, dtype=dtype
        )

    @checked
    def forward(
        self, x: Float[Tensor, "b rows columns d"]
    ) -> Float[Tensor, "b rows columns d"]:
        """Transform an image."""
        x = self.norm(x + self.dropout(self.output_proj(self.attention(x))))
        return self.network(x)


@dataclass(frozen=True)
class ImageBertConfig:
    """The settings of an image BERT: `ImageBert(**asdict(config))` builds it again.

    The attributes are the arguments of [`ImageBert`
    ][transformers_hw.attention_as_convolution.ImageBert].
    """

    num_classes: int
    encoding: Encoding
    channels: int
    patch_size: int
    dim: int
    depth: int
    heads: int
    hidden_dim: int
    dropout: float
    attention_dropout: float
    max_size: int


class ImageBert(nn.Module):
    r"""Classify images with attention that can learn to be a convolution.

    The defaults are the paper's sizes for CIFAR-10. With Gaussian encoding that makes

    $$
    \underbrace{12 \cdot 400 + 400}_{\text{tokens}} + 6\,\big(
    \underbrace{9 \cdot 3}_{\Delta, \alpha}
    + \underbrace{9 \cdot 400^2 + 400}_{W^{(h)}, b}
    + \underbrace{400^2 + 400}_{\text{output}}
    + \underbrace{2 \cdot 400 \cdot 512 + 912}_{\text{network}}
    + \underbrace{4 \cdot 400}_{\text{norms}}\big)
    + \underbrace{4010}_{\text{classes}} = 12\,086\,844
    $$

    parameters; with `"learned"`, $12\,278\,682$; with `"learned+content"`,
    $29\,484\,282$.

    Args:
        num_classes: Number of classes.
        encoding: `"gaussian"` for [`GaussianSelfAttention`
            ][transformers_hw.attention_as_convolution.GaussianSelfAttention],
            `"learned"` or `"learned+content"` for [`LearnedRelativeSelfAttention`
            ][transformers_hw.attention_as_convolution.LearnedRelativeSelfAttention].
        channels: Number of channels of an image.
        patch_size: Height and width of a token in pixels.
        dim: Width of a token, and of every head.
        depth: Number of layers.
        heads: Number of heads.
        hidden_dim: Width of the feed-forward networks' hidden layers.
        dropout: Probability of dropping an output of attention or of a feed-forward
            network in training.
        attention_dropout: Probability of dropping an attention weight in training, 0.1
            in the paper. Above zero, a training step needs the weights of all pairs of
            tokens.
        max_size: Greatest number of rows or columns of tokens, for learned encodings.
        **factory: `device` and `dtype` of the parameters.

    Raises:
        ValueError: If a size is not positive, `encoding` is unknown, or `dropout` or
            `attention_dropout` is not a probability below one.

    Examples:
        >>> model = ImageBert(dim=8, depth=2, heads=3, hidden_dim=11)
        >>> model(torch.randn(2, 3, 32, 32)).shape
        torch.Size([2, 10])

    References:
        Cordonnier, Loukas & Jaggi (2020), [On the Relationship between
        Self-Attention and Convolutional Layers](https://arxiv.org/abs/1911.03584),
        section 4 and table 1.
    """

    @checked
    def __init__(
        self,
        num_classes: int = 10,
        *,
        encoding: Encoding = "gaussian",
        channels: int = 3,
        patch_size: int = 2,
        dim: int = 400,
        depth: int = 6,
        heads: int = 9,
        hidden_dim: int = 512,
        dropout: float = 0.1,
        attention_dropout: float = 0.0,
        max_size: int = 16,
        **factory: Unpack[Factory],
    ) -> None:
        super().__init__()
        check_sizes(num_classes=num_classes, depth=depth)
        self.config = ImageBertConfig(
            num_classes=num_classes,
            encoding=encoding,
            channels=channels,
            patch_size=patch_size,
            dim=dim,
            depth=depth,
            heads=heads,
            hidden_dim=hidden_dim,
            dropout=dropout,
            attention_dropout=attention_dropout,
            max_size=max_size,
        )
        self.patch_embedding = PatchEmbedding(patch_size, channels, dim, **factory)

        def attention() -> GaussianSelfAttention | LearnedRelativeSelfAttention:
            if encoding == "gaussian":
                return GaussianSelfAttention(
                    dim, heads, dropout=attention_dropout, **factory
                )
            return LearnedRelativeSelfAttention(
                dim,
                heads,
                max_size=max_size,
                content=encoding == "learned+content",
                dropout=attention_dropout,
                **factory,
            )

        self.layers = nn.ModuleList(
            ImageBertLayer(attention(), dim, hidden_dim, dropout=dropout, **factory)
            for _ in range(depth)
        )
        self.classifier = nn.Linear(dim, num_classes, **factory)

    @checked
    def forward(
        self, images: Float[Tensor, "b channels height width"]
    ) -> Float[Tensor, "b classes"]:
        """Return the logits of the classes.

        Args:
            images: Images whose height and width are multiples of the patch size.
        """
        tokens = self.patch_embedding(images)
        for layer in self.layers:
            tokens = layer(tokens)
        return self.classifier(reduce(tokens, "b i j d -> b d", "mean"))

    def head_centers(self) -> Float[Tensor, "depth heads 2"]:
        """Return the centers of each layer's heads, to be watched during training.

        Raises:
            TypeError: If the encoding is not Gaussian: other heads have no centers.
        """
        if self.config.encoding != "gaussian":
            raise TypeError(
                f"the encoding must be 'gaussian', got {self.config.encoding!r}."
            )
        centers = [
            module.head_centers().detach()
            for module in self.modules()
            if isinstance(module, GaussianSelfAttention)
        ]
        return rearrange(centers, "depth heads two -> depth heads two")
