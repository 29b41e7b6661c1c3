"""Read other libraries' weights, and account for every tensor."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from transformers_hw.transformer.config import Activation
from transformers_hw.transformer.parts import ACTIVATIONS

Weights = Mapping[str, Any] | str | Path
Names = Mapping[str, str]
Model = TypeVar("Model", bound=nn.Module)
# Narrower ones mean nothing without a scale, which their libraries keep elsewhere.
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class WeightsError(ValueError):
    """Weights that cannot be read, or are not those of the expected model."""


def read_weights(weights: Weights) -> dict[str, Tensor]:
    """Read a state dict, or a safetensors file.

    Files of other kinds are not opened: what `torch.save` writes is a pickle, which
    can run any code when it is read. If you trust such a file, read it with
    `torch.load(path, weights_only=True)` and pass the result.

    Args:
        weights: Tensors by name, or the path of a safetensors file.

    Returns:
        The tensors by name.

    Raises:
        ImportError: If a file is to be read and safetensors is not installed.
        TypeError: If `weights` is neither a state dict nor a path.
        WeightsError: If the file is of another kind, damaged or missing, or if a state
            dict holds anything but tensors by name.

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
    safetensors = import_safetensors()
    try:
        return safetensors.torch.load_file(path)
    except (OSError, safetensors.SafetensorError) as error:
        raise WeightsError(f"{path} cannot be read as safetensors: {error}") from error


def import_safetensors() -> ModuleType:
    """Import safetensors, which only files of weights need."""
    try:
        import safetensors.torch
    except ImportError as error:
        raise ImportError(
            "files of weights need safetensors: pip install safetensors"
        ) from error
    return safetensors


class Conversion:
    """Another library's weights, on their way into a model of ours.

    Our model is built without memory and is given the tensors only when all of them
    fit: sizes that a file claims cost nothing.

    Args:
        source: The other library's module, its state dict, or a safetensors file.
        origin: Whose weights these must be, for error messages.

    Attributes:
        module: The module, if that was given.
        tensors: Their tensors by their names.
        factory: `device` and `dtype` to build our model with.
    """

    def __init__(self, source: nn.Module | Weights, origin: str) -> None:
        self.origin = origin
        self.module: Any = source if isinstance(source, nn.Module) else None
        self.tensors = read_weights(
            source.state_dict() if isinstance(source, nn.Module) else source
        )
        dtypes = [x.dtype for x in self.tensors.values() if x.dtype in FLOATS]
        # The dtype that represents all of them without loss.
        dtype = reduce(torch.promote_types, dtypes) if dtypes else None
        self.factory: dict[str, Any] = {"device": "meta", "dtype": dtype}

    def settings(
        self,
        read: Callable[[Any], dict[str, Any]],
        given: Mapping[str, Any],
        **defaults: Any,
    ) -> dict[str, Any]:
        """Return the settings that were given, read from the module, or the defaults.

        Args:
            read: Reads settings from the other library's module.
            given: Settings of the caller; `None` for those that were not given.
            **defaults: Settings to use with a state dict.
        """
        try:
            found = defaults if self.module is None else read(self.module)
        except AttributeError as error:
            raise WeightsError(
                f"module must be {self.origin}, got {type(self.module).__name__}."
            ) from error
        found = found | {name: x for name, x in given.items() if x is not None}
        if "heads" not in found:
            raise TypeError(
                "heads must be given with a state dict, which does not contain it; a "
                "module does."
            )
        return found

    def shape(self, name: str, axes: int) -> tuple[int, ...]:
        """Return the shape of a tensor that tells the model's sizes."""
        if name not in self.tensors:
            raise WeightsError(
                f"weights must be of {self.origin}, and hold {name!r}; they hold "
                f"{listed(list(self.tensors))}."
            )
        shape = tuple(self.tensors[name].shape)
        if len(shape) != axes or 0 in shape:
            raise WeightsError(
                f"{name!r} must have {axes} axes, none of them empty, got shape "
                f"{shape}."
            )
        return shape

    def depth(self, layers: str) -> int:
        """Count the layers whose names begin with `layers` and a number."""
        pattern = re.compile(re.escape(layers) + r"(\d+)\.")
        found = (pattern.match(name) for name in self.tensors)
        numbers = {int(match[1]) for match in found if match}
        if not numbers or numbers != set(range(len(numbers))):
            raise WeightsError(
                f"weights must be of {self.origin}, and hold {layers}0 and so on; "
                f"they hold {listed(list(self.tensors))}."
            )
        return len(numbers)

    def fill(
        self,
        model: Model,
        names: Names,
        shapes: Mapping[str, tuple[int, ...]] | None = None,
    ) -> Model:
        """Copy the tensors into a model, if every one of them is accounted for.

        Args:
            model: Model of ours, on the meta device.
            names: For each tensor of ours, the tensor of theirs that contains it.
                Several in one, such as queries, keys and values, stand in it one after
                the other.
            shapes: Shapes of their tensors that are laid out otherwise.

        Returns:
            The model, in evaluation mode.
        """
        state: dict[str, Tensor] = {}
        left, missing, wrong = dict(self.tensors), [], []
        wanted = model.state_dict()
        for theirs, ours in _grouped(names, wanted).items():
            parts = {name: wanted[name] for name in ours}
            rows = sum(len(x) for x in parts.values())
            shape = (rows, *next(iter(parts.values())).shape[1:])
            shape = (shapes or {}).get(theirs, shape)
            x = left.pop(theirs, None)
            if x is None:
                missing.append(theirs)
            elif tuple(x.shape) != shape:
                wrong.append(f"{theirs} {tuple(x.shape)}, wanted {shape}")
            elif x.dtype not in FLOATS:
                wrong.append(f"{theirs} {x.dtype}, wanted floating-point numbers")
            else:
                pieces = x.detach().flatten().split([x.numel() for x in parts.values()])
                for (name, like), piece in zip(parts.items(), pieces, strict=True):
                    place = {"dtype": self.factory["dtype"], "copy": True}
                    state[name] = piece.to(**place).view(like.shape)
        found = {"missing": missing, "of the wrong shape or type": wrong}
        told = [
            f"{what}: {', '.join(those)}"
            for what, those in {**found, "unknown": list(left)}.items()
            if those
        ]
        if told:
            raise WeightsError(
                f"weights must be those of {self.origin}. {'; '.join(told)}."
            )
        model.load_state_dict(state, assign=True)
        return model.eval()


