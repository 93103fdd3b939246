"""Dumps that are damaged, of another time, or of another rank make a diagnosis uncertain, never a wrong one certain."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.detectors.hang.test_flight_recorder import blamed, hung, read


def shifted(raw: dict[str, Any], rank: int, by: int, *, calls: bool = False) -> dict[str, Any]:
    """The dumps, where the counters of one rank are wrong."""
    changed = copy.deepcopy(raw)
    for status in changed[str(rank)]["pg_status"].values():
        status.update({key: value + by for key, value in status.items()})
    for entry in changed[str(rank)]["entries"] if calls else ():
        entry["collective_seq_id"] += by
    return changed


@pytest.mark.parametrize("calls", [False, True])
@pytest.mark.parametrize("by", [-30, -2, 2, 30])
def test_a_dump_of_another_time_or_with_wrong_counters_is_not_used(by: int, *, calls: bool) -> None:
    found = read(shifted(hung(), 6, by, calls=calls))
    assert found.doubts.contradicting == (6,)
    assert blamed(found) == (2,)
    assert not found.sure
    assert "The dump from rank 6 contradicts itself or the others" in found.doubts.texts()[0]


def test_a_file_of_another_rank_is_not_used() -> None:
    raw = hung()
    raw["6"], raw["0"] = raw["0"], raw["6"]
    found = read(raw)
    assert found.doubts.contradicting == (0, 6)
    assert blamed(found) == (2,)
    assert not found.sure


def test_dumps_that_are_an_hour_apart_prove_nothing() -> None:
    raw = hung()
    for entry in raw["6"]["entries"]:
        entry["time_created_ns"] += 3600 * 10**9
    found = read(raw)
    assert not found.sure
    assert found.doubts.texts() == ("The dumps are 60 min apart: they may be of different hangs.",)


def test_a_dump_that_tells_nothing_of_a_group_in_which_others_wait_may_be_the_culprits() -> None:
    raw = hung()
    raw["2"]["pg_status"], raw["2"]["entries"] = {}, []
    found = read(raw)
    assert found.doubts.uncounted == (2,)
    assert not found.sure
    assert blamed(found) == (2,)


def test_a_rank_that_entered_what_its_peers_completed_is_a_culprit_too() -> None:
    """Its CPU ran ahead of its GPU: only its completed counts stand still."""
    raw = hung()
    for status in raw["6"]["pg_status"].values():
        status["last_completed_collective"] -= 1
    for entry in raw["6"]["entries"]:
        entry.update(state="scheduled", retired=False)
    found = read(raw)
    assert blamed(found) == (2, 6)
    assert "entered what others completed" in found.culprits[1].reason
