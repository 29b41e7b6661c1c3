"""The browser for the site: the one that CHROMIUM names is taken, or refused."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def find(named: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "tools/browser.py"],
        env={**os.environ, "CHROMIUM": named},
        capture_output=True,
        text=True,
    )


def test_the_named_program_is_taken_if_it_starts() -> None:
    # Any program that knows --version will do.
    assert find(sys.executable).stdout == f"{sys.executable}\n"


def test_a_program_that_does_not_start_is_refused() -> None:
    for named in ("/bin/false", "no-such-browser"):
        found = find(named)
        assert found.returncode == 1
        assert (
            f"CHROMIUM must name a browser that starts, got '{named}'" in found.stderr
        )
