"""Chapter 1 against PyTorch, formulas, and computations by hand."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from bad_calls import assert_refused, bad_calls
from einops import einsum, rearrange
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.flop_counter import FlopCounterMode

from transformers_hw import (
    attention_weights,
    causal_mask,
    dot_product_attention,
    padding_mask,
    softmax,
)
from transformers_hw._engine import windows
from transformers_hw.attention import window_mask

F64 = torch.float64
EXACT = {"rtol": 0.0, "atol": 1e-12}


def queries_keys_values(*batch: int) -> list[Tensor]:
    """Five queries and eleven keys of width 7, values of width 13."""
    shapes = ((5, 7), (11, 7), (11, 13))
    return [torch.randn(*batch, *shape, dtype=F64) for shape in shapes]


def gauss_hermite(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights for the mean under a standard normal."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(count)
    return nodes, weights / math.sqrt(2 * math.pi)


def softmax_jacobian(scores: Tensor) -> Tensor:
    p = scores.softmax(-1)
    return torch.diag_embed(p) - einsum(p, p, "... i, ... j -> ... i j")


# Softmax


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0, 7.0])
def test_softmax_is_torchs_of_the_scaled_scores(beta):
    scores = torch.randn(2, 3, 5, dtype=F64)
    expected = torch.softmax(beta * scores, dim=-1)
    assert torch.allclose(softmax(scores, beta), expected, rtol=0, atol=1e-15)


def test_softmax_with_mask_and_bias_follows_its_formula():
    scores = torch.randn(3, 5, dtype=F64)
    bias = torch.randn(5, dtype=F64)
    mask = torch.tensor([[1, 1, 0, 1, 0]] * 3).bool()
    powers = mask * torch.exp(0.7 * scores + bias)
    expected = powers / powers.sum(-1, keepdim=True)
    found = softmax(scores, 0.7, mask=mask, bias=bias)
    assert torch.allclose(found, expected, rtol=0, atol=1e-15)


def test_an_infinite_scale_is_the_limit_of_large_beta():
    scores = torch.tensor([1.0, 3.0, 3.0, 2.0], dtype=F64)
    bias = torch.tensor([0.0, 0.5, -0.5, 9.0], dtype=F64)
    for b in (None, bias):
        limit = softmax(scores, math.inf, bias=b)
        assert torch.allclose(limit, softmax(scores, 200.0, bias=b), atol=1e-15)
    shares = softmax(scores, math.inf)
    assert shares.tolist() == [0.0, 0.5, 0.5, 0.0]


def test_an_infinite_scale_skips_hidden_entries_and_passes_nan_on():
    scores = torch.tensor([1.0, 9.0, 4.0])
    seen = torch.tensor([True, False, True])
    assert softmax(scores, math.inf, mask=seen).tolist() == [0, 0, 1]
    hidden = torch.tensor([0.0, -math.inf, 0.0])
    assert softmax(scores, math.inf, bias=hidden).tolist() == [0, 0, 1]
    scores[0] = math.nan
    assert softmax(scores, math.inf).isnan().any()


def test_an_infinite_scale_has_no_gradient_in_the_scores():
    scores = torch.randn(5, requires_grad=True)
    bias = torch.zeros(5, requires_grad=True)
    loss = softmax(scores, math.inf, bias=bias).square().sum()
    assert torch.autograd.grad(loss, scores, allow_unused=True) == (None,)


@given(st.integers(1, 7), st.sampled_from([0.0, 1.0, 30.0, math.inf]))
@settings(deadline=None, max_examples=25)
def test_weights_are_nonnegative_and_sum_to_one_or_to_zero(keys, beta):
    mask = torch.rand(11, keys) > 0.5
    weights = softmax(torch.randn(11, keys, dtype=F64), beta, mask=mask)
    assert (weights >= 0).all()
    assert torch.allclose(weights.sum(-1), mask.any(-1).to(F64))
    assert (weights[~mask] == 0).all()


# Attention against PyTorch

MASKS = {
    "none": None,
    "one for all": torch.rand(5, 11, generator=torch.Generator().manual_seed(1)) > 0.4,
    "by head": torch.rand(3, 5, 11, generator=torch.Generator().manual_seed(2)) > 0.4,
    "padding": rearrange(padding_mask(torch.tensor([11, 6])), "b k -> b 1 1 k"),
    "blind row": torch.ones(5, 11).bool().index_fill(0, torch.tensor([2]), False),
    "blind batch": torch.tensor([True, False]).view(2, 1, 1, 1),
}


@pytest.mark.question("nyu-1.1a")
@pytest.mark.parametrize("return_weights", [False, True])
@pytest.mark.parametrize("scale", [None, 0.0, 50.0])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_attention_matches_pytorch(mask, with_bias, scale, return_weights):
    """Output and gradients agree with PyTorch's to 1e-10, with masks and biases too."""
    qkv = [x.requires_grad_() for x in queries_keys_values(2, 3)]
    bias = torch.randn(5, 11, dtype=F64) if with_bias else None
    torch_mask = mask
    if bias is not None:
        torch_mask = bias if mask is None else bias.masked_fill(~mask, -math.inf)
    expected = F.scaled_dot_product_attention(*qkv, attn_mask=torch_mask, scale=scale)
    found = dot_product_attention(
        *qkv, mask=mask, bias=bias, scale=scale, return_weights=return_weights
    )
    assert isinstance(found, tuple) == return_weights
    found = found[0] if return_weights else found
    assert torch.allclose(found, expected, rtol=0, atol=1e-10)
    for ours, theirs in zip(
        torch.autograd.grad(found.sin().sum(), qkv),
        torch.autograd.grad(expected.sin().sum(), qkv),
        strict=True,
    ):
        assert ours.isfinite().all()
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-10)


@pytest.mark.parametrize("queries", [1, 3, 5, 8])
@pytest.mark.parametrize("return_weights", [False, True])
def test_causal_attention_aligns_the_last_query_with_the_last_key(
    queries, return_weights
):
    query = torch.randn(2, 3, queries, 7, dtype=F64)
    key = torch.randn(2, 3, 5, 7, dtype=F64)
    found = dot_product_attention(
        query, key, key, causal=True, return_weights=return_weights
    )
    found = found[0] if return_weights else found
    for i in range(queries):
        seen = key[..., : max(0, i + 6 - queries), :]
        alone = F.scaled_dot_product_attention(query[..., i : i + 1, :], seen, seen)
        assert torch.allclose(found[..., i : i + 1, :], alone, **EXACT)
    if queries == 5:
        expected = F.scaled_dot_product_attention(query, key, key, is_causal=True)
        assert torch.allclose(found, expected, **EXACT)


def test_weights_times_values_are_the_output():
    query, key, value = queries_keys_values(2)
    output, weights = dot_product_attention(
        query, key, value, causal=True, return_weights=True
    )
    assert torch.equal(output, einsum(weights, value, "b q k, b k v -> b q v"))
    assert torch.equal(weights, attention_weights(query, key, causal=True))


def test_dropout_drops_weights_and_keeps_the_mean():
    ones = torch.ones(1, 1, 1000, 4)
    for return_weights in (False, True):
        result = dot_product_attention(
            ones, ones, ones, dropout=0.25, return_weights=return_weights
        )
        output, *weights = result if return_weights else (result,)
        assert output.std() > 0
        assert abs(output.mean().item() - 1.0) < 0.01
        for w in weights:
            assert torch.allclose(w, torch.full_like(w, 1 / 1000))


# Masks


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (3, 3), (2, 5), (5, 2), (3, 0)])
def test_causal_mask_by_its_definition(queries, keys):
    mask = causal_mask(queries, keys)
    assert mask.shape == (queries, keys)
    for i in range(queries):
        for j in range(keys):
            assert mask[i, j].item() == (j <= i + keys - queries)
    assert torch.equal(causal_mask(queries), torch.ones(queries, queries).tril().bool())


