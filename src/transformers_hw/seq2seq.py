r"""Sequence to sequence: a recurrent encoder reads, a recurrent decoder writes.

The encoder turns the source $x_1, \dots, x_n$ into states; the decoder starts from the
last of them, and a linear readout scores the next token:

$$
h_j = f(x_j, h_{j-1}), \qquad s_0 = h_n, \quad s_i = g(y_{i-1}, s_{i-1}),
\qquad p(y_i \mid y_{<i}, x) = \operatorname{softmax}(R\, s_i + r).
$$

Everything the decoder knows about the source must fit into $h_n$, the bottleneck.
Attention opens a second path: every decoder state attends to all encoder states, and
the readout also receives the result:

$$
a_i = \operatorname{softmax}_j\big(\operatorname{score}(s_i, h_j)\big), \quad
c_i = \sum_j a_{ij} h_j, \qquad
p(y_i \mid y_{<i}, x) = \operatorname{softmax}(R\, [s_i; c_i] + r).
$$
"""

import math
from dataclasses import dataclass
from typing import Literal, Unpack

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from transformers_hw._engine.arguments import (
    Factory,
    check_below,
    check_sizes,
    check_token,
    warn_if_all_is_padding,
)
from transformers_hw._engine.shapes import checked
from transformers_hw.attention import dot_product_attention, softmax

Cell = Literal["gru", "rnn"]
Score = Literal["dot", "bilinear", "additive"]


class RNN(nn.Module):
    r"""Update a hidden state step by step along a sequence.

    $$h_t = \tanh(W_{ih}\, x_t + b_{ih} + W_{hh}\, h_{t-1} + b_{hh})$$

    The weights, $h \times d$ and $h \times h$, are shared by all steps and named as in
    [`torch.nn.RNN`][torch.nn.RNN]. One product projects the inputs of all steps; the
    rest needs the previous state and is a loop. `torch.compile` and `torch.export`
    unroll this loop: batch sizes may vary, but each length has a graph of its own.

    Args:
        input_dim: Width $d$ of the inputs.
        hidden_dim: Width $h$ of the state.
        **factory: `device` and `dtype` of the parameters.

    Examples:
        >>> states, last = RNN(3, 5)(torch.randn(2, 7, 3))
        >>> states.shape, last.shape
        (torch.Size([2, 7, 5]), torch.Size([2, 5]))

    References:
        Elman (1990), Finding Structure in Time, Cognitive Science 14.
    """

    gates = 1

    @checked
    def __init__(
        self, input_dim: int, hidden_dim: int, **factory: Unpack[Factory]
    ) -> None:
        super().__init__()
        check_sizes(input_dim=input_dim, hidden_dim=hidden_dim)
        self.input_dim, self.hidden_dim = input_dim, hidden_dim
        rows = self.gates * hidden_dim
        self.weight_ih = nn.Parameter(torch.empty(rows, input_dim, **factory))
        self.weight_hh = nn.Parameter(torch.empty(rows, hidden_dim, **factory))
        self.bias_ih = nn.Parameter(torch.empty(rows, **factory))
        self.bias_hh = nn.Parameter(torch.empty(rows, **factory))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        r"""Draw all parameters uniformly from $\pm 1/\sqrt{h}$, as PyTorch does."""
        bound = 1.0 / math.sqrt(self.hidden_dim)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def step(
        self, projected: Float[Tensor, "b rows"], state: Float[Tensor, "b h"]
    ) -> Float[Tensor, "b h"]:
        r"""Return the next state, given $W_{ih}\, x_t + b_{ih}$ and the last state."""
        return torch.tanh(projected + F.linear(state, self.weight_hh, self.bias_hh))

    @checked
    def forward(
        self,
        x: Float[Tensor, "b n {self.input_dim}"],
        state: Float[Tensor, "b {self.hidden_dim}"] | None = None,
        *,
        padding_mask: Bool[Tensor, "b n"] | None = None,
    ) -> tuple[
        Float[Tensor, "b n {self.hidden_dim}"], Float[Tensor, "b {self.hidden_dim}"]
    ]:
        """Return the state after each step, and the state after the last real step.

        Args:
            x: The inputs.
            state: The state before the first step; zero by default.
            padding_mask: `True` for real steps, `False` for padding. Padding leaves the
                state unchanged, and its inputs have no influence, even if NaN.
        """
        check_sizes(length=x.shape[1])
        if padding_mask is not None:
            warn_if_all_is_padding(padding_mask)
            x = x.where(rearrange(padding_mask, "b n -> b n 1"), 0.0)
        steps = F.linear(x, self.weight_ih, self.bias_ih)
        if state is None:
            state = steps.new_zeros(x.shape[0], self.hidden_dim)
        # Under autocast the products have another dtype than a state from outside.
        state, states = state.to(steps.dtype), []
        for t, projected in enumerate(steps.unbind(dim=1)):
            before, state = state, self.step(projected, state)
            if padding_mask is not None:
                state = state.where(rearrange(padding_mask[:, t], "b -> b 1"), before)
            states.append(state)
        return rearrange(states, "n b h -> b n h"), state

    def extra_repr(self) -> str:
        """Show the sizes in `repr`."""
        return f"{self.input_dim}, {self.hidden_dim}"


