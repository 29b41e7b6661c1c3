"""Fit the HTML that mkdocs-jupyter makes of a notebook into the book.

Notebooks are committed with their outputs; the build runs nothing. A cell that draws
describes its image in its metadata, under `alt`. Where the site knows its repository,
a notebook can be opened in Colab, and its first cell says where to install from.
"""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path

from bs4 import BeautifulSoup, Tag
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

MATH = re.compile(r"\$\$(.+?)\$\$|(?<![\\$\w])\$(?!\s)([^$]+?)(?<!\s)\$(?!\w)", re.S)
DOWNLOAD = '<a class="md-button" href="{0}" download="{0}">Download this notebook</a>'
COLAB = '<a class="md-button" href="{0}">Open in Colab</a>'
# The line of the first cell that says where the package is, in source and as JSON.
UNKNOWN = re.compile(r'REPOSITORY = (\\?")\1')
GITHUB = "https://github.com/"
OUTPUT, END = '<div class="output"><pre><code>', "</code></pre></div>"

log = get_plugin_logger("notebooks")


def adapt(html: str, page: Page, files: Files, config: MkDocsConfig) -> str:
    """Return a notebook's HTML in the book's own classes, without Jupyter's.

    Of each cell that is its text, or its code, printed output and images. Links to
    download the notebook and to open it in Colab follow the title.
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
            if config.repo_url:
                say_where(code, config.repo_url)
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
    links = [DOWNLOAD.format(path.name)]
    if opened := in_colab(page.file.src_uri, config):
        links.append(COLAB.format(opened))
    return made.replace("</h1>", f"</h1>\n<p>{' '.join(links)}</p>", 1)


def in_colab(source: str, config: MkDocsConfig) -> str | None:
    """Return the address at which Colab opens a notebook; it reads GitHub's only."""
    repository, folder = (config.repo_url or "").rstrip("/"), config.edit_uri or ""
    if not repository.startswith(GITHUB):
        return None
    name = repository.removeprefix(GITHUB)
    blob = folder.strip("/").replace("edit/", "blob/", 1)
    return f"https://colab.research.google.com/github/{name}/{blob}/{source}"


def say_where(code: Tag, repository: str) -> None:
    """Fill in the repository's address where a cell of code leaves it open."""
    for string in code.find_all(string='""'):
        before = [str(one) for one in string.find_all_previous(string=True, limit=4)]
        if "".join(reversed(before)).strip().endswith("REPOSITORY ="):
            string.replace_with(f'"{repository}"')


def fill_in_repository(page: Page, repository: str) -> None:
    """Fill in the repository's address in the copy of a notebook to download."""
    made = Path(page.file.abs_dest_path).parent / Path(page.file.src_uri).name
    text = UNKNOWN.sub(rf"REPOSITORY = \g<1>{repository}\g<1>", made.read_text("utf-8"))
    made.write_text(text, "utf-8")


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
