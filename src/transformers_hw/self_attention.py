r"""Self-attention, and layers built weight by weight to do a known job.

What can self-attention compute? The functions below build layers whose weights you
can read. They append one-hot positions to the tokens, $C = [X \; I_n]$. With tokens
as rows ([`torch.nn.Linear`][torch.nn.Linear] stores the transposes),

$$
W_k = \begin{pmatrix} 0 \\ I_n \end{pmatrix}, \qquad
W_q = \begin{pmatrix} 0 \\ T \end{pmatrix}, \qquad
W_v = \begin{pmatrix} I_d \\ 0 \end{pmatrix},
$$

where row $i$ of the target matrix $T$ is one at the position that $i$ should attend
to, and zero elsewhere. Then $Q K^\top = T$, whatever the tokens are. The scale is the
layer's *sharpness* $c$: a query scores $c$ at its target and $0$ at the other $n - 1$
positions. Their total weight is $\varepsilon$, and the layer returns what the exact
one returns for *softened* tokens $\tilde x_j$:

$$
\varepsilon = \frac{n - 1}{e^c + n - 1}, \qquad
\tilde x_j = x_j + \varepsilon\, (\bar x_{-j} - x_j), \qquad
\bar x_{-j} = \frac{1}{n - 1} \sum_{l \ne j} x_l .
$$

An infinite sharpness is hard attention: $\varepsilon = 0$, and $\tilde x_j = x_j$.
"""

import math
from collections.abc import Collection, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from transformers_hw._engine.arguments import (
    Device,
    check_lengths,
    check_one_dtype,
    check_scale,
    check_sizes,
    describe,
    share_of_head,
)
from transformers_hw._engine.shapes import check_shape, checked
from transformers_hw.multi_head_attention import KeyValueCache, MultiHeadAttention
from transformers_hw.positional_encoding import OneHotPositions, PositionalEncoding


class SelfAttention(nn.Module):
    r"""Attend from every token of a sequence to all of them, with or without positions.

    $$
    H = [H_1 \; \cdots \; H_h]\, W_o, \qquad
    H_i = \operatorname{softmax}\!\left(
    \frac{C W_q^{(i)} (C W_k^{(i)})^\top}{\sqrt{d_k}}\right) C W_v^{(i)}
    $$

    Here $C$ is $X$, or $X + P$ or $[X \; P]$ with positional embeddings $P$.
    (Texts with tokens in columns write $V \operatorname{softmax}(K^\top Q)$.)
    Without positions the layer treats the tokens as a set: it is permutation
    equivariant, $f(\Pi X) = \Pi f(X)$ for every permutation matrix $\Pi$.

    Args:
        dim: Width $d$ of a token.
        heads: Number of heads $h$.
        positions: Positional encoding to add or concatenate to the tokens. If
            concatenated, it widens the input of the projections; the output keeps
            its width.
        head_dim: $d_k$, width of a head's queries and keys; `dim / heads` by default.
        value_head_dim: Width of a head's values; $d_k$ by default.
        output_dim: Width of the output; `dim` by default.
        bias: Whether all projections have biases, or the names of those that do.
        scale: $\beta$ in place of $1/\sqrt{d_k}$; `math.inf` is hard attention.
        dropout: Probability of dropping a weight in training.
        device: Device of the projections.
        dtype: Dtype of the projections.

    Raises:
        TypeError: If `positions` is not a positional encoding.
        ValueError: If a number is out of range, or positions to be added are not
            `dim` wide.

    Examples:
        >>> layer, x = SelfAttention(6, heads=2), torch.randn(1, 5, 6)
        >>> output, reversed_output = layer(x), layer(x.flip(1))
        >>> torch.allclose(reversed_output, output.flip(1), atol=1e-6)
        True

    References:
        Vaswani et al. (2017), [Attention Is All You Need
        ](https://arxiv.org/abs/1706.03762), section 3.2.3.
    """

    @checked
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
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_sizes(dim=dim)
        joined = dim
        if positions is not None:
            if positions.combine == "concatenate":
                joined = dim + positions.dim
            elif positions.dim != dim:
                raise ValueError(
                    f"positions must be {dim} wide to be added, got {positions.dim}."
                )
        self.dim = dim
        self.positions = positions
        self.attention = MultiHeadAttention(
            joined,
            heads,
            head_dim=share_of_head(dim, heads) if head_dim is None else head_dim,
            value_head_dim=value_head_dim,
            output_dim=dim if output_dim is None else output_dim,
            bias=bias,
            scale=scale,
            dropout=dropout,
            device=device,
            dtype=dtype,
        )

    @checked
    def forward(
        self,
        x: Float[Tensor, "b n {self.dim}"],
        *,
        mask: Bool[Tensor, "*#b_h #n #keys"] | None = None,
        padding_mask: Bool[Tensor, "b keys"] | None = None,
        bias: Float[Tensor, "*#b_h #n #keys"] | None = None,
        causal: bool = False,
        cache: KeyValueCache | None = None,
        return_weights: bool = False,
    ) -> (
        Float[Tensor, "b n out"]
        | tuple[Float[Tensor, "b n out"], Float[Tensor, "b heads n keys"]]
    ):
        """Attend from each token to all of them.

        Args:
            x: Sequences of tokens.
            mask: `True` where a query token may attend to a key token.
            padding_mask: `True` for real tokens, `False` for padding.
            bias: Numbers added to the scaled scores.
            causal: Whether a token attends only to itself and to earlier tokens.
            cache: Keys and values of earlier tokens; positions continue from there.
            return_weights: Whether to return the attention weights of each head, too.

        Returns:
            The output; with `return_weights`, also the weights before dropout.

        Raises:
            ValueError: If shapes do not fit, or there are more tokens than positions.
        """
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
    """Encode positions by one-hot vectors, for sequences of one length only.

    In a shorter sequence, a head whose target lies past the end has equal scores at all
    positions and silently returns the mean of the values. So other lengths are refused.
    """

    @checked
    def embeddings(
        self, length: int, *, start: int = 0, device: Device = None
    ) -> Float[Tensor, "length p"]:
        """Return the identity; raise for any other length."""
        if length != self.dim:
            raise ValueError(f"there must be {self.dim} tokens exactly, got {length}.")
        return super().embeddings(length, start=start, device=device)


