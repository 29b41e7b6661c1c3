"""A language model: a causal encoder that predicts each next token."""

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, Unpack

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from transformers_hw._engine.arguments import (
    check_below,
    check_lengths,
    check_sizes,
    check_token,
)
from transformers_hw._engine.kernels import scale_gaps, widen
from transformers_hw._engine.shapes import checked
from transformers_hw.positional_encoding import (
    LearnedPositions,
    RotaryPositions,
    RotaryScaling,
)
from transformers_hw.transformer.config import (
    LayerOptions,
    Network,
    StackConfig,
    split_options,
)
from transformers_hw.transformer.stacks import DecoderCache, Encoder

Positions = Literal["learned", "rotary"] | None


@dataclass(frozen=True)
class LanguageModelConfig(StackConfig):
    """The settings of a language model.

    `LanguageModel(**asdict(config))` builds it again; the arguments are described
    there.
    """

    vocab_size: int
    positions: Positions
    max_length: int
    rotary_base: float
    rotary_scaling: RotaryScaling | None
    tied: bool
    _: KW_ONLY
    activation: Network = "gelu_tanh"

    def __post_init__(self) -> None:
        """Raise unless sizes are positive, and the scaling is one."""
        super().__post_init__()
        check_sizes(vocab_size=self.vocab_size, max_length=self.max_length)
        if not isinstance(self.rotary_scaling, RotaryScaling | None):
            raise TypeError(
                "rotary_scaling must be a RotaryScaling, a mapping of its attributes "
                f"or None, got {self.rotary_scaling!r}."
            )


