"""Experiments: settings on the command line, training, a record, and figures.

`python examples/<chapter>.py {quick,cpu,gpu}` computes numbers, writes them down and
draws; `redraw` draws again from the record, without computing anything. An example may
have parts, each with a record and figures of its own, which can be run one by one.
"""

import difflib
import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar

import safetensors.torch
import torch
import tyro
from safetensors import SafetensorError
from torch import Tensor, nn

from transformers_hw._engine.arguments import (
    check_choice,
    check_lengths,
    check_sizes,
)
from transformers_hw.lab.batching import Batches, ImageBatches
from transformers_hw.lab.checkpoint import CheckpointError, Progress
from transformers_hw.lab.dataset import Dataset, Split
from transformers_hw.lab.devices import DeviceName, pick_device
from transformers_hw.lab.distributed import Distributed, init_distributed
from transformers_hw.lab.download import DownloadError
from transformers_hw.lab.files import DamagedFileError, FolderInUseError
from transformers_hw.lab.images import load_images
from transformers_hw.lab.objectives import Objective
from transformers_hw.lab.optimization import TrainingConfig
from transformers_hw.lab.plotting import Drawing, Markup, save_figures
from transformers_hw.lab.progress_bar import lenient_output
from transformers_hw.lab.run_record import RunRecord
from transformers_hw.lab.signals import Stopped
from transformers_hw.lab.training import Callback, train

RESULTS = "results.safetensors"
SITE_FIGURES = Path("docs/figures")
HINTS = {
    "quick": "Seconds to a minute on two cores.",
    "cpu": "The run that the site shows: minutes to some hours on two cores.",
    "gpu": "The scale of the papers, for a CUDA device.",
}

Results = dict[str, Tensor]
Metrics = dict[str, Any]
Drawings = dict[str, tuple[Drawing, float] | Markup]


@dataclass(frozen=True)
class ExampleConfig:
    """Settings of every example."""

    seed: int = 0
    """Seed of all random draws."""
    device: DeviceName = "auto"
    """Device to compute on; auto takes a GPU if there is one."""
    out: Path = Path("runs")
    """Folder for the record and the figures."""


@dataclass(frozen=True)
class TrainingExampleConfig(ExampleConfig):
    """Settings of an example that trains models."""

    batch_size: int = 64
    """Samples in a batch."""
    seeds: int = 1
    """Number of seeds to train every model from: seed, seed + 1, and so on."""
    tensorboard: bool = False
    """Whether to log curves for TensorBoard."""
    start_over: bool = False
    """Whether to train again what was trained before."""

    @property
    def all_seeds(self) -> range:
        """The seeds to train every model from."""
        return range(self.seed, self.seed + self.seeds)


@dataclass(frozen=True)
class ImageExampleConfig(TrainingExampleConfig):
    """Settings of an example that trains models on images."""

    data: str = "digits"
    """Images: digits, cifar10, or a folder or zip of train/ and test/."""
    learning_rate: float = 1e-3
    """Peak learning rate."""
    weight_decay: float = 0.05
    """Weight decay."""


@dataclass(frozen=True)
class Redraw:
    """Draw the figures again from a run's record."""

    out: Path
    """Folder of the run; the figures go there as well."""


Config = TypeVar("Config", bound=ExampleConfig)


