"""Reading a model: what probes say, and that they leave no trace."""

import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.decomposition import PCA
from torch import Tensor, nn

from transformers_hw.attention_as_convolution import PictureBert
from transformers_hw.multi_head_attention import MultiHeadAttention
from transformers_hw.probes import (
    attention_distance,
    attention_rollout,
    capture_weights,
    patch_filters,
    position_similarity,
)
from transformers_hw.self_attention import SelfAttention, ZeroPaddedSelfAttention
from transformers_hw.transformer import DecoderCache, Encoder, Transformer
from transformers_hw.vision_transformer import (
    LearnedAxes2D,
    PatchEmbedding,
    VisionTransformer,
)

DOUBLE = {"dtype": torch.float64}


def assert_same(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0.0, atol=1e-10)


def encoder(**options: Any) -> Encoder:
    return Encoder(12, 3, 17, 2, **DOUBLE, **options)


def listeners(model: nn.Module) -> int:
    return sum(
        len(part._forward_hooks) + len(part._forward_pre_hooks)
        for part in model.modules()
    )


# capture_weights


def test_captured_weights_are_the_softmax_of_the_scores() -> None:
    model, x = encoder(), torch.randn(2, 5, 12, **DOUBLE)
    with capture_weights(model) as weights:
        model(x)
    assert list(weights) == ["layers.0.attention", "layers.1.attention"]
    first = model.layers[0]
    normed = F.layer_norm(x, (12,), eps=1e-5)
    projections = (first.attention.query_proj, first.attention.key_proj)
    query, key = (p(normed).view(2, 5, 3, 4).transpose(1, 2) for p in projections)
    expected = (query @ key.mT / math.sqrt(4)).softmax(dim=-1)
    assert len(weights["layers.0.attention"]) == 1
    assert_same(weights["layers.0.attention"][0], expected)
    assert expected.std() > 0.01


def test_the_model_computes_what_it_always_does() -> None:
    model, x = encoder(dropout=0.9).eval(), torch.randn(2, 5, 12, **DOUBLE)
    x.requires_grad_()
    y = model(x, causal=True)
    gradient = torch.autograd.grad(y.square().sum(), x)[0]
    with capture_weights(model) as weights:
        assert_same(model(x, causal=True), y)
        assert_same(
            torch.autograd.grad(model(x, causal=True).square().sum(), x)[0], gradient
        )
    assert [len(calls) for calls in weights.values()] == [2, 2]
    for calls in weights.values():
        assert_same(calls[0], calls[0].tril())
        assert not calls[0].requires_grad


def test_a_layer_gives_weights_to_those_alone_who_ask() -> None:
    layer, x = MultiHeadAttention(12, 3, **DOUBLE), torch.randn(2, 5, 12, **DOUBLE)
    with capture_weights(layer) as weights:
        assert layer(x)[1] is None
        asked = layer(x, return_weights=True)[1]
    assert list(weights) == [""]
    assert len(weights[""]) == 2
    assert torch.equal(weights[""][1], asked)
    assert layer(x)[1] is None


def test_nothing_listens_after_the_block() -> None:
    model, x = encoder(), torch.randn(2, 5, 12, **DOUBLE)
    state = set(vars(model.layers[0].attention))
    with capture_weights(model) as weights:
        model(x)
        assert listeners(model) == 4
    model(x)
    assert listeners(model) == 0
    assert [len(calls) for calls in weights.values()] == [1, 1]
    assert set(vars(model.layers[0].attention)) == state
    assert not any("weights" in name for part in model.modules() for name in vars(part))


def test_nothing_listens_after_an_error() -> None:
    model = encoder()
    with pytest.raises(ZeroDivisionError), capture_weights(model):
        _ = 1 / 0
    assert listeners(model) == 0


def test_an_error_inside_the_model_does_not_mix_up_later_calls() -> None:
    layer, x = MultiHeadAttention(12, 3, **DOUBLE), torch.randn(2, 5, 12, **DOUBLE)
    with capture_weights(layer) as weights:
        with pytest.raises((ValueError, TypeError)):
            layer(x[..., :7], return_weights=True)
        assert layer(x)[1] is None
    assert len(weights[""]) == 1
    assert listeners(layer) == 0


