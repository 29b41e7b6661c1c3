r"""The theorem used backwards: heads that start as the shifts of a convolution.

A Vision Transformer begins with heads that attend to every patch alike, and must learn
from data that neighbors matter. The theorem says which weights would express that
from the start. Here they are, for models that compare queries with keys: if positions
enter as $\cos$ and $\sin$ of the row $r$ and the column $c$, a query that is rotated by
the angles of an offset $\Delta$ matches the key at that offset best,

$$
\frac{q_i^\top k_j}{\sqrt{d_k}} = g \sum_{f=1}^{F} \Big(
\cos \omega_f (r_j - r_i - \Delta_r) + \cos \omega_f (c_j - c_i - \Delta_c) \Big),
\qquad \omega_f = \frac{2 \pi f}{P},
$$

where the period $P$ is twice the longer side of the grid, so that no two positions are
confused. The gain $g$ decides how sharp the head is. Where a model adds a learned bias
for each offset to its scores, as BEiT does, the bias alone can do it: it starts as the
Gaussian $-g \lVert \delta - \Delta \rVert^2$ of the chapter.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor, nn

from transformers_hw._engine.arguments import check_choice, check_sizes
from transformers_hw._engine.shapes import checked
from transformers_hw.attention_as_convolution.vit_weights import Layer, Parts, parts_of

Attend = Literal["shifts", "mimetic"]
# Strengths of the mimetic initialization: of queries and keys, of values and output.
MIMETIC_SCORES, MIMETIC_VALUES = (0.7, 0.7), (0.4, -0.4)
# Whitening divides each component by its variance (plus a little) to this power.
WHITENING_POWER, WHITENING_FLOOR = 0.35, 0.02


@checked
def neighbor_offsets(heads: int, layer: int = 0) -> list[tuple[int, int]]:
    """Return the offsets, key minus query, at which the heads of a layer start.

    They are spread evenly over the eight neighbors of the query. Every other layer
    begins half a gap later, so that two layers of few heads see all directions; heads
    beyond the eighth go to the next ring.

    Args:
        heads: Number of heads.
        layer: Number of the layer.

    Examples:
        >>> neighbor_offsets(3)
        [(-1, 0), (1, 1), (1, -1)]
        >>> neighbor_offsets(3, layer=1)
        [(-1, 1), (1, 0), (-1, -1)]
    """
    check_sizes(heads=heads)
    offsets: list[tuple[int, int]] = []
    radius = 1
    while len(offsets) < heads:
        ring = _ring(radius)
        count = min(heads - len(offsets), len(ring))
        gap = len(ring) / count
        start = gap / 2 if layer % 2 and count < len(ring) else 0.0
        steps = (math.floor(start + gap * head + 0.5) for head in range(count))
        offsets += [ring[step % len(ring)] for step in steps]
        radius += 1
    return offsets


def _ring(radius: int) -> list[tuple[int, int]]:
    # Clockwise, from straight above the query.
    span = range(-radius, radius + 1)
    cells = [(r, c) for r in span for c in span if max(abs(r), abs(c)) == radius]
    return sorted(cells, key=lambda cell: math.atan2(cell[1], -cell[0]) % math.tau)


@torch.no_grad()
@checked
def initialize(
    model: nn.Module,
    images: Float[Tensor, "b channels height width"],
    *,
    attend: Attend | None = "shifts",
    values: bool = True,
    whiten: bool = True,
    gain: float = 1.5,
) -> None:
    r"""Give a Vision Transformer initial weights with which its heads are local.

    The architecture does not change, nor does the number of parameters. There are
    three ingredients, which can be used alone:

    - `attend="shifts"`: the first $4F$ dimensions of the tokens hold positions and
      nothing else. Each head attends to one neighbor of the query, as above. A model
      with a bias for each offset gets a Gaussian there, and nothing else changes. (With
      `"mimetic"`, the product of $W_Q$ and $W_K$ is near a multiple of the identity
      instead, so that similar tokens attend to each other; the positions are
      sinusoids.) Biases of queries and keys become zero.
    - `values`: the product of $W_V$ and $W_O$ is near a negative multiple of the
      identity, so that a layer subtracts from a token what it finds elsewhere.
    - `whiten`: patches are embedded by their principal components, with variances
      brought nearer to each other.

    Args:
        model: Model to initialize in place: a pre-norm Vision Transformer of this
            package, of timm, torchvision or Hugging Face, with learned positions; or
            one of timm's with a table of relative positions, such as BEiT.
        images: Normalized training images of the model's size, some hundred for small
            models. They tell how large the tokens are in each layer, and how patches
            are distributed.
        attend: What queries and keys start as; `None` leaves them as they are.
        values: Whether to set values and output projections.
        whiten: Whether to set the patch embedding.
        gain: Sharpness $g$ of the shifts, positive and finite.

    Raises:
        TypeError: If the model is none of these.
        ValueError: If it has no learned positions, is not pre-norm, or has parts that
            the shifts do not allow for, such as gated networks, other norms or norms
            of queries; if its heads or grid are too small for shifts; if the images
            are of another size, not finite, or too alike to whiten; or if `gain` is
            out of range. The model is then unchanged.

    Examples:
        >>> from transformers_hw import VisionTransformer
        >>> model = VisionTransformer(
        ...     32, 4, num_classes=10, dim=96, depth=2, heads=3, pool="mean"
        ... )
        >>> initialize(model, torch.randn(16, 3, 32, 32))

    References:
        Trockman & Kolter (2023), [Mimetic Initialization of Self-Attention Layers
        ](https://arxiv.org/abs/2305.09828), section 3, for `"mimetic"` and `values`;
        d'Ascoli et al. (2021), [ConViT](https://arxiv.org/abs/2103.10697), section 3,
        and Zheng et al. (2024), [Convolutional Initialization for Data-Efficient
        Vision Transformers](https://arxiv.org/abs/2401.12511), for heads that start
        as shifts.
    """
    check_choice("attend", attend, ("shifts", "mimetic", None))
    if not 0.0 < gain < math.inf:
        raise ValueError(f"gain must be positive and finite, got {gain}.")
    parts = parts_of(model)
    if tuple(images.shape[1:]) != parts.image or not images.shape[0]:
        raise ValueError(
            f"images must have shape (b, {', '.join(map(str, parts.image))}), with one "
            f"image or more, got {tuple(images.shape)}."
        )
    if not images.isfinite().all():
        raise ValueError("images must be finite, got NaN or infinity.")
    if attend == "mimetic" and not len(parts.positions):
        raise ValueError("attend 'mimetic' needs learned positions, got none.")
    if values and parts.heads * parts.head_dim > parts.dim:
        raise ValueError("values must be False if heads together are wider than dim.")
    shifted = attend == "shifts" and not parts.biases
    reserved = _reserved(parts) if shifted else 0
    embedding = _whitened(parts, images, reserved) if whiten else None
    # What is refused, is refused by now: before anything is written.
    if shifted:
        _reserve(parts, reserved)
    elif attend == "shifts":
        for number, table in enumerate(parts.biases):
            _set_gaussians(table, neighbor_offsets(parts.heads, number), gain)
    elif attend == "mimetic":
        parts.positions.copy_(_sinusoids(parts.grid, parts.dim))
    if embedding is not None:
        parts.patches[reserved:], parts.patch_bias[reserved:] = embedding
    patches = parts.grid[0] * parts.grid[1]
    for number, layer in enumerate(parts.layers):
        if values:
            _set_values(layer)
        if shifted or attend == "mimetic":
            for bias in layer.query_key_biases:
                bias.zero_()
        if attend == "mimetic":
            _set_mimetic(layer, parts.heads)
        if shifted:
            layer.value[:, :reserved] = 0.0
            layer.output[:reserved] = 0.0
            with _inputs_of(layer.norm) as seen:
                model(images.to(parts.patches))
            # Layer norm divides the positions by the size of the whole token. Patches
            # come last; a class token before them may be near zero.
            tokens = torch.cat(seen)[:, -patches:].float()
            shrunk = tokens.var(-1, correction=0).add(1e-6).rsqrt().mean()
            offsets = neighbor_offsets(parts.heads, number)
            _set_shifts(layer, parts, offsets, reserved, gain, shrunk.item())


def _reserved(parts: Parts) -> int:
    """Return how many dimensions of a token hold positions."""
    count = 4 * min(parts.head_dim // 4, max(parts.grid) // 2)
    if not 0 < count < parts.dim:
        raise ValueError(
            "attend 'shifts' needs heads of 4 dimensions or more, a grid longer than 1 "
            f"patch, and tokens wider than the {count} dimensions of positions, got "
            f"head_dim {parts.head_dim}, grid {parts.grid} and dim {parts.dim}."
        )
    return count


def _reserve(parts: Parts, count: int) -> None:
    """Let the first dimensions of all tokens hold positions, and nothing else."""
    frequencies = math.tau * torch.arange(1, count // 4 + 1) / (2 * max(parts.grid))
    # Twice the amplitude of content: positions must survive what layers add.
    table = torch.zeros_like(parts.positions)
    table[:, :count] = 2.0 * _waves(parts.grid, frequencies).to(table)
    parts.positions.copy_(table)
    parts.patches[:count] = 0.0
    parts.patch_bias[:count] = 0.0
    for vector in parts.others:
        vector[..., :count] = 0.0
    for layer in parts.layers:
        layer.hidden[:, :count] = 0.0
        layer.back[:count] = 0.0
        for bias in layer.added_biases:
            bias[:count] = 0.0
        for vector, start in ((layer.norm.weight, 1.0), (layer.norm.bias, 0.0)):
            if vector is not None:
                vector[:count] = start
    for weight in parts.readers:
        weight[..., :count] = 0.0


def _set_gaussians(table: Tensor, offsets: list[tuple[int, int]], gain: float) -> None:
    """Let each head's scores fall with the squared distance from its offset."""
    axes = (torch.arange(n) - n // 2 for n in table.shape[:2])
    away = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1)
    for head, offset in enumerate(offsets):
        distances = (-away - torch.tensor(offset)).square().sum(dim=-1)
        table[..., head] = -gain * distances.to(table)


def _set_shifts(
    layer: Layer,
    parts: Parts,
    offsets: list[tuple[int, int]],
    reserved: int,
    gain: float,
    shrunk: float,
) -> None:
    """Let a query be its own position, rotated by the head's offset."""
    frequencies = math.tau * torch.arange(1, reserved // 4 + 1) / (2 * max(parts.grid))
    size = math.sqrt(gain * math.sqrt(parts.head_dim)) / (2.0 * shrunk)
    for head, offset in enumerate(offsets):
        rows = slice(head * parts.head_dim, (head + 1) * parts.head_dim)
        query, key = layer.query[rows], layer.key[rows]
        for weight in (query, key):
            weight[:reserved] = 0.0
            weight[:, :reserved] = 0.0
        key[:reserved, :reserved] = size * torch.eye(reserved)
        angles = torch.outer(torch.tensor(offset, dtype=torch.float32), frequencies)
        turns = [_rotation(angle) for angle in angles.flatten().tolist()]
        query[:reserved, :reserved] = size * torch.block_diag(*turns)


def _set_mimetic(layer: Layer, heads: int) -> None:
    """Let the product of queries and keys be near a multiple of the identity."""
    width = layer.query.shape[0] // heads
    for head in range(heads):
        rows = slice(head * width, (head + 1) * width)
        left, right = _factors(layer.query.shape[1], *MIMETIC_SCORES)
        layer.query[rows] = left[:, :width].T
        layer.key[rows] = right[:width]


def _set_values(layer: Layer) -> None:
    """Let the product of values and output be near minus a multiple of the identity."""
    left, right = _factors(layer.value.shape[1], *MIMETIC_VALUES)
    width = layer.value.shape[0]
    layer.value.copy_(left[:, :width].T)
    layer.output.copy_(right[:width].T)


def _factors(dim: int, noise: float, identity: float) -> tuple[Tensor, Tensor]:
    """Factor a noisy multiple of the identity, the largest parts first."""
    product = noise * torch.randn(dim, dim) / math.sqrt(dim) + identity * torch.eye(dim)
    left, strengths, right = torch.linalg.svd(product)
    root = strengths.sqrt()
    return left * root, rearrange(root, "d -> d 1") * right


def _whitened(parts: Parts, images: Tensor, reserved: int) -> tuple[Tensor, Tensor]:
    """Return weight and bias of an embedding by components of more equal variance."""
    (rows, columns), (i, j) = parts.grid, parts.patch
    # Half precision has no eigenvalues; pixels beyond the last patch are not embedded.
    whole = images[..., : rows * i, : columns * j].float()
    patches = rearrange(whole, "b c (h i) (w j) -> (b h w) (c i j)", i=i, j=j)
    mean = patches.mean(dim=0)
    variances, components = torch.linalg.eigh(torch.cov(patches.T, correction=0))
    if not variances.sum() > 1e-9 * patches.square().mean(dim=0).sum():
        raise ValueError("images must have patches that differ, to whiten them.")
    free = parts.dim - reserved
    kept = min(free, len(variances))
    variances, components = variances[-kept:], components[:, -kept:]
    strengths = (variances.clamp(min=0.0) + WHITENING_FLOOR) ** -WHITENING_POWER
    spread = nn.init.orthogonal_(patches.new_empty(free, kept))
    weight = einsum(spread, strengths, components, "d k, k, p k -> d p")
    # The mean square of a content dimension is one.
    weight *= math.sqrt(free / (variances * strengths**2).sum())
    return weight.to(parts.patches), -(weight @ mean).to(parts.patch_bias)


def _waves(grid: tuple[int, int], frequencies: Tensor) -> Tensor:
    """Return cos and sin of each frequency, of rows and then of columns."""
    at = torch.cartesian_prod(*(torch.arange(n, dtype=torch.float32) for n in grid))
    angles = einsum(at, frequencies, "n a, f -> n a f")
    pairs = torch.stack([angles.cos(), angles.sin()], dim=-1)
    return rearrange(pairs, "n a f two -> n (a f two)")


def _sinusoids(grid: tuple[int, int], dim: int) -> Tensor:
    half = dim // 2
    table = _waves(grid, 10_000.0 ** (-torch.arange(0, half, 2) / half))
    return nn.functional.pad(table, (0, dim - table.shape[1]))


def _rotation(angle: float) -> Tensor:
    cos, sin = math.cos(angle), math.sin(angle)
    return torch.tensor([[cos, -sin], [sin, cos]])


@contextmanager
def _inputs_of(module: nn.Module) -> Iterator[list[Tensor]]:
    seen: list[Tensor] = []
    hook = module.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    try:
        yield seen
    finally:
        hook.remove()
