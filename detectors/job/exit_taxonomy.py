"""What the end of a process means: Unicron's error classes and severities, Llama 3's categories of cause.

Patterns are data (``detectors/policy/errors.toml``). Facts of the same moment weigh more than last words: a process
that dies of a GPU's uncorrectable error reports the error of its library, the driver's code says why. What only shows
that a peer was lost is a consequence: whoever failed first is the cause.

Sources: Unicron (arXiv 2401.00134, in-band errors and severities), Llama 3 (arXiv 2407.21783, table 5).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cache, lru_cache
from importlib import resources
from typing import Any, Final

from mainstay.detectors.event_data import whole_number
from mainstay.detectors.finding import Cause
from mainstay.detectors.policy.load import builtin
from mainstay.detectors.policy.model import ErrorGroup, Family
from mainstay.probes.core_types import RecommendedAction

CAUSE_OF: Final[Mapping[ErrorGroup, Cause]] = {
    ErrorGroup.APP: Cause.SOFTWARE,
    ErrorGroup.ENGINE: Cause.FAULTY_GPU,
    ErrorGroup.MEMORY: Cause.GPU_MEMORY,
    ErrorGroup.LINK: Cause.GPU_LINK,
    ErrorGroup.FABRIC: Cause.GPU_LINK,
    ErrorGroup.BUS: Cause.FAULTY_GPU,
    ErrorGroup.FIRMWARE: Cause.GPU_SYSTEM_PROCESSOR,
    ErrorGroup.CONFIG: Cause.DEPENDENCY,
    ErrorGroup.POWER: Cause.HOST,
}
"""What part of the machine a driver's code is about, as a category of cause; the other groups tell none."""

_LINES: Final = 200
"""Last lines looked at of each text: a traceback is some dozens, and its reason stands at its end."""
_WIDTH: Final = 500
"""Characters looked at of a line: what it means stands at its beginning, and a megabyte of tensor may follow."""
_CRASHES: Final = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 11: "SIGSEGV"}
_SIGKILL: Final = 9
_ENDINGS: Final = {15: "SIGTERM", 2: "SIGINT", 1: "SIGHUP", _SIGKILL: "SIGKILL"}


class ExitSeverity(IntEnum):
    """Unicron's severities."""

    SEV1 = 1  # replace the node
    SEV2 = 2  # restart the process
    SEV3 = 3  # try again in place


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitContext:
    """What else happened at the same moment on the same node."""

    xids: tuple[int, ...] = ()
    """Codes of the GPU driver, of this rank's GPU where one knows it."""
    out_of_memory: bool = False
    """The kernel killed for want of memory."""
    gpu_lost: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitDiagnosis:
    """What an end means."""

    error_class: str
    severity: ExitSeverity = ExitSeverity.SEV2
    cause: Cause | None
    """None: what is known does not tell."""
    recommended_action: RecommendedAction = RecommendedAction.RESTART_JOB
    reason: str
    """Half a sentence: ``uncorrectable memory error of the GPU``."""
    consequence: bool = False
    """It only shows that another process failed."""
    line: str = ""
    """The words that told."""
    explained: bool = True
    """Whether anything but the exit itself told it."""


@dataclass(frozen=True, slots=True)
class _Pattern:
    diagnosis: ExitDiagnosis
    any: re.Pattern[str] = field(repr=False)


@cache
def _patterns() -> tuple[_Pattern, ...]:
    text = resources.files("mainstay.detectors.policy").joinpath("errors.toml").read_text("utf-8")
    return tuple(
        _Pattern(
            ExitDiagnosis(
                error_class=row["class"],
                severity=ExitSeverity(row["severity"]),
                cause=Cause(row["cause"]),
                recommended_action=RecommendedAction(row["recommended_action"]),
                reason=row["title"],
                consequence=row.get("consequence", False),
            ),
            any=re.compile("|".join(f"(?:{one})" for one in row["any"]), re.IGNORECASE),
        )
        for row in tomllib.loads(text)["error"]
    )


def classify(data: Mapping[str, Any], facts: ExitContext | None = None) -> ExitDiagnosis:
    """What the end of a process means.

    Args:
        data: of a ``process_exit`` event: ``exit_code`` or ``signal``, and, where known, ``error``, ``traceback``,
            ``tail`` and ``stderr`` (text or lines), ``out_of_memory``.
        facts: what the node told within the half minute around it.
    """
    facts = facts or ExitContext()
    by_fact = _by_fact(facts, out_of_memory=facts.out_of_memory or data.get("out_of_memory") is True)
    if by_fact is not None and by_fact.severity is ExitSeverity.SEV1:
        return by_fact
    by_words = _by_words(_texts(data))
    if by_fact is not None and (by_words is None or by_words.consequence or by_words.error_class == "exception"):
        return by_fact
    return by_words or by_fact or _by_code(data)


