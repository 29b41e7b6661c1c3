"""PyTorch's own modules into the book's."""

from typing import Any, Unpack

from torch import nn

from transformers_hw.multi_head_attention import MultiHeadAttention
from transformers_hw.pretrained.weights import PROJECTED, Weights, _Unpacking
from transformers_hw.transformer.layers import DecoderLayer, EncoderLayer
from transformers_hw.transformer.stacks import Decoder, Encoder, LayerOptions

# What PyTorch calls the parts of a layer, by our names of them.
ATTENTIONS = {
    EncoderLayer: {"attention": "self_attn"},
    DecoderLayer: {"self_attention": "self_attn", "cross_attention": "multihead_attn"},
}
NETWORK = {"feed_forward.hidden_proj": "linear1", "feed_forward.output_proj": "linear2"}
PARTS = {
    EncoderLayer: {
        **NETWORK,
        "attention_norm": "norm1",
        "feed_forward_norm": "norm2",
    },
    DecoderLayer: {
        **NETWORK,
        "self_attention_norm": "norm1",
        "cross_attention_norm": "norm2",
        "feed_forward_norm": "norm3",
    },
}


def attention_from_torch(weights: Weights, *, heads: int) -> MultiHeadAttention:
    """Take the weights of a `torch.nn.MultiheadAttention`.

    Args:
        weights: Its state dict, or a safetensors file.
        heads: Number of heads, which a state dict does not tell. Nor does it tell of
            `add_zero_attn`, which this book's layer does not have.

    Returns:
        A layer that gives the same outputs; masks have this book's meaning, `True`
        for "may see".

    Raises:
        WeightsError: If these are other weights.

    Examples:
        >>> theirs = nn.MultiheadAttention(12, 3)
        >>> attention_from_torch(theirs.state_dict(), heads=3).heads
        3
    """
    unpacking = _Unpacking(weights, "a torch.nn.MultiheadAttention")
    dim = unpacking.shape("out_proj.weight", 2)[0]
    apart = "in_proj_weight" not in unpacking.left
    layer = MultiHeadAttention(
        dim,
        heads,
        context_dim=unpacking.shape("k_proj_weight", 2)[1] if apart else dim,
        values_dim=unpacking.shape("v_proj_weight", 2)[1] if apart else dim,
        bias="in_proj_bias" in unpacking.left,
        **unpacking.place,
    )
    unpacking.build(layer)
    if apart:
        for part in PROJECTED:
            unpacking.move(f"{part[0]}_proj_weight", f"{part}_proj.weight")
    _attention(unpacking, "", "", packed=not apart)
    return unpacking.fill(layer)


def encoder_layer_from_torch(
    weights: Weights, *, heads: int, **options: Unpack[LayerOptions]
) -> EncoderLayer:
    """Take the weights of a `torch.nn.TransformerEncoderLayer`.

    Args:
        weights: Its state dict, or a safetensors file.
        heads: Number of heads.
        **options: Of the [`EncoderLayer`][transformers_hw.transformer.EncoderLayer]
            that a state dict does not tell: `norm` is `"post"` by default, as
            PyTorch's.

    Returns:
        A layer that gives the same outputs.

    Raises:
        WeightsError: If these are other weights.
    """
    unpacking = _Unpacking(weights, "a torch.nn.TransformerEncoderLayer")
    dim, hidden_dim, chosen = _sizes(unpacking, "", options)
    layer = unpacking.build(EncoderLayer(dim, heads, hidden_dim, **chosen))
    _layer(unpacking, EncoderLayer, "")
    return unpacking.fill(layer)


def decoder_layer_from_torch(
    weights: Weights, *, heads: int, **options: Unpack[LayerOptions]
) -> DecoderLayer:
    """Take the weights of a `torch.nn.TransformerDecoderLayer`.

    Args:
        weights: Its state dict, or a safetensors file.
        heads: Number of heads.
        **options: As for an encoder layer.

    Returns:
        A layer that gives the same outputs. It is causal unless told otherwise.

    Raises:
        WeightsError: If these are other weights.
    """
    unpacking = _Unpacking(weights, "a torch.nn.TransformerDecoderLayer")
    dim, hidden_dim, chosen = _sizes(unpacking, "", options)
    layer = unpacking.build(DecoderLayer(dim, heads, hidden_dim, **chosen))
    _layer(unpacking, DecoderLayer, "")
    return unpacking.fill(layer)


