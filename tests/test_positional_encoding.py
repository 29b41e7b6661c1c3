"""Chapter 2 against formulas, rotations and PyTorch's resampling."""

import math

import pytest
import torch
import torch.nn.functional as F
from einops import rearrange
from hypothesis import given, settings
from hypothesis import strategies as st

from transformers_hw import (
    LearnedPositions,
    LearnedPositions2D,
    MultiHeadAttention,
    OneHotPositions,
    PositionalEncoding,
    RelativePositionBias,
    SinusoidalPositions,
    SinusoidalPositions2D,
    attention,
)

F64 = torch.float64


@pytest.mark.question("eecs-1e", "quiz-2.9")
def test_sinusoidal_codes_follow_the_papers_formula():
    codes = SinusoidalPositions(6, base=100.0).codes(11)
    for position in range(11):
        for i in range(3):
            angle = position / 100.0 ** (2 * i / 6)
            assert codes[position, 2 * i].item() == pytest.approx(math.sin(angle))
            assert codes[position, 2 * i + 1].item() == pytest.approx(math.cos(angle))


@pytest.mark.question("quiz-2.5", "quiz-2.9")
@given(st.integers(0, 10_000), st.integers(-200, 200), st.sampled_from([2, 6, 14]))
@settings(deadline=None, max_examples=25)
def test_a_shift_is_a_rotation_that_depends_on_the_shift_alone(position, shift, dim):
    positions = SinusoidalPositions(dim)
    start = max(position, -shift)
    code, moved = (
        positions.codes(1, start=start),
        positions.codes(1, start=start + shift),
    )
    rotation = positions.shift_matrix(shift)
    assert torch.allclose(code @ rotation.T, moved, rtol=0, atol=1e-10)
    assert torch.allclose(rotation @ rotation.T, torch.eye(dim, dtype=F64))


@pytest.mark.question("quiz-2.5", "quiz-2.9")
def test_no_code_is_a_linear_function_of_its_position():
    codes = SinusoidalPositions(6).codes(3)
    # Were P(t) = t·a + b, second differences would vanish.
    assert (codes[0] - 2 * codes[1] + codes[2]).abs().max() > 0.1


@pytest.mark.question("eecs-1e")
def test_products_of_sinusoidal_codes_depend_on_the_distance_alone():
    codes = SinusoidalPositions(14).codes(29)
    products = codes @ codes.T
    for distance in range(29):
        diagonal = products.diagonal(distance)
        assert torch.allclose(diagonal, diagonal[:1].expand_as(diagonal), atol=1e-12)
    assert torch.allclose(products.diagonal(), torch.full((29,), 7.0, dtype=F64))


@pytest.mark.question("eecs-1e")
def test_wavelengths_grow_geometrically_but_never_reach_the_base():
    positions = SinusoidalPositions(512)
    wavelengths = 2 * math.pi / positions.frequencies()
    assert wavelengths[0].item() == pytest.approx(2 * math.pi)
    assert wavelengths[-1].item() == pytest.approx(2 * math.pi * 10_000 ** (510 / 512))
    assert wavelengths[-1] < 2 * math.pi * 10_000
    ratios = wavelengths[1:] / wavelengths[:-1]
    assert torch.allclose(ratios, ratios[:1].expand_as(ratios))
    # Counting k from one instead reaches the far end, but then not the near one.
    from_one = [2 * math.pi * 10_000 ** (2 * k / 512) for k in (1, 256)]
    assert from_one[0] > 2 * math.pi
    assert from_one[1] == pytest.approx(2 * math.pi * 10_000)


def test_sinusoidal_codes_are_exact_at_a_million():
    found = SinusoidalPositions(2).codes(1, start=10**6)
    assert found[0, 0].item() == pytest.approx(math.sin(1e6), abs=1e-9)


@pytest.mark.question("eecs-1e")
def test_one_hot_codes_are_orthonormal_and_concatenated():
    x = torch.randn(2, 3, 5, dtype=F64)
    joined = OneHotPositions(7)(x, start=2)
    assert torch.equal(joined[..., :5], x)
    assert torch.equal(joined[0, :, 5:], torch.eye(7, dtype=F64)[2:5])


