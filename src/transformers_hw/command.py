"""The command `transformers-hw`: the book for those who have no checkout of it."""

import argparse
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from transformers_hw import __version__
from transformers_hw.attention_as_convolution import PictureBert
from transformers_hw.pretrained import load_model
from transformers_hw.seq2seq import Seq2Seq
from transformers_hw.transformer import Bert, Transformer
from transformers_hw.vision_transformer import VisionTransformer

CHAPTERS = (
    "attention",
    "positional_encoding",
    "multi_head_attention",
    "self_attention",
    "seq2seq",
    "transformer",
    "vision_transformer",
    "attention_as_convolution",
)
MODELS = {
    "transformer": lambda: Transformer(37_000),
    "bert": lambda: Bert(30_522, dim=768, depth=12, heads=12),
    "seq2seq": lambda: Seq2Seq(58, dim=64, hidden_dim=256, attention="additive"),
    "picture-bert": PictureBert,
}
SITE = """\
The site is not published; it is built from the sources, offline, with make and Python.
In a checkout, or in the unpacked source distribution transformers_hw-{version}.tar.gz:

    make site     builds it and serves it at http://127.0.0.1:8000

Its reference pages are the docstrings: help(transformers_hw.attention) shows one.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says.

    Args:
        arguments: The command line; the process's own by default.

    Returns:
        The exit status, 0 if all went well.
    """
    told = "A textbook on attention and Transformers that you can import."
    parser = argparse.ArgumentParser("transformers-hw", description=told)
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("book", help="list the chapters")
    commands.add_parser("site", help="say where the site is, and how to build it")
    example = commands.add_parser("example", help="run a chapter's example, quickly")
    example.add_argument("chapter", choices=CHAPTERS)
    example.add_argument("--out", type=Path, help="folder for figures and record")
    model = commands.add_parser("model", help="describe a model, layer by layer")
    known = ", ".join(MODELS)
    model.add_argument("model", help=f"ViT-B/16 and the like, {known}, or a saved file")
    number = {"type": _from_one, "metavar": "N"}
    model.add_argument("--length", default=128, help="tokens of a text: 128", **number)
    model.add_argument("--depth", default=3, help="levels of parts: 3", **number)
    chosen = parser.parse_args(arguments)
    try:
        if chosen.command == "example":
            return run_example(chosen.chapter, chosen.out)
        text = SITE.format(version=__version__)
        if chosen.command == "book":
            text = list_chapters()
        elif chosen.command == "model":
            made = find_model(chosen.model)
            text = describe_model(made, length=chosen.length, depth=chosen.depth)
    except (ImportError, ValueError) as error:
        parser.exit(2, f"transformers-hw: {error}\n")
    sys.stdout.write(text)
    return 0


def list_chapters() -> str:
    """Say what each chapter is about, and how many questions it answers."""
    listed = tomllib.loads(_kept("questions.toml", "docs").read_text("utf-8"))
    count = Counter(question["chapter"] for question in listed["question"])
    rows = [("", "chapter", "questions", "about")]
    for number, name in enumerate(CHAPTERS, start=1):
        told = import_module(f"transformers_hw.{name}").__doc__ or ""
        about = told.splitlines()[0].rstrip(".")
        rows.append((str(number), name, str(count[name]), about))
    return _table(rows) + f"{count.total()} questions in all.\n"


def run_example(chapter: str, out: Path | None = None) -> int:
    """Run a chapter's example on its quick settings.

    Args:
        chapter: The chapter.
        out: Folder for what it writes; `runs/<chapter>/quick` by default.

    Returns:
        The exit status of the example.

    Raises:
        ImportError: If what the examples need is not installed.
    """
    missing = [name for name in _needed("lab") if not _installed(name)]
    if missing:
        raise ImportError(
            f"the examples also need {', '.join(missing)}: "
            "pip install 'transformers-hw[lab]'"
        )
    out = Path("runs", chapter, "quick") if out is None else out
    script = _kept("examples", "") / f"{chapter}.py"
    ended = subprocess.call([sys.executable, script, "quick", "--out", out])
    if ended == 0:
        sys.stdout.write(f"Figures, numbers and run.json are in {out}.\n")
    return ended


