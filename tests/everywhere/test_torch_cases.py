"""PyTorch's own cases: what its developers try their modules on, tried on ours.

PyTorch ships the inputs that its test suite feeds to every module and function.
Each case that has a counterpart here runs through it, with weights taken over, and
must give the same outputs and gradients to within 1e-10 in float64. Conventions are
translated, not passed over: an input without a batch gets one, other orders of axes
are moved, `True` for "hide" becomes `True` for "may see", a float mask is a bias, a
learned extra key is one more token of the context. A case is left out only for what
the book does not have, and each test reports how many it left out and why.
"""

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from packaging.version import Version
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from transformers_hw.attention import dot_product_attention, softmax
from transformers_hw.attention_as_convolution import attention_from_convolution
from transformers_hw.multi_head_attention import MultiHeadAttention
from transformers_hw.pretrained import from_torch
from transformers_hw.self_attention import convolution_attention
from transformers_hw.seq2seq import GRU, RNN
from transformers_hw.transformer import (
    LayerNorm,
    gelu,
    label_smoothing_loss,
    layer_norm,
)

Weights = dict[str, Tensor]
Source = type[nn.Module] | str


@dataclass
class Case:
    """A call of a module, or of a function, which has no `module`."""

    args: tuple[Any, ...]
    options: dict[str, Any]
    call: Callable[..., Any]
    module: Any = None

    def expected(self) -> Any:
        return self.call(*self.args, **self.options)


@cache
def _databases() -> tuple[list[Any], list[Any]]:
    # They are private and take seconds to import: only these tests may need them.
    # Releases after the ones the book was tested with may have moved them.
    try:
        from torch.testing._internal.common_methods_invocations import op_db
        from torch.testing._internal.common_modules import module_db
    except ImportError:
        if Version(torch.__version__) < Version("2.16"):
            raise
        pytest.skip("this release of PyTorch keeps its cases elsewhere")
    return module_db, op_db


def _leaf(x: Any) -> Any:
    """Make a float tensor a leaf that requires a gradient; copy other tensors."""
    if not isinstance(x, Tensor):
        return x
    return x.detach().clone().requires_grad_(x.is_floating_point())


def module_cases(kind: type[nn.Module]) -> Iterator[Case]:
    """Give the cases of a module, built, with parameters drawn at random."""
    given = {"device": "cpu", "dtype": torch.float64, "requires_grad": True}
    for info in (info for info in _databases()[0] if info.module_cls is kind):
        for sample in info.module_inputs_func(info, **given, training=True):
            built = sample.constructor_input
            module = kind(*built.args, **built.kwargs).double()
            with torch.no_grad():
                # Norms start at one, biases at zero, stacked layers alike: mistakes
                # in taking them over would not show.
                for parameter in module.parameters():
                    parameter.normal_(std=0.5)
            args = tuple(_leaf(x) for x in sample.forward_input.args)
            options = {k: _leaf(x) for k, x in sample.forward_input.kwargs.items()}
            yield Case(args, options, module, module)


def function_cases(name: str, gradients: bool) -> Iterator[Case]:
    """Give the cases of a function."""
    for info in (info for info in _databases()[1] if info.name == name):
        for sample in info.sample_inputs("cpu", torch.float64, requires_grad=gradients):
            args = (_leaf(sample.input), *(_leaf(x) for x in sample.args))
            yield Case(args, {k: _leaf(x) for k, x in sample.kwargs.items()}, info.op)


def on_cases(
    at_least: dict[Source, int],
    *,
    gradients: bool = True,
    left_out: Callable[[Case], str | None] = lambda case: None,
    most_left_out: int = 0,
) -> Callable[[Callable[[Case], None]], Callable[..., None]]:
    """Turn a comparison into a test on all cases of these modules or functions.

    Args:
        at_least: The modules and functions, and how many cases of each must run.
        gradients: Whether to ask for functions' samples that require gradients;
            some functions have more of the other kind.
        left_out: Why a case does not apply, or None.
        most_left_out: How many cases of each may be left out.
    """
    names = {x: x if isinstance(x, str) else f"nn.{x.__name__}" for x in at_least}

    def decorate(compare: Callable[[Case], None]) -> Callable[..., None]:
        @pytest.mark.parametrize("source", at_least, ids=names.get)
        def test(
            source: Source, record_property: Callable[[str, object], None]
        ) -> None:
            reasons: Counter[str] = Counter()
            ran = 0
            for case in (
                function_cases(source, gradients)
                if isinstance(source, str)
                else module_cases(source)
            ):
                reason = left_out(case)
                if reason is None:
                    compare(case)
                    ran += 1
                else:
                    reasons[reason] += 1
            missed = reasons.total()
            line = f"{names[source]}: {ran} of {ran + missed} cases"
            if missed:
                why = ", ".join(f"{reason} {n}" for reason, n in reasons.items())
                line += f", {missed} not applicable: {why}"
            record_property("cases", line)
            assert ran >= at_least[source], line
            assert missed <= most_left_out, line

        return test

    return decorate