def test_masks_are_made_where_they_are_needed():
    assert causal_mask(3, 5, device="meta").is_meta
    assert window_mask(3, 5, window=2, device="meta").is_meta
    query, key = (torch.zeros(2, n, 7, device="meta") for n in (3, 5))
    for return_weights in (False, True):
        found = dot_product_attention(
            query, key, key, causal=True, return_weights=return_weights
        )
        assert (found[0] if return_weights else found).shape == (2, 3, 7)
        near = dot_product_attention(
            query, key, key, window=2, return_weights=return_weights
        )
        assert (near[0] if return_weights else near).is_meta


def test_padding_mask_by_its_definition():
    mask = padding_mask(torch.tensor([2, 0, 3]), 4)
    expected = [[1, 1, 0, 0], [0] * 4, [1, 1, 1, 0]]
    assert mask.int().tolist() == expected
    assert padding_mask(torch.tensor([2, 3])).shape == (2, 3)
    assert padding_mask(torch.zeros(0, dtype=torch.int64), 3).shape == (0, 3)
    assert padding_mask(torch.zeros(0, dtype=torch.int64)).shape == (0, 0)


# The formula, and what beta does


@pytest.mark.question("nyu-1.1a")
def test_with_tokens_in_columns_the_output_is_V_softmax_of_K_transposed_Q():
    """The formula for tokens in columns agrees with the library's output to 1e-12."""
    d, n, m, t = 7, 5, 11, 13
    Q, K, V = (torch.randn(s, dtype=F64) for s in ((d, n), (d, m), (t, m)))
    H = V @ torch.softmax(K.T @ Q / math.sqrt(d), dim=0)
    assert H.shape == (t, n)
    assert torch.allclose(dot_product_attention(Q.T, K.T, V.T).T, H, **EXACT)


@pytest.mark.question("nyu-1.1a")
def test_Q_times_K_transposed_pairs_coordinates_when_tokens_are_columns():
    """With columns, Q times K transposed fails, or sums over the tokens."""
    d, n, m = 7, 5, 11
    Q, K = torch.randn(d, n, dtype=F64), torch.randn(d, m, dtype=F64)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        torch.matmul(Q, K.T)
    # With as many keys as queries it exists, and no token can be found in it: it stays
    # the same when the tokens change their order.
    K = K[:, :n]
    order = torch.tensor([3, 0, 4, 1, 2])
    table = Q @ K.T
    assert table.shape == (d, d)
    assert torch.allclose(table, Q[:, order] @ K[:, order].T, **EXACT)
    assert not torch.allclose(K.T @ Q, K[:, order].T @ Q[:, order])


@pytest.mark.question("quiz-2.2")
def test_attention_is_a_weighted_sum_of_values_not_of_scores():
    """The output is a sum of values, weighted by a softmax of the scores."""
    query, key, value = queries_keys_values()
    powers = (query @ key.T / math.sqrt(7)).exp()
    by_hand = (powers / powers.sum(-1, keepdim=True)) @ value
    assert torch.allclose(dot_product_attention(query, key, value), by_hand)


@pytest.mark.question("nyu-1.1b")
def test_beta_goes_from_averaging_all_values_to_selecting_one():
    """β = 0 averages all values, a large β selects one; the entropy falls between."""
    query, key, value = queries_keys_values()
    averaged = dot_product_attention(query, key, value, scale=0.0)
    assert torch.allclose(averaged, value.mean(0).expand(5, 13))
    selected = dot_product_attention(query, key, value, scale=1e4)
    assert torch.allclose(selected, value[(query @ key.T).argmax(-1)])
    # It is the weights that become one-hot, not the query; their entropy only falls.
    entropies = []
    for beta in (0.0, 0.1, 0.3, 1.0, 3.0):
        weights = attention_weights(query, key, scale=beta)
        entropies.append(torch.special.entr(weights).sum(-1))
    assert all((a > b).all() for a, b in itertools.pairwise(entropies))


@pytest.mark.question("nyu-1.1b")
@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0, 4.0])
def test_the_entropy_falls_at_the_rate_beta_times_the_variance_of_the_scores(beta):
    """The entropy falls at the rate β times the variance of the scores, to 1e-12."""
    scores = torch.randn(11, dtype=F64)
    b = torch.tensor(beta, dtype=F64, requires_grad=True)
    weights = softmax(b * scores)
    rate = torch.autograd.grad(torch.special.entr(weights).sum(), b)[0]
    mean = (weights * scores).sum()
    variance = (weights * (scores - mean) ** 2).sum()
    assert rate.item() == pytest.approx(-beta * variance.item(), abs=1e-12)


@pytest.mark.question("nyu-1.1b")
def test_the_weights_become_one_hot_and_the_values_are_combined():
    """The weights become one-hot, and the values are what is combined."""
    query, key, value = queries_keys_values()
    hard = attention_weights(query, key, scale=math.inf)
    assert hard.shape == (5, 11)
    assert torch.equal(hard, F.one_hot(hard.argmax(-1), 11).to(F64))
    for beta in (0.0, 0.1, 1.0, math.inf):
        output = dot_product_attention(query, key, value, scale=beta)
        # A combination of keys would be 7 wide, and would not double with the values.
        assert output.shape == (5, 13)
        doubled = dot_product_attention(query, key, 2 * value, scale=beta)
        assert torch.allclose(doubled, 2 * output, rtol=0, atol=1e-12)


@pytest.mark.question("nyu-1.1b")
def test_a_longer_query_does_what_a_larger_beta_does():
    """Making a query three times as long does the same as tripling β."""
    query, key, _ = queries_keys_values()
    longer = attention_weights(3 * query, key, scale=0.4)
    hotter = attention_weights(query, key, scale=3 * 0.4)
    assert torch.allclose(longer, hotter, **EXACT)


# Why to scale


@pytest.mark.question("nyu-1.1b", "quiz-2.3")
@pytest.mark.parametrize("d", [4, 64, 1024])
def test_dividing_by_the_root_of_d_gives_scores_of_variance_one(d):
    """Random scores have variance d, and variance 1 after division by the root of d."""
    query, key = torch.randn(4000, d), torch.randn(4000, d)
    products = (query * key).sum(-1)
    assert products.var().item() == pytest.approx(d, rel=0.1)
    assert (products / math.sqrt(d)).var().item() == pytest.approx(1.0, rel=0.1)


@pytest.mark.question("nyu-1.1b")
def test_queries_that_equal_their_keys_score_root_d_even_after_scaling():
    """A query that equals its key scores the root of d even after scaling."""
    # Not independent any more: the mean of q·k is d, not 0.
    x = torch.randn(2000, 256)
    scores = (x * x).sum(-1) / math.sqrt(256)
    assert scores.mean().item() == pytest.approx(math.sqrt(256), rel=0.01)


@pytest.mark.question("quiz-2.3")
def test_without_the_scale_a_typical_query_gets_no_gradient_and_a_rare_one_much():
    """Without the scale the median gradient at d = 1024 is below 1% of the scaled."""

    def gradients(beta: float) -> Tensor:
        query, key = torch.randn(400, 1, d), torch.randn(400, 11, d)
        jacobian = softmax_jacobian(beta * (query * key).sum(-1))
        return beta * (jacobian @ key).norm(dim=(1, 2))

    d = 1024
    plain, scaled = gradients(1.0), gradients(1 / math.sqrt(d))
    # The mean does not vanish: near-ties carry all of it.
    assert plain.mean() > scaled.mean()
    assert plain.median() < 0.01 * scaled.median()
    assert scaled.max() / scaled.min() < 10


