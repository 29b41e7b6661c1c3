"""Chapter 7: images as sequences of patches."""

import json
import math
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import PIL.Image
import pytest
import timm
import torch
import torch.nn.functional as F
import torchvision
from bad_calls import assert_refused, bad_calls
from einops import rearrange
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from timm.layers import RotaryEmbeddingCat, apply_rot_embed_cat
from torch import Tensor, nn
from torch.export import Dim
from torchvision.transforms.v2 import functional

from transformers_hw.positional_encoding import AxialPositions2D, SinusoidalPositions2D
from transformers_hw.pretrained import from_timm, from_torchvision, to_torch
from transformers_hw.probes import capture_weights
from transformers_hw.transformer import (
    Decoder,
    DecoderLayer,
    DropPath,
    LayerScale,
    Transformer,
)
from transformers_hw.vision_transformer import (
    AttentionPooling,
    PatchEmbedding,
    Preprocessing,
    VisionTransformer,
)

F64 = torch.float64


def small(**options: Any) -> VisionTransformer:
    """Build a model of a 2×3 grid of patches, with no parameter at a special value."""
    sizes = {"num_classes": 7, "dim": 12, "depth": 2, "heads": 3, "hidden_dim": 17}
    options = {"channels": 2, "dtype": F64, **sizes, **options}
    model = VisionTransformer((10, 9), (5, 3), **options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def images(batch: int = 3, height: int = 10, width: int = 9) -> Tensor:
    return torch.randn(batch, 2, height, width, dtype=F64)


def patches_of_5_by_3() -> PatchEmbedding:
    return PatchEmbedding((5, 3), channels=2, dim=7, dtype=F64)


def circular_convolution() -> nn.Conv2d:
    return nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular", dtype=F64)


def assert_same(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0.0, atol=1e-10)


def differ(a: Tensor, b: Tensor) -> bool:
    return not torch.allclose(a, b, rtol=0, atol=1e-3)


def class_vector(model: VisionTransformer) -> Tensor:
    assert model.class_token is not None
    assert model.class_position is not None
    return model.class_token + model.class_position


# --- patches -----------------------------------------------------------------------


@pytest.mark.question("nyu-1.5a", "quiz-2.9")
@given(*[st.integers(1, 4)] * 7)
@settings(max_examples=25, deadline=None)
def test_a_patch_is_flattened_into_one_axis_of_numbers(b, c, rows, columns, i, j, dim):
    embedding = PatchEmbedding((i, j), c, dim, dtype=F64)
    nn.init.normal_(embedding.proj.bias)
    x = torch.randn(b, c, rows * i, columns * j, dtype=F64)
    patches = F.unfold(x, (i, j), stride=(i, j))  # PyTorch's own way to cut
    assert patches.shape == (b, c * i * j, rows * columns)  # a column for each patch
    tokens = patches.mT @ embedding.proj.weight.T + embedding.proj.bias
    assert_same(embedding(x), tokens.unflatten(1, (rows, columns)))


def test_rows_and_columns_are_not_confused():
    """Number the patches of a 2×3 grid, and read the numbers off the tokens."""
    numbers = torch.arange(6.0, dtype=F64).view(2, 3)
    image = numbers.repeat_interleave(5, 0).repeat_interleave(3, 1)[None, None]
    for size, x, wanted in (((5, 3), image, numbers), ((3, 5), image.mT, numbers.T)):
        embedding = PatchEmbedding(size, channels=1, dim=1, dtype=F64)
        nn.init.constant_(embedding.proj.weight, 1 / 15)
        assert_same(embedding(x)[0, :, :, 0], wanted)


def test_a_transposed_image_gives_other_tokens():
    embedding = PatchEmbedding(3, channels=2, dim=5, dtype=F64)
    x = torch.randn(1, 2, 6, 6, dtype=F64)
    tokens, transposed = (embedding(y).flatten(0, 2) for y in (x, x.mT))
    # Not even in another order: the pixels of a patch change their order, too.
    assert torch.cdist(tokens, transposed).min() > 0.01


@pytest.mark.question("nyu-1.5a", "quiz-2.9")
def test_a_patch_embedding_is_a_convolution_whose_stride_is_its_kernel():
    embedding, x = patches_of_5_by_3(), images()
    nn.init.normal_(embedding.proj.bias)
    tokens, convolution = embedding(x), embedding.as_convolution()
    assert convolution.kernel_size == convolution.stride == (5, 3)
    assert_same(tokens, rearrange(convolution(x), "b d r s -> b r s d"))
    nn.init.zeros_(convolution.weight)  # a copy
    assert torch.equal(embedding(x), tokens)


@pytest.mark.question("nyu-1.5a")
def test_any_convolution_that_tiles_the_image_is_a_patch_embedding():
    convolution = nn.Conv2d(2, 7, (5, 3), stride=(5, 3), dtype=F64)
    embedding, x = patches_of_5_by_3(), images()
    weight, bias = convolution.weight, convolution.bias
    embedding.proj.load_state_dict({"weight": weight.flatten(1), "bias": bias})
    assert_same(embedding(x), rearrange(convolution(x), "b d r s -> b r s d"))


# --- what is built into a convolution, and what into a Vision Transformer ----------


@pytest.mark.question("quiz-2.6", "quiz-2.9")
@pytest.mark.parametrize("seed", range(3))
def test_a_convolution_is_equivariant_to_shifts_whatever_its_weights_are(seed):
    torch.manual_seed(seed)  # nothing is trained: the bias is in the architecture
    layer, x = circular_convolution(), images()
    shift = {"shifts": (1, 3), "dims": (-2, -1)}
    shifted = layer(torch.roll(x, **shift))
    assert_same(shifted, torch.roll(layer(x), **shift))  # equivariant
    assert differ(shifted, layer(x))  # not invariant


@pytest.mark.question("quiz-2.6")
def test_averaging_over_positions_turns_equivariance_into_invariance():
    layer, x = circular_convolution(), images()
    moved = torch.roll(x, (1, 3), (-2, -1))
    assert_same(layer(moved).mean((-2, -1)), layer(x).mean((-2, -1)))


@pytest.mark.question("quiz-2.6")
def test_a_patch_embedding_follows_shifts_by_whole_patches_only():
    embedding, x = patches_of_5_by_3(), images()
    tokens = embedding(x)
    assert_same(embedding(x.roll((5, 3), (-2, -1))), tokens.roll((1, 1), (1, 2)))
    by_a_pixel = embedding(x.roll(1, -1))
    for rows in range(2):
        for columns in range(3):
            assert differ(by_a_pixel, tokens.roll((rows, columns), (1, 2)))


@pytest.mark.question("quiz-2.6")
def test_an_encoder_without_positions_follows_every_permutation_of_patches():
    """It knows nothing of neighbors: a shift is to it as good as any shuffle."""
    model, order = small(positions="none"), torch.tensor([3, 5, 1, 0, 4, 2])
    tokens = model.patch_embedding(images()).flatten(1, 2)
    outputs = model.encoder(tokens)
    assert_same(model.encoder(tokens[:, order]), outputs[:, order])
    assert differ(outputs[:, order], outputs)


@pytest.mark.question("quiz-2.6", "nyu-1.5a")
@pytest.mark.parametrize("positions", ["learned", "axial", "sinusoidal"])
def test_with_positions_not_even_shifts_by_whole_patches_are_followed(positions):
    model, x = small(positions=positions, pool="mean"), images()
    outputs, moved = (model.encode(y).unflatten(1, (2, 3)) for y in (x, x.roll(3, -1)))
    assert differ(moved, outputs.roll(1, 2))


@pytest.mark.question("quiz-2.9")
def test_locality_is_there_before_training_in_a_convolution_and_not_in_attention():
    x, layer, model = images(1), circular_convolution(), small(pool="mean")
    touched = x.clone()
    touched[..., 3, 5] += 1.0
    changed = (layer(touched) != layer(x)).any(dim=1)[0].nonzero()
    assert changed.min(0).values.tolist() == [2, 4]
    assert changed.max(0).values.tolist() == [4, 6]
    assert (model.encode(touched) != model.encode(x)).any(dim=-1).all()


def receptive_field(layers: int, stride: int) -> int:
    """Count the pixels of a row on which one output of 3-wide convolutions depends."""
    x = torch.zeros(1, 1, 99, dtype=F64, requires_grad=True)
    y = x
    for _ in range(layers):
        y = F.conv1d(y, torch.ones(1, 1, 3, dtype=F64), stride=stride)
    y[0, 0, y.shape[-1] // 2].backward()
    assert x.grad is not None
    return int((x.grad != 0).sum())


@pytest.mark.question("quiz-2.8")
def test_receptive_fields_grow_linearly_only_without_strides():
    depths = range(1, 5)
    assert [receptive_field(n, stride=1) for n in depths] == [2 * n + 1 for n in depths]
    strided = [2 ** (n + 1) - 1 for n in depths]
    assert [receptive_field(n, stride=2) for n in depths] == strided


@pytest.mark.question("nyu-1.5a", "nyu-1.5b")
def test_only_the_patch_embedding_has_a_window_on_the_image():
    """A pixel reaches one token by the embedding, all tokens by one attention."""
    model, x = small(depth=1), images(batch=1)
    assert not any(isinstance(part, nn.Conv2d) for part in model.modules())
    for patch in range(6):
        touched = x.clone()
        touched[0, 1, 5 * (patch // 3) + 2, 3 * (patch % 3) + 1] += 1.0
        tokens = model.patch_embedding(touched) != model.patch_embedding(x)
        assert tokens.any(dim=-1).flatten().nonzero().tolist() == [[patch]]
        assert (model.encode(touched) != model.encode(x)).any(dim=-1).all()


# --- the model, against others -----------------------------------------------------


@pytest.mark.question("nyu-1.5b", "nyu-2")
def test_outputs_and_gradients_are_those_of_torchvision():
    sizes = {"num_layers": 2, "num_heads": 2, "hidden_dim": 14, "mlp_dim": 11}
    theirs = torchvision.models.VisionTransformer(15, 5, **sizes, num_classes=7)
    for parameter in theirs.double().parameters():  # some start at zero
        nn.init.normal_(parameter, std=0.5)
    ours, x = from_torchvision(theirs), torch.randn(4, 3, 15, 15, dtype=F64)
    upstream, expected, actual = torch.randn(4, 7, dtype=F64), theirs(x), ours(x)
    assert expected.std() > 0.1  # two models that give nothing agree as well
    assert_same(actual, expected)
    expected.backward(upstream)
    actual.backward(upstream)
    gradients = {name: p.grad for name, p in theirs.named_parameters()}
    renamed = from_torchvision(gradients, heads=2, eps=1e-6).named_parameters()
    for name, gradient in renamed:
        assert_same(ours.get_parameter(name).grad, gradient.detach())
        assert gradient.abs().max() > 1e-3 or name.endswith("key_proj.bias")


@pytest.mark.question("nyu-1.5b")
def test_the_model_is_a_pre_norm_encoder_with_gelu_and_no_decoder():
    model, x = small(depth=1), images()
    layer = nn.TransformerEncoderLayer(
        12, 3, 17, 0.0, "gelu", 1e-6, batch_first=True, norm_first=True, dtype=F64
    )
    layer.load_state_dict(to_torch(model.encoder.layers[0]).state_dict())
    tokens = model.positions(model.patch_embedding(x)).flatten(1, 2)
    z = layer(torch.cat([class_vector(model).expand(3, 1, 12), tokens], dim=1))
    norm = model.encoder.final_norm
    assert_same(model.encode(x), F.layer_norm(z, (12,), norm.weight, norm.bias, 1e-6))
    assert not any(isinstance(part, DecoderLayer) for part in model.modules())


@pytest.mark.question("nyu-1.5b")
def test_the_vit_has_no_decoder_and_one_token_more_than_patches():
    model, x = small(), images()
    assert not any(isinstance(part, Decoder) for part in model.modules())
    assert model.encode(x).shape == (3, 1 + 2 * 3, 12)
    before = model(x)
    nn.init.normal_(model.class_token)
    assert differ(model(x), before)


@pytest.mark.question("nyu-1.5b")
def test_a_vit_gives_one_answer_per_image_and_a_transformer_one_per_position():
    assert small()(images()).shape == (3, 7)
    assert small()(images(height=20)).shape == (3, 7)  # whatever the number of patches
    seq2seq = Transformer(11, dim=12, heads=3, hidden_dim=17, depth=1)
    for length in (4, 5):
        target = torch.randint(1, 11, (3, length))
        assert seq2seq(torch.randint(1, 11, (3, 6)), target).shape == (3, length, 11)


@pytest.mark.question("nyu-1.5b")
def test_a_vit_normalizes_what_enters_a_branch_and_leaves_the_residual_alone():
    """With zero branches a pre-norm layer is the identity; a post-norm one is not."""
    layer, x = small().encoder.layers[0], torch.randn(1, 6, 12, dtype=F64)
    post = nn.TransformerEncoderLayer(12, 3, 17, 0.0, batch_first=True, dtype=F64)
    for part in (layer, post):
        for name, parameter in part.named_parameters():
            if "norm" not in name:
                nn.init.zeros_(parameter)
    assert torch.equal(layer(x), x)
    assert differ(post(x), x)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("ViT-Ti/16", 5_717_416),
        ("ViT-S/16", 22_050_664),
        ("ViT-B/16", 86_567_656),
        ("ViT-B/32", 88_224_232),
        ("ViT-L/16", 304_326_632),
        ("ViT-L/32", 306_535_400),
        ("ViT-H/14", 632_045_800),
    ],
)
def test_parameters_of_presets_follow_the_formula_and_torchvision(name, parameters):
    model = VisionTransformer.from_preset(name.lower(), num_classes=1000, device="meta")
    d, depth, p = model.config.dim, len(model.encoder.layers), int(name[-2:])
    embedding = (3 * p**2 + 1) * d + (2 + (224 // p) ** 2) * d
    layer = 4 * (d**2 + d) + (4 * d**2 + 4 * d) + (4 * d**2 + d) + 4 * d
    formula = embedding + depth * layer + 2 * d + (d + 1) * 1000
    assert sum(x.numel() for x in model.parameters()) == formula == parameters
    # Heads do not show in the count: those of all sizes but H are 64 wide.
    assert model.config.heads == d / (80 if name == "ViT-H/14" else 64)
    if theirs := getattr(torchvision.models, f"vit_{name[4].lower()}_{p}", None):
        with torch.device("meta"):
            built = theirs()
        assert sum(x.numel() for x in built.parameters()) == formula
        heads = built.encoder.layers[0].self_attention.num_heads
        assert model.config.heads == heads


# --- positions ---------------------------------------------------------------------


@pytest.mark.question("nyu-1.5c")
@pytest.mark.parametrize("pool", ["class", "mean"])
@pytest.mark.parametrize("positions", ["learned", "axial", "sinusoidal", "none"])
def test_the_order_of_patches_matters_only_with_positions(positions, pool):
    model, x = small(positions=positions, pool=pool), images()
    patches = rearrange(x, "b c (r i) (s j) -> (r s) b c i j", r=2, s=3)
    shuffled = patches[[3, 5, 1, 0, 4, 2]]
    moved = rearrange(shuffled, "(r s) b c i j -> b c (r i) (s j)", r=2, s=3)
    changes = (model(moved) - model(x)).abs().amax(dim=-1)
    assert changes.max() < 1e-10 if positions == "none" else changes.min() > 1e-3


@pytest.mark.question("nyu-1.5c")
def test_positions_are_parameters_that_learn_where_sinusoids_are_constants():
    learned, fixed = small(), small(positions="sinusoidal")
    learned(images()).square().sum().backward()
    assert learned.positions.weight.shape == (2, 3, 12)
    for vector in (learned.positions.weight, learned.class_position):
        assert vector.grad.abs().min() > 0
    assert list(fixed.positions.parameters()) == []
    assert fixed.class_position is None


@pytest.mark.question("nyu-1.5c", "quiz-2.7")
@pytest.mark.parametrize("aware", ["axial", "sinusoidal"])
def test_a_table_without_axes_can_hold_any_embedding_that_has_them(aware):
    """What 2-D-aware embeddings express, the plain table can learn."""
    knowing, plain, x = small(positions=aware), small(positions="learned"), images()
    nn.init.zeros_(plain.class_position)  # sinusoids have none
    state = {k: v for k, v in knowing.state_dict().items() if "positions" not in k}
    table = knowing.positions.embeddings((2, 3)).detach()
    unknown = plain.load_state_dict({**state, "positions.weight": table}, strict=False)
    assert not unknown.unexpected_keys
    assert_same(plain(x), knowing(x))


@pytest.mark.question("quiz-2.7")
def test_axial_embeddings_have_one_half_for_the_row_and_one_for_the_column():
    embeddings = AxialPositions2D((2, 3), 10, dtype=F64).embeddings()
    rows, columns = embeddings[:, :1, :5], embeddings[:1, :, 5:]
    wanted = torch.cat([rows.expand(2, 3, 5), columns.expand(2, 3, 5)], dim=-1)
    assert torch.equal(embeddings, wanted)
    halves = torch.cat([rows.flatten(0, 1), columns.flatten(0, 1)])
    assert torch.cdist(halves, halves).gt(0).sum() == 5 * 4


@pytest.mark.question("nyu-1.5c")
def test_a_learned_embedding_tells_where_a_patch_is_but_not_how_far_apart_two_are():
    positions, tokens = small().positions, torch.randn(1, 2, 3, 12, dtype=F64)
    added = positions(tokens) - tokens
    assert_same(positions(2 * tokens) - 2 * tokens, added)  # the position alone decides
    # Two neighbors, and two neighbors elsewhere: products of sinusoids agree by
    # construction, those of a table only if that has been learned.
    for grid, relative in (
        (SinusoidalPositions2D(12).embeddings((2, 3)), True),
        (added[0], False),
    ):
        here, elsewhere = grid[0, 0] @ grid[0, 1], grid[1, 1] @ grid[1, 2]
        assert differ(here, elsewhere) != relative


def test_of_the_class_token_and_its_position_only_the_sum_matters():
    model, x = small(), images()
    before = model(x)
    shift = torch.randn(12, dtype=F64)
    with torch.no_grad():
        model.class_token.add_(shift)
        model.class_position.sub_(shift)
    assert_same(model(x), before)
    with torch.no_grad():
        model.class_position.add_(shift)
    assert (model(x) - before).abs().max() > 1e-3


@pytest.mark.parametrize("grid", [(3, 2), (4, 6), (2, 4), (1, 1)])
def test_learned_positions_are_resampled_for_images_of_other_sizes(grid):
    """A grid of 3×2 has as many cells as one of 2×3, and needs other embeddings."""
    model, x = small(), images(1, 5 * grid[0], 3 * grid[1])
    table = rearrange(model.positions.weight, "r s d -> 1 d r s")
    resampled = F.interpolate(table, size=grid, mode="bicubic", align_corners=False)
    tokens = model.patch_embedding(x) + rearrange(resampled, "1 d r s -> r s d")
    first = class_vector(model).expand(1, 1, 12)
    expected = model.encoder(torch.cat([first, tokens.flatten(1, 2)], dim=1))
    assert_same(model.encode(x), expected)


# --- the output --------------------------------------------------------------------


@pytest.mark.question("nyu-1.5d")
def test_the_head_sees_the_normalized_class_token_and_nothing_else():
    model, x = small(), images()
    leaving: list[Tensor] = []
    last = model.encoder.layers[-1]
    with last.register_forward_hook(lambda *call: leaving.append(call[-1])):
        logits = model(x)
    assert leaving[0].shape == (3, 1 + 6, 12)
    token = leaving[0][:, 0]
    centered = token - token.mean(dim=-1, keepdim=True)
    scaled = centered / (centered.square().mean(dim=-1, keepdim=True) + 1e-6).sqrt()
    norm, head = model.encoder.final_norm.state_dict(), model.head.state_dict()
    features = scaled * norm["weight"] + norm["bias"]
    assert_same(model.features(x), features)
    assert_same(logits, features @ head["weight"].T + head["bias"])


@pytest.mark.question("nyu-1.5d")
def test_mean_pooling_can_replace_the_class_token():
    model, x = small(pool="mean"), images()
    assert model.class_token is None
    tokens = model.encode(x)
    assert tokens.shape == (3, 6, 12)
    assert_same(model.features(x), sum(tokens[:, i] for i in range(6)) / 6)
    head = model.head.state_dict()
    assert_same(model(x), model.features(x) @ head["weight"].T + head["bias"])


def test_a_fresh_head_is_for_other_classes():
    model, x = small(), images()
    features = model.features(x)
    model.reset_head(5)
    assert model(x).shape == (3, 5)
    assert model.config.num_classes == 5
    assert torch.equal(model.features(x), features)
    # Small weights, drawn anew, so that the first predictions are nearly uniform.
    assert 0.0 < model.head.weight.abs().max() < 0.1
    assert not model.head.bias.any()
    model.reset_head(None)
    assert torch.equal(model(x), features)


@pytest.mark.question("nyu-1.5d")
def test_the_head_of_pre_training_has_a_hidden_layer_with_tanh():
    model, x = small(pooler="tanh"), images()
    hidden: Any = model.pooler[0]
    head: Any = model.head
    y = model.encode(x)[:, 0]
    hidden_layer = torch.tanh(y @ hidden.weight.T + hidden.bias)
    assert_same(model(x), hidden_layer @ head.weight.T + head.bias)


@pytest.mark.unhooked
@pytest.mark.question("nyu-2")
def test_a_tiny_model_reads_digits_better_than_the_nearest_mean_image():
    """A null model stands beside it: the class whose mean image is nearest."""
    torch.manual_seed(1)
    data = load_digits()
    x = torch.tensor(data.images, dtype=torch.float32)[:, None] / 8 - 1
    y, held_out = torch.tensor(data.target), torch.arange(len(data.target)) % 5 == 0
    images, labels = x[~held_out], y[~held_out]
    sizes = {"num_classes": 10, "dim": 32, "depth": 2, "heads": 4, "channels": 1}
    model, steps = VisionTransformer(8, 2, **sizes), 300
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    for _ in range(steps):
        batch = torch.randint(0, len(labels), (64,))
        loss = F.cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    means = torch.stack([images[labels == digit].mean(0) for digit in range(10)])
    nearest = torch.cdist(x[held_out].flatten(1), means.flatten(1)).argmin(dim=-1)
    with torch.no_grad():
        guesses = model.eval()(x[held_out]).argmax(dim=-1)
    right, baseline = (
        (answers == y[held_out]).double().mean().item()
        for answers in (guesses, nearest)
    )
    assert baseline > 0.85
    assert right > baseline + 0.03


# --- what later models add: registers, layer scale, stochastic depth ----------------


def timm_vit(**options: Any) -> Any:
    """Build a model of timm with a 2×3 grid, no parameter at a special value."""
    sizes = {"img_size": (10, 9), "patch_size": (5, 3), "in_chans": 2, "depth": 3}
    sizes |= {"num_classes": 7, "embed_dim": 12, "num_heads": 3, "mlp_ratio": 1.5}
    theirs = timm.models.VisionTransformer(**sizes, **options).double().eval()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.5)
    return theirs


MODERN = [
    {"reg_tokens": 4, "no_embed_class": True, "init_values": 1e-5},  # DINOv2
    {"reg_tokens": 2, "no_embed_class": True, "global_pool": "avg", "fc_norm": True},
    {"class_token": False, "global_pool": "map"},  # SigLIP
    {"global_pool": "map", "reg_tokens": 3, "no_embed_class": True, "fc_norm": False},
    {"pre_norm": True, "final_norm": False, "fc_norm": False},
]


@pytest.mark.parametrize("options", MODERN, ids=lambda x: "-".join(x))
def test_tokens_features_and_logits_are_those_of_timm(options):
    theirs, x = timm_vit(**options), images()
    ours, tokens = from_timm(theirs), theirs.forward_features(x)
    assert tokens.std() > 0.1
    assert_same(ours.encode(x), tokens)
    assert_same(ours.features(x), theirs.forward_head(tokens, pre_logits=True))
    assert_same(ours(x), theirs(x))
    assert ours.config.prefix == theirs.num_prefix_tokens


@pytest.mark.parametrize("norm", [False, True])
def test_intermediate_layers_are_those_of_timm(norm):
    theirs, x = timm_vit(reg_tokens=4, no_embed_class=True, init_values=0.1), images()
    ours, indices = from_timm(theirs), [2, 0]
    found = ours.intermediate_layers(x, indices, norm=norm)
    theirs = theirs.forward_intermediates(
        x,
        sorted(indices),
        return_prefix_tokens=True,
        norm=norm,
        output_fmt="NLC",
        intermediates_only=True,
    )
    for tokens, (patches, prefix) in zip(found, reversed(theirs), strict=True):
        assert_same(tokens, torch.cat([prefix, patches], dim=1))


def test_intermediate_layers_end_with_what_leaves_the_encoder():
    model, x = small(registers=3, rotary={}, dim=24, depth=3), images()
    last, first, again = model.intermediate_layers(x, [-1, -3, 2], norm=True)
    assert_same(last, model.encode(x))
    assert torch.equal(last, again)
    assert differ(first, last)
    assert model.intermediate_layers(x, []) == []


def test_layers_after_the_last_that_is_wanted_do_not_run():
    model, ran = small(depth=3), []
    for i, layer in enumerate(model.encoder.layers):
        layer.register_forward_hook(lambda *_, i=i: ran.append(i))
    model.intermediate_layers(images(), [1, 0])
    assert ran == [0, 1]


@given(st.integers(0, 5), st.booleans(), st.sampled_from(["mean", "attention"]))
@settings(max_examples=12, deadline=None)
def test_registers_change_no_shape_but_that_of_the_sequence(registers, token, pool):
    model, x = small(registers=registers, class_token=token, pool=pool), images()
    prefix = model.config.prefix
    assert prefix == token + registers
    assert model.encode(x).shape == (3, prefix + 6, 12)
    (tokens,) = model.intermediate_layers(x, [0])
    assert tokens[:, prefix:].shape == (3, 6, 12)
    assert model.features(x).shape == (3, 12)
    assert model(x).shape == (3, 7)


def test_registers_stand_between_class_token_and_patches_without_a_position():
    model, x = small(registers=2), images()
    patches = model.positions(model.patch_embedding(x)).flatten(1, 2)
    assert model.registers is not None
    first = torch.stack([class_vector(model), *model.registers]).expand(3, 3, 12)
    assert torch.equal(model.embed(x), torch.cat([first, patches], dim=1))


@pytest.mark.parametrize("pool", ["class", "mean", "attention"])
def test_registers_are_attended_to_but_not_read(pool):
    model, x = small(registers=2, pool=pool), images()
    tokens = model.encode(x)
    first = model.config.class_token
    touched = tokens.clone()
    touched[:, first : first + 2] = torch.randn(2, 12, dtype=F64)
    assert torch.equal(model.pool(touched), model.pool(tokens))  # no head reads them
    before = model(x)
    with torch.no_grad():
        model.registers.copy_(torch.randn(2, 12, dtype=F64))
    assert differ(model(x), before)  # but every token may attend to them
    model(x).square().sum().backward()
    assert model.registers.grad.abs().min() > 0


def test_a_prefix_is_pooled_only_on_demand():
    model, x = small(registers=2, class_token=True, pool="mean"), images()
    model.config = replace(model.config, pool_prefix=True)
    assert_same(model.features(x), model.encode(x).mean(dim=1))


def test_the_order_of_registers_does_not_matter_to_other_tokens():
    """Without a position they are a set, as patches without positions are."""
    model, x = small(registers=3), images()
    tokens, order = model.encode(x), [2, 0, 1]
    with torch.no_grad():
        model.registers.copy_(model.registers[order].clone())
    assert_same(model.encode(x), tokens[:, [0, *(1 + i for i in order), *range(4, 10)]])


def test_a_class_token_needs_no_position_of_its_own():
    model, x = small(class_position=False), images()
    assert model.class_position is None
    assert torch.equal(model.embed(x)[:, 0], model.class_token.expand(3, 12))
    count, whole = (sum(p.numel() for p in m.parameters()) for m in (model, small()))
    assert whole - count == 12


def test_layer_scale_is_that_of_timm():
    ours = LayerScale(12, initial=0.25, dtype=F64)
    theirs = timm.layers.LayerScale(12, init_values=0.25, dtype=F64)
    assert torch.equal(ours.weight, theirs.gamma)
    nn.init.normal_(ours.weight)
    theirs.load_state_dict({"gamma": ours.weight})
    x = torch.randn(3, 5, 12, dtype=F64, requires_grad=True)
    upstream = torch.randn_like(x)
    assert_same(ours(x), theirs(x))
    found = torch.autograd.grad(ours(x), [x, ours.weight], upstream)
    expected = torch.autograd.grad(theirs(x), [x, theirs.gamma], upstream)
    for a, b in zip(found, expected, strict=True):
        assert_same(a, b)


def test_layer_scale_multiplies_what_each_sublayer_adds():
    layer, x = small(layer_scale=0.5).encoder.layers[0], torch.randn(3, 5, 12).double()
    y = x + layer.attention_scale.weight * layer.attention(layer.attention_norm(x))
    z = layer.feed_forward(layer.feed_forward_norm(y))
    assert_same(layer(x), y + layer.feed_forward_scale.weight * z)
    assert differ(layer.attention_scale.weight, layer.feed_forward_scale.weight)


def test_layers_begin_near_the_identity_with_a_small_layer_scale():
    x = images()
    changes = []
    for initial in (1e-5, 1e-1, None):
        torch.manual_seed(0)
        sizes = {"num_classes": 7, "dim": 12, "depth": 8, "heads": 3, "channels": 2}
        model = VisionTransformer((10, 9), (5, 3), **sizes, layer_scale=initial)
        (end,) = model.intermediate_layers(x.float(), [7])
        changes.append((end - model.embed(x.float())).abs().max().item())
    assert changes[0] < 1e-3
    assert changes[0] < changes[1] < changes[2]


def test_drop_path_is_torchvisions_stochastic_depth():
    """Both drop samples, and give the same values: 0, or the input over 1 - p."""
    ours, theirs = DropPath(0.3), torchvision.ops.StochasticDepth(0.3, mode="row")
    x = torch.randn(4000, 3, 5, dtype=F64)
    shares = []
    for drop in (ours, theirs):
        factors = drop(x) / x
        assert_same(factors, factors[:, :1, :1].expand_as(x))  # one for a sample
        values = factors[:, 0, 0]
        assert_same(values, (values > 0.5).double() / 0.7)
        shares.append((values == 0).double().mean().item())
        assert drop.eval()(x) is x
    # Four standard errors of a share among 4000.
    assert shares == pytest.approx([0.3, 0.3], abs=4 * math.sqrt(0.3 * 0.7 / 4000))


def test_stochastic_depth_grows_linearly_with_the_layer():
    layers: Any = small(depth=4, drop_path=0.6).encoder.layers
    # Equation 4 of Huang et al. (2016), for the probability to survive.
    survive = [1 - number / 4 * 0.6 for number in (1, 2, 3, 4)]
    assert [1 - layer.drop_path.p for layer in layers] == pytest.approx(survive)


def network(layer: Any, x: Tensor) -> Tensor:
    return layer.feed_forward(layer.feed_forward_norm(x))


def test_a_sample_whose_branches_are_dropped_leaves_a_layer_as_it_came():
    layer = small(depth=1, drop_path=0.5).encoder.layers[0]
    x = torch.randn(1, 5, 12, dtype=F64).expand(2000, 5, 12)
    y = x + 2.0 * layer.attention(layer.attention_norm(x))  # kept, over 1 - p
    ends = [x, y, *(end + 2.0 * network(layer, end) for end in (x, y))]
    found = layer(x)
    same = torch.stack([(found - end).abs().amax((1, 2)) < 1e-10 for end in ends])
    assert same.sum(dim=0).eq(1).all()  # each sample took one of the four ways
    # Each way has a probability of a quarter; four standard errors.
    assert (same.double().mean(dim=1) - 0.25).abs().max() < 4 * math.sqrt(3 / 32000)


# --- rotary positions ---------------------------------------------------------------


@pytest.mark.parametrize("layout", ["pairs", "halves"])
def test_patches_are_rotated_as_by_timm(layout):
    half, settings = layout == "halves", {"base": 50.0, "layout": layout}
    model = small(dim=24, registers=2, rotary=settings)
    x, heads = images(height=20), torch.randn(2, 3, 3 + 12, 8, dtype=F64)
    theirs = RotaryEmbeddingCat(
        8, in_pixels=False, temperature=50.0, rotate_half=half, feat_shape=[4, 3]
    )
    table = theirs.get_embed().double()  # computed in single precision
    wanted = apply_rot_embed_cat(heads[..., 3:, :], table, half=half)
    turned: list[Tensor] = []
    model.rotary.register_forward_hook(lambda *call: turned.append(call[-1]))
    model._rotation(x)(heads)
    assert torch.equal(turned[0][..., :3, :], heads[..., :3, :])  # no position
    torch.testing.assert_close(turned[0][..., 3:, :], wanted, rtol=0.0, atol=1e-5)


def attention_in_the_first_layer(model: VisionTransformer, x: Tensor) -> Tensor:
    with capture_weights(model) as weights:
        model(x)
    return next(iter(weights.values()))[0][0]


def test_rotary_scores_depend_on_the_offset_alone():
    """All patches of a gray image are equal, so that only positions can matter."""
    options = {"dim": 24, "pool": "mean", "positions": "none", "rotary": {}}
    model, gray = small(**options), torch.ones(1, 2, 20, 15, dtype=F64)
    weights = attention_in_the_first_layer(model, gray)
    assert differ(weights, weights.mean(dim=-1, keepdim=True).expand_as(weights))
    # Logarithms of weights are scores up to a constant of the row.
    scores = rearrange(weights.log(), "h (r s) (t u) -> r s t u h", r=4, s=5, t=4, u=5)
    # From cell (1, 1) and from cell (2, 3), the same three neighbors.
    for down, right in ((0, 1), (1, 0), (-1, -1)):
        here = scores[1, 1, 1 + down, 1 + right] - scores[1, 1, 1, 1]
        there = scores[2, 3, 2 + down, 3 + right] - scores[2, 3, 2, 3]
        assert_same(here, there)
        assert here.abs().min() > 1e-6
    absolute = small(dim=24, pool="mean")
    scores = attention_in_the_first_layer(absolute, gray[..., :10, :9]).log()
    here, there = scores[:, 0, 1] - scores[:, 0, 0], scores[:, 1, 2] - scores[:, 1, 1]
    assert differ(here, there)  # a table of positions promises no such thing


def test_rotary_positions_tell_an_image_from_its_shuffled_patches():
    x = images()
    options = {"dim": 24, "positions": "none"}
    shuffled = x.roll(5, -2)  # exchanges the two rows of patches
    for rotary, matters in (({}, True), (None, False)):
        model = small(**options, rotary=rotary)
        assert differ(model(shuffled), model(x)) == matters
        names = {name for name, _ in model.named_parameters()}
        assert not any("positions" in name or "rotary" in name for name in names)


# --- attention pooling --------------------------------------------------------------


def test_attention_pooling_and_its_gradients_are_those_of_timm():
    theirs = timm.layers.AttentionPoolLatent(
        12, num_heads=3, mlp_ratio=1.5, norm_layer=nn.LayerNorm, dtype=F64
    )
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.5)
    ours = AttentionPooling(12, heads=3, hidden_dim=18, eps=1e-5, dtype=F64)
    key, value = theirs.kv.weight.chunk(2), theirs.kv.bias.chunk(2)
    parts = {
        "attention.query_proj": theirs.q.state_dict(),
        "attention.key_proj": {"weight": key[0], "bias": value[0]},
        "attention.value_proj": {"weight": key[1], "bias": value[1]},
        "attention.output_proj": theirs.proj.state_dict(),
        "norm": theirs.norm.state_dict(),
        "feed_forward.hidden_proj": theirs.mlp.fc1.state_dict(),
        "feed_forward.output_proj": theirs.mlp.fc2.state_dict(),
    }
    for name, state in parts.items():
        ours.get_submodule(name).load_state_dict(state)
    with torch.no_grad():
        ours.probe.copy_(theirs.latent[0, 0])
    x = torch.randn(4, 5, 12, dtype=F64, requires_grad=True)
    upstream = torch.randn(4, 12, dtype=F64)
    assert theirs(x).std() > 0.1
    assert_same(ours(x), theirs(x))
    found = torch.autograd.grad(ours(x), [x, ours.probe], upstream)
    wanted = torch.autograd.grad(theirs(x), [x, theirs.latent], upstream)
    assert_same(found[0], wanted[0])
    assert_same(found[1], wanted[1][0, 0])


def test_attention_pooling_starts_as_timms_does() -> None:
    torch.manual_seed(0)
    pooling = AttentionPooling(900, heads=3, hidden_dim=7)
    theirs = timm.layers.AttentionPoolLatent(900, num_heads=3)
    for probe in (pooling.probe, theirs.latent):
        assert probe.std().item() == pytest.approx(900**-0.5, rel=0.2)
        assert probe.abs().max() < 5 * 900**-0.5
    assert pooling.norm.eps == 1e-6


def test_a_probe_of_zero_and_plain_projections_pool_by_the_mean():
    """Uniform attention: mean pooling is a special case of attention pooling."""
    pooling = AttentionPooling(12, heads=3, hidden_dim=17, dtype=F64)
    for parameter in (*pooling.feed_forward.parameters(), pooling.probe):
        nn.init.zeros_(parameter)
    for projection in (pooling.attention.value_proj, pooling.attention.output_proj):
        nn.init.eye_(projection.weight)
        nn.init.zeros_(projection.bias)
    nn.init.zeros_(pooling.attention.query_proj.bias)
    x = torch.randn(4, 5, 12, dtype=F64)
    assert_same(pooling(x), x.mean(dim=1))


def test_attention_pooling_drops_weights_and_hidden_units():
    pooling = AttentionPooling(12, heads=3, hidden_dim=17, dropout=0.25)
    assert pooling.attention.dropout == pooling.feed_forward.dropout.p == 0.25


def test_attention_pooling_has_heads_and_a_width_of_its_own():
    model = small(pool="attention", pool_heads=2, pool_hidden_dim=5)
    assert model.attention_pooling.attention.heads == 2
    assert model.attention_pooling.feed_forward.hidden_proj.out_features == 5
    assert model.config.heads == 3


# --- settings and preprocessing -----------------------------------------------------

LATER: dict[str, Any] = {
    "dim": 24,
    "registers": 2,
    "rotary": {"base": 100.0, "reference": (2, 3)},
    "class_position": False,
    "patch_bias": False,
    "embedding_norm": True,
    "layer_scale": 1e-3,
    "drop_path": 0.2,
    "pool": "attention",
    "pool_heads": 2,
}


def test_a_model_is_built_again_from_its_settings_even_after_json():
    model = small(**LATER).eval()
    settings = json.loads(json.dumps(asdict(model.config)))
    pairs = {name: tuple(settings[name]) for name in ("image_size", "patch_size")}
    again = VisionTransformer(**{**settings, **pairs}, dtype=F64).eval()
    assert again.config == model.config
    again.load_state_dict(model.state_dict())
    x = images()
    assert torch.equal(again(x), model(x))


def photograph(height: int, width: int, mode: str = "RGB") -> PIL.Image.Image:
    """Draw waves with some noise: smooth and sharp parts, all bytes, no symmetry."""
    rng = np.random.default_rng(height)
    rows, columns = np.mgrid[:height, :width]
    waves = np.sin(rows / 5 + np.arange(4)[:, None, None]) * np.cos(columns / 7)
    pixels = 127.5 + 100 * waves + 27 * rng.standard_normal((4, height, width))
    pixels = pixels.clip(0, 255).astype(np.uint8).transpose(1, 2, 0)
    channels = {"L": np.s_[..., 0], "RGB": np.s_[..., :3], "RGBA": np.s_[...]}
    return PIL.Image.fromarray(np.ascontiguousarray(pixels[channels[mode]]), mode)


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize(
    ("size", "crop", "fraction"),
    [
        (24, "center", 0.875),
        (31, "center", 1.0),
        ((24, 40), "center", 0.9),
        (28, "squash", 1.0),
        ((20, 36), "squash", 0.95),
        (224, "center", 224 / 242),
    ],
)
def test_images_are_prepared_as_by_timm(interpolation, size, crop, fraction):
    mean, std = (0.48, 0.46, 0.41), (0.27, 0.26, 0.28)
    ours = Preprocessing(size, mean, std, interpolation, fraction, crop)
    theirs = timm.data.create_transform(
        size,
        interpolation=interpolation,
        mean=mean,
        std=std,
        crop_pct=fraction,
        crop_mode=crop,
    )
    for height, width in ((57, 91), (90, 41), (33, 33), (33, 91)):
        image = photograph(height, width)
        torch.testing.assert_close(
            ours.transform(image), theirs(image), rtol=0.0, atol=1e-6
        )


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic"])
def test_tensors_of_bytes_are_resized_as_by_torchvision(interpolation):
    ours = Preprocessing((24, 40), interpolation=interpolation, crop_fraction=0.9)
    pixels = torch.from_numpy(np.array(photograph(57, 91))).permute(2, 0, 1)
    # 26 and 44 at the least, with the proportions kept.
    resized = functional.resize(
        pixels.float(),
        [28, 44],
        torchvision.transforms.InterpolationMode(interpolation),
        antialias=True,
    )
    cropped = functional.center_crop(resized, [24, 40])
    mean, std = (torch.tensor(x)[:, None, None] for x in (ours.mean, ours.std))
    wanted = (cropped.clamp(0, 255).round() / 255 - mean) / std
    found = ours.transform(pixels)
    torch.testing.assert_close(found, wanted, rtol=0.0, atol=1e-6)
    batch = torch.stack([pixels, pixels.flip(-1)])
    assert torch.equal(ours.transform(batch)[0], found)


@pytest.mark.parametrize("size", [(12, 12), (20, 20), (12, 20)])
def test_a_tensor_of_another_shape_is_resized(size):
    ours = Preprocessing(size, crop_fraction=1.0, crop="squash")
    assert ours.transform(torch.zeros(3, 12, 20, dtype=torch.uint8)).shape[1:] == size
    nowhere = torch.empty(3, 12, 20, dtype=torch.uint8, device="meta")
    assert ours.transform(nowhere).device == nowhere.device


@pytest.mark.unhooked
def test_colors_are_normalized_as_on_imagenet_unless_told():
    weights = torchvision.models.ViT_B_16_Weights.DEFAULT.transforms()
    plain = Preprocessing(8)
    assert [*plain.mean] == weights.mean
    assert [*plain.std] == weights.std
    assert Preprocessing(8, [*plain.mean], [*plain.std]) == plain  # as JSON has them


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
def test_images_get_the_channels_that_the_model_has(mode):
    image = photograph(40, 30, mode)
    if mode == "RGBA":
        image.putalpha(255)  # another alpha may not be dropped
    for channels, converted in ((1, "L"), (3, "RGB"), (4, "RGBA")):
        mean, std = (0.5,) * channels, (0.25,) * channels
        plain = Preprocessing((40, 30), mean, std, crop_fraction=1.0)
        pixels = np.array(image.convert(converted), dtype=np.float32) / 255
        pixels = pixels.reshape(40, 30, channels).transpose(2, 0, 1)
        torch.testing.assert_close(
            plain.transform(image), torch.from_numpy((pixels - 0.5) / 0.25)
        )


# --- initialization, dropout and export --------------------------------------------


def test_fresh_models_guess_evenly_but_not_blindly():
    model = VisionTransformer(12, 4, num_classes=10, dim=48, depth=2, heads=3)
    x = torch.randn(64, 3, 12, 12)
    logits = model(x)
    assert logits.std() > 0.01
    loss = F.cross_entropy(logits, torch.arange(64) % 10)
    assert loss.item() == pytest.approx(math.log(10), abs=0.1)
    logits.square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        assert parameter.grad.abs().sum() > 0 or name.endswith("key_proj.bias")


def test_fresh_tokens_vary_as_much_as_pixels():
    for patch in (2, 16):
        tokens = PatchEmbedding(patch, 3, 256)(torch.randn(4, 3, 32, 32))
        assert tokens.var().item() == pytest.approx(1.0, abs=0.1)
    model = VisionTransformer(32, 4, num_classes=10, dim=256, depth=1, heads=2)
    vectors = (model.class_token, model.class_position)
    for drawn in (*vectors, model.positions.weight, model.head.weight):
        assert drawn.std().item() == pytest.approx(0.02, rel=0.2)
    hidden = model.encoder.layers[0].feed_forward.hidden_proj
    bound = math.sqrt(6 / (256 + 1024))
    assert 0.99 * bound < hidden.weight.abs().max() <= bound
    assert not hidden.bias.any()


def test_dropout_also_acts_on_the_tokens_that_enter():
    model = small(dropout=0.5)
    entering: list[Tensor] = []
    with model.encoder.register_forward_pre_hook(lambda _, x: entering.append(x[0])):
        model(images(batch=30))
    assert (entering[0] == 0).double().mean().item() == pytest.approx(0.5, abs=0.05)


@pytest.mark.unhooked
@pytest.mark.parametrize("positions", ["axial", "sinusoidal", "rotary"])
def test_models_compile_and_export_with_any_size_but_that_of_learned_positions(
    positions,
):
    """Learned embeddings are resampled for every size but their own: two graphs."""
    torch.compiler.reset()
    kind = LATER | {"positions": "none"} if positions == "rotary" else {}
    model = small(**{"positions": positions, "depth": 1, **kind}).eval()
    x = images(3, 20, 15)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    assert_same(compiled(x), model(x))
    rows, columns = Dim("rows", min=3, max=9), Dim("columns", min=4, max=9)
    shapes = ({0: Dim("batch"), 2: 5 * rows, 3: 3 * columns},)
    exported = torch.export.export(model, (x,), dynamic_shapes=shapes, strict=True)
    for height, width in ((20, 15), (15, 27), (35, 12)):
        x = images(2, height, width)
        assert_same(exported.module()(x), model(x))


# --- malformed calls ---------------------------------------------------------------


def embed(patch_size: Any) -> Tensor:
    return PatchEmbedding(patch_size, channels=3, dim=5)(torch.zeros(2, 3, 8, 12))


def vit(**options: Any) -> VisionTransformer:
    sizes = {"num_classes": 7, "dim": 12, "depth": 1, "heads": 3}
    return VisionTransformer(**{"image_size": 8, "patch_size": 4, **sizes, **options})


def layers(*indices: Any) -> list[Tensor]:
    return vit().intermediate_layers(torch.zeros(2, 3, 8, 8), indices)


def prepare(interpolation: Any = "bicubic", **options: Any) -> Any:
    return Preprocessing(8, interpolation=interpolation, **options).transform


def preset(name: str, **options: Any) -> VisionTransformer:
    return VisionTransformer.from_preset(name, num_classes=7, **options)


@pytest.mark.unhooked
@bad_calls(
    ("no height", lambda: embed(0), ValueError, "patch_size height must be … got 0"),
    ("no color", lambda: PatchEmbedding(4, 0, 8), ValueError, "channels must be … 0"),
    ("3-D patches", lambda: embed((2, 3, 5)), ValueError, "one integer or two, got (2"),
    ("too large", lambda: vit(patch_size=16), ValueError, "patch of 16×16 … of 8×8"),
    ("no depth", lambda: vit(depth=0), ValueError, "depth must be a positive integer"),
    ("no classes", lambda: vit(num_classes=0), ValueError, "num_classes must be … 0"),
    ("maximum", lambda: vit(pool="max"), ValueError, "pool must be one of … 'max'"),
    ("pooler", lambda: vit(pooler="relu"), ValueError, "('norm', 'tanh', None), got"),
    ("no token", lambda: vit(class_token=False), ValueError, "needs a class token"),
    ("rotary", lambda: vit(positions="rotary"), ValueError, "('learned', … got 'rot"),
    ("sines", lambda: vit(positions="sinusoidal", dim=6), ValueError, "of 4, got 6"),
    ("XL", lambda: preset("ViT-XL/16"), ValueError, "ViT-Ti, … got 'ViT-XL/16'"),
    ("registers", lambda: vit(registers=-1), ValueError, "registers must be … got -1"),
    ("no heads", lambda: vit(pool_heads=0), ValueError, "pool_heads must be … got 0"),
    ("no width", lambda: vit(pool_hidden_dim=0), ValueError, "pool_hidden_dim must be"),
    ("5 heads", lambda: vit(pool="attention", pool_heads=5), ValueError, "5 heads"),
    (
        "drops all",
        lambda: vit(drop_path=1.0),
        ValueError,
        "drop_path must be in [0, 1)",
    ),
    ("drops less", lambda: DropPath(-0.1), ValueError, "p must be in [0, 1), got -0.1"),
    ("no factors", lambda: LayerScale(0), ValueError, "dim must be a positive integer"),
    ("odd heads", lambda: vit(rotary={}, dim=18), ValueError, "multiple of 4, got 6"),
    ("no such base", lambda: vit(rotary={"bass": 9}), TypeError, "argument 'bass'"),
    ("layer 1 of 1", lambda: layers(1), ValueError, "from -1 to 0, got [1]"),
    ("layer -2 of 1", lambda: layers(0, -2), ValueError, "from -1 to 0, got [0, -2]"),
    ("half a layer", lambda: layers(0.5), ValueError, "be integers … 0, got [0.5]"),
    ("a name", lambda: layers(0, "a"), ValueError, "be integers … 0, got [0, 'a']"),
    ("no size", lambda: Preprocessing(0), ValueError, "size height must be … got 0"),
    ("lanczos", lambda: prepare("lanczos"), ValueError, "interpolation must be … 'lan"),
    ("one mean", lambda: Preprocessing(8, (0.5,)), ValueError, "got (0.5,) and (0.2"),
    (
        "flat",
        lambda: Preprocessing(8, std=(1, 0, 1)),
        ValueError,
        "std must be positive",
    ),
    ("fraction", lambda: prepare(crop_fraction=0), ValueError, "in (0, 1], got 0"),
    ("border", lambda: prepare(crop_fraction=1.5), ValueError, "in (0, 1], got 1.5"),
    ("a crop", lambda: prepare(crop="border"), ValueError, "crop must be … 'border'"),
    ("floats", lambda: prepare()(torch.zeros(3, 9, 9)), TypeError, "a tensor of bytes"),
    ("a path", lambda: prepare()("horse.png"), TypeError, "must be a Pillow image"),
    ("NumPy", lambda: prepare()(np.zeros((9, 9, 3))), TypeError, "a Pillow image or"),
    (
        "bytes with channels last",
        lambda: prepare()(torch.zeros(9, 7, 3, dtype=torch.uint8)),
        ValueError,
        "image must be (..., 3, height, width), got shape (9, 7, 3)",
    ),
    (
        "a patch that does not divide the image",
        lambda: embed((4, 5)),
        ValueError,
        "the patch must divide … a patch of 4×5 and an image of 8×12 pixels",
    ),
    (
        "channels last",
        lambda: vit()(torch.zeros(2, 8, 8, 3)),
        ValueError,
        "images must be (b, 3, height, width), got shape (2, 8, 8, 3)",
    ),
    (
        "a preset that is to be trained",
        lambda: preset("ViT-B/16", pretrained=True),
        TypeError,
        "VisionTransformer.from_preset() has no argument 'pretrained'",
    ),
    (
        "timm's keyword",
        lambda: vit(mlp_ratio=4),
        TypeError,
        "VisionTransformer() has no argument 'mlp_ratio'; did you mean 'hidden_dim'?",
    ),
)
def test_malformed_calls_get_clear_errors(call, error, message):
    assert_refused(call, error, message)


def test_a_norm_after_pooling_takes_the_place_of_the_one_before_it():
    options = {"num_classes": 7, "dim": 12, "depth": 2, "heads": 3, "hidden_dim": 20}
    for pooler in (None, "norm"):
        model = VisionTransformer(8, 4, pool="mean", pooler=pooler, **options)
        assert isinstance(model.encoder.final_norm, nn.Identity) == (pooler == "norm")
