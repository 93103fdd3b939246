"""The coordinator asks the service before ranks start, with launchers that only pretend and a service of one answer."""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest

from bench.lib_node_warnings import Warner
from mainstay.recovery.admission import AdmissionPolicy
from mainstay.recovery.controller import admission_gate, participation
from mainstay.recovery.controller.state_replication import capture_state
from mainstay.recovery.node_warning import NodeWarning, NodeWarnings
from mainstay.recovery.options import RunOptions
from mainstay.recovery.work_assignment import LossPolicy

QUARANTINED = ("state", "deny", "its state is quarantined")
VALIDATED = ("being_validated", "deny", "a validation runs on it")


def objection(node: str, *reasons: tuple[str, str, str]) -> dict[str, Any]:
    """A node in the answer of the service."""
    fields = ("code", "decision", "text")
    return {"node": node, "reasons": [dict(zip(fields, reason, strict=True)) for reason in reasons]}


@pytest.fixture
def service() -> Iterator[Warner]:
    with Warner() as warner:
        yield warner


@pytest.fixture
def three(options: RunOptions, service: Warner) -> RunOptions:
    """Three nodes of one rank, a standby each, and a service."""
    return dataclasses.replace(options, nnodes=3, nproc=1, spares=1, service=service.url)


@pytest.fixture
def recheck(monkeypatch: Any, caplog: Any) -> Any:
    """Ask again at once about nodes that are refused; the log."""
    monkeypatch.setattr(admission_gate, "RECHECK_SECONDS", 0.01)
    monkeypatch.setattr(participation, "AGAIN_SECONDS", 0.0)
    caplog.set_level(logging.WARNING, "mainstay.coordinator")
    return caplog


@pytest.fixture
def started(play: Any, running: Any, caplog: Any) -> Any:
    """Start a job; gives the node of each rank, and lines of the log about admission."""

    def start(options: RunOptions) -> tuple[list[str], list[str]]:
        found: list[str] = []

        async def work() -> None:
            async with running(options) as world:
                found.extend(homes(world))

        with caplog.at_level(logging.WARNING, "mainstay.coordinator"):
            play(work())
        return found, [r.message for r in caplog.records if r.module == "admission_gate"]

    return start


async def more_questions(world: Any, service: Warner) -> None:
    """The coordinator has asked again, and again."""
    count = len(service.asked)
    await world.until(lambda: len(service.asked) > count + 2)


def homes(world: Any) -> list[str]:
    return [rank.node for rank in world.coordinator.job.members.ranks]


def test_no_rank_starts_on_a_node_that_is_refused(three: RunOptions, service: Warner, play: Any, running: Any) -> None:
    service.admission = [objection("node-1", QUARANTINED)]

    async def work() -> None:
        async with running(three) as world:
            assert homes(world) == ["node-0", "node-2", "node-0"]
            (asked,) = service.asked
            assert asked == {"job": "job", "nodes": ["node-0", "node-1", "node-2"]}
            world.nodes[2].kill(1)
            await world.until_state("running", 2)
            assert "node-1" not in homes(world), "the response to a job report does not name it"
            refused = capture_state(world.coordinator.job, 9).warnings.refused
            assert refused["node-1"].reason == "its state is quarantined"

    play(work())


def test_the_job_ends_in_one_line_where_the_other_nodes_have_no_room(
    three: RunOptions, service: Warner, play: Any, forming: Any
) -> None:
    service.admission = [
        objection("node-1", QUARANTINED),
        objection("node-2", VALIDATED, ("finding", "deny", "a GPU is lost")),
    ]

    async def work() -> None:
        async with forming(three) as world:
            stopped = await world.until(lambda: world.nodes[1].stopped)
            assert stopped.exit_code == 1
            assert stopped.reason == (
                "job job failed: the service refuses node-1 (its state is quarantined), node-2 (a validation runs on "
                "it; a GPU is lost); the other nodes have 2 of 3 places (see --standbys). Return the node to service, "
                "use another one, or start with --admission warn"
            )
            assert not any(node.pids for node in world.nodes)

    play(work())


