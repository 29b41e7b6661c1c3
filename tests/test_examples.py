"""Every example runs on its quick settings, records its run and can be redrawn."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.py"))


def run(*command: str) -> str:
    ran = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONWARNINGS": "error::UserWarning"},
    )
    return ran.stdout


@pytest.mark.parametrize("chapter", EXAMPLES)
def test_an_example_runs_quickly_and_can_be_redrawn(chapter: str, tmp_path: Path):
    script = f"examples/{chapter}.py"
    run(script, "quick", "--out", str(tmp_path), "--device", "cpu")
    record = json.loads((tmp_path / "run.json").read_text("utf-8"))
    assert record["metrics"]
    assert record["device"].startswith("cpu")
    figures = {path: path.read_bytes() for path in tmp_path.glob("*.svg")}
    assert len(figures) >= 4
    for path in figures:
        path.unlink()
    run(script, "redraw", "--out", str(tmp_path))
    assert {path: path.read_bytes() for path in tmp_path.glob("*.svg")} == figures


@pytest.mark.parametrize(
    ("chapter", "settings"),
    [
        ("multi_head_attention", ["--steps", "10"]),
        ("attention_as_convolution", ["--epochs", "1", "--compared-epochs", "1"]),
    ],
)
def test_an_example_runs_in_two_processes_of_which_one_writes(
    chapter: str, settings: list[str], tmp_path: Path
):
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    script = f"examples/{chapter}.py"
    options = ["--out", str(tmp_path), "--device", "cpu", *settings]
    run(*launcher, script, "quick", *options)
    record = json.loads((tmp_path / "run.json").read_text("utf-8"))
    assert record["processes"] == 2
    assert record["metrics"]
    assert len(list(tmp_path.glob("*.svg"))) >= 4
