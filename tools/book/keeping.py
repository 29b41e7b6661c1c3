"""Keep what is slow to make and depends on its input alone, for the next build."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable
from pathlib import Path


class Kept:
    """Texts by their recipes, in a file that can be deleted at any time."""

    def __init__(self, root: Path) -> None:
        path = root / ".cache/book.sqlite"
        path.parent.mkdir(parents=True, exist_ok=True)
        self.base = sqlite3.connect(path, isolation_level=None, timeout=60)
        # What a crash loses is made again.
        self.base.execute("PRAGMA synchronous = OFF")
        self.base.execute(
            "CREATE TABLE IF NOT EXISTS kept (recipe TEXT PRIMARY KEY, made TEXT)"
        )

    def __call__(self, recipe: str, make: Callable[[], str]) -> str:
        """Give what a recipe makes, making it if it was not made before."""
        key = hashlib.sha256(recipe.encode()).hexdigest()
        row = self.base.execute("SELECT made FROM kept WHERE recipe = ?", [key])
        if found := row.fetchone():
            return found[0]
        made = make()
        self.base.execute("INSERT OR REPLACE INTO kept VALUES (?, ?)", [key, made])
        return made
