"""Let the first use of a term in each section say what it means.

The term becomes a link to the glossary, whose title, the definition, is shown as a
tooltip: a link, unlike an abbreviation, can be reached by keyboard and by touch.
"""

from __future__ import annotations

import html
import re
import tomllib
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url

EXPLAINED = ("chapters/", "notebooks/")
TOKEN = re.compile(r"<!--.*?-->|<[^>]+>|[^<]+", re.S)
TAG = re.compile(r"<(/?)([a-zA-Z][\w-]*)")
# Within these, a link would be wrong or in the way.
SKIPPED = {
    *("a", "autoref", "code", "pre", "summary", "figcaption", "button", "script"),
    *("h1", "h2", "h3", "h4", "h5", "h6", "th"),
}
TITLE = 'class="admonition-title"'
FORMULA = 'class="arithmatex"'
VOID = {"img", "br", "hr", "input", "meta", "link"}


def read(docs: Path) -> dict[str, str]:
    """Read the terms and their definitions."""
    path = docs / "glossary.toml"
    return tomllib.loads(path.read_text("utf-8")) if path.is_file() else {}


def anchor(term: str) -> str:
    """Give a term's place in the glossary."""
    return "term-" + re.sub(r"\W+", "-", term.casefold()).strip("-")


def entries(terms: dict[str, str]) -> str:
    """Give the glossary's list."""
    ordered = sorted(terms.items(), key=lambda item: item[0].casefold())
    return "\n\n".join(
        f"{term} {{ #{anchor(term)} }}\n:   {meaning}" for term, meaning in ordered
    )


def on_page_content(
    html: str, *, page: Page, config: MkDocsConfig, **_: Any
) -> str | None:
    """Explain the terms of a chapter where they are first used."""
    if not page.file.src_uri.startswith(EXPLAINED):
        return None
    terms = read(Path(config.docs_dir))
    home = get_relative_url("glossary/", page.url)
    return explained(html, terms, home) if terms else None


def explained(text: str, terms: dict[str, str], home: str) -> str:
    """Link the first use of each term after every heading."""
    by_word = {term.casefold(): term for term in terms}
    words = "|".join(re.escape(word) for word in sorted(terms, key=len, reverse=True))
    pattern = re.compile(rf"(?<![\w-])({words})(s?)(?![\w-])", re.I)
    seen: set[str] = set()

    def linked(found: re.Match[str]) -> str:
        term = by_word[found[1].casefold()]
        if term in seen:
            return found[0]
        seen.add(term)
        meaning = html.escape(terms[term], quote=True)
        return (
            f'<a class="term" href="{home}#{anchor(term)}" title="{meaning}">'
            f"{found[0]}</a>"
        )

    made: list[str] = []
    inside: list[str] = []
    for token in TOKEN.findall(text):
        tag = TAG.match(token)
        if tag is None:
            made.append(token if inside else pattern.sub(linked, token))
            continue
        made.append(token)
        closing, name = tag.groups()
        if name in {"h2", "h3"} and not closing:
            seen.clear()
        if closing:
            if inside and inside[-1] == name:
                inside.pop()
        elif name in VOID or token.endswith("/>"):
            continue
        # Once inside something skipped, every element counts until it closes.
        elif inside or name in SKIPPED or TITLE in token or FORMULA in token:
            inside.append(name)
    return "".join(made)
