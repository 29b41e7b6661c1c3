"""Training: what it computes, and that no interruption changes the result.

The docstrings name reports of the same failure in other projects.
"""

import contextlib
import io
import json
import os
import random
import shutil
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
    Mishap,
    final_state,
    finish,
    log,
    same_state,
    small_batches,
    small_config,
    small_model,
    small_run,
    some_images,
    start,
    wait_for_step,
)
from torch import Tensor, nn
from torch.nn.utils import parametrize

from transformers_hw.attention_as_convolution import ImageBert
from transformers_hw.lab import training
from transformers_hw.lab.batching import GeneratedBatches, ImageBatches
from transformers_hw.lab.checkpoint import CheckpointError, save_weights
from transformers_hw.lab.devices import pick_device
from transformers_hw.lab.files import file_lock, read_tensors, write_tensors
from transformers_hw.lab.objectives import classify, cross_entropy_sums
from transformers_hw.lab.optimization import (
    TrainingConfig,
    decays,
    learning_rate,
    make_optimizer,
)
from transformers_hw.lab.progress_bar import LenientStream
from transformers_hw.lab.resnet import small_resnet
from transformers_hw.lab.run_record import RunRecord
from transformers_hw.lab.signals import Stopped
from transformers_hw.lab.training import CHECKPOINT, WEIGHTS, evaluate, train
from transformers_hw.pretrained import load_model
from transformers_hw.transformer import Bert
from transformers_hw.vision_transformer import VisionTransformer

CPU = torch.device("cpu")
FUZZ = int(os.environ.get("FUZZ", "1"))
SIZES = {"dim": 8, "depth": 1, "heads": 2}


