"""Asks the service whether the job may use its nodes: before the first ranks start, and when a node comes back.

``--preflight`` checks the nodes after that, or before the question about a node that comes back.

What the service refuses takes no rank, as any node with a warning that is cordoned (decision 51). A service that is
down, slow, or older delays the start by seconds and refuses nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from mainstay.probes.transport import Transport, TransportError
from mainstay.recovery.admission import Admission, AdmissionPolicy, read
from mainstay.recovery.controller.job import Job, log
from mainstay.recovery.controller.participation import ParticipationPolicy
from mainstay.recovery.controller.planning.planner_input_builder import PlannerInputBuilder
from mainstay.recovery.controller.preflight import Preflight
from mainstay.recovery.membership.members import NodeMember
from mainstay.recovery.node_warning import NodeWarning, cordon

ASK_SECONDS: Final = 5.0
"""The check takes milliseconds; a job that waits longer for it would pay for every restart during an outage."""
VALIDATION_SECONDS: Final = 2.0
"""Between questions while the start waits for a validation; a node releases its GPUs within 5 s."""
RECHECK_SECONDS: Final = 30.0
"""Between questions about nodes that were refused: an operator who returns one to service waits no longer."""
_MOST_NAMED: Final = 8
"""Nodes in one line."""
_NOT_ANSWERED: Final = "the service has not answered the admission check yet"


class AdmissionGate:
    """One a coordinator."""

    def __init__(
        self, job: Job, participation: ParticipationPolicy, inputs: PlannerInputBuilder, form: Callable[[], None]
    ) -> None:
        self._job = job
        self._participation = participation
        self._inputs = inputs
        self._form = form
        options = job.options
        asks = options.service is not None and options.admission is not AdmissionPolicy.OFF
        self._transport = Transport(options.service or "", options.service_token) if asks else None
        self._enforces = asks and options.admission is AdmissionPolicy.ENFORCE
        self._opening = self._failed = False
        self.preflight = Preflight(job)

    # The start

    def open(self) -> None:
        """All nodes are here: form the job, or end it if those that are not refused lack places."""
        if self._transport is None and not self.preflight.wanted:
            self._form()
        elif not self._opening:
            self._opening = True
            self._job.spawn(self._open())

    async def _open(self) -> None:
        job, members, asked, loop = self._job, self._job.members, dict[str, NodeMember](), asyncio.get_running_loop()
        until = loop.time() + job.options.join_seconds
        while members.complete and not job.state.over:
            if asked != members.nodes:  # one may leave, and another come, meanwhile
                asked = dict(members.nodes)
                if self._transport is not None:
                    await self._check_start(asked)
                if self.preflight.wanted and not self._lacks_places:
                    await self.preflight.check_start()
            elif self._lacks_places and not members.full and loop.time() < until:
                await asyncio.sleep(VALIDATION_SECONDS)  # a spare node may come
            else:
                break
        self._opening = False
        if not members.complete or job.state.over:
            return
        if self._lacks_places:
            job.control.fail(self._no_room())
            return
        self._form()
        self._inputs.log_last_resort({rank.number: rank.node for rank in members.ranks})

    async def _check_start(self, nodes: Collection[str]) -> None:
        """Ask until no validation refuses a node, the others lack places anyway, or ``--join-timeout`` is over."""
        loop, waiting = asyncio.get_running_loop(), set[str]()
        until = loop.time() + self._job.options.join_seconds
        while (found := await self._ask(nodes)) is not None and self._enforces:
            self._warn(refused=_cordon(found.refused))
            if not found.validating or self._lacks_places or loop.time() >= until or self._job.state.over:
                break
            more = len(self._job.members.nodes) > len(nodes)
            if more or len(set(nodes) - found.refused.keys() - found.validating.keys()) >= self._job.options.nnodes:
                break
            if waiting != found.validating.keys():
                waiting = set(found.validating)
                log.warning("job %s waits for validations: %s", self._job.options.job, _named(found.validating))
            await asyncio.sleep(VALIDATION_SECONDS)
        if found is not None:
            self._log(found)
        if found is not None and self._enforces:
            warnings = self._job.members.warnings
            self._warn(refused={**warnings.refused, **_cordon(found.validating)})
            if warnings.reported is None:  # the response to the first job report follows within a second
                self._warn(reported={n: _suspect(reason) for n, reason in found.suspect.items()})

    def _warn(self, **changes: dict[str, NodeWarning]) -> None:
        self._job.warn(msgspec.structs.replace(self._job.members.warnings, **changes))

    @property
    def _lacks_places(self) -> bool:
        return self._job.members.places(last_resort=True) < self._job.options.world_size

    def _no_room(self) -> str:
        members, refused = self._job.members, self._job.members.warnings.refused
        found = {
            "the service refuses": {node: warning.reason for node, warning in refused.items()},
            "the preflight check refuses": self.preflight.bad,
        }
        named = " and ".join(f"{who} {_named(nodes)}" for who, nodes in found.items() if nodes)
        option = "--preflight warn" if self.preflight.bad else "--admission warn"
        return (
            f"{named}; the other nodes have {members.places(last_resort=True)} of "
            f"{self._job.options.world_size} places (see --standbys). Return the node to service, use another one, or "
            f"start with {option}"
        )

    # Later

    def rejoin(self, node: NodeMember) -> None:
        """A node came back to a job that runs: it takes a rank once it is checked and the service has answered."""
        if self.preflight.wanted:
            self.preflight.hold(node)
            self._job.replicate_state()
            self._job.spawn(self._rejoin_checked(node))
        else:
            self._rejoin(node)

    async def _rejoin_checked(self, node: NodeMember) -> None:
        if await self.preflight.check_node(node):
            self._rejoin(node)
        self._job.replicate_state()

    def _rejoin(self, node: NodeMember) -> None:
        if self._enforces:
            self._refuse({node.name: cordon(_NOT_ANSWERED), **self._job.members.warnings.refused})
        if self._job.members.can_run(node.name):
            self._participation.is_restored(node)
        else:  # it takes ranks later; its launcher has to know whom to follow now
            self._job.replicate_state()
        if self._transport is not None:
            self._job.spawn(self._check_again({node.name}))

    async def run(self) -> None:
        """Ask again about what is refused, so that a node which returned to service can take ranks."""
        if not self._enforces:
            self._warn(refused={})  # of the last coordinator, which had other options
        while self._enforces:
            await asyncio.sleep(RECHECK_SECONDS)
            refused = self._job.members.warnings.refused
            if refused and self._job.members.ranks:
                await self._check_again(set(refused))

    async def _check_again(self, nodes: Collection[str]) -> None:
        """Refused nodes stay so without an answer, except those whose first answer does not come."""
        found = await self._ask(nodes)
        before = self._job.members.warnings.refused
        if found is not None:
            self._log(found, {node: warning.reason for node, warning in before.items()})
        if not self._enforces:
            return
        if found is None:
            self._refuse({n: w for n, w in before.items() if n not in nodes or w.reason != _NOT_ANSWERED})
        else:
            others = {n: w for n, w in before.items() if n not in nodes}
            self._refuse(others | _cordon(found.refused | found.validating))

    def _refuse(self, refused: dict[str, NodeWarning]) -> None:
        members, before = self._job.members, self._job.members.warnings.refused
        closed = members.by_trust().cordoned
        self._warn(refused=refused)
        if refused.keys() != before.keys():
            self._job.replicate_state()
        self._participation.reopen(closed)

    # The service

    async def _ask(self, nodes: Collection[str]) -> Admission | None:
        """The service's answer; None, with one line in the log for an outage, where it does not give one in time."""
        assert self._transport is not None
        body = {"job": self._job.options.job, "nodes": sorted(nodes)}
        try:
            async with asyncio.timeout(ASK_SECONDS):
                answer = await asyncio.to_thread(self._transport.json, "POST", "/admission", body, read_s=ASK_SECONDS)
            found = read(answer)
        except TimeoutError:
            problem = f"no answer within {ASK_SECONDS:g} s"
        except (TransportError, msgspec.ValidationError) as error:
            problem = str(error)
        else:
            self._failed = False
            return found
        if not self._failed:
            log.warning("admission of job %s is unknown, the job continues: %s", self._job.options.job, problem)
        self._failed = True
        return None

    def _log(self, found: Admission, known: Mapping[str, str] = MappingProxyType({})) -> None:
        what = "it takes no rank" if self._enforces else "it takes ranks all the same (--admission warn)"
        for node, reason in (found.refused | found.validating).items():
            if reason != known.get(node):
                log.warning("the service refuses node %s, %s: %s", node, what, reason)
        if others := found.suspect | found.remarks:
            log.warning("admission of job %s with reservations: %s", self._job.options.job, _named(others))


def _suspect(reason: str) -> NodeWarning:
    return NodeWarning(reason=reason, factor=1.0, since=time.time())


def _cordon(found: Mapping[str, str]) -> dict[str, NodeWarning]:
    return {node: cordon(reason) for node, reason in found.items()}


def _named(found: Mapping[str, str]) -> str:
    named = [f"{node} ({reason})" for node, reason in sorted(found.items())[:_MOST_NAMED]]
    more = len(found) - len(named)
    return ", ".join(named) + (f", and {more} more" if more else "")
