"""A run's state in one file: weights, optimiser and progress cannot come apart."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from transformers_hw.lab.files import read_tensors, write_tensors


class CheckpointError(RuntimeError):
    """A checkpoint belongs to another run or another model."""


@dataclass
class Progress:
    """How far a run has come.

    Attributes:
        step: How many steps it has taken.
        history: What was measured at the end of each epoch.
        running: Sums of what was measured in training since.
        seconds: How long it has taken, pauses not counted.
    """

    step: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    running: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0


def save_checkpoint(
    path: Path,
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    progress: Progress,
    identity: Mapping[str, Any],
) -> None:
    """Write all that a run needs to go on as if nothing had happened.

    Args:
        path: The file; it holds the checkpoint before until this one is whole.
        model: The model.
        optimiser: Its optimiser.
        progress: How far they have come.
        identity: The settings of the run, which it must have when it goes on.

    Raises:
        OSError: If there is no room; the checkpoint before is intact.
    """
    tensors = {f"model/{name}": x for name, x in _state(model).items()}
    for name, values in _optimiser_state(model, optimiser).items():
        for key, x in values.items():
            tensors[f"optimiser/{name}/{key}"] = x
    about = {"progress": asdict(progress), "identity": _plain(identity)}
    try:
        write_tensors(path, tensors, about)
    except OSError as error:
        reason = error.strerror or error
        raise OSError(
            error.errno,
            f"the checkpoint of step {progress.step} could not be written ({reason}); "
            "the one before, if any, is intact",
            str(path),
        ) from error


def load_checkpoint(
    path: Path,
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    identity: Mapping[str, Any],
) -> Progress | None:
    """Put a model and its optimiser back to where a run has come.

    Args:
        path: The file.
        model: The model, as it was made when the run began.
        optimiser: Its optimiser.
        identity: The settings of the run.

    Returns:
        How far the run has come, or `None` if there is no checkpoint.

    Raises:
        CheckpointError: If the checkpoint is of other settings or another model.
        DamagedFileError: If the file is damaged or no checkpoint.
    """
    if not path.exists():
        return None
    tensors, about = read_tensors(path)
    if not {"progress", "identity"} <= about.keys():
        raise CheckpointError(f"{path} is no checkpoint of a run.")
    _check_identity(path, about["identity"], _plain(identity))
    states: dict[str, dict[str, Tensor]] = {}
    for full_name, x in tensors.items():
        kind, _, name = full_name.partition("/")
        if kind == "optimiser":
            parameter, _, key = name.rpartition("/")
            states.setdefault(parameter, {})[key] = x
    _load_state(path, model, _without_prefix(tensors, "model/"))
    numbered = {name: (n, p) for n, (name, p) in _numbered(model, optimiser)}
    if not states.keys() <= numbered.keys():
        raise CheckpointError(f"{path} is of an optimiser of other parameters.")
    loaded = {}
    for name, values in states.items():
        number, parameter = numbered[name]
        loaded[number] = {k: _laid_out_as(parameter, x) for k, x in values.items()}
    optimiser.load_state_dict(
        {
            "state": loaded,
            "param_groups": optimiser.state_dict()["param_groups"],
        }
    )
    return Progress(**about["progress"])


def save_weights(path: Path, model: nn.Module, about: Mapping[str, Any]) -> None:
    """Write a model's weights alone, as safetensors.

    Args:
        path: The file.
        model: The model.
        about: What to note in the file.
    """
    write_tensors(path, _state(model), _plain(about))


def load_weights(path: Path, model: nn.Module) -> dict[str, Any]:
    """Read a model's weights, from a file of weights or from a checkpoint.

    Args:
        path: The file.
        model: The model; it is changed.

    Returns:
        What was noted in the file.

    Raises:
        CheckpointError: If the weights are another model's.
        DamagedFileError: If the file is damaged.
    """
    tensors, about = read_tensors(path)
    _load_state(path, model, _without_prefix(tensors, "model/") or tensors)
    return about


def _state(model: nn.Module) -> dict[str, Tensor]:
    # A tensor with two names, such as a tied embedding, is kept under the first.
    seen: set[tuple[int, torch.Size]] = set()
    kept: dict[str, Tensor] = {}
    for name, x in model.state_dict().items():
        place = (x.data_ptr(), x.shape)
        if place not in seen or not x.numel():
            seen.add(place)
            kept[name] = x
    return kept


@torch.no_grad()
def _load_state(path: Path, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    own = _state(model)
    if own.keys() != tensors.keys():
        raise CheckpointError(
            f"{path} is of another model: only one of the two has "
            f"{sorted(own.keys() ^ tensors.keys())}."
        )
    for name, x in own.items():
        came = tensors[name]
        if (x.shape, x.dtype) != (came.shape, came.dtype):
            raise CheckpointError(
                f"{path} is of another model: {name} should be {tuple(x.shape)} "
                f"{x.dtype}, and is {tuple(came.shape)} {came.dtype}."
            )
    for name, x in own.items():
        x.copy_(tensors[name])


def _numbered(
    model: nn.Module, optimiser: torch.optim.Optimizer
) -> list[tuple[int, tuple[str, Tensor]]]:
    names = {parameter: name for name, parameter in model.named_parameters()}
    parameters = [x for group in optimiser.param_groups for x in group["params"]]
    return list(enumerate((names[parameter], parameter) for parameter in parameters))


def _optimiser_state(
    model: nn.Module, optimiser: torch.optim.Optimizer
) -> dict[str, dict[str, Tensor]]:
    return {
        name: {k: x for k, x in optimiser.state[p].items() if isinstance(x, Tensor)}
        for _, (name, p) in _numbered(model, optimiser)
        if p in optimiser.state
    }


def _laid_out_as(parameter: Tensor, x: Tensor) -> Tensor:
    # Fused optimisers pair a parameter with its state as both lie in memory.
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
            "another folder, or start over."
        )


def _without_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): x
        for name, x in tensors.items()
        if name.startswith(prefix)
    }


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    # As it will be read back: tuples as lists, paths as text.
    return json.loads(json.dumps(dict(settings), default=str))
