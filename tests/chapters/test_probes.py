"""Reading a model: what probes say, and that they leave no trace."""

import base64
import html
import io
import itertools
import json
import math
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
import torchvision
import transformers
from bad_calls import assert_refused, bad_calls
from einops import rearrange
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from torch import Tensor, nn
from torch.nn.attention.bias import causal_lower_right

from transformers_hw.attention_as_convolution import ImageBert
from transformers_hw.multi_head_attention import MultiHeadAttention
from transformers_hw.positional_encoding import AxialPositions2D
from transformers_hw.probes import (
    attention_distance,
    attention_rollout,
    capture_weights,
    patch_filters,
    position_similarity,
    show,
)
from transformers_hw.self_attention import SelfAttention, ZeroPaddedSelfAttention
from transformers_hw.transformer import DecoderCache, Encoder, Transformer
from transformers_hw.vision_transformer import PatchEmbedding, VisionTransformer

DOUBLE = {"dtype": torch.float64}
SDPA = F.scaled_dot_product_attention


def assert_same(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0.0, atol=1e-10)


def encoder(**options: Any) -> Encoder:
    return Encoder(12, 3, 17, 2, **DOUBLE, **options)


def tokens() -> Tensor:
    return torch.randn(2, 5, 12, **DOUBLE)


def hooks(model: nn.Module) -> int:
    parts = model.modules()
    return sum(len(x._forward_hooks) + len(x._forward_pre_hooks) for x in parts)


def calls(weights: dict[str, list[Tensor]]) -> list[int]:
    """Count the calls that were recorded of each layer."""
    return [len(recorded) for recorded in weights.values()]


# --- capture_weights ---------------------------------------------------------------


def test_captured_weights_are_the_softmax_of_the_scores():
    model, x = encoder(), tokens()
    with capture_weights(model) as weights:
        model(x)
    assert list(weights) == ["layers.0.attention", "layers.1.attention"]
    layer, normed = model.layers[0].attention, F.layer_norm(x, (12,), eps=1e-5)
    query, key = (
        rearrange(proj(normed), "b n (h d) -> b h n d", h=3)
        for proj in (layer.query_proj, layer.key_proj)
    )
    expected = (query @ key.mT / math.sqrt(4)).softmax(dim=-1)
    (found,) = weights["layers.0.attention"]
    assert_same(found, expected)
    assert expected.std() > 0.01


def test_the_model_computes_what_it_always_does():
    model, x = encoder(dropout=0.9).eval(), tokens().requires_grad_()

    def output_and_gradient() -> tuple[Tensor, Tensor]:
        y = model(x, causal=True)
        return y, torch.autograd.grad(y.square().sum(), x)[0]

    before = output_and_gradient()
    with capture_weights(model) as weights:
        for a, b in zip(output_and_gradient(), before, strict=True):
            assert_same(a, b)
    for (layer,) in weights.values():
        assert_same(layer, layer.tril())
        assert not layer.requires_grad


def test_a_layer_returns_weights_only_where_they_are_asked_for():
    layer, x = MultiHeadAttention(12, 3, **DOUBLE), tokens()
    with capture_weights(layer) as weights:
        assert isinstance(layer(x), Tensor)
        _, asked = layer(x, return_weights=True)
    assert list(weights) == [""]
    assert calls(weights) == [2]
    assert torch.equal(weights[""][1], asked)
    assert isinstance(layer(x), Tensor)


def test_no_hook_is_left_after_the_block_or_an_error():
    model, x = encoder(), tokens()
    state = set(vars(model.layers[0].attention))
    with capture_weights(model) as weights:
        model(x)
        assert hooks(model) == 4
    model(x)
    assert calls(weights) == [1, 1]
    assert set(vars(model.layers[0].attention)) == state
    assert hooks(model) == 0
    with pytest.raises(ZeroDivisionError), capture_weights(model):
        _ = 1 / 0
    assert hooks(model) == 0


def test_an_error_inside_the_model_does_not_mix_up_later_calls():
    layer, x = MultiHeadAttention(12, 3, **DOUBLE), tokens()
    with capture_weights(layer) as weights:
        with pytest.raises((ValueError, TypeError)):
            layer(x[..., :7], return_weights=True)
        assert isinstance(layer(x), Tensor)
    assert calls(weights) == [1]
    assert hooks(layer) == 0


def test_captures_can_be_nested():
    model, x = encoder(), tokens()
    with capture_weights(model) as outer:
        model(x)
        with capture_weights(model.layers[1]) as inner:
            y = model(2 * x)
        model(3 * x)
    assert calls(outer) == [3, 3]
    assert list(inner) == ["attention"]
    assert torch.equal(inner["attention"][0], outer["layers.1.attention"][1])
    assert_same(y, model(2 * x))


def test_a_shared_layer_is_recorded_at_each_call():
    layer, x = MultiHeadAttention(12, 3, **DOUBLE), tokens()
    with capture_weights(nn.ModuleList([layer, layer])) as weights:
        layer(layer(x))
    assert (list(weights), calls(weights)) == (["0"], [2])


def test_steps_of_decoding_are_rows_of_the_whole():
    model = Transformer(11, dim=12, heads=3, hidden_dim=17, depth=2, **DOUBLE).eval()
    source, target = torch.randint(1, 11, (2, 7)), torch.randint(1, 11, (2, 5))
    with capture_weights(model) as whole:
        model(source, target)
    memory, cache = model.encode(source), DecoderCache(2)
    with torch.no_grad(), capture_weights(model) as steps:
        for t in range(5):
            model.decode(target[:, t : t + 1], memory, source, cache=cache)
    for layer in (0, 1):
        crossed = f"decoder.layers.{layer}.cross_attention"
        assert whole[crossed][0].shape == (2, 3, 5, 7)
        assert_same(torch.cat(steps[crossed], dim=2), whole[crossed][0])
        own = f"decoder.layers.{layer}.self_attention"
        for t, row in enumerate(steps[own]):
            assert_same(row[:, :, 0], whole[own][0][:, :, t, : t + 1])
    assert sum("encoder" in name for name in whole) == 2
    assert not any("encoder" in name for name in steps)


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_a_vision_transformer_is_recorded_in_every_layer(pool):
    sizes = {"num_classes": 7, "dim": 12, "depth": 3, "heads": 2, "channels": 1}
    model = VisionTransformer((4, 6), 2, pool=pool, **sizes, **DOUBLE)
    with capture_weights(model) as weights:
        model(torch.randn(5, 1, 4, 6, **DOUBLE))
    n = 6 + (pool == "class")
    assert list(weights) == [f"encoder.layers.{i}.attention" for i in range(3)]
    for (layer,) in weights.values():
        assert_same(layer.sum(dim=-1), torch.ones(5, 2, n, **DOUBLE))
    rollout = attention_rollout(weights)
    assert_same(rollout.sum(dim=-1), torch.ones(5, n, **DOUBLE))
    assert_same(rollout, attention_rollout([layer for (layer,) in weights.values()]))


