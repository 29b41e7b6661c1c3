"""Count the frames that the site's explorables drop while something is dragged.

    make build
    python benchmarks/explorables.py            prints, and writes the record

For each explorable, a browser drags a handle, or a slider, in circles for some seconds.
A frame is dropped if more than one and a half sixtieths of a second pass since the one
before. Beside it stands the same count on the same page while nothing moves: what the
machine and a browser without graphics card drop anyway. Processor time of the page's
main thread per frame depends less on what else the machine does.

Every explorable has a process of its own, which is given up after a time.
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
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from playwright.sync_api import Locator, Page, sync_playwright

ROOT = Path(__file__).parents[1]
RECORD = Path(__file__).parent / "records/explorables.json"
OPTIONS = ["--no-sandbox", "--disable-gpu", "--no-first-run"]
SECONDS = 3.0
MOST_MOVES = 2000  # even if the clock stood still
PATIENCE = 60_000  # milliseconds to wait for a page, or for what it loads
TIME_LIMIT = 240.0  # seconds for one explorable
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
    "live_vit": ("vision_transformer", ".view .handle"),
}
# Where something has to be loaded first: the button, and what shows that all is there.
LOADED = {"live_vit": ("button", "[data-run]")}


def serve(folder: Path) -> str:
    """Serve a folder on this machine, and return its address."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Keep quiet."""

    handler = functools.partial(Handler, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}/"


def watched(page: Page, act: Callable[[int], None]) -> dict[str, Any]:
    """Count frames while something is done, again and again."""
    tracing = page.context.new_cdp_session(page)
    tracing.send("Performance.enable", {"timeDomain": "threadTicks"})

    def busy() -> float:
        metrics = tracing.send("Performance.getMetrics")["metrics"]
        return {m["name"]: m["value"] for m in metrics}["TaskDuration"]

    page.evaluate(WATCH)
    before, end = busy(), time.monotonic() + SECONDS
    for count in range(MOST_MOVES):
        if time.monotonic() > end:
            break
        act(count)
    spent = busy() - before
    times = page.evaluate(FRAMES)
    tracing.detach()
    gaps = [after - before for before, after in pairwise(times)]
    if not gaps:
        raise RuntimeError("the page must draw at least two frames, got fewer.")
    return {
        "frames": len(gaps),
        "dropped": sum(gap > 1500 / 60 for gap in gaps),
        "median_ms": round(sorted(gaps)[len(gaps) // 2], 1),
        "processor_ms": round(1e3 * spent / len(gaps), 2),
    }


def load(stage: Locator, button: str, ready: str) -> None:
    """Load what a stage needs, and wait until it is there."""
    stage.locator(button).first.click()
    stage.and_(stage.page.locator(ready)).wait_for()
    stage.page.wait_for_timeout(500)


def measure(page: Page, stage: Locator, selector: str) -> dict[str, Any]:
    """Drag what the selector finds, and count frames without and with it."""
    idle = watched(page, lambda _: page.wait_for_timeout(8))
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


def measure_here(name: str, address: str) -> dict[str, Any]:
    """Open the page of an explorable in a browser, and measure it."""
    finder = [sys.executable, str(ROOT / "tools/browser.py")]
    chromium = subprocess.run(finder, capture_output=True, text=True, check=True)
    chapter, selector = DRAGGED[name]
    with sync_playwright() as play:
        path = chromium.stdout.strip()
        browser = play.chromium.launch(executable_path=path, args=OPTIONS)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(PATIENCE)
        page.goto(f"{address}chapters/{chapter}/")
        figure = page.locator(f"figure[data-explorable={name}]")
        figure.scroll_into_view_if_needed()
        page.locator(f"figure.live[data-explorable={name}]").wait_for()
        stage = figure.locator(".stage")
        if name in LOADED:
            load(stage, *LOADED[name])
        # A handle must lie in the window, wherever it is in a high stage.
        handle = stage.locator(selector).first
        handle.evaluate("node => node.scrollIntoView({ block: 'center' })")
        page.wait_for_timeout(500)
        found = measure(page, stage, selector)
        browser.close()
    return found


def main() -> None:
    """Measure every explorable of a built site."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--site", type=Path, default=ROOT / "site")
    parser.add_argument("--only", choices=DRAGGED, help="measure one; write no record")
    parser.add_argument("--address", help=argparse.SUPPRESS)  # of a served site
    given = parser.parse_args()
    if given.address:
        print(json.dumps(measure_here(given.only, given.address)))
        return
    if not (given.site / "index.html").is_file():
        raise SystemExit(f"there is no site in {given.site}: run make build first.")
    address, record = serve(given.site), {}
    for name in [given.only] if given.only else DRAGGED:
        command = [sys.executable, __file__, "--only", name, "--address", address]
        try:
            done = subprocess.run(
                command, stdout=subprocess.PIPE, text=True, timeout=TIME_LIMIT
            )
        except subprocess.TimeoutExpired as error:
            raise SystemExit(f"{name} took more than {TIME_LIMIT:.0f} s.") from error
        if done.returncode:
            raise SystemExit(f"{name} could not be measured.")
        record[name] = json.loads(done.stdout)
        print(name, record[name], flush=True)
    if not given.only:
        RECORD.write_text(json.dumps(record, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
