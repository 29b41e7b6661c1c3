"""The PDF of the book, of two small chapters."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LISTED = """# small

> A small book.

- [Home](index.md): Home.
- [Overview](chapters/index.md): Overview.
- [One](chapters/one/index.md): One.
- [Two](chapters/two/index.md): Two.
"""
PAGE = """<!DOCTYPE html><title>{title}</title><article><h1 id="top">{title}</h1>
<p>{text}</p><details class="answer"><summary>Answers</summary>
<p style="height: 600mm">Long.</p></details></article>"""


def pages_of(pdf: bytes) -> int:
    return len(re.findall(rb"/Type\s*/Page\b", pdf))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    two = '<a href="../two/#top">the second</a>, <a href="../../index.html">home</a>'
    pages = {
        "": PAGE.format(title="A small book", text=""),
        "chapters/one": PAGE.format(title="First", text=two),
        "chapters/two": PAGE.format(title="Second", text="The end."),
    }
    for path, html in pages.items():
        (folder / path).mkdir(parents=True, exist_ok=True)
        (folder / path / "index.html").write_text(html, "utf-8")
    (folder / "llms.txt").write_text(LISTED, "utf-8")
    return folder


def printed(site: Path, *options: str) -> bytes:
    out = site / "book.pdf"
    command = [sys.executable, ROOT / "tools/pdf.py", site, out, *options]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert f"{pages_of(out.read_bytes())} pages" in ran.stdout
    return out.read_bytes()


def test_the_chapters_are_bound_with_bookmarks_and_links(site: Path) -> None:
    pdf = printed(site)
    # A title, the contents, and two chapters whose answers reach over two pages more.
    assert pages_of(pdf) >= 2 + 2 * 3
    titles = re.findall(rb"/Title \(([^)]*)\)", pdf)
    for title in (b"A small book", b"Contents", b"1 First", b"2 Second"):
        assert title in titles
    # A link from one chapter to the other leads to a place in the book.
    assert b"chapters-two--top" in pdf
    assert b"127.0.0.1" not in pdf


def test_answers_can_be_folded(site: Path) -> None:
    assert pages_of(printed(site, "--no-answers")) == 2 + 2
