"""Whether a job may start on a node: rules over what is stored of it, each with its reason.

Invariant: unknown is never healthy. A node of which nothing is known, that was never validated, whose last check is
unknown or that is silent is denied; a node with a weaker or older verdict than requested is allowed as degraded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from mainstay.probes.core_types import HealthState, Verdict
from mainstay.service.validation.latch import POWER


class AdmissionDecision(StrEnum):
    ALLOW = "allow"
    ALLOW_DEGRADED = "allow_degraded"
    DENY = "deny"


BADNESS: Final = {AdmissionDecision.ALLOW: 0, AdmissionDecision.ALLOW_DEGRADED: 1, AdmissionDecision.DENY: 2}


class ReasonCode(StrEnum):
    """A reason against a node, or for a degraded start."""

    UNKNOWN_NODE = "unknown_node"
    SILENT = "silent"
    STATE = "state"
    SUSPECT = "suspect"
    FINDING = "finding"
    NEVER_VALIDATED = "never_validated"
    VALIDATION_FAILED = "validation_failed"
    VALIDATION_UNKNOWN = "validation_unknown"
    VALIDATION_WARNED = "validation_warned"
    VALIDATION_WEAK = "validation_weak"
    VALIDATION_OLD = "validation_old"
    BEING_VALIDATED = "being_validated"
    TOO_FEW_GPUS = "too_few_gpus"
    BUSY = "busy"
    PAUSED = "paused"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionFacts:
    """What is stored of one node."""

    node: str
    state: HealthState
    silent: bool
    cohort: str = ""
    verdict: Verdict | None = None
    """Current verdict; None: never validated."""
    suite: str = ""
    power: int = 0
    validated_at: float | None = None
    """Unix seconds."""
    pending: bool = False
    """A validation runs or waits on it."""
    gpus: int | None = None
    """GPUs that are present and not lost; None: the request does not check the number."""
    evicting: str = ""
    """The first active finding whose recommended action wants work off the node."""
    jobs: tuple[str, ...] = ()
    """Running jobs other than the one that asks."""
    paused: str = ""
    """Why no new work starts here; empty: it may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRequest:
    """What the job asks of each node."""

    now: float
    heartbeat_timeout_seconds: float
    """Seconds without a word after which a node is silent."""
    suite: str
    """The weakest suite whose pass counts in full."""
    max_age_seconds: float
    gpus: int | None = None


@dataclass(frozen=True, slots=True)
class Reason:
    code: ReasonCode
    decision: AdmissionDecision
    text: str


Rule = Callable[[AdmissionFacts, AdmissionRequest], Reason | None]


def _silent(known: AdmissionFacts, _: AdmissionRequest) -> Reason | None:
    return Reason(ReasonCode.SILENT, AdmissionDecision.DENY, "it does not report") if known.silent else None


def _state(known: AdmissionFacts, _: AdmissionRequest) -> Reason | None:
    if known.state is HealthState.HEALTHY:
        return None
    if known.state is HealthState.SUSPECT:
        return Reason(
            ReasonCode.SUSPECT,
            AdmissionDecision.ALLOW_DEGRADED,
            "it is suspect: an incident is open that needs no eviction",
        )
    return Reason(ReasonCode.STATE, AdmissionDecision.DENY, f"its state is {known.state}")


def _finding(known: AdmissionFacts, _: AdmissionRequest) -> Reason | None:
    return Reason(ReasonCode.FINDING, AdmissionDecision.DENY, known.evicting) if known.evicting else None


def _verdict(known: AdmissionFacts, _: AdmissionRequest) -> Reason | None:
    match known.verdict:
        case None:
            return Reason(
                ReasonCode.NEVER_VALIDATED, AdmissionDecision.DENY, "it was never validated: order a pre-flight"
            )
        case Verdict.FAIL:
            return Reason(ReasonCode.VALIDATION_FAILED, AdmissionDecision.DENY, f"suite {known.suite} failed")
        case Verdict.UNKNOWN:
            return Reason(ReasonCode.VALIDATION_UNKNOWN, AdmissionDecision.DENY, f"suite {known.suite} could not tell")
        case Verdict.WARN:
            return Reason(ReasonCode.VALIDATION_WARNED, AdmissionDecision.ALLOW_DEGRADED, f"suite {known.suite} warned")
    return None


def _power(known: AdmissionFacts, request: AdmissionRequest) -> Reason | None:
    if known.verdict in (None, Verdict.FAIL, Verdict.UNKNOWN) or known.power >= POWER.get(request.suite, 0):
        return None
    text = f"it passed {known.suite or 'a part of a suite'} only, {request.suite} is asked for"
    return Reason(ReasonCode.VALIDATION_WEAK, AdmissionDecision.ALLOW_DEGRADED, text)


def _age(known: AdmissionFacts, request: AdmissionRequest) -> Reason | None:
    if known.verdict in (None, Verdict.FAIL, Verdict.UNKNOWN) or known.validated_at is None:
        return None
    age = request.now - known.validated_at
    if age <= request.max_age_seconds:
        return None
    text = f"its last check was {age / 3600:.0f} h ago, {request.max_age_seconds / 3600:.0f} h are allowed"
    return Reason(ReasonCode.VALIDATION_OLD, AdmissionDecision.ALLOW_DEGRADED, text)


def _pending(known: AdmissionFacts, _: AdmissionRequest) -> Reason | None:
    text = "a validation runs on it: preempt it, or wait"
    return Reason(ReasonCode.BEING_VALIDATED, AdmissionDecision.DENY, text) if known.pending else None


def _gpus(known: AdmissionFacts, request: AdmissionRequest) -> Reason | None:
    if request.gpus is None or known.gpus is None or known.gpus >= request.gpus:
        return None
    return Reason(
        ReasonCode.TOO_FEW_GPUS, AdmissionDecision.DENY, f"{known.gpus} GPUs work, {request.gpus} are asked for"
    )


def _busy(known: AdmissionFacts, _: AdmissionRequest) -> Reason | None:
    if not known.jobs:
        return None
    return Reason(ReasonCode.BUSY, AdmissionDecision.ALLOW_DEGRADED, f"job {', '.join(known.jobs[:3])} runs on it")


def _paused(known: AdmissionFacts, _: AdmissionRequest) -> Reason | None:
    return Reason(ReasonCode.PAUSED, AdmissionDecision.DENY, known.paused) if known.paused else None


RULES: Final[Sequence[Rule]] = (_paused, _silent, _state, _finding, _verdict, _power, _age, _pending, _gpus, _busy)
"""All rules are evaluated, so that an operator sees every reason at once."""


def reasons(known: AdmissionFacts | None, request: AdmissionRequest) -> tuple[Reason, ...]:
    """Why a node is not simply allowed; empty: it is. None: no such node."""
    if known is None:
        return (Reason(ReasonCode.UNKNOWN_NODE, AdmissionDecision.DENY, "no node has this name"),)
    return tuple(reason for rule in RULES if (reason := rule(known, request)) is not None)


def worst(decisions: Iterable[AdmissionDecision]) -> AdmissionDecision:
    """The most careful of several decisions; of none, allow."""
    return max(decisions, key=BADNESS.__getitem__, default=AdmissionDecision.ALLOW)
