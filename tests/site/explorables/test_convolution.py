"""Attention and convolution: the page's arithmetic against the package and PyTorch."""

import importlib.util
import json
import math
import re
import xml.etree.ElementTree as ET
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from playwright.sync_api import Page
from safetensors.torch import load_file
from torch import Tensor, nn

from transformers_hw.attention_as_convolution import (
    GaussianSelfAttention,
    attention_from_convolution,
    effective_kernel,
    verify_limit,
)

ROOT = Path(__file__).parents[3]
F64 = torch.float64
ROWS, COLUMNS = 11, 14
MATH, LEARNING = "convolution_math", "convolution_learning"
HARD = 1e30
TOLD = "document.querySelector('.stage.convolution .told').textContent"
EXACT = {"rtol": 0.0, "atol": 1e-11}
OUTLINE = [-1.0, -1, -1, -1, 8, -1, -1, -1, -1]
BLUR = [x / 16 for x in (1.0, 2, 1, 2, 4, 2, 1, 2, 1)]
EDGE = [-1.0, 0, 1, -2, 0, 2, -1, 0, 1]


def as_tensor(x: Any) -> Tensor:
    return torch.as_tensor(x, dtype=F64)


def layer_of(heads: Tensor) -> GaussianSelfAttention:
    """Return the package's layer with these heads: row, column, alpha, weight."""
    layer = GaussianSelfAttention(1, len(heads), bias=False, dtype=F64)
    with torch.no_grad():
        layer.centers.copy_(heads[:, :2])
        layer.log_sharpness.copy_(heads[:, 2].log())
        layer.value_weight.copy_(heads[:, 3].reshape(-1, 1, 1))
    return layer


def attend(heads: Tensor, image: Tensor, stride: int = 1, pad: int = 0) -> Tensor:
    padded = F.pad(image, (pad, pad, pad, pad))[None, :, :, None]
    inside = tuple(slice(pad, pad + size, stride) for size in image.shape)
    with torch.no_grad():
        return layer_of(heads)(padded, queries=inside)[0, :, :, 0]


def convolve(
    kernel: Any,
    image: Tensor,
    dilation: int = 1,
    stride: int = 1,
    border: str = "replicate",
) -> Tensor:
    mode = "replicate" if border == "replicate" else "constant"
    padded = F.pad(image[None, None], (dilation,) * 4, mode=mode)
    weight = as_tensor(kernel).reshape(1, 1, 3, 3)
    return F.conv2d(padded, weight, dilation=dilation, stride=stride)[0, 0]


def draw(seed: int, reach: float = 3.0) -> tuple[Tensor, Tensor]:
    """Draw an image, and nine heads of different sharpness."""
    torch.manual_seed(seed)
    centers = reach * torch.randn(9, 2, dtype=F64)
    alpha = torch.logspace(-2, 2, 9, dtype=F64)[torch.randperm(9), None]
    heads = torch.cat([centers, alpha, torch.randn(9, 1, dtype=F64)], dim=1)
    return torch.randn(ROWS, COLUMNS, dtype=F64), heads


@pytest.mark.parametrize("reach", [0.7, 3.0, 50.0, 1e6])
def test_heads_average_as_the_packages_layer_does(evaluate: Any, reach: float) -> None:
    calls, expected = [], []
    for seed in range(4):
        image, heads = draw(seed, reach)
        for stride, pad in ((1, 0), (2, 0), (3, 2), (1, 3)):
            options = {"stride": stride, "pad": pad}
            calls.append(("attend", image.flatten(), ROWS, COLUMNS, heads, options))
            expected.append(attend(heads, image, stride, pad))
    for seen, right in zip(evaluate(MATH, *calls), expected, strict=True):
        torch.testing.assert_close(as_tensor(seen), right.flatten(), **EXACT)


@pytest.mark.parametrize("alpha", [0.0, 1e-300, 1e-9, 700.0, 1e12, HARD])
def test_flat_and_hard_heads_with_ties(evaluate: Any, alpha: float) -> None:
    image, heads = draw(5)
    heads[:, 2] = alpha
    heads[:4, :2] = as_tensor([[0.5, -1.5], [2, 0.5], [-40.5, 0], [0.25, 7.75]])
    call = ("attend", image.flatten(), ROWS, COLUMNS, heads)
    (seen,) = evaluate(MATH, call)
    torch.testing.assert_close(as_tensor(seen), attend(heads, image).flatten(), **EXACT)
    if alpha == HARD:
        hard = GaussianSelfAttention(
            1,
            9,
            centers=heads[:, :2].float(),
            sharpness=math.inf,
            bias=False,
            dtype=F64,
        )
        with torch.no_grad():
            hard.value_weight.copy_(heads[:, 3].reshape(-1, 1, 1))
            right = hard(image[None, :, :, None])
        torch.testing.assert_close(as_tensor(seen), right.flatten(), **EXACT)


