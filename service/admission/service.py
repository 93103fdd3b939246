"""The gate: may this job start on these nodes?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from mainstay.service.admission.node_facts import FactsQuery
from mainstay.service.admission.responses import AdmissionResponse, NodeAdmissionResponse
from mainstay.service.admission.rules import (
    BADNESS,
    AdmissionDecision,
    AdmissionFacts,
    AdmissionRequest,
    Reason,
    ReasonCode,
    reasons,
    worst,
)
from mainstay.service.admission.schemas import AdmissionIn, AdmissionLimits
from mainstay.service.common.db import AnySession, WriteSession
from mainstay.service.services import Services
from mainstay.service.settings import Settings
from mainstay.service.validation import node_tasks
from mainstay.service.validation import service as validations
from mainstay.service.validation.suites import require_suite

WANTS_CHECK: Final = {
    ReasonCode.NEVER_VALIDATED,
    ReasonCode.VALIDATION_UNKNOWN,
    ReasonCode.VALIDATION_WEAK,
    ReasonCode.VALIDATION_OLD,
}
"""Objections that a pre-flight validation can clear."""


def decide(session: AnySession, services: Services, body: AdmissionIn, *, now: float) -> AdmissionResponse:
    """Judge every node by what is stored, and name spares.

    Raises:
        UnknownSuiteError: the suite that is asked for does not exist.
    """
    request = request_of(body, now, services.settings)
    names = tuple(dict.fromkeys(body.nodes))
    survey = FactsQuery(session, services, names, request, body.job)
    told: dict[str, NodeAdmissionResponse] = {}
    cohorts: set[str] = set()
    for name, known in survey.notable().items():
        if why := reasons(known, request):
            told[name] = _node(name, known, why)
            cohorts |= {known.cohort} if known is not None and told[name].decision is AdmissionDecision.DENY else set()
    nodes = sorted(told.values(), key=lambda node: (-BADNESS[node.decision], node.node))
    denied = sum(node.decision is AdmissionDecision.DENY for node in nodes)
    wanted = denied if body.spares is None else body.spares
    return AdmissionResponse(
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


def request_of(body: AdmissionLimits, now: float, settings: Settings) -> AdmissionRequest:
    """The limits of a question, with those of the settings where it has none.

    Raises:
        UnknownSuiteError: the suite that is asked for does not exist.
    """
    suite = body.suite or settings.admission.suite
    hours = settings.admission.max_age_hours if body.max_age_hours is None else body.max_age_hours
    return AdmissionRequest(
        now=now,
        heartbeat_timeout_seconds=settings.fleet.heartbeat_timeout_seconds,
        suite=require_suite(suite).name,
        max_age_seconds=hours * 3600.0,
        gpus=body.gpus_per_node,
    )


def _node(name: str, known: AdmissionFacts | None, why: tuple[Reason, ...]) -> NodeAdmissionResponse:
    return NodeAdmissionResponse(
        node=name,
        decision=worst(reason.decision for reason in why),
        reasons=why,
        state=None if known is None else known.state,
        verdict=None if known is None else known.verdict,
        suite=known.suite or None if known is not None else None,
        validated_at=None if known is None else known.validated_at,
    )


def _headline(asked: int, nodes: Sequence[NodeAdmissionResponse]) -> str:
    """One sentence: how many, and for what."""
    if not nodes:
        return f"all {asked} nodes are healthy and validated"
    codes = Counter(reason.code for node in nodes for reason in node.reasons)
    words = ", ".join(f"{code.value.replace('_', ' ')} {count}" for code, count in codes.most_common())
    return f"{len(nodes)} of {asked} nodes are not simply allowed: {words}"


def act(
    session: WriteSession, services: Services, body: AdmissionIn, answer: AdmissionResponse, *, now: float
) -> AdmissionResponse:
    """Carry out what the request asks for beside an answer: pre-emption, pre-flight."""
    settings = services.settings
    preempted: list[str] = []
    preflight: list[str] = []
    if body.preempt:
        why = f"job {body.job} wants the node"
        rows = node_tasks.preempt(session, body.nodes, why, now=now, settings=settings)
        preempted = [row.id for row in rows]
    if body.preflight:
        suite = body.suite or settings.admission.suite
        occupied = services.occupancy.by_node(session)
        for node in answer.nodes:
            codes = {reason.code for reason in node.reasons}
            if codes & WANTS_CHECK and not codes & {
                ReasonCode.UNKNOWN_NODE,
                ReasonCode.BEING_VALIDATED,
                ReasonCode.BUSY,
            }:
                own = node.node in occupied  # by the job that asks, which an earlier run left there
                options = validations.ValidationOptions(allow_occupied=own)
                row = validations.order(session, settings, node=node.node, suite=suite, now=now, options=options)
                preflight.append(row.id)
    return msgspec.structs.replace(answer, preempted=preempted, preflight=preflight)
