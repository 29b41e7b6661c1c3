"""Chapter 2, further: counterexamples to the documents, and what the page derives."""

import math

import pytest
import torch
from torch import Tensor, nn

from transformers_hw import (
    LearnedPositions,
    OneHotPositions,
    SelfAttention,
    SinusoidalPositions,
    attention,
    attention_weights,
)

F64 = torch.float64


# When positions are needed


@pytest.mark.question("nyu-1.3b")
def test_without_positions_equal_tokens_get_equal_outputs():
    layer = SelfAttention(6, heads=2, dtype=F64)
    dog, bites = torch.randn(2, 6, dtype=F64)
    said, _ = layer(torch.stack([dog, bites, dog])[None])
    assert torch.allclose(said[0, 0], said[0, 2], rtol=0, atol=1e-12)
    coded = SelfAttention(6, heads=2, positions=SinusoidalPositions(6), dtype=F64)
    said, _ = coded(torch.stack([dog, bites, dog])[None])
    assert (said[0, 0] - said[0, 2]).abs().max() > 0.01


@pytest.mark.question("nyu-1.3b")
def test_the_order_of_keys_never_matters_if_values_move_with_them():
    query, key, value = (torch.randn(n, 7, dtype=F64) for n in (5, 11, 11))
    order = torch.randperm(11)
    plain, _ = attention(query, key, value)
    shuffled, _ = attention(query, key[order], value[order])
    assert torch.allclose(shuffled, plain, rtol=0, atol=1e-12)


@pytest.mark.question("nyu-1.3b")
def test_one_causal_layer_reads_a_bag_of_earlier_tokens_and_two_read_their_order():
    first, second = (SelfAttention(6, heads=2, dtype=F64) for _ in range(2))
    x = torch.randn(1, 7, 6, dtype=F64)
    shuffled = x[:, [3, 1, 5, 0, 2, 4, 6]]

    def one(t: Tensor) -> Tensor:
        return first(t, causal=True)[0]

    def two(t: Tensor) -> Tensor:
        return second(one(t), causal=True)[0]

    assert torch.allclose(one(x)[:, -1], one(shuffled)[:, -1], rtol=0, atol=1e-12)
    assert (two(x)[:, -1] - two(shuffled)[:, -1]).abs().max() > 1e-4


@pytest.mark.question("nyu-1.3b")
def test_a_causal_mask_counts_places_only_from_a_token_that_differs():
    layer = SelfAttention(6, heads=2, dtype=F64)
    alike = torch.randn(6, dtype=F64).expand(1, 7, 6)
    output, _ = layer(alike, causal=True)
    assert torch.allclose(output, output[:, :1].expand_as(output), rtol=0, atol=1e-12)
    # Looking evenly at a marked first token, place t (from 1) receives 1/t of it.
    marked = torch.zeros(7, 1, dtype=F64)
    marked[0] = 1.0
    received, _ = attention(marked, marked, marked, scale=0.0, causal=True)
    assert received[:, 0].tolist() == pytest.approx([1 / t for t in range(1, 8)])


# Why sinusoids


@pytest.mark.question("quiz-2.5")
@pytest.mark.parametrize("start", [0, 1_000, 100_000])
def test_one_matrix_lets_every_position_find_the_one_three_places_back(start):
    positions = SinusoidalPositions(16)
    codes = positions.codes(50, start=start)
    query = codes @ positions.shift_matrix(-3).T
    weights = attention_weights(query, codes, scale=math.inf)
    assert torch.equal(weights[3:].argmax(-1), torch.arange(47))
    assert (weights[3:].amax(-1) == 1).all()
    scores = query @ codes.T
    best = scores[3:].gather(1, torch.arange(47)[:, None])
    assert torch.allclose(best, torch.full_like(best, 8.0), rtol=0, atol=1e-9)


@pytest.mark.question("quiz-2.5")
def test_shifts_compose_as_rotations_do():
    positions = SinusoidalPositions(14)
    twice = positions.shift_matrix(5) @ positions.shift_matrix(-2)
    assert torch.allclose(twice, positions.shift_matrix(3), rtol=0, atol=1e-12)
    back = positions.shift_matrix(-5)
    assert torch.equal(back, positions.shift_matrix(5).T)


@pytest.mark.question("quiz-2.5")
def test_a_periodic_code_that_is_no_sinusoid_has_no_shift_matrix():
    def best_error(codes: Tensor) -> float:
        fitted = torch.linalg.lstsq(codes[:-1], codes[1:]).solution
        return (codes[:-1] @ fitted - codes[1:]).abs().max().item()

    angle = torch.arange(60, dtype=F64)
    sines = torch.stack([angle.sin(), angle.cos()], -1)
    # Zigzags of the same period: arcsin of the sine, arcsin of the cosine.
    zigzags = sines.asin()
    assert best_error(sines) < 1e-12
    assert best_error(zigzags) > 0.1


