"""PyTorch's own attention and Transformer modules: conversion in both directions."""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial, reduce
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from transformers_hw._engine.arguments import check_choice
from transformers_hw._engine.shapes import checked
from transformers_hw.multi_head_attention import MultiHeadAttention
from transformers_hw.pretrained.conversion import (
    Conversion,
    eps_of,
    join,
    name_of_activation,
    shared,
    with_parameters,
)
from transformers_hw.pretrained.saving import check_described
from transformers_hw.pretrained.verification import Draw, verify
from transformers_hw.pretrained.weights import WeightsError, read_weights
from transformers_hw.transformer.layers import DecoderLayer, EncoderLayer
from transformers_hw.transformer.parts import ACTIVATIONS, LayerNorm
from transformers_hw.transformer.stacks import Decoder, Encoder

Layer = EncoderLayer | DecoderLayer
Ours = MultiHeadAttention | Layer | Encoder | Decoder
# Our modules, by PyTorch's.
KINDS: dict[type[nn.Module], type[Ours]] = {
    nn.MultiheadAttention: MultiHeadAttention,
    nn.TransformerEncoderLayer: EncoderLayer,
    nn.TransformerDecoderLayer: DecoderLayer,
    nn.TransformerEncoder: Encoder,
    nn.TransformerDecoder: Decoder,
}
# What the settings of a layer must be among, for PyTorch to have them.
CHOICES: dict[str, tuple[Any, ...]] = {
    "normalization": ("layer",),
    "activation": tuple(ACTIVATIONS),
    "layer_scale": (None,),
    "drop_path": (0.0,),
}

# PyTorch's names of the attentions of a layer, and of its other parts, by ours.
ATTENTIONS = {
    "attention": "self_attn.",
    "self_attention": "self_attn.",
    "cross_attention": "multihead_attn.",
}
PARTS = {
    EncoderLayer: {"attention_norm": "norm1.", "feed_forward_norm": "norm2."},
    DecoderLayer: {
        "self_attention_norm": "norm1.",
        "cross_attention_norm": "norm2.",
        "feed_forward_norm": "norm3.",
    },
}
NETWORK = {
    "feed_forward.hidden_proj": "linear1.",
    "feed_forward.output_proj": "linear2.",
}


@checked
def from_torch(module: nn.Module) -> Any:
    """Convert a module of `torch.nn` into the book's, with a copy of its weights.

    Heads, sizes, where the norms stand, activation, epsilon and dropout are read from
    the module. Whatever its `batch_first`, the converted module takes the batch first.
    Its masks have the book's meaning, `True` for "may see", and a decoder is causal
    unless told otherwise. Both modules are compared before the converted one is
    returned: they get two short random sequences, one of them padded.

    Args:
        module: A `MultiheadAttention`, `TransformerEncoderLayer`,
            `TransformerDecoderLayer`, `TransformerEncoder`, `TransformerDecoder` or
            `Transformer`.

    Returns:
        A `MultiHeadAttention`, `EncoderLayer`, `DecoderLayer`, `Encoder` or `Decoder`
        with the same outputs, in evaluation mode. PyTorch's `Transformer` has neither
        embeddings nor an output projection, so it becomes an encoder and a decoder:
        `decoder(target, encoder(source))`.

    Raises:
        TypeError: If `module` is not one of these.
        WeightsError: If it has a setting that the book's modules do not have, or
            computes something else than the converted module would.

    Examples:
        >>> from_torch(nn.MultiheadAttention(12, 3)).heads
        3
    """
    module = getattr(module, "_orig_mod", module)
    if isinstance(module, nn.Transformer):
        for name, stack in (
            ("encoder", nn.TransformerEncoder),
            ("decoder", nn.TransformerDecoder),
        ):
            part = getattr(module, name)
            if not isinstance(getattr(part, "_orig_mod", part), stack):
                raise TypeError(
                    f"{name} of the Transformer must be a {stack.__name__}, got "
                    f"{type(part).__name__}."
                )
        both = _Both(from_torch(module.encoder), from_torch(module.decoder))
        conversion = Conversion(module, "a torch.nn.Transformer")
        names = _names(both.encoder, "encoder.", "encoder.")
        names |= _names(both.decoder, "decoder.", "decoder.")
        compare = partial(_compare_both, module.batch_first)
        conversion.convert(lambda _: both, 1, names, compare)
        return both.encoder, both.decoder
    kind = next((ours for x, ours in KINDS.items() if isinstance(module, x)), None)
    if kind is None:
        raise TypeError(
            "module must be MultiheadAttention, Transformer, or an encoder, a decoder "
            f"or a layer of torch.nn, got {type(module).__name__}."
        )
    conversion = Conversion(module, f"a torch.nn.{type(module).__name__}")
    settings = conversion.settings(_settings)
    first = settings.pop("batch_first")
    ours = conversion.attempt(kind, **settings, **conversion.factory)
    compare = partial(_compare, ours, first)
    return conversion.convert(lambda _: ours, 1, _names(ours), compare)


