"""What all tests share: fixed seeds, and the two ways of running them."""

import pytest
import torch


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Run `unhooked` tests without the type-checking import hook, all others with it.

    The hook wraps every function, which `torch.compile(fullgraph=True)` does not
    follow, and speaks up before the package's own error messages can.
    """
    hooked = bool(config.getoption("jaxtyping_packages"))
    chosen, others = [], []
    for item in items:
        unhooked = item.get_closest_marker("unhooked") is not None
        (others if unhooked == hooked else chosen).append(item)
    items[:] = chosen
    if others:
        config.hook.pytest_deselected(items=others)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
