"""The arithmetic of the benchmarks, and the page made from their record.

No test measures a time: a fake clock advances only when somebody works.
"""

import importlib
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
later = importlib.import_module("later")
measuring = importlib.import_module("measuring")
report = importlib.import_module("report")


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
    kept = []
    used = measuring.peak_megabytes(lambda: kept.append(torch.ones(16, 1024, 1024)))
    # Only Linux reports the peak of a period.
    expected = pytest.approx(64, rel=0.1) if sys.platform == "linux" else None
    assert used == expected


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
