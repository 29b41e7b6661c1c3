r"""Any convolution as attention, tap by tap.

One layer at a time, and then all those of a model.
"""

import copy
import math
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from transformers_hw._checks import check_choice
from transformers_hw.attention_as_convolution.gaussian import GaussianSelfAttention
from transformers_hw.attention_as_convolution.relative_table import (
    RelativeTableAttention,
    fewest_heads,
)

Convolution = nn.Conv1d | nn.Conv2d
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d)
PADDING_MODES = {"zeros": "constant"}


class ConvolutionAxis(NamedTuple):
    """How a convolution moves along one axis of the picture.

    Attributes:
        size: Number of taps $K$.
        dilation: Pixels from one tap to the next.
        stride: Pixels from one output to the next.
        before: Pixels of padding in front.
        after: Pixels of padding behind.
    """

    size: int
    dilation: int
    stride: int
    before: int
    after: int

    @property
    def offsets(self) -> list[int]:
        r"""Where the taps look: $-\lfloor K/2\rfloor, \dots$, times the dilation."""
        return [self.dilation * (tap - self.size // 2) for tap in range(self.size)]

    def pads(self, *, clamped: bool) -> tuple[int, int]:
        """Give the padding to be done explicitly; a border that clamps spares some."""
        if not clamped:
            return self.before, self.after
        return (
            max(0, self.before + self.offsets[0]),
            max(0, self.after - self.offsets[-1]),
        )

    def queries(self, length: int, *, clamped: bool) -> slice:
        """Say which pixels of the explicitly padded axis ask.

        Raises:
            ValueError: If the window does not fit into the padded axis.
        """
        reach = self.dilation * (self.size - 1)
        places = length + self.before + self.after - reach
        if places < 1:
            raise ValueError(
                f"the padded picture must be at least {reach + 1} pixels long for this "
                f"kernel, got {length + self.before + self.after}."
            )
        start = self.pads(clamped=clamped)[0] - self.before - self.offsets[0]
        return slice(start, start + places, self.stride)


class ConvolutionAsAttention(nn.Module):
    """Do a convolution's work by attention: pad, attend, where outputs are wanted.

    [`attention_from_convolution`
    ][transformers_hw.attention_as_convolution.attention_from_convolution] makes it.

    Args:
        attention: The layer; a head's weights tell which offset it looks at.
        axes: The geometry: rows and columns of a picture, or a sequence's only axis.
        padding_mode: `"zeros"`, `"reflect"`, `"replicate"` or `"circular"`.
    """

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
        # A table hides what is outside the picture; only Gaussian heads clamp.
        self.clamped = padding_mode == "replicate" and isinstance(
            attention, GaussianSelfAttention
        )

    def forward(self, x: Float[Tensor, "*pictures"]) -> Float[Tensor, "*convolved"]:
        """Convolve, in the layout of the convolution: `(b, c, h, w)` or `(b, c, n)`.

        Args:
            x: Pictures (or sequences), channels first; the batch axis may be missing.

        Returns:
            What the convolution gives.

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
        rows = ConvolutionAxis(1, 1, 1, 0, 0) if axes == 1 else self.axes[0]
        columns = self.axes[-1]
        picture = rearrange(batched, "b c n -> b c 1 n") if axes == 1 else batched
        queries = (
            rows.queries(picture.shape[2], clamped=self.clamped),
            columns.queries(picture.shape[3], clamped=self.clamped),
        )
        pads = (*columns.pads(clamped=self.clamped), *rows.pads(clamped=self.clamped))
        if any(pads):
            mode = PADDING_MODES.get(self.padding_mode, self.padding_mode)
            picture = F.pad(picture, pads, mode=mode)
        pixels = rearrange(picture, "b c h w -> b h w c")
        output, _ = self.attention(pixels, queries=queries)
        pattern = "b 1 w c -> b c w" if axes == 1 else "b h w c -> b c h w"
        output = rearrange(output, pattern)
        return output if x.dim() == axes + 2 else rearrange(output, "1 ... -> ...")

    def extra_repr(self) -> str:
        """Show the geometry in `repr`."""
        return f"axes={self.axes}, padding_mode={self.padding_mode!r}"


def attention_from_convolution(
    conv: nn.Module,
    *,
    heads: Literal["taps", "fewest"] = "taps",
    sharpness: float | int = math.inf,
) -> ConvolutionAsAttention:
    r"""Build the attention layer that gives what a convolution gives.

    A convolution adds $X_{q+\delta} T_\delta$ over the offsets $\delta$ of its window.
    A hard head with centre $\delta$ fetches $X_{q+\delta}$, and its $W^{(h)}$ can be
    any matrix, so a head for each tap gives the same sum. Attention does by itself:

    - taps and dilation: heads, one for each tap, with centre $\delta$;
    - channels, groups and bias: $W^{(h)}$, block-diagonal for groups, and $b$;
    - replicate padding, up to the window's reach: the border, since hard heads clamp.

    The rest is done explicitly around it:

    - other padding (zeros, reflect, circular), or more: the picture is padded first;
    - places at the border without an output: they do not ask, which is a crop;
    - a stride: only the pixels it steps on ask, which is subsampling.

    Args:
        conv: An `nn.Conv1d` or `nn.Conv2d`: any kernel, dilation, stride, groups,
            bias, padding and padding mode. Its numbers are copied.
        heads: `"taps"` takes one Gaussian head for each tap. `"fewest"` takes as few
            heads as position-only attention allows, with tabulated weights (see
            [`fewest_heads`][transformers_hw.attention_as_convolution.fewest_heads]):
            two at most for a kernel between single channels.
        sharpness: $\alpha$ of the Gaussian heads. At the default, hard heads, the
            outputs are equal up to the order of summation. A finite one leaves up to
            $4e^{-\alpha}/(1 - e^{-3\alpha})$ of each head's weight off its target.

    Returns:
        A module that takes and gives what the convolution does.

    Raises:
        TypeError: If `conv` is anything else; a subclass may compute anything else.
        ValueError: If `heads` or `sharpness` is not valid, or if tabulated heads
            are asked for a sharpness.

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
            f"not 3-D), got {type(conv).__name__}."
        )
    check_choice("heads", heads, ("taps", "fewest"))
    if heads == "fewest" and sharpness != math.inf:
        raise ValueError(
            f"sharpness is for heads='taps'; the fewest have none, got {sharpness}."
        )
    axes = tuple(_axis(conv, i) for i in range(len(conv.kernel_size)))
    rows = ConvolutionAxis(1, 1, 1, 0, 0) if len(axes) == 1 else axes[0]
    taps = _tap_matrices(conv)
    common = {
        "output_dim": conv.out_channels,
        "bias": conv.bias is not None,
        "device": conv.weight.device,
        "dtype": conv.weight.dtype,
    }
    if heads == "taps":
        centers = [(float(i), float(j)) for i in rows.offsets for j in axes[-1].offsets]
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
            (rows.size, axes[-1].size),
            dilation=(rows.dilation, axes[-1].dilation),
            **common,
        )
        taps = rearrange(values, "h (c e) -> h c e", c=conv.in_channels)
        with torch.no_grad():
            attention.scores.copy_(weights.log().view_as(attention.scores))
    with torch.no_grad():
        attention.value_weight.copy_(taps)
        if attention.bias is not None and conv.bias is not None:
            attention.bias.copy_(conv.bias)
    result = ConvolutionAsAttention(
        attention, axes=axes, padding_mode=conv.padding_mode
    )
    return result.train(conv.training)


