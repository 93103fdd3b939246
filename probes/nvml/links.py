"""The NVLinks of one card: states and counters of every link in one batched call, and which link is the worst.

Totals are sums over all links, given only when every link that ever answered answers: a link that is silent for one
reading must not look like a counter that fell. A counter that fell was reset: that reading has no worst link, because
the count before it is unknown. Errors a second are weighed by ``fields.LINK_FIELDS``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mainstay.probes.nvml.batch import FieldBatch, Key
from mainstay.probes.nvml.errors import NeverError, call_driver
from mainstay.probes.nvml.fields import LINK_CALLS, LINK_COUNT, LINK_FIELDS, LINK_STATE

_MAX_LINKS: Final = 36


class Links:
    """Reads them. Nothing is asked of a card that has none."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._count: int | None = None
        self._batch: FieldBatch | None = None
        self._state_calls = self._error_calls = True
        self._known: set[Key] = set()
        self._before: tuple[float, Mapping[Key, float]] | None = None
        self._active = 0

    def read(self, t: float, handle: Any) -> dict[str, float]:
        """Signals of the links at ``t``; rates need a reading before.

        Raises:
            StaleError, GoneError: see ``mainstay.probes.nvml.errors``.
        """
        if self._count is None:
            self._count = self._find(handle)
            self._batch = self._all_fields()
        if not self._count or self._batch is None:
            return {}
        answers = self._batch.read(handle)
        states = self._states(handle, answers)
        counters = {key: value for key, value in answers.items() if key[0] != LINK_STATE}
        if not counters:
            counters = self._call_counters(handle)
        readings = {**self._up(states), **self._totals(counters), **self._worst(t, counters)}
        self._before = (t, counters)
        return readings

    def _find(self, handle: Any) -> int:
        count = FieldBatch(self._nvml, [(LINK_COUNT, 0)]).read(handle).get((LINK_COUNT, 0))
        if count is not None:
            return min(int(count), _MAX_LINKS)
        found = 0
        while found < _MAX_LINKS and self._call_state(handle, found) is not None:
            found += 1
        return found

    def _all_fields(self) -> FieldBatch:
        links = range(self._count or 0)
        return FieldBatch(self._nvml, [(field, link) for field in (LINK_STATE, *LINK_FIELDS) for link in links])

    def _states(self, handle: Any, answers: Mapping[Key, float]) -> list[float]:
        """The state of each link that tells it: 0 down, else up (or asleep to save power, which is up)."""
        told = [value for key, value in answers.items() if key[0] == LINK_STATE]
        if told or not self._state_calls:
            return told
        called = [self._call_state(handle, link) for link in range(self._count or 0)]
        self._state_calls = any(state is not None for state in called)
        return [state for state in called if state is not None]

    def _call_state(self, handle: Any, link: int) -> float | None:
        return self._call("nvmlDeviceGetNvLinkState", handle, link)

    def _call_counters(self, handle: Any) -> dict[Key, float]:
        """The old way: one call a link and counter."""
        counters: dict[Key, float] = {}
        for field, number in LINK_CALLS.items() if self._error_calls else ():
            for link in range(self._count or 0):
                value = self._call("nvmlDeviceGetNvLinkErrorCounter", handle, link, number)
                if value is None:
                    break
                counters[field, link] = value
        self._error_calls = bool(counters)
        return counters

    def _call(self, name: str, *arguments: Any) -> float | None:
        """What one of the driver's calls answers; None when it does not."""
        try:
            return call_driver(self._nvml, lambda: float(getattr(self._nvml, name)(*arguments)))
        except NeverError:
            return None

    def _up(self, states: list[float]) -> dict[str, float]:
        if not states:
            return {}
        active = sum(state > 0 for state in states)
        if active > self._active and self._before is not None:
            self._batch = self._all_fields()  # a link that was down may not have had counters then
        self._active = active
        return {"gpu_nvlinks_active": float(active), "gpu_nvlinks_supported": float(len(states))}

    def _totals(self, counters: Mapping[Key, float]) -> dict[str, float]:
        asked = set(self._batch.keys) if self._batch is not None else set()
        self._known = (self._known & asked) | counters.keys()
        if len(counters) < len(self._known):
            return {}
        totals: dict[str, float] = {}
        for (field, _), value in counters.items():
            if (name := LINK_FIELDS[field][0]) is not None:
                totals[name] = totals.get(name, 0.0) + value
        return totals

    def _worst(self, t: float, counters: Mapping[Key, float]) -> dict[str, float]:
        """The link with most errors a second since the last reading; with none at all there is no worst link."""
        if self._before is None or not counters or t <= self._before[0]:
            return {}
        since, before = self._before
        errors: dict[int, float] = {}
        for (field, link), value in counters.items():
            grown = value - before.get((field, link), value)
            if grown < 0:
                return {}
            errors[link] = errors.get(link, 0.0) + grown * LINK_FIELDS[field][1]
        worst = max(errors, key=lambda link: errors[link])
        rate = {"gpu_nvlink_worst_link_errors_per_second": errors[worst] / (t - since)}
        return {"gpu_nvlink_worst_link": float(worst), **rate} if errors[worst] else rate
