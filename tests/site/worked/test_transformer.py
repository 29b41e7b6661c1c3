"""The numbers of chapter 6, on its page and in its diagrams, computed again."""

import json
import math
import re
import statistics
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from transformers_hw.transformer import LanguageModel, transformer_learning_rate

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/chapters/transformer.md").read_text("utf-8")
DIAGRAMS = ROOT / "docs/diagrams/transformer"
FIGURES = ROOT / "docs/figures/transformer"
SVG = "{http://www.w3.org/2000/svg}"
F64 = torch.float64
# By prompt: the tokens of the example as prompt, upper, task, flip.
FORMS = {
    "upper": [[1, 1, 0, 0], [0, 0, 0, 0], [0, 1, 0, 0]],
    "lower": [[1, 0, 0, 0], [0, 0, 0, 0], [0, 1, 0, 0]],
}


def on_page(*texts: str) -> None:
    flat = " ".join(PAGE.replace("\n> ", "\n").split())
    for text in texts:
        assert " ".join(text.split()) in flat, f"not on the page: {text}"


def comma(number: int) -> str:
    """Write a number as TeX does, with commas that are no punctuation."""
    return f"{number:,}".replace(",", "{,}")


def texts(name: str) -> list[str]:
    root = ET.parse(DIAGRAMS / f"{name}.svg").getroot()
    return ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


# --- one layer by hand -------------------------------------------------------------


def filled(prompt: str, factor: float = 20.0) -> list[Any]:
    """The form after embedding, after attention and after the network."""
    rows = FORMS[prompt]
    powers = [math.exp(factor * row[0]) for row in rows]
    found = sum(p * row[1] for p, row in zip(powers, rows, strict=True)) / sum(powers)
    gathered = [[p, u, t + found, f] for p, u, t, f in rows]
    thought = [
        [p, u, t, f + max(0.0, u - t) + max(0.0, t - u)] for p, u, t, f in gathered
    ]
    return [rows, gathered, thought]


def test_the_weight_on_the_prompt() -> None:
    missing = 2 / (math.exp(20) + 2)
    assert f"{missing:.0e}" == "4e-09"
    on_page(r"$1 - 4\cdot 10^{-9}$")
    for row, name in zip(FORMS["upper"], ("<U>", "a", "B"), strict=True):
        on_page(f"| `{name}` | " + " | ".join(map(str, row)) + " |")


@pytest.mark.parametrize("prompt", ["upper", "lower"])
def test_the_forms_are_drawn_with_their_numbers(prompt: str) -> None:
    drawn = [int(text) for text in texts(f"form-{prompt}") if text in ("0", "1")]
    wanted = [x for stage in filled(prompt) for row in stage for x in row]
    assert drawn == pytest.approx(wanted, abs=1e-8)


def test_the_exercise_on_a_softer_head() -> None:
    powers = [math.exp(2), 1.0, 1.0]
    weights = [power / sum(powers) for power in powers]
    on_page("$({:.4f}, {:.4f}, {:.4f})$".format(*weights))
    found = filled("upper", 2.0)[1][1][2]
    assert found == pytest.approx(weights[0] + weights[2])
    on_page(f"it finds ${weights[0]:.4f} + {weights[2]:.4f} = {found:.4f}$")


def test_the_network_of_the_exercise_returns_the_maximum() -> None:
    x = torch.rand(50, 2, dtype=F64)
    w1 = torch.tensor([[1.0, 0.0], [-1.0, 1.0]], dtype=F64)
    w2 = torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=F64)
    found = torch.relu(x @ w1) @ w2
    torch.testing.assert_close(found[:, 0], x.max(dim=1).values)
    assert (found[:, 1] == 0).all()


# --- counts ------------------------------------------------------------------------


