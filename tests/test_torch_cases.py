"""PyTorch's own cases: what its developers try their modules on, tried on ours.

PyTorch ships the inputs that its test suite feeds to every module and function.
Each case that has a counterpart here runs through it, with weights taken over, and
must give the same outputs and gradients to within 1e-10 in float64. Conventions are
translated, not passed over: an input without a batch gets one, other orders of axes
are moved, `True` for "hide" becomes `True` for "may see", a float mask is a bias, a
learnt extra key is one more token of the context. A case is left out only for what
the book does not have, and each test says how many it left out and why.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from torch import Tensor, nn
from torch.func import functional_call

from transformers_hw.attention import attention, softargmax
from transformers_hw.attention_as_convolution import attention_from_convolution
from transformers_hw.multi_head_attention import MultiHeadAttention
from transformers_hw.self_attention import convolution_attention
from transformers_hw.seq2seq import GRU, RNN
from transformers_hw.transformer import (
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    LayerNorm,
    gelu,
    label_smoothing_loss,
    layer_norm,
)

Weights = dict[str, Tensor]


@dataclass
class Case:
    """One call: of a module with its constructor's arguments, or of a function."""

    args: tuple[Any, ...]
    options: dict[str, Any]
    module: nn.Module | None = None

    def theirs(self) -> nn.Module:
        if self.module is None:
            raise TypeError("only cases of modules have a module")
        return self.module


@cache
def _databases() -> tuple[list[Any], list[Any]]:
    # They are private and take seconds to import: only these tests may need them.
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.common_modules import module_db

    return module_db, op_db


def _leaf(x: Any) -> Any:
    """Make a float tensor a leaf that asks for a gradient; copy other tensors."""
    if not isinstance(x, Tensor):
        return x
    return x.detach().clone().requires_grad_(x.is_floating_point())


def module_cases(kind: type[nn.Module]) -> Iterator[Case]:
    """Give the cases of a module, built, with parameters drawn at random."""
    infos = [info for info in _databases()[0] if info.module_cls is kind]
    for info in infos:
        for sample in info.module_inputs_func(
            info,
            device="cpu",
            dtype=torch.float64,
            requires_grad=True,
            training=True,
        ):
            given = sample.constructor_input
            module = kind(*given.args, **given.kwargs).double()
            with torch.no_grad():
                # Norms start at one, biases at zero, stacked layers alike: mistakes
                # in taking them over would not show.
                for parameter in module.parameters():
                    parameter.normal_(std=0.5)
            called = sample.forward_input
            yield Case(
                tuple(_leaf(x) for x in called.args),
                {name: _leaf(x) for name, x in called.kwargs.items()},
                module,
            )


def function_cases(name: str, *, gradients: bool = True) -> Iterator[Case]:
    """Give the cases of a function; its first argument is the first of `args`."""
    infos = [info for info in _databases()[1] if info.name == name]
    for info in infos:
        # Some functions have more samples when no gradients are asked for.
        for sample in info.sample_inputs("cpu", torch.float64, requires_grad=gradients):
            args = (_leaf(sample.input), *(_leaf(x) for x in sample.args))
            yield Case(args, {k: _leaf(x) for k, x in sample.kwargs.items()})


def leaves(case: Case) -> list[Tensor]:
    own = [] if case.module is None else list(case.module.parameters())
    given = [*case.args, *case.options.values()]
    return own + [x for x in given if isinstance(x, Tensor) and x.requires_grad]


def assert_same(case: Case, ours: Tensor, theirs: Tensor) -> None:
    """Compare outputs, and gradients for all that both can be derived by."""
    torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-10)
    if not theirs.numel():
        return
    # A weighted sum, lest differences cancel; 0.3 keeps the first weight off zero.
    weights = torch.arange(theirs.numel(), dtype=theirs.dtype).view(theirs.shape).cos()
    by = leaves(case)
    mine, their = (
        torch.autograd.grad(
            (x * (weights + 0.3)).sum(), by, allow_unused=True, retain_graph=True
        )
        for x in (ours, theirs)
    )
    assert any(x is not None for x in their)
    for x, y, leaf in zip(mine, their, by, strict=True):
        zero = torch.zeros_like(leaf)
        torch.testing.assert_close(
            zero if x is None else x, zero if y is None else y, atol=1e-10, rtol=1e-10
        )


