"""A process-group backend for CPU tensors that behaves as NCCL does, where there is no GPU. gloo moves the bytes.

What it imitates, from PyTorch's ``ProcessGroupNCCL``, NCCL's manual (Communicators, Fault Tolerance) and their issues:

* A call returns before it is done, and waiting for it lets only the *stream* wait. The host waits where it reads a
  result: ``item`` waits for all that was queued, any other operation for the calls that use its tensors.
* A small message is sent when it lies in the sender's buffer, before the peer asks for it.
* A communicator meets its peers in its first call, on the host: one of each group, and one of each pair of ranks.
* A dead peer shows nowhere. The call waits until it is aborted (``NCCL_LIKE_PEERS=seen``: an error, as over sockets,
  that shows at the next call and to the watchdog; the watchdog ends the process as the variables ``TORCH_NCCL_*`` say).
* An aborted call ends as if it had succeeded. Its result is undefined: here NaN, while integers stay as they were, so
  that a vote looks won. Calls after the abort raise.
* An abort takes ``NCCL_LIKE_ABORT`` seconds, or never returns (``hang``; NVIDIA/nccl#1013, #1777).
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from queue import SimpleQueue
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed import AllreduceOptions, PrefixStore, ProcessGroup, ProcessGroupGloo, Store, Work
from torch.utils._python_dispatch import TorchDispatchMode

from mainstay.recovery.sdk.sockets import close_now, connections

NAME: Final = "nccl_like"
_TIMEOUT: Final = timedelta(minutes=30)
_ALL: Final = AllreduceOptions()
_TEARS_DOWN: Final = ("1", "3")
"""Values of ``TORCH_NCCL_ASYNC_ERROR_HANDLING`` with which the watchdog ends the process; 3 is torch's own choice."""


@dataclass(eq=False)
class _Call:
    """One kernel: in its communicator's stream until it is done."""

    tensors: list[torch.Tensor]
    """What it uses."""
    kernel: Callable[[list[torch.Tensor]], Any]
    """Begins it on copies of ``tensors``: an aborted kernel writes nothing any more."""
    writes: bool
    after: list[_Call]
    """Calls that the compute stream was waiting for when it was launched."""
    done: threading.Event = field(default_factory=threading.Event)
    copies: list[torch.Tensor] = field(init=False)
    storages: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        self.copies = [tensor.detach().clone() for tensor in self.tensors]
        self.storages = frozenset(tensor.untyped_storage().data_ptr() for tensor in self.tensors)

    def end(self, *, well: bool) -> None:
        """What is behind it in any stream continues."""
        for tensor, copy in zip(self.tensors if self.writes else (), self.copies, strict=False):
            if well:
                tensor.data.copy_(copy)  # as a kernel: autograd hears nothing of it
            elif tensor.is_floating_point():
                tensor.data.fill_(torch.nan)
        self.done.set()


