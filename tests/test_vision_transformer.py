"""Chapter 7: pictures as sequences of patches."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchvision
from einops import rearrange
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.export import Dim
from torch.nn.attention import SDPBackend, sdpa_kernel

from transformers_hw.transformer import DecoderLayer
from transformers_hw.vision_transformer import (
    LearnedAxes2D,
    PatchEmbedding,
    VisionTransformer,
)

POSITIONS = ("learned", "learned_axes", "sinusoidal", "none")


def small(**options: Any) -> VisionTransformer:
    """Build a model of a 2×3 grid of patches, with no parameter at a special value."""
    sizes = {"classes": 7, "dim": 12, "depth": 2, "heads": 3, "hidden_dim": 17}
    options = {"channels": 2, "dtype": torch.float64, **sizes, **options}
    model = VisionTransformer((10, 9), (5, 3), **options)
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.is_meta:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def pictures(batch: int = 3, height: int = 10, width: int = 9) -> Tensor:
    return torch.randn(batch, 2, height, width, dtype=torch.float64)


def assert_same(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0.0, atol=1e-10)


def class_vector(model: VisionTransformer) -> Tensor:
    assert model.class_token is not None
    assert model.class_position is not None
    return model.class_token + model.class_position


def shuffled_patches(x: Tensor, order: Tensor) -> Tensor:
    """Move the 5×3 patches of pictures of 2×3 patches to other places."""
    sizes = {"r": 2, "s": 3}
    patches = rearrange(x, "b c (r i) (s j) -> (r s) b c i j", **sizes)
    return rearrange(patches[order], "(r s) b c i j -> b c (r i) (s j)", **sizes)


# Patches


@given(*[st.integers(1, 4)] * 7)
@settings(max_examples=25, deadline=None)
@pytest.mark.question("quiz-2.9")
def test_a_token_is_a_linear_map_of_the_pixels_of_its_patch(
    batch: int, channels: int, rows: int, columns: int, i: int, j: int, dim: int
) -> None:
    embedding = PatchEmbedding((i, j), channels, dim, dtype=torch.float64)
    x = torch.randn(batch, channels, rows * i, columns * j, dtype=torch.float64)
    tokens = embedding(x)
    assert tokens.shape == (batch, rows, columns, dim)
    weight, bias = embedding.proj.weight, embedding.proj.bias
    for r in range(rows):
        for s in range(columns):
            patch = x[:, :, r * i : r * i + i, s * j : s * j + j]
            expected = torch.stack([weight @ one.flatten() + bias for one in patch])
            assert_same(tokens[:, r, s], expected)


def test_rows_and_columns_are_not_confused() -> None:
    """Number the patches of a 2×3 grid, and read the numbers off the tokens."""
    embedding = PatchEmbedding((5, 3), channels=1, dim=1, dtype=torch.float64)
    nn.init.constant_(embedding.proj.weight, 1 / 15)
    numbers = torch.arange(6.0, dtype=torch.float64).view(2, 3)
    picture = numbers.repeat_interleave(5, 0).repeat_interleave(3, 1)[None, None]
    assert_same(embedding(picture)[0, :, :, 0], numbers)
    other_way = PatchEmbedding((3, 5), channels=1, dim=1, dtype=torch.float64)
    nn.init.constant_(other_way.proj.weight, 1 / 15)
    assert_same(other_way(picture.mT)[0, :, :, 0], numbers.T)


def test_a_transposed_picture_gives_other_tokens() -> None:
    embedding = PatchEmbedding(3, channels=2, dim=5, dtype=torch.float64)
    x = torch.randn(1, 2, 6, 6, dtype=torch.float64)
    tokens = rearrange(embedding(x), "1 r s d -> (r s) d")
    transposed = rearrange(embedding(x.mT), "1 r s d -> (r s) d")
    # Not even in another order: the pixels of a patch stand in other places too.
    assert torch.cdist(tokens, transposed).min() > 0.01


@pytest.mark.question("nyu-1.5a")
@pytest.mark.question("quiz-2.9")
def test_a_patch_embedding_is_a_convolution_whose_stride_is_its_kernel() -> None:
    embedding = PatchEmbedding((5, 3), channels=2, dim=7, dtype=torch.float64)
    nn.init.normal_(embedding.proj.bias)
    convolution = embedding.as_convolution()
    assert convolution.kernel_size == convolution.stride == (5, 3)
    x = torch.randn(4, 2, 10, 9, dtype=torch.float64)
    assert_same(embedding(x), rearrange(convolution(x), "b d r s -> b r s d"))


@pytest.mark.question("nyu-1.5a")
def test_any_convolution_that_tiles_the_picture_is_a_patch_embedding() -> None:
    convolution = nn.Conv2d(2, 7, (5, 3), stride=(5, 3), dtype=torch.float64)
    embedding = PatchEmbedding((5, 3), channels=2, dim=7, dtype=torch.float64)
    weight, bias = convolution.weight, convolution.bias
    embedding.proj.load_state_dict({"weight": weight.flatten(1), "bias": bias})
    x = torch.randn(4, 2, 10, 9, dtype=torch.float64)
    assert_same(embedding(x), rearrange(convolution(x), "b d r s -> b r s d"))


def test_the_convolution_is_a_copy() -> None:
    embedding = PatchEmbedding(2, channels=3, dim=5)
    before = embedding.proj.weight.clone()
    convolution = embedding.as_convolution()
    nn.init.zeros_(convolution.weight)
    assert torch.equal(embedding.proj.weight, before)
    assert convolution.weight.requires_grad


@pytest.mark.question("nyu-1.5a")
def test_only_the_patch_embedding_has_a_window_on_the_picture() -> None:
    """A pixel reaches one token by the embedding, all tokens by one attention."""
    model, x = small(depth=1), pictures(batch=1)
    assert not any(isinstance(part, nn.Conv2d) for part in model.modules())
    touched = x.clone()
    touched[0, 1, 7, 4] += 1.0  # row 7 of 10 and column 4 of 9: patch (1, 1)
    tokens = model.patch_embedding(touched) != model.patch_embedding(x)
    assert tokens.any(dim=-1)[0].tolist() == [[False] * 3, [False, True, False]]
    outputs = model.encode(touched) != model.encode(x)
    assert outputs.any(dim=-1).all()


# The model, against others


def torchvision_model() -> torchvision.models.VisionTransformer:
    model = torchvision.models.VisionTransformer(
        image_size=15,
        patch_size=5,
        num_layers=2,
        num_heads=2,
        hidden_dim=14,
        mlp_dim=11,
        num_classes=7,
    ).double()
    for parameter in model.parameters():  # the head and class token start at zero
        nn.init.normal_(parameter, std=0.5)
    return model


def in_our_names(theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename torchvision's tensors, be they weights or gradients."""
    ours = {
        "patch_embedding.proj.weight": theirs["conv_proj.weight"].flatten(1),
        "patch_embedding.proj.bias": theirs["conv_proj.bias"],
        "class_token": theirs["class_token"].flatten(),
        "class_position": theirs["encoder.pos_embedding"][0, 0],
        "positions.cells.table": theirs["encoder.pos_embedding"][0, 1:],
    }
    parts = {
        "ln_1": "attention_norm",
        "ln_2": "feed_forward_norm",
        "self_attention.out_proj": "attention.output_proj",
        "mlp.0": "feed_forward.hidden_proj",
        "mlp.3": "feed_forward.output_proj",
    }
    for kind in ("weight", "bias"):
        ours[f"encoder.final_norm.{kind}"] = theirs[f"encoder.ln.{kind}"]
        ours[f"head.{kind}"] = theirs[f"heads.head.{kind}"]
        for layer in (0, 1):
            there = f"encoder.layers.encoder_layer_{layer}"
            here = f"encoder.layers.{layer}"
            for old, new in parts.items():
                ours[f"{here}.{new}.{kind}"] = theirs[f"{there}.{old}.{kind}"]
            stacked = theirs[f"{there}.self_attention.in_proj_{kind}"].chunk(3)
            for name, tensor in zip(("query", "key", "value"), stacked, strict=True):
                ours[f"{here}.attention.{name}_proj.{kind}"] = tensor
    return ours


