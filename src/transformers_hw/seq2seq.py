r"""Sequence to sequence: a recurrent encoder reads, a recurrent decoder writes.

The encoder folds the source $x_1, \dots, x_n$ into states; the decoder starts
where the encoder ended, and a linear readout scores the next token:

$$
h_j = f(x_j, h_{j-1}), \qquad s_0 = h_n, \quad s_i = g(y_{i-1}, s_{i-1}),
\qquad p(y_i \mid y_{<i}, x) = \operatorname{softmax}(R\, s_i + r).
$$

All that the decoder learns of the source must fit into $h_n$: the bottleneck.
Attention opens a second way. Every decoder state asks all encoder states, and the
readout sees the answer too:

$$
a_i = \operatorname{softargmax}_j\big(\operatorname{score}(s_i, h_j)\big), \quad
c_i = \sum_j a_{ij} h_j, \qquad
p(y_i \mid y_{<i}, x) = \operatorname{softmax}(R\, [s_i; c_i] + r).
$$
"""

import math
import string
from collections.abc import Sequence
from itertools import takewhile
from typing import Literal, NamedTuple, TypedDict, Unpack, get_args

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from transformers_hw._checks import (
    check_axes,
    check_below,
    check_choice,
    check_float,
    check_integers,
    check_mask,
    check_sizes,
    check_token,
)
from transformers_hw.attention import attention, softargmax

Score = Literal["dot", "bilinear", "additive"]


class _Place(TypedDict, total=False):
    device: torch.device | str | None
    dtype: torch.dtype | None


class RNN(nn.Module):
    r"""Read a sequence step by step, keeping a state.

    $$h_t = \tanh(W_{ih}\, x_t + b_{ih} + W_{hh}\, h_{t-1} + b_{hh})$$

    The weights, $h \times d$ and $h \times h$, are the same at every step, and laid
    out as in [`torch.nn.RNN`][torch.nn.RNN]. One product projects the inputs of all
    steps; what needs the previous state is a loop. `torch.compile` and
    `torch.export` unroll it: batches may vary, but each length has its own graph.

    Args:
        input_dim: Width $d$ of the inputs.
        hidden_dim: Width $h$ of the state.
        **place: `device` and `dtype` of the parameters.

    Examples:
        >>> states, last = RNN(3, 5)(torch.randn(2, 7, 3))
        >>> states.shape, last.shape
        (torch.Size([2, 7, 5]), torch.Size([2, 5]))

    References:
        Elman (1990), Finding Structure in Time, Cognitive Science 14.
    """

    gates = 1

    def __init__(
        self, input_dim: int, hidden_dim: int, **place: Unpack[_Place]
    ) -> None:
        super().__init__()
        check_sizes(input_dim=input_dim, hidden_dim=hidden_dim)
        self.input_dim, self.hidden_dim = input_dim, hidden_dim
        rows = self.gates * hidden_dim
        self.weight_ih = nn.Parameter(torch.empty(rows, input_dim, **place))
        self.weight_hh = nn.Parameter(torch.empty(rows, hidden_dim, **place))
        self.bias_ih = nn.Parameter(torch.empty(rows, **place))
        self.bias_hh = nn.Parameter(torch.empty(rows, **place))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        r"""Draw all parameters evenly from $\pm 1/\sqrt{h}$, as PyTorch does."""
        bound = 1.0 / math.sqrt(self.hidden_dim)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def step(
        self, projected: Float[Tensor, "b rows"], state: Float[Tensor, "b h"]
    ) -> Float[Tensor, "b h"]:
        r"""Give the next state, from $W_{ih}\, x_t + b_{ih}$ and the state before."""
        return torch.tanh(projected + F.linear(state, self.weight_hh, self.bias_hh))

    def forward(
        self,
        x: Float[Tensor, "b n d"],
        state: Float[Tensor, "b h"] | None = None,
        *,
        padding_mask: Bool[Tensor, "b n"] | None = None,
    ) -> tuple[Float[Tensor, "b n h"], Float[Tensor, "b h"]]:
        """Give the states after each step, and the state after the last real one.

        Args:
            x: The inputs.
            state: The state before the first step; zero by default.
            padding_mask: Where `True`, the step is a real one. The others leave
                the state as it is; what stands there has no influence, even NaN.
        """
        check_float("x", x, "batch", "length", self.input_dim)
        check_sizes(length=x.shape[1])
        if padding_mask is not None:
            check_mask("padding_mask", padding_mask, "a real step")
            check_axes("padding_mask", padding_mask, *x.shape[:2])
            x = x.where(rearrange(padding_mask, "b n -> b n 1"), 0.0)
        steps = F.linear(x, self.weight_ih, self.bias_ih)
        if state is None:
            state = steps.new_zeros(x.shape[0], self.hidden_dim)
        check_float("state", state, x.shape[0], self.hidden_dim)
        # Under autocast the products are of another type than a state from outside.
        state, states = state.to(steps.dtype), []
        for t, projected in enumerate(steps.unbind(dim=1)):
            before, state = state, self.step(projected, state)
            if padding_mask is not None:
                state = state.where(padding_mask[:, t, None], before)
            states.append(state)
        return rearrange(states, "n b h -> b n h"), state


