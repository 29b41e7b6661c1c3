"""Make the parts of a page: questions, evidence, figures, errata, numbers."""

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path
from xml.etree.ElementTree import Element

from markdown.util import AtomicString
from mkdocs.utils import get_relative_url

from bookbinding import runs
from bookbinding.directives import Context, element
from bookbinding.listings import highlighted, listing_of
from bookbinding.project import Erratum, Project, link
from bookbinding.questions import Question, Test

#: How many tests of a question unfold; the others are links.
TESTS_SHOWN = 4
#: How many of them a question's box names.
TESTS_NAMED = 2
EVIDENCE_PAGE = "evidence.md"
SVG_HEAD = re.compile(r"<svg\b.*?</title>.*?<desc\b.*?</desc>", re.S)
RELATIVE_LINK = re.compile(r"\]\((?!https?:|/)([^)\s]*)\)")
NUMBER = re.compile(r"(\S+)\s+(\S+)(?:\s+(\S+))?")


def question(context: Context, parent: Element, id_: str) -> None:
    """Show a question's box: what is asked, the answer, and the evidence for it.

    The lines below the directive that begin with `>` hold the question and, after a
    line of three dashes, the answer.
    """
    asked = known_question(context.project, id_)
    if not context.quoted:
        element(parent, "h3", asked.title, class_="question", id=id_)
        element(parent, "p", asked.byline, class_="byline")
        return
    words, dashes, answer = context.quoted.partition("\n---\n")
    if not dashes:
        raise ValueError(f"{id_} needs an answer, after a line of three dashes")
    box = element(parent, "div", class_="admonition assignment")
    element(box, "h3", asked.title, class_="question", id=id_)
    element(box, "p", asked.byline, class_="byline")
    context.parse(element(box, "div", class_="asked"), words)
    solution = element(box, "details", class_="solution", open="")
    element(solution, "summary", "Answer")
    context.parse(solution, answer)
    name_evidence(context, element(solution, "p", class_="evidence"), id_)


def name_evidence(context: Context, parent: Element, id_: str) -> None:
    """Name the tests of a question in one line, which leads to their source."""
    tests = context.project.evidence(id_)
    if not tests:
        raise ValueError(f"{id_} has no evidence: no test is marked with it")
    address = link(context.page, EVIDENCE_PAGE, f"evidence-{id_}")
    named = "; ".join(one.claim for one in tests[:TESTS_NAMED])
    more = len(tests) - TESTS_NAMED
    rest = f"; and {more} more" if more > 0 else ""
    element(parent, "strong", "Evidence.").tail = " "
    element(parent, "a", AtomicString(named + rest), href=address).tail = "."


def evidence(context: Context, parent: Element, id_: str) -> None:
    """Show the tests that are marked with a question, in source order."""
    known_question(context.project, id_)
    tests = context.project.evidence(id_)
    if not tests:
        raise ValueError(f"{id_} has no evidence: no test is marked with it")
    for one in tests[:TESTS_SHOWN]:
        show_test(context, parent, one)
    if more := tests[TESTS_SHOWN:]:
        title = f"{len(more)} more test{'' if len(more) == 1 else 's'}"
        folded = folded_evidence(parent, title)
        for one in more:
            item = element(element(folded, "ul"), "li")
            element(item, "a", AtomicString(one.claim), href=line_of(one, context.page))


def test(context: Context, parent: Element, name: str) -> None:
    """Show one test."""
    found = context.project.test(name)
    if found is None:
        raise ValueError(f"no test is called {name!r}")
    show_test(context, parent, found)


def show_test(context: Context, parent: Element, shown: Test, lead: str = "") -> None:
    """Show a test's source, folded, with its command and a link to its line."""
    folded = folded_evidence(parent, f"{lead}{shown.claim}")
    for code, language in ((shown.code, "python"), (shown.command, "sh")):
        made = f"<pre><code>{highlighted(code, language)}\n</code></pre>"
        html = f'<div class="highlight">{made}</div>'
        element(folded, "p", context.store(html))
    place = element(folded, "p", class_="place")
    text = AtomicString(f"{shown.path}, line {shown.line}")
    element(place, "a", text, href=line_of(shown, context.page))


