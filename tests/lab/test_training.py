"""Training: what it computes, and that nothing that happens to it spoils the result.

The names of tests say what has gone wrong in other projects; the numbers tell where.
"""

import contextlib
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small_run import (
    FORKS,
    Mishap,
    final_state,
    finish,
    log,
    same_state,
    small_batches,
    small_config,
    small_model,
    small_run,
    some_pictures,
    start,
    start_team,
    wait_for_step,
)
from torch import Tensor, nn

from transformers_hw.lab.batching import GeneratedBatches, PictureBatches
from transformers_hw.lab.checkpoint import (
    CheckpointError,
    Progress,
    load_checkpoint,
    load_weights,
    save_checkpoint,
    save_weights,
)
from transformers_hw.lab.devices import keep_freed_memory, pick_device
from transformers_hw.lab.files import DamagedFileError, sole_writer
from transformers_hw.lab.objectives import classify, totals
from transformers_hw.lab.optimisation import (
    TrainingConfig,
    learning_rate,
    make_optimiser,
)
from transformers_hw.lab.pictures import Split
from transformers_hw.lab.run_record import RunRecord
from transformers_hw.lab.signals import Stopped
from transformers_hw.lab.training import CHECKPOINT, WEIGHTS, evaluate, train
from transformers_hw.seq2seq import ChangeOfCase, Seq2Seq
from transformers_hw.transformer import Transformer
from transformers_hw.transformer.training import transformer_learning_rate
from transformers_hw.vision_transformer import VisionTransformer

CPU = torch.device("cpu")