def assert_same(case: Case, ours: Tensor, theirs: Tensor) -> None:
    """Compare outputs, and their gradients with respect to all leaves of the case."""
    torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-10)
    if not theirs.numel():
        return
    own = [] if case.module is None else list(case.module.parameters())
    given = [*case.args, *case.options.values()]
    leaves = own + [x for x in given if isinstance(x, Tensor) and x.requires_grad]
    # A weighted sum, lest differences cancel; 0.3 keeps the first weight off zero.
    weights = torch.arange(theirs.numel(), dtype=theirs.dtype).view(theirs.shape).cos()
    mine, expected = (
        torch.autograd.grad(
            (x * (weights + 0.3)).sum(), leaves, allow_unused=True, retain_graph=True
        )
        for x in (ours, theirs)
    )
    assert any(x is not None for x in expected)
    for x, y, leaf in zip(mine, expected, leaves, strict=True):
        zero = torch.zeros_like(leaf)
        torch.testing.assert_close(
            zero if x is None else x, zero if y is None else y, atol=1e-10, rtol=1e-10
        )


def reverse(pattern: str) -> str:
    return " -> ".join(reversed(pattern.split(" -> ")))


def batch_first(x: Tensor, module: Any) -> str:
    """Give the pattern that brings tokens into the order of the book."""
    if x.dim() == 2:
        return "n d -> 1 n d"
    return f"{'b n' if getattr(module, 'batch_first', False) else 'n b'} d -> b n d"


# Attention


@on_cases({"nn.functional.scaled_dot_product_attention": 25})
def test_scaled_dot_product_attention(case: Case) -> None:
    options = dict(case.options)
    torch.manual_seed(3)
    theirs = F.scaled_dot_product_attention(*case.args, **options)
    query, key, _ = case.args
    options.pop("enable_gqa", None)  # groups of one head are heads
    batch = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2])
    qkv = [x.expand(*batch, *x.shape[-2:]) for x in case.args]
    mask = None
    if options.pop("is_causal", False):
        # Theirs aligns the first query with the first key.
        mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril()
    given = {
        "mask": mask,
        "bias": options.pop("attn_mask", None),
        "dropout": options.pop("dropout_p", 0.0),
    }
    assert options == {}
    torch.manual_seed(3)
    assert_same(case, dot_product_attention(*qkv, **given), theirs)
    torch.manual_seed(3)
    explicit, _ = dot_product_attention(*qkv, **given, return_weights=True)
    assert_same(case, explicit, theirs)


def _attend_with_extra_keys(
    inputs: list[Tensor],
    weights: Weights,
    heads: int,
    *,
    extra: list[tuple[Tensor, Tensor]],
    masks: dict[str, Tensor],
    dropout: float,
) -> Tensor:
    """Attend with our layer to a context and to keys and values that it lacks.

    A token of the context is its features and a flag for each extra token; an extra
    token has its flag alone. The key projection maps that flag to the extra key.
    """
    query, key, value = inputs
    (b, _, dim), count = query.shape, len(extra)
    flags = repeat(torch.eye(count, dtype=key.dtype), "i j -> b i j", b=b)

    def widen(x: Tensor) -> Tensor:
        return torch.cat([F.pad(x, (0, count)), F.pad(flags, (x.shape[-1], 0))], dim=1)

    weights = dict(weights)
    for i, name in enumerate(("key", "value")):
        bias = weights.get(f"{name}_proj.bias", torch.zeros(dim, dtype=key.dtype))
        columns = [rearrange(pair[i] - bias, "d -> d 1") for pair in extra]
        own = weights[f"{name}_proj.weight"]
        weights[f"{name}_proj.weight"] = torch.cat([own, *columns], dim=1)
    names = ("query", "key", "value", "output")
    ours = MultiHeadAttention(
        dim,
        heads,
        context_dim=key.shape[-1] + count,
        values_dim=value.shape[-1] + count,
        bias=[name for name in names if f"{name}_proj.bias" in weights],
        dropout=dropout,
        dtype=torch.float64,
    )
    shown = {
        name: F.pad(x, (0, count), value=x.dtype == torch.bool)
        for name, x in masks.items()
    }
    tokens = (query, widen(key), widen(value))
    options = {**shown, "return_weights": True}
    torch.manual_seed(3)
    return functional_call(ours, weights, tokens, options)[0]


