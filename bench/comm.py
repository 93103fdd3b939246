"""Slow ways between ranks: how many steps until they are said, and whether the right end is named.

Simulated jobs of 64 to 2,048 ranks (rings, pipelines, all-to-all, all of these), on nodes of eight with a port a rank,
four nodes a leaf, four leaves a spine. Healthy transfers have 5 % noise, 1 % Pareto-distributed tails, slow wander, a
common daily swing, constant offsets; 5 % of samples are missing, 1 % of pairs report one value for ever, and the job's
clock is off by up to 50 ms. One fault a run: transfers through it take twice as long from one step on.

Where one pair only passes the fault (a ring), nothing can tell sender, receiver and link apart: then the finding has to
name that pair, and to say of which ends it may be. Such runs are counted by themselves too.
``python -m bench.comm [--json FILE]``
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bench.lib_comm import PATTERNS, START, Network, network, simulate, slow, spoil
from bench.report import Row, publish, target_file
from mainstay.detectors.finding import Finding, FindingKind
from mainstay.detectors.network.transfer_delays import TransferDelayDetector

SEED = 5
ONSET, STEPS, QUIET = 40, 56, 300
FAULTS = ("sender", "receiver", "port", "link", "leaf")
SIZES = (64, 64, 128, 128, 128, 256, 256, 512)
RUNS = {"link": 120}
"""Of a fault that one pair alone shows, whose time is closest to its target; ``OTHER_RUNS`` of the others."""
OTHER_RUNS = 60
LARGE = 2048


@dataclass(frozen=True, kw_only=True)
class Run:
    fault: str
    culprit: str
    cells: int
    steps: float
    """From onset until the first finding; infinite where none came."""
    right: bool
    early: int
    """Findings before the onset."""
    wrong_later: int
    """Further findings about others while the fault held."""
    stuck: bool
    """The one pair that passes the fault reports one value for ever: nothing shows it."""


def plant(
    net: Network, fault: str, rng: np.random.Generator
) -> tuple[npt.NDArray[np.bool_], int | tuple[int, int] | str]:
    """Cells that a fault slows, and who has it."""
    crossing = ~net.local
    if fault == "link":
        source, target = (int(r) for r in net.pairs[rng.choice(np.flatnonzero(crossing))])
        return (net.pairs == (source, target)).all(axis=1), (source, target)
    if fault == "leaf":
        leaf = str(rng.choice(sorted({above[0] for above in net.mesh.switches})))
        ends = net.under(leaf)
        return crossing & (ends[:, 0] != ends[:, 1]), leaf
    rank = int(rng.integers(net.mesh.size))
    sides = {"sender": [0], "receiver": [1], "port": [0, 1]}[fault]
    hot: npt.NDArray[np.bool_] = crossing & (net.pairs[:, sides] == rank).any(axis=1)
    return hot, rank


def names(finding: Finding, culprit: int | tuple[int, int] | str, fault: str, cells: npt.NDArray[np.int64]) -> bool:
    """Whether the finding names the culprit, or the one pair that passes it."""
    entity, pairs = finding.entity, len(cells)
    if isinstance(culprit, tuple):
        return (entity.rank, entity.peer) == culprit
    if isinstance(culprit, str):
        return entity.device == culprit
    if pairs == 1:
        possible = finding.evidence.numbers.get(f"{fault}_possible") == 1.0
        return (entity.rank, entity.peer) == tuple(cells[0].tolist()) and possible
    side = {"sender": " sends takes", "receiver": " receives takes", "port": " sends and receives takes"}[fault]
    if fault == "port" and pairs == 2 and entity.peer is not None:
        return {entity.rank, entity.peer} == set(cells[0].tolist())  # both directions of one pair
    return finding.kind is FindingKind.NIC_DEGRADED and entity.rank == culprit and side in finding.evidence.summary


def run_fault(fault: str, pattern: str, ranks: int, seed: int) -> Run:
    net = network(pattern, ranks)
    hot, culprit = plant(net, fault, np.random.default_rng([SEED, seed]))
    data = spoil(slow(simulate(net, STEPS, seed), hot, 2.0, ONSET), seed)
    found = TransferDelayDetector().update(data)
    steps = [round((f.time - START) / 5.0) - ONSET + 1 for f in found]
    said = [(s, f) for s, f in zip(steps, found, strict=True) if f.active and s > 0]
    right = bool(said) and names(said[0][1], culprit, fault, net.pairs[hot])
    wrong = sum(not names(f, culprit, fault, net.pairs[hot]) for _, f in said[1:])
    return Run(
        fault=fault,
        culprit=str(culprit),
        cells=int(np.count_nonzero(hot)),
        steps=float(said[0][0]) if said else np.inf,
        right=right,
        early=sum(f.active and s <= 0 for s, f in zip(steps, found, strict=True)),
        wrong_later=wrong,
        stuck=not np.ptp(np.nan_to_num(data.x[:, 0, hot], nan=float(np.nanmin(data.x[:, 0, hot])))) > 0.0,
    )


def runs(fault: str, count: int) -> list[Run]:
    made = []
    for seed in range(count):
        pattern, ranks = PATTERNS[seed % len(PATTERNS)], SIZES[seed // len(PATTERNS) % len(SIZES)]
        if fault == "leaf" and ranks == 64:
            ranks = 128  # two leaves have the same uplinks: nothing tells them apart
        made.append(run_fault(fault, pattern, ranks, 1_000 * FAULTS.index(fault) + seed))
    return made


def share(values: list[bool]) -> float:
    return float(np.mean(values)) if values else float("nan")


def fault_rows(fault: str, found: list[Run]) -> list[Row]:
    steps = np.array([run.steps for run in found])
    in_time, p95 = share((steps <= 5).tolist()), float(np.quantile(steps, 0.95, method="inverted_cdf"))
    right = share([run.right for run in found])
    ambiguous = sum(run.cells == 1 for run in found)
    note = (
        f"median {np.median(steps):.0f}; {in_time:.1%} within 5; missed {np.isinf(steps).sum()}, of which "
        f"{sum(run.stuck for run in found)} on a pair that reports one value for ever"
    )
    promised = fault != "leaf"
    return [
        Row(claim=f"{fault} at half speed → finding, p95", figure=p95, unit="steps", target="<= 5" if promised else "",
            holds=p95 <= 5 if promised else None, kind="simulated", n=len(found), note=note),
        Row(claim=f"{fault}: right one named at once", figure=right, unit="", target=">= 0.95", holds=right >= 0.95,
            kind="simulated", n=len(found),
            note=f"{ambiguous} of them pass one pair only, which must be named with that end as possible; "
            f"later findings about others: {sum(run.wrong_later for run in found)}"),
    ]  # fmt: skip


def all_ports(found: list[Run]) -> list[Row]:
    told = [run for run in found if run.cells > 1]
    steps = np.array([run.steps for run in told])
    p95, right = float(np.quantile(steps, 0.95, method="inverted_cdf")), share([run.right for run in told])
    return [
        Row(claim="port with two pairs or more at half speed → finding, p95", figure=p95, unit="steps", target="<= 5",
            holds=p95 <= 5, kind="simulated", n=len(told)),
        Row(claim="port with two pairs or more: sender, receiver or both right", figure=right, unit="",
            target=">= 0.95", holds=right >= 0.95, kind="simulated", n=len(told)),
    ]  # fmt: skip


def quiet() -> Row:
    """Healthy jobs: findings, and pair-steps looked at."""
    alarms, looked, steps = Counter[str](), 0, 0
    for seed, (pattern, ranks) in enumerate((p, r) for r in (64, 128, 256) for p in PATTERNS):
        net = network(pattern, ranks)
        data = spoil(simulate(net, QUIET, 90_000 + seed), seed)
        alarms[pattern] += sum(f.active for f in TransferDelayDetector().update(data))
        looked += QUIET * len(net.pairs)
        steps += QUIET
    total = sum(alarms.values())
    return Row(claim="healthy jobs: findings", figure=total, unit="", target="0", holds=total == 0, kind="simulated",
               n=steps, note=f"{looked:,} pair-steps in 12 jobs")  # fmt: skip


def large() -> list[Row]:
    net = network("hierarchical", LARGE)
    hot, rank = plant(net, "sender", np.random.default_rng(SEED))
    data = spoil(slow(simulate(net, STEPS, 7), hot, 2.0, ONSET), 7)
    detector, seconds, found = TransferDelayDetector(), [], []
    for k in range(STEPS):
        begin = time.perf_counter()
        found += detector.update(data.part(k, k + 1))
        seconds.append(time.perf_counter() - begin)
    ok = bool(found) and found[0].entity.rank == rank
    p99 = float(np.quantile(seconds[1:], 0.99)) * 1e3
    return [
        Row(claim=f"a step of {LARGE:,} ranks, {len(net.pairs):,} pairs, p99", figure=p99, unit="ms", target="",
            holds=None, kind="simulated", n=STEPS - 1,
            note=f"the first one, which builds the suspects: {seconds[0]:.2f} s"),
        Row(claim=f"sender among {LARGE:,} ranks named", figure="yes" if ok else "no", unit="", target="yes", holds=ok,
            kind="simulated"),
        large_links(net),
    ]  # fmt: skip


def large_links(net: Network) -> Row:
    """One link of a large job: the hardest suspect, as it has the most others beside it."""
    steps = []
    for seed in range(8):
        hot, culprit = plant(net, "link", np.random.default_rng([SEED, 9, seed]))
        found = TransferDelayDetector().update(
            spoil(slow(simulate(net, STEPS, 8_000 + seed), hot, 2.0, ONSET), 8_000 + seed)
        )
        right = bool(found) and names(found[0], culprit, "link", net.pairs[hot])
        steps.append(round((found[0].time - START) / 5.0) - ONSET + 1 if right else np.inf)
    return Row(claim=f"link among {LARGE:,} ranks at half speed, the right one → finding, worst", unit="steps",
               figure=float(max(steps)), target="<= 5", holds=max(steps) <= 5, kind="simulated", n=len(steps),
               note=f"one of {len(net.pairs):,} pairs; {', '.join(f'{s:.0f}' for s in steps)}")  # fmt: skip


def main() -> None:
    file = target_file("comm")
    rows, ports = [], []
    for fault in FAULTS:
        found = runs(fault, RUNS.get(fault, OTHER_RUNS))
        ports += found if fault in FAULTS[:3] else []
        rows += fault_rows(fault, found)
    publish("comm", [*rows, *all_ports(ports), quiet(), *large()], file)


if __name__ == "__main__":
    main()
