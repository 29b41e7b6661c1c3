"""How much script a page loads before its reader asks for anything."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"
EXPLORABLES = ["clocks", "convolution", "decoding", "dial", "heads", "live_vit"]


def loaded(script: Path) -> set[Path]:
    """Return a script and all that it imports at once."""
    imports = re.findall(
        r'^import .* from "\./(.*)";$', script.read_text("utf-8"), re.M
    )
    return {script}.union(*(loaded(script.parent / name) for name in imports))


@pytest.mark.parametrize("name", EXPLORABLES)
def test_a_page_loads_less_than_60_kilobytes_before_a_click(name: str) -> None:
    every_page = {*DOCS.glob("javascripts/*js"), DOCS / "explorables/start.mjs"}
    scripts = every_page | loaded(DOCS / f"explorables/{name}.mjs")
    assert DOCS / "explorables/controls.mjs" in scripts
    assert sum(script.stat().st_size for script in scripts) < 60_000