@pytest.mark.parametrize("policy", [AdmissionPolicy.WARN, AdmissionPolicy.OFF])
def test_an_operator_may_start_it_all_the_same(
    three: RunOptions, service: Warner, started: Any, policy: AdmissionPolicy
) -> None:
    service.admission = [objection("node-1", QUARANTINED)]
    found, lines = started(dataclasses.replace(three, admission=policy))
    assert found == ["node-0", "node-1", "node-2"]
    line = "the service refuses node node-1, it takes ranks all the same (--admission warn): its state is quarantined"
    assert lines == ([line] if policy is AdmissionPolicy.WARN else [])
    assert len(service.asked) == (policy is AdmissionPolicy.WARN)


def test_what_is_unknown_starts_and_a_suspect_node_comes_last(three: RunOptions, service: Warner, started: Any) -> None:
    service.admission = [
        objection("node-0", ("suspect", "allow_degraded", "it is suspect")),
        objection("node-1", ("unknown_node", "deny", "no node has this name")),
    ]
    found, lines = started(three)
    assert found == ["node-1", "node-2", "node-1"]
    assert lines == ["admission of job job with reservations: node-0 (it is suspect), node-1 (no node has this name)"]


@pytest.mark.parametrize("problem", ["broken", "slow"])
def test_a_service_that_does_not_answer_refuses_nothing(
    three: RunOptions, service: Warner, started: Any, monkeypatch: Any, problem: str
) -> None:
    service.admission = [objection("node-1", QUARANTINED)]
    if problem == "broken":
        service.status = 503
    else:
        service.answers.clear()
        monkeypatch.setattr(admission_gate, "ASK_SECONDS", 0.2)
    found, (line,) = started(three)
    assert found == ["node-0", "node-1", "node-2"]
    assert line.startswith("admission of job job is unknown, the job continues: ")
    assert re.search("503" if problem == "broken" else "within 0.2 s|read timeout=0.2", line), line


