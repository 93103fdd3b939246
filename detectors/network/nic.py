"""Network ports judged by their measurements: rate, error counters, congestion.

``mainstay.detectors.network.link_state`` reports whether a port is up or down, from events, sooner and with its
history. Here a port that is down is spoken of only where no event can come: it has not been up since its node booted,
so that its sampler cannot have seen it fall. It counts only if it was up before that, or if its peers are up: an unused
port is no fault.

Peers are ports of the same group; for rate and for being up, those of the same name on other nodes (a rail), because
the storage port of every node may be slower than the others by design.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mainstay.detectors.base import Array, ArrayDetector, Bools, Floats, Samples
from mainstay.detectors.entity_state import EntityState, median
from mainstay.detectors.finding import Evidence, Finding, FindingKind, Series
from mainstay.detectors.job.mesh import rows_by_label
from mainstay.detectors.network import nic_errors
from mainstay.detectors.network.link_state import port_name
from mainstay.detectors.network.nic_errors import CALM, INFO, MINUTE, NAMES, RULES, WARNING
from mainstay.detectors.series import Drawn, draw_series
from mainstay.probes.core_types import RecommendedAction, Severity

_SEVERITY = {1: Severity.INFO, 2: Severity.WARNING, 3: Severity.CRITICAL}
_DOWN, _BROKEN = 2, 3
_UP, _RATE, _FALLS = "nic_link_up", "nic_rate_bits_per_second", "nic_link_downed_total"
_WAIT, _SENT, _UPTIME = "nic_transmit_wait_total", "nic_transmit_bytes_total", "uptime_seconds"
_STAGGER = 5.0
"""Counters end their minutes at different seconds, so that no second pays for all."""
_JAM_SLOT = len(NAMES)


class NicDetector(ArrayDetector):
    """Says ``nic_degraded`` of slow, failing or lost ports and ``congestion`` of those that wait more than others."""

    name = "nic"
    kinds = frozenset({FindingKind.NIC_DEGRADED, FindingKind.CONGESTION})
    usual_causes = True
    usual_action = RecommendedAction.MONITOR
    signals = (_UP, _RATE, _FALLS, _WAIT, _SENT, *NAMES)
    host_signals = (_UPTIME,)

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Config:
        boot_grace_seconds: float = 600.0
        """Uptime below which ports train and nothing is judged: a whole cluster's subnet manager needs minutes."""
        training_seconds: float = 60.0
        """After a fall: errors of training are not errors of service. A port trains in 2-30 s."""
        steady_seconds: float = 600.0
        """Up without a fall for so long, a port that was lost is back: as ``link_state`` has it."""
        slow_ratio: float = 0.95
        """Of the reference rate: a lost lane costs a quarter at least, a lower generation half."""
        slow_samples: int = 2
        """Samples in a row that begin it: rates are negotiated, they do not jitter."""
        slow_clear_samples: int = 30
        """Samples at full rate that end it."""
        least_rail: int = 4
        """Ports of a rail that decide what its rate is; with fewer, a port is compared with its own past."""
        rail_up_ratio: float = 0.9
        """Share of a rail, and of the group, that must be up for one that is down to be the odd one out."""
        lost_seconds: float = 120.0
        """Down for so long without any event: as long as ``link_state`` waits before it calls a port broken."""
        silent_seconds: float = 5.0
        """A gap in a port's samples after which its sampler may be a new one, which never saw it up."""
        fresh_seconds: float = 900.0
        """Uptime at the end of such a gap up to which it was a boot. Later it was a new daemon or a new service, and
        the port may be down since long ago, as ``link_state`` has reported or as no one needs to know."""
        wait_ratio: float = 0.3
        """Share of the port's sending time spent waiting for credit: traffic that should take 7 s takes 10."""
        wait_times_peers: float = 3.0
        """And so many times its peers' median: how long a tick of waiting is differs between generations."""
        wait_minutes: int = 3
        """Of the last five that were so."""
        wait_calm_minutes: int = 10
        wait_common: float = 0.25
        """Where this share of the busy ports waits, the fabric is full and no port is to blame."""
        busy_ratio: float = 0.01
        """Share of the rate below which a port is idle: then one stalled packet is a large share."""
        errors: nic_errors.NicErrorThresholds = field(default_factory=nic_errors.NicErrorThresholds)
        drawn: int = 32
        """Samples or minutes drawn in the evidence."""

    config: Config

    def reset(self) -> None:
        self._drawn = Drawn(_RATE, self.config.drawn)
        super().reset()
        self._minute = np.full(_JAM_SLOT + 1, np.nan)
        """Which minute each counter is in; each has its own boundaries."""
        self._minute_times = np.full((self.config.drawn, _JAM_SLOT + 1), np.nan)
        self._rails: tuple[object, object, list[npt.NDArray[np.intp]]] = (None, None, [])

    def _rows(self) -> EntityState:
        rows = nic_errors.fields(EntityState(), self.config.drawn)
        for name in ("errors_at", "best", "peers", "rate", "fell_at", "heard_at", "down_at"):
            rows.field(name, np.nan)
        for name in ("low", "full", "same", "jam_calm"):
            rows.field(name, 0, np.int32)
        for name in ("slow", "used", "ever", "fresh", "jam"):
            rows.field(name, fill=False, dtype=np.bool_)
        rows.field("lost", 0, np.int8).field("said", 0, np.int8).field("jam_minutes", 0, np.uint8)
        rows.field("waited", 0.0).field("sent", 0.0).field("waits", np.nan)
        return self._drawn.declare(rows)

    def _held(self, row: int) -> list[FindingKind]:
        said = [FindingKind.NIC_DEGRADED] if self.rows["said"][row] else []
        return said + ([FindingKind.CONGESTION] if self.rows["jam"][row] else [])

    def _tick(self, samples: Samples, k: int) -> list[Finding]:
        t = float(samples.t[k])
        up = samples.signal(k, _UP)
        uptime = samples.signal(k, _UPTIME)
        booting = uptime < self.config.boot_grace_seconds
        self._follow_state(samples, k, up, uptime)
        with np.errstate(invalid="ignore"):
            settled: Bools = (up == 1.0) & ~booting & ~(t - self.rows["fell_at"] < self.config.training_seconds)
        self._compare_rates(samples, k, up, booting)
        self._judge_lost(samples, t, up)
        self._collect(samples, k, settled)
        found = self._end_minutes(samples, t)
        return found + self._speak(t, np.isfinite(up))

    def _follow_state(self, samples: Samples, k: int, up: Floats, uptime: Floats) -> None:
        """When each port was last heard, down, or fell; whether its sampler has seen it up."""
        rows, t = self.rows, float(samples.t[k])
        heard, booting = np.isfinite(up), uptime < self.config.boot_grace_seconds
        with np.errstate(invalid="ignore"):
            silent = heard & ~(t - rows["heard_at"] <= self.config.silent_seconds)
            fell = (up == 0.0) | (samples.signal(k, _FALLS) > 0.0)
        rows["fresh"] = np.where(silent, uptime < self.config.fresh_seconds, rows["fresh"])
        rows["used"] &= ~silent
        rows["used"] |= up == 1.0
        rows["down_at"] = np.where((up == 0.0) & ~booting, np.fmin(rows["down_at"], t), rows["down_at"])
        rows["down_at"][(up == 1.0) | booting] = np.nan
        rows["ever"] |= up == 1.0
        rows["fell_at"][fell] = t
        rows["heard_at"][heard] = t

    def _compare_rates(self, samples: Samples, k: int, up: Floats, booting: Bools) -> None:
        """Rates against the rail's, or where that is too small, against the port's own best."""
        rows, config = self.rows, self.config
        rate = np.where((up == 1.0) & ~booting, samples.signal(k, _RATE), np.nan)
        before = rows["rate"].copy()
        changed = ~((rate == before) | (np.isnan(rate) & np.isnan(before)))
        rows["rate"] = rate
        rows["same"] = np.where(changed, 0, rows["same"] + 1)
        steady = np.isfinite(rate) & (rows["same"] >= 2)
        rows["best"][steady] = np.fmax(rows["best"][steady], rate[steady])
        if changed.any():
            self._rail_rates(samples, rate)
        reference = np.where(np.isnan(rows["peers"]), rows["best"], rows["peers"])
        low, full = rate < config.slow_ratio * reference, rate >= config.slow_ratio * reference
        rows["low"] = np.where(low, rows["low"] + 1, np.where(full, 0, rows["low"]))
        rows["full"] = np.where(full, rows["full"] + 1, np.where(low, 0, rows["full"]))
        slow = np.where(rows["slow"], rows["full"] < config.slow_clear_samples, rows["low"] >= config.slow_samples)
        rows["slow"] = slow
        self._drawn.note(rows, float(samples.t[k]), rate)

    def _rail_rates(self, samples: Samples, rate: Floats) -> None:
        self.rows["peers"] = np.full(len(rate), np.nan)
        for members in self._rail(samples):
            if np.count_nonzero(np.isfinite(rate[members])) >= self.config.least_rail:
                self.rows["peers"][members] = float(median(rate[members]))

    def _rail(self, samples: Samples) -> list[npt.NDArray[np.intp]]:
        """Rows of ports of the same group and name."""
        if self._rails[0] is not samples.entities or self._rails[1] != samples.groups:
            names = [f"{g}|{e.device}" for g, e in zip(samples.groups, samples.entities, strict=True)]
            self._rails = (samples.entities, samples.groups, rows_by_label(np.asarray(names, dtype=np.str_)))
        return self._rails[2]

    def _judge_lost(self, samples: Samples, t: float, up: Floats) -> None:
        """Ports that stay down where no event can come of it."""
        rows, config = self.rows, self.config
        with np.errstate(invalid="ignore"):
            lasting = (up == 0.0) & rows["fresh"] & ~rows["used"] & (t - rows["down_at"] >= config.lost_seconds)
            lasting &= rows["lost"] == 0
            back = (rows["lost"] > 0) & (up == 1.0) & (t - rows["fell_at"] >= config.steady_seconds)
        rows["lost"][back] = 0
        if not lasting.any():
            return
        group_up = self._share_up(up, self._members(samples), least=config.errors.least_peers)
        rail_up = self._share_up(up, self._rail(samples), least=config.least_rail)
        with np.errstate(invalid="ignore"):
            odd = ~(group_up < config.rail_up_ratio)
            known = rows["ever"] | (rail_up >= config.rail_up_ratio)
        rows["lost"] = np.where(lasting & odd & known, np.where(rows["ever"], _BROKEN, _DOWN), rows["lost"])

    def _share_up(self, up: Floats, groups: list[npt.NDArray[np.intp]], *, least: int) -> Floats:
        """[port] share of the others of its group that are up; NaN where fewer than ``least`` were heard."""
        share = np.full(len(up), np.nan)
        for members in groups:
            heard = np.isfinite(up[members])
            others = np.count_nonzero(heard) - heard
            count = np.count_nonzero(up[members] == 1.0) - (up[members] == 1.0)
            share[members] = np.where(others >= least - 1, count / np.maximum(others, 1), np.nan)
        return share

    def _collect(self, samples: Samples, k: int, settled: Bools) -> None:
        rows, t = self.rows, float(samples.t[k])
        lines = np.array([c for c, name in enumerate(NAMES) if name in samples.signals], dtype=np.intp)
        if len(lines):
            rates = samples.x[k, [samples.signals.index(NAMES[c]) for c in lines]]
            read = (rates == rates).any(axis=0)  # noqa: PLR0124 - cheaper than isnan: true unless NaN
            if read.any():
                since = t - rows["errors_at"]
                # The first reading after a long silence is a mean over all of it; a minute of it is judged.
                seconds = np.clip(np.where(np.isnan(since), 1.0, since), 0.0, MINUTE)
                nic_errors.collect(rows, rates, lines, seconds, settled)
                rows["errors_at"][read] = t
        wait, sent = samples.signal(k, _WAIT), samples.signal(k, _SENT)
        both = np.isfinite(wait) & np.isfinite(sent) & settled
        rows["waited"] += np.where(both, wait, 0.0)
        rows["sent"] += np.where(both, sent, 0.0)

    def _end_minutes(self, samples: Samples, t: float) -> list[Finding]:
        """Judge every counter whose minute is over."""
        minutes = np.floor((t - _STAGGER * np.arange(_JAM_SLOT + 1)) / MINUTE)
        over = np.flatnonzero(minutes != self._minute)
        first = np.isnan(self._minute)
        self._minute = minutes
        found: list[Finding] = []
        for c in over:
            if first[c]:
                continue
            at = int(minutes[c]) % self.config.drawn
            self._minute_times[at, c] = t
            if c == _JAM_SLOT:
                found.extend(self._judge_congestion(samples, t))
            else:
                nic_errors.fold(self.rows, int(c), self._members(samples), self.config.errors, at)
        return found

    def _judge_congestion(self, samples: Samples, t: float) -> list[Finding]:
        rows, config = self.rows, self.config
        # A tick is the time that some bytes take: 8 at NVIDIA's Quantum generation, more before (ibdiagnet's manual).
        waited, sent = 8.0 * rows["waited"], rows["sent"]
        busy = (sent > 0.0) & (sent >= config.busy_ratio * np.nan_to_num(rows["rate"]) / 8.0 * MINUTE)
        share = np.where(busy, waited / np.maximum(waited + sent, 1.0), np.nan)
        rows["waits"], rows["waited"], rows["sent"] = share, np.zeros(len(share)), np.zeros(len(share))
        loud = share >= config.wait_ratio
        rows["jam_minutes"] = np.where(busy, ((rows["jam_minutes"] << 1) | loud) & 31, rows["jam_minutes"])
        rows["jam_calm"] = np.where(busy, np.where(loud, 0, rows["jam_calm"] + 1), rows["jam_calm"])
        begins = loud & (np.bitwise_count(rows["jam_minutes"]) >= config.wait_minutes)
        common = np.zeros(len(share), np.bool_)
        for members in self._members(samples) if begins.any() else []:
            count = np.count_nonzero(busy[members])
            if count >= config.errors.least_peers:
                many = np.count_nonzero(loud[members]) >= config.wait_common * count
                usual = config.wait_times_peers * float(median(share[members]))
                common[members] = many | ~(share[members] >= usual)
        before = rows["jam"].copy()
        rows["jam"] = np.where(before, rows["jam_calm"] < config.wait_calm_minutes, begins & ~common)
        return [self._say_jam(int(row), t, before=bool(before[row])) for row in np.flatnonzero(rows["jam"] != before)]

    def _say_jam(self, row: int, t: float, *, before: bool) -> Finding:
        entity, share = self.rows.entities[row], float(self.rows["waits"][row])
        if before:
            return self._ended(
                FindingKind.CONGESTION, entity, t, f"Port {port_name(entity)} no longer waits for credit."
            )
        series = Series(name="transmit_wait_ratio", unit="1", x=(t,), y=(share,), threshold=self.config.wait_ratio)
        evidence = Evidence(
            summary=f"Port {port_name(entity)} waited for credit during {share:.0%} of its sending time, "
            "unlike its peers.",
            numbers={"wait_ratio": share},
            series=(series,),
        )
        return self._finding(FindingKind.CONGESTION, entity, t, evidence, severity=Severity.INFO, confidence=0.8)

    def _speak(self, t: float, heard: Bools) -> list[Finding]:
        """What is to be said now: what began, changed or ended."""
        rows = self.rows
        said: Array = rows["said"]
        level = np.maximum(np.where(rows["slow"], WARNING, CALM), rows["lost"])
        level = np.maximum(level, rows["level"].max(axis=0, initial=CALM))
        speaks = (level != said) & ((level > CALM) | heard)
        found = [self._say(int(row), int(level[row]), t) for row in np.flatnonzero(speaks)]
        rows["said"] = np.where(speaks, level, said)
        return found

    def _say(self, row: int, level: int, t: float) -> Finding:
        entity = self.rows.entities[row]
        if level == CALM:
            return self._ended(
                FindingKind.NIC_DEGRADED, entity, t, f"Port {port_name(entity)} is as good as its peers again."
            )
        (evidence, sure), kind = self._evidence(row, level, t), FindingKind.NIC_DEGRADED
        severity, action = _SEVERITY[level], RecommendedAction.INSPECT_NODE if level == _BROKEN else None
        return self._finding(kind, entity, t, evidence, severity=severity, confidence=sure, recommended_action=action)

    def _evidence(self, row: int, level: int, t: float) -> tuple[Evidence, float]:
        """The first of what holds at this level: lost, slow, errors."""
        rows = self.rows
        if rows["lost"][row] == level:
            return self._lost_evidence(row, t), 0.95
        if rows["slow"][row] and level == WARNING:
            return self._rate_evidence(row), 0.99
        c = int(np.argmax(np.where(rows["level"][:, row] == level, rows["z"][:, row], -np.inf)))
        return self._error_evidence(c, row), 0.9 if level == INFO else 0.95

    def _lost_evidence(self, row: int, t: float) -> Evidence:
        down = t - float(self.rows["down_at"][row])
        before = "as it was before" if self.rows["ever"][row] else "as its peers are"
        return Evidence(
            summary=f"Port {port_name(self.rows.entities[row])} has not come up for {down:.0f} s, {before}.",
            numbers={"down_seconds": down},
        )

    def _rate_evidence(self, row: int) -> Evidence:
        rows = self.rows
        peers = float(rows["peers"][row])
        of_rail = np.isfinite(peers)
        rate, reference = float(rows["rate"][row]), peers if of_rail else float(rows["best"][row])
        whom = "its peers have" if of_rail else "it had"
        return Evidence(
            summary=f"Port {port_name(rows.entities[row])} runs at {rate / 1e9:.4g} Gbit/s, "
            f"{whom} {reference / 1e9:.4g}.",
            numbers={"rate_bits_per_second": rate, "reference_bits_per_second": reference},
            series=self._drawn.series(rows, row, unit="bit/s", threshold=self.config.slow_ratio * reference),
        )

    def _error_evidence(self, c: int, row: int) -> Evidence:
        rows, rule = self.rows, RULES[NAMES[c]]
        watched, bad = float(rows["watched"][c, row]), float(rows["bad"][c, row])
        hourly = float(rows["total"][c, row]) / max(watched, 1.0) * MINUTE
        order = np.argsort(self._minute_times[:, c], kind="stable")
        series = draw_series(NAMES[c], "1/s", self._minute_times[order, c], rows["minutes"][order, c, row])
        latest = series[0].y[-1] if series else 0.0
        acute = f"{latest:.3g} a second now, minute after minute" if latest >= rule.acute else ""
        creeping = f"{hourly:.3g} an hour, in {bad:.0f} of the last {watched:.0f} minutes, far more than its peers"
        return Evidence(
            summary=f"Port {port_name(rows.entities[row])} has {rule.text}: {acute or creeping}.",
            numbers={
                "per_hour": hourly,
                "latest_per_second": latest,
                "errored_minutes": bad,
                "minutes": watched,
                "z": float(rows["z"][c, row]),
            },
            series=series,
        )
