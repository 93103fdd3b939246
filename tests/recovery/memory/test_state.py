"""What a snapshot takes, a restore puts back bit for bit, at any moment of an optimizer's life."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
import xxhash

from bench.lib_slots import read_slot
from mainstay.recovery.memory.arena import Arena
from mainstay.recovery.memory.digest import digest, digest_of
from mainstay.recovery.memory.global_slices import DeclaredSlices
from mainstay.recovery.memory.rng_state import RngState
from mainstay.recovery.memory.snapshot import SnapshotWriter
from mainstay.recovery.memory.state import TrainerState, restore
from mainstay.recovery.memory.tensor_restore import restore_tensors
from tests.recovery.memory.loading import load_state

OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.1),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=torch.tensor(1e-2), amsgrad=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2),
    "dampened": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, dampening=0.5),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.5, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
}


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(8, 16)
        self.norm = torch.nn.BatchNorm1d(16)
        self.last = torch.nn.Linear(16, 4).to(torch.bfloat16)
        self.last.weight.data = self.last.weight.data.t().contiguous().t()  # not contiguous on purpose

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.nn.functional.dropout(self.norm(self.first(x)), 0.2)
        return self.last(hidden.to(torch.bfloat16)).float()


def _train(model, optimizer, steps: int, scheduler=None) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        noise = torch.randn(4, 8) + random.random() + np.random.standard_normal()  # noqa: NPY002 - what user code does
        model(noise).square().mean().backward()
        optimizer.step()
        if scheduler:
            scheduler.step()


def _fingerprint(model, optimizer) -> list[bytes]:
    tensors = [*model.parameters(), *model.buffers()]
    tensors += [
        v for p in model.parameters() for _, v in sorted(optimizer.state.get(p, {}).items()) if torch.is_tensor(v)
    ]
    return [t.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() for t in tensors]


def _snapshot(tmp_path: Path, state, epoch: int) -> Arena:
    arena = Arena.create(tmp_path / "rank-0.arena", rank=0, layout=state.layout, slots=2)
    writer = SnapshotWriter(arena, state)
    writer.start(epoch, 1)
    writer.wait()
    writer.close()
    return arena


def _seed() -> None:
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002 - as above


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("before", [0, 1, 3])
def test_a_restored_run_is_bit_equal_to_the_uninterrupted_one(tmp_path, kind, before):
    _seed()
    model = Net()
    optimizer = OPTIMIZERS[kind](model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    notes = {"best": float("inf"), "seen": []}
    state = TrainerState(model, optimizer, {"scheduler": scheduler, "notes": notes})
    _train(model, optimizer, before, scheduler)
    notes["seen"].append(before)
    arena = _snapshot(tmp_path, state, before)
    _train(model, optimizer, 3, scheduler)
    expected = _fingerprint(model, optimizer)

    torch.manual_seed(99)  # another process: other weights, other generators
    other = Net()
    other_optimizer = OPTIMIZERS[kind](other.parameters())
    other_scheduler = torch.optim.lr_scheduler.StepLR(other_optimizer, 2, gamma=0.5)
    other_notes: dict = {}
    other_state = TrainerState(other, other_optimizer, {"scheduler": other_scheduler, "notes": other_notes})
    assert other_state.layout == state.layout
    restore(arena, before, other_state)
    assert other_notes == {"best": float("inf"), "seen": [before]}
    _train(other, other_optimizer, 3, other_scheduler)
    assert _fingerprint(other, other_optimizer) == expected


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_going_back_in_the_same_process_is_bit_equal(tmp_path, kind):
    _seed()
    model = Net()
    optimizer = OPTIMIZERS[kind](model.parameters())
    state = TrainerState(model, optimizer)
    arena = _snapshot(tmp_path, state, 0)  # before the first step: no optimizer state yet
    _train(model, optimizer, 3)
    expected = _fingerprint(model, optimizer)
    load_state(state, read_slot(arena, 0))
    assert not optimizer.state or kind == "adagrad"
    _train(model, optimizer, 3)
    assert _fingerprint(model, optimizer) == expected


def test_sparse_gradients_continue_to_the_same_bits(tmp_path):
    """SparseAdam makes the state of a parameter at its first sparse gradient, and takes no other."""

    def train(model: torch.nn.Embedding, optimizer: torch.optim.Optimizer) -> list[bytes]:
        for step in range(3):
            optimizer.zero_grad()
            model(torch.tensor([step, 5, 5])).square().sum().backward()
            optimizer.step()
        return _fingerprint(model, optimizer)

    model, other = (torch.nn.Embedding(8, 3, sparse=True) for _ in range(2))
    optimizer, other_optimizer = (torch.optim.SparseAdam(one.parameters(), lr=1e-2) for one in (model, other))
    state = TrainerState(model, optimizer)
    assert not optimizer.state
    train(model, optimizer)
    arena = _snapshot(tmp_path, state, 3)
    restore(arena, 3, TrainerState(other, other_optimizer))
    assert train(other, other_optimizer) == train(model, optimizer)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_attaching_changes_nothing(kind):
    _seed()
    model = Net()
    model.first.weight.data[0, 0] = -0.0
    optimizer = OPTIMIZERS[kind](model.parameters())
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("pre"))
    before = _fingerprint(model, optimizer)
    groups = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    TrainerState(model, optimizer)
    assert _fingerprint(model, optimizer) == before
    assert [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups] == groups
    assert not calls
    assert not optimizer.state or kind == "adagrad"  # which makes its state when it is made itself
    assert all(p.grad is None for p in model.parameters())


def test_an_optimizer_that_needs_a_closure_is_refused_by_name():
    model = Net()
    with pytest.raises(ValueError, match="LBFGS"):
        TrainerState(model, torch.optim.LBFGS(model.parameters()))


def test_buffers_and_generators_are_those_of_the_moment_of_start(tmp_path):
    """They change during forward, which is when the copy runs."""
    _seed()
    model = Net()
    state = TrainerState(model, None)
    pieces = state.freeze()
    frozen = {n: bytes(pieces[n]) for n in state.layout.specs() if n.startswith(("buffer.", "rng."))}
    model(torch.randn(4, 8))
    random.random()
    assert {n: bytes(pieces[n]) for n in frozen} == frozen


@pytest.mark.parametrize(
    ("extra", "word"),
    [({"x": {"object": object()}}, "object"), ({"x": {"long": "y" * 10**6}}, "room"), ({"x": 3}, "neither")],
)
def test_extras_that_cannot_be_kept_are_refused(extra, word):
    with pytest.raises(ValueError, match=word):
        TrainerState(Net(), None, extra).freeze()


def test_a_snapshot_of_another_model_is_refused_before_anything_changes(tmp_path):
    arena = _snapshot(tmp_path, TrainerState(Net(), None), 1)
    other = torch.nn.Linear(3, 3)
    before = other.weight.detach().clone()
    with pytest.raises(ValueError, match=r"param\.weight"):
        load_state(TrainerState(other, None), read_slot(arena, 1))
    assert torch.equal(other.weight, before)


def test_a_snapshot_of_another_place_in_the_model_is_refused(tmp_path):
    """The layout is the same on all tensor-parallel ranks; their tensors are not."""

    def state(rank):
        return TrainerState(Net(), None, sharding=DeclaredSlices({"first.weight": 0}, rank, 2))

    arena = _snapshot(tmp_path, state(0), 1)
    load_state(state(0), read_slot(arena, 1))
    with pytest.raises(ValueError, match="its tensors are cut at other places"):
        load_state(state(1), read_slot(arena, 1))


def test_many_snapshots_of_tensors_that_stay_or_are_put_elsewhere(tmp_path):
    """What is remembered from one snapshot to the next must never be where a tensor was before."""
    _seed()
    model = Net()
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    state = TrainerState(model, optimizer)
    arena = Arena.create(tmp_path / "rank-0.arena", rank=0, layout=state.layout, slots=2)
    writer = SnapshotWriter(arena, state)
    for epoch in range(1, 9):
        _train(model, optimizer, 1)
        if epoch == 4:  # other memory under the same parameter, and under its moments
            model.first.weight.data = model.first.weight.data.clone() + 1
            optimizer.load_state_dict(optimizer.state_dict())
        if epoch == 6:  # not contiguous any more
            model.first.weight.data = model.first.weight.data.t().contiguous().t()
        writer.start(epoch, 1)
        writer.wait()
        fresh = Net()
        other = OPTIMIZERS["adamw"](fresh.parameters())
        restore(arena, epoch, TrainerState(fresh, other))
        assert _fingerprint(fresh, other) == _fingerprint(model, optimizer), epoch
    writer.close()


def test_large_tensors_come_back_side_by_side(tmp_path, monkeypatch):
    """The same bits, for any number of threads."""
    monkeypatch.setattr("mainstay.recovery.memory.tensor_restore._WORTH_THREADS", 1)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(3))
    _seed()
    model = Net()
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    state = TrainerState(model, optimizer)
    _train(model, optimizer, 2)
    arena = _snapshot(tmp_path, state, 2)
    expected = _fingerprint(model, optimizer)
    fresh = Net()
    fresh_optimizer = OPTIMIZERS["adamw"](fresh.parameters())
    restore(arena, 2, TrainerState(fresh, fresh_optimizer))
    assert _fingerprint(fresh, fresh_optimizer) == expected


def test_scalars_have_64_kib_and_256_bytes_a_tensor():
    """Net has six parameters and three buffers."""
    specs = TrainerState(Net(), None).layout.specs()
    assert specs["mainstay.blob"].nbytes == 65536 + 9 * 256


def test_an_error_of_a_restoring_thread_is_raised():
    with pytest.raises(RuntimeError, match="invalid for input of size 3"):
        restore_tensors([(torch.zeros(2), np.zeros(3, np.float32))])


def test_rewinding_brings_back_the_optimizers_numbers():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    _train(model, optimizer, 1)
    optimizer.state[model.first.weight]["note"] = 5
    state = TrainerState(model, optimizer)
    pieces = state.freeze()
    optimizer.param_groups[0]["lr"] = 0.25
    optimizer.state[model.first.weight]["note"] = 6
    state.rewind(pieces)
    assert (optimizer.param_groups[0]["lr"], optimizer.state[model.first.weight]["note"]) == (0.5, 5)


@pytest.mark.parametrize("size", [0, 1, 8, 9, 21])
def test_a_digest_by_pieces_is_that_of_the_whole(monkeypatch, size):
    data = bytes(range(size))
    whole = xxhash.xxh3_64_intdigest(data)
    monkeypatch.setattr("mainstay.recovery.memory.digest.CHUNK", 8)
    assert digest(data) == digest(np.frombuffer(data, np.uint8)) == whole
    assert digest_of([np.frombuffer(data, np.uint8)]) == whole


def test_a_rank_takes_over_the_generator_of_another_device(monkeypatch):
    held = {3: torch.tensor([1, 2], dtype=torch.uint8), 5: torch.tensor([0, 0], dtype=torch.uint8)}
    monkeypatch.setattr("torch.cuda.get_rng_state", held.__getitem__)
    monkeypatch.setattr("torch.cuda.set_rng_state", lambda state, device: held.__setitem__(device, state))
    before, after = RngState((3,)), RngState((5,))
    assert dict(before.describe()) == dict(after.describe())
    after.restore(*before.capture())
    assert held[5].tolist() == [1, 2]
