"""Which errors of a step leave the process alive."""

from __future__ import annotations

from typing import Any

import pytest

import mainstay
from recovery.sdk.failures import Retry, transient


class FlakyError(OSError):
    """A script's own."""


def test_retry_always_and_what_the_script_names() -> None:
    kinds = transient([FlakyError])
    assert isinstance(Retry("once more"), kinds)
    assert isinstance(FlakyError(), kinds)
    assert not isinstance(OSError(), kinds)
    assert not isinstance(FlakyError(), transient([]))
    assert mainstay.Retry is Retry


@pytest.mark.parametrize("wrong", [int, KeyboardInterrupt, "OSError", OSError()])
def test_what_is_no_class_of_exceptions_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"retry: .* is no class of exceptions"):
        transient([wrong])
