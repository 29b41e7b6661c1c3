"""The whole model: embeddings, encoder, decoder, output projection, generation."""

import math
from dataclasses import dataclass
from typing import Literal, Unpack

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor, nn

from transformers_hw._engine.arguments import (
    check_below,
    check_sizes,
    check_token,
)
from transformers_hw._engine.shapes import checked
from transformers_hw.positional_encoding import LearnedPositions, SinusoidalPositions
from transformers_hw.transformer.config import (
    LayerOptions,
    StackConfig,
    split_options,
)
from transformers_hw.transformer.stacks import Decoder, DecoderCache, Encoder

Positions = Literal["sinusoidal", "learned"] | None


@dataclass(frozen=True)
class TransformerConfig(StackConfig):
    """The settings of a Transformer: `Transformer(**asdict(config))` builds it again.

    Attributes:
        vocab_size: Number of target tokens.
        source_vocab_size: Number of source tokens; `None` if it is `vocab_size`.
        padding_token: Token that fills up sequences.
        tied: Whether the output projection is the target embedding, transposed.
        positions: Positional encoding of both sides.
        max_length: Number of positions, if they are learned.
    """

    vocab_size: int
    source_vocab_size: int | None
    padding_token: int
    tied: bool
    positions: Positions
    max_length: int

    def __post_init__(self) -> None:
        """Raise unless sizes are positive and padding is in the vocabularies."""
        super().__post_init__()
        source = self.source_vocab_size
        source = self.vocab_size if source is None else source
        for name, size in (
            ("vocab_size", self.vocab_size),
            ("source_vocab_size", source),
        ):
            check_sizes(**{name: size})
            check_token("padding_token", self.padding_token, size)
        check_sizes(max_length=self.max_length)


