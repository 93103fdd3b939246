"""What NVML's return codes mean to a sampler. The numbers are NVML's binary interface and do not change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

T = TypeVar("T")

SUCCESS: Final = 0
INSUFFICIENT_SIZE: Final = 7
TIMEOUT: Final = 10
FUNCTION_NOT_FOUND: Final = 13
GPU_IS_LOST: Final = 15
RESET_REQUIRED: Final = 16
UNKNOWN: Final = 999

NEVER: Final = frozenset({2, 3, 4, FUNCTION_NOT_FOUND, 25, 26})
"""Invalid argument, not supported, no permission, function not found, version mismatch, deprecated: no fault, and the
next call would say the same."""
STALE: Final = frozenset({1, 9, 18})
"""Uninitialized, driver not loaded, library and driver of different versions: the library must be reopened."""
GONE: Final = frozenset({GPU_IS_LOST, RESET_REQUIRED})
"""The card itself is in trouble."""


class StaleError(Exception):
    """The library must be reopened: the driver was unloaded or replaced."""


class GoneError(Exception):
    """The card does not answer: lost, or it wants a reset."""

    def __init__(self, code: int) -> None:
        super().__init__(f"NVML return code {code}")
        self.code = code


class NeverError(Exception):
    """This call will not be answered however often it is made."""


def check(code: int) -> None:
    """Raise the error that ``code`` means; do nothing for success and for transient errors.

    Raises:
        StaleError: reopen the library.
        GoneError: the card is lost or wants a reset.
        NeverError: do not ask again.
    """
    if code in GONE:
        raise GoneError(code)
    if code in STALE:
        raise StaleError(f"NVML return code {code}")
    if code in NEVER:
        raise NeverError(f"NVML return code {code}")


def call_driver(nvml: Any, call: Callable[[], T]) -> T | None:
    """Make one call of ``nvml``. None when it did not answer this time.

    Raises:
        StaleError, GoneError, NeverError: as ``check``; NeverError also when this pynvml is too old to know the call.
    """
    try:
        return call()
    except nvml.NVMLError as error:
        check(error.value)
        return None
    except AttributeError as error:
        raise NeverError(str(error)) from error
