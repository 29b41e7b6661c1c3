"""Small sites, built strictly with the book's hooks, to see what stops a build."""

import os
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
EXTENSIONS = [
    "admonition",
    "attr_list",
    "def_list",
    "tables",
    {"pymdownx.arithmatex": {"generic": True}},
    "pymdownx.blocks.html",
    "pymdownx.details",
    "pymdownx.superfences",
    {"pymdownx.tabbed": {"alternate_style": True}},
]


def build(
    folder: Path, files: dict[str, str], *, hooks: tuple[str, ...] = ("formulas",)
) -> subprocess.CompletedProcess[str]:
    """Build a site out of these files, paths below the folder, with these hooks."""
    settings = {
        "site_name": "small",
        "theme": {"name": None, "custom_dir": "theme"},
        "plugins": [],
        "hooks": [str(ROOT / f"tools/book/{name}.py") for name in hooks],
        "exclude_docs": "*.toml",
        "not_in_nav": "/source/",
        "markdown_extensions": EXTENSIONS,
        "validation": {"links": {"anchors": "warn"}},
    }
    files = {"theme/main.html": "{{ page.content }}"} | files
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, "utf-8")
    (folder / "mkdocs.yml").write_text(yaml.safe_dump(settings), "utf-8")
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict"],
        cwd=folder,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )


def warnings(built: subprocess.CompletedProcess[str]) -> list[str]:
    """Give the warnings of a build, each of which makes a strict one fail."""
    lines = built.stderr.splitlines()
    return [line for line in lines if line.startswith("WARNING")]
