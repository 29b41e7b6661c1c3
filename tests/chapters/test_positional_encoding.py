"""Chapter 2 against formulas, rotations and PyTorch's resampling."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from bad_calls import assert_refused, bad_calls
from einops import rearrange
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.llama import modeling_llama
from transformers.models.t5.modeling_t5 import T5Attention

from transformers_hw import (
    LearnedPositions,
    LearnedPositions2D,
    MultiHeadAttention,
    RelativePositionBias,
    SelfAttention,
    SinusoidalPositions,
    SinusoidalPositions2D,
    attention_weights,
    dot_product_attention,
)
from transformers_hw._engine.kernels import exact_dtype
from transformers_hw.positional_encoding import (
    AxialPositions2D,
    BucketedPositions,
    OneHotPositions,
    PositionalEncoding,
    RotaryPositions,
    RotaryPositions2D,
    RotaryScaling,
    alibi_bias,
    alibi_slopes,
)

F64 = torch.float64
EXACT = {"rtol": 0.0, "atol": 1e-12}


def tokens(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=F64)


# Sinusoids


@pytest.mark.question("eecs-1e", "quiz-2.9")
def test_sinusoidal_encodings_follow_the_papers_formula():
    """Sinusoidal encodings agree with the paper's formula, entry by entry."""
    table = SinusoidalPositions(6, base=100.0).embeddings(11)
    for position in range(11):
        for i in range(3):
            angle = position / 100.0 ** (2 * i / 6)
            assert table[position, 2 * i].item() == pytest.approx(math.sin(angle))
            assert table[position, 2 * i + 1].item() == pytest.approx(math.cos(angle))


@pytest.mark.question("quiz-2.5", "quiz-2.9")
@given(st.integers(0, 10_000), st.integers(-200, 200), st.sampled_from([2, 6, 14]))
@settings(deadline=None, max_examples=25)
def test_a_shift_is_a_rotation_that_depends_on_the_shift_alone(position, shift, dim):
    """One rotation moves the encoding of any position by a given offset."""
    positions = SinusoidalPositions(dim)
    start = max(position, -shift)
    encoding = positions.embeddings(1, start=start)
    moved = positions.embeddings(1, start=start + shift)
    rotation = positions.shift_matrix(shift)
    assert torch.allclose(encoding @ rotation.T, moved, rtol=0, atol=1e-10)
    assert torch.allclose(rotation @ rotation.T, torch.eye(dim, dtype=F64))


@pytest.mark.question("eecs-1e")
def test_products_of_sinusoidal_encodings_depend_on_the_distance_alone():
    """The product of two encodings is the sum of cosines of their distance."""
    encodings = SinusoidalPositions(14).embeddings(29)
    products = encodings @ encodings.T
    for distance in range(29):
        waves = [math.cos(distance / 10_000 ** (2 * i / 14)) for i in range(7)]
        diagonal = products.diagonal(distance)
        stated = torch.full_like(diagonal, sum(waves))
        assert torch.allclose(diagonal, stated, **EXACT)


@pytest.mark.question("eecs-1e")
def test_wavelengths_grow_geometrically_but_never_reach_the_base():
    """Counted from 0, wavelengths start at 2π and end short of 10000·2π."""
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


@pytest.mark.question("quiz-2.5")
@pytest.mark.parametrize("start", [0, 100_000])
def test_one_matrix_lets_every_position_find_the_one_three_positions_back(start):
    """One matrix finds the position three back, even at position 100,000."""
    positions = SinusoidalPositions(16)
    encodings = positions.embeddings(50, start=start)
    query = encodings @ positions.shift_matrix(-3).T
    weights = attention_weights(query, encodings, scale=math.inf)
    assert torch.equal(weights[3:].argmax(-1), torch.arange(47))
    assert (weights[3:].amax(-1) == 1).all()
    best = (query @ encodings.T).diagonal(-3)
    assert torch.allclose(best, torch.full_like(best, 8.0), rtol=0, atol=1e-9)


@pytest.mark.question("quiz-2.5", "quiz-2.9")
def test_no_encoding_is_a_linear_function_of_its_position():
    """An encoding is not a linear function of its position."""
    encodings = SinusoidalPositions(6).embeddings(3)
    # Were P(t) = t·a + b, second differences would vanish.
    assert (encodings[0] - 2 * encodings[1] + encodings[2]).abs().max() > 0.1


