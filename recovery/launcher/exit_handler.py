"""What the coordinator makes of ranks' processes that begin, are being killed, and end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mainstay.probes.core_types import EventKind
from mainstay.recovery.launcher.membership import GenerationFailure, NodeMember, RankMember
from mainstay.recovery.launcher.messages import Dying, Exited
from mainstay.recovery.launcher.report import exit_data
from mainstay.recovery.launcher.worker_messages import ScriptFailed

if TYPE_CHECKING:
    from mainstay.recovery.launcher.coordinator import Coordinator


class ExitHandler:
    """One a coordinator."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._c = coordinator
        self._dying: dict[tuple[str, int], int] = {}
        """(node, pid) of processes with a recovery under way whose end is not reported yet -> generation that
        they died in."""

    def dying(self, node: NodeMember, message: Dying) -> None:
        """Another program is killing a process: recovery begins now, and its end is reported when it is reaped.

        Not where the job would end by it (whoever reads of that wants to know all), nor for ranks that no rank waits
        for: they get a new process only when the old one is gone.
        """
        c, rank = self._c, self._c.members.held_by(message.rank, message.pid)
        if rank is None or c.over or rank.away or c.recoveries >= c.options.max_restarts:
            return
        self._leaves(rank)
        self._dying[node.name, message.pid] = c.generation
        c.failed(GenerationFailure.of_signal(rank, message.pid, message.signal, message.time))
        if self._c.over:  # after all, and the rest has no receiver
            words = Exited(
                rank=rank.number, pid=message.pid, exit_code=None, signal=message.signal, expected=False,
                time=message.time,
            )  # fmt: skip
            self._report(node, rank.error, words)

    def exited(self, node: NodeMember, message: Exited) -> None:
        """A process that held a rank is reaped."""
        c, rank = self._c, self._c.members.held_by(message.rank, message.pid)
        died_in = self._dying.pop((node.name, message.pid), None)
        if died_in is not None:
            self._report(node, None, message, died_in)
            return
        if rank is None or c.over:
            return
        self._leaves(rank)
        if message.exit_code == 0 and not message.expected:
            self._finished(rank)
            return
        rank.lost, rank.live = True, False
        self._report(node, rank.error, message)
        if not message.expected:  # else we ended it: whoever asked for that continues
            c.failed(GenerationFailure.of_exit(rank, message))

    def _leaves(self, rank: RankMember) -> None:
        rank.pid = None
        self._c.hangs.ended(rank.number)

    def _report(
        self, node: NodeMember, error: ScriptFailed | None, message: Exited, generation: int | None = None
    ) -> None:
        c = self._c
        c.reporter.event(
            EventKind.PROCESS_EXIT,
            time_=message.time,
            node=node.name,
            rank=message.rank,
            generation=c.generation if generation is None else generation,
            data=exit_data(error, message),
        )

    def _finished(self, rank: RankMember) -> None:
        c = self._c
        rank.finished = True
        if all(r.finished for r in c.members.present):
            c.finish()
        c.report()
