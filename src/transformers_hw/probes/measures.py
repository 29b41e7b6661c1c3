"""What attention weights and parameters say in numbers."""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from einops import einsum, rearrange, reduce
from jaxtyping import Float
from torch import Tensor

from transformers_hw._engine.arguments import (
    check_sizes,
    describe,
    height_and_width,
)
from transformers_hw._engine.kernels import widen
from transformers_hw._engine.shapes import check_shape, checked
from transformers_hw.vision_transformer import PatchEmbedding


@checked
def attention_rollout(
    weights: Mapping[str, Sequence[Tensor]] | Sequence[Float[Tensor, "b _heads n n"]],
) -> Float[Tensor, "b n n"]:
    r"""Follow attention through the layers, back to the input tokens.

    $$
    R = \hat A_L \cdots \hat A_1,
    \qquad
    \hat A_l = \operatorname{rows}\!\left(I + \frac1h \sum_{i=1}^h A_l^{(i)}\right)
    $$

    Here $\operatorname{rows}$ divides each row by its sum, and the identity stands for
    the residual connection. Rows of $R$ sum to one: row $i$ holds the share of each
    input token in the output token $i$, if a layer did nothing but average. Rollout is
    not an attribution: it ignores projections and feed-forward networks.

    Args:
        weights: The self-attention weights of each layer, the first layer first; or
            all that
            [`capture_weights`][transformers_hw.probes.capture_weights] recorded of one
            call of an encoder.

    Returns:
        $R$ for each sample.

    Raises:
        TypeError: If the weights are not floating-point tensors.
        ValueError: If there are none, if a layer was called more than once, or if they
            are not `(b, heads, n, n)` with one batch size and one length.

    Examples:
        >>> uniform = torch.full((1, 2, 3, 3), 1 / 3)
        >>> attention_rollout([uniform])
        tensor([[[0.6667, 0.1667, 0.1667],
                 [0.1667, 0.6667, 0.1667],
                 [0.1667, 0.1667, 0.6667]]])

        Of a model, in one call:

        >>> from transformers_hw import Encoder
        >>> from transformers_hw.probes import capture_weights
        >>> encoder = Encoder(12, heads=3, hidden_dim=24, depth=2)
        >>> with capture_weights(encoder) as weights:
        ...     y = encoder(torch.randn(2, 5, 12))
        >>> attention_rollout(weights).shape
        torch.Size([2, 5, 5])

    References:
        Abnar & Zuidema (2020), [Quantifying Attention Flow in Transformers
        ](https://arxiv.org/abs/2005.00928), section 3.
    """
    layers = one_per_layer(weights) if isinstance(weights, Mapping) else list(weights)
    if not layers:
        raise ValueError("weights must hold a tensor for each layer, got none.")
    for layer in layers:
        if not isinstance(layer, Tensor) or not layer.is_floating_point():
            raise TypeError(
                "weights of a layer must be a floating-point tensor, "
                f"got {describe(layer)}."
            )
        b, n = layers[0].shape[0], layers[0].shape[-1]
        check_shape("weights of a layer", layer, b, "heads", n, n)
    rollout = _with_residual(layers[0])
    for layer in layers[1:]:
        rollout = einsum(_with_residual(layer), rollout, "b q m, b m k -> b q k")
    return rollout


@checked
def attention_distance(
    weights: Float[Tensor, "*axes n n"],
    grid: tuple[int, int],
    *,
    patch_size: int | tuple[int, int] = 1,
    class_token: bool = True,
) -> Float[Tensor, "*axes"]:
    r"""Return the mean distance, in pixels, over which each head attends.

    $$
    D = \frac1n \sum_{i=1}^n
    \frac{\sum_j A_{ij}\, \lVert p_i - p_j \rVert}{\sum_j A_{ij}}
    $$

    Here $p_i$ is the center of patch $i$, and both sums run over the $n$ patches. The
    class token has no position: its row and column are dropped, and the rest of each
    row is normalized again. A patch that attends to no patch is left out of the mean
    (and $D$ is zero if all are).

    The attention distance resembles a receptive field and differs from one in three
    ways. It belongs to one layer, not to all up to it. It weighs positions by their
    attention weights. And it depends on learned weights and on the image, while the
    receptive field of a convolution is fixed by its kernel.

    Args:
        weights: Attention weights of any layers, samples and heads, such as those of
            [`capture_weights`][transformers_hw.probes.capture_weights]; tokens are in
            the last two axes, patches row by row.
        grid: `(rows, columns)` of patches.
        patch_size: Height and width of a patch in pixels; one number for a square.
        class_token: Whether the first token is a class token.

    Returns:
        A distance for each layer, sample and head.

    Raises:
        TypeError: If the weights are not floating-point.
        ValueError: If the weights are not square with a row for each token, or `grid`
            or `patch_size` is not positive.

    Examples:
        A head that attends to the neighboring patch of 16 pixels:

        >>> weights = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
        >>> attention_distance(weights, (1, 2), patch_size=16, class_token=False)
        tensor(16.)

    References:
        Dosovitskiy et al. (2021), [An Image is Worth 16x16 Words
        ](https://arxiv.org/abs/2010.11929), section 4.5 and appendix D.7.
    """
    rows, columns = height_and_width("grid", grid)
    height, width = height_and_width("patch_size", patch_size)
    tokens = rows * columns + int(class_token)
    check_shape("weights", weights, "...", tokens, tokens)
    weights = widen(weights)[..., int(class_token) :, int(class_token) :]
    factory = {"dtype": weights.dtype, "device": weights.device}
    centers = torch.cartesian_prod(
        height * torch.arange(rows, **factory), width * torch.arange(columns, **factory)
    )
    steps = centers - rearrange(centers, "q two -> q 1 two")
    distances = torch.linalg.vector_norm(steps, dim=-1)
    mass = reduce(weights, "... q k -> ... q", "sum")
    moment = einsum(weights, distances, "... q k, q k -> ... q")
    attends = mass > 0
    means = moment / mass.masked_fill(~attends, 1.0)
    return means.sum(dim=-1) / attends.sum(dim=-1).clamp(min=1)


