"""Checkpoints: the right one is restored, and any other is refused by name.

The docstrings name reports of the same failure in other projects.
"""

import copy
import math
import os
import pickle
import random
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from small_run import (
    Mishap,
    same_state,
    small_batches,
    small_config,
    small_model,
    small_run,
)
from torch import Tensor, nn

from transformers_hw.lab.checkpoint import (
    CheckpointError,
    Progress,
    load_checkpoint,
    save_checkpoint,
)
from transformers_hw.lab.files import DamagedFileError, read_tensors, write_tensors
from transformers_hw.lab.objectives import classify
from transformers_hw.lab.optimization import TrainingConfig, make_optimizer
from transformers_hw.lab.training import CHECKPOINT, train
from transformers_hw.vision_transformer import VisionTransformer

FUZZ = int(os.environ.get("FUZZ", "1"))
Tensors = dict[str, Tensor]
Metadata = dict[str, Any]


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of a run that stopped between two evaluations."""
    config = small_config(tmp_path_factory.mktemp("interrupted"), checkpoint_steps=1)
    with pytest.raises(FloatingPointError):
        small_run(config, mishap=Mishap(nan=(11, 0)))
    return config.out / CHECKPOINT


class Run:
    """A model and an optimizer that have other values than any checkpoint."""

    def __init__(self, model: nn.Module | None = None) -> None:
        self.model = model or small_model()
        self.optimizer = make_optimizer(self.model, TrainingConfig(steps=24))
        for parameter in self.model.parameters():
            parameter.grad = torch.full_like(parameter, 0.5)
        self.optimizer.step()

    def state(self) -> list[dict[str, Any]]:
        return copy.deepcopy([self.model.state_dict(), self.optimizer.state_dict()])

    def refuses(self, path: Path, error: type[Exception], message: str) -> None:
        """Check that a checkpoint is refused by name, and that nothing changes."""
        before = self.state()
        identity = read_identity(path)
        with pytest.raises(error, match=message) as caught:
            load_checkpoint(path, self.model, self.optimizer, identity, 24, ["test"])
        assert str(path) in str(caught.value)
        assert str(caught.value).isprintable()
        torch.testing.assert_close(self.state(), before, rtol=0, atol=0)


def read_identity(path: Path) -> Metadata:
    """Return the settings in a checkpoint, so that they are not what is refused."""
    try:
        identity = read_tensors(path)[1]["identity"]
    except DamagedFileError:
        return {}
    return identity if isinstance(identity, dict) else {}


# The right one.


def test_a_checkpoint_of_version_0_1_is_restored(tmp_path: Path) -> None:
    """Two steps of AdamW on a linear layer, written before the present checks."""
    expected = nn.Linear(3, 2)
    with torch.no_grad():
        expected.weight.copy_(torch.arange(6.0).view(2, 3))
        expected.bias.copy_(torch.tensor([-1.0, 1.0]))
    groups = [
        {"params": [expected.weight], "weight_decay": 0.05},
        {"params": [expected.bias], "weight_decay": 0.0},
    ]
    plain = torch.optim.AdamW(groups, fused=True)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        model(torch.tensor([[1.0, 2.0, 3.0]])).square().sum().backward()
        optimizer.step()

    step(expected, plain)
    step(expected, plain)
    run = Run(nn.Linear(3, 2))
    path = Path(__file__).with_name("checkpoint_of_0.1.safetensors")
    progress = load_checkpoint(path, run.model, run.optimizer, {"steps": 9}, 9)
    record = {"step": 1, "train": {"loss": 6.5, "count": 4}}
    assert progress == Progress(2, [record], {"loss": 2.5, "count": 4.0}, 1.5)
    step(expected, plain)
    step(run.model, run.optimizer)
    torch.testing.assert_close(run.model.state_dict(), expected.state_dict())
    ours, theirs = run.optimizer.state_dict(), plain.state_dict()
    torch.testing.assert_close(ours["state"], theirs["state"])


def test_tied_weights_are_saved_once_and_stay_tied(tmp_path: Path) -> None:
    """safetensors refuses shared tensors: safetensors #98 #202 #493, trl #5150."""
    config, path = TrainingConfig(steps=1), tmp_path / CHECKPOINT
    one, other = (nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5)) for _ in range(2))
    for model in (one, other):
        model[1].weight = model[0].weight
    optimizer, again = make_optimizer(one, config), make_optimizer(other, config)
    one(torch.tensor([1, 2])).sum().backward()
    optimizer.step()
    record = {"step": 1, "train": {"loss": 0.5, "count": 2}}
    progress = Progress(step=1, history=[record])
    save_checkpoint(path, one, optimizer, progress, {})
    assert load_checkpoint(path, other, again, {}) == progress
    assert other[0].weight is other[1].weight
    assert torch.equal(other[1].weight, one[0].weight)
    torch.testing.assert_close(again.state_dict(), optimizer.state_dict())


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_parameter_without_gradients_needs_no_state(
    tmp_path: Path, optimizer: str
) -> None:
    def run(out: str, **options: Any) -> None:
        model = small_model()
        model.unused = nn.Parameter(torch.ones(3))
        config = small_config(tmp_path / out, checkpoint_steps=1, optimizer=optimizer)
        small_run(config, model=model, **options)

    with pytest.raises(FloatingPointError):
        run("broken", mishap=Mishap(nan=(5, 0)))
    assert read_tensors(tmp_path / "broken" / CHECKPOINT)[1]["idle"] == ["unused"]
    run("broken")
    run("whole")
    assert same_state(tmp_path / "broken", tmp_path / "whole")


