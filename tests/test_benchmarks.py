"""The arithmetic of the benchmarks, without timing anything: times are no tests."""

import importlib
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
measuring = importlib.import_module("measuring")


class Clock:
    """A clock that moves only when somebody works."""

    def __init__(self):
        self.now = 0.0

    def work(self, *seconds):
        """Give work that takes these times, one after another and over again."""
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


def test_a_ratio_is_the_peers_time_by_ours(clock):
    pair = measuring.Pair(clock.work(2.0), clock.work(2.5))
    found = measuring.compare(lambda: pair, budget=60.0)
    assert found["ratio"] == found["lower_quartile"] == found["upper_quartile"] == 1.25
    assert (found["our_milliseconds"], found["their_milliseconds"]) == (2000.0, 2500.0)
    assert found["pairs"] == 3 * round(20 / (2 * 2.5))
    assert found["rate"] is None


def test_contenders_are_set_up_anew_unless_one_is_far_ahead(clock):
    built = []

    def build(theirs):
        built.append(theirs)
        return measuring.Pair(clock.work(1.0), clock.work(theirs))

    near = measuring.compare(lambda: build(1.4), budget=12.0)
    assert built == [1.4] * 3
    assert near["pairs"] == 3 * 3
    far = measuring.compare(lambda: build(4.0), budget=12.0)
    assert built == [1.4] * 3 + [4.0]
    assert (far["pairs"], far["ratio"]) == (3, 4.0)


def test_set_ups_count_alike(clock):
    """Where tensors lie can decide: the median is over all set-ups."""
    times = iter([1.0, 2.0, 4.0])

    def build():
        return measuring.Pair(clock.work(1.0), clock.work(next(times)))

    found = measuring.compare(build, budget=0.0)
    assert found["pairs"] == 9
    assert (found["lower_quartile"], found["ratio"]) == (1.0, 2.0)
    assert found["upper_quartile"] == 4.0


def test_the_median_of_pairs_ignores_a_turn_that_was_disturbed(clock):
    disturbed = clock.work(1.0, 1.0, 1.0, 50.0, 1.0, 1.0, 1.0, 1.0)
    pair = measuring.Pair(disturbed, clock.work(2.0))
    times = measuring.take_turns(pair, budget=28.0)
    assert len(times) == 7
    assert (50.0, 2.0) in times
    assert measuring.summary(pair, times)["ratio"] == 2.0


def test_rates_count_what_a_turn_does(clock):
    pair = measuring.Pair(clock.work(2.0), clock.work(5.0), unit="tokens", count=30)
    found = measuring.summary(pair, [(2.0, 5.0), (2.0, 5.0)])
    assert found["rate"] == {"unit": "tokens/s", "ours": 15.0, "theirs": 6.0}


def test_short_work_is_repeated_within_a_turn(clock):
    counted = clock.work(0.0003)
    calls = []

    def ours():
        calls.append(None)
        counted()

    pair = measuring.Pair(ours, clock.work(0.0004))
    times = measuring.take_turns(pair, budget=0.028)
    # Five times 0.4 milliseconds make a turn of two, and seven such pairs fit.
    assert len(times) == 7
    assert len(calls) == 1 + 5 * 7
    assert times[0] == pytest.approx((0.0003, 0.0004))


def test_different_work_is_not_timed():
    same = measuring.Pair(lambda: torch.ones(3), lambda: torch.ones(3) + 1e-6)
    assert measuring.difference(same) == pytest.approx(1e-6, rel=0.1)
    other = replace(same, theirs=lambda: torch.ones(3) + 1e-3)
    with pytest.raises(measuring.DifferentWorkError, match=r"within 1\.0e-04 of each"):
        measuring.difference(other)
    shorter = replace(same, theirs=lambda: torch.ones(2))
    with pytest.raises(measuring.DifferentWorkError, match=r"got \(3,\) and \(2,\)"):
        measuring.difference(shorter)
    broken = replace(same, ours=lambda: torch.full((3,), torch.nan))
    with pytest.raises(measuring.DifferentWorkError, match="got nan"):
        measuring.difference(broken)


def test_what_has_no_result_is_not_compared():
    assert measuring.difference(measuring.Pair(lambda: None, lambda: None)) is None


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_the_exponent_of_a_power_is_found(power):
    sizes = [3, 5, 11, 64]
    assert measuring.exponent(sizes, [7.0 * n**power for n in sizes]) == power


def test_memory_is_what_a_run_adds():
    kept = []

    def work():
        kept.append(torch.ones(16, 1024, 1024))  # 64 MB

    # Only Linux tells the peak of a while.
    known = Path("/proc/self/status").exists()
    expected = pytest.approx(64, rel=0.1) if known else None
    assert measuring.peak_megabytes(work) == expected


def test_a_training_step_moves_nothing_but_gives_the_loss():
    torch.manual_seed(0)
    model = nn.Linear(5, 3)
    before = model.weight.detach().clone()
    x = torch.randn(7, 5)
    step = measuring.training_step(model, lambda y: y.square().mean(), x)
    expected = model(x).square().mean().detach()
    torch.testing.assert_close(step(), expected)
    torch.testing.assert_close(model.weight.detach(), before, rtol=0, atol=1e-6)
    assert model.weight.grad is not None
