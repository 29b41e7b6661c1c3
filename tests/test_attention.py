"""Chapter 1 against PyTorch, formulas, and computations by hand."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from transformers_hw import (
    attention,
    attention_weights,
    causal_mask,
    padding_mask,
    softargmax,
)

F64 = torch.float64


def queries_keys_values(*batch: int) -> tuple[Tensor, Tensor, Tensor]:
    """Five queries and eleven keys of width 7, values of width 13."""
    shapes = ((5, 7), (11, 7), (11, 13))
    return tuple(
        torch.randn(*batch, *shape, dtype=F64, requires_grad=True) for shape in shapes
    )  # type: ignore[return-value]


# --- softargmax -----------------------------------------------------------------


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0, 7.0])
def test_softargmax_is_the_softmax_of_the_scaled_scores(beta):
    scores = torch.randn(2, 3, 5, dtype=F64)
    expected = torch.softmax(beta * scores, dim=-1)
    assert torch.allclose(softargmax(scores, beta), expected, rtol=0, atol=1e-15)


def test_softargmax_with_mask_and_bias_follows_its_formula():
    scores = torch.randn(3, 5, dtype=F64)
    bias = torch.randn(5, dtype=F64)
    mask = torch.tensor([[1, 1, 0, 1, 0]] * 3).bool()
    powers = mask * torch.exp(0.7 * scores + bias)
    expected = powers / powers.sum(-1, keepdim=True)
    found = softargmax(scores, 0.7, mask=mask, bias=bias)
    assert torch.allclose(found, expected, rtol=0, atol=1e-15)


def test_infinite_beta_is_the_limit_of_large_beta():
    scores = torch.tensor([1.0, 3.0, 3.0, 2.0], dtype=F64)
    bias = torch.tensor([0.0, 0.5, -0.5, 9.0], dtype=F64)
    for b in (None, bias):
        limit = softargmax(scores, math.inf, bias=b)
        assert torch.allclose(limit, softargmax(scores, 200.0, bias=b), atol=1e-15)
    shares = softargmax(scores, math.inf)
    assert shares.tolist() == [0.0, 0.5, 0.5, 0.0]


def test_infinite_beta_shows_nan_and_skips_hidden_entries():
    scores = torch.tensor([1.0, 9.0, 4.0])
    seen = torch.tensor([True, False, True])
    assert softargmax(scores, math.inf, mask=seen).tolist() == [0, 0, 1]
    hidden = torch.tensor([0.0, -math.inf, 0.0])
    assert softargmax(scores, math.inf, bias=hidden).tolist() == [0, 0, 1]
    scores[0] = math.nan
    assert softargmax(scores, math.inf).isnan().any()


def test_infinite_beta_has_no_gradient_in_the_scores():
    scores = torch.randn(5, requires_grad=True)
    bias = torch.zeros(5, requires_grad=True)
    loss = softargmax(scores, math.inf, bias=bias).square().sum()
    gradient = torch.autograd.grad(loss, scores, allow_unused=True)[0]
    assert gradient is None


@given(st.integers(1, 7), st.sampled_from([0.0, 1.0, 30.0, math.inf]))
@settings(deadline=None, max_examples=25)
def test_weights_are_nonnegative_and_sum_to_one_or_to_zero(keys, beta):
    mask = torch.rand(11, keys) > 0.5
    weights = softargmax(torch.randn(11, keys, dtype=F64), beta, mask=mask)
    assert (weights >= 0).all()
    assert torch.allclose(weights.sum(-1), mask.any(-1).to(F64))
    assert (weights[~mask] == 0).all()


# --- attention against PyTorch --------------------------------------------------

MASKS = {
    "none": None,
    "one for all": torch.rand(5, 11, generator=torch.Generator().manual_seed(1)) > 0.4,
    "by head": torch.rand(3, 5, 11, generator=torch.Generator().manual_seed(2)) > 0.4,
    "padding": rearrange(padding_mask(torch.tensor([11, 6])), "b k -> b 1 1 k"),
    "blind row": torch.ones(5, 11).bool().index_fill(0, torch.tensor([2]), False),
    "blind batch": torch.tensor([True, False]).view(2, 1, 1, 1),
}


@pytest.mark.parametrize("return_weights", [False, True])
@pytest.mark.parametrize("scale", [None, 0.0, 1.0, 50.0])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_attention_matches_pytorch(mask, with_bias, scale, return_weights):
    qkv = queries_keys_values(2, 3)
    bias = torch.randn(5, 11, dtype=F64) if with_bias else None
    torch_mask = mask
    if bias is not None:
        torch_mask = bias if mask is None else bias.masked_fill(~mask, -math.inf)
    expected = F.scaled_dot_product_attention(*qkv, attn_mask=torch_mask, scale=scale)
    found, weights = attention(
        *qkv, mask=mask, bias=bias, scale=scale, return_weights=return_weights
    )
    assert (weights is not None) == return_weights
    assert torch.allclose(found, expected, rtol=0, atol=1e-10)
    for ours, theirs in zip(
        torch.autograd.grad(found.sin().sum(), qkv),
        torch.autograd.grad(expected.sin().sum(), qkv),
        strict=True,
    ):
        assert ours.isfinite().all()
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-10)


@pytest.mark.parametrize("return_weights", [False, True])
def test_causal_attention_matches_pytorch_for_equal_lengths(return_weights):
    x = torch.randn(2, 3, 5, 7, dtype=F64)
    expected = F.scaled_dot_product_attention(x, x, x, is_causal=True)
    found, _ = attention(x, x, x, causal=True, return_weights=return_weights)
    assert torch.allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("queries", [1, 3, 5, 8])
@pytest.mark.parametrize("return_weights", [False, True])
def test_causal_attention_aligns_the_last_query_with_the_last_key(
    queries, return_weights
):
    query = torch.randn(2, 3, queries, 7, dtype=F64)
    key = torch.randn(2, 3, 5, 7, dtype=F64)
    found, _ = attention(query, key, key, causal=True, return_weights=return_weights)
    for i in range(queries):
        seen = max(0, i + 1 + 5 - queries)
        row = slice(i, i + 1)
        alone, _ = attention(query[..., row, :], key[..., :seen, :], key[..., :seen, :])
        assert torch.allclose(found[..., row, :], alone, rtol=0, atol=1e-12)


def test_weights_times_values_are_the_output():
    query, key, value = queries_keys_values(2)
    output, weights = attention(query, key, value, causal=True, return_weights=True)
    assert weights is not None
    by_hand = einsum(weights, value, "b q k, b k v -> b q v")
    assert torch.equal(output, by_hand)
    again = attention_weights(query, key, causal=True)
    assert torch.equal(weights, again)


@pytest.mark.parametrize("return_weights", [False, True])
def test_inference_mode_changes_neither_results_nor_inputs(return_weights):
    inputs = [x.detach() for x in queries_keys_values(2, 3)]
    before = [x.clone() for x in inputs]
    expected = attention(*inputs, return_weights=return_weights)
    with torch.inference_mode():
        found = attention(*inputs, return_weights=return_weights)
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours is None) is (theirs is None)
        assert ours is None or torch.equal(ours, theirs)
    assert all(torch.equal(x, y) for x, y in zip(inputs, before, strict=True))


def test_dropout_drops_weights_and_keeps_the_mean():
    ones = torch.ones(1, 1, 2000, 4)
    torch.manual_seed(0)
    for return_weights in (False, True):
        output, weights = attention(
            ones, ones, ones, dropout=0.25, return_weights=return_weights
        )
        assert output.std() > 0
        assert abs(output.mean().item() - 1.0) < 0.01
        if weights is not None:
            assert torch.allclose(weights, torch.full_like(weights, 1 / 2000))


# --- masks ----------------------------------------------------------------------


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (3, 3), (2, 5), (5, 2), (3, 0)])
def test_causal_mask_by_its_definition(queries, keys):
    mask = causal_mask(queries, keys)
    assert mask.shape == (queries, keys)
    for i in range(queries):
        for j in range(keys):
            assert mask[i, j].item() == (j <= i + keys - queries)
    assert torch.equal(causal_mask(queries), torch.ones(queries, queries).tril().bool())


def test_padding_mask_by_its_definition():
    mask = padding_mask(torch.tensor([[2, 0], [3, 1]]), 4)
    expected = [[[1, 1, 0, 0], [0] * 4], [[1, 1, 1, 0], [1, 0, 0, 0]]]
    assert mask.int().tolist() == expected
    assert padding_mask(torch.tensor([2, 3])).shape == (2, 3)
    assert padding_mask(torch.zeros(0, dtype=torch.int64), 3).shape == (0, 3)


# --- the questions ---------------------------------------------------------------


@pytest.mark.question("nyu-1.1a")
def test_with_tokens_in_columns_the_output_is_V_softargmax_of_K_transposed_Q():
    d, n, m, t = 7, 5, 11, 13
    Q = torch.randn(d, n, dtype=F64)
    K = torch.randn(d, m, dtype=F64)
    V = torch.randn(t, m, dtype=F64)
    beta = 1 / math.sqrt(d)
    H = V @ torch.softmax(beta * K.T @ Q, dim=0)
    assert H.shape == (t, n)
    rows, _ = attention(Q.T, K.T, V.T)
    assert torch.allclose(rows.T, H, rtol=0, atol=1e-12)


@pytest.mark.question("nyu-1.1a")
def test_Q_times_K_transposed_is_ill_typed_when_tokens_are_columns():
    Q, K = torch.randn(7, 5), torch.randn(7, 11)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        torch.matmul(Q, K.T)


@pytest.mark.question("nyu-1.1b")
def test_beta_goes_from_averaging_all_values_to_selecting_one():
    query, key, value = queries_keys_values()
    averaged, _ = attention(query, key, value, scale=0.0)
    assert torch.allclose(averaged, value.mean(0).expand(5, 13))
    selected, _ = attention(query, key, value, scale=1e4)
    best = (query @ key.T).argmax(-1)
    assert torch.allclose(selected, value[best])
    # It is the weights that become one-hot, not the query; their entropy only falls.
    entropies = []
    for beta in (0.0, 0.1, 0.3, 1.0, 3.0):
        weights = attention_weights(query, key, scale=beta)
        entropies.append(torch.special.entr(weights).sum(-1))
    assert all((a > b).all() for a, b in itertools.pairwise(entropies))


@pytest.mark.question("nyu-1.1b", "quiz-2.3")
@pytest.mark.parametrize("d", [4, 64, 1024])
def test_dividing_by_the_root_of_d_gives_scores_of_variance_one(d):
    query, key = torch.randn(4000, d), torch.randn(4000, d)
    products = (query * key).sum(-1)
    assert products.var().item() == pytest.approx(d, rel=0.1)
    assert (products / math.sqrt(d)).var().item() == pytest.approx(1.0, rel=0.1)


@pytest.mark.question("quiz-2.3")
def test_without_the_scale_the_gradient_of_softmax_dies_as_d_grows():
    def gradient_size(d: int, beta: float) -> float:
        scores = beta * (torch.randn(500, 1, d) * torch.randn(500, 11, d)).sum(-1)
        p = scores.softmax(-1)
        jacobian = torch.diag_embed(p) - einsum(p, p, "n i, n j -> n i j")
        return jacobian.norm(dim=(1, 2)).mean().item()

    unscaled = [gradient_size(d, 1.0) for d in (4, 64, 1024, 16384)]
    scaled = [gradient_size(d, d**-0.5) for d in (4, 64, 1024, 16384)]
    assert unscaled == sorted(unscaled, reverse=True)
    assert unscaled[-1] < 0.05 * unscaled[0]
    assert max(scaled) / min(scaled) < 1.2


@pytest.mark.question("nyu-1.1c")
def test_hard_attention_preserves_a_value_and_so_does_a_chosen_linear_layer():
    query, key, value = queries_keys_values()
    output, _ = attention(query, key, value, scale=math.inf)
    best = (query @ key.T).argmax(-1)
    assert torch.equal(output, value[best])
    # A fully connected layer on all values at once, stacked into one vector.
    j, (m, t) = 4, value.shape
    pick = torch.eye(m, dtype=F64)[j : j + 1]
    weight = torch.kron(pick, torch.eye(t, dtype=F64))
    assert torch.equal(F.linear(value.flatten(), weight), value[j])


@pytest.mark.question("nyu-1.1d")
def test_beta_zero_averages_and_so_does_a_chosen_linear_layer():
    query, key, value = queries_keys_values()
    output, weights = attention(query, key, value, scale=0.0, return_weights=True)
    assert weights is not None
    assert torch.equal(weights, torch.full_like(weights, 1 / 11))
    m, t = value.shape
    weight = torch.kron(torch.full((1, m), 1 / m, dtype=F64), torch.eye(t, dtype=F64))
    assert torch.allclose(F.linear(value.flatten(), weight), output[0])


@pytest.mark.question("nyu-1.1c", "nyu-1.1d")
def test_the_four_types_are_self_or_cross_times_soft_or_hard():
    x, context = torch.randn(5, 7, dtype=F64), torch.randn(11, 7, dtype=F64)
    for source in (x, context):
        soft = attention_weights(x, source, scale=1.0)
        hard = attention_weights(x, source, scale=math.inf)
        assert (soft > 0).all()
        assert torch.equal(hard, F.one_hot(soft.argmax(-1), len(source)).to(F64))


@pytest.mark.question("nyu-1.1e")
def test_the_output_moves_with_a_key_by_the_stated_derivative():
    query, key, value = queries_keys_values()
    beta, j = 0.4, 3
    output, weights = attention(query, key, value, scale=beta, return_weights=True)
    assert weights is not None
    jacobian = torch.autograd.functional.jacobian(
        lambda k: attention(query, k, value, scale=beta)[0], key
    )[:, :, j]
    stated = beta * einsum(
        weights[:, j], value[j] - output, query, "q, q v, q d -> q v d"
    )
    assert torch.allclose(jacobian, stated, rtol=0, atol=1e-12)


@pytest.mark.question("nyu-1.1e")
def test_a_moved_key_changes_one_score_per_query_and_the_output_exactly_so():
    query, key, value = queries_keys_values()
    beta, j = 0.4, 3
    noise = torch.zeros_like(key)
    noise[j] = torch.randn(7, dtype=F64)
    change = query @ (key + noise).T - query @ key.T
    others = torch.arange(11) != j
    assert (change[:, others] == 0).all()
    assert torch.allclose(change[:, j], query @ noise[j])

    weights = attention_weights(query, key, scale=beta)[:, j]
    without, _ = attention(query, key[others], value[others], scale=beta)
    moved = torch.sigmoid(torch.logit(weights) + beta * query @ noise[j])
    stated = without + rearrange(moved, "q -> q 1") * (value[j] - without)
    found, _ = attention(query, key + noise, value, scale=beta)
    assert torch.allclose(found, stated, rtol=0, atol=1e-12)


@pytest.mark.question("nyu-1.1e")
def test_zero_mean_noise_on_a_key_moves_the_mean_output_at_second_order():
    query, key, value = (x.detach() for x in queries_keys_values())
    beta, sigma, j = 0.5, 0.05, 3
    output, weights = attention(query, key, value, scale=beta, return_weights=True)
    assert weights is not None
    a = weights[:, j]
    drift = 0.5 * (beta * sigma) ** 2 * query.square().sum(-1) * a * (1 - 2 * a)
    stated = rearrange(drift, "q -> q 1") * (value[j] - output)
    # The noise enters through one number per query, q·ε ~ N(0, σ²‖q‖²), so its
    # mean can be taken exactly: by Gauss–Hermite quadrature instead of sampling.
    others = torch.arange(11) != j
    without, _ = attention(query, key[others], value[others], scale=beta)
    nodes, node_weights = gauss_hermite(31)
    shift = beta * sigma * query.norm(dim=-1, keepdim=True) * nodes
    mean = (torch.sigmoid(torch.logit(a)[:, None] + shift) * node_weights).sum(-1)
    found = without + mean[:, None] * (value[j] - without) - output
    assert stated.abs().max() > 1e-5
    assert (found - stated).norm() < 0.02 * stated.norm()


def gauss_hermite(count: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights for the mean under a standard normal (Golub–Welsch)."""
    off = torch.arange(1, count, dtype=F64).sqrt()
    nodes, vectors = torch.linalg.eigh(torch.diag(off, 1) + torch.diag(off, -1))
    return nodes, vectors[0].square()


