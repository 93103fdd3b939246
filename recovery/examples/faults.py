"""Faults that an example can be told to have, so that it can be seen whether they are found. All are off by default.

``--faults`` or the variable ``MAINSTAY_EXAMPLE_FAULTS`` takes one or several, with semicolons between them::

    KIND:rank=R,step=S[,until=T][,ms=M][,peer=Q][,p=P][,bit=B][,file=F]

in steps S, S + 1, … T - 1 of rank R (without ``until``: in all from S on; ``nan``: only in S), with ``file`` only in
those that begin while there is a file F. Steps count from 0.

============ ======================================================================================================
sleep        M ms of sleep in every forward pass (four a step): a slow rank
busy         M ms of computing there: a slow rank whose processor is busy
data         M ms of waiting for every micro-batch: ``docs/examples/train_signals.py`` reports it as data wait
link         every transfer from rank Q to rank R takes M ms longer, once both are ready: a slow link
collective   every all-reduce ends M ms later on rank R, inside the call
nan          a NaN in the first gradient of rank R, before gradients are exchanged
hang         rank R sleeps for ever before it exchanges gradients
spin         the same, computing
raise        rank R raises ``mainstay.RetryStep`` before it exchanges gradients, once a process: repeated, it works
raise_late   the same right after its update, when others have committed the step
reset        every TCP connection of rank R is cut before it exchanges gradients, once a process
mismatch     rank R skips one all-reduce of its dp group: the others wait in it
flip         bit B (0 to 22, the mantissa) of one gradient is wrong with probability P a step, before the exchange
flip_update  the same behind the exchange: only the rank itself makes another update
============ ======================================================================================================

The last two are faults of a device, not of a step: R is a LOCAL_RANK, they begin in step S, and from then on the
process has them in every step, also when steps are made again. Whoever is given another device is rid of them.

The state of a run without faults, or with ``sleep``, ``busy``, ``data``, ``link`` and ``collective``, is the same to
the bit; under ``mainstay run`` also with ``raise``, ``raise_late`` and ``reset``.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

import torch
from torch.distributed import ProcessGroup, Work

from mainstay.recovery.sdk.failures import RetryStep
from mainstay.recovery.sdk.sockets import close_now, connections

VARIABLE: Final = "MAINSTAY_EXAMPLE_FAULTS"
KINDS: Final = (
    "sleep", "busy", "data", "link", "collective", "nan", "hang", "spin", "raise", "raise_late", "reset", "mismatch",
    "flip", "flip_update",
)  # fmt: skip
DEVICE: Final = frozenset({"flip", "flip_update"})
ONCE: Final = frozenset({"raise", "raise_late", "reset"})
_FOR_EVER: Final = 1 << 62
_MANTISSA_BITS: Final = 23
"""Of float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One of them."""

    kind: str
    rank: int
    step: int = 0
    until: int = _FOR_EVER
    ms: float = 0.0
    peer: int = -1
    p: float = 1.0
    bit: int = 20
    file: str = ""

    @property
    def seconds(self) -> float:
        return self.ms / 1000.0

    def holds(self, rank: int, step: int) -> bool:
        if self.kind in DEVICE:
            rank = int(os.environ.get("LOCAL_RANK", rank))
        return self.rank == rank and self.step <= step < self.until and (not self.file or Path(self.file).exists())


class _Delays:
    """Below the hooks on torch's calls, so that a delay looks to it like a slow network."""

    def __init__(self) -> None:
        self.faults: tuple[Fault, ...] = ()
        self._slow: dict[int, float] = {}
        self._installed = False

    def install(self) -> None:
        if self._installed:
            return
        from mainstay.recovery.sdk import collective_hooks  # noqa: PLC0415 - only where a fault wants it

        watched = collective_hooks.uninstall()
        self._wrap("recv", lambda args: self._seconds("link", int(args[1])))
        self._wrap("allreduce", lambda _: self._seconds("collective", -1))
        wait = Work.wait

        def late(work: Work, /, *args: Any, **kwargs: Any) -> Any:
            result = wait(work, *args, **kwargs)
            time.sleep(self._slow.pop(id(work), 0.0))
            return result

        Work.wait = late  # type: ignore[assignment, method-assign]
        if watched:
            collective_hooks.install()
        self._installed = True

    def _wrap(self, name: str, seconds: Callable[[Any], float]) -> None:
        original = getattr(ProcessGroup, name)

        def call(group: ProcessGroup, /, *args: Any, **kwargs: Any) -> Any:
            work = original(group, *args, **kwargs)
            delay = seconds(args)
            if delay:
                self._slow[id(work)] = delay
            return work

        setattr(ProcessGroup, name, call)

    def _seconds(self, kind: str, peer: int) -> float:
        return sum(fault.seconds for fault in self.faults if fault.kind == kind and fault.peer == peer)


