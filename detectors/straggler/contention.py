"""CPU contention: a training thread is ready to run while its core runs another process, for one rank or a whole node.

The kernel counts it (schedstat's run delay), so no model of compute is needed: its share of the step is compared with
that of the job's other ranks and with other nodes. A machine where all ranks alike wait for cores is oversubscribed,
which is the job's own layout: the finding is information about the job and blames no rank.

Test: CUSUM (Page 1954) on (share - others' share) / noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mainstay.detectors.base import ArrayDetector, Bools, DetectorState, DetectorStatus, Feed, Floats, Samples
from mainstay.detectors.entity_state import EntityState, median
from mainstay.detectors.finding import Cause, Entity, Evidence, Finding, FindingKind
from mainstay.detectors.job.mesh import rows_by_label
from mainstay.detectors.straggler.compute_time import nodes_of
from mainstay.detectors.straggler.noise import noise_of
from mainstay.detectors.straggler.normalize import PeerTable
from mainstay.detectors.straggler.slow_nodes import common_nodes
from mainstay.probes.core_types import Severity, StepPhase

_KIND = FindingKind.CPU_CONTENTION


class ContentionDetector(ArrayDetector):
    """Says ``cpu_contention`` of a rank; of its node, where half of its ranks and at least two suffer."""

    name = "contention"
    kinds = frozenset({_KIND})
    signals = ("run_delay_seconds", "step_time_seconds", "step_phase")
    feed = Feed.STEPS

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Config:
        k: float = 1.0
        h: float = 10.0
        """Mean time to a false alarm 2.5e9 rank-steps (Siegmund): no rank is evicted for it, so less."""
        h_off: float = 2.0
        cap: float = 13.0
        clip: float = 4.0
        """No alarm before the fourth contended step: a cron job of a second is none."""
        least_share: float = 0.05
        """Share of the step lost beyond the others' below which no operator would act."""
        noise_floor: float = 0.01
        """One per cent: the scheduler's own coming and going."""
        skip_steps: int = 5
        learn_samples: int = 24
        """Rank-steps after which the spread is good to a sixth."""
        missing_steps: int = 10
        remembered: int = 32
        uniform_share: float = 0.15
        """Share from which the detector reports an oversubscribed job; two threads a core cost a half."""

    config: Config

    def reset(self) -> None:
        super().reset()
        self._ticks = 0
        self._noise: float | None = None
        self._said: dict[Entity, str] = {}
        """Nodes and jobs that a finding holds about; ranks stand in ``said``."""
        self._uniform = 0
        self._heard = False
        self._layout: tuple[tuple[Entity, ...], PeerTable, PeerTable] | None = None
        """The entities, all ranks as one group, and the ranks of each node."""
        self._node_of = np.zeros(0, np.intp)

    def _rows(self) -> EntityState:
        rows = EntityState().field("seen", 0, np.int64).field("missing", 0, np.int64)
        rows.field("hot", fill=False, dtype=np.bool_).field("said", fill=False, dtype=np.bool_)
        rows.field("score", 0.0).field("onset", np.nan)
        for name in ("share", "excess"):
            rows.field(name, np.nan, np.float64, (self.config.remembered,))
        return rows

    def _judging(self) -> DetectorStatus:
        if not self._heard:
            return DetectorStatus(state=DetectorState.ABSTAINING, reason="No rank reports its run delay.")
        if self._noise is None:
            return DetectorStatus(state=DetectorState.LEARNING, reason="Still learning how run delays spread.")
        return DetectorStatus(state=DetectorState.ACTIVE, numbers={"noise": self._noise})

    def _follow(self, samples: Samples) -> list[Finding]:
        found = super()._follow(samples)
        if not samples.entities:
            found += [self._over(entity, float(samples.t[0])) for entity in self._said]
            self._said = {}
        return found

    def _tick(self, samples: Samples, k: int) -> list[Finding]:
        assert samples.steps is not None
        share = self._share(samples, k)
        excess = self._excess(share)
        rows, at = self.rows, self._ticks % self.config.remembered
        self._ticks += 1
        rows["share"][at], rows["excess"][at] = share, excess
        self._learn()
        if self._noise is not None:
            self._score(excess, int(samples.steps[k]))
        time = float(samples.t[k])
        return self._decide(time) + self._whole_job(share, time)

    def _share(self, samples: Samples, k: int) -> Floats:
        delay, step, phase = (samples.signal(k, name) for name in self.signals)
        step[~(step > 0.0)] = np.nan
        share = np.clip(delay / step, 0.0, 1.0)
        share[np.isfinite(phase) & (phase != StepPhase.TRAIN)] = np.nan
        known, rows = np.isfinite(share), self.rows
        self._heard = self._heard or bool(known.any())
        rows["seen"] = rows["seen"] + known
        rows["missing"] = np.where(known, 0, rows["missing"] + 1)
        share[rows["seen"] <= self.config.skip_steps] = np.nan
        return share

    def _excess(self, share: Floats) -> Floats:
        """Beyond the job's other ranks, or beyond the middle of the other nodes where that says more."""
        peers, nodes = self._neighbors()
        others = peers.median_of_others(share)[0]
        count = len(nodes.table)
        if count > 1:
            elsewhere = PeerTable([np.arange(count)], count).median_of_others(median(nodes.gather(share)))[0]
            others = np.fmin(others, elsewhere[self._node_of])
        return share - others

    def _neighbors(self) -> tuple[PeerTable, PeerTable]:
        entities, size = self.rows.entities, len(self.rows.entities)
        if self._layout is None or self._layout[0] is not entities:
            self._node_of = nodes_of(entities)
            everybody = PeerTable([np.arange(size)] if entities else [], size)
            self._layout = (entities, everybody, PeerTable(rows_by_label(self._node_of), size))
        return self._layout[1], self._layout[2]

    def _learn(self) -> None:
        if self._ticks % 8 and self._noise is not None:
            return
        rows = self.rows
        known = min(self._ticks, self.config.remembered)
        order = [(self._ticks - known + i) % self.config.remembered for i in range(known)]
        ranks = np.array([e.rank or 0 for e in rows.entities])
        calm = np.argsort(ranks, kind="stable")
        calm = calm[~rows["hot"][calm] & (rows["score"][calm] < self.config.h / 2)]
        noise = noise_of(rows["excess"][order][:, calm])
        if noise.samples >= self.config.learn_samples and np.isfinite(noise.sigma):
            self._noise = float(max(noise.sigma, self.config.noise_floor))

    def _score(self, excess: Floats, step: int) -> None:
        rows, config = self.rows, self.config
        assert self._noise is not None
        z = np.clip(excess / self._noise, -config.clip, config.clip)
        moved = np.clip(rows["score"] + z - config.k, 0.0, config.cap)
        started = rows["score"] <= 0.0
        score = np.where(np.isfinite(z), moved, rows["score"])
        score[(rows["missing"] >= config.missing_steps) & ~rows["hot"]] = 0.0
        rows["onset"] = np.where(started & (score > 0.0), step, rows["onset"])
        rows["score"] = score
        here = rows["missing"] == 0
        begins = ~rows["hot"] & (score >= config.h) & here
        for row in np.flatnonzero(begins):
            begins[row] = self._recent("excess", int(row)) >= config.least_share
        ends = rows["hot"] & (score <= config.h_off) & here
        rows["hot"] = (rows["hot"] | begins) & ~ends

    def _recent(self, name: str, row: int) -> float:
        """Median of the last four known steps: what the clip makes the least."""
        at = [(self._ticks - 1 - i) % self.config.remembered for i in range(4)]
        return float(median(self.rows[name][at, row]))

    def _decide(self, time: float) -> list[Finding]:
        """Ranks one by one, or their node; findings about ranks end when their node is named."""
        rows = self.rows
        wanted = rows["hot"].copy()
        found = self._name_nodes(wanted, time)
        status = {rows.entities[int(r)].node for r in np.flatnonzero(rows["hot"])}
        for entity in [e for e in self._said if e.node is not None and e.node not in status]:
            del self._said[entity]
            found.append(self._over(entity, time))
        changed = np.flatnonzero(wanted != rows["said"])
        ranks = [rows.entities[int(r)].rank or 0 for r in changed]
        rows["said"] = wanted
        for row in changed[np.argsort(ranks, kind="stable")]:
            over = self._over(rows.entities[int(row)], time)
            found.append(self._say_rank(int(row), time) if wanted[row] else over)
        return found

    def _name_nodes(self, wanted: Bools, time: float) -> list[Finding]:
        """Findings about nodes of which most ranks wait; their ranks are taken out of ``wanted``."""
        found, named = list[Finding](), [entity.node for entity in self._said if entity.node is not None]
        for node, places in common_nodes(self.rows["hot"], self.rows.entities, self._node_of, named).items():
            wanted[places] = False
            if node not in named:
                self._said[Entity(node=node)] = node
                found.append(self._say_node(Entity(node=node), places, time))
        return found

    def _over(self, entity: Entity, time: float) -> Finding:
        evidence = Evidence(summary="Its threads get their cores as the others do, or the node as a whole is named.")
        severity = Severity.WARNING if entity.node or entity.rank is not None else Severity.INFO
        return self._finding(_KIND, entity, time, evidence, active=False, severity=severity)

    def _say_rank(self, row: int, time: float) -> Finding:
        entity, share, excess = self.rows.entities[row], self._recent("share", row), self._recent("excess", row)
        where = f" on {entity.node}" if entity.node else ""
        evidence = Evidence(
            summary=f"Rank {entity.rank}{where} waits for a core in {share:.0%} of the step, {excess:.0%} more than "
            "others: "
            "something else runs on its cores.",
            numbers={
                "share": share,
                "excess": excess,
                "score": float(self.rows["score"][row]),
                "since_step": float(self.rows["onset"][row]),
            },
        )
        return self._finding(_KIND, entity, time, evidence, confidence=0.95, cause=Cause.HOST)

    def _say_node(self, entity: Entity, places: npt.NDArray[np.intp], time: float) -> Finding:
        hot = places[self.rows["hot"][places]]
        shares = np.array([self._recent("share", int(row)) for row in hot])
        evidence = Evidence(
            summary=f"{len(hot)} of {len(places)} ranks on {entity.node} wait for a core in "
            f"{float(median(shares)):.0%} of the step, more than ranks of other nodes: something else runs there.",
            numbers={"share": float(median(shares)), "ranks": float(len(hot))},
        )
        return self._finding(_KIND, entity, time, evidence, confidence=0.95, cause=Cause.HOST)

    def _whole_job(self, share: Floats, time: float) -> list[Finding]:
        """Advice when all wait alike, eight steps in a row; taken back as slowly."""
        config, known = self.config, share[np.isfinite(share)]
        if not len(known):
            return []
        level = float(median(known))
        self._uniform = int(np.clip(self._uniform + (1 if level >= config.uniform_share else -1), 0, 8))
        entity = Entity(job=self.rows.entities[0].job) if self.rows.entities[0].job else None
        if entity is None or self._uniform not in {0, 8} or (entity in self._said) == (self._uniform == 8):
            return []
        if self._uniform == 0:
            del self._said[entity]
            evidence = Evidence(summary="The job's ranks no longer wait for cores.")
            return [self._finding(_KIND, entity, time, evidence, active=False, severity=Severity.INFO)]
        self._said[entity] = "job"
        evidence = Evidence(
            summary=f"All ranks alike wait for a core in {level:.0%} of the step: more busy threads than cores.",
            numbers={"share": level},
        )
        return [self._finding(_KIND, entity, time, evidence, severity=Severity.INFO)]
