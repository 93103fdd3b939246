"""Recovery strategies against one another on a recorded trace, and the planner against each of them.

One job of a fixed grid follows nodes that come and go. Nodes beyond the grid stand by; lost ones are replaced as long
as some do, else the job continues with fewer, spread evenly over its stages, by the way that its policy picks: always
the same one (morphing where that cannot be), or the one that ``decide`` finds cheapest. Time is counted in full-rate
seconds.

What a policy may know is what has happened: the mean gap between losses so far stands for the future. Where the market
tells in advance which nodes it takes, the policy may also change over while all state is still there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from mainstay.recovery.cost_inputs import CostInputs, FailureOdds, FaultKind
from mainstay.recovery.cost_model.failure_cost import RecoveryAction, Repair
from mainstay.recovery.recovery_plan import RecoveryStrategyName
from mainstay.recovery.simulate.traces import TraceChange
from mainstay.recovery.strategies import WAYS
from mainstay.recovery.strategies.recovery_strategy import RecoveryStrategy, estimate_action
from mainstay.recovery.strategy_choice import choose_strategy

FIRST_GAP_S = 3600.0
"""Between losses, until some were seen: weighs as much as one of them."""
NEVER_S = 1e9
"""No repair is awaited: nodes come when they come, and until then the next loss ends what is."""

BY_NAME = {way.way: way for way in WAYS}
Choice = tuple[RecoveryStrategyName, RecoveryAction]
Policy = Callable[[CostInputs], Choice | None]
"""What to do about the workers that a forecast reports as missing; None: pause."""


def always(way: RecoveryStrategy) -> Policy:
    """The same way whenever it can be; else a restart on what is left."""

    def choose(cost_inputs: CostInputs) -> Choice | None:
        for each in (way, BY_NAME[RecoveryStrategyName.MORPH]):
            answer = estimate_action(each, cost_inputs)
            if isinstance(answer, RecoveryAction):
                return each.way, answer
        return None

    return choose


def planned(ways: Sequence[RecoveryStrategy]) -> Policy:
    """The cheapest of all that can be."""

    def choose(cost_inputs: CostInputs) -> Choice | None:
        made = choose_strategy(cost_inputs, ways)
        if made.chosen is None:
            return None
        answer = estimate_action(BY_NAME[made.chosen[0]], cost_inputs)
        assert isinstance(answer, RecoveryAction)
        return made.chosen[0], answer

    return choose


@dataclass(frozen=True, slots=True)
class Kept:
    """What came of a trace."""

    useful_s: float
    """Full-rate seconds."""
    seconds: float
    """From the first time that the grid, or a part of it, could train."""
    picked: dict[RecoveryStrategyName, int]

    @property
    def share(self) -> float:
        return self.useful_s / self.seconds if self.seconds > 0.0 else 0.0


@dataclass
class _Run:
    job: CostInputs
    policy: Policy
    notice_s: float = 0.0
    grid: set[str] = field(default_factory=set)
    spare: dict[str, None] = field(default_factory=dict)
    """In the order of coming."""
    told: set[str] = field(default_factory=set)
    """Nodes that will go, as was announced."""
    rate: float = 0.0
    at_s: float = 0.0
    """Until when the trace was followed."""
    busy_s: float = 0.0
    """Until when nothing trains."""
    began_s: float | None = None
    useful_s: float = 0.0
    gaps: tuple[float, int] = (FIRST_GAP_S, 1)
    lost_s: float | None = None
    picked: dict[RecoveryStrategyName, int] = field(default_factory=dict)
    name: RecoveryStrategyName | None = None
    """The way that is in use, since the last loss."""
    rejoin_s: float = 0.0
    """What it costs to take workers in."""
    status: float = 0.0
    """Share of the time that the way in use takes while nothing fails."""

    def train(self, until_s: float) -> None:
        self.useful_s += self.rate * (1.0 - self.status) * max(0.0, until_s - max(self.at_s, self.busy_s))
        self.at_s = until_s

    def receive_notice(self, nodes: list[str]) -> None:
        """Of nodes that will go: none is taken in any more, and when they go state has left them beside training."""
        self.told.update(nodes)
        for node in nodes:
            self.spare.pop(node, None)

    def lose(self, nodes: list[str]) -> None:
        """A spare that goes costs no rank."""
        if self.lost_s is not None:
            self.gaps = self.gaps[0] + self.at_s - self.lost_s, self.gaps[1] + 1
        self.lost_s = self.at_s
        hit = [node for node in nodes if node in self.grid]
        for node in nodes:
            self.grid.discard(node)
            self.spare.pop(node, None)
        if hit and self.began_s is not None:
            self.recover(noticed=self.told.issuperset(hit) and self.rate > 0.0)
        self.told.difference_update(nodes)

    def recover(self, *, noticed: bool) -> None:
        """Too few spares join what is left; enough of them may replace all that is missing."""
        missing = self.job.workers - len(self.grid)
        if len(self.spare) < missing:
            missing -= len(self.spare)
            self._take(len(self.spare))
        faults = (FaultKind.NODE, FaultKind.NOTICE) if noticed else (FaultKind.NODE,)
        asked = (self.cost_inputs(missing, len(self.spare), fault) for fault in faults if missing < self.job.workers)
        found = min(filter(None, map(self.policy, asked)), key=self._lost_s, default=None)
        if found is None:
            self.rate, self.busy_s, self.name, self.rejoin_s = 0.0, self.at_s, None, self._restart_s
            return
        self._follow(*found, missing)

    def _lost_s(self, choice: Choice) -> float:
        """Until the next loss, as far as one knows."""
        action = choice[1]
        kept = action.rate * (1.0 - action.readiness_share)
        return action.downtime_s + action.repeated_s + (1.0 - kept) * self.gaps[0] / self.gaps[1]

    def _follow(self, name: RecoveryStrategyName, action: RecoveryAction, missing: int) -> None:
        self.picked[name] = self.picked.get(name, 0) + 1
        self._goes_on(name, action)
        self.busy_s = self.at_s + action.downtime_s + action.repeated_s
        self.rate = action.rate
        if self.spare and missing:
            self.busy_s += 0.0 if action.rate >= 1.0 else action.rejoin_s
            self.rate = 1.0
            self._take(missing)

    def join(self, nodes: list[str]) -> None:
        """Nodes come: at first the grid fills; later they are taken in where that pays until the next loss."""
        self.spare.update(dict.fromkeys(nodes))
        missing = self.job.workers - len(self.grid)
        if self.began_s is None:
            self._take(missing)
            if len(self.grid) == self.job.workers:
                self.began_s, self.rate = self.at_s, 1.0
            return
        if not missing or not self.spare:
            return
        after = missing - min(missing, len(self.spare))
        cost_s, choice = self.rejoin_s, None
        if after:
            choice = self.policy(self.cost_inputs(after, standbys=0))
            if choice is None:
                return
            planned_s = choice[1].downtime_s - self.job.detect_s - self.job.costs.fence_s
            cost_s = self.rejoin_s if choice[0] is self.name else max(self.rejoin_s, planned_s)
        rate = 1.0 if choice is None else choice[1].rate
        if self.rate == 0.0 or (rate - self.rate) * self.gaps[0] / self.gaps[1] > cost_s:
            self._take(missing)
            self.busy_s = max(self.busy_s, self.at_s) + cost_s
            self.rate = rate
            if choice is not None:
                self._goes_on(*choice)

    def _goes_on(self, name: RecoveryStrategyName, action: RecoveryAction) -> None:
        self.name, self.status = name, action.readiness_share
        self.rejoin_s = action.rejoin_s if action.rejoin_probability else self._restart_s

    @property
    def _restart_s(self) -> float:
        return self.job.restart_s + self.job.costs.spawn_cold_s + self.job.read_s

    def _take(self, wanted: int) -> None:
        for node in list(self.spare)[:wanted]:
            del self.spare[node]
            self.grid.add(node)

    def cost_inputs(self, missing: int, standbys: int, fault: FaultKind = FaultKind.NODE) -> CostInputs:
        """Missing workers spread evenly over stages, as ReCycle's planner swaps them logically."""
        even, more = divmod(max(1, missing), self.job.shape.pp)
        odds = FailureOdds(
            worker_rate=self.gaps[1] / self.gaps[0] / self.job.workers, repairs=(Repair(1.0, NEVER_S),),
            single_copy_s=math.inf, notice_s=self.notice_s,
        )  # fmt: skip
        pool = replace(self.job.pool, standbys=standbys)
        lost = tuple(even + (stage < more) for stage in range(self.job.shape.pp))
        return replace(self.job, lost=lost, fault=fault, odds=odds, pool=pool, broken=None)


