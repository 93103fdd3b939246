"""The stored findings that a batch of findings may touch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Final

from mainstay.detectors.finding import Finding
from mainstay.service.common.db import WriteSession
from mainstay.service.detector_policies.in_force import recording_detectors
from mainstay.service.incidents import repository
from mainstay.service.incidents.lifecycle import IncidentState
from mainstay.service.incidents.models import FindingRow

_BEFORE: Final = frozenset({IncidentState.RECOVERED.value, IncidentState.VERIFIED.value})


class FindingRows:
    """The stored rows that a batch may touch, read at once."""

    def __init__(self, session: WriteSession, batch: Sequence[Finding]) -> None:
        self._session = session
        # Rows of earlier versions have no detector in their key.
        self._keys = {key for finding in batch for key in (finding.key, finding.about)}
        rows = repository.active_by_key(session, self._keys)
        self._active = {(row.detector, row.key): row for row in rows}
        self.recording = recording_detectors(session)
        """Detectors whose findings open no incident, by their policy."""

    def active(self, finding: Finding) -> FindingRow | None:
        """The row in which the same detector says the same."""
        rows = (self._active.get((finding.detector, key)) for key in (finding.key, finding.about))
        return max((row for row in rows if row is not None), key=lambda row: row.time, default=None)

    def put(self, row: FindingRow) -> None:
        self._active[row.detector, row.key] = row

    def drop(self, row: FindingRow) -> None:
        self._active.pop((row.detector, row.key), None)

    @cached_property
    def returnable(self) -> dict[str, FindingRow]:
        """Key → its newest row in an incident that recovered without a recovery and is not closed."""
        rows = {row.key: row for row in repository.found_by_key(self._session, self._keys, _BEFORE)}
        recovered = repository.with_recovery(self._session, {row.incident_id for row in rows.values()})
        return {key: row for key, row in rows.items() if row.incident_id not in recovered}
