"""What a burst of a code means now, in view of all that is known of its device. Pure: policy and history in.

Order: what the line says (words, registers) decides first, else the code itself; repetition and company may make it
worse; an orderly stop or a boot makes a link's trouble mere information; after an action that
failed comes the next stronger one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from mainstay.detectors.policy.device_history import Burst, DeviceHistory
from mainstay.detectors.policy.model import (
    Cooccurrence,
    ErrorGroup,
    RegisterMatch,
    Repeat,
    RepeatScope,
    RuleAction,
    XidPolicy,
    XidRule,
)
from mainstay.probes.core_types import RecommendedAction, Severity

_ALONE_SECONDS = 300.0
"""Errors that explain a link's error come within minutes of it."""
_APART_SECONDS = 3600.0
"""A crash loop of one job restarts within minutes under new process ids; an hour later it is another attempt."""


@dataclass(frozen=True, slots=True)
class BurstEvaluation:
    """A burst and what follows from it."""

    burst: Burst
    rule: XidRule
    ruling: RuleAction
    tries: int = 0
    """Resets or reboots that did not help, within the ladder's days."""
    times: int = 1
    """Occasions of this code on this device within those days."""
    days: float = 0.0
    """From the first of these occasions to this one."""
    forgiven: str = ""
    """Why it means nothing: it fell into a boot or an orderly stop."""

    @property
    def weight(self) -> tuple[int, int, bool, float]:
        """What leads stands highest."""
        plain = not self.rule.echo
        return (*self.ruling.weight, plain, self.burst.last)


def evaluate_burst(
    policy: XidPolicy, history: DeviceHistory, burst: Burst, boots: Sequence[float] = ()
) -> BurstEvaluation:
    """The ruling about one burst.

    Args:
        policy: the effective one.
        history: of the burst's device; the burst is among it.
        burst: which.
        boots: when the node booted, Unix seconds, rising.
    """
    rule = policy.rule(burst.family, burst.code)
    forgiven = _forgiven(policy, rule, burst)
    if forgiven:
        ruling = RuleAction(severity=Severity.INFO, recommended_action=RecommendedAction.NONE, because=forgiven)
        return BurstEvaluation(burst, rule, ruling, forgiven=forgiven)
    return _climb(policy, history, BurstEvaluation(burst, rule, _plain(policy, rule, history, burst)), boots)


def leading_burst(
    policy: XidPolicy, history: DeviceHistory, boots: Sequence[float], now: float
) -> BurstEvaluation | None:
    """The burst that speaks for the device now; None when nothing holds."""
    judged = [
        evaluate_burst(policy, history, burst, boots)
        for burst in _current(policy, history)
        if _may_hold(policy, burst, now)
    ]
    held = [one for one in judged if holds(policy, one, history, boots, now)]
    if not held:
        return None
    summary = next((one for one in held if one.rule.leads and one.ruling.recommended_action.evicts), None)
    if summary is not None:
        # The driver has weighed its own errors: only what needs a person weighs more.
        held = [
            one
            for one in held
            if one is summary or one.ruling.recommended_action.level >= RecommendedAction.INSPECT_NODE.level
        ]
    return max(held, key=lambda one: one.weight)


def _current(policy: XidPolicy, history: DeviceHistory) -> list[Burst]:
    """All bursts, but of the driver's own summaries only the newest."""
    newest = max((b for b in history.bursts if policy.rule(b.family, b.code).leads), key=lambda b: b.last, default=None)
    return [b for b in history.bursts if b is newest or not policy.rule(b.family, b.code).leads]


def _may_hold(policy: XidPolicy, burst: Burst, now: float) -> bool:
    """A cheap check: with any meaning, it is too old."""
    worst = policy.rule(burst.family, burst.code).worst
    if burst.closed or worst is None or worst.recommended_action.evicts:
        return not burst.closed
    information = worst.severity is Severity.INFO
    hours = policy.settings.quiet_info_hours if information else policy.settings.quiet_warning_hours
    return now - burst.last < hours * 3600