def _assert_close(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, x in ours.items():
        # A key's bias moves all scores of a row alike, which changes no weight: its
        # gradient is rounding alone, and that is what Adam divides by its own size.
        if "key_proj.bias" not in name:
            torch.testing.assert_close(theirs[name], x, rtol=1e-4, atol=1e-5, msg=name)


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing happened to."""
    out = tmp_path_factory.mktemp("uninterrupted")
    small_run(small_config(out))
    return out


# What the loop computes.


@pytest.mark.parametrize("optimiser", ["adamw", "sgd"])
def test_the_loop_is_the_one_anyone_would_write(tmp_path: Path, optimiser: str) -> None:
    config = small_config(tmp_path, optimiser=optimiser, clip_norm=0.5, warmup_steps=3)
    model, _ = small_run(config, dropout=0.0)

    plain = small_model(0.0).train()
    batches, _ = small_batches(config)
    named = list(plain.named_parameters())
    groups = [
        {"params": [p for n, p in named if n.endswith("weight") and p.dim() > 1]},
        {
            "params": [p for n, p in named if not n.endswith("weight") or p.dim() < 2],
            "weight_decay": 0.0,
        },
    ]
    other = {
        "adamw": lambda: torch.optim.AdamW(groups, weight_decay=0.05),
        "sgd": lambda: torch.optim.SGD(groups, momentum=0.9, weight_decay=0.05),
    }[optimiser]()
    for step in range(24):
        for group in other.param_groups:
            group["lr"] = learning_rate(step, 24, config)
        (pictures, labels), _ = batches.part(step)
        other.zero_grad()
        F.cross_entropy(plain(pictures), labels).backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        other.step()
    _assert_close(dict(model.named_parameters()), dict(named))
    assert not torch.equal(model.head.weight, small_model().head.weight)


def test_a_model_learns_what_can_be_learnt(tmp_path: Path) -> None:
    config = small_config(tmp_path, epochs=40, learning_rate=1e-2)
    _, progress = small_run(config, dropout=0.0)
    assert progress.history[-1]["test"]["accuracy"] == 1.0
    assert progress.history[0]["test"]["accuracy"] < 1.0
    assert [record["epoch"] for record in progress.history] == list(range(1, 41))


def test_the_history_counts_every_sample_once_an_epoch(uninterrupted: Path) -> None:
    history = final_state(uninterrupted)[1]["progress"]["history"]
    assert [record["step"] for record in history] == [8, 16, 24]
    assert {record["train"]["count"] for record in history} == {53}
    assert {record["test"]["count"] for record in history} == {23}
    last = history[-1]["test"]
    assert last["accuracy"] == last["correct"] / 23


def test_evaluation_is_the_mean_over_samples_not_over_batches(tmp_path: Path) -> None:
    model = small_model().double().eval()
    _, tests = small_batches(small_config(tmp_path))
    split = some_pictures()[1]
    found = evaluate(
        model,
        _Doubled(tests["test"]),
        classify,
        device=CPU,
    )
    mean, std = some_pictures()[0].statistics()
    whole = PictureBatches(split, len(split), mean=mean, std=std)
    (pictures, labels), _ = whole.part(0)
    logits = model(pictures.double())
    assert found["loss"] == pytest.approx(
        F.cross_entropy(logits, labels).item(), abs=1e-6
    )
    assert found["correct"] == (logits.argmax(-1) == labels).sum()


class _Doubled:
    def __init__(self, batches: Any) -> None:
        self.batches, self.steps_per_epoch = batches, batches.steps_per_epoch

    def part(self, step: int, *, rank: int = 0, size: int = 1) -> Any:
        part = self.batches.part(step, rank=rank, size=size)
        return part._replace(tensors=(part.tensors[0].double(), part.tensors[1]))


def test_steps_may_end_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    _, progress = small_run(small_config(tmp_path, steps=11))
    assert [record["step"] for record in progress.history] == [8, 11]
    assert progress.history[-1]["train"]["count"] == 3 * 7


def test_callbacks_see_the_model_at_rest_and_write_into_the_history(
    tmp_path: Path,
) -> None:
    config = small_config(tmp_path)
    batches, _ = small_batches(config)

    def centre(model: nn.Module, epoch: int) -> dict[str, Any]:
        return {"seen": [epoch, model.training]}

    progress = train(small_model(), batches, classify, config, callbacks=[centre])
    assert [record["seen"] for record in progress.history] == [
        [1, False],
        [2, False],
        [3, False],
    ]


def test_the_cosine_is_that_of_pytorch() -> None:
    config = TrainingConfig(steps=10, learning_rate=0.3)
    weight = nn.Parameter(torch.zeros(1))
    optimiser = torch.optim.SGD([weight], lr=0.3)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=11)
    for step in range(10):
        optimiser.step()
        theirs.step()
        assert learning_rate(step, 10, config) == pytest.approx(
            theirs.get_last_lr()[0], abs=1e-12
        )


def test_the_inverse_root_is_the_schedule_of_the_paper() -> None:
    dim, warmup = 512, 40
    peak = (dim * warmup) ** -0.5
    config = TrainingConfig(
        steps=90, learning_rate=peak, warmup_steps=warmup, schedule="inverse_root"
    )
    for step in range(90):
        paper = transformer_learning_rate(step + 1, dim=dim, warmup=warmup)
        assert learning_rate(step, 90, config) == pytest.approx(paper, rel=1e-12)


def test_a_constant_rate_warms_up_and_stays() -> None:
    config = TrainingConfig(
        steps=9, learning_rate=2.0, warmup_steps=4, schedule="constant"
    )
    rates = [learning_rate(step, 9, config) for step in range(9)]
    assert rates == [0.5, 1.0, 1.5, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0]


def test_only_matrices_of_weights_decay() -> None:
    model = small_model()
    optimiser = make_optimiser(model, TrainingConfig(steps=1, weight_decay=0.3))
    decay = {
        parameter: group["weight_decay"]
        for group in optimiser.param_groups
        for parameter in group["params"]
    }
    found = {name: decay[parameter] for name, parameter in model.named_parameters()}
    assert found["head.weight"] == found["patch_embedding.proj.weight"] == 0.3
    free = ("head.bias", "positions.cells.table", "class_token")
    assert {found[name] for name in free} == {0.0}
    assert found["encoder.final_norm.weight"] == 0.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": None}, "either epochs or steps must be given, got None and None"),
        ({"epochs": 3}, "either epochs or steps must be given, got 3 and 5"),
        ({"steps": 0}, "must be a whole number from 1 on, got 0"),
        ({"learning_rate": float("nan")}, "learning_rate must be finite .* got nan"),
        ({"clip_norm": 0.0}, "clip_norm must be positive, got 0.0"),
        ({"checkpoint_steps": 0}, "checkpoint_steps must be a whole number"),
    ],
)
def test_settings_that_make_no_sense_are_refused(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        replace(TrainingConfig(steps=5), **changes)


def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="this machine has no cuda"):
        pick_device("cuda")


def test_bfloat16_keeps_weights_and_sums_in_full_precision(tmp_path: Path) -> None:
    seen = []

    def objective(model: nn.Module, batch: tuple[Tensor, ...]) -> dict[str, Tensor]:
        logits = model(batch[0])
        seen.append(logits.dtype)
        return totals(logits, batch[1])

    config = small_config(tmp_path, precision="bfloat16")
    model = small_model()
    progress = train(model, small_batches(config)[0], objective, config)
    assert set(seen) == {torch.bfloat16}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert 0.3 < progress.history[-1]["train"]["loss"] < 1.0


def test_curves_are_written_for_tensorboard(tmp_path: Path) -> None:
    small_run(small_config(tmp_path, tensorboard=True))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("loss/test")] == [8, 16, 24]


def test_losses_are_not_averaged_over_padding() -> None:
    """Fine for one batch; wrong as soon as lengths differ (the usual mistake)."""
    logits, targets = torch.randn(3, 7, 5).double(), torch.randint(1, 5, (3, 7))
    lengths = [2, 7, 3]
    for row, length in enumerate(lengths):
        targets[row, length:] = 0
    for smoothing in (0.0, 0.1):
        padded = totals(logits, targets, padding_token=0, smoothing=smoothing)
        alone = [
            totals(
                logits[row : row + 1, :length],
                targets[row : row + 1, :length],
                padding_token=0,
                smoothing=smoothing,
            )
            for row, length in enumerate(lengths)
        ]
        for name in ("loss", "correct", "count"):
            together = torch.stack([sums[name] for sums in alone]).sum()
            torch.testing.assert_close(padded[name], together)
        assert padded["count"] == sum(lengths)


# What may happen to it.


@pytest.mark.parametrize("step", [8, 11, 16, 23], ids="after step {}".format)
@pytest.mark.parametrize("optimiser", ["adamw", "sgd"])
def test_a_resumed_run_ends_as_if_it_had_not_been_interrupted(
    tmp_path: Path, step: int, optimiser: str
) -> None:
    """Lost elsewhere: dropout, order, schedule, running means.

    transformers #17032 #39215, accelerate #4071, darts #2463.
    """
    whole = small_config(tmp_path / "whole", optimiser=optimiser)
    small_run(whole)
    broken = small_config(tmp_path / "broken", optimiser=optimiser, checkpoint_steps=1)
    with pytest.raises(FloatingPointError, match=f"step {step}: the loss is nan"):
        small_run(broken, mishap=Mishap(nan=(step, 0)))
    assert final_state(broken.out)[1]["progress"]["step"] == step
    torch.manual_seed(12345)  # the world has moved on
    small_run(broken)
    assert same_state(whole.out, broken.out)


def test_a_model_laid_out_with_channels_last_resumes_too(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    pictures = torch.randint(256, (12, 3, 8, 8), generator=generator, dtype=torch.uint8)
    half = torch.full((3,), 0.5)
    batches = PictureBatches(
        Split(pictures, torch.arange(12) % 5), 4, mean=half, std=half
    )
    steps: list[int] = []

    def objective(model: nn.Module, batch: tuple[Tensor, ...]) -> dict[str, Tensor]:
        steps.append(1)
        if len(steps) == 5:
            raise InterruptedError
        return classify(model, batch)

    def run(out: str) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(3, 7, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(7, 5)
        ).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        config = small_config(tmp_path / out, epochs=3, checkpoint_steps=1)
        train(model, batches, objective, config)

    with pytest.raises(InterruptedError):
        run("broken")
    run("broken")
    run("whole")
    assert same_state(tmp_path / "broken", tmp_path / "whole")


def test_a_task_that_makes_up_its_samples_resumes_too(tmp_path: Path) -> None:
    task = ChangeOfCase()
    sizes = {"min_length": 1, "max_length": 5}
    batches = GeneratedBatches(
        lambda count, generator: task.sample(count, generator=generator, **sizes),
        6,
        steps_per_epoch=3,
    )
    failing = True

    def objective(model: nn.Module, batch: tuple[Tensor, ...]) -> dict[str, Tensor]:
        source, target_inputs, target = batch
        logits, _ = model(source, target_inputs)
        steps.append(len(source))
        if failing and len(steps) == 5:
            raise InterruptedError
        return totals(logits, target, padding_token=task.pad)

    def run(out: str) -> Progress:
        torch.manual_seed(0)
        model = Seq2Seq(len(task), dim=8, hidden_dim=8, attention="dot")
        config = small_config(tmp_path / out, epochs=3, checkpoint_steps=1)
        return train(model, batches, objective, config)

    steps: list[int] = []
    with pytest.raises(InterruptedError):
        run("broken")
    failing = False
    progress = run("broken")
    assert run("whole").history == progress.history
    assert same_state(tmp_path / "broken", tmp_path / "whole")
    assert progress.history[0]["train"]["count"] > 3 * 6


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    _, progress = small_run(small_config(tmp_path))
    written = (tmp_path / CHECKPOINT).stat().st_mtime_ns
    model, again = small_run(small_config(tmp_path), mishap=Mishap(nan=(0, 0)))
    assert again == progress
    assert (tmp_path / CHECKPOINT).stat().st_mtime_ns == written
    other = small_model()
    load_weights(tmp_path / WEIGHTS, other)
    assert torch.equal(model.head.weight, other.head.weight)


def test_starting_over_disregards_the_checkpoint(tmp_path: Path) -> None:
    small_run(small_config(tmp_path, seed=1))
    _, progress = small_run(small_config(tmp_path, seed=2, start_over=True))
    assert progress.step == 24
    assert final_state(tmp_path)[1]["identity"]["seed"] == 2


def test_a_run_killed_at_any_moment_ends_as_if_nothing_had_happened(
    tmp_path: Path, uninterrupted: Path
) -> None:
    """Truncated checkpoints: lightning #688 #19970, pytorch #61923."""
    config = small_config(tmp_path, checkpoint_steps=1)
    moments = random.Random(0)
    found = []
    for attempt in range(5):
        process = start(config, mishap=Mishap(pause=0.03))
        # The first may die before there is a checkpoint; the second finds one.
        wait_for_step(config, min(attempt, 1) + 1)
        time.sleep(moments.uniform(0.0, 0.08))
        process.kill()
        assert finish(process) == [-signal.SIGKILL]
        (tmp_path / "alive-0").unlink()
        if (tmp_path / CHECKPOINT).exists():
            found.append(final_state(tmp_path)[1]["progress"]["step"])
    assert found == sorted(found)
    assert len(found) > 0
    assert found[-1] < 24
    assert finish(start(config)) == [0]
    assert same_state(tmp_path, uninterrupted)


@pytest.mark.parametrize("moment", ["write", "fsync", "replace"])
def test_a_kill_in_the_midst_of_saving_leaves_the_checkpoint_before(
    tmp_path: Path, uninterrupted: Path, moment: str
) -> None:
    """Weights new, optimiser old: adaptdl #81. Orphans pile up: speechturn #15."""
    config = small_config(tmp_path, checkpoint_steps=1)
    killed = start(config, mishap=Mishap(die=moment, die_at=11))
    assert finish(killed) == [-signal.SIGKILL]
    assert final_state(tmp_path)[1]["progress"]["step"] == 10
    assert [path.name for path in tmp_path.glob("*.tmp")] == [f"{CHECKPOINT}.tmp"]
    assert finish(start(config)) == [0]
    assert same_state(tmp_path, uninterrupted)
    assert list(tmp_path.glob("*.tmp")) == []


def test_a_full_disk_is_reported_and_spoils_nothing(
    tmp_path: Path, uninterrupted: Path
) -> None:
    """Half a file in place of a whole one: pytorch #10577, ChatGLM #1166."""
    config = small_config(tmp_path, checkpoint_steps=1)
    assert finish(start(config, mishap=Mishap(full=9))) == [1]
    said = log(config)
    assert "the checkpoint of step 10 could not be written (File too large)" in said
    assert str(tmp_path / CHECKPOINT) in said
    assert final_state(tmp_path)[1]["progress"]["step"] == 9
    assert list(tmp_path.glob("*.tmp")) == []
    assert finish(start(config)) == [0]
    assert same_state(tmp_path, uninterrupted)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("during", ["training", "evaluation"])
def test_being_asked_to_stop_loses_no_work(
    tmp_path: Path, uninterrupted: Path, number: signal.Signals, during: str
) -> None:
    """Ctrl-C threw hours away: EfficientDet #101."""
    config = small_config(tmp_path)
    batches, evaluations = small_batches(config)
    calls = 0

    def objective(model: nn.Module, batch: tuple[Tensor, ...]) -> dict[str, Tensor]:
        nonlocal calls
        calls += model.training == (during == "training")
        if calls == 5:
            signal.raise_signal(number)
            calls += 1
        return classify(model, batch)

    handler = signal.getsignal(number)
    with pytest.raises(Stopped) as stopped:
        train(small_model(), batches, objective, config, evaluations=evaluations)
    assert stopped.value.code == 128 + number
    assert signal.getsignal(number) == handler
    steps = final_state(tmp_path)[1]["progress"]["step"]
    assert steps == (5 if during == "training" else 16)
    small_run(config)
    assert same_state(tmp_path, uninterrupted)


def test_a_second_signal_is_obeyed_at_once(tmp_path: Path) -> None:
    config = small_config(tmp_path, checkpoint_steps=1)
    process = start(config, mishap=Mishap(long_step=3))
    wait_for_step(config, 3)
    time.sleep(0.2)
    process.terminate()
    time.sleep(0.2)
    assert process.is_alive()
    process.terminate()
    assert finish(process, within=10.0) == [143]
    assert final_state(tmp_path)[1]["progress"]["step"] == 3


def test_two_runs_do_not_write_into_one_folder(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    with sole_writer(tmp_path, wait=False):
        assert finish(start(config)) == [1]
    assert f"another process is writing into {tmp_path}" in log(config)
    assert finish(start(config)) == [0]


def test_a_loss_that_is_no_number_stops_the_run_before_the_weights_change(
    tmp_path: Path,
) -> None:
    model, config = small_model(), small_config(tmp_path)

    def objective(model: nn.Module, batch: tuple[Tensor, ...]) -> dict[str, Tensor]:
        found = classify(model, batch)
        # Finite itself, but its gradient is not.
        zero = sum((x * 0).sum() for x in model.parameters())
        return {**found, "loss": found["loss"] + torch.as_tensor(zero).sqrt()}

    with pytest.raises(
        FloatingPointError, match=r"step 0: the loss is \d.*gradient nan"
    ):
        train(model, small_batches(config)[0], objective, config)
    fresh = small_model().state_dict()
    assert all(torch.equal(x, fresh[name]) for name, x in model.state_dict().items())


def test_an_objective_must_say_what_it_adds_up(tmp_path: Path) -> None:
    config = small_config(tmp_path)

    def objective(model: nn.Module, batch: tuple[Tensor, ...]) -> dict[str, Tensor]:
        return {"loss": classify(model, batch)["loss"]}

    with pytest.raises(
        ValueError, match=r"must give a loss and a count, got \['loss'\]"
    ):
        train(small_model(), small_batches(config)[0], objective, config)


# Checkpoints that are not what they should be.


def _state_of(seed: int = 0) -> tuple[VisionTransformer, torch.optim.Optimizer]:
    model = small_model()
    return model, make_optimiser(model, TrainingConfig(steps=5, seed=seed))


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: content[:-1],
        lambda content: b"",
        lambda content: content + b"\0",
        lambda content: b"<html>" + content,
        lambda content: b"\xff" * 100,
    ],
    ids=["half", "one byte short", "empty", "longer", "a web page", "nonsense"],
)
def test_a_damaged_checkpoint_is_named(
    tmp_path: Path, uninterrupted: Path, damage: Any
) -> None:
    path = tmp_path / CHECKPOINT
    path.write_bytes(damage((uninterrupted / CHECKPOINT).read_bytes()))
    with pytest.raises(DamagedFileError) as caught:
        small_run(small_config(tmp_path))
    assert str(path) in str(caught.value)


