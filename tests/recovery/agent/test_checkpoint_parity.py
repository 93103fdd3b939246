"""Agents with a disk each: what is left of the disks makes a step whole, or nothing claims to."""

from __future__ import annotations

import contextlib
import functools
import shutil
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from mainstay.recovery.agent import checkpoint_parity
from mainstay.recovery.agent.checkpoint_parity import TRIES, CheckpointParity
from mainstay.recovery.agent.messages import Inventory
from mainstay.recovery.checkpoint.catalog import RunDirectory
from mainstay.recovery.checkpoint.job_summary import CheckpointFacts, with_job
from mainstay.recovery.checkpoint.manifest import (
    CheckpointError,
    DiskConfig,
    data_name,
    parity_names,
    run_name,
    write_checked,
)
from mainstay.recovery.checkpoint.retention import RetentionPolicy
from mainstay.recovery.checkpoint.slot_reader import read_slot
from mainstay.recovery.checkpoint.summary import CheckpointStep, RunReader
from mainstay.recovery.checkpoint.writer import SlotOrder, Writer, WriteRequest
from mainstay.recovery.checkpoint_rebuild import rebuild_step
from mainstay.recovery.memory.records import Word
from tests.fork_server.processes import Warm
from tests.recovery.agent.conftest import contents, eventually, open_ranks, start_agents
from tests.recovery.checkpoint.conftest import Ranks
from tests.recovery.checkpoint.test_checkpoint_cli import call
from tests.recovery.checkpoint.test_steps import Killed, MortalWriter

pytestmark = [pytest.mark.processes, pytest.mark.timeout(400), pytest.mark.xdist_group("checkpoint-parity")]

RUN = "run-1"
NODES = 4
SIZES = [(20_001, 17, 64 * number) for number in range(NODES)]
CONFIG = DiskConfig(run=RUN, generation=1, every=2, dp=1, pp=NODES, tp=1, parity=True)
SLOW = 240.0
"""Seconds for four processes to begin from nothing on a machine that is busy."""


class Disks:
    """Of four nodes of one rank each; every second epoch is protected, and written."""

    def __init__(self, home: Path) -> None:
        self.paths = [home / f"disk-{number}" for number in range(NODES)]

    def runs(self) -> list[RunDirectory]:
        return [RunDirectory(path / RUN) for path in self.paths]

    def is_protected(self, epoch: int) -> bool:
        return all(len(run.parts(epoch)) > 1 or any(run.parity(epoch)) for run in self.runs())

    def collect(self, whole: Path, lost: tuple[int, ...] = ()) -> Path:
        """What is left of the disks, in one directory."""
        for number, path in enumerate(self.paths):
            if number not in lost:
                shutil.copytree(path, whole, dirs_exist_ok=True)
        return whole

    def data(self, rank: int) -> bytes:
        return (self.runs()[rank].step(2) / data_name(rank, 1)).read_bytes()

    @contextlib.contextmanager
    def train(
        self, warm: Warm, scheme: str
    ) -> Iterator[tuple[Callable[..., None], Callable[[], None], Callable[[], dict[str, Inventory]]]]:
        """Agents and trainers: what makes one epoch, what has the group in another order, a generation later, and what
        agents say that they hold."""
        options = ["--parity-interval", "2", "--checkpoint-interval", "2", "--scrub-interval", "0"]
        with start_agents(warm) as start, open_ranks() as make:
            nodes = [start(f"n{i}", *options, "--checkpoint-dir", str(path)) for i, path in enumerate(self.paths)]
            ranks = [make(number, node, sizes=SIZES[number]) for number, node in enumerate(nodes)]
            group = tuple(node.member(number) for number, node in enumerate(nodes))

            def regroup(generation: int = 2) -> None:
                for node in nodes:
                    node.client(generation).configure_parity((group if generation == 1 else group[::-1],), 2, scheme)

            regroup(1)
            for node in nodes:
                node.client().configure_disk(CONFIG)

            def step(epoch: int, *, wait: bool = True) -> None:
                for rank in ranks:
                    rank.step(epoch)
                if wait:
                    eventually(lambda: all(r.arena.word(Word.PARITY_EPOCH) == epoch for r in ranks), SLOW)
                    eventually(lambda: self.is_protected(epoch), SLOW)

            yield step, regroup, lambda: {node.node: node.client().inventory() for node in nodes}
            for path, node in zip(self.paths, nodes, strict=True):  # the memory too, for a look at it
                for arena in node.directory.glob("parity-*.arena"):
                    shutil.copy(arena, path.with_suffix(".arena"))


