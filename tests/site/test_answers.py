"""What the book's directives make of a page, and which mistakes stop the build."""

import json
import re
from pathlib import Path

import pytest
from small import build, warnings

HOOKS = ("formulas", "answers", "sources", "glossary")
QUESTIONS = """
[source.uni]
title = "Sheet 1"
place = "A university"
points = 3

[[question]]
id = "uni-1a"
source = "uni"
points = 1
chapter = "one"
title = "First"

[[question]]
id = "uni-1b"
source = "uni"
chapter = "one"
title = "Second"
"""
TESTS = '''import pytest


@pytest.mark.question("uni-1a")
def test_two_and_two_are_four():
    """```"""
    assert 2 + 2 == 4


@pytest.mark.unhooked
class TestMore:
    @pytest.mark.question("uni-1b", "uni-1a")
    @pytest.mark.parametrize("x", [1, 2])
    def test_sums_commute(self, x):
        assert x + 1 == 1 + x
'''
RUN = {
    "command": "python examples/one.py cpu",
    "device": "cpu (x86_64, Linux)",
    "seconds": 124.0,
    "metrics": {"loss": 0.12345, "heads, two": [3.5e-7, 4], "tiny": -0.5},
}
SVG = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 30 60"></svg>'
REFERENCE = """
[me2020]
short = "Me et al."
authors = "Me, A. & You, B."
year = 2020
title = "A Paper"
venue = "Journal"
url = "https://example.org"
"""
ERRATUM = """
[[erratum]]
id = "uni-1a-sign"
question = "uni-1a"
source = "quiz"
title = "A sign"
claim = "It is $-4$, says [another part](#uni-1b)."
right = "It is 4."
tests = ["test_two_and_two_are_four"]
"""
CHAPTER = """---
title: The first
chapter: 1
---
# One

[[question uni-1a]]

Four, softly [[cite me2020 section 2]]. The loss is [[number one metrics.loss .2f]], the
gap [[number one "metrics.heads, two.0" .1e]], [[number one "metrics.heads, two.1"]] and
[[number one metrics.tiny]]. Not `[[number one x]]`. Softly, see
[`add`][transformers_hw.add].

```text
[[question uni-1b]]
```

[[evidence uni-1a: test_two_and_two_are_four]]

!!! note
    [[figure one/curve: A curve that falls
    from left to right]]
    > It falls by [[number one metrics.loss .1%]].

[[erratum uni-1a-sign]]

[[question uni-1b]]

Softly.

[[evidence uni-1b]]

[transformers_hw.add]: #uni-1a
"""
INDEX = "[[list questions]]\n\n[[list errata]]\n\n[[list references]]\n"
GOOD = {
    "docs/index.md": "# Home",
    "docs/questions.toml": QUESTIONS,
    "docs/references.toml": REFERENCE,
    "docs/errata/one.toml": ERRATUM,
    "docs/chapters/one.md": CHAPTER,
    "docs/everything.md": INDEX,
    "docs/references.md": "[[list references]]\n",
    "docs/glossary.md": "[[list terms]]\n",
    "docs/glossary.toml": '"softly" = "Not <hard>."\n',
    "docs/figures/one/run.json": json.dumps(RUN),
    "docs/figures/one/curve-light.svg": SVG,
    "docs/figures/one/curve-dark.svg": SVG,
    "examples/one.py": '"""Figures of chapter one."""\n',
    "src/transformers_hw/__init__.py": "def add():\n    return 2 + 2\n",
    "tests/test_sums.py": TESTS,
}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a site without a mistake."""
    folder = tmp_path_factory.mktemp("good")
    built = build(folder, GOOD, hooks=HOOKS)
    assert built.returncode == 0, built.stderr
    return folder / "site"


@pytest.fixture(scope="module")
def chapter(good: Path) -> str:
    return (good / "chapters/one/index.html").read_text("utf-8")


@pytest.fixture(scope="module")
def everything(good: Path) -> str:
    return (good / "everything/index.html").read_text("utf-8")


def test_a_question_is_headed_by_its_title_and_where_it_comes_from(
    chapter: str,
) -> None:
    assert '<h3 class="question" id="uni-1a">First' in chapter
    assert "A university · question 1a · 1 point · <code>uni-1a</code>" in chapter


def test_evidence_shows_the_test_its_command_and_its_line(
    good: Path, chapter: str
) -> None:
    assert "<summary>Two and two are four</summary>" in chapter
    assert ".venv/bin/pytest tests/test_sums.py::test_two_and_two_are_four" in re.sub(
        r"<[^>]+>", "", chapter
    )
    assert 'href="../../source/tests/test_sums.py/#L4"' in chapter
    listing = (good / "source/tests/test_sums.py/index.html").read_text("utf-8")
    line = next(line for line in listing.splitlines() if 'id="L4"' in line)
    assert "question" in line


def test_evidence_not_chosen_is_linked_and_classes_and_unhooked_tests_run(
    chapter: str,
) -> None:
    assert "<summary>1 more test</summary>" in chapter
    assert (
        ".venv/bin/pytest --jaxtyping-packages= "
        "tests/test_sums.py::TestMore::test_sums_commute"
    ) in re.sub(r"<[^>]+>", "", chapter)


def test_numbers_come_from_the_run_and_code_is_left_alone(chapter: str) -> None:
    text = re.sub(r"<[^>]+>", "", chapter)
    assert "The loss is 0.12, the\ngap 3.5 × 10⁻⁷, 4 and\n−0.5." in text
    assert "<code>[[number one x]]</code>" in chapter
    assert "[[question uni-1b]]" in chapter
    assert chapter.count('id="uni-1b"') == 1


def test_figures_stand_in_both_modes_with_alt_text_caption_and_command(
    chapter: str,
) -> None:
    figure = re.findall(r"<figure.*?</figure>", chapter, re.S)[0]
    assert figure.count('alt="A curve that falls from left to right"') == 2
    assert 'src="../../figures/one/curve-light.svg#only-light"' in figure
    assert 'width="40"' in figure
    assert 'height="80"' in figure
    assert "It falls by 12.3%." in figure
    assert "python examples/one.py cpu</code></a> on a CPU in 2.1 min" in figure


def test_citations_and_terms_lead_to_their_lists(good: Path, chapter: str) -> None:
    assert (
        '<a href="../../references/#me2020">Me et al. (2020)</a>, section 2' in chapter
    )
    assert '<p class="reference" id="me2020">' in (
        good / "references/index.html"
    ).read_text("utf-8")
    # Once after each heading, and as it is written.
    term = (
        '<a class="term" href="../../glossary/#term-softly" title="Not &lt;hard&gt;.">'
    )
    assert f"{term}softly</a>" in chapter
    assert f"{term}Softly</a>" in chapter
    assert chapter.count(term) == 2
    terms = (good / "glossary/index.html").read_text("utf-8")
    assert '<dt id="term-softly">softly</dt>' in terms


def test_errata_are_boxes_whose_links_hold_on_any_page(
    chapter: str, everything: str
) -> None:
    for page in (chapter, everything):
        assert 'id="erratum-uni-1a-sign"' in page
        assert "A student's quiz on the two papers" in page
        assert "Counterexample: Two and two are four" in page
    assert '<a href="#uni-1b">another part</a>' in chapter
    assert '<a href="../chapters/one/#uni-1b">another part</a>' in everything


def test_the_index_links_answers_tests_figures_and_code(everything: str) -> None:
    row = re.findall(r"<tr>\s*<td><code>uni-1a</code>.*?</tr>", everything, re.S)
    assert len(row) == 2, "by course and by chapter"
    for link in (
        "../chapters/one/#uni-1a",
        "../source/tests/test_sums.py/#L4",
        "../source/tests/test_sums.py/#L12",
        "../chapters/one/#figure-one-curve",
        "../source/src/transformers_hw/__init__.py/#L1",
    ):
        assert f'href="{link}"' in row[0]


# One page for every mistake, in one build: each must give a warning of its own.
MISTAKES = {
    "[[question uni-9]]": "questions.toml has no 'uni-9'",
    "[[evidence uni-9]]": "questions.toml has no 'uni-9'",
    "[[evidence uni-1a: test_nothing]]": "no test test_nothing is marked with uni-1a",
    "[[evidence uni-1c]]": "uni-1c has no evidence: no test is marked with it",
    "[[figure one/none: a b c]]\n> c": "no figure one/none; there are curve",
    "[[figure one/curve]]\n> c": "figure one/curve needs an alt text",
    "[[figure one/curve: a curve that falls]]": "figure one/curve needs a caption",
    "[[figure two/lone: a curve that falls]]\n> c": "figure two/lone has no run.json",
    "[[erratum uni-8]]": "no erratum 'uni-8'",
    "[[test test_none]]": "no test is called 'test_none'",
    "[[list nothing]]": "there is no list of 'nothing'",
    "a [[number one metrics.none]]": "no 'none' among loss, heads, two, tiny",
    "a [[number one]]": "write [[number chapter path format]]",
    "a [[number three metrics.x]]": "no run of three has been made",
    "a [[cite you2020]]": "references.toml has no 'you2020'",
    "a [[nubmer x]]": "there is no directive [[nubmer ...]]",
    "It is 0.123 at the end.": "0.123 is typed by hand: write "
    '[[number one "metrics.loss" .3f]]',
    "It is 12.3 %.": '12.3 is typed by hand: write [[number one "metrics.loss" .1%]]',
    "![](../figures/one/curve-light.svg)": "no alt text: <img",
    "[x](nowhere.md)": "contains a link 'nowhere.md'",
    "[x](#nowhere)": "there is no such anchor",
    "words\n$$\na\n$$ words": "TeX left as it is near '$$",
}
PAGES = {f"docs/mistakes/m{i}.md": text for i, text in enumerate(MISTAKES)}
BAD = {
    "docs/questions.toml": QUESTIONS
    + "".join(
        f'[[question]]\nid = "uni-1{x}"\nsource = "uni"\nchapter = "{chapter}"\n'
        'title = "More"\n'
        for x, chapter in {"c": "one", "d": "one", "e": "two"}.items()
    ),
    "docs/chapters/one.md": CHAPTER.replace("[[evidence uni-1b]]\n", "")
    + "\n[[question uni-1c]]\n\n[[evidence uni-1c]]\n\n[[question uni-1a]]\n\n"
    "[[question uni-1e]]\n\n[[evidence uni-1e]]\n",
    "docs/errata/one.toml": ERRATUM
    + """
