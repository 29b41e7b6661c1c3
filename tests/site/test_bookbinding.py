"""What the plugin makes of a page, and which mistakes stop the build."""

import json
import re
from pathlib import Path

import nbformat
import pytest
from small import build

QUESTIONS = """
[source.uni]
title = "Sheet 1"
place = "A university"
points = 3

[document]
quiz = "A student's quiz"
eth = "An assignment"

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

[[question]]
id = "uni-2c"
source = "uni"
chapter = "two"
title = "Third"
answer = "It is $0$."
"""
TESTS = '''import pytest


@pytest.mark.question("uni-1a")
def test_two_and_two_are_four():
    assert 2 + 2 == 4, "```"


@pytest.mark.question("uni-2c")
def test_nothing_is_added():
    """Nothing is added to nothing.

    Nor taken away.
    """
    assert 0 + 0 == 0


@pytest.mark.unhooked
@pytest.mark.question("uni-1b", "uni-1a")
@pytest.mark.parametrize("x", [1, 2])
def test_sums_commute(x):
    assert x + 1 == 1 + x
''' + "".join(
    f'\n\n@pytest.mark.question("uni-1a")\ndef test_{word}():\n    pass\n'
    for word in ("three", "four", "five", "a_test_s_name")
)
RUN = {
    "command": "python examples/one.py cpu",
    "device": "cpu (x86_64, Linux)",
    "seconds": 124.0,
    "metrics": {"loss": 0.12345, "heads_two": [3.5e-7, 4], "tiny": -0.5},
}
EXERCISE = '''"""Add two numbers.

Write `add(a, b)`, the sum of two numbers.
"""

exercise = Code(level="core", read="one#sums", hints=("Use **plus**.",), points=2)


@exercise.solution
def add(a, b):
    """Return the sum."""
    return a + b
'''
SVG = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 30 60"></svg>'
REFERENCE = """
[me2020]
short = "Me et al."
authors = "Me, A. & You, B."
year = 2020
title = "A Paper"
venue = "Journal"
url = "https://example.org"
note = "How to add."
"""
LEDGER = """
[[group]]
title = "Sums"
source = "[[cite me2020 table 1]]"
measure = "Accuracy"
note = "Theirs and ours."

[[group.row]]
what = "adding"
published = {result = "12.3%", parameters = "4 M"}
ours = ["one/part metrics.models.gone", "one/part metrics.models.add"]

[[group.row]]
what = "counting"
test = "test_two_and_two_are_four"
value = "4"

[[group.row]]
what = "never measured"
ours = ["nowhere metrics"]
"""
PART = {
    "command": "python examples/one.py cpu --parts part",
    "device": "cpu (x86_64, Linux)",
    "seconds": 30.0,
    "seeds": [0, 1],
    "metrics": {
        "models": {
            "add": {
                "parameters": 1234,
                "samples": 5000,
                "seeds": 2,
                "million_multiply_adds": 3.0,
                "test_accuracy": {"mean": 0.5, "min": 0.25, "max": 0.75},
            }
        }
    },
}
TIMES = {"parts": {"one/part": {"trainings": {"add": {"minutes": 2.04}}}}}
TERMS = """
"softly" = "Not <hard>."
"loudly" = {meaning = "Not softly.", taught = "chapters/two.md#uni-2c", also = ["LOUD"]}
"sum" = {meaning = "What is added.", taught = "chapters/two.md#uni-2c", basic = true}
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
CHAPTER = r"""---
title: The first
chapter: 1
---
# One

The paper has 12.3%, which a run may have as well.

[[question uni-1a]]

Four, softly [[cite me2020 section 2]]. The loss is [[number one metrics.loss .2f]], the
gap [[number one metrics.heads_two.0 .1e]], [[number one metrics.heads_two.1]] and
[[number one metrics.tiny]]. Not `[[number one x]]`. Softly, see
[`add`][transformers_hw.add], and $\eqref{eq:two}$.

```text
[[question uni-1b]]
```

[[evidence uni-1a]]

!!! note
    [[figure one/curve: A curve that falls
    from left to right]]
    > It falls by [[number one metrics.loss .1%]].

[[erratum uni-1a-sign]]

[[question uni-1b]]

Softly.

[[evidence uni-1b]]
"""
BOX = r"""
[[question uni-2c]]
> What is $0 + 0$?
>
> Say why.
> 
> ---
>
> It is $0$, as [[fig two/sum]] shows.

[[diagram two/sum two/sum stacked]]
> Nothing, twice.

