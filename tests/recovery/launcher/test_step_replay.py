"""Replays as the coordinator carries them out, among launchers that only pretend: found, clean, late, broken off."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from mainstay.detectors.finding import Entity, Evidence, Finding, FindingKind
from mainstay.probes.core_types import Severity
from mainstay.recovery.controller.failure import ReplayTrigger
from mainstay.recovery.controller.monitors.numeric_monitor import NumericMonitor
from mainstay.recovery.controller.workflows import step_replay
from mainstay.recovery.option_values import OptionsError
from mainstay.recovery.options import DIGESTS_APART, NumericAnomalyPolicy, RunOptions, parse
from mainstay.recovery.recovery_plan import RestoreSource

Story = Callable[[Any], Any]
ASKED = ReplayTrigger(reason="an operator asks", asked=True)


@pytest.fixture
def run_scenario(running: Any, play: Any, options: RunOptions) -> Callable[..., None]:
    """Play a scenario in a job of two replicas of two stages on two nodes, five steps in."""

    def run(scenario: Story, **changed: Any) -> None:
        async def work() -> None:
            async with running(dataclasses.replace(options, **changed)) as world:
                await scenario(world)

        play(work())

    return run


def pids(world: Any) -> dict[int, int]:
    return {rank: pid for node in world.nodes for rank, pid in node.pids.items()}


def replay_requests(world: Any) -> list[Any]:
    orders = [order.order for node in world.nodes for order in node.orders]
    return [order for order in orders if order.replay_request is not None]


async def settled(world: Any, generation: int) -> None:
    """Training again, two steps."""
    await world.until_state("running", generation)
    start = max(rank.epoch for rank in world.coordinator.job.members.ranks)
    for epoch in (start + 1, start + 2, start + 3):
        world.commit_all(epoch)


def test_a_replay_that_finds_no_rank_disturbs_nothing(run_scenario: Callable[..., None]) -> None:
    async def scenario(world: Any) -> None:
        before = pids(world)
        assert world.coordinator.workflows.replays.request_replay(ASKED)
        await settled(world, 4)  # two cuts, and training
        (event,) = [await world.until_event("step_replay_finished")]
        assert event["data"]["outcome"] == "clean"
        assert (event["data"]["epoch"], event["data"]["culprits"]) == (5, [])
        assert pids(world) == before
        assert world.coordinator.job.state.recoveries == 0  # --max-restarts is not for this
        assert world.events("recovery_planned", "recovery_completed", "action_started") == []  # nor is it an incident
        assert world.coordinator.workflows.replays.proven == 5
        groups = {order.replay_request.group for order in replay_requests(world)}
        assert groups == {"replica-0", "replica-1", "across1-0", "across1-1"}

    run_scenario(scenario)


@pytest.mark.parametrize("culprit", range(4))
def test_two_replicas_that_each_repeat_their_own_bits(run_scenario: Callable[..., None], culprit: int) -> None:
    async def scenario(world: Any) -> None:
        before = pids(world)
        world.node_of(culprit).sick = {culprit: "wrong"}
        assert world.coordinator.workflows.replays.request_replay(
            ReplayTrigger(reason="digests differ", before=5, odd=frozenset({culprit}))
        )
        event = await world.until_event("step_replay_finished")
        assert event["data"]["outcome"] == "no_majority"
        await world.until_state("running", 4)
        assert pids(world) == before
        assert set(event["data"]["undecided"]) >= {culprit}

    run_scenario(scenario)


def three(options: RunOptions) -> dict[str, Any]:
    """Three nodes of one rank each: data parallelism only."""
    return {"nnodes": 3, "nproc": 1}


@pytest.mark.parametrize("culprit", range(3))
def test_a_majority_names_the_culprit(run_scenario: Callable[..., None], options: RunOptions, culprit: int) -> None:
    async def scenario(world: Any) -> None:
        before = pids(world)
        node = world.node_of(culprit)
        node.sick = {culprit: "wrong"}
        assert world.coordinator.workflows.replays.request_replay(
            ReplayTrigger(reason="digests differ", before=4, odd=frozenset({culprit}))
        )
        event = await world.until_event("step_replay_finished")
        assert event["data"]["outcome"] == "found"
        (entry,) = event["data"]["culprits"]
        assert (entry["rank"], entry["node"]) == (culprit, f"node-{culprit}")
        assert (entry["shown"], entry["replays"]) == (7, 7)
        await settled(world, 3)
        recovered = await world.until_event("recovery_completed")
        assert recovered["data"]["epoch"] == 4  # the slot before the last: newer ones are not sound
        assert recovered["data"]["seconds"]["replay"] > 0.0
        after = pids(world)
        assert {rank for rank in before if before[rank] != after[rank]} == {culprit}
        assert node.fences[-1].exclude == (culprit,)
        assert world.coordinator.job.state.recoveries == 1
        assert world.coordinator.job.members.nodes[f"node-{culprit}"].excluded == 1

    run_scenario(scenario, **three(options))


def test_where_no_snapshot_is_old_enough_the_odd_take_what_their_replicas_hold(
    run_scenario: Callable[..., None], options: RunOptions
) -> None:
    async def scenario(world: Any) -> None:
        assert world.coordinator.workflows.replays.request_replay(
            ReplayTrigger(reason="digests differ", before=1, odd=frozenset({1}))
        )
        await world.until_event("step_replay_finished")
        restores = {rank: order.restore for node in world.nodes for rank, order in _first(node)}
        assert {rank: r.source for rank, r in restores.items()} == {
            0: RestoreSource.LOCAL_SLOT, 1: RestoreSource.PEER_COPY, 2: RestoreSource.LOCAL_SLOT,
        }  # fmt: skip
        assert {r.epoch for r in restores.values()} == {5}

    run_scenario(scenario, **three(options))


def _first(node: Any) -> list[tuple[int, Any]]:
    """The first step replay request of each rank."""
    found: dict[int, Any] = {}
    for order in node.orders:
        if order.order.replay_request is not None:
            found.setdefault(order.rank, order.order)
    return list(found.items())


def test_a_second_faulty_device_of_a_node_moves_its_rank_away(
    run_scenario: Callable[..., None], options: RunOptions
) -> None:
    async def scenario(world: Any) -> None:
        for generation in (3, 5):
            home = world.node_of(1)
            home.sick = {1: "wrong"}
            assert world.coordinator.workflows.replays.request_replay(ASKED)
            await settled(world, generation)
            home.sick = {}
            await world.until_event("recovery_completed", (generation - 1) // 2)
        assert world.coordinator.job.members.ranks[1].node != "node-1"

    run_scenario(scenario, **three(options))


def test_a_rank_that_dies_meanwhile_comes_first(run_scenario: Callable[..., None]) -> None:
    async def scenario(world: Any) -> None:
        world.node_of(2).sick = {2: "silent"}
        assert world.coordinator.workflows.replays.request_replay(ASKED)
        await world.until(lambda: replay_requests(world))
        world.node_of(0).kill(0)
        await settled(world, 3)
        await world.until_event("recovery_completed")
        assert world.events("step_replay_finished") == []

    run_scenario(scenario)


@pytest.mark.parametrize("how", ["silent", "broken"])
def test_a_replay_that_fails_gives_the_job_back(
    run_scenario: Callable[..., None], how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_replay, "LEAST_SECONDS", 0.2)
    monkeypatch.setattr(step_replay, "PATIENCE", 0.01)

    async def scenario(world: Any) -> None:
        before = pids(world)
        world.node_of(2).sick = {2: how}
        assert world.coordinator.workflows.replays.request_replay(ASKED)
        event = await world.until_event("step_replay_finished")
        assert event["data"]["outcome"] == "failed"
        await settled(world, 3)
        assert pids(world) == before

    run_scenario(scenario)


def test_a_snapshot_that_cannot_be_read_ends_it_after_three_attempts(run_scenario: Callable[..., None]) -> None:
    async def scenario(world: Any) -> None:
        world.nodes[1].broken = {RestoreSource.LOCAL_SLOT}
        assert world.coordinator.workflows.replays.request_replay(ASKED)
        event = await world.until_event("step_replay_finished")
        assert event["data"]["outcome"] == "failed"

    run_scenario(scenario)


def test_when_no_replay_makes_sense(run_scenario: Callable[..., None], options: RunOptions) -> None:
    async def scenario(world: Any) -> None:
        replays = world.coordinator.workflows.replays
        assert replays.request_replay(ASKED)
        assert not replays.request_replay(ASKED)  # one at a time
        await settled(world, 4)
        world.coordinator.job.state.parameters_equal = False
        assert not replays.request_replay(ASKED)

    run_scenario(scenario)


def test_findings_that_lead_nowhere_stop_asking(run_scenario: Callable[..., None]) -> None:
    async def scenario(world: Any) -> None:
        replays, generation = world.coordinator.workflows.replays, 1
        for number in range(step_replay.MOST_FRUITLESS):
            assert replays.request_replay(ReplayTrigger(reason="a spike"))
            generation += 3
            await settled(world, generation)
            await world.until_event("recovery_completed", number + 1)
        assert not replays.request_replay(ReplayTrigger(reason="a spike"))
        assert replays.request_replay(ASKED)

    run_scenario(scenario)


def test_the_timetable(run_scenario: Callable[..., None]) -> None:
    async def scenario(world: Any) -> None:
        world.commit_all(6)
        world.commit_all(7)
        await settled(world, 4)
        event = await world.until_event("step_replay_finished")
        assert event["data"]["epoch"] in {6, 7}

        replays = world.coordinator.workflows.replays
        asked: list[ReplayTrigger] = []
        replays.request_replay = asked.append
        replays._last = 12
        replays.went_back(11)
        replays.committed(12)
        assert asked == []  # it has just been made
        replays.went_back(6)
        replays.committed(12)
        assert len(asked) == 1

    run_scenario(scenario, step_replay_every=6)


def test_replicas_whose_digests_differ_call_for_a_replay(
    run_scenario: Callable[..., None], options: RunOptions
) -> None:
    """The real detector on real records: agreed at step 6, one odd at step 8."""

    async def scenario(world: Any) -> None:
        world.node_of(2).sick = {2: "wrong"}
        for epoch in (6, 7, 8):
            for node in world.nodes:
                for rank in node.pids:
                    odd = 1.0 if (epoch, rank) == (8, 2) else 0.0
                    node.commit(rank, epoch, parameters_digest=100.0 + epoch + odd)
                    node.slots[rank] = 7
        event = await world.until_event("step_replay_finished")
        assert event["data"]["outcome"] == "found"
        assert "Rank 2" in event["data"]["reason"]
        assert event["data"]["epoch"] == 7
        assert [c["rank"] for c in event["data"]["culprits"]] == [2]

    run_scenario(scenario, on_numeric_anomaly=NumericAnomalyPolicy.REPLAY, **three(options))


@pytest.mark.parametrize(
    ("kind", "numbers", "severity", "before"),
    [
        (FindingKind.LOSS_SPIKE, {"loss": 9.0}, Severity.WARNING, 7),
        (FindingKind.NAN, {"step": 4.0}, Severity.CRITICAL, 3),
        (FindingKind.NAN, {"step": 4.0}, Severity.WARNING, None),  # a single overflow that the optimizer skips
        (FindingKind.SDC_SUSPECT, {"step": 8.0, "digests_differ": 1.0}, Severity.CRITICAL, 6),
    ],
)
def test_how_far_back_a_finding_tells_to_go(
    run_scenario: Callable[..., None],
    kind: FindingKind,
    numbers: dict[str, float],
    severity: Severity,
    before: int | None,
) -> None:
    async def scenario(world: Any) -> None:
        asked: list[ReplayTrigger] = []
        watch = NumericMonitor(world.coordinator.job, None, asked.append)
        watch.agreed = 6
        finding = Finding(
            kind=kind, entity=Entity(job="job", rank=1), time=1.0, severity=severity,
            detector="numeric_anomalies", confidence=0.9, evidence=Evidence(summary="Sick.", numbers=numbers),
        )  # fmt: skip
        watch._take([finding], 8)
        assert [suspicion.before for suspicion in asked] == ([] if before is None else [before])
        watch.went_back(5)
        assert watch.agreed is None

    run_scenario(scenario)


def test_options(tmp_path: Any) -> None:
    script = tmp_path / "train.py"
    script.touch()
    words = [
        "--on-numeric-anomaly",
        "replay",
        "--checkpoint-interval",
        "20",
        "--checkpoint-dir",
        str(tmp_path),
        str(script),
    ]
    assert parse(words).disk_keep == 2 + 3
    assert parse(words[2:]).disk_keep == 2
    assert parse(["--step-replay-every", "100", *words[2:]]).disk_keep == 2 + 5
    with pytest.raises(OptionsError, match="--step-replay-every"):
        parse(["--step-replay-every", "-1", *words])


def test_digests_are_made_as_often_as_the_launcher_thinks() -> None:
    values = pytest.importorskip("mainstay.recovery.sdk.numerics")
    assert values.DIGEST_EVERY == DIGESTS_APART
