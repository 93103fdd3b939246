"""gloo groups whose forming can be given up.

gloo's constructor meets all peers, and one kind of waiting in there has no handle to end it by: a pair whose other side
died before it called waits for that call until the group's time-out. So the constructor runs in a thread of its own,
which is left behind when the generation ends; it costs a port and a few kilobytes until its time-out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, wait
from contextlib import contextmanager, suppress
from datetime import timedelta

from torch.distributed import ProcessGroupGloo, Store

from mainstay.probes.torch_private import gloo_class


class WaitAbortedError(RuntimeError):
    """The generation ended while its groups were being formed."""


class AbortableWait:
    """Waits that one call of ``abort``, from any thread, ends."""

    def __init__(self) -> None:
        self._given_up: Future[None] = Future()

    def abort(self) -> None:
        with suppress(InvalidStateError):  # it was called before
            self._given_up.set_result(None)

    @contextmanager
    def with_gloo(self) -> Iterator[None]:
        """Groups formed inside the block are given up by ``abort``.

        torch has no hook here but a custom backend, whose groups would not be called gloo any more.
        """
        wait_for = self.wait_for

        class Patient(ProcessGroupGloo):
            def __init__(self, store: Store, rank: int, size: int, timeout: timedelta) -> None:
                wait_for(lambda: ProcessGroupGloo.__init__(self, store, rank, size, timeout=timeout))

        with gloo_class(Patient):
            yield

    def wait_for(self, build: Callable[[], None]) -> None:
        """Run ``build`` in a thread and wait for its end or for ``abort``, whichever comes first.

        Raises:
            WaitAbortedError: ``abort`` was first.
            RuntimeError: what ``build`` raised.
        """
        built: Future[None] = Future()

        def work() -> None:
            try:
                build()
            except RuntimeError as error:
                built.set_exception(error)
            else:
                built.set_result(None)

        threading.Thread(target=work, name="mainstay-gloo", daemon=True).start()
        wait((built, self._given_up), return_when=FIRST_COMPLETED)
        if not built.done():
            raise WaitAbortedError("the generation ended while its groups were being formed")
        built.result()