def _arguments(theirs: nn.MultiheadAttention) -> tuple[Any, ...]:
    """Give what a module passes to F.multi_head_attention_forward."""
    output = theirs.out_proj
    extra = (theirs.bias_k, theirs.bias_v, theirs.add_zero_attn, theirs.dropout)
    packed = (theirs.num_heads, theirs.in_proj_weight, theirs.in_proj_bias)
    return *packed, *extra, output.weight, output.bias


@on_cases(
    {nn.MultiheadAttention: 64, "nn.functional.multi_head_attention_forward": 96},
    gradients=False,
)
def test_multihead_attention(case: Case) -> None:
    torch.manual_seed(3)
    theirs = case.module or F.multi_head_attention_forward
    expected, _ = theirs(*case.args, **case.options)
    given = case.args[4:] if case.module is None else _arguments(case.module)
    heads, packed, bias, bias_k, bias_v, add_zero, dropout, output, output_bias = given
    if case.options.get("use_separate_proj_weight"):
        packed = torch.cat([case.options[f"{x}_proj_weight"] for x in "qkv"])
    weights = {"output_proj.weight": output, "output_proj.bias": output_bias}
    for i, name in enumerate(("query", "key", "value")):
        weights[f"{name}_proj.weight"] = packed.chunk(3)[i]
        weights[f"{name}_proj.bias"] = None if bias is None else bias.chunk(3)[i]
    order = batch_first(case.args[0], case.module)
    inputs = [rearrange(x, order) for x in case.args[:3]]
    extra = [] if bias_k is None else [(bias_k.flatten(), bias_v.flatten())]
    if add_zero:
        extra.append((torch.zeros_like(inputs[0][0, 0]),) * 2)
    masks = {}
    padding = case.options.get("key_padding_mask")
    if padding is not None:
        masks["padding_mask"] = ~padding.expand(len(inputs[0]), -1)
    mask = case.options["attn_mask"]
    if mask is not None:
        if mask.dim() == 3:
            mask = rearrange(mask, "(b h) q k -> b h q k", h=heads)
        masks |= {"mask": ~mask} if mask.dtype == torch.bool else {"bias": mask}
    ours = _attend_with_extra_keys(
        inputs,
        {name: x for name, x in weights.items() if x is not None},
        heads,
        extra=extra,
        masks=masks,
        dropout=dropout,
    )
    assert_same(case, rearrange(ours, reverse(order)), expected)


# Layers and stacks


def _taken_over(theirs: nn.Module) -> tuple[nn.Module, Weights]:
    """Convert a module, with weights through which gradients reach the original."""
    flat = parameters_to_vector(theirs.parameters())
    numbered = copy.deepcopy(theirs)
    numbers = torch.arange(len(flat), dtype=flat.dtype)
    vector_to_parameters(numbers, numbered.parameters())
    ours = from_torch(numbered)
    return ours, {name: flat[x.long()] for name, x in ours.state_dict().items()}


