r"""Probes: reading what a model does from what it computes.

No module of the book keeps its attention weights. A probe listens while the model
runs, or looks at its parameters, and leaves the model as it was.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from inspect import signature
from typing import Any

import torch
import torch.nn.functional as F
from einops import einsum, rearrange, reduce
from jaxtyping import Float
from torch import Tensor, nn

from transformers_hw._checks import (
    check_axes,
    check_float,
    check_sizes,
    height_and_width,
)
from transformers_hw.vision_transformer import PatchEmbedding


@contextmanager
def capture_weights(
    model: nn.Module,
) -> Iterator[dict[str, list[Tensor]]]:
    """Listen to the attention weights of a model while it runs.

    Within the block, every attention layer of the model takes the textbook path,
    which forms the weights: every
    [`MultiHeadAttention`][transformers_hw.multi_head_attention.MultiHeadAttention],
    and any other layer whose `forward` takes `return_weights` and gives
    `(output, weights)`. Of layers within such layers the innermost are heard.

    The model returns what it always does, up to rounding; only where dropout is
    active are its draws others. What is compiled runs uncompiled. After the block,
    be it left by an error, nothing listens any more.

    In the last layer of a
    [`VisionTransformer`][transformers_hw.vision_transformer.VisionTransformer] only
    the class token asks when the model is called; `model.encode` lets all tokens ask.

    Args:
        model: Any model that holds such a layer, or is one.

    Yields:
        A dictionary that fills up as the model runs. It goes from the name of each
        layer that was called, as in `model.named_modules()`, to its weights, one
        tensor per call: decoding step by step calls a layer once a step. Weights are
        those before dropout, detached from the graph; those of `MultiHeadAttention`
        are `(b, heads, q, k)`.

    Raises:
        TypeError: If `model` is not a module.
        ValueError: If it holds no such layer.

    Examples:
        >>> from transformers_hw.transformer import Encoder
        >>> encoder = Encoder(12, heads=3, hidden_dim=24, depth=2)
        >>> with capture_weights(encoder) as weights:
        ...     y = encoder(torch.randn(2, 5, 12))
        >>> {name: [tuple(w.shape) for w in calls] for name, calls in weights.items()}
        {'layers.0.attention': [(2, 3, 5, 5)], 'layers.1.attention': [(2, 3, 5, 5)]}
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, got {type(model).__name__}.")
    layers = {
        name: module
        for name, module in model.named_modules()
        if _gives_weights(module) and not any(map(_gives_weights, _parts(module)))
    }
    if not layers:
        raise ValueError(
            "model must hold a layer that can return its weights, "
            f"got {type(model).__name__} without one."
        )
    captured: dict[str, list[Tensor]] = {}
    with ExitStack() as hooks:
        # Compiled code does not heed hooks that came after it, nor that they went.
        hooks.enter_context(torch.compiler.set_stance("force_eager"))
        for name, layer in layers.items():
            ask, keep = _ask_and_keep(name, captured)
            hooks.enter_context(layer.register_forward_pre_hook(ask, with_kwargs=True))
            # The last to ask is the first to listen: so a capture within another
            # hears the weights before the outer one takes them out of the output.
            hooks.enter_context(layer.register_forward_hook(keep, prepend=True))
        yield captured


def attention_rollout(
    weights: Sequence[Float[Tensor, "b _heads n n"]],
) -> Float[Tensor, "b n n"]:
    r"""Follow attention through the layers, back to the tokens it came from.

    $$
    R = \hat A_L \cdots \hat A_1,
    \qquad
    \hat A_l = \operatorname{rows}\!\left(I + \frac1h \sum_{i=1}^h A_l^{(i)}\right)
    $$

    where $\operatorname{rows}$ divides each row by its sum. The identity stands for
    the residual connection, which lets a token keep to itself. Rows of $R$ sum to
    one: row $i$ shares out where token $i$ of the last layer looked in the input, if
    values were only ever averaged. That is a reading, not an attribution: the
    projections and the feed-forward networks are left out.

    Args:
        weights: The self-attention weights of each layer, the first layer first.

    Returns:
        $R$ for each sample.

    Raises:
        TypeError: If the weights are not floating-point tensors.
        ValueError: If there are none, or they are not `(b, heads, n, n)` with one
            batch and one length.

    Examples:
        >>> uniform = torch.full((1, 2, 3, 3), 1 / 3)
        >>> attention_rollout([uniform])
        tensor([[[0.6667, 0.1667, 0.1667],
                 [0.1667, 0.6667, 0.1667],
                 [0.1667, 0.1667, 0.6667]]])

    References:
        Abnar & Zuidema (2020), [Quantifying Attention Flow in Transformers
        ](https://arxiv.org/abs/2005.00928), section 3.
    """
    layers = list(weights)
    if not layers:
        raise ValueError("weights must hold a tensor for each layer, got none.")
    for layer in layers:
        check_float("weights of a layer", layer, "batch", "heads", "n", "n")
        batch, n = layers[0].shape[0], layers[0].shape[-1]
        check_axes("weights of a layer", layer, batch, "heads", n, n)
    rollout = _with_residual(layers[0])
    for layer in layers[1:]:
        rollout = einsum(_with_residual(layer), rollout, "b q m, b m k -> b q k")
    return rollout


