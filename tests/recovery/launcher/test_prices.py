"""What the coordinator learns of the price of a recovery."""

from __future__ import annotations

import pytest

from recovery.agent.messages import Rates
from recovery.launcher.membership import Rank
from recovery.launcher.prices import Prices
from recovery.launcher.worker_messages import Resumed
from recovery.plan import RestoreSource
from recovery.situation import Costs


def rank(source: RestoreSource, seconds: float, nbytes: int = 1_000_000) -> Rank:
    made = Rank(number=0, node="a")
    made.joined, made.joined_at = 2, 1.5
    made.resumed = Resumed(generation=2, epoch=7, source=source, seconds=seconds, nbytes=nbytes, ok=True)
    return made


def ended(fence: float = 1.1, regroup: float = 2.0) -> dict[str, float]:
    return {"fence": fence, "decide": fence + 0.1, "regroup": regroup}


def test_before_the_first_recovery_there_are_defaults() -> None:
    known = Prices().costs([Rates(), Rates()])
    assert known.fence_s == Costs().fence_s
    assert known.net_Bps == Costs().net_Bps
    assert known.spawn_cold_s < Costs().spawn_cold_s  # forked from a nursery that has imported everything


def test_phases_of_the_first_recovery_are_the_price_of_the_second() -> None:
    prices = Prices()
    prices.learn([rank(RestoreSource.LOCAL_SLOT, 0.25)], ended(), acted_at=1.0, generation=2)
    known = prices.costs([])
    assert known.fence_s == pytest.approx(0.1)
    assert known.spawn_warm_s == pytest.approx(0.3)
    assert known.regroup_s == pytest.approx(0.25)
    assert known.copy_Bps == pytest.approx(4e6)


def test_one_slow_recovery_does_not_replace_what_many_said() -> None:
    prices = Prices()
    for _ in range(8):
        prices.learn([rank(RestoreSource.LOCAL_SLOT, 0.25)], ended(), acted_at=1.0, generation=2)
    prices.learn([rank(RestoreSource.LOCAL_SLOT, 0.25)], ended(fence=1.5, regroup=2.4), acted_at=1.0, generation=2)
    assert prices.costs([]).fence_s == pytest.approx(0.75 * 0.1 + 0.25 * 0.5)


def test_a_decode_says_nothing_about_the_rate_of_a_copy() -> None:
    prices = Prices()
    prices.learn([rank(RestoreSource.PARITY, 0.9)], ended(), acted_at=1.0, generation=2)
    assert prices.costs([]).copy_Bps == Costs().copy_Bps


def test_the_slowest_agent_counts() -> None:
    known = Prices().costs([Rates(net=5e8, xor=2e9), Rates(net=3e8), Rates(disk_read=1e8)])
    assert (known.net_Bps, known.xor_Bps, known.disk_Bps) == (3e8, 2e9, 1e8)