[[code small add Box.open]]

"""
DRAWN = SVG.replace("></svg>", "><title>A sum</title><desc>0 + 0</desc>\n\n</svg>")
CODE = '''def add(x: int) -> int:
    """Add nothing."""
    return x + 0


class Box:
    def open(self) -> None:
        """Open it.

        Wide.
        """

        self.open = True
'''
FORMULAS = "$$\na \\label{eq:one}\n$$\n\n$$\n\\R \\label{eq:two}\n$$\n\n[[errata]]\n"


def notebook(text: str, image: str) -> str:
    """Return a notebook with some text, a printed number and an image."""
    printed = nbformat.v4.new_output("stream", name="stdout", text="42 <&>\n")
    data = {"image/png": "iVBORw0KGgo=", "text/plain": "<Figure>"}
    drawn = nbformat.v4.new_output("display_data", data=data)
    code = nbformat.v4.new_code_cell("print(6 * 7)", outputs=[printed, drawn])
    code.metadata["alt"] = image
    cells = [nbformat.v4.new_markdown_cell(text), code]
    return nbformat.writes(nbformat.v4.new_notebook(cells=cells))


GOOD = {
    "docs/index.md": "# Home",
    "docs/questions.toml": QUESTIONS,
    "docs/references.toml": REFERENCE,
    "docs/errata/one.toml": ERRATUM,
    "docs/errata/two.toml": ERRATUM.replace("uni-1a-sign", "uni-1a-other").replace(
        "#uni-1b", "one.md#uni-1b"
    )
    + 'kind = "trap"\n',
    "docs/chapters/one.md": CHAPTER,
    "docs/chapters/two.md": f"---\ntitle: Two\nchapter: 2\n---\n\n{BOX}{FORMULAS}",
    "docs/diagrams/two/sum.svg": DRAWN,
    "docs/explorables/sum.mjs": "export const mount = () => {};\n",
    "docs/moving.md": "# Moving\n\n[[explorable two/sum]]\n> A sum.\n",
    "docs/evidence.md": "[[list evidence]]\n",
    "src/transformers_hw/small.py": CODE,
    "docs/asked.md": "[[list asked]]\n",
    "docs/everything.md": "[[list questions]]\n\n[[list errata]]\n",
    "docs/references.md": "[[list references]]\n",
    "docs/reference/two.md": "# Two",
    "docs/reference/one.md": "# `add` { #transformers_hw.add }\n",
    "docs/glossary.md": "[[list terms]]\n",
    "docs/glossary.toml": TERMS,
    "docs/ledger.toml": LEDGER,
    "docs/ledger.md": "[[list ledger]]\n",
    "docs/examples.md": "[[list examples]]\n\nIn [[minutes one]] minutes.\n",
    "docs/figures/one/part/run.json": json.dumps(PART),
    "benchmarks/records/trainings.json": json.dumps(TIMES),
    "docs/figures/one/run.json": json.dumps(RUN),
    "docs/figures/one/curve-light.svg": SVG,
    "docs/figures/one/curve-dark.svg": SVG,
    "docs/figures/one/curve-still-dark.svg": SVG,
    "docs/notebooks/good.ipynb": notebook(
        "# Good\n\nWith $x^2 < 3$ and `$`, see [one](../chapters/one.md#uni-1a).",
        "A red square.",
    ),
    "examples/one.py": '"""Figures of chapter 1: sums."""\n',
    "examples/two.py": '"""No figures."""\n',
    "src/transformers_hw/__init__.py": "def add():\n    return 2 + 2\n",
    "tests/deep/test_sums.py": TESTS,
}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a site without a mistake."""
    folder = tmp_path_factory.mktemp("good")
    built = build(folder, GOOD)
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
    assert "A university · question 1(a) · 1 point · <code>uni-1a</code>" in chapter


def test_a_box_holds_question_answer_and_evidence(good: Path) -> None:
    page = (good / "chapters/two/index.html").read_text("utf-8")
    box = page[page.index('<div class="admonition assignment">') :]
    text = re.sub(r"<[^>]+>", "", box)
    assert "A university · question 2(c) · uni-2c" in text
    assert text.index("Say why.") < text.index("Answer") < text.index("as figure 2.1")
    link = '<a href="../../evidence/#evidence-uni-2c">Nothing is added to nothing</a>.'
    assert link in box
    evidence = (good / "evidence/index.html").read_text("utf-8")
    assert '<h3 id="evidence-uni-2c"><a href="../chapters/two/#uni-2c">' in evidence