@checked
def to_torch(module: Ours | tuple[Encoder, Decoder]) -> nn.Module:
    """Convert a module of the book into PyTorch's, with a copy of its weights.

    Both are compared before PyTorch's is returned, as in
    [`from_torch`][transformers_hw.pretrained.from_torch].

    Args:
        module: A `MultiHeadAttention`, `EncoderLayer`, `DecoderLayer`, `Encoder` or
            `Decoder`; or an encoder and a decoder, for a `torch.nn.Transformer`.

    Returns:
        The module, batch first, training or evaluating as the given one. Its masks
        have PyTorch's meaning, `True` for "is hidden", and it is causal only if such
        a mask is given.

    Raises:
        TypeError: If PyTorch has no such module.
        ValueError: If PyTorch's module has no such setting, such as an RMS norm or a
            window; or if the module has hooks, or parts that its config does not
            describe.

    Examples:
        >>> to_torch(EncoderLayer(12, heads=3, hidden_dim=20)).__class__.__name__
        'TransformerEncoderLayer'
    """
    if isinstance(module, tuple):
        return _build_transformer(*module)
    kind = next((ours for ours in KINDS.values() if isinstance(module, ours)), None)
    if kind is None:
        raise TypeError(
            "module must be attention, a layer or a stack of layers of the "
            f"Transformer, got {type(module).__name__}."
        )
    for layer in module.layers if isinstance(module, Encoder | Decoder) else ():
        if not isinstance(layer, EncoderLayer | DecoderLayer):
            raise TypeError(
                f"layers must be the Transformer's, got {type(layer).__name__}."
            )
    check_described(module, kind(**asdict(module.config), device="meta"))
    tensors, names = read_weights(module.state_dict()), _names(module)
    dtype = reduce(torch.promote_types, (x.dtype for x in tensors.values()))
    factory = {"device": next(iter(tensors.values())).device, "dtype": dtype}
    if isinstance(module, MultiHeadAttention):
        theirs = _build_attention(module, factory)
    elif isinstance(module, EncoderLayer | DecoderLayer):
        theirs = _build_layer(module, factory)
    else:
        theirs = _build_stack(module, factory)

    def load(state: Mapping[str, Tensor]) -> nn.Module:
        dtype = next(iter(state.values())).dtype
        return join(state, names, copy.deepcopy(theirs).to(dtype).eval())

    def compare(
        theirs: Any, ours: Callable[..., Any], draw: Draw
    ) -> Iterator[tuple[str, Tensor, Tensor]]:
        return _compare(module, True, ours, theirs, draw)

    origin = f"one that torch.nn.{type(theirs).__name__} can express"
    verify(load, module, tensors, compare, origin)
    join(tensors, names, theirs)
    return theirs.train(module.training)


class _Both(nn.Module):
    """An encoder and a decoder."""

    def __init__(self, encoder: Encoder, decoder: Decoder) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder


def _names(module: Ours, ours: str = "", theirs: str = "") -> dict[str, str]:
    """Return PyTorch's name of each tensor of a module, with prefixes."""
    if isinstance(module, MultiHeadAttention):
        packed = module.dim == module.context_dim == module.values_dim
        names = {}
        for part in ("query", "key", "value"):
            weight = "in_proj_weight" if packed else f"{part[0]}_proj_weight"
            names[f"{ours}{part}_proj.weight"] = f"{theirs}{weight}"
            names[f"{ours}{part}_proj.bias"] = f"{theirs}in_proj_bias"
        return names | with_parameters({f"{ours}output_proj": f"{theirs}out_proj."})
    if isinstance(module, Encoder | Decoder):
        names = with_parameters({f"{ours}final_norm": f"{theirs}norm."})
        for i, layer in enumerate(module.layers):
            prefix = f"layers.{i}."
            names |= _names(layer, ours + prefix, theirs + prefix)  # type: ignore[arg-type]
        return names
    parts = {**NETWORK, **PARTS[type(module)]}
    names = with_parameters({ours + own: theirs + name for own, name in parts.items()})
    for own in module.attentions:
        attention: Any = module.get_submodule(own)
        prefix = f"{theirs}{ATTENTIONS[own]}"
        names |= _names(attention, f"{ours}{own}.", prefix)
    return names


