"""Slow devices that share a node or a rack: one finding about what they share, not one each.

On Longhorn slow GPUs are not scattered: the four slowest of BERT sit in one node. What they share, a chassis, its
cooling, its host, is the likelier culprit. A group is reported where its devices are all slow, or where so many of them
would hardly be slow by chance (hypergeometric tail, times the number of groups looked at).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLocation:
    """Where a device is."""

    node: str
    rack: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowGroup:
    """What one finding is about."""

    rack: str | None
    """Set where a whole rack is slow."""
    node: str | None
    """Set where a node, or one device of it, is slow."""
    nodes: tuple[str, ...]
    """Where the slow devices are."""
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
        where = f"rack {self.rack}" if self.rack is not None else self.node
        return f"{len(self.devices)} of {self.of} devices of {where} are slow"


def group(
    slow: Collection[str], places: Mapping[str, DeviceLocation], *, false_alarms: float = 0.005
) -> tuple[SlowGroup, ...]:
    """Slow devices by what they share: racks, then nodes, then each alone.

    A rack is reported where most of its nodes, two at least, have a slow device, and no other racks' nodes so often
    that it could be chance. A node is reported where all of its devices are slow, or most and not by chance.

    Args:
        slow: devices found slow.
        places: device → where it is, of every device that was measured.
        false_alarms: chance that unrelated slow devices are said to have something in common.

    Raises:
        ValueError: a slow device has no place.
    """
    lost = sorted(set(slow) - places.keys())
    if lost:
        raise ValueError(f"no place is known of {', '.join(lost[:3])}")
    nodes, racks = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    for device, place in places.items():
        nodes[place.node].add(device)
        if place.rack is not None:
            racks[place.rack].add(place.node)
    left, found = set(slow), list[SlowGroup]()
    hit = {places[device].node for device in slow}
    for rack, chance in _shared(hit, racks, false_alarms):
        devices = set[str]().union(*(nodes[node] for node in racks[rack]))
        found.append(_group(left & devices, devices, chance, sorted(hit & racks[rack]), rack=rack))
        left -= devices
    for node, chance in _shared(left, nodes, false_alarms, whole=True):
        found.append(_group(left & nodes[node], nodes[node], chance, [node]))
        left -= nodes[node]
    alone = (_group({device}, {device}, 1.0, [places[device].node]) for device in sorted(left))
    return (*found, *alone)


def _group(
    slow: set[str], devices: set[str], chance: float, nodes: Sequence[str], rack: str | None = None
) -> SlowGroup:
    return SlowGroup(
        rack=rack,
        node=nodes[0] if rack is None else None,
        nodes=tuple(nodes),
        devices=tuple(sorted(slow)),
        of=len(devices),
        chance=chance,
    )


def _shared(
    slow: set[str], groups: Mapping[str, set[str]], budget: float, *, whole: bool = False
) -> Iterator[tuple[str, float]]:
    """Groups of which most members are slow, and not by chance (or, with ``whole``, all); and that chance."""
    everybody = set[str]().union(*groups.values())
    total, bad = len(everybody), len(slow & everybody)
    for name, members in sorted(groups.items()):
        k = len(slow & members)
        if k < 2 or 2 * k <= len(members):
            continue
        chance = min(1.0, len(groups) * _tail(k, len(members), bad, total))
        if chance <= budget or (whole and k == len(members)):
            yield name, chance


def _tail(k: int, drawn: int, bad: int, total: int) -> float:
    """P(X >= k), hypergeometric: ``drawn`` of ``total``, of which ``bad`` are slow."""
    ways = sum(math.comb(bad, i) * math.comb(total - bad, drawn - i) for i in range(k, min(drawn, bad) + 1))
    return ways / math.comb(total, drawn)
