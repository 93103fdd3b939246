"""The pages of signals, finding kinds, detectors, and the XID policy."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

import mainstay
from docs.generate.markdown import code, field_table, page, plain, prose, sentence, table
from mainstay.detectors.base import ArrayDetector, Detector
from mainstay.detectors.finding import ADVICE, HARDWARE, FindingKind
from mainstay.detectors.policy.load import builtin
from mainstay.detectors.policy.model import ErrorGroup, Family, PolicySettings, XidRule
from mainstay.detectors.reference import about_detector, detector_limits, field_descriptions
from mainstay.detectors.registry import DETECTORS
from mainstay.probes.core_types import RecommendedAction, Severity
from mainstay.probes.signals import SIGNALS, Signal, SignalSource

_ROOT: Final = Path(mainstay.__file__).resolve().parents[1]


def signals() -> str:
    """Return the page of signals."""
    described = field_descriptions(SignalSource)
    parts = []
    for source in SignalSource:
        rows = [_signal(signal) for signal in SIGNALS.values() if signal.source is source]
        about = sentence(described.get(source.name))
        parts.append(f"## Source {source.value}")
        parts += [about] if about else []
        parts.append(table(("signal", "unit", "kind", "type", "range", "description"), rows))
    about = (
        f"Mainstay measures {len(SIGNALS)} signals. A *narrow* signal is a 32-bit float; a *wide* signal is a 64-bit "
        "integer. A missing value is neither zero nor healthy. The service rejects values outside the range."
    )
    return page("Signals", about, *parts)


def _signal(signal: Signal) -> tuple[object, ...]:
    low, high = ("" if math.isinf(limit) else f"{limit:g}" for limit in (signal.low, signal.high))
    limits = f"{low} to {high}" if low and high else f"at least {low}" if low else f"at most {high}" if high else "any"
    width = "wide" if signal.wide else "narrow"
    return code(signal.name), signal.unit, signal.kind.value, width, limits, sentence(signal.about)


def finding_kinds() -> str:
    """Return the page of finding kinds."""
    rows = []
    for kind in FindingKind:
        reporters = [f"[`{name}`](detectors.md#{name})" for name, each in DETECTORS.items() if kind in each.kinds]
        role = "recommendation" if kind in ADVICE else "hardware fault" if kind in HARDWARE else "fault"
        about_kind = sentence(field_descriptions(FindingKind).get(kind.name))
        rows.append(
            (code(kind.value), about_kind, role, ", ".join(reporters or (f"`{file}`" for file in _sources(kind))))
        )
    about = (
        "A finding is a statement about a node, device, job, or rank, with evidence. A *fault* can open an incident. "
        "A *hardware fault* is a fault of the node, with any job on it. A *recommendation* never opens an incident. "
        "Kinds without a detector come from the files named in the last column."
    )
    return page("Finding kinds", about, table(("kind", "meaning", "role", "reported by"), rows))


def _sources(kind: FindingKind) -> list[str]:
    """Return the files that create findings of a kind without a registered detector."""
    files = sorted((_ROOT / "detectors").rglob("*.py"))
    named = (file for file in files if f"FindingKind.{kind.name}" in file.read_text(encoding="utf-8"))
    return [file.relative_to(_ROOT).as_posix() for file in named if file.name != "finding.py"]


def detectors() -> str:
    """Return the page of detectors with their limits."""
    parts = [_detector(name, DETECTORS[name]) for name in sorted(DETECTORS)]
    about = (
        "Every registered detector with what it reads, what it reports, and its limits. "
        "[Finding kinds](finding-kinds.md) lists the kinds; [signals](signals.md) lists the signals."
    )
    return page("Detectors", about, *parts)


def _detector(name: str, kind: type[Detector]) -> str:
    lines = [f"## {name}", prose(about_detector(kind))]
    lines.append(f"- Reports: {', '.join(code(each) for each in sorted(kind.kinds))}")
    if issubclass(kind, ArrayDetector):
        lines[-1] += f"\n- Entities: {sentence(field_descriptions(type(kind.feed)).get(kind.feed.name))}"
        read = (*kind.signals, *kind.host_signals, *kind.gpu_signals)
        lines[-1] += f"\n- Signals: {', '.join(map(code, read)) or 'every signal of its entities'}"
    else:
        lines[-1] += "\n- Input: events"
    rows = [(code(limit), plain(value), sentence(about)) for limit, value, about in detector_limits(kind().config)]
    limits = table(("limit", "default", "description"), rows)
    return "\n\n".join([*lines, limits or "This detector has no limits to set."])


def xid_policy() -> str:
    """Return the page of the built-in policy for GPU and switch error codes."""
    policy = builtin()
    parts = []
    for family, title in ((Family.XID, "GPU driver (XID)"), (Family.SXID, "NVSwitch driver (SXid)")):
        rules = [rule for rule in policy.rules.values() if rule.family is family]
        rules.sort(key=lambda rule: (rule.code is None, rule.code or 0))
        head = ("code", "meaning", "group", "severity", "recommended action", "escalation")
        parts.append(f"## {title}\n\n{table(head, map(_rule, rules))}")
    groups = [(code(group.value), sentence(field_descriptions(ErrorGroup).get(group.name))) for group in ErrorGroup]
    actions = [(code(a.value), sentence(field_descriptions(RecommendedAction).get(a.name))) for a in RecommendedAction]
    severities = [(code(s.value), sentence(field_descriptions(Severity).get(s.name))) for s in Severity]
    parts.append(f"## Settings of the policy\n\n{field_table(PolicySettings, 'setting')}")
    parts.append(f"## Groups\n\n{table(('group', 'meaning'), groups)}")
    parts.append(f"## Actions\n\n{table(('action', 'meaning'), actions)}")
    parts.append(f"## Severities\n\n{table(('severity', 'meaning'), severities)}")
    about = (
        f"The built-in policy assigns a severity and a recommended action to {len(policy.rules)} codes. A site can "
        "override every field ([node health](../how-to/node-health.md)). `mainstay policy show` prints the "
        "effective policy."
    )
    return page("XID policy", about, *parts)


def _rule(rule: XidRule) -> tuple[object, ...]:
    more = [rule.repeat_text] if rule.repeat_text else []
    for each in rule.companies:
        codes = ", ".join(str(other) for other in sorted(each.codes))
        more.append(f"with code {codes} within {each.minutes:g} min: {_action(each.ruling)}")
    more += [f'"{" ".join(each.words)}" in the message: {_action(each.ruling)}' for each in rule.wordings]
    more += [f"register {each.register}, {each.name}: {_action(each.ruling)}" for each in rule.registers]
    label = rule.label if rule.code is not None else f"other {rule.family.value}"
    meaning = f"{rule.title}. {rule.note}" if rule.note else rule.title
    own = rule.ruling
    return (
        label,
        meaning,
        rule.group.value,
        own.severity.name.lower(),
        code(own.recommended_action.value),
        "; ".join(more),
    )


def _action(ruling: Any) -> str:
    return f"{ruling.severity.name.lower()}, {ruling.recommended_action.value}"
