"""The questions of the courses, and the tests that are evidence for the answers.

Tests are parsed, not imported: a page can show them without running anything.
"""

from __future__ import annotations

import ast
import textwrap
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Source:
    """A course's document that asks questions."""

    key: str
    title: str
    place: str
    points: float | None = None


@dataclass(frozen=True)
class Question:
    """One question, in the words of this book."""

    id: str
    source: Source
    chapter: str
    title: str
    points: float | None = None

    @property
    def number(self) -> str:
        """The question's number in its document."""
        return self.id.removeprefix(f"{self.source.key}-")

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


@dataclass(frozen=True)
class Test:
    """A test function, with the questions it is evidence for."""

    __test__ = False
    path: str
    name: str
    line: int
    code: str
    questions: tuple[str, ...]
    unhooked: bool

    @property
    def function(self) -> str:
        """The function's own name, without its class."""
        return self.name.rpartition("::")[2]

    @property
    def claim(self) -> str:
        """What the test's name says, as a sentence."""
        words = self.function.removeprefix("test_").replace("_s_", "'s ")
        words = words.replace("_", " ")
        return words[:1].upper() + words[1:]

    @property
    def command(self) -> str:
        """The command that runs the test."""
        hook = "--jaxtyping-packages= " if self.unhooked else ""
        return f".venv/bin/pytest {hook}{self.path}::{self.name}"


def read_questions(path: Path) -> dict[str, Question]:
    """Read the list of questions; its order is the order of the documents."""
    listed = tomllib.loads(path.read_text("utf-8"))
    sources = {key: Source(key, **about) for key, about in listed["source"].items()}
    questions: dict[str, Question] = {}
    for entry in listed["question"]:
        question = Question(**{**entry, "source": sources[entry["source"]]})
        if question.id in questions:
            raise ValueError(f"{path.name} lists {question.id} twice")
        questions[question.id] = question
    return questions


def read_tests(root: Path) -> list[Test]:
    """Read every test function below the folder `tests`."""
    files = sorted((root / "tests").rglob("test_*.py"))
    return [test for file in files for test in _tests_of(file, root)]


def _tests_of(file: Path, root: Path) -> Iterator[Test]:
    text = file.read_text("utf-8")
    lines = text.splitlines()
    path = file.relative_to(root).as_posix()

    def walk(
        body: list[ast.stmt], prefix: str, outer: list[ast.expr]
    ) -> Iterator[Test]:
        for node in body:
            if isinstance(node, ast.ClassDef):
                marks = [*outer, *node.decorator_list]
                yield from walk(node.body, f"{prefix}{node.name}::", marks)
            elif isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
                marks = [*outer, *node.decorator_list]
                first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                code = "\n".join(lines[first - 1 : node.end_lineno])
                yield Test(
                    path=path,
                    name=prefix + node.name,
                    line=first,
                    code=textwrap.dedent(code),
                    questions=tuple(dict.fromkeys(_marked(marks))),
                    unhooked=any(
                        ast.unparse(m).endswith("mark.unhooked") for m in marks
                    ),
                )

    tree = ast.parse(text)
    yield from walk(tree.body, "", list(_module_marks(tree)))


def _module_marks(tree: ast.Module) -> Iterator[ast.expr]:
    for node in tree.body:
        if (
            isinstance(node, ast.Assign)
            and ast.unparse(node.targets[0]) == "pytestmark"
        ):
            several = isinstance(node.value, ast.List | ast.Tuple)
            yield from node.value.elts if several else [node.value]  # type: ignore


def _marked(marks: list[ast.expr]) -> Iterator[str]:
    for mark in marks:
        if isinstance(mark, ast.Call) and ast.unparse(mark.func).endswith(
            "mark.question"
        ):
            yield from (ast.literal_eval(argument) for argument in mark.args)
