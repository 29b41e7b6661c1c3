"""Model summaries: parameters, operations, and output shapes, layer by layer."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from transformers_hw._engine.shapes import checked
from transformers_hw.attention_as_convolution import ImageBert
from transformers_hw.multi_head_attention import MultiHeadAttention
from transformers_hw.pretrained import load_model
from transformers_hw.seq2seq import Seq2Seq
from transformers_hw.transformer import (
    Bert,
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    LanguageModel,
    Transformer,
)
from transformers_hw.vision_transformer import SIZES, VisionTransformer

MODELS = {
    "transformer": lambda: Transformer(37_000),
    "bert": lambda: Bert(30_522, dim=768, depth=12, heads=12),
    "seq2seq": lambda: Seq2Seq(58, dim=64, hidden_dim=256, attention="additive"),
    "image-bert": ImageBert,
    "gpt-2": lambda: LanguageModel(50_257, dim=768, depth=12, heads=12),
}
ONE_SEQUENCE = Bert | Encoder | EncoderLayer | LanguageModel


@checked
def find_model(name: str) -> nn.Module:
    """Build a model by name, or load one from a file, to be summarized.

    Args:
        name: A published size of the Vision Transformer, a key of `MODELS`, in upper
            or lower case, or a file that `save_model` wrote.

    Returns:
        The model, on the meta device, where tensors have shapes but no entries.

    Raises:
        ValueError: If there is no such model.

    Examples:
        >>> find_model("vit-ti/16").head
        Linear(in_features=192, out_features=1000, bias=True)
    """
    if name.endswith(".safetensors"):
        return load_model(name).to("meta")
    size, _, patch_size = name.lower().removeprefix("vit-").partition("/")
    sizes = {known.lower(): known for known in SIZES}
    with torch.device("meta"):
        if name.lower().startswith("vit-"):
            preset = f"ViT-{sizes.get(size, size)}/{patch_size}"
            return VisionTransformer.from_preset(preset, num_classes=1000).eval()
        if name.lower() in MODELS:
            return MODELS[name.lower()]().eval()
    raise ValueError(
        f"model must be ViT-<size>/<patch size>, one of {', '.join(MODELS)}, or a "
        f".safetensors file, got {name!r}."
    )


@checked
def summarize(model: nn.Module, *, length: int = 128, depth: int = 3) -> str:
    """Return a table of a model's layers, with its parameters and operations.

    Args:
        model: A model of the book on the meta device, so that nothing is computed.
        length: Number of tokens, for a model that reads sequences.
        depth: Number of levels of submodules to show.

    Returns:
        One line for each submodule that is called or has parameters, and the totals.
    """
    shapes: dict[str, str] = {}

    def note(name: str) -> Any:
        def hook(_: nn.Module, given: Any, output: Any) -> None:
            shapes[name] = _shape(output[0] if isinstance(output, tuple) else output)

        return hook

    modules = {
        name: module
        for name, module in model.named_modules()
        if name and name.count(".") < depth
    }
    hooks = [
        module.register_forward_hook(note(name)) for name, module in modules.items()
    ]
    inputs = _inputs(model, length)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(*inputs)
    for hook in hooks:
        hook.remove()
    rows = [("name", "layer", "output", "parameters")]
    for name, module in modules.items():
        # Parameters can be read, or belong to another method, without a call here.
        if name in shapes or any(True for _ in module.parameters(recurse=False)):
            kind, size = type(module).__name__, f"{count_parameters(module):,}"
            rows.append((name, kind, shapes.get(name, "–"), size))
    operations = counter.get_total_flops()
    shape = " and ".join(_shape(x) for x in inputs)
    return _table(rows) + (
        f"{type(model).__name__}: {count_parameters(model):,} parameters.\n"
        f"For an input of {shape}: {operations:,} floating-point operations,\n"
        "where a multiplication and an addition count as two.\n"
    )


@checked
def count_parameters(module: nn.Module) -> int:
    """Return the number of a module's parameters."""
    return sum(x.numel() for x in module.parameters())


def _inputs(model: nn.Module, length: int) -> tuple[Tensor, ...]:
    if isinstance(model, VisionTransformer | ImageBert):
        # An image BERT takes images of any size; CIFAR-10 has 32 by 32 pixels.
        size = getattr(model.config, "image_size", (32, 32))
        return (_empty(model, 1, model.config.channels, *size),)
    if isinstance(model, MultiHeadAttention):
        widths = (model.dim, model.context_dim, model.values_dim)
        return tuple(_empty(model, 1, length, width) for width in widths)
    x = torch.empty(1, length, dtype=torch.int64, device="meta")
    if isinstance(model, Encoder | EncoderLayer | Decoder | DecoderLayer):
        x = _empty(model, 1, length, model.config.dim)
    return (x,) if isinstance(model, ONE_SEQUENCE) else (x, x)


def _empty(model: nn.Module, *shape: int) -> Tensor:
    return torch.empty(shape, device="meta", dtype=next(model.parameters()).dtype)


def _shape(x: Tensor) -> str:
    return " × ".join(map(str, x.shape))


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if cell[:1].isdigit() else cell.ljust(width)
            for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in rows
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines) + "\n"
