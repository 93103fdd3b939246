"""The coordinator's place in a launcher: held on node rank 0 at first, and wherever the launchers have chosen since."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace

from mainstay.recovery.controller.coordinator import Coordinator
from mainstay.recovery.controller.event_recording import EventRecorder
from mainstay.recovery.controller.state.job_state import TRANSITIONS
from mainstay.recovery.membership.coordinator_election import ElectionResult, Endpoint
from mainstay.recovery.options import RunOptions
from mainstay.recovery.telemetry.reporter import Reporter


class CoordinatorHost:
    """One a launcher; empty in most."""

    def __init__(self, options: RunOptions) -> None:
        self._options = options
        self._to_close = AsyncExitStack()
        """The coordinator and what it reports to."""
        self.coordinator: Coordinator | None = None
        self.new_store: Callable[[str], tuple[str, int]] = lambda host: (host, 0)
        """Gives an empty store on an address of this node; set by the launcher."""

    @property
    def held(self) -> bool:
        """Whether the job is coordinated from here."""
        return self.coordinator is not None and bool(TRANSITIONS[self.coordinator.job.state.phase])

    async def open(self, host: str, port: int) -> Endpoint:
        """Coordinate a job that begins; gives where.

        Raises:
            OSError: the port is taken, or the state directory cannot be written.
            SpoolError: another process reports from the same directory.
            CheckpointError: the run that the job continues from is not there.
        """
        return host, await self._coordinate(self._options, host).start(host, port)

    async def inherit(self, won: ElectionResult, host: str) -> Endpoint:
        """Coordinate a job whose coordinator is lost, from ``host``, an address of this node. Raises as ``open``."""
        await self.close()
        options = replace(self._options, resume=won.coordinator_state.resumed)
        return host, await self._coordinate(options, host, won.term).succeed(won, host)

    def _coordinate(self, options: RunOptions, host: str, term: int = 1) -> Coordinator:
        reporter = Reporter(options)
        self._to_close.callback(reporter.close)
        self.coordinator = Coordinator(options, reporter, term)
        self._to_close.push_async_callback(self.coordinator.close)
        if options.record_events is not None:
            recorder = EventRecorder(options.record_events, options, term, self.coordinator.job.state)
            self._to_close.callback(recorder.close)
            self.coordinator.job.record = recorder.record
        self.coordinator.job.new_store = lambda: self.new_store(host)
        return self.coordinator

    def resign(self, reason: str) -> None:
        """Another launcher coordinates, or may: end and report it on this node only."""
        if self.coordinator is not None:
            self.coordinator.resign(reason)

    def abort(self, reason: str) -> None:
        """This node cannot continue: the job does where enough others are left to choose another coordinator."""
        if self.coordinator is None:
            return
        if self._options.max_nodes - 1 < self._options.quorum:
            self.coordinator.fail(reason)
        else:
            self.coordinator.resign(reason)

    def stopped(self, exit_code: int) -> bool:
        """This launcher was asked to end. Whether it may at once: a first signal waits for the last save."""
        if self.coordinator is None:
            return True
        again = self.coordinator.job.state.saving
        self.coordinator.stopped(exit_code)
        return again or not self.coordinator.job.state.saving

    async def close(self) -> None:
        await self._to_close.aclose()
