"""Which way between two ranks is slow, and whose fault that is: the sender's port, the receiver's, the link, a switch.

C4's delay matrix (arXiv 2406.04594) as a stream. Per pair and step::

    y = log(seconds)                      or log(seconds / bytes), whichever is quieter for this pair
    r = y - own usual y - common shift    of the pairs that use the same kind of link, which the healthy ones set
    S = max(0, S + clip(r / sigma, -4, 4) - k)

A pair is hot from ``S >= h`` on, or once its last steps have one slow level
(``mainstay.detectors.network.transfer_delay_plateau``), and ``mainstay.detectors.network.fabric`` finds the smallest
story that explains the hot ones: one cell is a link, a row the sender, a column the receiver, cells that share a switch
the switch. In a ring each rank has one peer each way, so that row, column and cell are the same one cell: then the
finding says "between", not who. A shift of all pairs at once is the fabric's (or the job's), and is tested against its
own past.

A transfer's time is a duration by one clock, its receiver's, so that skew between hosts does not enter; where it is
taken between two clocks, a constant skew is part of a pair's usual time. What a late sender adds to its receiver's wait
does enter: a rank whose sends are all slow may be slow before it sends, and correlation decides by its compute time.
Timing alone is one kind of evidence: it warns and asks to watch; it takes no node out of service.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mainstay.detectors.base import ArrayDetector, Bools, DetectorState, DetectorStatus, Feed, Floats, Samples
from mainstay.detectors.entity_state import EntityState, append_rows, median, robust_sigma
from mainstay.detectors.finding import Entity, Evidence, Finding, FindingKind
from mainstay.detectors.job.mesh import JobMesh
from mainstay.detectors.network.fabric import Fabric, FaultHypothesis, same_placement
from mainstay.detectors.network.transfer_delay_config import DelaysConfig
from mainstay.detectors.network.transfer_delay_limits import DelayThresholds
from mainstay.detectors.network.transfer_delay_messages import about, finding_of, recovered
from mainstay.detectors.network.transfer_delay_pools import LinkPools


@dataclass(slots=True)
class _Said:
    finding: Finding
    ranks: frozenset[int]
    """Ranks at the ends of its cells: when all have left, so has it."""
    absent: int = 0
    """Ticks in a row in which it explained nothing."""


class TransferDelayDetector(ArrayDetector):
    """Says ``nic_degraded`` of a sender or receiver, ``congestion`` of a link, a switch or the whole fabric."""

    name = "transfer_delays"
    kinds = frozenset({FindingKind.NIC_DEGRADED, FindingKind.CONGESTION})
    signals = ("transfer_seconds", "transfer_bytes")
    feed = Feed.PAIRS

    Config = DelaysConfig
    config: DelaysConfig

    def reset(self) -> None:
        super().reset()
        self._mesh: JobMesh | None = None
        self._fabric: Fabric | None = None
        self._order = np.zeros(0, np.intp)
        self._ends = np.zeros((0, 2), np.int64)
        self._pool = np.zeros(0, np.intp)
        self._kind = np.zeros(0, np.intp)
        self._ticks = 0
        self._limits = DelayThresholds(0, self.config)
        self._steps = np.full(self.config.remembered, np.nan)
        self._said: dict[str, _Said] = {}
        self._asked: dict[str, int] = {}
        self._pools = LinkPools(float(np.log(self.config.least)), self.config.peers)

    def _rows(self) -> EntityState:
        rows = EntityState().field("by_bytes", fill=False, dtype=np.bool_)
        for name in ("seen", "odd", "slow", "same"):
            rows.field(name, 0, np.int64)
        for name in ("base", "bytes", "excess", "last"):
            rows.field(name, np.nan)
        rows.field("score", 0.0).field("hot", fill=False, dtype=np.bool_)
        for name in ("log_seconds", "log_bytes"):
            rows.field(name, np.nan, np.float64, (self.config.learn_steps,))
        for name in ("r", "drawn", "peers"):
            rows.field(name, np.nan, np.float32 if name != "r" else np.float64, (self.config.remembered,))
        return rows

    def _held(self, row: int) -> list[FindingKind]:
        entity = self.rows.entities[row]
        return [said.finding.kind for said in self._said.values() if said.finding.entity == entity]

    def status(self) -> DetectorStatus:
        ready = np.isfinite(self.rows["base"])
        limits = self._limits
        noise = float(median(limits.bulk)) if len(limits.bulk) else float("nan")
        numbers = {"pairs": float(len(ready)), "pairs_learned": float(np.count_nonzero(ready))}
        if np.isfinite(noise):
            numbers["noise"] = noise
        if not len(ready):
            return DetectorStatus(state=DetectorState.IDLE, reason="No transfers between ranks are reported.")
        if not limits.is_known:
            return DetectorStatus(
                state=DetectorState.LEARNING, reason="Still learning the usual transfer times.", numbers=numbers
            )
        if not np.isfinite(limits.weight).any():
            why = f"Transfer times differ by {noise:.0%} from step to step: half speed would not stand out."
            return DetectorStatus(state=DetectorState.ABSTAINING, reason=why, numbers=numbers)
        limitations = []
        if self._mesh is None:
            limitations.append("Nodes and switches are unknown: the detector distinguishes only ranks and links.")
        if limits.loud:
            numbers["pairs_too_loud"] = float(limits.loud)
            limitations.append(f"{limits.loud} of {len(ready)} pairs differ too much from step to step to be judged.")
        return DetectorStatus(state=DetectorState.ACTIVE, reason=" ".join(limitations), numbers=numbers)

    def _follow(self, samples: Samples) -> list[Finding]:
        same = self.rows.follows(samples.entities)
        if same and (samples.mesh is self._mesh or same_placement(samples.mesh, self._mesh)):
            return []
        moved = self._moved(samples.mesh)
        if not same:
            self.rows.align(samples.entities)
        entities = samples.entities
        pairs = np.array([(e.rank or 0, -1 if e.peer is None else e.peer) for e in entities], np.int64).reshape(-1, 2)
        self._ends = pairs
        self._order = np.lexsort((pairs[:, 1], pairs[:, 0]))  # so that the order of rows changes no digit
        if moved:
            self._forget(np.asarray(np.isin(pairs, sorted(moved)).any(axis=1), np.bool_))
        self._mesh = samples.mesh
        self._fabric = fabric = Fabric(pairs[self._order], samples.mesh)
        back = np.argsort(self._order, kind="stable")
        self._pool = np.where(fabric.local, 1, 0)[back]
        self._kind = np.where(fabric.local, -1, fabric.hops)[back]
        self._limits = DelayThresholds(len(entities), self.config)
        self._measure_noise()
        here = {int(rank) for rank in pairs.reshape(-1)}
        links = {(e.rank, e.peer) for e in entities}
        return self._withdraw(here, links, float(samples.t[0]))

    def _moved(self, mesh: JobMesh | None) -> set[int]:
        """Ranks that run on another node than before: their ways are new."""
        old = self._mesh
        if mesh is None or old is None or mesh is old:
            return set()
        known = old.row_of
        return {
            rank for rank, row in mesh.row_of.items() if rank in known and mesh.nodes[row] != old.nodes[known[rank]]
        }

    def _withdraw(self, here: set[int], links: set[tuple[int | None, int | None]], time: float) -> list[Finding]:
        found = []
        for key, said in list(self._said.items()):
            entity = said.finding.entity
            gone = (entity.rank, entity.peer) not in links if entity.peer is not None else not said.ranks & here
            if entity.rank is not None and entity.peer is None:
                gone = entity.rank not in here
            if gone:
                found.append(
                    self._ended(said.finding.kind, entity, time, "It left the fleet and is no longer watched.")
                )
                del self._said[key]
        return found

    def _forget(self, where: Bools) -> None:
        for name in ("seen", "odd", "slow", "score"):
            self.rows[name][where] = 0
        for name in ("base", "bytes", "excess", "log_seconds", "log_bytes", "r", "drawn", "peers"):
            self.rows[name][..., where] = np.nan
        self.rows["hot"][where] = False

    def _tick(self, samples: Samples, k: int) -> list[Finding]:
        assert samples.steps is not None
        if not len(samples.entities):
            return []
        y = self._take(samples, k)
        self._steps = np.append(self._steps[1:], samples.steps[k])
        shift = self._pools.shift(y, self._pool, self._limits.bulk)
        found = [f for pool, by in self._pools.judge(shift) for f in self._say_pool(pool, by, float(samples.t[k]))]
        self._score(y, np.where(np.isfinite(shift[self._pool]), shift[self._pool], 0.0))
        self._ticks += 1
        if self._ticks % 16 == 0 or not self._limits.is_known:
            self._measure_noise()  # every sixteenth step: it sorts the whole memory
        return found + self._decide(float(samples.t[k]))

    def _take(self, samples: Samples, k: int) -> Floats:
        """Take one step in; returns y - usual y of the pairs that are learned, NaN of others."""
        rows, config = self.rows, self.config
        seconds, size = (samples.signal(k, name) for name in self.signals)
        seconds[~(seconds > 0.0)] = np.nan
        size[~(size > 0.0)] = np.nan
        log_seconds, log_size = np.log(seconds), np.log(size)
        valid = np.isfinite(seconds)
        learned = np.isfinite(rows["base"])
        rows["seen"] = rows["seen"] + valid
        rows["same"] = np.where(seconds == rows["last"], rows["same"] + 1, np.where(valid, 0, rows["same"]))
        rows["last"] = np.where(valid, seconds, rows["last"])
        fresh = valid & ~learned & (rows["seen"] > config.skip_steps)
        append_rows(rows["log_seconds"], log_seconds, fresh)
        append_rows(rows["log_bytes"], log_size, fresh)
        self._learn(np.flatnonzero(fresh & np.isfinite(rows["log_seconds"][0])))
        odd = valid & learned & (np.abs(log_size - rows["bytes"]) > np.log(config.resized)) & ~rows["by_bytes"]
        rows["odd"] = np.where(odd, rows["odd"] + 1, np.where(valid, 0, rows["odd"]))
        self._forget(rows["odd"] >= config.learn_steps)
        y = log_seconds - rows["base"] - np.where(rows["by_bytes"], log_size, 0.0)
        for name, now in (("drawn", seconds), ("peers", np.full_like(seconds, np.nan))):
            rows[name][:-1] = rows[name][1:]
            rows[name][-1] = now
        return np.where(odd | ~learned | self._stuck(), np.nan, y)

    def _stuck(self) -> Bools:
        """Pairs whose sensor says one and the same for ever: no clock does, so it says nothing."""
        return self.rows["same"] >= self.config.learn_steps - 1

    def _learn(self, ready: npt.NDArray[np.intp]) -> None:
        """Set the usual time of pairs that were heard of often enough, and whether it goes with their bytes."""
        if not len(ready):
            return
        rows = self.rows
        plain, size = rows["log_seconds"][:, ready].T, rows["log_bytes"][:, ready].T
        rate = plain - size
        quieter = np.isfinite(rate).all(axis=1) & (robust_sigma(rate) < robust_sigma(plain) - self.config.floor / 2)
        y = np.where(quieter[:, None], rate, plain)
        rows["by_bytes"][ready], rows["base"][ready], rows["bytes"][ready] = quieter, median(y), median(size)
        memory = y.T - rows["base"][ready]  # the first noise, with the common shift in it: too wide, never too narrow
        rows["r"][-len(memory) :, ready] = memory
        self._limits.forget()

    def _score(self, y: Floats, common: Floats) -> None:
        rows, config = self.rows, self.config
        r = y - common
        valid = np.isfinite(r)
        append_rows(rows["r"], r, valid)
        rows["peers"][-1] = np.exp(rows["base"] + common + np.where(rows["by_bytes"], rows["bytes"], 0.0))
        calm = valid & (rows["score"] < config.h / 2) & ~rows["hot"]
        rows["base"][calm] += config.adapt * np.clip(r, -0.1, 0.1)[calm]  # 0.1: no burst moves it
        excess = np.where(np.isfinite(rows["excess"]), rows["excess"], 0.0)
        limits = self._limits
        judged = valid & np.isfinite(limits.weight)
        moved = np.clip((r + excess) / limits.sigma, -config.clip, config.clip) - limits.drift
        score = np.clip(rows["score"] + moved * limits.weight, 0.0, config.cap)
        rows["score"] = np.where(judged, score, rows["score"])
        rows["slow"] = np.where(judged, np.where(score > 0.0, rows["slow"] + 1, 0), rows["slow"])

    def _measure_noise(self) -> None:
        """Noise of the pairs: of their kind, their own where they are noisier."""
        rows = self.rows
        calm = np.isfinite(rows["base"]) & ~rows["hot"] & (rows["score"] < self.config.h / 2)
        for members in self._limits.measure(rows["r"], self._kind, calm):
            self._compare(members)

    def _compare(self, members: npt.NDArray[np.intp]) -> None:
        """Note which pairs were slow from the start, among enough pairs that take equally long ways."""
        rows, config = self.rows, self.config
        if self._mesh is None or not self._mesh.switches or len(members) < config.peers:
            return
        size = np.where(np.isfinite(rows["bytes"][members]), rows["bytes"][members], 0.0)
        level = rows["base"][members] + np.where(rows["by_bytes"][members], size, 0.0)
        for bucket in np.unique(np.round(size / np.log(2))):
            alike = np.round(size / np.log(2)) == bucket  # messages of like size: latency and bandwidth weigh alike
            if np.count_nonzero(alike) < config.peers:
                continue
            above = level[alike] - median(level[alike])
            least = max(float(np.log(config.slow_from_start)), config.spread * float(robust_sigma(level[alike])))
            rows["excess"][members[alike]] = np.where(above > least, above, 0.0)

    def _say_pool(self, pool: int, shift: float, time: float) -> list[Finding]:
        key, entity = "all", Entity(job=self.rows.entities[0].job)
        if self._pools.on.any() and key in self._said:
            return []  # one finding speaks for both
        if not self._pools.on.any():
            said = self._said.pop(key, None)
            return [recovered(said.finding, time)] if said else []
        words = "within the nodes" if pool else "between the ranks" if self._mesh is None else "between the nodes"
        ratio = float(np.exp(shift))
        summary = f"All transfers {words} take {ratio:.2g} times as long as before: the fabric or the job, no rank."
        evidence = Evidence(summary=summary, numbers={"ratio": ratio})
        finding = self._finding(FindingKind.CONGESTION, entity, time, evidence, confidence=0.8)
        here = frozenset(rank for e in self.rows.entities for rank in (e.rank, e.peer) if rank is not None)
        self._said[key] = _Said(finding, here)
        return [finding]

    def _decide(self, time: float) -> list[Finding]:
        rows, config = self.rows, self.config
        lasting = self._limits.lasting(rows["r"], rows["slow"])
        begins = ((rows["score"] >= config.h) | self._agreed() | lasting) & (rows["slow"] >= config.at_least)
        rows["hot"] = np.where(rows["hot"], rows["score"] > config.h_off, begins)
        if not rows["hot"].any() and not (self._said.keys() - {"all"}):
            return []
        return self._tell(self._hypotheses(), time)

    def _agreed(self) -> Bools:
        """Pairs that are suspect together with another of their sender or receiver."""
        near: Bools = self.rows["score"] >= self.config.agree
        if np.count_nonzero(near) < 2:
            return np.zeros_like(near)
        agreed = np.zeros_like(near)
        for side in (0, 1):
            _, end = np.unique(self._ends[near, side], return_inverse=True)
            agreed[np.flatnonzero(near)[np.bincount(end)[end] > 1]] = True
        return agreed

    def _hypotheses(self) -> dict[str, FaultHypothesis]:
        assert self._fabric is not None
        rows, config, order = self.rows, self.config, self._order
        effect = median(rows["r"][-config.recent :].T) + np.where(np.isfinite(rows["excess"]), rows["excess"], 0.0)
        effect = np.where(np.isfinite(self._limits.bulk) & ~self._stuck(), effect, np.nan)[order]
        error = 1.2533 * self._limits.bulk[order] / np.sqrt(config.recent)  # 1.2533: a median against a mean
        slow = rows["hot"][order] & (effect >= np.log(config.least))
        return {about(story, self._fabric): story for story in self._fabric.explain(effect, error, slow)}

    def _tell(self, stories: dict[str, FaultHypothesis], time: float) -> list[Finding]:
        """Speak of stories that are new, and of those that are over; a change of mind has to last."""
        found = []
        held = self._said.keys() - {"all"}
        self._asked = {key: self._asked.get(key, 0) + 1 for key in sorted(stories.keys() - held)}
        for key, ticks in list(self._asked.items()):
            if ticks >= self.config.confirm or not held:
                finding = self._new(stories[key], time)
                cells = self._order[stories[key].cells]
                ends = (rank for c in cells for rank in (self.rows.entities[c].rank, self.rows.entities[c].peer))
                self._said[key] = _Said(finding, frozenset(rank for rank in ends if rank is not None))
                found.append(finding)
                del self._asked[key]
        for key in sorted(held):
            said = self._said[key]
            said.absent = 0 if key in stories else said.absent + 1
            if said.absent >= self.config.confirm:
                found.append(recovered(said.finding, time))
                del self._said[key]
        return found

    def _new(self, story: FaultHypothesis, time: float) -> Finding:
        assert self._fabric is not None
        cells = self._order[story.cells]
        worst = int(cells[np.argmax(np.nan_to_num(self.rows["score"][cells]))])
        drawn = (self._steps, self.rows["drawn"][:, worst], self.rows["peers"][:, worst])
        return finding_of(story, self._fabric, self.rows.entities[worst], time, drawn)
