"""The policies in use: the active version, and the shadow that evaluates the same events.

The detection loop owns it. The live detector keeps its state when its policy changes; active findings are evaluated
again. A shadow policy never reaches an incident: each difference is one row in the transaction of the detection loop.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from mainstay.detectors.finding import Finding
from mainstay.detectors.gpu.xid import XidDetector
from mainstay.detectors.policy.comparison import StatementChange, differences
from mainstay.detectors.policy.load import builtin
from mainstay.probes.core_types import Event
from mainstay.service.common.db import AnySession, Database, WriteSession
from mainstay.service.incidents import repository as incidents
from mainstay.service.xid_policies import repository, service
from mainstay.service.xid_policies.models import VersionMode

_log: Final = logging.getLogger(__name__)
_LOOK_SECONDS: Final = 1.0
"""How often it is asked which versions run: one short query."""
_CLOSED_SECONDS: Final = 5.0
"""How often it is asked what people closed."""
_REMEMBERED_SECONDS: Final = 7 * 86_400.0
"""How far back failed actions are counted."""
_SHOWN: Final = 16_384
KEPT: Final = 5_000
"""Differences of a shadow that are stored."""
_PRUNE_EVERY: Final = 200


class LivePolicy:
    """The policies of one detection loop.

    Args:
        database: where versions are.
        detector: the XID detector with the active policy; only this class replaces its policy.
    """

    def __init__(self, database: Database, detector: XidDetector) -> None:
        self._database = database
        self._live = detector
        self._shadow: XidDetector | None = None
        self._running: dict[VersionMode, tuple[int, str]] = {}
        self._looked_at = self._closed_at = float("-inf")
        self._different: dict[str, list[StatementChange]] = {}
        self._unpruned = _PRUNE_EVERY

    def restore(self, session: AnySession, now: float) -> None:
        """After a restart: the policy first, then what it needs to know of the past week."""
        self._switch(session, now)
        self._live.update(self._past(session, now))

    def refresh(self, now: float) -> list[Finding]:
        """Follow what people switched; what that changes about what holds. ``now`` may jump back."""
        found: list[Finding] = []
        if abs(now - self._looked_at) >= _LOOK_SECONDS:
            self._looked_at = now
            with self._database.reading() as session:
                if abs(now - self._closed_at) >= _CLOSED_SECONDS:
                    self._closed_at = now
                    self._release(session, now)
                found += self._switch(session, now)
        if self._shadow is not None:
            self._shadow.advance_clock(now)
        return found

    def compare(self, event: Event, found: Sequence[Finding]) -> None:
        """Evaluate an event with the shadow; ``found`` are the findings of the detectors."""
        if self._shadow is None:
            return
        said = [finding for finding in found if finding.detector == self._live.name]
        different = differences(event, said, self._shadow.update([event]))
        if different:
            if len(self._different) >= KEPT:  # events that were set aside never come back for theirs
                self._different.clear()
            self._different[event.id] = different

    def store(self, session: WriteSession, event_id: str) -> None:
        """Store the differences of the shadow for an event in the transaction that evaluates it."""
        different, running = self._different.get(event_id), self._running.get(VersionMode.SHADOW)
        if not different or running is None:
            return
        repository.add_shadow(session, running[0], different)
        self._unpruned += len(different)
        if self._unpruned >= _PRUNE_EVERY:
            session.flush()
            repository.prune_shadow(session, KEPT)
            self._unpruned = 0

    def stored(self, event_id: str) -> None:
        """Note that the transaction that evaluated the event is committed."""
        self._different.pop(event_id, None)

    def _release(self, session: AnySession, now: float) -> None:
        self._live.release(incidents.active_keys(session, self._live.name), before=now - _CLOSED_SECONDS)

    def _switch(self, session: AnySession, now: float) -> list[Finding]:
        running = repository.running(session)
        if running == self._running:
            return []
        before, self._running = self._running, running
        if running.get(VersionMode.SHADOW) != before.get(VersionMode.SHADOW):
            self._shadow = self._new_shadow(session, now)
        if running.get(VersionMode.ACTIVE) == before.get(VersionMode.ACTIVE):
            return []
        policy = service.effective(repository.in_mode(session, VersionMode.ACTIVE)) or builtin()
        if policy.digest == self._live.config.policy.digest:
            return []
        _log.info("XID policy %s is active", policy.digest[:12])
        return self._live.follow(policy, now)

    def _new_shadow(self, session: AnySession, now: float) -> XidDetector | None:
        policy = service.effective(repository.in_mode(session, VersionMode.SHADOW))
        if policy is None:
            return None
        shadow = XidDetector(XidDetector.Config(policy=policy))
        shadow.update(self._past(session, now))
        return shadow

    def _past(self, session: AnySession, now: float) -> list[Event]:
        return repository.judged_events(session, since=now - _REMEMBERED_SECONDS, limit=_SHOWN)
