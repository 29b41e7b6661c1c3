r"""Position-only attention with any weights, and how few heads a kernel needs.

Heads that look at positions alone need not be Gaussian windows: any table of weights
over the offsets will do, and then far fewer of them make a convolution.
"""

import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor, nn

from transformers_hw._checks import check_sizes
from transformers_hw.attention import softargmax
from transformers_hw.attention_as_convolution.mixing import (
    _asking,
    _check_picture,
)

# Below this ratio of smallest to largest weight, one more head is the better bargain.
LEAST_WEIGHT = 1e-3


class RelativeTableAttention(nn.Module):
    r"""Look up, for each head, how much each offset weighs.

    $$
    Y = \sum_h P_h X W^{(h)} + b, \qquad
    (P_h)_{q,k} = \operatorname{softmax}_k\!\left(s_h(k - q)\right)
    $$

    The scores $s_h$ are a learnt table over a window of offsets around the query,
    $-\lfloor K/2 \rfloor, \dots, \lfloor (K-1)/2 \rfloor$ times the dilation along
    each axis; beyond the window they are $-\infty$. Offsets that leave the picture
    are hidden, and the others share the weight; a query that sees nothing gets $b$.

    Args:
        dim: Width of a pixel.
        heads: Number of heads.
        window: Rows and columns of the table.
        dilation: Rows and columns from one offset to the next.
        output_dim: Width of the output, if not `dim`.
        bias: Whether to add $b$.
        device: Where to put the parameters.
        dtype: Type of the parameters.

    Raises:
        ValueError: If a number is not positive.

    Examples:
        >>> layer = RelativeTableAttention(5, heads=2, window=(3, 3))
        >>> layer(torch.randn(2, 8, 11, 5))[0].shape
        torch.Size([2, 8, 11, 5])
    """

    bias: nn.Parameter | None

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
        for name, (down, right) in (("window", window), ("dilation", dilation)):
            check_sizes(**{f"{name} (rows)": down, f"{name} (columns)": right})
        self.dilation = dilation

        def parameter(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape, device=device, dtype=dtype))

        self.scores = parameter(heads, *window)
        self.value_weight = parameter(heads, dim, output_dim)
        self.register_parameter("bias", parameter(output_dim) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start from uniform weights, and draw the values by Glorot's rule."""
        heads, dim, output_dim = self.value_weight.shape
        bound = (6.0 / (heads * dim + output_dim)) ** 0.5
        nn.init.uniform_(self.value_weight, -bound, bound)
        nn.init.zeros_(self.scores)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(
        self,
        x: Float[Tensor, "b rows columns d"],
        *,
        queries: tuple[slice, slice] | None = None,
        return_weights: bool = False,
    ) -> tuple[
        Float[Tensor, "b i j e"], Float[Tensor, "heads i j rows columns"] | None
    ]:
        """Mix a picture; the arguments are those of Gaussian attention.

        Args:
            x: The pixels, channels last.
            queries: Which rows and columns ask, all by default.
            return_weights: Also give every head's weights over the picture.

        Returns:
            The output, and the weights or `None`.

        Raises:
            TypeError: If `x` is not a floating-point tensor of the layer's type.
            ValueError: If `x` has the wrong shape.
        """
        _check_picture(x, self.value_weight)
        rows, columns = x.shape[1], x.shape[2]
        ask = _asking(rows, columns, queries, x.device)
        row_at, row_seen = self._keys(0, ask[0], rows)
        column_at, column_seen = self._keys(1, ask[1], columns)
        seen = rearrange(row_seen, "i m -> i 1 m 1") & rearrange(
            column_seen, "j n -> 1 j 1 n"
        )
        weights = softargmax(
            rearrange(self.scores, "h m n -> h 1 1 (m n)").expand(
                -1, *seen.shape[:2], -1
            ),
            mask=rearrange(seen, "i j m n -> 1 i j (m n)"),
        )
        weights = rearrange(weights, "h i j (m n) -> h i j m n", m=row_at.shape[1])
        windows = x[
            :,
            rearrange(row_at, "i m -> i 1 m 1"),
            rearrange(column_at, "j n -> 1 j 1 n"),
        ]
        mixed = einsum(
            weights.to(x.dtype), windows, "h i j m n, b i j m n d -> b i j h d"
        )
        output = einsum(mixed, self.value_weight, "b i j h d, h d e -> b i j e")
        output = output if self.bias is None else output + self.bias
        if not return_weights:
            return output, None
        row_hit = nn.functional.one_hot(row_at, rows).to(x.dtype)
        column_hit = nn.functional.one_hot(column_at, columns).to(x.dtype)
        return output, einsum(
            weights.to(x.dtype),
            row_hit,
            column_hit,
            "h i j m n, i m k, j n l -> h i j k l",
        )

    def extra_repr(self) -> str:
        """Show the sizes in `repr`."""
        heads, dim, output_dim = self.value_weight.shape
        return (
            f"{dim}, heads={heads}, window={tuple(self.scores.shape[1:])}, "
            f"dilation={self.dilation}, output_dim={output_dim}"
        )

    def _keys(self, axis: int, ask: Tensor, length: int) -> tuple[Tensor, Tensor]:
        size = self.scores.shape[1 + axis]
        steps = torch.arange(size, device=ask.device) - size // 2
        at = rearrange(ask, "i -> i 1") + self.dilation[axis] * steps
        return at.clamp(0, length - 1), (at >= 0) & (at < length)


def fewest_heads(
    taps: Float[Tensor, "offsets numbers"],
) -> tuple[Float[Tensor, "heads offsets"], Float[Tensor, "heads numbers"]]:
    r"""Write taps as a mixture of as few position-only heads as can be.

    A convolution has taps $T_\delta$, matrices from input to output channels, one for
    each offset $\delta$ of its window. Position-only heads with weights $p_h(\delta)$
    have, away from the border, the taps $\sum_h p_h(\delta) W^{(h)}$. With the taps as
    the rows of $T$ and the heads' weights as the rows of $P$, the two agree if

    $$T = P^\top W, \qquad P \ge 0, \quad P \mathbb{1} = \mathbb{1}.$$

    Let $r$ be the rank of $T$, $U$ its column space, and $S$ the offsets whose taps are
    not zero.

    - **Fewer than $r$ heads never do,** since $P^\top W$ has at most their number for
      its rank.
    - **$r + 1$ always do:** with $p_0$ uniform on $S$ and
      $p_i \propto c_i \mathbb{1}_S + u_i$ for a basis $u_i$ of $U$ and $c_i$ large
      enough, the $p$ are distributions, and their span holds $U$.
    - **$r$ do if and only if $U$ holds a vector that is positive on all of $S$.** If
      it does, that vector takes the place of $\mathbb{1}_S$, and one direction is
      saved. Conversely, $r$ heads must span $U$, so the sum of their weights lies in
      $U$; it is nonnegative, and zero nowhere on $S$, or the taps there would be zero.

    Whether there is such a vector is a question of linear programming: there is one if
    and only if the convex hull of the rows of a basis of $U$, those of $S$, misses the
    origin. The point of the hull that is nearest to the origin answers it, and is
    looked for by Gilbert's algorithm. A positive vector whose entries differ by more
    than a thousandfold is passed over, since $W$ would lose as many digits.

    Args:
        taps: $T$, an offset's numbers as a row. Computed in float64.

    Returns:
        The heads' weights $P$ and their values $W$.

    Raises:
        ValueError: If `taps` is not a finite matrix.

    Examples:
        An edge detector has two signs, hence needs two heads; a blur needs one:

        >>> weights, values = fewest_heads(torch.tensor([[-1.0], [0.0], [1.0]]))
        >>> len(weights)
        2
        >>> (weights.T @ values).flatten().round(decimals=9).tolist()
        [-1.0, 0.0, 1.0]
        >>> len(fewest_heads(torch.tensor([[1.0], [2.0], [1.0]]))[0])
        1
    """
    if taps.dim() != 2 or 0 in taps.shape or not bool(taps.isfinite().all()):
        raise ValueError(
            "taps must be a finite matrix (offsets, numbers), "
            f"got shape {tuple(taps.shape)}."
        )
    matrix = taps.detach().to(torch.float64)
    left, singular, _ = torch.linalg.svd(matrix, full_matrices=False)
    tolerance = singular[0] * max(matrix.shape) * torch.finfo(torch.float64).eps
    basis = left[:, singular > tolerance]
    on = basis.norm(dim=1) > 1e-12
    base = on.double() if bool(on.any()) else torch.ones_like(matrix[:, 0])
    positive = _positive_combination(basis[on])
    if positive is not None:
        base[on] = positive
        across = base / base.norm()
        basis = basis - einsum(across, across @ basis, "o, i -> o i")
        basis = torch.linalg.svd(basis, full_matrices=False)[0][:, : basis.shape[1] - 1]
    reach = torch.where(on[:, None], basis.abs() / base[:, None], 0.0)
    lifted = reach.amax(dim=0) * base[:, None] + basis if basis.numel() else basis
    heads = torch.cat([base[:, None], lifted], dim=1).clamp(min=0.0).T
    heads = heads / heads.sum(dim=1, keepdim=True)
    return heads, torch.linalg.lstsq(heads.T, matrix).solution


def _positive_combination(rows: Tensor) -> Tensor | None:
    if not rows.numel():
        return None
    point = rows.mean(dim=0)
    for _ in range(1000):
        products = rows @ point
        if products.min() > LEAST_WEIGHT * products.max():
            return products
        towards = rows[products.argmin()] - point
        step = -(point @ towards) / towards.square().sum()
        point = point + step.clamp(0.0, 1.0) * towards
    return None
