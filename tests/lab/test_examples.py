"""Every example runs, records its run, can be redrawn, and refuses nonsense."""

import json
import os
import re
import runpy
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from matplotlib.figure import Figure

from transformers_hw.lab.plotting import Theme, plain_text, save_figures

ROOT = Path(__file__).parents[2]
# The examples are run as the reader runs them, without the import hook.
pytestmark = pytest.mark.unhooked
# As little as draws every figure; `make figures` runs them as the reader does.
VISION = "--epochs 1 --position-epochs 1 --probe-images 16 --samples-of-1-percent 100"
EXAMPLES = {
    "attention": "--samples 100",
    "attention_as_convolution": "--epochs 1 --short-epochs 1 --compared-epochs 1 "
    "--fraction 0.1",
    "multi_head_attention": "--steps 10",
    "positional_encoding": "--steps 10",
    "self_attention": "--steps 3",
    "seq2seq": "--steps 3 --samples 10",
    "transformer": "--steps 2 --case-steps 2 --text-steps 2 --texts 1",
    "vision_transformer": f"{VISION} --samples-of-10-percent 100 "
    "--samples-of-100-percent 100",
}


def run(monkeypatch: pytest.MonkeyPatch, chapter: str, *arguments: object) -> int:
    """Run an example in this process, and return its exit status."""
    script = f"examples/{chapter}.py"
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", [script, *map(str, arguments)])
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def keys(value: object) -> list[str]:
    if isinstance(value, dict):
        return [*value, *(key for inner in value.values() for key in keys(inner))]
    if isinstance(value, list):
        return [key for inner in value for key in keys(inner)]
    return []


def are_plain(*parts: object) -> bool:
    return all(re.fullmatch("[a-z0-9_]+", key) for part in parts for key in keys(part))