@pytest.mark.question("quiz-2.5")
def test_shifts_compose_as_rotations_do():
    """Two shifts compose to the shift by their sum."""
    positions = SinusoidalPositions(14)
    twice = positions.shift_matrix(5) @ positions.shift_matrix(-2)
    assert torch.allclose(twice, positions.shift_matrix(3), **EXACT)
    assert torch.equal(positions.shift_matrix(-5), positions.shift_matrix(5).T)


@pytest.mark.question("quiz-2.5")
def test_a_periodic_encoding_that_is_not_a_sinusoid_has_no_shift_matrix():
    """Zigzags are periodic, and no matrix shifts them."""

    def best_error(encodings: Tensor) -> float:
        fitted = torch.linalg.lstsq(encodings[:-1], encodings[1:]).solution
        return (encodings[:-1] @ fitted - encodings[1:]).abs().max().item()

    angle = torch.arange(60, dtype=F64)
    sines = torch.stack([angle.sin(), angle.cos()], -1)
    # Zigzags of the same period: arcsin of the sine, arcsin of the cosine.
    zigzags = sines.asin()
    assert best_error(sines) < 1e-12
    assert best_error(zigzags) > 0.1


@pytest.mark.question("quiz-2.5")
def test_no_two_of_the_first_five_thousand_positions_have_nearly_the_same_encoding():
    """The encodings of the first 5,000 positions are well apart."""
    encodings = SinusoidalPositions(512).embeddings(5_000)
    # Distances depend on the difference of positions alone: compare all with the first.
    assert (encodings[1:] - encodings[0]).norm(dim=-1).min() > 1.0
    # One pair alone almost returns: 710 is nearly 113 turns.
    first_pair = encodings[:, :2]
    assert 0 < (first_pair[710] - first_pair[0]).norm() < 1e-4


@pytest.mark.question("quiz-2.5", "eecs-1e")
def test_past_the_trained_length_sinusoids_have_encodings_and_a_table_has_none():
    """Past its end a table has no encoding; the sinusoids' formula goes on."""
    x = torch.zeros(1, 9, 6, dtype=F64)
    with pytest.raises(ValueError, match=r"embeddings for 7 positions"):
        LearnedPositions(7, 6, dtype=F64)(x)
    angles = [8 / 10_000 ** (2 * i / 6) for i in range(3)]
    expected = [f(angle) for angle in angles for f in (math.sin, math.cos)]
    assert SinusoidalPositions(6)(x)[0, 8].tolist() == pytest.approx(expected)


@pytest.mark.question("eecs-1e")
def test_a_dimension_keeps_one_frequency_over_all_positions():
    """Each pair of dimensions keeps one frequency over all positions."""
    positions = SinusoidalPositions(14)
    waves, omega = positions.embeddings(50), positions.frequencies()
    # Mixtures of sin ωt and cos ωt, and they alone: f(t+1) + f(t-1) = 2 cos(ω) f(t).
    factor = (2 * omega.cos()).repeat_interleave(2)
    assert torch.allclose(waves[2:] + waves[:-2], factor * waves[1:-1], atol=1e-12)
    assert len(set(omega.tolist())) == 7


