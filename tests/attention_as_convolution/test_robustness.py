"""Chapter 8 under stress: bad input, compilers, gradients, empty memory."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from transformers_hw.attention_as_convolution import (
    AbsolutePositionalEmbedding,
    BertFFN,
    ConvolutionAsAttention,
    GaussianSelfAttention,
    LearnedRelativeSelfAttention,
    PictureBert,
    RelativePositionalEmbedding,
    RelativeTableAttention,
    attention_from_convolution,
    attentionize,
    convolution_from_attention,
    effective_kernel,
    fewest_heads,
    verify_limit,
    visualize_abs_positional_embedding,
    visualize_rel_positional_embedding,
)

Gaussian = GaussianSelfAttention
HARD = {"centers": [(0, 1), (-2, 0), (1.5, 0.5)], "sharpness": math.inf}
WHOLE = {"centers": [(0, 1), (-2, 0), (1, 1)], "sharpness": math.inf}
LAYERS: dict[str, Callable[..., nn.Module]] = {
    "isotropic": lambda **o: Gaussian(5, 3, output_dim=7, **o),
    "projected first": lambda **o: Gaussian(5, 3, output_dim=2, **o),
    "diagonal": lambda **o: Gaussian(5, 3, covariance="diagonal", **o),
    "full": lambda **o: Gaussian(5, 3, covariance="full", **o),
    "hard": lambda **o: Gaussian(5, 3, **WHOLE, **o),
    "hard, projected first": lambda **o: Gaussian(5, 3, output_dim=2, **WHOLE, **o),
    "hard with ties": lambda **o: Gaussian(5, 3, **HARD, **o),
    "table": lambda **o: RelativeTableAttention(5, 2, (2, 3), **o),
    "learned": lambda **o: LearnedRelativeSelfAttention(5, 3, **o),
    "content": lambda **o: LearnedRelativeSelfAttention(5, 3, content=True, **o),
}
every_layer = pytest.mark.parametrize("name", LAYERS)


def made(name: str, **options: Any) -> nn.Module:
    """Make a layer with no parameter at a special value."""
    layer = LAYERS[name](dtype=torch.float64, **options)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return layer


def pictures(batch: int = 2, rows: int = 9, columns: int = 11) -> Tensor:
    return torch.randn(batch, rows, columns, 5, dtype=torch.float64)


def bad_calls() -> dict[str, tuple[type[Exception], str, Callable[[], object]]]:
    """Give wrong calls, each with the error it must lead to."""
    layer = Gaussian(5, 3)
    conv = nn.Conv2d(2, 3, 3)
    hidden = nn.Sequential(nn.ReLU(), nn.Sequential(nn.ConvTranspose2d(2, 3, 3)))
    embedding = AbsolutePositionalEmbedding((5, 7), 8)
    heads = RelativePositionalEmbedding([(0, 1)])

    class OwnConvolution(nn.Conv2d):
        """Computes who knows what."""

    return {
        "no width": (ValueError, "dim must be .* got 0", lambda: Gaussian(0, 3)),
        "no heads": (ValueError, "heads must be .* got 0", lambda: Gaussian(5, 0)),
        "no output": (
            ValueError,
            "output_dim must be .* got -1",
            lambda: Gaussian(5, 3, output_dim=-1),
        ),
        "flat": (
            ValueError,
            "sharpness must be positive .* got 0",
            lambda: Gaussian(5, 3, sharpness=0.0),
        ),
        "inverted": (
            ValueError,
            "sharpness must be positive .* got -2",
            lambda: Gaussian(5, 3, sharpness=-2.0),
        ),
        "sharpness is nan": (
            ValueError,
            "sharpness must be positive .* got nan",
            lambda: Gaussian(5, 3, sharpness=math.nan),
        ),
        "centre is nan": (
            ValueError,
            "centers must be finite, got .*nan",
            lambda: Gaussian(5, 1, centers=[(0.0, math.nan)]),
        ),
        "too few centres": (
            ValueError,
            r"centers must be 3 pairs .* got \[\(0, 1\)\]",
            lambda: Gaussian(5, 3, centers=[(0, 1)]),
        ),
        "centres in space": (
            ValueError,
            r"centers must be 1 pairs .* got \[\[0.0, 0.0, 0.0\]\]",
            lambda: Gaussian(5, 1, centers=torch.zeros(1, 3)),
        ),
        "unknown covariance": (
            ValueError,
            "covariance must be one of .* got 'round'",
            lambda: Gaussian(5, 3, covariance="round"),  # pyright: ignore
        ),
        "hard without centres": (
            ValueError,
            "hard heads .* need centers .* got centers None",
            lambda: Gaussian(5, 3, sharpness=math.inf),
        ),
        "hard and slanted": (
            ValueError,
            "hard heads .* got .* covariance 'full'",
            lambda: Gaussian(5, 3, covariance="full", **WHOLE),
        ),
        "a sequence": (
            ValueError,
            r"x must be \(batch, rows, columns, 5\), got shape \(2, 9, 5\)",
            lambda: layer(torch.zeros(2, 9, 5)),
        ),
        "channels first": (
            ValueError,
            r"x must be .* got shape \(2, 5, 9, 11\)",
            lambda: layer(torch.zeros(2, 5, 9, 11)),
        ),
        "no pixels": (
            ValueError,
            r"x must have pixels, got shape \(2, 0, 11, 5\)",
            lambda: layer(torch.zeros(2, 0, 11, 5)),
        ),
        "integers": (
            TypeError,
            "x must be a floating-point tensor, got torch.int64",
            lambda: layer(torch.zeros(2, 9, 11, 5, dtype=torch.int64)),
        ),
        "another precision": (
            TypeError,
            "x must have the layer's type torch.float32, got torch.float64",
            lambda: layer(torch.zeros(2, 9, 11, 5, dtype=torch.float64)),
        ),
        "transposed convolution": (
            TypeError,
            "conv must be .* got ConvTranspose2d",
            lambda: attention_from_convolution(nn.ConvTranspose2d(2, 3, 3)),
        ),
        "convolution in space": (
            TypeError,
            "conv must be .* got Conv3d",
            lambda: attention_from_convolution(nn.Conv3d(2, 3, 3)),
        ),
        "convolution of one's own": (
            TypeError,
            "conv must be .* got OwnConvolution",
            lambda: attention_from_convolution(OwnConvolution(2, 3, 3)),
        ),
        "no convolution": (
            TypeError,
            "conv must be .* got Linear",
            lambda: attention_from_convolution(nn.Linear(2, 3)),
        ),
        "unknown heads": (
            ValueError,
            "heads must be one of .* got 'many'",
            lambda: attention_from_convolution(conv, heads="many"),  # pyright: ignore
        ),
        "sharp tables": (
            ValueError,
            "sharpness is for heads='taps'.* got 3",
            lambda: attention_from_convolution(conv, heads="fewest", sharpness=3.0),
        ),
        "hidden in a model": (
            TypeError,
            "at '1.0': conv must be .* got ConvTranspose2d",
            lambda: attentionize(hidden),
        ),
        "picture too small": (
            ValueError,
            "the padded picture must be at least 3 .* got 2",
            lambda: attention_from_convolution(conv)(torch.zeros(1, 2, 2, 5)),
        ),
        "picture without axes": (
            ValueError,
            r"x must have a channel axis and 2 more.* got shape \(5, 7\)",
            lambda: attention_from_convolution(conv)(torch.zeros(5, 7)),
        ),
        "even kernel to read": (
            ValueError,
            "size must be odd.* got 4",
            lambda: effective_kernel(layer, 4),
        ),
        "no kernel to read": (
            ValueError,
            "size must be .* got 0",
            lambda: effective_kernel(layer, 0),
        ),
        "all of the weight": (
            ValueError,
            "share must be between 0 and 1, got 1.0",
            lambda: convolution_from_attention(layer, share=1.0),
        ),
        "a layer too flat": (
            ValueError,
            "must lie within 500 pixels .* got heads that reach",
            lambda: convolution_from_attention(Gaussian(5, 3, sharpness=1e-9)),
        ),
        "taps are no matrix": (
            ValueError,
            r"taps must be a finite matrix .* got shape \(9,\)",
            lambda: fewest_heads(torch.zeros(9)),
        ),
        "a window of nothing": (
            ValueError,
            r"window \(columns\) must be .* got 0",
            lambda: RelativeTableAttention(5, 2, (3, 0)),
        ),
        "another grid": (
            ValueError,
            r"x must be \(batch, 5, 7, width\), got shape \(2, 7, 5, 8\)",
            lambda: embedding(torch.zeros(2, 7, 5, 8)),
        ),
        "unknown codes": (
            ValueError,
            "kind must be one of .* got 'random'",
            lambda: AbsolutePositionalEmbedding((5, 7), 8, kind="random"),
        ),
        "query outside": (
            ValueError,
            r"query must be a pixel of the \(5, 7\) picture, got \(5, 0\)",
            lambda: visualize_abs_positional_embedding(embedding, (5, 0)),
        ),
        "too few axes": (
            ValueError,
            "axes must be 1, one a map, got 0",
            lambda: visualize_rel_positional_embedding(heads, (5, 7), (1, 1), axes=[]),
        ),
        "no sharpness at all": (
            ValueError,
            r"sharpnesses must not be empty, got \[\]",
            lambda: verify_limit((0, 1), [], grid=(3, 3), query=(1, 1)),
        ),
        "limit itself": (
            ValueError,
            "sharpness must be positive and finite, got inf",
            lambda: verify_limit((0, 1), [math.inf], grid=(3, 3), query=(1, 1)),
        ),
        "centres of three": (
            ValueError,
            r"centers must be \(heads, 2\), got shape \(1, 3\)",
            lambda: RelativePositionalEmbedding([(0, 1, 2)]),
        ),
        "centre at infinity": (
            ValueError,
            "centers must be finite, got .*inf",
            lambda: RelativePositionalEmbedding([(0, math.inf)]),
        ),
        "dropout of all": (
            ValueError,
            "dropout must be in .* got 1.0",
            lambda: BertFFN(5, 7, dropout=1.0),
        ),
        "unknown encoding": (
            ValueError,
            "encoding must be one of .* got 'none'",
            lambda: PictureBert(encoding="none"),  # pyright: ignore
        ),
        "broken tokens": (
            ValueError,
            r"divisible into tokens of 2 x 2 pixels, got shape \(1, 3, 5, 6\)",
            lambda: PictureBert(dim=4, depth=1)(torch.zeros(1, 3, 5, 6)),
        ),
        "picture too large": (
            ValueError,
            r"at most 4 rows and columns, got shape \(1, 5, 3, 6\)",
            lambda: LearnedRelativeSelfAttention(6, 2, longest=4)(
                torch.zeros(1, 5, 3, 6)
            ),
        ),
        "centres of learned heads": (
            TypeError,
            "encoding must be 'gaussian', got LearnedRelative",
            lambda: PictureBert(dim=4, depth=1, encoding="learned").head_centers(),
        ),
    }


@pytest.mark.unhooked
@pytest.mark.parametrize("call", bad_calls())
def test_bad_input_is_refused_in_words(call: str) -> None:
    error, words, do = bad_calls()[call]
    with pytest.raises(error, match=words):
        do()


@every_layer
def test_gradients_and_their_gradients_are_right(name: str) -> None:
    layer = made(name)
    x = torch.randn(1, 2, 3, 5, dtype=torch.float64, requires_grad=True)
    names = [n for n, _ in layer.named_parameters()]
    values = [p.detach().requires_grad_() for p in layer.parameters()]

    def run(x: Tensor, *parameters: Tensor) -> Tensor:
        state = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(layer, state, (x,))[0]

    assert torch.autograd.gradcheck(run, (x, *values), fast_mode=True)
    assert torch.autograd.gradgradcheck(run, (x, *values), fast_mode=True)


def test_the_separable_path_has_right_gradients_too() -> None:
    for name in ("isotropic", "projected first", "diagonal"):
        layer = made(name)
        x = torch.randn(1, 9, 8, 5, dtype=torch.float64, requires_grad=True)
        inputs = (x, *layer.parameters())

        def run(x: Tensor, *_: Tensor, layer: nn.Module = layer) -> Tensor:
            return layer(x)[0]

        assert torch.autograd.gradcheck(run, inputs, fast_mode=True)
        assert torch.autograd.gradgradcheck(run, inputs, fast_mode=True)


@every_layer
def test_weights_are_distributions_and_explain_the_output(name: str) -> None:
    layer = made(name)
    x = pictures()
    output, weights = layer(x, return_weights=True)
    torch.testing.assert_close(output, layer(x)[0], rtol=0, atol=1e-10)
    assert (weights >= 0).all()
    sums = weights.sum(dim=(-1, -2))
    torch.testing.assert_close(sums, torch.ones_like(sums))
    pattern = "bhijkl,bkld,hde->bije" if name == "content" else "hijkl,bkld,hde->bije"
    value_weight, bias = layer.value_weight, layer.bias
    assert isinstance(value_weight, Tensor)
    assert isinstance(bias, Tensor)
    expected = torch.einsum(pattern, weights, x, value_weight) + bias
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-10)


@pytest.mark.unhooked
@every_layer
def test_layers_compile_without_graph_breaks(name: str) -> None:
    torch.compiler.reset()
    layer = made(name)
    compiled = torch.compile(layer, fullgraph=True, backend="eager", dynamic=True)
    for sizes in ((2, 9, 11), (5, 13, 6)):
        x = pictures(*sizes)
        torch.testing.assert_close(compiled(x)[0], layer(x)[0])


@pytest.mark.unhooked
@pytest.mark.parametrize(
    "name", ["isotropic", "full", "hard", "table", "learned", "content"]
)
def test_layers_export_with_any_batch_and_size(name: str) -> None:
    layer = made(name).eval()
    axes = {0: Dim("b"), 1: Dim("rows", max=16), 2: Dim("columns", max=16)}
    exported = torch.export.export(
        layer, (pictures(),), dynamic_shapes=(axes,), strict=True
    ).module()
    for sizes in ((2, 9, 11), (3, 5, 7), (5, 13, 6)):
        x = pictures(*sizes)
        torch.testing.assert_close(exported(x)[0], layer(x)[0])


@pytest.mark.unhooked
@pytest.mark.parametrize("heads", ["taps", "fewest"])
def test_converted_convolutions_compile_and_export(heads: Any) -> None:
    torch.compiler.reset()
    conv = nn.Conv2d(2, 3, 3, stride=2, padding=1, dtype=torch.float64)
    layer = attention_from_convolution(conv, heads=heads).eval()
    x = torch.randn(2, 2, 9, 11, dtype=torch.float64)
    # Older compilers cannot reason about a stride that leaves a remainder.
    axes = {0: Dim("b"), 2: 2 * Dim("h", min=3) - 1, 3: 2 * Dim("w", min=3) - 1}
    exported = torch.export.export(
        layer, (x,), dynamic_shapes=(axes,), strict=True
    ).module()
    compiled = torch.compile(layer, fullgraph=True, backend="eager", dynamic=True)
    for other in (x, torch.randn(3, 2, 13, 7, dtype=torch.float64)):
        torch.testing.assert_close(compiled(other), conv(other))
        torch.testing.assert_close(exported(other), conv(other))
    even = torch.randn(5, 2, 8, 6, dtype=torch.float64)
    torch.testing.assert_close(compiled(even), conv(even))


@pytest.mark.unhooked
def test_the_classifier_compiles_and_exports() -> None:
    torch.compiler.reset()
    model = PictureBert(dim=8, depth=1, heads=2, hidden_dim=7)
    model.eval()
    x = torch.randn(2, 3, 8, 12)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    exported = torch.export.export(
        model, (x,), dynamic_shapes=({0: Dim("b")},), strict=True
    ).module()
    for other in (x, torch.randn(5, 3, 8, 12)):
        torch.testing.assert_close(compiled(other), model(other))
        torch.testing.assert_close(exported(other), model(other))


@every_layer
def test_layers_are_made_without_memory_and_filled_later(name: str) -> None:
    layer = made(name)
    with torch.device("meta"):
        hollow = LAYERS[name](dtype=torch.float64)
    assert all(parameter.is_meta for parameter in hollow.parameters())
    hollow = hollow.to_empty(device="cpu")
    hollow.load_state_dict(copy.deepcopy(layer.state_dict()))
    x = pictures()
    assert torch.equal(hollow(x)[0], layer(x)[0])
    assert list(hollow.buffers()) == []


def test_given_centres_survive_a_start_without_memory() -> None:
    with torch.device("meta"):
        layer = Gaussian(5, 2, centers=[(1, 2), (3, -4)], sharpness=3.0)
    layer = layer.to_empty(device="cpu")
    layer.reset_parameters()
    assert layer.head_centers().tolist() == [[1, 2], [3, -4]]
    assert layer.log_sharpness is not None
    assert layer.log_sharpness.tolist() == pytest.approx([math.log(3)] * 2)


@every_layer
def test_inputs_stay_as_they_are_however_they_lie(name: str) -> None:
    layer = made(name)
    x = pictures()
    strided = torch.randn(2, 5, 11, 9, dtype=torch.float64).transpose(1, 3)
    strided.copy_(x)
    before = strided.clone()
    assert not strided.is_contiguous()
    torch.testing.assert_close(layer(strided)[0], layer(x)[0], rtol=0, atol=1e-12)
    assert torch.equal(strided, before)
    assert torch.equal(layer(x)[0], layer(x)[0])


@every_layer
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_near_to_double(name: str, dtype: torch.dtype) -> None:
    half = LAYERS[name](dtype=dtype)
    exact = copy.deepcopy(half).double()
    x = pictures().to(dtype)
    output, _ = half(x)
    assert output.dtype == dtype
    error = (output.double() - exact(x.double())[0]).abs().max()
    assert error < 20 * torch.finfo(dtype).eps


@pytest.mark.parametrize("name", ["isotropic", "hard", "full", "table"])
def test_an_empty_batch_gives_an_empty_batch(name: str) -> None:
    output, _ = made(name)(pictures(batch=0))
    assert output.shape[:3] == (0, 9, 11)


def test_layers_work_under_autocast() -> None:
    layer = Gaussian(5, 3)
    x = torch.randn(2, 9, 11, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, _ = layer(x)
    torch.testing.assert_close(output.float(), layer(x)[0], rtol=0.1, atol=0.05)


def test_the_values_start_at_glorots_scale() -> None:
    layer = Gaussian(64, 9, output_dim=48)
    expected = math.sqrt(2 / (9 * 64 + 48))
    assert layer.value_weight.std().item() == pytest.approx(expected, rel=0.05)
    centers = torch.cat([Gaussian(1, 50).head_centers() for _ in range(20)])
    assert centers.std().item() == pytest.approx(2.0, rel=0.1)


def test_reprs_tell_the_sizes() -> None:
    converted = attention_from_convolution(nn.Conv2d(2, 3, 3, padding=1))
    assert isinstance(converted, ConvolutionAsAttention)
    assert "padding_mode='zeros'" in repr(converted)
    assert "2, heads=9, output_dim=3" in repr(converted)
    table = RelativeTableAttention(5, 2, (3, 4), dilation=(1, 2))
    assert "5, heads=2, window=(3, 4), dilation=(1, 2)" in repr(table)
