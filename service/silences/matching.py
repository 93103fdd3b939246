"""Which findings a silence covers, and when it is active. Pure: no database, no clock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from mainstay.service.common.selectors import Hours, any_matches


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """What silences look at of a finding. Empty texts: the finding names none."""

    detector: str
    kind: str
    node: str = ""
    rack: str = ""
    cohort: str = ""
    job: str = ""
    switches: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """One silence. All conditions that it has must hold; patterns are those of a shell."""

    id: str
    starts_at: float
    """Unix seconds."""
    ends_at: float
    hours: str | None = None
    """Within start and end, it is active only in these hours, such as ``Sat 02:00-06:00``."""
    timezone: str = "UTC"
    detectors: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    racks: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()
    cohorts: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()

    def is_active(self, now: float) -> bool:
        if not self.starts_at <= now < self.ends_at:
            return False
        return self.hours is None or Hours.parse(self.hours).contains(
            datetime.fromtimestamp(now, ZoneInfo(self.timezone))
        )

    def covers(self, finding: Coverage) -> bool:
        """Whether it covers the finding while it is active."""
        wanted = (
            (self.detectors, (finding.detector,)), (self.kinds, (finding.kind,)), (self.nodes, (finding.node,)),
            (self.racks, (finding.rack,)), (self.cohorts, (finding.cohort,)), (self.jobs, (finding.job,)),
            (self.switches, finding.switches),
        )  # fmt: skip
        return all(not patterns or any_matches(patterns, filter(None, names)) for patterns, names in wanted)

    def covers_node(self, node: str, rack: str, cohort: str, switches: Iterable[str]) -> bool:
        """Whether it covers some finding about the node."""
        placed = Coverage(detector="", kind="", node=node, rack=rack, cohort=cohort, switches=tuple(switches))
        anywhere = Silence(
            id=self.id, starts_at=self.starts_at, ends_at=self.ends_at, nodes=self.nodes, racks=self.racks,
            switches=self.switches, cohorts=self.cohorts,
        )  # fmt: skip
        return anywhere.covers(placed)


def covering(silences: Iterable[Silence], findings: Iterable[Coverage]) -> list[Silence]:
    """The silences that together cover every finding; none where one finding is not covered, or there is none."""
    known, found = list(silences), dict[str, Silence]()
    any_finding = False
    for finding in findings:
        any_finding = True
        one = next((silence for silence in known if silence.covers(finding)), None)
        if one is None:
            return []
        found[one.id] = one
    return list(found.values()) if any_finding else []