def test_no_flipped_bit_goes_unnoticed(tmp_path: Path, uninterrupted: Path) -> None:
    path = tmp_path / CHECKPOINT
    content = (uninterrupted / CHECKPOINT).read_bytes()
    chosen = random.Random(0)
    header = int.from_bytes(content[:8], "little") + 8
    places = [chosen.randrange(header) for _ in range(150)]
    places += [chosen.randrange(header, len(content)) for _ in range(50)]
    for place in places:
        damaged = bytearray(content)
        damaged[place] ^= 1 << chosen.randrange(8)
        path.write_bytes(damaged)
        model, optimiser = _state_of()
        with pytest.raises((DamagedFileError, CheckpointError)):
            load_checkpoint(path, model, optimiser, {})


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
    with pytest.raises(DamagedFileError, match=CHECKPOINT):
        load_weights(path, small_model())
    assert not trace.exists()


def test_a_checkpoint_of_other_settings_is_refused(
    tmp_path: Path, uninterrupted: Path
) -> None:
    path = tmp_path / CHECKPOINT
    path.write_bytes((uninterrupted / CHECKPOINT).read_bytes())
    with pytest.raises(CheckpointError) as caught:
        small_run(small_config(tmp_path, learning_rate=0.5, seed=3))
    assert str(path) in str(caught.value)
    assert "learning_rate: 0.001 there, 0.5 here; seed: 0 there, 3 here" in str(
        caught.value
    )


