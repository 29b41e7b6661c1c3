"""The dial: its arithmetic against the package, and what its stage shows."""

import math
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Page, expect
from torch import Tensor

from transformers_hw.attention import attention_weights, dot_product_attention, softmax

DRAWING = Path(__file__).parents[3] / "docs/diagrams/attention/dial.svg"
F64 = torch.float64
NUMBER = r"-?\d+\.?\d*(?:e-?\d+)?"
TURNS = (0, 0.01, 37, 100, 151, 199, 199.999, 200)
# Whoever listens prevents what the key would do.
DEAF = """kept.dispatchEvent(
  new KeyboardEvent("keydown", {key: "ArrowLeft", cancelable: true}))"""
DRAWN = "new Promise(go => requestAnimationFrame(() => requestAnimationFrame(go)))"
EXACT = {"rtol": 1e-12, "atol": 1e-12}


def scale(turn: float) -> float:
    return math.inf if turn == 200 else turn / (200 - turn)


def norm(x: Any) -> float:
    return float(torch.tensor(x, dtype=F64).norm())


def draw(seed: int) -> tuple[dict[str, Any], Tensor]:
    """Draw a query, seven keys of width 3 of which one moves, and values of width 4."""
    torch.manual_seed(seed)
    state = {
        "query": torch.randn(3, dtype=F64),
        "keys": torch.randn(7, 3, dtype=F64),
        "chosen": seed % 7,
        "from": torch.randn(3, dtype=F64),
    }
    return state, torch.randn(7, 4, dtype=F64)


@pytest.mark.parametrize("seed", range(5))
def test_weights_output_and_entropy_are_the_packages(evaluate: Any, seed: int) -> None:
    state, values = draw(seed)
    calls = [("look", state | {"turn": turn}, values) for turn in TURNS]
    for turn, seen in zip(TURNS, evaluate("dial", *calls), strict=True):
        query, key = state["query"][None], state["keys"]
        output, weights = dot_product_attention(
            query, key, values, scale=scale(turn), return_weights=True
        )
        entropy = torch.special.entr(weights).sum()
        shown = {
            name: torch.tensor(seen[name], dtype=F64)
            for name in seen
            if seen[name] is not None
        }
        torch.testing.assert_close(shown["weights"], weights[0], **EXACT)
        torch.testing.assert_close(shown["output"], output[0], **EXACT)
        torch.testing.assert_close(shown["entropy"], entropy, **EXACT)
        torch.testing.assert_close(shown["effective"], entropy.exp(), **EXACT)
        rest = torch.arange(7) != state["chosen"]
        others = dot_product_attention(
            query, key[rest], values[rest], scale=scale(turn)
        )
        torch.testing.assert_close(shown["without"], others[0], **EXACT)


def test_scores_that_are_far_apart_equal_or_tied(evaluate: Any) -> None:
    rows = [[0.0], [3.0, 3.0, 3.0], [1e200, -1e200], [-1e5, 1e5, 1e5]]
    scales = [0.0, 1e-300, 1.0, 1e12]
    calls = [("softmax", row, beta) for row in rows for beta in scales]
    expected = [
        softmax(torch.tensor(row, dtype=F64), beta) for row in rows for beta in scales
    ]
    for weights, right in zip(evaluate("dial", *calls), expected, strict=True):
        torch.testing.assert_close(torch.tensor(weights, dtype=F64), right, **EXACT)


@pytest.mark.parametrize("seed", range(5))
def test_the_predicted_step_is_the_derivative(evaluate: Any, seed: int) -> None:
    state, values = draw(seed)
    j, start = state["chosen"], state["keys"].clone()
    start[j] = state["from"]
    move = torch.zeros_like(start)
    move[j] = state["keys"][j] - state["from"]
    turns = TURNS[:-2]
    calls = [("look", state | {"turn": turn}, values) for turn in turns]
    for turn, seen in zip(turns, evaluate("dial", *calls), strict=True):

        def output(keys: Tensor, beta: float = scale(turn)) -> Tensor:
            weights = (beta * keys @ state["query"]).softmax(-1)
            return weights @ values

        before, slopes = (
            output(start),
            torch.autograd.functional.jacobian(output, start),
        )
        slope = (slopes * move).sum((-2, -1))
        step = torch.tensor(seen["step"], dtype=F64)
        torch.testing.assert_close(step, slope, rtol=1e-10, atol=1e-10)
        moved = torch.tensor(seen["moved"], dtype=F64)
        torch.testing.assert_close(moved, output(state["keys"]) - before, **EXACT)


