r"""Appendix: attention with any weights over offsets; how few heads a kernel needs.

Heads that attend to positions alone need not be Gaussian windows. With any table of
weights over the offsets, far fewer heads make a convolution.
"""

import torch
from einops import einsum, pack, rearrange, reduce
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from transformers_hw._engine.arguments import check_sizes, height_and_width
from transformers_hw._engine.mixing import query_positions, reset_value_weight
from transformers_hw._engine.shapes import checked
from transformers_hw.attention import softmax

# Below this ratio of smallest to largest weight, heads that share them nearly coincide.
LEAST_WEIGHT = 1e-3


class RelativeTableAttention(nn.Module):
    r"""Attend by a learned table of scores over the offsets.

    $$
    Y = \sum_h P_h X W^{(h)} + b, \qquad
    (P_h)_{q,k} = \operatorname{softmax}_k\!\left(s_h(k - q)\right)
    $$

    The table of $s_h$ covers a window of offsets around the query,
    $-\lfloor K/2 \rfloor, \dots, \lfloor (K-1)/2 \rfloor$ times the dilation along
    each axis; beyond the window the scores are $-\infty$. Offsets that leave the image
    are hidden, and the others share the weight; a query that sees nothing gets $b$.

    Args:
        dim: Width of a pixel.
        heads: Number of heads.
        window: Rows and columns of the table.
        dilation: Rows and columns from one offset to the next.
        output_dim: Width of the output; `dim` by default.
        bias: Whether to add $b$.
        device: Device of the parameters.
        dtype: Dtype of the parameters.

    Raises:
        ValueError: If a size is not positive.

    Examples:
        >>> layer = RelativeTableAttention(5, heads=2, window=(3, 3))
        >>> layer(torch.randn(2, 8, 11, 5)).shape
        torch.Size([2, 8, 11, 5])
    """

    @checked
    def __init__(
        self,
        dim: int,
        heads: int,
        window: tuple[int, int],
        *,
        dilation: tuple[int, int] = (1, 1),
        output_dim: int | None = None,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        output_dim = dim if output_dim is None else output_dim
        check_sizes(dim=dim, heads=heads, output_dim=output_dim)
        self.dim, self.heads, self.output_dim = dim, heads, output_dim
        self.window = height_and_width("window", window)
        self.dilation = height_and_width("dilation", dilation)

        def parameter(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape, device=device, dtype=dtype))

        self.scores = parameter(heads, *self.window)
        self.value_weight = parameter(heads, dim, output_dim)
        self.bias = parameter(output_dim) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set uniform weights; draw values by Glorot's uniform rule."""
        reset_value_weight(self.value_weight)
        nn.init.zeros_(self.scores)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    @checked
    def forward(
        self,
        x: Float[Tensor, "b rows columns {self.dim}"],
        *,
        queries: tuple[slice, slice] | None = None,
        return_weights: bool = False,
    ) -> (
        Float[Tensor, "b i j e"]
        | tuple[Float[Tensor, "b i j e"], Float[Tensor, "heads i j rows columns"]]
    ):
        """Attend from each pixel of an image to the window around it.

        Args:
            x: The pixels, channels last.
            queries: Rows and columns of the query pixels, all by default.
            return_weights: Whether to return every head's weights over the image too.

        Returns:
            The output; with `return_weights`, also the weights.
        """
        rows, columns = x.shape[1], x.shape[2]
        check_sizes(rows=rows, columns=columns)
        at = query_positions((rows, columns), queries, x.device)
        row_at, row_inside = self._keys(0, at[0], rows)
        column_at, column_inside = self._keys(1, at[1], columns)
        inside = rearrange(row_inside, "i m -> i 1 m 1") & rearrange(
            column_inside, "j n -> 1 j 1 n"
        )
        scores = rearrange(self.scores, "h m n -> h 1 1 (m n)")
        weights = softmax(
            scores.expand(-1, *inside.shape[:2], -1),
            mask=rearrange(inside, "i j m n -> 1 i j (m n)"),
        )
        weights = rearrange(weights, "h i j (m n) -> h i j m n", m=self.window[0])
        weights = weights.to(x.dtype)
        windows = x[
            :,
            rearrange(row_at, "i m -> i 1 m 1"),
            rearrange(column_at, "j n -> 1 j 1 n"),
        ]
        mixed = einsum(weights, windows, "h i j m n, b i j m n d -> b i j h d")
        output = einsum(mixed, self.value_weight, "b i j h d, h d e -> b i j e")
        output = output if self.bias is None else output + self.bias
        if not return_weights:
            return output
        row_hit = nn.functional.one_hot(row_at, rows).to(x.dtype)
        column_hit = nn.functional.one_hot(column_at, columns).to(x.dtype)
        pattern = "h i j m n, i m k, j n l -> h i j k l"
        return output, einsum(weights, row_hit, column_hit, pattern)

    def extra_repr(self) -> str:
        """Show the sizes in `repr`."""
        return (
            f"{self.dim}, heads={self.heads}, window={self.window}, "
            f"dilation={self.dilation}, output_dim={self.output_dim}"
        )

    def _keys(
        self, axis: int, at: Int[Tensor, " i"], length: int
    ) -> tuple[Int[Tensor, "i m"], Bool[Tensor, "i m"]]:
        """Return the keys of each query's window, and which of them exist."""
        size = self.window[axis]
        offsets = self.dilation[axis] * (
            torch.arange(size, device=at.device) - size // 2
        )
        keys = rearrange(at, "i -> i 1") + offsets
        return keys.clamp(0, length - 1), (keys >= 0) & (keys < length)


