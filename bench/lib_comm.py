"""Simulated transfers between the ranks of a job: who talks to whom, on which fabric, with which noise and fault."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from mainstay.detectors.base import Samples
from mainstay.detectors.finding import Entity
from mainstay.detectors.job.mesh import JobMesh, regular, rows_by_label

START = 1.7e9
PATTERNS = ("rings", "pipeline", "all_to_all", "hierarchical")
_BYTES = {"tp": 32e6, "dp": 64e6, "pp": 16e6, "ep": 8e6}
_BANDWIDTH = (40e9, 300e9)  # bytes a second: between nodes, within
_LATENCY = 20e-6


@dataclass(frozen=True, kw_only=True)
class Noise:
    """What healthy transfers do."""

    step: float = 0.05
    """Independent, log-normal."""
    wander: float = 0.03
    """Slow, of each pair on its own (AR(1) over 20 steps)."""
    tails: float = 0.01
    """Share of transfers that take a Pareto-distributed time longer."""
    day: float = 0.03
    """All together, over 200 steps."""
    offset: float = 0.05
    """Constant, by pair."""
    missing: float = 0.05
    stuck: float = 0.01
    """Pairs that report one and the same value for ever."""


@dataclass(frozen=True, kw_only=True)
class Network:
    """A job's pairs."""

    mesh: JobMesh
    pairs: npt.NDArray[np.int64]
    """[E, 2]"""
    size: npt.NDArray[np.float64]
    """[E] bytes"""

    @property
    def local(self) -> npt.NDArray[np.bool_]:
        nodes = np.array(self.mesh.nodes)
        same: npt.NDArray[np.bool_] = nodes[self.pairs[:, 0]] == nodes[self.pairs[:, 1]]
        return same

    def under(self, switch: str) -> npt.NDArray[np.bool_]:
        """[E, 2] which ends stand under a switch."""
        inside = np.array([switch in above for above in self.mesh.switches])
        return inside[self.pairs]


def network(pattern: str, ranks: int, *, leaf_nodes: int = 4, leaves_per_spine: int = 4) -> Network:
    """A job of ``ranks`` ranks on nodes of eight: tp within the node, all else between nodes."""
    if pattern == "rings":
        mesh = regular("job", dp=ranks // 8, tp=8, leaf_nodes=leaf_nodes)
    else:
        pp = 4
        mesh = regular("job", dp=ranks // (8 * pp), pp=pp, tp=8, leaf_nodes=leaf_nodes)
    above = tuple((leaf, f"spine-{int(leaf.split('-')[1]) // leaves_per_spine}") for (leaf,) in mesh.switches)
    mesh = replace(mesh, switches=above)
    pairs: dict[tuple[int, int], float] = {}
    for group in rows_by_label(mesh.labels("tp")):
        _all(pairs, mesh.ranks[group], _BYTES["tp"])
    if pattern in {"rings", "pipeline", "hierarchical"}:
        for group in rows_by_label(mesh.labels("dp")):
            _ring(pairs, mesh.ranks[group], _BYTES["dp"])
    if pattern in {"pipeline", "hierarchical"}:
        for group in rows_by_label(mesh.labels("pp")):
            _chain(pairs, mesh.ranks[group], _BYTES["pp"])
    if pattern in {"all_to_all", "hierarchical"}:
        for group in rows_by_label(mesh.labels("dp")):
            members = mesh.ranks[group]
            for part in np.array_split(members, max(1, len(members) // 8)):
                _all(pairs, part, _BYTES["ep"])
    keys = sorted(pairs)
    return Network(mesh=mesh, pairs=np.array(keys, np.int64), size=np.array([pairs[key] for key in keys]))


def _add(pairs: dict[tuple[int, int], float], source: int, target: int, size: float) -> None:
    if source != target:
        pairs[int(source), int(target)] = pairs.get((int(source), int(target)), size)


def _ring(pairs: dict[tuple[int, int], float], members: npt.NDArray[Any], size: float) -> None:
    for a, b in zip(members, np.roll(members, -1), strict=True):
        _add(pairs, a, b, size)


def _chain(pairs: dict[tuple[int, int], float], members: npt.NDArray[Any], size: float) -> None:
    for a, b in pairwise(members):
        _add(pairs, a, b, size)  # activations
        _add(pairs, b, a, size)  # their gradients


def _all(pairs: dict[tuple[int, int], float], members: npt.NDArray[Any], size: float) -> None:
    for a in members:
        for b in members:
            _add(pairs, a, b, size)


def simulate(net: Network, steps: int, seed: int, noise: Noise | None = None) -> Samples:
    """[steps, 2, E] healthy transfers."""
    noise = noise or Noise()
    rng = np.random.default_rng(seed)
    count = len(net.pairs)
    usual = _LATENCY + net.size / np.where(net.local, _BANDWIDTH[1], _BANDWIDTH[0])
    leaf = np.array([above[0] for above in net.mesh.switches])[net.pairs]
    apart = ~net.local & (leaf[:, 0] != leaf[:, 1])
    log = np.log(usual) + 0.15 * apart + noise.offset * rng.standard_normal(count)
    wander = np.zeros((steps, count))
    now = rng.standard_normal(count)
    for k in range(steps):
        now = 0.95 * now + np.sqrt(1 - 0.95**2) * rng.standard_normal(count)
        wander[k] = now
    day = noise.day * np.sin(2 * np.pi * (np.arange(steps)[:, None] + rng.uniform(0, 200)) / 200)
    log = log + day + noise.wander * wander + noise.step * rng.standard_normal((steps, count))
    tails = rng.random((steps, count)) < noise.tails
    log = log + np.where(tails, np.log1p(rng.pareto(1.5, (steps, count))), 0.0)
    x = np.stack([np.exp(log), np.broadcast_to(net.size, log.shape)], axis=1)
    return Samples(
        entities=tuple(Entity(job="job", rank=int(a), peer=int(b)) for a, b in net.pairs),
        groups=("",) * count,
        signals=("transfer_seconds", "transfer_bytes"),
        t=START + 5.0 * np.arange(steps, dtype=np.float64) + float(rng.uniform(-0.05, 0.05)),  # +-50 ms skew
        x=x.astype(np.float32),
        mesh=net.mesh,
        steps=np.arange(steps),
    )


def slow(data: Samples, cells: npt.NDArray[np.bool_], by: float, start: int) -> Samples:
    """A copy in which the cells take ``by`` times as long from step ``start`` on (latency stays as it is)."""
    x = data.x.copy()
    x[start:, 0, cells] = (x[start:, 0, cells] - _LATENCY) * by + _LATENCY
    return replace(data, x=x)


def spoil(data: Samples, seed: int, noise: Noise | None = None) -> Samples:
    """A copy with missing samples and stuck sensors, as the last thing that happens to data."""
    noise = noise or Noise()
    rng = np.random.default_rng(seed)
    x = data.x.copy()
    stuck = rng.random(x.shape[2]) < noise.stuck
    x[:, :, stuck] = x[:1, :, stuck]
    gone = rng.random((x.shape[0], x.shape[2])) < noise.missing
    x = np.where(gone[:, None, :], np.float32(np.nan), x)
    return replace(data, x=x)