def folded_evidence(parent: Element, title: str) -> Element:
    """Add a box that unfolds."""
    folded = element(parent, "details", class_="evidence")
    element(folded, "summary", AtomicString(title))
    return folded


def line_of(shown: Test, page: str) -> str:
    """Return the address of a test's line."""
    return link(page, listing_of(shown.path), f"L{shown.line}")


def erratum(context: Context, parent: Element, id_: str) -> None:
    """Show an erratum of docs/errata."""
    if id_ not in context.project.errata:
        raise ValueError(f"no erratum {id_!r} in docs/errata")
    show_erratum(context, parent, context.project.errata[id_])


def errata(context: Context, parent: Element, argument: str) -> None:
    """Show all errata of a chapter, folded, at the end of its page."""
    chapter = Path(context.page).stem
    found = [one for one in context.project.errata.values() if one.chapter == chapter]
    if argument or not found:
        raise ValueError(f"write [[errata]] on a chapter's page, not {argument!r}")
    for one in found:
        show_erratum(context, parent, one, folded=True)


def show_erratum(
    context: Context, parent: Element, one: Erratum, *, folded: bool = False
) -> None:
    """Say whose claim it is, what is right, and show the counterexample."""
    project, page = context.project, context.page
    kinds = f"admonition erratum {one.kind}"
    box = element(parent, "details" if folded else "div", class_=kinds)
    element(box, "summary" if folded else "p", one.title, class_="admonition-title")
    byline = element(box, "p", class_="byline", id=f"erratum-{one.id}")
    byline.text = f"{project.documents.get(one.source, one.source)}, "
    if one.question in project.questions:
        home = project.questions[one.question].page
        element(byline, "a", one.question, href=link(page, home, one.question))
    for lead, text in (("Claim", one.claim), ("Right", one.right)):
        context.parse(box, f"**{lead}.** {relinked(text.strip(), one, page)}")
    for name in one.tests:
        if found := project.test(name):
            show_test(context, box, found, lead="Counterexample: ")


def relinked(text: str, one: Erratum, page: str) -> str:
    """Make links that are relative to the chapter's page work on another page."""
    home = f"chapters/{one.chapter}.md"

    def replaced(found: re.Match[str]) -> str:
        path, _, anchor = found[1].partition("#")
        return f"]({link(page, f'chapters/{path}' if path else home, anchor)})"

    return text if page == home else RELATIVE_LINK.sub(replaced, text)


def figure(context: Context, parent: Element, argument: str) -> None:
    """Show a figure for light and dark, with its caption and how it was made."""
    name, _, alt = (part.strip() for part in argument.partition(":"))
    run, _, stem = name.rpartition("/")
    folder = context.project.docs / "figures" / run
    there = sorted(path.name[:-10] for path in folder.glob("*-light.svg"))
    if stem not in there or not (folder / f"{stem}-dark.svg").is_file():
        raise ValueError(f"no figure {name}; there are {', '.join(there) or 'none'}")
    if len(alt.split()) < 3:
        raise ValueError(f"figure {name} needs an alt text that says what is seen")
    made = made_by(known_run(context, run), run, context.page)
    width, height = size_of(folder / f"{stem}-light.svg")
    shown = element(parent, "figure", class_="book", id=figure_id(name))
    images = element(shown, "p")
    for mode in ("light", "dark"):
        address = link(context.page, f"figures/{name}-{mode}.svg", f"only-{mode}")
        holder = images
        if (folder / f"{stem}-still-{mode}.svg").is_file():
            # A page's wish for less motion does not reach into its images.
            holder = element(images, "picture")
            # MkDocs turns paths into addresses, but not those of a srcset.
            here = re.sub(r"(index)?\.md$", lambda x: "" if x[1] else "/", context.page)
            calm = get_relative_url(f"figures/{name}-still-{mode}.svg", here)
            wish = "(prefers-reduced-motion: reduce), print"
            element(holder, "source", srcset=calm, media=wish)
        image = element(holder, "img", alt=alt, src=address, loading="lazy")
        image.attrib |= {"width": str(width), "height": str(height)}
    add_caption(context, shown, name, f"{made}\n{{ .made }}")


