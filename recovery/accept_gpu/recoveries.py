"""Recoveries of real jobs: a rank is killed, or hangs, and the final weights are those of an undisturbed run.

The other ranks must abort their collectives and form process groups again without ending: with NCCL on GPUs, with gloo
on processors.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, Final

from mainstay.recovery.accept_gpu.contract import AcceptanceCheck, CheckFigure, CheckResult, CheckSettings
from mainstay.recovery.accept_gpu.training_job import TrainingJob, ranks_of

_STEPS_AFTER: Final = 30
"""Steps that follow those before the fault: at the pace of a job that waits for its fault they last six seconds, and
the recovery is seen in its midst."""


class RecoveryCheck(AcceptanceCheck):
    """What both have in common. The fault hits the last rank."""

    deadline_seconds: ClassVar[float] = 360.0
    fault: ClassVar[str]
    """What happens to the rank, after its name."""
    fault_step: ClassVar[int]
    """Committed steps before it happens."""

    def run(self, settings: CheckSettings) -> CheckResult:
        steps = self.fault_step + _STEPS_AFTER
        with TrainingJob(settings, "undisturbed", steps=steps, paced=False) as undisturbed:
            expected = undisturbed.finish()
        victim = ranks_of(settings) - 1
        with TrainingJob(settings, "job", steps=steps) as job:
            job.wait_for(f"step {self.fault_step}", lambda: job.step() >= self.fault_step)
            before = job.pids()
            faulty_at = self.disturb(job, victim)
            recovered = job.wait_for("the recovery", lambda: job.events("recovery_completed"))[0]
            after = job.wait_for("the new process", lambda: _all_known(job.pids()))
            weights = job.finish()
        problems = [f"the final weights of {name} differ" for name in expected if weights.get(name) != expected[name]]
        problems += ["the undisturbed run saved no weights"] if len(expected) != job.ranks else []
        replaced = [rank for rank in before if rank != victim and before[rank] != after[rank]]
        problems += [f"rank {rank} could not abort its collectives and was replaced" for rank in replaced]
        backend = "NCCL" if settings.on_gpu else "gloo"
        seconds = recovered["time"] - faulty_at
        return self.result(
            problems,
            f"Training continued {seconds:.1f} s after rank {victim} of {job.ranks} {self.fault}; the others formed "
            f"{backend} groups again without ending, and all final weights equal those of an undisturbed run.",
            (
                CheckFigure("fault to training again", seconds, "s"),
                *(CheckFigure(f"phase {name}", value, "s") for name, value in recovered["data"]["seconds"].items()),
                CheckFigure("steps lost", recovered["data"]["steps_lost"] or 0, ""),
                CheckFigure("ranks", job.ranks, ""),
            ),
        )

    @abstractmethod
    def disturb(self, job: TrainingJob, rank: int) -> float:
        """Do it to ``rank``; returns the Unix time of the fault."""


class KillRecoveryCheck(RecoveryCheck):
    """SIGKILL of a rank."""

    name: ClassVar[str] = "kill"
    proves: ClassVar[str] = "a job survives the SIGKILL of a rank without a changed bit"
    fault: ClassVar[str] = "was killed"
    fault_step: ClassVar[int] = 20

    def disturb(self, job: TrainingJob, rank: int) -> float:
        return job.kill(rank)


class HangRecoveryCheck(RecoveryCheck):
    """A rank that sleeps before it exchanges gradients."""

    name: ClassVar[str] = "hang"
    proves: ClassVar[str] = "a job survives the hang of a rank without a changed bit"
    fault: ClassVar[str] = "hung"
    fault_step: ClassVar[int] = 75
    """15 s or more: by then the coordinator has learned how long this job may be quiet."""

    def disturb(self, job: TrainingJob, rank: int) -> float:
        del rank  # the job's script knows it
        job.hang.touch()
        at = job.hang.stat().st_mtime
        # A hang is found before it is acted on; the rank that takes over must not hang again.
        job.wait_for("a report of the hang", lambda: job.events("stack_dump"))
        job.hang.unlink()
        return at


def _all_known(pids: dict[int, int | None]) -> dict[int, int | None]:
    return pids if None not in pids.values() else {}
