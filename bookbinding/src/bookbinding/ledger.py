"""Put published numbers (docs/ledger.toml) beside those that the examples measured.

A row says `what` is measured. What is `published` has a result, its source (by default
the group's), and what else the source tells. Ours is the model at one of the places
`ours`, the first that a record has (such as "vision_transformer/main metrics"), or the
`value` that a `test` checks.
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

from bookbinding import parts, runs
from bookbinding.directives import Context, element
from bookbinding.project import link

#: The columns, and under which names a record may keep their numbers.
COLUMNS = {
    "Parameters": ("parameters",),
    "Images seen": ("images_seen", "samples"),
    "Seeds": ("seeds",),
    "FLOPs per image": ("million_multiply_adds",),
}
#: The last column: how long a training takes on all cores.
MINUTES, TIMES = "Minutes", "benchmarks/records/trainings.json"
NOTHING = "–"


def ledger(context: Context, parent: Element) -> None:
    """Show a table for each group of numbers."""
    path = context.project.docs / "ledger.toml"
    for group in tomllib.loads(path.read_text("utf-8"))["group"]:
        rows = [cells for row in group["row"] for cells in lines(row, group, context)]
        # A column that says nothing is left out.
        kept = [
            place
            for place in range(len(COLUMNS) + 1)
            if any(cells[3 + place] != NOTHING for cells in rows)
        ]
        names = [*COLUMNS, MINUTES]
        head = ["", "Source", group["measure"], *(names[place] for place in kept)]
        table = [head, ["---", "---", *["--:"] * (1 + len(kept))]]
        table += [cells[:3] + [cells[3 + place] for place in kept] for cells in rows]
        text = "\n".join(f"| {' | '.join(cells)} |" for cells in table)
        note = group["note"].strip()
        context.parse(parent, f"## {group['title']}\n\n{note}")
        context.parse(element(parent, "div", class_="measured"), text)


def lines(row: dict[str, Any], group: dict[str, Any], context: Context) -> list[Any]:
    """Return the lines of a row: what is published, and what we measured."""
    found, what = [], row["what"]
    if published := row.get("published"):
        source = published.get("source", group.get("source", ""))
        told = [published.get(name.lower(), NOTHING) for name in (*COLUMNS, MINUTES)]
        found.append([what, source, published["result"], *told])
        what = ""
    if "test" in row:
        source = f"[ours]({checked(row, context)})"
        result, empty = row["value"], [NOTHING] * (len(COLUMNS) + 1)
        found.append([what, source, result, *empty])
    elif "ours" in row:
        measured = measured_at(row["ours"], context)
        if measured is not None:
            found.append([what, *measured])
    return found


def published(docs: Path) -> set[str]:
    """Return the percentages that others have published."""
    path = docs / "ledger.toml"
    text = path.read_text("utf-8") if path.exists() else ""
    return set(re.findall(r'published = {result = "([\d.]+)%"', text))


def checked(row: dict[str, Any], context: Context) -> str:
    """Return the address of the test that contains a value."""
    test, value = context.project.test(row["test"]), row["value"]
    digits = re.sub(r"[,_]", "", value)
    code = re.sub(r"(?<=\d)_(?=\d)", "", test.code if test else "")
    if test is None or digits not in re.findall(r"\d+(?:\.\d+)?", code):
        raise ValueError(f"no test {row['test']} contains {value}")
    return parts.line_of(test, context.page)


def measured_at(places: list[str], context: Context) -> list[str] | None:
    """Return the source, result and other numbers of the first model that is there."""
    for place in places:
        name, path = place.split()
        run = runs.read_run(context.project.docs, name)
        if run is None:
            continue
        try:
            model = runs.value_at(run, path)
        except KeyError:
            continue
        record = link(context.page, f"figures/{name}/run.json")
        numbers = [number(run, model, keys) for keys in COLUMNS.values()]
        numbers.append(minutes(name, path.rpartition(".")[2], context))
        return [f"[ours]({record})", spread(model["test_accuracy"], ".1%"), *numbers]
    return None


def minutes(part: str, model: str, context: Context) -> str:
    """Return how long a model trains, which the only one of its part need not name."""
    times = json.loads((context.project.root / TIMES).read_text("utf-8"))
    trainings = times["parts"][part]["trainings"]
    told = trainings.get(model) or next(iter(trainings.values()))
    return f"{told['minutes']:.1f}"


def number(run: runs.Run, model: dict[str, Any], keys: tuple[str, ...]) -> str:
    """Return a number of a model, if its record has it."""
    found = next((model[key] for key in keys if key in model), None)
    if keys == ("seeds",):
        return str(found or len(run.get("seeds") or [0]))
    if found is None:
        return NOTHING
    # A multiplication and an addition are two operations.
    if keys == ("million_multiply_adds",):
        return f"{2 * found:,.0f} M"
    return f"{found:,}"


def spread(value: Any, spec: str) -> str:
    """Print a number, or the mean of several seeds with the least and the greatest."""
    if not isinstance(value, dict):
        return format(value, spec)
    mean, low, high = (format(value[key], spec) for key in ("mean", "min", "max"))
    return mean if low == high else f"{mean} ({low.rstrip('%')}–{high})"
