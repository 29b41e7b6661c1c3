"""Chapter 7: what is built in and what is not, and where the documents slip."""

import pytest
import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from transformers_hw.positional_encoding import SinusoidalPositions2D
from transformers_hw.probes import position_similarity
from transformers_hw.transformer import Decoder
from transformers_hw.vision_transformer import PatchEmbedding, VisionTransformer

F64 = torch.float64


def model_of(positions: str, *, pool: str = "mean") -> VisionTransformer:
    """Build a model of a 3×5 grid of patches, 2×4 pixels each."""
    return VisionTransformer(
        (6, 20),
        (2, 4),
        classes=7,
        dim=12,
        depth=2,
        heads=3,
        channels=2,
        pool=pool,  # type: ignore[arg-type]
        positions=positions,  # type: ignore[arg-type]
        dtype=F64,
    )


def picture() -> Tensor:
    return torch.randn(1, 2, 6, 20, dtype=F64)


def differ(a: Tensor, b: Tensor) -> bool:
    return not torch.allclose(a, b, rtol=0, atol=1e-3)


def same(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=0, atol=1e-10)


# What is built into a convolution, and what into a Vision Transformer


@pytest.mark.question("quiz-2.6", "quiz-2.9")
@pytest.mark.parametrize("seed", range(3))
def test_a_convolution_is_equivariant_to_shifts_whatever_its_weights_are(seed: int):
    torch.manual_seed(seed)  # nothing is trained: the bias is in the architecture
    layer = nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular", dtype=F64)
    x, shift = picture(), {"shifts": (1, 3), "dims": (-2, -1)}
    shifted = layer(torch.roll(x, **shift))
    assert same(shifted, torch.roll(layer(x), **shift))  # equivariant
    assert differ(shifted, layer(x))  # not invariant


@pytest.mark.question("quiz-2.6")
def test_it_is_the_mean_over_places_that_makes_equivariance_invariance():
    layer = nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular", dtype=F64)
    x = picture()
    moved = torch.roll(x, (1, 3), (-2, -1))
    assert same(layer(moved).mean((-2, -1)), layer(x).mean((-2, -1)))


@pytest.mark.question("quiz-2.6")
def test_a_patch_embedding_follows_shifts_by_whole_patches_only():
    embedding, x = PatchEmbedding((2, 4), channels=2, dim=5, dtype=F64), picture()
    tokens = embedding(x)
    assert same(embedding(x.roll((2, 4), (-2, -1))), tokens.roll((1, 1), (1, 2)))
    by_a_pixel = embedding(x.roll(1, -1))
    for rows in range(3):
        for columns in range(5):
            assert differ(by_a_pixel, tokens.roll((rows, columns), (1, 2)))


@pytest.mark.question("quiz-2.6")
def test_an_encoder_without_positions_follows_every_permutation_of_patches():
    """It knows nothing of neighbours: a shift is to it as good as any shuffle."""
    model = model_of("none")
    order = torch.randperm(15)
    tokens = rearrange(model.patch_embedding(picture()), "b r s d -> b (r s) d")
    outputs = model.encoder(tokens)
    assert same(model.encoder(tokens[:, order]), outputs[:, order])
    assert differ(outputs[:, order], outputs)


@pytest.mark.question("quiz-2.6", "nyu-1.5a")
@pytest.mark.parametrize("positions", ["learned", "learned_axes", "sinusoidal"])
def test_with_positions_not_even_shifts_by_whole_patches_are_followed(positions: str):
    model, x = model_of(positions), picture()
    grid = {"r": 3, "s": 5}
    outputs = rearrange(model.encode(x), "b (r s) d -> b r s d", **grid)
    moved = rearrange(model.encode(x.roll(4, -1)), "b (r s) d -> b r s d", **grid)
    assert differ(moved, outputs.roll(1, 2))


