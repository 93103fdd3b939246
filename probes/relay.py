"""The rack relay: a process that takes frames from nodes, stores them, and sends them on in bundles.

A node that gets no answer here sends to the service directly (``mainstay.probes.frame_route``), so a relay may end at
any time: what it acknowledged is in its spool, and leaves it when the service has it.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable
from ipaddress import ip_address
from typing import Final

import uvicorn

from mainstay.probes.catalog_store import CatalogStore
from mainstay.probes.command_options import RelayOptions
from mainstay.probes.core_types import validate_name
from mainstay.probes.data_dir import default_data_dir, keep_files_private, private_directory
from mainstay.probes.http_server import BoundedHttpProtocol, ReloadingServer
from mainstay.probes.identity import default_name
from mainstay.probes.relay_app import RelayApp
from mainstay.probes.relay_credentials import NodeCredentials
from mainstay.probes.relay_intake import FrameIntake
from mainstay.probes.relay_sender import BundleSender
from mainstay.probes.spool import Spool
from mainstay.probes.transport import Transport

_BACKLOG: Final = 1024
_KEEP_ALIVE_SECONDS: Final = 75
"""Longer than a node pauses between frames."""
_GRACE_SECONDS: Final = 2
_FLUSH_SECONDS: Final = 3.0
"""How long an orderly stop tries to deliver; the rest stays in the spool."""
_LEAST_SPOOL_BYTES: Final = 16 * 1024 * 1024
"""An entry may take a quarter, and a frame's body a mebibyte."""


def check_options(options: RelayOptions) -> None:
    """Refuse to take tokens in clear text beyond this machine, unless told to.

    Raises:
        ValueError: says what is wrong.
    """
    if options.name:
        validate_name(options.name, "--name")
    if not 0 <= options.gather <= 10:
        raise ValueError(f"--gather {options.gather} must be from 0 to 10 s")
    if options.spool_bytes < _LEAST_SPOOL_BYTES:
        raise ValueError(f"--spool-bytes {options.spool_bytes} must be at least {_LEAST_SPOOL_BYTES} (16 MiB)")
    if (options.tls_certificate is None) != (options.tls_key is None):
        raise ValueError("TLS needs both --tls-certificate and --tls-key")
    for path in (options.tls_certificate, options.tls_key):
        if path is not None and not path.is_file():
            raise ValueError(f"{path} is not a file")
    if not (_is_loopback(options.host) or options.tls_certificate or options.insecure_listen):
        raise ValueError(
            f"{options.host} is not a loopback address: give --tls-certificate and --tls-key,"
            " or --insecure-listen if the network of the rack is trusted"
        )


def run_relay(options: RelayOptions, transport: Transport, on_ready: Callable[[str, str], None]) -> bool:
    """Work until SIGTERM or SIGINT; True when everything was delivered.

    Args:
        options: what ``check_options`` accepts.
        transport: the service, with the relay's token.
        on_ready: called with the relay's name and URL when it listens.

    Raises:
        SpoolError: another relay uses the data directory.
        OSError: the address is taken, or the directory cannot be written.
        ValueError: the host has no name that would do for a relay.
    """
    name = options.name or default_name()
    keep_files_private()
    directory = private_directory(options.data_dir or default_data_dir().with_name("relay"))
    with Spool(directory / "frames", options.spool_bytes) as spool, _bind(options) as listener:
        catalogs = CatalogStore(spool.directory)
        intake = FrameIntake(spool, catalogs)
        credentials = NodeCredentials(transport)
        sender = BundleSender(
            spool, transport, catalogs, relay=name, gather=options.gather, on_refused=credentials.forget
        )
        app = RelayApp(credentials, intake, sender, catalogs)
        server = _RelayServer(app, options, lambda: on_ready(name, _url(options, listener)))
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(
                number, lambda *_: None
            )  # uvicorn raises it again at its end, when the spool is not empty yet
        sender.start()
        try:
            server.run(sockets=[listener])
        finally:
            delivered = sender.stop(_FLUSH_SECONDS)
        return delivered


class _RelayServer(ReloadingServer):
    def __init__(self, app: RelayApp, options: RelayOptions, on_ready: Callable[[], None]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                loop="asyncio",
                http=BoundedHttpProtocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                proxy_headers=False,
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=_GRACE_SECONDS,
                ssl_certfile=options.tls_certificate,
                ssl_keyfile=options.tls_key,
            )
        )
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()


def _bind(options: RelayOptions) -> socket.socket:
    """The listening socket; port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    return socket.create_server((options.host, options.port), family=family, backlog=_BACKLOG)


def _url(options: RelayOptions, listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"{'https' if options.tls_certificate else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
