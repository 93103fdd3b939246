"""A launcher that is started again asks at the election endpoints that it knew who coordinates its job now."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from typing import Any

import msgspec
import pytest

from mainstay.recovery.membership import launcher_discovery
from mainstay.recovery.membership.coordinator_election import CoordinatorElection
from mainstay.recovery.membership.election_server import ElectionReply, ElectionRequest, VoteRequest, serve_elections
from mainstay.recovery.options import RunOptions
from mainstay.recovery.protocol import coordinator_state
from mainstay.recovery.protocol.messages import ReplicateState
from mainstay.recovery.work_assignment import LossPolicy


@pytest.fixture
def dropping(options: RunOptions) -> RunOptions:
    return dataclasses.replace(options, on_loss=LossPolicy.DROP)


def will(*election_endpoints: str) -> coordinator_state.CoordinatorState:
    electors = tuple(
        coordinator_state.ElectionMember(
            node=f"node-{number}", node_rank=number, nproc=2, spares=0, pid=1, election_endpoint=election_endpoint,
            agent_endpoint="", domain="", excluded=0, alive=True,
        )
        for number, election_endpoint in enumerate(("127.0.0.1:9", *election_endpoints))
    )  # fmt: skip
    return coordinator_state.CoordinatorState(
        term=1, version=1, generation=1, electors=electors, homes=(), recoveries=0, started_at=1.0, formed_once=True,
        returns=(), parameters_equal=True, replicated=True, groups=(), run="run", resumed=None, disk_every=0,
        parity_every=0,
    )  # fmt: skip


def kept(options: RunOptions) -> launcher_discovery.KnownLaunchers:
    return msgspec.json.decode(
        (options.state_dir / launcher_discovery.FILE).read_bytes(), type=launcher_discovery.KnownLaunchers
    )


async def opened(options: RunOptions, *answers: ElectionReply) -> tuple[list[asyncio.Server], list[str]]:
    """Election endpoints with launchers behind them that say this."""

    def saying(answer: ElectionReply) -> Any:
        def reply(_: ElectionRequest) -> ElectionReply:
            return answer

        return reply

    tls, job = options.control_tls, options.job
    servers = [await serve_elections("127.0.0.1", 0, tls, job, saying(answer)) for answer in answers]
    return servers, [f"127.0.0.1:{server.sockets[0].getsockname()[1]}" for server in servers]


def test_who_knows_of_the_newest_term_is_believed(dropping: RunOptions) -> None:
    async def work() -> None:
        old = ElectionReply(term=2, coordinates=False, coordinator="127.0.0.1:1111")
        new = ElectionReply(term=3, coordinates=True, coordinator="127.0.0.1:2222")
        nothing = ElectionReply(term=9, coordinates=False)
        servers, places = await opened(dropping, old, new, nothing)
        launcher_discovery.keep(dropping, will(*places, "127.0.0.1:9"), 1)  # the last one has ended
        assert await launcher_discovery.find_coordinator(dropping) == ("127.0.0.1", 2222)
        assert await launcher_discovery.find_coordinator(dataclasses.replace(dropping, job="other")) is None
        launcher_discovery.keep(dropping, will(*places), 4)
        assert await launcher_discovery.find_coordinator(dropping) is None, "this node's vote was for a newer one"
        for server in servers:
            server.close()

    asyncio.run(work())


def test_as_always_where_nobody_was_elected_or_nobody_is_there(dropping: RunOptions) -> None:
    async def work() -> None:
        assert await launcher_discovery.find_coordinator(dropping) is None, "there is no file"
        launcher_discovery.keep(dropping, will("127.0.0.1:9"), 1)
        assert await launcher_discovery.find_coordinator(dropping) is None, "no launcher is there"
        servers, places = await opened(dropping, ElectionReply(term=1, coordinates=True))
        launcher_discovery.keep(dropping, will(*places), 1)
        assert await launcher_discovery.find_coordinator(dropping) is None, (
            "the first coordinator is at --rdzv-endpoint"
        )
        servers[0].close()

    asyncio.run(work())


def test_a_job_that_takes_nobody_back_neither_keeps_nor_asks(options: RunOptions) -> None:
    launcher_discovery.keep(options, will("127.0.0.1:9"), 1)
    assert not (options.state_dir / launcher_discovery.FILE).exists()
    assert asyncio.run(launcher_discovery.find_coordinator(options)) is None


def test_a_job_with_spare_nodes_takes_them_back(options: RunOptions) -> None:
    launcher_discovery.keep(dataclasses.replace(options, spare_nodes=1), will("127.0.0.1:9"), 1)
    assert kept(options).endpoints == ("127.0.0.1:9",)


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b'{"job": "\xff"}', b'{"job": 3, "endpoints": []}', b'{"job": "job", "endpoints": [], "more": 1}'],
)
def test_a_damaged_file_is_said_and_no_hindrance(
    dropping: RunOptions, text: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    dropping.state_dir.mkdir(parents=True)
    (dropping.state_dir / launcher_discovery.FILE).write_bytes(text)
    with caplog.at_level(logging.WARNING):
        assert asyncio.run(launcher_discovery.find_coordinator(dropping)) is None
    assert "known_launchers.json is not read" in caplog.text


def test_what_cannot_be_written_is_said(dropping: RunOptions, caplog: pytest.LogCaptureFixture) -> None:
    dropping.state_dir.parent.mkdir(parents=True, exist_ok=True)
    dropping.state_dir.write_text("a file where the directory should be")
    launcher_discovery.keep(dropping, will("127.0.0.1:9"), 1)
    assert "may not find this job" in caplog.text


def test_a_launcher_keeps_what_the_coordinator_says(dropping: RunOptions) -> None:
    async def work() -> None:
        one = CoordinatorElection(
            dropping, generation=lambda: 1, coordinates=lambda: False, take_office=None, resign=None,  # type: ignore[arg-type]
        )  # fmt: skip
        one.load_state(
            ReplicateState(
                term=1, holder="node-0", election_endpoint="127.0.0.1:9", coordinator_state=will("127.0.0.1:7")
            )
        )
        assert kept(dropping).voted_term == 1
        one._free = True
        call = VoteRequest(job=dropping.job, term=2, node="node-1")
        assert one._answer(call).granted
        assert (kept(dropping).voted_term, kept(dropping).endpoints) == (2, ("127.0.0.1:7",))

    asyncio.run(work())
