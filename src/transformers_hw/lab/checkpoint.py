"""Checkpoints: weights, optimizer and progress in one file, so they always match."""

import json
import reprlib
import sys
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from transformers_hw.lab.files import read_tensors, write_tensors
from transformers_hw.pretrained import save_model

# What an optimizer keeps for each parameter it has updated.
OPTIMIZER_STATES = {
    torch.optim.AdamW: ("step", "exp_avg", "exp_avg_sq"),
    torch.optim.SGD: ("momentum_buffer",),
}
# Counts of samples are sums of floats, which are exact up to here.
MOST_SAMPLES = 2**53
SHORTENED = reprlib.Repr()
SHORTENED.maxlist, SHORTENED.maxstring = 8, 100

Layout = tuple[torch.Size, torch.dtype]


class CheckpointError(RuntimeError):
    """A checkpoint is of another run, of another model, or of no possible run."""


@dataclass
class Progress:
    """Progress of a run.

    Attributes:
        step: Number of optimizer steps taken.
        history: Metrics of each evaluation.
        running: Sums of the training metrics since the last evaluation.
        seconds: Training time, without pauses.
    """

    step: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    running: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0


def save_checkpoint(
    path: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    progress: Progress,
    identity: Mapping[str, Any],
) -> None:
    """Write everything that is needed to resume a run.

    Args:
        path: The file; it holds the previous checkpoint until this one is complete.
        model: The model.
        optimizer: Its optimizer.
        progress: The progress.
        identity: Settings that the run must have when it is resumed.

    Raises:
        OSError: The file cannot be written; the previous checkpoint is intact.
    """
    tensors = {f"model/{name}": x for name, x in _state(model).items()}
    metadata: dict[str, Any] = {"progress": asdict(progress)}
    metadata["identity"] = _as_json(identity)
    for name, parameter in _names(model, optimizer).items():
        state = optimizer.state.get(parameter, {})
        if not state:
            # It never had a gradient. Otherwise, missing state is an error.
            metadata.setdefault("idle", []).append(name)
        for key, x in state.items():
            if isinstance(x, Tensor):
                tensors[f"optimizer/{name}/{key}"] = x
    try:
        write_tensors(path, tensors, metadata)
    except OSError as error:
        reason = error.strerror or error
        raise OSError(
            error.errno,
            f"the checkpoint of step {progress.step} could not be written ({reason}); "
            "the previous one, if any, is intact",
            str(path),
        ) from error


def load_checkpoint(
    path: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    identity: Mapping[str, Any],
    total: int = sys.maxsize,
    evaluations: Collection[str] = (),
) -> Progress | None:
    """Restore a model and its optimizer from a checkpoint.

    Every tensor, those of the optimizer included, must have the name, shape and dtype
    that the run expects. If one has not, or anything else is wrong, neither the model
    nor the optimizer is changed.

    Args:
        path: The file.
        model: The model, as it was built when the run began.
        optimizer: Its optimizer, AdamW or SGD with momentum.
        identity: Settings of the run.
        total: Number of steps that the run will take.
        evaluations: Names of the data that the run evaluates on. Their metrics in the
            history are checked, as those of `train` are.

    Returns:
        The progress, or `None` if there is no checkpoint.

    Raises:
        CheckpointError: The checkpoint is of other settings or another model, lacks
            state of the optimizer, or has a progress that no run can have.
        DamagedFileError: The file is damaged.
    """
    if not path.exists():
        return None
    tensors, metadata = read_tensors(path)
    parts = {"progress": dict, "identity": dict, "idle": list}
    metadata = {"idle": [], **metadata}
    if not all(isinstance(metadata.get(part), kind) for part, kind in parts.items()):
        raise CheckpointError(f"{path} is not a checkpoint.")
    _check_identity(path, metadata["identity"], _as_json(identity))
    if flaw := _flaw(metadata["progress"], total, evaluations):
        raise CheckpointError(f"{path} has a malformed progress: {flaw}.")
    progress = Progress(**metadata["progress"])
    weights, parameters = _state(model), _names(model, optimizer)
    idle = metadata["idle"] if progress.step else parameters
    updated = [name for name in parameters if name not in idle]
    wanted = {f"model/{name}": (x.shape, x.dtype) for name, x in weights.items()}
    for name in updated:
        for key, layout in _layouts(optimizer, parameters[name]).items():
            wanted[f"optimizer/{name}/{key}"] = layout
    _check_tensors(path, tensors, wanted)
    known = all(isinstance(name, str) and name in parameters for name in idle)
    if not known or (progress.step and parameters and not updated):
        raise CheckpointError(
            f"{path} lacks state of the optimizer: idle must name some of the model's "
            f"parameters, but not all, got {SHORTENED.repr(metadata['idle'])}."
        )
    for name in updated:
        step = tensors.get(f"optimizer/{name}/step")
        # A parameter whose first gradient came late is behind the others.
        if step is not None and not 1 <= step.item() <= progress.step:
            raise CheckpointError(
                f"{path} has a malformed progress: the optimizer must have updated "
                f"{name} 1 to {progress.step} times, got {step.item()}."
            )
    # Only now is anything assigned.
    with torch.no_grad():
        for name, x in weights.items():
            x.copy_(tensors[f"model/{name}"])
    state = {
        number: {
            key: _laid_out_like(parameter, tensors[f"optimizer/{name}/{key}"])
            for key in _layouts(optimizer, parameter)
        }
        for number, (name, parameter) in enumerate(parameters.items())
        if name in updated
    }
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    return progress


