"""Who a node is, and how it gets and keeps its credential."""

from __future__ import annotations

import socket
import stat
import uuid
from pathlib import Path

import pytest

from bench.lib_receiver import Receiver, problem
from mainstay.probes.core_types import validate_name
from mainstay.probes.identity import default_cohort, default_name, describe_node, enroll, load_credential
from mainstay.probes.ids import uuid7
from mainstay.probes.samplers.base import DeviceIdentity
from mainstay.probes.signals import SignalSource, catalog
from mainstay.probes.transport import RetryableError


def gpu(index: int) -> DeviceIdentity:
    return DeviceIdentity(id=f"GPU-{index}", index=index, kind="gpu", model="NVIDIA H100 80GB HBM3")


HOST = DeviceIdentity(id="host", index=0, kind="host", model="Some(R) CPU @ 2.0GHz")


def test_enrollment_keeps_the_credential_for_its_owner_only(receiver: Receiver, tmp_path: Path) -> None:
    receiver.token = "own"
    assert enroll(receiver.url, "node-1", "join", tmp_path) == "own"
    file = tmp_path / "credential.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    receiver.token = "another"
    assert enroll(receiver.url, "node-1", "join", tmp_path) == "own", "used once"
    assert enroll(receiver.url, "node-2", "join", tmp_path) == "another", "another name is another node"
    assert load_credential("http://another-service:1", "node-2", tmp_path) is None, "no token for a stranger"


@pytest.mark.parametrize(
    "content",
    [b"{}", b"", b'{"service":"\xff"}', b'{"x":' + b"[" * 100_000],
    ids=["empty", "nothing", "not UTF-8", "deep"],
)
def test_an_unreadable_credential_is_replaced(receiver: Receiver, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "credential.json").write_bytes(content)
    assert load_credential(receiver.url, "node-1", tmp_path) is None
    assert enroll(receiver.url, "node-1", "join", tmp_path) == "a-token"


def test_a_join_token_that_is_not_taken_leaves_nothing_behind(receiver: Receiver, tmp_path: Path) -> None:
    receiver.answer = lambda *_: problem(401, "unauthorized", "the join token has expired")
    with pytest.raises(RetryableError, match="has expired"):
        enroll(receiver.url, "node-1", "join", tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "said",
    [b"<html>", b'"\xff"', b"[" * 100_000, b"{}", b'{"node":1,"token":"t"}'],
    ids=["not JSON", "not UTF-8", "deep", "nothing in it", "wrong type"],
)
def test_an_answer_that_is_none_is_tried_again(receiver: Receiver, tmp_path: Path, said: bytes) -> None:
    receiver.answer = lambda *_: (200, {"Content-Type": "application/json"}, said)
    with pytest.raises(RetryableError):
        enroll(receiver.url, "node-1", "join", tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("devices", "start"), [
    ((HOST, gpu(0), gpu(1)), "2x-NVIDIA-H100-80GB-HBM3"), ((HOST,), ""), ((), "")])  # fmt: skip
def test_a_cohort_is_a_legal_name(devices: tuple[DeviceIdentity, ...], start: str) -> None:
    cohort = default_cohort(devices)
    assert validate_name(cohort, "cohort").startswith(start)


def test_the_report_describes_this_machine() -> None:
    report = describe_node((HOST,), catalog(SignalSource.HOST), cohort="mine", started_at=5.0)
    assert report.hostname == socket.gethostname()
    assert report.cohort == "mine"
    assert report.memory_bytes > 1 << 20
    assert uuid.UUID(report.boot_id)
    assert report.version
    assert validate_name(default_name(), "name")


def test_ids_are_uuid7_distinct_and_in_order_of_time() -> None:
    made = [uuid7() for _ in range(2000)]
    assert len(set(made)) == len(made)
    assert all(uuid.UUID(text).version == 7 and uuid.UUID(text).variant == uuid.RFC_4122 for text in made)
    milliseconds = [text[:13] for text in made]
    assert milliseconds == sorted(milliseconds)
