"""Answer every question with evidence: the `[[...]]` directives of the pages.

    [[question nyu-1.1a]]                 the question's heading
    [[evidence nyu-1.1a]]                 the tests that carry its marker, folded
    [[evidence nyu-1.1a: test_a, test_b]] only these, in this order; the others as links
    [[figure attention/scale: alt text]]  a figure; the lines after it that begin
    > The caption.                        with > are its caption
    [[erratum nyu-1.1a-transpose]]        a box out of docs/errata/<chapter>.toml
    [[test test_name]]                    one test, folded, on any page
    [[list questions]]                    a list of the whole book (see indexes.py)
    [[speed summary]]                     a part of the page on speed (see speed.py)
    [[number attention metrics.x .3f]]    a number that a run wrote down (inline)
    [[cite vaswani2017 section 3.2]]      a reference (inline)

Whatever is missing is a warning, hence an error in a strict build.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import blocks
import directives
import indexes
import records
import speed
from book import DOCUMENTS, Book, link
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority, get_plugin_logger
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

NUMBER = re.compile(r'(\S+)\s+(?:"([^"]+)"|(\S+))(?:\s+(\S+))?')
PICTURE = re.compile(r"<img\b[^>]*>")
ALT = re.compile(r'\balt="[^"]*\w[^"]*"')

log = get_plugin_logger("answers")
book: Book


@event_priority(50)
def on_files(files: Files, *, config: MkDocsConfig) -> None:
    """Read the questions and tests, and see that each question is answered."""
    global book
    book = Book(Path(config.config_file_path).parent, Path(config.docs_dir))
    for complaint in [*question_gaps(), *errata_gaps()]:
        log.warning("%s", complaint)


def question_gaps() -> list[str]:
    """Say which questions lack an answer or evidence, and which markers are unknown."""
    found: list[str] = []
    counts = Counter(id_ for id_, _ in book.answers)
    for question in book.questions.values():
        answer = book.answer(question.id)
        if answer is None:
            found.append(f"{question.page}: {question.id} is not answered")
            continue
        if answer.page != question.page:
            found.append(f"{answer.page}: {question.id} belongs on {question.page}")
        if counts[question.id] > 1:
            found.append(f"{question.page}: {question.id} is answered twice")
        if not answer.evidence:
            found.append(
                f"{question.page}: {question.id} is answered without evidence "
                f"(write [[evidence {question.id}]] below the answer)"
            )
    for test in book.tests:
        for marker in test.questions:
            if marker not in book.questions:
                found.append(f"{test.path}:{test.line}: no question {marker!r}")
    return found


def errata_gaps() -> list[str]:
    """Say which errata are not shown, or lack what they need."""
    found: list[str] = []
    shown = Counter(book.errata_shown)
    for erratum in book.errata.values():
        place = f"errata/{erratum.chapter}.toml: {erratum.id}"
        if shown[erratum.id] != 1:
            found.append(f"{place} is shown {shown[erratum.id]} times, not once")
        if erratum.question not in book.questions:
            found.append(f"{place}: no question {erratum.question!r}")
        if erratum.source not in DOCUMENTS:
            found.append(f"{place}: source is one of {', '.join(DOCUMENTS)}")
        if not erratum.tests:
            found.append(f"{place} names no test")
        found += [
            f"{place}: no test is called {name}"
            for name in erratum.tests
            if book.test_named(name) is None
        ]
    return found


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Expand the directives of a page."""
    here = page.file.src_uri
    warn_of_typed_numbers(markdown, here)
    texts = {
        "number": partial(guarded, number, here=here),
        "cite": partial(guarded, cite, here=here),
    }

    def unknown(name: str) -> None:
        log.warning("%s: there is no directive [[%s ...]]", here, name)

    def inner(text: str) -> str:
        return directives.expand(text, blocks={}, inline=texts, unknown=unknown)

    whole = {
        "question": partial(guarded, question, here=here),
        "evidence": partial(guarded, evidence, here=here),
        "figure": partial(guarded, figure, here=here),
        "erratum": partial(guarded, erratum, here=here),
        "test": partial(guarded, one_test, here=here),
        "list": partial(guarded, indexes.listed, here=here),
        "speed": partial(guarded, speed.part, here=here),
    }
    expanded = {
        name: lambda argument, quoted, make=make: inner(make(argument, quoted))
        for name, make in whole.items()
    }
    return directives.expand(markdown, blocks=expanded, inline=texts, unknown=unknown)


