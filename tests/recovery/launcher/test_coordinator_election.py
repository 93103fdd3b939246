"""Votes, terms and leases: launchers that choose a coordinator, without any job behind them."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from mainstay.recovery.membership.coordinator_election import (
    EXIT_LOST,
    CoordinatorElection,
    CoordinatorLoss,
    ElectionResult,
)
from mainstay.recovery.membership.election_server import (
    CoordinatorAnnouncement,
    CoordinatorQuery,
    ElectionReply,
    RequestStatus,
    VoteRequest,
    send_election_request,
)
from mainstay.recovery.options import RunOptions
from mainstay.recovery.protocol import coordinator_state as wills
from mainstay.recovery.protocol.messages import ReplicateState, StopJob

Play = Callable[[Coroutine[Any, Any, None]], None]


class Launcher:
    """A launcher that only votes and stands."""

    def __init__(self, options: RunOptions, number: int, generation: int = 1) -> None:
        self.number = number
        self.name = f"node-{number}"
        self.options = dataclasses.replace(options, node=self.name, node_rank=number)
        self.generation = generation
        self.coordinates = number == 0
        self.won: ElectionResult | None = None
        self.resigned = ""
        self.election_endpoint = ""
        self.election = CoordinatorElection(
            self.options,
            generation=lambda: self.generation,
            coordinates=lambda: self.coordinates,
            take_office=self._become_coordinator,
            resign=self._resign,
        )

    async def _become_coordinator(self, won: ElectionResult, host: str) -> tuple[str, int]:
        self.won, self.coordinates = won, True
        return host, 1000 + self.number

    def _resign(self, reason: str) -> None:
        self.resigned, self.coordinates = reason, False

    async def next(self, silent_for: float = 0.0) -> tuple[str, int] | StopJob:
        lost = CoordinatorLoss("the coordinator is lost", asyncio.get_running_loop().time() - silent_for)
        return await self.election.next(lost)


class Fleet:
    """Launchers of one job; node 0 coordinates."""

    def __init__(self, options: RunOptions, nodes: int, quorum: int, seconds: float = 0.6) -> None:
        options = dataclasses.replace(options, nnodes=nodes, quorum=quorum, node_seconds=seconds)
        self.launchers = [Launcher(options, number) for number in range(nodes)]

    async def open(self) -> None:
        for launcher in self.launchers:
            launcher.election_endpoint = await launcher.election.open("127.0.0.1")
        for launcher in self.launchers:
            launcher.election.load_state(self.replicated_state(version=1))

    def replicated_state(self, version: int, generation: int = 1) -> ReplicateState:
        electors = tuple(
            wills.ElectionMember(
                node=one.name, node_rank=one.number, nproc=1, spares=1, pid=1,
                election_endpoint=one.election_endpoint, agent_endpoint="", domain="", excluded=0, alive=True,
            )
            for one in self.launchers
        )  # fmt: skip
        coordinator_state = wills.CoordinatorState(
            term=1, version=version, generation=generation, electors=electors, homes=tuple(range(len(electors))),
            recoveries=0, started_at=0.0, formed_once=True, returns=(), parameters_equal=True, replicated=True,
            groups=(), run="run", resumed=None, disk_every=0, parity_every=0,
        )  # fmt: skip
        return ReplicateState(
            term=1,
            holder="node-0",
            election_endpoint=self.launchers[0].election_endpoint,
            coordinator_state=coordinator_state,
        )

    def end(self, number: int) -> None:
        """The launcher's process ends."""
        self.launchers[number].election.close()

    def close(self) -> None:
        for launcher in self.launchers:
            launcher.election.close()


