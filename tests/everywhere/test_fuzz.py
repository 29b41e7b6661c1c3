"""Attention of all kinds, drawn at random, against formulas in NumPy and float64.

`FUZZ` in the environment multiplies the number of cases, and `FUZZ_SEED` draws others.
A failure shows a seed; `check_attention(seed)` or `check_gaussian(seed)` repeats its
case alone.
"""

import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.random import Generator, default_rng
from torch import Tensor

from transformers_hw import attention_weights, dot_product_attention
from transformers_hw.attention_as_convolution import GaussianSelfAttention

CASES = 2000 * int(os.environ.get("FUZZ", "1"))
FIRST = int(os.environ.get("FUZZ_SEED", "0"))
GAUSSIAN_CASES = CASES // 10
BLOCKS = 8
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SCALES = (None, None, None, 1e-3, 0.3, 1.0, 7.0)
SCALES += (0.0, 1e-300, 1e-46, 1e20, 1e39, math.inf)
BIASES = ("none", "normal", "holes", "blind", "mixed", "high", "low", "lowest")
MASKS = ("none", "random", "blind", "keys")

fuzz = pytest.mark.fuzz
blocks = pytest.mark.parametrize("block", range(BLOCKS))


def run(block: int, cases: int, check: Callable[[int], float]) -> None:
    """Check every case of a block, and that the tolerances meant something."""
    seeds = range(FIRST + block, FIRST + cases, BLOCKS)
    tolerances = [check(seed) for seed in seeds]
    assert np.median(tolerances) < 0.02
    assert np.mean(np.less(tolerances, 0.1)) > 0.75


@fuzz
@pytest.mark.unhooked
@blocks
def test_attention_follows_its_formula_on_both_paths(block):
    run(block, CASES, check_attention)


@fuzz
@blocks
def test_gaussian_attention_follows_its_formula_on_all_paths(block):
    run(block, GAUSSIAN_CASES, check_gaussian)


# Attention


def draw_attention(rng: Generator) -> dict[str, Any]:
    """Draw queries, keys, values and options; everything may be empty."""
    batch = [(), (2,), (1, 2), (2, 3), (2, 3), (2, 1, 2)][rng.integers(6)]
    q, k, v = (int(n) for n in rng.choice([1, 2, 3, 5, 8], size=3))
    if rng.random() < 0.1:
        batch, q, k, v = [
            ((0, 2), q, k, v),
            (batch, 0, k, v),
            (batch, q, 0, v),
            (batch, q, k, 0),
        ][rng.integers(4)]
    if rng.random() < 0.3:
        k = q
    # Long enough for windows to be cut into blocks.
    long = rng.random() < 0.02
    if long:
        q, k = (int(n) for n in rng.integers([65, 160], 240))
    dtype = DTYPES[rng.integers(4)]
    scale = SCALES[rng.integers(len(SCALES))]
    if rng.random() < 0.2:
        scale = 10.0 ** rng.uniform(-9.0, 9.0)
    softcap = None
    if (scale is None or 1e-40 < scale < math.inf) and rng.random() < 0.15:
        softcap = float(rng.choice([1e-3, 0.5, 5.0, 50.0, 1e15]))
    d = int(rng.choice([1, 2, 4, 7] if scale is None else [0, 1, 2, 4, 7]))
    # Products of whole numbers are exact, so that ties are ties in every dtype.
    whole = (scale or 0.0) > 1e3 or rng.random() < 0.2
    size = 1.0 if whole else float(rng.choice([0.3, 1.0, 1.0, 1.0, 30.0]))

    def rows(*shape: int) -> Tensor:
        drawn = rng.integers(-3, 4, shape) if whole else size * rng.normal(size=shape)
        return torch.tensor(drawn, dtype=dtype)

    case = {
        "query": rows(*batch, q, d),
        "key": rows(*batch, k, d),
        "value": torch.tensor(rng.normal(size=(*batch, k, v)), dtype=dtype),
        "mask": draw_mask(rng, (*batch, q, k)),
        "bias": draw_bias(rng, (*batch, q, k)),
        "causal": bool(rng.random() < 0.4),
        "scale": scale,
        "softcap": softcap,
    }
    window = int(rng.integers(1, 6)) if long or rng.random() < 0.3 else None
    sinks = int(rng.integers(3)) if window else 0
    if long:
        case["bias"] = None
        case["mask"] = None if rng.random() < 0.5 else case["mask"]
    return case | {"window": window, "sinks": sinks}