@pytest.mark.question("eecs-1e")
def test_an_exponent_over_d_minus_two_would_attain_both_ends():
    """With the exponent 2i/(d − 2) the wavelengths attain both ends."""
    d, base = 512, 10_000
    wavelengths = [2 * math.pi * base ** (2 * i / (d - 2)) for i in range(d // 2)]
    assert wavelengths[0] == pytest.approx(2 * math.pi)
    assert wavelengths[-1] == pytest.approx(2 * math.pi * base)


@pytest.mark.question("eecs-1e")
def test_equal_frequencies_would_fill_only_two_dimensions():
    """If all pairs had one frequency, encodings would fill only two dimensions."""
    counted = torch.tensor([10_000 ** (-2 * k / (2 * k)) for k in range(1, 8)])
    angles = torch.outer(torch.arange(50, dtype=F64), counted.double())
    alike = torch.cat([angles.sin(), angles.cos()], -1)
    assert torch.linalg.matrix_rank(alike) == 2
    assert torch.linalg.matrix_rank(SinusoidalPositions(14).embeddings(5_000)) == 14


@pytest.mark.question("eecs-1e")
@pytest.mark.parametrize("far", [0, 1_000])
def test_rotated_queries_and_keys_have_scores_that_depend_on_the_distance(far):
    """Rotary scores equal complex multiplication and depend on the distance."""
    positions = SinusoidalPositions(6)
    query, key = tokens(6), tokens(6)
    asked, found = far + 7, far + 4
    turned = positions.shift_matrix(asked) @ query
    # A clock hand as a complex number: turning it multiplies by exp(iωt).
    sine, cosine = rearrange(query, "(i two) -> two i", two=2)
    omega = torch.tensor([10_000 ** (-2 * i / 6) for i in range(3)], dtype=F64)
    hand = torch.complex(cosine, sine) * torch.exp(1j * omega * asked)
    expected = rearrange([hand.imag, hand.real], "two i -> (i two)")
    assert torch.allclose(turned, expected, rtol=0, atol=1e-10)
    score = turned @ (positions.shift_matrix(found) @ key)
    by_distance = query @ (positions.shift_matrix(-3) @ key)
    assert torch.allclose(score, by_distance, rtol=0, atol=1e-10)


def test_sinusoidal_encodings_are_exact_at_a_million():
    found = SinusoidalPositions(2).embeddings(1, start=10**6)
    assert found[0, 0].item() == pytest.approx(math.sin(1e6), abs=1e-9)


# One-hot and learned positions


@pytest.mark.question("eecs-1e")
def test_one_hot_encodings_are_orthonormal_and_concatenated():
    """One-hot encodings are rows of the identity, set beside the tokens."""
    x = torch.randn(2, 3, 5, dtype=F64)
    joined = OneHotPositions(7)(x, start=2)
    assert torch.equal(joined[..., :5], x)
    assert torch.equal(joined[0, :, 5:], torch.eye(7, dtype=F64)[2:5])


@pytest.mark.question("eecs-1e")
def test_a_learned_table_is_a_one_hot_encoding_followed_by_a_linear_map():
    """A one-hot encoding times a matrix is a learned table."""
    learned = LearnedPositions(7, 5, dtype=F64)
    one_hot = OneHotPositions(7).embeddings(7)
    assert torch.equal(one_hot @ learned.weight, learned.embeddings(7))


@pytest.mark.question("eecs-1e")
def test_a_linear_map_of_token_and_one_hot_adds_a_learned_row_to_a_mapped_token():
    """A linear map of token and one-hot adds a learned row to a mapped token."""
    linear = nn.Linear(5 + 7, 3, bias=False, dtype=F64)
    for_token, for_position = linear.weight.split([5, 7], dim=1)
    x = tokens(2, 7, 5)
    found = linear(OneHotPositions(7)(x))
    assert torch.allclose(found, x @ for_token.T + for_position.T, **EXACT)


@pytest.mark.question("eecs-1e")
def test_what_a_one_hot_encoding_stands_for_is_learned_by_gradient_descent():
    """Gradient descent changes the column that a one-hot encoding picks."""
    linear = nn.Linear(7, 3, bias=False, dtype=F64)
    output = linear(OneHotPositions(7).embeddings(1, start=4))
    output.square().sum().backward()
    changed = linear.weight.grad.any(dim=0)
    assert changed.tolist() == [False] * 4 + [True] + [False] * 2


@pytest.mark.question("eecs-1e")
def test_concatenating_and_then_mapping_contains_adding():
    """A linear map of the concatenation can add token and encoding."""
    x = tokens(2, 5, 6)
    added = SinusoidalPositions(6, combine="add")(x)
    joined = SinusoidalPositions(6, combine="concatenate")(x)
    both = torch.cat([torch.eye(6, dtype=F64)] * 2)
    assert torch.allclose(joined @ both, added, **EXACT)


@pytest.mark.question("eecs-1e")
def test_one_hot_encodings_are_all_equally_far_apart_and_sinusoidal_ones_are_not():
    """One-hot encodings are equidistant; near sinusoidal ones are similar."""
    one_hot = OneHotPositions(11).embeddings(11)
    apart = torch.cdist(one_hot, one_hot)
    off_diagonal = apart[~torch.eye(11).bool()]
    assert torch.allclose(off_diagonal, torch.full_like(off_diagonal, math.sqrt(2)))
    encodings = SinusoidalPositions(48).embeddings(64)
    from_first = (encodings - encodings[0]).norm(dim=-1)
    assert (from_first[1:] > from_first[:1]).all()
    assert (from_first[2:6] > from_first[1:5]).all()
    # Near encodings are similar, but far ones do not differ ever more.
    assert (from_first[7:] < from_first[6:-1]).any()


@pytest.mark.question("eecs-1e")
def test_concatenated_one_hots_give_each_projection_a_table_of_its_own():
    """Concatenated one-hots give queries, keys and values separate tables."""
    one_hot, learned = OneHotPositions(20), LearnedPositions(20, 4, dtype=F64)
    free, tied = ([nn.Linear(n, 4, bias=False, dtype=F64) for _ in "qkv"]
                  for n in (20, 4))  # fmt: skip
    separate = torch.cat([to(one_hot.embeddings(20)) for to in free], -1)
    shared = torch.cat([to(learned.embeddings(20)) for to in tied], -1)
    assert torch.linalg.matrix_rank(separate) == 12
    assert torch.linalg.matrix_rank(shared) == 4


def test_a_learned_position_that_never_occurs_gets_no_gradient():
    learned = LearnedPositions(7, 5)
    learned(torch.randn(2, 3, 5)).square().sum().backward()
    assert learned.weight.grad is not None
    assert (learned.weight.grad[:3] != 0).all()
    assert (learned.weight.grad[3:] == 0).all()


@pytest.mark.parametrize("combine", ["add", "concatenate"])
@pytest.mark.parametrize("kind", ["sinusoidal", "learned"])
def test_pieces_of_a_sequence_get_the_embeddings_of_the_whole(kind, combine):
    sinusoidal = SinusoidalPositions(6, combine=combine)
    learned = LearnedPositions(11, 6, combine=combine, dtype=F64)
    positions = sinusoidal if kind == "sinusoidal" else learned
    x, encodings = tokens(2, 7, 6), positions.embeddings(7)
    pieces = [positions(x[:, :3]), positions(x[:, 3:], start=3)]
    assert torch.equal(torch.cat(pieces, dim=1), positions(x))
    joined = torch.cat([x, encodings.expand(2, 7, 6)], dim=-1)
    assert torch.equal(positions(x), x + encodings if combine == "add" else joined)


@pytest.mark.parametrize(
    "positions",
    [LearnedPositions(5, 4), OneHotPositions(5, combine="concatenate")],
    ids=["learned", "one-hot"],
)
def test_a_sequence_longer_than_the_table_is_refused_never_cut(positions):
    assert positions(torch.zeros(2, 5, 4)).shape[1] == 5
    with pytest.raises(ValueError, match=r"embeddings for 5 positions, .* up to 6"):
        positions(torch.zeros(2, 6, 4))
    with pytest.raises(ValueError, match=r"embeddings for 5 positions, .* up to 7"):
        positions(torch.zeros(2, 3, 4), start=4)


# Grids and distances


def test_two_dimensional_sines_encode_row_and_column_apart():
    positions = SinusoidalPositions2D(8, base=50.0)
    encodings = positions.embeddings((3, 5))
    axis = SinusoidalPositions(4, base=50.0)
    for i in range(3):
        for j in range(5):
            assert torch.equal(encodings[i, j, :4], axis.embeddings(3)[i])
            assert torch.equal(encodings[i, j, 4:], axis.embeddings(5)[j])
    x = tokens(2, 3, 5, 8)
    assert torch.equal(positions(x), x + encodings)


@pytest.mark.question("quiz-2.7")
def test_a_learned_grid_is_stretched_as_an_image_would_be():
    positions = LearnedPositions2D((3, 4), 5, dtype=F64)
    table = rearrange(positions.weight, "i j p -> 1 p i j")
    for grid in ((6, 8), (2, 7), (3, 4)):
        expected = F.interpolate(table, size=grid, mode="bicubic", align_corners=False)
        expected = rearrange(expected, "1 p i j -> i j p")
        assert torch.allclose(positions.embeddings(grid), expected, **EXACT)
    x = tokens(2, 6, 8, 5)
    assert torch.equal(positions(x), x + positions.embeddings((6, 8)))


@pytest.mark.question("eecs-1e")
def test_relative_bias_depends_on_the_clipped_distance():
    """A relative bias depends on the clipped distance alone."""
    relative = RelativePositionBias(heads=2, max_distance=3)
    with torch.no_grad():
        relative.weight.normal_()
    for queries, keys in ((5, 5), (2, 7), (7, 2)):
        bias = relative(queries, keys)
        assert bias.shape == (2, queries, keys)
        for i in range(queries):
            for j in range(keys):
                distance = j - (i + keys - queries)
                column = 3 + max(-3, min(3, distance))
                assert torch.equal(bias[:, i, j], relative.weight[:, column])
    assert torch.equal(relative(5), relative(5, 5))


def test_a_relative_bias_commutes_with_shifts_where_an_absolute_encoding_does_not():
    layer = MultiHeadAttention(8, 2, dtype=F64)
    relative = RelativePositionBias(heads=2, max_distance=1, dtype=F64)
    with torch.no_grad():
        relative.weight.copy_(torch.tensor([[0.0, 5, -60], [3, 1, -60]]))
    x = tokens(1, 9, 8)
    bias = relative(6).masked_fill(torch.ones(6, 6).tril(-2).bool(), -math.inf)
    early = layer(x[:, :6], bias=bias)
    late = layer(x[:, 3:], bias=bias)
    # A token's output depends on itself and its neighbors alone, wherever it stands.
    assert torch.allclose(early[:, 4:5], late[:, 1:2], **EXACT)
    absolute = SinusoidalPositions(8)
    early = layer(absolute(x[:, :6]), bias=bias)
    late = layer(absolute(x[:, 3:]), bias=bias)
    assert not torch.allclose(early[:, 4:5], late[:, 1:2], atol=1e-3)


@pytest.mark.parametrize("dim", range(1, 10))
def test_a_width_works_or_is_refused_at_construction(dim):
    if dim % 2:
        with pytest.raises(ValueError, match=rf"must be even .*, got {dim}\."):
            SinusoidalPositions(dim)
    else:
        assert SinusoidalPositions(dim).embeddings(3).shape == (3, dim)
    if dim % 4:
        with pytest.raises(ValueError, match=rf"multiple of 4, got {dim}\."):
            SinusoidalPositions2D(dim)
    else:
        assert SinusoidalPositions2D(dim).embeddings((2, 3)).shape == (2, 3, dim)


# When positions are needed


def permuted_gap(layer: Callable[[Tensor], Tensor]) -> float:
    """Return how far a function of five tokens is from commuting with permutations."""
    x = tokens(1, 5, 6)
    plain = layer(x)
    gaps = [
        (layer(x[:, list(order)]) - plain[:, list(order)]).abs().max().item()
        for order in itertools.permutations(range(5))
    ]
    return max(gaps)


@pytest.mark.question("nyu-1.3b")
def test_self_attention_commutes_with_every_permutation():
    """Two layers of self-attention commute with all permutations, to 1e-12."""
    first, second = (SelfAttention(6, heads=2, dtype=F64) for _ in range(2))
    assert permuted_gap(lambda x: second(first(x).relu())) < 1e-12


@pytest.mark.question("nyu-1.3b")
def test_masks_convolutions_and_recurrence_supply_order():
    """A causal or banded mask, a convolution and a recurrence break the symmetry."""
    layer = SelfAttention(6, heads=2, dtype=F64)
    stem = nn.Conv1d(6, 6, kernel_size=3, padding=1, dtype=F64)
    recurrent = nn.GRU(6, 6, batch_first=True, dtype=F64)
    offset = torch.arange(5)[:, None] - torch.arange(5)
    band, itself = offset.abs() <= 1, offset == 0
    assert torch.equal(band, band.T)
    breaking = {
        "causal": lambda x: layer(x, causal=True),
        "banded": lambda x: layer(x, mask=band),
        "convolution": lambda x: layer(stem(x.mT).mT),
        "recurrence": lambda x: layer(recurrent(x)[0]),
    }
    for name, function in breaking.items():
        assert permuted_gap(function) > 1e-2, name
    # These masks treat all tokens alike, and all pairs of different tokens.
    for mask in (itself, ~itself):
        assert permuted_gap(lambda x, mask=mask: layer(x, mask=mask)) < 1e-12


@pytest.mark.question("nyu-1.3b")
def test_a_prediction_that_depends_on_order_is_out_of_reach_without_positions():
    """Who bites whom can be read from pooled outputs only with positions."""
    dog, bites, man = tokens(3, 6)
    headlines = torch.stack([torch.stack([dog, bites, man]),
                             torch.stack([man, bites, dog])])  # fmt: skip
    plain = SelfAttention(6, heads=2, dtype=F64)
    placed = SelfAttention(6, heads=2, positions=SinusoidalPositions(6), dtype=F64)
    news = torch.tensor([[0.0], [1.0]], dtype=F64)
    pooled = plain(headlines).mean(1)
    assert torch.allclose(pooled[0], pooled[1], **EXACT)
    fitted = torch.linalg.lstsq(placed(headlines).mean(1), news).solution
    predicted = placed(headlines).mean(1) @ fitted
    assert torch.allclose(predicted, news, atol=1e-6)


@pytest.mark.question("nyu-1.3b")
def test_positions_break_the_symmetry_of_attention():
    """With sinusoids added, attention no longer commutes with a permutation."""
    x = tokens(7, 6)
    shuffle = torch.randperm(7)
    plain = dot_product_attention(x, x, x)
    plain_shuffled = dot_product_attention(x[shuffle], x[shuffle], x[shuffle])
    assert torch.allclose(plain_shuffled, plain[shuffle])
    positions = SinusoidalPositions(6)
    coded, shuffled = positions(x), positions(x[shuffle])
    placed = dot_product_attention(coded, coded, x)
    placed_shuffled = dot_product_attention(shuffled, shuffled, x[shuffle])
    assert not torch.allclose(placed_shuffled, placed[shuffle], atol=1e-3)


@pytest.mark.question("nyu-1.3b")
def test_without_positions_equal_tokens_get_equal_outputs():
    """Without positions, equal tokens get equal outputs."""
    layer = SelfAttention(6, heads=2, dtype=F64)
    dog, bites = tokens(2, 6)
    x = torch.stack([dog, bites, dog])[None]
    said = layer(x)
    assert torch.allclose(said[0, 0], said[0, 2], **EXACT)
    coded = SelfAttention(6, heads=2, positions=SinusoidalPositions(6), dtype=F64)
    said = coded(x)
    assert (said[0, 0] - said[0, 2]).abs().max() > 0.01


@pytest.mark.question("nyu-1.3b")
def test_the_order_of_keys_never_matters_if_values_move_with_them():
    """The order of keys does not matter if values move with them."""
    query, key, value = (tokens(n, 7) for n in (5, 11, 11))
    order = torch.randperm(11)
    plain = dot_product_attention(query, key, value)
    shuffled = dot_product_attention(query, key[order], value[order])
    assert torch.allclose(shuffled, plain, **EXACT)


@pytest.mark.question("nyu-1.3b")
def test_one_causal_layer_reads_a_bag_of_earlier_tokens_and_two_read_their_order():
    """One causal layer reads a bag of earlier tokens; two read their order."""
    first, second = (SelfAttention(6, heads=2, dtype=F64) for _ in range(2))
    x = tokens(1, 7, 6)
    one, one_shuffled = (
        first(t, causal=True) for t in (x, x[:, [3, 1, 5, 0, 2, 4, 6]])
    )
    two, two_shuffled = (second(t, causal=True) for t in (one, one_shuffled))
    assert torch.allclose(one[:, -1], one_shuffled[:, -1], **EXACT)
    assert (two[:, -1] - two_shuffled[:, -1]).abs().max() > 1e-4


@pytest.mark.question("nyu-1.3b")
def test_a_causal_mask_counts_positions_only_from_a_token_that_differs():
    """A causal mask can count positions only from a token that differs."""
    layer = SelfAttention(6, heads=2, dtype=F64)
    alike = tokens(6).expand(1, 7, 6)
    output = layer(alike, causal=True)
    assert torch.allclose(output, output[:, :1].expand_as(output), **EXACT)
    # With uniform attention, position t (from 1) receives 1/t of a marked first token.
    marked = torch.zeros(7, 1, dtype=F64)
    marked[0] = 1.0
    received = dot_product_attention(marked, marked, marked, scale=0.0, causal=True)
    assert received[:, 0].tolist() == pytest.approx([1 / t for t in range(1, 8)])


@pytest.mark.question("nyu-1.3b")
def test_differences_decrease_neither_with_the_pair_nor_with_the_distance():
    """Differences of encodings fall neither with the pair nor with the distance."""
    encodings = SinusoidalPositions(64).embeddings(30)
    pairs = rearrange(encodings, "n (i two) -> n i two", two=2)
    for distance in range(1, 30):
        by_pair = (pairs[distance] - pairs[0]).norm(dim=-1)
        angles = [distance / 10_000 ** (2 * i / 64) for i in range(32)]
        stated = [2 * abs(math.sin(angle / 2)) for angle in angles]
        assert by_pair.tolist() == pytest.approx(stated, abs=1e-12)
        falls = bool((by_pair.diff() < 0).all())
        assert falls == (distance <= 3)
    by_distance = (encodings - encodings[0]).norm(dim=-1)
    assert by_distance[6] < by_distance[5]


# What is left


# Rotary positions, ALiBi and T5's buckets, against other people's programs


def llama_rotary(x: Tensor, start: int, **settings: object) -> Tensor:
    """Rotate queries or keys as Hugging Face's Llama does."""
    config = LlamaConfig(
        hidden_size=64, num_attention_heads=8, rope_parameters=settings
    )
    rotary = modeling_llama.LlamaRotaryEmbedding(config)
    positions = torch.arange(start, start + x.shape[-2])[None]
    cos, sin = rotary(x.double(), positions)
    return modeling_llama.apply_rotary_pos_emb(x, x, cos, sin)[0]


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({"rope_type": "default", "rope_theta": 500.0}, {"base": 500.0}),
        (
            {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0},
            {"scaling": RotaryScaling(3.0)},
        ),
        (
            {
                "rope_type": "llama3",
                "rope_theta": 1e4,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 40,
            },
            {"scaling": RotaryScaling(8.0, original_length=40)},
        ),
    ],
    ids=["plain", "linear", "llama3"],
)
def test_rotary_positions_are_llamas(settings, options):
    rotary = RotaryPositions(8, layout="halves", **options)
    x = torch.randn(2, 3, 11, 8)
    expected = llama_rotary(x, 5, **settings)
    expected = expected.to(x.dtype)
    assert torch.allclose(rotary(x, start=5), expected, rtol=0, atol=1e-5)


