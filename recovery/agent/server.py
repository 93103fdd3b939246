"""The agent process: two listening sockets, one thread a connection (bounded), and an end when its owner ends.

A connection that does not begin with a valid ``Hello`` in time, or ever sends a broken frame, is closed; nothing else
happens. If an answer fails after raw bytes have begun to flow the connection is closed too, so that the other side
never takes an error for data.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from recovery.agent.errors import AgentError, FailureKind, ProtocolError, StaleGenerationError
from recovery.agent.framing import parse_endpoint, receive, same_token, send
from recovery.agent.messages import Failure, Hello, Message, Request, Welcome
from recovery.agent.node import Caller, Settings
from recovery.agent.service import Service
from recovery.agent.upkeep import (
    collect_garbage,
    default_root,
    node_directory,
    process_start,
    take_lock,
    touch_owner,
    write_owner,
)

MAX_CONNECTIONS: Final = 128
"""Sixteen ranks with a few connections each, the launcher, and a parity group's peers."""
HELLO_SECONDS: Final = 3.0
IDLE_SECONDS: Final = 300.0
"""A silent connection is closed; clients connect again without noticing."""
BEAT_SECONDS: Final = 0.2
_MAX_SOCKET_PATH: Final = 107  # sockaddr_un

logger = logging.getLogger("mainstay.agent")


