"""One process at a time holds a lease, and no transaction of an earlier holder commits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.exc import DBAPIError

from mainstay.detectors.base import DetectorState, DetectorStatus
from mainstay.detectors.hang.detector import JobActivity
from mainstay.service.cluster.leases import LeaseLostError, Leases, Process
from mainstay.service.cluster.status import read_shared
from mainstay.service.common.clock import SystemClock
from mainstay.service.common.db import Database, fenced
from mainstay.service.incidents.detector_status import DetectorStatusCache, JobAccount, SharedDetectorStatus
from mainstay.service.stream.changes import Topic, record_change
from mainstay.service.stream.models import ChangeRow
from tests.service.conftest import wait_until

SECONDS = 1.0


@pytest.fixture
def two(databases: Any, migrated_template: str) -> Iterator[tuple[Leases, Leases]]:
    """Two processes on one PostgreSQL, each with an elected turn that records a change."""
    url = databases.make(template=migrated_template)
    both = [Database(url), Database(url)]
    yield tuple(
        Leases(database, Process(url=f"http://{n}", started_at=0.0), SECONDS) for n, database in enumerate(both)
    )  # type: ignore[misc]
    for database in both:
        database.close()
    databases.drop(url)


def elect(leases: Leases, made: list[str], name: str = "work") -> Callable[[], None]:
    """A turn that writes, and notes each time that it is made."""

    def make() -> Callable[[], None]:
        made.append(leases.process.url)
        return write

    def write() -> None:
        with leases.database.session() as session:
            record_change(session, Topic.EVENT, {"id": leases.process.url})

    return leases.elect(name, make)


def hold(leases: Leases) -> int:
    """Take the lease ``work``, which no process holds; the epoch."""
    for _ in range(2):  # the first adds the row
        leases.renew()
    epoch = leases.epoch("work")
    assert epoch is not None
    return epoch


def written(leases: Leases) -> list[str]:
    with leases.database.reading() as session:
        return [data["id"] for data in session.scalars(select(ChangeRow.data))]


@pytest.mark.postgres
def test_one_of_two_processes_works(two) -> None:
    made: list[str] = []
    turns = [elect(leases, made) for leases in two]
    for _ in range(3):
        for leases, turn in zip(two, turns, strict=True):
            leases.renew()
            leases.renew()  # the first adds the row
            turn()
    assert made == ["http://0"]
    assert set(written(two[0])) == {"http://0"}


@pytest.mark.postgres
def test_another_takes_over_when_the_holder_is_silent_and_starts_anew(two) -> None:
    first, second = two
    made: list[str] = []
    turns = [elect(leases, made) for leases in two]
    hold(first)
    turns[0]()

    def taken() -> bool:
        second.renew()
        turns[1]()
        return "http://1" in made

    wait_until(taken)
    first.renew()
    turns[0]()
    assert first.epoch("work") is None
    assert made == ["http://0", "http://1"]
    second.release()
    first.renew()
    turns[0]()
    assert made == ["http://0", "http://1", "http://0"], "a new term remembers nothing of an earlier one"


def elect_shards(leases: Leases) -> None:
    for number in range(4):
        leases.elect(f"shard-{number}", lambda: lambda: None, spread=True)


def held(leases: Leases) -> list[int]:
    """The shards that a process holds."""
    return [number for number in range(4) if leases.epoch(f"shard-{number}") is not None]


def renewed(*processes: Leases) -> list[list[int]]:
    """The shards that each holds after it renewed its leases."""
    for leases in processes:
        leases.renew()
    return [held(leases) for leases in processes]


@pytest.mark.postgres
def test_processes_share_the_leases_that_are_spread(two) -> None:
    first, second = two
    elect_shards(first)
    wait_until(lambda: renewed(first) == [[0, 1, 2, 3]])  # alone, a process works on all
    elect_shards(second)

    def spread() -> bool:
        mine, theirs = renewed(*two)
        return len(mine) == len(theirs) == 2 and {*mine, *theirs} == {0, 1, 2, 3}

    wait_until(spread)
    first.release()
    wait_until(lambda: renewed(second) == [[0, 1, 2, 3]])
    first.process = Process(url="http://again", started_at=0.0)
    wait_until(spread)


@pytest.mark.postgres
def test_a_process_that_is_lost_leaves_its_share_to_the_others(two) -> None:
    first, second = two
    for leases in two:
        elect_shards(leases)
    wait_until(lambda: [len(shards) for shards in renewed(*two)] == [2, 2])
    wait_until(lambda: renewed(second) == [[0, 1, 2, 3]])
    assert held(first) == [], "it holds nothing of what another works on now"


@pytest.mark.postgres
def test_a_turn_forgets_what_it_knew_of_a_lease_that_is_lost(two) -> None:
    first, second = two
    made: list[str] = []
    turn = elect(first, made)
    elect(second, made)
    hold(first)
    turn()
    wait_until(lambda: second.renew() is not None and second.epoch("work") is not None)
    first.renew()
    turn()
    assert turn._turn is None  # type: ignore[attr-defined]


@pytest.mark.postgres
def test_a_holder_that_was_stopped_past_its_lease_writes_nothing(two) -> None:
    first, second = two
    made: list[str] = []
    stale = elect(first, made)
    elect(second, made)
    epoch = hold(first)

    def taken() -> bool:
        second.renew()
        return second.epoch("work") is not None

    wait_until(taken)
    assert second.epoch("work") == epoch + 1
    with first.database.session() as session, pytest.raises(LeaseLostError, match="another process holds the lease"):
        first.check(session, "work", epoch)
    first._held = {"work": (epoch, time.monotonic() + 60)}  # it woke before it looked at its clock
    stale()
    assert "stale" not in written(first)
    assert "http://0" not in written(first)


@pytest.mark.postgres
def test_a_holder_that_stops_within_a_transaction_keeps_nothing(two) -> None:
    first, second = two
    made: list[str] = []
    elect(first, made)
    elect(second, made)
    epoch = hold(first)

    def taken() -> bool:
        second.renew()
        return second.epoch("work") is not None

    def write_and_stop() -> None:
        with fenced(lambda session: first.check(session, "work", epoch)), first.database.session() as session:
            record_change(session, Topic.EVENT, {"id": "stopped"})
            session.flush()
            wait_until(taken)  # PostgreSQL ends the idle transaction, and its lock on the lease with it

    with pytest.raises(DBAPIError):
        write_and_stop()
    assert "stopped" not in written(second)


@pytest.mark.postgres
def test_renewing_does_not_wait_for_a_transaction_of_the_holder(two) -> None:
    first, second = two
    elect(first, [])
    elect(second, [])
    epoch = hold(first)
    deadline = time.monotonic() + 2.5 * SECONDS
    with fenced(lambda session: first.check(session, "work", epoch)), first.database.session() as session:
        while time.monotonic() < deadline:
            record_change(session, Topic.EVENT, {"id": "long"})
            session.flush()
            first.check(session, "work", epoch)
            first.renew()
            second.renew()
            assert second.epoch("work") is None
    assert "long" in written(first)
    assert first.epoch("work") == epoch


@pytest.mark.postgres
def test_the_status_names_who_does_what(two) -> None:
    first, second = two
    elect(first, [], "detection")
    elect(second, [], "detection")
    for leases in (first, first, second):
        leases.renew(pending=3, lag=0.25)
    with first.database.reading() as session:
        told = read_shared(session, 30.0)
    assert told.shared
    assert [(one.url, one.state, one.pending_frames, one.lag_seconds) for one in told.processes] == [
        ("http://0", "running", 3, 0.25),
        ("http://1", "running", 3, 0.25),
    ]
    (lease,) = told.leases
    assert (lease.name, lease.holder, lease.epoch) == ("detection", told.processes[0].id, 1)
    first.release()
    with first.database.reading() as session:
        told = read_shared(session, 30.0)
    assert told.processes[0].state == "stopped"
    assert told.leases[0].holder is None


def test_a_service_on_sqlite_holds_every_lease(tmp_path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'one.db'}")
    leases = Leases(database, Process(url="http://one", started_at=SystemClock().now()), SECONDS)
    turns: list[int] = []
    turn = leases.elect("work", lambda: lambda: turns.append(1))
    leases.renew()
    turn()
    assert turns == [1]
    assert leases.epoch("work") == 0
    leases.release()
    database.close()


@pytest.mark.postgres
def test_the_status_of_detectors_is_shown_by_every_process(two) -> None:
    accounts = [DetectorStatusCache(), DetectorStatusCache()]
    shared = [SharedDetectorStatus(leases, cache) for leases, cache in zip(two, accounts, strict=True)]
    for leases in two:
        elect(leases, [], "detection")
        leases.renew()
        leases.renew()
    noise = DetectorStatus(state=DetectorState.ABSTAINING, reason="too noisy", numbers={"noise": float("nan")})
    accounts[0].replace({"j": JobAccount([("step_time", noise)], JobActivity.MOVING)})
    for one in shared:
        one.run_once()
    seen = accounts[1].job_account("j")
    assert seen.activity is JobActivity.MOVING
    ((name, status),) = seen.detectors
    assert (name, status.state, status.reason) == ("step_time", DetectorState.ABSTAINING, "too noisy")
    assert status.numbers["noise"] != status.numbers["noise"], "a number that is none stays none"
