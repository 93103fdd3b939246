"""The coordinator's side of ``--preflight``: nodes check their devices, and each other in pairs, before they get ranks.

A bad node takes no rank, as any node with a warning that is cordoned (decision 51). No node with a rank is checked.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import msgspec

from mainstay.detectors.localize.model import DeviceCheck, PairOutcome, PairResult
from mainstay.detectors.localize.preflight import PreflightFindings, compare_devices, compare_pairs, next_pairs
from mainstay.detectors.localize.topology import Endpoint
from mainstay.probes.benchmarks.pair_protocol import PAIR, PairTask, Role, bandwidths
from mainstay.probes.benchmarks.result import BenchmarkState
from mainstay.recovery.admission import AdmissionPolicy
from mainstay.recovery.controller.job import Job, log
from mainstay.recovery.membership.members import NodeMember
from mainstay.recovery.node_warning import NodeWarning, cordon
from mainstay.recovery.protocol.messages import CheckNode, NodeChecked
from mainstay.recovery.protocol.node_check_messages import GRACE_SECONDS, PAIR_SECONDS

BUDGET_SECONDS: Final = 10.0
"""Then bad pairs are not measured again. Without a fault, two or three rounds of 1 s are enough."""
SIZE: Final = 1 << 20
"""Bytes of a message: large enough for packets of full size, small enough for many repetitions in a second."""
PAIR_ANSWER_SECONDS: Final = PAIR_SECONDS + 2 * GRACE_SECONDS
"""A launcher ends what is later, and answers."""


class Preflight:
    """One a coordinator."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._options = options = job.options
        self.wanted = options.preflight is not AdmissionPolicy.OFF
        self._requests = itertools.count(1)
        self._answers: dict[int, list[NodeChecked]] = {}
        self._before: dict[str, NodeWarning] = {}
        """Warnings of nodes on hold: a check of seconds does not disprove them."""

    @property
    def bad(self) -> dict[str, str]:
        """Nodes that take no rank -> why."""
        own = self._job.members.warnings.own
        return {node: warning.reason for node, warning in own.items() if warning.cordoned}

    def answer(self, message: NodeChecked) -> None:
        """Accept the answer of a launcher; a late one has no reader."""
        if message.request in self._answers:
            self._answers[message.request].append(message)

    async def check_start(self) -> None:
        """Check all nodes, which have no rank yet."""
        begun, nodes = time.monotonic(), sorted(self._job.members.alive(), key=lambda node: node.hello.node_rank)
        answers = await self._check_devices(nodes)
        answered = time.monotonic()
        pairs = await self._measure_pairs([node for node in nodes if answers[node.name].devices])
        self._note(nodes, _compare(answers), compare_pairs(pairs))
        log.info(
            "preflight of job %s: %d nodes checked, devices in %.1f s, pairs in %.1f s",
            self._options.job, len(nodes), answered - begun, time.monotonic() - answered,
        )  # fmt: skip

    # A node that comes back to a job that runs

    def hold(self, node: NodeMember) -> None:
        """Keep ranks off the node until ``check_node`` has ended."""
        warnings = self._job.members.warnings
        own = warnings.own.get(node.name)
        if own is not None and not own.cordoned:
            self._before[node.name] = own
        self._job.warn(warnings.note(node.name, cordon("its preflight check has not ended yet")))

    async def check_node(self, node: NodeMember) -> bool:
        """Check the devices of the node; whether it may take ranks."""
        self._note([node], _compare(await self._check_devices([node])))
        return node.alive and node.name not in self.bad

    def _note(self, nodes: Sequence[NodeMember], *found: PreflightFindings) -> None:
        enforces, warnings = self._options.preflight is AdmissionPolicy.ENFORCE, self._job.members.warnings
        bad = self.bad
        what = "it takes no rank" if enforces else "it takes ranks all the same (--preflight warn)"
        for name in [node.name for node in nodes if node.alive]:
            reason = "; ".join(one.bad[name] for one in found if name in one.bad)
            if reason:
                log.warning("the preflight check finds node %s bad, %s: %s", name, what, reason)
            if reason and enforces:
                warnings = warnings.note(name, cordon(reason))
            elif name in bad:
                warnings = warnings.trust(name)
                if before := self._before.pop(name, None):
                    warnings = warnings.note(name, before)
        self._job.warn(warnings)
        for remark in [remark for one in found for remark in one.remarks]:
            log.warning("preflight of job %s: %s", self._options.job, remark)

    # Devices and pairs

    async def _check_devices(self, nodes: Sequence[NodeMember]) -> dict[str, NodeChecked]:
        """The answer of each node. It imports torch first, and has as much time for that as a node has to come."""
        seconds = self._options.join_seconds

        async def check(node: NodeMember) -> NodeChecked:
            with self._request(node, None) as request:
                answer = await self._receive(node, request, seconds)
            return answer or NodeChecked(request=request, problem=f"it gave no answer within {seconds:g} s")

        answers = await asyncio.gather(*map(check, nodes))
        return {node.name: answer for node, answer in zip(nodes, answers, strict=True)}

    async def _measure_pairs(self, nodes: Sequence[NodeMember]) -> list[PairResult]:
        until, results = time.monotonic() + BUDGET_SECONDS, list[PairResult]()
        known = {node.name: node for node in nodes}
        for turn in itertools.count(1):
            pairs = next_pairs(list(known), results, again=time.monotonic() < until)
            if not pairs:
                break
            results += await asyncio.gather(*(self._measure(known[a], known[b], turn) for a, b in pairs))
        return results

    async def _measure(self, a: NodeMember, b: NodeMember, turn: int) -> PairResult:
        """One transfer: ``a`` opens a port, then ``b`` connects to it."""
        task = PairTask(
            id=f"preflight-{turn}", kind="pair", validation_id="", benchmark=PAIR, role=Role.LISTEN, peer=b.name,
            address=_address(a), port=0, sizes=(SIZE,), seconds=PAIR_SECONDS, deadline_at=time.time(),
        )  # fmt: skip
        told: Sequence[NodeChecked | None] = ()
        with self._request(a, task) as listens:
            opened = await self._receive(a, listens, PAIR_ANSWER_SECONDS)
            if opened is not None and opened.port:
                task = msgspec.structs.replace(task, role=Role.CONNECT, peer=a.name, port=opened.port)
                with self._request(b, task) as connects:
                    both = (self._receive(n, r, PAIR_ANSWER_SECONDS) for n, r in ((a, listens), (b, connects)))
                    told = await asyncio.gather(*both)
        results = [answer.pair for answer in told if answer is not None and answer.pair is not None]
        speeds = [speed for result in results for speed in bandwidths(result).values()]
        outcome = PairOutcome.HUNG
        if any(result.state not in {BenchmarkState.OK, BenchmarkState.TIMEOUT} for result in results):
            outcome = PairOutcome.MISSING
        elif len(speeds) == 2:
            outcome = PairOutcome.OK
        note = "; ".join(result.error for result in results if result.error)
        return PairResult(
            a=Endpoint(a.name), b=Endpoint(b.name), outcome=outcome, round=turn, note=note,
            bandwidth={str(SIZE): max(speeds)} if outcome is PairOutcome.OK else {},
        )  # fmt: skip

    # Requests

    @contextmanager
    def _request(self, node: NodeMember, pair: PairTask | None) -> Iterator[int]:
        request = next(self._requests)
        self._answers[request] = []
        self._job.send(node, CheckNode(request=request, pair=pair))
        try:
            yield request
        finally:
            del self._answers[request]

    async def _receive(self, node: NodeMember, request: int, seconds: float) -> NodeChecked | None:
        """The next answer; None: none came in time, or the node is lost."""
        answers = self._answers[request]
        await self._job.until(lambda: bool(answers) or not node.alive, seconds)
        return answers.pop(0) if answers else None


def _compare(answers: dict[str, NodeChecked]) -> PreflightFindings:
    failed = {name: (DeviceCheck(device="node", problem=answer.problem),) for name, answer in answers.items()}
    return compare_devices({name: answer.devices or failed[name] for name, answer in answers.items()})


def _address(node: NodeMember) -> str:
    """Where other nodes reach this one."""
    return (node.hello.election_endpoint or node.endpoint).rpartition(":")[0].strip("[]")
