r"""A BERT for pictures: the model in which the theorem was looked for.

Pixels are concatenated two by two into tokens, which keep their places on a grid;
layers of attention and small networks follow, then the mean of all tokens, and a
linear classifier. What differs between the three models compared is only where the
attention comes from.
"""

from typing import Literal

import torch
from einops import einsum, rearrange, reduce
from jaxtyping import Float
from torch import Tensor, nn

from transformers_hw._checks import (
    check_choice,
    check_dropout,
    check_float,
    check_sizes,
)
from transformers_hw.attention import attention
from transformers_hw.attention_as_convolution.assignment import BertFFN
from transformers_hw.attention_as_convolution.gaussian import GaussianSelfAttention
from transformers_hw.attention_as_convolution.mixing import (
    _check_picture,
    _outer,
    mix_densely,
    mix_separably,
)
from transformers_hw.transformer import LayerNorm

Encoding = Literal["gaussian", "learned", "learned+content"]
ENCODINGS = ("gaussian", "learned", "learned+content")


class LearnedRelativeSelfAttention(nn.Module):
    r"""Learn a vector for each row distance and each column distance.

    $$
    s^{(h)}_{q,k} = u_h^\top a_{k_1 - q_1} + w_h^\top b_{k_2 - q_2}
    \;\left(+\, \tfrac{1}{\sqrt{D}}\, x_q W_q^{(h)} (x_k W_k^{(h)})^\top\right), \qquad
    Y = \sum_h \operatorname{softmax}(s^{(h)}) X W^{(h)} + b
    $$

    The part that looks at positions alone is a sum over the two axes, so without the
    part in brackets it factorises as Gaussian attention does, and costs as little.

    Args:
        dim: Width $D$ of a pixel, and of every head.
        heads: Number of heads.
        longest: The most rows or columns a picture may have.
        content: Whether to add the part in brackets.
        device: Where to put the parameters.
        dtype: Type of the parameters.

    Raises:
        ValueError: If a size is not positive.

    Examples:
        >>> layer = LearnedRelativeSelfAttention(5, heads=3, longest=11)
        >>> layer(torch.randn(2, 7, 11, 5))[0].shape
        torch.Size([2, 7, 11, 5])

    References:
        Cordonnier, Loukas & Jaggi (2020), [On the Relationship between
        Self-Attention and Convolutional Layers](https://arxiv.org/abs/1911.03584),
        section 4.3.
    """

    query_weight: nn.Parameter | None
    key_weight: nn.Parameter | None

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        longest: int = 16,
        content: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_sizes(dim=dim, heads=heads, longest=longest)

        def parameter(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape, device=device, dtype=dtype))

        self.longest = longest
        self.row_codes = parameter(2 * longest - 1, dim)
        self.column_codes = parameter(2 * longest - 1, dim)
        self.row_heads = parameter(heads, dim)
        self.column_heads = parameter(heads, dim)
        self.value_weight = parameter(heads, dim, dim)
        self.bias = parameter(dim)
        self.register_parameter(
            "query_weight", parameter(heads, dim, dim) if content else None
        )
        self.register_parameter(
            "key_weight", parameter(heads, dim, dim) if content else None
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all weights from a narrow normal distribution, as BERT does."""
        for weight in self.parameters():
            nn.init.normal_(weight, std=0.02)
        nn.init.zeros_(self.bias)

    def forward(
        self, x: Float[Tensor, "b rows columns d"], *, return_weights: bool = False
    ) -> tuple[
        Float[Tensor, "b rows columns d"],
        Float[Tensor, "*batch heads rows columns rows columns"] | None,
    ]:
        """Mix a picture.

        Args:
            x: The pixels, channels last.
            return_weights: Also give the weights of every head, which have a batch
                axis if they depend on the picture.

        Returns:
            The output, and the weights or `None`.

        Raises:
            TypeError: If `x` is not a floating-point tensor of the layer's type.
            ValueError: If `x` has the wrong shape or is too large.
        """
        _check_picture(x, self.value_weight)
        rows, columns = x.shape[1], x.shape[2]
        if max(rows, columns) > self.longest:
            raise ValueError(
                f"x must have at most {self.longest} rows and columns, "
                f"got shape {tuple(x.shape)}."
            )
        by_row = self._scores(self.row_codes, self.row_heads, rows)
        by_column = self._scores(self.column_codes, self.column_heads, columns)
        if self.query_weight is not None and self.key_weight is not None:
            bias = rearrange(by_row, "h i k -> h i 1 k 1") + rearrange(
                by_column, "h j l -> h 1 j 1 l"
            )
            bias = rearrange(bias, "h i j k l -> h (i j) (k l)")
            maps = (self.query_weight, self.key_weight)
            return self._by_content(x, bias, maps, return_weights)
        by_row, by_column = by_row.softmax(dim=-1), by_column.softmax(dim=-1)
        mixing = (x, self.value_weight, self.bias)
        if not return_weights:
            return mix_separably(by_row, by_column, *mixing), None
        weights = _outer(by_row, by_column)
        return mix_densely(weights, *mixing), weights

    def _scores(self, codes: Tensor, heads: Tensor, length: int) -> Tensor:
        by_distance = einsum(heads, codes, "h d, t d -> h t")
        at = torch.arange(length, device=codes.device)
        distance = at - rearrange(at, "q -> q 1")
        return by_distance[:, distance + self.longest - 1]

    def _by_content(
        self, x: Tensor, bias: Tensor, maps: tuple[Tensor, Tensor], return_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        tokens = rearrange(x, "b i j d -> b 1 (i j) d")
        seen, weights = attention(
            tokens @ maps[0],
            tokens @ maps[1],
            tokens.expand(-1, len(bias), -1, -1),
            bias=bias,
            return_weights=return_weights,
        )
        output = einsum(seen, self.value_weight, "b h n d, h d e -> b n e") + self.bias
        rows = x.shape[1]
        output = rearrange(output, "b (i j) e -> b i j e", i=rows)
        if weights is not None:
            pattern = "b h (i j) (k l) -> b h i j k l"
            weights = rearrange(weights, pattern, i=rows, k=rows)
        return output, weights


class PictureBertLayer(nn.Module):
    r"""Attend over the picture, then transform each token; a layer norm after each.

    Args:
        attention: Maps a picture to `(output, weights or None)`.
        dim: Width of a token.
        hidden_dim: Width of the small network's hidden layer.
        dropout: Probability of dropping an output of either half in training.
        device: Where to put the parameters.
        dtype: Type of the parameters.
    """

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

    def forward(
        self, x: Float[Tensor, "b rows columns d"]
    ) -> Float[Tensor, "b rows columns d"]:
        """Transform a picture."""
        mixed, _ = self.attention(x)
        x = self.norm(x + self.dropout(self.output_proj(mixed)))
        return self.network(x)


class PictureBert(nn.Module):
    r"""Classify pictures with attention that can find convolution by itself.

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

    parameters. Weights of attention are not dropped in training, as the paper's
    program does: that would need them one by one.

    Args:
        classes: Number of classes.
        encoding: `"gaussian"`, `"learned"` (positions alone) or `"learned+content"`.
        channels: Channels of a picture.
        patch: Pixels on the side of a token.
        dim: Width of a token, and of every head.
        depth: Number of layers.
        heads: Number of heads.
        hidden_dim: Width of the small networks' hidden layers.
        dropout: Probability of dropping in training.
        longest: The most rows or columns of tokens, for learnt encodings.
        device: Where to put the parameters.
        dtype: Type of the parameters.

    Raises:
        ValueError: If a size, `encoding` or the dropout is not valid.

    Examples:
        >>> model = PictureBert(dim=8, depth=2, heads=3, hidden_dim=11)
        >>> model(torch.randn(2, 3, 32, 32)).shape
        torch.Size([2, 10])

    References:
        Cordonnier, Loukas & Jaggi (2020), [On the Relationship between
        Self-Attention and Convolutional Layers](https://arxiv.org/abs/1911.03584),
        section 4.1 and table 1.
    """

    def __init__(
        self,
        classes: int = 10,
        *,
        encoding: Encoding = "gaussian",
        channels: int = 3,
        patch: int = 2,
        dim: int = 400,
        depth: int = 6,
        heads: int = 9,
        hidden_dim: int = 512,
        dropout: float = 0.1,
        longest: int = 16,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_sizes(classes=classes, channels=channels, patch=patch, depth=depth)
        check_choice("encoding", encoding, ENCODINGS)
        check_dropout(dropout)
        self.patch = patch
        self.channels = channels

        def attention_layer() -> GaussianSelfAttention | LearnedRelativeSelfAttention:
            if encoding == "gaussian":
                return GaussianSelfAttention(dim, heads, device=device, dtype=dtype)
            return LearnedRelativeSelfAttention(
                dim,
                heads,
                longest=longest,
                content=encoding == "learned+content",
                device=device,
                dtype=dtype,
            )

        width = channels * patch**2
        self.embedding = nn.Linear(width, dim, device=device, dtype=dtype)
        self.layers = nn.ModuleList(
            PictureBertLayer(
                attention_layer(),
                dim,
                hidden_dim,
                dropout=dropout,
                device=device,
                dtype=dtype,
            )
            for _ in range(depth)
        )
        self.classifier = nn.Linear(dim, classes, device=device, dtype=dtype)

    def forward(
        self, pictures: Float[Tensor, "b channels h w"]
    ) -> Float[Tensor, "b classes"]:
        """Give the classes' logits.

        Args:
            pictures: Height and width in whole tokens.

        Raises:
            TypeError: If `pictures` is not a floating-point tensor.
            ValueError: If it has the wrong shape.
        """
        check_float("pictures", pictures, "batch", self.channels, "height", "width")
        side = self.patch
        if pictures.shape[2] % side or pictures.shape[3] % side:
            raise ValueError(
                f"pictures must be divisible into tokens of {side} x {side} pixels, "
                f"got shape {tuple(pictures.shape)}."
            )
        pattern = "b c (i u) (j v) -> b i j (u v c)"
        tokens = self.embedding(rearrange(pictures, pattern, u=side, v=side))
        for layer in self.layers:
            tokens = layer(tokens)
        return self.classifier(reduce(tokens, "b i j d -> b d", "mean"))

    def head_centers(self) -> Float[Tensor, "depth heads 2"]:
        """Give where each layer's heads look, to be watched during training.

        Raises:
            TypeError: If the encoding is not Gaussian: other heads have no centres.
        """
        centers = []
        for layer in self.layers:
            heads = layer.attention
            if not isinstance(heads, GaussianSelfAttention):
                raise TypeError(
                    f"the encoding must be 'gaussian', got {type(heads).__name__}."
                )
            centers.append(heads.head_centers().detach())
        return torch.stack(centers)
