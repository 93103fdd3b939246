"""Whose failure it was that ended a step: another rank's, one that the script calls transient, or the script's own.

The first two leave the process alive: its training loop is entered again with the same step (in-process restart, as
Unicron and NVRx do it). The last one ends it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import torch.distributed as dist


class RetryStep(Exception):  # noqa: N818 - what the script asks for, as StopIteration is
    """Raised by a script inside ``with run.step():``: this step may work if it is made again."""


class StepAbortedError(RuntimeError):
    """Not every rank could vote for this step. Raised out of ``optimizer.step``; ``run.step`` takes it from there."""


_COMMUNICATION_WORDS: Final = ("gloo", "nccl", "connection closed by peer", "connection reset by peer", "broken pipe")


def is_communication_failure(error: Exception) -> bool:
    """Whether a collective failed, as far as torch lets one tell: gloo raises plain ``RuntimeError``."""
    if isinstance(error, dist.DistError | ConnectionError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(word in text for word in _COMMUNICATION_WORDS)


def transient(named: Iterable[type[Exception]]) -> tuple[type[Exception], ...]:
    """``named`` and ``RetryStep``, to be asked with ``isinstance``.

    Raises:
        TypeError: something named is no class of exceptions that end a step.
    """
    found = tuple(named)
    for kind in found:
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            raise TypeError(f"retry: {kind!r} is no class of exceptions")
    return (RetryStep, *found)
