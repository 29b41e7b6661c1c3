"""How time and memory grow with each size of a model."""

import statistics
from collections.abc import Callable
from typing import Any

import torch
from measuring import exponent, forward, peak_megabytes, seconds, significant

from transformers_hw.attention import dot_product_attention
from transformers_hw.attention_as_convolution import GaussianSelfAttention
from transformers_hw.transformer import Encoder

BASE = {"tokens": 128, "depth": 2, "width": 256, "batch": 4}
AXES = {
    "tokens": [128, 256, 512, 1024, 2048, 4096],
    "depth": [2, 4, 8, 16],
    "width": [128, 256, 512, 1024],
    "batch": [2, 4, 8, 16, 32],
    "pixels": [32**2, 64**2, 128**2, 256**2],
    "tokens, window of 128": [1024, 2048, 4096, 8192, 16384],
}
# What runs along an axis, if not the encoder.
OTHERS = {"pixels": "gaussian_attention", "tokens, window of 128": "attention"}
REPEATS = 7


def measure(axis: str, *, memory: bool) -> dict[str, Any]:
    """Run a model at every size along one axis, in turns.

    Args:
        axis: The size to vary.
        memory: Whether to measure memory instead of time.
    """
    sizes = AXES[axis]
    runs = [_run(axis, size) for size in sizes]
    if memory:
        used = [peak_megabytes(run) for run in runs]
        return {"megabytes": used, "memory_exponent": exponent(sizes, used)}
    for run in runs:
        run()
    turns = [[seconds(run) for run in runs] for _ in range(REPEATS)]
    times = [1e3 * statistics.median(column) for column in zip(*turns, strict=True)]
    return {
        "model": OTHERS.get(axis, "encoder"),
        "axis": axis,
        "sizes": sizes,
        "milliseconds": [significant(t) for t in times],
        "time_exponent": exponent(sizes, times),
    }


def _run(axis: str, size: int) -> Callable:
    if axis == "pixels":
        side = round(size**0.5)
        layer = GaussianSelfAttention(128, 9)
        return forward(layer, torch.randn(1, side, side, 128))
    if axis not in BASE:
        q, k, v = (torch.randn(1, 8, size, 64) for _ in range(3))
        return forward(dot_product_attention, q, k, v, window=128, causal=True)
    sizes = {**BASE, axis: size}
    width = sizes["width"]
    encoder = Encoder(width, width // 64, 4 * width, sizes["depth"])
    return forward(encoder, torch.randn(sizes["batch"], sizes["tokens"], width))