@pytest.mark.question("quiz-2.5")
def test_a_code_with_a_whole_period_confuses_positions_however_long_the_sequence():
    angle = 2 * math.pi / 8 * torch.arange(20, dtype=F64)
    periodic = torch.stack([angle.sin(), angle.cos()], -1)
    assert torch.allclose(periodic[3], periodic[11], rtol=0, atol=1e-12)


@pytest.mark.question("quiz-2.5")
def test_no_two_of_the_first_five_thousand_positions_come_close_to_sharing_a_code():
    codes = SinusoidalPositions(512).codes(5_000)
    # Distances depend on the difference of positions alone: compare all with the first.
    assert (codes[1:] - codes[0]).norm(dim=-1).min() > 1.0
    # One pair alone almost returns: 710 is nearly 113 turns.
    first_pair = codes[:, :2]
    assert 0 < (first_pair[710] - first_pair[0]).norm() < 1e-4


@pytest.mark.question("quiz-2.5", "eecs-1e")
def test_past_the_trained_length_sinusoids_have_codes_and_a_table_has_none():
    x = torch.randn(2, 9, 6, dtype=F64)
    assert SinusoidalPositions(6)(x).shape == x.shape
    with pytest.raises(ValueError, match=r"codes for 7 positions"):
        LearnedPositions(7, 6, dtype=F64)(x)


# Ways to tell a sequence its positions


@pytest.mark.question("eecs-1e")
def test_a_linear_map_of_token_and_one_hot_adds_a_learnt_row_to_a_mapped_token():
    linear = nn.Linear(5 + 7, 3, bias=False, dtype=F64)
    for_token, for_position = linear.weight.split([5, 7], dim=1)
    table = for_position.T
    x = torch.randn(2, 7, 5, dtype=F64)
    found = linear(OneHotPositions(7)(x))
    assert torch.allclose(found, x @ for_token.T + table, rtol=0, atol=1e-12)


@pytest.mark.question("eecs-1e")
def test_what_a_one_hot_code_stands_for_is_learnt_by_gradient_descent():
    linear = nn.Linear(7, 3, bias=False, dtype=F64)
    before = linear.weight.detach().clone()
    output = linear(OneHotPositions(7).codes(1, start=4))
    output.square().sum().backward()
    torch.optim.SGD(linear.parameters(), lr=0.1).step()
    changed = (linear.weight != before).any(dim=0)
    assert changed.tolist() == [False] * 4 + [True] + [False] * 2


@pytest.mark.question("eecs-1e")
def test_concatenating_and_then_mapping_contains_adding():
    x = torch.randn(2, 5, 6, dtype=F64)
    added = SinusoidalPositions(6, combine="add")(x)
    joined = SinusoidalPositions(6, combine="concatenate")(x)
    both = torch.cat([torch.eye(6, dtype=F64)] * 2)
    assert torch.allclose(joined @ both, added, rtol=0, atol=1e-12)


@pytest.mark.question("eecs-1e")
def test_a_dimension_keeps_one_frequency_over_all_positions():
    positions = SinusoidalPositions(14)
    codes, omega = positions.codes(50), positions.frequencies()
    # Mixtures of sin ωt and cos ωt, and they alone: f(t+1) + f(t-1) = 2 cos(ω) f(t).
    factor = (2 * omega.cos()).repeat_interleave(2)
    assert torch.allclose(codes[2:] + codes[:-2], factor * codes[1:-1], atol=1e-12)
    assert len(set(omega.tolist())) == 7


@pytest.mark.question("eecs-1e")
def test_an_exponent_over_d_minus_two_would_attain_both_ends():
    d, base = 512, 10_000
    wavelengths = [2 * math.pi * base ** (2 * i / (d - 2)) for i in range(d // 2)]
    assert wavelengths[0] == pytest.approx(2 * math.pi)
    assert wavelengths[-1] == pytest.approx(2 * math.pi * base)


@pytest.mark.question("eecs-1e")
def test_one_hot_codes_are_all_equally_far_apart_and_sinusoidal_ones_are_not():
    one_hot = OneHotPositions(11).codes(11)
    apart = torch.cdist(one_hot, one_hot)
    off_diagonal = apart[~torch.eye(11).bool()]
    assert torch.allclose(off_diagonal, torch.full_like(off_diagonal, math.sqrt(2)))
    codes = SinusoidalPositions(48).codes(64)
    from_first = (codes - codes[0]).norm(dim=-1)
    assert (from_first[1:] > from_first[:1]).all()
    assert (from_first[2:6] > from_first[1:5]).all()
    # Near codes are alike, but far ones do not grow ever more different.
    assert (from_first[7:] < from_first[6:-1]).any()