def attention_distance(
    weights: Float[Tensor, "*axes n n"],
    grid: tuple[int, int],
    *,
    patch: int | tuple[int, int] = 1,
    class_token: bool = True,
) -> Float[Tensor, "*axes"]:
    r"""Measure how far a head looks, in pixels, on average over the picture.

    $$
    D = \frac1n \sum_{i=1}^n
    \frac{\sum_j A_{ij}\, \lVert p_i - p_j \rVert}{\sum_j A_{ij}}
    $$

    with $p_i$ the centre of patch $i$, and both sums over the $n$ patches. The class
    token has no place: its row and column are dropped, and what remains of each row
    is brought back to a sum of one. A patch that looks at no patch is left out of
    the mean (and $D$ is zero if all are).

    It plays the part of a receptive field, and differs from one in three ways: it
    belongs to one layer, not to all up to it; it weighs what is seen by how much it
    is looked at; and it comes from the weights learnt and the picture shown, where
    the receptive field of a convolution is set by its kernel.

    Args:
        weights: Attention weights of any layers, samples and heads, such as those of
            [`capture_weights`][transformers_hw.probes.capture_weights]; tokens are in
            the last two axes, patches row by row.
        grid: `(rows, columns)` of patches.
        patch: Height and width of a patch in pixels; one number for a square.
        class_token: Whether the first token is a class token.

    Returns:
        A distance for each layer, sample and head.

    Raises:
        TypeError: If the weights are not floating-point.
        ValueError: If they are not square with a row for each token, or a size is
            not valid.

    Examples:
        A head that looks one patch of 16 pixels to the left or right:

        >>> weights = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
        >>> attention_distance(weights, (1, 2), patch=16, class_token=False)
        tensor(16.)

    References:
        Dosovitskiy et al. (2021), [An Image is Worth 16x16 Words
        ](https://arxiv.org/abs/2010.11929), section 4.5 and appendix D.7.
    """
    rows, columns = height_and_width("grid", grid)
    height, width = height_and_width("patch", patch)
    tokens = rows * columns + int(class_token)
    check_float("weights", weights, "...", tokens, tokens)
    weights = _precise(weights)[..., int(class_token) :, int(class_token) :]
    place = {"dtype": weights.dtype, "device": weights.device}
    centres = torch.cartesian_prod(
        height * torch.arange(rows, **place), width * torch.arange(columns, **place)
    )
    steps = centres - rearrange(centres, "q two -> q 1 two")
    distances = torch.linalg.vector_norm(steps, dim=-1)
    mass = reduce(weights, "... q k -> ... q", "sum")
    moment = einsum(weights, distances, "... q k, q k -> ... q")
    looks = mass > 0
    means = moment / mass.masked_fill(~looks, 1.0)
    return means.sum(dim=-1) / looks.sum(dim=-1).clamp(min=1)


