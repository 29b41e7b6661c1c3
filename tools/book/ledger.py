"""Published numbers beside the ones that runs of the examples have measured."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from typing import Any

import blocks
import records
from book import Book, link

NOT_RUN = "not run"


@dataclass(frozen=True)
class Row:
    """One number of a paper, and where ours is written down, if it is.

    Attributes:
        what: What is measured.
        published: What the paper found.
        ours: Path to our number in the chapter's record.
        format: How to write it.
        minutes: Path to the minutes it took, if not the whole run's.
        test: Instead of a run, a test that holds the number `value`.
        value: That number.
    """

    what: str
    published: str
    ours: str = ""
    format: str = ""
    minutes: str = ""
    test: str = ""
    value: str = ""


def tables(book: Book, here: str) -> str:
    """Give a table for each group of numbers, and say how ours were made."""
    listed = tomllib.loads((book.docs / "ledger.toml").read_text("utf-8"))
    return "\n\n".join(table(group, book, here) for group in listed["group"])


def table(group: dict[str, Any], book: Book, here: str) -> str:
    """Give one group: who published it, the numbers, and our run."""
    key, place = group["cite"], group["place"]
    if key not in book.references:
        raise ValueError(f"references.toml has no {key!r}")
    cited = f"[{book.references[key].label}]({link(here, 'references.md', key)})"
    chapter = group.get("chapter", "")
    run = records.read_run(book.docs / "figures", chapter) if chapter else None
    rows = "\n".join(line(Row(**row), run, book, here) for row in group["row"])
    return "\n\n".join(
        [
            f"## {group['title']}",
            f"{cited}, {place}. {group['note'].strip()}",
            f"| | Published | Ours | Minutes |\n|---|--:|--:|--:|\n{rows}",
            *([how(run, chapter, here, group)] if chapter else []),
        ]
    )


def line(row: Row, run: dict[str, Any] | None, book: Book, here: str) -> str:
    """Give a row: the published number, ours or that there is none, its minutes."""
    ours, minutes = NOT_RUN, ""
    if row.test:
        test = book.test_named(row.test)
        if test is None or not holds(test.code, row.value):
            raise ValueError(f"no test {row.test} holds {row.value}")
        ours = f"[{row.value}]({blocks.line_of(test, here)})"
    elif run is not None and row.ours:
        ours = records.written(records.value_at(run, row.ours), row.format)
        took = records.value_at(run, row.minutes) if row.minutes else None
        minutes = f"{run['seconds'] / 60 if took is None else took:.1f}"
    return f"| {row.what} | {row.published} | {ours} | {minutes} |"


def holds(code: str, value: str) -> bool:
    """Whether a test's source holds a number, however its digits are grouped."""
    digits = re.sub(r"[,_]", "", value)
    return digits in re.findall(r"\d+(?:\.\d+)?", re.sub(r"(?<=\d)_(?=\d)", "", code))


def how(
    run: dict[str, Any] | None, chapter: str, here: str, group: dict[str, Any]
) -> str:
    """Say how our numbers were made, or how they would be."""
    scale = f"At the paper's scale: `python examples/{chapter}.py gpu`: {NOT_RUN}."
    if run is None:
        return (
            f"Ours: `python examples/{chapter}.py cpu`: {NOT_RUN}. {scale}\n{{ .made }}"
        )
    data = run["data"]
    pictures = (
        f"{data['name']}, {data['train']:,} pictures to learn from and "
        f"{data['test']:,} to test on"
        if data
        else "made by the script itself"
    )
    record = link(here, f"figures/{chapter}/run.json")
    difference = f" {group['ours'].strip()}" if "ours" in group else ""
    threads = f"{run['threads']} thread{'' if run['threads'] == 1 else 's'}"
    return (
        f"Ours: `{run['command']}` ([record]({record})). Data: {pictures}. "
        f"Seed {run['seed']}. Hardware: {run['device']}, {threads}. "
        f"The whole run took {records.took(run)}.{difference} {scale}\n{{ .made }}"
    )
