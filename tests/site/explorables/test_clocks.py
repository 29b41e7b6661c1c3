"""The clocks: their arithmetic against the package, and what their stage shows."""

import math
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Browser, Page
from torch import Tensor

from transformers_hw.positional_encoding import SinusoidalPositions

DRAWING = Path(__file__).parents[3] / "docs/diagrams/positional_encoding/clocks.svg"
F64 = torch.float64
NUMBER = r"-?\d+\.?\d*(?:e-?\d+)?"
# Whoever listens prevents what the key would do.
DEAF = """kept[0].dispatchEvent(
  new KeyboardEvent("keydown", {key: "ArrowLeft", cancelable: true}))"""
# Hands glide to where they belong: wait for three frames in which none moves.
STILL = """async () => {
  const hands = () => [...document.querySelectorAll(".stage.clocks .hand")]
    .map(hand => hand.getAttribute("d")).join();
  for (let before = "", same = 0; same < 3; before = hands()) {
    await new Promise(requestAnimationFrame);
    same = hands() === before ? same + 1 : 0;
  }
}"""
EXACT = {"rtol": 1e-12, "atol": 1e-12}
WORDS = (
    [0.8, 0.6, -0.6, 0.8, 0.25, 0.75, 0.5, -0.25],
    [-0.6, 0.8, 0.8, 0.4, 0.75, -0.25, 0.5, 0.5],
)


def tensor(x: Any) -> Tensor:
    return torch.tensor(x, dtype=F64)


def vectors(name: str) -> tuple[Tensor, Tensor]:
    """Return the query and the key that a choice turns."""
    positions = SinusoidalPositions(8)
    twelve = positions.embeddings(1)[0]
    if name == "words":
        return tensor(WORDS[0]), tensor(WORDS[1])
    return (positions.shift_matrix(-3) @ twelve if name == "back" else twelve), twelve


def rope(q: Tensor, k: Tensor, t: int, s: int) -> Tensor:
    """Return the products of the turned pairs, with the package's rotations."""
    turn = SinusoidalPositions(len(q)).shift_matrix
    return ((turn(t) @ q) * (turn(s) @ k)).unflatten(0, (-1, 2)).sum(-1)


@pytest.mark.parametrize("width", [2, 8, 14])
def test_hands_are_the_packages_encodings(evaluate: Any, width: int) -> None:
    positions, times = SinusoidalPositions(width), [0, 1, 5, 40, 1000]
    calls = [("encoding", t, width) for t in times]
    table = positions.embeddings(1001)[times]
    torch.testing.assert_close(tensor(evaluate("clocks", *calls)), table, **EXACT)
    (omega,) = evaluate("clocks", ("frequencies", width))
    torch.testing.assert_close(tensor(omega), positions.frequencies(), **EXACT)


@pytest.mark.parametrize("step", [-17, -1, 0, 3, 40])
def test_a_step_is_one_rotation_everywhere(evaluate: Any, step: int) -> None:
    positions = SinusoidalPositions(6)
    starts = positions.embeddings(50)[[0, 7, 49]]
    calls = [("rotate", row, step, positions.frequencies()) for row in starts]
    expected = starts @ positions.shift_matrix(step).T
    torch.testing.assert_close(tensor(evaluate("clocks", *calls)), expected, **EXACT)


def test_the_score_of_turned_vectors_depends_on_the_distance_alone(
    evaluate: Any,
) -> None:
    torch.manual_seed(0)
    q, k = torch.randn(2, 10, dtype=F64)
    omega = SinusoidalPositions(10).frequencies()
    pairs = [(t, t + r) for r in (-9, 0, 4) for t in (9, 10, 31)]
    calls = [("score", q, k, t, s, omega) for t, s in pairs]
    found = tensor(evaluate("clocks", *calls))
    expected = torch.stack([rope(q, k, t, s).sum() for t, s in pairs])
    torch.testing.assert_close(found, expected, **EXACT)
    rows = found.reshape(3, 3)
    torch.testing.assert_close(rows, rows[:, :1].expand(3, 3), **EXACT)
    assert rows[:, 0].unique().numel() == 3


