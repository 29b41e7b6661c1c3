r"""The theorem: any convolution as attention, one hard head per tap.

First one layer at a time, then all convolutions of a model.
"""

import copy
import math
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor, nn

from transformers_hw._engine.arguments import HOOKS
from transformers_hw._engine.shapes import checked
from transformers_hw.attention_as_convolution.gaussian import GaussianSelfAttention
from transformers_hw.attention_as_convolution.relative_table import (
    RelativeTableAttention,
    fewest_heads,
)

Convolution = nn.Conv1d | nn.Conv2d
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d)
# Base class of PyTorch's convolutions, quantized ones included, which have their own.
BASE = "_ConvNd"
PADDING_MODES = {"zeros": "constant"}


class ConvolutionAxis(NamedTuple):
    """The geometry of a convolution along one axis of the image.

    Attributes:
        size: Number of taps $K$.
        dilation: Pixels from one tap to the next.
        stride: Pixels from one output to the next.
        before: Pixels of padding in front.
        after: Pixels of padding behind.
    """

    size: int = 1
    dilation: int = 1
    stride: int = 1
    before: int = 0
    after: int = 0

    @property
    def offsets(self) -> list[int]:
        r"""Offsets of the taps: $-\lfloor K/2\rfloor, \dots$, times the dilation."""
        return [self.dilation * (tap - self.size // 2) for tap in range(self.size)]

    def pads(self, *, clamped: bool) -> tuple[int, int]:
        """Return the padding to be done explicitly; heads that clamp need less."""
        if not clamped:
            return self.before, self.after
        return (
            max(0, self.before + self.offsets[0]),
            max(0, self.after - self.offsets[-1]),
        )

    def queries(self, length: int, *, clamped: bool) -> slice:
        """Return which pixels of the explicitly padded axis are queries.

        Raises:
            ValueError: If the window does not fit into the padded axis.
        """
        reach = self.dilation * (self.size - 1)
        outputs = length + self.before + self.after - reach
        if outputs < 1:
            raise ValueError(
                f"the padded image must be at least {reach + 1} pixels long for this "
                f"kernel, got {length + self.before + self.after}."
            )
        start = self.pads(clamped=clamped)[0] - self.before - self.offsets[0]
        return slice(start, start + outputs, self.stride)


class PaddedAttention(nn.Module):
    """Pad an image, and attend from the pixels at which a convolution has outputs.

    [`attention_from_convolution`
    ][transformers_hw.attention_as_convolution.attention_from_convolution] builds it.
    It takes and returns images channels first, as convolutions do. Other modules may
    read its geometry (`kernel_size`, `stride`, `padding`, `dilation`, `groups`,
    `in_channels`, `out_channels`), `weight` and `bias`, as if it were the convolution.

    Args:
        attention: Position-only attention, whose heads fetch what the taps would.
        axes: Geometry of the rows and columns of an image, or of a sequence's one axis.
        padding_mode: `"zeros"`, `"reflect"`, `"replicate"` or `"circular"`.
    """

    @checked
    def __init__(
        self,
        attention: GaussianSelfAttention | RelativeTableAttention,
        *,
        axes: tuple[ConvolutionAxis, ...],
        padding_mode: str,
    ) -> None:
        super().__init__()
        self.attention = attention
        self.axes = axes
        self.padding_mode = padding_mode
        # A table hides what is outside the image; only Gaussian heads clamp.
        self.clamped = padding_mode == "replicate" and isinstance(
            attention, GaussianSelfAttention
        )
        # What modules around a convolution read of it.
        self.in_channels, self.out_channels = attention.dim, attention.output_dim
        self.kernel_size = tuple(axis.size for axis in axes)
        self.stride = tuple(axis.stride for axis in axes)
        self.dilation = tuple(axis.dilation for axis in axes)
        even = all(axis.before == axis.after for axis in axes)
        self.padding = tuple(axis.before for axis in axes) if even else "same"
        self.groups = 1

    @property
    def weight(self) -> Float[Tensor, "e d *taps"]:
        """Kernel of the convolution, that of all groups; of heads at their taps."""
        values = self.attention.value_weight
        if isinstance(self.attention, RelativeTableAttention):
            shares = self.attention.scores.flatten(1).softmax(dim=1)
            values = einsum(shares, values, "h taps, h d e -> taps d e")
        kernel = rearrange(values, "taps d e -> e d taps")
        return kernel.unflatten(2, self.kernel_size)

    @property
    def bias(self) -> Tensor | None:
        """Bias of the convolution."""
        return self.attention.bias

    @checked
    def forward(self, x: Float[Tensor, "*images"]) -> Float[Tensor, "*convolved"]:
        """Convolve images `(b, c, h, w)` or sequences `(b, c, n)`.

        Args:
            x: Images (or sequences), channels first; the batch axis may be missing.

        Returns:
            The output of the convolution.

        Raises:
            ValueError: If `x` has the wrong number of axes or is too small.
        """
        axes = len(self.axes)
        if x.dim() not in (axes + 1, axes + 2):
            raise ValueError(
                f"x must have a channel axis and {axes} more, and may have a batch "
                f"axis, got shape {tuple(x.shape)}."
            )
        batched = x if x.dim() == axes + 2 else rearrange(x, "... -> 1 ...")
        image = rearrange(batched, "b c n -> b c 1 n") if axes == 1 else batched
        rows, columns = _rows_and_columns(self.axes)
        queries = (
            rows.queries(image.shape[2], clamped=self.clamped),
            columns.queries(image.shape[3], clamped=self.clamped),
        )
        pads = (*columns.pads(clamped=self.clamped), *rows.pads(clamped=self.clamped))
        if any(pads):
            mode = PADDING_MODES.get(self.padding_mode, self.padding_mode)
            image = F.pad(image, pads, mode=mode)
        pixels = rearrange(image, "b c h w -> b h w c")
        output = self.attention(pixels, queries=queries)
        pattern = "b 1 w c -> b c w" if axes == 1 else "b h w c -> b c h w"
        output = rearrange(output, pattern)
        return output if x.dim() == axes + 2 else rearrange(output, "1 ... -> ...")

    def extra_repr(self) -> str:
        """Show the geometry in `repr`."""
        return f"axes={self.axes}, padding_mode={self.padding_mode!r}"


@checked
def attention_from_convolution(
    conv: nn.Module,
    *,
    heads: Literal["taps", "fewest"] = "taps",
    sharpness: float | int = math.inf,
) -> PaddedAttention:
    r"""Build the attention layer that computes what a convolution computes.

    [`attentionize`][transformers_hw.attention_as_convolution.attentionize] does this
    for every convolution of a model; [`convolution_from_attention`
    ][transformers_hw.attention_as_convolution.convolution_from_attention] is the way
    back. Chapter 4's [`convolution_attention`
    ][transformers_hw.self_attention.convolution_attention] does it in one dimension,
    with queries and keys that are one-hot positions.

    A convolution adds $X_{q+\delta} T_\delta$ over the offsets $\delta$ of its window.
    A hard head with center $\delta$ fetches $X_{q+\delta}$, and its $W^{(h)}$ can be
    any matrix, so one head per tap gives the same sum. Attention covers by itself:

    - taps and dilation: one head per tap, with center $\delta$;
    - channels, groups and bias: $W^{(h)}$, block-diagonal for groups, and $b$;
    - replicate padding, up to the window's reach: hard heads clamp at the border.

    The rest is done explicitly around it:

    - other padding (zeros, reflect, circular), or more: the image is padded first;
    - pixels at the border without an output are not queries, which is a crop;
    - with a stride, only every so many pixels are queries, which is subsampling.

    Args:
        conv: An `nn.Conv1d` or `nn.Conv2d`: any kernel, dilation, stride, groups,
            bias, padding and padding mode. Its weights are copied; frozen ones stay
            frozen.
        heads: `"taps"` for one Gaussian head per tap; `"fewest"` for heads with
            tabulated weights, as many as the rank of the taps, or one more (see
            [`fewest_heads`][transformers_hw.attention_as_convolution.fewest_heads]):
            at most two for a kernel between single channels.
        sharpness: $\alpha$ of the Gaussian heads. At the default, hard heads, the
            outputs are equal up to the order of summation. A finite one leaves up to
            $4e^{-\alpha}/(1 - e^{-3\alpha})$ of each head's weight off its target.

    Returns:
        A module that takes and returns what the convolution does.

    Raises:
        TypeError: If `conv` is of another class, even a subclass, whose forward pass
            may differ, or has complex weights.
        ValueError: If `heads` is unknown, `sharpness` is not positive, or tabulated
            heads are given a finite sharpness; or if `conv` has hooks (as pruning and
            `weight_norm` add), or methods of its own, which its replacement would not
            run.

    Examples:
        >>> conv = nn.Conv2d(2, 3, 3, stride=2, padding=1, padding_mode="reflect")
        >>> attention = attention_from_convolution(conv)
        >>> x = torch.randn(5, 2, 7, 11)
        >>> torch.allclose(attention(x), conv(x), atol=1e-6)
        True

    References:
        Cordonnier, Loukas & Jaggi (2020), [On the Relationship between
        Self-Attention and Convolutional Layers](https://arxiv.org/abs/1911.03584),
        theorem 1.
    """
    if not isinstance(conv, Convolution) or type(conv) not in CONVOLUTIONS:
        raise TypeError(
            "conv must be an nn.Conv1d or nn.Conv2d (no subclass, not transposed, "
            f"not 3-D), got {type(conv).__name__} of {type(conv).__module__}."
        )
    if not conv.weight.is_floating_point():
        raise TypeError(f"conv must have real weights, got {conv.weight.dtype}.")
    own = [name for name in vars(conv) if callable(getattr(type(conv), name, None))]
    if own or any(getattr(conv, hooks) for hooks in HOOKS):
        raise ValueError(
            "conv must have no hooks and no forward of its own, which its replacement "
            "would not run: remove them first (prune.remove and remove_weight_norm "
            "do, where weights are computed by a hook)."
        )
    if heads == "fewest" and sharpness != math.inf:
        raise ValueError(
            f"sharpness is for heads='taps'; the fewest have none, got {sharpness}."
        )
    axes = tuple(_axis(conv, i) for i in range(len(conv.kernel_size)))
    rows, columns = _rows_and_columns(axes)
    taps = _tap_matrices(conv)
    common = {
        "output_dim": conv.out_channels,
        "bias": conv.bias is not None,
        "device": conv.weight.device,
        "dtype": conv.weight.dtype,
    }
    if heads == "taps":
        centers = [(i, j) for i in rows.offsets for j in columns.offsets]
        attention = GaussianSelfAttention(
            conv.in_channels,
            len(taps),
            centers=centers,
            sharpness=sharpness,
            **common,
        )
    else:
        weights, values = fewest_heads(rearrange(taps, "t c e -> t (c e)"))
        attention = RelativeTableAttention(
            conv.in_channels,
            len(weights),
            (rows.size, columns.size),
            dilation=(rows.dilation, columns.dilation),
            **common,
        )
        taps = rearrange(values, "h (c e) -> h c e", c=conv.in_channels)
        scores = rearrange(weights.log(), "h (m n) -> h m n", m=rows.size)
        with torch.no_grad():
            attention.scores.copy_(scores)
    with torch.no_grad():
        attention.value_weight.copy_(taps)
        if attention.bias is not None and conv.bias is not None:
            attention.bias.copy_(conv.bias)
    if not conv.weight.requires_grad:
        for name, parameter in attention.named_parameters():
            parameter.requires_grad_(name == "bias")
    if attention.bias is not None and conv.bias is not None:
        attention.bias.requires_grad_(conv.bias.requires_grad)
    padded = PaddedAttention(attention, axes=axes, padding_mode=conv.padding_mode)
    return padded.train(conv.training)


@checked
def attentionize(model: nn.Module, *, sharpness: float | int = math.inf) -> nn.Module:
    r"""Copy a model, and replace every convolution in the copy by attention.

    Each one becomes what [`attention_from_convolution`
    ][transformers_hw.attention_as_convolution.attention_from_convolution] makes of it.
    Calls of `F.conv2d` inside a module's own `forward` are not found. A module used in
    several places stays one module, but a weight shared by several convolutions is
    copied for each.

    Args:
        model: Any model. It is left unchanged.
        sharpness: Sharpness $\alpha$ of the heads, infinite by default.

    Returns:
        A copy that computes the same function.

    Raises:
        TypeError: If the model has a convolution without such a replacement: a
            transposed, 3-D, lazy, quantized or complex one, or a subclass; or a part
            compiled by `torch.jit`, which may hide some. The message says where.
        ValueError: If a convolution has hooks or methods of its own, which its
            replacement would not run.

    Examples:
        >>> model = nn.Sequential(nn.Conv2d(3, 5, 3, padding=1), nn.ReLU())
        >>> attentionize(model)[0].attention
        GaussianSelfAttention(3, heads=9, output_dim=5, ..., sharpness=inf, ...)
    """
    made: dict[int, object] = {}
    for path, module in model.named_modules():
        kinds = {base.__name__ for base in type(module).__mro__}
        if not kinds & {BASE, "ScriptModule"}:
            continue
        try:
            made[id(module)] = attention_from_convolution(module, sharpness=sharpness)
        except (TypeError, ValueError) as error:
            where = repr(path) if path else "the model itself"
            raise type(error)(f"at {where}: {error}") from None
    # What deepcopy believes to have copied, it takes wherever it meets the original.
    return copy.deepcopy(model, made)


def _rows_and_columns(
    axes: tuple[ConvolutionAxis, ...],
) -> tuple[ConvolutionAxis, ConvolutionAxis]:
    """Return the geometry of an image; a sequence is an image of one row."""
    return (ConvolutionAxis() if len(axes) == 1 else axes[0]), axes[-1]


def _axis(conv: Convolution, i: int) -> ConvolutionAxis:
    size, dilation, stride = conv.kernel_size[i], conv.dilation[i], conv.stride[i]
    if conv.padding_mode != "zeros":
        # What the forward pass pads by: the last axis first, whatever `padding` says.
        pads = conv._reversed_padding_repeated_twice
        before, after = pads[-2 * i - 2], pads[-2 * i - 1]
    elif conv.padding == "valid":
        before = after = 0
    elif conv.padding == "same":
        before = dilation * (size - 1) // 2
        after = dilation * (size - 1) - before
    else:
        before = after = int(conv.padding[i])
    return ConvolutionAxis(size, dilation, stride, before, after)


def _tap_matrices(conv: Convolution) -> Float[Tensor, "taps d e"]:
    groups = conv.groups
    weight = rearrange(conv.weight.detach(), "e d ... -> e d (...)")
    blocks = rearrange(weight, "(g e) d taps -> g taps d e", g=groups)
    _, taps, d, e = blocks.shape
    matrices = weight.new_zeros(taps, groups, d, groups, e)
    group = torch.arange(groups, device=weight.device)
    matrices[:, group, :, group, :] = blocks
    return rearrange(matrices, "taps g d h e -> taps (g d) (h e)")
