"""Chapter 3 against nn.MultiheadAttention, nn.Conv1d and counting by hand."""

import math

import pytest
import torch
from einops import rearrange
from torch import Tensor, nn

from transformers_hw import (
    KeyValueCache,
    MultiHeadAttention,
    RelativePositionBias,
    attention,
    padding_mask,
)

F64 = torch.float64
B, Q, K, H = 2, 5, 7, 3


def torch_twin(ours: MultiHeadAttention, **options: object) -> nn.MultiheadAttention:
    """PyTorch's layer with the same weights."""
    theirs = nn.MultiheadAttention(
        ours.query_proj.in_features,
        ours.heads,
        bias=ours.query_proj.bias is not None,
        batch_first=True,
        dtype=F64,
        **options,  # type: ignore[arg-type]
    )
    projections = [ours.query_proj, ours.key_proj, ours.value_proj]
    with torch.no_grad():
        if theirs.in_proj_weight is not None:
            theirs.in_proj_weight.copy_(torch.cat([p.weight for p in projections]))
        else:
            theirs.q_proj_weight.copy_(ours.query_proj.weight)
            theirs.k_proj_weight.copy_(ours.key_proj.weight)
            theirs.v_proj_weight.copy_(ours.value_proj.weight)
        theirs.out_proj.weight.copy_(ours.output_proj.weight)
        if ours.query_proj.bias is not None:
            theirs.in_proj_bias.copy_(torch.cat([p.bias for p in projections]))
            theirs.out_proj.bias.copy_(ours.output_proj.bias)
    return theirs


def randomise_biases(layer: nn.Module) -> None:
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if name.endswith("bias"):
                parameter.normal_()


PADDING = padding_mask(torch.tensor([K, 4]))
SOME = torch.rand(Q, K, generator=torch.Generator().manual_seed(3)) > 0.4
SOME[:, 0] = True
BY_HEAD = torch.rand(B, H, Q, K, generator=torch.Generator().manual_seed(4)) > 0.4
BY_HEAD[..., 0] = True
MASKS: dict[str, tuple[dict[str, Tensor], dict[str, Tensor]]] = {
    "none": ({}, {}),
    "mask": ({"mask": SOME}, {"attn_mask": ~SOME}),
    "padding": ({"padding_mask": PADDING}, {"key_padding_mask": ~PADDING}),
    "both": (
        {"mask": SOME, "padding_mask": PADDING},
        {"attn_mask": ~SOME, "key_padding_mask": ~PADDING},
    ),
    "by head": (
        {"mask": BY_HEAD},
        {"attn_mask": ~rearrange(BY_HEAD, "b h q k -> (b h) q k")},
    ),
    "bias": (
        {"bias": torch.linspace(-2, 2, Q * K, dtype=F64).view(Q, K)},
        {"attn_mask": torch.linspace(-2, 2, Q * K, dtype=F64).view(Q, K)},
    ),
}


@pytest.mark.question("nyu-1.2a", "nyu-1.4c", "quiz-2.2")
@pytest.mark.parametrize("return_weights", [False, True])
@pytest.mark.parametrize("widths", [{}, {"context_dim": 11, "values_dim": 13}])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", MASKS)
def test_matches_nn_multihead_attention(kind, bias, widths, return_weights):
    ours = MultiHeadAttention(12, H, bias=bias, dtype=F64, **widths)
    randomise_biases(ours)
    renamed = {"context_dim": "kdim", "values_dim": "vdim"}
    theirs = torch_twin(ours, **{renamed[name]: n for name, n in widths.items()})
    inputs = [
        torch.randn(B, n, width, dtype=F64, requires_grad=True)
        for n, width in (
            (Q, 12),
            (K, widths.get("context_dim", 12)),
            (K, widths.get("values_dim", 12)),
        )
    ]
    our_masks, their_masks = MASKS[kind]
    found, weights = ours(*inputs, **our_masks, return_weights=return_weights)
    expected, their_weights = theirs(*inputs, **their_masks, average_attn_weights=False)
    assert torch.allclose(found, expected, rtol=0, atol=1e-10)
    if return_weights:
        assert torch.allclose(weights, their_weights, rtol=0, atol=1e-10)
    found_gradients = torch.autograd.grad(found.sin().sum(), inputs)
    expected_gradients = torch.autograd.grad(expected.sin().sum(), inputs)
    for a, b in zip(found_gradients, expected_gradients, strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-10)


@pytest.mark.question("nyu-1.2a", "nyu-1.3a")
def test_the_formula_head_by_head_with_tokens_in_columns():
    layer = MultiHeadAttention(12, H, bias=False, dtype=F64)
    X, C = torch.randn(12, Q, dtype=F64), torch.randn(12, K, dtype=F64)
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
    found, _ = layer(X.T[None], C.T[None])
    assert torch.allclose(found[0].T, expected, rtol=0, atol=1e-12)


