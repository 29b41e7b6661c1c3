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

from transformers_hw.transformer import transformer_learning_rate

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
