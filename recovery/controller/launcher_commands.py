"""What the coordinator tells launchers: to form a generation, to warm standbys, and what it leaves behind."""

from __future__ import annotations

from mainstay.recovery.controller.checkpointing import CheckpointManager
from mainstay.recovery.controller.job import Job
from mainstay.recovery.protocol.coordinator_state import CANDIDATES, CoordinatorState, ElectionMember
from mainstay.recovery.protocol.messages import (
    RegroupRank,
    ReplicateState,
    TrainingResumed,
)
from mainstay.recovery.protocol.worker_messages import Regroup


class LauncherCommands:
    """One a coordinator."""

    def __init__(self, job: Job, checkpoints: CheckpointManager) -> None:
        self._job = job
        job.replicate_state = self.replicate_state
        self._checkpoints = checkpoints
        self._coordinator_states = 0

    def replicate_state(self) -> None:
        """Tell what is to be known when this coordinator dies, before every order that follows from it."""
        self._coordinator_states += 1
        coordinator_state = capture_state(self._job, self._coordinator_states)
        election_endpoint = next(
            (e.election_endpoint for e in coordinator_state.electors if e.node == self._job.options.node), ""
        )
        for number, node in enumerate(sorted(self._job.members.alive(), key=lambda n: n.hello.node_rank)):
            will = coordinator_state if number < CANDIDATES else None
            self._job.send(
                node,
                ReplicateState(
                    term=self._job.term,
                    holder=self._job.options.node,
                    election_endpoint=election_endpoint,
                    coordinator_state=will,
                ),
            )

    def regroup(self, orders: dict[int, Regroup]) -> None:
        """Tell every rank to form the present generation; ``orders`` holds what they restore."""
        host, port = self._job.state.store
        # One digest at the very first step tells whether replicas are replicas: a job may shard its state among them.
        for rank in self._job.members.present:
            order = orders.get(rank.number) or Regroup(
                generation=self._job.state.generation,
                store_host=host,
                store_port=port,
                restore=self._checkpoints.first(rank.number),
                digest_steps=1,
            )
            self._job.send(self._job.members.nodes[rank.node], RegroupRank(rank=rank.number, order=order))

    def warm_standbys(self) -> None:
        """The first step after a recovery is committed: standbys may warm now."""
        for node in self._job.members.alive():
            self._job.send(node, TrainingResumed())


def capture_state(job: Job, version: int) -> CoordinatorState:
    """The coordinator's state as it stands now."""
    nodes = sorted(job.members.nodes.values(), key=lambda node: node.hello.node_rank)
    index = {node.name: i for i, node in enumerate(nodes)}
    return CoordinatorState(
        term=job.term,
        version=version,
        generation=job.state.generation,
        electors=tuple(
            ElectionMember(
                node=node.name,
                node_rank=node.hello.node_rank,
                nproc=node.hello.nproc,
                spares=node.hello.spares,
                pid=node.hello.pid,
                election_endpoint=node.hello.election_endpoint,
                agent_endpoint=node.endpoint,
                domain=node.hello.domain,
                excluded=node.excluded,
                alive=node.alive,
            )
            for node in nodes
        ),
        homes=tuple(index[rank.node] for rank in job.members.ranks),
        recoveries=job.state.recoveries,
        started_at=job.state.started_at,
        formed_once=job.state.formed_once,
        returns=job.history.returns,
        parameters_equal=job.state.parameters_equal,
        replicated=job.state.replicated,
        groups=job.state.groups,
        run=job.state.run,
        resumed=None if job.source is None else job.source.manifest.run,
        disk_every=job.state.disk_every,
        parity_every=job.state.parity_every,
        on_loss=job.state.on_loss,
        shape=job.members.shape,
        warnings=job.members.warnings,
        prices=job.prices.observed,
        accuracy=job.calibration.strategies,
    )