class ZeroPaddedSelfAttention(nn.Module):
    """Pad a sequence with zeros, apply self-attention, and crop the output.

    Attention weights sum to one, so a head can return zero only if it finds a zero
    token to attend to.

    Args:
        inner: Layer applied to the padded sequence.
        before: Number of zero tokens before the sequence.
        after: Number of zero tokens after it.

    Raises:
        ValueError: If a number is negative.
    """

    @checked
    def __init__(self, inner: SelfAttention, *, before: int, after: int) -> None:
        super().__init__()
        check_lengths(before=before, after=after)
        self.inner = inner
        self.before, self.after = before, after

    @checked
    def forward(
        self, x: Float[Tensor, "b n {self.inner.dim}"], *, return_weights: bool = False
    ) -> (
        Float[Tensor, "b n out"]
        | tuple[Float[Tensor, "b n out"], Float[Tensor, "b heads n keys"]]
    ):
        """Return the output; with `return_weights`, also weights over padded tokens."""
        padded = F.pad(x, (0, 0, self.before, self.after))
        inside = slice(self.before, self.before + x.shape[1])
        if not return_weights:
            return self.inner(padded)[:, inside]
        output, weights = self.inner(padded, return_weights=True)
        return output[:, inside], weights[:, :, inside]

    def extra_repr(self) -> str:
        """Show the padding in `repr`."""
        return f"before={self.before}, after={self.after}"


@checked
def off_target_mass(length: int, sharpness: float) -> float:
    r"""Return the total weight that a built layer puts on the wrong tokens.

    $$\varepsilon = \frac{n - 1}{e^c + n - 1}$$

    It is the same for every query, head and input. For a wanted $\varepsilon$ take
    $c = \ln \frac{(n - 1)(1 - \varepsilon)}{\varepsilon}$.

    Args:
        length: Number $n$ of keys, zero tokens of the padding included.
        sharpness: $c \ge 0$; may be infinite.

    Raises:
        ValueError: If `length` is not positive, or `sharpness` is negative or NaN.

    Examples:
        >>> off_target_mass(5, 0.0), off_target_mass(5, math.inf)
        (0.8, 0.0)
    """
    check_sizes(length=length)
    check_scale("sharpness", sharpness)
    # exp(c) overflows at 710, where exp(-c) is merely tiny.
    others = (length - 1) * math.exp(-sharpness)
    return others / (1.0 + others)


@checked
def identity_attention(
    length: int,
    dim: int,
    *,
    sharpness: float = math.inf,
    device: Device = None,
    dtype: torch.dtype | None = None,
) -> SelfAttention:
    r"""Build self-attention that returns every token unchanged.

    Each position attends to itself, $T = I$. For $n$ tokens the output is exactly

    $$h_i = \tilde x_i = x_i + \varepsilon\, (\bar x_{-i} - x_i)$$

    with $\bar x_{-i}$ the mean of the others and $\varepsilon$ the
    [`off_target_mass`][transformers_hw.self_attention.off_target_mass]. Without
    positions, $W_q = W_k = I$ fails: at every $\beta > 0$ a token attends less to
    itself than to a longer token in the same direction.

    Args:
        length: Largest number of tokens.
        dim: Width $d$ of a token.
        sharpness: $c$; infinite for the exact identity.
        device: Device of the parameters.
        dtype: Dtype of the parameters.

    Raises:
        ValueError: If a number is out of range.

    Examples:
        >>> x = torch.tensor([[[1.0, 0.0], [3.0, 0.0], [0.0, -2.0]]])
        >>> identity_attention(3, 2)(x).equal(x)
        True
    """
    check_sizes(dim=dim)
    unchanged = torch.eye(dim, device=device, dtype=dtype)
    return pointwise_linear_attention(unchanged, length=length, sharpness=sharpness)


