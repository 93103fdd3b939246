"""A localisation from the wish to the verdict: rounds of pairs, each ordered from both its nodes at once.

``detectors.localise`` decides who measures with whom and who is to blame; here its state is a row, each pair two orders
that nodes fetch by long poll, and a round ends when both sides of all its pairs have answered or its time is up.
Invariant: what a pair says is taken once, with its round, in one transaction; a side that never fetched its order, or
could not do its part, is missing, and only a transfer that both sides began and did not end counts against them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import func, or_, select, update

from detectors.localise import plan
from detectors.localise.model import Outcome, Pair, PairResult, Round, State, Verdict, some
from detectors.localise.topology import Place, flat
from probes.benchmarks.pairing import PAIR, SIZES, PairOrder, Role, bandwidths, scatters
from probes.benchmarks.result import BenchmarkResult
from probes.benchmarks.result import State as Ran
from probes.words import HealthState
from probes.words import Verdict as Standing
from service.fleet.models import NodeRow
from service.fleet.service import require_node
from service.jobs import repository as jobs
from service.kit.db import AnySession, WriteSession
from service.kit.ids import new_id
from service.kit.problem import ConflictError, NotFoundError, UnprocessableError
from service.stream.changes import Topic, record_change
from service.validation.localisation_models import (
    LocalisationOrderRow,
    LocalisationRow,
    LocalisationState,
    SideState,
)
from service.validation.localisation_schemas import LocalisationCreate, PairReportIn
from service.validation.models import NodeVerdictRow
from service.validation.pair_schemas import PairOrderRead

FEWEST: Final = 4
"""Nodes that can tell on each other; with fewer of its own, a localisation asks partners in."""
MOST_PARTNERS: Final = 16
"""Partners that are asked in unless somebody names them: idle machines, but not all of them."""
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


class Document(msgspec.Struct, frozen=True):
    """What ``LocalisationRow.document`` holds."""

    state: State
    asked: tuple[Pair, ...]
    """The round whose orders are out: another version of the planner would ask for others."""


class UnknownLocalisationError(NotFoundError):
    slug, title = "unknown-localisation", "Unknown localisation"


class UnknownOrderError(NotFoundError):
    slug, title = "unknown-order", "Unknown order"


class TooFewNodesError(UnprocessableError):
    slug, title = "too-few-nodes", "Too few nodes to tell"


class NodeMeasuringError(ConflictError):
    slug, title = "node-measuring", "A node is in another localisation"


def require(session: AnySession, localisation_id: str) -> LocalisationRow:
    """The localisation.

    Raises:
        UnknownLocalisationError: there is none with this id.
    """
    row = session.get(LocalisationRow, localisation_id)
    if row is None:
        raise UnknownLocalisationError(f"no localisation has the id {localisation_id!r}")
    return row


def require_order(session: AnySession, order_id: str) -> LocalisationOrderRow:
    """One side of a pair.

    Raises:
        UnknownOrderError: there is none with this id.
    """
    row = session.get(LocalisationOrderRow, order_id)
    if row is None:
        raise UnknownOrderError(f"no pair's order has the id {order_id!r}")
    return row


def create(session: WriteSession, body: LocalisationCreate, *, now: float) -> LocalisationRow:
    """Begin, and order the first round.

    Raises:
        UnknownNodeError: a node, partner or address is of nobody.
        TooFewNodesError: with all partners there are fewer than three.
        NodeMeasuringError: a node's link is being measured by another localisation.
    """
    nodes = sorted(set(body.nodes))
    rows = [require_node(session, name) for name in nodes]
    wanted = sorted(set(body.partners) - set(nodes)) if body.partners is not None else _partners(session, rows)
    rows += [require_node(session, name) for name in wanted]
    for name in body.addresses:
        require_node(session, name)
    _check(session, [row.name for row in rows])
    good = _passed(session, wanted)
    switches = {row.name: tuple(row.switches) for row in rows}
    state = plan.begin(flat([row.name for row in rows], switches), known_good=good, suspects=nodes)
    made = LocalisationRow(
        id=new_id(),
        state=LocalisationState.RUNNING.value,
        why=body.why,
        nodes=nodes,
        partners=wanted,
        addresses={row.name: body.addresses.get(row.name) or row.hostname or row.name for row in rows},
        round=0,
        document="",
        reason="begun",
        created_at=now,
    )
    session.add(made)
    session.flush()
    _go_on(session, made, state, now=now)
    return made


def _check(session: AnySession, names: Sequence[str]) -> None:
    if len(names) < 3:
        raise TooFewNodesError(
            f"{len(names)} nodes cannot tell which of them is slow, and no idle node of their cohort has a standing"
            " PASS: name more nodes or partners"
        )
    running = select(LocalisationOrderRow.node).join(
        LocalisationRow, LocalisationRow.id == LocalisationOrderRow.localisation_id
    )
    busy = session.scalar(
        running.where(LocalisationRow.state == LocalisationState.RUNNING, LocalisationOrderRow.node.in_(names)).limit(1)
    )
    if busy is not None:
        raise NodeMeasuringError(f"node {busy} is in another localisation: two at a time would slow each other")


def _passed(session: AnySession, names: Collection[str]) -> set[str]:
    statement = select(NodeVerdictRow.node).where(
        NodeVerdictRow.node.in_(names), NodeVerdictRow.verdict == Standing.PASS
    )
    return set(session.scalars(statement))


def _partners(session: AnySession, rows: Sequence[NodeRow]) -> list[str]:
    """Healthy idle nodes of the same cohorts with a standing PASS, those under the same switches first."""
    names = {row.name for row in rows}
    leaves = {row.switches[0] for row in rows if row.switches}
    statement = (
        select(NodeRow)
        .join(NodeVerdictRow, NodeVerdictRow.node == NodeRow.name)
        .where(
            NodeVerdictRow.verdict == Standing.PASS,
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


def _go_on(session: WriteSession, row: LocalisationRow, state: State, *, now: float) -> None:
    """Order the next round, or end with the verdict."""
    step = plan.next_round(state)
    asked = step.pairs if isinstance(step, Round) else ()
    row.document = msgspec.json.encode(Document(state=state, asked=asked)).decode()
    if isinstance(step, Verdict):
        _end(session, row, LocalisationState.DONE, _headline(step), now=now)
        row.verdict = msgspec.to_builtins(step, str_keys=True)
    else:
        row.round = step.number
        row.reason = f"round {step.number}: {len(step.pairs)} pairs are being measured"
        for position, pair in enumerate(step.pairs):
            session.add_all(_sides(row, step, position, pair, now))
    _tell(session, row)


def _headline(verdict: Verdict) -> str:
    named = [culprit.summary for culprit in verdict.culprits]
    unknown = f"{len(verdict.unknown)} could not be told" if verdict.unknown else ""
    if not named and not unknown:
        return f"nobody is slow: {len(verdict.good)} nodes measured alike"
    return " ".join([*named, *([f"Of {some(sorted(verdict.unknown))}: {unknown}."] if unknown else [])])


def _sides(
    row: LocalisationRow, step: Round, position: int, pair: Pair, now: float
) -> tuple[LocalisationOrderRow, LocalisationOrderRow]:
    """The two orders of a pair; who listens changes with the round, so that no node always does."""
    listens, connects = (pair.a, pair.b) if step.number % 2 else (pair.b, pair.a)

    def side(role: Role, own: Place, other: Place) -> LocalisationOrderRow:
        key = new_id()
        order = PairOrder(
            id=key, kind="pair", validation_id=key, benchmark=PAIR, role=role, peer=other.node,
            address=str(row.addresses[listens.node]), port=FIRST_PORT + position % PORTS, sizes=SIZES, nic=own.nic,
            gpu=own.gpu, seconds=PAIR_SECONDS, deadline_at=now + ROUND_SECONDS,
        )  # fmt: skip
        return LocalisationOrderRow(
            id=key, localisation_id=row.id, round=step.number, position=position, role=role.value, node=own.node,
            peer=other.node, state=SideState.QUEUED.value, order=msgspec.to_builtins(order), created_at=now,
            deadline_at=order.deadline_at,
        )  # fmt: skip

    return side(Role.LISTEN, listens, connects), side(Role.CONNECT, connects, listens)


def _end(session: WriteSession, row: LocalisationRow, state: LocalisationState, reason: str, *, now: float) -> None:
    row.state, row.reason, row.finished_at = state.value, reason, now
    left = update(LocalisationOrderRow).where(
        LocalisationOrderRow.localisation_id == row.id, LocalisationOrderRow.state.in_(_OPEN)
    )
    session.execute(left.values(state=SideState.EXPIRED.value).execution_options(synchronize_session=False))


def cancel(session: WriteSession, row: LocalisationRow, reason: str, *, now: float) -> None:
    """End it without a verdict. Orders that are out run for ``PAIR_SECONDS`` at most; what they say is left aside."""
    if row.state == LocalisationState.RUNNING:
        _end(session, row, LocalisationState.CANCELLED, f"called off: {reason}", now=now)
        _tell(session, row)


# what nodes fetch and answer


def nodes_with_orders(session: AnySession, nodes: Sequence[str], now: float) -> set[str]:
    """Which of the nodes have a pair to measure."""
    statement = select(LocalisationOrderRow.node).distinct().where(LocalisationOrderRow.node.in_(nodes), _waiting(now))
    return set(session.scalars(statement))


def _waiting(now: float) -> Any:
    lost = (LocalisationOrderRow.state == SideState.TAKEN) & (LocalisationOrderRow.taken_at <= now - REDELIVER_SECONDS)
    return (LocalisationOrderRow.deadline_at > now) & or_(LocalisationOrderRow.state == SideState.QUEUED, lost)


def take_orders(session: WriteSession, node: str, *, now: float) -> list[PairOrderRead]:
    """Hand the node its side of each pair."""
    statement = select(LocalisationOrderRow).where(LocalisationOrderRow.node == node, _waiting(now))
    rows = list(session.scalars(statement.order_by(LocalisationOrderRow.created_at).limit(10)))
    for row in rows:
        row.state, row.taken_at = SideState.TAKEN.value, now
    return [PairOrderRead.model_validate(row.order) for row in rows]


def accept(
    session: WriteSession, side: LocalisationOrderRow, body: PairReportIn, *, now: float
) -> LocalisationRow | None:
    """Take what a side measured; with the last side of a round, go on. A repetition or a late answer changes nothing.

    Returns:
        The localisation, if this answer went into it.

    Raises:
        UnprocessableError: it is of another benchmark, or ends before it begins.
    """
    if body.result.benchmark != PAIR:
        raise UnprocessableError(f"the order was of benchmark {PAIR!r}, the result is of {body.result.benchmark!r}")
    if body.finished_at < body.started_at:
        raise UnprocessableError("finished_at is before started_at")
    # One at a time for each localisation: two last answers would otherwise both wait for the other.
    row = session.get(LocalisationRow, side.localisation_id, with_for_update=True)
    session.refresh(side)
    if side.state not in _OPEN:
        return None
    side.state, side.result = SideState.DONE.value, body.result.model_dump(mode="json")
    session.flush()
    if row is not None:
        _round_over(session, row, now=now)
    return row


def tick(session: WriteSession, *, now: float) -> list[LocalisationRow]:
    """Go on with rounds whose time is up; their localisations."""
    statement = (
        select(LocalisationRow)
        .where(
            LocalisationRow.state == LocalisationState.RUNNING,
            LocalisationRow.id.in_(
                select(LocalisationOrderRow.localisation_id).where(
                    LocalisationOrderRow.state.in_(_OPEN), LocalisationOrderRow.deadline_at <= now
                )
            ),
        )
        .with_for_update()
    )
    late = list(session.scalars(statement))
    for row in late:
        _round_over(session, row, now=now)
    return late


def _round_over(session: WriteSession, row: LocalisationRow, *, now: float) -> None:
    """If the round is over, record it and go on."""
    if row.state != LocalisationState.RUNNING:
        return
    sides = sides_of(session, row.id, row.round)
    if any(side.state in _OPEN and side.deadline_at > now for side in sides):
        return
    document = msgspec.json.decode(row.document, type=Document)
    results = [_result(pair, both) for pair, both in zip(document.asked, _by_position(sides), strict=True)]
    for side in sides:
        if side.state in _OPEN:
            side.state = SideState.EXPIRED.value
    _go_on(session, row, plan.record(document.state, results), now=now)


def sides_of(session: AnySession, localisation_id: str, number: int) -> list[LocalisationOrderRow]:
    statement = select(LocalisationOrderRow).where(
        LocalisationOrderRow.localisation_id == localisation_id, LocalisationOrderRow.round == number
    )
    return list(session.scalars(statement.order_by(LocalisationOrderRow.position, LocalisationOrderRow.role)))


def _by_position(sides: Sequence[LocalisationOrderRow]) -> list[list[LocalisationOrderRow]]:
    found: Mapping[int, list[LocalisationOrderRow]] = defaultdict(list)
    for side in sides:
        found[side.position].append(side)
    return [found[position] for position in sorted(found)]


def _result(pair: Pair, sides: Sequence[LocalisationOrderRow]) -> PairResult:
    """What both sides together say."""
    told = [(side, msgspec.convert(side.result, BenchmarkResult) if side.result else None) for side in sides]
    for side, result in told:
        if side.taken_at is None and result is None:
            return plan.missing(pair, f"{side.node} did not fetch its order")
        if result is not None and result.state in {Ran.UNSUPPORTED, Ran.ERROR}:
            return plan.missing(pair, f"{side.node} could not measure: {result.error or result.state}"[:300])
    measured_by = [result for _, result in told if result is not None and result.state is Ran.OK]
    speeds = [bandwidths(result) for result in measured_by]
    scatter = _widest([scatters(result) for result in measured_by])
    measured = {str(size): min(s[size] for s in speeds if size in s) for size in sorted({k for s in speeds for k in s})}
    whole = len(speeds) == len(sides) or not any(r is not None and r.state is Ran.TIMEOUT for _, r in told)
    if measured and whole:
        return PairResult(a=pair.a, b=pair.b, via=pair.via, bandwidth=measured, scatter=scatter)
    if speeds and not measured:
        return plan.missing(pair, "measured nothing")
    notes = [f"{side.node}: {(r.error if r is not None else None) or 'no answer in time'}" for side, r in told]
    return PairResult(a=pair.a, b=pair.b, via=pair.via, outcome=Outcome.HUNG, note="; ".join(notes)[:300])


def _widest(sides: Sequence[dict[int, float]]) -> dict[str, float]:
    """Per size the larger of both sides' scatter."""
    sizes = sorted({size for side in sides for size in side})
    return {str(size): max(side[size] for side in sides if size in side) for size in sizes}


def running(session: AnySession) -> int:
    """How many are under way."""
    statement = select(func.count()).where(LocalisationRow.state == LocalisationState.RUNNING)
    return session.scalar(statement) or 0


def _tell(session: WriteSession, row: LocalisationRow) -> None:
    told = {"id": row.id, "localisation": row.id, "state": row.state, "round": row.round}
    record_change(session, Topic.VALIDATION, told)
