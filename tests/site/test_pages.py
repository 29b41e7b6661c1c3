"""Every page of the site, in a real browser."""

from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page, ViewportSize, expect

AXE = Path(__file__).parents[2] / "tools/vendor/axe-core/axe.min.js"
STANDARDS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
DESKTOP: ViewportSize = {"width": 1280, "height": 900}
PHONE: ViewportSize = {"width": 390, "height": 844}

RAW_TEX = r"""() => {
    const text = document.querySelector("article").cloneNode(true);
    text.querySelectorAll(".katex, pre, code").forEach(part => part.remove());
    return text.textContent.match(/\$\$|\\[(\[]|\\[a-z]+\{|\$[^$\s]+\$/g) ?? [];
}"""
# What reaches beyond the screen must stand in something that scrolls by itself.
CUT_OFF = """() => [...document.querySelectorAll(
    "article :is(.katex-base, pre, table, img)"
)]
    .filter(part => part.getBoundingClientRect().right > innerWidth)
    .filter(part => {
        for (let box = part; box.tagName != "ARTICLE"; box = box.parentElement)
            if (["auto", "scroll"].includes(getComputedStyle(box).overflowX)
                && box.getBoundingClientRect().right <= innerWidth) return false;
        return true;
    }).map(part => part.textContent.slice(0, 60))"""

# Numbers of equations that stand on their formula, and how many there are in all.
COVERED = """() => {
    const numbers = [...document.querySelectorAll(".katex-tag")];
    const left = number => number.lastElementChild.getBoundingClientRect().left;
    const right = number => Math.max(
        ...[...number.parentElement.querySelectorAll(":scope > .katex-base")]
            .map(part => part.getBoundingClientRect().right)
    );
    const covered = numbers.filter(number => right(number) > left(number));
    return [numbers.length, covered.map(number => number.textContent)];
}"""

# What is folded away goes unchecked. All folded listings look alike: one of each kind
# is enough, and saves minutes.
UNFOLD = """() => {
    const listings = ["details.mkdocstrings-source", "details.evidence"];
    document.querySelectorAll(`article details:not(${listings.join()})`)
        .forEach(box => { box.open = true; });
    listings.forEach(kind => document.querySelector(kind)?.setAttribute("open", ""));
}"""
# Formulas are all made alike, and are most of a page: the first ones stand for them.
FEW_FORMULAS = """() => document.querySelectorAll(".katex")
    .forEach((formula, place) => place < 10 || formula.remove())"""
CHECK = "rules => axe.run({...rules, resultTypes: ['violations']})"
ALL_RULES = {"runOnly": STANDARDS}
# Nothing but colors is different in the dark, and on a phone everything but colors.
COLORS = {"runOnly": ["color-contrast", "link-in-text-block"]}
NO_COLORS = {"runOnly": STANDARDS, "rules": {"color-contrast": {"enabled": False}}}


# Whether a page is among the first five that the search lists, with this anchor.
FOUND = """([wanted, anchor]) => {
    const links = [...document.querySelectorAll("a.md-search-result__link")]
        .map(link => link.href);
    const pages = [...new Set(links.map(link => link.split(/[?#]/)[0]))].slice(0, 5);
    return pages.includes(wanted)
        && links.some(link => link.startsWith(wanted) && link.endsWith(anchor));
}"""


def visit(page: Page, url: str) -> None:
    """Open a page and wait until it is laid out in its own typefaces."""
    page.goto(url)
    page.evaluate("document.fonts.ready.then(() => new Promise(requestAnimationFrame))")


def test_pages_ask_no_other_host_log_nothing_and_show_no_tex(
    page: Page, address: str, paths: list[str]
) -> None:
    found: list[str] = []
    asked: set[str] = set()
    page.on("request", lambda request: asked.add(request.url))
    page.on(
        "response",
        lambda x: x.status >= 400 and found.append(f"{x.status} {x.url}"),
    )
    page.on("console", lambda line: found.append(f"{line.type}: {line.text}"))
    page.on("pageerror", lambda error: found.append(str(error)))
    formulas = 0
    for path in paths:
        page.goto(address + path, wait_until="networkidle")
        found += [f"{path}: {tex}" for tex in page.evaluate(RAW_TEX)]
        formulas += page.locator(".katex").count()
        assert page.locator(".katex-error").count() == 0
    page.goto(address + "404.html", wait_until="networkidle")
    found += [url for url in asked if not url.startswith((address, "data:", "blob:"))]
    assert formulas > len(paths) > 1
    assert found == []


