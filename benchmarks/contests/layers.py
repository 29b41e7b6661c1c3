"""Encoder and decoder layers against PyTorch's."""

from collections.abc import Callable, Iterator

import torch
from measuring import PASSES, Pair, Row
from torch import nn

from transformers_hw.pretrained import (
    from_torch,
)

# Dim, heads, tokens, batch. PyTorch's encoder layer has a fast path for inference,
# which needs an even number of heads.
SIZES = ((192, 3, 65, 32), (192, 4, 65, 32), (768, 12, 197, 4))


def rows() -> Iterator[Row]:
    """Yield all comparisons."""
    for group in ("encoder_layer", "decoder_layer"):
        for dim, heads, length, batch in SIZES:
            for norm in ("pre", "post"):
                case = f"{norm}-norm, dim {dim}, {heads} heads, {length} tokens"
                case = f"{case}, batch {batch}"
                for mode in PASSES:
                    build = _layers(group, norm, mode, dim, heads, length, batch)
                    quick = heads == 4 and norm == "pre"
                    yield Row(group, case, "torch", mode, build, quick)


def _layers(
    group: str, norm: str, mode: str, dim: int, heads: int, length: int, batch: int
) -> Callable[[], Pair]:
    options = {"dim_feedforward": 4 * dim, "dropout": 0.0, "activation": "gelu"}
    options |= {"batch_first": True, "norm_first": norm == "pre"}
    run = PASSES[mode]

    def encoder_layers() -> Pair:
        theirs = nn.TransformerEncoderLayer(dim, heads, **options)
        x = torch.randn(batch, length, dim)
        layer = from_torch(theirs)
        return Pair(run(layer, x), run(theirs, x))

    def decoder_layers() -> Pair:
        theirs = nn.TransformerDecoderLayer(dim, heads, **options)
        x, memory = (torch.randn(batch, length, dim) for _ in range(2))
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        layer = from_torch(theirs)
        return Pair(
            run(layer, x, memory),
            run(theirs, x, memory, tgt_mask=mask, tgt_is_causal=True),
        )

    return encoder_layers if group == "encoder_layer" else decoder_layers
