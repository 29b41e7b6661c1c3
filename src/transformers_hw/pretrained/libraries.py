"""Vision Transformers and BERTs of other libraries."""

import math
from dataclasses import dataclass
from typing import Any

from torch import nn

from transformers_hw._engine.arguments import check_choice
from transformers_hw.pretrained.weights import (
    Conversion,
    Weights,
    WeightsError,
    name_of_activation,
)
from transformers_hw.transformer.bert import Bert
from transformers_hw.transformer.config import BIASED
from transformers_hw.vision_transformer import Pool, VisionTransformer


@dataclass(frozen=True)
class _Library:
    """What a library calls the parts of a Vision Transformer.

    Names of modules come with what stands between them and `weight` or `bias`.

    Attributes:
        origin: The library, for error messages.
        patches: Convolution that embeds patches.
        positions: Positional embeddings, those of the class token first.
        class_token: The class token.
        layers: Beginning of the name of every layer, up to its number.
        parts: Parts of a layer, by our names. Parts of one name are in one tensor.
        final_norm: The layer norm after the last layer.
        pooler: What follows pooling.
        head: The classifier.
    """

    origin: str
    patches: str
    positions: str
    class_token: str
    layers: str
    parts: dict[str, str]
    final_norm: str
    pooler: str
    head: str


TORCHVISION = _Library(
    origin="a torchvision VisionTransformer",
    patches="conv_proj.",
    positions="encoder.pos_embedding",
    class_token="class_token",
    layers="encoder.layers.encoder_layer_",
    parts={
        "attention.query_proj": "self_attention.in_proj_",
        "attention.key_proj": "self_attention.in_proj_",
        "attention.value_proj": "self_attention.in_proj_",
        "attention.output_proj": "self_attention.out_proj.",
        "attention_norm": "ln_1.",
        "feed_forward.hidden_proj": "mlp.0.",
        "feed_forward.output_proj": "mlp.3.",
        "feed_forward_norm": "ln_2.",
    },
    final_norm="encoder.ln.",
    pooler="",
    head="heads.head.",
)
TIMM = _Library(
    origin="a plain Vision Transformer of timm",
    patches="patch_embed.proj.",
    positions="pos_embed",
    class_token="cls_token",
    layers="blocks.",
    parts={
        "attention.query_proj": "attn.qkv.",
        "attention.key_proj": "attn.qkv.",
        "attention.value_proj": "attn.qkv.",
        "attention.output_proj": "attn.proj.",
        "attention_norm": "norm1.",
        "feed_forward.hidden_proj": "mlp.fc1.",
        "feed_forward.output_proj": "mlp.fc2.",
        "feed_forward_norm": "norm2.",
    },
    final_norm="norm.",
    pooler="fc_norm.",
    head="head.",
)
# What timm's other models have, and this book's does not.
TIMM_OTHERS = {
    "reg_token": "register tokens",
    "dist_token": "a distillation token",
    "blocks.0.ls1.gamma": "layer scale",
    "blocks.0.attn.q_norm.weight": "normalized queries and keys",
    "norm_pre.weight": "a layer norm before the first layer",
    "attn_pool.q.weight": "attention pooling",
}
# Hugging Face's names since version 5 of transformers, and in files that version 4
# wrote, which are most.
VIT_PARTS = {
    "attention.query_proj": "attention.q_proj.",
    "attention.key_proj": "attention.k_proj.",
    "attention.value_proj": "attention.v_proj.",
    "attention.output_proj": "attention.o_proj.",
    "attention_norm": "layernorm_before.",
    "feed_forward.hidden_proj": "mlp.fc1.",
    "feed_forward.output_proj": "mlp.fc2.",
    "feed_forward_norm": "layernorm_after.",
}
VIT_PARTS_4 = {
    "attention.query_proj": "attention.attention.query.",
    "attention.key_proj": "attention.attention.key.",
    "attention.value_proj": "attention.attention.value.",
    "attention.output_proj": "attention.output.dense.",
    "attention_norm": "layernorm_before.",
    "feed_forward.hidden_proj": "intermediate.dense.",
    "feed_forward.output_proj": "output.dense.",
    "feed_forward_norm": "layernorm_after.",
}
BERT_PARTS = {
    "attention.query_proj": "attention.self.query.",
    "attention.key_proj": "attention.self.key.",
    "attention.value_proj": "attention.self.value.",
    "attention.output_proj": "attention.output.dense.",
    "attention_norm": "attention.output.LayerNorm.",
    "feed_forward.hidden_proj": "intermediate.dense.",
    "feed_forward.output_proj": "output.dense.",
    "feed_forward_norm": "output.LayerNorm.",
}
HUGGINGFACE_ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}


