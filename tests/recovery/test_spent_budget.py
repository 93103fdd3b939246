"""What recovery does for a limited time ends at once when none of it is left, and does not spin."""

from __future__ import annotations

import asyncio
import math
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mainstay.recovery import job_cli
from mainstay.recovery.agent import scrub, shm_lifecycle
from mainstay.recovery.agent.errors import AgentGoneError, NoSuchSlotError
from mainstay.recovery.controller.coordinator_takeover import CoordinatorTakeover
from mainstay.recovery.controller.job import Job
from mainstay.recovery.job_certificates import Authority, job_tls
from mainstay.recovery.membership.coordinator_election import EXIT_LOST, CoordinatorElection
from mainstay.recovery.memory.pacing import Pacer
from mainstay.recovery.memory.snapshot import SnapshotWriter
from mainstay.recovery.node import agent_supervisor
from mainstay.recovery.node.coordinator_client import CoordinatorClient
from mainstay.recovery.node.worker_output import OutputTail
from mainstay.recovery.sdk import snapshot_session, sockets
from mainstay.recovery.sdk.launcher_client import LauncherClient
from mainstay.recovery.sdk.shard_gather import PartError, ShardGather

pytestmark = pytest.mark.timeout(60)
SPENT = [0.0, -1.0, -60.0]


@pytest.mark.parametrize("seconds", SPENT)
def test_commands_that_wait_for_a_job(seconds: float) -> None:
    road: Any = SimpleNamespace(answer=lambda _id: None)
    with pytest.raises(job_cli._NoAnswerError, match="the job has not answered"):
        job_cli._follow(road, "request", seconds)


@pytest.mark.parametrize("seconds", SPENT)
def test_an_agent_whose_directory_is_taken(tmp_path: Path, seconds: float) -> None:
    with shm_lifecycle.take_lock(tmp_path, seconds), pytest.raises(RuntimeError, match="another agent serves"):
        shm_lifecycle.take_lock(tmp_path, seconds)


@pytest.mark.parametrize("seconds", SPENT)
def test_an_agent_that_keeps_dying(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr(agent_supervisor, "_START_SECONDS", seconds)

    async def up() -> bool:
        return True

    async def call(_work: Any) -> Any:
        raise AgentGoneError("it died")

    agent: Any = SimpleNamespace(wait_up=up, _call=call)
    with pytest.raises(AgentGoneError):
        asyncio.run(agent_supervisor.AgentSupervisor.fence(agent, 1))


@pytest.mark.parametrize("seconds", SPENT)
def test_a_trainer_that_never_settles(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """It begins to write the slot in the midst of the repair, and never commits it."""
    monkeypatch.setattr(scrub, "_SETTLE_SECONDS", seconds)
    asked = iter([True, False])
    arena: Any = SimpleNamespace(
        unchanged=lambda _record: next(asked), record=lambda _slot: SimpleNamespace(committed=False)
    )
    node: Any = SimpleNamespace(store=SimpleNamespace(lock=lambda _rank: open(os.devnull)))  # noqa: PTH123, SIM115
    record: Any = SimpleNamespace(slot=0)
    assert not scrub.Scrubber._write(SimpleNamespace(_node=node), 0, arena, record, bytearray(1), b"x")  # type: ignore[arg-type]


@pytest.mark.parametrize("seconds", SPENT)
def test_what_a_launcher_waits_for(seconds: float) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    options = SimpleNamespace(
        node_seconds=seconds,
        nnodes=3,
        nproc=1,
        spare_nodes=0,
        max_nodes=3,
        disk_every=0,
        on_loss="wait",
        parity_every=0,
        dp=0,
        pp=0,
        tp=0,
        quorum=2,
        node="n",
        launcher_endpoint=None,
        control_tls=job_tls("token", "job", Authority.CONTROL),
    )

    async def work() -> None:
        job = Job(cast("Any", options), cast("Any", None), cast("Any", None))
        job.state.inheriting = True
        assert not await job.until(lambda: False, seconds)
        await OutputTail("rank 0", pipes=2).ended(seconds)
        coordinator_client: Any = SimpleNamespace(_coordinator=("127.0.0.1", port), _options=options)
        with pytest.raises(ConnectionError, match="no coordinator answers"):
            await CoordinatorClient._connect(coordinator_client, seconds, again=False)

        async def fate(_lost: Any) -> str:
            return ""

        election: Any = SimpleNamespace(
            _elected=None, _coordinator_state=None, _options=options, _hopeless=lambda: "", _fate=fate,
            _ahead=lambda: 0, _news=asyncio.Event(),
        )  # fmt: skip
        stop = await CoordinatorElection.next(election, SimpleNamespace(reason="lost", heard_at=0.0))  # type: ignore[arg-type]
        assert getattr(stop, "exit_code", None) == EXIT_LOST

        electors = [SimpleNamespace(node="other", alive=True)]
        begun: list[bool] = []
        takeover: Any = SimpleNamespace(
            _job=job, _present=set(),
            _won=SimpleNamespace(coordinator_state=SimpleNamespace(electors=electors), predecessor="n"),
            _begin=lambda: begun.append(True),
        )  # fmt: skip
        await CoordinatorTakeover.run(takeover)
        assert begun
        assert not job.state.inheriting

    asyncio.run(work())


@pytest.mark.processes
@pytest.mark.parametrize("seconds", SPENT)
def test_a_child_that_never_gets_its_parent_ends(seconds: float) -> None:
    code = f"from mainstay.recovery.node.process_control import wait_for_parent; wait_for_parent(1 << 22, {seconds})"
    assert subprocess.run([sys.executable, "-c", code], timeout=50, check=False).returncode == 1


@pytest.mark.parametrize("seconds", SPENT)
def test_what_a_rank_waits_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr(snapshot_session, "AGENT_SECONDS", seconds)
    snapshot_session._wait_for(tmp_path / "no-agent.sock")

    monkeypatch.setattr(sockets, "MOVES_SECONDS", seconds - 1e-9)
    monkeypatch.setattr(sockets, "_may_end", lambda _one, _rests: False)
    here, there = socket.socketpair()
    with here, there:
        sockets.close_between_messages([sockets.Connection(here.fileno(), os.fstat(here.fileno()).st_ino)])

    link: Any = SimpleNamespace(_news=threading.Condition(), fence=0)
    assert LauncherClient.wait_fence(link, 0, seconds) == 0

    def missing(*_replica: Any) -> int:
        raise NoSuchSlotError("not yet")

    gathering: Any = SimpleNamespace(_read=missing, _deadline=-math.inf)
    with pytest.raises(PartError, match="the part of rank 7"):
        ShardGather._bring(gathering, (0, SimpleNamespace(rank=7)))  # type: ignore[arg-type]


@pytest.mark.parametrize("seconds", SPENT)
def test_a_snapshot_waits_for_nobody(seconds: float) -> None:
    pacer = Pacer(lambda: True, clock=lambda: 0.0, sleep=lambda _s: pytest.fail("it paused"))
    pacer.slack = lambda: seconds  # type: ignore[method-assign]
    assert pacer.wait() == 0.0

    choice = SimpleNamespace(sacrifices="parity")
    arena = SimpleNamespace(
        choose=lambda: choice, require_live=lambda _g: None, agent_alive=lambda: True, header=SimpleNamespace(rank=0)
    )
    writer: Any = SimpleNamespace(arena=arena, _pin_seconds=seconds - 1e-9)
    assert SnapshotWriter._take_slot(writer, 1, 1) is choice  # type: ignore[comparison-overlap]
