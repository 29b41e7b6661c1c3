r"""Self-attention, and layers built weight by weight to do a known job.

In self-attention the queries, keys and values all come from the same tokens.
The tokens may first be joined with codes of their positions:

$$
C = [X \; P], \qquad Q = C W_q, \quad K = C W_k, \quad V = C W_v, \qquad
H = \operatorname{softargmax}_\beta(Q K^\top)\, V\, W_o .
$$

What can such a layer compute? The constructors below answer with weights that
can be looked at. They all use the codes $P = I_n$ and

$$
W_k = \begin{pmatrix} 0 \\ I_n \end{pmatrix}, \qquad
W_q = \begin{pmatrix} 0 \\ T \end{pmatrix}, \qquad
W_v = \begin{pmatrix} I_d \\ 0 \end{pmatrix},
$$

where row $i$ of $T$ is one at the place $\tau(i)$ that position $i$ is to look
at, and zero elsewhere. Then $Q K^\top = T$ whatever the tokens are: keys say
where they stand, queries where to look, values what is there. (These matrices
multiply rows from the right; [`torch.nn.Linear`][torch.nn.Linear] stores their
transposes.)

The scale is the layer's *sharpness* $c$. Each row has the score $c$ at its
target and $0$ at the other $n - 1$ places, and so

$$
A = (1 - \varepsilon)\, T
+ \frac{\varepsilon}{n - 1}\left(\mathbf{1}\mathbf{1}^\top - T\right),
\qquad \varepsilon = \frac{n - 1}{e^c + n - 1} .
$$

In words: a layer of sharpness $c$ is the exact layer, applied to tokens each of
which gave a share $\varepsilon$ of itself up to the mean of the others,

$$
\tilde x_j = x_j + \varepsilon \left(
\frac{1}{n - 1} \sum_{l \ne j} x_l - x_j \right).
$$

An infinite sharpness is hard attention, and the layer is exact.
"""

import math
from collections.abc import Collection, Sequence

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from transformers_hw.multi_head_attention import KeyValueCache, MultiHeadAttention
from transformers_hw.positional_encoding import OneHotPositions, PositionalEncoding


