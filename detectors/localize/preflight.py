"""Names bad nodes of a job from a check of seconds: devices are compared with their like, nodes are measured in pairs.

``mainstay.detectors.localize.plan`` infers more from more rounds, but needs more measurements than a job of three or
four nodes gives. Here a node is named only if it is slow with every partner, and a partner is fast with another node.
Invariant: a missing measurement is no evidence against a node or a path.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mainstay.detectors.localize.model import DeviceCheck, PairOutcome, PairResult
from mainstay.detectors.localize.rounds import circle

SLOW = 0.5
"""Share of the usual speed: less is bad. DLRover's node check draws the line at twice the median time."""
FAST_ENOUGH = 400e6
"""B/s. A pair with half of this is not slow: what two processes reach on a busy machine scatters widely."""
TOO_SLOW = 12.5e6
"""B/s. A slower pair is bad without a comparison: no network of a training cluster has less than 100 Mbit/s."""
AGREEING = 2 / 3
"""Share of devices of a kind that must compute the same bits before the others are named."""
_UPPER = 4
"""The usual speed is that of the upper quarter: faults only slow, and one bad node slows two of three pairs."""
_MOST_NAMED = 8
"""Pairs in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightFindings:
    """Bad nodes with the reason, and lines about what cannot be attributed to a node."""

    bad: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)


def compare_devices(checks: Mapping[str, Sequence[DeviceCheck]]) -> PreflightFindings:
    """Name nodes whose devices fail, compute other bits than their like, or are slow.

    Args:
        checks: node -> its devices.
    """
    found = PreflightFindings()
    cohorts: dict[str, list[tuple[str, DeviceCheck]]] = defaultdict(list)
    for node, devices in checks.items():
        for one in devices:
            if one.problem or not one.repeats:
                _name(found, node, f"{one.device}: {one.problem or 'the same computation gives different bits'}")
            else:
                cohorts[one.cohort].append((node, one))
    for members in cohorts.values():
        _compare_bits(found, members)
        usual = _upper([one.rate for _, one in members])
        for node, one in members:
            if 0.0 < one.rate < SLOW * usual:
                _name(found, node, f"{one.device} multiplies matrices at {one.rate / usual:.0%} of the usual speed")
    return found


def _compare_bits(found: PreflightFindings, members: Sequence[tuple[str, DeviceCheck]]) -> None:
    (digest, votes), *others = Counter(one.digest for _, one in members).most_common()
    if not others:
        return
    if votes < AGREEING * len(members):
        nodes = ", ".join(sorted({node for node, _ in members})[:_MOST_NAMED])
        found.remarks.append(f"devices of one kind compute different bits, and too few agree to name one: {nodes}")
        return
    for node, one in members:
        if one.digest != digest:
            _name(found, node, f"{one.device} computes other bits than {votes} of {len(members)} devices of its kind")


def _name(found: PreflightFindings, node: str, reason: str) -> None:
    found.bad[node] = "; ".join(filter(None, (found.bad.get(node, ""), reason)))


def next_pairs(nodes: Sequence[str], results: Sequence[PairResult], *, again: bool = True) -> list[tuple[str, str]]:
    """The disjoint pairs to measure next: until each node met two partners, then bad pairs ``again``, once each."""
    done = max((result.round for result in results), default=0)
    turns = 2 + len(nodes) % 2 if len(nodes) > 2 else len(nodes) - 1  # of an odd number, one waits in each turn
    if done < turns:
        return [(nodes[a], nodes[b]) for a, b in circle(len(nodes), done)]
    times, taken, chosen = Counter(_ends(result) for result in results), set[str](), list[tuple[str, str]]()
    for a, b in _bad_pairs(_speeds(results)) if again else ():
        if times[a, b] < 2 and not taken & {a, b}:
            taken |= {a, b}
            chosen.append((a, b))
    return chosen


def compare_pairs(results: Sequence[PairResult]) -> PreflightFindings:
    """Name nodes that are slow with each of several partners, and paths where one transfer alone is slow."""
    speeds, found = _speeds(results), PreflightFindings()
    bad, usual = _bad_pairs(speeds), _usual(speeds.values())
    fast = {node for pair in speeds if pair not in bad for node in pair}
    for node in {node: None for pair in bad for node in pair}:
        own = [pair for pair in speeds if node in pair]
        partners = [end for pair in own for end in pair if end != node]
        if len(own) > 1 and node not in fast and fast & set(partners):
            how = max(speeds[pair] for pair in own)
            notes = [one.note for one in results if _ends(one) in own and one.note]
            what = f"reach at most {how / usual:.0%} of the usual {usual / 1e6:.0f} MB/s" if how else "do not work"
            what += f" ({notes[0]})" if notes and not how else ""
            found.bad[node] = f"transfers with {', '.join(partners)} {what}"
    left = [pair for pair in bad if not found.bad.keys() & set(pair)]
    if left:
        found.remarks.append(_paths(left, speeds, fast))
    return found


def _paths(pairs: Sequence[tuple[str, str]], speeds: Mapping[tuple[str, str], float], fast: set[str]) -> str:
    told = [
        f"{a} and {b} ({f'{speeds[a, b] / 1e6:.0f} MB/s' if speeds[a, b] else 'no transfer'}"
        f"{'' if {a, b} <= fast else ', one of the nodes or the path'})"
        for a, b in pairs[:_MOST_NAMED]
    ]
    more = f", and {len(pairs) - len(told)} more" if len(pairs) > len(told) else ""
    return f"the path between {', between '.join(told)}{more} is slow or broken, which refuses no node"


def _ends(result: PairResult) -> tuple[str, str]:
    return result.a.node, result.b.node


def _speeds(results: Iterable[PairResult]) -> dict[tuple[str, str], float]:
    """Pair -> the best that was measured, B/s; 0: each transfer hung."""
    best: dict[tuple[str, str], float] = {}
    for result in results:
        if result.outcome is not PairOutcome.MISSING:
            speed = min(result.bandwidth.values(), default=0.0)
            best[_ends(result)] = max(best.get(_ends(result), 0.0), speed)
    return best


def _bad_pairs(speeds: Mapping[tuple[str, str], float]) -> list[tuple[str, str]]:
    limit = max(TOO_SLOW, SLOW * min(_usual(speeds.values()), FAST_ENOUGH))
    return [pair for pair, speed in speeds.items() if speed < limit]


def _usual(speeds: Iterable[float]) -> float:
    return _upper(list(speeds)) or math.inf


def _upper(values: Sequence[float]) -> float:
    """The speed of the upper quarter; 0: there is none."""
    ordered = sorted(values, reverse=True)
    return ordered[(len(ordered) - 1) // _UPPER] if ordered else 0.0
