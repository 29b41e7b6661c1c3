"""Read state dicts and safetensors files, those of strangers included."""

import struct
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from transformers_hw._engine.shapes import checked

Weights = Mapping[str, Any] | str | Path
Shape = tuple[int, ...]
# Narrower ones mean nothing without a scale, which their libraries keep elsewhere.
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# The header of a file takes some 100 bytes for a tensor. Models have thousands.
MOST_HEADER_BYTES = 2**23
MOST_TENSORS = 50_000


class WeightsError(ValueError):
    """Weights that cannot be read, or are not those of the expected model."""


@checked
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
        WeightsError: If the file is of another kind, damaged or missing, or has more
            than 50,000 tensors; or if a state dict holds anything but dense tensors by
            name, all on one device.

    Examples:
        >>> read_weights({"bias": torch.zeros(2)})
        {'bias': tensor([0., 0.])}
        >>> read_weights("model.pt")
        Traceback (most recent call last):
            ...
        transformers_hw.pretrained.weights.WeightsError: model.pt must be a
            .safetensors file: others can run code when they are read.
    """
    if isinstance(weights, str | Path):
        with WeightsFile(weights) as file:
            return file.tensors()
    if not isinstance(weights, Mapping):
        raise TypeError(
            "weights must be a state dict or the path of a safetensors file, got "
            f"{type(weights).__name__}."
        )
    for name, x in weights.items():
        if not isinstance(name, str) or not _is_dense(x):
            raise WeightsError(
                "weights must be dense tensors by name, with their numbers in memory, "
                f"got {_kind(x)} for {printable(repr(name))}."
            )
    devices = {str(x.device) for x in weights.values()}
    if len(devices) > 1:
        raise WeightsError(
            f"weights must be on one device, got {', '.join(sorted(devices))}."
        )
    return dict(weights)


class WeightsFile:
    """A safetensors file, open for reading: at first, nothing but its header is read.

    Args:
        path: The file.

    Attributes:
        metadata: Texts in the header.
        shapes: Shapes of the tensors by name.
    """

    metadata: Mapping[str, str]
    shapes: dict[str, Shape]

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if self.path.suffix != ".safetensors":
            raise WeightsError(
                f"{shown(path)} must be a .safetensors file: others can run code when "
                "they are read."
            )

    def __enter__(self) -> "WeightsFile":
        library = import_safetensors()
        try:
            with self.path.open("rb") as file:
                (header,) = struct.unpack("<Q", file.read(8).ljust(8, b"\0"))
            if header > MOST_HEADER_BYTES:
                raise ValueError(
                    f"its header must take at most {MOST_HEADER_BYTES} bytes, got "
                    f"{header}."
                )
            self._file = library.safe_open(self.path, "pt")
        # A ValueError also if the path contains a null character.
        except (OSError, ValueError, library.SafetensorError) as error:
            raise WeightsError(
                f"{shown(self.path)} cannot be read as safetensors: {printable(error)}"
            ) from error
        names = self._file.keys()
        if len(names) > MOST_TENSORS:
            raise WeightsError(
                f"{self.path} must hold at most {MOST_TENSORS} tensors, got "
                f"{len(names)}."
            )
        self.metadata = self._file.metadata() or {}
        self.shapes = {x: tuple(self._file.get_slice(x).get_shape()) for x in names}
        return self

    def __exit__(self, *_: object) -> None:
        self._file.__exit__(None, None, None)

    def tensors(self) -> dict[str, Tensor]:
        """Read the tensors."""
        try:
            # What safetensors gives is mapped: it would change with the file.
            return {name: self._file.get_tensor(name).clone() for name in self.shapes}
        except import_safetensors().SafetensorError as error:
            raise WeightsError(
                f"{self.path} cannot be read as safetensors: {printable(error)}"
            ) from error


def import_safetensors() -> ModuleType:
    """Import safetensors, which only files of weights need."""
    try:
        import safetensors.torch
    except ImportError as error:
        raise ImportError(
            "files of weights need safetensors: pip install safetensors"
        ) from error
    return safetensors


def printable(text: object, most: int = 200) -> str:
    r"""Return text that a file may contain, safe to print, and cut to a length.

    Examples:
        >>> print(printable("blocks.0\x1b[2J"))
        blocks.0\x1b[2J
    """
    cut = str(text)[: most + 1]
    safe = "".join(c if c.isprintable() else repr(c)[1:-1] for c in cut)
    return safe if len(safe) <= most else f"{safe[:most]}…"


def shown(path: str | Path) -> str:
    """Return a path, safe to print."""
    return printable(Path(path), 4096)


def listed(names: Iterable[str], most: int = 12) -> str:
    """List names, safe to print, and only the first of them if there are many."""
    names = list(names)
    shown = ", ".join(printable(name, 80) for name in islice(names, most))
    more = len(names) - most
    return f"{shown} and {more} more" if more > 0 else shown or "nothing"


def _is_dense(x: Any) -> bool:
    # Subclasses, such as distributed tensors, keep their numbers elsewhere.
    if type(x) not in (Tensor, nn.Parameter):
        return False
    return x.layout == torch.strided and x.device.type != "meta" and not x.is_quantized


def _kind(x: Any) -> str:
    if type(x) not in (Tensor, nn.Parameter):
        return type(x).__name__
    return f"a tensor on {x.device} of layout {x.layout} and dtype {x.dtype}"
