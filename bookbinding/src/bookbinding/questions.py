"""Read the questions, and the tests that are evidence for their answers.

Tests are parsed, not imported: a page shows them without running anything.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Question:
    """One question."""

    id: str
    source: str
    chapter: str
    title: str
    course: str
    place: str
    points: float | None = None
    answer: str = ""

    @property
    def page(self) -> str:
        """The page that answers it."""
        return f"chapters/{self.chapter}.md"

    @property
    def worth(self) -> str:
        """The points it gives, if its document says so."""
        if self.points is None:
            return ""
        return f"{self.points:g} point{'' if self.points == 1 else 's'}"

    @property
    def byline(self) -> str:
        """Course, number, points and id, as Markdown."""
        parts = [self.place, f"question {self.number}", self.worth, f"`{self.id}`"]
        return " · ".join(part for part in parts if part)

    @property
    def number(self) -> str:
        """Its number, as most people would write it: 1.3(e)."""
        number = self.id.removeprefix(f"{self.source}-")
        return re.sub(r"(?<=\d)([a-z])(\.\d+)?$", r"(\1)\2", number)


@dataclass(frozen=True)
class Test:
    """A test function, with the ids of the questions it is evidence for."""

    __test__ = False  # pytest would take the class for a test
    path: str
    name: str
    line: int
    code: str
    questions: tuple[str, ...]
    docstring: str = ""

    @property
    def claim(self) -> str:
        """What the test checks: its docstring's first line, or its name in words."""
        if self.docstring:
            return self.docstring.splitlines()[0].rstrip(".")
        words = self.name.removeprefix("test_").replace("_s_", "'s ").replace("_", " ")
        return words[:1].upper() + words[1:]

    @property
    def command(self) -> str:
        """The command that runs the test."""
        hook = "--jaxtyping-packages= " if "mark.unhooked" in self.code else ""
        return f".venv/bin/pytest {hook}{self.path}::{self.name}"


def read_questions(path: Path) -> dict[str, Question]:
    """Read the list of questions, by id, in the order of the documents."""
    listed = tomllib.loads(path.read_text("utf-8"))
    questions: dict[str, Question] = {}
    for entry in listed["question"]:
        source = listed["source"][entry["source"]]
        question = Question(**entry, course=source["title"], place=source["place"])
        if question.id in questions:
            raise ValueError(f"{path.name} lists {question.id} twice")
        questions[question.id] = question
    return questions


def read_tests(root: Path) -> Iterator[Test]:
    """Read every test function below the folder `tests`, in source order."""
    for file in sorted((root / "tests").rglob("test_*.py")):
        text = file.read_text("utf-8")
        lines = text.splitlines()
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
                first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                code = "\n".join(lines[first - 1 : node.end_lineno])
                path = file.relative_to(root).as_posix()
                docstring = ast.get_docstring(node) or ""
                yield Test(path, node.name, first, code, tuple(_ids(node)), docstring)


def _ids(node: ast.FunctionDef) -> Iterator[str]:
    for mark in node.decorator_list:
        if isinstance(mark, ast.Call) and ast.unparse(mark.func).endswith("question"):
            yield from (ast.literal_eval(argument) for argument in mark.args)