class GRU(RNN):
    r"""Let gates decide what a step keeps of the state, and what it replaces.

    $$
    \begin{aligned}
    r_t &= \sigma(W_{ir}\, x_t + b_{ir} + W_{hr}\, h_{t-1} + b_{hr}) \\
    z_t &= \sigma(W_{iz}\, x_t + b_{iz} + W_{hz}\, h_{t-1} + b_{hz}) \\
    n_t &= \tanh(W_{in}\, x_t + b_{in} + r_t \odot (W_{hn}\, h_{t-1} + b_{hn})) \\
    h_t &= (1 - z_t) \odot n_t + z_t \odot h_{t-1}
    \end{aligned}
    $$

    Where the update gate $z_t$ is one, the state passes unchanged. The reset gate
    $r_t$ acts after the product with $W_{hn}$, as in PyTorch; in the paper, before.
    Arguments and calls are those of [`RNN`][transformers_hw.seq2seq.RNN].

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
        r"""Give the next state, from $W_{ih}\, x_t + b_{ih}$ and the state before."""
        recalled = F.linear(state, self.weight_hh, self.bias_hh)
        x_r, x_z, x_n = projected.chunk(3, dim=-1)
        h_r, h_z, h_n = recalled.chunk(3, dim=-1)
        new = torch.tanh(x_n + torch.sigmoid(x_r + h_r) * h_n)
        return new.lerp(state, torch.sigmoid(x_z + h_z))


class Alignment(nn.Module):
    r"""Look up memories, each scored against the query.

    $$
    \text{dot: } s^\top h \qquad
    \text{bilinear: } s^\top W h \qquad
    \text{additive: } v^\top \tanh(U s + W h)
    $$

    The first two are [`attention`][transformers_hw.attention.attention] with keys
    $h$ or $W h$, values $h$ and $\beta = 1$. The third runs a small network on
    every pair, which takes $d$ times the space of the scores.

    Args:
        query_dim: Width $d$ of the queries $s$, and of the small network.
        memory_dim: Width of the memories $h$.
        score: `"dot"`, `"bilinear"` or `"additive"`.
        **place: `device` and `dtype` of the parameters.

    Raises:
        ValueError: If an argument is not valid, such as two widths for "dot".

    Examples:
        >>> query, memory = torch.randn(2, 3, 5), torch.randn(2, 7, 4)
        >>> context, weights = Alignment(5, 4, score="bilinear")(query, memory)
        >>> context.shape, weights.shape
        (torch.Size([2, 3, 4]), torch.Size([2, 3, 7]))

    References:
        Luong, Pham & Manning (2015), [Effective Approaches to Attention-based NMT
        ](https://arxiv.org/abs/1508.04025), section 3.1, "dot" and "general";
        Bahdanau, Cho & Bengio (2015), [Neural Machine Translation by Jointly Learning
        to Align and Translate](https://arxiv.org/abs/1409.0473), appendix A.1.2.
    """

    def __init__(
        self, query_dim: int, memory_dim: int, *, score: Score, **place: Unpack[_Place]
    ) -> None:
        super().__init__()
        check_sizes(query_dim=query_dim, memory_dim=memory_dim)
        check_choice("score", score, get_args(Score))
        if score == "dot" and query_dim != memory_dim:
            raise ValueError(f"dot needs one width, got {query_dim} and {memory_dim}.")
        self.query_dim, self.memory_dim, self.score = query_dim, memory_dim, score
        if score != "dot":
            self.key_proj = nn.Linear(memory_dim, query_dim, bias=False, **place)
        if score == "additive":
            self.query_proj = nn.Linear(query_dim, query_dim, bias=False, **place)
            self.score_proj = nn.Linear(query_dim, 1, bias=False, **place)

    def forward(
        self,
        query: Float[Tensor, "b q d"],
        memory: Float[Tensor, "b k e"],
        *,
        mask: Bool[Tensor, "#b #q #k"] | None = None,
    ) -> tuple[Float[Tensor, "b q e"], Float[Tensor, "b q k"] | None]:
        """Average the memories, weighted by their scores; give the weights too.

        Args:
            query: States that ask.
            memory: States that answer.
            mask: Where `True`, that query may see that memory.
        """
        check_float("query", query, "batch", "queries", self.query_dim)
        check_float("memory", memory, query.shape[0], "keys", self.memory_dim)
        key = memory if self.score == "dot" else self.key_proj(memory)
        if self.score != "additive":
            return attention(
                query, key, memory, mask=mask, scale=1.0, return_weights=True
            )
        asked = rearrange(self.query_proj(query), "b q d -> b q 1 d")
        pairs = torch.tanh(asked + rearrange(key, "b k d -> b 1 k d"))
        scores = rearrange(self.score_proj(pairs), "b q k 1 -> b q k")
        weights = softargmax(scores, mask=mask)
        return einsum(weights, memory, "b q k, b k e -> b q e"), weights


class Seq2Seq(nn.Module):
    r"""Translate one sequence of tokens into another by recurrence.

    The context $c_i$ goes to the readout, not back into the recurrence; so with
    teacher forcing all steps attend at once. (Bahdanau et al. ask with $s_{i-1}$ and
    feed $c_i$ back; Luong et al. ask with $s_i$, then have a $\tanh$ layer.)

    Args:
        vocabulary: Number of tokens, of source and target alike.
        dim: Width of an embedded token.
        hidden_dim: Width of the states.
        cell: `"gru"` or `"rnn"`, for encoder and decoder.
        attention: A score of [`Alignment`][transformers_hw.seq2seq.Alignment], or
            `None` for the bottleneck alone.
        padding_token: Fills up sequences; in a source it has no influence.
        **place: `device` and `dtype` of the parameters.

    Raises:
        ValueError: If an argument is not valid.

    Examples:
        >>> task = ChangeOfCase()
        >>> model = Seq2Seq(len(task), dim=16, hidden_dim=32, attention="dot")
        >>> source, target_inputs, target = task.batch(["<U> I am", "<L> Me too"])
        >>> logits, weights = model(source, target_inputs)
        >>> logits.shape, weights.shape
        (torch.Size([2, 7, 58]), torch.Size([2, 7, 8]))
        >>> loss = F.cross_entropy(logits.mT, target, ignore_index=task.pad)

    References:
        Sutskever, Vinyals & Le (2014), [Sequence to Sequence Learning with Neural
        Networks](https://arxiv.org/abs/1409.3215), section 2.
    """

    def __init__(
        self,
        vocabulary: int,
        *,
        dim: int,
        hidden_dim: int,
        cell: Literal["gru", "rnn"] = "gru",
        attention: Score | None = None,
        padding_token: int = 0,
        **place: Unpack[_Place],
    ) -> None:
        super().__init__()
        check_sizes(vocabulary=vocabulary, dim=dim, hidden_dim=hidden_dim)
        check_choice("cell", cell, ("gru", "rnn"))
        check_choice("attention", attention, (None, *get_args(Score)))
        check_token("padding_token", padding_token, vocabulary)
        self.vocabulary, self.padding_token = vocabulary, padding_token
        layer, seen = GRU if cell == "gru" else RNN, hidden_dim
        self.source_embedding = nn.Embedding(vocabulary, dim, **place)
        self.encoder = layer(dim, hidden_dim, **place)
        self.target_embedding = nn.Embedding(vocabulary, dim, **place)
        self.decoder = layer(dim, hidden_dim, **place)
        self.alignment = None
        if attention is not None:
            seen = 2 * hidden_dim
            self.alignment = Alignment(hidden_dim, hidden_dim, score=attention, **place)
        self.readout = nn.Linear(seen, vocabulary, **place)

    def encode(
        self, source: Int[Tensor, "b k"]
    ) -> tuple[Float[Tensor, "b k h"], Float[Tensor, "b h"]]:
        """Read the source; give the states after each token and after the last."""
        _check_tokens("source", source, self.vocabulary, "batch", "length")
        real = source != self.padding_token
        return self.encoder(self.source_embedding(source), padding_mask=real)

    def decode(
        self,
        target_inputs: Int[Tensor, "b q"],
        state: Float[Tensor, "b h"],
        memory: Float[Tensor, "b k h"],
        source: Int[Tensor, "b k"],
    ) -> tuple[
        Float[Tensor, "b q v"], Float[Tensor, "b h"], Float[Tensor, "b q k"] | None
    ]:
        """Read target tokens, and score after each what might come next.

        Args:
            target_inputs: All target tokens, or the next few.
            state: The decoder's state before them; at first, the encoder's last.
            memory: The encoder's states. Without attention they are not read.
            source: The source tokens, which tell what is padding.

        Returns:
            The logits, the state after the last token, and the weights or `None`.
        """
        name, batch = "target_inputs", source.shape[0]
        _check_tokens(name, target_inputs, self.vocabulary, batch, "length")
        states, last = self.decoder(self.target_embedding(target_inputs), state)
        if self.alignment is None:
            return self.readout(states), last, None
        real = rearrange(source != self.padding_token, "b k -> b 1 k")
        context, weights = self.alignment(states, memory, mask=real)
        return self.readout(torch.cat([states, context], dim=-1)), last, weights

    def forward(
        self, source: Int[Tensor, "b k"], target_inputs: Int[Tensor, "b q"]
    ) -> tuple[Float[Tensor, "b q v"], Float[Tensor, "b q k"] | None]:
        """Predict each target token from the right ones before it: teacher forcing.

        Args:
            source: Source tokens.
            target_inputs: The target, moved right by a begin token.

        Returns:
            The logits of every next token, and the weights or `None`.
        """
        memory, last = self.encode(source)
        logits, _, weights = self.decode(target_inputs, last, memory, source)
        return logits, weights

    @torch.no_grad()
    def generate(
        self, source: Int[Tensor, "b k"], *, begin: int, end: int, max_length: int
    ) -> tuple[Int[Tensor, "b q"], Float[Tensor, "b q k"] | None]:
        """Write the likeliest token, read it back, and so on: greedy decoding.

        Args:
            source: Source tokens.
            begin: The token that begins every target; it is not returned.
            end: The token that ends one.
            max_length: Most tokens to write, the end token included.

        Returns:
            The tokens, padded after the end, and the weights, zero there, or `None`.
        """
        check_sizes(max_length=max_length)
        check_token("begin", begin, self.vocabulary)
        check_token("end", end, self.vocabulary)
        memory, state = self.encode(source)
        token = source.new_full((len(source), 1), begin)
        done = torch.zeros_like(token, dtype=torch.bool)
        tokens, rows = [], []
        for _ in range(max_length):
            logits, state, weights = self.decode(token, state, memory, source)
            token = logits.argmax(dim=-1).masked_fill(done, self.padding_token)
            tokens.append(token)
            if weights is not None:
                rows.append(weights.masked_fill(rearrange(done, "b 1 -> b 1 1"), 0.0))
            done = done | (token == end)
            if done.all():
                break
        return torch.cat(tokens, dim=1), torch.cat(rows, dim=1) if rows else None


class CaseBatch(NamedTuple):
    """Prompted texts, what the decoder reads, and what it is to write; all padded."""

    source: Int[Tensor, "b k"]
    target_inputs: Int[Tensor, "b q"]
    target: Int[Tensor, "b q"]


class ChangeOfCase:
    """Ask for a text in upper case, `<U>`, or lower case, `<L>`.

    Characters are tokens, after padding, begin, end and the two prompts. Since the
    prompt comes first, token $i$ of the answer is made of token $i + 1$ of the source.

    Examples:
        >>> task = ChangeOfCase()
        >>> task.answer("<U> I am a student")
        'I AM A STUDENT'
        >>> task.encode("<U> Ab")
        tensor([ 3, 32,  7,  2])
        >>> seeded = torch.Generator().manual_seed(0)
        >>> source, *_ = task.sample(2, min_length=1, max_length=5, generator=seeded)
        >>> [task.decode(tokens) for tokens in source]
        ['<U> Bu', '<L> Jergh']
    """

    pad, begin, end, upper, lower = range(5)
    prompts = ("<U> ", "<L> ")
    names = ("", "", "", *prompts, " ", *string.ascii_letters)

    def __len__(self) -> int:
        return len(self.names)

    def answer(self, source: str) -> str:
        """Give the text that a source asks for, which begins with a prompt."""
        check_choice("prompt", source[:4], self.prompts)
        return source[4:].upper() if source[1] == "U" else source[4:].lower()

    def encode(self, text: str) -> Int[Tensor, " n"]:
        """Give the tokens of a text, which may begin with a prompt, and an end."""
        names = [text[:4], *text[4:]] if text.startswith(self.prompts) else [*text]
        for name in names:
            if name not in self.names:
                raise ValueError(f"text must be of a–z, A–Z and spaces, got {name!r}.")
        return torch.tensor([*map(self.names.index, names), self.end])

    def decode(self, tokens: Int[Tensor, " n"]) -> str:
        """Give the text of tokens, up to the first end."""
        _check_tokens("tokens", tokens, len(self), "length")
        written = takewhile(lambda token: token != self.end, tokens.tolist())
        return "".join(self.names[token] for token in written)

    def batch(self, sources: Sequence[str]) -> CaseBatch:
        """Encode sources and their answers for teacher forcing."""
        check_sizes(sources=len(sources))
        questions = [self.encode(source) for source in sources]
        answers = [self.encode(self.answer(source)) for source in sources]
        source = pad_sequence(questions, True, self.pad)
        target = pad_sequence(answers, True, self.pad)
        target_inputs = F.pad(target[:, :-1], (1, 0), value=self.begin)
        return CaseBatch(source, target_inputs, target)

    def sample(
        self,
        batch: int,
        *,
        min_length: int,
        max_length: int,
        generator: torch.Generator | None = None,
    ) -> CaseBatch:
        """Draw prompts, numbers of characters, and characters, all evenly."""
        check_sizes(batch=batch, min_length=min_length)
        if max_length < min_length:
            raise ValueError(f"max_length must be >= {min_length}, got {max_length}.")

        def draw(low: int, high: int, *shape: int) -> Tensor:
            return torch.randint(low, high, shape, generator=generator)

        prompts = draw(self.upper, self.lower + 1, batch, 1)
        texts = draw(self.lower + 1, len(self), batch, max_length)
        ends = draw(min_length + 1, max_length + 2, batch)
        rows = zip(torch.cat([prompts, texts], dim=1), ends, strict=True)
        return self.batch([self.decode(row[:end]) for row, end in rows])


def _check_tokens(name: str, tokens: Tensor, count: int, *axes: str | int) -> None:
    check_integers(name, tokens, *axes)
    check_below(name, tokens, count)
