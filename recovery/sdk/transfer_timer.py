"""How long a transfer from one rank to another took, once both were ready.

A receiver alone cannot say it: it waits for a slow sender as it waits for a slow wire. So a sender tells a receiver on
the same host when it was ready, in a datagram of 32 bytes beside the data; the clock is ``CLOCK_MONOTONIC``, which all
processes of a host share. The transfer lasts from the moment when both were ready (gloo's data flows only then) until
the receiver's wait ended.

Across hosts there is no common clock, and no datagram arrives: the receiver's own time from ready to received is taken,
which includes the sender's lateness. The shortest of a step comes nearest, so that is reported for such a pair; of a
pair on one host it is the median. A ring's all-reduce names no pairs, and says nothing here.
"""

from __future__ import annotations

import contextlib
import hashlib
import socket
import struct
from dataclasses import dataclass, field
from typing import Final

_STAMP: Final = struct.Struct("<qqqd")
"""Sender, tag, number of the transfer with this tag, when it was ready."""
_MOST_STAMPS: Final = 4096
"""Kept for transfers that are not received yet; more means that a peer sends what no rank receives."""
_MOST_UNREAD: Final = 8
"""The kernel keeps ten datagrams for a socket that is not read."""


@dataclass(slots=True)
class _Pair:
    exact: list[float] = field(default_factory=list)
    bounds: list[float] = field(default_factory=list)
    nbytes: int = 0


class TransferTimer:
    """One rank's transfers of one generation. ``sent`` and ``received`` belong to the training thread."""

    def __init__(self, job: str, generation: int, rank: int) -> None:
        self._name = f"{job}/{generation}"
        self._rank = rank
        self._sent: dict[tuple[int, int], int] = {}
        self._received: dict[tuple[int, int], int] = {}
        self._stamps: dict[tuple[int, int, int], float] = {}
        self._addresses: dict[int, bytes] = {}
        self._pairs: dict[int, _Pair] = {}
        self._unread = 0
        """Transfers whose stamps were not looked for."""
        self._near: set[int] = set()
        """Ranks that have sent a stamp: without one nothing is reported about them."""
        self._socket: socket.socket | None = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._socket.bind(self._address(rank))
            self._socket.setblocking(False)
        except OSError:  # the name is taken: by a rank of the same generation that is not gone yet. Then no stamps.
            self.close()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def sent(self, peer: int, tag: int, ready: float) -> None:
        """This rank is ready to send to ``peer``."""
        number = self._sent[peer, tag] = self._sent.get((peer, tag), 0) + 1
        if self._socket is not None:
            with contextlib.suppress(OSError):  # it is on another host, or too busy to take stamps
                self._socket.sendto(_STAMP.pack(self._rank, tag, number, ready), self._address(peer))

    def received(self, peer: int, tag: int, ready: float, ended: float, nbytes: int, *, exact: bool) -> None:
        """A transfer from ``peer`` has ended; ``exact``: at ``ended``, not at some time before."""
        number = self._received[peer, tag] = self._received.get((peer, tag), 0) + 1
        pair = self._pairs.setdefault(peer, _Pair())
        pair.nbytes += nbytes
        if not exact:
            self._unread += 1
            return
        told = self._stamp((peer, tag, number))
        if told is None:
            if peer not in self._near:
                pair.bounds.append(ended - ready)
        elif told <= ended:
            pair.exact.append(ended - max(ready, told))

    def cut(self) -> tuple[dict[int, float], dict[int, float]]:
        """Seconds and bytes by sending rank since the last call."""
        if self._unread >= _MOST_UNREAD:  # else the socket is full of stamps that no rank reads
            self._stamp((-1, -1, -1))
            self._unread = 0
        pairs, self._pairs = self._pairs, {}
        seconds = {}
        for peer, pair in pairs.items():
            if pair.exact:
                seconds[peer] = _median(pair.exact)
            elif pair.bounds:
                seconds[peer] = min(pair.bounds)
        return seconds, {peer: float(pair.nbytes) for peer, pair in pairs.items()}

    def _stamp(self, wanted: tuple[int, int, int]) -> float | None:
        """When the sender was ready, as far as it has told. Stops there: each look at the socket costs."""
        told = self._stamps.pop(wanted, None)
        if told is not None or self._socket is None:
            return told
        with contextlib.suppress(OSError, struct.error):
            while True:
                rank, tag, number, ready = _STAMP.unpack(self._socket.recv(_STAMP.size))
                self._near.add(rank)
                if (rank, tag, number) == wanted:
                    return float(ready)
                if len(self._stamps) >= _MOST_STAMPS:
                    self._stamps.clear()
                self._stamps[rank, tag, number] = ready
        return None

    def _address(self, rank: int) -> bytes:
        """An abstract name: no file is left behind."""
        if rank not in self._addresses:
            name = hashlib.blake2b(f"{self._name}/{rank}".encode(), digest_size=16).hexdigest()
            self._addresses[rank] = b"\0mainstay-" + name.encode()
        return self._addresses[rank]


def _median(values: list[float]) -> float:
    """As ``statistics`` has it, in a fifth of the time."""
    values, half = sorted(values), len(values) // 2
    return values[half] if len(values) % 2 else (values[half - 1] + values[half]) / 2
