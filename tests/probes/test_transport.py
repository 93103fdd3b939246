"""Whatever a service, or something else that listens at its address, answers: a transport error, never a crash."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.lib_receiver import Receiver
from probes.shipper import FrameSender
from probes.signals import Catalogue
from probes.spool import Spool
from probes.transport import Later, Refused, Transport, TransportError

HOSTILE = {"not JSON": b"<html>", "not UTF-8": b'{"title": "\xff"}', "truncated": b'{"title": "', "deep": b"[" * 50_000}


@pytest.fixture(params=HOSTILE)
def hostile(request: pytest.FixtureRequest) -> bytes:
    return HOSTILE[request.param]


def test_an_answer_that_is_no_json_may_change(receiver: Receiver, hostile: bytes) -> None:
    receiver.answer = lambda *_: (200, {"Content-Type": "application/json"}, hostile)
    with pytest.raises(Later, match="not JSON"):
        Transport(receiver.url).json("GET", "/nodes/n1/orders")


@pytest.mark.parametrize(("status", "kind"), [(422, Refused), (500, Later)])
def test_a_problem_that_is_none_keeps_its_status(
    receiver: Receiver, hostile: bytes, status: int, kind: type[TransportError]
) -> None:
    receiver.answer = lambda *_: (status, {"Content-Type": "application/problem+json"}, hostile)
    with pytest.raises(kind, match=f": {status} ") as caught:
        Transport(receiver.url).request("GET", "/nodes")
    assert (caught.value.status, caught.value.slug) == (status, "")


def test_a_damaged_catalogue_on_disk_is_said_to_be_unknown(receiver: Receiver, tmp_path: Path, hostile: bytes) -> None:
    made = Catalogue(("load_1m",), ())
    (tmp_path / f"catalogue-{made.digest}.json").write_bytes(hostile)
    with Spool(tmp_path) as spool:
        sender = FrameSender(spool, Transport(receiver.url))
        with pytest.raises(Refused, match="known neither here nor at the service"):
            sender._recall(made.digest)