@checked
def fewest_heads(
    taps: Float[Tensor, "offsets numbers"],
) -> tuple[Float[Tensor, "heads offsets"], Float[Tensor, "heads numbers"]]:
    r"""Factorize a kernel's taps into position-only heads: their rank, or one more.

    A convolution has taps $T_\delta$, matrices from input to output channels, one for
    each offset $\delta$ of its window. Position-only heads with weights $p_h(\delta)$
    have, away from the border, the taps $\sum_h p_h(\delta) W^{(h)}$. With the taps as
    the rows of $T$ and the heads' weights as the rows of $P$, the two agree if

    $$T = P^\top W, \qquad P \ge 0, \quad P \mathbb{1} = \mathbb{1}.$$

    Let $r$ be the rank of $T$, $U$ its column space with a basis $u_1, \dots, u_r$, and
    $S$ the offsets whose taps are not zero.

    - **Fewer than $r$ heads never suffice,** since the rank of $P^\top W$ is at most
      their number.
    - **$r + 1$ always suffice:** take $p_0 \propto \mathbb{1}_S$ and
      $p_i \propto c_i \mathbb{1}_S + u_i$, with $c_i$ so large that no entry is
      negative. Then every $p$ is a distribution, and their span contains $U$.
    - **$r$ suffice if and only if $U$ contains a vector that is positive on all of
      $S$.** If it does, that vector takes the place of $\mathbb{1}_S$, and the $u_i$
      need only span the rest of $U$. Conversely, $r$ heads must span $U$, so the sum of
      their weights lies in $U$; it is nonnegative, and zero nowhere on $S$, or the taps
      there would be zero.

    Whether there is such a vector is a question of linear programming: there is one if
    and only if the convex hull of the rows of $(u_1, \dots, u_r)$, those of $S$, misses
    the origin. Gilbert's algorithm searches for the point of the hull nearest to the
    origin, which answers it. So the result has the least possible number of heads, with
    one exception: if $r > 1$ and the search finds no positive vector whose entries are
    within a factor of 1000 of each other, it has $r + 1$ heads. With a more uneven
    vector, $r$ heads would nearly coincide, and $W$ would lose digits. A kernel of
    rank 1 and one sign always has one head. Taps below $10^{-12}$ of the whole count
    as zero.

    Args:
        taps: $T$, the numbers of one offset per row. Computed in float64.

    Returns:
        The heads' weights $P$ and their values $W$.

    Raises:
        ValueError: If `taps` is empty, or not finite.

    Examples:
        An edge detector has two signs, so it needs two heads; a blur needs one:

        >>> weights, values = fewest_heads(torch.tensor([[-1.0], [0.0], [1.0]]))
        >>> len(weights)
        2
        >>> (weights.T @ values).flatten().round(decimals=9).tolist()
        [-1.0, 0.0, 1.0]
        >>> len(fewest_heads(torch.tensor([[1.0], [2.0], [1.0]]))[0])
        1
    """
    if not taps.numel() or not bool(taps.isfinite().all()):
        raise ValueError(
            f"taps must be finite and not empty, got shape {tuple(taps.shape)}."
        )
    matrix = taps.detach().double()
    rank = int(torch.linalg.matrix_rank(matrix))
    u = _column_space(matrix, rank)
    support = reduce(u.square(), "offset i -> offset", "sum").sqrt() > 1e-12
    support = support if rank else torch.ones_like(support)
    base = support.double()
    positive = _positive_combination(u[support])
    if positive is not None:
        base[support] = positive
        direction = base / base.norm()
        along = einsum(direction, direction, u, "offset, o, o i -> offset i")
        u = _column_space(u - along, rank - 1)
    ratio = u[support].abs() / rearrange(base[support], "offset -> offset 1")
    c = reduce(ratio, "offset i -> i", "max")
    lifted = einsum(c, base, "i, offset -> i offset") + rearrange(u, "o i -> i o")
    p, _ = pack([base, lifted.clamp(min=0.0)], "* offset")
    p = p / reduce(p, "h offset -> h 1", "sum")
    return p, torch.linalg.lstsq(rearrange(p, "h o -> o h"), matrix).solution


def _column_space(matrix: Tensor, rank: int) -> Float[Tensor, "offsets rank"]:
    return torch.linalg.svd(matrix, full_matrices=False)[0][:, :rank]


def _positive_combination(rows: Tensor) -> Tensor | None:
    """Return a vector of the column space with positive entries, if there is one."""
    if not rows.numel():
        return None
    point = reduce(rows, "offset i -> i", "mean")
    least = LEAST_WEIGHT if rows.shape[1] > 1 else 0.0
    for _ in range(1000):
        products = rows @ point
        if products.min() > least * products.max():
            return products
        towards = rows[products.argmin()] - point
        step = -(point @ towards) / towards.square().sum()
        point = point + step.clamp(0.0, 1.0) * towards
    return None