@pytest.mark.parametrize("encoding", ["gaussian", "learned", "learned+content"])
def test_attention_over_images_is_recorded(encoding):
    sizes = {"dim": 8, "depth": 2, "heads": 3, "hidden_dim": 11}
    model = ImageBert(encoding=encoding, **sizes, **DOUBLE).eval()
    x = torch.randn(5, 3, 4, 6, **DOUBLE)
    with capture_weights(model) as weights:
        logits = model(x)
    assert calls(weights) == [1, 1]
    for (layer,) in weights.values():
        assert layer.shape[-5:] == (3, 2, 3, 2, 3)
        total = layer.sum(dim=(-2, -1))
        assert_same(total, torch.ones_like(total))
    assert_same(model(x), logits)


def test_the_innermost_of_nested_layers_are_recorded():
    layer = ZeroPaddedSelfAttention(SelfAttention(12, 3, **DOUBLE), before=1, after=1)
    with capture_weights(layer) as weights:
        layer(tokens())
    assert {
        name: [x.shape for x in recorded] for name, recorded in weights.items()
    } == {"inner.attention": [(2, 3, 7, 7)]}


@pytest.mark.unhooked
def test_compiled_models_are_recorded_too():
    torch.compiler.reset()
    model, x = Encoder(12, 3, 17, 1, **DOUBLE), tokens()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    y = compiled(x)
    for recorded in (model, compiled):
        with capture_weights(recorded) as weights:  # pyright: ignore
            assert_same(compiled(x), y)
        assert calls(weights) == [1]
    assert_same(compiled(x), y)
    assert calls(weights) == [1]


# --- capture_weights of other libraries' models ------------------------------------