@pytest.mark.question("nyu-1.1e")
def test_hard_attention_jumps_when_noise_breaks_a_tie():
    query = torch.tensor([[1.0, 0.0]])
    key = torch.tensor([[1.0, 0.0], [1.0, 5.0]])
    value = torch.tensor([[0.0], [1.0]])
    outputs = []
    for nudge in (-1e-6, 0.0, 1e-6):
        moved = key + torch.tensor([[0.0, 0.0], [nudge, 0.0]])
        outputs.append(attention(query, moved, value, scale=math.inf)[0].item())
    assert outputs == [0.0, 0.5, 1.0]


@pytest.mark.question("nyu-1.1f")
def test_elongating_a_key_goes_the_way_of_the_sign_of_its_product_with_the_query():
    query, key, value = (x.detach() for x in queries_keys_values())
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
    output, _ = attention(query, longer, value)
    without, _ = attention(query, key[others], value[others])
    towards = products > 0
    assert torch.allclose(output[towards], value[j].expand(int(towards.sum()), 13))
    assert torch.allclose(output[~towards], without[~towards])


@pytest.mark.question("quiz-2.2")
def test_attention_is_a_weighted_sum_of_values_not_of_scores():
    query, key, value = queries_keys_values()
    scores = query @ key.T / math.sqrt(7)
    powers = scores.exp()
    by_hand = (powers / powers.sum(-1, keepdim=True)) @ value
    assert torch.allclose(attention(query, key, value)[0], by_hand)


