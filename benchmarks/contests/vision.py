"""Vision Transformers against the four libraries that people use."""

import re
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from einops import rearrange
from measuring import Pair, Row, forward, training_step
from torch import Tensor, nn

from transformers_hw import VisionTransformer
from transformers_hw.pretrained import (
    vision_transformer_from_huggingface,
    vision_transformer_from_timm,
    vision_transformer_from_torchvision,
)

# Picture, patch, width, depth, heads, hidden layer, batch.
MODELS = {
    "ViT-Ti/16": (224, 16, 192, 12, 3, 768, 8),
    "ViT-S/16": (224, 16, 384, 12, 6, 1536, 4),
    "ViT-B/16": (224, 16, 768, 12, 12, 3072, 2),
    "CIFAR ViT": (32, 4, 192, 6, 3, 768, 32),
}
CLASSES = 10
Sizes = tuple[int, int, int, int, int, int, int]


def rows() -> Iterator[Row]:
    """Give all comparisons."""
    for name, sizes in MODELS.items():
        what = f"{name}, {sizes[0]} × {sizes[0]}, batch {sizes[-1]}"
        for peer in PEERS:
            quick = name == "CIFAR ViT" and peer in ("timm", "torchvision")
            for mode in ("forward", "training step"):
                build = _models(peer, sizes, mode)
                yield Row("Vision Transformer", what, peer, mode, build, quick)


