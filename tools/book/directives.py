"""Find `[[name argument]]` in Markdown, and leave code alone."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping

UNTOUCHED = r"""
    (?P<fence>^[ \t]*(?P<ticks>`{3,}|~{3,})[^\n]*\n(?:.*?\n)??[ \t]*(?P=ticks)[ \t]*$)
    | (?P<comment><!--.*?-->)
    | (?P<code>(?<!`)(?P<tick>`+)(?!`)(?:(?!\n[ \t]*\n).)+?(?<!`)(?P=tick)(?!`))
"""
DIRECTIVE = re.compile(
    UNTOUCHED
    + r"""
    | (?P<block>
        ^(?P<indent>[ \t]*)\[\[(?P<name>[a-z]+)\b
        (?P<rest>(?:(?!\]\]|\n[ \t]*\n).)*)\]\][ \t]*$
        (?P<quoted>(?:\n[ \t]*)?(?:\n[ \t]*>[^\n]*)+)?
      )
    | \[\[(?P<word>[a-z]+)\b(?P<argument>[^\[\]]*)\]\]
    """,
    re.X | re.M | re.S,
)
FORMULA = r"| \$\$.*?\$\$ | (?<![\\$])\$(?!\s)[^$\n]*?(?:\n[^$\n]+)*?(?<!\s)\$(?!\$)"
NOT_PROSE = re.compile(
    UNTOUCHED + r"| \[\[[a-z]+\b.*?\]\] | \]\([^)]*\) | \{[^}\n]*\}" + FORMULA,
    re.X | re.M | re.S,
)

Block = Callable[[str, str], str]
Inline = Callable[[str], str]


def expand(
    markdown: str,
    *,
    blocks: Mapping[str, Block],
    inline: Mapping[str, Inline],
    unknown: Callable[[str], None],
) -> str:
    """Replace every directive by what its function makes of it.

    Args:
        markdown: A page's text.
        blocks: Functions for directives on a line of their own. They are given the
            argument and the quotation that follows, if one does, and what they give
            is indented as the directive was.
        inline: Functions for directives within a line.
        unknown: Told the name of a directive that there is not.
    """

    def replaced(found: re.Match[str]) -> str:
        name = found["name"] or found["word"]
        if name is None:
            return found[0]
        if found["name"] in blocks:
            quoted = re.sub(r"^[ \t]*>[ \t]?", "", found["quoted"] or "", flags=re.M)
            made = blocks[name](" ".join(found["rest"].split()), quoted.strip())
            return textwrap.indent(made, found["indent"])
        if name in inline:
            argument = found["rest"] if found["name"] else found["argument"]
            made = inline[name](" ".join(argument.split()))
            if not found["name"]:
                return made
            return f"{found['indent']}{made}{found['quoted'] or ''}"
        unknown(name)
        return found[0]

    return DIRECTIVE.sub(replaced, markdown)


def prose(markdown: str) -> str:
    """Give the text without code, formulas, directives and addresses."""
    return NOT_PROSE.sub(" ", markdown)