def test_captures_can_be_nested() -> None:
    model, x = encoder(), torch.randn(2, 5, 12, **DOUBLE)
    with capture_weights(model) as outer:
        model(x)
        with capture_weights(model.layers[1]) as inner:
            y = model(2 * x)
        model(3 * x)
    assert [len(calls) for calls in outer.values()] == [3, 3]
    assert list(inner) == ["attention"]
    assert torch.equal(inner["attention"][0], outer["layers.1.attention"][1])
    assert_same(y, model(2 * x))


def test_a_shared_layer_is_heard_at_each_call() -> None:
    layer = MultiHeadAttention(12, 3, **DOUBLE)
    model, x = nn.ModuleList([layer, layer]), torch.randn(2, 5, 12, **DOUBLE)
    with capture_weights(model) as weights:
        model[1](model[0](x)[0])
    assert [(name, len(calls)) for name, calls in weights.items()] == [("0", 2)]


def test_steps_of_decoding_are_rows_of_the_whole() -> None:
    model = Transformer(11, dim=12, heads=3, hidden_dim=17, depth=2, **DOUBLE).eval()
    source, target = torch.randint(1, 11, (2, 7)), torch.randint(1, 11, (2, 5))
    with capture_weights(model) as whole:
        model(source, target)
    memory, cache = model.encode(source), DecoderCache(2)
    with torch.no_grad(), capture_weights(model) as steps:
        for t in range(5):
            model.decode(target[:, t : t + 1], memory, source, cache=cache)
    for layer in (0, 1):
        crossed = f"decoder.layers.{layer}.cross_attention"
        assert whole[crossed][0].shape == (2, 3, 5, 7)
        assert_same(torch.cat(steps[crossed], dim=2), whole[crossed][0])
        own = f"decoder.layers.{layer}.self_attention"
        for t, row in enumerate(steps[own]):
            assert_same(row[:, :, 0], whole[own][0][:, :, t, : t + 1])
    assert sum("encoder" in name for name in whole) == 2
    assert not any("encoder" in name for name in steps)


@pytest.mark.parametrize("pool", ["class", "mean"])
def test_a_vision_transformer_is_heard_in_every_layer(pool: Any) -> None:
    sizes = {"classes": 7, "dim": 12, "depth": 3, "heads": 2, "channels": 1}
    model = VisionTransformer((4, 6), 2, pool=pool, **sizes, **DOUBLE)
    x = torch.randn(5, 1, 4, 6, **DOUBLE)
    with capture_weights(model) as weights:
        tokens = model.encode(x)
        logits = model(x)
    n = 6 + (pool == "class")
    assert list(weights) == [f"encoder.layers.{i}.attention" for i in range(3)]
    for whole, _ in weights.values():
        assert whole.shape == (5, 2, n, n)
        assert_same(whole.sum(dim=-1), torch.ones(5, 2, n, **DOUBLE))
    for whole, again in list(weights.values())[:-1]:
        assert_same(again, whole)
    # For the logits, only what the head sees has to ask in the last layer.
    whole, asked = weights["encoder.layers.2.attention"]
    assert_same(asked, whole[:, :, :1] if pool == "class" else whole)
    assert_same(model.encode(x), tokens)
    assert_same(model(x), logits)


@pytest.mark.parametrize("encoding", ["gaussian", "learned", "learned+content"])
def test_attention_over_pictures_is_heard(encoding: Any) -> None:
    sizes = {"dim": 8, "depth": 2, "heads": 3, "hidden_dim": 11}
    model = PictureBert(encoding=encoding, **sizes, **DOUBLE).eval()
    x = torch.randn(5, 3, 4, 6, **DOUBLE)
    with capture_weights(model) as weights:
        logits = model(x)
    assert len(weights) == 2
    for (layer,) in weights.values():
        assert layer.shape[-5:] == (3, 2, 3, 2, 3)
        total = layer.sum(dim=(-2, -1))
        assert_same(total, torch.ones_like(total))
    assert_same(model(x), logits)


