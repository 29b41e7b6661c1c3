"""The page of `probes.show`, opened from a file: what it shows is the tensor."""

import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from playwright.sync_api import Browser, Page, expect
from safetensors.torch import load_file
from torch import Tensor

from transformers_hw.probes import AttentionView, attention_rollout, show

FIGURES = Path(__file__).parents[2] / "docs/figures/vision_transformer"
ROWS, COLUMNS, HEADS = 3, 5, 2


def softmaxed(*shape: int) -> Tensor:
    return (3 * torch.randn(*shape)).softmax(dim=-1)


def displayed(page: Page) -> tuple[str, str, float]:
    """Give query, key and weight of the line that says them."""
    line = page.locator("#readout").inner_text()
    query, key, weight = re.split(r" → |: ", line)
    return query, key, float(weight)


def hover(page: Page, pane: str, row: int, column: int) -> None:
    box = page.locator(f"{pane} .picture").bounding_box()
    assert box
    x = box["x"] + (column + 0.5) * box["width"] / COLUMNS
    y = box["y"] + (row + 0.5) * box["height"] / ROWS
    page.mouse.move(x, y)
    page.wait_for_timeout(100)


@pytest.fixture
def quiet(page: Page) -> Iterator[Page]:
    """Give a page that must not ask for anything or complain of anything."""
    heard: list[str] = []
    page.on("console", lambda message: heard.append(message.text))
    page.on("pageerror", lambda error: heard.append(str(error)))
    page.on("request", lambda request: heard.append(request.url))
    yield page
    files = ("file:", "data:image/png", "blob:")
    assert [line for line in heard if not line.startswith(files)] == []
    assert sum(line.startswith("file:") for line in heard) == 1


@pytest.fixture
def weights() -> list[Tensor]:
    n = 1 + ROWS * COLUMNS
    return [softmaxed(2, HEADS, n, n) for _ in range(2)]


@pytest.fixture
def over_image(quiet: Page, weights: list[Tensor], tmp_path: Path) -> Page:
    view = show(weights, torch.rand(3, 12, 20), sample=1, title="Two layers")
    quiet.goto(view.save(tmp_path / "view.html").as_uri())
    quiet.locator("#tiles .tile").first.wait_for()
    return quiet


def test_the_weight_of_a_hovered_query_and_key_is_that_of_the_tensor(
    over_image: Page, weights: list[Tensor]
) -> None:
    page = over_image
    assert page.title() == "Two layers"
    page.get_by_role("combobox", name="Layer").select_option("layer 0")
    page.get_by_role("combobox", name="Map").select_option("head 1")
    hover(page, "#query", 2, 3)
    query = 1 + 2 * COLUMNS + 3
    row = weights[0][1, 1, query]
    best = int(row.argmax())
    place = "class token"
    if best:
        place = f"row {(best - 1) // COLUMNS}, column {(best - 1) % COLUMNS}"
    assert displayed(page)[:2] == ("row 2, column 3", place)
    assert displayed(page)[2] == pytest.approx(row[best].item(), rel=6e-3)
    # A click keeps the query, and the pointer is free to read keys.
    page.mouse.down()
    page.mouse.up()
    for i, j in ((0, 0), (1, 4), (2, 1)):
        hover(page, "#key", i, j)
        found = displayed(page)
        assert found[:2] == ("row 2, column 3", f"row {i}, column {j}")
        wanted = row[1 + i * COLUMNS + j].item()
        assert found[2] == pytest.approx(wanted, rel=0.06 if wanted < 1e-3 else 6e-3)
    page.locator(".tile", has_text="rollout").click()
    rollout = attention_rollout(weights[:1])[1, query]
    page.locator("#key .token").hover()
    page.wait_for_timeout(100)
    assert displayed(page)[1] == "class token"
    assert displayed(page)[2] == pytest.approx(rollout[0].item(), rel=6e-3)


