"""Read weights from elsewhere, and account for every tensor of them."""

import re
from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

Weights = Mapping[str, Any] | str | Path
Model = TypeVar("Model", bound=nn.Module)
# Narrower ones mean nothing without a scale, which their libraries keep elsewhere.
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
PROJECTED = ("query", "key", "value")


class WeightsError(ValueError):
    """Weights that cannot be read, or are not those that were asked for."""


def read_weights(weights: Weights) -> dict[str, Tensor]:
    """Read a state dict, or a safetensors file.

    Files of other kinds are refused without being opened: what `torch.save` writes is
    a pickle, which can run any code when it is read. Whoever trusts such a file can
    read it with `torch.load(path, weights_only=True)` and pass the result.

    Args:
        weights: Tensors by name, or the path of a safetensors file.

    Returns:
        The tensors by name.

    Raises:
        ImportError: If a file is to be read, and safetensors is not installed.
        TypeError: If it is neither.
        WeightsError: If the file is of another kind, damaged or not there, or if a
            state dict holds anything but tensors by name.

    Examples:
        >>> read_weights({"bias": torch.zeros(2)})
        {'bias': tensor([0., 0.])}
        >>> read_weights("model.pt")
        Traceback (most recent call last):
            ...
        transformers_hw.pretrained.weights.WeightsError: model.pt must be a
            .safetensors file: others can run code when they are read.
    """
    if isinstance(weights, Mapping):
        for name, x in weights.items():
            if not isinstance(x, Tensor) or not isinstance(name, str):
                raise WeightsError(
                    f"weights must be tensors by name, got {type(x).__name__} "
                    f"for {name!r}."
                )
        return dict(weights)
    if not isinstance(weights, str | Path):
        raise TypeError(
            "weights must be a state dict or the path of a safetensors file, got "
            f"{type(weights).__name__}."
        )
    path = Path(weights)
    if path.suffix != ".safetensors":
        raise WeightsError(
            f"{path} must be a .safetensors file: others can run code when they are "
            "read."
        )
    safetensors = _import_safetensors()
    try:
        return safetensors.torch.load_file(path)
    except (OSError, safetensors.SafetensorError) as error:
        raise WeightsError(f"{path} cannot be read as safetensors: {error}") from error


def _import_safetensors() -> ModuleType:
    """Import what reads and writes files of weights; the book itself does without."""
    try:
        import safetensors.torch
    except ImportError as error:
        raise ImportError(
            "files of weights take safetensors: pip install safetensors"
        ) from error
    return safetensors


class _Unpacking:
    """Take tensors out of foreign weights under their new names, and keep account.

    The module is built without memory for its numbers, and given the tensors only
    when all of them fit: sizes that a file claims cost nothing.

    Args:
        weights: Where to take them from.
        origin: Whose weights these should be, for messages.

    Attributes:
        place: Where to build the module, and of which type of numbers.
        left: Tensors that nobody has taken yet, by their old names.
        wanted: The shapes of the tensors that the new module has, by its names.
        made: The tensors taken so far, by their new names.
    """

    def __init__(self, weights: Weights, origin: str) -> None:
        self.origin = origin
        self.left = read_weights(weights)
        self.wanted: dict[str, torch.Size] = {}
        self.made: dict[str, Tensor] = {}
        self.missing: list[str] = []
        self.misshapen: list[str] = []
        kinds = [x.dtype for x in self.left.values() if x.dtype in FLOATS]
        # The type that holds all of them without loss.
        dtype = reduce(torch.promote_types, kinds) if kinds else None
        self.place: dict[str, Any] = {"device": "meta", "dtype": dtype}

    def shape(self, name: str, axes: int) -> tuple[int, ...]:
        """Give the shape of a tensor that the module's sizes are read from."""
        if name not in self.left:
            raise WeightsError(
                f"weights must be of {self.origin}, and hold {name!r}; they hold "
                f"{_listed(list(self.left))}."
            )
        shape = tuple(self.left[name].shape)
        if len(shape) != axes or 0 in shape:
            raise WeightsError(
                f"{name!r} must have {axes} axes, none of them empty, got shape "
                f"{shape}."
            )
        return shape

    def depth(self, layers: str) -> int:
        """Count the layers whose names begin with `layers` and a number."""
        pattern = re.compile(re.escape(layers) + r"(\d+)\.")
        found = (pattern.match(name) for name in self.left)
        numbers = {int(match[1]) for match in found if match}
        if not numbers or numbers != set(range(len(numbers))):
            raise WeightsError(
                f"weights must be of {self.origin}, and hold {layers}0 and so on; "
                f"they hold {_listed(list(self.left))}."
            )
        return len(numbers)

    def build(self, model: Model) -> Model:
        """Say which module, or part of one, is to be filled."""
        self.wanted = {name: x.shape for name, x in model.state_dict().items()}
        return model

    def take(self, name: str, shape: Sequence[int]) -> Tensor:
        """Take a tensor that must have this shape."""
        wanted = tuple(shape)
        x = self.left.pop(name, None)
        if x is None:
            self.missing.append(name)
        elif tuple(x.shape) != wanted:
            self.misshapen.append(f"{name} {tuple(x.shape)}, wanted {wanted}")
        elif x.dtype not in FLOATS:
            self.misshapen.append(f"{name} {x.dtype}, wanted floating-point numbers")
        else:
            return x.detach()
        return torch.empty(wanted, device="meta")

    def move(self, theirs: str, ours: str) -> None:
        """Take a tensor, and give it our name."""
        self.made[ours] = self.take(theirs, self.wanted[ours])

    def part(self, theirs: str, ours: str) -> None:
        """Take a linear map or a normalisation: its weight, and its bias if any."""
        for kind in ("weight", "bias"):
            if f"{ours}.{kind}" in self.wanted:
                self.move(f"{theirs}.{kind}", f"{ours}.{kind}")

    def packed(self, theirs: str, ours: str) -> None:
        """Take the tensors of queries, keys and values out of the one that holds them.

        Args:
            theirs: Its name.
            ours: Our names, with `{}` for query, key and value.
        """
        names = [ours.format(part) for part in PROJECTED]
        if names[0] in self.wanted:
            outputs, *inputs = self.wanted[names[0]]
            pieces = self.take(theirs, [3 * outputs, *inputs]).split(outputs)
            self.made.update(zip(names, pieces, strict=True))

    def fill(self, model: Model) -> Model:
        """Put the tensors into a module, if every one of them was accounted for."""
        wrong = {
            "missing": self.missing,
            "of the wrong shape or type": self.misshapen,
            "unknown": list(self.left),
        }
        found = [
            f"{what}: {', '.join(names)}" for what, names in wrong.items() if names
        ]
        if found:
            raise WeightsError(
                f"weights must be those of {self.origin}. " + "; ".join(found) + "."
            )
        place = {**self.place, "device": next(iter(self.made.values())).device}
        copies = {
            name: x.to(**place, copy=True, memory_format=torch.contiguous_format)
            for name, x in self.made.items()
        }
        model.load_state_dict(copies, assign=True)
        return model.eval()


def _listed(names: Sequence[str], most: int = 12) -> str:
    """List names, the first of them if there are many."""
    shown = ", ".join(names[:most]) or "nothing"
    more = len(names) - most
    return f"{shown} and {more} more" if more > 0 else shown
