"""Can one head do it?

A head whose weights depend on positions computes a·x_left W + b·x_right W, with weights
a, b ≥ 0 and one matrix W. The wanted output is x_left W₁ + x_right W₂. For white tokens
(independent coordinates of mean 0 and variance 1), the expected squared error is
‖aW - W₁‖² + ‖bW - W₂‖², in Frobenius norms. Write `least_error(w_1, w_2)` for two
matrices of the same shape: the smallest such error over all a, b ≥ 0 and W, one number.
(No condition on a + b is needed, because a factor can be moved into W.)

The chapter derives it. Flatten W₁ and W₂ into two rows. If the inner product of the two
is at least 0, the smallest error is the square of the second singular value of the
matrix with these two rows. Otherwise it is the smaller of their squared norms.
"""

import numpy as np

from transformers_hw.exercises.kinds import Code

exercise = Code(
    level="challenge",
    read="multi_head_attention#how-large-the-error-is",
    hints=(
        "np.linalg.svd(rows, compute_uv=False) gives the singular values, largest "
        "first.",
        "If the inner product is negative, serving both neighbors only does harm: the "
        "best head serves the one with the larger norm and ignores the other.",
        "The eigenvalues of the 2 × 2 Gram matrix are the squares of the singular "
        "values.",
    ),
    points=3,
)


@exercise.cases
def cases(rng):
    """Yield the headlines, equal, opposite and random matrices."""
    yield np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]])
    yield np.array([[2.0, 0.0]]), np.array([[-1.0, 0.0]])
    w = rng.normal(size=(3, 4))
    yield w, 2 * w
    other = rng.normal(size=(3, 4))
    yield w, other * np.sign((w * other).sum())
    yield w, -other * np.sign((w * other).sum())


@exercise.solution
def least_error(w_1, w_2):
    """Return the least expected squared error of one head."""
    if (w_1 * w_2).sum() < 0:
        return min((w_1**2).sum(), (w_2**2).sum())
    rows = np.stack([w_1.ravel(), w_2.ravel()])
    return np.linalg.svd(rows, compute_uv=False)[1] ** 2


@exercise.right
def by_eigenvalues(w_1, w_2):
    """Use the Gram matrix."""
    rows = np.stack([w_1.ravel(), w_2.ravel()])
    gram = rows @ rows.T
    if gram[0, 1] < 0:
        return float(gram.diagonal().min())
    return float(np.linalg.eigvalsh(gram)[0])


@exercise.right
def by_search(w_1, w_2):
    """Try directions (a, b) on a quarter circle; W = aW₁ + bW₂ is best for each."""
    p, q, r = (w_1**2).sum(), (w_2**2).sum(), (w_1 * w_2).sum()
    angles = np.linspace(0, np.pi / 2, 2_000_001)
    a, b = np.cos(angles), np.sin(angles)
    return p + q - (a * a * p + b * b * q + 2 * a * b * r).max()


@exercise.wrong(
    "You forgot that weights are not negative. For matrices with a negative inner "
    "product the best a and b would have different signs, which no softmax can give."
)
def any_sign(w_1, w_2):
    """Use the second singular value always."""
    rows = np.stack([w_1.ravel(), w_2.ravel()])
    return np.linalg.svd(rows, compute_uv=False)[1] ** 2


@exercise.wrong(
    "A square is missing: the error is the *square* of the second singular value, or "
    "the smaller of the *squared* norms."
)
def not_squared(w_1, w_2):
    """Forget the square."""
    if (w_1 * w_2).sum() < 0:
        return min(np.linalg.norm(w_1), np.linalg.norm(w_2))
    rows = np.stack([w_1.ravel(), w_2.ravel()])
    return np.linalg.svd(rows, compute_uv=False)[1]


@exercise.wrong(
    "A head can always serve one neighbor exactly and ignore the other; that leaves "
    "the smaller squared norm. If the two matrices are alike, it can do better."
)
def one_neighbor(w_1, w_2):
    """Serve one neighbor only."""
    return min((w_1**2).sum(), (w_2**2).sum())


@exercise.wrong(
    "That is the part of the task that one head can do: the first singular value, or "
    "the larger norm, squared. The error is the part that is left: the other one."
)
def first_value(w_1, w_2):
    """Take the largest singular value."""
    if (w_1 * w_2).sum() < 0:
        return max((w_1**2).sum(), (w_2**2).sum())
    rows = np.stack([w_1.ravel(), w_2.ravel()])
    return np.linalg.svd(rows, compute_uv=False)[0] ** 2


@exercise.wrong(
    "You stacked the matrices without flattening them. Each must become a single row, "
    "so that the matrix has two rows and two singular values."
)
def not_flattened(w_1, w_2):
    """Stack the rows of both matrices."""
    if (w_1 * w_2).sum() < 0:
        return min((w_1**2).sum(), (w_2**2).sum())
    return np.linalg.svd(np.vstack([w_1, w_2]), compute_uv=False)[1] ** 2