def guarded(make: Any, *arguments: str, here: str) -> str:
    """Turn what cannot be made into a warning that says where."""
    try:
        return make(*arguments, book=book, here=here)
    except (KeyError, ValueError) as error:
        log.warning("%s: %s", here, error.args[0])
        return f"`{error.args[0]}`"


def question(argument: str, quoted: str, *, book: Book, here: str) -> str:
    """Head the answer to a question."""
    if argument not in book.questions:
        raise ValueError(f"questions.toml has no {argument!r}")
    return blocks.heading(book.questions[argument])


def evidence(argument: str, quoted: str, *, book: Book, here: str) -> str:
    """Show the tests that an answer rests on."""
    id_, _, names = argument.partition(":")
    id_ = id_.strip()
    if id_ not in book.questions:
        raise ValueError(f"questions.toml has no {id_!r}")
    tests = {test.function: test for test in book.evidence(id_)}
    if not tests:
        raise ValueError(f"{id_} has no evidence: no test is marked with it")
    chosen = [name for name in re.split(r"[,\s]+", names) if name] or list(tests)
    for name in chosen:
        if name not in tests:
            raise ValueError(f"no test {name} is marked with {id_}")
    shown = [blocks.folded(tests[name], here) for name in chosen]
    rest = [test for name, test in tests.items() if name not in chosen]
    return "\n\n".join([*shown, blocks.further(rest, here)])


def one_test(argument: str, quoted: str, *, book: Book, here: str) -> str:
    """Show a test."""
    test = book.test_named(argument)
    if test is None:
        raise ValueError(f"no test is called {argument!r}")
    return blocks.folded(test, here)


def figure(argument: str, quoted: str, *, book: Book, here: str) -> str:
    """Show a figure and its caption."""
    name, _, alt = argument.partition(":")
    if not quoted:
        raise ValueError(f"figure {name} needs a caption: lines that begin with >")
    return blocks.figure(name.strip(), alt.strip(), quoted, page=here, docs=book.docs)


def erratum(argument: str, quoted: str, *, book: Book, here: str) -> str:
    """Show an erratum where its question is answered."""
    if argument not in book.errata:
        raise ValueError(f"no erratum {argument!r} in docs/errata")
    return blocks.correction(book.errata[argument], book, here)


def number(argument: str, *, book: Book, here: str) -> str:
    """Give a number that a run wrote down."""
    parts = NUMBER.fullmatch(argument)
    if parts is None:
        raise ValueError(f"write [[number chapter path format]], not {argument!r}")
    chapter, path, format_ = parts[1], parts[2] or parts[3], parts[4] or ""
    run = records.read_run(book.docs / "figures", chapter)
    if run is None:
        raise ValueError(f"no run of {chapter} has been made: no run.json")
    return records.written(records.value_at(run, path), format_)


def cite(argument: str, *, book: Book, here: str) -> str:
    """Name a work, and the place in it."""
    key, _, place = argument.partition(" ")
    if key not in book.references:
        raise ValueError(f"references.toml has no {key!r}")
    named = f"[{book.references[key].label}]({link(here, 'references.md', key)})"
    return f"{named}, {place.strip(' ,')}" if place.strip() else named


def warn_of_typed_numbers(markdown: str, here: str) -> None:
    """Warn of numbers that a run wrote down and a hand copied."""
    text = directives.prose(markdown)
    for run in sorted((book.docs / "figures").glob("*/run.json")):
        chapter = run.parent.name
        if here.startswith("chapters/") and here != f"chapters/{chapter}.md":
            continue
        record = records.read_run(run.parent.parent, chapter) or {}
        for typed, path, format_ in records.typed_by_hand(text, record):
            use = f'[[number {chapter} "{path}" {format_}]]'
            log.warning("%s: %s is typed by hand: write %s", here, typed, use)


def on_page_content(html: str, *, page: Page, **_: Any) -> None:
    """Warn of pictures that say nothing to those who cannot see them."""
    for picture in PICTURE.findall(html):
        if not ALT.search(picture):
            log.warning("%s: no alt text: %s", page.file.src_uri, picture)
