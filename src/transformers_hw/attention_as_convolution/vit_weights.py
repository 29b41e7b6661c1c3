"""Weights of Vision Transformers of four libraries, as views that can be set.

`initialize` derives what heads should start as, and writes it here.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from einops import rearrange
from torch import Tensor, nn

from transformers_hw.transformer.parts import LayerNorm
from transformers_hw.vision_transformer import VisionTransformer

# Settings of this package's models for which the shifts are derived.
PLAIN = {"patch_bias": True, "embedding_norm": False, "rotary": None, "qk_norm": None}
PLAIN |= {"kv_heads": None, "window": None}
# Classes of other libraries' layers: both sublayers add to the tokens, one by one.
TIMM_LAYERS = ("Block", "EvaBlock", "RelPosBlock")
TIMM_ATTENTIONS = ("Attention", "EvaAttention", "RelPosAttention")
HUGGINGFACE_LAYERS = ("ViTLayer", "DeiTLayer", "ViTMSNLayer")


@dataclass(frozen=True)
class Layer:
    """Weights of a layer, as views of the model's: a row for each output."""

    norm: Any
    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    hidden: Tensor
    back: Tensor
    query_key_biases: list[Tensor]
    added_biases: list[Tensor]  # of output and back, which are added to tokens


@dataclass(frozen=True)
class Parts:
    """Weights of a Vision Transformer, as views of the model's."""

    heads: int
    image: tuple[int, int, int]  # channels, height, width
    patch: tuple[int, int]
    grid: tuple[int, int]
    patches: Tensor  # (d, channels * height * width)
    patch_bias: Tensor
    positions: Tensor  # (rows * columns, d)
    others: list[Tensor]  # class token and the like, (..., d)
    layers: list[Layer]
    readers: list[Tensor]  # what reads the last tokens, (..., d)
    # Relative positions of each layer, by query minus key: (rows, columns, heads).
    biases: tuple[Tensor, ...] = ()

    @property
    def dim(self) -> int:
        """Dimension of a token."""
        return self.positions.shape[1]

    @property
    def head_dim(self) -> int:
        """Dimension of a head."""
        return self.layers[0].query.shape[0] // self.heads


def parts_of(model: Any) -> Parts:
    """Read the weights of a model, or say what kind it must be; see `initialize`."""
    if isinstance(model, VisionTransformer):
        read: Callable[[Any], Parts] = _of_ours
    elif hasattr(model, "patch_embed") and hasattr(model, "blocks"):
        read = _of_timm
    elif hasattr(model, "conv_proj"):
        read = _of_torchvision
    else:
        read = _of_huggingface
    try:
        for module in model.modules():
            # Of weights that are computed from others, nothing can be set.
            if isinstance(module, nn.Linear | nn.Conv2d):
                module.get_parameter("weight")
        parts = read(model)
    except (AttributeError, LookupError, RuntimeError, TypeError) as error:
        raise TypeError(
            "model must be a Vision Transformer of this package, timm, torchvision or "
            f"Hugging Face, got {type(model).__name__}: {error}"
        ) from error
    patches = parts.grid[0] * parts.grid[1]
    if len(parts.positions) != patches and not parts.biases:
        raise ValueError(
            f"model must have a learned position for each of its {patches} patches, "
            f"got {len(parts.positions)}."
        )
    for layer in parts.layers:
        if not isinstance(layer.norm, LayerNorm | nn.LayerNorm):
            kind = type(layer.norm).__name__
            raise ValueError(f"model must have layer norms to initialize, got {kind}.")
        if layer.hidden.shape != layer.back.T.shape:
            raise ValueError("networks must not be gated to initialize.")
        shapes = {layer.query.shape, layer.key.shape, layer.value.shape}
        if shapes != {layer.output.T.shape}:
            raise ValueError("model must have as many heads of keys as of queries.")
    return parts


def _of_ours(model: VisionTransformer) -> Parts:
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
    layers = []
    layer: Any
    for layer in model.encoder.layers:
        at, network = layer.attention, layer.feed_forward
        asked = (at.query_proj, at.key_proj, at.value_proj)
        rest = (at.output_proj, network.hidden_proj, network.output_proj)
        layers.append(_layer(layer.attention_norm, asked, rest))
    tokens = (model.class_token, model.class_position, model.registers)
    proj, table = model.patch_embedding.proj, model.positions.weight
    return Parts(
        config.heads,
        (config.channels, *config.image_size),
        config.patch_size,
        model.grid,
        proj.weight.data,
        proj.bias.data,
        rearrange(table.data, "rows columns d -> (rows columns) d"),  # type: ignore[arg-type]
        [x.data for x in tokens if x is not None],
        layers,
        _readers(model.head),
    )


