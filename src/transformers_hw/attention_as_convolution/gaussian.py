r"""Gaussian attention: each head looks at a spot some way off, more or less sharply.

Its weights depend on positions alone, and factorise into rows and columns.
"""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from transformers_hw._checks import check_choice, check_sizes
from transformers_hw.attention_as_convolution.mixing import (
    _asking,
    _check_picture,
    _outer,
    mix_densely,
    mix_separably,
    mix_shifted,
)

Covariance = Literal["isotropic", "diagonal", "full"]
COVARIANCES = ("isotropic", "diagonal", "full")
# On pictures of up to so many pixels, two small products cost more than one larger.
FEW_PIXELS = 64


class GaussianSelfAttention(nn.Module):
    r"""Let each head average the pixels around a spot, seen from every pixel.

    $$
    Y = \sum_h P_h X W^{(h)} + b, \qquad
    (P_h)_{q,k} = \operatorname{softmax}_k\!\left(
    -(\delta - \Delta_h)^\top M_h\, (\delta - \Delta_h)\right), \quad \delta = k - q
    $$

    **The sign:** $\Delta$ is where the head looks, seen from the query (key minus
    query), so a plot of the centres shows the pixels looked at. Texts that define
    $\delta = q - k$ have $-\Delta$ in its place.

    The centres $\Delta_h$ and the sharpness are learnt; $W^{(h)}$ is a head's value
    and output projection in one, so every head has the full width. The covariance
    of the Gaussian is $\tfrac12 M_h^{-1}$, where

    - `"isotropic"`: $M_h = \alpha I$, with $\log\alpha$ learnt;
    - `"diagonal"`: $M_h = \operatorname{diag}(\alpha_1, \alpha_2)$, with both
      logarithms learnt;
    - `"full"`: $M_h = L L^\top$ with
      $L = \begin{pmatrix}\sqrt{\alpha_1} & 0 \\ c & \sqrt{\alpha_2}\end{pmatrix}$,
      where $c$, the `shear`, is learnt too;

    which is positive definite whatever is learnt. The first two factorise into rows
    and columns, and are evaluated in $O(N(H+W)D)$ steps; the last one does not, and
    takes $O(N^2 D)$.

    With `sharpness=math.inf`, heads are *hard*: each looks at the pixel nearest to
    $q + \Delta$. Outside the picture that is the pixel at the coordinate-wise clamp,
    so the layer pads by replication; at half-integer $\Delta$, pixels that tie share
    the weight equally. Nothing about hard heads can be learnt by gradients, so their
    centres are part of the layer's structure, as a kernel's size is.

    Args:
        dim: Width $D$ of a pixel.
        heads: Number of heads.
        output_dim: Width of the output, if not `dim`.
        covariance: Shape of the Gaussians.
        centers: Where each head looks at first, as `(row, column)` offsets; drawn
            from $\mathcal{N}(0, 2^2)$ by default. Hard heads need them.
        sharpness: $\alpha$ at first, for all heads and both axes.
        bias: Whether to add $b$.
        device: Where to put the parameters.
        dtype: Type of the parameters. Positions and scores are computed in float32
            at least, by the completed square, so that half precision is safe.

    Raises:
        ValueError: If a number, a centre or `covariance` is not valid.

    Examples:
        >>> layer = GaussianSelfAttention(5, heads=3, output_dim=7)
        >>> output, weights = layer(torch.randn(2, 8, 11, 5), return_weights=True)
        >>> output.shape, weights.shape
        (torch.Size([2, 8, 11, 7]), torch.Size([3, 8, 11, 8, 11]))

        A hard head that looks one pixel to the right, and the border it replicates:

        >>> layer = GaussianSelfAttention(
        ...     1, heads=1, centers=[(0, 1)], sharpness=math.inf, bias=False
        ... )
        >>> _ = nn.init.ones_(layer.value_weight)
        >>> row = torch.tensor([1.0, 2.0, 3.0]).reshape(1, 1, 3, 1)
        >>> layer(row)[0].flatten()
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

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        output_dim: int | None = None,
        covariance: Covariance = "isotropic",
        centers: Float[Tensor, "heads 2"]
        | Sequence[Sequence[float | int]]
        | None = None,
        sharpness: float | int = 0.5,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        output_dim = dim if output_dim is None else output_dim
        check_sizes(dim=dim, heads=heads, output_dim=output_dim)
        check_choice("covariance", covariance, COVARIANCES)
        if not sharpness > 0.0:
            raise ValueError(
                f"sharpness must be positive (math.inf is hard), got {sharpness}."
            )
        self.heads = heads
        self.covariance = covariance
        self.sharpness = sharpness
        self.given_centers = None if centers is None else _pairs(centers, heads)
        hard = sharpness == math.inf
        if hard and (covariance != "isotropic" or self.given_centers is None):
            raise ValueError(
                "hard heads (infinite sharpness) need centers and covariance "
                f"'isotropic', got centers {centers} and covariance {covariance!r}."
            )

        def parameter(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(shape, device=device, dtype=dtype))

        axes = () if covariance == "isotropic" else (2,)
        self.register_parameter("centers", None if hard else parameter(heads, 2))
        self.register_parameter(
            "log_sharpness", None if hard else parameter(heads, *axes)
        )
        self.register_parameter(
            "shear", parameter(heads) if covariance == "full" else None
        )
        self.value_weight = parameter(heads, dim, output_dim)
        self.register_parameter("bias", parameter(output_dim) if bias else None)
        self.reset_parameters()

    @property
    def hard(self) -> bool:
        """Whether each head looks at the nearest pixel only."""
        return self.sharpness == math.inf

    def reset_parameters(self) -> None:
        """Put the heads at their first places, and draw the values by Glorot's rule."""
        heads, dim, output_dim = self.value_weight.shape
        bound = math.sqrt(6.0 / (heads * dim + output_dim))
        nn.init.uniform_(self.value_weight, -bound, bound)
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        if self.shear is not None:
            nn.init.zeros_(self.shear)
        if self.centers is None or self.log_sharpness is None:
            return
        nn.init.constant_(self.log_sharpness, math.log(self.sharpness))
        nn.init.normal_(self.centers, std=2.0)
        if self.given_centers is not None:
            with torch.no_grad():
                self.centers.copy_(torch.tensor(self.given_centers))

    def head_centers(self) -> Float[Tensor, "heads 2"]:
        """Give where each head looks: `(row, column)` of key minus query."""
        if self.centers is None:
            return torch.tensor(
                self.given_centers,
                dtype=self.value_weight.dtype,
                device=self.value_weight.device,
            )
        return self.centers

    def forward(
        self,
        x: Float[Tensor, "b rows columns d"],
        *,
        queries: tuple[slice, slice] | None = None,
        return_weights: bool = False,
    ) -> tuple[
        Float[Tensor, "b i j e"], Float[Tensor, "heads i j rows columns"] | None
    ]:
        """Mix a picture.

        Args:
            x: The pixels, channels last.
            queries: Which rows and columns ask, all by default. To give
                `(slice(1, None, 2), slice(None))` is to take these rows of the
                output, and to compute no others.
            return_weights: Form the weights of every head and give them too.

        Returns:
            The output, and the weights or `None`. They do not depend on the
            picture, hence no batch axis.

        Raises:
            TypeError: If `x` is not a floating-point tensor of the layer's type.
            ValueError: If `x` has the wrong shape.
        """
        _check_picture(x, self.value_weight)
        rows, columns = x.shape[1], x.shape[2]
        mixing = (x, self.value_weight, self.bias)
        if return_weights or self.covariance == "full":
            weights = self.weights(rows, columns, queries=queries).to(x.dtype)
            return mix_densely(weights, *mixing), weights if return_weights else None
        ask_rows, ask_columns = _asking(rows, columns, queries, x.device)
        if self.hard and not self._ties:
            row_at, _ = self._nearest(0, ask_rows, rows)
            column_at, _ = self._nearest(1, ask_columns, columns)
            return mix_shifted(row_at, column_at, *mixing), None
        by_row = self._axis_weights(0, ask_rows, rows).to(x.dtype)
        by_column = self._axis_weights(1, ask_columns, columns).to(x.dtype)
        # A graph that is compiled once for all sizes takes the way that suits most.
        if not torch.compiler.is_compiling() and rows * columns <= FEW_PIXELS:
            return mix_densely(_outer(by_row, by_column), *mixing), None
        return mix_separably(by_row, by_column, *mixing), None

    def weights(
        self, rows: int, columns: int, *, queries: tuple[slice, slice] | None = None
    ) -> Float[Tensor, "heads i j rows columns"]:
        """Give each head's weights over a picture: one softmax over all its pixels.

        Args:
            rows: Height of the picture.
            columns: Width of the picture.
            queries: Which rows and columns ask, all by default.

        Returns:
            For each head and asking pixel, weights that sum to one; in float32 at
            least.
        """
        ask = _asking(rows, columns, queries, self.value_weight.device)
        if self.hard:
            by_row = self._axis_weights(0, ask[0], rows)
            by_column = self._axis_weights(1, ask[1], columns)
            return _outer(by_row, by_column)
        down = rearrange(self._beyond(0, ask[0], rows), "h i k -> h i 1 k 1")
        right = rearrange(self._beyond(1, ask[1], columns), "h j l -> h 1 j 1 l")
        root = [rearrange(a.sqrt(), "h -> h 1 1 1 1") for a in self._alphas()]
        skewed = root[0] * down
        if self.shear is not None:
            shear = self.shear.to(right.dtype)
            skewed = skewed + rearrange(shear, "h -> h 1 1 1 1") * right
        scores = -(skewed.square() + (root[1] * right).square())
        joint = rearrange(scores, "h i j k l -> h i j (k l)").softmax(dim=-1)
        return rearrange(joint, "h i j (k l) -> h i j k l", k=rows)

    def extra_repr(self) -> str:
        """Show the sizes in `repr`."""
        heads, dim, output_dim = self.value_weight.shape
        return (
            f"{dim}, heads={heads}, output_dim={output_dim}, "
            f"covariance={self.covariance!r}, sharpness={self.sharpness}"
        )

    @property
    def _ties(self) -> bool:
        return any(math.ceil(d - 0.5) != math.floor(d + 0.5) for d in self._flat())

    def _flat(self) -> list[float]:
        return [d for center in self.given_centers or () for d in center]

    def _nearest(
        self, axis: int, ask: Int[Tensor, " i"], length: int
    ) -> tuple[Int[Tensor, "heads i"], Int[Tensor, "heads i"]]:
        # Two keys can be nearest; when one is, both answers are that one.
        offsets = self._flat()[axis::2]

        def keys(rounded: list[int]) -> Tensor:
            shifts = torch.tensor(rounded, device=ask.device)
            return (ask + rearrange(shifts, "h -> h 1")).clamp(0, length - 1)

        first = keys([math.ceil(d - 0.5) for d in offsets])
        return first, keys([math.floor(d + 0.5) for d in offsets])

    def _axis_weights(
        self, axis: int, ask: Int[Tensor, " i"], length: int
    ) -> Float[Tensor, "heads i length"]:
        if self.hard:
            keys = torch.arange(length, device=ask.device)
            nearest = self._nearest(axis, ask, length)
            hits = [(rearrange(at, "h i -> h i 1") == keys).float() for at in nearest]
            return (0.5 * hits[0] + 0.5 * hits[1]).to(
                _at_least_float32(self.value_weight.dtype)
            )
        alpha = rearrange(self._alphas()[axis], "h -> h 1 1")
        return (-alpha * self._beyond(axis, ask, length).square()).softmax(dim=-1)

    def _beyond(
        self, axis: int, ask: Int[Tensor, " i"], length: int
    ) -> Float[Tensor, "heads i length"]:
        # How far each key lies beyond the spot looked at, along one axis.
        keys = torch.arange(length, device=ask.device)
        offset = keys - rearrange(ask, "i -> i 1")
        centers = self.head_centers()[:, axis]
        centers = centers.to(_at_least_float32(centers.dtype))
        return offset - rearrange(centers, "h -> h 1 1")

    def _alphas(self) -> tuple[Float[Tensor, " heads"], Float[Tensor, " heads"]]:
        logs = self.log_sharpness
        if logs is None:
            raise ValueError("hard heads must not be asked for a finite sharpness.")
        alphas = logs.to(_at_least_float32(logs.dtype)).exp()
        if self.covariance == "isotropic":
            return alphas, alphas
        return alphas[:, 0], alphas[:, 1]


def _pairs(
    centers: Tensor | Sequence[Sequence[float | int]], heads: int
) -> tuple[tuple[float, float], ...]:
    listed = centers.tolist() if isinstance(centers, Tensor) else centers
    pairs = [tuple(float(d) for d in pair) for pair in listed]
    if len(pairs) != heads or any(len(pair) != 2 for pair in pairs):
        raise ValueError(
            f"centers must be {heads} pairs (row, column), one a head, got {listed}."
        )
    if not all(math.isfinite(d) for pair in pairs for d in pair):
        raise ValueError(f"centers must be finite, got {listed}.")
    return tuple((row, column) for row, column in pairs)


def _at_least_float32(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)
