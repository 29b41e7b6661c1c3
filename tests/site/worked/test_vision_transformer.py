"""The numbers of chapter 7, on its page and in its diagrams, computed again."""

import base64
import io
import json
import math
import re
import statistics
import xml.etree.ElementTree as ET
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from einops import rearrange
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn

from transformers_hw import PatchEmbedding, VisionTransformer
from transformers_hw.probes import attention_distance, attention_rollout

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/chapters/vision_transformer.md").read_text("utf-8")
DIAGRAMS = ROOT / "docs/diagrams/vision_transformer"
FIGURES = ROOT / "docs/figures/vision_transformer"
SVG = "{http://www.w3.org/2000/svg}"
LINK = "{http://www.w3.org/1999/xlink}href"
F64 = torch.float64

TOY = torch.tensor([[3, 3, 3, 0], [3, 3, 3, 0], [0, 2, 0, 0], [0, 2, 1, 1]], dtype=F64)
E = torch.tensor([[1, 1], [1, -1], [1, 1], [1, -1]], dtype=F64)


def on_page(*texts: str) -> None:
    flat = " ".join(PAGE.split())
    for text in texts:
        assert " ".join(text.split()) in flat, f"not on the page: {text}"


def record(part: str = "main") -> dict:
    return json.loads((FIGURES / part / "run.json").read_text("utf-8"))


def results(part: str = "main") -> dict[str, Tensor]:
    return load_file(FIGURES / part / "results.safetensors")


def drawing(name: str) -> ET.Element:
    return ET.parse(DIAGRAMS / f"{name}.svg").getroot()


def words(root: ET.Element) -> list[str]:
    return ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]


def numbers(root: ET.Element) -> list[int]:
    found = (text.replace("−", "-") for text in words(root))
    return [int(text) for text in found if re.fullmatch(r"-?\d+", text)]


def pixels(root: ET.Element) -> list[np.ndarray]:
    """Read the embedded images, without their transparent gaps."""
    found = []
    for image in root.iter(f"{SVG}image"):
        kind, _, data = image.attrib[LINK].partition(",")
        assert kind == "data:image/png;base64"
        png = np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))
        if png.shape[-1] == 4:
            opaque = png[..., 3] == 255
            png = png[opaque.any(1)][:, opaque.any(0), :3]
        found.append(png)
    return found


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


# --- tokens ------------------------------------------------------------------------


def test_pixels_and_patches_are_counted_on_the_page_and_in_the_drawings() -> None:
    on_page(f"There are {32**2:,} of them", f"{1024**2:,} pairs for every head")
    on_page(f"{224**2:,} pixels and about 2.5 billion", "would fill 10 gigabytes")
    assert round(50_176**2 / 1e9, 1) == 2.5
    assert round(50_176**2 * 4 / 1e9) == 10
    on_page("sequence of 64 tokens, with 4,096 pairs", r"$4\cdot 4\cdot 3 = 48$")
    assert "1,024 tokens, 1,048,576 pairs" in words(drawing("pixels"))
    assert f"64 tokens, {64**2:,} pairs" in words(drawing("patches"))
    assert {"48 numbers"} <= {x.removeprefix("= ") for x in words(drawing("patches"))}


