"""The peer matrix: every ordered pair, and a time that counts both sides."""

from __future__ import annotations

import pytest

from mainstay.probes.benchmarks.base import Device
from mainstay.probes.benchmarks.peer import Peer


def tiny() -> Peer:
    return Peer(Peer.Config(budget_seconds=0.0, mebibytes=1))


def test_eight_gpus_have_56_pairs_and_their_access() -> None:
    names = [m.name for m in tiny().metrics(Device(kind="cuda", model="any", count=8))]
    assert len(names) == 57
    assert {"gpu0_to_7_1MiB", "gpu7_to_0_1MiB", "access"} <= set(names)


def test_one_gpu_has_its_twin() -> None:
    names = [m.name for m in tiny().metrics(Device(kind="cuda", model="any", count=1))]
    assert names == ["gloo0_to_1_1MiB", "gloo1_to_0_1MiB"]


def test_a_rank_needs_a_peer() -> None:
    with pytest.raises(ValueError, match="host_ranks must be at least 2"):
        Peer.Config(host_ranks=1)
