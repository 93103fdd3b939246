"""What the coordinator makes of ranks' processes that begin, are being killed, and end."""

from __future__ import annotations

from mainstay.probes.core_types import EventKind
from mainstay.recovery.controller.failure import GenerationFailure
from mainstay.recovery.controller.job import Job
from mainstay.recovery.controller.monitors.hang_monitor import HangMonitor
from mainstay.recovery.controller.report import exit_data
from mainstay.recovery.controller.state.events import ProcessEnded, RankFinished, RanksLost
from mainstay.recovery.membership.members import NodeMember, RankMember
from mainstay.recovery.protocol.messages import Dying, Exited
from mainstay.recovery.protocol.worker_messages import ScriptFailed


class ExitHandler:
    """One a coordinator."""

    def __init__(self, job: Job, hangs: HangMonitor) -> None:
        self._job = job
        self._hangs = hangs
        self._dying: dict[tuple[str, int], int] = {}
        """(node, pid) of processes with a recovery under way whose end is not reported yet -> generation that
        they died in."""

    def dying(self, node: NodeMember, message: Dying) -> None:
        """Another program is killing a process: recovery begins now, and its end is reported when it is reaped.

        Not where the job would end by it (whoever reads of that wants to know all), nor for ranks that no rank waits
        for: they get a new process only when the old one is gone.
        """
        job, rank = self._job, self._job.members.held_by(message.rank, message.pid)
        if rank is None or job.state.over or rank.away or job.state.recoveries >= job.options.max_restarts:
            return
        self._leaves(rank)
        self._dying[node.name, message.pid] = job.state.generation
        job.control.failed(GenerationFailure.of_signal(rank, message.pid, message.signal, message.time))
        if self._job.state.over:  # after all, and the rest has no receiver
            words = Exited(
                rank=rank.number, pid=message.pid, exit_code=None, signal=message.signal, expected=False,
                time=message.time,
            )  # fmt: skip
            self._report(node, rank.error, words)

    def exited(self, node: NodeMember, message: Exited) -> None:
        """A process that held a rank is reaped."""
        job, rank = self._job, self._job.members.held_by(message.rank, message.pid)
        died_in = self._dying.pop((node.name, message.pid), None)
        if died_in is not None:
            self._report(node, None, message, generation=died_in)
            return
        if rank is None or job.state.over:
            return
        self._leaves(rank)
        if message.exit_code == 0 and not message.expected:
            self._finished(rank)
            return
        job.apply(RanksLost(ranks=(rank.number,)))
        self._report(node, rank.error, message)
        if not message.expected:  # else we ended it: whoever asked for that continues
            job.control.failed(GenerationFailure.of_exit(rank, message))

    def _leaves(self, rank: RankMember) -> None:
        self._job.apply(ProcessEnded(rank=rank.number))
        self._hangs.ended(rank.number)

    def _report(self, node: NodeMember, error: ScriptFailed | None, message: Exited, **generation: int) -> None:
        about = {"time_": message.time, "node": node.name, "rank": message.rank, **generation}
        self._job.event(EventKind.PROCESS_EXIT, exit_data(error, message), **about)

    def _finished(self, rank: RankMember) -> None:
        job = self._job
        job.apply(RankFinished(rank=rank.number))
        if all(r.finished for r in job.members.present):
            job.control.finish()
        job.control.report()
