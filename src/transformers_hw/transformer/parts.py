"""The parts of a layer other than attention."""

import math
from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from einops import reduce
from jaxtyping import Float
from torch import Tensor, nn

from transformers_hw._engine.arguments import (
    check_dropout,
    check_eps,
    check_sizes,
)
from transformers_hw._engine.shapes import checked
from transformers_hw.transformer.config import Activation

# PyTorch's fused kernels; gelu is written out below.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
}


@checked
def layer_norm(
    x: Float[Tensor, "*batch d"],
    weight: Float[Tensor, " d"] | None = None,
    bias: Float[Tensor, " d"] | None = None,
    *,
    eps: float = 1e-5,
) -> Float[Tensor, "*batch d"]:
    r"""Normalize each token to mean 0 and variance 1 over its features.

    $$
    y = \gamma \odot \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \beta,
    \qquad
    \mu = \frac1d \sum_i x_i, \quad \sigma^2 = \frac1d \sum_i (x_i - \mu)^2
    $$

    The variance is divided by $d$, not $d - 1$. Unlike in batch normalization, no
    other token and no other sample enters the statistics.
    [`LayerNorm`][transformers_hw.transformer.LayerNorm] computes the same with
    PyTorch's fused kernel.

    Args:
        x: Tokens.
        weight: $\gamma$, one factor per feature; `None` for ones.
        bias: $\beta$, one offset per feature; `None` for zeros.
        eps: $\epsilon$, added to the variance for numerical stability.

    Returns:
        The normalized tokens.

    Raises:
        ValueError: If `eps` is negative, or `weight` or `bias` is not as wide as `x`.

    Examples:
        >>> layer_norm(torch.tensor([1.0, 2.0, 3.0]))
        tensor([-1.2247,  0.0000,  1.2247])

    References:
        Ba, Kiros & Hinton (2016), [Layer Normalization
        ](https://arxiv.org/abs/1607.06450), section 3.
    """
    check_eps(eps)
    centered = x - reduce(x, "... d -> ... 1", "mean")
    variance = reduce(centered.square(), "... d -> ... 1", "mean")
    y = centered / (variance + eps).sqrt()
    y = y if weight is None else weight * y
    return y if bias is None else y + bias


@checked
def gelu(
    x: Float[Tensor, "*batch"], *, approximate: Literal["none", "tanh"] = "none"
) -> Float[Tensor, "*batch"]:
    r"""Apply the Gaussian error linear unit, $x\,\Phi(x)$, to each entry.

    $$
    \operatorname{gelu}(x) = x\,\Phi(x)
    = \frac{x}{2}\left(1 + \operatorname{erf}\frac{x}{\sqrt2}\right)
    \approx \frac{x}{2}\left(1 + \tanh\!\left(
    \sqrt{\tfrac{2}{\pi}}\,(x + 0.044715\,x^3)\right)\right)
    $$

    Here $\Phi(x)$ is the probability that a standard normal variable is below $x$.
    The error of the approximation is at most $4.74\cdot10^{-4}$. The layers below call
    PyTorch's fused kernel, which computes the same.

    Args:
        x: Numbers.
        approximate: `"none"` for the exact function, `"tanh"` for the approximation.

    Returns:
        The function of each entry.

    Raises:
        ValueError: If `approximate` is neither of the two.

    Examples:
        >>> gelu(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([-0.1587,  0.0000,  0.8413])

    References:
        Hendrycks & Gimpel (2016), [Gaussian Error Linear Units
        ](https://arxiv.org/abs/1606.08415), section 2.
    """
    if approximate == "tanh":
        inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)
        return 0.5 * x * (1.0 + torch.tanh(inner))
    return 0.5 * x * (1.0 + torch.erf(x / math.sqrt(2.0)))


class LayerNorm(nn.Module):
    r"""Normalize each token over its features, then scale and shift them.

    See [`layer_norm`][transformers_hw.transformer.layer_norm] for the formula;
    here $\gamma$ and $\beta$, one number per feature each, are learned.

    Args:
        dim: Number of features.
        eps: Added to the variance, for numerical stability.
        bias: Whether to learn the shift $\beta$.
        device: Device of the parameters.
        dtype: Dtype of the parameters.

    Raises:
        ValueError: If `dim` is not positive or `eps` is negative.

    Examples:
        >>> LayerNorm(3)(torch.tensor([1.0, 2.0, 3.0])).tolist()
        [-1.224..., 0.0, 1.224...]
    """

    @checked
    def __init__(
        self,
        dim: int,
        *,
        eps: float = 1e-5,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_sizes(dim=dim)
        check_eps(eps)
        self.dim, self.eps = dim, eps
        self.weight = nn.Parameter(torch.ones(dim, device=device, dtype=dtype))
        shift = torch.zeros(dim, device=device, dtype=dtype) if bias else None
        self.bias = None if shift is None else nn.Parameter(shift)

    def reset_parameters(self) -> None:
        """Set the factors to one and the shifts to zero."""
        nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    @checked
    def forward(
        self, x: Float[Tensor, "*batch {self.dim}"]
    ) -> Float[Tensor, "*batch {self.dim}"]:
        """Normalize over the last axis."""
        return F.layer_norm(x, (self.dim,), self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """Show size and epsilon in `repr`."""
        return f"{self.dim}, eps={self.eps}, bias={self.bias is not None}"


class FeedForward(nn.Module):
    r"""Apply the same two-layer network to every token.

    $$\operatorname{FFN}(x) = \phi(x W_1 + b_1) W_2 + b_2$$

    It does not mix tokens: over a sequence it is two convolutions of kernel size one.

    Args:
        dim: Width of a token.
        hidden_dim: Width of the hidden layer, four times `dim` in the paper.
        activation: $\phi$: `"relu"`, `"gelu"` or `"gelu_tanh"`.
        dropout: Probability of dropping a hidden unit in training.
        bias: Whether to learn $b_1$ and $b_2$.
        device: Device of the parameters.
        dtype: Dtype of the parameters.

    Raises:
        ValueError: If a size is not positive, `activation` is unknown or `dropout` is
            not in $[0, 1)$.

    Examples:
        >>> network = FeedForward(512, 2048)
        >>> sum(p.numel() for p in network.parameters())
        2099712

    References:
        Vaswani et al. (2017), [Attention Is All You Need
        ](https://arxiv.org/abs/1706.03762), section 3.3.
    """

    @checked
    def __init__(
        self,
        dim: int,
        hidden_dim: int,
        *,
        activation: Activation = "relu",
        dropout: float = 0.0,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_sizes(dim=dim, hidden_dim=hidden_dim)
        check_dropout(dropout)
        self.dim, self.activation = dim, activation
        self.hidden_proj = nn.Linear(dim, hidden_dim, bias, device, dtype)
        self.output_proj = nn.Linear(hidden_dim, dim, bias, device, dtype)
        self.dropout = nn.Dropout(dropout)

    @checked
    def forward(
        self, x: Float[Tensor, "*batch {self.dim}"]
    ) -> Float[Tensor, "*batch {self.dim}"]:
        """Transform each token."""
        hidden = ACTIVATIONS[self.activation](self.hidden_proj(x))
        return self.output_proj(self.dropout(hidden))

    def extra_repr(self) -> str:
        """Show the activation in `repr`."""
        return f"activation={self.activation!r}"
