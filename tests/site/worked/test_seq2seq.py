"""The numbers of chapter 5, on its page and in its diagrams, computed again."""

import itertools
import json
import math
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from transformers_hw.seq2seq import Seq2Seq
from transformers_hw.transformer import Transformer

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/chapters/seq2seq.md").read_text("utf-8")
DIAGRAMS = ROOT / "docs/diagrams/seq2seq"
RECORD = ROOT / "docs/figures/seq2seq"
SVG = "{http://www.w3.org/2000/svg}"
F64 = torch.float64
CLOCK = [(1, 0), (0, 1), (-1, 0), (0, -1)]
TOKENS = 58


def on_page(*texts: str) -> None:
    flat = " ".join(PAGE.split())
    for text in texts:
        assert " ".join(text.split()) in flat, f"not on the page: {text}"


def metrics() -> dict[str, Any]:
    return json.loads((RECORD / "run.json").read_text("utf-8"))["metrics"]


def results(name: str) -> Tensor:
    """Values of a run: a row for each seed."""
    return load_file(RECORD / "results.safetensors")[name]


def drawing(name: str) -> ET.Element:
    return ET.parse(DIAGRAMS / f"{name}.svg").getroot()


def shown(root: ET.Element) -> list[str]:
    texts = ("".join(text.itertext()) for text in root.iter(f"{SVG}text"))
    return [text.replace("\u200b", "") for text in texts]


def described(name: str, *texts: str) -> None:
    (description,) = drawing(name).iter(f"{SVG}desc")
    for text in texts:
        assert text in (description.text or ""), f"not in the description: {text}"


def read(letters: str, factor: float = 2.0) -> list[tuple[float, float]]:
    """States of the network with two units, after each letter."""
    first, states = 0.0, []
    for letter in letters:
        value = {"a": 1.0, "b": -1.0}[letter]
        states.append((math.tanh(2.0 * value), math.tanh(factor * first)))
        first = states[-1][0]
    return states


def test_three_letters_by_hand() -> None:
    states = read("abb")
    assert [round(x, 2) for state in states for x in state] == [
        *(0.96, 0.0, -0.96, 0.96, -0.96, -0.96)
    ]
    on_page(r"(\tanh 2,\; \tanh 0) = (0.96,\; 0)")
    on_page(rf"\tanh {2 * states[0][0]:.2f}) = (-0.96,\; 0.96)")
    on_page(rf"\tanh({2 * states[1][0]:.2f})) \\", r"(-0.96,\; -0.96)")
    assert states[2] == read("bbb")[2]
    # The exercise: another text, all last states, and a weaker connection.
    assert read("bab")[2] == read("aab")[2]
    on_page("$(-0.96, 0)$, $(0.96, -0.96)$ and $(-0.96, 0.96)$")
    texts = [a + b + c for a in "ab" for b in "ab" for c in "ab"]
    assert (len({read(text)[2] for text in texts}), len(texts)) == (4, 8)
    on_page(rf"$\tanh(0.1\cdot 0.96) = {read('ab', 0.1)[1][1]:.3f}$")


def test_three_letters_are_drawn_with_their_numbers() -> None:
    def printed(states: list[tuple[float, float]]) -> list[str]:
        return [f"{x:.2f}".replace("-", "−") for state in states for x in state]

    numbers = [x for x in shown(drawing("letters")) if re.fullmatch(r"−?\d\.\d\d", x)]
    wanted = [printed([(0.0, 0.0), *read(text)]) for text in ("abb", "bbb")]
    assert numbers == wanted[0] + wanted[1]
    for text in wanted:
        pairs = zip(text[::2], text[1::2], strict=True)
        described("letters", ", ".join(f"({a}, {b})" for a, b in pairs))


def weights(length: float) -> list[list[float]]:
    """Weights of the three queries, which point at tokens two, three and four."""
    rows = []
    for x, y in CLOCK[1:]:
        powers = [math.exp(length * (x * a + y * b)) for a, b in CLOCK]
        rows.append([power / sum(powers) for power in powers])
    return rows