def test_the_two_layouts_pair_other_features_of_the_same_rotation():
    x = tokens(2, 5, 6)
    order = torch.tensor([0, 2, 4, 1, 3, 5])  # pairs to halves
    pairs = RotaryPositions(6)(x, start=3)
    halves = RotaryPositions(6, layout="halves")(x[..., order], start=3)
    assert torch.allclose(halves, pairs[..., order], **EXACT)


@given(st.integers(0, 10_000), st.integers(0, 50), st.sampled_from(["pairs", "halves"]))
@settings(deadline=None, max_examples=25)
def test_rotary_scores_depend_on_the_distance_alone(start, distance, layout):
    rotary = RotaryPositions(6, layout=layout)
    query, key = tokens(1, 8), tokens(1, 8)

    def score(at: int) -> Tensor:
        return rotary(query, start=at + distance) @ rotary(key, start=at).T

    assert torch.allclose(score(start), score(0), rtol=0, atol=1e-9)
    turned = rotary(query, start=start)
    assert torch.allclose(turned.norm(), query.norm())
    assert torch.equal(turned[:, 6:], query[:, 6:])  # beyond dim, features stay
    positions = torch.tensor([start])
    assert torch.equal(rotary(query, positions=positions), turned)


def test_rotary_scores_on_a_grid_depend_on_both_offsets_alone():
    rotary, query, key = RotaryPositions2D(8), tokens(8), tokens(8)
    rows, columns = 5, 7
    everywhere = torch.stack([query] * (rows * columns + 1))
    queries = rotary(everywhere, (rows, columns))
    keys = rotary(torch.stack([key] * (rows * columns + 1)), (rows, columns))
    assert torch.equal(queries[0], query)  # a class token stays as it is
    scores = rearrange(
        queries[1:] @ keys[1:].T, "(i j) (k l) -> i j k l", i=rows, k=rows
    )
    # One row further down and one column to the right, both of them.
    here, there = scores[:-1, :-1, :-1, :-1], scores[1:, 1:, 1:, 1:]
    assert torch.allclose(here, there, **EXACT)
    assert not torch.allclose(scores[0, 0, 1, 2], scores[0, 0, 2, 1])
    # Each half is a line's rotation: the first by the row, the second by the column.
    line = RotaryPositions(4)
    by_row = line(query[None, :4], start=2)[0]
    by_column = line(query[None, 4:], start=3)[0]
    found = queries[1 + 2 * columns + 3]
    assert torch.allclose(found, torch.cat([by_row, by_column]), **EXACT)


