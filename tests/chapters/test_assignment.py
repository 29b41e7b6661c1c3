"""The assignment's program, and the classifier it leads to."""

import itertools
import json
import math
from dataclasses import asdict
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from einops import rearrange
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.export import Dim

from transformers_hw.attention_as_convolution import (
    AbsolutePositionalEmbedding,
    BertFFN,
    GaussianSelfAttention,
    ImageBert,
    LearnedRelativeSelfAttention,
    RelativePositionalEmbedding,
    verify_limit,
    visualize_abs_positional_embedding,
    visualize_rel_positional_embedding,
)
from transformers_hw.multi_head_attention import MultiHeadAttention
from transformers_hw.transformer import LayerNorm, gelu

F64 = torch.float64


def assert_equal(ours: Tensor, expected: Tensor, within: float = 1e-12) -> None:
    torch.testing.assert_close(ours, expected, rtol=0, atol=within)


class Canvas:
    """Stands in for matplotlib's axes."""

    title, image = "", None

    def imshow(self, image: object, /) -> None:
        self.image = image

    def set_title(self, label: str, /) -> None:
        self.title = label


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


# Multi-head attention and its scores


@pytest.mark.question("eth-1a.1")
def test_parameters_of_a_multi_head_layer():
    inputs, hidden, values, outputs, heads = 5, 3, 2, 7, 4
    widths = {"head_dim": hidden, "value_head_dim": values, "output_dim": outputs}
    layer = MultiHeadAttention(inputs, heads, **widths, bias=["output"])
    expected = heads * (2 * inputs * hidden + inputs * values)
    assert count(layer) == expected + heads * values * outputs + outputs


@pytest.mark.question("eth-1a.2")
@pytest.mark.question("eth-1c.1")
def test_one_query_pixel_is_a_sum_over_heads_with_merged_projections():
    layer = MultiHeadAttention(
        5, 3, head_dim=2, value_head_dim=4, output_dim=7, scale=1.0, bias=["output"]
    ).double()
    z, q = torch.randn(6, 5, dtype=F64), 2
    query, key, value = (
        rearrange(proj.weight, "(h e) d -> h d e", h=3)
        for proj in (layer.query_proj, layer.key_proj, layer.value_proj)
    )
    out = rearrange(layer.output_proj.weight, "e (h d) -> h d e", h=3)
    pixel = layer.output_proj.bias
    for h in range(3):
        scores = z[q] @ query[h] @ key[h].T @ z.T
        merged = value[h] @ out[h]  # W^(h) = W_v^(h) W_out^(h)
        pixel = pixel + scores.softmax(dim=-1) @ z @ merged
    assert_equal(layer(z[None])[0, q], pixel)


@pytest.mark.question("eth-1a.2")
def test_the_output_projection_cannot_stand_inside_the_concatenation():
    n, heads, width, out = 6, 3, 2, 7
    outputs = [torch.randn(n, width) for _ in range(heads)]
    projection = torch.randn(heads * width, out)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        torch.cat([one @ projection for one in outputs], dim=1)
    assert (torch.cat(outputs, dim=1) @ projection).shape == (n, out)


@pytest.mark.question("eth-1a.2")
def test_a_softmax_over_one_axis_of_the_keys_is_not_a_distribution():
    rows, columns = 5, 7
    scores = torch.randn(rows, columns)  # of one query, for every key pixel
    assert scores.softmax(dim=-1).sum().item() == pytest.approx(rows)
    assert scores.flatten().softmax(dim=0).sum().item() == pytest.approx(1.0)


@pytest.mark.question("eth-1a.2")
def test_without_positions_attention_is_equivariant_not_invariant():
    layer = MultiHeadAttention(6, 2).double()
    z = torch.randn(1, 7, 6, dtype=F64)
    order = torch.randperm(7)
    moved = layer(z[:, order])
    torch.testing.assert_close(moved, layer(z)[:, order])
    assert not torch.allclose(moved, layer(z))