@pytest.fixture
def run(
    record_property: Callable[[str, object], None],
) -> Callable[..., Counter[str]]:
    def run(
        name: str,
        cases: Iterator[Case],
        compare: Callable[[Case], None],
        *,
        left_out: Callable[[Case], str | None] = lambda case: None,
        at_least: int,
    ) -> Counter[str]:
        reasons: Counter[str] = Counter()
        ran = 0
        for case in cases:
            reason = left_out(case)
            if reason is None:
                compare(case)
                ran += 1
            else:
                reasons[reason] += 1
        why = ", ".join(f"{reason} {count}" for reason, count in reasons.items())
        line = f"{name}: {ran} of {ran + reasons.total()} cases" + (
            f", {reasons.total()} not applicable: {why}" if why else ""
        )
        record_property("cases", line)
        assert ran >= at_least, line
        return reasons

    return run


# Attention


def test_scaled_dot_product_attention(run: Callable[..., Counter[str]]) -> None:
    name = "nn.functional.scaled_dot_product_attention"

    def compare(case: Case) -> None:
        options = dict(case.options)
        torch.manual_seed(3)
        theirs = F.scaled_dot_product_attention(*case.args, **options)
        query, key, value = case.args
        # Heads in groups of one are heads.
        options.pop("enable_gqa", None)
        batch = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2])
        query, key, value = (
            x.expand(*batch, *x.shape[-2:]) for x in (query, key, value)
        )
        mask = None
        if options.pop("is_causal", False):
            # Theirs aligns the first query with the first key.
            mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril()
        bias, dropout = options.pop("attn_mask", None), options.pop("dropout_p", 0.0)
        assert options == {}
        for explicitly in (False, True):
            torch.manual_seed(3)
            ours, _ = attention(
                query,
                key,
                value,
                mask=mask,
                bias=bias,
                dropout=dropout,
                return_weights=explicitly,
            )
            assert_same(case, ours, theirs)

    assert run(name, function_cases(name), compare, at_least=25).total() == 0


def _heads(mask: Tensor | None, heads: int) -> Tensor | None:
    if mask is None or mask.dim() == 2:
        return mask
    return rearrange(mask, "(b h) q k -> b h q k", h=heads)


def _mask_or_bias(mask: Tensor | None) -> dict[str, Tensor | None]:
    """Translate a mask of theirs: `True` hides, numbers are added."""
    if mask is None or mask.dtype == torch.bool:
        return {"mask": None if mask is None else ~mask}
    return {"bias": mask}


def _attend_with_extra_keys(
    inputs: tuple[Tensor, Tensor, Tensor],
    weights: Weights,
    heads: int,
    *,
    extra: list[tuple[Tensor, Tensor]],
    masks: dict[str, Tensor | None],
    dropout: float = 0.0,
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

    def widened(name: str, wanted: list[Tensor]) -> Tensor:
        bias = weights.get(f"{name}_proj.bias", torch.zeros(dim, dtype=key.dtype))
        columns = [rearrange(x - bias, "d -> d 1") for x in wanted]
        return torch.cat([weights[f"{name}_proj.weight"], *columns], dim=1)

    weights = {
        **weights,
        "key_proj.weight": widened("key", [k for k, _ in extra]),
        "value_proj.weight": widened("value", [v for _, v in extra]),
    }
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
        name: None if x is None else F.pad(x, (0, count), value=x.dtype == torch.bool)
        for name, x in masks.items()
    }
    torch.manual_seed(3)
    output, _ = functional_call(
        ours,
        weights,
        (query, widen(key), widen(value)),
        {**shown, "return_weights": True},
    )
    return output


def _projections(
    stacked: Tensor, bias: Tensor | None, output: Tensor, output_bias: Tensor | None
) -> Weights:
    weights = {"output_proj.weight": output}
    if output_bias is not None:
        weights["output_proj.bias"] = output_bias
    for i, name in enumerate(("query", "key", "value")):
        weights[f"{name}_proj.weight"] = stacked.chunk(3)[i]
        if bias is not None:
            weights[f"{name}_proj.bias"] = bias.chunk(3)[i]
    return weights


