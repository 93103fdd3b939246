"""Faults of network cards, cables, and switches: some transfers take longer."""

from __future__ import annotations

import numpy as np

from mainstay.detectors.finding import FindingKind
from mainstay.detectors.generator.truth import Truth, blame, leaf_of, on_node, one_rank
from mainstay.detectors.generator.world import World
from mainstay.probes.core_types import EventKind

_K = FindingKind
_NETWORK = (_K.NIC_DEGRADED, _K.CONGESTION)
Rng = np.random.Generator


def _far(world: World) -> np.ndarray:
    """[pair] whether it crosses the network."""
    node = np.array(world.mesh.nodes)
    return np.asarray(node[world.pairs[0]] != node[world.pairs[1]])


def _slow_card(world: World, step: int, rng: Rng, end: int) -> Truth:
    far = _far(world)
    rank = int(rng.choice(np.unique(world.pairs[end][far])))
    world.transfer[step:, far & (world.pairs[end] == rank)] *= 2.0
    return blame(step, _NETWORK, [rank])


def slow_sender(world: World, step: int, rng: Rng) -> Truth:
    """A network card sends at half its speed."""
    return _slow_card(world, step, rng, 0)


def slow_receiver(world: World, step: int, rng: Rng) -> Truth:
    """A network card receives at half its speed: a PCIe link of fewer lanes, receive buffers that overrun."""
    return _slow_card(world, step, rng, 1)


def slow_cable(world: World, step: int, rng: Rng) -> Truth:
    """One path between two ranks is slow both ways: a dirty transceiver on a link that only this path takes."""
    pair = world.pairs[:, int(rng.choice(np.flatnonzero(_far(world))))]
    world.transfer[step:, np.isin(world.pairs, pair).all(axis=0)] *= 2.5
    return blame(step, _NETWORK, pair)


def _across(world: World, rng: Rng) -> tuple[np.ndarray, Truth]:
    """[pair] whether it crosses one leaf switch; with two leaves either may be at fault, with one node its card too."""
    leaf = leaf_of(world)
    names = np.unique(leaf)
    one = rng.choice(names)
    inside = leaf[world.pairs] == one
    rows = np.arange(world.mesh.size) if len(names) == 2 else np.flatnonzero(leaf == one)
    alone = len(world.nodes) == len(names)
    return inside[0] ^ inside[1], blame(0, _NETWORK if alone else _NETWORK[1:], rows, job=True)


def slow_leaf(world: World, step: int, rng: Rng) -> Truth:
    """The uplinks of a leaf switch are congested: all traffic across it takes longer, and no card is at fault."""
    crossing, truth = _across(world, rng)
    world.transfer[step:, crossing] *= 1.8
    return blame(step, truth.kinds, truth.ranks, job=True)


def lossy_leaf(world: World, step: int, rng: Rng) -> Truth:
    """A leaf switch drops packets: half of the transfers across it wait for a retransmission (RoCE go-back-N)."""
    crossing, truth = _across(world, rng)
    hit = rng.random((world.steps - step, int(crossing.sum()))) < 0.5
    world.transfer[step:, crossing] *= np.where(hit, 1.0 + rng.exponential(3.0, hit.shape), 1.0)
    return blame(step, truth.kinds, truth.ranks, job=True)


def slow_spine(world: World, step: int, _rng: Rng) -> Truth:
    """The spine is congested by another job: all traffic between leaves takes longer, and no leaf is at fault."""
    leaf = leaf_of(world)
    world.transfer[step:, leaf[world.pairs[0]] != leaf[world.pairs[1]]] *= 1.8
    return blame(step, [_K.CONGESTION])


def port_down(world: World, step: int, rng: Rng) -> Truth:
    """A port goes down, and its node has fewer (Llama 3, table 5: 8.4 % switches and cables)."""
    rank = one_rank(world, rng)
    rows = on_node(world, world.mesh.nodes[rank])
    world.happen(EventKind.LINK_DOWN, step, rank, device="nic:mlx5_0:1", link="mlx5_0:1", since_up=86400.0, uptime=1e6)
    world.transfer[step:, _far(world) & np.isin(world.pairs, rows).any(axis=0)] *= 1.6
    return blame(step, [_K.NIC_DEGRADED], rows, [_K.CONGESTION])
