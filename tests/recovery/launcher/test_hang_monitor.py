"""The coordinator's own watch: what it feeds to a detector, whom it asks for stacks, and when it acts."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from mainstay.detectors.base import ArrayDetector, Feed, Samples
from mainstay.detectors.entity_state import EntityState
from mainstay.detectors.finding import Entity, Evidence, Finding, FindingKind
from mainstay.probes.core_types import Severity, StepPhase
from mainstay.recovery.controller.monitors import hang_monitor
from mainstay.recovery.node.stacks import DEBUGGED
from mainstay.recovery.options import OnHang, RunOptions
from mainstay.recovery.protocol.messages import FenceNode, NodeProgress, Stacks
from mainstay.recovery.protocol.worker_messages import ProgressReport
from mainstay.recovery.telemetry import progress


class Scripted(ArrayDetector):
    """Says what a test tells it to, at the next sample."""

    name = "scripted"
    kinds = frozenset(hang_monitor.HANGS)
    signals = ("progress_step",)
    feed = Feed.PROGRESS

    @dataclass(frozen=True)
    class Config:
        pass

    def __init__(self) -> None:
        self.config = self.Config()
        self.seen: list[Samples] = []
        self.next: list[Finding] = []
        self.resets = 0
        self.reset()

    def _rows(self) -> EntityState:
        return EntityState()

    def reset(self) -> None:
        super().reset()
        self.resets += 1

    def _tick(self, samples: Samples, k: int) -> list[Finding]:
        raise NotImplementedError

    def _held(self, row: int) -> list[FindingKind]:
        return []

    def update(self, samples: Samples) -> list[Finding]:
        self.seen.append(samples)
        said, self.next = self.next, []
        return said


def finding(rank: int | None, *, active: bool = True, confidence: float = 0.99, peer: int | None = None) -> Finding:
    return Finding(
        kind=FindingKind.NONCOMM_HANG,
        entity=Entity(job="job", rank=rank, peer=peer),
        time=time.time(),
        severity=Severity.CRITICAL,
        detector="scripted",
        confidence=confidence,
        evidence=Evidence(summary=f"Rank {rank} has not begun a collective that the others wait in."),
        active=active,
    )


def word(generation: int = 1, phase: StepPhase = StepPhase.TRAIN) -> ProgressReport:
    return ProgressReport(
        generation=generation, time_ns=1, step=5, phase=phase, in_call=1.0, enqueued={"dp": 3}, completed={"dp": 2}
    )  # fmt: skip


def speak(world: Any, *ranks: int, **how: Any) -> None:
    for node in world.nodes:
        node.speak(*((rank, word(**how)) for rank in ranks if rank in node.pids))


async def sampled(world: Any, detector: Scripted, **how: Any) -> Samples:
    """All ranks speak; the sample that the detector got then."""
    count = len(detector.seen)
    speak(world, 0, 1, 2, 3, **how)
    await world.until(lambda: len(detector.seen) > count)
    return detector.seen[-1]


async def found(world: Any, detector: Scripted, *findings: Finding, **how: Any) -> None:
    """All ranks speak, and the detector says this."""
    detector.next = list(findings)
    await sampled(world, detector, **how)


@pytest.fixture
def hung(
    running: Callable[..., Any], play: Callable[..., None], options: RunOptions, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., None]:
    """Play a scenario in a job of two nodes of two ranks with a scripted detector, ten times as fast."""
    monkeypatch.setattr(progress, "grid_seconds", lambda _: 0.05)
    monkeypatch.setattr(hang_monitor, "CONFIRM_SECONDS", 0.2)

    def run(scenario: Callable[[Any, Scripted], Any], on_hang: OnHang = OnHang.REPORT) -> None:
        async def work() -> None:
            async with running(dataclasses.replace(options, on_hang=on_hang)) as world:
                detector = world.coordinator.hangs.detector = Scripted()
                await scenario(world, detector)

        play(work())

    return run


def test_the_detector_gets_ranks_with_their_places(hung: Callable[..., None]) -> None:
    async def scenario(world: Any, detector: Scripted) -> None:
        samples = await sampled(world, detector)
        assert [(e.rank, e.node, e.job) for e in samples.entities] == [
            (0, "node-0", "job"), (1, "node-0", "job"), (2, "node-1", "job"), (3, "node-1", "job"),
        ]  # fmt: skip
        assert samples.groups == ("stage-0", "stage-1", "stage-0", "stage-1")
        assert samples.mesh is not None
        assert [axis for axis in samples.mesh.axes if samples.mesh.length(axis) > 1] == ["dp", "pp"]
        assert samples.x.dtype == np.float64
        assert samples.x[0, samples.signals.index("progress_step")].tolist() == [5.0] * 4
        assert samples.x[0, samples.signals.index("dp_completed")].tolist() == [2.0] * 4
        again = await sampled(world, detector)
        assert again.entities is samples.entities
        assert again.t[0] > samples.t[0]

    hung(scenario)


def test_suspects_and_a_healthy_rank_are_asked_for_stacks(hung: Callable[..., None]) -> None:
    async def scenario(world: Any, detector: Scripted) -> None:
        await found(world, detector, finding(2))
        await world.until_event("stack_dump", 2)
        dumps = {event["rank"]: event for event in world.events("stack_dump")}
        assert dumps.keys() == {0, 2}
        assert dumps[2]["node"] == "node-1"
        assert dumps[2]["data"]["suspect"]
        assert not dumps[0]["data"]["suspect"]
        assert dumps[2]["data"]["stacks"] == [{"thread": "main", "frames": ["wait (work.py:3)", "main (train.py:9)"]}]
        assert dumps[2]["data"]["reason"].startswith("Rank 2")
        assert dumps[2]["data"]["process"] == "stopped"
        assert world.coordinator.job.state.phase.value == "running"
        assert world.coordinator.job.state.recoveries == 0

    hung(scenario)


def test_no_more_ranks_are_asked_than_are_worth_it(hung: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hang_monitor, "SUSPECTS", 2)

    async def scenario(world: Any, detector: Scripted) -> None:
        await found(world, detector, *(finding(rank, confidence=0.5 + rank / 10) for rank in (0, 1, 2)))
        await world.until_event("stack_dump", 3)
        assert {rank for node in world.nodes for request in node.asked for rank in request.ranks} == {2, 1, 0}
        assert {e["rank"] for e in world.events("stack_dump") if e["data"]["suspect"]} == {2, 1}

    hung(scenario)


def test_a_hang_without_a_culprit_still_shows_where_ranks_are(hung: Callable[..., None]) -> None:
    async def scenario(world: Any, detector: Scripted) -> None:
        await found(world, detector, finding(None))
        await world.until_event("stack_dump", 2)
        assert not any(event["data"]["suspect"] for event in world.events("stack_dump"))
        assert world.coordinator.job.state.recoveries == 0

    hung(scenario, OnHang.RECOVER)


def test_the_culprit_is_fenced_and_the_job_recovers(hung: Callable[..., None]) -> None:
    async def scenario(world: Any, detector: Scripted) -> None:
        before = dict(world.nodes[1].pids)
        detector.next = [finding(2)]
        speak(world, 0, 1, 2, 3)
        await world.until_state("running", 2)
        assert 2 not in world.nodes[1].pids, "the standby of the other node has its rank"
        assert world.nodes[0].pids[2] != before[2]
        assert world.nodes[1].pids[3] == before[3]
        dumped = [event["time"] for event in world.events("stack_dump")]
        fence = await world.until_event("action_started")
        assert dumped
        assert max(dumped) <= fence["time"]  # what is fenced can no longer be looked at
        assert "ranks [2] hang: Rank 2 has not begun" in fence["data"]["detail"]
        await sampled(world, detector, generation=2)
        assert detector.resets == 1  # what it has learned of this job stays true

    hung(scenario, OnHang.RECOVER)


def test_stacks_that_never_come_hold_nothing_up(hung: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hang_monitor, "STACK_SECONDS", 0.05)

    async def scenario(world: Any, detector: Scripted) -> None:
        for node in world.nodes:
            node.answers = False
        detector.next = [finding(2)]
        speak(world, 0, 1, 2, 3)
        await world.until_state("running", 2)

    hung(scenario, OnHang.RECOVER)


@pytest.mark.parametrize(
    "said",
    [
        [finding(2, confidence=0.89)],
        [finding(2, peer=3)],
        [finding(0), finding(1), finding(2)],
        [finding(99)],
    ],
    ids=["unsure", "a link", "most of the job", "no such rank"],
)
def test_what_is_not_certain_is_only_reported(hung: Callable[..., None], said: list[Finding]) -> None:
    async def scenario(world: Any, detector: Scripted) -> None:
        await found(world, detector, *said)
        await world.until_event("stack_dump")
        await sampled(world, detector)
        await sampled(world, detector)
        assert world.coordinator.job.state.recoveries == 0

    hung(scenario, OnHang.RECOVER)


@pytest.mark.parametrize("phase", [StepPhase.EVALUATE, StepPhase.CHECKPOINT, StepPhase.COMPILE])
def test_phases_that_may_be_long_never_lead_to_action(hung: Callable[..., None], phase: StepPhase) -> None:
    async def scenario(world: Any, detector: Scripted) -> None:
        await found(world, detector, finding(2), phase=phase)
        await world.until_event("stack_dump")
        await sampled(world, detector, phase=phase)
        assert world.coordinator.job.state.recoveries == 0

    hung(scenario, OnHang.RECOVER)


def test_a_rank_under_a_debugger_is_left_alone(hung: Callable[..., None]) -> None:
    async def scenario(world: Any, detector: Scripted) -> None:
        for node in world.nodes:
            node.process_state = DEBUGGED
        await found(world, detector, finding(2))
        await world.until_event("stack_dump", 2)
        for _ in range(10):
            await sampled(world, detector)
        assert world.coordinator.job.state.recoveries == 0
        assert world.coordinator.job.state.phase.value == "running"

    hung(scenario, OnHang.RECOVER)


def test_blame_that_is_taken_back_is_not_acted_on(hung: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hang_monitor, "CONFIRM_SECONDS", 0.3)

    async def scenario(world: Any, detector: Scripted) -> None:
        await found(world, detector, finding(2))
        await found(world, detector, finding(2, active=False))
        for _ in range(10):
            await sampled(world, detector)
        assert world.coordinator.job.state.recoveries == 0

    hung(scenario, OnHang.RECOVER)


def test_nothing_is_judged_while_the_job_recovers_or_ends(hung: Callable[..., None]) -> None:
    async def scenario(world: Any, detector: Scripted) -> None:
        await sampled(world, detector)
        for node in world.nodes:
            node.silent = {0, 1, 3}
        world.nodes[1].kill(2)
        await world.until_state("recovering", 2)
        count = len(detector.seen)
        shown: list[Any] = []
        world.coordinator.job.reporter.progress = shown.append
        speak(world, 0, 1, 3)
        await world.until(lambda: shown)
        assert len(detector.seen) == count
        assert shown[0].narrow[0, 0] == StepPhase.WARM_UP

    hung(scenario)


def test_a_launcher_that_sends_no_rows_is_turned_away(hung: Callable[..., None]) -> None:
    async def scenario(world: Any, _: Scripted) -> None:
        world.nodes[1].stream.send(NodeProgress(rows=b"nonsense"))
        await world.until_event("node_lost")

    hung(scenario)


def test_answers_that_nobody_asked_for(hung: Callable[..., None]) -> None:
    async def scenario(world: Any, detector: Scripted) -> None:
        world.nodes[0].stream.send(Stacks(request=1, rank=0, pid=1, tool=""))
        world.nodes[0].stream.send(Stacks(request=1, rank=10**6, pid=1, tool=""))
        await sampled(world, detector)
        assert world.events("stack_dump") == []

    hung(scenario)


def test_no_detector_and_no_service_cost_nothing(hung: Callable[..., None]) -> None:
    async def scenario(world: Any, _: Scripted) -> None:
        world.coordinator.hangs.detector = None
        shown: list[Any] = []
        world.coordinator.job.reporter.progress = shown.append
        speak(world, 0, 1)
        await world.until(lambda: shown)
        assert shown[0].has_reported.tolist() == [True, True, False, False]
        assert FenceNode not in map(type, world.nodes[0].orders)

    hung(scenario)
