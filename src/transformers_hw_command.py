"""The command `transformers-hw`, for readers without a checkout.

This module stands beside the package, because importing the package loads PyTorch:
`transformers-hw --help` answers without it.
"""

import argparse
import ast
import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
PRESETS = ("quick", "cpu", "gpu")
SITE = """\
The book is built from its sources, offline, with make and Python. In a checkout, or in
the unpacked source distribution transformers_hw-{version}.tar.gz:

    make site     builds it and serves it at http://127.0.0.1:8000

Its reference pages are the docstrings. Python shows them, too:

    >>> import transformers_hw.attention
    >>> help(transformers_hw.attention)
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: Command line; the one of the process by default.

    Returns:
        The exit status, 0 for success.
    """
    version = importlib.metadata.version("transformers-hw")
    about = "A textbook on attention and Transformers that you can import."
    parser = argparse.ArgumentParser("transformers-hw", description=about)
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("book", help="list the chapters")
    commands.add_parser("site", help="say how to build the site")
    example = commands.add_parser(
        "example",
        help="run a chapter's example",
        description="Run a chapter's example, which writes a record and figures.",
        epilog="Options go to the example: transformers-hw example attention --help",
    )
    example.add_argument(
        "chapter",
        choices=CHAPTERS,
        metavar="chapter",
        help="one of those that transformers-hw book lists",
    )
    example.add_argument(
        "options",
        nargs=argparse.REMAINDER,
        metavar="preset and options",
        help="such as: cpu --seed 1 --device cuda (preset: quick)",
    )
    model = commands.add_parser("model", help="describe a model, layer by layer")
    model.add_argument(
        "model",
        help="ViT-<size>/<patch size> such as ViT-B/16, transformer, bert, seq2seq, "
        "image-bert, gpt-2, or a file that save_model wrote",
    )
    positive = {"type": _positive, "metavar": "N"}
    model.add_argument(
        "--length", default=128, help="number of tokens of a text: 128", **positive
    )
    model.add_argument(
        "--depth", default=3, help="levels of submodules to show: 3", **positive
    )
    _add_exercises(commands)
    chosen = parser.parse_args(arguments)
    try:
        if chosen.command in ("exercise", "grade"):
            return run_exercises(chosen)
        if chosen.command == "example":
            return run_example(chosen.chapter, chosen.options)
        if chosen.command == "model":
            from transformers_hw.summary import find_model, summarize

            found = find_model(chosen.model)
            text = summarize(found, length=chosen.length, depth=chosen.depth)
        else:
            text = list_chapters() if chosen.command == "book" else SITE
    except (ImportError, OSError, ValueError) as error:
        parser.exit(2, f"transformers-hw: {error}\n")
    return _tell(text.replace("{version}", version))


def _tell(text: str) -> int:
    """Write to standard output; return 1 if nobody takes it."""
    if sys.stdout is None:  # closed from the start
        return 1
    try:
        # Names of folders, of students for instance, need not be text.
        encoding = sys.stdout.encoding or "utf-8"
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sys.stdout.flush()
    except OSError as error:
        # Else Python would try again when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if sys.stderr is not None and not isinstance(error, BrokenPipeError):
            sys.stderr.write(f"transformers-hw: {error}\n")
        return 1
    return 0


def list_chapters() -> str:
    """Return a table of the chapters, with the number of questions each answers."""
    listed = tomllib.loads(_data("questions.toml", "docs").read_text("utf-8"))
    count = Counter(question["chapter"] for question in listed["question"])
    width = max(map(len, CHAPTERS))
    lines = [f"   {'chapter':{width}}  questions  about"]
    for number, name in enumerate(CHAPTERS, start=1):
        module = _package() / f"{name}.py"
        module = module if module.exists() else _package() / name / "__init__.py"
        text = ast.get_docstring(ast.parse(module.read_text("utf-8"))) or ""
        about = text.partition("\n")[0].rstrip(".")
        lines.append(f"{number}  {name:{width}}  {count[name]:9}  {about}")
    return "\n".join([*lines, f"{count.total()} questions in all.", ""])


