"""Wake-up calls between features, by name: the caller does not know the listeners.

No feature may depend on the arrival of a call: each listener also polls from time to time. On PostgreSQL,
``SharedWakeups`` lets a call reach the listeners in other processes too.
"""

from __future__ import annotations

from collections.abc import Callable


class WakeupRegistry:
    """Names of loops and how to wake them."""

    def __init__(self) -> None:
        self._calls: dict[str, Callable[[], None]] = {}
        self._only_here: set[str] = set()
        self.forward: Callable[[str], None] = lambda _name: None
        """Tells other processes; must not wait."""

    def listen(self, name: str, call: Callable[[], None], *, only_here: bool = False) -> None:
        """Run ``call`` whenever ``name`` is woken; ``only_here`` if other processes need not hear of it."""
        self._calls[name] = call
        if only_here:
            self._only_here.add(name)

    def wake(self, name: str) -> None:
        self.wake_here(name)
        if name not in self._only_here:
            self.forward(name)

    def wake_here(self, name: str) -> None:
        """Wake the listener of this process alone."""
        call = self._calls.get(name)
        if call is not None:
            call()
