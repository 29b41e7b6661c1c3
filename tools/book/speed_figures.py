"""Draw what the benchmarks measured: `python speed_figures.py <checkout> <folder>`.

Every figure is a set of panels, each narrow enough for a phone; a wide screen sets
them side by side. They are files of their own: `ratios-1-light.svg` and so on.
"""

from __future__ import annotations

import itertools
import math
import re
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import speed_record
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.textpath import text_to_path
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from speed_record import Growth, Record, Row

from transformers_hw.lab.plotting import Theme, save_figures

WIDTH = 3.7  # inches: a phone's screen
LETTERS = 8.5  # their size, in points
MARKERS = "osD^vPX<>p*h"
# In inches: from the left, and from above.
LEFT, KEY, MARGIN = 0.15, 0.25, 0.05
TITLE, LABEL, LANE, GAP, FOOT = 0.34, 0.17, 0.17, 0.07, 0.52
MEANING = "their time ÷ ours: right of the line, ours is faster"
STEPS = (1.0, 2.0, 5.0)
FINE_STEPS = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
SHORTER = (
    (r"<!--.*?-->", ""),
    (r"\s*\n\s*", " "),
    (r"> <", "><"),
    (r'(<use [^>]*)transform="translate\((\d+)[.\d]* 0\)"', r'\1x="\2"'),
    (r"DejaVuSans-", ""),
)

Look = tuple[str, int]
Panel = tuple[Callable[[Figure, Theme], None], float]


def draw(record: Record, folder: Path) -> None:
    """Draw every panel for light and for dark pages."""
    looks = looks_of([row.peer for row in rows] for rows in record.groups.values())
    panels: dict[str, Panel] = {}
    for place, (group, rows) in enumerate(record.groups.items(), start=1):
        panels[f"ratios-{place}"] = ratios(group, rows, looks)
    works = looks_of([one.what for one in growths] for growths in record.axes.values())
    for place, (axis, growths) in enumerate(record.axes.items(), start=1):
        for quantity in ("time", "memory"):
            if speed_record.series_of(growths, quantity):
                made = partial(draw_growth, axis, growths, quantity, works)
                panels[f"growth-{place}-{quantity}"] = made, 2.5 + LABEL * len(growths)
    for path in save_figures(folder, panels):
        path.write_text(lighter(path.read_text("utf-8")), "utf-8")


def lighter(svg: str) -> str:
    """Say the same in fewer letters, most of which place single glyphs."""
    for pattern, replacement in SHORTER:
        svg = re.sub(pattern, replacement, svg)
    return svg


def looks_of(panels: Iterable[Iterable[str]]) -> dict[str, Look]:
    """Give everyone a marker, and a colour that nobody else in a panel has.

    There are more markers than colours: whoever shares no panel may share a colour.
    """
    together = [dict.fromkeys(names) for names in panels]
    # Those in most panels first, so that the others choose around them.
    often = Counter(itertools.chain.from_iterable(together))
    looks: dict[str, Look] = {}
    for order, (name, _) in enumerate(often.most_common()):
        near = set().union(*(names for names in together if name in names))
        taken = {looks[other][1] for other in near if other in looks}
        free = next(place for place in itertools.count() if place not in taken)
        looks[name] = MARKERS[order % len(MARKERS)], free
    return looks


def colour(theme: Theme, place: int) -> str:
    """Give the colour of a place in the order of those drawn."""
    return theme.series[place % len(theme.series)]


def beside(row: Row) -> str:
    """Write what stands at the side of a row."""
    return f"{row.peer} {speed_record.ratio(row.ratio)}"


def width_of(text: str) -> float:
    """Give how wide a text is, in inches."""
    font = FontProperties(size=LETTERS)
    return text_to_path.get_text_width_height_descent(text, font, False)[0] / 72


