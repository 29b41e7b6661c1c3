"""Vision Transformers of Hugging Face."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor

from transformers_hw.pretrained.conversion import Conversion
from transformers_hw.pretrained.verification import Draw
from transformers_hw.pretrained.vision import Library, vision_transformer
from transformers_hw.pretrained.weights import WeightsError, printable
from transformers_hw.vision_transformer import VisionTransformer

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
# The models, by `model_type`, with what their names begin with below a head.
VITS = {"vit": "vit.", "vit_msn": "vit."}


def convert_vit(
    conversion: Conversion, config: Config, settings: dict[str, Any]
) -> VisionTransformer:
    """Convert a Vision Transformer.

    Args:
        conversion: The weights.
        config: The model's configuration.
        settings: What all encoders have, as keywords of our model.
    """
    tensors = conversion.tensors
    base = base_of(conversion, VITS[config["model_type"]])
    older = any(name.startswith(f"{base}encoder.layer.") for name in tensors)
    library = Library(
        patches=f"{base}embeddings.patch_embeddings.projection.",
        positions=f"{base}embeddings.position_embeddings",
        class_token=f"{base}embeddings.cls_token",
        layers=base + ("encoder.layer." if older else "layers."),
        parts=VIT_PARTS_4 if older else VIT_PARTS,
        final_norm=f"{base}layernorm.",
        pooler=f"{base}pooler.dense.",
        head="classifier.",
    )
    has_pooler = f"{library.pooler}weight" in tensors
    if has_pooler:
        one_of(conversion, config, "pooler_act", ("tanh", None))
    settings["pooler"] = "tanh" if has_pooler else None
    # A model without a class token would have no pooled output to compare.
    conversion.shape(library.class_token, 3)
    size = config["image_size"]
    size = tuple(size) if isinstance(size, list) else size
    model = vision_transformer(conversion, library, settings, size, _vits)
    check_sizes(
        conversion,
        config,
        hidden_size=model.config.dim,
        num_hidden_layers=model.config.depth,
        intermediate_size=model.config.hidden_dim,
        num_channels=model.config.channels,
    )
    return model


def _vits(
    ours: VisionTransformer, theirs: Callable[..., Any], draw: Draw
) -> Iterator[tuple[str, Tensor, Tensor]]:
    config = ours.config
    image = draw.numbers(1, config.channels, *config.image_size)
    yield from _outputs_of_vits(ours, image, theirs(image))
    # Hugging Face resamples positions as if they were those of a square.
    if ours.grid[0] == ours.grid[1] and config.patch_size[0] == config.patch_size[1]:
        height, width = config.image_size
        image = draw.numbers(1, config.channels, height, width + config.patch_size[1])
        wanted = theirs(image, interpolate_pos_encoding=True)
        yield from _outputs_of_vits(ours, image, wanted)


def _outputs_of_vits(
    ours: VisionTransformer, image: Tensor, wanted: Any
) -> Iterator[tuple[str, Tensor, Tensor]]:
    if hasattr(wanted, "logits"):
        yield "logits", ours(image), wanted.logits
        return
    tokens = ours.encode(image)
    yield "hidden states", tokens, wanted.last_hidden_state
    if ours.config.pooler is not None:
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


def base_of(conversion: Conversion, prefix: str) -> str:
    """Return what names begin with: nothing, or below a head the base's name."""
    below = any(name.startswith(f"{prefix}embeddings.") for name in conversion.tensors)
    return prefix if below else ""
