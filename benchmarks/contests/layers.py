"""Encoder and decoder layers against PyTorch's."""

from collections.abc import Callable, Iterator

import torch
from measuring import Pair, Row, forward, with_backward
from torch import nn

from transformers_hw.pretrained import (
    decoder_layer_from_torch,
    encoder_layer_from_torch,
)
from transformers_hw.transformer.layers import NormPlace

# Width, heads, length and batch. PyTorch's encoder layers have a fast path for
# evaluation, which needs an even number of heads.
SIZES = ((192, 3, 65, 32), (192, 4, 65, 32), (512, 8, 197, 4), (768, 12, 197, 4))


def rows() -> Iterator[Row]:
    """Give all comparisons."""
    for dim, heads, length, batch in SIZES:
        for norm in ("pre", "post"):
            for mode in ("forward", "forward and backward"):
                what = f"{norm}-norm, dim {dim}, {heads} heads, N {length}"
                what += f", batch {batch}"
                sizes = (dim, heads, length, batch)
                for group, make in (
                    ("Encoder layer", _encoder_layers),
                    ("Decoder layer", _decoder_layers),
                ):
                    quick = heads == 4 and norm == "pre"
                    build = make(norm, mode, *sizes)
                    yield Row(group, what, "torch", mode, build, quick)


def _options(norm: NormPlace, dim: int, heads: int) -> dict:
    return {
        "d_model": dim,
        "nhead": heads,
        "dim_feedforward": 4 * dim,
        "dropout": 0.0,
        "activation": "gelu",
        "batch_first": True,
        "norm_first": norm == "pre",
    }


def _encoder_layers(
    norm: NormPlace, mode: str, dim: int, heads: int, length: int, batch: int
) -> Callable[[], Pair]:
    def build() -> Pair:
        theirs = nn.TransformerEncoderLayer(**_options(norm, dim, heads))
        weights = theirs.state_dict()
        ours = encoder_layer_from_torch(
            weights, heads=heads, norm=norm, activation="gelu"
        )
        x = torch.randn(batch, length, dim)
        run = forward if mode == "forward" else with_backward
        return Pair(run(ours, x), run(theirs, x))

    return build


def _decoder_layers(
    norm: NormPlace, mode: str, dim: int, heads: int, length: int, batch: int
) -> Callable[[], Pair]:
    def build() -> Pair:
        theirs = nn.TransformerDecoderLayer(**_options(norm, dim, heads))
        weights = theirs.state_dict()
        ours = decoder_layer_from_torch(
            weights, heads=heads, norm=norm, activation="gelu"
        )
        x, memory = (torch.randn(batch, length, dim) for _ in range(2))
        later = nn.Transformer.generate_square_subsequent_mask(length)
        run = forward if mode == "forward" else with_backward
        return Pair(
            run(ours, x, memory),
            run(theirs, x, memory, tgt_mask=later, tgt_is_causal=True),
        )

    return build
