"""The parts of a layer other than attention."""

import math
from collections.abc import Callable
from functools import partial
from typing import Literal, Unpack

import torch
import torch.nn.functional as F
from einops import reduce
from jaxtyping import Float
from torch import Tensor, nn

from transformers_hw._engine.arguments import (
    Factory,
    check_dropout,
    check_eps,
    check_sizes,
)
from transformers_hw._engine.kernels import widen
from transformers_hw._engine.shapes import checked
from transformers_hw.transformer.config import (
    Activation,
    LayerConfig,
    Normalization,
)


def quick_gelu(x: Tensor) -> Tensor:
    """Approximate GELU by a logistic function: x sigmoid(1.702 x)."""
    return x * torch.sigmoid(1.702 * x)


# PyTorch's fused kernels; gelu is written out below.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "quick_gelu": quick_gelu,
    "silu": F.silu,
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
    wide = widen(x)
    centered = wide - reduce(wide, "... d -> ... 1", "mean")
    variance = reduce(centered.square(), "... d -> ... 1", "mean")
    y = centered / (variance + eps).sqrt()
    y = y if weight is None else weight * y
    y = y if bias is None else y + bias
    return y.to(x.dtype)


@checked
def rms_norm(
    x: Float[Tensor, "*batch d"],
    weight: Float[Tensor, " d"] | None = None,
    *,
    eps: float = 1e-5,
) -> Float[Tensor, "*batch d"]:
    r"""Divide each token by the root mean square of its features.

    $$
    y = \gamma \odot \frac{x}{\sqrt{\frac1d \sum_i x_i^2 + \epsilon}}
    $$

    This is a [`layer_norm`][transformers_hw.transformer.layer_norm] that neither
    subtracts the mean nor adds a bias; on tokens of mean zero the two agree.

    Args:
        x: Tokens.
        weight: $\gamma$, one factor per feature; `None` for ones.
        eps: $\epsilon$, added to the mean square for numerical stability.

    Returns:
        The normalized tokens.

    Raises:
        ValueError: If `eps` is negative, or `weight` is not as wide as `x`.

    Examples:
        >>> rms_norm(torch.tensor([3.0, 4.0]), eps=0.0) * math.sqrt(12.5)
        tensor([3., 4.])

    References:
        Zhang & Sennrich (2019), [Root Mean Square Layer Normalization
        ](https://arxiv.org/abs/1910.07467), section 4.
    """
    check_eps(eps)
    wide = widen(x)
    mean_square = reduce(wide.square(), "... d -> ... 1", "mean")
    y = wide / (mean_square + eps).sqrt()
    y = y if weight is None else weight * y
    return y.to(x.dtype)


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


class RMSNorm(nn.Module):
    r"""Divide each token by its root mean square, then scale its features.

    See [`rms_norm`][transformers_hw.transformer.rms_norm] for the formula; here
    $\gamma$, one number per feature, is learned.

    Args:
        dim: Number of features.
        eps: Added to the mean square, for numerical stability.
        **factory: `device` and `dtype` of the parameters.

    Raises:
        ValueError: If `dim` is not positive or `eps` is negative.

    Examples:
        >>> RMSNorm(2, eps=0.0)(torch.tensor([3.0, -3.0])).tolist()
        [1.0, -1.0]
    """

    @checked
    def __init__(
        self, dim: int, *, eps: float = 1e-5, **factory: Unpack[Factory]
    ) -> None:
        super().__init__()
        check_sizes(dim=dim)
        check_eps(eps)
        self.dim, self.eps = dim, eps
        self.weight = nn.Parameter(torch.ones(dim, **factory))

    def reset_parameters(self) -> None:
        """Set the factors to one."""
        nn.init.ones_(self.weight)

    @checked
    def forward(
        self, x: Float[Tensor, "*batch {self.dim}"]
    ) -> Float[Tensor, "*batch {self.dim}"]:
        """Normalize over the last axis."""
        return F.rms_norm(x, (self.dim,), self.weight, self.eps)

    def extra_repr(self) -> str:
        """Show size and epsilon in `repr`."""
        return f"{self.dim}, eps={self.eps}"


