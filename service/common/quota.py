"""Quotas: a token bucket for each caller, in memory. Other callers do not pay for one that sends too much."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from mainstay.service.common.problem import TooManyRequestsError

MAX_CALLERS: Final = 50_000
"""Buckets kept; whoever was not heard for longest starts again with a full one."""


class QuotaExceededError(TooManyRequestsError):
    slug, title = "quota-exceeded", "Quota exceeded"


@dataclass
class Quota:
    """Token buckets of one kind of work (RFC 2697 calls the two numbers committed rate and burst size).

    Args:
        what: is counted, in words.
        per_second: refill of a bucket.
        burst: size of a bucket.
        monotonic: clock, seconds.
    """

    what: str
    per_second: float
    burst: int
    monotonic: Callable[[], float] = time.monotonic
    _buckets: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict, init=False, repr=False)
    """Caller -> (what is left, when that was)."""
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def charge(self, caller: str, count: int) -> None:
        """Take ``count`` from the caller's bucket.

        Raises:
            QuotaExceededError: there is not enough left; nothing is taken. ``Retry-After`` says when there will be.
        """
        now = self.monotonic()
        with self._lock:
            left, at = self._buckets.get(caller, (float(self.burst), now))
            left = min(float(self.burst), left + (now - at) * self.per_second)
            missing = count - left
            self._buckets[caller] = (left if missing > 0 else left - count, now)
            self._buckets.move_to_end(caller)
            if len(self._buckets) > MAX_CALLERS:
                self._buckets.popitem(last=False)
        if missing > 0:
            seconds = math.ceil(missing / self.per_second)
            raise QuotaExceededError(
                f"this token sent too many {self.what}: {self.burst} at once and {self.per_second:g} a second are"
                f" allowed. Try again in {seconds} s.",
                headers={"Retry-After": str(seconds)},
            )
