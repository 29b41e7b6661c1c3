r"""Turn TeX into finished HTML while the site is built.

`pymdownx.arithmatex` marks the formulas of Markdown pages and docstrings, and this
hook replaces each by what KaTeX makes of it, so that a page needs no script and
never flashes raw TeX. A formula that KaTeX rejects is a warning, hence an error in a
strict build. So is TeX that no extension took for a formula.

A display formula holding `\label{eq:name}` is numbered, within its chapter where the
page's front matter says `chapter: 3`; `$\eqref{eq:name}$` links to it from any page.
"""

from __future__ import annotations

import hashlib
import html
import json
import re
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import quickjs
from keeping import Kept
from mkdocs.plugins import event_priority, get_plugin_logger
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page
from mkdocs.structure.toc import AnchorLink
from mkdocs.utils import get_relative_url

KATEX = Path(__file__).parents[1] / "vendor/katex/katex.min.js"
MACROS = {
    r"\R": r"\mathbb{R}",
    r"\softargmax": r"\operatorname{softargmax}",
    r"\attention": r"\operatorname{attention}",
}

FORMULA = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\s*\\[(\[]'
    r"(?P<tex>.*?)"
    r"\\[)\]]\s*</(?P=tag)>(?P<after>[.,;:!?)]*)",
    re.S,
)
IN_TITLE = re.compile(r"\\\((.*?)\\\)", re.S)
LABEL = re.compile(r"\\label\{([^}]+)\}")
REFERENCE = re.compile(r"\\eqref\{([^}]+)\}")
VERBATIM = re.compile(r"<(pre|code|script|style)\b.*?</\1>", re.S)
STRAY_TEX = re.compile(r"\$\$|\\\(|\\\[|\\begin\{|\$\\[a-z]+")
LISTING = re.compile(r'<details class="(mkdocstrings-source|evidence)"')

log = get_plugin_logger("formulas")


class KaTeX:
    """KaTeX in an embedded JavaScript engine; equal formulas are rendered once."""

    def __init__(self, root: Path) -> None:
        self.program = KATEX.read_text("utf-8")
        self.keep = Kept(root)
        digest = hashlib.sha256(self.program.encode()).hexdigest()
        self.recipe = f"{digest} {json.dumps(MACROS)}"
        self.done: dict[tuple[str, bool], str] = {}

    @cached_property
    def render(self) -> Any:
        """The function that renders, in an engine that is started when needed."""
        engine = quickjs.Context()
        engine.eval(self.program)
        # As JSON, because the engine cannot hand over a string built by pieces.
        engine.eval(
            "const render = (tex, displayMode) => JSON.stringify(katex.renderToString("
            "tex, {displayMode, throwOnError: true, strict: 'error', "
            f"macros: {json.dumps(MACROS)}}}))"
        )
        return engine.eval("render")

    def __call__(self, tex: str, *, display: bool, where: str) -> str:
        """Give a formula's HTML; warn, and show the TeX, if it has a mistake."""
        if (tex, display) not in self.done:
            try:
                made = self.keep(
                    f"formula {self.recipe} {display} {tex}",
                    lambda: json.loads(self.render(tex, display)),
                )
            except quickjs.JSException as error:
                log.warning("%s: %s", where, str(error).splitlines()[0])
                return f"<code>{html.escape(tex)}</code>"
            # Search would otherwise find every formula twice: as glyphs, as MathML.
            self.done[tex, display] = made.replace(
                'class="katex-mathml"',
                'class="katex-mathml" data-search-exclude="1"',
                1,
            )
        return self.done[tex, display]


Places = dict[str, tuple[str, str]]


@event_priority(-50)
def on_env(env: Any, *, config: Any, files: Files) -> None:
    """Number the labelled formulas of all pages, then render every formula.

    This is the first moment at which all pages' HTML exists, docstrings included.
    """
    katex = KaTeX(Path(config.config_file_path).parent)
    pages = [file.page for file in files.documentation_pages() if file.page]
    places = number(pages)
    for page in pages:
        content = page.content or ""
        warn_of_stray_tex(page, content)
        content = FORMULA.sub(
            lambda m, page=page: formula(m, page, places, katex), content
        )
        # A search for a word should lead to the text, not to every listing of code.
        page.content = LISTING.sub(r'\g<0> data-search-exclude="1"', content)
        render_titles(page.toc, page, katex)


def number(pages: Iterable[Page]) -> Places:
    """Give each label its page's address and its number."""
    places: Places = {}
    for page in pages:
        chapter = page.meta.get("chapter")
        prefix = f"{chapter}." if chapter else ""
        count = 0
        for match in FORMULA.finditer(page.content or ""):
            for label in LABEL.findall(match["tex"]):
                count += 1
                if label in places:
                    log.warning("%s: label %s is used twice", where(page), label)
                places[label] = page.url, f"{prefix}{count}"
    return places


def formula(match: re.Match[str], page: Page, places: Places, katex: KaTeX) -> str:
    """Give one formula's finished HTML."""
    tag, after = match["tag"], match["after"]
    tex = html.unescape(match["tex"]).strip()
    if reference := REFERENCE.fullmatch(tex):
        return link(reference[1], page, places) + after
    anchor = ""
    if label := LABEL.search(tex):
        anchor = f' id="{html.escape(label[1])}"'
        tex = LABEL.sub(lambda m: rf"\tag{{{places[m[1]][1]}}}", tex)
    body = katex(tex, display=tag == "div", where=where(page))
    made = f'<{tag} class="formula"{anchor}>{body}</{tag}>{after}'
    # No line may begin with the comma after a formula that cannot be broken.
    if after and body.count('class="katex-base"') == 1:
        return f'<span class="together">{made}</span>'
    return made


def link(label: str, page: Page, places: Places) -> str:
    """Give a link to a numbered formula."""
    if label not in places:
        log.warning("%s: no formula is labelled %s", where(page), label)
        return "(?)"
    url, given = places[label]
    target = "" if url == page.url else get_relative_url(url, page.url)
    return f'<a href="{target}#{html.escape(label)}">({given})</a>'


def warn_of_stray_tex(page: Page, content: str) -> None:
    """Warn of TeX outside formulas and code, which a reader would see raw."""
    shown = VERBATIM.sub("", FORMULA.sub("", content))
    if stray := STRAY_TEX.search(shown):
        near = shown[stray.start() : stray.start() + 40]
        hint = "is a blank line missing before $$, or an r before a docstring?"
        log.warning("%s: TeX left as it is near %r (%s)", where(page), near, hint)


def render_titles(links: Iterable[AnchorLink], page: Page, katex: KaTeX) -> None:
    """Render the formulas of headings in the table of contents too."""
    for item in links:
        item.title = IN_TITLE.sub(
            lambda m: katex(html.unescape(m[1]), display=False, where=where(page)),
            item.title,
        )
        render_titles(item.children, page, katex)


def where(page: Page) -> str:
    """Name a page in messages by its file."""
    return page.file.src_uri
