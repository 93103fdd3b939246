"""The part of ``/metrics`` that grows with the fleet: devices and nodes. Written when it is asked for, in a thread."""

from __future__ import annotations

from collections.abc import Iterator

from mainstay.probes.core_types import HealthState
from mainstay.probes.signals import SignalSource
from mainstay.service.exposition import devices, text
from mainstay.service.fleet.directory import Fleet
from mainstay.service.services import Services


def page(services: Services) -> bytes:
    """Prometheus text of every device and node; empty when all of it is switched off."""
    return "".join(_parts(services)).encode()


def _parts(services: Services) -> Iterator[str]:
    wanted = services.settings.exposition
    read = devices.reader(services.ring, services.clock.now(), wanted.stale_seconds)
    with services.database.reading() as session:
        fleet = services.fleet.current(session)
        known = devices.cards(fleet) if wanted.gpus else {}
        states = _states(fleet) if wanted.nodes else ""
        placed = devices.jobs(session, known) if wanted.gpus else ""
    yield from (states, placed)
    if wanted.gpus:
        yield from devices.gpus(read(SignalSource.GPU), known)
    if wanted.hosts:
        yield from devices.hosts(read(SignalSource.HOST))
    if wanted.ports:
        yield from devices.ports(read(SignalSource.NIC))


def _states(fleet: Fleet) -> str:
    """One series for every state a node could be in, 1 for the one it is in (OpenMetrics calls it a StateSet)."""
    lines = [
        (text.labels({"node": node.name, "state": state.value}), float(node.state == state.value))
        for node in fleet.nodes.values()
        for state in HealthState
    ]
    return text.family("mainstay_node_state", "gauge", "1 for the state that a node is in", lines)
