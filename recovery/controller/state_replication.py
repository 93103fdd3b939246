"""What the coordinator leaves behind: its state, as launchers keep it for the next coordinator."""

from __future__ import annotations

from collections.abc import Iterator

from mainstay.recovery.controller.job import Job
from mainstay.recovery.protocol.coordinator_state import CANDIDATES, CoordinatorState, ElectionMember
from mainstay.recovery.protocol.messages import ReplicateState


def replicate_state(job: Job, versions: Iterator[int]) -> None:
    """Tell what is to be known when this coordinator dies, before every order that follows from it.

    Args:
        job: the job whose launchers keep the state.
        versions: gives each state its number, rising.
    """
    state, holder = capture_state(job, next(versions)), job.options.node
    endpoint = next((e.election_endpoint for e in state.electors if e.node == holder), "")
    for number, node in enumerate(sorted(job.members.alive(), key=lambda n: n.hello.node_rank)):
        will = state if number < CANDIDATES else None
        message = ReplicateState(term=job.term, holder=holder, election_endpoint=endpoint, coordinator_state=will)
        job.send(node, message)


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
