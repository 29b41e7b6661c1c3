"""The numbers of chapter 4, on its page and in its diagrams, computed again."""

import itertools
import json
import math
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from transformers_hw.positional_encoding import SinusoidalPositions

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/chapters/self_attention.md").read_text("utf-8")
EXAMPLE = (ROOT / "examples/self_attention.py").read_text("utf-8")
DIAGRAMS = ROOT / "docs/diagrams/self_attention"
RECORD = ROOT / "docs/figures/self_attention/run.json"
SVG = "{http://www.w3.org/2000/svg}"
F64 = torch.float64

PIXELS = torch.tensor([2, 2, 2, 8, 8, 8], dtype=F64)
N = len(PIXELS)
THREE = torch.tensor([10, 20, 90], dtype=F64)
T = torch.tensor([[0, 1, 0], [0, 0, 1], [1, 0, 0]], dtype=F64)


def shift(offset: int) -> Tensor:
    """The shift matrix, with the nearest token beyond the border."""
    return torch.eye(N, dtype=F64)[(torch.arange(N) + offset).clamp(0, N - 1)]


EDGE = shift(1) - shift(-1)
SECOND = 2 * shift(0) - shift(1) - shift(-1)
BLUR = (shift(-1) + shift(0) + shift(1)) / 3


def on_page(*texts: str) -> None:
    flat = " ".join(re.sub(r"^> ?", "", PAGE, flags=re.M).split())
    for text in texts:
        assert " ".join(text.split()) in flat, f"not on the page: {text}"


def listed(values: Tensor) -> str:
    return ", ".join(f"{value:g}" for value in values.tolist())


def drawing(name: str) -> ET.Element:
    return ET.parse(DIAGRAMS / f"{name}.svg").getroot()


def shown(root: ET.Element) -> list[str]:
    """The texts of a drawing, in order, with plain minus signs."""
    texts = ("".join(text.itertext()) for text in root.iter(f"{SVG}text"))
    return [text.replace("−", "-").replace("\u200b", "") for text in texts]


def numbers(root: ET.Element) -> list[str]:
    return [text for text in shown(root) if re.fullmatch(r"-?[\d.]+|·", text)]


def filled(root: ET.Element, role: str) -> list[tuple[float, float, float]]:
    """Left, top and opacity of the cells that are filled in one color."""
    return [
        (float(r.attrib["x"]), float(r.attrib["y"]), float(r.attrib["fill-opacity"]))
        for r in root.iter(f"{SVG}rect")
        if f"--{role})" in r.attrib["style"]
    ]


def bars(root: ET.Element, role: str, unit: float) -> list[float]:
    heights = (
        float(r.attrib["height"])
        for r in root.iter(f"{SVG}rect")
        if f"--{role})" in r.attrib["style"]
    )
    return [height / unit for height in heights]


def grid(root: ET.Element, left: float, top: float, cell: float, most: float) -> Tensor:
    """The weights that a grid of six by six shaded cells shows."""
    weights = torch.zeros(N, N, dtype=F64)
    for x, y, opacity in filled(root, "query"):
        row, column = (y - top) / cell, (x - left) / cell
        if 0 <= column < N:
            assert row == int(row)
            assert column == int(column)
            weights[int(row), int(column)] = opacity / most
    return weights


def test_the_opening() -> None:
    edge, blur = EDGE @ PIXELS, BLUR @ PIXELS
    on_page(f"left neighbor is {listed(edge)}.", f"becomes a ramp: {listed(blur)}.")
    on_page("The six pixels are " + listed(PIXELS))
    root = drawing("edge-blur")
    assert bars(root, "key", 6.5) == pytest.approx(PIXELS.tolist())
    assert bars(root, "value", 6.5) == pytest.approx(blur.tolist())
    assert numbers(root) == f"{listed(PIXELS)}, {listed(blur)}".split(", ")
    root = drawing("edge-heads")
    right, left = shift(1) @ PIXELS, shift(-1) @ PIXELS
    assert bars(root, "query", 5) == pytest.approx([*right.tolist(), *left.tolist()])
    assert bars(root, "value", 5) == pytest.approx([e for e in edge.tolist() if e])
    wanted = f"{listed(right)}, {listed(left)}, {listed(edge)}"
    assert numbers(root) == wanted.split(", ")


