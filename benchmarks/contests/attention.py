"""Attention, with and without projections, against PyTorch and three libraries.

Attention within a window is compared with PyTorch's kernel and a dense mask.
"""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from measuring import PASSES, Pair, Row, forward
from torch import Tensor, nn

from transformers_hw.attention import dot_product_attention, window_mask
from transformers_hw.multi_head_attention import MultiHeadAttention
from transformers_hw.pretrained import from_torch

# (tokens, batch): about the same amount of work in each.
LENGTHS = ((64, 32), (256, 8), (1024, 2), (4096, 1))
HEADS, HEAD_DIM = 8, 64
WINDOW, WINDOW_HEADS, WINDOW_LENGTHS = 256, 4, (1024, 2048, 4096, 8192, 16384)
LAYERS = ((192, 65, 32), (768, 512, 2))  # dim, tokens, batch
OPTIONS = {
    "": "",
    "causal": ", causal",
    "mask": ", mask",
    "weights": ", returning weights",
    "cross": ", cross-attention, twice as many keys",
}


def rows() -> Iterator[Row]:
    """Yield all comparisons."""
    for length, batch in LENGTHS:
        for option in ("", "causal", "mask", "weights"):
            case = f"{length} tokens, batch {batch}{OPTIONS[option]}"
            peer = "torch, explicit" if option == "weights" else "torch"
            build = _function(length, batch, option)
            yield Row("attention", case, peer, "forward", build, length == 256)
    for length in WINDOW_LENGTHS:
        case = f"{length} tokens, window {WINDOW}, causal, {WINDOW_HEADS} heads"
        build, quick = _window(length), length == 2048
        yield Row("windows", case, "dense mask", "forward", build, quick)
    group = "multi_head_attention"
    for dim, length, batch in LAYERS:
        case = f"dim {dim}, {length} tokens, batch {batch}"
        for mode in PASSES:
            for option in ("", "cross", "weights"):
                build = _layer(dim, length, batch, option, mode)
                quick = dim == 192 and mode == "forward"
                yield Row(group, case + OPTIONS[option], "torch", mode, build, quick)
            for peer, make in PEERS.items():
                build = _peer_layer(make, dim, length, batch, mode)
                yield Row(group, case, peer, mode, build)


def _function(length: int, batch: int, option: str) -> Callable[[], Pair]:
    def build() -> Pair:
        shape = (batch, HEADS, length, HEAD_DIM)
        q, k, v = (torch.randn(shape) for _ in range(3))
        ours, theirs = dot_product_attention, F.scaled_dot_product_attention
        if option == "weights":
            return Pair(
                forward(ours, q, k, v, return_weights=True),
                forward(_explicit, q, k, v),
            )
        if option == "mask":
            # Every query sees itself and about half of the other keys.
            mask = (torch.rand(length, length) < 0.5) | torch.eye(length).bool()
            return Pair(
                forward(ours, q, k, v, mask=mask),
                forward(theirs, q, k, v, attn_mask=mask),
            )
        causal = option == "causal"
        return Pair(
            forward(ours, q, k, v, causal=causal),
            forward(theirs, q, k, v, is_causal=causal),
        )

    return build


def _window(length: int) -> Callable[[], Pair]:
    def build() -> Pair:
        shape = (1, WINDOW_HEADS, length, HEAD_DIM)
        q, k, v = (torch.randn(shape) for _ in range(3))
        # Made once, in advance: in a model, all layers would share it.
        mask = window_mask(length, length, window=WINDOW, causal=True)
        near = {"window": WINDOW, "causal": True}
        return Pair(
            forward(dot_product_attention, q, k, v, **near),
            forward(F.scaled_dot_product_attention, q, k, v, attn_mask=mask),
        )

    return build


def _explicit(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    # As PyTorch's users write it; einops would cost the peer some time.
    weights = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(dim=-1)
    return weights @ v, weights


def _layer(
    dim: int, length: int, batch: int, option: str, mode: str
) -> Callable[[], Pair]:
    def build() -> Pair:
        theirs = nn.MultiheadAttention(dim, dim // 64, batch_first=True)
        ours = from_torch(theirs)
        x = torch.randn(batch, length, dim)
        context = torch.randn(batch, 2 * length, dim) if option == "cross" else x
        weights = option == "weights"
        options = {"need_weights": weights, "average_attn_weights": False}
        run = PASSES[mode]
        inputs = (x, context) if option == "cross" else (x,)
        return Pair(
            run(ours, *inputs, return_weights=weights),
            run(theirs, x, context, context, **options),
        )

    return build


def _timm(layer: MultiHeadAttention) -> nn.Module:
    from timm.layers import Attention

    theirs = Attention(layer.query_proj.in_features, layer.heads, qkv_bias=True)
    with torch.no_grad():
        theirs.qkv.weight.copy_(_packed(layer, "weight"))
        theirs.qkv.bias.copy_(_packed(layer, "bias"))
        theirs.proj.load_state_dict(layer.output_proj.state_dict())
    return theirs


def _vit_pytorch(layer: MultiHeadAttention) -> nn.Module:
    from vit_pytorch.vit import Attention  # type: ignore[import-not-found]

    dim = layer.query_proj.in_features
    theirs = Attention(dim, layer.heads, dim // layer.heads)
    theirs.norm = nn.Identity()  # its layer norm is not part of this comparison
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
    names = {"q": "query", "k": "key", "v": "value", "o": "output"}
    for their_name, name in names.items():
        weights = layer.get_submodule(f"{name}_proj").state_dict()
        theirs.get_submodule(f"{their_name}_proj").load_state_dict(weights)
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
        # Where their projection has no bias, ours has none, either.
        bias = ("output",) if make is _vit_pytorch else True
        ours = MultiHeadAttention(dim, dim // 64, bias=bias)
        theirs = make(ours)
        x = torch.randn(batch, length, dim)
        return Pair(PASSES[mode](ours, x), PASSES[mode](theirs, x))

    return build
