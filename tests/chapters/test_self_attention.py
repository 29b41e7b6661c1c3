"""Chapter 4: self-attention, and layers that are built to do a known job."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from bad_calls import assert_refused, bad_calls
from einops import einsum, rearrange, reduce
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from transformers_hw.multi_head_attention import KeyValueCache
from transformers_hw.positional_encoding import (
    LearnedPositions,
    OneHotPositions,
    PositionalEncoding,
    SinusoidalPositions,
)
from transformers_hw.self_attention import (
    SelfAttention,
    ZeroPaddedSelfAttention,
    convolution_attention,
    identity_attention,
    off_target_mass,
    permutation_attention,
    pointwise_linear_attention,
)

F64 = torch.float64
EXACT = {"rtol": 0.0, "atol": 1e-12}
some = settings(deadline=None, max_examples=25)


def tokens(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=F64)


def softened(x: Tensor, sharpness: float) -> Tensor:
    """Mix each token with the mean of the others, as the theory says."""
    n = x.shape[1]
    epsilon = (n - 1) / (math.exp(sharpness) + n - 1)
    mean_of_others = (reduce(x, "b n d -> b 1 d", "sum") - x) / max(n - 1, 1)
    return x + epsilon * (mean_of_others - x)


def convolved(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    padding_mode: str = "zeros",
    dilation: int = 1,
) -> Tensor:
    """PyTorch's convolution over tokens; an odd zero to pad goes to the right."""
    span = dilation * (weight.shape[-1] - 1)
    channels = rearrange(x, "b n d -> b d n")
    mode = "constant" if padding_mode == "zeros" else padding_mode
    padded = F.pad(channels, (span // 2, span - span // 2), mode=mode)
    y = F.conv1d(padded, weight, bias, dilation=dilation)
    return rearrange(y, "b out n -> b n out")


def set_weights(layer: SelfAttention, **weights: Tensor) -> SelfAttention:
    """Give projections these weights; names are `query`, `key`, `value`, `output`."""
    with torch.no_grad():
        for name, weight in weights.items():
            layer.attention.get_submodule(f"{name}_proj").weight.copy_(weight)
    return layer


def influence(layer: nn.Module, x: Tensor) -> Tensor:
    """How output i changes with token j: a table of matrices, for one sequence."""
    jacobian = torch.autograd.functional.jacobian(lambda t: layer(t)[0], x)
    assert isinstance(jacobian, Tensor)
    return rearrange(jacobian, "i out 1 j d -> i j out d")


def matrices_by_head(layer: SelfAttention) -> Tensor:
    """What each head does to the tokens it averages: output times value matrix."""
    parts = layer.attention
    values = rearrange(parts.value_proj.weight, "(h v) d -> h v d", h=parts.heads)
    outputs = rearrange(parts.output_proj.weight, "o (h v) -> h o v", h=parts.heads)
    return einsum(outputs, values[..., : layer.dim], "h o v, h v d -> h o d")


def randomize_biases(layer: SelfAttention) -> None:
    for name, parameter in layer.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)


def heads_that_weigh(weights: Tensor, matrices: Tensor) -> SelfAttention:
    """Soft heads: in head h, position i gives j the weight `weights[h, i, j]`."""
    heads, n, _ = weights.shape
    _, out, dim = matrices.shape
    layer = SelfAttention(
        dim, heads, positions=OneHotPositions(n), head_dim=n, value_head_dim=dim,
        output_dim=out, bias=False, scale=1.0, dtype=F64,
    )  # fmt: skip
    return set_weights(
        layer,
        query=F.pad(rearrange(weights.log(), "h i j -> (h j) i"), (dim, 0)),
        key=F.pad(torch.eye(n).repeat(heads, 1), (dim, 0)),
        value=F.pad(torch.eye(dim).repeat(heads, 1), (0, n)),
        output=rearrange(matrices, "h o d -> o (h d)"),
    )


def by_head(layer: SelfAttention, x: Tensor) -> list[Tensor]:
    """Queries, keys and values, each `b h n d`."""
    parts = layer.attention
    return [
        rearrange(projection(x), "b n (h d) -> b h n d", h=parts.heads)
        for projection in (parts.query_proj, parts.key_proj, parts.value_proj)
    ]


# Self-attention as such


@pytest.mark.question("nyu-1.3a")
def test_self_attention_is_what_the_formula_says():
    """The layer equals the formula with tokens in columns and two heads."""
    # The question keeps tokens in the columns of C and asks for h heads.
    e, n, h, d = 6, 5, 2, 3
    layer = SelfAttention(e, heads=h, bias=False, dtype=F64)
    C = tokens(e, n)
    W_q, W_k, W_v = (
        rearrange(layer.attention.get_submodule(name).weight, "(h d) e -> h d e", h=h)
        for name in ("query_proj", "key_proj", "value_proj")
    )
    W_o = layer.attention.output_proj.weight
    heads = []
    for i in range(h):
        Q, K, V = W_q[i] @ C, W_k[i] @ C, W_v[i] @ C
        A = torch.softmax(K.T @ Q / math.sqrt(d), dim=0)
        heads.append(V @ A)
    H = W_o @ torch.cat(heads)
    assert_close(layer(C.T[None])[0].T, H, **EXACT)


@pytest.mark.question("nyu-1.3a")
def test_with_tokens_in_columns_queries_times_keys_transposed_are_not_the_scores():
    """With tokens in columns, Q Kᵀ compares coordinates and Kᵀ Q tokens."""
    # The claim: softmax(Q Kᵀ / √d) V with Q = W_q C, K = W_k C, V = W_v C. Here all
    # widths are equal, so that every product exists.
    d = n = 5
    C, W_q, W_k, W_v = tokens(4, d, d)

    def claimed(C: Tensor) -> Tensor:
        return torch.softmax(W_q @ C @ (W_k @ C).T / math.sqrt(d), dim=1) @ W_v @ C

    layer = SelfAttention(d, bias=False, dtype=F64)
    set_weights(layer, query=W_q, key=W_k, value=W_v, output=torch.eye(d))
    output = layer(C.T[None])[0].T
    assert (claimed(C) - output).abs().max() > 0.01
    # Its Q Kᵀ is a table of coordinates: it stays the same when tokens swap, and keeps
    # its shape when tokens are left out. The scores of tokens do neither.
    order = [1, 0, 2, 3, 4]
    Q, K = W_q @ C, W_k @ C
    assert_close(Q[:, order] @ K[:, order].T, Q @ K.T, **EXACT)
    scores = K.T @ Q
    assert_close(K[:, order].T @ Q[:, order], scores[order][:, order], **EXACT)
    assert (Q[:, : n - 2] @ K[:, : n - 2].T).shape == (d, d)
    assert_close(K[:, : n - 2].T @ Q[:, : n - 2], scores[: n - 2, : n - 2], **EXACT)


@pytest.mark.question("nyu-1.3a")
def test_self_attention_agrees_with_the_multihead_attention_of_pytorch():
    """Output and weights equal those of PyTorch's nn.MultiheadAttention."""
    layer = SelfAttention(12, heads=3, dtype=F64)
    peer = nn.MultiheadAttention(12, 3, batch_first=True, dtype=F64)
    *parts, output = layer.attention.children()
    randomize_biases(layer)
    with torch.no_grad():
        peer.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        peer.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
        peer.out_proj.weight.copy_(output.weight)
        peer.out_proj.bias.copy_(output.bias)
    x = tokens(2, 5, 12)
    output, weights = layer(x, return_weights=True)
    wanted, wanted_weights = peer(x, x, x, average_attn_weights=False)
    assert_close(output, wanted, **EXACT)
    assert_close(weights, wanted_weights, **EXACT)
    assert_close(layer(x), wanted, **EXACT)


@pytest.mark.question("nyu-1.3b")
@some
@given(st.permutations(range(7)))
def test_without_positions_the_layer_is_equivariant_and_not_invariant(order):
    layer = SelfAttention(6, heads=2, dtype=F64)
    x = tokens(2, 7, 6)
    output = layer(x)
    assert_close(layer(x[:, order]), output[:, order], **EXACT)
    assert (layer(x.flip(1)) - output).abs().max() > 0.01


@pytest.mark.question("nyu-1.3b")
def test_mean_pooling_makes_self_attention_a_function_of_the_set():
    layer = SelfAttention(6, heads=2, dtype=F64)
    x = tokens(2, 7, 6)
    summary = layer(x).mean(dim=1)
    assert_close(layer(x[:, [3, 1, 6, 0, 2, 5, 4]]).mean(dim=1), summary, **EXACT)
    another_set = torch.cat([x[:, :6], x[:, :1]], dim=1)
    assert (layer(another_set).mean(dim=1) - summary).abs().max() > 0.01


@pytest.mark.question("nyu-1.3b")
@pytest.mark.question("eecs-1e")
@pytest.mark.parametrize(
    "positions",
    [
        OneHotPositions(7),
        SinusoidalPositions(6),
        LearnedPositions(7, 6, std=1.0, dtype=F64),
        LearnedPositions(7, 5, combine="concatenate", std=1.0, dtype=F64),
    ],
    ids=["one-hot", "sinusoidal", "learned", "learned-concatenated"],
)
def test_with_positions_the_order_matters(positions: PositionalEncoding):
    layer = SelfAttention(6, heads=2, positions=positions, dtype=F64)
    x = tokens(2, 7, 6)
    forwards, backwards = layer(x), layer(x.flip(1))
    assert (backwards - forwards.flip(1)).abs().max() > 0.01
    summary_gap = backwards.mean(dim=1) - forwards.mean(dim=1)
    assert summary_gap.abs().max() > 0.001


@pytest.mark.question("nyu-1.3b")
def test_a_causal_mask_alone_makes_the_order_matter():
    layer = SelfAttention(6, heads=2, dtype=F64)
    x = tokens(2, 7, 6)
    forwards, backwards = layer(x, causal=True), layer(x.flip(1), causal=True)
    assert (backwards - forwards.flip(1)).abs().max() > 0.01


@pytest.mark.parametrize("combine", ["add", "concatenate"])
def test_positions_enter_before_all_three_projections(combine):
    positions = SinusoidalPositions(6, combine=combine)
    layer = SelfAttention(6, heads=2, positions=positions, dtype=F64)
    x = tokens(3, 5, 6)
    embeddings = positions.embeddings(5).expand(3, 5, 6)
    joined = x + embeddings if combine == "add" else torch.cat([x, embeddings], -1)
    heads = F.scaled_dot_product_attention(*by_head(layer, joined))
    wanted = layer.attention.output_proj(rearrange(heads, "b h n d -> b n (h d)"))
    assert_close(layer(x), wanted, **EXACT)


def test_masks_and_biases_reach_the_scores():
    layer = SelfAttention(6, heads=2, bias=False, scale=0.7, dtype=F64)
    x, bias = tokens(3, 5, 6), tokens(2, 5, 5)
    mask = torch.rand(5, 5) > 0.3
    mask.fill_diagonal_(True)
    real = torch.arange(5) < torch.tensor([[5], [3], [4]])
    output, weights = layer(
        x, mask=mask, padding_mask=real, bias=bias, causal=True, return_weights=True
    )
    query, key, value = by_head(layer, x)
    seen = mask & torch.ones(5, 5).tril().bool() & real[:, None, None]
    scores = 0.7 * query @ key.mT + bias
    wanted = torch.softmax(scores.masked_fill(~seen, -math.inf), dim=-1).nan_to_num()
    assert_close(weights, wanted, **EXACT)
    mixed = rearrange(wanted @ value, "b h n d -> b n (h d)")
    assert_close(output, layer.attention.output_proj(mixed), **EXACT)


def test_step_by_step_decoding_counts_positions_on():
    positions = SinusoidalPositions(6)
    layer = SelfAttention(6, heads=2, positions=positions, dtype=F64).eval()
    x, cache = tokens(3, 7, 6), KeyValueCache()
    with torch.no_grad():
        whole = layer(x, causal=True)
        pieces = [
            layer(piece, causal=True, cache=cache)
            for piece in x.split([2, 1, 4], dim=1)
        ]
    assert_close(torch.cat(pieces, dim=1), whole, **EXACT)


# The hand computation: three hidden states, one head

HIDDEN = torch.tensor([[5.0, 1.0], [4.0, 3.0], [-2.0, 6.0]], dtype=F64)
W_Q = torch.tensor([[1.0, 0.0], [2.0, 9.0]], dtype=F64)
W_K = torch.tensor([[0.0, 1.0], [6.0, 0.0]], dtype=F64)
W_V = torch.tensor([[4.0, 3.0], [9.0, 1.0]], dtype=F64)


def attention_by_hand(scale: float) -> SelfAttention:
    layer = SelfAttention(2, bias=False, scale=scale, dtype=F64)
    return set_weights(layer, query=W_Q, key=W_K, value=W_V, output=torch.eye(2))


@pytest.mark.question("eecs-2a")
def test_the_second_state_scores_1054_852_and_minus_396():
    layer = attention_by_hand(scale=1.0).attention
    query, keys = layer.query_proj(HIDDEN[1]), layer.key_proj(HIDDEN)
    assert query.tolist() == [4.0, 35.0]
    assert keys.tolist() == [[1.0, 30.0], [3.0, 24.0], [6.0, -12.0]]
    assert (keys @ query).tolist() == [1054.0, 852.0, -396.0]


@pytest.mark.question("eecs-2b")
@pytest.mark.parametrize("scale", [1.0, 0.01])
def test_the_output_is_the_values_weighted_by_softmax(scale: float):
    output, weights = attention_by_hand(scale)(HIDDEN[None], return_weights=True)
    e1, e2, e3 = (math.exp(scale * (s - 1054)) for s in (1054, 852, -396))
    alpha = [e / (e1 + e2 + e3) for e in (e1, e2, e3)]
    v1, v2, v3 = (W_V @ h for h in HIDDEN)
    assert weights[0, 0, 1].tolist() == pytest.approx(alpha, rel=1e-10)
    wanted = alpha[0] * v1 + alpha[1] * v2 + alpha[2] * v3
    assert_close(output[0, 1], wanted, **EXACT)


@pytest.mark.question("eecs-2c")
def test_with_argmax_the_second_output_is_the_first_value():
    hard = attention_by_hand(scale=math.inf)
    output, weights = hard(HIDDEN[None], return_weights=True)
    assert weights[0, 0, 1].tolist() == [1.0, 0.0, 0.0]
    assert output[0, 1].tolist() == [23.0, 46.0]


# Identity and permutation


@pytest.mark.question("nyu-1.3c")
@pytest.mark.parametrize("length", [1, 2, 5])
def test_identity_attention_gives_every_token_back(length: int):
    """A hard identity layer returns every token unchanged."""
    layer = identity_attention(length, dim=3, dtype=F64)
    x = 100 * tokens(2, length, 3)
    output, weights = layer(x, return_weights=True)
    assert output.equal(x)
    assert weights.equal(torch.eye(length, dtype=F64).expand(2, 1, length, length))


@pytest.mark.question("nyu-1.3c")
@pytest.mark.parametrize("permutation", list(itertools.permutations(range(4))))
def test_every_permutation_is_self_attention_fixed_points_or_not(permutation):
    """A hard layer computes each of the 24 permutations of four tokens."""
    layer = permutation_attention(permutation, dim=3, dtype=F64)
    x = tokens(2, 4, 3)
    assert layer(x).equal(x[:, list(permutation)])


@pytest.mark.question("nyu-1.3c")
@some
@given(st.permutations(range(5)), st.floats(0.0, 40.0))
def test_at_finite_sharpness_the_error_is_known_exactly(permutation, sharpness):
    """The output of a soft permutation layer equals its formula."""
    layer = permutation_attention(permutation, 3, sharpness=sharpness, dtype=F64)
    x = tokens(2, 5, 3)
    assert_close(layer(x), softened(x, sharpness)[:, permutation], **EXACT)
    _, weights = layer(x, return_weights=True)
    on_target = weights[:, 0, range(5), permutation]
    epsilon = off_target_mass(5, sharpness)
    assert_close(on_target, torch.full((2, 5), 1 - epsilon, dtype=F64), **EXACT)


@pytest.mark.question("nyu-1.3c")
def test_the_weights_of_a_permutation_can_be_read():
    """The four weight matrices of a permutation layer are as on the page."""
    layer = permutation_attention([2, 0, 1], dim=2, sharpness=9.0).attention
    assert layer.scale == 9.0
    # Columns: two for the token, three for the position.
    first, second, third = [0, 0, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1]
    assert layer.key_proj.weight.tolist() == [first, second, third]
    assert layer.query_proj.weight.tolist() == [second, third, first]
    assert layer.value_proj.weight.tolist() == [[1, 0, 0, 0, 0], [0, 1, 0, 0, 0]]
    assert layer.output_proj.weight.tolist() == [[1, 0], [0, 1]]
    assert layer.output_proj.bias is None


def test_the_sharpness_can_sit_in_the_queries_instead_of_the_scale():
    n, c = 5, 3.0
    layer = permutation_attention([3, 1, 4, 0, 2], dim=2, sharpness=c, dtype=F64)
    usual = SelfAttention(
        2, positions=OneHotPositions(n), head_dim=n, value_head_dim=2, bias=False
    ).double()
    usual.load_state_dict(layer.state_dict())
    set_weights(usual, query=c * math.sqrt(n) * layer.attention.query_proj.weight)
    x = tokens(2, n, 2)
    assert usual.attention.scale is None
    assert_close(usual(x), layer(x), **EXACT)


@pytest.mark.question("nyu-1.3c")
@pytest.mark.parametrize("sharpness", [0.0, 5.0, 20.0])
def test_soft_weights_are_never_the_postulated_matrix(sharpness: float):
    """Soft weights are never exactly zero or one."""
    layer = permutation_attention([1, 2, 0], dim=2, sharpness=sharpness, dtype=F64)
    _, weights = layer(tokens(1, 3, 2), return_weights=True)
    assert weights.min() > 0
    assert weights.max() < 1


@pytest.mark.question("nyu-1.3c")
def test_a_permutation_matrix_may_have_ones_on_its_diagonal():
    """A permutation layer may have a fixed point."""
    # The claim: no one stands on the diagonal. Here the last token stays.
    layer = permutation_attention([1, 0, 2], dim=2, dtype=F64)
    x = tokens(1, 3, 2)
    output, weights = layer(x, return_weights=True)
    assert weights[0, 0].tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 1]]
    assert output.equal(x[:, [1, 0, 2]])


