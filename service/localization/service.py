"""A fault localization from the request to the verdict: rounds of pairs, each a task for both of its nodes.

``mainstay.detectors.localize`` chooses the pairs and the culprit; here its state is a row, each pair two tasks
that nodes fetch by long poll, and a round ends when both sides of all its pairs have answered or its time is up.
Invariant: what a pair says is taken once, with its round, in one transaction; a side that never fetched its order, or
could not do its part, is missing, and only a transfer that both sides began and did not end counts against them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import or_, select, update

from mainstay.detectors.finding import join_names
from mainstay.detectors.localize import plan
from mainstay.detectors.localize.model import (
    LocalizationVerdict,
    NodePair,
    PairOutcome,
    PairResult,
    Round,
)
from mainstay.detectors.localize.topology import Endpoint, flat
from mainstay.probes.benchmarks.pair_protocol import PAIR, SIZES, TOOL_SIZES, PairTask, Role, bandwidths, scatters
from mainstay.probes.benchmarks.result import BenchmarkResult
from mainstay.probes.benchmarks.result import BenchmarkState as Ran
from mainstay.probes.core_types import HealthState
from mainstay.probes.core_types import Verdict as Status
from mainstay.probes.ids import uuid7
from mainstay.service.common.db import AnySession, WriteSession, is_one_of
from mainstay.service.common.problem import ConflictError, NotFoundError, UnprocessableError
from mainstay.service.common.rows import require_row
from mainstay.service.fleet.models import NodeRow
from mainstay.service.fleet.service import require_node
from mainstay.service.jobs import repository as jobs
from mainstay.service.jobs.occupancy import occupied_reason, require_idle
from mainstay.service.localization.document import DOCUMENT, Document
from mainstay.service.localization.models import LocalizationRow, LocalizationRunState, LocalizationTaskRow, SideState
from mainstay.service.localization.schemas import LocalizationCreate, PairReportIn
from mainstay.service.stream.changes import Topic, record_change
from mainstay.service.validation.models import NodeVerdictRow
from mainstay.service.validation.schemas import PairTaskRead

FEWEST: Final = 4
"""Nodes that can identify a slow one among them; with fewer of its own, a localization adds partners."""
MOST_PARTNERS: Final = 16
"""Partners that are added unless the request names them: idle machines, but not all of them."""
PAIR_SECONDS: Final = 60.0
"""What a transfer may take: three sizes, both directions, seconds each."""
ROUND_SECONDS: Final = 180.0
"""What a round may take with the fetching of its orders; a node polls every 25 s at the latest."""
FIRST_PORT: Final = 29_600
PORTS: Final = 1_000
"""A port of its own for each pair of a round: two nodes may be one machine."""
REDELIVER_SECONDS: Final = 30.0
"""A node that asks again so long after an order never got it."""
_OPEN: Final = (SideState.QUEUED.value, SideState.TAKEN.value)


class UnknownLocalizationError(NotFoundError):
    slug, title = "unknown-localization", "Unknown fault localization"


class UnknownOrderError(NotFoundError):
    slug, title = "unknown-task", "Unknown order"


class TooFewNodesError(UnprocessableError):
    slug, title = "too-few-nodes", "Too few nodes to tell"


class NodeMeasuringError(ConflictError):
    slug, title = "node-busy", "A node is in another fault localization"


def require(session: AnySession, localization_id: str) -> LocalizationRow:
    """Return the localization.

    Raises:
        UnknownLocalizationError: there is none with this id.
    """
    missing = UnknownLocalizationError(f"no fault localization has the id {localization_id!r}")
    return require_row(session, LocalizationRow, localization_id, missing)


def require_order(session: AnySession, order_id: str) -> LocalizationTaskRow:
    """One side of a pair.

    Raises:
        UnknownOrderError: there is none with this id.
    """
    missing = UnknownOrderError(f"no pair's order has the id {order_id!r}")
    return require_row(session, LocalizationTaskRow, order_id, missing)


def create(session: WriteSession, body: LocalizationCreate, *, now: float) -> LocalizationRow:
    """Begin, and order the first round.

    Raises:
        UnknownNodeError: a node, a partner, or the owner of an address is unknown.
        TooFewNodesError: with all partners there are fewer than three.
        NodeMeasuringError: a node's link is being measured by another localization.
        NodeOccupiedError: a job runs on a node, and the request does not allow it.
    """
    nodes = sorted(set(body.nodes))
    rows = [require_node(session, name) for name in nodes]
    wanted = sorted(set(body.partners) - set(nodes)) if body.partners is not None else _partners(session, rows)
    rows += [require_node(session, name) for name in wanted]
    for name in body.addresses:
        require_node(session, name)
    _check(session, [row.name for row in rows])
    if not body.allow_occupied:
        require_idle(jobs.by_node(session), [row.name for row in rows])
    good = _passed(session, wanted)
    switches = {row.name: tuple(row.switches) for row in rows}
    state = plan.start_localization(flat([row.name for row in rows], switches), known_good=good, suspects=nodes)
    made = LocalizationRow(
        id=uuid7(),
        state=LocalizationRunState.RUNNING.value,
        reason=body.reason,
        nodes=nodes,
        partners=wanted,
        addresses={row.name: body.addresses.get(row.name) or row.hostname or row.name for row in rows},
        round=0,
        document="",
        state_reason="begun",
        created_at=now,
        allow_occupied=body.allow_occupied,
    )
    session.add(made)
    session.flush()
    _go_on(session, made, Document(state, (), body.benchmark), now=now)
    return made


def _check(session: AnySession, names: Sequence[str]) -> None:
    if len(names) < 3:
        raise TooFewNodesError(
            f"{len(names)} nodes cannot tell which of them is slow, and no idle node of their cohort has a current"
            " PASS: name more nodes or partners"
        )
    running = select(LocalizationTaskRow.node).join(
        LocalizationRow, LocalizationRow.id == LocalizationTaskRow.localization_id
    )
    running = running.where(LocalizationRow.state == LocalizationRunState.RUNNING, LocalizationTaskRow.node.in_(names))
    busy = session.scalar(running.limit(1))
    if busy is not None:
        raise NodeMeasuringError(
            f"node {busy} is in another fault localization, and two at a time would slow each other: retry when it ends"
        )


def _passed(session: AnySession, names: Collection[str]) -> set[str]:
    statement = select(NodeVerdictRow.node).where(NodeVerdictRow.node.in_(names), NodeVerdictRow.verdict == Status.PASS)
    return set(session.scalars(statement))


def _partners(session: AnySession, rows: Sequence[NodeRow]) -> list[str]:
    """Healthy idle nodes of the same cohorts with a current PASS, those under the same switches first."""
    names = {row.name for row in rows}
    leaves = {row.switches[0] for row in rows if row.switches}
    statement = (
        select(NodeRow)
        .join(NodeVerdictRow, NodeVerdictRow.node == NodeRow.name)
        .where(
            NodeVerdictRow.verdict == Status.PASS,
            NodeRow.state == HealthState.HEALTHY,
            NodeRow.cohort.in_({row.cohort for row in rows}),
            NodeRow.name.not_in(names),
        )
        .order_by(NodeRow.name)
        .limit(4096)
    )
    at_work = jobs.by_node(session)
    idle = [row for row in session.scalars(statement) if not at_work.get(row.name)]
    idle.sort(key=lambda row: not (row.switches and row.switches[0] in leaves))
    most = max(FEWEST, min(MOST_PARTNERS, len(names)))
    return [row.name for row in idle[:most]]


def _go_on(session: WriteSession, row: LocalizationRow, document: Document, *, now: float) -> None:
    """Order the next round, or end with the verdict."""
    step = plan.next_round(document.state)
    document = msgspec.structs.replace(document, asked=step.pairs if isinstance(step, Round) else ())
    row.document = msgspec.json.encode(document).decode()
    if isinstance(step, LocalizationVerdict):
        _end(session, row, LocalizationRunState.DONE, _headline(step), now=now)
        row.verdict = msgspec.to_builtins(step, str_keys=True)
    else:
        row.round = step.number
        row.state_reason = f"round {step.number}: {len(step.pairs)} pairs are being measured"
        for position in range(len(step.pairs)):
            session.add_all(_sides(row, document, position, now))
    _tell(session, row)


def _headline(verdict: LocalizationVerdict) -> str:
    named = [culprit.summary for culprit in verdict.culprits]
    unknown = f"{len(verdict.unknown)} remain unknown" if verdict.unknown else ""
    if not named and not unknown:
        return f"no node is slow: {len(verdict.good)} nodes measured alike"
    return " ".join([*named, *([f"Of {join_names(sorted(verdict.unknown))}: {unknown}."] if unknown else [])])


def _sides(
    row: LocalizationRow, document: Document, position: int, now: float
) -> tuple[LocalizationTaskRow, LocalizationTaskRow]:
    """The two orders of a pair; who listens changes with the round, so that no node always does."""
    pair, sizes = document.asked[position], TOOL_SIZES.get(document.benchmark, SIZES)
    listens, connects = (pair.a, pair.b) if row.round % 2 else (pair.b, pair.a)

    def side(role: Role, own: Endpoint, other: Endpoint) -> LocalizationTaskRow:
        key = uuid7()
        order = PairTask(
            id=key, kind="pair", validation_id=key, benchmark=document.benchmark, role=role, peer=other.node,
            address=str(row.addresses[listens.node]), port=FIRST_PORT + position % PORTS, sizes=sizes, nic=own.nic,
            gpu=own.gpu, seconds=PAIR_SECONDS, deadline_at=now + ROUND_SECONDS,
        )  # fmt: skip
        return LocalizationTaskRow(
            id=key, localization_id=row.id, round=row.round, position=position, role=role.value, node=own.node,
            peer=other.node, state=SideState.QUEUED.value, order=msgspec.to_builtins(order), created_at=now,
            deadline_at=order.deadline_at,
        )  # fmt: skip

    return side(Role.LISTEN, listens, connects), side(Role.CONNECT, connects, listens)


def _end(session: WriteSession, row: LocalizationRow, state: LocalizationRunState, reason: str, *, now: float) -> None:
    row.state, row.state_reason, row.finished_at = state.value, reason, now
    left = update(LocalizationTaskRow).where(
        LocalizationTaskRow.localization_id == row.id, is_one_of(LocalizationTaskRow.state, _OPEN)
    )
    session.execute(left.values(state=SideState.EXPIRED.value).execution_options(synchronize_session=False))


def cancel(session: WriteSession, row: LocalizationRow, reason: str, *, now: float) -> None:
    """End it without a verdict. Orders that are out run for ``PAIR_SECONDS`` at most; what they say is left aside."""
    if row.state == LocalizationRunState.RUNNING:
        _end(session, row, LocalizationRunState.CANCELLED, f"cancelled: {reason}", now=now)
        _tell(session, row)


# what nodes fetch and answer


def nodes_with_orders(session: AnySession, nodes: Sequence[str], now: float) -> set[str]:
    """Which of the nodes have a pair to measure."""
    statement = select(LocalizationTaskRow.node).distinct().where(LocalizationTaskRow.node.in_(nodes), _waiting(now))
    return set(session.scalars(statement))


def _waiting(now: float) -> Any:
    lost = (LocalizationTaskRow.state == SideState.TAKEN) & (LocalizationTaskRow.taken_at <= now - REDELIVER_SECONDS)
    is_open = is_one_of(LocalizationTaskRow.state, _OPEN)
    return is_open & (LocalizationTaskRow.deadline_at > now) & or_(LocalizationTaskRow.state == SideState.QUEUED, lost)


def claim_node_tasks(
    session: WriteSession, node: str, occupied: Mapping[str, Sequence[str]], *, now: float
) -> list[PairTaskRead]:
    """Hand the node its side of each pair; if a job has begun there (``Occupancy.by_node``), its side is missing."""
    statement = select(LocalizationTaskRow).where(LocalizationTaskRow.node == node, _waiting(now))
    rows = list(session.scalars(statement.order_by(LocalizationTaskRow.created_at).limit(10)))
    why = occupied_reason(occupied, node)
    missing = BenchmarkResult(benchmark=PAIR, state=Ran.ERROR, error=why, seconds=0.0, device="", metrics=())
    for row in rows:
        row.state, row.taken_at = SideState.TAKEN.value, now
        if why and not session.get_one(LocalizationRow, row.localization_id).allow_occupied:
            row.state, row.result = SideState.DONE.value, msgspec.to_builtins(missing)
    return [PairTaskRead.model_validate(row.order) for row in rows if row.state == SideState.TAKEN]


def accept(
    session: WriteSession, side: LocalizationTaskRow, body: PairReportIn, *, now: float
) -> LocalizationRow | None:
    """Store the result of one side; the last one of a round starts the next. Repeated or late answers change nothing.

    Returns:
        The localization, if this answer went into it.

    Raises:
        UnprocessableError: it is of another benchmark, or ends before it begins.
    """
    wanted, got = side.order["benchmark"], body.result.benchmark
    if got not in (wanted, PAIR):
        raise UnprocessableError(f"the order was of benchmark {wanted!r}, the result is of {got!r}")
    if body.finished_at < body.started_at:
        raise UnprocessableError("finished_at is before started_at")
    # One answer at a time for each localization: two last answers would otherwise both wait for the other.
    row = session.get(LocalizationRow, side.localization_id, with_for_update=True)
    session.refresh(side)
    if side.state not in _OPEN:
        return None
    side.state, side.result = SideState.DONE.value, body.result.model_dump(mode="json")
    session.flush()
    if row is not None:
        _round_over(session, row, now=now)
    return row


def tick(session: WriteSession, *, now: float) -> list[LocalizationRow]:
    """Continue localizations with a round in which no side can answer any more, and return them."""
    statement = (
        select(LocalizationRow)
        .where(
            LocalizationRow.state == LocalizationRunState.RUNNING,
            LocalizationRow.id.not_in(
                select(LocalizationTaskRow.localization_id).where(
                    is_one_of(LocalizationTaskRow.state, _OPEN), LocalizationTaskRow.deadline_at > now
                )
            ),
        )
        .with_for_update()
    )
    late = list(session.scalars(statement))
    for row in late:
        _round_over(session, row, now=now)
    return late


def _round_over(session: WriteSession, row: LocalizationRow, *, now: float) -> None:
    """If the round is over, record it and start the next."""
    if row.state != LocalizationRunState.RUNNING:
        return
    sides = sides_of(session, row.id, row.round)
    if any(side.state in _OPEN and side.deadline_at > now for side in sides):
        return
    document = DOCUMENT.decode(row.document)
    results = [_result(pair, both) for pair, both in zip(document.asked, by_position(sides), strict=True)]
    for side in sides:
        if side.state in _OPEN:
            side.state = SideState.EXPIRED.value
    _go_on(session, row, msgspec.structs.replace(document, state=plan.record(document.state, results)), now=now)


def sides_of(session: AnySession, localization_id: str, number: int) -> list[LocalizationTaskRow]:
    statement = select(LocalizationTaskRow).where(
        LocalizationTaskRow.localization_id == localization_id, LocalizationTaskRow.round == number
    )
    return list(session.scalars(statement.order_by(LocalizationTaskRow.position, LocalizationTaskRow.role)))


def by_position(sides: Sequence[LocalizationTaskRow]) -> list[list[LocalizationTaskRow]]:
    """The sides of each pair, in order."""
    found: Mapping[int, list[LocalizationTaskRow]] = defaultdict(list)
    for side in sides:
        found[side.position].append(side)
    return [found[position] for position in sorted(found)]


def _result(pair: NodePair, sides: Sequence[LocalizationTaskRow]) -> PairResult:
    """What both sides together say."""
    told = [(side, msgspec.convert(side.result, BenchmarkResult) if side.result else None) for side in sides]
    if problem := next(filter(None, (_problem(side, result) for side, result in told)), None):
        return plan.missing(pair, problem[:300])
    results = [result for _, result in told if result is not None]
    measured_by = [result for result in results if result.state is Ran.OK]
    measured = _by_size(min, [*map(bandwidths, measured_by)])
    if measured and not any(result.state is Ran.TIMEOUT for result in results):
        scatter = _by_size(max, [*map(scatters, measured_by)])
        return PairResult(a=pair.a, b=pair.b, via=pair.via, bandwidth=measured, scatter=scatter)
    if measured_by and not measured:
        return plan.missing(pair, "measured nothing")
    note = "; ".join(f"{side.node}: {(result and result.error) or 'no answer in time'}" for side, result in told)
    return PairResult(a=pair.a, b=pair.b, via=pair.via, outcome=PairOutcome.HUNG, note=note[:300])


def _problem(side: LocalizationTaskRow, result: BenchmarkResult | None) -> str:
    """Why a side could not measure; empty where it measured, or ran out of time."""
    if result is None:
        return f"{side.node} did not fetch its task" if side.taken_at is None else ""
    if result.state in {Ran.UNSUPPORTED, Ran.ERROR}:
        return f"{side.node} could not measure: {result.error or result.state}"
    older = result.benchmark != side.order["benchmark"]
    return f"{side.node} runs an older node daemon, which measures TCP instead" if older else ""


def _by_size(choose: Callable[[Iterable[float]], float], sides: Sequence[dict[int, float]]) -> dict[str, float]:
    """Per size, one of both sides' figures."""
    sizes = sorted({size for side in sides for size in side})
    return {str(size): choose([side[size] for side in sides if size in side]) for size in sizes}


def _tell(session: WriteSession, row: LocalizationRow) -> None:
    told = {"id": row.id, "localization": row.id, "state": row.state, "round": row.round}
    record_change(session, Topic.VALIDATION, told)
