"""Time two implementations of the same computation against each other.

The two take turns (A, B, B, A, …) in one process, so that background load affects both
alike. Each pair of turns gives a ratio, and we report the median and the quartiles of
these ratios. Before timing, the outputs are compared: timing different computations
would say nothing.
"""

import gc
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

# Work shorter than this many seconds is repeated within a turn. For the same total
# time, many short turns give a steadier median than a few long ones.
SHORTEST_TURN = 0.002
# If every ratio exceeds this one, the winner is clear, and we stop early.
CLEAR_WIN = 1.5
# Largest difference allowed between outputs, relative to the peer's largest entry.
TOLERANCE = 1e-4
HALF_TOLERANCE = 5e-2  # for bfloat16


@dataclass(frozen=True)
class Pair:
    """Our implementation and a peer's, ready to run.

    Attributes:
        ours: Runs our implementation once; returns the output, or `None`.
        theirs: Runs the peer's.
        unit: The unit of a rate, such as `"tokens"`.
        count: Number of units processed by one run; 0 for no rate.
        tolerance: Largest relative difference allowed between the outputs.
    """

    ours: Callable[[], Tensor | None]
    theirs: Callable[[], Tensor | None]
    unit: str = ""
    count: int = 0
    tolerance: float = TOLERANCE


@dataclass(frozen=True)
class Row:
    """One comparison, and how to set it up.

    Attributes:
        group: The table it belongs to.
        case: Sizes and options.
        peer: The library we compare with.
        mode: `"forward"`, `"forward_backward"`, `"training_step"`, …
        build: Builds both implementations, in the process that times them.
        quick: Whether a quick run includes it.
        dtype: Type of the parameters and inputs.
        device: Device of the parameters and inputs.
    """

    group: str
    case: str
    peer: str
    mode: str
    build: Callable[[], Pair] = field(compare=False)
    quick: bool = False
    dtype: str = "float32"
    device: str = "cpu"

    def set_up(self) -> Pair:
        """Build both implementations from the same seed, on the row's device."""
        torch.manual_seed(0)
        if self.device == "cpu":
            return self.build()
        torch.set_default_device(self.device)
        torch.set_default_dtype(getattr(torch, self.dtype))
        return replace(self.build(), tolerance=HALF_TOLERANCE)


class DifferentOutputError(RuntimeError):
    """The two outputs differ, so their times cannot be compared."""


def largest_difference(pair: Pair) -> float | None:
    """Run both once and return the largest difference between their outputs.

    Raises:
        DifferentOutputError: If the difference exceeds the tolerance.
    """
    ours, theirs = pair.ours(), pair.theirs()
    if ours is None or theirs is None:
        return None
    if ours.shape != theirs.shape:
        raise DifferentOutputError(
            f"outputs must have the same shape, got {tuple(ours.shape)} and "
            f"{tuple(theirs.shape)}."
        )
    difference = (ours.double() - theirs.double()).abs().max().item()
    allowed = pair.tolerance * max(1.0, theirs.double().abs().max().item())
    if not difference <= allowed:
        raise DifferentOutputError(
            f"outputs must agree to within {allowed:.1e}, got {difference:.1e}."
        )
    return significant(difference, 2)


def seconds(work: Callable[[], object], repeats: int = 1) -> float:
    """Return the mean time of a run."""
    wait = torch.cuda.synchronize if torch.cuda.is_available() else (lambda: None)
    wait()
    start = time.perf_counter()
    for _ in range(repeats):
        work()
    wait()
    return (time.perf_counter() - start) / repeats


def take_turns(
    pair: Pair, *, budget: float, least: int = 3, most: int = 2000
) -> list[tuple[float, float]]:
    """Time both in turns and return the seconds of each pair: ours, theirs.

    Args:
        pair: Both implementations; each runs once before timing starts.
        budget: Approximate number of seconds to spend.
        least: Smallest number of pairs, whatever the budget.
        most: Largest number of pairs.
    """
    once = max(seconds(pair.ours), seconds(pair.theirs))
    repeats = max(1, math.ceil(SHORTEST_TURN / once))
    pairs = round(budget / (2 * once * repeats))
    times = []
    gc.collect()
    gc.disable()
    for turn in range(min(max(pairs, least), most)):
        # Whoever goes first may find cold caches, so that alternates, too.
        if turn % 2:
            theirs = seconds(pair.theirs, repeats)
            times.append((seconds(pair.ours, repeats), theirs))
        else:
            ours = seconds(pair.ours, repeats)
            times.append((ours, seconds(pair.theirs, repeats)))
    gc.enable()
    return times


def compare(
    build: Callable[[], Pair], *, budget: float, set_ups: int = 3
) -> dict[str, Any]:
    """Compare the outputs, then time both over several set-ups.

    Where tensors happen to lie in memory can shift a ratio, and stays fixed until they
    are allocated again.

    Args:
        build: Builds both implementations.
        budget: Approximate number of seconds to spend on the turns.
        set_ups: Number of times to build them.
    """
    pair = build()
    found = {"largest_difference": largest_difference(pair)}
    times = take_turns(pair, budget=budget / set_ups)
    for _ in range(set_ups - 1):
        if min(theirs / ours for ours, theirs in times) > CLEAR_WIN:
            break
        pair = build()
        times += take_turns(pair, budget=budget / set_ups)
    return found | summarize(pair, times)


