"""The record of a run: the facts behind every figure, in `run.json`."""

import json
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from transformers_hw.lab.files import write_json

PACKAGES = ("transformers-hw", "torch", "torchvision", "einops", "numpy")
NAME = "run.json"


@dataclass(frozen=True)
class RunRecord:
    """The facts of a run.

    Attributes:
        command: Command line.
        config: Settings.
        seed: Seed.
        data: Description of the training data.
        versions: Versions of Python and of the packages used.
        device: Device.
        threads: Number of CPU threads.
        processes: Number of processes.
        seconds: Duration.
        metrics: Measured numbers. Keys are words without spaces or dots, so that a
            dotted path finds a number.
    """

    command: str
    config: dict[str, Any]
    seed: int
    data: dict[str, Any]
    versions: dict[str, str]
    device: str
    threads: int
    processes: int
    seconds: float
    metrics: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        config: Any,
        *,
        seed: int,
        data: Mapping[str, Any],
        device: torch.device,
        seconds: float,
        metrics: Mapping[str, Any],
    ) -> "RunRecord":
        """Gather the facts of a run that has ended; `config` may be a dataclass."""
        settings = asdict(config) if is_dataclass(config) else dict(config)  # type: ignore[arg-type]
        return cls(
            command=_command(),
            config=_as_json(settings),
            seed=seed,
            data=_as_json(dict(data)),
            versions=_versions(),
            device=_device_name(device),
            threads=torch.get_num_threads(),
            processes=int(os.environ.get("WORLD_SIZE", 1)),
            seconds=round(seconds, 1),
            metrics=_as_json(dict(metrics)),
        )

    def write(self, folder: Path) -> Path:
        """Write `run.json` into a folder, atomically; return its path."""
        write_json(folder / NAME, asdict(self))
        return folder / NAME

    @classmethod
    def read(cls, folder: Path) -> "RunRecord":
        """Read the `run.json` of a folder."""
        return cls(**json.loads((folder / NAME).read_text("utf-8")))


def _command() -> str:
    script, *options = sys.argv
    return " ".join(["python", _short(Path(script)), *options])


def _short(path: Path) -> str:
    # An absolute path would describe a machine, not the run.
    here = Path.cwd()
    if path.is_absolute():
        path = path.relative_to(here) if path.is_relative_to(here) else Path(path.name)
    return path.as_posix()


def _as_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _as_json(x) for k, x in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(x) for x in value]
    if isinstance(value, torch.Tensor):
        return value.tolist()
    return _short(value) if isinstance(value, Path) else value


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} ({platform.machine()}, {platform.system()})"
