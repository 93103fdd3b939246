"""Copies into a slot: every byte in its place, for any mixture of sizes, kinds and threads."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from bench.lib_copy import copy_pieces
from mainstay.recovery.memory import slot_copy
from mainstay.recovery.memory.device import StridedCopier
from mainstay.recovery.memory.layout import Layout
from mainstay.recovery.memory.slot_copy import CHUNK, SlotCopier, Zeros, idle_threads

KIB = 1024
LARGE = 1024 * KIB


def state(sizes, seed=0):
    rng = np.random.default_rng(seed)
    pieces = {f"t{i}": rng.integers(1, 256, size, np.uint8) for i, size in enumerate(sizes)}
    return Layout.build({name: ("uint8", piece.shape) for name, piece in pieces.items()}), pieces


def expected(layout, pieces, before):
    out = before.copy()
    for spec in layout.tensors:
        out[spec.offset : spec.offset + spec.nbytes] = pieces[spec.name]
    return out


SIZES = {
    "small": [7, 64, 0, 1000, 3, 65],
    "a transformer's": [LARGE, 3 * KIB, 3 * KIB, 4 * LARGE + 5, 3 * KIB, 300 * KIB, 900 * KIB, 900 * KIB, 20 * KIB],
    "runs of several stages": [500 * KIB] * 9 + [1],
    "almost large": [LARGE - 1, LARGE - 1, LARGE - 1],
    "more than a thread takes": [CHUNK + 77, 5, 2 * CHUNK],
}


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_every_byte_lies_in_its_place(sizes, threads):
    layout, pieces = state(sizes)
    out = np.zeros(layout.nbytes + 100, np.uint8)
    out[layout.nbytes :] = 0xEE
    copy = SlotCopier(threads)
    for _ in range(2):
        copy_pieces(layout, pieces, out, copy)
        assert np.array_equal(out[: layout.nbytes], expected(layout, pieces, np.zeros(layout.nbytes, np.uint8)))
    assert (out[layout.nbytes :] == 0xEE).all(), "nothing is written behind the slot"
    copy.close()


def test_kinds_are_mixed():
    strided = torch.arange(600, dtype=torch.int16).reshape(20, 30).t()
    layout = Layout.build({"a": ("uint8", (5,)), "s": ("int16", (30, 20)), "z": ("uint8", (9,)), "b": ("uint8", (6,))})
    whole = np.arange(11, dtype=np.uint8)
    pieces = {"a": whole[:5], "s": StridedCopier(strided), "z": Zeros(), "b": whole[5:]}
    out = np.full(layout.nbytes, 0xFF, np.uint8)
    copy_pieces(layout, pieces, out)
    views = layout.views(out)
    assert np.array_equal(views["s"], strided.numpy())
    assert not views["z"].any()
    assert np.array_equal(np.concatenate([views["a"], views["b"]]), whole)


def test_wrong_pieces_are_named():
    layout, pieces = state([8, 8])
    out = np.zeros(layout.nbytes, np.uint8)
    with pytest.raises(ValueError, match="'t1' is gone"):
        copy_pieces(layout, {"t0": pieces["t0"]}, out)
    with pytest.raises(ValueError, match="'t1' has 3 bytes, its place has 8"):
        copy_pieces(layout, {"t0": pieces["t0"], "t1": pieces["t1"][:3]}, out)


def test_nobody_writes_any_more_when_a_copy_has_failed():
    class Broken(Zeros):
        def copy_into(self, out):
            raise RuntimeError("gone")

    layout, pieces = state([CHUNK, CHUNK, LARGE])
    before = threading.active_count()
    copy = SlotCopier(3)
    with pytest.raises(RuntimeError, match="gone"):
        copy_pieces(layout, {**pieces, "t2": Broken()}, np.zeros(layout.nbytes, np.uint8), copy)
    copy.close()
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("cores", "ranks", "threads"), [(2, "2", 1), (8, "1", 2), (96, "8", 3), (192, "", 4), (4, "x", 1)]
)
def test_only_idle_cores_copy(monkeypatch, cores, ranks, threads):
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: set(range(cores)))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    assert idle_threads() == threads


def test_workers_copy_past_the_caches(monkeypatch):
    from mainstay.recovery.node.child_processes import _quiet_single_thread

    assert slot_copy.COPY_ENVIRONMENT.items() <= _quiet_single_thread().items()
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.check=1")
    assert _quiet_single_thread()["GLIBC_TUNABLES"] == "glibc.malloc.check=1", "the user's own stays"
