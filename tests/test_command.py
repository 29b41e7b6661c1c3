"""The command `transformers-hw`, as one meets it after `pip install`."""

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from test_house import CHAPTERS

from transformers_hw import VisionTransformer, __version__, command
from transformers_hw.pretrained import save_model


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert command.main(arguments) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_the_book_has_eight_chapters_and_57_questions(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = told(capsys, "book")
    assert list(command.CHAPTERS) == CHAPTERS
    rows = re.findall(r"^(\d)\s+(\w+)\s+(\d+)\s+(.+)$", text, re.M)
    assert [row[1] for row in rows] == CHAPTERS
    assert sum(int(row[2]) for row in rows) == 57
    assert "57 questions in all" in text


def test_the_site_is_built_by_make(capsys: pytest.CaptureFixture[str]) -> None:
    text = told(capsys, "site")
    assert "make site" in text
    assert f"transformers_hw-{__version__}.tar.gz" in text


def test_a_vision_transformer_is_described_by_its_published_numbers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = told(capsys, "model", "ViT-B/16")
    # torchvision's metadata of vit_b_16: num_params 86567656, _ops 17.564 GMACs.
    assert "86,567,656 parameters" in text
    found = re.search(r"([\d,]+)\s+floating-point operations", text)
    assert found is not None
    multiplications = int(found[1].replace(",", "")) / 2
    # There, all tokens ask in the last layer, too, and are transformed after that.
    queries_and_outputs, hidden, attention = 2 * 768**2, 2 * 768 * 3072, 2 * 197 * 768
    spared = 196 * (queries_and_outputs + hidden + attention)
    assert multiplications + spared == pytest.approx(17.564e9, rel=2e-3)
    assert re.search(r"encoder\.layers\.10\s+EncoderLayer\s+1 × 197 × 768", text)
    assert re.search(r"encoder\.layers\.11\s+EncoderLayer\s+1 × 1 × 768", text)
    assert re.search(r"head\s+Linear\s+1 × 1000\s+769,000", text)
    assert "Given 1 × 3 × 224 × 224: " in text


def test_parts_that_only_another_method_calls_are_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = told(capsys, "model", "bert", "--depth", "1")
    # A dense layer of 768 units on as many inputs, which only summarise() calls.
    assert re.search(r"^summary\s+Linear\s+–\s+590,592$", text, re.M)
    sizes = re.findall(r" ([\d,]+)$", text, re.M)
    total = sum(int(size.replace(",", "")) for size in sizes)
    assert f"Bert: {total:,} parameters" in text


def test_operations_are_those_of_the_formula() -> None:
    model = command.find_model("bert")
    n, d, depth = 7, 768, 12
    # Four projections, scores and means, and a network four times as wide.
    layer = 2 * (4 * n * d**2 + 2 * n**2 * d + 8 * n * d**2)
    text = command.describe_model(model, length=n)
    assert f"{depth * layer:,} floating-point operations" in text


@pytest.mark.parametrize("name", command.MODELS)
def test_every_model_is_described(name: str, capsys: pytest.CaptureFixture[str]):
    text = told(capsys, "model", name, "--length", "16", "--depth", "1")
    assert len(text.splitlines()) > 4
    assert not re.search(r"^\w+\.\w", text, re.M)
    own = sum(x.numel() for x in command.MODELS[name]().parameters())
    assert f"{own:,} parameters" in text


def test_a_saved_model_is_described(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes: Any = {"classes": 7, "dim": 12, "depth": 1, "heads": 3}
    model = VisionTransformer((8, 12), (4, 2), **sizes, dtype=torch.float64)
    path = save_model(model, tmp_path / "small.safetensors")
    text = told(capsys, "model", str(path))
    assert re.search(r"patch_embedding\s+PatchEmbedding\s+1 × 2 × 6 × 12", text)


def test_what_is_not_there_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "got 'gpt'" in refused(capsys, "model", "gpt")
    assert "ViT-XL/16" in refused(capsys, "model", "ViT-XL/16")
    assert "cannot be read" in refused(
        capsys, "model", str(tmp_path / "none.safetensors")
    )
    assert "codes for 512 positions" in refused(
        capsys, "model", "bert", "--length", "513"
    )
    assert "invalid choice: 'poetry'" in refused(capsys, "example", "poetry")
    for option in ("--length", "--depth"):
        for number in ("0", "-3", "2.5", "many"):
            message = refused(capsys, "model", "bert", option, number)
            assert f"{option}: must be a whole number from 1 on" in message


def test_an_example_runs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    text = told(capsys, "example", "attention")
    assert "are in runs/attention/quick" in text.replace("\\", "/")
    written = {path.name for path in (tmp_path / "runs/attention/quick").iterdir()}
    assert {"run.json", "results.safetensors"} <= written
    assert any(name.endswith(".svg") for name in written)


def test_an_example_that_fails_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").write_text("a file, not a folder", "utf-8")
    assert command.main(["example", "attention", "--out", str(tmp_path / "out")]) == 1
    assert "are in" not in capfd.readouterr().out


def test_without_the_extra_the_examples_say_what_they_need(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = importlib.metadata.version

    def bare(name: str) -> str:
        if name in ("tyro", "matplotlib"):
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(importlib.metadata, "version", bare)
    message = refused(capsys, "example", "attention")
    assert "also need matplotlib, tyro: pip install 'transformers-hw[lab]'" in message


def test_the_command_is_installed() -> None:
    (entry,) = importlib.metadata.entry_points(
        group="console_scripts", name="transformers-hw"
    )
    assert entry.load() is command.main
    ran = subprocess.run(
        [sys.executable, "-c", f"from {entry.module} import main; main()", "--version"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert ran.stdout.strip() == __version__
