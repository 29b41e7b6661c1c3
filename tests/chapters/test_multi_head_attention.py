"""Chapter 3 against nn.MultiheadAttention, nn.Conv1d and counting by hand."""

import linecache
import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from bad_calls import assert_refused, bad_calls
from einops import einsum, rearrange, repeat
from torch import Tensor, nn
from torch.testing import assert_close

from transformers_hw import (
    Encoder,
    KeyValueCache,
    MultiHeadAttention,
    RelativePositionBias,
    SelfAttention,
    dot_product_attention,
    padding_mask,
)
from transformers_hw.positional_encoding import OneHotPositions
from transformers_hw.self_attention import convolution_attention
from transformers_hw.seq2seq import GRU

F64 = torch.float64
EXACT = {"rtol": 0.0, "atol": 1e-12}
B, Q, K, H = 2, 5, 7, 3


def tokens(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=F64)


def torch_twin(ours: MultiHeadAttention, **options: int) -> nn.MultiheadAttention:
    """PyTorch's layer with the same weights."""
    projections = {n: getattr(ours, f"{n}_proj") for n in ("query", "key", "value")}
    biased = ours.query_proj.bias is not None
    theirs = nn.MultiheadAttention(
        ours.query_proj.in_features, ours.heads, bias=biased, batch_first=True,
        dtype=F64, **options,
    )  # fmt: skip
    with torch.no_grad():
        if options:
            for name, projection in projections.items():
                getattr(theirs, f"{name[0]}_proj_weight").copy_(projection.weight)
        else:
            weights = [projection.weight for projection in projections.values()]
            theirs.in_proj_weight.copy_(torch.cat(weights))
        theirs.out_proj.weight.copy_(ours.output_proj.weight)
        if biased:
            biases = [projection.bias for projection in projections.values()]
            theirs.in_proj_bias.copy_(torch.cat(biases))
            theirs.out_proj.bias.copy_(ours.output_proj.bias)
    return theirs


def side_by_side(layer: MultiHeadAttention, x: Tensor, **options: Tensor) -> Tensor:
    """The heads' outputs, `h b n d`, before the output projection."""
    q, k, v = (
        rearrange(projection(x), "b n (h d) -> b h n d", h=layer.heads)
        for projection in (layer.query_proj, layer.key_proj, layer.value_proj)
    )
    return rearrange(dot_product_attention(q, k, v, **options), "b h n d -> h b n d")


PADDING = padding_mask(torch.tensor([K, 4]))
SOME = torch.rand(Q, K, generator=torch.Generator().manual_seed(3)) > 0.4
SOME[:, 0] = True
BY_HEAD = torch.rand(B, H, Q, K, generator=torch.Generator().manual_seed(4)) > 0.4
BY_HEAD[..., 0] = True
SLOPE = torch.linspace(-2, 2, Q * K, dtype=F64).view(Q, K)
MASKS: dict[str, tuple[dict[str, Tensor], dict[str, Tensor]]] = {
    "none": ({}, {}),
    "mask": ({"mask": SOME}, {"attn_mask": ~SOME}),
    "padding": ({"padding_mask": PADDING}, {"key_padding_mask": ~PADDING}),
    "both": (
        {"mask": SOME, "padding_mask": PADDING},
        {"attn_mask": ~SOME, "key_padding_mask": ~PADDING},
    ),
    "by head": ({"mask": BY_HEAD}, {"attn_mask": ~BY_HEAD.flatten(0, 1)}),
    "bias": ({"bias": SLOPE}, {"attn_mask": SLOPE}),
}


# The layer


@pytest.mark.question("nyu-1.2a", "nyu-1.4c", "quiz-2.2")
@pytest.mark.parametrize("return_weights", [False, True])
@pytest.mark.parametrize("widths", [{}, {"kdim": 11, "vdim": 13}])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", MASKS)
def test_matches_nn_multihead_attention(kind, bias, widths, return_weights):
    """Outputs, weights and gradients agree with PyTorch's layer to 1e-10."""
    kdim, vdim = widths.get("kdim", 12), widths.get("vdim", 12)
    ours = MultiHeadAttention(
        12, H, context_dim=kdim, values_dim=vdim, bias=bias, dtype=F64
    )
    for name, parameter in ours.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)
    theirs = torch_twin(ours, **widths)
    shapes = ((B, Q, 12), (B, K, kdim), (B, K, vdim))
    inputs = [tokens(*shape).requires_grad_() for shape in shapes]
    our_masks, their_masks = MASKS[kind]
    result = ours(*inputs, **our_masks, return_weights=return_weights)
    found, *weights = result if return_weights else (result,)
    expected, their_weights = theirs(*inputs, **their_masks, average_attn_weights=False)
    pairs = [(found, expected), *((w, their_weights) for w in weights)]
    gradients = (torch.autograd.grad(y.sin().sum(), inputs) for y in pairs[0])
    for a, b in (*pairs, *zip(*gradients, strict=True)):
        assert_close(a, b, rtol=0.0, atol=1e-10)


