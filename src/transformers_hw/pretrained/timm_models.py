"""Vision Transformers of timm."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from torch import nn

from transformers_hw._engine.shapes import checked
from transformers_hw.pretrained.conversion import (
    Conversion,
    eps_of,
    name_of_activation,
    names_file,
    shared,
)
from transformers_hw.pretrained.vision import Library, one_image, vision_transformer
from transformers_hw.pretrained.weights import Weights, WeightsError
from transformers_hw.vision_transformer import Pool, Size, VisionTransformer

TIMM = Library(
    patches="patch_embed.proj.",
    positions="pos_embed",
    class_token="cls_token",
    layers="blocks.",
    parts={
        "attention.query_proj": "attn.qkv.",
        "attention.key_proj": "attn.qkv.",
        "attention.value_proj": "attn.qkv.",
        "attention.output_proj": "attn.proj.",
        "attention.query_norm": "attn.q_norm.",
        "attention.key_norm": "attn.k_norm.",
        "attention_norm": "norm1.",
        "feed_forward.gate_proj": "mlp.fc1.",
        "feed_forward.hidden_proj": "mlp.fc1.",
        "feed_forward.norm": "mlp.norm.",
        "feed_forward.output_proj": "mlp.fc2.",
        "feed_forward_norm": "norm2.",
    },
    final_norm="norm.",
    pooler="fc_norm.",
    head="head.",
    embedding_norm="norm_pre.",
    registers="reg_token",
    pooling={
        "probe": "attn_pool.latent",
        "attention.query_proj": "attn_pool.q.",
        "attention.key_proj": "attn_pool.kv.",
        "attention.value_proj": "attn_pool.kv.",
        "attention.output_proj": "attn_pool.proj.",
        "norm": "attn_pool.norm.",
        "feed_forward.hidden_proj": "attn_pool.mlp.fc1.",
        "feed_forward.output_proj": "attn_pool.mlp.fc2.",
    },
    vectors={
        "attention_scale.weight": "ls1.gamma",
        "feed_forward_scale.weight": "ls2.gamma",
    },
)
# What timm's models of the class `Eva` call otherwise, by a tensor of the first layer.
EVA_VECTORS = {
    "gamma_1": {
        "attention_scale.weight": "gamma_1",
        "feed_forward_scale.weight": "gamma_2",
    },
    "attn.q_bias": {
        "attention.query_proj.bias": "attn.q_bias",
        "attention.value_proj.bias": "attn.v_bias",
    },
}
EVA_PARTS = {
    "attn.q_proj.weight": {
        "attention.query_proj": "attn.q_proj.",
        "attention.key_proj": "attn.k_proj.",
        "attention.value_proj": "attn.v_proj.",
    },
    "mlp.fc1_g.weight": {
        "feed_forward.gate_proj": "mlp.fc1_g.",
        "feed_forward.hidden_proj": "mlp.fc1_x.",
    },
}
# What timm's other models have, and this book's does not, by parts of names.
TIMM_OTHERS = {
    "dist_token": "a distillation token",
    "rel_pos": "relative positions",
    "relative_position": "relative positions",
    "rope.freqs": "rotary positions with learned frequencies",
    ".attn.norm.": "a layer norm within attention",
    ".attn.lambda_": "differential attention",
    ".attn_out_proj.": "attention and network side by side",
    ".attns.": "several attentions side by side",
    "patch_embed.backbone.": "a convolutional network before the first layer",
    "patch_embed.norm.": "a layer norm within the patch embedding",
}
TIMM_POOLS: dict[str, Pool] = {"token": "class", "avg": "mean", "map": "attention"}
BLOCKS = ("Block", "EvaBlock")
ATTENTIONS = ("Attention", "AttentionRope", "EvaAttention")
ROTATIONS = ("RotaryEmbeddingCat", "RotaryEmbeddingDinoV3")


@checked
@names_file
def from_timm(
    source: nn.Module | Weights,
    *,
    heads: int | None = None,
    eps: float | None = None,
    activation: str | None = None,
    norm: str | None = None,
    pool: str | None = None,
    image_size: Size | None = None,
    rotary: Mapping[str, Any] | Literal[False] | None = None,
    pool_heads: int | None = None,
    pool_prefix: bool | None = None,
) -> VisionTransformer:
    """Convert one of timm's Vision Transformers, such as `vit_base_patch16_224`.

    These are the models of its classes `VisionTransformer` and `Eva`: ViT and DeiT,
    the image encoders of CLIP and SigLIP, DINOv2 and DINOv3, EVA, with or without
    registers, layer scale, attention pooling and rotary positions. A model with a part
    that this book does not have, such as relative positions or a convolutional stem,
    is refused, and the error names the part.

    A module is compared with the converted model before that is returned: both get one
    small random image.

    For images of another size, timm and this book resample learned positions with
    different bicubic kernels. A model that has them and was made with
    `dynamic_img_size=True` is therefore refused; for another size, call timm's
    `set_input_size` first and convert then.

    Args:
        source: The module, which tells its own settings; or its state dict, or a
            safetensors file of it, which do not: they need all of the others, but
            `pool_heads` only with `pool="attention"`, and `pool_prefix` only if
            attention or the mean pools and there is a class token or a register.
        heads: Number of heads.
        eps: Epsilon of the layer norms, $10^{-6}$ in most of timm's.
        activation: Activation of the feed-forward networks: `"gelu"` in most of
            timm's, `"gelu_tanh"` in those with `siglip` in their names, `"quick_gelu"`
            where the name says so, `"swiglu"` where they are gated; but not with
            `pool="attention"`, whose own activation only the module tells then.
        norm: Where the layer norms stand: `"pre"`. Models with `rpn` in their names
            and `eva02_enormous`, whose norms stand elsewhere, have the same names of
            weights.
        pool: What the head sees, timm's `global_pool`: `"class"`, `"mean"` for that of
            the patches, or `"attention"`.
        image_size: Height and width of the images; one number for a square.
        rotary: Rotary positions, as for
            [`VisionTransformer`][transformers_hw.vision_transformer.VisionTransformer];
            `False` for none.
        pool_heads: Number of heads of attention pooling.
        pool_prefix: Whether attention or the mean pools the class token and the
            registers, too.

    Returns:
        A model with the same logits, or without a head with the same features, in
        evaluation mode.

    Raises:
        TypeError: If a setting is missing, or is given with a module.
        WeightsError: If these are other weights, such as those of a model with
            relative positions; or if the module computes something else than the
            converted model would.
    """
    conversion = Conversion(source, "a plain Vision Transformer of timm")
    tensors = conversion.tensors
    for part, what in TIMM_OTHERS.items():
        if any(part in name for name in tensors):
            raise conversion.other(f"this one has {what} ({part.strip('.')!r})")
    pooling = {"pool_heads": pool_heads, "pool_prefix": pool_prefix}
    asked = {*pooling} if pool == "attention" else set()
    if pool == "mean" and not {"cls_token", "reg_token"}.isdisjoint(tensors):
        asked = {"pool_prefix"}
    settings = conversion.settings(
        _read_timm,
        heads=heads,
        eps=eps,
        activation=activation,
        norm=norm,
        pool=pool,
        image_size=image_size,
        rotary=rotary,
        **{k: x for k, x in pooling.items() if k in asked or x is not None},
    )
    size = settings.pop("image_size")
    if settings["norm"] != "pre":
        raise conversion.other(f"norm must be 'pre', got {settings['norm']!r}")
    if settings["rotary"] is False:
        settings["rotary"] = None
    if settings["pool"] == "attention":
        conversion.shape("attn_pool.latent", 3)
        if settings["activation"] == "swiglu" and conversion.module is None:
            raise conversion.other(
                "activation 'swiglu' does not tell that of attention pooling, which "
                "only the module does"
            )
    settings["pooler"] = "norm" if "fc_norm.weight" in tensors else None
    library = _library(conversion, settings)
    return vision_transformer(conversion, library, settings, size, one_image)


def _library(conversion: Conversion, settings: dict[str, Any]) -> Library:
    """Return the names of a model, which differ between timm's classes."""
    tensors, first = conversion.tensors, "blocks.0."
    parts, vectors = dict(TIMM.parts), dict(TIMM.vectors)
    for name, found in EVA_PARTS.items():
        parts |= found if first + name in tensors else {}
    for name, found in EVA_VECTORS.items():
        vectors |= found if first + name in tensors else {}
    scales = [vectors[f"{x}_scale.weight"] for x in ("attention", "feed_forward")]
    if [first + name in tensors for name in scales] == [True, False]:
        raise conversion.other(f"this one has layer scale in attention only: {scales}")
    if f"{first}mlp.norm.weight" in tensors:
        if settings["activation"] != "swiglu":
            raise conversion.other("this one has a layer norm within the network")
        settings["hidden_norm"] = True
    if f"{first}attn.k_proj.weight" in tensors:
        names = (f"{first}attn.{x}_proj.weight" for x in "qk")
        queries, keys = (conversion.shape(name, 2)[0] for name in names)
        if keys != queries:
            settings["kv_heads"] = keys * settings["heads"] // queries
    return replace(TIMM, parts=parts, vectors=vectors)


