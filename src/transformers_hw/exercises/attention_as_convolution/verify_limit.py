"""The limit of a sharp head.

Write `verify_limit(center, sharpnesses, grid, query)`: the attention weights of one
query pixel, for a Gaussian head that gets sharper and sharper. The scores are
-α ‖δ - Δ‖², and δ is key minus query. `center` and `query` are pairs (row, column),
`grid` is the pair (rows, columns), and `sharpnesses` has shape (s,). Return the weights
as maps, an array of shape (s, rows, columns). Each map sums to 1.

The last sharpness may be infinite (np.inf). Its map is the limit: the m pixels nearest
to query + center share the weight, 1/m each. Finite sharpnesses may be large, and the
target may lie far outside the image; no weight may become NaN. Centers are multiples of
1/2, so equal distances are exactly equal. (The book's own `verify_limit` follows the
assignment instead, with the target at query - center.)
"""

import numpy as np

from transformers_hw.exercises.kinds import Code

exercise = Code(
    level="challenge",
    read="attention_as_convolution#turning-up-the-sharpness",
    hints=(
        "Softmax runs over all pixels at once, rows and columns together.",
        "If every score is very negative, all exponentials are 0. Softmax does not "
        "change if you subtract the smallest squared distance from all of them.",
        "After subtracting, the nearest pixels have exactly 0. In the limit, only they "
        "remain. Beware that 0 times infinity is NaN.",
    ),
    points=3,
    questions=("eth-1d.1", "eth-2a"),
)


@exercise.cases
def cases(rng):
    """Yield a row of pixels, images, ties, and targets outside."""
    yield (0.0, 1.0), np.array([0.0, 2.0]), (1, 4), (0, 1)
    yield (-1.0, 2.0), np.array([0.5, 2.0, 20.0]), (4, 6), (2, 1)
    yield (1.0, -1.0), np.array([0.1, 1.0, np.inf]), (3, 5), (1, 3)
    yield (0.5, 0.0), np.array([1.0, np.inf]), (4, 3), (1, 1)
    yield (-0.5, 1.5), np.array([3.0, np.inf]), (5, 6), (2, 2)
    yield (-3.0, 4.0), np.array([0.3, 1000.0, np.inf]), (3, 4), (1, 2)


@exercise.solution
def verify_limit(center, sharpnesses, grid, query):
    """Return a map of the weights for each sharpness."""
    down = np.arange(grid[0]) - query[0] - center[0]
    across = np.arange(grid[1]) - query[1] - center[1]
    distance = down[:, None] ** 2 + across**2
    excess = distance - distance.min()
    maps = []
    for sharpness in sharpnesses:
        nearest = (excess == 0).astype(float)
        powers = nearest if np.isinf(sharpness) else np.exp(-sharpness * excess)
        maps.append(powers / powers.sum())
    return np.stack(maps)


@exercise.right
def by_factors(center, sharpnesses, grid, query):
    """Multiply the weights along rows by those along columns."""

    def weights(size, target, sharpness):
        squares = (np.arange(size) - target) ** 2
        scores = np.where(squares == squares.min(), 0.0, squares.min() - squares)
        powers = np.exp(np.where(scores == 0, 0.0, scores * sharpness))
        return powers / powers.sum()

    maps = []
    for sharpness in sharpnesses:
        parts = [weights(grid[i], query[i] + center[i], sharpness) for i in (0, 1)]
        maps.append(np.outer(*parts))
    return np.array(maps)


@exercise.right
def by_loops(center, sharpnesses, grid, query):
    """Take one pixel at a time."""
    maps = np.zeros((len(sharpnesses), *grid))
    target = np.add(query, center)
    squares = {k: np.sum((k - target) ** 2) for k in np.ndindex(*grid)}
    least = min(squares.values())
    for s, sharpness in enumerate(sharpnesses):
        for key, square in squares.items():
            near = square == least
            maps[s][key] = 1.0 if near else np.exp(-sharpness * (square - least))
        maps[s] /= maps[s].sum()
    return maps


def _maps(target, sharpnesses, grid, limit, *, axis=None, safe=True):
    down, across = (np.arange(n) - t for n, t in zip(grid, target, strict=True))
    distance = down[:, None] ** 2 + across**2
    excess = distance - distance.min() if safe else distance
    maps = []
    for sharpness in sharpnesses:
        if np.isinf(sharpness) and limit is not None:
            powers = limit(distance).astype(float)
        else:
            powers = np.exp(-sharpness * excess)
        maps.append(powers / powers.sum(axis=axis, keepdims=axis is not None))
    return np.array(maps)


def _nearest(distance):
    return distance == distance.min()


@exercise.wrong(
    "Your maps are mirrored: the weight gathers at query - center. The offset is key "
    "minus query, so the target is query + center."
)
def mirrored(center, sharpnesses, grid, query):
    """Take query minus key."""
    return _maps(np.subtract(query, center), sharpnesses, grid, _nearest)


@exercise.wrong(
    "Large sharpnesses give NaN: every exponential underflows to 0, and 0 is divided "
    "by 0. Subtract the smallest squared distance first, and treat an infinite "
    "sharpness apart."
)
def underflow(center, sharpnesses, grid, query):
    """Use the exponentials as they are."""
    return _maps(np.add(query, center), sharpnesses, grid, None, safe=False)


@exercise.wrong(
    "Finite sharpnesses are right, but the infinite one gives NaN: at the nearest "
    "pixels, infinity is multiplied by 0. Say directly who shares the weight there."
)
def infinity_times_zero(center, sharpnesses, grid, query):
    """Multiply by infinity."""
    return _maps(np.add(query, center), sharpnesses, grid, None)


@exercise.wrong(
    "In the limit you give all weight to one pixel, also where several are equally "
    "near. Equal scores have equal weights at every sharpness, so they share it in the "
    "limit."
)
def one_winner(center, sharpnesses, grid, query):
    """Break ties by argmin."""

    def first(distance):
        return np.arange(distance.size).reshape(distance.shape) == distance.argmin()

    return _maps(np.add(query, center), sharpnesses, grid, first)


@exercise.wrong(
    "In the limit you look for a pixel exactly at query + center. If there is none, "
    "between pixels or outside the image, the *nearest* pixels take the weight."
)
def exact_target_only(center, sharpnesses, grid, query):
    """Wait for a distance of zero."""
    return _maps(np.add(query, center), sharpnesses, grid, lambda d: d == 0)


@exercise.wrong(
    "Each row of a map sums to 1 by itself. The keys are all pixels of the image: one "
    "softmax runs over rows and columns together."
)
def row_by_row(center, sharpnesses, grid, query):
    """Normalize along the columns only."""

    def each_row(distance):
        return distance == distance.min(axis=1, keepdims=True)

    return _maps(np.add(query, center), sharpnesses, grid, each_row, axis=1)


@exercise.wrong(
    "The limit is right, but a large finite sharpness gives NaN: far from the target, "
    "all exponentials are 0. Subtract the smallest squared distance before you "
    "multiply."
)
def underflow_below_the_limit(center, sharpnesses, grid, query):
    """Treat only an infinite sharpness apart."""
    return _maps(np.add(query, center), sharpnesses, grid, _nearest, safe=False)
