"""Convolutions as attention, models of them, and the way back."""

import copy
import itertools
import math
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torchvision
import transformers
from einops import rearrange
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.export import Dim
from torch.nn.utils import prune

from transformers_hw.attention_as_convolution import (
    GaussianSelfAttention,
    PaddedAttention,
    RelativeTableAttention,
    attention_from_convolution,
    attentionize,
    convolution_from_attention,
    effective_kernel,
    fewest_heads,
)

F64 = torch.float64
MODES = ("zeros", "reflect", "replicate", "circular")
# PyTorch warns that it copies, for 'same' padding of even kernels.
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'")


def assert_equal(ours: Tensor, expected: Tensor, within: float = 1e-11) -> None:
    torch.testing.assert_close(ours, expected, rtol=0, atol=within)


def channels_last(x: Tensor) -> Tensor:
    return rearrange(x, "b d h w -> b h w d")


def convolutions(dtype: torch.dtype = F64) -> Iterator[nn.Conv2d]:
    """Give convolutions of all kinds: kernels, paddings and modes with one another."""
    kernels = ((1, 1), (1, 4), (2, 3), (3, 3), (5, 5))
    paddings = (0, 1, (3, 1), "same")
    others = ((1, 1, 1), ((2, 1), (1, 3), 2), ((1, 3), 2, 1), (2, 1, 2))
    for kernel, mode, padding in itertools.product(kernels, MODES, paddings):
        for dilation, stride, groups in others:
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


def outputs(conv: Any, heads: Any = "taps") -> Iterator[tuple[Tensor, Tensor]]:
    """Give attention's and the convolution's outputs, on images it accepts."""
    replacement = attention_from_convolution(conv, heads=heads)
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
def test_every_convolution_is_an_attention_layer():
    compared = 0
    for conv in convolutions():
        for output, expected in outputs(conv):
            assert_equal(output, expected, 1e-12)
            compared += 1
    assert compared > 600


@torch.no_grad()
def test_every_convolution_runs_on_the_fewest_heads():
    for conv in itertools.islice(convolutions(), 0, None, 7):
        for output, expected in outputs(conv, "fewest"):
            assert_equal(output, expected, 1e-10)