[[erratum]]
id = "uni-1a-hidden"
question = "uni-7"
source = "nobody"
title = "T"
claim = "C"
right = "R"
tests = ["test_of_nothing"]

[[erratum]]
id = "uni-1a-bare"
question = "uni-1a"
source = "eth"
title = "T"
claim = "C"
right = "R"
tests = []
""",
    "docs/figures/two/lone-light.svg": SVG,
    "docs/figures/two/lone-dark.svg": SVG,
    "tests/test_unknown.py": TESTS.replace("uni-1b", "uni-6"),
}
GAPS = [
    "chapters/one.md: uni-1d is not answered",
    "chapters/one.md: uni-1b is answered without evidence",
    "chapters/one.md: uni-1a is answered twice",
    "chapters/one.md: uni-1e belongs on chapters/two.md",
    "tests/test_unknown.py:12: no question 'uni-6'",
    "uni-1a-hidden is shown 0 times, not once",
    "uni-1a-hidden: no question 'uni-7'",
    "uni-1a-hidden: source is one of answers, nyu",
    "uni-1a-hidden: no test is called test_of_nothing",
    "uni-1a-bare names no test",
]


@pytest.fixture(scope="module")
def complaints(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Build a site with every mistake, and give its warnings."""
    built = build(tmp_path_factory.mktemp("bad"), GOOD | BAD | PAGES, hooks=HOOKS)
    assert built.returncode != 0
    return warnings(built)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_on_a_page_stops_the_build(
    complaints: list[str], mistake: str
) -> None:
    page = f"mistakes/m{list(MISTAKES).index(mistake)}.md"
    found = [line for line in complaints if page in line and MISTAKES[mistake] in line]
    assert found, "\n".join(line for line in complaints if page in line)


@pytest.mark.parametrize("gap", GAPS)
def test_a_gap_in_the_book_stops_the_build(complaints: list[str], gap: str) -> None:
    assert [line for line in complaints if gap in line], "\n".join(complaints)


def test_each_mistake_is_told_once(complaints: list[str]) -> None:
    assert len(complaints) == len(set(complaints))
    pages = [re.search(r"mistakes/m\d+\.md", line) for line in complaints]
    named = [page[0] for page in pages if page]
    assert sorted(set(named)) == sorted(named) == sorted(p[5:] for p in PAGES)