class Experiment(Generic[Config]):
    """One run of an example: it trains models and collects what is measured.

    Args:
        config: Settings.

    Attributes:
        config: Settings.
        device: Device to compute on.
        dataset: Images that `config.data` names, if it does, on the device.
        part: Name of the part that is computed; empty if the example has no parts.
        results: Arrays to draw, by name.
        metrics: Numbers to report, by name.
        earlier_seconds: Time that trainings had taken before they were resumed.

    Raises:
        ValueError: The device or the images are not available.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.device = pick_device(config.device)
        source = getattr(config, "data", None)
        self._dataset = None if source is None else load_images(source).to(self.device)
        self.begin("")

    def begin(self, part: str) -> None:
        """Forget what was measured, and begin with a part."""
        self.part = part
        self.results: Results = {}
        self.metrics: Metrics = {}
        self.earlier_seconds = 0.0

    @property
    def dataset(self) -> Dataset:
        """The images."""
        if self._dataset is None:
            raise ValueError("this example has no images: its settings have no data.")
        return self._dataset

    @cached_property
    def _statistics(self) -> tuple[Tensor, Tensor]:
        return self.dataset.train.statistics()

    def describe_data(self) -> dict[str, Any]:
        """Return what the record says about the images, if there are any."""
        return self._dataset.describe() if self._dataset else {}

    def image_batches(
        self, split: Split, batch_size: int, **options: Any
    ) -> ImageBatches:
        """Return batches of a split, normalized as the training images are."""
        mean, std = self._statistics
        return ImageBatches(split, batch_size, mean=mean, std=std, **options)

    def train(
        self,
        name: str,
        make_model: Callable[[], nn.Module],
        batches: Batches,
        objective: Objective,
        *,
        seed: int | None = None,
        evaluations: Mapping[str, Batches] | None = None,
        callbacks: tuple[Callback, ...] = (),
        identity: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> tuple[Any, Progress]:
        """Train a model, or resume its training, in a folder of its own.

        Args:
            name: Name of the model: of its folder, and on the progress bar.
            make_model: Builds the model; the seed (`seed` among the options, or that
                of the example) is set before.
            batches: Training data.
            objective: Loss and metrics of a batch, the same as for `train`.
            seed: Seed of the initial weights and of dropout, if it is not that of the
                experiment; the folder is then named after it, too.
            evaluations: Data to evaluate on.
            callbacks: Functions called after each evaluation.
            identity: Settings the training depends on, beyond the model and options.
            **options: Settings of
                [`TrainingConfig`][transformers_hw.lab.optimization.TrainingConfig].

        Returns:
            The model, in evaluation mode, and the progress.
        """
        common = ("seed", "device", "batch_size", "tensorboard", "start_over")
        settings = {field: getattr(self.config, field) for field in common}
        if seed is not None:
            name, settings["seed"] = f"{name}_seed_{seed}", seed
        with usage_errors():
            out = training_folder(self.config.out) / self.part / name
            config = TrainingConfig(out=out, **{**settings, **options})
        # Neither the order of trainings nor a pause between them changes a model.
        torch.manual_seed(settings["seed"])
        model = make_model()
        # A model without a config is told apart by its parameters.
        about = {"model": str(getattr(model, "config", "")), **(identity or {})}
        if self._dataset is not None:
            about["data"] = self._dataset.digest
        start = time.monotonic()
        progress = train(
            model,
            batches,
            objective,
            config,
            name=name,
            evaluations=evaluations,
            callbacks=callbacks,
            identity=about,
        )
        spent = time.monotonic() - start
        self.earlier_seconds += max(0.0, progress.seconds - spent)
        return model.eval(), progress


def training_folder(out: Path) -> Path:
    """Return the folder for checkpoints: `out`, or one in `runs` if `out` is the site.

    Examples:
        >>> training_folder(Path("docs/figures/seq2seq")).as_posix()
        'runs/seq2seq/cpu'
    """
    if out.is_relative_to(SITE_FIGURES):
        return Path("runs", out.relative_to(SITE_FIGURES), "cpu")
    return out


def minutes(progress: Progress) -> float:
    """Return the training time, in minutes."""
    return round(progress.seconds / 60, 2)


def spread(values: Iterable[float], digits: int = 4) -> dict[str, float]:
    """Return mean, least and greatest of what several seeds gave, rounded.

    Examples:
        >>> spread([0.5, 0.25, 0.75])
        {'mean': 0.5, 'min': 0.25, 'max': 0.75}
    """
    found = [*values]
    numbers = {"mean": fmean(found), "min": min(found), "max": max(found)}
    return {name: round(number, digits) for name, number in numbers.items()}


class Part(NamedTuple):
    """A part of an example, with a record and figures of its own.

    Attributes:
        compute: Fills the results and metrics of an experiment.
        drawings: Function of results and metrics that returns the figures.
        summary: Function of the metrics that returns the outcome in a few lines.
    """

    compute: Callable[[Experiment[Any]], None]
    drawings: Callable[[Results, Metrics], Drawings]
    summary: Callable[[Metrics], str]


def run_example(
    chapter: str,
    presets: Mapping[str, Config],
    compute: Callable[[Experiment[Config]], None],
    drawings: Callable[[Results, Metrics], Drawings],
    summary: Callable[[Metrics], str],
    *,
    arguments: list[str] | None = None,
) -> Path:
    """Run an example that has no parts; see `run_parts` and `Part`."""
    part = Part(compute, drawings, summary)
    return run_parts(chapter, presets, {"": part}, arguments=arguments)


@lenient_output()
def run_parts(
    chapter: str,
    presets: Mapping[str, Config],
    parts: Mapping[str, Part],
    *,
    arguments: list[str] | None = None,
) -> Path:
    """Run an example as the command line says.

    Args:
        chapter: Name of the chapter, which is the script's.
        presets: Settings by name: `quick`, `cpu` and `gpu`. The figures of `cpu` go
            to the site, the others into `runs`.
        parts: What to compute and draw, by name, each in a folder of its own;
            `config.parts` selects some of them.
        arguments: Command line; by default that of the process.

    Returns:
        The folder written to.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    config = _parse(chapter, presets, arguments)
    if isinstance(config, Redraw):
        with usage_errors():
            _redraw(config.out, parts)
        return config.out
    with usage_errors():
        _check_numbers(config)
        selected = getattr(config, "parts", ()) or tuple(parts)
        for part in selected:
            check_choice("parts", part, tuple(parts))
        device = pick_device(config.device)
    with init_distributed(device) as distributed, _clear_stops(distributed):
        with usage_errors():
            experiment = Experiment(config)
        for part in selected:
            torch.manual_seed(config.seed)
            experiment.begin(part)
            start = time.perf_counter()
            parts[part].compute(experiment)
            if distributed.is_main:
                _write(experiment, parts[part], time.perf_counter() - start, chapter)
        if arguments[:1] == ["quick"] and distributed.is_main:
            sys.stdout.write("These were quick settings; the site shows `cpu`.\n")
    return config.out


