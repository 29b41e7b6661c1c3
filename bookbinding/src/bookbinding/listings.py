"""Add a page for every source file that a page links to, with numbered lines."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pygments
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name

FOLDER = "source/"
HEAD = """---
title: {path}
hide: [navigation, toc]
search: {{exclude: true}}
---
# `{path}`
"""
# The theme gives these tokens no color of their own; marking them up doubles a page.
UNCOLORED = re.compile(r'<span class="(?:n|nn|o|p|w)">([^<]*)</span>')


def listing_of(path: str) -> str:
    """Return the page that shows a file's source."""
    return f"{FOLDER}{path}.md"


def add_listings(files: Files, config: MkDocsConfig, paths: Iterable[str]) -> None:
    """Add a page for each of these files of source."""
    for path in sorted(paths):
        head = HEAD.format(path=path)
        files.append(File.generated(config, listing_of(path), content=head))


def listing(html: str, page: Page, root: Path) -> str:
    """Put a file's source below its page's heading, an anchor before each line."""
    path = page.file.src_uri.removeprefix(FOLDER).removesuffix(".md")
    lines = highlighted((root / path).read_text("utf-8")).split("\n")
    anchors = [f"L{number}" for number in range(1, len(lines) + 1)]
    page.present_anchor_ids = (page.present_anchor_ids or set()) | set(anchors)
    text = "\n".join(
        f'<a id="{anchor}" href="#{anchor}">{anchor[1:]}</a>{line}'
        for anchor, line in zip(anchors, lines, strict=True)
    )
    return (
        f'{html}<div class="highlight listing"><pre><code>{text}\n</code></pre></div>'
    )


@cache
def highlighted(text: str, language: str = "python") -> str:
    """Return code as HTML, in the classes that the theme colors."""
    formatter = HtmlFormatter(nowrap=True)
    made = pygments.highlight(text, get_lexer_by_name(language), formatter)
    return UNCOLORED.sub(r"\1", made).rstrip("\n")
