"""False drains of a random history: equal to a recomputation from its facts, one by one."""

from __future__ import annotations

import csv
import io
import random
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest

from mainstay.service.fleet.models import DeviceLocationRow, NodeRow
from mainstay.service.incidents.models import FindingRow, IncidentRow
from mainstay.service.remediation.models import RemediationRow
from mainstay.service.reports.reliability import Drain, binomial_limits
from mainstay.service.validation.models import ValidationRow
from tests.service.conftest import Running

HOUR, DAY = 3600.0, 86_400.0
KINDS = {"xid": "xid_detector", "ecc_uncorrectable": "ecc_detector", "gpu_lost": "ecc_detector"}


@dataclass
class Facts:
    """What happened to one node: a drain, and what came after it, in seconds since the drain."""

    node: str
    drained_at: float
    kinds: list[str]
    validations: list[tuple[float, str]]
    """Seconds and verdict of those that ended."""
    booted: float | None
    exchanged: float | None
    finding: tuple[float, str, bool] | None
    """Seconds, kind, and whether it belongs to a new incident."""
    state: str = "done"
    action: str = "reset_gpu"

    @property
    def all_kinds(self) -> set[str]:
        """Of its incident: a finding that joins it later is about the same problem."""
        return {*self.kinds, *([self.finding[1]] if self.finding and not self.finding[2] else [])}

    def verdict(self, now: float) -> str:  # noqa: PLR0911 - one for each answer
        told = [(seconds, verdict) for seconds, verdict in self.validations if verdict != "unknown"]
        if not told:
            return "not_validated"
        seconds, verdict = told[0]
        if verdict == "fail":
            return "confirmed"
        if self.exchanged is not None and 0 < self.exchanged <= seconds:
            return "confirmed"
        if self.booted is not None and 0 < self.booted <= seconds:
            return "confirmed"
        if self.finding is not None:
            said, kind, is_new = self.finding
            if kind in self.all_kinds and said > seconds and (said <= seconds + 7 * DAY or not is_new):
                return "confirmed"
        if self.booted is None or self.booted > seconds or now < self.drained_at + seconds + 7 * DAY:
            return "undecided"
        return "false_drains"

    def put(self, session: Any) -> None:
        at, name = self.drained_at, self.node
        booted_at = None if self.booted is None else at + self.booted
        session.add(NodeRow(name=name, gpus=8, first_seen_at=at - 99 * DAY, booted_at=booted_at))
        self._incident(session, name, at - 60, self.kinds)
        if self.finding is not None:
            seconds, kind, is_new = self.finding
            if is_new:
                self._incident(session, f"{name}-again", at + seconds, [])
            self._finding(session, f"{name}-again" if is_new else name, at + seconds, kind)
        session.flush()
        session.add(RemediationRow(
            id=name, incident_id=name, node=name, state=self.state, recommended_action=self.action, dry_run=False,
            reason="", rules=[], tried=[], created_at=at - 30, decided_at=at, decided_by="mainstay",
        ))  # fmt: skip
        # Before the drain, and one that has not ended: neither says anything of it.
        for number, (seconds, verdict) in enumerate([(-HOUR, "pass"), *self.validations]):
            session.add(ValidationRow(
                id=f"{name}-{number}", node=name, suite="deep", state="done", verdict=verdict, reason="",
                created_at=at + seconds, deadline_at=at, finished_at=at + seconds,
            ))  # fmt: skip
        session.add(ValidationRow(
            id=f"{name}-open", node=name, suite="deep", state="running", verdict="pass", reason="",
            created_at=at + 1, deadline_at=at,
        ))  # fmt: skip
        if self.exchanged is not None:
            session.add(DeviceLocationRow(
                id=name, hardware=name, node=name, device="gpu0", first_seen_at=at + self.exchanged,
                last_seen_at=at + self.exchanged,
            ))  # fmt: skip

    def _incident(self, session: Any, name: str, at: float, kinds: list[str]) -> None:
        session.add(IncidentRow(
            id=name, title="t", summary="s", state="closed", version=1, severity="critical", needs_operator=False,
            opened_at=at, updated_at=at, ranks=[], kinds=kinds, node=self.node,
        ))  # fmt: skip
        session.flush()
        for kind in kinds:
            self._finding(session, name, at, kind)

    def _finding(self, session: Any, incident: str, at: float, kind: str) -> None:
        key = f"{incident} {kind} {at}"
        session.add(FindingRow(
            id=key[:36], key=key, kind=kind, node=self.node, time=at, severity="critical", detector=KINDS[kind],
            confidence=1.0, evidence={}, active=False, incident_id=incident,
        ))  # fmt: skip