def test_a_checkpoint_of_another_model_is_refused(
    tmp_path: Path, uninterrupted: Path
) -> None:
    path = tmp_path / CHECKPOINT
    path.write_bytes((uninterrupted / CHECKPOINT).read_bytes())
    config = small_config(tmp_path)
    batches, _ = small_batches(config)
    wider = VisionTransformer(8, 4, classes=2, dim=12, depth=1, heads=2, channels=1)
    before = wider.head.weight.clone()
    with pytest.raises(CheckpointError, match=r"another model: .* should be \(12,\)"):
        train(wider, batches, classify, config)
    assert torch.equal(wider.head.weight, before)
    with pytest.raises(CheckpointError, match=r"only one of the two has .*class_token"):
        train(nn.Linear(3, 2), batches, classify, config)


def test_weights_are_no_checkpoint_but_a_checkpoint_has_weights(
    tmp_path: Path, uninterrupted: Path
) -> None:
    path = tmp_path / CHECKPOINT
    path.write_bytes((uninterrupted / WEIGHTS).read_bytes())
    with pytest.raises(CheckpointError, match="is no checkpoint of a run"):
        small_run(small_config(tmp_path))
    one, other = small_model(), small_model()
    load_weights(uninterrupted / WEIGHTS, one)
    load_weights(uninterrupted / CHECKPOINT, other)
    assert torch.equal(one.head.weight, other.head.weight)
    assert not torch.equal(one.head.weight, small_model().head.weight)


