from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import torch
from torch.distributed import checkpoint

from mainstay.recovery.adapters.dcp import MemoryStorage
from mainstay.recovery.adapters.state_dict_store import StateDictStore
from mainstay.recovery.agent import standalone
from mainstay.recovery.agent.errors import ProtocolError
from mainstay.recovery.agent.shm_lifecycle import node_directory
from mainstay.recovery.memory.state import TrainerState
from mainstay.recovery.sdk.standalone import EpochOffer, ResumeChoice, StandaloneSession, choose
from tests.recovery.adapters.torchrun import Agents, agents

NOBODY: frozenset[int] = frozenset()


def test_the_newest_epoch_that_everybody_can_have_is_chosen_in_the_own_slot_where_there_is_one() -> None:
    offers = [EpochOffer((7, 6), "a:1"), EpochOffer((6, 5), "a:1"), EpochOffer((7, 6), "b:1")]
    alone = [[], [], []]
    assert [choose(offers, alone, rank, NOBODY) for rank in range(3)] == [
        ResumeChoice(6, 0),
        ResumeChoice(6, 1),
        ResumeChoice(6, 2),
    ]
    assert choose(offers, alone, 0, frozenset({6})) is None


def test_what_a_rank_has_lost_comes_from_a_replica_but_never_from_somebody_else() -> None:
    offers = [EpochOffer((7, 6), "a:1"), EpochOffer((), "b:1"), EpochOffer((7,), "c:1")]
    assert choose(offers, [[], [], []], 1, NOBODY) is None
    assert choose(offers, [[1], [0], []], 1, NOBODY) == ResumeChoice(7, 0)
    assert choose(offers, [[1], [0], []], 1, frozenset({7})) is None  # rank 2 has nothing older


def test_a_job_is_named_by_the_user_or_by_torchrun_and_a_run_without_name_has_none() -> None:
    assert standalone.job_name({"MAINSTAY_JOB": "llm", "TORCHELASTIC_RUN_ID": "other"}) == "llm"
    assert standalone.job_name({"TORCHELASTIC_RUN_ID": "llm"}) == "llm"
    assert standalone.job_name({"TORCHELASTIC_RUN_ID": "none"}) == ""
    assert standalone.find_agent({}) is None


@pytest.mark.parametrize("content", [b'{"job": "llm"', b'{"job": "\xff"}', b'{"x": ' + b"[" * 100_000])
def test_a_damaged_announcement_is_said_and_training_goes_on_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    monkeypatch.setenv("MAINSTAY_SHM_DIR", str(tmp_path))
    monkeypatch.setenv("MAINSTAY_JOB", "llm")
    monkeypatch.setenv("MAINSTAY_NODE", "a")
    folder = node_directory(tmp_path, "llm", "a")
    folder.mkdir(parents=True)
    (folder / "standalone.json").write_bytes(content)
    with pytest.raises(ProtocolError, match=r"standalone\.json is damaged"):
        standalone.find_agent()
    session = StandaloneSession()
    assert not session.protected
    assert session.resume() == 0
    assert "DEGRADED rank 0 trains without protection" in caplog.text


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agents]:
    with agents(tmp_path / "shm", "a") as kept:
        for name, value in kept.environment("a").items():
            monkeypatch.setenv(name, value)
        yield kept


def model_and_optimizer(seed: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    return model, optimizer


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()


def test_a_new_start_fences_the_old_one_and_finds_what_it_left(job: Agents) -> None:
    model, optimizer = model_and_optimizer(1)
    old = StandaloneSession()
    old.register(TrainerState(model, optimizer))
    assert old.resume() == 0
    for epoch in (1, 2, 3):
        step(model, optimizer)
        old.save(epoch)
        old.settle()
    other, its_optimizer = model_and_optimizer(2)
    new = StandaloneSession()
    assert new.generation > old.generation
    new.register(TrainerState(other, its_optimizer))
    old.save(4)  # a writer that does not know of its end
    old.settle()
    assert new.newest() == 3
    assert new.resume() == 3
    assert torch.equal(other.weight, model.weight)
    assert len(its_optimizer.state) == 2
    old.close()
    new.close()


def test_a_run_that_is_to_begin_anew_leaves_nothing_of_the_older_one(
    job: Agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(StateDictStore()) as store:
        store.save({"w": torch.ones(2)}, 5)
    monkeypatch.setenv("MAINSTAY_RESUME", "0")
    with closing(StateDictStore()) as store:
        assert store.load() is None
    monkeypatch.delenv("MAINSTAY_RESUME")
    with closing(StateDictStore()) as store:
        assert store.load() is None


def test_a_store_gives_the_newest_tree_back_also_after_its_layout_has_grown(job: Agents) -> None:
    with closing(StateDictStore()) as store:
        assert store.load() is None
        store.save({"w": torch.ones(2), "epoch": 1})
        store.save({"w": torch.ones(3), "epoch": 2})
    with closing(StateDictStore()) as store:
        tree = store.load()
    assert tree is not None
    assert tree["epoch"] == 2
    assert torch.equal(tree["w"], torch.ones(3))


@pytest.fixture
def storages() -> Iterator[Callable[..., MemoryStorage]]:
    """Makes storages that are closed at the end."""
    with ExitStack() as stack:
        yield lambda *args, **kwargs: stack.enter_context(closing(MemoryStorage(*args, **kwargs)))


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_dcp_reads_memory_first_then_the_disk_and_refuses_names_of_its_users(
    job: Agents, storages: Callable[..., MemoryStorage], tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoints"
    storage = storages(folder, disk_every=2)
    assert not storage.holds_something()
    for value in (1.0, 2.0, 3.0):
        checkpoint.save({"w": torch.full((4,), value), "n": int(value)}, storage_writer=storage)
    assert [path.name for path in folder.iterdir()] == ["epoch-2"]
    found = {"w": torch.zeros(4), "n": 0}
    checkpoint.load(found, storage_reader=storages(folder))
    assert torch.equal(found["w"], torch.full((4,), 3.0))
    assert found["n"] == 3
    plain = {"w": torch.zeros(4), "n": 0}  # any other tool
    checkpoint.load(plain, storage_reader=checkpoint.FileSystemReader(folder / "epoch-2"))
    assert plain["n"] == 2
    job.lose("a")
    checkpoint.load(found, storage_reader=storages(folder))
    assert torch.equal(found["w"], torch.full((4,), 2.0))
    with pytest.raises(ValueError, match="numbers its epochs itself"):
        storage.reset("mine")
    with pytest.raises(FileNotFoundError, match="none that is whole"):
        storages(tmp_path / "empty").read_metadata()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_dcp_async_saves_are_in_memory_when_the_call_returns(
    job: Agents, storages: Callable[..., MemoryStorage], tmp_path: Path
) -> None:
    state = {"w": torch.ones(4)}
    future = checkpoint.async_save(state, storage_writer=storages(tmp_path / "checkpoints", disk_every=1))
    state["w"].fill_(9)
    assert isinstance(future, Future)
    future.result()
    for reader in (storages(tmp_path / "none"), checkpoint.FileSystemReader(tmp_path / "checkpoints" / "epoch-1")):
        found = {"w": torch.zeros(4)}
        checkpoint.load(found, storage_reader=reader)
        assert torch.equal(found["w"], torch.ones(4))
