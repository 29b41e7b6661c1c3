r"""Apply position-only attention: mix the pixels of a picture, head by head.

When a head's weights do not depend on what the pixels hold, the output is linear in
the picture,

$$Y = \sum_h P_h X W^{(h)} + b,$$

with $P_h \in \mathbb{R}^{N \times N}$ for $N = H \cdot W$ pixels. When, moreover,
the scores are a sum of a row part and a column part, the softmax of the sum is the
product of the softmaxes, since the picture is a product of its rows and columns:

$$
\frac{e^{s_k + t_l}}{\sum_{k',l'} e^{s_{k'} + t_{l'}}}
= \frac{e^{s_k}}{\sum_{k'} e^{s_{k'}}} \cdot \frac{e^{t_l}}{\sum_{l'} e^{t_{l'}}}.
$$

So $P_h = R_h \otimes C_h$, borders included, and $P_h X$ is a product with $R_h$
along the rows, then with $C_h$ along the columns: $O(N(H + W)D)$ steps instead of
$O(N^2 D)$, and no $N \times N$ matrix.
"""

import torch
from einops import einsum, rearrange
from jaxtyping import Float, Int
from torch import Tensor

from transformers_hw._checks import check_float


def mix_densely(
    weights: Float[Tensor, "heads i j rows columns"],
    x: Float[Tensor, "b rows columns d"],
    value_weight: Float[Tensor, "heads d e"],
    bias: Float[Tensor, " e"] | None,
) -> Float[Tensor, "b i j e"]:
    r"""Give $\sum_h P_h X W^{(h)} + b$ from the weights $P_h$ themselves.

    Args:
        weights: $P_h$: for each asking pixel $(i, j)$, a weight for each pixel.
        x: The picture $X$.
        value_weight: $W^{(h)} = W_v^{(h)} W_o^{(h)}$, a head's two projections in one.
        bias: $b$.

    Returns:
        The mixed picture.
    """
    heads, i, j = weights.shape[:3]
    if value_weight.shape[2] < value_weight.shape[1]:
        values = einsum(x, value_weight, "b k l d, h d e -> b h k l e")
        mixed = einsum(weights, values, "h i j k l, b h k l e -> b i j e")
        return mixed if bias is None else mixed + bias
    pairs = rearrange(weights, "h i j k l -> (h i j) (k l)")
    seen = pairs @ rearrange(x, "b k l d -> (k l) (b d)")
    seen = rearrange(seen, "(h ij) (b d) -> (b ij) (h d)", h=heads, d=x.shape[3])
    mixed = _add_product(bias, seen, rearrange(value_weight, "h d e -> (h d) e"))
    return rearrange(mixed, "(b i j) e -> b i j e", b=x.shape[0], i=i, j=j)


def mix_separably(
    by_row: Float[Tensor, "heads i rows"],
    by_column: Float[Tensor, "heads j columns"],
    x: Float[Tensor, "b rows columns d"],
    value_weight: Float[Tensor, "heads d e"],
    bias: Float[Tensor, " e"] | None,
) -> Float[Tensor, "b i j e"]:
    r"""Give $\sum_h (R_h \otimes C_h) X W^{(h)} + b$ without forming the product.

    A head costs $N(H + W)$ multiplications per channel that is mixed, so the values
    are projected first if that leaves fewer channels.

    Args:
        by_row: $R_h$, a row's weights over the rows.
        by_column: $C_h$, a column's weights over the columns.
        x: The picture $X$.
        value_weight: $W^{(h)}$.
        bias: $b$.

    Returns:
        The mixed picture.
    """
    b, i, j = x.shape[0], by_row.shape[1], by_column.shape[1]
    project_first = value_weight.shape[2] < value_weight.shape[1]
    rows_of_pixels = rearrange(x, "b k l d -> b k (l d)")
    start = mixed = x.new_zeros(value_weight.shape[2]) if bias is None else bias
    # Head by head, since what one head makes fits the cache and what all make does
    # not; expanded operands, since they make batched products without copies; and
    # summed in place, which autocast leaves alone, hence the types.
    for r, c, w in zip(by_row, by_column, value_weight, strict=True):
        if project_first:
            rows_of_pixels = rearrange(x @ w, "b k l e -> b k (l e)")
        seen = torch.bmm(r.expand(b, -1, -1), rows_of_pixels)
        seen = rearrange(seen, "b i (l d) -> (b i) l d", l=x.shape[2])
        columns = c.to(seen.dtype).expand(b * i, -1, -1)
        if not project_first:
            seen = rearrange(torch.bmm(columns, seen), "bi j d -> (bi j) d")
        if mixed is start and project_first:
            mixed = torch.baddbmm(start, columns, seen)
        elif mixed is start:
            mixed = torch.addmm(start, seen, w)
        elif project_first:
            mixed.baddbmm_(columns, seen)
        else:
            mixed.addmm_(seen, w.to(seen.dtype))
    pattern = "(b i) j e -> b i j e" if project_first else "(b i j) e -> b i j e"
    return rearrange(mixed, pattern, b=b, i=i, j=j)


