"""A training run of seconds, to be interrupted: in this process or in others."""

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

from transformers_hw.lab.batching import Batches, ImageBatches
from transformers_hw.lab.checkpoint import Progress
from transformers_hw.lab.dataset import Split
from transformers_hw.lab.files import read_tensors
from transformers_hw.lab.objectives import classify
from transformers_hw.lab.optimization import TrainingConfig
from transformers_hw.lab.training import CHECKPOINT, train
from transformers_hw.vision_transformer import VisionTransformer

# The server imports these once, so that its children start at once.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        "torch._dynamo",  # which an optimizer imports when it is made
        "transformers_hw.lab.training",
        "transformers_hw.vision_transformer",
    ]
)


@dataclass(frozen=True)
class Mishap:
    """What is to go wrong.

    Attributes:
        pause: Seconds that each step sleeps.
        long_step: A step that takes a minute.
        nan: Step and rank at which the loss is NaN.
        hangup: Number of steps after which an evaluation gets SIGHUP, and the rank.
        full: The step from which on no file can grow.
        die: The call in which to be killed while saving: "write", "fsync", "replace".
        die_at: Number of that checkpoint.
    """

    pause: float = 0.0
    long_step: int | None = None
    nan: tuple[int, int] | None = None
    hangup: tuple[int, int] | None = None
    full: int | None = None
    die: str | None = None
    die_at: int = 3


def some_images(count: int = 53, test: int = 23) -> tuple[Split, Split]:
    """Return images whose brighter half is the class."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count + test) % 2
    images = torch.randint(120, (count + test, 1, 8, 8), generator=generator)
    images[labels == 0, :, :4] += 100
    images[labels == 1, :, 4:] += 100
    images = images.byte()
    return Split(images[:count], labels[:count]), Split(images[count:], labels[count:])


def small_model(dropout: float = 0.2) -> VisionTransformer:
    """Return a model, the same each time."""
    torch.manual_seed(0)
    sizes = {"num_classes": 2, "dim": 8, "depth": 1, "heads": 2, "channels": 1}
    return VisionTransformer(8, 4, dropout=dropout, **sizes)


def small_config(out: Path, **changes: Any) -> TrainingConfig:
    """Return settings for three epochs, each with a small last batch."""
    fixed = {"out": out, "batch_size": 7, "device": "cpu", "warmup_steps": 5}
    length = {} if "steps" in changes else {"epochs": 3}
    return TrainingConfig(**{**fixed, **length, **changes})


def small_batches(
    config: TrainingConfig, count: int = 53
) -> tuple[ImageBatches, dict[str, Batches]]:
    """Return shuffled and augmented training batches, and test batches."""
    training, testing = some_images(count)
    mean, std = training.statistics()
    augmented = ImageBatches(
        training,
        config.batch_size,
        mean=mean,
        std=std,
        seed=config.seed,
        shuffle=True,
        crop_padding=1,
        flip=True,
    )
    return augmented, {"test": ImageBatches(testing, 10, mean=mean, std=std)}


def small_run(
    config: TrainingConfig,
    *,
    dropout: float = 0.2,
    mishap: Mishap | None = None,
    count: int = 53,
    model: nn.Module | None = None,
) -> tuple[Any, Progress]:
    """Train a small model, with a mishap or without."""
    mishap = mishap or Mishap()
    model = model or small_model(dropout)
    batches, evaluations = small_batches(config, count)
    steps = 0
    if mishap.die is not None:
        _die_in(mishap.die, mishap.die_at)

    def objective(trained: nn.Module, batch: tuple[Tensor, ...]) -> dict[str, Tensor]:
        nonlocal steps
        found, rank = classify(trained, batch), int(os.environ.get("RANK", 0))
        if not trained.training and mishap.hangup == (steps, rank):
            signal.raise_signal(signal.SIGHUP)
        if trained.training:
            time.sleep(60.0 if steps == mishap.long_step else mishap.pause)
            if mishap.nan == (steps, rank):
                found["loss"] = found["loss"] * torch.nan
            if steps == mishap.full:
                resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
            steps += 1
            _sign_of_life(config.out, steps)
        return found

    progress = train(model, batches, objective, config, evaluations=evaluations)
    return model, progress


def start(
    config: TrainingConfig, world_size: int = 1, output: str = "log", **options: Any
) -> list[ForkServerProcess]:
    """Start the processes of a small run, each with its output in a log by default.

    Otherwise it is "closed", a "broken pipe" or a "lost terminal".
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": world_size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    processes = []
    for rank in range(world_size):
        own = shared | {"RANK": rank, "LOCAL_RANK": rank}
        process = FORKS.Process(target=_forked, args=(config, own, output, options))
        process.start()
        processes.append(process)
    return processes


