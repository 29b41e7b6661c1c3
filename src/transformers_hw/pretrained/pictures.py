"""Vision Transformers of other libraries into the book's."""

import math
from dataclasses import dataclass, replace

from einops import rearrange
from torch import nn

from transformers_hw.pretrained.weights import (
    PROJECTED,
    Weights,
    WeightsError,
    _Unpacking,
)
from transformers_hw.transformer.parts import LayerNorm
from transformers_hw.vision_transformer import Pool, VisionTransformer


@dataclass(frozen=True)
class _Names:
    """What a library calls the parts of a Vision Transformer.

    Attributes:
        patches: The convolution that embeds patches.
        positions: The table of positions, the class token's first.
        class_token: The class token; `None` if there is none.
        layers: What the name of every layer begins with, up to its number.
        parts: The parts of a layer, by our names of them.
        packed: The tensors that hold those of queries, keys and values in one, by our
            names, `{}` for which of the three.
        others: What comes after the layers, by our names.
    """

    patches: str
    positions: str
    class_token: str | None
    layers: str
    parts: dict[str, str]
    packed: dict[str, str]
    others: dict[str, str]


TORCHVISION = _Names(
    patches="conv_proj",
    positions="encoder.pos_embedding",
    class_token="class_token",
    layers="encoder.layers.encoder_layer_",
    parts={
        "attention.output_proj": "self_attention.out_proj",
        "attention_norm": "ln_1",
        "feed_forward.hidden_proj": "mlp.0",
        "feed_forward.output_proj": "mlp.3",
        "feed_forward_norm": "ln_2",
    },
    packed={
        "attention.{}_proj.weight": "self_attention.in_proj_weight",
        "attention.{}_proj.bias": "self_attention.in_proj_bias",
    },
    others={"encoder.final_norm": "encoder.ln", "head": "heads.head"},
)
TIMM = _Names(
    patches="patch_embed.proj",
    positions="pos_embed",
    class_token="cls_token",
    layers="blocks.",
    parts={
        "attention.output_proj": "attn.proj",
        "attention_norm": "norm1",
        "feed_forward.hidden_proj": "mlp.fc1",
        "feed_forward.output_proj": "mlp.fc2",
        "feed_forward_norm": "norm2",
    },
    packed={
        "attention.{}_proj.weight": "attn.qkv.weight",
        "attention.{}_proj.bias": "attn.qkv.bias",
    },
    others={"encoder.final_norm": "norm", "head": "head"},
)
HUGGINGFACE = _Names(
    patches="embeddings.patch_embeddings.projection",
    positions="embeddings.position_embeddings",
    class_token="embeddings.cls_token",
    layers="layers.",
    parts={
        "attention.query_proj": "attention.q_proj",
        "attention.key_proj": "attention.k_proj",
        "attention.value_proj": "attention.v_proj",
        "attention.output_proj": "attention.o_proj",
        "attention_norm": "layernorm_before",
        "feed_forward.hidden_proj": "mlp.fc1",
        "feed_forward.output_proj": "mlp.fc2",
        "feed_forward_norm": "layernorm_after",
    },
    packed={},
    others={"encoder.final_norm": "layernorm"},
)
# As files have it that version 4 of transformers wrote, which are most.
HUGGINGFACE_4 = replace(
    HUGGINGFACE,
    layers="encoder.layer.",
    parts={
        **HUGGINGFACE.parts,
        "attention.query_proj": "attention.attention.query",
        "attention.key_proj": "attention.attention.key",
        "attention.value_proj": "attention.attention.value",
        "attention.output_proj": "attention.output.dense",
        "feed_forward.hidden_proj": "intermediate.dense",
        "feed_forward.output_proj": "output.dense",
    },
)