@pytest.mark.question("nyu-1.3c")
def test_in_columns_the_same_matrix_is_the_inverse_permutation():
    """With tokens in columns, the same matrix inverts the permutation."""
    A = torch.tensor([[0, 1, 0], [0, 0, 1], [1, 0, 0]], dtype=F64)
    x = tokens(3, 2)
    assert (A @ x).equal(x[[1, 2, 0]])  # tokens in rows
    assert (x.T @ A).equal(x[[2, 0, 1]].T)  # tokens in columns
    assert (x.T @ A.T).equal(x[[1, 2, 0]].T)
    # The layer, whose tokens are rows, has this matrix for the first permutation.
    output, weights = permutation_attention([1, 2, 0], 2, dtype=F64)(
        x[None], return_weights=True
    )
    assert weights[0, 0].equal(A)
    assert output[0].equal(x[[1, 2, 0]])


@pytest.mark.question("nyu-1.3c", "nyu-1.3e")
@pytest.mark.parametrize("offset", [-2, 1, 3])
@pytest.mark.parametrize("start", [0, 1000])
def test_sinusoids_and_one_matrix_shift_sequences_of_any_length(offset, start):
    """With sinusoids, one query matrix shifts sequences of any length."""
    positions = SinusoidalPositions(64, combine="concatenate")
    d, p = 3, 64
    layer = SelfAttention(
        d, positions=positions, head_dim=p, value_head_dim=d, bias=False, scale=5.0
    ).double()
    set_weights(
        layer,
        query=F.pad(positions.shift_matrix(offset), (d, 0)),
        key=F.pad(torch.eye(p), (d, 0)),
        value=F.pad(torch.eye(d), (0, p)),
        output=torch.eye(d),
    )
    for n in (20, 200):
        x = tokens(1, n, d)
        embedded = positions.embeddings(n, start=start).to(x)[None]
        joined = torch.cat([x, embedded], dim=-1)
        _, weights = layer.attention(joined, return_weights=True)
        i = torch.arange(n)
        inside = (i + offset >= 0) & (i + offset < n)
        on_target = weights[0, 0, i[inside], (i + offset)[inside]]
        assert on_target.min() > 0.99
    if start == 0:
        hard_shift = x[:, (i + offset).clamp(0, n - 1)]
        error = (layer(x) - hard_shift).norm(dim=-1)[0, inside]
        assert error.max() < 0.01 * torch.cdist(x, x).max()


