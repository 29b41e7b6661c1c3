"""Vision Transformers of torchvision and timm."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from transformers_hw._engine.arguments import height_and_width
from transformers_hw._engine.shapes import checked
from transformers_hw.pretrained.conversion import (
    Conversion,
    eps_of,
    name_of_activation,
    shared,
    with_parameters,
)
from transformers_hw.pretrained.verification import Compare, Draw
from transformers_hw.pretrained.weights import Weights, WeightsError
from transformers_hw.transformer.config import BIASED
from transformers_hw.vision_transformer import Pool, Size, VisionTransformer


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
    """

    patches: str
    positions: str
    class_token: str
    layers: str
    parts: dict[str, str]
    final_norm: str
    pooler: str
    head: str


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
        "attention_norm": "norm1.",
        "feed_forward.hidden_proj": "mlp.fc1.",
        "feed_forward.output_proj": "mlp.fc2.",
        "feed_forward_norm": "norm2.",
    },
    final_norm="norm.",
    pooler="fc_norm.",
    head="head.",
)
# What timm's other models have, and this book's does not, by parts of names.
TIMM_OTHERS = {
    "reg_token": "register tokens",
    "dist_token": "a distillation token",
    ".ls1.": "layer scale",
    ".gamma_1": "layer scale",
    "q_norm.": "normalized queries and keys",
    "q_bias": "biases of queries and values apart from their weights",
    "rel_pos": "relative positions",
    "relative_position": "relative positions",
    "norm_pre.": "a layer norm before the first layer",
    ".attn.norm.": "a layer norm within attention",
    "attn_pool.": "attention pooling",
    "patch_embed.backbone.": "a convolutional network before the first layer",
}
TIMM_POOLS: dict[str, Pool] = {"token": "class", "avg": "mean"}


@checked
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


@checked
def from_timm(
    source: nn.Module | Weights,
    *,
    heads: int | None = None,
    eps: float | None = None,
    activation: str | None = None,
    norm: str | None = None,
    pool: str | None = None,
    image_size: Size | None = None,
) -> VisionTransformer:
    """Convert one of timm's plain Vision Transformers, such as `vit_base_patch16_224`.

    A module is compared with the converted model before that is returned: both get one
    small random image.

    For images of another size, timm and this book resample positions with different
    bicubic kernels. So a model made with `dynamic_img_size=True` is refused; for
    another size, call timm's `set_input_size` first and convert then.

    Args:
        source: The module, which tells its own settings; or its state dict, or a
            safetensors file of it, which do not: they need all of the others.
        heads: Number of heads.
        eps: Epsilon of the layer norms, $10^{-6}$ in most of timm's.
        activation: Activation of the feed-forward networks: `"gelu"` in most of
            timm's, `"gelu_tanh"` in those with `siglip` in their names.
        norm: Where the layer norms stand: `"pre"`. Models with `rpn` in their names,
            whose norms stand elsewhere, have the same names of weights.
        pool: What the head sees, timm's `global_pool`: `"class"`, or `"mean"` for
            that of the patches.
        image_size: Height and width of the images; one number for a square.

    Returns:
        A model with the same logits, or without a head with the same features, in
        evaluation mode.

    Raises:
        TypeError: If a setting is missing, or is given with a module.
        WeightsError: If these are other weights, such as those of a model with
            register tokens, layer scale or normalized queries; or if the module
            computes something else than the converted model would.
    """
    conversion = Conversion(source, "a plain Vision Transformer of timm")
    tensors = conversion.tensors
    for part, what in TIMM_OTHERS.items():
        name = next((name for name in tensors if part in name), None)
        if name is not None:
            raise conversion.other(f"this one has {what} ({part.strip('.')!r})")
    settings = conversion.settings(
        _read_timm,
        heads=heads,
        eps=eps,
        activation=activation,
        norm=norm,
        pool=pool,
        image_size=image_size,
    )
    size = settings.pop("image_size")
    if settings["norm"] != "pre":
        raise conversion.other(f"norm must be 'pre', got {settings['norm']!r}")
    settings["pooler"] = "norm" if "fc_norm.weight" in tensors else None
    return vision_transformer(conversion, TIMM, settings, size, one_image)


