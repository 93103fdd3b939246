"""gloo groups whose forming can be given up.

gloo's constructor meets all peers, and one kind of waiting in there has no handle to end it by: a pair whose other side
died before it called waits for that call until the group's time-out. So the constructor runs in a thread of its own,
which is left behind when the generation ends; it costs a port and a few kilobytes until its time-out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from torch.distributed import ProcessGroupGloo, Store

from mainstay.probes.torch_private import gloo_class


class WaitAbortedError(RuntimeError):
    """The generation ended while its groups were being formed."""


class AbortableWait:
    """Waits that one call of ``give_up``, from any thread, ends."""

    def __init__(self) -> None:
        self._news = threading.Condition()
        self._given_up = False

    def abort(self) -> None:
        with self._news:
            self._given_up = True
            self._news.notify_all()

    @contextmanager
    def with_gloo(self) -> Iterator[None]:
        """Groups formed inside the block are given up by ``give_up``.

        torch has no hook here but a custom backend, whose groups would not be called gloo any more.
        """
        wait_for = self.wait_for

        class Patient(ProcessGroupGloo):
            def __init__(self, store: Store, rank: int, size: int, timeout: timedelta) -> None:
                wait_for(lambda: ProcessGroupGloo.__init__(self, store, rank, size, timeout=timeout))

        with gloo_class(Patient):
            yield

    def wait_for(self, build: Callable[[], None]) -> None:
        """Run ``build`` in a thread and wait for its end or for ``give_up``, whichever comes first.

        Raises:
            GivenUpError: ``give_up`` was first.
            RuntimeError: what ``build`` raised.
        """
        outcome: list[RuntimeError | None] = []

        def work() -> None:
            failure = None
            try:
                build()
            except RuntimeError as error:
                failure = error
            with self._news:
                outcome.append(failure)
                self._news.notify_all()

        threading.Thread(target=work, name="mainstay-gloo", daemon=True).start()
        with self._news:
            self._news.wait_for(lambda: outcome or self._given_up)
            if not outcome:
                raise WaitAbortedError("the generation ended while its groups were being formed")
            if outcome[0] is not None:
                raise outcome[0]
