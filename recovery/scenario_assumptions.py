"""From a situation, rank by rank, to the cost inputs of its job, class by class, with what a situation does not say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from mainstay.recovery.cost_inputs import (
    CostInputs,
    FailureOdds,
    FaultKind,
    ProgramCapability,
    RollbackCosts,
    SpareCapacity,
    busiest_node_bytes,
)
from mainstay.recovery.cost_model.allocation import Tenant
from mainstay.recovery.cost_model.failure_cost import Repair
from mainstay.recovery.cost_model.iteration import IterationShape
from mainstay.recovery.cost_model.redundancy import RedundancyScheme
from mainstay.recovery.cost_model.resources import ScalingSample
from mainstay.recovery.planner_input import FailureCase, RankPlacement
from mainstay.recovery.save_intervals import NODE_MTBF_HOURS

_Inputs = TypeVar("_Inputs", CostInputs, FailureOdds, SpareCapacity)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioAssumptions:
    """What a scenario adds to its planner input, so that every recovery strategy can be weighed. Seconds, hours."""

    micro_batches: int
    """Of one pipeline in one step."""
    layers: int
    able: frozenset[ProgramCapability] = frozenset()
    fault: FaultKind | None = None
    """Left out: nodes if any is lost, else processes. ``slow`` and ``notice`` need ``concerns``."""
    concerns: tuple[int, ...] = ()
    """Ranks that are slow or will go."""
    speed: float = 1.0
    gpus: int = 1
    """Of a worker: of the ranks with equal dp and pp, together."""
    mtbf_hours: float = NODE_MTBF_HOURS
    """Between failures of one worker."""
    confidence: float = 1.0
    confirm_s: float = 0.0
    notice_s: float = 0.0
    single_copy_s: float = 600.0
    repairs: tuple[Repair, ...] = FailureOdds(worker_rate=0.0).repairs
    """(share, seconds) of each quantile."""
    detect_s: float = 0.026
    warm_up_s: float = 0.045
    restart_s: float = 0.0
    standby_after_s: float | None = None
    least_stages: int = 1
    room_bytes: float | None = None
    others: tuple[Tenant, ...] = ()
    schemes: tuple[RedundancyScheme, ...] = ()
    samples: tuple[ScalingSample, ...] = ()


def cost_inputs_of(case: FailureCase, assumptions: ScenarioAssumptions) -> CostInputs:
    """Workers are the ranks with equal dp and pp; one is lost with any of its ranks.

    A step is taken to be 1F1B with equal stages and a third of a slot each for forward, inputs and weights.

    Raises:
        ValueError: numbers that contradict one another; the message names what.
    """
    situation = case.situation
    shape = _shape(situation.ranks, assumptions.micro_batches)
    fault = assumptions.fault or (FaultKind.NODE if situation.lost_nodes else FaultKind.PROCESS)
    concerned = assumptions.concerns if fault in {FaultKind.SLOW, FaultKind.NOTICE} else case.failed
    if not concerned:
        raise ValueError("nothing failed: name lost_nodes, failed_ranks, or concerns with a fault of its own")
    wrong = next((rank for rank in concerned if not 0 <= rank < len(situation.ranks)), None)
    if wrong is not None:
        raise ValueError(f"concerns names rank {wrong}, which the job does not have")
    unknown = float("inf")
    lost = _lost(situation.ranks, concerned, shape.pp)
    return _filled(
        CostInputs,
        assumptions,
        shape=shape,
        slot_s=situation.step_seconds / shape.slots,
        state_bytes=busiest_node_bytes(concerned, [place.node for place in situation.ranks], situation.state_bytes),
        fault=fault,
        lost=lost,
        broken=len({situation.ranks[rank].dp for rank in concerned}),
        odds=_filled(FailureOdds, assumptions, worker_rate=_rate(assumptions.mtbf_hours)),
        held=_held(case, gone=sum(lost)),
        pool=_filled(
            SpareCapacity,
            assumptions,
            standbys=_there(situation.standbys, case.lost) // shape.tp,
            spares=_there(situation.cold, case.lost) // shape.tp,
            standby_after_s=unknown if assumptions.standby_after_s is None else assumptions.standby_after_s,
            room_bytes=unknown if assumptions.room_bytes is None else assumptions.room_bytes,
        ),
        costs=situation.costs,
    )


def _filled(kind: type[_Inputs], assumptions: ScenarioAssumptions, **worked_out: Any) -> _Inputs:
    """One of ``kind``: what is worked out, and for its other fields the assumptions of the same name."""
    given = {f.name: getattr(assumptions, f.name) for f in fields(kind) if hasattr(assumptions, f.name)}
    return kind(**given | worked_out)


def _rate(mtbf_hours: float) -> float:
    if not mtbf_hours > 0.0:
        raise ValueError(f"mtbf_hours is above 0, not {mtbf_hours:g}")
    return 1.0 / (3600.0 * mtbf_hours)


def _shape(ranks: tuple[RankPlacement, ...], micro_batches: int) -> IterationShape:
    """The full grid that the ranks make.

    Raises:
        ValueError: they make none.
    """
    cells = {(place.dp, place.pp, place.tp) for place in ranks}
    dp, pp, tp = (len(set(axis)) for axis in zip(*cells, strict=True))
    if len(cells) != dp * pp * tp or len(ranks) != dp * pp * tp:
        raise ValueError(f"ranks: {len(ranks)} ranks make no grid of dp {dp} x pp {pp} x tp {tp}")
    return IterationShape(dp=dp, pp=pp, micro_batches=micro_batches, tp=tp)


def _lost(ranks: tuple[RankPlacement, ...], concerned: Iterable[int], pp: int) -> tuple[int, ...]:
    cells = {(ranks[rank].dp, ranks[rank].pp) for rank in concerned}
    stages = sorted({place.pp for place in ranks})
    return tuple(sum(1 for _, stage in cells if stage == stages[i]) for i in range(pp))


def _there(rooms: dict[str, int], lost: frozenset[str]) -> int:
    return sum(count for node, count in rooms.items() if node not in lost)


def _held(case: FailureCase, gone: int) -> RollbackCosts:
    """Ages of what brings every failed rank back: the oldest of each one's newest, and half a step for the running one.

    Whether all can meet at one epoch is the situation's own plan's business.
    """
    situation, ranks = case.situation, case.failed
    home = {rank: situation.ranks[rank].node for rank in ranks}
    own = [_newest(slot.epoch for slot in case.slots[rank] if slot.node == home[rank]) for rank in ranks]
    elsewhere = [_newest(_elsewhere(case, rank, home[rank])) for rank in ranks]
    parity = [_newest(e for rows in case.rows(rank).values() for e in rows) for rank in ranks]
    disk = [_newest(held.epoch for held in case.disk[rank]) for rank in range(len(situation.ranks))]
    return RollbackCosts(
        local_s=_age(case, own),
        peer_s=_age(case, elsewhere),
        parity_s=_age(case, parity),
        parity_losses=gone if _borne(case) else min((row.parity for row in situation.parity), default=1),
        disk_s=_age(case, disk),
        replicated=situation.replicated,
    )


def _elsewhere(case: FailureCase, rank: int, home: str) -> list[int]:
    """Epochs of the rank's slots on other nodes than its own, its replicas' among them."""
    return [
        epoch
        for epoch, copies in case.copies(rank).items()
        if any(node != home or peer != rank for node, peers in copies.items() for peer in peers)
    ]


def _borne(case: FailureCase) -> bool:
    """Whether each group of a code lost no more than it bears."""
    failed = frozenset(case.failed)
    return all(len(failed.intersection(row.ranks)) <= row.parity for row in case.situation.parity)


def _newest(epochs: Iterable[int]) -> int | None:
    return max(epochs, default=None)


def _age(case: FailureCase, newest: Sequence[int | None]) -> float | None:
    """Seconds to repeat from the oldest of what each rank has; None where a rank has nothing."""
    held = [epoch for epoch in newest if epoch is not None]
    if not held or len(held) < len(newest):
        return None
    return (max(0, case.newest - min(held)) + 0.5) * case.situation.step_seconds