class Attends(nn.Module):
    """Calls PyTorch's kernel with the options it was made with."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, **self.options)


def kernel_weights(options: dict[str, Any], groups: int = 1) -> tuple[Tensor, Tensor]:
    """Give the captured weights and the kernel's: its outputs if values are one-hot."""
    query = torch.randn(2, 6, 5, 4, **DOUBLE)
    key = torch.randn(2, 6 // groups, 7, 4, **DOUBLE)
    one_hot = torch.eye(7, **DOUBLE).expand(2, 6 // groups, 7, 7)
    expected = F.scaled_dot_product_attention(query, key, one_hot, **options)
    layer = Attends(**options)
    with capture_weights(layer) as weights:
        assert torch.equal(layer(query, key, one_hot), expected)
    return weights[""][0], expected


@pytest.mark.parametrize(
    ("options", "groups"),
    [
        ({}, 1),
        ({"scale": 0.3}, 1),
        ({"is_causal": True}, 1),
        ({"enable_gqa": True}, 3),
        ({"attn_mask": torch.randn(6, 5, 7, **DOUBLE)}, 1),
        ({"attn_mask": torch.rand(2, 1, 5, 7) > 0.4}, 1),
        ({"attn_mask": torch.arange(35).view(5, 7) > 9}, 1),  # a query that is blind
        ({"attn_mask": causal_lower_right(5, 7)}, 1),
        ({"attn_mask": torch.rand(5, 7) > 0.4, "enable_gqa": True, "scale": 2.0}, 2),
    ],
)
def test_weights_of_the_fused_kernel_are_its_outputs_for_one_hot_values(
    options, groups
):
    found, expected = kernel_weights(options, groups)
    assert_same(found, expected)
    assert expected.std() > 0.01


def test_dropout_acts_on_the_output_and_not_on_the_captured_weights():
    query, key = torch.randn(2, 3, 5, 4, **DOUBLE), torch.randn(2, 3, 7, 4, **DOUBLE)
    layer = Attends(dropout_p=0.5)
    torch.manual_seed(1)
    expected = layer(query, key, key)
    torch.manual_seed(1)
    with capture_weights(layer) as weights:
        assert torch.equal(layer(query, key, key), expected)
    assert_same(weights[""][0], (query @ key.mT / 2).softmax(dim=-1))


@pytest.mark.parametrize("name", ["vit", "vit_reg", "vit_qk_norm", "vit_map"])
def test_weights_of_timm_are_those_of_its_unfused_path(name):
    options = {
        "vit": {},
        "vit_reg": {"reg_tokens": 3, "no_embed_class": True},
        "vit_qk_norm": {"qk_norm": True, "class_token": False, "global_pool": "avg"},
        "vit_map": {"class_token": False, "global_pool": "map"},
    }[name]
    sizes = {"patch_size": 2, "embed_dim": 12, "depth": 3, "num_heads": 2}
    model = timm.models.VisionTransformer((6, 10), num_classes=5, **sizes, **options)
    model = model.double().eval()
    images = torch.randn(2, 3, 6, 10, **DOUBLE)
    logits = model(images)
    layers = {n: m for n, m in model.named_modules() if hasattr(m, "fused_attn")}
    dropped: dict[str, Tensor] = {}
    for layer in layers.values():
        layer.fused_attn = False
    # Unfused, each layer hands its weights to dropout, or multiplies them at once.
    hooks = [
        layer.attn_drop.register_forward_hook(
            lambda _, inputs, output, n=n: dropped.update({n: inputs[0]})
        )
        for n, layer in layers.items()
        if hasattr(layer, "attn_drop")
    ]
    assert_same(model(images), logits)
    for hook in hooks:
        hook.remove()
    for fused in (False, True):
        for layer in layers.values():
            layer.fused_attn = fused
        with capture_weights(model) as weights:
            assert_same(model(images), logits)
        assert list(weights) == list(layers)
        assert all(layer.fused_attn is fused for layer in layers.values())
        for n, expected in dropped.items():
            assert_same(weights[n][0], expected)
    assert len(dropped) >= 3
    if name == "vit_map":
        assert weights["attn_pool"][0].shape == (2, 2, 1, 15)


def test_weights_of_torchvision_are_those_that_its_layers_return():
    model = torchvision.models.VisionTransformer(8, 2, 3, 2, 12, 17, num_classes=5)
    nn.init.normal_(model.heads.head.weight)
    model = model.double().eval()
    images = torch.randn(2, 3, 8, 8, **DOUBLE)
    inputs: dict[str, Tensor] = {}
    for n, layer in model.named_modules():
        if isinstance(layer, nn.MultiheadAttention):
            layer.register_forward_pre_hook(
                lambda _, args, n=n: inputs.__setitem__(n, args[0])
            )
    with torch.no_grad():
        logits = model(images)
        with capture_weights(model) as weights:
            assert_same(model(images), logits)
        asked = dict(inputs)
        assert list(weights) == list(asked)
        assert len(asked) == 3
        for n, x in asked.items():
            layer = model.get_submodule(n)
            _, expected = layer(x, x, x, average_attn_weights=False)
            assert_same(weights[n][0], expected)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("training", [False, True])
def test_torch_layers_that_take_shortcuts_are_recorded(training):
    layer = nn.TransformerEncoderLayer(12, 2, 17, batch_first=True, dropout=0.0)
    stack = nn.TransformerEncoder(layer, 2).double().train(training)
    x, padding = tokens(), torch.arange(5).expand(2, 5) >= torch.tensor([[4], [3]])
    with torch.no_grad():
        expected = stack(x, src_key_padding_mask=padding)
        with capture_weights(stack) as weights:
            found = stack(x, src_key_padding_mask=padding)
    # Nested tensors come back as long as the longest sample.
    found, expected = (y[~padding[:, : y.shape[1]]] for y in (found, expected))
    assert_same(found, expected)
    assert list(weights) == ["layers.0.self_attn", "layers.1.self_attn"]
    _, first = stack.layers[0].self_attn(
        x, x, x, key_padding_mask=padding, average_attn_weights=False
    )
    assert_same(weights["layers.0.self_attn"][0], first)


def test_an_unbatched_or_blind_call_of_a_torch_layer_is_recorded():
    layer, x = nn.MultiheadAttention(12, 3, **DOUBLE), torch.randn(5, 12, **DOUBLE)
    with capture_weights(layer) as weights:
        layer(x, x, x, need_weights=False)
        blind = torch.eye(5).bool() | (torch.arange(5) == 2)[:, None]
        y, _ = layer(x, x, x, attn_mask=blind, need_weights=False)
    assert y.isfinite().all()
    whole, masked = weights[""]
    assert whole.shape == (1, 3, 5, 5)
    seen = torch.ones(5, **DOUBLE).index_fill(0, torch.tensor(2), 0.0)
    assert_same(masked.sum(dim=-1), seen.expand(1, 3, 5))
    assert_same(masked.diagonal(dim1=-2, dim2=-1), torch.zeros(1, 3, 5, **DOUBLE))


SMALL = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3}
HUGGING_FACE = {
    "ViTModel": lambda: transformers.ViTConfig(
        **SMALL, image_size=(6, 10), patch_size=2, intermediate_size=17
    ),
    "BertModel": lambda: transformers.BertConfig(
        **SMALL, vocab_size=11, intermediate_size=17, max_position_embeddings=9
    ),
    "GPT2Model": lambda: transformers.GPT2Config(
        vocab_size=11, n_positions=9, n_embd=12, n_layer=2, n_head=3
    ),
    "LlamaModel": lambda: transformers.LlamaConfig(
        vocab_size=11,
        hidden_size=24,
        intermediate_size=17,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        pad_token_id=0,
    ),
}


@pytest.mark.parametrize("name", HUGGING_FACE)
@torch.no_grad()
def test_weights_of_hugging_face_are_those_that_it_returns_eagerly(name, monkeypatch):
    made = getattr(transformers, name)
    eager, fused = (
        made._from_config(HUGGING_FACE[name](), attn_implementation=path)
        for path in ("eager", "sdpa")
    )
    eager, fused = eager.double().eval(), fused.double().eval()
    for parameter in eager.parameters():
        parameter.normal_(0.0, 0.3)
    fused.load_state_dict(eager.state_dict())
    if name == "ViTModel":
        inputs = {"pixel_values": torch.randn(2, 3, 6, 10, **DOUBLE)}
    else:
        inputs = {
            "input_ids": torch.randint(1, 11, (2, 7)),
            "attention_mask": torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1] * 7]),
        }
    with monkeypatch.context() as patched:
        # Some of its eager layers round to single precision in the softmax.
        softmax = F.softmax
        patched.setattr(F, "softmax", lambda x, dim, dtype=None: softmax(x, dim))
        expected = eager(**inputs, output_attentions=True).attentions
    plain = fused(**inputs).last_hidden_state
    with capture_weights(fused) as weights:
        assert torch.equal(fused(**inputs).last_hidden_state, plain)
    assert len(weights) == len(expected) == 2
    real = inputs.get("attention_mask", torch.ones(2, expected[0].shape[2])).bool()
    for (found,), wanted in zip(weights.values(), expected, strict=True):
        # What padding itself attends to is nobody's business.
        assert_same(found.transpose(1, 2)[real], wanted.transpose(1, 2)[real])
        assert wanted.std() > 0.01


@torch.no_grad()
def test_weights_of_grouped_heads_while_decoding_have_an_axis_of_heads():
    config = HUGGING_FACE["LlamaModel"]()
    model = transformers.LlamaModel._from_config(config, attn_implementation="sdpa")
    model = model.double().eval()
    ids, mask = torch.randint(1, 11, (2, 5)), torch.ones(2, 5, dtype=torch.long)
    mask[0, 0] = 0
    with capture_weights(model) as whole:
        model(ids, attention_mask=mask)
    past = model(ids[:, :4], attention_mask=mask[:, :4]).past_key_values
    with capture_weights(model) as step:
        model(ids[:, 4:], attention_mask=mask, past_key_values=past)
    for name, (found,) in step.items():
        assert found.shape == (2, 6, 1, 5)
        assert_same(found, whole[name][0][:, :, 4:])


def test_captures_of_other_models_can_be_nested_and_leave_no_trace():
    model = nn.Sequential(Attending(), Attending())
    x = tokens()
    with capture_weights(model) as outer:
        with capture_weights(model[1]) as inner:
            model(x)
        with pytest.raises(AssertionError):
            model(x[..., :7])
        model(x)
    F.scaled_dot_product_attention(x, x, x)
    assert {name: len(calls) for name, calls in outer.items()} == {
        "0.inner": 2,
        "1.inner": 2,
    }
    assert list(inner) == ["inner"]
    assert torch.equal(inner["inner"][0], outer["1.inner"][0])
    assert hooks(model) == 0


