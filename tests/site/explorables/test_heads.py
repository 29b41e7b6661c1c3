"""The explorable of chapter 4: where heads attend, and what one of them cannot do."""

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from playwright.sync_api import Locator, Page, expect
from torch import Tensor

from transformers_hw import MultiHeadAttention
from transformers_hw.self_attention import convolution_attention, permutation_attention

DRAWING = Path(__file__).parents[3] / "docs/diagrams/self_attention/heads.svg"
N = 5
ANGLES = (0.0, 1e-6, 30.0, 60.0, 90.0, 90.0 + 1e-6, 135.0, 180.0)
EXACT = {"rtol": 0.0, "atol": 1e-10}


def tensor(x: Any) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)


def attending(tables: Tensor, boxes: Tensor) -> MultiHeadAttention:
    """Build hard heads that attend, by position, where these tables are positive.

    Tokens are numbers with one-hot positions behind them; outputs have two coordinates.
    """
    heads, n, _ = tables.shape
    layer = MultiHeadAttention(
        1 + n,
        heads,
        head_dim=n,
        value_head_dim=1,
        output_dim=2,
        bias=False,
        scale=math.inf,
        dtype=torch.float64,
    )
    with torch.no_grad():
        for projection in (layer.query_proj, layer.key_proj, layer.value_proj):
            projection.weight.zero_()
        for r in range(heads):
            rows = slice(r * n, (r + 1) * n)
            layer.query_proj.weight[rows, 1:] = (tables[r] > 0).double().T
            layer.key_proj.weight[rows, 1:] = torch.eye(n).double()
        layer.value_proj.weight[:, 0] = 1.0
        layer.output_proj.weight.copy_(boxes.T)
    return layer


def with_positions(x: Tensor) -> Tensor:
    return torch.cat([x[:, None], torch.eye(len(x), dtype=x.dtype)], 1)[None]


def draw(n: int, heads: int) -> list[list[list[int]]]:
    """Draw the keys that each query of each head attends to."""

    def keys() -> list[int]:
        return sorted(torch.randperm(n)[: int(torch.randint(1, n + 1, ()))].tolist())

    return [[keys() for _ in range(n)] for _ in range(heads)]


def shared(pictures: list[list[list[int]]]) -> Tensor:
    """Share the weight of each query among its keys."""
    n = len(pictures[0])
    tables = torch.zeros(len(pictures), n, n, dtype=torch.float64)
    for table, picture in zip(tables, pictures, strict=True):
        for row, keys in zip(table, picture, strict=True):
            row[keys] = 1.0 / len(keys)
    return tables


@pytest.mark.parametrize("seed", range(3))
def test_layers_and_best_matrices_are_the_packages(evaluate: Any, seed: int) -> None:
    torch.manual_seed(seed)
    for n, heads in [(1, 1), (2, 2), (5, 1), (6, 2), (7, 2)]:
        pictures, boxes = draw(n, heads), torch.randn(heads, 2, dtype=torch.float64)
        tables, goal = shared(pictures), torch.randn(n, n, 2, dtype=torch.float64)
        *found, made, fitted, error = evaluate(
            "heads",
            *[("weights", picture, n) for picture in pictures],
            ("layer", tables, boxes),
            ("fit", tables, goal),
            ("error", goal, torch.zeros(n, n, 2)),
        )
        torch.testing.assert_close(tensor(found), tables, **EXACT)
        x = torch.randn(n, dtype=torch.float64)
        output, weights = attending(tables, boxes)(
            with_positions(x), return_weights=True
        )
        torch.testing.assert_close(weights[0], tables, **EXACT)
        mapped = torch.einsum("ijc,j->ic", tensor(made), x)
        torch.testing.assert_close(output[0], mapped, **EXACT)
        best = torch.linalg.pinv(tables.flatten(1).T) @ goal.flatten(0, 1)
        torch.testing.assert_close(tensor(fitted), best, **EXACT)
        assert error == pytest.approx(goal.square().sum().item() / n, rel=1e-12)


