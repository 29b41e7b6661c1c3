"""Malformed calls and the errors they get: one table beside each chapter's tests."""

import re
from collections.abc import Callable

import pytest

# What is wrong; the call; the error; its message, with … for what is left out.
Row = tuple[str, Callable[[], object], type[Exception], str]


def bad_calls(*rows: Row) -> pytest.MarkDecorator:
    """Parametrize a test over malformed calls.

    They run without the import hook, as for anyone who installs the package: under
    the hook, the type checker might raise before the package does.
    """
    names = [row[0] for row in rows]
    return pytest.mark.parametrize(
        ("call", "error", "message"), [row[1:] for row in rows], ids=names
    )


def assert_refused(
    call: Callable[[], object], error: type[Exception], message: str
) -> None:
    """Check the type of the error and what it says."""
    with pytest.raises(error) as caught:
        call()
    # No subclass: an IndexError from within would be one that slipped through.
    assert caught.type is error
    pattern = ".*".join(re.escape(part.strip()) for part in message.split("…"))
    assert re.search(pattern, str(caught.value)), str(caught.value)
