"""Write what the benchmarks measured into `docs/speed.md` and its figures.

    python benchmarks/report.py

Everything comes from `benchmarks/record.json`, which `benchmarks/run.py` writes. The
page keeps its prose. Only the text between `<!-- begin name -->` and
`<!-- end name -->` is replaced, by what the function `name` below returns. The figures
go to `docs/figures/speed`.
"""

import json
import math
import re
import statistics
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "benchmarks/record.json"
PAGE = ROOT / "docs/speed.md"
FIGURES = ROOT / "docs/figures/speed"

Record = dict[str, Any]

GROUPS = {
    "attention": "Dot-product attention",
    "windows": "Attention within a window",
    "multi_head_attention": "Multi-head attention",
    "encoder_layer": "Encoder layer",
    "decoder_layer": "Decoder layer",
    "decoding": "Autoregressive decoding",
    "grouped_queries": "Shared keys and values",
    "vision_transformer": "Vision Transformer",
    "training": "Training loop",
    "data": "Data augmentation",
    "gaussian_attention": "Gaussian attention",
    "convolution_as_attention": "Convolution as attention",
    "import_time": "Import time",
}
MODES = {"forward_backward": "forward + backward", "training_step": "training step"}
VERDICTS = ("faster", "level", "slower")
LIBRARIES = ("torch", "torchvision", "timm", "vit-pytorch", "Hugging Face")
# What each omitted optimization is, and why the book does without it.
LEFT_OUT = {
    "class_token_only": (
        "Compute only the class token in the last layer of ViT-Ti/16",
        "Every layer stays the same layer, and probes see every token.",
    ),
    "in_place_activation": (
        "Let the activation overwrite the hidden layer, in inference mode",
        "Each activation would need a second version, and a rule for when to use it.",
    ),
    "in_place_residuals": (
        "Add residuals in place, in inference mode",
        "A hook on a sublayer would see its output change afterward.",
    ),
    "in_place_softmax": (
        "Let the softmax overwrite the scores, when weights are returned",
        "The code would no longer read like the formula.",
    ),
    "packed_projections": (
        "Project queries, keys and values by one matrix",
        "The formula has three projections, and cross-attention needs them apart.",
    ),
    "packed_projections_backward": (
        "Project them by one matrix, forward + backward",
        "The same; also, hooks on one of the projections would be skipped.",
    ),
    "unchecked_input": (
        "Call the attention kernel without checking the input; 16 tokens, batch 1",
        "The checks matter only when there is almost nothing to compute.",
    ),
}


def verdict(row: Record) -> str:
    """Say who is faster; if the quartiles lie on both sides of 1, it is level."""
    if row["lower_quartile"] > 1:
        return "faster"
    return "slower" if row["upper_quartile"] < 1 else "level"


def counts(rows: list[Record]) -> list[int]:
    """Count the rows of each verdict."""
    found = [verdict(row) for row in rows]
    return [found.count(kind) for kind in VERDICTS]


def by_group(record: Record) -> dict[str, list[Record]]:
    """Return the rows of each group, in the order of the page."""
    groups = {key: [r for r in record["rows"] if r["group"] == key] for key in GROUPS}
    return {key: rows for key, rows in groups.items() if rows}


def number(x: float) -> str:
    """Write a number with three significant digits, a large one in full."""
    if x == 0:
        return "0"
    decimals = 2 - math.floor(math.log10(abs(x)) + 1e-12)
    return f"{x:,.{max(decimals, 0)}f}" if decimals <= 4 else f"{x:.1e}"


def spread(row: Record) -> str:
    """Write a median with its quartiles."""
    low, high = number(row["lower_quartile"]), number(row["upper_quartile"])
    return f"**{number(row['ratio'])}** ({low}–{high})"


def both(row: Record, key: str) -> str:
    """Write our value and theirs, or nothing if neither was measured."""
    pair = [row[f"our_{key}"], row[f"their_{key}"]]
    return "" if None in pair else " / ".join(map(number, pair))


def mode(row: Record) -> str:
    """Write the mode, with device and type where they are not the usual ones."""
    unusual = [row["device"], row["dtype"]] if row["device"] != "cpu" else []
    return ", ".join([MODES.get(row["mode"], row["mode"]), *unusual])