class Transformer(nn.Module):
    r"""Translate one sequence of tokens into another.

    Tokens are embedded, multiplied by $\sqrt d$ and given their positions. The encoder
    reads the source; the decoder predicts each target token from the source and the
    target tokens before it. With `tied`, one table embeds the target tokens and, as
    the output projection, scores them; it embeds the source tokens, too, unless these
    have a vocabulary of their own.

    Args:
        vocab_size: Number of tokens of the target language, and of the source
            language unless `source_vocab_size` is given.
        dim: Width $d$ of a token.
        heads: Number of attention heads.
        hidden_dim: Width of the feed-forward networks' hidden layers.
        depth: Number of layers of the encoder, and of the decoder.
        source_vocab_size: Number of source tokens, if the source language has a
            vocabulary of its own.
        padding_token: Token that fills up sequences; no token attends to it.
        tied: Whether the weights of the output projection are those of the target
            embedding.
        positions: `"sinusoidal"`, `"learned"` or `None`.
        max_length: Number of positions, if they are learned.
        final_norm: Whether both stacks end with a layer norm; by default only after
            pre-norm layers.
        **options: Keywords of
            [`LayerOptions`][transformers_hw.transformer.LayerOptions]. `dropout` also
            acts on the embedded tokens.

    Raises:
        ValueError: If a number is out of range, a name is unknown, or `heads` does not
            divide `dim`.

    Examples:
        >>> model = Transformer(11, dim=12, heads=3, hidden_dim=48, depth=2)
        >>> source, target = torch.randint(1, 11, (2, 7)), torch.randint(1, 11, (2, 5))
        >>> model(source, target).shape
        torch.Size([2, 5, 11])
        >>> model.eval().generate(source, begin=1, end=2, max_length=4).shape
        torch.Size([2, 4])
        >>> model.config.depth
        2

    References:
        Vaswani et al. (2017), [Attention Is All You Need
        ](https://arxiv.org/abs/1706.03762), section 3 and figure 1.
    """

    @checked
    def __init__(
        self,
        vocab_size: int,
        *,
        dim: int = 512,
        heads: int = 8,
        hidden_dim: int = 2048,
        depth: int = 6,
        source_vocab_size: int | None = None,
        padding_token: int = 0,
        tied: bool = True,
        positions: Positions = "sinusoidal",
        max_length: int = 512,
        final_norm: bool | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__()
        settings, factory = split_options(options)
        self.config = TransformerConfig(
            dim,
            heads,
            hidden_dim,
            depth,
            final_norm,
            vocab_size,
            source_vocab_size,
            padding_token,
            tied,
            positions,
            max_length,
            **settings,
        )
        self.embedding = nn.Embedding(vocab_size, dim, **factory)
        self.source_embedding = None
        if source_vocab_size is not None or not tied:
            size = vocab_size if source_vocab_size is None else source_vocab_size
            self.source_embedding = nn.Embedding(size, dim, **factory)
        # A tied projection uses the embedding itself: there is no second tensor that
        # saving, loading or moving could separate from it.
        self.output_proj = None
        if not tied:
            self.output_proj = nn.Linear(dim, vocab_size, bias=False, **factory)
        self.positions = None
        if positions == "sinusoidal":
            self.positions = SinusoidalPositions(dim)
        elif positions == "learned":
            self.positions = LearnedPositions(max_length, dim, **factory)
        self.dropout = nn.Dropout(self.config.dropout)
        sizes = (dim, heads, hidden_dim, depth)
        self.encoder = Encoder(*sizes, final_norm=final_norm, **options)
        self.decoder = Decoder(*sizes, final_norm=final_norm, **options)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        r"""Draw embeddings with variance $1/d$, which $\sqrt d$ scales to one."""
        for table in (self.embedding, self.source_embedding, self.output_proj):
            if table is not None:
                nn.init.normal_(table.weight, std=table.weight.shape[1] ** -0.5)

    @checked
    def forward(
        self, source: Int[Tensor, "b s"], target: Int[Tensor, "b t"]
    ) -> Float[Tensor, "b t vocab_size"]:
        """Predict every next target token from the true ones before it.

        Args:
            source: Tokens to translate.
            target: Tokens of the translation, beginning with the begin token.

        Returns:
            The logits of the token that follows each target token.
        """
        return self.decode(target, self.encode(source), source)

    @checked
    def encode(self, source: Int[Tensor, "b s"]) -> Float[Tensor, "b s d"]:
        """Encode the source."""
        x = self._embed("source", source, self.source_embedding or self.embedding)
        return self.encoder(x, padding_mask=source != self.config.padding_token)

    @checked
    def decode(
        self,
        target: Int[Tensor, "b t"],
        memory: Float[Tensor, "b s d"],
        source: Int[Tensor, "b s"],
        *,
        cache: DecoderCache | None = None,
    ) -> Float[Tensor, "b t vocab_size"]:
        """Return the logits of the tokens that follow `target`.

        Args:
            target: Target tokens; with a cache, only those it does not hold yet.
            memory: Output of the encoder.
            source: Source tokens, which show what is padding.
            cache: Keys and values of earlier steps, for decoding step by step; there
                is no padding in the target then.
        """
        padding = self.config.padding_token
        start = 0 if cache is None else cache.length
        x = self.decoder(
            self._embed("target", target, self.embedding, start=start),
            memory,
            padding_mask=target != padding if cache is None else None,
            memory_padding_mask=source != padding,
            cache=cache,
        )
        return F.linear(x, (self.output_proj or self.embedding).weight)

    @torch.no_grad()
    @checked
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
        r"""Generate translations token by token with beam search.

        At each step, the `beams` likeliest partial translations are kept; with
        `beams=1` this is greedy decoding. In the end, the translation $y$ with the
        greatest

        $$
        \frac{\log p(y \mid x)}{\left((5 + |y|)/6\right)^{\alpha}}
        $$

        is returned. Call `eval()` first; otherwise dropout stays active.

        Args:
            source: Tokens to translate.
            begin: Token that begins every translation; it is not returned.
            end: Token that ends a translation.
            max_length: Greatest number of tokens to generate, the end token included.
            beams: Number of partial translations to keep.
            length_penalty: $\alpha$; greater values favor longer translations.

        Returns:
            The translations, padded after their end tokens.

        Raises:
            ValueError: If `max_length` or `beams` is not positive, or `begin` or `end`
                is not a token or is the padding token.

        References:
            Wu et al. (2016), [Google's Neural Machine Translation System
            ](https://arxiv.org/abs/1609.08144), section 7, for the penalty.
        """
        check_sizes(max_length=max_length, beams=beams)
        padding = self.config.padding_token
        for name, token in (("begin", begin), ("end", end)):
            check_token(name, token, self.config.vocab_size)
            if token == padding:
                raise ValueError(
                    f"{name} must not be the padding token, which is neither attended "
                    f"to nor generated, got {token}."
                )
        rows, cache = len(source), DecoderCache(len(self.decoder.layers))
        memory = repeat(self.encode(source), "b s d -> (b beam) s d", beam=beams)
        source = repeat(source, "b s -> (b beam) s", beam=beams)
        tokens = source.new_full((rows * beams, 1), begin)
        # All beams begin alike, so at first only one of them may be continued.
        score = memory.new_full((rows, beams), -math.inf, dtype=torch.float32)
        score[:, 0] = 0.0
        done = torch.zeros_like(tokens[:, 0], dtype=torch.bool)
        first = rearrange(torch.arange(rows, device=source.device) * beams, "b -> b 1")
        for _ in range(max_length):
            logits = self.decode(tokens[:, -1:], memory, source, cache=cache)[:, 0]
            gain = logits.float().log_softmax(dim=-1)
            # Finished translations continue with padding, at no cost; others never.
            gain[:, padding] = -math.inf
            gain[done] = -math.inf
            gain[done, padding] = 0.0
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
        generated = tokens[:, 1:]
        length = (generated != padding).sum(dim=1)
        penalty = ((5.0 + length) / 6.0) ** length_penalty
        score = score / rearrange(penalty, "(b beam) -> b beam", beam=beams)
        best = first[:, 0] + score.argmax(dim=1)
        return generated[best]

    def _embed(
        self, name: str, tokens: Tensor, table: nn.Embedding, *, start: int = 0
    ) -> Tensor:
        check_below(f"{name} tokens", tokens, table.num_embeddings)
        x = table(tokens) * math.sqrt(table.embedding_dim)
        if self.positions is not None:
            x = self.positions(x, start=start)
        return self.dropout(x)