@pytest.mark.question("quiz-2.3")
def test_without_the_scale_the_jacobian_of_softmax_shrinks_as_d_grows():
    """Without the scale, the mean Jacobian shrinks as d grows; with it, it stays."""

    def gradient_size(d: int, beta: float) -> float:
        products = (torch.randn(500, 1, d) * torch.randn(500, 11, d)).sum(-1)
        return softmax_jacobian(beta * products).norm(dim=(1, 2)).mean().item()

    unscaled = [gradient_size(d, 1.0) for d in (4, 64, 1024, 16384)]
    scaled = [gradient_size(d, d**-0.5) for d in (4, 64, 1024, 16384)]
    assert unscaled == sorted(unscaled, reverse=True)
    assert unscaled[-1] < 0.05 * unscaled[0]
    assert max(scaled) / min(scaled) < 1.2


@pytest.mark.question("quiz-2.3")
def test_high_scores_do_no_harm_and_wide_gaps_do():
    """Adding 1000 to all scores changes nothing; wide gaps remove the gradient."""
    scores = torch.randn(11, dtype=F64)
    calm = softmax_jacobian(scores)
    assert torch.allclose(softmax_jacobian(scores + 1000.0), calm, **EXACT)
    assert softmax_jacobian(200.0 * scores).norm() < 1e-6 * calm.norm()


@pytest.mark.question("quiz-2.3")
def test_multiplying_by_the_root_of_d_makes_matters_worse():
    """Multiplying by the root of d makes the gradient smaller still."""
    d = 256
    products = (torch.randn(500, 1, d) * torch.randn(500, 11, d)).sum(-1)
    divided, plain, multiplied = (
        softmax_jacobian(beta * products).norm(dim=(1, 2)).mean().item()
        for beta in (1 / math.sqrt(d), 1.0, math.sqrt(d))
    )
    assert divided > 2 * plain > 10 * multiplied


@pytest.mark.question("quiz-2.3")
def test_the_size_of_softmaxs_jacobian_follows_its_formula_and_bounds():
    """The norm of the Jacobian follows its formula and stays below both bounds."""
    scores = 3 * torch.randn(500, 11, dtype=F64)
    a = scores.softmax(-1)
    size = softmax_jacobian(scores).norm(dim=(1, 2))
    squares, cubes = a.square().sum(-1), a.pow(3).sum(-1)
    stated = (squares - 2 * cubes + squares**2).sqrt()
    assert torch.allclose(size, stated, rtol=0, atol=1e-10)
    assert (size <= 1 - squares + 1e-12).all()
    assert (1 - squares <= 2 * (1 - a.amax(-1)) + 1e-12).all()


@pytest.mark.question("quiz-2.3")
def test_at_the_papers_width_the_effect_depends_on_the_number_of_keys():
    """At d = 64 the scale enlarges the mean Jacobian for 16 keys, not for 64."""
    d = 64
    for keys, larger in ((16, "scaled"), (64, "plain")):
        products = (torch.randn(2000, 1, d) * torch.randn(2000, keys, d)).sum(-1)
        size = {
            name: softmax_jacobian(beta * products).norm(dim=(1, 2)).mean().item()
            for name, beta in (("scaled", 1 / math.sqrt(d)), ("plain", 1.0))
        }
        assert max(size, key=size.__getitem__) == larger
        assert max(size.values()) > 1.1 * min(size.values())


@pytest.mark.question("quiz-2.3")
def test_only_unscaled_dot_products_spread_more_and_more_as_the_width_grows():
    """Scaled and additive scores keep their variance at every width."""
    for d in (4, 64, 1024):
        query, key = torch.randn(4000, d), torch.randn(4000, d)
        products = (query * key).sum(-1)
        # Weights of variance 1/d, as at initialization.
        w_1, w_2 = torch.randn(2, d, d) / math.sqrt(d)
        w = torch.randn(d) / math.sqrt(d)
        additive = torch.tanh(query @ w_1 + key @ w_2) @ w
        assert products.var().item() == pytest.approx(d, rel=0.1)
        assert (products / math.sqrt(d)).var().item() == pytest.approx(1.0, rel=0.1)
        assert additive.var().item() < 2.0


# Preserving and averaging


@pytest.mark.question("nyu-1.1c")
def test_hard_attention_preserves_a_value_and_so_does_a_chosen_linear_layer():
    """Hard attention returns a value unchanged, and so does a linear layer."""
    query, key, value = queries_keys_values()
    output = dot_product_attention(query, key, value, scale=math.inf)
    assert torch.equal(output, value[(query @ key.T).argmax(-1)])
    # A fully connected layer on all values at once, stacked into one vector.
    j, (m, t) = 4, value.shape
    pick = torch.eye(m, dtype=F64)[j : j + 1]
    weight = torch.kron(pick, torch.eye(t, dtype=F64))
    assert torch.equal(F.linear(value.flatten(), weight), value[j])


@pytest.mark.question("nyu-1.1c")
@pytest.mark.parametrize("beta", [0.5, 2.0, 8.0, 32.0])
def test_what_soft_attention_loses_falls_exponentially_with_beta_times_the_gap(beta):
    """What a finite β gives to other keys stays below the stated exponential bound."""
    query, key, value = queries_keys_values()
    scores = query @ key.T
    best, second = scores.topk(2).values.unbind(-1)
    j = scores.argmax(-1)
    output, weights = dot_product_attention(
        query, key, value, scale=beta, return_weights=True
    )
    others = weights.clone().scatter_(1, j[:, None], 0.0).sum(-1)
    assert (others > 0).all()
    assert (others <= (11 - 1) * torch.exp(-beta * (best - second))).all()
    farthest = torch.cdist(value[j], value).amax(-1)
    assert ((output - value[j]).norm(dim=-1) <= others * farthest + 1e-12).all()


@pytest.mark.question("nyu-1.1c")
def test_a_value_is_exact_at_any_beta_if_the_others_average_to_it():
    """A value is preserved at every β if the other values average to it."""
    query, key = (
        torch.ones(1, 1, dtype=F64),
        torch.tensor([[2.0], [0.5], [0.5]]).to(F64),
    )
    value = torch.tensor([[1.0], [0.0], [2.0]], dtype=F64)
    for beta in (0.3, 1.0, 4.0):
        output, weights = dot_product_attention(
            query, key, value, scale=beta, return_weights=True
        )
        assert weights.max() < 1
        assert output.item() == pytest.approx(1.0, abs=1e-15)


@pytest.mark.question("nyu-1.1c")
def test_orthonormal_keys_and_long_queries_preserve_all_values():
    """Orthonormal keys and queries c times as long give back all values."""
    key = torch.linalg.qr(torch.randn(11, 11, dtype=F64)).Q
    value = torch.randn(11, 13, dtype=F64)
    order = torch.randperm(11)
    output = dot_product_attention(50 * key[order], key, value, scale=1.0)
    assert torch.allclose(output, value[order], rtol=0, atol=1e-12)
    # Fewer queries than keys cannot return every value.
    chosen = attention_weights(50 * key[:7], key, scale=math.inf).sum(0)
    assert (chosen == 0).sum() == 4


@pytest.mark.question("nyu-1.1c")
def test_the_softmax_of_the_scores_becomes_one_hot_and_the_scores_do_not():
    """As β grows the softmax becomes one-hot, and the scaled scores diverge."""
    query, key, _ = queries_keys_values()
    scores = query @ key.T
    assert (1000.0 * scores).abs().max() > 1000
    one_hot = F.one_hot(scores.argmax(-1), 11).to(F64)
    weights = attention_weights(query, key, scale=1000.0)
    assert torch.allclose(weights, one_hot, rtol=0, atol=1e-12)


@pytest.mark.question("nyu-1.1c")
def test_a_gate_preserves_a_state_and_a_plain_layer_needs_none():
    """A GRU with an open update gate keeps its state; it is not a linear map."""
    cell = torch.nn.GRUCell(3, 2, dtype=F64).requires_grad_(False)
    x, state = torch.randn(1, 3, dtype=F64), torch.full((1, 2), 5.0, dtype=F64)
    doubled = cell(2 * x, 2 * state) - 2 * cell(x, state)
    assert doubled.abs().max() > 0.01
    cell.bias_hh[2:4] = 1e3  # opens the update gate
    assert torch.equal(cell(x, state), state)
    # A plain layer does it with one fixed block of an identity.
    value = torch.randn(4, 2, dtype=F64)
    picked = torch.cat([torch.zeros(2, 4), torch.eye(2), torch.zeros(2, 2)], dim=1)
    assert torch.equal(F.linear(value.flatten(), picked.to(F64)), value[2])