def test_of_layers_within_layers_the_innermost_are_heard() -> None:
    """Each weight is heard once, and named after the layer that forms it."""
    layer = ZeroPaddedSelfAttention(SelfAttention(12, 3, **DOUBLE), before=1, after=1)
    with capture_weights(layer) as weights:
        output, none = layer(torch.randn(2, 5, 12, **DOUBLE))
    assert none is None
    assert output.shape == (2, 5, 12)
    (name, (heard,)) = next(iter(weights.items()))
    assert (len(weights), name) == (1, "inner.attention")
    assert heard.shape == (2, 3, 7, 7)


# attention_rollout


def test_rollout_matches_a_hand_computation() -> None:
    """Two tokens, two heads, two layers, in fractions on paper."""
    one = torch.tensor([[[1.0, 0.0], [1.0, 0.0]], [[0.0, 1.0], [1.0, 0.0]]], **DOUBLE)
    two = torch.tensor([[[0.5, 0.5], [0.0, 1.0]], [[0.5, 0.5], [1.0, 0.0]]], **DOUBLE)
    # Means over heads: [[1/2, 1/2], [1, 0]] and [[1/2, 1/2], [1/2, 1/2]]; half of
    # that and half of the identity: [[3/4, 1/4], [1/2, 1/2]], [[3/4, 1/4], [1/4, 3/4]].
    expected = torch.tensor([[11 / 16, 5 / 16], [9 / 16, 7 / 16]], **DOUBLE)
    assert_same(attention_rollout([one[None], two[None]])[0], expected)


def test_rollout_adds_the_identity_and_renormalises_rows() -> None:
    layers = [torch.rand(2, heads, 5, 5, **DOUBLE) for heads in (3, 4, 3)]
    expected = torch.eye(5, **DOUBLE).expand(2, 5, 5).clone()
    for layer in layers:
        step = torch.zeros(2, 5, 5, **DOUBLE)
        for b, q in itertools.product(range(2), range(5)):
            row = layer[b, :, q].mean(dim=0)
            row[q] += 1.0
            step[b, q] = row / row.sum()
        expected = torch.bmm(step, expected)
    rollout = attention_rollout(layers)
    assert_same(rollout, expected)
    assert_same(rollout.sum(dim=-1), torch.ones(2, 5, **DOUBLE))


def test_rollout_of_layers_that_see_nothing_stays_at_home() -> None:
    blind = torch.zeros(2, 3, 5, 5, **DOUBLE)
    assert_same(
        attention_rollout([blind, blind]), torch.eye(5, **DOUBLE).expand(2, 5, 5)
    )


def test_rollout_takes_captured_weights() -> None:
    model, x = encoder(), torch.randn(2, 5, 12, **DOUBLE)
    with capture_weights(model) as weights:
        model(x, causal=True)
    rollout = attention_rollout([calls[0] for calls in weights.values()])
    assert_same(rollout, rollout.tril())
    assert_same(rollout[:, 0, 0], torch.ones(2, **DOUBLE))


# attention_distance


def distance_by_hand(
    weights: Tensor, grid: tuple[int, int], patch: tuple[int, int]
) -> float:
    places = list(itertools.product(range(grid[0]), range(grid[1])))
    total = 0.0
    for q, (i, j) in enumerate(places):
        moment = mass = 0.0
        for k, (r, s) in enumerate(places):
            away = math.hypot((i - r) * patch[0], (j - s) * patch[1])
            moment += weights[q, k].item() * away
            mass += weights[q, k].item()
        total += moment / mass
    return total / len(places)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 5), st.integers(1, 5))