def test_attention_by_hand() -> None:
    for (x, y), token in zip(CLOCK, ("`<U>`", "*M*", "*e*", "end"), strict=True):
        on_page(f"| {token} | $({x}, {y})$ |")
    on_page("$s_1 = (0, 3)$, $s_2 = (-3, 0)$, $s_3 = (0, -3)$")
    total = math.exp(3) + 2 + math.exp(-3)
    on_page(
        f"1, {math.exp(3):.2f}, 1 and {math.exp(-3):.2f}, with the sum {total:.2f}",
        r"({:.2f},\; {:.2f},\; {:.2f},\; {:.2f})".format(*weights(3)[0]),
        f"is {weights(3)[0][1]:.0%} the state of *M*",
        f"e^{{-5}}) \\approx {weights(5)[0][1]:.3f}$",
    )
    assert weights(0)[0] == [0.25] * 4
    hours = [math.cos(math.tau * hour / 14) for hour in range(14)]
    short, long = (1 / sum(math.exp(size * (x - 1)) for x in hours) for size in (3, 30))
    on_page(
        f"with 14 hours, a hand of length 3 puts only {short:.0%} of the weight on its "
        f"token, and one of length 30 puts {long:.0%} there"
    )
    assert sum(x for x, _ in CLOCK) == sum(y for _, y in CLOCK) == 0


def test_the_weights_are_drawn_as_they_are() -> None:
    table = [f"{a:.2f}" for row in weights(3) for a in row]
    root = drawing("shift")
    assert [x for x in shown(root) if re.fullmatch(r"\d\.\d\d", x)] == table
    shades = [
        float(cell.attrib["fill-opacity"])
        for cell in root.iter(f"{SVG}rect")
        if "fill-opacity" in cell.attrib
    ]
    wanted = [0.45 * a for row in weights(3) for a in row]
    assert shades == pytest.approx(wanted, abs=6e-5)
    names = ("M", "E", "end")
    rows = zip(names, weights(3), strict=True)
    described(
        "shift",
        *(f"{name}: {', '.join(f'{a:.2f}' for a in row)}" for name, row in rows),
    )
    # The first figure of the chapter: lines as wide as their weights.
    strokes = [
        float(path.attrib["stroke-width"])
        for path in drawing("bottleneck-attention").iter(f"{SVG}path")
        if "stroke-width" in path.attrib
    ]
    thick = [max(8 * a, 0.4) for row in weights(3) for a in row]
    assert strokes == pytest.approx(thick, abs=0.006)
    described("bottleneck-attention", f"of weight {weights(3)[0][1]:.2f}")


def sizes(gain: float, inputs: float, *, draws: int = 20) -> list[float]:
    """Median size of a product of Jacobians, after each of 20 steps."""
    torch.manual_seed(0)
    found = torch.ones(draws, 21, dtype=F64)
    for draw in found:
        weight = gain * torch.linalg.qr(torch.randn(64, 64, dtype=F64))[0]
        state, product = torch.zeros(64, dtype=F64), torch.eye(64, dtype=F64)
        for step in range(1, 21):
            state = torch.tanh(weight @ state + inputs * torch.randn(64, dtype=F64))
            product = (1 - state**2)[:, None] * weight @ product
            draw[step] = product.norm() / 8
    return found.median(0).values.tolist()


def test_gradients_are_drawn_as_large_as_they_are() -> None:
    curves = [sizes(1.25, 0), sizes(1.0, 0), sizes(0.8, 0), sizes(1.25, 1)]
    paths = [
        path.attrib["d"]
        for path in drawing("gradient-size").iter(f"{SVG}path")
        if "stroke-width" in path.attrib
    ]
    for path, curve in zip(paths, curves, strict=True):
        points = [pair.split() for pair in path[1:].split("L")]
        # The axis has two decades for each third of its 166 units.
        drawn = [10 ** (2 - 6 * (float(y) - 30) / 166) for _, y in points]
        assert drawn == pytest.approx(curve, rel=0.02)
    assert curves[0] == pytest.approx([1.25**k for k in range(21)])
    described(
        "gradient-size",
        f"grows to {curves[0][-1]:.0f}",
        f"falls to {curves[2][-1]:.3f}",
    )
    assert curves[3][-1] < 0.01  # "falls although": the dashed curve
    on_page(f"$0.8^{{20}} \\approx {0.8**20:.3f}$", f"\\approx {1.25**20:.0f}$")