def _settings(module: Any) -> dict[str, Any]:
    """Read the settings of one of PyTorch's modules, and its order of axes."""
    if isinstance(module, nn.MultiheadAttention):
        if module.bias_k is not None or module.add_zero_attn:
            raise WeightsError(
                "module must have neither add_bias_kv nor add_zero_attn, which this "
                "book's attention does not have."
            )
        return {
            "dim": module.embed_dim,
            "heads": module.num_heads,
            "context_dim": module.kdim,
            "values_dim": module.vdim,
            "bias": module.in_proj_bias is not None,
            "dropout": module.dropout,
            "batch_first": module.batch_first,
        }
    if isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
        norms = [x for name, x in module.named_children() if name.startswith("norm")]
        dropouts = [
            part.p if isinstance(part, nn.Dropout) else part.dropout
            for part in module.modules()
            if isinstance(part, nn.Dropout | nn.MultiheadAttention)
        ]
        return {
            "dim": module.self_attn.embed_dim,
            "heads": module.self_attn.num_heads,
            "hidden_dim": module.linear1.out_features,
            "norm": "pre" if module.norm_first else "post",
            "activation": name_of_activation(module.activation),
            "dropout": shared("dropout in all of their parts", dropouts),
            "eps": eps_of(norms),
            "bias": module.linear1.bias is not None,
            "batch_first": module.self_attn.batch_first,
        }
    layers = [_settings(layer) for layer in module.layers]
    found = {name: shared(name, (x[name] for x in layers)) for name in layers[0]}
    if module.norm is not None:
        shared("eps, the final norm's included", [found["eps"], eps_of([module.norm])])
    return {**found, "depth": len(layers), "final_norm": module.norm is not None}


