"""A run of seconds, to be interrupted: alone, in a forked process, or by torchrun."""

import json
import multiprocessing
import os
import resource
import signal
import socket
import sys
import threading
import time
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from transformers_hw.lab.batching import Batches, PictureBatches
from transformers_hw.lab.checkpoint import Progress
from transformers_hw.lab.files import read_tensors
from transformers_hw.lab.objectives import classify
from transformers_hw.lab.optimisation import TrainingConfig
from transformers_hw.lab.pictures import Split
from transformers_hw.lab.training import CHECKPOINT, train
from transformers_hw.vision_transformer import VisionTransformer

# The server imports these once; its children need no seconds to start.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        "torch._dynamo",  # which an optimiser imports when it is made
        "transformers_hw.lab.training",
        "transformers_hw.vision_transformer",
    ]
)


@dataclass(frozen=True)
class Mishap:
    """What is to go wrong.

    Attributes:
        pause: How long each step sleeps.
        long_step: A step that takes a minute.
        nan: Step and rank at which the loss is not a number.
        full: The step from which on no file may grow.
        die: What to be killed in while saving: "write", "fsync" or "replace".
        die_at: In which checkpoint.
    """

    pause: float = 0.0
    long_step: int | None = None
    nan: tuple[int, int] | None = None
    full: int | None = None
    die: str | None = None
    die_at: int = 3


def some_pictures(count: int = 53, test: int = 23) -> tuple[Split, Split]:
    """Make pictures whose brighter half tells the class."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count + test) % 2
    pictures = torch.randint(120, (count + test, 1, 8, 8), generator=generator)
    pictures[labels == 0, :, :4] += 100
    pictures[labels == 1, :, 4:] += 100
    pictures = pictures.byte()
    return Split(pictures[:count], labels[:count]), Split(
        pictures[count:], labels[count:]
    )


def small_model(dropout: float = 0.2) -> VisionTransformer:
    """Make a model, the same each time."""
    torch.manual_seed(0)
    sizes = {"classes": 2, "dim": 8, "depth": 1, "heads": 2, "channels": 1}
    return VisionTransformer(8, 4, dropout=dropout, **sizes)


def small_config(out: Path, **changes: Any) -> TrainingConfig:
    """Give settings for three epochs, the last batch of each a small one."""
    fixed = {"out": out, "batch_size": 7, "device": "cpu", "warmup_steps": 5}
    length = {} if "steps" in changes else {"epochs": 3}
    return TrainingConfig(**{**fixed, **length, **changes})


def small_batches(
    config: TrainingConfig, count: int = 53
) -> tuple[PictureBatches, dict[str, Batches]]:
    """Give shuffled and varied batches to train on, and others to test with."""
    training, testing = some_pictures(count)
    mean, std = training.statistics()
    varied = PictureBatches(
        training,
        config.batch_size,
        mean=mean,
        std=std,
        seed=config.seed,
        shuffle=True,
        crop_padding=1,
        flip=True,
    )
    return varied, {"test": PictureBatches(testing, 10, mean=mean, std=std)}


def small_run(
    config: TrainingConfig,
    *,
    dropout: float = 0.2,
    mishap: Mishap | None = None,
    count: int = 53,
) -> tuple[VisionTransformer, Progress]:
    """Train a small model, with a mishap or without."""
    mishap = mishap or Mishap()
    model = small_model(dropout)
    batches, evaluations = small_batches(config, count)
    steps = 0
    if mishap.die is not None:
        _die_in(mishap.die, mishap.die_at)

    def objective(trained: nn.Module, batch: tuple[Tensor, ...]) -> dict[str, Tensor]:
        nonlocal steps
        found = classify(trained, batch)
        if trained.training:
            time.sleep(60.0 if steps == mishap.long_step else mishap.pause)
            if mishap.nan == (steps, int(os.environ.get("RANK", 0))):
                found["loss"] = found["loss"] * torch.nan
            if steps == mishap.full:
                resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
            steps += 1
            _sign_of_life(config.out, steps)
        return found

    progress = train(model, batches, objective, config, evaluations=evaluations)
    return model, progress


def start(
    config: TrainingConfig,
    *,
    rank: int = 0,
    size: int = 1,
    port: int = 0,
    **options: Any,
) -> ForkServerProcess:
    """Start a small run in a process of its own; what it says goes to a log."""
    environment = {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank)}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    process = FORKS.Process(target=_forked, args=(config, environment, options))
    process.start()
    return process


def start_team(
    config: TrainingConfig, size: int, **options: Any
) -> list[ForkServerProcess]:
    """Start the processes of a run."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return [
        start(config, rank=rank, size=size, port=port, **options)
        for rank in range(size)
    ]