def position_similarity(
    codes: Float[Tensor, "rows columns p"],
) -> Float[Tensor, "rows columns rows columns"]:
    r"""Compare the code of each place with those of all others.

    $$
    S_{ij,kl} = \frac{P_{ij} \cdot P_{kl}}{\lVert P_{ij}\rVert\,\lVert P_{kl}\rVert}
    $$

    Whether a table learnt without a notion of rows and columns has found them shows
    here: then $S_{ij}$, drawn as a picture, has a cross through $(i, j)$.

    Args:
        codes: The codes of a grid, such as `model.positions.codes(model.grid)` of a
            [`VisionTransformer`][transformers_hw.vision_transformer.VisionTransformer].

    Returns:
        The cosines; zero where a code is zero.

    Raises:
        TypeError: If the codes are not floating-point.
        ValueError: If they are not a grid of codes.

    Examples:
        >>> codes = torch.tensor([[[3.0, 0.0], [0.0, 2.0], [1.0, 1.0]]])
        >>> position_similarity(codes)[0, 0]
        tensor([[1.0000, 0.0000, 0.7071]])

    References:
        Dosovitskiy et al. (2021), [An Image is Worth 16x16 Words
        ](https://arxiv.org/abs/2010.11929), figure 7, centre.
    """
    check_float("codes", codes, "rows", "columns", "p")
    directions = F.normalize(_precise(codes.detach()), dim=-1)
    return einsum(directions, directions, "i j p, k l p -> i j k l")


def patch_filters(
    embedding: PatchEmbedding, count: int
) -> Float[Tensor, "count channels height width"]:
    r"""Show what a patch embedding looks for: its filters' principal components.

    The filters are the rows of the embedding's weights. With their mean taken off,
    $W - \bar W = U \Sigma V^\top$, and the columns of $V$, those with the largest
    singular values first, are the patches along which filters differ most.

    Args:
        embedding: A patch embedding, such as `model.patch_embedding` of a
            [`VisionTransformer`][transformers_hw.vision_transformer.VisionTransformer].
        count: How many components, fewer than there are filters and at most as many
            as a patch has numbers.

    Returns:
        Components of length one, as pictures. Each has the sign that makes its entry
        of greatest magnitude positive.

    Raises:
        TypeError: If it is not a patch embedding.
        ValueError: If there are not so many components.

    Examples:
        >>> patch_filters(PatchEmbedding(4, channels=3, dim=8), 5).shape
        torch.Size([5, 3, 4, 4])

    References:
        Dosovitskiy et al. (2021), [An Image is Worth 16x16 Words
        ](https://arxiv.org/abs/2010.11929), figure 7, left.
    """
    if not isinstance(embedding, PatchEmbedding):
        raise TypeError(
            f"embedding must be a PatchEmbedding, got {type(embedding).__name__}."
        )
    filters = _precise(embedding.proj.weight.detach())
    check_sizes(count=count)
    available = min(len(filters) - 1, filters.shape[1])
    if count > available:
        raise ValueError(
            f"{len(filters)} filters of {filters.shape[1]} numbers have {available} "
            f"principal components, got a count of {count}."
        )
    centred = filters - reduce(filters, "filters pixels -> pixels", "mean")
    components = torch.linalg.svd(centred, full_matrices=False).Vh[:count]
    peaks = components.abs().argmax(dim=-1, keepdim=True)
    components = components * components.gather(-1, peaks).sign()
    i, j = embedding.patch
    return rearrange(components, "count (c i j) -> count c i j", i=i, j=j)


def _gives_weights(module: nn.Module) -> bool:
    return "return_weights" in signature(module.forward).parameters


def _parts(module: nn.Module) -> list[nn.Module]:
    return [part for part in module.modules() if part is not module]


def _ask_and_keep(
    name: str, captured: dict[str, list[Tensor]]
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    asked_before = False

    def ask(
        module: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        nonlocal asked_before
        asked_before = options.get("return_weights", False)
        return inputs, {**options, "return_weights": True}

    def keep(
        module: nn.Module, inputs: tuple[Any, ...], result: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        output, weights = result
        captured.setdefault(name, []).append(weights.detach())
        return output, weights if asked_before else None

    return ask, keep


def _with_residual(layer: Tensor) -> Tensor:
    mean = reduce(_precise(layer), "b heads q k -> b q k", "mean")
    mixed = mean + torch.eye(mean.shape[-1], dtype=mean.dtype, device=mean.device)
    return mixed / reduce(mixed, "b q k -> b q 1", "sum")


def _precise(x: Tensor) -> Tensor:
    # Sums over many tokens, and distances of hundreds of pixels, are not for halves.
    return x.to(torch.promote_types(x.dtype, torch.float32))
