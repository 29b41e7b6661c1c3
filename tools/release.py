"""Build the wheel and the source distribution, and check that they can be published.

    python tools/release.py                checks, builds into dist, tries the wheel
    python tools/release.py constraints    writes constraints.txt

The version, its date and the license must be the same wherever they are stated, the
tests must have been run on the oldest and newest versions declared, and the wheel
must work in an environment with nothing but what it requires.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import compatibility
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
CONSTRAINTS = ROOT / "constraints.txt"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
# PyTorch pins the first three itself, differently for each platform.
NOT_CONSTRAINED = re.compile(r"nvidia-|cuda-|triton$|pip$|setuptools$")
ALONE = """
import importlib.util
extras = ("matplotlib", "safetensors", "tyro", "transformers", "timm", "mkdocs")
found = [name for name in extras if importlib.util.find_spec(name)]
raise SystemExit(f"these should not be installed: {found}" if found else 0)
"""


def write_constraints() -> None:
    """Write the versions of all packages that are installed from an index."""
    lines = []
    for one in distributions():
        name = re.sub(r"[-_.]+", "-", one.metadata["Name"]).lower()
        local = one.read_text("direct_url.json") is not None
        if local or NOT_CONSTRAINED.match(name):
            continue
        # A local version, such as 2.15.0+cpu, names one build of a release.
        line = f"{name}=={one.version.partition('+')[0]}"
        # Early releases of the oldest Python get the newest version that takes them.
        python = one.metadata["Requires-Python"] or ""
        least = re.search(r">=\s*(3\.11\.[1-9]\d*)", python)
        lines.append(f'{line}; python_full_version >= "{least[1]}"' if least else line)
    head = "# The versions of the last test run, written by make constraints."
    CONSTRAINTS.write_text("\n".join([head, *sorted(lines), ""]), "utf-8")


def stated_versions() -> dict[str, str]:
    """Return version and date as each file states them."""
    init = (ROOT / "src/transformers_hw/__init__.py").read_text("utf-8")
    changes = (ROOT / "CHANGELOG.md").read_text("utf-8")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    version = re.search(r'^__version__ = "(.+)"', init, re.M)
    newest = re.search(r"^## (\S+), (.+)", changes, re.M)
    if version is None or newest is None:
        raise SystemExit(
            "__init__.py must state __version__, and CHANGELOG.md begin with a line "
            "such as: ## 1.2.3, 2026-01-31"
        )
    return {
        "__init__.py": f"{version[1]}, {citation['date-released']}",
        "CHANGELOG.md": f"{newest[1]}, {newest[2]}",
        "CITATION.cff": f"{citation['version']}, {citation['date-released']}",
    }


def check_statements() -> str:
    """Compare what the files state, and return the version."""
    stated = stated_versions()
    if tag := os.environ.get("RELEASE_TAG"):
        date = stated["CITATION.cff"].partition(", ")[2]
        stated["the tag"] = f"{tag.removeprefix('v')}, {date}"
    if len(set(stated.values())) > 1:
        raise SystemExit(f"version and date must be the same everywhere, got {stated}.")
    license_ = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))["license"]
    if license_ != PROJECT["license"]:
        raise SystemExit(f"CITATION.cff must say {PROJECT['license']}, got {license_}.")
    return stated["CITATION.cff"].partition(", ")[0]


def check_compatibility() -> None:
    """Check that the oldest and newest declared versions were tested, and passed."""
    runs: list[dict[str, Any]] = json.loads(compatibility.RECORD.read_text("utf-8"))[
        "runs"
    ]
    if compatibility.TABLE.read_text("utf-8") != compatibility.table(runs):
        raise SystemExit(f"{compatibility.TABLE.name} must show the record's runs.")
    if failed := [one for one in runs if one["failed"] or not one["passed"]]:
        raise SystemExit(f"all recorded runs must have passed, got {failed}.")
    lowest = [Requirement(line.replace(">=", "==")) for line in PROJECT["dependencies"]]
    if not any(
        all(one.specifier.contains(run[one.name]) for one in lowest) for run in runs
    ):
        raise SystemExit(f"a run must have had {', '.join(map(str, lowest))}.")
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    tested = {".".join(run["python"].split(".")[:2]) for run in runs}
    ends = {min(named, key=Version), max(named, key=Version)}
    if not ends <= tested:
        raise SystemExit(f"runs must include Python {sorted(ends)}, got {tested}.")


def build(version: str) -> Path:
    """Build the source distribution, and from it, as pip would, the wheel."""
    shutil.rmtree(DIST, ignore_errors=True)
    code = "import sys; from hatchling.build import build_sdist as b; b(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, DIST], cwd=ROOT, check=True)
    source = DIST / f"transformers_hw-{version}.tar.gz"
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    options = ["--no-build-isolation", "--wheel-dir", DIST, source]
    subprocess.run([*pip, *options], check=True)
    return DIST / f"transformers_hw-{version}-py3-none-any.whl"


def check_contents(wheel: Path) -> None:
    """Compare the contents of wheel and source distribution with the checkout."""
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    tracked = set(listed.stdout.splitlines())
    with tarfile.open(next(DIST.glob("*.tar.gz"))) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()} - {"PKG-INFO"}
    if strays := packed - tracked:
        raise SystemExit(f"the sdist must hold tracked files only, got {strays}.")
    needed = {"Makefile", "mkdocs.yml", "constraints.txt", "bookbinding/pyproject.toml"}
    if missing := needed - packed:
        raise SystemExit(f"the sdist must hold what builds the book, lacks {missing}.")
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    wanted = {name.removeprefix("src/") for name in tracked if name.startswith("src/")}
    wanted |= {f"transformers_hw/{x}" for x in tracked if x.startswith("examples/")}
    wanted |= {"transformers_hw/questions.toml"}
    if names != wanted:
        raise SystemExit(f"the wheel must hold the package, got {names ^ wanted} else.")


def try_wheel(wheel: Path) -> None:
    """Install the wheel into an empty environment, and run the README's code there."""
    readme = (ROOT / "README.md").read_text("utf-8")
    code = "".join(re.findall(r"^```python\n(.*?)^```", readme, re.S | re.M))
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        subprocess.run([sys.executable, "-m", "venv", place], check=True)
        pip = [place / "bin/python", "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, "--constraint", CONSTRAINTS, wheel], check=True)
        for command in (
            [place / "bin/python", "-c", ALONE],
            [place / "bin/python", "-c", code],
            [place / "bin/transformers-hw", "book"],
            [place / "bin/transformers-hw", "model", "ViT-B/16", "--depth", "1"],
        ):
            environment = {**os.environ, "PYTHONPATH": ""}
            subprocess.run(command, cwd=place, env=environment, check=True)


def main() -> None:
    """Check, build, and try."""
    if sys.argv[1:] == ["constraints"]:
        return write_constraints()
    if sys.argv[1:]:
        raise SystemExit(__doc__)
    version = check_statements()
    check_compatibility()
    wheel = build(version)
    check_contents(wheel)
    try_wheel(wheel)
    print(f"{wheel.name} can be published.")
    return None


if __name__ == "__main__":
    main()