@pytest.mark.question("nyu-1.5b")
@pytest.mark.question("nyu-2")
def test_outputs_and_gradients_are_those_of_torchvision() -> None:
    theirs = torchvision_model()
    ours = VisionTransformer(
        15, 5, classes=7, dim=14, depth=2, heads=2, hidden_dim=11, dtype=torch.float64
    )
    ours.load_state_dict(in_our_names(theirs.state_dict()))
    x = torch.randn(4, 3, 15, 15, dtype=torch.float64)
    upstream = torch.randn(4, 7, dtype=torch.float64)
    expected, actual = theirs(x), ours(x)
    assert expected.std() > 0.1  # two models that give nothing agree as well
    assert_same(actual, expected)
    expected.backward(upstream)
    actual.backward(upstream)
    gradients = {n: p.grad for n, p in theirs.named_parameters() if p.grad is not None}
    for name, gradient in in_our_names(gradients).items():
        assert_same(ours.get_parameter(name).grad, gradient)  # pyright: ignore
        assert gradient.abs().max() > 1e-3 or name.endswith("key_proj.bias")


@pytest.mark.question("nyu-1.5b")
def test_the_model_is_a_pre_norm_encoder_with_gelu_and_no_decoder() -> None:
    model, x = small(depth=1), pictures()
    reference = nn.TransformerEncoderLayer(
        12,
        3,
        17,
        dropout=0.0,
        activation="gelu",
        layer_norm_eps=1e-6,
        batch_first=True,
        norm_first=True,
        dtype=torch.float64,
    )
    ours = model.encoder.get_submodule("layers.0").state_dict()
    stack = [f"attention.{name}_proj" for name in ("query", "key", "value")]
    names = {
        "self_attn.out_proj": "attention.output_proj",
        "norm1": "attention_norm",
        "norm2": "feed_forward_norm",
        "linear1": "feed_forward.hidden_proj",
        "linear2": "feed_forward.output_proj",
    }
    state = {}
    for kind in ("weight", "bias"):
        state[f"self_attn.in_proj_{kind}"] = torch.cat(
            [ours[f"{name}.{kind}"] for name in stack]
        )
        state |= {f"{t}.{kind}": ours[f"{o}.{kind}"] for t, o in names.items()}
    reference.load_state_dict(state)

    tokens = model.positions(model.patch_embedding(x)).flatten(1, 2)
    first = class_vector(model).expand(3, 1, 12)
    z = reference(torch.cat([first, tokens], dim=1))
    norm = model.encoder.final_norm
    expected = F.layer_norm(z, (12,), norm.weight, norm.bias, 1e-6)
    assert_same(model.encode(x), expected)
    assert not any(isinstance(part, DecoderLayer) for part in model.modules())