@pytest.mark.question("nyu-1.1d")
def test_beta_zero_averages_and_so_does_a_chosen_linear_layer():
    """At β = 0 every output is the mean of the values, as of a linear layer."""
    query, key, value = queries_keys_values()
    output, weights = dot_product_attention(
        query, key, value, scale=0.0, return_weights=True
    )
    assert torch.equal(weights, torch.full_like(weights, 1 / 11))
    assert torch.linalg.matrix_rank(output) == 1
    m, t = value.shape
    weight = torch.kron(torch.full((1, m), 1 / m, dtype=F64), torch.eye(t, dtype=F64))
    assert torch.allclose(F.linear(value.flatten(), weight), output[0])


@pytest.mark.question("nyu-1.1d")
def test_a_sliding_kernel_of_equal_weights_averages_its_window_alone():
    """A sliding kernel of equal weights averages its window, not the sequence."""
    value = torch.randn(1, 13, 11, dtype=F64)
    mean = value.mean(-1)

    def running_mean(width: int) -> Tensor:
        kernel = torch.full((13, 1, width), 1 / width, dtype=F64)
        return F.conv1d(value, kernel, groups=13)

    narrow = running_mean(3)
    assert narrow.shape == (1, 13, 11 - 3 + 1)
    assert ((narrow - mean[..., None]).norm(dim=1) > 0.1).all()
    # As wide as the sequence, it fits in one position: a fully connected layer.
    assert torch.allclose(running_mean(11)[..., 0], mean, **EXACT)


@pytest.mark.question("nyu-1.1d")
def test_equal_scores_spread_evenly_at_every_beta():
    """Keys that differ at right angles to the query are averaged at every β."""
    query, key, value = queries_keys_values()
    # Keys that differ only across the queries cannot be told apart by them.
    query[:, 3:] = 0.0
    key[:, :3] = key[0, :3]
    for beta in (0.0, 1.0, 1e3, math.inf):
        output = dot_product_attention(query, key, value, scale=beta)
        assert torch.allclose(output, value.mean(0).expand(5, 13), rtol=0, atol=1e-10)


@pytest.mark.question("nyu-1.1d")
def test_near_beta_zero_a_weight_leaves_the_mean_as_its_score_does():
    """Close to β = 0 the weights follow the first-order formula."""
    scores = torch.randn(11, dtype=F64)
    for beta in (1e-2, 1e-3):
        stated = (1 + beta * (scores - scores.mean())) / 11
        error = (softmax(scores, beta) - stated).abs().max()
        assert error < beta**2


# A key that moves


@pytest.mark.question("nyu-1.1e")
def test_a_moved_key_changes_one_score_per_query_and_the_output_exactly_so():
    """A moved key changes one score per query; the exact law holds to 1e-12."""
    query, key, value = queries_keys_values()
    beta, j = 0.4, 3
    noise = torch.zeros_like(key)
    noise[j] = torch.randn(7, dtype=F64)
    change = query @ (key + noise).T - query @ key.T
    others = torch.arange(11) != j
    assert (change[:, others] == 0).all()
    assert torch.allclose(change[:, j], query @ noise[j])

    weights = attention_weights(query, key, scale=beta)[:, j]
    without = dot_product_attention(query, key[others], value[others], scale=beta)
    moved = torch.sigmoid(torch.logit(weights) + beta * query @ noise[j])
    stated = without + rearrange(moved, "q -> q 1") * (value[j] - without)
    found = dot_product_attention(query, key + noise, value, scale=beta)
    assert torch.allclose(found, stated, **EXACT)


@pytest.mark.question("nyu-1.1e")
def test_the_output_moves_with_a_key_by_the_stated_derivative():
    """The derivative in a key agrees with automatic differentiation to 1e-12."""
    query, key, value = queries_keys_values()
    beta, j = 0.4, 3
    output, weights = dot_product_attention(
        query, key, value, scale=beta, return_weights=True
    )
    jacobian = torch.autograd.functional.jacobian(
        lambda k: dot_product_attention(query, k, value, scale=beta), key
    )[:, :, j]
    stated = beta * einsum(
        weights[:, j], value[j] - output, query, "q, q v, q d -> q v d"
    )
    assert torch.allclose(jacobian, stated, **EXACT)


@pytest.mark.question("nyu-1.1e")
def test_zero_mean_noise_on_a_key_moves_the_mean_output_at_second_order():
    """Zero-mean noise moves the mean output by the second-order formula, within 2%."""
    query, key, value = queries_keys_values()
    beta, sigma, j = 0.5, 0.05, 3
    output, weights = dot_product_attention(
        query, key, value, scale=beta, return_weights=True
    )
    a = weights[:, j]
    drift = 0.5 * (beta * sigma) ** 2 * query.square().sum(-1) * a * (1 - 2 * a)
    stated = rearrange(drift, "q -> q 1") * (value[j] - output)
    # The noise enters through one number per query, q·ε ~ N(0, σ²‖q‖²), so its
    # mean can be taken exactly: by Gauss–Hermite quadrature instead of sampling.
    others = torch.arange(11) != j
    without = dot_product_attention(query, key[others], value[others], scale=beta)
    nodes, node_weights = map(torch.as_tensor, gauss_hermite(31))
    shift = beta * sigma * query.norm(dim=-1, keepdim=True) * nodes
    mean = (torch.sigmoid(torch.logit(a)[:, None] + shift) * node_weights).sum(-1)
    found = without + mean[:, None] * (value[j] - without) - output
    assert stated.abs().max() > 1e-5
    assert (found - stated).norm() < 0.02 * stated.norm()


@pytest.mark.question("nyu-1.1e")
def test_hard_attention_jumps_when_noise_breaks_a_tie():
    """Hard attention jumps when a nudge of 1e-6 breaks a tie."""
    query = torch.tensor([[1.0, 0.0]])
    key = torch.tensor([[1.0, 0.0], [1.0, 5.0]])
    value = torch.tensor([[0.0], [1.0]])
    outputs = []
    for nudge in (-1e-6, 0.0, 1e-6):
        moved = key + torch.tensor([[0.0, 0.0], [nudge, 0.0]])
        outputs.append(
            dot_product_attention(query, moved, value, scale=math.inf).item()
        )
    assert outputs == [0.0, 0.5, 1.0]


@pytest.mark.question("nyu-1.1e")
def test_at_a_large_beta_a_tiny_noise_moves_the_output_half_way_to_a_value():
    """At β = 1000 a nudge of 0.01 moves the output half way between two values."""
    query = torch.tensor([[1.0, 0.0]], dtype=F64)
    key = torch.tensor([[1.0, 0.0], [1.0, 5.0]], dtype=F64)
    value = torch.tensor([[0.0], [1.0]], dtype=F64)
    moved = key + torch.tensor([[0.0, 0.0], [0.01, 0.0]], dtype=F64)
    steps = [
        (dot_product_attention(query, moved, value, scale=beta) - 0.5).item()
        for beta in (0.1, 1.0, 1000.0)
    ]
    assert steps[0] < 0.0003
    assert steps[1] < 0.003
    assert steps[2] > 0.4999


