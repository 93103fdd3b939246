"""A launcher that is started again asks at the doors that it knew who coordinates its job now."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from typing import Any

import msgspec
import pytest

from recovery.deal import OnLoss
from recovery.launcher import legacy, neighbours
from recovery.launcher.door import Answer, Candidacy, Door, Question
from recovery.launcher.messages import Legacy
from recovery.launcher.options import RunOptions
from recovery.launcher.succession import Succession


@pytest.fixture
def dropping(options: RunOptions) -> RunOptions:
    return dataclasses.replace(options, on_loss=OnLoss.DROP)


def will(*doors: str) -> legacy.Testament:
    electors = tuple(
        legacy.Elector(
            node=f"node-{number}", node_rank=number, nproc=2, spares=0, pid=1, door=door, agent_endpoint="", domain="",
            shunned=0, alive=True,
        )
        for number, door in enumerate(("127.0.0.1:9", *doors))
    )  # fmt: skip
    return legacy.Testament(
        term=1, version=1, generation=1, electors=electors, homes=(), recoveries=0, started_at=1.0, formed_once=True,
        returns=(), parameters_equal=True, replicated=True, groups=(), run="run", resumed=None, disk_every=0,
        parity_every=0,
    )  # fmt: skip


def kept(options: RunOptions) -> neighbours.Neighbours:
    return msgspec.json.decode((options.state_dir / neighbours.FILE).read_bytes(), type=neighbours.Neighbours)


async def opened(options: RunOptions, *answers: Answer) -> tuple[list[Door], list[str]]:
    """Doors with launchers behind them that say this."""

    def saying(answer: Answer) -> Any:
        def say(_: Question) -> Answer:
            return answer

        return say

    doors = [Door(options.token, options.job, saying(answer)) for answer in answers]
    return doors, [f"127.0.0.1:{await door.open('127.0.0.1', 0)}" for door in doors]


def test_who_knows_of_the_newest_term_is_believed(dropping: RunOptions) -> None:
    async def work() -> None:
        old = Answer(term=2, coordinates=False, coordinator="127.0.0.1:1111")
        new = Answer(term=3, coordinates=True, coordinator="127.0.0.1:2222")
        nothing = Answer(term=9, coordinates=False)
        doors, places = await opened(dropping, old, new, nothing)
        neighbours.keep(dropping, will(*places, "127.0.0.1:9"), 1)  # the last one has ended
        assert await neighbours.coordinator(dropping) == ("127.0.0.1", 2222)
        assert await neighbours.coordinator(dataclasses.replace(dropping, job="other")) is None
        neighbours.keep(dropping, will(*places), 4)
        assert await neighbours.coordinator(dropping) is None, "this node's vote was for a newer one"
        for door in doors:
            door.close()

    asyncio.run(work())


def test_as_always_where_nobody_was_elected_or_nobody_is_there(dropping: RunOptions) -> None:
    async def work() -> None:
        assert await neighbours.coordinator(dropping) is None, "there is no file"
        neighbours.keep(dropping, will("127.0.0.1:9"), 1)
        assert await neighbours.coordinator(dropping) is None, "nobody is there"
        doors, places = await opened(dropping, Answer(term=1, coordinates=True))
        neighbours.keep(dropping, will(*places), 1)
        assert await neighbours.coordinator(dropping) is None, "the first coordinator is at --rdzv-endpoint"
        doors[0].close()

    asyncio.run(work())


def test_a_job_that_takes_nobody_back_neither_keeps_nor_asks(options: RunOptions) -> None:
    neighbours.keep(options, will("127.0.0.1:9"), 1)
    assert not (options.state_dir / neighbours.FILE).exists()
    assert asyncio.run(neighbours.coordinator(options)) is None


@pytest.mark.parametrize("text", ["", "{", '{"job": 3, "doors": []}', '{"job": "job", "doors": [], "more": 1}'])
def test_a_damaged_file_is_said_and_no_hindrance(
    dropping: RunOptions, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    dropping.state_dir.mkdir(parents=True)
    (dropping.state_dir / neighbours.FILE).write_text(text)
    with caplog.at_level(logging.WARNING):
        assert asyncio.run(neighbours.coordinator(dropping)) is None
    assert "neighbours.json is not read" in caplog.text


def test_what_cannot_be_written_is_said(dropping: RunOptions, caplog: pytest.LogCaptureFixture) -> None:
    dropping.state_dir.parent.mkdir(parents=True, exist_ok=True)
    dropping.state_dir.write_text("a file where the directory should be")
    neighbours.keep(dropping, will("127.0.0.1:9"), 1)
    assert "may not find this job" in caplog.text


def test_a_launcher_keeps_what_the_coordinator_says(dropping: RunOptions) -> None:
    async def work() -> None:
        one = Succession(
            dropping, generation=lambda: 1, coordinates=lambda: False, take_office=None, resign=None,  # type: ignore[arg-type]
        )  # fmt: skip
        one.inherit(Legacy(term=1, holder="node-0", door="127.0.0.1:9", testament=will("127.0.0.1:7")))
        assert kept(dropping).promised == 1
        one._free = True
        call = Candidacy(token=dropping.token, job=dropping.job, term=2, node="node-1")
        assert one._answer(call).granted
        assert (kept(dropping).promised, kept(dropping).doors) == (2, ("127.0.0.1:7",))

    asyncio.run(work())
