"""Count the frames that the site's explorables drop while something is dragged.

    make build
    python benchmarks/explorables.py            prints, and writes the record

For each explorable, a browser drags a handle, or a slider, in circles for some seconds.
A frame is dropped if more than one and a half sixtieths of a second pass since the one
before. Beside it stands the same count on the same page while nothing moves: what the
machine and a browser without graphics card drop anyway.
"""

import argparse
import functools
import http.server
import json
import math
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from playwright.sync_api import Locator, Page, sync_playwright

ROOT = Path(__file__).parents[1]
RECORD = Path(__file__).parent / "records/explorables.json"
OPTIONS = ["--no-sandbox", "--disable-gpu", "--no-first-run"]
SECONDS = 3.0
WATCH = """() => {
  window.frames = [];
  const note = time => {
    window.frames.push(time);
    window.watch = requestAnimationFrame(note);
  };
  window.watch = requestAnimationFrame(note);
}"""
FRAMES = "() => { cancelAnimationFrame(window.watch); return window.frames; }"
# Where each explorable is, and what to drag.
DRAGGED = {
    "dial": ("attention", ".handle"),
    "clocks": ("positional_encoding", ".handle"),
    "heads": ("self_attention", "input[type=range]"),
    "decoding": ("transformer", "input[type=range]"),
    "convolution": ("attention_as_convolution", ".handle"),
    "live_vit": ("vision_transformer", "button"),
}


def serve(folder: Path) -> str:
    """Serve a folder on this machine, and return its address."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Keep quiet."""

    handler = functools.partial(Handler, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}/"


def watched(page: Page, act: Any) -> dict[str, Any]:
    """Count frames while something is done, again and again."""
    page.evaluate(WATCH)
    end, count = time.monotonic() + SECONDS, 0
    while time.monotonic() < end:
        act(count)
        count += 1
    times = page.evaluate(FRAMES)
    gaps = [after - before for before, after in pairwise(times)]
    late = sum(gap > 1500 / 60 for gap in gaps)
    return {
        "frames": len(gaps),
        "dropped": late,
        "median_ms": round(sorted(gaps)[len(gaps) // 2], 1),
    }


def measure(page: Page, stage: Locator, selector: str) -> dict[str, Any]:
    """Drag what the selector finds, and count frames without and with it."""
    idle = watched(page, lambda _: page.wait_for_timeout(16))
    if selector == "button":  # the live model: patches follow the pointer
        stage.locator("button").first.click()
        stage.locator(".handle, [role=slider], canvas, svg").first.wait_for()
        page.wait_for_timeout(3000)
        selector = "svg, canvas"
    box = stage.locator(selector).first.bounding_box()
    if box is None:
        raise RuntimeError(f"nothing to drag: {selector}")
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2

    def circle(count: int) -> None:
        angle = count / 8
        page.mouse.move(x + 30 * math.cos(angle), y + 30 * math.sin(angle))
        page.wait_for_timeout(8)  # as often as a mouse reports

    page.mouse.move(x, y)
    page.mouse.down()
    dragged = watched(page, circle)
    page.mouse.up()
    return {"idle": idle, "dragged": dragged}


def main() -> None:
    """Measure every explorable of a built site."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--site", type=Path, default=ROOT / "site")
    given = parser.parse_args()
    if not (given.site / "index.html").is_file():
        raise SystemExit(f"there is no site in {given.site}: run make build first.")
    finder = [sys.executable, str(ROOT / "tools/browser.py")]
    chromium = subprocess.run(finder, capture_output=True, text=True, check=True)
    address, record = serve(given.site), {}
    with sync_playwright() as play:
        path = chromium.stdout.strip()
        browser = play.chromium.launch(executable_path=path, args=OPTIONS)
        for name, (chapter, selector) in DRAGGED.items():
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            page.goto(f"{address}chapters/{chapter}/", timeout=120_000)
            figure = page.locator(f"figure[data-explorable={name}]")
            figure.scroll_into_view_if_needed()
            page.locator(f"figure.live[data-explorable={name}]").wait_for()
            stage = figure.locator(".stage")
            stage.evaluate("stage => stage.scrollIntoView({ block: 'center' })")
            page.wait_for_timeout(500)
            record[name] = measure(page, stage, selector)
            print(name, record[name], flush=True)
            page.close()
        browser.close()
    RECORD.write_text(json.dumps(record, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
