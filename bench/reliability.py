"""How long a reliability report takes.

``python -m bench.reliability [--json FILE]``. Generated history of 90 days: 10,000 nodes with 80,000 GPUs, 1,000 jobs
of 20 teams, 20,000 incidents with a finding each, 5,000 recoveries, 30,000 transitions of nodes, 4,000 drains, and
80,000 validations, on SQLite and on PostgreSQL. The fleet is in memory, as in the service.
"""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
from sqlalchemy import insert

from bench.lib_cluster import postgres
from bench.report import Row, publish, target_file
from mainstay.service.auth.models import TeamRow
from mainstay.service.common import migrate
from mainstay.service.common.db import Database
from mainstay.service.fleet.directory import FleetDirectory
from mainstay.service.fleet.models import DeviceRow, NodeRow, TransitionRow
from mainstay.service.incidents.models import FindingRow, IncidentRow
from mainstay.service.jobs.models import JobRow, RecoveryRow
from mainstay.service.remediation.models import RemediationRow
from mainstay.service.reports.reliability import Period
from mainstay.service.reports.service import report
from mainstay.service.server import tune_gc
from mainstay.service.validation.models import ValidationRow

DAY: Final = 86_400.0
NOW: Final = 1_800_000_000.0
NODES, JOBS, INCIDENTS, RECOVERIES, MOVES = 10_000, 1_000, 20_000, 5_000, 30_000
DRAINS, VALIDATIONS = 4_000, 80_000
ROUNDS: Final = 7
TEAMS: Final = 20
CAUSES: Final = ("faulty_gpu", "network", "host", "software", None)
PERIOD: Final = Period(since=NOW - 90 * DAY, until=NOW)


def put_history(database: Database, rng: random.Random) -> None:
    def at() -> float:
        return NOW - rng.random() * 180 * DAY  # twice the period: it has one before it

    with database.session() as session:
        session.execute(
            insert(NodeRow),
            [_node(n) for n in range(NODES)],
        )
        session.execute(insert(DeviceRow), [_gpu(f"n{n}", gpu, n % 3) for n in range(NODES) for gpu in range(8)])
        session.execute(insert(TeamRow), [_team(number) for number in range(TEAMS)])
        session.execute(insert(JobRow), [_job(f"j{n}", at(), rng) for n in range(JOBS)])
        session.execute(insert(IncidentRow), [_incident(f"i{n}", at(), rng) for n in range(INCIDENTS)])
        session.execute(insert(RecoveryRow), [_recovery(f"r{n}", at(), rng) for n in range(RECOVERIES)])
        drains = [_drain(n, rng) for n in range(DRAINS)]
        session.execute(insert(FindingRow), [_finding(n, at(), rng) for n in range(INCIDENTS)])
        session.execute(insert(RemediationRow), drains)
        session.execute(insert(ValidationRow), [_validation(n, drains[n % DRAINS], rng) for n in range(VALIDATIONS)])
        session.execute(insert(TransitionRow), [_move(n, NOW - 180 * DAY * (1 - n / MOVES)) for n in range(MOVES)])


def _node(number: int) -> dict[str, Any]:
    return {"name": f"n{number}", "cohort": f"c{number % 4}", "gpus": 8, "first_seen_at": NOW - 200 * DAY}


def _gpu(node: str, number: int, batch: int) -> dict[str, Any]:
    return {
        "node": node, "id": f"gpu{number}", "index": number, "kind": "gpu", "model": "H100", "present": True,
        "facts": {"vbios": f"96.{batch}"}, "first_seen_at": NOW - 200 * DAY, "last_seen_at": NOW,
    }  # fmt: skip


def _team(number: int) -> dict[str, Any]:
    """Some jobs are in two teams, others in none."""
    return {"name": f"t{number}", "jobs": [f"j{number}*", f"j9{number}*"], "groups": [], "changed_at": NOW}


def _job(name: str, start: float, rng: random.Random) -> dict[str, Any]:
    end = min(NOW, start + rng.random() * 20 * DAY)
    return {
        "id": name, "name": name, "state": "finished", "generation": 1, "command": "", "protection": {},
        "topology": {"world_size": 1024, "ranks": []}, "last_step": 10_000, "started_at": start, "finished_at": end,
        "last_seen_at": end,
    }  # fmt: skip


