"""Measure the book's modules against other libraries, and write the record.

    python benchmarks/run.py                            # everything; some 20 minutes
    python benchmarks/run.py --quick                    # a few rows; writes nothing
    python benchmarks/run.py --only vision_transformer  # one group; writes nothing
    python benchmarks/run.py --only windows --keep      # puts it into the record

All rows of one group, peer and device share a process, and a second process measures
their memory. `python benchmarks/report.py` then writes `docs/speed.md` from the record.
"""

import copy
import itertools
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
import tyro
from contests import convolution, left_out, scaling, vision
from later import Elsewhere, merged
from measuring import (
    DifferentOutputError,
    Pair,
    Row,
    compare,
    forward,
    gemm_gigaflops,
    machine,
    peak_megabytes,
    share_of_gemm,
    significant,
)
from tqdm import tqdm

from transformers_hw import VisionTransformer
from transformers_hw.attention_as_convolution import GaussianSelfAttention
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
# Groups whose memory is not measured, and groups that are not run on CUDA.
TIME_ONLY = ("data", "decoding", "import_time", "training")
CPU_ONLY = (*TIME_ONLY, "convolution_as_attention")


@dataclass(frozen=True)
class Config:
    """What to measure.

    Attributes:
        quick: Measure only a few rows, for a shorter time; write no record.
        only: Measure only these groups, sizes that grow, or models beside a matrix
            product.
        keep: Put what `only` names into the record, and leave the rest of it.
        threads: Number of threads that PyTorch may use.
        budget: Seconds to spend on each row.
        set_ups: Number of times to build both sides of a row.
        contest: (internal) The module whose rows to measure in this process.
        rows: (internal) Indices of these rows.
        memory: (internal) Whether to measure memory instead of time.
        axis: (internal) The size to vary in this process.
    """

    quick: bool = False
    only: tuple[str, ...] = ()
    keep: bool = False
    threads: int = 2
    budget: float = 2.0
    set_ups: int = 3
    contest: str = ""
    rows: tuple[int, ...] = ()
    memory: bool = False
    axis: str = ""

    def wants(self, part: str) -> bool:
        """Whether a part of the record is to be measured."""
        return not self.only or part in self.only


def versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that are installed."""
    found = {"python": sys.version.split()[0]}
    for name in LIBRARIES:
        with suppress(PackageNotFoundError):  # a part may not need them all
            found[name] = version(name)
    return found


def rows_of(contest: str) -> list[Row]:
    """List the comparisons of a module; with CUDA, also those in bfloat16 there."""
    rows = list(import_module(f"contests.{contest}").rows())
    if torch.cuda.is_available():
        half = {"device": "cuda", "dtype": "bfloat16"}
        rows += [replace(row, **half) for row in rows if row.group not in CPU_ONLY]
    return rows


def memory_of(row: Row) -> dict[str, Any]:
    """Measure the memory of both sides of a row."""
    pair = row.set_up()
    return {
        "our_megabytes": peak_megabytes(pair.ours),
        "their_megabytes": peak_megabytes(pair.theirs),
    }


def measure_here(config: Config) -> Iterator[dict[str, Any]]:
    """Measure what this process was started for."""
    if config.axis:
        yield scaling.measure(config.axis, memory=config.memory)
        return
    rows = rows_of(config.contest)
    for row in (rows[index] for index in config.rows):
        try:
            if config.memory:
                yield memory_of(row)
            else:
                options = {"budget": config.budget, "set_ups": config.set_ups}
                yield compare(row.set_up, **options)
        except DifferentOutputError as error:
            label = f"{row.group}, {row.case}, {row.peer}"
            raise SystemExit(f"{label}: {error}") from error


def in_process(
    config: Config, *options: str, memory: bool = False
) -> Iterator[dict[str, Any]]:
    """Measure in a new process and yield the results as they come.

    Raises:
        SystemExit: If the process fails; the message shows its error output.
    """
    command = [sys.executable, str(HERE / "run.py"), *options]
    command += ["--threads", str(config.threads), "--budget", str(config.budget)]
    command += ["--set-ups", str(config.set_ups)]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    environment["HF_HUB_OFFLINE"] = environment["TRANSFORMERS_OFFLINE"] = "1"
    if memory:
        command.append("--memory")
        # The C library returns freed memory at once, so that we see what is in use.
        environment["MALLOC_MMAP_THRESHOLD_"] = "65536"
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        ) as process,
    ):
        for line in process.stdout or ():
            if line.startswith("{"):
                yield json.loads(line)
        if process.wait():
            errors.seek(0)
            raise SystemExit(f"{' '.join(command)} failed:\n{errors.read()}")


def measure_rows(config: Config) -> list[dict[str, Any]]:
    """Measure all rows, one process per group, peer and device."""
    chosen = [
        (contest, index, row)
        for contest in CONTESTS
        for index, row in enumerate(rows_of(contest))
        if config.wants(row.group) and (row.quick or not config.quick)
    ]

    def process(item: tuple[str, int, Row]) -> tuple[str, str, str, str]:
        contest, _, row = item
        return contest, row.group, row.peer, row.device

    rows = []
    bar = tqdm(total=len(chosen), unit="row")
    for key, members in itertools.groupby(sorted(chosen, key=process), key=process):
        contest, group, _, device = key
        _, indices, compared = zip(*members, strict=True)
        options = ("--contest", contest, "--rows", *map(str, indices))
        timed = []
        for row, found in zip(compared, in_process(config, *options), strict=True):
            about = {k: v for k, v in vars(row).items() if k not in ("build", "quick")}
            timed.append(about | found)
            bar.write("{group}, {case}, {peer}, {mode}: {ratio}".format(**timed[-1]))
            bar.update()
        memory: Iterable[dict[str, Any]] = [NOT_MEASURED] * len(timed)
        if device == "cpu" and group not in TIME_ONLY and not config.quick:
            memory = in_process(config, *options, memory=True)
        rows += [found | used for found, used in zip(timed, memory, strict=True)]
    bar.close()
    return rows


def growth(config: Config) -> list[dict[str, Any]]:
    """Measure how time and memory grow with each size."""
    found = []
    for axis in tqdm(filter(config.wants, scaling.AXES), desc="growth"):
        (times,) = in_process(config, "--axis", axis)
        (memory,) = in_process(config, "--axis", axis, memory=True)
        found.append(times | memory)
    return found


def gemm_shares(config: Config) -> list[dict[str, Any]]:
    """Compare the rates of whole models with that of a large matrix product."""
    found = []
    for name in filter(config.wants, ("ViT-B/16", "ViT-S/16", "ViT-Ti/16")):
        sizes = vision.MODELS[name]
        model = VisionTransformer.from_preset(name, num_classes=vision.CLASSES)
        work = forward(model, torch.randn(sizes[-1], 3, sizes[0], sizes[0]))
        share = share_of_gemm(work, vision.forward_flops(sizes), config.budget)
        found.append({"model": name, "batch": sizes[-1], **share})
    side, batch = convolution.IMAGES[-1]
    name = f"Gaussian attention, {side} × {side} pixels"
    if config.wants(name):
        layer = GaussianSelfAttention(convolution.DIM, convolution.HEADS)
        work = forward(layer, torch.randn(batch, side, side, convolution.DIM))
        flops = convolution.gaussian_flops(side, batch)
        share = share_of_gemm(work, flops, config.budget)
        found.append({"model": name, "batch": batch, **share})
    return found


def noise(budget: float) -> list[float]:
    """Time a layer against its own copy several times."""
    layer = EncoderLayer(192, 3, 768, activation="gelu")

    def build() -> Pair:
        x = torch.randn(32, 65, 192)
        return Pair(*(forward(copy.deepcopy(layer), x) for _ in range(2)))

    return [compare(build, budget=budget)["ratio"] for _ in range(8)]


def main(config: Config) -> None:
    """Measure everything and write the record, or do a part of the work."""
    torch.set_num_threads(config.threads)
    if not config.memory:
        # Otherwise page faults dominate: the system takes back freed memory.
        keep_freed_memory()
    if config.contest or config.axis:
        for found in measure_here(config):
            print(json.dumps(found), flush=True)
        return
    start = time.perf_counter()
    if config.quick:
        measure_rows(replace(config, budget=config.budget / 2, set_ups=1))
        return
    elsewhere = Elsewhere()
    found = {
        "rows": measure_rows(config),
        "growth": growth(config),
        "gemm_shares": gemm_shares(config),
    }
    run = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", "benchmarks/run.py", *sys.argv[1:]]),
        "seconds": 0,
        "machine": machine(config.threads),
        "versions": versions(),
    }
    if not config.only:
        record = run | {
            "gemm_gigaflops": significant(gemm_gigaflops()),
            "noise": noise(config.budget),
            **found,
            "later_runs": [],
            "left_out": left_out.measure(config.budget),
        }
        record["seconds"] = round(time.perf_counter() - start)
    elif config.keep and any(found.values()):
        run["seconds"] = round(time.perf_counter() - start)
        run["used_elsewhere"] = elsewhere.share()
        record = merged(json.loads(RECORD.read_text("utf-8")), found, run)
    else:
        for row in (*found["growth"], *found["gemm_shares"]):
            print(json.dumps(row))
        return
    text = json.dumps(record, indent=1, ensure_ascii=False)
    RECORD.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main(tyro.cli(Config, description=__doc__))