@pytest.mark.question("nyu-1.1e")
@pytest.mark.parametrize("sigma", [0.01, 0.3, 3.0, 100.0])
def test_one_key_moves_no_output_further_than_the_stated_bound(sigma):
    """No noise, however large, moves an output further than the bound."""
    query, key, value = queries_keys_values()
    beta, j, others = 0.4, 3, torch.arange(11) != 3
    before = dot_product_attention(query, key, value, scale=beta)
    without = dot_product_attention(query, key[others], value[others], scale=beta)
    gap = (value[j] - without).norm(dim=-1)
    for _ in range(20):
        noise = sigma * torch.randn(7, dtype=F64)
        moved = key.index_add(0, torch.tensor([j]), noise[None])
        after = dot_product_attention(query, moved, value, scale=beta)
        bound = torch.tanh(beta * (query @ noise).abs() / 4) * gap
        assert ((after - before).norm(dim=-1) <= bound + 1e-12).all()


@pytest.mark.question("nyu-1.1e")
@pytest.mark.parametrize("spread", [0.05, 0.2, 0.5, 1.0, 3.0])
def test_the_second_order_mean_is_off_by_less_than_a_60th_of_the_spread_to_the_4th(
    spread,
):
    """The second-order mean is off by less than a sixtieth of τ to the fourth."""
    nodes, node_weights = gauss_hermite(80)
    a = np.linspace(0.01, 0.99, 99)
    shifted = 1 / (1 + np.exp(-np.log(a / (1 - a))[:, None] - spread * nodes))
    stated = 0.5 * spread**2 * a * (1 - a) * (1 - 2 * a)
    error = abs(shifted @ node_weights - a - stated)
    assert (error <= spread**4 / 60 + 1e-12).all()


@pytest.mark.question("nyu-1.1f")
def test_elongating_a_key_goes_the_way_of_the_sign_of_its_product_with_the_query():
    """A longer key gains or loses by the sign of its score, up to both limits."""
    query, key, value = queries_keys_values()
    j, others = 3, torch.arange(11) != 3
    products = query @ key[j]
    assert (products > 0).any()
    assert (products < 0).any()
    longer = key.clone()
    longer[j] *= 2.0
    before = attention_weights(query, key)[:, j]
    after = attention_weights(query, longer)[:, j]
    assert torch.equal((after > before), products > 0)

    longer[j] *= 1e4
    output = dot_product_attention(query, longer, value)
    without = dot_product_attention(query, key[others], value[others])
    towards = products > 0
    assert torch.allclose(output[towards], value[j].expand(int(towards.sum()), 13))
    assert torch.allclose(output[~towards], without[~towards])


@pytest.mark.question("nyu-1.1f")
@pytest.mark.parametrize("stretch", [1.5, 30.0])
def test_the_weight_of_a_longer_key_is_a_sigmoid_of_how_much_longer_it_is(stretch):
    """The weight of a longer key follows the sigmoid law to 1e-12."""
    query, key, _ = queries_keys_values()
    beta, j = 0.4, 3
    # The last query stands at right angles to the key.
    query[-1] -= (query[-1] @ key[j]) / (key[j] @ key[j]) * key[j]
    longer = key.clone()
    longer[j] *= stretch
    before = attention_weights(query, key, scale=beta)[:, j]
    after = attention_weights(query, longer, scale=beta)[:, j]
    stated = torch.sigmoid(before.logit() + beta * (stretch - 1) * query @ key[j])
    assert torch.allclose(after, stated, **EXACT)
    assert after[-1].item() == pytest.approx(before[-1].item(), abs=1e-12)


@pytest.mark.question("nyu-1.1f")
def test_a_longer_key_can_lose_all_its_weight():
    """A key with a negative score loses all its weight as it grows."""
    query = torch.tensor([[1.0, 0.0]], dtype=F64)
    key = torch.tensor([[-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]], dtype=F64)
    value = torch.tensor([[9.0], [1.0], [3.0]], dtype=F64)
    longer = key * torch.tensor([[100.0], [1.0], [1.0]], dtype=F64)
    output, weights = dot_product_attention(
        query, longer, value, scale=1.0, return_weights=True
    )
    assert weights[0, 0] < 1e-40
    assert output.item() == pytest.approx((1.0 + 3.0) / 2)


@pytest.mark.question("nyu-1.1f")
def test_the_other_keys_keep_their_ratios_and_hard_attention_switches_once():
    """The other keys keep their ratios; hard attention switches at most once."""
    query, key, _ = queries_keys_values()
    j, others = 3, torch.arange(11) != 3
    before = attention_weights(query, key)[:, others]
    winners = []
    for stretch in (1.0, 1.5, 3.0, 10.0, 100.0):
        longer = key.clone()
        longer[j] *= stretch
        after = attention_weights(query, longer)[:, others]
        ratios = after / after.sum(-1, keepdim=True)
        assert torch.allclose(ratios, before / before.sum(-1, keepdim=True))
        winners.append(attention_weights(query, longer, scale=math.inf)[:, j])
    wins = torch.stack(winners, dim=-1)
    positive = query @ key[j] > 0
    assert (wins[positive].diff() >= 0).all()
    assert (wins[positive, -1] == 1).all()
    assert (wins[~positive].diff() <= 0).all()
    assert (wins[~positive, -1] == 0).all()


# The computation by hand

HIDDEN = torch.tensor([[5.0, 1.0], [4.0, 3.0], [-2.0, 6.0]], dtype=F64)
QUERY = HIDDEN @ torch.tensor([[1.0, 0.0], [2.0, 9.0]], dtype=F64).T
KEY = HIDDEN @ torch.tensor([[0.0, 1.0], [6.0, 0.0]], dtype=F64).T
VALUE = HIDDEN @ torch.tensor([[4.0, 3.0], [9.0, 1.0]], dtype=F64).T


@pytest.mark.question("eecs-2a")
def test_all_nine_scores_of_the_hand_computation():
    """All nine scores of the hand computation, as exact integers."""
    assert QUERY.tolist() == [[5, 19], [4, 35], [-2, 50]]
    assert KEY.tolist() == [[1, 30], [3, 24], [6, -12]]
    scores = QUERY @ KEY.T
    assert scores.tolist() == [[575, 471, -198], [1054, 852, -396], [1498, 1194, -612]]


@pytest.mark.question("eecs-2b")
def test_softmax_of_the_hand_computed_scores_is_one_hot_to_the_last_bit():
    """The output is (23, 46) to the last bit; the second weight is e to the -202."""
    assert VALUE.tolist() == [[23, 46], [25, 39], [10, -12]]
    output, weights = dot_product_attention(
        QUERY[1:2], KEY, VALUE, scale=1.0, return_weights=True
    )
    assert weights[0, 0] == 1.0
    assert weights[0, 1].item() == pytest.approx(math.exp(852 - 1054), rel=1e-10)
    assert weights[0, 2] == 0.0  # e^-1450 is below the smallest number of float64
    assert output.tolist() == [[23, 46]]


@pytest.mark.question("eecs-2b")
def test_a_hundredth_of_the_hand_computed_scores_mixes_the_values():
    """At β = 0.01 the weights and the output are the ones stated."""
    output, weights = dot_product_attention(
        QUERY[1:2], KEY, VALUE, scale=0.01, return_weights=True
    )
    assert weights[0].tolist() == pytest.approx([0.8829, 0.1171, 0.0000], abs=5e-5)
    assert output[0].tolist() == pytest.approx([23.2342, 45.1801], abs=5e-5)


@pytest.mark.question("eecs-2c")
def test_with_argmax_all_three_states_choose_the_first_value():
    """With argmax all three states choose the first value."""
    output, weights = dot_product_attention(
        QUERY, KEY, VALUE, scale=math.inf, return_weights=True
    )
    assert weights.tolist() == [[1, 0, 0]] * 3
    assert output.tolist() == [[23, 46]] * 3


@pytest.mark.question("eecs-2c")
def test_argmax_gives_queries_and_keys_no_gradient():
    """Argmax passes no gradient to queries and keys."""
    query, key, value = (x.clone().requires_grad_() for x in (QUERY, KEY, VALUE))
    output = dot_product_attention(query, key, value, scale=math.inf)
    gradients = torch.autograd.grad(
        output[1].sum(), (query, key, value), allow_unused=True
    )
    assert gradients[:2] == (None, None)
    assert gradients[2].tolist() == [[1, 1], [0, 0], [0, 0]]