def _assert_close(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, x in ours.items():
        # A bias of the keys shifts all scores of a row alike, which changes no weight:
        # its gradient is rounding alone, and Adam divides that by its own size.
        if "key_proj.bias" not in name:
            torch.testing.assert_close(theirs[name], x, rtol=1e-4, atol=1e-5, msg=name)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was not interrupted."""
    out = tmp_path_factory.mktemp("uninterrupted")
    small_run(small_config(out))
    return out


# What the loop computes.


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_the_loop_equals_a_plain_pytorch_loop(tmp_path: Path, optimizer: str) -> None:
    config = small_config(tmp_path, optimizer=optimizer, clip_norm=0.5, warmup_steps=3)
    model, _ = small_run(config, dropout=0.0)

    plain = small_model(0.0).train()
    batches, _ = small_batches(config)
    named = dict(plain.named_parameters())
    free = [n for n, p in named.items() if p.dim() < 2 or "positions" in n]
    groups = [
        {"params": [p for n, p in named.items() if n not in free]},
        {"params": [named[n] for n in free], "weight_decay": 0.0},
    ]
    other = {
        "adamw": lambda: torch.optim.AdamW(groups, weight_decay=0.05),
        "sgd": lambda: torch.optim.SGD(groups, momentum=0.9, weight_decay=0.05),
    }[optimizer]()
    for step in range(24):
        for group in other.param_groups:
            group["lr"] = learning_rate(step, 24, config)
        (images, labels), _ = batches.batch(step)
        other.zero_grad()
        F.cross_entropy(plain(images), labels).backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        other.step()
    _assert_close(dict(model.named_parameters()), named)
    assert not torch.equal(model.head.weight, small_model().head.weight)


def test_the_history_has_every_sample_once_an_epoch(uninterrupted: Path) -> None:
    history = final_state(uninterrupted)[1]["progress"]["history"]
    steps = [(record["step"], record["epoch"]) for record in history]
    assert steps == [(8, 1.0), (16, 2.0), (24, 3.0)]
    assert {record["train"]["count"] for record in history} == {53}
    assert {record["test"]["count"] for record in history} == {23}
    last = history[-1]["test"]
    assert last["accuracy"] == last["correct"] / 23


def test_evaluation_comes_every_so_many_steps_and_at_the_end(tmp_path: Path) -> None:
    config = small_config(tmp_path, steps=11, evaluate_every=3)
    batches, evaluations = small_batches(config)

    def callback(model: nn.Module, step: int, writer: object) -> dict[str, Any]:
        return {"seen": [step, model.training, writer]}

    options = {"evaluations": evaluations, "callbacks": [callback]}
    progress = train(small_model(), batches, classify, config, **options)
    assert [x["step"] for x in progress.history] == [3, 6, 9, 11]
    seen = [[step, False, None] for step in (3, 6, 9, 11)]
    assert [x["seen"] for x in progress.history] == seen
    assert progress.history[-1]["train"]["count"] == 2 * 7


def test_evaluation_is_the_mean_over_samples_not_over_batches(tmp_path: Path) -> None:
    model = small_model().eval()
    batches = small_batches(small_config(tmp_path))[1]["test"]
    found = evaluate(model, batches, classify, device=CPU)
    training, testing = some_images()
    mean, std = training.statistics()
    (images, labels), _ = ImageBatches(testing, 23, mean=mean, std=std).batch(0)
    logits = model(images)
    loss = F.cross_entropy(logits.double(), labels).item()
    assert found["loss"] == pytest.approx(loss, abs=1e-6)
    assert found["correct"] == (logits.argmax(-1) == labels).sum()


def test_losses_are_not_averaged_over_padding() -> None:
    logits, targets = torch.randn(3, 7, 5).double(), torch.randint(1, 5, (3, 7))
    lengths = [2, 7, 3]
    for row, length in enumerate(lengths):
        targets[row, length:] = 0
    options = {"padding_token": 0, "smoothing": 0.1}
    padded = cross_entropy_sums(logits, targets, **options)
    alone = [
        cross_entropy_sums(logits[row, :length], targets[row, :length], **options)
        for row, length in enumerate(lengths)
    ]
    for name in ("loss", "correct", "count"):
        torch.testing.assert_close(padded[name], sum(sums[name] for sums in alone))
    assert padded["count"] == sum(lengths)


def test_batches_without_targets_are_steps_without_a_loss(tmp_path: Path) -> None:
    config, steps = small_config(tmp_path, steps=3, checkpoint_steps=1), 0
    batches, evaluations = small_batches(config)

    def objective(model: nn.Module, batch: tuple[Tensor, ...]) -> dict[str, Tensor]:
        nonlocal steps
        steps += 1
        images, labels = batch
        found = cross_entropy_sums(model(images), 0 * labels, padding_token=0)
        return {**found, "loss": found["loss"] * (torch.nan if steps == 2 else 1.0)}

    with pytest.raises(FloatingPointError):
        train(small_model(), batches, objective, config, evaluations=evaluations)
    progress = train(small_model(), batches, objective, config, evaluations=evaluations)
    nothing = {"loss": 0.0, "accuracy": 0.0, "correct": 0, "count": 0}
    assert progress.history[-1]["train"] == progress.history[-1]["test"] == nothing
    again = train(small_model(), batches, objective, config, evaluations=evaluations)
    assert again == progress


@pytest.mark.parametrize("name", ["step", "epoch", "train"])
def test_names_of_the_history_are_not_for_evaluations(
    tmp_path: Path, name: str
) -> None:
    config = small_config(tmp_path, steps=1)
    batches, evaluations = small_batches(config)
    others = {name: evaluations["test"]}
    with pytest.raises(ValueError, match=rf"among \('step', .*, got '{name}'"):
        train(small_model(), batches, classify, config, evaluations=others)
    assert not (tmp_path / CHECKPOINT).exists()


def test_batches_without_an_end_are_not_for_evaluations(tmp_path: Path) -> None:
    config = small_config(tmp_path, steps=1)
    batches, _ = small_batches(config)
    endless = GeneratedBatches(lambda count, generator: (torch.zeros(count),), 2)
    with pytest.raises(ValueError, match="must end, but those of 'fresh' have no"):
        train(small_model(), batches, classify, config, evaluations={"fresh": endless})
    with pytest.raises(ValueError, match="must end, but those of 'evaluation' have"):
        evaluate(small_model(), endless, classify, device=CPU)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ({"step": 0}, r"other than \['epoch', 'step', 'test', 'train'\], got \['step"),
        ({"test": 0}, r"a callback must return names other than .*, got \['test'\]"),
        ({"heads": torch.zeros(2)}, "what JSON can express: Object of type Tensor"),
    ],
)
def test_what_a_callback_returns_must_fit_into_the_history(
    tmp_path: Path, returned: dict[str, Any], message: str
) -> None:
    config = small_config(tmp_path, steps=1)
    batches, evaluations = small_batches(config)
    options = {"evaluations": evaluations, "callbacks": [lambda *_: returned]}
    with pytest.raises(ValueError, match=message):
        train(small_model(), batches, classify, config, **options)


def test_the_cosine_is_that_of_pytorch_and_a_constant_rate_stays() -> None:
    cosine = TrainingConfig(steps=10, learning_rate=0.3)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.3)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=11)
    for step in range(10):
        optimizer.step()
        theirs.step()
        rate = theirs.get_last_lr()[0]
        assert learning_rate(step, 10, cosine) == pytest.approx(rate, abs=1e-12)
    constant = replace(cosine, warmup_steps=3, schedule="constant")
    rates = [learning_rate(step, 10, constant) for step in range(5)]
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.3, 0.3])


def test_every_weight_matrix_decays_and_nothing_else() -> None:
    def decaying(model: nn.Module) -> set[str]:
        return {name for name, x in model.named_parameters() if decays(name, x)}

    with torch.device("meta"):
        papers = {n: p for n, p in ImageBert().named_parameters() if decays(n, p)}
    # Tokens, then in each layer nine heads, the output and the network, then classes.
    per_layer = 9 * 400**2 + 400**2 + 2 * 400 * 512
    numbers = 12 * 400 + 6 * per_layer + 400 * 10
    assert sum(p.numel() for p in papers.values()) == numbers == 12_066_400
    image = {"patch_size": 2, "hidden_dim": 8, **SIZES}
    model = ImageBert(10, encoding="learned+content", **image)
    for other, attention in (
        (VisionTransformer(8, 4, num_classes=2, **SIZES), ()),
        (VisionTransformer(8, 4, num_classes=2, positions="axial", **SIZES), ()),
        (Bert(9, **SIZES), ()),
        (ImageBert(10, encoding="gaussian", **image), ("value",)),
        (ImageBert(10, encoding="learned", **image), ("value",)),
        (model, ("query", "key", "value")),
    ):
        matrices = {
            f"{name}.weight"
            for name, part in other.named_modules()
            if isinstance(part, nn.Linear | nn.Conv2d | nn.Embedding)
            if "positions" not in name
        }
        own = {f"layers.0.attention.{x}_weight" for x in attention}
        assert decaying(other) == matrices | own
    optimizer = make_optimizer(model, TrainingConfig(steps=1, weight_decay=0.3))
    decay = {
        parameter: group["weight_decay"]
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    for name, parameter in model.named_parameters():
        assert decay[parameter] == (0.3 if name in decaying(model) else 0.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": None}, "either epochs or steps must be given, got None and None"),
        ({"epochs": 3}, "either epochs or steps must be given, got 3 and 5"),
        ({"steps": 0}, "steps must be a positive integer, got 0"),
        ({"learning_rate": float("nan")}, "learning_rate must be finite .* got nan"),
        ({"clip_norm": 0.0}, "clip_norm must be positive, got 0.0"),
        ({"evaluate_every": 0}, "evaluate_every must be a positive integer, got 0"),
        ({"seed": None}, "seed must be a nonnegative integer, got None"),
        ({"warmup_steps": 4.5}, "warmup_steps must be a nonnegative integer, got 4.5"),
        ({"checkpoint_seconds": float("nan")}, "seconds must be zero or .*, got nan"),
    ],
)
@pytest.mark.unhooked
def test_settings_out_of_range_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(TrainingConfig(steps=5), **changes)


@pytest.mark.unhooked
def test_the_folder_of_a_run_may_be_text() -> None:
    assert TrainingConfig("runs/some", steps=1).out == Path("runs/some")


def test_a_missing_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="device 'cuda' is not available"):
        pick_device("cuda")


def test_tensorboard_curves_start_at_step_0_and_change_nothing(
    tmp_path: Path, uninterrupted: Path
) -> None:
    small_run(small_config(tmp_path, tensorboard=True))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("loss/test")] == [0, 8, 16, 24]
    assert [event.step for event in events.Scalars("loss/train")] == list(range(24))
    assert same_state(tmp_path, uninterrupted)


# Weights.


def test_trained_weights_are_loaded_by_load_model(uninterrupted: Path) -> None:
    loaded = load_model(uninterrupted / WEIGHTS)
    assert isinstance(loaded, VisionTransformer)
    tensors, _ = read_tensors(uninterrupted / CHECKPOINT)
    for name, x in loaded.state_dict().items():
        assert torch.equal(x, tensors[f"model/{name}"])


class _Double(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x

    def right_inverse(self, x: Tensor) -> Tensor:
        return x / 2


@pytest.mark.parametrize("again", [False, True], ids=["trained", "already trained"])
def test_weights_have_no_parametrizations(tmp_path: Path, again: bool) -> None:
    config = small_config(tmp_path, steps=3)
    model = small_model()
    for _ in range(1 + again):
        model = small_model()
        parametrize.register_parametrization(model.head, "weight", _Double())
        train(model, small_batches(config)[0], classify, config)
    assert not parametrize.is_parametrized(model.head)
    assert not torch.equal(model.head.weight, small_model().head.weight)
    loaded = load_model(tmp_path / WEIGHTS)
    assert torch.equal(loaded.head.weight, model.head.weight)


def test_weights_of_another_kind_of_model_are_written_too(tmp_path: Path) -> None:
    config = small_config(tmp_path, steps=2)
    model = small_resnet(1, 2, widths=(3, 5))
    train(model, small_batches(config)[0], classify, config)
    tensors, _ = read_tensors(tmp_path / WEIGHTS)
    assert tensors.keys() == model.state_dict().keys()


# Interruptions.


@pytest.mark.parametrize(
    ("optimizer", "step"), [("adamw", 8), ("adamw", 23), ("sgd", 11)]
)
def test_a_resumed_run_ends_as_if_it_had_not_been_interrupted(
    tmp_path: Path, optimizer: str, step: int
) -> None:
    """Dropout, order or schedule lost: transformers #17032 #39215, accelerate #4071."""
    whole = small_config(tmp_path / "whole", optimizer=optimizer)
    small_run(whole)
    broken = small_config(tmp_path / "broken", optimizer=optimizer, checkpoint_steps=1)
    with pytest.raises(FloatingPointError, match=f"step {step}: the loss is nan"):
        small_run(broken, mishap=Mishap(nan=(step, 0)))
    assert final_state(broken.out)[1]["progress"]["step"] == step
    torch.manual_seed(12345)  # must not matter
    small_run(broken)
    assert same_state(whole.out, broken.out)


def test_a_model_with_channels_last_resumes_too(tmp_path: Path) -> None:
    def run(out: str, **options: Any) -> None:
        torch.manual_seed(0)
        # oneDNN's 1 × 1 convolution with stride 2 from 5 to 7 channels spoils memory.
        model = small_resnet(1, 2, widths=(8, 16))
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        config = small_config(tmp_path / out, checkpoint_steps=1)
        small_run(config, model=model, **options)

    with pytest.raises(FloatingPointError):
        run("broken", mishap=Mishap(nan=(5, 0)))
    run("broken")
    run("whole")
    assert same_state(tmp_path / "broken", tmp_path / "whole")


def test_a_finished_run_is_not_repeated_unless_one_starts_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, progress = small_run(small_config(tmp_path, seed=1))
    written = (tmp_path / CHECKPOINT).stat().st_mtime_ns
    _, again = small_run(small_config(tmp_path, seed=1), mishap=Mishap(nan=(0, 0)))
    assert again == progress
    assert (tmp_path / CHECKPOINT).stat().st_mtime_ns == written
    assert "training: already trained" in capsys.readouterr().out
    small_run(small_config(tmp_path, seed=2, start_over=True))
    assert final_state(tmp_path)[1]["identity"]["seed"] == 2


@pytest.mark.fuzz
def test_a_run_killed_at_any_moment_ends_as_if_nothing_had_happened(
    tmp_path: Path, uninterrupted: Path
) -> None:
    """Truncated checkpoints: lightning #688 #19970, pytorch #61923.

    Four kills, or 200 with `FUZZ=50`. Whenever a run has finished, another begins.
    """
    moments = random.Random(FUZZ)
    config = small_config(tmp_path / "killed", checkpoint_steps=1)
    checkpoint = config.out / CHECKPOINT
    kills = half_written = finished = 0
    steps = [0]
    while kills < 4 * FUZZ:
        processes = start(config, mishap=Mishap(pause=0.02))
        # The first may die before there is a checkpoint; the others get further.
        wait_for_step(config, min(1 + checkpoint.exists(), 24 - steps[-1]))
        time.sleep(moments.uniform(0.0, 0.2))
        processes[0].kill()
        (code,) = finish(processes)
        assert code in (0, -signal.SIGKILL)
        kills += code != 0
        half_written += checkpoint.with_name(f"{CHECKPOINT}.tmp").exists()
        (config.out / "alive-0").unlink()
        if checkpoint.exists():
            # Reading it checks that it is complete.
            steps.append(final_state(config.out)[1]["progress"]["step"])
            assert steps[-1] >= steps[-2]
        if steps[-1] == 24 or kills == 4 * FUZZ:
            assert finish(start(config)) == [0]
            assert same_state(config.out, uninterrupted)
            shutil.rmtree(config.out)
            steps, finished = [0], finished + 1
    print(f"{kills} kills, {half_written} while writing, {finished} runs compared")


@pytest.mark.parametrize("moment", ["write", "fsync", "replace"])
def test_a_kill_while_saving_leaves_the_previous_checkpoint(
    tmp_path: Path, uninterrupted: Path, moment: str
) -> None:
    """Weights new, optimizer old: adaptdl #81. Orphans pile up: speechturn #15."""
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
    message = "the checkpoint of step 10 could not be written (File too large)"
    assert message in log(config)
    assert final_state(tmp_path)[1]["progress"]["step"] == 9
    assert list(tmp_path.glob("*.tmp")) == []
    assert finish(start(config)) == [0]
    assert same_state(tmp_path, uninterrupted)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("during", ["training", "evaluation"])
def test_a_signal_loses_no_work(
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


@pytest.mark.parametrize("moment", ["callback", "weights", "already trained"])
def test_a_signal_after_the_last_step_is_not_lost(
    tmp_path: Path, uninterrupted: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    config = small_config(tmp_path)
    if moment == "already trained":
        small_run(config)

    def write(path: Path, model: nn.Module) -> None:
        signal.raise_signal(signal.SIGTERM)
        save_weights(path, model)

    def callback(model: nn.Module, step: int, writer: object) -> dict[str, Any]:
        if step == 24:
            signal.raise_signal(signal.SIGTERM)
        return {}

    if moment != "callback":
        monkeypatch.setattr(training, "save_weights", write)
    callbacks = [callback] if moment == "callback" else []
    batches, evaluations = small_batches(config)
    options = {"evaluations": evaluations, "callbacks": callbacks}
    with pytest.raises(Stopped) as stopped:
        train(small_model(), batches, classify, config, **options)
    assert stopped.value.code == 143
    assert (tmp_path / WEIGHTS).exists()
    assert same_state(tmp_path, uninterrupted)


def test_a_second_signal_exits_at_once_unless_a_terminal_was_closed(
    tmp_path: Path,
) -> None:
    config = small_config(tmp_path, checkpoint_steps=1)
    processes = start(config, mishap=Mishap(long_step=3))
    wait_for_step(config, 3)
    # A shell and the system each send one when a terminal is closed.
    for number in (signal.SIGHUP, signal.SIGHUP):
        time.sleep(0.2)
        os.kill(processes[0].pid, number)
    time.sleep(0.2)
    assert processes[0].is_alive()
    processes[0].terminate()
    assert finish(processes, within=10.0) == [143]
    assert final_state(tmp_path)[1]["progress"]["step"] == 3


def test_nohup_keeps_a_run_from_hanging_up(tmp_path: Path, uninterrupted: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        config = small_config(tmp_path)

        def objective(model: nn.Module, batch: tuple[Tensor, ...]) -> dict[str, Tensor]:
            signal.raise_signal(signal.SIGHUP)
            return classify(model, batch)

        batches, evaluations = small_batches(config)
        train(small_model(), batches, objective, config, evaluations=evaluations)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert same_state(tmp_path, uninterrupted)


@pytest.mark.parametrize("output", ["closed", "broken pipe", "lost terminal"])
def test_a_run_needs_nobody_to_read_its_output(
    tmp_path: Path, uninterrupted: Path, output: str
) -> None:
    """`2>&-`, `| head`, a closed window: tqdm #1523 #1593 #1654."""
    config = small_config(tmp_path)
    for _ in range(2):  # the second finds that all is done, and says so
        assert finish(start(config, output=output)) == [0]
    assert same_state(tmp_path, uninterrupted)


def test_output_in_any_encoding_and_to_no_stream_is_no_error() -> None:
    content = io.BytesIO()
    ascii_stream = io.TextIOWrapper(content, "ascii")
    assert LenientStream(ascii_stream).write("β = 1\n") == 6
    assert content.getvalue() == b"\\u03b2 = 1\n"
    ascii_stream.close()
    probe, other = os.pipe()
    os.close(probe)
    for stream in (None, ascii_stream):
        assert LenientStream(stream).write("lost\n") == 5
        assert not LenientStream(stream).isatty()
    # Nothing was left open: the first free number is still free.
    again = os.dup(other)
    os.close(other)
    os.close(again)
    assert again == probe


def test_two_runs_do_not_write_into_one_folder(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    with file_lock(tmp_path, wait=False):
        assert finish(start(config)) == [1]
    assert f"another process is writing into {tmp_path}" in log(config)
    assert finish(start(config)) == [0]


def test_a_gradient_that_is_nan_stops_the_run_before_the_weights_change(
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


@pytest.mark.parametrize("part", ["running", "history"])
def test_a_run_with_impossible_metrics_is_not_resumed(
    tmp_path: Path, part: str
) -> None:
    """A count of 1e308 made the number of samples per second overflow."""
    config, model = small_config(tmp_path, checkpoint_steps=1), small_model()
    with pytest.raises(FloatingPointError):
        small_run(config, mishap=Mishap(nan=(11, 0)))
    tensors, metadata = read_tensors(tmp_path / CHECKPOINT)
    progress = metadata["progress"]
    (evaluated,) = progress["history"]
    metrics = progress["running"] if part == "running" else evaluated["test"]
    metrics["count"] = 1e308
    write_tensors(tmp_path / CHECKPOINT, tensors, metadata)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    with pytest.raises(CheckpointError, match="has a malformed progress"):
        small_run(config, model=model)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


# Several processes.


def test_uneven_batches_neither_hang_nor_change_the_result(tmp_path: Path) -> None:
    """Hung: pytorch #38174, lightning #9851 #20404. Counted twice: nupic #264.

    The last batch of 23 samples in sevens has 2, fewer than there are processes.
    """
    found = {}
    for world_size in (1, 2, 3):
        config = small_config(tmp_path / str(world_size))
        ranks = start(config, world_size, dropout=0.0, count=23)
        assert finish(ranks) == [0] * world_size, log(config)
        found[world_size] = final_state(config.out)
    tensors, metadata = found[1]
    for world_size in (2, 3):
        others, other_metadata = found[world_size]
        histories = (x["progress"]["history"] for x in (metadata, other_metadata))
        for ours, theirs in zip(*histories, strict=True):
            for split in ("train", "test"):
                for name in ("count", "correct", "accuracy"):
                    assert ours[split][name] == theirs[split][name]
                loss = pytest.approx(theirs[split]["loss"], abs=1e-6)
                assert ours[split]["loss"] == loss
            assert ours["train"]["count"] == 23
        _assert_close(tensors, others)


def test_all_ranks_stop_at_nan_one_writes_and_all_resume(tmp_path: Path) -> None:
    """A bad batch on one rank, and the others wait forever: NeMo Automodel #2468."""
    whole = small_config(tmp_path / "whole")
    broken = small_config(tmp_path / "broken", checkpoint_steps=1)
    assert finish(start(whole, 2)) == [0, 0]
    assert finish(start(broken, 2, mishap=Mishap(nan=(5, 1)))) == [1, 1]
    for rank in range(2):
        assert "FloatingPointError: step 5: the loss is nan" in log(broken, rank)
        # Only the main process shows its progress.
        assert ("step/s" in log(broken, rank)) == (rank == 0)
    assert final_state(broken.out)[1]["progress"]["step"] == 5
    assert finish(start(broken, 2)) == [0, 0]
    assert same_state(whole.out, broken.out)


def test_all_ranks_stop_together_when_one_receives_a_signal(tmp_path: Path) -> None:
    config = small_config(tmp_path, checkpoint_seconds=1e9)
    ranks = start(config, 2, mishap=Mishap(pause=0.05))
    wait_for_step(config, 3)
    ranks[1].terminate()
    assert finish(ranks) == [143, 143]
    assert 3 <= final_state(config.out)[1]["progress"]["step"] < 24


def test_all_ranks_stop_when_one_receives_a_signal_after_the_last_step(
    tmp_path: Path,
) -> None:
    config = small_config(tmp_path)
    assert finish(start(config, 2, mishap=Mishap(hangup=(24, 1)))) == [143, 129]
    assert final_state(tmp_path)[1]["progress"]["step"] == 24


def test_a_rank_that_dies_ends_the_torchrun_job_and_leaves_a_checkpoint(
    tmp_path: Path,
) -> None:
    """One rank dies, and the others hang: every launcher's oldest complaint."""
    script = Path(__file__).with_name("small_run.py")
    settings = {"epochs": 100, "checkpoint_steps": 1}
    options = [json.dumps(settings), json.dumps({"pause": 0.02})]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    with (tmp_path / "log-0.txt").open("wb") as output:
        job = subprocess.Popen(
            [sys.executable, *launcher, str(script), str(tmp_path), *options],
            stdout=output,
            stderr=output,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
    config = small_config(tmp_path, epochs=100)
    try:
        wait_for_step(config, 4)
        os.kill(int((tmp_path / "pid-1").read_text()), signal.SIGKILL)
        assert job.wait(timeout=60) != 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        job.wait()
    step = final_state(tmp_path)[1]["progress"]["step"]
    assert step >= 3
    # One process resumes where two were.
    with pytest.raises(FloatingPointError, match=f"step {step + 2}:"):
        small_run(config, mishap=Mishap(nan=(2, 0)))


# The record.


def test_the_record_of_a_run_tells_nothing_of_the_machine(tmp_path: Path) -> None:
    config = small_config(tmp_path / "somewhere")
    metrics = {"history": [{"loss": 0.25}], "centers": torch.tensor([[1.0, 2.0]])}
    options = {"seed": 3, "data": {"file": tmp_path / "some.zip"}, "device": CPU}
    record = RunRecord.of(config, seconds=1.26, metrics=metrics, **options)
    path = record.write(tmp_path)
    assert RunRecord.read(tmp_path) == record
    assert str(tmp_path) not in path.read_text()
    assert record.metrics["centers"] == [[1.0, 2.0]]
    assert record.config["out"] == "somewhere"
    assert (record.seconds, record.seed, record.processes) == (1.3, 3, 1)
    bad = RunRecord.of({}, seconds=1.0, metrics={"loss": float("nan")}, **options)
    with pytest.raises(ValueError, match="Out of range float"):
        bad.write(tmp_path)
    assert RunRecord.read(tmp_path) == record
