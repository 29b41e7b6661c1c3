"""Check what a signature cannot say; each error says what was wanted and what came."""

import math
import sys
import warnings
from collections.abc import Collection
from typing import TypedDict

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

Device = torch.device | str | None
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
INDICES = (torch.int32, torch.int64)  # of the rows of a table
NOT_NUMBERS = (bool, str, tuple, list, type(None), Tensor)
NOT_INTEGERS = (float, *NOT_NUMBERS)
# Where a module keeps the hooks that its calls run.
HOOKS = (
    "_forward_pre_hooks",
    "_forward_hooks",
    "_backward_pre_hooks",
    "_backward_hooks",
)
# Far from what a float32 holds, and from any score.
LARGEST_SOFTCAP = 1e30


class Factory(TypedDict, total=False):
    """Where a module makes its parameters.

    Attributes:
        device: Device of the parameters.
        dtype: Dtype of the parameters.
    """

    device: Device
    dtype: torch.dtype | None


def check_sizes(**sizes: int) -> None:
    """Raise unless every size is a positive integer."""
    for name, size in sizes.items():
        # While a compiler traces, a size read off a tensor is not a plain int.
        if isinstance(size, NOT_INTEGERS) or size < 1:
            raise ValueError(f"{name} must be a positive integer, got {size!r}.")


def check_lengths(**lengths: int) -> None:
    """Raise unless every length is a nonnegative integer."""
    for name, length in lengths.items():
        if isinstance(length, NOT_INTEGERS) or length < 0:
            raise ValueError(f"{name} must be a nonnegative integer, got {length!r}.")


def check_eps(eps: float) -> None:
    """Raise unless `eps` is finite, and zero or greater."""
    if isinstance(eps, NOT_NUMBERS) or not 0.0 <= eps < math.inf:
        raise ValueError(f"eps must be finite and zero or greater, got {eps!r}.")


def height_and_width(name: str, size: int | tuple[int, int]) -> tuple[int, int]:
    """Return `(height, width)` from a pair, or from one number for both."""
    try:
        height, width = (size, size) if isinstance(size, int) else size
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be one integer or two, got {size!r}.") from None
    check_sizes(**{f"{name} height": height, f"{name} width": width})
    return height, width


def share_of_head(dim: int, heads: int) -> int:
    """Return the width of a head if the heads share `dim`; raise if they cannot."""
    check_sizes(dim=dim, heads=heads)
    if dim % heads:
        raise ValueError(
            f"dim must be divisible by heads, got dim {dim} and {heads} heads; "
            "head_dim sets a width that does not depend on dim."
        )
    return dim // heads


def check_dropout(dropout: float, name: str = "dropout") -> None:
    """Raise unless `dropout` is a probability below one."""
    if isinstance(dropout, NOT_NUMBERS) or not 0.0 <= dropout < 1.0:
        raise ValueError(f"{name} must be in [0, 1), got {dropout!r}.")


def check_choice(name: str, choice: object, choices: tuple[object, ...]) -> None:
    """Raise unless `choice` is one of the choices."""
    if choice not in choices:
        raise ValueError(f"{name} must be one of {choices}, got {choice!r}.")


def named_parts(
    name: str, chosen: bool | Collection[str], parts: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the parts chosen: all, none, or those named; raise for other names."""
    if isinstance(chosen, bool):
        return parts if chosen else ()
    if isinstance(chosen, str) or not set(chosen) <= set(parts):
        raise ValueError(
            f"{name} must be True, False or names among {parts}, got {chosen!r}."
        )
    return tuple(chosen)


def check_scale(name: str, scale: float) -> None:
    """Raise unless `scale` is a nonnegative number, which may be infinite."""
    if isinstance(scale, bool) or not isinstance(scale, int | float):
        raise TypeError(
            f"{name} must be a number (math.inf selects the maximum), "
            f"got {type(scale).__name__}."
        )
    if not scale >= 0.0:
        raise ValueError(f"{name} must be zero or greater, got {scale}.")


def check_softcap(softcap: float | None, scale: float) -> None:
    """Raise unless scores of this scale can be capped."""
    if softcap is None:
        return
    if not 0.0 < softcap <= LARGEST_SOFTCAP:
        raise ValueError(
            f"softcap must be positive and at most {LARGEST_SOFTCAP:g}, got {softcap}."
        )
    if scale == math.inf:
        raise ValueError("softcap needs a finite scale, got math.inf: hard attention.")


def check_window(window: int | None, sinks: int) -> None:
    """Raise unless `window` is positive or `None`, and sinks belong to a window."""
    if window is not None:
        check_sizes(window=window)
    check_lengths(sinks=sinks)
    if sinks and window is None:
        raise ValueError(f"sinks={sinks} needs a window, got none.")


def check_token(name: str, token: int, vocab_size: int) -> None:
    """Raise unless `token` is an id in a vocabulary of this size."""
    if isinstance(token, NOT_INTEGERS) or not 0 <= token < vocab_size:
        raise ValueError(
            f"{name} must be a token from 0 to {vocab_size - 1}, got {token!r}."
        )


def check_below(name: str, ids: Tensor, count: int) -> None:
    """Raise unless all ids are from 0 to `count - 1`, of a type that can index."""
    if ids.dtype not in INDICES:
        raise TypeError(f"{name} must be int64 or int32, got {describe(ids)}.")
    if not _is_readable(ids) or not ids.numel():
        return
    low, high = (int(x) for x in ids.aminmax())
    if low < 0 or high >= count:
        raise ValueError(f"{name} must be from 0 to {count - 1}, got {low} to {high}.")


def check_one_dtype(**tensors: Tensor) -> None:
    """Raise unless all tensors have one dtype."""
    first = next(iter(tensors.values())).dtype
    for x in tensors.values():
        if x.dtype != first:
            names = " and ".join(tensors)
            dtypes = " and ".join(str(x.dtype) for x in tensors.values())
            raise TypeError(f"{names} must have one dtype, got {dtypes}.")


def warn_if_all_is_padding(padding_mask: Tensor) -> None:
    """Warn, at the line that called the package, if a sequence has no real token.

    In PyTorch's convention, the longest sequence of a batch is all False.
    """
    if not _is_readable(padding_mask) or bool(padding_mask.any(dim=1).all()):
        return
    frame, level, inside = sys._getframe(1), 2, ("transformers_hw.", "torch.")
    while frame.f_back and frame.f_globals.get("__name__", "").startswith(inside):
        frame, level = frame.f_back, level + 1
    warnings.warn(
        "padding_mask hides every token of a sequence. True marks a real token "
        "here; in PyTorch's key_padding_mask it marks padding.",
        stacklevel=level,
    )


def _is_readable(x: Tensor) -> bool:
    """Tell whether values of `x` can decide what happens next.

    Reading them would stall a GPU. There are none to read while a compiler or `make_fx`
    traces, under `vmap`, and in a fake tensor.
    """
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    absent = is_functorch_wrapped_tensor(x) or isinstance(x, FakeTensor)
    return not absent and get_proxy_mode() is None


def describe(x: object) -> str:
    """Return the dtype of a tensor, or the name of any other object's type."""
    return str(x.dtype) if isinstance(x, Tensor) else type(x).__name__