def test_tied_weights_are_saved_once_and_stay_tied(tmp_path: Path) -> None:
    """safetensors refuses shared tensors: safetensors #98 #202 #493, trl #5150."""

    def tied() -> nn.Module:
        model = nn.ModuleDict({"a": nn.Embedding(5, 3), "b": nn.Linear(3, 5)})
        model["b"].weight = model["a"].weight
        return model

    path, one, other = tmp_path / "tied.safetensors", tied(), tied()
    save_weights(path, one, {"by": "hand"})
    assert load_weights(path, other) == {"by": "hand"}
    assert torch.equal(one["a"].weight, other["b"].weight)
    assert other["a"].weight is other["b"].weight
    config = TrainingConfig(steps=1)
    optimiser = make_optimiser(one, config)
    one["b"](one["a"](torch.tensor([1, 2]))).sum().backward()
    optimiser.step()
    save_checkpoint(path, one, optimiser, Progress(step=1), {})
    again = make_optimiser(other, config)
    assert load_checkpoint(path, other, again, {}) == Progress(step=1)
    assert torch.equal(other["b"].weight, one["a"].weight)
    ours, theirs = optimiser.state_dict()["state"], again.state_dict()["state"]
    assert ours.keys() == theirs.keys()
    for number, values in ours.items():
        assert all(torch.equal(x, theirs[number][key]) for key, x in values.items())