def _of_attention(theirs: nn.MultiheadAttention) -> Weights:
    return _projections(
        theirs.in_proj_weight,
        theirs.in_proj_bias,
        theirs.out_proj.weight,
        theirs.out_proj.bias,
    )


def test_multihead_attention(run: Callable[..., Counter[str]]) -> None:
    def compare(case: Case) -> None:
        theirs = case.theirs()
        assert isinstance(theirs, nn.MultiheadAttention)
        expected, _ = theirs(*case.args, **case.options)
        unbatched = case.args[0].dim() == 2
        order = "n d -> 1 n d" if unbatched else "n b d -> b n d"
        if theirs.batch_first and not unbatched:
            order = "b n d -> b n d"
        query, key, value = (rearrange(x, order) for x in case.args)
        padding = case.options["key_padding_mask"]
        if padding is not None:
            padding = ~(rearrange(padding, "k -> 1 k") if unbatched else padding)
        extra = []
        if theirs.bias_k is not None and theirs.bias_v is not None:
            extra.append((theirs.bias_k[0, 0], theirs.bias_v[0, 0]))
        if theirs.add_zero_attn:
            extra.append((torch.zeros_like(query[0, 0]),) * 2)
        masks = _mask_or_bias(_heads(case.options["attn_mask"], theirs.num_heads))
        ours = _attend_with_extra_keys(
            (query, key, value),
            _of_attention(theirs),
            theirs.num_heads,
            extra=extra,
            masks={**masks, "padding_mask": padding},
        )
        back = order.split(" -> ")
        ours = rearrange(ours, f"{back[1]} -> {back[0]}")
        assert_same(case, ours, expected)

    cases = module_cases(nn.MultiheadAttention)
    assert run("nn.MultiheadAttention", cases, compare, at_least=64).total() == 0


def test_multi_head_attention_forward(run: Callable[..., Counter[str]]) -> None:
    name = "nn.functional.multi_head_attention_forward"

    def compare(case: Case) -> None:
        torch.manual_seed(3)
        expected, _ = F.multi_head_attention_forward(*case.args, **case.options)
        query, key, value, _, heads, stacked, bias, bias_k, bias_v = case.args[:9]
        add_zero, dropout, output, output_bias = case.args[9:]
        assert not add_zero
        if case.options["use_separate_proj_weight"]:
            own = [case.options[f"{x}_proj_weight"] for x in "qkv"]
            stacked = torch.cat(own)
        batched = query.dim() == 3
        order = "n b d -> b n d" if batched else "n d -> 1 n d"
        query, key, value = (rearrange(x, order) for x in (query, key, value))
        masks = _mask_or_bias(_heads(case.options["attn_mask"], heads))
        ours = _attend_with_extra_keys(
            (query, key, value),
            _projections(stacked, bias, output, output_bias),
            heads,
            extra=[(bias_k, bias_v)],
            masks=masks,
            dropout=dropout,
        )
        ours = rearrange(ours, "b n d -> n b d" if batched else "1 n d -> n d")
        assert_same(case, ours, expected)

    cases = function_cases(name, gradients=False)
    assert run(name, cases, compare, at_least=96).total() == 0


# Layers and stacks

ACTIVATIONS = {F.relu: "relu", F.gelu: "gelu"}
ENCODER = {
    "self_attn": "attention",
    "norm1": "attention_norm",
    "linear1": "feed_forward.hidden_proj",
    "linear2": "feed_forward.output_proj",
    "norm2": "feed_forward_norm",
}
DECODER = {
    **ENCODER,
    "self_attn": "self_attention",
    "norm1": "self_attention_norm",
    "multihead_attn": "cross_attention",
    "norm2": "cross_attention_norm",
    "norm3": "feed_forward_norm",
}
Layer = nn.TransformerEncoderLayer | nn.TransformerDecoderLayer


def _of_layer(theirs: nn.Module, names: dict[str, str], prefix: str = "") -> Weights:
    weights: Weights = {}
    for name, ours in names.items():
        part = theirs.get_submodule(name)
        found = (
            _of_attention(part)
            if isinstance(part, nn.MultiheadAttention)
            else dict(part.named_parameters())
        )
        weights.update({f"{prefix}{ours}.{key}": x for key, x in found.items()})
    return weights


