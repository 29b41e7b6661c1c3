"""Chapter 1, further: counterexamples to the documents, and bounds the page states."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from einops import einsum
from torch import Tensor, nn

from transformers_hw import attention, attention_weights, softargmax

F64 = torch.float64


def queries_keys_values() -> tuple[Tensor, Tensor, Tensor]:
    """Five queries and eleven keys of width 7, values of width 13."""
    query, key = torch.randn(5, 7, dtype=F64), torch.randn(11, 7, dtype=F64)
    return query, key, torch.randn(11, 13, dtype=F64)


def softmax_jacobian(scores: Tensor) -> Tensor:
    p = scores.softmax(-1)
    return torch.diag_embed(p) - einsum(p, p, "... i, ... j -> ... i j")


# What beta does


@pytest.mark.question("nyu-1.1b")
def test_the_weights_become_one_hot_and_the_values_are_combined():
    query, key, value = queries_keys_values()
    hard = attention_weights(query, key, scale=math.inf)
    assert hard.shape == (5, 11)
    assert torch.equal(hard, F.one_hot(hard.argmax(-1), 11).to(F64))
    for beta in (0.0, 0.1, 1.0, math.inf):
        output, _ = attention(query, key, value, scale=beta)
        # A combination of keys would be 7 wide, and would not double with the values.
        assert output.shape == (5, 13)
        doubled, _ = attention(query, key, 2 * value, scale=beta)
        assert torch.allclose(doubled, 2 * output, rtol=0, atol=1e-12)


@pytest.mark.question("nyu-1.1b")
def test_a_longer_query_does_what_a_larger_beta_does():
    query, key, _ = queries_keys_values()
    longer = attention_weights(3 * query, key, scale=0.4)
    hotter = attention_weights(query, key, scale=3 * 0.4)
    assert torch.allclose(longer, hotter, rtol=0, atol=1e-12)


@pytest.mark.question("nyu-1.1b")
@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0, 4.0])
def test_the_entropy_falls_at_the_rate_beta_times_the_variance_of_the_scores(beta):
    scores = torch.randn(11, dtype=F64)
    b = torch.tensor(beta, dtype=F64, requires_grad=True)
    weights = softargmax(b * scores)
    rate = torch.autograd.grad(torch.special.entr(weights).sum(), b)[0]
    mean = (weights * scores).sum()
    variance = (weights * (scores - mean) ** 2).sum()
    assert rate.item() == pytest.approx(-beta * variance.item(), abs=1e-12)


@pytest.mark.question("nyu-1.1b")
def test_queries_that_equal_their_keys_score_root_d_even_after_scaling():
    # Not independent any more: the mean of q·k is d, not 0.
    x = torch.randn(2000, 256)
    scores = (x * x).sum(-1) / math.sqrt(256)
    assert scores.mean().item() == pytest.approx(math.sqrt(256), rel=0.01)


# Preserving and diffusing


@pytest.mark.question("nyu-1.1c")
@pytest.mark.parametrize("beta", [0.5, 2.0, 8.0, 32.0])
def test_what_soft_attention_loses_falls_exponentially_with_beta_times_the_gap(beta):
    query, key, value = queries_keys_values()
    scores = query @ key.T
    best, second = scores.topk(2).values.unbind(-1)
    j = scores.argmax(-1)
    output, weights = attention(query, key, value, scale=beta, return_weights=True)
    assert weights is not None
    others = weights.clone().scatter_(1, j[:, None], 0.0).sum(-1)
    assert (others > 0).all()
    assert (others <= (11 - 1) * torch.exp(-beta * (best - second))).all()
    farthest = torch.cdist(value[j], value).amax(-1)
    assert ((output - value[j]).norm(dim=-1) <= others * farthest + 1e-12).all()


@pytest.mark.question("nyu-1.1c")
@pytest.mark.parametrize("size", [1.0, 10.0, 1000.0])
def test_a_gated_unit_cannot_pass_a_value_of_five_where_a_linear_layer_can(size):
    value = torch.full((1, 3), 5.0)
    gated = nn.GRUCell(3, 3)
    with torch.no_grad():
        for weight in gated.parameters():
            weight.normal_(std=size)
    # From an empty state it gives (1 - z)·tanh(…), whatever its weights.
    assert (gated(value).abs() <= 1).all()
    assert torch.equal(F.linear(value, torch.eye(3)), value)


@pytest.mark.question("nyu-1.1d")
def test_a_running_kernel_of_equal_weights_averages_its_window_alone():
    value = torch.randn(1, 13, 11, dtype=F64)
    mean = value.mean(-1)

    def running_mean(width: int) -> Tensor:
        kernel = torch.full((13, 1, width), 1 / width, dtype=F64)
        return F.conv1d(value, kernel, groups=13)

    narrow = running_mean(3)
    assert narrow.shape == (1, 13, 11 - 3 + 1)
    assert ((narrow - mean[..., None]).norm(dim=1) > 0.1).all()
    # As wide as the sequence it has one place to stand: a fully connected layer.
    assert torch.allclose(running_mean(11)[..., 0], mean, rtol=0, atol=1e-12)


@pytest.mark.question("nyu-1.1d")
def test_equal_scores_spread_evenly_at_every_beta():
    query, key, value = queries_keys_values()
    # Keys that differ only across the queries cannot be told apart by them.
    query[:, 3:] = 0.0
    key[:, :3] = key[0, :3]
    for beta in (0.0, 1.0, 1e3, math.inf):
        output, _ = attention(query, key, value, scale=beta)
        assert torch.allclose(output, value.mean(0).expand(5, 13), rtol=0, atol=1e-10)


@pytest.mark.question("nyu-1.1d")
def test_near_beta_zero_a_weight_leaves_the_mean_as_its_score_does():
    scores = torch.randn(11, dtype=F64)
    for beta in (1e-2, 1e-3):
        stated = (1 + beta * (scores - scores.mean())) / 11
        error = (softargmax(scores, beta) - stated).abs().max()
        assert error < beta**2


# A key that moves


@pytest.mark.question("nyu-1.1e")
def test_at_a_large_beta_a_tiny_noise_moves_the_output_half_way_to_a_value():
    query = torch.tensor([[1.0, 0.0]], dtype=F64)
    key = torch.tensor([[1.0, 0.0], [1.0, 5.0]], dtype=F64)
    value = torch.tensor([[0.0], [1.0]], dtype=F64)
    moved = key + torch.tensor([[0.0, 0.0], [0.01, 0.0]], dtype=F64)
    steps = [
        (attention(query, moved, value, scale=beta)[0] - 0.5).item()
        for beta in (0.1, 1.0, 1000.0)
    ]
    assert steps[0] < 0.0003
    assert steps[1] < 0.003
    assert steps[2] > 0.4999


@pytest.mark.question("nyu-1.1e")
@pytest.mark.parametrize("sigma", [0.01, 0.3, 3.0, 100.0])
def test_one_key_moves_no_output_further_than_the_stated_bound(sigma):
    query, key, value = queries_keys_values()
    beta, j, others = 0.4, 3, torch.arange(11) != 3
    before, _ = attention(query, key, value, scale=beta)
    without, _ = attention(query, key[others], value[others], scale=beta)
    gap = (value[j] - without).norm(dim=-1)
    for _ in range(20):
        noise = sigma * torch.randn(7, dtype=F64)
        moved = key.index_add(0, torch.tensor([j]), noise[None])
        after, _ = attention(query, moved, value, scale=beta)
        bound = torch.tanh(beta * (query @ noise).abs() / 4) * gap
        assert ((after - before).norm(dim=-1) <= bound + 1e-12).all()


@pytest.mark.question("nyu-1.1e")
@pytest.mark.parametrize("spread", [0.05, 0.2, 0.5, 1.0, 3.0])
def test_the_second_order_mean_is_off_by_less_than_a_60th_of_the_spread_to_the_4th(
    spread,
):
    nodes, node_weights = np.polynomial.hermite_e.hermegauss(80)
    node_weights = node_weights / math.sqrt(2 * math.pi)
    for a in np.linspace(0.01, 0.99, 99):
        shifted = 1 / (1 + np.exp(-(math.log(a / (1 - a)) + spread * nodes)))
        mean_step = (shifted * node_weights).sum() - a
        stated = 0.5 * spread**2 * a * (1 - a) * (1 - 2 * a)
        assert abs(mean_step - stated) <= spread**4 / 60 + 1e-12


@pytest.mark.question("nyu-1.1f")
@pytest.mark.parametrize("stretch", [1.0, 1.5, 4.0, 30.0])
def test_the_weight_of_a_longer_key_is_a_sigmoid_of_how_much_longer_it_is(stretch):
    query, key, _ = queries_keys_values()
    beta, j = 0.4, 3
    # The last query stands at right angles to the key.
    query[-1] -= (query[-1] @ key[j]) / (key[j] @ key[j]) * key[j]
    longer = key.clone()
    longer[j] *= stretch
    before = attention_weights(query, key, scale=beta)[:, j]
    after = attention_weights(query, longer, scale=beta)[:, j]
    stated = torch.sigmoid(before.logit() + beta * (stretch - 1) * query @ key[j])
    assert torch.allclose(after, stated, rtol=0, atol=1e-12)
    assert after[-1].item() == pytest.approx(before[-1].item(), abs=1e-12)


@pytest.mark.question("nyu-1.1f")
def test_a_longer_key_can_lose_all_its_weight():
    query = torch.tensor([[1.0, 0.0]], dtype=F64)
    key = torch.tensor([[-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]], dtype=F64)
    value = torch.tensor([[9.0], [1.0], [3.0]], dtype=F64)
    longer = key * torch.tensor([[100.0], [1.0], [1.0]], dtype=F64)
    output, weights = attention(query, longer, value, scale=1.0, return_weights=True)
    assert weights is not None
    assert weights[0, 0] < 1e-40
    assert output.item() == pytest.approx((1.0 + 3.0) / 2)


# Why to scale


@pytest.mark.question("quiz-2.3")
def test_high_scores_do_no_harm_and_wide_gaps_do():
    scores = torch.randn(11, dtype=F64)
    calm = softmax_jacobian(scores)
    assert torch.allclose(softmax_jacobian(scores + 1000.0), calm, rtol=0, atol=1e-12)
    assert softmax_jacobian(200.0 * scores).norm() < 1e-6 * calm.norm()


@pytest.mark.question("quiz-2.3")
def test_multiplying_by_the_root_of_d_makes_matters_worse():
    d = 256
    products = (torch.randn(500, 1, d) * torch.randn(500, 11, d)).sum(-1)
    divided, plain, multiplied = (
        softmax_jacobian(beta * products).norm(dim=(1, 2)).mean().item()
        for beta in (1 / math.sqrt(d), 1.0, math.sqrt(d))
    )
    assert divided > 2 * plain > 10 * multiplied


@pytest.mark.question("quiz-2.3")
def test_the_size_of_softmaxs_jacobian_follows_its_formula_and_bounds():
    scores = 3 * torch.randn(500, 11, dtype=F64)
    a = scores.softmax(-1)
    size = softmax_jacobian(scores).norm(dim=(1, 2))
    squares, cubes = a.square().sum(-1), a.pow(3).sum(-1)
    stated = (squares - 2 * cubes + squares**2).sqrt()
    assert torch.allclose(size, stated, rtol=0, atol=1e-10)
    assert (size <= 1 - squares + 1e-12).all()
    assert (1 - squares <= 2 * (1 - a.amax(-1)) + 1e-12).all()


@pytest.mark.question("quiz-2.3")
def test_without_the_scale_a_typical_query_gets_no_gradient_and_a_rare_one_much():
    def gradients(beta: float) -> Tensor:
        query, key = torch.randn(400, 1, d), torch.randn(400, 11, d)
        jacobian = softmax_jacobian(beta * (query * key).sum(-1))
        return beta * (jacobian @ key).norm(dim=(1, 2))

    d = 1024
    plain, scaled = gradients(1.0), gradients(1 / math.sqrt(d))
    # Measured in the query itself, the mean does not die: near-ties carry it all.
    assert plain.mean() > scaled.mean()
    assert plain.median() < 0.01 * scaled.median()
    assert scaled.max() / scaled.min() < 10


# The computation by hand

HIDDEN = torch.tensor([[5.0, 1.0], [4.0, 3.0], [-2.0, 6.0]], dtype=F64)
QUERY = HIDDEN @ torch.tensor([[1.0, 0.0], [2.0, 9.0]], dtype=F64).T
KEY = HIDDEN @ torch.tensor([[0.0, 1.0], [6.0, 0.0]], dtype=F64).T
VALUE = HIDDEN @ torch.tensor([[4.0, 3.0], [9.0, 1.0]], dtype=F64).T


@pytest.mark.question("eecs-2a")
def test_all_nine_scores_of_the_hand_computation():
    assert QUERY.tolist() == [[5, 19], [4, 35], [-2, 50]]
    assert KEY.tolist() == [[1, 30], [3, 24], [6, -12]]
    scores = QUERY @ KEY.T
    assert scores.tolist() == [[575, 471, -198], [1054, 852, -396], [1498, 1194, -612]]


@pytest.mark.question("eecs-2b")
def test_softmax_of_the_hand_computed_scores_is_one_hot_to_the_last_bit():
    assert VALUE.tolist() == [[23, 46], [25, 39], [10, -12]]
    output, weights = attention(QUERY[1:2], KEY, VALUE, scale=1.0, return_weights=True)
    assert weights is not None
    assert weights[0, 0] == 1.0
    assert weights[0, 1].item() == pytest.approx(math.exp(852 - 1054), rel=1e-10)
    assert weights[0, 2] == 0.0  # e^-1450 is below the smallest number of float64
    assert output.tolist() == [[23, 46]]


@pytest.mark.question("eecs-2b")
def test_a_hundredth_of_the_hand_computed_scores_mixes_the_values():
    output, weights = attention(QUERY[1:2], KEY, VALUE, scale=0.01, return_weights=True)
    assert weights is not None
    assert weights[0].tolist() == pytest.approx([0.8829, 0.1171, 0.0000], abs=5e-5)
    assert output[0].tolist() == pytest.approx([23.2342, 45.1801], abs=5e-5)


@pytest.mark.question("eecs-2c")
def test_with_argmax_all_three_states_choose_the_first_value():
    output, _ = attention(QUERY, KEY, VALUE, scale=math.inf)
    assert output.tolist() == [[23, 46]] * 3


@pytest.mark.question("eecs-2c")
def test_argmax_gives_queries_and_keys_no_gradient():
    query, key, value = (x.clone().requires_grad_() for x in (QUERY, KEY, VALUE))
    output, _ = attention(query, key, value, scale=math.inf)
    gradients = torch.autograd.grad(
        output[1].sum(), (query, key, value), allow_unused=True
    )
    assert gradients[:2] == (None, None)
    assert gradients[2].tolist() == [[1, 1], [0, 0], [0, 0]]
