"""Heads of a Vision Transformer that start as the shifts of a convolution."""

import copy
import math
from collections.abc import Callable

import pytest
import timm
import torch
import torchvision
import transformers
from einops import rearrange
from timm.layers import RmsNorm, SwiGLU, SwiGLUPacked
from timm.models.cait import Cait
from timm.models.convit import ConVit
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import ParallelScalingBlock, ResPostBlock
from timm.models.vision_transformer_relpos import VisionTransformerRelPos
from torch import Tensor, nn

from transformers_hw import VisionTransformer
from transformers_hw.attention_as_convolution import initialize, neighbor_offsets
from transformers_hw.pretrained import (
    from_huggingface,
    from_timm,
    from_torchvision,
)
from transformers_hw.probes import capture_weights

SIZES = {"dim": 48, "depth": 3, "heads": 3, "hidden_dim": 40}


def images(count: int = 16) -> Tensor:
    """Smooth random images: neighboring pixels are alike, as in photographs."""
    coarse = torch.randn(count, 3, 7, 7, generator=torch.Generator().manual_seed(1))
    smooth = nn.functional.interpolate(coarse, size=(24, 24), mode="bicubic")
    return smooth + 0.1 * torch.randn(smooth.shape)


def vit(**options: object) -> VisionTransformer:
    settings = {"num_classes": 5, "pool": "mean", **SIZES, **options}
    return VisionTransformer(24, 4, **settings)


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 6, 8, 11, 24])
def test_heads_start_at_different_offsets_nearest_ring_first(heads: int) -> None:
    for layer in (0, 1):
        offsets = neighbor_offsets(heads, layer)
        assert len(set(offsets)) == heads
        assert all(max(map(abs, offset)) == 1 for offset in offsets[:8])
        assert all(max(map(abs, offset)) == 2 for offset in offsets[8:])


def test_two_layers_of_four_heads_attend_in_all_eight_directions() -> None:
    assert len({*neighbor_offsets(4, 0), *neighbor_offsets(4, 1)}) == 8


def test_every_head_attends_most_to_its_neighbor() -> None:
    model, x = vit().eval(), images()
    initialize(model, x)
    with torch.no_grad(), capture_weights(model) as weights:
        model(x)
    for number, (layer,) in enumerate(weights.values()):
        maps = rearrange(layer, "b h (i j) k -> b h i j k", i=6)
        for head, (down, right) in enumerate(neighbor_offsets(3, number)):
            # Far from the border, where every query has that neighbor.
            inner = maps[:, head, 1:5, 1:5].argmax(-1)
            at = torch.arange(1, 5)
            wanted = (at[:, None] + down) * 6 + at + right
            share = (inner == wanted).float().mean().item()
            # Chance would be 1 in 36.
            assert share > 0.7, (number, head, share)


def timm_vit(**options: object) -> nn.Module:
    sizes = {"img_size": 24, "patch_size": 4, "num_classes": 5, "embed_dim": 48}
    sizes |= {"depth": 2, "num_heads": 3, "mlp_ratio": 40 / 48}
    return timm.models.VisionTransformer(**{**sizes, **options})


def share_at_neighbor(model: nn.Module, x: Tensor) -> list[float]:
    """Say how often each head of the first layer attends most to its neighbor."""
    with torch.no_grad(), capture_weights(model) as weights:
        model(x)
    first = next(iter(weights.values()))[0][:, :, -36:, -36:].float()
    inner = rearrange(first, "b h (i j) k -> b h i j k", i=6)[:, :, 1:5, 1:5].argmax(-1)
    at = torch.arange(1, 5)
    return [
        (inner[:, head] == (at[:, None] + down) * 6 + at + right).float().mean().item()
        for head, (down, right) in enumerate(neighbor_offsets(3))
    ]


