"""What the modules ask of their input; each refusal says what was wanted and came."""

import torch
from torch import Tensor

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def check_sizes(**sizes: int) -> None:
    """Refuse anything but whole numbers from one on."""
    for name, size in sizes.items():
        # A size read off a tensor is no plain int while a compiler traces.
        if isinstance(size, bool | float | str | None) or size < 1:
            raise ValueError(f"{name} must be a whole number from 1 on, got {size!r}.")


def check_dropout(dropout: float) -> None:
    """Refuse what is no probability below one."""
    if not 0.0 <= dropout < 1.0:
        raise ValueError(f"dropout must be in [0, 1), got {dropout}.")


def check_choice(name: str, choice: object, choices: tuple[object, ...]) -> None:
    """Refuse what is none of the choices."""
    if choice not in choices:
        raise ValueError(f"{name} must be one of {choices}, got {choice!r}.")


def check_beta(name: str, beta: float) -> None:
    """Refuse what is no inverse temperature; infinity is one."""
    if isinstance(beta, bool) or not isinstance(beta, int | float):
        raise TypeError(
            f"{name} must be a number (math.inf selects the maximum), "
            f"got {type(beta).__name__}."
        )
    if not beta >= 0.0:
        raise ValueError(f"{name} must be zero or greater, got {beta}.")


def check_float(name: str, x: Tensor, *axes: str | int) -> None:
    """Refuse what is no floating-point tensor with these axes.

    An axis is a size, or a name for any size; `"..."` in front allows for more.
    """
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise TypeError(f"{name} must be a floating-point tensor, got {kind(x)}.")
    check_axes(name, x, *axes)


def check_integers(name: str, x: Tensor, *axes: str | int) -> None:
    """Refuse what is no tensor of integers with these axes."""
    if not isinstance(x, Tensor) or x.dtype not in INTEGERS:
        raise TypeError(f"{name} must be a tensor of integers, got {kind(x)}.")
    check_axes(name, x, *axes)


def check_axes(name: str, x: Tensor, *axes: str | int) -> None:
    """Refuse a tensor without these axes."""
    more = axes[:1] == ("...",)
    wanted = axes[1:] if more else axes
    shape = x.shape[x.dim() - len(wanted) :] if more else x.shape
    if (
        x.dim() < len(wanted)
        or len(shape) != len(wanted)
        or any(
            isinstance(w, int) and w != s for w, s in zip(wanted, shape, strict=True)
        )
    ):
        words = ", ".join(map(str, axes)) + ("," if len(axes) == 1 else "")
        raise ValueError(f"{name} must be ({words}), got shape {tuple(x.shape)}.")


def check_one_dtype(**tensors: Tensor) -> None:
    """Refuse tensors of several types."""
    if len({x.dtype for x in tensors.values()}) > 1:
        names = " and ".join(tensors)
        came = " and ".join(str(x.dtype) for x in tensors.values())
        raise TypeError(f"{names} must have one dtype, got {came}.")


def kind(x: object) -> str:
    """Name the type of a thing, or the dtype of a tensor."""
    return str(x.dtype) if isinstance(x, Tensor) else type(x).__name__