def test_exercises_on_gradients() -> None:
    states = read("abb")
    recurrent = torch.tensor([[0.0, 0.0], [2.0, 0.0]], dtype=F64)
    factors = [
        torch.diag(1 - torch.tensor(state, dtype=F64) ** 2) @ recurrent
        for state in states
    ]
    assert (factors[2] @ factors[1]).eq(0).all()
    assert torch.linalg.matrix_norm(recurrent, ord=2) == 2
    on_page(f"$1 - 0.96^2 = {1 - 0.96**2:.3f}$")
    steps = math.log(0.01) / math.log(0.9)
    on_page(f"= {steps:.1f}$, so {math.ceil(steps)} steps")
    h = 0.5
    for _ in range(100):
        h = math.tanh(2 * h)
    on_page(f"$\\pm {h:.4f}$", f"$2\\,(1 - {h:.4f}^2) = {2 * (1 - h**2):.3f}$")
    assert f"{2 * (1 - round(h, 4) ** 2):.3f}" == f"{2 * (1 - h**2):.3f}"
    assert 1 / (2 * (1 - h**2)) == pytest.approx(6, abs=0.05)


def test_a_forgotten_shift_is_caught_by_the_last_target_token() -> None:
    on_page("change the last *target* token", "no prediction may change")
    torch.manual_seed(0)
    model = Seq2Seq(TOKENS, dim=4, hidden_dim=8)
    source, target = torch.tensor([[3, 7, 8, 2]]), torch.tensor([[7, 8, 2]])
    other = torch.tensor([[7, 8, 9]])

    def shifted(target: Tensor) -> Tensor:
        return nn.functional.pad(target[:, :-1], (1, 0), value=1)

    right = [model(source, shifted(x)) for x in (target, other)]
    assert torch.equal(*right)
    wrong = [model(source, x) for x in (target, other)]
    assert not torch.equal(*wrong)


def test_the_gradient_of_a_context_is_a_covariance() -> None:
    torch.manual_seed(0)
    memory, query = torch.randn(7, 5, dtype=F64), torch.randn(5, dtype=F64)

    def context(query: Tensor) -> Tensor:
        return torch.softmax(memory @ query, dim=0) @ memory

    found = torch.autograd.functional.jacobian(context, query)
    shares, mean = torch.softmax(memory @ query, dim=0), context(query)
    expected = torch.einsum("j,ja,jb->ab", shares, memory - mean, memory)
    torch.testing.assert_close(found, expected)


def test_what_the_bottleneck_must_hold() -> None:
    for characters in (27, 53):
        on_page(f"1 + {math.log2(characters):.2f}\\,\\ell$")
    assert math.log2(2 * 27**12 - 1) < 60
    assert 16 * 32 == 512
    bits = math.log2(2 * 27**20 - 1)
    on_page(f"$1 + 4.75\\cdot 20 \\approx {bits:.0f}$ bits")
    on_page(f"$14\\cdot {TOKENS} + 1 = {14 * TOKENS + 1}$ units")
    # Steps between reading and writing character i: in order, and in reverse.
    for length in (2, 12):
        for i in range(1, length + 1):
            forth = length + 2 - (i + 1) + i
            back = length + 2 - (i + 1) + (length + 1 - i)
            assert (forth, back) == (length + 1, 2 * (length + 1 - i))


@pytest.mark.parametrize(
    ("name", "text", "slots"), [("queue", "ab", 4), ("dropped", "abc", 4)]
)
def test_the_queue_as_it_is_drawn(name: str, text: str, slots: int) -> None:
    queue, rows = [""] * slots, []
    for token in ["", *text.upper(), "end"]:
        queue = [token, *queue[:-1]]
        rows.append(queue)
    assert rows[0] == [""] * slots  # the prompt leaves the slots empty
    written = []
    for _ in range(len(text) + 1):
        queue = ["", *queue[:-1]]
        rows.append(queue)
        written.append(queue[-1])
    if name == "dropped":
        assert (rows[4], written[:3]) == (["end", "C", "B", "A"], ["B", "C", "end"])
        return
    assert written == ["A", "B", "end"]
    reading, writing = shown(drawing("queue-read")), shown(drawing("queue-write"))
    heads = ["slot 1", "slot 2", "slot 3", "slot 4"]
    labels = ["<U>", "a", "b", "end"]
    table = [[a, *filter(None, row)] for a, row in zip(labels, rows, strict=False)]
    assert reading[2:] == heads + [cell for row in table for cell in row]
    labels = ["handed over", "A", "B", "end"]
    table = [[a, *filter(None, row)] for a, row in zip(labels, rows[3:], strict=True)]
    assert writing[2:] == heads + [cell for row in table for cell in row]


