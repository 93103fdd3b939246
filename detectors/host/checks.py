"""A host's own troubles: full disks, no memory, a wrong clock, no fabric manager, stuck processes, failing memory.

One table of checks: a limit with hysteresis, how long it must hold, how long calm ends it. Nothing here takes a node
out of service alone: an operator repairs a full disk or a dead daemon in place. Several checks may say the same kind of
one host; the kind is over when none of them holds. What depends on how a site is built (a fabric manager in another
virtual machine, no time daemon at all) is judged only against what this host or its peers once showed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mainstay.detectors.base import Array, ArrayDetector, Bools, Floats, Samples
from mainstay.detectors.entity_state import EntityState
from mainstay.detectors.finding import Entity, Evidence, Finding, FindingKind
from mainstay.detectors.series import draw_series
from mainstay.probes.core_types import RecommendedAction, Severity
from mainstay.probes.signals import SIGNALS

_K, _S = FindingKind, Severity
_SLOT = 10.0  # seconds of one drawn point: how often the slow signals are read


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCheck:
    """A limit on one signal, or on what is derived from it under another name."""

    kind: FindingKind
    signal: str
    on: float
    """At or above this value it is bad."""
    off: float
    """Below this value it is calm."""
    hold: float
    """Seconds for which it must be bad."""
    calm: float
    """Seconds of calm that end it."""
    severity: Severity
    text: str
    """What is the matter, after the host's name; ``{value}`` and ``{percent}`` are filled in."""
    recommended_action: RecommendedAction = RecommendedAction.MONITOR
    readings: int = 2
    """Bad readings that it takes: one may be a misreading."""
    unit: str = ""


def _disk(signal: str, what: str, *, on: float, severity: Severity) -> HostCheck:
    # Off three points lower: what is deleted and written again in the meantime is no news.
    text = f"has {{percent}} of {what} in use"
    return HostCheck(
        kind=_K.DISK_FULL, signal=signal, on=on, off=on - 0.03, hold=30.0, calm=60.0, severity=severity, text=text
    )


OOM_HOST, OOM_GROUP, FABRIC, FABRIC_UNSEEN = "oom_host", "oom_group", "fabric_dead", "fabric_unseen"
UNSYNCHRONIZED, DRAM_RATE = "unsynchronized", "dram_corrected_per_hour"