@pytest.mark.question("eth-1b.1")
def test_two_printed_terms_lack_transposes():
    d, hidden = 5, 2
    z_q, z_k, p_q, p_k = torch.randn(4, 1, d, dtype=F64)  # rows
    query, key = torch.randn(2, d, hidden, dtype=F64)
    u = torch.randn(hidden, 1, dtype=F64)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        _ = p_q @ query @ key.T @ z_k  # as in Equation 5
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        _ = u.T @ key @ z_k  # as in Equation 6
    assert (u.T @ key.T @ z_k.T).shape == (1, 1)
    four = (
        z_q @ query @ key.T @ z_k.T
        + z_q @ query @ key.T @ p_k.T
        + p_q @ query @ key.T @ z_k.T
        + p_q @ query @ key.T @ p_k.T
    )
    whole = (z_q + p_q) @ query @ ((z_k + p_k) @ key).T
    assert_equal(four, whole)


@pytest.mark.question("eth-1b.1")
def test_an_identity_for_the_position_key_fixes_the_width_of_the_head():
    encoding = RelativePositionalEmbedding([(1.0, 2.0)], sharpness=0.7, dtype=F64)
    r = encoding.embeddings(3, 4).reshape(-1, 3)
    wanted = r @ encoding.head_vectors()[0].detach()
    for hidden in (2, 3, 5):
        if hidden != 3:
            with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be"):
                _ = torch.eye(hidden, dtype=F64) @ r.T
        # A matrix with ones on its diagonal has the right shape at any width.
        keys = r @ torch.eye(hidden, 3, dtype=F64).T
        v = torch.linalg.lstsq(keys, wanted[:, None]).solution
        error = (keys @ v).flatten() - wanted
        if hidden < 3:  # but below three it loses a coordinate
            assert error.norm() > 0.3 * wanted.norm()
        else:
            assert_equal(error, torch.zeros_like(error), 1e-9)


@pytest.mark.question("eth-1b.1")
def test_gaussian_weights_see_positions_and_no_contents():
    layer = GaussianSelfAttention(5, 3, dtype=F64)
    _, here = layer(torch.randn(2, 5, 7, 5, dtype=F64), return_weights=True)
    _, there = layer(torch.randn(2, 5, 7, 5, dtype=F64), return_weights=True)
    assert torch.equal(here, there)
    # The last of the four terms, v·r, gives the same weights; its sign is mirrored.
    encoding = RelativePositionalEmbedding(
        -layer.head_centers().detach(), sharpness=layer.sharpness, dtype=F64
    )
    scores = torch.einsum(
        "ijklp,hp->hijkl", encoding.embeddings(5, 7), encoding.head_vectors()
    )
    expected = scores.flatten(3).softmax(dim=-1).view_as(scores)
    assert_equal(here, expected)


@pytest.mark.question("eth-1b.1")
@pytest.mark.question("eth-1d.2")
def test_the_encoding_is_a_square_whose_constant_is_minus_the_center_squared():
    center, alpha = torch.tensor([2.0, -3.0]).double(), 0.7
    encoding = RelativePositionalEmbedding(center[None], sharpness=alpha, dtype=F64)
    embeddings = encoding.embeddings(5, 7)
    scores = embeddings @ encoding.head_vectors()[0]
    delta = embeddings[..., 1:]
    constant = -center.square().sum()
    square = -alpha * ((delta - center).square().sum(dim=-1) + constant)
    assert_equal(scores, square)


@pytest.mark.question("eth-1d.2")
def test_softmax_does_not_see_the_constant_and_the_sign_mirrors_the_center():
    center = [(2.0, -1.0)]
    by_the_book = RelativePositionalEmbedding(center, sharpness=0.7)(5, 7)
    layer = GaussianSelfAttention(1, 1, centers=[(-2.0, 1.0)], sharpness=0.7)
    assert_equal(by_the_book, layer.weights(5, 7), 1e-6)


@pytest.mark.question("eth-1d.2")
def test_the_expanded_square_loses_its_digits_in_half_precision():
    def target_weight(shift: int, dtype: torch.dtype) -> float:
        head = RelativePositionalEmbedding([(0, -shift)], sharpness=2.0, dtype=dtype)
        return head(1, 256)[0, 0, 3, 0, 3 + shift].item()

    wanted = target_weight(5, F64)
    for dtype, good, bad in ((torch.bfloat16, 15, 20), (torch.float16, 40, 60)):
        assert target_weight(good, dtype) == pytest.approx(wanted, abs=0.01)
        assert abs(target_weight(bad, dtype) - wanted) > 0.1
    assert math.isnan(target_weight(200, torch.float16))
    # The completed square, in float32 inside the layer, does not mind.
    options = {"centers": [(0, 200)], "sharpness": 2.0, "dtype": torch.float16}
    completed = GaussianSelfAttention(1, 1, **options).weights(1, 256)[0, 0, 3, 0, 203]
    assert completed.item() == pytest.approx(wanted, abs=0.01)


