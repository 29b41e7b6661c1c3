"""Chapter 4: what its source document says otherwise, and how far claims reach."""

import math

import pytest
import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from torch import Tensor
from torch.testing import assert_close

from transformers_hw import OneHotPositions, SelfAttention, permutation_attention

F64 = torch.float64
EXACT = {"rtol": 0.0, "atol": 1e-12}


def tokens(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=F64)


def matrices_by_head(layer: SelfAttention) -> Tensor:
    """What each head does to the tokens it averages: output times value matrix."""
    parts = layer.attention
    values = rearrange(parts.value_proj.weight, "(h v) d -> h v d", h=parts.heads)
    outputs = rearrange(parts.output_proj.weight, "o (h v) -> h o v", h=parts.heads)
    return einsum(outputs, values[..., : layer.dim], "h o v, h v d -> h o d")


def randomise_biases(layer: SelfAttention) -> None:
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if name.endswith("bias"):
                parameter.normal_()


def heads_that_weigh(
    weights: Tensor, matrices: Tensor, *, output_dim: int
) -> SelfAttention:
    """Soft heads: head h gives place j the weight `weights[h, i, j]` at place i."""
    heads, n, _ = weights.shape
    dim = matrices.shape[-1]
    layer = SelfAttention(
        dim, heads, positions=OneHotPositions(n), head_dim=n, value_head_dim=dim,
        output_dim=output_dim, bias=False, scale=1.0, dtype=F64,
    )  # fmt: skip
    scores = rearrange(weights.log(), "h i j -> (h j) i")
    parts = layer.attention
    with torch.no_grad():
        parts.query_proj.weight.copy_(F.pad(scores, (dim, 0)))
        parts.key_proj.weight.copy_(F.pad(torch.eye(n).repeat(heads, 1), (dim, 0)))
        parts.value_proj.weight.copy_(F.pad(torch.eye(dim).repeat(heads, 1), (0, n)))
        parts.output_proj.weight.copy_(rearrange(matrices, "h o d -> o (h d)"))
    return layer


# Identity and permutation


@pytest.mark.question("nyu-1.3c")
@pytest.mark.parametrize("sharpness", [0.0, 5.0, 20.0])
def test_soft_weights_are_never_the_postulated_matrix(sharpness: float) -> None:
    layer = permutation_attention([1, 2, 0], dim=2, sharpness=sharpness, dtype=F64)
    _, weights = layer(tokens(1, 3, 2), return_weights=True)
    assert weights.min() > 0
    assert weights.max() < 1


@pytest.mark.question("nyu-1.3c")
def test_a_permutation_matrix_may_have_ones_on_its_diagonal() -> None:
    # The claim: no one stands on the diagonal. Here the last token stays.
    layer = permutation_attention([1, 0, 2], dim=2, dtype=F64)
    x = tokens(1, 3, 2)
    output, weights = layer(x, return_weights=True)
    assert weights[0, 0].tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 1]]
    assert output.equal(x[:, [1, 0, 2]])


@pytest.mark.question("nyu-1.3c")
def test_equal_queries_and_keys_are_an_identity_when_norms_are_equal() -> None:
    layer = SelfAttention(3, bias=False, scale=math.inf, dtype=F64)
    for projection in layer.attention.children():
        torch.nn.init.eye_(projection.weight)
    x = F.normalize(tokens(5, 7, 3), dim=-1)
    assert layer(x)[0].equal(x)


@pytest.mark.question("nyu-1.3c")
@pytest.mark.parametrize("heads", [1, 2, 3])
def test_at_equal_tokens_soft_heads_without_positions_hear_all_alike(heads) -> None:
    # A permutation would hear one token and no other.
    n, d = 5, 6
    layer = SelfAttention(d, heads, dtype=F64)
    randomise_biases(layer)
    x = tokens(1, 1, d).expand(1, n, d)
    influence = torch.autograd.functional.jacobian(lambda t: layer(t)[0][0], x)
    found = rearrange(influence, "i o 1 j d -> i j o d")
    share = matrices_by_head(layer).sum(dim=0) / n
    assert_close(found, share.expand(n, n, d, d), **EXACT)


@pytest.mark.question("nyu-1.3c")
@pytest.mark.parametrize("scale", [0.7, math.inf])
@pytest.mark.parametrize("heads", [1, 2, 3])
def test_without_positions_two_tokens_are_not_swapped_whatever_they_are(
    heads: int, scale: float
) -> None:
    layer = SelfAttention(6, heads, scale=scale, dtype=F64)
    randomise_biases(layer)
    x, step = tokens(1, 6), tokens(1, 6)
    ahead, _ = layer(torch.stack([x, x + step], dim=1))
    behind, _ = layer(torch.stack([x, x - step], dim=1))
    # A swap would make this twice the step, and the identity nothing. But either
    # maps equal tokens to themselves, so that W is the identity matrix: one step.
    W = matrices_by_head(layer).sum(dim=0)
    assert_close(ahead[:, 0] - behind[:, 0], step @ W.T, **EXACT)


