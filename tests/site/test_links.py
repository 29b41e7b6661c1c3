"""Every link, anchor and asset of the built site, without a network."""

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

# These describe the page to others; nobody is sent there.
DESCRIPTIONS = {"canonical", "next", "prev", "alternate"}


class Scan(HTMLParser):
    """The ids a page defines, where it links to, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids.update(given[name] for name in ("id", "name") if given.get(name))
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel") not in DESCRIPTIONS:
            self.loads.append(given["href"])
        elif "src" in given:
            self.loads.append(given["src"])


@pytest.fixture(scope="module")
def scans(folder: Path) -> dict[Path, Scan]:
    return {path: Scan(path.read_text("utf-8")) for path in folder.rglob("*.html")}


def target_of(url: str, page: Path, folder: Path) -> Path:
    """Give the file that a local link means."""
    path = unquote(urlsplit(url).path)
    start = folder if path.startswith("/") else page.parent
    target = (start / path.lstrip("/")).resolve() if path else page
    return target / "index.html" if target.is_dir() else target


def test_local_links_and_assets_exist(scans: dict[Path, Scan], folder: Path) -> None:
    bad: list[str] = []
    seen = 0
    for page, scan in scans.items():
        for url in [*scan.links, *scan.loads]:
            parts = urlsplit(url)
            if parts.scheme or parts.netloc:
                continue
            seen += 1
            target = target_of(url, page, folder)
            anchor = unquote(parts.fragment)
            if not target.is_file():
                bad.append(f"{page.relative_to(folder)}: nothing at {url}")
            elif anchor and target in scans and anchor not in scans[target].ids:
                bad.append(f"{page.relative_to(folder)}: no anchor {url}")
    assert seen > len(scans)
    assert bad == []


def test_nothing_is_loaded_from_elsewhere(scans: dict[Path, Scan]) -> None:
    loads = [url for scan in scans.values() for url in scan.loads]
    assert loads
    assert [url for url in loads if urlsplit(url).netloc] == []


def test_links_to_other_hosts_are_encrypted(scans: dict[Path, Scan]) -> None:
    links = {url for scan in scans.values() for url in scan.links if "://" in url}
    assert links
    assert {url for url in links if not url.startswith("https://")} == set()


def test_style_sheets_find_their_files(folder: Path) -> None:
    sheets = list(folder.rglob("*.css"))
    bad: list[str] = []
    for sheet in sheets:
        for url in re.findall(r"url\(['\"]?([^)'\"]+)", sheet.read_text("utf-8")):
            path = urlsplit(url).path
            if not url.startswith("data:") and not (sheet.parent / path).is_file():
                bad.append(f"{sheet.relative_to(folder)}: {url}")
    assert any(sheet.name == "katex.min.css" for sheet in sheets)
    assert bad == []


def test_no_link_of_the_text_ends_with_a_space(scans: dict[Path, Scan]) -> None:
    articles = [
        found[0]
        for page in scans
        if (found := re.search(r"<article.*</article>", page.read_text("utf-8"), re.S))
    ]
    assert len(articles) > 5
    assert not any(re.search(r"[\w`>]\s+</a>", article) for article in articles)
