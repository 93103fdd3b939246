"""The node life cycle is a table: proposals in any order move a node only along its edges."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainstay.probes.core_types import HealthState, Verdict
from mainstay.service.fleet.lifecycle import (
    GOES_ON,
    IN_SERVICE,
    OUT_OF_SERVICE,
    TRANSITIONS,
    NodeFacts,
    NodeTrigger,
    Owner,
    decide,
    rest,
)

S, T, W, V = HealthState, NodeTrigger, Owner, Verdict


@st.composite
def facts(draw: st.DrawFn) -> NodeFacts:
    return NodeFacts(
        state=draw(st.sampled_from(S)),
        owner=draw(st.sampled_from(W)),
        by=draw(st.sampled_from(W)),
        reason=draw(st.sampled_from(["", "because"])),
        suspected=draw(st.booleans()),
        silent=draw(st.booleans()),
        jobs=draw(st.sampled_from([(), ("j1",)])),
        evicting=draw(st.integers(0, 1)),
        verdict=draw(st.sampled_from([None, *V])),
        needed=draw(st.integers(0, 3)),
        power=draw(st.integers(0, 3)),
    )


def after(known: NodeFacts, trigger: NodeTrigger) -> tuple[HealthState, Owner]:
    """Where a proposal leaves the node, and whose it is then."""
    decision = decide(known, trigger)
    if not decision.accepted:
        return known.state, known.owner
    return decision.to, known.owner if trigger in GOES_ON else known.by


def test_the_straight_way_round() -> None:
    known, walked = NodeFacts(state=S.UNKNOWN, verdict=V.PASS), []
    way = (
        (T.REPORTED, {}), (T.FINDING_OPENED, {"suspected": True}), (T.DRAIN, {}), (T.EMPTIED, {}),
        (T.VALIDATE, {"power": 2}),
        (T.PASSED, {"suspected": False, "power": 2}),
    )  # fmt: skip
    for trigger, changes in way:
        known = replace(known, **changes)
        decision = decide(known, trigger)
        assert decision.accepted, decision.reason
        known = replace(known, state=decision.to)
        walked.append(decision.to)
    assert walked == [S.HEALTHY, S.SUSPECT, S.DRAINING, S.QUARANTINED, S.VALIDATING, S.HEALTHY]


@given(facts(), st.sampled_from(T))
def test_every_decision_follows_the_table_and_says_why(known: NodeFacts, trigger: NodeTrigger) -> None:
    decision = decide(known, trigger)
    assert decision == decide(known, trigger)
    assert decision.rules
    step = TRANSITIONS.get((known.state, trigger))
    if decision.accepted:
        assert step is not None
        assert known.by in step.movers
        assert decision.to is (rest(known) if step.to is None else step.to)
    else:
        assert decision.to is known.state
        assert decision.reason


@given(st.lists(st.tuples(facts(), st.sampled_from(T)), max_size=40))
def test_out_of_quarantine_only_a_pass_leads(proposals: list[tuple[NodeFacts, NodeTrigger]]) -> None:
    """Any history: once quarantined, a node is in service again only by PASSED, with PASS as the current verdict."""
    state, owner = S.QUARANTINED, W.SYSTEM
    for known, trigger in proposals:
        now = replace(known, state=state, owner=owner)
        before, (state, owner) = state, after(now, trigger)
        if state in IN_SERVICE:
            assert (before, trigger) == (S.VALIDATING, T.PASSED)
            assert now.verdict is V.PASS
            assert not now.evicting
            return
        assert state in {S.QUARANTINED, S.VALIDATING}, "a quarantined node is not merely drained again"


@given(st.lists(st.tuples(facts(), st.sampled_from(T)), max_size=40), st.sampled_from([W.OPERATOR, W.EXTERNAL]))
def test_the_machine_never_undoes_what_others_decided(
    proposals: list[tuple[NodeFacts, NodeTrigger]], whose: Owner
) -> None:
    """Any history that only the machine writes: a drain of others stays out of service, and stays theirs."""
    state, owner = S.DRAINING, whose
    for known, trigger in proposals:
        now = replace(known, state=state, owner=owner, by=W.SYSTEM)
        state, owner = after(now, trigger)
        assert state in {S.DRAINING, S.QUARANTINED}
        assert owner is whose
        assert state is S.DRAINING or whose is W.OPERATOR, "Mainstay never changes the drain of another system"


@given(facts(), st.sampled_from([T.TIMED_OUT, T.REPORTED, T.STOPPED, T.FINDING_OPENED, T.CLEARED]))
def test_neither_voices_nor_findings_move_what_is_out_of_service(known: NodeFacts, trigger: NodeTrigger) -> None:
    for state in OUT_OF_SERVICE:
        assert not decide(replace(known, state=state, by=W.SYSTEM), trigger).accepted


@given(facts())
def test_an_unknown_node_is_healthy_only_when_it_speaks_and_nothing_is_held_against_it(known: NodeFacts) -> None:
    decision = decide(replace(known, state=S.UNKNOWN, by=W.SYSTEM), T.REPORTED)
    assert decision.accepted
    assert (decision.to is S.HEALTHY) == (not known.silent and not known.suspected)


def test_only_its_owner_or_a_person_lifts_a_drain_and_nobody_here_a_strangers() -> None:
    def lifts(owner: Owner, by: Owner) -> bool:
        return decide(NodeFacts(state=S.DRAINING, owner=owner, by=by, reason="x"), T.UNDRAIN).accepted

    allowed = {(owner, by) for owner in W for by in W if lifts(owner, by)}
    assert allowed == {(W.SYSTEM, W.OPERATOR), (W.OPERATOR, W.OPERATOR), (W.EXTERNAL, W.EXTERNAL)}
    stranger = NodeFacts(state=S.DRAINING, owner=W.EXTERNAL, by=W.OPERATOR, reason="x")
    assert decide(stranger, T.UNDRAIN).rules[-1] == "drained_by_system"
    assert decide(stranger, T.DRAIN).accepted, "a person may take it over, and then it is theirs"


@pytest.mark.parametrize("trigger", [T.DRAIN, T.QUARANTINE, T.UNDRAIN, T.VALIDATE])
def test_people_give_reasons(trigger: NodeTrigger) -> None:
    for state in S:
        decision = decide(NodeFacts(state=state, by=W.OPERATOR, reason=" "), trigger)
        assert not decision.accepted
        assert decision.rules[-1] in {"reason_given", "allowed_move"}


def test_a_weak_suite_is_refused_before_it_runs() -> None:
    known = NodeFacts(state=S.QUARANTINED, by=W.OPERATOR, reason="x", verdict=V.FAIL, needed=2, power=1)
    assert decide(known, T.VALIDATE).rules[-1] == "suite_sufficient"
    assert decide(replace(known, power=2), T.VALIDATE).to is S.VALIDATING
    assert decide(replace(known, verdict=V.PASS), T.VALIDATE).to is S.VALIDATING
    assert decide(replace(known, verdict=None, needed=0, power=1), T.VALIDATE).to is S.VALIDATING


def test_no_check_runs_beside_a_job_and_no_drain_is_over_before_it_left() -> None:
    for state, trigger in ((S.DRAINING, T.EMPTIED), (S.QUARANTINED, T.VALIDATE)):
        busy = NodeFacts(state=state, jobs=("j1",), power=3)
        assert decide(busy, trigger).rules[-1] == "no_running_job"
        assert decide(replace(busy, jobs=()), trigger).accepted


def test_a_node_that_no_longer_fails_but_still_shows_a_fault_stays_out() -> None:
    known = NodeFacts(state=S.VALIDATING, verdict=V.PASS, power=2, needed=2, evicting=1)
    assert decide(known, T.PASSED).rules[-1] == "no_evicting_finding"
    assert decide(replace(known, evicting=0, suspected=True), T.PASSED).to is S.SUSPECT
    assert decide(replace(known, evicting=0), T.PASSED).to is S.HEALTHY


def test_every_state_is_left_by_some_way() -> None:
    for start in S:
        reached, todo = {start}, [start]
        while todo:
            state = todo.pop()
            for (source, _), step in TRANSITIONS.items():
                targets = IN_SERVICE if step.to is None else {step.to}
                todo += [to for to in targets if source is state and to not in reached]
                reached |= {to for to in targets if source is state}
        assert reached == set(S)