def _of_stack(theirs: nn.Module, names: dict[str, str]) -> Weights:
    layers = theirs.get_submodule("layers")
    weights: Weights = {}
    for i, layer in enumerate(layers.children()):
        weights |= _of_layer(layer, names, f"layers.{i}.")
    norm = getattr(theirs, "norm", None)
    if norm is not None:
        own = norm.named_parameters()
        weights |= {f"final_norm.{name}": x for name, x in own}
    return weights


def _sizes(layer: Layer) -> dict[str, Any]:
    activation = layer.activation
    chosen = "relu" if isinstance(activation, nn.ReLU) else ACTIVATIONS[activation]
    return {
        "dim": layer.linear1.in_features,
        "heads": layer.self_attn.num_heads,
        "hidden_dim": layer.linear1.out_features,
        "norm": "pre" if layer.norm_first else "post",
        "activation": chosen,
        "bias": layer.linear1.bias is not None,
        "eps": layer.norm1.eps,
        "dtype": torch.float64,
    }


def _batched(layer: nn.Module, x: Tensor) -> tuple[Tensor, str]:
    """Bring tokens into the order of the book, and say how to bring them back."""
    attention = next(x for x in layer.modules() if isinstance(x, nn.MultiheadAttention))
    if x.dim() == 2:
        return rearrange(x, "n d -> 1 n d"), "1 n d -> n d"
    if attention.batch_first:
        return x, "b n d -> b n d"
    return rearrange(x, "n b d -> b n d"), "b n d -> n b d"


def _masks(options: dict[str, Any], **names: str) -> dict[str, Tensor | None]:
    """Translate masks that hide where `True`; those of keys get a batch."""
    found: dict[str, Tensor | None] = {}
    for ours, theirs in names.items():
        mask = options.get(theirs)
        if mask is not None and "padding" in ours and mask.dim() == 1:
            mask = rearrange(mask, "k -> 1 k")
        found[ours] = None if mask is None else ~mask
    return found


def _compare_encoder_layer(case: Case) -> None:
    theirs = case.theirs()
    assert isinstance(theirs, nn.TransformerEncoderLayer)
    x, back = _batched(theirs, case.args[0])
    names = {"mask": "src_mask", "padding_mask": "src_key_padding_mask"}
    masks = _masks(case.options, **names)
    ours = functional_call(
        EncoderLayer(**_sizes(theirs)), _of_layer(theirs, ENCODER), (x,), masks
    )
    expected = theirs(*case.args, **case.options)
    assert_same(case, rearrange(ours, back), expected)


def test_transformer_encoder_layer(run: Callable[..., Counter[str]]) -> None:
    cases = module_cases(nn.TransformerEncoderLayer)
    reasons = run(
        "nn.TransformerEncoderLayer", cases, _compare_encoder_layer, at_least=39
    )
    assert reasons.total() == 0


def _compare_encoder(case: Case) -> None:
    theirs = case.theirs()
    assert isinstance(theirs, nn.TransformerEncoder)
    layer = next(theirs.layers.children())
    assert isinstance(layer, nn.TransformerEncoderLayer)
    x, back = _batched(theirs, case.args[0])
    names = {"mask": "mask", "padding_mask": "src_key_padding_mask"}
    masks = _masks(case.options, **names)
    built = Encoder(**_sizes(layer), depth=theirs.num_layers, final_norm=False)
    ours = functional_call(built, _of_stack(theirs, ENCODER), (x,), masks)
    expected = theirs(*case.args, **case.options)
    assert_same(case, rearrange(ours, back), expected)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_transformer_encoder(run: Callable[..., Counter[str]]) -> None:
    cases = module_cases(nn.TransformerEncoder)
    reasons = run("nn.TransformerEncoder", cases, _compare_encoder, at_least=39)
    assert reasons.total() == 0