# Scales, biases and sizes at the edges


@pytest.mark.parametrize("return_weights", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, F64])
@pytest.mark.parametrize("scale", [0.0, 1e-300, 1e-46, 1e-20])
@pytest.mark.parametrize("queries", [1, 5, 7])
def test_a_vanishing_scale_averages_what_the_causal_mask_shows(
    queries, scale, dtype, return_weights
):
    query, key, value = (torch.randn(2, 3, n, 7).to(dtype) for n in (queries, 5, 5))
    options = {"causal": True, "scale": scale, "return_weights": return_weights}
    found = dot_product_attention(query, key, value, **options)
    output = found[0] if return_weights else found
    for i in range(queries):
        seen = value[..., : max(0, i + 6 - queries), :].double()
        mean = seen.sum(dim=-2) / max(1, seen.shape[-2])
        within = 2 * torch.finfo(dtype).eps
        torch.testing.assert_close(
            output[..., i, :].double(), mean, rtol=within, atol=4 * within
        )


@pytest.mark.parametrize("return_weights", [False, True])
@pytest.mark.parametrize("scale", [1e16, 1e38, 1e39, 1e300, math.inf])
def test_a_huge_scale_selects_among_visible_keys(scale, return_weights):
    query = torch.tensor([[1.0, 0.0]])
    key = torch.tensor([[4.0, 0.0], [0.0, 3.0], [4.0, 1.0], [9.0, 9.0]])
    value = torch.tensor([[1.0], [2.0], [5.0], [7.0]])
    mask = torch.tensor([[True, True, True, False]])
    options = {"mask": mask, "scale": scale, "return_weights": return_weights}
    # Two keys tie; the bias favors the second of them, and in vain one that does not.
    bias = torch.tensor([[0.0, 100.0, math.log(3.0), 0.0]])
    for added, expected in ((None, 3.0), (bias, 4.0)):
        found = dot_product_attention(query, key, value, bias=added, **options)
        output = found[0] if return_weights else found
        assert output.item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("return_weights", [False, True])
@pytest.mark.parametrize("scale", [1e2, 1e5, 1e9, 1e15])
def test_equal_scores_stay_equal_at_any_scale(scale, return_weights):
    query, value = torch.ones(1, 3), torch.tensor([[0.0], [1.0], [7.0]])
    key = torch.tensor([[3.0, 0.0, 0.0], [1.0, 1.0, 1.0], [1.0, 0.0, 1.0]])
    options = {"scale": scale, "return_weights": return_weights}
    found = dot_product_attention(query, key, value, **options)
    output = found[0] if return_weights else found
    assert output.item() == pytest.approx(0.5, rel=1e-4)


@pytest.mark.parametrize("return_weights", [False, True])
@pytest.mark.parametrize(("scale", "softcap"), [(1e41, 50.0), (1.0, 1e-320)])
def test_a_capped_scale_may_be_beyond_float32(scale, softcap, return_weights):
    query, value = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0], [2.0], [5.0]])
    key = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0]])
    options = {"scale": scale, "softcap": softcap, "return_weights": return_weights}
    found = dot_product_attention(query, key, value, **options)
    output = found[0] if return_weights else found
    # The capped scores are c, 0 and c.
    shares = torch.tensor([softcap, 0.0, softcap]).double().softmax(0)
    expected = (shares * value[:, 0]).sum().item()
    assert output.item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("return_weights", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, F64])
@pytest.mark.parametrize(
    "bias_dtype", [torch.float16, torch.bfloat16, torch.float32, F64]
)
@pytest.mark.parametrize("axes", [3, 4])
def test_a_bias_of_any_dtype_is_added_exactly(axes, bias_dtype, dtype, return_weights):
    query, key, value = (
        torch.randn(*(2, 3)[: axes - 2], 5, 7).to(dtype) for _ in "qkv"
    )
    largest = min(1e5, torch.finfo(bias_dtype).max)
    bias = torch.randn(5, 5, dtype=F64)
    bias[0, 1] = largest  # chosen, whatever the scores
    bias[1] = -largest  # changes nothing
    bias[2] = torch.finfo(bias_dtype).min  # the mean; nothing in float16
    bias[3] = -math.inf  # sees nothing
    bias[4, 2] = -largest  # hidden, in effect
    bias = bias.to(bias_dtype)
    found = dot_product_attention(
        query, key, value, bias=bias, return_weights=return_weights
    )
    output = found[0] if return_weights else found
    exact = [x.double() for x in (query, key, value, bias)]
    logits = exact[0] @ exact[1].mT / math.sqrt(7) + exact[3]
    expected = logits.softmax(-1).nan_to_num(0.0) @ exact[2]
    within = max(1e-6, 4 * torch.finfo(dtype).eps)
    assert output.dtype == dtype
    torch.testing.assert_close(output.double(), expected, rtol=0, atol=within * 3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("return_weights", [False, True])
def test_autocast_leaves_the_bias_as_it_is(dtype, return_weights):
    query, key, value = torch.randn(3, 2, 3, 5, 7)
    bias = 3 * torch.randn(5, 5)
    bias[0, 1], bias[1] = 1e5, -1e5
    exact = dot_product_attention(query, key, value, bias=bias)
    with torch.autocast("cpu", dtype=dtype):
        found = dot_product_attention(
            query, key, value, bias=bias, return_weights=return_weights
        )
        output = found[0] if return_weights else found
        assert output.dtype == dot_product_attention(query, key, value).dtype == dtype
    within = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(output.float(), exact, rtol=0, atol=within)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("constant", [1e3, -1e5, -1e9, 1e12])
def test_a_number_added_to_a_whole_row_changes_neither_outputs_nor_gradients(
    constant, dtype
):
    qkv = [torch.randn(2, 3, 5, 7).to(dtype).requires_grad_() for _ in "qkv"]
    results = []
    for bias in (None, torch.full((5, 1), constant, dtype=dtype)):
        for return_weights in (False, True):
            found = dot_product_attention(
                *qkv, bias=bias, return_weights=return_weights
            )
            output = found[0] if return_weights else found
            results.append([output, *torch.autograd.grad(output.sin().sum(), qkv)])
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], rtol=0, atol=2e-6)


@pytest.mark.parametrize("return_weights", [False, True])
@pytest.mark.parametrize("scale", [None, 0.0, 1.0, 1e39, math.inf])
@pytest.mark.parametrize(
    "sizes", [(2, 5, 0, 4), (2, 0, 3, 4), (0, 5, 3, 4), (2, 5, 3, 0), (0, 0, 0, 0)]
)
@pytest.mark.parametrize("with_bias", [False, True])
def test_nothing_to_attend_to_gives_zeros(with_bias, sizes, scale, return_weights):
    batch, q, k, v = sizes
    query, key = torch.randn(batch, q, 7), torch.randn(batch, k, 7)
    value = torch.randn(batch, k, v)
    options = {"scale": scale, "bias": torch.zeros(q, k) if with_bias else None}
    found = dot_product_attention(
        query, key, value, return_weights=return_weights, **options
    )
    output = found[0] if return_weights else found
    assert output.shape == (batch, q, v)
    if k == 0:
        assert torch.equal(output, torch.zeros(batch, q, v))
    assert attention_weights(query, key, **options).shape == (batch, q, k)


