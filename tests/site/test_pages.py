"""Every page of the site, in a real browser."""

import re
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
# Whether the first page that the search lists is this one, with this section.
FIRST = """([wanted, anchor]) => {
    const links = [...document.querySelectorAll("a.md-search-result__link")]
        .map(link => link.href);
    const sections = links.filter(link => link.includes("#"));
    return links.length > 0 && links[0].split(/[?#]/)[0] == wanted
        && (!anchor || sections[0].endsWith(anchor));
}"""
# Displayed formulas that must be scrolled.
TOO_WIDE = """() => [...document.querySelectorAll("div.formula")]
    .filter(box => box.scrollWidth > box.clientWidth + 1)
    .map(box => box.id || box.querySelector("annotation")?.textContent.slice(0, 60))"""
CAPTIONS = """() => [...document.querySelectorAll(
    "figure:is(.book, .diagram) > figcaption")].map(caption => caption.innerText)"""
# What a sheet of paper shows of a page: pictures for dark screens, and folded text.
ON_PAPER = """() => {
    const shown = part => part.getClientRects().length > 0;
    const all = selector => [...document.querySelectorAll(selector)].filter(shown);
    return {
        light: all('img[src$="#only-light"]').length,
        dark: all('img[src$="#only-dark"]').length,
        folded: all("details:not([open]) > :not(summary)").length,
        tests: all("details.evidence").length,
        buttons: all("article button").length,
    };
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
        ("softargmax", "notation/", ""),
        ("MultiHeadAttention", "reference/multi_head_attention/", ""),
        ("causal mask", "reference/attention/", ""),
        ("causal_mask", "reference/attention/", ""),
        ("effective kernel", "chapters/attention_as_convolution/", ""),
        ("attention rollout", "reference/probes/", ""),
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


@pytest.mark.parametrize(
    ("words", "place", "anchor"),
    [
        ("1.3(e)", "chapters/self_attention/", "#nyu-1.3e"),
        ("NYU 1.1(e)", "chapters/attention/", "#nyu-1.1e"),
        ("eth-1d.1", "chapters/attention_as_convolution/", "#eth-1d.1"),
        ("MHA", "chapters/multi_head_attention/", "#the-formula"),
        ("params", "chapters/multi_head_attention/", "#counting-parameters"),
        ("RoPE", "chapters/positional_encoding/", "#rope-turn-queries-and-keys"),
        ("cross attention", "chapters/transformer/", "#quiz-2.4"),
        ("GQA", "chapters/multi_head_attention/", "#key-value-cache"),
        ("CLS", "chapters/vision_transformer/", "#nyu-1.5d"),
        ("cite", "teaching/", "#license-and-citation"),
        ("license", "teaching/", "#license-and-citation"),
        ("pdf", "teaching/", "#paper-pdf-and-plain-text"),
    ],
)
def test_search_finds_first(
    page: Page, address: str, words: str, place: str, anchor: str
) -> None:
    page.goto(address, wait_until="networkidle")
    page.locator(".md-search__input").click()
    page.keyboard.type(words)
    page.wait_for_function(FIRST, arg=[address + place, anchor])


def test_formulas_fit_a_desktop_and_figures_are_numbered(
    page: Page, address: str, paths: list[str]
) -> None:
    wide: list[str] = []
    figures = 0
    for path in [path for path in paths if path.startswith("chapters/")]:
        visit(page, address + path)
        page.evaluate(UNFOLD)
        wide += [f"{path}: {formula}" for formula in page.evaluate(TOO_WIDE)]
        if path == "chapters/":
            continue
        captions = page.evaluate(CAPTIONS)
        figures += len(captions)
        unnumbered = [x for x in captions if not x.startswith("Figure ")]
        assert unnumbered == [], path
    assert figures > 20
    assert wide == []


def test_a_tap_or_a_key_enlarges_a_figure(browser: Browser, address: str) -> None:
    with browser.new_context(viewport=PHONE) as context:
        page = context.new_page()
        visit(page, address + "chapters/attention/")
        figure = page.locator("figure.diagram").first
        before = figure.locator("svg").first.bounding_box()
        figure.locator(".panels").click()
        dialog = page.locator("dialog.enlarged")
        after = dialog.locator("svg").first.bounding_box()
        assert before is not None
        assert after is not None
        assert after["width"] > 1.5 * before["width"]
        page.keyboard.press("Escape")
        expect(dialog).to_have_count(0)
        figure.locator("button.enlarge").focus()
        page.keyboard.press("Enter")
        expect(dialog).to_be_visible()


def test_paper_shows_one_figure_per_figure_and_nothing_folded(
    browser: Browser, address: str
) -> None:
    with browser.new_context(color_scheme="dark", viewport=DESKTOP) as context:
        page = context.new_page()
        visit(page, address + "chapters/attention/")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        page.emulate_media(media="print")
        found = page.evaluate(ON_PAPER)
        scheme = page.locator("body").get_attribute("data-md-color-scheme")
    light = found.pop("light")
    assert light > 0
    assert scheme == "default"
    assert found == {"dark": 0, "folded": 0, "tests": 0, "buttons": 0}


def test_every_page_is_listed_for_machines_as_markdown(folder: Path) -> None:
    listed = (folder / "llms.txt").read_text("utf-8")
    found = re.findall(r"^- \[.+\]\((.+?)\): \S.*$", listed, re.M)
    assert len(found) > 30
    for path in found:
        text = (folder / path).read_text("utf-8")
        assert len(text) > 100, path
        assert "--8<--" not in text, path


def test_the_reader_can_switch_to_dark(page: Page, address: str) -> None:
    page.emulate_media(color_scheme="light")
    page.goto(address, wait_until="networkidle")
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_title("Switch to dark mode").click()
    body = page.locator("body")
    expect(body).to_have_attribute("data-md-color-scheme", "slate")
    after = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert before != after