@pytest.mark.question("nyu-1.5b")
def test_every_token_sees_every_other_and_none_is_hidden() -> None:
    model, x = small(depth=1), pictures(batch=1)
    for order in range(6):
        touched = x.clone()
        row, column = divmod(order, 3)
        touched[:, :, 5 * row, 3 * column] += 1.0
        changed = (model.encode(touched) != model.encode(x)).any(dim=-1)
        assert changed.all()


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
def test_presets_have_the_published_numbers_of_parameters(
    name: str, parameters: int
) -> None:
    model = VisionTransformer.from_preset(name, classes=1000, device="meta")
    d, depth, p = model.head.in_features, len(model.encoder.layers), int(name[-2:])
    tokens = 1 + (224 // p) ** 2
    embedding = (3 * p**2 + 1) * d + (1 + tokens) * d
    layer = 4 * (d**2 + d) + (4 * d**2 + 4 * d) + (4 * d**2 + d) + 4 * d
    formula = embedding + depth * layer + 2 * d + (d + 1) * 1000
    counted = sum(parameter.numel() for parameter in model.parameters())
    assert counted == formula == parameters
    # Heads do not show in the count: those of all sizes but H are 64 wide.
    width = 80 if name == "ViT-H/14" else 64
    assert model.encoder.layers[0].attention.heads == d / width


@pytest.mark.parametrize("size", ["b_16", "b_32", "l_16", "l_32", "h_14"])
def test_presets_are_as_large_as_torchvision_s(size: str) -> None:
    with torch.device("meta"):
        theirs = getattr(torchvision.models, f"vit_{size}")()
    name = f"ViT-{size[0].upper()}/{size[2:]}"
    ours = VisionTransformer.from_preset(name, classes=1000, device="meta")
    counts = [
        sum(parameter.numel() for parameter in model.parameters())
        for model in (theirs, ours)
    ]
    assert counts[0] == counts[1] > 80_000_000
    heads = theirs.encoder.layers[0].self_attention.num_heads
    assert ours.encoder.layers[0].attention.heads == heads
    assert len(ours.encoder.layers) == len(theirs.encoder.layers)


def test_presets_pass_their_options_on() -> None:
    model = VisionTransformer.from_preset(
        "ViT-Ti/8",
        classes=7,
        picture=(16, 24),
        channels=2,
        pool="mean",
        positions="none",
        dropout=0.25,
        dtype=torch.float64,
    ).eval()
    assert model.grid == (2, 3)
    assert model.class_token is None
    assert model.dropout.p == model.encoder.layers[0].attention.dropout == 0.25
    assert model(torch.randn(1, 2, 16, 24, dtype=torch.float64)).shape == (1, 7)


# Positions


@pytest.mark.question("nyu-1.5c")
@pytest.mark.parametrize("pool", ["class", "mean"])
def test_without_positions_the_order_of_patches_does_not_matter(pool: Any) -> None:
    model, x = small(positions="none", pool=pool), pictures()
    moved = shuffled_patches(x, torch.tensor([3, 5, 1, 0, 4, 2]))
    assert not torch.equal(moved, x)
    assert_same(model(moved), model(x))


@pytest.mark.question("nyu-1.5c")
@pytest.mark.parametrize("positions", ["learned", "learned_axes", "sinusoidal"])
def test_with_positions_the_order_of_patches_matters(positions: Any) -> None:
    model, x = small(positions=positions), pictures()
    moved = shuffled_patches(x, torch.tensor([3, 5, 1, 0, 4, 2]))
    assert (model(moved) - model(x)).abs().amax(dim=-1).min() > 1e-3


@pytest.mark.question("nyu-1.5c")
def test_positions_are_parameters_that_learn_where_sinusoids_are_constants() -> None:
    learnt, fixed = small(), small(positions="sinusoidal")
    learnt(pictures()).square().sum().backward()
    tables = dict(learnt.positions.named_parameters())
    assert {n: tuple(p.shape) for n, p in tables.items()} == {"cells.table": (6, 12)}
    for vector in (tables["cells.table"].grad, learnt.class_position.grad):
        assert vector is not None
        assert vector.abs().min() > 0
    assert list(fixed.positions.parameters()) == []
    assert fixed.class_position is None


@pytest.mark.question("nyu-1.5c")
@pytest.mark.question("quiz-2.7")
@pytest.mark.parametrize("aware", ["learned_axes", "sinusoidal"])
def test_a_table_without_axes_can_hold_any_code_that_knows_them(aware: Any) -> None:
    """What 2-D-aware codes express, the plain table can learn."""
    knowing, plain = small(positions=aware), small(positions="learned")
    codes = knowing.positions.codes((2, 3)).detach()
    with torch.no_grad():
        state = {k: v for k, v in knowing.state_dict().items() if "positions" not in k}
        plain.load_state_dict(state, strict=False)
        plain.positions.cells.table.copy_(rearrange(codes, "r s d -> (r s) d"))
        if knowing.class_position is None:
            plain.class_position.zero_()
    x = pictures()
    assert_same(plain(x), knowing(x))


@pytest.mark.question("quiz-2.7")
def test_codes_by_axes_are_a_row_s_half_and_a_column_s_half() -> None:
    codes = LearnedAxes2D((2, 3), 10, dtype=torch.float64).codes()
    assert codes.shape == (2, 3, 10)
    for i in range(2):
        for j in range(3):
            assert torch.equal(codes[i, j, :5], codes[i, 0, :5])
            assert torch.equal(codes[i, j, 5:], codes[0, j, 5:])
    halves = [*codes[:, 0, :5], *codes[0, :, 5:]]
    assert torch.cdist(torch.stack(halves), torch.stack(halves)).gt(0).sum() == 5 * 4


def test_positions_by_axes_are_added_to_their_cells() -> None:
    positions = LearnedAxes2D((2, 3), 10, dtype=torch.float64)
    x = torch.randn(4, 2, 3, 10, dtype=torch.float64)
    assert_same(positions(x), x + positions.codes())


def test_of_the_class_token_and_its_position_only_the_sum_matters() -> None:
    model, x = small(), pictures()
    before = model(x)
    shift = torch.randn(12, dtype=torch.float64)
    with torch.no_grad():
        model.class_token.add_(shift)
        model.class_position.sub_(shift)
    assert_same(model(x), before)
    with torch.no_grad():
        model.class_position.add_(shift)
    assert (model(x) - before).abs().max() > 1e-3


@pytest.mark.parametrize("grid", [(3, 2), (4, 6), (2, 4), (1, 1)])
def test_learned_positions_are_resampled_for_pictures_of_other_sizes(
    grid: tuple[int, int],
) -> None:
    """A grid of 3×2 has as many cells as one of 2×3, and needs other codes."""
    model, (rows, columns) = small(), grid
    x = pictures(height=5 * rows, width=3 * columns)
    table = model.positions.cells.table.T.view(1, 12, 2, 3)
    codes = F.interpolate(table, size=grid, mode="bicubic", align_corners=False)
    at_that_size = small(positions="none")
    at_that_size.load_state_dict(model.state_dict(), strict=False)
    with torch.no_grad():
        at_that_size.class_token.copy_(class_vector(model))
    at_that_size.positions = _Added(codes[0].permute(1, 2, 0))
    assert_same(model(x), at_that_size(x))


class _Added(nn.Module):
    def __init__(self, codes: Tensor) -> None:
        super().__init__()
        self.codes = codes

    def forward(self, x: Tensor) -> Tensor:
        return x + self.codes


def test_positions_by_axes_are_resampled_along_each_axis() -> None:
    positions = LearnedAxes2D((2, 3), 10, dtype=torch.float64)
    codes = positions.codes((5, 7))

    def resampled(table: Tensor, size: int) -> Tensor:
        line = table.T[None, :, :, None]
        return F.interpolate(line, (size, 1), mode="bicubic")[0, :, :, 0].T

    rows = resampled(positions.rows.cells.table, 5)
    columns = resampled(positions.columns.cells.table, 7)
    assert_same(codes[..., :5], rows[:, None].expand(5, 7, 5))
    assert_same(codes[..., 5:], columns[None].expand(5, 7, 5))


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("pool", ["class", "mean"])
def test_pictures_of_many_shapes_get_logits(positions: Any, pool: Any) -> None:
    model = small(positions=positions, pool=pool)
    for rows, columns in ((2, 3), (3, 2), (1, 5), (7, 1)):
        x = pictures(height=5 * rows, width=3 * columns)
        assert model(x).shape == (3, 7)
        assert model.encode(x).shape == (3, rows * columns + (pool == "class"), 12)
        assert model.features(x).shape == (3, 12)
    assert model(pictures(batch=0)).shape == (0, 7)


# The output


@pytest.mark.question("nyu-1.5d")
def test_the_head_sees_the_normalised_class_token_and_nothing_else() -> None:
    model, x = small(), pictures()
    leaving: list[Tensor] = []
    last = model.encoder.layers[-1]
    with last.register_forward_hook(lambda *call: leaving.append(call[-1])):
        logits = model(x)
    # Nobody reads the other tokens of the last layer, so they are not computed.
    assert leaving[0].shape == (3, 1, 12)
    assert_same(logits, model.head(model.encode(x)[:, 0]))
    token = leaving[0][:, 0]
    centred = token - token.mean(dim=-1, keepdim=True)
    scaled = centred / (centred.square().mean(dim=-1, keepdim=True) + 1e-6).sqrt()
    norm, head = model.encoder.final_norm.state_dict(), model.head
    features = scaled * norm["weight"] + norm["bias"]
    assert_same(model.features(x), features)
    assert_same(logits, features @ head.weight.T + head.bias)


@pytest.mark.question("nyu-1.5d")
def test_the_mean_of_the_patches_can_take_the_class_token_s_place() -> None:
    model, x = small(pool="mean"), pictures()
    assert model.class_token is None
    tokens = model.encode(x)
    assert tokens.shape == (3, 6, 12)
    mean = torch.stack([tokens[:, i] for i in range(6)]).sum(dim=0) / 6
    assert_same(model.features(x), mean)
    assert_same(model(x), mean @ model.head.weight.T + model.head.bias)


@pytest.mark.question("nyu-2")
def test_a_tiny_model_learns_to_read_digits() -> None:
    data = load_digits()
    x = torch.tensor(data.images, dtype=torch.float32)[:, None] / 8 - 1
    y = torch.tensor(data.target)
    model = VisionTransformer(8, 2, classes=10, dim=32, depth=2, heads=4, channels=1)
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(120):
        batch = torch.randint(0, 1200, (64,))
        loss = F.cross_entropy(model(x[batch]), y[batch])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        right = model.eval()(x[1200:]).argmax(dim=-1) == y[1200:]
    assert right.double().mean() > 0.5  # pictures it never saw; chance is 0.1


# Parameters


def test_fresh_models_guess_evenly_but_not_blindly() -> None:
    model = VisionTransformer(12, 4, classes=10, dim=48, depth=2, heads=3)
    x = torch.randn(64, 3, 12, 12)
    logits = model(x)
    assert logits.std() > 0.01
    loss = F.cross_entropy(logits, torch.arange(64) % 10)
    assert loss.item() == pytest.approx(math.log(10), abs=0.1)
    logits.square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        assert parameter.grad.abs().sum() > 0 or name.endswith("key_proj.bias")


def test_fresh_tokens_vary_as_much_as_pixels() -> None:
    for patch in (2, 16):
        tokens = PatchEmbedding(patch, 3, 256)(torch.randn(4, 3, 32, 32))
        assert tokens.var().item() == pytest.approx(1.0, abs=0.1)
    model = VisionTransformer(32, 4, classes=10, dim=256, depth=1, heads=2)
    for drawn in (
        model.class_token,
        model.class_position,
        model.positions.cells.table,
        model.head.weight,
    ):
        assert drawn.std().item() == pytest.approx(0.02, rel=0.2)
    hidden = model.encoder.layers[0].feed_forward.hidden_proj
    bound = math.sqrt(6 / (256 + 1024))
    assert 0.99 * bound < hidden.weight.abs().max() <= bound
    assert not hidden.bias.any()


def test_every_parameter_has_a_say() -> None:
    """But for the keys' biases, which move all scores of a query alike."""
    x = pictures()
    model = small()
    before = model(x)
    assert before.std() > 0.1
    for name, parameter in model.named_parameters():
        kept = parameter.detach().clone()
        with torch.no_grad():
            parameter.add_(0.1 * torch.randn_like(parameter))
            changed = (model(x) - before).abs().max()
            parameter.copy_(kept)
        assert (changed > 1e-6) != name.endswith("key_proj.bias")


def test_layers_can_do_without_biases() -> None:
    model = small(bias=False)
    biases = [name for name in model.state_dict() if name.endswith("bias")]
    assert biases == ["patch_embedding.proj.bias", "head.bias"]
    assert model(pictures()).shape == (3, 7)


def test_a_model_says_what_its_patches_are() -> None:
    assert "PatchEmbedding(\n    patch=(5, 3), channels=2" in repr(small())


def test_names_and_shapes_of_parameters_stay() -> None:
    linear = {"weight": (12, 12), "bias": (12,)}
    norm = {"weight": (12,), "bias": (12,)}
    layer = {f"attention.{x}_proj": linear for x in ("query", "key", "value", "output")}
    layer |= {
        "attention_norm": norm,
        "feed_forward.hidden_proj": {"weight": (17, 12), "bias": (17,)},
        "feed_forward.output_proj": {"weight": (12, 17), "bias": (12,)},
        "feed_forward_norm": norm,
    }
    modules = {
        "patch_embedding.proj": {"weight": (12, 30), "bias": (12,)},
        **{f"encoder.layers.{i}.{k}": v for i in (0, 1) for k, v in layer.items()},
        "encoder.final_norm": norm,
        "head": {"weight": (7, 12), "bias": (7,)},
    }
    expected = {f"{m}.{p}": s for m, part in modules.items() for p, s in part.items()}
    expected |= {"class_token": (12,), "class_position": (12,)}
    expected |= {"positions.cells.table": (6, 12)}
    found = {k: tuple(v.shape) for k, v in small().state_dict().items()}
    assert found == expected


@pytest.mark.parametrize("positions", POSITIONS)
def test_a_model_built_without_storage_can_be_filled(positions: Any) -> None:
    model, x = small(positions=positions), pictures()
    with torch.device("meta"):
        empty = small(positions=positions)
    assert all(parameter.is_meta for parameter in empty.parameters())
    filled = empty.to_empty(device="cpu")
    filled.load_state_dict(model.state_dict())
    assert torch.equal(filled(x), model(x))


# Numbers


def test_evaluation_is_deterministic_and_ignores_dropout() -> None:
    model, x = small(dropout=0.9), pictures()
    plain = small()
    plain.load_state_dict(model.state_dict())
    model.eval()
    assert torch.equal(model(x), model(x))
    assert torch.equal(model(x), plain(x))
    model.train()
    assert not torch.equal(model(x), model(x))
    assert torch.equal(plain.train()(x), plain.eval()(x))


def test_dropout_also_acts_on_the_tokens_that_enter() -> None:
    model = small(dropout=0.5)
    entering: list[Tensor] = []
    with model.encoder.register_forward_pre_hook(lambda _, x: entering.append(x[0])):
        model(pictures(batch=30))
    assert (entering[0] == 0).double().mean().item() == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
def test_gradients_are_those_of_finite_differences(positions: Any) -> None:
    model = VisionTransformer(
        (2, 4),
        (1, 2),
        classes=2,
        dim=4,
        depth=1,
        heads=2,
        hidden_dim=3,
        channels=1,
        positions=positions,
        dtype=torch.float64,
    )
    x = torch.randn(2, 1, 2, 4, dtype=torch.float64, requires_grad=True)
    names, parameters = zip(*model.named_parameters(), strict=True)

    def call(x: Tensor, *values: Tensor) -> Tensor:
        state = dict(zip(names, values, strict=True))
        return torch.func.functional_call(model, state, (x,))

    assert torch.autograd.gradcheck(call, (x, *parameters), fast_mode=True)
    # The fused kernel on CPU has no second derivatives; PyTorch's plain one has.
    with sdpa_kernel(SDPBackend.MATH):
        assert torch.autograd.gradgradcheck(model, (x,), fast_mode=True)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float16, 0.03), (torch.bfloat16, 0.2)]
)
@pytest.mark.parametrize("positions", POSITIONS)
def test_half_precision_stays_near_the_truth(
    dtype: torch.dtype, tolerance: float, positions: Any
) -> None:
    model, x = small(positions=positions), pictures()
    half = small(positions=positions, dtype=dtype)
    half.load_state_dict(model.state_dict())
    for y in (half(x.to(dtype)), half(pictures(1, 20, 18).to(dtype))):
        assert y.dtype == dtype
        assert y.isfinite().all()
    torch.testing.assert_close(
        half(x.to(dtype)).double(), model(x), rtol=tolerance, atol=tolerance
    )


