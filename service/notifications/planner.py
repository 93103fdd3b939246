"""Decides what to send: from changes of incidents and from timers to messages in the outbox.

Invariant: the transaction that advances the cursor over changes writes the messages that follow from them. A change is
never passed over, however the process ends; to evaluate it twice sends nothing twice, since a group knows what it has
said. One process at a time plans, under the lease ``notifications``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from mainstay.probes.ids import uuid7
from mainstay.service.common.db import ReadSession, WriteSession
from mainstay.service.common.signed_links import sign
from mainstay.service.incidents import repository as incidents
from mainstay.service.incidents.lifecycle import IncidentState
from mainstay.service.incidents.models import IncidentRow
from mainstay.service.incidents.service import worse
from mainstay.service.notifications import config, outbox, repository
from mainstay.service.notifications.compose import compose, routed
from mainstay.service.notifications.links import AcknowledgeLink
from mainstay.service.notifications.message import NotificationEvent
from mainstay.service.notifications.models import GroupedIncidentRow, NotificationGroupRow
from mainstay.service.notifications.report_mail import send_report
from mainstay.service.notifications.routes import NotificationConfig, Route
from mainstay.service.services import Services
from mainstay.service.silences.matching import Silence
from mainstay.service.silences.repository import active as active_silences
from mainstay.service.silences.repository import silences_of
from mainstay.service.stream import changes
from mainstay.service.stream.changes import Topic
from mainstay.service.stream.position import Position

_log: Final = logging.getLogger(__name__)
NAME: Final = "notifications"
DELIVERY: Final = "notification-delivery"
"""Wakes the loop that sends."""
_BATCH: Final = 2000
"""Changes that are read at once."""
_BATCHES: Final = 20
_GROUPS: Final = 200
"""Groups whose timers one turn serves."""
_SILENCED_SECONDS: Final = 60.0
"""After which a message of a silenced group is considered again."""
OVER: Final = frozenset({IncidentState.VERIFIED.value, IncidentState.CLOSED.value})
"""States in which an incident needs no attention; before, it may still come back."""


class Planner:
    """One term of the process that plans."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._position: Position | None = None
        self._silences: list[Silence] = []

    def run_once(self) -> None:
        """Look at what changed since the last turn, and at timers; incidents come before the report."""
        with self._services.database.reading() as session:
            known = config.current(session)
        if known is None:
            return
        self._plan(known)
        if known.report is not None and send_report(self._services, known.report):
            self._services.wakers.wake(DELIVERY)

    def _plan(self, known: NotificationConfig) -> None:
        with self._services.database.reading() as session:
            position, changed = self._changed(session)
            silences = active_silences(session, self._services.clock.now())
            if self._position is None or not set(self._silences) <= set(silences):
                # One is over, or was before this term: what it covered may have to be sent now.
                changed = list(dict.fromkeys([*changed, *self._concerned(session)]))
            if not changed and not repository.due_groups(session, self._services.clock.now(), 1):
                self._position, self._silences = position, silences
                return
        with self._services.database.session() as session:
            turn = _Turn(session, self._services, known, self._services.clock.now(), config.link_key(session), silences)
            turn.serve(changed)
            config.move_cursor(session, position)
        self._position, self._silences = position, silences
        if turn.sent:
            self._services.wakers.wake(DELIVERY)

    def _changed(self, session: ReadSession) -> tuple[Position, list[str]]:
        """Where the newest change is, and the incidents that changed, in the order of their changes."""
        position = self._position or config.position(session)
        found: dict[str, None] = {}
        for _ in range(_BATCHES):
            rows = changes.after(session, position, _BATCH)
            if rows is None:
                _log.warning("changes were forgotten before notifications looked at them: all open incidents count")
                return changes.newest(session), self._concerned(session)
            found |= dict.fromkeys(row.data["id"] for row in rows if row.topic == Topic.INCIDENT)
            position = rows[-1].position if rows else position
            if len(rows) < _BATCH:
                break
        return position, list(found)

    def _concerned(self, session: ReadSession) -> list[str]:
        """Incidents that may have to be sent: those of open groups, and those that began after the configuration."""
        since = repository.configured_at(session)
        open_ones = [row.id for row in incidents.live(session) if row.opened_at >= since]
        return [*repository.incidents_of_open_groups(session), *open_ones]


