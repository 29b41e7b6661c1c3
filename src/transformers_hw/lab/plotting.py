"""Figures for light and dark pages, drawn once and saved for both.

An example computes numbers and writes them down; a drawing function gets those numbers,
a figure and a theme, and is called once for each theme. A figure that Matplotlib cannot
draw, such as one that moves, is a function that writes the SVG itself.
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
from matplotlib.lines import Line2D

WIDTH = 7.2  # inches; the text column of the site


@dataclass(frozen=True)
class Theme:
    """The colors of light or dark pages.

    Attributes:
        name: `"light"` or `"dark"`, the ending of the file's name.
        ink: Color of text and axes.
        faint: Color of grids.
        paper: Color of the page behind the figure, which is transparent.
        series: Colors of lines, distinguishable by color-blind readers.
        amounts: Color map from zero (paper) to large.
        signed: Color map from negative over zero (paper) to positive.
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
Markup = Callable[[Theme], str]


def save_figures(
    folder: str | Path,
    drawings: Mapping[str, tuple[Drawing, float] | Markup],
) -> list[Path]:
    """Draw every figure in both themes.

    Args:
        folder: Folder for the files; it is created if need be.
        drawings: For each name, the drawing function and the height in inches, or a
            function of the theme that returns the text of an SVG file.

    Returns:
        The files, `<name>-light.svg` and `<name>-dark.svg` for each figure.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, drawing in drawings.items():
        for theme in THEMES:
            path = folder / f"{name}-{theme.name}.svg"
            if callable(drawing):
                path.write_text(drawing(theme), "utf-8", newline="\n")
            else:
                _draw(path, theme, *drawing)
            written.append(path)
    return written


def _draw(path: Path, theme: Theme, draw: Drawing, height: float) -> None:
    with plt.rc_context(_settings(theme)):
        figure = plt.figure(figsize=(WIDTH, height), layout="constrained")
        draw(figure, theme)
        # Without a date, drawing again gives the same file.
        figure.savefig(path, transparent=True, metadata={"Date": None})
        plt.close(figure)


def heatmap(
    axes: Axes,
    theme: Theme,
    values: object,
    *,
    signed: bool = False,
    limit: float | None = None,
) -> AxesImage:
    """Draw a matrix as colored cells; zero has the color of the paper.

    Args:
        axes: Axes to draw in.
        theme: Theme with the colors.
        values: The matrix.
        signed: Whether the colors are centered at zero.
        limit: Largest value of the colors; by default the largest of the matrix.
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


def plot_runs(
    axes: Axes, x: object, runs: object, *, color: str, **style: Any
) -> Line2D:
    """Draw the mean of several runs as a line, and their range as a band.

    Args:
        axes: Axes to draw in.
        x: Horizontal coordinates, one for each point.
        runs: Values, one row for each run.
        color: Color of line and band.
        **style: Further settings of the line.

    Returns:
        The line.
    """
    values = numpy.asarray(runs)
    low, high = values.min(axis=0), values.max(axis=0)
    axes.fill_between(numpy.asarray(x), low, high, color=color, alpha=0.2, linewidth=0)
    (line,) = axes.plot(numpy.asarray(x), values.mean(axis=0), color=color, **style)
    return line


def dot_runs(axes: Axes, x: float, runs: object, *, color: str, **style: Any) -> None:
    """Draw a dot for each run, and a line from the least to the greatest.

    Args:
        axes: Axes to draw in.
        x: Horizontal coordinate.
        runs: One value for each run.
        color: Color of dots and line.
        **style: Further settings of the dots.
    """
    values = numpy.asarray(runs)
    axes.vlines(x, values.min(), values.max(), color=color, linewidth=0.8)
    dots = {"linestyle": "none", "marker": "o", "markersize": 4, **style}
    axes.plot([x] * len(values), values, color=color, **dots)


def plain_text(text: str) -> str:
    r"""Escape dollar signs, between which Matplotlib would expect mathematics.

    Names of classes need it, which may come from anyone's folder.

    Examples:
        >>> print(plain_text("$5 or $7"))
        \$5 or \$7
    """
    return text.replace("$", r"\$")


def label_line(axes: Axes, text: str, end: tuple[float, float], color: str) -> None:
    """Write a label at the end of a line, instead of a legend."""
    axes.annotate(
        text,
        end,
        xytext=(4, 0),
        textcoords="offset points",
        color=color,
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