def follow_policy(trace: Iterable[TraceChange], job: CostInputs, policy: Policy, notice_s: float = 0.0) -> Kept:
    """Follow a trace until its last change.

    Args:
        trace: nodes that come and go.
        job: its grid, costs and abilities; what it says of losses, odds and standbys is the trace's.
        policy: what is done.
        notice_s: how long before a node goes the job receives a notice (or when it comes, if that is later); 0: never.
    """
    run = _Run(job, policy, notice_s)
    for at_s, changes in groupby(_told(trace, notice_s), key=lambda each: each[0]):
        run.train(at_s)
        nodes: dict[str, list[str]] = {"add": [], "remove": [], "notice": []}
        for _, kind, node in changes:
            nodes[kind].append(node)
        if nodes["add"]:
            run.join(nodes["add"])
        if nodes["remove"]:
            run.lose(nodes["remove"])
        if nodes["notice"]:
            run.receive_notice(nodes["notice"])
    seconds = run.at_s - run.began_s if run.began_s is not None else 0.0
    return Kept(run.useful_s, seconds, run.picked)


def _told(trace: Iterable[TraceChange], notice_s: float) -> Iterator[tuple[float, str, str]]:
    """Time, what, node, in order of time: the changes, and the notices before them."""
    changes = [(change.at_s, str(change.kind), change.node) for change in trace]
    if not notice_s:
        return iter(changes)
    came: dict[str, float] = {}
    notices = []
    for at_s, kind, node in changes:
        if kind == "add":
            came[node] = at_s
        else:
            notices.append((max(came.get(node, 0.0), at_s - notice_s), "notice", node))
    return iter(sorted([*changes, *notices], key=lambda each: each[0]))
