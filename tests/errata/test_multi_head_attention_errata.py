"""Chapter 3: what its source documents say otherwise, and why it does not hold."""

import math

import pytest
import torch
import torch.nn.functional as F
from einops import einsum, rearrange, repeat
from torch import Tensor, nn
from torch.testing import assert_close

from transformers_hw import (
    MultiHeadAttention,
    OneHotPositions,
    SelfAttention,
    attention,
    convolution_attention,
)

F64 = torch.float64
EXACT = {"rtol": 0.0, "atol": 1e-12}


def tokens(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=F64)


def side_by_side(layer: MultiHeadAttention, x: Tensor) -> tuple[Tensor, ...]:
    """The heads' outputs, before anything is made of them."""
    q, k, v = (
        rearrange(projection(x), "b n (h d) -> b h n d", h=layer.heads)
        for projection in (layer.query_proj, layer.key_proj, layer.value_proj)
    )
    return attention(q, k, v)[0].unbind(dim=1)


# The output of h heads


@pytest.mark.question("nyu-1.2a")
def test_values_inside_the_softmax_are_not_averaged() -> None:
    # The claim: softmax((QKᵀ / √d) V), here with tokens in rows.
    Q, K = tokens(5, 3), tokens(7, 3)
    V = torch.full((7, 2), 100.0, dtype=F64)
    claimed = torch.softmax((Q @ K.T / math.sqrt(3)) @ V, dim=-1)
    assert_close(claimed.sum(dim=-1), torch.ones(5, dtype=F64), **EXACT)
    # Any average of equal values is that value.
    right = torch.softmax(Q @ K.T / math.sqrt(3), dim=-1) @ V
    assert_close(right, torch.full((5, 2), 100.0, dtype=F64), rtol=0.0, atol=1e-10)


@pytest.mark.question("nyu-1.2a")
def test_heads_without_projections_of_their_own_are_copies() -> None:
    x = tokens(2, 5, 4)
    layer = MultiHeadAttention(4, 3, head_dim=4, bias=False, dtype=F64)
    first, second, third = side_by_side(layer, x)
    assert (first - second).abs().max() > 0.1
    for projection in (layer.query_proj, layer.key_proj, layer.value_proj):
        projection.weight.data = torch.eye(4, dtype=F64).repeat(3, 1)
    first, second, third = side_by_side(layer, x)
    assert first.equal(second)
    assert first.equal(third)
    assert_close(first, F.scaled_dot_product_attention(x, x, x), **EXACT)


@pytest.mark.question("nyu-1.2a", "nyu-1.3a")
def test_only_the_output_projection_lets_heads_meet() -> None:
    x, layer = tokens(1, 5, 12), MultiHeadAttention(12, 3, bias=False, dtype=F64)

    def heads_behind(channel: Tensor) -> list[bool]:
        (seen,) = torch.autograd.grad(channel.sum(), layer.value_proj.weight)
        return rearrange(seen, "(h d) e -> h (d e)", h=3).any(dim=1).tolist()

    stacked = torch.cat(side_by_side(layer, x), dim=-1)
    assert heads_behind(stacked[..., 0]) == [True, False, False]
    assert heads_behind(layer(x)[0][..., 0]) == [True, True, True]


