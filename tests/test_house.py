"""The plan of the house, held by reading the tree."""

import ast
import hashlib
import os
import re
import sys
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
BOOK = ROOT / "src/transformers_hw"
CHAPTERS = [
    "attention",
    "positional_encoding",
    "multi_head_attention",
    "self_attention",
    "seq2seq",
    "transformer",
    "vision_transformer",
    "attention_as_convolution",
]
# What the chapters stand on, and what looks at them from outside.
FLOOR = "_checks"
ONLOOKERS = ["probes", "pretrained"]
# What stands above all of them.
ROOFS = ["__init__", "command"]
FOUNDATIONS = sys.stdlib_module_names | {"torch", "einops", "jaxtyping"}
# What else a function may import, when it is called: files of weights need it.
LAZY = {"pretrained": {"safetensors"}}
# Read at a sitting: that much code, with about as many lines to explain it.
MOST_CODE, MOST_LINES = 250, 500
VENDORED = ["docs/assets/vendor", "tools/vendor"]

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), str(path))


def kept_files() -> Iterator[Path]:
    """Give every file of the project but the ignored and the vendored ones."""
    ignored = (ROOT / ".gitignore").read_text("utf-8").split()
    left_out = {".git", *(line.strip("/") for line in ignored if line.endswith("/"))}
    patterns = [line for line in ignored if not line.endswith("/")]
    for folder, names, files in os.walk(ROOT):
        here = Path(folder)
        names[:] = [
            name
            for name in names
            if name not in left_out
            and (here / name).relative_to(ROOT).as_posix() not in VENDORED
        ]
        for name in files:
            if not any(fnmatch(name, pattern) for pattern in patterns):
                yield here / name


def scripts() -> list[Path]:
    return [path for path in kept_files() if path.suffix == ".py"]


def book_files() -> list[Path]:
    """Give the package's files, the lab aside."""
    return sorted(path for path in BOOK.rglob("*.py") if chapter_of(path) != "lab")


def chapter_of(path: Path) -> str:
    """Name the chapter that a file belongs to; a long chapter is a package."""
    return path.relative_to(BOOK).parts[0].removesuffix(".py")


def named(path: Path) -> str:
    return path.relative_to(BOOK).as_posix()


def imported(path: Path) -> set[str]:
    """Give the full names of the modules that a file imports."""
    found: set[str] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.add("." * node.level + (node.module or ""))
    return found


def imported_at_once(path: Path) -> set[str]:
    """Give the modules that importing a file imports, those of functions left out."""
    lazy = {
        inner
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for inner in ast.walk(node)
    }
    return {
        alias.name
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Import) and node not in lazy
        for alias in node.names
    } | {
        node.module or ""
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ImportFrom) and node not in lazy
    }


def definitions(tree: ast.Module | ast.ClassDef) -> Iterator[Definition]:
    """Give the public functions and classes that stand directly in a scope."""
    for node in tree.body:
        if isinstance(node, Definition) and not node.name.startswith("_"):
            yield node


def lines_of_code(path: Path) -> int:
    """Count lines that are neither blank, nor comment, nor docstring."""
    lines = path.read_text("utf-8").splitlines()
    explaining: set[int] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Module | Definition) and ast.get_docstring(node):
            first = node.body[0]
            explaining.update(range(first.lineno, (first.end_lineno or 0) + 1))
    return sum(
        number not in explaining and line.strip()[:1] not in ("", "#")
        for number, line in enumerate(lines, start=1)
    )


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """Give every call, with the dotted name of what is called."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def exported() -> set[str]:
    for node in parsed(BOOK / "__init__.py").body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    return set()


def site_pages() -> list[str]:
    """Give the pages in the order of the site's navigation."""

    class Loader(yaml.SafeLoader):
        """Reads MkDocs' own tags as plain text."""

    Loader.add_multi_constructor("", lambda loader, tag, node: tag)
    tree = yaml.load((ROOT / "mkdocs.yml").read_text("utf-8"), Loader)

    def leaves(part: object) -> Iterator[str]:
        if isinstance(part, str):
            yield part
        elif isinstance(part, dict):
            yield from leaves(list(part.values()))
        elif isinstance(part, list):
            for one in part:
                yield from leaves(one)

    return list(leaves(tree["nav"]))


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_chapter_is_a_module_a_test_file_and_a_reference_page(chapter: str) -> None:
    forms = [BOOK / f"{chapter}.py", BOOK / chapter / "__init__.py"]
    assert [path.is_file() for path in forms].count(True) == 1
    assert (ROOT / f"tests/test_{chapter}.py").is_file()
    page = (ROOT / f"docs/reference/{chapter}.md").read_text("utf-8")
    assert f"::: transformers_hw.{chapter}" in page


