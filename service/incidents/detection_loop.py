"""The detection loop turns events and measurements into incidents: once a second, and immediately for a new event.

Invariant: the loop evaluates each event once and loses none. It claims an event in the transaction that evaluates it,
so after a crash the next iteration evaluates the event. Findings of the array detectors stay in memory until they are
stored. After a restart the event detectors read the recent events again, and findings from before the restart stay
active until the detectors have had enough data to end them. Of several processes, each runs the loops of the shards
whose leases it holds (``detection_shards.py``).
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from sqlalchemy.exc import OperationalError

from mainstay.detectors.finding import Evidence, Finding
from mainstay.detectors.gpu.xid import XidDetector
from mainstay.detectors.registry import ARRAY_DETECTORS, EVENT_DETECTORS
from mainstay.probes.core_types import HOST_DEVICE, Event
from mainstay.service.cluster.leases import LeaseLostError
from mainstay.service.common.db import AnySession
from mainstay.service.common.loops import Loop
from mainstay.service.detector_policies.in_force import recording_detectors
from mainstay.service.events import repository as events
from mainstay.service.events.models import EventRow
from mainstay.service.fleet import transitions
from mainstay.service.fleet.directory import Fleet as Directory
from mainstay.service.incidents import deadlines, earlier_runs, finding_ingest, repository
from mainstay.service.incidents import findings as wire
from mainstay.service.incidents.detection_shards import SHARDS, WHOLE, DetectionShard, shards
from mainstay.service.incidents.detector_memory import DetectorMemory
from mainstay.service.incidents.detector_runner import DetectorRunner, Fleet
from mainstay.service.incidents.detector_status import SHARE_SECONDS, SharedDetectorStatus
from mainstay.service.incidents.device_feed import REPORTING_SECONDS
from mainstay.service.incidents.job_detectors import OF_JOBS, JobStores
from mainstay.service.incidents.recovery_progress import follow, is_followed
from mainstay.service.incidents.runs import Runs, Switches
from mainstay.service.incidents.service import Context, IncidentChangedError
from mainstay.service.services import Services
from mainstay.service.settings import IncidentSettings
from mainstay.service.sources.dcgm.frames import VERSION as EXPORTER
from mainstay.service.telemetry.ring import Column
from mainstay.service.xid_policies.live import LivePolicy

_log: Final = logging.getLogger(__name__)
BATCH: Final = 250
"""Events in one transaction, at most: one look at what holds for a burst, and a short time while other writers wait."""
BATCH_SECONDS: Final = 1.0
"""A batch that took longer was slow."""
FINDINGS: Final = 500
"""Findings in one transaction: when a whole fleet stops reporting, others write in between."""
REPLAYED: Final = 4096
"""Events that the event detectors read again after a restart: as many as they remember."""
SETTLE_SECONDS: Final = 60.0
"""After so much data without confirmation a finding from before the restart ends. Some detectors need more
(``ArrayDetector.settling_seconds``): 30 normal samples end an outlier, and a heartbeat counts after 10 s."""


class DetectionLoop:
    """The state of detection. Only the thread of its loop calls it."""

    def __init__(self, services: Services, shard: DetectionShard = WHOLE) -> None:
        self._services, self._shard = services, shard
        self._detectors = [cls() for cls in EVENT_DETECTORS.values()]
        xids = next(detector for detector in self._detectors if isinstance(detector, XidDetector))
        self._policy = LivePolicy(services.database, xids)
        stores = JobStores(steps=services.steps, progress=services.progress, pairs=services.pairs)
        self._runner = DetectorRunner(services.ring, stores, services.accounts, shard=shard)
        self._memory = DetectorMemory(services.history)
        self._runs = Runs()
        self._switches: Switches = {}
        self._batch = BATCH
        """Events in the next batch."""
        self._event_findings: dict[str, list[Finding]] = {}
        """Event ID -> findings, for events whose transaction is not committed yet."""
        self._pending: list[Finding] = []
        """Findings from measurements that are not stored yet."""
        self._restored: dict[str, Finding] = {}
        self._examined: defaultdict[str, float] = defaultdict(float)
        """Key of a restored finding → seconds in which the detectors had current data of its entity."""
        self._examined_at = 0.0
        self._recording: frozenset[str] = frozenset()
        """Detectors whose findings opened no incident when policies were last read."""
        self._started_at: float | None = None
        self._measured_at = 0.0
        self._directory = Directory({}, -1)
        self._cohorts: Mapping[Column, str] = {}
        self._nodes: tuple[str, ...] = ()
        """Nodes that send frames themselves and did not shut down: the others cannot be lost."""
        self._stored = np.empty(0)
        """[node] their last report as stored; NaN where there was none."""

    def run_once(self) -> None:
        """Evaluate events, then, once per interval, measurements and deadlines."""
        now = self._services.clock.now()
        if self._started_at is None:
            self._restore(now)
            self._started_at = self._examined_at = now
        while self._shard.is_first and self._evaluate_events():
            if self._services.clock.now() - now >= self._settings.detection_interval_seconds:
                self._services.wakers.wake("detection")  # measurements have their turn, then come the other events
                break
        if now - self._measured_at >= self._settings.detection_interval_seconds or now < self._measured_at:
            self._measured_at = now
            self._evaluate_measurements(now)
            self._memory.save(self._runner.fleet_detectors, now)
            if self._shard.is_first:
                self._apply_deadlines(now)

    @property
    def _settings(self) -> IncidentSettings:
        return self._services.settings.incidents

    # after a restart

    def _restore(self, now: float) -> None:
        """Give the event detectors the events they had read, and array detectors what they had learned and found."""
        self._memory.restore(self._runner.fleet_detectors)
        with self._services.database.reading() as session:
            rows = repository.active_findings(session)
            active = [wire.from_row(row) for row in rows]
            self._restored = {f.key: f for f in active if self._shard.has_finding(f)}
            if not self._shard.is_first:
                return
            self._recording = frozenset(row.detector for row in rows if row.incident_id is None)
            since = min([now - self._settings.event_lookback_seconds, *(finding.time for finding in active)])
            seen = [events.to_event(row) for row in events.judged_since(session, since, REPLAYED)]
            self._policy.restore(session, now)
        for detector in self._detectors:
            detector.update(seen)
            detector.restore_findings(active)

    def _end_unconfirmed(self, fleet: Fleet, found: Sequence[Finding], now: float) -> list[Finding]:
        """End restored findings that no detector confirmed although it had enough data of their entity.

        Only data counts that the detectors saw in time. After an outage nodes send what they kept, oldest first, and
        seconds that arrive late are not evaluated: their silence about a finding means nothing.
        """
        most = 2 * self._settings.detection_interval_seconds  # further apart, the detectors may have seen less
        passed, self._examined_at = min(max(now - self._examined_at, 0.0), most), now
        for finding in found:
            self._restored.pop(finding.key, None)
        ended = []
        for finding in self._restored.values():
            if self._could_confirm(finding, fleet, now):
                self._examined[finding.key] += passed
            if self._examined[finding.key] >= max(ARRAY_DETECTORS[finding.detector].settling_seconds, SETTLE_SECONDS):
                ended.append(finding)
        for finding in ended:
            del self._restored[finding.key]
        ended = [finding for finding in ended if not self._runner.holds(finding)]
        evidence = Evidence(summary="It no longer holds since the service restarted.")
        return [replace(finding, active=False, time=now, evidence=evidence) for finding in ended]

    def _could_confirm(self, finding: Finding, fleet: Fleet, now: float) -> bool:
        """Whether the detector has data to confirm it now: those of its device, or samples of the job.

        This is also true for a job that has ended, because no detector evaluates it again.
        """
        feed, entity = ARRAY_DETECTORS[finding.detector].feed, finding.entity
        if feed in OF_JOBS and entity.job is not None:
            if all(run.job != entity.job for run in fleet.runs):
                return True
            evaluated = self._runner.evaluated_at(entity.job, feed)
            return evaluated is not None and now - evaluated < SETTLE_SECONDS
        node = self._directory.nodes.get(entity.node or "")
        last = self._services.seen.get(entity.node or "")
        if node is None or node.stopped_at is not None or last is None or now - last >= REPORTING_SECONDS:
            return False
        newest = self._services.ring.newest_second((node.name, entity.device or HOST_DEVICE))
        return newest is None or now - newest < REPORTING_SECONDS

    # events

    def _evaluate_events(self) -> bool:
        """Evaluate a batch of stored events. Return whether there may be more.

        A batch is a transaction, in which others wait for its nodes, and which is all for nothing if it fails at its
        end. So the next one is half as large after one that failed or was slow.
        """
        size, began = self._batch, time.monotonic()
        with self._services.database.reading() as session:
            rows = events.unjudged(session, size)
        if not rows:
            return False
        self._batch = max(1, len(rows) // 2)
        try:
            self._evaluate_batch(rows)
        except (OperationalError, LeaseLostError):
            raise  # the database does not answer, or another process evaluates events now: the loop tries again
        except Exception:  # noqa: BLE001 - named boundary: one event must not block the others
            _log.exception("evaluating %d events in one transaction failed; evaluating them one by one", len(rows))
            for row in rows:
                self._evaluate_single(row)
            return False
        if time.monotonic() - began < BATCH_SECONDS:
            self._batch = min(BATCH, 2 * size)
        return len(rows) == size

    def _evaluate_batch(self, rows: Sequence[EventRow]) -> None:
        with self._services.database.session() as session:
            repository.lock_incidents(session)
            now = self._services.clock.now()
            claimed = events.claim(session, [row.id for row in rows], now)
            transitions.lock(session, {row.node for row in rows if row.node is not None})
            context = Context(session, self._services.settings, now)
            self._evaluate_claimed(context, [row for row in rows if row.id in claimed])
        stored_at, found = self._services.clock.now(), list[Finding]()
        for row in rows:
            self._policy.stored(row.id)
            if findings := self._event_findings.pop(row.id, []):
                self._services.event_delays.observe(max(0.0, stored_at - row.received_at))
                found += findings
        if any(finding.recommended_action.evicts for finding in found):
            self._services.wakers.wake("remediation")

    def _evaluate_single(self, row: EventRow) -> None:
        try:
            self._evaluate_batch([row])
        except (OperationalError, LeaseLostError):
            raise
        except IncidentChangedError:
            _log.info("an incident changed while event %s was evaluated; the next iteration tries again", row.id)
        except Exception:  # noqa: BLE001 - named boundary: an event that cannot be evaluated is set aside and logged
            _log.exception("event %s (%s) cannot be evaluated and is set aside", row.id, row.kind)
            with self._services.database.session() as session:
                events.claim(session, [row.id], self._services.clock.now())

    def _evaluate_claimed(self, context: Context, rows: Sequence[EventRow]) -> None:
        """Evaluate events in order; findings of consecutive ones are stored at once, unless the order matters."""
        gathered: dict[str, Finding] = {}
        for row in rows:
            event = events.to_event(row)
            if event.node is not None:
                self._runner.others[event.node] = row.received_at
            if is_followed(event):
                _store(context, gathered)
                follow(context, event)
            for finding in self._findings(event):
                if not finding_ingest.can_replace(gathered.get(finding.key), finding):
                    _store(context, gathered)
                gathered[finding.key] = finding
            self._policy.store(context.session, event.id)
        _store(context, gathered)

    def _findings(self, event: Event) -> list[Finding]:
        """Return the findings of an event; the detectors accept each event ID only once."""
        if event.id not in self._event_findings:
            self._event_findings[event.id] = [f for detector in self._detectors for f in detector.update([event])]
            self._policy.compare(event, self._event_findings[event.id])
        return self._event_findings[event.id]

    # measurements

    def _evaluate_measurements(self, now: float) -> None:
        with self._services.database.reading() as session:
            fleet = self._read_fleet(session)
            released = self._released(session) if self._shard.is_first else []
        found = self._runner.evaluate(fleet, now)
        ended = self._end_unconfirmed(fleet, found, now)
        if self._shard.is_first:
            quiet = [finding for detector in self._detectors for finding in detector.advance_clock(now)]
            self._pending += [*released, *self._policy.refresh(now), *quiet]
        self._pending += [*found, *ended]
        while self._pending:
            part = self._pending[:FINDINGS]
            with self._services.database.session() as session:
                repository.lock_incidents(session)
                finding_ingest.ingest_findings(Context(session, self._services.settings, now), part)
            del self._pending[: len(part)]
        self._store_paces(now)

    def _store_paces(self, now: float) -> None:
        for detectors, pace in self._runner.new_paces:
            with self._services.database.session() as session:
                earlier_runs.store(session, detectors.run.job, detectors.run.started_at, pace, now)
            detectors.is_pace_stored = True

    def _released(self, session: AnySession) -> list[Finding]:
        """Return the active findings without an incident of detectors that, by their policy, recorded until now."""
        before, self._recording = self._recording, recording_detectors(session)
        changed = before - self._recording
        return [wire.from_row(row) for row in repository.unopened(session, changed)] if changed else []

    def _read_fleet(self, session: AnySession) -> Fleet:
        directory = self._services.fleet.current(session)
        if directory is not self._directory:
            self._follow_directory(directory)
        heard = self._services.seen.times(self._nodes)
        return Fleet(
            cohorts=self._cohorts,
            nodes=self._nodes,
            last_frames=np.where(np.isnan(heard), self._stored, heard),
            runs=self._runs.read(session, self._switches, None if self._shard.is_first else self._shard.has_job),
        )

    def _follow_directory(self, directory: Directory) -> None:
        if directory.layout != self._directory.layout:
            self._cohorts = _cohorts(directory)
            self._switches = {name: tuple(node.switches) for name, node in directory.nodes.items() if node.switches}
        self._directory = directory
        listed = [node for node in directory.nodes.values() if node.stopped_at is None and node.version != EXPORTER]
        names = tuple(node.name for node in listed)
        self._nodes = self._nodes if names == self._nodes else names
        self._stored = np.array([np.nan if node.last_seen_at is None else node.last_seen_at for node in listed])

    def _apply_deadlines(self, now: float) -> None:
        with self._services.database.reading() as session:
            if not repository.due(session, now, limit=1):
                return
        with self._services.database.session() as session:
            deadlines.apply_deadlines(Context(session, self._services.settings, now))


def _cohorts(fleet: Directory) -> dict[tuple[str, str], str]:
    """Return (node, device) -> label of its peers: the cohort of the node and the model of the device."""
    return {
        (name, device.id): f"{node.cohort}/{device.model}"
        for name, node in fleet.nodes.items()
        for device in node.devices
    }


def _store(context: Context, gathered: dict[str, Finding]) -> None:
    """Store what was gathered, and start again."""
    finding_ingest.ingest_findings(context, gathered.values())
    gathered.clear()


def make_loops(services: Services) -> list[Loop]:
    """Return the loops of detection, one for each shard, and what shows the status of detectors.

    ``services.wakers.wake("detection")`` wakes the loop that evaluates events.
    """
    if services.database.is_sqlite:
        return [_loop(services, WHOLE)]
    every = shards(SHARDS)
    status = [SharedDetectorStatus(services.leases, services.accounts, shard) for shard in every]

    def share() -> None:
        for one in status:
            one.run_once()

    return [*(_loop(services, shard) for shard in every), Loop("detector-status", SHARE_SECONDS, share)]


def _loop(services: Services, shard: DetectionShard) -> Loop:
    turn = services.leases.elect(shard.lease, lambda: DetectionLoop(services, shard).run_once, spread=True)
    loop = Loop(shard.lease, services.settings.incidents.detection_interval_seconds, turn)
    services.wakers.listen(shard.lease, loop.wake)
    return loop
