"""A ruling in a sentence that a tired operator understands: who, what, what to do, and what was tried already."""

from __future__ import annotations

from typing import Final

from mainstay.detectors.policy.device_history import DeviceHistory
from mainstay.detectors.policy.rule_evaluation import BurstEvaluation
from mainstay.probes.core_types import RecommendedAction

ACTIONS: Final[dict[RecommendedAction, str]] = {
    RecommendedAction.NONE: "nothing to do",
    RecommendedAction.MONITOR: "watch it",
    RecommendedAction.RESTART_JOB: "restart the job, the node is fine",
    RecommendedAction.RESET_GPU: "reset the GPU",
    RecommendedAction.REBOOT_NODE: "reboot the node",
    RecommendedAction.INSPECT_NODE: "have the hardware inspected",
    RecommendedAction.REPLACE: "replace the part",
}


def explain(one: BurstEvaluation, history: DeviceHistory, node: str | None, device: str | None) -> str:
    """Ends with a full stop; counts of lines are left out, so that it changes only when something is news."""
    who = " on ".join(part for part in (device, node) if part)
    because = f", {one.ruling.because}" if one.ruling.because else ""
    return f"{who}: {one.rule.title} ({label(one)}){_where(one)}{because}: {_action(one, history)}."


def label(one: BurstEvaluation) -> str:
    """``XID 79``; a number that the table does not know is still named."""
    code = one.burst.code
    return f"{one.burst.family.value.upper()} {'of unknown number' if code is None else code}"


def _where(one: BurstEvaluation) -> str:
    """The link, or the spot of the chip, where there is one."""
    if one.burst.links:
        links = sorted(one.burst.links)
        return f" on link{'s' if len(links) > 1 else ''} {', '.join(map(str, links))}"
    if len(one.burst.places) == 1:
        gpc, tpc = next(iter(one.burst.places))
        return f" at GPC {gpc} TPC {tpc}"
    return ""


def _action(one: BurstEvaluation, history: DeviceHistory) -> str:
    parts = [ACTIONS[one.ruling.recommended_action]]
    if one.rule.leads and one.ruling.recommended_action.evicts:
        parts += _of_what(one, history)
    if one.burst.many:
        parts.append("several GPUs met it at once, so the program did it")
    if one.tries:
        parts.append(f"{_nth(one.times)} time in {_span(one.days)}, {_vain(one.tries)}")
    elif one.times > 1 and one.ruling.recommended_action.evicts:
        parts.append(f"{_nth(one.times)} time in {_span(one.days)}")
    return "; ".join(parts)


def _of_what(one: BurstEvaluation, history: DeviceHistory) -> list[str]:
    """The codes that the driver concludes from."""
    codes = sorted(
        {b.code for b in history.bursts if b.code not in {None, one.burst.code} and abs(b.last - one.burst.last) < 300}
    )
    return [f"it follows from XID {', '.join(map(str, codes))}"] if codes else []


def _vain(tries: int) -> str:
    return "the last reset or reboot did not help" if tries == 1 else f"{tries} resets or reboots did not help"


def _nth(number: int) -> str:
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _span(days: float) -> str:
    if days >= 1.5:
        return f"{round(days)} days"
    hours = days * 24
    if hours >= 1.5:
        return f"{round(hours)} hours"
    return "an hour"
