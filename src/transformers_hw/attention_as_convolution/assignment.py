r"""The assignment's program: encodings, what they attend to, and the limit.

**The sign.** The assignment defines $\delta = q - k$, so that its head with center
$\Delta$ attends to the pixel $q - \Delta$. Everything in this file follows it;
[`GaussianSelfAttention`][transformers_hw.attention_as_convolution.GaussianSelfAttention]
takes key minus query, and $-\Delta$ for the same head.
"""

import math
from collections.abc import Sequence
from typing import Literal, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor, nn

from transformers_hw._engine.arguments import (
    check_sizes,
    height_and_width,
)
from transformers_hw._engine.shapes import checked
from transformers_hw.positional_encoding import (
    LearnedPositions2D,
    SinusoidalPositions2D,
)


@runtime_checkable
class _Axes(Protocol):
    """Axes that show images, such as matplotlib's."""

    def imshow(self, X: object, /) -> object:  # noqa: N803
        """Show a matrix as an image."""

    def set_title(self, label: str, /) -> object:
        """Set the title of the plot."""


class AbsolutePositionalEmbedding(nn.Module):
    r"""Add an embedding of its position to each pixel: $Z + P$.

    Args:
        grid: Rows and columns of the image.
        dim: Width of a pixel; a multiple of four if the embeddings are sinusoidal.
        kind: `"learned"`, or `"sinusoidal"`, fixed waves: half of them along the rows,
            half along the columns.
        device: Device of learned embeddings.
        dtype: Dtype of learned embeddings.

    Raises:
        ValueError: If a size is not positive, or `kind` is unknown.

    Examples:
        >>> embedding = AbsolutePositionalEmbedding((5, 7), 8)
        >>> embedding(torch.zeros(2, 5, 7, 8)).shape
        torch.Size([2, 5, 7, 8])
    """

    @checked
    def __init__(
        self,
        grid: tuple[int, int],
        dim: int,
        *,
        kind: Literal["learned", "sinusoidal"] = "sinusoidal",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.grid = self.rows, self.columns = height_and_width("grid", grid)
        self.positions = (
            LearnedPositions2D(grid, dim, device=device, dtype=dtype)
            if kind == "learned"
            else SinusoidalPositions2D(dim)
        )

    def embeddings(self) -> Float[Tensor, "rows columns d"]:
        """Return $P$."""
        return self.positions.embeddings(self.grid)

    @checked
    def forward(
        self, x: Float[Tensor, "b {self.rows} {self.columns} dim"]
    ) -> Float[Tensor, "b {self.rows} {self.columns} dim"]:
        """Add the embeddings to an image of the grid's size."""
        return self.positions(x)


class RelativePositionalEmbedding(nn.Module):
    r"""Score pairs of pixels by their offset: the Gaussian encoding, term by term.

    $$
    r_\delta = \begin{pmatrix} \lVert\delta\rVert^2 \\ \delta_1 \\ \delta_2
    \end{pmatrix}, \quad \delta = q - k, \qquad
    v^{(h)} = -\alpha^{(h)} \begin{pmatrix} 1 \\ -2\Delta_1^{(h)} \\ -2\Delta_2^{(h)}
    \end{pmatrix}
    $$

    Their product is a square, up to a constant,

    $$
    v^\top r_\delta = -\alpha\left(\lVert \delta - \Delta \rVert^2 + c\right),
    \qquad c = -\lVert\Delta\rVert^2,
    $$

    which cancels in the softmax. Since $\delta = q - k$ here, the head attends to the
    pixel $q - \Delta$. This form is for reading. For computing, use
    [`GaussianSelfAttention`
    ][transformers_hw.attention_as_convolution.GaussianSelfAttention]: the terms here
    are large and cancel, which fails in half precision.

    Args:
        centers: $\Delta^{(h)}$ of each head, in the assignment's sign; learned.
        sharpness: Initial $\alpha$ of all heads; learned.
        device: Device of the parameters.
        dtype: Dtype of the parameters.

    Raises:
        ValueError: If the centers are not finite pairs, or `sharpness` is not positive
            and finite.

    Examples:
        >>> embedding = RelativePositionalEmbedding([(0, -1)], sharpness=2.0)
        >>> embedding.embeddings(3, 3)[1, 1, 0, 2]  # δ = (1, 1) − (0, 2)
        tensor([ 2.,  1., -1.])
        >>> embedding.head_vectors()
        tensor([[-2.,  0., -4.]], grad_fn=...)
    """

    @checked
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

    def extra_repr(self) -> str:
        """Show the number of heads in `repr`."""
        return f"heads={len(self.centers)}"

    @checked
    def embeddings(
        self, rows: int, columns: int
    ) -> Float[Tensor, "i j rows columns 3"]:
        r"""Return $r_\delta$ for every pair of pixels: query first, then key."""
        down = torch.arange(rows, device=self.centers.device)
        right = torch.arange(columns, device=self.centers.device)
        first = rearrange(down, "i -> i 1 1 1") - rearrange(down, "k -> 1 1 k 1")
        second = rearrange(right, "j -> 1 j 1 1") - rearrange(right, "l -> 1 1 1 l")
        terms = torch.broadcast_tensors(first**2 + second**2, first, second)
        stacked = rearrange([*terms], "r i j k l -> i j k l r")
        return stacked.to(self.centers.dtype)

    def head_vectors(self) -> Float[Tensor, "heads 3"]:
        """Return $v^{(h)}$."""
        terms = F.pad(-2.0 * self.centers, (1, 0), value=1.0)
        return -rearrange(self.sharpness, "h -> h 1") * terms

    @checked
    def forward(
        self, rows: int, columns: int
    ) -> Float[Tensor, "heads i j rows columns"]:
        """Return the attention weights, by one softmax over all keys."""
        check_sizes(rows=rows, columns=columns)
        scores = einsum(
            self.head_vectors(),
            self.embeddings(rows, columns),
            "h r, i j k l r -> h i j k l",
        )
        joint = rearrange(scores, "h i j k l -> h i j (k l)").softmax(dim=-1)
        return rearrange(joint, "h i j (k l) -> h i j k l", k=rows)


@checked
def visualize_abs_positional_embedding(
    embedding: AbsolutePositionalEmbedding,
    query: tuple[int, int],
    *,
    axes: _Axes | None = None,
) -> Float[Tensor, "rows columns"]:
    r"""Compare the embedding of one pixel with all others by cosine similarity.

    Args:
        embedding: The embeddings.
        query: Row and column of the pixel.
        axes: Plot to draw the map into, such as an `Axes` of matplotlib.

    Returns:
        The map, which is one at the query itself.

    Raises:
        ValueError: If the query is not in the image.

    Examples:
        >>> embedding = AbsolutePositionalEmbedding((5, 7), 8)
        >>> similarity = visualize_abs_positional_embedding(embedding, (2, 3))
        >>> bool(similarity.argmax() == 2 * 7 + 3)
        True
    """
    _check_query(query, embedding.grid)
    table = embedding.embeddings().detach()
    similarity = F.cosine_similarity(table, table[query], dim=-1)
    _draw([similarity], [f"similarity to {query}"], None if axes is None else [axes])
    return similarity


@checked
def visualize_rel_positional_embedding(
    embedding: RelativePositionalEmbedding,
    grid: tuple[int, int],
    query: tuple[int, int],
    *,
    axes: Sequence[_Axes] | None = None,
) -> Float[Tensor, "heads rows columns"]:
    r"""Map the attention weights of each head from one query pixel.

    Args:
        embedding: The heads.
        grid: Rows and columns of the image.
        query: Row and column of the pixel.
        axes: Plots to draw into, one per head.

    Returns:
        A map of weights for each head. It is brightest at $q - \Delta$: a plot
        of $\Delta$ itself is its mirror image.

    Raises:
        ValueError: If the query is not in the image, or there are not as many axes
            as heads.

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


@checked
def verify_limit(
    center: Sequence[float | int],
    sharpnesses: Sequence[float | int],
    *,
    grid: tuple[int, int],
    query: tuple[int, int],
    axes: Sequence[_Axes] | None = None,
) -> Float[Tensor, "alphas rows columns"]:
    r"""Map the attention weights of one head as its sharpness $\alpha$ grows.

    $$
    \lim_{\alpha\to\infty} \operatorname{softmax}_k(-\alpha\lVert\delta -
    \Delta\rVert^2) = \begin{cases} 1/m & \text{if } k \text{ is one of the } m \text{
    pixels nearest to } q - \Delta \\ 0 & \text{otherwise} \end{cases}
    $$

    For integer $\Delta$ there is one nearest pixel: $q - \Delta$ itself if it lies in
    the image, else the pixel at its coordinate-wise clamp.

    Args:
        center: $\Delta$, in the assignment's sign.
        sharpnesses: The values of $\alpha$, positive and finite.
        grid: Rows and columns of the image.
        query: Row and column of the query pixel.
        axes: Plots to draw into, one per $\alpha$.

    Returns:
        A map for each $\alpha$, computed in float64.

    Raises:
        ValueError: If the query is not in the image, an $\alpha$ is not positive and
            finite, or there is none, or there are not as many axes.

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
    return rearrange(maps, "alphas rows columns -> alphas rows columns")


def _check_query(query: tuple[int, int], grid: tuple[int, int]) -> None:
    if not all(0 <= at < size for at, size in zip(query, grid, strict=True)):
        raise ValueError(f"query must be a pixel of the {grid} image, got {query}.")


def _draw(
    maps: Sequence[Tensor] | Tensor, titles: list[str], axes: Sequence[_Axes] | None
) -> None:
    if axes is None:
        return
    if len(axes) != len(titles):
        raise ValueError(f"axes must be {len(titles)}, one a map, got {len(axes)}.")
    for one, title, image in zip(axes, titles, maps, strict=True):
        one.imshow(image.cpu().numpy())
        one.set_title(title)
