"""A key is done once: replayed after, refused meanwhile, given back on failure. Over a small app of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from fastapi import FastAPI
from pydantic import Field
from sqlalchemy import delete, func, select

from mainstay.service.common import idempotency, migrate
from mainstay.service.common.db import Database, Writing
from mainstay.service.common.idempotency import Idempotency, IdempotencyRow, KeyInFlightError, StoredResponse, claim
from mainstay.service.common.problem import ConflictError
from mainstay.service.common.problem import install as install_problems
from mainstay.service.common.schemas import Input, Output
from mainstay.service.telemetry.models import CatalogRow
from tests.fakes.clock import ManualClock


class Order(Input):
    name: str


class Done(Output):
    name: str
    number: int
    passed: int = Field(default=0, alias="pass")  # as verdicts are counted: a replay must keep the outer name


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    made = Database(database_url)
    migrate.upgrade(made)
    yield made
    made.close()


class Desk:
    """Places orders; each is a row."""

    def __init__(self, database: Database) -> None:
        self.app, self.clock, self.gate = FastAPI(), ManualClock(1_800_000_000.0), threading.Event()
        self.app.state.database, self.app.state.clock = database, self.clock
        self.entered = threading.Event()
        self.gate.set()
        install_problems(self.app)
        idempotency.install(self.app)
        self.app.post("/orders", status_code=202)(self.place)

    def place(self, body: Order, guard: Idempotency, session: Writing) -> Done:
        self.entered.set()
        self.gate.wait(10)
        if body.name == "bad":
            raise ConflictError("cannot be done")
        count = session.scalar(select(func.count()).select_from(CatalogRow)) or 0
        digest = body.name if len(body.name) == 16 else f"{count:016d}"
        session.add(CatalogRow(digest=digest, narrow=[], wide=[], created_at=0.0))
        return guard.remember(session, Done(name=body.name, number=count), status=202)


@pytest.fixture
def desk(database: Database) -> Desk:
    return Desk(database)


async def send(desk: Desk, name: str, key: str | None, token: str = "t") -> httpx.Response:
    headers = {"Authorization": f"Bearer {token}"} | ({"Idempotency-Key": key} if key else {})
    transport = httpx.ASGITransport(app=desk.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://desk") as client:
        return await client.post("/orders", json={"name": name}, headers=headers)


def post(desk: Desk, name: str, key: str | None, token: str = "t") -> httpx.Response:
    return asyncio.run(send(desk, name, key, token))


def test_more_keys_at_once_than_there_are_threads_are_all_done(desk: Desk) -> None:
    """Were each to wait for its claim in a thread, none would be left for the request that writes."""

    async def at_once() -> list[httpx.Response]:
        return await asyncio.gather(*(send(desk, f"{number:016x}", f"k{number}") for number in range(90)))

    answers = asyncio.run(at_once())
    assert {answer.status_code for answer in answers} == {202}


def test_the_same_key_is_done_once(desk: Desk) -> None:
    first, second = post(desk, "a", "k1"), post(desk, "a", "k1")
    assert first.json() == second.json() == {"name": "a", "number": 0, "pass": 0}
    assert (first.status_code, second.status_code) == (202, 202)
    assert "idempotency-replayed" not in first.headers
    assert second.headers["idempotency-replayed"] == "true"
    assert post(desk, "a", "k2").json()["number"] == 1
    assert post(desk, "a", None).json()["number"] == 2, "without a key each request is its own"


def test_another_body_under_the_key_is_refused(desk: Desk) -> None:
    post(desk, "a", "k1")
    answer = post(desk, "b", "k1")
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:mainstay:problem:idempotency-mismatch")


def test_keys_of_different_callers_are_different(desk: Desk) -> None:
    assert post(desk, "a", "k1", "t1").json()["number"] == 0
    assert post(desk, "a", "k1", "t2").json()["number"] == 1


def test_a_failure_gives_the_key_back(desk: Desk, database: Database) -> None:
    assert post(desk, "bad", "k1").status_code == 409
    with database.reading() as session:
        assert session.scalar(select(func.count()).select_from(IdempotencyRow)) == 0
    assert post(desk, "good", "k1").status_code == 202


def test_meanwhile_the_key_is_taken(desk: Desk) -> None:
    desk.gate.clear()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(post, desk, "a", "k1")
        assert desk.entered.wait(10)
        second = post(desk, "a", "k1")
        desk.gate.set()
        assert first.result().status_code == 202
    assert (second.status_code, second.json()["type"]) == (409, "urn:mainstay:problem:idempotency-in-flight")


def test_the_claim_of_a_dead_process_expires(database: Database) -> None:
    claim(database, scope="s", fingerprint="f", now=1000.0)
    with pytest.raises(KeyInFlightError):
        claim(database, scope="s", fingerprint="f", now=1030.0)
    claim(database, scope="s", fingerprint="f", now=1061.0)


def test_old_answers_are_forgotten(desk: Desk, database: Database) -> None:
    post(desk, "a", "k1")
    with database.reading() as session:
        scope = session.scalars(select(IdempotencyRow)).one()
    with pytest.raises(StoredResponse):
        claim(database, scope=scope.scope, fingerprint=scope.fingerprint, now=desk.clock.now() + 10)
    with database.session() as session:
        idempotency.prune(session, desk.clock.now() + 2 * 86_400)
        assert session.scalar(select(func.count()).select_from(IdempotencyRow)) == 0
        session.execute(delete(CatalogRow))


@pytest.mark.parametrize("key", ["", "x" * 256])
def test_strange_keys_are_refused(desk: Desk, key: str) -> None:
    import asyncio

    async def send_request() -> int:
        transport = httpx.ASGITransport(app=desk.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://desk") as client:
            answer = await client.post("/orders", json={"name": "a"}, headers={"Idempotency-Key": key})
            return answer.status_code

    assert asyncio.run(send_request()) == 422
