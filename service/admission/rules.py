"""Whether a job may start on a node: rules over what is stored of it, each with its reason.

Invariant: unknown is never healthy. A node of which nothing is known, that was never validated, whose last check is
unknown or that is silent is denied; what is known but weaker or older than wished for is allowed as degraded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from probes.words import HealthState, Verdict
from service.validation.latch import POWER


class AdmissionDecision(StrEnum):
    ALLOW = "allow"
    ALLOW_DEGRADED = "allow_degraded"
    DENY = "deny"


BADNESS: Final = {AdmissionDecision.ALLOW: 0, AdmissionDecision.ALLOW_DEGRADED: 1, AdmissionDecision.DENY: 2}


class Code(StrEnum):
    """Why a node is not simply allowed."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is stored of one node."""

    node: str
    state: HealthState
    silent: bool
    cohort: str = ""
    verdict: Verdict | None = None
    """Standing verdict; None: never validated."""
    suite: str = ""
    power: int = 0
    validated_at: float | None = None
    """Unix seconds."""
    pending: bool = False
    """A validation runs or waits on it."""
    gpus: int | None = None
    """Present and not lost; None: nobody asked."""
    evicting: str = ""
    """The first active finding whose remedy wants work off the node."""
    jobs: tuple[str, ...] = ()
    """Running jobs other than the one that asks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What the job asks of each node."""

    now: float
    silent_after: float
    """Seconds without a word after which a node is silent."""
    suite: str
    """The weakest suite whose pass counts in full."""
    max_age_seconds: float
    gpus: int | None = None


@dataclass(frozen=True, slots=True)
class Reason:
    code: Code
    decision: AdmissionDecision
    text: str


Rule = Callable[[Known, Wish], Reason | None]


def _silent(known: Known, _: Wish) -> Reason | None:
    return Reason(Code.SILENT, AdmissionDecision.DENY, "nothing is heard of it") if known.silent else None


def _state(known: Known, _: Wish) -> Reason | None:
    if known.state is HealthState.HEALTHY:
        return None
    if known.state is HealthState.SUSPECT:
        return Reason(
            Code.SUSPECT, AdmissionDecision.ALLOW_DEGRADED, "it is suspect: an incident is open that needs no eviction"
        )
    return Reason(Code.STATE, AdmissionDecision.DENY, f"its state is {known.state}")


def _finding(known: Known, _: Wish) -> Reason | None:
    return Reason(Code.FINDING, AdmissionDecision.DENY, known.evicting) if known.evicting else None


def _verdict(known: Known, _: Wish) -> Reason | None:
    match known.verdict:
        case None:
            return Reason(Code.NEVER_VALIDATED, AdmissionDecision.DENY, "it was never validated: order a pre-flight")
        case Verdict.FAIL:
            return Reason(Code.VALIDATION_FAILED, AdmissionDecision.DENY, f"suite {known.suite} failed")
        case Verdict.UNKNOWN:
            return Reason(Code.VALIDATION_UNKNOWN, AdmissionDecision.DENY, f"suite {known.suite} could not tell")
        case Verdict.WARN:
            return Reason(Code.VALIDATION_WARNED, AdmissionDecision.ALLOW_DEGRADED, f"suite {known.suite} warned")
    return None


def _power(known: Known, wish: Wish) -> Reason | None:
    if known.verdict in (None, Verdict.FAIL, Verdict.UNKNOWN) or known.power >= POWER.get(wish.suite, 0):
        return None
    text = f"it passed {known.suite or 'a part of a suite'} only, {wish.suite} is asked for"
    return Reason(Code.VALIDATION_WEAK, AdmissionDecision.ALLOW_DEGRADED, text)


def _age(known: Known, wish: Wish) -> Reason | None:
    if known.verdict in (None, Verdict.FAIL, Verdict.UNKNOWN) or known.validated_at is None:
        return None
    age = wish.now - known.validated_at
    if age <= wish.max_age_seconds:
        return None
    text = f"its last check was {age / 3600:.0f} h ago, {wish.max_age_seconds / 3600:.0f} h are allowed"
    return Reason(Code.VALIDATION_OLD, AdmissionDecision.ALLOW_DEGRADED, text)


def _pending(known: Known, _: Wish) -> Reason | None:
    text = "a validation runs on it: preempt it, or wait"
    return Reason(Code.BEING_VALIDATED, AdmissionDecision.DENY, text) if known.pending else None


def _gpus(known: Known, wish: Wish) -> Reason | None:
    if wish.gpus is None or known.gpus is None or known.gpus >= wish.gpus:
        return None
    return Reason(Code.TOO_FEW_GPUS, AdmissionDecision.DENY, f"{known.gpus} GPUs work, {wish.gpus} are asked for")


def _busy(known: Known, _: Wish) -> Reason | None:
    if not known.jobs:
        return None
    return Reason(Code.BUSY, AdmissionDecision.ALLOW_DEGRADED, f"job {', '.join(known.jobs[:3])} runs on it")


RULES: Final[Sequence[Rule]] = (_silent, _state, _finding, _verdict, _power, _age, _pending, _gpus, _busy)
"""Every rule is asked: whoever mends one thing wants to know of the others."""


def reasons(known: Known | None, wish: Wish) -> tuple[Reason, ...]:
    """Why a node is not simply allowed; empty: it is. None: no such node."""
    if known is None:
        return (Reason(Code.UNKNOWN_NODE, AdmissionDecision.DENY, "no node has this name"),)
    if _fine(known, wish):
        return ()
    return tuple(reason for rule in RULES if (reason := rule(known, wish)) is not None)


def _fine(known: Known, wish: Wish) -> bool:
    """A cheap yes for the many nodes of which there is nothing to say; a test holds it against the rules."""
    return (
        known.state is HealthState.HEALTHY
        and known.verdict is Verdict.PASS
        and known.power >= POWER.get(wish.suite, 0)
        and known.validated_at is not None
        and wish.now - known.validated_at <= wish.max_age_seconds
        and not (known.silent or known.pending or known.evicting or known.jobs)
        and (wish.gpus is None or known.gpus is None or known.gpus >= wish.gpus)
    )


def worst(decisions: Iterable[AdmissionDecision]) -> AdmissionDecision:
    """The most careful of several decisions; of none, allow."""
    return max(decisions, key=BADNESS.__getitem__, default=AdmissionDecision.ALLOW)