def finish(
    processes: list[ForkServerProcess], within: float = 60.0
) -> list[int | None]:
    """Wait for processes; return their exit codes."""
    end = time.monotonic() + within
    for process in processes:
        process.join(max(0.0, end - time.monotonic()))
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
        process.join()
    return codes


def log(config: TrainingConfig, rank: int = 0) -> str:
    """Return the output of a process."""
    path = config.out / f"log-{rank}.txt"
    return path.read_text() if path.exists() else ""


def wait_for_step(config: TrainingConfig, step: int, within: float = 60.0) -> None:
    """Wait until the first process has begun a step."""
    path, end = config.out / "alive-0", time.monotonic() + within
    while not path.exists() or path.stat().st_size < step:
        if time.monotonic() > end:
            raise TimeoutError(f"no step {step} within {within} s: {log(config)}")
        time.sleep(0.005)


def final_state(out: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the content of a checkpoint without the time."""
    tensors, metadata = read_tensors(out / CHECKPOINT)
    del metadata["progress"]["seconds"]
    return tensors, metadata


def same_state(one: Path, other: Path) -> bool:
    """Whether the checkpoints of two runs are equal in every bit."""
    (tensors, about), (others, about_other) = final_state(one), final_state(other)
    return (
        about == about_other
        and tensors.keys() == others.keys()
        and all(torch.equal(tensors[name], others[name]) for name in tensors)
    )


def _forked(
    config: TrainingConfig,
    environment: dict[str, object],
    output: str,
    options: dict[str, Any],
) -> None:
    os.environ.update({name: str(value) for name, value in environment.items()})
    config.out.mkdir(parents=True, exist_ok=True)
    if output == "closed":
        os.close(1)
        os.close(2)
        sys.stdout = sys.stderr = None  # as Python itself does when it starts so
    elif output == "log":
        path = config.out / f"log-{environment['RANK']}.txt"
        _redirect(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND))
    else:
        reader, writer = os.pipe() if output == "broken pipe" else os.openpty()
        _redirect(writer)
        os.close(reader)
    torch.set_num_threads(1)
    # A killed process would leave the default lock behind.
    tqdm.set_lock(threading.RLock())
    small_run(config, **options)


def _redirect(output: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        os.dup2(output, stream.fileno())
    os.close(output)


def _sign_of_life(out: Path, steps: int) -> None:
    rank = os.environ.get("RANK", "0")
    (out / f"pid-{rank}").write_text(str(os.getpid()))
    with (out / f"alive-{rank}").open("wb") as file:
        file.truncate(min(steps, 1000))


def _die_in(moment: str, checkpoint: int) -> None:
    """Be killed while writing a checkpoint."""
    written, original = 0, Path.write_bytes

    def killed(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def write(path: Path, content: bytes) -> int:
        nonlocal written
        written += path.name == f"{CHECKPOINT}.tmp"
        if written == checkpoint and moment == "write":
            original(path, content[: len(content) // 2])
            killed()
        if written == checkpoint:
            setattr(os if moment == "fsync" else Path, moment, killed)
        return original(path, content)

    Path.write_bytes = write  # pyright: ignore[reportAttributeAccessIssue]


if __name__ == "__main__":
    torch.set_num_threads(1)
    small_run(
        small_config(Path(sys.argv[1]), **json.loads(sys.argv[2])),
        mishap=Mishap(**json.loads(sys.argv[3])),
    )