def test_the_drawings_show_the_horse_of_the_run() -> None:
    horse = results()["images"][7].permute(1, 2, 0).numpy()
    assert record()["metrics"]["shown"][7] == {"label": "horse", "predicted": "horse"}
    image, pixel = pixels(drawing("pixels"))
    assert np.array_equal(image, horse)
    assert np.array_equal(pixel[0, 0], horse[10, 26])
    red, green, blue = horse[10, 26].tolist()
    on_page(f"({red}, {green}, {blue}) may belong")
    channels = {f"red {red}", f"green {green}", f"blue {blue}"}
    assert channels <= {*words(drawing("pixels"))}
    # The pixel lies in patch 23, that is, in row 3 and column 7.
    assert (10 // 4) * 8 + 26 // 4 + 1 == 23
    cut = rearrange(horse, "(r i) (s j) c -> (r s) i j c", i=4, j=4)
    image, patch = pixels(drawing("patches"))
    assert np.array_equal(image, horse)
    assert np.array_equal(patch, cut[22])
    image, *few = pixels(drawing("tokens"))
    assert np.array_equal(image, horse)
    for patch, number in zip(few, (1, 23, 64), strict=True):
        assert np.array_equal(patch, cut[number - 1])


def test_the_shuffled_image_has_the_same_patches() -> None:
    bags = []
    for name in ("bag-image", "bag-shuffled"):
        (image,) = pixels(drawing(name))
        patches = rearrange(image, "(r i) (s j) c -> (r s) (i j c)", i=4, j=4)
        bags.append([patch.tobytes() for patch in patches])
    assert bags[0] != bags[1]
    assert sorted(bags[0]) == sorted(bags[1])


def test_the_toy_embedding() -> None:
    patches = rearrange(TOY, "(r i) (s j) -> (r s) (i j)", i=2, j=2)
    tokens = (patches @ E).int().tolist()
    assert tokens == [[12, 0], [6, 6], [4, -4], [2, 0]]
    on_page("The four tokens are $(12, 0)$, $(6, 6)$, $(4, -4)$ and $(2, 0)$.")
    on_page("Patch 4 is $(0, 0, 1, 1)$")
    swapped = torch.tensor([1.0, 1, 0, 0], dtype=F64) @ E
    assert swapped.tolist() == [2, 0]
    assert (torch.tensor([1.0, 0, 0, 1], dtype=F64) @ E).tolist() == [2, 0]
    top = torch.tensor([1.0, 1, -1, -1], dtype=F64)
    assert (patches @ top).tolist() == [0, 0, 0, -2]
    on_page("gives $0, 0, 0$ and $-2$")
    shown = numbers(drawing("toy-cut"))
    flat = patches.int().tolist()
    labeled = [x for k, row in enumerate(flat) for x in (k + 1, *row)]
    assert shown == [*TOY.int().flatten().tolist(), 1, 2, 3, 4, *labeled]
    in_rows = [x for k in range(4) for x in (k + 1, *flat[k], *tokens[k])]
    assert numbers(drawing("toy-embed")) == [*E.int().flatten().tolist(), *in_rows]


def test_windows_of_the_two_convolutions() -> None:
    one = torch.ones(1, 1, 8, 8)
    tiled = F.conv2d(one, torch.ones(1, 1, 4, 4), stride=4)
    slid = F.conv2d(one, torch.ones(1, 1, 3, 3))
    assert (tiled.numel(), slid.numel()) == (4, 36)
    assert "4 windows, no pixel twice" in words(drawing("windows-tile"))
    assert "36 windows, which overlap" in words(drawing("windows-slide"))
    on_page("$6\\cdot 6 = 36$")


# --- counts ------------------------------------------------------------------------


@pytest.mark.parametrize("patch_size", [32, 16, 8, 1])
def test_the_table_of_tokens(patch_size: int) -> None:
    d, n = 768, (224 // patch_size) ** 2 + 1
    share = 2 * n**2 * d / (2 * n**2 * d + 12 * n * d**2)
    on_page(f"| {patch_size} | {n:,} | {n**2:,} | {share:.0%} |")


def test_other_counts_of_tokens() -> None:
    d, n = 768, 24**2 + 1
    assert 24 * 16 == 384
    share = 2 * n**2 * d / (2 * n**2 * d + 12 * n * d**2)
    on_page(f"there are already {n} tokens, and the share is {share:.0%}")
    on_page(f"$16\\cdot 16 + 1 = {(224 // 14) ** 2 + 1}$")
    on_page(f"a factor of {(577 / 197) ** 2:.1f}")
    assert (40 // 4) ** 2 == 100
    on_page("there are 100 patches instead of 64")


def test_the_table_of_parameters() -> None:
    model = VisionTransformer.from_preset("ViT-B/16", num_classes=1000, device="meta")
    d = 768
    on_page(f"| patch embedding | $P^2C\\,d + d$ | {count(model.patch_embedding):,} |")
    assert model.class_token is not None
    assert model.class_position is not None
    on_page(f"| class token | $d$ | {model.class_token.numel()} |")
    positions = count(model.positions) + model.class_position.numel()
    on_page(f"| positions | $(N+1)\\,d$ | {positions:,} |")
    layers = count(model.encoder.layers)
    assert layers == 12 * (12 * d**2 + 13 * d)
    on_page(f"| 12 layers | $12\\,(12d^2 + 13d)$ | {layers:,} |")
    layer = model.encoder.layers[0]
    assert count(layer.attention) == 4 * d**2 + 4 * d
    assert count(layer.feed_forward) == 8 * d**2 + 5 * d
    assert model.encoder.final_norm is not None
    on_page(f"| final norm | $2d$ | {count(model.encoder.final_norm):,} |")
    on_page(f"| head | $(d+1)\\cdot 1000$ | {count(model.head):,} |")
    on_page(f"| total | | {count(model):,} |")
    wide = VisionTransformer.from_preset("ViT-B/32", num_classes=1000, device="meta")
    more = count(wide.patch_embedding) - count(model.patch_embedding)
    fewer = count(model.positions) - count(wide.positions)
    on_page(f"that is {more:,} more", f"147 rows fewer, or {fewer:,} parameters")
    assert fewer == 147 * d
    on_page("$64\\cdot 96 = 6144$, and $(8 + 8)\\cdot 48 = 768$")


# --- positions ---------------------------------------------------------------------


def mean_cosines(similarity: Tensor) -> dict[str, float]:
    """Average over pairs in a row, in a column, of neighbors, of mirror images."""
    found: dict[str, list[float]] = {}
    for i, j, k, l in product(range(8), repeat=4):  # noqa: E741
        cosine = similarity[i, j, k, l].item()
        for name, holds in {
            "same_row": i == k and j != l,
            "same_column": i != k and j == l,
            "neither": i != k and j != l,
            "adjacent": abs(i - k) + abs(j - l) == 1,
            "mirror_images": i == k and j + l == 7,
        }.items():
            if holds:
                found.setdefault(name, []).append(cosine)
    return {name: statistics.mean(cosines) for name, cosines in found.items()}


def test_what_the_page_says_of_the_learned_positions() -> None:
    cosines = record("positions")["metrics"]["mean_cosine_of_positions"]
    for name, recorded in cosines.items():
        similarities = results("positions")[f"similarity.{name}"]
        assert len(similarities) == 3
        found = [mean_cosines(x) for x in similarities]
        for which, spread in recorded.items():
            means = [x[which] for x in found]
            assert statistics.mean(means) == pytest.approx(spread["mean"], abs=2e-3)
    mirrored, plain = cosines["learned_small"], cosines["learned_small_unmirrored"]
    for small in (mirrored, plain):
        assert small["adjacent"]["min"] > 0.6 > 0.0 > small["neither"]["max"]
        assert small["same_row"]["min"] > 3 * small["same_column"]["max"]
    assert plain["mirror_images"]["max"] < mirrored["mirror_images"]["min"]
    assert plain["mirror_images"]["min"] > plain["same_row"]["max"]
    on_page("But positions in a row are still more similar", "falls from")
    # A table that starts large shows no layout.
    assert all(abs(x["max"]) < 0.06 for x in cosines["learned"].values())
    on_page(f"started {math.sqrt(0.5) / 0.02:.0f} times as large")


def test_positions_are_resampled_as_on_the_page_and_in_the_drawings() -> None:
    two = torch.tensor([[[0.0, 4.0]]])
    four = F.interpolate(two, size=4, mode="linear", align_corners=False)
    assert four.flatten().tolist() == [0, 1, 3, 4]
    centers = [(i + 0.5) * 2 / 4 - 0.5 for i in range(4)]
    on_page("$-0.25$, $0.25$, $0.75$ and $1.25$", "gives 0, 1, 3 and 4")
    assert centers == [-0.25, 0.25, 0.75, 1.25]
    table = rearrange(results()["embeddings"], "r s d -> 1 d r s")
    larger = F.interpolate(table, size=(12, 12), mode="bicubic", align_corners=False)
    signs = []
    for name, values in (("resample-small", table), ("resample-large", larger)):
        circles = [*drawing(name).iter(f"{SVG}circle")]
        n = values.shape[-1]
        u = 248 / n
        drawn = torch.zeros(n, n)
        for circle in circles:
            column, row = (
                round((float(circle.attrib[key]) - start) / u - 0.5)
                for key, start in (("cx", 56), ("cy", 30))
            )
            sign = -1.0 if "none" in circle.attrib["style"] else 1.0
            drawn[row, column] = sign * float(circle.attrib["r"]) ** 2 / u**2
        top = table.abs().amax(dim=(-2, -1))[0]
        expected = 0.44**2 * values[0] / top[:, None, None]
        errors = (expected - drawn).abs().amax(dim=(-2, -1))
        signs.append(errors.argmin().item())
        assert errors.min() < 0.02
    assert signs[0] == signs[1]  # one coordinate in both panels


def test_what_the_page_says_of_kinds_of_positions() -> None:
    metrics = record("positions")["metrics"]
    tests = {name: x["test_accuracy"] for name, x in metrics["models"].items()}
    shuffled = metrics["accuracy_on_shuffled_patches"]
    assert tests["none"] == shuffled["none"]
    assert all(shuffled[x]["max"] < tests[x]["min"] for x in tests if x != "none")
    assert all(tests["none"]["max"] < x["min"] for n, x in tests.items() if n != "none")
    on_page("61.4% on a 5-shot test", "64.2% with them")
    learned, axial, small = (tests[x] for x in ("learned", "axial", "learned_small"))
    assert learned["mean"] < axial["mean"] < tests["sinusoidal"]["mean"]
    assert axial["min"] < learned["max"] < tests["sinusoidal"]["min"]
    on_page("every seed of the sinusoids is ahead of every seed of the table")
    kinds = [tests[name]["mean"] for name in ("learned", "axial", "sinusoidal")]
    gain, apart = min(kinds) - tests["none"]["mean"], max(kinds) - min(kinds)
    on_page(
        f"at least {100 * gain:.1f} points over none", f"{100 * apart:.1f} points apart"
    )
    assert small["mean"] == pytest.approx(axial["mean"], abs=0.002)
    assert small["min"] > learned["max"]
    on_page("served the model better, from each of the three seeds")
    gains = metrics["gain_in_last_fifth"].values()
    on_page(f"gains more than {100 * max(x['max'] for x in gains):.1f} points")


# --- reading out -------------------------------------------------------------------


def test_logits_and_losses() -> None:
    on_page(f"\\ln 10 \\approx {math.log(10):.2f}")
    odds = torch.tensor([1, 1 + math.log(3)], dtype=F64).softmax(dim=0)
    assert odds.tolist() == pytest.approx([0.25, 0.75])
    assert {"head, 96 × 10", "10 logits", "horse"} <= {*words(drawing("model"))}
    assert "1/64 each" in words(drawing("read-mean"))


# --- distance ----------------------------------------------------------------------


def test_attention_distances_by_hand() -> None:
    weights = torch.tensor([[2, 2, 0], [1, 2, 1], [0, 2, 2]], dtype=F64) / 4
    uniform, away = torch.full((3, 3), 1 / 3, dtype=F64), torch.tensor([0.0, 16, 32])
    steps = (away[:, None] - away).abs().double()
    assert (weights * steps).sum(1).tolist() == [8, 8, 8]
    each = (uniform * steps).sum(1).tolist()
    on_page(f"gives {each[0]:g}, {each[1]:.2f} and {each[2]:g}")
    on_page(f"$D = {statistics.mean(each):.1f}$", "so $D = 8$ pixels")
    assert statistics.mean(each) == pytest.approx(8 / 9 * 16)
    for m in (2, 3, 7):
        pairs = [abs(i - j) for i, j in product(range(m), repeat=2)]
        assert statistics.mean(pairs) == pytest.approx((m**2 - 1) / (3 * m))


def test_the_farthest_attention() -> None:
    centers = 16.0 * torch.cartesian_prod(torch.arange(14), torch.arange(14)).double()
    away = torch.cdist(centers, centers)
    farthest = F.one_hot(away.argmax(dim=1), 196).double()
    reach = attention_distance(farthest, (14, 14), patch_size=16, class_token=False)
    on_page(f"$D = {reach.item():.1f}$ pixels")
    assert reach.item() > 224
    assert away.max().item() == pytest.approx(math.sqrt(2) * 13 * 16)


def test_what_the_page_says_of_the_distances() -> None:
    found = results()
    trained, untrained = found["distances"], found["distances_untrained"]
    assert 5 < untrained.min() < untrained.max() < 7.5
    on_page("its heads attend nearby, at 5 to 7 pixels", "except in layer 2, where all")
    assert (trained > untrained)[[0, 2, 3, 4, 5]].all()
    assert 5.5 < trained[1].min() < trained[1].max() < 7.5
    on_page("stay at 6 to 7 pixels", "From there the mean over heads grows with every")
    means = trained.mean(dim=1)[1:].tolist()
    assert means == sorted(means)
    near, *wide = trained[0].sort().values.tolist()
    assert near < 0.5 * results()["distance_uniform"]
    assert min(wide) > 0.9 * results()["distance_uniform"]
    on_page("two that attend almost as widely as uniform", "attends to the four")
    cells = torch.cartesian_prod(torch.arange(8), torch.arange(8)).double()
    adjacent = (torch.cdist(cells, cells) == 1).double()
    near = attention_distance(adjacent, (8, 8), patch_size=4, class_token=False)
    assert near.item() == 4.0


def test_the_receptive_fields_that_are_drawn() -> None:
    for kind, reached in (("convolution", [7, 5, 3, 1]), ("attention", [9, 9, 9, 1])):
        root = drawing(f"reach-{kind}")
        live: dict[str, int] = {}
        for circle in root.iter(f"{SVG}circle"):
            y = circle.attrib["cy"]
            live[y] = live.get(y, 0) + ("paper" not in circle.attrib["style"])
        assert [*live.values()] == reached
    assert "7 of 9 after three layers" in words(drawing("reach-convolution"))


# --- rollout -----------------------------------------------------------------------


def test_rollout_by_hand_and_as_drawn() -> None:
    layers = torch.tensor(
        [[[1, 0, 0], [0, 0, 1], [0, 0, 1]], [[0, 1, 0], [0, 1, 0], [0, 0, 1]]],
        dtype=F64,
    )
    rollout = attention_rollout([layer[None, None] for layer in layers])[0]
    assert rollout[0].tolist() == [0.5, 0.25, 0.25]
    assert rollout[1].tolist() == [0, 0.5, 0.5]
    first, second = (torch.eye(3) / 2 + layer / 2 for layer in layers)
    assert (first @ second)[0].tolist() == [0.5, 0.5, 0]  # in the wrong order
    assert words(drawing("rollout-paths"))[-6:-1:2] == ["½", "¼", "¼"]
    assert words(drawing("rollout-last"))[-6:-1:2] == ["0", "1", "0"]
    widths = [
        float(path.attrib["stroke-width"])
        for path in drawing("rollout-paths").iter(f"{SVG}path")
    ]
    assert widths == [8 * share for share in (0.5, 0.5, 0.5, 0.25, 0.25)]


def test_what_the_page_says_of_the_horses_rollout() -> None:
    shares = 64 * results()["rollout"][7]
    assert divmod(int(shares.argmax()), 8) == (3, 0)  # at the left border
    on_page(f"top has {shares[0].mean():.1f} of an equal share")
    on_page(f"the largest share, {shares.max():.1f} times an equal one, is at the left")
    shown = record()["metrics"]["shown"]
    assert all(one["label"] == one["predicted"] for one in shown)
    on_page("classifies all ten correctly")


# --- what later models add ---------------------------------------------------------

NOTED = torch.tensor([[4, 0], [3, 0], [1, 0], [0, 20]], dtype=F64)
CLEAN = torch.tensor([[4, 0], [3, 0], [1, 0], [0, 2]], dtype=F64)


def test_a_note_in_a_patch_and_in_a_register() -> None:
    assert NOTED.mean(0).tolist() == [2, 5]
    assert CLEAN.mean(0).tolist() == [2, 0.5]
    on_page("from $(2, 0.5)$ to $(2, 5)$", "the scores 4, 3, 1 and 20")
    query = torch.tensor([1, 1], dtype=F64)
    scores = NOTED @ query
    assert scores.tolist() == [4, 3, 1, 20]
    missing = 1 - scores.softmax(dim=0)[3].item()
    assert round(missing * 1e7) == 2
    on_page("all but two ten-millionths of the weight")
    weights = (torch.cat([CLEAN, NOTED[3:]]) @ query).softmax(dim=0)[:4]
    shares = [f"{x:.2f}" for x in (weights / weights.sum()).tolist()]
    on_page(f"{shares[0]}, {shares[1]}, {shares[2]} and {shares[3]}")
    assert round(100 * 4 / 197) == 2


@pytest.mark.parametrize(
    ("name", "tokens"),
    [("registers-none", NOTED), ("registers-one", torch.cat([NOTED[3:], CLEAN]))],
)
def test_the_bars_are_the_norms_of_the_tokens(name: str, tokens: Tensor) -> None:
    root = drawing(name)
    norms = tokens.norm(dim=1).tolist()
    heights = [float(bar.attrib["height"]) for bar in root.iter(f"{SVG}rect")]
    assert heights == [7 * norm for norm in norms]
    assert numbers(root) == norms
    shown = words(root)
    for a, b in tokens.int().tolist():
        assert f"({a}, {b})" in shown
    mean = tokens[-4:].mean(dim=0).tolist()  # without the register
    assert f"mean of the patches: ({mean[0]:g}, {mean[1]:g})" in shown


def test_a_branch_is_scaled_and_dropped_as_drawn() -> None:
    token, branch = torch.tensor([[4, 2], [3, -6]], dtype=F64)
    scaled = torch.tensor([0.5, 0.25], dtype=F64) * branch
    kept, dropped = scaled / 0.75, 0 * scaled
    steps = {"kept": kept, "dropped": dropped}

    def shown(x: Tensor) -> str:
        a, b = x.tolist()
        return f"({a:g}, {b:g})".replace("-0)", "0)").replace("-", "−")

    for name, added in steps.items():
        found = [x for x in words(drawing(f"branch-{name}")) if x.startswith("(")]
        wanted = [token, branch, scaled, added, token + added]
        assert found == [shown(x) for x in wanted]
    whole = 0.75 * (token + kept) + 0.25 * (token + dropped)
    assert whole.tolist() == (token + scaled).tolist() == [5.5, 0.5]
    on_page("\\tfrac34\\,(6, 0) + \\tfrac14\\,(4, 2) = (5.5, 0.5)")
    rates = [0.2 * layer / 12 for layer in range(1, 13)]
    on_page(f"= {sum(rates):.1f}$, and each counts twice: {2 * sum(rates):.1f}")


def test_rotary_scores_by_hand() -> None:
    one, two = math.cos(1), math.cos(2)
    on_page(f"${one:.3f} - {-two:.3f} = {one + two:.3f}$")


def test_attention_pooling_by_hand() -> None:
    for scores, values, read in (((0, 0, 2), (4, 0, 8), 5), ((0, 3), (8, 0), 2)):
        logits = torch.tensor([math.log(x) if x else 0.0 for x in scores], dtype=F64)
        weights, numbers_ = logits.softmax(dim=0), torch.tensor(values, dtype=F64)
        assert (weights @ numbers_).item() == pytest.approx(read)
        assert numbers_.mean().item() == 4
    on_page("the result is $1 + 0 + 4 = 5$; the mean is 4", "it reads 2; the mean is 4")


def test_a_white_pixel_to_two_models() -> None:
    for name, mean, std, text in (
        ("vit_base_patch16_siglip_224", 0.5, 0.5, "$(1 - 0.5)/0.5 = 1$"),
        ("vit_base_patch14_reg4_dinov2", 0.485, 0.229, "$(1 - 0.485)/0.229 = 2.25$"),
    ):
        settings = timm.get_pretrained_cfg(name)
        assert (settings.mean[0], settings.std[0]) == (mean, std)
        assert text.endswith(f"= {(1 - mean) / std:.3g}$")
        on_page(text)


def has(model: Any, part: str) -> bool:
    return any(part in name for name, _ in model.named_parameters())


def test_the_table_of_models_is_what_timm_builds() -> None:
    names = {
        "ViT ([[cite dosovitskiy2021]])": "vit_base_patch16_224",
        "DeiT III ([[cite touvron2022]])": "deit3_base_patch16_224",
        "DINOv2 with registers ([[cite darcet2024]])": "vit_base_patch14_reg4_dinov2",
        "SigLIP ([[cite zhai2023]])": "vit_base_patch16_siglip_224",
        "EVA-02 ([[cite fang2024]])": "eva02_base_patch14_224",
        "DINOv3 ([[cite simeoni2025]])": "vit_base_patch16_dinov3",
    }
    pools = {"token": "class token", "map": "attention", "avg": "mean"}
    for label, name in names.items():
        with torch.device("meta"):
            model: Any = timm.create_model(name)
        prefix, positions = model.num_prefix_tokens, []
        token = has(model, "cls_token")
        if model.pos_embed is not None:
            only = token and model.pos_embed.shape[1] == model.patch_embed.num_patches
            positions.append("table, patches only" if only else "table")
        positions += ["rotary"] if getattr(model, "rope", None) is not None else []
        scaled = "yes" if has(model, "ls1.") or has(model, "gamma_1") else "no"
        cells = [label, str(prefix - token or "none"), scaled]
        cells += [" and ".join(positions), pools[model.global_pool]]
        on_page(f"| {' | '.join(cells)} |")


# --- filters and training ----------------------------------------------------------


def share_of_first_ten(weight: Tensor) -> float:
    variances = torch.linalg.svdvals(weight - weight.mean(dim=0)) ** 2
    return (variances[:10].sum() / variances.sum()).item()


def test_filters_that_were_never_trained() -> None:
    shares = []
    for seed in range(20):
        torch.manual_seed(seed)
        weight = PatchEmbedding(4, channels=3, dim=96).proj.weight
        shares.append(share_of_first_ten(weight.detach()))
    metrics = record()["metrics"]
    random = metrics["variance_of_first_10_components_random"]
    assert statistics.mean(shares) == pytest.approx(random["mean"], abs=0.01)
    trained = metrics["variance_of_first_10_components"]
    assert trained < min(shares)
    on_page("spread *more* evenly than chance", f"{trained:.0%} would have sounded")


def test_what_the_page_says_of_the_runs() -> None:
    main = record()["metrics"]
    accuracy = main["test_accuracy"]["mean"]
    error = math.sqrt(accuracy * (1 - accuracy) / record()["data"]["test"])
    on_page(f"uncertain by about {100 * error:.1f} points")
    assert round(3_720_000 / main["parameters"]) == 8
    model = VisionTransformer(
        32, 4, num_classes=10, dim=96, depth=6, heads=3, hidden_dim=192, pool="mean"
    )
    assert count(model) == main["parameters"]


def test_what_the_page_says_of_sizes_of_the_training_set() -> None:
    models, gaps = record("initialization")["metrics"]["models"], []
    for percent, images in ((1, 450), (10, 4500), (100, 45000)):
        vit, resnet = (
            models[f"{kind}_{percent}_percent"] for kind in ("vit_default", "resnet")
        )
        assert vit["images"] == resnet["images"] == images
        assert vit["samples"] == resnet["samples"]
        tests = [x["test_accuracy"] for x in (vit, resnet)]
        assert all(x["max"] - x["min"] < 0.02 for x in tests)
        assert tests[0]["max"] < tests[1]["min"]
        gaps.append(100 * (tests[1]["mean"] - tests[0]["mean"]))
    assert gaps == sorted(gaps)
    on_page(f"gaps of {gaps[0]:.0f} to {gaps[2]:.0f} points")
    on_page("The seeds differ by less than two points", "do not even come closer")


def test_what_the_page_says_of_the_local_start() -> None:
    metrics = record("initialization")["metrics"]
    tests, held_out = (
        {name: x[of] for name, x in metrics["models"].items()}
        for of in ("test_accuracy", "validation_accuracy")
    )
    at_10 = {
        name: tests[f"vit_{name}_10_percent"]
        for name in ("default", "values", "whitened", "mimetic", "all", "shifts")
    }
    assert [*at_10] == sorted(at_10, key=lambda name: round(at_10[name]["mean"], 2))
    assert at_10["values"]["min"] < at_10["default"]["max"] < at_10["whitened"]["min"]
    assert abs(at_10["shifts"]["mean"] - at_10["all"]["mean"]) < 0.01
    assert all(0.5 < metrics["gap_closed"][f"of_{n}_percent"] < 0.6 for n in (10, 100))
    on_page("initial weights close about half of the gap in accuracy")
    assert metrics["chosen"] == "all"
    best, second = sorted(
        (held_out[f"vit_{name}_10_percent"]["mean"] for name in at_10), reverse=True
    )[:2]
    assert best - second < 0.01
    on_page("all three together were ahead by less than a point")
    ours = [tests[f"vit_{start}_1_percent"] for start in ("default", "all")]
    assert ours[1]["min"] < ours[0]["max"]
    for library in ("timm", "torchvision"):
        default, local = (
            tests[f"{library}_{start}_10_percent"] for start in ("default", "all")
        )
        assert local["min"] > default["max"] + 0.05
    on_page("ViTs of other libraries benefit, too: on 4,500 images", "for every seed")
    assert (
        tests["resnet_whitened_10_percent"]["min"] > tests["resnet_10_percent"]["max"]
    )
    assert abs(at_10["mimetic"]["mean"] - at_10["all"]["mean"]) < 0.01
    on_page("the mimetic start has none, and does as well")
    default, local, whitened = (
        tests[f"{name}_10_percent"]["mean"]
        for name in ("vit_default", "vit_all", "resnet_whitened")
    )
    share = (local - default) / (whitened - default)
    assert metrics["gap_closed_to_whitened"] == pytest.approx(share, abs=1e-3)


def test_shares_of_attention_near_the_query() -> None:
    recorded = record("initialization")["metrics"]["weight_within_3_by_3"]
    steps = torch.arange(-7, 8).abs()
    # Of the 64 queries, these have a key at an offset.
    share = torch.outer(8 - steps, 8 - steps) / 64
    near = torch.outer(steps < 2, steps < 2)
    for name, values in recorded.items():
        start, _, when = name.rpartition("_")
        weights = share * results("initialization")[f"{start}.{when}"]
        assert (weights.sum((-2, -1)) - 1).abs().max() < 1e-5
        found = (weights * near).sum((-2, -1)).mean(1)
        assert values == pytest.approx(found.tolist(), abs=1e-3)
    uniform = (near * share).sum().item() / 64
    on_page(f"uniform attention has {uniform:.0%}", "had not become local")
    for when in ("before", "after"):
        shares = recorded[f"vit_default_{when}"]
        assert shares == pytest.approx([uniform] * 4, abs=0.025)
