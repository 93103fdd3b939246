"""How often parity and disk save, where that was left to us: prices as measured, failures as seen, looked at again.

The disk is priced by the parts of this run's newest whole step, parity by what agents measured of network and encoding
(an assumption until the first recovery has asked them). Intervals: ``mainstay.recovery.save_intervals``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from typing import Final

from mainstay.recovery.checkpoint.catalog import find
from mainstay.recovery.checkpoint.manifest import CheckpointError
from mainstay.recovery.controller.checkpointing import CheckpointManager
from mainstay.recovery.controller.job import Job
from mainstay.recovery.controller.monitors.durability_monitor import DurabilityMonitor
from mainstay.recovery.controller.planning.planner_input_builder import PlannerInputBuilder
from mainstay.recovery.controller.state.events import SettingsChanged
from mainstay.recovery.save_intervals import ProtectionTier, SaveCosts, levels

log = logging.getLogger("mainstay.coordinator")

LOOK_SECONDS: Final = 15.0
"""Between looks at what saving has cost. Steps on disk are minutes apart."""
CHANGE: Final = 0.25
"""An interval that is this much off costs next to nothing: near its optimum the price is flat."""


class IntervalTuner:
    """One a coordinator: keeps the intervals of the job."""

    def __init__(
        self, job: Job, checkpoints: CheckpointManager, inputs: PlannerInputBuilder, durability: DurabilityMonitor
    ) -> None:
        self._job = job
        self._checkpoints = checkpoints
        self._inputs = inputs
        self._durability = durability

    async def run(self) -> None:
        """Keep the intervals at what prices and failures say, for as long as the job runs."""
        options = self._job.options
        while options.disk_auto or options.parity_auto:
            await asyncio.sleep(LOOK_SECONDS)
            self.retune(await self._disk_rate() if options.disk_auto else 0.0)

    def retune(self, disk_rate: float) -> None:
        """Choose again, and tell whoever must know.

        Args:
            disk_rate: bytes a second at which the slowest rank was written; 0: not known yet.
        """
        job = self._job
        if not self._inputs.step_seconds or job.state.over or job.active:
            return
        best = {level.name: level for level in self._levels(disk_rate)}
        if job.options.disk_auto and disk_rate and _apart(best["disk"].every, self._job.state.disk_every):
            self._say("the disk level saves", self._job.state.disk_every, best["disk"])
            job.apply(SettingsChanged(disk_every=best["disk"].every))
            self._checkpoints.configure()
        if (
            job.options.parity_auto
            and self._job.state.parity_every
            and _apart(best["parity"].every, self._job.state.parity_every)
        ):
            self._say("parity is made", self._job.state.parity_every, best["parity"])
            job.apply(SettingsChanged(parity_every=best["parity"].every))
            self._durability.protect()

    def _say(self, what: str, before: int, level: ProtectionTier) -> None:
        log.info(
            "%s every %d steps from now on (before: %d; it takes %.2f s)", what, level.every, before, level.takes_s
        )

    def _levels(self, disk_rate: float) -> tuple[ProtectionTier, ...]:
        job, step_s, costs = self._job, self._inputs.step_seconds, self._inputs.costs
        prices = SaveCosts(
            state_bytes=max((r.attached.state_bytes for r in job.members.ranks if r.attached), default=0),
            ranks_per_node=1,  # the rate is that of a rank while its neighbors wrote too
            step_s=step_s,
            parity_Bps=min(costs.net_Bps, costs.xor_Bps),  # of the slower of the two, on the slowest node
            disk_Bps=disk_rate or costs.disk_Bps,
        )
        return levels(prices, self._job.failure_rate)

    async def _disk_rate(self) -> float:
        """In a thread that the end of the job does not wait for: a directory may hang."""
        loop, found = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()

        def set_rate(rate: float) -> None:
            if not found.done():
                found.set_result(rate)

        def work() -> None:
            with contextlib.suppress(RuntimeError):  # the job has ended meanwhile, and its loop with it
                loop.call_soon_threadsafe(set_rate, self._measured_rate())

        threading.Thread(target=work, name="mainstay-disk-rate", daemon=True).start()
        rate: float = await found
        return rate

    def _measured_rate(self) -> float:
        directory = self._job.options.checkpoint_dir
        assert directory is not None
        try:
            source = find(directory, self._job.state.run)
            parts = [source.run.part(source.manifest.epoch, p.rank, p.generation) for p in source.manifest.parts]
        except CheckpointError:
            return 0.0
        return min((part.nbytes / part.seconds for part in parts if part.seconds > 0.0), default=0.0)


def _apart(one: int, other: int) -> bool:
    return abs(one - other) > CHANGE * other