@pytest.mark.parametrize("idle", ["all", [None], [{}], ["nope"]])
def test_state_of_the_optimizer_must_not_be_left_out(
    tmp_path: Path, interrupted: Path, idle: Any
) -> None:
    tensors, metadata = read_tensors(interrupted)
    if idle == "all":
        idle = [name for name, _ in small_model().named_parameters()]
        tensors = {k: x for k, x in tensors.items() if not k.startswith("optimizer")}
    path = tmp_path / CHECKPOINT
    write_tensors(path, tensors, {**metadata, "idle": idle})
    Run().refuses(path, CheckpointError, "lacks state of the optimizer: idle must name")


# Any other.


@pytest.mark.fuzz
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, interrupted: Path) -> None:
    path, content = tmp_path / CHECKPOINT, interrupted.read_bytes()
    chosen = random.Random(FUZZ)
    header = int.from_bytes(content[:8], "little") + 8
    identity = read_identity(interrupted)
    run = Run()
    before = run.state()
    cut = [content[: chosen.randrange(len(content))] for _ in range(20 * FUZZ)]
    damaged = [content[:-1], b"", content + b"\0", b"<html>" + content, *cut]
    # Every bit of the length, and some of every byte range of the header and tensors.
    bits = [*range(64)]
    for start, stop, count in ((8, header, 200), (header, len(content), 100)):
        width = (stop - start) / (count * FUZZ)
        places = [
            int(start + (n + chosen.random()) * width) for n in range(count * FUZZ)
        ]
        bits += [8 * place + chosen.randrange(8) for place in places]
    for bit in bits:
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        damaged.append(bytes(flipped))
    for wrong in damaged:
        path.write_bytes(wrong)
        with pytest.raises(DamagedFileError, match=CHECKPOINT):
            load_checkpoint(path, run.model, run.optimizer, identity)
    torch.testing.assert_close(run.state(), before, rtol=0, atol=0)
    path.write_bytes(content)
    assert load_checkpoint(path, run.model, run.optimizer, identity) is not None


MOMENT, COUNT = "optimizer/head.weight/exp_avg", "optimizer/head.weight/step"
EXTRA = torch.ones(2, 8)


def _without(part: str) -> Callable[[Tensors], Tensors]:
    return lambda x: {name: x[name] for name in x if part not in name}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        # Fused AdamW would write beyond its end.
        (lambda x: {**x, MOMENT: torch.zeros(3)}, r"exp_avg must be \(2, 8\).* \(3,\)"),
        (lambda x: {**x, MOMENT: x[MOMENT].double()}, r"float32, got .*float64"),
        (lambda x: {**x, MOMENT: x[MOMENT].T}, r"\(2, 8\) torch.float32, got \(8, 2\)"),
        (lambda x: {**x, COUNT: torch.zeros(2)}, r"step must be \(\) .*, got \(2,\)"),
        (lambda x: {**x, COUNT: torch.tensor(12.0)}, r"head.weight 1 to 11 times.* 12"),
        (lambda x: {**x, COUNT: torch.tensor(torch.nan)}, r"1 to 11 times, got nan"),
        (_without("optimizer/"), r"missing \['optimizer/class_position/exp_avg', "),
        (_without(MOMENT), rf"missing \['{MOMENT}', '{MOMENT}_sq'\], unexpected \[\]"),
        (lambda x: {**x, "optimizer/x/step": EXTRA}, r"\['optimizer/x/step'\]"),
        (
            lambda x: {**x, f"{MOMENT}_max": EXTRA},
            r"unexpected \['.*exp_avg_max'\]",
        ),
        (_without("model/head.bias"), r"missing \['model/head.bias'\]"),
        (lambda x: {**x, "else/\x1b[2J": EXTRA}, r"unexpected \['else/\\x1b\[2J'\]"),
    ],
)
def test_every_tensor_must_be_as_the_run_expects(
    tmp_path: Path,
    interrupted: Path,
    change: Callable[[Tensors], Tensors],
    message: str,
) -> None:
    tensors, metadata = read_tensors(interrupted)
    path = tmp_path / CHECKPOINT
    write_tensors(path, change(tensors), metadata)
    Run().refuses(path, CheckpointError, message)


