"""Grading a folder of submissions.

The folder has a subfolder for each student, with files named as
`transformers-hw exercise start` names them. Every file runs apart, with limits on time
and memory; see `isolation`.
"""

from __future__ import annotations

import csv
import html
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from transformers_hw._engine.files import atomic_write
from transformers_hw.exercises import load, names
from transformers_hw.exercises.isolation import Limits, check_file
from transformers_hw.exercises.kinds import Feedback

MISSING = Feedback(False, "Not handed in.")
PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Grades</title>
<style>
body {{ font: 16px system-ui, sans-serif; margin: 2rem; }}
table {{ border-collapse: collapse; }}
th, td {{ border: 1px solid #bbb; padding: .4rem .6rem; text-align: left; }}
td {{ vertical-align: top; }}
td.points {{ text-align: right; white-space: nowrap; }}
td b {{ display: block; }}
td.right {{ background: #e8f5e9; }}
</style>
<h1>Grades</h1>
<p>Each cell has the points and what the checker said. Right answers are shaded.</p>
<table><tr>{head}</tr>
{rows}
</table></html>
"""


@dataclass(frozen=True)
class Grade:
    """What one student gets for one exercise."""

    student: str
    exercise: str
    points: int
    of: int
    feedback: Feedback


def file_name(name: str) -> str:
    """Return the name of the file for an exercise: `attention__softmax.py`."""
    return name.replace("/", "__") + ".py"


def exercise_of(path: Path) -> str:
    """Return the exercise that a file answers.

    Raises:
        ValueError: No exercise has a file of this name.
    """
    name = path.stem.replace("__", "/", 1)
    if name not in names():
        raise ValueError(
            f"no exercise belongs to a file named {path.name}; one does to "
            f"{file_name(names()[0])}, for example."
        )
    return name


def grade(
    folder: Path,
    exercises: Iterable[str] = (),
    *,
    seed: int = 0,
    limits: Limits | None = None,
    progress: Callable[[str], None] = lambda student: None,
) -> list[Grade]:
    """Check all submissions in a folder.

    Args:
        folder: Folder with a subfolder for each student.
        exercises: Names of the exercises to grade; by default, those that any student
            handed in.
        seed: Seed of the inputs.
        limits: What a submission may use.
        progress: Called with the name of each student who is done.

    Returns:
        A grade for each student and exercise.

    Raises:
        ValueError: The folder has no subfolders, or they have no submissions.
    """
    students = (
        sorted(x for x in folder.iterdir() if x.is_dir()) if folder.is_dir() else []
    )
    if not students:
        raise ValueError(f"{folder} must have a subfolder for each student.")
    chosen = list(exercises) or [
        name
        for name in names()
        if any((student / file_name(name)).is_file() for student in students)
    ]
    if not chosen:
        raise ValueError(
            f"no file in {folder} is named like an exercise, for example "
            f"{file_name(names()[0])}."
        )

    def grade_one(student: Path) -> list[Grade]:
        found = []
        for name in chosen:
            path, of = student / file_name(name), load(name).points
            feedback = MISSING
            if path.is_file() and not path.is_symlink():
                feedback = check_file(name, path, seed=seed, limits=limits)
            found.append(Grade(student.name, name, of * feedback.passed, of, feedback))
        progress(student.name)
        return found

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return [x for found in pool.map(grade_one, students) for x in found]


def write_csv(grades: list[Grade], path: Path) -> None:
    """Write a row for each grade."""
    with _table(path) as file:
        writer = csv.writer(file)
        writer.writerow(["student", "exercise", "points", "of", "feedback"])
        for x in grades:
            row = [x.student, x.exercise, x.points, x.of, x.feedback.sentence]
            writer.writerow([_harmless(cell) for cell in row])


def _harmless(cell: object) -> object:
    # Spreadsheets run cells that begin like a formula.
    dangerous = isinstance(cell, str) and cell[:1] in ("=", "+", "-", "@", "\t", "\r")
    return f"'{cell}" if dangerous else cell


def write_html(grades: list[Grade], path: Path) -> None:
    """Write a table with a row for each student."""
    exercises = list(dict.fromkeys(x.exercise for x in grades))
    head = "".join(
        f"<th>{html.escape(x)}</th>" for x in ["student", "points", *exercises]
    )
    rows = []
    for student in dict.fromkeys(x.student for x in grades):
        own = [x for x in grades if x.student == student]
        total = f"{sum(x.points for x in own)} of {sum(x.of for x in own)}"
        cells = [
            f"<td{' class=right' if x.feedback.passed else ''}>"
            f"<b>{x.points} of {x.of}</b> {html.escape(x.feedback.sentence)}</td>"
            for x in own
        ]
        rows.append(
            f"<tr><th>{html.escape(student)}</th><td class='points'>{total}</td>"
            + "".join(cells)
            + "</tr>"
        )
    with _table(path) as file:
        file.write(PAGE.format(head=head, rows="\n".join(rows)))


@contextmanager
def _table(path: Path) -> Iterator[TextIO]:
    # Whole or not at all. Names of folders need not be text: what is not is escaped.
    with (
        atomic_write(path) as temporary,
        temporary.open("w", -1, "utf-8", "backslashreplace", newline="") as file,
    ):
        yield file
