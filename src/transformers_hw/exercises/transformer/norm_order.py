"""Pre-norm and post-norm.

Write `stack(x, weights, order)`: a stack of sublayers with residual connections. The
tokens `x` have shape (n, d), and `weights` has shape (L, d, d). Sublayer l is the
function f(x) = max(0, x W), with W = `weights[l]`. N is a layer norm over the last axis
without γ and β: subtract the mean, and divide by √(variance + 0.00001), with the biased
variance. If `order` is `"post"`, each step replaces x by N(x + f(x)). If it is `"pre"`,
each step replaces x by x + f(N(x)), and one final norm ends the stack. Return the
tokens after the whole stack, of shape (n, d). A stack may have no sublayers, L = 0; in
pre-norm order, the final norm is still applied.
"""

import numpy as np

from transformers_hw.exercises.kinds import Code

exercise = Code(
    level="core",
    read="transformer#residual-connections-and-where-to-put-the-norm",
    hints=(
        "Write the norm as a small function inside of yours, and loop over weights.",
        "In pre-norm, the sublayer reads N(x), but what is added to its result is x.",
        "Without sublayers, post-norm returns x itself, and pre-norm returns N(x).",
    ),
    points=3,
    questions=("nyu-1.4e",),
)


@exercise.cases
def cases(rng):
    """Yield one sublayer in both orders, then deeper stacks, then none."""
    x = np.array([[1.0, 3.0, 8.0]])
    swap = np.array([[[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]])
    yield x, swap, "pre"
    yield x, swap, "post"
    for n, d, depth in ((4, 5, 2), (2, 6, 4)):
        weights = rng.normal(size=(depth, d, d)) / np.sqrt(d)
        tokens = 2 * rng.normal(size=(n, d)) + 1
        yield tokens, weights, "pre"
        yield tokens, weights, "post"
    yield rng.normal(size=(3, 4)), np.zeros((0, 4, 4)), "post"
    yield rng.normal(size=(3, 4)), np.zeros((0, 4, 4)), "pre"


@exercise.solution
def stack(x, weights, order):
    """Return the tokens after all sublayers, in pre-norm or post-norm order."""

    def norm(x):
        centered = x - x.mean(axis=-1, keepdims=True)
        return centered / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-5)

    for w in weights:
        if order == "pre":
            x = x + np.maximum(norm(x) @ w, 0)
        else:
            x = norm(x + np.maximum(x @ w, 0))
    return norm(x) if order == "pre" else x


def _norm(x):
    centered = x - x.mean(axis=-1, keepdims=True)
    return centered / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-5)


def _branch(x, w):
    return np.maximum(x @ w, 0)


@exercise.right
def as_a_sum(x, weights, order):
    """Collect what the sublayers add, if the order is pre-norm."""
    if order == "post":
        for w in weights:
            x = _norm(x + _branch(x, w))
        return x
    added = [x]
    for w in weights:
        added.append(_branch(_norm(sum(added)), w))
    return _norm(sum(added))


@exercise.right
def by_recursion(x, weights, order):
    """Take off one sublayer at a time."""
    if len(weights) == 0:
        return _norm(x) if order == "pre" else x.copy()
    read = _norm(x) if order == "pre" else x
    x = x + _branch(read, weights[0])
    return by_recursion(_norm(x) if order == "post" else x, weights[1:], order)


@exercise.wrong(
    "The two orders are exchanged. *Pre* means that the norm comes before the "
    "sublayer, x + f(N(x)); *post* means that it comes after the addition, N(x + f(x))."
)
def exchanged(x, weights, order):
    """Take one order for the other."""
    return stack(x, weights, "pre" if order == "post" else "post")


@exercise.wrong(
    "The final norm is missing in pre-norm. The residual path adds up without ever "
    "being normalized, so every stack must end with one norm, even an empty one."
)
def without_final_norm(x, weights, order):
    """Forget the norm at the end."""
    if order == "post":
        return stack(x, weights, order)
    for w in weights:
        x = x + _branch(_norm(x), w)
    return x


@exercise.wrong(
    "In pre-norm, you add the normalized token, N(x) + f(N(x)). The residual path "
    "carries x itself; only the branch reads N(x)."
)
def normalized_residual(x, weights, order):
    """Overwrite the token by its norm."""
    if order == "post":
        return stack(x, weights, order)
    for w in weights:
        x = _norm(x)
        x = x + _branch(x, w)
    return _norm(x)


@exercise.wrong(
    "In post-norm, you normalize the branch only, x + N(f(x)). The norm takes the "
    "sum: tokens leave every sublayer with mean 0 and variance 1."
)
def norm_of_the_branch(x, weights, order):
    """Normalize what is added."""
    if order == "pre":
        return stack(x, weights, order)
    for w in weights:
        x = x + _norm(_branch(x, w))
    return x


@exercise.wrong(
    "The residual connections are missing: each sublayer replaces the token. Add its "
    "result to x instead."
)
def without_residual(x, weights, order):
    """Replace instead of adding."""
    for w in weights:
        x = _branch(_norm(x), w) if order == "pre" else _norm(_branch(x, w))
    return _norm(x) if order == "pre" else x


@exercise.wrong(
    "Both orders end with an extra norm. Post-norm has normalized its tokens in the "
    "last step already, and without sublayers it returns x itself; only pre-norm needs "
    "the final norm."
)
def final_norm_in_both(x, weights, order):
    """Normalize at the end in any case."""
    return _norm(stack(x, weights, order))


@exercise.wrong(
    "In pre-norm, you normalize what the sublayer returns, x + N(f(x)). The norm comes "
    "*before* the sublayer: x + f(N(x))."
)
def norm_after_the_sublayer(x, weights, order):
    """Normalize the branch, not its input."""
    if order == "post":
        return stack(x, weights, order)
    for w in weights:
        x = x + _norm(_branch(x, w))
    return _norm(x)


@exercise.wrong(
    "The sublayer lacks its nonlinearity: f(x) is max(0, x W), entry by entry."
)
def without_relu(x, weights, order):
    """Take x W for the sublayer."""
    for w in weights:
        x = x + _norm(x) @ w if order == "pre" else _norm(x + x @ w)
    return _norm(x) if order == "pre" else x
