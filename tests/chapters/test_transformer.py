"""Chapter 6 against nn.Transformer and its parts, formulas, and counting by hand."""

import itertools
import math
import statistics
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from bad_calls import assert_refused, bad_calls
from timm import layers as timm_layers
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers.generation import logits_process

from transformers_hw import (
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    FeedForward,
    LanguageModel,
    LayerNorm,
    MultiHeadAttention,
    RMSNorm,
    Transformer,
    capture_weights,
    dot_product_attention,
    padding_mask,
)
from transformers_hw.attention_as_convolution import BertFFN
from transformers_hw.pretrained import from_torch
from transformers_hw.transformer import (
    Bert,
    DecoderCache,
    DropPath,
    LayerScale,
    SwiGLU,
    filtered_logits,
    gelu,
    label_smoothing_loss,
    layer_norm,
    mean_pool,
    parts,
    rms_norm,
    transformer_learning_rate,
)

F64 = torch.float64
B, T, S, D, H, HIDDEN = 2, 5, 7, 12, 3, 17
SOURCE = torch.tensor([[3, 4, 5, 6, 7, 8, 9], [9, 8, 7, 6, 0, 0, 0]])
TARGET = torch.tensor([[1, 5, 4, 3, 10], [1, 7, 6, 0, 0]])
SETTINGS = list(itertools.product(["pre", "post"], ["relu", "gelu"]))


def drawn(theirs: nn.Module) -> nn.Module:
    """Draw every weight of PyTorch's module anew, norms and biases included."""
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(std=0.3)
    return theirs


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=F64, requires_grad=True)


def same(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=0, atol=1e-12)


def assert_same(ours: Tensor, theirs: Tensor, inputs: list[Tensor]) -> None:
    """Outputs and gradients agree to ten digits."""
    assert ours.std() > 0
    gradients = (torch.autograd.grad(y.sin().sum(), inputs) for y in (ours, theirs))
    for a, b in ((ours, theirs), *zip(*gradients, strict=True)):
        assert torch.allclose(a, b, rtol=0, atol=1e-10)


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def small_model(**options: Any) -> Transformer:
    sizes = {"dim": D, "heads": H, "hidden_dim": HIDDEN, "depth": 2, "dtype": F64}
    return Transformer(11, **(sizes | options))


# --- normalization -----------------------------------------------------------------


@pytest.mark.question("nyu-1.4e", "eth-2c")
@pytest.mark.parametrize("bias", [False, True])
def test_layer_norm_matches_pytorch(bias):
    """Layer norm and its gradient agree with PyTorch's to 1e-10."""
    ours = LayerNorm(7, eps=1e-3, bias=bias, dtype=F64)
    theirs = drawn(nn.LayerNorm(7, eps=1e-3, bias=bias, dtype=F64))
    ours.load_state_dict(theirs.state_dict())
    x = randn(2, 3, 7)
    assert_same(ours(x), theirs(x), [x])
    by_formula = layer_norm(x, ours.weight, ours.bias, eps=1e-3)
    assert_same(by_formula, theirs(x), [x])
    ours.reset_parameters()
    assert torch.allclose(ours(x), layer_norm(x, eps=1e-3))


@pytest.mark.question("nyu-1.4e")
def test_a_token_is_normalized_alone_with_its_biased_variance():
    """Each token gets mean 0 and biased variance 1, whatever the others are."""
    x = torch.randn(5, 7, dtype=F64)
    y = layer_norm(x, eps=0.0)
    assert same(y.mean(-1), torch.zeros(5, dtype=F64))
    assert same(y.var(-1, correction=0), torch.ones(5, dtype=F64))
    changed = torch.cat([x[:1], x[1:] + 100.0])
    assert torch.equal(layer_norm(changed, eps=0.0)[0], y[0])


@pytest.mark.question("eth-2c")
def test_layer_norm_of_three_numbers_by_hand():
    """The numbers 1, 3 and 8 are normalized as by hand."""
    # Mean 4, variance (9 + 1 + 16) / 3, each deviation over its root.
    found = layer_norm(torch.tensor([1.0, 3.0, 8.0], dtype=F64), eps=0.0)
    root = math.sqrt(26 / 3)
    assert found.tolist() == pytest.approx([-3 / root, -1 / root, 4 / root])
    constant = layer_norm(torch.full((D,), 7.0, dtype=F64))
    assert torch.equal(constant, torch.zeros(D, dtype=F64))


@pytest.mark.question("nyu-1.4e", "eth-2c")
def test_the_gradient_of_layer_norm_by_hand():
    """The formula for the gradient of layer norm agrees with autograd."""
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
    assert same(by_autograd[0], by_hand)
    assert same(by_autograd[1], (g * x_hat).sum(0))


@pytest.mark.question("nyu-1.4e", "eth-2c")
def test_scale_and_shift_of_a_token_are_forgotten_and_shrink_its_gradient():
    """Scaling or shifting a token leaves its layer norm unchanged."""
    x, g = randn(T, D), torch.randn(T, D, dtype=F64)
    moved = (5.0 * x + 3.0).detach().requires_grad_()
    y, y_moved = layer_norm(x, eps=0.0), layer_norm(moved, eps=0.0)
    assert same(y, y_moved)
    gradient = torch.autograd.grad(y, x, g)[0]
    smaller = torch.autograd.grad(y_moved, moved, g)[0]
    assert same(smaller, gradient / 5.0)
    assert gradient.sum(-1).abs().max() < 1e-12
    assert (gradient * y).sum(-1).abs().max() < 1e-12


@pytest.mark.question("nyu-1.4e")
def test_no_two_numbers_do_the_work_of_factors_and_shifts():
    """Two numbers cannot replace the vectors of factors and shifts."""
    assert count(LayerNorm(512)) == count(nn.LayerNorm(512)) == 2 * 512
    gamma, beta, x = (torch.randn(*s, dtype=F64) for s in ((D,), (D,), (50, D)))
    wanted = F.layer_norm(x, (D,), gamma, beta).flatten()
    plain = F.layer_norm(x, (D,)).flatten()
    columns = torch.stack([plain, torch.ones_like(plain)], dim=1)
    best = columns @ torch.linalg.lstsq(columns, wanted).solution
    assert (wanted - best).std() > 0.5 * wanted.std()


@pytest.mark.question("nyu-1.4e")
def test_layer_norm_lets_a_feature_drift_over_the_tokens():
    """A feature can drift over the tokens; batch norm would undo it."""
    x = torch.randn(100, D, dtype=F64)
    drifted = x.clone()
    drifted[:, 0] += 10.0  # as a change of an earlier layer's bias would do
    batch_norm = nn.BatchNorm1d(D, affine=False, dtype=F64)
    assert same(batch_norm(drifted), batch_norm(x))
    before, after = layer_norm(x).mean(dim=0), layer_norm(drifted).mean(dim=0)
    assert after[0] - before[0] > 2.0
    assert (after[1:] < before[1:]).all()


def test_rms_norm_matches_pytorch():
    ours = RMSNorm(7, eps=1e-3, dtype=F64)
    theirs = drawn(nn.RMSNorm(7, eps=1e-3, dtype=F64))
    ours.load_state_dict(theirs.state_dict())
    x = randn(2, 3, 7)
    assert_same(ours(x), theirs(x), [x])
    assert_same(rms_norm(x, ours.weight, eps=1e-3), theirs(x), [x])
    ours.reset_parameters()
    assert same(ours(x), rms_norm(x, eps=1e-3))


def test_rms_norm_fixes_the_size_of_a_token_and_keeps_its_direction():
    x = torch.randn(T, D, dtype=F64)
    y = rms_norm(x, eps=0.0)
    assert same(y.norm(dim=-1), torch.full((T,), math.sqrt(D), dtype=F64))
    assert same(F.cosine_similarity(x, y), torch.ones(T, dtype=F64))
    assert same(rms_norm(5.0 * x, eps=0.0), y)
    assert not torch.allclose(rms_norm(x + 3.0, eps=0.0), y, atol=0.1)
    centered = x - x.mean(dim=-1, keepdim=True)
    assert same(rms_norm(centered), layer_norm(x))
    # The mean square is the squared mean plus the variance.
    mean_square = x.mean(dim=-1) ** 2 + x.var(dim=-1, correction=0)
    assert same(x.square().mean(dim=-1), mean_square)
    assert same(y[:, 0], x[:, 0] / mean_square.sqrt())


# --- the feed-forward network ------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_norms_of_half_precision_square_in_float32(dtype):
    x, weight, bias = (torch.randn(n, 7).to(dtype) for n in (5, 1, 1))
    x, weight, bias = 300 * x, weight[0], bias[0]  # 300 squared is beyond float16
    wide = [a.double() for a in (x, weight, bias)]
    near = {"rtol": 2 * torch.finfo(dtype).eps, "atol": 2 * torch.finfo(dtype).eps}
    for found, wanted in (
        (layer_norm(x, weight, bias), F.layer_norm(wide[0], (7,), *wide[1:])),
        (rms_norm(x, weight), F.rms_norm(wide[0], (7,), wide[1], 1e-5)),
    ):
        assert found.dtype == dtype
        assert torch.allclose(found.double(), wanted, **near)


@pytest.mark.question("eth-2b")
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_matches_pytorch(approximate):
    """Both GELUs and their gradients agree with PyTorch's to 1e-10."""
    x = torch.linspace(-9, 9, 1801, dtype=F64, requires_grad=True)
    ours, theirs = (f(x, approximate=approximate) for f in (gelu, F.gelu))
    assert_same(ours, theirs, [x])


@pytest.mark.question("eth-2b")
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_mirroring_a_gelu_takes_x_off_so_that_errors_are_even(approximate):
    """For both forms gelu(x) - gelu(-x) = x, so their difference is even."""
    x = torch.linspace(-6, 6, 1201, dtype=F64)
    difference = gelu(x, approximate=approximate) - gelu(-x, approximate=approximate)
    assert torch.allclose(difference, x, rtol=0, atol=1e-14)


@pytest.mark.question("eth-2b")
def test_the_tanh_errs_on_both_sides_and_much_less_than_the_sigmoid():
    """The tanh form is off by at most 4.732e-4, the sigmoid by 2.033e-2."""
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
def test_gelu_dips_below_zero_and_is_steepest_at_the_root_of_two():
    """The least value and the greatest slope of the GELU are as stated."""
    x = torch.linspace(-4, 4, 80_001, dtype=F64, requires_grad=True)
    y = gelu(x)
    slope = torch.autograd.grad(y.sum(), x)[0]
    density = torch.exp(-x.square() / 2) / math.sqrt(2 * math.pi)
    by_hand = torch.special.ndtr(x) + x * density
    assert same(slope, by_hand)
    assert y.min().item() == pytest.approx(-0.16997, abs=1e-5)
    assert x[y.argmin()].item() == pytest.approx(-0.7518, abs=1e-4)
    assert slope.max().item() == pytest.approx(1.1289, abs=1e-4)
    assert x[slope.argmax()].item() == pytest.approx(math.sqrt(2), abs=1e-4)


@pytest.mark.question("eth-2b")
def test_the_coefficient_of_the_cube_fits_the_normal_distribution_best():
    """A search finds 0.044715 as the best coefficient of the cube."""
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


@pytest.mark.question("nyu-1.4d")
def test_the_feed_forward_network_is_two_convolutions_of_kernel_size_one():
    """The network equals two convolutions of kernel size one."""
    network = FeedForward(D, HIDDEN, dtype=F64)
    x = randn(B, T, D)
    first, second = network.hidden_proj, network.output_proj
    hidden = F.conv1d(x.mT, first.weight[..., None], first.bias).relu()
    expected = F.conv1d(hidden, second.weight[..., None], second.bias).mT
    assert_same(network(x), expected, [x])


