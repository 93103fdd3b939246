"""What the coordinator leaves behind: its state, as launchers keep it for the next coordinator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mainstay.recovery.controller.job import Job
from mainstay.recovery.controller.state.job_state import FIELDS
from mainstay.recovery.membership.members import NodeMember
from mainstay.recovery.protocol.coordinator_state import CANDIDATES, CoordinatorState, ElectionMember
from mainstay.recovery.protocol.messages import LauncherHello, ReplicateState

LEFT: Final = FIELDS.intersection(CoordinatorState.__struct_fields__)
"""Of the state: those that the next coordinator takes over as they are."""
SAID: Final = frozenset(LauncherHello.__struct_fields__).intersection(ElectionMember.__struct_fields__)
"""Of a launcher's hello: those that the next coordinator has to know."""


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
        **{name: getattr(job.state, name) for name in LEFT},
        term=job.term,
        version=version,
        electors=tuple(_member(node) for node in nodes),
        homes=tuple(index[rank.node] for rank in job.members.ranks),
        returns=job.history.returns,
        resumed=None if job.source is None else job.source.manifest.run,
        begun_at=job.begun_at,
        shape=job.members.shape,
        warnings=job.members.warnings,
        prices=dict(job.prices.seen),
        accuracy=job.calibration.strategies,
    )


def _member(node: NodeMember) -> ElectionMember:
    said = {name: getattr(node.hello, name) for name in SAID} | {"agent_endpoint": node.endpoint}
    return ElectionMember(**said, excluded=node.excluded, alive=node.alive)
