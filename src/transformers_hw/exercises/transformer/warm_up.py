"""Twice the same rate.

The learning rate of the base model rises linearly from 0 for 4000 steps. Then it falls
in proportion to 1/√t, where t counts all steps from the start of training. At step
1000 the rate is still rising. At which later step is it the same again?
"""

from transformers_hw.exercises.kinds import Number

exercise = Number(
    level="warm-up",
    read="transformer#training",
    hints=(
        "What share of the peak is the rate at step 1000?",
        "On the way down, the rate at step t is √(4000/t) times the peak.",
    ),
    tolerance=0.5,
)


@exercise.solution
def step():
    """Return the t with √(4000 / t) = 1000 / 4000."""
    return 4000 * (4000 / 1000) ** 2


@exercise.wrong(
    "You let the rate fall as 1/t. It falls as 1/√t, more slowly: at step 16,000 it is "
    "still at half of its peak."
)
def inverse():
    """Use 1/t on the way down."""
    return 4000 * (4000 / 1000)


@exercise.wrong(
    "You took the root of 4 where its square is needed. To bring 1/√t down to a "
    "quarter, t must grow by a factor of 16."
)
def root():
    """Take a root instead of a square."""
    return 4000 * (4000 / 1000) ** 0.5


@exercise.wrong(
    "You mirrored the rise at the peak, as if the rate fell linearly. It rises fast "
    "and falls slowly, as 1/√t."
)
def mirrored():
    """Go down as fast as up."""
    return 4000 + (4000 - 1000)


@exercise.wrong(
    "You counted from the peak on. In 1/√t, the step t is counted from the start "
    "of training."
)
def from_the_peak():
    """Count steps from the peak."""
    return 4000 + 4000 * (4000 / 1000) ** 2
