"""Who shares what on the way between two ranks, and the smallest story that explains which ways are slow.

A *cell* is an ordered pair of ranks. Every part of the fabric that transfers pass is a *suspect*, and owns the cells
that pass it: a link one cell, a sender's port its row, a receiver's its column, a switch all that crosses it (C4,
arXiv 2406.04594: hot cell, row, column of the delay matrix; Holmes, NSDI'25: what flows share by topology). Parsimony
decides: a suspect gains by every slow cell that it owns, loses by every healthy one, and pays the logarithm of how many
others of its kind there are, so that the smallest set of suspects wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from mainstay.detectors.base import Bools, Floats
from mainstay.detectors.job.mesh import JobMesh

Ints = npt.NDArray[np.intp]

MOST_FAULTS = 8
"""Suspects named at once; more than this at one time is a fabric that fails as a whole."""
GAIN = 20.0
"""Most that one slow cell may say, in nats: about the chance that a cell is hot for nothing (1e-9). In a large job that
is rarer, as limits go with the number of cells; and a single link must be able to pay for how many others there are."""
LOSS = -float(np.log(100.0))
"""Most that one healthy cell may say against: one sensor in a hundred is stuck."""
ENOUGH = 10.0
"""Least score of a suspect, in nats: odds of 20,000 to 1 against chance."""
_SPARE = 2.0
"""Nats that are left to a link of a large job when it has paid: for its other direction, which is well."""
UNEVEN = 0.2
"""Cells that share a fault are slowed alike within this share of its effect: latency does not scale with speed."""


class ComponentKind(IntEnum):
    """Kinds of suspect. Where two own the same cells the earlier one names them."""

    LINK = 0  # one direction
    CABLE = 1  # both directions of a pair
    SENDER = 2
    RECEIVER = 3
    PORT = 4  # a rank's, both ways
    NODE_SENDER = 5
    NODE_RECEIVER = 6
    NODE = 7
    UPLINK = 8  # from a switch to those above it
    DOWNLINK = 9
    CROSSING = 10  # both of these
    SWITCH = 11
    LOCAL_SENDER = 12  # within a node: the rank's device and its links to the node's others
    LOCAL_RECEIVER = 13
    LOCAL = 14
    WITHIN = 15  # all of a node's own links


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultHypothesis:
    """One suspect that explains some slow cells."""

    part: ComponentKind
    name: tuple[int, ...] | str
    """Ranks (``(3,)``, ``(3, 4)``), or the name of a node or switch."""
    cells: Ints
    """The cells it owns that were heard of."""
    effect: float
    """Log-ratio of its slow cells' times to what they were."""
    score: float
    rivals: tuple[ComponentKind, ...] = ()
    """Kinds of other suspects that own exactly the same cells: the data cannot tell them apart."""
    also: tuple[str, ...] = ()
    """Names of those among them that are nodes or switches."""