def _compare_decoder_layer(case: Case) -> None:
    theirs = case.theirs()
    assert isinstance(theirs, nn.TransformerDecoderLayer)
    (x, back), (memory, _) = (_batched(theirs, x) for x in case.args)
    masks = _masks(
        case.options,
        mask="tgt_mask",
        padding_mask="tgt_key_padding_mask",
        memory_mask="memory_mask",
        memory_padding_mask="memory_key_padding_mask",
    )
    ours = functional_call(
        DecoderLayer(**_sizes(theirs)),
        _of_layer(theirs, DECODER),
        (x, memory),
        {**masks, "causal": False},
    )
    expected = theirs(*case.args, **case.options)
    assert_same(case, rearrange(ours, back), expected)


def test_transformer_decoder_layer(run: Callable[..., Counter[str]]) -> None:
    cases = module_cases(nn.TransformerDecoderLayer)
    reasons = run(
        "nn.TransformerDecoderLayer", cases, _compare_decoder_layer, at_least=67
    )
    assert reasons.total() == 0


def _compare_transformer(case: Case) -> None:
    theirs = case.theirs()
    assert isinstance(theirs, nn.Transformer)
    layers = theirs.encoder.layers[0], theirs.decoder.layers[0]
    assert isinstance(layers[0], nn.TransformerEncoderLayer)
    assert isinstance(layers[1], nn.TransformerDecoderLayer)
    (source, _), (target, back) = (_batched(theirs, x) for x in case.args)
    depths = {"depth": theirs.encoder.num_layers, "final_norm": True}
    memory = functional_call(
        Encoder(**_sizes(layers[0]), **depths),
        _of_stack(theirs.encoder, ENCODER),
        (source,),
        _masks(case.options, mask="src_mask", padding_mask="src_key_padding_mask"),
    )
    names = {"mask": "tgt_mask", "padding_mask": "tgt_key_padding_mask"}
    ours = functional_call(
        Decoder(**_sizes(layers[1]), **depths),
        _of_stack(theirs.decoder, DECODER),
        (target, memory),
        {**_masks(case.options, **names), "causal": False},
    )
    expected = theirs(*case.args, **case.options)
    assert_same(case, rearrange(ours, back), expected)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_transformer(run: Callable[..., Counter[str]]) -> None:
    cases = module_cases(nn.Transformer)
    reasons = run("nn.Transformer", cases, _compare_transformer, at_least=32)
    assert reasons.total() == 0


# Norms, activations, losses


def _compare_layer_norm(case: Case) -> None:
    theirs = case.theirs()
    assert isinstance(theirs, nn.LayerNorm)
    expected = theirs(*case.args)
    (x,) = case.args
    # One axis of features is as good as three.
    count = len(theirs.normalized_shape)
    flat = x.flatten(x.dim() - count)
    given = {name: p.flatten() for name, p in theirs.named_parameters()}
    assert_same(case, layer_norm(flat, **given, eps=theirs.eps).view_as(x), expected)
    if "weight" in given:
        built = LayerNorm(flat.shape[-1], eps=theirs.eps, bias="bias" in given).double()
        ours = functional_call(built, given, (flat,))
        assert_same(case, ours.view_as(x), expected)


def test_layer_norm_module(run: Callable[..., Counter[str]]) -> None:
    cases = module_cases(nn.LayerNorm)
    assert run("nn.LayerNorm", cases, _compare_layer_norm, at_least=7).total() == 0


def test_layer_norm_function(run: Callable[..., Counter[str]]) -> None:
    name = "nn.functional.layer_norm"

    def compare(case: Case) -> None:
        x, shape, *given = case.args
        flat = x.flatten(x.dim() - len(shape))
        ours = layer_norm(flat, *(p.flatten() for p in given), **case.options)
        expected = F.layer_norm(*case.args, **case.options)
        assert_same(case, ours.view_as(x), expected)

    def left_out(case: Case) -> str | None:
        return "a negative eps" if case.options.get("eps", 0.0) < 0.0 else None

    reasons = run(name, function_cases(name), compare, left_out=left_out, at_least=5)
    assert reasons.total() <= 1


def test_gelu_module(run: Callable[..., Counter[str]]) -> None:
    def compare(case: Case) -> None:
        theirs = case.theirs()
        assert isinstance(theirs, nn.GELU)
        assert_same(
            case, gelu(*case.args, approximate=theirs.approximate), theirs(*case.args)
        )

    assert run("nn.GELU", module_cases(nn.GELU), compare, at_least=3).total() == 0