def vision_transformer_from_torchvision(
    weights: Weights, *, heads: int, eps: float = 1e-6
) -> VisionTransformer:
    """Take the weights of a torchvision `VisionTransformer`.

    Args:
        weights: Its state dict, or a safetensors file.
        heads: Number of heads, which a state dict does not tell: 12 for ViT-B, 16
            for ViT-L and ViT-H.
        eps: Of the layer normalisations.

    Returns:
        A model that gives the same logits.

    Raises:
        WeightsError: If these are other weights.

    Examples:
        Torchvision downloads its weights, and keeps a file of them:

        ```python
        theirs = torchvision.models.vit_b_16(weights="IMAGENET1K_V1")
        model = vision_transformer_from_torchvision(theirs.state_dict(), heads=12)
        ```
    """
    unpacking = _Unpacking(weights, "a torchvision VisionTransformer")
    model = _model(unpacking, TORCHVISION, "heads.head", heads, eps)
    return _filled(unpacking, TORCHVISION, model)


def vision_transformer_from_timm(
    weights: Weights, *, heads: int, eps: float = 1e-6, pool: Pool | None = None
) -> VisionTransformer:
    """Take the weights of one of timm's plain Vision Transformers, `vit_*`.

    Models that average the patches' tokens (`global_pool="avg"`) normalise after the
    mean, not before it; the converted model does the same, so that its final
    normalisation is part of its `head`. A class token that such a model has takes
    part in attention, and not in the mean. Where timm's has no biases of queries,
    keys and values, the converted model's are zero. For pictures of another size,
    positions are resampled bicubically as they are here; timm uses a softer cubic
    there. `timm.layers.resample_abs_pos_embed`, applied to `pos_embed` before, gives
    timm's outputs.

    Args:
        weights: Its state dict, or a safetensors file.
        heads: Number of heads, which a state dict does not tell. Nor does it tell the
            activation: it must be GELU, as it is for all but a few.
        eps: Of the layer normalisations.
        pool: What the head sees, `"class"` or `"mean"`; by default what timm's does
            by default, the mean where there is an `fc_norm` or no class token.

    Returns:
        A model that gives the same logits; features, if there is no classifier.

    Raises:
        ValueError: If the class token is to be seen, and there is none.
        WeightsError: If these are other weights, such as those of a model with
            register tokens, layer scale or normalised queries.
    """
    unpacking = _Unpacking(weights, "a plain Vision Transformer of timm")
    left, names = unpacking.left, TIMM
    if "cls_token" not in left:
        names = replace(names, class_token=None)
    norm_after = "fc_norm.weight" in left
    if pool is None:
        pool = "mean" if norm_after or names.class_token is None else "class"
    model = _model(unpacking, names, "head", heads, eps, pool=pool)
    dim = model.patch_embedding.proj.out_features
    if norm_after:
        norm = LayerNorm(dim, eps=eps, **unpacking.place)
        model.encoder.final_norm = nn.Identity()
        model.head = nn.Sequential(norm, model.head)  # type: ignore[assignment]
        names = replace(names, others={"head.0": "fc_norm", "head.1": "head"})
    _add_biases(unpacking, names, model, {"attn.qkv.bias": 3 * dim})
    return _filled(unpacking, names, model)


def vision_transformer_from_huggingface(
    weights: Weights, *, heads: int, eps: float = 1e-12
) -> VisionTransformer:
    """Take the weights of a Hugging Face `ViTForImageClassification` or `ViTModel`.

    Where theirs has no biases of queries, keys and values, the converted model's are
    zero.

    Args:
        weights: Its state dict, or a safetensors file.
        heads: Number of heads, `num_attention_heads` of its configuration, whose
            `hidden_act` must be `"gelu"`.
        eps: Of the layer normalisations, `layer_norm_eps` of its configuration.

    Returns:
        A model that gives the same logits. Of a `ViTModel`, `encode` gives the last
        hidden states, and the model itself the pooled output, or without a pooler
        the class token.

    Raises:
        WeightsError: If these are other weights.
    """
    unpacking = _Unpacking(weights, "a Hugging Face ViT")
    left = unpacking.left
    base = "vit." if "vit.embeddings.cls_token" in left else ""
    older = any(name.startswith(f"{base}{HUGGINGFACE_4.layers}") for name in left)
    known = HUGGINGFACE_4 if older else HUGGINGFACE
    pooler = f"{base}pooler.dense"
    pooled = f"{pooler}.weight" in left
    names = replace(
        known,
        patches=base + known.patches,
        positions=base + known.positions,
        class_token=f"{base}{known.class_token}",
        layers=base + known.layers,
        others={
            "encoder.final_norm": f"{base}layernorm",
            **({"head.0": pooler} if pooled else {"head": "classifier"}),
        },
    )
    head = pooler if pooled else "classifier"
    model = _model(unpacking, names, head, heads, eps)
    if pooled:
        model.head = nn.Sequential(model.head, nn.Tanh())  # type: ignore[assignment]
    projected = [names.parts[f"attention.{part}_proj"] for part in PROJECTED]
    dim = model.patch_embedding.proj.out_features
    _add_biases(unpacking, names, model, {f"{x}.bias": dim for x in projected})
    return _filled(unpacking, names, model)


