r"""Metrics of trained heads: how close a layer is to a small convolution."""

from dataclasses import dataclass

import torch
from einops import einsum, rearrange

from transformers_hw._engine.shapes import checked
from transformers_hw.attention_as_convolution.effective import offset_weights, window
from transformers_hw.attention_as_convolution.gaussian import GaussianSelfAttention


@dataclass(frozen=True)
class HeadMetrics:
    r"""What the heads of a Gaussian attention layer do, away from the border.

    A head *fills a cell* if more than half of its weight is on one offset; at most one
    offset can have so much. Heads that spread their weight more widely fill none. A
    layer that is a $3 \times 3$ convolution as in the theorem fills nine cells of the
    $3 \times 3$ window, and has no duplicates.

    The *energy* of the effective kernel in a window is the sum of its squared entries
    there, as a fraction of the sum over all offsets.

    Attributes:
        cells_3x3: Number of distinct cells filled within the $3 \times 3$ window.
        cells_5x5: Number of distinct cells filled within the $5 \times 5$ window.
        duplicates: Number of heads whose cell an earlier head fills already.
        center_distances: Distance of each head's center from the nearest integer
            offset.
        peak_weights: Largest weight of each head on any offset.
        rank: Numerical rank of the effective kernel, as a matrix with a row for each
            offset.
        energy_3x3: Energy of the effective kernel in the $3 \times 3$ window.
        energy_5x5: Energy of the effective kernel in the $5 \times 5$ window.
    """

    cells_3x3: int
    cells_5x5: int
    duplicates: int
    center_distances: list[float]
    peak_weights: list[float]
    rank: int
    energy_3x3: float
    energy_5x5: float


@torch.no_grad()
@checked
def head_metrics(
    layer: GaussianSelfAttention, *, tolerance: float = 0.1
) -> HeadMetrics:
    r"""Measure how close a Gaussian attention layer is to a small convolution.

    The effective kernel is $T_\delta = \sum_h p_h(\delta) W^{(h)}$ (see
    [`effective_kernel`][transformers_hw.attention_as_convolution.effective_kernel]).
    With the heads' weights $p_h$ as the rows of $P$ and their flattened values as the
    rows of $W$, it is the matrix $T = P^\top W$. Let $W^\top = Q R$, where the columns
    of $Q$ are orthonormal. Then $T = P^\top R^\top Q^\top$ has the singular values and
    the row norms of $P^\top R^\top$, which has no more columns than there are heads.

    Args:
        layer: The layer, trained or not.
        tolerance: Fraction of the largest singular value of $T$ above which singular
            values count for the rank. At the default, those left out have at most 1% of
            the largest one's energy.

    Returns:
        The metrics, as numbers and lists that JSON can hold.

    Raises:
        TypeError: If `layer` is not a Gaussian attention layer.
        ValueError: If the layer's weights reach farther than 500 pixels.

    Examples:
        Two heads on the same pixel, and one between two pixels:

        >>> layer = GaussianSelfAttention(
        ...     4, heads=3, centers=[(0, 1), (0, 1), (0, 0.5)], sharpness=30.0
        ... )
        >>> metrics = head_metrics(layer)
        >>> metrics.cells_3x3, metrics.duplicates, metrics.rank
        (1, 1, 2)
        >>> metrics.center_distances
        [0.0, 0.0, 0.5]

        Layer by layer of a model:

        >>> from transformers_hw.attention_as_convolution import ImageBert
        >>> model = ImageBert(dim=8, depth=2, heads=3, hidden_dim=11)
        >>> [head_metrics(layer.attention).energy_5x5 <= 1 for layer in model.layers]
        [True, True]
    """
    weights = offset_weights(layer, at_least=2)
    radius, side = weights.shape[1] // 2, weights.shape[1]
    peaks, at = rearrange(weights, "h k l -> h (k l)").max(dim=-1)
    offsets = [(i // side - radius, i % side - radius) for i in at.tolist()]
    filled = [
        cell for cell, peak in zip(offsets, peaks.tolist(), strict=True) if peak > 0.5
    ]
    cells = set(filled)
    centers = layer.head_centers().double()
    values = rearrange(layer.value_weight.double(), "h d e -> (d e) h")
    rotated = einsum(weights, torch.linalg.qr(values).R, "h k l, r h -> r k l")
    strengths = torch.linalg.svdvals(rearrange(rotated, "r k l -> (k l) r"))
    whole = rotated.square().sum()

    def cells_within(size: int) -> int:
        return sum(max(abs(row), abs(column)) <= size // 2 for row, column in cells)

    def energy_within(size: int) -> float:
        return float(window(rotated, size).square().sum() / whole)

    return HeadMetrics(
        cells_3x3=cells_within(3),
        cells_5x5=cells_within(5),
        duplicates=len(filled) - len(cells),
        center_distances=torch.linalg.vector_norm(
            centers - centers.round(), dim=-1
        ).tolist(),
        peak_weights=peaks.tolist(),
        rank=int((strengths > tolerance * strengths[0]).sum()),
        energy_3x3=energy_within(3),
        energy_5x5=energy_within(5),
    )