def forward_flops(sizes: Sizes) -> float:
    """Count the operations of a forward pass, a multiplication and addition as two.

    In the last layer all tokens have keys and values, and only the class token asks.
    """
    picture, patch, dim, depth, _, hidden, batch = sizes
    cells = (picture // patch) ** 2
    tokens = cells + 1

    def layer(asking: int) -> int:
        by_token = 2 * dim**2 + 2 * dim * hidden + 2 * tokens * dim
        return 2 * tokens * dim**2 + asking * by_token

    layers = (depth - 1) * layer(tokens) + layer(1)
    patches = cells * 3 * patch**2 * dim
    return 2.0 * batch * (layers + patches + dim * CLASSES)


def _models(peer: str, sizes: Sizes, mode: str) -> Callable[[], Pair]:
    def build() -> Pair:
        theirs, ours = PEERS[peer](sizes)
        pictures = torch.randn(sizes[-1], 3, sizes[0], sizes[0])
        if mode == "forward":
            return Pair(
                forward(ours, pictures),
                forward(theirs, pictures),
                unit="pictures",
                count=sizes[-1],
            )
        labels = torch.randint(CLASSES, (sizes[-1],))

        def loss(logits: Tensor) -> Tensor:
            return F.cross_entropy(logits, labels)

        return Pair(
            training_step(ours, loss, pictures),
            training_step(theirs, loss, pictures),
            unit="pictures",
            count=sizes[-1],
        )

    return build


def _torchvision(sizes: Sizes) -> tuple[nn.Module, VisionTransformer]:
    from torchvision.models import VisionTransformer as Theirs

    picture, patch, dim, depth, heads, hidden, _ = sizes
    theirs = Theirs(
        picture, patch, depth, heads, dim, hidden, num_classes=CLASSES, dropout=0.0
    )
    nn.init.normal_(theirs.heads.head.weight, std=0.02)
    weights = theirs.state_dict()
    return theirs, vision_transformer_from_torchvision(weights, heads=heads)


def _timm(sizes: Sizes) -> tuple[nn.Module, VisionTransformer]:
    from timm.models.vision_transformer import VisionTransformer as Theirs

    picture, patch, dim, depth, heads, hidden, _ = sizes
    theirs = Theirs(
        img_size=picture,
        patch_size=patch,
        num_classes=CLASSES,
        embed_dim=dim,
        depth=depth,
        num_heads=heads,
        mlp_ratio=hidden / dim,
    )
    nn.init.normal_(theirs.head.weight, std=0.02)
    weights = theirs.state_dict()
    return theirs, vision_transformer_from_timm(weights, heads=heads)


def _hugging_face(sizes: Sizes) -> tuple[nn.Module, VisionTransformer]:
    from transformers import ViTConfig, ViTForImageClassification

    picture, patch, dim, depth, heads, hidden, _ = sizes
    config = ViTConfig(
        image_size=picture,
        patch_size=patch,
        num_labels=CLASSES,
        hidden_size=dim,
        num_hidden_layers=depth,
        num_attention_heads=heads,
        intermediate_size=hidden,
        attn_implementation="sdpa",
    )
    theirs = ViTForImageClassification(config)
    weights = theirs.state_dict()
    return theirs, vision_transformer_from_huggingface(weights, heads=heads)


def _vit_pytorch(sizes: Sizes) -> tuple[nn.Module, VisionTransformer]:
    from vit_pytorch import ViT  # type: ignore[import-not-found]

    picture, patch, dim, depth, heads, hidden, _ = sizes
    theirs = ViT(
        image_size=picture,
        patch_size=patch,
        num_classes=CLASSES,
        dim=dim,
        depth=depth,
        heads=heads,
        mlp_dim=hidden,
        dim_head=dim // heads,
    )
    # It normalises patches before and after embedding them, as no other library does.
    # Without that, both do the same work.
    embedding = theirs.to_patch_embedding
    embedding[1] = embedding[3] = nn.Identity()
    ours = VisionTransformer(
        picture,
        patch,
        classes=CLASSES,
        dim=dim,
        depth=depth,
        heads=heads,
        hidden_dim=hidden,
        eps=1e-5,
    )
    for name, module in ours.named_modules():
        # Where theirs have no bias, ours have none, either.
        if name.endswith(("query_proj", "key_proj", "value_proj")):
            module.register_parameter("bias", None)
    ours.load_state_dict(_from_vit_pytorch(theirs.state_dict(), patch))
    return theirs, ours


NAMES = {
    r"to_patch_embedding\.2": "patch_embedding.proj",
    r"mlp_head": "head",
    r"transformer\.norm": "encoder.final_norm",
    r"transformer\.layers\.(\d+)\.0\.norm": r"encoder.layers.\1.attention_norm",
    r"transformer\.layers\.(\d+)\.0\.to_out\.0": (
        r"encoder.layers.\1.attention.output_proj"
    ),
    r"transformer\.layers\.(\d+)\.1\.net\.0": r"encoder.layers.\1.feed_forward_norm",
    r"transformer\.layers\.(\d+)\.1\.net\.1": (
        r"encoder.layers.\1.feed_forward.hidden_proj"
    ),
    r"transformer\.layers\.(\d+)\.1\.net\.4": (
        r"encoder.layers.\1.feed_forward.output_proj"
    ),
}


def _from_vit_pytorch(theirs: dict[str, Tensor], patch: int) -> dict[str, Tensor]:
    """Give vit-pytorch's weights under our names."""
    table = theirs.pop("pos_embedding")
    ours = {"class_token": theirs.pop("cls_token")[0], "class_position": table[0]}
    ours["positions.cells.table"] = table[1:]
    for name, x in theirs.items():
        if packed := re.fullmatch(
            r"transformer\.layers\.(\d+)\.0\.to_qkv\.weight", name
        ):
            layer = f"encoder.layers.{packed[1]}.attention"
            for part, weight in zip(("query", "key", "value"), x.chunk(3), strict=True):
                ours[f"{layer}.{part}_proj.weight"] = weight
            continue
        for old, new in NAMES.items():
            name, renamed = re.subn(f"^{old}", new, name)
            if renamed:
                break
        ours[name] = x
    kernel = ours["patch_embedding.proj.weight"]
    axes = "d (i j c) -> d (c i j)"
    ours["patch_embedding.proj.weight"] = rearrange(kernel, axes, i=patch, j=patch)
    return ours


PEERS = {
    "torchvision": _torchvision,
    "timm": _timm,
    "vit-pytorch": _vit_pytorch,
    "Hugging Face": _hugging_face,
}
