"""The workflows of a coordinator: what may change a job that runs, and which of them carries out which request."""

from __future__ import annotations

from mainstay.recovery.controller.failure import WorkflowName
from mainstay.recovery.controller.job_requests import JobRequests
from mainstay.recovery.controller.recovery_executor import RecoveryExecutor
from mainstay.recovery.controller.workflows.migration_controller import MigrationController
from mainstay.recovery.controller.workflows.rank_restore import RankRestorer
from mainstay.recovery.controller.workflows.reinstantiation import PipelineReinstantiation
from mainstay.recovery.controller.workflows.reshape_controller import ReshapeController
from mainstay.recovery.controller.workflows.save_request import SaveRequests
from mainstay.recovery.controller.workflows.speed_check import SpeedChecker
from mainstay.recovery.controller.workflows.step_replay import StepReplayController
from mainstay.recovery.job_request import RequestKind


class Workflows:
    """One a coordinator."""

    def __init__(self, executor: RecoveryExecutor) -> None:
        job, checkpoints, inputs = executor.job, executor.checkpoints, executor.inputs
        self.requests = requests = JobRequests(job)
        self.replays = StepReplayController(job, inputs)
        self.migrations = MigrationController(job, requests)
        self._reshaping = ReshapeController(job, checkpoints, executor.participation, requests)
        self._pipelines = PipelineReinstantiation(job, checkpoints, inputs, self._reshaping)
        saves = SaveRequests(job, checkpoints, inputs, executor.durability, requests)
        restorer = RankRestorer(job, executor.participation, requests)
        self.speeds = SpeedChecker(job, inputs, requests)
        executor.workflows |= {
            WorkflowName.REPLAY: self.replays,
            WorkflowName.MIGRATE: self.migrations,
            WorkflowName.RESHAPE: self._reshaping,
            WorkflowName.SAVE: saves,
        }
        executor.pipelines = self._pipelines
        executor.request_replay = self.replays.request_replay
        executor.on_rollback.append(self.replays.went_back)
        requests.handlers |= {
            RequestKind.MIGRATE: self.migrations,
            RequestKind.RESTORE: restorer,
            RequestKind.DEGRADE: restorer,
            RequestKind.RESHAPE: self._reshaping,
            RequestKind.SAVE: saves,
            RequestKind.CHECK: self.speeds,
        }

    def run_once(self) -> None:
        """Called every second or so: start what was requested, or grow."""
        self.requests.run_once()
        self._reshaping.grow(self._pipelines.grown)
