"""Kill a training run at random moments, and check that it loses nothing.

    python benchmarks/kill_and_resume.py --kills 200

We train a small model with dropout on shuffled, augmented images and write a checkpoint
after every step, so that many kills hit the writing itself. After each kill the
checkpoint must be complete. Whenever a run finishes, its weights, optimizer state and
history must equal those of an uninterrupted run bit for bit; then a new run begins. The
record goes to `benchmarks/records/kill_and_resume.json`.
"""

import random
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro
from tqdm import tqdm

sys.path.append(str(Path(__file__).parents[1] / "tests/lab"))

from small_run import (  # pyright: ignore[reportMissingImports]
    Mishap,
    final_state,
    finish,
    same_state,
    small_config,
    start,
)

from transformers_hw.lab.files import write_json
from transformers_hw.lab.run_record import RunRecord
from transformers_hw.lab.training import CHECKPOINT


@dataclass(frozen=True)
class Config:
    """Settings.

    Attributes:
        kills: Number of kills.
        longest: Longest time in seconds from the first step to the kill.
        seed: Seed of the random moments.
        record: File for the record.
    """

    kills: int = 200
    longest: float = 0.3
    seed: int = 0
    record: Path = Path(__file__).parent / "records/kill_and_resume.json"


def main(config: Config) -> None:
    """Kill, check, resume, compare."""
    began, moments = time.monotonic(), random.Random(config.seed)
    found = {"kills": 0, "half_written": 0, "before_the_first": 0, "finished": 0}
    different = 0
    with tempfile.TemporaryDirectory() as folder:
        whole = small_config(Path(folder) / "whole")
        require(finish(start(whole)) == [0], "the first run failed")
        epochs = len(final_state(whole.out)[1]["progress"]["history"])
        training = small_config(Path(folder) / "killed", checkpoint_steps=1)
        bar = tqdm(total=config.kills, unit="kill")
        while found["kills"] < config.kills:
            process = start(training, mishap=Mishap(pause=0.001))
            while not (training.out / "alive-0").exists() and process.is_alive():
                time.sleep(0.001)
            time.sleep(moments.uniform(0.0, config.longest))
            process.kill()
            code = finish(process)[0]
            require(code in (0, -signal.SIGKILL), f"a run ended with {code}")
            (training.out / "alive-0").unlink(missing_ok=True)
            found["kills"] += code != 0
            bar.update(code != 0)
            found["half_written"] += (training.out / f"{CHECKPOINT}.tmp").exists()
            if not (training.out / CHECKPOINT).exists():
                found["before_the_first"] += 1
                continue
            # Reading it checks that it is complete.
            _, about = final_state(training.out)
            if len(about["progress"]["history"]) == epochs:
                found["finished"] += 1
                different += not same_state(whole.out, training.out)
                shutil.rmtree(training.out)
        if training.out.exists():
            require(finish(start(training)) == [0], "the last run failed")
            found["finished"] += 1
            different += not same_state(whole.out, training.out)
    require(different == 0, f"{different} runs did not end as they should")
    record = RunRecord.of(
        {"kills": config.kills, "longest": config.longest},
        seed=config.seed,
        data={"name": "made up for the purpose"},
        device=torch.device("cpu"),
        seconds=time.monotonic() - began,
        metrics={**found, "different": different},
    )
    write_json(config.record, vars(record))


def require(condition: bool, otherwise: str) -> None:
    """Exit with a message unless a condition holds."""
    if not condition:
        raise SystemExit(otherwise)


if __name__ == "__main__":
    main(tyro.cli(Config))