@settings(max_examples=25, deadline=None)
@pytest.mark.question("quiz-2.8")
def test_uniform_attention_reaches_the_mean_distance_of_two_patches(
    rows: int, columns: int, height: int, width: int
) -> None:
    n = rows * columns
    uniform = torch.full((n, n), 1 / n, **DOUBLE)
    places = list(itertools.product(range(rows), range(columns)))
    mean = sum(
        math.hypot(height * (i - r), width * (j - s))
        for (i, j), (r, s) in itertools.product(places, places)
    ) / (n * n)
    found = attention_distance(
        uniform, (rows, columns), patch=(height, width), class_token=False
    )
    assert found.item() == pytest.approx(mean, abs=1e-10)


@pytest.mark.question("quiz-2.8")
def test_a_head_that_looks_nearby_has_a_small_attention_distance() -> None:
    places = torch.cartesian_prod(torch.arange(5.0), torch.arange(7.0)).double()
    away = torch.cdist(places, places)
    spreads = [
        attention_distance((-(away**2) / s).softmax(-1), (5, 7), class_token=False)
        for s in (0.1, 1.0, 10.0, 1e9)
    ]
    itself, near, far, everywhere = (spread.item() for spread in spreads)
    assert itself < 0.01 < near < far < everywhere
    assert everywhere == pytest.approx(away.mean().item())


@pytest.mark.question("quiz-2.8")
def test_attention_distance_is_set_by_the_weights_not_by_the_depth() -> None:
    """The first layer can look across the whole picture; a 3×3 convolution cannot."""
    sizes = {"classes": 2, "dim": 16, "depth": 2, "heads": 2, "channels": 1}
    model = VisionTransformer(20, 4, **sizes, **DOUBLE)
    pictures = torch.randn(3, 1, 20, 20, **DOUBLE)

    def distances() -> Tensor:
        with torch.no_grad(), capture_weights(model) as weights:
            model.encode(pictures)
        layers = torch.stack([calls[0] for calls in weights.values()])
        return attention_distance(layers, model.grid, patch=4).mean(dim=1)

    first_layer = model.encoder.get_submodule("layers.0.attention.key_proj")
    nn.init.zeros_(first_layer.get_parameter("weight"))
    blurred = distances()
    assert blurred.shape == (2, 2)  # one for each layer and head
    places = torch.cartesian_prod(torch.arange(5.0), torch.arange(5.0)).double()
    global_view = 4 * torch.cdist(places, places).mean()
    assert_same(blurred[0], global_view.expand(2))

    nn.init.normal_(first_layer.get_parameter("weight"), std=3.0)
    assert (distances()[0] - global_view).abs().min() > 0.1


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 5), st.integers(1, 5))
@settings(max_examples=20, deadline=None)
def test_distances_match_a_sum_over_all_pairs(
    rows: int, columns: int, height: int, width: int
) -> None:
    n, patch = rows * columns, (height, width)
    weights = torch.rand(2, 3, 1 + n, 1 + n, **DOUBLE) + 0.01
    found = attention_distance(weights, (rows, columns), patch=patch)
    assert found.shape == (2, 3)
    for b, h in itertools.product(range(2), range(3)):
        inner = weights[b, h, 1:, 1:]
        expected = distance_by_hand(inner, (rows, columns), patch)
        assert found[b, h].item() == pytest.approx(expected, abs=1e-10)


def test_what_the_class_token_takes_does_not_shorten_the_distance() -> None:
    patches = torch.rand(6, 6, **DOUBLE).softmax(dim=-1)
    whole = attention_distance(patches, (2, 3), class_token=False)
    weights = torch.rand(7, 7, **DOUBLE).softmax(dim=-1)
    weights[1:, 1:] = 0.25 * patches
    weights[1:, 0] = 0.75
    assert_same(attention_distance(weights, (2, 3)), whole)


def test_patches_that_look_at_no_patch_do_not_count() -> None:
    weights = torch.zeros(3, 3, **DOUBLE)
    weights[:, 0] = 1.0
    assert attention_distance(weights, (1, 2)).item() == 0.0
    weights[1] = torch.tensor([0.0, 0.0, 1.0])
    assert attention_distance(weights, (1, 2), patch=16).item() == 16.0


