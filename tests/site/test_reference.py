"""The reference pages: every public name, shapes as written, links to PyTorch."""

import ast
import html
import inspect
import pkgutil
import re
from importlib import import_module
from pathlib import Path

from mkdocstrings import Inventory

from transformers_hw_command import CHAPTERS

ROOT = Path(__file__).parents[2]


def test_the_reference_shows_every_public_name(folder: Path) -> None:
    missing: list[str] = []
    pages = [page.stem for page in (ROOT / "docs/reference").glob("[!i]*.md")]
    assert len(pages) > len(CHAPTERS)
    for name in pages:
        module = import_module(f"transformers_hw.{name}")
        own = [
            x
            for x, value in vars(module).items()
            if inspect.isfunction(value) or inspect.isclass(value)
            if value.__module__.startswith(module.__name__) and not x.startswith("_")
        ]
        # What a package's files share among themselves is not in its __all__.
        public = set(own) & set(getattr(module, "__all__", own))
        shown = (folder / "reference" / name / "index.html").read_text("utf-8")
        prefix = f'id="transformers_hw.{name}'
        missing += [f"{name}.{x}" for x in public if f'{prefix}.{x}"' not in shown]
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
    with (ROOT / "bookbinding/elsewhere.inv").open("rb") as file:
        names = list(Inventory.parse_sphinx(file))
    assert names
    for name in names:
        full = name if "." in name else f"builtins.{name}"
        assert pkgutil.resolve_name(full) is not None