class Fabric:
    """The suspects of one set of cells.

    Args:
        pairs: [E, 2] sender and receiver of each cell.
        mesh: nodes and switches; without it every cell is taken to cross the network.
    """

    def __init__(self, pairs: npt.NDArray[np.int64], mesh: JobMesh | None) -> None:
        self.pairs = pairs
        row_of = mesh.row_of if mesh is not None else {}
        ends = [(row_of.get(int(a), -1), row_of.get(int(b), -1)) for a, b in pairs]
        self.nodes: list[tuple[str | None, str | None]] = [
            (mesh.nodes[a], mesh.nodes[b]) if mesh is not None and a >= 0 and b >= 0 else (None, None) for a, b in ends
        ]
        self.local: Bools = np.array([a is not None and a == b for a, b in self.nodes], dtype=np.bool_)
        """[E] cells within one node."""
        self.routes = [_route(mesh, a, b, apart=not self.local[cell]) for cell, (a, b) in enumerate(ends)]
        self.hops = np.array([len(up) + len(down) for up, down, _ in self.routes], np.intp)
        self._most = max(GAIN, ENOUGH + _SPARE + float(np.log(max(len(pairs), 1))))
        self._collected = False

    def _collect(self) -> None:
        """List every suspect's cells: seconds for a hundred thousand cells, so only once something is slow."""
        self._collected = True
        index: dict[tuple[ComponentKind, tuple[int, ...] | str], int] = {}
        who: list[int] = []
        cells: list[int] = []
        for cell in range(len(self.pairs)):
            for suspect in self._suspects(cell):
                who.append(index.setdefault(suspect, len(index)))
                cells.append(cell)
        self.suspects = tuple(index)
        self._who, self._cells = np.array(who, np.intp), np.array(cells, np.intp)
        parts = np.array([part for part, _ in index], np.intp)
        counts = np.bincount(parts, minlength=len(ComponentKind))
        self._cost = np.log(np.maximum(counts, 1.0))[parts]
        """A priori all suspects of a kind are alike, and so are the kinds."""

    def _suspects(self, cell: int) -> list[tuple[ComponentKind, tuple[int, ...] | str]]:
        source, target = (int(rank) for rank in self.pairs[cell])
        pair = (min(source, target), max(source, target))
        found: list[tuple[ComponentKind, tuple[int, ...] | str]] = [
            (ComponentKind.LINK, (source, target)),
            (ComponentKind.CABLE, pair),
        ]
        if self.local[cell]:
            node = str(self.nodes[cell][0])
            found += [(ComponentKind.LOCAL_SENDER, (source,)), (ComponentKind.LOCAL_RECEIVER, (target,))]
            return [
                *found,
                (ComponentKind.LOCAL, (source,)),
                (ComponentKind.LOCAL, (target,)),
                (ComponentKind.WITHIN, node),
            ]
        found += [
            (ComponentKind.SENDER, (source,)),
            (ComponentKind.RECEIVER, (target,)),
            (ComponentKind.PORT, (source,)),
            (ComponentKind.PORT, (target,)),
        ]
        from_node, to_node = self.nodes[cell]
        if from_node is not None and to_node is not None:
            found += [(ComponentKind.NODE_SENDER, from_node), (ComponentKind.NODE_RECEIVER, to_node)]
            found += [(ComponentKind.NODE, from_node), (ComponentKind.NODE, to_node)]
        up, down, top = self.routes[cell]
        found += [(ComponentKind.SWITCH, switch) for switch in dict.fromkeys((*up, *top, *down))]
        found += [(ComponentKind.UPLINK, switch) for switch in up] + [
            (ComponentKind.DOWNLINK, switch) for switch in down
        ]
        return found + [(ComponentKind.CROSSING, switch) for switch in (*up, *down)]

    def explain(self, effect: Floats, error: Floats, hot: Bools) -> list[FaultHypothesis]:
        """The smallest set of suspects behind the hot cells, the strongest first.

        Args:
            effect: [E] log-ratio of each cell's recent time to its usual one; NaN = not heard of.
            error: [E] standard error of that.
            hot: [E] cells that are certainly slow.
        """
        if not self._collected:
            self._collect()
        told: Bools = np.isfinite(effect)
        open_, left = told.copy(), hot & told
        stories: list[FaultHypothesis] = []
        while left.any() and len(stories) < MOST_FAULTS:
            story = self._best(effect, error, left, open_)
            if story is None:
                break
            stories.append(story)
            slow = story.cells[effect[story.cells] > story.effect / 2]
            open_[slow] = False
            left[slow] = False
        return stories

    def _best(self, effect: Floats, error: Floats, left: Bools, open_: Bools) -> FaultHypothesis | None:
        size = len(self.suspects)
        touched = np.zeros(size, dtype=np.bool_)
        touched[self._who[left[self._cells]]] = True  # a suspect has to own a hot cell
        use = touched[self._who] & open_[self._cells]
        who, cells = self._who[use], self._cells[use]
        slow = left[cells]
        number = np.maximum(np.bincount(who, slow, size), 1.0)
        shift = np.bincount(who, np.where(slow, effect[cells], 0.0), size) / number
        gain = np.bincount(who, _evidence(effect[cells], error[cells], shift[who], self._most), size)
        score = np.where(touched, gain - self._cost, -np.inf)
        chosen = int(np.argmax(score))
        if not score[chosen] >= ENOUGH:
            return None
        return self._hypothesis(chosen, who, cells, float(shift[chosen]), float(score[chosen]))

    def _hypothesis(self, chosen: int, who: Ints, cells: Ints, effect: float, score: float) -> FaultHypothesis:
        """Name the suspect, and those that own the same cells."""
        own = cells[who == chosen]
        count, weight = len(own), float((own + 1.0).sum())
        size = len(self.suspects)
        same = (np.bincount(who, minlength=size) == count) & (np.bincount(who, cells + 1.0, size) == weight)
        alike = [s for s in np.flatnonzero(same).tolist() if np.array_equal(cells[who == s], own)]
        first = min(alike, key=lambda s: (self.suspects[s][0], s))
        part, name = self.suspects[first]
        rivals = tuple(dict.fromkeys(self.suspects[s][0] for s in sorted(alike) if s != first))
        others = [str(self.suspects[s][1]) for s in alike if isinstance(self.suspects[s][1], str)]
        also = tuple(other for other in dict.fromkeys(others) if other != name)
        return FaultHypothesis(part=part, name=name, cells=own, effect=effect, score=score, rivals=rivals, also=also)


def _evidence(effect: Floats, error: Floats, shift: Floats, most: float) -> Floats:
    """Log-likelihood ratio of "slowed by ``shift``" against "as usual", bounded for stuck and strange cells."""
    wide = error**2 + (UNEVEN * shift) ** 2
    ratio = effect**2 / (2 * error**2) - (effect - shift) ** 2 / (2 * wide) - np.log(wide / error**2) / 2
    return np.clip(ratio, LOSS, most)


def _route(
    mesh: JobMesh | None, source: int, target: int, *, apart: bool
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Switches passed upwards, passed downwards, and where the way turns; all empty where it is unknown.

    On the way up from a switch the transfer uses its uplink; the switch at which the way turns lends no uplink.
    """
    if mesh is None or not mesh.switches or source < 0 or target < 0 or not apart:
        return (), (), ()
    above, below = mesh.switches[source], mesh.switches[target]
    common: Sequence[str] = [switch for switch in above if switch in below]
    if not common:
        return above, below, ()
    turn = common[0]
    return above[: above.index(turn)], below[: below.index(turn)], (turn,)


def same_placement(one: JobMesh | None, other: JobMesh | None) -> bool:
    """Whether two meshes place the ranks alike: then nothing that was learned is stale."""
    if one is None or other is None:
        return one is other
    return bool(one.nodes == other.nodes and one.switches == other.switches and np.array_equal(one.ranks, other.ranks))
