"""The plan of the repository: which file lies where, and which may import which."""

import ast
import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from transformers_hw_command import CHAPTERS

ROOT = Path(__file__).parents[2]
BOOK = ROOT / "src/transformers_hw"
# Below the first chapter, and above the last one.
FLOOR = "_engine"
ABOVE = ("probes", "pretrained", "summary", "exercises", "lab", "__init__")
FOUNDATIONS = sys.stdlib_module_names | {"torch", "einops", "jaxtyping"}
# Weight files and the Hub need them: functions of `pretrained` import them when called.
LAZY = {"pretrained": {"safetensors", "huggingface_hub"}}


def room(path: Path) -> str:
    """Name the module or package, directly below the top level, of a file."""
    return path.relative_to(BOOK).parts[0].removesuffix(".py")


def book_files() -> list[Path]:
    """List the files that `import transformers_hw` may load."""
    files = sorted(BOOK.rglob("*.py"))
    return [path for path in files if room(path) not in ("lab", "exercises")]


def imports(tree: ast.AST) -> Iterator[str]:
    """Yield the full names of imported modules; relative imports begin with a dot."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")


def pages() -> list[Path]:
    """List the pages in the order of the site's navigation."""

    class Loader(yaml.SafeLoader):
        """Reads MkDocs' own tags as plain text."""

    Loader.add_multi_constructor("", lambda loader, tag, node: tag)
    config = yaml.load((ROOT / "mkdocs.yml").read_text("utf-8"), Loader)

    def leaves(entry: object) -> Iterator[Path]:
        if isinstance(entry, str):
            yield Path(entry)
        elif isinstance(entry, dict):
            yield from leaves(list(entry.values()))
        elif isinstance(entry, list):
            for item in entry:
                yield from leaves(item)

    return list(leaves(config["nav"]))


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_chapter_is_a_module_a_page_a_test_file_and_an_example(chapter: str) -> None:
    forms = [BOOK / f"{chapter}.py", BOOK / chapter / "__init__.py"]
    assert [path.is_file() for path in forms].count(True) == 1
    assert (ROOT / f"docs/chapters/{chapter}.md").is_file()
    assert (ROOT / f"tests/chapters/test_{chapter}.py").is_file()
    assert (ROOT / f"examples/{chapter}.py").is_file()
    reference = (ROOT / f"docs/reference/{chapter}.md").read_text("utf-8")
    assert f"::: transformers_hw.{chapter}" in reference


@pytest.mark.parametrize("folder", ["chapters", "reference"])
def test_the_site_lists_the_chapters_in_order(folder: str) -> None:
    listed = [page.stem for page in pages() if page.parent == Path(folder)]
    assert tuple(name for name in listed if name in CHAPTERS) == CHAPTERS


def test_every_module_has_its_place_in_the_plan() -> None:
    found = {room(path) for path in BOOK.rglob("*.py")}
    assert found - {FLOOR, *CHAPTERS, *ABOVE} == set()


@pytest.mark.parametrize("path", book_files(), ids=lambda path: path.stem)
def test_imports_run_downwards(path: Path) -> None:
    own = room(path)
    if own == FLOOR:
        below = {FLOOR}
    elif own in CHAPTERS:
        below = {FLOOR, *CHAPTERS[: CHAPTERS.index(own) + 1]}
    else:
        at = ABOVE.index(own)
        outside = {"lab", "exercises"}
        below = {FLOOR, *CHAPTERS, *ABOVE[: at + 1]} - outside
    tree = ast.parse(path.read_text("utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    lazy = {name for function in functions for name in imports(function)}
    for name in imports(tree):
        package, _, rest = name.partition(".")
        if package == "transformers_hw":
            allowed = rest.partition(".")[0] in below
        else:
            later = LAZY.get(own, set()) if name in lazy else set()
            allowed = package in FOUNDATIONS | later
        assert allowed, f"{path.relative_to(ROOT)} imports {name}"


def test_vendored_files_are_the_recorded_ones() -> None:
    record = (ROOT / "tools/vendored.sha256").read_text("utf-8")
    recorded = {name: digest for digest, name in map(str.split, record.splitlines())}
    digests = {
        name: hashlib.sha256((ROOT / name).read_bytes()).hexdigest()
        for name in recorded
    }
    assert digests == recorded
    published = (ROOT / "docs/assets/vendor").rglob("*.*")
    assert {str(path.relative_to(ROOT)) for path in published} <= set(recorded)