def _read_timm(module: Any) -> dict[str, Any]:
    layers = list(module.blocks)
    kind = shared("type", (type(layer).__name__ for layer in layers))
    if kind not in BLOCKS:
        raise WeightsError(
            "layers must be timm's Block, with norms before attention and network, "
            f"got {kind}."
        )
    kind = shared("attention", (type(layer.attn).__name__ for layer in layers))
    if kind not in ATTENTIONS:
        raise WeightsError(f"attention must be {' or '.join(ATTENTIONS)}, got {kind}.")
    if module.global_pool not in TIMM_POOLS:
        raise WeightsError(
            f"global_pool must be one of {', '.join(TIMM_POOLS)}, got "
            f"{module.global_pool!r}."
        )
    pool = TIMM_POOLS[module.global_pool]
    if module.dynamic_img_size and module.pos_embed is not None:
        raise WeightsError(
            "dynamic_img_size must be False, got True: it resamples positions with "
            "another bicubic kernel."
        )
    named = module.named_modules()
    norms = [x for name, x in named if "norm" in name.split(".")[-1]]
    activation = shared("activation", map(_activation, layers))
    settings = {
        "heads": shared("heads", (layer.attn.num_heads for layer in layers)),
        "eps": eps_of(x for x in norms if not isinstance(x, nn.Identity)),
        "activation": activation,
        "norm": "pre",
        "pool": pool,
        "image_size": module.patch_embed.img_size,
        "rotary": rotation_of(module),
    }
    if pool == "attention":
        settings["pool_heads"] = module.attn_pool.num_heads
        found = name_of_activation(module.attn_pool.mlp.act)
        if found != ("gelu" if activation == "swiglu" else activation):
            raise WeightsError(
                f"activation of attention pooling must be {activation}, got {found}."
            )
    # The class `Eva` pools all tokens by attention, and patches by the mean.
    eva = pool == "attention" and type(module).__name__ == "Eva"
    settings["pool_prefix"] = getattr(module, "pool_include_prefix", eva)
    return settings


