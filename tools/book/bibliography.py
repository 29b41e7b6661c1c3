"""What the book cites."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Reference:
    """A paper or a book."""

    key: str
    authors: str
    short: str
    year: int
    title: str
    venue: str
    url: str

    @property
    def label(self) -> str:
        """How the text names it."""
        return f"{self.short} ({self.year})"


def read_references(path: Path) -> dict[str, Reference]:
    """Read the list of references, by key."""
    if not path.is_file():
        return {}
    listed = tomllib.loads(path.read_text("utf-8"))
    return {key: Reference(key=key, **entry) for key, entry in listed.items()}


def entries(references: dict[str, Reference]) -> str:
    """Give the page's list, by author and year."""
    ordered = sorted(references.values(), key=lambda r: (r.authors.casefold(), r.year))
    return "\n\n".join(
        f"{one.authors} ({one.year}). [*{one.title}*]({one.url}). {one.venue}.\n"
        f"{{ #{one.key} .reference }}"
        for one in ordered
    )