def draw_facts(now: float) -> list[Facts]:
    draw = random.Random(5)

    def maybe(most: float, chance: float) -> float | None:
        return float(draw.randrange(-int(most), int(most))) if draw.random() < chance else None

    def draw_one(number: int) -> Facts:
        moments = sorted(draw.randrange(60, 8000) for _ in range(draw.randrange(4)))
        said = maybe(20 * DAY, 0.5)
        return Facts(
            node=f"n{number}", drained_at=now - float(draw.randrange(1, int(40 * DAY))),
            kinds=draw.sample([*KINDS], draw.choice([1, 1, 2])),
            validations=[(float(at), draw.choice(["pass", "pass", "warn", "fail", "unknown"])) for at in moments],
            booted=draw.choice([-5 * DAY, -5 * DAY, maybe(9000, 0.5)]), exchanged=maybe(9000, 0.2),
            finding=None if said is None or said < 0 else (said, draw.choice([*KINDS]), draw.random() < 0.7),
            state=draw.choice(["done", "done", "accepted", "superseded", "dismissed"]),
            action=draw.choice(["reset_gpu", "reset_gpu", "reboot_node", "migrate_ranks"]),
        )  # fmt: skip

    return [draw_one(number) for number in range(150)]


def assert_counts(found: dict[str, Any], facts: list[Facts], now: float) -> None:
    counts = Counter(one.verdict(now) for one in facts)
    assert found["drains"] == len(facts)
    for name in ("false_drains", "confirmed", "not_validated", "undecided"):
        assert int(found[name]) == counts[name], name
    decided = counts["false_drains"] + counts["confirmed"]
    assert found["ratio"] == pytest.approx(counts["false_drains"] / decided)
    assert (found["low"], found["high"]) == pytest.approx(binomial_limits(counts["false_drains"], decided))


def test_drains_equal_a_recomputation(service_anywhere: Running) -> None:
    service_anywhere.hold_still()
    now = float(int(service_anywhere.services.clock.now()))
    facts = draw_facts(now)
    with service_anywhere.services.database.session() as session:
        for one in facts:
            one.put(session)
    client = service_anywhere.client()
    query = f"since={now - 20 * DAY}&until={now}"
    found = client.get(f"/v1/reports/reliability?{query}").json()
    drained = [one for one in facts if one.state != "dismissed" and one.action != "migrate_ranks"]
    current = [one for one in drained if one.drained_at >= now - 20 * DAY]
    before = [one for one in drained if one not in current]
    verdicts = Counter(one.verdict(now) for one in drained)
    assert min(verdicts[name] for name in ("false_drains", "confirmed", "not_validated", "undecided")) > 5
    assert_counts(found["summary"]["drains"], current, now)
    assert_counts(found["before"]["drains"], before, now)
    assert [row["detector"] for row in found["detectors"]] == ["ecc_detector", "xid_detector"]
    for row in found["detectors"]:
        own = [one for one in current if row["detector"] in {KINDS[kind] for kind in one.all_kinds}]
        assert_counts(row, own, now)
    table = csv.DictReader(io.StringIO(client.get(f"/v1/reports/reliability.csv?{query}&table=detectors").text))
    assert [int(row["false_drains"]) for row in table] == [row["false_drains"] for row in found["detectors"]]


def test_a_validation_after_the_next_drain_says_nothing_of_the_first(service: Running) -> None:
    service.hold_still()
    now = float(int(service.services.clock.now()))
    first = Facts("n", now - 20 * DAY, ["xid"], [(3 * DAY, "pass")], -DAY, None, None)
    with service.services.database.session() as session:
        first.put(session)
        session.flush()
        session.add(RemediationRow(
            id="second", incident_id="n", node="n", state="done", recommended_action="reset_gpu", dry_run=False,
            reason="", rules=[], tried=[], created_at=now, decided_at=now - 18 * DAY, decided_by="mainstay",
        ))  # fmt: skip
    drains = service.client().get("/v1/reports/reliability").json()["summary"]["drains"]
    assert (drains["drains"], drains["not_validated"], drains["false_drains"]) == (2, 1, 1)


def test_a_drain_is_false_only_after_seven_days() -> None:
    drain = Drain(
        drained_at=0.0, detectors=frozenset({"x"}), validated_at=100.0, passed=True, repaired=False, recurred=False
    )
    assert (drain.verdict(100 + 7 * DAY - 1), drain.verdict(100 + 7 * DAY)) == ("undecided", "false")


@pytest.mark.parametrize(
    ("count", "of", "low", "high"),
    [(0, 10, 0.0, 0.27753), (1, 10, 0.01788, 0.40415), (5, 10, 0.23659, 0.76341), (81, 263, 0.25528, 0.36620)],
)
def test_limits_of_a_ratio(count: int, of: int, low: float, high: float) -> None:
    """Wilson intervals; 81 of 263 is Newcombe 1998, table I."""
    assert binomial_limits(count, of) == pytest.approx((low, high), abs=1e-4)
    assert binomial_limits(of - count, of) == pytest.approx((1 - high, 1 - low), abs=1e-4)