class Attending(nn.Module):
    """Holds torch's layer, as other people's models do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(12, 3, batch_first=True, **DOUBLE)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x, x, x, need_weights=False)[0]


class OwnSoftmax(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x @ x.mT).softmax(dim=-1) @ x


def test_attention_that_cannot_be_captured_is_refused_by_name():
    model = OwnSoftmax()
    wanted = "OwnSoftmax ran no attention that could be captured"
    with pytest.raises(ValueError, match=wanted), capture_weights(model):
        model(tokens())
    assert hooks(model) == 0
    for run in (lambda: None, lambda: model.forward(tokens())):
        wanted = "nothing was captured: no layer of OwnSoftmax was called"
        with (
            pytest.warns(UserWarning, match=wanted) as warned,
            capture_weights(model) as weights,
        ):
            run()
        assert weights == {}
        assert [Path(one.filename) for one in warned] == [Path(__file__)]


class OwnAttention(OwnSoftmax):
    pass


def test_attention_that_is_missed_beside_some_that_is_captured_is_named():
    x = tokens()
    parts = [Attending(), *(OwnAttention() for _ in range(5))]
    model = nn.Sequential(*parts)
    missed = "none from 2 .OwnAttention., 3 .OwnAttention., 4 .OwnAttention. and 1 more"
    with (
        pytest.warns(UserWarning, match=missed) as warned,
        capture_weights(model) as weights,
    ):
        nn.Sequential(model[0], model[2:])(x)  # model[1] does not run.
    assert list(weights) == ["0.inner"]
    assert [Path(one.filename) for one in warned] == [Path(__file__)]
    # What holds recorded attention, or is part of it, is not missed.
    holder = OwnAttention()
    holder.inner = Attending()
    holder.forward = holder.inner.forward
    layer = Attends()
    layer.bias = OwnAttention()
    with capture_weights(nn.ModuleList([holder, layer])) as weights:
        holder(x)
        layer(x, x, layer.bias(x))
    assert list(weights) == ["0.inner.inner", "1"]


@pytest.mark.parametrize(
    ("name", "captured", "missed"),
    [
        ("cait_xxs24_224", 2, "none from blocks.0.attn .TalkingHeadAttn., blocks.1"),
        ("deit_tiny_patch16_224", 3, None),
        ("beit_base_patch16_224", 3, None),
        ("eva02_tiny_patch14_224", 3, None),
    ],
)
@torch.no_grad()
def test_only_models_of_timm_that_are_captured_in_part_warn(name, captured, missed):
    sizes = {"img_size": 28, "patch_size": 14, "embed_dim": 24, "depth": 3}
    model = timm.create_model(name, num_heads=2, **sizes).eval()
    warns = pytest.warns(UserWarning, match=missed) if missed else nullcontext()
    with warns, capture_weights(model) as weights:
        model(torch.rand(2, 3, 28, 28))
    assert calls(weights) == [1] * captured


@pytest.mark.parametrize("package", ["abcnet", "typing_more.layers", "builtins2"])
def test_packages_are_known_by_their_whole_names(package):
    parts = {"__module__": package, "forward": lambda _, x: SDPA(x, x, x)}
    made: Any = type("Layer", (nn.Module,), parts)
    model, x = nn.Sequential(made(), made()), tokens()
    with capture_weights(model) as weights:
        model(x)
    assert (list(weights), calls(weights)) == (["0", "1"], [1, 1])


class Encodes(nn.Module):
    """Attends in a method that is not `forward`, and holds another that does."""

    def __init__(self, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.inner = inner

    def encode(self, x: Tensor) -> Tensor:
        if isinstance(self.inner, Encodes):
            x = self.inner.encode(x)
        return SDPA(x, x, x)


def test_attention_in_other_methods_is_recorded():
    model, x = Encodes(Encodes()), tokens()
    with capture_weights(model) as weights:
        y = model.encode(x)
        SDPA(y, y, y)  # Not the model's.
    assert (list(weights), calls(weights)) == (["inner", ""], [1, 1])
    assert_same(weights["inner"][0] @ x, SDPA(x, x, x))
    assert_same(model.encode(x), y)
    ours = Transformer(11, dim=12, heads=3, hidden_dim=17, depth=2, **DOUBLE)
    with capture_weights(ours) as weights:
        ours.encode(torch.randint(1, 11, (2, 7)))
    assert calls(weights) == [1, 1]


# --- attention_rollout -------------------------------------------------------------


def test_rollout_matches_a_hand_computation():
    """Two tokens, two heads, two layers, in fractions on paper."""
    one = torch.tensor([[[1.0, 0.0], [1.0, 0.0]], [[0.0, 1.0], [1.0, 0.0]]], **DOUBLE)
    two = torch.tensor([[[0.5, 0.5], [0.0, 1.0]], [[0.5, 0.5], [1.0, 0.0]]], **DOUBLE)
    # Means over heads: [[1/2, 1/2], [1, 0]] and [[1/2, 1/2], [1/2, 1/2]]; half of
    # that and half of the identity: [[3/4, 1/4], [1/2, 1/2]], [[3/4, 1/4], [1/4, 3/4]].
    expected = torch.tensor([[11 / 16, 5 / 16], [9 / 16, 7 / 16]], **DOUBLE)
    assert_same(attention_rollout([one[None], two[None]])[0], expected)


def test_rollout_adds_the_identity_and_renormalizes_rows():
    layers = [torch.rand(2, heads, 5, 5, **DOUBLE) for heads in (3, 4, 3)]
    expected = torch.eye(5, **DOUBLE).expand(2, 5, 5).clone()
    for layer in layers:
        step = torch.zeros(2, 5, 5, **DOUBLE)
        for b, q in itertools.product(range(2), range(5)):
            row = layer[b, :, q].mean(dim=0)
            row[q] += 1.0
            step[b, q] = row / row.sum()
        expected = torch.bmm(step, expected)
    assert_same(attention_rollout(layers), expected)


def test_rollout_of_layers_that_see_nothing_is_the_identity():
    blind = torch.zeros(2, 3, 5, 5, **DOUBLE)
    expected = torch.eye(5, **DOUBLE).expand(2, 5, 5)
    assert_same(attention_rollout([blind, blind]), expected)


def test_rollout_does_not_see_what_values_carry():
    """Without values an image cannot reach the class token; rollout still has a map."""
    sizes = {"num_classes": 7, "dim": 12, "depth": 2, "heads": 2, "channels": 1}
    model, x = VisionTransformer(6, 2, **sizes, **DOUBLE), torch.randn(2, 1, 6, 6)
    before = model(x.double())
    with capture_weights(model) as weights:
        model(x.double())
    assert (before[0] - before[1]).abs().max() > 1e-3
    for layer in model.encoder.layers:
        nn.init.zeros_(layer.attention.value_proj.weight)
        nn.init.zeros_(layer.attention.value_proj.bias)
    with capture_weights(model) as without:
        after = model(x.double())
    assert_same(after[0], after[1])
    first = "encoder.layers.0.attention"
    assert_same(without[first][0], weights[first][0])
    rollout = attention_rollout(without)[:, 0, 1:]
    assert (rollout[0] - rollout[1]).abs().max() > 1e-4
    assert rollout.min() > 0


# --- attention_distance ------------------------------------------------------------


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 5), st.integers(1, 5))
@settings(max_examples=20, deadline=None)
@pytest.mark.question("quiz-2.8")
def test_distances_match_a_sum_over_all_pairs(rows, columns, height, width):
    centers = list(itertools.product(range(rows), range(columns)))
    away = [
        [math.hypot((i - r) * height, (j - s) * width) for r, s in centers]
        for i, j in centers
    ]
    n, options = (
        rows * columns,
        {"grid": (rows, columns), "patch_size": (height, width)},
    )
    weights = torch.rand(2, 3, 1 + n, 1 + n, **DOUBLE) + 0.01
    found = attention_distance(weights, **options)
    assert found.shape == (2, 3)
    for b, h in itertools.product(range(2), range(3)):
        inner = weights[b, h, 1:, 1:].tolist()
        of_queries = [
            sum(w * d for w, d in zip(*pair, strict=True)) / sum(pair[0])
            for pair in zip(inner, away, strict=True)
        ]
        assert found[b, h].item() == pytest.approx(sum(of_queries) / n, abs=1e-10)
    # Uniform attention reaches the mean distance of two patches.
    uniform = torch.full((n, n), 1 / n, **DOUBLE)
    reach = attention_distance(uniform, **options, class_token=False)
    assert reach.item() == pytest.approx(sum(map(sum, away)) / n**2, abs=1e-10)


@pytest.mark.question("quiz-2.8")
def test_a_head_that_attends_nearby_has_a_small_attention_distance():
    centers = torch.cartesian_prod(torch.arange(5.0), torch.arange(7.0)).double()
    away = torch.cdist(centers, centers)
    spreads = [
        attention_distance((-(away**2) / s).softmax(-1), (5, 7), class_token=False)
        for s in (0.1, 1.0, 10.0, 1e9)
    ]
    itself, near, far, everywhere = (spread.item() for spread in spreads)
    assert itself < 0.01 < near < far < everywhere
    assert everywhere == pytest.approx(away.mean().item())


def attending_to(targets: list[list[int]]) -> VisionTransformer:
    """Build a model whose patch i attends to patch targets[l][i] in layer l.

    The images are not read: tokens are their positions, one-hot, and every layer
    passes them on unchanged. Layer norm makes of a one-hot vector another one, scaled
    and shifted.
    """
    n = len(targets[0])
    side = math.isqrt(n)
    sizes = {"dim": n, "heads": 1, "depth": len(targets), "channels": 1, "pool": "mean"}
    model = VisionTransformer(4 * side, 4, num_classes=2, **sizes, **DOUBLE)
    with torch.no_grad():
        for parameter in model.encoder.parameters():
            parameter.zero_()
        for parameter in model.patch_embedding.parameters():
            parameter.zero_()
        model.positions.weight.copy_(torch.eye(n, **DOUBLE).view(side, side, n))
        for layer, wanted in zip(model.encoder.layers, targets, strict=True):
            layer.attention_norm.weight.fill_(1.0)
            # Row k of the query's matrix collects the patches that look for patch k.
            moved = F.one_hot(torch.tensor(wanted), n).T.double()
            layer.attention.query_proj.weight.copy_(100.0 * moved)
            layer.attention.key_proj.weight.copy_(torch.eye(n, **DOUBLE))
    return model


def distances_of(model: VisionTransformer) -> Tensor:
    side = 4 * model.grid[0]
    with torch.no_grad(), capture_weights(model) as weights:
        model(torch.randn(1, 1, side, side, **DOUBLE))
    layers = torch.cat([torch.stack(recorded) for recorded in weights.values()])
    found = attention_distance(layers, model.grid, patch_size=4, class_token=False)
    return found[:, 0, 0]


def grid_distances(side: int) -> Tensor:
    centers = torch.cartesian_prod(torch.arange(side), torch.arange(side)).double()
    return 4 * torch.cdist(centers, centers)


@pytest.mark.question("quiz-2.8")
def test_attention_distance_is_set_by_the_weights_not_by_the_depth():
    """The first layer can attend across the whole image, and the last nearby."""
    away = grid_distances(5)
    farthest, itself = away.argmax(dim=1).tolist(), list(range(25))
    far, near = distances_of(attending_to([farthest, itself]))
    assert far.item() == pytest.approx(away.amax(dim=1).mean().item())
    assert near.item() == pytest.approx(0.0, abs=1e-9)
    near, far = distances_of(attending_to([itself, farthest]))
    assert near.item() < 1e-9 < 16.0 < far.item()


@pytest.mark.question("quiz-2.8")
def test_attention_distance_can_exceed_the_width_but_not_the_diagonal():
    away = grid_distances(14)
    farthest = distances_of(attending_to([away.argmax(dim=1).tolist()]))[0].item()
    assert farthest == pytest.approx(away.amax(dim=1).mean().item())
    assert 4 * 14 < farthest < math.sqrt(2) * 4 * 13
    weights = torch.rand(20, 196, 196, **DOUBLE).pow(30).softmax(dim=-1)
    reached = attention_distance(weights, (14, 14), patch_size=4, class_token=False)
    assert reached.max() <= farthest


def test_what_the_class_token_takes_does_not_shorten_the_distance():
    patches = torch.rand(6, 6, **DOUBLE).softmax(dim=-1)
    whole = attention_distance(patches, (2, 3), class_token=False)
    weights = torch.rand(7, 7, **DOUBLE).softmax(dim=-1)
    weights[1:, 1:] = 0.25 * patches
    weights[1:, 0] = 0.75
    assert_same(attention_distance(weights, (2, 3)), whole)


def test_patches_that_attend_to_no_patch_do_not_count():
    weights = torch.zeros(3, 3, **DOUBLE)
    weights[:, 0] = 1.0
    assert attention_distance(weights, (1, 2)).item() == 0.0
    weights[1] = torch.tensor([0.0, 0.0, 1.0])
    assert attention_distance(weights, (1, 2), patch_size=16).item() == 16.0


def test_distances_in_half_precision_are_accurate():
    weights = torch.rand(197, 197).softmax(dim=-1).half()
    expected = attention_distance(weights.double(), (14, 14), patch_size=16)
    found = attention_distance(weights, (14, 14), patch_size=16)
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)


# --- position_similarity -----------------------------------------------------------


@pytest.mark.question("quiz-2.7")
def test_similarity_is_the_cosine_of_two_embeddings():
    embeddings = torch.randn(2, 3, 5, **DOUBLE).requires_grad_()
    similarity = position_similarity(embeddings)
    assert similarity.shape == (2, 3, 2, 3)
    assert not similarity.requires_grad
    for i, j, r, s in itertools.product(range(2), range(3), range(2), range(3)):
        a, b = embeddings[i, j], embeddings[r, s]
        expected = (a @ b / (a.norm() * b.norm())).item()
        assert similarity[i, j, r, s].item() == pytest.approx(expected, abs=1e-12)
    assert not position_similarity(torch.zeros(2, 3, 5)).any()


@pytest.mark.question("quiz-2.7")
def test_similarity_of_positions_is_that_of_no_image():
    """Digits differ in the likeness of their patches, and share that of positions."""
    digits = torch.tensor(load_digits().images, **DOUBLE)[:10, None]
    sizes = {"num_classes": 10, "dim": 16, "depth": 1, "heads": 2, "channels": 1}
    model = VisionTransformer(8, 2, pool="mean", **sizes, **DOUBLE)
    nn.init.normal_(model.positions.weight)
    patches = model.patch_embedding(digits)
    added = model.embed(digits).unflatten(1, (4, 4)) - patches
    of_positions = torch.stack([position_similarity(table) for table in added])
    of_patches = torch.stack([position_similarity(grid) for grid in patches])
    table = position_similarity(model.positions.embeddings())
    assert_same(of_positions, table.expand_as(of_positions))
    assert of_patches.std(dim=0).mean() > 0.05


@pytest.mark.question("quiz-2.7")
def test_axial_embeddings_show_a_cross():
    """Cells of one row or one column are alike; others are not, without structure."""
    aware = AxialPositions2D((4, 5), 10, **DOUBLE)
    with torch.no_grad():
        aware.rows.weight.copy_(torch.eye(4, 5)[:, None])
        aware.columns.weight.copy_(torch.eye(5)[None])
    cross = torch.zeros(4, 5, **DOUBLE)
    cross[2, :] = cross[:, 3] = 0.5
    cross[2, 3] = 1.0
    assert_same(position_similarity(aware.embeddings())[2, 3], cross)


# --- patch_filters -----------------------------------------------------------------


def test_filters_are_the_principal_components():
    embedding = PatchEmbedding((5, 3), channels=2, dim=40, **DOUBLE)
    filters = patch_filters(embedding, 7)
    assert filters.shape == (7, 2, 5, 3)
    pca = PCA(7, svd_solver="full").fit(embedding.proj.weight.detach().numpy())
    expected = torch.from_numpy(pca.components_)
    flat = filters.flatten(1)
    signs = (flat * expected).sum(dim=-1, keepdim=True).sign()
    torch.testing.assert_close(flat, signs * expected, rtol=0.0, atol=1e-8)


def test_filters_are_images_of_length_one_with_a_settled_sign():
    embedding = PatchEmbedding(4, channels=3, dim=11, **DOUBLE)
    target = torch.zeros(3, 4, 4, **DOUBLE)
    target[1, 0, 2], target[2, 3, 1] = -3.0, 4.0
    for sign in (1.0, -1.0):
        nn.init.zeros_(embedding.proj.weight)
        with torch.no_grad():
            embedding.proj.weight[:5] = sign * target.flatten()
        assert_same(patch_filters(embedding, 1)[0], target / 5.0)


# --- show --------------------------------------------------------------------------


def softmaxed(*shape: int) -> Tensor:
    return (3 * torch.randn(*shape, **DOUBLE)).softmax(dim=-1)


def embedded(page: str) -> tuple[dict[str, Any], list[Tensor]]:
    """Read the data of a page and the weights of each layer, as the page does."""
    found = re.search(r'<script type="application/json" id="data">(.*?)<', page, re.S)
    assert found
    data = json.loads(found[1])
    q = len(data["queries"]["labels"])
    k = len((data["keys"] or data["queries"])["labels"])
    layers = []
    for i, layer in enumerate(data["layers"]):
        found = re.search(rf'id="layer-{i}">(.*?)<', page, re.S)
        assert found
        stored, count = base64.b64decode(found[1]), len(layer["maps"]) * q
        peaks = np.frombuffer(stored, "<f4", count).astype(float)
        codes = np.frombuffer(stored, f"<u{data['bits'] // 8}", offset=4 * count)
        top = 2 ** data["bits"] - 1
        weights = peaks[:, None] * codes.reshape(count, k) / top
        layers.append(torch.from_numpy(weights.reshape(-1, q, k)))
    return data, layers


def cells(svg: str) -> list[float]:
    tree = ElementTree.fromstring(svg)
    rects = tree.iter("{http://www.w3.org/2000/svg}rect")
    return [float(rect.attrib["data-weight"]) for rect in rects]


@pytest.mark.parametrize("bits", [8, 16])
def test_a_page_holds_the_weights_the_mean_and_the_rollout(bits):
    weights = [softmaxed(2, heads, 7, 7) for heads in (3, 5)]
    weights[1][:, :, 2] = 0.0
    view = show(weights, torch.rand(2, 1, 4, 6), sample=1, bits=bits)
    data, layers = embedded(view.html())
    assert data["queries"]["grid"] == [2, 3]
    assert data["queries"]["lead"] == 1
    assert data["bits"] == view.bits == bits
    for i, (found, layer) in enumerate(zip(layers, weights, strict=True)):
        rollout = attention_rollout(weights[: i + 1])[1:]
        mean = layer[1:].mean(dim=1)
        expected = torch.cat([mean, rollout, layer[1]])
        names = [one["name"] for one in data["layers"][i]["maps"]]
        assert names == [
            "mean",
            "rollout",
            *(f"head {h}" for h in range(len(layer[1]))),
        ]
        steps = 2 * (2**bits - 1)
        limit = expected.amax(dim=-1, keepdim=True) / steps + 1e-7
        assert ((found - expected).abs() <= limit).all()
        distances = attention_distance(expected, (2, 3), patch_size=2)
        shown = [one["distance"] for one in data["layers"][i]["maps"]]
        assert shown == [f"{x:.1f}" for x in distances.tolist()]


def test_weights_of_many_kinds_of_models_are_shown():
    image = torch.rand(3, 8, 12)
    for lead, options in ((0, {}), (1, {}), (5, {}), (3, {"class_token": False})):
        view = show([softmaxed(1, 2, 6 + lead, 6 + lead)], image, **options)
        data, _ = embedded(view.html())
        names = ["class token"] * ("class_token" not in options and lead > 0)
        names += [f"register {i}" for i in range(lead - len(names))]
        assert data["queries"]["labels"][:lead] == names
        assert data["queries"]["labels"][lead:][4] == "row 1, column 1"
        assert data["query"] == (0 if lead else 4)
    # Patches that are not square; and attention that pools patches into one token.
    data, _ = embedded(show([softmaxed(1, 2, 7, 7)], image, grid=(1, 6)).html())
    assert data["queries"]["lead"] == 1
    data, _ = embedded(show([softmaxed(1, 2, 1, 6)], ["pool"], image).html())
    assert (data["queries"]["labels"], data["keys"]["grid"]) == (["pool"], [2, 3])
    # Attention over the grid itself has two axes for each token, with a batch or not.
    for shape in ((3, 2, 3, 2, 3), (4, 3, 2, 3, 2, 3)):
        weights = softmaxed(*shape)
        _, (layer,) = embedded(show([weights], image[0], sample=-1).html())
        last = weights[-1] if len(shape) == 6 else weights
        assert (layer[4] - last[2].reshape(6, 6)).abs().max() < 1e-5


@torch.no_grad()
def test_weights_within_windows_are_not_drawn_over_the_whole_image():
    sizes = {"img_size": 56, "embed_dim": 12, "depths": (2, 2), "num_heads": (1, 2)}
    model = timm.create_model("swin_tiny_patch4_window7_224", **sizes).eval()
    images = torch.rand(2, 3, 56, 56)
    with capture_weights(model) as weights:
        model(images)
    counts = [len(layer) for (layer,) in weights.values()]
    assert counts == [8, 8, 2, 2]
    windowed = "layers.0.blocks.0.attn must have batch size 2, as inputs, got 8"
    for layers in (None, "layers.0", "layers.1"):
        with pytest.raises(ValueError, match=windowed):
            show(weights, images, sample=1, layers=layers)
    other = "layers.1.blocks.0.attn must have batch size 8, as weights of layers.0.bl"
    with pytest.raises(ValueError, match=other):
        show(weights, images[0])
    with pytest.raises(ValueError, match=r"\(8, heads, 49, 49\), got shape \(2, 2"):
        attention_rollout(weights)
    # At the end, one window is the whole image.
    last = {name: x for name, x in weights.items() if "layers.1" in name}
    view = show(last, images, sample=1)
    assert repr(view) == "AttentionView(2 layers, 49 queries, 49 keys)"
    # Layers of other lengths, such as those for a text, may have other batches.
    both = {**last, "text": [softmaxed(3, 1, 5, 5)]}
    assert repr(show(both, images, layers="layers")) == repr(view)


def test_layers_and_heads_are_chosen_by_name_or_index():
    weights = {f"{part}.{i}": [softmaxed(1, 3, 5, 5)] for part in "ab" for i in (0, 1)}
    words = ["one", "two", "three", "four", "<five>"]
    whole = attention_rollout(weights)[0]
    for layers, names in (
        ("b.", ["b.0", "b.1"]),
        (["b.1", "a.0"], ["b.1", "a.0"]),
        ([-1, 0], ["b.1", "a.0"]),
    ):
        view = show(weights, words, layers=layers, heads=[2])
        data, found = embedded(view.html())
        assert [layer["name"] for layer in data["layers"]] == names
        assert [one["name"] for one in data["layers"][0]["maps"]][2:] == ["head 2"]
        assert data["layers"][0]["maps"][0]["distance"] is None
        at = names.index("b.1")
        (layer,) = weights["b.1"]
        assert (found[at][0] - layer[0].mean(dim=0)).abs().max() < 1e-5
        assert (found[at][1] - whole).abs().max() < 1e-5
        assert (found[at][2] - layer[0, 2]).abs().max() < 1e-5


def test_a_drawing_holds_the_exact_weights():
    weights = [softmaxed(2, 3, 7, 7), softmaxed(2, 3, 7, 7)]
    view = show(weights, torch.rand(1, 4, 6))
    for query, head in ((0, 2), (5, 0)):
        drawn = cells(view.svg(layer=0, head=head, query=query))
        assert drawn == pytest.approx(weights[0][0, head, query].tolist(), rel=1e-5)
    drawn = cells(view.svg(head="rollout"))
    assert drawn == pytest.approx(attention_rollout(weights)[0, 0].tolist(), rel=1e-5)
    crossed = softmaxed(1, 2, 3, 5)
    view = show([crossed], ["<a>", "&", '"'], list("vwxyz"))
    expected = crossed[0, 1].flatten().tolist()
    assert cells(view.svg(head=1)) == pytest.approx(expected, rel=1e-5)
    assert "&lt;a&gt;" in view.svg()


@pytest.mark.parametrize("channels", [1, 3])
def test_the_image_in_the_page_is_the_given_one(channels):
    pixels = torch.randint(0, 256, (channels, 4, 6), dtype=torch.uint8)
    scaled = pixels.double() / 255
    low, high = scaled.min(), scaled.max()
    stretched = (255 * (scaled - low) / (high - low)).round()
    for image, expected in (
        (pixels, pixels),
        (scaled, pixels),
        (7 * scaled - 3, stretched),
    ):
        data, _ = embedded(show([softmaxed(1, 2, 6, 6)], image).html())
        png = base64.b64decode(data["queries"]["image"].partition(",")[2])
        found = torch.from_numpy(np.array(Image.open(io.BytesIO(png)))).view(4, 6, -1)
        assert torch.equal(rearrange(found, "h w c -> c h w"), expected.byte())


def test_a_page_is_one_file_written_whole_or_not_at_all(tmp_path, monkeypatch):
    view = show([softmaxed(1, 2, 3, 3)], ["a", "b", "</script>"], title="<i>&")
    path = view.save(tmp_path / "new" / "view.html")
    page = path.read_text("utf-8")
    assert "<title>&lt;i&gt;&amp;</title>" in page
    assert page.count("</script>") == page.count("<script")
    assert not re.search(r'(?:src|href)="(?!data:|\$\{)|url\(["\']?http|@import', page)
    framed = view._repr_html_()
    assert html.unescape(framed.split('"')[1]) == page
    assert repr(view) == "AttentionView(1 layers, 3 queries, 3 keys)"
    monkeypatch.setattr(Path, "replace", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        view.save(path)
    assert [one.name for one in path.parent.iterdir()] == ["view.html"]
    assert path.read_text("utf-8") == page


# --- malformed calls ---------------------------------------------------------------


capture: Any = capture_weights
filters: Any = patch_filters
shown: Any = show
EVEN = torch.full((2, 3, 5, 5), 0.2)
GRAY = torch.rand(1, 4, 4)


def rollout(*shapes: tuple[int, ...]) -> Tensor:
    return attention_rollout([torch.zeros(shape) for shape in shapes])


def distance(n: int, grid: Any = (2, 3), **options: Any) -> Tensor:
    return attention_distance(torch.zeros(n, n), grid, **options)


@pytest.mark.unhooked
@bad_calls(
    ("text", lambda: capture("m").__enter__(), TypeError, "of type Module, got str"),
    ("no layers", lambda: rollout(), ValueError, "for each layer, got none"),
    ("one head", lambda: rollout((3, 5, 5)), ValueError, "(3, heads, 5, 5), got shape"),
    ("oblong", lambda: rollout((2, 3, 5, 7)), ValueError, "got shape (2, 3, 5, 7)"),
    ("class token", lambda: distance(6), ValueError, "(..., 7, 7), got shape (6, 6)"),
    ("grid", lambda: distance(7, (2, 3, 1)), ValueError, "grid must be one integer or"),
    ("no rows", lambda: distance(7, (0, 3)), ValueError, "grid height must be … got 0"),
    ("patch", lambda: distance(7, patch_size=0), ValueError, "patch_size height must"),
    ("linear", lambda: filters(nn.Linear(3, 4), 2), TypeError, "PatchEmbedding, got L"),
    (
        "nothing to record",
        lambda: capture(nn.Linear(2, 2)).__enter__(),
        ValueError,
        "layer that can return its weights, got Linear without one",
    ),
    (
        "layers of other sizes",
        lambda: rollout((2, 3, 5, 5), (2, 3, 7, 7)),
        ValueError,
        "(2, heads, 5, 5), got shape (2, 3, 7, 7)",
    ),
    (
        "windows",
        lambda: rollout((8, 1, 9, 9), (2, 1, 9, 9)),
        ValueError,
        "(8, heads, 9, 9), got shape (2, 1, 9, 9)",
    ),
    (
        "batches of images",
        lambda: shown([EVEN[:, :, :4]], GRAY[None], torch.rand(2, 1, 5, 5)),
        ValueError,
        "context must have batch size 1, as inputs, got 2",
    ),
    (
        "batches of layers",
        lambda: shown([EVEN, EVEN[:1]], GRAY),
        ValueError,
        "weights of layer 1 must have batch size 2, as weights of layer 0, got 1",
    ),
    ("no maps", lambda: shown([], GRAY), ValueError, "for each layer, got none"),
    ("a tensor", lambda: shown(EVEN, GRAY), TypeError, "recorded, or a … got torch.fl"),
    ("bytes", lambda: shown([EVEN.byte()], GRAY), TypeError, "layer 0 must be a fl"),
    ("sample", lambda: shown([EVEN], GRAY, sample=2), ValueError, "from 0 to 1, got 2"),
    ("head", lambda: shown([EVEN], GRAY, heads=[3]), ValueError, "from 0 to 2, got 3"),
    ("words", lambda: shown([EVEN], ["a"] * 4), ValueError, "each of 5, got 4"),
    ("a word", lambda: shown([EVEN], "abcde"), TypeError, "list of tokens … got str"),
    ("negative", lambda: shown([-EVEN], GRAY), ValueError, "zero or greater, got -0.2"),
    ("nan", lambda: shown([EVEN / 0 * 0], GRAY), ValueError, "must be finite and zero"),
    ("layer", lambda: shown([EVEN], GRAY, layers="x"), ValueError, "some of ['layer 0"),
    ("name", lambda: shown([EVEN], GRAY, layers=["x"]), ValueError, "among … got 'x'"),
    ("bits", lambda: shown([EVEN], GRAY, bits=4), ValueError, "(8, 16, None), got 4"),
    ("five axes", lambda: shown([EVEN[0, 0]], GRAY), ValueError, "(b, heads, q, k), g"),
    ("channels", lambda: shown([EVEN], EVEN[0, :2]), ValueError, "three channels, got"),
    (
        "patches",
        lambda: shown([EVEN], torch.rand(3, 7)),
        ValueError,
        "grid must be giv",
    ),
    (
        "grid 9",
        lambda: shown([EVEN], GRAY, grid=(3, 3)),
        ValueError,
        "tokens, 5, got 3",
    ),
    ("keyword", lambda: shown([EVEN], GRAY, layer=1), TypeError, "mean 'layers'"),
    (
        "no context",
        lambda: shown([EVEN[:, :, :2]], ["a", "b"]),
        ValueError,
        "square unless context is given, got 2 queries and 5 keys",
    ),
    (
        "unlike layers",
        lambda: shown({"a": [EVEN], "b": [EVEN[:, :, :2]]}, GRAY),
        ValueError,
        "weights of b must be (b, heads, 5, 5), as those of a, got shape (2, 3, 2, 5)",
    ),
    (
        "too large",
        lambda: shown([torch.full((1, 7, 999, 999), 0.5)] * 4, ["a"] * 999),
        ValueError,
        "at most 32 MB in the page, got 48 MB; layers, heads and bits=8 make them",
    ),
    (
        "drawn head",
        lambda: shown([EVEN], GRAY).svg(head=3),
        ValueError,
        "head must be one of ('mean', 'rollout', 'head 0', … got 3",
    ),
    (
        "drawn query",
        lambda: shown([EVEN], GRAY).svg(query=5),
        ValueError,
        "query must be from 0 to 4, got 5",
    ),
    (
        "integers",
        lambda: attention_rollout([torch.zeros(2, 3, 5, 5).int()]),
        TypeError,
        "floating-point tensor, got torch.int32",
    ),
    (
        "two calls",
        lambda: attention_rollout({"0": [torch.zeros(1, 2, 3, 3)] * 2}),
        ValueError,
        "weights must hold one call of each layer, got 2 of 0",
    ),
    (
        "more components than filters",
        lambda: filters(PatchEmbedding(2, 3, 8), 8),
        ValueError,
        "8 filters of 12 numbers have 7 principal components, got a count of 8",
    ),
    (
        "more components than pixels",
        lambda: filters(PatchEmbedding(2, 1, 8), 5),
        ValueError,
        "8 filters of 4 numbers have 4 principal components, got a count of 5",
    ),
    (
        "no components",
        lambda: filters(PatchEmbedding(2, 3, 8), 0),
        ValueError,
        "count must be a positive integer, got 0",
    ),
)
def test_malformed_calls_get_clear_errors(call, error, message):
    assert_refused(call, error, message)
