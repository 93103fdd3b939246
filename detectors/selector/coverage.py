"""Which share of defects a set of benchmarks finds: of the union of what they found, never a product of single shares.

Benchmarks that see the same defects look independent in a product: two that each find the same half would count for
three quarters. So the records of past defects are kept whole, with everything that found each of them.

Invariant: coverage never falls when a benchmark is added, and no set is sure to find everything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mainstay.detectors.selector.hazard import Bools, Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class DefectRecord:
    """A defect of the past, however it was noticed in the end."""

    defect: str
    """Its class (``mainstay.probes.benchmarks.defects.Defect``)."""
    found: frozenset[str]
    """Benchmarks that found it; empty when only an incident showed it."""
    ran: frozenset[str] | None = None
    """Benchmarks that were run on it; None: every one."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """What was learned of a list of benchmarks over a list of defect classes."""

    benchmarks: tuple[str, ...]
    classes: tuple[str, ...]
    patterns: Bools
    """[pattern, benchmark] who found it: defects of one class found by the same benchmarks are one pattern."""
    counts: Floats
    """[class, pattern] how many defects."""
    claims: Bools
    """[class, benchmark] whether it was made to find the class, or has done so."""

    @classmethod
    def learn(
        cls,
        records: Iterable[DefectRecord],
        benchmarks: Sequence[str],
        *,
        classes: Sequence[str] = (),
        catches: Mapping[str, Iterable[str]] | None = None,
        enough: int = 20,
    ) -> Coverage:
        """Learn from past defects.

        A benchmark that did not run on a defect counts as not having found it, which errs to the safe side; a class
        with ``enough`` defects on which all ran is learned from these alone, which does not err.

        Args:
            records: of past defects.
            benchmarks: the candidates; others in the records are left aside.
            classes: classes that exist in addition to those in the records.
            catches: benchmark → classes that it is made to find; one that is not listed may find any.
            enough: see above.

        Raises:
            ValueError: a benchmark is named twice, or none is; or there is no class at all.
        """
        names = tuple(benchmarks)
        if not names or len(set(names)) != len(names):
            raise ValueError("benchmarks must be named, each once")
        kept = list(records)
        known = tuple(dict.fromkeys([*classes, *sorted({r.defect for r in kept})]))
        if not known:
            raise ValueError("no class of defect is named, and no defect is recorded")
        tally: Counter[tuple[str, tuple[bool, ...]]] = Counter()
        for defect in known:
            for record in _best(kept, defect, frozenset(names), enough):
                tally[defect, tuple(name in record.found for name in names)] += 1
        shapes = sorted({pattern for _, pattern in tally})
        patterns = np.array(shapes, bool).reshape(-1, len(names))
        counts = np.zeros((len(known), len(shapes)))
        for (defect, pattern), n in tally.items():
            counts[known.index(defect), shapes.index(pattern)] = n
        made = np.array([[_claims(catches, name, defect) for name in names] for defect in known], bool)
        has = (counts @ patterns) > 0 if shapes else np.zeros((len(known), len(names)), bool)
        return cls(names, known, patterns, counts, made.reshape(-1, len(names)) | has)

    @property
    def defects(self) -> int:
        """How many past defects it was learned from."""
        return int(self.counts.sum())

    @property
    def findable(self) -> int:
        """How many of them any benchmark found."""
        return int(self.counts[:, self.patterns.any(axis=1)].sum())

    def detection_probability(self, chosen: Bools) -> Floats:
        """[class] share of the class's defects that the chosen benchmarks [benchmark] find together.

        (1 + found) / (2 + all): a Beta(1,1) prior, by which a class without a record is found half of the time. Zero
        where none of the chosen is made to find the class nor ever did.
        """
        return self.of_many(chosen[:, None])[:, 0]

    def of_many(self, chosen: Bools) -> Floats:
        """[class, set] the same for many sets at once; ``chosen`` is [benchmark, set]."""
        found = self.counts @ ((self.patterns.astype(np.float32) @ chosen.astype(np.float32)) > 0)
        claimed = (self.claims.astype(np.float32) @ chosen.astype(np.float32)) > 0
        total = self.counts.sum(axis=1)[:, None]
        return np.where(claimed, (1.0 + found) / (2.0 + total), 0.0)

    def shares(self) -> Floats:
        """[class] how likely the next defect is of each class: counts, and one defect's worth of evenness."""
        counts = self.counts.sum(axis=1)
        return np.asarray((counts + 1.0 / len(counts)) / (counts.sum() + 1.0), np.float64)


def shares_of(coverage: Coverage, own: Mapping[str, int], belief: float = 4.0) -> Floats:
    """[class] for one node, from its own past defects: what broke once breaks again.

    Args:
        coverage: holds the fleet's shares.
        own: class → how many of its own.
        belief: own defects that weigh as much as the fleet's shares.
    """
    counts = np.array([float(own.get(name, 0)) for name in coverage.classes])
    return np.asarray((counts + belief * coverage.shares()) / (counts.sum() + belief), np.float64)


def _best(records: Sequence[DefectRecord], defect: str, names: frozenset[str], enough: int) -> list[DefectRecord]:
    of_class = [record for record in records if record.defect == defect]
    whole = [record for record in of_class if record.ran is None or names <= record.ran]
    return whole if len(whole) >= enough else of_class


def _claims(catches: Mapping[str, Iterable[str]] | None, name: str, defect: str) -> bool:
    return catches is None or name not in catches or defect in set(catches[name])
