r"""Gaussian attention: each head averages the pixels around a center.

The weights depend on positions alone, so the output is linear in the image:

$$Y = \sum_h P_h X W^{(h)} + b,$$

with $P_h \in \mathbb{R}^{N \times N}$ for $N = H \cdot W$ pixels. If the scores are,
moreover, a sum of a row part and a column part, then the softmax of the sum is the
product of the softmaxes, since an image is a product of its rows and columns:

$$
\frac{e^{s_k + t_l}}{\sum_{k',l'} e^{s_{k'} + t_{l'}}}
= \frac{e^{s_k}}{\sum_{k'} e^{s_{k'}}} \cdot \frac{e^{t_l}}{\sum_{l'} e^{t_{l'}}}.
$$

So $P_h = R_h \otimes C_h$, borders included, and $P_h X$ is a product with $R_h$
along the rows, then with $C_h$ along the columns: $O(N(H + W)D)$ steps instead of
$O(N^2 D)$, and no $N \times N$ matrix.
"""

import math
from array import array
from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from transformers_hw._engine.arguments import check_dropout, check_sizes
from transformers_hw._engine.kernels import widen
from transformers_hw._engine.mixing import (
    mix_densely,
    mix_separably,
    mix_shifted,
    outer,
    query_positions,
    reset_value_weight,
)
from transformers_hw._engine.shapes import checked
from transformers_hw.attention import softmax

Covariance = Literal["isotropic", "diagonal", "full"]


