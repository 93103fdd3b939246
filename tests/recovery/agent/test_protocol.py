"""Invalid bytes on the wire: the connection is closed, the agent is unharmed, nothing is changed."""

from __future__ import annotations

import socket
import struct
import time

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings

from mainstay.recovery.agent.errors import AgentGoneError, FailureKind, ProtocolError
from mainstay.recovery.agent.framing import MAX_MESSAGE_BYTES, receive, send
from mainstay.recovery.agent.messages import (
    AgentFailure,
    Committed,
    Drop,
    Fence,
    Fetch,
    GetInventory,
    GroupMember,
    Hello,
    Inventory,
    OpenArena,
    Reply,
    Request,
    Welcome,
)
from mainstay.recovery.agent.peer_messages import ReadSlot
from mainstay.recovery.job_certificates import Authority, job_tls
from mainstay.recovery.job_tls import JobTls

pytestmark = pytest.mark.processes
TOKEN = "correct-horse-battery-staple"
DECODER = msgspec.msgpack.Decoder(Reply)


def _connect(agent, tls: JobTls | None = None) -> socket.socket:
    """A connection to the agent; with ``tls`` it authenticates as that member of the job."""
    host, port = agent.endpoint.split(":")
    plain = socket.create_connection((host, int(port)), timeout=100)
    return plain if tls is None else tls.client.wrap_socket(plain)


def _framed(message) -> bytes:
    body = msgspec.msgpack.encode(message)
    return struct.pack("<I", len(body)) + body


MEMBER = job_tls(TOKEN, "job-1", Authority.SNAPSHOTS)
HELLO = Hello(job="job-1", generation=1)


def _closed_after(agent, data: bytes) -> bytes:
    """What the agent says before it closes the connection."""
    with _connect(agent, MEMBER) as sock:
        said = b""
        try:
            sock.sendall(data)
            socket.socket.shutdown(sock, socket.SHUT_WR)
            while part := sock.recv(65536):
                said += part
        except OSError:  # closed before the end: as good an answer
            pass
    return said


def test_an_agent_takes_the_groups_of_a_job_of_sixteen_thousand_ranks(agents):
    client = agents().client()
    members = [
        GroupMember(node=f"gpu-{r // 8:04}.cluster.example.org", endpoint=f"10.20.{r // 256}.1:29411", rank=r)
        for r in range(16_384)
    ]
    groups = tuple(tuple(members[first::2048]) for first in range(2048))
    assert len(msgspec.msgpack.encode(groups)) > MAX_MESSAGE_BYTES
    client.configure_parity(groups, 1)
    client.inventory()


STRANGERS = [
    b"",
    b"\x05",
    b"GET / HTTP/1.1\r\n\r\n",
    struct.pack("<I", MAX_MESSAGE_BYTES + 1),
    struct.pack("<I", 0xFFFFFFFF) + b"x" * 100,
    struct.pack("<I", 0),
    struct.pack("<I", 1000) + b"short",
    struct.pack("<I", 4) + b"\xc1\xc1\xc1\xc1",
    _framed(GetInventory()),
    _framed(Fence(generation=99)),
    _framed(Hello(job="job-2", generation=1)),
    _framed({"type": "Hello", "job": "job-1", "generation": 1, "extra": 1}),
    _framed({"type": "Hello", "job": "job-1", "generation": "1"}),
]


def test_without_a_proper_hello_the_endpoint_is_closed_without_a_word(agents):
    agent = agents()
    for data in STRANGERS:
        assert _closed_after(agent, data) == b"", data
    agent.client().inventory()
    assert agent.client(1).inventory().degraded == ()


def test_after_hello_a_broken_message_closes_the_connection(agents):
    agent = agents()
    welcome = _framed(Welcome(node="node-0", generation=0))
    for data in (
        struct.pack("<I", 1 << 30),
        struct.pack("<I", 3) + b"\x93\x01\x02",
        b"\x01",
        _framed({"type": "Nope"}),
    ):
        assert _closed_after(agent, _framed(HELLO) + data) == welcome
    agent.client().inventory()


def test_a_second_hello_is_refused_and_a_slow_one_is_not_waited_for(agents):
    agent = agents()
    with _connect(agent, MEMBER) as sock:
        send(sock, HELLO)
        assert isinstance(receive(sock, DECODER), Welcome)
        send(sock, HELLO)
        refused = receive(sock, DECODER)
        assert isinstance(refused, AgentFailure)
        assert refused.kind is FailureKind.BAD_REQUEST
    for tls in (MEMBER, None):
        with _connect(agent, tls) as sock:
            begun = time.monotonic()
            assert sock.recv(1) == b""
            assert time.monotonic() - begun < 100  # and not IDLE_SECONDS