def test_counts_of_parameters() -> None:
    attention = nn.MultiheadAttention(512, 8, device="meta")
    encoder = nn.TransformerEncoderLayer(512, 8, 2048, device="meta")
    decoder = nn.TransformerDecoderLayer(512, 8, 2048, device="meta")
    network = 2 * 512 * 2048 + 2048 + 512
    on_page(f"$4\\cdot 512^2 = {comma(4 * 512**2)}$")
    on_page(
        f"2048 + 512 = {comma(network)}$", f"the network has {network:,} parameters"
    )
    assert network / 4 / 512**2 == pytest.approx(2, rel=0.01)
    assert network / count(encoder) == pytest.approx(2 / 3, abs=0.002)
    on_page(f"(base model, with biases) | {count(encoder):,} | {count(decoder):,} |")
    more = count(decoder) - count(encoder)
    on_page(f"a decoder layer have {more:,} parameters more")
    on_page(f"$4\\cdot 512^2 + 4\\cdot 512 = {comma(count(attention))}$")
    assert more == count(attention) + 2 * 512
    table = 37_000 * 512
    on_page(f"$37{{,}}000\\cdot 512 = {comma(table)}$; three take {3 * table:,}")
    assert 6 * count(encoder) + 6 * count(decoder) + table == 63_082_496
    on_page("63082496", "ours has 63 million parameters")
    assert 6 * 2 + 6 * 3 == 30


def test_lengths_of_embeddings_and_positions() -> None:
    for d, length in ((512, "$\\sqrt{256} = 16$"), (64, "$\\sqrt{32} \\approx 5.7$")):
        position = 37 / 10_000 ** (torch.arange(0, d, 2, dtype=F64) / d)
        code = torch.cat([position.sin(), position.cos()])
        assert code.norm().item() == pytest.approx(math.sqrt(d / 2))
        on_page(length)
    assert f"{math.sqrt(512):.1f}" == "22.6"
    assert f"{math.sqrt(32):.1f}" == "5.7"
    on_page("$\\sqrt{512} \\approx 22.6$", "$\\sqrt{64}\\cdot 1 = 8$")


def test_costs_and_paths() -> None:
    d = 512
    n = 2 * d
    assert 4 * n * d**2 + 2 * n**2 * d == 8 * n * d**2
    on_page("at $n = 2d = 1024$")
    assert 3**6 == 729 < 1000 <= 3**7
    assert math.ceil(999 / 2) == 500
    on_page("since $3^6 = 729 < 1000 \\le 3^7$; and 500, since $999/2 = 499.5$")


# --- activations and norms ---------------------------------------------------------


def test_the_numbers_of_the_gelus() -> None:
    x = torch.linspace(0, 6, 600_001, dtype=F64)
    phi = torch.special.ndtr(x)
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    by_tanh = 0.5 * (1 + torch.tanh(inner)) - phi
    error = x * by_tanh
    assert f"{error.max():.3e} {x[error.argmax()]:.3f}" == "4.732e-04 2.699"
    assert f"{error.min():.3e} {x[error.argmin()]:.2f}" == "-2.337e-04 1.36"
    on_page("$4.732\\cdot 10^{-4}$", "$|x| = 2.699$", "$-2.337\\cdot 10^{-4}$")
    on_page("$|x| = 1.36$", "$1.79\\cdot 10^{-4}$", "\\approx 0.04554$")
    assert f"{by_tanh.abs().max():.2e}" == "1.79e-04"
    assert f"{2 / (3 * math.pi) - 1 / 6:.5f}" == "0.04554"
    exact = -x * torch.special.ndtr(-x)
    assert f"{exact.min():.3f} {-x[exact.argmin()]:.3f}" == "-0.170 -0.752"
    on_page("$-0.170$, at $x = -0.752$")
    crude = (x * torch.sigmoid(1.702 * x) - x * phi).abs()
    assert f"{crude.max():.3e} {x[crude.argmax()]:.3f}" == "2.033e-02 2.270"
    on_page("$2.033\\cdot 10^{-2}$, at $|x| = 2.270$: some forty times as much")
    assert 40 < crude.max() / error.abs().max() < 45
    far = torch.tensor(-5.0, dtype=F64)
    tail = 1 + torch.tanh(math.sqrt(2 / math.pi) * (far + 0.044715 * far**3))
    assert 6 < 2 * torch.special.ndtr(far) / tail < 7