def test_two_heads_that_agree_share_the_work(evaluate: Any) -> None:
    table, goal = shared([[[0], [1, 2], [0]]]), torch.randn(3, 3, 2)
    boxes, alone = evaluate(
        "heads", ("fit", table.expand(2, 3, 3), goal), ("fit", table, goal)
    )
    torch.testing.assert_close(tensor(boxes), tensor(alone * 2) / 2, **EXACT)


def test_tasks_are_those_of_the_package(evaluate: Any) -> None:
    x, angle = torch.randn(N, dtype=torch.float64), 70.0
    *maps, taps = evaluate(
        "heads",
        *[("target", name, angle) for name in ("identity", "permutation")],
        ("target", "convolution", angle),
        ("taps", angle),
    )
    copied, mirrored, convolved = (
        torch.einsum("ijc,j->ic", tensor(task), x) for task in maps
    )
    for found, order in [(copied, range(N)), (mirrored, reversed(range(N)))]:
        layer = permutation_attention([*order], dim=1).double()
        torch.testing.assert_close(found[:, :1], layer(x[None, :, None])[0])
        assert not found[:, 1].any()
    # One channel in, two out, and no tap in the middle.
    first, second = tensor(taps)
    kernel = torch.stack([first, torch.zeros_like(first), second], -1)[:, None]
    padded = F.pad(x[None, None], (1, 1), mode="replicate")
    torch.testing.assert_close(convolved, F.conv1d(padded, kernel)[0].T)
    layer = convolution_attention(kernel, length=N).double()
    torch.testing.assert_close(convolved[1:-1], layer(x[None, :, None])[0, 1:-1])


def test_the_bound_is_the_chapters(evaluate: Any) -> None:
    torch.manual_seed(2)
    pairs = [torch.randn(2, width, dtype=torch.float64) for width in (1, 2, 3, 7) * 5]
    pairs += [torch.zeros(2, 3).double(), 1e6 * torch.eye(2, 3).double()]
    found = evaluate("heads", *[("floor", *pair) for pair in pairs])
    for (first, second), floor in zip(pairs, found, strict=True):
        singular = torch.linalg.svdvals(torch.stack([first, second]))
        wanted = singular[1:].square().sum().item()
        if first @ second < 0:
            wanted = min(first @ first, second @ second).item()
        assert floor == pytest.approx(wanted, rel=1e-10, abs=1e-10)


def test_no_single_head_passes_the_bound_and_some_reach_it(evaluate: Any) -> None:
    torch.manual_seed(3)
    both, left, *found = evaluate(
        "heads",
        ("picture", "both"),
        ("picture", "left"),
        *[("target", "convolution", angle) for angle in ANGLES],
        *[("taps", angle) for angle in ANGLES],
    )
    goals, taps = tensor(found[: len(ANGLES)]), found[len(ANGLES) :]
    floors = evaluate("heads", *[("floor", *pair) for pair in taps])
    # Any weights by position: over all tokens, or over the two neighbors.
    anywhere = torch.randn(2000, N, N, dtype=torch.float64).mul(4).softmax(-1)
    share = torch.rand(2000, N, dtype=torch.float64)
    near = torch.zeros_like(anywhere).scatter_(
        2, torch.tensor(both).expand(2000, N, 2), torch.stack([share, 1 - share], -1)
    )
    tables = torch.cat([anywhere, near, shared([both, left])])
    for angle, goal, floor in zip(ANGLES, goals, floors, strict=True):
        cosine = math.cos(math.radians(angle))
        assert floor == pytest.approx(1 - max(0.0, cosine), abs=1e-10)
        size = tables.square().sum((1, 2))
        box = torch.einsum("bij,ijc->bc", tables, goal) / size[:, None]
        made = torch.einsum("bij,bc->bijc", tables, box)
        errors = (made - goal).square().sum((1, 2, 3)) / N
        assert errors.min() >= floor - 1e-10
        # Both neighbors up to a right angle, one of them beyond.
        assert errors[-2 if angle <= 90 else -1] == pytest.approx(floor, abs=1e-10)


