"""Gaussian attention, factorised, against the dense layer it is equal to.

There are two peers, each with one softmax over all pairs of pixels:

- `tabulated`, the layer of Cordonnier, Loukas & Jaggi's program (epfml/attention-cnn),
  written anew: its scores come from a table of all offsets. Theirs ends at 50 x 50
  pixels; for larger pictures the table is made larger here (335 MB at 64 x 64).
- `formed`, which forms the scores from their formula, and needs no table.

Contenders run in turns, so that whatever else the machine does meets all alike, and
what is recorded is the ratio of each pair of runs: its median and its quartiles.

    python benchmarks/gaussian_attention.py            # some minutes
    python benchmarks/gaussian_attention.py --quick    # a few seconds, no record
"""

import argparse
import gc
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import torch
import torchvision
from einops import einsum, rearrange
from torch import Tensor, nn

from transformers_hw.attention_as_convolution import (
    GaussianSelfAttention,
    attentionize,
)

RECORD = Path(__file__).parent / "records/gaussian_attention.json"
DIM, HEADS = 128, 9
# (side of the picture, batch) and the least ratios wanted: forward, with backward.
GOALS = {
    (8, 1): (1 / 1.1, 1 / 1.1),
    (8, 4): (1 / 1.1, 1 / 1.1),
    (8, 16): (1 / 1.1, 1 / 1.1),
    (32, 4): (8.0, 6.0),
    (32, 16): (5.0, 4.0),
    (64, 4): (45.0, 20.0),
}


class TabulatedAttention(nn.Module):
    """Look up five terms of every pair's offset, and weigh them into scores."""

    def __init__(self, side: int, layer: GaussianSelfAttention) -> None:
        super().__init__()
        heads, dim, output_dim = layer.value_weight.shape
        at = torch.arange(side).float()
        down = rearrange(at, "k -> 1 1 k 1") - rearrange(at, "i -> i 1 1 1")
        right = rearrange(at, "l -> 1 1 1 l") - rearrange(at, "j -> 1 j 1 1")
        terms = torch.broadcast_tensors(down, right, down**2, right**2, down * right)
        self.codes = torch.stack(terms, dim=-1)
        self.centers = nn.Parameter(layer.head_centers().detach().clone())
        self.spreads = nn.Parameter(torch.ones(heads))
        self.value = nn.Linear(heads * dim, output_dim)
        with torch.no_grad():
            merged = rearrange(layer.value_weight, "h d e -> e (h d)")
            self.value.weight.copy_(merged)
            self.value.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """Attend densely."""
        precision = self.spreads**2
        zero = torch.zeros_like(precision)
        down, right = self.centers.unbind(dim=1)
        terms = [-2 * precision * down, -2 * precision * right]
        target = -0.5 * torch.stack([*terms, precision, precision, zero], dim=-1)
        scores = einsum(self.codes, target, "i j k l t, h t -> i j h k l")
        joint = rearrange(scores, "i j h k l -> i j h (k l)").softmax(dim=-1)
        weights = rearrange(joint, "i j h (k l) -> i j h k l", k=x.shape[1])
        seen = einsum(weights, x, "i j h k l, b k l d -> b i j h d")
        return self.value(rearrange(seen, "b i j h d -> b i j (h d)"))


class FormedAttention(nn.Module):
    """Form the score of every pair of pixels: minus the squared distance, sharpened."""

    def __init__(self, side: int, layer: GaussianSelfAttention) -> None:
        super().__init__()
        at = torch.arange(side).float()
        self.places = torch.cartesian_prod(at, at)
        self.centers = nn.Parameter(layer.head_centers().detach().clone())
        self.sharpness = nn.Parameter(torch.full((layer.heads,), layer.sharpness))
        self.value = nn.Linear(layer.heads * DIM, DIM)
        with torch.no_grad():
            merged = rearrange(layer.value_weight, "h d e -> e (h d)")
            self.value.weight.copy_(merged)
            self.value.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """Attend densely."""
        offsets = self.places - rearrange(self.places, "q two -> q 1 two")
        beyond = offsets - rearrange(self.centers, "h two -> h 1 1 two")
        distances = beyond.square().sum(dim=-1)
        scores = -rearrange(self.sharpness, "h -> h 1 1") * distances
        pixels = rearrange(x, "b i j d -> b (i j) d")
        seen = einsum(scores.softmax(dim=-1), pixels, "h q k, b k d -> b q h d")
        mixed = self.value(rearrange(seen, "b q h d -> b q (h d)"))
        return rearrange(mixed, "b (i j) e -> b i j e", i=x.shape[1])