@pytest.mark.question("nyu-1.3c")
@pytest.mark.parametrize("sharpness", [0.5, 3.0])
def test_two_soft_heads_are_a_permutation_exactly(sharpness: float) -> None:
    # A soft head blends x_j with the mean of all; a second head takes the mean off.
    n, d, order = 5, 2, [3, 1, 4, 0, 2]
    blend = n / (math.exp(sharpness) + n - 1)
    mean = torch.full((n, n), 1 / n, dtype=F64)
    soft = (1 - blend) * torch.eye(n, dtype=F64)[order] + blend * mean
    eye = torch.eye(d, dtype=F64)
    layer = heads_that_weigh(
        torch.stack([soft, mean]),
        torch.stack([eye, -blend * eye]) / (1 - blend),
        output_dim=d,
    )
    x = tokens(3, n, d)
    one_head = permutation_attention(order, d, sharpness=sharpness, dtype=F64)
    _, weights = layer(x, return_weights=True)
    assert_close(weights[:, :1], one_head(x, return_weights=True)[1], **EXACT)
    assert_close(layer(x)[0], x[:, order], **EXACT)


# Convolutions


@pytest.mark.question("nyu-1.3e")
def test_equal_weights_in_a_window_are_an_average_and_nothing_more() -> None:
    # The claimed matrix, made square: one head, thirds within and halves at the ends.
    n = 5
    layer = SelfAttention(2, bias=False, dtype=F64)
    for projection in layer.attention.children():
        torch.nn.init.eye_(projection.weight)
    torch.nn.init.zeros_(layer.attention.query_proj.weight)
    place = torch.arange(n)
    window = (place - rearrange(place, "i -> i 1")).abs() <= 1
    x = tokens(3, n, 2)
    output, weights = layer(x, mask=window, return_weights=True)
    pooled = F.avg_pool1d(x.mT, 3, stride=1, padding=1, count_include_pad=False)
    assert_close(output, pooled.mT, **EXACT)
    assert_close(weights[0, 0, 1:-1][window[1:-1]], torch.full((9,), 1 / 3).double())


@pytest.mark.question("nyu-1.3e")
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_one_soft_head_more_than_the_rank_is_exact_up_to_the_border(rank: int) -> None:
    n, d, out, taps = 7, 2, 3, 5
    columns, matrices = tokens(rank, taps), tokens(rank, out, d)
    kernel = einsum(columns, matrices, "r tap, r out d -> out d tap")
    assert torch.linalg.matrix_rank(rearrange(kernel, "o d tap -> (o d) tap")) == rank

    # Beyond the border lies the nearest token, so all rows of a table have one sum.
    places = torch.arange(n)
    looked_at = (places + rearrange(torch.arange(taps) - 2, "t -> t 1")).clamp(0, n - 1)
    tables = einsum(
        columns, torch.eye(n, dtype=F64)[looked_at], "r tap, tap i j -> r i j"
    )
    # Head r: a little of its table on an even ground. The last head: the ground alone.
    little = 0.01
    ground = (1 - little * tables.sum(dim=-1, keepdim=True)) / n
    weights = torch.cat([ground + little * tables, torch.full((1, n, n), 1 / n)])
    taken_off = n * einsum(ground[:, 0, 0], matrices, "r, r out d -> out d")
    layer = heads_that_weigh(
        weights,
        torch.cat([matrices, -taken_off[None]]) / little,
        output_dim=out,
    )
    x = tokens(3, n, d)
    output, found = layer(x, return_weights=True)
    assert found.min() > 0.05
    wanted = F.conv1d(F.pad(x.mT, (2, 2), mode="replicate"), kernel).mT
    assert_close(output, wanted, rtol=0.0, atol=1e-10)


@pytest.mark.question("nyu-1.3e")
@pytest.mark.parametrize("heads", [1, 2])
def test_heads_that_see_contents_have_no_more_taps_than_heads(heads: int) -> None:
    n, d, out, here, height = 7, 2, 3, 3, 1e9
    layer = SelfAttention(
        d, heads, positions=OneHotPositions(n), head_dim=4, output_dim=out, dtype=F64
    )
    # Large tokens in two directions close to each other, at one place at a time.
    directions = tokens(d, 1) + 1e-3 * torch.eye(d, dtype=F64)
    taps = []
    for place in range(n):
        x = torch.zeros(d, n, d, dtype=F64)
        x[:, place] = height * directions.T
        answers = layer(x)[0][:, here].T / height
        taps.append((answers @ torch.linalg.inv(directions)).flatten())
    rank = torch.linalg.matrix_rank(torch.stack(taps), atol=1e-3)
    assert 0 < rank <= heads