class GaussianSelfAttention(nn.Module):
    r"""Average, for each head and query pixel, the pixels around a learned center.

    $$
    Y = \sum_h P_h X W^{(h)} + b, \qquad
    (P_h)_{q,k} = \operatorname{softmax}_k\!\left(
    -(\delta - \Delta_h)^\top M_h\, (\delta - \Delta_h)\right), \quad \delta = k - q
    $$

    **The sign:** $\Delta$ is the offset that the head attends to, seen from the query
    (key minus query), so a plot of the centers shows the pixels attended to. Texts that
    define $\delta = q - k$ have $-\Delta$ in its place.

    The centers $\Delta_h$ and the sharpness are learned; $W^{(h)}$ is a head's value
    and output projection in one, so every head has the full width. The covariance
    of the Gaussian is $\tfrac12 M_h^{-1}$, where

    - `"isotropic"`: $M_h = \alpha I$, with $\log\alpha$ learned;
    - `"diagonal"`: $M_h = \operatorname{diag}(\alpha_1, \alpha_2)$, with both
      logarithms learned;
    - `"full"`: $M_h = L L^\top$ with
      $L = \begin{pmatrix}\sqrt{\alpha_1} & 0 \\ c & \sqrt{\alpha_2}\end{pmatrix}$,
      where $c$, the `shear`, is learned too.

    All are positive definite, whatever is learned. The first two factorize into rows
    and columns, and take $O(N(H+W)D)$ steps; the last one does not, and takes
    $O(N^2 D)$.

    With `sharpness=math.inf`, heads are *hard*: each attends to the pixel nearest to
    $q + \Delta$. Outside the image that is the pixel at the coordinate-wise clamp,
    so the layer pads by replication; at half-integer $\Delta$, pixels that tie share
    the weight equally. The gradient with respect to a hard head's center is zero, so
    the centers are part of the layer's structure, as the size of a kernel is.

    Args:
        dim: Width $D$ of a pixel.
        heads: Number of heads.
        output_dim: Width of the output; `dim` by default.
        covariance: Shape of the Gaussians.
        centers: Initial centers, as `(row, column)` offsets; drawn from
            $\mathcal{N}(0, 2^2)$ by default. Hard heads need them.
        sharpness: Initial $\alpha$ of all heads and both axes.
        dropout: Probability of dropping an attention weight in training. The weights
            have no batch axis, so one draw serves the whole batch; as they are dropped
            one by one, a step then takes $O(N^2 D)$.
        bias: Whether to add $b$.
        device: Device of the parameters.
        dtype: Dtype of the parameters. Scores are computed in float32 at least, so that
            half precision is safe.

    Raises:
        ValueError: If a size or `sharpness` is not positive, `covariance` is unknown,
            `dropout` is not a probability below one, or the centers are not one finite
            pair per head.

    Examples:
        >>> layer = GaussianSelfAttention(5, heads=3, output_dim=7)
        >>> layer(torch.randn(2, 8, 11, 5)).shape
        torch.Size([2, 8, 11, 7])
        >>> layer.weights(8, 11).shape
        torch.Size([3, 8, 11, 8, 11])

        A hard head that attends one pixel to the right, and the border it replicates:

        >>> layer = GaussianSelfAttention(
        ...     1, heads=1, centers=[(0, 1)], sharpness=math.inf, bias=False
        ... )
        >>> _ = nn.init.ones_(layer.value_weight)
        >>> row = torch.tensor([1.0, 2.0, 3.0]).reshape(1, 1, 3, 1)
        >>> layer(row).flatten()
        tensor([2., 3., 3.], grad_fn=...)

    References:
        Cordonnier, Loukas & Jaggi (2020), [On the Relationship between
        Self-Attention and Convolutional Layers](https://arxiv.org/abs/1911.03584),
        section 3.2 (isotropic) and appendix B (any covariance).
    """

    centers: nn.Parameter | None
    log_sharpness: nn.Parameter | None
    shear: nn.Parameter | None
    bias: nn.Parameter | None

    @checked
    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        output_dim: int | None = None,
        covariance: Covariance = "isotropic",
        centers: Tensor | Sequence[Sequence[float | int]] | None = None,
        sharpness: float | int = 0.5,
        dropout: float = 0.0,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        output_dim = dim if output_dim is None else output_dim
        check_sizes(dim=dim, heads=heads, output_dim=output_dim)
        check_dropout(dropout)
        if not sharpness > 0.0:
            raise ValueError(
                f"sharpness must be positive (math.inf is hard), got {sharpness}."
            )
        self.dim, self.heads, self.output_dim = dim, heads, output_dim
        self.covariance, self.sharpness = covariance, sharpness
        self.dropout = dropout
        self.given_centers = (
            None if centers is None else _pairs(centers, heads, hard=self.hard)
        )
        if self.hard and (covariance != "isotropic" or self.given_centers is None):
            raise ValueError(
                "hard heads (infinite sharpness) need centers and covariance "
                f"'isotropic', got centers {centers} and covariance {covariance!r}."
            )

        def parameter(exists: bool, *shape: int) -> nn.Parameter | None:
            empty = torch.empty(shape, device=device, dtype=dtype)
            return nn.Parameter(empty) if exists else None

        axes = () if covariance == "isotropic" else (2,)
        self.centers = parameter(not self.hard, heads, 2)
        self.log_sharpness = parameter(not self.hard, heads, *axes)
        self.shear = parameter(covariance == "full", heads)
        self.value_weight = nn.Parameter(
            torch.empty(heads, dim, output_dim, device=device, dtype=dtype)
        )
        self.bias = parameter(bias, output_dim)
        self.reset_parameters()

    @property
    def hard(self) -> bool:
        """Whether each head attends to the nearest pixel only."""
        return self.sharpness == math.inf

    def reset_parameters(self) -> None:
        """Set initial centers and sharpness; draw values by Glorot's uniform rule."""
        reset_value_weight(self.value_weight)
        for zero in (self.bias, self.shear):
            if zero is not None:
                nn.init.zeros_(zero)
        if self.centers is None or self.log_sharpness is None:
            return
        nn.init.constant_(self.log_sharpness, math.log(self.sharpness))
        nn.init.normal_(self.centers, std=2.0)
        if self.given_centers is not None:
            with torch.no_grad():
                self.centers.copy_(torch.tensor(self.given_centers))

    def head_centers(self) -> Float[Tensor, "heads 2"]:
        r"""Return $\Delta$ of each head: `(row, column)` of key minus query."""
        if self.centers is not None:
            return self.centers
        # Half precision would round large offsets.
        dtype = torch.promote_types(self.value_weight.dtype, torch.float32)
        device = self.value_weight.device
        return torch.tensor(self.given_centers, dtype=dtype, device=device)

    def alphas(self) -> tuple[Float[Tensor, " heads"], Float[Tensor, " heads"]]:
        """Return each head's sharpness along rows and columns, in float32 at least.

        Hard heads have ones: they attend to the nearest pixel, whatever the scale.
        """
        if self.log_sharpness is None:
            ones = self.value_weight.new_ones(self.heads, dtype=torch.float32)
            return ones, ones
        # No sharper, or products with distances would overflow.
        alphas = widen(self.log_sharpness).exp().clamp(max=1e30)
        isotropic = self.covariance == "isotropic"
        return (alphas, alphas) if isotropic else (alphas[:, 0], alphas[:, 1])

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
        """Attend from each pixel of an image to all of them.

        Args:
            x: The pixels, channels last.
            queries: Rows and columns of the query pixels, all by default. With
                `(slice(1, None, 2), slice(None))`, only these rows of the output are
                computed.
            return_weights: Whether to return the weights of every head too.

        Returns:
            The output; with `return_weights`, also the weights before dropout. They do
            not depend on the image, so they have no batch axis.

        Raises:
            TypeError: If `x` is not a floating-point tensor of the layer's dtype.
            ValueError: If `x` has the wrong shape, or no pixels.
        """
        rows, columns = x.shape[1], x.shape[2]
        values = (x, self.value_weight, self.bias)
        dropout = self.dropout if self.training else 0.0
        if return_weights:
            weights = self.weights(rows, columns, queries=queries).to(x.dtype)
            output = einsum(
                F.dropout(weights, dropout),
                x,
                self.value_weight,
                "h i j k l, b k l d, h d e -> b i j e",
            )
            return output if self.bias is None else output + self.bias, weights
        # The same sum from here on, in an order that takes fewer steps.
        if self.covariance == "full" or dropout:
            weights = self.weights(rows, columns, queries=queries).to(x.dtype)
            return mix_densely(F.dropout(weights, dropout), *values)
        check_sizes(rows=rows, columns=columns)
        at = query_positions((rows, columns), queries, x.device)
        if self.hard and not self._ties():
            row_at = self._nearest(0, at[0], rows)
            return mix_shifted(row_at, self._nearest(1, at[1], columns), *values)
        by_row, by_column = self._axis_weights(at, (rows, columns))
        return mix_separably(by_row.to(x.dtype), by_column.to(x.dtype), *values)

    @checked
    def weights(
        self, rows: int, columns: int, *, queries: tuple[slice, slice] | None = None
    ) -> Float[Tensor, "heads i j {rows} {columns}"]:
        """Return each head's weights over an image.

        Args:
            rows: Height of the image.
            columns: Width of the image.
            queries: Rows and columns of the query pixels, all by default.

        Returns:
            For each head and query pixel, weights that sum to one; in float32 at least.
        """
        check_sizes(rows=rows, columns=columns)
        at = query_positions((rows, columns), queries, self.value_weight.device)
        if self.shear is None:
            return outer(*self._axis_weights(at, (rows, columns)))
        down = self._squares(0, at[0], rows)
        right = self._squares(1, at[1], columns)
        down = [rearrange(factor, "h i k -> h i 1 k 1") for factor in down]
        right = [rearrange(factor, "h j l -> h 1 j 1 l") for factor in right]
        first, second = (rearrange(a, "h -> h 1 1 1 1") for a in self.alphas())
        shear = rearrange(self.shear, "h -> h 1 1 1 1")
        # The squared length of Lᵀ(δ − Δ), whose two entries these are.
        skewed = [
            first.sqrt() * d + shear * r for d, r in zip(down, right, strict=True)
        ]
        scores = skewed[0] * skewed[1] + second * right[0] * right[1]
        joint = rearrange(scores, "h i j k l -> h i j (k l)").softmax(dim=-1)
        return rearrange(joint, "h i j (k l) -> h i j k l", k=rows)

    def extra_repr(self) -> str:
        """Show the sizes in `repr`."""
        return (
            f"{self.dim}, heads={self.heads}, output_dim={self.output_dim}, "
            f"covariance={self.covariance!r}, sharpness={self.sharpness}, "
            f"dropout={self.dropout}"
        )

    def _axis_weights(
        self, at: tuple[Int[Tensor, " i"], Int[Tensor, " j"]], sizes: tuple[int, int]
    ) -> list[Float[Tensor, "{self.heads} queries keys"]]:
        weights = []
        for axis, alpha in enumerate(self.alphas()):
            left, right = self._squares(axis, at[axis], sizes[axis])
            scores = rearrange(alpha, "h -> h 1 1") * left * right
            weights.append(
                softmax(scores, math.inf) if self.hard else scores.softmax(-1)
            )
        return weights

    def _squares(
        self, axis: int, at: Int[Tensor, " i"], length: int
    ) -> tuple[Float[Tensor, "heads i keys"], Float[Tensor, "heads i keys"]]:
        """Return two factors of minus the squared distances of keys to their target.

        For the key n nearest to the target t, (n - t)² - (k - t)² is
        (n - k) ((n - t) + (k - t)). Softmax ignores what is added to all scores. The
        factors stay exact even if t is far outside the image: they are integers, except
        for the fractional part of the center, which is subtracted last.
        """
        centers = rearrange(widen(self.head_centers()[:, axis]), "h -> h 1 1")
        shift = centers.detach().round()
        target = rearrange(at, "i -> i 1") + shift
        nearest = target.clamp(0, length - 1)
        keys = torch.arange(length, device=at.device, dtype=target.dtype)
        sums = (nearest - target) + (keys - target)
        return nearest - keys, sums - 2.0 * (centers - shift)

    def _ties(self) -> bool:
        return any(d % 1 == 0.5 for center in self.given_centers or () for d in center)

    def _nearest(
        self, axis: int, at: Int[Tensor, " i"], length: int
    ) -> Int[Tensor, "heads i"]:
        # No image reaches as far, and integers go no farther than 2⁶³.
        centers = (center[axis] for center in self.given_centers or ())
        shifts = [round(min(max(x, -1e9), 1e9)) for x in centers]
        shift = rearrange(torch.tensor(shifts, device=at.device), "h -> h 1")
        return (at + shift).clamp(0, length - 1)


def _pairs(
    centers: Tensor | Sequence[Sequence[float | int]], heads: int, *, hard: bool
) -> tuple[tuple[float, float], ...]:
    listed = centers.tolist() if isinstance(centers, Tensor) else centers
    # Hard heads compute weights in float32: what is a tie there must be one everywhere.
    pairs = [tuple(array("f" if hard else "d", pair)) for pair in listed]
    if len(pairs) != heads or any(len(pair) != 2 for pair in pairs):
        raise ValueError(
            f"centers must be {heads} pairs (row, column), one a head, got {listed}."
        )
    if not all(math.isfinite(d) for pair in pairs for d in pair):
        raise ValueError(f"centers must be finite, got {listed}.")
    return tuple((row, column) for row, column in pairs)
