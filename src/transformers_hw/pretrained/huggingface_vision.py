"""Vision Transformers of Hugging Face."""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from transformers_hw._engine.arguments import height_and_width
from transformers_hw.pretrained.conversion import Conversion
from transformers_hw.pretrained.verification import Draw
from transformers_hw.pretrained.vision import Library, vision_transformer
from transformers_hw.pretrained.weights import WeightsError, listed, printable
from transformers_hw.vision_transformer import Size, VisionTransformer

Config = Mapping[str, Any]
# Names since version 5 of transformers, and in files that version 4 wrote, which are
# most.
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
SWIGLU_PARTS = {
    "feed_forward.gate_proj": "mlp.gate_proj.",
    "feed_forward.hidden_proj": "mlp.up_proj.",
    "feed_forward.output_proj": "mlp.down_proj.",
}
SWIGLU_PARTS_4 = {
    "feed_forward.gate_proj": "mlp.weights_in.",
    "feed_forward.hidden_proj": "mlp.weights_in.",
    "feed_forward.output_proj": "mlp.weights_out.",
}
MLP_PARTS = {
    "feed_forward.hidden_proj": "mlp.fc1.",
    "feed_forward.output_proj": "mlp.fc2.",
}
DINO_PARTS = {"attention_norm": "norm1.", "feed_forward_norm": "norm2."}
DINO_VECTORS = {
    "attention_scale.weight": "layer_scale1.lambda1",
    "feed_forward_scale.weight": "layer_scale2.lambda1",
}
# The models, by `model_type`, with what their names begin with below a head.
DINOS = {
    "dinov2": "dinov2.",
    "dinov2_with_registers": "dinov2_with_registers.",
}
VITS = {"vit": "vit.", "vit_msn": "vit.", "deit": "deit.", **DINOS}
# What the names of heads begin with.
HEADS = (
    "cls.",
    "lm_head.",
    "score.",
    "classifier.",
    "qa_outputs.",
    "decoder.",
    "multiple_choice_head.",
    "cls_classifier.",
    "distillation_classifier.",
)


def convert_vit(
    conversion: Conversion,
    config: Config,
    settings: dict[str, Any],
    image_size: Size | None,
) -> VisionTransformer:
    """Convert a Vision Transformer.

    Args:
        conversion: The weights.
        config: The model's configuration.
        settings: What all encoders have, as keywords of our model.
        image_size: Size of images to resample positions for.
    """
    kind = config["model_type"]
    check_head(conversion, own="classifier.")
    base = base_of(conversion, VITS[kind])
    library = _library(conversion, base, kind)
    tensors = conversion.tensors
    has_pooler = f"{library.pooler}weight" in tensors
    if has_pooler:
        one_of(conversion, config, "pooler_act", ("tanh", None))
    settings["pooler"] = "tanh" if has_pooler else None
    if kind in DINOS and one_of(
        conversion, config, "use_swiglu_ffn", (True, False, None)
    ):
        settings["activation"] = "swiglu"
    # A model without a class token would have no pooled output to compare.
    dim = conversion.shape(library.class_token, 3)[2]
    head = tensors.get(f"{library.head}weight")
    if head is not None and kind in DINOS:
        raise conversion.other(
            "this one has a head that reads the class token and the mean of the "
            f"patches side by side ({library.head}weight): base_only=True converts "
            "what is below it"
        )
    size = config["image_size"]
    size = tuple(size) if isinstance(size, list) else size
    tokens = 2 if kind == "deit" else 1
    conversion.change(partial(_prepared, library, tokens, None))
    if image_size is not None:
        patch = conversion.shape(f"{library.patches}weight", 4)[2:]
        size = height_and_width("image_size", image_size)
        resample = partial(_resampled, size, patch, kind)
        conversion.change(partial(_prepared, library, tokens, resample))
    elif kind in DINOS and conversion.module is None:
        height, width = conversion.attempt(height_and_width, "image_size", size)
        if height != width:
            raise conversion.other(
                f"a {kind} resamples its positions for images of {height}×{width} "
                f"pixels, as those of a square: image_size=({height}, {width}) does so"
            )
    compare = partial(_vits, kind, image_size is not None)
    model = vision_transformer(conversion, library, settings, size, compare)
    check_sizes(
        conversion,
        config,
        hidden_size=dim,
        num_hidden_layers=model.config.depth,
        intermediate_size=model.config.hidden_dim,
        num_channels=model.config.channels,
    )
    return model


def _library(conversion: Conversion, base: str, kind: str) -> Library:
    """Return the names of a model, which differ between versions."""
    tensors, dino = conversion.tensors, kind in DINOS
    older = any(".attention.attention.query." in name for name in tensors)
    parts = dict(VIT_PARTS_4 if older else VIT_PARTS)
    if dino:
        parts |= MLP_PARTS | DINO_PARTS
        for found in (SWIGLU_PARTS, SWIGLU_PARTS_4):
            first = f"{base}encoder.layer.0.{found['feed_forward.gate_proj']}weight"
            # Gate first: where both are in one tensor, it begins with the gate.
            parts = {**found, **parts, **found} if first in tensors else parts
    registers = "distillation_token" if kind == "deit" else "register_tokens"
    return Library(
        patches=f"{base}embeddings.patch_embeddings.projection.",
        positions=f"{base}embeddings.position_embeddings",
        class_token=f"{base}embeddings.cls_token",
        layers=base + ("encoder.layer." if older or dino else "layers."),
        parts=parts,
        final_norm=f"{base}layernorm.",
        pooler=f"{base}pooler.dense.",
        head="classifier.",
        registers=f"{base}embeddings.{registers}",
        vectors=DINO_VECTORS if dino else {},
    )