# Encodings


@pytest.mark.question("eth-2a")
@pytest.mark.parametrize("kind", ["learned", "sinusoidal"])
def test_absolute_embeddings_are_added_pixel_by_pixel(kind):
    embedding = AbsolutePositionalEmbedding((5, 7), 8, kind=kind)
    x = torch.randn(2, 5, 7, 8)
    embeddings = embedding.embeddings().float()
    assert len(rearrange(embeddings, "i j d -> (i j) d").unique(dim=0)) == 35
    torch.testing.assert_close(embedding(x), x + embeddings)


@pytest.mark.question("eth-2a")
def test_absolute_embeddings_of_nearby_pixels_are_similar():
    embedding = AbsolutePositionalEmbedding((9, 11), 32)
    canvas = Canvas()
    alike = visualize_abs_positional_embedding(embedding, (4, 5), axes=canvas)
    embeddings = embedding.embeddings()
    lengths = embeddings.square().sum(-1).sqrt()
    by_hand = embeddings @ embeddings[4, 5] / (lengths * lengths[4, 5])
    torch.testing.assert_close(alike, by_hand)
    assert alike[4, 5] == alike.max() == pytest.approx(1.0)
    assert alike[4, 6] > alike[4, 8]
    assert alike[5, 5] > alike[7, 5]
    assert torch.equal(torch.as_tensor(canvas.image), alike)
    assert "(4, 5)" in canvas.title


@pytest.mark.question("eth-2a")
def test_relative_embeddings_hold_distance_and_offset_of_every_pair():
    embeddings = RelativePositionalEmbedding([(0, 0)]).embeddings(3, 4)
    assert embeddings.shape == (3, 4, 3, 4, 3)
    for i, j, k, m in itertools.product(range(3), range(4), range(3), range(4)):
        down, right = i - k, j - m
        assert embeddings[i, j, k, m].tolist() == [down**2 + right**2, down, right]


@pytest.mark.question("eth-2a")
def test_all_three_functions_draw_into_axes_of_matplotlib():
    axes = list(Figure().subplots(1, 4))
    absolute = AbsolutePositionalEmbedding((5, 7), 8)
    relative = RelativePositionalEmbedding([(1, 2)], sharpness=3.0)
    maps = [
        visualize_abs_positional_embedding(absolute, (2, 3), axes=axes[0]),
        *visualize_rel_positional_embedding(relative, (5, 7), (2, 3), axes=axes[1:2]),
        *verify_limit((1, 2), [0.5, 20], grid=(5, 7), query=(2, 3), axes=axes[2:]),
    ]
    for one, expected in zip(axes, maps, strict=True):
        (image,) = one.get_images()
        torch.testing.assert_close(torch.as_tensor(image.get_array().data), expected)
    titles = [one.get_title() for one in axes]
    assert titles == ["similarity to (2, 3)", "Δ = (1, 2)", "α = 0.5", "α = 20"]


@pytest.mark.question("eth-1b.2")
def test_there_are_few_offsets_so_few_scores_are_different():
    rows, columns = 5, 7
    embeddings = RelativePositionalEmbedding([(0, 1)]).embeddings(rows, columns)
    different = embeddings.reshape(-1, 3).unique(dim=0)
    assert len(different) == (2 * rows - 1) * (2 * columns - 1) < 4 * rows * columns


@pytest.mark.question("eth-2a")
def test_the_hot_pixel_is_the_query_minus_the_center():
    heads = RelativePositionalEmbedding([(1, 2), (-1, 0)], sharpness=3.0)
    canvases = [Canvas(), Canvas()]
    maps = visualize_rel_positional_embedding(heads, (5, 7), (2, 4), axes=canvases)
    hottest = [divmod(int(one.argmax()), 7) for one in maps]
    assert hottest == [(1, 2), (3, 4)]
    assert canvases[0].title == "Δ = (1, 2)"
    torch.testing.assert_close(maps.sum(dim=(1, 2)), torch.ones(2))
    # The layer of this book attends to where its center points.
    layer = GaussianSelfAttention(1, 2, centers=[(-1, -2), (1, 0)], sharpness=3.0)
    torch.testing.assert_close(maps, layer.weights(5, 7)[:, 2, 4].detach())


