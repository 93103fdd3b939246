"""A device whose measurement stands apart from its cohort, again and again.

Two witnesses: robust z within the cohort (median and MAD), N of the last M samples on the side that matters, and,
where the stream has a past, a CUSUM over its own usual difference to the cohort. What begins at a tick must pass as a
discovery among all streams (``fdr``), at a stated number of false alarms a day and with the tails that the fleet
really has. A long enough calm ends it. A cohort too small to have a middle is not judged, a missing sample counts for
neither side, and so does a sensor that is stuck while its peers' move. Cohorts run different jobs, the GPUs of a node
mostly the same one: what depends on the work is compared with both, and without siblings at work it is information. A
host that has just booted is not judged.

The dense part (``streams``, ``peers``) is arrays over all entities, what is odd is handled one by one: 80,000 cards
with 40 signals take tens of milliseconds a tick (``bench/detect_engine.py``).

Corrected errors of memory and PCIe are not here: ``error_drift`` owns them, ``pcie`` and ``nvlink`` the links.
So each kind of finding about a GPU has one owner, but for ``pcie_degraded``, of which two detectors are independent
witnesses.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mainstay.detectors.base import ArrayDetector, Bools, DetectorState, DetectorStatus, Floats, Samples
from mainstay.detectors.entity_state import EntityState, median
from mainstay.detectors.finding import Evidence, Finding, FindingKind
from mainstay.detectors.gpu import context as gpu_context
from mainstay.detectors.series import draw_series
from mainstay.detectors.statistics import fdr
from mainstay.detectors.statistics.outlier_rules import BUSY_SIGNAL, RULES, OutlierConfig, OutlierRuleArrays
from mainstay.detectors.statistics.outlier_streams import STRIDE, OutlierStreams, SignalTick
from mainstay.detectors.statistics.peers import Peers, Rows32
from mainstay.probes.core_types import Severity
from mainstay.probes.signals import SIGNALS

_TAIL_INVERSE = (0.0, 1 / 64, 1 / 32, 1 / 24, 1 / 16, 1 / 12, 1 / 10, 1 / 8)
_TAIL_FACTOR = (1.0, 1.18, 1.41, 1.57, 2.0, 2.5, 3.1, 4.2)
"""By 1 / cohort size: quantile of robust z at p = 1e-4 over the normal's 3.89, by simulation of normal samples: with
eight peers the MAD itself is so uncertain that z = 16 is as rare as z = 4 in a large cohort."""


@dataclass(slots=True)
class _Tick:
    """What one tick collects on its way over the signals."""

    lines: list[tuple[int, int]]
    masks: tuple[Bools, Bools, Bools]
    known: dict[int, npt.NDArray[np.intp]] = field(default_factory=dict)
    """Line → odd rows whose siblings could be asked."""
    z: dict[int, tuple[npt.NDArray[np.intp], Rows32]] = field(default_factory=dict)
    """Line → rows held when the tick began, and their z."""
    may_begin: list[tuple[int, int, float]] = field(default_factory=list)
    changed: list[tuple[int, int, float]] = field(default_factory=list)
    """(line, row, z)"""


class OutlierDetector(ArrayDetector):
    """Peer and self test with hysteresis, for every signal that ``Config.rules`` knows.

    Entities are devices (hosts and GPUs), groups their cohorts.
    """

    name = "outlier"
    kinds = frozenset(rule.kind for rule in RULES.values())
    signals = (*RULES, BUSY_SIGNAL)
    host_signals = (gpu_context.UPTIME,)

    Config = OutlierConfig
    config: OutlierConfig

    def reset(self) -> None:
        c = self.config
        self._plan = OutlierRuleArrays(c.rules)
        self._streams = OutlierStreams(c, len(c.rules))
        self._tails = fdr.Tails(len(c.rules), threshold=c.off, censor=c.on)
        self._peers = Peers(least=c.least_cohort, sample=c.drawn_peers)
        self._middles = np.full((c.drawn, len(c.rules), 1), np.nan, np.float32)
        self._times = np.full(c.drawn, np.nan)
        self._ticks = 0
        self._at = 0  # where in the ring of drawn samples the latest one lies
        self._siblings = gpu_context.Siblings()
        self._stuck = 0
        super().reset()

    def _rows(self) -> EntityState:
        signals, config = len(self.config.rules), self.config
        rows = EntityState().field("calm", 0, np.uint8, lead=(signals,))
        rows.field("grave", fill=False, dtype=np.bool_, lead=(signals,))
        rows.field("x", np.nan, np.float32, lead=(config.drawn, signals))
        rows.field("name", 0, np.uint32)  # hashed, for the draw of peers
        return self._streams.declare(rows)

    def _judging(self) -> DetectorStatus:
        judged = float(np.count_nonzero(self._peers.index < len(self._peers.labels)))
        numbers = {"entities": float(len(self.rows.entities)), "judged": judged, "stuck_sensors": float(self._stuck)}
        numbers["tail_scale"] = float(self._tails.scale.max())
        if not judged:
            return DetectorStatus(
                state=DetectorState.ABSTAINING, reason="No cohort is large enough to have a middle.", numbers=numbers
            )
        return DetectorStatus(state=DetectorState.ACTIVE, numbers=numbers)

    @property
    def nbytes(self) -> int:
        """Bytes of state that grow with the fleet."""
        return self.rows.nbytes + self._middles.nbytes + self._peers.index.nbytes

    def _held(self, row: int) -> list[FindingKind]:
        return list(dict.fromkeys(self._plan.kinds[s] for s in np.flatnonzero(self.rows["state"][:, row])))

    def _tick(self, samples: Samples, k: int) -> list[Finding]:
        former = self._peers.follow(samples, self.rows["name"])
        if former is not None:
            last = self._middles.shape[2] - 1  # the entry without a cohort, which is NaN
            self._middles = self._middles[:, :, [last if old < 0 else old for old in (*former, -1)]]
        self._streams.resize(len(samples.entities), moved=former is not None)
        self._ticks += 1
        self._at = self._ticks % self.config.drawn
        self._times[self._at] = samples.t[k]
        self._stuck = 0
        tick = _Tick(self._plan.lines(samples.signals), self._masks(samples, k))
        absent = sorted({*range(len(self._plan.rules))} - {line for line, _ in tick.lines})
        self.rows["x"][self._at, absent] = np.nan
        with np.errstate(all="ignore"):  # nonsense far beyond any signal's range may overflow float32: not finite
            for line, column in tick.lines:
                self._judge_line(samples, k, line, column, tick)
        return self._conclude(samples, tick, float(samples.t[k]))

    def _masks(self, samples: Samples, k: int) -> tuple[Bools, Bools, Bools]:
        """Who is not judged: just booted; not surely at work; surely not at work."""
        load = samples.signal(k, BUSY_SIGNAL)
        young = ~gpu_context.settled(samples.signal(k, gpu_context.UPTIME), self.config.boot_grace)
        return young, young | ~(load >= self.config.busy_ratio), young | (load < self.config.busy_ratio)

    def _judge_line(self, samples: Samples, k: int, line: int, column: int, tick: _Tick) -> None:
        """One signal of all entities."""
        plan, rows = self._plan, self.rows
        x = rows["x"][self._at, line]
        x[...] = samples.x[k, column]
        hidden = tick.masks[1 if plan.busy[line] else 2 if plan.cold[line] else 0]
        if hidden.any():
            x[hidden] = np.nan
        middle, scale, count = self._peers.middle(x)
        scale = np.fmax(scale * _tail(count), np.maximum(plan.quantum[line], plan.share[line] * np.abs(middle)))
        scale[np.isnan(middle)] = np.nan
        self._middles[self._at, line] = middle
        z = self._streams.compare(x, middle, (plan.side[line] / scale).astype(np.float32), self._peers)
        turn = self._streams.is_due(line, self._ticks)
        if turn:
            self._streams.inspect_line(rows, line, x, rows["x"][self._at - 1, line])
        stuck = self._streams.stuck(rows, line, self._peers)
        z[stuck] = np.nan
        self._stuck += len(stuck)
        if plan.work[line]:
            self._ask_siblings(samples, line, z, scale, tick)
        seen = self._streams.mark(rows, line)
        self._streams.rise(rows, line, keep=turn)
        if turn:
            self._streams.learn(rows, line, side=plan.side[line], floor=float(plan.quantum[line]))
        self._tails.note(line, int(np.count_nonzero(seen.valid)), seen.z[seen.onset])
        self._begin_or_end(line, seen, tick)

    def _ask_siblings(
        self, samples: Samples, line: int, z: Rows32, scale: npt.NDArray[np.float32], tick: _Tick
    ) -> None:
        """Of what depends on the work: the lesser z of cohort and siblings; and where siblings could be asked."""
        x = self.rows["x"][self._at, line]
        odd = np.flatnonzero(z >= self.config.off)
        if not len(odd):
            return
        others = self._siblings.find_siblings(samples, odd)
        values = np.where(others >= 0, x[others], np.nan)
        asked = np.count_nonzero(np.isfinite(values), axis=1) >= self.config.least_siblings
        away = (x[odd] - median(values)) * self._plan.side[line] / scale[self._peers.index[odd]]
        z[odd] = np.where(asked, np.minimum(z[odd], away), z[odd])
        tick.known[line] = odd[asked]

    def _begin_or_end(self, line: int, seen: SignalTick, tick: _Tick) -> None:
        """End what has been calm for long enough, and collect what may begin."""
        rows, config = self.rows, self.config
        loud, state, z = rows["loud"][line], rows["state"][line], seen.z
        held = np.flatnonzero(state)
        if len(held):
            tick.z[line] = held, z[held].copy()
            calm = rows["calm"][line]
            now = z[held]
            calm[held] = np.where(np.isfinite(now), np.where(now < config.off, calm[held] + 1, 0), calm[held])
            ended = held[calm[held] >= config.calm_samples]
            state[ended] = False
            rows["risen"][line, ended] = 0.0
            tick.changed += [(line, int(row), float(z[row])) for row in ended]
        over = seen.over[~state[seen.over] & (np.bitwise_count(loud[seen.over]) >= config.needed)]
        if not len(over):
            return
        own = (rows["age"][line, over] < config.learned // STRIDE) | (rows["risen"][line, over] >= config.alarm)
        tick.may_begin += [(line, int(row), float(z[row])) for row in over[own]]

    def _conclude(self, samples: Samples, tick: _Tick, time: float) -> list[Finding]:
        """Begin what passes as a discovery among all streams, weigh what holds, and say what has changed."""
        rows, config = self.rows, self.config
        lines = np.array([line for line, _, _ in tick.may_begin], np.intp)
        z = np.array([z for _, _, z in tick.may_begin])
        p = np.where(z >= config.surely, 0.0, self._tails.p(lines, z))
        tests = max(len(tick.lines) * len(samples.entities), len(z))
        passed = fdr.discoveries(p, fdr.level_per_tick(config.false_alarms_a_day), tests=tests)
        for (line, row, value), begins in zip(tick.may_begin, passed, strict=True):
            if begins:
                rows["state"][line, row], rows["calm"][line, row] = True, 0
                tick.changed.append((line, row, value))
        tick.changed.sort()
        tick.changed += self._weigh(samples, tick)
        return [finding for line, row, value in tick.changed for finding in self._say(line, row, value, time)]

    def _weigh(self, samples: Samples, tick: _Tick) -> list[tuple[int, int, float]]:
        """Note what is worth a warning; returns what has become so without having changed otherwise."""
        state, grave, plan = self.rows["state"], self.rows["grave"], self._plan
        told: set[tuple[int, int]] = {(line, row) for line, row, _ in tick.changed}
        turned = []
        for line in sorted({*tick.z, *(line for line, _ in told)}):
            held = np.flatnonzero(state[line])
            before = grave[line, held]
            worth = np.isin(held, tick.known.get(line, ())) if plan.work[line] else np.ones(len(held), np.bool_)
            x = self.rows["x"][self._at, line, held]
            worth &= plan.warns[line] & np.isfinite(x) & ~(x * plan.side[line] < plan.worth[line] * plan.side[line])
            if plan.clock[line]:
                worth &= self._unexplained(samples, held, tick)
            grave[line] = False
            grave[line, held] = before | worth
            rows, z = tick.z.get(line, (held[:0], np.zeros(0, np.float32)))
            newly = held[worth & ~before].tolist()
            turned += [(line, row, float(z[rows == row][0])) for row in newly if (line, row) not in told]
        return turned

    def _unexplained(self, samples: Samples, held: npt.NDArray[np.intp], tick: _Tick) -> Bools:
        """A low clock at a power like the siblings' is a thirsty chip at its power limit, as some chips are."""
        power = self._plan.power
        if power not in {line for line, _ in tick.lines} or power is None:
            return np.zeros(len(held), np.bool_)
        x = self.rows["x"][self._at, power]
        others = self._siblings.find_siblings(samples, held)
        usual = median(np.where(others >= 0, x[others], np.nan))
        return np.asarray(x[held] < self.config.less_power * usual)

    def _say(self, signal: int, row: int, z: float, time: float) -> list[Finding]:
        rule = self._plan.rules[signal]
        entity = self.rows.entities[row]
        active = bool(self.rows["state"][signal, row])
        if not active and rule.kind in self._held(row):
            return []  # another signal still says the same thing
        if not active:
            return [
                self._ended(
                    rule.kind, entity, time, f"The {rule.words} of {gpu_context.place(entity)} is back among its peers."
                )
            ]
        alike = [i for i, other in enumerate(self._plan.rules) if other.kind is rule.kind]
        grave = bool(self.rows["grave"][alike, row].any())  # one finding speaks for all signals of its kind
        severity = Severity.WARNING if grave else Severity.INFO
        return [
            self._finding(rule.kind, entity, time, self._evidence(signal, row, z), severity=severity, confidence=0.9)
        ]

    def _evidence(self, signal: int, row: int, z: float) -> Evidence:
        name, rule = self._plan.names[signal], self._plan.rules[signal]
        order = np.arange(self._at + 1, self._at + 1 + self.config.drawn) % self.config.drawn  # oldest first
        y = self.rows["x"][order, signal, row]
        peers = self._middles[order, signal, self._peers.index[row]]
        unit = SIGNALS[name].unit + ("/s" if SIGNALS[name].kind == "counter" else "")
        value, middle = float(y[-1]), float(peers[-1])
        word = "above" if rule.side > 0 else "below"
        return Evidence(
            summary=f"The {rule.words} of {gpu_context.place(self.rows.entities[row])} is {_spoken(value, unit)}, "
            f"{word} its cohort's {_spoken(middle, unit)}, "
            f"in {self.config.needed} of {self.config.of_last} samples.",
            numbers={"value": value, "peers_median": middle, "z": z},
            series=draw_series(name, unit, self._times[order], y, peers=peers),
        )


def _spoken(value: float, unit: str) -> str:
    """A value as people say it: ``1.32 GHz``, ``88 C``, ``0.3``."""
    if unit == "Hz":
        return f"{value / 1e9:.3g} GHz"
    return f"{value:.3g} {unit}".removesuffix(" 1").replace(" 1/s", " a second")


def _tail(count: npt.NDArray[np.intp]) -> Floats:
    """How much wider the scale must be for a cohort of this size."""
    return np.interp(1.0 / np.maximum(count, 1), _TAIL_INVERSE, _TAIL_FACTOR)
