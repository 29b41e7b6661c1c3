"""Checkpoints: weights, optimizer and progress in one file, so they always match."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from transformers_hw.lab.files import read_tensors, write_tensors
from transformers_hw.pretrained import save_model


class CheckpointError(RuntimeError):
    """A checkpoint belongs to another run or another model."""


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
    for name, parameter in _names(model, optimizer).items():
        for key, x in optimizer.state.get(parameter, {}).items():
            if isinstance(x, Tensor):
                tensors[f"optimizer/{name}/{key}"] = x
    metadata = {"progress": asdict(progress), "identity": _as_json(identity)}
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
) -> Progress | None:
    """Restore a model and its optimizer from a checkpoint.

    Args:
        path: The file.
        model: The model, as it was built when the run began.
        optimizer: Its optimizer.
        identity: Settings of the run.

    Returns:
        The progress, or `None` if there is no checkpoint.

    Raises:
        CheckpointError: The checkpoint is of other settings or another model.
        DamagedFileError: The file is damaged.
    """
    if not path.exists():
        return None
    tensors, metadata = read_tensors(path)
    if not {"progress", "identity"} <= metadata.keys():
        raise CheckpointError(f"{path} is not a checkpoint.")
    _check_identity(path, metadata["identity"], _as_json(identity))
    weights: dict[str, Tensor] = {}
    states: dict[str, dict[str, Tensor]] = {}
    for full_name, x in tensors.items():
        kind, _, name = full_name.partition("/")
        if kind == "model":
            weights[name] = x
        else:
            parameter, _, key = name.rpartition("/")
            states.setdefault(parameter, {})[key] = x
    _load_state(path, model, weights)
    names = _names(model, optimizer)
    if not states.keys() <= names.keys():
        raise CheckpointError(f"{path} is of an optimizer of other parameters.")
    state = {
        number: {k: _laid_out_like(parameter, x) for k, x in states[name].items()}
        for number, (name, parameter) in enumerate(names.items())
        if name in states
    }
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    return Progress(**metadata["progress"])


def save_weights(path: Path, model: nn.Module) -> None:
    """Write a model's weights, as `save_model` does if it is a model of the book."""
    try:
        save_model(model, path)
    except TypeError:  # a model of another kind, such as a ResNet
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


@torch.no_grad()
def _load_state(path: Path, model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    own = _state(model)
    if own.keys() != weights.keys():
        raise CheckpointError(
            f"{path} is of another model: only one of the two has "
            f"{sorted(own.keys() ^ weights.keys())}."
        )
    for name, x in own.items():
        found = weights[name]
        if (x.shape, x.dtype) != (found.shape, found.dtype):
            raise CheckpointError(
                f"{path} is of another model: {name} must be {tuple(x.shape)} "
                f"{x.dtype}, got {tuple(found.shape)} {found.dtype}."
            )
    for name, x in own.items():
        x.copy_(weights[name])


def _names(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    # In the order in which the optimizer numbers its parameters.
    names = {parameter: name for name, parameter in model.named_parameters()}
    parameters = [x for group in optimizer.param_groups for x in group["params"]]
    return {names[parameter]: parameter for parameter in parameters}


def _laid_out_like(parameter: Tensor, x: Tensor) -> Tensor:
    # Fused optimizers pair a parameter with its state as both lie in memory.
    if x.shape != parameter.shape:
        return x
    return torch.empty_like(parameter, dtype=x.dtype).copy_(x)


def _check_identity(
    path: Path, theirs: Mapping[str, Any], ours: Mapping[str, Any]
) -> None:
    different = [
        f"{name}: {theirs.get(name)!r} there, {ours.get(name)!r} here"
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