def test_a_start_waits_for_a_validation(
    three: RunOptions, service: Warner, play: Any, forming: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(admission_gate, "VALIDATION_SECONDS", 0.01)
    service.admission = [objection("node-1", VALIDATED)]

    async def work() -> None:
        async with forming(three) as world:
            await world.until(lambda: len(service.asked) > 2)
            assert homes(world) == []
            service.admission = []
            await world.until_state("running", 1)
            assert homes(world) == ["node-0", "node-1", "node-2"]

    play(work())


def test_a_start_waits_for_a_validation_where_another_node_is_refused_and_its_ranks_have_room(
    three: RunOptions, service: Warner, play: Any, forming: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(admission_gate, "VALIDATION_SECONDS", 0.01)
    service.admission = [objection("node-1", QUARANTINED), objection("node-2", VALIDATED)]

    async def work() -> None:
        async with forming(three) as world:
            await world.until(lambda: len(service.asked) > 2)
            service.admission = service.admission[:1]
            await world.until_state("running", 1)
            assert homes(world) == ["node-0", "node-2", "node-0"]

    play(work())


def test_no_validation_is_waited_for_where_the_job_lacks_places_anyway(
    three: RunOptions, service: Warner, play: Any, forming: Any
) -> None:
    service.admission = [objection("node-1", QUARANTINED), objection("node-2", VALIDATED)]

    async def work() -> None:
        async with forming(dataclasses.replace(three, spares=0, join_seconds=600.0)) as world:
            stopped = await world.until(lambda: world.nodes[0].stopped)
            assert "node-1 (its state is quarantined), node-2 (a validation runs on it)" in stopped.reason

    play(work())


def test_a_validation_that_does_not_end_in_time_is_a_refusal(
    three: RunOptions, service: Warner, play: Any, running: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(admission_gate, "VALIDATION_SECONDS", 0.01)
    service.admission = [objection("node-1", VALIDATED)]

    async def work() -> None:
        async with running(dataclasses.replace(three, join_seconds=2.0)) as world:
            assert homes(world) == ["node-0", "node-2", "node-0"]

    play(work())


@pytest.mark.parametrize("at_once", [False, True])
def test_a_node_that_leaves_during_the_check_gets_no_rank(
    three: RunOptions, service: Warner, play: Any, forming: Any, at_once: bool
) -> None:
    service.answers.clear()

    async def work() -> None:
        async with forming(three) as world:
            await world.until(lambda: service.asked)
            members = world.coordinator.job.members
            world.lose(2)
            await world.until(lambda: not members.complete)
            if at_once:
                await world.connect(2, node="other")
                await world.until(lambda: members.complete)
                service.answers.set()
            else:
                service.answers.set()
                await world.until(lambda: not world.coordinator.admission._opening)
                assert homes(world) == []
                await world.connect(2, node="other")
            await world.until_state("running", 1)
            assert homes(world) == ["node-0", "node-1", "other"]
            assert service.asked[-1]["nodes"] == ["node-0", "node-1", "other"]

    play(work())


def test_a_node_takes_ranks_once_the_service_admits_it(
    three: RunOptions, service: Warner, play: Any, running: Any, recheck: Any
) -> None:
    service.admission = [objection("node-1", QUARANTINED)]

    async def work() -> None:
        async with running(three) as world:
            service.status = 503
            await more_questions(world, service)
            assert world.coordinator.job.members.rooms()["node-1"] == 0, "without an answer, the refusal holds"
            assert len([line for line in recheck.messages if "is unknown" in line]) == 1
            service.status, service.admission = 200, []
            await world.until(lambda: world.coordinator.job.members.rooms()["node-1"] == 2)

    play(work())


def test_a_node_that_comes_back_is_asked_about_first(
    three: RunOptions, service: Warner, play: Any, running: Any, recheck: Any
) -> None:
    dropping = dataclasses.replace(three, spares=0, on_loss=LossPolicy.DROP)

    async def work() -> None:
        async with running(dropping) as world:
            world.lose(1)
            await world.until_state("running", 2)
            service.answers.clear()
            service.admission = [objection("node-1", QUARANTINED)]
            back = await world.connect(1, pid=2)
            members = world.coordinator.job.members
            await world.until(lambda: members.nodes["node-1"].alive)
            assert not members.can_run("node-1"), "not before the answer"
            service.answers.set()
            await world.until(lambda: members.warnings.refused["node-1"].reason == "its state is quarantined")
            await more_questions(world, service)
            line = "the service refuses node node-1, it takes no rank: its state is quarantined"
            assert recheck.messages.count(line) == 1
            assert not back.pids
            world.lose(1)
            await world.until(lambda: not members.nodes["node-1"].alive)
            sent, replicate = list[None](), world.coordinator.job.replicate_state
            world.coordinator.job.replicate_state = lambda: sent.append(replicate())
            service.status = 503
            back = await world.connect(1, pid=3)
            await world.until(lambda: sent)
            await more_questions(world, service)
            assert not members.can_run("node-1"), "an outage does not end a refusal"
            await world.until(lambda: world.coordinator.job.members.ranks[1].unplaced)
            service.status, service.admission = 200, []
            await world.until(lambda: 1 in back.pids)

    play(work())


def test_a_node_that_comes_back_during_an_outage_takes_its_rank(
    three: RunOptions, service: Warner, play: Any, running: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(admission_gate, "RECHECK_SECONDS", 3600.0)

    async def work() -> None:
        async with running(dataclasses.replace(three, spares=0, on_loss=LossPolicy.DROP)) as world:
            world.lose(1)
            await world.until_state("running", 2)
            service.status = 503
            back = await world.connect(1, pid=2)
            await world.until(lambda: 1 in back.pids)
            assert world.coordinator.job.members.warnings.refused == {}

    play(work())


def test_a_coordinator_that_does_not_ask_drops_the_refusals_of_the_last_one(
    three: RunOptions, play: Any, new_world: Any
) -> None:
    async def work() -> None:
        world = new_world(dataclasses.replace(three, admission=AdmissionPolicy.OFF))
        refused = {"node-1": NodeWarning(reason="draining", factor=1.0, since=1.0, cordoned=True)}
        world.coordinator.job.warn(NodeWarnings(refused=refused))
        await world.start()
        await world.until(lambda: not world.coordinator.job.members.warnings.refused)
        await world.close()

    play(work())