def join(state: Mapping[str, Tensor], names: Names, like: nn.Module) -> nn.Module:
    """Copy our tensors into another library's module: the reverse of `fill`.

    Args:
        state: Our tensors by name. A bias that is not among them is zero.
        names: For each tensor of ours, the tensor of theirs that contains it.
        like: Their module; it is changed.

    Returns:
        Their module.
    """
    theirs = like.state_dict()
    for name, ours in _grouped(names, names).items():
        if name in theirs:
            size = math.prod(theirs[name].shape) // len(ours)
            zeros = theirs[name].new_zeros(size)
            pieces = [state.get(part, zeros).flatten() for part in ours]
            theirs[name].copy_(torch.cat(pieces).view(theirs[name].shape))
    return like


def name_of_activation(activation: Callable[[Tensor], Tensor]) -> Activation:
    """Return our name of another library's activation, by its values."""
    x = torch.linspace(-3.0, 3.0, 61, dtype=torch.float64)
    for name, ours in ACTIVATIONS.items():
        if torch.allclose(activation(x), ours(x), rtol=0.0, atol=1e-12):
            return name  # type: ignore[return-value]
    raise ValueError(
        f"activation must be one of {', '.join(ACTIVATIONS)}, got {activation}."
    )


def listed(names: Sequence[str], most: int = 12) -> str:
    """List names, only the first of them if there are many."""
    shown = ", ".join(names[:most]) or "nothing"
    more = len(names) - most
    return f"{shown} and {more} more" if more > 0 else shown


def _grouped(names: Names, wanted: Mapping[str, Any]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for ours, theirs in names.items():
        if ours in wanted:
            groups.setdefault(theirs, []).append(ours)
    return groups