@pytest.mark.parametrize("name", ["encodings", "back", "words"])
def test_what_is_shown_of_two_positions(evaluate: Any, name: str) -> None:
    pairs = [(0, 0), (0, 40), (40, 0), (13, 9), (25, 26)]
    calls = [("look", {"vectors": name, "t": t, "s": s}) for t, s in pairs]
    for (t, s), seen in zip(pairs, evaluate("clocks", *calls), strict=True):
        shares = rope(*vectors(name), t, s)
        torch.testing.assert_close(tensor(seen["shares"]), shares, **EXACT)
        torch.testing.assert_close(tensor(seen["score"]), shares.sum(), **EXACT)
        turns = (SinusoidalPositions(8).frequencies() * (s - t)).rad2deg()
        torch.testing.assert_close(tensor(seen["turns"]), turns, **EXACT)


def test_the_query_for_three_back_scores_highest_there(evaluate: Any) -> None:
    calls = [("look", {"vectors": "back", "t": 20, "s": s}) for s in range(41)]
    scores = [seen["score"] for seen in evaluate("clocks", *calls)]
    assert scores.index(max(scores)) == 17
    assert max(scores) == pytest.approx(4.0, abs=1e-12)


def test_positions_stay_on_the_line(evaluate: Any) -> None:
    given = [(t, r) for t in (0, 9, 40) for r in (-40, -12, 0, 35, 40)]
    for (t, r), found in zip(
        given, evaluate("clocks", *(("apart", *each) for each in given)), strict=True
    ):
        assert found["s"] - found["t"] == r
        assert 0 <= min(found.values()) <= max(found.values()) <= 40
        assert found["t"] == t or not 0 <= t + r <= 40
    calls = [("together", {"t": 9, "s": 13}, by) for by in (-50, -9, 1, 27, 50)]
    assert evaluate("clocks", *calls) == [
        {"t": t, "s": t + 4} for t in (0, 0, 10, 36, 36)
    ]


def test_the_drawing_for_paper_shows_the_start(evaluate: Any) -> None:
    (seen,) = evaluate("clocks", ("look", {"vectors": "encodings", "t": 9, "s": 13}))
    root = ET.parse(DRAWING).getroot()
    texts = [text.text or "" for text in root.iter("{http://www.w3.org/2000/svg}text")]
    shares = [f"{x:.2f}".replace("-", "−") for x in seen["shares"]]
    assert [t for t in texts if re.fullmatch(r"−?\d\.\d\d", t)] == shares
    angles = [float(t[:-1]) for t in texts if t.endswith("°")]
    assert angles == pytest.approx(seen["turns"], rel=0.02)
    assert f"the sum of the products is {seen['score']:.3f}" in texts
    hands = [n.get("d", "") for n in root.iter() if n.get("class") == "hand"]
    table = SinusoidalPositions(8).embeddings(14)
    for i in range(4):
        for path, t in zip(hands[2 * i : 2 * i + 2], (13, 9), strict=True):
            x0, y0, x1, y1 = (float(c) for c in re.findall(r"[-\d.]+", path))
            tip = table[t, 2 * i : 2 * i + 2].tolist()
            assert ((x1 - x0) / 29.92, (y0 - y1) / 29.92) == pytest.approx(
                tip, abs=0.002
            )
    (curve,) = (n.get("d", "") for n in root.iter() if n.get("class") == "curve")
    points = re.findall(r"([\d.]+) ([\d.]+)", curve)
    assert len(points) == 161
    for x, y in points:
        r = (float(x) - 185) / 3.9
        total = sum(math.cos(r / 10**i) for i in range(4))
        assert (300 - float(y)) / 10 == pytest.approx(total, abs=0.03)


def opened(page: Page, address: str) -> Page:
    page.goto(f"{address}chapters/positional_encoding/", wait_until="domcontentloaded")
    page.locator("[data-explorable=clocks]").scroll_into_view_if_needed()
    page.wait_for_selector("[data-explorable=clocks].live")
    return page


@pytest.fixture
def stage(page: Page, address: str) -> Page:
    return opened(page, address)


