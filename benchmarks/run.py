"""Measure the book's modules against other libraries', and write the record.

    python benchmarks/run.py                    # everything; half an hour
    python benchmarks/run.py --quick            # some of it, in two minutes; no record
    python benchmarks/run.py --only "Encoder"   # groups by name; no record

Every comparison runs in a process of its own, ours and the peer's in turns. A second
process measures the memory. `docs/speed.md` shows what `benchmarks/record.json` holds.
"""

import copy
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import tyro
from contests import left_out, vision
from growth import AXES, measure
from measuring import (
    DifferentWorkError,
    Pair,
    Row,
    compare,
    difference,
    exponent,
    forward,
    gemm_gigaflops,
    machine,
    peak_megabytes,
    seconds,
    significant,
)
from tqdm import tqdm

from transformers_hw import VisionTransformer
from transformers_hw.lab.devices import keep_freed_memory
from transformers_hw.transformer import EncoderLayer

HERE = Path(__file__).parent
RECORD = HERE / "record.json"
LIBRARIES = ("einops", "timm", "torch", "torchvision", "transformers", "vit-pytorch")
NOT_MEASURED = {"our_megabytes": None, "their_megabytes": None}
CONTESTS = (
    "attention",
    "layers",
    "decoding",
    "vision",
    "data",
    "convolution",
    "importing",
)
CPU_ONLY = ("Data", "Decoding", "Import", "Convolution as attention")
GROUPS = (
    "Attention",
    "Multi-head attention",
    "Encoder layer",
    "Decoder layer",
    "Decoding",
    "Vision Transformer",
    "Data",
    "Gaussian attention",
    "Convolution as attention",
    "Import",
)


@dataclass(frozen=True)
class Config:
    """What to measure.

    Attributes:
        quick: Only some rows, for less long; no record is written.
        only: Only groups whose name begins like this; no record is written.
        threads: Number of threads that PyTorch may use.
        budget: Seconds to spend on each row; 2.5, or one in a quick run.
        set_ups: How often to make contenders anew; thrice, or once in a quick run.
        contest: Time rows of this module, and print what is found (for the processes
            that are made here).
        rows: Which of them, by number.
        memory: Measure their memory instead.
        axis: Measure growth along this axis, likewise.
    """

    quick: bool = False
    only: str = ""
    threads: int = 2
    budget: float | None = None
    set_ups: int | None = None
    contest: str = ""
    rows: tuple[int, ...] = ()
    memory: bool = False
    axis: str = ""


def rows_of(contest: str) -> list[Row]:
    """List a module's comparisons; where there is CUDA, those of tensors there, too."""
    rows = list(import_module(f"contests.{contest}").rows())
    if torch.cuda.is_available():
        half = {"device": "cuda", "dtype": "bfloat16"}
        rows += [replace(row, **half) for row in rows if row.group not in CPU_ONLY]
    return rows


def time_row(row: Row, config: Config) -> dict[str, Any]:
    """Compare the results of a row's contenders, then their times."""
    try:
        apart = difference(row.set_up())
    except DifferentWorkError as error:
        raise SystemExit(f"{row.group}, {row.what}, {row.peer}: {error}") from error
    found = compare(row.set_up, budget=config.budget, set_ups=config.set_ups)
    apart = None if apart is None else significant(apart, 2)
    return {"largest_difference": apart, **found}


def memory_of_row(row: Row) -> dict[str, Any]:
    """Measure the memory of a row's contenders."""
    pair = row.set_up()
    if not pair.memory or row.device != "cpu":
        return NOT_MEASURED
    return {
        "our_megabytes": peak_megabytes(pair.ours),
        "their_megabytes": peak_megabytes(pair.theirs),
    }


def in_process(
    config: Config, *options: str, memory: bool = False
) -> Iterator[dict[str, Any]]:
    """Measure something in a process of its own, and give what it finds one by one.

    Raises:
        SystemExit: It failed; what it said is shown.
    """
    command = [sys.executable, str(HERE / "run.py"), *options]
    command += ["--threads", str(config.threads), "--budget", str(config.budget)]
    command += ["--set-ups", str(config.set_ups)]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    environment["HF_HUB_OFFLINE"] = environment["TRANSFORMERS_OFFLINE"] = "1"
    if memory:
        command.append("--memory")
        # Freed memory is given back at once, so that what is used is what is seen.
        environment["MALLOC_MMAP_THRESHOLD_"] = "65536"
    with (
        tempfile.TemporaryFile("w+") as said,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=said, text=True, env=environment
        ) as process,
    ):
        for found in process.stdout or ():
            if found.startswith("{"):
                yield json.loads(found)
        if process.wait():
            said.seek(0)
            raise SystemExit(f"{' '.join(command)} failed:\n{said.read()}")


def measure_here(config: Config) -> Iterator[dict[str, Any]]:
    """Do what a process was made for."""
    if config.axis:
        yield measure(config.axis, memory=config.memory)
    known = rows_of(config.contest) if config.contest else []
    for number in config.rows:
        row = known[number]
        yield memory_of_row(row) if config.memory else time_row(row, config)


