"""The policy in memory: frozen, comparable, and complete (every code has an answer, a known one or the default).

A policy says what one code means alone (severity, recommended action) and how that grows: by repetition, with another
code, by what the line says after the number, and by actions that did not help. The table is data, ``xid.toml`` and
``sxid.toml``; ``mainstay.detectors.policy.load`` reads it strictly, ``mainstay.detectors.policy.judge`` applies it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Final

from msgspec import Meta

from mainstay.probes.core_types import RecommendedAction, Severity

MAX_CODE: Final = 99_999  # SXIDs have five digits
Code = Annotated[int, Meta(ge=0, le=MAX_CODE)]
Hours = Annotated[float, Meta(ge=1 / 60, le=24 * 90)]
Seconds = Annotated[float, Meta(ge=0, le=7200)]
Tries = Annotated[int, Meta(ge=1, le=20)]


class Family(StrEnum):
    """Whose number it is."""

    XID = "xid"  # the GPU driver's
    SXID = "sxid"  # the NVSwitch driver's


class ErrorGroup(StrEnum):
    """What part of the machine a code is about: actions are counted per group, and links are forgiven at reboots."""

    APP = "app"  # the program's own fault
    ENGINE = "engine"  # copy, video, JPEG and optical-flow engines
    MEMORY = "memory"
    LINK = "link"  # NVLink and the chip-to-chip link
    FABRIC = "fabric"  # NVSwitch
    BUS = "bus"  # PCIe and power connectors
    FIRMWARE = "firmware"  # micro-controllers, driver, stuck channels
    CONFIG = "config"
    POWER = "power"
    SUMMARY = "summary"  # the driver's own conclusion from other codes
    ECHO = "echo"  # follows from another code
    LOG = "log"  # kept, never acted upon


class Architecture(StrEnum):
    """Where a code can appear."""

    AMPERE = "ampere"
    HOPPER = "hopper"
    BLACKWELL = "blackwell"
    GRACE = "grace"  # superchips: a CPU beside the GPU


class RepeatScope(StrEnum):
    """What two occurrences must share to count as a repeat."""

    PLACE = "place"  # the same GPC and TPC of the same GPU
    JOBS = "jobs"  # the same GPU, but another job or process
    DEVICE = "device"  # the same GPU
    LINK = "link"  # the same link of the same GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleAction:
    """What follows from a code."""

    severity: Severity
    recommended_action: RecommendedAction
    because: Annotated[str, Meta(max_length=200)] = ""
    """Why it is more (or less) than the code alone, as part of a sentence; empty for the code's own answer."""

    @property
    def weight(self) -> tuple[int, int]:
        """The heavier of two is the worse."""
        return (self.severity.level, self.recommended_action.level)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """From ``count`` occasions within ``hours`` on, the ruling is another one."""

    name: str
    count: Annotated[int, Meta(ge=2, le=1000)]
    hours: Hours
    same: RepeatScope
    ruling: RuleAction
    enabled: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Cooccurrence:
    """Another code of the same GPU within ``minutes``: the two together mean more than each."""

    name: str
    codes: frozenset[Code]
    minutes: Annotated[float, Meta(ge=0.1, le=24 * 60 * 7)] = 60.0
    ruling: RuleAction
    enabled: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageMatch:
    """What the line says in addition to the number: the first entry of which every word occurs decides."""

    name: str
    words: tuple[Annotated[str, Meta(max_length=100)], ...]
    """Compared without regard to case; a line without text matches none."""
    ruling: RuleAction


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterMatch:
    """What a register printed with the error says (XID 74): any of ``bits`` of register ``register`` is set."""

    name: str
    register: Annotated[int, Meta(ge=0, le=15)]
    bits: frozenset[Annotated[int, Meta(ge=0, le=31)]]
    ruling: RuleAction
    alone: bool = False
    """Only when no other code was reported for the GPU."""
    count: Annotated[int, Meta(ge=1, le=1000)] = 1
    """Occasions within a day before it counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class XidRule:
    """One code."""

    family: Family
    code: int | None
    """None for the answer to codes that the table does not know."""
    title: Annotated[str, Meta(max_length=120)]
    group: ErrorGroup
    ruling: RuleAction
    note: Annotated[str, Meta(max_length=1000)] = ""
    architectures: frozenset[Architecture] = frozenset()
    """Empty: any, or unknown."""
    tries: Tries | None = None
    """Actions that may fail before an operator has to look; None: as the ladder says."""
    echo: bool = False
    """Follows from another code: said once a job and node, never counted."""
    leads: bool = False
    """The driver's own conclusion: its action precedes the resets and reboots of the GPU's other codes."""
    many: bool = False
    """On several GPUs at once it is the program's fault and no repeat."""
    repeats: tuple[Repeat, ...] = ()
    companies: tuple[Cooccurrence, ...] = ()
    wordings: tuple[MessageMatch, ...] = ()
    registers: tuple[RegisterMatch, ...] = ()
    worst: RuleAction | None = None
    """The heaviest of all its rulings; None: not worked out, so it may be anything."""
    overridden: bool = False

    @property
    def label(self) -> str:
        """``XID 79``, as operators say it."""
        return f"{self.family.value.upper()} {'?' if self.code is None else self.code}"

    @property
    def repeat_text(self) -> str | None:
        """The rules of repetition in a sentence, or None."""
        told = [
            f"{r.count} in {r.hours:g} h ({r.same.value}): {r.ruling.severity}, {r.ruling.recommended_action}"
            for r in self.repeats
            if r.enabled
        ]
        if self.tries is not None:
            told.append(f"after {self.tries} failed action{'' if self.tries == 1 else 's'}: inspect_node")
        return "; ".join(told) or None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySettings:
    """What is the same for all codes. Each default has its reason; a site may change every one."""

    together_seconds: Annotated[float, Meta(ge=1, le=3600)] = 60.0
    """Lines of one fault: a warp exception prints dozens within seconds, a crashing job some minutes' worth at most."""
    spread: Annotated[int, Meta(ge=1, le=1000)] = 4
    """A fault of one spot names one or two GPC/TPC; a program's fault names as many as it runs on."""
    boot_grace_seconds: Seconds = 300.0
    """Links train and the fabric manager starts within 1-4 min of boot, noisily."""
    planned_seconds: Seconds = 120.0
    """An orderly stop takes its time: unloading the driver takes links down up to 2 min around the shutdown notice."""
    forgiven: frozenset[ErrorGroup] = frozenset({ErrorGroup.LINK, ErrorGroup.FABRIC})
    """Groups whose codes mean nothing at boot and during a planned stop."""
    tries: Tries = 2
    """Resets or reboots that may fail within ``tries_days``; then an operator has to look."""
    replace_tries: Annotated[int, Meta(ge=1, le=40)] = 4
    """And after so many the part is to be replaced."""
    tries_days: Annotated[float, Meta(ge=0.01, le=90)] = 7.0
    """Faults further apart than a week are rarely one story."""
    quiet_info_hours: Hours = 1.0
    """Mere information ends after this without a repeat."""
    quiet_warning_hours: Hours = 24.0
    """A suspicion ends after this: the longest window of the built-in repeat rules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class XidPolicy:
    """The effective table."""

    rules: Mapping[str, XidRule]
    """``"xid:79"`` → rule, and ``"xid:"`` for what the table does not know (text keys, so that JSON carries it)."""
    settings: PolicySettings = field(default_factory=PolicySettings)
    digest: str = ""
    """SHA-256 of everything above, hexadecimal: equal digests judge alike."""

    def __repr__(self) -> str:
        return f"Policy({self.digest[:12]}, {len(self.rules)} rules)"

    def rule(self, family: Family, code: int | None) -> XidRule:
        """The code's rule, or the family's default."""
        found = None if code is None else self.rules.get(f"{family.value}:{code}")
        return found or self.rules[f"{family.value}:"]