class FeedForward(nn.Module):
    r"""Apply the same two-layer network to every token.

    $$\operatorname{FFN}(x) = \phi(x W_1 + b_1) W_2 + b_2$$

    It does not mix tokens: over a sequence it is two convolutions of kernel size one.

    Args:
        dim: Width of a token.
        hidden_dim: Width of the hidden layer, four times `dim` in the paper.
        activation: $\phi$: `"relu"`, `"gelu"`, its approximations `"gelu_tanh"` and
            `"quick_gelu"` ($x\,\sigma(1.702\,x)$), or `"silu"` ($x\,\sigma(x)$).
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


class SwiGLU(nn.Module):
    r"""Apply the same gated two-layer network to every token.

    $$
    \operatorname{SwiGLU}(x)
    = \big(\operatorname{silu}(x W_g + b_g) \odot (x W_1 + b_1)\big)\, W_2 + b_2,
    \qquad \operatorname{silu}(x) = x\,\sigma(x)
    $$

    The gate decides, for each token and hidden unit, how much of the unit passes. A
    third matrix makes the network larger: with two thirds of the hidden units it has
    as many parameters as a [`FeedForward`][transformers_hw.transformer.FeedForward].

    Args:
        dim: Width of a token.
        hidden_dim: Width of the hidden layer.
        dropout: Probability of dropping a hidden unit in training.
        bias: Whether to learn $b_g$, $b_1$ and $b_2$.
        norm: Kind of norm of the hidden layer, `"layer"`, `"rms"` or `None`.
        eps: Added to the variance in that norm, for numerical stability.
        **factory: `device` and `dtype` of the parameters.

    Raises:
        ValueError: If a size is not positive or `dropout` is not in $[0, 1)$.

    Examples:
        >>> network = SwiGLU(512, 2048 * 2 // 3, bias=False)
        >>> sum(p.numel() for p in network.parameters())
        2096640

    References:
        Shazeer (2020), [GLU Variants Improve Transformer
        ](https://arxiv.org/abs/2002.05202), section 2.
    """

    @checked
    def __init__(
        self,
        dim: int,
        hidden_dim: int,
        *,
        dropout: float = 0.0,
        bias: bool = True,
        norm: Normalization | None = None,
        eps: float = 1e-5,
        **factory: Unpack[Factory],
    ) -> None:
        super().__init__()
        check_sizes(dim=dim, hidden_dim=hidden_dim)
        check_dropout(dropout)
        self.dim = dim
        self.gate_proj = nn.Linear(dim, hidden_dim, bias, **factory)
        self.hidden_proj = nn.Linear(dim, hidden_dim, bias, **factory)
        self.output_proj = nn.Linear(hidden_dim, dim, bias, **factory)
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.Identity()
        if norm is not None:
            self.norm = NORMS[norm](hidden_dim, eps=eps, **factory)

    @checked
    def forward(
        self, x: Float[Tensor, "*batch {self.dim}"]
    ) -> Float[Tensor, "*batch {self.dim}"]:
        """Transform each token."""
        hidden = F.silu(self.gate_proj(x)) * self.hidden_proj(x)
        return self.output_proj(self.norm(self.dropout(hidden)))


class LayerScale(nn.Module):
    r"""Multiply each feature by a learned factor, small at first.

    $$x \leftarrow x + \lambda \odot f(x)$$

    Deep stacks of layers that begin near the identity are easier to train.

    Args:
        dim: Number of features.
        initial: Initial value of the factors $\lambda$.
        **factory: `device` and `dtype` of the parameters.

    Raises:
        ValueError: If `dim` is not positive.

    Examples:
        >>> LayerScale(3, initial=0.5)(torch.ones(3)).tolist()
        [0.5, 0.5, 0.5]

    References:
        Touvron et al. (2021), [Going deeper with Image Transformers
        ](https://arxiv.org/abs/2103.17239), section 2.
    """

    @checked
    def __init__(
        self, dim: int, *, initial: float = 1e-5, **factory: Unpack[Factory]
    ) -> None:
        super().__init__()
        check_sizes(dim=dim)
        self.dim, self.initial = dim, initial
        self.weight = nn.Parameter(torch.empty(dim, **factory))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set all factors to the initial value."""
        nn.init.constant_(self.weight, self.initial)

    @checked
    def forward(
        self, x: Float[Tensor, "*batch {self.dim}"]
    ) -> Float[Tensor, "*batch {self.dim}"]:
        """Scale the features."""
        return self.weight * x

    def extra_repr(self) -> str:
        """Show the size and the initial value in `repr`."""
        return f"{self.dim}, initial={self.initial}"


class DropPath(nn.Module):
    r"""Drop, in training, all that a sublayer computes for a sample.

    $$x \leftarrow x + \frac{m}{1 - p}\, f(x), \qquad m \in \{0, 1\}, \;
    P(m = 0) = p$$

    The factor $m$ is drawn for each sample. Dividing by $1 - p$ keeps the mean, so that
    nothing has to change in evaluation. This is stochastic depth: each sample is
    trained on a random subset of the layers.

    Args:
        p: Probability of dropping.

    Raises:
        ValueError: If `p` is not in $[0, 1)$.

    Examples:
        >>> _ = torch.manual_seed(0)
        >>> DropPath(0.5)(torch.ones(3, 1, 2)).tolist()
        [[[2.0, 2.0]], [[0.0, 0.0]], [[2.0, 2.0]]]

    References:
        Huang et al. (2016), [Deep Networks with Stochastic Depth
        ](https://arxiv.org/abs/1603.09382), section 3.
    """

    @checked
    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        check_dropout(p, "p")
        self.p = p

    @checked
    def forward(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        """Drop whole samples in training; return the input in evaluation."""
        if not self.training or self.p == 0.0:
            return x
        kept = torch.full_like(x[:, :1, :1], 1.0 - self.p).bernoulli()
        return kept / (1.0 - self.p) * x

    def extra_repr(self) -> str:
        """Show the probability in `repr`."""
        return f"p={self.p}"


NORMS = {"layer": LayerNorm, "rms": RMSNorm}


def norm_of(config: LayerConfig, **factory: Unpack[Factory]) -> LayerNorm | RMSNorm:
    """Build the norm that the settings ask for."""
    if config.normalization == "rms":
        return RMSNorm(config.dim, eps=config.eps, **factory)
    bias = bool(config.biases("norm"))
    return LayerNorm(config.dim, eps=config.eps, bias=bias, **factory)


def network_of(config: LayerConfig, **factory: Unpack[Factory]) -> FeedForward | SwiGLU:
    """Build the feed-forward network that the settings ask for."""
    sizes, bias = (config.dim, config.hidden_dim), bool(config.biases("feed_forward"))
    if config.activation == "swiglu":
        norm = config.normalization if config.hidden_norm else None
        options = {"norm": norm, "eps": config.eps, **factory}
        return SwiGLU(*sizes, dropout=config.dropout, bias=bias, **options)
    activation, dropout = config.activation, config.dropout
    options = {"activation": activation, "dropout": dropout, "bias": bias}
    return FeedForward(*sizes, **options, **factory)