@pytest.mark.question("quiz-2.9")
def test_locality_is_there_before_training_in_a_convolution_and_not_in_attention():
    x = picture()
    touched = x.clone()
    touched[..., 3, 9] += 1.0
    layer = nn.Conv2d(2, 3, 3, padding=1, dtype=F64)
    changed = (layer(touched) != layer(x)).any(dim=1)[0].nonzero()
    assert changed.min(0).values.tolist() == [2, 8]
    assert changed.max(0).values.tolist() == [4, 10]
    model = model_of("learned")
    assert (model.encode(touched) != model.encode(x)).any(dim=-1).all()


# Errata


@pytest.mark.question("nyu-1.5a")
def test_a_patch_is_flattened_into_one_axis_of_numbers():
    embedding, x = PatchEmbedding((2, 4), channels=2, dim=5, dtype=F64), picture()
    patches = F.unfold(x, (2, 4), stride=(2, 4))  # PyTorch's own way to cut
    assert patches.shape == (1, 2 * 2 * 4, 3 * 5)  # a column for each patch
    tokens = patches.mT @ embedding.proj.weight.T + embedding.proj.bias
    assert same(rearrange(embedding(x), "b r s d -> b (r s) d"), tokens)


@pytest.mark.question("nyu-1.5b")
def test_the_vit_has_no_decoder_and_one_token_more_than_patches():
    model, x = model_of("learned", pool="class"), picture()
    assert not any(isinstance(part, Decoder) for part in model.modules())
    assert model.encode(x).shape == (1, 1 + 3 * 5, 12)
    before = model(x)
    with torch.no_grad():
        model.class_token.add_(torch.randn(12, dtype=F64))  # type: ignore[union-attr]
    assert differ(model(x), before)


@pytest.mark.question("nyu-1.5b")
def test_a_vit_normalises_what_enters_a_branch_and_leaves_the_residual_alone():
    """With silent branches a pre-norm layer is the identity; a post-norm one is not."""
    model, x = model_of("learned"), torch.randn(1, 15, 12, dtype=F64)
    layer = model.encoder.layers[0]
    post = nn.TransformerEncoderLayer(12, 3, 17, 0.0, batch_first=True, dtype=F64)
    for part in (layer, post):
        for name, parameter in part.named_parameters():
            if "norm" not in name:
                nn.init.zeros_(parameter)
    assert torch.equal(layer(x), x)
    assert differ(post(x), x)


@pytest.mark.question("nyu-1.5c")
def test_a_learnt_code_says_where_a_patch_is_not_how_far_two_are_apart():
    positions = model_of("learned").positions
    tokens = torch.randn(1, 3, 5, 12, dtype=F64)
    added = positions(tokens) - tokens
    assert same(positions(2 * tokens) - 2 * tokens, added)  # the place alone decides
    learnt = added[0]
    fixed = SinusoidalPositions2D(12).codes((3, 5))
    # Two neighbours, and two neighbours elsewhere: products of sinusoids agree by
    # construction, those of a table only if that has been learnt.
    for codes, relative in ((fixed, True), (learnt, False)):
        here, elsewhere = codes[0, 0] @ codes[0, 1], codes[2, 3] @ codes[2, 4]
        assert same(here, elsewhere) == relative


@pytest.mark.question("quiz-2.7")
def test_rows_and_columns_show_in_the_likeness_of_codes_not_of_patches():
    places = torch.cartesian_prod(torch.arange(3), torch.arange(5))
    one_row = (places[:, None, 0] == places[:, 0]) & ~torch.eye(15).bool()

    def likeness_within_rows(grid: Tensor) -> float:
        likeness = rearrange(position_similarity(grid), "i j k l -> (i j) (k l)")
        return likeness[one_row].mean().item()

    rows, columns = torch.eye(8, dtype=F64).split([3, 5])
    codes = rows[:, None] + columns  # a table that has found rows and columns
    patches = rearrange(picture(), "1 c (r i) (s j) -> r s (c i j)", r=3, s=5)
    assert likeness_within_rows(codes) == pytest.approx(0.5)
    assert abs(likeness_within_rows(patches)) < 0.25  # of noise: they tell nothing