def test_an_explorable_is_a_drawing_that_names_its_script(good: Path) -> None:
    page = (good / "moving/index.html").read_text("utf-8")
    head = r'<figure class="diagram explorable"[^>]* data-explorable="sum"[^>]*>'
    found = re.search(head + ".*?</figure>", page, re.S)
    assert found
    assert "<svg" in found[0]
    assert "A sum." in found[0]
    assert (good / "explorables/sum.mjs").is_file()


def test_diagrams_are_drawn_in_the_page_and_numbered(good: Path) -> None:
    page = (good / "chapters/two/index.html").read_text("utf-8")
    (figure,) = re.findall(
        r'<figure class="diagram" id="figure-two-sum">.*?</figure>', page, re.S
    )
    assert figure.count("<title>A sum</title>") == 2
    assert "<strong>Figure 2.1.</strong> Nothing, twice." in figure
    assert '<a href="#figure-two-sum">figure 2.1</a>' in page


def test_code_of_the_package_is_shown_without_docstrings(good: Path) -> None:
    page = (good / "chapters/two/index.html").read_text("utf-8")
    code = re.sub(r"<[^>]+>", "", page)
    assert "def add(x: int) -&gt; int:\n    return x + 0\n\ndef open" in code
    assert "        self.open" not in code
    assert 'href="../../source/src/transformers_hw/small.py/#L1"' in page


def test_evidence_is_the_marked_tests_with_command_and_line(
    good: Path, chapter: str
) -> None:
    titles = re.findall("<summary>(.*?)</summary>", chapter)
    first = ["Two and two are four", "Sums commute", "Three", "Four"]
    assert titles[:5] == [*first, "2 more tests"]
    assert re.findall(r'#L\d+">(.*?)</a></li>', chapter) == ["Five", "A test's name"]
    text = re.sub(r"<[^>]+>", "", chapter)
    assert ".venv/bin/pytest tests/deep/test_sums.py::test_two_and_two" in text
    assert "pytest --jaxtyping-packages= tests/deep/test_sums.py::test_sums" in text
    assert 'href="../../source/tests/deep/test_sums.py/#L4"' in chapter
    listing = (good / "source/tests/deep/test_sums.py/index.html").read_text("utf-8")
    line = next(line for line in listing.splitlines() if 'id="L4"' in line)
    assert "question" in line


def test_numbers_come_from_the_run_and_code_is_left_alone(chapter: str) -> None:
    text = re.sub(r"<[^>]+>", "", chapter)
    assert "The loss is 0.12, the\ngap 3.5 × 10⁻⁷, 4 and\n−0.5." in text
    assert "<code>[[number one x]]</code>" in chapter
    assert "[[question uni-1b]]" in chapter
    assert chapter.count('id="uni-1b"') == 1


def test_figures_are_shown_in_both_modes_with_alt_text_caption_and_command(
    chapter: str,
) -> None:
    figure = re.findall(r"<figure.*?</figure>", chapter, re.S)[0]
    assert figure.count('alt="A curve that falls from left to right"') == 2
    assert 'src="../../figures/one/curve-light.svg#only-light"' in figure
    # Instead of a drawing that moves, those who want less motion see a still one.
    (picture,) = re.findall(r"<picture>.*?</picture>", figure, re.S)
    assert 'media="(prefers-reduced-motion: reduce), print"' in picture
    assert 'srcset="../../figures/one/curve-still-dark.svg"' in picture
    assert 'src="../../figures/one/curve-dark.svg#only-dark"' in picture
    assert 'height="80"' in figure
    assert 'width="40"' in figure
    assert "It falls by 12.3%." in re.sub(r"</?data.*?>", "", figure)
    assert "python examples/one.py cpu</code></a> on a CPU in 2.1 min" in figure


def test_citations_lead_to_their_list(good: Path, chapter: str) -> None:
    link = '<a href="../../references/#me2020">Me et al. (2020)</a>, section 2'
    assert link in chapter
    works = (good / "references/index.html").read_text("utf-8")
    assert '<p class="reference" id="me2020">' in works
    place = '<a href="../chapters/one/#uni-1a">1 First</a>'
    assert f'<p class="annotation">How to add. Cited in {place}.</p>' in works


