"""Vision Transformers of torchvision, and what all converters of them share."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from transformers_hw._engine.arguments import height_and_width
from transformers_hw._engine.shapes import checked
from transformers_hw.pretrained.conversion import (
    Conversion,
    eps_of,
    name_of_activation,
    names_file,
    shared,
    with_parameters,
)
from transformers_hw.pretrained.verification import Compare, Draw
from transformers_hw.pretrained.weights import Weights
from transformers_hw.transformer.config import BIASED
from transformers_hw.vision_transformer import VisionTransformer


@dataclass(frozen=True)
class Library:
    """What a library calls the parts of a Vision Transformer.

    Names of modules come with what stands between them and `weight` or `bias`.

    Attributes:
        patches: Convolution that embeds patches.
        positions: Positional embeddings, those of the class token first.
        class_token: The class token.
        layers: Beginning of the name of every layer, up to its number.
        parts: Parts of a layer, by our names. Parts of one name are in one tensor.
        final_norm: The layer norm after the last layer.
        pooler: What follows pooling.
        head: The classifier.
        embedding_norm: The layer norm before the first layer.
        registers: The register tokens.
        pooling: Parts of attention pooling, by our names; its query is `probe`.
        vectors: Tensors of a layer that are not a weight or bias of a part, by our
            names.
    """

    patches: str
    positions: str
    class_token: str
    layers: str
    parts: dict[str, str]
    final_norm: str
    pooler: str
    head: str
    embedding_norm: str = "none"
    registers: str = "none"
    pooling: dict[str, str] = field(default_factory=dict)
    vectors: dict[str, str] = field(default_factory=dict)


TORCHVISION = Library(
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


@checked
@names_file
def from_torchvision(
    source: nn.Module | Weights, *, heads: int | None = None, eps: float | None = None
) -> VisionTransformer:
    """Convert a torchvision `VisionTransformer`.

    A module is compared with the converted model before that is returned: both get one
    small random image.

    Args:
        source: The module, which tells its own settings; or its state dict, or a
            safetensors file of it, which do not.
        heads: Number of heads, needed with a state dict: 12 for ViT-B, 16 for ViT-L
            and ViT-H.
        eps: Epsilon of the layer norms, needed with a state dict: $10^{-6}$ in all
            of torchvision's own.

    Returns:
        A model with the same logits, in evaluation mode.

    Raises:
        TypeError: If a setting is missing, or is given with a module.
        WeightsError: If these are other weights, or the module computes something else
            than the converted model would.

    Examples:
        Torchvision downloads its weights:

        ```python
        model = from_torchvision(torchvision.models.vit_b_16(weights="IMAGENET1K_V1"))
        ```
    """
    conversion = Conversion(source, "a torchvision VisionTransformer")

    def read(module: Any) -> dict[str, Any]:
        layers = list(module.encoder.layers)
        norms = [norm for layer in layers for norm in (layer.ln_1, layer.ln_2)]
        return {
            "heads": shared("heads", (x.self_attention.num_heads for x in layers)),
            "eps": eps_of([*norms, module.encoder.ln]),
            "activation": shared(
                "activation", (name_of_activation(layer.mlp[1]) for layer in layers)
            ),
        }

    settings = conversion.settings(read, heads=heads, eps=eps)
    return vision_transformer(conversion, TORCHVISION, settings, None, one_image)


def one_image(
    ours: VisionTransformer, theirs: Callable[..., Tensor], draw: Draw
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Compare the logits of an image."""
    image = draw.numbers(1, ours.config.channels, *ours.config.image_size)
    yield "outputs", ours(image), theirs(image)