def _model(
    unpacking: _Unpacking,
    names: _Names,
    head: str,
    heads: int,
    eps: float,
    *,
    pool: Pool = "class",
) -> VisionTransformer:
    dim, channels, height, width = unpacking.shape(f"{names.patches}.weight", 4)
    cells = unpacking.shape(names.positions, 3)[1] - (names.class_token is not None)
    side = math.isqrt(max(cells, 0))
    if cells < 1 or side**2 != cells:
        raise WeightsError(
            f"{names.positions!r} must be of a square grid of patches, got {cells} of "
            "them."
        )
    hidden = names.parts["feed_forward.hidden_proj"]
    with_head = f"{head}.weight" in unpacking.left
    model = VisionTransformer(
        (side * height, side * width),
        (height, width),
        classes=unpacking.shape(f"{head}.weight", 2)[0] if with_head else 1,
        dim=dim,
        depth=unpacking.depth(names.layers),
        heads=heads,
        hidden_dim=unpacking.shape(f"{names.layers}0.{hidden}.weight", 2)[0],
        channels=channels,
        pool=pool,
        class_token=names.class_token is not None,
        eps=eps,
        **unpacking.place,
    )
    if not with_head:
        model.head = nn.Identity()  # type: ignore[assignment]
    return model


def _add_biases(
    unpacking: _Unpacking,
    names: _Names,
    model: VisionTransformer,
    sizes: dict[str, int],
) -> None:
    """Write zeros for biases that no layer has: there is no leaving them out here."""
    if any(name.endswith(tuple(sizes)) for name in unpacking.left):
        return
    like = unpacking.left[f"{names.patches}.weight"]
    for number in range(len(model.encoder.layers)):
        for name, size in sizes.items():
            unpacking.left[f"{names.layers}{number}.{name}"] = like.new_zeros(size)


def _filled(
    unpacking: _Unpacking, names: _Names, model: VisionTransformer
) -> VisionTransformer:
    unpacking.build(model)
    embedding = model.patch_embedding
    dim = embedding.proj.out_features
    kernel = unpacking.take(
        f"{names.patches}.weight", (dim, embedding.channels, *embedding.patch)
    )
    unpacking.made["patch_embedding.proj.weight"] = rearrange(
        kernel, "d c i j -> d (c i j)"
    )
    unpacking.move(f"{names.patches}.bias", "patch_embedding.proj.bias")
    first = int(names.class_token is not None)
    cells = math.prod(model.grid)
    table = unpacking.take(names.positions, (1, first + cells, dim))[0]
    unpacking.made["positions.cells.table"] = table[first:]
    if names.class_token is not None:
        unpacking.made["class_position"] = table[0]
        token = unpacking.take(names.class_token, (1, 1, dim))
        unpacking.made["class_token"] = token[0, 0]
    for number in range(len(model.encoder.layers)):
        theirs, ours = f"{names.layers}{number}", f"encoder.layers.{number}"
        for own, name in names.packed.items():
            unpacking.packed(f"{theirs}.{name}", f"{ours}.{own}")
        for own, name in names.parts.items():
            unpacking.part(f"{theirs}.{name}", f"{ours}.{own}")
    for own, name in names.others.items():
        unpacking.part(name, own)
    return unpacking.fill(model)
