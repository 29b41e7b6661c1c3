"""The Markdown of the book's own blocks: evidence, errata, figures."""

from __future__ import annotations

import re
import struct
import textwrap
from pathlib import Path
from typing import Any

import records
from book import DOCUMENTS, Book, Erratum, link, listing
from questions import Question, Test

RELATIVE = re.compile(r"\]\((?!https?:|/)([^)\s]*)\)")


def heading(question: Question) -> str:
    """Give a question's heading and byline."""
    worth = f" · {question.worth}" if question.worth else ""
    return (
        f"### {question.title} {{ #{question.id} .question }}\n\n"
        f"{question.source.place} · question {question.number}{worth} · "
        f"`{question.id}`\n{{ .byline }}\n"
    )


def line_of(test: Test, page: str) -> str:
    """Link to a test's line."""
    return link(page, listing(test.path), f"L{test.line}")


def folded(test: Test, page: str, *, lead: str = "") -> str:
    """Show a test's source, folded, with its command and a link to its line."""
    inner = (
        f"{fenced(test.code, 'python')}\n\n"
        f"{fenced(test.command, 'sh')}\n\n"
        f"[{test.path}, line {test.line}]({line_of(test, page)})\n{{ .place }}\n"
    )
    title = f"{lead}{test.claim}".replace('"', "'")
    return f'??? evidence "{title}"\n\n{textwrap.indent(inner, "    ")}'


def fenced(text: str, language: str) -> str:
    """Put text into a fence that is longer than any within it."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def further(tests: list[Test], page: str) -> str:
    """List more tests by what they claim."""
    if not tests:
        return ""
    items = "\n".join(f"- [{test.claim}]({line_of(test, page)})" for test in tests)
    count = f"{len(tests)} more test{'' if len(tests) == 1 else 's'}"
    return f'??? evidence "{count}"\n\n{textwrap.indent(items, "    ")}\n'


def correction(erratum: Erratum, book: Book, page: str) -> str:
    """Give an erratum's box: whose claim, what is right, and the counterexample."""
    question = book.questions[erratum.question]
    by = f"{DOCUMENTS[erratum.source]}, [{question.id}]"
    by += f"({link(page, question.page, question.id)})"
    tests = [book.test_named(name) for name in erratum.tests]
    shown = [folded(test, page, lead="Counterexample: ") for test in tests if test]
    inner = "\n\n".join(
        [
            f"{by}\n{{ #{erratum.anchor} .byline }}",
            f"**Claim.** {moved(erratum.claim, erratum, page)}",
            f"**Right.** {moved(erratum.right, erratum, page)}",
            *shown,
        ]
    )
    title = erratum.title.replace('"', "'")
    return f'!!! erratum "{title}"\n\n{textwrap.indent(inner, "    ")}\n'


def moved(text: str, erratum: Erratum, page: str) -> str:
    """Let links that are relative to the chapter's page hold on another page."""
    home = f"chapters/{erratum.chapter}.md"

    def relinked(found: re.Match[str]) -> str:
        path, _, anchor = found[1].partition("#")
        target = f"chapters/{path}" if path else home
        return f"]({link(page, target, anchor)})"

    text = text.strip()
    return text if page == home else RELATIVE.sub(relinked, text)


def figure(name: str, alt: str, caption: str, *, page: str, docs: Path) -> str:
    """Show a figure for light and dark, with its caption and how it was made.

    Raises:
        ValueError: There is no such figure, no record of its run, or no alt text.
    """
    chapter, _, stem = name.partition("/")
    folder = docs / "figures" / chapter
    found = {
        mode: path
        for mode in ("light", "dark")
        for path in sorted(folder.glob(f"{stem}-{mode}.*"))
    }
    if len(found) < 2:
        there = sorted({p.stem.rpartition("-")[0] for p in folder.glob("*-light.*")})
        raise ValueError(f"no figure {name}; there are {', '.join(there) or 'none'}")
    if len(alt.split()) < 3:
        raise ValueError(f"figure {name} needs an alt text that says what is seen")
    run = records.read_run(docs / "figures", chapter)
    if run is None:
        raise ValueError(f"figure {name} has no run.json beside it")
    width, height = size_of(found["light"])
    alt = alt.replace("[", "(").replace("]", ")").replace('"', "'")
    pictures = "\n".join(
        f"![{alt}]({link(page, f'figures/{chapter}/{path.name}')}#only-{mode})"
        f"{{ width={width} height={height} loading=lazy }}"
        for mode, path in found.items()
    )
    return (
        f"///// html | figure.book\n    attrs: {{id: {anchor_of(name)}}}\n\n"
        f"{pictures}\n\n"
        f"//// html | figcaption\n\n{caption}\n\n{made_by(run, chapter, page)}\n"
        "{ .made }\n\n////\n/////\n"
    )


def anchor_of(name: str) -> str:
    """Give a figure's place on its page."""
    return f"figure-{name.replace('/', '-')}"


def made_by(run: dict[str, Any], chapter: str, page: str) -> str:
    """Say how a run's figures were made."""
    script = link(page, listing(f"examples/{chapter}.py"))
    record = link(page, f"figures/{chapter}/run.json")
    return (
        f"Made by [`{run['command']}`]({script}) on a {records.device(run)} in "
        f"{records.took(run)} ([record]({record}))."
    )


def size_of(picture: Path) -> tuple[int, int]:
    """Give a picture's size in pixels, so that the page keeps its place free."""
    data = picture.read_bytes()
    if picture.suffix == ".png":
        width, height = struct.unpack(">II", data[16:24])
        return width, height
    box = re.search(rb'viewBox="0 0 ([\d.]+) ([\d.]+)"', data)
    if box is None:
        raise ValueError(f"{picture.name} does not say how large it is")
    return round(float(box[1]) * 4 / 3), round(float(box[2]) * 4 / 3)
