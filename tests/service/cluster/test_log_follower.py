"""Frames that one process of a service accepts are in the memory of the others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from sqlalchemy import Connection, Engine, event

from mainstay.service.telemetry import log_follower

pytestmark = pytest.mark.postgres


@pytest.fixture
def pair(start, databases: Any, migrated_template: str, tmp_path) -> Iterator[tuple[Any, Any]]:
    """Two services on one database."""
    url = databases.make(template=migrated_template)
    yield tuple(start(database_url=url, data_dir=tmp_path / name) for name in ("a", "b"))
    databases.drop(url)


def node_of(running: Any, name: str, report: dict[str, Any]) -> httpx.Client:
    client: httpx.Client = running.node_client(name)
    assert client.put(f"/v1/nodes/{name}", json=report).status_code == 200
    return client


def post(client: httpx.Client, url: str, body: bytes) -> int:
    return client.post(f"{url}/v1/telemetry/frames", content=body).status_code


def series(running: Any, token: str, signal: str) -> list[float]:
    answer = running.client(token).get("/v1/telemetry/query", params={"node": "n1", "signal": signal})
    assert answer.status_code == 200, answer.text
    return [value for line in answer.json()["series"] for value in line["mean"] if value is not None]


def test_a_chart_is_the_same_wherever_the_frames_went(pair, frames, report, eventually) -> None:
    a, b = pair
    client, newest = node_of(a, "n1", report), frames.frame(1).t0
    announce(client, frames)
    for sequence in range(1, 7):  # n1 sends to one, then to the other
        target = (a, b)[sequence % 2]
        t0 = float(int(newest) + 500 + 2 * sequence)
        assert post(client, target.url, frames.body(sequence, t0=t0)) == 204
    signal = frames.catalog.narrow[0]
    admin = a.admin_token
    eventually(lambda: len(series(a, admin, signal)) == len(series(b, admin, signal)) == 12)
    assert series(a, admin, signal) == series(b, admin, signal)
    assert a.services.follower.blocks == b.services.follower.blocks == 3
    assert a.services.seen.get("n1") is not None
    assert b.services.seen.get("n1") is not None


def test_a_repetition_at_another_process_is_a_duplicate(pair, frames, report, eventually) -> None:
    a, b = pair
    client = node_of(a, "n1", report)
    announce(client, frames)
    body = frames.body(1)
    assert post(client, a.url, body) == 204
    again = client.post(f"{b.url}/v1/telemetry/frames", content=body)
    assert (again.status_code, again.headers.get("x-mainstay-duplicate")) == (204, "1")
    eventually(lambda: b.services.follower.blocks == 1)
    assert a.services.follower.blocks == 0


def test_a_commit_of_which_its_process_did_not_learn_is_in_its_memory(
    pair, frames, report, eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_follower, "UNSURE_SECONDS", 1.0)
    a, b = pair
    client = node_of(a, "n1", report)
    announce(client, frames)
    body = frames.body(1, t0=float(int(frames.frame(1).t0) + 580))
    with lost_answer(a.services.database.engine):
        assert post(client, a.url, body) == 503
    assert post(client, b.url, body) == 204, "its sender turns to the other process"
    signal = frames.catalog.narrow[0]
    eventually(lambda: len(series(a, a.admin_token, signal)) == len(series(b, a.admin_token, signal)) == 2)
    follower = a.services.follower
    eventually(lambda: follower.store.writer not in follower._known)


@contextmanager
def lost_answer(engine: Engine) -> Iterator[None]:
    """The next commit of blocks happens, and the connection breaks before its process learns of it."""
    inside = list[Connection]()

    def note(connection: Connection, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("INSERT INTO block_commits"):
            inside.append(connection)

    def commit(connection: Connection) -> None:
        if connection in inside:
            inside.clear()
            raw: Any = connection.connection.dbapi_connection
            raw.commit()
            raw.close()

    event.listen(engine, "before_cursor_execute", note)
    event.listen(engine, "commit", commit)
    yield
    event.remove(engine, "before_cursor_execute", note)
    event.remove(engine, "commit", commit)


def test_a_process_that_stood_still_reads_the_last_minutes_again(pair, frames, report, eventually) -> None:
    a, b = pair
    client = node_of(a, "n1", report)
    announce(client, frames)
    b.hold_still()
    follower = b.services.follower
    t0 = float(int(frames.frame(1).t0) + 580)
    assert post(client, a.url, frames.body(1, t0=t0)) == 204
    a.services.follower.store.forget_commits(0.0)
    follower.run_once()
    assert follower.blocks == 0, "no row names the commit"
    follower._read_at -= log_follower.KEEP_SECONDS
    follower.run_once()
    signal = frames.catalog.narrow[0]
    assert len(series(b, a.admin_token, signal)) == 2


def announce(client: httpx.Client, frames: Any) -> None:
    catalog = frames.catalog
    body = {"narrow": list(catalog.narrow), "wide": list(catalog.wide)}
    assert client.put(f"/v1/telemetry/catalogs/{catalog.digest}", json=body).status_code == 204
