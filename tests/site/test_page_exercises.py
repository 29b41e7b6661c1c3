"""Exercises in the page: solved, failed, hinted, stopped, and nothing loaded before."""

import json
import time

import pytest
from playwright.sync_api import Page, expect

BOX = "#exercise-attention-softmax"
RIGHT = """
import numpy as np

def softmax(scores, scale):
    z = scale * scores
    w = np.exp(z - z.max(-1, keepdims=True))
    return w / w.sum(-1, keepdims=True)
"""
HEAVY = ("/assets/exercises/", ".wasm")


@pytest.fixture
def opened(page: Page, address: str) -> Page:
    page.goto(f"{address}chapters/attention/{BOX}")
    unfold(page)
    return page


def unfold(page: Page) -> None:
    # Material unfolds what an address names, but when it does is up to it.
    page.locator(BOX).evaluate("box => { box.open = true; }")


def check(page: Page, code: str) -> str:
    box = page.locator(BOX)
    box.locator("textarea").fill(code)
    box.locator("output").evaluate("out => { out.dataset.state = 'waiting'; }")
    box.get_by_role("button", name="Check").click()
    output = box.locator("output:not([data-state=waiting])")
    output.wait_for(timeout=120_000)
    return output.inner_text()


def test_an_exercise_is_failed_hinted_and_solved_by_typing(
    opened: Page, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []
    opened.on("request", lambda request: asked.append(request.url))
    box = opened.locator(BOX)
    started = time.perf_counter()
    wrong = RIGHT.replace(" - z.max(-1, keepdims=True)", "").replace(
        "w.sum(-1, keepdims=True)", "w.sum()"
    )
    assert "all weights together sum to 1" in check(opened, wrong)
    took = time.perf_counter() - started
    box.get_by_text("Hint 2").click()
    assert "keepdims=True" in box.locator("details.hint").nth(1).inner_text()
    assert check(opened, RIGHT).startswith("Right. It agrees on all 5 inputs.")
    assert "solved" in (box.get_attribute("class") or "")
    stored = opened.evaluate("localStorage.getItem('exercises-solved')")
    assert json.loads(stored) == ["attention/softmax"]
    # All of it came from the site itself.
    assert asked
    assert all(url.startswith("http://127.0.0.1:") for url in asked)
    with capsys.disabled():
        print(f"\nfrom the click to the first answer: {took:.1f} s")


def test_an_endless_loop_is_stopped_and_the_next_answer_is_checked(
    opened: Page,
) -> None:
    loop = "def softmax(scores, scale):\n    while True: pass\n"
    assert "did not end within 10 seconds" in check(opened, loop)
    assert check(opened, RIGHT).startswith("Right.")


def test_an_answer_cannot_reach_the_network_or_the_page(opened: Page) -> None:
    asked: list[str] = []
    check(opened, RIGHT)  # loads Python
    opened.on("request", lambda request: asked.append(request.url))
    sneaky = """
from pyodide.code import run_js
def softmax(scores, scale):
    for attempt in ("fetch('/x')", "new XMLHttpRequest()", "document.title = 'x'",
                    "new WebSocket('ws://x')", "importScripts('/x')"):
        try:
            run_js(attempt)
        except BaseException:
            continue
        raise ValueError("reached: " + attempt)
    raise ValueError("reached nothing")
"""
    assert "reached nothing" in check(opened, sneaky)
    assert asked == []
    shown = "def softmax(scores, scale):\n    raise ValueError('<img src=x>')\n"
    assert "<img src=x>" in check(opened, shown)
    assert opened.locator(f"{BOX} output img").count() == 0


def workers(page: Page) -> int:
    # The search has one, too.
    return sum("/assets/exercises/" in worker.url for worker in page.workers)


def test_nothing_is_loaded_before_a_click_and_nothing_stays_after_leaving(
    page: Page, address: str
) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{address}chapters/attention/{BOX}", wait_until="networkidle")
    assert not [url for url in asked if any(part in url for part in HEAVY)]
    assert workers(page) == 0
    unfold(page)
    box = page.locator(BOX)
    box.get_by_role("button", name="Check").click()
    expect(box.locator("output")).not_to_be_empty()
    assert workers(page) == 1
    page.locator("nav.md-tabs a").first.click()
    page.wait_for_url(address)
    for _ in range(100):
        if workers(page) == 0:
            break
        page.wait_for_timeout(100)
    assert workers(page) == 0


def test_without_scripts_the_task_the_hints_and_the_command_are_there(
    browser, address: str
) -> None:
    with browser.new_context(java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(f"{address}chapters/attention/{BOX}")
        box = page.locator(BOX)
        box.locator("summary").first.click()
        assert "no weight may overflow" in box.inner_text()
        command = "transformers-hw exercise start attention/softmax"
        assert command in box.inner_text()
        assert box.get_by_role("button").count() == 0