def test_the_slope_and_the_cube_of_the_tanh_at_zero() -> None:
    x = torch.zeros((), dtype=F64, requires_grad=True)

    def derivatives(y: torch.Tensor) -> list[float]:
        found = []
        for _ in range(3):
            (y,) = torch.autograd.grad(y, x, create_graph=True)
            found.append(y.item())
        return found

    cube = 2 / (3 * math.pi) - 1 / 6
    inner = math.sqrt(2 / math.pi) * (x + cube * x**3)
    assert derivatives(0.5 * (1 + torch.tanh(inner))) == pytest.approx(
        derivatives(0.5 * (1 + torch.erf(x / math.sqrt(2))))
    )


def test_layer_norm_by_hand_and_in_its_drawing() -> None:
    token = [1, 3, 8]
    mean, variance = statistics.mean(token), statistics.pvariance(token)
    assert (mean, variance) == (4, pytest.approx(26 / 3))
    root = math.sqrt(variance)
    on_page("= 26/3 \\approx 8.67$, its root is 2.94", f"{root:.2f}")
    assert f"{variance:.2f}" == "8.67"
    result = [f"{(x - mean) / root:.2f}" for x in token]
    on_page(f"$({', '.join(result)})$")
    unbiased = [(x - mean) / statistics.stdev(token) for x in token]
    on_page("$({:.2f}, {:.2f}, {:.2f})$".format(*unbiased))
    shown = [text.replace("−", "-") for text in texts("norm-line")]
    for number in ("1", "3", "8", "-3", "-1", "4", *result, "- 4", f"÷ {root:.2f}"):
        assert number in shown, number
    other = [2, 2, 5, 5]
    assert (statistics.mean(other), statistics.pstdev(other)) == (3.5, 1.5)


def test_what_the_exercises_say_of_layer_norm() -> None:
    def norm(*token: float) -> torch.Tensor:
        return nn.functional.layer_norm(torch.tensor(token, dtype=F64), (3,), eps=0.0)

    for token in ((2.0, 6.0, 16.0), (11.0, 13.0, 18.0)):
        torch.testing.assert_close(norm(*token), norm(1.0, 3.0, 8.0))
    # Its image for three features is a circle of radius root three.
    drawn = torch.randn(20, 3, dtype=F64)
    lengths = nn.functional.layer_norm(drawn, (3,), eps=0.0).norm(dim=1)
    torch.testing.assert_close(lengths, torch.full((20,), math.sqrt(3), dtype=F64))


# --- training and decoding ---------------------------------------------------------


def test_label_smoothing() -> None:
    right, wrong = 0.9 + 0.1 / 5, 0.1 / 5
    shown = texts("smoothing")
    assert (shown.count(f"{right:.2f}"), shown.count(f"{wrong:.2f}")) == (1, 4)
    on_page("$0.1/5 = 0.02$", "$0.9 + 0.02 = 0.92$")

    def entropy(classes: int) -> float:
        rest = 0.1 / classes
        top = 0.9 + rest
        return -top * math.log(top) - (classes - 1) * rest * math.log(rest)

    on_page(f"entropy of this target, ${entropy(5):.2f}$")
    on_page(
        f"least loss is {entropy(57):.2f}", f"$\\ln 57 \\approx {math.log(57):.2f}$"
    )
    on_page("$0.05$ for each wrong class and $0.85$ for the right one")
    smoothed = [0.2 / 4 + 0.8 * (c == 0) for c in range(4)]
    assert smoothed == pytest.approx([0.85, 0.05, 0.05, 0.05])


def test_the_schedule_and_its_drawing() -> None:
    def rate(step: int) -> float:
        return transformer_learning_rate(step, dim=512, warmup=4000)

    assert rate(4000) == pytest.approx((512 * 4000) ** -0.5)
    assert rate(16_000) == pytest.approx(rate(4000) / 2)
    on_page("$4\\cdot 4000 = 16{,}000$")
    shown = texts("schedule")
    assert f"{rate(4000) * 1e4:.1f}" in shown
    assert f"{rate(20_000) * 1e4:.1f}" in shown
    (curve,) = [
        path.attrib["d"]
        for path in ET.parse(DIAGRAMS / "schedule.svg").iter(f"{SVG}path")
        if "query" in path.attrib.get("style", "")
    ]
    points = [tuple(map(float, p.split())) for p in curve[1:].split("L")]
    for x, y in points[1:]:
        step = round((x - 52) / 296 * 20_000)
        assert (200 - y) / 160 * 8e-4 == pytest.approx(rate(step), rel=0.01)