PEERS = {"tabulated": TabulatedAttention, "formed": FormedAttention}


def contenders(side: int, peer: str) -> tuple[nn.Module, nn.Module]:
    """Make ours and a peer, with the same numbers."""
    torch.manual_seed(0)
    layer = GaussianSelfAttention(DIM, HEADS)
    return layer, PEERS[peer](side, layer)


def forward(layer: nn.Module, x: Tensor) -> Tensor:
    """Run a layer; ours gives its weights, or none, as well."""
    output = layer(x)
    return output[0] if isinstance(output, tuple) else output


def seconds(work: Callable[[], object]) -> float:
    """Time one run."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def only_forward(layer: nn.Module, x: Tensor) -> Callable[[], object]:
    """Give a run without gradients."""

    def work() -> None:
        with torch.no_grad():
            forward(layer, x)

    return work


def with_backward(layer: nn.Module, x: Tensor) -> Callable[[], object]:
    """Give a run with gradients for the picture and all parameters."""
    up = torch.randn_like(x)

    def work() -> None:
        layer.zero_grad()
        forward(layer, x.detach().requires_grad_()).backward(up)

    return work


def ratios(
    ours: Callable[[], object], theirs: Callable[[], object], repeats: int
) -> dict[str, float]:
    """Time both in turns, and summarise how much faster ours is."""
    for run in (ours, theirs):
        run()
    pairs = [(seconds(ours), seconds(theirs)) for _ in range(repeats)]
    low, middle, high = statistics.quantiles([b / a for a, b in pairs], n=4)
    return {
        "ratio": round(middle, 3),
        "lower_quartile": round(low, 3),
        "upper_quartile": round(high, 3),
        "our_milliseconds": round(1e3 * statistics.median(a for a, _ in pairs), 3),
        "their_milliseconds": round(1e3 * statistics.median(b for _, b in pairs), 3),
        "pairs": repeats,
    }


def compare(side: int, batch: int, peer: str, *, repeats: int) -> dict[str, object]:
    """Compare ours with a peer on one size."""
    ours, theirs = contenders(side, peer)
    x = torch.randn(batch, side, side, DIM)
    with torch.no_grad():
        difference = (forward(ours, x) - forward(theirs, x)).abs().max().item()
    results: dict[str, object] = {"largest_difference": difference}
    for name, run in (("forward", only_forward), ("with_backward", with_backward)):
        results[name] = ratios(run(ours, x), run(theirs, x), repeats)
        gc.collect()
    return results


def peak_megabytes(side: int, batch: int, *, returned: bool) -> dict[str, float]:
    """Measure, each in a process of its own, what a run with gradients needs.

    The C library keeps freed blocks of a few megabytes for later, in heaps that
    fragment. With `returned`, it is told to give them back at once, so that what is
    measured is what the layers hold at one time.
    """
    settings = {"MALLOC_MMAP_THRESHOLD_": "65536"} if returned else {}
    peaks = {}
    for which in ("ours", "theirs"):
        command = [sys.executable, __file__, "--memory", which, str(side), str(batch)]
        ran = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, **settings},
        )
        peaks[which] = float(ran.stdout.split()[-1])
    return {
        **{which: round(size, 1) for which, size in peaks.items()},
        "share": round(peaks["ours"] / peaks["theirs"], 4),
    }


def measure_memory(which: str, side: int, batch: int) -> float:
    """Give how far one run raises the resident memory, in megabytes (on Linux)."""

    def resident(what: str) -> int:
        status = Path("/proc/self/status").read_text("utf-8")
        return next(
            int(line.split()[1]) for line in status.splitlines() if what in line
        )

    layer: nn.Module = GaussianSelfAttention(DIM, HEADS)
    if which == "theirs":
        layer = contenders(side, "tabulated")[1]
    else:
        forward(layer, torch.randn(1, 16, 16, DIM)).sum().backward()  # wakes threads
    work = with_backward(layer, torch.randn(batch, side, side, DIM))
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
    before = resident("VmRSS")
    work()
    return (resident("VmHWM") - before) / 1024


def growth(sides: list[int], *, repeats: int) -> dict[str, object]:
    """Fit how the time of a forward run grows with the number of pixels."""
    layer, _ = contenders(1, "formed")
    pictures = [torch.randn(1, side, side, DIM) for side in sides]
    runs = [only_forward(layer, x) for x in pictures]
    for run in runs:
        run()
    times = [[seconds(run) for run in runs] for _ in range(repeats)]
    medians = [statistics.median(column) for column in zip(*times, strict=True)]
    pixels = math.log((sides[-1] / sides[0]) ** 2)
    return {
        "sides": sides,
        "milliseconds": [round(1e3 * t, 3) for t in medians],
        "exponent": round(math.log(medians[-1] / medians[0]) / pixels, 3),
    }


def residual_network(*, repeats: int) -> dict[str, float]:
    """Compare a ResNet-18 with its copy that has attention for convolutions."""
    model = torchvision.models.resnet18(weights=None).eval()
    attentive = attentionize(model)
    x = torch.randn(2, 3, 224, 224)
    return ratios(only_forward(attentive, x), only_forward(model, x), repeats)


def report(
    results: dict[tuple[int, int, str], dict[str, object]],
) -> list[dict[str, object]]:
    """Put the comparisons beside what was wanted."""
    rows = []
    for (side, batch, peer), measured in results.items():
        goals = dict(zip(("forward", "with_backward"), GOALS[side, batch], strict=True))
        size = {"side": side, "batch": batch, "peer": peer}
        rows.append({**size, "wanted": goals, **measured})
    return rows


def main() -> None:
    """Run all comparisons and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, no record")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.memory:
        which, side, batch = options.memory
        print(measure_memory(which, int(side), int(batch)))
        return
    sizes = [(8, 4), (16, 2)] if options.quick else list(GOALS)
    if options.quick:
        for side, batch in sizes:
            for peer in PEERS:
                found = compare(side, batch, peer, repeats=3)
                print(side, batch, peer, json.dumps(found))
        return
    # Pairs enough for quartiles; the dense layer takes seconds at the largest size.
    repeats = {8: 101, 32: 15, 64: 5}
    compared = {}
    for side, batch in sizes:
        for peer in PEERS:
            found = compare(side, batch, peer, repeats=repeats[side])
            compared[side, batch, peer] = found
            print(side, batch, peer, json.dumps(found), flush=True)
    record = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "processor": platform.processor() or platform.machine(),
        "threads": options.threads,
        "dim": DIM,
        "heads": HEADS,
        "comparisons": report(compared),
        "peak_megabytes_at_64x64_batch_4": {
            "freed_memory_returned": peak_megabytes(64, 4, returned=True),
            "freed_memory_kept": peak_megabytes(64, 4, returned=False),
        },
        "growth": growth([16, 32, 64, 128], repeats=5),
        "milliseconds_at_256x256": round(
            1e3
            * seconds(
                only_forward(contenders(1, "formed")[0], torch.randn(1, 256, 256, DIM))
            )
        ),
        "resnet18_attention_against_convolution": residual_network(repeats=5),
    }
    RECORD.parent.mkdir(exist_ok=True)
    RECORD.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(record, indent=2))


if __name__ == "__main__":
    main()