@checked
def position_similarity(
    embeddings: Float[Tensor, "rows columns p"],
) -> Float[Tensor, "rows columns rows columns"]:
    r"""Return the cosine similarity of each positional embedding with all others.

    $$
    S_{ij,kl} = \frac{P_{ij} \cdot P_{kl}}{\lVert P_{ij}\rVert\,\lVert P_{kl}\rVert}
    $$

    If a learned table has discovered rows and columns, $S_{ij}$, drawn as an image,
    has a cross through $(i, j)$.

    Args:
        embeddings: The embeddings of a grid, such as `model.positions.embeddings()` of
            a
            [`VisionTransformer`][transformers_hw.vision_transformer.VisionTransformer].

    Returns:
        The cosines; zero where an embedding is zero.

    Examples:
        >>> embeddings = torch.tensor([[[3.0, 0.0], [0.0, 2.0], [1.0, 1.0]]])
        >>> position_similarity(embeddings)[0, 0]
        tensor([[1.0000, 0.0000, 0.7071]])

    References:
        Dosovitskiy et al. (2021), [An Image is Worth 16x16 Words
        ](https://arxiv.org/abs/2010.11929), figure 7, center.
    """
    directions = F.normalize(widen(embeddings.detach()), dim=-1)
    return einsum(directions, directions, "i j p, k l p -> i j k l")


@checked
def patch_filters(
    embedding: PatchEmbedding, count: int
) -> Float[Tensor, "count channels height width"]:
    r"""Return the principal components of a patch embedding's filters.

    The filters are the rows of the embedding's weights. With their mean subtracted,
    $W - \bar W = U \Sigma V^\top$. The columns of $V$ are the patches along which
    filters differ most, those with the largest singular values first.

    Args:
        embedding: A patch embedding, such as `model.patch_embedding` of a
            [`VisionTransformer`][transformers_hw.vision_transformer.VisionTransformer].
        count: Number of components, less than the number of filters and at most the
            number of values in a patch.

    Returns:
        Components of unit norm, as images, with the sign that makes the entry of
        largest magnitude positive.

    Raises:
        TypeError: If `embedding` is not a patch embedding.
        ValueError: If `count` is larger than the number of components.

    Examples:
        >>> patch_filters(PatchEmbedding(4, channels=3, dim=8), 5).shape
        torch.Size([5, 3, 4, 4])

    References:
        Dosovitskiy et al. (2021), [An Image is Worth 16x16 Words
        ](https://arxiv.org/abs/2010.11929), figure 7, left.
    """
    filters = widen(embedding.proj.weight.detach())
    check_sizes(count=count)
    available = min(len(filters) - 1, filters.shape[1])
    if count > available:
        raise ValueError(
            f"{len(filters)} filters of {filters.shape[1]} numbers have {available} "
            f"principal components, got a count of {count}."
        )
    centered = filters - reduce(filters, "filters pixels -> pixels", "mean")
    components = torch.linalg.svd(centered, full_matrices=False).Vh[:count]
    peaks = components.abs().argmax(dim=-1, keepdim=True)
    components = components * components.gather(-1, peaks).sign()
    i, j = embedding.patch_size
    return rearrange(components, "count (c i j) -> count c i j", i=i, j=j)


def one_per_layer(captured: Mapping[str, Sequence[Tensor]]) -> list[Tensor]:
    """Return the weights of each layer; raise if one was called more than once."""
    for name, calls in captured.items():
        if len(calls) != 1:
            raise ValueError(
                f"weights must hold one call of each layer, got {len(calls)} of {name}."
            )
    return [calls[0] for calls in captured.values()]


def _with_residual(layer: Tensor) -> Tensor:
    mean = reduce(widen(layer), "b heads q k -> b q k", "mean")
    mixed = mean + torch.eye(mean.shape[-1], dtype=mean.dtype, device=mean.device)
    return mixed / reduce(mixed, "b q k -> b q 1", "sum")
