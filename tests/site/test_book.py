"""The whole book: every question answered, every answer with its evidence."""

import html
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
QUESTIONS = tomllib.loads((ROOT / "docs/questions.toml").read_text("utf-8"))["question"]
MEGABYTES = 30
HEADING = re.compile(r'<h3 class="question" id="([^"]+)">')
EVIDENCE = re.compile(
    r'<details class="evidence"[^>]*>\s*<summary>(.*?)</summary>(.*?)</details>', re.S
)
CELL = re.compile(r"<td[^>]*>(.*?)</td>", re.S)
PLACE = re.compile(r'<p class="place"><a href="([^"#]+)#(L\d+)">')


def text_of(markup: str) -> str:
    """Give what a reader sees."""
    return html.unescape(re.sub(r"<[^>]+>", "", markup))


@pytest.fixture(scope="module")
def answers(folder: Path) -> dict[str, tuple[Path, str]]:
    """Give each answer's page and HTML, by the question's id."""
    found: dict[str, tuple[Path, str]] = {}
    for page in sorted(folder.glob("chapters/*/index.html")):
        parts = HEADING.split(page.read_text("utf-8"))
        for id_, body in zip(parts[1::2], parts[2::2], strict=True):
            assert id_ not in found
            found[id_] = page, re.split(r"<h2\b|</article>", body)[0]
    return found


def test_every_question_is_answered_on_its_chapters_page(
    answers: dict[str, tuple[Path, str]],
) -> None:
    assert QUESTIONS
    wanted = {question["id"]: question["chapter"] for question in QUESTIONS}
    assert {id_: page.parent.name for id_, (page, _) in answers.items()} == wanted


def test_every_answer_restates_the_question_and_can_be_folded(
    answers: dict[str, tuple[Path, str]],
) -> None:
    for id_, (_, body) in answers.items():
        if 'class="solution"' in body:
            asked, answer = body.split('<details class="solution" open="">')
            assert len(text_of(asked).split()) > 8, id_
            assert len(text_of(answer).split()) > 8, id_
            continue
        boxes = re.findall(
            r'<div class="admonition (\w+)">\s*<p class="admonition-title">', body
        )
        assert boxes[:2] == ["question", "success"], id_


def test_every_answer_has_tests_of_its_own_on_the_page_of_evidence(
    folder: Path,
) -> None:
    page = folder / "evidence/index.html"
    parts = re.split(r'<h3 id="evidence-([^"]+)">', page.read_text("utf-8"))
    found = dict(zip(parts[1::2], parts[2::2], strict=True))
    assert found.keys() == {question["id"] for question in QUESTIONS}
    for id_, body in found.items():
        shown = 0
        for _, inner in EVIDENCE.findall(body):
            place = PLACE.search(inner)
            if place is None:
                continue  # the list of further tests
            listing = (page.parent / place[1] / "index.html").read_text("utf-8")
            line = re.search(rf'<a id="{place[2]}"[^>]*>\d+</a>(.*)', listing)
            assert line is not None, f"{id_}: {place[0]}"
            code = text_of(inner).strip()
            assert code.startswith(text_of(line[1]).strip()), id_
            command = re.search(r"\.venv/bin/pytest (?:--\S+ )?(\S+)::(\w+)", code)
            assert command is not None, id_
            assert (ROOT / command[1]).is_file()
            shown += f'"{id_}"' in code.split("def ")[0]
        assert shown, f"{id_} shows no test that carries its marker"


def test_the_index_lists_every_question_by_course_and_by_chapter(folder: Path) -> None:
    page = (folder / "questions/index.html").read_text("utf-8")
    ids = [question["id"] for question in QUESTIONS]
    for kind in (r"\.\./chapters/\w+/#", r"\.\./evidence/#evidence-"):
        found = re.findall(rf'href="{kind}([\w.-]+)"', page)
        assert sorted(found) == sorted(ids * 2)


def test_every_erratum_is_on_its_chapters_page_and_in_the_list(folder: Path) -> None:
    whole = (folder / "errata/index.html").read_text("utf-8")
    files = sorted((ROOT / "docs/errata").glob("*.toml"))
    assert files
    for file in files:
        chapter = (folder / "chapters" / file.stem / "index.html").read_text("utf-8")
        for erratum in tomllib.loads(file.read_text("utf-8"))["erratum"]:
            anchor = f'id="erratum-{erratum["id"]}"'
            assert chapter.count(anchor) == 1
            assert whole.count(anchor) == 1
    assert whole.count("Counterexample: ") >= whole.count('class="admonition erratum ')


def test_the_ledger_has_a_source_for_every_published_number(folder: Path) -> None:
    page = (folder / "ledger/index.html").read_text("utf-8")
    listed = tomllib.loads((ROOT / "docs/ledger.toml").read_text("utf-8"))["group"]
    sourced = {
        text_of(cells[0]): "<a href=" in cells[1]
        for cells in map(CELL.findall, re.findall("<tr>.*?</tr>", page, re.S))
        if cells
    }
    for row in [row for group in listed for row in group["row"]]:
        assert row["what"] in sourced
        if "published" in row:
            assert sourced[row["what"]], "every published number has a source"
    for place in [x for g in listed for row in g["row"] for x in row.get("ours", [])]:
        chapter = place.split("/")[0].split()[0]
        assert (ROOT / "examples" / f"{chapter}.py").is_file()
    assert page.count(">ours</a>") > 10
    assert "usual" not in text_of(page)


def test_every_notebook_can_be_downloaded(folder: Path) -> None:
    notebooks = sorted((ROOT / "docs").glob("*/*.ipynb"))
    assert {path.parent.name for path in notebooks} == {"assignments", "notebooks"}
    for notebook in notebooks:
        below = folder / notebook.parent.name / notebook.stem
        page = (below / "index.html").read_text("utf-8")
        assert f'download="{notebook.name}"' in page
        assert (below / notebook.name).read_bytes() == notebook.read_bytes()


def test_terms_explain_themselves_in_every_chapter(folder: Path) -> None:
    files = sorted((ROOT / "docs/chapters").glob("*.md"))
    chapters = [file.stem for file in files if file.stem != "index"]
    assert chapters
    for name in chapters:
        page = (folder / "chapters" / name / "index.html").read_text("utf-8")
        assert re.search(r'<abbr title="[^"]{20,}">', page), name


def test_without_a_forge_there_is_nothing_to_edit(folder: Path) -> None:
    page = (folder / "chapters/attention/index.html").read_text("utf-8")
    assert "edit/main" not in page
    assert "md-source" not in page


def test_the_site_is_small(folder: Path) -> None:
    files = [path for path in folder.rglob("*") if path.is_file()]
    # Python and the live model are fetched only when a reader asks for them.
    on_click = ("exercises", "vit.safetensors")
    read = [path for path in files if not {*path.parts} & {*on_click}]
    assert sum(path.stat().st_size for path in read) < MEGABYTES * 1e6