@pytest.mark.question("nyu-1.2a")
def test_the_scale_uses_the_width_of_one_head():
    layer = MultiHeadAttention(12, H, dtype=F64)
    x = torch.randn(B, Q, 12, dtype=F64)
    same = MultiHeadAttention(12, H, scale=1 / math.sqrt(4), dtype=F64)
    whole = MultiHeadAttention(12, H, scale=1 / math.sqrt(12), dtype=F64)
    for other in (same, whole):
        other.load_state_dict(layer.state_dict())
    assert torch.allclose(layer(x)[0], same(x)[0])
    assert not torch.allclose(layer(x)[0], whole(x)[0], atol=1e-3)


@pytest.mark.question("nyu-1.2b")
def test_heads_keep_the_parameters_that_groups_divide():
    def count(layer: nn.Module) -> int:
        return sum(p.numel() for p in layer.parameters())

    by_heads = [count(MultiHeadAttention(12, h, bias=False)) for h in (1, 2, 3, 6)]
    by_groups = [
        count(nn.Conv1d(12, 12, 1, groups=g, bias=False)) for g in (1, 2, 3, 6)
    ]
    assert by_heads == [4 * 12 * 12] * 4
    assert by_groups == [144, 72, 48, 24]


@pytest.mark.question("nyu-1.2b")
def test_every_head_sees_all_channels_where_a_group_sees_its_own():
    x = torch.randn(1, Q, 12, dtype=F64, requires_grad=True)
    layer = MultiHeadAttention(12, H, dtype=F64)
    layer.output_proj = nn.Identity()  # type: ignore[assignment]
    first_head = layer(x)[0][..., :4]
    seen = torch.autograd.grad(first_head.square().sum(), x)[0].abs().sum((0, 1))
    assert (seen > 0).all()
    grouped = nn.Conv1d(12, 12, 1, groups=H, dtype=F64)
    first_group = grouped(x.mT)[:, :4]
    seen = torch.autograd.grad(first_group.square().sum(), x)[0].abs().sum((0, 1))
    assert (seen[:4] > 0).all()
    assert (seen[4:] == 0).all()


@pytest.mark.question("eecs-2d", "nyu-1.4c")
def test_one_head_cannot_mix_two_neighbours_differently_and_two_can():
    # y_i = W₁x_{i-1} + W₂x_{i+1}. One head whose weights depend on places gives a·W to
    # the one neighbour and b·W to the other: as rows of a matrix, (W₁, W₂) would have
    # rank one. The nearest such matrix is as far away as the second singular value.
    w1, w2 = torch.randn(2, 2, dtype=F64), torch.randn(2, 2, dtype=F64)
    wanted = torch.stack([w1.flatten(), w2.flatten()])
    least_error_of_one_head = torch.linalg.svdvals(wanted)[1]
    assert least_error_of_one_head > 0.1

    first = torch.zeros(7, 7).diagonal_scatter(torch.ones(6), -1)
    second = torch.zeros(7, 7).diagonal_scatter(torch.ones(6), 1)
    layer = MultiHeadAttention(
        2, 2, head_dim=1, value_head_dim=2, bias=False, dtype=F64
    )
    with torch.no_grad():
        layer.value_proj.weight.copy_(torch.cat([w1.T, w2.T]))
        layer.output_proj.weight.copy_(torch.eye(2).repeat(1, 2))
    x = torch.randn(1, 7, 2, dtype=F64)
    found, _ = layer(x, mask=torch.stack([first, second])[None].bool())
    before, after = x.roll(1, 1), x.roll(-1, 1)
    expected = before @ w1 + after @ w2
    assert torch.allclose(found[:, 1:-1], expected[:, 1:-1], rtol=0, atol=1e-12)


@pytest.mark.question("nyu-1.4c")
def test_nothing_makes_heads_differ_two_alike_stay_alike():
    layer = MultiHeadAttention(8, 2, dtype=F64)
    with torch.no_grad():
        for projection in (layer.query_proj, layer.key_proj, layer.value_proj):
            projection.weight[4:] = projection.weight[:4]
        layer.output_proj.weight[:, 4:] = layer.output_proj.weight[:, :4]
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(5):
        optimiser.zero_grad()
        layer(torch.randn(B, Q, 8, dtype=F64))[0].sin().sum().backward()
        optimiser.step()
    assert torch.allclose(layer.query_proj.weight[4:], layer.query_proj.weight[:4])
    assert torch.allclose(layer.value_proj.weight[4:], layer.value_proj.weight[:4])


@pytest.mark.question("nyu-1.4c")
def test_a_base_layer_of_the_paper_has_a_million_parameters():
    layer = MultiHeadAttention(512, 8, bias=False)
    assert sum(p.numel() for p in layer.parameters()) == 1_048_576


