"""Keep the book's models in files that anyone can read, and that run nothing."""

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from transformers_hw.attention_as_convolution.picture_bert import (
    LearnedRelativeSelfAttention,
    PictureBert,
)
from transformers_hw.positional_encoding import SinusoidalPositions
from transformers_hw.pretrained.weights import (
    FLOATS,
    WeightsError,
    _import_safetensors,
    _listed,
    read_weights,
)
from transformers_hw.seq2seq import Seq2Seq
from transformers_hw.transformer.bert import Bert
from transformers_hw.transformer.layers import EncoderLayer
from transformers_hw.transformer.model import Transformer
from transformers_hw.transformer.parts import LayerNorm
from transformers_hw.vision_transformer import VisionTransformer

# Where in the file's header the settings stand, and in which version of them.
HEADER, FORMAT = "transformers_hw", 1


def save_model(model: nn.Module, path: str | Path) -> Path:
    """Write a model's weights, and the settings to build it with, into one file.

    It is a safetensors file, which cannot run code, with the settings in its header.
    It is written whole or not at all: what stood there before stays until then.

    Args:
        model: A `VisionTransformer`, `Transformer`, `Bert`, `Seq2Seq` or
            `PictureBert`, as its constructor made it.
        path: Where to; a name that ends in `.safetensors`.

    Returns:
        The path.

    Raises:
        TypeError: If it is no model of this book.
        ValueError: If its parts were replaced, or weights tied that its constructor
            does not tie, so that settings do not tell what it is; or if the file's
            name ends otherwise.
        OSError: If the file cannot be written.

    Examples:
        >>> model = Bert(100, dim=12, depth=1, heads=3).eval()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     same = load_model(save_model(model, f"{folder}/bert.safetensors"))
        >>> tokens = torch.tensor([[1, 2, 3]])
        >>> torch.equal(model(tokens), same(tokens))
        True
    """
    safetensors = _import_safetensors()
    path = Path(path)
    if path.suffix != ".safetensors":
        raise ValueError(f"path must end in .safetensors, got {path}.")
    settings = _settings(model)
    with torch.device("meta"):
        rebuilt = type(model)(**settings)
    if repr(rebuilt) != repr(model) or _shapes(rebuilt) != _shapes(model):
        raise ValueError(
            f"the {type(model).__name__} must be as its constructor made it: its parts "
            "were replaced, and settings alone could not build it again."
        )
    _check_ties(model)
    config = {"format": FORMAT, "model": type(model).__name__, "settings": settings}
    tensors = {name: x.detach().contiguous() for name, x in model.state_dict().items()}
    header = {"format": "pt", HEADER: json.dumps(config)}
    _write(path, safetensors.torch.save(tensors, header))
    return path


def load_model(path: str | Path) -> nn.Module:
    """Build a model from a file that `save_model` wrote.

    Args:
        path: The file.

    Returns:
        The model with its weights, in evaluation mode.

    Raises:
        WeightsError: If the file is missing or damaged, or holds something else.
    """
    weights = read_weights(path)
    with _import_safetensors().safe_open(path, "pt") as file:
        header = file.metadata() or {}
    names = {kind.__name__: kind for kind in SETTINGS}
    try:
        config = json.loads(header[HEADER])
        version, name, settings = config["format"], config["model"], config["settings"]
    except (KeyError, RecursionError, TypeError, ValueError) as error:
        raise WeightsError(f"{path} must be a file that save_model wrote.") from error
    if version != FORMAT:
        raise WeightsError(
            f"{path} must be of format {FORMAT}, got {version!r}: a newer version of "
            "this package may read it."
        )
    if not isinstance(name, str) or name not in names:
        raise WeightsError(f"{path} must hold one of {', '.join(names)}, got {name!r}.")
    try:
        settings = _with_tuples(settings)
        # What a file claims must cost neither memory nor time: every layer has
        # tensors in it, and numbers come last.
        depth = settings.get("depth")
        if isinstance(depth, int) and depth > len(weights):
            raise ValueError(f"there are {len(weights)} tensors for {depth} layers")
        with torch.device("meta"):
            model = names[name](**{**settings, "device": "meta"})
    except (RuntimeError, TypeError, ValueError) as error:
        raise WeightsError(f"{path} does not describe a model: {error}") from error
    wanted, found = _shapes(model), {n: tuple(x.shape) for n, x in weights.items()}
    if wanted != found:
        differing = dict(wanted.items() ^ found.items())
        raise WeightsError(
            f"{path} must hold the weights that its settings ask for; they differ in "
            f"{_listed(sorted(differing))}."
        )
    wrong = [
        f"{name} {x.dtype}" for name, x in weights.items() if x.dtype not in FLOATS
    ]
    if wrong:
        raise WeightsError(
            f"{path} must hold floating-point numbers, got {_listed(wrong)}."
        )
    model.load_state_dict(weights, assign=True)
    return model.eval()


