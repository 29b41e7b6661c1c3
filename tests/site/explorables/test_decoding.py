"""The explorable of chapter 6: a decoder with masks and a key–value cache."""

import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Locator, Page, expect
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from transformers_hw import Transformer
from transformers_hw.transformer import DecoderCache

DRAWING = Path(__file__).parents[3] / "docs/diagrams/transformer/decoding.svg"
LETTERS = "acehiort"
NAMES = ["pad", "begin", "end", "<U>", "<L>", *LETTERS, *LETTERS.upper()]
SOURCES = ["<U> Cat", "<L> TEa", "<U> heart", "<L> CHaiR"]


def double(x: Any) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)


@pytest.fixture(scope="module")
def model(evaluate: Any) -> Transformer:
    """Build the package's model with the weights of the script."""
    (weights,) = evaluate("decoding", ("weights",))
    model = Transformer(
        len(NAMES),
        dim=8,
        heads=1,
        hidden_dim=16,
        depth=1,
        tied=False,
        positions="learned",
        max_length=8,
        bias=("query",),
        dtype=torch.float64,
    ).eval()
    state = {
        "embedding.weight": double(weights["table"]),
        "source_embedding.weight": double(weights["table"]),
        "output_proj.weight": double(weights["output"]),
        "positions.weight": double(weights["positions"]),
    }
    for stack, uses in {
        "encoder": {"attention": "attention"},
        "decoder": {"self": "self_attention", "cross": "cross_attention"},
    }.items():
        layer, given = f"{stack}.layers.0", weights[stack]
        for use, name in uses.items():
            for part in ("query", "key", "value", "output"):
                state[f"{layer}.{name}.{part}_proj.weight"] = double(given[use][part]).T
            state[f"{layer}.{name}.query_proj.bias"] = double(given[use]["bias"])
        network = {"hidden_proj": "first", "output_proj": "second"}
        for name, part in network.items():
            matrix = double(given["network"][part]).T
            state[f"{layer}.feed_forward.{name}.weight"] = matrix
    missing, unknown = model.load_state_dict(state, strict=False)
    # Norms keep their ones.
    assert not unknown
    assert all(name.endswith("norm.weight") for name in missing)
    return model


def encoded(text: str) -> Tensor:
    return torch.tensor([[NAMES.index(x) for x in (text[:3], *text[4:], "end")]])


@torch.no_grad()
def decoded(
    model: Transformer, text: str, *, cached: bool
) -> tuple[list[int], Tensor, list[dict[str, Any]]]:
    """Decode greedily; give tokens, the encoder's output, and each step's facts."""
    source = encoded(text)
    memory, tokens, steps = model.encode(source), [1], []
    cache = DecoderCache(1) if cached else None
    layer = model.decoder.layers[0]
    while tokens[-1] != 2 and len(steps) < 8:
        seen: dict[str, Tensor] = {}
        hooks = [
            getattr(getattr(layer, use), f"{part}_proj").register_forward_hook(
                lambda _m, _i, out, at=f"{use}.{part}", to=seen: to.update({at: out[0]})
            )
            for use in ("self_attention", "cross_attention")
            for part in ("query", "key", "value")
        ]
        given = torch.tensor([tokens[-1:] if cached else tokens])
        with FlopCounterMode(display=False) as counter:
            logits = model.decode(given, memory, source, cache=cache)[0]
        for hook in hooks:
            hook.remove()
        steps.append(
            {"logits": logits, "seen": seen, "flops": counter.get_total_flops()}
        )
        tokens.append(int(logits[-1, 1:].argmax()) + 1)
    return tokens, memory[0], steps