def _prepared(
    library: Library,
    tokens: int,
    resample: Callable[[Tensor], Tensor] | None,
    tensors: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """Leave out the token of masked patches, and give registers no position.

    A distillation token and its position only ever enter as their sum, which is a
    register.

    Args:
        library: Names of the tensors.
        tokens: Number of tokens with a position before those of the patches.
        resample: Changes the positions of the patches.
        tensors: The tensors.
    """
    found = dict(tensors)
    found.pop(library.class_token.replace("cls_token", "mask_token"), None)
    positions, token = found.get(library.positions), found.get(library.registers)
    if positions is None or positions.dim() != 3 or positions.shape[1] <= tokens:
        return found
    first, patches = positions[:, :1], positions[:, tokens:]
    if tokens == 2 and token is not None and token.shape == first.shape:
        found[library.registers] = token + positions[:, 1:2]
    if resample is not None:
        patches = resample(patches)
    found[library.positions] = torch.cat([first, patches], dim=1)
    return found


def _resampled(
    size: tuple[int, int], patch: tuple[int, ...], kind: str, positions: Tensor
) -> Tensor:
    """Resample the positions of a square for an image, as Hugging Face does."""
    grid = (size[0] // patch[0], size[1] // patch[1])
    if size[0] == size[1] and math.prod(grid) == positions.shape[1]:
        return positions  # as they are, even where the grid is no square
    rows = math.isqrt(positions.shape[1])
    if rows**2 != positions.shape[1] or 0 in grid:
        raise WeightsError(
            "image_size must be at least a patch, and positions those of a square to "
            f"be resampled, got a grid of {grid} and {positions.shape[1]} positions."
        )
    image = rearrange(positions, "1 (rows columns) d -> 1 d rows columns", rows=rows)
    # DINOv2 does so in 32 bits.
    image = image.float() if kind in DINOS else image
    found = F.interpolate(
        image, size=grid, mode="bicubic", antialias=kind == "dinov2_with_registers"
    )
    found = rearrange(found, "1 d rows columns -> 1 (rows columns) d")
    return found.to(positions.dtype)


def _vits(
    kind: str,
    resampled: bool,
    ours: VisionTransformer,
    theirs: Callable[..., Any],
    draw: Draw,
) -> Iterator[tuple[str, Tensor, Tensor]]:
    config = ours.config
    other = {} if kind in DINOS else {"interpolate_pos_encoding": True}
    image = draw.numbers(1, config.channels, *config.image_size)
    wanted = theirs(image, **(other if resampled else {}))
    yield from _outputs_of_vits(ours, image, wanted)
    # Resampled once, positions are others than those that are resampled twice. DINOv2
    # resamples in 32 bits, and with registers by another kernel.
    if resampled or kind == "dinov2_with_registers":
        return
    if kind in DINOS and ours.patch_embedding.proj.weight.dtype == torch.float64:
        return
    # Hugging Face resamples positions as if they were those of a square.
    if ours.grid[0] == ours.grid[1] and config.patch_size[0] == config.patch_size[1]:
        height, width = config.image_size
        image = draw.numbers(1, config.channels, height, width + config.patch_size[1])
        yield from _outputs_of_vits(ours, image, theirs(image, **other))


def _outputs_of_vits(
    ours: VisionTransformer, image: Tensor, wanted: Any
) -> Iterator[tuple[str, Tensor, Tensor]]:
    if hasattr(wanted, "logits"):
        yield "logits", ours(image), wanted.logits
        return
    if not hasattr(wanted, "last_hidden_state"):
        raise WeightsError(
            "module must return logits or the last hidden states, got "
            f"{type(wanted).__name__}."
        )
    tokens = ours.encode(image)
    yield "hidden states", tokens, wanted.last_hidden_state
    if getattr(wanted, "pooler_output", None) is not None:
        yield "pooled outputs", ours.pool(tokens), wanted.pooler_output


def one_of(
    conversion: Conversion, config: Config, name: str, choices: tuple[Any, ...]
) -> Any:
    """Return a setting, and raise unless it is one of the choices."""
    value = config.get(name)
    if value not in choices:
        wanted = " or ".join(repr(x) for x in choices if x is not None)
        raise conversion.other(
            f"{name} must be {wanted}, got {printable(repr(value), 80)}"
        )
    return value


def check_sizes(conversion: Conversion, config: Config, **found: int | None) -> None:
    """Raise where a configuration tells other sizes than the weights beside it."""
    if conversion.module is not None:
        return
    for name, size in found.items():
        if config.get(name) not in (size, None):
            raise WeightsError(
                f"config must be that of the weights, of {name} {size}, got "
                f"{printable(repr(config[name]), 80)}."
            )


def base_of(conversion: Conversion, prefix: str, first: str = "embeddings.") -> str:
    """Return what names begin with: nothing, or below a head the base's name."""
    below = any(name.startswith(f"{prefix}{first}") for name in conversion.tensors)
    return prefix if below else ""


def check_head(conversion: Conversion, own: str = "none") -> None:
    """Raise if there is a head other than the one that our model has."""
    heads = tuple(name for name in HEADS if name != own)
    found = [name for name in conversion.tensors if name.startswith(heads)]
    if found:
        raise conversion.other(
            f"this one has another head ({listed(found, 3)}): "
            "base_only=True converts what is below it"
        )