def broadcastable(rng: Generator, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Leave out some leading axes, and set some of the others to one."""
    first = int(rng.integers(len(shape) - 1))
    return tuple(1 if rng.random() < 0.3 else n for n in shape[first:])


def draw_mask(rng: Generator, shape: tuple[int, ...]) -> Tensor | None:
    kind = MASKS[rng.integers(len(MASKS))]
    if kind == "none":
        return None
    if kind == "keys":
        return torch.tensor(rng.random((*shape[:-2], 1, shape[-1])) < 0.6)
    mask = rng.random(broadcastable(rng, shape)) < 0.7
    if kind == "blind":
        mask &= rng.random((*mask.shape[:-1], 1)) < 0.5
    return torch.tensor(mask)


def draw_bias(rng: Generator, shape: tuple[int, ...]) -> Tensor | None:
    kind = BIASES[rng.integers(len(BIASES))]
    if kind == "none":
        return None
    shape = broadcastable(rng, shape)
    dtype = DTYPES[rng.integers(4)]
    bias = rng.normal(size=shape)
    some, row = rng.random(shape) < 0.3, rng.random((*shape[:-1], 1)) < 0.5
    largest = min(torch.finfo(dtype).max, 1e5)
    if kind == "holes":
        bias[some] = -math.inf
    if kind == "blind":
        bias = np.where(row, -math.inf, bias)
    if kind == "mixed":
        bias[some] = rng.choice([-largest, largest], size=shape)[some]
    if kind in ("high", "low"):
        bias = np.where(row, largest if kind == "high" else -largest, bias)
    if kind == "lowest":
        bias = np.where(row, torch.finfo(dtype).min, bias)
    return torch.tensor(bias, dtype=dtype)


def exactly(x: Tensor) -> np.ndarray:
    return x.detach().double().numpy()


class Oracle:
    """Attention in float64, its gradients, and how far rounding may take us."""

    def __init__(self, case: dict[str, Any]) -> None:
        q, k, v = (exactly(case[name]) for name in ("query", "key", "value"))
        scale = 1 / math.sqrt(q.shape[-1]) if case["scale"] is None else case["scale"]
        shape = (*q.shape[:-1], k.shape[-2])
        seen = np.ones(shape, bool)
        if case["mask"] is not None:
            seen &= case["mask"].numpy()
        if case["causal"]:
            ahead = np.arange(shape[-1]) - np.arange(shape[-2])[:, None]
            seen &= ahead <= shape[-1] - shape[-2]
        if case["window"] is not None:
            ahead = np.arange(shape[-1]) - np.arange(shape[-2])[:, None]
            ahead -= shape[-1] - shape[-2]
            seen &= (abs(ahead) < case["window"]) | (
                np.arange(shape[-1]) < case["sinks"]
            )
        bias = np.zeros(shape)
        if case["bias"] is not None:
            bias += exactly(case["bias"])
        seen &= bias > -math.inf
        scores, cap = q @ np.swapaxes(k, -1, -2), case["softcap"]
        # A softmax moves by at most twice what its logits do, relative to itself.
        sizes = abs(q) @ np.swapaxes(abs(k), -1, -2)
        moderate = scale if 1e-15 < scale < 1e15 else 0.0
        sizes = moderate * sizes * (q.shape[-1] / 2 + 2)
        self.scale = 0.0 if scale == math.inf else scale
        self.slope = np.full(shape, self.scale)
        if cap is not None:
            with np.errstate(over="ignore"):
                bent = np.tanh(scores * (scale / cap))
            sizes = sizes + 8 * abs(cap * bent)
            scores, scale, self.slope = cap * bent, 1.0, scale * (1.0 - bent**2)
        largest = np.max(scores, -1, where=seen, initial=-math.inf, keepdims=True)
        gaps = np.where(seen, scores - largest, 0.0)
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = np.where(gaps < 0.0, scale * gaps, 0.0)
        logits = np.where(seen, scaled + np.where(seen, bias, 0.0), -math.inf)
        highest = logits.max(-1, initial=-math.inf, keepdims=True)
        highest = np.where(highest > -math.inf, highest, 0.0)
        powers = np.exp(logits - highest)
        total = powers.sum(-1, keepdims=True)
        self.weights = powers / np.where(total > 0, total, 1.0)
        self.output = self.weights @ v
        self.q, self.k, self.v, self.seen = q, k, v, seen
        sizes = sizes + np.minimum(abs(bias), 1e30)
        # The least number of a wide dtype swallows every score.
        sizes = np.where(seen & (bias > -1e30), sizes, 0.0)
        self.size = sizes.max(-1, initial=0.0, keepdims=True)

    def tolerances(self, case: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        """Return how far weights and outputs may be off."""
        dtype = case["query"].dtype
        inside = torch.promote_types(dtype, torch.float32)
        eps, fine = torch.finfo(dtype).eps, torch.finfo(inside).eps
        moved = np.minimum(np.expm1(np.minimum(2 * fine * self.size, 1.0)), 1.0)
        weights = moved + 4 * eps + np.zeros_like(self.weights)
        largest = abs(self.v).max(-2, initial=0.0, keepdims=True)
        # Weight may go from one value to its opposite.
        return weights, (2 * moved + 4 * eps) * largest + np.zeros_like(self.output)

    def gradients(self, up: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return gradients by query, key, value and bias, and the sums of their terms.

        The sums are those of absolute values: rounding errors are in proportion.
        """
        by_weight = up @ np.swapaxes(self.v, -1, -2)
        mean = (self.weights * by_weight).sum(-1, keepdims=True)
        by_logit = self.weights * (by_weight - mean)
        terms = self.weights * (abs(by_weight) + abs(mean))
        by_score, score_terms = self.slope * by_logit, self.scale * terms
        flipped = np.swapaxes(self.weights, -1, -2)
        return [
            (by_score @ self.k, score_terms @ abs(self.k)),
            (
                np.swapaxes(by_score, -1, -2) @ self.q,
                np.swapaxes(score_terms, -1, -2) @ abs(self.q),
            ),
            (flipped @ up, flipped @ abs(up)),
            (by_logit, terms),
        ]


def check_attention(seed: int) -> float:
    """Compare both paths with the oracle; return the tolerance of the outputs."""
    rng = default_rng(seed)
    case = draw_attention(rng)
    oracle = Oracle(case)
    for_weights, for_output = oracle.tolerances(case)
    fused = dot_product_attention(**case)
    output, weights = dot_product_attention(**case, return_weights=True)
    alone = weights
    if seed % 4 == 0:
        alone = attention_weights(**{x: case[x] for x in case if x != "value"})
    for name, found, expected, tolerance in (
        ("fused", fused, oracle.output, for_output),
        ("textbook", output, oracle.output, for_output),
        ("weights", weights, oracle.weights, for_weights),
        ("weights alone", alone, oracle.weights, for_weights),
    ):
        off = abs(exactly(found) - expected)
        assert found.shape == expected.shape, tell(seed, name, case)
        assert (off <= tolerance).all(), tell(seed, name, case, off.max())
    assert fused.dtype == output.dtype == case["value"].dtype, tell(seed, "", case)
    assert not exactly(weights)[~oracle.seen].any(), tell(seed, "hidden", case)
    # Where a bias swallows the scores, gradients by them mean nothing.
    swallows = case["bias"] is not None and (abs(case["bias"]) > 1e20).any()
    if case["query"].dtype == torch.float64 and not swallows:
        check_gradients(seed, rng, case, oracle)
    return float(for_output.max(initial=0.0))


def check_gradients(
    seed: int, rng: Generator, case: dict[str, Any], oracle: Oracle
) -> None:
    up = rng.normal(size=oracle.output.shape)
    expected = oracle.gradients(up)
    names = ["query", "key", "value"]
    if case["bias"] is not None and case["bias"].dtype == torch.float64:
        names.append("bias")
        shape = case["bias"].shape
        expected[3] = (
            summed_to(expected[3][0], shape),
            summed_to(expected[3][1], shape),
        )
    for return_weights in (False, True):
        leaves = {name: case[name].clone().requires_grad_() for name in names}
        given = {**case, **leaves}
        result = dot_product_attention(**given, return_weights=return_weights)
        output = result[0] if return_weights else result
        found = torch.autograd.grad(
            output,
            [*leaves.values()],
            torch.tensor(up),
            allow_unused=True,
            materialize_grads=True,
        )
        # As the logits, and with them the weights, of a row may move.
        slack = 1e-11 * (1 + oracle.size.max(initial=0.0))
        for name, ours, (exact, terms) in zip(names, found, expected, strict=False):
            bound = slack * terms.max(initial=0.0)
            off = abs(exactly(ours) - exact)
            assert (off <= bound).all(), tell(seed, f"by {name}", case, off.max())


def summed_to(x: np.ndarray, shape: torch.Size) -> np.ndarray:
    """Undo broadcasting."""
    x = x.sum(tuple(range(x.ndim - len(shape))))
    ones = tuple(i for i, n in enumerate(shape) if n == 1)
    return x.sum(ones, keepdims=True)


def tell(seed: int, what: str, case: dict[str, Any], off: object = "") -> str:
    shown = {
        name: f"{x.dtype} {tuple(x.shape)}" if isinstance(x, Tensor) else x
        for name, x in case.items()
    }
    return f"seed {seed}, {what} off by {off}: {shown}\n{case}"


# Gaussian attention


def draw_gaussian(rng: Generator) -> tuple[dict[str, Any], tuple[int, int]]:
    heads, hard = int(rng.integers(1, 4)), rng.random() < 0.3
    covariance = str(rng.choice(["isotropic", "diagonal", "full"]))
    reach = float(rng.choice([1.0, 3.0, 50.0, 1000.0, 4000.0]))
    centers = reach * rng.normal(size=(heads, 2))
    if rng.random() < 0.3:
        centers = np.round(2 * centers) / 2
    options = {
        "dim": int(rng.integers(1, 5)),
        "heads": heads,
        "output_dim": int(rng.integers(1, 5)),
        "covariance": "isotropic" if hard else covariance,
        # What a layer can hold, so that both start from the same numbers.
        "centers": centers.astype(np.float32).astype(float).tolist(),
        "sharpness": math.inf if hard else float(rng.choice([1e-3, 0.5, 4.0, 1e39])),
        "bias": bool(rng.random() < 0.5),
        "dtype": [torch.float32, torch.float64][rng.integers(2)],
    }
    return options, (int(rng.integers(1, 13)), int(rng.integers(1, 13)))


def gaussian_weights(layer: Any, rows: int, columns: int) -> np.ndarray:
    """Return `(heads, queries, keys)`: one softmax over all pixels, in float64."""
    pixels = np.stack(np.mgrid[:rows, :columns], -1).reshape(-1, 2)
    delta = (pixels[None] - pixels[:, None]).astype(np.longdouble)
    weights = []
    for h, center in enumerate(exactly(layer.head_centers())):
        off = delta - center
        if layer.hard:
            distance = (off**2).sum(-1)
            nearest = distance == distance.min(-1, keepdims=True)
            weights.append(nearest / nearest.sum(-1, keepdims=True))
            continue
        alpha = np.exp(np.broadcast_to(exactly(layer.log_sharpness)[h], 2))
        lower = np.diag(np.sqrt(np.minimum(alpha, 1e30)))
        if layer.shear is not None:
            lower[1, 0] = exactly(layer.shear)[h]
        distance = ((off @ lower) ** 2).sum(-1)
        powers = np.exp(distance.min(-1, keepdims=True) - distance)
        weights.append(powers / powers.sum(-1, keepdims=True))
    return np.stack(weights).astype(float)


def check_gaussian(seed: int) -> float:
    """Compare all paths with the formula; return the tolerance."""
    rng = default_rng(seed)
    options, grid = draw_gaussian(rng)
    torch.manual_seed(seed)
    layer: Any = GaussianSelfAttention(**options)
    skewed = layer.shear is not None and layer.sharpness < 1e3 and seed % 2 == 0
    if skewed:
        torch.nn.init.normal_(layer.shear)
    x = torch.tensor(rng.normal(size=(2, *grid, layer.dim)), dtype=options["dtype"])
    expected = gaussian_weights(layer, *grid)
    eps = torch.finfo(options["dtype"]).eps
    # The terms of a skewed Gaussian grow with the distance, and may cancel.
    reach = max(grid) * np.abs(options["centers"]).max()
    tolerance = eps * (30.0 + (5.0 * reach if skewed else 0.0))
    flat = exactly(x).reshape(2, -1, layer.dim)
    output = np.einsum("hqk,bkd,hde->bqe", expected, flat, exactly(layer.value_weight))
    output += 0.0 if layer.bias is None else exactly(layer.bias)
    dense, weights = layer(x, return_weights=True)
    size = 10.0 * layer.heads * (1.0 + abs(output).max())
    for name, found, exact, bound in (
        ("weights", weights.reshape(expected.shape), expected, tolerance),
        ("dense", dense.reshape(output.shape), output, tolerance * size),
        ("fast", layer(x).reshape(output.shape), output, tolerance * size),
    ):
        off = abs(exactly(found) - exact)
        assert (off <= bound).all(), f"seed {seed}, {name}: {off.max()}, {options}"
    return tolerance
