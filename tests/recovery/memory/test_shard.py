"""Sharded state: ranges cover everything once, and D slots together are the whole state, bit for bit."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from mainstay.recovery.memory import varlen_buffer
from mainstay.recovery.memory.arena import Arena
from mainstay.recovery.memory.digest import digest, digest_of
from mainstay.recovery.memory.global_slices import DeclaredSlices, GlobalSlice
from mainstay.recovery.memory.layout import Layout
from mainstay.recovery.memory.shard import Rows, ShardedState, cut_rows, share
from mainstay.recovery.memory.snapshot import SnapshotWriter
from mainstay.recovery.memory.state import TrainerState


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 9)), min_size=1, max_size=8), st.integers(1, 12))
def test_shares_cover_every_row_once_and_are_balanced(shapes, count):
    layout = Layout.build({f"param.{i}": ("float32", shape) for i, shape in enumerate(shapes)})
    shares = [share(layout, index, count) for index in range(count)]
    for name, spec in layout.specs().items():
        rows = sorted((r[name].first, r[name].count) for r in shares if name in r)
        assert [first for first, _ in rows] == [0, *(first + n for first, n in rows[:-1])]
        assert rows[-1][0] + rows[-1][1] == spec.shape[0]
    sizes = [sum(r.count * layout.specs()[n].shape[1] * 4 for n, r in some.items()) for some in shares]
    widest = max(width for _, width in shapes) * 4
    total = sum(spec.nbytes for spec in layout.tensors)
    assert all(abs(size - total / count) <= widest + 1 for size in sizes)


@given(st.lists(st.integers(1, 1024), min_size=1, max_size=9), st.integers(1, 300))
def test_shares_are_as_their_weights(weights, rows):
    layout = Layout.build({"param.a": ("float32", (rows, 2)), "optim.a": ("float64", (rows, 2))})
    shares = [share(layout, index, len(weights), weights) for index in range(len(weights))]
    for name in layout.specs():
        assert sum(some[name].count for some in shares if name in some) == rows
    sizes = [sum(r.count * (8 if n == "param.a" else 16) for n, r in some.items()) for some in shares]
    assert all(abs(n - 24 * rows * w / sum(weights)) <= 17 for n, w in zip(sizes, weights, strict=True))


def trainer(seed, *, steps=3):
    """A model with a batch norm, whose running statistics are each replica's own; a strided parameter; momentum."""
    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(33, 17), torch.nn.BatchNorm1d(17), torch.nn.Linear(17, 3))
    model[2].weight = torch.nn.Parameter(torch.randn(17, 3).t())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for step in range(steps):
        torch.manual_seed(step)
        optimizer.zero_grad()
        model(torch.randn(8, 33)).square().sum().backward()
        optimizer.step()
    torch.manual_seed(seed)
    model[1](torch.randn(8, 17))
    return model, optimizer, {"count": {"value": seed}}


def snapshot(directory, state, name):
    arena = Arena.create(directory / name, rank=0, layout=state.layout, slots=2)
    writer = SnapshotWriter(arena, state)
    writer.start(1, 1)
    writer.wait()
    writer.close()
    return arena


def parts_of(model, optimizer):
    moments = [t for values in optimizer.state.values() for _, t in sorted(values.items())]
    return [*model.state_dict().values(), *moments]


@pytest.mark.parametrize(("count", "tp"), [(2, 1), (3, 1), (5, 1), (3, 2)])
def test_replicas_slots_together_are_the_state(tmp_path, count, tp):
    def whole_state(*parts):
        return TrainerState(*parts, sharding=DeclaredSlices({"0.weight": 1}, tp - 1, tp))

    trainers = [trainer(seed) for seed in range(count)]
    states = [ShardedState(whole_state(*t), i, count) for i, t in enumerate(trainers)]
    whole = whole_state(*trainers[0])
    assert len({state.layout.digest for state in states}) == count
    assert [states[0].layout_of(i).digest for i in range(count)] == [state.layout.digest for state in states]
    assert all(state.layout.nbytes < whole.layout.nbytes for state in states)

    arenas = [snapshot(tmp_path, state, f"{i}.arena") for i, state in enumerate(states)]
    slots = [arena.slot_bytes(arena.newest().slot)[: arena.newest().nbytes] for arena in arenas]
    shared = np.empty(states[0].shared.nbytes, np.uint8)
    for index, slot in enumerate(slots):
        states[0].put(index, slot, shared)

    lost = count - 1
    model, optimizer, extra = trainer(99, steps=1)
    torch.manual_seed(0)
    ShardedState(whole_state(model, optimizer, extra), lost, count).join(shared, slots[lost])
    for ours, theirs in zip(parts_of(model, optimizer), parts_of(*trainers[lost][:2]), strict=True):
        assert torch.equal(ours, theirs)
    assert extra == {"count": {"value": lost}}, "what is a rank's own comes from its own slot"
    assert not torch.equal(model[1].running_mean, trainers[0][0][1].running_mean)