def _activation(layer: Any) -> str:
    network = layer.mlp
    if type(network).__name__ not in ("GluMlp", "SwiGLU"):
        return name_of_activation(network.act)
    if name_of_activation(network.act) != "silu" or getattr(network, "gate_last", 0):
        raise WeightsError(
            "a gated network must be SwiGLU, with its gate first, got "
            f"{type(network).__name__} with {network.act}."
        )
    return "swiglu"


def rotation_of(module: Any) -> dict[str, Any] | Literal[False]:
    """Read how queries and keys are rotated, if they are."""
    rope = getattr(module, "rope", None)
    if rope is None:
        return False
    kind = type(rope).__name__
    if kind not in ROTATIONS or getattr(rope, "in_pixels", False):
        raise WeightsError(
            f"rotary positions must be {' or '.join(ROTATIONS)}, in patches, got "
            f"{kind}."
        )
    settings = {
        "base": float(rope.temperature),
        "layout": "halves" if rope.rotate_half else "pairs",
        "first": "column" if rope.grid_indexing == "xy" else "row",
        "start": float(rope.grid_offset),
    }
    if kind == "RotaryEmbeddingDinoV3":
        if rope.normalize_coords != "separate":
            raise WeightsError(
                "normalize_coords of rotary positions must be 'separate', got "
                f"{rope.normalize_coords!r}."
            )
        return {**settings, "centered": True}
    reference = rope.ref_feat_shape
    return {**settings, "reference": reference and tuple(reference)}
