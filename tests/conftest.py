"""What all tests share: fixed seeds, and the two ways of running them."""

import pytest
import torch
from einops import rearrange

# einops notes each kind of tensor it meets, which torch.export would report as a side
# effect of the module that it happens to be exporting.
rearrange(torch.zeros(1), "a -> a 1")
rearrange(torch.nn.Parameter(torch.zeros(1)), "a -> a 1")


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
        if "compile" in item.name or "export" in item.name:
            # Coverage would trace the tracing, at three times the cost.
            item.add_marker("no_cover")
        unhooked = item.get_closest_marker("unhooked") is not None
        (others if unhooked == hooked else chosen).append(item)
    items[:] = chosen
    if others:
        config.hook.pytest_deselected(items=others)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many of PyTorch's own cases ran, and which did not apply."""
    passed = terminalreporter.stats.get("passed", [])
    lines = [
        text
        for report in passed
        for name, text in report.user_properties
        if name == "cases"
    ]
    if lines:
        terminalreporter.section("PyTorch's own cases")
        for line in sorted(lines):
            terminalreporter.write_line(line)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
