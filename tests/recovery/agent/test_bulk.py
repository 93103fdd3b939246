"""The raw bytes of a transfer: whole and equal, or worthless."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from mainstay.recovery.agent import bulk
from mainstay.recovery.agent.bulk import BulkReceiver, BulkSender
from mainstay.recovery.agent.errors import AgentGoneError, CorruptError

DATA = np.random.default_rng(3).integers(0, 256, 200_000, np.uint8)
BOTH = pytest.mark.parametrize("encrypted", [True, False])


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = socket.socketpair()
    with near, far:
        near.settimeout(30.0)
        far.settimeout(30.0)
        yield near, far


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.integers(0, 5000), max_size=12),
    st.lists(st.integers(1, 5000), min_size=1, max_size=12),
    st.integers(1, 4000),
    st.booleans(),
)
def test_what_comes_is_what_was_sent(sent: list[int], read: list[int], segment: int, encrypted: bool) -> None:
    """For any sizes of pieces on either side, and of segments."""
    near, far = socket.socketpair()
    data, out = DATA[: sum(sent)], np.zeros(sum(sent), np.uint8)
    with near, far, pytest.MonkeyPatch.context() as patch:
        patch.setattr(bulk, "SEGMENT", segment)
        sender = BulkSender(near, encrypted=encrypted)

        def work() -> None:
            start = 0
            for size in sent:
                sender.send(data[start : start + size])
                start += size

        thread = threading.Thread(target=work)
        thread.start()
        receiver, done = BulkReceiver(far, sender.seal), 0
        while done < len(out):
            size = read[done % len(read)]
            receiver.receive_into(out[done : done + size])
            done += len(out[done : done + size])
        thread.join()
        receiver.finish(sender.tags())
    assert np.array_equal(out, data)


@BOTH
def test_a_byte_that_was_changed_on_the_way_is_found(
    pair: tuple[socket.socket, socket.socket], encrypted: bool
) -> None:
    between, other = socket.socketpair()
    with between, other:
        sender = BulkSender(pair[0], encrypted=encrypted)
        sender.send(DATA[:1000])
        passed = bytearray(pair[1].recv(1000, socket.MSG_WAITALL))
        assert (bytes(passed) == DATA[:1000].tobytes()) is not encrypted
        passed[500] ^= 1
        between.sendall(passed)
        receiver, out = BulkReceiver(other, sender.seal), np.zeros(1000, np.uint8)
        receiver.receive_into(out)
        with pytest.raises(CorruptError, match="they were changed on the way"):
            receiver.finish(sender.tags())


@BOTH
def test_other_tags_too_few_and_too_many_are_no_proof(
    pair: tuple[socket.socket, socket.socket], encrypted: bool
) -> None:
    for tags in ((), (bytes(16),), (bytes(16), bytes(16))):
        sender, out = BulkSender(pair[0], encrypted=encrypted), np.zeros(10, np.uint8)
        sender.send(DATA[:10])
        receiver = BulkReceiver(pair[1], sender.seal)
        receiver.receive_into(out)
        with pytest.raises(CorruptError):
            receiver.finish(tags)


def test_an_end_before_the_last_byte_is_no_transfer(pair: tuple[socket.socket, socket.socket]) -> None:
    sender = BulkSender(pair[0], encrypted=True)
    sender.send(DATA[:10])
    pair[0].close()
    with pytest.raises(AgentGoneError, match=r"\(10 of 11 bytes came\)"):
        BulkReceiver(pair[1], sender.seal).receive_into(np.zeros(11, np.uint8))
    with pytest.raises(AgentGoneError, match="while sending"):
        sender.send(DATA[:10])