def step_2_by_scheme(warm_agent: Warm, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Disks]:
    """Make the disks with step 2, once for each scheme; not to be changed."""

    @functools.cache
    def make(scheme: str) -> Disks:
        disks = Disks(tmp_path_factory.mktemp("disks"))
        with disks.train(warm_agent, scheme) as (step, _, _):
            step(2)
        return disks

    return make


@pytest.fixture(scope="module")
def step_2(warm_agent: Warm, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Disks]:
    return step_2_by_scheme(warm_agent, tmp_path_factory)


@pytest.mark.parametrize(("scheme", "borne"), [("xor", 1), ("rs:2", 2)])
def test_every_loss_that_the_scheme_bears_is_decoded_and_none_beyond(
    step_2: Callable[[str], Disks], tmp_path: Path, scheme: str, borne: int
) -> None:
    disks = step_2(scheme)
    for lost in (each for count in range(borne + 1) for each in combinations(range(NODES), count)):
        whole = disks.collect(tmp_path / f"without-{lost}", lost)
        manifest, decoded = rebuild_step(whole)
        assert (manifest.epoch, tuple(decoded)) == (2, lost)
        for rank in range(NODES):
            assert (whole / RUN / "step-00000002" / data_name(rank, 1)).read_bytes() == disks.data(rank)
    assert rebuild_step(whole) == (manifest, [])
    for lost in list(combinations(range(NODES), borne + 1))[:3]:
        whole = disks.collect(tmp_path / f"without-{lost}", lost)
        with pytest.raises(CheckpointError, match=f"{borne + 1} of 4 parts .* are lost; it covers {borne}$"):
            rebuild_step(whole)
        assert not list(RunDirectory(whole / RUN).complete())


def test_copies_are_parts_on_another_disk(step_2: Callable[[str], Disks], tmp_path: Path) -> None:
    disks = step_2("copies:2")
    for lost in range(NODES):
        whole = disks.collect(tmp_path / f"without-{lost}", (lost,))
        assert rebuild_step(whole)[1] == []
        assert (whole / RUN / "step-00000002" / data_name(lost, 1)).read_bytes() == disks.data(lost)


