"""The host memory formula, and shortages said in words an operator can act on."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import numpy as np
import pytest

from bench.lib_budget import host_bytes
from mainstay.recovery.agent.capacity_check import HOST_MEMORY, check_capacity
from mainstay.recovery.agent.degraded import Degradations
from mainstay.recovery.agent.messages import GroupMember
from mainstay.recovery.agent.store import ArenaStore, ArenaStoreState
from mainstay.recovery.memory.budget import FreeMemory, redundancy_bytes
from mainstay.recovery.memory.layout import Layout

GIB = 2**30
S = 12 * GIB
PLENTY = FreeMemory(shared=None, group=None)


@pytest.mark.parametrize(
    ("slots", "parity", "group", "times"),
    [(2, 0, 0, 2.0), (2, 2, 8, 2 + 2 / 3), (3, 2, 8, 3 + 2 / 3), (3, 1, 2, 5.0), (3, 1, 4, 3 + 2 / 3)],
)
def test_the_formula(slots, parity, group, times):
    assert host_bytes(S, slots=slots, parity=parity, group=group) == pytest.approx(times * S)


def test_copies_cost_two_slots_each():
    assert host_bytes(S, slots=2, copies=2) == 4 * S, "GEMINI: twice m·S"
    assert redundancy_bytes(S) == 0


@pytest.mark.parametrize("wrong", [{"parity": 2, "group": 2}, {"parity": 3, "group": 2}, {"parity": -1}, {"copies": 0}])
def test_impossible_schemes_are_refused(wrong):
    with pytest.raises(ValueError, match="make no scheme"):
        redundancy_bytes(S, **wrong)


def test_each_shortage_names_what_is_short_and_what_to_do():
    room = FreeMemory(shared=GIB, group=2 * GIB)
    assert room.shortage(GIB) == ""
    words = room.shortage(3 * GIB)
    assert "shared memory has 1.00 GiB left, 3.00 GiB are needed: make /dev/shm larger" in words
    assert "control group has 2.00 GiB left" in words
    assert PLENTY.shortage(1 << 60) == "", "no limit is none"


@pytest.mark.parametrize(
    ("limit", "used", "left"), [("1000", "400", 600), ("max", "400", None), ("100", "400", 0), ("", "", None)]
)
def test_the_control_groups_limit(tmp_path: Path, limit, used, left):
    (tmp_path / "memory.max").write_text(limit)
    (tmp_path / "memory.current").write_text(used)
    assert FreeMemory.measure(tmp_path, control=tmp_path).group == left
    assert FreeMemory.measure(tmp_path, control=tmp_path / "none").group is None


def test_what_is_there_is_looked_up(tmp_path: Path):
    status = os.statvfs(tmp_path)
    assert FreeMemory.measure(tmp_path).shared == pytest.approx(status.f_bavail * status.f_frsize, rel=0.2)


def test_an_agent_says_beforehand_what_will_not_fit(tmp_path: Path, caplog):
    store = ArenaStore(tmp_path, slots=2)
    layout = Layout.build({"x": ("uint8", (64 * 1024,))})
    store.open(0, layout)
    group = tuple(GroupMember(node=f"n{i}", endpoint=f"h:{i}", rank=i) for i in range(2))
    store.config = ArenaStoreState(groups=(group,), every=1, scheme="xor")
    small = FreeMemory(shared=100_000, group=None)
    with caplog.at_level(logging.WARNING, "mainstay.agent"):
        for _ in range(3):
            check_capacity(store, small)
    assert "are needed" in store.degraded[HOST_MEMORY]
    assert [r.levelname for r in caplog.records] == ["ERROR"], "said once"
    (tmp_path / "parity-0-a.arena").write_bytes(np.zeros(128 * 1024, np.uint8).tobytes())
    check_capacity(store, small)
    assert HOST_MEMORY not in store.degraded, "what is there already needs no more room"
    assert "works again" in caplog.text
    store.config = ArenaStoreState(groups=(group,), every=1, scheme="copies:2")
    check_capacity(store, FreeMemory(shared=0, group=None))
    assert HOST_MEMORY not in store.degraded
    store.config = ArenaStoreState()
    check_capacity(store, FreeMemory(shared=0, group=None))
    assert HOST_MEMORY not in store.degraded


def test_degradations_are_said_when_they_come_and_when_they_go(caplog):
    found = Degradations()
    with caplog.at_level(logging.WARNING, "mainstay.agent"):
        found["disk"] = "epoch 1 late"
        found["disk"] = "epoch 2 late"
        assert found.pop("disk", None) == "epoch 2 late"
        assert found.pop("disk", None) is None
        found["disk"] = "again"
        found.clear()
    said = [record.getMessage() for record in caplog.records]
    assert said == ["DEGRADED disk: epoch 1 late", "disk works again", "DEGRADED disk: again"]


@pytest.mark.parametrize(
    ("state", "parity", "group", "copies", "nbytes"),
    [(9, 1, 2, 1, 18), (10, 2, 5, 1, 14), (10, 0, 0, 3, 40), (10, 1, 3, 2, 30), (0, 1, 2, 1, 0), (10, 3, 5, 1, 30)],
)
def test_redundancy_by_hand(state, parity, group, copies, nbytes):
    """2 t S / (g - t), rounded up, and 2 (M - 1) S."""
    assert redundancy_bytes(state, parity=parity, group=group, copies=copies) == nbytes
    with pytest.raises(ValueError, match="-1 bytes, 0 rows and 1 copies in a group of 0 make no scheme"):
        redundancy_bytes(-1)


@pytest.mark.parametrize(("limit", "left"), [((1 << 60) - 1, (1 << 60) - 6), (1 << 60, None)])
def test_the_limit_of_a_control_group_of_version_one(tmp_path: Path, limit, left):
    folder = tmp_path / "memory"
    folder.mkdir()
    (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
    (folder / "memory.usage_in_bytes").write_text("5\n")
    assert FreeMemory.measure(tmp_path, control=tmp_path).group == left


@pytest.mark.parametrize(
    ("left", "said"), [(2**28, "0.25 GiB"), (2**28 - 1, "256.0 MiB"), (0, "0.0 MiB"), (3 * 2**29, "1.50 GiB")]
)
def test_bytes_are_said_in_gibibytes_from_a_quarter_on(left, said):
    words = FreeMemory(shared=None, group=left).shortage(left + 1)
    assert words.startswith(f"the control group has {said} left, ")
    assert FreeMemory(shared=None, group=left).shortage(left) == ""