def test_a_term_is_explained_once_in_a_section(good: Path, chapter: str) -> None:
    marks = re.findall(r'<abbr title="Not &lt;hard&gt;.">(\w+)</abbr>', chapter)
    assert marks == ["softly", "Softly"]
    terms = (good / "glossary/index.html").read_text("utf-8")
    assert '<dt id="term-softly">softly</dt>' in terms
    assert '<a href="../chapters/two/#uni-2c">Chapter 2</a>' in terms
    assert '<span class="also">also LOUD</span>' in terms
    sums = (good / "chapters/two/index.html").read_text("utf-8")
    assert 'title="What is added."' not in sums, "it is basic"


def test_errata_have_links_that_work_on_any_page(
    good: Path, chapter: str, everything: str
) -> None:
    folded = (good / "chapters/two/index.html").read_text("utf-8")
    assert '<details class="admonition erratum trap">' in folded
    assert 'id="erratum-uni-1a-other"' in folded
    for page in (chapter, everything):
        assert 'id="erratum-uni-1a-sign"' in page
        assert "A student's quiz" in page
        assert "Counterexample: Two and two are four" in page
    assert '<a href="#uni-1b">another part</a>' in chapter
    assert '<a href="../chapters/one/#uni-1b">another part</a>' in everything


def test_the_index_links_answers_and_tests(everything: str) -> None:
    rows = re.findall(r"<tr>(?:(?!</tr>).)*uni-2c.*?</tr>", everything, re.S)
    assert len(rows) == 2, "by course and by chapter"
    for link in ("../chapters/two/#uni-2c", "../evidence/#evidence-uni-2c"):
        assert f'href="{link}"' in rows[0]
    assert "Nothing is added to nothing</a>" in rows[0]
    assert "It is" in rows[0]


def test_errors_and_traps_are_apart(everything: str) -> None:
    assert everything.index('id="errors"') < everything.index('id="errors-quiz"')
    assert everything.index('id="errors-quiz"') < everything.index('id="traps"')
    assert everything.index("erratum-uni-1a-other") > everything.index('id="traps"')


def test_the_ledger_has_both_numbers_and_what_they_took(good: Path) -> None:
    page = (good / "ledger/index.html").read_text("utf-8")
    rows = [
        [re.sub(r"<[^>]+>", "", cell) for cell in re.findall("<t[hd].*?</t[hd]>", row)]
        for row in re.findall("<tr>.*?</tr>", page, re.S)
    ]
    assert rows[0][3:] == [
        "Parameters",
        "Images seen",
        "Seeds",
        "FLOPs per image",
        "Minutes",
    ]
    paper = ["adding", "Me et al. (2020), table 1", "12.3%", "4 M", *["–"] * 4]
    ours = ["", "ours", "50.0% (25.0–75.0%)", "1,234", "5,000", "2", "6 M", "2.0"]
    assert rows[1:3] == [paper, ours]
    assert rows[3][:3] == ["counting", "ours", "4"]
    assert len(rows) == 4, "what was never measured has no row"
    assert 'href="../figures/one/part/run.json"' in page


def test_an_exercise_has_a_task_a_place_to_answer_hints_and_a_solution(
    tmp_path: Path,
) -> None:
    files = {
        "docs/index.md": "# Book\n\n[[list exercises]]\n",
        "docs/chapters/one.md": "---\nchapter: 1\ntitle: One\n---\n"
        "# One\n\n[[exercise one/sum]]\n",
        "src/transformers_hw/exercises/one/sum.py": EXERCISE,
    }
    built = build(tmp_path, files)
    assert built.returncode == 0, built.stderr
    page = (tmp_path / "site/chapters/one/index.html").read_text("utf-8")
    for part in ("<strong>Add two numbers</strong>", "def add(a, b):", "<textarea"):
        assert part in page
    area = page.partition("<textarea")[2].partition("</textarea>")[0]
    assert "raise NotImplementedError" in area
    assert "return a + b" not in area
    assert "<strong>plus</strong>" in page
    assert "transformers-hw exercise start one/sum" in page
    listed = (tmp_path / "site/index.html").read_text("utf-8")
    assert 'href="chapters/one/#exercise-one-sum">Add two numbers</a>' in listed
    brought = json.loads(
        (tmp_path / "site/assets/exercises/exercises.json").read_text("utf-8")
    )
    assert brought["transformers_hw/exercises/one/sum.py"] == EXERCISE


def test_examples_are_a_gallery(good: Path) -> None:
    page = (good / "examples/index.html").read_text("utf-8")
    assert page.index('id="example-one"') < page.index('id="example-two"')
    assert page.count('src="../figures/one/curve-light.svg#only-light"') == 1
    assert 'alt="A curve that falls from left to right"' in page
    text = re.sub(r"<[^>]+>", "", page)
    assert "Sums." in text
    assert (
        "cpu: 2.1 min (record); python examples/one.py cpu --parts part: 30 s" in text
    )
    assert "In 5 minutes." in text