def test_gelu_function(run: Callable[..., Counter[str]]) -> None:
    name = "nn.functional.gelu"

    def compare(case: Case) -> None:
        expected = F.gelu(*case.args, **case.options)
        assert_same(case, gelu(*case.args, **case.options), expected)

    assert run(name, function_cases(name), compare, at_least=8).total() == 0


def _softargmax_over(
    x: Tensor, axis: int, mask: Tensor | None = None, *, as_bias: bool = False
) -> Tensor:
    # A single number is a vector of one.
    scores = x.reshape(1) if x.dim() == 0 else x.movedim(axis, -1)
    if mask is not None:
        # They line masks up with the input before any axis is moved.
        mask = mask.expand_as(x)
        mask = mask.reshape(1) if x.dim() == 0 else mask.movedim(axis, -1)
    weights = (
        softargmax(torch.zeros_like(scores), bias=scores)
        if as_bias
        else softargmax(scores, mask=mask)
    )
    return weights.reshape(()) if x.dim() == 0 else weights.movedim(-1, axis)


def test_softmax_module(run: Callable[..., Counter[str]]) -> None:
    def compare(case: Case) -> None:
        theirs = case.theirs()
        assert isinstance(theirs, nn.Softmax)
        expected = theirs(*case.args)
        axis = theirs.dim
        if axis is None:
            axis = 0 if case.args[0].dim() in (0, 1, 3) else 1
        assert_same(case, _softargmax_over(case.args[0], axis), expected)

    assert run("nn.Softmax", module_cases(nn.Softmax), compare, at_least=3).total() == 0


def test_softmax_function(run: Callable[..., Counter[str]]) -> None:
    def compare(case: Case) -> None:
        x, axis = case.args
        expected = torch.softmax(x, axis, **case.options)
        assert_same(case, _softargmax_over(x, axis), expected)

    assert run("softmax", function_cases("softmax"), compare, at_least=14).total() == 0


def test_safe_softmax(run: Callable[..., Counter[str]]) -> None:
    name = "torch.ops.aten._safe_softmax.default"

    def compare(case: Case) -> None:
        # Rows of -inf give zeros: what hides an entry is the bias.
        expected = torch.ops.aten._safe_softmax.default(*case.args, **case.options)
        ours = _softargmax_over(*case.args, case.options["dim"], as_bias=True)
        assert_same(case, ours, expected)

    assert run(name, function_cases(name), compare, at_least=8).total() == 0


def test_masked_softmax(run: Callable[..., Counter[str]]) -> None:
    name = "masked.softmax"

    def compare(case: Case) -> None:
        x, axis = case.args
        mask = case.options.get("mask")
        ours = _softargmax_over(x, axis, mask)
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

    assert run(name, function_cases(name), compare, at_least=24).total() == 0


def _loss_case(case: Case) -> dict[str, Any]:
    """Give the options of a loss, whether it is a module's or a function's."""
    if case.module is None:
        return case.options
    names = ("weight", "ignore_index", "reduction", "label_smoothing")
    return {name: getattr(case.module, name) for name in names}


def _compare_cross_entropy(case: Case) -> None:
    logits, targets = case.args
    options = _loss_case(case)
    if case.module is None:
        expected = F.cross_entropy(logits, targets, **options)
    else:
        expected = case.module(logits, targets)
    classes = -1 if logits.dim() == 1 else 1
    rows, flat = logits.movedim(classes, -1), targets.clone()
    ignored = options.get("ignore_index", -100)
    padding = ignored if (targets == ignored).any() else None
    given = {
        "smoothing": options.get("label_smoothing", 0.0),
        "padding_token": padding,
    }
    reduction = options.get("reduction", "mean")
    if reduction == "mean":
        ours = label_smoothing_loss(rows, flat, **given)
    else:
        # Ours is a mean: that of one target is its loss.
        pairs = zip(rows.reshape(-1, rows.shape[-1]), flat.reshape(-1), strict=True)
        each = [label_smoothing_loss(row, target, **given) for row, target in pairs]
        ours = torch.stack(each).view_as(flat)
        ours = ours.sum() if reduction == "sum" else ours
    assert_same(case, ours, expected)


def _left_out_of_cross_entropy(case: Case) -> str | None:
    options = _loss_case(case)
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


