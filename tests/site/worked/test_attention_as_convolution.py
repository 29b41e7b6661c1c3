"""The numbers of chapter 8, on its page and in its diagrams, computed again."""

import itertools
import json
import math
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from transformers_hw.attention_as_convolution import (
    AbsolutePositionalEmbedding,
    GaussianSelfAttention,
    ImageBert,
    RelativePositionalEmbedding,
    convolution_from_attention,
    effective_kernel,
    fewest_heads,
    visualize_abs_positional_embedding,
    visualize_rel_positional_embedding,
)
from transformers_hw.multi_head_attention import MultiHeadAttention

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/chapters/attention_as_convolution.md").read_text("utf-8")
DIAGRAMS = ROOT / "docs/diagrams/attention_as_convolution"
FIGURES = ROOT / "docs/figures/attention_as_convolution"
SVG = "{http://www.w3.org/2000/svg}"
F64 = torch.float64
IMAGE = torch.tensor([2.0, 2.0, 5.0, 5.0], dtype=F64).expand(4, 4)
OUTLINE = torch.full((3, 3), -1.0, dtype=F64)
OUTLINE[1, 1] = 8.0
EDGES = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]], dtype=F64)


def on_page(*texts: str) -> None:
    flat = " ".join(PAGE.split())
    for text in texts:
        assert " ".join(text.split()) in flat, f"not on the page: {text}"


def drawing(name: str) -> ET.Element:
    return ET.parse(DIAGRAMS / f"{name}.svg").getroot()


def texts(name: str) -> list[str]:
    return ["".join(x.itertext()) for x in drawing(name).iter(f"{SVG}text")]


def numbers(name: str) -> list[float]:
    """Return the texts of a drawing that are numbers, in their order."""
    found = (text.replace("−", "-").removeprefix("× ") for text in texts(name))
    return [float(text) for text in found if re.fullmatch(r"\(?-?[\d.]+\)?", text)]


def filled(name: str, color: str) -> list[tuple[float, ...]]:
    """Return the left and upper edges of the filled cells, and their opacities."""
    return [
        (*(float(x.attrib[key]) for key in ("x", "y")), float(x.attrib["fill-opacity"]))
        for x in drawing(name).iter(f"{SVG}rect")
        if "fill-opacity" in x.attrib and f"--{color})" in x.attrib["style"]
    ]


def described(name: str) -> str:
    (desc,) = drawing(name).iter(f"{SVG}desc")
    return desc.text or ""


def convolve(kernel: Tensor, mode: str = "replicate") -> Tensor:
    padded = F.pad(IMAGE[None, None], (1, 1, 1, 1), mode=mode)
    return F.conv2d(padded, kernel[None, None])[0, 0]


def test_the_outline_by_hand() -> None:
    output = convolve(OUTLINE)
    assert output.tolist() == [[0, -9, 9, 0]] * 4
    assert numbers("outline-in") == IMAGE.flatten().tolist()
    assert numbers("outline-out") == output.flatten().tolist()
    assert output[1, 1] == -2 - 2 - 5 - 2 + 8 * 2 - 5 - 2 - 2 - 5
    assert -12 + (-2 + 8 * 5 - 5) - 12 == output[1, 2] == 9
    on_page("-2 - 2 - 5 = -9", "$-12 + 33 - 12 = 9$", "fetch 2, 5, 5 three times")
    assert convolve(OUTLINE, "constant")[1, 0] == 8 * 2 - 5 * 2 == 6
    on_page("$8\\cdot 2 - 5\\cdot 2 = 6$")
    assert convolve(EDGES)[1, 1] == -2 + 5 - 4 + 10 - 2 + 5 == 12
    assert int((EDGES != 0).sum()) == 6
    on_page("$-2 + 5 - 4 + 10 - 2 + 5 = 12$", "Six, because three taps are zero")


def test_nine_heads_are_drawn_as_the_kernel() -> None:
    assert numbers("nine-heads") == OUTLINE.flatten().tolist()
    assert numbers("one-kernel") == OUTLINE.flatten().tolist()
    targets = filled("nine-heads", "key")
    queries = [
        (float(x.attrib["x"]), float(x.attrib["y"]))
        for x in drawing("nine-heads").iter(f"{SVG}rect")
        if "stroke: var(--query)" in x.attrib.get("style", "")
    ]
    offsets = [
        ((y - below) / 15, (x - right) / 15)
        for (x, y, _), (right, below) in zip(targets, queries, strict=True)
    ]
    assert offsets == list(itertools.product((-1, 0, 1), repeat=2))