CHECKS: tuple[HostCheck, ...] = (
    # The kernel reserves 5 % of a disk for root: at 97 % of the rest jobs cannot write their checkpoints any more.
    _disk("disk_used_ratio", "its root file system", on=0.90, severity=_S.INFO),
    _disk("disk_used_ratio", "its root file system", on=0.97, severity=_S.WARNING),
    _disk("inodes_used_ratio", "its inodes", on=0.90, severity=_S.INFO),
    _disk("inodes_used_ratio", "its inodes", on=0.97, severity=_S.WARNING),
    # Snapshots fill shared memory on purpose; only the last percent makes programs die of SIGBUS.
    _disk("shm_used_ratio", "its shared memory", on=0.99, severity=_S.INFO),
    # A kill is a fact: one reading. Ten minutes tell a host that is short of memory from one that was.
    HostCheck(kind=_K.OUT_OF_MEMORY, signal=OOM_GROUP, on=0.5, off=0.5, hold=0.0, calm=600.0, readings=1,
          severity=_S.INFO, recommended_action=RecommendedAction.RESTART_JOB,
          text="killed a process that reached its group's memory limit"),
    HostCheck(kind=_K.OUT_OF_MEMORY, signal=OOM_HOST, on=0.5, off=0.5, hold=0.0, calm=600.0, readings=1,
          severity=_S.WARNING, recommended_action=RecommendedAction.RESTART_JOB,
          text="ran out of memory and killed a process"),
    # A disciplined clock is good to a millisecond; at a tenth of a second logs of nodes no longer interleave, at half
    # a second decisions by time go wrong. A time server may be away for half an hour without harm.
    HostCheck(kind=_K.CLOCK_SKEW, signal="clock_error_seconds", on=0.1, off=0.05, hold=60.0, calm=60.0,
          severity=_S.INFO, text="has a clock that may be wrong by {value:.3g} s"),
    HostCheck(kind=_K.CLOCK_SKEW, signal="clock_error_seconds", on=0.5, off=0.25, hold=60.0, calm=60.0,
          severity=_S.WARNING, text="has a clock that may be wrong by {value:.3g} s"),
    HostCheck(kind=_K.CLOCK_SKEW, signal=UNSYNCHRONIZED, on=0.5, off=0.5, hold=1800.0, calm=60.0,
          severity=_S.INFO, text="has lost its time source: nothing disciplines its clock"),
    # Restarting the service takes some ten seconds. Without it GPUs cannot reach each other through the switches.
    HostCheck(kind=_K.FABRIC_DOWN, signal=FABRIC, on=0.5, off=0.5, hold=20.0, calm=20.0,
          severity=_S.CRITICAL, text="has no fabric manager running: its GPUs cannot use NVLink; start the service"),
    HostCheck(kind=_K.FABRIC_DOWN, signal=FABRIC_UNSEEN, on=0.5, off=0.5, hold=300.0, calm=20.0,
          severity=_S.INFO, text="has NVSwitches and no fabric manager that can be seen from here"),
    # Ten seconds are counted by the sampler already. The kernel itself complains after two minutes.
    HostCheck(kind=_K.KERNEL_FAULT, signal="processes_stuck", on=1.0, off=1.0, hold=60.0, calm=60.0,
          severity=_S.INFO, text="has {value:.0f} process(es) that wait in the kernel and cannot be killed"),
    HostCheck(kind=_K.KERNEL_FAULT, signal="processes_stuck", on=1.0, off=1.0, hold=600.0, calm=60.0,
          severity=_S.WARNING, text="has {value:.0f} process(es) stuck in the kernel for more than ten minutes"),
    HostCheck(kind=_K.KERNEL_FAULT, signal="filesystems_read_only", on=1.0, off=1.0, hold=10.0, calm=60.0,
          severity=_S.WARNING, text="has {value:.0f} local file system(s) that turned read-only"),
    # Some corrected errors an hour are the life of memory; one a second keeps a core busy with reporting them.
    HostCheck(kind=_K.ECC_CORRECTED, signal=DRAM_RATE, on=100.0, off=20.0, hold=0.0, calm=3600.0,
          severity=_S.INFO, text="corrects {value:.0f} memory errors an hour", unit="1/h"),
    HostCheck(kind=_K.ECC_CORRECTED, signal=DRAM_RATE, on=3600.0, off=720.0, hold=60.0, calm=3600.0,
          severity=_S.WARNING, text="corrects {value:.0f} memory errors an hour", unit="1/h"),
    # The kernel takes the page out of use, or the machine stops. A second one soon after is a bad module.
    HostCheck(kind=_K.ECC_UNCORRECTABLE, signal="dram_uncorrected_total", on=1e-9, off=1e-9, hold=0.0, calm=21_600.0,
          readings=1, severity=_S.WARNING, text="had a memory error that could not be corrected"),
)  # fmt: skip
_DERIVED = frozenset({OOM_HOST, OOM_GROUP, FABRIC, FABRIC_UNSEEN, UNSYNCHRONIZED, DRAM_RATE})
_RAW = ("oom_kills_total", "memory_used_ratio", "fabric_manager_up", "clock_synchronized", "dram_corrected_total")
_ORDER = (_S.INFO, _S.WARNING, _S.CRITICAL)


