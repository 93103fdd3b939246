"""Agents of nodes with a disk each: a part that a disk has lost comes back, or an error names the file."""

from __future__ import annotations

import contextlib
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from mainstay.recovery.agent.errors import AgentError, NoSuchSlotError
from mainstay.recovery.agent.messages import LoadDisk
from mainstay.recovery.checkpoint.manifest import data_name, parity_names
from mainstay.recovery.controller.checkpoint_holders import CheckpointHolders, NodeFiles
from tests.fork_server.processes import Warm
from tests.recovery.agent.conftest import Agent, Rank, contents, eventually, open_ranks, start_agents
from tests.recovery.agent.test_checkpoint_parity import CONFIG, NODES, RUN, SIZES, Disks, damage, step_2_by_scheme

pytestmark = [pytest.mark.processes, pytest.mark.timeout(400), pytest.mark.xdist_group("checkpoint-parity")]

EPOCH = 2


@pytest.fixture(scope="module")
def written(warm_agent: Warm, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Disks]:
    return step_2_by_scheme(warm_agent, tmp_path_factory)


class Nodes:
    """New agents, with empty memory, on what is left of the disks; a rank on each."""

    def __init__(self, agents: list[Agent], ranks: list[Rank], disks: Disks) -> None:
        self.agents, self.ranks, self.disks = agents, ranks, disks
        files = []
        for agent in agents:
            known = agent.client().inventory()
            node: Any = SimpleNamespace(name=agent.node, endpoint=agent.endpoint)
            files.append(NodeFiles(node, known.disk, known.disk_parity))
        self.holders = CheckpointHolders(files)

    def load(self, rank: int) -> None:
        """As the coordinator orders it; what came is compared."""
        holders = self.holders.find(rank, EPOCH, f"n{rank}")
        directory = str(self.disks.paths[rank])
        order = LoadDisk(rank=rank, epoch=EPOCH, directory=directory, run=RUN, holders=holders)
        self.agents[rank].client().load(order)
        arena = self.ranks[rank].arena
        views = arena.layout.views(arena.slot_bytes(arena.find(EPOCH).slot))
        expected = contents(rank, EPOCH, SIZES[rank])
        assert all(np.array_equal(views[name], value) for name, value in expected.items())


@pytest.fixture
def nodes(written: Callable[[str], Disks], warm_agent: Warm, tmp_path: Path) -> Callable[..., Any]:
    @contextlib.contextmanager
    def start(scheme: str, lost: tuple[int, ...], spoil: Callable[[Disks], None] = lambda _: None) -> Iterator[Nodes]:
        disks = Disks(tmp_path / f"{scheme}-{lost}")
        for number, (here, there) in enumerate(zip(disks.paths, written(scheme).paths, strict=True)):
            here.mkdir(parents=True)
            if number not in lost:
                shutil.copytree(there, here, dirs_exist_ok=True)
        spoil(disks)
        options = ["--checkpoint-interval", "2", "--scrub-interval", "0", "--checkpoint-dir"]
        with start_agents(warm_agent) as agent, open_ranks() as make:
            agents = [agent(f"n{number}", *options, str(path)) for number, path in enumerate(disks.paths)]
            ranks = [make(number, node, sizes=SIZES[number]) for number, node in enumerate(agents)]
            for node in agents:
                node.client().configure_disk(msgspec.structs.replace(CONFIG, every=0))
            yield Nodes(agents, ranks, disks)

    return start


@pytest.mark.parametrize(("scheme", "borne"), [("xor", 1), ("rs:2", 2), ("copies:2", 1)])
def test_what_disks_have_lost_comes_from_the_others(nodes: Callable[..., Any], scheme: str, borne: int) -> None:
    for lost in list(combinations(range(NODES), borne))[::2]:
        with nodes(scheme, lost) as found:
            threads = [threading.Thread(target=found.load, args=(rank,)) for rank in range(NODES)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            for rank in range(NODES):
                found.load(rank)  # again: it is there already
            assert not [path for number in lost for path in found.disks.paths[number].rglob("step-*/*")]


def files_of(disks: Disks, rank: int) -> tuple[Path, Path]:
    """Data and parity of a rank."""
    step = disks.runs()[rank].step(EPOCH)
    return step / data_name(rank, 1), step / parity_names(rank, 1)[0]


def test_damaged_files_are_lost_too_while_enough_is_left(nodes: Callable[..., Any]) -> None:
    """Two nodes with a damaged part each need one another's parity."""

    def spoil(disks: Disks) -> None:
        damage(files_of(disks, 1)[0])
        damage(files_of(disks, 2)[0], cut=True)

    with nodes("rs:2", (), spoil) as found:
        threads = [threading.Thread(target=found.load, args=(rank,)) for rank in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120.0)
        assert not any(thread.is_alive() for thread in threads)
        for rank in range(NODES):
            found.load(rank)


@pytest.mark.parametrize("which", [0, 1], ids=["part", "parity"])
def test_too_much_damage_is_an_error_that_names_the_file(nodes: Callable[..., Any], which: int) -> None:
    spoiled: list[Path] = []

    def spoil(disks: Disks) -> None:
        run, path = disks.runs()[1], files_of(disks, 1)[which]
        described = [run.part(EPOCH, 1, 1), run.part(EPOCH, 1, 1, parity=True)][which]
        raw = bytearray(path.read_bytes())
        raw[described.tensors[0].at] ^= 4
        path.write_bytes(raw)
        spoiled.append(path)

    with nodes("xor", (3,), spoil) as found:
        with pytest.raises(NoSuchSlotError) as caught:
            found.load(3)
        for words in (f"node n1: {spoiled[0]}: tensor", "does not hold rank 3", "cannot be decoded"):
            assert words in str(caught.value)
        assert not any(record.committed for record in found.ranks[3].arena.records())


def test_an_agent_that_is_killed_meanwhile_leaves_nothing_and_begins_again(nodes: Callable[..., Any]) -> None:
    with nodes("xor", (0,)) as found:
        found.agents[2].process.send_signal(signal.SIGSTOP)  # whom it then waits for
        failed: list[AgentError] = []

        def load() -> None:
            try:
                found.load(0)
            except AgentError as error:
                failed.append(error)

        thread = threading.Thread(target=load)
        thread.start()
        eventually(lambda: "disks of other nodes are asked" in found.agents[0].log.read_text())
        found.agents[0].kill()
        found.agents[2].process.send_signal(signal.SIGCONT)
        thread.join(60.0)
        assert failed
        assert not list(found.disks.paths[0].rglob("step-*/*"))
        found.agents[0].start()
        found.load(0)
