"""Sends what ``/metrics`` shows of devices and nodes to a Prometheus remote-write receiver, under a lease.

The sample of a series is what a scrape at that time would have read. What a receiver did not accept is sent again, byte
for byte; times that passed meanwhile are read from the ring, without counters: of those, it knows the newest totals.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from typing import Any, Final

import urllib3
from prometheus_client.metrics_core import Metric
from urllib3.exceptions import HTTPError

from mainstay.probes.transport import Backoff
from mainstay.service.common.loops import Loop
from mainstay.service.exposition.families import counter, gauge
from mainstay.service.exposition.page import FleetPage
from mainstay.service.exposition.protobuf import Series
from mainstay.service.services import Services

_log: Final = logging.getLogger(__name__)
NAME: Final = "remote-write"
REQUEST_BYTES: Final = 2**21
"""Size from which requests are split. Some receivers take a megabyte; compressed, this is about two thirds of it."""
_TIMEOUT: Final = urllib3.Timeout(connect=3.0, read=10.0)
_HEADERS: Final = {
    "Content-Type": "application/x-protobuf", "Content-Encoding": "snappy", "User-Agent": "mainstay",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}  # fmt: skip


def make(services: Services) -> list[Loop]:
    if not services.settings.remote_write.url:
        return []
    return [Loop(NAME, 1.0, services.leases.elect(NAME, lambda: RemoteWriter(services).run_once))]


def collect(services: Services) -> Iterator[Metric]:
    """Remote write."""
    told, position = services.remote_write, services.remote_write["position"]
    yield counter("remote_write_samples_sent", "Samples that the remote-write receiver accepted", told["sent"])
    yield counter("remote_write_samples_refused", "Samples that the receiver refused for good", told["refused"])
    yield counter("remote_write_failures", "Requests that failed and are sent again", told["failures"])
    about = "Intervals without samples: the receiver was slow, or they left memory before it answered again"
    yield counter("remote_write_intervals_skipped", about, told["skipped"])
    if position:
        delay = services.clock.now() - position
        yield gauge("remote_write_delay_seconds", "Age of the newest sample that this process sent", delay)


class RemoteWriter:
    """One term of the process that sends: it continues where the one before stopped."""

    def __init__(self, services: Services) -> None:
        self._services, self._settings = services, services.settings.remote_write
        self._series = Series()
        self._page = FleetPage(services, self._series)
        ca_file = self._settings.ca_file
        self._http = urllib3.PoolManager(num_pools=1, ca_certs=None if ca_file is None else str(ca_file))
        self._bodies: Iterator[bytes] = iter(())
        self._body = b""
        self._at: int | None = None
        self._resuming = True
        """Whether times that passed are sent from the ring. Not where the receiver is slow: it would never catch up."""
        self._retry_at, self._backoff = 0.0, Backoff(base=1.0, cap=30.0)

    def run_once(self) -> None:
        """Send the samples of one time at most, so that a stop waits for no more."""
        if time.monotonic() < self._retry_at or not (self._body or self._begin()):
            return
        while self._body:
            if not self._deliver():
                return
            self._body = next(self._bodies, b"")
        self._services.remote_write["position"] = self._at or 0

    def _begin(self) -> bool:
        """Take up the next time that is due; whether there is one."""
        services, step = self._services, self._settings.interval_seconds
        newest = int(services.clock.now()) // step * step
        if self._at is None:
            self._at = min(int(services.leases.shared(NAME) or newest - step), newest)
        oldest = newest - services.ring.depth // step * step if self._resuming else newest
        at = max((self._at // step + 1) * step, oldest)
        if at > newest:
            return False
        skipped = (at - self._at - 1) // step
        services.remote_write["skipped"] += skipped
        self._resuming = self._resuming and at < newest and not skipped
        self._at, self._series.stamp = at, at * 1000
        services.leases.share(NAME, str(at).encode())  # before: a receiver refuses a second value for the same time
        self._bodies = requests(self._page.parts(None if at == newest else at), self._series.end)
        self._body = next(self._bodies, b"")
        return True

    def _deliver(self) -> bool:
        """Send the request; False if it must be sent again."""
        stats, samples = self._services.remote_write, self._body.count(self._series.end)
        try:
            sent: Any = {"body": compressed(self._body), "headers": self._headers()}
            answer = self._http.request("POST", self._settings.url, retries=False, timeout=_TIMEOUT, **sent)
            status, reason = answer.status, answer.data[:200].decode(errors="replace").strip()
        except (HTTPError, OSError) as error:
            status, reason = 0, str(error)
        if status in {0, 429} or status >= 500:
            stats["failures"] += 1
            self._resuming = True
            wait = self._backoff.next()
            self._retry_at = time.monotonic() + wait
            _log.warning("remote write: %s %s; the next attempt is in %.0f s", status or "no answer", reason, wait)
            return False
        self._backoff.reset()
        if status // 100 == 2:
            stats["sent"] += samples
        else:
            stats["refused"] += samples
            _log.warning("remote write: %d samples were refused: %d %s", samples, status, reason)
        return True

    def _headers(self) -> dict[str, str]:
        """With the credential as the file has it now."""
        settings = self._settings
        if settings.token_file is not None:
            return _HEADERS | {"Authorization": f"Bearer {settings.token_file.read_text().strip()}"}
        if settings.basic_auth_file is not None:
            return _HEADERS | urllib3.make_headers(basic_auth=settings.basic_auth_file.read_text().strip())
        return _HEADERS


def compressed(body: bytes) -> bytes:
    """One block of Snappy."""
    import pyarrow as pa  # noqa: PLC0415 - starts threads

    block: bytes = pa.compress(body, codec="snappy", asbytes=True)
    return block


def requests(parts: Iterable[bytes], end: bytes) -> Iterator[bytes]:
    """The same series in pieces of ``REQUEST_BYTES`` and at most one series more; ``end`` ends each series."""
    rest = b""
    for part in parts:
        rest, start = rest + part, 0
        while len(rest) - start > REQUEST_BYTES:
            cut = rest.index(end, start + REQUEST_BYTES - len(end)) + len(end)
            yield rest[start:cut]
            start = cut
        rest = rest[start:]
    if rest:
        yield rest
