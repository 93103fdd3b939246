"""Which errors of a step leave the process alive."""

from __future__ import annotations

from typing import Any

import pytest

import mainstay
from mainstay.recovery.sdk.failures import RetryStep, transient


class FlakyError(OSError):
    """A script's own."""


def test_retry_always_and_what_the_script_names() -> None:
    kinds = transient([FlakyError])
    assert isinstance(RetryStep("once more"), kinds)
    assert isinstance(FlakyError(), kinds)
    assert not isinstance(OSError(), kinds)
    assert not isinstance(FlakyError(), transient([]))
    assert mainstay.RetryStep is RetryStep


@pytest.mark.parametrize("wrong", [int, KeyboardInterrupt, "OSError", OSError()])
def test_what_is_no_class_of_exceptions_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"retry: .* is no class of exceptions"):
        transient([wrong])