class _Stream(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The training thread's compute stream, as far as it waits for calls."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.awaited: list[_Call] = []

    def wait_for(self, call: _Call) -> None:
        self.awaited = [known for known in self.awaited if not known.done.is_set()] + [call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.awaited:
            self._reach(func, args)
        return func(*args, **(kwargs or {}))

    def _reach(self, func: Any, args: Any) -> None:
        everything = func.name() == "aten::_local_scalar_dense"
        used = set() if everything else {storage for arg in args for storage in _storages(arg)}
        for call in self.awaited:
            if everything or used & call.storages:
                call.done.wait()
        self.awaited = [call for call in self.awaited if not call.done.is_set()]


def _storages(arg: Any) -> list[int]:
    if isinstance(arg, torch.Tensor):
        return [arg.untyped_storage().data_ptr()]
    return [s for item in arg for s in _storages(item)] if isinstance(arg, list | tuple) else []


class _Communicator:
    """Ranks that have met, and their stream."""

    def __init__(self, store: Store, rank: int, size: int) -> None:
        before = connections()
        self.gloo: Any = ProcessGroupGloo(store, rank, size, timeout=_TIMEOUT)
        self._sockets = connections() - before
        self.error: str = ""
        self._aborted = False
        self._lock = threading.Lock()
        self._pending: list[_Call] = []
        self._sent: deque[Work] = deque(maxlen=64)
        self._queue: SimpleQueue[_Call | None] = SimpleQueue()
        threading.Thread(target=self._run, name="nccl-like-stream", daemon=True).start()

    def launch(self, call: _Call) -> None:
        with self._lock:
            if self._aborted:
                raise dist.DistBackendError("NCCL communicator was aborted")
            if self.error:
                raise dist.DistBackendError(
                    f"NCCL error: remote process exited or there was a network error: {self.error}"
                )
            self._pending.append(call)
        self._queue.put(call)

    def _run(self) -> None:
        while (call := self._queue.get()) is not None:
            try:
                for other in call.after:
                    other.done.wait()
                work = call.kernel(call.copies)
                if call.writes:
                    work.wait()
                else:
                    self._sent.append(work)
            except RuntimeError as error:
                if os.environ.get("NCCL_LIKE_PEERS") == "seen":
                    self.error = str(error)
                return  # the kernel waits to be aborted
            self._end(call)

    def _end(self, call: _Call) -> None:
        with self._lock:
            if call in self._pending:
                self._pending.remove(call)
                call.end(well=True)

    def abort(self) -> None:
        with self._lock:
            self._aborted = True
            pending, self._pending = self._pending, []
        for call in pending:
            call.end(well=False)
        close_now(self._sockets)
        self._queue.put(None)


class _Pending(Work):
    """torch's handle of a call."""

    def __init__(self, call: _Call, stream: _Stream) -> None:
        super().__init__()
        self.call, self._stream = call, stream

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:  # noqa: ARG002 - torch's
        self._stream.wait_for(self.call)
        return True

    def is_completed(self) -> bool:
        return self.call.done.is_set()


class NcclLike(ProcessGroup):
    """See the module. Offers the calls that training with ``mainstay.recovery.examples`` makes."""

    stream: _Stream | None = None

    def __init__(self, store: Store, rank: int, size: int) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]
        self._store = store
        self._communicators: dict[str, _Communicator] = {}
        self._aborted = False
        if NcclLike.stream is None:
            NcclLike.stream = _Stream()
            NcclLike.stream.__enter__()  # type: ignore[no-untyped-call]
        threading.Thread(target=self._watch, name="nccl-like-watchdog", daemon=True).start()

    def getBackendName(self) -> str:  # noqa: N802 - torch's
        return NAME

    # Calls

    def allreduce(self, tensors: list[torch.Tensor], opts: AllreduceOptions = _ALL) -> Work | None:  # type: ignore[override]
        op = opts.reduceOp

        def kernel(copies: list[torch.Tensor]) -> Any:
            own = AllreduceOptions()
            own.reduceOp = op
            return self._group.gloo.allreduce(copies, own)

        return self._call(tensors, kernel, asynchronous=opts.asyncOp)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> Work | None:  # type: ignore[override]
        return self._call(tensors, lambda copies: self._group.gloo.broadcast(copies, opts), asynchronous=opts.asyncOp)

    def allgather(  # type: ignore[override]
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], opts: Any
    ) -> Work | None:
        count = len(outputs[0])

        def kernel(copies: list[torch.Tensor]) -> Any:
            return self._group.gloo.allgather([copies[:count]], copies[count:])

        return self._call([*outputs[0], *inputs], kernel, asynchronous=opts.asyncOp)

    def barrier(self, opts: Any = None) -> Work:  # noqa: ARG002 - torch's
        """The host waits for it, too."""
        work = self._call([], lambda _: self._group.gloo.barrier(), asynchronous=True)
        assert isinstance(work, _Pending)
        work.call.done.wait()
        return work

    def send(self, tensors: list[torch.Tensor], dst: int, tag: int) -> Work:
        def kernel(copies: list[torch.Tensor]) -> Any:
            return self._pair(dst).gloo.send(copies, int(dst > self.rank()), tag)

        return self._exchange(dst, tensors, kernel, writes=False)

    def recv(self, tensors: list[torch.Tensor], src: int, tag: int) -> Work:
        def kernel(copies: list[torch.Tensor]) -> Any:
            return self._pair(src).gloo.recv(copies, int(src > self.rank()), tag)

        return self._exchange(src, tensors, kernel, writes=True)

    # Ends

    def abort(self) -> None:
        """Ends all calls, as if well, when it has waited as long as it was told to."""
        how = os.environ.get("NCCL_LIKE_ABORT", "0")
        if how == "hang":
            threading.Event().wait()
        time.sleep(float(how))
        self.shutdown()

    def shutdown(self) -> None:
        self._aborted = True
        for communicator in list(self._communicators.values()):
            communicator.abort()

    def _watch(self) -> None:
        while not self._aborted:
            handling = os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3")
            if handling in _TEARS_DOWN and any(c.error for c in list(self._communicators.values())):
                os.abort()
            time.sleep(0.1)

    # Parts

    @property
    def _group(self) -> _Communicator:
        return self._communicators["all"]

    def _pair(self, peer: int) -> _Communicator:
        return self._communicators["{}:{}".format(*sorted((self.rank(), peer)))]

    def _meet(self, key: str, rank: int, size: int) -> _Communicator:
        """The communicator; its first call waits here, on the host, until all of its ranks have called."""
        if self._aborted:
            raise dist.DistBackendError("NCCL communicator was aborted")
        found = self._communicators.get(key)
        if found is None:
            found = self._communicators[key] = _Communicator(PrefixStore(f"nccl-like/{key}", self._store), rank, size)
        return found

    def _call(
        self, tensors: Sequence[torch.Tensor], kernel: Callable[[list[torch.Tensor]], Any], *, asynchronous: bool
    ) -> Work | None:
        communicator = self._meet("all", self.rank(), self.size())
        work = self._launch(communicator, tensors, kernel, writes=True)
        if asynchronous:
            return work
        work.wait()
        return None

    def _exchange(
        self,
        peer: int,
        tensors: Sequence[torch.Tensor],
        kernel: Callable[[list[torch.Tensor]], Any],
        *,
        writes: bool,
    ) -> Work:
        low, high = sorted((self.rank(), peer))
        communicator = self._meet(f"{low}:{high}", int(self.rank() == high), 2)
        return self._launch(communicator, tensors, kernel, writes=writes)

    @staticmethod
    def _launch(
        communicator: _Communicator,
        tensors: Sequence[torch.Tensor],
        kernel: Callable[[list[torch.Tensor]], Any],
        *,
        writes: bool,
    ) -> _Pending:
        assert NcclLike.stream is not None
        call = _Call(list(tensors), kernel, writes, list(NcclLike.stream.awaited))
        communicator.launch(call)
        return _Pending(call, NcclLike.stream)


def _create(store: Store, rank: int, size: int, timeout: timedelta) -> ProcessGroup:  # noqa: ARG001 - torch's
    return NcclLike(store, rank, size)


def register() -> None:
    """Make the backend known to torch; a second call does nothing."""
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _create, devices=["cpu"])