def test_keys_and_touch_choose_queries_and_names_say_them(over_image: Page) -> None:
    page = over_image
    picture = page.locator("#query .picture")
    picture.focus()
    for key in ("End", "ArrowUp", "ArrowLeft", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
        page.wait_for_timeout(50)
    expect(picture).to_have_attribute("aria-label", re.compile("row 1, column 4"))
    assert displayed(page)[0] == "row 1, column 4"
    page.locator("#query .token").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#query .token")).to_have_attribute("aria-pressed", "true")
    assert displayed(page)[0] == "class token"
    page.locator(".tile").nth(2).focus()
    page.keyboard.press("Space")
    expect(page.locator(".tile").nth(2)).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_role("combobox", name="Map")).to_have_value("2")
    for element in page.locator("button, select, [tabindex='0']").all():
        named = element.get_attribute("aria-label") or element.inner_text()
        assert named.strip()


def test_the_saved_drawing_holds_the_shown_weights(
    over_image: Page, weights: list[Tensor]
) -> None:
    with over_image.expect_download() as download:
        over_image.get_by_role("button", name="Save as SVG").click()
    tree = ElementTree.parse(download.value.path())
    rects = tree.iter("{http://www.w3.org/2000/svg}rect")
    drawn = [float(rect.attrib["data-weight"]) for rect in rects]
    mean = weights[1][1].mean(dim=0)[0]
    assert drawn == pytest.approx(mean.tolist(), abs=1e-5)


def test_tokens_are_read_from_words_and_from_the_matrix(
    quiet: Page, tmp_path: Path
) -> None:
    crossed = softmaxed(1, HEADS, 3, 5)
    view = show([crossed], ["un", "<b>", "un"], ["a", "b", "c", "d", "</script>"])
    quiet.goto(view.save(tmp_path / "view.html").as_uri())
    quiet.locator(".tile", has_text="head 1").click()
    quiet.locator("#query .token").nth(1).hover()
    quiet.wait_for_timeout(100)
    assert displayed(quiet)[0] == "<b> [1]"
    quiet.locator("#query .token").nth(1).click()
    quiet.locator("#key .token").nth(4).hover()
    quiet.wait_for_timeout(100)
    assert displayed(quiet)[1] == "</script> [4]"
    wanted = crossed[0, 1, 1, 4].item()
    assert displayed(quiet)[2] == pytest.approx(wanted, rel=0.06, abs=1e-5)
    box = quiet.locator(".matrix canvas").bounding_box()
    assert box
    quiet.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.9 * box["height"])
    quiet.wait_for_timeout(100)
    found = displayed(quiet)
    assert found[:2] == ("un [2]", "c [2]")
    wanted = crossed[0, 1, 2, 2].item()
    assert found[2] == pytest.approx(wanted, rel=0.06, abs=1e-5)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_notebook_frame_and_a_phone_show_it_in_light_and_dark(
    browser: Browser, weights: list[Tensor], scheme: str
) -> None:
    view = show(weights, torch.rand(1, 12, 20))
    options = {"viewport": {"width": 360, "height": 740}, "has_touch": True}
    with browser.new_context(**options, color_scheme=scheme) as context:
        page = context.new_page()
        page.set_content(view._repr_html_())
        inside = page.frame_locator("iframe")
        inside.locator("#query .picture").tap(position={"x": 5, "y": 5})
        line = inside.locator("#readout")
        expect(line).to_have_text(re.compile("^row 0, column 0 → "))
        frame = page.frames[1]
        sizes = "[document.documentElement.scrollWidth, innerWidth]"
        wide, window = frame.evaluate(sizes)
        assert wide <= window


def test_without_scripts_there_is_a_still_drawing(
    browser: Browser, weights: list[Tensor], tmp_path: Path
) -> None:
    path = show(weights, torch.rand(1, 12, 20)).save(tmp_path / "view.html")
    with browser.new_context(java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(path.as_uri())
        assert page.locator("noscript svg rect").count() == 1 + ROWS * COLUMNS


def recorded() -> AttentionView:
    """Show what the chapter's run recorded; `save` writes the page of the site."""
    results = load_file(FIGURES / "main/results.safetensors")
    return show(
        [layer[None].float() for layer in results["attention_of_one_image"]],
        results["images"][0],
        layers=[0, 2, 4, 5],
        bits=8,
        title="Attention of our Vision Transformer",
    )


def test_the_page_on_the_site_shows_the_recorded_weights() -> None:
    saved = (FIGURES / "attention.html").read_text("utf-8")

    def without_image(page: str) -> str:
        return re.sub(r"data:image/png;base64,[^\"]*", "", page)

    assert without_image(saved) == without_image(recorded().html())
    assert len(saved) < 200_000