def test_the_site_lists_the_chapters_in_order() -> None:
    pages = [Path(page) for page in site_pages()]
    reference = [page.stem for page in pages if page.parent == Path("reference")]
    assert reference[: len(CHAPTERS) + 1] == ["index", *CHAPTERS]
    told = [page.stem for page in pages if page.parent == Path("chapters")]
    assert [name for name in CHAPTERS if name in told] == [
        name for name in told if name != "index"
    ]


def test_pages_and_examples_bear_the_names_of_chapters() -> None:
    pages = {path.stem for path in (ROOT / "docs/chapters").glob("*.md")} - {"index"}
    examples = {path.stem for path in (ROOT / "examples").glob("*.py")}
    assert (pages | examples) - set(CHAPTERS) == set()


def test_the_package_holds_the_plan_and_no_more() -> None:
    found = {chapter_of(path) for path in BOOK.rglob("*.py")}
    assert found - {*ROOFS, FLOOR, *CHAPTERS, *ONLOOKERS, "lab"} == set()
    assert [path for path in scripts() if path.stem in ("utils", "helpers")] == []


@pytest.mark.parametrize("path", book_files(), ids=named)
def test_imports_run_downwards(path: Path) -> None:
    chapter = chapter_of(path)
    if chapter in ROOFS:
        # The empty name is the package itself.
        below = {*CHAPTERS, *ONLOOKERS, *([] if chapter == "__init__" else [""])}
    elif chapter in CHAPTERS:
        # Its own name, since the files of a chapter may import each other.
        below = {FLOOR, *CHAPTERS[: CHAPTERS.index(chapter)], chapter}
    else:
        below = set() if chapter == FLOOR else {FLOOR, *CHAPTERS, chapter}
    at_once = imported_at_once(path)
    for source in imported(path):
        package, _, rest = source.partition(".")
        if package == "transformers_hw":
            assert rest.partition(".")[0] in below, f"{named(path)} imports {source}"
        else:
            later = set() if source in at_once else LAZY.get(chapter, set())
            assert package in FOUNDATIONS | later, f"{named(path)} imports {source}"


@pytest.mark.parametrize("path", book_files(), ids=named)
def test_a_file_is_read_at_a_sitting(path: Path) -> None:
    assert lines_of_code(path) <= MOST_CODE
    assert len(path.read_bytes().splitlines()) <= MOST_LINES


def test_only_attention_calls_the_fused_kernel() -> None:
    callers = {
        named(path)
        for path in BOOK.rglob("*.py")
        for name, _ in calls(parsed(path))
        if name.endswith("scaled_dot_product_attention")
    }
    assert callers == {"attention.py"}


def test_public_names_can_be_imported_from_the_package() -> None:
    defined = {
        node.name
        for path in book_files()
        if chapter_of(path) in CHAPTERS
        for node in definitions(parsed(path))
    }
    assert defined - exported() == set()


def test_public_names_have_docstrings() -> None:
    bare: list[str] = []
    for path in BOOK.rglob("*.py"):
        tree = parsed(path)
        if ast.get_docstring(tree) is None:
            bare.append(named(path))
        for node in definitions(tree):
            inner = definitions(node) if isinstance(node, ast.ClassDef) else []
            bare += [
                f"{named(path)}: {one.name}"
                for one in (node, *inner)
                if ast.get_docstring(one) is None
            ]
    assert bare == []


