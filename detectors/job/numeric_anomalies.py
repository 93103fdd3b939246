"""Values that are sick: NaN or Inf at the rank that had it first, spikes of loss and gradients, replicas that differ.

- ``nan``: a rank reports non-finite values of its own loss or gradients, before they are averaged. The next all-reduce
  gives them to everybody, so blame ends with the first step that showed any; a rank whose report is missing just then
  is named only if no other rank is left. It warns at once and turns critical when the next step is no better: with
  scaled half-precision losses a single overflow is skipped by the optimizer and part of normal work.
- ``loss_spike``: five times the running level in one step (ByteRobust), or a slower rise
  (``mainstay.detectors.job.spikes``), of the loss or of the gradient norms, each rank's against its own usual. Of the
  job: no rank is to blame. Gradients of one rank alone in one step are information, as norms have heavy tails and an
  optimizer clips them; the next step that is no better, or the loss, makes it a warning.
- ``sdc_suspect``: replicas whose parameters or gradients differ (``mainstay.detectors.job.replica_divergence``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from mainstay.detectors.base import ArrayDetector, DetectorState, DetectorStatus, Feed, Floats, Samples
from mainstay.detectors.entity_state import EntityState, append_rows, median
from mainstay.detectors.finding import Cause, Entity, Evidence, Finding, FindingKind
from mainstay.detectors.job.mesh import JobMesh
from mainstay.detectors.job.replica_divergence import DigestComparison, DigestTracker, Groups, declare, watch_norms
from mainstay.detectors.job.spikes import SpikeDetectorState
from mainstay.detectors.series import draw_series
from mainstay.probes.core_types import RecommendedAction, Severity, StepPhase

_K = FindingKind


class NumericAnomalyDetector(ArrayDetector):
    """Says ``nan``, ``loss_spike`` and ``sdc_suspect`` of one job."""

    name = "numeric_anomalies"
    kinds = frozenset({_K.NAN, _K.LOSS_SPIKE, _K.SDC_SUSPECT})
    signals = ("nonfinite_values", "loss", "gradient_norm", "parameters_digest", "step_phase")
    feed = Feed.STEPS

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Config:
        clean_steps: int = 3
        """Finite steps in a row after which a NaN is over."""
        crowd: float = 0.5
        """Share of the ranks above which non-finite values have already spread: none of them is the first."""
        absent: float = 0.125
        """Share of ranks that may be suspected for not having reported when it began."""
        norms: int = 16
        """Steps of a rank's gradient norm that make its usual one."""
        drawn: int = 64

    config: Config

    def reset(self) -> None:
        super().reset()
        self._said: dict[tuple[FindingKind, Entity], Finding] = {}
        self._mesh: JobMesh | None = None
        self._replicas: Groups = []
        self._digests = DigestTracker()
        self._nan_on, self._clean, self._heard = False, 0, False
        self._loss, self._norm = SpikeDetectorState(), SpikeDetectorState(multiplies=True)
        self._past = np.full((3, self.config.drawn), np.nan)
        """Step, loss and gradient norm (over usual), to draw."""

    def _rows(self) -> EntityState:
        rows = declare(EntityState()).field("norm", np.nan, np.float64, (self.config.norms,)).field("told", -1.0)
        return rows.field("digest_odd", fill=False, dtype=np.bool_)

    def _held(self, row: int) -> list[FindingKind]:
        entity = self.rows.entities[row]
        return [kind for kind, about in self._said if about == entity]

    def status(self) -> DetectorStatus:
        digests = self._digests
        numbers = {"digests_compared": float(digests.compared), "digests_agreed": float(digests.agreed)}
        if not self._heard:
            return DetectorStatus(state=DetectorState.IDLE, reason="No losses, gradient norms or digests are reported.")
        if digests.compared and not digests.agreed:
            why = "Digests of replicas never agreed: parameters are sharded, so that digests say nothing."
            return DetectorStatus(state=DetectorState.ACTIVE, reason=why, numbers=numbers)
        if self._mesh is None:
            why = "Who replicates whom is unknown: silent corruption is not judged."
            return DetectorStatus(state=DetectorState.ACTIVE, reason=why, numbers=numbers)
        return DetectorStatus(state=DetectorState.ACTIVE, numbers=numbers)

    def _follow(self, samples: Samples) -> list[Finding]:
        same = self.rows.follows(samples.entities)
        if same and samples.mesh is self._mesh:
            return []
        found = super()._follow(samples)
        for finding in found:
            self._said.pop((finding.kind, finding.entity), None)
        if not samples.entities:
            gone = "The job left the fleet and is no longer watched."
            found += [finding.ended(float(samples.t[0]), gone) for finding in self._said.values()]
            self._said.clear()
        self._mesh = samples.mesh
        self._replicas = []
        if samples.mesh is not None:
            label = np.full(len(samples.entities), -1, np.int64)
            rows = samples.mesh.rows([entity.rank for entity in samples.entities])
            label[rows >= 0] = samples.mesh.labels("dp")[rows[rows >= 0]]
            self._replicas = [np.flatnonzero(label == g) for g in np.unique(label[label >= 0])]
        return found

    def _tick(self, samples: Samples, k: int) -> list[Finding]:
        assert samples.steps is not None
        if not samples.entities:
            return []
        step, time = int(samples.steps[k]), float(samples.t[k])
        sick, loss, norm, digest, phase = (samples.signal(k, name) for name in self.signals)
        self._heard |= bool(np.isfinite(np.concatenate((sick, loss, norm, digest))).any())
        found = self._judge_nan(sick, step, time)
        with np.errstate(invalid="ignore"):
            norm[~(norm > 0.0)] = np.nan
            train = ~(np.isfinite(phase) & (phase != StepPhase.TRAIN))
        found += self._judge_spikes(np.where(train, loss, np.nan), np.where(train, norm, np.nan), step, time)
        if self._replicas:
            verdict = self._digests.judge(digest, self._replicas, self.rows["trusted"])
            found += self._judge_digests(verdict, step, time)
            found += self._judge_norms(np.where(train, norm, np.nan), step, time)
        return found

    def _judge_nan(self, sick: Floats, step: int, time: float) -> list[Finding]:
        known, flagged = np.isfinite(sick), np.nan_to_num(sick) > 0.0
        found: list[Finding] = []
        if flagged.any():
            self._clean = 0
            found = self._worsen(step, time) if self._nan_on else self._first_nan(flagged, known, step, time)
            self._nan_on = True
        elif known.any() and self._nan_on:
            self._clean += 1
            if self._clean >= self.config.clean_steps:
                self._nan_on = False
                keys = [key for key in self._said if key[0] is _K.NAN]
                found = [self._over(*key, time, "Losses and gradients are finite again.") for key in keys]
        self.rows["told"] = np.where(known, sick, np.nan)
        return found

    def _first_nan(self, flagged: np.ndarray, known: np.ndarray, step: int, time: float) -> list[Finding]:
        entities, config = self.rows.entities, self.config
        rows = np.flatnonzero(flagged)
        spread = len(rows) > max(1.0, config.crowd * np.count_nonzero(known))
        silent = np.flatnonzero(np.isnan(self.rows["told"]) | ~known)
        words = f"The first non-finite loss or gradients of the job, at step {step}"
        if not spread:
            sure = max(0.95 / len(rows), 0.1) if len(rows) > 1 else 0.95
            others = f", in the same step as {len(rows) - 1} others" if len(rows) > 1 else ""
        elif 0 < len(silent) <= max(1.0, config.absent * len(entities)):
            rows, sure, others = silent, 0.5 / len(silent), ", were everywhere at once; this rank had just not reported"
        else:
            numbers = {"step": float(step), "ranks": float(len(rows))}
            summary = f"{words}, were those of {len(rows)} ranks at once: where they came from is not known."
            entity = Entity(job=entities[0].job)
            evidence = Evidence(summary=summary, numbers=numbers)
            return [self._say(self._finding(_K.NAN, entity, time, evidence, confidence=0.95))]
        found = []
        for row in rows.tolist():
            entity = entities[row]
            place = f"rank {entity.rank}" + (f" on {entity.node}" if entity.node else "")
            summary = f"{words}, were those of {place}{others}."
            evidence = Evidence(summary=summary, numbers={"step": float(step), "ranks": float(len(rows))})
            found.append(self._say(self._finding(_K.NAN, entity, time, evidence, confidence=sure)))
        return found

    def _worsen(self, step: int, time: float) -> list[Finding]:
        """The step after is non-finite too: no single overflow that the optimizer skipped."""
        found = []
        for key, finding in self._said.items():
            if finding.kind is _K.NAN and finding.severity is not Severity.CRITICAL:
                summary = f"{finding.evidence.summary} Step {step} is not finite either."
                evidence = replace(finding.evidence, summary=summary)
                worse = replace(
                    finding,
                    time=time,
                    severity=Severity.CRITICAL,
                    recommended_action=RecommendedAction.RESTART_JOB,
                    evidence=evidence,
                )
                self._said[key] = worse
                found.append(worse)
        return found

    def _judge_spikes(self, loss: Floats, norm: Floats, step: int, time: float) -> list[Finding]:
        usual = median(self.rows["norm"].T)
        ready = np.isfinite(norm) & np.isfinite(self.rows["norm"][0])
        apart = np.log(norm) - usual
        squares = np.exp(2 * apart[ready]).tolist()
        level = math.log(math.fsum(squares) / len(squares)) / 2 if squares else math.nan  # fsum: in any order
        value = float(median(loss))
        self._past[:, :-1] = self._past[:, 1:]
        self._past[:, -1] = step, value, np.exp(level)
        before = self._loss.on, self._norm.on
        changed = self._loss.add_value(value) | self._norm.add_value(level)
        if not self._norm.on:
            append_rows(self.rows["norm"], np.log(norm), np.isfinite(norm))
        entity = Entity(job=self.rows.entities[0].job)
        said = self._said.get((_K.LOSS_SPIKE, entity))
        if said and said.severity is Severity.INFO and (self._loss.on or (np.isfinite(level) and not self._norm.calm)):
            self._said[_K.LOSS_SPIKE, entity] = worse = replace(said, time=time, severity=Severity.WARNING)
            return [worse]
        if not changed:
            return []
        if not (self._loss.on or self._norm.on):
            return [self._over(_K.LOSS_SPIKE, entity, time, "Loss and gradient norms are back at their level.")]
        if any(before):
            return []  # one finding speaks for both
        return [self._spike(entity, value, level, apart, time)]

    def _spike(self, entity: Entity, loss: float, level: float, apart: Floats, time: float) -> Finding:
        numbers = {"loss": loss, "usual_loss": self._loss.level, "norm_ratio": float(np.exp(level))}
        numbers = {name: value for name, value in numbers.items() if np.isfinite(value)}
        step = int(self._past[0, -1])
        if self._loss.on:
            how = "has been rising away from" if self._loss.rising else "jumped from"
            text = f"The loss {how} {self._loss.level:.4g} to {loss:.4g} at step {step}"
        else:
            how = "have risen to" if self._norm.rising else "jumped to"
            text = f"Gradient norms {how} {np.exp(level):.3g} times their usual at step {step}"
        shares = np.exp(2 * np.nan_to_num(apart, nan=-np.inf))
        top = int(np.argmax(shares))
        severity = Severity.WARNING
        if self._norm.on and shares[top] > shares.sum() / 2 and np.count_nonzero(shares) > 2:
            if not (self._loss.on or self._norm.rising):
                severity = Severity.INFO
            numbers["rank"] = float(self.rows.entities[top].rank or 0)
            text += f", most of it at rank {self.rows.entities[top].rank}"
        line, name = (1, "loss") if self._loss.on else (2, "gradient_norm")
        series = draw_series(name, "1", self._past[0], self._past[line], x_is="step")
        evidence = Evidence(summary=f"{text}.", numbers=numbers, series=series)
        return self._say(self._finding(_K.LOSS_SPIKE, entity, time, evidence, confidence=0.9, severity=severity))

    def _judge_digests(self, verdict: DigestComparison, step: int, time: float) -> list[Finding]:
        rows, found = self.rows, []
        odd, was = verdict.odd, rows["digest_odd"].copy()
        rows["digest_odd"] = (was | odd) & ~verdict.even
        for row in np.flatnonzero(odd & ~was).tolist():
            entity, split = rows.entities[row], bool(verdict.split[row])
            place = f"Rank {entity.rank}" + (f" on {entity.node}" if entity.node else "")
            rest = "and no majority says who is right" if split else "which agree among themselves"
            summary = f"{place} holds other parameters than its data-parallel replicas at step {step}, {rest}."
            evidence = Evidence(summary=summary, numbers={"step": float(step), "digests_differ": 1.0})
            found.append(self._suspect(entity, time, evidence, 0.4 if split else 0.95))
        return found + self._cleared(was & ~rows["digest_odd"] & ~rows["off"], time)

    def _judge_norms(self, norm: Floats, step: int, time: float) -> list[Finding]:
        rows, found = self.rows, []
        changed = watch_norms(rows, norm, self._replicas)
        for row in changed.tolist():
            entity = rows.entities[row]
            if not rows["off"][row] or (_K.SDC_SUSPECT, entity) in self._said:
                continue
            ratio = float(np.exp(median(rows["off_now"][:, row])))
            summary = (
                f"Rank {entity.rank}'s own gradient norm has been {ratio:.2g} times what it usually is beside its "
                f"data-parallel replicas since about step {step - 4}: its data or its arithmetic differ."
            )
            evidence = Evidence(summary=summary, numbers={"ratio": ratio, "step": float(step)})
            found.append(self._suspect(entity, time, evidence, 0.5))
        ended = np.zeros(len(rows.entities), dtype=np.bool_)
        ended[changed] = True
        return found + self._cleared(ended & ~rows["off"] & ~rows["digest_odd"], time)

    def _cleared(self, where: np.ndarray, time: float) -> list[Finding]:
        """Nothing speaks against these ranks any more."""
        entities = [self.rows.entities[row] for row in np.flatnonzero(where)]
        words = "Parameters and gradients agree with the replicas' again."
        return [self._over(_K.SDC_SUSPECT, e, time, words) for e in entities if (_K.SDC_SUSPECT, e) in self._said]

    def _suspect(self, entity: Entity, time: float, evidence: Evidence, sure: float) -> Finding:
        """A rank with other bits, or another norm, than its replicas; only a majority against it is no mere warning."""
        grave = sure > 0.5
        severity = Severity.CRITICAL if grave else Severity.WARNING
        action = RecommendedAction.INSPECT_NODE if grave else RecommendedAction.MONITOR
        return self._say(
            self._finding(
                _K.SDC_SUSPECT, entity, time, evidence, severity=severity, confidence=sure, recommended_action=action,
                cause=Cause.SILENT_CORRUPTION,
            )
        )  # fmt: skip

    def _say(self, finding: Finding) -> Finding:
        self._said[finding.kind, finding.entity] = finding
        return finding

    def _over(self, kind: FindingKind, entity: Entity, time: float, words: str) -> Finding:
        return self._said.pop((kind, entity)).ended(time, words)