@pytest.mark.question("nyu-1.4d")
def test_the_feed_forward_network_is_shared_by_positions_and_mixes_none():
    """Permuting the tokens permutes the network's outputs, no more."""
    network = FeedForward(D, HIDDEN, dtype=F64)
    x, shuffle = torch.randn(T, D, dtype=F64), torch.randperm(T)
    assert same(network(x[shuffle]), network(x)[shuffle])
    assert same(network(x[:1])[0], network(x)[0])
    assert count(FeedForward(512, 2048, device="meta")) == 2_099_712


@pytest.mark.question("nyu-1.4d")
def test_no_token_of_the_feed_forward_network_depends_on_another():
    """The derivative of one token's output by another token is zero."""
    network = FeedForward(D, HIDDEN, dtype=F64)
    x = torch.randn(T, D, dtype=F64)
    jacobian = torch.autograd.functional.jacobian(network, x)
    assert isinstance(jacobian, Tensor)
    influence = jacobian.square().sum(dim=(1, 3))  # of each token on each
    assert (influence.diagonal() > 0).all()
    assert torch.equal(influence, influence.diagonal().diag())


@pytest.mark.question("nyu-1.4d")
def test_the_network_is_position_wise_and_not_element_wise():
    """Within a token, every feature of the output depends on every input."""
    network = FeedForward(D, HIDDEN, activation="gelu", dtype=F64)
    x = torch.randn(D, dtype=F64)
    jacobian = torch.autograd.functional.jacobian(network, x)
    assert isinstance(jacobian, Tensor)
    assert (jacobian != 0).all()  # every feature of a token reaches every other
    relu = torch.autograd.functional.jacobian(torch.relu, x)
    assert isinstance(relu, Tensor)
    assert torch.equal(relu, relu.diagonal().diag())


@pytest.mark.question("nyu-1.4d")
def test_without_a_nonlinearity_the_network_is_one_matrix_and_cannot_compare(
    monkeypatch: pytest.MonkeyPatch,
):
    """A linear network is one matrix, and cannot tell whether bits differ."""
    monkeypatch.setitem(parts.ACTIVATIONS, "relu", lambda x: x)
    linear = FeedForward(D, HIDDEN, dtype=F64)
    first, second = linear.hidden_proj, linear.output_proj
    matrix = first.weight.T @ second.weight.T
    bias = first.bias @ second.weight.T + second.bias
    x = torch.randn(B, T, D, dtype=F64)
    assert same(linear(x), x @ matrix + bias)
    # Whether two bits differ: no affine map comes closer than 1/2 to all four cases.
    cases = torch.tensor([[u, t, 1.0] for u in (0, 1) for t in (0, 1)], dtype=F64)
    differ = torch.tensor([0.0, 1.0, 1.0, 0.0], dtype=F64)
    best = cases @ torch.linalg.lstsq(cases, differ).solution
    assert same(best, torch.full((4,), 0.5, dtype=F64))
    monkeypatch.undo()
    network = FeedForward(2, 2, bias=False, dtype=F64)
    with torch.no_grad():
        network.hidden_proj.weight.copy_(torch.tensor([[1.0, -1.0], [-1.0, 1.0]]))
        network.output_proj.weight.copy_(torch.ones(2, 2))
    assert torch.equal(network(cases[:, :2])[:, 0], differ)


@pytest.mark.question("nyu-1.4d")
def test_copies_that_begin_alike_part_where_one_network_cannot():
    """Copies per position differ after one training step; one network cannot."""
    shared, *copies = (FeedForward(D, HIDDEN, dtype=F64) for _ in range(1 + T))
    for copy in copies:
        copy.load_state_dict(shared.state_dict())
    optimizer = torch.optim.SGD(nn.ModuleList([shared, *copies]).parameters(), lr=0.1)
    x, wanted = torch.randn(T, D, dtype=F64), torch.randn(T, D, dtype=F64)
    by_copies = torch.stack([copy(row) for copy, row in zip(copies, x, strict=True)])
    assert same(by_copies, shared(x))
    (F.mse_loss(shared(x), wanted) + F.mse_loss(by_copies, wanted)).backward()
    optimizer.step()
    outputs = torch.stack([copy(x[0]) for copy in copies])
    assert outputs.std(dim=0).min() > 1e-6
    assert same(shared(x[0].expand(T, D)), shared(x[0]).expand(T, D))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("norm", [None, "layer"])
def test_swiglu_matches_timm(norm, bias):
    norm_layer = nn.LayerNorm if norm else None
    theirs = timm_layers.SwiGLU(D, HIDDEN, norm_layer=norm_layer, bias=bias)
    theirs = drawn(theirs.double())
    ours = SwiGLU(D, HIDDEN, norm=norm, bias=bias, dtype=F64)
    names = {"fc1_g": "gate_proj", "fc1_x": "hidden_proj", "fc2": "output_proj"}
    for name, part in theirs.named_children():
        if [*part.parameters()]:
            ours.get_submodule(names.get(name, name)).load_state_dict(part.state_dict())
    x = randn(B, T, D)
    assert_same(ours(x), theirs(x), [x])


def test_swiglu_multiplies_values_by_gates_for_each_token_alone():
    network = SwiGLU(D, HIDDEN, bias=False, dtype=F64)
    x, shuffle = randn(T, D), torch.randperm(T)
    W_g, W_1, W_2 = (weight.T for weight in network.parameters())
    gate = x @ W_g
    by_hand = (gate / (1 + torch.exp(-gate)) * (x @ W_1)) @ W_2
    assert_same(network(x), by_hand, [x])
    assert same(network(x[shuffle]), network(x)[shuffle])
    assert count(network) == 3 * D * HIDDEN


@pytest.mark.parametrize("p", [0.0, 0.3])
def test_stochastic_depth_matches_timm(p):
    x = torch.randn(50, 3, D, dtype=F64)
    ours, theirs = DropPath(p), timm_layers.DropPath(p)
    torch.manual_seed(1)
    found = ours(x)
    torch.manual_seed(1)
    assert same(found, theirs(x))
    dropped = (found == 0).all(dim=(1, 2))
    assert dropped.any() == (p > 0)
    assert same(found[~dropped], x[~dropped] / (1 - p))
    assert torch.equal(ours.eval()(x), x)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_layer_scale_multiplies_what_a_sublayer_adds(norm):
    options = {"norm": norm, "dtype": F64}
    plain = EncoderLayer(D, H, HIDDEN, **options)
    scaled = EncoderLayer(D, H, HIDDEN, layer_scale=0.3, **options)
    scaled.load_state_dict(plain.state_dict(), strict=False)
    x = torch.randn(B, T, D, dtype=F64)
    for part in (plain.attention.output_proj, plain.feed_forward.output_proj):
        with torch.no_grad():
            part.weight.mul_(0.3)
            part.bias.mul_(0.3)
    assert same(scaled(x), plain(x))
    factors = LayerScale(D, initial=0.3, dtype=F64)
    assert same(factors(x), 0.3 * x)
    assert same(LayerScale(D, dtype=F64)(x), 1e-5 * x)  # CaiT's, for 24 to 36 layers


def test_a_layer_hands_its_options_to_attention():
    options = {"head_dim": 5, "kv_heads": 1, "softcap": 2.5, "dropout": 0.25}
    attention = EncoderLayer(D, H, HIDDEN, **options, dtype=F64).attention
    alone = MultiHeadAttention(D, H, **options, qk_eps=1e-5, dtype=F64)
    assert attention.query_proj.weight.shape == (5 * H, D)
    assert attention.key_proj.weight.shape == (5, D)
    assert attention.config == alone.config
    assert attention.dropout == alone.dropout == 0.25


