"""Models for `torch.hub`: those of the book to build, and a trained one.

torch.hub.load("path/to/this/folder", "trained_vit", source="local")
torch.hub.load("path/to/this/folder", "LanguageModel", 256, dim=64, heads=4,
depth=2, source="local")
"""

import sys
from pathlib import Path

dependencies = ["torch", "einops", "jaxtyping", "safetensors"]

_ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(_ROOT / "src"))
try:
    from transformers_hw import (  # noqa: F401
        Bert,
        LanguageModel,
        Seq2Seq,
        Transformer,
        VisionTransformer,
    )
    from transformers_hw.pretrained import load_model as _load_model
finally:
    sys.path.remove(str(_ROOT / "src"))


def trained_vit() -> VisionTransformer:
    """Load the Vision Transformer of chapter 7, trained on CIFAR-10.

    It takes images of 32×32 pixels, normalized as docs/assets/vit/vit.json says, and
    returns the logits of the ten classes.
    """
    return _load_model(_ROOT / "docs/assets/vit/vit.safetensors")  # type: ignore[return-value]


def vision_transformer(name: str = "ViT-B/16", **options: object) -> VisionTransformer:
    """Build a Vision Transformer of a published size, with fresh weights.

    Args:
        name: Size and patch, such as `"ViT-B/16"`.
        **options: Other keywords of `VisionTransformer.from_preset`.
    """
    return VisionTransformer.from_preset(name, **{"num_classes": 1000, **options})  # type: ignore[arg-type]