@dataclass(slots=True)
class Faults:
    """Those of a command line, and which of them hold in the step under way."""

    all: tuple[Fault, ...] = ()
    now: tuple[Fault, ...] = ()
    delays: _Delays = field(default_factory=_Delays)
    broken: set[Fault] = field(default_factory=set)
    """Faults of this process's device that have begun."""
    spent: set[Fault] = field(default_factory=set)
    """Those that a process has once, and that this one has had."""
    chance: random.Random = field(default_factory=lambda: random.Random(7))  # noqa: S311 - a fault, not a secret

    def enter(self, rank: int, step: int) -> None:
        if not self.all:
            return
        self.broken |= {fault for fault in self.all if fault.kind in DEVICE and fault.holds(rank, step)}
        self.now = tuple(fault for fault in self.all if fault.holds(rank, step) or fault in self.broken)
        if any(fault.kind in {"link", "collective"} for fault in self.all):
            self.delays.install()
            self.delays.faults = self.now

    def in_forward(self) -> None:
        for fault in self.now:
            if fault.kind == "sleep":
                time.sleep(fault.seconds)
            elif fault.kind == "busy":
                _compute(fault.seconds)

    def in_data(self) -> None:
        for fault in self.now:
            if fault.kind == "data":
                time.sleep(fault.seconds)

    def before_exchange(self, model: torch.nn.Module) -> None:
        for fault in self.now:
            if fault.kind == "nan":
                gradient = next(p.grad for p in model.parameters() if p.grad is not None)
                gradient.view(-1)[0] = float("nan")
            elif fault.kind == "hang":
                time.sleep(_FOREVER_SECONDS)
            elif fault.kind == "spin":
                _compute(_FOREVER_SECONDS)
            elif fault.kind in {"raise", "reset"}:
                self._once(fault)
        self._flip("flip", model)

    def after_exchange(self, model: torch.nn.Module) -> None:
        self._flip("flip_update", model)

    def after_update(self) -> None:
        for fault in self.now:
            if fault.kind == "raise_late":
                self._once(fault)

    def _once(self, fault: Fault) -> None:
        if fault in self.spent:
            return
        self.spent.add(fault)
        print(f"fault {fault.kind} in step {fault.step} at {time.time():.6f}", flush=True)  # noqa: T201 - evidence
        if fault.kind == "reset":
            close_now(connections())
        else:
            raise RetryStep(f"as --faults wanted in step {fault.step}")

    def _flip(self, kind: str, model: torch.nn.Module) -> None:
        for fault in self.now:
            if fault.kind == kind and self.chance.random() < fault.p:
                gradient = max((p.grad for p in model.parameters() if p.grad is not None), key=torch.Tensor.numel)
                words = gradient.view(torch.int32).view(-1)
                words[self.chance.randrange(len(words))] ^= 1 << fault.bit

    def skips_exchange(self) -> bool:
        return any(fault.kind == "mismatch" for fault in self.now)


_FOREVER_SECONDS: Final = 1e6


def _compute(seconds: float) -> None:
    """Keep a core busy for so much of this thread's processor time, letting other threads of Python have their turn."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(1000))


def parse(text: str) -> Faults:
    """Read what ``--faults`` takes.

    Raises:
        ValueError: says what is wrong.
    """
    return Faults(tuple(_fault(part.strip()) for part in text.split(";") if part.strip()))


def _fault(text: str) -> Fault:
    kind, _, rest = text.partition(":")
    known = {f.name: {"ms": float, "p": float, "file": str}.get(f.name, int) for f in fields(Fault) if f.name != "kind"}
    values: dict[str, Any] = {}
    for word in rest.split(","):
        name, _, value = word.partition("=")
        if name not in known:
            raise ValueError(f"{text!r}: {name!r} is none of {', '.join(known)}")
        values[name] = known[name](value)
    if kind not in KINDS:
        raise ValueError(f"{text!r}: {kind!r} is none of {', '.join(KINDS)}")
    if "rank" not in values or (kind == "link") != ("peer" in values):
        raise ValueError(f"{text!r}: a fault has a rank, and a link, and nothing else, a peer")
    if not 0 <= values.get("bit", 0) < _MANTISSA_BITS or not 0.0 <= values.get("p", 0.0) <= 1.0:
        raise ValueError(f"{text!r}: a bit of the mantissa is 0 to {_MANTISSA_BITS - 1}, and a probability 0 to 1")
    if kind in {"nan", "mismatch"} | ONCE:
        values.setdefault("until", values.get("step", 0) + 1)
    return Fault(kind=kind, **values)


def add_faults(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--faults", type=parse, default=os.environ.get(VARIABLE, ""), help="see faults.py")
