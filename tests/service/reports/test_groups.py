"""Teams, components, batches, and cohorts of a random history: equal to a recomputation from its rows, one by one."""

from __future__ import annotations

import csv
import io
import random
from collections.abc import Callable
from typing import Any

import pytest

from mainstay.detectors.finding import Cause, FindingKind
from mainstay.probes.ids import uuid7
from mainstay.service.auth.models import TeamRow
from mainstay.service.fleet.models import DeviceRow, NodeRow, TransitionRow
from mainstay.service.incidents.models import IncidentRow
from mainstay.service.jobs.models import JobRow, RecoveryRow
from mainstay.service.reports.components import Component, component_of
from mainstay.service.reports.reliability import poisson_limits
from mainstay.service.stream.changes import Topic, record_change
from tests.service.conftest import Running

Json = dict[str, Any]
HOUR, DAY = 3600.0, 86_400.0
PARTS = {
    "gpu": ("faulty_gpu", "gpu_memory"), "gpu_link": ("gpu_link",), "network": ("nic", "network"),
    "host": ("host",), "storage": ("storage",), "other": ("software",), "unknown": (None, "collective_timeout"),
}  # fmt: skip
TEAMS = {"vision": ["v*", "shared"], "speech": ["s-1", "sh*"], "idle": ["none-*"]}
GPUS = 2