def test_the_beams_and_their_exercises() -> None:
    first = {"I": 0.6, "O": 0.4}
    second = {"It": 0.55, "Is": 0.45, "On": 0.9, "Of": 0.1}
    words = {word: first[word[0]] * p for word, p in second.items()}
    for name, kept in (("greedy", "I"), ("two", "IO")):
        shown = texts(f"beam-{name}")
        for word, p in words.items():
            assert (f"{word}: {p:.2f}" in shown) == (word[0] in kept)
    assert max(words, key=words.__getitem__) == "On"
    on_page(f"a word of probability {words['It']:.2f}", f"leads to {words['On']:.2f}")
    on_page(f"$q > 0.55/1.45 \\approx {0.55 / 1.45:.3f}$")
    scores = [p / ((5 + n) / 6) ** 0.6 for p, n in ((-1.2, 3), (-1.4, 8))]
    on_page(f"\\approx {scores[0]:.2f}$", f"\\approx {scores[1]:.2f}$: the longer one")
    assert scores[1] > scores[0]


def test_the_shift_is_drawn_with_its_mask() -> None:
    shown = texts("shift")
    assert shown.count("−∞") == 6
    scores = [text for text in shown if re.fullmatch(r"s\d\d", text)]
    assert scores == [f"s{i}{j}" for i in range(1, 5) for j in range(1, i + 1)]


def test_every_word_is_joined_with_every_word_in_the_mesh() -> None:
    paths = ET.parse(DIAGRAMS / "mesh.svg").iter(f"{SVG}path")
    lines = [
        line for p in paths for line in re.findall(r"M\d+ 158L\d+ 118", p.attrib["d"])
    ]
    assert len(lines) == len(set(lines)) == 25
    steps = [text for text in texts("chain") if text.isdecimal()]
    assert steps == ["1", "2", "3", "4"]


def test_the_model_of_the_page_has_thirteen_lines() -> None:
    blocks = re.findall(r"```python\n(.*?)\n\n```", PAGE, re.S)
    (block,) = [block for block in blocks if "def embed(" in block]
    code = block[block.index("def embed(") : block.index(">>> model = ")]
    assert len(code.splitlines()) == 13


# --- language models ---------------------------------------------------------------


def rows_of(name: str, columns: int) -> list[list[str]]:
    """The ones and zeros of a drawn table, row by row."""
    cells = [text for text in texts(name) if text in ("0", "1")]
    return [cells[i : i + columns] for i in range(0, len(cells), columns)]


def test_who_sees_whom_with_two_stacks_and_with_one() -> None:
    def two(source: int, target: int) -> int:
        return source**2 + source * target + target * (target + 1) // 2

    def one(tokens: int) -> int:
        return tokens * (tokens + 1) // 2

    assert (two(3, 3), one(6)) == (24, 21)
    on_page("which makes 9 pairs", "9 more, and each other causally, 6", "= 21$ of")
    on_page("these 24 pairs", "24 visible pairs", "one causal mask, 21 pairs")
    causal = [["1" if j <= i else "0" for j in range(6)] for i in range(6)]
    both = [["1" if j < 3 or j <= i else "0" for j in range(6)] for i in range(6)]
    assert rows_of("mask-one", 6) == causal
    assert rows_of("mask-two", 6) == both
    assert "two stacks: 24 pairs" in texts("mask-two")
    assert "one stack: 21 pairs" in texts("mask-one")
    on_page(f"$25 + 20 + 10 = {two(5, 4)}$, and $1 + 2 + \\dots + 9 = {one(9)}$")
    assert two(5, 4) - one(9) == 10


