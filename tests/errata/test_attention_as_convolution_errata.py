"""Attention as convolution: counterexamples, and answers that need an example."""

import math

import pytest
import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from transformers_hw import MultiHeadAttention
from transformers_hw.attention_as_convolution import (
    GaussianSelfAttention,
    RelativePositionalEmbedding,
    attention_from_convolution,
)


def offsets(size: int) -> list[int]:
    """Give Δ_K along one axis, as the assignment defines it."""
    return list(range(-(size // 2), (size - 1) // 2 + 1))


def hard_heads(centers: list[tuple[int, int]]) -> GaussianSelfAttention:
    """Make heads that each look at one pixel, with random values of width 5."""
    return GaussianSelfAttention(
        5, len(centers), centers=centers, sharpness=math.inf, dtype=torch.float64
    )


def channels_first(x: Tensor) -> Tensor:
    return rearrange(x, "b h w d -> b d h w")


@pytest.mark.question("eth-1a.2")
def test_the_output_projection_cannot_stand_inside_the_concatenation() -> None:
    n, heads, width, out = 6, 3, 2, 7
    outputs = [torch.randn(n, width) for _ in range(heads)]
    projection = torch.randn(heads * width, out)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        torch.cat([one @ projection for one in outputs], dim=1)
    assert (torch.cat(outputs, dim=1) @ projection).shape == (n, out)


@pytest.mark.question("eth-1a.2")
def test_a_softmax_over_one_axis_of_the_keys_is_no_distribution() -> None:
    rows, columns = 5, 7
    scores = torch.randn(rows, columns)  # of one query, for every key pixel
    over_columns = scores.softmax(dim=-1)
    assert over_columns.sum().item() == pytest.approx(rows)
    over_all = scores.flatten().softmax(dim=0)
    assert over_all.sum().item() == pytest.approx(1.0)


@pytest.mark.question("eth-1b.1")
def test_two_printed_terms_lack_transposes() -> None:
    d, hidden = 5, 2
    z_q, z_k, p_q, p_k = torch.randn(4, 1, d, dtype=torch.float64)  # rows
    query, key = torch.randn(2, d, hidden, dtype=torch.float64)
    u = torch.randn(hidden, 1, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        _ = p_q @ query @ key.T @ z_k  # as in Equation 5
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        _ = u.T @ key @ z_k  # as in Equation 6
    assert (u.T @ key.T @ z_k.T).shape == (1, 1)
    four = (
        z_q @ query @ key.T @ z_k.T
        + z_q @ query @ key.T @ p_k.T
        + p_q @ query @ key.T @ z_k.T
        + p_q @ query @ key.T @ p_k.T
    )
    whole = (z_q + p_q) @ query @ ((z_k + p_k) @ key).T
    torch.testing.assert_close(four, whole, rtol=0, atol=1e-12)


@pytest.mark.question("eth-1b.1")
def test_an_identity_for_the_position_key_fixes_the_width_of_the_head() -> None:
    position_code = torch.randn(3, 1)
    for hidden in (2, 3, 5):
        query = torch.randn(1, hidden)  # Z_q W_q
        if hidden == 3:
            assert (query @ torch.eye(hidden) @ position_code).shape == (1, 1)
            continue
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            _ = query @ torch.eye(hidden) @ position_code
        # A matrix of the right shape, with ones on its diagonal, does at any width.
        assert (query @ torch.eye(hidden, 3) @ position_code).shape == (1, 1)


@pytest.mark.question("eth-1b.2")
def test_there_are_few_offsets_so_few_scores_are_different() -> None:
    rows, columns = 5, 7
    codes = RelativePositionalEmbedding([(0, 1)]).codes(rows, columns)
    different = codes.reshape(-1, 3).unique(dim=0)
    assert len(different) == (2 * rows - 1) * (2 * columns - 1) < 4 * rows * columns


@pytest.mark.question("eth-1b.2")
def test_gaussian_attention_is_one_pass_over_rows_and_one_over_columns() -> None:
    alpha, center, x = 0.7, (1.3, -2.1), torch.randn(9, 11, dtype=torch.float64)

    def along(length: int, shift: float) -> Tensor:
        at = torch.arange(length, dtype=torch.float64)
        return (-alpha * (at - at[:, None] - shift) ** 2).softmax(dim=-1)

    pixels = torch.cartesian_prod(torch.arange(9.0), torch.arange(11.0)).double()
    delta = pixels - pixels[:, None]
    distance = (delta - torch.tensor(center, dtype=torch.float64)).square().sum(-1)
    joint = (-alpha * distance).softmax(dim=-1)  # 99 by 99
    passes = along(9, center[0]) @ x @ along(11, center[1]).T  # 9 by 9, 11 by 11
    torch.testing.assert_close(passes.flatten(), joint @ x.flatten())


@pytest.mark.question("eth-1c.1")
def test_the_usual_narrow_heads_cannot_hold_taps_of_full_rank() -> None:
    width, heads = 18, 9
    narrow = width // heads  # D_o = D / N_h
    tap = torch.randn(width, width, dtype=torch.float64)
    merged = torch.randn(width, narrow).double() @ torch.randn(narrow, width).double()
    assert torch.linalg.matrix_rank(tap) == width
    assert torch.linalg.matrix_rank(merged) == narrow
    # Eckart and Young: no matrix of that rank is nearer to the tap than this.
    least = torch.linalg.svdvals(tap)[narrow:].norm()
    assert least > 0.5 * tap.norm()


@pytest.mark.question("eth-1c.1")
def test_heads_as_wide_as_the_rank_of_the_taps_do() -> None:
    centers = [(i, j) for i in offsets(3) for j in offsets(3)]
    layer = hard_heads(centers)
    value = torch.randn(9, 5, 2, dtype=torch.float64)  # D_o = 2, D_out = 5
    out = torch.randn(9, 2, 5, dtype=torch.float64)
    with torch.no_grad():
        layer.value_weight.copy_(value @ out)
    taps = rearrange(value @ out, "(i j) d e -> e d i j", i=3)
    x = torch.randn(2, 6, 7, 5, dtype=torch.float64)
    padded = F.pad(channels_first(x), (1, 1, 1, 1), mode="replicate")
    expected = F.conv2d(padded, taps, layer.bias)
    output = channels_first(layer(x)[0])
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-12)


@pytest.mark.question("eth-1c.2")
@pytest.mark.parametrize("size", [2, 4])
def test_an_even_convolution_reads_a_pixel_that_no_printed_head_sees(size: int) -> None:
    corner = (offsets(size)[0], offsets(size)[0])
    x = torch.randn(1, 9, 9, 5, dtype=torch.float64, requires_grad=True)
    pixel = (0, 4 + corner[0], 4 + corner[1])
    taps = torch.ones(5, 5, size, size, dtype=torch.float64)
    # The output at (4, 4) is the first whose window has its corner at `pixel`.
    convolved = F.conv2d(channels_first(x), taps)[0, :, pixel[1], pixel[2]]
    (read,) = torch.autograd.grad(convolved.sum(), x)
    assert read[pixel].abs().sum() > 0
    heads = hard_heads([(-i, -j) for i in offsets(size) for j in offsets(size)])
    (seen,) = torch.autograd.grad(heads(x)[0][0, 4, 4].sum(), x)
    assert seen[pixel].abs().sum() == 0  # whatever the values: q − Δ_K misses it


@pytest.mark.question("eth-1c.2")
def test_a_window_of_25_taps_may_need_two_heads_only() -> None:
    conv = nn.Conv2d(1, 1, 5, padding=2, dtype=torch.float64)
    layer = attention_from_convolution(conv, heads="fewest")
    assert len(layer.attention.value_weight) == 2
    x = torch.randn(2, 1, 7, 11, dtype=torch.float64)
    torch.testing.assert_close(layer(x), conv(x), rtol=0, atol=1e-11)


@pytest.mark.question("eth-1d.1")
def test_no_finite_sharpness_leaves_a_weight_at_zero() -> None:
    for alpha in (0.5, 5.0, 20.0):
        layer = GaussianSelfAttention(
            1, 1, centers=[(0, 1)], sharpness=alpha, dtype=torch.float64
        )
        weights = layer.weights(3, 4)
        assert (weights > 0).all()
        assert (weights < 1).all()


@pytest.mark.question("eth-1d.1")
def test_a_key_is_no_nearer_to_the_target_than_to_its_clamp() -> None:
    # What the bound on the weight off target rests on, at the border too.
    rows, columns = 5, 7
    keys = torch.cartesian_prod(torch.arange(rows), torch.arange(columns))
    for target in torch.cartesian_prod(torch.arange(-9, 15), torch.arange(-9, 15)):
        clamp = torch.stack(
            [target[0].clamp(0, rows - 1), target[1].clamp(0, columns - 1)]
        )
        excess = (keys - target).square().sum(1) - (clamp - target).square().sum()
        assert (excess >= (keys - clamp).square().sum(1)).all()


@pytest.mark.question("eth-1d.2")
def test_the_expanded_square_loses_its_digits_in_half_precision() -> None:
    def target_weight(shift: int, dtype: torch.dtype) -> float:
        head = RelativePositionalEmbedding([(0, -shift)], sharpness=2.0, dtype=dtype)
        return head(1, 256)[0, 0, 3, 0, 3 + shift].item()

    wanted = target_weight(5, torch.float64)
    for dtype, good, bad in ((torch.bfloat16, 15, 20), (torch.float16, 40, 60)):
        assert target_weight(good, dtype) == pytest.approx(wanted, abs=0.01)
        assert abs(target_weight(bad, dtype) - wanted) > 0.1
    assert math.isnan(target_weight(200, torch.float16))
    # The completed square, in float32 inside the layer, does not mind.
    layer = GaussianSelfAttention(
        1, 1, centers=[(0, 200)], sharpness=2.0, dtype=torch.float16
    )
    completed = layer.weights(1, 256)[0, 0, 3, 0, 203].item()
    assert completed == pytest.approx(wanted, abs=0.01)


@pytest.mark.question("eth-1e.1")
def test_a_constant_picture_stays_constant_unless_it_is_padded_with_zeros() -> None:
    picture = torch.randn(6, dtype=torch.float64).expand(1, 7, 11, 6)
    # Whatever the scores: contents, positions or both.
    by_content = MultiHeadAttention(6, 2).double()(picture.reshape(1, 77, 6))[0]
    by_position = GaussianSelfAttention(6, 3, dtype=torch.float64)(picture)[0]
    for output in (by_content, by_position.reshape(1, 77, 6)):
        torch.testing.assert_close(output, output[:, :1].expand_as(output))
    taps = torch.randn(6, 6, 3, 3, dtype=torch.float64)
    convolved = F.conv2d(channels_first(picture), taps, padding=1)
    assert not torch.allclose(convolved[..., 0, 0], convolved[..., 3, 3])


@pytest.mark.question("eth-1e.1")
def test_any_other_padding_is_had_by_padding_first_and_cropping_after() -> None:
    layer = hard_heads([(i, j) for i in offsets(3) for j in offsets(3)])
    taps = rearrange(layer.value_weight, "(i j) d e -> e d i j", i=3)
    x = torch.randn(1, 6, 7, 5, dtype=torch.float64)
    for mode in ("constant", "reflect", "circular"):
        padded = F.pad(channels_first(x), (1, 1, 1, 1), mode=mode)
        whole, _ = layer(rearrange(padded, "b d h w -> b h w d"))
        cropped = channels_first(whole)[..., 1:-1, 1:-1]
        expected = F.conv2d(padded, taps, layer.bias)
        torch.testing.assert_close(cropped, expected, rtol=0, atol=1e-12)


@pytest.mark.question("eth-1e.1")
@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_pytorchs_same_padding_mirrors_the_window_of_an_even_kernel() -> None:
    x = torch.randn(1, 1, 6, 7, dtype=torch.float64)
    taps = torch.randn(1, 1, 2, 2, dtype=torch.float64)
    same = F.conv2d(x, taps, padding="same")
    by_the_assignment = F.conv2d(F.pad(x, (1, 0, 1, 0)), taps)  # window −1, 0
    mirrored = F.conv2d(F.pad(x, (0, 1, 0, 1)), taps)  # window 0, 1
    torch.testing.assert_close(same, mirrored, rtol=0, atol=1e-12)
    assert not torch.allclose(same, by_the_assignment)


@pytest.mark.question("eth-1e.2")
def test_a_dilation_beyond_the_picture_reads_the_border_only() -> None:
    centers = [(9 * i, 9 * j) for i in offsets(3) for j in offsets(3)]
    weights = hard_heads(centers).weights(4, 5)
    for h, (down, right) in enumerate(centers):
        for i, j in ((0, 0), (2, 3)):
            row = i if down == 0 else 0 if down < 0 else 3
            column = j if right == 0 else 0 if right < 0 else 4
            assert weights[h, i, j, row, column] == 1.0


@pytest.mark.question("eth-1e.3")
def test_pixels_that_do_not_ask_make_the_stride() -> None:
    conv = nn.Conv2d(2, 3, 3, stride=2, padding=1, dtype=torch.float64)
    layer = attention_from_convolution(conv)
    x = torch.randn(2, 2, 7, 10, dtype=torch.float64)
    torch.testing.assert_close(layer(x), conv(x), rtol=0, atol=1e-12)
    # Of the padded picture's 9 rows, the second, fourth, sixth and eighth ask.
    assert range(9)[layer.axes[0].queries(7, clamped=False)] == range(1, 8, 2)


@pytest.mark.question("eth-2e")
def test_what_can_be_expressed_need_not_be_learnt() -> None:
    def learn(sharpness: float) -> tuple[float, float]:
        """Train one head, at first one pixel to the left, to fetch from the right."""
        torch.manual_seed(0)
        layer = GaussianSelfAttention(
            1, 1, centers=[(0.0, -1.0)], sharpness=sharpness, bias=False
        )
        optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
        loss = torch.zeros(())
        for _ in range(300):
            x = torch.randn(4, 9, 9, 1)
            given, _ = layer(x)
            loss = (given[:, :, 1:-1] - x[:, :, 2:]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return layer.head_centers()[0, 1].item(), loss.item()

    place, loss = learn(sharpness=0.3)
    assert place == pytest.approx(1.0, abs=0.2)
    assert loss < 0.1
    stuck, loss = learn(sharpness=50.0)
    assert stuck == pytest.approx(-1.0, abs=1e-3)
    assert loss > 0.5


@pytest.mark.question("eth-2e")
def test_the_gradient_in_the_centre_is_a_covariance() -> None:
    alpha = 0.8
    layer = GaussianSelfAttention(
        1, 1, centers=[(0.4, -1.2)], sharpness=alpha, bias=False, dtype=torch.float64
    )
    nn.init.ones_(layer.value_weight)
    x = torch.randn(1, 9, 11, 1, dtype=torch.float64)
    output, weights = layer(x, return_weights=True)
    assert layer.centers is not None
    (slope,) = torch.autograd.grad(output[0, 4, 5, 0], layer.centers)
    p, y = weights[0, 4, 5].detach(), x[0, ..., 0]
    down = torch.arange(9.0).double()[:, None] - 4
    right = torch.arange(11.0).double() - 5
    for axis, delta in enumerate((down, right)):
        covariance = (p * delta * y).sum() - (p * delta).sum() * (p * y).sum()
        assert slope[0, axis].item() == pytest.approx(2 * alpha * covariance.item())


@pytest.mark.question("eth-2e")
def test_at_a_tie_the_gradient_grows_with_the_sharpness() -> None:
    x = torch.zeros(1, 1, 9, 1, dtype=torch.float64)
    x[0, 0, 5] = 1.0
    for alpha in (5.0, 10.0, 20.0):
        slopes = []
        for center in (0.0, 0.5):
            layer = GaussianSelfAttention(
                1, 1, centers=[(0.0, center)], sharpness=alpha, dtype=torch.float64
            )
            nn.init.ones_(layer.value_weight)
            assert layer.centers is not None
            seen = layer(x)[0][0, 0, 4, 0]
            (slope,) = torch.autograd.grad(seen, layer.centers)
            slopes.append(slope[0, 1].item())
        assert slopes[0] == pytest.approx(2 * alpha * math.exp(-alpha), rel=0.05)
        assert slopes[1] == pytest.approx(alpha / 2, rel=0.01)
