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

from transformers_hw._checks import (
    check_choice,
    check_dropout,
    check_eps,
    check_float,
    check_sizes,
)
from transformers_hw.attention import _may_overwrite

Activation = Literal["relu", "gelu", "gelu_tanh"]

# The fused kernels, and the same kernels overwriting their input; gelu is written
# out below.
Function = Callable[[Tensor], Tensor]
ACTIVATIONS: dict[str, tuple[Function, Function]] = {
    "relu": (F.relu, torch.relu_),
    "gelu": (F.gelu, torch.ops.aten.gelu_),
    "gelu_tanh": (
        partial(F.gelu, approximate="tanh"),
        partial(torch.ops.aten.gelu_, approximate="tanh"),
    ),
}


def layer_norm(
    x: Float[Tensor, "*batch d"],
    weight: Float[Tensor, " d"] | None = None,
    bias: Float[Tensor, " d"] | None = None,
    *,
    eps: float = 1e-5,
) -> Float[Tensor, "*batch d"]:
    r"""Give each token mean 0 and variance 1 over its own features.

    $$
    y = \gamma \odot \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \beta,
    \qquad
    \mu = \frac1d \sum_i x_i, \quad \sigma^2 = \frac1d \sum_i (x_i - \mu)^2
    $$

    The variance is the mean of squares (divided by $d$, not $d - 1$). No other
    token and no other sample takes part, unlike in batch normalisation.
    [`LayerNorm`][transformers_hw.transformer.LayerNorm] computes the same with
    PyTorch's fused kernel.

    Args:
        x: Tokens.
        weight: $\gamma$, one factor per feature, or `None` for ones.
        bias: $\beta$, one number per feature, or `None` for zeros.
        eps: $\epsilon$, which keeps a constant token from dividing by zero.

    Returns:
        The normalised tokens.

    Raises:
        TypeError: If an argument is not a floating-point tensor.
        ValueError: If `eps` is negative or a shape does not fit.

    Examples:
        >>> layer_norm(torch.tensor([1.0, 2.0, 3.0]))
        tensor([-1.2247,  0.0000,  1.2247])

    References:
        Ba, Kiros & Hinton (2016), [Layer Normalization
        ](https://arxiv.org/abs/1607.06450), section 3.
    """
    check_float("x", x, "...", "d")
    check_eps(eps)
    for name, vector in (("weight", weight), ("bias", bias)):
        if vector is not None:
            check_float(name, vector, x.shape[-1])
    centred = x - reduce(x, "... d -> ... 1", "mean")
    variance = reduce(centred.square(), "... d -> ... 1", "mean")
    y = centred * (variance + eps).rsqrt()
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def gelu(
    x: Float[Tensor, "*batch"], *, approximate: Literal["none", "tanh"] = "none"
) -> Float[Tensor, "*batch"]:
    r"""Pass a number in proportion to how many standard normal ones it exceeds.

    $$
    \operatorname{gelu}(x) = x\,\Phi(x)
    = \frac{x}{2}\left(1 + \operatorname{erf}\frac{x}{\sqrt2}\right)
    \approx \frac{x}{2}\left(1 + \tanh\!\left(
    \sqrt{\tfrac{2}{\pi}}\,(x + 0.044715\,x^3)\right)\right)
    $$

    The approximation is never off by more than $4.74\cdot10^{-4}$. The layers
    below call PyTorch's fused kernel, which computes the same.

    Args:
        x: Any numbers.
        approximate: `"none"` for the exact function, `"tanh"` for the other.

    Returns:
        The function of each number.

    Raises:
        TypeError: If `x` is not a floating-point tensor.
        ValueError: If `approximate` is neither of the two.

    Examples:
        >>> gelu(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([-0.1587,  0.0000,  0.8413])

    References:
        Hendrycks & Gimpel (2016), [Gaussian Error Linear Units
        ](https://arxiv.org/abs/1606.08415), section 2.
    """
    check_float("x", x, "...")
    check_choice("approximate", approximate, ("none", "tanh"))
    if approximate == "tanh":
        inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)
        return 0.5 * x * (1.0 + torch.tanh(inner))
    return 0.5 * x * (1.0 + torch.erf(x / math.sqrt(2.0)))


class LayerNorm(nn.Module):
    r"""Normalise each token over its features, then scale and shift them.

    See [`layer_norm`][transformers_hw.transformer.layer_norm] for the formula;
    here $\gamma$ and $\beta$, one number per feature each, are learnt.

    Args:
        dim: Number of features.
        eps: Added to the variance.
        bias: Whether to learn a shift $\beta$.
        device: Where to put the parameters.
        dtype: Type of the parameters.

    Raises:
        ValueError: If `dim` is not positive or `eps` is negative.

    Examples:
        >>> LayerNorm(3)(torch.tensor([1.0, 2.0, 3.0])).tolist()
        [-1.224..., 0.0, 1.224...]
    """

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
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim, device=device, dtype=dtype))
        shift = torch.zeros(dim, device=device, dtype=dtype) if bias else None
        self.bias = None if shift is None else nn.Parameter(shift)

    def reset_parameters(self) -> None:
        """Go back to factors of one and shifts of zero."""
        nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        """Normalise over the last axis."""
        check_float("x", x, "...", len(self.weight))
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """Show size and epsilon in `repr`."""
        return f"{len(self.weight)}, eps={self.eps}, bias={self.bias is not None}"


class FeedForward(nn.Module):
    r"""Apply one small network to every token, the same at each position.

    $$\operatorname{FFN}(x) = \phi(x W_1 + b_1) W_2 + b_2$$

    It does not mix tokens: over a sequence it is two convolutions of kernel
    size one. In `torch.inference_mode()` the activation overwrites the hidden
    layer; whoever reads that with a hook reads it in `torch.no_grad()`.

    Args:
        dim: Width of a token.
        hidden_dim: Width of the hidden layer, four times `dim` in the paper.
        activation: $\phi$: `"relu"`, `"gelu"` or `"gelu_tanh"`.
        dropout: Probability of dropping a hidden unit in training.
        bias: Whether to learn $b_1$ and $b_2$.
        device: Where to put the parameters.
        dtype: Type of the parameters.

    Raises:
        ValueError: If a size, the activation or the dropout is not valid.

    Examples:
        >>> network = FeedForward(512, 2048)
        >>> sum(p.numel() for p in network.parameters())
        2099712

    References:
        Vaswani et al. (2017), [Attention Is All You Need
        ](https://arxiv.org/abs/1706.03762), section 3.3.
    """

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
        check_choice("activation", activation, tuple(ACTIVATIONS))
        self.activation = activation
        self.hidden_proj = nn.Linear(dim, hidden_dim, bias, device, dtype)
        self.output_proj = nn.Linear(hidden_dim, dim, bias, device, dtype)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        """Transform each token."""
        check_float("x", x, "...", self.hidden_proj.in_features)
        hidden = self.hidden_proj(x)
        activate, overwrite = ACTIVATIONS[self.activation]
        # The largest tensor of a layer: its memory is worth using again.
        hidden = (overwrite if _may_overwrite() else activate)(hidden)
        return self.output_proj(self.dropout(hidden))