def test_every_page_is_also_markdown(good: Path) -> None:
    listed = (good / "llms.txt").read_text("utf-8")
    assert "(chapters/one/index.md)" in listed
    assert "source/" not in listed
    page = (good / "chapters/one/index.md").read_text("utf-8")
    assert page.startswith("# One")
    assert "### First\n\nA university · question 1(a)" in page
    assert "Four, softly Me et al. (2020), section 2. The loss is 0.12" in page
    assert "(Figure: A curve that falls from left to right)" in page
    assert "- Two and two are four (`tests/deep/test_sums.py`)" in page
    assert "[[question uni-1b]]" in page, "code is left alone"
    two = (good / "chapters/two/index.md").read_text("utf-8")
    assert "> **Answer.**" in two
    assert "as figure 2.1 shows" in two
    assert "(Drawing: A sum. 0 + 0)" in two
    assert "def add(x: int) -> int:\n    return x + 0" in two
    assert "Claim: It is $-4$" in two
    assert "- **loudly**: Not softly." in (good / "glossary/index.md").read_text()
    assert "How to add." in (good / "references/index.md").read_text("utf-8")


def test_questions_can_be_listed_without_answers(good: Path) -> None:
    page = (good / "asked/index.html").read_text("utf-8")
    assert "Say why." in page
    assert "It is" not in page
    assert '<a href="../chapters/two/#uni-2c">Third</a>' in page


def test_labeled_formulas_are_numbered_and_linked(good: Path, chapter: str) -> None:
    assert '<a href="../two/#eq:two">(2.2)</a>' in chapter
    page = (good / "chapters/two/index.html").read_text("utf-8")
    labels = re.findall(r'<div class="formula" id="(.*?)">', page)
    assert labels == ["eq:one", "eq:two"]
    assert page.count('class="katex-display"') == 2


def test_a_notebook_is_a_page_of_the_book(good: Path) -> None:
    page = (good / "notebooks/good/index.html").read_text("utf-8")
    assert page.count('class="katex"') == 1
    assert "<code>$</code>" in page
    assert '<a href="../../chapters/one/#uni-1a">one</a>' in page
    assert '<div class="output"><pre><code>42 &lt;&amp;&gt;' in page
    assert 'alt="A red square."' in page
    assert 'download="good.ipynb"' in page
    assert (good / "notebooks/good/good.ipynb").is_file()
    assert not re.search(r"<style|<script|jp-|tabindex", page)


