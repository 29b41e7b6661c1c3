"""The assignment's program, and the classifier it leads to."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from transformers_hw import gelu
from transformers_hw.attention_as_convolution import (
    AbsolutePositionalEmbedding,
    BertFFN,
    GaussianSelfAttention,
    LearnedRelativeSelfAttention,
    PictureBert,
    PictureBertLayer,
    RelativePositionalEmbedding,
    verify_limit,
    visualize_abs_positional_embedding,
    visualize_rel_positional_embedding,
)
from transformers_hw.transformer import LayerNorm


class Canvas:
    """Stands in for matplotlib's axes."""

    def __init__(self) -> None:
        self.title = ""
        self.picture: Any = None

    def imshow(self, picture: object, /) -> None:
        self.picture = picture

    def set_title(self, label: str, /) -> None:
        self.title = label


@pytest.mark.question("eth-2a")
@pytest.mark.parametrize("kind", ["learned", "sinusoidal"])
def test_absolute_codes_are_added_pixel_by_pixel(kind: str) -> None:
    embedding = AbsolutePositionalEmbedding((5, 7), 8, kind=kind)
    x = torch.randn(2, 5, 7, 8)
    codes = embedding.codes().float()
    assert len(rearrange(codes, "i j d -> (i j) d").unique(dim=0)) == 35
    torch.testing.assert_close(embedding(x), x + codes)


@pytest.mark.question("eth-2a")
def test_absolute_codes_are_alike_where_pixels_are_near() -> None:
    embedding = AbsolutePositionalEmbedding((9, 11), 32)
    canvas = Canvas()
    alike = visualize_abs_positional_embedding(embedding, (4, 5), axes=canvas)
    codes = embedding.codes()
    by_hand = F.cosine_similarity(codes[4, 5].expand_as(codes), codes, dim=-1)
    torch.testing.assert_close(alike, by_hand)
    assert alike[4, 5] == alike.max() == pytest.approx(1.0)
    assert alike[4, 6] > alike[4, 8]
    assert alike[5, 5] > alike[7, 5]
    assert torch.equal(torch.as_tensor(canvas.picture), alike)
    assert "(4, 5)" in canvas.title


@pytest.mark.question("eth-2a")
def test_relative_codes_hold_distance_and_offset_of_every_pair() -> None:
    codes = RelativePositionalEmbedding([(0, 0)]).codes(3, 4)
    assert codes.shape == (3, 4, 3, 4, 3)
    for i, j, k, m in torch.cartesian_prod(*map(torch.arange, (3, 4, 3, 4))).tolist():
        delta = (i - k, j - m)
        expected = [delta[0] ** 2 + delta[1] ** 2, *delta]
        assert codes[i, j, k, m].tolist() == expected


@pytest.mark.question("eth-2a")
def test_the_hot_pixel_is_the_query_minus_the_centre() -> None:
    heads = RelativePositionalEmbedding([(1, 2), (-1, 0)], sharpness=3.0)
    canvases = [Canvas(), Canvas()]
    maps = visualize_rel_positional_embedding(heads, (5, 7), (2, 4), axes=canvases)
    hottest = [divmod(int(one.argmax()), 7) for one in maps]
    assert hottest == [(1, 2), (3, 4)]
    assert canvases[0].title == "Δ = (1, 2)"
    torch.testing.assert_close(maps.sum(dim=(1, 2)), torch.ones(2))
    # The layer of this book looks where its centre points.
    layer = GaussianSelfAttention(1, 2, centers=[(-1, -2), (1, 0)], sharpness=3.0)
    torch.testing.assert_close(maps, layer.weights(5, 7)[:, 2, 4].detach())