def attentionize(model: nn.Module, *, sharpness: float | int = math.inf) -> nn.Module:
    """Copy a model, with every convolution replaced by attention.

    Convolutions that are modules are found; calls of `F.conv2d` inside a module's
    own `forward` are not. A module used in several places stays one module.

    Args:
        model: Any model. It is left as it is.
        sharpness: As for `attention_from_convolution`.

    Returns:
        A copy that computes the same function.

    Raises:
        TypeError: If the model has a convolution that has no such replacement: a
            transposed or 3-D one, a lazy one, a subclass. The message says where.

    Examples:
        >>> model = nn.Sequential(nn.Conv2d(3, 5, 3, padding=1), nn.ReLU())
        >>> attentionize(model)[0].attention
        GaussianSelfAttention(3, heads=9, output_dim=5, ..., sharpness=inf)
    """
    result = copy.deepcopy(model)
    made: dict[nn.Module, nn.Module] = {}
    for path, module in list(result.named_modules(remove_duplicate=False)):
        if not isinstance(module, _ConvNd):
            continue
        if module not in made:
            try:
                made[module] = attention_from_convolution(module, sharpness=sharpness)
            except TypeError as error:
                raise TypeError(f"at {path or 'the model itself'!r}: {error}") from None
        if not path:
            return made[module]
        parent, _, name = path.rpartition(".")
        setattr(result.get_submodule(parent), name, made[module])
    return result


def _axis(conv: Convolution, i: int) -> ConvolutionAxis:
    size, dilation, stride = conv.kernel_size[i], conv.dilation[i], conv.stride[i]
    if conv.padding == "valid":
        before = after = 0
    elif conv.padding == "same":
        before = dilation * (size - 1) // 2
        after = dilation * (size - 1) - before
    else:
        before = after = int(conv.padding[i])
    return ConvolutionAxis(size, dilation, stride, before, after)


def _tap_matrices(conv: Convolution) -> Float[Tensor, "taps d e"]:
    groups = conv.groups
    weight = conv.weight.detach().flatten(start_dim=2)
    blocks = rearrange(weight, "(g e) d taps -> g taps d e", g=groups)
    _, taps, d, e = blocks.shape
    matrices = weight.new_zeros(taps, groups, d, groups, e)
    group = torch.arange(groups, device=weight.device)
    matrices[:, group, :, group, :] = blocks
    return rearrange(matrices, "taps g d h e -> taps (g d) (h e)")
