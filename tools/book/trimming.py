"""Leave out what the theme ships and no reader of this site ever loads."""

from __future__ import annotations

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig

# Maps are for debugging the theme; the others are for searching in other languages.
UNUSED = (
    "assets/javascripts/**/*.map",
    "assets/stylesheets/*.map",
    "assets/javascripts/lunr/min/*.js",
    "assets/javascripts/lunr/tinyseg.js",
    "assets/javascripts/lunr/wordcut.js",
)


def on_post_build(*, config: MkDocsConfig) -> None:
    """Delete them from the built site."""
    for pattern in UNUSED:
        for path in Path(config.site_dir).glob(pattern):
            path.unlink()