class LanguageModel(nn.Module):
    r"""Predict each token of a text from those before it.

    $$
    p(w_{i+1} \mid w_1, \dots, w_i)
    = \operatorname{softmax}\!\big(W\, h_i\big),
    \qquad
    h = \operatorname{Encoder}(E_{w_1} + P_1, \dots, E_{w_n} + P_n)
    $$

    The model is known as *decoder-only*. It has no second sequence to attend to, so its
    layers are those of an encoder with a causal mask. By default it is a GPT-2: learned
    positions, layer norms before the sublayers, GELU, biases, and $W = E$. A Llama
    differs in its options:

    ```python
    LanguageModel(
        vocab_size, dim=4096, heads=32, kv_heads=8, hidden_dim=14336, depth=32,
        positions="rotary", normalization="rms", activation="swiglu", bias=False,
        tied=False,
    )
    ```

    Args:
        vocab_size: Number of tokens.
        dim: Width of a token.
        heads: Number of attention heads.
        depth: Number of layers.
        hidden_dim: Width of the feed-forward networks' hidden layers; `4 * dim` by
            default.
        positions: `"learned"`, an embedding $P_i$ for each position; `"rotary"`, where
            queries and keys are rotated instead; or `None`.
        max_length: Number of positions, if they are learned.
        rotary_base: What sets the longest wavelength, if positions are rotary.
        rotary_scaling: How to stretch rotary positions, as a
            [`RotaryScaling`][transformers_hw.positional_encoding.RotaryScaling] or a
            mapping of its attributes.
        tied: Whether the weights of the output projection are those of the embedding.
        final_norm: Whether a norm follows the last layer; by default only after
            pre-norm layers.
        **options: Keywords of
            [`LayerOptions`][transformers_hw.transformer.LayerOptions]; here
            `activation` is `"gelu_tanh"` by default. `dropout` also acts on the
            embedded tokens.

    Raises:
        TypeError: If `rotary_scaling` is of another type.
        ValueError: If a number is out of range, a name is unknown, or `heads` does not
            divide `dim`.

    Examples:
        >>> model = LanguageModel(11, dim=12, heads=3, depth=2).eval()
        >>> prompt = torch.tensor([[1, 2, 3], [4, 5, 6]])
        >>> model(prompt).shape
        torch.Size([2, 3, 11])
        >>> model.generate(prompt, 5, temperature=0.0).shape
        torch.Size([2, 5])

    References:
        Radford et al. (2019), [Language Models are Unsupervised Multitask Learners
        ](https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf),
        section 2.3; Touvron et al. (2023), [LLaMA](https://arxiv.org/abs/2302.13971),
        section 2.2.
    """

    @checked
    def __init__(
        self,
        vocab_size: int,
        *,
        dim: int,
        heads: int,
        depth: int,
        hidden_dim: int | None = None,
        positions: Positions = "learned",
        max_length: int = 1024,
        rotary_base: float = 10_000.0,
        rotary_scaling: RotaryScaling | Mapping[str, Any] | None = None,
        tied: bool = True,
        final_norm: bool | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__()
        settings, factory = split_options(options)
        sizes = (dim, heads, 4 * dim if hidden_dim is None else hidden_dim, depth)
        if isinstance(rotary_scaling, Mapping):
            rotary_scaling = RotaryScaling(**rotary_scaling)
        self.config = config = LanguageModelConfig(
            *sizes,
            final_norm,
            vocab_size,
            positions,
            max_length,
            rotary_base,
            rotary_scaling,
            tied,
            **settings,
        )
        self.embedding = nn.Embedding(vocab_size, dim, **factory)
        self.dropout = nn.Dropout(config.dropout)
        layers = {**config.options, **factory}
        self.encoder = Encoder(*sizes, final_norm=final_norm, **layers)
        self.positions = self.rotary = self.output_proj = None
        if positions == "learned":
            self.positions = LearnedPositions(max_length, dim, **factory)
        elif positions == "rotary":
            width = dim // heads if config.head_dim is None else config.head_dim
            rotary = {"base": rotary_base, "scaling": rotary_scaling}
            self.rotary = RotaryPositions(width, **rotary, layout="halves")
        if not tied:
            self.output_proj = nn.Linear(dim, vocab_size, bias=False, **factory)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw embeddings and the output projection with deviation 0.02."""
        for table in (self.embedding, self.output_proj):
            if table is not None:
                nn.init.normal_(table.weight, std=0.02)

    @checked
    def forward(
        self,
        tokens: Int[Tensor, "b n"],
        *,
        padding_mask: Bool[Tensor, "b keys"] | None = None,
        cache: DecoderCache | None = None,
    ) -> Float[Tensor, "b n {self.config.vocab_size}"]:
        """Return the logits of the token that follows each token.

        Args:
            tokens: Tokens of texts; with a cache, only those it does not hold yet.
            padding_mask: Which tokens are real, with a cache of all so far; padding
                has positions, too.
            cache: Keys and values of earlier calls, as `make_cache` returns it.

        Returns:
            The logits.

        Raises:
            ValueError: If a text is longer than the learned positions, or a token is
                not below their number.
        """
        hidden = self.encode(tokens, padding_mask=padding_mask, cache=cache)
        return F.linear(hidden, (self.output_proj or self.embedding).weight)

    @checked
    def encode(
        self,
        tokens: Int[Tensor, "b n"],
        *,
        padding_mask: Bool[Tensor, "b keys"] | None = None,
        cache: DecoderCache | None = None,
    ) -> Float[Tensor, "b n {self.config.dim}"]:
        """Return the last hidden states; the arguments are those of `forward`."""
        check_below("tokens", tokens, self.config.vocab_size)
        x = self.embedding(tokens)
        if self.positions is not None:
            x = self.positions(x, start=0 if cache is None else cache.length)
        masks = {"padding_mask": padding_mask, "causal": True}
        return self.encoder(self.dropout(x), **masks, rotary=self.rotary, cache=cache)

    def make_cache(self) -> DecoderCache:
        """Return an empty cache; if the layers have a window, it keeps no more."""
        config = self.config
        return DecoderCache(config.depth, window=config.window, sinks=config.sinks)

    @torch.no_grad()
    @checked
    def generate(
        self,
        prompt: Int[Tensor, "b n"],
        steps: int,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        end: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Int[Tensor, "b m"]:
        """Continue texts, one token at a time.

        Each token is drawn from the model's distribution, changed as
        [`filtered_logits`][transformers_hw.transformer.filtered_logits] says. Call
        `eval()` first; otherwise dropout stays active.

        Args:
            prompt: Texts to continue, of one length and not empty.
            steps: Greatest number of tokens to generate.
            temperature: Less than one for likelier tokens, more for unlikelier ones;
                zero takes the likeliest.
            top_k: Number of tokens to draw from.
            top_p: Probability of the tokens to draw from.
            end: Token that ends a text; further tokens of that text repeat it.
            generator: Source of random numbers; PyTorch's default one if `None`.

        Returns:
            The new tokens; fewer than `steps` if all texts have ended.

        Raises:
            ValueError: If the prompt is empty, the text gets longer than the learned
                positions, `end` is not a token, or another number is out of range.
        """
        check_lengths(steps=steps)
        _check_filters(temperature or 1.0, top_k, top_p)
        if end is not None:
            check_token("end", end, self.config.vocab_size)
        if not prompt.numel():
            raise ValueError(
                f"prompt must have tokens, got shape {tuple(prompt.shape)}."
            )
        most = prompt.shape[1] + steps - 1  # the last token is not read again
        if self.positions is not None and most > self.config.max_length:
            raise ValueError(
                f"the model has {self.config.max_length} positions, got a prompt of "
                f"{prompt.shape[1]} tokens and {steps} steps."
            )
        filters = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        cache, new, generated = self.make_cache(), prompt, prompt[:, :0]
        done = torch.zeros_like(prompt[:, :1], dtype=torch.bool)
        for _ in range(steps):
            logits = self(new, cache=cache)[:, -1]
            if temperature == 0.0:
                new = logits.argmax(dim=-1, keepdim=True)
            else:
                p = filtered_logits(logits, **filters).softmax(dim=-1)
                new = torch.multinomial(p, 1, generator=generator)
            if end is not None:
                new = new.masked_fill(done, end)
                done = done | (new == end)
            generated = torch.cat([generated, new], dim=1)
            if bool(done.all()):
                break
        return generated


@checked
def filtered_logits(
    logits: Float[Tensor, "*batch v"],
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Float[Tensor, "*batch v"]:
    r"""Change logits so that a softmax draws from fewer, likelier tokens.

    1. Divide by the temperature $T$: the odds of two tokens are raised to the power
       $1/T$. The largest logit of each row is subtracted first, which changes no odds.
    2. Keep the $k$ largest logits, and those that tie with the last.
    3. Keep the smallest set of likeliest tokens whose probability, among those that
       are left, is at least $p$.

    What is not kept becomes $-\infty$.

    Args:
        logits: Scores of the tokens.
        temperature: $T > 0$; values below one sharpen the distribution.
        top_k: $k$, or `None` to skip the second step.
        top_p: $p$, or `None` to skip the third.

    Returns:
        The new logits, in float32 or wider; the largest of each row is zero.

    Raises:
        ValueError: If `temperature` is not positive, `top_k` is not positive, or
            `top_p` is not in $(0, 1]$.

    Examples:
        >>> logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
        >>> filtered_logits(logits, top_k=3).softmax(dim=-1)
        tensor([0.5263, 0.3158, 0.1579, 0.0000])
        >>> filtered_logits(logits, top_p=0.7).softmax(dim=-1)
        tensor([0.6250, 0.3750, 0.0000, 0.0000])
        >>> filtered_logits(logits, temperature=0.5).softmax(dim=-1)
        tensor([0.6849, 0.2466, 0.0616, 0.0068])

    References:
        Fan et al. (2018), [Hierarchical Neural Story Generation
        ](https://arxiv.org/abs/1805.04833), for `top_k`; Holtzman et al. (2020), [The
        Curious Case of Neural Text Degeneration](https://arxiv.org/abs/1904.09751),
        section 3.1, for `top_p`.
    """
    _check_filters(temperature, top_k, top_p)
    logits = widen(logits)
    logits = scale_gaps(logits, 1.0 / temperature, logits != -math.inf, None)
    if top_k is not None:
        least = logits.topk(min(top_k, logits.shape[-1]), dim=-1).values[..., -1]
        dropped = logits < rearrange(least, "... -> ... 1")
        logits = logits.masked_fill(dropped, -math.inf)
    if top_p is not None and top_p < 1.0:  # at 1, rounding would drop what is unlikely
        ordered, order = logits.sort(dim=-1, descending=True)
        p = ordered.softmax(dim=-1)
        likelier = p.cumsum(dim=-1) - p
        unlikely = (likelier >= top_p) & (likelier > 0.0)  # never the likeliest
        dropped = torch.zeros_like(unlikely).scatter(-1, order, unlikely)
        logits = logits.masked_fill(dropped, -math.inf)
    return logits


def _check_filters(temperature: float, top_k: int | None, top_p: float | None) -> None:
    """Raise unless each number is in its range."""
    if not 0.0 < temperature < math.inf:
        raise ValueError(f"temperature must be positive and finite, got {temperature}.")
    if top_k is not None:
        check_sizes(top_k=top_k)
    if top_p is not None and not 0.0 < top_p <= 1.0:
        raise ValueError(f"top_p must be in (0, 1], got {top_p}.")
