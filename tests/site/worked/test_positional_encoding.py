"""Every number of chapter 2 and of its diagrams, computed again."""

import json
import math
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import torch
from torch import Tensor

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/chapters/positional_encoding.md").read_text("utf-8")
TEXT = re.sub(r"\s*\n[\s>]*", " ", PAGE)
SVG = "{http://www.w3.org/2000/svg}"
F64 = torch.float64
TOKENS = {"dog": (1, 0), "bites": (0, 1), "man": (1, 1)}
HEADLINES = {"dog": ("dog", "bites", "man"), "man": ("man", "bites", "dog")}


def on_page(*quotes: str) -> None:
    for quote in quotes:
        assert quote in TEXT, quote


def drawing(name: str) -> ET.Element:
    path = ROOT / f"docs/diagrams/positional_encoding/{name}.svg"
    return ET.parse(path).getroot()


def texts(name: str) -> list[str]:
    return ["".join(text.itertext()) for text in drawing(name).iter(f"{SVG}text")]


def numbers(name: str) -> list[float]:
    """Give what stands in the cells of a drawing, shapes and labels left out."""
    found = [text.replace("−", "-") for text in texts(name)]
    return [float(text) for text in found if re.fullmatch(r"-?[\d.]+", text)]


def points(name: str, css: str) -> list[list[tuple[float, float]]]:
    """Give the corners of the paths of a class."""
    paths = list(drawing(name).iter(f"{SVG}path"))
    return [
        [(float(x), float(y)) for x, y in re.findall(r"([-\d.]+) ([-\d.]+)", path)]
        for path in (path.get("d", "") for path in paths if path.get("class") == css)
    ]


def attend(words: tuple[str, ...]) -> tuple[list[list[float]], list[list[float]]]:
    weights, outputs = [], []
    for query in words:
        exponentials = [
            math.exp(
                sum(a * b for a, b in zip(TOKENS[query], TOKENS[key], strict=True))
            )
            for key in words
        ]
        row = [value / sum(exponentials) for value in exponentials]
        weights.append(row)
        outputs.append(
            [
                sum(w * TOKENS[key][c] for w, key in zip(row, words, strict=True))
                for c in (0, 1)
            ]
        )
    return weights, outputs