def _read_timm(module: Any) -> dict[str, Any]:
    layers = list(module.blocks)
    kind = shared("type", (type(layer).__name__ for layer in layers))
    if kind != "Block":
        raise WeightsError(
            "layers must be timm's Block, with norms before attention and network, "
            f"got {kind}."
        )
    if module.global_pool not in TIMM_POOLS:
        raise WeightsError(
            f"global_pool must be one of {', '.join(TIMM_POOLS)}, got "
            f"{module.global_pool!r}."
        )
    for flag, what in {
        "dynamic_img_size": "it resamples positions with another bicubic kernel",
        "no_embed_class": "the class token must have a position",
        "pool_include_prefix": "the mean must be that of the patches",
    }.items():
        if getattr(module, flag):
            raise WeightsError(f"{flag} must be False, got True: {what}.")
    norms = [norm for layer in layers for norm in (layer.norm1, layer.norm2)]
    last = (module.norm, module.fc_norm)
    norms += [norm for norm in last if not isinstance(norm, nn.Identity)]
    return {
        "heads": shared("heads", (layer.attn.num_heads for layer in layers)),
        "eps": eps_of(norms),
        "activation": shared(
            "activation", (name_of_activation(layer.mlp.act) for layer in layers)
        ),
        "norm": "pre",
        "pool": TIMM_POOLS[module.global_pool],
        "image_size": module.patch_embed.img_size,
    }


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
    dim, channels, *_ = kernel
    patch = (kernel[2], kernel[3])
    class_token = library.class_token in tensors
    count = conversion.shape(library.positions, 3)[1] - class_token
    if image_size is None:
        # The count of positions tells the image only if patches are squares, too.
        image_size = round(max(count, 0) ** 0.5) * patch[0]
    height, width = conversion.attempt(height_and_width, "image_size", image_size)
    grid = (height // patch[0], width // patch[1])
    if height % patch[0] or width % patch[1] or grid[0] * grid[1] != count:
        raise conversion.other(
            f"an image of {height}×{width} pixels has {grid[0]}×{grid[1]} whole "
            f"patches of {patch[0]}×{patch[1]}, and must have nothing else; "
            f"{library.positions!r} has {count} positions of patches"
        )
    norm = first + library.parts["attention_norm"]
    if conversion.module is None and f"{norm}bias" not in tensors:
        raise conversion.other(
            f"there is no {norm}bias: this may be an RMS norm, which only the module "
            "tells"
        )
    hidden = f"{first}{library.parts['feed_forward.hidden_proj']}weight"
    head = f"{library.head}weight"
    sizes = {
        "num_classes": conversion.shape(head, 2)[0] if head in tensors else None,
        "dim": dim,
        "hidden_dim": conversion.shape(hidden, 2)[0],
        "channels": channels,
        "class_token": class_token,
        "bias": _biases(conversion, first, library.parts),
    }

    def build(depth: int) -> VisionTransformer:
        options = {**sizes, **settings, **conversion.factory}
        return VisionTransformer((height, width), patch, depth=depth, **options)

    depth = conversion.depth(library.layers)
    modules = {
        "patch_embedding.proj": library.patches,
        "pooler": library.pooler,
        "pooler.0": library.pooler,
        "encoder.final_norm": library.final_norm,
        "head": library.head,
    }
    names = {
        "class_token": library.class_token,
        "class_position": library.positions,
        "positions.weight": library.positions,
        **with_parameters(modules),
        **names_of_layers(depth, library.layers, library.parts),
    }
    shapes = {
        f"{library.patches}weight": kernel,
        library.positions: (1, class_token + count, dim),
    }
    if class_token:
        shapes[library.class_token] = (1, 1, dim)
    return conversion.convert(build, depth, names, compare, shapes=shapes)


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
