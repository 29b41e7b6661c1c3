"""Choosing a device and a precision, and keeping memory between steps."""

import ctypes
import os
import sys
from contextlib import AbstractContextManager
from typing import Literal

import torch

from transformers_hw._engine.arguments import check_choice

DeviceName = Literal["auto", "cpu", "cuda", "mps"]
Precision = Literal["auto", "float32", "bfloat16"]


def pick_device(device: DeviceName = "auto") -> torch.device:
    """Return the device to compute on.

    Args:
        device: A kind of device; `"auto"` takes CUDA if available, else MPS, else CPU.

    Returns:
        The device; under `torchrun`, each process of a machine gets its own.

    Raises:
        ValueError: The machine has no such device.
    """
    check_choice("device", device, ("auto", "cpu", "cuda", "mps"))
    available = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if device == "auto":
        device = next(kind for kind in available if available[kind])  # type: ignore[assignment]
    if not available[device]:
        raise ValueError(f"device {device!r} is not available on this machine.")
    if device == "cuda":
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
    return torch.device(device)


def autocast(device: torch.device, precision: Precision) -> AbstractContextManager:
    """Return a context that computes in bfloat16 or float32.

    Args:
        device: Device of the run.
        precision: `"auto"` is bfloat16 on CUDA devices that support it, else float32.
    """
    half = precision == "bfloat16"
    if precision == "auto":
        half = device.type == "cuda" and torch.cuda.is_bf16_supported()
    return torch.autocast(device.type, torch.bfloat16, enabled=half)


def keep_freed_memory() -> None:
    """Tell glibc to keep freed memory for the next step instead of returning it.

    A training step on the CPU allocates and frees the same large blocks as the one
    before. By default glibc returns each block at once, and the system has to clear
    every page again at the next step. Without glibc this does nothing.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        trim_threshold, mmap_threshold, gibibyte = -1, -3, 1 << 30
        mallopt(mmap_threshold, gibibyte)
        mallopt(trim_threshold, gibibyte)