@pytest.mark.question("eecs-1e")
def test_a_learnt_table_is_a_one_hot_code_followed_by_a_linear_map():
    learned = LearnedPositions(7, 5, dtype=F64)
    one_hot = OneHotPositions(7).codes(7)
    assert torch.equal(one_hot @ learned.table, learned.codes(7))


def test_a_learnt_position_that_never_occurs_gets_no_gradient():
    learned = LearnedPositions(7, 5)
    learned(torch.randn(2, 3, 5)).square().sum().backward()
    assert learned.table.grad is not None
    assert (learned.table.grad[:3] != 0).all()
    assert (learned.table.grad[3:] == 0).all()


@pytest.mark.parametrize("combine", ["add", "concatenate"])
@pytest.mark.parametrize(
    "make",
    [
        lambda combine: SinusoidalPositions(6, combine=combine),
        lambda combine: LearnedPositions(11, 6, combine=combine),
    ],
)
def test_pieces_of_a_sequence_get_the_codes_of_the_whole(make, combine):
    positions = make(combine)
    x = torch.randn(2, 7, 6)
    pieces = [positions(x[:, :3]), positions(x[:, 3:], start=3)]
    assert torch.equal(torch.cat(pieces, dim=1), positions(x))
    added = combine == "add"
    assert positions(x).shape == (2, 7, 6 if added else 12)
    codes = positions.codes(7).float()
    expected = x + codes if added else torch.cat([x, codes.expand(2, 7, 6)], -1)
    assert torch.allclose(positions(x), expected)


def test_two_dimensional_sines_encode_row_and_column_apart():
    codes = SinusoidalPositions2D(8, base=50.0).codes((3, 5))
    axis = SinusoidalPositions(4, base=50.0)
    for i in range(3):
        for j in range(5):
            assert torch.equal(codes[i, j, :4], axis.codes(3)[i])
            assert torch.equal(codes[i, j, 4:], axis.codes(5)[j])
    x = torch.randn(2, 3, 5, 8, dtype=F64)
    assert torch.equal(SinusoidalPositions2D(8, base=50.0)(x), x + codes)


@pytest.mark.question("quiz-2.7")
def test_a_learnt_grid_is_stretched_as_a_picture_would_be():
    positions = LearnedPositions2D((3, 4), 5, dtype=F64)
    table = rearrange(positions.cells.table, "(i j) p -> 1 p i j", i=3)
    for grid in ((6, 8), (2, 7), (3, 4)):
        expected = F.interpolate(table, size=grid, mode="bicubic", align_corners=False)
        found = positions.codes(grid)
        assert torch.allclose(
            found, rearrange(expected, "1 p i j -> i j p"), atol=1e-12
        )
    x = torch.randn(2, 6, 8, 5, dtype=F64)
    assert torch.equal(positions(x), x + positions.codes((6, 8)))


def test_stretching_keeps_rows_and_columns_apart():
    positions = LearnedPositions2D((3, 4), 2, dtype=F64)
    with torch.no_grad():
        rows, columns = torch.meshgrid(torch.arange(3), torch.arange(4), indexing="ij")
        positions.cells.table.copy_(torch.stack([rows.flatten(), columns.flatten()], 1))
    codes = positions.codes((6, 4))
    assert (codes[1:, :, 0] > codes[:-1, :, 0]).all()
    assert torch.allclose(codes[:, :, 1], torch.arange(4.0, dtype=F64).expand(6, 4))


def test_relative_bias_depends_on_the_clipped_distance():
    relative = RelativePositionBias(heads=2, max_distance=3)
    with torch.no_grad():
        relative.table.normal_()
    for queries, keys in ((5, 5), (2, 7), (7, 2)):
        bias = relative(queries, keys)
        assert bias.shape == (2, queries, keys)
        for i in range(queries):
            for j in range(keys):
                distance = j - (i + keys - queries)
                column = 3 + max(-3, min(3, distance))
                assert torch.equal(bias[:, i, j], relative.table[:, column])
    assert torch.equal(relative(5), relative(5, 5))


