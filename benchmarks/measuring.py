"""How two ways of doing the same work are timed against each other.

They take turns (A, B, A, B, …) in one process, so that whatever else the machine does
meets both alike. What counts is the ratio of each pair of turns: its median and its
quartiles. Before any timing, their results are compared: a benchmark of different work
is void.
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

# A turn shorter than this is repeated until it is that long, in seconds. Of the same
# time, many short turns give a steadier median than few long ones.
SHORTEST_TURN = 0.002
# Ratios that are all above this one are no draw, and need no more turns.
FAR = 1.5
# How far results may differ, relative to the largest number of the peer's.
TOLERANCE = 1e-4
# The same of numbers with eight bits.
HALF_TOLERANCE = 5e-2


@dataclass(frozen=True)
class Pair:
    """Ours and a peer's way of doing the same work.

    Attributes:
        ours: Does the work once; gives its result, if there is one to compare.
        theirs: Does the same work as the peer does it.
        unit: What is counted in a turn, for rates: `"tokens"`, `"pictures"`.
        count: How many of them.
        tolerance: How far results may differ, relative to their size.
        memory: Whether the memory of the work says anything.
    """

    ours: Callable[[], Tensor | None]
    theirs: Callable[[], Tensor | None]
    unit: str = ""
    count: int = 0
    tolerance: float = TOLERANCE
    memory: bool = True


@dataclass(frozen=True)
class Row:
    """One line of a table: what is compared, with whom, and how to set it up.

    Attributes:
        group: The table it belongs to.
        what: The sizes and options.
        peer: The library that is compared with.
        mode: `"forward"`, `"forward and backward"`, `"training step"`, …
        build: Makes the two contenders; called in the process that times them.
        quick: Whether it is among the rows of a quick run.
        dtype: The type computed in.
        device: The device computed on.
    """

    group: str
    what: str
    peer: str
    mode: str
    build: Callable[[], Pair] = field(compare=False)
    quick: bool = False
    dtype: str = "float32"
    device: str = "cpu"

    def set_up(self) -> Pair:
        """Make the contenders, always with the same numbers, where they belong."""
        torch.manual_seed(0)
        if self.device == "cpu":
            return self.build()
        torch.set_default_device(self.device)
        torch.set_default_dtype(getattr(torch, self.dtype))
        return replace(self.build(), tolerance=HALF_TOLERANCE)


class DifferentWorkError(RuntimeError):
    """Ours and the peer's results differ, so that their times say nothing."""


def difference(pair: Pair) -> float | None:
    """Run both once, and give how far their results are apart.

    Raises:
        DifferentWorkError: They are too far apart.
    """
    ours, theirs = pair.ours(), pair.theirs()
    if ours is None or theirs is None:
        return None
    if ours.shape != theirs.shape:
        raise DifferentWorkError(
            f"results must have one shape, got {tuple(ours.shape)} and "
            f"{tuple(theirs.shape)}."
        )
    apart = (ours.double() - theirs.double()).abs().max().item()
    allowed = pair.tolerance * max(1.0, theirs.double().abs().max().item())
    if not apart <= allowed:
        raise DifferentWorkError(
            f"results must be within {allowed:.1e} of each other, got {apart:.1e}."
        )
    return apart


def seconds(work: Callable[[], object], repeats: int = 1) -> float:
    """Time some runs, in seconds for each."""
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
    """Time both in turns, and give the seconds of each pair of turns: ours, theirs.

    Args:
        pair: The contenders; they run once before anything counts.
        budget: About how many seconds to spend.
        least: The least number of pairs of turns, whatever the budget.
        most: The largest number of them.
    """
    once = max(seconds(pair.ours), seconds(pair.theirs))
    repeats = max(1, math.ceil(SHORTEST_TURN / once))
    pairs = round(budget / (2 * once * repeats))
    times = []
    gc.collect()
    gc.disable()
    for turn in range(min(max(pairs, least), most)):
        # Whoever comes first may find the caches cold: they take turns at that, too.
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
    """Set contenders up several times over, time them, and say how much faster ours is.

    Where tensors happen to lie in memory can matter more than what is done with them,
    and stays as it is until they are made anew.

    Args:
        build: Makes the contenders.
        budget: About how many seconds to spend on the turns.
        set_ups: How often to make them anew.
    """
    pair, times = build(), []
    for anew in range(set_ups):
        if anew:
            pair = build()
        times += take_turns(pair, budget=budget / set_ups)
        if min(theirs / ours for ours, theirs in times) > FAR:
            break
    return summary(pair, times)


