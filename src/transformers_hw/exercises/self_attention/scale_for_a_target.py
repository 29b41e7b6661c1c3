"""How large a scale?

A head gives its target the score β and each of the nine other tokens the score 0. How
large must β be for the target to get 99% of the weight? Give β to two decimals.
"""

import math

from transformers_hw.exercises.kinds import Number

exercise = Number(
    level="warm-up",
    read="self_attention#three-tokens-by-hand",
    hints=(
        "The weight of the target is exp(β) / (exp(β) + 9).",
        "Solve for exp(β) first, then take the logarithm.",
    ),
    tolerance=0.006,
)


@exercise.solution
def scale():
    """Return log(9 · 0.99 / 0.01)."""
    return math.log(9 * 0.99 / 0.01)


@exercise.wrong("Nine other tokens share the rest, not one: exp(β) / (exp(β) + 9).")
def one_other():
    """Forget the number of tokens."""
    return math.log(0.99 / 0.01)


@exercise.wrong("There are ten tokens in all, so nine others, not ten.")
def ten_others():
    """Count the target among the others."""
    return math.log(10 * 0.99 / 0.01)


@exercise.wrong("That is exp(β). Take its logarithm to get β.")
def not_a_logarithm():
    """Give the exponential."""
    return 9 * 0.99 / 0.01


@exercise.wrong("You used a logarithm to base 10; the softmax uses e.")
def base_ten():
    """Take the logarithm to base 10."""
    return math.log10(9 * 0.99 / 0.01)
