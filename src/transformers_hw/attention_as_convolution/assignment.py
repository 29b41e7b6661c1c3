r"""The assignment's program: encodings, what they attend to, and the limit.

**The sign.** The assignment defines $\delta = q - k$, so that its head with centre
$\Delta$ looks at the pixel $q - \Delta$. Everything in this file follows it;
[`GaussianSelfAttention`][transformers_hw.attention_as_convolution.GaussianSelfAttention]
takes key minus query, and $-\Delta$ for the same head.
"""

import math
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor, nn

from transformers_hw._checks import check_choice, check_dropout, check_sizes
from transformers_hw.positional_encoding import (
    LearnedPositions2D,
    SinusoidalPositions2D,
)
from transformers_hw.transformer import FeedForward, LayerNorm


@runtime_checkable
class _Axes(Protocol):
    """What is asked of a plot to draw into: matplotlib's `Axes` will do."""

    def imshow(self, X: object, /) -> object:  # noqa: N803
        """Show a matrix as a picture."""

    def set_title(self, label: str, /) -> object:
        """Write a title above."""


class AbsolutePositionalEmbedding(nn.Module):
    r"""Give each pixel a code of its own, and add it: $Z + P$.

    Args:
        grid: Rows and columns of the picture.
        dim: Width of a pixel; a multiple of four if the codes are sinusoidal.
        kind: `"learned"`, a table, or `"sinusoidal"`, fixed waves: half of them
            along the rows, half along the columns.
        device: Where to put the table.
        dtype: Type of the table.

    Raises:
        ValueError: If a size or `kind` is not valid.

    Examples:
        >>> embedding = AbsolutePositionalEmbedding((5, 7), 8)
        >>> embedding(torch.zeros(2, 5, 7, 8)).shape
        torch.Size([2, 5, 7, 8])
    """

    def __init__(
        self,
        grid: tuple[int, int],
        dim: int,
        *,
        kind: str = "sinusoidal",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_choice("kind", kind, ("learned", "sinusoidal"))
        check_sizes(**{"grid (rows)": grid[0], "grid (columns)": grid[1]}, dim=dim)
        self.grid = grid
        self.positions = (
            LearnedPositions2D(grid, dim, device=device, dtype=dtype)
            if kind == "learned"
            else SinusoidalPositions2D(dim)
        )

    def codes(self) -> Float[Tensor, "rows columns d"]:
        """Give $P$."""
        return self.positions.codes(self.grid)

    def forward(
        self, x: Float[Tensor, "b rows columns d"]
    ) -> Float[Tensor, "b rows columns d"]:
        """Add the codes to a picture.

        Raises:
            ValueError: If the picture is not of the embedding's size.
        """
        if x.dim() != 4 or tuple(x.shape[1:3]) != self.grid:
            raise ValueError(
                f"x must be (batch, {self.grid[0]}, {self.grid[1]}, width), "
                f"got shape {tuple(x.shape)}."
            )
        return self.positions(x)


class RelativePositionalEmbedding(nn.Module):
    r"""Encode how far apart two pixels are: the Gaussian encoding, term by term.

    $$
    r_\delta = \begin{pmatrix} \lVert\delta\rVert^2 \\ \delta_1 \\ \delta_2
    \end{pmatrix}, \quad \delta = q - k, \qquad
    v^{(h)} = -\alpha^{(h)} \begin{pmatrix} 1 \\ -2\Delta_1^{(h)} \\ -2\Delta_2^{(h)}
    \end{pmatrix}
    $$

    Their product is a completed square but for a constant,

    $$
    v^\top r_\delta = -\alpha\left(\lVert \delta - \Delta \rVert^2 + c\right),
    \qquad c = -\lVert\Delta\rVert^2,
    $$

    which softmax does not see. Since $\delta = q - k$ here, the head looks at the
    pixel $q - \Delta$. This is the form to read. To compute with, take
    [`GaussianSelfAttention`
    ][transformers_hw.attention_as_convolution.GaussianSelfAttention]: in half
    precision the terms here are large, and cancel.

    Args:
        centers: $\Delta^{(h)}$ of each head, in the assignment's sign.
        sharpness: $\alpha$, for all heads at first. Both are learnt.
        device: Where to put the parameters.
        dtype: Type of the parameters.

    Raises:
        ValueError: If the centres are not finite pairs or $\alpha$ not positive.

    Examples:
        >>> embedding = RelativePositionalEmbedding([(0, -1)], sharpness=2.0)
        >>> embedding.codes(3, 3)[1, 1, 0, 2]  # δ = (1, 1) − (0, 2)
        tensor([ 2.,  1., -1.])
        >>> embedding.head_vectors()
        tensor([[-2.,  0., -4.]], grad_fn=...)
    """

    def __init__(
        self,
        centers: Float[Tensor, "heads 2"] | Sequence[Sequence[float | int]],
        *,
        sharpness: float | int = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        placed = torch.as_tensor(centers, device=device).to(
            dtype or torch.get_default_dtype()
        )
        if placed.dim() != 2 or placed.shape[1] != 2 or not placed.numel():
            raise ValueError(
                f"centers must be (heads, 2), got shape {tuple(placed.shape)}."
            )
        if not placed.is_meta and not bool(placed.isfinite().all()):
            raise ValueError(f"centers must be finite, got {placed.tolist()}.")
        if not 0.0 < sharpness < math.inf:
            raise ValueError(f"sharpness must be positive and finite, got {sharpness}.")
        self.centers = nn.Parameter(placed.clone())
        self.sharpness = nn.Parameter(torch.full_like(placed[:, 0], sharpness))

    def codes(self, rows: int, columns: int) -> Float[Tensor, "i j rows columns 3"]:
        r"""Give $r_\delta$ for every pair of pixels: query first, then key."""
        down = torch.arange(rows, device=self.centers.device)
        right = torch.arange(columns, device=self.centers.device)
        first = rearrange(down, "i -> i 1 1 1") - rearrange(down, "k -> 1 1 k 1")
        second = rearrange(right, "j -> 1 j 1 1") - rearrange(right, "l -> 1 1 1 l")
        terms = torch.broadcast_tensors(first**2 + second**2, first, second)
        return torch.stack(terms, dim=-1).to(self.centers.dtype)

    def head_vectors(self) -> Float[Tensor, "heads 3"]:
        """Give $v^{(h)}$."""
        ones = torch.ones_like(self.centers[:, :1])
        terms = torch.cat([ones, -2.0 * self.centers], dim=1)
        return -rearrange(self.sharpness, "h -> h 1") * terms

    def forward(
        self, rows: int, columns: int
    ) -> Float[Tensor, "heads i j rows columns"]:
        """Give the attention probabilities, by one softmax over all keys."""
        check_sizes(rows=rows, columns=columns)
        scores = einsum(
            self.head_vectors(),
            self.codes(rows, columns),
            "h r, i j k l r -> h i j k l",
        )
        joint = rearrange(scores, "h i j k l -> h i j (k l)").softmax(dim=-1)
        return rearrange(joint, "h i j (k l) -> h i j k l", k=rows)


def visualize_abs_positional_embedding(
    embedding: AbsolutePositionalEmbedding,
    query: tuple[int, int],
    *,
    axes: _Axes | None = None,
) -> Float[Tensor, "rows columns"]:
    r"""Show how alike a pixel's code is to all others: the cosine of each pair.

    Args:
        embedding: The codes.
        query: Row and column of the pixel.
        axes: Where to draw the map, if anywhere: an `Axes` of matplotlib.

    Returns:
        The map, one at the query itself.

    Raises:
        ValueError: If the query is not in the picture.

    Examples:
        >>> embedding = AbsolutePositionalEmbedding((5, 7), 8)
        >>> alike = visualize_abs_positional_embedding(embedding, (2, 3))
        >>> bool(alike.argmax() == 2 * 7 + 3)
        True
    """
    _check_query(query, embedding.grid)
    codes = nn.functional.normalize(embedding.codes().detach(), dim=-1)
    alike = einsum(codes[query], codes, "d, i j d -> i j")
    if axes is not None:
        axes.imshow(alike.cpu().numpy())
        axes.set_title(f"similarity to {query}")
    return alike


def visualize_rel_positional_embedding(
    embedding: RelativePositionalEmbedding,
    grid: tuple[int, int],
    query: tuple[int, int],
    *,
    axes: Sequence[_Axes] | None = None,
) -> Float[Tensor, "heads rows columns"]:
    r"""Show where each head looks from one pixel.

    Args:
        embedding: The heads.
        grid: Rows and columns of the picture.
        query: Row and column of the pixel.
        axes: Where to draw, one for each head, if anywhere.

    Returns:
        A map of probabilities for each head. It is brightest at $q - \Delta$: a plot
        of $\Delta$ itself is its mirror image.

    Raises:
        ValueError: If the query is not in the picture, or the axes are not as many
            as the heads.

    Examples:
        >>> embedding = RelativePositionalEmbedding([(1, 2)], sharpness=5.0)
        >>> maps = visualize_rel_positional_embedding(embedding, (5, 7), (3, 3))
        >>> divmod(int(maps[0].argmax()), 7)
        (2, 1)
    """
    _check_query(query, grid)
    maps = embedding(*grid).detach()[:, query[0], query[1]]
    titles = [f"Δ = ({c[0]:g}, {c[1]:g})" for c in embedding.centers.tolist()]
    _draw(maps, titles, axes)
    return maps


def verify_limit(
    center: Sequence[float | int],
    sharpnesses: Sequence[float | int],
    *,
    grid: tuple[int, int],
    query: tuple[int, int],
    axes: Sequence[_Axes] | None = None,
) -> Float[Tensor, "alphas rows columns"]:
    r"""Show a head sharpen: its probabilities as $\alpha$ grows.

    $$
    \lim_{\alpha\to\infty} \operatorname{softmax}_k(-\alpha\lVert\delta -
    \Delta\rVert^2) = \begin{cases} 1/m & \text{if } k \text{ is one of the } m \text{
    pixels nearest to } q - \Delta \\ 0 & \text{otherwise} \end{cases}
    $$

    For whole $\Delta$ there is one nearest pixel: $q - \Delta$ itself if it lies in
    the picture, else the pixel at its coordinate-wise clamp.

    Args:
        center: $\Delta$, in the assignment's sign.
        sharpnesses: The values of $\alpha$, each finite.
        grid: Rows and columns of the picture.
        query: Row and column of the pixel that looks.
        axes: Where to draw, one for each $\alpha$, if anywhere.

    Returns:
        A map for each $\alpha$, computed in float64.

    Raises:
        ValueError: If the query is not in the picture, no $\alpha$ is given or one
            is not positive, or the axes are not as many.

    Examples:
        >>> maps = verify_limit((0, 1), [0.1, 1, 10], grid=(5, 5), query=(2, 2))
        >>> maps[:, 2, 1]  # at q − Δ
        tensor([0.0620, 0.3216, 0.9998], dtype=torch.float64)
    """
    _check_query(query, grid)
    if not sharpnesses:
        raise ValueError(f"sharpnesses must not be empty, got {sharpnesses}.")
    maps = []
    for sharpness in sharpnesses:
        head = RelativePositionalEmbedding(
            [center], sharpness=sharpness, dtype=torch.float64
        )
        maps.append(head(*grid)[0, query[0], query[1]].detach())
    _draw(maps, [f"α = {sharpness:g}" for sharpness in sharpnesses], axes)
    return torch.stack(maps)


class BertFFN(nn.Module):
    r"""The second half of a BERT layer: a small network, a residual, a layer norm.

    $$\operatorname{LayerNorm}(x + \operatorname{dropout}(\operatorname{GELU}(x W_1 +
    b_1) W_2 + b_2))$$

    Args:
        dim: Width of a token.
        hidden_dim: Width of the hidden layer.
        dropout: Probability of dropping an output of the network in training.
        eps: Added to the variance by the layer norm; BERT has $10^{-12}$.
        device: Where to put the parameters.
        dtype: Type of the parameters.

    Raises:
        ValueError: If a size or the dropout is not valid.

    Examples:
        >>> BertFFN(5, 11)(torch.randn(2, 3, 5)).shape
        torch.Size([2, 3, 5])
    """

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

    def forward(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        """Transform each token."""
        return self.norm(x + self.dropout(self.network(x)))


def _check_query(query: tuple[int, int], grid: tuple[int, int]) -> None:
    if not all(0 <= at < size for at, size in zip(query, grid, strict=True)):
        raise ValueError(f"query must be a pixel of the {grid} picture, got {query}.")


def _draw(
    maps: Sequence[Tensor] | Tensor, titles: list[str], axes: Sequence[_Axes] | None
) -> None:
    if axes is None:
        return
    if len(axes) != len(titles):
        raise ValueError(f"axes must be {len(titles)}, one a map, got {len(axes)}.")
    for one, title, picture in zip(axes, titles, maps, strict=True):
        one.imshow(picture.cpu().numpy())
        one.set_title(title)