def test_distances_in_half_precision_are_accurate() -> None:
    weights = torch.rand(197, 197).softmax(dim=-1).half()
    expected = attention_distance(weights.double(), (14, 14), patch=16)
    found = attention_distance(weights, (14, 14), patch=16)
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)


# position_similarity


@pytest.mark.question("quiz-2.7")
def test_similarity_is_the_cosine_of_two_codes() -> None:
    codes = torch.randn(2, 3, 5, **DOUBLE)
    similarity = position_similarity(codes)
    assert similarity.shape == (2, 3, 2, 3)
    for i, j, r, s in itertools.product(range(2), range(3), range(2), range(3)):
        a, b = codes[i, j], codes[r, s]
        expected = (a @ b / (a.norm() * b.norm())).item()
        assert similarity[i, j, r, s].item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.question("quiz-2.7")
def test_codes_that_know_rows_and_columns_show_a_cross() -> None:
    """Cells of one row or one column are alike; others are not, without structure."""
    rows, columns = torch.eye(4, **DOUBLE), torch.eye(5, **DOUBLE)
    aware = LearnedAxes2D((4, 5), 10, **DOUBLE)
    with torch.no_grad():
        aware.rows.cells.table.copy_(F.pad(rows, (0, 1)))
        aware.columns.cells.table.copy_(columns)
    seen = position_similarity(aware.codes())[2, 3]
    cross = torch.full((4, 5), 0.0, **DOUBLE)
    cross[2, :] = cross[:, 3] = 0.5
    cross[2, 3] = 1.0
    assert_same(seen, cross)


def test_similarity_reads_a_model_and_a_zero_code() -> None:
    sizes = {"classes": 2, "dim": 8, "depth": 1, "heads": 2}
    for positions in ("learned", "learned_axes", "sinusoidal"):
        model = VisionTransformer((4, 6), 2, positions=positions, **sizes)
        similarity = position_similarity(model.positions.codes(model.grid))
        assert similarity.shape == (2, 3, 2, 3)
        assert not similarity.requires_grad
        diagonal = torch.einsum("ijij->ij", similarity)
        torch.testing.assert_close(diagonal.float(), torch.ones(2, 3))
    assert not position_similarity(torch.zeros(2, 3, 5)).any()


# patch_filters


def test_filters_are_the_principal_components() -> None:
    embedding = PatchEmbedding((5, 3), channels=2, dim=40, **DOUBLE)
    filters = patch_filters(embedding, 7)
    assert filters.shape == (7, 2, 5, 3)
    pca = PCA(7, svd_solver="full").fit(embedding.proj.weight.detach().numpy())
    expected = torch.from_numpy(pca.components_)
    flat = filters.flatten(1)
    signs = (flat * expected).sum(dim=-1, keepdim=True).sign()
    torch.testing.assert_close(flat, signs * expected, rtol=0.0, atol=1e-8)


def test_filters_are_pictures_of_length_one_with_a_settled_sign() -> None:
    embedding = PatchEmbedding(4, channels=3, dim=11, **DOUBLE)
    nn.init.zeros_(embedding.proj.weight)
    target = torch.zeros(3, 4, 4, **DOUBLE)
    target[1, 0, 2], target[2, 3, 1] = -3.0, 4.0
    with torch.no_grad():
        embedding.proj.weight[:5] = target.flatten()
    first = patch_filters(embedding, 1)[0]
    assert_same(first, target / 5.0)
    with torch.no_grad():
        embedding.proj.weight.neg_()
    assert_same(patch_filters(embedding, 1)[0], target / 5.0)


# Without the type-checking hook


