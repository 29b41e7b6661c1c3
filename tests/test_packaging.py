"""The wheel and the source distribution: what they hold, and that they install."""

import ast
import email
import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

import transformers_hw

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXAMPLES = {path.name for path in (ROOT / "examples").glob("*.py")}


OFFLINE = """\
import socket

def refused(*address, **options):
    raise OSError(f"there is no network here, and {address} was asked for")

socket.socket.connect = socket.getaddrinfo = refused
"""


def run(*command: str | Path) -> str:
    """Run a command with this Python, or another if a path comes first."""
    python = [] if isinstance(command[0], Path) else [sys.executable]
    environment = {**os.environ, "PIP_NO_INDEX": "1", "PYTHONPATH": ""}
    ran = subprocess.run(
        [*python, *command], capture_output=True, text=True, env=environment
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def distributions(requirements: list[str]) -> set[str]:
    """Give the names of what pip would install for these."""
    waiting, known = [Requirement(line).name for line in requirements], set()
    while waiting:
        name = waiting.pop().lower()
        if name not in known:
            known.add(name)
            lines = map(Requirement, importlib.metadata.requires(name) or [])
            waiting += [
                line.name
                for line in lines
                if line.marker is None or line.marker.evaluate({"extra": ""})
            ]
    return known


def environment(folder: Path, wheel: Path, requirements: list[str]) -> Path:
    """Install a wheel where there is no network, and nothing else but what it needs.

    What it needs is linked to: installing PyTorch anew would take minutes.
    """
    venv.create(folder, symlinks=True)
    options = ("--quiet", "--disable-pip-version-check", "--no-deps")
    python = str(folder / "bin/python")
    run("-m", "pip", "--python", python, "install", *options, wheel)
    (place,) = folder.glob("lib/python*/site-packages")
    for name in distributions(requirements):
        found = importlib.metadata.distribution(name)
        tops = {path.parts[0] for path in found.files or []} - {"..", "__pycache__"}
        for top in tops:
            if not (place / top).exists():
                (place / top).symlink_to(Path(str(found.locate_file(top))))
    (place / "sitecustomize.py").write_text(OFFLINE, "utf-8")
    return folder / "bin"


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
    unpickling = re.compile(
        r"(import|from) (_?pickle|dill|joblib|marshal|shelve)\b.*"
        r"|torch\.load|from torch import .*\bload\b.*"
    )
    assert unpickling.fullmatch("import pickle as harmless")
    found: list[str] = []
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(".py"):
                tree = ast.parse(archive.read(name))
                found += [
                    f"{name}: {ast.unparse(node)}"
                    for node in ast.walk(tree)
                    if unpickling.fullmatch(ast.unparse(node))
                ]
    assert found == []


ALONE = """
import importlib.util, json, socket, torch, transformers_hw
from torch import nn
from transformers_hw.pretrained import attention_from_torch, to_torch

theirs = nn.MultiheadAttention(12, 3, batch_first=True)
ours = attention_from_torch(theirs.state_dict(), heads=3)
x = torch.randn(2, 5, 12)
same = torch.allclose(ours(x)[0], to_torch(ours)(x, x, x)[0], atol=1e-6)
others = ("numpy", "matplotlib", "safetensors", "tyro", "transformers", "timm")
found = [name for name in others if importlib.util.find_spec(name)]
try:
    socket.create_connection(("127.0.0.1", 9))
except OSError as error:
    refused = str(error)
print(json.dumps([transformers_hw.__file__, same, found, refused]))
"""


def test_the_wheel_works_in_an_empty_environment_without_a_network(
    wheel: Path, tmp_path: Path
) -> None:
    scripts = environment(tmp_path, wheel, PROJECT["dependencies"])
    place, same, found, refused = json.loads(run(scripts / "python", "-c", ALONE))
    assert Path(place).is_relative_to(tmp_path)
    assert (same, found) == (True, [])
    assert "there is no network here" in refused
    command = scripts / "transformers-hw"
    assert run(command, "book").splitlines()[-1] == "57 questions in all."
    assert "86,567,656 parameters" in run(command, "model", "ViT-B/16")
    ended = subprocess.run(
        [command, "example", "attention"], capture_output=True, text=True
    )
    assert ended.returncode == 2
    assert "pip install 'transformers-hw[lab]'" in ended.stderr


def test_the_wheels_examples_run_with_its_extra(wheel: Path, tmp_path: Path) -> None:
    extra = PROJECT["optional-dependencies"]["lab"]
    needed = [*PROJECT["dependencies"], *extra]
    scripts = environment(tmp_path / "environment", wheel, needed)
    out = tmp_path / "out"
    told = run(scripts / "transformers-hw", "example", "attention", "--out", out)
    assert f"are in {out}" in told
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
    # The lowest that are declared were run, together, and so was something newer.
    bounds = [Requirement(line.replace(">=", "==")) for line in PROJECT["dependencies"]]
    on_bounds = [
        all(bound.specifier.contains(one[bound.name]) for bound in bounds)
        for one in runs
    ]
    assert any(on_bounds)
    assert not all(on_bounds)
    declared = [x for x in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", x)]
    run_on = {".".join(one["python"].split(".")[:2]) for one in runs}
    assert {f"Programming Language :: Python :: {x}" for x in run_on} == set(declared)


def test_the_changelog_begins_with_this_version() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text("utf-8")
    newest = re.findall(r"^## (\S+?),? ", changes, re.M)[0]
    assert newest == transformers_hw.__version__