def _compare(
    like: Ours,
    batch_first: bool,
    ours: Callable[..., Any],
    theirs: Callable[..., Any],
    draw: Draw,
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Compare a module like ours with one like PyTorch's."""

    def turned(x: Tensor) -> Tensor:
        return x if batch_first else rearrange(x, "a b d -> b a d")

    real = draw.padding_mask(2, 7)
    if isinstance(like, MultiHeadAttention):
        query = draw.numbers(2, 5, like.dim)
        keys = draw.numbers(2, 7, like.context_dim), draw.numbers(2, 7, like.values_dim)
        wanted, _ = theirs(*map(turned, (query, *keys)), key_padding_mask=~real)
        yield "outputs", ours(query, *keys, padding_mask=real), turned(wanted)
        return
    x = draw.numbers(2, 7, like.config.dim)
    if isinstance(like, Encoder | EncoderLayer):
        wanted = turned(theirs(turned(x), src_key_padding_mask=~real))
        yield "outputs", ours(x, padding_mask=real)[real], wanted[real]
        return
    target = draw.numbers(2, 5, like.config.dim)
    later = torch.ones(5, 5, dtype=torch.bool, device=x.device).triu(1)
    masks = {"tgt_mask": later, "memory_key_padding_mask": ~real}
    wanted = turned(theirs(turned(target), turned(x), **masks))
    yield "outputs", ours(target, x, memory_padding_mask=real), wanted


def _compare_both(
    batch_first: bool, ours: Any, theirs: Callable[..., Any], draw: Draw
) -> Iterator[tuple[str, Tensor, Tensor]]:
    def turned(x: Tensor) -> Tensor:
        return x if batch_first else rearrange(x, "a b d -> b a d")

    real = draw.padding_mask(2, 7)
    source = draw.numbers(2, 7, ours.encoder.config.dim)
    target = draw.numbers(2, 5, ours.decoder.config.dim)
    later = torch.ones(5, 5, dtype=torch.bool, device=source.device).triu(1)
    hidden = {"src_key_padding_mask": ~real, "memory_key_padding_mask": ~real}
    wanted = turned(theirs(turned(source), turned(target), tgt_mask=later, **hidden))
    memory = ours.encoder(source, padding_mask=real)
    yield "outputs", ours.decoder(target, memory, memory_padding_mask=real), wanted


def _check_attention(layer: MultiHeadAttention) -> None:
    dim, inner = layer.dim, layer.query_proj.out_features
    widths = (inner, layer.value_proj.out_features, layer.output_proj.out_features)
    for name in ("qk_norm", "window", "softcap"):
        if getattr(layer.config, name) is not None:
            raise ValueError(
                f"torch.nn.MultiheadAttention has no {name}, got a layer with "
                f"{name}={getattr(layer.config, name)!r}."
            )
    if layer.kv_heads != layer.heads:
        raise ValueError(
            "torch.nn.MultiheadAttention has keys and values for every head, got "
            f"{layer.kv_heads} for {layer.heads} heads."
        )
    if set(widths) != {dim} or layer.scale is not None:
        raise ValueError(
            "torch.nn.MultiheadAttention has heads that share the width, and the usual "
            f"scale; this layer of width {dim} has queries, values and outputs of "
            f"widths {widths} and scale {layer.scale}."
        )


def _build_attention(layer: MultiHeadAttention, factory: dict[str, Any]) -> nn.Module:
    _check_attention(layer)
    return nn.MultiheadAttention(
        layer.dim,
        layer.heads,
        dropout=layer.dropout,
        # PyTorch's has all biases or none; a bias of zero stands for none.
        bias=any("bias" in name for name in layer.state_dict()),
        kdim=layer.context_dim,
        vdim=layer.values_dim,
        batch_first=True,
        **factory,
    )


def _build_layer(layer: Layer, factory: dict[str, Any]) -> Any:
    encoder = isinstance(layer, EncoderLayer)
    kind = nn.TransformerEncoderLayer if encoder else nn.TransformerDecoderLayer
    config = layer.config
    for name, choices in CHOICES.items():
        setting = f"{name} of a torch.nn.{kind.__name__}"
        check_choice(setting, getattr(config, name), choices)
    for name in layer.attentions:
        attention: Any = layer.get_submodule(name)
        _check_attention(attention)
    return kind(
        config.dim,
        config.heads,
        config.hidden_dim,
        dropout=config.dropout,
        activation=ACTIVATIONS[config.activation],
        layer_norm_eps=config.eps,
        batch_first=True,
        norm_first=config.norm == "pre",
        bias=bool(config.bias),
        **factory,
    )


def _build_stack(stack: Encoder | Decoder, factory: dict[str, Any]) -> nn.Module:
    # The others are like it: the stack is as its config describes it.
    first: Any = stack.layers[0]
    layer, norm = _build_layer(first, factory), None
    if isinstance(stack.final_norm, LayerNorm):
        bias, eps = stack.final_norm.bias is not None, stack.final_norm.eps
        norm = nn.LayerNorm(stack.config.dim, eps, bias=bias, **factory)
    if isinstance(stack, Encoder):
        # Nested tensors would cut off the padding that other modules keep.
        return nn.TransformerEncoder(
            layer, len(stack.layers), norm, enable_nested_tensor=False
        )
    return nn.TransformerDecoder(layer, len(stack.layers), norm)


def _build_transformer(encoder: Encoder, decoder: Decoder) -> nn.Transformer:
    if not isinstance(encoder, Encoder) or not isinstance(decoder, Decoder):
        names = ", ".join(type(stack).__name__ for stack in (encoder, decoder))
        raise TypeError(f"module must be an Encoder and a Decoder, got {names}.")
    if encoder.config.dim != decoder.config.dim:
        raise ValueError(
            "the encoder and the decoder must have one dim, got "
            f"{encoder.config.dim} and {decoder.config.dim}."
        )
    theirs = nn.Transformer(
        decoder.config.dim,
        decoder.config.heads,
        custom_encoder=nn.Identity(),
        custom_decoder=nn.Identity(),
        batch_first=True,
    )
    # Not earlier: PyTorch draws the weights of stacks that it is given anew.
    theirs.encoder, theirs.decoder = to_torch(encoder), to_torch(decoder)  # type: ignore[assignment]
    return theirs.train(decoder.training)
