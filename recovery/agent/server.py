"""The agent process: two listening sockets, one thread a connection (bounded), and an end when its owner ends.

Over TCP a caller shows a certificate of the job (``job_tls``) and may only read; the Unix socket is for processes of
this user. A connection that does not begin with a valid ``Hello`` in time, or ever sends a broken frame, is closed;
nothing else happens. If an answer fails after raw bytes have begun to flow the connection is closed too, so that the
other side never takes an error for data.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import math
import os
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from mainstay.probes.data_dir import read_secret
from mainstay.probes.durable_files import write_json
from mainstay.probes.stop_signal import stop_at_signal
from mainstay.recovery.agent import standalone
from mainstay.recovery.agent.errors import AgentError, FailureKind, ProtocolError, StaleGenerationError
from mainstay.recovery.agent.framing import parse_endpoint, receive, send
from mainstay.recovery.agent.messages import PEER_REQUESTS, REQUESTS, AgentFailure, Hello, Welcome
from mainstay.recovery.agent.node import AgentConnection, AgentSettings
from mainstay.recovery.agent.peer_messages import WireMessage
from mainstay.recovery.agent.service import AgentService
from mainstay.recovery.agent.shm_lifecycle import (
    collect_garbage,
    default_root,
    node_directory,
    process_start,
    take_lock,
    write_owner,
)
from mainstay.recovery.checkpoint.retention import PENDING_UPLOADS, RetentionPolicy
from mainstay.recovery.checkpoint.storage import check_storage_url
from mainstay.recovery.checkpoint.upload_state import UploadRequest
from mainstay.recovery.job_certificates import Authority, job_tls
from mainstay.recovery.job_tls import PendingConnections

MAX_CONNECTIONS: Final = 256
"""Sixteen ranks with a few connections each, the launcher, a group's peers, and one member of each of 128 others."""
HELLO_SECONDS: Final = 3.0
IDLE_SECONDS: Final = 300.0
"""A silent connection is closed; clients connect again without noticing."""
BEAT_SECONDS: Final = 0.2
REFUSED_SECONDS: Final = 0.05
"""After an error of ``accept``: no busy loop while descriptors are short."""
SAY_SECONDS: Final = 60.0
_MAX_SOCKET_PATH: Final = 107  # sockaddr_un

logger = logging.getLogger("mainstay.agent")


