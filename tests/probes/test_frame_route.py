"""Which way frames go: through the relay, directly while it fails, and back; nothing is lost on the way."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench.lib_receiver import Answer, Receiver, problem
from mainstay.probes.frame import Axis, Frame, checksum, encode
from mainstay.probes.frame_route import GRACE_SECONDS, PROBE_SECONDS, FrameRoute
from mainstay.probes.signals import Catalog
from mainstay.probes.transport import RejectedError, RetryableError, Transport
from tests.fakes.clock import ManualClock

CATALOG = Catalog(("load_1m",))


class Ways:
    """A relay and a service that record what they get, and a route between them."""

    def __init__(self, relay: Receiver, service: Receiver) -> None:
        self.relay, self.service = relay, service
        self.clock = ManualClock(100.0)
        self.transports = Transport(relay.url), Transport(service.url, "node-token")
        self.route = FrameRoute(*self.transports, clock=self.clock.now, rng=lambda: 0.5)
        for receiver in (relay, service):
            receiver.catalogs[CATALOG.digest] = CATALOG
        self._sequence = 0

    def send(self) -> None:
        self._sequence += 1
        values = b"\0\0\0\0"
        frame = Frame(
            version=1, subject="n", axis=Axis.TIME, stream="s", sequence=self._sequence, t0=1.0, dt=1.0,
            catalog=CATALOG.digest, entities=("host",), samples=1, crc32=checksum(values, b""), values=values,
        )  # fmt: skip
        self.route.send_frame(encode(frame))

    @property
    def counts(self) -> tuple[int, int]:
        """Frames at the relay and at the service."""
        return len(self.relay.all_frames), len(self.service.all_frames)

    def leave(self) -> None:
        """Let the relay fail for as long as the route waits for it."""
        with pytest.raises(RetryableError):
            self.send()
        self.clock.advance(GRACE_SECONDS)


@pytest.fixture
def ways() -> Iterator[Ways]:
    with Receiver() as relay, Receiver() as service:
        made = Ways(relay, service)
        yield made
        for transport in made.transports:
            transport.close()


def unavailable(_method: str, path: str, _body: bytes) -> Answer | None:
    return problem(503, "spool-full", "full") if path.endswith("/frames") else None


def test_frames_go_through_the_relay_with_the_nodes_own_token(ways: Ways) -> None:
    ways.relay.token = "node-token"
    ways.send()
    ways.relay.token = ways.transports[1].token = "renewed"
    ways.send()
    assert ways.counts == (2, 0)


@pytest.mark.parametrize("away", [True, False])
def test_a_relay_that_fails_is_left_after_a_while_and_found_again(ways: Ways, *, away: bool) -> None:
    if away:
        ways.relay.away()
    ways.relay.answer = unavailable
    ways.leave()
    for _ in range(3):
        ways.send()
    assert ways.counts == (0, 3)
    ways.clock.advance(PROBE_SECONDS - 0.1)
    ways.relay.answer = lambda *_: None
    if away:
        ways.relay.start()
    ways.send()
    assert ways.counts == (0, 4), "not yet"
    ways.clock.advance(0.1)
    ways.send()
    ways.send()
    assert ways.counts == (2, 4)


def test_a_relay_that_returns_in_time_is_not_left(ways: Ways) -> None:
    ways.relay.answer = unavailable
    with pytest.raises(RetryableError):
        ways.send()
    ways.clock.advance(GRACE_SECONDS - 0.1)
    with pytest.raises(RetryableError):
        ways.send()
    ways.relay.answer = lambda *_: None
    ways.send()
    ways.relay.answer = unavailable
    ways.clock.advance(GRACE_SECONDS)
    with pytest.raises(RetryableError):
        ways.send()
    assert ways.counts == (1, 0)


def test_a_probe_that_fails_costs_no_frame_and_the_next_waits_as_long(ways: Ways) -> None:
    ways.relay.answer = unavailable
    ways.leave()
    ways.send()
    ways.clock.advance(PROBE_SECONDS)
    ways.send()
    asked: list[str] = []
    ways.relay.answer = lambda _m, path, _b: asked.append(path)
    ways.clock.advance(PROBE_SECONDS - 0.1)
    ways.send()
    assert (ways.counts, asked) == ((0, 3), [])


def test_when_neither_takes_frames_the_relay_is_asked_first_each_time(ways: Ways) -> None:
    ways.relay.answer = ways.service.answer = unavailable
    ways.leave()
    with pytest.raises(RetryableError):
        ways.send()
    ways.relay.answer = lambda *_: None
    ways.send()
    assert ways.counts == (1, 0)


@pytest.mark.parametrize("slug", ["wrong-node", "wrong-rack"])
def test_a_relay_that_takes_no_frames_of_this_node_is_left_at_once(ways: Ways, slug: str) -> None:
    ways.relay.answer = lambda *_: problem(403, slug, "never")
    ways.send()
    ways.relay.answer = lambda *_: None
    ways.clock.advance(PROBE_SECONDS - 0.1)
    ways.send()
    assert ways.counts == (0, 2)
    ways.clock.advance(0.1)
    ways.send()
    assert ways.counts == (1, 2)


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_frame_that_the_relay_rejects_goes_directly_at_once(ways: Ways, status: int) -> None:
    ways.relay.answer = lambda *_: problem(status, "invalid-frame", "never")
    ways.send()
    ways.relay.answer = lambda *_: None
    ways.send()
    assert ways.counts == (1, 1), "the relay stays in use"
    ways.relay.answer = ways.service.answer = lambda *_: problem(422, "invalid-frame", "never")
    with pytest.raises(RejectedError):
        ways.send()


def test_a_catalog_is_announced_to_whom_does_not_know_it(ways: Ways) -> None:
    ways.relay.catalogs.clear()
    with pytest.raises(RejectedError, match="is not known"):
        ways.send()
    ways.route.put_catalog(CATALOG)
    assert CATALOG.digest in ways.relay.catalogs
    ways.relay.answer = unavailable
    ways.leave()
    ways.service.catalogs.clear()
    with pytest.raises(RejectedError):
        ways.send()
    ways.route.put_catalog(CATALOG)
    ways.send()
    assert ways.counts == (0, 1)


def test_a_relay_that_takes_no_catalog_is_left_too(ways: Ways) -> None:
    ways.relay.catalogs.clear()
    ways.relay.answer = lambda method, *_: problem(503, "disk-error", "full") if method == "PUT" else None
    for _ in range(2):
        with pytest.raises(RejectedError):
            ways.send()
        with pytest.raises(RetryableError):
            ways.route.put_catalog(CATALOG)
        ways.clock.advance(GRACE_SECONDS)
    ways.send()
    assert ways.counts == (0, 1)
