"""The notebooks run, and give the outputs that are committed with them."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))
# Whole numbers are exact; others depend on the machine, above all after training.
FRACTION = re.compile(r"-?\d+\.\d+(?:e[+-]\d+)?|-?\d+e[+-]\d+")


def outputs(notebook: nbformat.NotebookNode) -> list[str]:
    """Return the printed text of every cell, and which outputs are images."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    return [
        "".join(
            one.get("text") or f"<{'|'.join(sorted(one.get('data', [])))}>\n"
            for one in cell.outputs
            if one.get("name") != "stderr"
        )
        for cell in cells
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_running_a_notebook_gives_its_committed_outputs(path: Path) -> None:
    committed = nbformat.read(path, as_version=4)
    again = nbformat.read(path, as_version=4)
    NotebookClient(again, timeout=600).execute()
    before, after = outputs(committed), outputs(again)
    assert any("image/png" in text for text in before)
    for old, new in zip(before, after, strict=True):
        assert FRACTION.sub("#", new) == FRACTION.sub("#", old)
        numbers = [float(number) for number in FRACTION.findall(old)]
        wanted = pytest.approx(numbers, rel=0.1, abs=0.05)
        assert [float(number) for number in FRACTION.findall(new)] == wanted