@pytest.mark.parametrize("of", ["module", "function"])
def test_cross_entropy(run: Callable[..., Counter[str]], of: str) -> None:
    name = "nn.functional.cross_entropy"
    cases = (
        module_cases(nn.CrossEntropyLoss) if of == "module" else function_cases(name)
    )
    reasons = run(
        "nn.CrossEntropyLoss" if of == "module" else name,
        cases,
        _compare_cross_entropy,
        left_out=_left_out_of_cross_entropy,
        at_least=24 if of == "module" else 8,
    )
    assert reasons["weights of classes"] > 0


# Recurrence


def _of_recurrence(theirs: nn.Module, suffix: str = "") -> Weights:
    """Take over the weights of a layer; a missing bias is zero."""
    weights: Weights = {}
    for kind in ("ih", "hh"):
        weight = getattr(theirs, f"weight_{kind}{suffix}")
        bias = getattr(theirs, f"bias_{kind}{suffix}", None)
        weights[f"weight_{kind}"] = weight
        weights[f"bias_{kind}"] = (
            weight.new_zeros(len(weight)) if bias is None else bias
        )
    return weights


def _compare_recurrence(case: Case) -> None:
    theirs = case.theirs()
    assert isinstance(theirs, nn.RNN | nn.GRU)
    kind = GRU if isinstance(theirs, nn.GRU) else RNN
    expected, last = theirs(*case.args)
    batched = case.args[0].dim() == 3
    order = "n d -> 1 n d"
    if batched:
        order = "b n d -> b n d" if theirs.batch_first else "n b d -> b n d"
    x = rearrange(case.args[0], order)
    starts = None
    if len(case.args) > 1:
        starts = rearrange(
            case.args[1], "l b h -> l b h" if batched else "l h -> l 1 h"
        )
    ways = 2 if theirs.bidirectional else 1
    ends = []
    for depth in range(theirs.num_layers):
        read = []
        for way in range(ways):
            weights = _of_recurrence(theirs, f"_l{depth}" + "_reverse" * way)
            start = None if starts is None else starts[len(ends)]
            layer = kind(x.shape[-1], theirs.hidden_size, dtype=torch.float64)
            # To read backwards is to read the sequence turned round.
            states, end = functional_call(
                layer, weights, (x.flip(1) if way else x, start)
            )
            read.append(states.flip(1) if way else states)
            ends.append(end)
        x = torch.cat(read, dim=-1)
    back = " -> ".join(reversed(order.split(" -> ")))
    assert_same(case, rearrange(x, back), expected)
    final = rearrange(ends, "l b h -> l b h" if batched else "l 1 h -> l h")
    assert_same(case, final, last)


def _left_out_of_recurrence(case: Case) -> str | None:
    nonlinearity = getattr(case.module, "nonlinearity", "tanh")
    return None if nonlinearity == "tanh" else f"activation {nonlinearity}"


@pytest.mark.parametrize(
    ("kind", "at_least", "most_left_out"), [(nn.RNN, 16, 16), (nn.GRU, 16, 0)]
)
def test_recurrent_layers(
    run: Callable[..., Counter[str]],
    kind: type[nn.Module],
    at_least: int,
    most_left_out: int,
) -> None:
    reasons = run(
        f"nn.{kind.__name__}",
        module_cases(kind),
        _compare_recurrence,
        left_out=_left_out_of_recurrence,
        at_least=at_least,
    )
    assert reasons.total() <= most_left_out


@pytest.mark.parametrize(
    ("kind", "ours", "at_least"), [(nn.RNNCell, RNN, 2), (nn.GRUCell, GRU, 2)]
)
def test_recurrent_cells(
    run: Callable[..., Counter[str]],
    kind: type[nn.Module],
    ours: type[RNN] | type[GRU],
    at_least: int,
) -> None:
    def compare(case: Case) -> None:
        theirs = case.theirs()
        x, state = case.args
        layer = ours(x.shape[-1], state.shape[-1], dtype=torch.float64)
        step = (rearrange(x, "d -> 1 1 d"), rearrange(state, "h -> 1 h"))
        _, last = functional_call(layer, _of_recurrence(theirs), step)
        assert_same(case, last[0], theirs(x, state))

    reasons = run(
        f"nn.{kind.__name__}",
        module_cases(kind),
        compare,
        left_out=_left_out_of_recurrence,
        at_least=at_least,
    )
    assert reasons.total() <= 1


