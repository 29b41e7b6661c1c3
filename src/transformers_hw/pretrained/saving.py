"""Save models with their settings, in files that contain no code."""

import json
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import torch
from torch import nn

from transformers_hw._engine.files import atomic_write
from transformers_hw._engine.shapes import checked
from transformers_hw.attention_as_convolution.image_bert import ImageBert
from transformers_hw.multi_head_attention import MultiHeadAttention
from transformers_hw.pretrained.conversion import (
    layered_shapes,
    shapes_of,
    with_own_code,
)
from transformers_hw.pretrained.weights import (
    FLOATS,
    WeightsError,
    WeightsFile,
    import_safetensors,
    listed,
    printable,
    shown,
)
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
from transformers_hw.vision_transformer import VisionTransformer

# Where in a file's header the settings are, and the version of their format.
HEADER, FORMAT = "transformers_hw", 2
# What a file may ask to be built, by name. Each has a frozen dataclass of plain values
# as its `config`, whose fields are arguments of its constructor.
MODELS: dict[str, type[nn.Module]] = {
    model.__name__: model
    for model in (
        VisionTransformer,
        Transformer,
        Bert,
        LanguageModel,
        Seq2Seq,
        ImageBert,
        Encoder,
        Decoder,
        EncoderLayer,
        DecoderLayer,
        MultiHeadAttention,
    )
}


@checked
def save_model(model: nn.Module, path: str | Path) -> Path:
    """Write a model's weights and settings into one safetensors file.

    Such a file contains no code. It is written whole or not at all: what stood there
    before stays until then.

    Args:
        model: A model of the book, such as a `VisionTransformer`, whose parts are as
            its constructor made them.
        path: File to write; its name ends in `.safetensors`.

    Returns:
        The path.

    Raises:
        TypeError: If `model` is not one of the book's, or a setting is of another type
            than its config declares.
        ValueError: If parts were replaced or changed, so that the settings no longer
            describe the model, or have hooks or a forward of their own; if its weights
            have several dtypes or are on `meta`, if a setting does not fit into 64
            bits, or if `path` ends otherwise.
        RuntimeError: If two weights share memory that the settings do not tie.
        OSError: If the file cannot be written.

    Examples:
        >>> import tempfile
        >>> model = Bert(100, dim=12, depth=1, heads=3).eval()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     same = load_model(save_model(model, f"{folder}/bert.safetensors"))
        >>> tokens = torch.tensor([[1, 2, 3]])
        >>> torch.equal(model(tokens), same(tokens))
        True
    """
    safetensors = import_safetensors()
    path = Path(path)
    if path.suffix != ".safetensors" or "\0" in str(path):
        raise ValueError(
            "path must end in .safetensors, and contain no null character, got "
            f"{shown(path)}."
        )
    name, config = type(model).__name__, getattr(model, "config", None)
    if MODELS.get(name) is not type(model) or not is_dataclass(config):
        raise TypeError(f"model must be one of {', '.join(MODELS)}, got {name}.")
    settings = asdict(config)  # type: ignore[arg-type]
    check_described(model, _build(name, settings))
    tensors = {name: x.detach().contiguous() for name, x in model.state_dict().items()}
    if wrong := _of_another_dtype(tensors):
        raise ValueError(f"weights must have one dtype, got {listed(wrong)}.")
    if away := [name for name, x in tensors.items() if x.is_meta]:
        raise ValueError(f"weights must be in memory, got on meta: {listed(away)}.")
    saved = {"format": FORMAT, "model": name, "config": settings}
    header = {"format": "pt", HEADER: json.dumps(saved)}
    content = safetensors.torch.save(tensors, header)
    with atomic_write(path) as temporary:
        temporary.write_bytes(content)
    return path


@checked
def load_model(path: str | Path) -> nn.Module:
    """Build a model from a file that `save_model` wrote.

    A file from a stranger can cost no more than its own size: nothing is built for its
    claims before its header was compared with them.

    Args:
        path: The file.

    Returns:
        The model with its weights, in evaluation mode.

    Raises:
        WeightsError: If the file is missing or damaged, or contains something else.
    """
    with WeightsFile(path) as file:
        name, settings = _read_header(file)
        depth = settings.get("depth", 1)

        def build(layers: int) -> nn.Module:
            changed = {"depth": layers} if "depth" in settings else {}
            return _build(name, {**settings, **changed})

        try:
            wanted = layered_shapes(build, depth, len(file.shapes))
        except (ArithmeticError, RuntimeError, TypeError, ValueError) as error:
            raise WeightsError(
                f"{path} does not describe a model: {printable(error)}"
            ) from error
        if wanted != file.shapes:
            differing = sorted(dict(wanted.items() ^ file.shapes.items()))
            raise WeightsError(
                f"{path} must hold the weights that its settings ask for; they differ "
                f"in {listed(differing)}."
            )
        weights = file.tensors()
    if wrong := _of_another_dtype(weights):
        raise WeightsError(
            f"{path} must hold floating-point numbers of one dtype, got "
            f"{listed(wrong)}."
        )
    model = build(depth)
    model.load_state_dict(weights, assign=True)
    return model.eval()


