"""What the coordinator learns of the price of a recovery."""

from __future__ import annotations

import pytest

from mainstay.recovery.agent.messages import TransferRates
from mainstay.recovery.controller.planning.measured_costs import MeasuredCosts
from mainstay.recovery.membership.members import RankMember
from mainstay.recovery.planner_input import MachineCosts
from mainstay.recovery.protocol.worker_messages import Resumed
from mainstay.recovery.recovery_plan import RestoreSource


def rank(source: RestoreSource, seconds: float, nbytes: int = 1_000_000) -> RankMember:
    made = RankMember(number=0, node="a")
    made.joined, made.joined_at = 2, 1.5
    made.resumed = Resumed(generation=2, epoch=7, source=source, seconds=seconds, nbytes=nbytes, ok=True)
    return made


def ended(fence: float = 1.1, regroup: float = 2.0) -> dict[str, float]:
    return {"fence": fence, "decide": fence + 0.1, "regroup": regroup}


def test_before_the_first_recovery_there_are_defaults() -> None:
    known = MeasuredCosts().costs([TransferRates(), TransferRates()])
    assert known.fence_s == MachineCosts().fence_s
    assert known.net_Bps == MachineCosts().net_Bps
    assert known.spawn_cold_s < MachineCosts().spawn_cold_s  # forked from a fork server that has imported everything


def test_phases_of_the_first_recovery_are_the_price_of_the_second() -> None:
    prices = MeasuredCosts()
    prices.learn([rank(RestoreSource.LOCAL_SLOT, 0.25)], ended(), acted_at=1.0, generation=2)
    known = prices.costs([])
    assert known.fence_s == pytest.approx(0.1)
    assert known.spawn_warm_s == pytest.approx(0.3)
    assert known.regroup_s == pytest.approx(0.25)
    assert known.copy_Bps == pytest.approx(4e6)


def test_one_slow_recovery_does_not_replace_what_many_said() -> None:
    prices = MeasuredCosts()
    for _ in range(8):
        prices.learn([rank(RestoreSource.LOCAL_SLOT, 0.25)], ended(), acted_at=1.0, generation=2)
    prices.learn([rank(RestoreSource.LOCAL_SLOT, 0.25)], ended(fence=1.5, regroup=2.4), acted_at=1.0, generation=2)
    assert prices.costs([]).fence_s == pytest.approx(0.75 * 0.1 + 0.25 * 0.5)


def test_a_decode_says_nothing_about_the_rate_of_a_copy() -> None:
    prices = MeasuredCosts()
    prices.learn([rank(RestoreSource.PARITY, 0.9)], ended(), acted_at=1.0, generation=2)
    assert prices.costs([]).copy_Bps == MachineCosts().copy_Bps


def test_the_slowest_agent_counts() -> None:
    known = MeasuredCosts().costs(
        [TransferRates(net=5e8, xor=2e9), TransferRates(net=3e8), TransferRates(disk_read=1e8)]
    )
    assert (known.net_Bps, known.xor_Bps, known.disk_Bps) == (3e8, 2e9, 1e8)