@pytest.mark.question("nyu-1.3e")
def test_a_relative_bias_shifts_tokens():
    """A relative bias shifts tokens; past the border it gives their mean."""
    n, offset, c = 6, 1, 8.0
    layer = SelfAttention(3, bias=False, dtype=F64)
    eye = torch.eye(3, dtype=F64)
    set_weights(layer, query=0 * eye, key=eye, value=eye, output=eye)
    i = torch.arange(n)
    bias = c * (i == rearrange(i, "i -> i 1") + offset).to(F64)
    x = tokens(2, n, 3)
    output = layer(x, bias=bias)
    assert_close(output[:, :-1], softened(x, c)[:, 1:], **EXACT)
    # No key is to the right of the last position: it gets the mean of all tokens.
    assert_close(output[:, -1], x.mean(dim=1), **EXACT)


@pytest.mark.question("nyu-1.3c")
@pytest.mark.parametrize("scale", [0.0, 0.1, 1.0, 100.0, math.inf])
def test_equal_queries_and_keys_are_no_identity_when_norms_differ(scale):
    """Equal queries and keys are not an identity if norms differ."""
    eye = torch.eye(2, dtype=F64)
    layer = SelfAttention(2, bias=False, scale=scale, dtype=F64)
    set_weights(layer, query=eye, key=eye, value=eye, output=eye)
    short, long = [1.0, 0.0], [3.0, 0.0]
    output, weights = layer(
        torch.tensor([[short, long]], dtype=F64), return_weights=True
    )
    assert weights[0, 0, 0, 1] >= weights[0, 0, 0, 0]
    assert output[0, 0, 0] >= 2.0


