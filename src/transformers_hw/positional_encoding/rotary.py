r"""Rotary positions (RoPE): queries and keys turned by an angle for their position."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from transformers_hw._engine.arguments import (
    Device,
    check_choice,
    check_lengths,
    check_sizes,
    height_and_width,
)
from transformers_hw._engine.kernels import exact_dtype
from transformers_hw._engine.shapes import checked

Layout = Literal["pairs", "halves"]


@dataclass(frozen=True)
class RotaryScaling:
    r"""How to stretch rotary positions beyond the lengths of training.

    Every frequency is divided by `factor`: position interpolation. With
    `original_length`, only slow ones are. A frequency that turns less than
    `low` times within the original length is divided by `factor`, one that turns more
    than `high` times is kept, and those between go over linearly in the number of
    turns. This is the rule of Llama 3.1.

    Attributes:
        factor: By how much sequences get longer.
        original_length: Length in training, or `None` to stretch all frequencies.
        low: Turns up to which a frequency is stretched fully.
        high: Turns from which on it is kept.
    """

    factor: float = 1.0
    original_length: int | None = None
    low: float = 1.0
    high: float = 4.0

    def __post_init__(self) -> None:
        """Check the numbers."""
        if not 0.0 < self.factor < math.inf:
            raise ValueError(f"factor must be positive and finite, got {self.factor}.")
        if self.original_length is not None:
            check_sizes(original_length=self.original_length)
        if not 0.0 < self.low < self.high:
            raise ValueError(
                f"low and high must be positive and increasing, got {self.low} and "
                f"{self.high}."
            )

    def __call__(self, frequencies: Tensor) -> Tensor:
        """Return the stretched frequencies."""
        if self.original_length is None:
            return frequencies / self.factor
        turns = self.original_length * frequencies / (2 * math.pi)
        kept = ((turns - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
        return frequencies * (kept + (1.0 - kept) / self.factor)


class RotaryPositions(nn.Module):
    r"""Rotate queries and keys by angles in proportion to their positions.

    Features are taken in pairs, $(x_{2i}, x_{2i+1})$, and the pair of a token at
    position $t$ is turned by the angle $\omega_i t$:

    $$
    \begin{pmatrix} x'_{2i} \\ x'_{2i+1} \end{pmatrix} =
    \begin{pmatrix}
    \cos \omega_i t & -\sin \omega_i t \\ \sin \omega_i t & \cos \omega_i t
    \end{pmatrix}
    \begin{pmatrix} x_{2i} \\ x_{2i+1} \end{pmatrix},
    \qquad \omega_i = b^{-2i/d}
    $$

    With $R_t$ for the rotation of a whole query or key, $R_s^\top R_t = R_{t-s}$. So
    the score of a query at $s$ and a key at $t$ is $q^\top R_{t-s} k$: it depends on
    where they stand only through the distance. Lengths do not change, and nothing is
    learned.

    Args:
        dim: Number of features to rotate, even; further features are left alone.
        base: $b > 0$, which sets the longest wavelength.
        scaling: How to stretch the frequencies, for longer sequences than in training.
        layout: Which features form a pair: neighbors (`"pairs"`), or, in halves,
            features $i$ and $i + d/2$ (`"halves"`, as in Hugging Face's Llama).

    Raises:
        ValueError: If `dim` is odd or not positive, `base` is not positive, or
            `layout` is neither of the two.

    Examples:
        A quarter turn per position, for one pair of features:

        >>> rotary = RotaryPositions(2, scaling=RotaryScaling(2 / math.pi))
        >>> rotary(torch.tensor([[1.0, 0.0]] * 3)).round(decimals=4).abs()
        tensor([[1., 0.],
                [0., 1.],
                [1., 0.]])

    References:
        Su et al. (2024), [RoFormer](https://arxiv.org/abs/2104.09864), section 3.
    """

    @checked
    def __init__(
        self,
        dim: int,
        *,
        base: float = 10_000.0,
        scaling: RotaryScaling | None = None,
        layout: Layout = "pairs",
    ) -> None:
        super().__init__()
        check_sizes(dim=dim)
        if dim % 2:
            raise ValueError(f"dim must be even (pairs of features), got {dim}.")
        if not 0.0 < base < math.inf:
            raise ValueError(f"base must be positive and finite, got {base}.")
        check_choice("layout", layout, ("pairs", "halves"))
        self.dim, self.base, self.scaling = dim, base, scaling
        self.layout: Layout = layout

    @checked
    def frequencies(self, *, device: Device = None) -> Float[Tensor, " pairs"]:
        r"""Return $\omega_0, \dots, \omega_{d/2-1}$, stretched if they are."""
        i = torch.arange(self.dim // 2, dtype=exact_dtype(device), device=device)
        omega = self.base ** (-2.0 * i / self.dim)
        return omega if self.scaling is None else self.scaling(omega)

    @checked
    def forward(
        self,
        x: Float[Tensor, "*batch n d"],
        *,
        start: int = 0,
        positions: Int[Tensor, "*#batch n"] | None = None,
    ) -> Float[Tensor, "*batch n d"]:
        """Rotate queries or keys.

        Args:
            x: Queries or keys of a head, in order.
            start: Position of the first one, for sequences that arrive in pieces.
            positions: Their positions, if they are not `start`, `start + 1`, ….

        Returns:
            The rotated queries or keys.
        """
        if x.shape[-1] < self.dim:
            raise ValueError(
                f"x must have at least the {self.dim} features to rotate, "
                f"got shape {tuple(x.shape)}."
            )
        if positions is None:
            check_lengths(start=start)
            positions = torch.arange(start, start + x.shape[-2], device=x.device)
        omega = self.frequencies(device=x.device)
        angles = rearrange(positions, "... n -> ... n 1").to(omega.dtype) * omega
        return _rotate(x, angles, self.dim, self.layout)

    def extra_repr(self) -> str:
        """Show the settings in `repr`."""
        scaling = "" if self.scaling is None else f", scaling={self.scaling}"
        return f"{self.dim}, base={self.base:g}{scaling}, layout={self.layout!r}"


class RotaryPositions2D(nn.Module):
    r"""Rotate half of the pairs by a patch's row, the other half by its column.

    $$q^\top R_{(k-i,\, l-j)}\, p$$

    is the score of a query $q$ at row $i$, column $j$ and a key $p$ at $(k, l)$: it
    depends on the two offsets only. Tokens without a position are not rotated, so that
    their scores depend on where the rows and columns begin to count.

    Args:
        dim: Number of features to rotate, divisible by four.
        base: $b > 0$, which sets the longest wavelength.
        layout: Which features form a pair, within each half.
        first: Whether the first half is for the `"row"` or for the `"column"`.
        start: Number of the first row and column.
        reference: `(rows, columns)` of the grid in training. Other grids are stretched
            to it: a patch gets the angles of its place in the image.
        centered: Whether to measure positions from the center of the image, from
            $-2\pi$ to $2\pi$ in a grid of any size, instead of in patches.

    Raises:
        ValueError: If `dim` is not a positive multiple of four, `base` is not
            positive, a name is unknown, or a centered grid has a reference.

    Examples:
        >>> rotary = RotaryPositions2D(8)
        >>> rotary(torch.randn(2, 3 * 4 + 1, 8), (3, 4)).shape
        torch.Size([2, 13, 8])

    References:
        Fang et al. (2024), [EVA-02](https://arxiv.org/abs/2303.11331), section 2;
        Siméoni et al. (2025), [DINOv3](https://arxiv.org/abs/2508.10104), section 3.2,
        for centered positions.
    """

    @checked
    def __init__(
        self,
        dim: int,
        *,
        base: float = 10_000.0,
        layout: Layout = "pairs",
        first: Literal["row", "column"] = "row",
        start: float = 0.0,
        reference: tuple[int, int] | None = None,
        centered: bool = False,
    ) -> None:
        super().__init__()
        check_sizes(dim=dim)
        if dim % 4:
            raise ValueError(f"dim must be a positive multiple of 4, got {dim}.")
        check_choice("layout", layout, ("pairs", "halves"))
        check_choice("first", first, ("row", "column"))
        if reference is not None:
            reference = height_and_width("reference", reference)
            if centered:
                raise ValueError(
                    f"reference must be None for a centered grid, got {reference}."
                )
        self.dim, self.first, self.start = dim, first, start
        self.reference, self.centered = reference, centered
        self.layout: Layout = layout
        self.axis = RotaryPositions(dim // 2, base=base)

    @checked
    def forward(
        self, x: Float[Tensor, "*batch n d"], grid: tuple[int, int]
    ) -> Float[Tensor, "*batch n d"]:
        """Rotate the queries or keys of patches.

        Args:
            x: Queries or keys of a head: patches row by row. Tokens before them, such
                as a class token, have no position and stay as they are.
            grid: `(rows, columns)` of patches.

        Returns:
            The rotated queries or keys.

        Raises:
            ValueError: If there are fewer tokens than patches.
        """
        rows, columns = height_and_width("grid", grid)
        before = x.shape[-2] - rows * columns
        if before < 0 or x.shape[-1] < self.dim:
            raise ValueError(
                f"x must have a row for each of {rows * columns} patches and "
                f"{self.dim} features, got shape {tuple(x.shape)}."
            )
        omega = self.axis.frequencies(device=x.device)
        at = torch.cartesian_prod(*self._numbers((rows, columns), omega))
        at = at if self.first == "row" else at.flip(-1)
        angles = rearrange(at, "n two -> n two 1") * omega
        angles = rearrange(angles, "n two i -> n (two i)")
        patches = _rotate(x[..., before:, :], angles, self.dim, self.layout)
        return torch.cat([x[..., :before, :], patches], dim=-2)

    def extra_repr(self) -> str:
        """Show the settings in `repr`."""
        told = f"{self.dim}, base={self.axis.base:g}, layout={self.layout!r}"
        told += "" if self.first == "row" else f", first={self.first!r}"
        told += "" if self.start == 0.0 else f", start={self.start:g}"
        told += "" if self.reference is None else f", reference={self.reference}"
        return told + (", centered=True" if self.centered else "")

    def _numbers(self, grid: tuple[int, int], like: Tensor) -> list[Tensor]:
        """Return the numbers of all rows and of all columns."""
        found = []
        for size, wanted in zip(grid, self.reference or grid, strict=True):
            at = self.start + torch.arange(size, dtype=like.dtype, device=like.device)
            if self.centered:
                at = 2.0 * math.pi * (2.0 * (at + 0.5) / size - 1.0)
            found.append(at if wanted == size else at * wanted / size)
        return found


def _rotate(x: Tensor, angles: Tensor, dim: int, layout: Layout) -> Tensor:
    """Turn each pair of the first `dim` features by its angle."""
    turned, rest = x[..., :dim], x[..., dim:]
    axes = "(i two)" if layout == "pairs" else "(two i)"
    # Angles of far positions need more digits than half precision has.
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = rearrange(turned, f"... {axes} -> two ... i", two=2)
    rotated = rearrange(
        torch.stack([a * cos - b * sin, a * sin + b * cos]), f"two ... i -> ... {axes}"
    )
    return torch.cat([rotated, rest], dim=-1) if rest.shape[-1] else rotated
