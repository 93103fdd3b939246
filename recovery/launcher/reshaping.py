"""A planned change of shape: all stop after a step, it goes to disk, and the same launchers start the new shape.

wish      from ``mainstay reshape`` (``recovery.reshape``); refused in one line where it makes no sense. Or the job's
          own, when nodes are back (``reinstating``)
fence     right after a step all ranks stop, a generation up; every process stays
save      the newest step that all ranks hold is written whole. If it cannot be, all go on where they were
anew      every rank gets a new process in the new shape, a run of its own begins, and each takes its tensors out of
          what was saved (``disk.reshape``). All vote, as after any start

Until the step is whole on disk nothing was given up; from then on it is what the job goes back to, whatever fails. The
fence may cut the copy of the step that has just ended: that one is made again. Varuna (Athlur et al. 2022) morphs
through its checkpoints in the same order; here no launcher, store, agent or warm process ends.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from probes.ids import uuid7
from recovery.disk.catalogue import find
from recovery.disk.manifest import CheckpointError
from recovery.disk.reshape import sources
from recovery.launcher.membership import Failure, JobState
from recovery.launcher.messages import DiscardAfter, FenceNode
from recovery.launcher.reinstating import Reinstating
from recovery.reshape import Answer, Outcome, Wish, answer, take
from recovery.shape import Shape

if TYPE_CHECKING:
    from recovery.launcher.coordinator import Coordinator
    from recovery.launcher.disk_level import DiskLevel
    from recovery.launcher.episode import Episode
    from recovery.launcher.healing import Healing

log = logging.getLogger("mainstay.coordinator")

SAVE_SECONDS: Final = 600.0
"""As long as an agent gives one transfer."""
STEP_SECONDS: Final = 600.0
"""A step that takes longer is taken for a hang, and nobody is stopped."""


@dataclass(slots=True)
class Change:
    """A change of shape that is under way."""

    shape: Shape
    wish: Wish | None = None
    """None: nobody asked, nobody waits for an answer."""
    begun: bool = False
    """Processes in the old shape were ended."""
    saving_s: float = 0.0
    """That the save took."""


class Reshaping:
    """One a coordinator: one change at a time, only while the job runs."""

    def __init__(self, coordinator: Coordinator, disk: DiskLevel) -> None:
        self._c = coordinator
        self._disk = disk
        self._waiting: list[Wish] = []
        self._current: Change | None = None
        self.reinstating = Reinstating(coordinator, self)

    def turn(self) -> None:
        """Called every second or so: follow the next wish if the job has time for it."""
        c = self._c
        self._waiting += take(c.options.state_dir)
        if self._current or c.state is not JobState.RUNNING or c.healing.busy or c.over:
            return
        if self._waiting:
            self._follow(self._waiting.pop(0))
            return
        grown = self.reinstating.grown()
        if grown is not None:
            self._start(Change(grown))

    def _follow(self, wish: Wish) -> None:
        c = self._c
        problem = self._misfit(wish)
        if problem:
            log.warning("no change to %s: %s", wish, problem)
            answer(c.options.state_dir, Answer(id=wish.id, outcome=Outcome.REFUSED, detail=problem))
            return
        assert c.members.shape is not None
        self._start(Change(wish.shape(c.members.shape.tp), wish))

    def _start(self, change: Change) -> None:
        self._current = change
        self._c.spawn(self._begin(change))

    def _misfit(self, wish: Wish) -> str:
        """Why the job cannot have that shape; empty is good."""
        c, shape = self._c, self._c.members.shape
        if shape is None:
            return "the script does not use the SDK: nobody could deal its state anew"
        problems = {
            "there is no --checkpoint-dir: the state goes from one shape to the other through it": (
                not self._disk.enabled
            ),
            **self._unfit(wish, shape),
            self.rigid(): True,
            "ranks are away, and the job waits for them first": any(rank.away for rank in c.members.ranks),
            "ranks have left the training loop already: the job is about to end": any(r.gone for r in c.members.ranks),
        }
        return next((problem for problem, holds in problems.items() if problem and holds), "")

    def _unfit(self, wish: Wish, shape: Shape) -> dict[str, bool]:
        """Problem -> whether it has it."""
        try:
            wanted = wish.shape(shape.tp)
        except ValueError as error:
            return {str(error): True}
        most = min(self._c.options.world_size, self._c.members.places)
        all_ranks = {shape.world_size, self._c.options.world_size}
        return {
            f"{wish} tp={shape.tp} are not the {shape.world_size} ranks that the job has": (
                not wish.stages and wanted.world_size not in all_ranks
            ),
            f"{wish} are {wanted.world_size} ranks, and there is room for {most}": wanted.world_size > most,
            f"the job has {shape} already": wanted == shape,
        }

    def rigid(self) -> str:
        """Why the script cannot be started in another shape; empty: it can.

        Of a lost rank a coordinator that took over has heard nothing; it runs the script of the others.
        """
        known = [rank for rank in self._c.members.ranks if rank.attached or not rank.lost]
        ranks = [rank.number for rank in known if not (rank.attached and rank.attached.adapts)]
        if not ranks:
            return ""
        return (
            f"the script of ranks {ranks} cannot be started in another shape: it must leave dp and pp of mainstay.init "
            "to mainstay run --dp --pp, and give mainstay.attach names="
        )

    # Before anybody stops

    async def _begin(self, change: Change) -> None:
        """Wait for the next step to be committed by all: then the least is made again."""
        c = self._c
        target = c.committed + 1
        self._disk.configure()  # a node that is back has not heard of the run

        def over() -> bool:
            return min(rank.epoch for rank in c.members.ranks) >= target or self._disturbed

        came = await c.healing.until(over, STEP_SECONDS)
        if not came or self._disturbed:
            why = "something failed meanwhile, which comes first" if came else f"no step within {STEP_SECONDS:g} s"
            self._finish(change, f"nobody was stopped: {why}")
            return
        quiet = change.wish is not None
        reason = f"change to {change.shape}"
        c.replay(Failure(ranks=set(), time=time.time(), reason=reason, counts=False, reshapes=True, changes=not quiet))

    @property
    def _disturbed(self) -> bool:
        c = self._c
        return c.over or c.state is not JobState.RUNNING or any(rank.gone for rank in c.members.ranks)

    # While everybody waits

    async def carry_out(self, healing: Healing, episode: Episode, victims: set[int], waiting: set[int]) -> None:
        """All ranks are fenced by ``healing``; what follows ends like a start, in the new shape or in the old one."""
        change = self._current
        assert change is not None
        problem = "something failed meanwhile, which came first"
        try:
            if victims:  # lost in the very moment: a recovery like any other
                await healing.heal(episode, victims, waiting)
            else:
                problem = await self._change(healing, episode, waiting, change)
        finally:  # cancelled too: by whatever fails meanwhile, or by the end of the job
            self._finish(change, problem, episode)

    async def _change(self, healing: Healing, episode: Episode, waiting: set[int], change: Change) -> str:
        if not await healing.fenced(episode, waiting):
            return "not all ranks left their collectives"
        begun = time.time()
        problem = await self.save(change.shape)
        change.saving_s = time.time() - begun
        if problem:
            log.warning("change of shape given up, all go on as they were: %s", problem)
            await healing.heal(episode, set(), waiting)
            return problem
        episode.marks.clear()
        episode.acted_at = time.time()  # what came before is not the price of a fence
        if change.wish is not None:
            self.reinstating.home = change.shape
        await self.turn_over(healing, episode, change)
        return ""

    async def save(self, shape: Shape) -> str:
        """Have the newest common step written, and make it what the job goes on from; why not, or nothing."""
        c, disk = self._c, self._disk
        nodes = c.members.alive()
        epoch = disk.newest(nodes)
        if epoch is None:
            return "no step is held by all ranks"
        problems = await disk.write(nodes, epoch, SAVE_SECONDS)
        if problems:
            return "; ".join(problems)
        return self.adopt(shape, epoch)

    def adopt(self, shape: Shape, epoch: int | None = None) -> str:
        """Go on from the newest whole step of this run (``epoch``, if one is given); why not, or nothing."""
        directory = self._c.options.checkpoint_dir
        assert directory is not None
        try:
            source = find(directory, self._disk.run)
            if epoch is not None and source.manifest.epoch != epoch:
                return f"step {epoch} is not whole in {directory}, which all nodes must share"
            for rank in range(shape.world_size):
                sources(source.manifest, shape, rank)
        except CheckpointError as error:
            return str(error)
        self._disk.source = source
        return ""

    async def turn_over(self, healing: Healing, episode: Episode, change: Change) -> None:
        """End all processes of the old shape, and start those of the new one from ``disk.source``."""
        c = self._c
        c.generation += 1
        for node in c.members.alive():  # by the numbers that they have: the new ones are others
            doomed = tuple(rank.number for rank in c.members.on(node.name))
            node.send(FenceNode(generation=c.generation, kill=doomed))
        self._forget(change)
        everybody = {rank.number for rank in c.members.ranks}
        if healing.replace(everybody):
            await healing.heal(episode, everybody, set())

    def _forget(self, change: Change) -> None:
        """What belongs to the old shape is forgotten: steps of the new one lie in a run of their own."""
        c, disk = self._c, self._disk
        change.begun = True
        survey = c.healing.survey
        if not change.shape.depths:  # pipelines of unlike depth have nobody to be compared with: what was known holds
            survey.replicated, survey.parameters_equal = None, True
        c.members.shape, c.healing.formed_once = change.shape, False
        c.members.reseat(change.shape.world_size)
        c.orders.groups = ()
        c.healing.attendance.paces.forget()
        disk.run = uuid7()
        # Before any rank starts: a slot of the new shape must not be written into the run of the old one.
        disk.configure()
        for node in c.members.alive():
            node.send(DiscardAfter(epoch=0))

    def _finish(self, change: Change, problem: str, episode: Episode | None = None) -> None:
        """Say what became of it: done when all ranks train on in the new shape."""
        if self._current is not change:
            return
        self._current = None
        c, shape, wish = self._c, change.shape, change.wish
        went_on = episode is not None and any(phase == "first_step" for phase, _ in episode.marks)
        if episode is None or not (went_on and change.begun and c.members.shape == shape):
            outcome, detail = Outcome.FAILED, problem or "it was not finished"
        else:
            outcome, detail = Outcome.DONE, self._told(change, episode)
        log.warning("change to %s %s: %s", shape, outcome, detail)
        if wish is None:
            return
        given = Answer(id=wish.id, outcome=outcome, detail=detail)
        if outcome is Outcome.DONE and episode is not None:
            total, step = episode.seconds()["total"], self._disk.begun_at
            given = msgspec.structs.replace(
                given,
                seconds=episode.failed_at + total - wish.asked_at,
                standing_s=total,
                steps_repeated=max(0, episode.step_before - step),
                step=step,
            )
        answer(c.options.state_dir, given)

    def _told(self, change: Change, episode: Episode) -> str:
        return (
            f"{change.shape} after step {self._disk.begun_at}: training stood still for "
            f"{episode.seconds()['total']:.3f} s, {change.saving_s:.3f} s of them for the save"
        )
