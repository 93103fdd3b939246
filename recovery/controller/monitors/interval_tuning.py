"""How often parity, disk, and uploads save, where that was left to us: all together, and looked at again as it changes.

Costs are this job's own. How long a write took is in the run's directory; how long uploads took each node, and the
rates of network and encoding, come from agents; what saves cost training shows in its steps: those beside a save
against the others (CheckFreq, FAST 2021). Until then, they are assumed. See ``mainstay.recovery.save_intervals``.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

from mainstay.recovery.checkpoint.catalog import RunDirectory
from mainstay.recovery.checkpoint.manifest import CheckpointError
from mainstay.recovery.controller.checkpointing import CheckpointManager
from mainstay.recovery.controller.daemon_thread import in_daemon_thread
from mainstay.recovery.controller.job import Job, log
from mainstay.recovery.controller.monitors.durability_monitor import DurabilityMonitor
from mainstay.recovery.controller.planning.planner_input_builder import PlannerInputBuilder
from mainstay.recovery.controller.state.events import SettingsChanged
from mainstay.recovery.save_intervals import LEAST_STEPS, ProtectionTier, SaveCosts, levels, slowdown

LOOK_SECONDS: Final = 15.0
"""Between looks at what saving has cost. Steps on disk are minutes apart."""
CHANGE: Final = 0.25
"""An interval that is this much off costs next to nothing: near its optimum the price is flat."""
STEPS_KEPT: Final = 1024
"""Of those beside saves of a level, and of the others."""
SURE: Final = 3.0
"""Standard errors by which an upload must slow training before uploads become rarer than they can be."""


@dataclass(frozen=True, slots=True)
class SavePace:
    """What is known of this run's saves; 0: nothing yet."""

    disk_Bps: float = 0.0  # noqa: N815 - bytes per second, as the unit is written
    """At which the slowest rank of the newest whole step was written; of this node, if each has a disk of its own."""
    upload_s: float = 0.0
    """That the slowest node sent parts of its last step: a step is complete with its last part."""
    is_uploading: bool = False


