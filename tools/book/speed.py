"""The page on speed: all that it says comes out of `benchmarks/record.json`.

    [[speed summary]]        how many rows are at or above 1, the lowest, the machine
    [[speed ratios]]         a figure of all ratios, a panel for each group
    [[speed slower]]         the rows below 1
    [[speed groups]]         a table for each group
    [[speed growth]]         how time and memory grow with sizes
    [[speed shares]]         the share of the machine's rate of multiplying matrices
    [[speed omitted]]        what would be faster, and was not done
    > ## A heading           The lines after a directive that begin with > stand before
    > and its text           what it gives; they are left out where it gives nothing.

As long as nothing has been measured, the summary says so, and the others give nothing.
A record that is malformed stops the build.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from shutil import rmtree

import blocks
import records
import speed_record
from book import Book, link
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from speed_record import RECORD, Record, Row, counted, named, ratio, three

HERE = Path(__file__).parent
FIGURES = "figures/speed"
NOTHING = (
    f"**Nothing has been measured yet:** there is no `{RECORD}`, which `make bench` "
    "writes."
)
NONE = "–"
DEVICES = {"cpu": "the CPU", "cuda": "a CUDA device"}


def on_files(files: Files, *, config: MkDocsConfig) -> None:
    """Draw the figures, and offer the record for download."""
    root = Path(config.config_file_path).parent
    try:
        record = speed_record.read(root)
    except ValueError as error:
        raise PluginError(str(error)) from None
    if record is not None:
        for path in [root / RECORD, *sorted(drawn(root).glob("*.svg"))]:
            uri = f"{FIGURES}/{path.name}"
            files.append(File.generated(config, uri, content=path.read_bytes()))


def drawn(root: Path) -> Path:
    """Give the folder of the figures, which are drawn if they were not before."""
    folder = root / ".cache/speed" / fingerprint(root)
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    for old in folder.parent.iterdir():
        rmtree(old, ignore_errors=True)
    # In a process of its own: drawing needs PyTorch and matplotlib, the site does not.
    with tempfile.TemporaryDirectory(dir=folder.parent.parent) as made:
        done = subprocess.run(
            [sys.executable, HERE / "speed_figures.py", root, f"{made}/speed"],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise PluginError(f"the figures of {RECORD} were not drawn:\n{done.stderr}")
        os.replace(f"{made}/speed", folder)
    return folder


def fingerprint(root: Path) -> str:
    """Give a digest of all that the figures depend on."""
    plotting = HERE.parents[1] / "src/transformers_hw/lab/plotting.py"
    code = [HERE / "speed_figures.py", HERE / "speed_record.py", plotting]
    digest = hashlib.sha256()
    for path in [root / RECORD, *code]:
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def part(argument: str, quoted: str = "", *, book: Book, here: str) -> str:
    """Give one part of the page."""
    parts: dict[str, Callable[[Record, Book, str], str]] = {
        "summary": summary,
        "ratios": all_ratios,
        "slower": slower,
        "groups": groups,
        "growth": growth,
        "shares": shares,
        "omitted": omitted,
    }
    if argument not in parts:
        raise ValueError(
            f"[[speed ...]] is one of {', '.join(parts)}, not {argument!r}"
        )
    record = speed_record.read(book.root)
    if record is None:
        return NOTHING if argument == "summary" else ""
    given = parts[argument](record, book, here)
    return f"{quoted}\n\n{given}" if given else ""


def summary(record: Record, book: Book, here: str) -> str:
    """Say what came out, where, when and with what."""
    lowest = min(record.rows, key=lambda row: row.ratio)
    pairs = sorted(row.pairs for row in record.rows)
    taken = f"{pairs[0]}" if pairs[0] == pairs[-1] else f"{pairs[0]} to {pairs[-1]}"
    machine = record.machine
    versions = ", ".join(f"{name} {is_}" for name, is_ in record.versions.items())
    took = records.took({"seconds": record.seconds})
    return (
        f"**{counted(record.rows)}.** The lowest is {ratio(lowest.ratio)}: "
        f"{lowest.group}, {named(lowest)}. {devices(record.rows)}\n\n"
        f"{of_noise(record.noise)}\n\n"
        f"Measured on {day(record.date)} by `{record.command}` in {took}, {taken} "
        f"pairs of turns a row, on {machine['processor']}, {machine['system']}, "
        f"{amount(machine['cores'], 'core')}, {amount(machine['threads'], 'thread')}; "
        f"{versions} ([record]({link(here, f'{FIGURES}/record.json')})).\n{{ .made }}"
    )


def of_noise(ratios: list[float]) -> str:
    """Say what a layer against itself gave."""
    if len(ratios) == 1:
        return f"A layer timed against itself gave the ratio {ratio(ratios[0])}."
    return (
        f"A layer timed against itself {len(ratios)} times gave ratios from "
        f"{ratio(min(ratios))} to {ratio(max(ratios))}: at least so much is noise."
    )


def devices(rows: list[Row]) -> str:
    """Say which devices were measured, and plainly if none was a CUDA device."""
    kinds = [row.device.partition(":")[0] for row in rows]
    used = {kind: DEVICES.get(kind, kind) for kind in dict.fromkeys(kinds)}
    if len(used) == 1:
        (name,) = used.values()
        said = f"Every row was measured on {name}."
    else:
        counts = [f"{kinds.count(kind)} on {name}" for kind, name in used.items()]
        said = f"Rows by device: {', '.join(counts)}."
    return said if "cuda" in used else f"{said} No run on a CUDA device has been made."


def day(date: str) -> str:
    """Write a date without its time."""
    at = datetime.fromisoformat(date)
    return f"{at.day} {at:%B %Y}"


def amount(count: int, what: str) -> str:
    """Count something."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def all_ratios(record: Record, book: Book, here: str) -> str:
    """Give the figure of all ratios."""
    panels = {
        f"ratios-{place}": speed_record.seen_of_ratios(group, rows)
        for place, (group, rows) in enumerate(record.groups.items(), start=1)
    }
    return figure(
        "ratios",
        panels,
        "The ratio of the peer's time to ours, on a logarithmic axis: the marker is "
        "the median of all pairs of turns, the bar reaches from the lower to the "
        f"upper quartile. {counted(record.rows)}.",
        book,
        here,
    )


