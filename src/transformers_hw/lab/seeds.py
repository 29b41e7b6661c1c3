"""Randomness as a pure function of a seed and of where a run stands.

No generator lives from one step to the next. What is drawn at a step depends on the
seed and the step's number alone, so a run that is taken up again draws what it would
have drawn, with nothing to restore.
"""

import hashlib

import torch


def derived_seed(*key: str | int) -> int:
    """Turn a purpose and numbers into a seed, unlike that of any other key.

    Args:
        *key: Such as `"order", seed, epoch`.

    Returns:
        A number of 63 bits.

    Examples:
        >>> derived_seed("order", 0, 1) == derived_seed("order", 0, 1)
        True
        >>> derived_seed("order", 0, 1) == derived_seed("order", 1, 0)
        False
    """
    digest = hashlib.sha256(repr(key).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def seeded_generator(*key: str | int) -> torch.Generator:
    """Give a generator for a purpose.

    It draws on the CPU, so that runs draw the same on every device.

    Args:
        *key: As for [`derived_seed`][transformers_hw.lab.seeds.derived_seed].
    """
    return torch.Generator().manual_seed(derived_seed(*key))