def broken(text: str) -> list[str]:
    """Break a text into lines that fit."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and width_of(longer) > WIDTH - LEFT - MARGIN:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def ratios(group: str, rows: list[Row], looks: dict[str, Look]) -> Panel:
    """Draw the ratios of a group: for each kind of work a lane for each peer."""
    works: dict[str, list[Row]] = {}
    for row in rows:
        work = speed_record.plain(f"{row.what}, {row.setting}")
        works.setdefault(work, []).append(row)
    labels = {work: broken(work) for work in works}
    lines = sum(map(len, labels.values()))
    inner = lines * LABEL + len(rows) * LANE + len(works) * GAP
    height = TITLE + inner + FOOT
    side = max(width_of(beside(row)) for row in rows)
    width = WIDTH - LEFT - KEY - side - MARGIN

    def drawing(figure: Figure, theme: Theme) -> None:
        figure.set_layout_engine("none")
        figure.set_size_inches(WIDTH, height)
        sheet = figure.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(height, 0))
        sheet.set_axis_off()
        box = LEFT / WIDTH, FOOT / height, width / WIDTH, inner / height
        axes = figure.add_axes(box, ylim=(TITLE + inner, TITLE))
        scale_of_ratios(axes, rows)
        sheet.text(LEFT, 0.2, group, weight="bold", size=10, parse_math=False)
        sheet.text(LEFT, height - 0.06, MEANING, size=8)
        top, place = TITLE, 0
        for work, lanes in works.items():
            for line in labels[work]:
                top += LABEL
                sheet.text(LEFT, top - 0.04, line, size=LETTERS, parse_math=False)
            strip(axes, theme, top, top + len(lanes) * LANE)
            for row in lanes:
                marker, hue = looks[row.peer]
                look = {"marker": marker, "color": colour(theme, hue), "ms": 6.0}
                middle = top + LANE / 2
                lane(axes, theme, row, middle, look).set_gid(f"ratio-{place}")
                key = LEFT + width + KEY
                sheet.plot(key - 0.1, middle, ls="", **look)
                how = {"va": "center", "size": LETTERS, "parse_math": False}
                sheet.text(key, middle, beside(row), **how)
                top += LANE
                place += 1
            top += GAP

    return drawing, height


def strip(axes: Axes, theme: Theme, top: float, bottom: float) -> None:
    """Lay out a strip whose left part, up to the line at 1, is shaded."""
    left, right = axes.get_xlim()
    heights = [top, bottom]
    axes.fill_betweenx(heights, left, 1.0, color=theme.faint, alpha=0.6, lw=0)
    axes.fill_betweenx(heights, 1.0, right, color=theme.faint, alpha=0.2, lw=0)
    axes.vlines(1.0, top, bottom, color=theme.ink, lw=1.2)


def lane(axes: Axes, theme: Theme, row: Row, y: float, look: dict[str, Any]) -> Line2D:
    """Draw one row: its quartiles as a bar, its median as a marker."""
    quartiles = [row.lower_quartile, row.upper_quartile]
    shade = {"color": look["color"], "alpha": 0.5, "solid_capstyle": "butt"}
    axes.plot(quartiles, [y, y], lw=3.5, **shade)
    (dot,) = axes.plot(row.ratio, y, ls="", mec=theme.paper, mew=0.4, **look)
    return dot


def scale_of_ratios(axes: Axes, rows: list[Row]) -> None:
    """Set a logarithmic axis that holds all quartiles, and half to double."""
    low = min([0.5, *(row.lower_quartile / 1.1 for row in rows)])
    high = max([2.0, *(row.upper_quartile * 1.1 for row in rows)])
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)
    axes.yaxis.set_major_locator(NullLocator())
    ticks(axes.xaxis, low, high)


def ticks(axis: Any, low: float, high: float) -> None:
    """Mark round numbers of a logarithmic axis, not more than fit."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in (FINE_STEPS, STEPS, (1.0,)):
        marks = [step * 10.0**decade for decade in decades for step in steps]
        marks = [mark for mark in marks if low * 0.999 <= mark <= high * 1.001]
        if len(marks) <= 6:
            break
    axis.set_major_locator(FixedLocator(marks))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def draw_growth(
    axis: str,
    growths: list[Growth],
    quantity: str,
    looks: dict[str, Look],
    figure: Figure,
    theme: Theme,
) -> None:
    """Draw times or memory over a size, both logarithmic, with the lines fitted."""
    figure.set_size_inches(WIDTH, figure.get_figheight())
    axes = figure.add_subplot()
    axes.set_xscale("log")
    axes.set_yscale("log")
    drawn = speed_record.series_of(growths, quantity)
    for number, (one, values, exponent) in enumerate(drawn):
        marker, place = looks[one.what]
        # With the slope given, least squares put the line through the mean point.
        rise = statistics.fmean(
            math.log(value) - exponent * math.log(size)
            for size, value in zip(one.values, values, strict=True)
        )
        line = [math.exp(rise) * size**exponent for size in one.values]
        (fit,) = axes.plot(one.values, line, color=colour(theme, place), lw=1.0)
        fit.set_gid(f"fit-{number}")
        (dots,) = axes.plot(
            one.values,
            values,
            marker,
            color=colour(theme, place),
            ms=5.0,
            label=f"{speed_record.plain(one.what)}: power {exponent:.2f}",
        )
        dots.set_gid(f"growth-{number}")
    sizes = sorted({size for one, _, _ in drawn for size in one.values})
    if len(sizes) <= 8:
        axes.xaxis.set_major_locator(FixedLocator(sizes))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        ticks(axes.xaxis, *axes.get_xlim())
    ticks(axes.yaxis, *axes.get_ylim())
    unit = {"time": "milliseconds", "memory": "megabytes"}[quantity]
    axes.set_title(f"{unit} by {axis}", loc="left", weight="bold")
    figure.legend(loc="outside lower left", borderpad=0.1, handletextpad=0.2)


if __name__ == "__main__":
    measured = speed_record.read(Path(sys.argv[1]))
    if measured is None:
        sys.exit(f"nothing has been measured: there is no {speed_record.RECORD}")
    draw(measured, Path(sys.argv[2]))