class AgentServer:
    """Accepts connections for a ``AgentService``."""

    def __init__(self, service: AgentService) -> None:
        self._service = service
        self._room = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._pending = PendingConnections(total=MAX_CONNECTIONS)  # each of them has a thread
        self._turned_away = 0
        self._said_at = -math.inf

    def listen(self, listener: socket.socket) -> None:
        """Serve ``listener`` from a thread of its own until it is closed."""
        name = f"mainstay-accept-{listener.family.name}"
        threading.Thread(target=self._accept, args=(listener,), name=name, daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, source = listener.accept()
            except OSError as error:
                if listener.fileno() < 0:
                    return  # closed: the agent ends
                # The caller has hung up already, or descriptors are short: the next caller is none the worse.
                self._refuse(f"a connection could not be accepted ({error})")
                time.sleep(REFUSED_SECONDS)
                continue
            serve, arguments = (self._serve, (sock,)) if not source else (self._authenticate, (sock, source[0]))
            try:
                threading.Thread(target=serve, args=arguments, name="mainstay-connection", daemon=True).start()
            except RuntimeError as error:  # threads are short
                sock.close()
                self._refuse(f"a connection got no thread ({error})")

    def _authenticate(self, sock: socket.socket, source: str) -> None:
        """Serve a caller from the network once it has shown that it is of the job."""
        with sock:
            try:
                secured = self._handshake(sock, source)
            except OSError as error:
                self._pending.refuse(source, logger, error)
                return
        self._serve(secured)

    def _handshake(self, sock: socket.socket, source: str) -> ssl.SSLSocket:
        """Take over the descriptor of ``sock``, with TLS that is up."""
        sock.settimeout(HELLO_SECONDS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        context = self._service.settings.tls.server
        secured = context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        key = self._pending.add_connection(source, lambda: _interrupt(secured))
        try:
            secured.do_handshake()
        except OSError:
            secured.close()
            raise
        finally:
            self._pending.remove(key)
        return secured

    def _refuse(self, why: str) -> None:
        """Count a rejected caller; log at most once a minute, as a flood would fill the log."""
        self._turned_away += 1
        if time.monotonic() - self._said_at >= SAY_SECONDS:
            self._said_at = time.monotonic()
            logger.warning("%s: the agent rejects callers (%d so far)", why, self._turned_away)

    def _serve(self, sock: socket.socket) -> None:
        if not self._room.acquire(blocking=False):
            sock.close()
            self._refuse(f"more than {MAX_CONNECTIONS} connections")
            return
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
        local = sock.family == socket.AF_UNIX
        if local and _user_of(sock) not in {os.geteuid(), 0}:
            raise ProtocolError("a process of another user")
        decoder = REQUESTS if local else PEER_REQUESTS
        sock.settimeout(HELLO_SECONDS)
        caller = self._greet(sock, receive(sock, decoder))
        sock.settimeout(IDLE_SECONDS)
        while caller is not None:
            request = receive(sock, decoder)
            reply = self._service.answer(request, caller)
            if reply is not None:
                send(sock, reply)

    def _greet(self, sock: socket.socket, hello: WireMessage) -> AgentConnection | None:
        """The caller, if it may speak."""
        settings = self._service.settings
        if not isinstance(hello, Hello) or hello.job != settings.job:
            raise ProtocolError("no hello, or of another job")
        try:
            self._service.require_live(hello.generation)
        except StaleGenerationError as error:
            send(sock, AgentFailure(kind=FailureKind.STALE_GENERATION, reason=str(error)))
            return None
        send(sock, Welcome(node=settings.node, generation=self._service.store.config.fence))
        return AgentConnection(sock, hello.generation, settings.encrypts)


def _interrupt(sock: socket.socket) -> None:
    """End what another thread does with ``sock``."""
    with contextlib.suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)  # not that of ``SSLSocket``, which takes its TLS away


def _user_of(sock: socket.socket) -> int:
    """The user id of the process at the other end of a Unix socket (``SO_PEERCRED``)."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])


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

    ``--job J`` alone starts a standalone agent (``standalone``). A launcher gives ``--job J --node N --socket PATH
    --listen HOST:PORT --token-file F``, and perhaps more. Port 0 takes a free one. When ready, one line of JSON
    goes to stdout: ``{"ready": true, "node", "socket", "endpoint": "host:port", "pid"}``. Ends (files stay) on
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
    alone = arguments.socket is None
    if alone:
        arguments.socket = settings.directory / "agent.sock"
    collect_garbage(arguments.shm_dir)
    lock = take_lock(settings.directory)
    write_owner(settings.directory, owner or os.getpid())
    service = AgentService(settings)
    server = AgentServer(service)
    unix, tcp = listen_unix(arguments.socket), listen_tcp(arguments.listen)
    ended = threading.Event()
    stop_at_signal(ended.set)
    service.start()
    server.listen(unix)
    server.listen(tcp)
    host, port = tcp.getsockname()[:2]
    path, address_file = str(arguments.socket), settings.directory / standalone.ADDRESS_FILE
    if alone:
        address = standalone.AgentAddress(
            job=settings.job, node=settings.node, socket=path, endpoint=_reachable(host, port)
        )
        write_json(address_file, address)
    ready = {"ready": True, "node": settings.node, "socket": path, "endpoint": f"{host}:{port}", "pid": os.getpid()}
    print(json.dumps(ready), flush=True)  # noqa: T201 - the launcher reads this line
    _live(service, ended, owner, started)
    if alone:
        address_file.unlink(missing_ok=True)
    for listener in (unix, tcp):
        listener.close()
    arguments.socket.unlink(missing_ok=True)
    service.stop()
    lock.close()
    return 0


def _live(service: AgentService, ended: threading.Event, owner: int, started: int | None) -> None:
    """Beat until ended, or until the owner is gone."""
    beats = 0
    while not ended.wait(BEAT_SECONDS):
        service.store.beat()
        beats += 1
        if beats % 50 == 0:
            (service.settings.directory / "owner.json").touch()  # the files are in use
        if owner and process_start(owner) != started:
            logger.warning("the owner (pid %d) is gone: ending, the snapshots stay", owner)
            return


def _reachable(host: str, port: int) -> str:
    """Where other nodes find an agent that listens at ``host``: a wildcard is no address."""
    name = socket.gethostname() if host in {"0.0.0.0", "::"} else host  # noqa: S104 - compared, not bound
    return f"{name}:{port}"


def _settings(arguments: argparse.Namespace) -> AgentSettings:
    if arguments.token_file is None:
        directory = node_directory(arguments.shm_dir, arguments.job, arguments.node)
        arguments.token_file = standalone.own_token(directory)
    token = read_secret(arguments.token_file)
    if not token:
        raise ValueError(f"{arguments.token_file} is empty; write the job's secret into it")
    if arguments.disk_every and arguments.checkpoint_dir is None:
        raise ValueError("--checkpoint-interval needs --checkpoint-dir")
    if arguments.parity_every < 0 or arguments.disk_every < 0:
        raise ValueError("--parity-interval and --checkpoint-interval must not be negative")
    if min(arguments.scrub_interval, arguments.scrub_rate, arguments.restore_drill_interval) < 0:
        raise ValueError("--scrub-interval, --scrub-rate and --restore-drill-interval must not be negative")
    if arguments.disk_keep < 1 or arguments.keep_hours < 0:
        raise ValueError("--checkpoint-keep must be at least 1, --checkpoint-keep-hours at least 0")
    return AgentSettings(
        job=arguments.job,
        node=arguments.node,
        tls=job_tls(token, arguments.job, Authority.SNAPSHOTS),
        directory=node_directory(arguments.shm_dir, arguments.job, arguments.node),
        parity_every=arguments.parity_every,
        disk_every=arguments.disk_every,
        disk_keep=RetentionPolicy(
            last=arguments.disk_keep,
            every_hours=0.0 if arguments.upload else arguments.keep_hours,
            pending=PENDING_UPLOADS if arguments.upload else 0,
        ),
        checkpoint_dir=arguments.checkpoint_dir,
        upload=_upload(arguments),
        encrypts=arguments.snapshot_encryption == "on",
        scrub_pause=arguments.scrub_interval,
        scrub_rate=arguments.scrub_rate,
        drill_seconds=arguments.restore_drill_interval,
    )


def _upload(arguments: argparse.Namespace) -> UploadRequest | None:
    if arguments.upload is None:
        return None
    if arguments.checkpoint_dir is None:
        raise ValueError("--checkpoint-upload needs --checkpoint-dir")
    return UploadRequest(
        directory=str(arguments.checkpoint_dir),
        url=check_storage_url(arguments.upload),
        job=arguments.job,
        node=arguments.node,
        policy=RetentionPolicy(last=arguments.disk_keep, every_hours=arguments.keep_hours),
        rate=arguments.upload_rate,
    )


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the options of ``mainstay agent``."""
    parser = argparse.ArgumentParser("mainstay agent", description="Run the snapshot agent of one node of one job.")
    add = parser.add_argument
    add("--job", required=True, help="Serve the job of this name.")
    add("--node", default=standalone.node_name(), help="Serve the node of this name; the default is the host name.")
    add("--socket", type=Path, help="Listen on this Unix socket for ranks and a launcher; omit for a standalone agent.")
    add("--listen", default="127.0.0.1:0", help="Listen on HOST:PORT for peer agents; port 0 takes a free one.")
    add("--token-file", type=Path, help="Read the job's secret from this file; it is the same on all nodes of the job.")
    add("--shm-dir", type=Path, default=default_root(), help="Keep snapshot memory in this directory.")
    parity = "Encode parity for every Nth epoch; 0: never."
    checkpoint = "Write a checkpoint for every Nth epoch; 0: never."
    add("--parity-interval", dest="parity_every", type=int, default=0, metavar="N", help=parity)
    add("--checkpoint-interval", dest="disk_every", type=int, default=0, metavar="N", help=checkpoint)
    add("--checkpoint-keep", dest="disk_keep", type=int, default=2, metavar="N", help="Keep N files of each rank.")
    add("--checkpoint-dir", type=Path, help="Write checkpoints to this directory.")
    hours = "Keep the first complete step of each H hours too."
    add("--checkpoint-keep-hours", dest="keep_hours", type=float, default=0.0, metavar="H", help=hours)
    add("--checkpoint-upload", dest="upload", metavar="URL", help="Upload complete steps to this place.")
    rate = "Limit the bytes per second that uploads send; 0: no limit."
    add("--checkpoint-upload-rate", dest="upload_rate", type=float, default=0.0, metavar="B", help=rate)
    encryption = "Encrypt snapshots that other nodes read; off: only detect changes on the way."
    add("--snapshot-encryption", choices=("on", "off"), default="on", help=encryption)
    add("--scrub-interval", type=float, default=30.0, help="Wait this many seconds between two scrubs; 0: no scrubs.")
    add("--scrub-rate", type=float, default=200e6, help="Limit the bytes per second that scrubs read.")
    drill = "Wait this many seconds between two restore drills; 0: no drills."
    add("--restore-drill-interval", type=float, default=300.0, help=drill)
    add("--owner-pid", type=int, help="End when this process ends; 0: never. The default is the parent process.")
    return parser


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    arguments = build_parser().parse_args(argv)
    if arguments.owner_pid is None:
        # One that stands alone outlives the shell that it was started from.
        arguments.owner_pid = 0 if arguments.socket is None else os.getppid()
    return arguments
