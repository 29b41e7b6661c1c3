"""The whole model: embeddings, encoder, decoder, readout, and how to generate."""

import math
from typing import Literal, Unpack

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor, nn

from transformers_hw._checks import (
    check_below,
    check_choice,
    check_integers,
    check_sizes,
    check_token,
)
from transformers_hw.positional_encoding import (
    PositionalEncoding,
    SinusoidalPositions,
)
from transformers_hw.transformer.stacks import (
    Decoder,
    DecoderCache,
    Encoder,
    LayerOptions,
)


class Transformer(nn.Module):
    r"""Translate one sequence of tokens into another.

    Tokens are embedded, multiplied by $\sqrt d$ and given their positions; the
    encoder reads the source, the decoder predicts each target token from the
    source and the target tokens before it. With one vocabulary for both sides,
    `tied` uses one table for the source, the target and the readout.

    Args:
        vocabulary: Number of tokens of the target language, and of the source
            language unless `source_vocabulary` says otherwise.
        dim: Width $d$ of a token.
        heads: Number of attention heads.
        hidden_dim: Width of the feed-forward networks' hidden layers.
        depth: Number of layers of the encoder, and of the decoder.
        source_vocabulary: Number of source tokens, if they are others.
        padding_token: The token that fills up sequences; it is never looked at.
        tied: Whether the readout's weights are those of the target embedding.
        positions: Joined with the embedded tokens; `None` for no positions.
        final_norm: Whether both stacks end with a normalisation; by default just
            for pre-norm.
        **options: Of each layer.

    Raises:
        ValueError: If an argument is not valid.

    Examples:
        >>> model = Transformer(11, dim=12, heads=3, hidden_dim=48, depth=2)
        >>> source, target = torch.randint(1, 11, (2, 7)), torch.randint(1, 11, (2, 5))
        >>> model(source, target).shape
        torch.Size([2, 5, 11])
        >>> model.eval().generate(source, begin=1, end=2, max_length=4).shape
        torch.Size([2, 4])

    References:
        Vaswani et al. (2017), [Attention Is All You Need
        ](https://arxiv.org/abs/1706.03762), section 3 and figure 1.
    """

    def __init__(
        self,
        vocabulary: int,
        *,
        dim: int = 512,
        heads: int = 8,
        hidden_dim: int = 2048,
        depth: int = 6,
        source_vocabulary: int | None = None,
        padding_token: int = 0,
        tied: bool = True,
        positions: PositionalEncoding | Literal["sinusoidal"] | None = "sinusoidal",
        final_norm: bool | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__()
        check_sizes(vocabulary=vocabulary, dim=dim)
        check_token("padding_token", padding_token, vocabulary)
        if source_vocabulary is not None:
            check_sizes(source_vocabulary=source_vocabulary)
            check_token("padding_token", padding_token, source_vocabulary)
        if not isinstance(positions, PositionalEncoding):
            check_choice("positions", positions, ("sinusoidal", None))
        place = {"device": options.get("device"), "dtype": options.get("dtype")}
        self.padding_token = padding_token
        self.embedding = nn.Embedding(vocabulary, dim, **place)
        self.source_embedding = None
        if source_vocabulary is not None or not tied:
            size = vocabulary if source_vocabulary is None else source_vocabulary
            self.source_embedding = nn.Embedding(size, dim, **place)
        # A tied readout uses the embedding itself: there is no second tensor that
        # saving, loading or moving could part from it.
        self.readout = None
        if not tied:
            self.readout = nn.Linear(dim, vocabulary, bias=False, **place)
        self.positions = (
            SinusoidalPositions(dim) if positions == "sinusoidal" else positions
        )
        self.dropout = nn.Dropout(options.get("dropout", 0.0))
        sizes = (dim, heads, hidden_dim, depth)
        self.encoder = Encoder(*sizes, final_norm=final_norm, **options)
        self.decoder = Decoder(*sizes, final_norm=final_norm, **options)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        r"""Draw embeddings with variance $1/d$, which $\sqrt d$ brings to one."""
        for table in (self.embedding, self.source_embedding, self.readout):
            if table is not None:
                nn.init.normal_(table.weight, std=table.weight.shape[1] ** -0.5)

    def forward(
        self, source: Int[Tensor, "b s"], target: Int[Tensor, "b t"]
    ) -> Float[Tensor, "b t vocabulary"]:
        """Predict every next target token, given the true ones before it.

        Args:
            source: Tokens to translate.
            target: Tokens of the translation, beginning with the begin token.

        Returns:
            The logits of the token that follows each target token.
        """
        return self.decode(target, self.encode(source), source)

    def encode(self, source: Int[Tensor, "b s"]) -> Float[Tensor, "b s d"]:
        """Read the source."""
        table = (
            self.embedding if self.source_embedding is None else self.source_embedding
        )
        x = self._embed("source", source, table)
        return self.encoder(x, padding_mask=source != self.padding_token)

    def decode(
        self,
        target: Int[Tensor, "b t"],
        memory: Float[Tensor, "b s d"],
        source: Int[Tensor, "b s"],
        *,
        cache: DecoderCache | None = None,
    ) -> Float[Tensor, "b t vocabulary"]:
        """Give the logits of the tokens that follow `target`.

        Args:
            target: Target tokens; with a cache, only those it does not hold yet.
            memory: The encoder's output.
            source: The source tokens, which tell what is padding.
            cache: For decoding step by step, without target padding.
        """
        start = 0 if cache is None else cache.length
        x = self.decoder(
            self._embed("target", target, self.embedding, start=start),
            memory,
            padding_mask=target != self.padding_token if cache is None else None,
            memory_padding_mask=source != self.padding_token,
            cache=cache,
        )
        if self.readout is None:
            return F.linear(x, self.embedding.weight)
        return self.readout(x)

    @torch.no_grad()
    def generate(
        self,
        source: Int[Tensor, "b s"],
        *,
        begin: int,
        end: int,
        max_length: int,
        beams: int = 1,
        length_penalty: float = 0.6,
    ) -> Int[Tensor, "b t"]:
        r"""Translate step by step, keeping the best few translations so far.

        With `beams=1` this is greedy decoding. Otherwise the finished sequence
        $y$ with the greatest

        $$
        \frac{\log p(y \mid x)}{\left((5 + |y|)/6\right)^{\alpha}}
        $$

        among the beams wins. Call `eval()` first, lest dropout take part.

        Args:
            source: Tokens to translate.
            begin: The token that begins every translation; it is not returned.
            end: The token that ends one.
            max_length: Most tokens to generate, the end token included.
            beams: How many partial translations to keep.
            length_penalty: $\alpha$; greater prefers longer translations.

        Returns:
            The translations, padded after their end tokens.

        Raises:
            ValueError: If a number is not valid.

        References:
            Wu et al. (2016), [Google's Neural Machine Translation System
            ](https://arxiv.org/abs/1609.08144), section 7, for the penalty.
        """
        check_sizes(max_length=max_length, beams=beams)
        for name, token in (("begin", begin), ("end", end)):
            check_token(name, token, self.embedding.num_embeddings)
        rows, cache = len(source), DecoderCache(len(self.decoder.layers))
        memory = repeat(self.encode(source), "b s d -> (b beam) s d", beam=beams)
        source = repeat(source, "b s -> (b beam) s", beam=beams)
        tokens = source.new_full((rows * beams, 1), begin)
        # All beams begin alike: only the first may be continued at first.
        score = memory.new_full((rows, beams), -math.inf, dtype=torch.float32)
        score[:, 0] = 0.0
        done = torch.zeros_like(tokens[:, 0], dtype=torch.bool)
        first = rearrange(torch.arange(rows, device=source.device) * beams, "b -> b 1")
        for _ in range(max_length):
            logits = self.decode(tokens[:, -1:], memory, source, cache=cache)[:, 0]
            gain = logits.float().log_softmax(dim=-1)
            # Only a finished translation goes on with padding, and at no cost.
            gain[:, self.padding_token] = -math.inf
            gain[done] = -math.inf
            gain[done, self.padding_token] = 0.0
            total = rearrange(score, "b beam -> (b beam) 1") + gain
            total = rearrange(total, "(b beam) v -> b (beam v)", beam=beams)
            score, choice = total.topk(beams, dim=-1)
            parent = rearrange(first + choice // gain.shape[-1], "b beam -> (b beam)")
            word = rearrange(choice % gain.shape[-1], "b beam -> (b beam) 1")
            tokens = torch.cat([tokens[parent], word], dim=1)
            done = done[parent] | (word[:, 0] == end)
            if done.all():
                break
            if beams > 1:
                cache.select(parent)
        written = tokens[:, 1:]
        length = (written != self.padding_token).sum(dim=1)
        penalty = ((5.0 + length) / 6.0) ** length_penalty
        rank = score / rearrange(penalty, "(b beam) -> b beam", beam=beams)
        best = first[:, 0] + rank.argmax(dim=1)
        return written[best]

    def _embed(
        self, name: str, tokens: Tensor, table: nn.Embedding, *, start: int = 0
    ) -> Tensor:
        check_integers(name, tokens, "batch", "length")
        check_below(f"{name} tokens", tokens, table.num_embeddings)
        x = table(tokens) * math.sqrt(table.embedding_dim)
        return self.dropout(
            x if self.positions is None else self.positions(x, start=start)
        )