# Windows, sinks and soft caps


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (3, 7), (6, 4)])
def test_window_mask_by_its_definition(queries, keys, causal):
    mask = window_mask(queries, keys, window=2, causal=causal, sinks=1)
    for i, j in itertools.product(range(queries), range(keys)):
        at = i + keys - queries
        near = abs(j - at) < 2 or j < 1
        assert mask[i, j] == (near and (j <= at or not causal))


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("queries", "keys", "window", "sinks", "softcap"),
    [
        (400, 400, 3, 0, None),
        (301, 430, 70, 2, None),
        (500, 500, 1, 5, 1.5),
        (520, 500, 64, 0, None),
        (130, 400, 30, 100, 0.7),
    ],
)
def test_a_window_is_a_mask_however_long_the_sequence(
    queries, keys, window, sinks, softcap, causal, padded
):
    query, key, value = (
        torch.randn(2, 3, n, d, dtype=F64, requires_grad=True)
        for n, d in ((queries, 4), (keys, 4), (keys, 5))
    )
    at = torch.arange(queries)[:, None] + keys - queries
    ahead = torch.arange(keys) - at
    seen = (abs(ahead) < window) | (torch.arange(keys) < sinks)
    seen = seen & (ahead <= 0) if causal else seen
    mask = torch.rand(2, 1, 1, keys) < 0.6 if padded else None
    seen = seen if mask is None else seen & mask
    scores = query @ key.mT / 2
    scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
    powers = scores.exp() * seen
    expected = powers @ value / powers.sum(-1, keepdim=True).clamp(min=1e-300)
    options = {"mask": mask, "causal": causal, "window": window, "sinks": sinks}
    options["softcap"] = softcap
    up = torch.randn_like(expected)
    gradients = torch.autograd.grad(expected, (query, key, value), up)
    for return_weights in (False, True):
        found = dot_product_attention(
            query, key, value, **options, return_weights=return_weights
        )
        output = found[0] if return_weights else found
        assert torch.allclose(output, expected, **EXACT)
        ours = torch.autograd.grad(output, (query, key, value), up)
        for one, other in zip(ours, gradients, strict=True):
            assert torch.allclose(one, other, rtol=0, atol=1e-10)
    weights = attention_weights(query, key, **options)
    assert torch.allclose(weights @ value, expected, **EXACT)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(
    batch=st.sampled_from([(), (2,), (2, 3), (2, 1, 3), (0, 2)]),
    queries=st.integers(1, 70),
    keys=st.integers(1, 70),
    window=st.integers(1, 6),
    sinks=st.integers(0, 4),
    causal=st.booleans(),
    hidden=st.sampled_from(["nothing", "keys", "by sample", "everything"]),
)
def test_blocks_give_what_a_dense_mask_gives(
    batch, queries, keys, window, sinks, causal, hidden
):
    """Short blocks, so that short sequences have many; no key is in two of them."""
    torch.manual_seed(queries + 71 * keys)
    query, key, value = (
        torch.randn(*batch, n, d, dtype=F64)
        for n, d in ((queries, 4), (keys, 4), (keys, 3))
    )
    mask = {
        "nothing": None,
        "keys": torch.rand(1, keys) < 0.6,
        "by sample": torch.rand(*batch, 1, keys) < 0.6,
        "everything": torch.zeros(1, keys, dtype=torch.bool),
    }[hidden]
    ahead = torch.arange(keys) - torch.arange(queries)[:, None] - (keys - queries)
    seen = (abs(ahead) < window) | (torch.arange(keys) < sinks)
    seen = seen & (ahead <= 0) if causal else seen
    seen = seen if mask is None else seen & mask
    powers = (query @ key.mT / 2).exp() * seen
    expected = powers @ value / powers.sum(-1, keepdim=True).clamp(min=1e-300)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(windows, "SHORTEST_BLOCK", 2)
        found = dot_product_attention(
            query, key, value, mask=mask, causal=causal, window=window, sinks=sinks
        )
    assert torch.allclose(found, expected, **EXACT)


@pytest.mark.parametrize("softcap", [None, 5.0])
def test_within_a_window_the_cost_grows_with_the_length(softcap):
    def multiplications(length: int) -> int:
        query = torch.randn(1, 1, length, 8)
        with FlopCounterMode(display=False) as counter:
            dot_product_attention(
                query, query, query, causal=True, window=40, softcap=softcap
            )
        return counter.get_total_flops()

    assert multiplications(2048) == 2 * multiplications(1024) > 0
    # A query is compared with at most two blocks of 64 and a window.
    assert multiplications(1024) <= 2 * 2 * 1024 * (64 + 40) * 8


def test_a_soft_cap_bounds_scores_and_leaves_small_ones_nearly_alone():
    query, key = torch.tensor([[100.0]], dtype=F64), torch.tensor([[1.0], [-1.0]])
    key = key.to(F64)
    weights = attention_weights(query, key, scale=1.0, softcap=2.0)
    assert torch.allclose(
        weights[0, 0].log() - weights[0, 1].log(), torch.tensor(4.0, dtype=F64)
    )
    query, key, _ = queries_keys_values()
    near = attention_weights(query, key, softcap=1e6)
    assert torch.allclose(near, attention_weights(query, key), rtol=0, atol=1e-9)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("length", [96, 384])  # the latter in blocks
def test_flex_attention_expresses_windows_sinks_and_soft_caps(length):
    query, key, value = (torch.randn(2, 3, length, 16) for _ in "qkv")

    def near(b, h, q, k):
        return (q >= k) & ((q - k < 20) | (k < 2))

    def capped(score, b, h, q, k):
        return 3.0 * torch.tanh(score / 3.0)

    blocks = create_block_mask(near, None, None, length, length, device="cpu")
    expected = flex_attention(query, key, value, score_mod=capped, block_mask=blocks)
    found = dot_product_attention(
        query, key, value, causal=True, window=20, sinks=2, softcap=3.0
    )
    assert torch.allclose(found, expected, rtol=0, atol=1e-6)


def test_attention_weights_take_masks_and_biases():
    query, key, _ = queries_keys_values(2)
    mask, bias = torch.rand(5, 11) > 0.3, torch.randn(2, 5, 11, dtype=F64)
    mask[2] = False
    found = attention_weights(query, key, mask=mask, bias=bias, causal=True, scale=0.6)
    powers = (0.6 * query @ key.mT + bias).exp() * (
        mask & torch.ones(5, 11).tril(6).bool()
    )
    expected = powers / powers.sum(-1, keepdim=True).clamp(min=1e-300)
    assert torch.allclose(found, expected, **EXACT)


def test_causal_attention_takes_a_bias_on_both_paths():
    query, key, value = (torch.randn(2, 3, 5, 7, dtype=F64) for _ in "qkv")
    bias = torch.randn(3, 5, 5, dtype=F64)
    seen = torch.ones(5, 5).tril().bool()
    expected = F.scaled_dot_product_attention(
        query, key, value, attn_mask=bias.masked_fill(~seen, -math.inf)
    )
    options = {"bias": bias, "causal": True}
    assert torch.allclose(dot_product_attention(query, key, value, **options), expected)
    found, _ = dot_product_attention(query, key, value, **options, return_weights=True)
    assert torch.allclose(found, expected, **EXACT)


@pytest.mark.unhooked
@pytest.mark.parametrize(
    "options",
    [{}, {"bias": torch.ones(1, 1)}, {"return_weights": True}],
    ids=["fused", "with a bias", "textbook"],
)
def test_causal_attention_compiles_for_any_number_of_queries_and_keys(options):
    def attend(query: Tensor, key: Tensor) -> Any:
        return dot_product_attention(query, key, key, causal=True, **options)

    torch.compiler.reset()
    compiled = torch.compile(attend, dynamic=True, fullgraph=True, backend="eager")
    for queries, keys in ((3, 5), (1, 5), (5, 5), (7, 4)):
        query, key = torch.randn(2, 3, queries, 8), torch.randn(2, 3, keys, 8)
        torch.testing.assert_close(compiled(query, key), attend(query, key))


@pytest.mark.unhooked
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"return_weights": True}])
def test_a_mask_of_numbers_is_never_added_while_torch_compiles(options):
    torch.compiler.reset()
    attend = torch.compile(dot_product_attention, backend="eager")
    query, mask = torch.randn(5, 8), torch.ones(5, 5).tril()
    with pytest.raises(
        (TypeError, torch._dynamo.exc.TorchRuntimeError), match=r"mask|~"
    ):
        attend(query, query, query, mask=mask, **options)


