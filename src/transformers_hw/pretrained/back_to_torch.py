"""The book's modules into PyTorch's own."""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformers_hw.multi_head_attention import MultiHeadAttention
from transformers_hw.pretrained.torch_modules import ATTENTIONS, PARTS
from transformers_hw.transformer.layers import DecoderLayer, EncoderLayer
from transformers_hw.transformer.parts import LayerNorm
from transformers_hw.transformer.stacks import Decoder, Encoder

State = dict[str, Tensor]

ACTIVATIONS = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
}


def to_torch(module: nn.Module | tuple[Encoder, Decoder]) -> nn.Module:
    """Give PyTorch's module that computes the same, with a copy of the weights.

    Args:
        module: A `MultiHeadAttention`, an `EncoderLayer` or `DecoderLayer`, an
            `Encoder` or `Decoder`; or an encoder and a decoder, for a
            `torch.nn.Transformer`.

    Returns:
        The module, batch first, training or evaluating as the given one. Its masks
        have PyTorch's meaning, `True` for "is hidden", and it is causal only if such
        a mask says so.

    Raises:
        TypeError: If PyTorch has no such module.
        ValueError: If PyTorch's module has no such setting.

    Examples:
        >>> to_torch(EncoderLayer(12, heads=3, hidden_dim=20)).__class__.__name__
        'TransformerEncoderLayer'
    """
    if isinstance(module, tuple):
        return _transformer(module)
    if isinstance(module, MultiHeadAttention):
        theirs, state = _attention(module), _attention_state(module)
    elif isinstance(module, EncoderLayer | DecoderLayer):
        theirs, state = _layer(module), _layer_state(module)
    elif isinstance(module, Encoder | Decoder):
        theirs, state = _stack(module), _stack_state(module)
    else:
        raise TypeError(
            "module must be attention, a layer or a stack of layers of the "
            f"Transformer, got {type(module).__name__}."
        )
    theirs.load_state_dict({name: x.clone() for name, x in state.items()})
    return theirs.train(module.training)


def _transformer(module: tuple[Encoder, Decoder]) -> nn.Transformer:
    kinds = tuple(type(stack) for stack in module)
    if kinds != (Encoder, Decoder):
        names = ", ".join(kind.__name__ for kind in kinds)
        raise TypeError(f"module must be an Encoder and a Decoder, got {names}.")
    encoder, decoder = module
    stacks = {"encoder": encoder, "decoder": decoder}
    theirs = {name: to_torch(stack) for name, stack in stacks.items()}
    layer: Any = decoder.layers[0]
    whole = nn.Transformer(
        layer.feed_forward.hidden_proj.in_features,
        layer.self_attention.heads,
        custom_encoder=theirs["encoder"],
        custom_decoder=theirs["decoder"],
        batch_first=True,
    )
    # PyTorch draws the weights of the stacks that it is given anew.
    for name, stack in stacks.items():
        whole.get_submodule(name).load_state_dict(_stack_state(stack))
    return whole.train(decoder.training)


def _attention(layer: MultiHeadAttention) -> nn.MultiheadAttention:
    dim, inner = layer.query_proj.in_features, layer.query_proj.out_features
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
        bias=_has_bias(layer),
        kdim=layer.key_proj.in_features,
        vdim=layer.value_proj.in_features,
        batch_first=True,
        **_place(layer.query_proj.weight),
    )


def _attention_state(layer: MultiHeadAttention) -> State:
    projections = (layer.query_proj, layer.key_proj, layer.value_proj)
    weights = [projection.weight.detach() for projection in projections]
    state = {"out_proj.weight": layer.output_proj.weight.detach()}
    if len({x.shape[1] for x in weights}) == 1:
        state["in_proj_weight"] = torch.cat(weights)
    else:
        names = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
        state.update(zip(names, weights, strict=True))
    if _has_bias(layer):
        state["in_proj_bias"] = torch.cat([_bias(x) for x in projections])
        state["out_proj.bias"] = _bias(layer.output_proj)
    return state


def _layer(layer: EncoderLayer | DecoderLayer) -> Any:
    encoder = isinstance(layer, EncoderLayer)
    kind = nn.TransformerEncoderLayer if encoder else nn.TransformerDecoderLayer
    network, attention = layer.feed_forward, _attentions(layer)["self_attn"]
    return kind(
        network.hidden_proj.in_features,
        attention.heads,
        network.hidden_proj.out_features,
        dropout=layer.dropout.p,
        activation=ACTIVATIONS[network.activation],
        layer_norm_eps=layer.feed_forward_norm.eps,
        batch_first=True,
        norm_first=layer.norm == "pre",
        bias=network.hidden_proj.bias is not None,
        **_place(network.hidden_proj.weight),
    )


def _layer_state(layer: EncoderLayer | DecoderLayer) -> State:
    state = {}
    for theirs, attention in _attentions(layer).items():
        own = _attention_state(attention)
        state |= {f"{theirs}.{name}": x for name, x in own.items()}
    for ours, theirs in PARTS[type(layer)].items():
        own = layer.get_submodule(ours).state_dict()
        state |= {f"{theirs}.{name}": x for name, x in own.items()}
    return state


def _stack(stack: Encoder | Decoder) -> nn.Module:
    first = stack.layers[0]
    if not isinstance(first, EncoderLayer | DecoderLayer):
        raise TypeError(
            f"layers must be the Transformer's, got {type(first).__name__}."
        )
    norm = None
    if isinstance(stack.final_norm, LayerNorm):
        weight, bias = stack.final_norm.weight, stack.final_norm.bias
        norm = nn.LayerNorm(
            len(weight), stack.final_norm.eps, bias=bias is not None, **_place(weight)
        )
    if isinstance(stack, Encoder):
        # Nested tensors would cut off the padding that other modules keep.
        return nn.TransformerEncoder(
            _layer(first), len(stack.layers), norm, enable_nested_tensor=False
        )
    return nn.TransformerDecoder(_layer(first), len(stack.layers), norm)


def _stack_state(stack: Encoder | Decoder) -> State:
    state = {f"norm.{name}": x for name, x in stack.final_norm.state_dict().items()}
    for number, layer in enumerate(stack.layers):
        own = _layer_state(layer)  # type: ignore[arg-type]
        state |= {f"layers.{number}.{name}": x for name, x in own.items()}
    return state


def _attentions(
    layer: EncoderLayer | DecoderLayer,
) -> dict[str, MultiHeadAttention]:
    found = {
        theirs: layer.get_submodule(ours)
        for ours, theirs in ATTENTIONS[type(layer)].items()
    }
    return {
        name: part
        for name, part in found.items()
        if isinstance(part, MultiHeadAttention)
    }


def _has_bias(layer: MultiHeadAttention) -> bool:
    # PyTorch's has all biases or none; a bias of zero stands for none.
    return any(
        projection.bias is not None
        for projection in (
            layer.query_proj,
            layer.key_proj,
            layer.value_proj,
            layer.output_proj,
        )
    )


def _bias(projection: nn.Linear) -> Tensor:
    if projection.bias is None:
        return projection.weight.new_zeros(projection.out_features)
    return projection.bias.detach()


def _place(weight: Tensor) -> dict[str, Any]:
    return {"device": weight.device, "dtype": weight.dtype}
