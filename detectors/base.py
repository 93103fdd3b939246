"""The contract of a detector, on one page.

A detector is pure mathematics: arrays or events in, findings out. It reads no clock, no file and no socket; its time is
the data's. From that follow the rules that ``tests/detectors/test_conformance.py`` holds every registered one to:

- ``__init__`` stores a frozen ``Config`` and nothing else; what is learned lives apart and ``reset`` forgets it.
- Deterministic, and chunk-invariant: one update with 100 samples says what 10 updates with 10 samples say.
- Input is never changed. NaN is a missing sample: it is no evidence of health, so it neither raises nor clears.
- Entities come and go between updates: state grows and shrinks with them, and an entity that leaves while a finding
  about it holds gets an inactive one ("no longer watched"), so that no rule waits for it for ever.
- A finding is emitted when it begins to hold, when it becomes more or less severe (same kind and entity), and, with
  ``active=False``, when it ceases to hold; never in between.
- Evidence (sentence, numbers, series to draw) is made only for what is flagged.

A new detector costs two files, ``detectors/GROUP/NAME.py`` and ``tests/detectors/GROUP/test_NAME.py`` with
``example(seed)``, and its line in ``registry.py``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from mainstay.detectors.correlation.root_causes import USUAL
from mainstay.detectors.entity_state import EntityState, places
from mainstay.detectors.finding import Cause, Entity, Evidence, Finding, FindingKind
from mainstay.detectors.job.mesh import JobMesh, rows_by_label
from mainstay.probes.core_types import Event, EventKind, RecommendedAction, Severity
from mainstay.probes.recent import Recent

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Samples:
    """A chunk of measurements of several entities.

    Raises:
        ValueError: shapes disagree, a time is not finite, or an entity stands twice; the message names which.
    """

    entities: tuple[Entity, ...]
    """E rows, in the order of the arrays' last axis. Pass the same tuple again while the fleet does not change."""
    groups: tuple[str, ...]
    """Who may be compared with whom, one label an entity: cohort of a device, role (pipeline stage) of a rank."""
    signals: tuple[str, ...]
    """S names, the middle axis."""
    t: Floats
    """[T] Unix seconds, float64, not falling."""
    x: Array
    """[T, S, E] float32 or float64 (the latter where a value is itself a time); NaN = missing. Counters as rates."""
    mesh: JobMesh | None = None
    """The job whose ranks the entities are, with its axes; None for devices."""
    steps: npt.NDArray[np.int64] | None = None
    """[T] step numbers where the samples are steps of a job; a step may come again after a rollback."""

    def __post_init__(self) -> None:
        shape = (len(self.t), len(self.signals), len(self.entities))
        if self.x.shape != shape:
            raise ValueError(f"x has shape {self.x.shape}, expected [time, signal, entity] = {shape}")
        if len(self.groups) != len(self.entities):
            raise ValueError(f"{len(self.groups)} group labels for {len(self.entities)} entities")
        if self.steps is not None and len(self.steps) != len(self.t):
            raise ValueError(f"{len(self.steps)} step numbers for {len(self.t)} times")
        if not np.isfinite(self.t).all():
            raise ValueError("a sample's time is not finite")

    def signal(self, k: int, name: str) -> Floats:
        """One signal at sample ``k`` as float64 [E]; all NaN where the samples do not carry it."""
        if name not in self.signals:
            return np.full(len(self.entities), np.nan)
        column: Floats = self.x[k, self.signals.index(name)].astype(np.float64)
        return column

    def part(self, start: int, stop: int) -> Samples:
        """The samples ``start`` to ``stop`` (views, nothing is copied)."""
        steps = None if self.steps is None else self.steps[start:stop]
        return replace(self, t=self.t[start:stop], x=self.x[start:stop], steps=steps)


class Feed(StrEnum):
    """What the entities of an array detector's samples are."""

    DEVICES = "devices"
    """Devices or nodes of the fleet, by time: one detector for all."""
    STEPS = "steps"
    """Ranks of one job, by step (``Samples.steps``): one detector a job, as for the two below. Signals: source rank."""
    PROGRESS = "progress"
    """Ranks of one job, by time: signals of source progress, float64 (counts beyond 2^24)."""
    PAIRS = "pairs"
    """Pairs of ranks of one job (``Entity.rank`` sends to ``Entity.peer``), by step: signals of source pair."""

    @property
    def by_step(self) -> bool:
        return self in {Feed.STEPS, Feed.PAIRS}


