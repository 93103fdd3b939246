"""Streams of asyncio with mutual TLS. What a callback receives is a member of the job."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from mainstay.recovery.job_tls import HANDSHAKE_SECONDS, JobTls, PendingConnections

log = logging.getLogger("mainstay.launcher")

Accept = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
_SHUTDOWN_SECONDS = 1.0
"""For the shutdown notice of TLS to a process that does not answer; the default is 30."""


async def open_stream(host: str, port: int, tls: JobTls) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to a member of the job.

    Raises:
        OSError: nothing listens there, or no member of the job (``ssl.SSLError``).
    """
    return await asyncio.open_connection(
        host, port, ssl=tls.client, ssl_handshake_timeout=HANDSHAKE_SECONDS, ssl_shutdown_timeout=_SHUTDOWN_SECONDS
    )


async def serve_streams(accept: Accept, host: str, port: int, tls: JobTls) -> asyncio.Server:
    """Listen; ``accept`` runs with each connection that has authenticated.

    Raises:
        OSError: the port is taken, or the address is none of this host.
    """
    pending = PendingConnections()
    return await asyncio.get_running_loop().create_server(lambda: _Handshake(accept, tls, pending), host, port)


class _Handshake(asyncio.Protocol):
    """A connection until it has authenticated: ``asyncio.start_server(ssl=)`` shows one only after that."""

    def __init__(self, accept: Accept, tls: JobTls, pending: PendingConnections) -> None:
        self._accept = accept
        self._tls = tls
        self._pending = pending
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()  # the first bytes are for TLS

        def end() -> None:
            task.cancel()
            transport.abort()

        source = (transport.get_extra_info("peername") or ("",))[0]
        key = self._pending.add_connection(source, end)
        self._task = task = asyncio.get_running_loop().create_task(self._serve(transport, source, key))

    async def _serve(self, transport: asyncio.Transport, source: str, key: object) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            secured = await loop.start_tls(
                transport,
                protocol,
                self._tls.server,
                server_side=True,
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=_SHUTDOWN_SECONDS,
            )
        except OSError as error:
            self._pending.refuse(source, log, error)
            return
        finally:
            self._pending.remove(key)
        assert secured is not None
        protocol.connection_made(secured)
        await self._accept(reader, asyncio.StreamWriter(secured, protocol, reader, loop))
