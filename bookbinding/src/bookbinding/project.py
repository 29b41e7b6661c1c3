"""Read what the pages are made of, once per build, and say what is missing."""

from __future__ import annotations

import posixpath
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from mkdocs.utils.meta import get_data

from bookbinding import questions

HEADING = re.compile(r'<h3 class="question" id="([^"]+)">')
FIGURE = re.compile(r'<figure class="(?:book|diagram)[^>]* id="figure-([^"]+)"')
SHOWN = re.compile(r"^ {0,3}\[\[(?:figure|diagram|explorable)\s+([\w/-]+)", re.M)
CODE = re.compile(r"\[\[code\s+([\w.]+)")
NAMED_TEST = re.compile(r"\[\[test\s+(\w+)")
BOX = re.compile(r"^\[\[question ([\w.-]+)\]\]\n((?:>.*\n?)+)", re.M)
ERRATUM = re.compile(r'id="erratum-([^"]+)"')
CITED = re.compile(
    r'<h[23][^>]*\bid="(?P<anchor>[^"]+)"[^>]*>(?P<title>.*?)</h[23]>'
    r'|<span class="cite"><a href="[^"]*#(?P<key>[\w-]+)">',
    re.S,
)
LINK_TO_ITSELF = re.compile(r'<a class="headerlink".*?</a>', re.S)
OBJECT = re.compile(r'<autoref [^>]*identifier="(transformers_hw\.[\w.]+)"')
#: Slower than a novel: there are formulas to follow.
WORDS_A_MINUTE = 160


@dataclass(frozen=True)
class Erratum:
    """What a source gets wrong, or what its reader may, with tests that show it.

    Its `kind` is `"error"` if the source is wrong, and `"trap"` if it is right, or says
    nothing, and a reader may still go wrong there.
    """

    id: str
    question: str
    source: str
    title: str
    claim: str
    right: str
    chapter: str
    kind: str = "error"
    tests: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Answer:
    """What a rendered page holds under one question's heading."""

    question: str
    page: str
    evidence: bool
    figures: tuple[str, ...]
    objects: tuple[str, ...]