def test_the_book_s_transformer_survives_a_checkpoint(tmp_path: Path) -> None:
    torch.manual_seed(1)
    sizes = {"dim": 8, "depth": 1, "heads": 2, "hidden_dim": 16}
    one, other = Transformer(11, **sizes), Transformer(11, **sizes)
    save_weights(tmp_path / WEIGHTS, one, {})
    load_weights(tmp_path / WEIGHTS, other)
    source, target = torch.randint(1, 11, (2, 5)), torch.randint(1, 11, (2, 3))
    assert torch.equal(one.eval()(source, target)[0], other.eval()(source, target)[0])


# Many processes.


def test_uneven_batches_neither_hang_nor_change_the_result(tmp_path: Path) -> None:
    """Hung: pytorch #38174, lightning #9851 #20404. Counted twice: nupic #264.

    The last batch of 23 samples in sevens holds 2, fewer than there are processes.
    """
    found = {}
    for size in (1, 2, 3):
        config = small_config(tmp_path / str(size))
        team = start_team(config, size, dropout=0.0, count=23)
        assert finish(*team) == [0] * size, log(config)
        found[size] = final_state(config.out)
    tensors, about = found[1]
    for size in (2, 3):
        others, about_others = found[size]
        for ours, theirs in zip(
            about["progress"]["history"],
            about_others["progress"]["history"],
            strict=True,
        ):
            for split in ("train", "test"):
                for name in ("count", "correct", "accuracy"):
                    assert ours[split][name] == theirs[split][name]
                assert ours[split]["loss"] == pytest.approx(
                    theirs[split]["loss"], abs=1e-6
                )
            assert ours["train"]["count"] == 23
        _assert_close(tensors, others)


