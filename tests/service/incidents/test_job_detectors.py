"""The detectors of a job at work: each on its own feed, one set a run, and one that fails keeps none from judging."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from mainstay.detectors.base import ArrayDetector, DetectorState, DetectorStatus, Feed, Samples
from mainstay.detectors.entity_state import EntityState
from mainstay.detectors.finding import Evidence, Finding, FindingKind
from mainstay.detectors.hang.detector import HangDetector, JobActivity
from mainstay.detectors.host.heartbeat import HeartbeatDetector
from mainstay.service.incidents.detector_runner import DetectorRunner, Fleet
from mainstay.service.incidents.detector_status import DetectorStatusCache
from mainstay.service.incidents.job_detectors import JobStores
from mainstay.service.incidents.runs import RunningJob
from mainstay.service.telemetry.pairs import PairStore
from mainstay.service.telemetry.progress import ProgressStore
from mainstay.service.telemetry.ring import TelemetryRing
from mainstay.service.telemetry.steps import StepStore
from tests.service.incidents.test_job_feed import T, make_run
from tests.service.run_frames import checked, pair_frame, progress_frame, step_frame


class Above(ArrayDetector):
    """Says ``kind`` of every row whose signal is above one."""

    kind: ClassVar[FindingKind]

    def __init__(self) -> None:
        self.config = None
        self.chunks: list[Samples] = []
        self.reset()

    def _rows(self) -> EntityState:
        return EntityState().field("held", fill=False, dtype=np.bool_)

    def _held(self, row: int) -> list[FindingKind]:
        return [self.kind] if self.rows["held"][row] else []

    def status(self) -> DetectorStatus:
        return DetectorStatus(
            state=DetectorState.LEARNING, reason="scripted", numbers={"seen": float(len(self.rows.entities))}
        )

    def _tick(self, samples: Samples, k: int) -> list[Finding]:
        self.chunks.append(samples)
        above = np.nan_to_num(samples.signal(k, self.signals[0])) > 1.0
        found = []
        for row in np.flatnonzero(above != self.rows["held"]):
            evidence, active = Evidence(summary=f"{self.name} reports a fault."), bool(above[row])
            found.append(self._finding(self.kind, samples.entities[row], float(samples.t[k]), evidence, active=active))
        self.rows["held"] = above
        return found


class SlowSteps(Above):
    name, kind, feed = "slow_steps", FindingKind.STRAGGLER, Feed.STEPS
    kinds, signals = frozenset({FindingKind.STRAGGLER}), ("step_time_seconds",)


class Waiting(Above):
    name, kind, feed = "waiting", FindingKind.DATA_STALL, Feed.PROGRESS
    kinds, signals = frozenset({FindingKind.DATA_STALL}), ("in_collective_seconds",)


class SlowWays(Above):
    name, kind, feed = "slow_ways", FindingKind.CONGESTION, Feed.PAIRS
    kinds, signals = frozenset({FindingKind.CONGESTION}), ("transfer_seconds",)


class Breaks(SlowSteps):
    name = "breaks"

    def _tick(self, samples: Samples, k: int) -> list[Finding]:
        found = super()._tick(samples, k)
        if float(np.nanmax(samples.x[k])) > 50.0:
            raise ZeroDivisionError("a fault in its arithmetic")
        return found


class Desk:
    """A watch over one job, driven by hand."""

    def __init__(self, *classes: type[ArrayDetector]) -> None:
        self.stores = JobStores(steps=StepStore(256), progress=ProgressStore(600), pairs=PairStore(64))
        self.accounts = DetectorStatusCache()
        table: dict[str, Any] = {"heartbeat": HeartbeatDetector} | {cls.name: cls for cls in classes}
        self.watch = DetectorRunner(TelemetryRing(60), self.stores, self.accounts, table)
        self.runs: list[RunningJob] = [make_run()]

    def step(self, number: int, times: list[float]) -> None:
        values = {"step_time_seconds": [[time] for time in times]}
        self.stores.steps.write(checked(step_frame(number, values, end=float(T + number))))

    def second(self, t: float, waits: list[float]) -> None:
        values = {"in_collective_seconds": [[wait] for wait in waits], "progress_step": int(t - T)}
        self.stores.progress.write(checked(progress_frame(t, values)))

    def judge(self, now: float = T) -> list[tuple[str, str, bool]]:
        found = self.watch.evaluate(Fleet(runs=self.runs), now)
        return [(f.detector, f.entity.key, f.active) for f in found]


def test_each_feed_reaches_its_detectors() -> None:
    desk = Desk(SlowSteps, Waiting, SlowWays)
    desk.step(1, [0.5, 0.5, 2.0, 0.5])
    desk.second(T, [0.0, 3.0, 0.0, 0.0])
    for step in (1, 2):
        frame = pair_frame(step, [[0.1], [1.5]], pairs=("0>1", "2>3"), end=float(T + step))
        desk.stores.pairs.write(checked(frame))
    assert set(desk.judge()) == {
        ("slow_steps", "job=demo-1/rank=2/node=n1", True),
        ("waiting", "job=demo-1/rank=1/node=n0", True),
        ("slow_ways", "job=demo-1/rank=2/peer=3", True),
    }
    assert desk.judge() == [], "nothing is shown twice"
    desk.step(2, [0.5] * 4)
    assert desk.judge() == [("slow_steps", "job=demo-1/rank=2/node=n1", False)]
    told = [(name, account.state) for name, account in desk.accounts.job_account("demo-1").detectors]
    assert told == [(name, DetectorState.LEARNING) for name in ("slow_steps", "waiting", "slow_ways")]
    assert desk.watch.evaluated_at("demo-1", Feed.STEPS) == T
    assert desk.watch.evaluated_at("demo-2", Feed.STEPS) is None


def test_steps_show_that_a_node_lives_and_progress_does_not() -> None:
    desk = Desk(SlowSteps, Waiting)
    desk.second(T, [0.0] * 4)
    desk.judge()
    assert desk.watch.others == {}
    desk.step(1, [0.5] * 4)
    desk.judge()
    assert set(desk.watch.others) == {"n0", "n1"}


def test_a_job_that_ends_withdraws_what_was_said() -> None:
    desk = Desk(SlowSteps, Waiting)
    desk.step(1, [0.5, 0.5, 2.0, 0.5])
    desk.judge()
    desk.runs = []
    assert desk.judge() == [("slow_steps", "job=demo-1/rank=2/node=n1", False)]
    assert desk.accounts.job_account("demo-1").detectors == []
    assert desk.judge() == []


def test_a_job_that_begins_anew_under_its_name_is_another_run() -> None:
    desk = Desk(SlowSteps)
    desk.step(1, [0.5, 0.5, 2.0, 0.5])
    desk.judge()
    desk.runs = [make_run(started_at=5.0)]
    found = desk.judge()
    assert found[0] == ("slow_steps", "job=demo-1/rank=2/node=n1", False)


def test_a_rank_that_moves_to_another_node_is_another_entity() -> None:
    desk = Desk(SlowSteps)
    desk.step(1, [0.5, 0.5, 2.0, 0.5])
    desk.judge()
    desk.runs = [make_run(node="m{}")]
    desk.step(2, [0.5] * 4)
    assert desk.judge() == [("slow_steps", "job=demo-1/rank=2/node=n1", False)]


def test_a_detector_that_fails_is_set_aside_and_says_so() -> None:
    desk = Desk(Breaks, SlowSteps)
    desk.step(1, [0.5, 0.5, 2.0, 0.5])
    assert len(desk.judge()) == 2
    desk.step(2, [99.0, 0.5, 0.5, 0.5])
    assert ("slow_steps", "job=demo-1/rank=0/node=n0", True) in desk.judge()
    account = desk.accounts.job_account("demo-1").find_status("breaks")
    assert account is not None
    assert account.state is DetectorState.ABSTAINING
    assert "ZeroDivisionError" in account.reason
    desk.step(3, [0.5] * 4)
    assert desk.judge() == [("slow_steps", "job=demo-1/rank=0/node=n0", False)]
    desk.runs = []
    assert desk.judge() == [("breaks", "job=demo-1/rank=2/node=n1", False)], "what it had said ends with the job"


def test_the_activity_of_a_job_is_told() -> None:
    desk = Desk(HangDetector)
    assert desk.accounts.job_account("demo-1").activity is None
    for second in range(5):
        desk.second(T + second, [0.0] * 4)
        desk.judge(T + second + 0.5)
    assert desk.accounts.job_account("demo-1").activity is JobActivity.MOVING
    account = desk.accounts.job_account("demo-1").find_status("hang")
    assert account is not None
    assert account.numbers["limit_seconds"] > 0
