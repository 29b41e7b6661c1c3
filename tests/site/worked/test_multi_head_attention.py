"""The numbers of chapter 3, on its page and in its diagrams, computed again."""

import json
import math
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/chapters/multi_head_attention.md").read_text("utf-8")
DIAGRAMS = ROOT / "docs/diagrams/multi_head_attention"
RECORD = ROOT / "docs/figures/multi_head_attention/run.json"
SVG = "{http://www.w3.org/2000/svg}"
F64 = torch.float64
HEADLINES = {
    "dog bites man": [("dog", 1, 10), ("bites", 2, 0), ("man", 3, 4)],
    "man bites dog": [("man", 1, 4), ("bites", 2, 0), ("dog", 3, 10)],
}


def on_page(*texts: str) -> None:
    flat = " ".join(PAGE.split())
    for text in texts:
        assert " ".join(text.split()) in flat, f"not on the page: {text}"


def head(
    headline: str, sign: int
) -> tuple[list[list[float]], list[list[float]], list[float]]:
    """Scores, weights and outputs of one head, for every word as the query."""
    words = HEADLINES[headline]
    scores = [[2.0 * p * sign * k for _, k, _ in words] for _, p, _ in words]
    weights = []
    for row in scores:
        powers = [math.exp(score - max(row)) for score in row]
        weights.append([power / sum(powers) for power in powers])
    outputs = [
        math.fsum(a * number for a, (_, _, number) in zip(row, words, strict=True))
        for row in weights
    ]
    return scores, weights, outputs


def drawing(name: str) -> ET.Element:
    return ET.parse(DIAGRAMS / f"{name}.svg").getroot()


def numbers(root: ET.Element) -> list[str]:
    texts = ("".join(text.itertext()) for text in root.iter(f"{SVG}text"))
    return [text for text in texts if re.fullmatch(r"[\d.]+", text)]


def test_the_example_by_hand() -> None:
    for words in HEADLINES["dog bites man"]:
        word, position, number = words
        token = f"$({position}, {number})$"
        on_page(f"| *{word}* | {position} | {number} | {token} |")
    assert 0.75 * 10 + 0.25 * 4 == 0.75 * 9 + 0.25 * 7 == 8.5
    assert 0.75 * 4 + 0.25 * 10 == 5.5
    scores, weights, biter = head("dog bites man", -1)
    assert scores[1] == [-4, -8, -12]
    on_page("the scores are $-4$, $-8$ and $-12$")
    on_page(f"/\\,{1 + math.exp(-4) + math.exp(-8):.4f}")
    on_page(r"({:.3f},\; {:.3f},\; {:.3f})".format(*weights[1]))
    scores, reverse, bitten = head("dog bites man", 1)
    assert scores[1] == [4, 8, 12]
    assert reverse[1] == pytest.approx(weights[1][::-1])
    on_page(f"average is {biter[1]:.2f}: almost", f"average is {bitten[1]:.2f}: almost")
    on_page(f"$({biter[1]:.2f},\\; {bitten[1]:.2f})$")
    swapped = [head("man bites dog", sign)[2][1] for sign in (-1, 1)]
    on_page("$({:.2f},\\; {:.2f})$".format(*swapped))
    # The exercise: the query "dog", and a matrix that adds and subtracts.
    on_page("$({:.3f}, {:.3f}, {:.3f})$".format(*weights[0]))
    on_page(f"the output {biter[0]:.2f}; head 2", f"and the output {bitten[0]:.2f}.")
    added, subtracted = biter[1] + bitten[1], biter[1] - bitten[1]
    on_page(f"$({added:.2f},\\; {subtracted:.2f})$")
    averaged = [(a + b) / 2 for a, b in zip(weights[1], reverse[1], strict=True)]
    on_page("$({:.2f}, {:.2f}, {:.2f})$".format(*averaged))


@pytest.mark.parametrize("two", [False, True])
def test_the_headlines_are_drawn_to_scale(two: bool) -> None:
    root = drawing("headline-two" if two else "headline-one")
    strokes = [
        float(path.attrib["stroke-width"])
        for path in root.iter(f"{SVG}path")
        if "stroke-width" in path.attrib
    ]
    shown = " ".join("".join(text.itertext()) for text in root.iter(f"{SVG}text"))
    for place, (headline, words) in enumerate(HEADLINES.items()):
        (_, first, biter), (_, second, bitten) = (head(headline, s) for s in (-1, 1))
        arcs = (first[1][0], second[1][2]) if two else (0.5, 0.5)
        found = strokes[2 * place : 2 * place + 2]
        assert found == pytest.approx([10 * arc for arc in arcs], abs=0.006)
        left, right = words[0][2], words[2][2]
        if two:
            assert f"head 1: {arcs[0]:.2f} head 2: {arcs[1]:.2f}" in shown
            assert f"biter {biter[1]:.2f}, bitten {bitten[1]:.2f}" in shown
        else:
            mean = 0.5 * left + 0.5 * right
            assert f"0.50 · {left} + 0.50 · {right} = {mean:g}" in shown


