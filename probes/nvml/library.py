"""The driver's library, reopened under threads that read through it.

A channel that hangs in the driver must not block others, so no lock is held during a driver call. The lock guards only
the table of threads inside. Reopening shuts the library, which must not happen during a call. The thread that finds it
necessary (``stale``) or useful (``request``) sets a flag, each thread leaves at the end of its call, and the first who
then comes in does it while the others wait a moment, or go without a reading. Who has been inside for longer than
``_HUNG_S`` is taken for hung and no longer waited for.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from mainstay.probes.nvml.card import REASONS, NvmlGpu, Reader
from mainstay.probes.nvml.errors import GoneError, NeverError, StaleError, check
from mainstay.probes.nvml.facts import identify
from mainstay.probes.samplers.base import DeviceIdentity

log = logging.getLogger(__name__)

_HUNG_S: Final = 30.0
IDENTIFY_S: Final = 3.0
"""How long all cards together may take to say who they are; the slowest calls here take milliseconds."""
SILENT: Final = "silent"
NOT_LISTED: Final = "not_listed"
_PATIENCE_S: Final = 0.3
"""How long a reader waits for another's opening. It takes some ms on a warm driver; a sample can be missed."""
_RETRY_S: Final = (0.5, 30.0)
"""First and longest pause between two attempts to open."""