def test_parameters_of_attention() -> None:
    def count(*layers: nn.Module) -> int:
        return sum(x.numel() for layer in layers for x in layer.parameters())

    square = nn.Linear(128, 128, bias=False, device="meta")
    score = count(square, square, nn.Linear(128, 1, bias=False, device="meta"))
    wide, narrow = (nn.Linear(n, TOKENS, device="meta") for n in (256, 128))
    columns = count(wide) - count(narrow)
    for number in (score, columns, score + columns):
        on_page(f"{number:,}$".replace(",", "{,}"))
    models = metrics()["models"]
    with_attention = models["rnn_attention_128"]["parameters"]
    assert with_attention - models["rnn_128"]["parameters"] == score + columns


def test_operations_of_the_three_models() -> None:
    settings = json.loads((RECORD / "run.json").read_text("utf-8"))["config"]
    (length, dim), models = (settings[x] for x in ("length", "transformer_dim")), []
    for attention in (None, "additive"):
        sizes = {"dim": settings["dim"], "hidden_dim": 128, "attention": attention}
        models.append(Seq2Seq(TOKENS, **sizes))
    models.append(Transformer(TOKENS, dim=dim, heads=2, hidden_dim=4 * dim, depth=2))
    # The mark in front, the end of the text, and the end of the answer.
    tokens = [torch.ones(1, length + n, dtype=torch.int64) for n in (2, 1)]
    found = []
    for model in models:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(*tokens)
        found.append(f"{counter.get_total_flops() / 2e6:.1f}")
    row = "| multiplications for a text of 12 characters, in millions"
    on_page(" | ".join([row, *found]))


WIDTHS = (16, 32, 64, 128)
LOOKING_BACK = ("rnn_attention_128", "transformer")


def test_what_the_page_says_of_the_bottleneck() -> None:
    models, length = metrics()["models"], metrics()["trained_length"]
    assert length == 12
    longest = [models[f"rnn_{w}"]["longest_text_mostly_right"]["mean"] for w in WIDTHS]
    gains = [after - before for before, after in itertools.pairwise(longest)]
    on_page(f"adds {min(gains):.1f} to {max(gains):.1f} characters")
    for width in WIDTHS:
        assert results(f"texts.rnn_{width}")[:, length - 1].max() < 0.01
    for width in WIDTHS[1:]:
        texts = results(f"texts.rnn_attention_{width}")[:, :length]
        assert texts.min() > 0.98
        assert texts.mean(0).min() > 0.99
    # With 16 units one seed gets half of the texts right, at any length from 4 on.
    narrow = results("texts.rnn_attention_16")[:, :length]
    worst, *others = narrow[narrow[:, -1].argsort()]
    assert worst[3:].sub(0.49).abs().max() < 0.05
    assert len(others) == 4
    assert torch.stack(others).min() >= 0.96


def test_what_the_page_says_of_positions() -> None:
    for width in WIDTHS:
        written, forced = (
            results(f"{kind}.rnn_{width}").mean(0) for kind in ("written", "forced")
        )
        assert written[0] == written.max()
        assert written[-1] == written.min()
        assert (forced - written)[1:].min() > 0
        assert (forced[-1] > forced.min() + 0.05) == (width >= 64)
    for kind in ("written", "forced"):
        assert results(f"{kind}.rnn_attention_128").min() > 0.99


def test_what_the_page_says_of_alignments() -> None:
    for name in ("rnn_attention", "transformer"):
        largest = results(f"alignment.{name}").argmax(dim=1)
        # The last step writes the end token.
        assert largest.tolist() == [*range(1, 13), 0 if name == "transformer" else 13]
        assert metrics()["offsets"][name]["1"]["min"] > 0.98


def test_what_the_page_says_of_longer_texts() -> None:
    for name in LOOKING_BACK:
        texts = results(f"texts.{name}").mean(0)
        assert texts[:12].min() > 0.99
        assert texts[12] < 0.9
        assert texts[14:].max() < 0.1
        assert results(f"texts.{name}")[:, -1].max() == 0
        positions = results(f"written_at_twice.{name}").mean(0)
        assert positions[:10].min() > 0.97
        assert positions[14:].max() < 0.06
    recurrent, transformer = (
        1 - results(f"texts.{name}").mean(0)[12] for name in LOOKING_BACK
    )
    on_page(
        f"on average {recurrent:.0%} (recurrent) and {transformer:.0%} (Transformer) "
        "of the texts are wrong"
    )
    recurrent = results("written_at_twice.rnn_128").mean(0)
    assert recurrent[0] > 0.9
    assert (recurrent.diff()[:8] < 0.01).all()
    assert recurrent[1] < 0.9
    assert recurrent[10:].max() < 0.1