def test_steps_are_those_of_the_package(evaluate: Any, model: Transformer) -> None:
    for text in SOURCES:
        source = encoded(text)
        given, encoder, *runs = evaluate(
            "decoding",
            ("encode", text),
            ("encoder", source[0]),
            *[("write", text, cached) for cached in (False, True)],
        )
        assert given == source[0].tolist()
        for cached, found in enumerate(runs):
            tokens, memory, steps = decoded(model, text, cached=bool(cached))
            answer = text[4:].upper() if text[1] == "U" else text[4:].lower()
            assert [NAMES[w] for w in tokens] == ["begin", *answer, "end"]
            assert found["tokens"] == tokens
            torch.testing.assert_close(double(encoder), memory, rtol=0, atol=1e-10)
            for t, (step, wanted) in enumerate(
                zip(found["steps"], steps, strict=True), 1
            ):
                logits = double(step["logits"])
                torch.testing.assert_close(logits, wanted["logits"], rtol=0, atol=1e-9)
                chances = wanted["logits"][-1].clone()
                chances[0] = -torch.inf
                torch.testing.assert_close(double(step["chances"]), chances.softmax(-1))
                # What this step computes: all rows, or the new; of the source once.
                rows = 1 if cached else t
                for use in ("self", "cross"):
                    seen = {
                        at.split(".")[1]: x
                        for at, x in wanted["seen"].items()
                        if at.startswith(use)
                    }
                    if use == "cross" and cached and t > 1:
                        assert seen.keys() == {"query"}
                    for part, x in seen.items():
                        shown = double(step[use][part])[-len(x) :]
                        torch.testing.assert_close(shown, x, rtol=0, atol=1e-9)
                    assert len(seen["query"]) == rows
                assert len(step["self"]["key"]) == t


def test_weights_are_masked_and_equal_both_ways(
    evaluate: Any, model: Transformer
) -> None:
    whole, single = evaluate(
        "decoding", *[("write", "<U> heart", cached) for cached in (False, True)]
    )
    layer = model.decoder.layers[0]
    tokens = torch.tensor([whole["tokens"][:-1]])
    with torch.no_grad():
        x = model.embedding(tokens) * 8**0.5
        x = model.positions(x)
        attention = layer.self_attention
        _, weights = attention(
            layer.self_attention_norm(x), causal=True, return_weights=True
        )
    table = double(whole["steps"][-1]["self"]["table"])
    torch.testing.assert_close(table, weights[0, 0], rtol=0, atol=1e-10)
    assert not table.triu(1).any()
    for use in ("self", "cross"):
        for t, step in enumerate(single["steps"], 1):
            last = double(whole["steps"][t - 1][use]["table"][-1])
            torch.testing.assert_close(double(step[use]["table"][0]), last)


def test_counts_are_pytorchs_and_the_chapters(
    evaluate: Any, model: Transformer
) -> None:
    d, hidden, vocab = 8, 16, len(NAMES)
    for text in SOURCES:
        s = len(encoded(text)[0])
        for cached in (False, True):
            _, _, steps = decoded(model, text, cached=cached)
            times = range(1, len(steps) + 1)
            found, *rest = evaluate(
                "decoding",
                ("write", text, cached),
                *[("cost", t, s, cached) for t in times],
                *[("total", t, s, cached) for t in times],
            )
            costs, totals = rest[: len(steps)], rest[len(steps) :]
            so_far = 0
            for t, step, cost, total, wanted in zip(
                times, found["steps"], costs, totals, steps, strict=True
            ):
                counts, rows = step["counts"], 1 if cached else t
                # A multiplication and an addition are two flops.
                assert 2 * sum(counts.values()) == wanted["flops"]
                assert {k: v for k, v in cost.items() if v} == counts
                assert counts["projections"] == 4 * rows * d**2
                assert counts["scores"] == 2 * rows * t * d
                assert counts["network"] == 2 * rows * d * hidden
                assert counts["logits"] == rows * d * vocab
                assert cost["source"] == (0 if cached and t > 1 else 2 * s * d**2)
                so_far += sum(counts.values())
                assert total == so_far


def test_totals_in_closed_form_add_up(evaluate: Any) -> None:
    for n, s, cached in [(1, 1, True), (9, 4, False), (40, 7, True), (40, 7, False)]:
        total, *costs = evaluate(
            "decoding",
            ("total", n, s, cached),
            *[("cost", t, s, cached) for t in range(1, n + 1)],
        )
        assert total == sum(sum(cost.values()) for cost in costs)


