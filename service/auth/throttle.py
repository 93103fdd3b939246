"""Failed sign-ins are bounded, for each client address and in all, before anything is asked of the database."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address, ip_network
from math import ceil
from typing import Final

from mainstay.service.common.problem import TooManyRequestsError

_WINDOW_SECONDS: Final = 60.0
_ADDRESSES: Final = 10_000
"""Addresses remembered; the one that failed longest ago is forgotten first."""


@dataclass
class _Bucket:
    """Attempts that are left; they return evenly over the window."""

    left: float
    at: float


@dataclass
class SignInThrottle:
    """Counts attempts when they begin and gives them back when they succeed: many at once do not slip through.

    Args:
        per_address: failures of one address a minute (an IPv6 /64 is one address).
        total: failures of all addresses a minute.
        monotonic: seconds.
    """

    per_address: int
    total: int
    monotonic: Callable[[], float]
    _all: _Bucket | None = field(default=None, init=False, repr=False)
    _by_address: OrderedDict[str, _Bucket] = field(default_factory=OrderedDict, init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def begin_attempt(self, address: str) -> None:
        """Count an attempt of ``address``.

        Raises:
            TooManyRequestsError: too many failed; says when to try again.
        """
        with self._lock:
            mine, everyone = self._buckets(address)
            waits = [(1.0 - bucket.left) * _WINDOW_SECONDS / limit for bucket, limit in (mine, everyone)]
            if max(waits) > 0:
                seconds = ceil(max(waits))
                raise TooManyRequestsError(
                    f"too many failed sign-ins: try again in {seconds} s", headers={"Retry-After": str(seconds)}
                )
            for bucket, _ in (mine, everyone):
                bucket.left -= 1.0

    def return_attempt(self, address: str) -> None:
        """Give the attempt back."""
        with self._lock:
            for bucket, limit in self._buckets(address):
                bucket.left = min(limit, bucket.left + 1.0)

    def _buckets(self, address: str) -> tuple[tuple[_Bucket, int], tuple[_Bucket, int]]:
        key, now = _network(address), self.monotonic()
        mine = self._by_address.setdefault(key, _Bucket(self.per_address, now))
        self._by_address.move_to_end(key)
        if len(self._by_address) > _ADDRESSES:
            self._by_address.popitem(last=False)
        self._all = self._all or _Bucket(self.total, now)
        for bucket, limit in ((mine, self.per_address), (self._all, self.total)):
            bucket.left = min(limit, bucket.left + (now - bucket.at) * limit / _WINDOW_SECONDS)
            bucket.at = now
        return (mine, self.per_address), (self._all, self.total)


def _network(address: str) -> str:
    try:
        parsed = ip_address(address)
    except ValueError:  # a Unix socket, or a proxy that gave a name
        return address[:64]
    return str(ip_network((parsed, 64), strict=False)) if isinstance(parsed, IPv6Address) else address