def encoder_from_torch(
    weights: Weights, *, heads: int, **options: Unpack[LayerOptions]
) -> Encoder:
    """Take the weights of a `torch.nn.TransformerEncoder`.

    Args:
        weights: Its state dict, or a safetensors file.
        heads: Number of heads.
        **options: As for an encoder layer.

    Returns:
        An encoder that gives the same outputs.

    Raises:
        WeightsError: If these are other weights.
    """
    unpacking = _Unpacking(weights, "a torch.nn.TransformerEncoder")
    encoder = unpacking.build(Encoder(**_stack_sizes(unpacking, "", heads, options)))
    _stack(unpacking, encoder, "")
    return unpacking.fill(encoder)


def decoder_from_torch(
    weights: Weights, *, heads: int, **options: Unpack[LayerOptions]
) -> Decoder:
    """Take the weights of a `torch.nn.TransformerDecoder`.

    Args:
        weights: Its state dict, or a safetensors file.
        heads: Number of heads.
        **options: As for an encoder layer.

    Returns:
        A decoder that gives the same outputs. It is causal unless told otherwise.

    Raises:
        WeightsError: If these are other weights.
    """
    unpacking = _Unpacking(weights, "a torch.nn.TransformerDecoder")
    decoder = unpacking.build(Decoder(**_stack_sizes(unpacking, "", heads, options)))
    _stack(unpacking, decoder, "")
    return unpacking.fill(decoder)


def transformer_from_torch(
    weights: Weights, *, heads: int, **options: Unpack[LayerOptions]
) -> tuple[Encoder, Decoder]:
    """Take the weights of a `torch.nn.Transformer`.

    PyTorch's has neither embeddings nor a readout, and normalises after its last
    layers even where the layers themselves do. That makes an encoder and a decoder.

    Args:
        weights: Its state dict, or a safetensors file.
        heads: Number of heads.
        **options: As for an encoder layer.

    Returns:
        The encoder and the decoder: `decoder(target, encoder(source))`.

    Raises:
        WeightsError: If these are other weights.

    Examples:
        >>> theirs = nn.Transformer(12, 2, 1, 1, 20, batch_first=True)
        >>> encoder, decoder = transformer_from_torch(theirs.state_dict(), heads=2)
        >>> len(encoder.layers), len(decoder.layers)
        (1, 1)
    """
    unpacking = _Unpacking(weights, "a torch.nn.Transformer")
    encoder = Encoder(**_stack_sizes(unpacking, "encoder.", heads, options))
    decoder = Decoder(**_stack_sizes(unpacking, "decoder.", heads, options))
    both = unpacking.build(nn.ModuleDict({"encoder": encoder, "decoder": decoder}))
    _stack(unpacking, encoder, "encoder.")
    _stack(unpacking, decoder, "decoder.")
    unpacking.fill(both)
    return encoder, decoder


def _sizes(
    unpacking: _Unpacking, layer: str, options: LayerOptions
) -> tuple[int, int, dict[str, Any]]:
    hidden_dim, dim = unpacking.shape(f"{layer}linear1.weight", 2)
    told = {"norm": "post", "bias": f"{layer}linear1.bias" in unpacking.left}
    return dim, hidden_dim, {**unpacking.place, **told, **options}


def _stack_sizes(
    unpacking: _Unpacking, prefix: str, heads: int, options: LayerOptions
) -> dict[str, Any]:
    depth = unpacking.depth(f"{prefix}layers.")
    dim, hidden_dim, chosen = _sizes(unpacking, f"{prefix}layers.0.", options)
    return {
        "dim": dim,
        "heads": heads,
        "hidden_dim": hidden_dim,
        "depth": depth,
        "final_norm": f"{prefix}norm.weight" in unpacking.left,
        **chosen,
    }


def _stack(unpacking: _Unpacking, stack: Encoder | Decoder, prefix: str) -> None:
    kind = EncoderLayer if isinstance(stack, Encoder) else DecoderLayer
    for number in range(len(stack.layers)):
        _layer(unpacking, kind, f"{prefix}layers.{number}.")
    unpacking.part(f"{prefix}norm", f"{prefix}final_norm")


def _layer(
    unpacking: _Unpacking, kind: type[EncoderLayer] | type[DecoderLayer], prefix: str
) -> None:
    for ours, theirs in ATTENTIONS[kind].items():
        _attention(unpacking, f"{prefix}{theirs}.", f"{prefix}{ours}.")
    for ours, theirs in PARTS[kind].items():
        unpacking.part(f"{prefix}{theirs}", f"{prefix}{ours}")


def _attention(
    unpacking: _Unpacking, theirs: str, ours: str, *, packed: bool = True
) -> None:
    if packed:
        unpacking.packed(f"{theirs}in_proj_weight", f"{ours}{{}}_proj.weight")
    unpacking.packed(f"{theirs}in_proj_bias", f"{ours}{{}}_proj.bias")
    unpacking.part(f"{theirs}out_proj", f"{ours}output_proj")