def test_autocast_runs_the_model_in_half_precision() -> None:
    model, x = small(dtype=torch.float32), pictures().float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = model(x)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), model(x), rtol=0.1, atol=0.1)


def test_pictures_are_neither_changed_nor_need_to_be_contiguous() -> None:
    model, x = small(), pictures()
    before = x.clone()
    y = model(x)
    assert torch.equal(x, before)
    strided = x.permute(2, 3, 0, 1).contiguous().permute(2, 3, 0, 1)
    assert not strided.is_contiguous()
    assert_same(model(strided), y)
    channels_last = x.to(memory_format=torch.channels_last)
    assert_same(model(channels_last), y)


# Without the type-checking hook


def embed(patch: Any = 4, channels: Any = 3, dim: Any = 5) -> PatchEmbedding:
    return PatchEmbedding(patch, channels, dim)


@pytest.mark.unhooked
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: embed(patch=0), ValueError, "patch height .* from 1 on, got 0"),
        (lambda: embed(patch=(4, 0)), ValueError, "patch width .* from 1 on, got 0"),
        (lambda: embed(patch=(4, 4, 4)), ValueError, r"patch .* got \(4, 4, 4\)"),
        (lambda: embed(patch=2.5), ValueError, "patch .* one whole number or two"),
        (lambda: embed(patch="4"), ValueError, "patch .* got '4'"),
        (lambda: embed(channels=0), ValueError, "channels .* got 0"),
        (lambda: embed(dim=-1), ValueError, "dim .* got -1"),
        (
            lambda: embed()(torch.zeros(2, 3, 10, 12)),
            ValueError,
            "patch of 4×4 and a picture of 10×12",
        ),
        (
            lambda: embed(patch=(4, 5))(torch.zeros(2, 3, 12, 12)),
            ValueError,
            "patch of 4×5 and a picture of 12×12",
        ),
        (lambda: embed()(torch.zeros(2, 3, 0, 4)), ValueError, "picture of 0×4"),
        (
            lambda: embed()(torch.zeros(2, 1, 4, 4)),
            ValueError,
            r"pictures must be \(batch, 3, height, width\), got shape \(2, 1, 4, 4\)",
        ),
        (lambda: embed()(torch.zeros(3, 4, 4)), ValueError, r"got shape \(3, 4, 4\)"),
        (
            lambda: embed()(torch.zeros(2, 3, 4, 4, dtype=torch.uint8)),
            TypeError,
            "pictures must be a floating-point tensor, got torch.uint8",
        ),
        (lambda: embed()([[1.0]]), TypeError, "got list"),
        (lambda: LearnedAxes2D((2, 3), 5), ValueError, "even, got 5"),
        (lambda: LearnedAxes2D((2,), 6), ValueError, r"grid .* got \(2,\)"),  # pyright: ignore
        (lambda: LearnedAxes2D((0, 3), 6), ValueError, "grid height .* got 0"),
        (
            lambda: LearnedAxes2D((2, 3), 6)(torch.zeros(2, 3, 5)),
            ValueError,
            r"x must be .* 6\), got shape \(2, 3, 5\)",
        ),
    ],
)
def test_patches_and_positions_refuse_bad_input(
    call: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call()


@pytest.mark.unhooked
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"picture": (10, 12)}, "patch of 4×4 and a picture of 10×12"),
        ({"picture": (1, 2, 3)}, r"picture .* got \(1, 2, 3\)"),
        ({"picture": -8}, "picture height .* got -8"),
        ({"patch": 5}, "patch of 5×5 and a picture of 8×8"),
        ({"patch": 16}, "patch of 16×16 and a picture of 8×8"),
        ({"classes": 0}, "classes .* got 0"),
        ({"dim": 0}, "dim .* got 0"),
        ({"depth": 0}, "depth .* got 0"),
        ({"heads": 5}, "dim 12 and 5 heads"),
        ({"hidden_dim": 0}, "hidden_dim .* got 0"),
        ({"channels": 0}, "channels .* got 0"),
        ({"pool": "max"}, "pool must be one of .*'mean'.* got 'max'"),
        ({"positions": "rotary"}, "positions must be one of .*'none'.* got 'rotary'"),
        ({"positions": "sinusoidal", "dim": 6}, "multiple of 4, got 6"),
        ({"positions": "learned_axes", "dim": 9}, "even, got 9"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\), got 1.0"),
        ({"eps": -1.0}, "eps .* got -1.0"),
        ({"activation": "tanh"}, "activation must be one of .* got 'tanh'"),
    ],
)
def test_models_refuse_bad_options(options: dict[str, Any], message: str) -> None:
    fine = {"picture": 8, "patch": 4, "classes": 7, "dim": 12, "depth": 1, "heads": 3}
    with pytest.raises(ValueError, match=message):
        VisionTransformer(**{**fine, **options})


