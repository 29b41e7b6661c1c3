r"""Positional encodings: telling attention where a token stands.

Attention alone is permutation equivariant: shuffle the tokens and the outputs
are shuffled alike. A code per position breaks the tie. The codes
$P \in \mathbb{R}^{n\times p}$ are added to the tokens, $X + P$, or concatenated
with them, $[X \; P]$; relative positions enter the scores instead.
"""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Float
from torch import Tensor, nn

from transformers_hw._checks import (
    check_choice,
    check_float,
    check_lengths,
    check_sizes,
)

Combination = Literal["add", "concatenate"]
Device = torch.device | str | None


class PositionalEncoding(nn.Module):
    r"""Join tokens with the codes of their positions.

    The encodings below derive from it; each says what the codes are by defining
    `codes`, and this class adds or concatenates them.

    Args:
        dim: Width $p$ of a code.
        combine: `"add"` gives $X + P$, `"concatenate"` gives $[X \; P]$.

    Raises:
        ValueError: If `dim` is not positive or `combine` is neither of the two.
    """

    def __init__(self, dim: int, *, combine: Combination = "add") -> None:
        super().__init__()
        check_sizes(dim=dim)
        check_choice("combine", combine, ("add", "concatenate"))
        self.dim = dim
        self.combine: Combination = combine

    def codes(
        self, length: int, *, start: int = 0, device: Device = None
    ) -> Float[Tensor, "length p"]:
        """Give the codes of the positions `start`, …, `start + length - 1`.

        Args:
            length: How many positions.
            start: The first of them.
            device: Where to make the codes. A learnt table stays where it is.

        Returns:
            The codes; those given by a formula are in float64, and rounded to
            the tokens' type only when they are joined with them.
        """
        raise TypeError(
            f"{type(self).__name__} must define codes(length, *, start), "
            f"asked for {length} positions from {start}."
        )

    def forward(
        self, x: Float[Tensor, "*batch n d"], *, start: int = 0
    ) -> Float[Tensor, "*batch n joined"]:
        """Join tokens with their codes.

        Args:
            x: Tokens in order.
            start: Position of the first of them, for sequences that arrive in
                pieces.

        Returns:
            As wide as `x` when adding, `dim` wider when concatenating.
        """
        check_float("x", x, "...", "n", "d")
        return _join(
            x, self.codes(x.shape[-2], start=start, device=x.device), self.combine
        )

    def extra_repr(self) -> str:
        """Show the width and the way of joining in `repr`."""
        return f"{self.dim}, combine={self.combine!r}"


class OneHotPositions(PositionalEncoding):
    r"""Give each position an axis of its own: the rows of the identity $I_n$.

    Codes are orthonormal, so a product of two of them tells equal from unequal,
    which is what the constructions of
    [`self_attention`][transformers_hw.self_attention] need. They cost a width of
    $n$, and no position past the last has a code.

    Args:
        length: Number of positions $n$, and the width of a code.
        combine: How to join with the tokens.

    Examples:
        >>> OneHotPositions(3)(torch.zeros(2, 1), start=1)
        tensor([[0., 0., 1., 0.],
                [0., 0., 0., 1.]])
    """

    def __init__(self, length: int, *, combine: Combination = "concatenate") -> None:
        super().__init__(length, combine=combine)

    def codes(
        self, length: int, *, start: int = 0, device: Device = None
    ) -> Float[Tensor, "length p"]:
        """Give rows `start`, …, `start + length - 1` of the identity."""
        _check_span(length, start, available=self.dim)
        identity = torch.eye(self.dim, dtype=_exact(device), device=device)
        return identity[start : start + length]