@torch.no_grad()
def test_float32_is_as_exact_as_the_scale_allows():
    for conv in itertools.islice(convolutions(torch.float32), 0, None, 7):
        for output, expected in outputs(conv):
            assert (output - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("heads", ["taps", "fewest"])
@pytest.mark.parametrize("mode", MODES)
@torch.no_grad()
def test_convolutions_of_sequences_are_attention_layers(mode, heads):
    compared = 0
    for size, padding in itertools.product((1, 2, 3, 5), (0, 1, 3, "same")):
        for dilation, stride, groups in ((1, 1, 1), (2, 1, 2), (1, 3, 1)):
            options = {"padding": padding, "dilation": dilation, "groups": groups}
            options["stride"] = 1 if padding == "same" else stride
            conv = nn.Conv1d(4, 6, size, **options, padding_mode=mode, dtype=F64)
            for output, expected in outputs(conv, heads):
                assert_equal(output, expected)
                compared += 1
    assert compared > 70


@pytest.mark.question("eth-1e.1")
def test_replicate_padding_needs_no_padding():
    for mode, explicit in {"replicate": (0, 0), "zeros": (2, 2)}.items():
        conv = nn.Conv2d(2, 3, 5, padding=2, padding_mode=mode)
        layer = attention_from_convolution(conv)
        assert layer.axes[0].pads(clamped=layer.clamped) == explicit


@torch.no_grad()
def test_the_error_of_a_finite_sharpness_is_within_its_bound():
    for alpha in (3.0, 8.0, 20.0):
        for mode in MODES:
            conv = nn.Conv2d(4, 6, (3, 2), padding=1, dtype=F64, padding_mode=mode)
            soft = attention_from_convolution(conv, sharpness=alpha)
            x = 2 * torch.rand(2, 4, 5, 7, dtype=F64) - 1
            off_target = 4 * math.exp(-alpha) / (1 - math.exp(-3 * alpha))
            # What is off target is missing there and added elsewhere.
            scale = conv.weight.abs().sum(dim=(1, 2, 3))
            error = (soft(x) - conv(x)).abs().amax(dim=(0, 2, 3))
            assert (error <= 2 * off_target * scale).all()
            assert error.max() > 0


def test_the_replacement_can_be_trained():
    conv = nn.Conv2d(2, 3, 3, padding=1, dtype=F64)
    layer = attention_from_convolution(conv)
    x = torch.randn(2, 2, 5, 7, dtype=F64)
    up = torch.randn(2, 3, 5, 7, dtype=F64)
    conv(x).backward(up)
    layer(x).backward(up)
    expected = rearrange(conv.weight.grad, "e d i j -> (i j) d e")
    assert_equal(layer.attention.value_weight.grad, expected)


@pytest.mark.unhooked
@pytest.mark.parametrize("heads", ["taps", "fewest"])
def test_converted_convolutions_compile(heads):
    torch.compiler.reset()
    conv = nn.Conv2d(2, 3, 3, stride=2, padding=1, dtype=F64)
    layer = attention_from_convolution(conv, heads=heads)
    compiled = torch.compile(layer, fullgraph=True, backend="eager", dynamic=True)
    for sizes in ((2, 2, 9, 11), (3, 2, 13, 7), (5, 2, 8, 6)):
        x = torch.randn(sizes, dtype=F64)
        torch.testing.assert_close(compiled(x), conv(x))


@pytest.mark.unhooked
@pytest.mark.parametrize("heads", ["taps", "fewest"])
def test_converted_convolutions_export(heads):
    conv = nn.Conv2d(2, 3, 3, stride=2, padding=1, dtype=F64)
    layer = attention_from_convolution(conv, heads=heads).eval()
    # Older compilers cannot reason about a stride that leaves a remainder.
    axes = {0: Dim("b"), 2: 2 * Dim("h", min=3) - 1, 3: 2 * Dim("w", min=3) - 1}
    x = torch.randn(2, 2, 9, 11, dtype=F64)
    exported = torch.export.export(
        layer, (x,), dynamic_shapes=(axes,), strict=True
    ).module()
    for other in (x, torch.randn(3, 2, 13, 7, dtype=F64)):
        torch.testing.assert_close(exported(other), conv(other))


def residual_network() -> Any:
    """Make a ResNet-18 whose normalization is anything but the identity."""
    model = torchvision.models.resnet18(weights=None, num_classes=11)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight, mean=1.0, std=0.1)
            nn.init.normal_(module.bias, std=0.1)
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 2.0)
    return model.eval()


@torch.no_grad()
def test_a_resnet_without_convolutions_gives_the_same_logits():
    model = residual_network()
    before = copy.deepcopy(model.state_dict())
    attentive = attentionize(model)
    kinds = [type(module) for module in attentive.modules()]
    assert nn.Conv2d not in kinds
    assert kinds.count(GaussianSelfAttention) == 20
    x = torch.randn(2, 3, 64, 48)
    logits = model(x)
    assert logits.std() > 0.1
    assert_equal(attentive(x), logits, 1e-4)
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())


@torch.no_grad()
def test_a_lone_convolution_and_a_shared_one_are_converted_too():
    conv = nn.Conv2d(3, 3, 3, padding=1).eval()
    x = torch.randn(2, 3, 5, 7)
    alone: Any = attentionize(conv)
    assert isinstance(alone, PaddedAttention)
    assert not alone.training
    torch.testing.assert_close(alone(x), conv(x))
    twice: Any = attentionize(nn.Sequential(conv, nn.ReLU(), conv))
    assert twice[0] is twice[2]
    torch.testing.assert_close(twice(x), conv(conv(x).relu()))