def sinusoids(length: int, dim: int, start: int = 0) -> Tensor:
    """Give the encodings by the formula, without the package."""
    omega = torch.tensor([10_000 ** (-2 * i / dim) for i in range(dim // 2)], dtype=F64)
    angles = torch.outer(torch.arange(start, start + length, dtype=F64), omega)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)


def shift(offset: int, dim: int) -> Tensor:
    """Give the matrix of a shift, block by block."""
    matrix = torch.zeros(dim, dim, dtype=F64)
    for i in range(dim // 2):
        angle = offset * 10_000 ** (-2 * i / dim)
        sin, cos = math.sin(angle), math.cos(angle)
        matrix[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = torch.tensor(
            [[cos, sin], [-sin, cos]]
        )
    return matrix


def toy(position: float) -> list[float]:
    fast, slow = math.radians(90 * position), math.radians(30 * position)
    return [math.sin(fast), math.cos(fast), math.sin(slow), math.cos(slow)]


# The two headlines


def test_the_worked_example():
    weights, outputs = attend(HEADLINES["dog"])
    row, total = weights[1], 1 + 2 * math.e
    assert [round(math.e, 3), round(total, 3)] == [2.718, 6.437]
    on_page("$1$, $2.718$ and $2.718$, and their sum is $6.437$")
    a, b, c = (f"{w:.3f}" for w in row)
    on_page(f"${a}$, ${b}$ and ${c}$, and the output is")
    on_page(rf"{a}\,(1, 0) + {b}\,(0, 1)", rf"{c}\,(1, 1) \approx")
    on_page(rf"({outputs[1][0]:.2f},\; {outputs[1][1]:.2f})")
    # The exercise asks for the query dog.
    a, b, c = (f"${w:.3f}$" for w in weights[0])
    on_page(f"the weights {a}, {b} and {c}")
    on_page(f"the output is $({outputs[0][0]:.2f}, {outputs[0][1]:.2f})$")


@pytest.mark.parametrize("first", HEADLINES)
def test_the_diagrams_of_the_headlines(first):
    words = HEADLINES[first]
    weights, outputs = attend(words)
    found = texts(f"order-{first}")
    assert found[:3] == [f"({a:.2f}, {b:.2f})" for a, b in outputs]
    assert found[3:6] == [f"{w:.2f}" for w in weights[1]]
    assert found[6:] == [*words, *(f"{TOKENS[word]}" for word in words)]
    lines = drawing(f"order-{first}").iter(f"{SVG}path")
    thickness = [float(line.get("stroke-width", 0)) / 12 for line in lines]
    assert thickness == pytest.approx(weights[1], abs=0.001)
    name = "rows" if first == "dog" else "rows-permuted"
    rows = zip(words, weights, outputs, strict=True)
    stated = [value for word, a, h in rows for value in (*TOKENS[word], *a, *h)]
    assert numbers(name) == pytest.approx(stated, abs=0.005)
    cells = [
        float(cell.get("fill-opacity", 0))
        for cell in drawing(name).iter(f"{SVG}rect")
        if cell.get("fill-opacity")
    ]
    shades = [w for row in weights for w in row]
    assert cells[:9] == pytest.approx(shades, abs=0.005)


def test_the_masks_and_distances_in_the_diagrams():
    bands = [
        (
            round((float(r.get("x", 0)) - left) / 24),
            round(float(r.get("width", 0)) / 24),
        )
        for r, left in zip(
            drawing("order-masks").iter(f"{SVG}rect"), [34] * 5 + [206] * 5, strict=True
        )
    ]
    causal = [(0, t + 1) for t in range(5)]
    banded = [(max(0, t - 1), min(4, t + 1) - max(0, t - 1) + 1) for t in range(5)]
    assert bands == causal + banded
    clipped = [f"b{max(-2, min(2, s - t))}" for t in range(5) for s in range(5)]
    found = [text.replace("−", "-") for text in texts("relative-bias")]
    assert [text for text in found if text.startswith("b")] == clipped
    steps = ["0", "-λ", "-2λ", "-3λ", "-4λ"]
    found = [text.replace("−", "-") for text in texts("relative-alibi")]
    assert found[:15] == [steps[t - s] for t in range(5) for s in range(t + 1)]


# Clock hands


def hands(name: str) -> list[tuple[float, float]]:
    """Give sine and cosine of the hands, from where they are drawn."""
    drawn = points(name, "hand")
    length = {math.dist(*ends) for ends in drawn}
    assert max(length) - min(length) < 0.02
    return [
        ((x - x0) / max(length), (y0 - y) / max(length)) for (x0, y0), (x, y) in drawn
    ]


def test_the_toy_hands():
    wanted = [toy(t) for t in range(6)]
    tips = [(p[0], p[1]) for p in wanted] + [(p[2], p[3]) for p in wanted]
    for found, tip in zip(hands("clocks-toy"), tips, strict=True):
        assert found == pytest.approx(tip, abs=0.002)
    rows = [[p[c] for p in wanted] for c in range(4)]
    stated = [*range(6), *(value for row in rows for value in row)]
    assert numbers("clocks-toy") == pytest.approx(stated, abs=0.005)
    assert toy(4) == pytest.approx([0, 1, 0.866, -0.5], abs=1e-3)
    assert toy(7) == pytest.approx([-1, 0, -0.5, -0.866], abs=1e-3)
    on_page("$(1, 0, 0.5, 0.87)$", "$(0, 1, 0.87, -0.5)$")
    on_page("$p_7 = (-1, 0, -0.5, -0.87)$")
    repeats = [t for t in range(1, 30) if toy(t) == pytest.approx(toy(0), abs=1e-9)]
    assert repeats == [12, 24]
    products = [
        sum(a * b for a, b in zip(toy(0), toy(r), strict=True)) for r in range(4)
    ]
    assert products == pytest.approx([2, 0.866, -0.5, 0], abs=1e-3)
    on_page("$2$; $0 + 0.87 = 0.87$; $-1 + 0.5 = -0.5$; $0 + 0 = 0$")


def test_the_hands_of_width_eight():
    encodings = sinusoids(6, 8)
    tips = [tuple(p[2 * i : 2 * i + 2].tolist()) for i in range(4) for p in encodings]
    for found, tip in zip(hands("clocks-real"), tips, strict=True):
        assert found == pytest.approx(tip, abs=0.003)
    degrees = [math.degrees(10**-i) for i in range(4)]
    assert degrees == pytest.approx([57, 5.7, 0.57, 0.057], rel=0.01)
    wavelengths = [2 * math.pi * 10**i for i in range(4)]
    assert wavelengths == pytest.approx([6.3, 63, 628, 6283], rel=0.003)
    on_page("about 6.3, 63, 628 and 6283")


def test_the_shift_by_three():
    matrix = [[0, -1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1], [0, 0, -1, 0]]
    found = numbers("shift-matrix")
    assert found[:16] == [entry for row in matrix for entry in row]
    assert found[16:20] == pytest.approx(toy(1), abs=0.005)
    assert found[20:24] == pytest.approx(toy(4), abs=0.005)
    for t in range(20):
        moved = torch.tensor(matrix, dtype=F64) @ torch.tensor(toy(t), dtype=F64)
        assert moved.tolist() == pytest.approx(toy(t + 3), abs=1e-12)
    tips = [toy(t)[pair : pair + 2] for pair in (0, 2) for t in (1, 4, 2, 5)]
    for hand, tip in zip(hands("shift-hands"), tips, strict=True):
        assert hand == pytest.approx(tip, abs=0.002)


def test_a_square_instead_of_a_circle_has_no_matrix():
    g = torch.tensor([[0, 1], [0.5, 0.5], [1, 0], [0.5, -0.5]], dtype=F64)
    matrix = torch.linalg.solve(g[[0, 2]], g[[1, 3]]).T
    assert (matrix @ g[1]).tolist() == pytest.approx([0.5, 0])


# Products and distances


def test_the_curves_of_the_products():
    for i, curve in enumerate(points("waves", "curve")):
        for x, y in curve:
            distance, value = (x - 40) / 256 * 36, 1 - 2 * (y - 24) / 170
            assert value == pytest.approx(math.cos(distance * 10**-i), abs=0.02)
    encodings = sinusoids(101, 64)
    cosine = (encodings @ encodings[0] / 32).tolist()
    (curve,) = points("products", "curve")
    assert [1 - (y - 24) / 170 for _, y in curve] == pytest.approx(cosine, abs=0.001)
    lowest = min(range(101), key=cosine.__getitem__)
    assert [round(cosine[r], 2) for r in (1, 5, lowest, 100)] == [
        0.97,
        0.73,
        0.34,
        0.56,
    ]
    assert lowest == 96
    assert cosine[6] > cosine[5]
    labels = texts("products")
    assert labels[-2:] == ["0.73 at distance 5", "0.34 at 96"]
    on_page("0.97 to the next position and 0.73 at distance 5")
    on_page(
        "its lowest value, 0.34, occurs at distance 96; four positions later it is 0.56"
    )
    assert cosine == pytest.approx(
        (sinusoids(101, 64, -100) @ encodings[0] / 32).flip(0)
    )
    ratio = math.exp((32 - 32 * cosine[1]) / 8)
    on_page(f"gets only {ratio:.2f} times the weight of its neighbor")


def test_numbers_about_positions():
    first_hand = 2 * abs(math.sin(710 / 2))
    assert round(710 / (2 * math.pi)) == 113
    assert 0 < first_hand < 0.0001
    on_page("710 positions are nearly 113 turns", "by less than 0.0001")
    on_page(rf"$2\pi$ to ${10_000 ** (510 / 512):.1f}\cdot 2\pi$")
    on_page(rf"${10_000 ** (2 / 512):.4f}\cdot 2\pi$ to $10000\cdot 2\pi$")
    on_page(rf"$512 \cdot 768 = {512 * 768:,}$".replace(",", "{,}"))
    limit = 2 * math.pi / 99
    on_page(rf"$\omega_i \ge {limit:.4f}$")
    turning = [sum(b ** (-i / 32) >= limit for i in range(32)) for b in (10_000, 100)]
    assert turning == [10, 20]
    on_page("hands 0 to 9, ten of them; with base 100 they are 0 to 19, twenty")


# Adding


def recovered(dim: int, seed: int) -> Tensor:
    """Give how often token, position and position to within one are recovered.

    The last entry is the token again, by the largest product instead of the distance.
    """
    torch.manual_seed(seed)
    positions, words = sinusoids(512, dim).float(), torch.randn(10_000, dim)
    word, at = torch.randint(10_000, (1_000,)), torch.randint(512, (1_000,))
    joined = words[word] + positions[at]
    nearest = (joined @ words.T - words.square().sum(1) / 2).argmax(1)
    near = (joined @ positions.T).argmax(1)
    largest = (joined @ words.T).argmax(1)
    hits = [nearest == word, near == at, (near - at).abs() <= 1, largest == word]
    return torch.stack(hits).float().mean(1)


def test_the_width_of_the_encodings_in_the_copying_task():
    path = ROOT / "docs/figures/positional_encoding/run.json"
    dim = json.loads(path.read_text("utf-8"))["config"]["dim"]
    on_page(f"encodings of width {dim} concatenated to the tokens")


def test_a_wide_sum_keeps_both_summands():
    widths = (4, 8, 16, 32, 64, 128, 256, 512)
    shares = torch.stack(
        [torch.stack([recovered(d, seed) for seed in range(3)]).mean(0) for d in widths]
    )
    for column, curve in enumerate(points("recovered", "curve")):
        drawn = torch.tensor([1 - (y - 24) / 170 for _, y in curve])
        assert torch.allclose(drawn, shares[:, column], atol=0.01)
    token, position, within_one, by_product = shares.T
    assert by_product[2].item() == pytest.approx(0.22, abs=0.01)
    on_page("the largest product finds the right token in 22% of the sums at $d = 16$")
    assert token[[0, 2]].tolist() == pytest.approx([0.006, 0.60], abs=0.004)
    assert (token[4:] == 1).all()
    assert position[-1].item() == pytest.approx(0.94, abs=0.01)
    assert within_one[-1] == 1
    on_page("0.6% are right at $d = 4$, 60% at $d = 16$")
    on_page(
        "At $d = 512$ the guess is exactly right in 94% of the sums, "
        "and off by one in the others"
    )
    described = drawing("recovered").findtext(f"{SVG}desc") or ""
    for d, row in zip(widths, shares.tolist(), strict=True):
        found = re.search(rf"d = {d}: token ([\d.]+)%, position ([\d.]+)%", described)
        assert found is not None
        stated = [float(share) / 100 for share in found.groups()]
        assert stated == pytest.approx(row[:2], abs=0.01)


def test_free_tables_have_a_larger_rank_than_tied_ones():
    torch.manual_seed(0)
    free, table = torch.randn(20, 12, dtype=F64), torch.randn(20, 4, dtype=F64)
    tied = table @ torch.randn(4, 12, dtype=F64)
    ranks = [int(torch.linalg.matrix_rank(tables)) for tables in (free, tied)]
    assert ranks == [12, 4]
    on_page("the free tables have rank 12 and the tied ones rank 4")


def test_room_and_noise():
    squares = torch.linalg.svdvals(sinusoids(128, 512)).square()
    needed = int((squares.cumsum(0) < 0.99 * squares.sum()).sum()) + 1
    assert needed == 39
    on_page("39 orthogonal directions hold 99%", f"The remaining {512 - needed}")
    leads = [d / math.sqrt(1.5 * d) for d in (16, 512)]
    assert [f"{lead:.1f}" for lead in leads] == ["3.3", "18.5"]
    on_page("the lead is 3.3 standard deviations", "at $d = 512$ it is 18.5")
    for d, stated in ((512, 0.035), (128, 0.07)):
        words, positions = torch.randn(512, d, dtype=F64), sinusoids(512, d)
        cosine = torch.cosine_similarity(words, positions).abs().mean().item()
        assert cosine == pytest.approx(stated, rel=0.1)


def found_three_back(dim: int, *, filtered: bool) -> tuple[float, float, float]:
    """Give how often added encodings find the target, nearly find it, or themselves."""
    length, positions, back = 64, sinusoids(64, dim), shift(-3, dim)
    spread = positions.T @ positions / length
    unit = torch.eye(dim, dtype=F64)
    # The best linear estimate of an encoding from its sum with a token of variance 1.
    read = torch.linalg.solve(spread + unit, spread) if filtered else unit
    target = torch.arange(length - 3)
    found = []
    for _ in range(40):
        joined = (torch.randn(length, dim, dtype=F64) + positions) @ read
        found.append((joined @ back.T @ joined.T).argmax(1)[3:] - target)
    miss = torch.stack(found)
    shares = [miss == 0, miss.abs() <= 1, miss == 3]
    exact, near, itself = (share.double().mean().item() for share in shares)
    return exact, near, itself


def test_what_adding_costs():
    exact, _, itself = found_three_back(64, filtered=False)
    assert exact < 0.01
    assert itself == pytest.approx(0.99, abs=0.01)
    on_page("fewer than 1 in 100 queries now find", "99% find themselves")
    exact, near, _ = found_three_back(512, filtered=True)
    assert exact == pytest.approx(0.3, abs=0.05)
    assert near == pytest.approx(0.7, abs=0.05)
    on_page("about 3 in 10 queries hit the target exactly and 7 in 10 to within one")
    # Alone, as when they are concatenated, the encodings find every target.
    alone = sinusoids(64, 64)
    best = (alone @ shift(-3, 64).T @ alone.T).argmax(1)
    assert torch.equal(best[3:], torch.arange(61))