@pytest.mark.parametrize("r", [1, 2])
def test_where_times_what_is_drawn_with_its_numbers(r: int) -> None:
    _, weights, outputs = head("dog bites man", -1 if r == 1 else 1)

    def in_column(column: list[str]) -> list[str]:
        return [cell for x in column for cell in ((x, "0") if r == 1 else ("0", x))]

    offered = in_column([str(number) for _, _, number in HEADLINES["dog bites man"]])
    table = [f"{a:.2f}" for row in weights for a in row]
    result = in_column([f"{x:.2f}" for x in outputs])
    assert numbers(drawing(f"where-what-{r}")) == offered + table + result
    shades = [
        float(cell.attrib["fill-opacity"])
        for cell in drawing(f"where-what-{r}").iter(f"{SVG}rect")
        if "query" in cell.attrib["style"] and "fill-opacity" in cell.attrib
    ]
    wanted = [0.45 * a for row in weights for a in row]
    assert shades == pytest.approx(wanted, abs=6e-4)


def test_heads_read_all_channels_and_groups_their_own_in_the_wiring() -> None:
    for kind, wires in (("heads", 36), ("groups", 12)):
        paths = [path.attrib["d"] for path in drawing(f"wiring-{kind}").iter()
                 if "d" in path.attrib]  # fmt: skip
        drawn = [re.findall(r"M(\d+) 214L(\d+) 128", path) for path in paths]
        ends = {(int(a), int(b)) for found in drawn for a, b in found}
        assert len(ends) == wires
        share = {x: (x - 40) // 112 for x, _ in ends}
        across = [pair for pair in ends if share[pair[0]] != share[pair[1]]]
        assert bool(across) == (kind == "heads")


def count(layer: nn.Module, *, biases: bool) -> int:
    return sum(
        parameter.numel()
        for name, parameter in layer.named_parameters()
        if ("bias" in name) == biases
    )


@pytest.mark.parametrize(
    ("name", "d", "h"),
    [
        ("our example", 2, 2),
        ("Transformer, base", 512, 8),
        ("BERT-base, ViT-B", 768, 12),
        ("Transformer, big", 1024, 16),
    ],
)
def test_the_table_of_parameters(name: str, d: int, h: int) -> None:
    theirs = nn.MultiheadAttention(d, h, device="meta")
    weights, biases = (count(theirs, biases=found) for found in (False, True))
    on_page(f"| {name} | {d:,} | {h} | {weights:,} | {biases:,} |")


def test_counts_of_parameters_and_of_multiplications() -> None:
    theirs = nn.MultiheadAttention(300, 6, device="meta")
    total = sum(count(theirs, biases=found) for found in (False, True))
    wide = 300 * 6 * 64
    for number in (total, wide, 4 * wide):
        on_page(f"{number:,}$".replace(",", "{,}"))
    convolutions = [
        nn.Conv1d(12, 12, 4, groups=g, bias=False) for g in (1, 2, 3, 6, 12)
    ]
    counts = " | ".join(str(count(layer, biases=False)) for layer in convolutions)
    on_page(f"| convolution, 12 channels, $k = 4$ | {counts} |")
    on_page(f"| attention, $d = 12$ | {' | '.join(['576'] * 5)} |")
    exercise = nn.Conv1d(64, 64, 3, groups=4, bias=False)
    on_page(f"$3\\cdot 64\\cdot 64/4 = {count(exercise, biases=False)}$")
    d, n = 512, 100
    projected, mixed = 4 * n * d**2, 2 * n**2 * d
    on_page(f"they take {projected / (projected + mixed):.0%} of it")
    assert 4 * (2 * d) * d**2 == 2 * (2 * d) ** 2 * d  # equal at n = 2d
    on_page("$8\\cdot 1000^2 = 8$ million weights, or 32 MB")
    assert 8 * 1000**2 * 4 == 32e6


def test_the_size_of_a_cache() -> None:
    on_page(f"$2\\cdot 512\\cdot 6 = {2 * 512 * 6}$ numbers")
    on_page(f"1,000 tokens in float32 take {2 * 512 * 6 * 1000 * 4 / 1e6:.1f} MB")
    n = 1000
    assert 2 * n * (n + 1) / (4 * n) == pytest.approx(500, rel=0.002)
    on_page(f"$2\\cdot 768\\cdot 200 = {2 * 768 * 200:,}$".replace(",", "{,}"))


def by_hand(x: Tensor, weights: dict[str, Tensor], **biases: Tensor) -> Tensor:
    """Two heads in plain matrix products, with tokens in rows."""
    parts = {
        name: x @ weights[name] + biases.get(name, torch.zeros((), dtype=F64))
        for name in ("query", "key", "value")
    }
    heads = []
    for q, k, v in zip(*(part.chunk(2, dim=1) for part in parts.values()), strict=True):
        scores = q @ k.T / math.sqrt(q.shape[1])
        heads.append(torch.softmax(scores, dim=1) @ v)
    return torch.cat(heads, dim=1) @ weights["output"]


def test_what_the_exercises_claim_of_biases_and_of_redundant_weights() -> None:
    torch.manual_seed(0)
    x, bias = torch.randn(5, 6, dtype=F64), torch.randn(6, dtype=F64)
    names = ("query", "key", "value", "output")
    weights = {name: torch.randn(6, 6, dtype=F64) for name in names}
    plain = by_hand(x, weights)
    # A bias on the keys changes nothing, one on the values adds a constant row.
    torch.testing.assert_close(by_hand(x, weights, key=bias), plain)
    constant = by_hand(x, weights, value=bias) - plain
    torch.testing.assert_close(constant, (bias @ weights["output"]).expand(5, 6))
    assert (by_hand(x, weights, query=bias) - plain).abs().max() > 0.01
    # An invertible matrix between queries and keys cancels, in every head.
    M = torch.block_diag(*torch.randn(2, 3, 3, dtype=F64))
    turned = {
        "query": weights["query"] @ M,
        "key": weights["key"] @ torch.linalg.inv(M).T,
    }
    torch.testing.assert_close(by_hand(x, weights | turned), plain)
    # Swapping the strips of the heads in all four matrices changes nothing.
    swapped = {name: weights[name].roll(3, 1) for name in names[:3]}
    swapped["output"] = weights["output"].roll(3, 0)
    torch.testing.assert_close(by_hand(x, swapped), plain)


def least_error(W1: list[float], W2: list[float]) -> float:
    """Search all directions (a, b) for the least error of one head."""
    angles = torch.linspace(0, math.pi / 2, 9001, dtype=F64)
    first, second = torch.tensor([W1, W2], dtype=F64)
    best = torch.outer(angles.cos(), first) + torch.outer(angles.sin(), second)
    total = first.square().sum() + second.square().sum()
    return (total - best.square().sum(1).max()).item()


def test_the_least_errors_of_one_head() -> None:
    assert least_error([1, 0], [0, 1]) == pytest.approx(1, abs=1e-9)
    on_page("so $E = 1$")
    assert least_error([1, 0], [1, 0]) == pytest.approx(0, abs=1e-6)
    assert least_error([2, 0], [-1, 0]) == pytest.approx(1)
    on_page("$E = 0$", "$E = \\min(4, 1) = 1$")


def test_what_the_caption_says_of_the_run() -> None:
    record = json.loads(RECORD.read_text("utf-8"))
    assert record["config"]["dim"] == 4
    floor = record["metrics"]["one_head_floor"]
    # A number for one run; mean, least and greatest for several.
    losses = {
        name: loss if isinstance(loss, dict) else {"min": loss, "max": loss}
        for name, loss in record["metrics"]["last_loss"].items()
    }
    assert losses["one_head"]["min"] == pytest.approx(floor, rel=0.005)
    assert losses["one_head"]["max"] == pytest.approx(floor, rel=0.005)
    on_page("ends about one percent below it")
    assert losses["one_head_content"]["min"] / floor > 0.985
    assert losses["one_head_content"]["max"] / floor < 0.995
    assert losses["two_heads"]["max"] < 0.001


def test_the_function_of_the_page_has_ten_lines() -> None:
    blocks = re.findall(r"```python\n(.*?)\n\n```", PAGE, re.S)
    (block,) = [block for block in blocks if "def multi_head(" in block]
    assert len(block.splitlines()) == 10