def check(page: Page, name: str, t: int, s: int) -> None:
    """Compare numbers, hands and the mark on the curve with the package."""
    page.evaluate(STILL)
    q, k = vectors(name)
    shares = rope(q, k, t, s)
    shown = page.locator(".stage.clocks .share").all_text_contents()
    assert [float(x.replace("−", "-")) for x in shown] == pytest.approx(
        shares.tolist(), abs=0.0051
    )
    total = page.locator(".stage.clocks .total").inner_text()
    assert f"= {shares.sum():.3f}".replace("-", "−") in total
    turn = SinusoidalPositions(8).shift_matrix
    for kind, vector in (("query", turn(t) @ q), ("key", turn(s) @ k)):
        paths = page.locator(f".stage.clocks .hand.{kind}").evaluate_all(
            "all => all.map(x => x.getAttribute('d'))"
        )
        tips = [
            [float(c) / 31.68 for c in re.findall(NUMBER, path)[2:]] for path in paths
        ]
        expected = [[x, -y] for x, y in vector.unflatten(0, (-1, 2)).tolist()]
        torch.testing.assert_close(tensor(tips), tensor(expected), rtol=0, atol=1e-9)
    mark = page.locator(".stage.clocks .mark").get_attribute("transform") or ""
    x, y = (float(c) for c in re.findall(NUMBER, mark))
    assert ((x - 180) / 4, (78 - y) / 17) == pytest.approx(
        (s - t, float(shares.sum())), abs=1e-9
    )


def test_positions_move_by_arrows_and_the_score_keeps_to_the_distance(
    stage: Page,
) -> None:
    check(stage, "encodings", 9, 13)
    both = stage.get_by_role("slider", name="Both positions")
    both.focus()
    both.press("Shift+ArrowRight")
    both.press("ArrowRight")
    check(stage, "encodings", 20, 24)
    assert both.get_attribute("aria-valuetext") == "20 and 24; score 2.27"
    key = stage.get_by_role("slider", name="Position s")
    key.focus()
    for _ in range(7):
        key.press("ArrowLeft")
    check(stage, "encodings", 20, 17)
    stage.get_by_label("Vectors").select_option("back")
    check(stage, "back", 20, 17)
    distance = stage.get_by_role("slider", name="Distance")
    distance.focus()
    distance.press("Shift+ArrowRight")
    check(stage, "back", 20, 27)
    stage.get_by_label("Vectors").select_option("words")
    check(stage, "words", 20, 27)
    stage.get_by_role("button", name="Reset").click()
    check(stage, "encodings", 9, 13)


def test_dragging_moves_one_or_both_and_leaving_ends_it(
    stage: Page, address: str
) -> None:
    unit = (
        (stage.locator(".stage.clocks .drawing").first.bounding_box() or {})["width"]
        / 360
        * 8
    )

    def drag(part: str, by: int) -> None:
        box = stage.locator(part).bounding_box()
        assert box
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        stage.mouse.move(x, y)
        stage.mouse.down()
        stage.mouse.move(x + by * unit, y + 3, steps=6)
        stage.mouse.up()

    drag(".stage.clocks g.both .bar", 8)
    check(stage, "encodings", 17, 21)
    drag(".stage.clocks g.query .dot", 10)
    check(stage, "encodings", 27, 21)
    parts = ".stage.clocks :is(g.query, .hand.query)"
    stage.evaluate(f"window.kept = document.querySelectorAll('{parts}')")
    assert not stage.evaluate(DEAF)
    stage.locator("nav.md-tabs a").first.click()
    stage.wait_for_url(address)
    stage.wait_for_function(DEAF)
    state = "[...kept].map(x => (x.getAttribute('d') ?? x.getAttribute('transform')))"
    before = stage.evaluate(state)
    stage.wait_for_timeout(200)
    assert stage.evaluate(state) == before


def test_a_finger_moves_a_handle_and_not_the_page(
    browser: Browser, address: str
) -> None:
    size, touch = {"width": 360, "height": 740}, {"has_touch": True, "is_mobile": True}
    with browser.new_context(viewport=size, **touch) as context:
        page = opened(context.new_page(), address)
        page.wait_for_timeout(300)
        handle = page.get_by_role("slider", name="Position t")
        box = handle.locator(".dot").bounding_box()
        assert box
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        before = page.evaluate("scrollY")
        finger = context.new_cdp_session(page)
        for i in range(9):
            at = {"touchPoints": [{"x": x + 4 * i, "y": y - 6 * i}]}
            kind = "touchMove" if i else "touchStart"
            finger.send("Input.dispatchTouchEvent", {"type": kind, **at})
            page.wait_for_timeout(30)
        finger.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
        page.wait_for_timeout(300)
        assert page.evaluate("scrollY") == before
        unit = page.locator(".stage.clocks .drawing").first.evaluate(
            "drawing => drawing.getScreenCTM().a * 8"
        )
        moved = int((handle.get_attribute("aria-valuetext") or "").split(";")[0]) - 9
        assert moved == pytest.approx(32 / unit, abs=1)
