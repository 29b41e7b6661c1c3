"""Read the records (run.json) that the examples write, and print their numbers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

# A longer list is a curve, whose values nobody quotes one by one.
LONGEST_LIST = 12
POWER = re.compile(r"e([+-])0*(\d+)$")
SUPERSCRIPTS = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
DECIMAL = re.compile(r"(?<![\w.,/])\d+\.\d+(?![\w/]|\.\d)")

Run = dict[str, Any]


def read_run(docs: Path, chapter: str) -> Run | None:
    """Return the record of a chapter's run, or None if no run has been made."""
    path = docs / "figures" / chapter / "run.json"
    return _read(path, path.stat().st_mtime_ns) if path.is_file() else None


def names(docs: Path, chapter: str) -> list[str]:
    """Return the names of a chapter's records: its own, and those of its parts."""
    figures = docs / "figures"
    found = (figures / chapter).glob("**/run.json")
    return sorted(path.parent.relative_to(figures).as_posix() for path in found)


@cache
def _read(path: Path, modified: int) -> Run:
    return json.loads(path.read_text("utf-8"))


def value_at(record: Any, path: str) -> Any:
    """Follow a path of keys, and of numbers in lists, that are joined by dots.

    Raises:
        KeyError: There is nothing at the path; the message says what there is.
    """
    for key in path.split("."):
        if isinstance(record, list):
            record = dict(enumerate(record))
            key = int(key) if key.isdecimal() else key
        if not isinstance(record, dict):
            raise KeyError(f"nothing below {record!r}")
        if key not in record:
            raise KeyError(f"no {key!r} among {', '.join(map(str, record))}")
        record = record[key]
    return record


def formatted(value: Any, spec: str) -> str:
    """Format a value for print: 3.9 × 10⁻¹⁴ rather than 3.9e-14."""
    if isinstance(value, float) and not spec:
        spec = "g"
    text = format(value, spec)
    if power := POWER.search(text):
        exponent = ("-" if power[1] == "-" else "") + power[2]
        text = f"{text[: power.start()]} × 10{exponent.translate(SUPERSCRIPTS)}"
    return text.replace("-", "−", 1) if text.startswith("-") else text


def numbers(record: Any, path: str) -> Iterator[tuple[str, float]]:
    """Yield every number below a path, with its own path."""
    if isinstance(record, int | float) and not isinstance(record, bool):
        yield path, float(record)
    elif isinstance(record, dict):
        for key, inner in record.items():
            yield from numbers(inner, f"{path}.{key}")
    elif isinstance(record, list) and len(record) <= LONGEST_LIST:
        for index, inner in enumerate(record):
            yield from numbers(inner, f"{path}.{index}")


def copied_numbers(text: str, run: Run) -> Iterator[tuple[str, str, str]]:
    """Find numbers of a text that a run recorded: the number, its path, its format."""
    measured = list(numbers(run.get("metrics", {}), "metrics"))
    for found in dict.fromkeys(DECIMAL.findall(text)):
        digits = found.replace(".", "")
        few = len(digits.lstrip("0")) < 3 or len(digits.strip("0")) < 2
        if few or set(digits) <= {"0", "9"}:
            continue  # two digits agree by coincidence, and so do 1.00 and 99.9
        places = len(found.partition(".")[2])
        for path, value in measured:
            if f"{value:.{places}f}" == found:
                yield found, path, f".{places}f"
            elif f"{value:.{places}%}" == f"{found}%":
                yield found, path, f".{places}%"


def duration(run: Run) -> str:
    """Say how long a run took."""
    seconds = run["seconds"]
    amount, unit = (seconds, "s") if seconds < 60 else (seconds / 60, "min")
    return f"{amount:.1f} {unit}" if amount < 10 else f"{amount:.0f} {unit}"


def device(run: Run) -> str:
    """Name the device of a run."""
    name = run["device"]
    return "CPU" if name.startswith("cpu") else name


def seeds(run: Run) -> str:
    """Name the seed or seeds of a run."""
    listed = run.get("seeds") or [run["seed"]]
    return f"seed{'' if len(listed) == 1 else 's'} {', '.join(map(str, listed))}"