class DetectorState(StrEnum):
    """Whether a detector evaluates the job. A detector that does not is not evidence of health."""

    IDLE = "idle"  # it has seen nothing that it could judge
    LEARNING = "learning"
    ACTIVE = "active"
    ABSTAINING = "abstaining"  # what it sees is too noisy, or not comparable


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorStatus:
    """A detector's own account of what it does now: shown beside its findings."""

    state: DetectorState
    reason: str = ""
    """A sentence; empty where it judges as it should."""
    numbers: dict[str, float] = field(default_factory=dict)
    """What it learned: noise, limits, the normalizer's number…"""


class Detector(ABC):
    """What both families share: a name, a frozen configuration, and what it can say."""

    name: ClassVar[str]
    kinds: ClassVar[frozenset[FindingKind]]
    Config: Any
    """The class of its configuration."""
    config: Any
    usual_causes: ClassVar[bool] = False
    """Whether a finding that names no cause of its own has the usual cause of its kind."""
    usual_severity: ClassVar[Severity] = Severity.WARNING
    usual_confidence: ClassVar[float] = 1.0
    usual_action: ClassVar[RecommendedAction] = RecommendedAction.NONE
    """Of its findings that hold, where one gives no other."""

    def __init__(self, config: Any = None) -> None:
        """``config``: a ``Config``; None: its defaults."""
        self.config = config or self.Config()
        self.reset()

    @abstractmethod
    def reset(self) -> None:
        """Forget everything learned, as if newly built."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.config!r})"

    def _finding(
        self,
        kind: FindingKind,
        entity: Entity,
        time: float,
        evidence: Evidence,
        *,
        active: bool = True,
        severity: Severity | None = None,
        confidence: float | None = None,
        recommended_action: RecommendedAction | None = None,
        cause: Cause | None = None,
        event: str | None = None,
    ) -> Finding:
        """A finding of this detector, with its usual values where an argument is left out."""
        if self.usual_causes and active:
            cause = cause or USUAL.get(kind)
        return Finding(
            kind=kind,
            entity=entity,
            time=time,
            severity=severity or self.usual_severity,
            detector=self.name,
            confidence=self.usual_confidence if confidence is None else confidence,
            evidence=evidence,
            active=active,
            recommended_action=recommended_action or self.usual_action,
            cause=cause,
            event=event,
        )

    def _ended(self, kind: FindingKind, entity: Entity, time: float, summary: str) -> Finding:
        """The finding no longer holds."""
        evidence, none = Evidence(summary=summary), RecommendedAction.NONE
        return self._finding(
            kind,
            entity,
            time,
            evidence,
            active=False,
            severity=Severity.WARNING,
            confidence=1.0,
            recommended_action=none,
        )


class EventDetector(Detector):
    """Judges facts: things that happened once. Its ``Config`` has ``remembered``: how many event ids are kept."""

    reads: ClassVar[frozenset[EventKind]]
    """Kinds of event that it judges; all others are ignored."""

    @abstractmethod
    def _handle(self, event: Event) -> Iterable[Finding]:
        """Judge an event of these kinds that was not seen before."""

    def reset(self) -> None:
        self._seen: Recent[str, None] = Recent(self.config.remembered)

    def update(self, events: Sequence[Event]) -> list[Finding]:
        """Take events in order of arrival; a repeated id changes nothing."""
        found: list[Finding] = []
        for event in events:
            if event.kind in self.reads and event.id not in self._seen:
                self._seen[event.id] = None
                found += self._handle(event)
        return found

    def advance_clock(self, now: float) -> list[Finding]:
        """What ceases to hold because nothing came; ``now`` is the caller's clock, Unix seconds."""
        del now
        return []

    def restore_findings(self, findings: Iterable[Finding]) -> None:
        """After a restart: what holds in the store, of which ``update`` may have been shown too few events to know."""
        del findings