@pytest.mark.parametrize(
    "register",
    [
        "register_forward_hook",
        "register_forward_pre_hook",
        "register_full_backward_hook",
        "register_full_backward_pre_hook",
    ],
)
def test_a_convolution_with_hooks_is_not_replaced(register):
    model = nn.Sequential(nn.ReLU(), nn.Sequential(nn.Conv2d(3, 5, 3)))
    # Hooks of modules that stay are copied with them.
    getattr(model[0], register)(lambda *_: None)
    attentionize(model)
    handle = getattr(model[1][0], register)(lambda *_: None)
    with pytest.raises(ValueError, match=r"at '1.0': conv must have no hooks and"):
        attentionize(model)
    with pytest.raises(ValueError, match=r"at the model itself: conv must have no hoo"):
        attentionize(model[1][0])
    handle.remove()
    attentionize(model)
    model[1][0].forward = lambda x: x
    with pytest.raises(ValueError, match="conv must have no hooks and no forward of"):
        attentionize(model)


@torch.no_grad()
@pytest.mark.parametrize("name", ["ViT", "Dinov2", "CLIPVision", "SiglipVision"])
def test_models_of_hugging_face_read_weight_and_geometry(name):
    settings = {"hidden_size": 48, "intermediate_size": 40, "image_size": 24}
    settings |= {"num_hidden_layers": 1, "num_attention_heads": 3, "patch_size": 4}
    config = getattr(transformers, f"{name}Config")(**settings)
    model = getattr(transformers, f"{name}Model")(config).eval()
    attentive = attentionize(model)
    assert sum(isinstance(x, PaddedAttention) for x in attentive.modules()) == 1
    x = torch.randn(2, 3, 24, 24)
    found, wanted = (one(x).last_hidden_state for one in (attentive, model))
    assert_equal(found, wanted, 1e-4)


@torch.no_grad()
def test_the_encoder_of_whisper_reads_the_strides():
    config = transformers.WhisperConfig(
        d_model=16, encoder_layers=1, encoder_attention_heads=2, encoder_ffn_dim=20,
        decoder_layers=1, decoder_attention_heads=2, max_source_positions=15,
        num_mel_bins=7, vocab_size=50, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=1,
    )  # fmt: skip
    model = transformers.WhisperModel(config).encoder.eval()
    x = torch.randn(2, 7, 30)
    found, wanted = (one(x).last_hidden_state for one in (attentionize(model), model))
    assert_equal(found, wanted, 1e-4)


@pytest.mark.parametrize("heads", ["taps", "fewest"])
@torch.no_grad()
def test_weight_and_geometry_give_the_convolution_again(heads):
    for conv in (
        nn.Conv2d(4, 6, (2, 3), padding=(1, 2), stride=(2, 1), groups=2, dtype=F64),
        nn.Conv2d(4, 6, (3, 4), padding="same", dilation=(2, 1), dtype=F64),
        nn.Conv1d(4, 6, 3, padding=1, stride=2, dilation=2, bias=False, dtype=F64),
    ):
        layer = attention_from_convolution(conv, heads=heads)
        x = torch.randn(2, 4, *(9, 11)[: len(conv.kernel_size)], dtype=F64)
        function = (nn.functional.conv1d, nn.functional.conv2d)[x.dim() - 3]
        names = ("stride", "padding", "dilation", "groups")
        options = [getattr(layer, name) for name in names]
        assert layer.kernel_size == conv.kernel_size
        assert (layer.in_channels, layer.out_channels) == (4, 6)
        assert_equal(function(x, layer.weight, layer.bias, *options), conv(x), 1e-10)


def overridden() -> nn.Conv2d:
    conv = nn.Conv2d(2, 3, 3)
    conv._conv_forward = types.MethodType(lambda self, x, *_: x, conv)
    return conv