def shares(rate: float) -> list[dict[str, Any]]:
    """Say which share of the rate of matrix products whole models reach."""
    found = []
    for name in ("ViT-B/16", "ViT-S/16", "ViT-Ti/16"):
        sizes = vision.MODELS[name]
        model = VisionTransformer.from_preset(name, classes=vision.CLASSES)
        work = forward(model, torch.randn(sizes[-1], 3, sizes[0], sizes[0]))
        work()
        times = sorted(seconds(work) for _ in range(9))
        reached = 1e-9 * vision.forward_flops(sizes) / times[len(times) // 2]
        found.append(
            {
                "what": f"{name}, forward, batch {sizes[-1]}",
                "gigaflops": significant(reached),
                "share": round(reached / rate, 3),
            }
        )
    return found


def noise(budget: float) -> list[float]:
    """Time a layer against itself, several times over: the ratios say what noise is."""
    layer = EncoderLayer(192, 3, 768, activation="gelu")

    def build() -> Pair:
        layers = [copy.deepcopy(layer) for _ in range(2)]
        x = torch.randn(32, 65, 192)
        return Pair(*(forward(one, x) for one in layers))

    return [compare(build, budget=budget)["ratio"] for _ in range(8)]


def main(config: Config) -> None:
    """Measure everything that is asked for."""
    torch.set_num_threads(config.threads)
    if config.budget is None:
        config = replace(config, budget=1.0 if config.quick else 2.5)
    if config.set_ups is None:
        config = replace(config, set_ups=1 if config.quick else 3)
    if config.contest or config.axis:
        if not config.memory:
            # Else page faults decide: whose freed memory the system happened to take.
            keep_freed_memory()
        for found in measure_here(config):
            print(json.dumps(found), flush=True)
        return
    start = time.perf_counter()
    chosen = [
        (contest, number, row)
        for contest in CONTESTS
        for number, row in enumerate(rows_of(contest))
        if row.group.startswith(config.only) and (row.quick or not config.quick)
    ]
    rows = []
    bar = tqdm(total=len(chosen), unit="row")
    # The sort is stable: tables keep their order, and comparisons stay together.
    chosen.sort(key=comparison)
    for (_, peer, device), members in itertools.groupby(chosen, key=comparison):
        contests, numbers, compared = zip(*members, strict=True)
        bar.set_description(f"{compared[0].group}, {peer}, {device}")
        options = ("--contest", contests[0], "--rows", *map(str, numbers))
        timed = []
        for row, found in zip(compared, in_process(config, *options), strict=True):
            timed.append({**described(row), **found})
            bar.write(line(timed[-1]))
            bar.update()
        memory: Iterable[dict[str, Any]] = [NOT_MEASURED] * len(timed)
        if not config.quick:
            memory = in_process(config, *options, memory=True)
        rows += [found | used for found, used in zip(timed, memory, strict=True)]
    bar.close()
    below = [row for row in rows if row["ratio"] < 1.0]
    print(f"{len(below)} of {len(rows)} rows below 1:")
    for row in below:
        print(" ", line(row))
    if config.only or config.quick:
        return
    growths = []
    for axis in tqdm(AXES, desc="growth"):
        (found,) = in_process(config, "--axis", axis)
        (used,) = in_process(config, "--axis", axis, memory=True)
        power = exponent(found["values"], used["megabytes"])
        growths.append({**found, **used, "memory_exponent": power})
    keep_freed_memory()
    rate = gemm_gigaflops()
    record = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": "python benchmarks/run.py",
        "seconds": round(time.perf_counter() - start),
        "machine": machine(config.threads),
        "versions": {
            "python": sys.version.split()[0],
            **{name: version(name) for name in LIBRARIES},
        },
        "gemm_gigaflops": {"float32": significant(rate)},
        "gemm_shares": shares(rate),
        "noise": noise(config.budget),
        "rows": rows,
        "growth": growths,
        "left_out": left_out.measure(config.budget),
    }
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def comparison(item: tuple[str, int, Row]) -> tuple[int, str, str]:
    """Say which rows share a process: those of one table, peer and device."""
    row = item[-1]
    return GROUPS.index(row.group), row.peer, row.device


def described(row: Row) -> dict[str, Any]:
    """Give what identifies a row."""
    return {k: v for k, v in vars(row).items() if k not in ("build", "quick")}


def line(row: dict[str, Any]) -> str:
    """Show a row in a line."""
    return (
        f"{row['group']:22} {row['what']:52} {row['peer']:24} {row['mode']:20} "
        f"{row['ratio']:6.3f} ({row['lower_quartile']:.3f} to "
        f"{row['upper_quartile']:.3f})  {row['our_milliseconds']} ms"
    )


if __name__ == "__main__":
    main(tyro.cli(Config, description=__doc__))
