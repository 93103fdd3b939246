"""From changes of incidents and from timers to messages in the outbox."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from mainstay.service.incidents.lifecycle import IncidentTrigger
from mainstay.service.notifications.models import NotificationGroupRow
from mainstay.service.notifications.planner import Planner
from mainstay.service.stream import changes
from tests.service.notifications.conftest import START, PlannerBench

RECEIVERS = """
[receivers.oncall]
kind = "webhook"
url = "https://hooks.example/a"
[receivers.lead]
kind = "webhook"
url = "https://hooks.example/b"
[receivers.pager]
kind = "pagerduty"
routing_key_secret = "pager"
"""
ALL = RECEIVERS + '[[routes]]\nname = "all"\nreceivers = ["oncall"]\n'


def test_an_incident_is_told_once_and_its_end_too(bench: PlannerBench) -> None:
    bench.configure(ALL)
    incident = bench.open()
    assert bench.run() == [("oncall", "opened")]
    assert bench.run() == []
    assert bench.run(100) == []
    bench.end(incident)
    assert bench.run() == [("oncall", "resolved")]
    assert bench.run(100_000) == []


def test_without_a_configuration_nothing_is_told_and_old_incidents_stay_untold(bench: PlannerBench) -> None:
    old = bench.open()
    assert bench.run() == []
    bench.clock.advance(1)
    bench.configure(ALL)
    assert bench.run() == [], "it began before"
    bench.end(old)
    assert bench.run() == []


def test_a_restart_repeats_and_loses_nothing(bench: PlannerBench) -> None:
    bench.configure(ALL)
    bench.open("first")
    bench.run()
    bench.open("second")
    bench.planner = Planner(bench.services)
    assert bench.run() == [("oncall", "opened")]
    assert bench.message().title == "second"
    bench.planner = Planner(bench.services)
    assert bench.run() == []


@pytest.mark.parametrize("pruned", [False, True])
def test_an_end_that_no_process_saw_is_sent_after_a_restart(bench: PlannerBench, *, pruned: bool) -> None:
    bench.configure(ALL)
    incident = bench.open()
    assert bench.run() == [("oncall", "opened")]
    bench.end(incident)
    if pruned:
        bench.settle()
        with bench.services.database.session() as session:
            changes.prune(session, 0)
    bench.planner = Planner(bench.services)
    assert bench.run() == [("oncall", "resolved")]
    bench.planner = Planner(bench.services)
    assert bench.run() == []


def test_a_failure_between_reading_and_writing_loses_nothing(
    bench: PlannerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.configure(ALL)
    bench.open()
    with monkeypatch.context() as patch:
        patch.setattr("mainstay.service.notifications.config.move_cursor", _fail)
        with pytest.raises(RuntimeError):
            bench.run()
    assert bench.run() == [("oncall", "opened")]


def _fail(*_: object) -> None:
    raise RuntimeError("the database went away")


def test_changes_that_were_pruned_make_all_open_incidents_count(bench: PlannerBench) -> None:
    bench.configure(ALL)
    told = bench.open("told")
    bench.run()
    bench.open("pruned")
    bench.settle()
    with bench.services.database.session() as session:
        changes.prune(session, 0)
    bench.change(told, summary="more")
    bench.planner = Planner(bench.services)
    assert bench.run() == [("oncall", "opened")]
    assert bench.message().title == "pruned"


def test_what_becomes_worse_is_told_but_not_what_stays_as_it_is(bench: PlannerBench) -> None:
    bench.configure(ALL)
    incident = bench.open(severity="warning")
    bench.run()
    bench.change(incident, summary="again")
    assert bench.run(100) == []
    bench.change(incident, severity="critical")
    assert bench.run() == [("oncall", "updated")]
    bench.change(incident, needs_operator=True)
    assert bench.run(10) == [], "not within a minute of the last message"
    assert bench.run(60) == [("oncall", "updated")]
    assert bench.message().incidents[0].action == "An operator must act"


def test_a_route_for_operators_tells_when_one_is_needed(bench: PlannerBench) -> None:
    bench.configure(RECEIVERS + '[[routes]]\nname = "a"\nreceivers = ["oncall"]\nneeds_operator = true\n')
    incident = bench.open()
    assert bench.run() == []
    bench.propose(incident, IncidentTrigger.OVERDUE)
    assert bench.run() == [("oncall", "opened")]
    bench.propose(incident, IncidentTrigger.RECOVERY_PLANNED)
    assert bench.run(100) == [], "it stays in its group until it is over"
    bench.end(incident)
    assert bench.run() == [("oncall", "resolved")]


def test_a_group_is_one_message_with_its_count(bench: PlannerBench) -> None:
    bench.configure(
        RECEIVERS + '[[routes]]\nname = "a"\nreceivers = ["oncall"]\ngroup_by = ["rack"]\nwait_seconds = 2\n'
    )
    for number in range(8):
        bench.add_node(f"n{number}", rack="r1" if number < 7 else "r2")
    ids = [bench.open(f"incident {number}", node=f"n{number}") for number in range(8)]
    assert bench.run() == [], "the group waits for more"
    assert bench.run(2) == [("oncall", "opened")] * 2
    first = bench.rows()[0]
    assert first.title == "[critical] incident 6 (and 6 more)"
    assert len(first.message["incidents"]) == 5
    for incident in ids[:6]:
        bench.end(incident)
    assert bench.run(1) == [], "one is left"
    bench.end(ids[6])
    assert bench.run() == [("oncall", "resolved")]


def test_what_ends_before_it_was_told_is_never_told(bench: PlannerBench) -> None:
    bench.configure(RECEIVERS + '[[routes]]\nname = "a"\nreceivers = ["oncall"]\nwait_seconds = 10\n')
    incident = bench.open()
    bench.run()
    bench.end(incident)
    assert bench.run(20) == []


def test_it_is_repeated_and_escalated_until_it_is_acknowledged(bench: PlannerBench) -> None:
    bench.configure(
        RECEIVERS
        + """