@pytest.mark.question("eth-2a")
@pytest.mark.question("eth-1d.1")
def test_the_limit_is_one_at_the_target_and_zero_elsewhere() -> None:
    alphas = [0.1, 1.0, 5.0, 50.0]
    canvases = [Canvas() for _ in alphas]
    maps = verify_limit((1, -2), alphas, grid=(5, 7), query=(2, 3), axes=canvases)
    at_target = maps[:, 1, 5]
    assert at_target.tolist() == sorted(at_target.tolist())
    expected = torch.zeros(5, 7, dtype=torch.float64)
    expected[1, 5] = 1.0
    torch.testing.assert_close(maps[-1], expected, rtol=0, atol=1e-12)
    assert canvases[-1].title == "α = 50"
    outside = verify_limit((9, 0), [50.0], grid=(5, 7), query=(2, 3))[0]
    assert outside[0, 3] == pytest.approx(1.0)  # clamped to the first row


@pytest.mark.question("eth-2b")
def test_two_gelus_differ_by_less_than_five_ten_thousandths() -> None:
    x = torch.linspace(-6, 6, 120_001, dtype=torch.float64)
    exact = x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    approximate = 0.5 * x * (1 + torch.tanh(inner))
    torch.testing.assert_close(gelu(x), exact, rtol=0, atol=1e-12)
    torch.testing.assert_close(
        gelu(x, approximate="tanh"), approximate, rtol=0, atol=1e-12
    )
    error = exact - approximate
    assert error.abs().max().item() == pytest.approx(4.732e-4, abs=1e-7)
    assert x[error.abs().argmax()].abs().item() == pytest.approx(2.699, abs=1e-3)
    torch.testing.assert_close(error, error.flip(0), rtol=0, atol=1e-12)  # even


@pytest.mark.question("eth-2c")
def test_layer_norm_is_that_of_torch_and_of_the_formula() -> None:
    norm, reference = LayerNorm(7, eps=1e-12).double(), nn.LayerNorm(7, eps=1e-12)
    reference = reference.double()
    with torch.no_grad():
        for ours, theirs in zip(norm.parameters(), reference.parameters(), strict=True):
            ours.copy_(theirs.normal_())
    x = torch.randn(2, 3, 7, dtype=torch.float64)
    torch.testing.assert_close(norm(x), reference(x), rtol=0, atol=1e-12)
    assert norm.bias is not None
    variance, mean = torch.var_mean(x, dim=-1, keepdim=True, correction=0)
    by_hand = (x - mean) / (variance + 1e-12).sqrt() * norm.weight + norm.bias
    torch.testing.assert_close(norm(x), by_hand, rtol=0, atol=1e-12)


@pytest.mark.question("eth-2d")
def test_bert_ffn_is_a_network_a_residual_and_a_norm() -> None:
    half = BertFFN(5, 11).double()
    x = torch.randn(2, 3, 5, dtype=torch.float64)
    first, second = half.network.hidden_proj, half.network.output_proj
    hidden = F.gelu(F.linear(x, first.weight, first.bias))
    residual = x + F.linear(hidden, second.weight, second.bias)
    expected = F.layer_norm(residual, (5,), half.norm.weight, half.norm.bias, 1e-12)
    torch.testing.assert_close(half(x), expected, rtol=0, atol=1e-12)


@pytest.mark.question("eth-2d")
def test_bert_ffn_drops_in_training_alone() -> None:
    half = BertFFN(5, 11, dropout=0.9)
    x = torch.randn(2, 3, 5)
    assert not torch.equal(half(x), half(x))
    half.eval()
    plain = BertFFN(5, 11)
    plain.load_state_dict(half.state_dict())
    assert torch.equal(half(x), plain(x))


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.question("eth-2e")
def test_the_papers_model_has_its_number_of_parameters() -> None:
    with torch.device("meta"):
        model = PictureBert()
    linear = lambda inputs, outputs: inputs * outputs + outputs  # noqa: E731
    centres_and_spreads = 9 * 2 + 9
    layer = centres_and_spreads + linear(9 * 400, 400) + linear(400, 400)
    layer += linear(400, 512) + linear(512, 400) + 2 * (2 * 400)
    whole = linear(2 * 2 * 3, 400) + 6 * layer + linear(400, 10)
    assert count(model) == whole == 12_086_844
    assert count(model.layers[0]) == layer


