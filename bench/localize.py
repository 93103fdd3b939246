"""Localization: who is named from pairs of nodes, in how many rounds, and whether any other node ever is.

``python -m bench.localize [--json FILE] [--seeds N]``. Fabrics are simulated (``bench.lib_localize``: faults act
unevenly, lost packets hurt large messages only); the peer in the same run is DLRover's node check (dlrover 7c3e964):
two rounds, the second pairs the fastest with the slowest, a straggler's best time is more than twice the median, a
faulty node fails in both.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from bench.lib_localize import CLASSES, SIZES, Cluster, Fault, draws
from bench.report import Row, publish, target_file
from mainstay.detectors.localize import plan
from mainstay.detectors.localize.model import LocalizationConfig, LocalizationVerdict, NodePair, PairOutcome, Round
from mainstay.detectors.localize.topology import OWN, Component, Endpoint, FabricComponentKind

SEEDS = 1000
OTHERS = 100
"""Seeds of each of the harder worlds."""
COUNTS = (8, 16, 64, 256, 1024)
OWN_CLASSES = tuple(kind for kind in CLASSES if not kind.startswith(("cable", "uplink")))


@dataclass
class Score:
    """What came of many runs of one kind."""

    runs: int = 0
    exact: int = 0
    """Runs in which exactly the faulty pieces were named."""
    blamed: int = 0
    """Runs in which a good node was."""
    late: int = 0
    """Runs over 2 + 2 log2 n rounds."""
    rounds: list[int] = field(default_factory=list)
    found: Counter[str] = field(default_factory=Counter)
    drawn: Counter[str] = field(default_factory=Counter)
    shared: int = 0
    seconds: float = 0.0
    peer_found: int = 0
    peer_total: int = 0
    peer_blamed: int = 0


def main(argv: list[str] | None = None) -> None:
    arguments = sys.argv[1:] if argv is None else list(argv)
    seeds = SEEDS
    if "--seeds" in arguments:
        at = arguments.index("--seeds")
        seeds = int(arguments[at + 1])
        del arguments[at : at + 2]
    file = target_file("localize", arguments)
    publish("localize", [*_main(seeds), *_harder(max(5, seeds * OTHERS // SEEDS)), *_more(seeds)], file)


def _more(seeds: int) -> Iterator[Row]:
    yield from _leaf_switch(max(5, seeds * OTHERS // SEEDS))
    yield from _groups(max(5, seeds // 5))


def cluster(count: int, seed: int, **changes: float) -> Cluster:
    """Four leaves a rail at least, sixteen nodes under a leaf at most."""
    made = Cluster(count=count, leaf_nodes=max(2, min(16, count // 4)), seed=seed)
    for name, value in changes.items():
        setattr(made, name, value)
    made.__post_init__()
    return made


def play(world: Cluster, settings: LocalizationConfig | None = None) -> LocalizationVerdict:
    """A whole localization."""
    state = plan.start_localization(world.topology, settings=settings)
    while isinstance(step := plan.next_round(state), Round):
        state = plan.record(state, world.measure(step))
    return step


def run(worlds: Iterator[Cluster], *, peer: bool = False) -> Score:
    """Play them all and count."""
    score = Score()
    for world in worlds:
        begun = time.process_time()
        verdict = play(world)
        score.seconds += time.process_time() - begun
        named = {Component(c.kind, c.name) for c in verdict.culprits}
        want = {fault.piece for fault in world.faults}
        bad_nodes = {piece.name[0] for piece in want if piece.kind in OWN}
        score.runs += 1
        score.exact += named == want
        score.blamed += bool({node for c in verdict.culprits for node in c.nodes} - bad_nodes)
        score.late += verdict.rounds > 2 + 2 * math.log2(world.count)
        score.rounds.append(verdict.rounds)
        score.shared = max(score.shared, world.together)
        score.drawn.update(fault.name for fault in world.faults)
        score.found.update(fault.name for fault in world.faults if fault.piece in named)
        if peer:
            blamed = dlrover(world)
            score.peer_total += len(bad_nodes)
            score.peer_found += len(bad_nodes & blamed)
            score.peer_blamed += bool(blamed - bad_nodes)
    return score


def faulty(count: int, seeds: int, kinds: tuple[str, ...] = CLASSES, **changes: float) -> Iterator[Cluster]:
    """Clusters with one to three faults of any class."""
    for seed in range(seeds):
        rng = np.random.default_rng([count, seed])
        world = cluster(count, seed, **changes)
        drawn = rng.choice(kinds, int(rng.integers(1, 4)))
        world.faults = tuple(draws(tuple(map(str, drawn)), world, rng))
        yield world


def _main(seeds: int) -> Iterator[Row]:
    score = run(faulty(64, seeds), peer=True)
    note = f"1-3 faults at once of {', '.join(CLASSES)}; 2 rails, 4 leaves and 2 spines each, 1 % noise"
    by_class = ", ".join(f"{kind} {score.found[kind]}/{score.drawn[kind]}" for kind in CLASSES)
    peer = f"DLRover's two rounds: {score.peer_found}/{score.peer_total} faulty nodes named"
    yield _row("64 nodes: exactly the faulty pieces named", score.exact / score.runs, "of runs", ">= 0.99",
               score.exact >= 0.99 * score.runs, score.runs, by_class, peer)  # fmt: skip
    peer = f"DLRover: {score.peer_blamed} runs"
    yield _row("64 nodes: a good node blamed", score.blamed, "runs", "0", score.blamed == 0, score.runs, note, peer)
    yield _row("64 nodes: rounds, most", max(score.rounds), "rounds", "<= 14", score.late == 0, score.runs,
               f"median {statistics.median(score.rounds):g}, p99 {sorted(score.rounds)[int(0.99 * score.runs)]}",
               "2 + 2 log2 n = 14; DLRover 2")  # fmt: skip
    yield _row("transfers at a time over one cable between switches", score.shared, "flows", "<= 1",
               score.shared <= 1, score.runs, "in all rounds of these runs")  # fmt: skip
    healthy = run(cluster(64, seed, spread=0.005) for seed in range(seeds // 5))
    yield _row("64 healthy nodes that differ by 0.5 %: a node named", healthy.runs - healthy.exact, "runs", "0",
               healthy.exact == healthy.runs, healthy.runs, f"rounds, most: {max(healthy.rounds)}")  # fmt: skip


def _harder(seeds: int) -> Iterator[Row]:
    worlds = (
        ("64 nodes, 3 % noise", faulty(64, seeds, noise=0.03)),
        ("64 nodes, 3 % noise, 5 % of answers missing, nodes differ by 0.5 %",
         faulty(64, seeds, noise=0.03, missing=0.05, spread=0.005)),
        ("64 nodes, a fifth of answers missing", faulty(64, seeds, missing=0.2)),
        *((f"{count} nodes, 1 % noise", faulty(count, max(3, seeds * 64 // max(64, count))))
          for count in COUNTS if count != 64),
    )  # fmt: skip
    for name, made in worlds:
        score = run(made)
        right = score.exact / score.runs
        note = (
            f"a good node blamed in {score.blamed} runs; rounds {statistics.median(score.rounds):g} (median) to"
            f" {max(score.rounds)}; beyond the limit: {score.late}; {score.seconds / score.runs:.2f} s CPU a run"
        )
        yield _row(f"{name}: exactly the faulty pieces named", right, "of runs", ">= 0.95, 0 blamed",
                   right >= 0.95 and score.blamed == 0 and score.late == 0, score.runs, note)  # fmt: skip


def _leaf_switch(seeds: int) -> Iterator[Row]:
    """A leaf switch of sixteen nodes slows all that passes it: as if all its nodes were bad."""

    def worlds() -> Iterator[Cluster]:
        for seed in range(seeds):
            world = cluster(64, seed)
            leaf = str(np.random.default_rng([9, seed]).choice(sorted(world.topology.spines)))
            world.faults = (Fault(name="leaf", piece=Component(FabricComponentKind.SWITCH, (leaf,)), speed=0.6),)
            yield world

    score = run(worlds())
    note = f"the switch itself named in {score.exact} of {score.runs} runs"
    yield _row("a bad leaf switch of 16 of 64 nodes: a node blamed for it", score.blamed, "runs", "0",
               score.blamed == 0, score.runs, note)  # fmt: skip


def _groups(seeds: int) -> Iterator[Row]:
    wrong, blamed, worst, tests = 0, 0, 0.0, []
    for seed in range(seeds):
        rng = np.random.default_rng([7, seed])
        count, bad = int(rng.choice([16, 64, 256, 1024])), int(rng.integers(1, 4))
        world = Cluster(count=count, rails=1, seed=seed)
        nodes = rng.choice([host.name for host in world.topology.nodes], bad, replace=False).tolist()
        world.faults = tuple(
            Fault(name="bad", piece=Component(FabricComponentKind.NODE, (node,)), speed=0.5) for node in nodes
        )
        state = plan.start_localization(world.topology, method="groups")
        while isinstance(step := plan.next_round(state), Round):
            state = plan.record(state, world.collective(step))
        named = {c.name[0] for c in step.culprits}
        wrong += named != set(nodes)
        blamed += bool(named - set(nodes))
        worst = max(worst, step.rounds / (2 + 2 * math.log2(count)))
        tests.append(len(state.groups) / (bad * math.log2(count)))
    note = f"16-1024 nodes, 1-3 bad; groups tested: {statistics.mean(tests):.1f} d log2 n; a good node blamed: {blamed}"
    yield _row("group tests: exactly the bad nodes named", 1 - wrong / seeds, "of runs", "1", wrong == 0, seeds, note)
    yield _row("group tests: rounds, as a share of 2 + 2 log2 n, most", round(worst, 2), "of the limit", "<= 1",
               worst <= 1, seeds, "")  # fmt: skip


def _row(claim: str, figure: float, unit: str, target: str, holds: bool, n: int, note: str, baseline: str = "") -> Row:  # noqa: PLR0917 - a table's columns
    return Row(
        claim=claim, figure=round(figure, 4), unit=unit, target=target, holds=holds, kind="simulated", n=n, note=note,
        baseline=baseline,
    )  # fmt: skip


def dlrover(world: Cluster) -> set[str]:
    """Nodes that DLRover's check would name: all rails at once, so the slowest rail of a pair is its time."""
    names = [host.name for host in world.topology.nodes]
    first = _times(world, [(names[k], names[k + 1]) for k in range(0, len(names) - 1, 2)])
    order = sorted(names, key=lambda name: first.get(name, math.inf))
    second = _times(world, [(order[k], order[-1 - k]) for k in range(len(order) // 2)])
    best = {name: min(first.get(name, math.inf), second.get(name, math.inf)) for name in names}
    typical = statistics.median(best.values())
    return {name for name, seconds in best.items() if seconds > 2 * typical}


def _times(world: Cluster, pairs: list[tuple[str, str]]) -> dict[str, float]:
    """Node → seconds of its pair at the largest size; infinite where it hung."""
    found: dict[str, float] = {}
    rails = [(f"nic{rail}", f"gpu{rail}") for rail in range(world.rails)]
    for a, b in pairs:
        asked = tuple(
            NodePair(a=Endpoint(a, nic, gpu), b=Endpoint(b, nic, gpu), via=_any(world, a, b, nic)) for nic, gpu in rails
        )
        results = world.measure(Round(number=1, pairs=asked))
        seconds = max(
            math.inf if r.outcome is not PairOutcome.OK else SIZES[-1] / r.bandwidth[str(SIZES[-1])] for r in results
        )
        found[a] = found[b] = seconds
    return found


def _any(world: Cluster, a: str, b: str, nic: str) -> str:
    vias = world.chart.vias(Endpoint(a, nic), Endpoint(b, nic))
    return vias[(int(a[-1]) + int(b[-1])) % len(vias)] if vias else ""  # as a hash of the flow would choose


if __name__ == "__main__":
    main()
