"""The node's control loop: it reports who it is, asks for orders by long poll, and has them carried out.

A node only calls out. The outcome of every task is posted: a validation that cannot be run is an error result (its
verdict is UNKNOWN), never silence, and results wait in a spool while the service is away.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from mainstay.probes.benchmarks.pair_protocol import PAIR, PairReport, PairTask
from mainstay.probes.identity import NodeReport
from mainstay.probes.pair_tasks import PAIR_COMMAND, PairTaskRunner
from mainstay.probes.shipper import Shipper
from mainstay.probes.spool import Entry, Spool
from mainstay.probes.transport import Backoff, RejectedError, RetryableError, Transport, TransportError
from mainstay.probes.validation_tasks import (
    ValidationProcess,
    ValidationProgress,
    ValidationReport,
    ValidationRunner,
    ValidationTask,
)

log = logging.getLogger(__name__)

_WAIT_S: Final = 20
_READ_S: Final = _WAIT_S + 10.0
_REPEAT_S: Final = 600.0
"""The report is repeated, in case the service was restored from an older state."""


class _Orders(msgspec.Struct, frozen=True):
    items: tuple[dict[str, Any], ...]


class _Posted(msgspec.Struct, frozen=True):
    validation_id: str
    """Or the id of a pair's order."""
    result: ValidationReport | None = None
    pair: PairReport | None = None


class ResultOutbox(Shipper):
    """Results of validations and pairs on their way to the service; they wait on disk while it is away."""

    def __init__(self, spool: Spool, transport: Transport) -> None:
        super().__init__(spool)
        self._transport = transport

    def put(self, validation_id: str, result: ValidationReport) -> None:
        self.spool.append(msgspec.json.encode(_Posted(validation_id, result)))

    def put_pair(self, order_id: str, report: PairReport) -> None:
        self.spool.append(msgspec.json.encode(_Posted(order_id, pair=report)))

    def deliver(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            posted = msgspec.json.decode(entry.payload, type=_Posted)
            kind = "validations" if posted.pair is None else "fault-localizations/tasks"
            body = posted.result if posted.pair is None else posted.pair
            try:
                self._transport.request("POST", f"/{kind}/{posted.validation_id}/results", body)
            except RetryableError as error:
                if error.status == 404 and error.slug:  # our own service answered: it does not wait for this result
                    raise RejectedError(str(error), status=404, slug=error.slug) from error
                raise


class TaskLoop:
    """A thread: report first, then orders, for ever."""

    def __init__(
        self,
        name: str,
        transport: Transport,
        validator: ValidationProcess,
        results: ResultOutbox,
        *,
        enroll: Callable[[], str] | None = None,
        pair_command: Sequence[str] = PAIR_COMMAND,
    ) -> None:
        self.name = name
        self.reported = threading.Event()
        """Set when the service has this node's current report."""
        self._transport = transport
        validator.tell = self._tell
        self._bench = ValidationRunner(validator, results.put)
        self._pairs = PairTaskRunner(name, results.put_pair, command=pair_command, busy=self._bench.busy)
        self._enroll = enroll
        self._report: NodeReport | None = None
        self._reported_at = 0.0
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._backoff = Backoff(base=0.5, cap=15.0)
        self._trouble = ""
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)

    def start(self) -> None:
        self._bench.start()
        self._thread.start()

    def stop(self) -> None:
        """Stop fetching tasks; a long poll in flight ends at its own timeout."""
        self._stopping.set()
        self._bench.stop()
        self._pairs.stop()
        with self._changed:
            self._changed.notify_all()

    def report(self, report: NodeReport) -> None:
        """Tell the service who we are, soon; the newest report wins."""
        with self._changed:
            self._report = report
            self.reported.clear()
            self._changed.notify_all()

    def _run(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._report is not None or self._stopping.is_set())
        while not self._stopping.is_set():
            try:
                self._turn()
                self._recovered()
            except TransportError as error:
                self._pause(error)

    def _turn(self) -> None:
        if self._enroll is not None:
            self._transport.token, self._enroll = self._enroll(), None
        if not self.reported.is_set() or time.monotonic() - self._reported_at > _REPEAT_S:
            self._put_report()
        answer = self._transport.json("GET", f"/nodes/{self.name}/tasks?wait={_WAIT_S}", read_s=_READ_S)
        try:
            items = msgspec.convert(answer, _Orders).items
        except msgspec.ValidationError as error:
            raise RetryableError(f"orders that cannot be read: {error}") from error
        for item in items:
            try:
                self._obey(item)
            except msgspec.ValidationError as error:  # a newer service's; the others are carried out
                log.warning("order %s cannot be read and was ignored: %s", item.get("id"), error)

    def _put_report(self) -> None:
        report = self._report
        self._transport.request("PUT", f"/nodes/{self.name}", report)
        self._reported_at = time.monotonic()
        with self._changed:
            if report is self._report:
                self.reported.set()

    def _obey(self, item: dict[str, Any]) -> None:
        if item.get("kind") == PAIR:
            self._pairs.submit(msgspec.convert(item, PairTask))
            return
        order = msgspec.convert(item, ValidationTask)
        if order.kind == "validate":
            self._bench.submit(order)
        elif order.kind == "cancel":
            self._bench.cancel(order)
        else:
            log.warning("order %s of kind %r is not known to this version and was ignored", order.id, order.kind)

    def _tell(self, validation_id: str, progress: ValidationProgress) -> None:
        """Progress is worth one try: the next report holds all that this one did."""
        try:
            self._transport.request("POST", f"/validations/{validation_id}/progress", progress)
        except TransportError as error:
            log.debug("progress of %s: %s", validation_id, error)

    def _recovered(self) -> None:
        self._backoff.reset()
        if self._trouble:
            log.info("control: the service answers again")
        self._trouble = ""

    def _pause(self, error: TransportError) -> None:
        if error.status == 404:
            self.reported.clear()  # the service does not know us (any more)
        if str(error) != self._trouble:
            log.warning("control: %s", error)
        self._trouble = str(error)
        self._stopping.wait(max(self._backoff.next(), error.retry_after))
