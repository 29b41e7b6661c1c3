"""A page for the source of every test, module and example, with an anchor a line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pygments
from book import LISTINGS, Book, listing
from keeping import Kept
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers.python import PythonLexer

HEAD = """---
title: {path}
hide: [navigation, toc]
search: {{exclude: true}}
---
# `{path}`
"""
# Names and spaces look like all other text: marking them up would double the site.
PLAIN = re.compile(r'<span class="[nw]">([^<]*)</span>')
QUIET = re.compile(r'<span class="(?:n|nn|o|p|w)">([^<]*)</span>')


def on_files(files: Files, *, config: MkDocsConfig) -> None:
    """Add a page for every file."""
    root = Path(config.config_file_path).parent
    for file in Book(root, Path(config.docs_dir)).listed:
        path = file.relative_to(root).as_posix()
        head = HEAD.format(path=path)
        files.append(File.generated(config, listing(path), content=head))


def on_page_content(html: str, *, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Set the source below the heading."""
    if not page.file.src_uri.startswith(f"{LISTINGS}/"):
        return PLAIN.sub(r"\1", html)
    path = page.file.src_uri.removeprefix(f"{LISTINGS}/").removesuffix(".md")
    root = Path(config.config_file_path).parent
    text = (root / path).read_text("utf-8")
    anchors = {f"L{number}" for number in range(1, text.count("\n") + 2)}
    page.present_anchor_ids = (page.present_anchor_ids or set()) | anchors
    recipe = f"listing {pygments.__version__}\n{Path(__file__).read_text()}\n{text}"
    numbered = Kept(root)(recipe, lambda: highlighted(text))
    block = f"<pre><code>{numbered}\n</code></pre>"
    return f'{html}<div class="highlight listing">{block}</div>'


def highlighted(text: str) -> str:
    """Give the source as HTML, each line after an anchor with its number."""
    shown = highlight(text, PythonLexer(), HtmlFormatter(nowrap=True))
    lines = QUIET.sub(r"\1", shown).rstrip("\n").split("\n")
    return "\n".join(
        f'<a id="L{number}" href="#L{number}">{number}</a>{line}'
        for number, line in enumerate(lines, start=1)
    )