def _by_fact(facts: ExitContext, *, out_of_memory: bool) -> ExitDiagnosis | None:
    driver = [_by_xid(code) for code in facts.xids]
    graves = sorted((d for d in driver if d is not None), key=lambda d: (d.severity, -d.recommended_action.level))
    if graves and graves[0].severity is ExitSeverity.SEV1:
        return graves[0]
    if facts.gpu_lost:
        return ExitDiagnosis(
            error_class="gpu_lost",
            severity=ExitSeverity.SEV1,
            cause=Cause.FAULTY_GPU,
            recommended_action=RecommendedAction.REBOOT_NODE,
            reason="a GPU of its node is lost",
        )
    if out_of_memory:
        return ExitDiagnosis(
            error_class="host_out_of_memory",
            cause=Cause.SOFTWARE,
            reason="the kernel killed it for want of memory",
        )
    return graves[0] if graves else None


def _by_xid(code: int) -> ExitDiagnosis | None:
    rule = builtin().rule(Family.XID, code)
    if rule.code is None or rule.group in {ErrorGroup.LOG, ErrorGroup.ECHO, ErrorGroup.SUMMARY}:
        return None
    grave = rule.ruling.recommended_action.evicts
    return ExitDiagnosis(
        error_class=f"xid_{code}",
        severity=ExitSeverity.SEV1 if grave else ExitSeverity.SEV2,
        cause=CAUSE_OF.get(rule.group),
        recommended_action=rule.ruling.recommended_action if grave else RecommendedAction.RESTART_JOB,
        reason=f"{rule.label}: {rule.title}",
    )


def _texts(data: Mapping[str, Any]) -> list[list[str]]:
    """Last words, the surest first: the exception, then what it wrote."""
    return [lines for name in ("error", "traceback", "stderr", "tail") if (lines := _lines(data.get(name)))]


def _lines(value: Any) -> list[str]:
    if isinstance(value, str):
        value = value.splitlines()
    if not isinstance(value, list | tuple):
        return []
    return [line[:_WIDTH] for line in value[-_LINES:] if isinstance(line, str) and line.strip()]


def _by_words(texts: Iterable[list[str]]) -> ExitDiagnosis | None:
    """The gravest class that any text tells, first failure before its consequences, the plain exception last."""
    patterns = _patterns()
    best: dict[int, str] = {}
    for lines in texts:
        for line in reversed(lines):
            for number in _meanings(line):
                best.setdefault(number, line)  # the surest text's last line
    if not best:
        return None

    def order(number: int) -> tuple[bool, bool, ExitSeverity, int]:
        one = patterns[number].diagnosis
        return (one.error_class == "exception", one.consequence, one.severity, number)

    number = min(best, key=order)
    return replace(patterns[number].diagnosis, line=best[number].strip())


@lru_cache(maxsize=4096)
def _meanings(line: str) -> tuple[int, ...]:
    """Which patterns a line matches. Ranks that die together write the same lines: kept for a thousand of them."""
    return tuple(number for number, pattern in enumerate(_patterns()) if pattern.any.search(line))


def _by_code(data: Mapping[str, Any]) -> ExitDiagnosis:
    """Only the exit itself is known."""
    number = signal_of(data)
    if number in _CRASHES:
        return _plain("crash", Cause.SOFTWARE, f"it crashed ({_CRASHES[number]})")
    if number == _SIGKILL:
        return _plain("killed", None, "something outside killed it")
    if number in _ENDINGS:
        return _plain("asked_to_end", Cause.OPERATOR, "it received a request to end")
    if number is not None:
        return _plain("signal", None, "a signal ended it")
    return _plain("exit", None, "it left no reason")


def _plain(error_class: str, cause: Cause | None, reason: str) -> ExitDiagnosis:
    return ExitDiagnosis(error_class=error_class, cause=cause, reason=reason, explained=False)


def signal_of(data: Mapping[str, Any]) -> int | None:
    """The signal that ended a process, from ``signal`` or a negative ``exit_code`` (or one above 128)."""
    number, code = data.get("signal"), whole_number(data.get("exit_code"))
    if isinstance(number, str):
        number = next((key for key, name in {**_CRASHES, **_ENDINGS}.items() if name == number), None)
    if whole_number(number) is not None:
        return whole_number(number)
    if code is None or not (code < 0 or 128 < code <= 128 + 64):
        return None
    return -code if code < 0 else code - 128
