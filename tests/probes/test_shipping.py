"""From spool to service: in order, exactly once by sequence, with any answer of the service and without it."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.lib_receiver import Answer, Receiver, problem
from mainstay.probes.core_types import Event, EventKind
from mainstay.probes.frame import Axis
from mainstay.probes.ids import uuid7
from mainstay.probes.outbox import EventOutbox
from mainstay.probes.shipper import FrameSender
from mainstay.probes.signals import Catalog
from mainstay.probes.spool import Spool
from mainstay.probes.transport import Backoff, RejectedError, RetryableError, Transport

CATALOG = Catalog(("load_1m",), ("context_switches_total",))


def quick() -> Backoff:
    return Backoff(base=0.01, cap=0.05)


def put(sender: FrameSender, number: int, **changes: Any) -> int:
    frame: dict[str, Any] = {
        "subject": "node-1",
        "axis": Axis.TIME,
        "t0": 1000.0 + number,
        "dt": 1.0,
        "catalog": CATALOG,
        "entities": ("host",),
        "samples": 1,
        "values": struct.pack("<f", number),
        "wide": struct.pack("<q", number),
    }
    return sender.put(**(frame | changes))


def event(**data: Any) -> Event:
    return Event(id=uuid7(), time=time.time(), kind=EventKind.PROBE_UNRESPONSIVE, node="node-1", data=data)


def once(answer: Answer, when: Callable[[str, str, bytes], bool]) -> Callable[[str, str, bytes], Answer | None]:
    """Answer like this the first time that ``when`` holds."""
    left = [answer]
    return lambda method, path, body: left.pop() if left and when(method, path, body) else None


def is_frame(_method: str, path: str, _body: bytes) -> bool:
    return path.endswith("/frames")


def test_frames_arrive_in_order_with_the_spools_own_numbers(receiver: Receiver, tmp_path: Path) -> None:
    with Spool(tmp_path) as spool, FrameSender(spool, Transport(receiver.url), backoff=quick()) as sender:
        assert [put(sender, n) for n in range(20)] == list(range(1, 21))
        receiver.wait(lambda r: len(r.all_frames) == 20)
        assert spool.wait_empty(10)
        assert sender.delivered == 20
    assert set(receiver.frames) == {("node-1", spool.stream)}
    assert [frame.sequence for frame in receiver.all_frames] == list(range(1, 21))
    assert [frame.t0 for frame in receiver.all_frames] == [1000.0 + n for n in range(20)]
    assert receiver.duplicates == 0


def test_a_service_that_goes_away_and_comes_back_has_everything_once(tmp_path: Path) -> None:
    receiver = Receiver().start()
    with Spool(tmp_path) as spool, FrameSender(spool, Transport(receiver.url), backoff=quick()) as sender:
        for round_ in range(4):
            for n in range(10):
                put(sender, round_ * 10 + n)
            receiver.wait(lambda r, least=round_ * 10 + 3: len(r.all_frames) >= least)
            receiver.away()
            for n in range(5):
                put(sender, 100 + n)
            receiver.start()
        receiver.wait(lambda r: len(r.all_frames) == 60)
        assert spool.wait_empty(10)
    receiver.away()
    assert [frame.sequence for frame in receiver.all_frames] == list(range(1, 61))
    assert spool.dropped == spool.rejected == 0


def test_what_was_spooled_by_a_dead_process_is_delivered_by_the_next(receiver: Receiver, tmp_path: Path) -> None:
    with Spool(tmp_path) as spool:
        put(FrameSender(spool, Transport(receiver.url)), 1)
    with Spool(tmp_path) as spool, FrameSender(spool, Transport(receiver.url)) as sender:
        receiver.wait(lambda r: len(r.all_frames) == 1)
        put(sender, 2)
        receiver.wait(lambda r: [frame.sequence for frame in r.all_frames] == [1, 2])


def test_a_frame_whose_answer_was_lost_is_sent_again_and_kept_once(receiver: Receiver, tmp_path: Path) -> None:
    def lose_the_answer(method: str, path: str, body: bytes) -> Answer | None:
        if is_frame(method, path, body) and receiver.catalogs:
            receiver.answer = lambda *_: None
            assert receiver.handle_request(method, path, body, "")[0] == 204
            return problem(503, "unavailable", "committed, but the answer got lost")
        return None

    receiver.answer = lose_the_answer
    with Spool(tmp_path) as spool, FrameSender(spool, Transport(receiver.url), backoff=quick()) as sender:
        put(sender, 1)
        assert spool.wait_empty(10)
        assert (sender.delivered, receiver.duplicates) == (1, 1)
    assert len(receiver.all_frames) == 1


def test_a_refused_frame_is_set_aside_and_the_next_go_on(receiver: Receiver, tmp_path: Path) -> None:
    with Spool(tmp_path) as spool, FrameSender(spool, Transport(receiver.url), backoff=quick()) as sender:
        put(sender, 1)
        put(sender, 2, values=b"short")
        put(sender, 3)
        assert spool.wait_empty(10)
    assert [frame.sequence for frame in receiver.all_frames] == [1, 3]
    reason = (tmp_path / "rejected" / "0000000000000002.reason").read_text()
    assert "422" in reason
    assert "values has 5 bytes" in reason


@pytest.mark.parametrize("status", [401, 403, 404, 408, 429, 500, 502, 503, 301])
def test_an_answer_that_may_change_costs_nothing(receiver: Receiver, tmp_path: Path, status: int) -> None:
    receiver.answer = once(problem(status, "passing", "another time"), is_frame)
    with Spool(tmp_path) as spool, FrameSender(spool, Transport(receiver.url), backoff=quick()) as sender:
        put(sender, 1)
        assert spool.wait_empty(10)
        assert spool.rejected == 0
    assert len(receiver.all_frames) == 1


@pytest.mark.parametrize(("status", "slug"), [(400, "x"), (409, "x"), (413, "frame-too-large"), (422, "invalid-frame"),
                                              (403, "wrong-node")])  # fmt: skip
def test_an_answer_for_ever_sets_aside(receiver: Receiver, tmp_path: Path, status: int, slug: str) -> None:
    receiver.answer = once(problem(status, slug, "never"), is_frame)
    with Spool(tmp_path) as spool, FrameSender(spool, Transport(receiver.url), backoff=quick()) as sender:
        put(sender, 1)
        assert spool.wait_empty(10)
        assert spool.rejected == 1


def test_a_catalog_that_the_service_lost_is_told_again(receiver: Receiver, tmp_path: Path) -> None:
    with Spool(tmp_path) as spool, FrameSender(spool, Transport(receiver.url), backoff=quick()) as sender:
        put(sender, 1)
        receiver.wait(lambda r: len(r.all_frames) == 1)
        receiver.catalogs.clear()
        put(sender, 2)
        receiver.wait(lambda r: len(r.all_frames) == 2)
        assert spool.rejected == 0


def test_a_slow_service_is_waited_for(receiver: Receiver, tmp_path: Path) -> None:
    receiver.delay = 0.3
    transport = Transport(receiver.url, read_s=0.1)
    with Spool(tmp_path) as spool, FrameSender(spool, transport, backoff=quick()) as sender:
        put(sender, 1)
        receiver.wait(lambda _: "timed out" in sender.trouble)
        receiver.delay = 0.0
        assert spool.wait_empty(10)
    assert len(receiver.all_frames) == 1


def test_an_event_leaves_within_milliseconds(receiver: Receiver, tmp_path: Path) -> None:
    with Spool(tmp_path) as spool, EventOutbox(spool, Transport(receiver.url)) as outbox:
        delays = []
        for n in range(20):
            sent = event(n=n)
            outbox.put(sent)
            receiver.wait(lambda r, wanted=sent: wanted.id in r.events)
            delays.append(receiver.arrived[-1] - sent.time)
        assert sorted(delays)[10] < 0.05
        assert receiver.events[sent.id]["data"] == {"n": 19}
        assert receiver.events[sent.id]["kind"] == "probe_unresponsive"


def test_events_that_gathered_leave_together_and_once(receiver: Receiver, tmp_path: Path) -> None:
    batches: list[int] = []
    receiver.answer = lambda _m, path, body: batches.append(body.count(b'"kind"')) if path == "/v1/events" else None
    with Spool(tmp_path) as spool:
        outbox = EventOutbox(spool, Transport(receiver.url))
        for n in range(250):
            outbox.put(event(n=n))
        with outbox:
            assert spool.wait_empty(10)
    assert batches == [100, 100, 50]
    assert [stored["data"]["n"] for stored in receiver.events.values()] == list(range(250))


def test_one_bad_event_does_not_take_its_batch_with_it(receiver: Receiver, tmp_path: Path) -> None:
    receiver.answer = lambda _m, _p, body: problem(422, "bad", "poison") if b"poison" in body else None
    with Spool(tmp_path) as spool:
        outbox = EventOutbox(spool, Transport(receiver.url))
        for what in ("good", "poison", "fine"):
            outbox.put(event(what=what))
        with outbox:
            assert spool.wait_empty(10)
        assert spool.rejected == 1
    assert [stored["data"]["what"] for stored in receiver.events.values()] == ["good", "fine"]


def test_an_event_that_json_cannot_carry_is_refused_at_once(receiver: Receiver, tmp_path: Path) -> None:
    with Spool(tmp_path) as spool:
        outbox = EventOutbox(spool, Transport(receiver.url))
        with pytest.raises(TypeError):
            outbox.put(event(what=object()))
        assert len(spool) == 0


def test_stopping_delivers_what_it_can_and_keeps_the_rest(tmp_path: Path) -> None:
    receiver = Receiver().start()
    receiver.away()
    with Spool(tmp_path) as spool:
        sender = FrameSender(spool, Transport(receiver.url), backoff=Backoff(base=30, cap=30)).start()
        put(sender, 1)
        started = time.monotonic()
        assert not sender.stop(0.2)
        assert time.monotonic() - started < 5
        assert len(spool) == 1


@pytest.mark.parametrize("url", ["", "localhost:8080", "ftp://x", "http://", "/v1"])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="must look like"):
        Transport(url)


def test_errors_name_request_status_and_cause(receiver: Receiver) -> None:
    transport = Transport(receiver.url, "wrong")
    receiver.token = "right"
    with pytest.raises(RetryableError, match=r"GET /nodes/x/tasks: 401 the token is not known") as caught:
        transport.json("GET", "/nodes/x/tasks")
    assert (caught.value.status, caught.value.slug) == (401, "unauthorized")
    receiver.answer = lambda *_: (422, {}, b"<html>not a problem document")
    with pytest.raises(RejectedError, match="422 <html>not a problem"):
        transport.json("POST", "/events", {})
    receiver.answer = lambda *_: (200, {}, b"not json")
    with pytest.raises(RetryableError, match="not JSON"):
        transport.json("GET", "/overview")
    transport.close()


def test_back_off_doubles_to_its_cap_with_jitter_and_starts_anew() -> None:
    low, high = Backoff(1, 8, rng=lambda: 0.0), Backoff(1, 8, rng=lambda: 1.0)
    assert [low.next() for _ in range(5)] == [0.5, 1, 2, 4, 4]
    assert [high.next() for _ in range(5)] == [1, 2, 4, 8, 8]
    high.reset()
    assert high.next() == 1


@pytest.mark.parametrize(("header", "seconds"), [("7", 7), ("9999", 300), ("soon", 0), ("-1", 0), ("nan", 0)])
def test_retry_after_is_believed_within_reason(receiver: Receiver, header: str, seconds: float) -> None:
    receiver.answer = lambda *_: (429, {"Retry-After": header}, b"")
    with pytest.raises(RetryableError) as caught:
        Transport(receiver.url).json("GET", "/x")
    assert caught.value.retry_after == seconds
