"""A planned change of (dp, pp): all stop after a step, it goes to disk, and the same launchers start the new shape.

wish      from ``mainstay reshape`` (``recovery.reshape``); refused in one line where it makes no sense
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

from probes.ids import uuid7
from recovery.disk.catalogue import find
from recovery.disk.manifest import CheckpointError
from recovery.disk.reshape import sources
from recovery.launcher.membership import Failure, JobState
from recovery.launcher.messages import DiscardAfter
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
class _Current:
    wish: Wish
    shape: Shape
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
        self._current: _Current | None = None

    def turn(self) -> None:
        """Called every second or so: follow the next wish if the job has time for it."""
        c = self._c
        self._waiting += take(c.options.state_dir)
        if not self._waiting or self._current or c.state is not JobState.RUNNING or c.healing.busy or c.over:
            return
        wish = self._waiting.pop(0)
        problem = self._misfit(wish)
        if problem:
            log.warning("no change to dp=%d pp=%d: %s", wish.dp, wish.pp, problem)
            answer(c.options.state_dir, Answer(id=wish.id, outcome=Outcome.REFUSED, detail=problem))
            return
        assert c.members.shape is not None
        self._current = _Current(wish, Shape(dp=wish.dp, pp=wish.pp, tp=c.members.shape.tp))
        c.spawn(self._begin(self._current))

    def _misfit(self, wish: Wish) -> str:
        """Why the job cannot have that shape; empty is good."""
        c, shape = self._c, self._c.members.shape
        if shape is None:
            return "the script does not use the SDK: nobody could deal its state anew"
        rigid = [rank.number for rank in c.members.ranks if not (rank.attached and rank.attached.adapts)]
        problems = {
            "there is no --checkpoint-dir: the state goes from one shape to the other through it": (
                not self._disk.enabled
            ),
            f"dp={wish.dp} pp={wish.pp} tp={shape.tp} are not the {shape.world_size} ranks that the job has": (
                min(wish.dp, wish.pp) < 1 or wish.dp * wish.pp * shape.tp != shape.world_size
            ),
            f"the job has dp={shape.dp} pp={shape.pp} already": (wish.dp, wish.pp) == (shape.dp, shape.pp),
            f"the script of ranks {rigid} cannot be started in another shape: it must leave dp and pp of mainstay.init "
            "to mainstay run --dp --pp, and give mainstay.attach names=": bool(rigid),
            "replicas are away, and the job waits for them first": any(rank.away for rank in c.members.ranks),
            "ranks have left the training loop already: the job is about to end": any(r.gone for r in c.members.ranks),
        }
        return next((problem for problem, holds in problems.items() if holds), "")

    # Before anybody stops

    async def _begin(self, current: _Current) -> None:
        """Wait for the next step to be committed by all: then the least is made again."""
        c = self._c
        target = c.committed + 1

        def over() -> bool:
            return min(rank.epoch for rank in c.members.ranks) >= target or self._disturbed

        came = await c.healing.until(over, STEP_SECONDS)
        if not came or self._disturbed:
            why = "something failed meanwhile, which comes first" if came else f"no step within {STEP_SECONDS:g} s"
            self._finish(current, f"nobody was stopped: {why}")
            return
        reason = f"change to dp={current.shape.dp} pp={current.shape.pp}"
        c.replay(Failure(ranks=set(), time=time.time(), reason=reason, counts=False, reshapes=True))

    @property
    def _disturbed(self) -> bool:
        c = self._c
        return c.over or c.state is not JobState.RUNNING or any(rank.gone for rank in c.members.ranks)

    # While everybody waits

    async def carry_out(self, healing: Healing, episode: Episode, victims: set[int], waiting: set[int]) -> None:
        """All ranks are fenced by ``healing``; what follows ends like a start, in the new shape or in the old one."""
        current = self._current
        assert current is not None
        problem = "something failed meanwhile, which came first"
        try:
            if victims:  # lost in the very moment: a recovery like any other
                await healing.heal(episode, victims, waiting)
            else:
                problem = await self._change(healing, episode, waiting, current)
        finally:  # cancelled too: by whatever fails meanwhile, or by the end of the job
            self._finish(current, problem, episode)

    async def _change(self, healing: Healing, episode: Episode, waiting: set[int], current: _Current) -> str:
        c = self._c
        if not await healing.fenced(episode, waiting):
            return "not all ranks left their collectives"
        begun = time.time()
        problem = await self._save(current.shape)
        current.saving_s = time.time() - begun
        if problem:
            log.warning("change of shape given up, all go on as they were: %s", problem)
            await healing.heal(episode, set(), waiting)
            return problem
        episode.marks.clear()
        episode.acted_at = time.time()  # what came before is not the price of a fence
        c.generation += 1
        self._turn_over(current)
        everybody = {rank.number for rank in c.members.ranks}
        if healing.replace(everybody):
            await healing.heal(episode, everybody, set())
        return ""

    async def _save(self, shape: Shape) -> str:
        """Have the newest common step written, and make it what the job goes on from; why not, or nothing."""
        c, disk = self._c, self._disk
        nodes = c.members.alive()
        epoch = disk.newest(nodes)
        if epoch is None:
            return "no step is held by all ranks"
        problems = await disk.write(nodes, epoch, SAVE_SECONDS)
        directory = c.options.checkpoint_dir
        assert directory is not None
        if problems:
            return "; ".join(problems)
        try:
            source = find(directory, disk.run)
            if source.manifest.epoch != epoch:
                return f"step {epoch} is not whole in {directory}, which all nodes must share"
            for rank in range(shape.world_size):
                sources(source.manifest, shape, rank)
        except CheckpointError as error:
            return str(error)
        disk.source = source
        return ""

    def _turn_over(self, current: _Current) -> None:
        """What belongs to the old shape is forgotten: steps of the new one lie in a run of their own."""
        c, disk = self._c, self._disk
        current.begun = True
        c.members.shape, c.healing.formed_once = current.shape, False
        c.healing.survey.replicated, c.healing.survey.parameters_equal = None, True
        c.orders.groups = ()
        disk.run = uuid7()
        # Before any rank starts: a slot of the new shape must not be written into the run of the old one.
        disk.configure()
        for node in c.members.alive():
            node.send(DiscardAfter(epoch=0))

    def _finish(self, current: _Current, problem: str, episode: Episode | None = None) -> None:
        """Say what became of it: done when all ranks train on in the new shape."""
        if self._current is not current:
            return
        self._current = None
        c, shape = self._c, current.shape
        went_on = episode is not None and any(phase == "first_step" for phase, _ in episode.marks)
        if episode is None or not (went_on and current.begun and c.members.shape == shape):
            given = Answer(id=current.wish.id, outcome=Outcome.FAILED, detail=problem or "it was not finished")
        else:
            seconds, step = episode.seconds(), self._disk.begun_at
            since = episode.failed_at + seconds["total"]
            detail = (
                f"dp={shape.dp} pp={shape.pp} after step {step}: training stood still for {seconds['total']:.3f} s, "
                f"{current.saving_s:.3f} s of them for the save"
            )
            given = Answer(
                id=current.wish.id,
                outcome=Outcome.DONE,
                detail=detail,
                seconds=since - current.wish.asked_at,
                standing_s=seconds["total"],
                steps_repeated=max(0, episode.step_before - step),
                step=step,
            )
        log.warning("change to dp=%d pp=%d %s: %s", shape.dp, shape.pp, given.outcome, given.detail)
        answer(c.options.state_dir, given)
