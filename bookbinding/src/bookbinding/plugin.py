"""The plugin: which part does its work at which moment of the build."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config import config_options as opt
from mkdocs.config.base import Config
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import (
    BasePlugin,
    CombinedEvent,
    event_priority,
    get_plugin_logger,
)
from mkdocs.structure.files import Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page

from bookbinding import (
    exercises,
    glossary,
    ledger,
    listings,
    lists,
    notebooks,
    parts,
    plain,
    runs,
    search,
)
from bookbinding.directives import Directives
from bookbinding.formulas import render_formulas
from bookbinding.project import Project

NO_ALT = re.compile(r'<img\b(?![^>]*\balt="[^"]*\w)[^>]*>')
SPACE_AT_END = re.compile(r"\s+(</a>|</autoref>)")
# A search for a word should lead to the text, not to every listing of code.
CODE = re.compile(r'<details class="(?:mkdocstrings-source|evidence)"')
NOT_PROSE = re.compile(
    r'<(pre|code|data|svg|figcaption)\b.*?</\1>|<(span|div) class="arithmatex">'
    r".*?</\2>|<[^>]*>",
    re.S,
)
# Folds may stand in folds: the innermost go first.
FOLD = re.compile(r"<details\b(?:(?!<details\b).)*?</details>", re.S)
# What the theme brings along for its developers, and for searching in other languages.
UNUSED = ("assets/**/*.map", "assets/javascripts/lunr/**/*.js")
LISTED_LAST = re.compile(r"\[\[list (?:questions|references)\]\]")

log = get_plugin_logger("bookbinding")


class Settings(Config):
    """The plugin's settings in mkdocs.yml."""

    macros = opt.Type(dict, default={})
    """KaTeX macros, by name."""


class Bookbinding(BasePlugin[Settings]):
    """Tie questions to answers, tests, figures and records."""

    root: Path
    project: Project

    def on_config(self, config: MkDocsConfig) -> None:
        """Register the directives and the glossary's terms."""
        self.root = Path(config.config_file_path).parent
        self.directives = Directives(
            blocks={
                "question": parts.question,
                "evidence": parts.evidence,
                "test": parts.test,
                "figure": parts.figure,
                "diagram": parts.diagram,
                "explorable": parts.explorable,
                "code": parts.code,
                "erratum": parts.erratum,
                "errata": parts.errata,
                "exercise": exercises.exercise,
                "list": lists.listed,
            },
            inline={
                "number": parts.number,
                "cite": parts.cite,
                "fig": parts.fig,
                "minutes": parts.minutes,
            },
        )
        config.markdown_extensions.append(self.directives)  # type: ignore[arg-type]
        terms = glossary.abbreviations(Path(config.docs_dir))
        config.mdx_configs["abbr"] = {"glossary": terms}
        if not config.repo_url:
            config.edit_uri = None  # without a forge, there is nowhere to edit

    def on_files(self, files: Files, *, config: MkDocsConfig) -> None:
        """Read the project anew, and add listings of the source that pages link to."""
        self.project = Project(self.root, Path(config.docs_dir))
        self.project.exercises = exercises.read_exercises(self.root)
        self.directives.project = self.project
        listings.add_listings(files, config, self.project.sources)

    def on_nav(self, nav: Navigation, **_: Any) -> None:
        """Remember the order of the pages."""
        self.nav = nav

    def on_page_markdown(self, markdown: str, *, page: Page, **_: Any) -> None:
        """Tell the directives which page they are on."""
        self.directives.page = page.file.src_uri

    def on_page_content(
        self, html: str, *, page: Page, config: MkDocsConfig, files: Files
    ) -> str | None:
        """Fit in what other plugins made, note the answers, and check the text."""
        name = page.file.src_uri
        if name.startswith(listings.FOLDER):
            return listings.listing(html, page, self.root)
        if name.endswith(".ipynb"):
            html = notebooks.adapt(html, page, files, config)
        self.project.note_answers(html, name)
        if name.startswith("chapters/"):
            self.project.note_citations(html, name, str(page.title or ""))
        for image in NO_ALT.findall(html):
            log.warning("%s: no alt text: %s", name, image[:200])
        self.warn_of_copied_numbers(html, name)
        html = SPACE_AT_END.sub(r"\1", glossary.first_in_section(html))
        return CODE.sub(r'\g<0> data-search-exclude="1"', html)

    def warn_of_copied_numbers(self, html: str, name: str) -> None:
        """Warn of numbers that a run recorded and a hand copied into a chapter."""
        folder, _, chapter = name.removesuffix(".md").rpartition("/")
        found = runs.names(self.project.docs, chapter) if folder == "chapters" else []
        while FOLD.search(html):
            html = FOLD.sub(" ", html)
        prose = NOT_PROSE.sub(" ", html)
        for one in found:
            run = runs.read_run(self.project.docs, one) or {}
            for typed, path, spec in runs.copied_numbers(prose, run):
                if typed in ledger.published(self.project.docs):
                    continue  # somebody else's number, which ours may equal
                use = f"[[number {one} {path} {spec}]]"
                log.warning("%s: %s is typed by hand: write %s", name, typed, use)

    @event_priority(-50)  # after mkdocs-jupyter, which copies the notebooks
    def on_post_page(self, output: str, *, page: Page, config: MkDocsConfig) -> None:
        """Say in a notebook to download where its package is."""
        if config.repo_url and page.file.src_uri.endswith(".ipynb"):
            notebooks.fill_in_repository(page, config.repo_url)

    @event_priority(50)
    def _list_last(self, env: Any, *, config: MkDocsConfig, files: Files) -> None:
        """Report what is missing, and make the lists that need all other pages."""
        self.files = files
        for gap in self.project.gaps():
            log.warning("%s", gap)
        for file in files.documentation_pages():
            page = file.page
            if page and LISTED_LAST.search(page.markdown or ""):
                given: Any = {"page": page, "config": config, "files": files}
                config.plugins.on_page_markdown(page.markdown or "", **given)
                page.render(config, files)
                content = page.content or ""
                page.content = config.plugins.on_page_content(content, **given)

    @event_priority(-60)
    def _render_formulas(self, env: Any, *, config: MkDocsConfig, files: Files) -> None:
        pages = [file.page for file in files.documentation_pages() if file.page]
        render_formulas(pages, self.config.macros)

    on_env = CombinedEvent(_list_last, _render_formulas)

    def on_post_build(self, *, config: MkDocsConfig, **_: Any) -> None:
        """Tag what the search should find, and write the pages as Markdown, too."""
        for unused in UNUSED:
            for path in Path(config.site_dir).glob(unused):
                path.unlink()
        exercises.bring_along(self.root, Path(config.site_dir))
        search.add_tags(Path(config.site_dir), self.files, self.project)
        plain.write(config, self.files, self.nav, self.project)