def from_torchvision(
    source: nn.Module | Weights, *, heads: int | None = None, eps: float | None = None
) -> VisionTransformer:
    """Convert a torchvision `VisionTransformer`.

    Args:
        source: The module, which tells its own settings; or its state dict, or a
            safetensors file of it.
        heads: Number of heads, needed unless `source` is a module: 12 for ViT-B, 16
            for ViT-L and ViT-H.
        eps: Epsilon of the layer norms; $10^{-6}$ by default.

    Returns:
        A model with the same logits, in evaluation mode.

    Raises:
        TypeError: If `heads` is missing.
        WeightsError: If these are other weights.

    Examples:
        Torchvision downloads its weights:

        ```python
        model = from_torchvision(torchvision.models.vit_b_16(weights="IMAGENET1K_V1"))
        ```
    """
    conversion = Conversion(source, TORCHVISION.origin)

    def read(module: Any) -> dict[str, Any]:
        layer = module.encoder.layers[0]
        return {"heads": layer.self_attention.num_heads, "eps": layer.ln_1.eps}

    given = {"heads": heads, "eps": eps}
    settings = conversion.settings(read, given, eps=1e-6)
    return _vision_transformer(conversion, TORCHVISION, settings)


def from_timm(
    source: nn.Module | Weights,
    *,
    heads: int | None = None,
    eps: float | None = None,
    pool: Pool | None = None,
) -> VisionTransformer:
    """Convert one of timm's plain Vision Transformers, `vit_*`.

    For images of another size, this book and timm resample positions with different
    bicubic kernels. For timm's outputs, apply `timm.layers.resample_abs_pos_embed` to
    `pos_embed` first.

    Args:
        source: The module, which tells its own settings; or its state dict, or a
            safetensors file of it, for a model with GELU.
        heads: Number of heads, needed unless `source` is a module.
        eps: Epsilon of the layer norms; $10^{-6}$ by default.
        pool: What the head sees, `"class"` or `"mean"`; by default what timm's does
            by default, the mean where there is an `fc_norm` or no class token.

    Returns:
        A model with the same logits, or without a head with the same features, in
        evaluation mode.

    Raises:
        TypeError: If `heads` is missing.
        ValueError: If the pooling or the activation is another.
        WeightsError: If these are other weights, such as those of a model with
            register tokens, layer scale or normalized queries.
    """
    conversion = Conversion(source, TIMM.origin)
    tensors = conversion.tensors
    for name, what in TIMM_OTHERS.items():
        if name in tensors:
            raise WeightsError(
                f"weights must be of {TIMM.origin}, got a model with {what} ({name!r})."
            )
    norm_after = "fc_norm.weight" in tensors
    usual = "mean" if norm_after or "cls_token" not in tensors else "class"

    def read(module: Any) -> dict[str, Any]:
        pools = {"token": "class", "avg": "mean"}
        check_choice("global_pool", module.global_pool, tuple(pools))
        layer = module.blocks[0]
        return {
            "heads": layer.attn.num_heads,
            "eps": layer.norm1.eps,
            "activation": name_of_activation(layer.mlp.act),
            "pool": pools[module.global_pool],
        }

    given = {"heads": heads, "eps": eps, "pool": pool}
    settings = conversion.settings(read, given, eps=1e-6, pool=usual)
    settings["pooler"] = "norm" if norm_after else None
    return _vision_transformer(conversion, TIMM, settings)


def from_huggingface(
    source: nn.Module | Weights, *, heads: int | None = None, eps: float | None = None
) -> Any:
    """Convert a Hugging Face `ViTModel`, `ViTForImageClassification` or `BertModel`.

    Of a BERT with a head, such as `BertForMaskedLM`, convert the base: `model.bert`.

    Args:
        source: The module, which tells its own settings; or its state dict, or a
            safetensors file of it, for a model with GELU.
        heads: Number of heads, needed unless `source` is a module:
            `num_attention_heads` in its configuration.
        eps: Epsilon of the layer norms, `layer_norm_eps` in its configuration;
            $10^{-12}$ by default.

    Returns:
        A `VisionTransformer` or `Bert` with the same outputs, in evaluation mode: of a
        classifier the logits, of a `BertModel` the last hidden states. Of a `ViTModel`,
        `encode` returns the last hidden states, and a call of the model the pooled
        output, or without a pooler the class token.

    Raises:
        TypeError: If `heads` is missing.
        ValueError: If the activation is another.
        WeightsError: If these are other weights.
    """
    conversion = Conversion(source, "a Hugging Face ViT or BERT")

    def read(module: Any) -> dict[str, Any]:
        config, known = module.config, HUGGINGFACE_ACTIVATIONS
        check_choice("hidden_act", config.hidden_act, tuple(known))
        return {
            "heads": config.num_attention_heads,
            "eps": config.layer_norm_eps,
            "activation": known[config.hidden_act],
        }

    given = {"heads": heads, "eps": eps}
    settings = conversion.settings(read, given, eps=1e-12)
    tensors = conversion.tensors
    if any("word_embeddings" in name for name in tensors):
        return _bert(conversion, settings)
    base = "vit." if "vit.embeddings.cls_token" in tensors else ""
    older = any(name.startswith(f"{base}encoder.layer.") for name in tensors)
    library = _Library(
        origin=conversion.origin,
        patches=f"{base}embeddings.patch_embeddings.projection.",
        positions=f"{base}embeddings.position_embeddings",
        class_token=f"{base}embeddings.cls_token",
        layers=base + ("encoder.layer." if older else "layers."),
        parts=VIT_PARTS_4 if older else VIT_PARTS,
        final_norm=f"{base}layernorm.",
        pooler=f"{base}pooler.dense.",
        head="classifier.",
    )
    settings["pooler"] = "tanh" if f"{library.pooler}weight" in tensors else None
    return _vision_transformer(conversion, library, settings)


