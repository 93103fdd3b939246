"""Connections are ended between two messages, whoever else looks at them; one that stands still is not waited for."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from mainstay.recovery.sdk import sockets
from mainstay.recovery.sdk.sockets import Connection, close_between_messages, close_now, connections

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    with near, far:
        yield near, far


def connection_of(sock: socket.socket) -> Connection:
    return Connection(sock.fileno(), os.fstat(sock.fileno()).st_ino)


def read_all(sock: socket.socket, pause: float = 0.0) -> int:
    """Bytes until the end."""
    total = 0
    while part := sock.recv(1 << 16):
        total += len(part)
        time.sleep(pause)
    return total


def test_connections_are_found_and_listeners_left_out(pair: Pair) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as local:
        found = connections()
        assert {connection_of(sock) for sock in pair} <= found
        assert not {connection_of(server), connection_of(local)} & found


@pytest.mark.parametrize("who", [0, 1])
def test_a_message_under_way_arrives_whole(pair: Pair, who: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever end hangs up first; it does not fit into the sockets, and its reader takes its time."""
    monkeypatch.setattr(sockets, "STANDS_SECONDS", 10.0)  # a busy machine may keep the reader away for a while
    monkeypatch.setattr(sockets, "MOVES_SECONDS", 60.0)
    size = 8 << 20
    sender = threading.Thread(target=pair[0].sendall, args=(bytes(size),))
    sender.start()
    first = pair[1].recv(1)
    enders = [
        threading.Thread(target=close_between_messages, args=([connection_of(sock)],))
        for sock in (pair[who], pair[1 - who])
    ]
    for ender in enders:
        ender.start()
    assert len(first) + read_all(pair[1], pause=0.001) == size
    for thread in (sender, *enders):
        thread.join(10.0)
        assert not thread.is_alive()


def test_cut_does_not_wait(pair: Pair) -> None:
    size = 64 << 20
    broken = list[OSError]()

    def send() -> None:
        try:
            pair[0].sendall(bytes(size))
        except OSError as error:
            broken.append(error)

    sender = threading.Thread(target=send)
    sender.start()
    pair[1].recv(1)
    close_now([connection_of(pair[0])])
    sender.join(10.0)
    assert read_all(pair[1]) < size
    assert broken


def test_an_idle_connection_ends_for_both(pair: Pair) -> None:
    close_between_messages([connection_of(pair[0])])
    assert pair[1].recv(1) == b""
    close_between_messages(map(connection_of, pair))  # what has ended is no error


def test_a_peer_that_does_not_read_is_not_waited_for(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "MOVES_SECONDS", 600.0)
    pair[0].sendall(bytes(1000))
    close_between_messages([connection_of(pair[0])])
    assert read_all(pair[1]) == 1000


def test_one_that_never_rests_is_ended_all_the_same(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "MOVES_SECONDS", 0.1)
    ended = threading.Event()

    def chatter() -> None:
        try:
            while True:
                pair[0].sendall(bytes(1 << 16))
        except OSError:
            ended.set()

    threads = [threading.Thread(target=chatter), threading.Thread(target=read_all, args=(pair[1],))]
    for thread in threads:
        thread.start()
    close_between_messages([connection_of(pair[0])])
    assert ended.wait(10.0)
    for thread in threads:
        thread.join(10.0)


def test_a_descriptor_that_was_given_out_again_is_let_alone(pair: Pair) -> None:
    descriptor, inode = connection_of(pair[0])
    gone = Connection(descriptor, inode + 1)
    close_between_messages([gone])
    close_now([gone, Connection(10**6, inode)])
    pair[0].sendall(b"x")
    assert pair[1].recv(1) == b"x"
