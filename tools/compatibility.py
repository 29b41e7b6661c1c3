"""Run the book's tests on the oldest and the newest PyTorch, and record the results.

    python tools/compatibility.py            makes both environments, which takes 10 GB
    python tools/compatibility.py lowest     makes one of them
    python tools/compatibility.py newest --python python3.13   takes another Python

The tests run on the wheel, in a folder without the sources of the checkout.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "benchmarks/records/compatibility.json"
TABLE = RECORD.with_suffix(".md")
CASES = ("lowest", "newest")
FOLDERS = ("tests/chapters", "tests/everywhere")
# These need other libraries, whose versions would be tested along.
LEFT_OUT = ("test_onnx.py", "test_pretrained.py")
TESTERS = ("beartype", "expecttest", "hypothesis", "numpy", "packaging")
TESTERS += ("pytest", "pytest-cov", "pytest-xdist")
VERSIONS = """
import json, platform, transformers_hw
from importlib.metadata import version
found = {name: version(name) for name in ("torch", "einops", "jaxtyping")}
found = {"python": platform.python_version(), **found}
print(json.dumps([transformers_hw.__file__, found]))
"""


def requirements(case: str) -> list[str]:
    """List what to install: the lowest versions declared, or the newest."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    lab = project["optional-dependencies"]["lab"]
    bound = [*project["dependencies"], *(x for x in lab if "torchvision" in x)]
    if case == "lowest":
        bound = [name.replace(">=", "==") for name in bound]
    return [*bound, *(x for x in lab if "torchvision" not in x), *TESTERS]


def environment(case: str, python: str) -> Path:
    """Create a virtual environment, unless it exists."""
    folder = ROOT / ".cache/compatibility" / f"{case}-{Path(python).name}"
    stamp = folder / "made"
    if not stamp.exists():
        subprocess.run([python, "-m", "venv", "--clear", folder], check=True)
        pip = (folder / "bin/python", "-m", "pip", "install", "--quiet")
        subprocess.run([*pip, *requirements(case)], check=True)
        stamp.touch()
    return folder


def build(folder: Path) -> Path:
    """Build the wheel."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder]
    subprocess.run([*pip, "wheel", *options, ROOT], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def install(wheel: Path, place: Path) -> Path:
    """Install the wheel into an environment that has all of its requirements."""
    python = place / "bin/python"
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    options = ["--quiet", "--no-deps", "--no-index", "--force-reinstall"]
    subprocess.run([*pip, "install", *options, wheel], check=True)
    subprocess.run([*pip, "check"], check=True)
    return python


def run(python: Path, folder: Path) -> dict[str, Any]:
    """Run the tests with and without the type-checking hook, and count them."""
    shutil.copy(ROOT / "pyproject.toml", folder)
    shutil.copytree(ROOT / "tests", folder / "tests", dirs_exist_ok=True)
    chosen = [*FOLDERS, *(f"--ignore-glob=*/{name}" for name in LEFT_OUT)]
    everything = {**os.environ, "PYTHONPATH": "", "OMP_NUM_THREADS": "1"}
    told = subprocess.run(
        [python, "-c", VERSIONS],
        env=everything,
        cwd=folder,
        check=True,
        capture_output=True,
    )
    place, versions = json.loads(told.stdout)
    if not Path(place).is_relative_to(python.parents[1]):
        raise SystemExit(f"the tests must import the wheel, got {place}.")
    counts = {"passed": 0, "failed": 0}
    start = time.perf_counter()
    for hook in ([], ["--jaxtyping-packages="]):
        report = folder / "report.xml"
        command = [python, "-m", "pytest", "-q", "-n", "auto", "--maxprocesses=4"]
        command += ["-p", "no:cacheprovider", f"--junitxml={report}", *hook, *chosen]
        ended = subprocess.run(command, env=everything, cwd=folder)
        if ended.returncode not in (0, 1):
            raise SystemExit(f"pytest exited with {ended.returncode}: no tests ran.")
        suite = ElementTree.parse(report).getroot()[0]
        wrong = int(suite.attrib["failures"]) + int(suite.attrib["errors"])
        counts["failed"] += wrong
        counts["passed"] += int(suite.attrib["tests"]) - wrong
    return {
        **versions,
        "system": f"{platform.system()}, {platform.machine()}",
        **counts,
        "seconds": round(time.perf_counter() - start, 1),
    }


def table(runs: list[dict[str, Any]]) -> str:
    """Return the table that the site shows."""
    head = "| Python | PyTorch | einops | jaxtyping | System | Passed | Failed |"
    lines = [head, "|---|---|---|---|---|--:|--:|"]
    names = ("python", "torch", "einops", "jaxtyping", "system", "passed", "failed")
    lines += [f"| {' | '.join(str(one[name]) for name in names)} |" for one in runs]
    return "\n".join(lines) + "\n"


def write(new: list[dict[str, Any]]) -> None:
    """Record runs, replacing earlier ones of the same versions."""
    known = json.loads(RECORD.read_text("utf-8"))["runs"] if RECORD.exists() else []
    names = ("python", "torch", "einops", "jaxtyping", "system")
    runs = {tuple(one[name] for name in names): one for one in [*known, *new]}
    ordered = sorted(runs.values(), key=lambda one: [one["python"], one["torch"]])
    text = {"command": "python tools/compatibility.py", "runs": ordered}
    RECORD.write_text(json.dumps(text, indent=1) + "\n", "utf-8")
    TABLE.write_text(table(ordered), "utf-8")


def main() -> None:
    """Run the cases that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="case", help="lowest, newest")
    parser.add_argument("--python", default=sys.executable, help="Python to use")
    chosen = parser.parse_args()
    if not set(chosen.cases) <= set(CASES):
        parser.error(f"cases must be among {CASES}, got {chosen.cases}")
    runs = []
    with tempfile.TemporaryDirectory() as name:
        wheel = build(Path(name))
        for case in chosen.cases or CASES:
            python = install(wheel, environment(case, chosen.python))
            runs.append(run(python, Path(name)))
    write(runs)
    if any(one["failed"] for one in runs):
        raise SystemExit("Some tests failed: see above.")


if __name__ == "__main__":
    main()
