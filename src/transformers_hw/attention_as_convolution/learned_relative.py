r"""Learned relative attention: the other encodings of the paper's models."""

import math

import torch
import torch.nn.functional as F
from einops import einsum, rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor, nn

from transformers_hw._engine.arguments import check_dropout, check_sizes
from transformers_hw._engine.mixing import mix_separably, outer
from transformers_hw._engine.shapes import checked
from transformers_hw.attention import dot_product_attention


class LearnedRelativeSelfAttention(nn.Module):
    r"""Attend by learned embeddings of row offsets and column offsets.

    $$
    Y = \sum_h \operatorname{softmax}(s^{(h)}) X W^{(h)} + b
    $$

    Each row offset has an embedding $a$, and each column offset an embedding $c$. By
    positions alone, the scores compare them with a vector per head and axis:

    $$
    s^{(h)}_{q,k} = u_h^\top a_{k_1 - q_1} + w_h^\top c_{k_2 - q_2} .
    $$

    They are a sum over the two axes, so the weights factorize as those of Gaussian
    attention do, and cost as little. With `content`, the query pixel is compared with
    the key pixel and with the embedding $r$ of the offset, whose first half belongs to
    the rows and whose second half belongs to the columns:

    $$
    s^{(h)}_{q,k} = \frac{Q^{(h)}_q \cdot K^{(h)}_k
    + Q^{(h)}_q \cdot r_{k - q}}{\sqrt{D}}, \qquad
    r_\delta = (a_{\delta_1}, c_{\delta_2}) \in \mathbb{R}^D,
    $$

    where $Q^{(h)} = X W_q^{(h)} + b_q^{(h)}$ and $K^{(h)} = X W_k^{(h)} + b_k^{(h)}$.
    (The paper's model has $b_k$, though it adds the same number to all scores of a
    query, which changes no weight.)

    Args:
        dim: Width $D$ of a pixel, and of every head.
        heads: Number of heads.
        max_size: Greatest number of rows or columns of an image.
        content: Whether scores depend on the pixels too; needs a `dim` of at least 2.
        dropout: Probability of dropping an attention weight in training, separately
            for each image. Weights are dropped one by one, so a step then takes
            $O(N^2 D)$ for $N$ pixels.
        device: Device of the parameters.
        dtype: Dtype of the parameters.

    Raises:
        ValueError: If a size is not positive, `dim` has no halves, or `dropout` is not
            a probability below one.

    Examples:
        >>> layer = LearnedRelativeSelfAttention(5, heads=3, max_size=11)
        >>> layer(torch.randn(2, 7, 11, 5)).shape
        torch.Size([2, 7, 11, 5])

    References:
        Cordonnier, Loukas & Jaggi (2020), [On the Relationship between
        Self-Attention and Convolutional Layers](https://arxiv.org/abs/1911.03584),
        section 4.3; Ramachandran et al. (2019), [Stand-Alone Self-Attention in Vision
        Models](https://arxiv.org/abs/1906.05909), section 3, for `content`.
    """

    @checked
    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        max_size: int = 16,
        content: bool = False,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_sizes(dim=dim, heads=heads, max_size=max_size)
        check_dropout(dropout)
        if content and dim < 2:
            raise ValueError(
                f"dim must be at least 2 with content, a half per axis, got {dim}."
            )
        self.dim, self.heads, self.max_size = dim, heads, max_size
        self.content, self.dropout = content, dropout

        def parameter(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape, device=device, dtype=dtype))

        # With content, a query has one half for each axis.
        self.widths = [dim // 2, dim - dim // 2] if content else [dim, dim]
        self.row_embeddings = parameter(2 * max_size - 1, self.widths[0])
        self.column_embeddings = parameter(2 * max_size - 1, self.widths[1])
        if content:
            self.query_weight = parameter(heads, dim, dim)
            self.query_bias = parameter(heads, dim)
            self.key_weight = parameter(heads, dim, dim)
            self.key_bias = parameter(heads, dim)
        else:
            self.row_queries = parameter(heads, dim)
            self.column_queries = parameter(heads, dim)
        self.value_weight = parameter(heads, dim, dim)
        self.bias = parameter(dim)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all weights from a narrow normal distribution, as BERT does."""
        for name, parameter in self.named_parameters():
            nn.init.normal_(parameter, std=0.0 if name.endswith("bias") else 0.02)

    @checked
    def forward(
        self,
        x: Float[Tensor, "b rows columns {self.dim}"],
        *,
        return_weights: bool = False,
    ) -> (
        Float[Tensor, "b rows columns {self.dim}"]
        | tuple[
            Float[Tensor, "b rows columns {self.dim}"],
            Float[Tensor, "*b {self.heads} rows columns rows columns"],
        ]
    ):
        """Attend from each pixel of an image to all of them.

        Args:
            x: The pixels, channels last.
            return_weights: Whether to return the weights of every head too; they have
                a batch axis if they depend on the image.

        Returns:
            The output; with `return_weights`, also the weights before dropout.

        Raises:
            ValueError: If `x` has the wrong shape, no pixels, or more rows or columns
                than `max_size`.
        """
        rows, columns = x.shape[1], x.shape[2]
        check_sizes(rows=rows, columns=columns)
        if max(rows, columns) > self.max_size:
            raise ValueError(
                f"x must have at most {self.max_size} rows and columns, "
                f"got shape {tuple(x.shape)}."
            )
        dropout = self.dropout if self.training else 0.0
        if self.content:
            return self._by_content(x, dropout, return_weights)
        pattern = "h d, q k d -> h q k"
        down, right = self._embeddings(rows, columns)
        by_row = einsum(self.row_queries, down, pattern).softmax(dim=-1)
        by_column = einsum(self.column_queries, right, pattern).softmax(dim=-1)
        if not return_weights and not dropout:
            return mix_separably(by_row, by_column, x, self.value_weight, self.bias)
        weights = outer(by_row, by_column)
        each = repeat(weights, "h i j k l -> b h i j k l", b=x.shape[0])
        output = self.bias + einsum(
            F.dropout(each, dropout),
            x,
            self.value_weight,
            "b h i j k l, b k l d, h d e -> b i j e",
        )
        return (output, weights) if return_weights else output

    def _embeddings(
        self, rows: int, columns: int
    ) -> tuple[Float[Tensor, "i k a"], Float[Tensor, "j l c"]]:
        """Return the embeddings of all row offsets and of all column offsets."""
        down = self.row_embeddings[self._offsets(rows)]
        return down, self.column_embeddings[self._offsets(columns)]

    def _offsets(self, length: int) -> Int[Tensor, "length length"]:
        at = torch.arange(length, device=self.bias.device)
        return at - rearrange(at, "q -> q 1") + self.max_size - 1

    def _by_content(
        self, x: Tensor, dropout: float, return_weights: bool
    ) -> Tensor | tuple[Tensor, Tensor]:
        project = "b i j d, h d e -> b h i j e"
        query = einsum(x, self.query_weight, project)
        query = query + rearrange(self.query_bias, "h e -> h 1 1 e")
        key = einsum(x, self.key_weight, project)
        key = key + rearrange(self.key_bias, "h e -> h 1 1 e")
        vertical, horizontal = query.split(self.widths, dim=-1)
        down, right = self._embeddings(x.shape[1], x.shape[2])
        by_row = einsum(vertical, down, "b h i j d, i k d -> b h i j k")
        by_column = einsum(horizontal, right, "b h i j d, j l d -> b h i j l")
        by_offset = rearrange(by_row, "b h i j k -> b h i j k 1") + rearrange(
            by_column, "b h i j l -> b h i j 1 l"
        )
        flat = "b h i j e -> b h (i j) e"
        result = dot_product_attention(
            rearrange(query, flat),
            rearrange(key, flat),
            repeat(x, "b i j d -> b h (i j) d", h=self.heads),
            bias=rearrange(by_offset, "b h i j k l -> b h (i j) (k l)")
            / math.sqrt(self.dim),
            dropout=dropout,
            return_weights=return_weights,
        )
        mixed, *weights = result if isinstance(result, tuple) else (result,)
        output = einsum(mixed, self.value_weight, "b h n d, h d e -> b n e") + self.bias
        rows = x.shape[1]
        output = rearrange(output, "b (i j) e -> b i j e", i=rows)
        if not return_weights:
            return output
        pattern = "b h (i j) (k l) -> b h i j k l"
        return output, rearrange(weights[0], pattern, i=rows, k=rows)

    def extra_repr(self) -> str:
        """Show the sizes in `repr`."""
        return (
            f"{self.dim}, heads={self.heads}, max_size={self.max_size}, "
            f"content={self.content}, dropout={self.dropout}"
        )