@pytest.mark.question("eecs-2a", "eecs-2c")
def test_the_hand_computation_of_scores_and_of_the_selected_value():
    h = torch.tensor([[5.0, 1.0], [4.0, 3.0], [-2.0, 6.0]])
    w_q = torch.tensor([[1.0, 0.0], [2.0, 9.0]])
    w_k = torch.tensor([[0.0, 1.0], [6.0, 0.0]])
    w_v = torch.tensor([[4.0, 3.0], [9.0, 1.0]])
    q, k, v = h @ w_q.T, h @ w_k.T, h @ w_v.T
    assert (q[1] @ k.T).tolist() == [1054, 852, -396]
    output, weights = attention(q[1:2], k, v, scale=math.inf, return_weights=True)
    assert weights is not None
    assert weights.tolist() == [[1, 0, 0]]
    assert output.tolist() == [[23, 46]]


# --- half precision ----------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("return_weights", [False, True])
@pytest.mark.parametrize("size", [0.0, 100.0, -100.0, 6e4, -6e4])
def test_half_precision_survives_large_scores_and_blind_rows(
    dtype, return_weights, size
):
    query = torch.randn(2, 3, 5, 8)
    key = torch.randn(2, 3, 5, 8)
    value = torch.randn(2, 3, 5, 8)
    scale = 1.0 / math.sqrt(8)
    if size:
        largest = (query @ key.mT).abs().max() * scale
        query = query * (size / largest).abs().sqrt() * math.copysign(1, size)
        key = key * (abs(size) / largest).sqrt()
    mask = torch.rand(2, 1, 5, 5) > 0.3
    mask[0, 0, 2] = False
    qkv = [x.to(dtype).requires_grad_() for x in (query, key, value)]
    output, _ = attention(*qkv, mask=mask, causal=True, return_weights=return_weights)
    gradients = torch.autograd.grad(output.float().square().sum(), qkv)
    assert output.isfinite().all()
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert (output[0, :, 2] == 0).all()
    exact, _ = attention(
        *(x.detach().double() for x in qkv),
        mask=mask,
        causal=True,
        return_weights=return_weights,
    )
    eps = torch.finfo(dtype).eps
    # The scores themselves are rounded to float32 at best.
    assert (output.double() - exact).abs().max() < 4 * eps + abs(size) * 1e-5


def test_products_that_overflow_half_precision_are_still_attended_to():
    for dtype in (torch.float16, torch.bfloat16):
        x = torch.full((1, 2, 3, 64), 200.0, dtype=dtype)
        for return_weights in (False, True):
            output, _ = attention(x, x, x, return_weights=return_weights)
            assert torch.equal(output, x)


def test_autocast_does_not_bring_the_overflow_back():
    x = torch.full((1, 2, 3, 64), 200.0, dtype=torch.float16)
    with torch.autocast("cpu", dtype=torch.float16):
        output, weights = attention(x, x, x, return_weights=True)
    assert weights is not None
    assert torch.allclose(weights.float(), torch.full((3, 3), 1 / 3), atol=1e-3)
    assert output.isfinite().all()