def _of_timm(model: Any) -> Parts:
    layers = []
    for block in model.blocks:
        at, kind = block.attn, type(block).__name__
        if "Post" in kind:
            raise ValueError(f"model must be pre-norm, got layers of class {kind}.")
        if kind not in TIMM_LAYERS or type(at).__name__ not in TIMM_ATTENTIONS:
            raise TypeError(
                f"layers must be {' or '.join(TIMM_LAYERS)}, of attention "
                f"{' or '.join(TIMM_ATTENTIONS)}, got {kind} of {type(at).__name__}."
            )
        _check_absent(at, "q_norm", "k_norm", "norm", "gate")
        layer = _layer(block.norm1, (at.qkv,), (at.proj, block.mlp.fc1, block.mlp.fc2))
        # Where queries have a bias of their own, keys have none.
        if getattr(at, "q_bias", None) is not None:
            layer.query_key_biases.append(at.q_bias.data)
        layers.append(layer)
    heads, embed = model.blocks[0].attn.num_heads, model.patch_embed
    table = getattr(model, "pos_embed", None)
    tokens = [getattr(model, name, None) for name in ("cls_token", "reg_token")]
    found = [_bias_of(block.attn, embed.grid_size) for block in model.blocks]
    biases = tuple(x for x in found if x is not None)
    if len(biases) < len(found) and (biases or table is None):
        raise ValueError(
            "model must have learned positions, or a bias for each offset in every "
            f"layer, got {len(biases)} biases in {len(found)} layers."
        )
    if table is None:
        table = embed.proj.weight.new_empty(1, 0, embed.proj.out_channels)
    _check_absent(model, "rope", "norm_pre", "dist_token")
    _check_absent(embed, "norm")
    parts = _parts_with_table(
        heads, embed.img_size, embed.proj, table, tokens, layers, model.head
    )
    return replace(parts, biases=biases)


def _check_absent(owner: Any, *names: str) -> None:
    """Raise if a module has one of these parts, for which there is no formula."""
    for name in names:
        if not isinstance(part := getattr(owner, name, None), nn.Identity | None):
            kind = type(part).__name__
            raise ValueError(f"model must have no {name} to initialize, got {kind}.")


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


def _of_torchvision(model: Any) -> Parts:
    layers = []
    for block in model.encoder.layers:
        at = block.self_attention
        fused = SimpleNamespace(weight=at.in_proj_weight, bias=at.in_proj_bias)
        rest = (at.out_proj, block.mlp[0], block.mlp[3])
        layers.append(_layer(block.ln_1, (fused,), rest))
    heads, size = model.encoder.layers[0].num_heads, (model.image_size,) * 2
    tokens, table = [model.class_token], model.encoder.pos_embedding
    return _parts_with_table(
        heads, size, model.conv_proj, table, tokens, layers, model.heads
    )


def _of_huggingface(model: Any) -> Parts:
    body, head = getattr(model, "vit", model), getattr(model, "classifier", None)
    start, layers = body.embeddings, []
    size, table = start.image_size, start.position_embeddings
    tokens = [start.cls_token, getattr(start, "distillation_token", None)]
    proj = start.patch_embeddings.projection
    for layer in body.layers:
        if (kind := type(layer).__name__) not in HUGGINGFACE_LAYERS:
            wanted = " or ".join(HUGGINGFACE_LAYERS)
            raise TypeError(f"layers must be {wanted}, got {kind}.")
        at = layer.attention
        rest = (at.o_proj, layer.mlp.fc1, layer.mlp.fc2)
        asked = (at.q_proj, at.k_proj, at.v_proj)
        layers.append(_layer(layer.layernorm_before, asked, rest))
    heads = body.config.num_attention_heads
    return _parts_with_table(heads, size, proj, table, tokens, layers, head)


def _layer(norm: Any, asked: tuple[Any, ...], rest: Iterable[Any]) -> Layer:
    """Read linear layers: of queries, keys and values, in one or three; and others."""
    output, hidden, back = rest
    weights = [y for x in asked for y in x.weight.data.chunk(3 // len(asked))]
    # The last third of biases in one is that of the values.
    width = 2 * len(weights[0])
    biases = [x.bias.data[:width] for x in asked[:2] if x.bias is not None]
    added = [x.bias.data for x in (output, back) if x.bias is not None]
    others = (x.weight.data for x in (output, hidden, back))
    return Layer(norm, *weights, *others, query_key_biases=biases, added_biases=added)


def _parts_with_table(
    heads: int,
    image_size: Iterable[int],
    convolution: nn.Conv2d,
    table: Tensor,
    tokens: list[Tensor | None],
    layers: list[Layer],
    head: nn.Module | None,
) -> Parts:
    height, width = image_size
    i, j = convolution.kernel_size
    if convolution.stride != (i, j):
        raise TypeError("patches must be embedded by one convolution, side by side.")
    if convolution.bias is None:
        raise ValueError("model must have a bias in its patch embedding, got none.")
    # The patches' positions come last; those of other tokens, if any, before them.
    grid = (height // i, width // j)
    extra = max(table.shape[1] - grid[0] * grid[1], 0)
    return Parts(
        heads,
        (convolution.in_channels, height, width),
        (i, j),
        grid,
        rearrange(convolution.weight.data, "d c i j -> d (c i j)"),
        convolution.bias.data,
        table.data[0, extra:],
        [table.data[0, :extra], *(x.data for x in tokens if x is not None)],
        layers,
        _readers(head),
    )


def _readers(head: nn.Module | None) -> list[Tensor]:
    found = head.modules() if head is not None else ()
    return [x.weight.data for x in found if isinstance(x, nn.Linear)]
