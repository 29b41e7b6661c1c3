"""Make the assignments' starters, notebooks with blanks, out of their solutions.

    python tools/starters.py            writes docs/assignments/*_starter.ipynb

The solution is the only source. In a code cell, the lines between `# --- your code` and
`# --- end` become a blank that raises NotImplementedError and says where it is. A cell
with the tag `answer` becomes an empty answer, one with the tag `solution` is left out,
and so are all outputs.
"""

import copy
import re
from pathlib import Path

import nbformat

FOLDER = Path(__file__).parents[1] / "docs/assignments"
BLANK = re.compile(r"^( *)# --- your code\n(.*?)^ *# --- end\n?", re.M | re.S)
NAMED = re.compile(r"^( *)(?:def|class) (\w+)", re.M)
OPEN = "*Your answer:*"


def starter_of(solution: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Return the starter that belongs to a solution."""
    starter = copy.deepcopy(solution)
    starter.cells = [
        blanked(cell)
        for cell in starter.cells
        if "solution" not in cell.metadata.get("tags", [])
    ]
    return starter


def blanked(cell: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Return a cell with blanks for what is to be filled in."""
    cell = copy.deepcopy(cell)
    tags = cell.metadata.get("tags", [])
    if "answer" in tags:
        cell.source = OPEN
    cell.source = re.sub(r"\A(# .*): solution$", r"\1", cell.source, flags=re.M)
    cell.metadata = nbformat.NotebookNode()
    if cell.cell_type == "code":
        cell.outputs, cell.execution_count = [], None
        source = cell.source + "\n"
        blank = BLANK.sub(lambda found: blank_of(found, source), source)
        cell.source = blank.removesuffix("\n")
    return cell


def blank_of(found: re.Match[str], source: str) -> str:
    """Return what replaces the lines of a solution."""
    indent, lines = found[1], len(found[2].splitlines())
    size = "one line is" if lines == 1 else f"{lines} lines are"
    where = place(source[: found.start()], len(indent))
    return (
        f"{indent}# Your code; {size} enough.\n"
        f'{indent}raise NotImplementedError("{where}")\n'
    )


def place(before: str, indent: int) -> str:
    """Name the function, or class and method, that a blank belongs to."""
    names: list[str] = []
    for found in reversed(list(NAMED.finditer(before))):
        if len(found[1]) < indent:
            names.insert(0, found[2])
            indent = len(found[1])
    return ".".join(names)


def main() -> None:
    """Write all starters."""
    for path in sorted(FOLDER.glob("*_solution.ipynb")):
        starter = starter_of(nbformat.read(path, as_version=4))
        name = path.name.replace("_solution", "_starter")
        nbformat.write(starter, path.with_name(name))
        print(name)


if __name__ == "__main__":
    main()
