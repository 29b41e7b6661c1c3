"""Let `[torch.nn.Linear][]` and signatures link to other projects' pages.

The usual way asks each project's host for its list of names while building. This
book is built offline, from the few names in `elsewhere.toml`.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority

NAMES = Path(__file__).with_name("elsewhere.toml")
SPACE_AT_END = re.compile(r"\s+(</a>|</autoref>)")


def addresses() -> dict[str, str]:
    """Give the page of every name."""
    places = tomllib.loads(NAMES.read_text("utf-8"))["place"]
    return {
        name: place["url"].format(name=name)
        for place in places
        for name in place["names"]
    }


@event_priority(100)
def on_env(env: Any, *, config: MkDocsConfig, files: Any) -> None:
    """Register the names before references are resolved."""
    autorefs: Any = config.plugins["autorefs"]
    for name, address in addresses().items():
        autorefs.register_url(name, address)


def on_page_content(html: str, **_: Any) -> str:
    """Take off the space that a line break leaves at the end of a link's text."""
    return SPACE_AT_END.sub(r"\1", html)