# One page for every mistake, in one build: each must give a warning of its own.
MISTAKES = {
    "[[question uni-9]]": "questions.toml has no 'uni-9'",
    "[[evidence uni-9]]": "questions.toml has no 'uni-9'",
    "[[evidence uni-1c]]": "uni-1c has no evidence: no test is marked with it",
    "[[figure one/none: a b c]]\n> c": "no figure one/none; there are curve",
    "[[figure one/curve]]\n> c": "figure one/curve needs an alt text",
    "[[figure one/curve: a curve that falls]]": "figure one/curve needs a caption",
    "[[figure two/lone: a curve that falls]]\n> c": "no run of 'two' has been made",
    "[[erratum uni-8]]": "no erratum 'uni-8'",
    "[[exercise one/none]]": "there is no exercise 'one/none'",
    "[[exercise one/sum]]": "the exercise 'one/sum' belongs on the page of one",
    "[[errata]]": "write [[errata]] on a chapter's page",
    "[[test test_none]]": "no test is called 'test_none'",
    "[[list nothing]]": "there is no list of 'nothing'",
    "words\n[[list errata]]": "[[list ...]] needs a blank line before and after it",
    "a [[number one metrics.none]]": "no 'none' among loss, heads_two, tiny",
    "a [[number one]]": "write [[number chapter path format]]",
    "a [[number three metrics.x]]": "no run of 'three' has been made",
    "[[question uni-1a]]\n> Why?": "uni-1a needs an answer, after a line of three",
    "[[diagram two/none]]\n> c": "no diagram two/none.svg in docs/diagrams",
    "[[diagram two/bare]]\n> c": "diagram two/bare needs a <title> and a <desc>",
    "[[diagram two/sum]]": "figure two/sum needs a caption",
    "[[explorable two/none]]\n> c": "no script none.mjs in docs/explorables",
    "[[code small none]]": "there is no none",
    "[[code small]]": "write [[code module object ...]], not 'small'",
    "a [[minutes none]]": "there is no chapter 'none'",
    "a [[fig two/none]]": "no chapter shows a figure 'two/none'",
    "a [[cite you2020]]": "references.toml has no 'you2020'",
    "a [[nubmer x]]": "there is no directive [[nubmer ...]]",
    "![](../figures/one/curve-light.svg)": "no alt text: <img",
    "[x](nowhere.md)": "contains a link 'nowhere.md'",
    "[x](#nowhere)": "there is no such anchor",
    "words\n$$\na\n$$ words": "raw TeX near '$$",
    r"$\frac{1}$": "ParseError",
    r"$\nosuchcommand$": "Undefined control sequence",
    r"$\eqref{eq:none}$": "no formula is labeled eq:none",
    "$$\na \\label{x}\n$$\n\n$$\nb \\label{x}\n$$": "label x is used twice",
}
PAGES = {f"docs/mistakes/m{i}.md": text for i, text in enumerate(MISTAKES)}
BAD = {
    "docs/asked.md": "# Nothing\n",
    "docs/questions.toml": QUESTIONS
    + "".join(
        f'[[question]]\nid = "uni-1{x}"\nsource = "uni"\nchapter = "{chapter}"\n'
        'title = "More"\n'
        for x, chapter in {"c": "one", "d": "one", "e": "two"}.items()
    ),
    "docs/chapters/one.md": CHAPTER.replace("[[evidence uni-1b]]\n", "It is 0.123.\n")
    + "\n[[question uni-1c]]\n\n[[question uni-1a]]\n\n[[question uni-1e]]\n",
    "docs/errata/one.toml": ERRATUM
    + ERRATUM.replace("uni-1a-sign", "hidden")
    .replace('"uni-1a"', '"uni-7"')
    .replace("quiz", "nobody")
    .replace("test_two", "test_nothing"),
    "docs/diagrams/two/bare.svg": SVG,
    "src/transformers_hw/exercises/one/sum.py": EXERCISE,
    "docs/figures/two/lone-light.svg": SVG,
    "docs/figures/two/lone-dark.svg": SVG,
    "docs/notebooks/bad.ipynb": notebook("# Bad\n\nSee [one](one.md).", ""),
    "tests/test_unknown.py": TESTS.replace("uni-1b", "uni-6"),
}
GAPS = [
    "chapters/one.md: uni-1d is not answered",
    "chapters/one.md: uni-1b is answered without evidence",
    "chapters/one.md: uni-1c is answered without evidence",
    "chapters/one.md: uni-1a is answered twice",
    "chapters/one.md: uni-1e belongs on chapters/two.md",
    "chapters/one.md: 0.123 is typed by hand: write [[number one metrics.loss .3f]]",
    "tests/test_unknown.py:18: no question 'uni-6'",
    "hidden is shown 0 times, not once",
    "exercise one/sum is shown 0 times, not once",
    "hidden: no question 'uni-7'",
    "hidden: source is one of quiz, eth",
    "hidden needs a test",
    "notebooks/bad.ipynb: there is no page one.md",
    "notebooks/bad.ipynb: no alt text",
]


@pytest.fixture(scope="module")
def complaints(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Build a site with every mistake, and return its warnings."""
    built = build(tmp_path_factory.mktemp("bad"), GOOD | BAD | PAGES)
    assert built.returncode != 0
    lines = built.stderr.splitlines()
    return [line for line in lines if line.startswith("WARNING")]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_on_a_page_stops_the_build(
    complaints: list[str], mistake: str
) -> None:
    page = f"mistakes/m{list(MISTAKES).index(mistake)}.md"
    found = [line for line in complaints if page in line]
    assert len(found) == 1, found
    assert MISTAKES[mistake] in found[0]


@pytest.mark.parametrize("gap", GAPS)
def test_a_gap_in_the_book_stops_the_build(complaints: list[str], gap: str) -> None:
    assert [line for line in complaints if gap in line], "\n".join(complaints)


def test_nothing_else_is_complained_of(complaints: list[str]) -> None:
    known = [*GAPS, *(f"mistakes/m{index}.md" for index in range(len(MISTAKES)))]
    # What is not answered, or without a test, has no anchor that lists could link to.
    known.append("does not contain an anchor '#")
    assert [line for line in complaints if not any(k in line for k in known)] == []