def test_weights_of_one_head_are_those_of_verify_limit(evaluate: Any) -> None:
    # The assignment's center is query minus key, ours key minus query.
    alphas, center, query = [0.1, 1.0, 10.0, 100.0], (1.5, -2.0), (3, 6)
    maps = verify_limit([-x for x in center], alphas, grid=(ROWS, COLUMNS), query=query)
    for alpha, right in zip(alphas, maps, strict=True):
        rows, columns = evaluate(
            MATH,
            ("axisWeights", center[0], alpha, ROWS, 1, query[0]),
            ("axisWeights", center[1], alpha, COLUMNS, 1, query[1]),
        )
        seen = torch.outer(as_tensor(rows), as_tensor(columns))
        torch.testing.assert_close(seen, right, **EXACT)


@pytest.mark.parametrize("border", ["replicate", "zeros", "padded"])
@pytest.mark.parametrize("dilation", [1, 2, 3])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_convolutions_and_hard_heads_are_pytorchs(
    evaluate: Any, border: str, dilation: int, stride: int
) -> None:
    image, heads = draw(7)
    kernel = heads[:, 3]
    heads[:, :2] = dilation * torch.cartesian_prod(*2 * [torch.arange(-1.0, 2.0)])
    heads[:, 2] = HARD
    options = {"dilation": dilation, "stride": stride, "border": border}
    call = ("compare", image.flatten(), ROWS, COLUMNS, heads, kernel, options)
    (seen,) = evaluate(MATH, call)
    right = convolve(kernel, image, dilation, stride, border)
    torch.testing.assert_close(as_tensor(seen["convolution"]), right.flatten(), **EXACT)
    conv = nn.Conv2d(
        1,
        1,
        3,
        stride=stride,
        dilation=dilation,
        padding=dilation,
        padding_mode="replicate" if border == "replicate" else "zeros",
        bias=False,
        dtype=F64,
    )
    with torch.no_grad():
        conv.weight.copy_(kernel.reshape(1, 1, 3, 3))
        there = attention_from_convolution(conv)(image[None, None])[0, 0]
    torch.testing.assert_close(there, right, **EXACT)
    if border == "zeros":  # Sharp heads repeat the border; only inside they agree.
        inside = as_tensor(seen["attention"]).reshape(right.shape)
        near = -(-dilation // stride)
        keep = (
            slice(near, (ROWS - dilation - 1) // stride + 1),
            slice(near, (COLUMNS - dilation - 1) // stride + 1),
        )
        torch.testing.assert_close(inside[keep], right[keep], **EXACT)
        assert seen["inside"] < 1e-11 < 1e-3 < seen["edge"]
    else:
        torch.testing.assert_close(
            as_tensor(seen["attention"]), right.flatten(), **EXACT
        )


@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("alpha", [0.0, 0.05, 0.5, 1.0, 2.0, 5.0, 19.0, HARD])
def test_on_the_taps_the_bound_is_the_theorems(
    evaluate: Any, alpha: float, dilation: int
) -> None:
    image, heads = draw(11)
    heads[:, :2] = dilation * torch.cartesian_prod(*2 * [torch.arange(-1.0, 2.0)])
    heads[:, 2] = alpha
    kernel = heads[:, 3]
    leak = 1.0 if alpha == 0 else 4 * math.exp(-alpha) / (1 - math.exp(-3 * alpha))
    right = 2 * min(1.0, leak) * image.abs().max() * kernel.abs().sum()
    for border in ("replicate", "padded"):
        options = {"dilation": dilation, "border": border}
        call = ("compare", image.flatten(), ROWS, COLUMNS, heads, kernel, options)
        (seen,) = evaluate(MATH, call)
        assert seen["proved"] is True
        assert seen["bound"] == pytest.approx(float(right), rel=1e-12, abs=1e-300)
        off = as_tensor(seen["attention"]) - as_tensor(seen["convolution"])
        worst = max(seen["inside"], seen["edge"])
        assert worst == pytest.approx(float(off.abs().max()), abs=1e-15)
        assert worst <= seen["bound"] + 1e-12


def test_no_error_exceeds_the_bound(evaluate: Any) -> None:
    calls = []
    for seed in range(60):
        image, heads = draw(100 + seed, [0.3, 1.5, 30.0][seed % 3])
        kernel = torch.randn(9, dtype=F64)
        if seed % 4 == 0:  # Near the taps, with nearly their numbers.
            taps = torch.cartesian_prod(*2 * [torch.arange(-1.0, 2.0)]).double()
            heads[:, :2] = taps + 0.1 * torch.randn(9, 2)
            heads[:, 2] = 10.0
            heads[:, 3] = kernel + 0.01 * torch.randn(9)
        # The worst image for the middle query has entries of 1 and -1.
        image = image.sign() if seed % 2 else image
        options = {
            "dilation": 1 + seed % 3,
            "stride": 1 + seed // 3 % 3,
            "border": ["replicate", "zeros", "padded"][seed // 9 % 3],
        }
        calls.append(
            ("compare", image.flatten(), ROWS, COLUMNS, heads, kernel, options)
        )
    for call, seen in zip(calls, evaluate(MATH, *calls), strict=True):
        zeros = call[-1]["border"] == "zeros"
        worst = seen["inside"] if zeros else max(seen["inside"], seen["edge"])
        assert worst <= seen["bound"] * (1 + 1e-12)
    # The bound is not idle: near the taps it is a small multiple of the error.
    assert min(seen["bound"] for seen in evaluate(MATH, *calls[:1])) < 5.0


def test_the_effective_kernel_is_the_packages(evaluate: Any) -> None:
    _, heads = draw(13, 1.0)
    heads[:, 2] = heads[:, 2].clamp(min=0.5)
    (seen,) = evaluate(MATH, ("effectiveKernel", heads, 14))
    right = effective_kernel(layer_of(heads), 29)[0, 0].detach()
    torch.testing.assert_close(as_tensor(seen), right.flatten(), **EXACT)


@pytest.mark.parametrize("radius", [3, 6])
def test_gradients_are_autograds(evaluate: Any, radius: int) -> None:
    side = 2 * radius + 1
    for seed in range(5):
        _, heads = draw(seed, 2.0)
        heads[:, 2] = heads[:, 2].log()
        wanted = torch.randn(side, side, dtype=F64)
        layer = layer_of(
            torch.cat([heads[:, :2], heads[:, 2:3].exp(), heads[:, 3:]], 1)
        )
        middle = slice(radius, radius + 1)
        weights = layer.weights(side, side, queries=(middle, middle))[:, 0, 0]
        kernel = torch.einsum("hkl,h->kl", weights, layer.value_weight[:, 0, 0])
        loss = (kernel - wanted).square().sum()
        loss.backward()
        assert layer.centers is not None
        assert layer.log_sharpness is not None
        by = torch.cat(
            [
                layer.centers.grad,
                layer.log_sharpness.grad[:, None],
                layer.value_weight.grad[:, 0],
            ],
            1,
        )
        call = ("lossAndGradient", heads.flatten(), wanted.flatten(), radius)
        (seen,) = evaluate(LEARNING, call)
        assert seen["loss"] == pytest.approx(loss.item(), rel=1e-12)
        torch.testing.assert_close(
            as_tensor(seen["gradient"]), by.flatten(), rtol=1e-9, atol=1e-10
        )


KERNELS = {
    "outline": OUTLINE,
    "edge": EDGE,
    "sharpen": [0.0, -1, 0, -1, 5, -1, 0, -1, 0],
    "emboss": [-2.0, -1, 0, -1, 1, 1, 0, 1, 2],
    "blur": BLUR,
    "shift": [0.0, 0, 1, 0, 0, 0, 0, 0, 0],
    "identity": [0.0, 0, 0, 0, 1, 0, 0, 0, 0],
    "drawn": [0.6, -1.2, 0.4, 1.8, 0.2, -0.8, -2.0, 1.0, 0.6],
}


@pytest.mark.parametrize("name", KERNELS)
def test_learning_reaches_the_kernel_from_random_starts(
    evaluate: Any, name: str
) -> None:
    kernel = as_tensor(KERNELS[name])
    calls = [("learn", kernel, 1, seed) for seed in (1, 2, 3)]
    begins = [("randomHeads", seed, kernel, 1) for seed in (1, 2, 3)]
    found = zip(evaluate(LEARNING, *begins), evaluate(LEARNING, *calls), strict=True)
    for start, seen in found:
        begin, end = as_tensor(start), as_tensor(seen["heads"])
        assert seen["error"] < 5e-4 * kernel.abs().max()
        assert (end - begin)[:, :2].norm(dim=1).max() > 0.5
        # The page's word is not taken for it: the package's layer is the convolution.
        assert end[:, 2].min() > 7.99
        image = torch.rand(ROWS, COLUMNS, dtype=F64)
        off = attend(end, image) - convolve(kernel, image)
        assert off[3:-3, 3:-3].abs().max() < 3e-3 * kernel.abs().max()


def test_soft_starts_arrive_and_some_sharp_ones_do_not(evaluate: Any) -> None:
    def reached(sharp: bool) -> int:
        calls = [("learn", OUTLINE, 1, seed, sharp) for seed in range(1, 9)]
        return sum(seen["error"] < 0.08 for seen in evaluate(LEARNING, *calls))

    # How many sharp ones arrive depends on rounding.
    assert reached(False) == 8
    assert 1 <= reached(True) <= 6
    page = (ROOT / "docs/chapters/attention_as_convolution.md").read_text("utf-8")
    assert "each of eight starts reached the outline filter" in " ".join(page.split())


def test_pictures_and_the_brightness_of_pixels(evaluate: Any) -> None:
    names = ["house", "stripes", "pixel"]
    seen = evaluate(MATH, *[("picture", name, 48) for name in names])
    for image in map(as_tensor, seen):
        assert image.shape == (48 * 48,)
        assert image.min() >= 0.0
        assert 0.9 < image.max() <= 1.0
    assert sum(seen[2]) == seen[2][24 * 48 + 24] == 1.0
    pixels = [255, 255, 255, 255, 0, 0, 0, 255, 9, 9, 9, 0, 255, 0, 0, 255]
    (seen,) = evaluate(MATH, ("brightness", pixels))
    assert seen == pytest.approx([1.0, 0.0, 1.0, 0.299])


def tool() -> Any:
    spec = importlib.util.spec_from_file_location("heads", ROOT / "tools/heads_json.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_replayed_heads_are_those_of_the_record(evaluate: Any) -> None:
    made = tool()
    written = json.loads(made.WRITTEN.read_text("utf-8"))
    hint = "run `python tools/heads_json.py` after training"
    record = load_file(made.RECORD / "results.safetensors")["heads"].double()
    assert as_tensor(written["heads"]).shape == record.shape, hint
    torch.testing.assert_close(
        as_tensor(written["heads"]), record, rtol=0, atol=5.1e-4, msg=hint
    )
    assert written["side"] == made.trail()["side"]
    # Heads with more than half of their weight on one offset, by the package's weights.
    side = 81
    for layer, heads in enumerate(record[-1]):
        alpha = 0.5 / heads[:, 2:].square()
        parts = [heads[:, :2], alpha, torch.ones(len(heads), 1)]
        weights = layer_of(torch.cat(parts, 1)).weights(
            side, side, queries=(slice(40, 41), slice(40, 41))
        )
        sharp = int((weights.flatten(1).amax(1) > 0.5).sum())
        calls = [
            ("sharpHeads", written["heads"][-1][layer]),
            ("moved", written["heads"][0][layer], written["heads"][-1][layer]),
        ]
        seen, moved = evaluate(MATH, *calls)
        assert seen == sharp
        way = (record[-1, layer] - record[0, layer])[:, :2].norm(dim=1).mean()
        assert moved == pytest.approx(float(way), abs=2e-3)


def test_the_still_drawing_shows_what_the_arithmetic_gives(evaluate: Any) -> None:
    drawing = ROOT / "docs/diagrams/attention_as_convolution/convolution.svg"
    root = ET.parse(drawing).getroot()
    texts = [
        "".join(x.itertext()) for x in root.iter("{http://www.w3.org/2000/svg}text")
    ]
    alphas = [float(x.split()[-1]) for x in texts if x.startswith("α")]
    (image,) = evaluate(MATH, ("picture", "house", 48))
    image = as_tensor(image).reshape(48, 48)
    taps = torch.cartesian_prod(*2 * [torch.arange(-1.0, 2.0)]).double()
    right = convolve(OUTLINE, image)
    for n, alpha in enumerate(alphas):
        columns = [taps, torch.full((9, 1), alpha), as_tensor(OUTLINE)[:, None]]
        error = (attend(torch.cat(columns, 1), image) - right).abs().max()
        leak = min(1.0, 4 * math.exp(-alpha) / (1 - math.exp(-3 * alpha)))
        errors, bounds = ([x for x in texts if x.startswith(w)] for w in ("err", "bou"))
        assert float(errors[n].split()[1]) == pytest.approx(float(error), rel=5e-3)
        assert float(bounds[n].split()[1]) == pytest.approx(32 * leak, rel=5e-3)
    assert alphas == [0.5, 2.0, 8.0]


def test_numbers_are_written_for_people(evaluate: Any) -> None:
    calls = {
        ("show", 0): "0",
        ("show", -1.2345): "−1.23",
        ("show", 3.14e-7): "3.1 × 10⁻⁷",
        ("alphaAt", 48): 4.0,
        ("positionFor", 4.0): 48,
        ("alphaAt", 73): HARD,
        ("weightText", -0.004): "0",
        ("weightText", -16.96): "−17",
        ("weightText", 0.0625): "0.06",
        ("whereabouts", -1, 0.5): "1 up, 0.5 right",
        ("whereabouts", 0.001, 0): "to the query itself",
    }
    assert evaluate(MATH, *calls) == list(calls.values())


# In the page.


@pytest.fixture
def stage(page: Page, address: str) -> Page:
    page.goto(
        f"{address}chapters/attention_as_convolution/", wait_until="domcontentloaded"
    )
    page.locator("[data-explorable=convolution]").scroll_into_view_if_needed()
    page.wait_for_selector("[data-explorable=convolution].live")
    return page


def settle(page: Page) -> None:
    """Wait until what was asked for is drawn."""
    page.evaluate(
        "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
    )


def number(text: str) -> float:
    """Read a number as the stage writes it, such as 1.2 × 10⁻³."""
    table = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹−", "-0123456789-")
    digits, _, power = text.partition(" × 10")
    return float(digits.translate(table)) * 10.0 ** int(power.translate(table) or 0)


def heads_on_stage(page: Page, alpha: float, kernel: Any) -> Tensor:
    """Read where the heads are drawn, in pixels from the query."""
    moved = page.locator(".stage.convolution [aria-label^=Head]").evaluate_all(
        "nodes => nodes.map(node => node.getAttribute('transform'))"
    )
    places = [[float(x) for x in re.findall(r"-?[\d.]+", text)] for text in moved]
    unit = 324 / 7
    rows = [[(y - 162) / unit, (x - 162) / unit] for x, y in places]
    parts = [as_tensor(rows), torch.full((9, 1), alpha), as_tensor(kernel)[:, None]]
    return torch.cat(parts, 1)


def check(page: Page, evaluate: Any, alpha: float, kernel: Any) -> None:
    """Compare the error, the bound and the painted output with the package's."""
    settle(page)
    (image,) = evaluate(MATH, ("picture", "house", 48))
    image = as_tensor(image).reshape(48, 48)
    heads = heads_on_stage(page, alpha, kernel)
    output, right = attend(heads, image), convolve(kernel, image)
    shown = page.locator(".stage.convolution .measures output").all_text_contents()
    error, bound = map(number, shown)
    assert error == pytest.approx(float((output - right).abs().max()), rel=6e-3)
    assert error <= bound
    drawn = (
        page.locator(".stage.convolution .view canvas")
        .nth(1)
        .evaluate(
            "canvas => [...canvas.getContext('2d').getImageData(0, 0, 48, 48).data]"
        )
    )
    low, high = right.min(), right.max()
    gray = (255 * (output - low) / (high - low)).clamp(0, 255)
    assert (as_tensor(drawn[::4]).reshape(48, 48) - gray).abs().max() <= 1.5


def test_moved_by_keys_and_mouse_the_stage_shows_the_packages_output(
    stage: Page, evaluate: Any
) -> None:
    check(stage, evaluate, 4.0, OUTLINE)
    head = stage.get_by_role("slider", name="Head 3", exact=True)
    assert head.get_attribute("aria-valuetext") == "attends 1 up, 1 right; weight −1"
    head.focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        head.press(key)
    check(stage, evaluate, 4.0, OUTLINE)
    said = head.get_attribute("aria-valuetext")
    assert said == "attends 0.9 up, 1.2 right; weight −1"
    box = stage.get_by_role("slider", name="Head 5", exact=True).bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + 10
    stage.mouse.move(x, y)
    stage.mouse.down()
    stage.mouse.move(x + 40, y - 50, steps=5)
    stage.mouse.up()
    moved = heads_on_stage(stage, 4.0, OUTLINE)[4]
    assert moved[0] < -0.5
    assert moved[1] > 0.5
    check(stage, evaluate, 4.0, OUTLINE)
    stage.get_by_role("button", name="Put heads on the taps").click()
    slider = stage.get_by_role("slider", name="Sharpness")
    slider.press("End")
    assert slider.get_attribute("aria-valuetext") == "∞ (hard)"
    stage.get_by_role("combobox", name="Kernel").select_option("edge")
    check(stage, evaluate, HARD, EDGE)
    stage.get_by_label("Tap at row 0, column 0").fill("3")
    own = [*EDGE[:4], 3.0, *EDGE[5:]]
    slider.press("Home")
    check(stage, evaluate, 1 / 16, own)
    stage.get_by_role("button", name="Reset").click()
    check(stage, evaluate, 4.0, OUTLINE)


def test_heads_learn_in_the_page_and_stop_with_it(stage: Page) -> None:
    stage.evaluate(
        """() => {
          window.asked = 0;
          const request = window.requestAnimationFrame;
          window.requestAnimationFrame = f => { window.asked++; return request(f); };
        }"""
    )
    stage.get_by_role("button", name="Learn").click()
    told = stage.locator(".stage.convolution .told")
    stage.wait_for_function(f"{TOLD}.match(/step [1-9]/)")
    stage.get_by_role("button", name="Pause").click()
    settle(stage)
    before = told.text_content()
    stage.wait_for_timeout(300)
    assert told.text_content() == before
    stage.get_by_role("button", name="Continue").click()
    stage.wait_for_function(
        f"{TOLD}.match(/reached/)",
        timeout=120_000,
    )
    shown = stage.locator(".stage.convolution .measures output").all_text_contents()
    assert number(shown[0]) < 0.01
    stage.get_by_role("button", name="New random start").click()
    settle(stage)
    stage.evaluate("dispatchEvent(new PageTransitionEvent('pagehide'))")
    stage.wait_for_timeout(200)
    asked = stage.evaluate("window.asked")
    stage.wait_for_timeout(400)
    assert stage.evaluate("window.asked") == asked


def test_the_record_is_replayed_and_an_image_of_ones_own_is_read(
    stage: Page, evaluate: Any
) -> None:
    stage.get_by_role("button", name="Replay").click()
    stage.get_by_role("combobox", name="Layer").select_option("0")
    epoch = stage.get_by_role("slider", name="Epoch")
    epoch.press("End")
    record = json.loads((ROOT / "docs/explorables/heads.json").read_text("utf-8"))
    last = len(record["heads"]) - 1
    told = stage.locator(".stage.convolution .told")
    settle(stage)
    assert f"after {last} of {last} epochs" in (told.text_content() or "")
    moved = stage.get_by_role("slider", name="Head 1", exact=True)
    (text,) = evaluate(MATH, ("whereabouts", *record["heads"][-1][0][0][:2]))
    assert moved.get_attribute("aria-valuetext") == f"attends {text}"
    stage.get_by_role("button", name="Drag").click()
    flat = {"name": "red.png", "mimeType": "image/png", "buffer": png_of_red()}
    stage.get_by_label("Your own image").set_input_files(flat)
    stage.wait_for_function(
        """() => document.querySelector('.stage.convolution .view canvas')
        .getContext('2d').getImageData(0, 0, 1, 1).data[0] === 76"""
    )
    # All pixels are equal, so every head averages equal values.
    shown = stage.locator(".stage.convolution .measures output").all_text_contents()
    assert number(shown[0]) < 1e-12
    bad = {"name": "no.png", "mimeType": "image/png", "buffer": b"no image"}
    stage.get_by_label("Your own image").set_input_files(bad)
    stage.wait_for_function(
        """() => document.querySelector('.stage.convolution .settings [role=status]')
        .textContent.includes('cannot read')"""
    )


def png_of_red() -> bytes:
    file = BytesIO()
    Image.new("RGB", (60, 90), (255, 0, 0)).save(file, "PNG")
    return file.getvalue()