def test_one_process_writes_and_all_stop_at_a_loss_that_is_no_number(
    tmp_path: Path,
) -> None:
    """A bad batch on one rank, and the others wait forever: NeMo Automodel #2468."""
    config = small_config(tmp_path, checkpoint_steps=1)
    team = start_team(config, 2, mishap=Mishap(nan=(5, 1)))
    assert finish(*team) == [1, 1]
    for rank in range(2):
        said = log(config, rank)
        assert "FloatingPointError: step 5: the loss is nan" in said
        # Only the process that leads shows its progress.
        assert ("step/s" in said) == (rank == 0)
    assert final_state(tmp_path)[1]["progress"]["step"] == 5


def test_processes_resume_together_to_the_same_end(tmp_path: Path) -> None:
    whole = small_config(tmp_path / "whole")
    broken = small_config(tmp_path / "broken", checkpoint_steps=1)
    assert finish(*start_team(whole, 2)) == [0, 0]
    assert finish(*start_team(broken, 2, mishap=Mishap(nan=(11, 0)))) == [1, 1]
    assert finish(*start_team(broken, 2)) == [0, 0]
    assert same_state(whole.out, broken.out)


def test_all_stop_together_when_one_process_is_asked_to(tmp_path: Path) -> None:
    whole = small_config(tmp_path / "whole")
    asked = small_config(tmp_path / "asked", checkpoint_seconds=1e9)
    assert finish(*start_team(whole, 2)) == [0, 0]
    team = start_team(asked, 2, mishap=Mishap(pause=0.05))
    wait_for_step(asked, 3)
    team[1].terminate()
    assert finish(*team) == [143, 143]
    assert 3 <= final_state(asked.out)[1]["progress"]["step"] < 24
    assert finish(*start_team(asked, 2)) == [0, 0]
    assert same_state(whole.out, asked.out)


