"""Effective training time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstay.service.jobs.accounting import Outage, ettr


def ratio(*outages: Outage, last_step: int | None = 90, until: float = 200.0) -> float | None:
    return ettr(started_at=100.0, until=until, last_step=last_step, outages=outages)


def test_nothing_lost() -> None:
    assert ratio() == 1.0


def test_an_outage_costs_its_time() -> None:
    assert ratio(Outage(failed_at=120.0, recovered_at=130.0)) == pytest.approx(0.9)


def test_repeated_steps_cost_their_share_of_the_time_up() -> None:
    assert ratio(Outage(failed_at=120.0, recovered_at=130.0, steps_lost=10)) == pytest.approx(0.9 * 90 / 100)


def test_overlapping_outages_count_once_and_open_ones_until_now() -> None:
    outages = (Outage(failed_at=120.0, recovered_at=150.0), Outage(failed_at=140.0, recovered_at=160.0))
    assert ratio(*outages) == pytest.approx(0.6)
    assert ratio(Outage(failed_at=150.0, recovered_at=None)) == pytest.approx(0.5)


def test_what_cannot_be_known_is_none() -> None:
    assert ratio(until=100.0) is None
    assert ratio(Outage(failed_at=1.0, recovered_at=2.0, steps_lost=1), last_step=None) is None


@given(
    st.lists(
        st.builds(
            Outage,
            failed_at=st.floats(0, 300),
            recovered_at=st.none() | st.floats(0, 300),
            steps_lost=st.integers(0, 99),
        )
    )
)
def test_a_share_is_a_share(outages: list[Outage]) -> None:
    value = ratio(*outages)
    assert value is not None
    assert 0.0 <= value <= 1.0