class ArrayDetector(Detector):
    """Judges measurements: one vectorized step per sample, state in arrays whose last axis follows the entities."""

    signals: ClassVar[tuple[str, ...]]
    """What it reads; other signals in the samples are ignored, an absent one counts as all missing."""
    host_signals: ClassVar[tuple[str, ...]] = ()
    """Signals of the node's host that stand beside each of its devices, e.g. ``uptime_seconds`` for a boot grace."""
    gpu_signals: ClassVar[tuple[str, ...]] = ()
    """Signals of a node's GPUs that stand beside its host's own: of each the highest or lowest (``gpu_extremes``).
    Only for a detector of hosts."""
    settling_seconds: ClassVar[float] = 60.0
    """How long after a restart it must have looked before its silence about an older finding means that it is over."""
    feed: ClassVar[Feed] = Feed.DEVICES
    """What its samples are; whoever feeds it makes one detector for the fleet or one for each job accordingly."""

    @abstractmethod
    def _rows(self) -> EntityState:
        """Fresh state."""

    @abstractmethod
    def _tick(self, samples: Samples, k: int) -> list[Finding]:
        """Judge sample ``k``; ``self.rows`` already follows ``samples.entities``."""

    def _held(self, row: int) -> list[FindingKind]:
        """Kinds of finding that hold for a row now; of a detector with one kind, where ``rows["said"]`` is set."""
        return [*self.kinds] if self.rows["said"][row] else []

    def reset(self) -> None:
        self.rows = self._rows()
        self._groups: tuple[tuple[str, ...], list[npt.NDArray[np.intp]]] = ((), [])

    def status(self) -> DetectorStatus:
        """What it does now: idle without entities. One that may be idle for another reason overrides it."""
        return self._judging() if self.rows.entities else DetectorStatus(state=DetectorState.IDLE)

    def _judging(self) -> DetectorStatus:
        """What it does with its entities. A detector that learns or may abstain overrides it."""
        return DetectorStatus(state=DetectorState.ACTIVE)

    def holds(self, kind: FindingKind, entity: Entity) -> bool:
        """Whether it has said so and not that it is over."""
        return entity in self.rows.entities and kind in self._held(self.rows.entities.index(entity))

    def learned(self) -> dict[str, Array]:
        """What is to outlive a restart, not copied; nothing where a detector learns within minutes."""
        return {}

    def restore_learned(self, learned: Mapping[str, Array]) -> None:
        """Continue from what ``learned`` gave before a restart; the detector is fresh.

        Raises:
            ValueError: it is of another release; the message says what differs.
        """
        del learned

    def update(self, samples: Samples) -> list[Finding]:
        """Findings that begin or cease to hold within the chunk, in order of time.

        Raises:
            ValueError: the detector judges steps and the samples carry no step numbers.
        """
        if self.feed.by_step and samples.steps is None:
            raise ValueError(f"detector {self.name} judges steps: Samples.steps is missing")
        if len(samples.t) == 0:
            return []
        findings = self._follow(samples)
        for k in range(len(samples.t)):
            findings.extend(self._tick(samples, k))
        return findings

    def _follow(self, samples: Samples) -> list[Finding]:
        """Let the state follow the entities; withdraw the findings about those that left."""
        if self.rows.follows(samples.entities):
            return []
        take = places(self.rows.entities, samples.entities)
        gone = np.ones(len(self.rows.entities), np.bool_)
        gone[take[take >= 0]] = False
        said = [(self.rows.entities[row], kind) for row in np.flatnonzero(gone).tolist() for kind in self._held(row)]
        self.rows.move(samples.entities, take)
        summary = "It left the fleet and is no longer watched."
        return [self._ended(kind, entity, float(samples.t[0]), summary) for entity, kind in said]

    def _members(self, samples: Samples) -> list[npt.NDArray[np.intp]]:
        """Row numbers of each group, groups in order of label."""
        if self._groups[0] is not samples.groups and self._groups[0] != samples.groups:
            self._groups = (samples.groups, rows_by_label(np.asarray(samples.groups, dtype=np.str_)))
        return self._groups[1]
