"""Which way a node's frames go: to the rack relay, and to the service while the relay does not take them.

The service has the last word: a frame that the relay rejects is sent directly. The spool numbers frames and keeps them
until one of the two has acknowledged them, so a frame that both receive is the same frame.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from mainstay.probes.signals import Catalog
from mainstay.probes.transport import RejectedError, RetryableError, Transport, TransportError

log = logging.getLogger(__name__)

GRACE_SECONDS: Final = 3.0
"""How long frames wait for a relay that fails, before they go directly: longer than a relay takes to restart."""
PROBE_SECONDS: Final = 30.0
"""How long frames go directly before the relay is tried again; each wait is 50% to 150% of it."""


class FrameRoute:
    """Sends frames through ``relay`` or ``service``. Used by one thread.

    Args:
        relay: client of the relay; it always gets the service's token.
        service: client of the service.
        clock: monotonic seconds.
        rng: uniform in [0, 1): keeps the nodes of a rack from returning in the same instant.
    """

    def __init__(
        self,
        relay: Transport,
        service: Transport,
        *,
        clock: Callable[[], float] = time.monotonic,
        rng: Callable[[], float] = random.random,
    ) -> None:
        self._relay = relay
        self._service = service
        self._clock = clock
        self._rng = rng
        self._failing_since: float | None = None
        self._direct_until: float | None = None
        """When to try the relay again; None while frames go through it."""
        self._asked = service
        """Who answered last: a catalog is announced to whom does not know it."""

    def send_frame(self, body: bytes) -> None:
        """Deliver one encoded frame; on return it is durable at the relay or at the service.

        Raises:
            RejectedError: the service will never take it, or the receiver does not know its catalog.
            RetryableError: no answer, or one that may change.
        """
        if (self._direct_until is None or self._clock() >= self._direct_until) and self._send_to_relay(body):
            return
        self._asked = self._service
        try:
            self._service.send_frame(body)
        except RetryableError:
            if self._direct_until is not None:
                self._direct_until = self._clock()  # neither of them: the relay may be the first to return
            raise

    def put_catalog(self, catalog: Catalog) -> None:
        """Announce a catalog to the receiver that answered last."""
        try:
            self._asked.put_catalog(catalog)
        except TransportError as error:
            if self._asked is self._service:
                raise
            self._leave(error)
            raise RetryableError(f"the relay does not take the catalog: {error}") from error

    def _send_to_relay(self, body: bytes) -> bool:
        """Return False when the frame has to go directly."""
        self._relay.token = self._service.token
        self._asked = self._relay
        try:
            self._relay.send_frame(body)
        except RejectedError as error:
            if error.slug == "unknown-catalog":
                raise
            log.warning("the relay rejects a frame, which goes directly: %s", error)
            if error.status == HTTPStatus.FORBIDDEN:  # it takes no frames of this node
                self._stay_away()
            return False
        except RetryableError as error:
            self._leave(error)
            return False
        if self._direct_until is not None:
            log.info("frames go through the relay %s again", self._relay.url)
        self._failing_since = self._direct_until = None
        return True

    def _leave(self, error: TransportError) -> None:
        """Raise ``error`` for a while; then leave the relay, and stay away a while longer."""
        now = self._clock()
        if self._direct_until is None:
            if self._failing_since is None:
                self._failing_since = now
            if now - self._failing_since < GRACE_SECONDS:
                raise error
            log.warning("frames go to the service directly: %s", error)
        self._stay_away()

    def _stay_away(self) -> None:
        self._direct_until = self._clock() + PROBE_SECONDS * (0.5 + self._rng())
