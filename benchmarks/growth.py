"""How time and memory grow with each size of an encoder."""

import statistics
from typing import Any

import torch
from measuring import exponent, forward, peak_megabytes, seconds, significant

from transformers_hw.transformer import Encoder

BASE = {"tokens": 128, "depth": 2, "width": 256, "batch": 4}
AXES = {
    "tokens": [128, 256, 512, 1024, 2048, 4096],
    "depth": [2, 4, 8, 16],
    "width": [128, 256, 512, 1024],
    "batch": [2, 4, 8, 16, 32],
}
REPEATS = 7


def measure(axis: str, *, memory: bool) -> dict[str, Any]:
    """Run an encoder at every size along one axis, in turns.

    Args:
        axis: Which size to vary.
        memory: Measure memory, not time.
    """
    values = AXES[axis]
    runs = []
    for value in values:
        size = {**BASE, axis: value}
        width = size["width"]
        encoder = Encoder(width, width // 64, 4 * width, size["depth"])
        x = torch.randn(size["batch"], size["tokens"], width)
        runs.append(forward(encoder, x))
    if memory:
        return {"megabytes": [peak_megabytes(run) for run in runs]}
    for run in runs:
        run()
    turns = [[seconds(run) for run in runs] for _ in range(REPEATS)]
    times = [1e3 * statistics.median(column) for column in zip(*turns, strict=True)]
    return {
        "what": "Encoder, forward",
        "axis": axis,
        "values": values,
        "milliseconds": [significant(t) for t in times],
        "time_exponent": exponent(values, times),
    }
