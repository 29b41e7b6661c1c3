"""Figures that can be read in light and in dark, drawn once and saved for both.

Computing and drawing are apart: an example computes numbers and writes them down;
a drawing function gets those numbers, a figure and a theme, and is called twice.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

WIDTH = 7.2  # inches; the text column of the site


@dataclass(frozen=True)
class Theme:
    """The colours of one of the two modes.

    Attributes:
        name: `"light"` or `"dark"`, the ending of the file's name.
        ink: Text and axes.
        faint: Grids and whatever should stay behind.
        paper: The page behind the figure, which itself is transparent.
        series: Colours of lines, told apart by colour-blind readers too.
        amounts: From nothing (paper) to much.
        signed: From negative over nothing (paper) to positive.
    """

    name: str
    ink: str
    faint: str
    paper: str
    series: tuple[str, ...]
    amounts: Colormap
    signed: Colormap


def _theme(
    name: str, ink: str, faint: str, paper: str, series: tuple[str, ...]
) -> Theme:
    amounts = LinearSegmentedColormap.from_list("amounts", [paper, series[0], ink])
    signed = LinearSegmentedColormap.from_list("signed", [series[1], paper, series[0]])
    return Theme(name, ink, faint, paper, series, amounts, signed)


LIGHT = _theme(
    "light",
    "#1d2733",
    "#c9ced6",
    "#ffffff",
    ("#1f5fa8", "#c4501b", "#1d8a5a", "#8a4fae", "#a67c00", "#55606e"),
)
DARK = _theme(
    "dark",
    "#e4e8ee",
    "#48505c",
    "#1e2129",
    ("#74b0f2", "#f2915e", "#63cf9f", "#c99be6", "#e0bb4a", "#a7b0bd"),
)
THEMES = (LIGHT, DARK)

Drawing = Callable[[Figure, Theme], None]


def save_figures(
    folder: str | Path,
    drawings: Mapping[str, tuple[Drawing, float]],
) -> list[Path]:
    """Draw every figure in both themes.

    Args:
        folder: Where to put the files; it is made if it is not there.
        drawings: By name, what draws a figure and how high it is, in inches.

    Returns:
        The files written, `<name>-light.svg` and `<name>-dark.svg` for each.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, (draw, height) in drawings.items():
        for theme in THEMES:
            path = folder / f"{name}-{theme.name}.svg"
            with plt.rc_context(_settings(theme)):
                figure = plt.figure(figsize=(WIDTH, height), layout="constrained")
                draw(figure, theme)
                # No date: drawing again gives the same file.
                figure.savefig(path, transparent=True, metadata={"Date": None})
                plt.close(figure)
            written.append(path)
    return written


def heatmap(
    axes: Axes,
    theme: Theme,
    values: object,
    *,
    signed: bool = False,
    limit: float | None = None,
) -> AxesImage:
    """Show a matrix as coloured cells, nothing being the colour of the paper.

    Args:
        axes: Where to draw.
        theme: Whose colours.
        values: The matrix.
        signed: Whether zero lies in the middle of the colours.
        limit: The greatest value of the colours; the greatest one there is by
            default.
    """
    matrix = numpy.asarray(values)
    top = float(numpy.abs(matrix).max()) if limit is None else limit
    image = axes.imshow(
        matrix,
        cmap=theme.signed if signed else theme.amounts,
        vmin=-top if signed else 0.0,
        vmax=top or 1.0,
        interpolation="nearest",
    )
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(True)
        spine.set_color(theme.faint)
    return image


def label_line(axes: Axes, text: str, end: tuple[float, float], colour: str) -> None:
    """Write a name at the end of a line, which spares the reader a legend.

    Args:
        axes: Where to draw.
        text: The name.
        end: Where the line ends.
        colour: The line's colour.
    """
    axes.annotate(
        text,
        end,
        xytext=(4, 0),
        textcoords="offset points",
        color=colour,
        va="center",
        annotation_clip=False,
    )


def _settings(theme: Theme) -> dict[Any, Any]:
    return {
        "axes.edgecolor": theme.faint,
        "axes.facecolor": "none",
        "axes.grid": True,
        "axes.labelcolor": theme.ink,
        "axes.prop_cycle": plt.cycler(color=theme.series),
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlecolor": theme.ink,
        "axes.titlesize": 10,
        "figure.facecolor": "none",
        "font.family": "DejaVu Sans",
        "font.size": 9,
        "grid.color": theme.faint,
        "grid.linewidth": 0.4,
        "legend.frameon": False,
        "lines.linewidth": 1.6,
        "savefig.facecolor": "none",
        "svg.fonttype": "path",
        "svg.hashsalt": "transformers_hw",
        "text.color": theme.ink,
        "xtick.color": theme.ink,
        "ytick.color": theme.ink,
    }
