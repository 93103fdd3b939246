"""Mutual TLS 1.3 between the processes of one job, and a bound on connections that have not authenticated.

Both sides show a certificate of the same authority (``job_certificates``). A connection that is up is therefore of this
job, encrypted, and not a replay.
"""

from __future__ import annotations

import logging
import os
import re
import ssl
import threading
from collections import Counter
from collections.abc import Callable
from typing import Final

HANDSHAKE_SECONDS: Final = 20.0
"""2,048 launchers that start at once need some 5 s of a coordinator's processor time."""
PENDING_EACH: Final = 64
"""Connections from one address that have not authenticated. A member of the job is one of them for milliseconds."""
PENDING: Final = 16_384
"""From all addresses."""
_LOGGED: Final = 100
_CERTIFICATE: Final = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----\n", re.DOTALL)


class JobTls:
    """One identity in a job.

    Args:
        pem: of ``issue_certificate``.

    Raises:
        ValueError, ssl.SSLError: it is none.
    """

    def __init__(self, pem: str) -> None:
        found = _CERTIFICATE.findall(pem)
        if len(found) != 2:
            raise ValueError(f"an identity of a job has two certificates, not {len(found)}")
        self.pem = pem
        self.server = _context(ssl.PROTOCOL_TLS_SERVER, pem, found[1])
        self.client = _context(ssl.PROTOCOL_TLS_CLIENT, pem, found[1])
        # No client reads session tickets, and unread bytes make the kernel reset a connection that is closed.
        self.server.num_tickets = 0


def _context(side: int, pem: str, authority: str) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # membership counts, and nodes change addresses
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=authority)
    # The standard library loads a private key only from a file; this one is in memory, without a name.
    descriptor = os.memfd_create("mainstay-certificate", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, pem.encode())
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
    return context


def refusal(error: OSError) -> str:
    """Say why a handshake failed, for people."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return "it has another job token: the nodes of a job need the same --token-file"
    return str(error)


class PendingConnections:
    """Connections of one listener whose other side has not authenticated; safe from any thread.

    When an address has too many, its oldest one is ended; when there are too many in all, that of the address with the
    most. So silent callers keep out neither another address nor a member at their own, who is never the oldest for
    long. Many members that start at once, with one connection each, do not end each other's.
    """

    def __init__(self, each: int = PENDING_EACH, total: int = PENDING) -> None:
        self._each = each
        self._total = total
        self._lock = threading.Lock()
        self._pending: dict[object, tuple[str, Callable[[], None]]] = {}
        self._addresses = Counter[str]()
        self._refused: set[str] = set()

    def add_connection(self, source: str, end: Callable[[], None]) -> object:
        """Count a connection from the address ``source``, which ``end`` ends; returns what ``remove`` takes."""
        key = object()
        with self._lock:
            self._pending[key] = source, end
            addresses = self._addresses
            addresses[source] += 1
            if addresses[source] > self._each:
                worst = source
            elif len(self._pending) > self._total:
                worst = max(addresses, key=addresses.__getitem__)
            else:
                return key
            oldest = next(one for one, (address, _) in self._pending.items() if address == worst)
            give_up = self._forget(oldest)
        give_up()
        return key

    def refuse(self, source: str, log: logging.Logger, error: OSError) -> None:
        """Log a caller that did not authenticate; once for each address, as a flood would fill the log."""
        with self._lock:
            if source in self._refused or len(self._refused) >= _LOGGED:
                return
            self._refused.add(source)
        why = "it has another job token, is not of this job, or ended"
        log.warning("a caller at %s did not authenticate: %s (%s)", source, why, str(error) or type(error).__name__)

    def remove(self, key: object) -> None:
        """It has authenticated, or has ended."""
        with self._lock:
            if key in self._pending:
                self._forget(key)

    def _forget(self, key: object) -> Callable[[], None]:
        source, end = self._pending.pop(key)
        self._addresses[source] -= 1
        if not self._addresses[source]:
            del self._addresses[source]
        return end