def holds(policy: XidPolicy, one: BurstEvaluation, history: DeviceHistory, boots: Sequence[float], now: float) -> bool:
    """Whether it still does. Repairs by hand cannot be seen: inspect and replace hold until an operator ends them."""
    quiet = now - one.burst.last
    if one.ruling.severity is Severity.INFO:
        return quiet < policy.settings.quiet_info_hours * 3600
    if not one.ruling.recommended_action.evicts:
        return quiet < policy.settings.quiet_warning_hours * 3600
    if one.ruling.recommended_action is RecommendedAction.RESET_GPU and any(
        mark > one.burst.last for mark in history.resets
    ):
        return False
    person = one.ruling.recommended_action.level > RecommendedAction.REBOOT_NODE.level
    return person or not any(boot > one.burst.last for boot in boots)


def _forgiven(policy: XidPolicy, rule: XidRule, burst: Burst) -> str:
    if rule.group not in policy.settings.forgiven:
        return ""
    if burst.planned:
        return "during an orderly stop of the node"
    if burst.uptime is not None and burst.uptime < policy.settings.boot_grace_seconds:
        return "while the node was booting"
    return ""


def _plain(policy: XidPolicy, rule: XidRule, history: DeviceHistory, burst: Burst) -> RuleAction:
    """Without regard to what was tried."""
    ruling = own(policy, rule, history, burst)
    for repeat in rule.repeats:
        if repeat.enabled and repeat.ruling.weight > ruling.weight and _repeats(policy, history, burst, repeat):
            ruling = repeat.ruling
    for company in rule.companies:
        if company.enabled and company.ruling.weight > ruling.weight and _meets(history, burst, company):
            ruling = company.ruling
    return ruling


def own(policy: XidPolicy, rule: XidRule, history: DeviceHistory, burst: Burst) -> RuleAction:
    """By the line's words, its registers, else the code."""
    # "changed from 0x0 (None) to 0x2 (Node Reboot Required)": what it was is over
    words = burst.message_text.rpartition(" to ")[2] if rule.leads else burst.message_text
    for wording in rule.wordings:
        if all(word in words for word in wording.words):
            return wording.ruling
    registers = burst.registers if rule.registers else ()
    for bits in rule.registers:
        if _set(bits, registers) and _bits_count(policy, bits, history, burst):
            return bits.ruling
    return rule.ruling


def _set(bits: RegisterMatch, registers: Sequence[int]) -> bool:
    return bits.register < len(registers) and any(registers[bits.register] >> bit & 1 for bit in bits.bits)


def _bits_count(policy: XidPolicy, bits: RegisterMatch, history: DeviceHistory, burst: Burst) -> bool:
    if bits.alone and any(
        other.code != burst.code
        and abs(other.last - burst.last) <= _ALONE_SECONDS
        and not policy.rule(other.family, other.code).echo
        for other in history.bursts
    ):
        return False
    same = [b for b in _of_code(history, burst, 24.0) if _set(bits, b.registers)]
    return len(same) >= bits.count


def _of_code(history: DeviceHistory, burst: Burst, hours: float) -> list[Burst]:
    """Bursts of the same code up to this one, within ``hours``."""
    since = burst.last - hours * 3600
    return [
        b for b in history.bursts if b.family is burst.family and b.code == burst.code and since <= b.last <= burst.last
    ]


def _repeats(policy: XidPolicy, history: DeviceHistory, burst: Burst, repeat: Repeat) -> bool:
    rule = policy.rule(burst.family, burst.code)
    alike = [b for b in _of_code(history, burst, repeat.hours) if _counts(policy, rule, history, b)]
    if burst not in alike:
        return False
    if repeat.same is RepeatScope.DEVICE:
        return len(alike) >= repeat.count
    if repeat.same is RepeatScope.LINK:
        return len([b for b in alike if _shared(b.links, burst.links)]) >= repeat.count
    if repeat.same is RepeatScope.PLACE:
        spot = [b for b in alike if b.places & burst.places and len(b.places) <= policy.settings.spread]
        return burst in spot and len(_by_process(spot)) >= repeat.count
    return len(_by_job(alike)) >= repeat.count