class GRU(RNN):
    r"""Update a hidden state through gates that keep some of it and replace the rest.

    $$
    \begin{aligned}
    r_t &= \sigma(W_{ir}\, x_t + b_{ir} + W_{hr}\, h_{t-1} + b_{hr}) \\
    z_t &= \sigma(W_{iz}\, x_t + b_{iz} + W_{hz}\, h_{t-1} + b_{hz}) \\
    n_t &= \tanh(W_{in}\, x_t + b_{in} + r_t \odot (W_{hn}\, h_{t-1} + b_{hn})) \\
    h_t &= (1 - z_t) \odot n_t + z_t \odot h_{t-1}
    \end{aligned}
    $$

    Where the update gate $z_t$ is one, the state passes through unchanged. The reset
    gate $r_t$ is applied after the product with $W_{hn}$, as in PyTorch; the paper
    applies it before. Arguments and calls are those of
    [`RNN`][transformers_hw.seq2seq.RNN].

    Examples:
        >>> theirs, ours = nn.GRU(3, 5, batch_first=True), GRU(3, 5)
        >>> weights = {k.removesuffix("_l0"): w for k, w in theirs.state_dict().items()}
        >>> ours.load_state_dict(weights)
        <All keys matched successfully>
        >>> x = torch.randn(2, 7, 3)
        >>> torch.allclose(ours(x)[0], theirs(x)[0], atol=1e-6)
        True

    References:
        Cho et al. (2014), [Learning Phrase Representations using RNN
        Encoder–Decoder](https://arxiv.org/abs/1406.1078), section 2.3.
    """

    gates = 3

    def step(
        self, projected: Float[Tensor, "b rows"], state: Float[Tensor, "b h"]
    ) -> Float[Tensor, "b h"]:
        r"""Return the next state, given $W_{ih}\, x_t + b_{ih}$ and the last state."""
        recalled = F.linear(state, self.weight_hh, self.bias_hh)
        x_r, x_z, x_n = projected.chunk(3, dim=-1)
        h_r, h_z, h_n = recalled.chunk(3, dim=-1)
        new = torch.tanh(x_n + torch.sigmoid(x_r + h_r) * h_n)
        return new.lerp(state, torch.sigmoid(x_z + h_z))


class Alignment(nn.Module):
    r"""Attend to the states of an encoder by a dot-product, bilinear or additive score.

    $$
    \text{dot: } s^\top h \qquad
    \text{bilinear: } s^\top W h \qquad
    \text{additive: } v^\top \tanh(U s + W h)
    $$

    The first two are [`dot_product_attention`
    ][transformers_hw.attention.dot_product_attention] with keys $h$ or $W h$, values
    $h$ and $\beta = 1$. The third applies a small network to every pair, and needs $d$
    numbers for each score.

    Args:
        query_dim: Width $d$ of the queries $s$, and of the additive score's network.
        memory_dim: Width of the encoder states $h$.
        score: `"dot"`, `"bilinear"` or `"additive"`.
        **factory: `device` and `dtype` of the parameters.

    Raises:
        ValueError: If a width is not positive, `score` is unknown, or the widths
            differ for `"dot"`.

    Examples:
        >>> query, memory = torch.randn(2, 3, 5), torch.randn(2, 7, 4)
        >>> Alignment(5, 4, score="bilinear")(query, memory).shape
        torch.Size([2, 3, 4])

    References:
        Luong, Pham & Manning (2015), [Effective Approaches to Attention-based NMT
        ](https://arxiv.org/abs/1508.04025), section 3.1, "dot" and "general";
        Bahdanau, Cho & Bengio (2015), [Neural Machine Translation by Jointly Learning
        to Align and Translate](https://arxiv.org/abs/1409.0473), appendix A.1.2.
    """

    @checked
    def __init__(
        self,
        query_dim: int,
        memory_dim: int,
        *,
        score: Score,
        **factory: Unpack[Factory],
    ) -> None:
        super().__init__()
        check_sizes(query_dim=query_dim, memory_dim=memory_dim)
        if score == "dot" and query_dim != memory_dim:
            raise ValueError(f"dot needs one width, got {query_dim} and {memory_dim}.")
        self.query_dim, self.memory_dim, self.score = query_dim, memory_dim, score
        if score != "dot":
            self.key_proj = nn.Linear(memory_dim, query_dim, bias=False, **factory)
        if score == "additive":
            self.query_proj = nn.Linear(query_dim, query_dim, bias=False, **factory)
            self.score_proj = nn.Linear(query_dim, 1, bias=False, **factory)

    @checked
    def forward(
        self,
        query: Float[Tensor, "b q {self.query_dim}"],
        memory: Float[Tensor, "b k {self.memory_dim}"],
        *,
        mask: Bool[Tensor, "#b #q #k"] | None = None,
        return_weights: bool = False,
    ) -> (
        Float[Tensor, "b q {self.memory_dim}"]
        | tuple[Float[Tensor, "b q {self.memory_dim}"], Float[Tensor, "b q k"]]
    ):
        """Return the average of the encoder states, weighted by their scores.

        Args:
            query: States of the decoder.
            memory: States of the encoder, used as keys and as values.
            mask: `True` where a query may attend to a state.
            return_weights: Whether to return the attention weights too.
        """
        key = memory if self.score == "dot" else self.key_proj(memory)
        if self.score != "additive":
            return dot_product_attention(
                query, key, memory, mask=mask, scale=1.0, return_weights=return_weights
            )
        projected = rearrange(self.query_proj(query), "b q d -> b q 1 d")
        pairs = torch.tanh(projected + rearrange(key, "b k d -> b 1 k d"))
        scores = rearrange(self.score_proj(pairs), "b q k 1 -> b q k")
        weights = softmax(scores, mask=mask)
        context = einsum(weights, memory, "b q k, b k e -> b q e")
        return (context, weights) if return_weights else context

    def extra_repr(self) -> str:
        """Show the sizes and the score in `repr`."""
        return f"{self.query_dim}, {self.memory_dim}, score={self.score!r}"


