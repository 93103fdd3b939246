"""Who is of a job: certificates that only its token makes, and callers who have not shown one."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from mainstay.recovery.job_certificates import Authority, issue_certificate, job_tls
from mainstay.recovery.job_tls import JobTls, PendingConnections, refusal
from mainstay.recovery.protocol.secure_streams import open_stream, serve_streams

CONTROL = job_tls("token", "job", Authority.CONTROL)


def handshake(server: JobTls, client: JobTls) -> bytes:
    """What the client reads when the server has authenticated it and said so."""
    near, far = socket.socketpair()
    near.settimeout(30.0)
    far.settimeout(30.0)

    def serve() -> None:
        try:
            with server.server.wrap_socket(far, server_side=True) as secured:
                secured.sendall(b"welcome")
        except OSError:
            far.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client.client.wrap_socket(near) as secured:
            return secured.recv(100)
    finally:
        near.close()
        thread.join()


def test_processes_that_know_the_token_trust_each_other_without_exchanging_anything() -> None:
    other = JobTls(issue_certificate("token", "job", Authority.CONTROL))
    assert handshake(CONTROL, other) == b"welcome"
    assert handshake(other, CONTROL) == b"welcome"


@pytest.mark.parametrize(
    "stranger",
    [
        pytest.param(("guess", "job", Authority.CONTROL), id="another token"),
        pytest.param(("token", "other job", Authority.CONTROL), id="another job"),
        pytest.param(("token", "job", Authority.SNAPSHOTS), id="a rank"),
    ],
)
def test_a_stranger_is_refused_on_either_side(stranger: tuple[str, str, Authority]) -> None:
    outside = JobTls(issue_certificate(*stranger))
    with pytest.raises(ssl.SSLCertVerificationError) as refused:
        handshake(CONTROL, outside)
    assert refusal(refused.value) == "it has another job token: the nodes of a job need the same --token-file"
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(outside, CONTROL)


def test_a_caller_without_a_certificate_is_refused_and_older_tls_too() -> None:
    for change in ({"minimum_version": ssl.TLSVersion.TLSv1_3}, {"maximum_version": ssl.TLSVersion.TLSv1_2}):
        bare = JobTls(CONTROL.pem)
        bare.client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        bare.client.check_hostname = False
        bare.client.verify_mode = ssl.CERT_NONE
        for name, value in change.items():
            setattr(bare.client, name, value)
        with pytest.raises(ssl.SSLError):
            handshake(CONTROL, bare)


def test_what_is_no_identity_is_said() -> None:
    with pytest.raises(ValueError, match="two certificates, not 0"):
        JobTls("")


def test_the_oldest_connection_of_the_busiest_address_ends_first() -> None:
    ended: list[str] = []

    def end(name: str) -> Callable[[], None]:
        return lambda: ended.append(name)

    pending = PendingConnections(each=3, total=4)
    pending.add_connection("good", end("good 1"))
    bad = [pending.add_connection("bad", end(f"bad {number}")) for number in range(4)]
    assert ended == ["bad 0"], "an address has three"
    pending.add_connection("other", end("other 1"))
    assert ended == ["bad 0", "bad 1"], "there are four in all"
    pending.remove(bad[2])
    pending.remove(bad[0])  # it was ended, and is removed late
    pending.add_connection("other", end("other 2"))
    assert ended == ["bad 0", "bad 1"]


def test_a_member_is_served_while_hundreds_say_nothing() -> None:
    async def work() -> bytes:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write((await reader.readexactly(4))[::-1])
            await writer.drain()
            writer.close()

        server = await serve_streams(serve, "127.0.0.1", 0, CONTROL)
        host, port = server.sockets[0].getsockname()[:2]
        with ExitStack() as crowd:
            for _ in range(300):
                crowd.enter_context(socket.create_connection((host, port), timeout=10.0))
                await asyncio.sleep(0)
            reader, writer = await asyncio.wait_for(open_stream(host, port, CONTROL), 60.0)
            writer.write(b"abcd")
            answer = await asyncio.wait_for(reader.read(), 60.0)
            writer.close()
        server.close()
        return answer

    assert asyncio.run(work()) == b"dcba"


def test_a_caller_with_another_token_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """On the side that can do something about it: the one that waits for the node."""
    stranger = job_tls("guess", "job", Authority.CONTROL)

    async def work() -> None:
        async def serve(*_: object) -> None:
            raise AssertionError("a stranger was served")

        server = await serve_streams(serve, "127.0.0.1", 0, CONTROL)
        for _ in range(3):
            with pytest.raises(ssl.SSLCertVerificationError):
                await open_stream(*server.sockets[0].getsockname()[:2], stranger)
        while not caplog.records:  # noqa: ASYNC110 - seen from outside only
            await asyncio.sleep(0.01)
        server.close()

    asyncio.run(asyncio.wait_for(work(), 60.0))
    (record,) = caplog.records
    assert record.message.startswith("a caller at 127.0.0.1 did not authenticate: it has another job token, is not")


def test_bytes_that_are_not_tls_end_the_connection() -> None:
    async def work() -> bytes:
        async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"served")

        server = await serve_streams(serve, "127.0.0.1", 0, CONTROL)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
        writer.write(b"\x10\0\0\0LauncherHello")
        writer.write_eof()
        said = await asyncio.wait_for(reader.read(), 60.0)
        writer.close()
        server.close()
        return said

    assert b"served" not in asyncio.run(work())
