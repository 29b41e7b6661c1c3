"""Draw the figures of `docs/speed.md`; `benchmarks/report.py` calls this."""

import math
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from transformers_hw.lab.plotting import Theme, save_figures

WIDTH = 3.75  # inches: 360 pixels, the width of a phone
LANE, MARGIN = 0.55, 0.55  # inches: height of a group, and of the axis below
MARKERS = "osD^vP"
NEAR = (0.5, 2.0)  # ratios that can share an axis without crowding

Row = dict[str, Any]


def draw(folder: Path, groups: dict[str, list[Row]], growths: list[Row]) -> list[Path]:
    """Draw every figure for light and for dark pages.

    Args:
        folder: Folder for the files.
        groups: Rows by the title of their group.
        growths: What was measured along each size.
    """
    low, high = NEAR
    near = {k: v for k, v in groups.items() if all(low < r["ratio"] < high for r in v)}
    far = {k: v for k, v in groups.items() if k not in near}
    drawings = {
        "ratios-near": (partial(ratios, near), MARGIN + LANE * len(near)),
        "ratios-far": (partial(ratios, far), MARGIN + LANE * len(far)),
        "growth-time": (partial(growth, growths, "milliseconds"), 3.3),
        "growth-memory": (partial(growth, growths, "megabytes"), 3.3),
    }
    return save_figures(folder, drawings)


def ratios(groups: dict[str, list[Row]], figure: Figure, theme: Theme) -> None:
    """Show each row as a dot with a bar over its quartiles, one lane per group."""
    figure.set_size_inches(WIDTH, figure.get_figheight())
    axes = figure.add_subplot(xscale="log", ylim=(len(groups), 0))
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)
    axes.yaxis.set_major_locator(NullLocator())
    for lane, (title, rows) in enumerate(groups.items()):
        axes.axhspan(lane + 0.3, lane + 1, color=theme.faint, alpha=0.25, lw=0)
        axes.text(0, lane + 0.25, title, size=8, transform=axes.get_yaxis_transform())
        for place, row in enumerate(sorted(rows, key=lambda row: row["ratio"])):
            low, high = row["lower_quartile"], row["upper_quartile"]
            y = lane + 0.95 - 0.6 * (place + 0.5) / len(rows)
            color = theme.series[0] if row["ratio"] >= 1 else theme.series[1]
            axes.plot([low, high], [y, y], color=color, lw=1.0, alpha=0.5)
            filled = color if low > 1 or high < 1 else theme.paper
            dot = {"mec": color, "mew": 0.8, "mfc": filled}
            axes.plot(row["ratio"], y, "o" if row["ratio"] >= 1 else "s", ms=3.2, **dot)
        axes.vlines(1.0, lane + 0.3, lane + 1, color=theme.ink, lw=1.0)
    round_ticks(axes.xaxis, *axes.get_xlim())
    axes.set_xlabel("their time ÷ our time")


def growth(growths: list[Row], key: str, figure: Figure, theme: Theme) -> None:
    """Show by what factor time or memory grows when a size does."""
    figure.set_size_inches(WIDTH, figure.get_figheight())
    axes: Axes = figure.add_subplot(xscale="log", yscale="log")
    power = {"milliseconds": "time_exponent", "megabytes": "memory_exponent"}[key]
    for place, row in enumerate(growths):
        x = [size / row["sizes"][0] for size in row["sizes"]]
        y = [value / row[key][0] for value in row[key]]
        label = f"{row['model'].replace('_', ' ')}, {row['axis']}: {row[power]:.2f}"
        color = theme.series[place % len(theme.series)]
        axes.plot(x, y, MARKERS[place] + "-", color=color, ms=4.5, lw=1.0, label=label)
    round_ticks(axes.xaxis, *axes.get_xlim())
    round_ticks(axes.yaxis, *axes.get_ylim())
    axes.set_xlabel("size, relative to the smallest")
    axes.set_title(f"{key}, relative to the smallest size", loc="left")
    figure.legend(loc="outside lower left", title="exponent", alignment="left")


def round_ticks(axis: Axis, low: float, high: float) -> None:
    """Mark round numbers on a logarithmic axis, no more than fit."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks: list[float] = []
    for steps in ((1, 1.2, 1.5, 2, 3, 4, 5, 7, 9), (1, 2, 5), (1,)):
        ticks = [step * 10.0**decade for decade in decades for step in steps]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) <= 7:
            break
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
