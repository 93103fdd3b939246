"""The incident life cycle is a table: proposals in any order move an incident only along its edges."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mainstay.service.incidents.lifecycle import TRANSITIONS, IncidentFacts, IncidentState, IncidentTrigger, decide

S, T = IncidentState, IncidentTrigger


def test_the_straight_way_through() -> None:
    state = S.OPEN
    for trigger in (T.RECOVERY_PLANNED, T.RECOVERED, T.VERIFIED, T.QUIET):
        decision = decide(IncidentFacts(state=state, has_plan=True), trigger)
        assert decision.accepted, decision.reason
        state = decision.to
    assert state is S.CLOSED


def test_nothing_leads_out_of_closed() -> None:
    for trigger in T:
        decision = decide(IncidentFacts(state=S.CLOSED, reason="because"), trigger)
        assert not decision.accepted
        assert decision.to is S.CLOSED
        assert decision.reason


def test_every_state_can_be_closed_by_a_human_with_a_reason_only() -> None:
    for state in set(S) - {S.CLOSED}:
        assert decide(IncidentFacts(state=state, reason="seen"), T.CLOSED_BY_OPERATOR).to is S.CLOSED
        refused = decide(IncidentFacts(state=state, reason="  "), T.CLOSED_BY_OPERATOR)
        assert (refused.accepted, refused.rules[-1]) == (False, "reason_given")


def test_an_incident_with_an_active_finding_does_not_fall_asleep() -> None:
    refused = decide(IncidentFacts(state=S.VERIFIED, active_findings=1), T.QUIET)
    assert (refused.accepted, refused.rules[-1]) == (False, "no_active_finding")
    assert decide(IncidentFacts(state=S.VERIFIED), T.QUIET).to is S.CLOSED


def test_time_passing_does_not_verify_restored_parameters() -> None:
    refused = decide(IncidentFacts(state=S.RECOVERED, has_plan=True), T.STAYED_CLEAR)
    assert (refused.accepted, refused.rules[-1]) == (False, "no_pending_recovery")
    assert decide(IncidentFacts(state=S.RECOVERED), T.STAYED_CLEAR).to is S.VERIFIED


def test_a_failed_recovery_asks_for_a_human_and_a_new_plan_takes_that_back() -> None:
    failed = decide(IncidentFacts(state=S.RECOVERING, has_plan=True), T.RECOVERY_FAILED)
    assert (failed.to, failed.needs_operator) == (S.OPEN, True)
    again = decide(IncidentFacts(state=S.OPEN), T.RECOVERY_PLANNED)
    assert (again.to, again.needs_operator) == (S.RECOVERING, False)


def test_closed_is_reachable_from_every_state() -> None:
    for start in S:
        reached, todo = {start}, [start]
        while todo:
            state = todo.pop()
            for (source, _), step in TRANSITIONS.items():
                if source is state and step.to not in reached:
                    reached.add(step.to)
                    todo.append(step.to)
        assert S.CLOSED in reached


@given(
    st.sampled_from(S),
    st.lists(st.tuples(st.sampled_from(T), st.integers(0, 2), st.booleans(), st.sampled_from(["", "x"]))),
)
def test_any_sequence_walks_along_the_table(
    state: IncidentState, proposals: list[tuple[IncidentTrigger, int, bool, str]]
) -> None:
    for trigger, active, has_plan, reason in proposals:
        facts = IncidentFacts(state=state, active_findings=active, has_plan=has_plan, reason=reason)
        decision = decide(facts, trigger)
        assert decision == decide(facts, trigger)
        assert decision.rules
        if decision.accepted:
            assert TRANSITIONS[state, trigger].to is decision.to
        else:
            assert decision.to is state
            assert decision.reason
        state = decision.to