def test_the_eps_of_a_layer_reaches_its_queries_and_keys():
    layer = EncoderLayer(D, H, HIDDEN, eps=0.7, qk_norm="rms", norm="pre", dtype=F64)
    attention = layer.attention
    x = layer.attention_norm(torch.randn(B, T, D, dtype=F64))
    heads = attention.query_proj(x).unflatten(-1, (H, D // H))
    expected = heads / (heads.square().mean(-1, keepdim=True) + 0.7).sqrt()
    assert same(attention.query_norm(heads), expected)
    assert attention.key_norm.eps == 0.7


def test_stochastic_depth_grows_with_the_layers_and_drops_whole_sublayers():
    stack = Encoder(D, H, HIDDEN, 4, drop_path=0.6, dtype=F64)
    rates = [layer.drop_path.p for layer in stack.layers]
    assert rates == pytest.approx([0.15, 0.3, 0.45, 0.6])
    layer = EncoderLayer(D, H, HIDDEN, drop_path=0.9, dtype=F64)
    x = torch.randn(200, T, D, dtype=F64)
    unchanged = (layer(x) == x).all(dim=(1, 2)).double().mean().item()
    assert unchanged == pytest.approx(0.81, abs=0.09)  # both sublayers dropped
    assert not (layer.eval()(x) == x).all(dim=(1, 2)).any()
    assert DropPath().p == 0.0


def test_a_transformer_keeps_its_settings_which_are_the_base_models():
    config = Transformer(7, device="meta").config
    sizes = (config.dim, config.heads, config.hidden_dim, config.depth)
    assert sizes == (512, 8, 2048, 6)
    assert (config.vocab_size, config.max_length) == (7, 512)


@pytest.mark.question("eth-2d")
def test_bert_ffn_is_the_second_half_of_a_post_norm_layer():
    """BertFFN equals the second half of PyTorch's post-norm layer."""
    theirs = nn.TransformerEncoderLayer(
        D, H, HIDDEN, 0.0, activation="gelu", layer_norm_eps=1e-12, dtype=F64
    )
    half = BertFFN(D, HIDDEN, dtype=F64)
    half.network.hidden_proj.load_state_dict(theirs.linear1.state_dict())
    half.network.output_proj.load_state_dict(theirs.linear2.state_dict())
    x = torch.randn(B, T, D, dtype=F64)
    expected = theirs.norm2(x + theirs.linear2(F.gelu(theirs.linear1(x))))
    assert same(half(x), expected)
    assert count(half) == 2 * D * HIDDEN + HIDDEN + D + 2 * D


@pytest.mark.question("eth-2d")
def test_dropout_of_bert_ffn_acts_on_the_branch_before_the_addition():
    """Dropout acts on the network's output, before the addition."""
    half = BertFFN(D, HIDDEN, dropout=0.4, dtype=F64).train()
    x = torch.randn(B, T, D, dtype=F64)
    torch.manual_seed(0)
    found = half(x)
    torch.manual_seed(0)
    expected = half.norm(x + F.dropout(half.network(x), 0.4))
    assert same(found, expected)
    assert not torch.allclose(found, half.eval()(x), atol=1e-2)
    # With nothing on the branch there is nothing to drop: the residual path is spared.
    nn.init.zeros_(half.network.output_proj.weight)
    nn.init.zeros_(half.network.output_proj.bias)
    assert torch.equal(half.train()(x), half.norm(x))


@pytest.mark.question("quiz-2.1")
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_dropout_of_a_layer_spares_the_residual_path(norm):
    """Dropout never acts on the residual path."""
    layer = DecoderLayer(D, H, HIDDEN, norm=norm, dropout=0.4, dtype=F64).train()
    x, memory = torch.randn(B, T, D, dtype=F64), torch.randn(B, S, D, dtype=F64)
    assert not torch.allclose(layer(x, memory), layer(x, memory), atol=1e-2)
    for name, parameter in layer.named_parameters():
        if "output_proj" in name:
            nn.init.zeros_(parameter)
    assert torch.equal(layer(x, memory), layer.eval()(x, memory))


# --- self-attention and its heads --------------------------------------------------


@pytest.mark.question("nyu-1.4b")
def test_the_sum_of_self_attention_includes_the_token_itself():
    """Every token gives itself a positive weight."""
    layer = MultiHeadAttention(D, H, dtype=F64)
    x = torch.randn(B, T, D, dtype=F64)
    output, weights = layer(x, return_weights=True)
    assert (weights.diagonal(dim1=-2, dim2=-1) > 0).all()
    others_only = layer(x, mask=~torch.eye(T, dtype=torch.bool))
    assert not torch.allclose(output, others_only, atol=1e-2)
    theirs = nn.MultiheadAttention(D, H, bias=False, batch_first=True, dtype=F64)
    its_weights = theirs(x, x, x, average_attn_weights=False)[1]
    assert (its_weights.diagonal(dim1=-2, dim2=-1) > 0).all()


@pytest.mark.question("nyu-1.4b")
def test_values_may_have_any_width_but_queries_and_keys_share_theirs():
    """Values may have any width; queries and keys must share theirs."""
    x = torch.randn(T, D, dtype=F64)
    W_q, W_k, W_v = (torch.randn(D, width, dtype=F64) for width in (3, 3, 11))
    weights = torch.softmax((x @ W_q) @ (x @ W_k).T / math.sqrt(3), dim=-1)
    widths = {"head_dim": 3, "value_head_dim": 11}
    layer = MultiHeadAttention(D, 1, **widths, bias=False, dtype=F64)
    W_o = layer.output_proj.weight.detach()
    matrices = {"query": W_q.T, "key": W_k.T, "value": W_v.T, "output": W_o}
    layer.load_state_dict({f"{k}_proj.weight": W for k, W in matrices.items()})
    assert same(layer(x[None])[0], weights @ (x @ W_v) @ W_o.T)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        torch.matmul(x @ W_q, (x @ torch.randn(D, 4, dtype=F64)).T)


@pytest.mark.question("nyu-1.4b")
def test_the_output_of_a_token_depends_on_its_context():
    """The same token has another output in another context."""
    layer, x = MultiHeadAttention(D, H, dtype=F64), torch.randn(1, T, D, dtype=F64)
    elsewhere = torch.cat([x[:, :1], torch.randn(1, T - 1, D, dtype=F64)], dim=1)
    assert not torch.allclose(layer(x)[:, 0], layer(elsewhere)[:, 0], atol=1e-2)


@pytest.mark.question("nyu-1.4b")
def test_keys_of_later_layers_depend_on_other_tokens():
    """From the second layer on, a token's key depends on other tokens."""
    stack, seen = Encoder(D, H, HIDDEN, 2, dtype=F64), []
    for encoder_layer in stack.layers:
        encoder_layer.attention.key_proj.register_forward_hook(
            lambda *call: seen.append(call[-1][0, 0])
        )
    x = torch.randn(1, T, D, dtype=F64)
    changed = torch.cat([x[:, :1], torch.randn(1, T - 1, D, dtype=F64)], dim=1)
    stack(x)
    stack(changed)
    first, second, first_changed, second_changed = seen  # the keys of the first token
    assert same(first, first_changed)
    assert not torch.allclose(second, second_changed, atol=1e-3)


@pytest.mark.question("nyu-1.4c")
def test_concatenated_heads_are_not_yet_the_output():
    """PyTorch's output is the concatenation times the output projection."""
    theirs = nn.MultiheadAttention(D, H, bias=False, batch_first=True, dtype=F64)
    x = torch.randn(1, T, D, dtype=F64)
    projected = [(x[0] @ w.T).chunk(H, -1) for w in theirs.in_proj_weight.chunk(3)]
    heads = [
        torch.softmax(q @ k.T / math.sqrt(D / H), dim=-1) @ v
        for q, k, v in zip(*projected, strict=True)
    ]
    concatenated = torch.cat(heads, dim=-1)
    output = theirs(x, x, x)[0][0]
    assert same(output, concatenated @ theirs.out_proj.weight.T)
    assert not torch.allclose(output, concatenated, atol=1e-2)


@pytest.mark.question("nyu-1.4c")
def test_without_the_output_projection_each_channel_comes_from_one_head():
    """Without the output projection, each channel comes from one head."""
    layer = MultiHeadAttention(D, H, bias=False, dtype=F64)
    x = torch.randn(1, T, D, dtype=F64)

    def heads_read() -> int:
        """Count the heads that the first channel of the output depends on."""
        y = layer(x)[..., 0].square().sum()
        gradient = torch.autograd.grad(y, layer.value_proj.weight)[0]
        return sum(bool((rows != 0).any()) for rows in gradient.chunk(H))

    assert heads_read() == H
    layer.output_proj = nn.Identity()  # type: ignore[assignment]
    assert heads_read() == 1


@pytest.mark.question("nyu-1.4a")
@pytest.mark.parametrize("n", [7, 50, 100])
def test_a_layer_costs_4nd2_and_2n2d_where_a_recurrent_one_costs_2nd2(n: int):
    """Counted operations agree with the formulas for all three layers."""
    d = 32
    costs = []
    for layer in (MultiHeadAttention(d, 4), nn.RNN(d, d, batch_first=True)):
        # PyTorch 2.10 does not count what its fused attention does on a CPU.
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            layer(torch.randn(1, n, d))
        costs.append(counter.get_total_flops() // 2)
    mixing = 2 * n**2 * d
    assert costs == [4 * n * d**2 + mixing, 2 * n * d**2]
    # Table 1 of the paper compares the mixing alone.
    assert (mixing < costs[1]) == (n < d)
    # An LSTM uses each of its weights once a token.
    lstm = nn.LSTM(d, d)
    weights = lstm.weight_ih_l0.numel() + lstm.weight_hh_l0.numel()
    assert weights == 8 * d**2
    assert (costs[0] < n * weights) == (n < 2 * d)


@pytest.mark.question("nyu-1.4a")
def test_a_path_is_1_layer_long_by_attention_log_n_or_n_by_convolution():
    """One attention layer joins 27 tokens; convolutions take 3 or 13."""
    n, k = 27, 3

    def reaches(layer: nn.Module | None, dilations: list[int]) -> bool:
        """Say whether the last output depends on the first input."""
        x = torch.ones(1, 1, n, dtype=F64, requires_grad=True)
        y = x if layer is None else layer(x.mT, causal=True).mT
        for step in dilations:
            before = F.pad(y, ((k - 1) * step, 0))
            y = F.conv1d(before, torch.ones(1, 1, k, dtype=F64), dilation=step)
        return bool(torch.autograd.grad(y[0, 0, -1], x)[0][0, 0, 0] != 0)

    assert reaches(MultiHeadAttention(1, 1, dtype=F64), [])
    assert [reaches(None, [1] * depth) for depth in (12, 13)] == [False, True]
    assert [reaches(None, [1, 3, 9][:depth]) for depth in (2, 3)] == [False, True]
    assert ((n - 1) / (k - 1), round(math.log(n, k))) == (13, 3)


@pytest.mark.question("nyu-1.4b", "nyu-1.4a")
def test_one_layer_joins_the_first_token_with_the_last_and_without_order():
    """One layer joins any two tokens, and permutes with its input."""
    layer = EncoderLayer(D, H, HIDDEN, dtype=F64)
    x = randn(1, 50, D)
    reach = torch.autograd.grad(layer(x)[0, -1].sum(), x)[0][0].norm(dim=-1)
    assert (reach > 0).all()
    shuffle = torch.randperm(50)
    assert torch.allclose(layer(x[:, shuffle]), layer(x)[:, shuffle], atol=1e-12)


@pytest.mark.question("nyu-1.4a")
@pytest.mark.parametrize("cut", range(1, 7))
def test_between_distant_tokens_a_recurrent_network_passes_every_step(cut):
    """Cut any step, and a recurrent network loses all earlier tokens."""
    cell, x = nn.RNNCell(D, D, dtype=F64), randn(7, D).requires_grad_()

    def reach(stop: int | None) -> Tensor:
        state = torch.zeros(D, dtype=F64)
        for t, token in enumerate(x):
            state = cell(token, state.detach() if t == stop else state)
        return torch.autograd.grad(state.sum(), x)[0].norm(dim=-1)

    assert (reach(None) > 0).all()
    # Without one step in between, the last state knows nothing of earlier tokens.
    assert torch.equal(reach(cut) > 0, torch.arange(7) >= cut)


@pytest.mark.question("nyu-1.4a")
def test_a_recurrent_network_has_a_state_per_token_but_hands_one_on():
    """A recurrent network has a state per token and hands one on."""
    network = nn.RNN(D, D, batch_first=True, dtype=F64)
    x = torch.randn(1, 7, D, dtype=F64)
    states, last = network(x)
    assert states.shape == x.shape
    assert torch.equal(last[0, 0], states[0, -1])
    # The rest of the sequence needs the one state before it, and no other.
    rest, _ = network(x[:, 4:], states[:, 3:4])
    assert same(rest, states[:, 4:])


@pytest.mark.question("nyu-1.4a")
def test_the_gradient_through_attention_is_proportional_to_the_weight():
    """The derivative of an output by a value is the attention weight."""
    # Output 0 reads value j times its weight, so uniform attention gives 1/n.
    n = 50
    value = torch.randn(n, D, dtype=F64, requires_grad=True)
    for scale in (0.0, 1.0):
        query, key = torch.randn(1, D, dtype=F64), torch.randn(n, D, dtype=F64)
        output, weights = dot_product_attention(
            query, key, value, scale=scale, return_weights=True
        )
        found = torch.autograd.grad(output[0, 0], value)[0][:, 0]
        assert same(found, weights[0])
        if scale == 0.0:
            assert same(weights, torch.full((1, n), 1 / n, dtype=F64))


# --- layers and stacks -------------------------------------------------------------


@pytest.mark.parametrize(("norm", "activation"), SETTINGS)
@pytest.mark.parametrize("masked", ["no", "causal", "padding", "mask", "bias"])
def test_encoder_layer_matches_pytorch(norm, activation, masked):
    options = {"activation": activation, "norm_first": norm == "pre", "dtype": F64}
    theirs = nn.TransformerEncoderLayer(
        D, H, HIDDEN, 0.0, layer_norm_eps=1e-4, batch_first=True, **options
    )
    ours = from_torch(drawn(theirs))
    expected = EncoderLayer(D, H, HIDDEN, norm=norm, activation=activation, eps=1e-4)
    assert ours.config == expected.config
    x, real = randn(B, T, D), padding_mask(torch.tensor([T, 3]))
    future = torch.ones(T, T).triu(1).bool()
    seen, bias = torch.rand(T, T) > 0.3, torch.randn(T, T, dtype=F64)
    seen[:, 0] = True
    our_masks, their_masks = {
        "no": ({}, {}),
        "causal": ({"causal": True}, {"src_mask": future}),
        "padding": ({"padding_mask": real}, {"src_key_padding_mask": ~real}),
        "mask": ({"mask": seen}, {"src_mask": ~seen}),
        "bias": ({"bias": bias}, {"src_mask": bias}),
    }[masked]
    assert_same(ours(x, **our_masks), theirs(x, **their_masks), [x])


@pytest.mark.parametrize(("norm", "activation"), SETTINGS)
def test_decoder_layer_matches_pytorch(norm, activation):
    options = {"activation": activation, "norm_first": norm == "pre", "dtype": F64}
    theirs = nn.TransformerDecoderLayer(D, H, HIDDEN, 0.0, batch_first=True, **options)
    ours = from_torch(drawn(theirs))
    expected = DecoderLayer(D, H, HIDDEN, norm=norm, activation=activation)
    assert ours.config == expected.config
    x, memory = randn(B, T, D), randn(B, S, D)
    real, memory_real = (padding_mask(torch.tensor([n, 3])) for n in (T, S))
    seen = torch.rand(T, S) > 0.3
    seen[:, 0] = True
    our_masks = {"padding_mask": real, "memory_padding_mask": memory_real}
    their_masks = {
        "tgt_mask": torch.ones(T, T).triu(1).bool(),
        "tgt_key_padding_mask": ~real,
        "memory_key_padding_mask": ~memory_real,
    }
    found = ours(x, memory, memory_mask=seen, **our_masks)
    wanted = theirs(x, memory, memory_mask=~seen, **their_masks)
    assert_same(found, wanted, [x, memory])


@pytest.mark.question("quiz-2.1")
def test_a_decoder_layer_is_an_encoder_layer_a_cross_attention_and_a_norm():
    """Parameter counts of both layers agree with PyTorch's."""
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
def test_identical_layers_share_their_structure_and_no_weights():
    """Layers of a stack have equal structure and separate weights."""
    model = small_model()
    for stack in (model.encoder, model.decoder):
        first, second = (layer.state_dict() for layer in stack.layers)
        shapes = ({k: x.shape for k, x in state.items()} for state in (first, second))
        assert next(shapes) == next(shapes)
        assert {x.data_ptr() for x in first.values()}.isdisjoint(
            x.data_ptr() for x in second.values()
        )
        weights = [k for k in first if "proj.weight" in k]
        assert not any(torch.equal(first[k], second[k]) for k in weights)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.question("nyu-1.4e", "quiz-2.1")
def test_the_base_model_has_thirty_layer_norms_where_nn_transformer_has_thirty_two():
    """The base model has 30 layer norms, nn.Transformer has 32."""
    paper = Transformer(37_000, norm="post", device="meta")
    theirs = nn.Transformer(device="meta")
    assert sum(isinstance(part, LayerNorm) for part in paper.modules()) == 30
    assert sum(isinstance(part, nn.LayerNorm) for part in theirs.modules()) == 32


@pytest.mark.question("nyu-1.4e")
def test_post_norm_normalizes_the_sum_and_pre_norm_the_input_of_a_sublayer():
    """Both orders equal their formulas."""
    x = torch.randn(B, T, D, dtype=F64)
    for norm in ("pre", "post"):
        layer = EncoderLayer(D, H, HIDDEN, norm=norm, dtype=F64)
        n1, n2 = layer.attention_norm, layer.feed_forward_norm
        if norm == "post":
            y = n1(x + layer.attention(x))
            expected = n2(y + layer.feed_forward(y))
        else:
            y = x + layer.attention(n1(x))
            expected = y + layer.feed_forward(n2(y))
        assert same(layer(x), expected)


@pytest.mark.question("nyu-1.4e")
def test_the_paper_normalizes_the_sum_not_the_output_of_the_sublayer():
    """PyTorch's layer normalizes the sum with the residual."""
    theirs = nn.TransformerEncoderLayer(
        D, H, HIDDEN, dropout=0.0, batch_first=True, dtype=F64
    )
    x = 3.0 * torch.randn(B, T, D, dtype=F64) + 1.0
    attended = theirs.self_attn(x, x, x)[0]
    inside = theirs.norm1(x + attended)
    outside = x + theirs.norm1(attended)
    found = theirs.norm2(inside + theirs.linear2(theirs.linear1(inside).relu()))
    assert same(theirs(x), found)
    assert torch.allclose(inside.mean(-1), torch.zeros(B, T, dtype=F64), atol=1e-12)
    assert outside.mean(-1).abs().max() > 0.5


@pytest.mark.question("nyu-1.4e")
def test_a_pre_norm_stack_of_zero_sublayers_is_the_identity():
    """If all sublayers return zero, a pre-norm stack returns its input."""
    x = 3.0 * torch.randn(B, T, D, dtype=F64) + 1.0
    outputs = []
    for norm in ("pre", "post"):
        stack = Encoder(D, H, HIDDEN, 5, norm=norm, final_norm=False, dtype=F64)
        for name, parameter in stack.named_parameters():
            if "output_proj" in name:
                nn.init.zeros_(parameter)
        outputs.append(stack(x))
    assert torch.equal(outputs[0], x)
    assert torch.allclose(outputs[1], F.layer_norm(x, (D,)), atol=1e-3)


@pytest.mark.question("nyu-1.4e")
def test_the_residual_path_carries_gradients_unchanged_in_pre_norm_alone():
    """The residual path passes gradients unchanged in pre-norm only."""
    x, g = 3.0 * torch.randn(1, T, D, dtype=F64), torch.randn(1, T, D, dtype=F64)
    found = {}
    for norm in ("pre", "post"):
        stack = Encoder(D, H, HIDDEN, 3, norm=norm, final_norm=False, dtype=F64)
        for name, parameter in stack.named_parameters():
            if "output_proj" in name:
                nn.init.zeros_(parameter)
        start = x.clone().requires_grad_()
        found[norm] = torch.autograd.grad(stack(start), start, g)[0]
    assert same(found["pre"], g)
    centered = x - x.mean(-1, keepdim=True)
    # Past a norm, nothing is left along the ones, and hardly anything along the token.
    assert found["post"].sum(-1).abs().max() < 1e-12
    assert (found["post"] * centered).sum(-1).abs().max() < 1e-3
    assert found["post"].norm() < 0.7 * g.norm()


@pytest.mark.unhooked
@pytest.mark.question("nyu-1.4e")
def test_depth_shrinks_the_last_layer_s_gradient_for_pre_norm_alone():
    """From 2 to 32 layers the last layer's gradient shrinks in pre-norm only."""

    def gradient(norm: Any, depth: int, seed: int) -> float:
        torch.manual_seed(seed)
        stack = Encoder(32, 4, 64, depth, norm=norm)
        for name, parameter in stack.named_parameters():
            if "feed_forward." in name and name.endswith("weight"):
                nn.init.xavier_uniform_(parameter)
            elif "feed_forward." in name:
                nn.init.zeros_(parameter)
        logits = stack(torch.randn(4, 16, 32)) @ torch.randn(32, 11) / math.sqrt(32)
        F.cross_entropy(logits.flatten(0, 1), torch.arange(64) % 11).backward()
        return stack.layers[-1].feed_forward.output_proj.weight.grad.norm().item()

    def ratio(norm: str) -> float:
        ratios = [gradient(norm, 32, i) / gradient(norm, 2, i) for i in range(8)]
        return statistics.median(ratios)

    assert ratio("pre") < 0.5  # the theory says 1/4, up to factors of order one
    assert ratio("post") > 0.9


def test_a_pre_norm_stack_ends_with_a_norm_by_default():
    assert isinstance(Encoder(D, H, HIDDEN, 1).final_norm, LayerNorm)
    assert isinstance(Decoder(D, H, HIDDEN, 1, norm="post").final_norm, nn.Identity)
    forced = Encoder(D, H, HIDDEN, 1, norm="post", final_norm=True, eps=0.5)
    assert repr(forced.final_norm) == "LayerNorm(12, eps=0.5, bias=True)"


def test_biases_can_be_named():
    layer = EncoderLayer(D, H, HIDDEN, bias=("output", "feed_forward"))
    biases = {name for name in layer.state_dict() if name.endswith(".bias")}
    network = {f"feed_forward.{part}_proj.bias" for part in ("hidden", "output")}
    assert biases == {"attention.output_proj.bias", *network}


# --- the model ---------------------------------------------------------------------


@pytest.mark.question("quiz-2.1", "quiz-2.4", "quiz-2.9")
def test_the_decoder_is_autoregressive_and_the_encoder_is_not():
    """Later targets change no earlier prediction; the encoder sees all."""
    model = small_model()
    logits = model(SOURCE, TARGET)
    changed = TARGET.clone()
    changed[0, 3:] = 8
    assert torch.equal(model(SOURCE, changed)[0, :3], logits[0, :3])
    assert not torch.allclose(model(SOURCE, changed)[0, 3:], logits[0, 3:])
    changed = SOURCE.clone()
    changed[0, -1] = 3
    memory = model.encode(SOURCE)
    assert not torch.allclose(model.encode(changed)[0, 0], memory[0, 0])


@pytest.mark.question("quiz-2.4", "quiz-2.1")
def test_the_three_uses_of_attention_differ_in_queries_and_keys():
    """The three uses have weights of the stated shapes in every layer."""
    model, expected = small_model(), {}
    with capture_weights(model) as weights:
        model(SOURCE, TARGET)
    for i in range(2):
        expected[f"encoder.layers.{i}.attention"] = (B, H, 7, 7)
        expected[f"decoder.layers.{i}.self_attention"] = (B, H, 5, 5)
        expected[f"decoder.layers.{i}.cross_attention"] = (B, H, 5, 7)
    assert {name: calls[0].shape for name, calls in weights.items()} == expected


@pytest.mark.question("quiz-2.4")
def test_cross_attention_weighs_input_positions_not_decoder_states():
    """Cross-attention reads positions of the input and no other query."""
    layer = DecoderLayer(D, H, HIDDEN, dtype=F64).cross_attention
    states, memory = torch.randn(B, T, D, dtype=F64), torch.randn(B, S, D, dtype=F64)
    output, weights = layer(states, memory, return_weights=True)
    assert weights.shape == (B, H, T, S)
    assert same(weights.sum(-1), torch.ones(B, H, T, dtype=F64))
    # Earlier states do not matter to the last; a position of the input does.
    assert same(layer(states[:, -1:], memory)[:, 0], output[:, -1])
    changed = memory.clone()
    changed[:, 3] = 0.0
    assert not torch.allclose(layer(states, changed)[:, -1], output[:, -1])


@pytest.mark.question("quiz-2.4")
def test_scores_of_later_positions_are_minus_infinity_before_the_softmax():
    """The causal mask equals scores of minus infinity before the softmax."""
    attention = DecoderLayer(D, H, HIDDEN, dtype=F64).self_attention
    x = torch.randn(1, T, D, dtype=F64)
    masked = attention(x, causal=True, return_weights=True)[1]
    hidden = torch.ones(T, T).triu(1).bool()
    bias = torch.zeros(T, T, dtype=F64).masked_fill(hidden, -math.inf)
    assert same(masked, attention(x, bias=bias, return_weights=True)[1])
    assert (masked[..., hidden] == 0).all()
    # Weights that are set to zero afterwards would not sum to one.
    unmasked = attention(x, return_weights=True)[1].masked_fill(hidden, 0.0)
    assert same(masked.sum(-1), torch.ones(1, H, T, dtype=F64))
    assert (unmasked.sum(-1)[..., :-1] < 0.99).all()


@pytest.mark.question("quiz-2.4", "quiz-2.1")
def test_every_decoder_layer_reads_the_last_encoder_layer_computed_once():
    """Every decoder layer projects the last encoder layer's output, once."""
    model, read = small_model(depth=3).eval(), []
    for number, decoder_layer in enumerate(model.decoder.layers):
        for part in ("key_proj", "value_proj"):
            getattr(decoder_layer.cross_attention, part).register_forward_pre_hook(
                lambda _, args, name=(number, part): read.append((name, args[0]))
            )
    memory = model.encode(SOURCE)
    found = model.generate(SOURCE, begin=1, end=2, max_length=6)
    assert found.shape[1] > 1  # several steps, and yet one call of each
    wanted = [(i, part) for i in range(3) for part in ("key_proj", "value_proj")]
    assert sorted(name for name, _ in read) == sorted(wanted)
    real = SOURCE != 0
    assert all(same(context[real], memory[real]) for _, context in read)
    # The memory is the output of the last encoder layer, normalized once more.
    x = model.positions(model.embedding(SOURCE) * math.sqrt(D))
    for encoder_layer in model.encoder.layers:
        x = encoder_layer(x, padding_mask=SOURCE != 0)
    assert same(memory, model.encoder.final_norm(x))


@pytest.mark.question("nyu-1.4a", "quiz-2.1")
def test_generation_runs_the_encoder_once_and_the_decoder_once_per_token():
    """Generating runs the encoder once and the decoder once per token."""
    model, calls = small_model().eval(), {"encoder": 0, "decoder": 0}

    def counted(name: str) -> None:
        stack = getattr(model, name)

        def count_call(*_: Any) -> None:
            calls[name] += 1

        stack.register_forward_pre_hook(count_call)

    counted("encoder")
    counted("decoder")
    found = model.generate(SOURCE, begin=1, end=2, max_length=6)
    assert calls == {"encoder": 1, "decoder": found.shape[1]}


@pytest.mark.question("nyu-1.4a", "quiz-2.1")
def test_one_pass_in_training_predicts_what_every_prefix_alone_would():
    """One masked pass predicts what each prefix alone would."""
    model, source, target = small_model(), SOURCE[:1], TARGET[:1]
    at_once = model(source, target)[0]
    alone = [model(source, target[:, :t])[0, -1] for t in range(1, T + 1)]
    assert same(at_once, torch.stack(alone))


@pytest.mark.question("quiz-2.1")
def test_unless_shifted_the_answer_would_be_among_the_inputs():
    """Without the shift, a prediction depends on its own answer."""
    model = small_model()
    # The two differ in the fourth answer, whose logits we compare.
    answers = torch.tensor([[5, 4, 3, 10, 2], [5, 4, 3, 6, 2]])
    shifted = F.pad(answers[:, :-1], (1, 0), value=1)
    first, second = model(SOURCE[:1].expand(2, 7), shifted)[:, 3]
    assert same(first, second)
    first, second = model(SOURCE[:1].expand(2, 7), answers)[:, 3]
    assert not torch.allclose(first, second, atol=1e-2)


@pytest.mark.question("quiz-2.4")
def test_padding_changes_nothing():
    """Padding changes no prediction."""
    model = small_model()
    logits = model(SOURCE, TARGET)
    alone = model(SOURCE[1:, :4], TARGET[1:, :3])
    assert same(logits[1:, :3], alone)


@pytest.mark.parametrize(
    ("tied", "source_vocab_size", "tables"),
    [
        (True, None, [11]),
        (True, 13, [11, 13]),
        (False, None, [11, 11, 11]),
        (False, 13, [11, 11, 13]),
    ],
)
def test_tied_embeddings_are_one_tensor(tied, source_vocab_size, tables):
    model = small_model(tied=tied, source_vocab_size=source_vocab_size)
    found = [x for name, x in model.state_dict().items() if "layers" not in name]
    assert sorted(len(x) for x in found if x.dim() == 2) == tables
    assert len({x.data_ptr() for x in found}) == len(found)
    weight = model.embedding.weight if tied else model.output_proj.weight
    embedded = model.positions(model.embedding(TARGET) * math.sqrt(D))
    masks = {"padding_mask": TARGET != 0, "memory_padding_mask": SOURCE != 0}
    by_hand = model.decoder(embedded, model.encode(SOURCE), **masks)
    assert same(model(SOURCE, TARGET), by_hand @ weight.T)


def test_embedded_tokens_begin_with_variance_one():
    model = Transformer(500, dim=256, heads=4, hidden_dim=32, depth=1)
    embedded = model.embedding.weight * math.sqrt(256)
    assert embedded.var().item() == pytest.approx(1.0, rel=0.02)


def test_positions_can_be_learned_or_left_out():
    shuffle = torch.tensor([2, 0, 1, 3, 6, 5, 4])
    for positions in (None, "learned"):
        model = small_model(positions=positions, max_length=7)
        shuffled = model.encode(SOURCE[:1, shuffle])
        memory = model.encode(SOURCE[:1])
        assert same(shuffled, memory[:, shuffle]) == (positions is None)


def test_mean_pooling_leaves_padding_out():
    hidden = torch.tensor([[[3.0, 0.0], [3.0, 8.0], [torch.nan, 1.0]]])
    real = torch.tensor([[True, True, False]])
    assert mean_pool(hidden, real).tolist() == [[3.0, 4.0]]
    nothing = mean_pool(hidden.half(), torch.zeros(1, 3, dtype=torch.bool))
    assert torch.equal(nothing, torch.zeros(1, 2, dtype=torch.float16))


# --- decoding ----------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_decoding_step_by_step_equals_the_whole(norm):
    model = small_model(norm=norm).eval()
    memory = model.encode(SOURCE)
    target = torch.randint(1, 11, (B, 6))
    whole = model.decode(target, memory, SOURCE)
    for steps in ([1] * 6, [2, 3, 1]):
        cache = DecoderCache(2)
        with torch.no_grad():
            pieces = [
                model.decode(piece, memory, SOURCE, cache=cache)
                for piece in target.split(steps, dim=1)
            ]
        assert cache.length == 6
        assert same(torch.cat(pieces, dim=1), whole)


@pytest.mark.question("quiz-2.9")
def test_greedy_decoding_takes_the_likeliest_token_each_time():
    """Greedy decoding takes the likeliest token at every step."""
    model = small_model().eval()
    found = model.generate(SOURCE, begin=1, end=2, max_length=9)
    for row in range(B):
        tokens = [1]
        while len(tokens) < 10 and tokens[-1] != 2:
            logits = model(SOURCE[row : row + 1], torch.tensor([tokens]))[0, -1]
            logits[0] = -math.inf  # padding is never written
            tokens.append(int(logits.argmax()))
        expected = tokens[1:] + [0] * (found.shape[1] - len(tokens) + 1)
        assert found[row].tolist() == expected


@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 2.0])
def test_a_beam_wide_enough_finds_the_best_of_all_sequences(length_penalty):
    torch.manual_seed(5)
    sizes = {"dim": 8, "heads": 2, "hidden_dim": 16, "depth": 1}
    model = Transformer(4, **sizes, dtype=F64, norm="post").eval()
    begin, end, longest = 1, 2, 3
    source = torch.tensor([[3, 1, 3]])

    def score(sequence: tuple[int, ...]) -> float:
        target = torch.tensor([[begin, *sequence[:-1]]])
        gains = model(source, target).log_softmax(-1)[0]
        total = sum(gains[i, token].item() for i, token in enumerate(sequence))
        return total / ((5 + len(sequence)) / 6) ** length_penalty

    # Token 0 is padding, which is never written.
    ended = [
        s
        for n in range(1, longest + 1)
        for s in itertools.product((1, 2, 3), repeat=n)
        if end not in s[:-1] and (s[-1] == end or n == longest)
    ]
    limits = {"max_length": longest, "beams": 64, "length_penalty": length_penalty}
    found = model.generate(source, begin=begin, end=end, **limits)
    assert tuple(t for t in found[0].tolist() if t) == max(ended, key=score)


def test_beams_of_a_batch_do_not_mix():
    model, options = small_model().eval(), {"begin": 1, "end": 2, "max_length": 6}
    together = model.generate(SOURCE, beams=3, **options)
    for row, source in zip(together, (SOURCE[:1], SOURCE[1:, :4]), strict=True):
        (alone,) = model.generate(source, beams=3, **options)
        assert torch.equal(row[: len(alone)], alone)
        assert not row[len(alone) :].any()


def test_generation_stops_when_all_have_ended():
    model = small_model().eval()
    with torch.no_grad():
        model.embedding.weight[:] = 0.0
        model.embedding.weight[2] = 1.0
        model.decoder.final_norm.bias.fill_(1.0)  # the end token always wins
    found = model.generate(SOURCE, begin=1, end=2, max_length=9)
    assert found.tolist() == [[2], [2]]


# --- language models ---------------------------------------------------------------

LLAMA = {
    "positions": "rotary",
    "normalization": "rms",
    "activation": "swiglu",
    "kv_heads": 2,
    "bias": False,
    "tied": False,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "GPT-2": {},
    "no positions": {"positions": None},
    "post-norm": {"norm": "post"},
    "Llama": LLAMA,
    "one head": {**LLAMA, "kv_heads": 1},
    "window": {**LLAMA, "window": 3},
    "sinks": {**LLAMA, "window": 3, "sinks": 2},
    "window, learned positions": {"window": 2, "sinks": 1},
    "soft cap": {**LLAMA, "softcap": 2.0, "qk_norm": "rms"},
    "scaled": {**LLAMA, "rotary_scaling": {"factor": 4.0}},
}
VOCAB = 13
variants = pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)


