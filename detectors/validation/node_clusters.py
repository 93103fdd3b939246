"""Slow devices that share a node: one finding about what they share, not one each.

On Longhorn slow GPUs are not scattered: the four slowest of BERT sit in one node. What they share, a chassis, its
cooling, its host, is the likelier culprit. A group is reported where its devices are all slow, or where so many of them
would hardly be slow by chance (hypergeometric tail, times the number of groups looked at).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowGroup:
    """What one finding is about: a node, or one device of it."""

    node: str
    devices: tuple[str, ...]
    """The slow ones."""
    of: int
    """Devices there, slow or not."""
    chance: float
    """Probability that so many are slow by chance; 1 for a device on its own."""

    @property
    def description(self) -> str:
        """``4 of 4 devices of c002-5 are slow``."""
        if len(self.devices) == 1:
            return f"{self.devices[0]} is slow"
        return f"{len(self.devices)} of {self.of} devices of {self.node} are slow"


def group(slow: Collection[str], nodes: Mapping[str, str], *, false_alarms: float = 0.005) -> tuple[SlowGroup, ...]:
    """Slow devices by what they share: nodes, then each alone.

    A node is reported where all of its devices are slow, or most and not by chance.

    Args:
        slow: devices found slow.
        nodes: device → its node, of every device that was measured.
        false_alarms: chance that unrelated slow devices are said to have something in common.

    Raises:
        ValueError: a slow device has no node.
    """
    lost = sorted(set(slow) - nodes.keys())
    if lost:
        raise ValueError(f"no place is known of {', '.join(lost[:3])}")
    members = defaultdict[str, set[str]](set)
    for device, node in nodes.items():
        members[node].add(device)
    left, found = set(slow), list[SlowGroup]()
    for node, chance in _shared(left, members, false_alarms):
        found.append(_group(node, left & members[node], members[node], chance))
        left -= members[node]
    alone = (_group(nodes[device], {device}, {device}, 1.0) for device in sorted(left))
    return (*found, *alone)


def _group(node: str, slow: set[str], devices: set[str], chance: float) -> SlowGroup:
    return SlowGroup(node=node, devices=tuple(sorted(slow)), of=len(devices), chance=chance)


def _shared(slow: set[str], groups: Mapping[str, set[str]], budget: float) -> Iterator[tuple[str, float]]:
    """Groups of which all members are slow, or most and not by chance; and that chance."""
    everybody = set[str]().union(*groups.values())
    total, bad = len(everybody), len(slow & everybody)
    for name, members in sorted(groups.items()):
        k = len(slow & members)
        if k < 2 or 2 * k <= len(members):
            continue
        chance = min(1.0, len(groups) * _tail(k, len(members), bad, total))
        if chance <= budget or k == len(members):
            yield name, chance


def _tail(k: int, drawn: int, bad: int, total: int) -> float:
    """P(X >= k), hypergeometric: ``drawn`` of ``total``, of which ``bad`` are slow."""
    ways = sum(math.comb(bad, i) * math.comb(total - bad, drawn - i) for i in range(k, min(drawn, bad) + 1))
    return ways / math.comb(total, drawn)
