"""Put published numbers (docs/ledger.toml) beside those that the examples measured.

A row has `what` is measured and the `published` number. Ours is at the path `ours` of
the chapter's record, printed in `format`, and took the minutes at the path `minutes`
(or the whole run's); or it is the `value` that a `test` checks.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any
from xml.etree.ElementTree import Element

from bookbinding import parts, runs
from bookbinding.directives import Context

NOT_RUN = "not run"


def ledger(context: Context, parent: Element) -> None:
    """Show a table for each group of numbers, and how ours were measured."""
    path = context.project.docs / "ledger.toml"
    for group in tomllib.loads(path.read_text("utf-8"))["group"]:
        chapter = group.get("chapter", "")
        run = runs.read_run(context.project.docs, chapter) if chapter else None
        rows = "\n".join(line(row, run, context) for row in group["row"])
        context.parse(
            parent,
            f"## {group['title']}\n\n"
            f"[[cite {group['cite']} {group['place']}]]. {group['note'].strip()}\n\n"
            f"| | Published | Ours | Minutes |\n|---|--:|--:|--:|\n{rows}\n\n"
            + (measured_by(run, chapter, context, group) if chapter else ""),
        )


def line(row: dict[str, str], run: runs.Run | None, context: Context) -> str:
    """Return a row: the published number, ours if there is one, its minutes."""
    ours, minutes = NOT_RUN, ""
    if "test" in row:
        test, value = context.project.test(row["test"]), row["value"]
        digits = re.sub(r"[,_]", "", value)
        code = re.sub(r"(?<=\d)_(?=\d)", "", test.code if test else "")
        if test is None or digits not in re.findall(r"\d+(?:\.\d+)?", code):
            raise ValueError(f"no test {row['test']} contains {value}")
        ours = f"[{value}]({parts.line_of(test, context.page)})"
    elif run is not None and "ours" in row:
        ours = runs.formatted(runs.value_at(run, row["ours"]), row.get("format", ""))
        whole = run["seconds"] / 60
        took = runs.value_at(run, row["minutes"]) if "minutes" in row else whole
        minutes = f"{took:.1f}"
    return f"| {row['what']} | {row['published']} | {ours} | {minutes} |"


def measured_by(
    run: runs.Run | None, chapter: str, context: Context, group: dict[str, Any]
) -> str:
    """Say how our numbers were measured, or would be."""
    script = f"python examples/{chapter}.py"
    scale = f"At the paper's scale: `{script} gpu`: {NOT_RUN}.\n{{ .made }}"
    if run is None:
        return f"Ours: `{script} cpu`: {NOT_RUN}. {scale}"
    made, images = parts.made_by(run, chapter, context.page), ""
    if data := run["data"]:
        images = f"{data['train']:,} images of {data['name']} to train on and "
        images += f"{data['test']:,} to test on; "
    ours = group.get("ours", "").strip()
    return f"Ours: {images}{runs.seeds(run)}. {made} {ours} {scale}"
