"""Vectors for positions: one-hot, sinusoidal and learned, on lines and on grids."""

import math
from typing import Literal, Unpack

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Float
from torch import Tensor, nn

from transformers_hw._engine.arguments import (
    Device,
    Factory,
    check_lengths,
    check_sizes,
    height_and_width,
)
from transformers_hw._engine.kernels import exact_dtype
from transformers_hw._engine.shapes import checked

Combination = Literal["add", "concatenate"]


class _Encoding(nn.Module):
    """Add embeddings to tokens, or concatenate them."""

    def __init__(self, dim: int, *, combine: Combination) -> None:
        super().__init__()
        check_sizes(dim=dim)
        self.dim = dim
        self.combine: Combination = combine

    def _combine(self, x: Tensor, embeddings: Tensor) -> Tensor:
        embeddings = embeddings.to(x)
        if self.combine == "concatenate":
            return torch.cat([x, embeddings.expand(*x.shape[:-1], self.dim)], dim=-1)
        if x.shape[-1] != self.dim:
            raise ValueError(
                f"tokens must be {self.dim} wide to add embeddings of that width, "
                f"got shape {tuple(x.shape)}."
            )
        return x + embeddings

    def extra_repr(self) -> str:
        return f"{self.dim}, combine={self.combine!r}"


class PositionalEncoding(_Encoding):
    r"""Add or concatenate an embedding of its position to every token.

    The base class of the encodings below. A subclass defines `embeddings`.

    Args:
        dim: Width $p$ of an embedding.
        combine: `"add"` gives $X + P$, `"concatenate"` gives $[X \; P]$.

    Raises:
        ValueError: If `dim` is not positive or `combine` is neither of the two.
    """

    @checked
    def __init__(self, dim: int, *, combine: Combination = "add") -> None:
        super().__init__(dim, combine=combine)

    @checked
    def embeddings(
        self, length: int, *, start: int = 0, device: Device = None
    ) -> Float[Tensor, "length p"]:
        """Return the embeddings of the positions `start`, …, `start + length - 1`.

        Args:
            length: Number of positions.
            start: The first position.
            device: Where to compute embeddings that a formula gives. A learned table
                stays where it is.

        Returns:
            The embeddings. Those given by a formula are in float64, and are rounded
            to the tokens' dtype only when they are combined with them.
        """
        raise TypeError(
            f"{type(self).__name__} must define embeddings(length, *, start), "
            f"asked for {length} positions from {start}."
        )

    @checked
    def forward(
        self, x: Float[Tensor, "*batch n d"], *, start: int = 0
    ) -> Float[Tensor, "*batch n combined"]:
        """Combine tokens with the embeddings of their positions.

        Args:
            x: Tokens in order.
            start: Position of the first token, for sequences that arrive in pieces.

        Returns:
            As wide as `x` when adding, `dim` wider when concatenating.
        """
        return self._combine(
            x, self.embeddings(x.shape[-2], start=start, device=x.device)
        )


class OneHotPositions(PositionalEncoding):
    r"""Encode each position by its own axis: the rows of the identity $I_n$.

    The embeddings are orthonormal, so the inner product of two of them tells equal
    positions from different ones, which the constructions of
    [`self_attention`][transformers_hw.self_attention] rely on. The price is a width of
    $n$, and positions past the last have no embedding.

    Args:
        max_length: Number of positions $n$, and the width of an embedding.
        combine: How to combine with the tokens.

    Examples:
        >>> OneHotPositions(3)(torch.zeros(2, 1), start=1)
        tensor([[0., 0., 1., 0.],
                [0., 0., 0., 1.]])
    """

    @checked
    def __init__(
        self, max_length: int, *, combine: Combination = "concatenate"
    ) -> None:
        super().__init__(max_length, combine=combine)

    @checked
    def embeddings(
        self, length: int, *, start: int = 0, device: Device = None
    ) -> Float[Tensor, "length p"]:
        """Return rows `start`, …, `start + length - 1` of the identity."""
        _check_span(length, start, available=self.dim)
        identity = torch.eye(self.dim, dtype=exact_dtype(device), device=device)
        return identity[start : start + length]