def diagram(context: Context, parent: Element, argument: str) -> None:
    """Show drawings of docs/diagrams side by side, with their caption."""
    names = argument.split()
    stacked = names[-1] == "stacked"
    names = names[:-1] if stacked else names
    shown = element(parent, "figure", class_="diagram", id=figure_id(names[0]))
    panels = element(shown, "div", class_="panels stacked" if stacked else "panels")
    for name in names:
        path = context.project.docs / "diagrams" / f"{name}.svg"
        if not path.is_file():
            raise ValueError(f"no diagram {name}.svg in docs/diagrams")
        drawn = path.read_text("utf-8").strip()
        if SVG_HEAD.match(drawn) is None:
            raise ValueError(f"diagram {name} needs a <title> and a <desc>")
        # Blank lines would end the HTML for Markdown.
        drawn = re.sub(r"\n\s*(?=\n)", "", drawn)
        element(panels, "div", context.store(drawn), class_="panel")
    add_caption(context, shown, names[0])


def explorable(context: Context, parent: Element, name: str) -> None:
    """Show a drawing that the script docs/explorables/<its stem>.mjs brings to life."""
    stem = name.rpartition("/")[2]
    if not (context.project.docs / "explorables" / f"{stem}.mjs").is_file():
        raise ValueError(f"no script {stem}.mjs in docs/explorables")
    diagram(context, parent, name)
    parent[-1].attrib |= {"class": "diagram explorable", "data-explorable": stem}


def add_caption(
    context: Context, shown: Element, name: str, made: str | None = None
) -> None:
    """Add the quoted caption, and the figure's number if a chapter shows it."""
    if not context.quoted:
        raise ValueError(f"figure {name} needs a caption: lines that begin with >")
    caption = element(shown, "figcaption")
    page, number = context.project.figures.get(name, ("", ""))
    if page == context.page:
        context.parse(caption, f"**Figure {number}.** {context.quoted}")
    else:
        context.parse(caption, context.quoted)
    if made is not None:
        context.parse(caption, made)


def fig(context: Context, name: str) -> Element:
    """Refer to a figure by its number."""
    if name not in context.project.figures:
        raise ValueError(f"no chapter shows a figure {name!r}")
    page, number = context.project.figures[name]
    here = page == context.page
    address = "" if here else link(context.page, page)
    made = Element("a", {"href": f"{address}#{figure_id(name)}"})
    made.text = AtomicString(f"figure {number}")
    return made


def figure_id(name: str) -> str:
    """Return the anchor of a figure."""
    return f"figure-{name.replace('/', '-')}"


def code(context: Context, parent: Element, argument: str) -> None:
    """Show functions or classes of the package as they are, without docstrings.

    The argument names the module and then the objects, such as
    `attention softmax` or `transformer.parts LayerNorm.forward`.
    """
    module, *names = argument.split()
    path = f"src/transformers_hw/{module.replace('.', '/')}.py"
    file = context.project.root / path
    if not file.is_file() or not names:
        raise ValueError(f"write [[code module object ...]], not {argument!r}")
    text = file.read_text("utf-8")
    shown = "\n\n".join(without_docstring(text, name) for name in names)
    made = f"<pre><code>{highlighted(shown)}\n</code></pre>"
    html = f'<div class="highlight">{made}</div>'
    element(parent, "p", context.store(html))
    line = definition(ast.parse(text), names[0]).lineno
    address = link(context.page, listing_of(path), f"L{line}")
    place = element(parent, "p", class_="place")
    element(place, "a", AtomicString(path), href=address)