@pytest.mark.parametrize(
    ("scheme", "size", "rules"),
    [
        ("light", DESKTOP, ALL_RULES),
        ("dark", DESKTOP, COLORS),
        ("light", PHONE, NO_COLORS),
    ],
    ids=["light", "dark", "phone"],
)
def test_pages_are_accessible(
    browser: Browser,
    address: str,
    paths: list[str],
    scheme: Literal["light", "dark"],
    size: ViewportSize,
    rules: dict[str, object],
) -> None:
    if rules != ALL_RULES:
        # Pages of a folder look alike: one stands for them.
        paths = list({path.partition("/")[0]: path for path in paths}.values())
    found: list[str] = []
    with browser.new_context(color_scheme=scheme, viewport=size) as context:
        page = context.new_page()
        for path in paths:
            visit(page, address + path)
            page.evaluate(UNFOLD)
            page.evaluate(FEW_FORMULAS)
            page.evaluate(AXE.read_text("utf-8"))
            run = page.evaluate(CHECK, rules)
            assert run["passes"], "axe checked nothing"
            found += [
                f"{path}: {rule['id']}: {node['html'][:120]}: {node['failureSummary']}"
                for rule in run["violations"]
                for node in rule["nodes"]
            ]
    assert found == [], "\n".join(found)


def test_a_phone_need_not_scroll_sideways(
    browser: Browser, address: str, paths: list[str]
) -> None:
    wide: list[str] = []
    equations = 0
    with browser.new_context(viewport=PHONE) as context:
        page = context.new_page()
        for path in paths:
            visit(page, address + path)
            count, covered = page.evaluate(COVERED)
            equations += count
            wide += [f"{path}: {number} stands on its formula" for number in covered]
            width = page.evaluate("document.documentElement.scrollWidth")
            if width > PHONE["width"]:
                wide.append(f"{path}: {width} px")
            wide += [f"{path}: {cut} is cut off" for cut in page.evaluate(CUT_OFF)]
    assert equations > 0
    assert wide == []


def test_navigation_is_instant(page: Page, address: str) -> None:
    page.goto(address, wait_until="networkidle")
    page.evaluate("window.loadedOnce = true")
    page.locator(".md-tabs a", has_text="Reference").click()
    page.wait_for_url("**/reference/")
    page.locator(".md-nav--primary a", has_text="multi_head_attention").first.click()
    page.wait_for_url("**/reference/multi_head_attention/")
    page.locator("article h1", has_text="multi_head_attention").wait_for()
    assert page.evaluate("window.loadedOnce") is True
    assert page.locator("article .katex").count() > 0


@pytest.mark.parametrize(
    ("words", "place", "anchor"),
    [
        ("softargmax", "glossary/", ""),
        ("MultiHeadAttention", "reference/multi_head_attention/", ""),
        ("causal mask", "reference/attention/", ""),
        ("causal_mask", "reference/attention/", ""),
        ("nyu-1.1e", "chapters/attention/", "#nyu-1.1e"),
        ("eth-1d.1", "chapters/attention_as_convolution/", "#eth-1d.1"),
        ("effective kernel", "glossary/", ""),
    ],
)
def test_search_finds(
    page: Page, address: str, words: str, place: str, anchor: str
) -> None:
    page.goto(address, wait_until="networkidle")
    page.locator(".md-search__input").click()
    page.keyboard.type(words)
    # Searching goes on while one types, and each answer replaces the list before it.
    page.wait_for_function(FOUND, arg=[address + place, anchor])


def test_the_reader_can_switch_to_dark(page: Page, address: str) -> None:
    page.emulate_media(color_scheme="light")
    page.goto(address, wait_until="networkidle")
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_title("Switch to dark mode").click()
    body = page.locator("body")
    expect(body).to_have_attribute("data-md-color-scheme", "slate")
    after = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert before != after
