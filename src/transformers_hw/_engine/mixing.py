"""Fast products for attention whose weights depend on positions alone.

What they compute is, with a bias added,

    einsum(weights, x, value_weight, "h i j k l, b k l d, h d e -> b i j e")

and, where each head's weights are a product of row weights and column weights,

    einsum(
        by_row, by_column, x, value_weight,
        "h i k, h j l, b k l d, h d e -> b i j e",
    )

for queries at `(i, j)` and keys at `(k, l)`. Averages are taken of the projected values
if these have fewer channels; look-ups always come before the projection, which is then
done at the queries alone.
"""

import torch
from einops import einsum, rearrange
from torch import Tensor, nn

# On images of up to so many pixels, two small products cost more than a larger one.
FEW_PIXELS = 64
# Images of so many numbers go one by one: what a batch of them makes exceeds the cache.
LARGE_IMAGE = 2**18


def mix_densely(
    weights: Tensor, x: Tensor, value_weight: Tensor, bias: Tensor | None
) -> Tensor:
    """Apply weights `(heads, i, j, rows, columns)` to an image."""
    heads, i, j = weights.shape[:3]
    if _narrows(value_weight):
        values = einsum(x, value_weight, "b k l d, h d e -> b h k l e")
        mixed = einsum(weights, values, "h i j k l, b h k l e -> b i j e")
        return mixed if bias is None else mixed + bias
    pairs = rearrange(weights, "h i j k l -> (h i j) (k l)")
    seen = pairs @ rearrange(x, "b k l d -> (k l) (b d)")
    seen = rearrange(seen, "(h ij) (b d) -> (b ij) (h d)", h=heads, d=x.shape[3])
    mixed = _add_product(bias, seen, rearrange(value_weight, "h d e -> (h d) e"))
    return rearrange(mixed, "(b i j) e -> b i j e", b=x.shape[0], i=i, j=j)


def mix_separably(
    by_row: Tensor,
    by_column: Tensor,
    x: Tensor,
    value_weight: Tensor,
    bias: Tensor | None,
) -> Tensor:
    """Apply row weights `(heads, i, rows)`, then column weights `(heads, j, columns)`.

    A head takes `rows + columns` multiplications per pixel and channel, instead of
    `rows * columns`.
    """
    # A graph that is compiled once for all sizes takes the path that suits most.
    if not torch.compiler.is_compiling() and x.shape[1] * x.shape[2] <= FEW_PIXELS:
        return mix_densely(outer(by_row, by_column), x, value_weight, bias)
    bias = x.new_zeros(value_weight.shape[2]) if bias is None else bias
    mix = _project_then_mix if _narrows(value_weight) else _mix_then_project
    batch = (x,)
    if not torch.compiler.is_compiling() and x[:1].numel() >= LARGE_IMAGE:
        batch = x.split(1)
    mixed = [mix(by_row, by_column, part, value_weight, bias) for part in batch]
    return mixed[0] if len(mixed) == 1 else torch.cat(mixed)


def mix_shifted(
    row_at: Tensor,
    column_at: Tensor,
    x: Tensor,
    value_weight: Tensor,
    bias: Tensor | None,
) -> Tensor:
    """Apply one-hot weights, given by the keys' rows and columns.

    Products with one-hot matrices are look-ups: fetch from row `(heads, i)` and column
    `(heads, j)`, and project: `i * j * d * e` multiplications per head and image.
    """
    pixels = rearrange(x, "b k l d -> b (k l) d")
    at = rearrange(row_at, "h i -> i 1 h") * x.shape[2]
    at = rearrange(at + rearrange(column_at, "h j -> 1 j h"), "i j h -> (i j) h")
    seen = pixels.index_select(1, rearrange(at, "ij h -> (ij h)"))
    seen = rearrange(seen, "b (ij h) d -> (b ij) (h d)", h=at.shape[1])
    mixed = _add_product(bias, seen, rearrange(value_weight, "h d e -> (h d) e"))
    i, j = row_at.shape[1], column_at.shape[1]
    return rearrange(mixed, "(b i j) e -> b i j e", i=i, j=j)


def reset_value_weight(value_weight: Tensor) -> None:
    """Draw value weights `(heads, d, e)` by Glorot's uniform rule, all heads as one."""
    nn.init.xavier_uniform_(rearrange(value_weight.detach(), "h d e -> (h d) e"))


def outer(by_row: Tensor, by_column: Tensor) -> Tensor:
    """Return the weights `(heads, i, j, rows, columns)` from those of the two axes."""
    # By broadcasting, since autocast would make a matrix product less exact.
    down = rearrange(by_row, "h i k -> h i 1 k 1")
    return down * rearrange(by_column, "h j l -> h 1 j 1 l")


def query_positions(
    sizes: tuple[int, int], queries: tuple[slice, slice] | None, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return the rows and the columns that query, all of them by default."""
    # Not `queries or …`: the truth value of a slice would fix a compiler's sizes.
    chosen = (slice(None), slice(None)) if queries is None else queries
    rows, columns = (torch.arange(size, device=device) for size in sizes)
    return rows[chosen[0]], columns[chosen[1]]


# Both go head by head, since what one head makes fits the cache and what all make does
# not; operands are expanded, which makes batched products without copies; and products
# are summed in place, which autocast leaves alone, hence the casts.


def _mix_then_project(
    by_row: Tensor, by_column: Tensor, x: Tensor, value_weight: Tensor, bias: Tensor
) -> Tensor:
    b, i, j = x.shape[0], by_row.shape[1], by_column.shape[1]
    rows_of_pixels = rearrange(x, "b k l d -> b k (l d)")
    total = bias
    for r, c, w in zip(by_row, by_column, value_weight, strict=True):
        seen = torch.bmm(r.expand(b, -1, -1), rows_of_pixels)
        seen = rearrange(seen, "b i (l d) -> (b i) l d", l=x.shape[2])
        seen = torch.bmm(c.to(seen.dtype).expand(b * i, -1, -1), seen)
        seen = rearrange(seen, "bi j d -> (bi j) d")
        if total is bias:
            total = torch.addmm(bias, seen, w)
        else:
            total.addmm_(seen, w.to(seen.dtype))
    return rearrange(total, "(b i j) e -> b i j e", b=b, i=i, j=j)


def _project_then_mix(
    by_row: Tensor, by_column: Tensor, x: Tensor, value_weight: Tensor, bias: Tensor
) -> Tensor:
    b, i = x.shape[0], by_row.shape[1]
    total = bias
    for r, c, w in zip(by_row, by_column, value_weight, strict=True):
        values = rearrange(x @ w, "b k l e -> b k (l e)")
        seen = torch.bmm(r.expand(b, -1, -1), values)
        seen = rearrange(seen, "b i (l e) -> (b i) l e", l=x.shape[2])
        columns = c.to(seen.dtype).expand(b * i, -1, -1)
        if total is bias:
            total = torch.baddbmm(bias, columns, seen)
        else:
            total.baddbmm_(columns, seen)
    return rearrange(total, "(b i) j e -> b i j e", b=b)


def _narrows(value_weight: Tensor) -> bool:
    return value_weight.shape[2] < value_weight.shape[1]


def _add_product(bias: Tensor | None, left: Tensor, right: Tensor) -> Tensor:
    return left @ right if bias is None else torch.addmm(bias, left, right)