UNLIKE: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "method": (overridden, ValueError, "at '1': conv must have no hooks and no forw"),
    "traced": (
        lambda: torch.jit.trace(nn.Conv2d(2, 3, 3), torch.randn(1, 2, 5, 5)),
        TypeError, "at '1': .* got TopLevelTracedModule",
    ),
    "scripted": (
        lambda: torch.jit.script(nn.Sequential(nn.Conv2d(2, 3, 3))),
        TypeError, "at '1': .* got RecursiveScriptModule",
    ),
    "quantized": (
        lambda: torch.ao.nn.quantized.Conv2d(2, 3, 3),
        TypeError, "at '1': .* got Conv2d of torch.ao.nn.quantized",
    ),
    "complex": (
        lambda: nn.Conv2d(2, 3, 3, dtype=torch.complex64),
        TypeError, "at '1': conv must have real weights, got torch.complex64",
    ),
    "pruned": (
        lambda: prune.l1_unstructured(nn.Conv2d(2, 3, 3), "weight", 0.5),
        ValueError, "at '1': conv must have no hooks .*prune.remove",
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize(("make", "kind", "message"), UNLIKE.values(), ids=UNLIKE)
def test_what_no_attention_replaces_is_not_left_in_place(make, kind, message):
    with pytest.raises(kind, match=message):
        attentionize(nn.Sequential(nn.ReLU(), make()))


def test_frozen_convolutions_stay_frozen():
    frozen = nn.Conv2d(2, 3, 3).requires_grad_(False)
    half = nn.Conv2d(2, 3, 3)
    half.weight.requires_grad_(False)
    for sharpness in (math.inf, 9.0):
        layer = attentionize(nn.Sequential(frozen), sharpness=sharpness)
        assert not any(x.requires_grad for x in layer.parameters())
        layer = attentionize(nn.Sequential(half), sharpness=sharpness)
        found = [name for name, x in layer.named_parameters() if x.requires_grad]
        assert found == ["0.attention.bias"]


@pytest.mark.parametrize("mode", MODES)
@torch.no_grad()
def test_padding_is_what_the_convolution_itself_pads(mode):
    conv = nn.Conv2d(2, 3, 3, padding=(1, 0), padding_mode=mode, dtype=F64)
    conv.padding = (0, 2)
    x = torch.randn(2, 2, 5, 7, dtype=F64)
    assert_equal(attentionize(conv)(x), conv(x))


@pytest.mark.question("nyu-1.3e")
@pytest.mark.question("eth-1c.2")
@pytest.mark.parametrize("size", [2, 3, 5])
@torch.no_grad()
def test_any_one_channel_kernel_runs_on_two_heads(size):
    conv = nn.Conv2d(1, 1, size, padding=1, dtype=F64)
    layer = attention_from_convolution(conv, heads="fewest")
    assert len(layer.attention.value_weight) == 2
    x = torch.randn(2, 1, 7, 11, dtype=F64)
    assert_equal(layer(x), conv(x))


@pytest.mark.question("nyu-1.3e")
@torch.no_grad()
def test_one_head_is_a_filter_of_one_sign_at_best():
    conv = nn.Conv2d(1, 1, 3, dtype=F64)
    nn.init.uniform_(conv.weight, -2.0, -1.0)
    layer = attention_from_convolution(conv, heads="fewest")
    assert len(layer.attention.value_weight) == 1
    x = torch.randn(2, 1, 7, 11, dtype=F64)
    assert_equal(layer(x), conv(x))
    _, weights = layer.attention(channels_last(x), return_weights=True)
    assert (weights >= 0).all()


@pytest.mark.question("nyu-1.3e")
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_kernel_of_one_sign_gets_one_head_however_uneven(sign):
    squares = torch.arange(-2.0, 3.0, dtype=F64).square()
    blur = torch.exp(-(squares[:, None] + squares) / (2 * 0.6**2))
    for taps in (blur, torch.tensor([1.0, 1e-4, 1.0], dtype=F64)):
        weights, values = fewest_heads(sign * taps.view(-1, 1))
        expected = (taps / taps.sum()).view(1, -1)
        torch.testing.assert_close(weights, expected, rtol=1e-9, atol=0)
        torch.testing.assert_close(values, sign * taps.sum().view(1, 1))


@pytest.mark.parametrize(("least", "heads"), [(1.0, 2), (1e-5, 3)])
def test_heads_that_would_nearly_coincide_are_passed_over(least, heads):
    # Combinations (a, b) are positive where a > 0 and b > a / least.
    taps = torch.tensor([[1.0, 0.0], [-1.0, least], [0.0, 1.0]], dtype=F64)
    weights, values = fewest_heads(taps)
    assert len(weights) == heads
    assert_equal(weights.T @ values, taps, 1e-12)


@pytest.mark.question("nyu-1.3e")
def test_fewer_heads_than_the_rank_of_the_taps_never_do():
    taps = torch.randn(9, 20, dtype=F64)
    taps[:, 4:] = taps[:, :4] @ torch.randn(4, 16, dtype=F64)
    singular = torch.linalg.svdvals(taps)
    assert singular[3] > 1e-3 > 1e-10 > singular[4]  # rank 4
    heads, values = fewest_heads(taps)
    assert len(heads) in (4, 5)
    assert_equal(heads.T @ values, taps, 1e-10)
    # PᵀW of three heads has rank three; no such matrix comes closer than this.
    closest = singular[3:].norm()
    assert closest > 1e-3
    for _ in range(20):
        three = torch.rand(3, 9, dtype=F64)
        best = torch.linalg.lstsq(three.T, taps).solution
        assert (three.T @ best - taps).norm() >= closest


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 9), st.booleans())
def test_fewest_heads_are_distributions_and_few(size, rank, numbers, sparse):
    left = torch.randn(size**2, rank, dtype=F64)
    if sparse:
        left[::2] = 0.0
    taps = left @ torch.randn(rank, numbers, dtype=F64)
    heads, values = fewest_heads(taps)
    assert (heads >= 0).all()
    torch.testing.assert_close(heads.sum(dim=1), torch.ones(len(heads)).double())
    rank = int(torch.linalg.matrix_rank(taps))
    assert rank <= len(heads) <= max(1, rank + 1)
    assert len(heads) <= max(1, int(taps.any(dim=1).sum()))
    assert_equal(heads.T @ values, taps, 1e-8)


