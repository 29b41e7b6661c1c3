"""Attention rollout.

Write `rollout(weights)`: the share of each input token in each output token, through
all layers. `weights` has shape (L, h, n, n): the attention of L layers with h heads,
the first layer first, from queries (rows) to keys (columns). Average over the heads,
count the residual connection as half of each layer, and multiply the layers. Entry
(i, j) of the result, of shape (n, n), is the share of input j in output i, so each row
sums to 1.
"""

import numpy as np
from einops import reduce

from transformers_hw.exercises.kinds import Code

exercise = Code(
    level="core",
    read="vision_transformer#attention-rollout",
    hints=(
        "One layer mixes tokens by (I + A) / 2, with A averaged over its heads.",
        "Rows are outputs. The rows of the last layer say where outputs come from, so "
        "the last layer stands on the left of the product.",
        "Begin with the identity. For each layer, first to last, multiply what you "
        "have *from the left*.",
    ),
    points=2,
)


@exercise.cases
def cases(rng):
    """Yield two layers by hand, then random ones, one layer, and one token."""
    first = [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.5, 0.0, 0.5]]
    second = [[0.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    yield (np.array([[first], [second]]),)
    for layers, h, n in ((3, 2, 4), (2, 3, 5), (1, 4, 3), (5, 2, 6), (2, 2, 1)):
        table = rng.random((layers, h, n, n)) ** 3 + 0.001
        yield (table / table.sum(-1, keepdims=True),)


@exercise.solution
def rollout(weights):
    """Return the shares of the inputs in the outputs."""
    result = np.eye(weights.shape[-1])
    for layer in reduce(weights, "layer head q k -> layer q k", "mean"):
        result = (result + layer @ result) / 2
    return result


@exercise.right
def by_one_product(weights):
    """Multiply the layers, the last one first."""
    mixed = 0.5 * weights.mean(axis=1) + 0.5 * np.eye(weights.shape[-1])
    result = mixed[-1]
    for layer in mixed[-2::-1]:
        result = result @ layer
    return result


@exercise.right
def scaling_rows(weights):
    """Add the identity, and divide each row by its sum."""
    result = np.eye(weights.shape[-1])
    for heads in weights:
        layer = heads.mean(0) + np.eye(len(result))
        result = layer / layer.sum(-1, keepdims=True) @ result
    return result


def _product(layers, order=1):
    result = np.eye(layers.shape[-1])
    for layer in layers[::order]:
        result = layer @ result
    return result


@exercise.wrong(
    "The residual connections are missing. A layer adds its input to what attention "
    "brings, so half of each token's share stays where it is: mix with the identity."
)
def without_residual(weights):
    """Multiply the attention alone."""
    return _product(weights.mean(1))


@exercise.wrong(
    "The identity is added, but the rows now sum to 2 in each layer, and shares grow "
    "like 2 to the number of layers. Divide each row by its sum."
)
def not_normalized(weights):
    """Add the identity and no more."""
    return _product(weights.mean(1) + np.eye(weights.shape[-1]))


@exercise.wrong(
    "The layers are multiplied in the wrong order. A path from an output to the input "
    "passes the *last* layer first, so the last layer stands on the left."
)
def reversed_order(weights):
    """Put the first layer on the left."""
    return _product((weights.mean(1) + np.eye(weights.shape[-1])) / 2, order=-1)


@exercise.wrong(
    "You look at the last layer alone. Its tokens have already collected from others "
    "in every layer before: multiply through all layers."
)
def last_layer(weights):
    """Forget the other layers."""
    return (weights[-1].mean(0) + np.eye(weights.shape[-1])) / 2


@exercise.wrong(
    "You multiply the heads of a layer one after another, as if each were a layer of "
    "its own. Heads work side by side: average them first."
)
def heads_in_turn(weights):
    """Treat heads as layers."""
    n = weights.shape[-1]
    return _product((weights.reshape(-1, n, n) + np.eye(n)) / 2)


@exercise.wrong(
    "The identity enters only once, after multiplying all layers. Every layer has a "
    "residual connection, so mix it in before each product."
)
def one_residual(weights):
    """Mix with the identity at the end."""
    return (_product(weights.mean(1)) + np.eye(weights.shape[-1])) / 2
