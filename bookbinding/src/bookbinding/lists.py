"""Make the lists of the whole book: `[[list questions]]` and its kin."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Callable, Iterable
from xml.etree.ElementTree import Element

from bookbinding import glossary, ledger, parts
from bookbinding.directives import Context, element
from bookbinding.listings import listing_of
from bookbinding.project import Project, link
from bookbinding.questions import Question


def listed(context: Context, parent: Element, name: str) -> None:
    """Show one of the lists."""
    lists: dict[str, Callable[[Context, Element], None]] = {
        "questions": questions,
        "errata": errata,
        "asked": asked,
        "evidence": evidence,
        "examples": examples,
        "ledger": ledger.ledger,
        "references": references,
        "terms": lambda context, parent: glossary.entries(context.project.docs, parent),
    }
    if name not in lists:
        raise ValueError(f"there is no list of {name!r}; there are {', '.join(lists)}")
    lists[name](context, parent)


def questions(context: Context, parent: Element) -> None:
    """List every question twice, in tabs: by its document, and by its chapter."""
    project, page = context.project, context.page
    asked = list(project.questions.values())
    courses = {
        f"{one.course}, {one.place}": [
            other for other in asked if other.source == one.source
        ]
        for one in asked
    }
    answered = [project.questions.get(answer.question) for answer in project.answers]
    chapters = {
        f"[Chapter {number}: {title}]({link(page, f'chapters/{name}.md')})": [
            one for one in answered if one and one.chapter == name
        ]
        for name, (number, title) in project.chapters.items()
    }
    for name, groups in (("By course", courses), ("By chapter", chapters)):
        shown = textwrap.indent(tables(groups.items(), project, page), "    ")
        context.parse(parent, f'=== "{name}"\n\n{shown}')


def tables(
    groups: Iterable[tuple[str, list[Question]]], project: Project, page: str
) -> str:
    """Return a table for each group of questions."""
    head = "| Question | In one line | Evidence |\n|---|---|---|\n"
    return "\n\n".join(
        f"**{title}**\n\n" + head + "\n".join(row(one, project, page) for one in group)
        for title, group in groups
        if group
    )


def row(question: Question, project: Project, page: str) -> str:
    """Return a question's line: its answer in one sentence, and its tests."""
    if project.answer(question.id) is None:
        return f"| {question.number} {question.title} | not answered | |"
    title = f"[{question.title}]({link(page, question.page, question.id)})"
    worth = f" ({question.worth})" if question.worth else ""
    _, answer = project.boxes.get(question.id, ("", ""))
    tests = len(project.evidence(question.id))
    evidence = link(page, parts.EVIDENCE_PAGE, f"evidence-{question.id}")
    count = f"[{tests} test{'' if tests == 1 else 's'}]({evidence})"
    return f"| {question.number} {title}{worth} | {first_sentence(answer)} | {count} |"


def first_sentence(text: str) -> str:
    """Return the first sentence of Markdown, without links to other parts of a page."""
    text = " ".join(re.split(r"\n\s*\n", text)[0].split())
    text = re.sub(r"\s*\(?\$\\eqref\{[^}]*\}\$\)?", "", text)
    text = re.sub(r"\[\[[^\]]*\]\]|\[([^\]]*)\]\([^)]*\)", r"\1", text)
    found = re.match(r"(?:\$[^$]*\$|`[^`]*`|[^$`])*?[.:](?=\s|$)", text)
    sentence = re.sub(r"[,;]+(?=;)", "", found[0] if found else text)
    return sentence.replace("|", "\\vert ").rstrip(" ,;:.") + "." if text else ""


def asked(context: Context, parent: Element) -> None:
    """List the questions without their answers, by document."""
    source = ""
    for one in context.project.questions.values():
        if one.source != source:
            source = one.source
            context.parse(parent, f"## {one.course}\n\n{one.place}\n{{ .byline }}")
        words, _ = context.project.boxes.get(one.id, ("", ""))
        answer = link(context.page, one.page, one.id)
        worth = f" · {one.worth}" if one.worth else ""
        heading = f"**{one.number} [{one.title}]({answer})**{worth}"
        context.parse(parent, f"{heading}\n\n{words}")


def errata(context: Context, parent: Element) -> None:
    """List the errata by document, in the order of its questions."""
    project = context.project
    order = list(project.questions)
    for source, title in project.documents.items():
        found = [
            one
            for one in project.errata.values()
            if one.source == source and one.question in project.questions
        ]
        if found:
            context.parse(parent, f"## {title}")
            for one in sorted(found, key=lambda one: order.index(one.question)):
                parts.show_erratum(context, parent, one)


def evidence(context: Context, parent: Element) -> None:
    """List the tests of every question, chapter by chapter."""
    project = context.project
    for chapter, (number, title) in project.chapters.items():
        context.parse(parent, f"## {number} {title}")
        for one in project.questions.values():
            # What has no evidence is reported as a gap.
            if one.chapter == chapter and project.evidence(one.id):
                answer = link(context.page, one.page, one.id)
                heading = element(parent, "h3", id=f"evidence-{one.id}")
                element(heading, "a", one.title, href=answer)
                element(parent, "p", one.byline, class_="byline")
                parts.evidence(context, parent, one.id)


def examples(context: Context, parent: Element) -> None:
    """List the examples: what each shows, and how its figures were made."""
    project, page = context.project, context.page
    for chapter, (number, title) in project.chapters.items():
        path = f"examples/{chapter}.py"
        code = (project.root / path).read_text("utf-8")
        made = parts.made_by(parts.known_run(context, chapter), chapter, page)
        context.parse(
            parent,
            f"## {number} {title}\n\n{ast.get_docstring(ast.parse(code)) or ''}\n\n"
            f"{made}\n{{ .made }}\n\n[The source]({link(page, listing_of(path))}) · "
            f"[the chapter]({link(page, f'chapters/{chapter}.md')})",
        )


def references(context: Context, parent: Element) -> None:
    """List the cited works, by author and year."""
    works = context.project.references
    for key in sorted(works, key=lambda key: (works[key]["authors"], key)):
        text = "{authors} ({year}). [*{title}*]({url}). {venue}.".format(**works[key])
        context.parse(parent, f"{text}\n{{ #{key} .reference }}")