def _vision_transformer(
    conversion: Conversion, library: _Library, settings: dict[str, Any]
) -> VisionTransformer:
    tensors, first = conversion.tensors, f"{library.layers}0."
    kernel = conversion.shape(f"{library.patches}weight", 4)
    dim, channels, height, width = kernel
    class_token = library.class_token in tensors
    cells = conversion.shape(library.positions, 3)[1] - class_token
    side = math.isqrt(max(cells, 0))
    if cells < 1 or side**2 != cells:
        raise WeightsError(
            f"{library.positions!r} must be of a square grid of patches, got {cells} "
            "of them."
        )
    hidden = f"{first}{library.parts['feed_forward.hidden_proj']}weight"
    head = f"{library.head}weight"
    depth = conversion.depth(library.layers)
    model = VisionTransformer(
        (side * height, side * width),
        (height, width),
        num_classes=conversion.shape(head, 2)[0] if head in tensors else None,
        dim=dim,
        depth=depth,
        hidden_dim=conversion.shape(hidden, 2)[0],
        channels=channels,
        class_token=class_token,
        bias=_biases(conversion, first, library.parts),
        **settings,
        **conversion.factory,
    )
    names = {
        "class_token": library.class_token,
        "class_position": library.positions,
        "positions.weight": library.positions,
        **_named({"patch_embedding.proj": library.patches, "head": library.head}),
        **_named({"pooler": library.pooler, "pooler.0": library.pooler}),
        **_named({"encoder.final_norm": library.final_norm}),
        **_layers(depth, library.layers, library.parts),
    }
    shapes = {
        f"{library.patches}weight": kernel,
        library.class_token: (1, 1, dim),
        library.positions: (1, class_token + cells, dim),
    }
    return conversion.fill(model, names, shapes)


def _bert(conversion: Conversion, settings: dict[str, Any]) -> Bert:
    tensors = conversion.tensors
    base = "bert." if "bert.embeddings.word_embeddings.weight" in tensors else ""
    embeddings, layers = f"{base}embeddings.", f"{base}encoder.layer."
    pooler = f"{base}pooler.dense."
    positions = f"{embeddings}position_embeddings.weight"
    segments = f"{embeddings}token_type_embeddings.weight"
    hidden = f"{layers}0.{BERT_PARTS['feed_forward.hidden_proj']}weight"
    vocab_size, dim = conversion.shape(f"{embeddings}word_embeddings.weight", 2)
    max_length = conversion.shape(positions, 2)[0]
    # Older versions kept these, which are nothing but the numbers 0, 1, 2, …
    numbers = tensors.get(f"{embeddings}position_ids")
    if numbers is not None and numbers.flatten().tolist() == list(range(max_length)):
        del tensors[f"{embeddings}position_ids"]
    depth = conversion.depth(layers)
    model = Bert(
        vocab_size,
        dim=dim,
        depth=depth,
        hidden_dim=conversion.shape(hidden, 2)[0],
        max_length=max_length,
        num_segments=conversion.shape(segments, 2)[0],
        pooler=f"{pooler}weight" in tensors,
        **settings,
        **conversion.factory,
    )
    names = {
        "positions.weight": positions,
        "token_embedding.weight": f"{embeddings}word_embeddings.weight",
        "segment_embedding.weight": segments,
        **_named({"norm": f"{embeddings}LayerNorm.", "pooler": pooler}),
        **_layers(depth, layers, BERT_PARTS),
    }
    return conversion.fill(model, names)


def _biases(
    conversion: Conversion, layer: str, parts: dict[str, str]
) -> bool | tuple[str, ...]:
    """Read from the first layer which parts have biases."""
    ours = {name: f"attention.{name}_proj" for name in BIASED[:4]}
    ours |= {"feed_forward": "feed_forward.hidden_proj", "norm": "attention_norm"}
    found = tuple(
        name
        for name, part in ours.items()
        if f"{layer}{parts[part]}bias" in conversion.tensors
    )
    return True if found == BIASED else found


def _layers(depth: int, layers: str, parts: dict[str, str]) -> dict[str, str]:
    return _named(
        {
            f"encoder.layers.{i}.{ours}": f"{layers}{i}.{theirs}"
            for i in range(depth)
            for ours, theirs in parts.items()
        }
    )


def _named(modules: dict[str, str]) -> dict[str, str]:
    return {
        f"{ours}.{kind}": f"{theirs}{kind}"
        for ours, theirs in modules.items()
        for kind in ("weight", "bias")
    }
