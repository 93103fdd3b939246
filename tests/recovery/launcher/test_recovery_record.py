"""A source that failed is left aside, and believed again only where nothing else is left, and not for ever."""

from __future__ import annotations

from mainstay.recovery.controller.planning.planner_input_builder import BadSource
from mainstay.recovery.controller.recovery_record import RecoveryRecord
from mainstay.recovery.recovery_plan import RestoreSource

BAD = BadSource(rank=1, epoch=54, source=RestoreSource.PARITY)


def test_what_failed_is_tried_again_a_few_times() -> None:
    recovery = RecoveryRecord("id", 0.0, 54, 0.0, lambda _kind, _data: None)
    assert not recovery.is_uncounted(), "nothing has failed: there is nothing to try again"
    for _ in range(3):
        recovery.bad.add(BAD)
        assert recovery.is_uncounted()
        assert recovery.bad == set()
    recovery.bad.add(BAD)
    assert not recovery.is_uncounted()
    assert recovery.bad == {BAD}