@dataclass
class _Turn:
    session: WriteSession
    services: Services
    config: NotificationConfig
    now: float
    key: bytes
    """Signs links."""
    silences: list[Silence]
    """Those that are active."""
    sent: int = field(default=0, init=False)

    def serve(self, changed: Iterable[str]) -> None:
        for incident_id in changed:
            row = self.session.get(IncidentRow, incident_id)
            if row is None:
                continue
            if row.state in OVER:
                self._end(row)
            else:
                self._place(row)
                self._follow_acknowledgement(row)
        self.session.flush()
        for group in repository.due_groups(self.session, self.now, _GROUPS):
            self._serve_timers(group)

    def _place(self, row: IncidentRow) -> None:
        """Put the incident into its groups, and let them tell what is new."""
        if self._is_silenced(row):
            return
        incident = routed(self.session, row)
        joined = {group.route: group for group in repository.groups_of(self.session, row.id)}
        for route in self.config.routes_of(incident, self.now):
            if not route.receivers:
                continue
            group = joined.get(route.name)
            if group is None:
                group = self._join(route, route.group_key(incident), row)
            elif worse(group.severity, row.severity) == group.severity and not self._asks(group, row):
                continue
            group.severity = worse(group.severity, row.severity)
            group.needs_operator = group.needs_operator or row.needs_operator
            self._schedule(group, route)

    def _is_silenced(self, row: IncidentRow) -> bool:
        return bool(silences_of(self.session, row.id, self.silences))

    def _asks(self, group: NotificationGroupRow, row: IncidentRow) -> bool:
        """Whether an operator must act, and no message reports it yet."""
        return row.needs_operator and not group.needs_operator

    def _join(self, route: Route, key: str, row: IncidentRow) -> NotificationGroupRow:
        group = repository.open_group(self.session, route.name, key)
        if group is None:
            group = NotificationGroupRow(
                id=uuid7(), route=route.name, key=key, severity=row.severity, needs_operator=row.needs_operator,
                receivers=[], created_at=self.now,
            )  # fmt: skip
            self.session.add(group)
            self.session.flush()
        self.session.add(GroupedIncidentRow(group_id=group.id, incident_id=row.id))
        group.acknowledged_at = None
        self.session.flush()
        return group

    def _schedule(self, group: NotificationGroupRow, route: Route) -> None:
        if group.sent_at is None:
            due = group.created_at + route.wait_seconds
        else:
            due = max(self.now, group.sent_at + route.group_seconds)
        group.send_at = due if group.send_at is None else min(group.send_at, due)

    def _follow_acknowledgement(self, row: IncidentRow) -> None:
        if row.acknowledged_at is None:
            return
        for group in repository.groups_of(self.session, row.id):
            live = self._live(group)
            if group.acknowledged_at is None and all(one.acknowledged_at is not None for one in live):
                group.acknowledged_at = self.now
                group.repeat_at = group.escalate_at = None
                trackers = [name for name in group.receivers if self._tracks(name)]
                self._enqueue(group, live, NotificationEvent.ACKNOWLEDGED, trackers)

    def _end(self, row: IncidentRow) -> None:
        """Resolve the groups of which no incident is left."""
        for group in repository.groups_of(self.session, row.id):
            if self._live(group):
                continue
            group.resolved_at = self.now
            group.send_at = group.repeat_at = group.escalate_at = None
            told = [name for name in group.receivers if self._tracks(name) or self._wants_end(name)]
            every = repository.incidents_of(self.session, group.id)
            self._enqueue(group, every, NotificationEvent.RESOLVED, told)

    def _live(self, group: NotificationGroupRow) -> list[IncidentRow]:
        return [row for row in repository.incidents_of(self.session, group.id) if row.state not in OVER]

    def _tracks(self, name: str) -> bool:
        receiver = self.config.receivers.get(name)
        return receiver is not None and receiver.tracks_groups

    def _wants_end(self, name: str) -> bool:
        receiver = self.config.receivers.get(name)
        return receiver is not None and receiver.send_resolved

    def _serve_timers(self, group: NotificationGroupRow) -> None:
        route, live = self.config.route(group.route), self._live(group)
        if route is None or not live:  # the route is no longer there: only the end is sent
            group.send_at = group.repeat_at = group.escalate_at = None
            return
        live = [row for row in live if not self._is_silenced(row)]
        if not live:
            for timer in ("send_at", "repeat_at", "escalate_at"):
                if _is_due(getattr(group, timer), self.now):
                    setattr(group, timer, self.now + _SILENCED_SECONDS)
            return
        if _is_due(group.send_at, self.now):
            event = NotificationEvent.OPENED if group.sent_at is None else NotificationEvent.UPDATED
            if group.sent_at is None and route.escalate_minutes:
                group.escalate_at = self.now + route.escalate_minutes * 60
            self._tell(group, route, live, event, route.receivers)
        if group.acknowledged_at is None and _is_due(group.escalate_at, self.now):
            group.escalate_at = None
            self._tell(group, route, live, NotificationEvent.ESCALATED, route.escalate_to)
        if group.acknowledged_at is None and _is_due(group.repeat_at, self.now):
            self._tell(group, route, live, NotificationEvent.REPEATED, group.receivers)

    def _tell(
        self,
        group: NotificationGroupRow,
        route: Route,
        live: Sequence[IncidentRow],
        event: NotificationEvent,
        receivers: Sequence[str],
    ) -> None:
        group.send_at, group.sent_at = None, self.now
        group.repeat_at = self.now + route.repeat_minutes * 60 if route.repeat_minutes else None
        self._enqueue(group, live, event, receivers)
        group.receivers = list(dict.fromkeys([*group.receivers, *receivers]))

    def _enqueue(
        self,
        group: NotificationGroupRow,
        rows: Sequence[IncidentRow],
        event: NotificationEvent,
        receivers: Sequence[str],
    ) -> None:
        settings = self.services.settings
        for name in receivers:
            expires = int(self.now + settings.notifications.acknowledge_hours * 3600)
            token = sign(AcknowledgeLink(group=group.id, receiver=name, expires_at=expires), self.key)
            needs = event not in {NotificationEvent.RESOLVED, NotificationEvent.ACKNOWLEDGED}
            message = compose(
                self.session, rows, group=group.id, event=event, base_url=settings.dashboard_url, now=self.now,
                acknowledge_url=f"{settings.dashboard_url}/acknowledge#{token}" if needs else None,
            )  # fmt: skip
            outbox.put(self.session, name, message, group_id=group.id, incident_id=rows[0].id)
            self.sent += 1


def _is_due(at: float | None, now: float) -> bool:
    return at is not None and at <= now
