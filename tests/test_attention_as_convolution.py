"""Gaussian attention: the layer, the theorem, and where the theorem ends."""

import math

import pytest
import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from transformers_hw import MultiHeadAttention
from transformers_hw.attention_as_convolution import (
    GaussianSelfAttention,
    RelativePositionalEmbedding,
    mix_densely,
    mix_separably,
    mix_shifted,
)

COVARIANCES = ("isotropic", "diagonal", "full")


def joint_softmax(layer: GaussianSelfAttention, rows: int, columns: int) -> Tensor:
    """Give the weights by the book: one softmax over all pixels, no factors."""
    pixels = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).double()
    delta = pixels[None, :, :] - pixels[:, None, :]
    logs = layer.log_sharpness
    assert logs is not None
    assert layer.centers is not None
    weights = []
    for h in range(layer.heads):
        if layer.covariance == "isotropic":
            form = logs[h].exp() * torch.eye(2, dtype=torch.float64)
        else:
            factor = torch.diag((logs[h] / 2).exp())
            if layer.shear is not None:
                lower = torch.tensor([[0.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
                factor = factor + layer.shear[h] * lower
            form = factor @ factor.T
        off = delta - layer.centers[h]
        weights.append((-torch.einsum("qki,ij,qkj->qk", off, form, off)).softmax(-1))
    return torch.stack(weights)


def soft_layer(
    covariance: str = "isotropic", *, dim: int = 5, output_dim: int = 7, heads: int = 3
) -> GaussianSelfAttention:
    """Make a layer whose every parameter is random."""
    layer = GaussianSelfAttention(
        dim,
        heads,
        output_dim=output_dim,
        covariance=covariance,  # pyright: ignore[reportArgumentType]
        dtype=torch.float64,
    )
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    return layer


@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("output_dim", [3, 7])
@pytest.mark.parametrize("grid", [(2, 3), (9, 11), (1, 13)])
def test_the_layer_is_a_softmax_over_all_pixels(
    covariance: str, output_dim: int, grid: tuple[int, int]
) -> None:
    layer = soft_layer(covariance, output_dim=output_dim)
    x = torch.randn(2, *grid, 5, dtype=torch.float64)
    expected = torch.einsum(
        "hqk,bkd,hde->bqe",
        joint_softmax(layer, *grid),
        x.flatten(1, 2),
        layer.value_weight,
    )
    assert layer.bias is not None
    expected = (expected + layer.bias).view(2, *grid, output_dim)
    fast, none = layer(x)
    dense, weights = layer(x, return_weights=True)
    assert none is None
    torch.testing.assert_close(fast, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(dense, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(
        weights.flatten(1, 2).flatten(2),
        joint_softmax(layer, *grid),
        rtol=0,
        atol=1e-12,
    )


@pytest.mark.parametrize("covariance", ["isotropic", "diagonal"])
@pytest.mark.parametrize("output_dim", [3, 7])
@pytest.mark.parametrize("grid", [(3, 2), (9, 11)])
def test_both_paths_have_the_same_gradients(
    covariance: str, output_dim: int, grid: tuple[int, int]
) -> None:
    layer = soft_layer(covariance, output_dim=output_dim)
    x = torch.randn(2, *grid, 5, dtype=torch.float64, requires_grad=True)
    inputs = [x, *layer.parameters()]
    up = torch.randn(2, *grid, output_dim, dtype=torch.float64)
    fast = torch.autograd.grad(layer(x)[0], inputs, up)
    dense = torch.autograd.grad(layer(x, return_weights=True)[0], inputs, up)
    for one, other in zip(fast, dense, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)
        assert one.abs().max() > 0


@pytest.mark.question("eth-1b.2")
def test_a_softmax_of_row_and_column_scores_is_a_product_of_softmaxes() -> None:
    down, right = torch.randn(5, dtype=torch.float64), torch.randn(7).double()
    joint = (down[:, None] + right).flatten().softmax(0).view(5, 7)
    assert torch.allclose(joint, torch.outer(down.softmax(0), right.softmax(0)))


@pytest.mark.question("eth-1b.2")
def test_gaussian_scores_are_cheaper_but_a_dense_layer_is_not() -> None:
    n, d = 6 * 7, 5
    z = torch.randn(n, d)
    projection = torch.randn(d, d)

    def operations(work: object) -> int:
        with FlopCounterMode(display=False) as counter:
            assert callable(work)
            work()
        return counter.get_total_flops() // 2

    absolute = operations(lambda: (z @ projection) @ (z @ projection).T)
    assert absolute == 2 * n * d * d + n * n * d  # O(ND² + N²D)
    codes, vector = torch.randn(n * n, 3), torch.randn(3, 1)
    assert operations(lambda: codes @ vector) == n * n * 3  # O(N² D_p)
    probabilities = torch.softmax(torch.randn(n, n), dim=-1)
    rest = operations(lambda: (probabilities @ z) @ projection)
    assert rest == n * n * d + n * d * d  # and O(N²D + ND²) is still to come


def test_separable_mixing_costs_rows_plus_columns() -> None:
    layer = soft_layer(dim=5, output_dim=5).requires_grad_(False)
    rows, columns, n = 9, 11, 99
    x = torch.randn(2, rows, columns, 5, dtype=torch.float64)

    def multiply_and_add(
        total: torch.Size, a: torch.Size, b: torch.Size, **_: object
    ) -> int:
        return 2 * a[0] * a[1] * b[1]

    in_place = {torch.ops.aten.addmm_: multiply_and_add}
    with FlopCounterMode(display=False, custom_mapping=in_place) as fast:
        layer(x)
    with FlopCounterMode(display=False) as dense:
        layer(x, return_weights=True)
    per_head = 2 * 2 * n * 5  # multiply and add, batch, pixels, channels
    assert fast.get_total_flops() == 3 * per_head * (rows + columns + 5)
    assert dense.get_total_flops() == 3 * per_head * (n + 5)


def test_a_full_covariance_does_not_factorise() -> None:
    layer = soft_layer("full", heads=1)
    weights = layer.weights(5, 7)[0, 2, 3]
    assert torch.linalg.matrix_rank(weights, rtol=1e-6) > 1
    assert layer.shear is not None
    nn.init.zeros_(layer.shear)
    assert torch.linalg.matrix_rank(layer.weights(5, 7)[0, 2, 3], rtol=1e-6) == 1


def test_only_the_pixels_that_ask_are_answered() -> None:
    x = torch.randn(2, 9, 11, 5, dtype=torch.float64)
    queries = (slice(1, None, 2), slice(2, 9, 3))
    layers = [soft_layer(covariance) for covariance in COVARIANCES]
    layers.append(hard_layer([(1, -2), (0, 3), (-4, 0)]))
    for layer in layers:
        whole, weights = layer(x, return_weights=True)
        some, some_weights = layer(x, queries=queries, return_weights=True)
        torch.testing.assert_close(some, whole[:, 1::2, 2:9:3])
        torch.testing.assert_close(some_weights, weights[:, 1::2, 2:9:3])
        torch.testing.assert_close(layer(x, queries=queries)[0], some)


def hard_layer(centers: list[tuple[float, float]]) -> GaussianSelfAttention:
    """Make a layer of hard heads, with random values."""
    return GaussianSelfAttention(
        5,
        len(centers),
        output_dim=7,
        centers=centers,
        sharpness=math.inf,
        dtype=torch.float64,
    )


@pytest.mark.question("eth-1d.1")
def test_a_sharp_head_looks_at_one_pixel_and_clamps_at_the_border() -> None:
    layer = hard_layer([(-1, 2)])
    weights = layer.weights(5, 7)[0]
    for i in range(5):
        for j in range(7):
            expected = torch.zeros(5, 7, dtype=torch.float64)
            expected[min(max(i - 1, 0), 4), min(max(j + 2, 0), 6)] = 1.0
            assert torch.equal(weights[i, j], expected)


@pytest.mark.question("eth-1d.1")
def test_pixels_that_tie_share_the_weight() -> None:
    weights = hard_layer([(0.5, 0.0)]).weights(5, 7)[0, 2, 3]
    assert weights[2, 3] == weights[3, 3] == 0.5
    weights = hard_layer([(0.5, -0.5)]).weights(5, 7)[0, 2, 3]
    assert torch.equal(weights[2:4, 2:4], torch.full((2, 2), 0.25).double())
    at_the_border = hard_layer([(0.5, 0.0)]).weights(5, 7)[0, 4, 3]
    assert at_the_border[4, 3] == 1.0


@pytest.mark.question("eth-1d.1")
@settings(deadline=None, max_examples=25)
@given(
    st.lists(
        st.tuples(
            st.floats(-9, 9).map(lambda d: round(2 * d) / 2),
            st.floats(-9, 9).map(lambda d: round(4 * d) / 4),
        ),
        min_size=1,
        max_size=3,
    ),
    st.tuples(st.integers(1, 6), st.integers(1, 6)),
)
def test_hard_heads_are_the_limit_of_sharp_ones(
    centers: list[tuple[float, float]], grid: tuple[int, int]
) -> None:
    hard = hard_layer(centers)
    sharp = GaussianSelfAttention(
        5, len(centers), centers=centers, sharpness=300.0, dtype=torch.float64
    )
    assert torch.allclose(hard.weights(*grid), sharp.weights(*grid), atol=1e-12)
    x = torch.randn(2, *grid, 5, dtype=torch.float64)
    expected, _ = hard(x, return_weights=True)
    assert torch.allclose(hard(x)[0], expected, atol=1e-12)


@pytest.mark.question("eth-1d.1")
@settings(deadline=None, max_examples=25)
@given(
    st.floats(0.3, 30.0),
    st.tuples(st.integers(-12, 12), st.integers(-12, 12)),
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
)
def test_the_weight_off_target_is_below_the_bound(
    alpha: float, center: tuple[int, int], grid: tuple[int, int]
) -> None:
    soft = GaussianSelfAttention(
        1, 1, centers=[center], sharpness=alpha, dtype=torch.float64
    )
    target = hard_layer([center]).weights(*grid) > 0
    off_target = soft.weights(*grid).masked_fill(target, 0.0).sum(dim=(-1, -2))
    bound = 4 * math.exp(-alpha) / (1 - math.exp(-3 * alpha))
    assert off_target.max() <= bound
    if alpha >= math.log(4.22):
        assert bound <= 4.22 * math.exp(-alpha)


@pytest.mark.question("eth-1d.1")
def test_in_float32_the_target_has_all_the_weight_from_alpha_18() -> None:
    centers = [(2, -1), (0, 0), (-9, 4)]
    target = hard_layer(centers).weights(7, 11) > 0
    # The four neighbours add 4e^{−α} to the sum; 2⁻²⁴ is what float32 rounds away.
    assert 4 * math.exp(-18.1) < 2**-24 < 4 * math.exp(-17.9)
    for alpha, exact in ((17.0, False), (18.1, True), (40.0, True)):
        layer = GaussianSelfAttention(1, 3, centers=centers, sharpness=alpha)
        weights = layer.weights(7, 11)[target]
        assert bool((weights == 1.0).all()) is exact


@pytest.mark.question("eth-2e")
def test_the_gradient_in_the_centre_dies_as_the_head_sharpens() -> None:
    def slope(alpha: float) -> float:
        layer = GaussianSelfAttention(
            1, 1, centers=[(1, 1)], sharpness=alpha, dtype=torch.float64
        )
        assert layer.centers is not None

        def seen_from_the_middle(centers: Tensor) -> Tensor:
            state = {"centers": centers}
            output = torch.func.functional_call(layer, state, (x,), kwargs)
            return output[1][0, 5, 5]

        kwargs = {"return_weights": True}
        x = torch.zeros(1, 11, 11, 1, dtype=torch.float64)
        jacobian = torch.autograd.functional.jacobian(
            seen_from_the_middle, layer.centers.detach()
        )
        assert isinstance(jacobian, Tensor)
        return float(jacobian[..., 0, 0].abs().sum())

    slopes = [slope(alpha) for alpha in (1.0, 5.0, 10.0, 20.0)]
    assert slopes == sorted(slopes, reverse=True)
    assert slopes[0] > 0.3
    # Two neighbours, each with weight e^{−α} and slope 2α times that.
    assert slopes[-1] == pytest.approx(4 * 20 * math.exp(-20), rel=1e-3)
    assert slopes[-1] < 2e-7


@pytest.mark.question("eth-1a.1")
def test_parameters_of_a_multi_head_layer() -> None:
    inputs, hidden, values, outputs, heads = 5, 3, 2, 7, 4
    layer = MultiHeadAttention(
        inputs,
        heads,
        head_dim=hidden,
        value_head_dim=values,
        output_dim=outputs,
        bias=["output"],
    )
    expected = heads * (2 * inputs * hidden + inputs * values)
    expected += heads * values * outputs + outputs
    assert sum(p.numel() for p in layer.parameters()) == expected


def split_heads(layer: MultiHeadAttention) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Give each head's own W_q, W_k, W_v and its rows of W_out."""
    query, key, value = (
        rearrange(p.weight, "(h e) d -> h d e", h=layer.heads)
        for p in (layer.query_proj, layer.key_proj, layer.value_proj)
    )
    out = rearrange(layer.output_proj.weight, "e (h d) -> h d e", h=layer.heads)
    return query, key, value, out


@pytest.mark.question("eth-1a.2")
@pytest.mark.question("eth-1c.1")
def test_one_query_pixel_is_a_sum_over_heads_with_merged_projections() -> None:
    layer = MultiHeadAttention(
        5, 3, head_dim=2, value_head_dim=4, output_dim=7, scale=1.0, bias=["output"]
    ).double()
    z = torch.randn(6, 5, dtype=torch.float64)
    q = 2
    pixel = layer.output_proj.bias
    for query, key, value, out in zip(*split_heads(layer), strict=True):
        scores = z[q] @ query @ key.T @ z.T
        merged = value @ out  # W^(h) = W_v^(h) W_out^(h)
        pixel = pixel + scores.softmax(dim=-1) @ z @ merged
    torch.testing.assert_close(layer(z[None])[0][0, q], pixel, rtol=0, atol=1e-12)


@pytest.mark.question("eth-1c.1")
def test_value_width_need_only_reach_the_rank_of_the_taps() -> None:
    taps = torch.randn(5, 2).double() @ torch.randn(2, 7).double()
    left, singular, right = torch.linalg.svd(taps)
    narrow = left[:, :2] * singular[:2] @ right[:2]  # D_o = 2, although D_out = 7
    torch.testing.assert_close(narrow, taps, rtol=0, atol=1e-12)
    narrower = left[:, :1] * singular[:1] @ right[:1]
    assert (narrower - taps).norm() > 0.1


@pytest.mark.question("eth-1a.2")
def test_without_positions_attention_is_equivariant_not_invariant() -> None:
    layer = MultiHeadAttention(6, 2).double()
    z = torch.randn(1, 7, 6, dtype=torch.float64)
    order = torch.randperm(7)
    moved = layer(z[:, order])[0]
    torch.testing.assert_close(moved, layer(z)[0][:, order])
    assert not torch.allclose(moved, layer(z)[0])


@pytest.mark.question("eth-1b.1")
def test_gaussian_encoding_leaves_only_the_last_of_the_four_terms() -> None:
    d, width = 5, 3
    z_q, z_k, u = torch.randn(d), torch.randn(d), torch.randn(width)
    v, r = torch.randn(width), torch.randn(width)
    query, key, position = torch.zeros(d, width), torch.zeros(d, width), torch.eye(3)
    four = (
        z_q @ query @ key.T @ z_k
        + z_q @ query @ position @ r
        + u @ key.T @ z_k
        + v @ position @ r
    )
    assert torch.equal(four, v @ r)


@pytest.mark.question("eth-1b.1")
@pytest.mark.question("eth-1d.2")
def test_the_encoding_is_a_square_whose_constant_is_minus_the_centre_squared() -> None:
    center, alpha = torch.tensor([2.0, -3.0]).double(), 0.7
    encoding = RelativePositionalEmbedding(
        center[None], sharpness=alpha, dtype=torch.float64
    )
    codes = encoding.codes(5, 7)
    scores = codes @ encoding.head_vectors()[0]
    delta = codes[..., 1:]
    constant = -center.square().sum()
    square = -alpha * ((delta - center).square().sum(dim=-1) + constant)
    torch.testing.assert_close(scores, square, rtol=0, atol=1e-12)


@pytest.mark.question("eth-1d.2")
def test_softmax_does_not_see_the_constant_and_the_sign_mirrors_the_centre() -> None:
    center = [(2.0, -1.0)]
    by_the_book = RelativePositionalEmbedding(center, sharpness=0.7)(5, 7)
    layer = GaussianSelfAttention(1, 1, centers=[(-2.0, 1.0)], sharpness=0.7)
    torch.testing.assert_close(by_the_book, layer.weights(5, 7), rtol=0, atol=1e-6)


def window(size: int) -> list[int]:
    """Give the offsets of Δ_K along one axis."""
    return list(range(-(size // 2), (size - 1) // 2 + 1))


@pytest.mark.question("eth-1c.2")
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_heads_placed_on_the_window_are_the_convolution(size: int) -> None:
    offsets = [(i, j) for i in window(size) for j in window(size)]
    layer = hard_layer([(float(i), float(j)) for i, j in offsets])
    x = torch.randn(2, 6, 7, 5, dtype=torch.float64)
    taps = rearrange(layer.value_weight, "(i j) d e -> e d i j", i=size)
    before, after = size // 2, (size - 1) // 2
    padded = F.pad(
        rearrange(x, "b h w d -> b d h w"), (before, after) * 2, mode="replicate"
    )
    expected = F.conv2d(padded, taps, layer.bias)
    output = rearrange(layer(x)[0], "b h w e -> b e h w")
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-12)


@pytest.mark.question("eth-1c.2")
def test_for_even_kernels_the_theorem_as_printed_is_false() -> None:
    # Its heads look at q − f(h) with f(h) in Δ_K, its convolution at q + δ.
    for size in (3, 5):
        assert {-d for d in window(size)} == set(window(size))
    assert {-d for d in window(2)} != set(window(2))
    # K = 2: the convolution that fetches X_{q−1} from heads that fetch X_q, X_{q+1}.
    x = torch.randn(50, dtype=torch.float64)
    looked_at = torch.stack([x[1:-1], x[2:]], dim=1)
    wanted = x[:-2, None]
    best = torch.linalg.lstsq(looked_at, wanted).solution
    assert (looked_at @ best - wanted).norm() > 0.5 * wanted.norm()
    # f onto −Δ_K repairs it.
    repaired = torch.stack([x[1:-1], x[:-2]], dim=1)
    best = torch.linalg.lstsq(repaired, wanted).solution
    assert (repaired @ best - wanted).norm() < 1e-10


@pytest.mark.question("eth-1c.2")
def test_for_odd_kernels_the_printed_theorem_flips_the_kernel() -> None:
    offsets = [(i, j) for i in window(3) for j in window(3)]
    layer = hard_layer([(-float(i), -float(j)) for i, j in offsets])  # q − f(h)
    x = torch.randn(1, 6, 7, 5, dtype=torch.float64)
    taps = rearrange(layer.value_weight, "(i j) d e -> e d i j", i=3)
    inside = rearrange(layer(x)[0], "b h w e -> b e h w")[..., 1:-1, 1:-1]
    picture = rearrange(x, "b h w d -> b d h w")
    flipped = F.conv2d(picture, taps.flip(-1, -2), layer.bias)
    torch.testing.assert_close(inside, flipped, rtol=0, atol=1e-12)
    assert not torch.allclose(inside, F.conv2d(picture, taps, layer.bias))


@pytest.mark.question("eth-1e.1")
def test_attention_pads_by_replication_and_by_nothing_else() -> None:
    layer = hard_layer([(float(i), float(j)) for i in window(3) for j in window(3)])
    x = torch.randn(1, 6, 7, 5, dtype=torch.float64)
    taps = rearrange(layer.value_weight, "(i j) d e -> e d i j", i=3)
    picture = rearrange(x, "b h w d -> b d h w")
    output = rearrange(layer(x)[0], "b h w e -> b e h w")
    for mode in ("replicate", "constant", "reflect", "circular"):
        padded = F.pad(picture, (1, 1, 1, 1), mode=mode)
        convolved = F.conv2d(padded, taps, layer.bias)
        inside = (..., slice(1, -1), slice(1, -1))
        assert torch.allclose(output[inside], convolved[inside])
        assert torch.allclose(output, convolved) is (mode == "replicate")


@pytest.mark.question("eth-1e.2")
def test_dilation_only_moves_the_centres() -> None:
    layer = hard_layer([(2.0 * i, 3.0 * j) for i in window(3) for j in window(3)])
    x = torch.randn(1, 8, 9, 5, dtype=torch.float64)
    taps = rearrange(layer.value_weight, "(i j) d e -> e d i j", i=3)
    padded = F.pad(rearrange(x, "b h w d -> b d h w"), (3, 3, 2, 2), mode="replicate")
    expected = F.conv2d(padded, taps, layer.bias, dilation=(2, 3))
    output = rearrange(layer(x)[0], "b h w e -> b e h w")
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-12)


@pytest.mark.question("eth-1e.3")
def test_a_stride_is_not_attention_but_the_choice_of_who_asks() -> None:
    layer = hard_layer([(float(i), float(j)) for i in window(3) for j in window(3)])
    x = torch.randn(1, 8, 9, 5, dtype=torch.float64)
    taps = rearrange(layer.value_weight, "(i j) d e -> e d i j", i=3)
    padded = F.pad(rearrange(x, "b h w d -> b d h w"), (1, 1, 1, 1), mode="replicate")
    strided = F.conv2d(padded, taps, layer.bias, stride=2)
    output = rearrange(layer(x)[0], "b h w e -> b e h w")
    assert output.shape[2:] == x.shape[1:3] != strided.shape[2:]
    torch.testing.assert_close(output[..., ::2, ::2], strided, rtol=0, atol=1e-12)


@pytest.mark.question("eth-1d.1")
def test_zero_otherwise_cannot_hold_where_the_target_leaves_the_picture() -> None:
    weights = GaussianSelfAttention(
        1, 1, centers=[(0, 5)], sharpness=50.0, dtype=torch.float64
    ).weights(1, 3)
    sums = weights.sum(dim=(-1, -2))
    torch.testing.assert_close(sums, torch.ones_like(sums))
    assert weights[0, 0, 0, 0, 2] > 1 - 1e-12


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shift", [0, 10, 30, 60])
def test_half_precision_is_safe_for_far_shifts(dtype: torch.dtype, shift: int) -> None:
    layer = GaussianSelfAttention(
        5, 1, centers=[(0, shift)], sharpness=2.0, dtype=dtype
    )
    x = torch.randn(1, 3, 67, 5).to(dtype).requires_grad_()
    output, weights = layer(x, return_weights=True)
    (output.float().square().sum() + layer(x)[0].float().square().sum()).backward()
    for parameter in (x, *layer.parameters()):
        assert parameter.grad is not None
        assert bool(parameter.grad.isfinite().all())
    reference = GaussianSelfAttention(
        5, 1, centers=[(0, shift)], sharpness=2.0, dtype=torch.float64
    )
    precision = torch.finfo(dtype).eps
    assert layer.log_sharpness is not None
    assert reference.log_sharpness is not None
    with torch.no_grad():
        reference.log_sharpness.copy_(layer.log_sharpness)
    error = (weights.double() - reference.weights(3, 67)).abs().max()
    assert error <= precision


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_expanded_form_fails_in_half_precision(dtype: torch.dtype) -> None:
    encoding = RelativePositionalEmbedding([(0, -60)], sharpness=2.0, dtype=dtype)
    target = encoding(3, 67)[0, 1, 3, 1, 63]
    assert not target > 0.7
    exact = RelativePositionalEmbedding([(0, -60)], sharpness=2.0, dtype=torch.float64)
    assert exact(3, 67)[0, 1, 3, 1, 63] > 0.6


def test_mixing_functions_agree_with_a_plain_sum() -> None:
    x = torch.randn(2, 3, 5, 4, dtype=torch.float64)
    row_at, column_at = torch.randint(3, (2, 7)), torch.randint(5, (2, 6))
    by_row = F.one_hot(row_at, 3).double()
    by_column = F.one_hot(column_at, 5).double()
    weights = einsum(by_row, by_column, "h i k, h j l -> h i j k l")
    for width in (2, 11):
        value = torch.randn(2, 4, width, dtype=torch.float64)
        for bias in (None, torch.randn(width, dtype=torch.float64)):
            expected = torch.zeros(2, 7, 6, width, dtype=torch.float64)
            for h in range(2):
                picked = x[:, row_at[h]][:, :, column_at[h]]
                expected += picked @ value[h]
            expected = expected if bias is None else expected + bias
            for mixed in (
                mix_densely(weights, x, value, bias),
                mix_separably(by_row, by_column, x, value, bias),
                mix_shifted(row_at, column_at, x, value, bias),
            ):
                torch.testing.assert_close(mixed, expected, rtol=0, atol=1e-12)