class SinusoidalPositions(PositionalEncoding):
    r"""Encode a position by sines and cosines of geometrically falling frequency.

    $$
    P_{t,2i} = \sin(\omega_i t), \quad P_{t,2i+1} = \cos(\omega_i t),
    \qquad \omega_i = b^{-2i/p}, \quad i = 0, \dots, p/2 - 1
    $$

    Wavelengths grow from $2\pi$ to $2\pi\, b^{1-2/p}$, just short of $2\pi b$. The
    inner product of two embeddings depends only on their distance, and a shift is a
    rotation: see `shift_matrix`. Nothing is learned or stored, and every position has
    an embedding.

    Args:
        dim: Width $p$, an even number.
        base: $b > 0$, which sets the longest wavelength.
        combine: How to combine with the tokens.

    Raises:
        ValueError: If `dim` is odd or not positive, or `base` is not positive.

    Examples:
        >>> SinusoidalPositions(4).embeddings(2)
        tensor([[0.0000, 1.0000, 0.0000, 1.0000],
                [0.8415, 0.5403, 0.0100, 1.0000]], dtype=torch.float64)

    References:
        Vaswani et al. (2017), [Attention Is All You Need
        ](https://arxiv.org/abs/1706.03762), section 3.5.
    """

    @checked
    def __init__(
        self, dim: int, *, base: float = 10_000.0, combine: Combination = "add"
    ) -> None:
        super().__init__(dim, combine=combine)
        if dim % 2:
            raise ValueError(f"dim must be even (sines and cosines), got {dim}.")
        if not 0.0 < base < math.inf:
            raise ValueError(f"base must be positive and finite, got {base}.")
        self.base = base

    def extra_repr(self) -> str:
        """Show the width and the base in `repr`."""
        return f"{super().extra_repr()}, base={self.base:g}"

    @checked
    def frequencies(self, *, device: Device = None) -> Float[Tensor, " pairs"]:
        r"""Return $\omega_0, \dots, \omega_{p/2-1}$."""
        i = torch.arange(self.dim // 2, dtype=exact_dtype(device), device=device)
        return self.base ** (-2.0 * i / self.dim)

    @checked
    def embeddings(
        self, length: int, *, start: int = 0, device: Device = None
    ) -> Float[Tensor, "length p"]:
        """Return the embeddings of positions `start`, …, `start + length - 1`."""
        _check_span(length, start, available=None)
        omega = self.frequencies(device=device)
        at = torch.arange(start, start + length, dtype=omega.dtype, device=device)
        angles = torch.outer(at, omega)
        return rearrange([angles.sin(), angles.cos()], "two n i -> n (i two)")

    @checked
    def shift_matrix(self, offset: int) -> Float[Tensor, "p p"]:
        r"""Return the matrix that shifts every embedding by `offset` positions.

        $$
        P_{t+k}^\top = M_k P_t^\top, \qquad
        M_k = \bigoplus_i
        \begin{pmatrix}
        \cos \omega_i k & \sin \omega_i k \\ -\sin \omega_i k & \cos \omega_i k
        \end{pmatrix}
        $$

        $M_k$ depends on $k$ but not on $t$: the embedding of a shifted position is a
        linear function of the embedding, though no embedding is linear in $t$.

        Args:
            offset: $k$, of either sign.

        Returns:
            $M_k$, a rotation.

        Examples:
            >>> positions = SinusoidalPositions(6)
            >>> table = positions.embeddings(10)
            >>> moved = table[:7] @ positions.shift_matrix(3).T
            >>> torch.allclose(moved, table[3:])
            True
        """
        angles = offset * self.frequencies()
        sin, cos = angles.sin(), angles.cos()
        rows = [torch.stack([cos, sin], -1), torch.stack([-sin, cos], -1)]
        return torch.block_diag(*torch.stack(rows, dim=-2))


class LearnedPositions(PositionalEncoding):
    r"""Learn an embedding for each position, up to a maximum length.

    A one-hot encoding followed by a linear map is the same thing, since
    $I_n W = W$. So a position that never occurred in training keeps the random
    embedding it started with.

    Args:
        max_length: Number of positions.
        dim: Width of an embedding.
        combine: How to combine with the tokens.
        std: Standard deviation of the initial embeddings.
        **factory: `device` and `dtype` of the parameters.

    Raises:
        ValueError: If `max_length` or `dim` is not positive.

    Examples:
        >>> LearnedPositions(7, 5)(torch.zeros(2, 3, 5)).shape
        torch.Size([2, 3, 5])
    """

    @checked
    def __init__(
        self,
        max_length: int,
        dim: int,
        *,
        combine: Combination = "add",
        std: float = 0.02,
        **factory: Unpack[Factory],
    ) -> None:
        super().__init__(dim, combine=combine)
        check_sizes(max_length=max_length)
        self.std = std
        self.weight = nn.Parameter(torch.empty(max_length, dim, **factory))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the embeddings anew."""
        nn.init.trunc_normal_(self.weight, std=self.std)

    @checked
    def embeddings(
        self, length: int, *, start: int = 0, device: Device = None
    ) -> Float[Tensor, "length p"]:
        """Return rows `start`, …, `start + length - 1` of the table."""
        _check_span(length, start, available=len(self.weight))
        return self.weight[start : start + length]

    def extra_repr(self) -> str:
        """Show the size of the table in `repr`."""
        return f"{len(self.weight)}, {super().extra_repr()}"


class _GridEncoding(_Encoding):
    """Combine a grid of tokens with the embeddings of its cells."""

    @checked
    def embeddings(
        self, grid: tuple[int, int], *, device: Device = None
    ) -> Float[Tensor, "rows columns p"]:
        """Return the embeddings of a grid of `(rows, columns)`."""
        raise TypeError(f"{type(self).__name__} must define embeddings(grid).")

    @checked
    def forward(
        self, x: Float[Tensor, "*batch rows columns d"]
    ) -> Float[Tensor, "*batch rows columns combined"]:
        """Combine a grid of tokens with the embeddings of their cells."""
        grid = (x.shape[-3], x.shape[-2])
        return self._combine(x, self.embeddings(grid, device=x.device))


class SinusoidalPositions2D(_GridEncoding):
    r"""Encode the row in one half of the embedding and the column in the other.

    $$P_{(i,j)} = [\,S_i \; S_j\,]$$

    Here $S$ is a
    [`SinusoidalPositions`][transformers_hw.positional_encoding.SinusoidalPositions]
    encoding of width $p/2$. The inner product of two embeddings is a function of the
    row distance plus one of the column distance.

    Args:
        dim: Width $p$, divisible by four.
        base: Base $b$ of the frequencies, which sets the longest wavelength.
        combine: How to combine with the tokens.

    Raises:
        ValueError: If `dim` is not a positive multiple of four, or `base` is not
            positive.

    Examples:
        >>> SinusoidalPositions2D(8).embeddings((2, 3)).shape
        torch.Size([2, 3, 8])
    """

    @checked
    def __init__(
        self, dim: int, *, base: float = 10_000.0, combine: Combination = "add"
    ) -> None:
        super().__init__(dim, combine=combine)
        if dim % 4:
            raise ValueError(f"dim must be a positive multiple of 4, got {dim}.")
        self.axis = SinusoidalPositions(dim // 2, base=base)

    @checked
    def embeddings(
        self, grid: tuple[int, int], *, device: Device = None
    ) -> Float[Tensor, "rows columns p"]:
        """Return the embeddings of a grid of `(rows, columns)`."""
        rows, columns = grid
        return _outer(
            self.axis.embeddings(rows, device=device),
            self.axis.embeddings(columns, device=device),
        )


class LearnedPositions2D(_GridEncoding):
    """Learn an embedding for each cell of a grid, and resample it for other grids.

    This is the table of a Vision Transformer. Its cells are learned one by one,
    without a built-in notion of rows and columns. For another grid the table is
    resampled bicubically, as an image with `dim` channels would be.

    Args:
        grid: `(rows, columns)` of the table.
        dim: Width of an embedding.
        combine: How to combine with the tokens.
        std: Standard deviation of the initial embeddings.
        **factory: `device` and `dtype` of the parameters.

    Raises:
        ValueError: If `grid` or `dim` is not positive.

    Examples:
        >>> LearnedPositions2D((3, 4), 5).embeddings((6, 8)).shape
        torch.Size([6, 8, 5])

    References:
        Dosovitskiy et al. (2021), [An Image is Worth 16x16 Words
        ](https://arxiv.org/abs/2010.11929), section 3.2, for the resampling.
    """

    @checked
    def __init__(
        self,
        grid: tuple[int, int],
        dim: int,
        *,
        combine: Combination = "add",
        std: float = 0.02,
        **factory: Unpack[Factory],
    ) -> None:
        super().__init__(dim, combine=combine)
        self.grid = height_and_width("grid", grid)
        self.std = std
        self.weight = nn.Parameter(torch.empty(*self.grid, dim, **factory))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the embeddings anew."""
        nn.init.trunc_normal_(self.weight, std=self.std)

    @checked
    def embeddings(
        self, grid: tuple[int, int] | None = None, *, device: Device = None
    ) -> Float[Tensor, "rows columns p"]:
        """Return the embeddings of a grid, resampled if it is another one."""
        size = self.grid if grid is None else height_and_width("grid", grid)
        if size == self.grid:
            return self.weight
        image = rearrange(self.weight, "i j p -> 1 p i j")
        resampled = F.interpolate(image, size=size, mode="bicubic")
        return rearrange(resampled, "1 p i j -> i j p")

    def extra_repr(self) -> str:
        """Show the grid in `repr`."""
        return f"{self.grid}, {super().extra_repr()}"


class AxialPositions2D(_GridEncoding):
    r"""Learn half an embedding for each row and half for each column.

    $$P_{(i,j)} = [\,R_i \; C_j\,]$$

    Cells of one row share their first half, cells of one column their second, so the
    embeddings have the two axes built in. A free table
    ([`LearnedPositions2D`][transformers_hw.positional_encoding.LearnedPositions2D])
    can learn all of these and many others.

    Args:
        grid: `(rows, columns)` of the grid.
        dim: Width of an embedding, an even number.
        combine: How to combine with the tokens.
        std: Standard deviation of the initial embeddings.
        **factory: `device` and `dtype` of the parameters.

    Raises:
        ValueError: If `grid` is not positive, or `dim` is not positive and even.

    Examples:
        >>> AxialPositions2D((3, 4), 6).embeddings((6, 8)).shape
        torch.Size([6, 8, 6])

    References:
        Dosovitskiy et al. (2021), [An Image is Worth 16x16 Words
        ](https://arxiv.org/abs/2010.11929), appendix D.4, "2-dimensional positional
        embedding".
    """

    @checked
    def __init__(
        self,
        grid: tuple[int, int],
        dim: int,
        *,
        combine: Combination = "add",
        std: float = 0.02,
        **factory: Unpack[Factory],
    ) -> None:
        super().__init__(dim, combine=combine)
        if dim % 2:
            raise ValueError(f"dim must be positive and even, got {dim}.")
        self.grid = height_and_width("grid", grid)
        rows, columns = (self.grid[0], 1), (1, self.grid[1])
        self.rows = LearnedPositions2D(rows, dim // 2, std=std, **factory)
        self.columns = LearnedPositions2D(columns, dim // 2, std=std, **factory)

    @checked
    def embeddings(
        self, grid: tuple[int, int] | None = None, *, device: Device = None
    ) -> Float[Tensor, "rows columns p"]:
        """Return the embeddings of a grid, resampled if it is another one."""
        rows, columns = height_and_width("grid", self.grid if grid is None else grid)
        return _outer(
            self.rows.embeddings((rows, 1))[:, 0],
            self.columns.embeddings((1, columns))[0],
        )


def _outer(by_row: Tensor, by_column: Tensor) -> Tensor:
    rows = repeat(by_row, "i p -> i j p", j=len(by_column))
    columns = repeat(by_column, "j p -> i j p", i=len(by_row))
    return torch.cat([rows, columns], dim=-1)


def _check_span(length: int, start: int, *, available: int | None) -> None:
    check_lengths(length=length, start=start)
    if available is not None and start + length > available:
        raise ValueError(
            f"there are embeddings for {available} positions, "
            f"but positions up to {start + length} were asked for."
        )
