"""Small sites, built strictly with the plugin, to see what stops a build."""

import os
import subprocess
import sys
from pathlib import Path

import yaml

SETTINGS = {
    "site_name": "small",
    "theme": {"name": None, "custom_dir": "theme"},
    "plugins": [
        "autorefs",
        {"bookbinding": {"macros": {r"\R": r"\mathbb{R}"}}},
        {"mkdocs-jupyter": {"include": ["notebooks/*.ipynb"], "include_source": True}},
    ],
    "exclude_docs": "*.toml",
    "not_in_nav": "/source/",
    "markdown_extensions": [
        "abbr",
        "admonition",
        "attr_list",
        "tables",
        {"toc": {"permalink": True}},
        {"pymdownx.arithmatex": {"generic": True}},
        "pymdownx.details",
        "pymdownx.superfences",
        {"pymdownx.tabbed": {"alternate_style": True}},
    ],
    "validation": {"links": {"anchors": "warn"}},
}


def build(folder: Path, files: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Build a site out of these files, paths below the folder."""
    files = {
        "theme/main.html": "{{ page.content }}",
        "mkdocs.yml": yaml.safe_dump(SETTINGS),
    } | files
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, "utf-8")
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict"],
        cwd=folder,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
