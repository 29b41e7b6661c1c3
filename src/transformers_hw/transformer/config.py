"""The settings of layers and stacks, with their defaults."""

from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

from transformers_hw._engine.arguments import (
    Factory,
    check_sizes,
    named_parts,
)
from transformers_hw.multi_head_attention import PROJECTIONS

Norm = Literal["pre", "post"]
Activation = Literal["relu", "gelu", "gelu_tanh"]
Bias = bool | tuple[str, ...]

# What can have biases: the projections of attention, the network, the layer norms.
BIASED = (*PROJECTIONS, "feed_forward", "norm")


class LayerOptions(Factory, total=False):
    """The keywords that every layer takes, and every stack and model passes on.

    Attributes:
        norm: Where the layer norm stands: `"pre"` for $x + f(N(x))$, the default, or
            `"post"` for $N(x + f(x))$.
        activation: Activation of the feed-forward network: `"relu"` (the default),
            `"gelu"` or `"gelu_tanh"`.
        dropout: Probability of dropping, in training, an attention weight, a hidden
            unit, or a feature of a sublayer's output; zero by default.
        eps: Added to the variance in each layer norm, for numerical stability;
            $10^{-5}$ by default.
        bias: Which parts have biases: all (the default), none, or those named among
            `"query"`, `"key"`, `"value"`, `"output"`, `"feed_forward"`, `"norm"`.
        device: Device of the parameters.
        dtype: Dtype of the parameters.
    """

    norm: Norm
    activation: Activation
    dropout: float
    eps: float
    bias: Bias


@dataclass(frozen=True)
class LayerConfig:
    """The settings of a layer: `EncoderLayer(**asdict(config))` builds it again.

    The configs of stacks and models extend this one.

    Attributes:
        dim: Width of a token.
        heads: Number of attention heads.
        hidden_dim: Width of the feed-forward network's hidden layer.
        norm: Where the layer norm stands, `"pre"` or `"post"`.
        activation: Activation of the feed-forward network.
        dropout: Probability of dropping in training.
        eps: Added to the variance in each layer norm, for numerical stability.
        bias: Which parts have biases: all, none, or those named.
    """

    dim: int
    heads: int
    hidden_dim: int
    _: KW_ONLY
    norm: Norm = "pre"
    activation: Activation = "relu"
    dropout: float = 0.0
    eps: float = 1e-5
    bias: Bias = True

    def __post_init__(self) -> None:
        """Raise unless sizes are positive and parts with biases are known."""
        check_sizes(dim=self.dim, heads=self.heads, hidden_dim=self.hidden_dim)
        named_parts("bias", self.bias, BIASED)

    @property
    def options(self) -> LayerOptions:
        """The settings that a stack passes on to its layers."""
        return {
            "norm": self.norm,
            "activation": self.activation,
            "dropout": self.dropout,
            "eps": self.eps,
            "bias": self.bias,
        }

    def biases(self, *parts: str) -> tuple[str, ...]:
        """Return which of these parts have biases."""
        named = named_parts("bias", self.bias, BIASED)
        return tuple(part for part in parts if part in named)


@dataclass(frozen=True)
class StackConfig(LayerConfig):
    """The settings of an encoder or decoder.

    Attributes:
        depth: Number of layers.
        final_norm: Whether a layer norm follows the last layer; `None` for the default,
            only after pre-norm layers.
    """

    depth: int
    final_norm: bool | None

    def __post_init__(self) -> None:
        """Raise unless there are layers."""
        super().__post_init__()
        check_sizes(depth=self.depth)

    @property
    def ends_with_norm(self) -> bool:
        """Whether a layer norm follows the last layer."""
        return self.norm == "pre" if self.final_norm is None else self.final_norm


def split_options(options: LayerOptions) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split the options into settings, and device and dtype."""
    factory = {"device": options.get("device"), "dtype": options.get("dtype")}
    settings = {name: x for name, x in options.items() if name not in factory}
    return settings, factory
