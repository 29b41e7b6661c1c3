"""Gaussian attention: the layer, the theorem, where the theorem ends, bad calls."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from bad_calls import assert_refused, bad_calls
from einops import einsum, rearrange
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.export import Dim
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from transformers_hw._engine import mixing
from transformers_hw.attention import softmax
from transformers_hw.attention_as_convolution import (
    AbsolutePositionalEmbedding,
    GaussianSelfAttention,
    ImageBert,
    LearnedRelativeSelfAttention,
    RelativePositionalEmbedding,
    RelativeTableAttention,
    attention_from_convolution,
    attentionize,
    convolution_from_attention,
    effective_kernel,
    fewest_heads,
    head_metrics,
    verify_limit,
    visualize_abs_positional_embedding,
    visualize_rel_positional_embedding,
)
from transformers_hw.multi_head_attention import MultiHeadAttention

F64 = torch.float64
COVARIANCES = ("isotropic", "diagonal", "full")
# Where hard heads attend; the last of the second list are ties.
WHOLE = {"centers": [(0, 1), (-2, 0), (1, 1)], "sharpness": math.inf}
TIES = {"centers": [(0, 1), (-2, 0), (1.5, 0.5)], "sharpness": math.inf}
QUARTERS = st.integers(-36, 36).map(lambda d: d / 4)
Gaussian = GaussianSelfAttention
LAYERS: dict[str, Callable[..., nn.Module]] = {
    "isotropic": lambda **o: Gaussian(5, 3, output_dim=7, **o),
    "projected first": lambda **o: Gaussian(5, 3, output_dim=2, **o),
    "diagonal": lambda **o: Gaussian(5, 3, covariance="diagonal", **o),
    "full": lambda **o: Gaussian(5, 3, covariance="full", **o),
    "hard": lambda **o: Gaussian(5, 3, **WHOLE, **o),
    "hard, projected first": lambda **o: Gaussian(5, 3, output_dim=2, **WHOLE, **o),
    "hard with ties": lambda **o: Gaussian(5, 3, **TIES, **o),
    "table": lambda **o: RelativeTableAttention(5, 2, (2, 3), **o),
    "learned": lambda **o: LearnedRelativeSelfAttention(5, 3, **o),
    "content": lambda **o: LearnedRelativeSelfAttention(5, 3, content=True, **o),
}
every_layer = pytest.mark.parametrize("name", LAYERS)


def made(name: str) -> Any:
    """Make a layer with no parameter at a special value."""
    layer = LAYERS[name](dtype=F64)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return layer


def images(batch: int = 2, rows: int = 9, columns: int = 11) -> Tensor:
    return torch.randn(batch, rows, columns, 5, dtype=F64)


def assert_equal(ours: Tensor, expected: Tensor, within: float = 1e-12) -> None:
    torch.testing.assert_close(ours, expected, rtol=0, atol=within)


def channels_first(x: Tensor) -> Tensor:
    return rearrange(x, "b h w d -> b d h w")


def convolve(
    x: Tensor, *kernel: Tensor, pad: Any, mode="replicate", **o: Any
) -> Tensor:
    """Pad and convolve an image whose channels are last."""
    padded = F.pad(channels_first(x), pad, mode=mode)
    return rearrange(F.conv2d(padded, *kernel, **o), "b d h w -> b h w d")


def window(size: int) -> list[int]:
    """Return the offsets of Δ_K along one axis, as the assignment defines it."""
    return list(range(-(size // 2), (size - 1) // 2 + 1))


def hard_layer(centers: list[tuple[float, float]], output_dim: int = 7) -> Any:
    """Make a layer of hard heads, with random values."""
    options = {"output_dim": output_dim, "sharpness": math.inf, "dtype": F64}
    return Gaussian(5, len(centers), centers=centers, **options)


def window_layer(
    size: int = 3, output_dim: int = 7, step: tuple[int, int] = (1, 1)
) -> tuple[Any, Tensor]:
    """Make a layer with a hard head at each offset of the window, and its kernel."""
    centers = [(step[0] * i, step[1] * j) for i in window(size) for j in window(size)]
    layer = hard_layer(centers, output_dim)
    return layer, rearrange(layer.value_weight, "(i j) d e -> e d i j", i=size)


def joint_softmax(layer: Any, rows: int, columns: int) -> Tensor:
    """Give the weights by the book: one softmax over all pixels, no factors."""
    pixels = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).double()
    delta = pixels[None, :, :] - pixels[:, None, :]
    logs, weights = layer.log_sharpness, []
    for h in range(layer.heads):
        if layer.covariance == "isotropic":
            form = logs[h].exp() * torch.eye(2, dtype=F64)
        else:
            factor = torch.diag((logs[h] / 2).exp())
            if layer.shear is not None:
                lower = torch.tensor([[0.0, 0.0], [1.0, 0.0]], dtype=F64)
                factor = factor + layer.shear[h] * lower
            form = factor @ factor.T
        off = delta - layer.centers[h]
        weights.append((-torch.einsum("qki,ij,qkj->qk", off, form, off)).softmax(-1))
    return torch.stack(weights)


def soft_layer(
    covariance: str = "isotropic", *, output_dim: int = 7, heads: int = 3
) -> Any:
    """Make a layer whose every parameter is random."""
    options: Any = {"output_dim": output_dim, "covariance": covariance}
    layer = Gaussian(5, heads, **options, dtype=F64)
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    return layer


# The layer


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("output_dim", [3, 7])
@pytest.mark.parametrize("grid", [(2, 3), (9, 11), (1, 13)])
def test_the_layer_is_a_softmax_over_all_pixels(covariance, output_dim, grid):
    layer = soft_layer(covariance, output_dim=output_dim)
    x, p = torch.randn(2, *grid, 5, dtype=F64), joint_softmax(layer, *grid)
    pattern = "h q k, b k d, h d e -> b q e"
    expected = einsum(p, x.flatten(1, 2), layer.value_weight, pattern) + layer.bias
    dense, weights = layer(x, return_weights=True)
    assert_equal(layer(x).flatten(1, 2), expected, 1e-10)
    assert_equal(dense.flatten(1, 2), expected, 1e-10)
    assert_equal(weights.flatten(1, 2).flatten(2), p)


@pytest.mark.parametrize("covariance", ["isotropic", "diagonal"])
@pytest.mark.parametrize("output_dim", [3, 7])
@pytest.mark.parametrize("grid", [(3, 2), (9, 11)])
def test_both_paths_have_the_same_gradients(covariance, output_dim, grid):
    layer = soft_layer(covariance, output_dim=output_dim)
    x = torch.randn(2, *grid, 5, dtype=F64, requires_grad=True)
    inputs = [x, *layer.parameters()]
    up = torch.randn(2, *grid, output_dim, dtype=F64)
    fast = torch.autograd.grad(layer(x), inputs, up)
    dense = torch.autograd.grad(layer(x, return_weights=True)[0], inputs, up)
    for one, other in zip(fast, dense, strict=True):
        assert_equal(one, other, 1e-10)
        assert one.abs().max() > 0


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize(
    ("center", "sharpness"),
    [
        ((50.3, -49.6), 0.5),
        ((1000.3, 0.3), 1e-3),
        ((4000.3, -4000.7), 1e-4),
        ((1e4, -1e4), 0.5),
        ((1e4, -1e4), 1e-5),
        ((-0.6, 1e4), 2.0),
    ],
)
def test_centers_far_outside_the_image_cost_no_digits(covariance, center, sharpness):
    options: Any = {"centers": [center], "covariance": covariance}
    layer = Gaussian(5, 1, sharpness=sharpness, **options)
    exact = Gaussian(5, 1, sharpness=sharpness, dtype=F64, **options)
    exact.load_state_dict(layer.state_dict())
    expected = joint_softmax(exact, 9, 11).view(1, 9, 11, 9, 11).detach()
    x = torch.randn(2, 9, 11, 5)
    output, weights = layer(x, return_weights=True)
    assert_equal(weights.double(), expected, 1e-6)
    pattern = "h q k, b k d, h d e -> b q e"
    mixed = einsum(
        expected.flatten(1, 2).flatten(2),
        x.double().flatten(1, 2),
        exact.value_weight,
        pattern,
    )
    for found in (output, layer(x)):
        assert_equal(found.double().flatten(1, 2), mixed, 2e-6)


def test_a_hard_head_beyond_every_image_fetches_its_corner():
    layer = Gaussian(5, 1, sharpness=math.inf, centers=[(1e19, -1e19)])
    x = torch.randn(2, 9, 11, 5)
    corner = einsum(x[:, -1, 0], layer.value_weight, "b d, h d e -> b e")
    for found in (layer(x), layer(x, return_weights=True)[0]):
        assert_equal(found, corner[:, None, None].expand_as(found), 1e-6)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_heads_may_be_sharper_than_float32_can_hold(covariance):
    options: Any = {"centers": [(0.5, -3.2)], "covariance": covariance}
    sharp = Gaussian(5, 1, sharpness=1e39, **options)
    hard = Gaussian(5, 1, sharpness=math.inf, centers=options["centers"])
    weights = sharp.weights(9, 11)
    assert torch.equal(weights, hard.weights(9, 11))
    gradients = torch.autograd.grad(weights.sin().sum(), [sharp.centers])
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize(
    ("center", "expected"),
    # In float32, 7 plus the first is 7.5; the second is 0.5 itself.
    [(0.5 - 2**-25, 1.0), (0.5 - 2**-54, 0.25)],
)
def test_a_near_tie_of_hard_heads_is_the_same_on_all_paths(center, expected):
    layer = Gaussian(5, 1, centers=[(center, -center)], sharpness=math.inf)
    x = torch.randn(2, 9, 11, 5)
    output, weights = layer(x, return_weights=True)
    assert weights[0, 7, 7, 7, 7].item() == expected
    assert_equal(layer(x), output, 1e-6)


@pytest.mark.question("eth-1b.2")
def test_a_softmax_of_row_and_column_scores_is_a_product_of_softmaxes():
    down, right = torch.randn(5, dtype=F64), torch.randn(7).double()
    joint = (down[:, None] + right).flatten().softmax(0).view(5, 7)
    assert torch.allclose(joint, torch.outer(down.softmax(0), right.softmax(0)))


@pytest.mark.question("eth-1b.2")
def test_gaussian_attention_is_one_pass_over_rows_and_one_over_columns():
    alpha, center, x = 0.7, (1.3, -2.1), torch.randn(9, 11, dtype=F64)

    def along(length: int, shift: float) -> Tensor:
        at = torch.arange(length, dtype=F64)
        return (-alpha * (at - at[:, None] - shift) ** 2).softmax(dim=-1)

    pixels = torch.cartesian_prod(torch.arange(9.0), torch.arange(11.0)).double()
    delta = pixels - pixels[:, None]
    distance = (delta - torch.tensor(center, dtype=F64)).square().sum(-1)
    joint = (-alpha * distance).softmax(dim=-1)  # 99 by 99
    passes = along(9, center[0]) @ x @ along(11, center[1]).T  # 9 by 9, 11 by 11
    torch.testing.assert_close(passes.flatten(), joint @ x.flatten())


@pytest.mark.question("eth-1b.2")
def test_separable_mixing_costs_rows_plus_columns():
    layer = soft_layer(output_dim=5).requires_grad_(False)
    rows, columns, n = 9, 11, 99
    x = torch.randn(2, rows, columns, 5, dtype=F64)

    def multiply_and_add(total: Any, a: torch.Size, b: torch.Size, **_: Any) -> int:
        return 2 * a[0] * a[1] * b[1]

    in_place = {torch.ops.aten.addmm_: multiply_and_add}
    with FlopCounterMode(display=False, custom_mapping=in_place) as fast:
        layer(x)
    with FlopCounterMode(display=False) as dense:
        layer(x, return_weights=True)
    per_head = 2 * 2 * n * 5  # multiply and add, batch, pixels, channels
    assert fast.get_total_flops() == 3 * per_head * (rows + columns + 5)
    assert dense.get_total_flops() == 3 * per_head * (n + 5)


@pytest.mark.parametrize("output_dim", [5, 11])
def test_large_images_go_one_by_one_with_the_same_result(output_dim, monkeypatch):
    by_row, by_column = (torch.rand(3, n, n, dtype=F64) for n in (9, 11))
    x = torch.randn(2, 9, 11, 7, dtype=F64, requires_grad=True)
    values, bias = torch.randn(3, 7, output_dim).double(), torch.randn(output_dim)
    monkeypatch.setattr(mixing, "LARGE_IMAGE", x[0].numel())
    found = mixing.mix_separably(by_row, by_column, x, values, bias.double())
    axes = "h i k, h j l, b k l d, h d e -> b i j e"
    wanted = einsum(by_row, by_column, x, values, axes) + bias
    assert_equal(found, wanted, 1e-10)
    signal = torch.randn_like(found)
    slopes = [torch.autograd.grad(y, x, signal)[0] for y in (found, wanted)]
    assert_equal(*slopes, 1e-10)


@pytest.mark.question("eth-1e.3")
@pytest.mark.parametrize("output_dim", [5, 11])
@pytest.mark.parametrize("stride", [1, 2, 4])
def test_hard_heads_project_at_the_queries_alone(stride, output_dim):
    layer = Gaussian(7, 3, output_dim=output_dim, **WHOLE)
    every = slice(None, None, stride)
    with FlopCounterMode(display=False) as counted:
        layer(torch.randn(2, 16, 8, 7), queries=(every, every))
    queries = (16 // stride) * (8 // stride)
    # Multiply and add, for each image, query, head, input and output channel.
    assert counted.get_total_flops() == 2 * 2 * queries * 3 * 7 * output_dim


def test_a_full_covariance_does_not_factorize():
    layer = soft_layer("full", heads=1)
    weights = layer.weights(5, 7)[0, 2, 3]
    assert torch.linalg.matrix_rank(weights, rtol=1e-6) > 1
    nn.init.zeros_(layer.shear)
    assert torch.linalg.matrix_rank(layer.weights(5, 7)[0, 2, 3], rtol=1e-6) == 1


DROPPING: dict[str, Callable[..., nn.Module]] = {
    "isotropic": partial(Gaussian, 24, 2),
    "full": partial(Gaussian, 24, 2, covariance="full"),
    "hard": partial(Gaussian, 24, 2, centers=[(0, 1), (-2, 0)], sharpness=math.inf),
    "learned": partial(LearnedRelativeSelfAttention, 24, 2),
    "content": partial(LearnedRelativeSelfAttention, 24, 2, content=True),
}


@pytest.mark.parametrize("name", DROPPING)
@pytest.mark.parametrize("return_weights", [False, True])
@torch.no_grad()
def test_attention_weights_are_dropped_one_by_one(name, return_weights):
    layer = DROPPING[name](dropout=0.25, dtype=F64)
    # Pixels are one-hot, and each head copies them to channels of its own: the output
    # is the weights that were used.
    x = F.pad(rearrange(torch.eye(12, dtype=F64), "(k l) d -> 1 k l d", k=3), (0, 12))
    x = x.expand(50, -1, -1, -1)
    eye = torch.eye(24, dtype=F64)
    layer.value_weight.copy_(torch.stack([eye, eye.roll(12, 1)]))

    def used() -> Tensor:
        result = layer(x, return_weights=return_weights)
        output = result[0] if return_weights else result
        return rearrange(output, "b i j (h k l) -> b h i j k l", h=2, k=3)

    _, weights = layer(x, return_weights=True)
    weights = weights.expand(50, *weights.shape[-5:])
    draws = used()
    kept = draws > 0
    expected = torch.where(kept, weights / 0.75, 0.0)
    assert_equal(draws, expected)
    # Weights without a batch axis are dropped for all images at once.
    shared = isinstance(layer, GaussianSelfAttention)
    assert (kept == kept[:1]).all() == shared
    share = kept[weights > 0].double().mean().item()
    assert share == pytest.approx(0.75, abs=0.2 if shared else 0.02)
    layer.eval()
    assert_equal(used(), weights)


def test_only_the_query_pixels_get_outputs():
    x = torch.randn(2, 9, 11, 5, dtype=F64)
    queries = (slice(1, None, 2), slice(2, 9, 3))
    layers = [soft_layer(covariance) for covariance in COVARIANCES]
    layers.append(hard_layer([(1, -2), (0, 3), (-4, 0)]))
    for layer in layers:
        whole, weights = layer(x, return_weights=True)
        some, some_weights = layer(x, queries=queries, return_weights=True)
        torch.testing.assert_close(some, whole[:, 1::2, 2:9:3])
        torch.testing.assert_close(some_weights, weights[:, 1::2, 2:9:3])
        torch.testing.assert_close(layer(x, queries=queries), some)


# The limit


@pytest.mark.question("eth-1d.1")
def test_a_sharp_head_attends_to_one_pixel_and_clamps_at_the_border():
    layer = hard_layer([(-1, 2)])
    weights = layer.weights(5, 7)[0]
    for i in range(5):
        for j in range(7):
            expected = torch.zeros(5, 7, dtype=F64)
            expected[min(max(i - 1, 0), 4), min(max(j + 2, 0), 6)] = 1.0
            assert torch.equal(weights[i, j], expected)


@pytest.mark.question("eth-1d.1")
def test_pixels_that_tie_share_the_weight():
    weights = hard_layer([(0.5, 0.0)]).weights(5, 7)[0, 2, 3]
    assert weights[2, 3] == weights[3, 3] == 0.5
    weights = hard_layer([(0.5, -0.5)]).weights(5, 7)[0, 2, 3]
    assert torch.equal(weights[2:4, 2:4], torch.full((2, 2), 0.25).double())
    at_the_border = hard_layer([(0.5, 0.0)]).weights(5, 7)[0, 4, 3]
    assert at_the_border[4, 3] == 1.0


@pytest.mark.question("eth-1d.1")
@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.tuples(QUARTERS, QUARTERS), min_size=1, max_size=3),
    st.tuples(st.integers(1, 6), st.integers(1, 6)),
)
def test_hard_heads_are_the_limit_of_sharp_ones(centers, grid):
    hard = hard_layer(centers)
    sharp = Gaussian(5, len(centers), centers=centers, sharpness=300.0, dtype=F64)
    assert torch.allclose(hard.weights(*grid), sharp.weights(*grid), atol=1e-12)
    x = torch.randn(2, *grid, 5, dtype=F64)
    expected, _ = hard(x, return_weights=True)
    assert torch.allclose(hard(x), expected, atol=1e-12)


@pytest.mark.question("eth-1d.1")
@settings(deadline=None, max_examples=25)
@given(
    st.floats(0.3, 30.0),
    st.tuples(st.integers(-12, 12), st.integers(-12, 12)),
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
)
def test_the_weight_off_target_is_below_the_bound(alpha, center, grid):
    soft = Gaussian(1, 1, centers=[center], sharpness=alpha, dtype=F64)
    target = hard_layer([center]).weights(*grid) > 0
    off_target = soft.weights(*grid).masked_fill(target, 0.0).sum(dim=(-1, -2))
    bound = 4 * math.exp(-alpha) / (1 - math.exp(-3 * alpha))
    assert off_target.max() <= bound
    if alpha >= math.log(4.07):
        assert bound <= 4.07 * math.exp(-alpha)


@pytest.mark.question("eth-1d.1")
def test_a_key_is_no_nearer_to_the_target_than_to_its_clamp():
    # What the bound on the weight off target rests on, at the border too.
    rows, columns = 5, 7
    keys = torch.cartesian_prod(torch.arange(rows), torch.arange(columns))
    far = torch.tensor([rows - 1, columns - 1])
    for target in torch.cartesian_prod(torch.arange(-9, 15), torch.arange(-9, 15)):
        clamp = target.clamp(torch.zeros(2), far).long()
        excess = (keys - target).square().sum(1) - (clamp - target).square().sum()
        assert (excess >= (keys - clamp).square().sum(1)).all()


@pytest.mark.question("eth-1d.1")
def test_no_finite_sharpness_leaves_a_weight_at_zero():
    for alpha in (0.5, 5.0, 20.0):
        layer = Gaussian(1, 1, centers=[(0, 1)], sharpness=alpha, dtype=F64)
        weights = layer.weights(3, 4)
        assert (weights > 0).all()
        assert (weights < 1).all()


@pytest.mark.question("eth-1d.1")
def test_zero_otherwise_cannot_hold_where_the_target_leaves_the_image():
    weights = Gaussian(1, 1, centers=[(0, 5)], sharpness=50.0, dtype=F64).weights(1, 3)
    sums = weights.sum(dim=(-1, -2))
    torch.testing.assert_close(sums, torch.ones_like(sums))
    assert weights[0, 0, 0, 0, 2] > 1 - 1e-12


@pytest.mark.question("eth-1d.1")
def test_in_float32_the_target_has_all_the_weight_from_alpha_18():
    centers = [(2, -1), (0, 0), (-9, 4)]
    target = hard_layer(centers).weights(7, 11) > 0
    # The four neighbors add 4e^{−α} to the sum; 2⁻²⁴ is what float32 rounds away.
    # Along each axis there are two, so that a little less than 18 is enough.
    assert 4 * math.exp(-18.1) < 2**-24 < 4 * math.exp(-17.9)
    for alpha, exact in ((16.0, False), (18.1, True), (40.0, True)):
        layer = Gaussian(1, 3, centers=centers, sharpness=alpha)
        weights = layer.weights(7, 11)[target]
        assert bool((weights == 1.0).all()) is exact


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shift", [0, 60])
def test_half_precision_is_safe_for_far_shifts(dtype, shift):
    layer = Gaussian(5, 1, centers=[(0, shift)], sharpness=2.0, dtype=dtype)
    x = torch.randn(1, 3, 67, 5).to(dtype).requires_grad_()
    output, weights = layer(x, return_weights=True)
    (output.float().square().sum() + layer(x).float().square().sum()).backward()
    for parameter in (x, *layer.parameters()):
        assert bool(parameter.grad.isfinite().all())
    reference = Gaussian(5, 1, centers=[(0, shift)], sharpness=2.0, dtype=F64)
    with torch.no_grad():
        reference.log_sharpness.copy_(layer.log_sharpness)
    error = (weights.double() - reference.weights(3, 67)).abs().max()
    assert error <= torch.finfo(dtype).eps


# Learning


@pytest.mark.question("eth-2e")
def test_the_gradient_in_the_center_is_a_covariance():
    alpha = 0.8
    layer = Gaussian(1, 1, centers=[(0.4, -1.2)], sharpness=alpha, dtype=F64)
    nn.init.ones_(layer.value_weight)
    x = torch.randn(1, 9, 11, 1, dtype=F64)
    output, weights = layer(x, return_weights=True)
    (slope,) = torch.autograd.grad(output[0, 4, 5, 0], layer.centers)
    p, y = weights[0, 4, 5].detach(), x[0, ..., 0]
    down = torch.arange(9.0).double()[:, None] - 4
    right = torch.arange(11.0).double() - 5
    for axis, delta in enumerate((down, right)):
        covariance = (p * delta * y).sum() - (p * delta).sum() * (p * y).sum()
        assert slope[0, axis].item() == pytest.approx(2 * alpha * covariance.item())


@pytest.mark.question("eth-2e")
def test_the_gradient_in_the_center_vanishes_as_the_head_sharpens():
    def slope(alpha: float) -> float:
        layer = Gaussian(1, 1, centers=[(1, 1)], sharpness=alpha, dtype=F64)

        def from_the_middle(centers: Tensor) -> Tensor:
            _, weights = functional_call(layer, {"centers": centers}, (x,), options)
            return weights[0, 5, 5]

        x, options = torch.zeros(1, 11, 11, 1, dtype=F64), {"return_weights": True}
        jacobian = torch.func.jacrev(from_the_middle)(layer.centers.detach())
        return jacobian[..., 0, 0].abs().sum().item()

    slopes = [slope(alpha) for alpha in (1.0, 5.0, 10.0, 20.0)]
    assert slopes == sorted(slopes, reverse=True)
    assert slopes[0] > 0.3
    # Two neighbors, each with weight e^{−α} and slope 2α times that.
    assert slopes[-1] == pytest.approx(4 * 20 * math.exp(-20), rel=1e-3)
    assert slopes[-1] < 2e-7


@pytest.mark.question("eth-2e")
def test_at_a_tie_the_gradient_grows_with_the_sharpness():
    x = torch.zeros(1, 1, 9, 1, dtype=F64)
    x[0, 0, 5] = 1.0
    for alpha in (5.0, 10.0, 20.0):
        slopes = []
        for center in (0.0, 0.5):
            layer = Gaussian(1, 1, centers=[(0.0, center)], sharpness=alpha, dtype=F64)
            nn.init.ones_(layer.value_weight)
            seen = layer(x)[0, 0, 4, 0]
            (slope,) = torch.autograd.grad(seen, layer.centers)
            slopes.append(slope[0, 1].item())
        assert slopes[0] == pytest.approx(2 * alpha * math.exp(-alpha), rel=0.05)
        assert slopes[1] == pytest.approx(alpha / 2, rel=0.01)


@pytest.mark.question("eth-2e")
def test_what_can_be_expressed_need_not_be_learned():
    def learn(sharpness: float) -> tuple[float, float]:
        """Train one head, at first one pixel to the left, to fetch from the right."""
        torch.manual_seed(0)
        layer = Gaussian(1, 1, centers=[(0.0, -1.0)], sharpness=sharpness, bias=False)
        optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
        loss = torch.zeros(())
        for _ in range(300):
            x = torch.randn(4, 9, 9, 1)
            given = layer(x)
            loss = (given[:, :, 1:-1] - x[:, :, 2:]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return layer.head_centers()[0, 1].item(), loss.item()

    center, loss = learn(sharpness=0.3)
    assert center == pytest.approx(1.0, abs=0.2)
    assert loss < 0.1
    stuck, loss = learn(sharpness=50.0)
    assert stuck == pytest.approx(-1.0, abs=1e-3)
    assert loss > 0.5


# The theorem


@pytest.mark.question("eth-1c.2")
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_heads_placed_on_the_window_are_the_convolution(size):
    layer, taps = window_layer(size)
    x = torch.randn(2, 6, 7, 5, dtype=F64)
    pad = [size // 2, (size - 1) // 2] * 2
    assert_equal(layer(x), convolve(x, taps, layer.bias, pad=pad))


@pytest.mark.question("eth-1c.2")
def test_for_even_kernels_the_theorem_as_printed_is_false():
    # Its heads attend to q − f(h) with f(h) in Δ_K, its convolution at q + δ.
    for size in (3, 5):
        assert {-d for d in window(size)} == set(window(size))
    assert {-d for d in window(2)} != set(window(2))
    # K = 2: the convolution that fetches X_{q−1} from heads that fetch X_q, X_{q+1}.
    x = torch.randn(50, dtype=F64)
    looked_at = torch.stack([x[1:-1], x[2:]], dim=1)
    wanted = x[:-2, None]
    best = torch.linalg.lstsq(looked_at, wanted).solution
    assert (looked_at @ best - wanted).norm() > 0.5 * wanted.norm()
    # f onto −Δ_K repairs it.
    repaired = torch.stack([x[1:-1], x[:-2]], dim=1)
    best = torch.linalg.lstsq(repaired, wanted).solution
    assert (repaired @ best - wanted).norm() < 1e-10


@pytest.mark.question("eth-1c.2")
@pytest.mark.parametrize("size", [2, 4])
def test_an_even_convolution_reads_a_pixel_that_no_printed_head_sees(size):
    corner = (window(size)[0], window(size)[0])
    x = torch.randn(1, 9, 9, 5, dtype=F64, requires_grad=True)
    pixel = (0, 4 + corner[0], 4 + corner[1])
    taps = torch.ones(5, 5, size, size, dtype=F64)
    # The output at (4, 4) is the first whose window has its corner at `pixel`.
    convolved = F.conv2d(channels_first(x), taps)[0, :, pixel[1], pixel[2]]
    (read,) = torch.autograd.grad(convolved.sum(), x)
    assert read[pixel].abs().sum() > 0
    heads = hard_layer([(-i, -j) for i in window(size) for j in window(size)])
    (seen,) = torch.autograd.grad(heads(x)[0, 4, 4].sum(), x)
    assert seen[pixel].abs().sum() == 0  # whatever the values: q − Δ_K misses it


@pytest.mark.question("eth-1c.2")
def test_for_odd_kernels_the_printed_theorem_flips_the_kernel():
    layer, taps = window_layer(step=(-1, -1))  # q − f(h)
    x = torch.randn(1, 6, 7, 5, dtype=F64)
    flipped = convolve(x, taps.flip(-1, -2), layer.bias, pad=[1] * 4)
    assert_equal(layer(x), flipped)
    assert not torch.allclose(layer(x), convolve(x, taps, layer.bias, pad=[1] * 4))


@pytest.mark.question("eth-1c.1")
def test_the_usual_narrow_heads_cannot_hold_taps_of_full_rank():
    width, heads = 18, 9
    narrow = width // heads  # D_o = D / N_h
    layer = MultiHeadAttention(width, heads).double()
    value = rearrange(layer.value_proj.weight, "(h o) d -> h d o", h=heads)
    out = rearrange(layer.output_proj.weight, "e (h o) -> h o e", h=heads)
    assert torch.linalg.matrix_rank(value @ out).tolist() == heads * [narrow]
    tap = torch.randn(width, width, dtype=F64)
    assert torch.linalg.matrix_rank(tap) == width
    # Eckart and Young: no matrix of that rank is nearer to the tap than this.
    least = torch.linalg.svdvals(tap)[narrow:].norm()
    assert least > 0.5 * tap.norm()


@pytest.mark.question("eth-1c.1")
def test_heads_as_wide_as_the_rank_of_the_taps_do():
    layer, _ = window_layer(output_dim=5)
    value, out = torch.randn(9, 5, 2).double(), torch.randn(9, 2, 5).double()  # D_o = 2
    with torch.no_grad():
        layer.value_weight.copy_(value @ out)
    taps = rearrange(value @ out, "(i j) d e -> e d i j", i=3)
    x = torch.randn(2, 6, 7, 5, dtype=F64)
    assert_equal(layer(x), convolve(x, taps, layer.bias, pad=[1] * 4))


@pytest.mark.question("eth-1e.1")
@pytest.mark.parametrize("mode", ["replicate", "constant", "reflect", "circular"])
def test_attention_pads_by_replication_and_by_nothing_else(mode):
    layer, taps = window_layer()
    x = torch.randn(1, 6, 7, 5, dtype=F64)
    output, convolved = layer(x), convolve(x, taps, layer.bias, pad=[1] * 4, mode=mode)
    assert_equal(output[:, 1:-1, 1:-1], convolved[:, 1:-1, 1:-1])
    assert torch.allclose(output, convolved) is (mode == "replicate")
    # Any other padding takes padding first and cropping after.
    padded = F.pad(channels_first(x), [1] * 4, mode=mode)
    cropped = layer(rearrange(padded, "b d h w -> b h w d"))[:, 1:-1, 1:-1]
    assert_equal(cropped, convolved)


@pytest.mark.question("eth-1e.1")
def test_a_constant_image_stays_constant_unless_it_is_padded_with_zeros():
    image = torch.randn(6, dtype=F64).expand(1, 7, 11, 6)
    # Whatever the scores: contents, positions or both.
    by_content = MultiHeadAttention(6, 2).double()(image.reshape(1, 77, 6))
    by_position = Gaussian(6, 3, dtype=F64)(image)
    for output in (by_content, by_position.reshape(1, 77, 6)):
        assert_equal(output, output[:, :1].expand_as(output))
    taps = torch.randn(6, 6, 3, 3, dtype=F64)
    convolved = F.conv2d(channels_first(image), taps, padding=1)
    assert not torch.allclose(convolved[..., 0, 0], convolved[..., 3, 3])


@pytest.mark.question("eth-1e.1")
def test_a_key_with_a_zero_value_pads_with_zeros():
    rows, columns = 4, 5
    pixels = torch.cartesian_prod(torch.arange(rows), torch.arange(columns))
    x, taps = torch.randn(rows * columns, 5, dtype=F64), torch.randn(9, 5, 7).double()
    values = torch.cat([x, torch.zeros(1, 5, dtype=F64)])  # the last key is the sink
    output = torch.zeros(rows * columns, 7, dtype=F64)
    offsets = torch.cartesian_prod(torch.tensor(window(3)), torch.tensor(window(3)))
    for tap, offset in zip(taps, offsets, strict=True):
        at_target = (pixels - pixels[:, None] == offset).all(dim=-1)
        scores = F.pad(torch.where(at_target, 0.0, -math.inf), (0, 1), value=-1.0)
        weights = softmax(scores.double(), math.inf)
        assert_equal(weights.sum(dim=-1), torch.ones(rows * columns).double())
        output += weights @ values @ tap
    kernel = rearrange(taps, "(i j) d e -> e d i j", i=3)
    image = rearrange(x, "(i j) d -> 1 i j d", i=rows)
    expected = convolve(image, kernel, pad=[1] * 4, mode="constant")
    assert_equal(output, rearrange(expected, "1 i j e -> (i j) e"))


@pytest.mark.question("eth-1e.1")
@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_pytorchs_same_padding_mirrors_the_window_of_an_even_kernel():
    x = torch.randn(1, 1, 6, 7, dtype=F64)
    taps = torch.randn(1, 1, 2, 2, dtype=F64)
    same = F.conv2d(x, taps, padding="same")
    by_the_assignment = F.conv2d(F.pad(x, (1, 0, 1, 0)), taps)  # window −1, 0
    mirrored = F.conv2d(F.pad(x, (0, 1, 0, 1)), taps)  # window 0, 1
    assert_equal(same, mirrored)
    assert not torch.allclose(same, by_the_assignment)


@pytest.mark.question("eth-1e.2")
def test_dilation_only_moves_the_centers():
    layer, taps = window_layer(step=(2, 3))
    x = torch.randn(1, 8, 9, 5, dtype=F64)
    expected = convolve(x, taps, layer.bias, pad=[3, 3, 2, 2], dilation=(2, 3))
    assert_equal(layer(x), expected)


@pytest.mark.question("eth-1e.3")
def test_a_stride_only_chooses_which_pixels_are_queries():
    layer, taps = window_layer()
    x = torch.randn(1, 8, 9, 5, dtype=F64)
    strided = convolve(x, taps, layer.bias, pad=[1] * 4, stride=2)
    assert layer(x).shape[1:3] == x.shape[1:3] != strided.shape[1:3]
    assert_equal(layer(x)[:, ::2, ::2], strided)


@pytest.mark.question("eth-1e.3")
def test_absolute_positions_can_pack_a_strided_convolution_and_relative_ones_cannot():
    size, stride, alpha = 7, 2, 40.0
    pixels = torch.cartesian_prod(torch.arange(size), torch.arange(size)).double()
    keys = torch.cat([pixels, pixels.square().sum(1, keepdim=True)], dim=1)
    layer, taps = window_layer(output_dim=3)
    x = torch.randn(1, size, size, 5, dtype=F64)
    packed = torch.zeros(size * size, 3, dtype=F64)
    for center, value in zip(layer.given_centers, layer.value_weight, strict=True):
        target = stride * pixels + torch.tensor(center, dtype=F64)
        query = F.pad(2 * alpha * target, (0, 1), value=-alpha)
        weights = (query @ keys.T).softmax(dim=-1)  # ordinary queries and keys
        packed = packed + weights @ x.flatten(1, 2)[0] @ value
    strided = convolve(x, taps, pad=[1] * 4, stride=stride)[0]
    coarse = strided.shape[0]
    rows = rearrange(packed, "(i j) e -> i j e", i=size)[:coarse, :coarse]
    assert_equal(rows, strided, 1e-10)
    # A relative score is the same wherever the offset is: query (0, 0) attends to
    # (0, 0), offset 0, so query (1, 1) cannot prefer (2, 2), offset (1, 1), to itself.
    encoding = RelativePositionalEmbedding([(0.3, -0.6)], dtype=F64)
    scores = encoding.embeddings(size, size) @ encoding.head_vectors()[0]
    assert_equal(scores[0, 0, :-1, :-1], scores[1, 1, 1:, 1:])


# What trained heads do


@torch.no_grad()
def layer_with_norms(centers: list[tuple[float, float]], norms: list[float]) -> Any:
    """Make hard heads whose values have one entry each, all at different indices."""
    layer = hard_layer(centers)
    values = torch.diag_embed(torch.tensor(norms, dtype=F64))
    values = F.pad(values, (0, 5 * 7 - len(norms)))
    layer.value_weight.copy_(rearrange(values, "h (d e) -> h d e", d=5))
    return layer


@pytest.mark.question("eth-2e")
def test_metrics_of_a_convolution():
    layer = layer_with_norms([(i, j) for i in window(3) for j in window(3)], 9 * [2.0])
    metrics = head_metrics(layer)
    assert (metrics.cells_3x3, metrics.cells_5x5, metrics.duplicates) == (9, 9, 0)
    assert metrics.center_distances == 9 * [0.0]
    assert metrics.peak_weights == 9 * [1.0]
    assert metrics.rank == 9
    assert metrics.energy_3x3 == pytest.approx(1.0, abs=1e-12)


@pytest.mark.question("eth-2e")
def test_metrics_of_heads_that_share_straddle_and_stray():
    # Two heads on one pixel, one in the 5x5 window, one between two pixels, one beyond.
    centers = [(0, 0), (0, 0), (0, -2), (2.5, 0), (1, 3)]
    layer = layer_with_norms(centers, [1.0, 1.0, 2.0, 1.0, 1.0])
    metrics = head_metrics(layer)
    assert (metrics.cells_3x3, metrics.cells_5x5, metrics.duplicates) == (1, 2, 1)
    assert metrics.center_distances == [0.0, 0.0, 0.0, 0.5, 0.0]
    assert metrics.peak_weights == [1.0, 1.0, 1.0, 0.5, 1.0]
    # Rows of the kernel are orthogonal: 1 + 1 in the middle, 4, 1/4 twice, and 1.
    assert metrics.energy_3x3 == pytest.approx(2 / 7.5, abs=1e-12)
    assert metrics.energy_5x5 == pytest.approx(6.25 / 7.5, abs=1e-12)
    # Singular values 2, √2, 1 and √½: the two rows of the tie are equal.
    assert metrics.rank == 4
    assert [head_metrics(layer, tolerance=t).rank for t in (0.36, 0.6)] == [3, 2]


@pytest.mark.question("eth-2e")
def test_metrics_of_soft_heads():
    layer = Gaussian(5, 2, centers=[(0.25, -1), (3, 4)], sharpness=1.3, dtype=F64)
    metrics = head_metrics(layer)
    assert metrics.center_distances == [0.25, 0.0]
    n = torch.arange(-30, 31, dtype=F64)
    off, on = ((-1.3 * (n - center).square()).exp() for center in (0.25, 0.0))
    sums = off.sum() * on.sum()
    peaks = [float(off.max() / sums), float(1 / on.sum().square())]
    assert metrics.peak_weights == pytest.approx(peaks, abs=1e-12)
    # Neither has half of its weight on one pixel.
    assert max(peaks) < 0.5
    assert (metrics.cells_5x5, metrics.duplicates) == (0, 0)
    squares = effective_kernel(layer, 41).square().sum(dim=(0, 1))
    for size, energy in ((3, metrics.energy_3x3), (5, metrics.energy_5x5)):
        inside = slice(20 - size // 2, 21 + size // 2)
        expected = float(squares[inside, inside].sum() / squares.sum())
        assert energy == pytest.approx(expected, abs=1e-12)


# Every layer of the chapter


@pytest.mark.parametrize(
    "name",
    ["projected first", "diagonal", "hard, projected first", "hard with ties"],
)
def test_fast_paths_have_right_gradients_of_both_orders(name):
    layer = made(name)
    x = torch.randn(1, 9, 8, 5, dtype=F64, requires_grad=True)
    inputs = (x, *layer.parameters())
    assert torch.autograd.gradcheck(lambda x, *_: layer(x), inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda x, *_: layer(x), inputs, fast_mode=True)


@every_layer
def test_weights_are_distributions_and_explain_the_output(name):
    layer = made(name)
    x = images()
    output, weights = layer(x, return_weights=True)
    assert_equal(output, layer(x), 1e-10)
    assert (weights >= 0).all()
    sums = weights.sum(dim=(-1, -2))
    torch.testing.assert_close(sums, torch.ones_like(sums))
    pattern = "bhijkl,bkld,hde->bije" if name == "content" else "hijkl,bkld,hde->bije"
    expected = torch.einsum(pattern, weights, x, layer.value_weight) + layer.bias
    assert_equal(output, expected, 1e-10)


TRACED = ["isotropic", "full", "hard", "hard with ties", "table", "learned", "content"]


@pytest.mark.unhooked
@pytest.mark.parametrize("name", TRACED)
def test_layers_compile_without_graph_breaks(name):
    torch.compiler.reset()
    layer = made(name)
    compiled = torch.compile(layer, fullgraph=True, backend="eager", dynamic=True)
    for sizes in ((2, 9, 11), (5, 13, 6)):
        x = images(*sizes)
        torch.testing.assert_close(compiled(x), layer(x))


@pytest.mark.unhooked
@pytest.mark.parametrize("name", TRACED)
def test_layers_export_with_any_batch_and_size(name):
    layer = made(name).eval()
    axes = {0: Dim("b"), 1: Dim("rows", max=16), 2: Dim("columns", max=16)}
    exported = torch.export.export(
        layer, (images(),), dynamic_shapes=(axes,), strict=True
    ).module()
    for sizes in ((3, 5, 7), (5, 13, 6)):
        x = images(*sizes)
        torch.testing.assert_close(exported(x), layer(x))


def test_given_centers_survive_construction_on_the_meta_device():
    with torch.device("meta"):
        layer: Any = Gaussian(5, 2, centers=[(1, 2), (3, -4)], sharpness=3.0)
    layer = layer.to_empty(device="cpu")
    layer.reset_parameters()
    assert layer.head_centers().tolist() == [[1, 2], [3, -4]]
    assert layer.log_sharpness.tolist() == pytest.approx([math.log(3)] * 2)


@pytest.mark.parametrize("name", ["isotropic", "hard", "full", "table"])
def test_an_empty_batch_gives_an_empty_batch(name):
    assert made(name)(images(batch=0)).shape[:3] == (0, 9, 11)


def test_layers_work_under_autocast():
    layer, x = Gaussian(5, 3), torch.randn(2, 9, 11, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = layer(x)
    torch.testing.assert_close(output.float(), layer(x), rtol=0.1, atol=0.05)


def test_values_start_at_glorots_scale_and_centers_within_a_few_pixels():
    layer = Gaussian(64, 9, output_dim=48)
    expected = math.sqrt(2 / (9 * 64 + 48))
    assert layer.value_weight.std().item() == pytest.approx(expected, rel=0.05)
    centers = torch.cat([Gaussian(1, 50).head_centers() for _ in range(20)])
    assert centers.std().item() == pytest.approx(2.0, rel=0.1)


def test_a_converted_convolution_shows_its_sizes():
    shown = repr(attention_from_convolution(nn.Conv2d(2, 3, 3, padding=1)))
    assert "padding_mode='zeros'" in shown
    assert "2, heads=9, output_dim=3" in shown


# Malformed calls

CONV = nn.Conv2d(2, 3, 3)
HIDDEN = nn.Sequential(nn.ReLU(), nn.Sequential(nn.ConvTranspose2d(2, 3, 3)))
EMBEDDING = AbsolutePositionalEmbedding((5, 7), 8)
HEADS = RelativePositionalEmbedding([(0, 1)])
LIMIT = {"grid": (3, 3), "query": (1, 1)}


def test_only_hard_heads_round_their_centers():
    soft = Gaussian(5, 1, centers=[(0.1, 0.2)])
    assert soft.given_centers == ((0.1, 0.2),)
    # What ties in float32 must tie: the target lies halfway between two rows.
    hard = Gaussian(5, 1, centers=[(0.5 + 1e-9, 0.0)], sharpness=math.inf)
    assert hard.weights(3, 1)[0, 0, 0].flatten().tolist() == [0.5, 0.5, 0.0]


@pytest.mark.unhooked
@bad_calls(
    ("no heads", lambda: Gaussian(5, 0),
     ValueError, "heads must be a positive integer, got 0"),
    ("no sharpness", lambda: Gaussian(5, 3, sharpness=0.0),
     ValueError, "sharpness must be positive (math.inf is hard), got 0.0"),
    ("an unknown covariance", lambda: Gaussian(5, 3, covariance="round"),
     ValueError, "covariance must be one of ('isotropic', 'diagonal', 'full'), got"),
    ("too few centers", lambda: Gaussian(5, 3, centers=[(0, 1)]),
     ValueError, "centers must be 3 pairs (row, column), one a head, got [(0, 1)]"),
    ("a center that is not a number", lambda: Gaussian(5, 1, centers=[(0.0, math.nan)]),
     ValueError, "centers must be finite, got [(0.0, nan)]"),
    ("weights of no row", lambda: Gaussian(5, 3).weights(0, 4),
     ValueError, "rows must be a positive integer, got 0"),
    ("hard heads without centers", lambda: Gaussian(5, 3, sharpness=math.inf),
     ValueError, "hard heads (infinite … got centers None and covariance 'isotropic'"),
    ("an image channels first", lambda: Gaussian(5, 3)(torch.zeros(2, 5, 9, 11)),
     ValueError, "x must be (b, rows, columns, 5), got shape (2, 5, 9, 11)"),
    ("an image without pixels", lambda: Gaussian(5, 3)(torch.zeros(2, 0, 11, 5)),
     ValueError, "rows must be a positive integer, got 0"),
    ("hard heads without pixels", lambda: made("hard")(images(columns=0)),
     ValueError, "columns must be a positive integer, got 0"),
    ("a table without columns", lambda: RelativeTableAttention(5, 2, (3, 0)),
     ValueError, "window width must be a positive integer, got 0"),
    ("an image larger than the embeddings",
     lambda: LearnedRelativeSelfAttention(6, 2, max_size=4)(torch.zeros(1, 5, 3, 6)),
     ValueError, "x must have at most 4 rows and columns, got shape (1, 5, 3, 6)"),
    ("one channel for two axes",
     lambda: LearnedRelativeSelfAttention(1, 2, content=True),
     ValueError, "dim must be at least 2 with content, a half per axis, got 1"),
    ("attention dropout of everything", lambda: ImageBert(attention_dropout=1.0),
     ValueError, "dropout must be in [0, 1), got 1.0"),
    ("metrics of a whole model", lambda: head_metrics(ImageBert(dim=4, depth=1)),
     TypeError, "layer must be of type GaussianSelfAttention, got ImageBert"),
    ("a linear layer", lambda: attention_from_convolution(nn.Linear(2, 3)),
     TypeError, "conv must be an nn.Conv1d or nn.Conv2d (no subclass … got Linear"),
    ("a transposed convolution inside a model", lambda: attentionize(HIDDEN),
     TypeError, "at '1.0': conv must be … got ConvTranspose2d"),
    ("a sharpness for a table",
     lambda: attention_from_convolution(CONV, heads="fewest", sharpness=3.0),
     ValueError, "sharpness is for heads='taps'; the fewest have none, got 3.0"),
    ("an image smaller than the kernel",
     lambda: attention_from_convolution(CONV)(torch.zeros(1, 2, 2, 5)),
     ValueError, "the padded image must be at least 3 pixels long for this kernel"),
    ("an image without channels",
     lambda: attention_from_convolution(CONV)(torch.zeros(5, 7)),
     ValueError, "x must have a channel axis and 2 more, and may … got shape (5, 7)"),
    ("an even kernel", lambda: effective_kernel(Gaussian(5, 3), 4),
     ValueError, "size must be odd, to have a middle, got 4"),
    ("more than all", lambda: convolution_from_attention(Gaussian(5, 3), share=1.5),
     ValueError, "share must be between 0 and 1, got 1.5"),
    ("a layer too flat",
     lambda: convolution_from_attention(Gaussian(5, 3, sharpness=1e-9)),
     ValueError, "must lie within 500 pixels of the query, got heads that reach"),
    ("no taps", lambda: fewest_heads(torch.zeros(9, 0)),
     ValueError, "taps must be finite and not empty, got shape (9, 0)"),
    ("an image of another size", lambda: EMBEDDING(torch.zeros(2, 7, 5, 8)),
     ValueError, "x must be (b, 5, 7, dim), got shape (2, 7, 5, 8)"),
    ("a query outside the image",
     lambda: visualize_abs_positional_embedding(EMBEDDING, (5, 0)),
     ValueError, "query must be a pixel of the (5, 7) image, got (5, 0)"),
    ("too few axes",
     lambda: visualize_rel_positional_embedding(HEADS, (5, 7), (1, 1), axes=[]),
     ValueError, "axes must be 1, one a map, got 0"),
    ("no sharpness for the limit", lambda: verify_limit((0, 1), [], **LIMIT),
     ValueError, "sharpnesses must not be empty, got []"),
    ("the limit itself", lambda: verify_limit((0, 1), [math.inf], **LIMIT),
     ValueError, "sharpness must be positive and finite, got inf"),
    ("one center, not a list", lambda: RelativePositionalEmbedding([0, 1]),
     ValueError, "centers must be (heads, 2), got shape (2,)"),
    ("a center at infinity", lambda: RelativePositionalEmbedding([(0, math.inf)]),
     ValueError, "centers must be finite, got [[0.0, inf]]"),
    ("an unknown encoding", lambda: ImageBert(encoding="unknown"),
     ValueError, "encoding must be one of ('gaussian', 'learned', … got 'unknown'"),
    ("an image that patches do not divide",
     lambda: ImageBert(dim=4, depth=1)(torch.zeros(1, 3, 5, 6)),
     ValueError, "the patch must divide the image, got a patch of 2×2 and an image of"),
    ("the centers of learned heads",
     lambda: ImageBert(dim=4, depth=1, encoding="learned").head_centers(),
     TypeError, "the encoding must be 'gaussian', got 'learned'"),
)  # fmt: skip
def test_malformed_calls_get_clear_errors(call, error, message):
    assert_refused(call, error, message)


def test_hard_heads_are_where_the_layer_is():
    options = {"centers": [(0, 1)], "sharpness": math.inf, "device": "meta"}
    layer = GaussianSelfAttention(2, 1, **options)
    assert layer.head_centers().is_meta
    assert layer(torch.zeros(1, 3, 4, 2, device="meta")).is_meta
