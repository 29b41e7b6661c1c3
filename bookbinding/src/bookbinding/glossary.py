"""Explain the terms of docs/glossary.toml where the text uses them.

Python-Markdown's `abbr` marks every use and the theme shows the tooltip. A page that
underlines every use of every term is hard to read: the first one in a section is kept.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from xml.etree.ElementTree import Element

from markdown.util import AtomicString

from bookbinding.directives import element

SECTION = re.compile(r"(?=<h[23]\b)")
# Links, headings and what unfolds are read for what they lead to.
SKIPPED = re.compile(
    r'<(a|autoref|summary|h[1-6]|th|figcaption)\b.*?</\1>|<p class="admonition-.*?</p>',
    re.S,
)
ABBR = re.compile(r'<abbr title="([^"]*)">(.*?)</abbr>', re.S)


def read(docs: Path) -> dict[str, str]:
    """Read the terms and their definitions."""
    path = docs / "glossary.toml"
    return tomllib.loads(path.read_text("utf-8")) if path.is_file() else {}


def abbreviations(docs: Path) -> dict[str, str]:
    """Return the forms in which the text may use the terms."""
    return {
        form: meaning
        for term, meaning in read(docs).items()
        for start in (term, term[:1].upper() + term[1:])
        for form in (start, f"{start}s")
    }


def first_in_section(html: str) -> str:
    """Keep the first mark of each term in a section, outside of links and titles."""
    html = SKIPPED.sub(lambda found: ABBR.sub(r"\2", found[0]), html)
    sections = SECTION.split(html)
    for index, section in enumerate(sections):
        for meaning in {found[1] for found in ABBR.finditer(section)}:
            start = f'<abbr title="{meaning}">'
            end = section.index("</abbr>", section.index(start))
            mark = re.compile(rf"{re.escape(start)}(.*?)</abbr>", re.S)
            section = section[:end] + mark.sub(r"\1", section[end:])
        sections[index] = section
    return "".join(sections)


def entries(docs: Path, parent: Element) -> None:
    """Add the glossary's list."""
    defined = element(parent, "dl")
    for term, meaning in sorted(
        read(docs).items(), key=lambda item: item[0].casefold()
    ):
        anchor = "term-" + re.sub(r"\W+", "-", term.casefold()).strip("-")
        element(defined, "dt", AtomicString(term), id=anchor)
        element(defined, "dd", meaning)
