"""Checkpoints must load for ever: names, shapes and meaning of all weights are frozen.

`state_dicts.json` holds, for every module of the catalog, the names and
shapes of its weights, and some numbers of its output for weights and inputs that are
given by a formula. A changed name, order of gates or layout of heads shows. Where a
change is meant, and checkpoints of earlier versions still load, write it anew with

    python tests/everywhere/test_state_dicts.py
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from catalog import CATALOG, SIZES, Entry, tensors
from torch import Tensor, nn

FROZEN = Path(__file__).with_name("state_dicts.json")


def waves(shape: torch.Size | list[int], *, start: int) -> Tensor:
    """Give numbers that are all different and known without a random generator."""
    count = torch.Size(shape).numel()
    at = torch.arange(start, start + count, dtype=torch.float64)
    return (at * at * 0.01).cos().view(shape)


def filled(entry: Entry) -> tuple[nn.Module, dict[str, Tensor]]:
    module = entry.make().eval()
    with torch.no_grad():
        for i, parameter in enumerate(module.state_dict().values()):
            parameter.copy_(0.3 * waves(parameter.shape, start=7 * i))
    sizes = {**SIZES, **entry.sizes}
    inputs = {}
    for i, (name, described) in enumerate(entry.inputs.items()):
        numbers = waves(described.shape(sizes), start=1000 * (i + 1))
        if described.kind == "ids":
            numbers = 1 + (numbers.abs() * (described.below - 1)).long()
        if described.kind == "mask":
            numbers = numbers > -0.5
        inputs[name] = numbers
    return module, inputs


def record(entry: Entry) -> dict[str, Any]:
    module, inputs = filled(entry)
    output = tensors(entry.call(module, **inputs))[0].detach().flatten()
    chosen = output[torch.linspace(0, len(output) - 1, 5).long()]
    shapes = {name: list(x.shape) for name, x in module.state_dict().items()}
    return {"weights": shapes, "output": [round(x, 12) for x in chosen.tolist()]}


def frozen() -> dict[str, Any]:
    return json.loads(FROZEN.read_text("utf-8"))


def test_every_module_is_frozen() -> None:
    assert frozen().keys() == {entry.name for entry in CATALOG}


@pytest.mark.parametrize("entry", CATALOG, ids=lambda entry: entry.name)
def test_weights_keep_their_names_shapes_and_meaning(entry: Entry) -> None:
    found, expected = record(entry), frozen()[entry.name]
    assert found["weights"] == expected["weights"]
    assert list(found["weights"]) == list(expected["weights"])
    assert torch.tensor(expected["output"]).std() > 1e-3
    assert found["output"] == pytest.approx(expected["output"], rel=1e-8, abs=1e-8)


if __name__ == "__main__":
    records = {entry.name: record(entry) for entry in CATALOG}
    lines = [f"{json.dumps(name)}: {json.dumps(x)}" for name, x in records.items()]
    FROZEN.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")
