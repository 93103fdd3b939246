"""Network ports that go down, from what their node says the moment it sees it.

One finding a port, however often it falls. Down is a warning at once; a port that is up again before the next check is
information, until it happens again and again. Whoever stays down for minutes, alone, is to be inspected: work cannot
continue there. Two nodes that lose ports in the same half minute have lost a switch, and a drain would repair nothing.
The finding ends when the port was up without a break for ten minutes: less, and every loose cable would open it again.

A planned stop and a boot give nothing: ports that train are not ports that fail. If one does not come up after that,
its node reports it again (``down_seconds``).

The division of labour with ``mainstay.detectors.network.nic``: that one speaks of rates and error counters, this one of
up and down.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from mainstay.detectors.base import EventDetector
from mainstay.detectors.event_data import number
from mainstay.detectors.finding import Cause, Entity, Evidence, Finding, FindingKind
from mainstay.detectors.series import draw_series
from mainstay.probes.core_types import NIC_PREFIX, Event, EventKind, RecommendedAction, Severity
from mainstay.probes.recent import Recent

_DRAWN = 64  # falls drawn in the evidence


@dataclass(slots=True)
class _Port:
    """What is known of one port."""

    entity: Entity
    down: bool = False
    at: float = float("-inf")
    """When it last changed."""
    quiet_since: float = 0.0
    """When its last trouble was."""
    falls: list[tuple[float, int]] = field(default_factory=list)
    """(time, how many) since the finding began, the oldest summed up."""
    said: Severity | None = None
    """How severe the finding that holds is."""
    began: float = 0.0
    told: int = 0
    """Falls when it was last told."""

    @property
    def total(self) -> int:
        return sum(count for _, count in self.falls)


class LinksDetector(EventDetector):
    """Says ``nic_degraded`` of a port that is down, or goes down again and again."""

    name = "link_state"
    kinds = frozenset({FindingKind.NIC_DEGRADED})
    usual_action = RecommendedAction.MONITOR
    reads = frozenset({EventKind.LINK_DOWN, EventKind.LINK_UP, EventKind.NODE_STOPPING, EventKind.NODE_STARTED})

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Config:
        remembered: int = 4096
        """Event ids and ports kept: retries come within minutes; of ten thousand ports few are ever in trouble."""
        boot_grace_seconds: float = 600.0
        """Uptime below which a fall is training: when a whole cluster boots, its subnet manager needs minutes."""
        stopping_seconds: float = 900.0
        """How long an announced stop explains what its node says after it: an orderly shutdown takes minutes."""
        before_stop_seconds: float = 60.0
        """How long before its announcement a shutdown explains a fall: networks are stopped in any order."""
        burst_falls: int = 3
        """Falls within ``burst_seconds`` that are no accident: once is a transient, twice may be its echo."""
        burst_seconds: float = 600.0
        lasting_seconds: float = 120.0
        """Down for so long is broken: retraining takes 2-30 s, a reload of the driver 5-40 s. Other monitors call it
        critical after 30 s or unhealthy after four minutes."""
        together_seconds: float = 30.0
        """Two nodes that lose a port within this time share the cause: at ten falls a day in a large fleet, chance
        makes it so for one in a hundred."""
        steady_seconds: float = 600.0
        """Quiet that ends it; the sampler reports the end after the same time."""
        late_seconds: float = 60.0
        """How late news may be: a spool that waits for the network."""

    config: Config

    def reset(self) -> None:
        super().reset()
        self._ports: Recent[tuple[str | None, str | None], _Port] = Recent(self.config.remembered)
        self._stopping: Recent[str, float] = Recent(self.config.remembered)

    def update(self, events: Sequence[Event]) -> list[Finding]:
        """See ``EventDetector.update``. Any event of a node also tells how late it is there."""
        found: list[Finding] = []
        for event in events:
            steady = "steady_seconds" in event.data  # which says itself what is over
            found.extend(() if steady else self._quiet(event))
            found.extend(super().update([event]))
            found.extend(self._quiet(event) if steady else ())
        return found

    def advance_clock(self, now: float) -> list[Finding]:
        """See ``EventDetector.advance_clock``: what is up and quiet, with a minute for news that are on their way."""
        ports = [port for port in self._ports.values() if port.said is not None]
        return [*self._end_quiet(ports, now, self.config.steady_seconds + self.config.late_seconds)]

    def restore_findings(self, findings: Iterable[Finding]) -> None:
        """See ``EventDetector.adopt``: whether it is up again is unknown, so only its node can end it."""
        for finding in findings:
            key = (finding.entity.node, finding.entity.device)
            if finding.detector == self.name and finding.active and key not in self._ports:
                self._ports[key] = _Port(
                    finding.entity,
                    down=True,
                    at=finding.time,
                    quiet_since=finding.time,
                    said=finding.severity,
                    began=finding.time,
                )

    def _handle(self, event: Event) -> Iterator[Finding]:
        if not (event.node or event.device):
            return
        if event.kind is EventKind.LINK_DOWN:
            yield from self._down(event)
        elif event.kind is EventKind.LINK_UP:
            yield from self._up(event)
        elif event.node is not None and event.kind is EventKind.NODE_STARTED:
            self._stopping.pop(event.node, None)
        elif event.node is not None:
            yield from self._stop(event.node, event)

    def _down(self, event: Event) -> Iterator[Finding]:
        if self._planned(event):
            return
        port, data = self._port(event), event.data
        lasted = number(data.get("down_seconds"))
        if lasted is None:
            self._fell(port, event.time, max(1, int(number(data.get("flaps")) or 1)))
        if event.time >= port.at:
            port.down = data.get("back") is not True
            port.at = event.time if lasted is None else event.time - lasted
        port.quiet_since = max(port.quiet_since, event.time)
        severity = self._severity(port, event.time, lasted or 0.0, sure=data.get("source") != "kernel")
        if self._news(port, severity, lasted):
            yield self._say(port, severity, event, lasted)

    def _fell(self, port: _Port, time: float, count: int) -> None:
        if port.said is None:
            port.falls, port.told = [], 0
        port.falls.append((time, count))
        if len(port.falls) > _DRAWN:
            (t0, first), (_, second) = port.falls[:2]
            port.falls[:2] = [(t0, first + second)]

    def _severity(self, port: _Port, now: float, lasted: float, *, sure: bool) -> Severity:
        """``sure``: a sampler watches the port; a bare line of a log may concern an interface that was switched off."""
        if port.down and lasted >= self.config.lasting_seconds and not self._together(port):
            return Severity.CRITICAL
        recent = sum(count for time, count in port.falls if now - time <= self.config.burst_seconds)
        holds = port.said in {Severity.WARNING, Severity.CRITICAL}
        down = port.down and sure
        return Severity.WARNING if down or holds or recent >= self.config.burst_falls else Severity.INFO

    def _news(self, port: _Port, severity: Severity, lasted: float | None) -> bool:
        """Whether it is worth a word: a change, or twice as many falls as were last told."""
        return severity is not port.said or lasted is not None or port.total >= 2 * max(1, port.told)

    def _together(self, port: _Port) -> int:
        """How many other nodes lost a port when this one fell and have not got it back."""
        near = self.config.together_seconds
        others = (p for p in self._ports.values() if p.down and abs(p.at - port.at) <= near)
        return len({p.entity.node for p in others} - {port.entity.node})

    def _up(self, event: Event) -> Iterator[Finding]:
        steady = number(event.data.get("steady_seconds"))
        if steady is None:
            yield from self._came_up(event)
        elif steady >= self.config.steady_seconds:
            for device in event.data.get("links", [_device(event)]):
                # What is not remembered here may still hold in the store: it began before the events that we were
                # shown.
                port = self._ports.get((event.node, device)) or _Port(
                    Entity(node=event.node, device=device), said=Severity.INFO
                )
                if event.time >= port.quiet_since:
                    yield from self._end(port, event.time, f"was up for {_span(steady)} without a break")

    def _came_up(self, event: Event) -> Iterator[Finding]:
        port = self._ports.get((event.node, _device(event)))
        if port is None or event.time < port.at:
            return
        port.down, port.at = False, event.time
        port.quiet_since = max(port.quiet_since, event.time)
        if port.said is Severity.CRITICAL:
            yield self._say(port, Severity.WARNING, event, None)

    def _quiet(self, event: Event) -> Iterator[Finding]:
        """End what has been quiet for long enough by the clock of its own node."""
        if event.node is None or not self._ports:
            return
        yield from self._end_quiet(self._said_of(event.node), event.time, self.config.steady_seconds)

    def _end_quiet(self, ports: list[_Port], now: float, seconds: float) -> Iterator[Finding]:
        """End what is up and has been quiet for so long."""
        for port in ports:
            if not port.down and now - port.quiet_since >= seconds:
                yield from self._end(port, now, f"has been quiet for {_span(now - port.quiet_since)}")

    def _said_of(self, node: str) -> list[_Port]:
        """Ports of a node about which a finding holds."""
        return [port for port in self._ports.values() if port.said is not None and port.entity.node == node]

    def _stop(self, node: str, event: Event) -> Iterator[Finding]:
        self._stopping[node] = event.time
        if event.data.get("reason") != "shutdown":
            return
        for port in self._said_of(node):
            if 0.0 <= event.time - port.began <= self.config.before_stop_seconds:
                yield from self._end(port, event.time, "went down because its node was being stopped")

    def _planned(self, event: Event) -> bool:
        uptime = number(event.data.get("uptime"))
        if uptime is not None and uptime < self.config.boot_grace_seconds:
            return True
        stopping = self._stopping.get(event.node or "")
        return stopping is not None and 0.0 <= event.time - stopping <= self.config.stopping_seconds

    def _port(self, event: Event) -> _Port:
        key = (event.node, _device(event))
        port = self._ports.setdefault(key, _Port(Entity(node=key[0], device=key[1])))
        self._ports.move_to_end(key)
        return port

    def _end(self, port: _Port, time: float, why: str) -> Iterator[Finding]:
        self._ports.pop((port.entity.node, port.entity.device), None)
        if port.said is not None:
            summary = f"Port {port_name(port.entity)} {why}."
            yield replace(self._about(port, port.said, time, Evidence(summary=summary)), active=False)

    def _say(self, port: _Port, severity: Severity, event: Event, lasted: float | None) -> Finding:
        if port.said is None:
            port.began = event.time
        port.said, port.told = severity, port.total
        return replace(self._about(port, severity, event.time, self._evidence(port, event, lasted)), event=event.id)

    def _about(self, port: _Port, severity: Severity, time: float, evidence: Evidence) -> Finding:
        (kind,), action = self.kinds, RecommendedAction.INSPECT_NODE if severity is Severity.CRITICAL else None
        cause = Cause.NETWORK  # a port that falls has lost its cable or its switch
        return self._finding(
            kind, port.entity, time, evidence, severity=severity, recommended_action=action, cause=cause
        )

    def _evidence(self, port: _Port, event: Event, lasted: float | None) -> Evidence:
        falls = port.total
        numbers = {"falls": float(falls)}
        totals = accumulate(count for _, count in port.falls)
        series = draw_series("link_falls", "1", [time for time, _ in port.falls], list(totals))
        for name in ("since_up", "since_down", "down_seconds"):
            value = number(event.data.get(name))
            if value is not None:
                numbers[f"{name.removesuffix('_seconds')}_seconds"] = value
        return Evidence(summary=f"{self._sentence(port, event, lasted)}.", numbers=numbers, series=series)

    def _sentence(self, port: _Port, event: Event, lasted: float | None) -> str:
        name, falls = port_name(port.entity), port.total
        if lasted is not None:
            others = self._together(port)
            shared = f"; {others} other node(s) lost ports at the same time: look at the switch" if others else ""
            return f"Port {name} has been down for {_span(lasted)}{shared}"
        if falls > 1:
            span = event.time - port.falls[0][0]
            over = f" within {_span(span)}" if span >= 1.0 else " within a second"
            return f"Port {name} went down {falls} times{over}"
        if event.data.get("gone") is True:
            return f"Port {name} is gone: its driver no longer shows it"
        since, state = number(event.data.get("since_up")), event.data.get("state")
        after = "" if since is None else f" after {_span(since)}"
        back = ", and came back at once" if event.data.get("back") is True else ""
        return f"Port {name} went down{after}{back}" + (f" ({state})" if isinstance(state, str) and not back else "")


def _device(event: Event) -> str | None:
    """The port; a reporter that names only the link means the same."""
    link = event.data.get("link")
    return event.device or (f"{NIC_PREFIX}{link}" if isinstance(link, str) and link else None)


def port_name(entity: Entity) -> str:
    port = (entity.device or "of unknown name").removeprefix(NIC_PREFIX)
    return f"{port} of {entity.node}" if entity.node else port


def _span(seconds: float) -> str:
    """``7 s``, ``12 min``, ``3.5 h``."""
    if seconds < 120.0:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200.0 else f"{seconds / 3600:.3g} h"
