"""What the runs of the examples wrote down: numbers, commands, times, figures."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SHOWN_LIST = 12
POWER = re.compile(r"e([+-])0*(\d+)$")
RAISED = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
DECIMAL = re.compile(r"(?<![\w.,/])\d+\.\d+(?![\w/]|\.\d)")


def read_run(figures: Path, chapter: str) -> dict[str, Any] | None:
    """Give a chapter's record, or nothing if no run has been made."""
    path = figures / chapter / "run.json"
    return json.loads(path.read_text("utf-8")) if path.is_file() else None


def value_at(record: Any, path: str) -> Any:
    """Follow a dotted path; keys may hold spaces and dots, lists take numbers.

    Raises:
        KeyError: There is nothing at the path; the message says what there is.
    """
    if not path:
        return record
    if isinstance(record, list):
        head, _, rest = path.partition(".")
        if re.fullmatch(r"-?\d+", head) and -len(record) <= int(head) < len(record):
            return value_at(record[int(head)], rest)
        raise KeyError(f"no {head!r} in a list of {len(record)}")
    if not isinstance(record, dict):
        raise KeyError(f"nothing below {record!r}")
    for key in sorted(record, key=len, reverse=True):
        if path == key or path.startswith(f"{key}."):
            return value_at(record[key], path[len(key) + 1 :])
    raise KeyError(f"no {path!r} among {', '.join(record)}")


def written(value: Any, format_: str) -> str:
    """Write a value as a book would: 3.9 × 10⁻¹⁴ rather than 3.9e-14."""
    if isinstance(value, float) and not format_:
        format_ = "g"
    text = format(value, format_)
    if power := POWER.search(text):
        exponent = ("-" if power[1] == "-" else "") + power[2]
        text = f"{text[: power.start()]} × 10{exponent.translate(RAISED)}"
    return text.replace("-", "−", 1) if text.startswith("-") else text


def numbers(record: Any, path: str) -> Iterator[tuple[str, float]]:
    """Give every number below a path, with its own; long lists are curves."""
    if isinstance(record, bool):
        return
    if isinstance(record, int | float):
        yield path, float(record)
    elif isinstance(record, dict):
        for key, inner in record.items():
            yield from numbers(inner, f"{path}.{key}")
    elif isinstance(record, list) and len(record) <= SHOWN_LIST:
        for index, inner in enumerate(record):
            yield from numbers(inner, f"{path}.{index}")


def typed_by_hand(text: str, record: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Find numbers of the prose that the record holds: number, path, format."""
    measured = list(numbers(record.get("metrics", {}), "metrics"))
    for found in dict.fromkeys(DECIMAL.findall(text)):
        if len(found.replace(".", "").lstrip("0")) < 3:
            continue
        places = len(found.partition(".")[2])
        for path, value in measured:
            if f"{value:.{places}f}" == found:
                yield found, path, f".{places}f"
            elif f"{value:.{places}%}" == f"{found}%":
                yield found, path, f".{places}%"


def took(record: dict[str, Any]) -> str:
    """Say how long a run took."""
    seconds = record["seconds"]
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.1f} min" if minutes < 10 else f"{minutes:.0f} min"


def device(record: dict[str, Any]) -> str:
    """Name the device of a run as a reader would."""
    name = record["device"]
    return "CPU" if name.startswith("cpu") else name