def damage(path: Path, *, cut: bool = False) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 3] ^= 4
    path.write_bytes(raw[: len(raw) // 2] if cut else raw)


def test_a_damaged_file_counts_as_lost(step_2: Callable[[str], Disks], tmp_path: Path) -> None:
    disks = step_2("rs:2")
    for number, name in enumerate(parity_names(1, 1)):
        step = disks.collect(tmp_path / f"without-{name}", (0,)) / RUN / "step-00000002"
        damage(step / name, cut=number == 0)
        assert rebuild_step(step.parents[1])[1] == [0]
    damage(step / data_name(2, 1))  # in a step that is complete
    damage(step / data_name(3, 1), cut=True)
    with pytest.raises(CheckpointError, match="2 of 4 parts and 2 of 4 parity files are lost; it covers 2"):
        rebuild_step(step.parents[1])
    step = disks.collect(tmp_path / "two-parts") / RUN / "step-00000002"
    damage(step / data_name(2, 1))
    damage(step / data_name(3, 1), cut=True)
    assert rebuild_step(step.parents[1])[1] == [2, 3]
    assert all((step / data_name(rank, 1)).read_bytes() == disks.data(rank) for rank in (2, 3))


def test_parity_that_is_written_while_its_writer_is_killed_is_whole_or_nothing(
    step_2: Callable[[str], Disks], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each write, fsync and rename in turn."""
    disks = step_2("xor")
    whole = disks.collect(tmp_path / "whole", (0,))
    run, names = RunDirectory(whole / RUN), parity_names(1, 1)
    layouts = next(run.parity(2)).layouts
    for name in names:
        (run.step(2) / name).unlink()
    arena = str(disks.paths[1].with_suffix(".arena"))
    order = SlotOrder(arena=arena, rank=1, epoch=2, generation=1, layouts=layouts)
    request = WriteRequest(directory=str(whole), job="job", config=CONFIG, keep=RetentionPolicy(), slots=(order,))
    moment, found = 0, []
    while not found:
        with monkeypatch.context() as patch, contextlib.suppress(Killed):
            MortalWriter(patch, moment)
            Writer()._write_slot(order, request, direct=False)
        try:
            found = rebuild_step(whole)[1]
        except CheckpointError as error:
            assert "1 of 4 parts and 2 of 4 parity files are lost; it covers 1" in str(error)  # noqa: PT017
            assert not list(run.complete())
        moment += 1
    assert moment > 4
    assert (run.step(2) / data_name(0, 1)).read_bytes() == disks.data(0)


def test_an_operator_sees_what_was_made_and_why_not(
    step_2: Callable[[str], Disks], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    disks = step_2("xor")
    whole = disks.collect(tmp_path / "whole", (2,))
    code, out, _ = call(capsys, "rebuild", str(whole))
    assert (code, out) == (0, f"step 2 of run {RUN} is complete; ranks from parity: 2\n")
    assert call(capsys, "verify", str(whole))[0] == 0
    step, mib = whole / RUN / "step-00000002", 1 << 20
    parity, data = (sum(file.stat().st_size for file in step.glob(name)) for name in ("parity-*.data", "*.distcp"))
    assert f"{(data + parity) / mib:.1f} MiB" in (listed := call(capsys, "ls", str(whole))[1])
    assert f"complete (local; {parity / mib:.1f} MiB of it parity)" in listed
    assert f"{parity / mib:.1f} MiB  parity files beside it\n" in call(capsys, "du", str(step))[1]
    assert f'"parity_bytes": {parity},' in call(capsys, "du", str(step), "--json")[1]
    code, _, err = call(capsys, "rebuild", str(disks.collect(tmp_path / "less", (1, 2))))
    assert (code, err.count("\n")) == (2, 1)
    assert "lacks the parts of ranks [1, 2]: parity group [0, 1, 2, 3]: 2 of 4 parts" in err
    code, _, err = call(capsys, "rebuild", str(whole), "--step", "9")
    assert (code, "has no step 9" in err) == (2, True)


def test_disks_that_are_copied_while_agents_write_never_make_a_false_step(warm_agent: Warm, tmp_path: Path) -> None:
    """As a kill of everything at that moment leaves them, and worse: files of one disk are of several moments."""
    disks, found = Disks(tmp_path), set()
    with disks.train(warm_agent, "rs:2") as (step, _, _):
        step(2)
        for epoch in range(3, 23):
            step(epoch, wait=False)
            copy = tmp_path / f"at-{epoch}"
            with contextlib.suppress(shutil.Error):  # a file went meanwhile
                disks.collect(copy, ((epoch * 7) % NODES, (epoch * 3 + 1) % NODES))
            try:
                manifest, _ = rebuild_step(copy)
            except CheckpointError:
                continue
            found.add(manifest.epoch)
            run = RunDirectory(copy / RUN)
            for entry in manifest.parts:
                layout = (part := run.part(manifest.epoch, entry.rank, entry.generation)).layout()
                slot = np.empty(layout.nbytes, np.uint8)
                read_slot(run, part, layout, slot)
                views, expected = layout.views(slot), contents(entry.rank, manifest.epoch, SIZES[entry.rank])
                assert all(np.array_equal(views[name], value) for name, value in expected.items())
    assert found


def test_parity_that_the_disk_refuses_is_written_as_soon_as_it_does_not(warm_agent: Warm, tmp_path: Path) -> None:
    disks = Disks(tmp_path)
    blocked = disks.runs()[1].step(2) / parity_names(1, 1)[0]
    blocked.mkdir(parents=True)
    with disks.train(warm_agent, "xor") as (step, _, held):
        step(2, wait=False)
        said = "checkpoint parity of rank 1: epoch 2 was not written"
        eventually(lambda: any(words.startswith(said) for words in held()["n1"].degraded), SLOW)
        blocked.rmdir()
        eventually(lambda: disks.is_protected(2), SLOW)
        eventually(lambda: not held()["n1"].degraded, SLOW)
    assert rebuild_step(disks.collect(tmp_path / "whole", (0,)))[1] == [0]


def test_a_write_that_always_fails_is_given_up_and_stays_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_parity, "RETRY_SECONDS", 0.0)
    arena, degraded = Ranks(tmp_path, dp=1).step(0, 2), {}
    arena.set_word(Word.DISK_FLOOR, 2)
    store = SimpleNamespace(
        all=lambda: [(0, arena)], copies=SimpleNamespace(all=lambda: [(0, arena)]), degraded=degraded
    )
    parity = CheckpointParity(SimpleNamespace(store=store, rows=SimpleNamespace(all=list)))  # type: ignore[arg-type]
    count = 0
    for _ in range(2 * TRIES):
        for subject, order in parity.orders(lambda _: True):
            degraded[subject] = f"epoch {order.epoch} was not written: no"
            count += 1
    assert (count, list(degraded)) == (TRIES, ["checkpoint parity of rank 0"])


def find_step(run: RunDirectory, inventories: dict[str, Inventory]) -> CheckpointStep:
    """The only step, as the coordinator reports it."""
    job = CheckpointFacts(
        held={node: one.disk for node, one in inventories.items()},
        parity={node: one.disk_parity for node, one in inventories.items()},
        world_size=NODES,
    )
    (listed,) = with_job(RunReader(run).read(), job)
    return listed


def test_parity_of_a_step_stays_beside_that_of_other_groups_and_goes_with_it_and_with_what_the_job_has_gone_back_from(
    warm_agent: Warm, tmp_path: Path
) -> None:
    disks = Disks(tmp_path)
    with disks.train(warm_agent, "xor") as (step, regroup, held):
        step(2)
        survived = "the loss of any 1 of its 4 nodes, with parity on the disks"
        eventually(lambda: find_step(disks.runs()[0], held()).survives == survived, SLOW)
        files = [(data_name(rank, 1), parity_names(rank, 1)[0]) for rank in range(NODES)]
        data, parity = (
            sum((run.step(2) / name[at]).stat().st_size for run, name in zip(disks.runs(), files, strict=True))
            for at in (0, 1)
        )
        listed = find_step(disks.runs()[0], held())
        assert (listed.disk_bytes, listed.parity_bytes) == (data + parity, parity)
        assert parity > 0
        step(4)
        whole = disks.collect(tmp_path / "whole", (3,))
        regroup()
        eventually(lambda: all(len(list(run.parity(4))) == 2 for run in disks.runs()), SLOW)
        assert rebuild_step(disks.collect(tmp_path / "regrouped", (0,)))[1] == [0]
        step(6)
        eventually(lambda: all(run.steps() == [4, 6] for run in disks.runs()), SLOW)
    back = msgspec.structs.replace(RunDirectory(whole / RUN).info(), generation=2, returns=((2, 2),))
    write_checked(whole / RUN / run_name(2), back)
    with pytest.raises(CheckpointError, match="lacks the parts of ranks"):
        rebuild_step(whole, step=4)
    assert rebuild_step(whole)[0].epoch == 2
