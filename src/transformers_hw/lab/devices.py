"""Where a run computes, how precisely, and with how much regard for the allocator."""

import ctypes
import os
import sys
from contextlib import AbstractContextManager
from typing import Literal

import torch

from transformers_hw._checks import check_choice

Device = Literal["auto", "cpu", "cuda", "mps"]
Precision = Literal["auto", "float32", "bfloat16"]


def pick_device(device: Device = "auto") -> torch.device:
    """Choose where to compute.

    Args:
        device: `"auto"` takes CUDA where there is some, else MPS, else the CPU.

    Returns:
        The device; under `torchrun`, each process of a machine has its own.

    Raises:
        ValueError: If the machine has no such device.
    """
    check_choice("device", device, ("auto", "cpu", "cuda", "mps"))
    there = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    name = next(kind for kind in there if there[kind]) if device == "auto" else device
    if not there[name]:
        raise ValueError(f"device must be there; this machine has no {name}.")
    if name == "cuda":
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
    return torch.device(name)


def autocast(device: torch.device, precision: Precision) -> AbstractContextManager:
    """Compute in bfloat16 what bears it, where that is asked for.

    Args:
        device: Where the run computes.
        precision: `"auto"` is bfloat16 on CUDA that has it, and float32 elsewhere.

    Returns:
        A context that may be entered again and again.
    """
    check_choice("precision", precision, ("auto", "float32", "bfloat16"))
    if precision == "auto":
        half = device.type == "cuda" and torch.cuda.is_bf16_supported()
    else:
        half = precision == "bfloat16"
    return torch.autocast(device.type, torch.bfloat16, enabled=half)


def keep_freed_memory() -> None:
    """Tell glibc to keep freed memory for the next step, not to return it.

    A step of training on the CPU allocates and frees the same large blocks as the one
    before. By default glibc gives each back to the system at once, and the system
    clears every page again at the next step. The process then keeps the most it
    ever used, which for training is what every step uses anyway. Without glibc this
    does nothing.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    trim_threshold, mmap_threshold, gibibyte = -1, -3, 1 << 30
    mallopt(mmap_threshold, gibibyte)
    mallopt(trim_threshold, gibibyte)