def test_rms_norm_by_hand_and_in_its_drawings() -> None:
    def norms(*token: float) -> list[list[float]]:
        x = torch.tensor(token, dtype=F64)
        by_rms = nn.functional.rms_norm(x, x.shape, eps=0.0)
        by_layer = nn.functional.layer_norm(x, x.shape, eps=0.0)
        return [by_rms.tolist(), by_layer.tolist()]

    # By token: what RMSNorm and layer norm make of it.
    results = {
        (1, 7): ([0.2, 1.4], [-1, 1]),
        (-5, 5): ([-1, 1], [-1, 1]),
        (2, 14): ([0.2, 1.4], [-1, 1]),
        (-1, -7): ([-0.2, -1.4], [1, -1]),
    }
    for token, found in results.items():
        for ours, wanted in zip(norms(*token), found, strict=True):
            assert ours == pytest.approx(wanted)
    assert norms(2, 8)[0] != pytest.approx([0.2, 1.4], abs=0.01)
    assert norms(2, 8)[1] == pytest.approx([-1, 1])
    assert norms(3, 4, 0, 0)[0] == pytest.approx([1.2, 1.6, 0, 0])
    on_page("$(0.2, 1.4)$", "$25 = 16 + 9$", "$(-0.2, -1.4)$", "$(1.2, 1.6, 0, 0)$")
    mean, variance = statistics.mean((1, 7)), statistics.pvariance((1, 7))
    assert (mean**2, variance) == (16, 9)

    def dots(name: str) -> list[list[float]]:
        found = [dot.attrib for dot in ET.parse(DIAGRAMS / name).iter(f"{SVG}circle")]
        places = ((float(dot["cx"]), float(dot["cy"])) for dot in found)
        return [[(x - 226) / 32, (276 - y) / 32] for x, y in places]

    center, *drawn = dots("rms-circle.svg")
    assert center == [0, 0]
    assert drawn == [pytest.approx(x) for x in ([1, 7], [0.2, 1.4], [-5, 5], [-1, 1])]
    (radius,) = {
        float(circle.attrib["r"])
        for circle in ET.parse(DIAGRAMS / "rms-circle.svg").iter(f"{SVG}circle")
    } - {5.0}
    assert radius / 32 == pytest.approx(math.sqrt(2), abs=0.001)
    wanted = ([1, 7], [-3, 3], [-5, 5], [-1, 1], [1, -1])
    assert dots("rms-line.svg") == [pytest.approx(x) for x in wanted]


def silu(z: float) -> float:
    return z / (1 + math.exp(-z))


def test_the_gates_of_a_swiglu() -> None:
    for gate, value in ((2, -3), (2, 3), (-2, -3)):
        gated = f"$\\operatorname{{silu}}({gate}) = {silu(gate):.3f}$"
        passed = f"${value}$ | ${silu(gate) * value:.3f}$"
        on_page(f"| $({gate}, {value})$ | {gated} | {passed} |")
    assert silu(0) == 0
    shown = [text.replace("−", "-") for text in texts("swiglu")]
    assert {"2", "-3", f"{silu(2):.2f}", f"{-3 * silu(2):.2f}"} <= {*shown}
    on_page(f"= {silu(1):.3f}\\cdot(-2) = {-2 * silu(1):.3f}$; the ReLU")


def test_counts_of_gated_networks() -> None:
    on_page(f"With $d = 512$ that is {8 * 512 / 3:.1f}")
    on_page(f"have {3 * 512 * 1365:,} weights, against {2 * 512 * 2048:,} before")
    hidden = 2 * 4 * 4096 // 3
    assert (hidden, 256 * math.ceil(hidden / 256)) == (10_922, 11_008)
    on_page("turns 10,922 into 11,008, a multiple of 256")
    assert 8 * 768 % 3 == 0
    width = 8 * 768 // 3
    on_page(f"$8\\cdot 768/3 = {width}$")
    on_page(f"= 8\\cdot 768^2 = {comma(3 * 768 * width)}$")
    assert 3 * 768 * width == 8 * 768**2


