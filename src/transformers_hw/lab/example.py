"""What the examples share: settings on the command line, a record, and figures.

`python examples/<chapter>.py {quick,cpu,gpu}` computes numbers, writes them down and
draws; `redraw` draws again from what was written down, without computing anything.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import safetensors.torch
import torch
import tyro
from torch import Tensor

from transformers_hw.lab.devices import pick_device
from transformers_hw.lab.distributed import join_team
from transformers_hw.lab.plotting import Drawing, save_figures
from transformers_hw.lab.run_record import RunRecord

RESULTS = "results.safetensors"
HINTS = {
    "quick": "Seconds to a minute on two cores; continuous integration runs it.",
    "cpu": "What the site shows: within an hour on two cores.",
    "gpu": "The scale of the papers, for a CUDA device.",
}

Results = dict[str, Tensor]
Metrics = dict[str, Any]
Drawings = dict[str, tuple[Drawing, float]]


@dataclass(frozen=True)
class ExampleConfig:
    """Settings that every example has."""

    seed: int = 0
    """Of everything that is drawn at random."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to compute; auto takes a GPU if there is one."""
    out: Path = Path("runs")
    """Folder for the record and the figures."""


@dataclass(frozen=True)
class Redraw:
    """Draw the figures again from a run's record."""

    out: Path
    """The run's folder, which the figures go to as well."""


Config = TypeVar("Config", bound=ExampleConfig)
SHOWN = Path("docs/figures")


def training_folder(config: ExampleConfig, name: str) -> Path:
    """Say where the checkpoints of a training go, which the site does not show.

    Args:
        config: The run's settings.
        name: What is trained.

    Returns:
        A folder beside the figures, or in `runs` if the figures are the site's.

    Examples:
        >>> training_folder(ExampleConfig(out=SHOWN / "seq2seq"), "gru").as_posix()
        'runs/seq2seq/cpu/gru'
    """
    if config.out.is_relative_to(SHOWN):
        return Path("runs", config.out.relative_to(SHOWN), "cpu", name)
    return config.out / name


def run_example(
    chapter: str,
    *,
    presets: Mapping[str, Config],
    compute: Callable[[Config, torch.device], tuple[Results, Metrics]],
    drawings: Callable[[Results, Metrics], Drawings],
    data: Callable[[Config], Mapping[str, Any]] | None = None,
    arguments: list[str] | None = None,
) -> Path:
    """Run an example as the command line says.

    Args:
        chapter: The chapter's name, which is the script's.
        presets: Settings by name: `quick`, `cpu` and `gpu`. The figures of `cpu` go
            where the site shows them from, the others into `runs`.
        compute: Gives arrays to draw and numbers to report, from settings. Where it
            takes up trainings of an earlier sitting, it reports the time they had
            taken as `earlier_seconds`, which counts as part of the run.
        drawings: Gives the figures, from those arrays and numbers alone.
        data: Says what data the settings name, such as `Pictures.describe()`, for
            the record of an example that reads any.
        arguments: The command line, if it is not the process's own.

    Returns:
        The folder written to.
    """
    shown = SHOWN / chapter
    choices: dict[str, tuple[str, Any]] = {
        name: (
            HINTS[name],
            replace(
                config, out=shown if name == "cpu" else Path("runs", chapter, name)
            ),
        )
        for name, config in presets.items()
    }
    choices["redraw"] = (Redraw.__doc__ or "", Redraw(shown))
    chosen = tyro.extras.overridable_config_cli(choices, args=arguments)
    if isinstance(chosen, Redraw):
        results = safetensors.torch.load_file(chosen.out / RESULTS)
        metrics = RunRecord.read(chosen.out).metrics
        save_figures(chosen.out, drawings(results, metrics))
        return chosen.out
    device = pick_device(chosen.device)
    with join_team(device) as team:
        record, results = _computed(chosen, compute, data, device)
        if team.leads:
            chosen.out.mkdir(parents=True, exist_ok=True)
            safetensors.torch.save_file(results, chosen.out / RESULTS)
            record.write(chosen.out)
            save_figures(chosen.out, drawings(results, record.metrics))
    return chosen.out


def _computed(
    config: Config,
    compute: Callable[[Config, torch.device], tuple[Results, Metrics]],
    data: Callable[[Config], Mapping[str, Any]] | None,
    device: torch.device,
) -> tuple[RunRecord, Results]:
    torch.manual_seed(config.seed)
    start = time.perf_counter()
    results, metrics = compute(config, device)
    earlier = metrics.pop("earlier_seconds", 0.0)
    record = RunRecord.of(
        config,
        seed=config.seed,
        data=data(config) if data else {},
        device=device,
        seconds=time.perf_counter() - start + earlier,
        metrics=metrics,
    )
    kept = {name: x.detach().cpu().contiguous() for name, x in results.items()}
    return record, kept