STEPS = "the steps of its history must increase up to 11, got"
RUNNING = {"loss": 3.0, "count": 21.0}
METRICS = {"loss": 0.5, "count": 53}


def _evaluated(**changes: Any) -> dict[str, Any]:
    """Return a history of one record."""
    return {"history": [{"step": 8, "train": METRICS, "test": METRICS} | changes]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"step": "11"}, "step must be an integer from 0 to 24, got '11'"),
        ({"step": -1}, "from 0 to 24, got -1"),
        ({"step": 25}, "from 0 to 24, got 25"),
        ({"step": True}, "from 0 to 24, got True"),
        ({"step": 11.0}, "from 0 to 24, got 11.0"),
        ({"step": 0}, "the steps of its history must increase up to 0, got .8"),
        ({"seconds": float("nan")}, "seconds must be finite and nonnegative, got nan"),
        ({"seconds": -0.5}, "seconds must be .* got -0.5"),
        ({"seconds": None}, "seconds must be .* got None"),
        ({"history": {}}, "history must be a list of records, each with its step"),
        ({"history": [8]}, "history must be a list of records"),
        ({"history": [{"epoch": 1.0}]}, "history must be a list of records"),
        (_evaluated(train=None), "metrics of step 8 must be numbers that a run can"),
        (_evaluated(train={"loss": 0.5}), "among them a loss and a count"),
        (_evaluated(train={**METRICS, "loss": float("nan")}), "metrics of step 8"),
        (_evaluated(train={**METRICS, "correct": "7"}), "metrics of step 8"),
        (_evaluated(train={**METRICS, "count": 10**400}), "metrics of step 8"),
        (_evaluated(test=[0.5]), "metrics of step 8"),
        (_evaluated(test={**METRICS, "loss": None}), "metrics of step 8"),
        (_evaluated(test={**METRICS, "count": -1}), "metrics of step 8"),
        (_evaluated(test={**METRICS, "correct": math.nan}), "metrics of step 8"),
        (_evaluated(test={**METRICS, "count": float("nan")}), "metrics of step 8"),
        (_evaluated(epoch=10**400), "metrics of step 8"),
        ({"history": [{"step": 8}, {"step": 8}]}, rf"{STEPS} \[8, 8\]"),
        ({"history": [{"step": 12}]}, rf"{STEPS} \[12\]"),
        ({"history": [{"step": 0}]}, rf"{STEPS} \[0\]"),
        (
            {"history": [{"step": 11, "train": METRICS}]},
            "running must be empty after an evaluation",
        ),
        ({"running": []}, "running must hold numbers, a finite loss and a count"),
        ({"running": {**RUNNING, "loss": math.inf}}, "numbers, a finite loss"),
        ({"running": {**RUNNING, "loss": 10**400}}, "numbers, a finite loss"),
        ({"running": {}}, "from 0 to .* among them, between evaluations"),
        ({"running": {**RUNNING, "correct": math.inf}}, "running must hold numbers"),
        ({"running": {**RUNNING, "count": -1.0}}, "running must hold numbers"),
        ({"running": {**RUNNING, "count": math.nan}}, "running must hold numbers"),
        (
            {"running": {**RUNNING, "count": 1e308}},
            "from 0 to 9007199254740992 among them, between",
        ),
        ({"rate": 0.1}, r"progress must be \['step', .* got \['history', 'rate', "),
    ],
)
def test_the_progress_must_be_that_of_a_run(
    tmp_path: Path, interrupted: Path, change: dict[str, Any], message: str
) -> None:
    tensors, metadata = read_tensors(interrupted)
    path = tmp_path / CHECKPOINT
    write_tensors(
        path, tensors, {**metadata, "progress": metadata["progress"] | change}
    )
    Run().refuses(path, CheckpointError, message)