@pytest.mark.parametrize("heads", [1, 2, 3, 8, 12, 20])
def test_the_slopes_of_alibi_are_blooms(heads):
    mask = torch.ones(1, 5)
    theirs = build_alibi_tensor(mask, heads, torch.float32)[:, 0, :]
    ours = alibi_slopes(heads)[:, None] * torch.arange(5)
    assert torch.allclose(ours.float(), theirs, rtol=1e-6)


def test_alibi_lowers_scores_by_the_distance_times_the_slope():
    bias = alibi_bias(4, 3, 5)
    for h, i, j in itertools.product(range(4), range(3), range(5)):
        assert bias[h, i, j] == -(2.0 ** (-2 * (h + 1))) * abs(j - (i + 2))
    query, key = tokens(4, 3, 6), tokens(4, 5, 6)
    weights = attention_weights(query, key, bias=bias)
    scores = query @ key.mT / math.sqrt(6) + bias
    assert torch.allclose(weights, scores.softmax(-1), **EXACT)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("buckets", "distance"), [(32, 128), (8, 20), (6, 50)])
def test_buckets_are_t5s(buckets, distance, causal):
    positions = BucketedPositions(
        3, buckets=buckets, max_distance=distance, causal=causal
    )
    ahead = torch.arange(-300, 301)
    theirs = T5Attention._relative_position_bucket(ahead, not causal, buckets, distance)
    found = positions.bucket(ahead)
    # Where the logarithm meets an integer, float32 may round either way.
    assert (found != theirs).sum() <= 2
    assert ((found - theirs).abs() <= 1).all()
    bias = positions(4, 6)
    expected = positions.weight[positions.bucket(torch.tensor(5 - 3))]
    assert torch.equal(bias[:, 3, 5] * 0 + bias[:, 1, 5], expected)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64])