def definition(tree: ast.AST, name: str) -> ast.FunctionDef | ast.ClassDef:
    """Return the function or class of a dotted name."""
    for part in name.split("."):
        kinds = (ast.FunctionDef, ast.ClassDef)
        # The last one: what comes before it may be overloads.
        found = [x for x in getattr(tree, "body", []) if isinstance(x, kinds)]
        found = [x for x in found if x.name == part]
        if not found:
            raise ValueError(f"there is no {name}")
        tree = found[-1]
    return tree  # type: ignore[return-value]


def without_docstring(text: str, name: str) -> str:
    """Return the source of a function or class without its docstrings."""
    node = definition(ast.parse(text), name)
    lines = text.splitlines()
    dropped: set[int] = set()
    for inner in ast.walk(node):
        body = getattr(inner, "body", None)
        kinds = (ast.FunctionDef, ast.ClassDef)
        if isinstance(inner, kinds) and ast.get_docstring(inner) and body:
            first = body[0]
            dropped |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
            after = first.end_lineno or first.lineno
            if len(body) > 1 and not lines[after].strip():
                dropped.add(after + 1)
    kept = [
        lines[number - 1]
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
        if number not in dropped
    ]
    return textwrap.dedent("\n".join(kept))


def made_by(run: runs.Run, name: str, page: str) -> str:
    """Say how a run's figures were made, in Markdown."""
    chapter, _, _ = name.partition("/")
    script = link(page, listing_of(f"examples/{chapter}.py"))
    record = link(page, f"figures/{name}/run.json")
    return (
        f"Made by [`{run['command']}`]({script}) on a {runs.device(run)} in "
        f"{runs.duration(run)} ([record]({record}))."
    )


def timed(run: runs.Run, name: str, page: str) -> str:
    """Say how long a run took, with a link to its record, in Markdown."""
    record = link(page, f"figures/{name}/run.json")
    return f"`{run['command']}`: {runs.duration(run)} ([record]({record}))"


def size_of(image: Path) -> tuple[int, int]:
    """Return an image's size in pixels, so that the page reserves its space."""
    box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', image.read_text("utf-8"))
    if box is None:
        raise ValueError(f"{image.name} has no viewBox that begins at 0 0")
    return round(float(box[1]) * 4 / 3), round(float(box[2]) * 4 / 3)


def number(context: Context, argument: str) -> Element:
    """Print a number that a run recorded."""
    parts = NUMBER.fullmatch(argument)
    if parts is None:
        raise ValueError(f"write [[number chapter path format]], not {argument!r}")
    chapter, path, spec = parts[1], parts[2], parts[3] or ""
    value = runs.value_at(known_run(context, chapter), path)
    made = Element("data", {"value": str(value)})
    made.text = AtomicString(runs.formatted(value, spec))
    return made


def minutes(context: Context, chapter: str) -> Element:
    """Say how long a chapter takes to read."""
    if chapter not in context.project.chapters:
        raise ValueError(f"there is no chapter {chapter!r}")
    made = Element("span")
    made.text = AtomicString(str(context.project.minutes(chapter)))
    return made


def cite(context: Context, argument: str) -> Element:
    """Name a work, and the place in it."""
    key, _, place = argument.partition(" ")
    if key not in context.project.references:
        raise ValueError(f"references.toml has no {key!r}")
    cited = Element("span", {"class": "cite"})
    address = link(context.page, "references.md", key)
    work = context.project.references[key]
    text = AtomicString(f"{work['short']} ({work['year']})")
    place = place.strip(" ,")
    element(cited, "a", text, href=address).tail = f", {place}" if place else ""
    return cited


def known_run(context: Context, chapter: str) -> runs.Run:
    """Return the record of a chapter's run."""
    run = runs.read_run(context.project.docs, chapter)
    if run is None:
        raise ValueError(f"no run of {chapter!r} has been made: no run.json")
    return run


def known_question(project: Project, id_: str) -> Question:
    """Return the question of an id."""
    if id_ not in project.questions:
        raise ValueError(f"questions.toml has no {id_!r}")
    return project.questions[id_]