def test_windows_of_even_and_odd_kernels() -> None:
    def window(size: int) -> list[int]:
        return list(range(-(size // 2), (size - 1) // 2 + 1))

    assert (window(3), window(2)) == ([-1, 0, 1], [-1, 0])
    on_page("$\\{-1, 0, 1\\}^2$", "$\\Delta_2 = \\{-1, 0\\}^2$")
    assert window(5) == [-2, -1, 0, 1, 2]
    assert -1 not in [-d for d in window(2)]  # the heads at q − Δ₂ miss (−1, −1)
    assert len(window(7)) ** 2 == 49
    on_page("It takes 49.")
    # K = 4 with dilation 2 reaches 4 before and 2 after.
    assert [2 * window(4)[0], 2 * window(4)[-1]] == [-4, 2]
    on_page("$2\\cdot 2 = 4$ before and $2\\cdot 1 = 2$ after")
    outputs = nn.Conv2d(1, 1, 3, stride=2, padding=1)(torch.zeros(1, 1, 7, 9)).shape
    assert outputs[2:] == (4, 5)
    on_page("$\\lceil 7/2\\rceil\\cdot\\lceil 9/2\\rceil = 4\\cdot 5 = 20$")


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_counts_of_parameters() -> None:
    wide = {"head_dim": 64, "value_head_dim": 64, "output_dim": 64}
    layer = MultiHeadAttention(64, 9, **wide, bias=["output"])
    convolution = nn.Conv2d(64, 64, 3)
    for module in (layer, convolution):
        on_page(f"{count(module):,}$".replace(",", "{,}"))
    usual = MultiHeadAttention(63, 9, bias=["output"])
    assert count(usual) == 4 * 63**2 + 63
    assert usual.value_proj.weight.shape[0] // 9 == 7
    on_page("$D_o = 63/9 = 7$")
    with torch.device("meta"):
        on_page(f"{count(ImageBert()):,} parameters")
        content = count(ImageBert(encoding="learned+content"))
    on_page(f"{content / 1e6:.1f} million parameters")


def weights_on_a_row(alpha: float) -> list[float]:
    layer = GaussianSelfAttention(1, 1, centers=[(0, 1)], sharpness=alpha, dtype=F64)
    return layer.weights(1, 4)[0, 0, 1, 0].tolist()


def test_weights_on_a_row_of_four() -> None:
    exponentials = [math.exp(-2 * d) for d in (4, 1, 0, 1)]
    on_page(f"exponentials sum to {sum(exponentials):.3f}")
    by_hand = [x / sum(exponentials) for x in exponentials]
    assert weights_on_a_row(2.0) == pytest.approx(by_hand)
    on_page("$({:.3f}, {:.3f}, {:.3f}, {:.3f})$".format(*by_hand))
    on_page(f"At $\\alpha = 8$ the target has {weights_on_a_row(8.0)[2]:.3f}")
    wanted = [weights_on_a_row(alpha) for alpha in (0.5, 2.0, 8.0)]
    shown = [x for x in texts("row-weights") if re.fullmatch(r"\d\.\d\d", x)]
    assert shown == [f"{x:.2f}" for x in itertools.chain(*wanted)]
    heights = [
        float(x.attrib["height"])
        for x in drawing("row-weights").iter(f"{SVG}rect")
        if "fill-opacity" in x.attrib
    ]
    drawn = [58 * x for x in itertools.chain(*wanted)]
    assert heights == pytest.approx(drawn, abs=0.051)


def test_the_offset_is_drawn_to_scale() -> None:
    ends = [
        [float(x) for x in re.findall(r"[\d.]+", path.attrib["d"])]
        for path in drawing("offset").iter(f"{SVG}path")
        if "L" in path.attrib["d"] and path.attrib.get("fill") != "none"
    ]
    (center, key, difference) = [(x, y) for x, y, *_ in ends]
    query = (19 + 1.5 * 46, 34 + 4.5 * 46)
    assert [(y - query[1]) / 46 for _, y in (center, key)] == [-2.5, -3]
    assert [(x - query[0]) / 46 for x, _ in (center, key)] == [3.5, 2]
    assert difference == key
    assert "3 rows up and 2 columns to the right" in described("offset")
    radii = [float(x.attrib["r"]) for x in drawing("offset").iter(f"{SVG}circle")]
    assert radii == [46, 92, 5]


def test_the_maps_of_both_embeddings() -> None:
    absolute = AbsolutePositionalEmbedding((9, 9), 32)
    similar = visualize_abs_positional_embedding(absolute, (4, 4))
    least = similar.min().item()
    on_page(f"from {least:.2f} to 1")
    shades = [shade for _, _, shade in filled("absolute-map", "key")]
    wanted = 0.9 * (similar - least) / (1 - least)
    assert shades == pytest.approx(wanted.flatten().tolist(), abs=6e-5)
    # A cross: four steps along a row are more similar than three along both axes.
    assert similar[4, 8] > similar[7, 7]
    relative = RelativePositionalEmbedding([(2, -2)], sharpness=0.5)
    (weights,) = visualize_rel_positional_embedding(relative, (9, 9), (4, 4))
    assert divmod(int(weights.argmax()), 9) == (2, 6)
    on_page(f"its largest weight is {weights.max().item():.2f}")
    shades = [shade for _, _, shade in filled("relative-map", "query")]
    wanted = 0.9 * weights / weights.max()
    assert shades == pytest.approx(wanted.flatten().tolist(), abs=6e-5)
    on_page("(0.62 at $\\alpha = 2$, 0.9987 at 8)")  # as in the doctest above it


def test_how_sharp_is_sharp_enough() -> None:
    def bound(alpha: float) -> float:
        return 4 * math.exp(-alpha) / (1 - math.exp(-3 * alpha))

    for epsilon in (1.0, 0.5, 0.01, 1e-6):
        assert bound(math.log(4.07 / epsilon)) <= epsilon
    on_page("\\ln(4.07/0.01) \\approx 6.01")
    assert math.log(407) == pytest.approx(6.01, abs=0.005)
    # Half the distance from 1 to the next smaller number of float32 is 2⁻²⁵.
    assert 4 * math.exp(-19) < 2**-25 < 4 * math.exp(-18.5)
    for off in (bound(19), 2**-26):
        assert torch.tensor(1 - off, dtype=F64).float().item() == 1.0
    sharp = GaussianSelfAttention(1, 1, centers=[(1, -2)], sharpness=19.0)
    assert (sharp.weights(7, 9).amax(dim=(-1, -2)) == 1.0).all()
    row = 1 / math.fsum(math.exp(-(m**2)) for m in range(-30, 31))
    on_page(f"= {row:.3f}$. On a grid", f"${row:.3f}^2 = {row**2:.3f}$")


def test_what_is_read_at_the_corner() -> None:
    reads: dict[tuple[int, int], int] = {}
    for i, j in itertools.product((-1, 0, 1), repeat=2):
        at = (max(i, 0), max(j, 0))
        reads[at] = reads.get(at, 0) + 1
    assert numbers("border") == [reads[0, 0], reads[0, 1], reads[1, 0], reads[1, 1]]
    shades = {round(shade / 0.11) for _, _, shade in filled("border", "key")}
    assert shades == set(reads.values())
    on_page("Five targets lie outside")
    dashed = [x for x in drawing("border").iter() if "stroke-dasharray" in x.attrib]
    assert len(dashed) == sum(i < 0 or j < 0 for i, j in
                              itertools.product((-1, 0, 1), repeat=2)) == 5  # fmt: skip
    on_page("Four times the corner pixel, twice each of its two neighbors")


def test_taps_and_queries_of_dilation_and_stride() -> None:
    taps = [
        ((y - 36) / 40, (x - 40) / 40) for x, y, _ in filled("dilation-stride", "key")
    ]
    assert taps == list(itertools.product((1, 3, 5), repeat=2))
    rings = [
        ((float(x.attrib["cy"]) - 56) / 40, (float(x.attrib["cx"]) - 60) / 40)
        for x in drawing("dilation-stride").iter(f"{SVG}circle")
    ]
    assert rings == list(itertools.product((0, 2, 4, 6), repeat=2))


def test_one_softmax_per_axis() -> None:
    layer = GaussianSelfAttention(1, 1, centers=[(0, 1)], sharpness=0.7, dtype=F64)
    weights = layer.weights(5, 5)[0, 2, 2]
    columns, rows = weights.sum(dim=0), weights.sum(dim=1)
    torch.testing.assert_close(torch.outer(rows, columns), weights)
    wanted = [*columns.tolist(), *rows.tolist(), *weights.flatten().tolist()]
    shown = [x for x in texts("separable") if re.fullmatch(r"\d\.\d\d", x)]
    assert shown == [f"{x:.2f}" for x in wanted]
    shades = [shade for _, _, shade in filled("separable", "query")]
    assert shades == pytest.approx([0.9 * x for x in wanted], abs=6e-5)
    assert 32 + 32 == 64
    assert 32 * 32 == 1024
    on_page("64 multiplications per number replace 1,024", "$256$ and $16 + 16 = 32$")


def test_the_effective_kernel_of_three_soft_heads() -> None:
    centers = [(0, -1), (0, 0), (0, 1)]
    layer = GaussianSelfAttention(1, 3, centers=centers, sharpness=0.4, dtype=F64)
    with torch.no_grad():
        layer.value_weight.copy_(torch.tensor([-1.0, 3.0, -1.0]).view(3, 1, 1))
    kernel = effective_kernel(layer, 81)[0, 0].sum(dim=0)[37:44]
    offsets = torch.arange(-40, 41, dtype=F64)
    head = (-0.4 * offsets.square()).softmax(dim=0)[40:43].tolist()
    assert f"{head[0]:.2f}, {head[1]:.2f}, {head[2]:.2f}" in described("soft-heads")
    assert f"each has at most {head[0]:.2f} on one pixel" in texts("soft-heads")
    on_page(f"weights {head[0]:.3f} and {head[1]:.3f}")
    on_page(f"{3 * round(head[0], 3) - 2 * round(head[1], 3):.3f}$, or")
    on_page(f"or {kernel[3].item():.3f} without rounding")
    shown = [float(x.replace("−", "-")) for x in texts("effective") if "." in x]
    assert shown == pytest.approx(kernel.tolist(), abs=0.0051)
    bars = [
        float(x.attrib["height"])
        for x in drawing("effective").iter(f"{SVG}rect")
        if "fill-opacity" in x.attrib
    ]
    assert bars == pytest.approx((290 * kernel).abs().tolist(), abs=0.06)


def test_how_few_heads() -> None:
    ones = torch.full((9,), 1 / 9, dtype=F64)
    middle = F.one_hot(torch.tensor(4), 9).double()
    assert torch.allclose(9 * middle - 9 * ones, OUTLINE.flatten())
    for kernel in (OUTLINE, EDGES):
        assert len(fewest_heads(kernel.reshape(9, 1))[0]) == 2
    on_page("Two. Its rank is 1, and its taps have two signs.")
    side = torch.tensor([[1.0], [2.0], [1.0]], dtype=F64) / 4
    right, left = F.pad(side, (2, 0)), F.pad(side, (0, 2))
    assert torch.equal(4 * right - 4 * left, EDGES)
    on_page("$\\tfrac14, \\tfrac12, \\tfrac14$ on the right column, times $4$")


def test_the_gradient_of_a_center() -> None:
    on_page("$2\\alpha e^{-\\alpha}$", "below $10^{-7}$")
    assert 2 * 20 * math.exp(-20) < 1e-7
    layer = GaussianSelfAttention(1, 1, centers=[(0, 0.5)], sharpness=10.0, dtype=F64)
    nn.init.ones_(layer.value_weight)
    image = torch.tensor([0.0, 1.0], dtype=F64).reshape(1, 1, 2, 1)
    (slope,) = torch.autograd.grad(layer(image)[0, 0, 0, 0], [layer.centers])
    assert slope[0, 1].item() == pytest.approx(5.0)
    on_page("$2\\cdot 10\\cdot\\tfrac14 = 5$")


def test_ordinary_queries_and_keys_make_gaussian_scores() -> None:
    alpha, center = 0.7, torch.tensor([1.5, -2.0], dtype=F64)
    pixels = torch.cartesian_prod(torch.arange(4.0), torch.arange(5.0)).double()
    target = pixels + center
    query = F.pad(2 * alpha * target, (0, 1), value=-alpha)
    key = torch.cat([pixels, pixels.square().sum(1, keepdim=True)], dim=1)
    distance = (pixels - target[:, None]).square().sum(-1)
    expected = (-alpha * distance).softmax(dim=-1)
    torch.testing.assert_close((query @ key.T).softmax(dim=-1), expected)


def test_a_soft_layer_without_border_is_its_convolution() -> None:
    torch.manual_seed(0)
    layer = GaussianSelfAttention(3, 4, dtype=F64)
    found = convolution_from_attention(layer, share=0.999)
    reach = found.convolution.kernel_size[0] // 2
    side = 2 * reach + 3
    image = 2 * torch.rand(1, side, side, 3, dtype=F64) - 1
    convolved = found.convolution(image.movedim(-1, 1)).movedim(1, -1)
    error = (layer(image) - convolved).abs()[0, reach : reach + 3, reach : reach + 3]
    assert (error.amax(dim=(0, 1)) <= found.interior_error).all()


# What the page says of the run


def heads_of_the_run() -> Tensor:
    """Return row, column and spread of every head: times, layers, heads, three."""
    return load_file(FIGURES / "heads/results.safetensors")["heads"].double()


def peak(row: float, column: float, spread: float) -> tuple[float, tuple[int, int]]:
    """Return the largest weight of a Gaussian head, and its offset."""
    offsets = torch.arange(-150, 151, dtype=F64)
    alpha = 1 / (2 * spread**2)
    axes = [(-alpha * (offsets - at).square()).softmax(0) for at in (row, column)]
    (down, i), (right, j) = ((float(x.max()), int(x.argmax())) for x in axes)
    return down * right, (i - 150, j - 150)


def test_what_moved_in_the_run() -> None:
    record = json.loads((FIGURES / "heads/run.json").read_text("utf-8"))
    seen = record["metrics"]["model"]["images_seen"]
    assert seen == record["config"]["epochs"] * record["data"]["train"]
    assert 0.09 <= record["config"]["epochs"] / 300 <= 0.11
    assert record["metrics"]["model"]["parameters"] < 0.01 * 12_086_844
    on_page("a tenth of the authors' 300 epochs", "less than 1% of their parameters")
    trail = heads_of_the_run()
    first, last = trail[0], trail[-1]
    assert first[..., 2] == pytest.approx(1.0)
    peaks = [[peak(*head) for head in layer] for layer in last.tolist()]
    sharp = [n for n, (weight, _) in enumerate(peaks[0]) if weight > 0.5]
    assert all(peaks[0][n][0] > 0.999 for n in sharp)
    cells = {peaks[0][n][1] for n in sharp}
    assert cells == {(0, 0), (0, -1), (1, 0), (-1, -1), (1, -1)}
    on_page("five of the nine heads became sharp", "more than 99.9% of its weight")
    centers, moved = last[0, sharp, :2], (last - first)[0, sharp, :2].norm(dim=-1)
    assert f"{(centers - centers.round()).norm(dim=-1).max() + 0.005:.2f}" == "0.14"
    on_page("ended within 0.14 tokens of an integer offset")
    on_page(f"traveled between {moved.min():.1f} and {moved.max():.1f} tokens")
    assert int(last[0, :, 2].argmax()) == 8
    on_page(f"Head 9 went the other way: with a standard deviation of "
            f"{last[0, 8, 2]:.0f} tokens on a grid of 16")  # fmt: skip
    soft = [n for n in range(9) if n not in sharp and n != 8]
    assert len(soft) == 3
    assert all(last[0, n, 2] < 3 for n in soft)
    once = [
        [at for weight, at in (peak(*x[0, n].tolist()) for x in trail) if weight > 0.95]
        for n in soft
    ]
    assert [*map(bool, once)].count(True) == 1
    assert all(max(map(abs, at)) > 1 for offsets in once for at in offsets)
    on_page("Three heads ended soft; one of them had been sharp for some epochs")
    near = sorted((weight for weight, _ in peaks[1]), reverse=True)
    assert max(peaks[1])[1] == (-1, 0)
    assert near[0] > 0.999
    on_page(f"four more have {near[4]:.0%}"[:-1] + f" to {near[1]:.0%} of their weight")
    assert near[5] < 0.2
    before, after = (x[2, :, :2].norm(dim=-1) for x in (first, last))
    assert (last[2, :, 2] > 1).all()
    assert (after > before).all()
    assert int((after > 4).sum()) == 4
    on_page("all nine widened and all moved away from the query, four of them")


def test_what_the_kernels_of_the_run_say() -> None:
    record = json.loads((FIGURES / "heads/run.json").read_text("utf-8"))
    assert record["metrics"]["convolution_kernel_size"][0] == 277
    on_page("of $277\\times 277$")
    results = load_file(FIGURES / "heads/results.safetensors")
    energy, taps = results["kernel.energy"], results["kernel.taps"].double()
    assert int((energy[0] > 0.05).sum()) == 5
    assert energy[0, 5:].max() < 0.01
    on_page(f"Five singular values hold {energy[0, :5].sum():.0%} of the squares")
    inside = record["metrics"]["convolution_error_inside"]
    sizes = record["metrics"]["convolution_kernel_size"]
    assert all(
        (error is None) == (size > 3 * 16)
        for error, size in zip(inside, sizes, strict=True)
    )
    assert min(sizes) > 16
    on_page("a mosaic of nine images", "larger than the mosaic, so it has no inside")
    assert taps.shape == (3, 13, 13)
    strongest = taps[0].flatten().topk(5).indices
    cells = {(int(i) // 13 - 6, int(i) % 13 - 6) for i in strongest}
    assert cells == {(0, 0), (0, -1), (1, 0), (-1, -1), (1, -1)}


def test_what_the_page_says_of_the_models() -> None:
    record = json.loads((FIGURES / "models/run.json").read_text("utf-8"))
    models = record["metrics"]["models"]
    resnet, gaussian = models["resnet"], models["gaussian"]
    seen = 8 * record["data"]["train"]
    assert {x["images_seen"] for x in models.values()} == {seen}
    tests = {name: x["test_accuracy"] for name, x in models.items()}
    gaussian_test, learned, content_test = [*tests.values()][:3]
    assert gaussian_test["min"] < learned["max"]
    assert learned["min"] < gaussian_test["max"]
    on_page(
        "three seeds cannot tell them apart", "ahead of every other attention model"
    )
    assert content_test["min"] > max(gaussian_test["max"], learned["max"])
    assert tests["resnet"]["min"] > content_test["max"] + 0.05
    for cost in ("parameters", "million_multiply_adds"):
        assert abs(resnet[cost] / gaussian[cost] - 1) < 0.1
    content = models["learned_content"]["million_multiply_adds"]
    assert 2 <= content / gaussian["million_multiply_adds"] < 2.3
    heads = json.loads((FIGURES / "heads/run.json").read_text("utf-8"))["metrics"]
    assert 3.5 < heads["model"]["images_seen"] / seen < 4
    on_page("saw almost four times as many images")
    # The paper's table 1, in millions, and its images: 300 epochs of 50,000.
    theirs = dict(zip(models, (12.1, 12.3, 29.5, 11.2), strict=True))
    for name, millions in theirs.items():
        assert 240 < 1e6 * millions / models[name]["parameters"] < 290
    assert 300 * record["data"]["train"] > 30 * seen


def test_what_the_page_says_of_steps() -> None:
    record = json.loads((FIGURES / "steps/run.json").read_text("utf-8"))
    small, large = (record["metrics"][f"scale_{n}"] for n in (1, 20))
    assert small["images_seen"] == 3 * record["data"]["train"]
    assert small["test_accuracy"]["max"] < large["test_accuracy"]["min"]
    assert small["sharp_heads"]["max"] == 0
    found = [
        (large[name]["min"], large[name]["max"])
        for name in ("sharp_heads", "cells_3x3")
    ]
    assert found == [(6, 7), (4, 6)]
    on_page("six or seven of the nine heads", "filled four to six cells of the $3")