def test_rank_many_heads_do_exactly_if_the_span_holds_a_positive_vector():
    signs = torch.tensor([[1, -1, 1, -1], [1, 1, -1, -1]]).T.double()
    # Orthogonal to the ones, which are positive: nothing in the span can be.
    assert len(fewest_heads(signs)[0]) == 3
    with_ones = torch.cat([signs, torch.ones(4, 1).double()], dim=1)
    assert len(fewest_heads(with_ones)[0]) == 3
    # No column is positive, and their plain mean is not, but 3a + b is.
    mixed = torch.tensor([[1.0, 1.0, 1.0, -0.1], [-2.9, -2.9, -2.9, 9.0]]).T.double()
    assert len(fewest_heads(mixed)[0]) == 2


def test_a_table_renormalizes_at_the_border_and_may_see_nothing():
    layer = RelativeTableAttention(1, 2, (1, 3), dtype=F64)
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
    assert layer.scores.grad.isfinite().all()


@pytest.mark.parametrize("covariance", ["isotropic", "diagonal", "full"])
@pytest.mark.parametrize("share", [0.9, 0.999, 1 - 1e-9])
@torch.no_grad()
def test_the_convolution_of_a_layer_is_within_its_bounds(covariance, share):
    layer = GaussianSelfAttention(3, 4, output_dim=5, covariance=covariance, dtype=F64)
    if layer.shear is not None:
        nn.init.normal_(layer.shear, std=0.3)
    conv, interior, border = convolution_from_attention(layer, share=share)
    reach = conv.kernel_size[0] // 2
    side = 2 * reach + 5
    x = torch.rand(2, side, side + 2, 3, dtype=F64).round() * 2 - 1
    error = (layer(x) - channels_last(conv(rearrange(x, "b h w d -> b d h w")))).abs()
    inside = error[:, reach : side - reach, reach : side + 2 - reach]
    assert (inside.amax(dim=(0, 1, 2)) <= interior + 1e-12).all()
    assert (error.amax(dim=(0, 1, 2)) <= border).all()
    assert (interior <= (1 - share) * layer.value_weight.abs().sum(dim=(0, 1))).all()


