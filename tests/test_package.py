"""What `pip install transformers-hw` brings, and what importing it loads."""

import importlib.metadata
import json
import re
import subprocess
import sys
from importlib.resources import files

import transformers_hw

EXTRAS = ("lab", "docs", "bench", "dev")


def requirements() -> dict[str, set[str]]:
    """Give the names of required distributions, by extra ("" for none)."""
    found: dict[str, set[str]] = {}
    for line in importlib.metadata.requires("transformers-hw") or []:
        name = re.match(r"[\w-]+", line)
        extra = re.search(r"extra == ['\"](\w+)['\"]", line)
        assert name is not None
        found.setdefault(extra[1] if extra else "", set()).add(name[0].lower())
    return found


def test_the_book_alone_needs_torch_einops_and_jaxtyping():
    needed = requirements()
    assert needed.pop("") == {"torch", "einops", "jaxtyping"}
    assert set(needed) == set(EXTRAS)


def test_importing_the_book_loads_nothing_of_the_extras():
    code = (
        "import json, sys, torch; before = set(sys.modules); import transformers_hw;"
        "new = set(sys.modules) - before;"
        "print(json.dumps(sorted({name.split('.')[0] for name in new})))"
    )
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    loaded = set(json.loads(run.stdout))
    third_party = {m for m in loaded if m not in sys.stdlib_module_names}
    # jaxtyping brings a pretty-printer along, and numpy where that is installed.
    companions = {"wadler_lindig", "numpy"}
    assert third_party - companions <= {"transformers_hw", "einops", "jaxtyping"}


def test_the_version_has_one_source():
    stated = importlib.metadata.version("transformers-hw")
    assert transformers_hw.__version__ == stated


def test_type_checkers_are_told_that_annotations_are_there():
    assert (files("transformers_hw") / "py.typed").is_file()


def test_every_public_name_is_there_once_and_documented():
    names = transformers_hw.__all__
    assert len(set(names)) == len(names) > 60
    for name in names:
        assert getattr(transformers_hw, name).__doc__, name