def _incident(name: str, at: float, rng: random.Random) -> dict[str, Any]:
    return {
        "id": name, "title": name, "summary": "", "state": "closed", "version": 1, "severity": "critical",
        "needs_operator": False, "opened_at": at, "recovered_at": at + rng.random() * 600, "closed_at": at + 700,
        "updated_at": at, "ranks": [], "kinds": ["xid"], "cause": rng.choice(CAUSES),
        "node": f"n{rng.randrange(NODES)}", "device": rng.choice([None, f"gpu{rng.randrange(8)}"]),
    }  # fmt: skip


def _recovery(name: str, at: float, rng: random.Random) -> dict[str, Any]:
    return {
        "id": name, "job": f"j{rng.randrange(JOBS)}", "failed_at": float(int(at)),
        "recovered_at": float(int(at) + rng.randrange(1, 900)), "failed_ranks": [1], "steps_lost": rng.randrange(20),
        "parts": {"detect": 1.0}, "outcome": "verified", "absent_ranks": rng.choice([0, 0, 8]),
        "incident_id": f"i{rng.randrange(INCIDENTS)}",
    }  # fmt: skip


def _move(number: int, at: float) -> dict[str, Any]:
    """Each node leaves service, and returns with its next transition."""
    node, turn = number % NODES, number // NODES
    before, after = (("healthy", "quarantined"), ("quarantined", "healthy"))[turn % 2]
    return {
        "id": f"t{number}", "node": f"n{node}", "version": turn + 1, "time": at, "trigger": "drain",
        "from_state": before, "to_state": after, "owner": "operator", "actor": "bench", "reason": "",
    }  # fmt: skip


def _finding(number: int, at: float, rng: random.Random) -> dict[str, Any]:
    return {
        "id": f"f{number}", "key": f"f{number}", "kind": rng.choice(["xid", "ecc_uncorrectable"]), "time": at,
        "node": f"n{number % NODES}", "severity": "critical", "detector": rng.choice(["xid", "ecc"]),
        "confidence": 1.0, "evidence": {}, "active": False, "recommended_action": "reset_gpu",
        "incident_id": f"i{number}",
    }  # fmt: skip


def _drain(number: int, rng: random.Random) -> dict[str, Any]:
    at = NOW - rng.random() * 180 * DAY
    return {
        "id": f"m{number}", "incident_id": f"i{number}", "node": f"n{number % NODES}", "state": "done",
        "recommended_action": "reset_gpu", "dry_run": False, "reason": "", "rules": [], "tried": [],
        "created_at": at, "decided_at": at, "decided_by": "mainstay", "ended_at": at + 3600, "version_seen": 1,
    }  # fmt: skip


def _validation(number: int, drain: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Most belong to sweeps before and after the drain."""
    at = drain["decided_at"] + (1800 if number < DRAINS else (rng.random() - 0.5) * 180 * DAY)
    return {
        "id": f"v{number}", "node": drain["node"], "suite": "deep", "state": "done", "reason": "",
        "verdict": rng.choice(["pass", "pass", "fail", "unknown"]), "created_at": at, "deadline_at": at + 900,
        "started_at": at, "finished_at": at + 600,
    }  # fmt: skip


def measure(name: str, database: Database) -> list[Row]:
    migrate.upgrade(database)
    put_history(database, random.Random(1))
    took = []
    with database.reading() as session:
        fleet = FleetDirectory(keep_changes=1000).current(session).nodes
    tune_gc()  # as the service does
    for _ in range(ROUNDS):
        with database.reading() as session:
            began = time.perf_counter()
            found = report(session, PERIOD, fleet, restart_seconds=600.0, checkpoint_seconds=3600.0, now=NOW)
            took.append(time.perf_counter() - began)
    size = f"{NODES:,} nodes, {JOBS:,} jobs, 90 days, {name}"
    median = float(np.median(took))
    note = (
        f"{found.summary.incidents} incidents, {found.summary.drains.drains} drains, {found.summary.recoveries}"
        f" recoveries, {len(found.teams)} teams, and {len(found.batches)} batches of GPUs in the period"
    )
    return [
        Row(
            claim=f"report of {size}: median", figure=median, unit="s", target="<= 1", holds=median <= 1.0,
            kind="live", n=ROUNDS, note=note,
        )
    ]  # fmt: skip


def main() -> None:
    file = target_file("reliability")
    with tempfile.TemporaryDirectory() as place:
        database = Database(f"sqlite:///{Path(place) / 'mainstay.db'}")
        rows = measure("SQLite", database)
        database.close()
    with postgres(0) as (_, server):
        database = Database(server.url)
        rows += measure("PostgreSQL", database)
        database.close()
    publish("reliability", rows, file)


if __name__ == "__main__":
    main()
