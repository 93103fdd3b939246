"""The part of ``/metrics`` that grows with the fleet: devices and nodes. Written when it is asked for, in a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ParamSpec, TypeVar

import numpy as np

from mainstay.probes.core_types import HealthState
from mainstay.probes.signals import SignalSource
from mainstay.service.exposition import devices, text
from mainstay.service.fleet.directory import Fleet
from mainstay.service.jobs.repository import current_keys
from mainstay.service.services import Services

P = ParamSpec("P")
T = TypeVar("T")


@dataclass
class FleetPage:
    """Series of every device and node. Labels are kept until a device, node, or job comes or changes."""

    services: Services
    form: devices.Form = text
    _kept: dict[Callable[..., Any], tuple[object, Any]] = field(default_factory=dict, init=False, repr=False)

    def parts(self, at: int | None = None) -> Iterator[bytes]:
        """The page, a family at a time; nothing where all of it is switched off.

        Only the first of them reads the database.

        Args:
            at: an earlier Unix second, of which only what the ring holds is known.
        """
        wanted, form = self.services.settings.exposition, self.form
        latest = devices.Latest(self.services.ring, self.services.clock, wanted.stale_seconds, at)
        with self.services.database.reading() as session:
            fleet = self.services.fleet.current(session)
            key = (fleet.layout, current_keys(session), form.stamp)
            placed = self._keep(devices.jobs, key, session, fleet, form) if wanted.gpus and at is None else b""
        if wanted.nodes and at is None:
            yield _states(fleet, form)
        if wanted.gpus:
            yield placed
            cards = lambda some: self._keep(devices.cards, (fleet.layout, some), some, fleet, form)  # noqa: E731
            yield from devices.gpus(latest, cards, form)
        if wanted.hosts:
            yield from devices.signals(SignalSource.HOST, latest, partial(self._labels, devices.host_labels), form)
        if wanted.ports:
            yield from devices.signals(SignalSource.NIC, latest, partial(self._labels, devices.port_labels), form)

    def _labels(
        self, make: Callable[[devices.Columns, devices.Form], devices.Labels], columns: devices.Columns
    ) -> devices.Labels:
        return self._keep(make, columns, columns, self.form)

    def _keep(self, make: Callable[P, T], key: object, *args: P.args, **kwargs: P.kwargs) -> T:
        """What ``make`` gives, made again only if the key is another."""
        held = self._kept.get(make)
        if held is None or held[0] != key:
            held = self._kept[make] = (key, make(*args, **kwargs))
        made: T = held[1]
        return made


def _states(fleet: Fleet, form: devices.Form) -> Any:
    """One series for every state a node could be in, 1 for the one it is in (OpenMetrics calls it a StateSet)."""
    names, states = list(fleet.nodes), [state.value for state in HealthState]
    held = np.array([node.state for node in fleet.nodes.values()], str)
    where = form.labels({"node": [name for name in names for _ in states], "state": states * len(names)})
    values = (held[:, None] == np.array(states)).ravel().astype(np.int64)
    return form.family("mainstay_node_state", "gauge", "1 for the state that a node is in", where, values)