def test_counts_and_costs_of_a_language_model() -> None:
    on_page(f"$\\ln 58 \\approx {math.log(58):.2f}$")
    on_page(f"For $d = 4096$ that is after {6 * 4096:,} tokens")
    attention, shared, network, norms = 2 * 24**2, 2 * 24 * 8, 3 * 24 * 64, 2 * 24
    on_page(f"= {attention}$, keys and values", f"8 = {shared}$", f"64 = {network}$")
    layer = attention + shared + network + norms
    on_page(f"the norms {norms}: together {layer:,}")
    model = LanguageModel(
        58, dim=24, heads=6, kv_heads=2, depth=2, hidden_dim=64, positions="rotary",
        normalization="rms", activation="swiglu", bias=False,
    )  # fmt: skip
    assert count(model.encoder.layers[0]) == layer


def test_the_slots_of_a_rolling_cache() -> None:
    words = ["the", "cat", "sat", "on", "a", "red", "mat"]

    def slots(last: int, window: int = 4) -> list[int]:
        """The positions in the slots once the last one is stored."""
        return [max(range(slot, last + 1, window)) for slot in range(window)]

    shown = [text for text in texts("rolling") if re.fullmatch(r"[a-z]+ \d", text)]
    shown = [text for text in shown if text.split()[0] in words]
    steps = [f"{words[i]} {i}" for step in range(3, 7) for i in slots(step)]
    assert shown == steps
    assert slots(6) == [4, 5, 6, 3]
    on_page("the positions 4, 5, 6 and 3, out of order")
    assert slots(9) == [8, 9, 6, 7]
    on_page("Positions 8, 9, 6 and 7.")


def test_the_sizes_of_rolling_caches() -> None:
    numbers = 2 * 8 * 128 * 32
    on_page(f"$2\\cdot 8\\cdot 128\\cdot 32 = {comma(numbers)}$ numbers, 128 KiB")
    assert 2 * numbers == 128 * 2**10
    assert (4096 * 2 * numbers, 32_768 * 2 * numbers) == (512 * 2**20, 4 * 2**30)
    on_page("holds 512 MiB", "32,768 tokens would take 4 GiB, eight times as much")
    on_page(f"$32\\cdot 4095 = {comma(32 * 4095)}$")
    size = 2 * 4 * 64 * 24 * 2
    on_page(f"\\cdot 2 = {comma(size)}$ bytes per token, times 1,024: 24 MiB")
    assert 1024 * size == 24 * 2**20


NEXT = {"mat": 0.40, "sofa": 0.25, "floor": 0.15, "roof": 0.12, "moon": 0.08}


def at(temperature: float) -> list[float]:
    powers = [p ** (1 / temperature) for p in NEXT.values()]
    return [power / sum(powers) for power in powers]


def kept(first: int) -> list[float]:
    total = sum([*NEXT.values()][:first])
    return [p / total if i < first else 0 for i, p in enumerate(NEXT.values())]


def drawn_bars(name: str) -> tuple[list[float], list[float]]:
    """The numbers of a chart, column by column, and the lengths of its bars."""
    numbers = [float(x) for x in texts(name) if re.fullmatch(r"0(\.\d+)?", x)]
    bars = ET.parse(DIAGRAMS / f"{name}.svg").iter(f"{SVG}rect")
    return numbers, [float(bar.attrib["width"]) / 130 for bar in bars]


def test_temperatures_by_hand_and_in_their_drawing() -> None:
    on_page("| token | " + " | ".join(NEXT) + " |")
    on_page("| probability | " + " | ".join(f"{p:.2f}" for p in NEXT.values()) + " |")
    squares = [p**2 for p in NEXT.values()]
    on_page("{:.4f}, {:.4f}, {:.4f}, {:.4f} and {:.4f}".format(*squares))
    on_page(f"Divided by their sum, {sum(squares):.4f}")
    on_page("{:.3f}, {:.3f}, {:.3f}, {:.3f} and {:.3f}".format(*at(0.5)))
    sums = torch.tensor(at(2.0)).cumsum(0).tolist()
    on_page("{:.3f}, {:.3f}, {:.3f} and {:.3f}".format(*sums))
    assert sums[2] < 0.75 <= sums[3]
    wanted = [p for temperature in (0.5, 1.0, 2.0) for p in at(temperature)]
    numbers, bars = drawn_bars("temperature")
    assert numbers == pytest.approx(wanted, abs=5.1e-4)
    assert bars == pytest.approx(wanted, abs=1e-4)
    temperature = math.log(1.6) / math.log(2)
    on_page(f"\\approx {temperature:.3f}$")
    assert at(temperature)[0] == pytest.approx(2 * at(temperature)[1])
    on_page(f"$1 - 0.99^{{100}} \\approx {1 - 0.99**100:.2f}$")


