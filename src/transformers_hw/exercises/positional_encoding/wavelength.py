"""The slowest hand.

Sinusoidal encodings of width 8 with base 10000 have four hands, one for each pair of
coordinates. How many positions does the slowest hand need for a full turn? Give the
number to the nearest integer.
"""

import math

from transformers_hw.exercises.kinds import Number

exercise = Number(
    level="warm-up",
    read="positional_encoding#clock-hands",
    hints=(
        "The frequencies are 10000 ** (-2 i / 8) for i = 0, 1, 2, 3.",
        "A full turn is an angle of 2π radians.",
    ),
    tolerance=0.5,
)


@exercise.solution
def wavelength():
    """Return 2π divided by the smallest frequency, 10000 ** (-6 / 8) = 1/1000."""
    return 2 * math.pi * 10_000 ** (6 / 8)


@exercise.wrong(
    "That would be a hand of frequency 1/10000. The slowest of four has i = 3, so its "
    "exponent is -6/8, not -1."
)
def to_the_base():
    """Use the base itself."""
    return 2 * math.pi * 10_000


@exercise.wrong(
    "That is 1/ω, the positions for one radian. A full turn takes 2π times as many."
)
def one_radian():
    """Forget 2π."""
    return 10_000 ** (6 / 8)


@exercise.wrong(
    "That is the frequency ω of the slowest hand, in radians per position. The "
    "question asks how many positions make 2π radians."
)
def frequency():
    """Give the frequency."""
    return 10_000 ** (-6 / 8)


@exercise.wrong("That is the fastest hand, with i = 0 and ω = 1.")
def fastest():
    """Take the first hand."""
    return 2 * math.pi


@exercise.wrong(
    "You used the exponent -3/8. Each pair of coordinates has the exponent -2i / width."
)
def half_exponent():
    """Forget the factor two."""
    return 2 * math.pi * 10_000 ** (3 / 8)
