"""A number of nodes that are fit for a job: by the rules of admission, close together, validated lately."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from mainstay.probes.core_types import HealthState, Verdict
from mainstay.service.admission.node_facts import FactsQuery
from mainstay.service.admission.responses import SelectedNodeResponse, SelectionResponse, UnfitNodes
from mainstay.service.admission.rules import AdmissionDecision, Reason, ReasonCode, reasons, worst
from mainstay.service.admission.schemas import SelectionIn
from mainstay.service.admission.service import request_of
from mainstay.service.common.db import AnySession
from mainstay.service.common.problem import UnprocessableError
from mainstay.service.fleet.directory import Fleet, FleetNode
from mainstay.service.services import Services

_TEXTS: Final = {
    ReasonCode.UNKNOWN_NODE: "not known",
    ReasonCode.SILENT: "not reporting",
    ReasonCode.SUSPECT: "suspect",
    ReasonCode.FINDING: "with a finding that evicts work",
    ReasonCode.NEVER_VALIDATED: "never validated",
    ReasonCode.VALIDATION_FAILED: "with a failed validation",
    ReasonCode.VALIDATION_UNKNOWN: "with an inconclusive validation",
    ReasonCode.VALIDATION_WARNED: "validated with a warning",
    ReasonCode.VALIDATION_WEAK: "validated with a weaker suite",
    ReasonCode.VALIDATION_OLD: "validated too long ago",
    ReasonCode.BEING_VALIDATED: "being validated",
    ReasonCode.TOO_FEW_GPUS: "with too few GPUs",
    ReasonCode.BUSY: "with jobs",
    ReasonCode.PAUSED: "paused",
}
_Bar = tuple[ReasonCode, HealthState | None]
_K = TypeVar("_K", bound=Hashable)


def select(session: AnySession, services: Services, body: SelectionIn, *, now: float) -> SelectionResponse:
    """Choose up to ``body.count`` fit nodes, and count why the others are not fit where these are fewer.

    Raises:
        UnknownSuiteError: the suite that is asked for does not exist.
        UnprocessableError: no node is in a rack or cohort that is asked for.
    """
    request, fleet = request_of(body, now, services.settings), services.fleet.current(session)
    names = _asked(fleet, body)
    facts = FactsQuery(session, services, names, request, body.job or "")
    clear, why = facts.clear(), dict[str, tuple[Reason, ...]]()
    unfit = Counter[_Bar]()
    if len(clear) < body.count:  # the others are judged only where they are needed
        for name, known in facts.notable().items():
            why[name] = reasons(known, request)
            if bar := _bar(why[name], degraded=body.degraded):
                unfit[bar.code, known.state if known and bar.code is ReasonCode.STATE else None] += 1
                del why[name]
        clear += [fleet.nodes[name] for name, found in why.items() if not found]
    chosen = pack(clear, body.count)
    degraded = [fleet.nodes[name] for name, found in why.items() if found]
    chosen += pack(degraded, body.count - len(chosen), beside=chosen)
    nodes = [_selected(node, why.get(node.name, ())) for node in chosen]
    few = len(nodes) < body.count
    told = _counted(unfit) if few else []
    return SelectionResponse(
        job=body.job,
        count=body.count,
        decision=AdmissionDecision.DENY if few else worst(node.decision for node in nodes),
        reason=_headline(chosen, body.count, told),
        considered=len(names),
        nodes=nodes,
        unfit=told,
        at=now,
    )


def _asked(fleet: Fleet, body: SelectionIn) -> list[str]:
    nodes, excluded = fleet.nodes.values(), set(body.exclude)
    racks = _known(body.racks, (node.rack for node in nodes), "rack")
    cohorts = _known(body.cohorts, (node.cohort for node in nodes), "cohort")
    return [
        node.name
        for node in nodes
        if (not racks or node.rack in racks) and (not cohorts or node.cohort in cohorts) and node.name not in excluded
    ]


def _known(wanted: Sequence[str], there: Iterable[str], what: str) -> frozenset[str]:
    found = frozenset(wanted)
    if missing := sorted(found.difference(there)):
        raise UnprocessableError(f"no node is in {what} {missing[0]!r}: correct the name or leave it out")
    return found


def _bar(why: Sequence[Reason], *, degraded: bool) -> Reason | None:
    """The first reason for which a node is not fit."""
    return next(
        (one for one in why if not degraded or one.decision is AdmissionDecision.DENY or one.code is ReasonCode.BUSY),
        None,
    )


def pack(nodes: Iterable[FleetNode], count: int, *, beside: Collection[FleetNode] = ()) -> list[FleetNode]:
    """Choose ``count`` nodes, or all: of one cohort and few racks where possible, then those validated last.

    Args:
        nodes: to choose from.
        count: how many are wanted.
        beside: nodes that are chosen already; their cohorts and racks come first.
    """
    racks, cohorts = {_rack(node) for node in beside}, {node.cohort for node in beside}
    latest = sorted(nodes, key=lambda node: (-(node.validated_at or 0.0), node.name))

    def of_racks(found: Sequence[FleetNode], wanted: int) -> Sequence[FleetNode]:
        return _draw(_groups(found, _rack), wanted, racks, lambda some, most: some[:most])

    return _draw(_groups(latest, lambda node: node.cohort), count, cohorts, of_racks)


def _rack(node: FleetNode) -> tuple[str, str]:
    """A node whose rack is not known shares it with no other."""
    return node.rack, "" if node.rack else node.name


def _groups(nodes: Iterable[FleetNode], key: Callable[[FleetNode], _K]) -> Mapping[_K, Sequence[FleetNode]]:
    found = defaultdict[_K, list[FleetNode]](list)
    for node in nodes:
        found[key(node)].append(node)
    return found


def _draw(
    groups: Mapping[_K, Sequence[FleetNode]],
    count: int,
    first: Collection[_K],
    draw: Callable[[Sequence[FleetNode], int], Sequence[FleetNode]],
) -> list[FleetNode]:
    """Whole groups, the largest first, until one covers the rest: the fewest groups. Of those that do, the best one."""
    chosen: list[FleetNode] = []
    order = sorted(groups, key=lambda key: (key not in first, -len(groups[key]), *_cost(groups[key])))
    for place, key in enumerate(order):
        wanted = count - len(chosen)
        if len(groups[key]) < wanted:
            chosen += groups[key]
        elif wanted > 0:
            alike = (other for other in order[place:] if (other in first) is (key in first))
            able = (groups[other] for other in alike if len(groups[other]) >= wanted)
            return [*chosen, *min((draw(some, wanted) for some in able), key=_cost)]
    return chosen


def _cost(nodes: Sequence[FleetNode]) -> tuple[int, float, str]:
    """Racks, then the age of the oldest validation, then the name."""
    oldest = min(node.validated_at or 0.0 for node in nodes)
    return len({_rack(node) for node in nodes}), -oldest, nodes[0].name


def _selected(node: FleetNode, why: tuple[Reason, ...]) -> SelectedNodeResponse:
    return SelectedNodeResponse(
        node=node.name,
        decision=worst(reason.decision for reason in why),
        reasons=why,
        state=HealthState(node.state),
        verdict=None if node.verdict is None else Verdict(node.verdict),
        suite=node.suite or None,
        validated_at=node.validated_at,
        rack=node.rack,
        cohort=node.cohort,
    )


def _counted(unfit: Counter[_Bar]) -> list[UnfitNodes]:
    return [
        UnfitNodes(code=code, state=state, nodes=nodes, text=f"{nodes:,} {_TEXTS.get(code) or _state(state)}")
        for (code, state), nodes in unfit.most_common()
    ]


def _state(state: HealthState | None) -> str:
    return "of unknown health" if state in {None, HealthState.UNKNOWN} else str(state)


def _headline(chosen: Sequence[FleetNode], count: int, unfit: Sequence[UnfitNodes]) -> str:
    """One sentence: how many, and where or why not."""
    if len(chosen) < count:
        others = ", ".join(one.text for one in unfit) or "none"
        return f"{len(chosen):,} of {count:,} nodes are fit; others: {others}"
    racks = {node.rack for node in chosen}
    told = f" in {_plural(len(racks), 'rack')}" if "" not in racks else ""
    told += f" of {_plural(len({node.cohort for node in chosen}), 'cohort')}"
    return f"found {_plural(count, 'fit node')}{told}"


def _plural(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"