def test_filters_by_hand_and_in_their_drawing() -> None:
    on_page(f"$0.40/0.65 \\approx {kept(2)[0]:.3f}$")
    on_page(f"$0.25/0.65 \\approx {kept(2)[1]:.3f}$")
    assert kept(3)[:3] == pytest.approx([0.5, 0.3125, 0.1875])
    on_page("The sums are 0.40, 0.65, 0.80", "the three have 0.5, 0.3125 and 0.1875")
    wanted = [*NEXT.values(), *kept(2), *kept(3)]
    numbers, bars = drawn_bars("filters")
    assert numbers == pytest.approx(wanted, abs=5.1e-4)
    assert bars == pytest.approx([p for p in wanted if p], abs=1e-4)
    on_page("{:.3f}, {:.3f} and {:.3f}".format(*(p / 0.9 for p in (0.5, 0.3, 0.1))))
    sure = [0.92, 0.03, 0.02, 0.02, 0.01]
    assert sum(sure) == pytest.approx(1)
    assert sure[0] > 0.75


# --- the record --------------------------------------------------------------------


def test_what_the_page_says_of_the_maps() -> None:
    weights = load_file(FIGURES / "results.safetensors")
    encoder, cross = weights["weights.encoder.0"], weights["weights.cross.0"]
    on_prompt = encoder[..., 0] > 0.5
    # One head gathers the task for most tokens, the other attends to itself.
    gathering = on_prompt.float().mean(dim=1)
    assert gathering.max() > 0.75
    other = encoder[gathering.argmin()]
    assert (other.argmax(dim=1) == torch.arange(len(other))).float().mean() > 0.8
    # Both heads attend to the character that is written next; at the end they differ.
    assert cross[0, -1].argmax() != cross[1, -1].argmax()
    written = torch.arange(len(cross[0]) - 1)
    for head in cross:
        assert (head.argmax(dim=1)[:-1] == written + 1).all()


def test_what_the_page_says_of_the_gradients() -> None:
    metrics = json.loads((FIGURES / "run.json").read_text("utf-8"))["metrics"]
    last = metrics["gradient_of_last_layer"]
    shrunk = metrics["gradient_2_over_16_layers_pre"]["mean"]
    assert 1.5 < shrunk < math.sqrt(16 / 2)  # by less than the dotted line
    on_page(f"the dotted line would be {math.sqrt(16 / 2):.1f}")
    assert last["post"]["16"]["mean"] >= 0.95 * last["post"]["2"]["mean"]
    ratios = [metrics[f"gradient_last_over_first_{norm}"] for norm in ("pre", "post")]
    assert ratios[0]["mean"] < 1 < ratios[1]["min"]


def test_what_the_page_says_of_training_with_both_norms() -> None:
    run = json.loads((FIGURES / "run.json").read_text("utf-8"))
    norms, seeds = run["metrics"]["norms"], run["config"]["seeds"]
    cells = [x for name in ("pre_norm", "pre_norm_warmup") for x in norms[name]]
    learned = sum(cell["seeds_that_learned"] for cell in cells)
    on_page(f"in {learned} of {seeds * len(cells)} runs")
    least = min(cell["accuracy"]["min"] for cell in cells)
    on_page(f"the other three get {least:.0%}"[:-1] + " to 99% of the tokens right")
    assert seeds * len(cells) - learned == 3
    post, warm = (
        [cell["accuracy"] for cell in norms[name]]
        for name in ("post_norm", "post_norm_warmup")
    )
    assert all(x["max"] < 0.99 for x in post + warm)
    assert warm[1]["min"] > post[1]["max"] + 0.1
    assert warm[0]["mean"] < post[0]["mean"]
    assert post[2]["max"] < warm[2]["max"] < 0.5