class History:
    """Rows of ten days, and what they say, counted in the plainest way."""

    def __init__(self, now: float) -> None:
        draw = random.Random(11)
        self.now, self.since = now, now - 10 * DAY
        self.nodes = {f"n{number}": ("ab"[number % 2], "xy"[number // 3]) for number in range(6)}
        """Node → its cohort and the VBIOS of its GPUs; the last node has GPUs of two."""
        self.out = {"n1": (now - 5 * DAY, now - 4 * DAY), "n4": (now - 12 * DAY, now - 9 * DAY)}
        names = ("v-1", "v-2", "s-1", "shared", "lone", "s-10")
        self.jobs = {name: (2 ** (place + 1), now - (place + 2) * DAY) for place, name in enumerate(names)}
        """Job → its ranks and its start; it ends now."""
        self.stops = [
            (draw.choice(names), now - draw.randrange(1, 40) * HOUR, draw.randrange(60, 900)) for _ in range(9)
        ]
        """Job, start, and seconds of a recovery."""
        self.incidents = [
            (now - draw.randrange(1, 300) * HOUR, part, draw.choice(PARTS[part]), draw.choice([*self.nodes]),
             draw.choice([None, "gpu0", "gpu1"]), draw.randrange(10, 900))
            for part in (draw.choice([*PARTS]) for _ in range(60))
        ]  # fmt: skip

    def put(self, session: Any) -> None:
        for team, patterns in TEAMS.items():
            session.add(TeamRow(name=team, jobs=patterns, groups=[], changed_at=self.now))
        for name, (cohort, _) in self.nodes.items():
            session.add(NodeRow(name=name, cohort=cohort, gpus=GPUS, first_seen_at=self.now - 99 * DAY))
            session.flush()
            for number in range(GPUS):
                session.add(DeviceRow(
                    node=name, id=f"gpu{number}", index=number, kind="gpu", model="H100", present=True,
                    facts={"vbios": self.vbios(name, f"gpu{number}")}, first_seen_at=0.0, last_seen_at=self.now,
                ))  # fmt: skip
            record_change(session, Topic.NODE, {"id": name, "reason": "reported"})
        for name, times in self.out.items():
            for version, time in enumerate(times):
                before, after = (("healthy", "quarantined"), ("quarantined", "healthy"))[version]
                session.add(TransitionRow(
                    id=uuid7(), node=name, version=version, time=time, trigger="drain", from_state=before,
                    to_state=after, owner="operator", actor="ada", reason="r",
                ))  # fmt: skip
        for name, (ranks, start) in self.jobs.items():
            session.add(JobRow(
                id=name, name=name, state="running", generation=1, command="", protection={}, last_step=1000,
                topology={"world_size": ranks, "ranks": []}, started_at=start, finished_at=self.now,
                last_seen_at=self.now,
            ))  # fmt: skip
        for number, (time, _, cause, node, device, seconds) in enumerate(self.incidents):
            session.add(IncidentRow(
                id=f"i{number}", title="t", summary="s", state="closed", version=1, severity="critical",
                needs_operator=False, opened_at=time, recovered_at=time + seconds, closed_at=time + seconds,
                updated_at=time, ranks=[], kinds=["xid"], cause=cause, node=node, device=device,
            ))  # fmt: skip
        session.flush()
        for number, (job, time, seconds) in enumerate(self.stops):
            session.add(RecoveryRow(
                id=f"r{number}", job=job, generation=1, failed_at=time, recovered_at=time + seconds, failed_ranks=[1],
                steps_lost=0, parts={}, outcome="verified",
            ))  # fmt: skip

    def vbios(self, node: str, device: str) -> str:
        return f"96.{self.nodes[node][1]}{'2' if (node, device) == ('n5', 'gpu1') else ''}"

    def hours(self, node: str) -> float:
        """In service within the period, counted hour by hour."""
        start, end = self.out.get(node, (0.0, 0.0))
        steps = (self.since + hour * HOUR for hour in range(240))
        return float(sum(not start <= moment < end for moment in steps))

    def stands(self, job: str) -> int:
        """Seconds in which a job stood still, each once."""
        stops = [(int(start), seconds) for name, start, seconds in self.stops if name == job]
        return len({second for start, seconds in stops for second in range(start, start + seconds)})


def assert_between(found: Json, hours: float, failures: int) -> None:
    low, high = poisson_limits(failures)
    assert found["exposure_hours"] == pytest.approx(hours, rel=1e-6)
    assert found["failures"] == failures
    assert found["hours"] == (pytest.approx(hours / failures) if failures else None)
    assert found["low"] == pytest.approx(hours / high)
    assert found["high"] == (pytest.approx(hours / low) if failures else None)


@pytest.fixture
def answers(service_anywhere: Running) -> tuple[History, Json, Callable[[str], list[dict[str, str]]]]:
    service_anywhere.hold_still()
    now = float(int(service_anywhere.services.clock.now() / HOUR) * HOUR)
    history = History(now)
    with service_anywhere.services.database.session() as session:
        history.put(session)
    client = service_anywhere.client()
    query = f"since={history.since}&until={now}"

    def table(name: str) -> list[dict[str, str]]:
        answer = client.get(f"/v1/reports/reliability.csv?{query}&table={name}")
        assert answer.status_code == 200, answer.text
        return list(csv.DictReader(io.StringIO(answer.text)))

    found: Json = client.get(f"/v1/reports/reliability?{query}").json()
    return history, found, table


def test_the_groups_equal_a_recomputation(answers: Any) -> None:
    history, found, table = answers
    in_period = [one for one in history.incidents if one[0] >= history.since]
    assert len(in_period) > 30
    _assert_teams(history, found)
    for row in found["components"]:
        own = [one for one in in_period if one[1] == row["component"]]
        each = GPUS if row["component"] == "gpu" else 1
        assert row["unit"] == ("gpu" if each > 1 else "node")
        assert_between(row["between_failures"], each * sum(map(history.hours, history.nodes)), len(own))
        mean = sum(one[5] for one in own) / len(own) if own else None
        assert row["mean_repair_seconds"] == (None if mean is None else pytest.approx(mean))
    for row in found["cohorts"]:
        members = [node for node, (cohort, _) in history.nodes.items() if cohort == row["cohort"]]
        own = [one for one in in_period if one[3] in members]
        assert_between(row["between_failures"], sum(map(history.hours, members)), len(own))
        assert row["mean_repair_seconds"] == pytest.approx(sum(one[5] for one in own) / len(own))
    _assert_batches(history, found, [one for one in in_period if one[1] == "gpu"])
    for name, rows in (("components", 7), ("batches", 3), ("cohorts", 2), ("teams", 4), ("causes", 11), ("nodes", 6)):
        assert len(table(name)) <= rows, name
    line = next(row for row in table("components") if row["component"] == "host")
    same = next(row for row in found["components"] if row["component"] == "host")
    assert float(line["between_low"]) == pytest.approx(same["between_failures"]["low"])
    assert line["mean_repair_seconds"] == str(same["mean_repair_seconds"] or "")


def _assert_teams(history: History, found: Json) -> None:
    members = {"vision": ["v-1", "v-2", "shared"], "speech": ["s-1", "shared"], "idle": [], None: ["lone", "s-10"]}
    assert [row["team"] for row in found["teams"]] == ["idle", "speech", "vision", None]
    for row in found["teams"]:
        own = {name: history.jobs[name] for name in members[row["team"]]}
        gpu_hours = sum(ranks * (history.now - start) for ranks, start in own.values()) / HOUR
        lost = sum(ranks * history.stands(name) for name, (ranks, _) in own.items()) / HOUR
        assert row["jobs"] == len(own)
        assert row["shared_jobs"] == ("shared" in own)
        assert row["gpu_hours"] == pytest.approx(gpu_hours)
        assert row["lost_gpu_hours"] == pytest.approx(lost)
        assert row["productive_gpu_hours"] == pytest.approx(gpu_hours - lost)
        assert row["ettr"] == (pytest.approx(1 - lost / gpu_hours) if own else None)
        assert row["recoveries"] == sum(name in own for name, *_ in history.stops)


def _assert_batches(history: History, found: Json, failures: list[tuple[Any, ...]]) -> None:
    gpus = [(node, f"gpu{number}") for node in history.nodes for number in range(GPUS)]
    assert [row["firmware"] for row in found["batches"]] == ["96.x", "96.y", "96.y2"]
    counted = 0
    for row in found["batches"]:
        own = [gpu for gpu in gpus if history.vbios(*gpu) == row["firmware"]]
        # n5 has GPUs of two batches: a failure there that names no GPU is of neither.
        failed = [one for one in failures if (one[3], one[4] or "gpu0") in own and (one[4] or one[3] != "n5")]
        assert (row["model"], row["gpus"]) == ("H100", len(own))
        assert_between(row["between_failures"], sum(history.hours(node) for node, _ in own), len(failed))
        counted += len(failed)
    assert found["failures_in_no_batch"] == len(failures) - counted


def test_every_cause_is_one_component_or_unknown() -> None:
    unknown = {cause for cause in Cause if component_of(cause, ()) is Component.UNKNOWN}
    assert unknown == {Cause.COLLECTIVE_TIMEOUT}


def test_findings_name_a_component_only_where_they_agree() -> None:
    kinds = FindingKind
    assert component_of(None, [kinds.GPU_LOST, kinds.XID]) is Component.GPU
    assert component_of(None, [kinds.GPU_LOST, kinds.NIC_DEGRADED]) is Component.UNKNOWN
    assert component_of(None, [kinds.XID]) is Component.UNKNOWN, "an XID may come from software"
    assert component_of(None, []) is Component.UNKNOWN
    assert component_of("host", [kinds.GPU_LOST]) is Component.HOST, "the cause is nearer"
    assert component_of("of a newer version", [kinds.GPU_LOST]) is Component.UNKNOWN


def test_a_table_that_does_not_exist_is_refused(lasting_service: Running) -> None:
    answer = lasting_service.client().get("/v1/reports/reliability.csv?table=racks")
    assert answer.status_code == 422
    assert "table" in answer.text