def test_more_connections_than_there_is_room_for_are_turned_away(agents, eventually):
    agent = agents()
    crowd = [_connect(agent) for _ in range(140)]
    try:
        eventually(lambda: _turned_away(crowd) >= 10)
    finally:
        for sock in crowd:
            sock.close()
    eventually(lambda: _answers(agent))


def test_hundreds_that_say_nothing_do_not_keep_a_member_out(agents):
    """Seen before: 256 of them shut a good caller out for 4 s."""
    agent = agents()
    crowd = [_connect(agent) for _ in range(300)]
    try:
        with _connect(agent, MEMBER) as sock:
            send(sock, HELLO)
            assert isinstance(receive(sock, DECODER), Welcome)
        agent.client().inventory()
    finally:
        for sock in crowd:
            sock.close()


def test_from_the_network_nothing_is_changed(agents):
    """A member of the job that may read, such as a rank of another node, can neither fence nor drop."""
    agent = agents()
    for order in (Fence(generation=99), Fetch(rank=0, epoch=1, from_rank=1, endpoint="127.0.0.1:9"), Drop()):
        with _connect(agent, MEMBER) as sock:
            send(sock, HELLO)
            assert isinstance(receive(sock, DECODER), Welcome)
            send(sock, order)
            with pytest.raises(AgentGoneError):
                receive(sock, DECODER)
    assert agent.client(1).inventory().degraded == ()  # generation 1 is not fenced


def _turned_away(crowd) -> int:
    count = 0
    for sock in crowd:
        sock.setblocking(False)
        try:
            count += sock.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            pass
        except ConnectionResetError:
            count += 1
    return count


def _answers(agent) -> bool:
    try:
        agent.client().inventory()
    except AgentGoneError:
        return False
    return True


def test_fuzz(agents):
    """Random bytes, random messages of the right shape, and right messages that were damaged."""
    agent = agents()
    names = st.sampled_from([r.__name__ for r in Request.__args__])
    values = st.none() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=20) | st.binary(max_size=50) | st.floats()
    objects = st.dictionaries(st.sampled_from(["type", "rank", "epoch", "layout", "group"]), values).flatmap(
        lambda d: names.map(lambda n: d | {"type": n})
    )
    numbers = st.integers(-(2**63), 2**63 - 1)
    proper = (
        st.builds(Committed, rank=numbers, epoch=numbers, generation=numbers, slot=numbers)
        | st.builds(OpenArena, rank=numbers, layout=st.binary(max_size=60))
        | st.builds(ReadSlot, rank=numbers, epoch=numbers, offset=numbers, nbytes=numbers)
        | st.builds(Fetch, rank=numbers, epoch=numbers, from_rank=numbers, endpoint=st.text(max_size=30))
    )
    messages = (objects | proper).map(_framed)
    damaged = st.tuples(messages, st.integers(0, 10_000), st.integers(1, 255)).map(_damage)

    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(messages | damaged | st.binary(max_size=300), max_size=4))
    def attack(parts):
        _closed_after(agent, b"".join([_framed(HELLO), *parts]))

    attack()
    client = agent.client()
    assert isinstance(client.inventory(), Inventory)
    assert agent.process.poll() is None
    agent.process.send_signal(15)
    assert "Traceback" not in agent.kill(15), "an unforeseen error reached the last boundary"


def _damage(given_) -> bytes:
    data, at, flip = given_
    at %= len(data)
    return data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :]


def test_the_client_does_not_believe_everything(tmp_path):
    """An impostor at the socket gets no further than an error."""
    from threading import Thread

    from mainstay.recovery.agent.client import AgentClient

    path = tmp_path / "s"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def impostor() -> None:
        welcome = _framed(Welcome(node="x", generation=0))
        for answer in (b"\xff\xff\xff\xff", _framed(GetInventory()), welcome + b"\x01"):
            sock, _ = listener.accept()
            sock.recv(65536)
            sock.sendall(answer)
            sock.close()

    thread = Thread(target=impostor)
    thread.start()
    client = AgentClient(path, job="job-1", generation=1)
    with pytest.raises(ProtocolError, match="4294967295"):
        client.inventory()
    with pytest.raises(ProtocolError, match="not a message"):
        client.inventory()
    with pytest.raises(AgentGoneError):
        client.inventory()
    thread.join()
    listener.close()
