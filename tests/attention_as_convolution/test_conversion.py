"""Convolutions as attention, models of them, and the way back."""

import copy
import itertools
import math
from collections.abc import Callable, Iterator

import pytest
import torch
import torchvision
from einops import rearrange
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from transformers_hw.attention_as_convolution import (
    ConvolutionAsAttention,
    GaussianSelfAttention,
    RelativeTableAttention,
    attention_from_convolution,
    attentionize,
    convolution_from_attention,
    effective_kernel,
    fewest_heads,
)

MODES = ("zeros", "reflect", "replicate", "circular")
PADDINGS = (0, 1, 2, (3, 1), "same", "valid")
# PyTorch warns that it copies, for 'same' padding of even kernels.
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'")


def convolutions(dtype: torch.dtype) -> Iterator[nn.Conv2d]:
    """Give convolutions of all kinds: every option with every other one."""
    kernels = ((1, 1), (1, 4), (2, 3), (3, 3), (4, 2), (5, 5))
    for kernel, mode, padding in itertools.product(kernels, MODES, PADDINGS):
        for dilation, stride, groups in (
            (1, 1, 1),
            ((2, 1), (1, 3), 2),
            ((1, 3), 2, 1),
            (2, 1, 2),
        ):
            yield nn.Conv2d(
                4,
                6,
                kernel,
                stride=1 if padding == "same" else stride,
                padding=padding,
                dilation=dilation,
                groups=groups,
                bias=groups == 1,
                padding_mode=mode,
                dtype=dtype,
            )