class IntervalTuner:
    """One a coordinator: keeps the intervals of the job."""

    def __init__(
        self, job: Job, checkpoints: CheckpointManager, inputs: PlannerInputBuilder, durability: DurabilityMonitor
    ) -> None:
        self._job = job
        self._checkpoints = checkpoints
        self._inputs = inputs
        self._durability = durability
        self._steps: defaultdict[tuple[str, bool], deque[float]] = defaultdict(lambda: deque(maxlen=STEPS_KEPT))
        """Level, and whether it saved -> times of steps, over the median of those without a save just before."""
        self._lately: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=2 * LEAST_STEPS))
        """Level -> seconds of the last steps without a save: saves may be hours apart, and training changes."""
        self._was_uploading = False
        self._slowdown: dict[str, float] = {}

    async def run(self) -> None:
        """Keep the intervals at what prices and failures say, for as long as the job runs."""
        options = self._job.options
        while options.disk_auto or options.parity_auto:
            await asyncio.sleep(LOOK_SECONDS)
            self.retune(await self._pace() if options.disk_auto else SavePace())

    def retune(self, pace: SavePace) -> None:
        """Choose again, and tell whoever must know."""
        job, state = self._job, self._job.state
        if not self._inputs.step_seconds or state.over or job.active:
            return
        costs = self._costs(pace)
        self._measure(costs, pace)
        tiers = levels(replace(costs, slowdown=self._slowdown), job.failure_rate)
        best = {tier.name: tier for tier in tiers if tier.name not in costs.given}
        disk, parity = best.get("disk"), best.get("parity")
        upload = self._upload_every(best.get("upload"), disk)
        if not (
            (disk and _apart(disk.every, state.disk_every))
            or (parity and _apart(parity.every, state.parity_every))
            or _apart(upload, self._checkpoints.upload_every)
        ):
            return
        for tier in filter(None, (parity, disk)):
            log.info("%s: every %d steps from now on (it takes %.2f s)", tier.name, tier.every, tier.takes_s)
        if upload != self._checkpoints.upload_every:
            log.info("upload: every %d steps from now on", upload)
        job.apply(
            SettingsChanged(disk_every=disk.every if disk else None, parity_every=parity.every if parity else None)
        )
        self._checkpoints.upload_every = upload
        self._checkpoints.configure()
        if parity:
            self._durability.protect()

    def _upload_every(self, upload: ProtectionTier | None, disk: ProtectionTier | None) -> int:
        """Steps between uploads; 0: each newest step, as soon as the last upload has ended."""
        if upload is None or disk is None or not upload.cost_s:
            return 0
        every, hours = upload.every, self._job.options.checkpoint_keep_hours
        if hours:  # each period keeps a step of its own
            every = min(every, int(hours * 3600.0 / self._inputs.step_seconds) // disk.every * disk.every)
        return every if every > disk.every else 0

    def _costs(self, pace: SavePace) -> SaveCosts:
        job, step_s, costs = self._job, self._inputs.step_seconds, self._inputs.costs
        options, state = job.options, job.state
        chosen = {"parity": options.parity_auto, "disk": options.disk_auto and pace.disk_Bps}
        intervals = {"parity": state.parity_every if state.groups else 0, "disk": state.disk_every}
        return SaveCosts(
            state_bytes=max((r.attached.state_bytes for r in job.members.ranks if r.attached), default=0),
            ranks_per_node=1,  # the rate is that of a rank while its neighbors wrote too
            step_s=step_s,
            copy_Bps=costs.copy_Bps,
            # of the slower of the two, on the slowest node
            parity_Bps=min(costs.net_Bps, costs.xor_Bps) if intervals["parity"] else None,
            disk_Bps=pace.disk_Bps or costs.disk_Bps if intervals["disk"] else None,
            read_Bps=costs.disk_Bps,
            upload_s=pace.upload_s or None,
            given={name: every for name, every in intervals.items() if every and not chosen[name]},
        )

    def _measure(self, costs: SaveCosts, pace: SavePace) -> None:
        """Learn by what share steps are longer beside a save. Saves begin after each epoch that an interval divides."""
        state = self._job.state
        begins = [(state.disk_every, costs.disk_s), (state.parity_every, costs.parity_s)]
        uploading = pace.is_uploading if pace.is_uploading == self._was_uploading else None
        self._was_uploading = pace.is_uploading
        for epoch, seconds in self._inputs.take_timed_steps():
            disk, parity = (
                bool(every and took and (epoch - 1) % every * costs.step_s < took) for every, took in begins
            )
            marks = {"disk": disk} if disk else {"disk": disk, "parity": parity, "upload": uploading}
            for name, beside in marks.items():
                if beside is False:
                    self._lately[name].append(seconds)
                if beside is not None and self._lately[name]:
                    self._steps[name, beside].append(seconds / median(self._lately[name]))
        for name in ("parity", "disk", "upload"):
            found = slowdown(self._steps[name, True], self._steps[name, False])
            if found is not None:
                share, error = found
                sure = share if share > SURE * error else 0.0
                self._slowdown[name] = sure if name == "upload" else max(share, error)

    async def _pace(self) -> SavePace:
        uploads = [known.upload for known in self._durability.inventories.values() if known.upload]
        return SavePace(
            disk_Bps=await in_daemon_thread(self._read_disk_rate, "mainstay-save-pace"),
            upload_s=max((upload.seconds for upload in uploads), default=0.0),
            is_uploading=any(upload.is_uploading for upload in uploads),
        )

    def _read_disk_rate(self) -> float:
        directory = self._job.options.checkpoint_dir
        assert directory is not None
        run = RunDirectory(directory / self._job.state.run)
        try:
            names = [part for step in run.counted_steps()[-1:] for part in run.parts(step.epoch)]
            parts = [run.part(name.epoch, name.rank, name.generation) for name in names]
        except (CheckpointError, OSError):
            return 0.0
        return min((part.nbytes / part.seconds for part in parts if part.seconds > 0.0), default=0.0)


def _apart(one: int, other: int) -> bool:
    return abs(one - other) > CHANGE * other