def test_what_the_page_says_of_positions() -> None:
    metrics = json.loads((FIGURES / "run.json").read_text("utf-8"))["metrics"]
    floor, found = metrics["floor_without_order"], metrics["positions"]
    assert found["reverse_without"]["last_loss"]["min"] > floor
    assert found["reverse_with"]["last_loss"]["max"] < 0.1 * floor
    for which in ("with", "without"):
        assert found[f"sort_{which}"]["last_loss"]["max"] < 0.5 * floor


def test_the_floor_without_order_is_the_entropy_of_a_bag() -> None:
    # Eight tokens of ten kinds: average over all shapes of bags by simulation.
    torch.manual_seed(0)
    counts = torch.nn.functional.one_hot(torch.randint(10, (200_000, 8)), 10).sum(1)
    orders = math.lgamma(9) - torch.lgamma(counts + 1.0).sum(1)
    run = json.loads((FIGURES / "run.json").read_text("utf-8"))
    assert orders.mean().item() / 8 == pytest.approx(
        run["metrics"]["floor_without_order"], abs=2e-3
    )


def test_what_the_page_says_of_the_language_model() -> None:
    path = FIGURES / "language_model/run.json"
    record = json.loads(path.read_text("utf-8"))
    config, metrics = record["config"], record["metrics"]
    text, losses = metrics["text"], metrics["baselines"]
    on_page(f"$\\ln {text['alphabet']} \\approx {losses['uniform']:.2f}$")
    assert losses["uniform"] == pytest.approx(math.log(text["alphabet"]), abs=1e-4)
    assert record["versions"]["python"].startswith("3.11.")
    on_page("Python 3.11")
    assert round(text["training"] / text["characters"], 3) == 0.9
    assert 6.7e9 / metrics["parameters"] == pytest.approx(20_000, rel=0.1)
    found = metrics["validation_loss"]
    assert found["max"] < losses["bigram"] < losses["unigram"] < losses["uniform"]
    assert metrics["train_loss"]["max"] < found["min"]
    assert metrics["perplexity"]["mean"] == pytest.approx(
        math.exp(found["mean"]), rel=0.01
    )
    on_page(f"$e^{{{losses['bigram']:.3f}}} \\approx {math.exp(losses['bigram']):.1f}$")
    sizes = [config[x] for x in ("text_steps", "text_batch_size", "context")]
    seen = math.prod(sizes)
    on_page("$" + "\\cdot ".join(map(str, sizes)) + f" = {comma(seen)}$ characters")
    on_page(f"of a text of {text['training']:,}: {seen / text['training']:.0f} times")
    on_page("read eleven times", f"more than {config['context'] - 1} positions away")


def test_what_the_page_says_of_the_texts_it_writes() -> None:
    path = FIGURES / "language_model/run.json"
    metrics = json.loads(path.read_text("utf-8"))["metrics"]
    quoted = re.findall(r"^- \$T = .*?: `(.*?)` …$", PAGE, re.M)
    choices = metrics["choices"]
    for text, choice in zip(quoted, choices, strict=True):
        assert len(text) > 80
        assert " ".join(choice["sample"].split()).startswith(text)
    greedy, cold, plain, hot, nucleus = (choice["known_words"] for choice in choices)
    assert choices[0]["sample"].count("the same as a string") >= 2
    assert "referenceslitien" in choices[2]["sample"]
    real = metrics["known_words_of_validation"]
    assert round(1 - real, 2) == 0.07
    # No setting but the highest temperature breaks most words; the tail breaks some.
    assert hot["max"] < 0.5 < plain["max"] < real < nucleus["min"]
    assert 1 - nucleus["min"] < (1 - plain["max"]) / 2
    assert nucleus["max"] < cold["min"] <= greedy["min"]
    # Without a window, the same text comes apart behind the trained length.
    without = metrics["without_window"]
    assert without["temperature"] == choices[1]["temperature"]
    assert without["known_words"]["max"] < cold["min"] - 0.2
    both = zip(without["sample"], choices[1]["sample"], strict=True)
    same = next(i for i, (a, b) in enumerate(both) if a != b)
    assert 96 <= same < 120
    (beyond,) = re.findall(r"goes on with\s+`(.*?)` …", PAGE)
    assert beyond in " ".join(without["sample"][same - 3 :].split())
