"""Vision Transformers against those of four libraries."""

import math
import re
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from einops import rearrange
from measuring import Pair, Row, forward, training_step
from torch import Tensor, nn

from transformers_hw import VisionTransformer
from transformers_hw.pretrained import (
    from_huggingface,
    from_timm,
    from_torchvision,
)

# Image size, patch size, dim, depth, heads, hidden dim, batch.
MODELS = {
    "ViT-Ti/16": (224, 16, 192, 12, 3, 768, 8),
    "ViT-S/16": (224, 16, 384, 12, 6, 1536, 4),
    "ViT-B/16": (224, 16, 768, 12, 12, 3072, 2),
    "CIFAR ViT": (32, 4, 192, 6, 3, 768, 32),
}
CLASSES = 10
Sizes = tuple[int, int, int, int, int, int, int]


def rows() -> Iterator[Row]:
    """Yield all comparisons."""
    for name, sizes in MODELS.items():
        if name == "ViT-S/16":
            continue  # between the other two; only its share of the GEMM rate is shown
        case = f"{name}, {sizes[0]} × {sizes[0]}, batch {sizes[-1]}"
        for peer in PEERS:
            quick = name == "CIFAR ViT" and peer in ("timm", "torchvision")
            for mode in ("forward", "training_step"):
                build = _models(peer, sizes, mode)
                yield Row("vision_transformer", case, peer, mode, build, quick)


def forward_flops(sizes: Sizes) -> float:
    """Count the floating-point operations in the matrix products of a forward pass."""
    image, patch, dim, depth, _, hidden, batch = sizes
    patches = (image // patch) ** 2
    tokens = patches + 1
    layer = tokens * (4 * dim**2 + 2 * dim * hidden + 2 * tokens * dim)
    embedding = patches * 3 * patch**2 * dim
    return 2.0 * batch * (depth * layer + embedding + dim * CLASSES)


def _models(peer: str, sizes: Sizes, mode: str) -> Callable[[], Pair]:
    def build() -> Pair:
        theirs, ours = PEERS[peer](sizes)
        images = torch.randn(sizes[-1], 3, sizes[0], sizes[0])
        rate = {"unit": "images", "count": sizes[-1]}
        if mode == "forward":
            return Pair(forward(ours, images), forward(theirs, images), **rate)
        labels = torch.randint(CLASSES, (sizes[-1],))

        def loss(logits: Tensor) -> Tensor:
            return F.cross_entropy(logits, labels)

        return Pair(
            training_step(ours, loss, images),
            training_step(theirs, loss, images),
            **rate,
        )

    return build


def _torchvision(sizes: Sizes) -> tuple[nn.Module, VisionTransformer]:
    from torchvision.models import VisionTransformer as Theirs

    image, patch, dim, depth, heads, hidden, _ = sizes
    theirs = Theirs(
        image, patch, depth, heads, dim, hidden, num_classes=CLASSES, dropout=0.0
    )
    nn.init.normal_(theirs.heads.head.weight, std=0.02)
    return theirs, from_torchvision(theirs)


def _timm(sizes: Sizes) -> tuple[nn.Module, VisionTransformer]:
    from timm.models.vision_transformer import VisionTransformer as Theirs

    image, patch, dim, depth, heads, hidden, _ = sizes
    theirs = Theirs(
        img_size=image,
        patch_size=patch,
        num_classes=CLASSES,
        embed_dim=dim,
        depth=depth,
        num_heads=heads,
        mlp_ratio=hidden / dim,
    )
    nn.init.normal_(theirs.head.weight, std=0.02)
    return theirs, from_timm(theirs)


def _hugging_face(sizes: Sizes) -> tuple[nn.Module, VisionTransformer]:
    from transformers import ViTConfig, ViTForImageClassification

    image, patch, dim, depth, heads, hidden, _ = sizes
    config = ViTConfig(
        image_size=image,
        patch_size=patch,
        num_labels=CLASSES,
        hidden_size=dim,
        num_hidden_layers=depth,
        num_attention_heads=heads,
        intermediate_size=hidden,
        attn_implementation="sdpa",
    )
    theirs = ViTForImageClassification(config)
    return theirs, from_huggingface(theirs)


def _vit_pytorch(sizes: Sizes) -> tuple[nn.Module, VisionTransformer]:
    from vit_pytorch import ViT  # type: ignore[import-not-found]

    image, patch, dim, depth, heads, hidden, _ = sizes
    theirs = ViT(
        image_size=image,
        patch_size=patch,
        num_classes=CLASSES,
        dim=dim,
        depth=depth,
        heads=heads,
        mlp_dim=hidden,
        dim_head=dim // heads,
    )
    # Unlike the others, it applies layer norms before and after the patch embedding;
    # without them, both do the same work.
    embedding = theirs.to_patch_embedding
    embedding[1] = embedding[3] = nn.Identity()
    ours = VisionTransformer(
        image,
        patch,
        num_classes=CLASSES,
        dim=dim,
        depth=depth,
        heads=heads,
        hidden_dim=hidden,
        eps=1e-5,
        # Like theirs, without biases of queries, keys and values.
        bias=("output", "feed_forward", "norm"),
    )
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
    """Return vit-pytorch's weights under our names."""
    table = theirs.pop("pos_embedding")
    rows = math.isqrt(len(table) - 1)
    ours = {"class_token": theirs.pop("cls_token")[0], "class_position": table[0]}
    # As a grid: one embedding per row and column of patches.
    ours["positions.weight"] = rearrange(table[1:], "(r c) d -> r c d", r=rows)
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
