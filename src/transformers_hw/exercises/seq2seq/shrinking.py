"""Ten steps back.

A recurrent layer has a single unit, h_t = tanh(1.25 h_{t-1} + x_t). The inputs happen
to keep its state at h_t = 0.6 in every step. By which factor is a gradient multiplied
when it goes back ten steps, from h_10 to h_0? Give it to three decimals.
"""

from transformers_hw.exercises.kinds import Number

exercise = Number(
    level="core",
    read="seq2seq#backpropagation-through-time",
    hints=(
        "The derivative of one step is the weight times the slope of tanh.",
        "The slope of tanh, where its value is h, is 1 - h².",
        "There are ten factors, and all of them are equal.",
    ),
    tolerance=0.001,
    questions=("eecs-1a",),
)


@exercise.solution
def factor():
    """Return (1.25 · (1 - 0.6²))¹⁰ = 0.8¹⁰."""
    return (1.25 * (1 - 0.6**2)) ** 10


@exercise.wrong(
    "You multiplied the weights only, and found an exploding gradient. At h = 0.6 the "
    "slope of tanh is 1 - 0.36 = 0.64, and every step contributes it, too."
)
def weights_only():
    """Forget the slopes."""
    return 1.25**10


@exercise.wrong(
    "The slope is counted once. Each of the ten steps passes through its own tanh, so "
    "there are ten slopes."
)
def one_slope():
    """Use the slope once."""
    return 1.25**10 * (1 - 0.6**2)


@exercise.wrong(
    "You took the slope as 1 - h. The derivative of tanh is 1 - tanh², so it is 1 - h²."
)
def slope_without_square():
    """Forget the square."""
    return (1.25 * (1 - 0.6)) ** 10


@exercise.wrong(
    "That is the factor of one step. Ten steps give a product of ten such factors."
)
def one_step():
    """Give the derivative of a single step."""
    return 1.25 * (1 - 0.6**2)


@exercise.wrong("You went back through nine steps: from h_10 to h_0 there are ten.")
def nine_steps():
    """Count the states in between."""
    return (1.25 * (1 - 0.6**2)) ** 9


@exercise.wrong(
    "You multiplied the slopes of tanh only. Each step also multiplies by the weight, "
    "1.25."
)
def slopes_only():
    """Forget the weight."""
    return 0.64**10
