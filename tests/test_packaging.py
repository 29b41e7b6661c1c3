"""The wheel and the source distribution: what they hold, and that they install."""

import ast
import email
import importlib.util
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

import transformers_hw

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXAMPLES = {path.name for path in (ROOT / "examples").glob("*.py")}


def run(*command: str | Path, **changes: str) -> str:
    environment = {**os.environ, "PIP_NO_INDEX": "1", **changes}
    ran = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, env=environment
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    code = (
        "import sys; from hatchling.build import build_sdist; build_sdist(sys.argv[1])"
    )
    ran = subprocess.run([sys.executable, "-c", code, folder], cwd=ROOT)
    assert ran.returncode == 0
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build it from the source distribution, as `pip install` of that would."""
    folder = tmp_path_factory.mktemp("wheel")
    options = ("--no-deps", "--no-build-isolation", "--wheel-dir")
    run("-m", "pip", "wheel", "--quiet", *options, folder, sdist)
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    run("-m", "pip", "install", "--quiet", "--no-deps", "--target", folder, wheel)
    return folder


def test_the_source_distribution_holds_what_builds_and_tests_the_book(
    sdist: Path,
) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    kept = {"pyproject.toml", "Makefile", "mkdocs.yml", "LICENSE", "README.md"}
    kept |= {"CHANGELOG.md", "CITATION.cff", "SECURITY.md", ".ci/run", "PKG-INFO"}
    kept |= {"docs/index.md", "docs/questions.toml", "tools/vendored.sha256"}
    kept |= {"tests/test_packaging.py", "benchmarks/records/compatibility.json"}
    assert kept - names == set()
    assert {f"examples/{name}" for name in EXAMPLES} - names == set()
    strays = re.compile(r"__pycache__|^\.venv|^runs|^site/|\.zip$|\.coverage")
    assert [name for name in names if strays.search(name)] == []


def test_the_wheel_holds_the_package_its_examples_and_no_tests(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    source = ROOT / "src"
    modules = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {"transformers_hw/py.typed", "transformers_hw/command.py"} <= modules
    examples = {f"transformers_hw/examples/{name}" for name in EXAMPLES}
    about = f"transformers_hw-{transformers_hw.__version__}.dist-info/"
    assert names == {
        *modules,
        *examples,
        "transformers_hw/questions.toml",
        *(about + name for name in ("METADATA", "RECORD", "WHEEL")),
        *(about + name for name in ("entry_points.txt", "licenses/LICENSE")),
    }


def test_the_wheel_is_pure_and_says_what_it_is(wheel: Path) -> None:
    version = transformers_hw.__version__
    assert wheel.name == f"transformers_hw-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(f"transformers_hw-{version}.dist-info/METADATA")
    about = email.message_from_bytes(text)
    assert (about["Name"], about["Version"]) == ("transformers-hw", version)
    assert (about["License-Expression"], about["License-File"]) == ("MIT", "LICENSE")
    assert about["Requires-Python"] == ">=3.11"
    assert about["Description-Content-Type"] == "text/markdown"
    assert set(about["Keywords"].split(",")) == set(PROJECT["keywords"])
    assert about.get_all("Classifier") == sorted(PROJECT["classifiers"])
    bare = [line for line in about.get_all("Requires-Dist", []) if "extra" not in line]
    assert sorted(re.findall(r"^[a-z]+", "\n".join(bare), re.M)) == [
        "einops",
        "jaxtyping",
        "torch",
    ]


def test_nothing_in_the_wheel_unpickles(wheel: Path) -> None:
    found: list[str] = []
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(".py"):
                tree = ast.parse(archive.read(name))
                found += [
                    f"{name}: {ast.unparse(node)}"
                    for node in ast.walk(tree)
                    if re.fullmatch(
                        r"import pickle|from pickle .*|torch\.load", ast.unparse(node)
                    )
                ]
    assert found == []


def test_the_installed_wheel_works_alone(installed: Path, tmp_path: Path) -> None:
    # Isolated and without site: nothing is found but what these two folders hold.
    places = [str(installed), str(Path(yaml.__file__).parents[1])]
    code = f"""
import sys
sys.path[:0] = {places!r}
import json, torch, transformers_hw
from transformers_hw import command
layer = transformers_hw.MultiHeadAttention(12, 3)
output, _ = layer(torch.randn(2, 5, 12))
print(json.dumps([transformers_hw.__file__, list(output.shape)]))
sys.exit(command.main(["book"]))
"""
    command = [sys.executable, "-I", "-S", "-c", code]
    ran = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    first, *rest = ran.stdout.splitlines()
    place, shape = json.loads(first)
    assert Path(place).is_relative_to(installed)
    assert shape == [2, 5, 12]
    assert rest[-1] == "57 questions in all."


def test_the_installed_examples_run(installed: Path, tmp_path: Path) -> None:
    code = "from transformers_hw.command import main; raise SystemExit(main())"
    out = tmp_path / "out"
    run("-c", code, "example", "attention", "--out", out, PYTHONPATH=str(installed))
    assert json.loads((out / "run.json").read_text("utf-8"))["metrics"]


def test_the_citation_names_this_version_and_licence() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert cited["version"] == transformers_hw.__version__
    assert cited["license"] == PROJECT["license"]
    assert cited["keywords"] == PROJECT["keywords"]
    assert {"cff-version", "message", "title", "authors"} <= set(cited)


def test_the_combinations_on_the_site_are_those_on_record() -> None:
    spec = importlib.util.spec_from_file_location(
        "tool", ROOT / "tools/compatibility.py"
    )
    assert spec is not None
    tool: Any = importlib.util.module_from_spec(spec)
    assert spec.loader is not None
    spec.loader.exec_module(tool)
    runs = json.loads(tool.RECORD.read_text("utf-8"))["runs"]
    assert tool.TABLE.read_text("utf-8") == tool.table(runs)
    assert [one for one in runs if one["failed"] or not one["passed"]] == []
    lowest = tool.requirements("lowest")
    assert {"torch==2.10", "einops==0.8.1", "jaxtyping==0.3.2"} <= set(lowest)
    assert set(PROJECT["dependencies"]) <= set(tool.requirements("newest"))


def test_the_changelog_begins_with_this_version() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text("utf-8")
    newest = re.findall(r"^## (\S+?),? ", changes, re.M)[0]
    assert newest == transformers_hw.__version__