@dataclass(frozen=True)
class Seq2SeqConfig:
    """Hold the settings of a model; `Seq2Seq(**asdict(config))` builds it again.

    The attributes are the arguments of [`Seq2Seq`][transformers_hw.seq2seq.Seq2Seq].
    """

    vocab_size: int
    dim: int
    hidden_dim: int
    cell: Cell
    attention: Score | None
    padding_token: int


class Seq2Seq(nn.Module):
    r"""Map one sequence of tokens to another by a recurrent encoder and decoder.

    The context $c_i$ goes to the readout and not back into the recurrence, so with
    teacher forcing all steps attend at once. (Bahdanau et al. query with $s_{i-1}$ and
    feed $c_i$ into the recurrence; Luong et al. query with $s_i$ and add a $\tanh$
    layer before the readout.)

    Args:
        vocab_size: Number of tokens in the vocabulary that source and target share.
        dim: Width of an embedded token.
        hidden_dim: Width of the states.
        cell: `"gru"` or `"rnn"`, for encoder and decoder.
        attention: A score of [`Alignment`][transformers_hw.seq2seq.Alignment], or
            `None` for the bottleneck alone.
        padding_token: Token that fills up short sequences; it is ignored in a source.
        **factory: `device` and `dtype` of the parameters.

    Raises:
        ValueError: If a size is not positive, `cell` or `attention` is unknown, or
            `padding_token` is not in the vocabulary.

    Examples:
        >>> model = Seq2Seq(58, dim=16, hidden_dim=32, attention="dot")
        >>> source, target_inputs = torch.ones(2, 8).long(), torch.ones(2, 7).long()
        >>> model(source, target_inputs).shape
        torch.Size([2, 7, 58])
        >>> logits, weights = model(source, target_inputs, return_weights=True)
        >>> weights.shape
        torch.Size([2, 7, 8])

    References:
        Sutskever, Vinyals & Le (2014), [Sequence to Sequence Learning with Neural
        Networks](https://arxiv.org/abs/1409.3215), section 2.
    """

    @checked
    def __init__(
        self,
        vocab_size: int,
        *,
        dim: int,
        hidden_dim: int,
        cell: Cell = "gru",
        attention: Score | None = None,
        padding_token: int = 0,
        **factory: Unpack[Factory],
    ) -> None:
        super().__init__()
        check_sizes(vocab_size=vocab_size, dim=dim, hidden_dim=hidden_dim)
        check_token("padding_token", padding_token, vocab_size)
        self.config = Seq2SeqConfig(
            vocab_size, dim, hidden_dim, cell, attention, padding_token
        )
        layer = GRU if cell == "gru" else RNN
        self.source_embedding = nn.Embedding(vocab_size, dim, **factory)
        self.encoder = layer(dim, hidden_dim, **factory)
        self.target_embedding = nn.Embedding(vocab_size, dim, **factory)
        self.decoder = layer(dim, hidden_dim, **factory)
        self.alignment, features = None, hidden_dim
        if attention is not None:
            features = 2 * hidden_dim
            self.alignment = Alignment(
                hidden_dim, hidden_dim, score=attention, **factory
            )
        self.readout = nn.Linear(features, vocab_size, **factory)

    @checked
    def encode(
        self, source: Int[Tensor, "b k"]
    ) -> tuple[Float[Tensor, "b k h"], Float[Tensor, "b h"]]:
        """Return the encoder's state after each source token, and its last state."""
        check_below("source", source, self.config.vocab_size)
        real = source != self.config.padding_token
        return self.encoder(self.source_embedding(source), padding_mask=real)

    @checked
    def decode(
        self,
        target_inputs: Int[Tensor, "b q"],
        state: Float[Tensor, "b {self.config.hidden_dim}"],
        memory: Float[Tensor, "b k {self.config.hidden_dim}"],
        source: Int[Tensor, "b k"],
        *,
        return_weights: bool = False,
    ) -> tuple[Float[Tensor, "b ..."], ...]:
        """Read target tokens and return the logits of the token after each.

        Args:
            target_inputs: All target tokens, or the next few of them.
            state: The decoder's state before them; initially the encoder's last state.
            memory: The encoder's states; unused without attention.
            source: The source tokens, from which the padding mask is made.
            return_weights: Whether to return the attention weights too.

        Returns:
            The logits and the state after the last token; with `return_weights`, also
            the weights.
        """
        check_below("target_inputs", target_inputs, self.config.vocab_size)
        states, last = self.decoder(self.target_embedding(target_inputs), state)
        if self.alignment is None:
            if return_weights:
                raise ValueError("return_weights needs attention, got attention=None.")
            return self.readout(states), last
        real = rearrange(source != self.config.padding_token, "b k -> b 1 k")
        options = {"mask": real, "return_weights": return_weights}
        result = self.alignment(states, memory, **options)
        context, *weights = result if return_weights else (result,)
        logits = self.readout(torch.cat([states, context], dim=-1))
        return logits, last, *weights

    @checked
    def forward(
        self,
        source: Int[Tensor, "b k"],
        target_inputs: Int[Tensor, "b q"],
        *,
        return_weights: bool = False,
    ) -> Float[Tensor, "b q v"] | tuple[Float[Tensor, "b q v"], Float[Tensor, "b q k"]]:
        """Predict each target token from the true tokens before it: teacher forcing.

        Args:
            source: Source tokens.
            target_inputs: Target tokens, shifted right by a begin token.
            return_weights: Whether to return the attention weights too.

        Returns:
            The logits of every next token; with `return_weights`, also the weights.

        Raises:
            ValueError: If a token is not in the vocabulary, or `return_weights` is set
                and the model has no attention.
        """
        memory, last = self.encode(source)
        logits, _, *weights = self.decode(
            target_inputs, last, memory, source, return_weights=return_weights
        )
        return (logits, weights[0]) if return_weights else logits

    @torch.no_grad()
    @checked
    def generate(
        self,
        source: Int[Tensor, "b k"],
        *,
        begin: int,
        end: int,
        max_length: int,
        return_weights: bool = False,
    ) -> Int[Tensor, "b q"] | tuple[Int[Tensor, "b q"], Float[Tensor, "b q k"]]:
        """Write the most probable token, read it, and repeat: greedy decoding.

        Args:
            source: Source tokens.
            begin: Token that starts every target; it is not returned.
            end: Token that ends a target.
            max_length: Maximum number of tokens to write, including the end token.
            return_weights: Whether to return the attention weights too.

        Returns:
            The tokens, padded after the end; with `return_weights`, also the weights,
            which are zero in the padding.
        """
        check_sizes(max_length=max_length)
        check_token("begin", begin, self.config.vocab_size)
        check_token("end", end, self.config.vocab_size)
        memory, state = self.encode(source)
        token = source.new_full((len(source), 1), begin)
        done = torch.zeros_like(token, dtype=torch.bool)
        tokens, rows = [], []
        for _ in range(max_length):
            logits, state, *weights = self.decode(
                token, state, memory, source, return_weights=return_weights
            )
            token = logits.argmax(dim=-1).masked_fill(done, self.config.padding_token)
            tokens.append(token)
            if return_weights:
                after_end = rearrange(done, "b 1 -> b 1 1")
                rows.append(weights[0].masked_fill(after_end, 0.0))
            done = done | (token == end)
            if done.all():
                break
        written = torch.cat(tokens, dim=1)
        return (written, torch.cat(rows, dim=1)) if return_weights else written
