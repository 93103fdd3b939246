"""Whether this coordinator may act: only while no other can have been chosen behind its back.

Another one needs the votes of ``--quorum`` launchers, and none votes that has answered a beat within
``LEASE`` x ``--node-timeout``, counted from when the beat was sent. So the launchers that have not answered, and are
not known to have ended, must be fewer than the quorum. A coordinator of which that does not hold ends its ranks and
says nothing of the job: where it stands is another's to say. Its own launcher votes for no other meanwhile.
"""

from __future__ import annotations

import asyncio
from typing import Final

from mainstay.recovery.controller.job import Job
from mainstay.recovery.membership.election_server import CoordinatorQuery, RequestStatus, send_election_request
from mainstay.recovery.membership.members import NodeMember

LEASE: Final = 0.8
"""Of the node time-out, which has ten looks at it; the rest is for ranks to end before another coordinator begins."""


class CoordinatorLease:
    """One a coordinator."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._busy = asyncio.Lock()

    def unknown(self, generation: int = 0) -> list[NodeMember]:
        """Nodes that might follow another coordinator: without a lease, or without a fence at ``generation``."""
        now = asyncio.get_running_loop().time()
        return [
            node
            for node in self._job.members.nodes.values()
            if node.name != self._job.options.node
            and not self._job.connections[node.name].ended
            and (not node.alive or self._job.connections[node.name].leased_until < now or node.fenced < generation)
        ]

    async def check(self, generation: int = 0) -> bool:
        """Whether it may act; resigns where it may not."""
        job = self._job
        async with self._busy:
            if job.state.inheriting or not job.members.ranks or len(self.unknown(generation)) < job.options.quorum:
                return not job.state.over
            lost = [node for node in self.unknown() if not node.alive]
            call = CoordinatorQuery(job=job.options.job, term=job.term)
            seconds, tls = job.options.node_seconds / 10, job.options.control_tls
            asked = [send_election_request(node.hello.election_endpoint, call, tls, seconds) for node in lost]
            for node, found in zip(lost, await asyncio.gather(*asked), strict=True):
                job.connections[node.name].ended = found is RequestStatus.REFUSED
            away = self.unknown(generation)
        if len(away) < job.options.quorum or job.state.over:
            return not job.state.over
        names = ", ".join(sorted(node.name for node in away))
        job.control.resign(
            f"nothing is known of {names}: {len(away)} of {job.options.max_nodes} launchers may have chosen another "
            f"coordinator (--quorum {job.options.quorum})"
        )
        return False