# NumPy complains of how Matplotlib takes tensors.
@pytest.mark.filterwarnings("ignore:__array:DeprecationWarning")
@pytest.mark.parametrize("chapter", EXAMPLES)
def test_an_example_runs_and_can_be_redrawn(
    chapter: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ["--out", tmp_path, "--device", "cpu", *EXAMPLES[chapter].split()]
    assert run(monkeypatch, chapter, "quick", *options) == 0
    assert f"results.safetensors are in {tmp_path}" in capsys.readouterr().out
    # One record, or one for each part.
    records = [json.loads(x.read_text("utf-8")) for x in tmp_path.rglob("run.json")]
    assert records
    assert all(record["metrics"] for record in records)
    assert are_plain(*(record["metrics"] for record in records))
    figures = {path: path.read_bytes() for path in tmp_path.rglob("*.svg")}
    assert len(figures) >= 4
    for path in figures:
        path.unlink()
    assert run(monkeypatch, chapter, "redraw", "--out", tmp_path) == 0
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.svg")} == figures


NUMBER = r"-?\d+(?:\.\d+)?(?:e-?\d+)?"


def drawn(path: Path) -> tuple[list[str], list[float]]:
    """Return the text of a drawing between numbers, and the numbers.

    Processors may round differently, and Matplotlib makes names out of coordinates.
    """
    text = re.sub(r'( id="|href="#|url\(#)\w+', r"\1", path.read_text("utf-8"))
    return re.split(NUMBER, text), [float(x) for x in re.findall(NUMBER, text)]


@pytest.mark.filterwarnings("ignore:__array:DeprecationWarning")
@pytest.mark.parametrize("chapter", EXAMPLES)
def test_the_figures_of_the_site_are_drawn_from_its_records(
    chapter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = ROOT / "docs/figures" / chapter
    for path in (*shown.rglob("run.json"), *shown.rglob("results.safetensors")):
        copy = tmp_path / path.relative_to(shown)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    assert run(monkeypatch, chapter, "redraw", "--out", tmp_path) == 0
    figures = {path.relative_to(shown): path for path in shown.rglob("*.svg")}
    assert figures.keys() == {x.relative_to(tmp_path) for x in tmp_path.rglob("*.svg")}
    for name, path in figures.items():
        (text, numbers), (again, others) = drawn(path), drawn(tmp_path / name)
        assert again == text, name
        assert others == pytest.approx(numbers, abs=1e-3), name


def test_the_records_that_the_site_shows_have_plain_keys() -> None:
    assert EXAMPLES.keys() == {path.stem for path in (ROOT / "examples").glob("*.py")}
    for chapter in EXAMPLES:
        paths = [*(ROOT / "docs/figures" / chapter).rglob("run.json")]
        assert paths, chapter
        for path in paths:
            record = json.loads(path.read_text("utf-8"))
            assert are_plain(record["config"], record["data"], record["metrics"])


# Threads of the group that outlive it may abort the process as Python shuts down: they
# wait for Python to release a tensor (pytorch #179291).
THREADS = """
import runpy, sys
from pathlib import Path

del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
threads = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
assert threads and not [name for name in threads if "gloo" in name], threads
"""


def test_an_example_runs_in_two_processes_of_which_one_writes(tmp_path: Path) -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    script = tmp_path / "threads.py"
    script.write_text(THREADS, "utf-8")
    example = ["examples/multi_head_attention.py", "quick", "--steps", "10"]
    options = ["--out", str(tmp_path), "--device", "cpu"]
    ran = subprocess.run(
        [sys.executable, *launcher, script, *example, *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    record = json.loads((tmp_path / "run.json").read_text("utf-8"))
    assert record["processes"] == 2
    assert ran.stdout.count("results.safetensors are in") == 1
    assert len(list(tmp_path.glob("*.svg"))) >= 4


def test_an_example_runs_without_output(tmp_path: Path) -> None:
    """Standard error is closed, and nobody reads what is written to standard output."""
    reader, writer = os.pipe()
    os.close(reader)
    example = "examples/multi_head_attention.py quick --steps 10 --device cpu --out"
    command = f'exec "$0" {example} "$1" 2>&-'
    ran = subprocess.run(
        ["/bin/sh", "-c", command, sys.executable, tmp_path], cwd=ROOT, stdout=writer
    )
    os.close(writer)
    assert ran.returncode == 0
    assert (tmp_path / "run.json").exists()


def test_a_class_may_be_called_anything(tmp_path: Path) -> None:
    name = r"$\frac{$ and \$"

    def draw(figure: Figure, **options: Any) -> None:
        axes = figure.subplots()
        text = name if options else plain_text(name)
        axes.set_title(text, **options)
        axes.set_yticks([0, 1], [text, text], **options)

    def draw_plain(figure: Figure, _: Theme) -> None:
        draw(figure)

    def draw_without_mathematics(figure: Figure, _: Theme) -> None:
        draw(figure, parse_math=False)

    drawings = {"ours": (draw_plain, 2.0), "theirs": (draw_without_mathematics, 2.0)}
    ours, _, theirs, _ = save_figures(tmp_path, drawings)
    assert ours.read_text() == theirs.read_text()


def test_heads_move_in_an_svg_and_stand_still_where_no_motion_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    example = runpy.run_path("examples/attention_as_convolution.py")
    trail = torch.tensor([1.5, -2.0, 1.0]).repeat(4, 2, 3, 1)  # times, layers, heads
    trail[:, 1, 2, 0] = torch.tensor([0.0, 1.0, 3.0, 7.0])  # rows of the last head
    drawings = {
        "moving": partial(example["movement"], trail),
        "still": partial(example["movement"], trail, still=True),
    }
    texts = [path.read_text("utf-8") for path in save_figures(tmp_path, drawings)]
    for text in texts:
        ElementTree.fromstring(text)
        assert "<script" not in text
    moving, dark, still, _ = texts
    assert moving != dark
    style = re.search(r"@media screen and \(prefers-reduced-motion:no-preference\)(.*)"
                      r"</style>", moving)  # fmt: skip
    assert style is not None
    assert moving.replace(style[0], "</style>") == still
    assert "animation" not in still
    # Each frame is as far below the last as the head moved.
    (frames,) = re.findall(r"@keyframes d1-2\{(.*?)\}\}", style[1])
    heights = [float(y) for y in re.findall(r",(-?[\d.]+)px\)", frames)]
    unit = heights[-1] / 7
    assert unit > 10
    assert heights == pytest.approx([unit * x for x in (0, 0, 1, 3, 7, 7)], abs=0.2)
    assert f'id="d1-2" style="transform:translate({-2 * unit:.0f}' in still.replace(
        f"{-2 * unit:.1f}", f"{-2 * unit:.0f}"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("quick --data missing", "there is nothing at missing."),
        ("quick --main.dim 0", "dim must be a positive integer, got 0."),
        ("quick --epochs 0", "epochs must be a positive integer, got 0."),
        ("quick --lr 0.1", "unknown option --lr; the nearest is --learning-rate"),
        ("quick --epoch=2", "unknown option --epoch; the nearest is --epochs."),
        ("quick --xyz", "unknown option --xyz; --help lists all options."),
        ("redraw --out missing", "out must be the folder of a run, got missing"),
    ],
)
def test_bad_arguments_end_in_one_line(
    arguments: str,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(monkeypatch, "vision_transformer", *arguments.split()) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("vision_transformer.py: error: ")
    assert message in printed.err
    assert printed.err.count("\n") == 1


def test_an_interrupted_example_says_that_the_same_command_resumes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["examples/multi_head_attention.py", "quick", "--out", str(tmp_path)]
    # Long enough to be interrupted, also on a fast machine.
    long = [*command, "--steps", "100000"]
    with subprocess.Popen(
        [sys.executable, *long], cwd=ROOT, stderr=subprocess.PIPE, text=True
    ) as process:
        end = time.monotonic() + 60
        while not (tmp_path / "one_head_seed_0").exists() and time.monotonic() < end:
            time.sleep(0.1)
        time.sleep(1.0)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Stopped. The same command resumes." in stderr
    assert (tmp_path / "one_head_seed_0/checkpoint.safetensors").exists()
    refused = run(monkeypatch, "multi_head_attention", *command[1:])
    message = capsys.readouterr().err
    assert refused == 2
    assert "steps: 100000 there, 300 here" in message
    assert "--start-over" in message