def check_described(model: nn.Module, described: nn.Module) -> None:
    """Raise unless a model is as its config describes it.

    Args:
        model: The model, whose class may be a subclass.
        described: What its config builds, on the meta device.
    """
    kind = type(model).__name__
    if own := with_own_code(model):
        raise ValueError(
            f"the {kind} must have no hooks and no forward of its own, which its "
            f"config does not describe: remove them first from {listed(own)}."
        )
    how, which = "replaced", _replaced(model, described)
    if not which:
        how, which = "changed", _changed(model, described)
    if which:
        hint = (
            " Replace a head with reset_head(num_classes), which the config records."
            if hasattr(model, "reset_head")
            else ""
        )
        raise ValueError(
            f"the parts of the {kind} must be those that its config describes, but "
            f"some were {how}: {listed(which)}.{hint}"
        )


def _build(name: str, settings: dict[str, Any]) -> nn.Module:
    """Build a model without memory; raise unless its settings are as declared."""
    with torch.device("meta"):
        model = MODELS[name](**{**settings, "device": "meta"})
    config: Any = model.config
    for field in fields(config):
        value, kind = getattr(config, field.name), field.type
        if not _is_a(kind, value):
            wanted = kind.__name__ if isinstance(kind, type) else kind
            raise TypeError(f"{field.name} must be of type {wanted}, got {value!r}.")
        if isinstance(value, int) and abs(value) >= 2**63:
            raise ValueError(f"{field.name} must fit into 64 bits, got {value}.")
    if unknown := settings.keys() - {field.name for field in fields(config)}:
        raise TypeError(f"a {name} has no settings {listed(sorted(unknown))}.")
    return model


def _is_a(kind: Any, value: object) -> bool:
    """Tell whether a value is of an annotated type."""
    origin, args = get_origin(kind) or kind, get_args(kind)
    if origin in (Union, UnionType):
        return any(_is_a(one, value) for one in args)
    if origin is Literal:
        return value in args
    if isinstance(value, bool):  # not an int here
        return origin is bool
    wider = {float: (float, int), tuple: (tuple, list)}
    return isinstance(value, wider.get(origin, origin))


def _read_header(file: WeightsFile) -> tuple[str, dict[str, Any]]:
    """Return the name of the model and its settings."""
    try:
        saved = json.loads(file.metadata[HEADER])
        version, name = saved["format"], saved["model"]
        # JSON has no tuples.
        settings = {
            key: tuple(x) if isinstance(x, list) else x
            for key, x in dict(saved["config"]).items()
        }
    except (KeyError, RecursionError, TypeError, ValueError) as error:
        raise WeightsError(
            f"{file.path} must be a file that save_model wrote."
        ) from error
    if version != FORMAT:
        raise WeightsError(
            f"{file.path} must be of format {FORMAT}, which this version of the "
            f"package reads, got {printable(repr(version), 80)}."
        )
    if not isinstance(name, str) or name not in MODELS:
        raise WeightsError(
            f"{file.path} must be of one of {', '.join(MODELS)}, got "
            f"{printable(repr(name), 80)}."
        )
    return name, settings


def _of_another_dtype(tensors: dict[str, torch.Tensor]) -> list[str]:
    """List the tensors that are not of the first one's dtype, or no floats."""
    first = next((x.dtype for x in tensors.values()), None)
    return [
        f"{name} {x.dtype}"
        for name, x in tensors.items()
        if x.dtype not in FLOATS or x.dtype != first
    ]


def _changed(model: nn.Module, described: nn.Module) -> list[str]:
    """List the parts of another class, or with other attributes, than described."""
    kind = type(model).__name__
    found = dict(model.named_modules(remove_duplicate=False))
    wanted = dict(described.named_modules(remove_duplicate=False))
    if found.keys() != wanted.keys() or shapes_of(model) != shapes_of(described):
        return [kind]

    def plain(part: nn.Module) -> dict[str, str]:
        return {
            name: repr(x)
            for name, x in vars(part).items()
            if name[0] != "_" and name != "training"
        }

    return [
        name or kind
        for name, part in found.items()
        if (name and type(part) is not type(wanted[name]))
        or not plain(wanted[name]).items() <= plain(part).items()
    ]


def _replaced(model: nn.Module, described: nn.Module) -> list[str]:
    """List the parts directly below a model that are not as described."""
    parts = dict(described.named_children())
    return [
        name
        for name, part in model.named_children()
        if name not in parts
        or repr(part) != repr(parts[name])
        or shapes_of(part) != shapes_of(parts[name])
    ]