@pytest.mark.parametrize("turn", TURNS)
def test_the_output_slides_on_the_line_by_the_chapters_law(
    evaluate: Any, turn: float
) -> None:
    state, values = draw(3)
    j, query = state["chosen"], state["query"]
    (seen,) = evaluate("dial", ("look", state | {"turn": turn}, values))
    start = state["keys"].clone()
    start[j] = state["from"]
    a = attention_weights(query[None], start, scale=scale(turn))[0, j]
    if turn == 200:  # The law's argument would be infinite; its ends are left.
        share = float(torch.tensor(seen["scores"]).argmax() == j)
    else:
        move = scale(turn) * query @ (state["keys"][j] - state["from"])
        share = float((a.logit() + move).sigmoid())
    end = torch.tensor(seen["without"], dtype=F64)
    expected = end + share * (values[j] - end)
    torch.testing.assert_close(
        torch.tensor(seen["output"], dtype=F64), expected, rtol=0, atol=1e-10
    )


def test_hard_attention_predicts_nothing_and_shares_ties(evaluate: Any) -> None:
    query = [1.25, 0.75]
    keys = [[1.25, 0.25], [0.5, 1.5], [-1.125, 1.0], [-1.0, -0.875], [0.5, -1.25]]
    state = {
        "turn": 200,
        "query": query,
        "keys": keys,
        "chosen": 1,
        "from": [0.5, 1.25],
    }
    (seen,) = evaluate("dial", ("look", state))
    hard = attention_weights(
        torch.tensor([query], dtype=F64), torch.tensor(keys, dtype=F64), scale=math.inf
    )
    assert seen["weights"] == hard[0].tolist() == [0.5, 0.5, 0.0, 0.0, 0.0]
    assert norm(seen["step"]) == 0.0
    assert norm(seen["moved"]) > 1.0
    assert seen["effective"] == pytest.approx(2.0, abs=1e-15)


def start(evaluate: Any) -> tuple[dict[str, Any], Tensor, dict[str, Any]]:
    """Return what the stage begins with: its state, the values, and what it shows."""
    state = {
        "turn": 100,
        "query": [1.25, 0.75],
        "keys": [
            [1.25, -0.125],
            [0.5, 1.25],
            [-1.125, 1.0],
            [-1.0, -0.875],
            [0.5, -1.25],
        ],
        "chosen": 1,
        "from": [-0.125, 0.75],
    }
    values = [
        [1.625, -0.875],
        [-1.625, 0.75],
        [0.5, 1.625],
        [-0.875, -1.5],
        [1.5, 0.75],
    ]
    return state, torch.tensor(values, dtype=F64), evaluate("dial", ("look", state))[0]


def test_the_drawing_for_paper_shows_the_start(evaluate: Any) -> None:
    _, _, seen = start(evaluate)
    root = ET.parse(DRAWING).getroot()
    nodes = {
        name: [n for n in root.iter() if n.get("class") == name]
        for name in ("weight", "output")
    }
    texts = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert [f"{a:.3f}" for a in seen["weights"]] == [
        t for t in texts if re.fullmatch(r"0\.\d{3}", t or "")
    ]
    for bar, weight in zip(nodes["weight"], seen["weights"], strict=True):
        assert float(bar.get("width", 0)) == pytest.approx(250 * weight, abs=0.06)
    (output,) = nodes["output"]
    x, y = float(output.get("cx", 0)), float(output.get("cy", 0))
    assert ((x - 272) / 39, (110 - y) / 39) == pytest.approx(seen["output"], abs=0.002)
    facts = (
        f"entropy {seen['entropy']:.3f} nats, {seen['effective']:.2f} effective keys"
    )
    assert any(facts in (text or "") for text in texts)
    described = next(root.iter("{http://www.w3.org/2000/svg}desc")).text or ""
    for number in (norm(seen["moved"]), norm(seen["step"])):
        assert f"{number:.3f}" in described
    for x, y in (seen["before"], seen["output"], seen["without"]):
        assert f"({x:.2f}, {y:.2f})".replace("-", "−") in described


@pytest.fixture
def stage(page: Page, address: str) -> Page:
    page.goto(f"{address}chapters/attention/", wait_until="domcontentloaded")
    page.locator("[data-explorable=dial]").scroll_into_view_if_needed()
    page.wait_for_selector("[data-explorable=dial].live")
    return page


