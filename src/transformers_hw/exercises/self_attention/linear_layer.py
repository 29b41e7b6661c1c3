"""The layer as one matrix.

If the attention weights do not depend on the tokens, a layer is linear: H = Σ A_r X
B_r. Write `as_matrix(tables, matrices)`: the matrix L with flat(H) = L flat(X), where
flat lists the entries of a matrix row by row, as `X.reshape(-1)` does. The attention
weights A_r are `tables[r]`, and `tables` has shape (h, n, n). The matrices B_r are
`matrices[r]`, and `matrices` has shape (h, d, e). L has shape (n · e, n · d).
"""

import numpy as np
from einops import einsum, rearrange

from transformers_hw.exercises.kinds import Code

exercise = Code(
    level="core",
    read="self_attention#the-layer-in-general",
    hints=(
        "Entry (i, c) of H is the sum over r, j and b of A_r[i, j] X[j, b] B_r[b, c].",
        "So L[(i, c), (j, b)] = Σ_r A_r[i, j] B_r[b, c].",
        "With np.kron, one head is np.kron(A_r, B_r.T).",
    ),
    points=2,
)


@exercise.cases
def cases(rng):
    """Yield one head, several, and widths that differ."""
    swap = np.array([[[0.0, 1.0], [1.0, 0.0]]])
    yield swap, np.array([[[1.0, 2.0], [3.0, 4.0]]])
    for h, n, d, e in ((2, 3, 2, 4), (3, 4, 3, 2), (2, 2, 1, 5)):
        table = rng.random((h, n, n))
        yield table / table.sum(-1, keepdims=True), rng.normal(size=(h, d, e))


@exercise.solution
def as_matrix(tables, matrices):
    """Return the matrix of the whole layer."""
    entries = einsum(tables, matrices, "h i j, h b c -> i c j b")
    return rearrange(entries, "i c j b -> (i c) (j b)")


@exercise.right
def by_kronecker_products(tables, matrices):
    """Add up Kronecker products."""
    return sum(np.kron(a, b.T) for a, b in zip(tables, matrices, strict=True))


@exercise.right
def column_by_column(tables, matrices):
    """Send every unit vector through the layer."""
    n, d = tables.shape[-1], matrices.shape[1]
    columns = []
    for unit in np.eye(n * d):
        x = unit.reshape(n, d)
        h = [a @ x @ b for a, b in zip(tables, matrices, strict=True)]
        columns.append(np.sum(h, axis=0).reshape(-1))
    return np.stack(columns, axis=1)


@exercise.wrong(
    "The factors stand in the wrong order: your matrix lists entries column by column. "
    "Row by row, the table of positions comes first: kron(A, Bᵀ)."
)
def column_order(tables, matrices):
    """Exchange the factors."""
    return sum(np.kron(b.T, a) for a, b in zip(tables, matrices, strict=True))


@exercise.wrong(
    "B is not transposed. B multiplies X from the right, and in L flat(X) it must act "
    "from the left."
)
def not_transposed(tables, matrices):
    """Forget to transpose B."""
    return sum(np.kron(a, b) for a, b in zip(tables, matrices, strict=True))


@exercise.wrong(
    "The table is transposed. A multiplies X from the left already, so it enters L "
    "as it is."
)
def transposed_table(tables, matrices):
    """Transpose A as well."""
    return sum(np.kron(a.T, b.T) for a, b in zip(tables, matrices, strict=True))


@exercise.wrong(
    "You multiplied sums: (Σ A_r) and (Σ B_r). Each table goes with its own matrix, so "
    "form the products first and add them up."
)
def product_of_sums(tables, matrices):
    """Add up tables and matrices first."""
    return np.kron(tables.sum(0), matrices.sum(0).T)


@exercise.wrong(
    "Only the first head is there. The layer adds the contributions of all heads."
)
def first_head(tables, matrices):
    """Take one head."""
    return np.kron(tables[0], matrices[0].T)


@exercise.wrong(
    "Your matrix is the transpose of L: it multiplies flat(X) from the right. L has a "
    "row for each entry of H and a column for each entry of X."
)
def transposed(tables, matrices):
    """Return the matrix that acts on rows."""
    return sum(np.kron(a.T, b) for a, b in zip(tables, matrices, strict=True))
