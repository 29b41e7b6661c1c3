"""The settings of layers and stacks, with their defaults."""

from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, Literal

from transformers_hw._engine.arguments import (
    Factory,
    check_dropout,
    check_sizes,
    named_parts,
)
from transformers_hw.multi_head_attention import PROJECTIONS, QueryKeyNorm

Norm = Literal["pre", "post"]
Normalization = Literal["layer", "rms"]
Activation = Literal["relu", "gelu", "gelu_tanh", "quick_gelu", "silu"]
Network = Activation | Literal["swiglu"]
Bias = bool | tuple[str, ...]

# What can have biases: the projections of attention, the network, the layer norms.
BIASED = (*PROJECTIONS, "feed_forward", "norm")


class LayerOptions(Factory, total=False):
    """The keywords that every layer takes, and every stack and model passes on.

    Attributes:
        norm: Where the layer norm stands: `"pre"` for $x + f(N(x))$, the default, or
            `"post"` for $N(x + f(x))$.
        normalization: Kind of norm, `"layer"` (the default) or `"rms"`.
        activation: Activation of the feed-forward network: `"relu"` (the default),
            `"gelu"`, `"gelu_tanh"`, `"quick_gelu"` or `"silu"`; `"swiglu"` makes it a
            [`SwiGLU`][transformers_hw.transformer.SwiGLU].
        hidden_norm: Whether a SwiGLU normalizes its hidden layer; not by default.
        dropout: Probability of dropping, in training, an attention weight, a hidden
            unit, or a feature of a sublayer's output; zero by default.
        eps: Added to the variance in each layer norm, for numerical stability;
            $10^{-5}$ by default.
        bias: Which parts have biases: all (the default), none, or those named among
            `"query"`, `"key"`, `"value"`, `"output"`, `"feed_forward"`, `"norm"`.
        layer_scale: Initial value of the factors, one per feature, that the output of
            a sublayer is multiplied by before it is added; `None` (the default) for no
            factors.
        drop_path: Probability, in training, that a sublayer adds nothing to a sample.
            In a stack, it grows linearly up to this number at the last layer.
        head_dim: Width of a head's queries, keys and values; `dim / heads` by default.
        kv_heads: Number of heads of keys and values; as many as `heads` by default.
        qk_norm: How to normalize queries and keys: `"layer"`, `"rms"` or `None` (the
            default).
        window: How far a token sees in self-attention; everything by default.
        sinks: How many of the first tokens it sees beyond its window.
        softcap: Bound of the scaled scores; none by default.
        device: Device of the parameters.
        dtype: Dtype of the parameters.
    """

    norm: Norm
    normalization: Normalization
    activation: Network
    hidden_norm: bool
    dropout: float
    eps: float
    bias: Bias
    layer_scale: float | None
    drop_path: float
    head_dim: int | None
    kv_heads: int | None
    qk_norm: QueryKeyNorm | None
    window: int | None
    sinks: int
    softcap: float | None


@dataclass(frozen=True)
class LayerConfig:
    """The settings of a layer: `EncoderLayer(**asdict(config))` builds it again.

    The configs of stacks and models extend this one. Attributes that are not listed
    here are those of [`LayerOptions`][transformers_hw.transformer.LayerOptions].

    Attributes:
        dim: Width of a token.
        heads: Number of attention heads.
        hidden_dim: Width of the feed-forward network's hidden layer.
    """

    dim: int
    heads: int
    hidden_dim: int
    _: KW_ONLY
    norm: Norm = "pre"
    activation: Network = "relu"
    dropout: float = 0.0
    eps: float = 1e-5
    bias: Bias = True
    normalization: Normalization = "layer"
    hidden_norm: bool = False
    layer_scale: float | None = None
    drop_path: float = 0.0
    head_dim: int | None = None
    kv_heads: int | None = None
    qk_norm: QueryKeyNorm | None = None
    window: int | None = None
    sinks: int = 0
    softcap: float | None = None

    def __post_init__(self) -> None:
        """Raise unless sizes are positive and parts with biases are known."""
        check_sizes(dim=self.dim, heads=self.heads, hidden_dim=self.hidden_dim)
        check_dropout(self.drop_path, "drop_path")
        named_parts("bias", self.bias, BIASED)
        if self.hidden_norm and self.activation != "swiglu":
            raise ValueError(
                f"hidden_norm needs the activation 'swiglu', got {self.activation!r}."
            )

    @property
    def options(self) -> LayerOptions:
        """The settings that a stack passes on to its layers."""
        names = [field.name for field in fields(LayerConfig) if field.kw_only]
        options: Any = {name: getattr(self, name) for name in names}
        return options

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
