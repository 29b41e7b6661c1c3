"""Two GELUs.

Write `gelus(x)`: the Gaussian error linear unit of each entry of `x`, in two forms.
Return the list `[exact, approximate]` of arrays with the shape of `x`. The exact form
is x Φ(x), where Φ(x) = (1 + erf(x/√2)) / 2 is the distribution function of a standard
normal number. The approximate form is x (1 + tanh z) / 2, with
z = √(2/π) · (x + 0.044715 · x³). NumPy has no error function: `math.erf` takes one
number, and `np.vectorize` makes it work on arrays.
"""

import math

import numpy as np

from transformers_hw.exercises.kinds import Code

exercise = Code(
    level="core",
    read="transformer#a-softer-switch-the-gelu",
    hints=(
        "np.vectorize(math.erf)(x / np.sqrt(2)) is an array like x.",
        "Both forms tend to x for large x and to 0 for large -x.",
        "The two results differ by at most 0.0005. If yours differ by more, one of "
        "the constants is wrong.",
    ),
    points=2,
    questions=("eth-2b",),
)


@exercise.cases
def cases(rng):
    """Yield a few numbers, the worst of the approximation, and large ones."""
    yield np.array([-2.0, -0.5, 0.0, 1.0, 3.0])
    yield 2 * rng.normal(size=(3, 4))
    yield np.array([[-2.699, 2.699, -1.36], [1.36, -0.752, 0.1]])
    yield 1.5 * rng.normal(size=(2, 3, 5))
    yield np.array([-30.0, 30.0])


@exercise.solution
def gelus(x):
    """Return the exact GELU and its approximation by tanh."""
    from math import erf

    exact = x * (1 + np.vectorize(erf)(x / np.sqrt(2))) / 2
    z = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
    return [exact, x * (1 + np.tanh(z)) / 2]


@exercise.right
def number_by_number(x):
    """Compute every entry by itself."""
    exact, approximate = np.empty(x.shape), np.empty(x.shape)
    for at in np.ndindex(*x.shape):
        value = float(x[at])
        z = math.sqrt(2 / math.pi) * (value + 0.044715 * value**3)
        exact[at] = value * 0.5 * math.erfc(-value / math.sqrt(2))
        approximate[at] = value / (1 + math.exp(-2 * z)) if z > -300 else 0.0
    return [exact, approximate]


@exercise.right
def as_a_weighted_switch(x):
    """Compute the share of x that passes, in both forms."""
    share = np.array([math.erf(value / math.sqrt(2)) for value in x.ravel()])
    z = 0.7978845608028654 * x * (1 + 0.044715 * x * x)
    both = share.reshape(x.shape), np.tanh(z)
    return [0.5 * x + 0.5 * x * s for s in both]


def _exact(x):
    return x * (1 + np.vectorize(math.erf)(x / np.sqrt(2))) / 2


def _approximate(x, factor=0.7978845608028654, power=3):
    return x * (1 + np.tanh(factor * (x + 0.044715 * x**power))) / 2


@exercise.wrong(
    "You use erf(x) in the exact form. The normal distribution needs erf(x/√2); "
    "without the root, Φ belongs to a normal number of variance 1/2."
)
def erf_without_root(x):
    """Forget to divide by √2."""
    return [x * (1 + np.vectorize(math.erf)(x)) / 2, _approximate(x)]


@exercise.wrong(
    "You return Φ(x), the probability that x passes, in both forms. The GELU is x "
    "times that."
)
def switch_only(x):
    """Forget the factor x."""
    exact = (1 + np.vectorize(math.erf)(x / np.sqrt(2))) / 2
    return [exact, (1 + np.tanh(0.7978845608028654 * (x + 0.044715 * x**3))) / 2]


@exercise.wrong(
    "In z you use x² where x³ is wanted. An odd power keeps the two forms close on "
    "both sides of zero; with the square, the difference is not even."
)
def squared(x):
    """Use the square in the correction."""
    return [_exact(x), _approximate(x, power=2)]


@exercise.wrong(
    "The factor √(2/π) in z is missing. It gives the approximation the slope of Φ at "
    "zero; without it, the switch is too steep."
)
def without_factor(x):
    """Forget √(2/π)."""
    return [_exact(x), _approximate(x, factor=1.0)]


@exercise.wrong(
    "Your approximate form is x sigmoid(1.702 x), a cruder one. It is off by up to "
    "0.02; the form with tanh stays within 0.0005."
)
def sigmoid_form(x):
    """Use the sigmoid."""
    return [_exact(x), x / (1 + np.exp(-1.702 * x))]


@exercise.wrong(
    "Both of your results are the approximation. The first must be exact, with the "
    "error function: the two differ by up to 0.0005, and weights trained with one form "
    "expect that form."
)
def approximate_twice(x):
    """Return the approximation twice."""
    return [_approximate(x), _approximate(x)]


@exercise.wrong("In z you use 2/π without the root. The factor is √(2/π), about 0.798.")
def factor_without_root(x):
    """Forget the root of 2/π."""
    return [_exact(x), _approximate(x, factor=2 / np.pi)]


@exercise.wrong(
    "In z you take the root of 2 alone, √2/π. The root covers the whole fraction: "
    "√(2/π), about 0.798."
)
def root_of_two_only(x):
    """Divide √2 by π."""
    return [_exact(x), _approximate(x, factor=np.sqrt(2) / np.pi)]
