"""Chapter 6: what a Transformer is not, and what can be counted about it."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from transformers_hw import (
    BertFFN,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    FeedForward,
    LayerNorm,
    MultiHeadAttention,
    Transformer,
    gelu,
    layer_norm,
)

F64 = torch.float64
B, T, S, D, H, HIDDEN = 2, 5, 7, 12, 3, 17


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=F64, requires_grad=True)


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def multiplications(module: nn.Module, x: Tensor) -> int:
    """Count those of matrix products, as PyTorch does."""
    # PyTorch 2.10 does not count what its fused attention does on a CPU.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        module(x)
    return counter.get_total_flops() // 2


# --- the Transformer and recurrent networks -------------------------------------------


@pytest.mark.question("nyu-1.4a")
@pytest.mark.parametrize("n", [7, 50, 300])
def test_a_layer_costs_4nd2_and_2n2d_where_a_recurrent_one_costs_2nd2(n: int) -> None:
    d = 32
    x = torch.randn(1, n, d)
    attention = multiplications(MultiHeadAttention(d, 4), x)
    recurrent = multiplications(nn.RNN(d, d, batch_first=True), x)
    mixing = 2 * n**2 * d
    assert attention == 4 * n * d**2 + mixing
    assert recurrent == 2 * n * d**2
    # Table 1 of the paper compares the mixing alone.
    assert (mixing < recurrent) == (n < d)
    # An LSTM uses each of its weights once a token.
    lstm = nn.LSTM(d, d)
    weights = lstm.weight_ih_l0.numel() + lstm.weight_hh_l0.numel()
    assert weights == 8 * d**2
    assert (attention < n * weights) == (n < 2 * d)


@pytest.mark.question("nyu-1.4a")
def test_a_path_is_1_layer_long_by_attention_log_n_or_n_by_convolution() -> None:
    n, k = 27, 3

    def reaches(layer: nn.Module | None, dilations: list[int]) -> bool:
        """Say whether the last output hears of the first input."""
        x = torch.ones(1, 1, n, dtype=F64, requires_grad=True)
        y = x if layer is None else layer(x.mT, causal=True)[0].mT
        for step in dilations:
            before = F.pad(y, ((k - 1) * step, 0))
            y = F.conv1d(before, torch.ones(1, 1, k, dtype=F64), dilation=step)
        return bool(torch.autograd.grad(y[0, 0, -1], x)[0][0, 0, 0] != 0)

    assert reaches(MultiHeadAttention(1, 1, dtype=F64), [])
    assert [reaches(None, [1] * depth) for depth in (12, 13)] == [False, True]
    assert [reaches(None, dilations) for dilations in ([1, 3], [1, 3, 9])] == [
        False,
        True,
    ]
    assert (n - 1) / (k - 1) == 13
    assert round(math.log(n, k)) == 3


SOURCE = torch.tensor([[3, 4, 5, 6, 7, 8, 9]])
TARGET = torch.tensor([[1, 5, 4, 3, 10]])


def small_model() -> Transformer:
    return Transformer(11, dim=D, heads=H, hidden_dim=HIDDEN, depth=2, dtype=F64)


@pytest.mark.question("nyu-1.4a", "quiz-2.1")
def test_one_pass_in_training_predicts_what_every_prefix_alone_would() -> None:
    model = small_model()
    at_once = model(SOURCE, TARGET)[0]
    for t in range(1, T + 1):
        alone = model(SOURCE, TARGET[:, :t])[0, -1]
        assert torch.allclose(at_once[t - 1], alone, rtol=0, atol=1e-12)


# --- self-attention -------------------------------------------------------------------


@pytest.mark.question("nyu-1.4b")
def test_the_sum_of_self_attention_includes_the_token_itself() -> None:
    layer = MultiHeadAttention(D, H, dtype=F64)
    x = torch.randn(B, T, D, dtype=F64)
    output, weights = layer(x, return_weights=True)
    assert weights is not None
    assert (weights.diagonal(dim1=-2, dim2=-1) > 0).all()
    others_only, _ = layer(x, mask=~torch.eye(T, dtype=torch.bool))
    assert not torch.allclose(output, others_only, atol=1e-2)
    theirs = nn.MultiheadAttention(D, H, bias=False, batch_first=True, dtype=F64)
    its_weights = theirs(x, x, x, average_attn_weights=False)[1]
    assert (its_weights.diagonal(dim1=-2, dim2=-1) > 0).all()


@pytest.mark.question("nyu-1.4b")
def test_values_may_have_any_width_but_queries_and_keys_share_theirs() -> None:
    x = torch.randn(T, D, dtype=F64)
    W_q, W_k, W_v = (torch.randn(D, width, dtype=F64) for width in (3, 3, 11))
    weights = torch.softmax((x @ W_q) @ (x @ W_k).T / math.sqrt(3), dim=-1)
    assert (weights @ (x @ W_v)).shape == (T, 11)
    layer = MultiHeadAttention(
        D, 1, head_dim=3, value_head_dim=11, bias=False, dtype=F64
    )
    with torch.no_grad():
        layer.query_proj.weight.copy_(W_q.T)
        layer.key_proj.weight.copy_(W_k.T)
        layer.value_proj.weight.copy_(W_v.T)
    expected = weights @ (x @ W_v) @ layer.output_proj.weight.T
    assert torch.allclose(layer(x[None])[0][0], expected, rtol=0, atol=1e-12)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        torch.matmul(x @ W_q, (x @ torch.randn(D, 4, dtype=F64)).T)


@pytest.mark.question("nyu-1.4b")
def test_a_token_means_something_else_in_another_context() -> None:
    layer = MultiHeadAttention(D, H, dtype=F64)
    token, here, there = (torch.randn(1, n, D, dtype=F64) for n in (1, T, T))
    first, second = (layer(torch.cat([token, rest], 1))[0] for rest in (here, there))
    assert not torch.allclose(first[:, 0], second[:, 0], atol=1e-2)


# --- heads ----------------------------------------------------------------------------


@pytest.mark.question("nyu-1.4c")
def test_concatenated_heads_are_not_yet_the_output() -> None:
    theirs = nn.MultiheadAttention(D, H, bias=False, batch_first=True, dtype=F64)
    x = torch.randn(1, T, D, dtype=F64)
    query, key, value = (x[0] @ w.T for w in theirs.in_proj_weight.chunk(3))
    heads = [
        torch.softmax(q @ k.T / math.sqrt(D / H), dim=-1) @ v
        for q, k, v in zip(
            query.chunk(H, -1), key.chunk(H, -1), value.chunk(H, -1), strict=True
        )
    ]
    concatenated = torch.cat(heads, dim=-1)
    output = theirs(x, x, x)[0][0]
    W_o = theirs.out_proj.weight.T
    assert torch.allclose(output, concatenated @ W_o, rtol=0, atol=1e-12)
    assert not torch.allclose(output, concatenated, atol=1e-2)


@pytest.mark.question("nyu-1.4c")
def test_without_the_output_projection_no_channel_hears_two_heads() -> None:
    layer = MultiHeadAttention(D, H, bias=False, dtype=F64)
    x = torch.randn(1, T, D, dtype=F64)

    def heads_heard() -> int:
        """Count the heads that reach the first channel of the output."""
        y = layer(x)[0][..., 0].square().sum()
        gradient = torch.autograd.grad(y, layer.value_proj.weight)[0]
        return sum(bool((rows != 0).any()) for rows in gradient.chunk(H))

    assert heads_heard() == H
    layer.output_proj = nn.Identity()  # type: ignore[assignment]
    assert heads_heard() == 1


# --- the feed-forward network ---------------------------------------------------------


@pytest.mark.question("nyu-1.4d")
def test_no_token_of_the_feed_forward_network_depends_on_another() -> None:
    network = FeedForward(D, HIDDEN, dtype=F64)
    x = torch.randn(T, D, dtype=F64)
    jacobian = torch.autograd.functional.jacobian(network, x)
    assert isinstance(jacobian, Tensor)
    influence = jacobian.square().sum(dim=(1, 3))  # of each token on each
    assert (influence.diagonal() > 0).all()
    assert torch.equal(influence, influence.diagonal().diag())


@pytest.mark.question("nyu-1.4d")
def test_copies_that_begin_alike_part_where_one_network_cannot() -> None:
    shared = FeedForward(D, HIDDEN, dtype=F64)
    copies = [FeedForward(D, HIDDEN, dtype=F64) for _ in range(T)]
    for copy in copies:
        copy.load_state_dict(shared.state_dict())
    everything = [*shared.parameters(), *(p for c in copies for p in c.parameters())]
    optimiser = torch.optim.SGD(everything, lr=0.1)
    x, wanted = torch.randn(T, D, dtype=F64), torch.randn(T, D, dtype=F64)
    by_copies = torch.stack([copy(row) for copy, row in zip(copies, x, strict=True)])
    assert torch.allclose(by_copies, shared(x), rtol=0, atol=1e-12)
    (F.mse_loss(shared(x), wanted) + F.mse_loss(by_copies, wanted)).backward()
    optimiser.step()
    same_token = x[0].expand(T, D)
    outputs = torch.stack([copy(x[0]) for copy in copies])
    assert outputs.std(dim=0).min() > 1e-6
    assert torch.allclose(shared(same_token), shared(x[0]), rtol=0, atol=1e-12)


# --- layer normalisation --------------------------------------------------------------


@pytest.mark.question("nyu-1.4e")
def test_the_paper_normalises_the_sum_not_what_the_sublayer_says() -> None:
    theirs = nn.TransformerEncoderLayer(
        D, H, HIDDEN, dropout=0.0, batch_first=True, dtype=F64
    )
    x = 3.0 * torch.randn(B, T, D, dtype=F64) + 1.0
    said = theirs.self_attn(x, x, x)[0]
    inside = theirs.norm1(x + said)
    outside = x + theirs.norm1(said)
    found = theirs.norm2(inside + theirs.linear2(theirs.linear1(inside).relu()))
    assert torch.allclose(theirs(x), found, rtol=0, atol=1e-12)
    assert torch.allclose(inside.mean(-1), torch.zeros(B, T, dtype=F64), atol=1e-12)
    assert outside.mean(-1).abs().max() > 0.5


@pytest.mark.question("nyu-1.4e")
def test_no_two_numbers_do_the_work_of_factors_and_shifts() -> None:
    norm = nn.LayerNorm(512)
    assert norm.weight.shape == norm.bias.shape == (512,)
    assert count(LayerNorm(512)) == count(norm) == 2 * 512
    gamma, beta, x = (torch.randn(*s, dtype=F64) for s in ((D,), (D,), (50, D)))
    wanted = F.layer_norm(x, (D,), gamma, beta).flatten()
    plain = F.layer_norm(x, (D,)).flatten()
    columns = torch.stack([plain, torch.ones_like(plain)], dim=1)
    best = columns @ torch.linalg.lstsq(columns, wanted).solution
    assert (wanted - best).std() > 0.5 * wanted.std()


@pytest.mark.question("nyu-1.4e")
def test_layer_norm_lets_a_feature_drift_over_the_tokens() -> None:
    x = torch.randn(100, D, dtype=F64)
    drifted = x.clone()
    drifted[:, 0] += 10.0  # as a change of an earlier layer's bias would do
    batch_norm = nn.BatchNorm1d(D, affine=False, dtype=F64)
    assert torch.allclose(batch_norm(drifted), batch_norm(x), rtol=0, atol=1e-12)
    before, after = layer_norm(x).mean(dim=0), layer_norm(drifted).mean(dim=0)
    assert after[0] - before[0] > 2.0
    assert (after[1:] < before[1:]).all()


@pytest.mark.question("nyu-1.4e", "eth-2c")
def test_the_gradient_of_layer_norm_by_hand() -> None:
    x, gamma, g = randn(T, D), randn(D), torch.randn(T, D, dtype=F64)
    eps = 0.1
    y = F.layer_norm(x, (D,), gamma, eps=eps)
    by_autograd = torch.autograd.grad(y, (x, gamma), g)
    sigma = (x.var(-1, correction=0, keepdim=True) + eps).sqrt()
    x_hat = (x - x.mean(-1, keepdim=True)) / sigma
    g_hat = gamma * g
    mean = g_hat.mean(-1, keepdim=True)
    projection = (g_hat * x_hat).mean(-1, keepdim=True)
    by_hand = (g_hat - mean - x_hat * projection) / sigma
    assert torch.allclose(by_autograd[0], by_hand, rtol=0, atol=1e-12)
    assert torch.allclose(by_autograd[1], (g * x_hat).sum(0), rtol=0, atol=1e-12)


@pytest.mark.question("nyu-1.4e", "eth-2c")
def test_scale_and_shift_of_a_token_are_forgotten_and_shrink_its_gradient() -> None:
    x, g = randn(T, D), torch.randn(T, D, dtype=F64)
    moved = (5.0 * x + 3.0).detach().requires_grad_()
    y, same = layer_norm(x, eps=0.0), layer_norm(moved, eps=0.0)
    assert torch.allclose(y, same, rtol=0, atol=1e-12)
    gradient = torch.autograd.grad(y, x, g)[0]
    smaller = torch.autograd.grad(same, moved, g)[0]
    assert torch.allclose(smaller, gradient / 5.0, rtol=0, atol=1e-12)
    assert gradient.sum(-1).abs().max() < 1e-12
    assert (gradient * y).sum(-1).abs().max() < 1e-12


@pytest.mark.question("nyu-1.4e")
def test_a_pre_norm_stack_of_silent_sublayers_is_the_identity() -> None:
    x = 3.0 * torch.randn(B, T, D, dtype=F64) + 1.0

    def silent(norm: str) -> Encoder:
        stack = Encoder(D, H, HIDDEN, 5, norm=norm, final_norm=False, dtype=F64)  # type: ignore[arg-type]
        with torch.no_grad():
            for name, parameter in stack.named_parameters():
                if "output_proj" in name:
                    parameter.zero_()
        return stack

    assert torch.equal(silent("pre")(x), x)
    normalised = F.layer_norm(x, (D,))
    assert torch.allclose(silent("post")(x), normalised, atol=1e-3)


@pytest.mark.question("nyu-1.4e")
def test_depth_shrinks_the_last_layer_s_gradient_for_pre_norm_alone() -> None:
    def gradient(norm: str, depth: int) -> float:
        torch.manual_seed(0)
        stack = Encoder(32, 4, 64, depth, norm=norm)  # type: ignore[arg-type]
        for layer in stack.layers:
            network = layer.feed_forward
            for linear in (network.hidden_proj, network.output_proj):
                nn.init.xavier_uniform_(linear.weight)
                nn.init.zeros_(linear.bias)
        readout = torch.randn(32, 11) / math.sqrt(32)
        logits = stack(torch.randn(4, 16, 32)) @ readout
        F.cross_entropy(logits.flatten(0, 1), torch.arange(64) % 11).backward()
        last = stack.layers[-1].feed_forward.output_proj.weight.grad
        return last.norm().item()

    assert gradient("pre", 32) < 0.4 * gradient("pre", 2)  # the theory's order: 1/4
    assert gradient("post", 32) > gradient("post", 2)


# --- encoder and decoder --------------------------------------------------------------


@pytest.mark.question("quiz-2.1")
def test_a_decoder_layer_is_an_encoder_layer_a_cross_attention_and_a_norm() -> None:
    encoder, decoder = (
        layer(512, 8, 2048, device="meta") for layer in (EncoderLayer, DecoderLayer)
    )
    attention, norm = MultiHeadAttention(512, 8, device="meta"), LayerNorm(512)
    assert count(encoder) == 3_152_384
    assert count(decoder) == count(encoder) + count(attention) + count(norm)
    with torch.device("meta"):
        theirs = nn.TransformerEncoderLayer(512, 8), nn.TransformerDecoderLayer(512, 8)
    assert [count(layer) for layer in theirs] == [count(encoder), count(decoder)]


@pytest.mark.question("quiz-2.1")
def test_unless_shifted_the_answer_would_be_among_the_inputs() -> None:
    model, answer = small_model(), torch.tensor([[5, 4, 3, 10, 2]])
    other = answer.clone()
    other[0, 3] = 6
    begin = torch.tensor([[1]])

    def prediction(target: Tensor) -> Tensor:
        """Give the logits of the fourth answer."""
        return model(SOURCE, target)[0, 3]

    def shifted(target: Tensor) -> Tensor:
        return torch.cat([begin, target[:, :-1]], dim=1)

    assert torch.equal(prediction(shifted(answer)), prediction(shifted(other)))
    assert not torch.allclose(prediction(answer), prediction(other), atol=1e-2)


@pytest.mark.question("quiz-2.4")
def test_cross_attention_weighs_input_positions_not_decoder_states() -> None:
    layer = DecoderLayer(D, H, HIDDEN, dtype=F64).cross_attention
    states, memory = torch.randn(B, T, D, dtype=F64), torch.randn(B, S, D, dtype=F64)
    output, weights = layer(states, memory, return_weights=True)
    assert weights is not None
    assert weights.shape == (B, H, T, S)
    assert torch.allclose(weights.sum(-1), torch.ones(B, H, T, dtype=F64))
    changed = states.clone()
    changed[:, :-1] = 0.0  # all states before the last
    last = layer(changed, memory)[0][:, -1]
    assert torch.allclose(last, output[:, -1], rtol=0, atol=1e-12)
    changed = memory.clone()
    changed[:, 3] = 0.0  # one position of the input
    assert not torch.allclose(layer(states, changed)[0][:, -1], output[:, -1])


# --- what the assignment asks to write ------------------------------------------------


@pytest.mark.question("eth-2b")
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_mirroring_a_gelu_takes_x_off_so_that_errors_are_even(approximate) -> None:
    x = torch.linspace(-6, 6, 1201, dtype=F64)
    difference = gelu(x, approximate=approximate) - gelu(-x, approximate=approximate)
    assert torch.allclose(difference, x, rtol=0, atol=1e-14)


@pytest.mark.question("eth-2b")
def test_the_tanh_errs_on_both_sides_and_much_less_than_the_sigmoid() -> None:
    x = torch.linspace(0, 6, 60_001, dtype=F64)
    exact = x * torch.special.ndtr(x)
    assert torch.allclose(gelu(x), exact, rtol=0, atol=1e-14)
    by_tanh = gelu(x, approximate="tanh") - exact
    assert by_tanh.max().item() == pytest.approx(4.732e-4, abs=1e-7)
    assert by_tanh.min().item() == pytest.approx(-2.337e-4, abs=1e-7)
    assert x[by_tanh.argmin()].item() == pytest.approx(1.364, abs=1e-3)
    by_sigmoid = (x * torch.sigmoid(1.702 * x) - exact).abs()
    assert by_sigmoid.max().item() == pytest.approx(2.033e-2, abs=1e-5)
    assert x[by_sigmoid.argmax()].item() == pytest.approx(2.270, abs=1e-3)
    far = torch.tensor(-5.0, dtype=F64)  # small errors may be large ratios
    assert gelu(far) / gelu(far, approximate="tanh") > 6


@pytest.mark.question("eth-2b")
def test_gelu_dips_below_zero_and_is_steepest_at_the_root_of_two() -> None:
    x = torch.linspace(-4, 4, 80_001, dtype=F64, requires_grad=True)
    y = gelu(x)
    slope = torch.autograd.grad(y.sum(), x)[0]
    density = torch.exp(-x.square() / 2) / math.sqrt(2 * math.pi)
    by_hand = torch.special.ndtr(x) + x * density
    assert torch.allclose(slope, by_hand, rtol=0, atol=1e-12)
    assert y.min().item() == pytest.approx(-0.16997, abs=1e-5)
    assert x[y.argmin()].item() == pytest.approx(-0.7518, abs=1e-4)
    assert slope.max().item() == pytest.approx(1.1289, abs=1e-4)
    assert x[slope.argmax()].item() == pytest.approx(math.sqrt(2), abs=1e-4)


@pytest.mark.question("eth-2b")
def test_the_coefficient_of_the_cube_fits_the_normal_distribution_best() -> None:
    x = torch.linspace(0, 6, 6001, dtype=F64)

    def worst(coefficient: float) -> float:
        inner = math.sqrt(2 / math.pi) * (x + coefficient * x**3)
        error = 0.5 * (1 + torch.tanh(inner)) - torch.special.ndtr(x)
        return error.abs().max().item()

    candidates = [0.0440 + 1e-6 * i for i in range(2_000)]
    assert min(candidates, key=worst) == pytest.approx(0.044715, abs=2e-6)
    taylor = 2 / (3 * math.pi) - 1 / 6  # the same cube at zero
    assert taylor == pytest.approx(0.04554, abs=1e-6)
    assert worst(0.044715) < 1.8e-4 < worst(taylor)


@pytest.mark.question("eth-2c")
def test_layer_norm_of_three_numbers_by_hand() -> None:
    # Mean 4, variance (9 + 1 + 16) / 3, each deviation over its root.
    found = layer_norm(torch.tensor([1.0, 3.0, 8.0], dtype=F64), eps=0.0)
    root = math.sqrt(26 / 3)
    assert found.tolist() == pytest.approx([-3 / root, -1 / root, 4 / root])
    constant = layer_norm(torch.full((D,), 7.0, dtype=F64))
    assert torch.equal(constant, torch.zeros(D, dtype=F64))


@pytest.mark.question("eth-2d")
def test_bert_ffn_is_the_second_half_of_a_post_norm_layer() -> None:
    theirs = nn.TransformerEncoderLayer(
        D, H, HIDDEN, 0.0, activation="gelu", layer_norm_eps=1e-12, dtype=F64
    )
    half = BertFFN(D, HIDDEN, dtype=F64)
    half.network.hidden_proj.load_state_dict(theirs.linear1.state_dict())
    half.network.output_proj.load_state_dict(theirs.linear2.state_dict())
    x = torch.randn(B, T, D, dtype=F64)
    expected = theirs.norm2(x + theirs.linear2(F.gelu(theirs.linear1(x))))
    assert torch.allclose(half(x), expected, rtol=0, atol=1e-12)
    assert count(half) == 2 * D * HIDDEN + HIDDEN + D + 2 * D