@torch.no_grad()
def test_the_bound_is_attained_by_the_worst_image():
    layer = GaussianSelfAttention(1, 1, centers=[(0.3, -0.2)], bias=False, dtype=F64)
    nn.init.ones_(layer.value_weight)
    conv, interior, _ = convolution_from_attention(layer, share=0.9)
    reach = conv.kernel_size[0] // 2
    x = torch.ones(1, 1, 41, 41, dtype=F64)
    middle = slice(20 - reach, 21 + reach)
    x[..., middle, middle] = 0.0
    off = layer(channels_last(x))[0, 20, 20] - conv(x)[0, :, 20, 20]
    assert_equal(off.abs(), interior, 1e-12)


@torch.no_grad()
def test_a_convolution_turned_into_attention_turns_back_into_itself():
    conv = nn.Conv2d(2, 3, 5, padding=2, padding_mode="replicate", dtype=F64)
    layer = attention_from_convolution(conv).attention
    assert isinstance(layer, GaussianSelfAttention)
    again, interior, border = convolution_from_attention(layer)
    assert again.kernel_size == (5, 5)
    assert_equal(again.weight, conv.weight, 1e-14)
    assert not border.any()
    assert not interior.any()
    x = torch.randn(2, 2, 3, 4, dtype=F64)
    assert_equal(again(x), conv(x), 1e-12)


@pytest.mark.question("eth-2e")
@torch.no_grad()
def test_the_effective_kernel_tells_more_than_the_centers():
    centers = [(0.0, -1.0), (0.0, 0.0), (0.0, 1.0)]
    layer = GaussianSelfAttention(1, 3, centers=centers, sharpness=0.4, dtype=F64)
    # Soft, overlapping heads; their values are such that they sharpen an image.
    layer.value_weight.copy_(torch.tensor([-1.0, 3.0, -1.0]).view(3, 1, 1))
    kernel = effective_kernel(layer, 21)[0, 0]
    offsets = torch.arange(-10, 11).double() - torch.tensor([[-1], [0], [1]])
    heads = (-0.4 * offsets**2).softmax(dim=1)
    by_hand = torch.tensor([-1.0, 3.0, -1.0]).double() @ heads
    assert_equal(kernel.sum(dim=0), by_hand, 1e-12)
    assert kernel[10, 8] < 0 < kernel[10, 10]
    # The kernel has more on one pixel, and less around it, than any of its heads.
    assert by_hand.max() > 1.5 * heads.max()
    assert by_hand.square()[9:12].sum() / by_hand.square().sum() > 0.98
    assert heads[1].square()[9:12].sum() / heads[1].square().sum() < 0.96
    # The same centers with equal values blur instead: centers do not tell a kernel.
    layer.value_weight.fill_(1 / 3)
    assert (effective_kernel(layer, 21) >= 0).all()


@pytest.mark.question("eth-2e")
def test_heads_that_start_near_become_the_convolution_they_imitate():
    target = torch.zeros(1, 1, 3, 3)
    target[0, 0, 0, 1], target[0, 0, 2, 2] = 1.0, -1.0
    start = [(-0.5, 0.2), (0.6, 0.5)]
    layer = GaussianSelfAttention(1, 2, centers=start, sharpness=1.0, bias=False)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
    for _ in range(300):
        x = torch.randn(4, 1, 9, 9)
        wanted = channels_last(nn.functional.conv2d(x, target))
        inside = layer(channels_last(x))[:, 1:-1, 1:-1]
        loss = (inside - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    expected = torch.tensor([[-1.0, 0.0], [1.0, 1.0]])
    assert_equal(layer.head_centers().detach(), expected, 0.1)
    assert_equal(effective_kernel(layer, 3), target, 0.1)
