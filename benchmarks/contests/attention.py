"""Attention, alone and with its projections, against PyTorch and three libraries."""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from measuring import Pair, Row, forward, with_backward
from torch import Tensor, nn

from transformers_hw import MultiHeadAttention
from transformers_hw.attention import attention
from transformers_hw.pretrained import attention_from_torch

# (length, batch): about as much work in each.
LENGTHS = ((64, 32), (256, 8), (1024, 2), (4096, 1))
HEADS, HEAD_DIM = 8, 64


def rows() -> Iterator[Row]:
    """Give all comparisons."""
    for length, batch in LENGTHS:
        for option in ("", "causal", "mask", "weights"):
            name = f"N {length}, batch {batch}"
            what = f"{name}, {_NAMES[option]}" if option else name
            build = _function(length, batch, option)
            peer = "torch (written out)" if option == "weights" else "torch"
            quick = length == 256
            yield Row("Attention", what, peer, "forward", build, quick)
    for dim, length, batch in ((192, 65, 32), (512, 197, 4), (768, 512, 2)):
        what = f"dim {dim}, N {length}, batch {batch}"
        group = "Multi-head attention"
        for mode in ("forward", "forward and backward"):
            for option in ("", "cross", "weights"):
                named = f"{what}, {_NAMES[option]}" if option else what
                build = _layer(dim, length, batch, option, mode)
                quick = dim == 192 and mode == "forward"
                yield Row(group, named, "torch", mode, build, quick)
            for peer, make in PEERS.items():
                build = _peer_layer(make, dim, length, batch, mode)
                yield Row(group, what, peer, mode, build)


_NAMES = {
    "causal": "causal",
    "mask": "with a mask",
    "weights": "weights returned",
    "cross": "to a context of 2 N",
}


def _function(length: int, batch: int, option: str) -> Callable[[], Pair]:
    def build() -> Pair:
        shape = (batch, HEADS, length, HEAD_DIM)
        q, k, v = (torch.randn(shape) for _ in range(3))
        if option == "weights":
            return Pair(
                forward(attention, q, k, v, return_weights=True),
                forward(_written_out, q, k, v),
            )
        if option == "mask":
            # Every query sees itself and about half of the others.
            mask = (torch.rand(length, length) < 0.5) | torch.eye(length).bool()
            return Pair(
                forward(attention, q, k, v, mask=mask),
                forward(F.scaled_dot_product_attention, q, k, v, attn_mask=mask),
            )
        causal = option == "causal"
        return Pair(
            forward(attention, q, k, v, causal=causal),
            forward(F.scaled_dot_product_attention, q, k, v, is_causal=causal),
        )

    return build


def _written_out(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(dim=-1)
    return weights @ v, weights


def _layer(
    dim: int, length: int, batch: int, option: str, mode: str
) -> Callable[[], Pair]:
    def build() -> Pair:
        theirs = nn.MultiheadAttention(dim, dim // 64, batch_first=True)
        ours = attention_from_torch(theirs.state_dict(), heads=dim // 64)
        x = torch.randn(batch, length, dim)
        context = torch.randn(batch, 2 * length, dim) if option == "cross" else x
        weights = option == "weights"
        options = {"need_weights": weights, "average_attn_weights": False}
        run = forward if mode == "forward" else with_backward
        arguments = (x, context) if option == "cross" else (x,)
        return Pair(
            run(ours, *arguments, return_weights=weights),
            run(theirs, x, context, context, **options),
        )

    return build


def _timm(layer: MultiHeadAttention) -> nn.Module:
    from timm.layers import Attention

    dim = layer.query_proj.in_features
    theirs = Attention(dim, layer.heads, qkv_bias=True)
    with torch.no_grad():
        theirs.qkv.weight.copy_(_packed(layer, "weight"))
        theirs.qkv.bias.copy_(_packed(layer, "bias"))
        theirs.proj.load_state_dict(layer.output_proj.state_dict())
    return theirs


def _vit_pytorch(layer: MultiHeadAttention) -> nn.Module:
    from vit_pytorch.vit import Attention  # type: ignore[import-not-found]

    dim = layer.query_proj.in_features
    theirs = Attention(dim, layer.heads, dim // layer.heads)
    # It begins with a normalisation, which is no part of this comparison.
    theirs.norm = nn.Identity()
    with torch.no_grad():
        theirs.to_qkv.weight.copy_(_packed(layer, "weight"))
        theirs.to_out[0].load_state_dict(layer.output_proj.state_dict())
    return theirs


def _hugging_face(layer: MultiHeadAttention) -> nn.Module:
    from transformers import ViTConfig
    from transformers.models.vit.modeling_vit import ViTAttention

    config = ViTConfig(
        hidden_size=layer.query_proj.in_features,
        num_attention_heads=layer.heads,
        attn_implementation="sdpa",
    )
    theirs = ViTAttention(config)
    names = {"q_proj": "query_proj", "k_proj": "key_proj", "v_proj": "value_proj"}
    for theirs_name, name in {**names, "o_proj": "output_proj"}.items():
        theirs.get_submodule(theirs_name).load_state_dict(
            layer.get_submodule(name).state_dict()
        )
    return theirs


PEERS = {"timm": _timm, "vit-pytorch": _vit_pytorch, "Hugging Face": _hugging_face}


def _packed(layer: MultiHeadAttention, name: str) -> Tensor:
    projections = (layer.query_proj, layer.key_proj, layer.value_proj)
    return torch.cat([getattr(p, name) for p in projections])


def _peer_layer(
    make: Callable[[MultiHeadAttention], nn.Module],
    dim: int,
    length: int,
    batch: int,
    mode: str,
) -> Callable[[], Pair]:
    def build() -> Pair:
        # What theirs has no bias for, ours has none for, either.
        bias = ("output",) if make is _vit_pytorch else True
        ours = MultiHeadAttention(dim, dim // 64, bias=bias)
        theirs = make(ours)
        x = torch.randn(batch, length, dim)
        run = forward if mode == "forward" else with_backward
        return Pair(run(ours, x), run(theirs, x))

    return build
