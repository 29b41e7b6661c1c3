"""The README: its code runs, its commands exist, its links lead somewhere."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")


def test_the_code_runs() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", README, re.S | re.M)
    assert blocks, "the README shows no code"
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})


def test_the_commands_exist() -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.M)
    commands = re.findall(r"^\$ make ([a-z]+)", README, re.M)
    assert commands[:2] == ["site", "test"]
    assert set(commands) <= set(targets)


def test_the_links_lead_somewhere() -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)", README) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
