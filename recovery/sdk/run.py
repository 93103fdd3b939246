"""The run: the loop over steps that a failure of another rank does not end.

A step counts when all ranks of the generation have voted for it (just before ``optimizer.step``) and its block has
ended. A step that fails because a peer died, a collective broke, or with an error that the script calls transient, is
not counted: the block's error is swallowed, the generation is left, the state is put back to the newest epoch that
every rank can have, and ``steps`` yields that step again, in the same process. Nothing of the state may change between
the end of a block and the next ``optimizer.step`` except what forward passes change (buffers, random numbers), because
that is when it is copied.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TypeVar

import torch

from mainstay.probes.core_types import StepPhase
from mainstay.recovery.sdk.mesh import Mesh
from mainstay.recovery.sdk.sections import SECTIONS

T = TypeVar("T")
Report = Callable[[float | torch.Tensor | None], None]


class TrainingRun:
    """What ``attach`` returns. This one is for a script without a launcher: it counts steps and does nothing else."""

    def __init__(self, mesh: Mesh | None) -> None:
        self.mesh = mesh

    @property
    def protected(self) -> bool:
        """Whether a lost rank would be brought back."""
        return False

    def steps(self, total: int) -> Iterator[int]:
        """Step numbers from 0 (or from where a restored run stands) to ``total - 1``."""
        yield from range(total)

    def step(self) -> AbstractContextManager[Report]:
        """The block of one step: forward, backward, exchange of gradients, one ``optimizer.step``.

        ``with run.step() as report:`` gives a function that takes the loss, or None where it is not known.
        """
        return nullcontext(lambda loss: self.report(loss=loss))

    def report(self, *, loss: float | torch.Tensor | None = None) -> None:
        """Tell the dashboard the loss of the step under way. Costs next to nothing; call it where the loss is known."""

    # What helps to judge the run. All of it is optional, and does nothing without a launcher.

    def workload(self, *, tokens: float | None = None, sequence_squares: float | None = None) -> None:
        """How much this rank works on in the step under way (or the next one); several calls add up.

        Args:
            tokens: how many.
            sequence_squares: sum over its sequences of their squared lengths, which is what attention costs.
        """

    def phase(self, phase: str) -> AbstractContextManager[None]:
        """Around ``evaluate``, ``checkpoint``, ``compile`` or ``warm_up``: no training, perhaps long and silent.

        Raises:
            ValueError: another name.
        """
        checked_phase(phase)
        return nullcontext()

    def section(self, name: str) -> AbstractContextManager[None]:
        """Around a hand-written ``forward``, ``backward`` or ``optimizer``, where hooks on the model do not see it.

        Raises:
            ValueError: another name.
        """
        checked_section(name)
        return nullcontext()

    def data(self, loader: Iterable[T]) -> Iterator[T]:
        """The items of ``loader``, the time that each is waited for measured."""
        return iter(loader)


class StepwiseRun(TrainingRun, ABC):
    """A run whose steps begin and end with something to do."""

    _inside = _entered = False
    """Whether a block is under way, and whether the step that was offered last had one."""

    @contextmanager
    def step(self) -> Iterator[Report]:
        self.enter()
        with ExitStack() as block:  # ``leave`` sees an error of the block, and may swallow it
            block.push(self._left)
            yield lambda loss: self.report(loss=loss)

    def enter(self) -> None:
        """The block begins."""
        if self._inside:
            raise RuntimeError("`with run.step():` stands inside another one")
        self._inside = self._entered = True

    def _left(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        self._inside = False
        return self.leave(error)

    @abstractmethod
    def leave(self, error: BaseException | None) -> bool:
        """The block has ended. Whether ``error`` was taken care of; if not, it is the caller's."""

    def _offer(self, step: int) -> Iterator[int]:
        """Yield ``step``, and come back when its block has ended."""
        self._entered = False
        yield step
        if not self._entered:
            raise RuntimeError("run.steps yielded a step whose work was not done inside `with run.step():`")

    def _require_inside(self) -> None:
        if not self._inside:
            raise RuntimeError("optimizer.step belongs inside `with run.step():`, or its result would not be protected")


def checked_phase(name: str) -> StepPhase:
    """The phase called ``name``, in small letters.

    Raises:
        ValueError: there is none.
    """
    known = [phase.name.lower() for phase in StepPhase]
    if name not in known:
        raise ValueError(f"phase {name!r} is none of {', '.join(known)}")
    return StepPhase[name.upper()]


def checked_section(name: str) -> str:
    """``name``, if it is a section's.

    Raises:
        ValueError: it is not.
    """
    if name not in SECTIONS:
        raise ValueError(f"section {name!r} is none of {', '.join(SECTIONS)}")
    return name