def test_the_farthest_keys_share_the_last_bucket(dtype, causal):
    positions = BucketedPositions(3, buckets=8, max_distance=20, causal=causal)
    limits = torch.iinfo(dtype)
    ahead = torch.tensor([limits.min, limits.max, -3, 0, 3], dtype=dtype)
    theirs = T5Attention._relative_position_bucket(
        torch.tensor([-1000, 1000, -3, 0, 3]), not causal, 8, 20
    )
    assert torch.equal(positions.bucket(ahead), theirs)


def test_an_encoding_shows_its_width_and_suits_its_device():
    shown = repr(SinusoidalPositions(4, base=100.0))
    assert shown == "SinusoidalPositions(4, combine='add', base=100)"
    assert SinusoidalPositions(4).embeddings(3, device="meta").device.type == "meta"
    # Apple's GPUs have no float64; the type is chosen before anything is made there.
    assert exact_dtype("mps") == torch.float32
    assert exact_dtype(None) == torch.float64


@pytest.mark.unhooked
@bad_calls(
    ("no width", lambda: SinusoidalPositions(0),
     ValueError, "dim must be a positive integer, got 0."),
    ("a base of zero", lambda: SinusoidalPositions(6, base=0.0),
     ValueError, "base must be positive and finite, got 0.0."),
    ("an unknown way to combine", lambda: SinusoidalPositions(6, combine="multiply"),
     ValueError, "combine must be one of ('add', 'concatenate'), got 'multiply'."),
    ("tokens of another width", lambda: SinusoidalPositions(6)(torch.zeros(5, 11)),
     ValueError, "tokens must be 6 wide to add embeddings … got shape (5, 11)."),
    ("a sequence for a grid", lambda: SinusoidalPositions2D(8)(torch.zeros(5, 8)),
     ValueError, "x must be (..., rows, columns, d), got shape (5, 8)."),
    ("a negative start", lambda: SinusoidalPositions(6).embeddings(5, start=-1),
     ValueError, "start must be a nonnegative integer, got -1."),
    ("a grid of three numbers", lambda: LearnedPositions2D((2, 3, 5), 7),
     ValueError, "grid must be one integer or two, got (2, 3, 5)."),
    ("no grid", lambda: AxialPositions2D((2, 3), 6).embeddings(2.5),
     ValueError, "grid must be one integer or two, got 2.5."),
    ("a grid without rows", lambda: LearnedPositions2D((2, 3), 7).embeddings((0, 3)),
     ValueError, "grid height must be a positive integer, got 0."),
    ("half embeddings of an odd width", lambda: AxialPositions2D((2, 3), 7),
     ValueError, "dim must be positive and even, got 7."),
    ("no distance", lambda: RelativePositionBias(2, 0),
     ValueError, "max_distance must be a positive integer, got 0."),
    ("no embeddings", lambda: PositionalEncoding(4)(torch.zeros(2, 3, 4)),
     TypeError, "PositionalEncoding must define embeddings(length, *, start), asked"),
)  # fmt: skip
def test_malformed_calls_get_clear_errors(call, error, message):
    assert_refused(call, error, message)