def run_example(chapter: str, options: Sequence[str] = ()) -> int:
    """Run a chapter's example.

    Args:
        chapter: Name of the chapter.
        options: Command line of the example: a preset, `quick` if there is none,
            and options. Without `--out`, it writes to `runs/<chapter>/<preset>`.

    Returns:
        The exit status of the example.

    Raises:
        ImportError: If a package of the extra `lab` is not installed.
    """
    missing = [name for name in _required_by("lab") if not _installed(name)]
    if missing:
        raise ImportError(
            f"the examples also need {', '.join(missing)}. "
            "In a checkout: pip install -e '.[lab]'"
        )
    options = list(options)
    if not options or options[0].startswith("-"):
        options = [PRESETS[0], *options]
    asks_out = any(option.partition("=")[0] == "--out" for option in options)
    if options[0] in PRESETS and not asks_out:
        options += ["--out", str(Path("runs", chapter, options[0]))]
    script = _data("examples", "") / f"{chapter}.py"
    return subprocess.call([sys.executable, script, *options])


def run_exercises(chosen: argparse.Namespace) -> int:
    """Carry out `exercise` or `grade`.

    Args:
        chosen: The parsed command line.

    Returns:
        The exit status: 1 if an answer that was checked is not right, or if nobody
        took what was said.

    Raises:
        ImportError: If NumPy is not installed.
        OSError: If a file or folder cannot be read or written.
        ValueError: If there is no such exercise, file or folder.
    """
    if not _installed("numpy"):
        raise ImportError("the exercises also need numpy: pip install numpy")
    from transformers_hw.exercises import terminal

    here, passed = Path(), True
    unheard: list[int] = []
    if chosen.command == "grade":
        out = chosen.out or chosen.folder
        text = terminal.grade_folder(
            chosen.folder,
            out,
            chosen.seconds,
            # Grading goes on without an audience: its result is the tables.
            lambda name: unheard.append(_tell(f"{name}\n")),
        )
    elif chosen.action is None:
        text = terminal.overview(here)
    elif chosen.action == "start":
        text = terminal.start(chosen.name, chosen.to)
    elif chosen.action == "check":
        passed, text = terminal.check(chosen.file, chosen.exercise, chosen.seconds)
    elif chosen.action == "hint":
        text = terminal.hint(chosen.name, here)
    else:
        text = terminal.show_solution(chosen.name)
    unheard.append(_tell(text))
    return int(not passed or any(unheard))


def _add_exercises(commands: Any) -> None:
    exercise = commands.add_parser(
        "exercise",
        help="list, start and check exercises",
        description="Without an action, list all exercises and those you solved.",
    )
    actions = exercise.add_subparsers(dest="action")
    about_name = "chapter and name, such as attention/softmax"
    start = actions.add_parser("start", help="copy a file to fill in")
    start.add_argument("name", help=about_name)
    start.add_argument("--to", type=Path, default=Path(), help="folder: this one")
    check = actions.add_parser("check", help="check a file")
    check.add_argument("file", type=Path)
    check.add_argument("--exercise", metavar="NAME", help="if the file's name differs")
    for action, about in (("hint", "give a hint"), ("solution", "show the solution")):
        actions.add_parser(action, help=about).add_argument("name", help=about_name)
    grade = commands.add_parser(
        "grade",
        help="check a folder of submissions",
        description="Check the files in every subfolder, each in a process of its own, "
        "and write grades.csv and grades.html.",
    )
    grade.add_argument("folder", type=Path, help="folder with a subfolder per student")
    grade.add_argument("--out", type=Path, help="folder for the tables: the same")
    for one in (check, grade):
        one.add_argument(
            "--seconds", type=_seconds, default=10.0, metavar="S", help="time: 10"
        )


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a positive number, got {text!r}")
    if seconds > 86400.0:
        raise argparse.ArgumentTypeError(f"must be at most a day, 86400, got {text!r}")
    return seconds


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a positive integer, got {text!r}")
    return int(text)


def _package() -> Path:
    # Finding a top-level package does not import it.
    spec = importlib.util.find_spec("transformers_hw")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("the package transformers_hw is not installed.")
    return Path(spec.submodule_search_locations[0])


def _data(name: str, folder: str) -> Path:
    # The wheel has it in the package; a checkout, in a folder of its own.
    packaged = _package() / name
    return packaged if packaged.exists() else _package().parents[1] / folder / name


def _required_by(extra: str) -> list[str]:
    lines = importlib.metadata.requires("transformers-hw") or []
    own = [line for line in lines if re.search(rf"extra == ['\"]{extra}['\"]", line)]
    return [re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in own]


def _installed(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
