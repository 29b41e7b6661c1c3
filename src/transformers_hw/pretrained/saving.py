"""Save models with their settings, in files that contain no code."""

import json
from dataclasses import asdict, is_dataclass
from pathlib import Path

import torch
from torch import nn

from transformers_hw._engine.files import atomic_write
from transformers_hw.attention_as_convolution.image_bert import ImageBert
from transformers_hw.pretrained.weights import (
    FLOATS,
    WeightsError,
    import_safetensors,
    listed,
    read_weights,
)
from transformers_hw.seq2seq import Seq2Seq
from transformers_hw.transformer import (
    Bert,
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
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
        Seq2Seq,
        ImageBert,
        Encoder,
        Decoder,
        EncoderLayer,
        DecoderLayer,
    )
}


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
        TypeError: If `model` is not one of the book's.
        ValueError: If parts were replaced, so that the settings no longer describe the
            model, or if `path` ends otherwise.
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
    if path.suffix != ".safetensors":
        raise ValueError(f"path must end in .safetensors, got {path}.")
    name, config = type(model).__name__, getattr(model, "config", None)
    if MODELS.get(name) is not type(model) or not is_dataclass(config):
        raise TypeError(f"model must be one of {', '.join(MODELS)}, got {name}.")
    settings = asdict(config)  # type: ignore[arg-type]
    with torch.device("meta"):
        described = MODELS[name](**settings)
    if repr(described) != repr(model) or _shapes(described) != _shapes(model):
        raise ValueError(
            f"the parts of the {name} must be those that its config describes, but "
            "some were replaced."
        )
    saved = {"format": FORMAT, "model": name, "config": settings}
    header = {"format": "pt", HEADER: json.dumps(saved)}
    tensors = {name: x.detach().contiguous() for name, x in model.state_dict().items()}
    content = safetensors.torch.save(tensors, header)
    with atomic_write(path) as temporary:
        temporary.write_bytes(content)
    return path


def load_model(path: str | Path) -> nn.Module:
    """Build a model from a file that `save_model` wrote.

    Args:
        path: The file.

    Returns:
        The model with its weights, in evaluation mode.

    Raises:
        WeightsError: If the file is missing or damaged, or contains something else.
    """
    weights = read_weights(path)
    with import_safetensors().safe_open(path, "pt") as file:
        header = file.metadata() or {}
    try:
        saved = json.loads(header[HEADER])
        version, name, settings = saved["format"], saved["model"], saved["config"]
    except (KeyError, RecursionError, TypeError, ValueError) as error:
        raise WeightsError(f"{path} must be a file that save_model wrote.") from error
    if version != FORMAT:
        raise WeightsError(
            f"{path} must be of format {FORMAT}, which this version of the package "
            f"reads, got {version!r}."
        )
    if not isinstance(name, str) or name not in MODELS:
        raise WeightsError(
            f"{path} must be of one of {', '.join(MODELS)}, got {name!r}."
        )
    try:
        # JSON has no tuples.
        settings = {
            key: tuple(x) if isinstance(x, list) else x
            for key, x in dict(settings).items()
        }
        # A false claim must cost neither memory nor time: every layer has tensors.
        if isinstance(depth := settings.get("depth"), int) and depth > len(weights):
            raise ValueError(f"there are {len(weights)} tensors for {depth} layers")
        with torch.device("meta"):
            model = MODELS[name](**{**settings, "device": "meta"})
    except (RuntimeError, TypeError, ValueError) as error:
        raise WeightsError(f"{path} does not describe a model: {error}") from error
    wanted, found = _shapes(model), {n: tuple(x.shape) for n, x in weights.items()}
    if wanted != found:
        differing = sorted(dict(wanted.items() ^ found.items()))
        raise WeightsError(
            f"{path} must hold the weights that its settings ask for; they differ in "
            f"{listed(differing)}."
        )
    wrong = [f"{n} {x.dtype}" for n, x in weights.items() if x.dtype not in FLOATS]
    if wrong:
        raise WeightsError(
            f"{path} must hold floating-point numbers, got {listed(wrong)}."
        )
    model.load_state_dict(weights, assign=True)
    return model.eval()


def _shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(x.shape) for name, x in model.state_dict().items()}