@pytest.mark.question("nyu-1.2b")
def test_by_offset_heads_are_groups_between_two_pointwise_convolutions() -> None:
    n, d, h = 7, 6, 3
    taps = torch.softmax(tokens(h, 3), dim=-1)
    layer = MultiHeadAttention(d, h, dtype=F64)
    nn.init.zeros_(layer.query_proj.weight)
    offset = torch.arange(n) - rearrange(torch.arange(n), "i -> i 1")
    window = offset.abs() <= 1
    bias = taps.log()[:, (offset + 1).clamp(0, 2)]
    x = tokens(2, n, d)
    found, _ = layer(x, mask=window, bias=bias)

    # One group a head: its channels share one kernel, and do not mix.
    channels = repeat(torch.eye(d // h, dtype=F64), "o i -> (h o) i", h=h)
    kernel = einsum(
        repeat(taps, "h tap -> (h o) tap", o=d // h), channels, "o tap, o i -> o i tap"
    )
    values = rearrange(layer.value_proj(x), "b n d -> b d n")
    mixed = rearrange(F.conv1d(values, kernel, groups=h), "b d n -> b n d")
    assert_close(found[:, 1:-1], layer.output_proj(mixed), **EXACT)


# The paper's two forms of attention


@pytest.mark.question("quiz-2.2")
def test_scaled_products_alone_are_scores_and_not_yet_attention() -> None:
    query, key, value = tokens(1, 5, 3), tokens(1, 7, 3), tokens(1, 7, 2)
    scores = query @ key.mT / math.sqrt(3)
    assert scores.shape == (1, 5, 7)
    assert scores.min() < 0
    output, weights = attention(query, key, value, return_weights=True)
    assert output.shape == (1, 5, 2)
    assert_close(weights, torch.softmax(scores, dim=-1), **EXACT)
    assert_close(output, torch.softmax(scores, dim=-1) @ value, **EXACT)


@pytest.mark.question("quiz-2.2")
def test_no_weighted_sum_of_heads_is_multi_head_attention() -> None:
    x, layer = tokens(2, 5, 4), MultiHeadAttention(4, 2, bias=False, dtype=F64)
    heads = side_by_side(layer, x)
    output, _ = layer(x)
    # What the layer does: concatenate, project. In other words, a matrix for each head.
    assert_close(output, layer.output_proj(torch.cat(heads, dim=-1)), **EXACT)
    matrices = layer.output_proj.weight.chunk(2, dim=1)
    summed = sum(head @ matrix.T for head, matrix in zip(heads, matrices, strict=True))
    assert_close(output, summed, **EXACT)
    # A sum with a number for each head is as wide as one head, not as the output.
    assert (0.3 * heads[0] + 0.7 * heads[1]).shape == (2, 5, 2)
    assert output.shape == (2, 5, 4)


@pytest.mark.question("quiz-2.2")
def test_even_heads_of_full_width_are_not_weighted_by_numbers() -> None:
    x = tokens(2, 5, 4)
    layer = MultiHeadAttention(4, 2, head_dim=4, bias=False, dtype=F64)
    heads = torch.stack([head.flatten() for head in side_by_side(layer, x)], dim=1)
    output = layer(x)[0].flatten()
    best = torch.linalg.lstsq(heads, output).solution
    missed = (heads @ best - output).norm() / output.norm()
    assert missed > 0.3


# What one head cannot do


@pytest.mark.question("eecs-2d")
@pytest.mark.parametrize("seed", range(5))
def test_however_it_looks_one_head_has_one_matrix_for_all_places(seed: int) -> None:
    torch.manual_seed(seed)
    n, d, here = 7, 3, 3
    head = SelfAttention(d, positions=OneHotPositions(n), dtype=F64)
    parts = head.attention
    W = parts.output_proj.weight @ parts.value_proj.weight[:, :d]
    u, height = tokens(d), 1e9
    # One token is large, all others are zero. The codes and biases are not scaled.
    for place in (here - 1, here + 1):
        x = torch.zeros(1, n, d, dtype=F64)
        x[0, place] = height * u
        found = head(x)[0][0, here] / height
        share = (found @ (W @ u)) / (W @ u).square().sum()
        assert_close(found, share * (W @ u), rtol=0.0, atol=1e-6)
        assert -1e-6 <= share <= 1 + 1e-6
    # The task asks for two vectors that are not multiples of one.
    wanted = torch.stack([tokens(d, d) @ u, tokens(d, d) @ u])
    assert torch.linalg.matrix_rank(wanted, rtol=1e-3) == 2


@pytest.mark.question("eecs-2d")
@pytest.mark.parametrize("agree", [True, False])
def test_the_least_error_of_a_head_that_knows_only_places(agree: bool) -> None:
    # Such a head gives aW to the one neighbour and bW to the other, with a, b ≥ 0.
    # For white tokens the expected error is ‖aW - W₁‖² + ‖bW - W₂‖².
    W1, W2 = tokens(3, 3), tokens(3, 3)
    if ((W1 * W2).sum() > 0) != agree:
        W2 = -W2
    angles = torch.linspace(0, math.pi / 2, 10_001, dtype=F64)
    a, b = angles.cos()[:, None, None], angles.sin()[:, None, None]
    best = a * W1 + b * W2  # least squares, as a² + b² = 1
    errors = (a * best - W1).square().sum((1, 2)) + (b * best - W2).square().sum((1, 2))
    singular_values = torch.linalg.svdvals(torch.stack([W1.flatten(), W2.flatten()]))
    smaller = min(W1.square().sum(), W2.square().sum())
    least = singular_values[1].square() if agree else smaller
    assert errors.min().item() == pytest.approx(least.item(), rel=1e-6)
    assert least >= singular_values[1].square() > 0.1


@pytest.mark.question("eecs-2d")
def test_a_head_that_sees_contents_and_codes_comes_near_on_small_tokens_only() -> None:
    # Tokens l and r on either side get scores ±εl and ±εr, and values
    # l(1, 1) ± (1, -1)/ε and r(1, 1) ∓ (1, -1)/ε. As ε vanishes, the weights tend to
    # a half, and the output to ½(l + r)(1, 1) + ½(l - r)(1, -1) = (l, r).
    n, eps = 8, 1e-6
    place = torch.arange(n)
    neighbours = (place - rearrange(place, "i -> i 1")).abs() == 1
    sign = torch.tensor([1.0, 1.0, -1.0, -1.0], dtype=F64).repeat(2)
    head = SelfAttention(
        1, positions=OneHotPositions(n), head_dim=n + 1, value_head_dim=2, output_dim=2,
        bias=False, scale=1.0, dtype=F64,
    )  # fmt: skip
    parts = head.attention
    with torch.no_grad():
        for projection in (parts.query_proj, parts.key_proj):
            projection.weight.zero_()
        parts.query_proj.weight[:n, 1:] = 60.0 * neighbours
        parts.query_proj.weight[n, 1:] = eps * sign.roll(1)
        parts.key_proj.weight[:n, 1:] = torch.eye(n)
        parts.key_proj.weight[n, 0] = 1.0
        parts.value_proj.weight[:, 0] = 1.0
        parts.value_proj.weight[:, 1:] = torch.stack([sign, -sign]) / eps
        parts.output_proj.weight.copy_(torch.eye(2))

    both = torch.tensor([[[1.0, 0.0, 0.0]], [[0.0, 0.0, 1.0]]], dtype=F64)
    two_heads = convolution_attention(both[..., ::2], length=n, dilation=2)
    small = torch.rand(3, n, 1, dtype=F64)
    for factor, nearest, furthest in ((1.0, 0.0, 1e-6), (1e9, 1e8, math.inf)):
        x = factor * small
        wanted = two_heads(x)[0][:, 1:-1]
        error = (head(x)[0][:, 1:-1] - wanted).abs().max()
        assert nearest <= error < furthest
