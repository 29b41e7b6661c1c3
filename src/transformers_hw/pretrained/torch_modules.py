"""PyTorch's own attention and Transformer modules: conversion in both directions."""

from typing import Any

import torch
from torch import nn

from transformers_hw.multi_head_attention import MultiHeadAttention
from transformers_hw.pretrained.weights import Conversion, join, name_of_activation
from transformers_hw.transformer.layers import DecoderLayer, EncoderLayer
from transformers_hw.transformer.parts import ACTIVATIONS, LayerNorm
from transformers_hw.transformer.stacks import Decoder, Encoder

Layer = EncoderLayer | DecoderLayer
Ours = MultiHeadAttention | Layer | Encoder | Decoder

# PyTorch's names of the attentions of a layer, and of its other parts, by ours.
ATTENTIONS = {
    "attention": "self_attn",
    "self_attention": "self_attn",
    "cross_attention": "multihead_attn",
}
PARTS = {
    EncoderLayer: {"attention_norm": "norm1", "feed_forward_norm": "norm2"},
    DecoderLayer: {
        "self_attention_norm": "norm1",
        "cross_attention_norm": "norm2",
        "feed_forward_norm": "norm3",
    },
}
NETWORK = {"feed_forward.hidden_proj": "linear1", "feed_forward.output_proj": "linear2"}


def from_torch(module: nn.Module) -> Any:
    """Convert a module of `torch.nn` into the book's, with a copy of its weights.

    Heads, sizes, the place of the norms, activation, epsilon and dropout are read from
    the module. Whatever its `batch_first`, the converted module takes the batch first.
    Its masks have the book's meaning, `True` for "may see", and a decoder is causal
    unless told otherwise.

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
        ValueError: If it has a setting that the book's modules do not have.

    Examples:
        >>> from_torch(nn.MultiheadAttention(12, 3)).heads
        3
    """
    if isinstance(module, nn.Transformer):
        return from_torch(module.encoder), from_torch(module.decoder)
    conversion = Conversion(module, f"a torch.nn.{type(module).__name__}")
    ours = _build(module, conversion.factory)
    return conversion.fill(ours, _names(ours))


def to_torch(module: Ours | tuple[Encoder, Decoder]) -> nn.Module:
    """Convert a module of the book into PyTorch's, with a copy of its weights.

    Args:
        module: A `MultiHeadAttention`, `EncoderLayer`, `DecoderLayer`, `Encoder` or
            `Decoder`; or an encoder and a decoder, for a `torch.nn.Transformer`.

    Returns:
        The module, batch first, training or evaluating as the given one. Its masks
        have PyTorch's meaning, `True` for "is hidden", and it is causal only if such
        a mask is given.

    Raises:
        TypeError: If PyTorch has no such module.
        ValueError: If PyTorch's module has no such setting.

    Examples:
        >>> to_torch(EncoderLayer(12, heads=3, hidden_dim=20)).__class__.__name__
        'TransformerEncoderLayer'
    """
    if isinstance(module, tuple):
        return _build_transformer(*module)
    if isinstance(module, MultiHeadAttention):
        theirs = _build_attention(module)
    elif isinstance(module, EncoderLayer | DecoderLayer):
        theirs = _build_layer(module)
    elif isinstance(module, Encoder | Decoder):
        theirs = _build_stack(module)
    else:
        raise TypeError(
            "module must be attention, a layer or a stack of layers of the "
            f"Transformer, got {type(module).__name__}."
        )
    join(module.state_dict(), _names(module), theirs)
    return theirs.train(module.training)


def _names(module: Ours, ours: str = "", theirs: str = "") -> dict[str, str]:
    """Return PyTorch's name of each tensor of a module, with prefixes."""
    if isinstance(module, MultiHeadAttention):
        packed = module.dim == module.context_dim == module.values_dim
        names = {}
        for part in ("query", "key", "value"):
            weight = "in_proj_weight" if packed else f"{part[0]}_proj_weight"
            names[f"{ours}{part}_proj.weight"] = f"{theirs}{weight}"
            names[f"{ours}{part}_proj.bias"] = f"{theirs}in_proj_bias"
        return names | _modules({f"{ours}output_proj": f"{theirs}out_proj"})
    if isinstance(module, Encoder | Decoder):
        names = _modules({f"{ours}final_norm": f"{theirs}norm"})
        for i, layer in enumerate(module.layers):
            prefix = f"layers.{i}."
            names |= _names(layer, ours + prefix, theirs + prefix)  # type: ignore[arg-type]
        return names
    parts = {**NETWORK, **PARTS[type(module)]}
    names = _modules({ours + own: theirs + name for own, name in parts.items()})
    for own in module.attentions:
        attention: Any = module.get_submodule(own)
        prefix = f"{theirs}{ATTENTIONS[own]}."
        names |= _names(attention, f"{ours}{own}.", prefix)
    return names


