"""The README and the pages: code runs, commands exist, links lead somewhere."""

import doctest
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
PAGES = [
    path.relative_to(ROOT).as_posix()
    for path in sorted((ROOT / "docs").rglob("*.md"))
    if ">>> " in path.read_text("utf-8")
]


def test_the_code_runs() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", README, re.S | re.M)
    assert blocks, "the README shows no code"
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_gives_what_the_page_says(page: str) -> None:
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    found = doctest.testfile(
        str(ROOT / page), module_relative=False, optionflags=flags, encoding="utf-8"
    )
    assert found.attempted > 0
    assert found.failed == 0


def test_chapters_show_code() -> None:
    assert sum(page.startswith("docs/chapters/") for page in PAGES) == 8


def test_the_commands_exist() -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.M)
    commands = re.findall(r"^\$ make ([a-z]+)", README, re.M)
    assert commands[:2] == ["site", "test"]
    assert set(commands) <= set(targets)


def test_the_links_lead_somewhere() -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)", README) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
