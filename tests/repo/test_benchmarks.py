"""The arithmetic of the benchmarks, and the page made from their record.

No test measures a time: a fake clock advances only when somebody works.
"""

import importlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from transformers_hw.lab.batching import Batch
from transformers_hw.lab.optimization import TrainingConfig

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
later = importlib.import_module("later")
measuring = importlib.import_module("measuring")
precision = importlib.import_module("precision")
report = importlib.import_module("report")
trainings = importlib.import_module("trainings")


class Clock:
    """A clock that advances only when somebody works."""

    def __init__(self):
        self.now = 0.0

    def work(self, *seconds):
        """Return work that takes these times, one after another, in a cycle."""
        turns = []

        def once():
            self.now += seconds[len(turns) % len(seconds)]
            turns.append(None)

        return once


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(measuring.time, "perf_counter", lambda: clock.now)
    return clock


def test_a_ratio_is_the_peers_time_over_ours(clock):
    pair = measuring.Pair(clock.work(2.0), clock.work(2.5), unit="tokens", count=30)
    found = measuring.compare(lambda: pair, budget=60.0)
    assert found["ratio"] == found["lower_quartile"] == found["upper_quartile"] == 1.25
    assert (found["our_milliseconds"], found["their_milliseconds"]) == (2000.0, 2500.0)
    assert found["pairs"] == 3 * round(20 / (2 * 2.5))
    assert found["rate"] == {"unit": "tokens/s", "ours": 15.0, "theirs": 12.0}
    assert found["largest_difference"] is None


def test_the_median_of_the_pairs_ignores_a_disturbed_turn(clock):
    disturbed = clock.work(1.0, 1.0, 1.0, 50.0, 1.0, 1.0, 1.0, 1.0)
    pair = measuring.Pair(disturbed, clock.work(2.0))
    times = measuring.take_turns(pair, budget=28.0)
    assert len(times) == 7
    assert (50.0, 2.0) in times
    assert measuring.summarize(pair, times)["ratio"] == 2.0


def test_quartiles_are_over_all_set_ups_unless_the_winner_is_clear(clock):
    times = iter([1.0, 2.0, 4.0, 4.0])

    def build():
        return measuring.Pair(clock.work(1.0), clock.work(next(times)))

    found = measuring.compare(build, budget=0.0)
    quartiles = [found[k] for k in ("lower_quartile", "ratio", "upper_quartile")]
    assert (quartiles, found["pairs"]) == ([1.0, 2.0, 4.0], 9)
    found = measuring.compare(build, budget=0.0)
    assert (found["ratio"], found["pairs"]) == (4.0, 3)


def test_short_work_is_repeated_within_a_turn(clock):
    pair = measuring.Pair(clock.work(0.0003), clock.work(0.0004))
    times = measuring.take_turns(pair, budget=0.028)
    # Five runs of 0.4 ms make a turn of 2 ms, and seven pairs of turns fit.
    assert len(times) == 7
    assert times[0] == pytest.approx((0.0003, 0.0004))
    assert clock.now == pytest.approx((1 + 5 * 7) * (0.0003 + 0.0004))


def test_different_outputs_are_not_timed():
    same = measuring.Pair(lambda: torch.ones(3), lambda: torch.ones(3) + 1e-6)
    assert measuring.largest_difference(same) == pytest.approx(1e-6, rel=0.1)
    for output, message in (
        (torch.ones(3) + 1e-3, r"agree to within 1\.0e-04, got 1\.0e-03"),
        (torch.ones(2), r"same shape, got \(3,\) and \(2,\)"),
        (torch.full((3,), torch.nan), "got nan"),
    ):
        pair = replace(same, theirs=lambda output=output: output)
        with pytest.raises(measuring.DifferentOutputError, match=message):
            measuring.largest_difference(pair)


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_the_exponent_of_a_power_law_is_found(power):
    sizes = [3, 5, 11, 64]
    assert measuring.exponent(sizes, [7.0 * n**power for n in sizes]) == power


def test_a_share_compares_the_rates_of_operations(clock, monkeypatch):
    product = (clock.work(0.5), 100)
    monkeypatch.setattr(measuring, "large_product", lambda: product)
    found = measuring.share_of_gemm(clock.work(0.4), 60, 8.0)
    assert found == {"gigaflops": 1.5e-7, "share": 0.75}