def test_rewind_needs_only_what_is_the_ranks_own():
    model, optimizer, extra = trainer(1)
    state = ShardedState(TrainerState(model, optimizer, extra), 0, 2)
    pieces = state.freeze()
    before = model[1].running_mean.clone()
    drawn = torch.rand(3)
    model[1](torch.randn(8, 17))
    state.rewind(pieces)
    assert torch.equal(model[1].running_mean, before)
    assert torch.equal(torch.rand(3), drawn)


def test_an_optimizer_that_has_not_stepped_stays_so(tmp_path):
    states, slots = [], []
    for index in range(2):
        state = ShardedState(TrainerState(*trainer(0, steps=0)), index, 2)
        arena = snapshot(tmp_path, state, f"{index}.arena")
        states.append(state)
        slots.append(arena.slot_bytes(arena.newest().slot)[: arena.newest().nbytes])
    shared = np.empty(states[0].shared.nbytes, np.uint8)
    for index, slot in enumerate(slots):
        states[0].put(index, slot, shared)
    model, optimizer, extra = trainer(3, steps=2)
    ShardedState(TrainerState(model, optimizer, extra), 0, 2).join(shared, slots[0])
    assert not optimizer.state


def test_one_slot_alone_is_refused():
    state = ShardedState(TrainerState(*trainer(0)), 1, 2)
    with pytest.raises(ValueError, match="one part of 2"):
        state.load({})
    with pytest.raises(ValueError, match="replica 2 of 2"):
        ShardedState(TrainerState(*trainer(0)), 2, 2)
    with pytest.raises(ValueError, match="no parameters"):
        ShardedState(TrainerState(torch.nn.Identity(), None), 0, 2)


def test_a_digest_of_parts_is_that_of_the_whole():
    data = np.random.default_rng(0).integers(0, 256, 100_000, np.uint8)
    assert digest_of([data[:7], data[7:7], data[7:]]) == digest(data)


def test_shares_by_hand():
    """Six rows of 8 bytes, a scalar, nothing, and two rows: 80 bytes among two, then among more than there is."""
    layout = Layout.build(
        {
            "param.a": ("float32", (6, 2)),
            "buffer.b": ("float32", (99,)),
            "param.c": ("int64", ()),
            "param.d": ("float32", (0, 4)),
            "optim.e": ("float32", (2, 3)),
        }
    )
    assert share(layout, 0, 2) == {"param.a": Rows(0, 5), "param.d": Rows(0, 1)}
    assert share(layout, 1, 2) == {"param.a": Rows(5, 1), "param.c": Rows(0, 1), "optim.e": Rows(0, 2)}
    for count in (3, 20):
        rows = [rows for index in range(count) for rows in share(layout, index, count).items()]
        covered = {name: sorted((r.first, r.count) for n, r in rows if n == name) for name in layout.specs()}
        assert sum(count for _, count in covered["param.a"]) == 6
        assert covered["param.c"] == [(0, 1)]
        assert not covered["buffer.b"], "buffers are each rank's own"
    spec = layout.specs()["param.a"]
    part = cut_rows(spec, Rows(5, 1), GlobalSlice((12, 4), (6, 2)))
    assert (part.shape, part.start, part.stop, part.place) == ((1, 2), 40, 48, GlobalSlice((12, 4), (11, 2)))
    assert cut_rows(spec, Rows(0, 6), None).place is None
    for index, count in ((-1, 2), (2, 2)):
        with pytest.raises(ValueError, match=f"replica {index} of {count}"):
            ShardedState(TrainerState(*trainer(0)), index, count)
    for weights in ((1, 2, 3), (0, 1)):
        with pytest.raises(ValueError, match=r"weights .* for 2 replicas"):
            share(layout, 0, 2, weights)


def test_what_varies_in_length_fits_to_the_last_byte():
    room = np.full(8, 9, np.uint8)
    varlen_buffer.write_bytes(b"abcd", room)
    assert room.tobytes() == b"\x04\0\0\0abcd"
    assert varlen_buffer.read_bytes(room) == b"abcd"
    assert varlen_buffer.needed(b"abcd") == 8
    with pytest.raises(ValueError, match="take 5 bytes, their room is 4"):
        varlen_buffer.write_bytes(b"abcde", room)
    varlen_buffer.write_bytes(b"x", room)
    assert room.tobytes() == b"\x01\0\0\0xbcd", "what lies behind stays"