def test_the_attention_matrices_that_are_drawn() -> None:
    order = [3, 0, 5, 1, 4, 2]
    assert [i + 1 for i in range(N) if order[i] == i] == [5]
    on_page("Row 5 of the permutation is dark on the diagonal")
    wanted = {
        "grids-move": (shift(0), torch.eye(N, dtype=F64)[order]),
        "grids-mix": (shift(1), BLUR),
        "conv-heads": (shift(1), shift(-1)),
    }
    for name, pair in wanted.items():
        for left, weights in zip((30, 208), pair, strict=True):
            found = grid(drawing(name), left, 44, 22, 0.85)
            torch.testing.assert_close(found, weights, rtol=0, atol=1e-3)
    outputs = [text for text in shown(drawing("grids-move")) if text.startswith("x")]
    assert outputs[1].split() == [f"x{i + 1}" for i in order]
    twice = shift(1) @ shift(1)
    assert twice.argmax(dim=1).tolist() == [2, 3, 4, 5, 5, 5]
    on_page("rows 4, 5 and 6 are all dark at column 6")


def by_hand(target: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """Weights and output of the layer for three tokens, from its four matrices."""
    C = torch.cat([THREE[:, None], torch.eye(3, dtype=F64)], dim=1)
    zero = torch.zeros(1, 3, dtype=F64)
    W_q, W_k = torch.cat([zero, target]), torch.cat([zero, torch.eye(3, dtype=F64)])
    W_v = torch.tensor([[1], [0], [0], [0]], dtype=F64)
    weights = torch.softmax(beta * (C @ W_q) @ (C @ W_k).T, dim=1)
    return weights, (weights @ C @ W_v).flatten()


def test_three_tokens_by_hand() -> None:
    weights, output = by_hand(T, 3.0)
    total = math.exp(3) + 2
    on_page(
        f"$e^3 \\approx {math.exp(3):.2f}$, 1 and 1, and their sum is ${total:.2f}$"
    )
    on_page(f"$20.09/22.09 \\approx {weights[0, 1]:.3f}$")
    on_page(f"$1/22.09 \\approx {weights[0, 0]:.3f}$", f"&\\approx {output[0]:.2f}")
    on_page(f"The other outputs are {output[1]:.2f} and {output[2]:.2f}.")
    epsilon = 2 / total
    on_page(
        f"$2/22.09 \\approx {epsilon:.3f}$, and $h_1 = 20 + \\tfrac{{2}}{{22.09}}\\,"
        f"(50 - 20) \\approx {output[0]:.2f}$"
    )
    assert 20 + epsilon * (50 - 20) == pytest.approx(output[0].item())
    _, hard = by_hand(T, 1e3)
    assert hard.tolist() == [20, 90, 10]
    swap = torch.tensor([[0, 1, 0], [1, 0, 0], [0, 0, 1]], dtype=F64)
    on_page(f"\\approx {by_hand(swap, 3.0)[1][2]:.2f}$, as before")
    # In columns the same matrix is the inverse permutation.
    assert (THREE @ T).tolist() == [90, 10, 20]


def test_the_matrices_of_the_example_are_drawn() -> None:
    zero, eye = [0, 0, 0], torch.eye(3).int().tolist()
    target = T.int().tolist()
    value = [[int(x)] for x in THREE]
    wanted = [zero, *target, zero, *eye, [1], [0], [0], [0]]
    wanted += [[*x, *row] for x, row in zip(value, eye, strict=True)]
    wanted += [*target, *eye, *value]
    flat = [str(x) for row in wanted for x in row]
    assert numbers(drawing("build-project")) == flat
    weights, output = by_hand(T, 3.0)
    scores = [f"{3 * x:g}" for x in T.flatten().tolist()]
    attended = [f"{x:.3f}" for x in weights.flatten().tolist()]
    results = [f"{x:.2f}" for x in output.tolist()]
    wanted = [*scores, "10", "20", "90", *attended, *results, *"123123"]
    assert numbers(drawing("build-attend")) == wanted


def test_without_positions_the_edge_is_out_of_reach() -> None:
    wanted = [*listed(PIXELS).split(", "), *listed(EDGE @ PIXELS).split(", ")]
    assert numbers(drawing("equal")) == wanted
    assert PIXELS.mean() == 5
    assert PIXELS.max() == 8
    on_page("itself with $2\\cdot 2 = 4$ and the other with $2\\cdot 8 = 16$")


@pytest.mark.parametrize("epsilon", [0.1, 0.01, 0.001])
def test_the_table_of_sharpness(epsilon: float) -> None:
    row = [math.log((n - 1) * (1 - epsilon) / epsilon) for n in (6, 64, 512, 4096)]
    for n, c in zip((6, 64, 512, 4096), row, strict=True):
        assert (n - 1) / (math.exp(c) + n - 1) == pytest.approx(epsilon)
    on_page(f"| $\\varepsilon = {epsilon}$ | " + " | ".join(f"{c:.2f}" for c in row))


def test_other_numbers_about_sharpness() -> None:
    on_page(f"\\ln(999\\cdot 0.99/0.01) \\approx {math.log(999 * 0.99 / 0.01):.2f}$")
    kappa = 6 / (math.exp(3) + 5)
    on_page(f"$\\kappa = 6/(20.09 + 5) \\approx {kappa:.3f}$")
    on_page(f"$1/(1 - \\kappa) \\approx {1 / (1 - kappa):.3f}$")
    record = json.loads(RECORD.read_text("utf-8"))
    on_page(f"here {math.log(record['config']['length']):.1f}, errors fall like")
    # What the caption says of the run, and its record does not.
    on_page("random tokens of width 4 and a kernel of 5 taps")
    assert "n, dim = config.length, 4" in EXAMPLE
    assert "kernel = torch.randn(3, dim, 5" in EXAMPLE


@pytest.mark.parametrize("n", [64, 5000])
def test_the_weight_of_a_target_that_sinusoids_find(n: int) -> None:
    p = SinusoidalPositions(64).embeddings(n).double()
    middle = n // 2
    weights = torch.softmax(5 * p @ p[middle], dim=0)
    on_page(f"the target gets {weights[middle]:.1%} of the weight")
    beside = weights[[middle - 1, middle + 1]].sum()
    assert beside > 0.99 * (1 - weights[middle])


def test_convolutions_are_drawn_with_their_numbers() -> None:
    for name, matrix in (("conv-sum", EDGE), ("soft-sum", SECOND)):
        cells = [f"{x:g}" if x else "·" for x in matrix.flatten().tolist()]
        wanted = [*cells, "·", *listed(PIXELS).split(", ")]
        output = (matrix @ PIXELS).tolist()
        assert numbers(drawing(name)) == wanted + [f"{x:g}" for x in output]
    assert (SECOND @ PIXELS).tolist() == [0, 0, -6, 6, 0, 0]


def test_two_soft_heads_make_the_kernel_exactly() -> None:
    first, second = 2 + SECOND, torch.full((N, N), 2.0, dtype=F64)
    for head in (first, second):
        assert (head > 0).all()
        assert (head.sum(dim=1) == 12).all()
    # A softmax of logarithms returns the weights.
    A = torch.softmax((first / 12).log(), dim=1)
    torch.testing.assert_close(12 * A - 12 * second / 12, SECOND)
    cells = [f"{x:g}" for head in (first, second) for x in head.flatten().tolist()]
    root = drawing("soft-heads")
    assert numbers(root) == cells
    assert [text for text in shown(root) if "×" in text] == ["× (+12)", "× (-12)"]
    # With six in place of twelve, the cells of neighbors would be zero.
    assert (1 / N + SECOND / 6).min().item() == pytest.approx(0)


def test_the_edge_shrinks_with_softness() -> None:
    root, found = drawing("soft-edge"), []
    for c in (1, 3, 6):
        kappa = N / (math.exp(c) + N - 1)
        soft = (1 - kappa) * torch.eye(N, dtype=F64) + kappa / N
        output = EDGE @ soft @ PIXELS
        height = 6 * (1 - kappa)
        wanted = torch.tensor([0, 0, height, height, 0, 0], dtype=F64)
        torch.testing.assert_close(output, wanted)
        found += [height, height]
        row = [f"{x:.2f}".rstrip("0").rstrip(".") for x in wanted.tolist()]
        assert " ".join(row) in " ".join(numbers(root))
    assert bars(root, "value", 5) == pytest.approx(found, abs=1e-3)


def test_ranks_of_taps() -> None:
    def rank(*taps: list[list[float]]) -> int:
        rows = torch.tensor(taps, dtype=F64).flatten(1)
        return int(torch.linalg.matrix_rank(rows))

    assert rank([[-1]], [[0]], [[1]]) == 1
    on_page("| edge $(-1, 0, 1)$, one channel | 3 | 1 |")
    assert rank([[1, 0]], [[0, 1]]) == 2
    on_page("| left neighbor to one channel, right neighbor to another | 2 | 2 |")
    torch.manual_seed(0)
    assert rank(*torch.randn(3, 4, 4).tolist()) == 3
    on_page("| 3 random taps, 4 channels in and out | 3 | 3 |")
    # The exercise: a depthwise convolution.
    diagonal = [[[a, 0], [0, b]] for a, b in ((1, -1), (2, 0), (1, 1))]
    assert rank(*diagonal) == 2
    on_page("$(2, 0)$ and $(1, 1)$ they have rank 2.")


def test_what_the_construction_costs() -> None:
    n, d, k = 512, 64, 3
    convolution, scores, averages = n * k * d**2, k * n**3, k * n**2 * d
    on_page(f"$nkd^2 \\approx {convolution / 1e6:.1f}$ million")
    on_page(f"$kn^3 \\approx {scores / 1e6:.0f}$ million")
    on_page(f"$kn^2 d \\approx {averages / 1e6:.0f}$ million")
    on_page(f"That is {(scores + averages) / convolution:.0f} times the work")


def test_the_answers_of_the_exercises() -> None:
    wide = shift(2) - shift(-2)
    on_page(f"The output is {listed(wide @ PIXELS)}.")
    for offset in (2, -2):
        on_page(listed(shift(offset).argmax(dim=1) + 1) + " with $B =")
    # Twice the token minus its left neighbor, for four tokens.
    x = torch.tensor([1, 4, 9, 16], dtype=F64)
    padded = torch.cat([x[:1], x])
    kernel = torch.tensor([[[-1, 2]]], dtype=F64)
    wanted = nn.functional.conv1d(padded[None, None], kernel).flatten()
    torch.testing.assert_close(2 * x - x[[0, 0, 1, 2]], wanted)


def test_equivariance_invariance_and_the_theorem() -> None:
    torch.manual_seed(0)
    X = torch.randn(3, 2, dtype=F64)
    M, B = torch.randn(2, 3, 2, 2, dtype=F64)

    def layer(X: Tensor) -> Tensor:
        A = torch.softmax(X @ M @ X.T, dim=-1)
        return (A @ X @ B).sum(dim=0)

    for order in itertools.permutations(range(3)):
        P = torch.eye(3, dtype=F64)[list(order)]
        torch.testing.assert_close(layer(P @ X), P @ layer(X))
        torch.testing.assert_close(layer(P @ X).mean(dim=0), layer(X).mean(dim=0))
