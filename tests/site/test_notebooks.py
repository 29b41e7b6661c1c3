"""Notebooks: run when the site is built, shown as pages, offered for download."""

from pathlib import Path

import nbformat
import pytest
from small import build, warnings

DRAWING = """#| fig-alt: A red square.
from IPython.display import SVG, display
display(SVG('<svg xmlns="http://www.w3.org/2000/svg"><rect fill="red"/></svg>'))"""
LOUD = r"""import sys
print("half\rwhole \x1b[31mred\x1b[0m", "```")
print("un" + "seen", file=sys.stderr)"""


def notebook(*cells: str) -> str:
    """Give a notebook of a heading and these cells of code."""
    made = [nbformat.v4.new_markdown_cell("# A notebook\n\nWith $x^2$.")]
    made += [nbformat.v4.new_code_cell(cell) for cell in cells]
    return nbformat.writes(nbformat.v4.new_notebook(cells=made))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Build a site with a good notebook and a bad one; give it and its warnings."""
    folder = tmp_path_factory.mktemp("notebooks")
    files = {
        "docs/index.md": "# Home",
        "docs/notebooks/good.ipynb": notebook(LOUD, "6 * 7", DRAWING),
        "docs/notebooks/bad.ipynb": notebook("1 / 0", "6 * 7"),
    }
    result = build(folder, files, hooks=("formulas", "notebooks"))
    assert result.returncode != 0
    return folder, warnings(result)


def test_a_cell_that_fails_stops_the_build(built: tuple[Path, list[str]]) -> None:
    _, complaints = built
    assert any("bad.ipynb: ZeroDivisionError" in line for line in complaints)
    assert not any("good" in line for line in complaints)


def test_cells_and_what_they_give_are_a_page(built: tuple[Path, list[str]]) -> None:
    page = (built[0] / "site/notebooks/good/index.html").read_text("utf-8")
    assert 'class="katex"' in page
    assert '<span class="mi">6</span>' in page
    assert ">42\n</code>" in page
    assert ">whole red ```\n</code>" in page
    assert "unseen" not in page
    assert 'alt="A red square."' in page
    assert "fig-alt" not in page
    picture = (built[0] / "site/notebooks/good-1.svg").read_text("utf-8")
    assert 'fill="red"' in picture


def test_the_notebook_is_offered_as_it_ran(built: tuple[Path, list[str]]) -> None:
    page = (built[0] / "site/notebooks/good/index.html").read_text("utf-8")
    assert 'href="../good.ipynb"' in page
    path = built[0] / "site/notebooks/good.ipynb"
    executed = nbformat.reads(path.read_text("utf-8"), as_version=4)
    assert executed.cells[2].outputs[0].data["text/plain"] == "42"


def test_what_has_run_is_kept_and_what_failed_is_not(
    built: tuple[Path, list[str]],
) -> None:
    kept = sorted((built[0] / ".cache/notebooks").glob("*.ipynb"))
    assert [path.name.partition("-")[0] for path in kept] == ["good"]
