"""Show exercises, and bring along what runs them in the page.

An exercise is a Python file that is read and never imported: its docstring is the task,
and the keywords of `exercise = Code(...)` are literals.
"""

from __future__ import annotations

import ast
import json
import shutil
import textwrap
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

from markdown.util import AtomicString

from bookbinding.directives import Context, element
from bookbinding.listings import highlighted
from bookbinding.project import link

FOLDER = Path("src/transformers_hw/exercises")
# What tools/page_python.py fetched: Python, NumPy and einops for browsers.
PYTHON = Path(".cache/page_python")
ASSETS = "assets/exercises"
# What runs answers in a process of their own, which a page has no use for.
APART = ("child.py", "confinement.py", "grading.py", "isolation.py", "terminal.py")
LEVELS = ("warm-up", "core", "challenge")
KINDS = {"Code": "code", "Number": "a number", "Choice": "a choice"}
IMPORTS = "import numpy as np\nfrom einops import einsum, rearrange, reduce\n\n\n"


@dataclass
class Exercise:
    """What a page shows of an exercise.

    Attributes:
        name: Chapter and file, `attention/softmax`.
        source: The file.
    """

    name: str
    source: str

    @cached_property
    def tree(self) -> ast.Module:
        """The parsed file."""
        return ast.parse(self.source)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The kind, and the keywords of the call that makes the exercise."""
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                call = node.value
                given = {
                    keyword.arg or "": ast.literal_eval(keyword.value)
                    for keyword in call.keywords
                }
                return {"kind": ast.unparse(call.func), **given}
        raise ValueError(f"{self.name} has no line exercise = ...")

    @property
    def title(self) -> str:
        """The first line of the docstring."""
        return self._text.partition("\n")[0].rstrip(".")

    @property
    def task(self) -> str:
        """The rest of the docstring: Markdown."""
        return self._text.partition("\n")[2].strip()

    @property
    def _text(self) -> str:
        return ast.get_docstring(self.tree) or ""

    @cached_property
    def solution(self) -> str:
        """The source of the solution, or the answer and its reason."""
        if self.settings["kind"] == "Choice":
            answer = self.settings["answer"]
            return f"({answer}) {self.settings['reasons'][answer]}"
        return ast.get_source_segment(self.source, self._function) or ""

    @property
    def _function(self) -> ast.FunctionDef:
        for node in self.tree.body:
            if isinstance(node, ast.FunctionDef) and any(
                ast.unparse(x) == "exercise.solution" for x in node.decorator_list
            ):
                return node
        raise ValueError(f"{self.name} has no solution")

    @cached_property
    def stub(self) -> str:
        """What the reader fills in."""
        if self.settings["kind"] != "Code":
            return ""
        function = self._function
        head = f"def {function.name}({ast.unparse(function.args)}):\n"
        text = ast.get_docstring(function) or ""
        body = f'"""{text}"""\nraise NotImplementedError\n'
        return IMPORTS + head + textwrap.indent(body, "    ")


def read_exercises(root: Path) -> dict[str, Exercise]:
    """Read all exercises, by name."""
    files = sorted((root / FOLDER).glob("*/[a-z]*.py"))
    # The checks of assignments are for notebooks.
    files = [path for path in files if path.parent.name != "assignments"]
    named = {f"{path.parent.name}/{path.stem}": path for path in files}
    return {
        name: Exercise(name, path.read_text("utf-8")) for name, path in named.items()
    }


def exercise(context: Context, parent: Element, name: str) -> None:
    """Show an exercise, folded: task, a place to answer, hints and the solution."""
    project = context.project
    if name not in project.exercises:
        raise ValueError(f"there is no exercise {name!r}")
    chapter = name.partition("/")[0]
    if context.page != f"chapters/{chapter}.md":
        raise ValueError(f"the exercise {name!r} belongs on the page of {chapter}")
    project.exercises_shown.append(name)
    shown = project.exercises[name]
    settings, id_ = shown.settings, anchor(name)
    folded = element(parent, "details", class_="exercise live", id=id_)
    summary = element(folded, "summary", "Exercise: ")
    element(summary, "strong", AtomicString(shown.title))
    element(summary, "span", AtomicString(f" {settings['level']}"), class_="level")
    box = element(folded, "div", class_="answer")
    box.set("data-exercise", name)
    box.set("data-kind", settings["kind"])
    context.parse(element(box, "div", class_="task"), shown.task)
    label = f"Your answer: {shown.title}"
    if settings["kind"] == "Choice":
        group = element(box, "fieldset")
        element(group, "legend", "Choose one")
        for letter, text in settings["options"].items():
            line = element(group, "label")
            kind = {"type": "radio", "name": id_, "value": letter}
            element(line, "input", **kind).tail = " "
            context.parse(element(line, "div"), text)
    elif settings["kind"] == "Number":
        line = element(box, "label", AtomicString("Your number "))
        element(line, "input", type="text", inputmode="decimal", autocomplete="off")
    else:
        rows = str(shown.stub.count("\n") + 2)
        area = element(box, "textarea", rows=rows, spellcheck="false")
        area.set("aria-label", label)
        area.text = AtomicString(shown.stub)
    command = f"transformers-hw exercise start {name}"
    line = element(box, "p", "In a terminal: ", class_="terminal")
    element(line, "code", AtomicString(command))
    for number, hint in enumerate(settings["hints"], start=1):
        fold = element(folded, "details", class_="hint")
        element(fold, "summary", f"Hint {number}")
        context.parse(fold, hint)
    fold = element(folded, "details", class_="answer-shown")
    element(fold, "summary", "Solution")
    if settings["kind"] == "Choice":
        context.parse(fold, shown.solution)
        return
    code = f"<pre><code>{highlighted(shown.solution, 'python')}\n</code></pre>"
    element(fold, "p", context.store(f'<div class="highlight">{code}</div>'))


def entries(context: Context, parent: Element) -> None:
    """List all exercises, by chapter."""
    project, page = context.project, context.page
    for chapter, (number, title) in project.chapters.items():
        own = [
            x for x in project.exercises.values() if x.name.startswith(f"{chapter}/")
        ]
        own.sort(key=lambda x: LEVELS.index(x.settings["level"]))
        rows = [
            "| Exercise | Level | Kind | Points | In a terminal |",
            "|---|---|---|--:|---|",
        ]
        for one in own:
            settings = one.settings
            address = link(page, f"chapters/{chapter}.md", anchor(one.name))
            rows.append(
                f"| [{one.title}]({address}) | {settings['level']} "
                f"| {KINDS[settings['kind']]} | {settings.get('points', 1)} "
                f"| `{one.name}` |"
            )
        context.parse(parent, f"## Chapter {number}: {title}")
        context.parse(parent, "\n".join(rows))


def anchor(name: str) -> str:
    """Return the anchor of an exercise on its page."""
    return f"exercise-{name.replace('/', '-')}"


def bring_along(root: Path, site: Path) -> None:
    """Copy into the site what runs exercises in a page, as far as it was fetched."""
    if not (root / FOLDER).is_dir():
        return
    target = site / ASSETS
    target.mkdir(parents=True, exist_ok=True)
    files = {
        str(path.relative_to(root / FOLDER.parents[1])): path.read_text("utf-8")
        for path in sorted((root / FOLDER).rglob("*.py"))
        if path.name not in APART and path.parent.name != "assignments"
    }
    # In the page the package is these files: its own modules need PyTorch.
    files[f"{FOLDER.parent.name}/__init__.py"] = ""
    text = json.dumps(files, ensure_ascii=False)
    (target / "exercises.json").write_text(text, "utf-8")
    if (root / PYTHON).is_dir():
        shutil.copytree(root / PYTHON, target / "python", dirs_exist_ok=True)