def figure(
    name: str, panels: dict[str, str], caption: str, book: Book, here: str
) -> str:
    """Show panels side by side, as many as there is room for."""
    folder = drawn(book.root)
    shown: list[str] = []
    for stem, alt in panels.items():
        width, height = blocks.size_of(folder / f"{stem}-light.svg")
        alt = alt.replace("[", "(").replace("]", ")").replace('"', "'")
        shown.append(
            "\n".join(
                f"![{alt}]({link(here, f'{FIGURES}/{stem}-{mode}.svg')}#only-{mode})"
                f"{{ width={width} height={height} loading=lazy }}"
                for mode in ("light", "dark")
            )
        )
    return (
        f"///// html | figure.book\n    attrs: {{id: figure-speed-{name}}}\n\n"
        f"//// html | div.panels.{name}\n\n" + "\n\n".join(shown) + "\n\n////\n\n"
        f"//// html | figcaption\n\n{caption}\n\n////\n/////\n"
    )


def slower(record: Record, book: Book, here: str) -> str:
    """List the rows below 1, the lowest first."""
    below = sorted((r for r in record.rows if r.ratio < 1), key=lambda row: row.ratio)
    if not below:
        return "No row is below 1.00."
    head = ["What", "Ratio (quartiles)", "Against", "Mode"]
    surely = sum(row.upper_quartile < 1 for row in below)
    within = sum(row.ratio >= min(record.noise) for row in below)
    lines = [
        [f"{row.group}: {row.what}", spread(row), row.peer, row.setting]
        for row in below
    ]
    return (
        f"{amount(len(below), 'row')} of {len(record.rows)} "
        f"{'is' if len(below) == 1 else 'are'} below 1.00; in {surely} of them, so is "
        f"the upper quartile. {within} {'is' if within == 1 else 'are'} no lower than "
        "a layer timed against itself.\n\n" + dense(table(head, "lrll", lines))
    )


def groups(record: Record, book: Book, here: str) -> str:
    """Give the table of each group."""
    return "\n\n".join(
        f"### {group}\n\n{counted(rows)}.\n\n{dense(of_group(rows))}"
        for group, rows in record.groups.items()
    )