@pytest.mark.unhooked
@pytest.mark.parametrize("softcap", [None, 3.0])
def test_windows_compile_and_export_for_lengths_that_eager_code_cuts_into_blocks(
    softcap,
):
    near = {"causal": True, "window": 5, "sinks": 2, "softcap": softcap}

    class Attend(torch.nn.Module):
        def forward(self, query: Tensor, key: Tensor) -> Tensor:
            return dot_product_attention(query, key, key, **near)

    attend = Attend()
    torch.compiler.reset()
    compiled = torch.compile(attend, dynamic=True, fullgraph=True, backend="eager")
    free = {2: torch.export.Dim("n", min=2, max=999)}
    example = torch.randn(2, 3, 9, 8), torch.randn(2, 3, 9, 8)
    exported = torch.export.export(attend, example, dynamic_shapes=(free, free))
    for length in (4, 300):
        inputs = torch.randn(2, 3, length, 8), torch.randn(2, 3, length, 8)
        blocks = length == 300
        assert windows.in_blocks(*inputs, None, None, 5, 2) == blocks
        expected = attend(*inputs)
        torch.testing.assert_close(compiled(*inputs), expected)
        torch.testing.assert_close(exported.module()(*inputs), expected)


# Half precision


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("return_weights", [False, True])
@pytest.mark.parametrize("size", [0.0, 100.0, -100.0, 6e4, -6e4])
def test_half_precision_survives_large_scores_and_blind_rows(
    dtype, return_weights, size
):
    query, key, value = torch.randn(3, 2, 3, 5, 8)
    if size:
        largest = (query @ key.mT).abs().max() / math.sqrt(8)
        query = query * (size / largest).abs().sqrt() * math.copysign(1, size)
        key = key * (abs(size) / largest).sqrt()
    mask = torch.rand(2, 1, 5, 5) > 0.3
    mask[0, 0, 2] = False
    qkv = [x.to(dtype).requires_grad_() for x in (query, key, value)]
    options = {"mask": mask, "causal": True, "return_weights": return_weights}
    output = dot_product_attention(*qkv, **options)
    output = output[0] if return_weights else output
    gradients = torch.autograd.grad(output.float().square().sum(), qkv)
    assert output.isfinite().all()
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert (output[0, :, 2] == 0).all()
    exact = dot_product_attention(
        *(x.detach().double() for x in qkv), mask=mask, causal=True
    )
    eps = torch.finfo(dtype).eps
    # The scores themselves are rounded to float32 at best.
    assert (output.double() - exact).abs().max() < 4 * eps + abs(size) * 1e-5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("autocast", [False, True])
def test_products_that_overflow_half_precision_are_still_attended_to(dtype, autocast):
    x = torch.full((1, 2, 3, 64), 200.0, dtype=dtype)
    with torch.autocast("cpu", dtype=dtype, enabled=autocast):
        output, weights = dot_product_attention(x, x, x, return_weights=True)
        assert torch.equal(dot_product_attention(x, x, x), x)
    assert torch.allclose(weights.float(), torch.full((3, 3), 1 / 3), atol=1e-3)
    assert torch.equal(output, x)


# Malformed calls


def attend(**changes: Any) -> Any:
    shapes = {"query": (2, 3, 5, 7), "key": (2, 3, 11, 7), "value": (2, 3, 11, 13)}
    tensors = {name: torch.zeros(shape) for name, shape in shapes.items()}
    return dot_product_attention(**{**tensors, **changes})


@pytest.mark.unhooked
@bad_calls(
    ("no key", lambda: attend(key=None),
     TypeError, "key must be a floating-point tensor, got NoneType."),
    ("a list", lambda: softmax([1.0, 2.0]),
     TypeError, "scores must be a floating-point tensor, got list."),
    ("a key of another width", lambda: attend(key=torch.zeros(2, 3, 11, 8)),
     ValueError, "key must be (2, 3, k, 7), got shape (2, 3, 11, 8)."),
    ("a mask for other keys", lambda: attend(mask=torch.ones(5, 12).bool()),
     ValueError, "mask must be broadcastable to (2, 3, 5, 11), got shape (5, 12)."),
    ("a mask without queries", lambda: attend(mask=torch.ones(11).bool()),
     ValueError, "mask must be broadcastable to (2, 3, 5, 11), got shape (11,)."),
    ("no width",
     lambda: attend(query=torch.zeros(2, 3, 5, 0), key=torch.zeros(2, 3, 11, 0)),
     ValueError, "query must have a width, got shape (2, 3, 5, 0)."),
    ("two dtypes", lambda: attend(value=torch.zeros(2, 3, 11, 13).double()),
     TypeError, "query and key and value must have one dtype, got … torch.float64."),
    ("two dtypes of weights",
     lambda: attention_weights(torch.zeros(5, 7), torch.zeros(11, 7).double()),
     TypeError, "query and key must have one dtype, got torch.float32 and … float64."),
    ("a mask of ones and zeros", lambda: attend(mask=torch.ones(5, 11)),
     TypeError, "mask must be a boolean tensor (True = may see; numbers to add … "
     "are a bias), got torch.float32."),
    ("a boolean bias", lambda: attend(bias=torch.ones(5, 11).bool()),
     TypeError, "bias must be a floating-point tensor, got torch.bool."),
    ("a negative scale", lambda: attend(scale=-1.0),
     ValueError, "scale must be zero or greater, got -1.0."),
    ("NaN for a scale", lambda: softmax(torch.zeros(3), math.nan),
     ValueError, "scale must be zero or greater, got nan."),
    ("a tensor for a scale", lambda: softmax(torch.zeros(3), torch.tensor(1.0)),
     TypeError, "scale must be a number (math.inf selects the maximum), got Tensor."),
    ("dropout of everything", lambda: attend(dropout=1.0),
     ValueError, "dropout must be in [0, 1), got 1.0."),
    ("a window of nothing", lambda: attend(window=0),
     ValueError, "window must be a positive integer, got 0."),
    ("half a window on a long text",
     lambda: dot_product_attention(*torch.zeros(3, 999, 7), window=2.5),
     ValueError, "window must be a positive integer, got 2.5."),
    ("sinks without a window", lambda: attend(sinks=2, causal=True),
     ValueError, "sinks=2 needs a window, got none."),
    ("a negative number of sinks", lambda: attend(window=2, sinks=-1),
     ValueError, "sinks must be a nonnegative integer, got -1."),
    ("a soft cap of zero", lambda: attend(softcap=0.0),
     ValueError, "softcap must be positive and at most 1e+30, got 0.0."),
    ("a soft cap beyond float32", lambda: attend(softcap=1e39),
     ValueError, "softcap must be positive and at most 1e+30, got 1e+39."),
    ("a soft cap on hard attention", lambda: attend(softcap=2.0, scale=math.inf),
     ValueError, "softcap needs a finite scale, got math.inf: hard attention."),
    ("PyTorch's name for causal", lambda: attend(is_causal=True),
     TypeError, "dot_product_attention() has no argument 'is_causal'; did you mean "
     "'causal'?"),
    ("a tensor for a length", lambda: causal_mask(torch.zeros(3, 4)),
     ValueError, "queries must be a nonnegative integer, got tensor"),
    ("a negative length", lambda: causal_mask(2, -1),
     ValueError, "keys must be a nonnegative integer, got -1."),
    ("token ids for lengths", lambda: padding_mask(torch.ones(2, 5).long()),
     ValueError, "lengths must be (batch,), got shape (2, 5)."),
    ("a sequence longer than the longest", lambda: padding_mask(torch.tensor([5]), 4),
     ValueError, "lengths must be between 0 and the common length 4, got [5]."),
)  # fmt: skip
def test_malformed_calls_get_clear_errors(call, error, message):
    assert_refused(call, error, message)
