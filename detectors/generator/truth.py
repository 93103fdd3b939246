"""What is true of a generated run: which findings are right, and about whom."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from mainstay.detectors.finding import FindingKind
from mainstay.detectors.generator.world import World


@dataclass(frozen=True, kw_only=True)
class Truth:
    """What happened, and what a good reliability engineer would say."""

    kinds: frozenset[FindingKind] = frozenset()
    """Any of these names it; empty where nothing is wrong."""
    ranks: frozenset[int] = frozenset()
    """Those that are to blame: a finding about any of them, their node, or their device is right."""
    job_wide: bool = False
    """A finding about the job as a whole is right too."""
    step: int = 0
    """First step that it touches."""
    also: frozenset[FindingKind] = frozenset()
    """Consequences and advice that may be reported too, about the job or those ranks."""
    parts: tuple[Truth, ...] = ()
    """Independent faults, each of which has to be named; then the fields above are empty."""

    @property
    def healthy(self) -> bool:
        return not self.kinds and not self.parts

    def nodes(self, world: World) -> list[str]:
        rows = world.mesh.rows(sorted(self.ranks.union(*(part.ranks for part in self.parts))))
        return sorted({world.mesh.nodes[row] for row in rows})


Fault = Callable[[World, int, np.random.Generator], Truth]
"""Changes a run from a step on, and says what is true."""


def blame(
    step: int,
    kinds: Iterable[FindingKind],
    rows: Iterable[int] = (),
    also: Iterable[FindingKind] = (),
    *,
    job: bool = False,
) -> Truth:
    """Ranks of a generated run are numbered as its rows. A slower job is always a consequence that may be reported."""
    ranks = frozenset(int(row) for row in rows)
    extra = frozenset(also) | {FindingKind.JOB_SLOWDOWN}
    return Truth(kinds=frozenset(kinds), ranks=ranks, job_wide=job or not ranks, step=step, also=extra)


def one_rank(world: World, rng: np.random.Generator) -> int:
    return int(rng.integers(world.mesh.size))


def on_node(world: World, node: str) -> np.ndarray:
    """Rows of its ranks."""
    return np.flatnonzero(np.array(world.mesh.nodes) == node)


def one_node(world: World, rng: np.random.Generator) -> np.ndarray:
    """Rows of the ranks of some node."""
    return on_node(world, str(rng.choice(world.nodes)))


def leaf_of(world: World) -> np.ndarray:
    """[rank] name of its leaf switch, which is its rack and power domain too."""
    return np.array([above[0] for above in world.mesh.switches])


def one_rack(world: World, rng: np.random.Generator) -> np.ndarray:
    leaf = leaf_of(world)
    return np.flatnonzero(leaf == rng.choice(np.unique(leaf)))