def test_the_papers_other_models_have_about_theirs() -> None:
    with torch.device("meta"):
        learned = PictureBert(encoding="learned")
        content = PictureBert(encoding="learned+content")
    codes_and_heads = 2 * (2 * 16 - 1) * 400 + 2 * 9 * 400
    assert count(learned) == 12_086_844 + 6 * (codes_and_heads - 27)
    assert count(learned) == pytest.approx(12.3e6, rel=5e-3)
    assert count(content) == count(learned) + 6 * 2 * 9 * 400**2
    assert count(content) == pytest.approx(29.5e6, rel=5e-3)


def small(**options: Any) -> PictureBert:
    sizes = {"channels": 2, "dim": 6, "depth": 2, "heads": 3, "hidden_dim": 11}
    return PictureBert(7, **{**sizes, "dtype": torch.float64, **options}).eval()


@pytest.mark.parametrize("encoding", ["gaussian", "learned", "learned+content"])
def test_the_classifier_is_what_its_parts_say(encoding: str) -> None:
    model = small(encoding=encoding)
    pictures = torch.randn(2, 2, 8, 6, dtype=torch.float64)
    tokens = torch.stack(
        [
            pictures[:, :, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].permute(0, 2, 3, 1)
            for i in range(4)
            for j in range(3)
        ],
        dim=1,
    )
    x = model.embedding(tokens.reshape(2, 4, 3, 8))
    for layer in model.layers:
        assert isinstance(layer, PictureBertLayer)
        _, weights = layer.attention(x, return_weights=True)
        weights = weights.expand(2, *weights.shape[-5:])
        mixed = torch.einsum(
            "bhijkl,bkld,hde->bije", weights, x, layer.attention.value_weight
        )
        assert layer.attention.bias is not None
        mixed = layer.output_proj(mixed + layer.attention.bias)
        x = F.layer_norm(x + mixed, (6,), layer.norm.weight, layer.norm.bias, 1e-12)
        x = layer.network(x)
    expected = model.classifier(x.mean(dim=(1, 2)))
    assert expected.std() > 0.01
    torch.testing.assert_close(model(pictures), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("content", [False, True])
def test_learned_scores_are_looked_up_by_distance(content: bool) -> None:
    layer = LearnedRelativeSelfAttention(5, 2, longest=4, content=content).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    scores = torch.zeros(2, 2, 3, 4, 3, 4, dtype=torch.float64)
    for i, j, k, m in torch.cartesian_prod(*map(torch.arange, (3, 4, 3, 4))).tolist():
        down, right = layer.row_codes[k - i + 3], layer.column_codes[m - j + 3]
        score = layer.row_heads @ down + layer.column_heads @ right
        scores[:, :, i, j, k, m] = score.detach()
        if layer.query_weight is not None and layer.key_weight is not None:
            queries, keys = (
                x[:, i, j] @ layer.query_weight,
                x[:, k, m] @ layer.key_weight,
            )
            products = (queries * keys).sum(dim=-1) / math.sqrt(5)
            scores[:, :, i, j, k, m] += products.T.detach()
    expected = scores.flatten(4).softmax(dim=-1).view_as(scores)
    _, weights = layer(x, return_weights=True)
    weights = weights.expand_as(expected)
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-10)


@pytest.mark.question("eth-2e")
def test_the_heads_of_the_classifier_move_in_training() -> None:
    model = small(dtype=torch.float32).train()
    before = model.head_centers()
    assert before.shape == (2, 3, 2)
    pictures, classes = torch.randn(8, 2, 8, 8), torch.arange(8) % 7
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses: list[Tensor] = []
    for _ in range(20):
        loss = F.cross_entropy(model(pictures), classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    assert losses[-1] < losses[0]
    assert (model.head_centers() - before).abs().max() > 1e-4


def test_without_dropout_training_is_evaluation() -> None:
    model = small(dropout=0.0)
    pictures = torch.randn(2, 2, 8, 6, dtype=torch.float64)
    assert torch.equal(model.train()(pictures), model.eval()(pictures))