class SelfAttention(nn.Module):
    r"""Let tokens attend to each other, knowing their positions or not.

    $$
    H = [H_1 \; \cdots \; H_h]\, W_o, \qquad
    H_i = \operatorname{softargmax}\!\left(
    \frac{C W_q^{(i)} (C W_k^{(i)})^\top}{\sqrt{d_k}}\right) C W_v^{(i)}
    $$

    Here $C$ is $X$, $X + P$ or $[X \; P]$. Texts with tokens in columns write
    $V \operatorname{softargmax}(K^\top Q)$ for a head, normalising columns.

    Without positions the layer is permutation equivariant: for every permutation
    matrix $\Pi$, $f(\Pi X) = \Pi f(X)$. It treats the tokens as a set. Codes of
    the positions, a causal mask or a bias make it treat them as a sequence.

    Args:
        dim: Width $d$ of a token.
        heads: Number of heads $h$.
        positions: How positions are encoded, or `None` for not at all. Codes
            that are concatenated widen what the projections read, and nothing
            else.
        head_dim: $d_k$, width of a head's queries and keys; `dim / heads` by
            default, which must then be whole.
        value_head_dim: Width of a head's values; $d_k$ by default.
        output_dim: Width of the output; `dim` by default.
        bias: Whether the projections have biases: all, none, or those named
            among `"query"`, `"key"`, `"value"`, `"output"`.
        scale: $\beta$ in place of $1/\sqrt{d_k}$; `math.inf` is hard attention.
        dropout: Probability of dropping a weight in training.
        device: Where to put the parameters of the projections.
        dtype: Type of these parameters.

    Raises:
        TypeError: If `positions` is not an encoding of positions.
        ValueError: If a width or number is not valid, or codes that are to be
            added to the tokens have another width.

    Examples:
        Tokens that change places take their outputs along:

        >>> layer = SelfAttention(6, heads=2)
        >>> x = torch.randn(1, 5, 6)
        >>> output, _ = layer(x)
        >>> backwards, _ = layer(x.flip(1))
        >>> torch.allclose(backwards, output.flip(1), atol=1e-6)
        True

    References:
        Vaswani et al. (2017), [Attention Is All You Need
        ](https://arxiv.org/abs/1706.03762), section 3.2.3.
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        positions: PositionalEncoding | None = None,
        head_dim: int | None = None,
        value_head_dim: int | None = None,
        output_dim: int | None = None,
        bias: bool | Collection[str] = True,
        scale: float | None = None,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        _check_counts(dim=dim, heads=heads)
        if head_dim is None:
            if dim % heads:
                raise ValueError(
                    f"dim must be divisible by heads, got dim {dim} and {heads} heads; "
                    "head_dim sets a width that does not depend on dim."
                )
            head_dim = dim // heads
        self.dim = dim
        self.positions = positions
        self.attention = MultiHeadAttention(
            _joined_width(dim, positions),
            heads,
            head_dim=head_dim,
            value_head_dim=value_head_dim,
            output_dim=dim if output_dim is None else output_dim,
            bias=bias,
            scale=scale,
            dropout=dropout,
            device=device,
            dtype=dtype,
        )

    def forward(
        self,
        x: Float[Tensor, "b n d"],
        *,
        mask: Bool[Tensor, "*#b_h #n #keys"] | None = None,
        padding_mask: Bool[Tensor, "b keys"] | None = None,
        bias: Float[Tensor, "*#b_h #n #keys"] | None = None,
        causal: bool = False,
        cache: KeyValueCache | None = None,
        return_weights: bool = False,
    ) -> tuple[Float[Tensor, "b n out"], Float[Tensor, "b heads n keys"] | None]:
        """Attend from each token to all of them.

        The options are those of
        [`MultiHeadAttention`][transformers_hw.multi_head_attention.MultiHeadAttention.forward].

        Args:
            x: Tokens in order.
            mask: Where `True`, that token may see that other one.
            padding_mask: Where `True`, the token is a real one.
            bias: Added to the scaled scores.
            causal: Let a token see only itself and those before it.
            cache: Keys and values of the tokens so far; positions are counted
                on from there.
            return_weights: Also give the weights of every head.

        Returns:
            The output, and the weights before dropout, or `None`.

        Raises:
            TypeError: If an argument has the wrong type.
            ValueError: If shapes do not fit together, or there are more tokens
                than positions.
        """
        _check_float("x", x)
        if x.dim() != 3 or x.shape[-1] != self.dim:
            raise ValueError(
                f"x must be (batch, length, {self.dim}), got shape {tuple(x.shape)}."
            )
        if self.positions is not None:
            x = self.positions(x, start=0 if cache is None else cache.length)
        return self.attention(
            x,
            mask=mask,
            padding_mask=padding_mask,
            bias=bias,
            causal=causal,
            cache=cache,
            return_weights=return_weights,
        )


class FixedLengthOneHotPositions(OneHotPositions):
    r"""Give each position of a whole sequence an axis of its own.

    These are the codes $I_n$ of
    [`OneHotPositions`][transformers_hw.positional_encoding.OneHotPositions] for
    sequences of exactly $n$ tokens. A head that looks at a place past the end of
    a shorter sequence would find all keys alike and silently give their mean;
    these codes refuse such sequences instead.

    Args:
        length: Number of positions $n$, and the width of a code.
        combine: How to join with the tokens.

    Examples:
        >>> FixedLengthOneHotPositions(3)(torch.zeros(2, 1))
        Traceback (most recent call last):
            ...
        ValueError: the sequence must have exactly 3 tokens, got 2.
    """

    def codes(
        self,
        length: int,
        *,
        start: int = 0,
        device: torch.device | str | None = None,
    ) -> Float[Tensor, "length p"]:
        """Give the identity, or refuse any other length."""
        if length != self.dim:
            raise ValueError(
                f"the sequence must have exactly {self.dim} tokens, got {length}."
            )
        return super().codes(length, start=start, device=device)


class ZeroPaddedSelfAttention(nn.Module):
    """Put zeros around a sequence, let it attend to itself, and crop the output.

    Attention gives a weighted mean of tokens, and a sequence need not have a
    token that is zero: what lies beyond the border has to be put there. Padding
    and cropping are this module's work; the attention in between is an ordinary
    [`SelfAttention`][transformers_hw.self_attention.SelfAttention].

    Args:
        inner: The layer, which sees the padded sequence.
        before: Number of zero tokens put before the sequence.
        after: Number of zero tokens put after it.

    Raises:
        ValueError: If a number is negative.

    Examples:
        >>> layer = ZeroPaddedSelfAttention(SelfAttention(4), before=1, after=2)
        >>> output, weights = layer(torch.randn(2, 5, 4), return_weights=True)
        >>> output.shape, weights.shape
        (torch.Size([2, 5, 4]), torch.Size([2, 1, 5, 8]))
    """

    def __init__(self, inner: SelfAttention, *, before: int, after: int) -> None:
        super().__init__()
        if before < 0 or after < 0:
            raise ValueError(
                f"before and after must not be negative, got {before} and {after}."
            )
        self.inner = inner
        self.before = before
        self.after = after

    def forward(
        self, x: Float[Tensor, "b n d"], *, return_weights: bool = False
    ) -> tuple[Float[Tensor, "b n out"], Float[Tensor, "b heads n keys"] | None]:
        """Attend within the padded sequence.

        Args:
            x: Tokens in order.
            return_weights: Also give the weights of every head.

        Returns:
            The output at the places of `x`, and the weights with which these
            places look at all places, padding included, or `None`.

        Raises:
            TypeError: If `x` is not a floating-point tensor.
            ValueError: If the shape of `x` does not fit.
        """
        _check_float("x", x)
        if x.dim() != 3:
            raise ValueError(
                f"x must be (batch, length, width), got shape {tuple(x.shape)}."
            )
        padded = F.pad(x, (0, 0, self.before, self.after))
        output, weights = self.inner(padded, return_weights=return_weights)
        inside = slice(self.before, self.before + x.shape[1])
        return output[:, inside], None if weights is None else weights[:, :, inside]

    def extra_repr(self) -> str:
        """Show the padding in `repr`."""
        return f"before={self.before}, after={self.after}"


def off_target_mass(length: int, sharpness: float) -> float:
    r"""Say how much weight a layer built here leaves on the wrong tokens.

    $$\varepsilon = \frac{n - 1}{e^c + n - 1}$$

    It is the same for every query, head and input. To stay within $\varepsilon$,
    choose $c \ge \ln \frac{(n - 1)(1 - \varepsilon)}{\varepsilon}$: the sharpness
    grows with the logarithm of the length alone.

    Args:
        length: Number $n$ of tokens that are attended to, padding included.
        sharpness: $c \ge 0$; it may be infinite.

    Returns:
        $\varepsilon$, from $1 - 1/n$ at $c = 0$ down to zero at $c = \infty$.

    Raises:
        TypeError: If `sharpness` is not a number.
        ValueError: If `length` is less than one, or `sharpness` is negative or
            not a number.

    Examples:
        >>> off_target_mass(5, 0.0), off_target_mass(5, math.inf)
        (0.8, 0.0)
        >>> f"{off_target_mass(5, 20.0):.1e}"
        '8.2e-09'
    """
    _check_counts(length=length)
    _check_sharpness(sharpness)
    # The large power stays out of reach of overflow on the side of small numbers.
    others = (length - 1) * math.exp(-sharpness)
    return others / (1.0 + others)


def identity_attention(
    length: int,
    dim: int,
    *,
    sharpness: float = math.inf,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> SelfAttention:
    r"""Build self-attention that gives every token back unchanged.

    Each position looks at itself, $T = I$. For a sequence of $n$ tokens, $n$ at
    most `length`, and $\varepsilon$ its
    [`off_target_mass`][transformers_hw.self_attention.off_target_mass]:

    $$
    h_i = x_i + \varepsilon \left(
    \frac{1}{n - 1} \sum_{l \ne i} x_l - x_i \right) .
    $$

    Codes are needed for this. With $W_q = W_k = I$ and no positions a token does
    not look at itself as soon as another one has a larger product with it, such
    as a longer one in the same direction; a higher $\beta$ makes that worse.

    Args:
        length: Greatest number of tokens.
        dim: Width $d$ of a token.
        sharpness: $c$; infinite for the exact identity.
        device: Where to put the parameters.
        dtype: Type of the parameters.

    Returns:
        The layer, whose parameters can be inspected and trained as any other's.

    Raises:
        TypeError: If `sharpness` is not a number.
        ValueError: If a number is out of range.

    Examples:
        >>> x = torch.tensor([[[1.0, 0.0], [3.0, 0.0], [0.0, -2.0]]])
        >>> identity_attention(3, 2)(x)[0].equal(x)
        True
        >>> identity_attention(3, 2, sharpness=4.0)(x)[0]
        tensor([[[ 1.0177, -0.0353],
                 [ 2.9117, -0.0353],
                 [ 0.0707, -1.9293]]])
    """
    _check_counts(length=length, dim=dim)
    values = torch.eye(dim, device=device, dtype=dtype)
    return _looking_at(
        rearrange(torch.arange(length, device=values.device), "i -> 1 i"),
        values,
        output=values,
        positions=OneHotPositions(length),
        sharpness=sharpness,
    )


def permutation_attention(
    permutation: Sequence[int] | Int[Tensor, " n"],
    dim: int,
    *,
    sharpness: float = math.inf,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> SelfAttention:
    r"""Build self-attention that puts the tokens in another order.

    Position $i$ looks at $\pi(i)$, so $T = \Pi$ is the permutation matrix. Fixed
    points are allowed. With $\varepsilon$ the
    [`off_target_mass`][transformers_hw.self_attention.off_target_mass]:

    $$
    h_i = x_{\pi(i)} + \varepsilon \left(
    \frac{1}{n - 1} \sum_{l \ne \pi(i)} x_l - x_{\pi(i)} \right) .
    $$

    No layer without positions does this for all tokens when $n \ge 3$, unless
    $\pi$ is the identity. Being equivariant, it would need
    $\Pi \Pi' = \Pi' \Pi$ for every permutation $\Pi'$, and only the identity
    commutes with all of them.

    Args:
        permutation: $\pi(0), \dots, \pi(n-1)$: output $i$ is token $\pi(i)$.
            The layer takes sequences of exactly $n$ tokens.
        dim: Width $d$ of a token.
        sharpness: $c$; infinite for the exact permutation.
        device: Where to put the parameters.
        dtype: Type of the parameters.

    Returns:
        The layer, whose parameters can be inspected and trained as any other's.

    Raises:
        TypeError: If `permutation` does not hold whole numbers, or `sharpness`
            is not a number.
        ValueError: If `permutation` is not one, or a number is out of range.

    Examples:
        >>> layer = permutation_attention([1, 0, 2], dim=1)
        >>> layer(torch.tensor([[[10.0], [20.0], [30.0]]]))[0].flatten()
        tensor([20., 10., 30.])
        >>> layer.attention.query_proj.weight
        Parameter containing:
        tensor([[0., 0., 1., 0.],
                [0., 1., 0., 0.],
                [0., 0., 0., 1.]], requires_grad=True)
    """
    targets = _whole_numbers("permutation", permutation)
    length = len(targets)
    if not targets or sorted(targets) != list(range(length)):
        wanted = f"each of 0, …, {length - 1} once" if targets else "a number at least"
        raise ValueError(f"permutation must hold {wanted}, got {targets}.")
    _check_counts(dim=dim)
    values = torch.eye(dim, device=device, dtype=dtype)
    return _looking_at(
        torch.tensor([targets], device=values.device),
        values,
        output=values,
        positions=FixedLengthOneHotPositions(length),
        sharpness=sharpness,
    )


def pointwise_linear_attention(
    weight: Float[Tensor, "out d"],
    bias: Float[Tensor, " out"] | None = None,
    *,
    length: int,
    sharpness: float = math.inf,
) -> SelfAttention:
    r"""Build self-attention that applies one linear map at every position.

    Each position looks at itself and the map sits in the values: $T = I$,
    $W_v = \begin{pmatrix} W^\top \\ 0 \end{pmatrix}$ and $W_o = I$. This "running"
    linear layer is known as a $1 \times 1$ (or pointwise) convolution. With
    $\varepsilon$ the
    [`off_target_mass`][transformers_hw.self_attention.off_target_mass] of the $n$
    tokens given, $n$ at most `length`:

    $$
    h_i = W \tilde x_i + b, \qquad
    \tilde x_i = x_i + \varepsilon \left(
    \frac{1}{n - 1} \sum_{l \ne i} x_l - x_i \right) .
    $$

    Args:
        weight: $W$, laid out as in [`torch.nn.Linear`][torch.nn.Linear]; the
            layer takes over a copy of it, its type and its device.
        bias: $b$, or `None` for none.
        length: Greatest number of tokens.
        sharpness: $c$; infinite for the exact map.

    Returns:
        The layer, whose parameters can be inspected and trained as any other's.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If a shape does not fit, or a number is out of range.

    Examples:
        >>> linear, x = torch.nn.Linear(3, 2), torch.randn(1, 4, 3)
        >>> layer = pointwise_linear_attention(linear.weight, linear.bias, length=4)
        >>> torch.allclose(layer(x)[0], linear(x), atol=1e-6)
        True
    """
    _check_kernel(weight, bias, axes="(out, in)")
    _check_counts(length=length)
    return _looking_at(
        rearrange(torch.arange(length, device=weight.device), "i -> 1 i"),
        weight,
        output=torch.eye(len(weight), device=weight.device, dtype=weight.dtype),
        output_bias=bias,
        positions=OneHotPositions(length),
        sharpness=sharpness,
    )


def convolution_attention(
    weight: Float[Tensor, "out d taps"],
    bias: Float[Tensor, " out"] | None = None,
    *,
    length: int,
    dilation: int = 1,
    sharpness: float = math.inf,
) -> SelfAttention:
    r"""Build self-attention that is a 1-D convolution, with one head per tap.

    Head $t$ fetches the token at offset $\delta_t$; together the heads gather the
    window, and the output projection is the kernel, flattened. With $K$ taps and
    dilation $s$:

    $$
    h_i = b + \sum_{t=0}^{K-1} W_t\, \tilde x_{\tau_t(i)}, \qquad
    \tau_t(i) = \operatorname{clip}(i + \delta_t,\, 0,\, n - 1), \qquad
    \delta_t = s t - \left\lfloor \tfrac{s (K - 1)}{2} \right\rfloor .
    $$

    As everywhere in deep learning this is a cross-correlation: the kernel is not
    flipped. A kernel of even size reaches one place further to the right, which
    is PyTorch's window for `padding="same"`.

    A head at the border has to look at some token, and the nearest one is the
    natural choice. So the layer is the convolution of the sequence padded by
    *replication*, without anything being padded. Zero padding takes more than
    attention:
    [`zero_padded_convolution_attention`][transformers_hw.self_attention.zero_padded_convolution_attention].

    At finite sharpness the error is that of the softened tokens,

    $$
    \tilde x_j = x_j + \varepsilon \left(
    \frac{1}{n - 1} \sum_{l \ne j} x_l - x_j \right),
    $$

    the same ones for all heads.

    The taps could sit in the values instead, $W_v^{(t)} = W_t^\top$ with
    identities stacked in $W_o$. The width of a head's values would then be the
    number of output channels, not of input channels, and both projections would
    grow or shrink in that proportion. We let the heads fetch and $W_o$ weigh, as
    in "unfold, then multiply".

    One head is not enough: it multiplies every token by one and the same matrix,
    with weights that are not negative. A kernel such as $(-1, 1)$ needs two.

    Args:
        weight: $W$, laid out as in [`torch.nn.Conv1d`][torch.nn.Conv1d]; the
            layer takes over a copy of it, its type and its device.
        bias: $b$, or `None` for none.
        length: Number $n$ of tokens. The layer takes sequences of just this
            length, since its heads know where the last token stands.
        dilation: $s$, the distance between neighbouring taps.
        sharpness: $c$; infinite for the exact convolution.

    Returns:
        The layer, whose parameters can be inspected and trained as any other's.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If a shape does not fit, or a number is out of range.

    Examples:
        The difference of a token's two neighbours:

        >>> kernel = torch.tensor([[[-1.0, 0.0, 1.0]]])
        >>> layer = convolution_attention(kernel, length=4)
        >>> x = torch.tensor([[[1.0], [4.0], [9.0], [16.0]]])
        >>> layer(x)[0].flatten()
        tensor([ 3.,  8., 12.,  7.])

    References:
        Cordonnier, Loukas & Jaggi (2020), [On the Relationship between
        Self-Attention and Convolutional Layers
        ](https://arxiv.org/abs/1911.03584), section 3, for pictures.
    """
    before, _ = _reach(weight, bias, dilation)
    _check_counts(length=length)
    return _convolution(
        weight,
        bias,
        before=before,
        dilation=dilation,
        positions=FixedLengthOneHotPositions(length),
        sharpness=sharpness,
    )


def zero_padded_convolution_attention(
    weight: Float[Tensor, "out d taps"],
    bias: Float[Tensor, " out"] | None = None,
    *,
    length: int,
    dilation: int = 1,
    sharpness: float = math.inf,
) -> ZeroPaddedSelfAttention:
    r"""Build a 1-D convolution with zeros beyond the border out of self-attention.

    The attention is that of
    [`convolution_attention`][transformers_hw.self_attention.convolution_attention];
    it sees the sequence with $\lfloor s(K-1)/2 \rfloor$ zero tokens before it and
    $\lceil s(K-1)/2 \rceil$ after it, and the outputs at the zero tokens are cut
    off. The result is `torch.nn.Conv1d(..., padding="same")`, for kernels of odd
    and even size.

    At finite sharpness the error is that of the softened *padded* sequence: of
    its $n + s(K-1)$ tokens the zeros take part in the means too, and are no
    longer zero.

    Args:
        weight: $W$, laid out as in [`torch.nn.Conv1d`][torch.nn.Conv1d]; the
            layer takes over a copy of it, its type and its device.
        bias: $b$, or `None` for none.
        length: Greatest number of tokens. Shorter sequences are exact too, since
            no head looks past the padding.
        dilation: $s$, the distance between neighbouring taps.
        sharpness: $c$; infinite for the exact convolution.

    Returns:
        The layer, whose `inner` part is the attention.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If a shape does not fit, or a number is out of range.

    Examples:
        >>> kernel = torch.tensor([[[-1.0, 0.0, 1.0]]])
        >>> layer = zero_padded_convolution_attention(kernel, length=4)
        >>> x = torch.tensor([[[1.0], [4.0], [9.0], [16.0]]])
        >>> layer(x)[0].flatten()
        tensor([ 4.,  8., 12., -9.])
    """
    before, after = _reach(weight, bias, dilation)
    _check_counts(length=length)
    inner = _convolution(
        weight,
        bias,
        before=before,
        dilation=dilation,
        positions=OneHotPositions(before + length + after),
        sharpness=sharpness,
    )
    return ZeroPaddedSelfAttention(inner, before=before, after=after)


def _reach(weight: Tensor, bias: Tensor | None, dilation: int) -> tuple[int, int]:
    _check_kernel(weight, bias, axes="(out, in, taps)")
    _check_counts(dilation=dilation)
    span = dilation * (weight.shape[-1] - 1)
    return span // 2, span - span // 2


def _convolution(
    weight: Tensor,
    bias: Tensor | None,
    *,
    before: int,
    dilation: int,
    positions: OneHotPositions,
    sharpness: float,
) -> SelfAttention:
    _, channels, taps = weight.shape
    offsets = dilation * torch.arange(taps, device=weight.device) - before
    places = torch.arange(positions.dim, device=weight.device)
    targets = rearrange(offsets, "tap -> tap 1") + places
    return _looking_at(
        targets.clamp(0, positions.dim - 1),
        torch.eye(channels, device=weight.device, dtype=weight.dtype),
        output=rearrange(weight, "out channel tap -> out (tap channel)"),
        output_bias=bias,
        positions=positions,
        sharpness=sharpness,
    )


def _looking_at(
    targets: Tensor,
    values: Tensor,
    *,
    output: Tensor,
    positions: OneHotPositions,
    sharpness: float,
    output_bias: Tensor | None = None,
) -> SelfAttention:
    """Build the layer whose head `h` looks from place `i` at `targets[h, i]`.

    Every head reads tokens by `values`; the output projection is `output`.
    """
    _check_sharpness(sharpness)
    heads, places = targets.shape
    width, dim = values.shape
    layer = SelfAttention(
        dim,
        heads,
        positions=positions,
        head_dim=places,
        value_head_dim=width,
        output_dim=len(output),
        bias=() if output_bias is None else ("output",),
        scale=sharpness,
        device=values.device,
        dtype=values.dtype,
    )
    codes = torch.eye(places, device=values.device, dtype=values.dtype)
    asked = rearrange(codes[targets], "h place target -> (h target) place")
    told = repeat(codes, "key place -> (h key) place", h=heads)
    shown = repeat(values, "v d -> (h v) d", h=heads)
    built = layer.attention
    with torch.no_grad():
        built.query_proj.weight.copy_(F.pad(asked, (dim, 0)))
        built.key_proj.weight.copy_(F.pad(told, (dim, 0)))
        built.value_proj.weight.copy_(F.pad(shown, (0, places)))
        built.output_proj.weight.copy_(output)
        if output_bias is not None:
            built.output_proj.bias.copy_(output_bias)
    return layer


def _joined_width(dim: int, positions: PositionalEncoding | None) -> int:
    if positions is None:
        return dim
    if not isinstance(positions, PositionalEncoding):
        raise TypeError(
            "positions must be a PositionalEncoding or None, "
            f"got {type(positions).__name__}."
        )
    if positions.combine == "concatenate":
        return dim + positions.dim
    if positions.dim != dim:
        raise ValueError(
            f"positions that are added must be as wide as a token, {dim}, "
            f"got codes of width {positions.dim}."
        )
    return dim


def _whole_numbers(name: str, numbers: Sequence[int] | Tensor) -> list[int]:
    if isinstance(numbers, Tensor):
        if numbers.dim() != 1:
            raise ValueError(
                f"{name} must have one axis, got shape {tuple(numbers.shape)}."
            )
        numbers = numbers.tolist()
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int):
            raise TypeError(
                f"{name} must hold whole numbers, got {type(number).__name__}."
            )
    return list(numbers)


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}.")


def _check_sharpness(sharpness: float) -> None:
    if isinstance(sharpness, bool) or not isinstance(sharpness, int | float):
        raise TypeError(
            "sharpness must be a number (math.inf for the exact layer), "
            f"got {type(sharpness).__name__}."
        )
    if not sharpness >= 0.0:
        raise ValueError(f"sharpness must be zero or greater, got {sharpness}.")


def _check_float(name: str, x: Tensor) -> None:
    if not isinstance(x, Tensor) or not x.is_floating_point():
        came = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise TypeError(f"{name} must be a floating-point tensor, got {came}.")


def _check_kernel(weight: Tensor, bias: Tensor | None, *, axes: str) -> None:
    _check_float("weight", weight)
    if weight.dim() != axes.count(",") + 1 or 0 in weight.shape:
        raise ValueError(
            f"weight must be {axes}, none of them empty, "
            f"got shape {tuple(weight.shape)}."
        )
    if bias is None:
        return
    _check_float("bias", bias)
    if bias.shape != weight.shape[:1]:
        raise ValueError(
            f"bias must have the {len(weight)} entries of weight's first axis, "
            f"got shape {tuple(bias.shape)}."
        )