@checked
def permutation_attention(
    permutation: Sequence[int] | Int[Tensor, " n"],
    dim: int,
    *,
    sharpness: float = math.inf,
    device: Device = None,
    dtype: torch.dtype | None = None,
) -> SelfAttention:
    r"""Build self-attention that permutes the tokens.

    Position $i$ attends to $\pi(i)$, so that $T = \Pi$ is the permutation's matrix;
    fixed points are allowed. The output is exactly

    $$h_i = \tilde x_j = x_j + \varepsilon\, (\bar x_{-j} - x_j), \qquad j = \pi(i) .$$

    Without positions and for $n \ge 3$, no layer does this for all tokens, unless
    $\pi$ is the identity: an equivariant layer needs $\Pi \Pi' = \Pi' \Pi$ for
    every permutation matrix $\Pi'$, and only the identity commutes with all of them.

    Args:
        permutation: $\pi(0), \dots, \pi(n-1)$: output $i$ is token $\pi(i)$.
            The layer takes sequences of exactly $n$ tokens.
        dim: Width $d$ of a token.
        sharpness: $c$; infinite for the exact permutation.
        device: Device of the parameters.
        dtype: Dtype of the parameters.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If `permutation` is not one, or a number is out of range.

    Examples:
        >>> layer = permutation_attention([1, 0, 2], dim=1)
        >>> layer(torch.tensor([[[10.0], [20.0], [30.0]]])).flatten().tolist()
        [20.0, 10.0, 30.0]
    """
    check_sizes(length=len(permutation), dim=dim)
    # It has to be read, even where other tensors are made without data.
    order = torch.as_tensor(permutation, device="cpu")
    if order.is_floating_point() or order.dtype == torch.bool:
        raise TypeError(
            f"permutation must be a tensor of integers, got {describe(order)}."
        )
    check_shape("permutation", order, "n")
    if sorted(order.tolist()) != list(range(len(order))):
        wanted = f"each of 0, …, {len(order) - 1} once"
        raise ValueError(f"permutation must hold {wanted}, got {order.tolist()}.")
    unchanged = torch.eye(dim, device=device, dtype=dtype)
    targets = rearrange(order, "i -> 1 i").to(unchanged.device)
    positions = FixedLengthOneHotPositions(len(order))
    return _attending_to(targets, positions, unchanged, unchanged, sharpness=sharpness)


@checked
def pointwise_linear_attention(
    weight: Float[Tensor, "out d"],
    bias: Float[Tensor, " out"] | None = None,
    *,
    length: int,
    sharpness: float = math.inf,
) -> SelfAttention:
    r"""Build self-attention that applies one linear map at every position.

    Each position attends to itself, and the map is in the values: $T = I$,
    $W_v = \begin{pmatrix} W^\top \\ 0 \end{pmatrix}$ and $W_o = I$. Such a
    position-wise linear layer is a $1 \times 1$ convolution. The output
    is exactly $h_i = W \tilde x_i + b$, with the softened tokens $\tilde x_i$.

    Args:
        weight: $W$, laid out as in [`torch.nn.Linear`][torch.nn.Linear]; the
            layer copies it and takes over its dtype and device.
        bias: $b$; none by default.
        length: Largest number of tokens.
        sharpness: $c$; infinite for the exact map.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If a shape does not fit, or a number is out of range.

    Examples:
        >>> linear, x = torch.nn.Linear(3, 2), torch.randn(1, 4, 3)
        >>> layer = pointwise_linear_attention(linear.weight, linear.bias, length=4)
        >>> torch.allclose(layer(x), linear(x), atol=1e-6)
        True
    """
    check_sizes(length=length)
    targets = rearrange(torch.arange(length, device=weight.device), "i -> 1 i")
    positions = OneHotPositions(length)
    unchanged = torch.eye(len(weight), device=weight.device, dtype=weight.dtype)
    return _attending_to(
        targets, positions, weight, unchanged, bias, sharpness=sharpness
    )


