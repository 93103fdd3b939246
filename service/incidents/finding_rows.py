"""The stored findings that a batch of findings may touch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Final

from mainstay.detectors.finding import Finding
from mainstay.service.common.db import WriteSession
from mainstay.service.incidents import repository
from mainstay.service.incidents.lifecycle import IncidentState
from mainstay.service.incidents.models import FindingRow

_BEFORE: Final = frozenset({IncidentState.RECOVERED.value, IncidentState.VERIFIED.value})


class FindingRows:
    """The stored rows that a batch may touch, read at once."""

    def __init__(self, session: WriteSession, batch: Sequence[Finding]) -> None:
        self._session = session
        self._keys = {finding.key for finding in batch}
        self._active = {row.key: row for row in repository.active_by_key(session, self._keys)}

    def active(self, finding: Finding) -> FindingRow | None:
        """The row in which the same detector says the same."""
        return self._active.get(finding.key)

    def put(self, row: FindingRow) -> None:
        self._active[row.key] = row

    def drop(self, row: FindingRow) -> None:
        self._active.pop(row.key, None)

    @cached_property
    def returnable(self) -> dict[str, FindingRow]:
        """Key → its newest row in an incident that recovered without a recovery and is not closed."""
        rows = {row.key: row for row in repository.found_by_key(self._session, self._keys, _BEFORE)}
        recovered = repository.with_recovery(self._session, {row.incident_id for row in rows.values()})
        return {key: row for key, row in rows.items() if row.incident_id not in recovered}