def vision_transformer(
    conversion: Conversion,
    library: Library,
    settings: dict[str, Any],
    image_size: Any,
    compare: Compare,
) -> VisionTransformer:
    """Convert a Vision Transformer.

    Args:
        conversion: The weights.
        library: Their names.
        settings: What the weights do not tell, as keywords of our model.
        image_size: Size of the images; `None` where the library has only squares.
        compare: Runs both models.
    """
    tensors, first = conversion.tensors, f"{library.layers}0."
    kernel = conversion.shape(f"{library.patches}weight", 4)
    dim, channels, patch = kernel[0], kernel[1], (kernel[2], kernel[3])
    class_token = library.class_token in tensors
    registers = 0
    if library.registers in tensors:
        registers = conversion.shape(library.registers, 3)[1]
    # Without positions of any kind, some weights are likely to be missing.
    bare = conversion.module is not None or settings.get("rotary") is not None
    table = library.positions in tensors or not bare
    rows = conversion.shape(library.positions, 3)[1] if table else 0
    if image_size is None:
        # The count of positions tells the image only if patches are squares, too.
        image_size = round(max(rows - class_token, 0) ** 0.5) * patch[0]
    height, width = conversion.attempt(height_and_width, "image_size", image_size)
    grid = (height // patch[0], width // patch[1])
    cells = grid[0] * grid[1]
    class_position = class_token and (rows != cells or not table)
    if registers and rows == cells + class_token + registers:
        raise conversion.other("this one has positions of register tokens")
    wanted = cells + class_position if table else 0
    if height % patch[0] or width % patch[1] or rows != wanted:
        raise conversion.other(
            f"an image of {height}×{width} pixels has {grid[0]}×{grid[1]} whole "
            f"patches of {patch[0]}×{patch[1]}, and must have nothing else; "
            f"{library.positions!r} has {rows - class_position} positions of patches"
        )
    norm = first + library.parts["attention_norm"]
    if conversion.module is None and f"{norm}bias" not in tensors:
        raise conversion.other(
            f"there is no {norm}bias: this may be an RMS norm, which only the module "
            "tells"
        )
    hidden = f"{first}{library.parts['feed_forward.output_proj']}weight"
    head = f"{library.head}weight"
    # Timm leaves out the bias of patches where a norm follows.
    embedding_norm = f"{library.embedding_norm}weight" in tensors
    sizes: dict[str, Any] = {
        "num_classes": conversion.shape(head, 2)[0] if head in tensors else None,
        "dim": dim,
        "hidden_dim": conversion.shape(hidden, 2)[1],
        "channels": channels,
        "class_token": class_token,
        "bias": _biases(conversion, first, library),
        "registers": registers,
        "class_position": class_position or not class_token,
        "patch_bias": f"{library.patches}bias" in tensors or not embedding_norm,
        "embedding_norm": embedding_norm,
        "positions": "learned" if table else "none",
    }
    has_norm = f"{library.final_norm}weight" in tensors
    if has_norm == (settings.get("pooler") == "norm"):
        sizes["final_norm"] = has_norm
    if first + library.vectors.get("attention_scale.weight", "none") in tensors:
        # It was the factors' first value, which weights do not tell and nobody needs.
        sizes["layer_scale"] = 1e-5
    if f"{first}{library.parts.get('attention.query_norm', 'none')}weight" in tensors:
        sizes["qk_norm"] = "layer"
    if settings.get("pool") == "attention":
        network = f"{library.pooling['feed_forward.hidden_proj']}weight"
        sizes["pool_hidden_dim"] = conversion.shape(network, 2)[0]

    def build(depth: int) -> VisionTransformer:
        options = {**sizes, **settings, **conversion.factory}
        return VisionTransformer((height, width), patch, depth=depth, **options)

    depth = conversion.depth(library.layers)
    modules = {
        "patch_embedding.proj": library.patches,
        "embedding_norm": library.embedding_norm,
        "pooler": library.pooler,
        "pooler.0": library.pooler,
        "encoder.final_norm": library.final_norm,
        "head": library.head,
    }
    pooling = dict(library.pooling)
    names = {
        "class_token": library.class_token,
        "registers": library.registers,
        "class_position": library.positions,
        "positions.weight": library.positions,
        "attention_pooling.probe": pooling.pop("probe", "none"),
        **with_parameters(modules),
        **with_parameters({f"attention_pooling.{x}": y for x, y in pooling.items()}),
        **names_of_layers(depth, library.layers, library.parts),
        **{
            f"encoder.layers.{i}.{ours}": f"{library.layers}{i}.{theirs}"
            for i in range(depth)
            for ours, theirs in library.vectors.items()
        },
    }
    shapes: dict[str, tuple[int, ...]] = {f"{library.patches}weight": kernel}
    if table:
        shapes[library.positions] = (1, rows, dim)
    if class_token:
        shapes[library.class_token] = (1, 1, dim)
    if registers:
        shapes[library.registers] = (1, registers, dim)
    if "pool_hidden_dim" in sizes:
        shapes[library.pooling["probe"]] = (1, 1, dim)
    return conversion.convert(
        build,
        depth,
        names,
        compare,
        shapes=shapes,
        # Angles of other libraries are in 32 bits, whatever the model is in.
        single=settings.get("rotary") is not None,
    )


def names_of_layers(depth: int, layers: str, parts: dict[str, str]) -> dict[str, str]:
    """Return another library's names of the tensors of all layers, by ours."""
    return with_parameters(
        {
            f"encoder.layers.{i}.{ours}": f"{layers}{i}.{theirs}"
            for i in range(depth)
            for ours, theirs in parts.items()
        }
    )


def _biases(
    conversion: Conversion, layer: str, library: Library
) -> bool | tuple[str, ...]:
    """Read from the first layer which parts have biases."""
    ours = {name: f"attention.{name}_proj" for name in BIASED[:4]}
    ours |= {"feed_forward": "feed_forward.hidden_proj", "norm": "attention_norm"}
    found = tuple(
        name
        for name, part in ours.items()
        if layer + library.vectors.get(f"{part}.bias", f"{library.parts[part]}bias")
        in conversion.tensors
    )
    return True if found == BIASED else found