def summarize(pair: Pair, times: list[tuple[float, float]]) -> dict[str, Any]:
    """Return the quartiles of the ratios and the medians of the times."""
    low, median, high = statistics.quantiles([b / a for a, b in times], n=4)
    ours, theirs = (statistics.median(t) for t in zip(*times, strict=True))
    found = {
        "ratio": round(median, 3),
        "lower_quartile": round(low, 3),
        "upper_quartile": round(high, 3),
        "our_milliseconds": significant(1e3 * ours),
        "their_milliseconds": significant(1e3 * theirs),
        "pairs": len(times),
        "rate": None,
    }
    if pair.count:
        rates = {"ours": pair.count / ours, "theirs": pair.count / theirs}
        rates = {who: significant(rate) for who, rate in rates.items()}
        found["rate"] = {"unit": f"{pair.unit}/s", **rates}
    return found


def peak_megabytes(work: Callable[[], object]) -> float | None:
    """Return by how much one run raises the resident memory; `None` outside Linux.

    Needs `MALLOC_MMAP_THRESHOLD_=65536` in the environment. Otherwise the C library
    keeps freed blocks, and a second run does not seem to need any.
    """
    status = Path("/proc/self/status")
    if not status.exists():
        return None

    def kilobytes(key: str) -> int:
        lines = status.read_text("utf-8").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(key))

    work()
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = kilobytes("VmRSS")
    output = work()
    after = kilobytes("VmHWM")
    del output
    return significant(max(after - before, 0) / 1024)


def significant(x: float, digits: int = 4) -> float:
    """Round to a number of significant digits."""
    return float(f"{x:.{digits}g}")


def forward(model: Callable[..., Any], *inputs: Any, **options: Any) -> Callable:
    """Return a forward pass in evaluation mode, without gradients."""
    if isinstance(model, nn.Module):
        model.eval()

    def work() -> Tensor:
        with torch.inference_mode():
            return output_of(model(*inputs, **options))

    return work


def forward_backward(model: nn.Module, *inputs: Any, **options: Any) -> Callable:
    """Return a forward and a backward pass in training mode."""
    model.train()

    def work() -> Tensor:
        model.zero_grad()
        output = output_of(model(*inputs, **options))
        output.sum().backward()
        return output.detach()

    return work


PASSES = {"forward": forward, "forward_backward": forward_backward}


def training_step(
    model: nn.Module, loss: Callable[[Any], Tensor], *inputs: Any
) -> Callable:
    """Return forward pass, backward pass and optimizer step; the output is the loss."""
    model.train()
    # The rate is so small that the weights stay put. The fused optimizer updates all
    # parameters at once, so their number of tensors does not matter.
    optimizer = torch.optim.AdamW(model.parameters(), 1e-9, fused=True)

    def work() -> Tensor:
        optimizer.zero_grad()
        value = loss(output_of(model(*inputs)))
        value.backward()
        optimizer.step()
        return value.detach()

    return work


def output_of(returned: Any) -> Any:
    """Return the output tensor of a model, whatever the library wraps it in."""
    if isinstance(returned, tuple):
        return returned[0]
    for name in ("logits", "last_hidden_state"):
        if hasattr(returned, name):
            return getattr(returned, name)
    return returned


def large_product(size: int = 1536) -> tuple[Callable[[], Tensor], int]:
    """Return a large matrix product (GEMM) in float32, and its operations."""
    a, b, out = (torch.randn(size, size) for _ in range(3))
    return lambda: torch.mm(a, b, out=out), 2 * size**3


def gemm_gigaflops(*, budget: float = 3.0) -> float:
    """Measure the rate of a large matrix product."""
    work, flops = large_product()
    work()
    turns = max(5, round(budget / seconds(work)))
    return 1e-9 * flops / statistics.median(seconds(work) for _ in range(turns))


def share_of_gemm(
    work: Callable[[], Tensor], flops: float, budget: float
) -> dict[str, float]:
    """Measure the rate of some work and its share of a large matrix product's.

    The two take turns. If work is nothing but matrix products, the share is that of the
    time which they would need at best.

    Args:
        work: Runs once.
        flops: Number of its operations, additions and multiplications.
        budget: Approximate number of seconds to spend.
    """
    product, most = large_product()
    for warm_up in (work, product):
        warm_up()
    times = take_turns(Pair(work, product), budget=budget, least=9)
    share = statistics.median(flops / a * b / most for a, b in times)
    gigaflops = 1e-9 * flops / statistics.median(a for a, _ in times)
    return {"gigaflops": significant(gigaflops), "share": round(share, 3)}


def exponent(sizes: list[int], values: list[float]) -> float:
    """Fit the exponent of a power law by least squares on the logarithms."""
    x, y = [math.log(n) for n in sizes], [math.log(v) for v in values]
    return round(statistics.linear_regression(x, y).slope, 2) + 0.0  # no -0.0


def machine(threads: int) -> dict[str, Any]:
    """Describe the machine."""
    cpuinfo = Path("/proc/cpuinfo")
    names: Iterator[str] = iter(())
    if cpuinfo.exists():
        lines = cpuinfo.read_text("utf-8").splitlines()
        names = (line.partition(":")[2] for line in lines if "model name" in line)
    unnamed = platform.processor() or platform.machine()
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": next(names, unnamed).strip(),
        "cores": os.cpu_count(),
        "threads": threads,
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }
