"""Write every page as Markdown too, and llms.txt, which lists them with a line each.

Directives become the text that stands for them: numbers, citations, questions, code. A
figure becomes its description.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Callable
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page
from mkdocs.utils.meta import get_data

from bookbinding import glossary, parts, runs
from bookbinding.listings import FOLDER
from bookbinding.project import Project

FENCE = re.compile(r"(^ *(?:```|~~~).*?^ *(?:```|~~~)[ ]*$)", re.M | re.S)
DIRECTIVE = re.compile(r"\[\[([a-z]+)\b\s*([^\[\]]*(?:\[[^\[\]]*\][^\[\]]*)*)\]\]")
CITE = re.compile(r"\[\[cite ([^\]]+)\]\]")
SNIPPET = re.compile(r'^ *--8<-- "([^":]+)(?::(\w+))?"$', re.M)
MODULE = re.compile(r"^::: ([\w.]+)\n(?:^    .*\n?)*", re.M)
LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+\.md)(#[^)\s]*)?\)")
SVG_TEXT = re.compile(r"<(title|desc)\b[^>]*>(.*?)</\1>", re.S)
ATTRIBUTES = re.compile(r"[ \n]?\{ ?[#.:][^{}\n]*\}")
ANSWER = re.compile(r"^(> ?)---$", re.M)
HTML = re.compile(r"^ *</?(?:div|figure|figcaption|section)\b[^>]*>\n?", re.M)
SENTENCE = re.compile(r"^(?:[^.\n]|\.(?=\S)|\n(?!\n))+\.", re.M)


def write(
    config: MkDocsConfig, files: Files, nav: Navigation, project: Project
) -> None:
    """Write the pages beside their HTML, and the list of them."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    for item in nav.items:
        pages = [item] if isinstance(item, Page) else list(_pages(item))
        if len(pages) > 1:
            lines += ["", f"## {item.title}", ""]
        for page in pages:
            line = _write_page(page, Path(config.site_dir), files, project)
            lines += [line] if line else []
    text = "\n".join(lines) + "\n"
    (Path(config.site_dir) / "llms.txt").write_text(text, "utf-8")


def _pages(section: object) -> list[Page]:
    children = getattr(section, "children", None) or []
    return [
        page
        for child in children
        for page in ([child] if isinstance(child, Page) else _pages(child))
    ]


def _write_page(page: Page, site: Path, files: Files, project: Project) -> str:
    file = page.file
    if not file.src_uri.endswith(".md") or file.src_uri.startswith(FOLDER):
        return ""
    source, head = get_data(file.content_string)
    text = resolved(source, file, files, project)
    target = site / plain_address(file)
    target.write_text(text, "utf-8")
    about = head.get("description") or described(file, text, project)
    return f"- [{page.title}]({plain_address(file)}): {about}"


def plain_address(file: File) -> str:
    """Return the address of a page's Markdown, below the site's."""
    return file.dest_uri.removesuffix(".html") + ".md"


def described(file: File, text: str, project: Project) -> str:
    """Say what a page is about: what its module says, or its own first sentence."""
    path = source_of(project.root, f"transformers_hw.{Path(file.src_uri).stem}")
    if path.is_file():
        docstring = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
        return docstring.split("\n\n")[0].replace("\n", " ")
    prose = re.sub(r"^[#{<`|!].*$", "", text, flags=re.M).strip()
    found = SENTENCE.match(prose)
    return " ".join((found[0] if found else prose[:200]).replace("*", "").split())


def resolved(text: str, file: File, files: Files, project: Project) -> str:
    """Return a page's Markdown with its directives resolved."""
    text = SNIPPET.sub(lambda found: _snippet(found[1], found[2], project), text)
    text = MODULE.sub(lambda found: _module(found[1], project), text)
    pieces = FENCE.split(text)
    # The odd ones are fences, where nothing is a directive.
    for place in range(0, len(pieces), 2):
        piece = DIRECTIVE.sub(
            lambda found: _directive(found, file, project), pieces[place]
        )
        piece = LINK.sub(lambda found: _link(found, file, files), piece)
        piece = ATTRIBUTES.sub("", HTML.sub("", piece))
        pieces[place] = ANSWER.sub(r"\1**Answer.**", piece)
    return "".join(pieces).strip() + "\n"


def source_of(root: Path, name: str) -> Path:
    """Return the file of a module, or of a package's beginning."""
    path = root / "src" / name.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _snippet(path: str, section: str | None, project: Project) -> str:
    text = (project.root / path).read_text("utf-8")
    if path.endswith(".svg"):
        return _drawing(text)
    if section:
        start, end = (
            f"<!-- --8<-- [{edge}:{section}] -->" for edge in ("start", "end")
        )
        text = text.partition(start)[2].partition(end)[0]
    return text.strip()


def _drawing(svg: str) -> str:
    texts = [text for _, text in SVG_TEXT.findall(svg)]
    return " ".join(f"(Drawing: {'. '.join(texts)})".split()) if texts else ""


def _module(name: str, project: Project) -> str:
    path = source_of(project.root, name)
    code = path.read_text("utf-8").strip() if path.is_file() else ""
    return f"```python\n{code}\n```\n"


def _link(found: re.Match[str], file: File, files: Files) -> str:
    folder = posixpath.dirname(file.src_uri)
    target = files.get_file_from_path(
        posixpath.normpath(posixpath.join(folder, found[1]))
    )
    if target is None or target.src_uri.startswith(FOLDER):
        return found[0]
    here = posixpath.dirname(file.dest_uri) or "."
    return f"]({posixpath.relpath(plain_address(target), here)}{found[2] or ''})"


def _directive(found: re.Match[str], file: File, project: Project) -> str:
    name, argument = found[1], " ".join(found[2].split())
    makers: dict[str, Callable[[str, Project], str]] = {
        "question": _question,
        "evidence": _evidence,
        "test": lambda name, project: _claims([project.test(name)]),
        "figure": lambda text, _: f"(Figure: {text.partition(':')[2].strip()})",
        "diagram": _diagram,
        "explorable": _diagram,
        "code": _code,
        "errata": lambda _, project: _errata(Path(file.src_uri).stem, project),
        "erratum": lambda id_, project: _erratum(id_, project),
        "list": _list,
        "number": _number,
        "cite": _cite,
        "fig": lambda name, project: (
            f"figure {project.figures.get(name, ('', '?'))[1]}"
        ),
        "minutes": lambda chapter, project: str(project.minutes(chapter)),
    }
    try:
        return makers[name](argument, project)
    except (KeyError, ValueError):
        return found[0]  # the build has already warned of it


def _question(id_: str, project: Project) -> str:
    one = project.questions[id_]
    return f"### {one.title}\n\n{one.byline}\n"


def _evidence(id_: str, project: Project) -> str:
    return _claims(project.evidence(id_))


def _claims(tests: list) -> str:
    return "\n".join(f"- {one.claim} (`{one.path}`)" for one in tests if one)


def _diagram(argument: str, project: Project) -> str:
    names = [name for name in argument.split() if name != "stacked"]
    paths = [project.docs / f"diagrams/{name}.svg" for name in names]
    return "\n".join(_drawing(path.read_text("utf-8")) for path in paths)


def _code(argument: str, project: Project) -> str:
    module, *names = argument.split()
    path = project.root / f"src/transformers_hw/{module.replace('.', '/')}.py"
    text = path.read_text("utf-8")
    shown = "\n\n".join(parts.without_docstring(text, name) for name in names)
    return f"```python\n{shown}\n```"


def _errata(chapter: str, project: Project) -> str:
    found = [one.id for one in project.errata.values() if one.chapter == chapter]
    return "\n".join(_erratum(id_, project) for id_ in found)


def _erratum(id_: str, project: Project) -> str:
    one = project.errata[id_]
    text = f"- **{one.title}.** Claim: {one.claim.strip()} Right: {one.right.strip()}"
    cited = CITE.sub(lambda found: _cite(found[1], project), text)
    return cited.replace("\n", "\n  ")


def _list(name: str, project: Project) -> str:
    if name in ("questions", "asked"):
        return "\n".join(
            f"- `{one.id}` {one.title}"
            + (f": {one.answer}" if name == "questions" else "")
            for one in project.questions.values()
        )
    if name == "terms":
        terms = sorted(glossary.read(project.docs), key=lambda one: one.name.casefold())
        return "\n".join(f"- **{one.name}**: {one.meaning}" for one in terms)
    if name == "references":
        works = project.references.values()
        line = "- {authors} ({year}). [{title}]({url}). {venue}. "
        return "\n".join(line.format(**one) + one.get("note", "") for one in works)
    if name == "errata":
        return "\n".join(_erratum(id_, project) for id_ in project.errata)
    return "(This list is on the page itself.)"


def _number(argument: str, project: Project) -> str:
    chapter, path, *spec = argument.split()
    run = runs.read_run(project.docs, chapter) or {}
    return runs.formatted(runs.value_at(run, path), spec[0] if spec else "")


def _cite(argument: str, project: Project) -> str:
    key, _, place = argument.partition(" ")
    work = project.references[key]
    return f"{work['short']} ({work['year']})" + (f", {place}" if place else "")
