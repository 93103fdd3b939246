"""The outbox is sent at least once, in order, and one receiver does not hold up another."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy import select

from mainstay.service.notifications.delivery import Sender, pause
from mainstay.service.notifications.message import Message
from mainstay.service.notifications.models import NotificationRow
from mainstay.service.notifications.receivers.base import Delivery, DeliveryError, ReceiverConfig
from tests.service.conftest import wait_until
from tests.service.notifications.conftest import PlannerBench
from tests.service.notifications.test_planner import RECEIVERS

TWO = RECEIVERS + '[[routes]]\nname = "a"\nreceivers = ["oncall", "lead"]\n'


@dataclass
class Arrivals:
    """What arrived, by receiver; and what its next answers are."""

    messages: list[tuple[str, str, int]] = field(default_factory=list)
    """Path of the URL, title, attempt."""
    faults: dict[str, list[DeliveryError | None]] = field(default_factory=dict)
    gates: dict[str, threading.Event] = field(default_factory=dict)

    def send(self, url: str, message: Message, delivery: Delivery) -> None:
        name = url.rsplit("/", 1)[1]
        if name in self.gates:
            assert self.gates[name].wait(60)
        fault = self.faults[name].pop(0) if self.faults.get(name) else None
        if fault is not None:
            raise fault
        self.messages.append((name, message.title, delivery.attempt))


@pytest.fixture
def arrivals(monkeypatch: pytest.MonkeyPatch) -> Arrivals:
    """In the place of the network: receivers over real HTTP have tests of their own."""
    made = Arrivals()

    def send(self: Any, message: Message, delivery: Delivery) -> None:
        made.send(self.url, message, delivery)

    from mainstay.service.notifications.receivers import RECEIVERS as KINDS

    webhook = next(kind for kind in KINDS if kind.model_fields["kind"].annotation.__args__ == ("webhook",))
    assert issubclass(webhook, ReceiverConfig)
    monkeypatch.setattr(webhook, "send", send)
    return made


@pytest.fixture
def sender(bench: PlannerBench) -> Iterator[Sender]:
    made = Sender(bench.services)
    yield made
    made.close()


def drain(sender: Sender, bench: PlannerBench, seconds: float = 0.0) -> None:
    """Let time pass and make the attempts that are due."""
    bench.clock.advance(seconds)
    sender.run_once()
    wait_until(lambda: all(future.done() for future in sender.running.values()))


def states(bench: PlannerBench) -> list[tuple[str, str, int, str]]:
    return [(row.receiver, row.state, row.attempts, row.error) for row in bench.rows()]


def test_messages_arrive_once_in_their_order(bench: PlannerBench, sender: Sender, arrivals: Arrivals) -> None:
    bench.configure(TWO)
    incident = bench.open("first")
    bench.run()
    bench.open("second")
    bench.run()
    bench.end(incident)
    bench.run()
    for _ in range(4):
        drain(sender, bench)
    titles = [title for name, title, _ in arrivals.messages if name == "a"]
    assert titles == ["first", "second", "first"]
    assert len(arrivals.messages) == 6
    assert {state for _, state, _, _ in states(bench)} == {"delivered"}


def test_a_refusal_is_tried_again_with_growing_pauses(bench: PlannerBench, sender: Sender, arrivals: Arrivals) -> None:
    bench.configure(TWO)
    arrivals.faults["a"] = [DeliveryError("answers 503", again=True)] * 3
    bench.open("down")
    bench.run()
    drain(sender, bench)
    assert states(bench) == [("oncall", "pending", 1, "answers 503"), ("lead", "delivered", 1, "")]
    drain(sender, bench, 0.9)
    assert states(bench)[0][2] == 1, "the first pause is a second"
    drain(sender, bench, 0.2)
    assert states(bench)[0][2] == 2
    drain(sender, bench, 1.5)
    assert states(bench)[0][2] == 2
    drain(sender, bench, 0.6)
    drain(sender, bench, 4.1)
    assert states(bench)[0] == ("oncall", "delivered", 4, "")
    assert arrivals.messages[-1] == ("a", "down", 4), "the attempt is named: it may be a repeat"


def test_pauses() -> None:
    assert [pause(attempts) for attempts in (1, 2, 3, 9, 10, 1000)] == [1.0, 2.0, 4.0, 256.0, 300.0, 300.0]


def test_what_is_refused_for_good_is_not_tried_again(bench: PlannerBench, sender: Sender, arrivals: Arrivals) -> None:
    bench.configure(TWO)
    arrivals.faults["a"] = [DeliveryError("answers 404: no such channel", again=False)]
    bench.open("one")
    bench.run()
    drain(sender, bench)
    drain(sender, bench, 10_000)
    assert states(bench)[0] == ("oncall", "failed", 1, "answers 404: no such channel")
    bench.open("two")
    bench.run()
    drain(sender, bench)
    assert ("a", "two", 1) in arrivals.messages, "the next message is tried"


def test_after_a_day_a_message_is_given_up(bench: PlannerBench, sender: Sender, arrivals: Arrivals) -> None:
    bench.configure(TWO)
    arrivals.faults["a"] = [DeliveryError("no answer", again=True)] * 1000
    bench.open("one")
    bench.run()
    drain(sender, bench)
    drain(sender, bench, 23 * 3600)
    assert states(bench)[0][1] == "pending"
    drain(sender, bench, 2 * 3600)
    assert states(bench)[0][1] == "failed"


def test_a_slow_receiver_does_not_delay_another(bench: PlannerBench, sender: Sender, arrivals: Arrivals) -> None:
    bench.configure(TWO)
    arrivals.gates["a"] = threading.Event()
    bench.open("one")
    bench.run()
    sender.run_once()
    bench.open("two")
    bench.run()
    sender.run_once()
    wait_until(lambda: [title for name, title, _ in arrivals.messages if name == "b"] == ["one", "two"])
    arrivals.gates["a"].set()
    wait_until(lambda: all(future.done() for future in sender.running.values()))
    drain(sender, bench)
    assert [title for name, title, _ in arrivals.messages if name == "a"] == ["one", "two"]


def test_a_later_message_of_a_group_waits_for_the_earlier_one(
    bench: PlannerBench, sender: Sender, arrivals: Arrivals
) -> None:
    bench.configure(TWO)
    arrivals.faults["a"] = [DeliveryError("no answer", again=True)]
    incident = bench.open("one")
    bench.run()
    drain(sender, bench)
    bench.end(incident)
    bench.run()
    drain(sender, bench)
    assert [name for name, _, _ in arrivals.messages] == ["b", "b"], "resolved must not come before opened"
    drain(sender, bench, 2)
    drain(sender, bench)
    assert [(row.event, row.state) for row in bench.rows() if row.receiver == "oncall"] == [
        ("opened", "delivered"),
        ("resolved", "delivered"),
    ]


def test_an_attempt_whose_end_is_unknown_is_repeated(bench: PlannerBench, sender: Sender, arrivals: Arrivals) -> None:
    bench.configure(TWO)
    bench.open("one")
    bench.run()
    with bench.services.database.session() as session:  # what a killed process leaves behind
        row = session.scalars(select(NotificationRow).where(NotificationRow.receiver == "oncall")).one()
        row.attempts, row.due_at = 1, bench.clock.now() + 11
    drain(sender, bench)
    assert [name for name, _, _ in arrivals.messages] == ["b"]
    drain(sender, bench, 12)
    assert arrivals.messages[-1] == ("a", "one", 2)


def test_a_receiver_that_was_removed_is_named(bench: PlannerBench, sender: Sender, arrivals: Arrivals) -> None:
    bench.configure(TWO)
    bench.open("one")
    bench.run()
    bench.configure(RECEIVERS.replace("[receivers.oncall]", "[receivers.other]"))
    drain(sender, bench)
    assert states(bench)[0] == ("oncall", "failed", 1, "the configuration has no such receiver any more")
    assert [name for name, _, _ in arrivals.messages] == ["b"]