def _modules(names: dict[str, str]) -> dict[str, str]:
    return {
        f"{ours}.{kind}": f"{theirs}.{kind}"
        for ours, theirs in names.items()
        for kind in ("weight", "bias")
    }


def _build(theirs: Any, factory: dict[str, Any]) -> Ours:
    if isinstance(theirs, nn.MultiheadAttention):
        if theirs.bias_k is not None or theirs.add_zero_attn:
            raise ValueError(
                "module must have neither add_bias_kv nor add_zero_attn, which this "
                "book's attention does not have."
            )
        return MultiHeadAttention(
            theirs.embed_dim,
            theirs.num_heads,
            context_dim=theirs.kdim,
            values_dim=theirs.vdim,
            bias=theirs.in_proj_bias is not None,
            dropout=theirs.dropout,
            **factory,
        )
    if isinstance(theirs, nn.TransformerEncoderLayer):
        return EncoderLayer(**_layer_settings(theirs), **factory)
    if isinstance(theirs, nn.TransformerDecoderLayer):
        return DecoderLayer(**_layer_settings(theirs), **factory)
    if not isinstance(theirs, nn.TransformerEncoder | nn.TransformerDecoder):
        raise TypeError(
            "module must be MultiheadAttention, Transformer, or an encoder, a decoder "
            f"or a layer of torch.nn, got {type(theirs).__name__}."
        )
    kind = Encoder if isinstance(theirs, nn.TransformerEncoder) else Decoder
    settings = _layer_settings(theirs.layers[0])
    norm: Any = theirs.norm
    if norm is not None and norm.eps != settings["eps"]:
        raise ValueError(
            "the final norm must have the eps of the layers, "
            f"{settings['eps']}, got {norm.eps}."
        )
    depth = len(theirs.layers)
    return kind(depth=depth, final_norm=norm is not None, **settings, **factory)


def _layer_settings(layer: Any) -> dict[str, Any]:
    return {
        "dim": layer.self_attn.embed_dim,
        "heads": layer.self_attn.num_heads,
        "hidden_dim": layer.linear1.out_features,
        "norm": "pre" if layer.norm_first else "post",
        "activation": name_of_activation(layer.activation),
        "dropout": layer.dropout.p,
        "eps": layer.norm1.eps,
        "bias": layer.linear1.bias is not None,
    }


def _build_attention(layer: MultiHeadAttention) -> nn.Module:
    dim, inner = layer.dim, layer.query_proj.out_features
    widths = (inner, layer.value_proj.out_features, layer.output_proj.out_features)
    if set(widths) != {dim} or layer.scale is not None:
        raise ValueError(
            "torch.nn.MultiheadAttention has heads that share the width, and the usual "
            f"scale; this layer of width {dim} has queries, values and outputs of "
            f"widths {widths} and scale {layer.scale}."
        )
    return nn.MultiheadAttention(
        dim,
        layer.heads,
        dropout=layer.dropout,
        # PyTorch's has all biases or none; a bias of zero stands for none.
        bias=any("bias" in name for name in layer.state_dict()),
        kdim=layer.context_dim,
        vdim=layer.values_dim,
        batch_first=True,
        **_factory(layer),
    )


def _build_layer(layer: Layer) -> Any:
    encoder = isinstance(layer, EncoderLayer)
    kind = nn.TransformerEncoderLayer if encoder else nn.TransformerDecoderLayer
    config = layer.config
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
        **_factory(layer),
    )


def _build_stack(stack: Encoder | Decoder) -> nn.Module:
    first, norm = stack.layers[0], None
    if not isinstance(first, EncoderLayer | DecoderLayer):
        raise TypeError(
            f"layers must be the Transformer's, got {type(first).__name__}."
        )
    if isinstance(stack.final_norm, LayerNorm):
        bias, eps = stack.final_norm.bias is not None, stack.final_norm.eps
        norm = nn.LayerNorm(stack.config.dim, eps, bias=bias, **_factory(stack))
    if isinstance(stack, Encoder):
        # Nested tensors would cut off the padding that other modules keep.
        return nn.TransformerEncoder(
            _build_layer(first), len(stack.layers), norm, enable_nested_tensor=False
        )
    return nn.TransformerDecoder(_build_layer(first), len(stack.layers), norm)


def _build_transformer(encoder: Encoder, decoder: Decoder) -> nn.Transformer:
    if not isinstance(encoder, Encoder) or not isinstance(decoder, Decoder):
        names = ", ".join(type(stack).__name__ for stack in (encoder, decoder))
        raise TypeError(f"module must be an Encoder and a Decoder, got {names}.")
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


def _factory(module: nn.Module) -> dict[str, Any]:
    weight: torch.Tensor = next(module.parameters())
    return {"device": weight.device, "dtype": weight.dtype}