# Convolution


def _full_kernel(weight: Tensor, groups: int) -> Tensor:
    """Write a grouped kernel out: zeros where a group does not look."""
    count, size = weight.shape[1], len(weight) // groups
    rows = [
        F.pad(part.movedim(1, -1), (i * count, (groups - 1 - i) * count)).movedim(-1, 1)
        for i, part in enumerate(weight.split(size))
    ]
    return torch.cat(rows)


def _number(option: int | list[int] | tuple[int, ...]) -> int:
    return option if isinstance(option, int) else option[0]


def _fetched(
    weight: Tensor, bias: Tensor | None, options: dict[str, Any], x: Tensor
) -> Tensor:
    """Convolve a sequence by the attention of chapter 4.

    It gives every place an output. Other paddings and strides are a matter of what
    is put around the sequence and of which outputs are kept.
    """
    dilation = _number(options.get("dilation", 1))
    stride = _number(options.get("stride", 1))
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
    numbers = {"weight": rearrange(kernel, "out channel tap -> out (tap channel)")}
    if bias is not None:
        numbers["bias"] = bias
    tokens = rearrange(padded if x.dim() == 3 else padded[None], "b c n -> b n c")
    output, _ = functional_call(
        layer,
        {f"inner.attention.output_proj.{name}": p for name, p in numbers.items()},
        (tokens,),
    )
    kept = output[:, before : output.shape[1] - after : stride]
    kept = rearrange(kept, "b n out -> b out n")
    return kept if x.dim() == 3 else kept[0]


def _converted(
    weight: Tensor, bias: Tensor | None, options: dict[str, Any], x: Tensor
) -> Tensor:
    """Convolve by the layer that chapter 8 makes of the convolution itself."""
    groups = options.get("groups", 1)
    kind = nn.Conv1d if weight.dim() == 3 else nn.Conv2d
    convolution = kind(
        weight.shape[1] * groups,
        weight.shape[0],
        tuple(weight.shape[2:]),
        bias=bias is not None,
        **{name: _plain(option) for name, option in options.items()},
        dtype=torch.float64,
    )
    taps = _full_kernel(weight, groups).movedim((0, 1), (-1, -2)).flatten(0, -3)
    numbers = {"attention.value_weight": taps}
    if bias is not None:
        numbers["attention.bias"] = bias
    return functional_call(attention_from_convolution(convolution), numbers, (x,))


def _plain(option: Any) -> Any:
    return tuple(option) if isinstance(option, list) else option


@pytest.mark.parametrize("kind", [nn.Conv1d, nn.Conv2d])
def test_convolution_modules(
    run: Callable[..., Counter[str]], kind: type[nn.Module]
) -> None:
    def compare(case: Case) -> None:
        theirs = case.theirs()
        assert isinstance(theirs, nn.Conv1d | nn.Conv2d)
        names = ("stride", "padding", "dilation", "groups")
        options = {name: getattr(theirs, name) for name in names}
        expected = theirs(*case.args)
        given = (theirs.weight, theirs.bias)
        assert_same(case, _converted(*given, options, *case.args), expected)
        if kind is nn.Conv1d:
            assert_same(case, _fetched(*given, options, *case.args), expected)

    name = f"nn.{kind.__name__}"
    assert run(name, module_cases(kind), compare, at_least=4).total() == 0


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize(
    ("name", "function", "at_least"),
    [
        ("nn.functional.conv1d", F.conv1d, 10),
        ("nn.functional.conv2d", F.conv2d, 30),
    ],
)
def test_convolution_functions(
    run: Callable[..., Counter[str]],
    name: str,
    function: Callable[..., Tensor],
    at_least: int,
) -> None:
    def compare(case: Case) -> None:
        x, weight, bias = case.args
        expected = function(*case.args, **case.options)
        assert_same(case, _converted(weight, bias, case.options, x), expected)
        if weight.dim() == 3:
            assert_same(case, _fetched(weight, bias, case.options, x), expected)

    assert run(name, function_cases(name), compare, at_least=at_least).total() == 0