@dataclass
class Project:
    """The questions, tests, errata and references of a checkout, and the answers found.

    Attributes:
        root: The folder of mkdocs.yml.
        docs: The folder of the pages.
        answers: What the pages rendered so far answer.
        errata_shown: The ids of the errata that they show.
        citations: Where they cite a work, by its key: page, anchor and title.
        exercises: The exercises, by name.
        exercises_shown: The names of those that the pages show.
    """

    root: Path
    docs: Path
    answers: list[Answer] = field(default_factory=list)
    errata_shown: list[str] = field(default_factory=list)
    citations: dict[str, list[tuple[str, str, str]]] = field(default_factory=dict)
    exercises: dict[str, Any] = field(default_factory=dict)
    exercises_shown: list[str] = field(default_factory=list)

    @cached_property
    def questions(self) -> dict[str, questions.Question]:
        """Every question, by id."""
        path = self.docs / "questions.toml"
        return questions.read_questions(path) if path.is_file() else {}

    @cached_property
    def documents(self) -> dict[str, str]:
        """The titles of the documents that errata are about, by key."""
        return _toml(self.docs / "questions.toml").get("document", {})

    @cached_property
    def tests(self) -> list[questions.Test]:
        """Every test, in source order."""
        return list(questions.read_tests(self.root))

    @cached_property
    def references(self) -> dict[str, dict[str, Any]]:
        """Every cited work, by key."""
        return _toml(self.docs / "references.toml")

    @cached_property
    def errata(self) -> dict[str, Erratum]:
        """Every erratum, by id."""
        return {
            entry["id"]: Erratum(**entry, chapter=path.stem)
            for path in sorted((self.docs / "errata").glob("*.toml"))
            for entry in _toml(path).get("erratum", [])
        }

    @cached_property
    def chapters(self) -> dict[str, tuple[int, str]]:
        """The numbers and titles of the chapters, in order, by name."""
        pages = (self.docs / "chapters").glob("*.md")
        heads = {path.stem: get_data(path.read_text("utf-8"))[1] for path in pages}
        found = {name: head for name, head in heads.items() if "chapter" in head}
        return {
            name: (found[name]["chapter"], found[name]["title"])
            for name in sorted(found, key=lambda name: found[name]["chapter"])
        }

    @cached_property
    def figures(self) -> dict[str, tuple[str, str]]:
        """The page and the number of each figure of the chapters, by name."""
        found = {}
        for chapter, (number, _) in self.chapters.items():
            page = f"chapters/{chapter}.md"
            names = SHOWN.findall((self.docs / page).read_text("utf-8"))
            for count, name in enumerate(names, 1):
                found[name] = page, f"{number}.{count}"
        return found

    @cached_property
    def boxes(self) -> dict[str, tuple[str, str]]:
        """What each box asks and answers, in Markdown, by the question's id."""
        found = {}
        for chapter in self.chapters:
            text = (self.docs / f"chapters/{chapter}.md").read_text("utf-8")
            for id_, quoted in BOX.findall(text):
                asked, _, answer = unquoted(quoted).partition("\n---\n")
                found[id_] = asked.strip(), answer.strip()
        return found

    @property
    def sources(self) -> set[str]:
        """The files that pages link to: tests that are evidence, code, examples."""
        text = "".join(x.read_text("utf-8") for x in sorted(self.docs.rglob("*.md")))
        named = {*NAMED_TEST.findall(text)}
        named |= {name for one in self.errata.values() for name in one.tests}
        found = {one.path for one in self.tests if one.questions or one.name in named}
        modules = {name.replace(".", "/") for name in CODE.findall(text)}
        found |= {f"src/transformers_hw/{name}.py" for name in modules}
        examples = self.root.glob("examples/*.py")
        found |= {path.relative_to(self.root).as_posix() for path in examples}
        return {path for path in found if (self.root / path).is_file()}

    def minutes(self, chapter: str) -> int:
        """Return the minutes that a chapter takes to read, without code and answers."""
        text = (self.docs / f"chapters/{chapter}.md").read_text("utf-8")
        prose = re.sub(
            r"^ *```.*?^ *```|^ *\[\[\w+.*?\]\]|\$\$.*?\$\$",
            "",
            text,
            flags=re.M | re.S,
        )
        return 5 * max(1, round(len(prose.split()) / WORDS_A_MINUTE / 5))

    def evidence(self, question: str) -> list[questions.Test]:
        """Return the tests that carry a question's marker."""
        return [test for test in self.tests if question in test.questions]

    def test(self, name: str) -> questions.Test | None:
        """Return the test of a name."""
        return next((test for test in self.tests if test.name == name), None)

    def answer(self, question: str) -> Answer | None:
        """Return the answer to a question, if a page has it."""
        return next((one for one in self.answers if one.question == question), None)

    def note_answers(self, html: str, page: str) -> None:
        """Note which questions a page answers, and with what."""
        parts = HEADING.split(html)
        self.answers += [
            Answer(
                id_,
                page,
                evidence='class="evidence"' in body,
                figures=tuple(FIGURE.findall(body)),
                objects=tuple(dict.fromkeys(OBJECT.findall(body))),
            )
            for id_, body in zip(parts[1::2], parts[2::2], strict=True)
        ]
        if page.startswith("chapters/"):
            self.errata_shown += ERRATUM.findall(html)

    def note_citations(self, html: str, page: str, title: str) -> None:
        """Note which sections of a page cite which works."""
        anchor = ""
        for found in CITED.finditer(html):
            if found["anchor"]:
                anchor = found["anchor"]
                title = re.sub(r"<[^>]+>", "", LINK_TO_ITSELF.sub("", found["title"]))
                continue
            places = self.citations.setdefault(found["key"], [])
            if (page, anchor, title) not in places:
                places.append((page, anchor, title))

    def gaps(self) -> Iterator[str]:
        """Say what is missing: answers, evidence, questions, errata."""
        counts = Counter(answer.question for answer in self.answers)
        for id_, question in self.questions.items():
            answer, place = self.answer(id_), f"{question.page}: {id_}"
            if answer is None:
                yield f"{place} is not answered"
            elif answer.page != question.page:
                yield f"{answer.page}: {id_} belongs on {question.page}"
            elif counts[id_] > 1:
                yield f"{place} is answered twice"
            elif not answer.evidence:
                yield f"{place} is answered without evidence: write [[evidence {id_}]]"
        for test in self.tests:
            for id_ in set(test.questions) - set(self.questions):
                yield f"{test.path}:{test.line}: no question {id_!r}"
        shown = Counter(self.exercises_shown)
        for name in self.exercises:
            if shown[name] != 1:
                yield f"exercise {name} is shown {shown[name]} times, not once"
        shown = Counter(self.errata_shown)
        for id_, erratum in self.errata.items():
            place = f"errata/{erratum.chapter}.toml: {id_}"
            if shown[id_] != 1:
                yield f"{place} is shown {shown[id_]} times, not once"
            if erratum.question not in self.questions:
                yield f"{place}: no question {erratum.question!r}"
            if erratum.kind not in ("error", "trap"):
                yield f"{place}: kind is error or trap, not {erratum.kind!r}"
            if erratum.source not in self.documents:
                yield f"{place}: source is one of {', '.join(self.documents)}"
            unknown = [name for name in erratum.tests if self.test(name) is None]
            if unknown or not erratum.tests:
                yield f"{place} needs a test; there is none called {unknown}"


def unquoted(text: str) -> str:
    """Return what stands behind the `>` of each line."""
    return re.sub(r"^[ ]*>[ ]?", "", text, flags=re.M).strip()


def link(page: str, target: str, anchor: str = "") -> str:
    """Return the address of a page or file as seen from another page."""
    address = posixpath.relpath(target, posixpath.dirname(page) or ".")
    return f"{address}#{anchor}" if anchor else address


def _toml(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text("utf-8")) if path.is_file() else {}