@pytest.mark.question("eth-2a")
@pytest.mark.question("eth-1d.1")
def test_the_limit_is_one_at_the_target_and_zero_elsewhere():
    alphas = [0.1, 1.0, 5.0, 50.0]
    canvases = [Canvas() for _ in alphas]
    maps = verify_limit((1, -2), alphas, grid=(5, 7), query=(2, 3), axes=canvases)
    at_target = maps[:, 1, 5]
    assert at_target.tolist() == sorted(at_target.tolist())
    expected = torch.zeros(5, 7, dtype=F64)
    expected[1, 5] = 1.0
    assert_equal(maps[-1], expected)
    assert canvases[-1].title == "α = 50"
    outside = verify_limit((9, 0), [50.0], grid=(5, 7), query=(2, 3))[0]
    assert outside[0, 3] == pytest.approx(1.0)  # clamped to the first row


# The classifier


@pytest.mark.question("eth-2b")
def test_two_gelus_differ_by_less_than_five_ten_thousandths():
    x = torch.linspace(-6, 6, 120_001, dtype=F64)
    exact = x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    approximate = 0.5 * x * (1 + torch.tanh(inner))
    assert_equal(gelu(x), exact)
    assert_equal(gelu(x, approximate="tanh"), approximate)
    error = exact - approximate
    assert error.abs().max().item() == pytest.approx(4.732e-4, abs=1e-7)
    assert x[error.abs().argmax()].abs().item() == pytest.approx(2.699, abs=1e-3)
    assert_equal(error, error.flip(0))  # even


@pytest.mark.question("eth-2c")
def test_layer_norm_is_that_of_torch_and_of_the_formula():
    norm: Any = LayerNorm(7, eps=1e-12).double()
    reference = nn.LayerNorm(7, eps=1e-12, dtype=F64)
    for parameter in reference.parameters():
        nn.init.normal_(parameter)
    norm.load_state_dict(reference.state_dict())
    x = torch.randn(2, 3, 7, dtype=F64)
    assert_equal(norm(x), reference(x))
    variance, mean = torch.var_mean(x, dim=-1, keepdim=True, correction=0)
    by_hand = (x - mean) / (variance + 1e-12).sqrt() * norm.weight + norm.bias
    assert_equal(norm(x), by_hand)


@pytest.mark.question("eth-2d")
def test_bert_ffn_is_a_network_a_residual_and_a_norm():
    half = BertFFN(5, 11).double()
    x = torch.randn(2, 3, 5, dtype=F64)
    first, second = half.network.hidden_proj, half.network.output_proj
    hidden = F.gelu(F.linear(x, first.weight, first.bias))
    residual = x + F.linear(hidden, second.weight, second.bias)
    expected = F.layer_norm(residual, (5,), half.norm.weight, half.norm.bias, 1e-12)
    assert_equal(half(x), expected)


@pytest.mark.question("eth-2e")
def test_the_papers_model_has_its_number_of_parameters():
    with torch.device("meta"):
        model = ImageBert()
    linear = lambda inputs, outputs: inputs * outputs + outputs  # noqa: E731
    centers_and_spreads = 9 * 2 + 9
    layer = centers_and_spreads + linear(9 * 400, 400) + linear(400, 400)
    layer += linear(400, 512) + linear(512, 400) + 2 * (2 * 400)
    whole = linear(2 * 2 * 3, 400) + 6 * layer + linear(400, 10)
    assert count(model) == whole == 12_086_844
    assert count(model.layers[0]) == layer


# Per layer: a vector per head and axis; or biased projections to queries and keys.
@pytest.mark.parametrize(
    ("encoding", "embeddings", "others", "whole"),
    [
        ("learned", 2 * 31 * 400, 2 * 9 * 400, 12_278_682),
        ("learned+content", 2 * 31 * 200, 2 * 9 * (400 * 400 + 400), 29_484_282),
    ],
)
def test_the_papers_other_models_have_theirs(encoding, embeddings, others, whole):
    with torch.device("meta"):
        model = ImageBert(encoding=encoding)
    assert count(model) == 12_086_844 + 6 * (embeddings + others - 27) == whole