def find_model(name: str) -> nn.Module:
    """Build a model by name, or load it from a file, to be described.

    Args:
        name: A published size of the Vision Transformer, a key of `MODELS`, or a
            file that `save_model` wrote.

    Returns:
        The model, on the meta device, where tensors have shapes but no numbers.

    Raises:
        ValueError: If there is none of this name.
    """
    if name.endswith(".safetensors"):
        return load_model(name).to("meta")
    with torch.device("meta"):
        if name.startswith("ViT-"):
            return VisionTransformer.from_preset(name, classes=1000).eval()
        if name in MODELS:
            return MODELS[name]().eval()
    known = ", ".join(MODELS)
    raise ValueError(
        f"model must be ViT-<size>/<patch>, one of {known}, or a .safetensors file, "
        f"got {name!r}."
    )


def describe_model(model: nn.Module, *, length: int = 128, depth: int = 3) -> str:
    """Tell a model's parameters, operations, and shapes from layer to layer.

    Args:
        model: A model of the book, on the meta device: nothing is computed.
        length: Number of tokens, for a model that reads texts.
        depth: How many levels of parts to show.

    Returns:
        A table of the parts that act or hold weights, and the sums.
    """
    shapes: dict[str, str] = {}

    def note(name: str) -> Any:
        def hook(_: nn.Module, given: Any, output: Any) -> None:
            shapes[name] = _shape(output[0] if isinstance(output, tuple) else output)

        return hook

    parts = {
        name: part
        for name, part in model.named_modules()
        if name and name.count(".") < depth
    }
    hooks = [part.register_forward_hook(note(name)) for name, part in parts.items()]
    inputs = _inputs(model, length)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(*inputs)
    for hook in hooks:
        hook.remove()
    rows = [("part", "kind", "output", "parameters")]
    for name, part in parts.items():
        # Some weights are read, or kept for another method, and not called here.
        if name in shapes or any(True for _ in part.parameters(recurse=False)):
            kind, size = type(part).__name__, f"{_parameters(part):,}"
            rows.append((name, kind, shapes.get(name, "–"), size))
    operations = counter.get_total_flops()
    given = " and ".join(_shape(x) for x in inputs)
    return _table(rows) + (
        f"{type(model).__name__}: {_parameters(model):,} parameters.\n"
        f"Given {given}: {operations:,} floating-point operations\n"
        "(a multiplication and an addition are two).\n"
    )


def _inputs(model: nn.Module, length: int) -> tuple[Tensor, ...]:
    place = {"device": "meta", "dtype": next(model.parameters()).dtype}
    if isinstance(model, VisionTransformer):
        embedding = model.patch_embedding
        sides = [n * i for n, i in zip(model.grid, embedding.patch, strict=True)]
        return (torch.empty(1, embedding.channels, *sides, **place),)
    if isinstance(model, PictureBert):
        return (torch.empty(1, model.channels, 32, 32, **place),)
    text = torch.empty(1, length, dtype=torch.int64, device="meta")
    return (text,) if isinstance(model, Bert) else (text, text)


def _from_one(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        told = f"must be a whole number from 1 on, got {text!r}"
        raise argparse.ArgumentTypeError(told)
    return number


def _shape(x: Tensor) -> str:
    return " × ".join(map(str, x.shape))


def _parameters(module: nn.Module) -> int:
    return sum(x.numel() for x in module.parameters())


def _kept(name: str, folder: str) -> Path:
    # In the wheel beside this file; in a checkout where they are written.
    here = Path(__file__).parent / name
    return here if here.exists() else Path(__file__).parents[2] / folder / name


def _needed(extra: str) -> list[str]:
    lines = importlib.metadata.requires("transformers-hw") or []
    own = [line for line in lines if re.search(rf"extra == ['\"]{extra}['\"]", line)]
    return [re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in own]


def _installed(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if cell[:1].isdigit() else cell.ljust(width)
            for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in rows
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines) + "\n"