def test_memory_is_what_a_run_adds():
    # In a process of its own: this one may still have memory that others freed.
    code = (
        "import measuring, torch; kept = [];"
        "print(measuring.peak_megabytes(lambda: kept.append(torch.ones(16, 2**20))))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(measuring.__file__).parent,
        check=True,
        capture_output=True,
        text=True,
    )
    # Only Linux reports the peak of a period.
    if sys.platform == "linux":
        assert float(ran.stdout) == pytest.approx(64, rel=0.1)
    else:
        assert ran.stdout == "None\n"


def test_a_row_is_level_if_its_quartiles_lie_on_both_sides_of_one():
    quartiles = ((1.01, 1.2), (0.8, 0.99), (0.99, 1.01), (1.0, 1.2))
    rows = [{"lower_quartile": a, "upper_quartile": b} for a, b in quartiles]
    verdicts = ["faster", "slower", "level", "level"]
    assert [report.verdict(row) for row in rows] == verdicts
    assert report.counts(rows) == [1, 2, 1]


def test_a_later_run_replaces_its_parts_alone():
    machine, versions = {"cores": 2, "threads": 2}, {"torch": "2", "timm": "1"}
    record = {"machine": machine, "versions": versions, "noise": [1.0]}
    record["rows"] = [{"group": g, "ratio": 1.0} for g in ("data", "windows", "data")]
    record |= {"growth": [{"axis": "depth"}], "gemm_shares": [{"model": "ViT"}]}

    def measured(date, **found):
        run = {"date": date, "machine": {**machine, "threads": 1}, "versions": {}}
        found = {"rows": [], "growth": [], "gemm_shares": [], **found}
        return later.merged(record, found, run)

    record = measured("first", rows=[{"group": g} for g in ("windows", "new")])
    assert [row["group"] for row in record["rows"]] == [
        "data",
        "data",
        "windows",
        "new",
    ]
    about = {"threads": 1, "date": "first", "parts": ["windows", "new"]}
    assert record["later_runs"] == [about]
    kept = record
    record = measured("then", rows=[{"group": "new"}], growth=[{"axis": "width"}])
    assert [run["parts"] for run in record["later_runs"]] == [
        ["windows"],
        ["new", "width"],
    ]
    assert record["growth"] == [{"axis": "depth"}, {"axis": "width"}]
    record = measured("last", rows=[{"group": "windows"}])
    assert [run["date"] for run in record["later_runs"]] == ["then", "last"]
    assert kept["later_runs"] == [about], "the first record must stay as it was"
    for same, wrong in (({"cores": 2}, {"timm": "3"}), ({"cores": 4}, {"timm": "1"})):
        run = {"machine": same, "versions": wrong}
        with pytest.raises(
            later.OtherMachineError, match=r"must be the record's, \d, got"
        ):
            later.merged(record, {"rows": [], "growth": [], "gemm_shares": []}, run)


def test_use_elsewhere_is_a_share_of_all_cores(monkeypatch):
    used = iter([(0.0, 0.0), (10.0, 5.0)])
    monkeypatch.setattr(later.Elsewhere, "_now", lambda _: next(used))
    monkeypatch.setattr(later.os, "cpu_count", lambda: 2)
    assert later.Elsewhere().share() == 0.25


def test_the_page_shows_the_committed_record():
    record = json.loads(report.RECORD.read_text("utf-8"))
    text = report.PAGE.read_text("utf-8")
    assert report.page(text, record) == text, "run: python benchmarks/report.py"
    assert sum(map(len, report.by_group(record).values())) == len(record["rows"])
    faster = {**record["rows"][0], "lower_quartile": 1.1, "upper_quartile": 1.3}
    changed = {**record, "rows": [{**faster, "ratio": 1.234}, *record["rows"][1:]]}
    assert "| **1.23** (1.10–1.30) |" in report.page(text, changed)
    run = {"date": "2027-02-03", "command": "run", "threads": 1, "parts": ["windows"]}
    changed = {**record, "later_runs": [{**run, "used_elsewhere": 0.25}]}
    sentence = (
        "Measured later, on February 3, 2027, on 1 thread of the same machine, by "
        "`run`: Attention within a window. Other programs used 25% of the processor."
    )
    assert sentence in report.page(text, changed)
    with pytest.raises(ValueError, match="one <!-- begin headline -->"):
        report.page("", record)


