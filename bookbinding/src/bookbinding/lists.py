"""Make the lists of the whole book: `[[list questions]]` and its kin."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from xml.etree.ElementTree import Element

from bookbinding import exercises, glossary, ledger, parts, runs
from bookbinding.directives import Context, element
from bookbinding.listings import listing_of
from bookbinding.project import Project, link
from bookbinding.questions import Question

#: What the two kinds of errata are.
ERRATA = {
    "error": ("Errors", "What a document says and what does not hold."),
    "trap": (
        "Traps",
        "What a document says is right, or left open, and a reader can still go wrong.",
    ),
}


def listed(context: Context, parent: Element, name: str) -> None:
    """Show one of the lists."""
    lists: dict[str, Callable[[Context, Element], None]] = {
        "questions": questions,
        "errata": errata,
        "asked": asked,
        "evidence": evidence,
        "examples": examples,
        "exercises": exercises.entries,
        "ledger": ledger.ledger,
        "references": references,
        "terms": glossary.entries,
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
    """Return a question's line: its answer in one sentence, and its first test."""
    if project.answer(question.id) is None:
        return f"| {question.number} {question.title} | not answered | |"
    title = f"[{question.title}]({link(page, question.page, question.id)})"
    worth = f" ({question.worth})" if question.worth else ""
    tests = project.evidence(question.id)
    evidence = link(page, parts.EVIDENCE_PAGE, f"evidence-{question.id}")
    more = f" and {len(tests) - 1} more" if len(tests) > 1 else ""
    claim = f"[{tests[0].claim}]({evidence}){more}" if tests else ""
    answer = question.answer.replace("|", "\\vert ")
    return f"| {question.number} {title}{worth} | {answer} | {claim} |"


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
    """List errors and traps, each by document, in the order of its questions."""
    project = context.project
    order = list(project.questions)
    for kind, (title, meaning) in ERRATA.items():
        found = [
            one
            for one in project.errata.values()
            if one.kind == kind and one.question in project.questions
        ]
        if not found:
            continue
        context.parse(parent, f"## {title}\n\n{meaning}")
        for source, document in project.documents.items():
            ours = [one for one in found if one.source == source]
            if ours:
                context.parse(parent, f"### {document} {{ #{kind}s-{source} }}")
            for one in sorted(ours, key=lambda one: order.index(one.question)):
                parts.show_erratum(context, parent, one, folded=True)


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
    """Show a gallery of the examples: a figure, what it is about, how long it takes."""
    project, page = context.project, context.page
    gallery = element(parent, "div", class_="gallery")
    for chapter, (number, title) in project.chapters.items():
        path = f"examples/{chapter}.py"
        code = (project.root / path).read_text("utf-8")
        shown = element(gallery, "section")
        element(shown, "h2", f"{number} {title}", id=f"example-{chapter}")
        if found := first_figure(project, chapter):
            name, alt = found
            picture = element(shown, "p", class_="thumbnail")
            for mode in ("light", "dark"):
                source = link(page, f"figures/{name}-{mode}.svg", f"only-{mode}")
                element(picture, "img", src=source, alt=alt, loading="lazy")
        about = ast.get_docstring(ast.parse(code)) or ""
        about = about.removeprefix(f"Figures of chapter {number}: ")
        context.parse(shown, about[:1].upper() + about[1:])
        names = runs.names(project.docs, chapter)
        times = "; ".join(
            parts.timed(parts.known_run(context, name), name, page) for name in names
        )
        context.parse(
            shown,
            f"{times}\n{{ .made }}\n\n"
            f"[The chapter]({link(page, f'chapters/{chapter}.md')}) · "
            f"[the source]({link(page, listing_of(path))})",
        )


def first_figure(project: Project, chapter: str) -> tuple[str, str] | None:
    """Return the first figure that a chapter's example drew, and what it shows."""
    text = (project.docs / f"chapters/{chapter}.md").read_text("utf-8")
    found = re.search(
        rf"^ *\[\[figure ({chapter}/[\w/-]+):(.*?)\]\]", text, re.M | re.S
    )
    return (found[1], " ".join(found[2].split())) if found else None


def references(context: Context, parent: Element) -> None:
    """List the cited works, by author and year: what each is for, and who cites it."""
    works = context.project.references
    for key in sorted(works, key=lambda key: (works[key]["authors"], key)):
        text = "{authors} ({year}). [*{title}*]({url}). {venue}.".format(**works[key])
        note = works[key].get("note", "")
        cited = "; ".join(cited_in(key, context))
        back = f" Cited in {cited}." if cited else ""
        context.parse(parent, f"{text}\n{{ #{key} .reference }}")
        if note or back:
            context.parse(parent, f"{note}{back}\n{{ .annotation }}")


def cited_in(key: str, context: Context) -> list[str]:
    """Return links to the sections that cite a work, with the chapters' numbers."""
    chapters = context.project.chapters
    places = context.project.citations.get(key, [])
    # A list of further reading says nothing, unless it is the only place.
    told = [place for place in places if place[1] != "further-reading"] or places
    found = []
    for page, anchor, title in told:
        number, _ = chapters.get(Path(page).stem, ("", ""))
        text = title if title.startswith(str(number)) else f"{number} {title}"
        found.append(f"[{text}]({link(context.page, page, anchor)})")
    return found
