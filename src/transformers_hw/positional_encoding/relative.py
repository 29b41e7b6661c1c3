r"""Distances as a bias of the scores: a learned table, T5's buckets, ALiBi."""

import math
from typing import Unpack

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from transformers_hw._engine.arguments import (
    Device,
    Factory,
    check_lengths,
    check_sizes,
)
from transformers_hw._engine.kernels import exact_dtype
from transformers_hw._engine.shapes import checked


class RelativePositionBias(nn.Module):
    r"""Learn, for each head, a number that each distance adds to the score.

    $$
    B^{(h)}_{ij} = w^{(h)}_{\operatorname{clip}(j - i,\, -m,\, m)}
    $$

    The result is the `bias` of
    [`dot_product_attention`][transformers_hw.attention.dot_product_attention].
    Distances beyond $m$ share the last entry, so every length has a bias.

    Args:
        heads: Number of heads.
        max_distance: $m$, the largest distance with an entry of its own.
        **factory: `device` and `dtype` of the parameters.

    Raises:
        ValueError: If `heads` or `max_distance` is not positive.

    Examples:
        >>> RelativePositionBias(heads=2, max_distance=4)(3, 5).shape
        torch.Size([2, 3, 5])

    References:
        Shaw et al. (2018), [Self-Attention with Relative Position
        Representations](https://arxiv.org/abs/1803.02155), section 3.2, clip
        distances likewise; Raffel et al. (2020), [T5
        ](https://arxiv.org/abs/1910.10683), section 2.1, add a number to the score.
    """

    @checked
    def __init__(
        self, heads: int, max_distance: int, **factory: Unpack[Factory]
    ) -> None:
        super().__init__()
        check_sizes(heads=heads, max_distance=max_distance)
        self.heads, self.max_distance = heads, max_distance
        shape = (heads, 2 * max_distance + 1)
        self.weight = nn.Parameter(torch.empty(shape, **factory))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set all entries to zero, so that scores ignore the distance at first."""
        nn.init.zeros_(self.weight)

    @checked
    def forward(
        self, queries: int, keys: int | None = None
    ) -> Float[Tensor, "heads queries keys"]:
        """Return the bias for these numbers of queries and keys, the last ones aligned.

        Args:
            queries: Number of queries.
            keys: Number of keys, or `None` for as many as queries.
        """
        keys = queries if keys is None else keys
        check_lengths(queries=queries, keys=keys)
        distance = _ahead(queries, keys, self.weight.device)
        index = distance.clamp(-self.max_distance, self.max_distance)
        return self.weight[:, index + self.max_distance]

    def extra_repr(self) -> str:
        """Show the sizes in `repr`."""
        return f"{self.heads}, max_distance={self.max_distance}"


class BucketedPositions(nn.Module):
    r"""Learn a bias for each head and each bucket of distances, as T5 does.

    Near distances have a bucket each; farther ones share buckets that grow
    geometrically, up to `max_distance`, from which on all share the last. With
    $n$ buckets for one direction, distances $\Delta < n/2$ are buckets of their own,
    and beyond them

    $$
    \text{bucket}(\Delta) = \frac n2 + \left\lfloor
    \frac{\log(2\Delta/n)}{\log(2\Delta_{\max}/n)} \cdot \frac n2 \right\rfloor ,
    $$

    but at most $n - 1$.

    Args:
        heads: Number of heads.
        buckets: Number of buckets; for both directions together unless `causal`.
        max_distance: $\Delta_{\max}$, from which on distances are not told apart.
        causal: Whether keys after the query are hidden; all buckets then go to
            earlier ones.
        **factory: `device` and `dtype` of the parameters.

    Raises:
        ValueError: If a number is not positive, or there are too few buckets or too
            short distances for them.

    Examples:
        >>> positions = BucketedPositions(3, buckets=8, max_distance=20)
        >>> positions.bucket(torch.arange(-3, 4))
        tensor([2, 2, 1, 0, 5, 6, 6])
        >>> positions(5, 7).shape
        torch.Size([3, 5, 7])

    References:
        Raffel et al. (2020), [Exploring the Limits of Transfer Learning
        ](https://arxiv.org/abs/1910.10683), section 2.1.
    """

    @checked
    def __init__(
        self,
        heads: int,
        *,
        buckets: int = 32,
        max_distance: int = 128,
        causal: bool = False,
        **factory: Unpack[Factory],
    ) -> None:
        super().__init__()
        check_sizes(heads=heads, buckets=buckets, max_distance=max_distance)
        one_way = buckets if causal else buckets // 2
        if one_way < 2 or buckets % 2 or max_distance <= one_way // 2:
            raise ValueError(
                "buckets must be even, at least two for each direction, and half of "
                f"those must be below max_distance, got {buckets} buckets and a "
                f"max_distance of {max_distance}."
            )
        self.heads, self.buckets = heads, buckets
        self.max_distance, self.causal = max_distance, causal
        self.weight = nn.Parameter(torch.empty(buckets, heads, **factory))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the biases anew."""
        nn.init.normal_(self.weight, std=0.02)

    @checked
    def bucket(self, ahead: Int[Tensor, "*axes"]) -> Int[Tensor, "*axes"]:
        """Return the buckets of keys that are so many positions ahead of the query."""
        count = self.buckets if self.causal else self.buckets // 2
        # All beyond share a bucket, and the least integer has no absolute value.
        ahead = ahead.long().clamp(-self.max_distance, self.max_distance)
        distance = (-ahead).clamp(min=0) if self.causal else ahead.abs()
        near = count // 2
        growth = (distance.clamp(min=1) / near).log() / math.log(
            self.max_distance / near
        )
        far = (near + (growth * (count - near)).long()).clamp(max=count - 1)
        found = torch.where(distance < near, distance, far)
        return found if self.causal else found + count * (ahead > 0)

    @checked
    def forward(
        self, queries: int, keys: int | None = None
    ) -> Float[Tensor, "heads queries keys"]:
        """Return the bias of each pair; the last query is aligned with the last key.

        Args:
            queries: Number of queries.
            keys: Number of keys, or `None` for as many as queries.

        Returns:
            The bias, for the argument `bias` of attention.
        """
        ahead = _ahead(queries, keys, self.weight.device)
        return rearrange(self.weight[self.bucket(ahead)], "q k h -> h q k")

    def extra_repr(self) -> str:
        """Show the settings in `repr`."""
        return (
            f"{self.heads}, buckets={self.buckets}, max_distance={self.max_distance}, "
            f"causal={self.causal}"
        )


@checked
def alibi_slopes(heads: int) -> Float[Tensor, " heads"]:
    r"""Return the slopes of ALiBi, a geometric sequence that ends at $2^{-8}$.

    $$m_i = 2^{-8i/h}, \qquad i = 1, \dots, h$$

    For a number of heads that is no power of two, the slopes of the next smaller power
    come first, and then every other slope of twice that power, as in the authors'
    program.

    Args:
        heads: Number of heads $h$.

    Returns:
        The slopes, in float64.

    Examples:
        >>> alibi_slopes(4)
        tensor([0.2500, 0.0625, 0.0156, 0.0039], dtype=torch.float64)
    """
    check_sizes(heads=heads)

    def geometric(count: int) -> Tensor:
        i = torch.arange(1, count + 1, dtype=torch.float64)
        return 2.0 ** (-8.0 * i / count)

    power = 2 ** (heads.bit_length() - 1)
    return torch.cat([geometric(power), geometric(2 * power)[::2][: heads - power]])


@checked
def alibi_bias(
    heads: int, queries: int, keys: int | None = None, *, device: Device = None
) -> Float[Tensor, "heads queries keys"]:
    r"""Return a penalty on the scores that grows with the distance.

    $$B^{(i)}_{st} = -m_i\, |t - s'|, \qquad s' = s + (k - q)$$

    Each head has its own slope $m_i$: steep ones look near, flat ones far. Nothing is
    learned. As in [`causal_mask`][transformers_hw.attention.causal_mask], the last
    query is aligned with the last key.

    Args:
        heads: Number of heads.
        queries: Number of queries $q$.
        keys: Number of keys $k$, or `None` for as many as queries.
        device: Where to put the bias.

    Returns:
        The bias, in float64, for the argument `bias` of attention.

    Examples:
        >>> alibi_bias(1, 3) * 2**8
        tensor([[[ 0., -1., -2.],
                 [-1.,  0., -1.],
                 [-2., -1.,  0.]]], dtype=torch.float64)

    References:
        Press et al. (2022), [Train Short, Test Long
        ](https://arxiv.org/abs/2108.12409), section 3.
    """
    slopes = alibi_slopes(heads).to(device=device, dtype=exact_dtype(device))
    penalty = -_ahead(queries, keys, device).abs()
    return rearrange(slopes, "h -> h 1 1") * penalty.to(slopes.dtype)


def _ahead(queries: int, keys: int | None, device: Device) -> Tensor:
    """Return how far each key is ahead of each query."""
    keys = queries if keys is None else keys
    check_lengths(queries=queries, keys=keys)
    at = torch.arange(queries, device=device) + (keys - queries)
    return torch.arange(keys, device=device) - rearrange(at, "q -> q 1")