@pytest.mark.unhooked
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: capture_weights(nn.Linear(2, 2)).__enter__(),
            ValueError,
            "layer that can return its weights, got Linear without one",
        ),
        (
            lambda: capture_weights("model").__enter__(),  # pyright: ignore
            TypeError,
            "model must be an nn.Module, got str",
        ),
        (lambda: attention_rollout([]), ValueError, "for each layer, got none"),
        (
            lambda: attention_rollout([torch.zeros(3, 5, 5)]),
            ValueError,
            r"\(batch, heads, n, n\), got shape \(3, 5, 5\)",
        ),
        (
            lambda: attention_rollout([torch.zeros(2, 3, 5, 7)]),
            ValueError,
            r"got shape \(2, 3, 5, 7\)",
        ),
        (
            lambda: attention_rollout([torch.zeros(2, 3, n, n) for n in (5, 7)]),
            ValueError,
            r"\(2, heads, 5, 5\), got shape \(2, 3, 7, 7\)",
        ),
        (
            lambda: attention_rollout([torch.zeros(b, 3, 5, 5) for b in (1, 2)]),
            ValueError,
            r"\(1, heads, 5, 5\), got shape \(2, 3, 5, 5\)",
        ),
        (
            lambda: attention_rollout([torch.zeros(2, 3, 5, 5).int()]),
            TypeError,
            r"floating-point tensor, got torch\.int32",
        ),
        (lambda: attention_rollout({"0": []}), TypeError, "got str"),  # pyright: ignore
        (
            lambda: attention_distance(torch.zeros(6, 6), (2, 3)),
            ValueError,
            r"weights must be \(..., 7, 7\), got shape \(6, 6\)",
        ),
        (
            lambda: attention_distance(torch.zeros(7, 7), (2, 3), class_token=False),
            ValueError,
            r"\(..., 6, 6\), got shape \(7, 7\)",
        ),
        (
            lambda: attention_distance(torch.zeros(7, 6), (2, 3)),
            ValueError,
            r"got shape \(7, 6\)",
        ),
        (
            lambda: attention_distance(torch.zeros(7, 7), (2, 3, 1)),  # pyright: ignore
            ValueError,
            r"grid must be one whole number or two, got \(2, 3, 1\)",
        ),
        (
            lambda: attention_distance(torch.zeros(7, 7), (0, 3)),
            ValueError,
            "grid height must be a whole number from 1 on, got 0",
        ),
        (
            lambda: attention_distance(torch.zeros(7, 7), (2, 3), patch=0),
            ValueError,
            "patch height must be .* got 0",
        ),
        (
            lambda: attention_distance(torch.ones(7, 7).bool(), (2, 3)),
            TypeError,
            r"weights must be a floating-point tensor, got torch\.bool",
        ),
        (
            lambda: position_similarity(torch.zeros(6, 5)),
            ValueError,
            r"codes must be \(rows, columns, p\), got shape \(6, 5\)",
        ),
        (
            lambda: position_similarity(torch.zeros(2, 3, 5).long()),
            TypeError,
            r"codes must be a floating-point tensor, got torch\.int64",
        ),
        (
            lambda: patch_filters(nn.Linear(3, 4), 2),  # pyright: ignore
            TypeError,
            "embedding must be a PatchEmbedding, got Linear",
        ),
        (
            lambda: patch_filters(PatchEmbedding(2, 3, 8), 8),
            ValueError,
            "8 filters of 12 numbers have 7 principal components, got a count of 8",
        ),
        (
            lambda: patch_filters(PatchEmbedding(2, 1, 8), 5),
            ValueError,
            "8 filters of 4 numbers have 4 principal components, got a count of 5",
        ),
        (
            lambda: patch_filters(PatchEmbedding(2, 3, 8), 0),
            ValueError,
            "count must be a whole number from 1 on, got 0",
        ),
    ],
)
def test_probes_refuse_bad_input(
    call: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call()


@pytest.mark.unhooked
def test_compiled_models_are_heard_too() -> None:
    torch.compiler.reset()
    model = Encoder(12, 3, 17, 1, **DOUBLE)
    x = torch.randn(2, 5, 12, **DOUBLE)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    y = compiled(x)
    for heard in (model, compiled):
        with capture_weights(heard) as weights:  # pyright: ignore
            assert_same(compiled(x), y)
        assert [len(calls) for calls in weights.values()] == [1]
    assert_same(compiled(x), y)
    assert [len(calls) for calls in weights.values()] == [1]
