"""Help the search find what readers type.

The theme shows a page's tags with its results and ranks them above all other text. A
question is tagged with its number, as in 1.3(e), the section that teaches a term with
the term and its other names, and any other section with the words that the page's front
matter lists: `find: {anchor: [word, ...]}`.
"""

from __future__ import annotations

import json
from pathlib import Path

from mkdocs.structure.files import Files

from bookbinding import glossary
from bookbinding.project import Project

#: The weight of a tag; that of a title is 1000.
WEIGHT = 5000.0


def add_tags(site: Path, files: Files, project: Project) -> None:
    """Add the tags to the index that the search plugin has written."""
    path = site / "search/search_index.json"
    if not path.is_file():
        return
    index = json.loads(path.read_text("utf-8"))
    tags = wanted(files, project)
    for entry in index["docs"]:
        if found := tags.get(entry["location"]):
            entry["tags"] = found
    if "fields" in index["config"]:
        index["config"]["fields"]["tags"]["boost"] = WEIGHT
    text = json.dumps(index, ensure_ascii=False, separators=(",", ":"))
    path.write_text(text, "utf-8")


def wanted(files: Files, project: Project) -> dict[str, list[str]]:
    """Return the tags by the place they lead to."""
    found: dict[str, list[str]] = {}

    def add(page: str, anchor: str, tags: list[str]) -> None:
        if file := files.get_file_from_path(page):
            place = f"{file.url}#{anchor}"
            found.setdefault(place, []).extend(tags)

    for one in project.questions.values():
        number = one.id.removeprefix(f"{one.source}-")
        add(one.page, one.id, list(dict.fromkeys((one.number, number))))
    for term in glossary.read(project.docs):
        page, _, anchor = term.taught.partition("#")
        if anchor:
            add(page, anchor, [term.name, *term.also])
    for file in files.documentation_pages():
        words = file.page.meta.get("find", {}) if file.page else {}
        for anchor, tags in words.items():
            add(file.src_uri, anchor, tags)
    return found