def test_the_package_neither_prints_nor_asserts() -> None:
    found: list[str] = []
    for path in BOOK.rglob("*.py"):
        tree = parsed(path)
        found += [f"{named(path)}: print" for name, _ in calls(tree) if name == "print"]
        found += [
            f"{named(path)}:{node.lineno}: assert"
            for node in ast.walk(tree)
            if isinstance(node, ast.Assert)
        ]
    assert found == []


def test_checkpoints_are_loaded_as_data_not_as_code() -> None:
    unsafe = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for path in scripts()
        for name, call in calls(parsed(path))
        if name == "torch.load"
        and not any(
            word.arg == "weights_only" and ast.unparse(word.value) == "True"
            for word in call.keywords
        )
    ]
    assert unsafe == []


def test_every_test_asserts_something() -> None:
    functions = [
        (f"{path.relative_to(ROOT)}::{node.name}", node)
        for path in (ROOT / "tests").rglob("*.py")
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    # Helpers count, known by their names: what calls one that asserts, asserts.
    asserting = {"assert_close", "assert_equal", "raises", "warns", "fail"}

    def asserts(node: ast.AST) -> bool:
        called = {name.rpartition(".")[2] for name, _ in calls(node)}
        plainly = any(isinstance(one, ast.Assert) for one in ast.walk(node))
        return plainly or bool(called & asserting)

    known = 0
    while len(asserting) > known:
        known = len(asserting)
        asserting.update(node.name for _, node in functions if asserts(node))
    idle = [
        place
        for place, node in functions
        if node.name.startswith("test_") and not asserts(node)
    ]
    assert len(functions) > len(CHAPTERS)
    assert idle == []


def test_no_file_knows_the_machine_it_was_written_on() -> None:
    elsewhere = re.compile(
        rb"\.\./shared|/(?:home|root|work|Users)/\w|registry\.npmjs|python[h]osted"
    )
    found = [
        f"{path.relative_to(ROOT)}: {match[0].decode()}"
        for path in kept_files()
        if (match := elsewhere.search(path.read_bytes()))
    ]
    assert found == []


def test_vendored_files_are_the_recorded_ones() -> None:
    record = (ROOT / "tools/vendored.sha256").read_text("utf-8")
    recorded = {
        name: digest for digest, name in (line.split() for line in record.splitlines())
    }
    found = {
        path.relative_to(ROOT).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for folder in VENDORED
        for path in (ROOT / folder).rglob("*")
        if path.is_file()
    }
    assert found == recorded
    assert any(name.endswith("katex.min.js") for name in found)


def test_there_are_57_questions_each_with_a_chapter() -> None:
    listed = tomllib.loads((ROOT / "docs/questions.toml").read_text("utf-8"))
    questions, sources = listed["question"], listed["source"]
    assert len({question["id"] for question in questions}) == len(questions) == 57
    assert {question["chapter"] for question in questions} <= set(CHAPTERS)
    assert len({question["title"] for question in questions}) == 57
    for name, source in sources.items():
        own = [question for question in questions if question["source"] == name]
        assert all(question["id"].startswith(f"{name}-") for question in own)
        points = [question["points"] for question in own if "points" in question]
        assert sum(points) == source.get("points", 0)
    assert {question["source"] for question in questions} == set(sources)


def test_evidence_names_questions_that_exist() -> None:
    listed = tomllib.loads((ROOT / "docs/questions.toml").read_text("utf-8"))
    known = {question["id"] for question in listed["question"]}
    claimed = {
        ast.unparse(argument).strip("'\"")
        for path in (ROOT / "tests").rglob("*.py")
        for name, call in calls(parsed(path))
        if name == "pytest.mark.question"
        for argument in call.args
    }
    assert claimed - known == set()
