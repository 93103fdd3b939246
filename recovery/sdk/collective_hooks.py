"""Hears of every call between ranks that Python code makes, however it was imported.

Every collective and point-to-point call goes through a method of ``ProcessGroup`` and, where a thread waits for it,
through ``Work.wait``. These are wrapped, once in a process, and not the functions of ``torch.distributed``: a script
may have imported those by name, and the compiler knows them by identity. Groups written in Python, which replace these
methods, are wrapped too. The wrappers pass everything on unchanged; calls of other threads than the watched one, and
calls that such a group makes for the sake of another one, they do not look at.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

from torch.distributed import ProcessGroup, Work

from mainstay.recovery.sdk.call_tracker import TRANSFERS, CallTracker

COLLECTIVES: Final = (
    "allreduce", "allreduce_coalesced", "allgather", "allgather_coalesced", "allgather_into_tensor_coalesced",
    "_allgather_base", "all_gather_single", "all_gather_single_coalesced", "reduce_scatter", "_reduce_scatter_base",
    "reduce_scatter_single", "reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced", "broadcast",
    "reduce", "gather", "scatter", "alltoall", "alltoall_base", "all_to_all_single", "barrier",
)  # fmt: skip
"""Methods of ``ProcessGroup`` as several versions of torch name them; those that are missing are left out."""
_watching: CallTracker | None = None
_originals: dict[tuple[type, str], Any] = {}


def watch(traffic: CallTracker | None) -> None:
    """Have the hooks report this thread's calls to the tracker; None: to no tracker."""
    global _watching  # noqa: PLW0603 - a process has one training thread
    _watching = traffic


def install() -> None:
    """Wrap. A second call does nothing; without ``watch`` the wrappers only pass on."""
    if _originals:
        return
    for kind in _with_subclasses(ProcessGroup):
        for name in filter(kind.__dict__.__contains__, COLLECTIVES):
            _wrap(kind, name, CallTracker.issue)
        for name in filter(kind.__dict__.__contains__, TRANSFERS):
            _wrap(kind, name, CallTracker.exchange)
    for kind in _with_subclasses(Work):
        if "wait" in kind.__dict__:
            _wrap(kind, "wait", CallTracker.wait)


def _with_subclasses(kind: type) -> Iterator[type]:
    yield kind
    children: list[type] = kind.__subclasses__()
    for child in children:
        yield from _with_subclasses(child)


def uninstall() -> bool:
    """Leave torch as it was found. Whether it was wrapped."""
    installed = bool(_originals)
    for (owner, name), original in _originals.items():
        setattr(owner, name, original)
    _originals.clear()
    return installed


def _wrap(owner: type, name: str, track: Callable[..., Any]) -> None:
    """Have calls of the training thread go through ``track`` of its tracker, with their name and what was wrapped."""
    original = getattr(owner, name)

    def call(target: Any, /, *args: Any, **kwargs: Any) -> Any:
        traffic = _watching
        if traffic is None or traffic.thread != threading.get_ident() or traffic.current is not None:
            return original(target, *args, **kwargs)
        return track(traffic, name, original, target, args, kwargs)

    _originals[owner, name] = owner.__dict__[name]
    setattr(owner, name, functools.wraps(original, assigned=("__name__", "__doc__"), updated=())(call))
