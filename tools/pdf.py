"""Print the built site's chapters into one PDF, with contents, numbers and bookmarks.

    python tools/pdf.py site site/book.pdf               the book
    python tools/pdf.py site handout.pdf --no-answers    with the answers folded

The pages are put into one document in a browser, so that links between them work on
paper too, and the browser prints it. The page numbers of the contents come from
printing each chapter by itself.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import re
import sys
import threading
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

sys.path.insert(0, str(Path(__file__).parent))
from browser import find_browser

CHAPTER = re.compile(r"\((chapters/\w+/)index\.md\)")
LAST = ["notation/", "glossary/", "references/"]
A_PAGE = re.compile(rb"/Type\s*/Page\b")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
PAPER = {"top": "20mm", "bottom": "24mm", "left": "26mm", "right": "26mm"}
FOOTER = """<div style="width: 100%; font: 9px sans-serif; text-align: center">
<span class="pageNumber"></span></div>"""
STYLE = """
html { font-size: 17px !important; }
html, body { background: white; }
.part, .front { break-before: page; }
.front:first-child { break-before: auto; }
.front.title { padding-top: 60mm; text-align: center; }
.front.title p:last-child { padding-top: 100mm; font-size: .8em; }
.md-content__inner { margin: 0; padding: 0; }
.md-content__inner::before { content: none; }
.toc { list-style: none; margin: 0 !important; }
.toc a { display: flex; justify-content: space-between; text-decoration: none; }
"""
# Takes the pages in order, and makes one document of them. Anchors get the name of
# their page, so that two pages may have the same one.
BIND = """async ({pages, title, about, style, answers}) => {
    const root = new URL(".", location.href).href;
    const slug = path => path.replace(/\\W+/g, "-").replace(/-$/, "");
    const name = (path, anchor) => slug(path) + (anchor ? "--" + anchor : "");
    const headline = document.querySelector("h1")?.firstChild?.textContent ?? title;
    const rights = document.querySelector(".md-copyright")?.textContent.trim() ?? "";
    const parts = [];
    for (const path of pages) {
        const text = await (await fetch(root + path)).text();
        const read = new DOMParser().parseFromString(text, "text/html");
        const article = read.querySelector("article") ?? read.body;
        const part = document.createElement("section");
        part.className = "part";
        part.id = slug(path);
        const all = selector => article.querySelectorAll(selector);
        all("script, button, .headerlink, details.evidence").forEach(x => x.remove());
        for (const node of all("[id]")) node.id = name(path, node.id);
        for (const node of all("[aria-labelledby]"))
            node.setAttribute("aria-labelledby", node.getAttribute("aria-labelledby")
                .split(" ").map(id => name(path, id)).join(" "));
        for (const node of all("[href], [src]")) {
            const kind = node.hasAttribute("href") ? "href" : "src";
            const url = new URL(node.getAttribute(kind), root + path);
            const page = url.href.split("#")[0].replace(root, "");
            if (kind == "href" && pages.includes(page))
                node.setAttribute(kind, "#" + name(page, decodeURI(url.hash.slice(1))));
            else if (kind == "href" && url.href.startsWith(root))
                node.removeAttribute(kind);  // leads out of the book
            else node.setAttribute(kind, url.href);
        }
        for (const node of all("img")) node.loading = "eager";
        for (const node of all("details")) {
            const answer = node.matches(".answer, .solution");
            node.open = answer ? answers : !node.matches(".erratum");
        }
        for (const kind of ["marker-end", "marker-start", "fill"])
            for (const node of all(`[${kind}^="url(#"]`))
                node.setAttribute(kind, node.getAttribute(kind)
                    .replace("url(#", `url(#${slug(path)}--`));
        if (path.startsWith("chapters/"))
            article.querySelector("h1").prepend(`${parts.length + 1} `);
        part.append(...article.childNodes);
        parts.push(part);
    }
    const front = document.createElement("section");
    front.className = "front title";
    for (const [kind, text] of [["h1", headline], ["p", about], ["p", rights]]) {
        const line = document.createElement(kind);
        line.textContent = text;
        front.append(line);
    }
    const contents = document.createElement("section");
    contents.className = "front";
    contents.innerHTML = "<h2>Contents</h2><ul class=toc></ul>";
    for (const part of parts) {
        const line = document.createElement("li");
        line.innerHTML = "<a><span></span><span class=number></span></a>";
        line.firstChild.href = "#" + part.id;
        line.querySelector("span").textContent = part.querySelector("h1").textContent;
        contents.lastChild.append(line);
    }
    const book = document.createElement("article");
    book.className = "md-content__inner md-typeset";
    book.append(front, contents, ...parts);
    const content = document.createElement("div");
    content.className = "md-content";
    content.append(book);
    document.body.replaceChildren(content);
    document.body.dataset.mdColorScheme = "default";
    document.title = title;
    const own = document.createElement("style");
    own.textContent = style;
    document.head.append(own);
    const drawn = [...document.images].map(image => image.decode().catch(() => {}));
    await Promise.all(drawn);
    await document.fonts.ready;
    return parts.map(part => part.id);
}"""
# Shows only the front matter, or only one part, or everything.
SHOW = """shown => document.querySelectorAll(".part, .front").forEach(part => {
    part.hidden = shown !== "" && part.id !== shown
        && !(shown === "front" && part.matches(".front"));
})"""
NUMBER = """numbers => document.querySelectorAll(".toc .number")
    .forEach((cell, place) => { cell.textContent = numbers[place]; })"""


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves the site without a word."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Keep quiet."""


def printed(page: Page) -> bytes:
    """Print what the page shows."""
    return page.pdf(
        format="A4",
        margin=PAPER,  # type: ignore[arg-type]
        display_header_footer=True,
        header_template="<span></span>",
        footer_template=FOOTER,
        print_background=True,
        outline=True,
        tagged=True,
    )


def bind(site: Path, *, answers: bool = True) -> bytes:
    """Return the chapters of a built site as one PDF."""
    listed = (site / "llms.txt").read_text("utf-8")
    title, about = re.match(r"# (.*)\n+> (.*)", listed).groups()  # type: ignore[union-attr]
    last = [path for path in LAST if (site / path / "index.html").is_file()]
    chapters = [x for x in dict.fromkeys(CHAPTER.findall(listed)) if x != "chapters/"]
    handler = functools.partial(Handler, directory=str(site))
    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server,
        sync_playwright() as play,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = play.chromium.launch(executable_path=find_browser(), args=FLAGS)
        page = browser.new_page(color_scheme="light")
        page.set_default_timeout(600_000)
        page.goto(f"http://127.0.0.1:{server.server_port}/", wait_until="networkidle")
        given = {"pages": [*chapters, *last], "title": title, "about": about}
        parts = page.evaluate(BIND, {**given, "style": STYLE, "answers": answers})
        number, numbers = 1, []
        for part in ["front", *parts]:
            page.evaluate(SHOW, part)
            numbers.append(number)
            number += len(A_PAGE.findall(printed(page)))
        page.evaluate(SHOW, "")
        page.evaluate(NUMBER, numbers[1:])
        made = printed(page)
        browser.close()
        server.shutdown()
    return made


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("site", type=Path, help="the folder of the built site")
    parser.add_argument("out", type=Path, help="the PDF to write")
    folding = "fold the answers to exercises and questions"
    parser.add_argument("--no-answers", action="store_true", help=folding)
    arguments = parser.parse_args()
    book = bind(arguments.site, answers=not arguments.no_answers)
    arguments.out.write_bytes(book)
    print(f"{arguments.out}: {len(A_PAGE.findall(book))} pages")