def mix_shifted(
    row_at: Int[Tensor, "heads i"],
    column_at: Int[Tensor, "heads j"],
    x: Float[Tensor, "b rows columns d"],
    value_weight: Float[Tensor, "heads d e"],
    bias: Float[Tensor, " e"] | None,
) -> Float[Tensor, "b i j e"]:
    r"""Give $\sum_h P_h X W^{(h)} + b$ for heads that each look at a single pixel.

    Products with one-hot matrices are look-ups: all that is left of attention is to
    fetch, and to project.

    Args:
        row_at: The row which each asking row looks at.
        column_at: The column which each asking column looks at.
        x: The picture $X$.
        value_weight: $W^{(h)}$.
        bias: $b$.

    Returns:
        The mixed picture.
    """
    columns, i = x.shape[2], row_at.shape[1]
    pixels = rearrange(x, "b k l d -> b (k l) d")
    at = rearrange(row_at, "h i -> i 1 h") * columns
    at = rearrange(at + rearrange(column_at, "h j -> 1 j h"), "i j h -> (i j) h")
    if value_weight.shape[2] < value_weight.shape[1]:
        mixed = x.new_zeros(()) if bias is None else bias
        for head, w in enumerate(value_weight):
            mixed = mixed + (pixels @ w).index_select(1, at[:, head])
    else:
        seen = pixels.index_select(1, rearrange(at, "ij h -> (ij h)"))
        seen = rearrange(seen, "b (ij h) d -> (b ij) (h d)", h=at.shape[1])
        mixed = _add_product(bias, seen, rearrange(value_weight, "h d e -> (h d) e"))
        mixed = rearrange(mixed, "(b ij) e -> b ij e", ij=at.shape[0])
    return rearrange(mixed, "b (i j) e -> b i j e", i=i)


def _add_product(bias: Tensor | None, left: Tensor, right: Tensor) -> Tensor:
    return left @ right if bias is None else torch.addmm(bias, left, right)


def _outer(
    by_row: Float[Tensor, "heads i rows"], by_column: Float[Tensor, "heads j columns"]
) -> Float[Tensor, "heads i j rows columns"]:
    down = rearrange(by_row, "h i k -> h i 1 k 1")
    return down * rearrange(by_column, "h j l -> h 1 j 1 l")


def _asking(
    rows: int,
    columns: int,
    queries: tuple[slice, slice] | None,
    device: torch.device,
) -> tuple[Int[Tensor, " i"], Int[Tensor, " j"]]:
    # Not `queries or …`: to ask a slice for its truth would fix a compiler's sizes.
    everything = (slice(None), slice(None))
    by_row, by_column = everything if queries is None else queries
    return (
        torch.arange(rows, device=device)[by_row],
        torch.arange(columns, device=device)[by_column],
    )


def _check_picture(x: Tensor, value_weight: Tensor) -> None:
    check_float("x", x, "batch", "rows", "columns", value_weight.shape[1])
    if 0 in x.shape[1:3]:
        raise ValueError(f"x must have pixels, got shape {tuple(x.shape)}.")
    if x.dtype != value_weight.dtype and not torch.is_autocast_enabled(x.device.type):
        raise TypeError(
            f"x must have the layer's type {value_weight.dtype}, got {x.dtype}."
        )
