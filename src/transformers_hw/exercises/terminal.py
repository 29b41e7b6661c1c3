"""What `transformers-hw exercise` and `transformers-hw grade` do."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any

from transformers_hw._engine.files import atomic_write
from transformers_hw.exercises import load, names, solution, stub
from transformers_hw.exercises.grading import (
    exercise_of,
    file_name,
    grade,
    write_csv,
    write_html,
)
from transformers_hw.exercises.isolation import Limits, check_file

# Beside the student's files, so that a folder is all there is to keep.
PROGRESS = Path(".exercises.json")


def overview(folder: Path) -> str:
    """Return a table of all exercises, with those that were solved."""
    progress, lines = _read(folder), []
    for chapter, own in groupby(names(), key=lambda name: name.partition("/")[0]):
        lines.append(f"\n{chapter}")
        for name in own:
            exercise, mark = load(name), "✓" if progress[name]["passed"] else " "
            stem = name.partition("/")[2]
            lines.append(f"  {mark} {stem:24} {exercise.level:10} {exercise.title}")
    solved = sum(progress[name]["passed"] for name in names())
    lines += ["", f"{solved} of {len(names())} solved. To begin one:"]
    lines += [f"    transformers-hw exercise start {names()[0]}", ""]
    return "\n".join(lines).lstrip("\n")


def start(name: str, folder: Path) -> str:
    """Copy the file to fill in, unless it is there."""
    path = folder / file_name(name)
    text = stub(_known(name))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ValueError(f"{path} exists; it was left as it is.") from None
    return (
        f"{path} is the file to fill in. Then: transformers-hw exercise check {path}\n"
    )


def check(path: Path, name: str | None, seconds: float) -> tuple[bool, str]:
    """Check a file, and remember if it is right."""
    if not path.is_file():
        raise ValueError(f"there is no file {path}.")
    name = _known(name) if name else exercise_of(path)
    feedback = check_file(name, path, limits=Limits(seconds=seconds))
    text = f"{feedback}\n"
    if feedback.passed:
        try:
            _write(path.parent, name, passed=True)
        except OSError as error:
            text += f"This could not be noted down: {error}\n"
    else:
        text += (
            f"\nRead {load(name).read}, or ask: transformers-hw exercise hint {name}\n"
        )
    return feedback.passed, text


def hint(name: str, folder: Path) -> str:
    """Return the next hint; after the last one, all of them."""
    hints, seen = load(_known(name)).hints, _read(folder)[name]["hints"]
    if seen >= len(hints):
        return "\n".join([*hints, "That was the last hint."]) + "\n"
    _write(folder, name, hints=seen + 1)
    return f"Hint {seen + 1} of {len(hints)}: {hints[seen]}\n"


def show_solution(name: str) -> str:
    """Return the solution."""
    return solution(_known(name))


def grade_folder(
    folder: Path, out: Path, seconds: float, say: Callable[[str], Any]
) -> str:
    """Grade all submissions in a folder, and write tables."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is not a folder.")  # before hours of grading
    grades = grade(folder, limits=Limits(seconds=seconds), progress=say)
    out.mkdir(parents=True, exist_ok=True)
    write_csv(grades, out / "grades.csv")
    write_html(grades, out / "grades.html")
    counts = []
    for noun, found in (
        ("student", {x.student for x in grades}),
        ("exercise", {x.exercise for x in grades}),
    ):
        counts.append(f"{len(found)} {noun}{'s' * (len(found) != 1)}")
    files = f"{out / 'grades.csv'} and {out / 'grades.html'}"
    return f"{', '.join(counts)}: {files}\n"


class _Progress(dict[str, dict[str, Any]]):
    def __missing__(self, name: str) -> dict[str, Any]:
        return {"passed": False, "hints": 0}


def _known(name: str) -> str:
    # Other names can lead to the same file, by dots or by a case that systems ignore.
    if name not in names():
        raise ValueError(
            f"there is no exercise {name!r}; `transformers-hw exercise` lists them."
        )
    return name


def _read(folder: Path) -> _Progress:
    found = _Progress()
    with suppress(OSError, ValueError, TypeError, AttributeError, RecursionError):
        for name, noted in json.loads((folder / PROGRESS).read_text("utf-8")).items():
            passed, hints = noted.get("passed", False), noted.get("hints", 0)
            # What cannot be, nobody noted.
            if isinstance(passed, bool) and type(hints) is int and hints >= 0:
                found[name] = {"passed": passed, "hints": hints}
    return found


def _write(folder: Path, name: str, **news: Any) -> None:
    progress = _read(folder)
    progress[name] = progress[name] | news
    text = json.dumps(progress, indent=2, ensure_ascii=False) + "\n"
    with atomic_write(folder / PROGRESS) as temporary:
        temporary.write_text(text, encoding="utf-8")
