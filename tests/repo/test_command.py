"""The command `transformers-hw`, and the model summaries that it prints."""

import csv
import importlib.metadata
import inspect
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

import transformers_hw_command as command
from transformers_hw import VisionTransformer, __version__
from transformers_hw.pretrained import save_model, saving
from transformers_hw.summary import MODELS, find_model, summarize

ROOT = Path(__file__).parents[2]


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert command.main(arguments) == 0
    return capsys.readouterr().out


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Record the examples that would run, and run none."""
    recorded: list[list[str]] = []

    def call(arguments: list[object]) -> int:
        recorded.append([str(argument) for argument in arguments])
        return 0

    monkeypatch.setattr(subprocess, "call", call)
    return recorded


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["book"], ["site"]])
def test_pytorch_is_loaded_for_models_only(arguments: list[str]) -> None:
    (entry,) = importlib.metadata.entry_points(
        group="console_scripts", name="transformers-hw"
    )
    code = (
        f"import atexit, sys; from {entry.module} import {entry.attr};"
        "atexit.register(lambda: print('torch' in sys.modules));"
        f"sys.exit({entry.attr}())"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert printed.endswith("False\n")
    if arguments == ["--version"]:
        assert printed.startswith(f"{__version__}\n")


def test_every_chapter_is_listed_with_its_questions(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = output(capsys, "book")
    listed = tomllib.loads((ROOT / "docs/questions.toml").read_text("utf-8"))
    chapters = [question["chapter"] for question in listed["question"]]
    rows = re.findall(r"^\d\s+(\w+)\s+(\d+)\s+\w.+$", text, re.M)
    wanted = [(name, str(chapters.count(name))) for name in command.CHAPTERS]
    assert rows == wanted
    assert f"{len(chapters)} questions in all" in text


@pytest.mark.parametrize("arguments", ["book", "exercise", "grade cohort"])
@pytest.mark.parametrize("where", [">&-", ">/dev/full", "| true"])
def test_output_that_nobody_takes_is_no_traceback(
    where: str, arguments: str, tmp_path: Path
) -> None:
    students = ["anna", "berta"]
    for student in students:
        file = tmp_path / "cohort" / student / "attention__softmax.py"
        file.parent.mkdir(parents=True)
        file.write_text("softmax = None")
    code = "import sys, transformers_hw_command as x; sys.exit(x.main(sys.argv[1:]))"
    reader, writer = os.pipe()
    os.close(reader)  # what is left of a pipe into a program that has ended
    redirection = "" if where == "| true" else where
    ran = subprocess.run(
        [
            "/bin/sh",
            "-c",
            f'"$0" -c "$1" {arguments} {redirection}',
            *(sys.executable, code),
        ],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    os.close(writer)
    assert ran.returncode == 1
    full = "transformers-hw: [Errno 28] No space left on device\n"
    # Students are graded at the same time, so that several may meet the full disk.
    said = set(ran.stderr.splitlines(keepends=True))
    assert said == ({full} if where == ">/dev/full" else set())
    if arguments == "grade cohort":
        with (tmp_path / "cohort/grades.csv").open(encoding="utf-8") as table:
            assert [row["student"] for row in csv.DictReader(table)] == students


def test_the_site_is_built_by_make(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "site")
    assert "make site" in text
    assert f"transformers_hw-{__version__}.tar.gz" in text


def test_a_vision_transformer_has_its_published_size(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = output(capsys, "model", "vit-b/16")
    # torchvision's metadata of vit_b_16: num_params 86567656, _ops 17.564 GMACs.
    assert "86,567,656 parameters" in text
    found = re.search(r"([\d,]+) floating-point operations", text)
    assert found is not None
    multiplications = int(found[1].replace(",", "")) / 2
    assert multiplications == pytest.approx(17.564e9, rel=2e-3)
    assert re.search(r"encoder\.layers\.11\s+EncoderLayer\s+1 × 197 × 768", text)
    assert re.search(r"head\s+Linear\s+1 × 1000\s+769,000", text)
    assert "For an input of 1 × 3 × 224 × 224: " in text


def test_parameters_of_submodules_that_are_not_called_are_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = output(capsys, "model", "BERT", "--depth", "1")
    # A dense layer of 768 units on as many inputs, which only pool() calls.
    assert re.search(r"^pooler\s+Linear\s+–\s+590,592$", text, re.M)
    sizes = re.findall(r" ([\d,]+)$", text, re.M)
    total = sum(int(size.replace(",", "")) for size in sizes)
    assert f"Bert: {total:,} parameters" in text


def test_operations_are_those_of_the_formula() -> None:
    n, d, depth = 7, 768, 12
    # Four projections, scores and means, and a network four times as wide.
    layer = 2 * (4 * n * d**2 + 2 * n**2 * d + 8 * n * d**2)
    text = summarize(find_model("bert"), length=n)
    assert f"{depth * layer:,} floating-point operations" in text


@pytest.mark.parametrize("name", MODELS)
def test_every_model_is_summarized(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = output(capsys, "model", name, "--length", "16", "--depth", "1")
    assert not re.search(r"^\w+\.\w", text, re.M)
    with torch.device("meta"):
        own = sum(x.numel() for x in MODELS[name]().parameters())
    assert f"{own:,} parameters" in text


@pytest.mark.parametrize("name", saving.MODELS)
def test_whatever_can_be_saved_is_summarized(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind = saving.MODELS[name]
    sizes = {"image_size": 8, "patch_size": 4, "num_classes": 5, "vocab_size": 17}
    sizes |= {"dim": 12, "heads": 3, "hidden_dim": 7, "depth": 2}
    taken = inspect.signature(kind).parameters.keys() & sizes.keys()
    model = kind(**{name: sizes[name] for name in taken}, dtype=torch.float64)
    path = save_model(model, tmp_path / "small.safetensors")
    text = output(capsys, "model", str(path), "--length", "11")
    own = sum(x.numel() for x in model.parameters())
    assert f"{name}: {own:,} parameters" in text


def test_a_saved_model_is_summarized(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = VisionTransformer(
        (8, 12), (4, 2), num_classes=7, dim=12, depth=1, heads=3, dtype=torch.float64
    )
    path = save_model(model, tmp_path / "small.safetensors")
    text = output(capsys, "model", str(path))
    assert re.search(r"patch_embedding\s+PatchEmbedding\s+1 × 2 × 6 × 12", text)


def test_bad_arguments_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "got 'gpt'" in refusal(capsys, "model", "gpt")
    assert "'ViT-xl/16'" in refusal(capsys, "model", "ViT-XL/16")
    missing = str(tmp_path / "none.safetensors")
    assert "cannot be read" in refusal(capsys, "model", missing)
    assert "513" in refusal(capsys, "model", "bert", "--length", "513")
    assert "invalid choice: 'poetry'" in refusal(capsys, "example", "poetry")
    for option in ("--length", "--depth"):
        for number in ("0", "-3", "2.5", "many"):
            message = refusal(capsys, "model", "bert", option, number)
            assert f"{option}: must be a positive integer, got '{number}'" in message


def test_what_exercises_cannot_do_is_said_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "attention/softmax"
    file = Path("attention__softmax.py")
    file.write_text("softmax = None")
    Path("cohort/anna").mkdir(parents=True)
    (Path("cohort/anna") / file).write_text("softmax = None")
    Path(".exercises.json").mkdir()
    for given, said in (
        (f"exercise start {name} --to {file}", "File exists: 'attention__softmax.py'"),
        (f"exercise start {name} --to {file}/in", "attention__softmax.py"),
        ("exercise start attention/../attention/softmax", "no exercise 'attention/../"),
        ("exercise solution attention/__init__", "no exercise 'attention/__init__'"),
        (f"exercise check {file} --exercise attention/Softmax", "no exercise"),
        (f"exercise hint {name}", "'.exercises.json'"),
        (f"grade cohort --out {file}", f"{file} is not a folder."),
    ):
        message = refusal(capsys, *given.split())
        assert said in message
        assert re.fullmatch(r"transformers-hw: .*\n", message)
    for command_line in (f"exercise check {file}", "grade cohort"):
        message = refusal(capsys, *command_line.split(), "--seconds", "1e308")
        assert "--seconds: must be at most a day, 86400, got '1e308'" in message
    assert {path.name for path in Path().rglob("*.*")} == {
        ".exercises.json",
        "attention__softmax.py",
    }


@pytest.mark.unhooked
def test_a_right_answer_is_told_if_it_cannot_be_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "attention__softmax.py"
    path.write_text(
        "import numpy as np\ndef softmax(scores, scale):\n"
        "    x = np.exp(scale * (scores - scores.max(-1, keepdims=True)))\n"
        "    return x / x.sum(-1, keepdims=True)\n"
    )
    (tmp_path / ".exercises.json").mkdir()
    text = output(capsys, "exercise", "check", str(path))
    assert text.startswith("Right. ")
    assert "could not be noted down: [Errno" in text


@pytest.mark.parametrize(
    ("given", "passed_on"),
    [
        ([], "quick --out runs/seq2seq/quick"),
        (["--seed", "3"], "quick --seed 3 --out runs/seq2seq/quick"),
        (["cpu", "--device", "cuda"], "cpu --device cuda --out runs/seq2seq/cpu"),
        (["gpu", "--out=here"], "gpu --out=here"),
        (["redraw", "--out", "there"], "redraw --out there"),
    ],
)
def test_options_are_passed_on_to_the_example(
    given: list[str], passed_on: str, calls: list[list[str]]
) -> None:
    assert command.main(["example", "seq2seq", *given]) == 0
    ((python, script, *options),) = calls
    assert (python, Path(script).name) == (sys.executable, "seq2seq.py")
    assert Path(script).is_file()
    assert " ".join(options) == passed_on


def test_an_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert command.main(["example", "attention"]) == 0
    assert (tmp_path / "runs/attention/quick/run.json").is_file()


def test_the_exit_status_of_an_example_is_passed_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subprocess, "call", lambda arguments: 3)
    assert command.main(["example", "attention"]) == 3


def test_examples_name_the_packages_they_need(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = importlib.metadata.version

    def version(name: str) -> str:
        if name in ("tyro", "matplotlib"):
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    message = refusal(capsys, "example", "attention")
    assert (
        "also need matplotlib, tyro. In a checkout: pip install -e '.[lab]'" in message
    )