@pytest.mark.question("nyu-1.2a", "nyu-1.3a")
def test_the_formula_head_by_head_with_tokens_in_columns():
    """The layer equals the formula, written head by head with columns."""
    layer = MultiHeadAttention(12, H, bias=False, dtype=F64)
    X, C = tokens(12, Q), tokens(12, K)
    heads = []
    for W_q, W_k, W_v in zip(
        layer.query_proj.weight.chunk(H),
        layer.key_proj.weight.chunk(H),
        layer.value_proj.weight.chunk(H),
        strict=True,
    ):
        scores = (W_k @ C).T @ (W_q @ X) / math.sqrt(12 / H)
        heads.append((W_v @ C) @ torch.softmax(scores, dim=0))
    expected = layer.output_proj.weight @ torch.cat(heads)
    found = layer(X.T[None], C.T[None])
    assert torch.allclose(found[0].T, expected, **EXACT)


@pytest.mark.question("nyu-1.2a")
def test_the_scale_uses_the_width_of_one_head():
    """The scale uses the width of one head."""
    layer = MultiHeadAttention(12, H, dtype=F64)
    x = tokens(B, Q, 12)
    same = MultiHeadAttention(12, H, scale=1 / math.sqrt(4), dtype=F64)
    whole = MultiHeadAttention(12, H, scale=1 / math.sqrt(12), dtype=F64)
    for other in (same, whole):
        other.load_state_dict(layer.state_dict())
    assert torch.allclose(layer(x), same(x))
    assert not torch.allclose(layer(x), whole(x), atol=1e-3)


@pytest.mark.parametrize("return_weights", [False, True])
def test_heads_of_scale_zero_average_the_values_so_far(return_weights):
    """Heads of scale zero average the values so far."""
    layer = MultiHeadAttention(12, H, scale=0.0, dtype=F64)
    x = tokens(B, Q, 12)
    found = layer(x, causal=True, return_weights=return_weights)
    output = found[0] if return_weights else found
    means = layer.value_proj(x).cumsum(1) / torch.arange(1, Q + 1).view(Q, 1)
    assert_close(output, layer.output_proj(means), **EXACT)