@pytest.mark.question("nyu-1.3c")
def test_equal_queries_and_keys_are_an_identity_when_norms_are_equal():
    """Equal queries and keys are a hard identity for tokens of one norm."""
    layer = SelfAttention(3, bias=False, scale=math.inf, dtype=F64)
    for projection in layer.attention.children():
        nn.init.eye_(projection.weight)
    x = F.normalize(tokens(5, 7, 3), dim=-1)
    assert layer(x).equal(x)


@pytest.mark.question("nyu-1.3c")
@pytest.mark.parametrize("n", [3, 4])
def test_without_positions_no_permutation_but_the_identity_is_possible(n):
    """Without positions, no permutation of three or four tokens is possible."""
    layer = SelfAttention(2, heads=2, dtype=F64)
    for permutation in itertools.permutations(range(n)):
        moved = [i for i in range(n) if permutation[i] != i]
        if not moved:
            continue
        i = moved[0]
        k = next(k for k in range(n) if k not in (i, permutation[i]))
        x = torch.zeros(1, n, 2, dtype=F64)
        x[0, permutation[i]] = 1.0
        wanted = x[0, list(permutation)]
        # Tokens i and k are equal, so their outputs are; the wanted ones are not.
        output = layer(x)[0]
        assert x[0, i].equal(x[0, k])
        assert_close(output[i], output[k], **EXACT)
        assert (wanted[i] - wanted[k]).abs().max() == 1.0


