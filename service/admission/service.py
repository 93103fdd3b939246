"""The gate: may this job start on these nodes?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from service.admission.answer import Answer, NodeAnswer
from service.admission.facts import Occupancy, Survey
from service.admission.rules import BADNESS, AdmissionDecision, Code, Known, Reason, Wish, reasons, worst
from service.admission.schemas import AdmissionIn
from service.kit.db import AnySession, WriteSession
from service.settings import Settings
from service.validation import orders
from service.validation import service as validations
from service.validation.suites import require_suite

WANTS_CHECK: Final = {Code.NEVER_VALIDATED, Code.VALIDATION_UNKNOWN, Code.VALIDATION_WEAK, Code.VALIDATION_OLD}
"""What a pre-flight could mend."""


def decide(session: AnySession, body: AdmissionIn, occupancy: Occupancy, *, now: float, settings: Settings) -> Answer:
    """Judge every node by what is stored, and name spares.

    Raises:
        UnknownSuiteError: the suite that is asked for does not exist.
    """
    wish = _wish(body, now, settings)
    names = tuple(dict.fromkeys(body.nodes))
    survey = Survey(session, names, wish, body.job, occupancy)
    told: dict[str, NodeAnswer] = {}
    cohorts: set[str] = set()
    for name, known in survey.notable().items():
        if why := reasons(known, wish):
            told[name] = _node(name, known, why)
            cohorts |= {known.cohort} if known is not None and told[name].decision is AdmissionDecision.DENY else set()
    nodes = sorted(told.values(), key=lambda node: (-BADNESS[node.decision], node.node))
    denied = sum(node.decision is AdmissionDecision.DENY for node in nodes)
    wanted = denied if body.spares is None else body.spares
    return Answer(
        job=body.job,
        decision=worst(node.decision for node in nodes),
        reason=_headline(len(names), nodes),
        allowed=len(names) - len(nodes),
        nodes=nodes,
        spares=survey.spares(cohorts or survey.cohorts(), wanted) if wanted else [],
        preflight=[],
        preempted=[],
        at=now,
    )


def _wish(body: AdmissionIn, now: float, settings: Settings) -> Wish:
    suite = body.suite or settings.admission.suite
    hours = settings.admission.max_age_hours if body.max_age_hours is None else body.max_age_hours
    return Wish(
        now=now,
        silent_after=settings.fleet.silent_after,
        suite=require_suite(suite).name,
        max_age_seconds=hours * 3600.0,
        gpus=body.gpus_per_node,
    )


def _node(name: str, known: Known | None, why: tuple[Reason, ...]) -> NodeAnswer:
    return NodeAnswer(
        node=name,
        decision=worst(reason.decision for reason in why),
        reasons=why,
        state=None if known is None else known.state,
        verdict=None if known is None else known.verdict,
        suite=known.suite or None if known is not None else None,
        validated_at=None if known is None else known.validated_at,
    )


def _headline(asked: int, nodes: Sequence[NodeAnswer]) -> str:
    """One sentence: how many, and for what."""
    if not nodes:
        return f"all {asked} nodes are healthy and validated"
    codes = Counter(reason.code for node in nodes for reason in node.reasons)
    words = ", ".join(f"{code.value.replace('_', ' ')} {count}" for code, count in codes.most_common())
    return f"{len(nodes)} of {asked} nodes are not simply allowed: {words}"


def act(session: WriteSession, body: AdmissionIn, answer: Answer, *, now: float, settings: Settings) -> Answer:
    """Carry out what the request asks for beside an answer: pre-emption, pre-flight."""
    preempted: list[str] = []
    preflight: list[str] = []
    if body.preempt:
        why = f"job {body.job} wants the node"
        rows = orders.preempt(session, body.nodes, why, now=now, settings=settings)
        preempted = [row.id for row in rows]
    if body.preflight:
        suite = body.suite or settings.admission.suite
        for node in answer.nodes:
            codes = {reason.code for reason in node.reasons}
            if codes & WANTS_CHECK and not codes & {Code.UNKNOWN_NODE, Code.BEING_VALIDATED, Code.BUSY}:
                preflight.append(validations.order(session, settings, node=node.node, suite=suite, now=now).id)
    return msgspec.structs.replace(answer, preempted=preempted, preflight=preflight)