def finish(*processes: ForkServerProcess, within: float = 60.0) -> list[int | None]:
    """Wait for processes; give their exit codes."""
    end = time.monotonic() + within
    for process in processes:
        process.join(max(0.0, end - time.monotonic()))
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
        process.join()
    return codes


def log(config: TrainingConfig, rank: int = 0) -> str:
    """Give what a process has said."""
    path = config.out / f"log-{rank}.txt"
    return path.read_text() if path.exists() else ""


def steps_taken(config: TrainingConfig, rank: int = 0) -> int:
    """Give the last sign of life: how many steps a process has begun."""
    path = config.out / f"alive-{rank}"
    return path.stat().st_size if path.exists() else 0


def wait_for_step(config: TrainingConfig, step: int, within: float = 60.0) -> None:
    """Wait until a process has begun a step."""
    end = time.monotonic() + within
    while steps_taken(config) < step:
        if time.monotonic() > end:
            raise TimeoutError(f"no step {step} within {within} s: {log(config)}")
        time.sleep(0.005)


def final_state(out: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Give all that a checkpoint holds but the time it took."""
    tensors, about = read_tensors(out / CHECKPOINT)
    del about["progress"]["seconds"]
    return tensors, about


def same_state(one: Path, other: Path) -> bool:
    """Whether two runs' checkpoints are equal in every bit."""
    (tensors, about), (others, about_other) = final_state(one), final_state(other)
    return (
        about == about_other
        and tensors.keys() == others.keys()
        and all(torch.equal(tensors[name], others[name]) for name in tensors)
    )


def _forked(
    config: TrainingConfig, environment: dict[str, str], options: dict[str, Any]
) -> None:
    os.environ.update(environment)
    config.out.mkdir(parents=True, exist_ok=True)
    handle = os.open(
        config.out / f"log-{environment['RANK']}.txt",
        os.O_WRONLY | os.O_CREAT | os.O_APPEND,
    )
    os.dup2(handle, sys.stdout.fileno())
    os.dup2(handle, sys.stderr.fileno())
    torch.set_num_threads(1)
    # The default lock is one that a killed process leaves behind.
    tqdm.set_lock(threading.RLock())
    small_run(config, **options)


def _sign_of_life(out: Path, steps: int) -> None:
    rank = os.environ.get("RANK", "0")
    (out / f"pid-{rank}").write_text(str(os.getpid()))
    with (out / f"alive-{rank}").open("wb") as file:
        file.truncate(min(steps, 1000))


def _die_in(moment: str, checkpoint: int) -> None:
    """Be killed in the midst of writing a checkpoint."""
    written = 0

    def killed(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    original = Path.write_bytes

    def write(path: Path, content: bytes) -> int:
        nonlocal written
        if path.name == f"{CHECKPOINT}.tmp":
            written += 1
            if written == checkpoint:
                if moment == "write":
                    original(path, content[: len(content) // 2])
                    killed()
                target = os if moment == "fsync" else Path
                setattr(target, moment, killed)
        return original(path, content)

    Path.write_bytes = write  # pyright: ignore[reportAttributeAccessIssue]


if __name__ == "__main__":
    torch.set_num_threads(1)
    small_run(
        small_config(Path(sys.argv[1]), **json.loads(sys.argv[2])),
        mishap=Mishap(**json.loads(sys.argv[3])),
    )
