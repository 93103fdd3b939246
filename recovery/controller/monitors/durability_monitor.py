"""What is kept of the job, looked at again and again: how safe it is, whom not to trust, and what is done about it.

Every few seconds all agents are asked what they hold; from that comes the durability figure of the job report. A node
that is not trusted has its ranks' newest slots copied to others (``mainstay.recovery.agent.extra_copies``), while
no replica on a good node holds the same: it may die then, and costs no more than a step. Whom not to trust comes from
the service, in its answer to the job report, and from the agents: memory that flips bits is about to do worse.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import msgspec

from mainstay.recovery.agent.errors import AgentError
from mainstay.recovery.agent.messages import GetInventory, Group, GroupMember, Inventory
from mainstay.recovery.agent.peer import Credentials, open_peer
from mainstay.recovery.controller.job import Job, log
from mainstay.recovery.controller.monitors.corruption_tracker import CorruptionRecord, CorruptionTracker
from mainstay.recovery.controller.monitors.snapshot_corruption import CorruptionStats
from mainstay.recovery.controller.monitors.snapshot_inventory import JobLayout, SnapshotInventory, build_inventory
from mainstay.recovery.controller.participation import ParticipationPolicy
from mainstay.recovery.controller.planning.planner_input_builder import PlannerInputBuilder
from mainstay.recovery.controller.state.events import GroupsArranged
from mainstay.recovery.controller.state.job_state import JobPhase
from mainstay.recovery.durability import DurabilityEstimate, describe, durability, hourly
from mainstay.recovery.membership.grouping import arrange
from mainstay.recovery.node_warning import OWN_SECONDS, NodeWarning, read
from mainstay.recovery.placement import holders
from mainstay.recovery.protection_scheme import SchemeKind
from mainstay.recovery.protocol.messages import ConfigureJobParity

LOOK_SECONDS: Final = 2.0
"""Between looks; a look costs each agent one small message."""
ASKED_AT_ONCE: Final = 16
"""Agents: a thousand are asked within a look."""
FLIP_FACTOR: Final = 10.0
"""A node whose memory has flipped bits fails so many times as often: between the tenfold risk of a node with corrected
errors and the hundredfold of one that had several uncorrected ones. An assumption; it only orders nodes."""
_MOST_TOLD: Final = 32
"""Lines of degraded states in one report."""


class DurabilityMonitor:
    """One a coordinator."""

    def __init__(self, job: Job, participation: ParticipationPolicy, inputs: PlannerInputBuilder) -> None:
        self._job = job
        self._participation = participation
        self.corrupt_steps = CorruptionTracker(job, inputs)
        self._damages = CorruptionStats(job.reporter.event)
        self._exposed: tuple[str, ...] = ()
        """What may not be lost, as was last said."""
        self._extra_copies: dict[int, str] = {}
        """Rank -> node that keeps an extra copy of it."""
        self.inventories: dict[str, Inventory] = {}
        """Node -> what its agent held when it was last asked."""
        self.kept: SnapshotInventory | None = None
        """What agents held when they were last asked; None: not known yet."""
        self._figure: DurabilityEstimate | None = None
        self._looked_at = 0.0
        self._task: asyncio.Task[None] | None = None
        job.reporter.listen(self.answered)

    def protect(self) -> None:
        """Tell the agents who protects whom in this membership."""
        groups, exposed = arrange(self._job.members, self._job.options)
        if groups != self._job.state.groups:
            self._job.apply(GroupsArranged(groups=groups))
        for warning in exposed if exposed != self._exposed else ():
            log.warning("DEGRADED %s: %s", self._job.options.job, warning)
        self._exposed = exposed
        job, extra_copies = self._job, self.extra_copies()
        every, scheme = job.state.parity_every if groups else 0, str(job.options.protection)
        for node in job.members.alive():
            kept = extra_copies.get(node.name, ())
            job.send(node, ConfigureJobParity(groups=groups, every=every, scheme=scheme, extra_copies=kept))
        if self._task is None:  # from now on: keep looking
            self._task = job.spawn(self._run())

    # What is heard

    def answered(self, answer: Any) -> None:
        """The service's answer to a job report."""
        found = read(answer, self._job.members.nodes)
        if found is not None and not self._job.state.over:
            self.set_warnings(found)

    def set_warnings(self, found: dict[str, NodeWarning]) -> None:
        """These nodes, and no others, are not trusted, by an external report."""
        members = self._job.members
        before = members.warnings.reported or {}
        for node in found.keys() - before.keys():
            log.warning("HAZARD node %s: %s", node, found[node].reason)
        for node in before.keys() - found.keys():
            log.info("node %s is trusted again", node)
        closed = members.by_trust().cordoned
        self._job.warn(msgspec.structs.replace(members.warnings, reported=found))
        if {n: w.cordoned for n, w in found.items()} != {n: w.cordoned for n, w in before.items()}:
            self._job.replicate_state()
        self._participation.reopen(closed)
        if self._task is not None:
            verdicts = ((node, warning) for node, warning in found.items() if warning.corrupt)
            self.corrupt_steps.apply_verdicts(CorruptionRecord(n, w.since, w.reason) for n, w in verdicts)
        self._renew()

    def _renew(self) -> None:
        """Give new orders where other copies are wanted. Not in a recovery: it may be about to need the old ones."""
        quiet = self._job.state.phase is JobPhase.RUNNING and not self._job.active
        if quiet and self._choose() != self._extra_copies:
            self.protect()

    # Extra copies

    def extra_copies(self) -> dict[str, Group]:
        """Node -> ranks of which it is to keep extra copies. Called with every order to protect."""
        self._extra_copies = self._choose()
        members, found = self._job.members, dict[str, list[GroupMember]]()
        for rank, holder in sorted(self._extra_copies.items()):
            home = members.nodes[members.ranks[rank].node]
            found.setdefault(holder, []).append(GroupMember(node=home.name, endpoint=home.endpoint, rank=rank))
        return {node: tuple(extra_copies) for node, extra_copies in found.items()}

    def _choose(self) -> dict[int, str]:
        """A good node for each rank of a bad one, the same as before where it still is good."""
        members, warned = self._job.members, self._job.members.warnings.current()
        good = [n.name for n in members.alive() if n.name not in warned and n.endpoint]
        bad = {node: warning for node, warning in warned.items() if warning.factor > 1.0}
        chosen, load = dict[int, str](), Counter[str]()
        for rank in members.present:
            if rank.node not in bad or not members.nodes[rank.node].alive or self._replicated(rank.number, bad):
                continue
            free = [node for node in good if node not in self._holders(rank.number)]
            kept = self._extra_copies.get(rank.number)
            if free:
                best = kept if kept in free else min(free, key=lambda n: (load[n], self._together(n, rank.node), n))
                assert best is not None
                chosen[rank.number] = best
                load[best] += 1
        return chosen

    def _replicated(self, rank: int, bad: dict[str, NodeWarning]) -> bool:
        """Whether a good node holds the same state anyway."""
        members = self._job.members
        twins = next((ranks for ranks in self.replicas() if rank in ranks), ())
        peers = [members.ranks[twin] for twin in twins if not members.ranks[twin].away]
        return any(peer.node not in bad and members.nodes[peer.node].alive for peer in peers)

    def _holders(self, rank: int) -> set[str]:
        """Nodes that the scheme itself has keep the rank's slots: one arena cannot be two copies."""
        if self._job.options.protection.kind is not SchemeKind.COPIES:
            return set()
        group = next((g for g in self._job.state.groups if any(m.rank == rank for m in g)), ())
        place = next((at for at, member in enumerate(group) if member.rank == rank), None)
        kept = () if place is None else holders(self._job.options.protection, len(group), place)
        return {group[at].node for at in kept}

    def _together(self, node: str, other: str) -> bool:
        """Whether both fail together, as far as is known."""
        nodes, named = self._job.members.nodes, dict(self._job.options.domains)
        one, two = (named.get(name, nodes[name].hello.domain) for name in (node, other))
        return bool(one) and one == two

    def replicas(self) -> tuple[tuple[int, ...], ...]:
        """Ranks with equal state."""
        shape = self._job.members.shape
        if shape is None or not self._job.state.replicated or self._job.options.shard_snapshots:
            return ()
        return tuple({tuple(shape.dp_peers(rank)) for rank in range(shape.world_size)})

    # Looks

    async def _run(self) -> None:
        pool = ThreadPoolExecutor(ASKED_AT_ONCE, thread_name_prefix="mainstay-durability")
        try:
            while not self._job.state.over:
                await asyncio.sleep(LOOK_SECONDS)
                if self._job.state.phase is JobPhase.RUNNING and not self._job.active:
                    await self.refresh(pool)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    async def refresh(self, pool: ThreadPoolExecutor) -> None:
        """Ask all agents, judge, and tell."""
        job, loop = self._job, asyncio.get_running_loop()
        where = {node.name: node.endpoint for node in job.members.alive() if node.endpoint}
        shown = Credentials(job.options.snapshot_tls, job.options.job, job.state.generation)
        asked = [loop.run_in_executor(pool, _ask, endpoint, shown) for endpoint in where.values()]
        answers = dict(zip(where, await asyncio.gather(*asked), strict=True))
        if job.state.phase is not JobPhase.RUNNING or shown.generation != job.state.generation:
            return
        inventories = {node: told for node, told in answers.items() if told is not None}
        layout = self._layout()
        kept = await loop.run_in_executor(pool, build_inventory, layout, inventories)
        figure = None if kept.holding is None else await loop.run_in_executor(pool, durability, kept.holding)
        self.inventories = inventories
        self.note_damage(inventories)
        self.kept, self._figure, self._looked_at = kept, figure, time.time()
        self._renew()
        job.control.report()

    def note_damage(self, inventories: dict[str, Inventory]) -> None:
        """Hear all agents: memory that has flipped bits is not trusted for a while."""
        self._damages.note(inventories)
        for node, damage in self._damages.flipped(time.time() - OWN_SECONDS).items():
            reason = f"its memory flips bits: {damage.what}"
            warning = NodeWarning(reason=reason, factor=FLIP_FACTOR, since=damage.at)
            self._job.warn(self._job.members.warnings.note(node, warning))

    def _layout(self) -> JobLayout:
        job, bad = self._job, self._job.members.warnings.current()
        factors = {node.name: bad[node.name].factor if node.name in bad else 1.0 for node in job.members.alive()}
        twins = self.replicas()
        serving = {rank.number for rank in job.members.present}
        stand_ins = {rank: next((r for r in ranks if r in serving), rank) for ranks in twins for rank in ranks}
        return JobLayout(
            home=tuple(rank.node for rank in job.members.ranks),
            replicas=twins,
            scheme=job.options.protection,
            groups=tuple(tuple(member.rank for member in group) for group in job.state.groups),
            loss={node: hourly(job.options.mtbf_hours, factor) for node, factor in factors.items()},
            away={rank.number: stand_ins[rank.number] for rank in job.members.ranks if rank.away},
        )

    # Reports

    def report(self) -> dict[str, Any] | None:
        """The durability of the job as its report tells it; None before the first look."""
        kept, figure, job = self.kept, self._figure, self._job
        if kept is None:
            return None
        own = kept.disk if job.options.recovers_from_disk else None
        disk = max((e for e in (own, job.begun_at or None) if e is not None), default=None)
        nodes = [rank.node for rank in job.members.ranks]
        survival = None if figure is None else figure.survival
        return {
            "time": self._looked_at,
            "survival_hour": survival,
            "survival_hour_with_disk": 1.0 if disk is not None else survival,
            "exact": figure is not None and figure.exact,
            "description": describe(figure, nodes) if figure else f"Not known: {'; '.join(kept.unknown[:4])}.",
            "min_fatal_nodes": None if figure is None else figure.least,
            "fatal": [] if figure is None else [list(nodes) for nodes in figure.fatal],
            "newest": kept.newest,
            "parity_epoch": kept.protected,
            "disk_epoch": disk,
            "degraded": self._degraded()[:_MOST_TOLD],
            "suspects": self._suspected(),
            "corrupt_steps": self.corrupt_steps.report(),
            "scrub": self._damages.report(),
        }

    def _degraded(self) -> list[str]:
        _, exposed = arrange(self._job.members, self._job.options)
        told = [f"{node}: {words}" for node, held_ in sorted(self.inventories.items()) for words in held_.degraded]
        return [*exposed, *told]

    def _suspected(self) -> list[dict[str, Any]]:
        kept, ranks = self.kept, self._job.members.ranks
        extra = kept.holding.extra if kept and kept.holding else {}
        found = []
        for node, hazard in sorted(self._job.members.warnings.current().items()):
            here = [rank.number for rank in ranks if rank.node == node]
            in_place = [rank for rank in here if self._extra_copies.get(rank) in extra.get(rank, frozenset())]
            wanted = [rank for rank in here if rank in self._extra_copies]
            found.append(
                {
                    "node": node,
                    "reason": hazard.reason,
                    "factor": hazard.factor,
                    "since": hazard.since,
                    "ranks": here,
                    "copies_wanted": wanted,
                    "copies": in_place,
                }
            )
        return found


def _ask(endpoint: str, shown: Credentials) -> Inventory | None:
    """What an agent holds; None where it does not say."""
    try:
        with open_peer(endpoint, shown) as peer:
            return peer.call(GetInventory(), Inventory)
    except (AgentError, OSError, ValueError):
        return None