def save_weights(path: Path, model: nn.Module) -> None:
    """Write a model's weights, as `save_model` does if it is a model of the book."""
    try:
        save_model(model, path)
    # A model of another kind, such as a ResNet, or with parts of another kind.
    except (TypeError, ValueError):
        write_tensors(path, _state(model), {})


def _state(model: nn.Module) -> dict[str, Tensor]:
    # A tensor with two names, such as a tied embedding, is kept under the first.
    seen: set[tuple[int, torch.Size]] = set()
    kept: dict[str, Tensor] = {}
    for name, x in model.state_dict().items():
        storage = (x.data_ptr(), x.shape)
        if storage not in seen or not x.numel():
            seen.add(storage)
            kept[name] = x
    return kept


def _names(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    # In the order in which the optimizer numbers its parameters.
    names = {parameter: name for name, parameter in model.named_parameters()}
    parameters = [x for group in optimizer.param_groups for x in group["params"]]
    return {names[parameter]: parameter for parameter in parameters}


def _laid_out_like(parameter: Tensor, x: Tensor) -> Tensor:
    # Fused optimizers pair a parameter with its state as both lie in memory.
    if x.shape != parameter.shape:  # the number of steps
        return x
    return torch.empty_like(parameter, dtype=x.dtype).copy_(x)


def _layouts(optimizer: torch.optim.Optimizer, parameter: Tensor) -> dict[str, Layout]:
    # Only the number of steps is not like the parameter.
    like = parameter.shape, parameter.dtype
    return {
        key: (torch.Size(), torch.float32) if key == "step" else like
        for key in OPTIMIZER_STATES[type(optimizer)]
    }


def _check_tensors(
    path: Path, tensors: Mapping[str, Tensor], wanted: Mapping[str, Layout]
) -> None:
    missing, extra = wanted.keys() - tensors.keys(), tensors.keys() - wanted.keys()
    if missing or extra:
        raise CheckpointError(
            f"{path} is of another model or optimizer: missing "
            f"{SHORTENED.repr(sorted(missing))}, unexpected "
            f"{SHORTENED.repr(sorted(extra))}."
        )
    for name, (shape, dtype) in wanted.items():
        x = tensors[name]
        if (x.shape, x.dtype) != (shape, dtype):
            raise CheckpointError(
                f"{path} is of another model or optimizer: {name} must be "
                f"{tuple(shape)} {dtype}, got {tuple(x.shape)} {x.dtype}."
            )


def _flaw(
    progress: Mapping[str, Any], total: int, evaluations: Collection[str]
) -> str | None:
    """Return what is wrong with a progress, if anything."""
    names = [x.name for x in fields(Progress)]
    if sorted(progress) != sorted(names):
        return f"its progress must be {names}, got {SHORTENED.repr(sorted(progress))}"
    step, history, running, seconds = (progress[name] for name in names)
    if not _is_number(step, (int,)) or not 0 <= step <= total:
        return f"step must be an integer from 0 to {total}, got {SHORTENED.repr(step)}"
    if not _is_number(seconds) or seconds < 0:
        return f"seconds must be finite and nonnegative, got {SHORTENED.repr(seconds)}"
    if not isinstance(history, list) or not all(
        isinstance(record, dict) and _is_number(record.get("step"), (int,))
        for record in history
    ):
        return "history must be a list of records, each with its step"
    evaluated = [0, *(record["step"] for record in history)]
    if any(one >= other for one, other in pairwise([*evaluated, step + 1])):
        found = SHORTENED.repr(evaluated[1:])
        return f"the steps of its history must increase up to {step}, got {found}"
    for record in history:
        metrics = [record[name] for name in evaluations if name in record]
        if not (
            _is_number(record.get("epoch", 0))
            and all(map(_are_metrics, [record.get("train"), *metrics]))
            # A run stops if this is not finite, but not for a loss on other data.
            and _is_number(record["train"]["loss"])
        ):
            return (
                f"the metrics of step {record['step']} must be numbers that a run can "
                "have, among them a loss and a count"
            )
    if step == evaluated[-1]:
        return None if running == {} else "running must be empty after an evaluation"
    # A run stops if its loss is not finite; any other metric is for the objective.
    if not _are_metrics(running) or not _is_number(running["loss"]):
        return (
            "running must hold numbers, a finite loss and a count from 0 to "
            f"{MOST_SAMPLES} among them, between evaluations"
        )
    return None


def _are_metrics(found: Any) -> bool:
    return (
        isinstance(found, dict)
        and all(type(x) is float or _is_number(x) for x in found.values())
        and "loss" in found
        and _is_number(found.get("correct", 0))
        and 0 <= found.get("count", -1) <= MOST_SAMPLES
    )


def _is_number(x: Any, kinds: tuple[type, ...] = (int, float)) -> bool:
    # JSON may hold NaN, infinities, and integers too large for a float.
    return type(x) in kinds and abs(x) <= sys.float_info.max


def _check_identity(
    path: Path, theirs: Mapping[str, Any], ours: Mapping[str, Any]
) -> None:
    different = [
        f"{repr(name)[1:-1]}: {theirs.get(name)!r} there, {ours.get(name)!r} here"
        for name in sorted(theirs.keys() | ours.keys())
        if theirs.get(name) != ours.get(name)
    ]
    if different:
        raise CheckpointError(
            f"{path} is of a run with other settings ({'; '.join(different)}): choose "
            "another folder, or start over (--start-over)."
        )


def _as_json(settings: Mapping[str, Any]) -> dict[str, Any]:
    # As it will be read back: tuples as lists, paths as text.
    return json.loads(json.dumps(dict(settings), default=str))