class HostDetector(ArrayDetector):
    """Says what ``CHECKS`` find. Entities are hosts, groups their cohorts."""

    name = "host_checks"
    kinds = frozenset(check.kind for check in CHECKS)
    usual_causes = True
    usual_confidence = 0.95
    signals = (*dict.fromkeys(c.signal for c in CHECKS if c.signal not in _DERIVED), *_RAW, "uptime_seconds")

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Config:
        boot_grace_seconds: float = 600.0
        """Services start, clocks are set and disks are checked in the first minutes: nothing is judged."""
        memory_short_ratio: float = 0.9
        """Memory in use within the last minute from which a kill is the host's want, not a group's limit."""
        memory_seconds: float = 60.0
        synchronized_readings: int = 6
        """Readings with a disciplined clock after which losing it means something."""
        least_peers: int = 4
        """Hosts that show by majority whether a fabric manager can be seen at this site."""
        rate_seconds: float = 600.0
        """Over which memory errors are averaged."""
        drawn: int = 32
        """Points of ten seconds drawn in the evidence."""

    config: Config

    def reset(self) -> None:
        super().reset()
        self._times = np.full(self.config.drawn, np.nan)

    def _rows(self) -> EntityState:
        lead = (len(CHECKS),)
        rows = EntityState().field("since", np.nan, lead=lead).field("calm_since", np.nan, lead=lead)
        rows.field("bad", 0, np.int32, lead=lead).field("state", fill=False, dtype=np.bool_, lead=lead)
        rows.field("said", -1, np.int8, lead=(len(_KINDS),))
        rows.field("drawn", np.nan, np.float32, lead=(self.config.drawn, len(CHECKS)))
        rows.field("fabric_seen", fill=False, dtype=np.bool_).field("synchronized", 0, np.int32)
        rows.field("short_at", np.nan).field("corrected", np.nan).field("corrected_at", np.nan)
        return rows

    def _held(self, row: int) -> list[FindingKind]:
        return [kind for n, kind in enumerate(_KINDS) if self.rows["said"][n, row] >= 0]

    def _tick(self, samples: Samples, k: int) -> list[Finding]:
        t = float(samples.t[k])
        derived = self._derive(samples, k, t)
        x = np.array([derived[c.signal] if c.signal in _DERIVED else samples.signal(k, c.signal) for c in CHECKS])
        x[:, samples.signal(k, "uptime_seconds") < self.config.boot_grace_seconds] = np.nan
        self._draw(t, x)
        self._decide(t, x)
        return self._speak(t, x)

    def _derive(self, samples: Samples, k: int, t: float) -> dict[str, Floats]:
        rows, config = self.rows, self.config
        memory, kills = samples.signal(k, "memory_used_ratio"), samples.signal(k, "oom_kills_total")
        rows["short_at"][memory >= config.memory_short_ratio] = t
        with np.errstate(invalid="ignore"):
            short = t - rows["short_at"] <= config.memory_seconds
        killed = np.where(np.isnan(kills), np.nan, kills > 0.0)
        clock = samples.signal(k, "clock_synchronized")
        rows["synchronized"] = rows["synchronized"] + (clock == 1.0)
        trusted = rows["synchronized"] >= config.synchronized_readings
        return {
            OOM_HOST: np.where(short, killed, killed * 0.0),
            OOM_GROUP: np.where(short, killed * 0.0, killed),
            UNSYNCHRONIZED: np.where(trusted, 1.0 - clock, np.nan),
            DRAM_RATE: self._corrected(samples.signal(k, "dram_corrected_total"), t),
            **self._fabric(samples, k),
        }

    def _fabric(self, samples: Samples, k: int) -> dict[str, Floats]:
        """Dead where it was seen alive, or where most peers show one; else it only cannot be seen."""
        up = samples.signal(k, "fabric_manager_up")
        self.rows["fabric_seen"] |= up == 1.0
        expected = self.rows["fabric_seen"].copy()
        for members in self._members(samples):
            seen = np.count_nonzero(self.rows["fabric_seen"][members])
            if len(members) >= self.config.least_peers and seen > len(members) / 2:
                expected[members] = True
        dead = 1.0 - up
        return {FABRIC: np.where(expected, dead, dead * 0.0), FABRIC_UNSEEN: np.where(expected, dead * 0.0, dead)}

    def _corrected(self, rate: Floats, t: float) -> Floats:
        """Corrected errors an hour, averaged; NaN where nothing was read now."""
        rows = self.rows
        read = np.isfinite(rate)
        elapsed = np.where(np.isnan(rows["corrected_at"]), 0.0, t - rows["corrected_at"])
        weight = -np.expm1(-elapsed / self.config.rate_seconds)
        mean = np.where(np.isnan(rows["corrected"]), 0.0, rows["corrected"])
        rows["corrected"] = np.where(read, mean + weight * (rate * 3600.0 - mean), rows["corrected"])
        rows["corrected_at"][read] = t
        return np.where(read, rows["corrected"], np.nan)

    def _draw(self, t: float, x: Floats) -> None:
        at = int(t // _SLOT) % self.config.drawn
        start = t // _SLOT * _SLOT
        if self._times[at] != start:
            self._times[at] = start
            self.rows["drawn"][at] = np.nan
        drawn: Array = self.rows["drawn"]
        drawn[at] = np.where(np.isnan(x), drawn[at], x)

    def _decide(self, t: float, x: Floats) -> None:
        rows = self.rows
        with np.errstate(invalid="ignore"):
            bad: Bools = x >= _ON
            calm: Bools = x < _OFF
        between = np.isfinite(x) & ~bad
        rows["bad"] = np.where(bad, rows["bad"] + 1, np.where(between, 0, rows["bad"]))
        rows["since"] = np.where(bad, np.fmin(rows["since"], t), np.where(between, np.nan, rows["since"]))
        quiet = np.where(calm, np.fmin(rows["calm_since"], t), rows["calm_since"])
        rows["calm_since"] = np.where(np.isfinite(x) & ~calm, np.nan, quiet)
        with np.errstate(invalid="ignore"):
            begins = bad & (t - rows["since"] >= _HOLD) & (rows["bad"] >= _READINGS)
            ends = calm & (t - rows["calm_since"] >= _CALM)
        rows["state"] = np.where(rows["state"], ~ends, begins)

    def _speak(self, t: float, x: Floats) -> list[Finding]:
        """Say of each kind how severe it is now, where that changed: the worst of the checks that hold."""
        rows = self.rows
        found: list[Finding] = []
        for n, mine in enumerate(_CHECKS_OF):
            level = np.where(rows["state"][mine], _LEVEL[mine], -1).max(axis=0, initial=-1)
            changed = np.flatnonzero(level != rows["said"][n])
            found.extend(self._say(n, int(row), int(level[row]), t, x) for row in changed)
            rows["said"][n] = level
        return found

    def _say(self, n: int, row: int, level: int, t: float, x: Floats) -> Finding:
        entity = self.rows.entities[row]
        if level < 0:
            return self._ended(_KINDS[n], entity, t, f"{host_name(entity)}: {_OVER[_KINDS[n]]}.")
        c = next(c for c in _CHECKS_OF[n] if self.rows["state"][c, row] and _LEVEL[c] == level)
        check = CHECKS[c]
        evidence, action = self._evidence(c, row, float(x[c, row])), check.recommended_action
        return self._finding(check.kind, entity, t, evidence, severity=check.severity, recommended_action=action)

    def _evidence(self, c: int, row: int, value: float) -> Evidence:
        check = CHECKS[c]
        order = np.argsort(self._times, kind="stable")
        unit = check.unit or (SIGNALS[check.signal].unit if check.signal in SIGNALS else "1")
        drawn = self.rows["drawn"][order, c, row]
        series = draw_series(check.signal, unit, self._times[order], drawn, threshold=check.on)
        if not np.isfinite(value):  # it is the time that made it hold, or another check that ended
            value = series[0].y[-1] if series else check.on
        text = check.text.format(value=value, percent=f"{value:.1%}")
        return Evidence(
            summary=f"{host_name(self.rows.entities[row])} {text}.",
            numbers={"value": value, "limit": check.on},
            series=series,
        )


_KINDS = tuple(dict.fromkeys(check.kind for check in CHECKS))
_CHECKS_OF: tuple[npt.NDArray[np.intp], ...] = tuple(
    np.array([c for c, check in enumerate(CHECKS) if check.kind is kind], dtype=np.intp) for kind in _KINDS
)
_LEVEL = np.array([_ORDER.index(check.severity) for check in CHECKS], dtype=np.int8)[:, None]
_ON = np.array([check.on for check in CHECKS])[:, None]
_OFF = np.array([check.off for check in CHECKS])[:, None]
_HOLD = np.array([check.hold for check in CHECKS])[:, None]
_CALM = np.array([check.calm for check in CHECKS])[:, None]
_READINGS = np.array([check.readings for check in CHECKS])[:, None]
_OVER = {
    _K.DISK_FULL: "there is room on its disks again",
    _K.OUT_OF_MEMORY: "no process was killed for want of memory any more",
    _K.CLOCK_SKEW: "its clock is right again",
    _K.FABRIC_DOWN: "its fabric manager runs again",
    _K.KERNEL_FAULT: "no process is stuck and no file system is read-only any more",
    _K.ECC_CORRECTED: "its memory has few errors again",
    _K.ECC_UNCORRECTABLE: "its memory had no further error that could not be corrected",
}


def host_name(entity: Entity) -> str:
    return f"Host {entity.node}" if entity.node else "The host"