def test_every_word_is_answered(evaluate: Any) -> None:
    draw = random.Random(0)
    texts = [
        draw.choice(["<U> ", "<L> "])
        + "".join(draw.choices(NAMES[5:], k=draw.randint(1, 5)))
        for _ in range(300)
    ]
    for text, found in zip(
        texts,
        evaluate("decoding", *[("write", text, True) for text in texts]),
        strict=True,
    ):
        answer = text[4:].upper() if text[1] == "U" else text[4:].lower()
        assert [NAMES[w] for w in found["tokens"]] == ["begin", *answer, "end"]


def test_the_still_drawing_shows_the_start(model: Transformer) -> None:
    text = re.sub(r"<[^>]*>", " ", DRAWING.read_text("utf-8"))
    runs = [
        [step["flops"] // 2 for step in decoded(model, "<U> heart", cached=cached)[2]]
        for cached in (False, True)
    ]
    for label, end in [("step 4", 3), ("steps 1 to 4", 0)]:
        costs = [f"{sum(costs[end:4]):,}" for costs in runs]
        assert re.search(rf"\s{label}\s+{costs[0]}\s+{costs[1]}\s", text)
        # Once in the table and once in the description.
        assert all(text.count(cost) == 2 for cost in costs)


def opened(page: Page, address: str) -> Locator:
    page.goto(f"{address}chapters/transformer/")
    figure = page.locator("figure[data-explorable=decoding]")
    figure.scroll_into_view_if_needed()
    expect(figure).to_have_class(re.compile(r"\blive\b"))
    return figure.locator(".stage")


def test_the_page_shows_what_the_package_computes(
    page: Page, address: str, model: Transformer
) -> None:
    stage = opened(page, address)

    def check(text: str, t: int, *, cached: bool) -> None:
        runs = {c: decoded(model, text, cached=c) for c in (False, True)}
        tokens, _, _ = runs[cached]
        names = [NAMES[w] for w in tokens]
        written = stage.locator(".texts .tokens").nth(1).locator(".token")
        expect(written).to_have_text(names[: t + 1])
        way = "with a cache" if cached else "without a cache"
        expect(stage.locator(".told")).to_contain_text(f"Step {t}, {way}")
        cells = stage.locator(".costs .sum td")
        step = [runs[c][2][t - 1]["flops"] // 2 for c in (False, True)]
        so_far = [sum(s["flops"] for s in runs[c][2][:t]) // 2 for c in (False, True)]
        expect(cells).to_have_text([f"{x:,}" for x in step + so_far])
        # Strips marked as computed now: of self-attention, then of the source.
        s, rows = len(encoded(text)[0]), 1 if cached else t
        now = 3 * rows + (2 * s if not cached or t == 1 else 0)
        expect(stage.locator("g:is(.query, .key, .value).now")).to_have_count(now)

    check("<U> heart", 4, cached=True)
    stage.get_by_role("button", name="Next").click()
    check("<U> heart", 5, cached=True)
    stage.get_by_role("slider", name="step").first.focus()
    page.keyboard.press("Home")
    check("<U> heart", 1, cached=True)
    for _ in range(2):
        page.keyboard.press("ArrowRight")
    stage.get_by_label("key–value cache").press("Space")
    check("<U> heart", 3, cached=False)
    stage.get_by_label("Source").select_option("<L> TEa")
    check("<L> TEa", 3, cached=False)
    stage.get_by_role("button", name="Back").press("Enter")
    check("<L> TEa", 2, cached=False)
    stage.get_by_role("button", name="Reset").click()
    check("<U> heart", 4, cached=True)


def test_leaving_the_page_ends_what_listens(page: Page, address: str) -> None:
    stage = opened(page, address)
    before = stage.locator(".told").inner_text()
    page.evaluate("dispatchEvent(new PageTransitionEvent('pagehide'))")
    stage.get_by_role("button", name="Next").click()
    page.wait_for_timeout(100)
    assert stage.locator(".told").inner_text() == before
