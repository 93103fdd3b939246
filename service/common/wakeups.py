"""Wake-up calls between features of one process, by name: the caller does not know the listeners.

No feature may depend on the arrival of a call: each listener also polls from time to time.
"""

from __future__ import annotations

from collections.abc import Callable


class WakeupRegistry:
    """Names of loops and how to wake them."""

    def __init__(self) -> None:
        self._calls: dict[str, Callable[[], None]] = {}

    def listen(self, name: str, call: Callable[[], None]) -> None:
        self._calls[name] = call

    def wake(self, name: str) -> None:
        call = self._calls.get(name)
        if call is not None:
            call()