PREFIXED = {
    "class token": lambda: vit(pool="class"),
    "registers": lambda: vit(pool="class", registers=2),
    "timm": lambda: timm_vit(),
    "timm's registers": lambda: timm_vit(reg_tokens=2),
    "torchvision": lambda: torchvision.models.VisionTransformer(
        24, 4, 2, 3, 48, 40, num_classes=5
    ),
    "Hugging Face": lambda: transformers.DeiTModel(
        transformers.DeiTConfig(
            hidden_size=48, num_hidden_layers=2, num_attention_heads=3, image_size=24,
            intermediate_size=40, patch_size=4, attn_implementation="sdpa",
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("make", PREFIXED.values(), ids=PREFIXED)
@pytest.mark.parametrize("std", [0.0, 1e-6, 1.0])
def test_heads_are_local_whatever_stands_before_the_patches(make, std: float) -> None:
    model, x = make().eval(), images()
    for name, vector in model.named_parameters():
        if any(part in name for part in ("cls", "class", "reg", "distill", "pos")):
            nn.init.normal_(vector, std=std)
    initialize(model, x)
    # Chance would be 1 in 36.
    assert min(share_at_neighbor(model, x)) > 0.7


def test_biases_and_scales_of_a_used_model_do_not_move_the_heads() -> None:
    for model in (vit().eval(), timm_vit().eval(), timm_vit(qkv_bias=False).eval()):
        for name, vector in model.named_parameters():
            if "bias" in name or "norm" in name:
                nn.init.normal_(vector, mean=float("norm" in name), std=0.5)
        x = images()
        initialize(model, x)
        # Content enters through the norm's biases, as noise.
        assert min(share_at_neighbor(model, x)) > 0.6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_models_of_other_precision_start_alike(dtype: torch.dtype) -> None:
    model, x = vit(dtype=dtype).eval(), images()
    initialize(model, x)
    assert {p.dtype for p in model.parameters()} == {dtype}
    assert min(share_at_neighbor(model, x.to(dtype))) > 0.7


def test_scores_of_positions_alone_are_the_sum_of_cosines() -> None:
    model = vit().eval()
    initialize(model, images(), gain=1.25)
    layer = model.encoder.layers[0].attention
    table = rearrange(model.positions.weight, "i j d -> (i j) d").detach()
    at = torch.cartesian_prod(torch.arange(6.0), torch.arange(6.0))
    for head, offset in enumerate(neighbor_offsets(3)):
        rows = slice(16 * head, 16 * (head + 1))
        query, key = (
            table @ proj.weight[rows].detach().T
            for proj in (layer.query_proj, layer.key_proj)
        )
        gap = at[None] - at[:, None] - torch.tensor(offset)
        expected = sum(torch.cos(math.tau * f / 12 * gap).sum(-1) for f in (1, 2, 3))
        found = query @ key.T
        # The layer norm's factor, which the weights undo, is missing here.
        factor = found.diagonal().mean() / expected.diagonal().mean()
        assert factor > 0
        torch.testing.assert_close(found, factor * expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("attend", ["shifts", "mimetic"])
def test_other_libraries_models_get_the_same_weights(attend: str) -> None:
    torch.manual_seed(3)
    theirs = timm.models.VisionTransformer(
        img_size=24, patch_size=4, num_classes=5, embed_dim=48, depth=3, num_heads=3,
        mlp_ratio=40 / 48,
    )  # fmt: skip
    vision = torchvision.models.VisionTransformer(24, 4, 3, 3, 48, 40, num_classes=5)
    config = transformers.ViTConfig(
        hidden_size=48, num_hidden_layers=3, num_attention_heads=3, image_size=24,
        intermediate_size=40, patch_size=4, num_labels=5,
    )  # fmt: skip
    face = transformers.ViTForImageClassification(config)
    x = images()
    for model, convert in (
        (theirs, from_timm),
        (vision, from_torchvision),
        (face, from_huggingface),
    ):
        ours = convert(model.eval()).eval()
        for one in (model, ours):
            torch.manual_seed(4)
            initialize(one, x, attend=attend)
        with torch.no_grad():
            found = model(x)
            found = getattr(found, "logits", found)
            torch.testing.assert_close(ours(x), found, rtol=1e-4, atol=1e-5)


BIASED = {
    "relative ViT": lambda: VisionTransformerRelPos(
        img_size=(20, 28), patch_size=4, num_classes=5, embed_dim=24, depth=2,
        num_heads=3, rel_pos_type="bias",
    ),
    "BEiT": lambda: timm.models.beit.Beit(
        img_size=(20, 28), patch_size=4, num_classes=5, embed_dim=24, depth=2,
        num_heads=3, use_rel_pos_bias=True, use_abs_pos_emb=False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("make", BIASED.values(), ids=BIASED)
def test_a_bias_for_each_offset_starts_as_a_gaussian(make) -> None:
    model, x = make().eval(), torch.randn(2, 3, 20, 28)
    initialize(model, x, values=False, whiten=False, gain=0.7)
    for block in model.blocks:  # the bias alone decides
        nn.init.zeros_(block.attn.qkv.weight[:48])
    with torch.no_grad(), capture_weights(model) as weights:
        model(x)
    at = torch.cartesian_prod(torch.arange(5.0), torch.arange(7.0))
    offsets = at - at[:, None]
    for number, (layer,) in enumerate(weights.values()):
        for head, center in enumerate(neighbor_offsets(3, number)):
            scores = -0.7 * (offsets - torch.tensor(center)).square().sum(-1)
            found = layer[:, head, -35:, -35:]  # BEiT has a class token
            found = found / found.sum(dim=-1, keepdim=True)
            wanted = scores.softmax(dim=-1).expand_as(found)
            torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-4)


def test_values_and_output_subtract_what_a_head_finds() -> None:
    model = vit()
    initialize(model, images(), attend=None, whiten=False)
    for layer in model.encoder.layers:
        value = layer.attention.value_proj.weight.detach()
        output = layer.attention.output_proj.weight.detach()
        product = output @ value
        # Noise of standard deviation 0.4 / √48 in each of 48 diagonal entries.
        assert abs(product.trace() / 48 + 0.4) < 4 * 0.4 / 48
        off = product - torch.diag(product.diag())
        assert abs(off.std() - 0.4 / math.sqrt(48)) < 0.01


def test_whitening_brings_the_variances_of_patches_nearer_to_each_other() -> None:
    model, x = vit(), images(64)
    initialize(model, x, attend=None, values=False)
    tokens = rearrange(model.patch_embedding(x), "b i j d -> (b i j) d").detach()
    assert tokens.mean(0).abs().max() < 1e-3
    assert abs(tokens.square().mean() - 1.0) < 1e-3
    patches = rearrange(x, "b c (h i) (w j) -> (b h w) (c i j)", i=4, j=4)
    before = torch.linalg.eigvalsh(torch.cov(patches.T, correction=0)).double()
    after = torch.linalg.eigvalsh(torch.cov(tokens.T, correction=0)).double()
    # The variance λ of a component becomes λ (λ + 0.02)^-0.7, up to a factor.
    expected = before * (before + 0.02) ** -0.7
    factor = after.sum() / expected.sum()
    torch.testing.assert_close(
        after.sort().values, factor * expected.sort().values, rtol=1e-3, atol=1e-4
    )


def test_each_ingredient_leaves_the_others_alone() -> None:
    before = vit().state_dict()
    for options, changed in (
        ({"attend": None, "whiten": False}, ("value_proj", "output_proj")),
        ({"attend": None, "values": False}, ("patch_embedding",)),
    ):
        model = vit()
        model.load_state_dict(before)
        initialize(model, images(), **options)
        different = [k for k, x in model.state_dict().items() if not x.equal(before[k])]
        assert different
        assert all(any(part in name for part in changed) for name in different)


@pytest.mark.parametrize(
    ("model", "kind", "message"),
    [
        (
            nn.Linear(3, 4),
            TypeError,
            "model must be a Vision Transformer .* got Linear",
        ),
        (vit(norm="post"), ValueError, "must be pre-norm .* got norm 'post'"),
        (vit(positions="sinusoidal"), ValueError, "positions 'sinusoidal'"),
        (vit(rotary={}), ValueError, "rotary must be None to initialize, got {}"),
        (vit(patch_bias=False), ValueError, "patch_bias must be True .* got False"),
        (vit(window=2), ValueError, "window must be None to initialize, got 2"),
        (vit(normalization="rms"), ValueError, "must have layer norms .* got RMSNorm"),
        (vit(kv_heads=1), ValueError, "kv_heads must be None to initialize, got 1"),
        (vit(activation="swiglu"), ValueError, "activation must not be gated"),
        (
            timm.models.Eva(
                img_size=24,
                patch_size=4,
                embed_dim=24,
                depth=1,
                num_heads=3,
                use_abs_pos_emb=False,
                use_rot_pos_emb=True,
            ),
            ValueError,
            "learned positions, or a bias for each offset",
        ),
    ],
)
def test_models_that_cannot_start_so_are_refused(
    model: nn.Module, kind: type[Exception], message: str
) -> None:
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(kind, match=message):
        initialize(model, images())
    assert all(x.equal(before[name]) for name, x in model.state_dict().items())


def eva(**options: object) -> nn.Module:
    sizes = {"img_size": 24, "patch_size": 4, "embed_dim": 48}
    return timm.models.Eva(**{**sizes, "depth": 1, "num_heads": 3, **options})


def huggingface(name: str) -> nn.Module:
    settings = {"hidden_size": 48, "intermediate_size": 40, "image_size": 24}
    settings |= {"num_hidden_layers": 1, "num_attention_heads": 3, "patch_size": 4}
    config = getattr(transformers, f"{name}Config")(**settings)
    return getattr(transformers, f"{name}Model")(config)


def parametrized() -> nn.Module:
    model = vit()
    nn.utils.parametrizations.weight_norm(model.encoder.layers[0].attention.query_proj)
    return model


STEM = torchvision.models.vision_transformer.ConvStemConfig(8, 3, 2)
NORM, PART = "must be pre-norm, got layers of class", "must be a Vision Transformer of"
OTHERS: dict[str, tuple[Callable[[], nn.Module], type[Exception], str]] = {
    "ResPostBlock": (lambda: timm_vit(block_fn=ResPostBlock), ValueError, NORM),
    "EvaBlockPostNorm": (lambda: eva(use_post_norm=True), ValueError, NORM),
    "qk_norm": (lambda: timm_vit(qk_norm=True), ValueError, "must have no q_norm"),
    "RMS norm": (
        lambda: timm_vit(norm_layer=RmsNorm), ValueError, "layer norms .* got RmsNorm",
    ),
    "gated": (
        lambda: timm_vit(mlp_layer=SwiGLUPacked), ValueError, "must not be gated",
    ),
    "rotary": (lambda: eva(use_rot_pos_emb=True), ValueError, "must have no rope"),
    "distilled": (
        lambda: VisionTransformerDistilled(
            img_size=24, patch_size=4, embed_dim=48, depth=1, num_heads=3
        ), ValueError, "no dist_token",
    ),
    "SwiGLU": (lambda: timm_vit(mlp_layer=SwiGLU), TypeError, PART),
    "differential": (
        lambda: timm_vit(attn_layer="diff", num_heads=4),
        TypeError, "got Block of DiffAttention",
    ),
    "parallel": (lambda: timm_vit(block_fn=ParallelScalingBlock), TypeError, PART),
    "three projections": (lambda: eva(qkv_fused=False), TypeError, PART),
    "Cait": (
        lambda: Cait(img_size=24, patch_size=4, embed_dim=48, depth=1, num_heads=3),
        TypeError, "got Cait: layers must be Block or",
    ),
    "ConViT": (
        lambda: ConVit(img_size=24, patch_size=4, embed_dim=48, depth=1, num_heads=3),
        TypeError, "got Block of GPSA",
    ),
    "convolutional stem": (
        lambda: torchvision.models.VisionTransformer(
            24, 4, 1, 3, 48, 40, conv_stem_configs=[STEM, STEM]
        ), TypeError, PART,
    ),
    "parametrized": (parametrized, TypeError, "got VisionTransformer: .*weight"),
    **{
        name: (lambda name=name: huggingface(name), TypeError, f"{PART}.*{name}Model")
        for name in ("Dinov2", "CLIPVision", "Beit", "Bert", "ViTMAE")
    },
}  # fmt: skip


@pytest.mark.parametrize(("make", "kind", "message"), OTHERS.values(), ids=OTHERS)
def test_other_libraries_models_with_other_parts_are_refused(
    make: Callable[[], nn.Module], kind: type[Exception], message: str
) -> None:
    model = make()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(kind, match=message):
        initialize(model, images())
    assert all(x.equal(before[name]) for name, x in model.state_dict().items())


SMALL = "needs heads of 4 dimensions or more, a grid longer than 1 patch, and tokens"


@pytest.mark.parametrize(
    ("settings", "x", "options", "message"),
    [
        ({"heads": 16}, images(), {}, f"{SMALL}.* head_dim 3"),
        ({"dim": 12, "heads": 1}, images(), {}, f"{SMALL} wider than the 12 .* dim 12"),
        ({"head_dim": 20}, images(), {}, "values must be False if heads together"),
        ({}, images().reshape(16, 3, 12, 48), {}, r"\(b, 3, 24, 24\).* 3, 12, 48\)"),
        ({}, images()[:, :1], {}, r"images must have shape .* got \(16, 1, 24, 24\)"),
        ({}, images()[:0], {}, "one image or more, got"),
        ({}, images() * math.nan, {}, "images must be finite, got NaN"),
        ({}, images() * 0, {}, "images must have patches that differ"),
        ({}, images() * 0 + 0.3, {}, "images must have patches that differ"),
        ({}, images(), {"gain": math.nan}, "positive and finite, got nan"),
        ({}, images(), {"gain": -1.0}, r"positive and finite, got -1\.0"),
    ],
)
def test_what_cannot_be_used_is_refused_before_anything_is_written(
    settings: dict, x: Tensor, options: dict, message: str
) -> None:
    model = vit(**settings)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=message):
        initialize(model, x, **options)
    assert all(x.equal(before[name]) for name, x in model.state_dict().items())