def _torchrun(out: Path, pause: float, **settings: Any) -> subprocess.Popen[bytes]:
    script = Path(__file__).with_name("small_run.py")
    options = [json.dumps({"epochs": 100, **settings}), json.dumps({"pause": pause})]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    with (out / "log-0.txt").open("wb") as output:
        return subprocess.Popen(
            [sys.executable, *launcher, str(script), str(out), *options],
            stdout=output,
            stderr=output,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )


def test_a_process_that_dies_ends_the_job_and_leaves_a_checkpoint(
    tmp_path: Path,
) -> None:
    """One rank dies, the others hang: every launcher's oldest complaint."""
    job = _torchrun(tmp_path, 0.02, checkpoint_steps=1)
    config = small_config(tmp_path, epochs=100)
    with _ended(job):
        wait_for_step(config, 4)
        os.kill(int((tmp_path / "pid-1").read_text()), signal.SIGKILL)
        assert job.wait(timeout=60) != 0
    step = final_state(tmp_path)[1]["progress"]["step"]
    assert step >= 3
    # One process goes on where two were.
    with pytest.raises(FloatingPointError, match=f"step {step + 2}:"):
        small_run(config, mishap=Mishap(nan=(2, 0)))


def test_an_interrupt_reaches_all_processes_of_a_job(tmp_path: Path) -> None:
    job = _torchrun(tmp_path, 0.5, checkpoint_seconds=1e9)
    config = small_config(tmp_path, epochs=100)
    with _ended(job):
        wait_for_step(config, 2)
        # As a terminal does; the launcher passes it on to its processes.
        os.killpg(job.pid, signal.SIGINT)
        assert job.wait(timeout=60) != 0
    step = final_state(tmp_path)[1]["progress"]["step"]
    assert 2 <= step <= 4


@contextlib.contextmanager
def _ended(job: subprocess.Popen[bytes]) -> Any:
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        job.wait()


# The record, and the memory.


def test_the_record_of_a_run_tells_nothing_of_the_machine(tmp_path: Path) -> None:
    config = small_config(tmp_path / "somewhere")
    metrics = {"history": [{"loss": 0.25}], "centres": torch.tensor([[1.0, 2.0]])}
    data = {"name": "some", "file": tmp_path / "some.zip"}
    record = RunRecord.of(
        config, seed=3, data=data, device=CPU, seconds=1.26, metrics=metrics
    )
    path = record.write(tmp_path)
    assert RunRecord.read(tmp_path) == record
    assert str(tmp_path) not in path.read_text()
    assert record.metrics["centres"] == [[1.0, 2.0]]
    assert record.config["out"] == "somewhere"
    assert record.versions["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert (record.seconds, record.seed, record.processes) == (1.3, 3, 1)


def test_a_record_that_is_no_json_leaves_the_old_one(tmp_path: Path) -> None:
    options = {"seed": 0, "data": {}, "device": CPU, "seconds": 1.0}
    good = RunRecord.of({}, metrics={"loss": 1.0}, **options)
    good.write(tmp_path)
    bad = RunRecord.of({}, metrics={"loss": float("nan")}, **options)
    with pytest.raises(ValueError, match="Out of range float"):
        bad.write(tmp_path)
    assert RunRecord.read(tmp_path) == good


def _page_faults(queue: Any, keep: bool) -> None:
    import resource

    if keep:
        keep_freed_memory()
    before = 0
    for turn in range(10):
        if turn == 5:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        # Left to itself, glibc keeps blocks of up to 32 MB, if it is lucky.
        torch.empty(12 << 20).fill_(1.0)
    queue.put(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)


def test_freed_memory_is_kept_for_the_next_step() -> None:
    faults = []
    for keep in (False, True):
        queue = FORKS.SimpleQueue()
        process = FORKS.Process(target=_page_faults, args=(queue, keep))
        process.start()
        faults.append(queue.get())
        process.join()
    # Elsewhere than on Linux the allocator is another, and left alone.
    assert faults[1] < faults[0] / 10 or sys.platform != "linux"