@pytest.mark.unhooked
@pytest.mark.parametrize("name", ["ViT-G/14", "vit_b_16", "ViT-B", "ViT-B/0", "B/16"])
def test_unknown_presets_are_refused_and_known_ones_named(name: str) -> None:
    known = "ViT-Ti, ViT-S, ViT-B, ViT-L, ViT-H"
    with pytest.raises(ValueError, match=f"{known}, .* got {name!r}"):
        VisionTransformer.from_preset(name, classes=7)


@pytest.mark.unhooked
def test_models_refuse_bad_pictures() -> None:
    model = small()
    with pytest.raises(ValueError, match="patch of 5×3 and a picture of 9×10"):
        model(pictures(height=9, width=10))
    with pytest.raises(ValueError, match=r"\(batch, 2, height, width\)"):
        model(torch.zeros(3, 3, 10, 9, dtype=torch.float64))
    with pytest.raises(TypeError, match=r"got torch\.int64"):
        model(torch.zeros(3, 2, 10, 9, dtype=torch.int64))


@pytest.mark.unhooked
@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
def test_models_compile_without_graph_breaks(positions: Any) -> None:
    torch.compiler.reset()
    model = small(positions=positions, depth=1)
    compiled = torch.compile(model, fullgraph=True, backend="eager", dynamic=True)
    for batch in (3, 5):
        x = pictures(batch=batch)
        assert_same(compiled(x), model(x))


@pytest.mark.unhooked
def test_models_export_with_any_batch() -> None:
    model, x = small(depth=1).eval(), pictures()
    model(x)
    exported = torch.export.export(
        model, (x,), dynamic_shapes=({0: Dim("batch")},), strict=True
    ).module()
    for batch in (2, 3, 7):
        x = pictures(batch=batch)
        assert_same(exported(x), model(x))


@pytest.mark.unhooked
@pytest.mark.parametrize("positions", ["learned_axes", "sinusoidal"])
def test_models_export_with_any_size_but_that_of_learned_positions(
    positions: Any,
) -> None:
    """Learnt codes are resampled for every size but their own: two graphs."""
    model, x = small(positions=positions, depth=1).eval(), pictures(3, 20, 15)
    model(x)
    rows, columns = Dim("rows", min=3, max=9), Dim("columns", min=4, max=9)
    axes = {0: Dim("batch"), 2: 5 * rows, 3: 3 * columns}
    exported = torch.export.export(
        model, (x,), dynamic_shapes=(axes,), strict=True
    ).module()
    for height, width in ((20, 15), (15, 27), (35, 12)):
        x = pictures(2, height, width)
        assert_same(exported(x), model(x))