def table(columns: dict[str, Iterable[str]]) -> str:
    """Write a table without empty columns; a name that ends in `:` is right-aligned."""
    filled = {name: list(cells) for name, cells in columns.items()}
    filled = {name: cells for name, cells in filled.items() if any(cells)}
    head = [name.rstrip(":") for name in filled]
    rule = ["--:" if name.endswith(":") else "---" for name in filled]
    lines = [head, rule, *zip(*filled.values(), strict=True)]
    return "\n".join(f"| {' | '.join(x or '–' for x in line)} |" for line in lines)


def small(text: str) -> str:
    """Set a wide table in smaller type."""
    return f"//// html | div.measured\n\n{text}\n\n////"


def headline(record: Record) -> str:
    """Say in a few sentences what was measured and how it came out."""
    # Baselines of our own, such as decoding without the cache, do not count.
    rows = [row for row in record["rows"] if row["peer"].startswith(LIBRARIES)]
    threads = record["machine"]["threads"]
    wins, draws, losses = counts(rows)

    def median(group: str, peer: str = "", case: str = "") -> str:
        return number(
            statistics.median(
                row["ratio"]
                for row in rows
                if row["group"] == group
                and row["peer"].startswith(peer)
                and row["case"].startswith(case)
            )
        )

    ratio = statistics.median(row["ratio"] for row in rows)
    pace = (
        "about as fast as"
        if 0.95 <= ratio <= 1.05
        else ("faster than" if ratio > 1 else "slower than")
    )
    cached = median("decoding", "torch", "256 ")
    return (
        f"**In one sentence: the book's modules are {pace} those of the large "
        f"libraries, and generating text is {cached} times as fast as with PyTorch's "
        "own decoder, because ours keeps the keys and values of earlier tokens.**\n\n"
        "We timed the book's modules against PyTorch, torchvision, timm, vit-pytorch "
        "and Hugging Face, with the same weights and inputs, on "
        f"{threads} CPU threads. Of {len(rows)} comparisons, the book is faster in "
        f"{wins}, level in {draws} and slower in {losses}.\n\n"
        "A *ratio* is the other library's time divided by ours, so above 1 ours is "
        f"faster. The median ratio is {median('vision_transformer')} for Vision "
        f"Transformers, {median('encoder_layer')} for encoder layers and "
        f"{median('attention')} for attention alone. In generating 256 tokens, it is "
        f"{cached} against PyTorch, which has no "
        f"key-value cache, and {median('decoding', 'Hugging Face', '256 ')} against "
        "Hugging Face, which has one."
    )


def summary(record: Record) -> str:
    """Write one line per group."""
    groups = by_group(record)
    ratios = [sorted(row["ratio"] for row in rows) for rows in groups.values()]
    verdicts = zip(*map(counts, groups.values()), strict=True)
    columns: dict[str, Iterable[str]] = {
        "What": [GROUPS[key] for key in groups],
        "Median ratio:": [f"**{number(statistics.median(r))}**" for r in ratios],
        "Lowest, highest:": [f"{number(r[0])}, {number(r[-1])}" for r in ratios],
    }
    for kind, found in zip(VERDICTS, verdicts, strict=True):
        columns[f"{kind.capitalize()}:"] = map(str, found)
    return small(table(columns))


def machine(record: Record) -> str:
    """Say where, when and with what the record was made."""
    about, versions = record["machine"], record["versions"]
    day = datetime.fromisoformat(record["date"])
    device = "No GPU was used."
    if about["cuda"]:
        device = f"Rows on CUDA ran on {about['cuda']}."
    return (
        f"Measured on {day:%B} {day.day}, {day.year}, on {about['processor']} "
        f"({about['system']}, {about['cores']} cores, {about['threads']} threads), by "
        f"`{record['command']}` in {round(record['seconds'] / 60)} minutes. {device} "
        "Versions: "
        + ", ".join(f"{name} {version}" for name, version in versions.items())
        + ". The numbers are kept in `benchmarks/record.json`.\n{ .made }"
        + "".join(f"\n\n{later(run)}\n{{ .made }}" for run in record["later_runs"])
    )


def later(run: Record) -> str:
    """Say what was measured after the rest, and how."""
    day = datetime.fromisoformat(run["date"])
    parts = "; ".join(GROUPS.get(part, part) for part in run["parts"])
    threads = "1 thread" if run["threads"] == 1 else f"{run['threads']} threads"
    busy = run["used_elsewhere"]
    load = "" if busy is None else f" Other programs used {busy:.0%} of the processor."
    return (
        f"Measured later, on {day:%B} {day.day}, {day.year}, on {threads} of the same "
        f"machine, by `{run['command']}`: {parts}.{load}"
    )


