r"""Turn TeX into finished HTML while the site is built.

`pymdownx.arithmatex` marks the formulas of pages and docstrings, and KaTeX, in an
embedded JavaScript engine, renders them: a page needs no script and never flashes raw
TeX. A formula that KaTeX rejects is a warning, hence an error in a strict build; so is
TeX that no extension took for a formula.

A displayed formula with `\label{eq:name}` is numbered, within its chapter where the
page's front matter says `chapter: 3`; `$\eqref{eq:name}$` links to it from any page.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import quickjs
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.pages import Page
from mkdocs.structure.toc import AnchorLink
from mkdocs.utils import get_relative_url

KATEX = Path(__file__).with_name("vendor") / "katex.min.js"
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

log = get_plugin_logger("formulas")


class KaTeX:
    """KaTeX with some macros."""

    def __init__(self, macros: str) -> None:
        self.done: dict[tuple[str, bool], str] = {}
        self.engine = quickjs.Context()
        self.engine.eval(KATEX.read_text("utf-8"))
        # As JSON, because the engine cannot return a string built by pieces.
        self.render = self.engine.eval(
            "(tex, displayMode) => JSON.stringify(katex.renderToString(tex, "
            f"{{displayMode, throwOnError: true, strict: 'error', macros: {macros}}}))"
        )

    def __call__(self, tex: str, *, display: bool, page: Page) -> str:
        """Return a formula's HTML; warn, and show the TeX, if it has a mistake."""
        if (tex, display) not in self.done:
            try:
                made = json.loads(self.render(tex, display))
            except quickjs.JSException as error:
                log.warning("%s: %s", page.file.src_uri, str(error).splitlines()[0])
                return f"<code>{html.escape(tex)}</code>"
            # Search would otherwise find every formula twice: as glyphs, as MathML.
            mathml = 'class="katex-mathml"'
            excluded = f'{mathml} data-search-exclude="1"'
            self.done[tex, display] = made.replace(mathml, excluded, 1)
        return self.done[tex, display]


@cache
def katex_with(macros: str) -> KaTeX:
    """Return KaTeX with macros in JSON; `mkdocs serve` keeps it from build to build."""
    return KaTeX(macros)


#: The page's address and the number of each labeled formula.
Labels = dict[str, tuple[str, str]]


def render_formulas(pages: list[Page], macros: dict[str, str]) -> None:
    """Number the labeled formulas of all pages, then render every formula."""
    katex = katex_with(json.dumps(macros))
    labels = number(pages)
    for page in pages:
        content = page.content or ""
        warn_of_stray_tex(page, content)
        page.content = FORMULA.sub(
            lambda found, page=page: formula(found, page, labels, katex), content
        )
        render_titles(page.toc, page, katex)


def number(pages: Iterable[Page]) -> Labels:
    """Return each label's page and number."""
    labels: Labels = {}
    for page in pages:
        chapter = page.meta.get("chapter")
        prefix = f"{chapter}." if chapter else ""
        count = 0
        for found in FORMULA.finditer(page.content or ""):
            for label in LABEL.findall(found["tex"]):
                count += 1
                if label in labels:
                    log.warning("%s: label %s is used twice", page.file.src_uri, label)
                labels[label] = page.url, f"{prefix}{count}"
    return labels


def formula(found: re.Match[str], page: Page, labels: Labels, katex: KaTeX) -> str:
    """Return one formula's finished HTML."""
    tag, after = found["tag"], found["after"]
    tex = html.unescape(found["tex"]).strip()
    if reference := REFERENCE.fullmatch(tex):
        return equation_link(reference[1], page, labels) + after
    anchor = ""
    if label := LABEL.search(tex):
        anchor = f' id="{html.escape(label[1])}"'
        tex = LABEL.sub(lambda m: rf"\tag{{{labels[m[1]][1]}}}", tex)
    body = katex(tex, display=tag == "div", page=page)
    made = f'<{tag} class="formula"{anchor}>{body}</{tag}>{after}'
    # No line may begin with the comma after a formula that cannot be broken.
    if after and body.count('class="katex-base"') == 1:
        return f'<span class="together">{made}</span>'
    return made


def equation_link(label: str, page: Page, labels: Labels) -> str:
    """Return a link to a numbered formula."""
    if label not in labels:
        log.warning("%s: no formula is labeled %s", page.file.src_uri, label)
        return "(?)"
    url, given = labels[label]
    target = "" if url == page.url else get_relative_url(url, page.url)
    return f'<a href="{target}#{html.escape(label)}">({given})</a>'


def warn_of_stray_tex(page: Page, content: str) -> None:
    """Warn of TeX outside formulas and code, which a reader would see raw."""
    shown = VERBATIM.sub("", FORMULA.sub("", content))
    if stray := STRAY_TEX.search(shown):
        near = shown[stray.start() : stray.start() + 40]
        hint = "is a blank line missing before $$, or an r before a docstring?"
        log.warning("%s: raw TeX near %r (%s)", page.file.src_uri, near, hint)


def render_titles(links: Iterable[AnchorLink], page: Page, katex: KaTeX) -> None:
    """Render the formulas of headings in the table of contents too."""
    for item in links:
        item.title = IN_TITLE.sub(
            lambda m: katex(html.unescape(m[1]), display=False, page=page), item.title
        )
        render_titles(item.children, page, katex)