def _write(
    experiment: Experiment[Any], part: Part, seconds: float, chapter: str
) -> None:
    """Write the record and the figures of a part, and tell the outcome."""
    config, out = experiment.config, experiment.config.out / experiment.part
    record = RunRecord.of(
        config,
        seed=config.seed,
        data=experiment.describe_data(),
        device=experiment.device,
        seconds=seconds + experiment.earlier_seconds,
        metrics=experiment.metrics,
    )
    results = {
        name: x.detach().cpu().contiguous() for name, x in experiment.results.items()
    }
    out.mkdir(parents=True, exist_ok=True)
    safetensors.torch.save_file(results, out / RESULTS)
    record.write(out)
    figures = save_figures(out, part.drawings(results, record.metrics))
    name = f"{chapter}, {experiment.part}" if experiment.part else chapter
    sys.stdout.write(
        f"\n{name}, {record.seconds:.0f} s on {record.device}\n"
        f"{part.summary(record.metrics)}\n"
    )
    _tell(out, figures)
    if getattr(config, "tensorboard", False):
        folder = training_folder(config.out) / experiment.part
        sys.stdout.write(f"Curves: tensorboard --logdir {folder}\n")


def _redraw(out: Path, parts: Mapping[str, Part]) -> None:
    """Draw the parts that a folder has a record of."""
    found = [part for part in parts if (out / part / RESULTS).exists()]
    for part in found or list(parts)[:1]:
        results, metrics = _read(out / part)
        drawings = parts[part].drawings(results, metrics)
        _tell(out / part, save_figures(out / part, drawings))


@contextmanager
def usage_errors() -> Iterator[None]:
    """Report errors that the command line caused in one line, with exit code 2."""
    try:
        yield
    except (ValueError, FileNotFoundError, DownloadError) as error:
        _fail(error)


@contextmanager
def _clear_stops(distributed: Distributed) -> Iterator[None]:
    try:
        yield
    except (CheckpointError, DamagedFileError, FolderInUseError) as error:
        _fail(error)
    except (Stopped, KeyboardInterrupt) as stop:
        if distributed.is_main:
            sys.stderr.write("\nStopped. The same command resumes.\n")
        raise SystemExit(stop.code if isinstance(stop, Stopped) else 130) from None


def _fail(error: Exception | str) -> NoReturn:
    sys.stderr.write(f"{Path(sys.argv[0]).name}: error: {error}\n")
    raise SystemExit(2) from None


def _tell(out: Path, figures: list[Path]) -> None:
    sys.stdout.write(
        f"Figures, run.json and {RESULTS} are in {out}.\n"
        f"To look at a figure, open {figures[0]} in a browser.\n"
    )


def _parse(
    chapter: str, presets: Mapping[str, Config], arguments: list[str]
) -> Config | Redraw:
    site = SITE_FIGURES / chapter
    choices: dict[str, tuple[str, Any]] = {}
    for name, config in presets.items():
        out = site if name == "cpu" else Path("runs", chapter, name)
        choices[name] = (HINTS[name], replace(config, out=out))
    choices["redraw"] = (Redraw.__doc__ or "", Redraw(site))
    if arguments and arguments[0] in choices:
        known = {"--help", *_options(choices[arguments[0]][1])}
        for argument in arguments[1:]:
            option = argument.partition("=")[0].replace("_", "-")
            if re.match("--[a-z]", option) and option not in known:
                _fail(f"unknown option {option}; {_hint(option, known)}.")
    return tyro.extras.overridable_config_cli(choices, args=arguments)


def _check_numbers(config: Any) -> None:
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            _check_numbers(value)
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, int) and not isinstance(number, bool):
                # Zero is a seed, and means no crop or no erased square.
                zero = field.name.endswith(("seed", "crop_padding", "erase"))
                (check_lengths if zero else check_sizes)(**{field.name: number})


def _options(config: Any, prefix: str = "--") -> Iterator[str]:
    for field in fields(config):
        name, value = field.name.replace("_", "-"), getattr(config, field.name)
        if is_dataclass(value):
            yield from _options(value, f"{prefix}{name}.")
        else:
            yield prefix + name
            if isinstance(value, bool):
                yield f"{prefix}no-{name}"


def _hint(option: str, known: set[str]) -> str:
    # Initials count as near: --lr means --learning-rate.
    for name in sorted(known):
        if "".join(word[0] for word in name[2:].split("-") if word) == option[2:]:
            return f"the nearest is {name}"
    nearest = difflib.get_close_matches(option, sorted(known), n=1, cutoff=0.5)
    return f"the nearest is {nearest[0]}" if nearest else "--help lists all options"


def _read(folder: Path) -> tuple[Results, Metrics]:
    try:
        results = safetensors.torch.load_file(folder / RESULTS)
        return results, RunRecord.read(folder).metrics
    except FileNotFoundError:
        raise ValueError(f"out must be the folder of a run, got {folder}.") from None
    except (SafetensorError, json.JSONDecodeError) as error:
        raise ValueError(f"the record in {folder} is damaged: {error}.") from None
