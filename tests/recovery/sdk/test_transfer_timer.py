"""Transfer times between two ends of one host, and the report about an end on another host."""

from __future__ import annotations

import pytest

from mainstay.recovery.sdk.transfer_timer import TransferTimer

JOB = "test-links"


@pytest.fixture
def ends() -> tuple[TransferTimer, TransferTimer]:
    return TransferTimer(JOB, 1, 0), TransferTimer(JOB, 1, 1)


def test_a_sender_that_was_late_does_not_lengthen_a_transfer(ends: tuple[TransferTimer, TransferTimer]) -> None:
    sender, receiver = ends
    for ready_to_send, ready_to_receive, ended in ((10.0, 9.0, 10.5), (20.0, 20.2, 20.5), (30.0, 29.0, 30.4)):
        sender.sent(1, 0, ready_to_send)
        receiver.received(0, 0, ready_to_receive, ended, 100, exact=True)
    assert receiver.cut() == ({0: pytest.approx(0.4)}, {0: 300.0})
    assert receiver.cut() == ({}, {})
    sender.close()
    receiver.close()


def test_transfers_are_matched_by_tag_and_order(ends: tuple[TransferTimer, TransferTimer]) -> None:
    sender, receiver = ends
    sender.sent(1, 7, 10.0)
    sender.sent(1, 8, 20.0)
    receiver.received(0, 8, 0.0, 20.25, 1, exact=True)
    assert receiver.cut()[0] == {0: 0.25}
    receiver.received(0, 7, 0.0, 10.5, 1, exact=True)
    assert receiver.cut()[0] == {0: 0.5}
    sender.close()
    receiver.close()


def test_of_another_host_the_shortest_is_told(ends: tuple[TransferTimer, TransferTimer]) -> None:
    _, receiver = ends
    for seconds in (0.5, 0.2, 0.9):
        receiver.received(5, 0, 1.0, 1.0 + seconds, 10, exact=True)
    assert receiver.cut() == ({5: pytest.approx(0.2)}, {5: 30.0})
    for end in ends:
        end.close()


def test_a_lost_stamp_is_not_taken_for_another_host(ends: tuple[TransferTimer, TransferTimer]) -> None:
    sender, receiver = ends
    sender.sent(1, 0, 1.0)
    receiver.received(0, 0, 0.0, 1.5, 1, exact=True)
    receiver.cut()
    receiver.received(0, 0, 0.0, 9.0, 1, exact=True)  # its stamp never came
    assert receiver.cut() == ({}, {0: 1.0})
    sender.close()
    receiver.close()


def test_data_that_was_there_already_came_nobody_knows_when(ends: tuple[TransferTimer, TransferTimer]) -> None:
    sender, receiver = ends
    sender.sent(1, 0, 1.0)
    receiver.received(0, 0, 0.0, 9.0, 8, exact=False)
    assert receiver.cut() == ({}, {0: 8.0})
    sender.close()
    receiver.close()


def test_generations_do_not_hear_each_other() -> None:
    old, new = TransferTimer(JOB, 1, 0), TransferTimer(JOB, 2, 1)
    old.sent(1, 0, 5.0)
    new.received(0, 0, 1.0, 1.5, 1, exact=True)
    assert new.cut()[0] == {0: 0.5}
    old.close()
    new.close()


def test_a_name_that_is_taken_costs_the_stamps_and_nothing_else() -> None:
    first, second = TransferTimer(JOB, 3, 0), TransferTimer(JOB, 3, 0)
    second.sent(1, 0, 1.0)
    second.received(1, 0, 1.0, 2.0, 4, exact=True)
    assert second.cut() == ({1: 1.0}, {1: 4.0})
    first.close()
    second.close()
