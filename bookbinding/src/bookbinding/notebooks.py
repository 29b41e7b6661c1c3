"""Fit the HTML that mkdocs-jupyter makes of a notebook into the book.

Notebooks are committed with their outputs; the build runs nothing. A cell that draws
describes its image in its metadata, under `alt`.
"""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path

from bs4 import BeautifulSoup, Tag
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

MATH = re.compile(r"\$\$(.+?)\$\$|(?<![\\$\w])\$(?!\s)([^$]+?)(?<!\s)\$(?!\w)", re.S)
DOWNLOAD = """</h1>
<p><a class="md-button" href="{0}" download="{0}">Download this notebook</a></p>"""
OUTPUT, END = '<div class="output"><pre><code>', "</code></pre></div>"

log = get_plugin_logger("notebooks")


def adapt(html: str, page: Page, files: Files) -> str:
    """Return a notebook's HTML in the book's own classes, without Jupyter's.

    Of each cell that is its text, or its code, printed output and images.
    """
    path = Path(page.file.abs_src_path or "")
    cells = json.loads(path.read_text("utf-8"))["cells"]
    described = {cell["id"]: cell["metadata"].get("alt", "") for cell in cells}
    parts: list[str] = []
    for cell in BeautifulSoup(html, "html.parser").select(".jp-Cell[id]"):
        for text in cell.select(".jp-MarkdownOutput"):
            link_pages(text, page, files)
            mark_formulas(text)
            parts.append(text.decode_contents())
        for code in cell.select(".jp-InputArea pre"):
            inner = code.decode_contents()
            parts.append(f'<div class="highlight"><pre><code>{inner}{END}')
        for output in cell.select(".jp-OutputArea-output"):
            for image in output.select("img"):
                alt = described[str(cell["id"]).removeprefix("cell-id=")]
                image.attrs = {"src": image["src"], "alt": alt, "class": "output"}
                parts.append(f"<p>{image}</p>")
            if text := output.select_one("pre"):
                # A kernel may send what a cell prints in pieces.
                printed = parts.pop() if parts[-1].startswith(OUTPUT) else OUTPUT
                parts.append(printed.removesuffix(END) + text.decode_contents() + END)
    made = "\n".join(parts).replace('class="anchor-link"', 'class="headerlink"')
    return made.replace("</h1>", DOWNLOAD.format(path.name), 1)


def link_pages(text: Tag, page: Page, files: Files) -> None:
    """Resolve links to the sources of other pages."""
    here = posixpath.dirname(page.file.src_uri)
    for anchor in text.select("a[href]"):
        path, mark, fragment = str(anchor["href"]).partition("#")
        if path.endswith((".md", ".ipynb")) and ":" not in path:
            target = files.get_file_from_path(posixpath.normpath(f"{here}/{path}"))
            if target is None:
                log.warning("%s: there is no page %s", page.file.src_uri, path)
            else:
                url = target.url_relative_to(page.file)
                anchor["href"] = f"{url}{mark}{fragment}"


def mark_formulas(text: Tag) -> None:
    """Mark formulas as pymdownx.arithmatex does."""
    for string in text.find_all(string=MATH):
        if string.find_parent(["pre", "code"]) is None:
            marked = MATH.sub(_marked, string.output_ready(formatter="minimal"))
            string.replace_with(BeautifulSoup(marked, "html.parser"))


def _marked(found: re.Match[str]) -> str:
    if found[1]:
        return rf'<div class="arithmatex">\[{found[1]}\]</div>'
    return rf'<span class="arithmatex">\({found[2]}\)</span>'
