"""Lists of the whole book: questions, errata, the ledger, references, terms."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable, Iterable
from pathlib import PurePosixPath

import bibliography
import blocks
import glossary
import ledger
import records
from book import DOCUMENTS, Book, link, listing
from questions import Question


def listed(argument: str, quoted: str, *, book: Book, here: str) -> str:
    """Give one of the book's lists."""
    lists: dict[str, Callable[[Book, str], str]] = {
        "questions": lambda book, here: by_course_and_chapter(book, here),
        "errata": errata,
        "examples": examples,
        "ledger": ledger.tables,
        "references": lambda book, here: bibliography.entries(book.references),
        "terms": lambda book, here: glossary.entries(glossary.read(book.docs)),
    }
    if argument not in lists:
        raise ValueError(f"there is no list of {argument!r}")
    return lists[argument](book, here)


def by_course_and_chapter(book: Book, here: str) -> str:
    """List every question twice, in tabs: by its document, and by its chapter."""
    asked = list(book.questions.values())
    courses = {
        question.source.key: f"{question.source.title}, {question.source.place}"
        for question in asked
    }
    # In the order of the pages, which is the order in which answers build on others.
    chapters = {
        path: f"[{title}]({link(here, path)})" for path, title in titles(book).items()
    }
    course_tables = [
        (title, [q for q in asked if q.source.key == key])
        for key, title in courses.items()
    ]
    order = [id_ for id_, _ in book.answers]
    chapter_tables = [
        (
            title,
            sorted(
                (q for q in asked if q.page == path),
                key=lambda q: order.index(q.id) if q.id in order else len(order),
            ),
        )
        for path, title in chapters.items()
    ]
    return "\n\n".join(
        f'=== "{name}"\n\n{textwrap.indent(tables(groups, book, here), "    ")}'
        for name, groups in (
            ("By course", course_tables),
            ("By chapter", chapter_tables),
        )
    )


def titles(book: Book) -> dict[str, str]:
    """Name the chapters' pages, in the order of the book."""
    return {
        f"chapters/{chapter}.md": f"Chapter {number}: {title}"
        for number, (chapter, title) in book.chapter_numbers.items()
    }


def tables(groups: Iterable[tuple[str, list[Question]]], book: Book, here: str) -> str:
    """Give a table for each group of questions."""
    head = (
        "| Question | Tests, by line | Figures | Code, by line |\n|---|---|---|---|\n"
    )
    return "\n\n".join(
        f"**{title}**\n\n" + head + "\n".join(row(q, book, here) for q in questions)
        for title, questions in groups
        if questions
    )


def row(question: Question, book: Book, here: str) -> str:
    """Give a question's line: its answer, tests, figures and code."""
    answer = book.answer(question.id)
    if answer is None:
        return f"| `{question.id}` {question.title} | not answered | | |"
    worth = f" ({question.worth})" if question.worth else ""
    title = f"[{question.title}]({link(here, answer.page, question.id)})"
    lines: dict[str, list[str]] = {}
    for test in book.evidence(question.id):
        place = f"[{test.line}]({blocks.line_of(test, here)})"
        name = PurePosixPath(test.path).stem.removeprefix("test_")
        lines.setdefault(name, []).append(place)
    tests = "; ".join(f"`{name}` {', '.join(found)}" for name, found in lines.items())
    figures = ", ".join(
        f"[{name.partition('/')[2]}]({link(here, answer.page, blocks.anchor_of(name))})"
        for name in answer.figures
    )
    code = ", ".join(
        f"`{name.rpartition('.')[2]}` [{line}]({link(here, listing(path), f'L{line}')})"
        for name in book.code_behind(question.id)
        for path, line in [book.definitions[name]]
    )
    return f"| `{question.id}` {title}{worth} | {tests} | {figures} | {code} |"


def errata(book: Book, here: str) -> str:
    """List the errata by document, in the order of its questions."""
    order = list(book.questions)
    parts: list[str] = []
    for source, title in DOCUMENTS.items():
        of_source = [
            one
            for one in book.errata.values()
            if one.source == source and one.question in book.questions
        ]
        if of_source:
            of_source.sort(key=lambda one: order.index(one.question))
            parts.append(f"## {title}")
            parts += [blocks.correction(one, book, here) for one in of_source]
    return "\n\n".join(parts)


def examples(book: Book, here: str) -> str:
    """List the examples: what each shows, and which of its runs has been made."""
    return "\n\n".join(
        example(f"{number} {title}", chapter, book, here)
        for number, (chapter, title) in book.chapter_numbers.items()
        if (book.root / f"examples/{chapter}.py").is_file()
    )


def example(title: str, chapter: str, book: Book, here: str) -> str:
    """Describe one example, in the words of its docstring."""
    path = f"examples/{chapter}.py"
    told = ast.get_docstring(ast.parse((book.root / path).read_text("utf-8"))) or ""
    run = records.read_run(book.docs / "figures", chapter)
    made = f"Its `cpu` run: {ledger.NOT_RUN}."
    if run is not None:
        made = blocks.made_by(run, chapter, here)
    return (
        f"## {title}\n\n{told}\n\n{made} Its `gpu` run: {ledger.NOT_RUN}.\n"
        f"{{ .made }}\n\n[The source]({link(here, listing(path))}) · "
        f"[the chapter]({link(here, f'chapters/{chapter}.md')})"
    )