class SinusoidalPositions(PositionalEncoding):
    r"""Encode a position by sines and cosines of geometrically falling frequency.

    $$
    P_{t,2i} = \sin(\omega_i t), \quad P_{t,2i+1} = \cos(\omega_i t),
    \qquad \omega_i = b^{-2i/p}, \quad i = 0, \dots, p/2 - 1
    $$

    Wavelengths grow from $2\pi$ to $2\pi\, b^{1-2/p}$, which is short of
    $2\pi b$. The product of two codes depends on their distance alone, and a
    shift is a rotation: see `shift_matrix`. Nothing is learnt or stored, and
    every position has a code.

    Args:
        dim: Width $p$, an even number.
        base: $b > 0$, which sets the longest wavelength.
        combine: How to join with the tokens.

    Raises:
        ValueError: If `dim` is odd or not positive, or `base` is not positive.

    Examples:
        >>> SinusoidalPositions(4).codes(2)
        tensor([[0.0000, 1.0000, 0.0000, 1.0000],
                [0.8415, 0.5403, 0.0100, 1.0000]], dtype=torch.float64)

    References:
        Vaswani et al. (2017), [Attention Is All You Need
        ](https://arxiv.org/abs/1706.03762), section 3.5.
    """

    def __init__(
        self, dim: int, *, base: float = 10_000.0, combine: Combination = "add"
    ) -> None:
        super().__init__(dim, combine=combine)
        if dim % 2:
            raise ValueError(f"dim must be even (sines and cosines), got {dim}.")
        if not 0.0 < base < math.inf:
            raise ValueError(f"base must be positive and finite, got {base}.")
        self.base = base

    def frequencies(self, *, device: Device = None) -> Float[Tensor, " pairs"]:
        r"""Give $\omega_0, \dots, \omega_{p/2-1}$."""
        i = torch.arange(self.dim // 2, dtype=_exact(device), device=device)
        return self.base ** (-2.0 * i / self.dim)

    def codes(
        self, length: int, *, start: int = 0, device: Device = None
    ) -> Float[Tensor, "length p"]:
        """Give the codes of the positions `start`, …, `start + length - 1`."""
        _check_span(length, start, available=None)
        omega = self.frequencies(device=device)
        at = torch.arange(start, start + length, dtype=omega.dtype, device=device)
        angles = torch.outer(at, omega)
        return rearrange([angles.sin(), angles.cos()], "two n i -> n (i two)")

    def shift_matrix(self, offset: int) -> Float[Tensor, "p p"]:
        r"""Give the matrix that moves every code by `offset` positions.

        $$
        P_{t+k}^\top = M_k P_t^\top, \qquad
        M_k = \bigoplus_i
        \begin{pmatrix}
        \cos \omega_i k & \sin \omega_i k \\ -\sin \omega_i k & \cos \omega_i k
        \end{pmatrix}
        $$

        $M_k$ depends on $k$ but not on $t$: the code of a shifted position is a
        linear function of the code, though no code is linear in its position.

        Args:
            offset: $k$, of either sign.

        Returns:
            $M_k$, a rotation.

        Examples:
            >>> positions = SinusoidalPositions(6)
            >>> table = positions.codes(10)
            >>> moved = table[:7] @ positions.shift_matrix(3).T
            >>> torch.allclose(moved, table[3:])
            True
        """
        angles = offset * self.frequencies()
        sin, cos = angles.sin(), angles.cos()
        rows = [torch.stack([cos, sin], -1), torch.stack([-sin, cos], -1)]
        return torch.block_diag(*torch.stack(rows, dim=-2))


class LearnedPositions(PositionalEncoding):
    r"""Learn a vector for each position, up to a greatest length.

    A one-hot code followed by a linear map is the same thing, since
    $I_n W = W$; and so a position that never occurred in training keeps the
    random code it began with.

    Args:
        length: Number of positions.
        dim: Width of a code.
        combine: How to join with the tokens.
        std: Standard deviation of the initial codes.
        device: Where to put the table.
        dtype: Type of the table.

    Raises:
        ValueError: If `length`, `dim` or `combine` is not valid.

    Examples:
        >>> LearnedPositions(7, 5)(torch.zeros(2, 3, 5)).shape
        torch.Size([2, 3, 5])
    """

    def __init__(
        self,
        length: int,
        dim: int,
        *,
        combine: Combination = "add",
        std: float = 0.02,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(dim, combine=combine)
        check_sizes(length=length)
        self.std = std
        self.table = nn.Parameter(torch.empty(length, dim, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the codes anew."""
        nn.init.trunc_normal_(self.table, std=self.std)

    def codes(
        self, length: int, *, start: int = 0, device: Device = None
    ) -> Float[Tensor, "length p"]:
        """Give the learnt codes of `start`, …, `start + length - 1`."""
        _check_span(length, start, available=len(self.table))
        return self.table[start : start + length]


class SinusoidalPositions2D(nn.Module):
    r"""Encode the row in one half of the code and the column in the other.

    $$P_{(i,j)} = [\,S_i \; S_j\,]$$

    with $S$ the code of
    [`SinusoidalPositions`][transformers_hw.positional_encoding.SinusoidalPositions]
    of width $p/2$. Products of codes are sums of a function of the row distance
    and one of the column distance.

    Args:
        dim: Width $p$, divisible by four.
        base: Sets the longest wavelength.
        combine: How to join with the tokens.

    Raises:
        ValueError: If `dim` is not a positive multiple of four, or `base` not
            positive.

    Examples:
        >>> SinusoidalPositions2D(8).codes((2, 3)).shape
        torch.Size([2, 3, 8])
    """

    def __init__(
        self, dim: int, *, base: float = 10_000.0, combine: Combination = "add"
    ) -> None:
        super().__init__()
        if dim < 4 or dim % 4:
            raise ValueError(f"dim must be a positive multiple of 4, got {dim}.")
        self.axis = SinusoidalPositions(dim // 2, base=base, combine=combine)

    def codes(
        self, grid: tuple[int, int], *, device: Device = None
    ) -> Float[Tensor, "rows columns p"]:
        """Give the codes of a grid of `(rows, columns)`."""
        rows, columns = grid
        by_row = self.axis.codes(rows, device=device)
        by_column = self.axis.codes(columns, device=device)
        return torch.cat(
            [
                repeat(by_row, "i p -> i j p", j=columns),
                repeat(by_column, "j p -> i j p", i=rows),
            ],
            dim=-1,
        )

    def forward(
        self, x: Float[Tensor, "*batch rows columns d"]
    ) -> Float[Tensor, "*batch rows columns joined"]:
        """Join a grid of tokens with the codes of their places."""
        check_float("x", x, "...", "rows", "columns", "d")
        codes = self.codes((x.shape[-3], x.shape[-2]), device=x.device)
        return _join(x, codes, self.axis.combine)


class LearnedPositions2D(nn.Module):
    """Learn a vector for each cell of a grid, and stretch it to other grids.

    The table of a Vision Transformer: cells are learnt one by one, without a
    built-in notion of rows and columns. For pictures of another size the table
    is resampled bicubically, as a picture with `dim` channels would be.

    Args:
        grid: `(rows, columns)` of the table.
        dim: Width of a code.
        combine: How to join with the tokens.
        std: Standard deviation of the initial codes.
        device: Where to put the table.
        dtype: Type of the table.

    Raises:
        ValueError: If `grid`, `dim` or `combine` is not valid.

    Examples:
        >>> LearnedPositions2D((3, 4), 5).codes((6, 8)).shape
        torch.Size([6, 8, 5])

    References:
        Dosovitskiy et al. (2021), [An Image is Worth 16x16 Words
        ](https://arxiv.org/abs/2010.11929), section 3.2, for the resampling.
    """

    def __init__(
        self,
        grid: tuple[int, int],
        dim: int,
        *,
        combine: Combination = "add",
        std: float = 0.02,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        _check_grid(grid)
        self.grid = (grid[0], grid[1])
        self.cells = LearnedPositions(
            grid[0] * grid[1], dim, combine=combine, std=std, device=device, dtype=dtype
        )

    def codes(
        self, grid: tuple[int, int] | None = None
    ) -> Float[Tensor, "rows columns p"]:
        """Give the codes of a grid of `(rows, columns)`, resampled if it differs."""
        rows, columns = self.grid
        table = rearrange(self.cells.table, "(i j) p -> i j p", i=rows, j=columns)
        if grid is None or grid == self.grid:
            return table
        _check_grid(grid)
        picture = rearrange(table, "i j p -> 1 p i j")
        stretched = F.interpolate(
            picture, size=grid, mode="bicubic", align_corners=False
        )
        return rearrange(stretched, "1 p i j -> i j p")

    def forward(
        self, x: Float[Tensor, "*batch rows columns d"]
    ) -> Float[Tensor, "*batch rows columns joined"]:
        """Join a grid of tokens with the codes of their places."""
        check_float("x", x, "...", "rows", "columns", "d")
        return _join(x, self.codes((x.shape[-3], x.shape[-2])), self.cells.combine)


class RelativePositionBias(nn.Module):
    r"""Learn, for each head, how much a distance adds to the score.

    $$
    B^{(h)}_{ij} = w^{(h)}_{\operatorname{clip}(j - i,\, -m,\, m)}
    $$

    The result is the `bias` of [`attention`][transformers_hw.attention.attention].
    Distances beyond $m$ share the last entry, so every length has a bias.

    Args:
        heads: Number of heads.
        max_distance: $m$, the greatest distance told apart.
        device: Where to put the table.
        dtype: Type of the table.

    Raises:
        ValueError: If `heads` or `max_distance` is not positive.

    Examples:
        >>> RelativePositionBias(heads=2, max_distance=4)(3, 5).shape
        torch.Size([2, 3, 5])

    References:
        Shaw et al. (2018), [Self-Attention with Relative Position
        Representations](https://arxiv.org/abs/1803.02155), section 3.2, clip
        distances likewise; Raffel et al. (2020), [T5
        ](https://arxiv.org/abs/1910.10683), section 2.1, add a number to the score.
    """

    def __init__(
        self,
        heads: int,
        max_distance: int,
        *,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_sizes(heads=heads, max_distance=max_distance)
        self.max_distance = max_distance
        shape = (heads, 2 * max_distance + 1)
        self.table = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start from scores that ignore the distance."""
        nn.init.zeros_(self.table)

    def forward(
        self, queries: int, keys: int | None = None
    ) -> Float[Tensor, "heads queries keys"]:
        """Give the bias for so many queries and keys, the last ones aligned.

        Args:
            queries: Number of queries.
            keys: Number of keys, or `None` for as many as queries.
        """
        keys = queries if keys is None else keys
        check_lengths(queries=queries, keys=keys)
        device = self.table.device
        query_at = torch.arange(queries, device=device) + (keys - queries)
        key_at = torch.arange(keys, device=device)
        distance = key_at - rearrange(query_at, "q -> q 1")
        index = distance.clamp(-self.max_distance, self.max_distance)
        return self.table[:, index + self.max_distance]


def _exact(device: Device) -> torch.dtype:
    # In float32 the angle of position one million is off by 0.06 radians. Apple's
    # GPUs have nothing better.
    on_apple = device is not None and torch.device(device).type == "mps"
    return torch.float32 if on_apple else torch.float64


def _join(x: Tensor, codes: Tensor, combine: Combination) -> Tensor:
    codes = codes.to(x)
    if combine == "concatenate":
        return torch.cat([x, codes.expand(*x.shape[:-1], codes.shape[-1])], dim=-1)
    if x.shape[-1] != codes.shape[-1]:
        raise ValueError(
            f"tokens must be as wide as the codes to add them: codes of width "
            f"{codes.shape[-1]}, got tokens of shape {tuple(x.shape)}."
        )
    return x + codes


def _check_grid(grid: tuple[int, int]) -> None:
    if not isinstance(grid, tuple | list) or len(grid) != 2:
        raise ValueError(f"grid must be (rows, columns), got {grid!r}.")
    check_sizes(rows=grid[0], columns=grid[1])


def _check_span(length: int, start: int, *, available: int | None) -> None:
    check_lengths(length=length, start=start)
    if available is not None and start + length > available:
        raise ValueError(
            f"there are codes for {available} positions, "
            f"but positions up to {start + length} were asked for."
        )
