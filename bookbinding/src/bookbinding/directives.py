"""Turn the `[[name argument]]` of the pages into HTML: a Python-Markdown extension.

README.md lists the directives. Code and formulas are left alone, since Python-Markdown
has taken them out before these processors run.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from xml.etree.ElementTree import Element, SubElement

from markdown import Markdown
from markdown.blockparser import BlockParser
from markdown.blockprocessors import BlockProcessor
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor
from markdown.util import AtomicString
from mkdocs.plugins import get_plugin_logger

from bookbinding.project import Project, unquoted

BLOCK = re.compile(
    r" {0,3}\[\[(?P<name>[a-z]+)\b(?P<argument>.*?)\]\][ ]*(?:\n|\Z)"
    r"(?P<quoted>(?:[ ]*>[^\n]*(?:\n|\Z))*)(?P<rest>.*)\Z",
    re.S,
)
INLINE = r"\[\[([a-z]+)\b([^\[\]]*)\]\]"

log = get_plugin_logger("bookbinding")


@dataclass
class Context:
    """Where a directive stands: on which page, and what is quoted below it."""

    project: Project
    page: str
    md: Markdown
    quoted: str = ""

    def parse(self, parent: Element, markdown: str) -> None:
        """Add what some Markdown says. It cannot hold fences; `store` their HTML."""
        self.md.parser.parseChunk(parent, markdown)

    def store(self, html: str) -> str:
        """Keep HTML as it is; return the text that stands for it in Markdown."""
        return self.md.htmlStash.store(html)


class Directives(Extension):
    """The block and inline directives. The plugin sets the project and the page."""

    project: Project
    page: str

    def __init__(
        self,
        blocks: dict[str, Callable[[Context, Element, str], None]],
        inline: dict[str, Callable[[Context, str], Element]],
    ) -> None:
        super().__init__()
        self.blocks, self.inline = blocks, inline

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        """Register the processors."""
        block = _BlockDirective(md.parser, self)
        md.parser.blockprocessors.register(block, "directives", 95)
        # After code, formulas and escapes, before links.
        md.inlinePatterns.register(_InlineDirective(md, self), "directives", 175)

    def warn(self, error: Exception) -> str:
        """Warn, which stops a strict build, and return the message."""
        log.warning("%s: %s", self.page, error.args[0])
        return AtomicString(error.args[0])


class _BlockDirective(BlockProcessor):
    def __init__(self, parser: BlockParser, directives: Directives) -> None:
        super().__init__(parser)
        self.directives = directives

    def test(self, parent: Element, block: str) -> bool:
        found = BLOCK.match(block)
        return found is not None and found["name"] in self.directives.blocks

    def run(self, parent: Element, blocks: list[str]) -> None:
        name, argument, quoted, rest = BLOCK.match(blocks.pop(0)).groups()  # type: ignore
        if rest.strip():
            blocks.insert(0, rest)
        own = self.directives
        context = Context(own.project, own.page, self.parser.md, unquoted(quoted))
        try:
            own.blocks[name](context, parent, " ".join(argument.split()))
        except (KeyError, ValueError) as error:
            element(element(parent, "p"), "code", own.warn(error))


class _InlineDirective(InlineProcessor):
    def __init__(self, md: Markdown, directives: Directives) -> None:
        super().__init__(INLINE, md)
        self.directives = directives

    def handleMatch(  # type: ignore  # noqa: N802
        self, m: re.Match[str], data: str
    ) -> tuple[Element, int, int]:
        own, name = self.directives, m[1]
        try:
            if name in own.blocks:
                raise ValueError(
                    f"[[{name} ...]] needs a blank line before and after it"
                )
            if name not in own.inline:
                raise ValueError(f"there is no directive [[{name} ...]]")
            context = Context(own.project, own.page, self.md)
            made = own.inline[name](context, " ".join(m[2].split()))
        except (KeyError, ValueError) as error:
            made = Element("code")
            made.text = own.warn(error)
        return made, m.start(0), m.end(0)


def element(parent: Element, tag: str, text: str = "", **given: Any) -> Element:
    """Add an element, and return it; `class_` is its class."""
    attributes = {name.rstrip("_"): str(value) for name, value in given.items()}
    made = SubElement(parent, tag, attributes)
    made.text = text
    return made