def _with_tuples(settings: Any) -> dict[str, Any]:
    # JSON knows no tuples.
    return {
        name: tuple(x) if isinstance(x, list) else x
        for name, x in dict(settings).items()
    }


def _shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(x.shape) for name, x in model.state_dict().items()}


def _check_ties(model: nn.Module) -> None:
    # A file holds each tensor by itself, and so would the model that is read from it.
    known: dict[int, str] = {}
    for name, x in model.named_parameters(remove_duplicate=False):
        first = known.setdefault(id(x), name)
        if first != name:
            raise ValueError(
                "weights must be tied by the model's own settings to stay so, got "
                f"{first} and {name} in one."
            )


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target, so that moving it there takes one step.
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _settings(model: nn.Module) -> dict[str, Any]:
    read = SETTINGS.get(type(model))
    if read is None:
        names = ", ".join(kind.__name__ for kind in SETTINGS)
        raise TypeError(f"model must be one of {names}, got {type(model).__name__}.")
    return read(model)


def _layers(layers: nn.ModuleList) -> dict[str, Any]:
    first = layers[0]
    if not isinstance(first, EncoderLayer):
        raise ValueError(f"layers must be EncoderLayer, got {type(first).__name__}.")
    return {
        "depth": len(layers),
        "heads": first.attention.heads,
        "hidden_dim": first.feed_forward.hidden_proj.out_features,
        "norm": first.norm,
        "activation": first.feed_forward.activation,
        "dropout": first.dropout.p,
        "eps": first.attention_norm.eps,
        "bias": first.feed_forward.hidden_proj.bias is not None,
    }


def _vision_transformer(model: VisionTransformer) -> dict[str, Any]:
    patch, head = model.patch_embedding.patch, model.head
    names = {
        "LearnedPositions2D": "learned",
        "LearnedAxes2D": "learned_axes",
        "SinusoidalPositions2D": "sinusoidal",
        "Identity": "none",
    }
    return {
        "picture": tuple(n * i for n, i in zip(model.grid, patch, strict=True)),
        "patch": patch,
        "classes": getattr(head, "out_features", 1),
        "dim": model.patch_embedding.proj.out_features,
        "channels": model.patch_embedding.channels,
        "pool": model.pool,
        "class_token": model.class_token is not None,
        "positions": names[type(model.positions).__name__],
        **_layers(model.encoder.layers),
    }


def _transformer(model: Transformer) -> dict[str, Any]:
    positions = model.positions
    usual = isinstance(positions, SinusoidalPositions) and positions.base == 10_000.0
    if not usual and positions is not None:
        raise ValueError(
            "positions must be the usual sinusoidal ones or none for a model to be "
            f"saved, got {positions}."
        )
    source = model.source_embedding
    return {
        "vocabulary": model.embedding.num_embeddings,
        "dim": model.embedding.embedding_dim,
        "source_vocabulary": None if source is None else source.num_embeddings,
        "padding_token": model.padding_token,
        "tied": model.readout is None,
        "positions": "sinusoidal" if usual else None,
        "final_norm": isinstance(model.encoder.final_norm, LayerNorm),
        **_layers(model.encoder.layers),
    }


def _bert(model: Bert) -> dict[str, Any]:
    return {
        "vocabulary": model.tokens.num_embeddings,
        "dim": model.tokens.embedding_dim,
        "length": len(model.positions.table),
        "segments": model.segments.num_embeddings,
        "summary": model.summary is not None,
        **_layers(model.encoder.layers),
    }


def _seq2seq(model: Seq2Seq) -> dict[str, Any]:
    return {
        "vocabulary": model.vocabulary,
        "dim": model.source_embedding.embedding_dim,
        "hidden_dim": model.encoder.hidden_dim,
        "cell": type(model.encoder).__name__.lower(),
        "attention": None if model.alignment is None else model.alignment.score,
        "padding_token": model.padding_token,
    }


def _picture_bert(model: PictureBert) -> dict[str, Any]:
    first: Any = model.layers[0]
    attention = first.attention
    options = {"encoding": "gaussian"}
    if isinstance(attention, LearnedRelativeSelfAttention):
        content = attention.query_weight is not None
        encoding = "learned+content" if content else "learned"
        options = {"encoding": encoding, "longest": attention.longest}
    return {
        "classes": model.classifier.out_features,
        "channels": model.channels,
        "patch": model.patch,
        "dim": model.embedding.out_features,
        "depth": len(model.layers),
        "heads": len(attention.value_weight),
        "hidden_dim": first.network.network.hidden_proj.out_features,
        "dropout": first.dropout.p,
        **options,
    }


SETTINGS: dict[type[nn.Module], Callable[[Any], dict[str, Any]]] = {
    VisionTransformer: _vision_transformer,
    Transformer: _transformer,
    Bert: _bert,
    Seq2Seq: _seq2seq,
    PictureBert: _picture_bert,
}
