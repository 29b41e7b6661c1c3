"""What `pip install` brings along, and what importing the package loads."""

import importlib.metadata
import json
import re
import subprocess
import sys

import transformers_hw


def test_the_package_needs_torch_einops_and_jaxtyping_only() -> None:
    lines = importlib.metadata.requires("transformers-hw") or []
    plain = [line for line in lines if "extra ==" not in line]
    names = {re.split(r"[^\w-]", line)[0] for line in plain}
    assert names == {"torch", "einops", "jaxtyping"}


def test_importing_the_package_loads_nothing_of_the_extras() -> None:
    code = (
        "import json, sys, torch; before = set(sys.modules); import transformers_hw;"
        "new = set(sys.modules) - before;"
        "print(json.dumps(sorted({name.split('.')[0] for name in new})))"
    )
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, check=True, capture_output=True, text=True)
    loaded = set(json.loads(ran.stdout)) - sys.stdlib_module_names
    # jaxtyping brings a pretty-printer along, and numpy where that is installed.
    companions = {"wadler_lindig", "numpy"}
    assert loaded - companions <= {"transformers_hw", "einops", "jaxtyping"}


def test_public_names_are_there_once_and_documented() -> None:
    names = transformers_hw.__all__
    assert len(set(names)) == len(names)
    for name in names:
        assert getattr(transformers_hw, name).__doc__, name