ENCODER = {"src_mask": "mask", "mask": "mask", "src_key_padding_mask": "padding_mask"}
DECODER = {
    "tgt_mask": "mask",
    "tgt_key_padding_mask": "padding_mask",
    "memory_mask": "memory_mask",
    "memory_key_padding_mask": "memory_padding_mask",
}


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@on_cases(
    {
        nn.TransformerEncoderLayer: 39,
        nn.TransformerEncoder: 39,
        nn.TransformerDecoderLayer: 67,
        nn.Transformer: 32,
    }
)
def test_transformer_layers_and_stacks(case: Case) -> None:
    theirs = case.module
    attentions = (x for x in theirs.modules() if isinstance(x, nn.MultiheadAttention))
    order = batch_first(case.args[0], next(attentions))

    def run(part: nn.Module, names: dict[str, str], *tokens: Tensor) -> Tensor:
        options: dict[str, Any] = {"causal": False}
        for name, mask in case.options.items():
            if name in names and mask is not None:
                padding = "padding" in name and mask.dim() == 1
                options[names[name]] = ~(mask[None] if padding else mask)
        return functional_call(*_taken_over(part), tokens, options)

    tokens = [rearrange(x, order) for x in case.args]
    if isinstance(theirs, nn.Transformer):
        memory = run(theirs.encoder, ENCODER, tokens[0])
        ours = run(theirs.decoder, DECODER, tokens[1], memory)
    else:
        ours = run(theirs, ENCODER if len(tokens) == 1 else DECODER, *tokens)
    assert_same(case, rearrange(ours, reverse(order)), case.expected())


# Norms, activations, losses


@on_cases({nn.LayerNorm: 7})
def test_layer_norm_module(case: Case) -> None:
    theirs, (x,), expected = case.module, case.args, case.expected()
    # One axis of features is as good as three.
    flat = x.flatten(x.dim() - len(theirs.normalized_shape))
    given = {name: p.flatten() for name, p in theirs.named_parameters()}
    assert_same(case, layer_norm(flat, **given, eps=theirs.eps).view_as(x), expected)
    if "weight" in given:
        built = LayerNorm(flat.shape[-1], eps=theirs.eps, bias="bias" in given).double()
        ours = functional_call(built, given, (flat,))
        assert_same(case, ours.view_as(x), expected)


@on_cases(
    {"nn.functional.layer_norm": 5},
    left_out=lambda case: (
        "a negative eps" if case.options.get("eps", 0.0) < 0.0 else None
    ),
    most_left_out=1,
)
def test_layer_norm_function(case: Case) -> None:
    x, shape, *given = case.args
    flat = x.flatten(x.dim() - len(shape))
    ours = layer_norm(flat, *(p.flatten() for p in given), **case.options)
    assert_same(case, ours.view_as(x), case.expected())


@on_cases({nn.GELU: 3, "nn.functional.gelu": 8})
def test_gelu(case: Case) -> None:
    module = case.module
    options = case.options if module is None else {"approximate": module.approximate}
    assert_same(case, gelu(*case.args, **options), case.expected())


def _softmax_over(
    x: Tensor, axis: int, mask: Tensor | None = None, *, as_bias: bool = False
) -> Tensor:
    # A single number is a vector of one.
    scores = x.reshape(1) if x.dim() == 0 else x.movedim(axis, -1)
    if mask is not None:
        # They line masks up with the input before any axis is moved.
        mask = mask.expand_as(x)
        mask = mask.reshape(1) if x.dim() == 0 else mask.movedim(axis, -1)
    if as_bias:
        weights = softmax(torch.zeros_like(scores), bias=scores)
    else:
        weights = softmax(scores, mask=mask)
    return weights.reshape(()) if x.dim() == 0 else weights.movedim(-1, axis)


@on_cases({nn.Softmax: 3, "softmax": 14})
def test_softmax(case: Case) -> None:
    x = case.args[0]
    axis = case.args[1] if case.module is None else case.module.dim
    if axis is None:
        axis = 0 if x.dim() in (0, 1, 3) else 1
    assert_same(case, _softmax_over(x, axis), case.expected())


@on_cases({"torch.ops.aten._safe_softmax.default": 8})
def test_safe_softmax(case: Case) -> None:
    # Rows of -inf give zeros: what hides an entry is the bias.
    ours = _softmax_over(*case.args, case.options["dim"], as_bias=True)
    assert_same(case, ours, case.expected())


