"""Event and state in, effects out: the only module that changes the state of a job.

It has no clock, no I/O, and no chance: the same events from the same beginning give the same state and effects, which
is what ``mainstay replay-job`` checks. It changes the state in place: a job of 16,384 ranks commits thousands of steps
a second, and a copy for each would cost more than all the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import msgspec

from mainstay.recovery.controller.state import events
from mainstay.recovery.controller.state.effects import Effect, ReplicateJobState, SendToLauncher
from mainstay.recovery.controller.state.job_state import FIELDS, TRANSITIONS, JobState
from mainstay.recovery.membership.members import NodeMember, RankMember
from mainstay.recovery.mesh_shape import MeshShape
from mainstay.recovery.protocol.messages import AgentUp, Fenced, FenceNode, StandbysReady, StartRank, WorkerUp
from mainstay.recovery.protocol.worker_messages import (
    Attached,
    CollectiveFailed,
    Joined,
    RankDone,
    Ready,
    Resumed,
    ScriptFailed,
    StepRecord,
    StepsTotal,
)

Effects = list[Effect]


def reduce(state: JobState, event: events.JobEvent) -> Effects:
    """Change ``state`` by ``event``; gives what must be done about it, in this order."""
    return _REDUCERS[type(event)](state, event) or []


# Nodes


def _node_joined(state: JobState, event: events.NodeJoined) -> None:
    hello = event.hello
    # Its generation begins now: a recovery that is under way waits for nothing of it.
    fenced = 0 if state.inheriting else state.generation
    state.members.nodes[hello.node] = NodeMember(hello, hello.agent_endpoint, hello.standbys, fenced=fenced)


def _node_lost(state: JobState, event: events.NodeLost) -> None:
    state.members.nodes[event.node].alive = False


def _node_forgotten(state: JobState, event: events.NodeForgotten) -> None:
    del state.members.nodes[event.node]


def _launcher_message_received(state: JobState, event: events.LauncherMessageReceived) -> None:
    node, members = state.members.nodes[event.node], state.members
    match event.message:
        case AgentUp(endpoint=endpoint):
            node.endpoint = endpoint
        case StandbysReady(count=count):
            node.standbys = count
        case Fenced(generation=generation, inventory=inventory):
            if generation >= node.fenced:  # an answer that comes after a newer one says nothing
                node.fenced, node.inventory = generation, inventory
        case WorkerUp(rank=rank, pid=pid):
            if rank < len(members.ranks):
                members.ranks[rank].pid = pid


def _warnings_changed(state: JobState, event: events.WarningsChanged) -> None:
    state.members.warnings = event.warnings


# Ranks


def _rank_message_received(state: JobState, event: events.RankMessageReceived) -> None:
    rank, current = state.members.ranks[event.rank], state.generation
    match event.message:
        case Ready() as ready if ready.generation == current:
            rank.ready = ready
        case Resumed() as resumed if resumed.generation == current:
            rank.resumed = resumed
            if resumed.ok:
                rank.live, rank.epoch = True, resumed.epoch
        case StepRecord() as step:
            _step_committed(rank, step, current)
        case CollectiveFailed(generation=generation) if generation == current:
            rank.troubled = True
        case Joined() as joined:
            _joined(state, rank, joined, event.at)
        case Attached() | StepsTotal() | RankDone() | ScriptFailed() as said:
            _told(state, rank, said)
        case _:
            pass  # of a generation that is over


def _step_committed(rank: RankMember, step: StepRecord, current: int) -> None:
    rank.epoch = max(rank.epoch, step.epoch)
    if step.generation == current:
        rank.epoch, rank.epoch_generation = step.epoch, step.generation
        if step.digest is not None:
            rank.digests[step.epoch], rank.buffers[step.epoch] = (step.digest, step.optimizer or 0), step.buffers or 0


def _joined(state: JobState, rank: RankMember, joined: Joined, at: float) -> None:
    state.members.shape = MeshShape(dp=joined.dp, pp=joined.pp, tp=joined.tp, depths=joined.depths)
    rank.joined, rank.joined_at = joined.generation, at


def _told(state: JobState, rank: RankMember, said: Attached | StepsTotal | RankDone | ScriptFailed) -> None:
    """What a rank says once, in whichever generation."""
    match said:
        case Attached():
            rank.attached = said
        case StepsTotal(total=total):
            state.steps_total = total
        case RankDone(epoch=epoch):
            rank.done, rank.epoch = True, epoch
        case ScriptFailed():
            rank.error = said


def _process_ended(state: JobState, event: events.ProcessEnded) -> None:
    state.members.ranks[event.rank].pid = None


def _rank_finished(state: JobState, event: events.RankFinished) -> None:
    state.members.ranks[event.rank].finished = True


def _ranks_lost(state: JobState, event: events.RanksLost) -> None:
    for number in event.ranks:
        state.members.ranks[number].lost, state.members.ranks[number].live = True, False


def _ranks_assigned(state: JobState, event: events.RanksAssigned) -> Effects:
    state.generation, state.started_at = 1, event.started_at
    _make_ranks(state, event.homes)
    return [ReplicateJobState(), *_starts(state, range(len(event.homes)))]


def _make_ranks(state: JobState, homes: Collection[str]) -> None:
    state.members.ranks = [RankMember(number, home) for number, home in enumerate(homes)]
    state.members.absent = ()


def _ranks_unplaced(state: JobState, event: events.RanksUnplaced) -> None:
    unplaced = set(event.ranks)
    for rank in state.members.ranks:
        rank.unplaced = rank.number in unplaced


def _rank_started(state: JobState, event: events.RankStarted) -> Effects:
    rank = state.members.ranks[event.rank]
    rank.unplaced = False
    _replace_process(rank, event.node)
    return _starts(state, [event.rank])


def _replace_process(rank: RankMember, node: str) -> None:
    """A new process will hold ``rank`` on ``node``: what the old one said is not its word."""
    rank.node, rank.pid, rank.lost = node, None, False
    rank.live = rank.done = rank.finished = rank.troubled = False
    rank.joined, rank.ready, rank.resumed, rank.error = 0, None, None, None


def _starts(state: JobState, ranks: Collection[int]) -> Effects:
    """Have the nodes of ``ranks`` give them a process."""
    shape, (host, port) = state.members.shape, state.store
    told = shape or state
    depths = () if shape is None else shape.depths
    world_size = len(state.members.ranks)
    return [
        SendToLauncher(
            node=state.members.ranks[rank].node,
            message=StartRank(
                rank=rank, generation=state.generation, store_host=host, store_port=port,
                dp=told.dp, pp=told.pp, tp=told.tp, depths=depths, world_size=world_size,
            ),
        )
        for rank in ranks
    ]  # fmt: skip


def _participation_chosen(state: JobState, event: events.ParticipationChosen) -> None:
    here = None if event.ranks is None else set(event.ranks)
    for rank in state.members.ranks:
        if here is None or rank.number in here:
            rank.away = 0
        else:
            rank.away, rank.live = rank.away or state.generation, False
    state.members.absent = tuple(rank.number for rank in state.members.ranks if rank.away)


# Generations


def _generation_begun(state: JobState, _: events.GenerationBegun) -> None:
    state.generation += 1


def _generation_fenced(state: JobState, event: events.GenerationFenced) -> Effects:
    members, exclude = state.members, set(event.exclude)
    fences: Effects = []
    for node, here in members.alive_with_ranks():
        # A lost rank may have no place and a process that lives: on a node that is left.
        doomed = tuple(rank.number for rank in here if rank.number in event.homes or rank.lost)
        excluded = tuple(rank.number for rank in here if rank.number in exclude)
        node.inventory, node.warm = None, node.standbys
        node.excluded += len(excluded)
        fence = FenceNode(generation=state.generation, kill=doomed, exclude=excluded)
        fences.append(SendToLauncher(node=node.name, message=fence))
    for number, home in event.homes.items():
        _replace_process(members.ranks[number], home)
    for rank in members.ranks:
        rank.ready = rank.resumed = None
        rank.troubled = False
        rank.digests.clear()
        rank.buffers.clear()
    return [ReplicateJobState(), *fences, *_starts(state, sorted(event.homes))]


def _last_save_begun(state: JobState, _: events.LastSaveBegun) -> Effects:
    state.generation += 1
    for node in state.members.alive():
        node.inventory = None
    return _end_all(state, last=True)


def _end_all(state: JobState, *, last: bool = False) -> Effects:
    members, effects = state.members, Effects()
    for node, here in members.alive_with_ranks():
        doomed = tuple(rank.number for rank in here)
        fence = FenceNode(generation=state.generation, kill=doomed, last=last)
        effects.append(SendToLauncher(node=node.name, message=fence))
    return effects


def _shape_changed(state: JobState, event: events.ShapeChanged) -> Effects:
    effects = _end_all(state)  # by the numbers that they have: the new ones are others
    if not event.shape.depths:  # pipelines of unlike depth have no peer to compare with: what was known holds
        state.replicated, state.parameters_equal = None, True
    state.members.shape, state.formed_once = event.shape, False
    _make_ranks(state, event.homes)
    state.groups, state.run = (), event.run
    return effects


def _training_formed(state: JobState, _: events.TrainingFormed) -> None:
    state.formed_once = True


def _phase_changed(state: JobState, event: events.PhaseChanged) -> None:
    assert event.phase in TRANSITIONS[state.phase], f"{state.phase} -> {event.phase} is not in the table"
    state.phase = event.phase
    if not TRANSITIONS[event.phase]:
        state.finished_at = event.at


def _failure_counted(state: JobState, _: events.FailureCounted) -> None:
    state.recoveries += 1


def _store_opened(state: JobState, event: events.StoreOpened) -> None:
    state.store = event.host, event.port


# Fields


def _take(state: JobState, given: msgspec.Struct) -> None:
    """What ``given`` says of fields of the state; None: as before."""
    for name in FIELDS.intersection(given.__struct_fields__):
        if (value := getattr(given, name)) is not None:
            setattr(state, name, value)


# Takeover


def _takeover_started(state: JobState, event: events.TakeoverStarted) -> None:
    known, members = event.state, state.members
    for elector, hello in zip(known.electors, event.hellos, strict=True):
        absent = NodeMember(hello, hello.agent_endpoint, 0, alive=False, excluded=elector.excluded)
        members.nodes[elector.node] = absent
    _make_ranks(state, [known.electors[home].node for home in known.homes])
    for rank in members.ranks:
        rank.lost = True
    members.warnings, members.shape = known.warnings, known.shape
    _take(state, known)
    state.inheriting, state.generation = True, event.generation


def _rank_report_received(state: JobState, event: events.RankReportReceived) -> None:
    rank, report = state.members.ranks[event.report.rank], event.report
    rank.node, rank.pid, rank.lost = event.node, report.pid, False
    for said in report.words:
        match said:
            case Resumed():
                rank.live = said.ok
                rank.epoch = max(rank.epoch, said.epoch) if said.ok else rank.epoch
            case StepRecord():
                rank.epoch, rank.epoch_generation = max(rank.epoch, said.epoch), said.generation
            case Joined():
                _joined(state, rank, said, event.at)
            case Attached() | StepsTotal() | RankDone() | ScriptFailed():
                _told(state, rank, said)


def _node_report_received(state: JobState, event: events.NodeReportReceived) -> None:
    state.members.nodes[event.node].excluded = event.excluded


def _takeover_completed(state: JobState, event: events.TakeoverCompleted) -> None:
    state.inheriting = False
    for node in state.members.nodes.values():
        node.alive = node.alive and node.name in event.present


_REDUCERS: dict[type[events.JobEvent], Callable[[JobState, Any], Effects | None]] = {
    events.FailureCounted: _failure_counted,
    events.GenerationBegun: _generation_begun,
    events.GenerationFenced: _generation_fenced,
    events.GroupsArranged: _take,
    events.TakeoverStarted: _takeover_started,
    events.TakeoverCompleted: _takeover_completed,
    events.LastSaveBegun: _last_save_begun,
    events.LauncherMessageReceived: _launcher_message_received,
    events.NodeForgotten: _node_forgotten,
    events.NodeJoined: _node_joined,
    events.NodeLost: _node_lost,
    events.NodeReportReceived: _node_report_received,
    events.ParticipationChosen: _participation_chosen,
    events.PhaseChanged: _phase_changed,
    events.ProcessEnded: _process_ended,
    events.RankFinished: _rank_finished,
    events.RankReportReceived: _rank_report_received,
    events.RankMessageReceived: _rank_message_received,
    events.RankStarted: _rank_started,
    events.RanksAssigned: _ranks_assigned,
    events.RanksLost: _ranks_lost,
    events.RanksUnplaced: _ranks_unplaced,
    events.ReplicasCompared: _take,
    events.SavingChanged: _take,
    events.SettingsChanged: _take,
    events.ShapeChanged: _shape_changed,
    events.StoreOpened: _store_opened,
    events.TrainingFormed: _training_formed,
    events.WarningsChanged: _warnings_changed,
}