def small(**options: Any) -> ImageBert:
    sizes = {"channels": 2, "dim": 6, "depth": 2, "heads": 3, "hidden_dim": 11}
    return ImageBert(7, **{**sizes, "dtype": F64, **options}).eval()


@pytest.mark.parametrize("encoding", ["gaussian", "learned", "learned+content"])
def test_the_classifier_is_what_its_parts_say(encoding):
    model = small(encoding=encoding)
    images = torch.randn(2, 2, 8, 6, dtype=F64)
    patches = [
        images[:, :, i : i + 2, j : j + 2].flatten(1)
        for i in range(0, 8, 2)
        for j in range(0, 6, 2)
    ]
    x = model.patch_embedding.proj(torch.stack(patches, dim=1).view(2, 4, 3, 8))
    for layer in model.layers:
        _, weights = layer.attention(x, return_weights=True)
        weights = weights.expand(2, *weights.shape[-5:])
        mixed = torch.einsum(
            "bhijkl,bkld,hde->bije", weights, x, layer.attention.value_weight
        )
        mixed = layer.output_proj(mixed + layer.attention.bias)
        x = F.layer_norm(x + mixed, (6,), layer.norm.weight, layer.norm.bias, 1e-12)
        x = layer.network(x)
    expected = model.classifier(x.mean(dim=(1, 2)))
    assert expected.std() > 0.01
    assert_equal(model(images), expected, 1e-10)


@pytest.mark.parametrize("encoding", ["gaussian", "learned+content"])
def test_a_model_is_rebuilt_from_its_config(encoding):
    model = small(encoding=encoding, max_size=5, dropout=0.0, attention_dropout=0.2)
    settings = json.loads(json.dumps(asdict(model.config)))
    again = ImageBert(**settings, dtype=F64).eval()
    again.load_state_dict(model.state_dict())
    images = torch.randn(2, 2, 8, 6, dtype=F64)
    assert again.config == model.config
    assert torch.equal(again(images), model(images))


@pytest.mark.parametrize("content", [False, True])
def test_learned_scores_are_looked_up_by_offset(content):
    layer = LearnedRelativeSelfAttention(5, 2, max_size=4, content=content).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(2, 3, 4, 5, dtype=F64)
    scores = torch.zeros(2, 2, 3, 4, 3, 4, dtype=F64)
    for i, j, k, m in itertools.product(range(3), range(4), range(3), range(4)):
        down = layer.row_embeddings[k - i + 3]
        right = layer.column_embeddings[m - j + 3]
        if content:
            query = x[:, i, j] @ layer.query_weight + layer.query_bias[:, None]
            key = x[:, k, m] @ layer.key_weight + layer.key_bias[:, None]
            key = key + torch.cat([down, right])
            score = (query * key).sum(dim=-1).T / math.sqrt(5)
        else:
            score = layer.row_queries @ down + layer.column_queries @ right
        scores[:, :, i, j, k, m] = score.detach()
    expected = scores.flatten(4).softmax(dim=-1).view_as(scores)
    output, weights = layer(x, return_weights=True)
    assert_equal(weights.expand_as(expected), expected, 1e-10)
    assert_equal(layer(x), output, 1e-10)


def test_a_bias_of_the_keys_changes_no_weight():
    layer = LearnedRelativeSelfAttention(5, 2, content=True).double()
    x = torch.randn(2, 3, 4, 5, dtype=F64)
    before = layer(x)
    nn.init.normal_(layer.key_bias)
    assert_equal(layer(x), before)


@pytest.mark.unhooked
def test_the_classifier_compiles_and_exports():
    torch.compiler.reset()
    model = ImageBert(dim=8, depth=1, heads=2, hidden_dim=7).eval()
    x, more = torch.randn(2, 3, 4, 6), torch.randn(5, 3, 4, 6)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    axes = ({0: Dim("b")},)
    exported = torch.export.export(
        model, (x,), dynamic_shapes=axes, strict=True
    ).module()
    for other in (x, more):
        torch.testing.assert_close(compiled(other), model(other))
        torch.testing.assert_close(exported(other), model(other))