def test_an_evaluation_may_be_nan_and_callbacks_may_return_anything(
    tmp_path: Path, interrupted: Path
) -> None:
    tensors, metadata = read_tensors(interrupted)
    path, run = tmp_path / CHECKPOINT, Run()
    unusual = {**METRICS, "loss": float("inf"), "spread": float("nan")}
    metadata["progress"] |= _evaluated(test=unusual, heads=[[None, "x"]])
    write_tensors(path, tensors, metadata)
    names, identity = ("test", "later"), read_identity(path)
    assert load_checkpoint(path, run.model, run.optimizer, identity, 24, names)


def test_a_run_is_resumed_if_a_metric_of_its_own_is_infinite(tmp_path: Path) -> None:
    steps = 0

    def objective(model: nn.Module, batch: tuple[Tensor, ...]) -> dict[str, Tensor]:
        nonlocal steps
        steps += 1
        found = classify(model, batch)
        loss = found["loss"] * (math.nan if steps == 12 else 1.0)
        return {**found, "loss": loss, "ratio": torch.tensor(math.inf)}

    def run(out: str) -> None:
        config = small_config(tmp_path / out, checkpoint_steps=1)
        train(small_model(), small_batches(config)[0], objective, config)

    with pytest.raises(FloatingPointError):
        run("broken")
    run("broken")
    run("whole")
    assert same_state(tmp_path / "broken", tmp_path / "whole")


@pytest.mark.parametrize("change", [{"progress": [1]}, {"identity": 2}, {"idle": 3}])
def test_metadata_of_another_kind_is_refused(
    tmp_path: Path, interrupted: Path, change: Metadata
) -> None:
    tensors, metadata = read_tensors(interrupted)
    path = tmp_path / CHECKPOINT
    write_tensors(path, tensors, metadata | change)
    Run().refuses(path, CheckpointError, "is not a checkpoint")


@pytest.mark.parametrize("text", ["[1]", "[" * 100_000, "{]"])
def test_metadata_that_is_not_an_object_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / CHECKPOINT
    header = {"metadata": text, "checksum": f"{zlib.crc32(text.encode()):08x}"}
    path.write_bytes(safetensors.torch.save({}, header))
    Run().refuses(path, DamagedFileError, "damaged, or was not written by this program")


class _Malice:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("form", ["pickle", "torch"])
def test_a_checkpoint_is_never_executed(tmp_path: Path, form: str) -> None:
    """Code in pickles: CVE-2025-32434, CVE-2026-24747, flash-attention #2585."""
    path, trace = tmp_path / CHECKPOINT, tmp_path / "trace"
    if form == "pickle":
        path.write_bytes(pickle.dumps(_Malice(trace)))
    else:
        torch.save(_Malice(trace), path)
    with pytest.raises(DamagedFileError, match=CHECKPOINT):
        small_run(small_config(tmp_path))
    assert not trace.exists()


def test_a_checkpoint_of_other_settings_or_another_model_is_refused(
    tmp_path: Path, interrupted: Path
) -> None:
    path, config = tmp_path / CHECKPOINT, small_config(tmp_path)
    path.write_bytes(interrupted.read_bytes())
    with pytest.raises(CheckpointError) as caught:
        small_run(replace(config, learning_rate=0.5, seed=3))
    assert str(path) in str(caught.value)
    different = "learning_rate: 0.001 there, 0.5 here; seed: 0 there, 3 here"
    assert different in str(caught.value)
    batches, _ = small_batches(config)
    wider = VisionTransformer(8, 4, num_classes=2, dim=12, depth=1, heads=2, channels=1)
    before = wider.head.weight.clone()
    with pytest.raises(CheckpointError, match=r"another model .* must be \(12,\)"):
        train(wider, batches, classify, config)
    assert torch.equal(wider.head.weight, before)
    with pytest.raises(CheckpointError, match=r"another model .*unexpected .*/class_"):
        train(nn.Linear(3, 2), batches, classify, config)
    tensors, metadata = read_tensors(interrupted)
    metadata["identity"]["\x1b[2J"] = "\x07"
    write_tensors(path, tensors, metadata)
    with pytest.raises(CheckpointError, match=r"\(\\x1b\[2J: '\\x07' there, None here"):
        small_run(config)
    path.write_bytes(interrupted.read_bytes())
    # The same settings, but fewer samples, and so fewer steps.
    with pytest.raises(CheckpointError, match="from 0 to 9, got 11"):
        small_run(config, count=20)