def check(page: Page, query: Any, keys: Any, values: Tensor, beta: float) -> None:
    """Compare bars, entropy and the drawn output with the package."""
    page.evaluate(DRAWN)
    rows = torch.tensor(query, dtype=F64)[None], torch.tensor(keys, dtype=F64)
    output, weights = dot_product_attention(
        *rows, values, scale=beta, return_weights=True
    )
    shown = page.locator(".stage.dial .bars .value").all_inner_texts()
    entropy = float(torch.special.entr(weights).sum())
    assert shown == [f"{a:.3f}" for a in (*weights[0].tolist(), entropy)]
    place = page.locator(".stage.dial .output").get_attribute("transform") or ""
    x, y = (float(c) for c in re.findall(NUMBER, place))
    assert ((x - 100) / 46, (100 - y) / 46) == pytest.approx(
        output[0].tolist(), abs=1e-9
    )


def test_keys_move_by_arrows_and_the_scale_turns(stage: Page, evaluate: Any) -> None:
    state, values, _ = start(evaluate)
    query, keys = state["query"], state["keys"]
    check(stage, query, keys, values, 1.0)
    beta = stage.get_by_role("slider", name="Scale β")
    beta.focus()
    beta.press("End")
    assert beta.get_attribute("aria-valuetext") == "∞ (hard)"
    check(stage, query, keys, values, math.inf)
    stage.get_by_role("button", name="Give keys 1 and 2").click()
    keys[0], keys[1] = [1.25, 0.25], [0.5, 1.5]
    check(stage, query, keys, values, math.inf)
    beta.focus()
    beta.press("Home")
    check(stage, query, keys, values, 0.0)
    for _ in range(3):
        beta.press("ArrowRight")
    check(stage, query, keys, values, 3 / 197)
    third = stage.get_by_role("slider", name="Key 3", exact=True)
    third.focus()
    third.press("Shift+ArrowRight")
    third.press("ArrowDown")
    keys[2] = [keys[2][0] + 10 / 16, keys[2][1] - 1 / 16]
    check(stage, query, keys, values, 3 / 197)
    assert (third.get_attribute("aria-valuetext") or "").startswith(
        "(−0.50, 0.94), score"
    )


def test_a_handle_keeps_its_distance_and_keys_lead_to_the_edges(stage: Page) -> None:
    handle = stage.get_by_role("slider", name="Key 5", exact=True)
    box = handle.locator(".dot").bounding_box()
    assert box
    x, y = box["x"] + box["width"] / 2 + 5, box["y"] + box["height"] / 2
    stage.mouse.move(x, y)
    stage.mouse.down()
    stage.mouse.move(x + 0.1, y)
    stage.mouse.up()
    told = re.compile(r"^\(0\.50, −1\.25\)")
    expect(handle).to_have_attribute("aria-valuetext", told)
    # A ring is for the keyboard only.
    expect(handle).to_have_class(re.compile("pointed"))
    before = stage.evaluate("scrollY")
    for key, place in {"Home": "−2.00, −1.25", "End": "2.00, −1.25"}.items():
        handle.press(key)
        told = re.compile(rf"^\({re.escape(place)}\)")
        expect(handle).to_have_attribute("aria-valuetext", told)
    assert stage.evaluate("scrollY") == before
    expect(handle).not_to_have_class(re.compile("pointed"))


def test_a_dragged_key_slides_the_output_and_leaving_ends_it(
    stage: Page, address: str, evaluate: Any
) -> None:
    state, values, _ = start(evaluate)
    handle = stage.get_by_role("slider", name="Key 1", exact=True)
    box = handle.locator(".dot").bounding_box()
    assert box
    unit = (
        (stage.locator(".stage.dial .drawing").first.bounding_box() or {})["width"]
        / 200
        * 46
    )
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    stage.mouse.move(x, y)
    stage.mouse.down()
    stage.mouse.move(x - 0.75 * unit, y - 0.5 * unit, steps=5)
    stage.mouse.up()
    moved = [state["keys"][0][0] - 0.75, state["keys"][0][1] + 0.5]
    keys = [moved, *state["keys"][1:]]
    check(stage, state["query"], keys, values, 1.0)
    now = {"keys": keys, "chosen": 0, "from": state["keys"][0]}
    (seen,) = evaluate("dial", ("look", state | now))
    step, real = f"{norm(seen['step']):.3f}", f"{norm(seen['moved']):.3f}"
    fact = f"predicted step (arrow) {step}, real step {real}."
    assert fact in stage.locator(".stage.dial .facts").inner_text()
    stage.evaluate("window.kept = document.querySelector('.stage.dial g.key')")
    assert not stage.evaluate(DEAF)
    stage.locator("nav.md-tabs a").first.click()
    stage.wait_for_url(address)
    stage.wait_for_function(DEAF)