def test_widths_of_their_own():
    layer = MultiHeadAttention(
        12, H, context_dim=11, head_dim=5, value_head_dim=7, output_dim=2
    )
    shapes = {name: tuple(p.shape) for name, p in layer.named_parameters()}
    assert shapes == {
        "query_proj.weight": (15, 12),
        "query_proj.bias": (15,),
        "key_proj.weight": (15, 11),
        "key_proj.bias": (15,),
        "value_proj.weight": (21, 11),
        "value_proj.bias": (21,),
        "output_proj.weight": (2, 21),
        "output_proj.bias": (2,),
    }
    output, weights = layer(
        torch.randn(B, Q, 12), torch.randn(B, K, 11), return_weights=True
    )
    assert output.shape == (B, Q, 2)
    assert weights.shape == (B, H, Q, K)


@pytest.mark.parametrize("bias", [("query", "value"), ("output",), (), True, False])
def test_biases_by_projection(bias):
    layer = MultiHeadAttention(12, H, bias=bias)
    named = {"query", "key", "value", "output"} if bias is True else set(bias or ())
    for name in ("query", "key", "value", "output"):
        projection = getattr(layer, f"{name}_proj")
        assert (projection.bias is not None) == (name in named)
        if projection.bias is not None:
            assert (projection.bias == 0).all()


def test_weights_are_drawn_by_glorots_rule():
    layer = MultiHeadAttention(300, 3)
    bound = math.sqrt(6 / 600)
    weight = layer.key_proj.weight
    assert weight.abs().max() <= bound
    assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.02)


def test_hard_heads():
    layer = MultiHeadAttention(12, H, scale=math.inf)
    _, weights = layer(torch.randn(B, Q, 12), return_weights=True)
    assert set(weights.unique().tolist()) == {0.0, 1.0}


def test_relative_bias_enters_by_head():
    layer = MultiHeadAttention(12, H, dtype=F64)
    relative = RelativePositionBias(H, 2, dtype=F64)
    with torch.no_grad():
        relative.table.normal_()
    x = torch.randn(B, Q, 12, dtype=F64)
    q, k, v = (
        rearrange(projection(x), "b n (h d) -> b h n d", h=H)
        for projection in (layer.query_proj, layer.key_proj, layer.value_proj)
    )
    expected, _ = attention(q, k, v, bias=relative(Q))
    expected = layer.output_proj(rearrange(expected, "b h n d -> b n (h d)"))
    assert torch.allclose(layer(x, bias=relative(Q))[0], expected)


@pytest.mark.parametrize("steps", [[1] * 7, [3, 1, 3], [7]])
def test_decoding_in_steps_equals_the_whole(steps):
    layer = MultiHeadAttention(12, H, dtype=F64)
    x = torch.randn(B, 7, 12, dtype=F64)
    whole, _ = layer(x, causal=True)
    cache, pieces = KeyValueCache(), []
    with torch.no_grad():
        for piece in x.split(steps, dim=1):
            pieces.append(layer(piece, causal=True, cache=cache)[0])
    assert cache.length == 7
    assert torch.allclose(torch.cat(pieces, dim=1), whole, rtol=0, atol=1e-12)


def test_decoding_in_steps_with_padding_in_front():
    layer = MultiHeadAttention(12, H, dtype=F64)
    x = torch.randn(B, 7, 12, dtype=F64)
    real = torch.ones(B, 7, dtype=torch.bool)
    real[1, :3] = False
    whole, _ = layer(x, causal=True, padding_mask=real)
    cache = KeyValueCache()
    with torch.no_grad():
        pieces = [
            layer(
                x[:, i : i + 1], causal=True, cache=cache, padding_mask=real[:, : i + 1]
            )[0]
            for i in range(7)
        ]
    assert torch.allclose(torch.cat(pieces, dim=1), whole, rtol=0, atol=1e-12)


def test_a_cached_context_is_projected_once():
    layer = MultiHeadAttention(12, H, dtype=F64)
    x, context = torch.randn(B, Q, 12, dtype=F64), torch.randn(B, K, 12, dtype=F64)
    expected, _ = layer(x, context)
    calls = []
    layer.key_proj.register_forward_hook(lambda *_: calls.append(1))
    cache = KeyValueCache()
    with torch.no_grad():
        pieces = [layer(x[:, i : i + 1], context, cache=cache)[0] for i in range(Q)]
    assert len(calls) == 1
    assert torch.allclose(torch.cat(pieces, dim=1), expected, rtol=0, atol=1e-12)
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


def test_padding_hides_even_nan_and_infinity():
    layer = MultiHeadAttention(12, H, dtype=F64)
    x = torch.randn(B, Q, 12, dtype=F64, requires_grad=True)
    context = torch.randn(B, K, 12, dtype=F64)
    for mask in (None, SOME):
        for return_weights in (False, True):
            results = []
            for filling in (0.0, 1e30, math.nan, math.inf):
                poisoned = context.clone()
                poisoned[~PADDING] = filling
                output, _ = layer(
                    x,
                    poisoned,
                    padding_mask=PADDING,
                    mask=mask,
                    return_weights=return_weights,
                )
                leaves = [x, *layer.parameters()]
                gradients = torch.autograd.grad(output.sin().sum(), leaves)
                results.append((output, *gradients))
            for other in results[1:]:
                for a, b in zip(results[0], other, strict=True):
                    assert torch.equal(a, b)
