"""What the ranks of this node said last of each kind: a coordinator that takes over begins with it."""

from __future__ import annotations

from typing import Final

from mainstay.recovery.protocol.messages import Exited, RankReport, RankReports
from mainstay.recovery.protocol.worker_messages import (
    Attached,
    FromWorker,
    Joined,
    RankDone,
    Resumed,
    ScriptFailed,
    StepRecord,
    StepsTotal,
)

_KEPT: Final = (Joined, Attached, Resumed, StepRecord, StepsTotal, RankDone, ScriptFailed)


class RankReportCache:
    """One a launcher. Only the present process of a rank is in it."""

    def __init__(self) -> None:
        self._pids: dict[int, int | None] = {}
        self._words: dict[int, dict[type, FromWorker]] = {}
        self._exits: dict[int, Exited] = {}

    def coming(self, rank: int) -> None:
        """A process for ``rank`` was ordered."""
        self._pids[rank] = None
        self._words[rank] = {}
        self._exits.pop(rank, None)

    def up(self, rank: int, pid: int) -> None:
        """``rank`` has a process."""
        self.coming(rank)
        self._pids[rank] = pid

    def latest(self, rank: int, message: FromWorker) -> None:
        if isinstance(message, _KEPT) and rank in self._words:
            self._words[rank][type(message)] = message

    def ended(self, message: Exited) -> None:
        """The process is reaped. A requested end is forgotten."""
        if self._pids.get(message.rank) != message.pid:
            return
        if message.expected:
            del self._pids[message.rank], self._words[message.rank]
        else:
            self._exits[message.rank] = message

    def joined(self, rank: int) -> bool:
        """Whether its script uses the SDK, as far as it has come."""
        return Joined in self._words.get(rank, {})

    def reports(self) -> RankReports:
        """All of it."""
        return RankReports(
            ranks=tuple(
                RankReport(rank=rank, pid=pid, words=tuple(self._words[rank].values()), exited=self._exits.get(rank))
                for rank, pid in self._pids.items()
            )
        )
