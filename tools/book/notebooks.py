"""Run the notebooks of docs/notebooks while the site is built, and show them as pages.

A notebook is kept without outputs. What running it gives becomes a Markdown page, so
that formulas, links and colours are the book's own, beside the executed notebook for
download. The outcome is kept in `.cache` until the notebook or the package changes.

A cell that draws says what is seen in a comment: `#| fig-alt: a curve that falls`.
"""

from __future__ import annotations

import base64
import hashlib
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import nbformat
from blocks import fenced
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File, Files
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

ALT = re.compile(r"^#\| fig-alt: *(.+)\n?", re.M)
COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
PICTURES = {"image/svg+xml": "svg", "image/png": "png"}
SECONDS = 600

log = get_plugin_logger("notebooks")


def on_files(files: Files, *, config: MkDocsConfig) -> None:
    """Put a page, its pictures and a download in each notebook's place."""
    root = Path(config.config_file_path).parent
    sources = [file for file in files if file.src_uri.endswith(".ipynb")]
    paths = [Path(file.abs_src_path or "") for file in sources]
    # They wait for their kernels, so they may wait together.
    with ThreadPoolExecutor(max_workers=2) as pool:
        notebooks = list(pool.map(lambda path: executed(path, root), paths))
    for source, notebook in zip(sources, notebooks, strict=True):
        name = source.src_uri.removesuffix(".ipynb")
        files.remove(source)
        made = {source.src_uri: nbformat.writes(notebook)} | as_page(notebook, name)
        for uri, content in made.items():
            files.append(File.generated(config, uri, content=content))


def executed(path: Path, root: Path) -> Any:
    """Run a notebook, unless nothing has changed since it last ran."""
    kept = root / ".cache/notebooks" / f"{path.stem}-{fingerprint(path, root)}.ipynb"
    if kept.is_file():
        return nbformat.read(kept, as_version=4)
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=SECONDS,
        resources={"metadata": {"path": str(root)}},
        extra_arguments=["--log-level=ERROR"],
    )
    try:
        client.execute()
    except CellExecutionError as error:
        log.warning("%s: %s: %s", path.name, error.ename, error.evalue)
        return notebook
    kept.parent.mkdir(parents=True, exist_ok=True)
    for old in kept.parent.glob(f"{path.stem}-*.ipynb"):
        old.unlink()
    nbformat.write(notebook, kept)
    return notebook


def fingerprint(path: Path, root: Path) -> str:
    """Give a digest of all that a notebook's outcome depends on."""
    digest = hashlib.sha256()
    for file in [path, *sorted((root / "src").rglob("*.py"))]:
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def as_page(notebook: Any, name: str) -> dict[str, str | bytes]:
    """Give the Markdown of an executed notebook, and its pictures."""
    made: dict[str, str | bytes] = {}
    parts: list[str] = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
        elif cell.cell_type == "code":
            alt = " ".join(ALT.findall(cell.source))
            if shown := ALT.sub("", cell.source).strip():
                parts.append(fenced(shown, "python"))
            for output in cell.outputs:
                stem = f"{name}-{len(made) + 1}"
                parts.append(as_markdown(output, stem, alt, made))
    head, first, *rest = "", *parts
    if first.startswith("---\n"):
        head, _, first = first.removeprefix("---\n").partition("\n---\n")
        head = f"---\n{head}\n---\n"
    stem = name.rpartition("/")[2]
    note = (
        f"[Download this notebook]({stem}.ipynb)"
        f"{{ .md-button download='{stem}.ipynb' }}\n\n"
        "The build of this site ran every cell of it.\n{ .made }"
    )
    text = "\n\n".join([head + first.strip(), note, *(part for part in rest if part)])
    return {f"{name}.md": text + "\n", **made}


def as_markdown(output: Any, stem: str, alt: str, made: dict[str, str | bytes]) -> str:
    """Give one output of a cell; pictures are added to what is made."""
    if output.output_type == "stream":
        return fenced(plain(output.text), "text") if output.name == "stdout" else ""
    if output.output_type == "error":
        return fenced(f"{output.ename}: {output.evalue}", "text")
    for kind, suffix in PICTURES.items():
        if kind in output.data:
            data = output.data[kind]
            file = f"{stem}.{suffix}"
            made[file] = base64.b64decode(data) if suffix == "png" else data
            return f"![{alt}]({file.rpartition('/')[2]}){{ .output loading=lazy }}"
    if "text/markdown" in output.data:
        return output.data["text/markdown"]
    return fenced(plain(output.data.get("text/plain", "")), "text")


def plain(text: str) -> str:
    """Take off terminal colours and what a carriage return has overwritten."""
    lines = COLOURS.sub("", text).rstrip("\n").split("\n")
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines)
