"""The site, built strictly once, served on this machine, and a browser to read it."""

import functools
import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).parents[2]
# Without these the browser talks to its maker's hosts; root cannot use the sandbox.
QUIET = [
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-gpu",
    "--disable-sync",
    "--no-first-run",
    "--no-sandbox",
]


class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Keep quiet."""


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """Give the folder of the built site and the address it is served at."""
    folder = tmp_path_factory.mktemp("site")
    handler = functools.partial(Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        address = f"http://127.0.0.1:{server.server_port}/"
        built = subprocess.run(
            # Not --quiet: warnings that are not shown do not count as strict.
            [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", folder],
            cwd=ROOT,
            env={**os.environ, "SITE_URL": address, "NO_MKDOCS_2_WARNING": "1"},
            capture_output=True,
            text=True,
        )
        if built.returncode:
            pytest.fail(f"mkdocs build --strict:\n{built.stderr}", pytrace=False)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield folder, address
        server.shutdown()


@pytest.fixture(scope="session")
def folder(site: tuple[Path, str]) -> Path:
    return site[0]


@pytest.fixture(scope="session")
def address(site: tuple[Path, str]) -> str:
    return site[1]


@pytest.fixture(scope="session")
def paths(folder: Path) -> list[str]:
    """Give every page's path below the address; one stands for all listings of code."""
    found = [page.parent.relative_to(folder) for page in folder.rglob("index.html")]
    listings = sorted(path for path in found if path.parts[:1] == ("source",))
    pages = [path for path in found if path not in listings] + listings[-1:]
    return sorted("" if path == Path() else f"{path.as_posix()}/" for path in pages)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    finder = [sys.executable, ROOT / "tools/browser.py"]
    chromium = subprocess.run(finder, capture_output=True, text=True)
    if chromium.returncode:
        pytest.fail(chromium.stderr, pytrace=False)
    with sync_playwright() as play:
        running = play.chromium.launch(
            executable_path=chromium.stdout.strip(), args=QUIET
        )
        yield running
        running.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """Give a fresh page of a desktop browser."""
    with browser.new_context(viewport={"width": 1280, "height": 900}) as context:
        yield context.new_page()