@pytest.mark.question("nyu-1.3c")
@pytest.mark.parametrize("n", [2, 3, 4])
def test_only_the_identity_commutes_with_all_permutations_of_three_or_more(n):
    """For three or more tokens, only the identity commutes with all."""
    every = list(itertools.permutations(range(n)))

    def after(p: tuple[int, ...], q: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(p[q[i]] for i in range(n))

    central = [p for p in every if all(after(p, q) == after(q, p) for q in every)]
    # Two tokens can be swapped, for example by attending to what differs from oneself.
    assert central == (every if n == 2 else [tuple(range(n))])


@pytest.mark.question("nyu-1.3c")
def test_two_tokens_of_one_length_can_be_swapped_without_positions():
    """Two tokens of one norm can be swapped without positions."""
    eye = torch.eye(2, dtype=F64)
    layer = SelfAttention(2, bias=False, scale=math.inf, dtype=F64)
    set_weights(layer, query=-eye, key=eye, value=eye, output=eye)
    x = F.normalize(tokens(5, 2, 2), dim=-1)
    assert layer(x).equal(x.flip(1))


@pytest.mark.question("nyu-1.3c")
@pytest.mark.parametrize("heads", [1, 2, 3])
def test_at_equal_tokens_every_output_depends_on_every_token_alike(heads):
    """At equal tokens, soft heads respond to all tokens alike."""
    # Soft heads without positions. A permutation would depend on one token only.
    n, d = 5, 6
    layer = SelfAttention(d, heads, dtype=F64)
    randomize_biases(layer)
    x = tokens(1, 1, d).expand(1, n, d)
    share = matrices_by_head(layer).sum(dim=0) / n
    assert_close(influence(layer, x), share.expand(n, n, d, d), **EXACT)


@pytest.mark.question("nyu-1.3c")
@pytest.mark.parametrize("scale", [0.7, math.inf])
@pytest.mark.parametrize("heads", [1, 2, 3])
def test_without_positions_two_tokens_are_not_swapped_whatever_they_are(
    heads: int, scale: float
):
    """Without positions, no layer swaps all pairs of tokens."""
    layer = SelfAttention(6, heads, scale=scale, dtype=F64)
    randomize_biases(layer)
    x, step = tokens(1, 6), tokens(1, 6)
    ahead = layer(torch.stack([x, x + step], dim=1))
    behind = layer(torch.stack([x, x - step], dim=1))
    # A swap would make this twice the step, and the identity nothing. But either
    # maps equal tokens to themselves, so that W is the identity matrix: one step.
    W = matrices_by_head(layer).sum(dim=0)
    assert_close(ahead[:, 0] - behind[:, 0], step @ W.T, **EXACT)


@pytest.mark.question("nyu-1.3c")
@pytest.mark.parametrize("sharpness", [0.5, 3.0])
def test_two_soft_heads_are_a_permutation_exactly(sharpness: float):
    """Two soft heads compute a permutation exactly."""
    # A soft head blends x_j with the mean of all; a second head takes the mean off.
    n, d, order = 5, 2, [3, 1, 4, 0, 2]
    blend = n / (math.exp(sharpness) + n - 1)
    mean = torch.full((n, n), 1 / n, dtype=F64)
    soft = (1 - blend) * torch.eye(n, dtype=F64)[order] + blend * mean
    eye = torch.eye(d, dtype=F64)
    matrices = torch.stack([eye, -blend * eye]) / (1 - blend)
    layer = heads_that_weigh(torch.stack([soft, mean]), matrices)
    x = tokens(3, n, d)
    one_head = permutation_attention(order, d, sharpness=sharpness, dtype=F64)
    _, weights = layer(x, return_weights=True)
    assert_close(weights[:, :1], one_head(x, return_weights=True)[1], **EXACT)
    assert_close(layer(x), x[:, order], **EXACT)


def test_off_target_mass_is_what_the_formula_says():
    assert off_target_mass(7, 2.0) == pytest.approx(6 / (math.e**2 + 6), rel=1e-14)
    assert off_target_mass(7, 0.0) == pytest.approx(6 / 7, rel=1e-14)
    assert off_target_mass(1, 3.0) == 0.0
    assert off_target_mass(7, math.inf) == 0.0
    assert off_target_mass(7, 5000.0) == 0.0


@some
@given(st.integers(2, 1000), st.floats(1e-12, 0.4))
def test_a_sharpness_can_be_chosen_for_a_wanted_mass(n: int, epsilon: float):
    sharpness = math.log((n - 1) * (1 - epsilon) / epsilon)
    assert off_target_mass(n, sharpness) == pytest.approx(epsilon, rel=1e-9)


# Position-wise linear layers


@pytest.mark.question("nyu-1.3d")
def test_a_position_wise_linear_layer_is_a_convolution_of_kernel_size_one():
    """The layer equals nn.Linear, and nn.Conv1d with kernel size one."""
    linear = nn.Linear(3, 5, dtype=F64)
    convolution = nn.Conv1d(3, 5, kernel_size=1, dtype=F64)
    with torch.no_grad():
        convolution.weight.copy_(linear.weight[..., None])
        convolution.bias.copy_(linear.bias)
    layer = pointwise_linear_attention(linear.weight, linear.bias, length=7)
    x = tokens(2, 7, 3)
    assert_close(layer(x), linear(x), **EXACT)
    assert_close(layer(x), convolution(x.mT).mT, **EXACT)


@pytest.mark.question("nyu-1.3d")
def test_the_position_wise_linear_layer_attends_to_itself_and_maps_by_its_values():
    """Its attention matrix is the identity, and the map is in the values."""
    W = tokens(5, 3)
    layer = pointwise_linear_attention(W, length=7)
    _, weights = layer(tokens(1, 7, 3), return_weights=True)
    assert weights[0, 0].equal(torch.eye(7, dtype=F64))
    assert layer.attention.value_proj.weight[:, :3].equal(W)
    assert not layer.attention.value_proj.weight[:, 3:].any()
    assert layer.attention.output_proj.weight.equal(torch.eye(5, dtype=F64))


@pytest.mark.question("nyu-1.3d")
def test_a_position_wise_linear_layer_mixes_no_positions_but_a_kernel_of_three_does():
    """It mixes no positions; a kernel of three does."""
    x = tokens(1, 5, 2)
    W = tokens(3, 2)
    layer = pointwise_linear_attention(W, length=5)
    box = convolution_attention(W[..., None].expand(3, 2, 3) / 3, length=5)
    eye = torch.eye(5, dtype=F64)
    assert_close(influence(layer, x), eye[..., None, None] * W, **EXACT)
    neighbors = influence(box, x)[range(4), range(1, 5)]
    assert_close(neighbors, (W / 3).expand(4, 3, 2), **EXACT)


@pytest.mark.question("nyu-1.3d")
def test_self_attention_has_as_many_outputs_as_inputs():
    """Five tokens give five outputs; the ends depend on the padding."""
    # A 3 × 5 matrix, one row per full window, is a part of what self-attention does.
    x, kernel = tokens(1, 5, 2), torch.eye(2, dtype=F64)[..., None].expand(2, 2, 3) / 3
    full_windows = F.conv1d(x.mT, kernel).mT
    assert full_windows.shape[1] == 3
    outputs = {
        mode: convolution_attention(kernel, length=5, padding_mode=mode)(x)
        for mode in ("zeros", "replicate")
    }
    for output in outputs.values():
        assert output.shape[1] == 5
        assert_close(output[:, 1:-1], full_windows, **EXACT)
    # The first and the last output depend on what lies beyond the border.
    ends = (outputs["zeros"] - outputs["replicate"])[:, [0, -1]]
    assert_close(ends, -x[:, [0, -1]] / 3, **EXACT)


@pytest.mark.parametrize("length", [1, 4, 7])
@pytest.mark.parametrize("sharpness", [0.0, 2.5, math.inf])
def test_linear_and_identity_layers_soften_the_tokens_given(length, sharpness):
    weight, bias = tokens(5, 3), tokens(5)
    layer = pointwise_linear_attention(weight, bias, length=7, sharpness=sharpness)
    identity = identity_attention(7, 3, sharpness=sharpness, dtype=F64)
    x = tokens(2, length, 3)
    soft = softened(x, sharpness)
    assert_close(layer(x), F.linear(soft, weight, bias), **EXACT)
    assert_close(identity(x), soft, **EXACT)


# Convolutions


@pytest.mark.question("nyu-1.3e")
@pytest.mark.parametrize("taps", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("dilation", [1, 2, 3])
@pytest.mark.parametrize("padding_mode", ["zeros", "replicate"])
def test_one_head_per_tap_makes_any_convolution(taps: int, dilation: int, padding_mode):
    """One head per tap equals PyTorch's convolution, for both paddings."""
    weight, bias = tokens(5, 3, taps), tokens(5)
    options = {"padding_mode": padding_mode, "dilation": dilation}
    for length in (1, 2, 7):  # a kernel may be wider than the sequence
        x = tokens(2, length, 3)
        wanted = convolved(x, weight, bias, **options)
        layer = convolution_attention(weight, bias, length=length, **options)
        assert_close(layer(x), wanted, **EXACT)
        if padding_mode == "zeros":  # its layers take shorter sequences, too
            longer = convolution_attention(weight, bias, length=9, **options)
            assert_close(longer(x), wanted, **EXACT)


@pytest.mark.question("nyu-1.3e")
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("taps", [1, 2, 3, 4, 5])
def test_zeros_around_the_sequence_give_pytorchs_same_padding(taps: int):
    """With zeros around the sequence it equals padding='same' of PyTorch."""
    peer = nn.Conv1d(3, 5, taps, padding="same", dtype=F64)
    layer = convolution_attention(peer.weight, peer.bias, length=7)
    x = tokens(2, 7, 3)
    assert_close(layer(x), peer(x.mT).mT, **EXACT)


@pytest.mark.question("nyu-1.3e")
@pytest.mark.parametrize("taps", [2, 3])
@pytest.mark.parametrize("sharpness", [0.0, 2.0, 12.0])
def test_at_finite_sharpness_softened_tokens_are_convolved(taps, sharpness):
    """Soft heads convolve softened tokens."""
    weight, bias, x = tokens(5, 3, taps), tokens(5), tokens(2, 7, 3)
    soft = softened(x, sharpness)
    layer = convolution_attention(
        weight, bias, length=7, padding_mode="replicate", sharpness=sharpness
    )
    wanted = convolved(soft, weight, bias, padding_mode="replicate")
    assert_close(layer(x), wanted, **EXACT)

    # With zeros around it, it is the padded sequence that is softened.
    span = taps - 1
    padded = F.pad(x, (0, 0, span // 2, span - span // 2))
    soft = rearrange(softened(padded, sharpness), "b n d -> b d n")
    layer = convolution_attention(weight, bias, length=7, sharpness=sharpness)
    wanted = rearrange(F.conv1d(soft, weight, bias), "b out n -> b n out")
    assert_close(layer(x), wanted, **EXACT)


@pytest.mark.question("nyu-1.3e")
@pytest.mark.parametrize(
    ("padding_mode", "wanted"),
    [  # With zeros, positions are counted from the zero token before the sequence.
        ("zeros", [[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5]]),
        ("replicate", [[0, 0, 1, 2], [0, 1, 2, 3], [1, 2, 3, 3]]),
    ],
)
def test_each_head_attends_to_the_position_of_its_tap(padding_mode, wanted):
    """Each head attends to the position of its tap."""
    kernel = torch.ones(1, 1, 3)
    layer = convolution_attention(kernel, length=4, padding_mode=padding_mode)
    _, weights = layer(torch.randn(1, 4, 1), return_weights=True)
    assert weights.argmax(dim=-1)[0].tolist() == wanted


@pytest.mark.question("nyu-1.3e")
def test_equal_weights_in_a_window_are_an_average_and_nothing_more():
    """Equal weights in a window are average pooling."""
    # The claimed matrix, made square: one head, thirds within and halves at the ends.
    n = 5
    layer = SelfAttention(2, bias=False, dtype=F64)
    for projection in layer.attention.children():
        nn.init.eye_(projection.weight)
    nn.init.zeros_(layer.attention.query_proj.weight)
    position = torch.arange(n)
    window = (position - rearrange(position, "i -> i 1")).abs() <= 1
    x = tokens(3, n, 2)
    output, weights = layer(x, mask=window, return_weights=True)
    pooled = F.avg_pool1d(x.mT, 3, stride=1, padding=1, count_include_pad=False)
    assert_close(output, pooled.mT, **EXACT)
    assert_close(weights[0, 0, 1:-1][window[1:-1]], torch.full((9,), 1 / 3).double())


@pytest.mark.question("nyu-1.3e")
def test_a_band_of_thirds_comes_from_positions_and_not_from_tokens():
    """A band of thirds needs positions, and is a limit of soft heads."""
    # Two equal tokens with different neighbors: an average would tell them apart.
    n = 5
    x = torch.tensor([1.0, 4.0, 1.0, 9.0, 9.0], dtype=F64)[None, :, None]
    band = torch.full((1, 1, 3), 1 / 3, dtype=F64)
    wanted = convolved(x, band, padding_mode="replicate")
    assert wanted[0, 0] != wanted[0, 2]
    blind = SelfAttention(1, heads=3, head_dim=4, dtype=F64)
    output = blind(x)
    assert_close(output[0, 0], output[0, 2], **EXACT)

    # With positions, scores of c within the window and zero elsewhere tend to the band.
    i = torch.arange(n)
    window = (i - rearrange(i, "i -> i 1")).abs() <= 1
    errors = []
    for c in (2.0, 8.0, 32.0):
        powers = torch.where(window, math.exp(c), 1.0)
        weights = (powers / powers.sum(dim=1, keepdim=True)).double()[None]
        layer = heads_that_weigh(weights, torch.ones(1, 1, 1, dtype=F64))
        errors.append((layer(x) - wanted)[0, 1:-1].abs().max().item())
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-6


@pytest.mark.question("nyu-1.3e")
@pytest.mark.parametrize("taps", [2, 3, 5])
@pytest.mark.parametrize("sharpness", [0.5, 3.0])
def test_softness_scales_a_convolution_and_adds_a_constant(taps, sharpness):
    """Softness scales a convolution and adds a constant row."""
    n = 7
    weight, x = tokens(5, 3, taps), tokens(2, n, 3)
    options = {"length": n, "padding_mode": "replicate"}
    soft = convolution_attention(weight, sharpness=sharpness, **options)(x)
    exact = convolved(x, weight, padding_mode="replicate")
    kappa = n / (math.exp(sharpness) + n - 1)
    mean = x.mean(dim=1, keepdim=True)
    constant = mean @ weight.sum(dim=-1).T
    assert_close(soft, (1 - kappa) * exact + kappa * constant, **EXACT)

    # One more head, which attends uniformly, takes the constant off.
    i = torch.arange(n)
    shifts = rearrange(torch.arange(taps) - (taps - 1) // 2, "t -> t 1")
    eye = torch.eye(n, dtype=F64)
    tables = eye[(i + shifts).clamp(0, n - 1)]
    tables = (1 - kappa) * tables + kappa / n
    uniform = torch.full((1, n, n), 1 / n, dtype=F64)
    by_tap = rearrange(weight, "out d tap -> tap out d")
    extra = -kappa * by_tap.sum(dim=0, keepdim=True)
    layer = heads_that_weigh(
        torch.cat([tables, uniform]), torch.cat([by_tap, extra]) / (1 - kappa)
    )
    assert_close(layer(x), exact, rtol=0.0, atol=1e-11)


@pytest.mark.question("nyu-1.3e")
@some
@given(st.integers(0, 10**6), st.booleans())
def test_one_head_never_makes_taps_of_both_signs(seed: int, hard: bool):
    """One head never has taps of both signs."""
    torch.manual_seed(seed)
    scale = math.inf if hard else None
    layer = SelfAttention(
        1, positions=OneHotPositions(5), head_dim=3, scale=scale, dtype=F64
    )
    # An impulse of height λ at j gives A_ij w λ at i, where w = W_v W_o,
    # and a bounded amount from positions and biases. So all taps have the sign of w.
    height = 1e9
    impulses = height * torch.eye(5, dtype=F64)[..., None]
    taps = layer(impulses) / height
    assert taps.min() >= -1e-6 or taps.max() <= 1e-6
    difference = torch.tensor([[[-1.0, 0.0, 1.0]]], dtype=F64)
    wanted = convolved(impulses, difference) / height
    assert (wanted.min(), wanted.max()) == (-1.0, 1.0)


@pytest.mark.question("nyu-1.3e", "eecs-2d")
def test_one_head_cannot_give_the_left_and_the_right_neighbor_but_two_can():
    """Two heads separate the neighbors; one head cannot."""
    # Scalar tokens, two outputs: W₁ = (1, 0) for the left, W₂ = (0, 1) for the right.
    weight = torch.tensor([[[1.0, 0.0, 0.0]], [[0.0, 0.0, 1.0]]], dtype=F64)
    x = 1e9 * tokens(7, 5, 1)

    def directions(output: Tensor) -> int:
        rows = rearrange(output, "b n out -> (b n) out")
        return int(torch.linalg.matrix_rank(rows, rtol=1e-6))

    assert directions(convolved(x, weight)) == 2
    for _ in range(5):
        # One head gives multiples of one vector, W_v W_o; positions and biases add
        # what does not grow with the tokens.
        layer = SelfAttention(
            1, positions=OneHotPositions(5), head_dim=3, output_dim=2, dtype=F64
        )
        assert directions(layer(x)) == 1
    two_heads = convolution_attention(weight[..., ::2], length=5, dilation=2)
    assert isinstance(two_heads, ZeroPaddedSelfAttention)
    assert two_heads.inner.attention.heads == 2
    assert two_heads(x).equal(convolved(x, weight))


@pytest.mark.question("nyu-1.3e")
@pytest.mark.parametrize("heads", [1, 2, 3])
def test_a_convolution_needs_as_many_heads_as_the_rank_of_its_taps(heads: int):
    """Taps of heads that attend by position have rank at most their number."""
    n, d, out = 7, 2, 3

    def tap_rank(layer: nn.Module) -> int:
        by_pair = rearrange(
            influence(layer, tokens(1, n, d)), "i j out d -> (i j) (out d)"
        )
        return int(torch.linalg.matrix_rank(by_pair, rtol=1e-10))

    layer = SelfAttention(
        d, heads, positions=OneHotPositions(n), head_dim=4, output_dim=out, dtype=F64
    )
    with torch.no_grad():  # heads that attend by position, whatever the tokens
        layer.attention.query_proj.weight[:, :d] = 0.0
        layer.attention.key_proj.weight[:, :d] = 0.0
    assert tap_rank(layer) == heads
    kernel = tokens(out, d, 3)
    assert tap_rank(convolution_attention(kernel, length=n)) == 3


@pytest.mark.question("nyu-1.3e")
@pytest.mark.parametrize("heads", [1, 2])
def test_heads_that_see_contents_have_no_more_taps_than_heads(heads: int):
    """Heads that use content have taps of no higher rank."""
    n, d, out, here, height = 7, 2, 3, 3, 1e9
    layer = SelfAttention(
        d, heads, positions=OneHotPositions(n), head_dim=4, output_dim=out, dtype=F64
    )
    # Large tokens in two directions close to each other, at one position at a time.
    directions = tokens(d, 1) + 1e-3 * torch.eye(d, dtype=F64)
    taps = []
    for position in range(n):
        x = torch.zeros(d, n, d, dtype=F64)
        x[:, position] = height * directions.T
        answers = layer(x)[:, here].T / height
        taps.append((answers @ torch.linalg.inv(directions)).flatten())
    rank = torch.linalg.matrix_rank(torch.stack(taps), atol=1e-3)
    assert 0 < rank <= heads


@pytest.mark.question("nyu-1.3e")
def test_one_soft_head_more_than_the_rank_is_enough_away_from_the_border():
    """Two soft heads make the kernel (-1, 2, -1), away from the border."""
    # The taps (-1, 2, -1) have rank one: 6 × (1/6, 4/6, 1/6) - 6 × (1/3, 1/3, 1/3).
    n = 7
    offsets = torch.arange(n) - rearrange(torch.arange(n), "i -> i 1")
    weights = torch.full((2, n, n), math.exp(-60.0), dtype=F64)
    for head, taps in enumerate([(1 / 6, 4 / 6, 1 / 6), (1 / 3, 1 / 3, 1 / 3)]):
        for offset, tap in zip((-1, 0, 1), taps, strict=True):
            weights[head, offsets == offset] = tap
    layer = heads_that_weigh(weights, torch.tensor([[[6.0]], [[-6.0]]], dtype=F64))
    x = tokens(2, n, 1)
    wanted = convolved(x, torch.tensor([[[-1.0, 2.0, -1.0]]], dtype=F64))
    assert_close(layer(x)[:, 1:-1], wanted[:, 1:-1], **EXACT)


@pytest.mark.question("nyu-1.3e")
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_one_soft_head_more_than_the_rank_is_exact_up_to_the_border(rank: int):
    """R + 1 soft heads are exact with replicate padding."""
    n, d, out, taps = 7, 2, 3, 5
    columns, matrices = tokens(rank, taps), tokens(rank, out, d)
    kernel = einsum(columns, matrices, "r tap, r out d -> out d tap")
    assert torch.linalg.matrix_rank(rearrange(kernel, "o d tap -> (o d) tap")) == rank

    # Beyond the border lies the nearest token, so all rows of a table have one sum.
    shifts = rearrange(torch.arange(taps) - 2, "t -> t 1")
    targets = (torch.arange(n) + shifts).clamp(0, n - 1)
    tables = einsum(
        columns, torch.eye(n, dtype=F64)[targets], "r tap, tap i j -> r i j"
    )
    # Head r: a little of its table on uniform weights. The last head: these alone.
    little = 0.01
    ground = (1 - little * tables.sum(dim=-1, keepdim=True)) / n
    weights = torch.cat([ground + little * tables, torch.full((1, n, n), 1 / n)])
    taken_off = n * einsum(ground[:, 0, 0], matrices, "r, r out d -> out d")
    layer = heads_that_weigh(weights, torch.cat([matrices, -taken_off[None]]) / little)
    x = tokens(3, n, d)
    output, found = layer(x, return_weights=True)
    assert found.min() > 0.05
    wanted = convolved(x, kernel, padding_mode="replicate")
    assert_close(output, wanted, rtol=0.0, atol=1e-10)


def test_padding_is_around_the_inner_layer():
    inner = SelfAttention(6, heads=2, output_dim=5, dtype=F64)
    layer = ZeroPaddedSelfAttention(inner, before=1, after=3)
    x = tokens(2, 7, 6)
    zeros = x.new_zeros(2, 3, 6)
    padded = torch.cat([zeros[:, :1], x, zeros], dim=1)
    wanted, wanted_weights = inner(padded, return_weights=True)
    output, weights = layer(x, return_weights=True)
    assert_close(output, wanted[:, 1:8], **EXACT)
    assert_close(weights, wanted_weights[:, :, 1:8], **EXACT)
    assert_close(layer(x), output, **EXACT)


# Of all of them


def built_layers(**options: float) -> dict[str, nn.Module]:
    """Layers for sequences of seven tokens of width three."""
    torch.manual_seed(1)
    weight, bias = tokens(5, 3), tokens(5)
    kernel = tokens(5, 3, 2)
    return {
        "identity": identity_attention(7, 3, dtype=F64, **options),
        "permutation": permutation_attention(
            [6, 1, 0, 2, 5, 4, 3], 3, dtype=F64, **options
        ),
        "pointwise": pointwise_linear_attention(weight, bias, length=7, **options),
        "zeros": convolution_attention(kernel, bias, length=7, **options),
        "replicate": convolution_attention(
            kernel, bias, length=7, padding_mode="replicate", **options
        ),
    }


BUILT = tuple(built_layers())


@pytest.mark.parametrize("name", BUILT)
def test_the_exact_layer_is_the_limit_of_sharp_ones(name: str):
    x = tokens(2, 7, 3)
    wanted = built_layers()[name](x)
    errors = [
        (built_layers(sharpness=c)[name](x) - wanted).abs().max().item()
        for c in (2.0, 10.0, 45.0)
    ]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-12


@pytest.mark.parametrize("name", BUILT)
def test_all_weights_of_a_soft_layer_can_be_trained(name):
    layer = built_layers(sharpness=3.0)[name]
    layer(tokens(2, 7, 3)).square().sum().backward()
    for parameter in layer.parameters():
        assert parameter.grad.isfinite().all()
        assert parameter.grad.any()


def test_a_built_layer_copies_the_weights_it_is_given():
    linear = nn.Linear(3, 5, dtype=F64)
    x = tokens(2, 7, 3)
    layer = pointwise_linear_attention(linear.weight, linear.bias, length=7)
    before = layer(x).detach().clone()
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    assert layer(x).equal(before)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_hard_layers_are_exact_in_every_precision(dtype: torch.dtype):
    x = torch.randn(2, 5, 3).to(dtype)
    order = [4, 2, 0, 1, 3]
    layer = permutation_attention(torch.tensor(order), 3, dtype=dtype)
    assert layer(x).equal(x[:, order])
    weight = torch.tensor([[[1.0, 0.0, 0.0]], [[0.0, 0.0, 1.0]]], dtype=dtype)
    shifts = convolution_attention(weight, length=5)
    assert shifts(x[..., :1]).equal(convolved(x[..., :1], weight))


@pytest.mark.unhooked
@pytest.mark.parametrize("name", ["positions", "permutation", "zeros"])
def test_layers_compile_in_one_piece(name: str):
    layers = built_layers(sharpness=2.0) | {
        "positions": SelfAttention(3, positions=OneHotPositions(11), dtype=F64),
    }
    layer = layers[name].eval()
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    x = tokens(2, 7, 3)
    assert_close(compiled(x), layer(x), **EXACT)


@pytest.mark.unhooked
def test_layers_are_exported_for_any_batch_and_length():
    layer = SelfAttention(6, 2, positions=OneHotPositions(13), dtype=F64).eval()
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length", max=13)
    exported = torch.export.export(
        layer, (tokens(3, 5, 6),), dynamic_shapes={"x": {0: batch, 1: length}},
        strict=True,
    )  # fmt: skip
    for x in (tokens(2, 11, 6), tokens(7, 13, 6)):
        assert_close(exported.module()(x), layer(x), **EXACT)


def test_a_target_past_the_end_would_silently_give_the_mean():
    layer = permutation_attention([4, 3, 2, 1, 0], dim=3, dtype=F64)
    layer.positions = OneHotPositions(5)  # which allows shorter sequences
    x = tokens(2, 4, 3)
    assert_close(layer(x)[:, 0], x.mean(dim=1), **EXACT)


# Malformed calls

KERNEL, WEIGHT = torch.ones(5, 3, 2), torch.ones(5, 3)
REVERSE = [4, 3, 2, 1, 0]


@pytest.mark.unhooked
@bad_calls(
    ("no width", lambda: SelfAttention(0),
     ValueError, "dim must be a positive integer, got 0."),
    ("heads that do not divide the width", lambda: SelfAttention(7, 2),
     ValueError, "dim must be divisible by heads, got dim 7 and 2 heads; head_dim"),
    ("positions of another width",
     lambda: SelfAttention(6, positions=SinusoidalPositions(4)),
     ValueError, "positions must be 6 wide to be added, got 4."),
    ("a layer for positions", lambda: SelfAttention(6, positions=nn.Linear(6, 6)),
     TypeError, "positions must be of type PositionalEncoding, got Linear."),
    ("tokens without a batch", lambda: SelfAttention(6)(torch.ones(5, 6)),
     ValueError, "x must be (b, n, 6), got shape (5, 6)."),
    ("too many tokens", lambda: identity_attention(5, 3)(torch.ones(2, 6, 3)),
     ValueError, "embeddings for 5 positions, but positions up to 6"),
    ("fewer tokens than a permutation has",
     lambda: permutation_attention(REVERSE, 3)(torch.ones(2, 4, 3)),
     ValueError, "there must be 5 tokens exactly, got 4."),
    ("more tokens than replicate padding is for",
     lambda: convolution_attention(KERNEL, length=5, padding_mode="replicate")(
         torch.ones(2, 6, 3)),
     ValueError, "there must be 5 tokens exactly, got 6."),
    ("negative padding",
     lambda: ZeroPaddedSelfAttention(SelfAttention(6), before=-1, after=2),
     ValueError, "before must be a nonnegative integer, got -1."),
    ("a mass over no tokens", lambda: off_target_mass(0, 1.0),
     ValueError, "length must be a positive integer, got 0."),
    ("NaN for a sharpness", lambda: off_target_mass(5, math.nan),
     ValueError, "sharpness must be zero or greater, got nan."),
    ("a negative sharpness", lambda: identity_attention(5, 3, sharpness=-2.0),
     ValueError, "sharpness must be zero or greater, got -2.0."),
    ("an identity without width", lambda: identity_attention(5, 0),
     ValueError, "dim must be a positive integer, got 0."),
    ("a token taken twice", lambda: permutation_attention([0, 1, 1], 3),
     ValueError, "once, got [0, 1, 1]."),
    ("a permutation of nothing", lambda: permutation_attention([], 3),
     ValueError, "length must be a positive integer, got 0."),
    ("a permutation of floats", lambda: permutation_attention([1.0, 0.0], 3),
     TypeError, "permutation must be a tensor of integers, got torch.float32."),
    ("a permutation of booleans", lambda: permutation_attention([True, False], 3),
     TypeError, "permutation must be a tensor of integers, got torch.bool."),
    ("a matrix", lambda: permutation_attention(torch.tensor([[1, 0]]), 3),
     ValueError, "permutation must be (n,), got shape (1, 2)."),
    ("a bias of another dtype",
     lambda: pointwise_linear_attention(WEIGHT, torch.ones(5).double(), length=7),
     TypeError, "weight and bias must have one dtype, got torch.float32 and torch.f"),
    ("a bias of another width",
     lambda: convolution_attention(KERNEL, torch.ones(2), length=7),
     ValueError, "bias must be (5,), got shape (2,)."),
    ("no taps", lambda: convolution_attention(torch.ones(5, 3, 0), length=7),
     ValueError, "taps must be a positive integer, got 0."),
    ("no dilation", lambda: convolution_attention(KERNEL, length=7, dilation=0),
     ValueError, "dilation must be a positive integer, got 0."),
    ("another padding",
     lambda: convolution_attention(KERNEL, length=7, padding_mode="reflect"),
     ValueError, "padding_mode must be one of … got 'reflect'."),
)  # fmt: skip
def test_malformed_calls_get_clear_errors(call, error, message):
    assert_refused(call, error, message)