def test_the_still_drawing_shows_the_start(evaluate: Any) -> None:
    both, goal = evaluate("heads", ("picture", "both"), ("target", "convolution", 60))
    tables = shared([both])
    ((box,),) = evaluate("heads", ("fit", tables, goal))
    text = re.sub(r"<[^>]*>", "", DRAWING.read_text("utf-8"))
    assert f"B = ({box[0]:.2f}, {box[1]:.2f})" in text
    error = error_of(tables, 60)
    assert f"\n  error {error:.2f}\n" in text
    assert f"The error is {error:.2f}." in text
    assert f"through {error:.2f} at 60 degrees" in text


def opened(page: Page, address: str) -> Locator:
    page.goto(f"{address}chapters/self_attention/")
    figure = page.locator("figure[data-explorable=heads]")
    figure.scroll_into_view_if_needed()
    expect(figure).to_have_class(re.compile(r"\blive\b"))
    return figure.locator(".stage")


def error_of(tables: Tensor, angle: float) -> float:
    """Compute the error of the package's layer with these weights, at its best."""
    turn = math.radians(angle)
    goal = torch.zeros(N, N, 2, dtype=torch.float64)
    for i in range(N):
        goal[i, max(i - 1, 0)] += tensor([1.0, 0.0])
        goal[i, min(i + 1, N - 1)] += tensor([math.cos(turn), math.sin(turn)])
    boxes = torch.linalg.pinv(tables.flatten(1).T) @ goal.flatten(0, 1)
    layer = attending(tables, boxes)
    # One token at a time is 1: the columns of the map.
    columns = [layer(with_positions(x))[0] for x in torch.eye(N, dtype=torch.float64)]
    return ((torch.stack(columns, 1) - goal).square().sum() / N).item()


def shown_tables(stage: Locator) -> Tensor:
    boards = stage.locator(".board:visible").evaluate_all(
        "boards => boards.map(b => [...b.querySelectorAll('button')]"
        ".map(c => c.ariaPressed === 'true' ? 1 : 0))"
    )
    chosen = tensor(boards).reshape(-1, N, N)
    return chosen / chosen.sum(-1, keepdim=True)


def test_boards_and_angle_by_keyboard_and_mouse(page: Page, address: str) -> None:
    stage = opened(page, address)
    told = stage.locator(".told")

    def check(angle: float, words: str) -> None:
        expect(told).to_contain_text(words)
        error = error_of(shown_tables(stage), angle)
        shown = float(stage.get_attribute("data-error") or "nan")
        assert shown == pytest.approx(error, abs=1e-10)

    check(60, "No single head does better")
    # The slider, by its arrow keys; at 0° one head is enough.
    stage.get_by_label("Angle between W₁ and W₂").focus()
    page.keyboard.press("ArrowRight")
    check(65, "Error 0.58")
    page.keyboard.press("Home")
    check(0, "Reached")
    page.keyboard.press("End")
    check(180, "best single head has an error of 1.00")
    # Two heads, one cell of which is wrong, then mended with the mouse.
    stage.get_by_label("second head").check()
    stage.get_by_label("Head 1 attends to").select_option("left")
    stage.get_by_label("Head 2 attends to").select_option("right")
    check(180, "Reached")
    board = stage.get_by_role("group", name="where head 2 attends")
    board.get_by_role("button", name="query 3, key 1").click()
    expect(stage.get_by_label("Head 2 attends to")).to_have_value("own")
    check(180, "Two heads are enough for this task")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    check(180, "Reached")
    cell = board.get_by_role("button", name="query 3, key 4, weight 1", exact=True)
    expect(cell).to_have_attribute("aria-pressed", "true")
    # Other tasks, and back to the start.
    stage.get_by_label("Task").select_option("permutation")
    expect(told).to_contain_text("Error")
    stage.get_by_label("Head 1 attends to").select_option("reverse")
    expect(told).to_contain_text("Reached")
    stage.get_by_role("button", name="Reset").click()
    check(60, "No single head does better")


def test_leaving_the_page_ends_what_listens(page: Page, address: str) -> None:
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    stage = opened(page, address)
    before = stage.get_attribute("data-error")
    page.evaluate("dispatchEvent(new PageTransitionEvent('pagehide'))")
    stage.locator(".board button").nth(12).click()
    page.wait_for_timeout(100)
    assert stage.get_attribute("data-error") == before
    assert not errors