def language_model(**options: Any) -> LanguageModel:
    """Build a model that is not shy: its weights are large, and logits differ."""
    sizes = {"dim": 24, "heads": 4, "hidden_dim": 17, "depth": 2, "max_length": 40}
    model = LanguageModel(VOCAB, **sizes, dtype=F64, **options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


def texts(b: int = 3, n: int = 11) -> Tensor:
    return torch.randint(VOCAB, (b, n))


def test_a_gpt_2_is_pytorchs_encoder_with_a_causal_mask():
    layer = nn.TransformerEncoderLayer(
        24, 4, 17, 0.0, "gelu", batch_first=True, norm_first=True, dtype=F64
    )
    theirs = nn.TransformerEncoder(
        layer, 2, nn.LayerNorm(24, dtype=F64), enable_nested_tensor=False
    )
    ours, tokens = language_model(activation="gelu"), texts()
    ours.encoder = from_torch(drawn(theirs))
    assert ours.positions is not None
    x = ours.embedding.weight[tokens] + ours.positions.weight[: tokens.shape[1]]
    hidden = theirs(x, mask=nn.Transformer.generate_square_subsequent_mask(11).double())
    expected = hidden @ ours.embedding.weight.T
    assert_same(ours(tokens), expected, [ours.embedding.weight])


def test_a_llama_by_its_formulas():
    model, tokens = language_model(**LLAMA, eps=1e-3, rotary_base=100.0), texts()
    embedding = model.embedding.weight

    def rms(x: Tensor, norm: Any) -> Tensor:
        return norm.weight * x / (x.square().mean(-1, keepdim=True) + 1e-3).sqrt()

    def turned(x: Tensor) -> Tensor:
        """Turn features j and j + 3 of a head as one complex number."""
        speeds = 100.0 ** (-torch.arange(3, dtype=F64) / 3)
        angles = torch.arange(11)[:, None] * speeds
        z = torch.complex(*x.chunk(2, dim=-1)) * torch.exp(1j * angles)
        return torch.cat([z.real, z.imag], dim=-1)

    def heads(x: Tensor, projection: nn.Linear) -> Tensor:
        each = (x @ projection.weight.T).unflatten(-1, (-1, 6)).transpose(1, 2)
        return each.repeat_interleave(4 // each.shape[1], dim=1)

    x = embedding[tokens]
    layer: Any
    for layer in model.encoder.layers:
        part, normed = layer.attention, rms(x, layer.attention_norm)
        q, k = (turned(heads(normed, p)) for p in (part.query_proj, part.key_proj))
        scores = q @ k.mT / math.sqrt(6)
        scores = scores.masked_fill(torch.ones(11, 11).triu(1).bool(), -math.inf)
        mixed = scores.softmax(dim=-1) @ heads(normed, part.value_proj)
        x = x + mixed.transpose(1, 2).flatten(2) @ part.output_proj.weight.T
        part, normed = layer.feed_forward, rms(x, layer.feed_forward_norm)
        hidden = F.silu(normed @ part.gate_proj.weight.T)
        hidden = hidden * (normed @ part.hidden_proj.weight.T)
        x = x + hidden @ part.output_proj.weight.T
    assert model.output_proj is not None
    expected = rms(x, model.encoder.final_norm) @ model.output_proj.weight.T
    assert_same(model(tokens), expected, [*model.parameters()])


@variants
def test_a_language_model_never_sees_what_it_predicts(options):
    model, tokens = language_model(**options), texts()
    logits = model(tokens)
    for i in (1, 6, 10):
        changed = tokens.clone()
        changed[:, i] = (changed[:, i] + 1) % VOCAB
        found = model(changed)
        assert same(found[:, :i], logits[:, :i])
        assert (found[:, i] - logits[:, i]).abs().amax(dim=-1).min() > 1e-3


def test_layers_hand_on_what_lies_beyond_their_windows():
    """Two layers with a window of four reach six tokens back, and the sinks."""
    model = language_model(positions="rotary", window=4, sinks=1)
    x = model.embedding(texts(1)).detach().requires_grad_()
    y = model.encoder(x, causal=True, rotary=model.rotary)
    reach = torch.autograd.grad(y[0, -1].sum(), x)[0][0].norm(dim=-1)
    assert (reach > 0).nonzero().flatten().tolist() == [0, 4, 5, 6, 7, 8, 9, 10]


@pytest.mark.parametrize("options", [LLAMA, {"positions": None}])
def test_padding_before_a_text_changes_nothing_where_only_distances_count(options):
    model, tokens = language_model(**options), texts()
    real = torch.ones(3, 11, dtype=torch.bool)
    for row, pads in enumerate((4, 0, 7)):
        real[row, :pads] = False
    logits = model(tokens, padding_mask=real)
    for row, pads in enumerate((4, 0, 7)):
        alone = model(tokens[row : row + 1, pads:])
        assert torch.allclose(logits[row, pads:], alone[0], rtol=0, atol=1e-10)


@variants
@pytest.mark.parametrize("steps", [[1] * 11, [5, 1, 1, 3, 1], [11]])
@pytest.mark.parametrize("padded", [False, True])
def test_a_text_read_piece_by_piece_is_the_text_read_at_once(options, steps, padded):
    model, tokens = language_model(**options), texts()
    real = torch.ones(3, 11, dtype=torch.bool)
    if padded:
        real[0, 2:4] = real[2, 5] = False
    whole = model(tokens, padding_mask=real)
    cache, pieces, end = model.make_cache(), [], 0
    for piece in tokens.split(steps, dim=1):
        end += piece.shape[1]
        with torch.no_grad():
            logits = model(piece, padding_mask=real[:, :end], cache=cache)
        pieces.append(logits)
    assert cache.length == 11
    assert torch.allclose(torch.cat(pieces, dim=1), whole, rtol=0, atol=1e-10)


def test_a_cache_for_a_window_stays_small_and_has_the_shared_heads_alone():
    model = language_model(**LLAMA, window=3, sinks=2)
    cache, sizes = model.make_cache(), []
    for _ in range(40):
        with torch.no_grad():
            model(texts(2, 1), cache=cache)
        key, value = cache.layers[1][0].read()
        assert key.shape[:2] == value.shape[:2] == (2, 2)  # texts, shared heads
        sizes.append(key.shape[2])
    assert cache.length == 40
    assert max(sizes) <= 2 * (3 + 2)


def test_tied_weights_are_the_embedding_and_start_small():
    def untouched(**options: Any) -> LanguageModel:
        return LanguageModel(500, dim=64, heads=4, depth=1, **options)

    tied, untied = untouched(), untouched(tied=False)
    assert tied.output_proj is None
    assert count(untied) == count(tied) + 500 * 64
    assert untied.output_proj is not None
    for table in (tied.embedding, untied.embedding, untied.output_proj):
        assert table.weight.std().item() == pytest.approx(0.02, rel=0.05)
    loss = F.cross_entropy(tied(torch.arange(500)[None])[0], torch.arange(500))
    assert loss.item() == pytest.approx(math.log(500), abs=0.2)


def test_a_bert_is_pytorchs_encoder_on_the_sum_of_three_embeddings():
    layer = nn.TransformerEncoderLayer(
        12, 3, 17, 0.0, "gelu", layer_norm_eps=1e-3, batch_first=True, dtype=F64
    )
    theirs = drawn(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
    sizes = {"dim": 12, "heads": 3, "hidden_dim": 17, "depth": 2, "max_length": 20}
    ours = drawn(Bert(VOCAB, num_segments=3, eps=1e-3, dtype=F64, **sizes)).eval()
    ours.encoder = from_torch(theirs)
    tokens, segments = texts(), torch.randint(3, (3, 11))
    real = torch.arange(11) < torch.tensor([[11], [7], [4]])
    tables = ours.token_embedding, ours.segment_embedding
    x = sum(
        table.weight[i] for table, i in zip(tables, (tokens, segments), strict=True)
    )
    x = F.layer_norm(
        x + ours.positions.weight[:11], (12,), ours.norm.weight, ours.norm.bias, 1e-3
    )
    expected = theirs(x, src_key_padding_mask=~real)
    hidden = ours(tokens, segments=segments, padding_mask=real)
    assert same(hidden[real], expected[real])
    assert ours.pooler is not None
    assert same(ours.pool(hidden), ours.pooler(expected[:, 0]).tanh())
    means = [
        text[:length].mean(0) for text, length in zip(expected, (11, 7, 4), strict=True)
    ]
    assert same(mean_pool(hidden, real), torch.stack(means))


def test_a_bert_has_the_sizes_and_the_start_of_the_original():
    model = Bert(500, dim=64, depth=1, heads=4, bias=False)
    config, pooler = model.config, model.pooler
    assert (config.hidden_dim, config.max_length, config.num_segments) == (256, 512, 2)
    assert pooler is not None
    for weight in (model.token_embedding.weight, pooler.weight):
        assert weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert torch.equal(pooler.bias, torch.zeros(64))
    assert model.norm.bias is not None  # all published models have it


def test_dropout_acts_on_the_embedded_tokens_too():
    model = language_model(dropout=0.5)
    seen = []
    model.encoder.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    model.train()(texts())
    model.eval()(texts())
    share = (seen[0] == 0).double().mean().item()
    assert share == pytest.approx(0.5, abs=0.1)
    assert (seen[1] != 0).all()


# --- choosing the next token -------------------------------------------------------


def by_hugging_face(
    logits: Tensor,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Tensor:
    """Change logits as Hugging Face does, in its order."""
    chain = [logits_process.TemperatureLogitsWarper(temperature)]
    if top_k is not None:
        chain.append(logits_process.TopKLogitsWarper(top_k))
    if top_p is not None:
        chain.append(logits_process.TopPLogitsWarper(top_p))
    for process in chain:
        logits = process(torch.empty(0), logits)
    return logits


FILTERS = [
    {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    for temperature in (0.3, 1.0, 2.5)
    for top_k in (None, 1, 4, 100)
    for top_p in (None, 1e-6, 0.4, 0.9, 1.0)
]


@pytest.mark.parametrize("filters", FILTERS)
def test_logits_are_filtered_as_hugging_face_does(filters):
    logits = 3 * torch.randn(50, 17, dtype=F64)
    found = filtered_logits(logits, **filters)
    expected = by_hugging_face(logits, **filters)
    assert torch.equal(found.isinf(), expected.isinf())
    assert same(found.softmax(dim=-1), expected.softmax(dim=-1))
    one = filtered_logits(logits[3], **filters)
    assert torch.equal(one, found[3])


@pytest.mark.parametrize("p", [0.1, 0.55, 0.8, 0.95])
def test_the_nucleus_is_the_smallest_set_that_reaches_p(p):
    logits = 2 * torch.randn(6, dtype=F64)
    probability = logits.softmax(dim=-1)
    sets = [
        kept
        for size in range(1, 7)
        for kept in itertools.combinations(range(6), size)
        if probability[list(kept)].sum() >= p
    ]
    smallest = min(sets, key=lambda x: (len(x), -probability[list(x)].sum().item()))
    kept = filtered_logits(logits, top_p=p).isfinite().nonzero().flatten()
    assert tuple(kept.tolist()) == smallest


def test_a_nucleus_that_reaches_p_exactly_is_full():
    logits = torch.zeros(1, 4, dtype=F64)
    kept = filtered_logits(logits, top_p=0.5).isfinite()
    assert int(kept.sum()) == 2
    assert int(by_hugging_face(logits, top_p=0.5).isfinite().sum()) == 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, F64])
@pytest.mark.parametrize("p", [1e-50, 1e-8, 0.3])
def test_the_likeliest_token_is_always_kept(p, dtype):
    logits = torch.tensor([[1.0, 2.0, 3.0], [0.0, 5.0, 5.5]], dtype=dtype)
    kept = filtered_logits(logits, top_p=p).isfinite()
    assert kept.tolist() == [[False, False, True]] * 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, F64])
@pytest.mark.parametrize("temperature", [5e-324, 1e-50, 1e-38, 1e-4, 0.7, 1e4, 1e300])
def test_any_temperature_gives_probabilities(temperature, dtype):
    logits = (100 * torch.randn(5, 7)).to(dtype)
    logits[1, 2:4] = -math.inf
    exact = logits.double()
    gaps = exact - exact.amax(-1, keepdim=True)
    wanted = (gaps / temperature).softmax(-1)
    found = filtered_logits(logits, temperature=temperature)
    assert torch.allclose(found.softmax(-1).double(), wanted, rtol=1e-4, atol=1e-30)
    assert (found[1, 2:4] == -math.inf).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_nucleus_of_many_tokens_is_that_of_float64(dtype):
    logits = (3 * torch.randn(50_000)).to(dtype)
    p = logits.double().softmax(-1).sort(descending=True).values
    wanted = int((p.cumsum(-1) < 0.9).sum()) + 1
    # Sums of many small numbers in float32 are good to five digits.
    found = int(filtered_logits(logits, top_p=0.9).isfinite().sum())
    assert found == pytest.approx(wanted, abs=2)


def test_equal_logits_are_kept_or_dropped_together_by_top_k():
    logits = torch.tensor([1.0, 3.0, 2.0, 2.0, 0.0])
    kept = filtered_logits(logits, top_k=2).isfinite()
    assert kept.tolist() == [False, True, True, True, False]


@variants
def test_greedy_generation_takes_the_argmax_of_the_whole_text_s_logits(options):
    model, prompt = language_model(**options), texts(3, 4)
    found = model.generate(prompt, 9, temperature=0.0)
    text = prompt
    for _ in range(9):
        text = torch.cat([text, model(text)[:, -1:].argmax(dim=-1)], dim=1)
    assert torch.equal(found, text[:, 4:])
    assert torch.equal(model.generate(prompt, 9, top_k=1), found)


@pytest.mark.parametrize("filters", [{}, *FILTERS[::7]])
def test_sampling_draws_from_the_filtered_distribution(filters):
    model, prompt = language_model(**LLAMA), texts(3, 4)
    source = torch.Generator().manual_seed(7)
    found = model.generate(prompt, 9, **filters, generator=source)
    source.manual_seed(7)
    text = prompt
    for _ in range(9):
        with torch.no_grad():
            logits = by_hugging_face(model(text)[:, -1], **filters)
        new = torch.multinomial(logits.softmax(dim=-1), 1, generator=source)
        text = torch.cat([text, new], dim=1)
    assert torch.equal(found, text[:, 4:])
    torch.manual_seed(7)  # the default generator does as well
    assert torch.equal(model.generate(prompt, 9, **filters), found)


def test_a_text_that_has_ended_repeats_its_end_until_all_have():
    model, prompt = language_model(**LLAMA), texts(3, 4)
    free = model.generate(prompt, 9, temperature=0.0)
    end = int(free[0, 2])
    found = model.generate(prompt, 9, temperature=0.0, end=end)
    firsts = []
    for row, expected in zip(found, free, strict=True):
        at = (expected == end).nonzero().flatten().tolist()
        first = at[0] if at else len(row)
        assert torch.equal(row[:first], expected[:first])
        assert (row[first:] == end).all()
        firsts.append(first)
    assert min(firsts) <= 2
    assert found.shape[1] == min(9, max(firsts) + 1)
    (alone,) = model.generate(prompt[:1], 9, temperature=0.0, end=end)
    assert alone.tolist() == free[0, : firsts[0] + 1].tolist()
    assert model.generate(prompt, 0).shape == (3, 0)


# --- training ----------------------------------------------------------------------


def test_label_smoothing_leaves_padding_out_of_everything():
    logits, targets = randn(2, 5, 7), torch.randint(1, 7, (2, 5))
    targets[1, 3:] = 0
    loss = label_smoothing_loss(logits, targets, smoothing=0.2)
    # On the right class 0.8 + 0.2/6, on padding nothing, on five others 0.2/6.
    wanted = 0.8 * F.one_hot(targets, 7).double()
    wanted[..., 1:] += 0.2 / 6
    each = -(wanted * logits.log_softmax(-1)).sum(-1)
    assert same(loss, each[targets != 0].mean())
    gradient = torch.autograd.grad(loss, logits)[0]
    assert (gradient[1, 3:] == 0).all()
    whole = label_smoothing_loss(logits, targets, smoothing=0.2, padding_token=None)
    rows, answers = logits.flatten(0, 1), targets.flatten()
    assert same(whole, F.cross_entropy(rows, answers, label_smoothing=0.2))


@pytest.mark.parametrize("padding", [0, 3, 6])
@pytest.mark.parametrize("ruled_out", [-1e9, -math.inf])
def test_a_model_may_rule_padding_out(ruled_out, padding):
    logits, targets = torch.randn(3, 5, 7), torch.arange(15).view(3, 5) % 7
    logits[..., padding] = ruled_out
    logits.requires_grad_()
    options = {"smoothing": 0.2, "padding_token": padding}
    found = label_smoothing_loss(logits, targets, **options)
    # What is left is a loss over six classes, of the targets that are real.
    others = [c for c in range(7) if c != padding]
    rows = logits.detach().double()[..., others][targets != padding]
    answers = targets[targets != padding]
    answers = answers - (answers > padding).long()
    wanted = F.cross_entropy(rows, answers, label_smoothing=0.2)
    assert found.item() == pytest.approx(wanted.item(), rel=1e-6)
    gradient = torch.autograd.grad(found, logits)[0]
    assert gradient.isfinite().all()
    assert (gradient[..., padding] == 0).all()


def test_without_smoothing_other_classes_may_be_ruled_out():
    logits, targets = torch.randn(5, 7), torch.tensor([1, 2, 3, 4, 6])
    logits[0, 5] = logits[2, 0] = -math.inf
    logits.requires_grad_()
    given = {"smoothing": 0.0, "padding_token": None}
    ours = label_smoothing_loss(logits, targets, **given)
    theirs = F.cross_entropy(logits, targets)
    assert torch.allclose(ours, theirs)
    gradients = (torch.autograd.grad(x, logits)[0] for x in (ours, theirs))
    assert torch.allclose(*gradients, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_loss_of_half_precision_is_that_of_its_numbers(dtype):
    logits, targets = torch.randn(50, 900).to(dtype), torch.randint(1, 900, (50,))
    exact = label_smoothing_loss(logits.double(), targets)
    assert label_smoothing_loss(logits, targets).item() == pytest.approx(exact.item())


def test_the_loss_of_nothing_but_padding_is_zero():
    logits = randn(2, 3, 7)
    loss = label_smoothing_loss(logits, torch.zeros(2, 3, dtype=torch.int64))
    assert loss.item() == 0.0
    assert (torch.autograd.grad(loss, logits)[0] == 0).all()
    # A vocabulary of padding alone has no other targets.
    assert label_smoothing_loss(randn(2, 1), torch.tensor([0, 0])).item() == 0.0


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # PyTorch's kernel
def test_gradients_by_sample_are_those_of_one_sample_at_a_time():
    model, tokens = language_model(**LLAMA), texts()
    tokens[1, 7:] = 0  # padding
    weights = {name: x.detach() for name, x in model.named_parameters()}

    def loss(weights: dict[str, Tensor], text: Tensor) -> Tensor:
        padding_mask = (text != 0)[None, :-1]
        given = {"padding_mask": padding_mask}
        (logits,) = functional_call(model, weights, (text[None, :-1],), given)
        return label_smoothing_loss(logits, text[1:])

    together = vmap(grad(loss), in_dims=(None, 0))(weights, tokens)
    for i, text in enumerate(tokens):
        model.zero_grad()
        loss(dict(model.named_parameters()), text).backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            assert same(together[name][i], parameter.grad)


def test_the_learning_rate_rises_to_the_warm_up_and_falls_as_the_papers():
    rates = [transformer_learning_rate(t, dim=512, warmup=40) for t in range(1, 200)]
    assert max(rates) == rates[39] == pytest.approx((512 * 40) ** -0.5)
    for t, rate in enumerate(rates, start=1):
        assert rate == pytest.approx(512**-0.5 * min(t**-0.5, t * 40**-1.5))


@pytest.mark.unhooked
@pytest.mark.question("nyu-1.4a", "nyu-1.4b")
def test_a_small_transformer_learns_to_reverse():
    """A small Transformer learns to reverse four tokens."""
    model = Transformer(8, dim=32, heads=4, hidden_dim=64, depth=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(150):
        answer = torch.randint(3, 8, (64, 4))
        logits = model(answer.flip(1), F.pad(answer[:, :-1], (1, 0), value=1))
        loss = label_smoothing_loss(logits, answer, smoothing=0.0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    source = torch.randint(3, 8, (100, 4))
    found = model.eval().generate(source, begin=1, end=2, max_length=4)
    assert (found == source.flip(1)).float().mean() > 0.95


# --- malformed calls ---------------------------------------------------------------


def zeros(*shape: int) -> Tensor:
    return torch.zeros(shape)


def ids(*shape: int) -> Tensor:
    return torch.ones(shape, dtype=torch.int64)


def model(**options: Any) -> Any:
    sizes = {"dim": 12, "heads": 3, "hidden_dim": 7, "depth": 1}
    return Transformer(17, **{**sizes, **options})


def generate(**options: Any) -> Any:
    settings = {"begin": 1, "end": 2, "max_length": 3}
    return model().generate(ids(2, 5), **{**settings, **options})


def bert(**options: Any) -> Any:
    return Bert(17, **{"dim": 12, "depth": 1, "heads": 3, "max_length": 5, **options})


def layer(dim: int = 12, **options: Any) -> Any:
    return EncoderLayer(dim, 3, 7, **options)


def lm(**options: Any) -> Any:
    return LanguageModel(17, **{"dim": 12, "heads": 3, "depth": 1, **options})


def changed(module: Any, **options: Any) -> Any:
    return replace(module.config, **options)


def write(n: int = 5, **options: Any) -> Any:
    settings = {"steps": 3, **options}
    return lm(max_length=9).generate(ids(2, n), settings.pop("steps"), **settings)


def filtered(**options: Any) -> Any:
    return filtered_logits(zeros(3, 5), **options)


def decode_with_a_cache_of_three() -> Tensor:
    cache = DecoderCache(3)
    return Decoder(12, 3, 7, 2)(zeros(2, 5, 12), zeros(2, 7, 12), cache=cache)


norm: Any = layer_norm
loss: Any = label_smoothing_loss
rate: Any = transformer_learning_rate


@pytest.mark.unhooked
@bad_calls(
    ("no features", lambda: LayerNorm(0), ValueError, "dim must be a positive … 0"),
    ("NaN", lambda: LayerNorm(5, eps=math.nan), ValueError, "zero or greater, got nan"),
    ("eps", lambda: norm(zeros(5), eps=-0.5), ValueError, "eps must be … got -0.5"),
    ("factors", lambda: norm(zeros(5), zeros(7)), ValueError, "weight must be (5,)"),
    ("kind", lambda: gelu(zeros(5), approximate="erf"), ValueError, "('none', 'tanh')"),
    ("no units", lambda: FeedForward(5, 0), ValueError, "hidden_dim must … got 0"),
    ("norm", lambda: layer(norm="both"), ValueError, "norm must be one of … 'both'"),
    ("sine", lambda: layer(activation="sin"), ValueError, "activation must be … 'sin'"),
    ("dropout", lambda: layer(dropout=2.0), ValueError, "must be in [0, 1), got 2.0"),
    ("a word", lambda: layer(dropout="0.1"), ValueError, "in [0, 1), got '0.1'"),
    ("no number", lambda: LayerNorm(5, eps=None), ValueError, "greater, got None"),
    ("bias", lambda: layer(bias=("values",)), ValueError, "names among ('query', …"),
    ("heads", lambda: layer(13), ValueError, "divisible by heads, got dim 13 and 3"),
    (
        "another dtype",
        lambda: layer()(zeros(2, 5, 12).double()),
        TypeError,
        "x must have the dtype of the parameters of EncoderLayer, torch.float32, got "
        "torch.float64.",
    ),
    ("4-D", lambda: layer()(zeros(2, 3, 5, 12)), ValueError, "x must be (b, n, 12)"),
    ("no layers", lambda: Encoder(12, 3, 7, 0), ValueError, "depth must be … got 0"),
    ("cache", decode_with_a_cache_of_three, ValueError, "for 2 layers, got 3"),
    ("no tokens", lambda: Transformer(0), ValueError, "vocab_size must be … got 0"),
    ("source", lambda: model(source_vocab_size=0), ValueError, "source_vocab_size"),
    ("padding", lambda: model(padding_token=17), ValueError, "from 0 to 16, got 17"),
    ("rotary", lambda: model(positions="rotary"), ValueError, "('sinusoidal', … None)"),
    ("odd dim", lambda: model(dim=11, heads=1), ValueError, "dim must be even … 11"),
    ("token", lambda: model()(17 * ids(2, 5), ids(2, 3)), ValueError, "source tokens"),
    ("batch", lambda: model()(ids(2, 5), ids(3, 3)), ValueError, "must be (2, t)"),
    ("no length", lambda: generate(max_length=0), ValueError, "max_length must … 0"),
    ("begin", lambda: generate(begin=17), ValueError, "begin must be a token from 0"),
    ("T5", lambda: generate(begin=0), ValueError, "begin must not be the padding … 0"),
    ("endless", lambda: generate(end=0), ValueError, "end must not be the padding … 0"),
    ("segments", lambda: bert(num_segments=0), ValueError, "num_segments must … 0"),
    ("long text", lambda: bert()(ids(2, 6)), ValueError, "5 positions … 6"),
    ("ids", lambda: bert()(17 * ids(2, 5)), ValueError, "tokens must be … 17 to 17"),
    ("all", lambda: loss(zeros(3, 5), ids(3), smoothing=1.0), ValueError, "[0, 1)"),
    ("class", lambda: loss(zeros(3, 5), 5 * ids(3)), ValueError, "targets … 0 to 4"),
    ("pad", lambda: loss(zeros(5), ids(), padding_token=7), ValueError, "0 to 4, got"),
    ("step 0", lambda: rate(0, dim=12), ValueError, "step must be a positive … got 0"),
    ("dim 0", lambda: rate(1, dim=0), ValueError, "dim must be a positive … got 0"),
    (
        "learned positions",
        lambda: model(positions="learned", max_length=4)(ids(2, 5), ids(2, 3)),
        ValueError,
        "4 positions … 5",
    ),
    (
        "unknown segments",
        lambda: bert()(ids(2, 5), segments=2 * ids(2, 5)),
        ValueError,
        "segments must be from 0 to 1, got 2 to 2",
    ),
    (
        "no pooler",
        lambda: bert(pooler=False).pool(zeros(2, 5, 12)),
        ValueError,
        "the model must have been made with pooler=True, got pooler=False",
    ),
    (
        "PyTorch's keyword for a layer",
        lambda: layer(layer_norm_eps=1e-3),
        TypeError,
        "EncoderLayer() has no argument 'layer_norm_eps'; did you mean 'eps'?",
    ),
    (
        "PyTorch's keyword for a model",
        lambda: model(d_model=16),
        TypeError,
        "Transformer() has no argument 'd_model'; did you mean 'dim'?",
    ),
    ("factor", lambda: rms_norm(zeros(5), zeros(7)), ValueError, "weight must be (5,)"),
    ("root", lambda: rms_norm(zeros(5), eps=-1.0), ValueError, "eps must be … -1.0"),
    ("size", lambda: RMSNorm(0), ValueError, "dim must be a positive integer, got 0"),
    ("its root", lambda: RMSNorm(5, eps=-2.0), ValueError, "eps must be … got -2.0"),
    ("gates", lambda: SwiGLU(5, 0), ValueError, "hidden_dim must be … got 0"),
    ("inputs", lambda: SwiGLU(0, 5), ValueError, "dim must be a positive … got 0"),
    (
        "hidden norm",
        lambda: layer(hidden_norm=True),
        ValueError,
        "'swiglu', got 'relu'",
    ),
    (
        "batch norm",
        lambda: layer(normalization="batch"),
        ValueError,
        "('layer', 'rms')",
    ),
    ("path", lambda: layer(drop_path=1.0), ValueError, "drop_path … [0, 1), got 1.0"),
    ("no dim", lambda: changed(layer(), dim=0), ValueError, "dim must be … got 0"),
    ("no heads", lambda: changed(layer(), heads=0), ValueError, "heads must be … 0"),
    ("no units", lambda: changed(lm(), hidden_dim=0), ValueError, "hidden_dim … got 0"),
    ("biases", lambda: changed(lm(), bias="all"), ValueError, "bias must be True, …"),
    ("no words", lambda: changed(bert(), vocab_size=0), ValueError, "vocab_size … 0"),
    (
        "no words",
        lambda: LanguageModel(0, dim=4, heads=2, depth=1),
        ValueError,
        "vocab_size must be a positive integer, got 0",
    ),
    ("sine waves", lambda: lm(positions="sinusoidal"), ValueError, "'rotary', None)"),
    ("nowhere", lambda: lm(max_length=0), ValueError, "max_length must be … got 0"),
    ("odd head", lambda: lm(dim=9, positions="rotary"), ValueError, "even … 3"),
    ("words", lambda: lm()(17 * ids(2, 5)), ValueError, "tokens must be … 17 to 17"),
    ("long", lambda: lm(max_length=4)(ids(2, 5)), ValueError, "4 positions … 5"),
    (
        "other layers",
        lambda: lm()(ids(2, 5), cache=DecoderCache(3)),
        ValueError,
        "cache must be for 1 layers, got 3.",
    ),
    (
        "mask",
        lambda: lm()(ids(2, 5), padding_mask=ids(2, 4) > 0),
        ValueError,
        "padding_mask must be (2, 5)",
    ),
    ("one text", lambda: lm()(ids(5)), ValueError, "tokens must be (b, n), … (5,)"),
    ("no prompt", lambda: write(0), ValueError, "prompt must have tokens … (2, 0)"),
    ("backwards", lambda: write(steps=-1), ValueError, "steps must be … got -1"),
    (
        "beyond",
        lambda: write(steps=6),
        ValueError,
        "the model has 9 positions, got a prompt of 5 tokens and 6 steps.",
    ),
    ("the end", lambda: write(end=17), ValueError, "end must be a token from 0 to 16"),
    ("cold", lambda: write(temperature=-1.0), ValueError, "temperature … got -1.0"),
    ("greedy k", lambda: write(temperature=0.0, top_k=-3), ValueError, "top_k … -3"),
    ("greedy p", lambda: write(temperature=0.0, top_p=7), ValueError, "(0, 1], got 7"),
    ("never", lambda: write(steps=0, top_p=7), ValueError, "(0, 1], got 7"),
    ("hot", lambda: write(temperature=math.inf), ValueError, "finite, got inf"),
    ("frozen", lambda: filtered(temperature=0.0), ValueError, "positive … got 0.0"),
    ("no tokens to keep", lambda: filtered(top_k=0), ValueError, "top_k must be … 0"),
    ("no share", lambda: filtered(top_p=0.0), ValueError, "in (0, 1], got 0.0"),
    ("more than all", lambda: filtered(top_p=1.5), ValueError, "(0, 1], got 1.5"),
    ("no number", lambda: filtered(top_p=math.nan), ValueError, "(0, 1], got nan"),
    (
        "Hugging Face's keyword",
        lambda: generate(num_beams=3),
        TypeError,
        "Transformer.generate() has no argument 'num_beams'; did you mean 'beams'?",
    ),
)
def test_malformed_calls_get_clear_errors(call, error, message):
    assert_refused(call, error, message)


# --- options reach every part --------------------------------------------------------


@pytest.mark.parametrize("stack", [Encoder, Decoder])
def test_options_reach_every_part(stack):
    model = stack(D, H, HIDDEN, 2, norm="pre", dropout=0.25, bias=False)
    assert not [name for name, _ in model.named_parameters() if name.endswith("bias")]
    for layer in model.layers:
        attentions = [x for x in layer.modules() if isinstance(x, MultiHeadAttention)]
        assert [x.dropout for x in attentions] == [0.25] * (1 + (stack is Decoder))
        assert layer.dropout.p == layer.feed_forward.dropout.p == 0.25


def test_stacks_hand_their_masks_to_every_layer():
    x, memory = randn(B, T, D), randn(B, S, D)
    mask, memory_mask = torch.rand(T, T) < 0.7, torch.rand(T, S) < 0.7
    for causal in (False, True):
        encoder = Encoder(D, H, HIDDEN, 2, norm="post", dtype=F64)
        one, other = encoder.layers
        masks = {"mask": mask, "causal": causal}
        assert same(encoder(x, **masks), other(one(x, **masks), **masks))
        assert not same(encoder(x, **masks), encoder(x, mask=mask, causal=not causal))
        decoder = Decoder(D, H, HIDDEN, 2, norm="post", dtype=F64)
        one, other = decoder.layers
        masks["memory_mask"] = memory_mask
        found = decoder(x, memory, **masks)
        assert same(found, other(one(x, memory, **masks), memory, **masks))
        for name, changed in (
            ("mask", None),
            ("memory_mask", None),
            ("causal", not causal),
        ):
            assert not same(found, decoder(x, memory, **{**masks, name: changed}))


def test_an_untied_output_has_no_bias():
    output = small_model(tied=False).output_proj
    assert output is not None
    assert output.bias is None


def test_a_cache_takes_the_rows_of_the_beams_that_are_kept():
    model, cache = small_model().eval(), DecoderCache(2)
    source = SOURCE[:1].expand(2, -1)
    prefixes = torch.tensor([[1, 5, 4], [1, 7, 6]])
    memory = model.encode(source)
    model.decode(prefixes, memory, source, cache=cache)
    rows, last = torch.tensor([1, 1]), torch.tensor([[3], [8]])
    cache.select(rows)
    found = model.decode(last, memory, source, cache=cache)[:, 0]
    again = torch.cat([prefixes[rows], last], dim=1)
    assert same(found, model.decode(again, memory, source)[:, -1])


def beam_search(model: Transformer, source: Tensor, beams: int) -> list[int]:
    """Search with beams that decode all of their tokens anew, one beam at a time."""
    kept = [([1], 0.0)]
    for _ in range(7):
        found = [x for x in kept if x[0][-1] == 2]
        for tokens, total in kept:
            if tokens[-1] != 2:
                gains = model(source, torch.tensor([tokens]))[0, -1].log_softmax(-1)
                found += [([*tokens, n], total + gains[n].item()) for n in range(1, 11)]
        kept = sorted(found, key=lambda x: -x[1])[:beams]
    # Of 4 + len, one is the begin token, which does not count.
    return max(kept, key=lambda x: x[1] / ((4 + len(x[0])) / 6) ** 0.6)[0][1:]


@pytest.mark.parametrize("beams", [1, 2, 3])
def test_every_beam_continues_its_own_tokens(beams):
    for seed in range(6):
        torch.manual_seed(seed)
        model = small_model(norm="post", tied=False, positions=None).eval()
        with torch.no_grad():
            for parameter in model.decoder.parameters():
                parameter.normal_()
            # What was written so far decides, rather than the source.
            for layer in model.decoder.layers:
                layer.cross_attention.output_proj.weight.zero_()
            model.output_proj.weight.normal_(std=0.3)
            options = {"begin": 1, "end": 2, "max_length": 7, "beams": beams}
            (found,) = model.generate(SOURCE[:1], **options)
            expected = beam_search(model, SOURCE[:1], beams)
        assert [x for x in found.tolist() if x] == expected


@pytest.mark.unhooked
@bad_calls(
    ("no width", lambda: FeedForward(0, 7), ValueError, "dim must be … got 0"),
    ("no layers", lambda: DecoderCache(0), ValueError, "depth must be … got 0"),
)
def test_sizes_of_nothing_are_refused(call, error, message):
    assert_refused(call, error, message)


def test_a_decoder_hands_padding_and_rotations_to_its_layers() -> None:
    options = {"heads": 3, "hidden_dim": 17, "depth": 2, "dtype": F64}
    decoder = Decoder(12, **options).eval()
    x, memory = torch.randn(2, 5, 12).double(), torch.randn(2, 7, 12).double()
    real = torch.tensor([[True] * 5, [False] * 2 + [True] * 3])
    found = decoder(x, memory, padding_mask=real)
    torch.testing.assert_close(found[:1], decoder(x[:1], memory[:1]))
    # Without positions, a text is the same wherever its padding puts it.
    torch.testing.assert_close(found[1:, 2:], decoder(x[1:, 2:], memory[1:]))
    turned = decoder(x, memory, rotary=lambda q, start=0: 2 * q)
    wanted = x
    for layer in decoder.layers:
        wanted = layer(wanted, memory, causal=True, rotary=lambda q, start=0: 2 * q)
    torch.testing.assert_close(turned, decoder.final_norm(wanted))
    assert not torch.allclose(turned, decoder(x, memory))


def test_only_self_attention_forgets_what_left_the_window() -> None:
    cache = DecoderCache(2, window=3, sinks=1)
    found = [(own.window, own.sinks, cross.window) for own, cross in cache.layers]
    assert found == [(3, 1, None)] * 2