def test_a_relative_bias_commutes_with_shifts_where_an_absolute_code_does_not():
    layer = MultiHeadAttention(8, 2, dtype=F64)
    relative = RelativePositionBias(heads=2, max_distance=1, dtype=F64)
    with torch.no_grad():
        relative.table.copy_(torch.tensor([[0.0, 5, -60], [3, 1, -60]]))
    x = torch.randn(1, 9, 8, dtype=F64)
    bias = relative(6).masked_fill(torch.ones(6, 6).tril(-2).bool(), -math.inf)
    early, _ = layer(x[:, :6], bias=bias)
    late, _ = layer(x[:, 3:], bias=bias)
    # A token's output depends on itself and its neighbours alone, wherever it stands.
    assert torch.allclose(early[:, 4:5], late[:, 1:2], atol=1e-12)
    absolute = SinusoidalPositions(8)
    early, _ = layer(absolute(x[:, :6]), bias=bias)
    late, _ = layer(absolute(x[:, 3:]), bias=bias)
    assert not torch.allclose(early[:, 4:5], late[:, 1:2], atol=1e-3)


@pytest.mark.question("nyu-1.3b")
def test_positions_break_the_symmetry_of_attention():
    x = torch.randn(7, 6, dtype=F64)
    shuffle = torch.randperm(7)
    plain, _ = attention(x, x, x)
    plain_shuffled, _ = attention(x[shuffle], x[shuffle], x[shuffle])
    assert torch.allclose(plain_shuffled, plain[shuffle])
    positions = SinusoidalPositions(6)
    coded, shuffled = positions(x), positions(x[shuffle])
    placed, _ = attention(coded, coded, x)
    placed_shuffled, _ = attention(shuffled, shuffled, x[shuffle])
    assert not torch.allclose(placed_shuffled, placed[shuffle], atol=1e-3)


@pytest.mark.parametrize("dim", range(1, 10))
def test_a_width_works_or_is_refused_at_construction(dim):
    if dim % 2:
        with pytest.raises(ValueError, match=rf"must be even .*, got {dim}\."):
            SinusoidalPositions(dim)
    else:
        assert SinusoidalPositions(dim).codes(3).shape == (3, dim)
    if dim % 4:
        with pytest.raises(ValueError, match=rf"multiple of 4, got {dim}\."):
            SinusoidalPositions2D(dim)
    else:
        assert SinusoidalPositions2D(dim).codes((2, 3)).shape == (2, 3, dim)


@pytest.mark.parametrize(
    "positions",
    [LearnedPositions(5, 4), OneHotPositions(5, combine="concatenate")],
    ids=["learned", "one-hot"],
)
def test_a_sequence_longer_than_the_table_is_refused_never_cut(positions):
    assert positions(torch.zeros(2, 5, 4)).shape[1] == 5
    with pytest.raises(ValueError, match=r"codes for 5 positions, .* up to 6"):
        positions(torch.zeros(2, 6, 4))
    with pytest.raises(ValueError, match=r"codes for 5 positions, .* up to 7"):
        positions(torch.zeros(2, 3, 4), start=4)


def test_a_new_encoding_must_say_what_its_codes_are():
    with pytest.raises(TypeError, match=r"PositionalEncoding must define codes"):
        PositionalEncoding(4)(torch.zeros(2, 3, 4))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_tokens_keep_their_type(dtype):
    for positions in (
        SinusoidalPositions(4),
        LearnedPositions(9, 4),
        OneHotPositions(9),
    ):
        assert positions(torch.zeros(2, 3, 4, dtype=dtype)).dtype == dtype


def test_representation_and_meta_codes():
    assert repr(SinusoidalPositions(4)) == "SinusoidalPositions(4, combine='add')"
    assert SinusoidalPositions(4).codes(3, device="meta").device.type == "meta"
    # Apple's GPUs have no float64; the type is chosen before anything is made there.
    from transformers_hw.positional_encoding import _exact

    assert _exact("mps") == torch.float32
    assert _exact(None) == torch.float64