@on_cases({"masked.softmax": 24})
def test_masked_softmax(case: Case) -> None:
    x, axis = case.args
    mask = case.options.get("mask")
    ours = _softmax_over(x, axis, mask)
    shown = torch.ones_like(x, dtype=torch.bool) if mask is None else mask
    shown = shown.expand_as(x)
    assert (ours[~shown] == 0).all()
    # Hidden entries of theirs are not defined; where nothing is shown, no entry
    # is. Their gradients there would be NaN, and spoil the others.
    seen = shown.any(axis, keepdim=True) if shown.numel() else shown
    expected = x.masked_fill(~shown & seen, -torch.inf).softmax(axis)
    zero = ours.new_zeros(())
    assert_same(
        case, torch.where(shown, ours, zero), torch.where(shown, expected, zero)
    )


def _loss_options(case: Case) -> dict[str, Any]:
    if case.module is None:
        return case.options
    names = ("weight", "ignore_index", "reduction", "label_smoothing")
    return {name: getattr(case.module, name) for name in names}


def _left_out_of_cross_entropy(case: Case) -> str | None:
    options = _loss_options(case)
    if options.get("weight") is not None:
        return "weights of classes"
    if case.args[1].is_floating_point():
        return "targets that are probabilities"
    ignored = case.args[1] == options.get("ignore_index", -100)
    if ignored.all():
        return "no target left, where theirs is NaN and ours zero"
    if ignored.any() and options.get("label_smoothing", 0.0):
        # Ours spreads nothing on padding; theirs does.
        return "ignored targets with smoothing"
    return None


@on_cases(
    {nn.CrossEntropyLoss: 24, "nn.functional.cross_entropy": 8},
    left_out=_left_out_of_cross_entropy,
    most_left_out=99,
)
def test_cross_entropy(case: Case) -> None:
    logits, targets = case.args
    options = _loss_options(case)
    rows = logits.movedim(-1 if logits.dim() == 1 else 1, -1)
    ignored = options.get("ignore_index", -100)
    given = {
        "smoothing": options.get("label_smoothing", 0.0),
        "padding_token": ignored if (targets == ignored).any() else None,
    }
    reduction = options.get("reduction", "mean")
    if reduction == "mean":
        ours = label_smoothing_loss(rows, targets, **given)
    else:
        # Ours is a mean: that of one target is its loss.
        pairs = zip(rows.reshape(-1, rows.shape[-1]), targets.flatten(), strict=True)
        each = [label_smoothing_loss(row, target, **given) for row, target in pairs]
        ours = torch.stack(each).view_as(targets)
        ours = ours.sum() if reduction == "sum" else ours
    assert_same(case, ours, case.expected())


# Recurrence


def _read(theirs: Any, suffix: str, x: Tensor, start: Tensor | None) -> Any:
    """Read with our layer and PyTorch's weights; a missing bias is zero."""
    weights: Weights = {}
    for kind in ("ih", "hh"):
        weight = weights[f"weight_{kind}"] = getattr(theirs, f"weight_{kind}{suffix}")
        bias = getattr(theirs, f"bias_{kind}{suffix}", None)
        weights[f"bias_{kind}"] = (
            weight.new_zeros(len(weight)) if bias is None else bias
        )
    ours = GRU if isinstance(theirs, nn.GRU | nn.GRUCell) else RNN
    layer = ours(x.shape[-1], theirs.hidden_size, dtype=torch.float64)
    return functional_call(layer, weights, (x, start))


def _left_out_of_recurrence(case: Case) -> str | None:
    nonlinearity = getattr(case.module, "nonlinearity", "tanh")
    return None if nonlinearity == "tanh" else f"activation {nonlinearity}"


@on_cases({nn.RNN: 16, nn.GRU: 16}, left_out=_left_out_of_recurrence, most_left_out=16)
def test_recurrent_layers(case: Case) -> None:
    theirs = case.module
    expected, last = case.expected()
    order = batch_first(case.args[0], theirs)
    x, starts = rearrange(case.args[0], order), None
    batched = "l b h -> l b h" if case.args[0].dim() == 3 else "l h -> l 1 h"
    if len(case.args) > 1:
        starts = rearrange(case.args[1], batched)
    ends = []
    for depth in range(theirs.num_layers):
        read = []
        for way in range(2 if theirs.bidirectional else 1):
            start = None if starts is None else starts[len(ends)]
            # To read backward is to read the reversed sequence.
            tokens = x.flip(1) if way else x
            suffix = f"_l{depth}" + "_reverse" * way
            states, end = _read(theirs, suffix, tokens, start)
            read.append(states.flip(1) if way else states)
            ends.append(end)
        x = torch.cat(read, dim=-1)
    assert_same(case, rearrange(x, reverse(order)), expected)
    assert_same(case, rearrange(torch.stack(ends), reverse(batched)), last)


