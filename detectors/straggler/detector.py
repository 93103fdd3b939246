"""A rank whose own compute is slower than it should be, step after step.

Step time carries no blame, since synchronous training makes everybody equally slow; a rank's own compute time does,
compared with what it should have been (``normalize.py``: by its role, the rest of its replica, or its workload).
All ways that a job allows run side by side, and the quietest judges. Where none is quiet enough no rank is judged, and
``status`` reports it: unknown is never healthy.

The test, per rank and step: one-sided CUSUM (Page 1954) on the residual r of the judging way::

    z = (r - offset) / sqrt(sigma^2 + what the offset may still be off by)
    S = max(0, S + clip(z, -4, 4) - k)

sigma is the long-run noise (``noise.py``); the offset is the rank's lasting difference, learned slowly from calm steps
and believed only as far as healthy ranks differ, so that a rank slow from the start is found as well. z is the error
of a forecast (self-starting CUSUM, Hawkins 1987), so judging may begin after a few steps.

With two peers each is the other's measure, so that a slow rank and a fast one look alike: there the offset is wholly
the pair's own history, and a second CUSUM on the rank's own (less the job's drift) gives the direction. Of two nodes
with equal work the slower one is named if it is slower than healthy nodes differ (``most_offset_of_two_nodes``).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mainstay.detectors.base import ArrayDetector, DetectorState, DetectorStatus, Feed, Floats, Samples
from mainstay.detectors.entity_state import EntityState, median
from mainstay.detectors.finding import Entity, Finding, FindingKind
from mainstay.detectors.job.mesh import JobMesh
from mainstay.detectors.straggler.compute_time import ComputeTime, has_noisier_neighbor, nodes_of
from mainstay.detectors.straggler.config import StragglerConfig
from mainstay.detectors.straggler.messages import StragglerCase, evidence_of, node_evidence, status_of, weight_of
from mainstay.detectors.straggler.noise import drift_of, most_offset_of_two_nodes, noise_of, pool_of
from mainstay.detectors.straggler.normalize import NORMALISERS, Normalizer, PeerLayout, layout_of
from mainstay.detectors.straggler.normalize import Rows as Pool
from mainstay.detectors.straggler.slow_nodes import Rows, common_nodes

_PAIR = 2
_CROSS, _OWN = NORMALISERS.index("cross"), len(NORMALISERS)
"""The last way: a rank against its own history. It gives directions and judges no rank."""
_WAYS = _OWN + 1


class StragglerDetector(ArrayDetector):
    """Says ``straggler`` of a rank or node. Groups are roles: pipeline stage and all else that makes layers differ."""

    name = "straggler"
    kinds = frozenset({FindingKind.STRAGGLER})
    signals = ComputeTime.signals
    feed = Feed.STEPS

    Config = StragglerConfig
    config: StragglerConfig

    def reset(self) -> None:
        super().reset()
        self._ticks = 0
        self._steps = np.full(self.config.remembered, np.nan)
        self._normalizer = Normalizer()
        self._compute = ComputeTime()
        self._sigmas = [float("inf")] * _WAYS
        """Noise of each way in the middle of the roles; infinite where it is not known."""
        self._learned_at = [0] * _WAYS
        self._most_offset = float("inf")
        self._judge: int | None = None
        self._last_step: int | None = None
        self._settling = 0
        self._mesh: JobMesh | None = None
        self._layout: PeerLayout | None = None
        self._pool = self._nodes = np.zeros(0, np.intp)
        self._named: dict[str, Entity] = {}
        """Node to the entity of the finding about it; findings about its ranks end."""

    def _rows(self) -> EntityState:
        rows = EntityState().field("seen", 0, np.int64).field("missing", 0, np.int64)
        for name in ("state", "said", "pair"):
            rows.field(name, fill=False, dtype=np.bool_)
        ComputeTime.fields(rows)
        for name in ("score", "sum"):
            rows.field(name, 0.0, np.float64, (_WAYS,))
        rows.field("count", 0, np.int64, (_WAYS,)).field("onset", np.nan, np.float64, (_WAYS,))
        rows.field("first", np.nan)
        for name in ("sigma", "spread"):
            rows.field(name, np.nan, np.float64, (_WAYS,))
        lead = (self.config.remembered,)
        rows.field("r", np.nan, np.float64, (_WAYS, *lead)).field("work", np.nan, np.float64, (2, *lead))
        for name in ("x", "scores", "core_wait"):
            rows.field(name, np.nan, np.float64, lead)
        return rows

    # What it says of itself

    @property
    def abstains(self) -> str | None:
        """Why no rank is judged now, or None: unknown is never healthy."""
        if self._judge is None:
            return "still learning this job's noise"
        if not self._sigmas[self._judge] <= self.config.sigma_limit:
            noise, limit = self._sigmas[self._judge], self.config.sigma_limit
            return f"compute times of equal ranks differ by {noise:.1%} from step to step (limit {limit:.0%})"
        return None

    def status(self) -> DetectorStatus:
        noises = {name: self._sigmas[way] for way, name in enumerate(NORMALISERS) if self._learned_at[way]}
        peers = self._layout is not None and bool((self._layout.roles.count >= _PAIR).any())
        unknown = int(np.count_nonzero(self.rows["missing"] >= self.config.missing_steps))
        if not self.rows.entities:
            return DetectorStatus(state=DetectorState.IDLE)
        if self._judge is None:
            return status_of(noises, alone=not peers, unknown=unknown)
        smallest = self.config.smallest_slowdown(self._sigmas[self._judge])
        return status_of(noises, judge=self._judge, why=self.abstains, smallest=smallest, unknown=unknown)

    def _follow(self, samples: Samples) -> list[Finding]:
        """Also restart learning of pairs with a new member: they have no common history."""
        same = self.rows.follows(samples.entities) and self._groups[0] == samples.groups and self._mesh is samples.mesh
        if same and self._layout is not None:
            return []
        before = self._pairs()
        found = super()._follow(samples)
        for node in sorted(self._named.keys() - {entity.node for entity in samples.entities}):
            found.append(self._over(self._named.pop(node), float(samples.t[0]), "It left the fleet."))
        members = self._members(samples)
        self.rows["pair"] = np.zeros(len(samples.entities), dtype=np.bool_)
        for rows in members:
            self.rows["pair"][rows] = len(rows) == _PAIR
        for pair in self._pairs() - before:
            self._forget([self.rows.entities.index(entity) for entity in pair])
        ranks = np.array([-1 if e.rank is None else e.rank for e in samples.entities], np.int64)
        self._mesh, self._layout = samples.mesh, layout_of(members, ranks, samples.mesh)
        self._pool, self._nodes = pool_of(ranks), nodes_of(samples.entities)
        return found

    def _pairs(self) -> set[frozenset[object]]:
        entities, members = self.rows.entities, self._groups[1]
        return {frozenset(entities[r] for r in m) for m in members if len(m) == _PAIR and max(m) < len(entities)}

    def _forget(self, rows: list[int]) -> None:
        for name in ("seen", "score", "sum", "count"):
            self.rows[name][..., rows] = 0
        for name in ("first", "onset", "x", "r", "scores", "core_wait"):
            self.rows[name][..., rows] = np.nan

    # One step

    def _tick(self, samples: Samples, k: int) -> list[Finding]:
        assert samples.steps is not None
        step = int(samples.steps[k])
        residuals = self._observe(samples, k, step)
        self._learn()
        self._choose()
        for way in range(_WAYS if self.rows["pair"].any() else _OWN):
            self._score(way, residuals[way], step)
        if self._judge is not None:
            self.rows["scores"][self._at] = self.rows["score"][self._judge]
        return self._decide(float(samples.t[k]))

    @property
    def _at(self) -> int:
        return (self._ticks - 1) % self.config.remembered

    def _order(self) -> Sequence[int]:
        """Places of the remembered steps, oldest first."""
        known = min(self._ticks, self.config.remembered)
        return [(self._ticks - known + i) % self.config.remembered for i in range(known)]

    def _observe(self, samples: Samples, k: int, step: int) -> Floats:
        """Take one step in; returns the residuals [way, rank], NaN where nothing can be said."""
        rows, config = self.rows, self.config
        assert self._layout is not None
        if self._last_step is not None and step <= self._last_step:
            self._settling = config.settle_steps  # a roll-back: everybody's caches are cold
        self._last_step = step
        seconds = self._compute.seconds(rows, samples, k)
        valid = np.isfinite(seconds)
        back = valid & (rows["missing"] >= config.missing_steps)
        seen = np.where(back, np.minimum(rows["seen"], config.skip_steps - config.settle_steps), rows["seen"])
        rows["seen"] = seen + valid
        rows["missing"] = np.where(valid, 0, rows["missing"] + 1)
        x = np.where((rows["seen"] > config.skip_steps) & (self._settling == 0), np.log(seconds), np.nan)
        self._settling = max(0, self._settling - 1)
        work = np.stack([samples.signal(k, name) for name in ("tokens", "sequence_squares")]) * self._compute.scale
        rows["first"] = np.where(np.isnan(rows["first"]), x, rows["first"])
        residuals = self._residuals(x, work)
        self._ticks += 1
        self._steps[self._at] = step
        rows["x"][self._at], rows["r"][:, self._at], rows["work"][:, self._at] = x, residuals, work
        rows["scores"][self._at] = np.nan
        delay = samples.signal(k, "run_delay_seconds")
        rows["core_wait"][self._at] = delay / (delay + seconds)
        return residuals

    def _residuals(self, x: Floats, work: Floats) -> Floats:
        assert self._layout is not None
        own = x - self.rows["first"]
        own -= drift_of(own)[..., None]
        return np.concatenate((self._normalizer.residuals(self._layout, x, work), own[None]))

    # Learning

    def _learn(self) -> None:
        """Noise of each way, and its offsets: when warm-up ends, then every eighth step, later every sixteenth."""
        if self._learned_at[0] and self._ticks % (8 if self._ticks < self.config.remembered else 16):
            return
        rows, config = self.rows, self.config
        order = self._order()
        needed = config.pair_steps if rows["pair"].all() else config.learn_steps
        known = np.isfinite(rows["x"])
        if np.count_nonzero(known) < config.learn_samples or np.count_nonzero(known.any(axis=1)) < needed:
            return
        assert self._layout is not None
        calm = ~rows["state"] & (rows["score"][:_OWN] < config.gate).all(axis=0)
        before = self._normalizer.ways if self._learned_at[0] else 0
        self._normalizer.fit(self._layout, rows["x"][order], rows["work"][:, order], calm)
        if self._normalizer.ways != before:  # what was remembered before there was a fit
            rows["r"][:, order] = self._residuals(rows["x"][order], rows["work"][:, order])
        pool = self._pool[calm[self._pool]]
        self._most_offset = most_offset_of_two_nodes(rows["x"], rows["work"][0], self._layout.roles.lines, self._nodes)
        for way in range(_WAYS):
            self._learn_way(way, rows["r"][way][order], pool)

    def _learn_way(self, way: int, residuals: Floats, pool: Pool) -> None:
        """Learn one way's noise; when it is first known, every rank's offset starts from the steps of warm-up."""
        rows = self.rows
        noise = noise_of(residuals[:, pool])
        if noise.samples < self.config.learn_samples or not np.isfinite(noise.sigma):
            return
        rows["sigma"][way], rows["spread"][way] = noise.sigma, noise.offset
        lines = self._layout.roles.lines if self._layout and way < _OWN else []
        for line in lines:  # stages differ in noise too: a head, a first stage that feeds itself
            own = noise_of(residuals[:, pool[np.isin(pool, line)]])
            if own.samples >= self.config.learn_samples and np.isfinite(own.sigma):
                share = own.samples / (own.samples + self.config.role_samples)
                rows["sigma"][way, line] = noise.sigma ** (1 - share) * own.sigma**share
                rows["spread"][way, line] = noise.offset * (1 - share) + own.offset * share
        rows["sigma"][way] = np.maximum(rows["sigma"][way], self.config.sigma_floor)
        rows["spread"][way] = np.maximum(np.minimum(rows["spread"][way], self._most_offset), self.config.offset_floor)
        self._sigmas[way] = float(median(rows["sigma"][way]))
        if self._learned_at[way]:
            return
        self._learned_at[way] = self._ticks
        known, middle, reach = np.isfinite(residuals), median(residuals.T), 3.0 * rows["sigma"][way]
        believed = np.clip(residuals, middle - reach, middle + reach)  # a spike in a short warm-up is no offset
        rows["count"][way] = known.sum(axis=0)
        rows["sum"][way] = np.where(known, believed, 0.0).sum(axis=0)

    def _choose(self) -> None:
        """The quietest way judges; another one takes over only when it is clearly quieter."""
        sigmas = self._sigmas[:_OWN]
        if self._most_offset < np.inf:
            sigmas[_CROSS] = float("inf")  # it would take a slow node's replicas for ones with more work
        best = int(np.argmin(sigmas))
        if not np.isfinite(sigmas[best]):
            return
        if self._judge is None or sigmas[best] < self.config.switch * sigmas[self._judge]:
            self._judge = best

    # Judging

    def _offset(self, way: int) -> tuple[Floats, Floats]:
        """Each rank's lasting difference and the variance of its error; NaN where it cannot be judged yet."""
        rows, config = self.rows, self.config
        count = rows["count"][way]
        mean = rows["sum"][way] / np.maximum(count, 1)
        error = rows["sigma"][way] ** 2 / np.maximum(count, 1)
        own = rows["pair"] | (way == _OWN)
        prior = rows["spread"][way]
        share = np.where(count > 0, prior**2 / (prior**2 + error), 0.0)
        bound = config.offset_limit * prior
        # Never below zero: a rank that was fast, by nature or by chance, is no suspect for being as fast as the others.
        offset = np.where(own, mean, np.clip(share * mean, 0.0, bound))
        spread = np.where(own, error, np.where(count > 0, share * error, prior**2))
        # Its error stays for many steps, unlike noise: the benefit of the doubt, as far as one deviation.
        offset = offset + np.sqrt(spread)
        offset[own & (count < config.pair_least)] = np.nan
        return offset, spread

    def _score(self, way: int, residual: Floats, step: int) -> None:
        rows, config = self.rows, self.config
        if not self._learned_at[way]:
            return
        offset, spread = self._offset(way)
        sigma = rows["sigma"][way]
        z = (residual - offset) / np.sqrt(sigma**2 + spread)
        before = rows["score"][way]
        moved = np.clip(before + np.clip(z, -config.clip, config.clip) - config.k, 0.0, config.cap)
        score = np.where(np.isfinite(z) & (sigma <= config.sigma_limit), moved, before)
        rows["onset"][way] = np.where((before <= 0.0) & (score > 0.0), step, rows["onset"][way])
        score[(rows["missing"] >= config.missing_steps) & ~rows["state"]] = 0.0
        rows["score"][way] = score
        self._believe(way, offset)

    def _believe(self, way: int, offset: Floats) -> None:
        """A step of a while ago teaches the rank's offset, if the rank has been calm since."""
        rows, config = self.rows, self.config
        if self._ticks - config.delay_steps <= self._learned_at[way]:
            return
        past = rows["r"][way, (self._at - config.delay_steps) % config.remembered]
        count = rows["count"][way]
        full = (rows["pair"] | (way == _OWN)) & (count >= config.pair_base_steps)
        calm = np.isfinite(past) & (rows["score"][way] <= config.gate) & ~rows["state"] & ~full
        reach = 3.0 * rows["sigma"][way]
        middle = np.where(np.isfinite(offset), offset, past)
        past = np.clip(past, middle - reach, middle + reach)
        keep = np.where(count >= config.remembered, 1.0 - 1.0 / config.remembered, 1.0)  # then forget slowly
        rows["sum"][way] = np.where(calm, rows["sum"][way] * keep + past, rows["sum"][way])
        rows["count"][way] = np.where(calm, np.minimum(count + 1, config.remembered), count)

    def _decide(self, time: float) -> list[Finding]:
        if self._judge is None or self.abstains is not None:
            return []
        rows, config, here = self.rows, self.config, self.rows["missing"] == 0
        score = rows["score"][self._judge]
        begins = ~rows["state"] & (score >= config.h) & here
        begins[begins] = [self._convinced(int(row)) for row in np.flatnonzero(begins)]
        ends = rows["state"] & (score <= config.h_off) & here
        rows["state"] = (rows["state"] | begins) & ~ends
        return self._report(time) if (begins | ends).any() else []

    def _report(self, time: float) -> list[Finding]:
        """Ranks one by one, or their node where most of its ranks are slow: then findings about ranks end."""
        rows, entities = self.rows, self.rows.entities
        nodes = common_nodes(rows["state"], entities, self._nodes, self._named) if self._nodes.any() else {}
        found = [self._over(self._named.pop(node), time) for node in sorted(self._named.keys() - nodes.keys())]
        for node in sorted(nodes.keys() - self._named.keys()):
            slow = nodes[node][rows["state"][nodes[node]]]
            self._named[node] = Entity(job=entities[slow[0]].job, node=node)
            found.append(self._say(slow, self._named[node], time, len(nodes[node])))
        wanted = rows["state"] & ~np.isin(np.arange(len(entities)), [r for places in nodes.values() for r in places])
        changed = np.flatnonzero(wanted != rows["said"])
        rows["said"] = wanted
        ranks = [entities[int(row)].rank or 0 for row in changed]
        for row in changed[np.lexsort((ranks, -rows["score"][self._judge or 0][changed]))]:
            why = "Its node is named instead." if rows["state"][row] else None
            found.append(self._say([row], entities[row], time) if wanted[row] else self._over(entities[row], time, why))
        return found

    def _over(self, entity: Entity, time: float, why: str | None = None) -> Finding:
        who = f"Node {entity.node}" if entity.rank is None else f"Rank {entity.rank}"
        return self._ended(FindingKind.STRAGGLER, entity, time, why or f"{who} computes as fast as its peers again.")

    def _convinced(self, row: int) -> bool:
        """A pair's slow side must be slow by its own history too, or a peer that became faster would accuse it."""
        slowdown = self._slowdown(row)
        if self._dwarfed(row, slowdown):
            return False
        if not self.rows["pair"][row]:
            return slowdown >= self.config.least_ratio
        return bool(self.rows["score"][_OWN, row] >= self.config.h) and slowdown >= self.config.pair_ratio

    def _dwarfed(self, row: int, slowdown: float) -> bool:
        """Whether another rank of the node loses far more to another process: this one is judged when that is over."""
        rows, here = self.rows, np.flatnonzero(self._nodes == self._nodes[row])
        since = self._steps >= rows["onset"][self._judge or 0, row]
        x, wait = rows["x"][since][:, here], rows["core_wait"][since][:, here]
        return has_noisier_neighbor(x, wait, int(np.searchsorted(here, row)), slowdown, self.config.neighbor_share)

    def _slowdown(self, row: int) -> float:
        """Own compute over what it should be, since the suspicion began, less the rank's lasting difference."""
        assert self._judge is not None
        assert self._layout is not None
        rows, way = self.rows, self._judge
        recent = rows["r"][way, self._steps >= rows["onset"][way, row], row]
        return float(np.exp((float(median(recent)) - self._offset(way)[0][row]) * self._layout.scale[row]))

    def _say(self, slow: Sequence[int] | Rows, entity: Entity, time: float, size: int = 1) -> Finding:
        """About a rank, or a node of ``size`` ranks of which these are slow."""
        cases = [self._case(int(row)) for row in slow]
        evidence = evidence_of(cases[0]) if entity.rank is not None else node_evidence(cases, size)
        severity, confidence = weight_of(
            cases, unsure=bool(self.rows["pair"][slow].any()) or self._most_offset < np.inf
        )
        return self._finding(FindingKind.STRAGGLER, entity, time, evidence, confidence=confidence, severity=severity)

    def _case(self, row: int) -> StragglerCase:
        assert self._judge is not None and self._layout is not None  # noqa: PT018
        rows, way, order = self.rows, self._judge, self._order()
        x, onset, slowdown = rows["x"][order, row], float(rows["onset"][way, row]), self._slowdown(row)
        shares = median(rows["core_wait"][self._steps >= onset].T)
        wait = float(np.nan_to_num(shares[row])) - float(np.nan_to_num(median(np.delete(shares, row))))
        return StragglerCase(
            entity=rows.entities[row],
            way=way,
            slowdown=slowdown,
            onset=onset,
            sigma=float(rows["sigma"][way, row]),
            score=float(rows["score"][way, row]),
            next_score=float(np.max(np.delete(rows["score"][way], row), initial=0.0)),
            limit=self.config.h,
            core_wait=wait,
            contended=wait >= max(self.config.core_wait, (slowdown - 1.0) / 2),
            steps=self._steps[order],
            x=x,
            expected=x - rows["r"][way][order, row] * self._layout.scale[row],
            scores=rows["scores"][order, row],
        )
