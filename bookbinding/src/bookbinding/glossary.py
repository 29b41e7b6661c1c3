"""Explain the terms of docs/glossary.toml where the text uses them.

A term has its meaning, and may have the page and anchor where it is `taught`, and other
words that readers look for (`also`). Python-Markdown's `abbr` marks every use and the
theme shows the tooltip. A page that underlines every use of every term is hard to read:
the first one in a section is kept.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from xml.etree.ElementTree import Element

from markdown.util import AtomicString

from bookbinding.directives import Context, element
from bookbinding.project import link

SECTION = re.compile(r"(?=<h[23]\b)")
# Links, headings and what unfolds are read for what they lead to.
SKIPPED = re.compile(
    r'<(a|autoref|summary|h[1-6]|th|figcaption)\b.*?</\1>|<p class="admonition-.*?</p>',
    re.S,
)
ABBR = re.compile(r'<abbr title="([^"]*)">(.*?)</abbr>', re.S)


@dataclass(frozen=True)
class Term:
    """A word, what it means, and where it is taught.

    A basic term is listed, but not marked in the text: it is on every page.
    """

    name: str
    meaning: str
    taught: str = ""
    also: tuple[str, ...] = ()
    basic: bool = False

    @property
    def anchor(self) -> str:
        """Its anchor on the glossary's page."""
        return "term-" + re.sub(r"\W+", "-", self.name.casefold()).strip("-")

    @property
    def forms(self) -> set[str]:
        """How the text may write it."""
        starts = (self.name, self.name[:1].upper() + self.name[1:])
        return {form for start in starts for form in (start, f"{start}s")}


def read(docs: Path) -> list[Term]:
    """Read the terms: each is its meaning, or a table that has one."""
    path = docs / "glossary.toml"
    found = tomllib.loads(path.read_text("utf-8")) if path.is_file() else {}
    return [
        Term(name, given) if isinstance(given, str) else Term(name, **given)
        for name, given in found.items()
    ]


def abbreviations(docs: Path) -> dict[str, str]:
    """Return the forms in which the text may use the terms, with their meanings."""
    terms = [term for term in read(docs) if not term.basic]
    return {form: term.meaning for term in terms for form in sorted(term.forms)}


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


def entries(context: Context, parent: Element) -> None:
    """Add the glossary's list: each term with its meaning and where it is taught."""
    chapters = context.project.chapters
    defined = element(parent, "dl", class_="terms")
    for term in sorted(read(context.project.docs), key=lambda one: one.name.casefold()):
        named = element(defined, "dt", AtomicString(term.name), id=term.anchor)
        if term.also:
            text = AtomicString(f"also {', '.join(term.also)}")
            element(named, "span", text, class_="also")
        meaning = element(defined, "dd", AtomicString(f"{term.meaning} "))
        if term.taught:
            page, _, anchor = term.taught.partition("#")
            number, _ = chapters.get(Path(page).stem, ("", ""))
            text = f"Chapter {number}" if number else "More"
            href = link(context.page, page, anchor)
            element(meaning, "a", AtomicString(text), href=href)