def test_a_training_takes_all_its_steps_and_evaluations(monkeypatch, clock):
    monkeypatch.setattr(trainings.time, "perf_counter", lambda: clock.now)

    class Slow:
        """Batches of one sample, each of which takes its time."""

        def __init__(self, seconds, steps_per_epoch=None):
            self.seconds, self.steps_per_epoch = seconds, steps_per_epoch

        def batch(self, step, *, rank=0, world_size=1):
            # The first steps are slower.
            clock.now += self.seconds + 100 * (self.steps_per_epoch is None) * (
                step < trainings.WARM
            )
            return Batch((torch.ones(1, 3),), 1.0)

    def objective(model, batch):
        loss = model(batch[0]).sum()
        return {"loss": loss, "count": torch.ones(())}

    config = TrainingConfig(steps=10, evaluate_every=4, device="cpu")
    stopwatch = trainings.Stopwatch()
    for seed in (0, 1):
        progress = stopwatch.train(
            torch.nn.Linear(3, 1),
            Slow(0.5),
            objective,
            config,
            name=f"small_seed_{seed}",
            evaluations={"test": Slow(3.0, steps_per_epoch=2)},
            callbacks=[lambda model, step, writer: {"seen": True}],
        )
    assert progress.seconds == pytest.approx(10 * 0.5 + 3 * 2 * 3.0)
    assert [entry["step"] for entry in progress.history] == [4, 8, 10]
    assert all(entry["seen"] for entry in progress.history)
    assert stopwatch.trainings == {
        "small": {
            "trainings": 2,
            "steps": 10,
            "milliseconds_per_step": 500.0,
            "minutes": round(23 / 60, 2),
        }
    }
    part = {"minutes": 0.77, "trainings": stopwatch.trainings}
    record = {"parts": {"seq2seq": part, "vision_transformer/b_c": part}}
    rows = trainings.table(record).splitlines()[2:]
    assert rows == ["| 5 | 2 | 0.8 |", "| 7, b c | 2 | 0.8 |"]


def test_times_are_of_trainings_as_long_as_those_that_the_site_shows():
    record, compared = json.loads(trainings.RECORD.read_text("utf-8")), 0
    for part, told in record["parts"].items():
        path = trainings.ROOT / "docs/figures" / part / "run.json"
        run = json.loads(path.read_text("utf-8"))
        metrics, batch_size = run["metrics"], run["config"].get("batch_size")
        models = metrics.get("models", {"": metrics.get("model", metrics)})
        for name, model in models.items():
            samples = model.get("samples", model.get("images_seen"))
            if samples is None:
                continue
            timed = told["trainings"].get(name)
            timed = timed or next(iter(told["trainings"].values()))
            # The last batch of an epoch is smaller.
            assert 0.85 < samples / (timed["steps"] * batch_size) <= 1, (part, name)
            assert timed["trainings"] == model["seeds"]
            compared += 1
    assert compared >= 30


def test_the_page_shows_the_recorded_times_and_losses():
    for module, text in ((trainings, trainings.table), (precision, precision.sentence)):
        record = json.loads(module.RECORD.read_text("utf-8"))
        assert module.RECORD.with_suffix(".md").read_text("utf-8") == text(record)


def test_linear_layers_multiply_in_bfloat16():
    plain = torch.nn.Linear(3, 5)
    whole, fine = torch.randint(-1, 2, (2, 4, 3)).float(), torch.rand(2, 4, 3)
    for x, exact in ((whole, True), (fine, False)):
        if exact:  # small whole numbers have no digits to lose
            plain.weight.data, plain.bias.data = (
                x[0, 0].repeat(5, 1),
                x[0, 0, 0].repeat(5),
            )
        low = precision.with_low_products(plain)
        inputs = [x.clone().requires_grad_() for _ in range(2)]
        outputs = [layer(y) for layer, y in zip((plain, low), inputs, strict=True)]
        for output in outputs:
            output.square().sum().backward()
        found = zip(
            [outputs[0], inputs[0].grad, plain.weight.grad, plain.bias.grad],
            [outputs[1], inputs[1].grad, low.weight.grad, low.bias.grad],
            strict=True,
        )
        for ours, theirs in found:
            assert theirs.dtype == torch.float32
            assert torch.equal(ours, theirs) == exact
            torch.testing.assert_close(ours, theirs, rtol=0.05, atol=0.05)
        plain.zero_grad()