class Library:
    """``import_`` gives the module ``pynvml``."""

    def __init__(self, import_: Callable[[], Any]) -> None:
        self._import = import_
        self._lock = threading.Lock()
        self._inside: dict[str, float] = {}
        self._ready = threading.Event()
        self._ready.set()
        self._usable = threading.Event()
        self._nvml: Any = None
        self._open = False
        self._stale = ""
        self.wished = ""
        self._opener: threading.Thread | None = None
        self._retry_at = 0.0
        self._pause = _RETRY_S[0]
        self.cards: tuple[NvmlGpu, ...] = ()
        """Every card ever seen, in index order; a new tuple when that changed."""
        self.unopened: dict[int, str] = {}
        """Why cards that were listed at the last opening could not be read, by the driver's index."""

    @property
    def nvml(self) -> Any:
        """The module, while the library is open and fit for use; else None."""
        return self._nvml if self._open and not self._stale else None

    def stale(self, why: str) -> None:
        """Require that the library is reopened before its next use."""
        with self._lock:
            if self._open and not self._stale:
                log.warning("nvml: %s; opening the library again", why)
                self._stale = why

    def request(self, why: str) -> None:
        """Request to reopen it as soon as no thread is inside. The event thread leaves for that."""
        self.wished = why

    def open(self) -> None:
        """Open it if it is closed or stale, and no thread is inside.

        Raises:
            ModuleNotFoundError: there is no pynvml.
            OSError: the driver is missing or does not answer, or someone is still inside.
        """
        if self._open and not self._stale:
            return
        if not self._begin():
            raise OSError("the library is about to be reopened")
        try:
            if not self._open or self._stale:  # no other thread did it in between
                self._shut()
                self._start()
        finally:
            self._ready.set()

    def retry_aside(self) -> None:
        """Run ``retry`` in a new thread and wait a moment: a channel that opens must not count as hung."""
        if self.nvml is not None and not self.wished:
            return
        with self._lock:
            opener = self._opener
            if opener is None or not opener.is_alive():
                opener = self._opener = threading.Thread(target=self.retry, name="nvml-open", daemon=True)
                opener.start()
        opener.join(_PATIENCE_S)

    def retry(self) -> None:
        """``open`` for a reader: quietly, and not at every sample while it fails."""
        if self.wished and self._open and not self._busy():
            self.stale(self.wished)
        if self.nvml is not None or time.monotonic() < self._retry_at:
            return
        try:
            self.open()
            self._pause = _RETRY_S[0]
        except (OSError, ModuleNotFoundError) as error:
            log.debug("nvml: %s", error)
            self._retry_at = time.monotonic() + self._pause
            if not self._open:
                self._pause = min(2 * self._pause, _RETRY_S[1])

    def wait(self, seconds: float) -> None:
        """Wait until it is open, so long at most."""
        self._usable.wait(seconds)

    @contextmanager
    def visit(self, who: str) -> Iterator[bool]:
        """Inside, driver calls may be made; False: not now. One thread a name."""
        self._ready.wait(_PATIENCE_S)
        with self._lock:
            welcome = self._ready.is_set() and self._open and not self._stale
            mark = time.monotonic()
            if welcome:
                self._inside[who] = mark
        try:
            yield welcome
        finally:
            with self._lock:
                if self._inside.get(who) == mark:
                    del self._inside[who]

    def close(self) -> None:
        """Shut it; under a call that hangs it is left open."""
        self._retry_at = 0.0
        if (opener := self._opener) is not None:
            opener.join(_PATIENCE_S)
        if not self._open:
            return
        self._stale = "closed"
        if not self._inside and self._begin():
            try:
                self._shut()
            finally:
                self._ready.set()

    def _begin(self) -> bool:
        """Whether the caller may open or shut it now; others wait then until ``_ready`` is set."""
        with self._lock:
            if self._busy() or not self._ready.is_set():
                return False
            self._ready.clear()
            return True

    def _busy(self) -> bool:
        now = time.monotonic()
        return any(now - since < _HUNG_S for since in list(self._inside.values()))

    def _shut(self) -> None:
        if self._open and self._nvml is not None:
            try:
                self._nvml.nvmlShutdown()
            except self._nvml.NVMLError as error:
                log.info("nvml: shutdown: %s", error)
        self._usable.clear()
        self._open, self._stale, self.wished = False, "", ""

    def _start(self) -> None:
        nvml = self._nvml = self._import()
        try:
            nvml.nvmlInit()
            self._open = True
            found = self._list(nvml)
        except (nvml.NVMLError, StaleError) as error:
            self._shut()
            raise OSError(str(error)) from error
        self._attach(nvml, found)
        self._usable.set()

    def _list(self, nvml: Any) -> list[tuple[DeviceIdentity, Any]]:
        """Every card that says who it is. Each is asked in a thread of its own, because one that hangs may be any."""
        answers = [_Answer(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
        deadline = time.monotonic() + IDENTIFY_S
        for answer in answers:
            answer.join(max(0.0, deadline - time.monotonic()))
        if any(isinstance(answer.gave, StaleError) for answer in answers):
            raise StaleError("the driver was replaced while its cards were listed")
        self.unopened = {}
        found = []
        for answer in answers:
            gave = answer.gave  # may come while we look
            if isinstance(gave, tuple):
                found.append(gave)
            else:
                self.unopened[answer.index] = REASONS[gave.code] if isinstance(gave, GoneError) else SILENT
                log.warning("nvml: GPU %d cannot be opened: %s", answer.index, gave)
        return found

    def _attach(self, nvml: Any, found: list[tuple[DeviceIdentity, Any]]) -> None:
        """Attach known cards again; a card that is no longer listed stays, unread: it is missed and not gone."""
        known = {card.identity.id: card for card in self.cards}
        reasons = set(self.unopened.values()) or {NOT_LISTED}
        for card in known.values():
            card.reader = None
            card.absent = "" if SILENT in reasons else min(reasons)
        for identity, handle in found:
            if identity.id in known:
                known[identity.id].attach(identity, Reader(nvml, handle))
            else:
                known[identity.id] = NvmlGpu(identity, Reader(nvml, handle))
        cards = tuple(sorted(known.values(), key=lambda card: card.identity.index))
        if cards != self.cards:
            self.cards = cards


class _Answer(threading.Thread):
    """Who card ``index`` is: ``gave`` is its identity and handle, or why there is none, or None while it is silent."""

    def __init__(self, nvml: Any, index: int) -> None:
        super().__init__(name=f"nvml-identify-{index}", daemon=True)
        self.index = index
        self.gave: tuple[DeviceIdentity, Any] | Exception | None = None
        self._nvml = nvml
        self.start()

    def run(self) -> None:
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(self.index)
            self.gave = identify(nvml, handle, self.index), handle
        except nvml.NVMLError as error:
            try:
                check(error.value)
                self.gave = error
            except (StaleError, GoneError, NeverError) as meaning:
                self.gave = meaning
        except (StaleError, GoneError, ValueError) as error:
            self.gave = error