def of_group(rows: list[Row]) -> str:
    """Give a group's table, without the columns that would be empty."""
    columns: dict[str, tuple[str, list[str | None]]] = {
        "What": ("l", [row.what for row in rows]),
        "Ratio (quartiles)": ("r", [spread(row) for row in rows]),
        "Against": ("l", [row.peer for row in rows]),
        "Mode": ("l", [row.setting for row in rows]),
        "ms, ours / theirs": ("r", [milliseconds(row) for row in rows]),
        "MB, ours / theirs": ("r", [megabytes(row) for row in rows]),
        "Rate, ours / theirs": ("r", [rate(row) for row in rows]),
        "Largest difference": ("r", [difference(row) for row in rows]),
    }
    filled = {name: it for name, it in columns.items() if any(it[1])}
    return table(
        list(filled),
        "".join(side for side, _ in filled.values()),
        [
            [cell or NONE for cell in line]
            for line in zip(*(cells for _, cells in filled.values()), strict=True)
        ],
    )


def spread(row: Row) -> str:
    """Write a ratio with its quartiles."""
    low, high = ratio(row.lower_quartile), ratio(row.upper_quartile)
    return f"**{ratio(row.ratio)}** ({low}–{high})"


def milliseconds(row: Row) -> str:
    """Write both times."""
    return f"{three(row.our_milliseconds)} / {three(row.their_milliseconds)}"


def megabytes(row: Row) -> str | None:
    """Write how much memory both took, if it was measured of one at least."""
    both = (row.our_megabytes, row.their_megabytes)
    if both == (None, None):
        return None
    return " / ".join(NONE if one is None else three(one) for one in both)


def rate(row: Row) -> str | None:
    """Write how much both do in a second, if it was counted."""
    if row.rate is None:
        return None
    return f"{three(row.rate['ours'])} / {three(row.rate['theirs'])} {row.rate['unit']}"


def difference(row: Row) -> str | None:
    """Write how far the two results are apart, if they were compared."""
    if row.largest_difference is None:
        return None
    return (
        records.written(row.largest_difference, ".1e")
        if row.largest_difference
        else "0"
    )


def table(head: list[str], sides: str, lines: list[list[str]]) -> str:
    """Give a table; numbers stand at the right."""
    rule = ["---" if side == "l" else "--:" for side in sides]
    escaped = [[cell.replace("|", r"\|") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, rule, *escaped])


def dense(table: str) -> str:
    """Give a table of many columns room, by small letters."""
    return f"//// html | div.measured\n\n{table}\n\n////\n"


def growth(record: Record, book: Book, here: str) -> str:
    """Show how time and memory grow, with the exponents that were fitted."""
    if not record.growth:
        return ""
    panels = {
        f"growth-{place}-{quantity}": speed_record.seen_of_growth(axis, of, quantity)
        for place, (axis, of) in enumerate(record.axes.items(), start=1)
        for quantity in ("time", "memory")
        if speed_record.series_of(of, quantity)
    }
    lines = [
        [
            one.what,
            one.axis,
            f"{one.values[0]:,g} to {one.values[-1]:,g}",
            f"{one.time_exponent:.2f}",
            NONE if one.memory_exponent is None else f"{one.memory_exponent:.2f}",
        ]
        for one in record.growth
    ]
    head = ["What", "Grows", "From, to", "Power of time", "Power of memory"]
    return (
        figure(
            "growth",
            panels,
            "Both axes are logarithmic, so that a power is a straight line; the lines "
            "have the fitted powers.",
            book,
            here,
        )
        + "\n\n"
        + table(head, "llrrr", lines)
    )


def shares(record: Record, book: Book, here: str) -> str:
    """Set models beside the machine's rate of multiplying matrices."""
    rates = [f"{three(rate)} in {kind}" for kind, rate in record.gemm_gigaflops.items()]
    if not rates or not record.gemm_shares:
        return ""
    lines = [
        [one.what, three(one.gigaflops), f"{one.share:.0%}"]
        for one in record.gemm_shares
    ]
    return (
        "A large product of matrices reaches this many gigaflops on the machine: "
        f"{', '.join(rates)}.\n\n"
        + table(["What", "Gigaflops", "Share of that"], "lrr", lines)
    )


def omitted(record: Record, book: Book, here: str) -> str:
    """List what would be faster and was not done."""
    lines = [[one.what, ratio(one.gain), one.why] for one in record.left_out]
    return table(["What", "Gain", "Why not"], "lrl", lines) if lines else ""
