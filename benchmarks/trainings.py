"""Time the examples' `cpu` settings on all cores, without waiting for them to end.

    python benchmarks/trainings.py --data cifar10.zip    prints, and writes the record
    python benchmarks/trainings.py --only seq2seq vision_transformer/main
                                                         keeps the times of the others

Every model is trained for some steps only, and evaluated once. The time of a training
is the median of its steps times their number, and that of its evaluations. What an
example does besides is done in full. Nothing else should run on the machine.
"""

import argparse
import importlib
import json
import math
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from transformers_hw.lab import experiment, training
from transformers_hw.lab.batching import Batches
from transformers_hw.lab.checkpoint import Progress
from transformers_hw.lab.devices import keep_freed_memory, pick_device
from transformers_hw.lab.distributed import Distributed
from transformers_hw.lab.objectives import Objective, means
from transformers_hw.lab.optimization import TrainingConfig, make_optimizer
from transformers_hw.lab.signals import StopRequest

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "benchmarks/records/trainings.json"
CHAPTERS = ("attention", "positional_encoding", "multi_head_attention")
CHAPTERS += ("self_attention", "seq2seq", "transformer", "vision_transformer")
CHAPTERS += ("attention_as_convolution",)
# What a part without a name is about, where others have one.
UNNAMED = {"transformer": "norms and positions"}
# The first steps also allocate memory.
WARM, SECONDS, MOST = 3, 2.0, 40


class Stopwatch:
    """Stands in for `train`: takes some steps, and tells how long all would take.

    Attributes:
        trainings: Number of trainings, steps and minutes, by name without the seed.
        spent: Seconds that measuring took.
    """

    def __init__(self) -> None:
        self.trainings: dict[str, dict[str, Any]] = {}
        self.progress: dict[str, Progress] = {}
        self.spent = 0.0

    def train(
        self,
        model: nn.Module,
        batches: Batches,
        objective: Objective,
        config: TrainingConfig,
        *,
        name: str,
        **options: Any,
    ) -> Progress:
        """Return the progress of a training as it would be if nothing was learned."""
        start, name = time.perf_counter(), re.sub(r"_seed_\d+$", "", name)
        if name not in self.trainings:
            told = measure(model, batches, objective, config, **options)
            self.progress[name], milliseconds = told
            self.trainings[name] = {
                "trainings": 0,
                "steps": told[0].step,
                "milliseconds_per_step": round(milliseconds, 2),
                "minutes": round(told[0].seconds / 60, 2),
            }
        self.trainings[name]["trainings"] += 1
        self.spent += time.perf_counter() - start
        return self.progress[name]


def measure(
    model: nn.Module,
    batches: Batches,
    objective: Objective,
    config: TrainingConfig,
    *,
    evaluations: Mapping[str, Batches] | None = None,
    callbacks: Any = (),
    identity: Any = None,
) -> tuple[Progress, float]:
    """Return the progress that a training would make, and a step's milliseconds."""
    del identity
    device = pick_device(config.device)
    keep_freed_memory()
    worker = training._Worker(
        objective, device, config.precision, Distributed(), StopRequest()
    )
    optimizer = make_optimizer(model.to(device), config)
    total = config.steps or (config.epochs or 0) * (batches.steps_per_epoch or 0)
    every = config.evaluate_every or batches.steps_per_epoch or total
    times: list[float] = []
    sums: dict[str, float] = {}
    while len(times) < WARM + 3 or (len(times) < MOST and sum(times) < SECONDS):
        start = time.perf_counter()
        sums, _ = worker.step(
            model,
            batches,
            len(times),
            optimizer,
            config.learning_rate,
            config.clip_norm,
        )
        times.append(time.perf_counter() - start)
    start = time.perf_counter()
    found: dict[str, Any] = {"train": means(sums)}
    for split, others in (evaluations or {}).items():
        found[split] = worker.evaluate(model, others)
    for callback in callbacks:
        found.update(callback(model.eval(), 0, None))
    evaluation = time.perf_counter() - start
    tests = [min(total, (1 + n) * every) for n in range(math.ceil(total / every))]
    history = [{"step": n, "epoch": n / total, **found} for n in tests]
    a_step = statistics.median(times[WARM:])
    seconds = total * a_step + len(tests) * evaluation
    return Progress(step=total, seconds=seconds, history=history), 1e3 * a_step


def chapter_times(
    chapter: str, data: str, out: Path, only: list[str] | None
) -> dict[str, Any]:
    """Return how long each part of a chapter's example takes, or some of them."""
    example = importlib.import_module(chapter)
    config = replace(example.PRESETS["cpu"], out=out)
    if hasattr(config, "data"):
        config = replace(config, data=data)
    whole = experiment.Experiment(config)
    computes = {"": example.compute} if hasattr(example, "compute") else {}
    computes |= {n: p.compute for n, p in getattr(example, "PARTS", {}).items()}
    found = {}
    for part, compute in computes.items():
        name = f"{chapter}/{part}" if part else chapter
        if only and not {name, chapter} & {*only}:
            continue
        stopwatch = Stopwatch()
        experiment.train = stopwatch.train  # type: ignore[assignment]
        torch.manual_seed(config.seed)
        whole.begin(part)
        start = time.perf_counter()
        compute(whole)
        minutes = (time.perf_counter() - start - stopwatch.spent) / 60
        for told in stopwatch.trainings.values():
            minutes += told["trainings"] * told["minutes"]
        found[name] = {
            "minutes": round(minutes, 1),
            "trainings": stopwatch.trainings,
        }
        print(f"{name}: {minutes:.1f} minutes", flush=True)
    return found


def table(record: dict[str, Any]) -> str:
    """Return the times as a table in Markdown."""
    rows = ["| Chapter, part | Trainings | Minutes |", "|---|--:|--:|"]
    for name, part in record["parts"].items():
        chapter, _, what = name.partition("/")
        what = what.replace("_", " ") or UNNAMED.get(chapter, "")
        cells = [f"{1 + CHAPTERS.index(chapter)}{', ' * bool(what)}{what}"]
        cells.append(str(sum(x["trainings"] for x in part["trainings"].values())))
        rows.append(f"| {' | '.join(cells)} | {part['minutes']:.1f} |")
    return "\n".join(rows) + "\n"


def main() -> None:
    """Time every example."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="cifar10", help="images, as for the examples")
    parser.add_argument("--only", nargs="+", help="chapters or parts to time")
    given = parser.parse_args()
    sys.path.append(str(ROOT / "examples"))
    machine = {"cores": os.cpu_count(), "threads": torch.get_num_threads()}
    parts = json.loads(RECORD.read_text("utf-8"))["parts"] if given.only else {}
    chapters = {x.partition("/")[0] for x in given.only or CHAPTERS}
    if unknown := chapters - {*CHAPTERS}:
        parser.error(f"the chapters are {', '.join(CHAPTERS)}, got {min(unknown)}")
    with tempfile.TemporaryDirectory() as folder:
        for chapter in filter(chapters.__contains__, CHAPTERS):
            parts |= chapter_times(chapter, given.data, Path(folder), given.only)
    record = machine | {"parts": parts}
    RECORD.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    RECORD.with_suffix(".md").write_text(table(record), "utf-8")


if __name__ == "__main__":
    main()