def noise(record: Record) -> str:
    """Say how far a layer timed against itself strays from 1."""
    found = record["noise"]
    return (
        f"- **Noise.** One layer timed against its own copy {len(found)} times gave "
        f"ratios from {number(min(found))} to {number(max(found))}. Smaller deviations "
        "from 1 mean nothing."
    )


def slower(record: Record) -> str:
    """List the rows whose quartiles are both below 1."""
    rows = [row for row in record["rows"] if verdict(row) == "slower"]
    if not rows:
        return "No row has both quartiles below 1."
    rows.sort(key=lambda row: row["ratio"])
    columns: dict[str, Iterable[str]] = {
        "What": (f"{GROUPS[row['group']]}: {row['case']}" for row in rows),
        "Ratio (quartiles):": map(spread, rows),
        "Against": (row["peer"] for row in rows),
        "Mode": map(mode, rows),
    }
    return small(table(columns))


def left_out(record: Record) -> str:
    """List the optimizations that the book does without, the largest gain first."""
    rows = sorted(record["left_out"], key=lambda row: -row["ratio"])
    if not rows:
        return "Not measured yet."
    texts = [LEFT_OUT[row["name"]] for row in rows]
    return table(
        {
            "Optimization": (what for what, _ in texts),
            "Gain (quartiles):": map(spread, rows),
            "Why the book does without": (why for _, why in texts),
        }
    )


def growth(record: Record) -> str:
    """Write the fitted exponents."""
    rows = record["growth"]
    return table(
        {
            "Model": (row["model"].replace("_", " ").capitalize() for row in rows),
            "Size": (row["axis"] for row in rows),
            "From, to:": (f"{r['sizes'][0]:,}, {r['sizes'][-1]:,}" for r in rows),
            "Exponent of time:": (f"{row['time_exponent']:.2f}" for row in rows),
            "Exponent of memory:": (f"{row['memory_exponent']:.2f}" for row in rows),
        }
    )


def gemm(record: Record) -> str:
    """Compare whole models with one large matrix product."""
    rows = record["gemm_shares"]
    return (
        "On this machine, a product of two large matrices runs at "
        f"{number(record['gemm_gigaflops'])} gigaflops per second.\n\n"
    ) + table(
        {
            "Model, forward": (f"{r['model']}, batch {r['batch']}" for r in rows),
            "Gigaflops per second:": (number(row["gigaflops"]) for row in rows),
            "Share of the matrix product's:": (f"{row['share']:.0%}" for row in rows),
        }
    )


def rows(record: Record) -> str:
    """Write the table of each group."""
    parts = []
    for key, found in by_group(record).items():
        rates = [row["rate"] for row in found]
        columns: dict[str, Iterable[str]] = {
            "Case": (row["case"] for row in found),
            "Ratio (quartiles):": map(spread, found),
            "Against": (row["peer"] for row in found),
            "Mode": map(mode, found),
            "ms, ours / theirs:": (both(row, "milliseconds") for row in found),
            "MB, ours / theirs:": (both(row, "megabytes") for row in found),
            "Rate, ours / theirs:": (
                r and f"{number(r['ours'])} / {number(r['theirs'])} {r['unit']}"
                for r in rates
            ),
            "Difference:": (
                "" if (x := row["largest_difference"]) is None else f"{x:.1g}"
                for row in found
            ),
        }
        parts.append(f"### {GROUPS[key]}\n\n{small(table(columns))}")
    return "\n\n".join(parts)


BLOCKS = (headline, summary, machine, noise, slower, left_out, growth, gemm, rows)


def page(text: str, record: Record) -> str:
    """Fill the blocks of a page.

    Raises:
        ValueError: If the page lacks a block.
    """
    for block in BLOCKS:
        begin, end = (f"<!-- {edge} {block.__name__} -->" for edge in ("begin", "end"))
        pattern = re.compile(f"{begin}.*?{end}", re.DOTALL)
        filled = f"{begin}\n\n{block(record)}\n\n{end}"
        text, found = pattern.subn(lambda _, filled=filled: filled, text)
        if found != 1:
            raise ValueError(f"{PAGE.name} must have one {begin} … {end}, got {found}.")
    return text


if __name__ == "__main__":
    measured = json.loads(RECORD.read_text("utf-8"))
    PAGE.write_text(page(PAGE.read_text("utf-8"), measured), "utf-8")
    # Only drawing needs PyTorch and matplotlib.
    from figures import draw

    titled = {GROUPS[key]: found for key, found in by_group(measured).items()}
    draw(FIGURES, titled, measured["growth"])