@pytest.mark.parametrize("nodes", [3, 5])
def test_the_lowest_living_node_coordinates_and_all_others_follow(options: RunOptions, play: Play, nodes: int) -> None:
    async def whole() -> None:
        fleet = Fleet(options, nodes, nodes // 2 + 1, seconds=5.0)
        await fleet.open()
        fleet.end(0)
        try:
            found = await asyncio.gather(*(one.next() for one in fleet.launchers[1:]))
            assert found == [("127.0.0.1", 1001)] * (nodes - 1)
            assert [one.number for one in fleet.launchers if one.won] == [1]
        finally:
            fleet.close()

    play(whole())


def test_a_node_whose_place_another_may_have_taken_gets_no_vote(options: RunOptions, play: Play) -> None:
    async def whole() -> None:
        fleet = Fleet(dataclasses.replace(options, spare_nodes=1), 3, 2, seconds=5.0)
        await fleet.open()
        fleet.end(0)
        try:
            following = asyncio.ensure_future(fleet.launchers[1].next())
            await asyncio.sleep(0)
            vote = VoteRequest(job=options.job, term=9, node="node-7")
            while True:
                answer = await send_election_request(fleet.launchers[1].election_endpoint, vote, options.control_tls)
                assert isinstance(answer, ElectionReply)
                assert not answer.granted
                if answer.reason == "node node-7 was lost, and another may have taken its place":
                    break
                await asyncio.sleep(0.01)
            following.cancel()
        finally:
            fleet.close()

    play(whole())


def test_the_newest_coordinator_state_and_the_highest_generation_win(options: RunOptions, play: Play) -> None:
    async def whole() -> None:
        fleet = Fleet(options, 3, 2, seconds=5.0)
        await fleet.open()
        fleet.launchers[2].election.load_state(fleet.replicated_state(version=7, generation=4))
        fleet.launchers[2].generation = 5
        fleet.end(0)
        try:
            await asyncio.gather(*(one.next() for one in fleet.launchers[1:]))
            won = fleet.launchers[1].won
            assert won is not None
            assert (won.coordinator_state.version, won.generation, won.predecessor) == (7, 5, "node-0")
            assert won.term > 1
        finally:
            fleet.close()

    play(whole())


def test_a_minority_ends_in_one_line(options: RunOptions, play: Play) -> None:
    """Node 2 of three is cut off: the coordinator and node 1 are well, and node 1 does not vote."""

    async def whole() -> None:
        fleet = Fleet(options, 3, 2)
        await fleet.open()
        electors = fleet.replicated_state(version=1).coordinator_state
        assert electors is not None
        away = [
            msgspec.structs.replace(e, election_endpoint="") if e.node != "node-2" else e for e in electors.electors
        ]
        legacy = msgspec.structs.replace(
            fleet.replicated_state(version=1),
            election_endpoint="",
            coordinator_state=msgspec.structs.replace(electors, electors=tuple(away)),
        )
        fleet.launchers[2].election.load_state(legacy)
        try:
            found = await fleet.launchers[2].next()
            assert isinstance(found, StopJob)
            assert found.exit_code == EXIT_LOST
            assert "1 of 3 launchers agree to another one and 2 must (--quorum)" in found.reason
            assert not any(one.won for one in fleet.launchers)
        finally:
            fleet.close()

    play(whole())


def test_a_living_coordinator_is_not_succeeded(options: RunOptions, play: Play) -> None:
    """Only the connection broke."""

    async def whole() -> None:
        fleet = Fleet(options, 3, 2)
        await fleet.open()
        try:
            found = await fleet.launchers[1].next()
            assert isinstance(found, StopJob)
            assert "it lives, and has given this node up" in found.reason
        finally:
            fleet.close()

    play(whole())


def test_two_nodes_say_what_a_quorum_would_be(options: RunOptions, play: Play) -> None:
    async def whole() -> None:
        fleet = Fleet(options, 2, 2)
        await fleet.open()
        fleet.end(0)
        try:
            found = await fleet.launchers[1].next()
            assert isinstance(found, StopJob)
            assert "another one needs 2 of 2 launchers (--quorum), and 1 can be left" in found.reason
        finally:
            fleet.close()

    play(whole())


def test_one_vote_a_term_and_none_while_there_is_a_coordinator(options: RunOptions, play: Play) -> None:
    async def whole() -> None:
        fleet = Fleet(options, 5, 3, seconds=30.0)
        await fleet.open()
        voter = fleet.launchers[4]

        async def candidacy(node: str, term: int, token: str = options.token) -> Any:
            tls = dataclasses.replace(options, token=token).control_tls
            call = VoteRequest(job=options.job, node=node, term=term)
            return await send_election_request(voter.election_endpoint, call, tls, 2.0)

        try:
            refused = await candidacy("node-1", 2)
            assert (refused.granted, refused.reason) == (False, "node node-4 has a coordinator")
            fleet.end(0)
            looking = asyncio.create_task(voter.next())
            while not (granted := await candidacy("node-1", 2)).granted:  # noqa: ASYNC110 - seen from outside only
                await asyncio.sleep(0.01)
            assert granted.coordinator_state is not None
            again = await candidacy("node-2", 2)
            assert (again.granted, again.reason) == (False, "node node-4 has promised term 2")
            assert await candidacy("node-2", 9, token="wrong") is RequestStatus.SILENT
            call = CoordinatorAnnouncement(job=options.job, term=2, node="node-1", endpoint="127.0.0.1:77")
            await send_election_request(voter.election_endpoint, call, options.control_tls)
            assert await asyncio.wait_for(looking, 60.0) == ("127.0.0.1", 77)
        finally:
            fleet.close()

    play(whole())


def test_a_coordinator_that_wakes_hears_of_the_higher_term(options: RunOptions, play: Play) -> None:
    async def whole() -> None:
        fleet = Fleet(options, 3, 2)
        await fleet.open()
        old = fleet.launchers[0]
        call = CoordinatorAnnouncement(job=options.job, term=3, node="node-1", endpoint="127.0.0.1:77")
        try:
            await send_election_request(old.election_endpoint, call, options.control_tls)
            assert old.resigned == "node node-1 coordinates now (term 3)"
            await send_election_request(
                old.election_endpoint, msgspec.structs.replace(call, term=1), options.control_tls
            )
            assert old.resigned.endswith("(term 3)")
        finally:
            fleet.close()

    play(whole())


@pytest.mark.parametrize("raw", [b"GET / HTTP/1.1\r\n\r\n", b"\xff\xff\xff\xff", b"\x03\x00\x00\x00abc", b"\x01"])
def test_a_endpoint_takes_no_nonsense_and_stays_open(options: RunOptions, play: Play, raw: bytes) -> None:
    async def whole() -> None:
        fleet = Fleet(options, 3, 2)
        await fleet.open()
        election_endpoint = fleet.launchers[0].election_endpoint
        host, port = election_endpoint.split(":")
        try:
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(raw)
            writer.write_eof()
            assert await asyncio.wait_for(reader.read(), 60.0) == b""
            writer.close()
            answer = await send_election_request(
                election_endpoint, CoordinatorQuery(job=options.job, term=1), options.control_tls
            )
            assert answer == ElectionReply(term=1, coordinates=True)
        finally:
            fleet.close()

    play(whole())