@pytest.mark.question("nyu-1.2b")
def test_by_offset_heads_are_groups_between_two_pointwise_convolutions():
    """Heads with weights by offset equal a grouped convolution."""
    n, d, h = 7, 6, 3
    taps = torch.softmax(tokens(h, 3), dim=-1)
    layer = MultiHeadAttention(d, h, dtype=F64)
    nn.init.zeros_(layer.query_proj.weight)
    offset = torch.arange(n) - rearrange(torch.arange(n), "i -> i 1")
    window = offset.abs() <= 1
    bias = taps.log()[:, (offset + 1).clamp(0, 2)]
    x = tokens(2, n, d)
    found = layer(x, mask=window, bias=bias)

    # One group a head: its channels share one kernel, and do not mix.
    channels = repeat(torch.eye(d // h, dtype=F64), "o i -> (h o) i", h=h)
    kernel = einsum(
        repeat(taps, "h tap -> (h o) tap", o=d // h), channels, "o tap, o i -> o i tap"
    )
    values = rearrange(layer.value_proj(x), "b n d -> b d n")
    mixed = rearrange(F.conv1d(values, kernel, groups=h), "b d n -> b n d")
    assert_close(found[:, 1:-1], layer.output_proj(mixed), **EXACT)


@pytest.mark.question("nyu-1.2b")
def test_every_head_sees_all_channels_where_a_group_sees_its_own():
    """A head reads all channels, and a group only its own."""
    x = tokens(1, Q, 12).requires_grad_()
    layer = MultiHeadAttention(12, H, dtype=F64)
    first_head = side_by_side(layer, x)[0]
    seen = torch.autograd.grad(first_head.square().sum(), x)[0].abs().sum((0, 1))
    assert (seen > 0).all()
    grouped = nn.Conv1d(12, 12, 1, groups=H, dtype=F64)
    first_group = grouped(x.mT)[:, :4]
    seen = torch.autograd.grad(first_group.square().sum(), x)[0].abs().sum((0, 1))
    assert (seen[:4] > 0).all()
    assert (seen[4:] == 0).all()


@pytest.mark.question("nyu-1.2b")
def test_heads_keep_the_parameters_that_groups_divide():
    """Groups divide the number of parameters, and heads do not."""

    def count(layer: nn.Module) -> int:
        return sum(p.numel() for p in layer.parameters())

    by_heads = [count(MultiHeadAttention(12, h, bias=False)) for h in (1, 2, 3, 6)]
    grouped = [nn.Conv1d(12, 12, 1, groups=g, bias=False) for g in (1, 2, 3, 6)]
    assert by_heads == [4 * 12 * 12] * 4
    assert [count(layer) for layer in grouped] == [144, 72, 48, 24]


# The output of h heads


@pytest.mark.question("nyu-1.2a")
def test_values_inside_the_softmax_are_not_averaged():
    """With the values inside the softmax, every output sums to one."""
    # The claim: softmax((QKᵀ / √d) V), here with tokens in rows.
    Q, K = tokens(5, 3), tokens(7, 3)
    V = torch.full((7, 2), 100.0, dtype=F64)
    claimed = torch.softmax((Q @ K.T / math.sqrt(3)) @ V, dim=-1)
    assert_close(claimed.sum(dim=-1), torch.ones(5, dtype=F64), **EXACT)
    # Any average of equal values is that value.
    right = torch.softmax(Q @ K.T / math.sqrt(3), dim=-1) @ V
    assert_close(right, torch.full((5, 2), 100.0, dtype=F64), rtol=0.0, atol=1e-10)


@pytest.mark.question("nyu-1.2a")
def test_heads_without_projections_of_their_own_are_copies():
    """Heads without projections of their own are copies."""
    x = tokens(2, 5, 4)
    layer = MultiHeadAttention(4, 3, head_dim=4, bias=False, dtype=F64)
    first, second, third = side_by_side(layer, x)
    assert (first - second).abs().max() > 0.1
    for projection in (layer.query_proj, layer.key_proj, layer.value_proj):
        projection.weight.data = torch.eye(4, dtype=F64).repeat(3, 1)
    first, second, third = side_by_side(layer, x)
    assert first.equal(second)
    assert first.equal(third)
    assert_close(first, F.scaled_dot_product_attention(x, x, x), **EXACT)


@pytest.mark.question("nyu-1.2a", "nyu-1.3a")
def test_only_the_output_projection_lets_heads_meet():
    """Before the output projection, a channel depends on one head."""
    x, layer = tokens(1, 5, 12), MultiHeadAttention(12, 3, bias=False, dtype=F64)

    def heads_behind(channel: Tensor) -> list[bool]:
        (seen,) = torch.autograd.grad(channel.sum(), layer.value_proj.weight)
        return rearrange(seen, "(h d) e -> h (d e)", h=3).any(dim=1).tolist()

    stacked = torch.cat([*side_by_side(layer, x)], dim=-1)
    assert heads_behind(stacked[..., 0]) == [True, False, False]
    assert heads_behind(layer(x)[..., 0]) == [True, True, True]


@pytest.mark.question("quiz-2.2")
def test_scaled_products_alone_are_scores_and_not_yet_attention():
    """Scores, softmax and weighted sum give the library's output."""
    query, key, value = tokens(1, 5, 3), tokens(1, 7, 3), tokens(1, 7, 2)
    scores = query @ key.mT / math.sqrt(3)
    assert scores.shape == (1, 5, 7)
    assert scores.min() < 0
    output, weights = dot_product_attention(query, key, value, return_weights=True)
    assert output.shape == (1, 5, 2)
    assert_close(weights, torch.softmax(scores, dim=-1), **EXACT)
    assert_close(output, torch.softmax(scores, dim=-1) @ value, **EXACT)


@pytest.mark.question("quiz-2.2")
def test_one_query_vector_gives_one_output_vector():
    """A query alone gets the output that it gets among others."""
    query, key, value = tokens(5, 3), tokens(7, 3), tokens(7, 2)
    together = dot_product_attention(query, key, value)
    for q, found in zip(query, together, strict=True):
        matches = [math.exp(q @ k / math.sqrt(3)) for k in key]
        weighted = [match * v for match, v in zip(matches, value, strict=True)]
        assert_close(found, torch.stack(weighted).sum(0) / sum(matches), **EXACT)


@pytest.mark.question("quiz-2.2")
def test_the_output_is_a_sum_of_heads_each_times_its_own_matrix():
    """The output is a sum of heads, each times its own matrix."""
    x, layer = tokens(2, 5, 4), MultiHeadAttention(4, 2, bias=False, dtype=F64)
    heads = side_by_side(layer, x)
    output = layer(x)
    # What the layer does: concatenate, project. In other words, a matrix for each head.
    assert_close(output, layer.output_proj(torch.cat([*heads], dim=-1)), **EXACT)
    matrices = layer.output_proj.weight.chunk(2, dim=1)
    summed = sum(head @ matrix.T for head, matrix in zip(heads, matrices, strict=True))
    assert_close(output, summed, **EXACT)


@pytest.mark.question("quiz-2.2")
def test_no_weighted_sum_of_heads_is_multi_head_attention():
    """No weighted sum of heads comes near the output."""
    x = tokens(2, 5, 4)
    layer = MultiHeadAttention(4, 2, head_dim=4, bias=False, dtype=F64)
    heads = rearrange(side_by_side(layer, x), "h b n d -> (b n d) h")
    output = layer(x).flatten()
    best = torch.linalg.lstsq(heads, output).solution
    missed = (heads @ best - output).norm() / output.norm()
    assert missed > 0.3


# What one head cannot do


@pytest.mark.question("eecs-2d", "nyu-1.4c")
def test_two_heads_apply_two_matrices_to_two_neighbors():
    """Two heads apply one matrix to the left neighbor and another to the right."""
    w1, w2 = tokens(2, 2), tokens(2, 2)
    left = torch.zeros(7, 7).diagonal_scatter(torch.ones(6), -1)
    right = torch.zeros(7, 7).diagonal_scatter(torch.ones(6), 1)
    layer = MultiHeadAttention(
        2, 2, head_dim=1, value_head_dim=2, bias=False, dtype=F64
    )
    with torch.no_grad():
        layer.value_proj.weight.copy_(torch.cat([w1.T, w2.T]))
        layer.output_proj.weight.copy_(torch.eye(2).repeat(1, 2))
    x = tokens(1, 7, 2)
    found = layer(x, mask=torch.stack([left, right])[None].bool())
    expected = x.roll(1, 1) @ w1 + x.roll(-1, 1) @ w2
    assert_close(found[:, 1:-1], expected[:, 1:-1], **EXACT)


@pytest.mark.question("eecs-2d")
@pytest.mark.parametrize("seed", range(5))
def test_one_head_has_one_matrix_for_all_positions_whatever_its_weights(seed: int):
    """To one head, all large tokens contribute multiples of one vector."""
    torch.manual_seed(seed)
    n, d, here = 7, 3, 3
    head = SelfAttention(d, positions=OneHotPositions(n), dtype=F64)
    parts = head.attention
    W = parts.output_proj.weight @ parts.value_proj.weight[:, :d]
    u, height = tokens(d), 1e9
    # One token is large, all others are zero. Positions and biases are not scaled.
    answers = []
    for position in (here - 1, here + 1):
        x = torch.zeros(1, n, d, dtype=F64)
        x[0, position] = height * u
        found = head(x)[0, here] / height
        share = (found @ (W @ u)) / (W @ u).square().sum()
        assert_close(found, share * (W @ u), rtol=0.0, atol=1e-6)
        assert -1e-6 <= share <= 1 + 1e-6
        answers.append(found)
    # Multiples of one vector, where W₁u and W₂u may point anywhere.
    assert torch.linalg.svdvals(torch.stack(answers))[1] < 1e-6


@pytest.mark.question("eecs-2d")
@pytest.mark.parametrize("agree", [True, False])
def test_the_least_error_of_a_head_that_knows_only_positions(agree: bool):
    """The formula for the least error agrees with a search."""
    # Such a head gives aW to the one neighbor and bW to the other, with a, b ≥ 0.
    # For white tokens the expected error is ‖aW - W₁‖² + ‖bW - W₂‖².
    W1, W2 = tokens(3, 3), tokens(3, 3)
    if ((W1 * W2).sum() > 0) != agree:
        W2 = -W2
    angles = torch.linspace(0, math.pi / 2, 10_001, dtype=F64)
    a, b = angles.cos()[:, None, None], angles.sin()[:, None, None]
    best = a * W1 + b * W2  # least squares, as a² + b² = 1
    errors = (a * best - W1).square().sum((1, 2)) + (b * best - W2).square().sum((1, 2))
    singular_values = torch.linalg.svdvals(torch.stack([W1.flatten(), W2.flatten()]))
    smaller = min(W1.square().sum(), W2.square().sum())
    least = singular_values[1].square() if agree else smaller
    assert errors.min().item() == pytest.approx(least.item(), rel=1e-6)
    assert least >= singular_values[1].square() > 0.1


@pytest.mark.question("eecs-2d")
def test_a_head_that_sees_contents_and_positions_comes_near_on_small_tokens_only():
    """One head comes near on small tokens, and fails on large ones."""
    # Tokens l and r on either side get scores ±εl and ±εr, and values
    # l(1, 1) ± (1, -1)/ε and r(1, 1) ∓ (1, -1)/ε. As ε vanishes, the weights tend to
    # a half, and the output to ½(l + r)(1, 1) + ½(l - r)(1, -1) = (l, r).
    n, eps = 8, 1e-6
    position = torch.arange(n)
    neighbors = (position - rearrange(position, "i -> i 1")).abs() == 1
    sign = torch.tensor([1.0, 1.0, -1.0, -1.0], dtype=F64).repeat(2)
    head = SelfAttention(
        1, positions=OneHotPositions(n), head_dim=n + 1, value_head_dim=2, output_dim=2,
        bias=False, scale=1.0, dtype=F64,
    )  # fmt: skip
    parts = head.attention
    with torch.no_grad():
        for projection in (parts.query_proj, parts.key_proj):
            projection.weight.zero_()
        parts.query_proj.weight[:n, 1:] = 60.0 * neighbors
        parts.query_proj.weight[n, 1:] = eps * sign.roll(1)
        parts.key_proj.weight[:n, 1:] = torch.eye(n)
        parts.key_proj.weight[n, 0] = 1.0
        parts.value_proj.weight[:, 0] = 1.0
        parts.value_proj.weight[:, 1:] = torch.stack([sign, -sign]) / eps
        parts.output_proj.weight.copy_(torch.eye(2))

    both = torch.tensor([[[1.0, 0.0, 0.0]], [[0.0, 0.0, 1.0]]], dtype=F64)
    two_heads = convolution_attention(both[..., ::2], length=n, dilation=2)
    small = torch.rand(3, n, 1, dtype=F64)
    for factor, nearest, furthest in ((1.0, 0.0, 1e-6), (1e9, 1e8, math.inf)):
        x = factor * small
        wanted = two_heads(x)[:, 1:-1]
        error = (head(x)[:, 1:-1] - wanted).abs().max()
        assert nearest <= error < furthest


@pytest.mark.question("eecs-2d")
def test_one_head_reaches_any_distance():
    """One head copies the first of 300 tokens to the last position."""
    n, d = 300, 3
    head = SelfAttention(
        d, positions=OneHotPositions(n), head_dim=1, value_head_dim=d, scale=math.inf,
        bias=False, dtype=F64,
    )  # fmt: skip
    parts = head.attention
    with torch.no_grad():
        for projection in (parts.query_proj, parts.key_proj, parts.value_proj):
            projection.weight.zero_()
        parts.query_proj.weight[0, d:] = 1.0  # every position
        parts.key_proj.weight[0, d] = 1.0  # the first position
        parts.value_proj.weight[:, :d] = torch.eye(d)
        parts.output_proj.weight.copy_(torch.eye(d))
    x = tokens(2, n, d)
    assert_close(head(x)[:, -1], x[:, 0], **EXACT)


@pytest.mark.question("nyu-1.4c")
def test_nothing_makes_heads_differ_two_alike_stay_alike():
    """Two heads that start equal stay equal in training."""
    layer = MultiHeadAttention(8, 2, dtype=F64)
    with torch.no_grad():
        for projection in (layer.query_proj, layer.key_proj, layer.value_proj):
            projection.weight[4:] = projection.weight[:4]
        layer.output_proj.weight[:, 4:] = layer.output_proj.weight[:, :4]
    before = layer.query_proj.weight.detach().clone()
    for _ in range(5):
        loss = layer(tokens(B, Q, 8)).sin().sum()
        gradients = torch.autograd.grad(loss, [*layer.parameters()])
        with torch.no_grad():
            for parameter, gradient in zip(layer.parameters(), gradients, strict=True):
                parameter -= 0.1 * gradient
    assert not torch.allclose(layer.query_proj.weight, before)
    assert torch.allclose(layer.query_proj.weight[4:], layer.query_proj.weight[:4])
    assert torch.allclose(layer.value_proj.weight[4:], layer.value_proj.weight[:4])


@pytest.mark.question("nyu-1.4c")
def test_a_base_layer_of_the_paper_has_a_million_parameters():
    """A layer of the paper's base model has 1,048,576 weights."""
    layer = MultiHeadAttention(512, 8, bias=False)
    assert sum(p.numel() for p in layer.parameters()) == 1_048_576


# Options


@pytest.mark.parametrize("bias", [("query", "value"), ("output",), (), True, False])
def test_biases_by_projection(bias):
    layer = MultiHeadAttention(12, H, bias=bias)
    named = {"query", "key", "value", "output"} if bias is True else set(bias or ())
    for name in ("query", "key", "value", "output"):
        bias = getattr(layer, f"{name}_proj").bias
        assert (bias is not None) == (name in named)
        assert bias is None or not bias.any()


def test_weights_are_drawn_by_glorots_rule():
    layer = MultiHeadAttention(300, 3)
    bound = math.sqrt(6 / 600)
    weight = layer.key_proj.weight
    assert weight.abs().max() <= bound
    assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.02)


def test_relative_bias_enters_by_head():
    layer = MultiHeadAttention(12, H, dtype=F64)
    relative = RelativePositionBias(H, 2, dtype=F64)
    nn.init.normal_(relative.weight)
    x = tokens(B, Q, 12)
    heads = side_by_side(layer, x, bias=relative(Q))
    expected = layer.output_proj(torch.cat([*heads], dim=-1))
    assert_close(layer(x, bias=relative(Q)), expected, **EXACT)


# Caches and padding


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("steps", [[1] * 7, [3, 1, 3], [7]])
def test_decoding_in_steps_equals_the_whole(steps, padded):
    layer = MultiHeadAttention(12, H, dtype=F64)
    x, real = tokens(B, 7, 12), torch.ones(B, 7, dtype=torch.bool)
    real[1, : 3 * padded] = False  # padding in front
    whole = layer(x, causal=True, padding_mask=real if padded else None)
    cache, pieces = KeyValueCache(), []
    with torch.no_grad():
        for piece in x.split(steps, dim=1):
            seen = real[:, : cache.length + piece.shape[1]] if padded else None
            pieces.append(layer(piece, causal=True, cache=cache, padding_mask=seen))
    assert cache.length == 7
    assert_close(torch.cat(pieces, dim=1), whole, **EXACT)


def test_a_cached_context_is_projected_once():
    layer = MultiHeadAttention(12, H, dtype=F64)
    x, context = tokens(B, Q, 12), tokens(B, K, 12)
    expected = layer(x, context)
    calls = []
    layer.key_proj.register_forward_hook(lambda *_: calls.append(1))
    cache = KeyValueCache()
    with torch.no_grad():
        pieces = [layer(x[:, i : i + 1], context, cache=cache) for i in range(Q)]
    assert len(calls) == 1
    assert torch.allclose(torch.cat(pieces, dim=1), expected, **EXACT)
    with pytest.raises(ValueError, match="context of length 7, got one of length 3"):
        layer(x, context[:, :3], cache=cache)


def test_a_cache_selects_rows_and_refuses_strangers():
    cache = KeyValueCache()
    with pytest.raises(ValueError, match="got an empty one"):
        cache.read()
    cache.select(torch.tensor([0]))  # nothing to reorder yet
    key, value = torch.randn(2, H, 4, 5), torch.randn(2, H, 4, 7)
    cache.append(key[:, :, :3], value[:, :, :3])
    cache.append(key[:, :, 3:], value[:, :, 3:])
    cache.select(torch.tensor([1, 1, 0]))
    assert torch.equal(cache.read()[0], key[[1, 1, 0]])
    assert torch.equal(cache.read()[1], value[[1, 1, 0]])
    with pytest.raises(ValueError, match=r"\(3, 3, 5\), got \(2, 3, 5\)"):
        cache.append(key, value)


@pytest.mark.unhooked
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_rows_of_a_cache_are_numbers_never_a_mask(dtype):
    cache = KeyValueCache()
    key, value = torch.randn(2, H, 4, 5), torch.randn(2, H, 4, 7)
    cache.append(key, value)
    cache.select(torch.tensor([1, 1], dtype=dtype))
    assert torch.equal(cache.read()[0], key[[1, 1]])
    assert torch.equal(cache.read()[1], value[[1, 1]])


# Shared keys and values, normalized queries and keys, windows


@pytest.mark.parametrize("queries", [1, 5])
@pytest.mark.parametrize("kv_heads", [1, 2, 3])
def test_shared_keys_are_keys_that_repeat(kv_heads, queries):
    """Multi-query and grouped-query attention, against heads with copies."""
    shared = MultiHeadAttention(12, 6, kv_heads=kv_heads, context_dim=10, dtype=F64)
    whole = MultiHeadAttention(12, 6, context_dim=10, dtype=F64)
    for name, x in shared.state_dict().items():
        if name.startswith(("key", "value")):
            x = repeat(x, "(g d) ... -> (g r d) ...", g=kv_heads, r=6 // kv_heads)
        whole.state_dict()[name].copy_(x)
    x, context = (torch.randn(2, n, d, dtype=F64) for n, d in ((queries, 12), (7, 10)))
    masks = {
        "padding_mask": torch.rand(2, 7) < 0.8,
        "mask": torch.rand(2, 6, queries, 7) < 0.7,
        "bias": torch.randn(6, queries, 7, dtype=F64),
    }
    for chosen in ({}, masks, {"causal": True}):
        expected, weights = whole(x, context, **chosen, return_weights=True)
        assert torch.allclose(shared(x, context, **chosen), expected, **EXACT)
        output, found = shared(x, context, **chosen, return_weights=True)
        assert torch.allclose(output, expected, **EXACT)
        assert torch.allclose(found, weights, **EXACT)
    count = sum(p.numel() for p in shared.parameters())
    assert count == 2 * 12 * 13 + 2 * 2 * kv_heads * 11


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_normalized_queries_and_keys_have_scores_that_lengths_do_not_change(kind):
    layer = MultiHeadAttention(12, H, qk_norm=kind, qk_eps=0.0, bias=False, dtype=F64)
    for norm in (layer.query_norm, layer.key_norm):
        torch.nn.init.normal_(norm.weight)
    x, context = torch.randn(B, Q, 12, dtype=F64), torch.randn(B, K, 12, dtype=F64)
    _, weights = layer(x, context, return_weights=True)
    assert torch.allclose(layer(9.0 * x, context, return_weights=True)[1], weights)
    rows = []
    for projection, norm, tokens in (
        (layer.query_proj, layer.query_norm, x),
        (layer.key_proj, layer.key_norm, context),
    ):
        heads = (tokens @ projection.weight.T).unflatten(-1, (H, 4))
        if kind == "layer":
            heads = heads - heads.mean(-1, keepdim=True)
        size = heads.square().mean(-1, keepdim=True).sqrt()
        rows.append(norm.weight * heads / size)
    scores = torch.einsum("bqhd,bkhd->bhqk", *rows) / 2
    assert torch.allclose(weights, scores.softmax(-1), **EXACT)


@pytest.mark.parametrize("step", [1, 3, 8])
@pytest.mark.parametrize(("window", "sinks"), [(4, 0), (1, 2), (5, 3)])
def test_a_cache_of_a_window_forgets_and_decodes_the_same(window, sinks, step):
    layer = MultiHeadAttention(12, 6, kv_heads=2, window=window, sinks=sinks, dtype=F64)
    x, real = torch.randn(2, 40, 12, dtype=F64), torch.ones(2, 40).bool()
    real[1, :7] = False
    whole = layer(x, causal=True, padding_mask=real)
    cache, outputs = KeyValueCache(window=window, sinks=sinks), []
    for i in range(0, 40, step):
        here = slice(i, i + step)
        masks = {"causal": True, "padding_mask": real[:, : i + step]}
        outputs.append(layer(x[:, here], **masks, cache=cache))
    assert torch.allclose(torch.cat(outputs, dim=1), whole, **EXACT)
    assert cache.length == 40
    key, value = cache.read()
    assert key.shape[:2] == value.shape[:2] == (2, 2)
    assert key.shape[2] <= 2 * (window - 1 + sinks) + 1 + step


@pytest.mark.parametrize("seen", [True, False])
def test_a_mask_of_one_column_is_for_whatever_a_cache_has_kept(seen):
    layer = MultiHeadAttention(12, H, window=4, sinks=2, dtype=F64)
    x, mask = torch.randn(B, 9, 12, dtype=F64), torch.full((B, 1, 1, 1), seen)
    cache = KeyValueCache(window=4, sinks=2)
    steps = [layer(x[:, [t]], mask=mask, causal=True, cache=cache) for t in range(9)]
    # Queries that see nothing get the bias alone.
    blind = layer.output_proj.bias.expand(B, 9, 12)
    whole = layer(x, causal=True) if seen else blind
    assert torch.allclose(torch.cat(steps, dim=1), whole, **EXACT)


@pytest.mark.parametrize("kind", ["mask", "bias"])
@pytest.mark.parametrize("window", [2, None])
def test_a_mask_of_another_length_is_refused_before_a_cache_takes_tokens(window, kind):
    layer = MultiHeadAttention(12, H, window=window, dtype=F64)
    cache, x = KeyValueCache(window=window), tokens(B, 13, 12)
    options = {"causal": True, "cache": cache}
    for t in range(12):
        layer(x[:, [t]], **options)
    dtype = torch.bool if kind == "mask" else F64
    for keys in (0, 2, 3, 12, 14, 999):
        wrong = {kind: torch.ones(1, keys, dtype=dtype)}
        with pytest.raises(ValueError, match=rf"{kind} must be \(..., 13\), got"):
            layer(x[:, [12]], **options, **wrong)
    assert cache.length == 12
    right = {kind: torch.ones(1, 13, dtype=dtype)}
    found = layer(x[:, [12]], **options, **right)
    assert_close(found, layer(x, causal=True)[:, [12]], **EXACT)


@pytest.mark.parametrize("window", [1, 3, None])
def test_no_query_gives_no_output_and_leaves_a_cache_as_it_was(window):
    sinks = 0 if window is None else 2
    layer = MultiHeadAttention(12, H, window=window, sinks=sinks, dtype=F64)
    x, real = tokens(B, 9, 12), torch.ones(B, 9, dtype=torch.bool)
    real[1, :3] = False
    cache, steps = KeyValueCache(window=window, sinks=sinks), []
    for t in range(9):
        for here in (slice(t, t), slice(t, t + 1)):
            masks = {"causal": True, "padding_mask": real[:, : here.stop]}
            steps.append(layer(x[:, here], **masks, cache=cache))
    whole = layer(x, causal=True, padding_mask=real)
    assert_close(torch.cat(steps, dim=1), whole, **EXACT)


@pytest.mark.parametrize("step", [1, 150])
def test_a_cache_of_a_window_equals_blocks(step):
    """The whole sequence is cut into blocks, the steps are not all."""
    options = {"kv_heads": 2, "window": 30, "sinks": 3, "dtype": F64}
    layer = MultiHeadAttention(12, 6, **options)
    x = torch.randn(2, 300, 12, dtype=F64)
    cache = KeyValueCache(window=30, sinks=3)
    with torch.no_grad():
        whole = layer(x, causal=True)
        pieces = [layer(piece, causal=True, cache=cache) for piece in x.split(step, 1)]
    assert torch.allclose(torch.cat(pieces, dim=1), whole, **EXACT)


def test_padding_hides_even_nan_and_infinity():
    layer = MultiHeadAttention(12, H, dtype=F64)
    x = tokens(B, Q, 12).requires_grad_()
    context = tokens(B, K, 12)
    for mask in (None, SOME):
        for return_weights in (False, True):
            results = []
            for filling in (0.0, 1e30, math.nan, math.inf):
                poisoned = context.clone()
                poisoned[~PADDING] = filling
                masks = {"padding_mask": PADDING, "mask": mask}
                output = layer(x, poisoned, **masks, return_weights=return_weights)
                output = output[0] if return_weights else output
                leaves = [x, *layer.parameters()]
                gradients = torch.autograd.grad(output.sin().sum(), leaves)
                results.append((output, *gradients))
            for other in results[1:]:
                for a, b in zip(results[0], other, strict=True):
                    assert torch.equal(a, b)


def test_the_config_names_the_projections_with_biases():
    for bias in (("value", "query"), True, False):
        layer = MultiHeadAttention(12, H, bias=bias)
        projections = ("query", "key", "value", "output")
        found = [x for x in projections if getattr(layer, f"{x}_proj").bias is not None]
        assert layer.config.bias == tuple(found)


def test_repr_shows_the_heads():
    shown = repr(MultiHeadAttention(12, H, scale=2.0))
    assert "12, heads=3" in shown
    assert "scale=2.0" in shown


@pytest.mark.unhooked
@pytest.mark.parametrize(
    "layer",
    [MultiHeadAttention(12, H), Encoder(12, H, hidden_dim=5, depth=3), GRU(12, 5)],
    ids=lambda layer: type(layer).__name__,
)
def test_a_padding_mask_in_pytorchs_convention_is_noticed_at_the_users_line(layer):
    x = torch.randn(B, K, 12)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        layer(x, padding_mask=~PADDING)
    (warning,) = caught
    assert "key_padding_mask it marks padding" in str(warning.message)
    assert warning.filename == __file__
    assert "layer(x, padding_mask=~" in linecache.getline(__file__, warning.lineno)


LAYER, X = MultiHeadAttention(12, 3), torch.zeros(2, 5, 12)


@pytest.mark.unhooked
@bad_calls(
    ("heads that do not divide the width", lambda: MultiHeadAttention(12, 5),
     ValueError, "dim must be divisible by heads, got dim 12 and 5 heads; head_dim"),
    ("half a head", lambda: MultiHeadAttention(12, 2.5),
     ValueError, "heads must be a positive integer, got 2.5."),
    ("no heads", lambda: MultiHeadAttention(12, 0, head_dim=4, kv_heads=1),
     ValueError, "heads must be a positive integer, got 0."),
    ("values of no width", lambda: MultiHeadAttention(12, 3, value_head_dim=0),
     ValueError, "value_head_dim must be a positive integer, got 0."),
    ("a negative scale", lambda: MultiHeadAttention(12, 3, scale=-1.0),
     ValueError, "scale must be zero or greater, got -1.0."),
    ("PyTorch's names", lambda: MultiHeadAttention(embed_dim=12, num_heads=3),
     TypeError, "MultiHeadAttention() has no argument 'embed_dim'; … mean 'dim'?"),
    ("a bias of no projection", lambda: MultiHeadAttention(12, 3, bias=("keys",)),
     ValueError, "bias must be True, False or names among ('query', … got ('keys',)."),
    ("heads that do not share evenly", lambda: MultiHeadAttention(12, 3, kv_heads=2),
     ValueError, "kv_heads must divide heads, got 2 and 3 heads."),
    ("an unknown norm", lambda: MultiHeadAttention(12, 3, qk_norm="batch"),
     ValueError, "qk_norm must be one of ('layer', 'rms', None), got 'batch'."),
    ("sinks without a window", lambda: MultiHeadAttention(12, 3, sinks=2),
     ValueError, "sinks=2 needs a window, got none."),
    ("a cache that forgets too much",
     lambda: LAYER(X, causal=True, cache=KeyValueCache(window=4)),
     ValueError, "the cache must keep a window of None and 0 sinks, as the layer … 4"),
    ("a cache without a window", lambda: KeyValueCache(window=0),
     ValueError, "window must be a positive integer, got 0."),
    ("a mask for rows", lambda: KeyValueCache().select(torch.tensor([True, False])),
     TypeError, "rows must be a tensor of integers, got torch.bool."),
    ("tokens without a batch", lambda: LAYER(X[0]),
     ValueError, "query must be (b, q, 12), got shape (5, 12)."),
    ("a context for another batch", lambda: LAYER(X, torch.zeros(3, 7, 12)),
     ValueError, "context must be (2, k, 12), got shape (3, 7, 12)."),
    ("tokens of another dtype", lambda: LAYER(X.double()),
     TypeError, "query must have the dtype of the parameters of MultiHeadAttention, "
     "torch.float32, got torch.float64."),
    ("as many masks as samples and heads",
     lambda: LAYER(torch.zeros(3, 5, 12), mask=torch.ones(3, 5, 5).bool()),
     ValueError, "mask must be broadcastable to (5, keys) or (3, 3, 5, keys), got …"),
    ("a mask of other keys", lambda: LAYER(X, mask=torch.ones(5, 4).bool()),
     ValueError, "mask must be broadcastable to (2, 3, 5, 5), got shape (5, 4)."),
    ("masks that disagree",
     lambda: LAYER(X, mask=torch.ones(5, 4).bool(), padding_mask=torch.ones(2, 5) > 0),
     ValueError, "mask must be broadcastable to (5, 5) or (2, 3, 5, 5), got … (5, 4)"),
    ("a padding mask of numbers", lambda: LAYER(X, padding_mask=torch.ones(2, 5)),
     TypeError, "padding_mask must be a boolean tensor (True = a real token), got "
     "torch.float"),
    ("padding of other keys", lambda: LAYER(X, padding_mask=torch.ones(2, 4).bool()),
     ValueError, "padding_mask must be (2, 5), got shape (2, 4)."),
)  # fmt: skip
def test_malformed_calls_get_clear_errors(call, error, message):
    assert_refused(call, error, message)


def test_every_parameter_has_the_device_and_dtype_asked_for():
    layer = MultiHeadAttention(12, H, device="meta", dtype=F64)
    for parameter in layer.parameters():
        assert parameter.is_meta
        assert parameter.dtype == F64