class Server:
    """Accepts connections for a ``Service``."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._room = threading.BoundedSemaphore(MAX_CONNECTIONS)

    def listen(self, listener: socket.socket) -> None:
        """Serve ``listener`` from a thread of its own until it is closed."""
        name = f"mainstay-accept-{listener.family.name}"
        threading.Thread(target=self._accept, args=(listener,), name=name, daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return  # closed: the agent ends
            if not self._room.acquire(blocking=False):
                logger.warning("more than %d connections: one is turned away", MAX_CONNECTIONS)
                sock.close()
                continue
            threading.Thread(target=self._serve, args=(sock,), name="mainstay-connection", daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        try:
            with sock:
                self._converse(sock)
        except AgentError as error:
            logger.debug("connection closed: %s", error)
        except OSError as error:
            logger.debug("connection broke: %s", error)
        finally:
            self._room.release()

    def _converse(self, sock: socket.socket) -> None:
        decoder = msgspec.msgpack.Decoder(Request)
        sock.settimeout(HELLO_SECONDS)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        caller = self._greet(sock, receive(sock, decoder))
        sock.settimeout(IDLE_SECONDS)
        while caller is not None:
            request = receive(sock, decoder)
            reply = self._service.answer(request, caller)
            if reply is not None:
                send(sock, reply)

    def _greet(self, sock: socket.socket, hello: Message) -> Caller | None:
        """The caller, if it may speak."""
        settings = self._service.settings
        if not isinstance(hello, Hello) or not same_token(settings.token, hello.token) or hello.job != settings.job:
            raise ProtocolError("no hello, or with a wrong token or job")
        try:
            self._service.require_live(hello.generation)
        except StaleGenerationError as error:
            send(sock, Failure(kind=FailureKind.STALE_GENERATION, reason=str(error)))
            return None
        send(sock, Welcome(node=settings.node, generation=self._service.store.config.fence))
        return Caller(sock, hello.role, hello.generation)


def listen_unix(path: Path) -> socket.socket:
    """A listening Unix socket that only this user can reach.

    Raises:
        ValueError: the path is longer than the kernel allows.
    """
    if len(os.fsencode(path)) > _MAX_SOCKET_PATH:
        raise ValueError(f"the socket path {path} is longer than {_MAX_SOCKET_PATH} bytes; choose a shorter one")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    path.chmod(0o600)
    listener.listen(MAX_CONNECTIONS)
    return listener


def listen_tcp(endpoint: str) -> socket.socket:
    host, port = parse_endpoint(endpoint)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=MAX_CONNECTIONS)


def main(argv: Sequence[str] | None = None) -> int:
    """Serve one node of one job until ended.

    ``--job J --node N --socket PATH --listen HOST:PORT --token-file F`` and optionally ``--shm-dir D --parity-every K
    --disk-every D --disk-keep N --checkpoint-dir DIR --owner-pid PID``. Port 0 takes a free one. When ready, one line
    of JSON goes to stdout: ``{"ready": true, "node", "socket", "endpoint": "host:port", "pid"}``. Ends (files stay) on
    SIGTERM, and when its owner (default: the parent process) is gone. Exit code 2 and one line on stderr when it
    cannot start.
    """
    arguments = _parse(argv)
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format=f"agent {arguments.node}: %(levelname)s %(message)s"
    )
    try:
        return _run(arguments)
    except (ValueError, OSError, RuntimeError) as error:
        print(f"agent {arguments.node}: {error}", file=sys.stderr)  # noqa: T201 - the launcher shows this line
        return 2


def _run(arguments: argparse.Namespace) -> int:
    settings = _settings(arguments)
    owner = arguments.owner_pid
    started = process_start(owner) if owner else None
    if owner and started is None:
        raise ValueError(f"the owner (pid {owner}) is gone already")
    collect_garbage(arguments.shm_dir)
    lock = take_lock(settings.directory)
    write_owner(settings.directory, owner or os.getpid())
    service = Service(settings)
    server = Server(service)
    unix, tcp = listen_unix(arguments.socket), listen_tcp(arguments.listen)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    service.start()
    server.listen(unix)
    server.listen(tcp)
    host, port = tcp.getsockname()[:2]
    ready = {"ready": True, "node": settings.node, "socket": str(arguments.socket), "pid": os.getpid()}
    print(json.dumps({**ready, "endpoint": f"{host}:{port}"}), flush=True)  # noqa: T201 - the launcher reads this line
    _live(service, ended, owner, started)
    for listener in (unix, tcp):
        listener.close()
    arguments.socket.unlink(missing_ok=True)
    service.stop()
    lock.close()
    return 0


def _live(service: Service, ended: threading.Event, owner: int, started: int | None) -> None:
    """Beat until ended, or until the owner is gone."""
    beats = 0
    while not ended.wait(BEAT_SECONDS):
        service.store.beat()
        beats += 1
        if beats % 50 == 0:
            touch_owner(service.settings.directory)
        if owner and process_start(owner) != started:
            logger.warning("the owner (pid %d) is gone: ending, the snapshots stay", owner)
            return


def _settings(arguments: argparse.Namespace) -> Settings:
    token = arguments.token_file.read_text().strip()
    if not token:
        raise ValueError(f"{arguments.token_file} is empty; it must hold the job's token")
    if bool(arguments.disk_every) != (arguments.checkpoint_dir is not None):
        raise ValueError("--disk-every and --checkpoint-dir belong together")
    if arguments.parity_every < 0 or arguments.disk_every < 0:
        raise ValueError("--parity-every and --disk-every are numbers of epochs, 0 for never")
    if arguments.disk_keep < 1:
        raise ValueError("--disk-keep is a number of files, at least 1")
    return Settings(
        job=arguments.job,
        node=arguments.node,
        token=token,
        directory=node_directory(arguments.shm_dir, arguments.job, arguments.node),
        parity_every=arguments.parity_every,
        disk_every=arguments.disk_every,
        disk_keep=arguments.disk_keep,
        checkpoint_dir=arguments.checkpoint_dir,
    )


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("mainstay agent", description="The snapshot agent of one node of one job.")
    parser.add_argument("--job", required=True)
    parser.add_argument("--node", required=True)
    parser.add_argument("--socket", type=Path, required=True, help="Unix socket for ranks and the launcher")
    parser.add_argument("--listen", default="127.0.0.1:0", help="host:port for peer agents; port 0 takes a free one")
    parser.add_argument("--token-file", type=Path, required=True)
    parser.add_argument("--shm-dir", type=Path, default=default_root())
    parser.add_argument("--parity-every", type=int, default=0, help="parity for epochs divisible by this")
    parser.add_argument("--disk-every", type=int, default=0, help="files for epochs divisible by this")
    parser.add_argument("--disk-keep", type=int, default=2, help="so many files of each rank")
    parser.add_argument("--checkpoint-dir", type=Path)
    parser.add_argument("--owner-pid", type=int, default=os.getppid(), help="end when this process ends; 0: never")
    return parser.parse_args(argv)
