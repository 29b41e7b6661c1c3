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
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor, nn

from transformers_hw._engine.arguments import check_choice, check_sizes
from transformers_hw._engine.shapes import checked
from transformers_hw.vision_transformer import VisionTransformer

Attend = Literal["shifts", "mimetic"]
# Strengths of the mimetic initialization: of queries and keys, of values and output.
MIMETIC_SCORES, MIMETIC_VALUES = (0.7, 0.7), (0.4, -0.4)
# Settings of this package's models for which the shifts are derived.
PLAIN = {"patch_bias": True, "embedding_norm": False, "rotary": None, "qk_norm": None}
PLAIN |= {"kv_heads": None}
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
      sinusoids.)
    - `values`: the product of $W_V$ and $W_O$ is near a negative multiple of the
      identity, so that a layer subtracts from a token what it finds elsewhere.
    - `whiten`: patches are embedded by their principal components, with variances
      brought nearer to each other.

    Args:
        model: Model to initialize in place: a pre-norm Vision Transformer of this
            package, of timm, torchvision or Hugging Face, with learned positions; or
            one of timm's with a table of relative positions, such as BEiT.
        images: Normalized training images, some hundred for small models. They tell
            how large the tokens are in each layer, and how patches are distributed.
        attend: What queries and keys start as; `None` leaves them as they are.
        values: Whether to set values and output projections.
        whiten: Whether to set the patch embedding.
        gain: Sharpness $g$ of the shifts.

    Raises:
        TypeError: If the model is none of these.
        ValueError: If it has no learned positions or is not pre-norm.

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
    parts = _parts_of(model)
    reserved = 0
    if attend == "shifts" and parts.biases:
        for number, table in enumerate(parts.biases):
            _set_gaussians(table, neighbor_offsets(parts.heads, number), gain)
    elif attend == "shifts":
        reserved = 4 * min(parts.head_dim // 4, max(parts.grid) // 2)
        _reserve(parts, reserved)
    elif attend == "mimetic":
        if not len(parts.positions):
            raise ValueError("attend 'mimetic' needs learned positions, got none.")
        _set_positions(parts, _sinusoids(parts.grid, parts.dim))
    if whiten:
        _whiten(parts, images, reserved)
    for number, layer in enumerate(parts.layers):
        if values:
            _set_values(layer)
        if attend == "mimetic":
            _set_mimetic(layer, parts.heads)
        if reserved:
            layer.value[:, :reserved] = 0.0
            layer.output[:reserved] = 0.0
            with _inputs_of(layer.norm) as seen:
                model(images)
            # Layer norm divides the positions by the size of the whole token.
            shrunk = torch.cat(seen).var(-1, correction=0).add(1e-6).rsqrt().mean()
            offsets = neighbor_offsets(parts.heads, number)
            _set_shifts(layer, parts, offsets, reserved, gain, shrunk.item())


@dataclass(frozen=True)
class _Layer:
    """Weights of a layer, as views of the model's: a row for each output."""

    norm: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    hidden: Tensor
    back: Tensor


@dataclass(frozen=True)
class _Parts:
    """Weights of a Vision Transformer, as views of the model's."""

    heads: int
    grid: tuple[int, int]
    patches: Tensor  # (d, channels * height * width)
    patch_bias: Tensor
    positions: Tensor  # (rows * columns, d)
    others: list[Tensor]  # class token and the like, (..., d)
    layers: list[_Layer]
    readers: list[Tensor]  # what reads the last tokens, (..., d)
    # Relative positions of each layer, by query minus key: (rows, columns, heads).
    biases: tuple[Tensor, ...] = ()

    @property
    def dim(self) -> int:
        return self.positions.shape[1]

    @property
    def head_dim(self) -> int:
        return self.layers[0].query.shape[0] // self.heads


def _reserve(parts: _Parts, count: int) -> None:
    """Let the first dimensions of all tokens hold positions, and nothing else."""
    frequencies = math.tau * torch.arange(1, count // 4 + 1) / (2 * max(parts.grid))
    # Twice the amplitude of content: positions must survive what layers add.
    table = torch.zeros_like(parts.positions)
    table[:, :count] = 2.0 * _waves(parts.grid, frequencies).to(table)
    _set_positions(parts, table)
    parts.patches[:count] = 0.0
    parts.patch_bias[:count] = 0.0
    for vector in parts.others:
        vector[..., :count] = 0.0
    for layer in parts.layers:
        layer.hidden[:, :count] = 0.0
        layer.back[:count] = 0.0
    for weight in parts.readers:
        weight[..., :count] = 0.0


def _set_positions(parts: _Parts, table: Tensor) -> None:
    parts.positions.copy_(table)


def _set_gaussians(table: Tensor, offsets: list[tuple[int, int]], gain: float) -> None:
    """Let each head's scores fall with the squared distance from its offset."""
    axes = (torch.arange(n) - n // 2 for n in table.shape[:2])
    away = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1)
    for head, offset in enumerate(offsets):
        distances = (-away - torch.tensor(offset)).square().sum(dim=-1)
        table[..., head] = -gain * distances.to(table)


def _set_shifts(
    layer: _Layer,
    parts: _Parts,
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


def _set_mimetic(layer: _Layer, heads: int) -> None:
    """Let the product of queries and keys be near a multiple of the identity."""
    width = layer.query.shape[0] // heads
    for head in range(heads):
        rows = slice(head * width, (head + 1) * width)
        left, right = _factors(layer.query.shape[1], *MIMETIC_SCORES)
        layer.query[rows] = left[:, :width].T
        layer.key[rows] = right[:width]


def _set_values(layer: _Layer) -> None:
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


def _whiten(parts: _Parts, images: Tensor, reserved: int) -> None:
    """Embed patches by principal components of more equal variance."""
    height, width = images.shape[2:]
    size = {"i": height // parts.grid[0], "j": width // parts.grid[1]}
    patches = rearrange(images, "b c (h i) (w j) -> (b h w) (c i j)", **size)
    mean = patches.mean(dim=0)
    variances, components = torch.linalg.eigh(torch.cov(patches.T, correction=0))
    free = parts.dim - reserved
    kept = min(free, len(variances))
    variances, components = variances[-kept:], components[:, -kept:]
    strengths = (variances.clamp(min=0.0) + WHITENING_FLOOR) ** -WHITENING_POWER
    spread = nn.init.orthogonal_(torch.empty(free, kept, device=images.device))
    weight = einsum(spread, strengths, components, "d k, k, p k -> d p")
    # The mean square of a content dimension is one.
    weight *= math.sqrt(free / (variances * strengths**2).sum())
    parts.patches[reserved:] = weight.to(parts.patches)
    parts.patch_bias[reserved:] = -(weight @ mean).to(parts.patch_bias)


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


def _parts_of(model: Any) -> _Parts:
    if isinstance(model, VisionTransformer):
        parts = _of_ours(model)
    elif hasattr(model, "patch_embed") and hasattr(model, "blocks"):
        parts = _of_timm(model)
    elif hasattr(model, "conv_proj"):
        parts = _of_torchvision(model)
    elif hasattr(model, "vit") or hasattr(model, "embeddings"):
        parts = _of_huggingface(model)
    else:
        raise TypeError(
            "model must be a Vision Transformer of this package, timm, torchvision or "
            f"Hugging Face, got {type(model).__name__}."
        )
    patches = parts.grid[0] * parts.grid[1]
    if len(parts.positions) != patches and not parts.biases:
        raise ValueError(
            f"model must have a learned position for each of its {patches} patches, "
            f"got {len(parts.positions)}."
        )
    return parts


def _of_ours(model: VisionTransformer) -> _Parts:
    config = model.config
    if config.norm != "pre" or config.positions != "learned":
        raise ValueError(
            "model must be pre-norm and have learned positions, got "
            f"norm {config.norm!r} and positions {config.positions!r}."
        )
    for name, wanted in PLAIN.items():
        if (found := getattr(config, name)) != wanted:
            raise ValueError(f"{name} must be {wanted} to initialize, got {found!r}.")
    if config.activation == "swiglu":
        raise ValueError("activation must not be gated to initialize, got 'swiglu'.")
    proj = model.patch_embedding.proj
    layers = []
    layer: Any
    for layer in model.encoder.layers:
        heads, network = layer.attention, layer.feed_forward
        weights = (heads.query_proj, heads.key_proj, heads.value_proj)
        weights += (heads.output_proj, network.hidden_proj, network.output_proj)
        views = (x.weight.data for x in weights)
        layers.append(_Layer(layer.attention_norm, *views))
    tokens = (model.class_token, model.class_position, model.registers)
    others = [x.data for x in tokens if x is not None]
    table: Tensor = model.positions.weight.data  # type: ignore[union-attr,assignment]
    return _Parts(
        config.heads,
        model.grid,
        proj.weight.data,
        proj.bias.data,
        rearrange(table, "rows columns d -> (rows columns) d"),
        others,
        layers,
        _readers(model.head),
    )


def _of_timm(model: Any) -> _Parts:
    layers = []
    for block in model.blocks:
        fused = block.attn.qkv.weight.data.chunk(3)
        rest = (block.attn.proj, block.mlp.fc1, block.mlp.fc2)
        layers.append(_Layer(block.norm1, *fused, *(x.weight.data for x in rest)))
    heads, grid = model.blocks[0].attn.num_heads, model.patch_embed.grid_size
    convolution, table = model.patch_embed.proj, getattr(model, "pos_embed", None)
    tokens = [getattr(model, name, None) for name in ("cls_token", "reg_token")]
    found = [_bias_of(block.attn, grid) for block in model.blocks]
    biases = tuple(x for x in found if x is not None)
    if table is None:
        if len(biases) < len(found):
            raise ValueError(
                "model must have learned positions, or a bias for each offset in every "
                "layer, got neither."
            )
        table = convolution.weight.new_empty(1, 0, convolution.out_channels)
    parts = _parts_with_table(
        heads, grid, convolution, table, tokens, layers, model.head
    )
    return replace(parts, biases=biases)


def _bias_of(attention: Any, grid: tuple[int, int]) -> Tensor | None:
    owner = getattr(attention, "rel_pos", None)
    owner = attention if owner is None else owner
    table = getattr(owner, "relative_position_bias_table", None)
    if table is None:
        return None
    rows, columns = (2 * n - 1 for n in grid)
    # Rows for the class token, if any, come last.
    offsets = table.data[: rows * columns]
    return rearrange(offsets, "(rows columns) h -> rows columns h", rows=rows)


def _of_torchvision(model: Any) -> _Parts:
    layers = []
    for block in model.encoder.layers:
        fused = block.self_attention.in_proj_weight.data.chunk(3)
        rest = (block.self_attention.out_proj, block.mlp[0], block.mlp[3])
        layers.append(_Layer(block.ln_1, *fused, *(x.weight.data for x in rest)))
    heads = model.encoder.layers[0].num_heads
    side = model.image_size // model.patch_size
    table = model.encoder.pos_embedding
    return _parts_with_table(
        heads,
        (side, side),
        model.conv_proj,
        table,
        [model.class_token],
        layers,
        model.heads,
    )


def _of_huggingface(model: Any) -> _Parts:
    body, head = getattr(model, "vit", model), getattr(model, "classifier", None)
    layers = []
    for layer in body.layers:
        at = layer.attention
        projections = (at.q_proj, at.k_proj, at.v_proj, at.o_proj)
        weights = (*projections, layer.mlp.fc1, layer.mlp.fc2)
        views = (x.weight.data for x in weights)
        layers.append(_Layer(layer.layernorm_before, *views))
    embeddings = body.embeddings
    (height, width), patch = embeddings.image_size, embeddings.patch_size
    i, j = (patch, patch) if isinstance(patch, int) else patch
    return _parts_with_table(
        body.config.num_attention_heads,
        (height // i, width // j),
        embeddings.patch_embeddings.projection,
        embeddings.position_embeddings,
        [embeddings.cls_token],
        layers,
        head,
    )


def _parts_with_table(
    heads: int,
    grid: tuple[int, int],
    convolution: nn.Conv2d,
    table: Tensor,
    tokens: list[Tensor | None],
    layers: list[_Layer],
    head: nn.Module | None,
) -> _Parts:
    # The patches' positions come last; those of other tokens, if any, before them.
    extra = table.shape[1] - grid[0] * grid[1]
    if convolution.bias is None:
        raise ValueError("model must have a bias in its patch embedding, got none.")
    return _Parts(
        heads,
        grid,
        rearrange(convolution.weight.data, "d c i j -> d (c i j)"),
        convolution.bias.data,
        table.data[0, max(extra, 0) :],
        [table.data[0, : max(extra, 0)], *(x.data for x in tokens if x is not None)],
        layers,
        _readers(head),
    )


def _readers(head: nn.Module | None) -> list[Tensor]:
    found = head.modules() if head is not None else ()
    return [x.weight.data for x in found if isinstance(x, nn.Linear)]
