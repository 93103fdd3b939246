"""Events of one network port, derived from the samples of each second. No I/O, no clock.

A port that was never seen up is not in use and has no events. A change is reported when it is seen; a port that
changes without end is reported a few times and then summed up, so a burst of flaps stays a handful of events. When a
driver is reloaded, the port trains again: that is a start, not a failure, and is reported only if it does not come up.

The events, always with ``link``:

* ``LINK_DOWN`` with ``since_up`` (s it had been up); ``flaps``, how often, where it went down more than once;
  ``back`` where it is up again already; ``down_seconds`` when it is reported again because it lasts; ``gone`` when the
  driver no longer shows the port.
* ``LINK_UP`` with ``since_down`` (s); with ``steady_seconds`` when a port that had trouble has been up for that long.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from mainstay.probes.core_types import EventKind

STEADY_S: Final = 600.0
"""Up without a break for this long is over it. Loose optics and bad cables come back within minutes; ten minutes is
also what gpud holds a flap for."""
TRAINING_S: Final = 60.0
"""A port needs 2-30 s to train after its driver was loaded, and a subnet manager some more to activate it."""
GONE_S: Final = 60.0
"""Reloading the driver takes all ports away for 5-40 s."""
_AGAIN_S: Final = (120.0, 900.0)
"""A port that stays down is reported again: after two minutes it is no flap; after fifteen no boot is behind it
either."""
_BURST: Final = 6.0
_REFILL_S: Final = 10.0
"""Changes told at once, and how often after that: ten flaps a second drowned another monitor's store."""

Said = tuple[EventKind, dict[str, Any]]


@dataclass(slots=True)
class PortWatch:
    """The memory of one port. Times are Unix seconds and do not fall."""

    link: str
    used: bool = False
    """Whether it was ever seen up."""
    up: bool = False
    """As last told."""
    troubled: bool = False
    """Whether something was told that a steady port takes back."""
    _now: bool = False
    """As last seen, ``_since`` when; ``_spell`` is how long the state before that had lasted."""
    _since: float = 0.0
    _spell: float = 0.0
    _seen_down: bool = False
    _drops: int = 0
    """How often it went down without a report yet."""
    _counted: int | None = None
    _training_until: float = 0.0
    _missing_since: float | None = None
    _said_again: int = 0
    _tokens: float = _BURST
    _refilled: float = 0.0

    def see(self, t: float, *, up: bool | None, down_count: int | None) -> Iterator[Said]:
        """Take one look in. ``None`` was not readable.

        Args:
            t: when.
            up: whether the port is usable.
            down_count: how often the hardware counted it down since its driver was loaded.
        """
        self._missing_since = None
        counted = self._count(down_count)
        if up is None or (t < self._training_until and not up):
            return
        if t < self._training_until:
            self._training_until = t  # trained: from here on it is watched again
            counted = 0
        if not self.used:
            # Whoever watched before us may have told of its fall: when it is steady, that is to be taken back.
            self.used, self.troubled = up, self._seen_down and up
            self._seen_down |= not up
            self.up, self._now, self._since = up, up, t
            return
        self._note(t, up, counted)
        yield from self._changes(t)
        yield from self._lasting(t)

    def missing(self, t: float) -> Iterator[Said]:
        """The driver does not show the port at ``t``."""
        self._counted = None
        if self._missing_since is None:
            self._missing_since = t
        if self.up and t - self._missing_since >= GONE_S:
            self._move(self._missing_since, up=False)
            self.up, self.troubled = False, True
            yield self._said(EventKind.LINK_DOWN, gone=True, since_up=self._spell)

    def renewed(self, t: float) -> None:
        """The driver was reloaded: counters start again, and so does training."""
        self._counted = None
        self._training_until = t + TRAINING_S

    def steady(self, t: float) -> bool:
        """Whether it is in use, was up all the time for ``STEADY_S``, and was told so."""
        return self.up and self._now and not self.troubled and t - self._since >= STEADY_S

    def _count(self, down_count: int | None) -> int:
        if down_count is None:
            return 0
        before, self._counted = self._counted, down_count
        return 0 if before is None else max(0, down_count - before)

    def _note(self, t: float, up: bool, counted: int) -> None:
        # A port that was down already cannot go down: its counter only lagged behind its state.
        drops = max(counted, int(not up)) if self._now else max(0, counted - 1)
        self._drops += drops
        if up is not self._now or drops:
            self._move(t, up=up)

    def _move(self, t: float, *, up: bool) -> None:
        self._spell, self._since = max(0.0, t - self._since), t
        self._now, self._said_again = up, 0

    def _changes(self, t: float) -> Iterator[Said]:
        self._tokens = min(_BURST, self._tokens + max(0.0, t - self._refilled) / _REFILL_S)
        self._refilled = t
        if (self.up is self._now and not self._drops) or self._tokens < 1.0:
            return
        self._tokens -= 1.0
        drops, self._drops = self._drops, 0
        brief = self.up and self._now
        flaps = {"flaps": drops} if brief or drops > 1 else {}
        if self.up:
            self.troubled = True
            back = {"back": True} if brief else {}
            yield self._said(EventKind.LINK_DOWN, since_up=self._spell, **flaps, **back)
        if self._now:
            yield self._said(EventKind.LINK_UP, since_down=0.0 if brief else self._spell, **({} if brief else flaps))
        self.up = self._now

    def _lasting(self, t: float) -> Iterator[Said]:
        lasted = t - self._since
        if not self.up and not self._now and self._said_again < len(_AGAIN_S) and lasted >= _AGAIN_S[self._said_again]:
            self._said_again += 1
            yield self._said(EventKind.LINK_DOWN, down_seconds=lasted)
        if self.up and self._now and self.troubled and lasted >= STEADY_S:
            self.troubled = False
            yield self._said(EventKind.LINK_UP, steady_seconds=lasted)

    def _said(self, kind: EventKind, **data: Any) -> Said:
        rounded = {name: round(value, 3) if isinstance(value, float) else value for name, value in data.items()}
        return kind, {"link": self.link, **rounded}