def outputs(
    conv: nn.Conv1d | nn.Conv2d, convert: Callable[[nn.Module], nn.Module]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Give attention's and the convolution's outputs, on pictures it accepts."""
    replacement = convert(conv)
    for grid in ((2, 3), (7, 6), (11, 13)):
        x = torch.randn(2, 4, *grid[-len(conv.kernel_size) :], dtype=conv.weight.dtype)
        try:
            expected = conv(x)
        except RuntimeError:
            with pytest.raises((RuntimeError, ValueError)):
                replacement(x)
            continue
        yield replacement(x), expected


@pytest.mark.question("nyu-1.3e")
@pytest.mark.question("eth-1c.2")
@torch.no_grad()
def test_every_convolution_is_an_attention_layer() -> None:
    compared = 0
    for conv in convolutions(torch.float64):
        for output, expected in outputs(conv, attention_from_convolution):
            torch.testing.assert_close(output, expected, rtol=0, atol=1e-12)
            compared += 1
    assert compared > 1000


@torch.no_grad()
def test_float32_is_as_exact_as_the_scale_allows() -> None:
    for conv in itertools.islice(convolutions(torch.float32), 0, None, 5):
        for output, expected in outputs(conv, attention_from_convolution):
            assert (output - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("padding", [0, 1, 3, "same"])
@torch.no_grad()
def test_sequences_too(mode: str, size: int, padding: int | str) -> None:
    compared = 0
    for dilation, stride, groups in ((1, 1, 1), (2, 1, 2), (1, 3, 1)):
        conv = nn.Conv1d(
            4,
            6,
            size,
            stride=1 if padding == "same" else stride,
            padding=padding,
            dilation=dilation,
            groups=groups,
            padding_mode=mode,  # pyright: ignore[reportArgumentType]
            dtype=torch.float64,
        )
        for heads in ("taps", "fewest"):
            for output, expected in outputs(
                conv,
                lambda conv, heads=heads: attention_from_convolution(conv, heads=heads),
            ):
                torch.testing.assert_close(output, expected, rtol=0, atol=1e-11)
                compared += 1
    assert compared


@torch.no_grad()
def test_pictures_without_a_batch_axis() -> None:
    conv = nn.Conv2d(4, 6, 3, padding=1)
    x = torch.randn(4, 5, 7)
    torch.testing.assert_close(attention_from_convolution(conv)(x), conv(x))


@pytest.mark.question("eth-1e.1")
def test_replicate_padding_needs_no_padding() -> None:
    reach = {"replicate": (0, 0), "zeros": (2, 2)}
    for mode, explicit in reach.items():
        conv = nn.Conv2d(2, 3, 5, padding=2, padding_mode=mode)
        layer = attention_from_convolution(conv)
        axis = layer.axes[0]
        assert axis.pads(clamped=layer.clamped) == explicit


@torch.no_grad()
def test_finite_sharpness_errs_by_no_more_than_its_bound() -> None:
    for alpha in (3.0, 8.0, 20.0):
        for mode in MODES:
            conv = nn.Conv2d(
                4, 6, (3, 2), padding=1, dtype=torch.float64, padding_mode=mode
            )
            soft = attention_from_convolution(conv, sharpness=alpha)
            x = 2 * torch.rand(2, 4, 5, 7, dtype=torch.float64) - 1
            off_target = 4 * math.exp(-alpha) / (1 - math.exp(-3 * alpha))
            # What is off target is missing there and added elsewhere.
            scale = conv.weight.abs().sum(dim=(1, 2, 3))
            error = (soft(x) - conv(x)).abs().amax(dim=(0, 2, 3))
            assert (error <= 2 * off_target * scale).all()
            assert error.max() > 0


def test_the_replacement_can_be_trained() -> None:
    conv = nn.Conv2d(2, 3, 3, padding=1, dtype=torch.float64)
    layer = attention_from_convolution(conv)
    x = torch.randn(2, 2, 5, 7, dtype=torch.float64)
    up = torch.randn(2, 3, 5, 7, dtype=torch.float64)
    conv(x).backward(up)
    layer(x).backward(up)
    assert conv.weight.grad is not None
    expected = rearrange(conv.weight.grad, "e d i j -> (i j) d e")
    gradient = layer.attention.value_weight.grad
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-11)


def residual_network() -> nn.Module:
    """Make a ResNet-18 whose normalisation is anything but the identity."""
    model = torchvision.models.resnet18(weights=None, num_classes=11)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight, mean=1.0, std=0.1)
            nn.init.normal_(module.bias, std=0.1)
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 2.0)
    return model.eval()


@torch.no_grad()
def test_a_resnet_without_convolutions_gives_the_same_logits() -> None:
    model = residual_network()
    before = copy.deepcopy(model.state_dict())
    attentive = attentionize(model)
    kinds = [type(module) for module in attentive.modules()]
    assert nn.Conv2d not in kinds
    assert kinds.count(GaussianSelfAttention) == 20
    x = torch.randn(2, 3, 64, 48)
    logits = model(x)
    assert logits.std() > 0.1
    torch.testing.assert_close(attentive(x), logits, rtol=0, atol=1e-4)
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())


@torch.no_grad()
def test_a_convolution_by_itself_and_a_shared_one() -> None:
    conv = nn.Conv2d(3, 3, 3, padding=1)
    x = torch.randn(2, 3, 5, 7)
    alone = attentionize(conv)
    assert isinstance(alone, ConvolutionAsAttention)
    torch.testing.assert_close(alone(x), conv(x))
    twice = attentionize(nn.Sequential(conv, nn.ReLU(), conv))
    assert isinstance(twice, nn.Sequential)
    assert twice[0] is twice[2]
    torch.testing.assert_close(twice(x), conv(conv(x).relu()))


def test_training_mode_is_kept() -> None:
    assert attention_from_convolution(nn.Conv2d(1, 1, 1)).training
    assert not attention_from_convolution(nn.Conv2d(1, 1, 1).eval()).training


@pytest.mark.question("nyu-1.3e")
@torch.no_grad()
def test_any_one_channel_kernel_runs_on_two_heads() -> None:
    for size in (2, 3, 5):
        conv = nn.Conv2d(1, 1, size, padding=1, dtype=torch.float64)
        layer = attention_from_convolution(conv, heads="fewest")
        assert len(layer.attention.value_weight) == 2
        x = torch.randn(2, 1, 7, 11, dtype=torch.float64)
        torch.testing.assert_close(layer(x), conv(x), rtol=0, atol=1e-11)


@pytest.mark.question("nyu-1.3e")
@torch.no_grad()
def test_one_head_is_a_filter_of_one_sign_at_best() -> None:
    conv = nn.Conv2d(1, 1, 3, dtype=torch.float64)
    nn.init.uniform_(conv.weight, -2.0, -1.0)
    layer = attention_from_convolution(conv, heads="fewest")
    assert len(layer.attention.value_weight) == 1
    x = torch.randn(2, 1, 7, 11, dtype=torch.float64)
    torch.testing.assert_close(layer(x), conv(x), rtol=0, atol=1e-11)
    _, weights = layer.attention(
        rearrange(x, "b c h w -> b h w c"), return_weights=True
    )
    assert (weights >= 0).all()


@pytest.mark.question("nyu-1.3e")
def test_fewer_heads_than_the_rank_of_the_taps_never_do() -> None:
    taps = torch.randn(9, 20, dtype=torch.float64)
    taps[:, 4:] = taps[:, :4] @ torch.randn(4, 16, dtype=torch.float64)
    singular = torch.linalg.svdvals(taps)
    assert singular[3] > 1e-3 > 1e-10 > singular[4]  # rank 4
    heads, values = fewest_heads(taps)
    assert len(heads) in (4, 5)
    torch.testing.assert_close(heads.T @ values, taps, rtol=0, atol=1e-10)
    # PᵀW of three heads has rank three; no such matrix comes closer than this.
    closest = singular[3:].norm()
    assert closest > 1e-3
    for _ in range(20):
        three = torch.rand(3, 9, dtype=torch.float64)
        best = torch.linalg.lstsq(three.T, taps).solution
        assert (three.T @ best - taps).norm() >= closest


@settings(deadline=None, max_examples=25)
@given(
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(1, 9),
    st.booleans(),
    st.integers(0, 99),
)
def test_fewest_heads_are_distributions_and_few(
    size: int, rank: int, numbers: int, sparse: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    left = torch.randn(size**2, rank, generator=generator, dtype=torch.float64)
    right = torch.randn(rank, numbers, generator=generator, dtype=torch.float64)
    if sparse:
        left[::2] = 0.0
    taps = left @ right
    heads, values = fewest_heads(taps)
    assert (heads >= 0).all()
    torch.testing.assert_close(heads.sum(dim=1), torch.ones(len(heads)).double())
    rank = int(torch.linalg.matrix_rank(taps))
    assert rank <= len(heads) <= max(1, rank + 1)
    assert len(heads) <= max(1, int(taps.any(dim=1).sum()))
    torch.testing.assert_close(heads.T @ values, taps, rtol=0, atol=1e-8)


def test_rank_many_heads_do_exactly_if_the_span_holds_a_positive_vector() -> None:
    signs = torch.tensor([[1.0, -1.0, 1.0, -1.0], [1.0, 1.0, -1.0, -1.0]])
    signs = signs.T.double()
    # Orthogonal to the ones, which are positive: nothing in the span can be.
    assert len(fewest_heads(signs)[0]) == 3
    with_ones = torch.cat([signs, torch.ones(4, 1).double()], dim=1)
    assert len(fewest_heads(with_ones)[0]) == 3
    # No column is positive, and their plain mean is not, but 3a + b is.
    mixed = torch.tensor([[1.0, 1.0, 1.0, -0.1], [-2.9, -2.9, -2.9, 9.0]]).T.double()
    assert len(fewest_heads(mixed)[0]) == 2


@torch.no_grad()
def test_fewest_heads_of_every_kind_of_convolution() -> None:
    kinds = itertools.islice(convolutions(torch.float64), 0, None, 7)
    for conv in kinds:
        for output, expected in outputs(
            conv, lambda conv: attention_from_convolution(conv, heads="fewest")
        ):
            assert torch.allclose(output, expected, rtol=0, atol=1e-10)


def test_a_table_renormalises_at_the_border_and_may_see_nothing() -> None:
    layer = RelativeTableAttention(1, 2, (1, 3), dtype=torch.float64)
    with torch.no_grad():
        layer.scores[0] = torch.tensor([[1.0, 2.0, 5.0]]).log()
        layer.scores[1] = torch.tensor([[1.0, 0.0, 0.0]]).log()
    output, weights = layer(torch.randn(1, 1, 3, 1).double(), return_weights=True)
    expected = torch.tensor(
        [
            [[2 / 7, 5 / 7, 0], [1 / 8, 2 / 8, 5 / 8], [0, 1 / 3, 2 / 3]],
            [[0, 0, 0], [1, 0, 0], [0, 1, 0]],
        ]
    )
    torch.testing.assert_close(weights[:, 0, :, 0], expected.double())
    assert output.isfinite().all()
    output.sum().backward()
    assert layer.scores.grad is not None
    assert layer.scores.grad.isfinite().all()


@pytest.mark.parametrize("covariance", ["isotropic", "diagonal", "full"])
@pytest.mark.parametrize("share", [0.9, 0.999, 1 - 1e-9])
@torch.no_grad()
def test_the_convolution_of_a_layer_is_within_its_bounds(
    covariance: str, share: float
) -> None:
    layer = GaussianSelfAttention(
        3,
        4,
        output_dim=5,
        covariance=covariance,  # pyright: ignore[reportArgumentType]
        dtype=torch.float64,
    )
    if layer.shear is not None:
        nn.init.normal_(layer.shear, std=0.3)
    conv, interior, border = convolution_from_attention(layer, share=share)
    reach = conv.kernel_size[0] // 2
    side = 2 * reach + 5
    x = torch.rand(2, side, side + 2, 3, dtype=torch.float64).round() * 2 - 1
    convolved = rearrange(
        conv(rearrange(x, "b h w d -> b d h w")), "b e h w -> b h w e"
    )
    error = (layer(x)[0] - convolved).abs()
    inside = error[:, reach : side - reach, reach : side + 2 - reach]
    assert (inside.amax(dim=(0, 1, 2)) <= interior + 1e-12).all()
    assert (error.amax(dim=(0, 1, 2)) <= border).all()
    assert (interior <= (1 - share) * layer.value_weight.abs().sum(dim=(0, 1))).all()
    if conv.kernel_size[0] > 1:
        smaller = effective_kernel(layer, conv.kernel_size[0] - 2)
        assert smaller.shape[2:] == (2 * reach - 1,) * 2


@torch.no_grad()
def test_the_bound_is_attained_by_the_worst_picture() -> None:
    layer = GaussianSelfAttention(
        1, 1, centers=[(0.3, -0.2)], bias=False, dtype=torch.float64
    )
    nn.init.ones_(layer.value_weight)
    conv, interior, _ = convolution_from_attention(layer, share=0.9)
    reach = conv.kernel_size[0] // 2
    x = torch.ones(1, 1, 41, 41, dtype=torch.float64)
    middle = slice(20 - reach, 21 + reach)
    x[..., middle, middle] = 0.0
    off = (
        layer(rearrange(x, "b d h w -> b h w d"))[0][0, 20, 20] - conv(x)[0, :, 20, 20]
    )
    torch.testing.assert_close(off.abs(), interior, rtol=0, atol=1e-12)


@torch.no_grad()
def test_there_and_back_again() -> None:
    conv = nn.Conv2d(2, 3, 5, padding=2, padding_mode="replicate", dtype=torch.float64)
    layer = attention_from_convolution(conv).attention
    assert isinstance(layer, GaussianSelfAttention)
    again, interior, border = convolution_from_attention(layer)
    assert again.kernel_size == (5, 5)
    torch.testing.assert_close(again.weight, conv.weight, rtol=0, atol=1e-14)
    assert not border.any()
    assert not interior.any()
    x = torch.randn(2, 2, 3, 4, dtype=torch.float64)
    torch.testing.assert_close(again(x), conv(x), rtol=0, atol=1e-12)


@pytest.mark.question("eth-2e")
@torch.no_grad()
def test_the_effective_kernel_tells_more_than_the_centres() -> None:
    centers = [(0.0, -1.0), (0.0, 0.0), (0.0, 1.0)]
    layer = GaussianSelfAttention(
        1, 3, centers=centers, sharpness=0.4, bias=False, dtype=torch.float64
    )
    # Soft, overlapping heads; their values are such that they sharpen a picture.
    layer.value_weight.copy_(torch.tensor([-1.0, 3.0, -1.0]).view(3, 1, 1))
    kernel = effective_kernel(layer, 21)[0, 0]
    one_dimension = torch.arange(-10, 11).double()
    by_hand = sum(
        value * (-0.4 * (one_dimension - center) ** 2).softmax(dim=0)
        for value, center in ((-1, -1), (3, 0), (-1, 1))
    )
    assert isinstance(by_hand, Tensor)
    torch.testing.assert_close(kernel.sum(dim=0), by_hand, rtol=0, atol=1e-12)
    assert kernel[10, 8] < 0 < kernel[10, 10]


@pytest.mark.question("eth-2e")
def test_trained_heads_can_become_the_convolution_they_imitate() -> None:
    target = torch.zeros(1, 1, 3, 3)
    target[0, 0, 0, 1], target[0, 0, 2, 2] = 1.0, -1.0
    layer = GaussianSelfAttention(
        1, 2, centers=[(-0.5, 0.2), (0.6, 0.5)], sharpness=1.0, bias=False
    )
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
    for _ in range(300):
        x = torch.randn(4, 1, 9, 9)
        wanted = nn.functional.conv2d(x, target)
        given, _ = layer(rearrange(x, "b d h w -> b h w d"))
        inside = rearrange(given, "b h w d -> b d h w")[..., 1:-1, 1:-1]
        loss = (inside - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    expected = torch.tensor([[-1.0, 0.0], [1.0, 1.0]])
    torch.testing.assert_close(
        layer.head_centers().detach(), expected, rtol=0, atol=0.1
    )
    torch.testing.assert_close(effective_kernel(layer, 3), target, rtol=0, atol=0.1)
