"""Everything the pages are made of, read once per build."""

from __future__ import annotations

import ast
import posixpath
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import bibliography
import directives
import questions
from mkdocs.utils.meta import get_data

CALLED = re.compile(r"\b[A-Za-z_]\w+(?=\()")
CODE_SHOWN = 3
LISTINGS = "source"
NAMED = re.compile(r"\]\[(transformers_hw[\w.]+)\]")
# The documents that an erratum can be about.
DOCUMENTS = {
    "answers": "A student's answers to the NYU homework",
    "nyu": "The NYU homework",
    "quiz": "A student's quiz on the two papers",
    "eecs": "The Berkeley discussion sheet",
    "eth": "The ETH assignment",
}


@dataclass(frozen=True)
class Erratum:
    """A mistake of a source document, with the test that shows it."""

    id: str
    question: str
    source: str
    title: str
    claim: str
    right: str
    chapter: str
    tests: list[str] = field(default_factory=list)

    @property
    def anchor(self) -> str:
        """Its place on the chapter's page."""
        return f"erratum-{self.id}"


@dataclass
class Answer:
    """What a chapter's page holds under one question."""

    page: str
    evidence: int = 0
    figures: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)


@dataclass
class Book:
    """The questions, tests, errata, references and answers of a checkout."""

    root: Path
    docs: Path

    @cached_property
    def questions(self) -> dict[str, questions.Question]:
        """Every question, by id."""
        return questions.read_questions(self.docs / "questions.toml")

    @cached_property
    def tests(self) -> list[questions.Test]:
        """Every test, in the order of the files."""
        return questions.read_tests(self.root)

    @cached_property
    def references(self) -> dict[str, bibliography.Reference]:
        """Every cited work, by key."""
        return bibliography.read_references(self.docs / "references.toml")

    @cached_property
    def errata(self) -> dict[str, Erratum]:
        """Every erratum, by id."""
        return {
            entry["id"]: Erratum(**entry, chapter=path.stem)
            for path in sorted((self.docs / "errata").glob("*.toml"))
            for entry in tomllib.loads(path.read_text("utf-8")).get("erratum", [])
        }

    @cached_property
    def answers(self) -> list[tuple[str, Answer]]:
        """The answers of the chapters' pages, in their order."""
        return [found for path in self.chapters for found in _answers_of(path)]

    @cached_property
    def errata_shown(self) -> list[str]:
        """The errata that the chapters' pages show."""
        texts = (path.read_text("utf-8") for path in self.chapters)
        found = (match for text in texts for match in _found(text))
        return [argument for name, argument, _ in found if name == "erratum"]

    @cached_property
    def chapter_numbers(self) -> dict[int, tuple[str, str]]:
        """The chapters' names and titles, by the number that their pages give."""
        numbered: dict[int, tuple[str, str]] = {}
        for path in self.chapters:
            _, head = get_data(path.read_text("utf-8"))
            if "chapter" in head:
                numbered[head["chapter"]] = path.stem, head["title"]
        return dict(sorted(numbered.items()))

    @property
    def chapters(self) -> list[Path]:
        """The files of the chapters' pages."""
        return sorted((self.docs / "chapters").glob("*.md"))

    def answer(self, question: str) -> Answer | None:
        """Give where and with what a question is answered."""
        return next((one for id_, one in self.answers if id_ == question), None)

    def evidence(self, question: str) -> list[questions.Test]:
        """Give the tests that carry a question's marker."""
        return [test for test in self.tests if question in test.questions]

    def test_named(self, function: str) -> questions.Test | None:
        """Give the test of a name."""
        return next((test for test in self.tests if test.function == function), None)

    @cached_property
    def listed(self) -> list[Path]:
        """The files whose source the site shows."""
        kinds = ("tests/**/*.py", "src/**/*.py", "examples/*.py")
        return sorted(path for kind in kinds for path in self.root.glob(kind))

    def code_behind(self, question: str) -> list[str]:
        """Give the names of the package that an answer speaks of, or its tests use."""
        answer = self.answer(question)
        names = answer.names if answer else []
        if named := [name for name in names if name in self.definitions]:
            return named
        code = "\n".join(test.code for test in self.evidence(question))
        book = {
            name.rpartition(".")[2]: name
            for name, (path, _) in self.definitions.items()
            if "/lab/" not in path
        }
        used = Counter(word for word in CALLED.findall(code) if word in book)
        return [book[word] for word, _ in used.most_common(CODE_SHOWN)]

    @cached_property
    def definitions(self) -> dict[str, tuple[str, int]]:
        """Where the package's public names are defined: file and line."""
        found: dict[str, tuple[str, int]] = {}
        for path in sorted((self.root / "src").rglob("*.py")):
            module = path.relative_to(self.root / "src").with_suffix("").parts
            for node in ast.parse(path.read_text("utf-8")).body:
                if isinstance(node, ast.FunctionDef | ast.ClassDef):
                    place = path.relative_to(self.root).as_posix(), node.lineno
                    # A package's parts are documented under the package's name.
                    for depth in range(len(module), 0, -1):
                        name = ".".join([*module[:depth], node.name])
                        found.setdefault(name, place)
        return found


def link(page: str, target: str, anchor: str = "") -> str:
    """Give the address of a page or file as seen from another page."""
    address = posixpath.relpath(target, posixpath.dirname(page) or ".")
    return f"{address}#{anchor}" if anchor else address


def listing(path: str) -> str:
    """Give the page that shows a file's source."""
    return f"{LISTINGS}/{path}.md"


def _found(markdown: str) -> Iterator[tuple[str, str, str]]:
    last = 0
    for match in directives.DIRECTIVE.finditer(markdown):
        if name := match["name"] or match["word"]:
            argument = match["rest"] if match["name"] else match["argument"]
            yield name, " ".join(argument.split()), markdown[last : match.start()]
            last = match.end()
    yield "", "", markdown[last:]


def _answers_of(path: Path) -> Iterator[tuple[str, Answer]]:
    page = f"chapters/{path.name}"
    current: tuple[str, Answer] | None = None
    for name, argument, before in _found(path.read_text("utf-8")):
        if current is not None:
            answer = current[1]
            answer.names += [n for n in NAMED.findall(before) if n not in answer.names]
            if name == "figure":
                answer.figures.append(argument.partition(":")[0].strip())
            elif name == "evidence":
                answer.evidence += argument.partition(":")[0].strip() == current[0]
        if name == "question":
            current = argument, Answer(page)
            yield current