@checked
def convolution_attention(
    weight: Float[Tensor, "out d taps"],
    bias: Float[Tensor, " out"] | None = None,
    *,
    length: int,
    padding_mode: Literal["zeros", "replicate"] = "zeros",
    dilation: int = 1,
    sharpness: float = math.inf,
) -> SelfAttention | ZeroPaddedSelfAttention:
    r"""Build self-attention that is a 1-D convolution, with one head per tap.

    Head $t$ fetches the token at offset $\delta_t$. Together the heads gather the
    window, and $W_o$ is the kernel, flattened. For $K$ taps the output is exactly

    $$
    h_i = b + \sum_{t=0}^{K-1} W_t\, \tilde x_{i + \delta_t}, \qquad
    \delta_t = s t - \left\lfloor \frac{s (K - 1)}{2} \right\rfloor ,
    $$

    with the softened tokens $\tilde x_j$. The kernel is not flipped. If $s(K-1)$ is
    odd, the window extends one position further to the right, as with PyTorch's
    `padding="same"`. In general one head is not enough, because its taps are
    nonnegative multiples of one matrix.

    There are no tokens beyond the border. In mode `"replicate"`, a head attends to the
    nearest token, at $\operatorname{clip}(i + \delta_t, 0, n-1)$. In mode `"zeros"`,
    the layer pads the sequence with zero tokens, $\lfloor s(K-1)/2 \rfloor$ before it
    and $\lceil s(K-1)/2 \rceil$ after it, applies self-attention and crops the output.
    Softened tokens are then mixed with these zeros, too.

    Args:
        weight: $W$, laid out as in [`torch.nn.Conv1d`][torch.nn.Conv1d]; the
            layer copies it and takes over its dtype and device.
        bias: $b$; none by default.
        length: Number $n$ of tokens; in mode `"zeros"`, the largest number.
        padding_mode: What a head finds beyond the border.
        dilation: $s$, the distance between neighboring taps.
        sharpness: $c$; infinite for the exact convolution.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If a shape does not fit, or a number is out of range.

    Examples:
        >>> difference = torch.tensor([[[-1.0, 0.0, 1.0]]])
        >>> layer = convolution_attention(difference, length=4)
        >>> layer(torch.tensor([[[1.0], [4.0], [9.0], [16.0]]])).flatten().tolist()
        [4.0, 8.0, 12.0, -9.0]

    References:
        Cordonnier et al. (2020), [On the Relationship between Self-Attention and
        Convolutional Layers](https://arxiv.org/abs/1911.03584), section 3.
    """
    _, channels, taps = weight.shape
    check_sizes(taps=taps, length=length, dilation=dilation)
    span = dilation * (taps - 1)
    before, after = span // 2, span - span // 2
    padded = padding_mode == "zeros"
    n = length + span if padded else length
    offsets = dilation * torch.arange(taps, device=weight.device) - before
    query_at = torch.arange(n, device=weight.device)
    targets = (rearrange(offsets, "tap -> tap 1") + query_at).clamp(0, n - 1)
    positions = (OneHotPositions if padded else FixedLengthOneHotPositions)(n)
    # The taps could sit in the values as well, with identities stacked in the output.
    # That takes fewer weights if the kernel has fewer channels out than in.
    unchanged = torch.eye(channels, device=weight.device, dtype=weight.dtype)
    kernel = rearrange(weight, "out channel tap -> out (tap channel)")
    layer = _attending_to(
        targets, positions, unchanged, kernel, bias, sharpness=sharpness
    )
    if not padded:
        return layer
    return ZeroPaddedSelfAttention(layer, before=before, after=after)


def _attending_to(
    targets: Tensor,
    positions: OneHotPositions,
    values: Tensor,
    output: Tensor,
    bias: Tensor | None = None,
    *,
    sharpness: float,
) -> SelfAttention:
    """Build the layer whose head `h` attends from position `i` to `targets[h, i]`."""
    check_scale("sharpness", sharpness)
    if bias is not None:
        check_one_dtype(weight=output, bias=bias)
    heads, n = targets.shape
    width, dim = values.shape
    layer = SelfAttention(
        dim,
        heads,
        positions=positions,
        head_dim=n,
        value_head_dim=width,
        output_dim=len(output),
        bias=() if bias is None else ("output",),
        scale=sharpness,
        device=values.device,
        dtype=values.dtype,
    )
    one_hot = torch.eye(n, device=values.device, dtype=values.dtype)
    query = rearrange(one_hot[targets], "h position target -> (h target) position")
    key = repeat(one_hot, "target position -> (h target) position", h=heads)
    value = repeat(values, "v d -> (h v) d", h=heads)
    built = layer.attention
    with torch.no_grad():
        built.query_proj.weight.copy_(F.pad(query, (dim, 0)))
        built.key_proj.weight.copy_(F.pad(key, (dim, 0)))
        built.value_proj.weight.copy_(F.pad(value, (0, n)))
        built.output_proj.weight.copy_(output)
        if bias is not None:
            built.output_proj.bias.copy_(bias)
    return layer
