"""The fleet at a past time, and over a time, on both databases."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import insert, select

from mainstay.probes.core_types import HealthState
from mainstay.probes.ids import uuid7
from mainstay.service.fleet import past_states
from mainstay.service.fleet.lifecycle import NodeFacts, NodeTrigger, Owner
from mainstay.service.fleet.models import NodeRow, TransitionRow
from mainstay.service.fleet.transitions import TransitionActor, propose
from mainstay.service.incidents.models import IncidentRow
from mainstay.service.services import Services
from tests.fakes.clock import ManualClock

DAY = 86_400.0
START = 1_800_000_000.0
STATES = [state.value for state in HealthState]
ALICE = TransitionActor(Owner.OPERATOR, "alice")


def states_at(services: Services, at: float) -> dict[str, str]:
    with services.database.reading() as session:
        return past_states.states_at(session, at)


def put(services: Services, name: str, first_seen_at: float, state: str, *moves: tuple[float, int, str, str]) -> None:
    """Store a node and its transitions: time, version, and the states before and after."""
    rows = [
        {"id": f"{9 - version}-{name}", "node": name, "version": version, "time": time, "from_state": before,
         "to_state": after, "trigger": "reported", "owner": "system", "actor": "mainstay", "reason": "",
         "incident": None}
        for time, version, before, after in moves
    ]  # fmt: skip
    with services.database.session() as session:
        session.add(NodeRow(name=name, first_seen_at=first_seen_at, state=state, state_version=len(moves)))
        session.flush()
        if rows:
            session.execute(insert(TransitionRow), rows)


@pytest.mark.parametrize(
    ("at", "states"),
    [
        (99.0, {}),
        (100.0, {"kept": "validating", "moved": "unknown", "tied": "unknown"}),
        (149.0, {"kept": "validating", "moved": "unknown", "tied": "unknown"}),
        (150.0, {"kept": "validating", "moved": "unknown", "tied": "unknown", "still": "unknown"}),
        (200.0, {"kept": "validating", "moved": "healthy", "tied": "unknown", "still": "unknown"}),
        (220.0, {"kept": "validating", "moved": "healthy", "tied": "suspect", "still": "unknown"}),
        (250.0, {"kept": "quarantined", "moved": "healthy", "tied": "suspect", "still": "unknown"}),
        (299.9, {"kept": "quarantined", "moved": "healthy", "tied": "suspect", "still": "unknown"}),
        (300.0, {"kept": "quarantined", "moved": "draining", "tied": "suspect", "still": "unknown"}),
    ],
)
def test_a_node_has_the_state_that_its_next_transition_left(
    services: Services, at: float, states: dict[str, str]
) -> None:
    put(services, "moved", 100.0, "draining", (200.0, 1, "unknown", "healthy"), (300.0, 2, "healthy", "draining"))
    put(services, "still", 150.0, "unknown")
    put(services, "kept", 100.0, "quarantined", (250.0, 7, "validating", "quarantined"))  # others were deleted
    # Two services with different clocks: one time, and the later transition has the smaller ID.
    put(services, "tied", 100.0, "suspect", (220.0, 1, "unknown", "healthy"), (220.0, 2, "healthy", "suspect"))
    assert states_at(services, at) == states


@pytest.mark.parametrize("seed", [1, 2])
def test_replaying_the_transitions_gives_the_same(services: Services, seed: int) -> None:
    chosen = random.Random(seed)
    nodes = {f"n{index}": float(chosen.randrange(300)) for index in range(40)}
    with services.database.session() as session:
        rows = {name: NodeRow(name=name, first_seen_at=first) for name, first in nodes.items()}
        session.add_all(rows.values())
        opened = [float(chosen.randrange(1000)) for _ in range(20)]
        session.add_all(
            IncidentRow(id=uuid7(), opened_at=at, updated_at=at, state="open", version=0, severity="info",
                        needs_operator=False, title="", summary="", kinds=[], ranks=[])
            for at in opened
        )  # fmt: skip
        session.flush()
        for now in sorted(chosen.randrange(300, 1000) for _ in range(200)):
            row = rows[chosen.choice(sorted(rows))]
            facts = NodeFacts(state=HealthState(row.state), suspected=chosen.random() < 0.3)
            trigger = chosen.choice(list(NodeTrigger))
            propose(session, row, trigger, reason="because", now=float(now), known=facts, mover=ALICE)
            propose(session, row, chosen.choice(list(NodeTrigger)), reason="because", now=float(now), known=facts)
    with services.database.reading() as reader:
        moves = reader.scalars(select(TransitionRow).order_by(TransitionRow.node, TransitionRow.version)).all()
    assert len(moves) > 50

    def replay(at: float) -> dict[str, str]:
        states = {name: "unknown" for name, first in nodes.items() if first <= at}
        states |= {move.node: move.to_state for move in moves if move.time <= at}
        return states

    times = [move.time for move in moves[::9]] + [chosen.uniform(0, 1000) for _ in range(20)]
    assert all(states_at(services, at) == replay(at) for at in times)
    for since, until, buckets in ((0.0, 1100.0, 11), (250.0, 750.0, 200), (-5.0, 40.0, 1), (0.1, 999.7, 37)):
        span = past_states.Timespan(since, until, buckets)
        with services.database.reading() as reader:
            counts = past_states.count_states(reader, span)
            incidents = past_states.count_incidents(reader, span)
        for row, at in zip(counts, span.ends, strict=True):
            held = Counter(replay(float(at)).values())
            assert [held[state] for state in STATES] == row.tolist(), at
        edges = pairwise([since, *span.ends])
        assert incidents.tolist() == [sum(start < at <= end for at in opened) for start, end in edges]


def test_the_map_is_unknown_where_no_history_is_kept(
    start: Callable[..., Any], database_url: str, report: dict[str, Any]
) -> None:
    clock = ManualClock(START)
    service = start(clock, database_url=database_url, retention={"days": 2})
    service.hold_still()
    admin = service.client()
    assert admin.put("/v1/nodes/n1", json=report).status_code == 200
    before = admin.get("/v1/nodes/n1").json()["state"]
    clock.advance(3600)
    assert admin.post("/v1/nodes/n1:drain", json={"reason": "fan"}).status_code == 200
    clock.advance(3600)

    def snapshot(at: float | None) -> tuple[list[str | None], float]:
        answer = admin.get("/v1/fleet/heatmap", params={} if at is None else {"at": at})
        assert answer.status_code == 200, answer.text
        assert float(answer.headers["x-mainstay-time"]) == (clock.now() if at is None else at)
        states = [STATES[byte] if byte < 250 else None for byte in answer.content]
        return states, float(answer.headers["x-mainstay-history-since"])

    assert snapshot(None) == (["draining"], START)
    assert snapshot(START + 3599) == ([before], START)
    assert snapshot(START + 3600) == (["draining"], START)
    assert snapshot(START - 1) == ([None], START), "no node was known"
    assert snapshot(clock.now() + 1) == ([None], START), "the future"
    history = admin.get("/v1/fleet/history", params={"since": START - 3600, "buckets": 3}).json()
    assert history["times"] == [START, START + 3600, START + 7200]
    assert [history["states"][state] for state in (before, "draining")] == [[1, 0, 0], [0, 1, 1]]
    clock.advance(2 * DAY)
    assert snapshot(START + 3600) == ([None], START + 7200), "deleted by now"
    history = admin.get("/v1/fleet/history", params={"since": START, "buckets": 50}).json()
    assert (history["states"]["draining"][:3], history["known_since"]) == ([0, 1, 1], START + 7200)
    refused = admin.get("/v1/fleet/heatmap", params={"signal": "gpu_power", "at": START})
    assert refused.status_code == 422
    assert "only 'state' has" in refused.json()["detail"]
    assert admin.get("/v1/fleet/history", params={"since": clock.now()}).status_code == 422
