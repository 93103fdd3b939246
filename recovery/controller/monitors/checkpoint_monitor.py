"""What the checkpoint directory holds of this run, looked at again and again, for the page of the job.

The directory may hang: then what was last seen counts, and its time says how old it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any, Final

import msgspec

from mainstay.recovery.checkpoint.catalog import RunDirectory
from mainstay.recovery.checkpoint.job_summary import CheckpointFacts, with_job
from mainstay.recovery.checkpoint.manifest import CheckpointError
from mainstay.recovery.checkpoint.retention import next_common
from mainstay.recovery.checkpoint.summary import NAMED, CheckpointStep, RunReader, newest
from mainstay.recovery.checkpoint.upload_state import UploadProgress
from mainstay.recovery.controller.checkpointing import CheckpointManager
from mainstay.recovery.controller.daemon_thread import in_daemon_thread
from mainstay.recovery.controller.job import Job, log
from mainstay.recovery.controller.monitors.durability_monitor import DurabilityMonitor
from mainstay.recovery.controller.planning.planner_input_builder import PlannerInputBuilder

LOOK_SECONDS: Final = 5.0
"""Between looks: at the names in a directory, and at what has changed there."""
AGAIN_SECONDS: Final = 30.0
"""A report that has not changed is sent again, so that its age shows whether the directory still answers."""
LAST_LOOK_SECONDS: Final = 2.0
"""At the end of the job, which does not wait for a directory that hangs."""
_DIGITS: Final = 2
"""Of a measured duration that a report gives: smaller changes are no news."""


class CheckpointMonitor:
    """One a coordinator."""

    def __init__(
        self, job: Job, checkpoints: CheckpointManager, inputs: PlannerInputBuilder, durability: DurabilityMonitor
    ) -> None:
        self._job = job
        self._checkpoints = checkpoints
        self._inputs = inputs
        self._durability = durability
        self._run = ""
        """Of which the steps are: a change of shape begins another."""
        self._readers: dict[str, RunReader] = {}
        self._steps: tuple[CheckpointStep, ...] = ()
        self._count = 0
        self._seen_at = self._sent_at = 0.0
        self._sent: object = None
        self._failing: dict[str, UploadProgress] = {}
        """Node whose uploads fail -> how."""

    async def run(self) -> None:
        """Look for as long as the job runs."""
        while self._job.options.checkpoint_dir is not None and not self._job.state.over:
            self._tell_agents()
            await self.refresh()
            await asyncio.sleep(LOOK_SECONDS)

    async def refresh(self, seconds: float | None = None) -> None:
        """Look now; for at most ``seconds``."""
        directory = self._job.options.checkpoint_dir
        if directory is None or not self._job.members.ranks:
            return
        run, facts = self._job.state.run, self._facts()
        reader = self._readers.setdefault(run, RunReader(RunDirectory(directory / run)))

        def read_directory() -> tuple[CheckpointStep, ...] | None:
            try:
                return with_job(reader.read(), facts)
            except (CheckpointError, OSError) as error:
                log.warning("%s cannot be read: %s", directory, error)
                return None

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                steps = await in_daemon_thread(read_directory, "mainstay-checkpoint-list")
                if steps is not None:
                    self._run, self._steps, self._count, self._seen_at = run, newest(steps), len(steps), time.time()

    def _tell_agents(self) -> None:
        """Of nodes whose uploads fail, whose copies others send, and of steps that all nodes keep."""
        without, kept, state = self._note_uploads(), self._durability.kept, self._job.state
        checkpoints, common = self._checkpoints, self._checkpoints.common
        if kept is not None and not kept.unknown:
            common = next_common(common, kept.common, kept.reached, state.committed, state.disk_every)
        if (without, common) != (checkpoints.upload_without, checkpoints.common) and not self._job.active:
            checkpoints.upload_without, checkpoints.common = without, common
            checkpoints.configure()

    def _note_uploads(self) -> tuple[int, ...]:
        """Log once what has changed; ranks of nodes whose uploads fail."""
        seen, before = self._durability.inventories, self._failing
        uploads = {node: known.upload for node, known in sorted(seen.items()) if known.upload}
        self._failing = {node: upload for node, upload in uploads.items() if not upload.can_send}
        for node in [node for node in self._failing if node not in before][:NAMED]:
            log.warning("checkpoint upload: node %s fails, training continues: %s", node, self._failing[node].problem)
        for node in [node for node in before if node in seen and node not in self._failing][:NAMED]:
            log.warning("checkpoint upload: node %s works again", node)
        return tuple(rank.number for rank in self._job.members.ranks if rank.node in self._failing)

    def _facts(self) -> CheckpointFacts:
        inventories = self._durability.inventories
        rates = [known.rates.disk_read for known in inventories.values() if known.rates.disk_read]
        return CheckpointFacts(
            begun_at=self._job.begun_at,
            held={node: known.disk for node, known in inventories.items()},
            parity={node: known.disk_parity for node, known in inventories.items()},
            replicas=self._durability.replicas(),
            world_size=len(self._job.members.ranks),
            recovers_from_disk=self._job.options.recovers_from_disk,
            step_seconds=_rounded(self._inputs.step_seconds),
            read_rate=_rounded(min(rates)) if rates else None,
        )

    def report(self) -> dict[str, Any]:
        """What the next job report has of it: nothing where that is no news."""
        now, news = time.time(), (self._steps, self._failing)
        if not self._seen_at or (news == self._sent and now - self._sent_at < AGAIN_SECONDS):
            return {}
        self._sent, self._sent_at = news, now
        options = self._job.options
        return {
            "checkpoints": {
                "run": self._run or self._job.state.run,
                "directory": str(options.checkpoint_dir),
                "upload": options.checkpoint_upload,
                "upload_problems": [
                    {"node": node, "problem": how.problem, "since": how.since}
                    for node, how in list(self._failing.items())[:NAMED]
                ],
                "time": self._seen_at,
                "steps": msgspec.to_builtins(self._steps),
                "omitted": self._count - len(self._steps),
            }
        }


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