[[routes]]
name = "a"
receivers = ["oncall", "pager"]
repeat_minutes = 10
escalate_minutes = 15
escalate_to = ["lead"]
"""
    )
    incident = bench.open()
    assert bench.run() == [("oncall", "opened"), ("pager", "opened")]
    assert bench.run(599) == []
    assert bench.run(1) == [("oncall", "repeated"), ("pager", "repeated")]
    assert bench.run(300) == [("lead", "escalated")]
    assert bench.run(600) == [("oncall", "repeated"), ("pager", "repeated"), ("lead", "repeated")]
    bench.acknowledge(incident)
    assert bench.run() == [("pager", "acknowledged")], "only what keeps an alert of its own must know"
    assert bench.run(10_000) == []
    bench.end(incident)
    assert bench.run() == [("oncall", "resolved"), ("pager", "resolved"), ("lead", "resolved")]
    assert bench.incident(incident).acknowledged_by == "ada"


def test_who_acknowledged_something_that_comes_back_is_asked_again(bench: PlannerBench) -> None:
    bench.configure(ALL)
    incident = bench.open()
    bench.run()
    bench.acknowledge(incident)
    bench.propose(incident, IncidentTrigger.CLEARED)
    bench.propose(incident, IncidentTrigger.RELAPSED)
    row = bench.incident(incident)
    assert (row.acknowledged_at, row.acknowledged_by) == (None, None)


def test_a_message_says_where_and_links(bench: PlannerBench) -> None:
    bench.configure(ALL)
    bench.add_node("n17", rack="r4")
    incident = bench.open(node="n17", device="gpu3")
    bench.run()
    message = bench.message()
    assert message.incidents[0].where == "node n17 · GPU 3 (serial S-n17) · rack r4"
    assert message.url == f"https://mainstay.example/incidents/{incident}"
    assert message.acknowledge_url is not None
    assert message.acknowledge_url.startswith("https://mainstay.example/acknowledge#")
    assert message.created_at == START


def test_a_route_that_is_removed_still_tells_the_end(bench: PlannerBench) -> None:
    bench.configure(ALL + "repeat_minutes = 1\n")
    incident = bench.open()
    bench.run()
    bench.configure(RECEIVERS)
    assert bench.run(600) == []
    bench.end(incident)
    assert bench.run() == [("oncall", "resolved")]


def test_receivers_that_want_no_end_get_none(bench: PlannerBench) -> None:
    bench.configure(ALL.replace("[receivers.lead]", "send_resolved = false\n[receivers.lead]"))
    incident = bench.open()
    bench.run()
    bench.end(incident)
    assert bench.run() == []


def test_many_incidents_of_four_racks_are_four_messages_in_a_minute(bench: PlannerBench) -> None:
    bench.configure(RECEIVERS + '[[routes]]\nname = "a"\nreceivers = ["oncall"]\ngroup_by = ["rack"]\n')
    for number in range(4):
        bench.add_node(f"n{number}", rack=f"r{number}")
    sent = []
    for second in range(60):
        for number in range(4):
            bench.open(node=f"n{number}")
        sent += bench.run(1 if second else 0)
    assert sent == [("oncall", "opened")] * 4
    with bench.services.database.reading() as session:
        assert len(list(session.scalars(select(NotificationGroupRow)))) == 4
