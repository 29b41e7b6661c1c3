"""How pages are made: formulas, signatures, references to other projects."""

import ast
import html
import pkgutil
import re
import tomllib
from pathlib import Path

import pytest
from small import build

ROOT = Path(__file__).parents[2]


def test_labelled_formulas_are_numbered_and_linked(tmp_path: Path) -> None:
    formulas = "$$\na \\label{eq:a}\n$$\n\n$$\nb \\label{eq:b}\n$$\n"
    pages = {
        "docs/index.md": r"See $\eqref{eq:b}$; $\R$.",
        "docs/three.md": f"---\nchapter: 3\n---\n\n{formulas}",
    }
    built = build(tmp_path, pages)
    assert built.returncode == 0, built.stderr
    home = (tmp_path / "site/index.html").read_text("utf-8")
    assert '<a href="three/#eq:b">(3.2)</a>' in home
    assert home.count('class="katex"') == 1
    page = (tmp_path / "site/three/index.html").read_text("utf-8")
    assert re.findall(r'<div class="formula" id="(.*?)">', page) == ["eq:a", "eq:b"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (r"$\frac{1}$", "index.md: ParseError"),
        (r"$\nosuchcommand$", "Undefined control sequence"),
        (r"$\eqref{eq:none}$", "no formula is labelled eq:none"),
        ("$$\na \\label{x}\n$$\n\n$$\nb \\label{x}\n$$", "label x is used twice"),
        ("words\n$$\na\n$$ words", "TeX left as it is near '$$"),
    ],
)
def test_mistakes_in_formulas_stop_the_build(
    tmp_path: Path, text: str, complaint: str
) -> None:
    built = build(tmp_path, {"docs/index.md": text})
    assert built.returncode != 0
    assert complaint in built.stderr


def test_the_reference_shows_every_public_name(folder: Path) -> None:
    missing: list[str] = []
    for page in (ROOT / "docs/reference").glob("*.md"):
        book = ROOT / "src/transformers_hw"
        files = [*book.glob(f"{page.stem}.py"), *book.glob(f"{page.stem}/*.py")]
        shown = folder / "reference" / page.stem / "index.html"
        missing += [
            f"{page.stem}: {node.name}"
            for file in files
            for node in ast.parse(file.read_text("utf-8")).body
            if isinstance(node, ast.FunctionDef | ast.ClassDef)
            and not node.name.startswith("_")
            and f'id="transformers_hw.{page.stem}.{node.name}"'
            not in shown.read_text("utf-8")
        ]
    assert missing == []


def test_signatures_show_shapes_as_they_are_written(folder: Path) -> None:
    source = ROOT / "src/transformers_hw/attention.py"
    wanted = {
        ast.unparse(node).replace("'", '"')
        for node in ast.walk(ast.parse(source.read_text("utf-8")))
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Float"
    }
    page = (folder / "reference/attention/index.html").read_text("utf-8")
    without_listings = re.sub(r"<details.*?</details>", "", page, flags=re.S)
    shown = html.unescape(re.sub(r"<[^>]+>", "", without_listings))
    assert wanted
    assert {shape for shape in wanted if shape not in shown} == set()
    assert {shape for shape in wanted if shape.replace('"', "'") in shown} == set()


def test_signatures_link_to_torch(folder: Path) -> None:
    page = (folder / "reference/attention/index.html").read_text("utf-8")
    assert "https://docs.pytorch.org/docs/stable/tensors.html#torch.Tensor" in page


def test_the_names_elsewhere_exist() -> None:
    places = tomllib.loads((ROOT / "tools/book/elsewhere.toml").read_text("utf-8"))
    names = [name for place in places["place"] for name in place["names"]]
    assert len(set(names)) == len(names) > 0
    for name in names:
        full = name if "." in name else f"builtins.{name}"
        assert pkgutil.resolve_name(full) is not None
