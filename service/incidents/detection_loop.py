"""The detection loop turns events and measurements into incidents: once a second, and at once for a new event.

Invariant: nothing is judged twice and nothing is lost. An event is claimed in the transaction that judges it, so a
crash leaves it for the next turn; findings of the array detectors wait in memory until they are stored. After a restart
the event detectors are shown the recent events again, and what was found before the restart holds until the detectors
have looked long enough to say otherwise. One judge runs in a service; a second one would find every event claimed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final

from sqlalchemy.exc import OperationalError

from mainstay.detectors.finding import Evidence, Finding
from mainstay.detectors.gpu.xid import XidDetector
from mainstay.detectors.registry import ARRAY_DETECTORS, EVENT_DETECTORS
from mainstay.probes.core_types import Event
from mainstay.service.common.db import AnySession
from mainstay.service.common.loops import Loop
from mainstay.service.events import repository as events
from mainstay.service.events.models import EventRow
from mainstay.service.fleet.directory import Fleet as Directory
from mainstay.service.incidents import deadlines, finding_ingest, repository
from mainstay.service.incidents import findings as wire
from mainstay.service.incidents.detector_runner import DetectorRunner, Fleet
from mainstay.service.incidents.job_detectors import OF_JOBS, JobStores
from mainstay.service.incidents.recovery_progress import Context, follow, is_followed
from mainstay.service.incidents.runs import Runs, Switches
from mainstay.service.incidents.service import IncidentChangedError
from mainstay.service.services import Services
from mainstay.service.settings import IncidentSettings
from mainstay.service.sources.dcgm.frames import VERSION as EXPORTER
from mainstay.service.telemetry.ring import Column
from mainstay.service.xid_policies.live import LivePolicy

_log: Final = logging.getLogger(__name__)
BATCH: Final = 100
"""Events in one transaction: one look at what holds for a burst, and a short time during which other writers wait."""
FINDINGS: Final = 500
"""Findings in one transaction: when a whole fleet stops reporting, others write in between."""
REPLAYED: Final = 4096
"""Events shown again after a restart: what the event detectors themselves remember."""
SETTLE_SECONDS: Final = 60.0
"""How long any detector looks before silence about an inherited finding means that it is over (some look for longer,
``ArrayDetector.settle_seconds``): calm ends an outlier after 30 samples, and a heartbeat is trusted after 10 s."""


class DetectionLoop:
    """The state of judging; its loop is the only caller."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._detectors = [cls() for cls in EVENT_DETECTORS.values()]
        xids = next(detector for detector in self._detectors if isinstance(detector, XidDetector))
        self._policy = LivePolicy(services.database, xids)
        stores = JobStores(steps=services.steps, progress=services.progress, pairs=services.pairs)
        self._watch = DetectorRunner(services.ring, stores, services.accounts)
        self._runs = Runs()
        self._switches: Switches = {}
        self._said: dict[str, list[Finding]] = {}
        """Findings of events whose transaction has not been committed."""
        self._pending: list[Finding] = []
        """Findings from measurements that are not stored yet."""
        self._inherited: dict[str, Finding] = {}
        self._began: float | None = None
        self._measured_at = 0.0
        self._fleet, self._layout = Fleet(), -1
        self._cohorts: Mapping[Column, str] = {}

    def run_once(self) -> None:
        """One look: events first, then (once an interval) measurements and deadlines."""
        now = self._services.clock.now()
        if self._began is None:
            self._restore(now)
            self._began = now
        while self._judge_events():
            if self._services.clock.now() - now >= self._settings.detection_interval_seconds:
                self._services.wakers.wake("judge")  # measurements have their turn, then come the other events
                break
        if now - self._measured_at >= self._settings.detection_interval_seconds or now < self._measured_at:
            self._measured_at = now
            self._judge_measurements(now)
            self._pass_time(now)

    @property
    def _settings(self) -> IncidentSettings:
        return self._services.settings.incidents

    # after a restart

    def _restore(self, now: float) -> None:
        """Show the event detectors what they had seen; remember what the array detectors had found."""
        with self._services.database.reading() as session:
            active = [wire.from_row(row) for row in repository.active_findings(session)]
            since = min([now - self._settings.event_lookback_seconds, *(finding.time for finding in active)])
            seen = [events.to_event(row) for row in events.judged_since(session, since, REPLAYED)]
            self._policy.restore(session, now)
        for detector in self._detectors:
            detector.update(seen)
            detector.restore_findings(active)
        self._inherited = {f.key: f for f in active if f.detector in ARRAY_DETECTORS}

    def _disown(self, fleet: Fleet, found: Sequence[Finding], now: float) -> list[Finding]:
        """Inherited findings that no detector repeated although it had enough time to look at their entity."""
        for finding in found:
            self._inherited.pop(finding.key, None)
        assert self._began is not None
        looked = now - self._began
        if not self._inherited or looked < SETTLE_SECONDS:
            return []
        settled = [f for f in self._inherited.values() if looked >= ARRAY_DETECTORS[f.detector].settling_seconds]
        over = [f for f in settled if self._looked_at(f, fleet, now)]
        for finding in over:
            del self._inherited[finding.key]
        evidence = Evidence(summary="It no longer holds since the service restarted.")
        return [_ended(finding, evidence, now) for finding in over]

    def _looked_at(self, finding: Finding, fleet: Fleet, now: float) -> bool:
        """Whether its detector could have seen it: its node speaks, or samples of its job are judged.

        No detector looks again at a job that has ended.
        """
        feed, entity = ARRAY_DETECTORS[finding.detector].feed, finding.entity
        if feed in OF_JOBS and entity.job is not None:
            if all(run.job != entity.job for run in fleet.runs):
                return True
            judged = self._watch.judged_at(entity.job, feed)
            return judged is not None and now - judged < SETTLE_SECONDS
        return entity.node is not None and now - fleet.heard.get(entity.node, 0.0) < SETTLE_SECONDS

    # events

    def _judge_events(self) -> bool:
        """Judge a batch of stored events; whether there may be more."""
        with self._services.database.reading() as session:
            rows = events.unjudged(session, BATCH)
        if not rows:
            return False
        try:
            self._judge_together(rows)
        except OperationalError:
            raise  # the database is away: the loop comes back
        except Exception:  # noqa: BLE001 - named boundary: one event must not keep the others from being judged
            _log.exception("judging %d events together failed; one by one", len(rows))
            for row in rows:
                self._judge_alone(row)
            return False
        return len(rows) == BATCH

    def _judge_together(self, rows: Sequence[EventRow]) -> None:
        with self._services.database.session() as session:
            now = self._services.clock.now()
            claimed = events.claim(session, [row.id for row in rows], now)
            self._judge_claimed(Context(session, self._settings, now), [row for row in rows if row.id in claimed])
        said = [finding for row in rows for finding in self._said.pop(row.id, ())]
        for row in rows:
            self._policy.stored(row.id)
        if any(finding.recommended_action.evicts for finding in said):
            self._services.wakers.wake("remediation")

    def _judge_alone(self, row: EventRow) -> None:
        try:
            self._judge_together([row])
        except OperationalError:
            raise
        except IncidentChangedError:
            _log.info("an incident changed while event %s was judged; the next turn tries again", row.id)
        except Exception:  # noqa: BLE001 - named boundary: a poisoned event is set aside and logged
            _log.exception("event %s (%s) cannot be judged and is set aside", row.id, row.kind)
            with self._services.database.session() as session:
                events.claim(session, [row.id], self._services.clock.now())

    def _judge_claimed(self, context: Context, rows: Sequence[EventRow]) -> None:
        """Judge events in order; what consecutive ones say is stored at once, unless the order matters."""
        gathered: dict[str, Finding] = {}
        for row in rows:
            event = events.to_event(row)
            if event.node is not None:
                self._watch.others[event.node] = row.received_at
            if is_followed(event):
                self._store(context, gathered)
                follow(context, event)
            for finding in self._findings(event):
                if not finding_ingest.can_replace(gathered.get(finding.key), finding):
                    self._store(context, gathered)
                gathered[finding.key] = finding
            self._policy.store(context.session, event.id)
        self._store(context, gathered)

    def _store(self, context: Context, gathered: dict[str, Finding]) -> None:
        """Store what was gathered, and start again."""
        timeout = self._services.settings.fleet.heartbeat_timeout_seconds
        finding_ingest.ingest_findings(context, gathered.values(), heartbeat_timeout_seconds=timeout)
        gathered.clear()

    def _findings(self, event: Event) -> list[Finding]:
        """What the detectors say of an event: asked once, since they take an id only once."""
        if event.id not in self._said:
            self._said[event.id] = [f for detector in self._detectors for f in detector.update([event])]
            self._policy.compare(event, self._said[event.id])
        return self._said[event.id]

    # measurements

    def _judge_measurements(self, now: float) -> None:
        with self._services.database.reading() as session:
            self._refresh(session)
        found = self._watch.judge(self._fleet, now)
        quiet = [finding for detector in self._detectors for finding in detector.advance_clock(now)]
        self._pending += [*self._policy.refresh(now), *quiet, *found, *self._disown(self._fleet, found, now)]
        while self._pending:
            part = self._pending[:FINDINGS]
            with self._services.database.session() as session:
                finding_ingest.ingest_findings(
                    Context(session, self._settings, now),
                    part,
                    heartbeat_timeout_seconds=self._services.settings.fleet.heartbeat_timeout_seconds,
                )
            del self._pending[: len(part)]

    def _refresh(self, session: AnySession) -> None:
        directory, last = self._services.fleet.current(session), self._services.seen
        if directory.layout != self._layout:
            self._layout = directory.layout
            self._cohorts = _cohorts(directory)
            self._switches = {name: node.switches for name, node in directory.nodes.items() if node.switches}
        nodes = directory.nodes.items()
        self._fleet = Fleet(
            cohorts=self._cohorts,
            # A node that sent a shutdown notice is not lost.
            heard={
                name: at
                for name, node in nodes
                if node.stopped_at is None and (at := last.get(name) or node.last_seen_at) is not None
            },
            relayed=frozenset(name for name, node in nodes if node.version == EXPORTER),
            runs=self._runs.read(session, self._switches),
        )

    def _pass_time(self, now: float) -> None:
        with self._services.database.reading() as session:
            if not repository.due(session, now, limit=1):
                return
        with self._services.database.session() as session:
            deadlines.apply_deadlines(Context(session, self._settings, now))


def _cohorts(fleet: Directory) -> dict[tuple[str, str], str]:
    """(node, device) → label of those it may be compared with: the node's cohort and the device's model."""
    return {
        (name, device.id): f"{node.cohort}/{device.model}"
        for name, node in fleet.nodes.items()
        for device in node.devices
    }


def _ended(finding: Finding, evidence: Evidence, now: float) -> Finding:
    return Finding(
        kind=finding.kind,
        entity=finding.entity,
        time=now,
        severity=finding.severity,
        detector=finding.detector,
        confidence=finding.confidence,
        evidence=evidence,
        active=False,
    )


def make_loops(services: Services) -> list[Loop]:
    """The detection loop, woken by ``services.wakers.wake("judge")``."""
    judge = DetectionLoop(services)
    loop = Loop("judge", services.settings.incidents.detection_interval_seconds, judge.run_once)
    services.wakers.listen("judge", loop.wake)
    return [loop]
