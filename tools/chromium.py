"""Find the browser that tests the site: print its path, or say how to get one.

The environment variable CHROMIUM names it; otherwise the usual places are searched.
"""

import os
import shutil
import sys

USUAL = [
    "chromium",
    "chromium-browser",
    "google-chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
]


def find(named: str) -> str:
    """Give the path of a browser, or stop with what to do."""
    for candidate in [named] if named else USUAL:
        if path := shutil.which(candidate):
            return path
    raise SystemExit(
        f"CHROMIUM={named} is not a program that can be run."
        if named
        else "The site's tests need Chromium, and none was found. "
        "On Debian: apt-get install chromium. On macOS: brew install --cask chromium. "
        "Elsewhere, name the program: make test CHROMIUM=/path/to/chrome"
    )


if __name__ == "__main__":
    sys.stdout.write(find(os.environ.get("CHROMIUM", "")) + "\n")
