"""What a run was: the facts behind every figure, in `run.json`."""

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
        command: What started it.
        config: Its settings.
        seed: Its seed.
        data: What it was trained on.
        versions: Of Python and of the packages it depends on.
        device: Where it computed.
        threads: How many threads of the CPU.
        processes: How many processes.
        seconds: How long it took.
        metrics: What was measured.
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
        """Gather the facts of a run that has ended.

        Args:
            config: A dataclass of settings, or a mapping.
            seed: The seed.
            data: What it was trained on, such as `Pictures.describe()`.
            device: Where it computed.
            seconds: How long it took.
            metrics: What was measured, as numbers, lists and mappings.

        Returns:
            The record.
        """
        settings = asdict(config) if is_dataclass(config) else dict(config)  # type: ignore[arg-type]
        return cls(
            command=_command(),
            config=_plain(settings),
            seed=seed,
            data=_plain(dict(data)),
            versions=_versions(),
            device=_device_name(device),
            threads=torch.get_num_threads(),
            processes=int(os.environ.get("WORLD_SIZE", 1)),
            seconds=round(seconds, 1),
            metrics=_plain(dict(metrics)),
        )

    def write(self, folder: Path) -> Path:
        """Write `run.json` into a folder, whole; give its path."""
        write_json(folder / NAME, asdict(self))
        return folder / NAME

    @classmethod
    def read(cls, folder: Path) -> "RunRecord":
        """Read the `run.json` of a folder."""
        return cls(**json.loads((folder / NAME).read_text("utf-8")))


def _command() -> str:
    # An absolute path would tell of a machine, not of the run.
    script, *options = sys.argv
    return " ".join(["python", _short(Path(script)), *options])


def _short(path: Path) -> str:
    here = Path.cwd()
    if path.is_absolute():
        path = path.relative_to(here) if path.is_relative_to(here) else Path(path.name)
    return path.as_posix()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(x) for k, x in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(x) for x in value]
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
