"""What the modules ask of their input; each refusal says what was wanted and came."""

import torch
from torch import Tensor

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
NOT_WHOLE = (bool, float, str, tuple, list, type(None))


def check_sizes(**sizes: int) -> None:
    """Refuse anything but whole numbers from one on."""
    for name, size in sizes.items():
        # A size read off a tensor is no plain int while a compiler traces.
        if isinstance(size, NOT_WHOLE) or size < 1:
            raise ValueError(f"{name} must be a whole number from 1 on, got {size!r}.")


def check_lengths(**lengths: int) -> None:
    """Refuse anything but whole numbers from zero on."""
    for name, length in lengths.items():
        if isinstance(length, NOT_WHOLE) or length < 0:
            raise ValueError(
                f"{name} must be a whole number from 0 on, got {length!r}."
            )


def check_eps(eps: float) -> None:
    """Refuse what would make a variance negative."""
    if not eps >= 0.0:
        raise ValueError(f"eps must be zero or greater, got {eps}.")


def height_and_width(name: str, size: int | tuple[int, int]) -> tuple[int, int]:
    """Read a height and a width, or one number for both."""
    try:
        height, width = (size, size) if isinstance(size, int) else size
    except (TypeError, ValueError):
        raise ValueError(
            f"{name} must be one whole number or two, got {size!r}."
        ) from None
    check_sizes(**{f"{name} height": height, f"{name} width": width})
    return height, width


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


def check_mask(name: str, mask: Tensor, meaning: str) -> None:
    """Refuse what is no boolean tensor."""
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        raise TypeError(
            f"{name} must be a boolean tensor (True = {meaning}), got {kind(mask)}."
        )


def check_token(name: str, token: int, count: int) -> None:
    """Refuse what is no token of a vocabulary of so many."""
    if isinstance(token, NOT_WHOLE) or not 0 <= token < count:
        raise ValueError(
            f"{name} must be a token from 0 to {count - 1}, got {token!r}."
        )


def check_below(name: str, ids: Tensor, count: int) -> None:
    """Refuse ids that are not from 0 to `count - 1`."""
    # Reading values back would stall a GPU and cannot be traced by a compiler.
    if ids.device.type != "cpu" or torch.compiler.is_compiling() or not ids.numel():
        return
    low, high = (int(x) for x in ids.aminmax())
    if low < 0 or high >= count:
        raise ValueError(f"{name} must be from 0 to {count - 1}, got {low} to {high}.")


def check_axes(name: str, x: Tensor, *axes: str | int) -> None:
    """Refuse a tensor without these axes."""
    wanted, shape = axes, x.shape
    if axes[0] == "...":
        wanted = axes[1:]
        shape = shape[len(shape) - len(wanted) :]
    fits = len(shape) == len(wanted)
    for axis, size in zip(wanted, shape, strict=False):
        if axis != size and not isinstance(axis, str):
            fits = False
    if not fits:
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