@on_cases(
    {nn.RNNCell: 2, nn.GRUCell: 2}, left_out=_left_out_of_recurrence, most_left_out=1
)
def test_recurrent_cells(case: Case) -> None:
    x, state = case.args
    step = rearrange(x, "d -> 1 1 d"), rearrange(state, "h -> 1 h")
    _, last = _read(case.module, "", *step)
    assert_same(case, last[0], case.expected())


# Convolution


def _full_kernel(weight: Tensor, groups: int) -> Tensor:
    """Write a grouped kernel out: zeros between different groups."""
    count, size = weight.shape[1], len(weight) // groups
    rows = [
        F.pad(part.movedim(1, -1), (i * count, (groups - 1 - i) * count)).movedim(-1, 1)
        for i, part in enumerate(weight.split(size))
    ]
    return torch.cat(rows)


def _number(option: int | list[int] | tuple[int, ...]) -> int:
    return option if isinstance(option, int) else option[0]


def _by_chapter_4(
    weight: Tensor, bias: Tensor | None, options: dict[str, Any], x: Tensor
) -> Tensor:
    """Convolve a sequence by the attention of chapter 4.

    It gives every position an output. Other paddings and strides are a matter of what
    is put around the sequence and of which outputs are kept.
    """
    dilation = _number(options.get("dilation", 1))
    kernel = _full_kernel(weight, options.get("groups", 1))
    reach = dilation * (kernel.shape[2] - 1)
    before, after = reach // 2, reach - reach // 2
    padding = options.get("padding", 0)
    if padding == "same":
        padded = F.pad(x, (before, after))
    else:
        padded = F.pad(x, [0 if padding == "valid" else _number(padding)] * 2)
    layer = convolution_attention(
        kernel, bias, length=padded.shape[-1], dilation=dilation
    )
    # The kernel is taken over once more here, for gradients to flow to theirs.
    name = "inner.attention.output_proj"
    numbers = {f"{name}.weight": rearrange(kernel, "out c tap -> out (tap c)")}
    if bias is not None:
        numbers[f"{name}.bias"] = bias
    batched = "b c n -> b n c" if x.dim() == 3 else "c n -> 1 n c"
    output = functional_call(layer, numbers, (rearrange(padded, batched),))
    stride = _number(options.get("stride", 1))
    kept = output[:, before : output.shape[1] - after : stride]
    return rearrange(kept, reverse(batched))


def _by_chapter_8(
    weight: Tensor, bias: Tensor | None, options: dict[str, Any], x: Tensor
) -> Tensor:
    """Convolve by the layer that chapter 8 makes of the convolution itself."""
    groups = options.get("groups", 1)
    kind = nn.Conv1d if weight.dim() == 3 else nn.Conv2d
    plain = {k: tuple(v) if isinstance(v, list) else v for k, v in options.items()}
    convolution = kind(
        weight.shape[1] * groups,
        weight.shape[0],
        tuple(weight.shape[2:]),
        bias=bias is not None,
        **plain,
        dtype=torch.float64,
    )
    taps = _full_kernel(weight, groups).movedim((0, 1), (-1, -2)).flatten(0, -3)
    numbers = {"attention.value_weight": taps}
    if bias is not None:
        numbers["attention.bias"] = bias
    return functional_call(attention_from_convolution(convolution), numbers, (x,))


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@on_cases(
    {
        nn.Conv1d: 4,
        nn.Conv2d: 4,
        "nn.functional.conv1d": 10,
        "nn.functional.conv2d": 30,
    }
)
def test_convolution(case: Case) -> None:
    theirs, (x, *given), options = case.module, case.args, case.options
    if theirs is not None:
        given = theirs.weight, theirs.bias
        names = ("stride", "padding", "dilation", "groups")
        options = {name: getattr(theirs, name) for name in names}
    expected = case.expected()
    assert_same(case, _by_chapter_8(*given, options, x), expected)
    if given[0].dim() == 3:
        assert_same(case, _by_chapter_4(*given, options, x), expected)