def summary(pair: Pair, times: list[tuple[float, float]]) -> dict[str, Any]:
    """Give the median and the quartiles of the ratios, and the medians of the times."""
    low, middle, high = statistics.quantiles([b / a for a, b in times], n=4)
    ours, theirs = (statistics.median(t) for t in zip(*times, strict=True))
    found = {
        "ratio": round(middle, 3),
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
    """Give how far one run raises the resident memory (on Linux), or nothing.

    Needs `MALLOC_MMAP_THRESHOLD_=65536` in the environment: else the C library keeps
    freed blocks, and a second run is not seen to take any.
    """
    status = Path("/proc/self/status")
    if not status.exists():
        return None

    def resident(what: str) -> int:
        lines = status.read_text("utf-8").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(what))

    work()
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
    before = resident("VmRSS")
    kept = work()
    after = resident("VmHWM")
    del kept
    return significant(max(after - before, 0) / 1024)


def significant(x: float, digits: int = 4) -> float:
    """Round to some significant digits."""
    return float(f"{x:.{digits}g}")


def forward(model: Callable[..., Any], *inputs: Any, **options: Any) -> Callable:
    """Give a run without gradients, in evaluation mode; the result is a tensor."""
    if isinstance(model, nn.Module):
        model.eval()

    def work() -> Tensor:
        with torch.inference_mode():
            return first(model(*inputs, **options))

    return work


def with_backward(model: nn.Module, *inputs: Any, **options: Any) -> Callable:
    """Give a run in training mode, with gradients for all parameters."""
    model.train()

    def work() -> Tensor:
        model.zero_grad()
        output = first(model(*inputs, **options))
        output.sum().backward()
        return output.detach()

    return work


def training_step(
    model: nn.Module, loss: Callable[[Any], Tensor], *inputs: Any
) -> Callable:
    """Give forward, backward and the optimiser's step; the result is the loss."""
    model.train()
    # No steps to speak of, so that both stay where they began. The fused one takes all
    # parameters at once, so that it does not matter in how many tensors they are.
    optimiser = torch.optim.AdamW(model.parameters(), 1e-9, fused=True)

    def work() -> Tensor:
        optimiser.zero_grad()
        value = loss(first(model(*inputs)))
        value.backward()
        optimiser.step()
        return value.detach()

    return work


def first(output: Any) -> Any:
    """Take the tensor out of what a model gives: itself, a tuple's first, logits."""
    if isinstance(output, tuple):
        return output[0]
    for name in ("logits", "last_hidden_state"):
        if hasattr(output, name):
            return getattr(output, name)
    return output


def gemm_gigaflops(size: int = 1536, *, budget: float = 3.0) -> float:
    """Measure the rate of a large product of matrices that the machine sustains."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    out = torch.empty(size, size)

    def work() -> None:
        torch.mm(a, b, out=out)

    work()
    turns = max(5, round(budget / seconds(work)))
    return 2e-9 * size**3 / statistics.median(seconds(work) for _ in range(turns))


def exponent(sizes: list[int], values: list[float]) -> float:
    """Fit the power with which a value grows with a size (least squares of logs)."""
    x, y = [math.log(n) for n in sizes], [math.log(v) for v in values]
    return round(statistics.linear_regression(x, y).slope, 2)


def machine(threads: int) -> dict[str, Any]:
    """Describe the machine."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": threads,
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def processor() -> str:
    """Name the processor as the system does."""
    path = Path("/proc/cpuinfo")
    names: Iterator[str] = iter(())
    if path.exists():
        lines = path.read_text("utf-8").splitlines()
        names = (line.partition(":")[2] for line in lines if "model name" in line)
    return next(names, platform.processor() or platform.machine()).strip()
