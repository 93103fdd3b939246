"""One random run: a job, faults at random moments, and what must hold at the end. Run it with a seed to see the log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from mainstay.recovery.controller.replay import replay
from mainstay.recovery.job_request import JobRequest, RequestKind
from mainstay.recovery.node_warning import cordon
from mainstay.recovery.options import RunOptions
from mainstay.recovery.work_assignment import LossPolicy
from tests.recovery.simulated.cluster import (
    SimulatedClockFormatter,
    SimulatedCluster,
    SimulatedNode,
    default_options,
)
from tests.recovery.simulated.loop import SimulatedLoop
from tests.recovery.simulated.ranks import Truth, ViolationError

SETTLE_SECONDS: Final = 600.0
"""After the last fault, until a job must train or be over."""
ENDLESS: Final = 100_000
"""Steps that no run comes to."""
_STEPS_AFTER: Final = 3

T = TypeVar("T")


@dataclass
class RunResult:
    """What one run has come to."""

    seed: int
    end: str
    """``trains``, ``finished``, or ``failed``."""
    events: int
    """Messages that were delivered, and faults."""
    commits: int
    generations: int
    coordinators: int
    faults: list[str] = field(default_factory=list)
    """Their kinds."""
    replayed: int = 0
    """Events of the recordings, whose replay gave the same effects."""


def draw_options(rng: random.Random, directory: Path) -> tuple[RunOptions, tuple[int, int]]:
    """A job of 2 to 10 ranks, with its (dp, pp)."""
    nnodes, nproc = rng.choice((2, 3, 3, 4, 5)), rng.choice((1, 1, 2))
    world = nnodes * nproc
    pp = rng.choice([n for n in (1, 1, 2) if world % n == 0])
    spare_nodes = rng.choice((0, 0, 0, 1))
    on_loss = rng.choice((LossPolicy.WAIT, LossPolicy.DROP, LossPolicy.REROUTE, LossPolicy.AUTO))
    options = replace(
        default_options(directory), nnodes=nnodes, nproc=nproc, spares=rng.choice((0, 1, 2, world)),
        spare_nodes=spare_nodes, quorum=(nnodes + spare_nodes) // 2 + 1, on_loss=on_loss,
    )  # fmt: skip
    return options, (world // pp, pp)


@dataclass
class Faults:
    """What can go wrong. Each returns what it did, or nothing where it found nothing to do it to."""

    cluster: SimulatedCluster
    rng: random.Random

    def strike(self, kinds: dict[str, int]) -> tuple[str, str]:
        """One random fault of ``kinds``, by weight; its kind and what it did."""
        kind = self.rng.choices(list(kinds), list(kinds.values()))[0]
        what = getattr(self, kind)()
        if what:
            self.cluster.truth.gentle &= kind in GENTLE
            self.cluster.truth.in_time &= kind in IN_TIME
        return kind, what

    def _node(self) -> SimulatedNode | None:
        living = [node for node in self.cluster.nodes if node.runs]
        return self.rng.choice(living) if living else None

    def kill_rank(self) -> str:
        living = [w for w in self.cluster.truth.workers if w.child.alive and w.rank is not None]
        if not living:
            return ""
        worker = self.rng.choice(living)
        worker.exits(None, 9)
        return f"kill rank {worker.rank}"

    def hang_rank(self) -> str:
        """A hang of all ranks at once is for the hang detector, whose signals are not simulated."""
        ranks = [w.process for w in self.cluster.truth.workers if w.child.alive and w.process is not None]
        living = [rank.worker for rank in ranks if not rank.hangs]
        if len(living) < 2:
            return ""
        worker = self.rng.choice(living)
        worker.process.hangs = True
        return f"hang rank {worker.rank}"

    def kill_launcher(self) -> str:
        node = self._node()
        if node is None:
            return ""
        self.cluster.kill(node)
        return f"kill launcher {node.number}"

    def power_off(self) -> str:
        node = self._node()
        if node is None:
            return ""
        self.cluster.kill(node, power=True)
        return f"power off {node.number}"

    def stop_host(self) -> str:
        return self._stop(ranks=True)

    def stop_launcher(self) -> str:
        return self._stop(ranks=False)

    def _stop(self, *, ranks: bool) -> str:
        node, seconds = self._node(), self.rng.uniform(0.5, 30.0)
        if node is None:
            return ""
        self.cluster.stop(node, seconds, ranks=ranks)
        return f"stop {'host' if ranks else 'launcher'} {node.number} for {seconds:.1f} s"

    def cut_network(self) -> str:
        groups = {f"10.0.0.{n}": self.rng.randint(0, 1) for n in range(self.cluster.options.max_nodes)}
        seconds = self.rng.uniform(0.5, 30.0)
        self.cluster.loop.network.cut(groups)
        self.cluster.loop.call_later(seconds, self.cluster.loop.network.cut, {})
        return f"cut {groups} for {seconds:.1f} s"

    def reset_connection(self) -> str:
        self.cluster.loop.network.reset(self.rng.randrange(1 << 30))
        return "reset a connection"

    def restart_node(self) -> str:
        """The launcher of a node that is gone, while the job continues without it and may take it back."""
        options, trains = self.cluster.options, any(w.child.alive for w in self.cluster.truth.workers)
        gone = [node for node in self.cluster.nodes if not node.runs]
        if not gone or not trains or not (options.spare_nodes or options.on_loss is not LossPolicy.WAIT):
            return ""
        node = self.rng.choice(gone)
        # A majority that is started again is the job started once more, from its first step.
        first = [one for one in self.cluster.nodes if one.runs and not one.again]
        if 2 * len(first) <= len(self.cluster.nodes):
            return ""
        self.cluster.start(node.number)
        return f"restart node {node.number}"

    def migrate_rank(self) -> str:
        rank = self.rng.randrange(self.cluster.options.world_size)
        return self._request(RequestKind.MIGRATE, rank=rank)

    def restore_rank(self) -> str:
        rank = self.rng.randrange(self.cluster.options.world_size)
        return self._request(RequestKind.RESTORE, rank=rank)

    def migrate_node(self) -> str:
        return self._request(RequestKind.MIGRATE, node=self._any_node())

    def degrade_node(self) -> str:
        self.cluster.truth.tolerates = True
        return self._request(RequestKind.DEGRADE, node=self._any_node())

    def restore_node(self) -> str:
        return self._request(RequestKind.RESTORE, node=self._any_node())

    def _any_node(self) -> str:
        return f"node-{self.rng.randrange(self.cluster.options.max_nodes)}"

    def _request(self, kind: RequestKind, **subject: Any) -> str:
        request = JobRequest(id=f"request-{len(self.cluster.requests)}", kind=kind, **subject)
        self.cluster.requests.append(request)
        return f"{kind} {request.subject}"

    def cordon_node(self) -> str:
        node = self._any_node()
        self.cluster.cordoned.setdefault(node, cordon("power brake"))
        return f"cordon {node}"

    def uncordon_nodes(self) -> str:
        nodes, self.cluster.cordoned = sorted(self.cluster.cordoned), {}
        self.cluster.told.clear()
        return f"uncordon {nodes}" if nodes else ""


GENTLE: Final = {"kill_rank": 3, "migrate_rank": 1, "migrate_node": 1, "restore_rank": 1}
IN_TIME: Final = {
    **GENTLE,
    "kill_launcher": 2, "cordon_node": 3, "uncordon_nodes": 1, "restart_node": 2, "degrade_node": 2, "restore_node": 2,
}  # fmt: skip
ALL: Final = {
    **IN_TIME,
    "kill_rank": 6, "hang_rank": 2, "power_off": 1, "stop_host": 2, "stop_launcher": 2, "cut_network": 2,
    "reset_connection": 2,
}  # fmt: skip


def simulate(seed: int) -> RunResult:
    """One random run.

    Raises:
        ViolationError: something happened that may not, or the job neither trains nor ends.
    """
    rng = random.Random(seed)
    kinds = _draw_kinds(rng)
    with tempfile.TemporaryDirectory(prefix="mainstay-simulated-") as directory:
        options, shape = draw_options(rng, Path(directory))
        options = replace(options, record_events=Path(directory) / "recordings")
        total, slowest = rng.choice((40, 120, ENDLESS)), rng.choice((0.02, 0.02, 0.3, 2.0))

        async def scenario(cluster: SimulatedCluster) -> RunResult:
            cluster.loop.network.slowest = slowest
            return await _random_faults(seed, cluster, kinds)

        result = play(options, shape, scenario, seed=seed, total=total)
        replays = [replay(path) for path in sorted((Path(directory) / "recordings").iterdir())]
        if problems := [problem for found in replays for problem in found.problems]:
            raise ViolationError(f"replay of the recordings: {problems}")
        return replace(result, replayed=sum(found.events for found in replays))


def play(
    options: RunOptions,
    shape: tuple[int, int],
    scenario: Callable[[SimulatedCluster], Coroutine[Any, Any, T]],
    *,
    seed: int = 1,
    total: int = ENDLESS,
) -> T:
    """Let ``scenario`` happen to a job of ``shape`` (dp, pp) with ``total`` steps; it starts the nodes itself."""
    rng = random.Random(seed)
    loop = SimulatedLoop(rng.randrange(1 << 30))
    tolerates = options.on_loss is not LossPolicy.WAIT
    cluster = SimulatedCluster(loop, rng, Truth(loop, rng, shape, total, tolerates=tolerates), options)
    loop.set_exception_handler(lambda _, context: _note(cluster.problems, context))
    with cluster.in_place(), _noting_errors(cluster.problems):
        try:
            return loop.run_until_complete(scenario(cluster))
        finally:
            loop.run_until_complete(cluster.close())
            loop.close()


def _draw_kinds(rng: random.Random) -> dict[str, int]:
    """Only some kinds in each run: what needs several of one kind is found so (swarm testing, Groce et al. 2012)."""
    kinds = rng.choice((GENTLE, IN_TIME, ALL, ALL, ALL))
    some = {kind: weight for kind, weight in kinds.items() if rng.random() < 0.5}
    return some or kinds


@contextlib.contextmanager
def _noting_errors(problems: list[BaseException]) -> Iterator[None]:
    """A coordinator or launcher that ends the job because of an error of its own logs it."""

    class Errors(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info and record.exc_info[1] is not None:
                problems.append(record.exc_info[1])

    handler, logger = Errors(logging.ERROR), logging.getLogger("mainstay")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _note(problems: list[BaseException], context: dict[str, object]) -> None:
    error = context.get("exception")
    problems.append(error if isinstance(error, BaseException) else ViolationError(str(context.get("message"))))


async def _random_faults(seed: int, cluster: SimulatedCluster, kinds: dict[str, int]) -> RunResult:
    loop, rng, truth = cluster.loop, cluster.rng, cluster.truth
    struck: list[str] = []
    for number in range(cluster.options.max_nodes):
        loop.call_later(rng.uniform(0.0, 2.0), cluster.start, number)
    await asyncio.sleep(2.0)
    faults = Faults(cluster, rng)
    for _ in range(rng.randint(1, 12)):
        await asyncio.sleep(rng.choice((0.01, 0.1, 0.3, 1.0, 3.0, 20.0)) * rng.uniform(0.2, 2.0))
        kind, what = faults.strike(kinds)
        logging.getLogger("mainstay.simulated").warning("FAULT %s", what or "none")
        struck += [kind] if what else []
        cluster.check()
    await asyncio.sleep(70.0)  # the longest stop or cut is over
    begun = truth.commits

    def settled() -> bool:
        cluster.check()
        return truth.commits >= begun + _STEPS_AFTER or not any(node.runs for node in cluster.nodes)

    await cluster.until(settled, SETTLE_SECONDS)
    codes = {node.number: node.exit_code for node in cluster.nodes if not node.dead}
    running = any(node.runs for node in cluster.nodes)
    if not settled():
        raise ViolationError(f"the job neither trains nor ends; exit codes {codes}")
    end = "trains" if running else "finished" if 0 in codes.values() else "failed"
    if end == "failed" and truth.gentle:
        raise ViolationError(f"only processes of ranks were killed, and the job ended: {codes}")
    events = loop.network.delivered + len(struck)
    return RunResult(seed, end, events, truth.commits, truth.newest_generation, cluster.coordinators, struck)


def main() -> None:
    """Show every line that a run logs: ``python -m tests.recovery.simulated.run SEED``."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(SimulatedClockFormatter())
    root = logging.getLogger("mainstay")
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    print(simulate(int(sys.argv[1])))


if __name__ == "__main__":
    main()
