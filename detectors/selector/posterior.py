"""Which class a node's next defect is of, from what broke on it before and from what it says of itself today.

P(class | node) ∝ (own past, drawn to the fleet's) x P(errors seen or not | class). How far a node is drawn to the fleet
is learned from the fleet: a Dirichlet's weight, by the likelihood of all nodes' pasts (Minka, "Estimating a Dirichlet
distribution", 2000). Errors are taken as independent given the class: naive Bayes, with a Beta(1,1) prior.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from mainstay.detectors.selector.hazard import Floats
from mainstay.detectors.selector.history import HOUR, NodeHistory

LATELY: Final = 24 * HOUR
"""Errors before a defect that may have announced it: the first day of ``history.Encoder``'s two windows."""
_BELIEFS: Final = tuple(float(b) for b in np.geomspace(1, 256, 17))
"""Defects' worth of belief in the fleet's mix that are tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Posterior:
    """What was learned of the classes of defects of a fleet."""

    classes: tuple[str, ...]
    fleet: Floats
    """[class] share of the fleet's defects."""
    belief: float
    """Own defects that weigh as much as the fleet's shares."""
    kinds: tuple[str, ...]
    announced: Floats
    """[kind, class] share of the class's defects that errors of this kind came before."""

    @classmethod
    def learn(
        cls, defects: Iterable[tuple[str, str, float]], histories: Mapping[str, NodeHistory], classes: Sequence[str]
    ) -> Posterior:
        """Learn from past defects.

        Args:
            defects: (node, class, Unix seconds) of each; those of other classes are left aside.
            histories: node → its past, for the errors.
            classes: the distinguished classes.

        Raises:
            ValueError: there is no class.
        """
        if not classes:
            raise ValueError("no class of defect is named")
        place = {name: i for i, name in enumerate(classes)}
        known = [d for d in defects if d[1] in place]
        own: dict[str, Floats] = {}
        for node, defect, _ in known:
            own.setdefault(node, np.zeros(len(classes)))[place[defect]] += 1
        counts = sum(own.values(), np.zeros(len(classes)))
        fleet = (counts + 1.0 / len(classes)) / (counts.sum() + 1.0)
        kinds = tuple(sorted({kind for h in histories.values() for kind, times in h.errors.items() if times}))
        seen = np.zeros((len(kinds), len(classes)))
        asked = np.zeros(len(classes))
        for node, defect, at in known:
            if node in histories:
                seen[:, place[defect]] += signs(histories[node], kinds, at)
                asked[place[defect]] += 1
        return cls(
            classes=tuple(classes), fleet=fleet, belief=_belief(list(own.values()), fleet), kinds=kinds,
            announced=(1.0 + seen) / (2.0 + asked),
        )  # fmt: skip

    def shares(self, history: NodeHistory, own: Mapping[str, int], at: float) -> Floats:
        """[class] of a node's next defect; sums to 1."""
        counts = np.array([float(own.get(name, 0)) for name in self.classes])
        weight = (counts + self.belief * self.fleet) / (counts.sum() + self.belief)
        told = signs(history, self.kinds, at)[:, None]
        weight *= np.prod(np.where(told > 0, self.announced, 1.0 - self.announced), axis=0)
        return np.asarray(weight / weight.sum(), np.float64)


def signs(history: NodeHistory, kinds: Sequence[str], at: float) -> Floats:
    """[kind] 1 where such errors came lately, since the node came back."""
    origin = history.origin(at)
    since = max(at - LATELY, -math.inf if origin is None else origin)
    found = []
    for kind in kinds:
        times = history.errors.get(kind, ())
        found.append(float(bisect_left(times, at) > bisect_left(times, since)))
    return np.array(found)


def _belief(own: Sequence[Floats], fleet: Floats) -> float:
    """The weight of the fleet's shares under which the nodes' counts are likeliest; large where nodes are alike."""
    if not own:
        return _BELIEFS[-1]
    counts = np.stack(own)
    return max(_BELIEFS, key=lambda belief: _likelihood(counts, belief * fleet))


def _likelihood(counts: Floats, alpha: Floats) -> float:
    """Log-likelihood of a Dirichlet-multinomial, without what does not depend on alpha."""
    total = alpha.sum()
    each = [math.lgamma(total) - math.lgamma(total + n) for n in counts.sum(axis=1)]
    rows, places = np.nonzero(counts)
    parts = [math.lgamma(alpha[c] + counts[r, c]) - math.lgamma(alpha[c]) for r, c in zip(rows, places, strict=True)]
    return math.fsum(each) + math.fsum(parts)