def _counts(policy: XidPolicy, rule: XidRule, history: DeviceHistory, burst: Burst) -> bool:
    """Neither forgiven, nor the program's, nor harmless."""
    if burst.many or _forgiven(policy, rule, burst):
        return False
    return own(policy, rule, history, burst).recommended_action is not RecommendedAction.NONE


def _shared(mine: set[int], others: set[int]) -> bool:
    """Whether two bursts may be of one link; an untold link may be any."""
    return bool(mine & others) or not mine or not others


def _by_process(bursts: Iterable[Burst]) -> list[Burst]:
    """One for each process; a process that is not told is another one."""
    found: list[Burst] = []
    for burst in bursts:
        if not any(burst.processes & other.processes for other in found):
            found.append(burst)
    return found


def _by_job(bursts: Iterable[Burst]) -> list[Burst]:
    """One for each job; where a job is not told, one for each hour of another process."""
    found: list[Burst] = []
    for burst in sorted(bursts, key=lambda b: b.first):
        if all(_other_job(burst, other) for other in found):
            found.append(burst)
    return found


def _other_job(one: Burst, other: Burst) -> bool:
    if one.jobs and other.jobs:
        return not one.jobs & other.jobs
    if one.processes & other.processes:
        return False
    return abs(one.first - other.last) >= _APART_SECONDS


def _meets(history: DeviceHistory, burst: Burst, company: Cooccurrence) -> bool:
    return any(
        other.family is burst.family
        and other.code in company.codes
        and abs(other.last - burst.last) <= company.minutes * 60
        for other in history.bursts
    )


def _climb(policy: XidPolicy, history: DeviceHistory, one: BurstEvaluation, boots: Sequence[float]) -> BurstEvaluation:
    """Add the counts of repeats and of failed actions: what did not help twice will not help again."""
    settings, burst, rule = policy.settings, one.burst, one.rule
    since = burst.last - settings.tries_days * 86_400
    past = [b for b in _of_code(history, burst, settings.tries_days * 24) if not _forgiven(policy, rule, b)]
    days = (burst.last - min((b.first for b in past), default=burst.last)) / 86_400
    one = replace(one, times=max(1, len(past)), days=days)
    ruling = one.ruling
    if not ruling.recommended_action.evicts:
        return one
    tries, by_reset = _in_vain(policy, history, burst, boots, since)
    one = replace(one, tries=tries)
    if ruling.recommended_action.level > RecommendedAction.REBOOT_NODE.level or tries == 0:
        return one
    recommended_action, allowed = ruling.recommended_action, rule.tries or settings.tries
    if tries >= max(settings.replace_tries, allowed + 1):
        recommended_action = RecommendedAction.REPLACE
    elif tries >= allowed:
        recommended_action = RecommendedAction.INSPECT_NODE
    elif by_reset:
        recommended_action = RecommendedAction.REBOOT_NODE
    return replace(one, ruling=replace(ruling, recommended_action=recommended_action))


def _in_vain(
    policy: XidPolicy, history: DeviceHistory, burst: Burst, boots: Sequence[float], since: float
) -> tuple[int, bool]:
    """Actions after a fault of the same group that were followed by this one; whether the last was only a reset."""
    group = policy.rule(burst.family, burst.code).group
    marks = sorted([(t, False) for t in boots] + [(t, True) for t in history.resets])
    tried = [(mark, reset) for mark, reset in marks if since <= mark <= burst.first]
    if not tried:
        return 0, False
    earlier = [b for b in history.bursts if since <= b.last < burst.first]
    bad = [b.last for b in earlier if _bad(policy, history, b, group)]
    previous, vain, by_reset = since, 0, False
    for mark, reset in tried:
        if any(previous <= last < mark for last in bad):
            vain, by_reset = vain + 1, reset
        previous = mark
    return vain, by_reset


def _bad(policy: XidPolicy, history: DeviceHistory, burst: Burst, group: ErrorGroup) -> bool:
    """Whether it called for an action, and for the same part of the machine."""
    rule = policy.rule(burst.family, burst.code)
    if rule.group is not group or _forgiven(policy, rule, burst):
        return False
    return _plain(policy, rule, history, burst).recommended_action.evicts
