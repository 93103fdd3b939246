"""Every answer of a service, or of another program at its address, is a transport error at worst, never a crash."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.lib_receiver import Receiver
from mainstay.probes.shipper import FrameSender
from mainstay.probes.signals import Catalog
from mainstay.probes.spool import Spool
from mainstay.probes.transport import RejectedError, RetryableError, Transport, TransportError

HOSTILE = {"not JSON": b"<html>", "not UTF-8": b'{"title": "\xff"}', "truncated": b'{"title": "', "deep": b"[" * 50_000}


@pytest.fixture(params=HOSTILE)
def hostile(request: pytest.FixtureRequest) -> bytes:
    return HOSTILE[request.param]


def test_an_answer_that_is_no_json_may_change(receiver: Receiver, hostile: bytes) -> None:
    receiver.answer = lambda *_: (200, {"Content-Type": "application/json"}, hostile)
    with pytest.raises(RetryableError, match="not JSON"):
        Transport(receiver.url).json("GET", "/nodes/n1/orders")


@pytest.mark.parametrize(("status", "kind"), [(422, RejectedError), (500, RetryableError)])
def test_a_problem_that_is_none_keeps_its_status(
    receiver: Receiver, hostile: bytes, status: int, kind: type[TransportError]
) -> None:
    receiver.answer = lambda *_: (status, {"Content-Type": "application/problem+json"}, hostile)
    with pytest.raises(kind, match=f": {status} ") as caught:
        Transport(receiver.url).request("GET", "/nodes")
    assert (caught.value.status, caught.value.slug) == (status, "")


def test_a_damaged_catalog_on_disk_is_said_to_be_unknown(receiver: Receiver, tmp_path: Path, hostile: bytes) -> None:
    made = Catalog(("load_1m",), ())
    (tmp_path / f"catalog-{made.digest}.json").write_bytes(hostile)
    with Spool(tmp_path) as spool:
        sender = FrameSender(spool, Transport(receiver.url))
        receiver.answer = lambda *_: (409, {}, b'{"type": "urn:mainstay:problem:unknown-catalog"}')
        with pytest.raises(RejectedError, match="known neither"):
            sender._catalogs.send_announced(lambda: sender._transport.send_frame(b""), print, lambda: made.digest)
