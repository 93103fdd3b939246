"""Where forward, backward and optimizer begin and end, found without a word from the script.

The forward pass is what lies between the hooks of the root module. The backward pass begins when the gradient of the
module's output is known, and ends with the autograd engine's run; a wrapper's own last work, such as DDP's wait for its
reducer, comes after that end and is counted as waiting. The hooks read tensors and never write them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import torch
from torch.autograd import Variable
from torch.utils.hooks import RemovableHandle

from mainstay.recovery.sdk.call_tracker import CallTracker
from mainstay.recovery.sdk.sections import BACKWARD, FORWARD, OPTIMIZER, Sections

TORCH: Final = 15e-6
"""Seconds that torch needs to call the hooks of a forward and a backward pass, counted as spent here since no clock in
here sees it: 13-20 us, as ``bench.sdk_overhead`` prints for the machine it runs on."""


class Hooks:
    """On one root module and one optimizer; ``remove`` takes them off again."""

    def __init__(self, model: torch.nn.Module, sections: Sections, traffic: CallTracker) -> None:
        self._sections, self._traffic, self._clock = sections, traffic, traffic.clock
        self.before_hidden_wait: Callable[[], None] = lambda: None
        """Called when the last gradient is there, before a wrapper waits for its peers."""
        self.after_backward: Callable[[], None] = lambda: None
        """Called when a backward pass has ended."""
        self.spent = 0.0
        """Seconds of the thread in here. Only grows."""
        self._spent_before = 0.0
        self._hidden: float | None = None
        self._after_wait: Callable[[], object] | None = None
        self._begun: list[bool] = []
        """Of each hook that is inside: whether its section is its own."""
        self._handles: list[RemovableHandle] = [
            model.register_forward_pre_hook(partial(self._begin, FORWARD)),
            model.register_forward_hook(self._forwarded),
        ]
        self._kind = "dp" if isinstance(model, torch.nn.parallel.DistributedDataParallel) else None

    def on_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Call it after other hooks are registered: a vote before the update is no part of it."""
        self._handles += (
            optimizer.register_step_pre_hook(partial(self._begin, OPTIMIZER)),
            optimizer.register_step_post_hook(self._updated),
        )

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    @property
    def seconds(self) -> float:
        """Spent in here since the step began."""
        return self.spent - self._spent_before

    def _begin(self, name: str, *_: Any) -> None:
        entered = time.perf_counter()
        self._begun.append(self._sections.begin_section(name))
        self.spent += time.perf_counter() - entered

    def _end(self) -> None:
        if self._begun and self._begun.pop():
            self._sections.end()

    def _updated(self, *_: Any) -> None:
        entered = time.perf_counter()
        self._end()
        self.spent += time.perf_counter() - entered

    def _forwarded(self, _: torch.nn.Module, __: Any, output: Any) -> None:
        entered = time.perf_counter()
        self._end()
        if torch.is_grad_enabled():
            tensor = next((t for t in _tensors(output) if t.requires_grad), None)
            if tensor is not None:
                tensor.register_hook(self._backward)  # type: ignore[no-untyped-call]
                self.spent += TORCH
        self.spent += time.perf_counter() - entered

    def _backward(self, _: torch.Tensor) -> None:
        entered = time.perf_counter()
        # Within a script's ``section("backward")`` only what follows the backward pass is of interest.
        _at_the_end(self._backwarded if self._sections.begin_section(BACKWARD) else self._gathered)
        self.spent += time.perf_counter() - entered

    def _backwarded(self) -> None:
        """The last gradient is there."""
        entered = time.perf_counter()
        self._sections.end()
        self.spent += time.perf_counter() - entered
        self._gathered()

    def _gathered(self) -> None:
        """What follows in this backward pass is DDP waiting for its peers, if it is there."""
        if self._kind is None:
            self.after_backward()
            return
        entered = time.perf_counter()
        self.before_hidden_wait()
        self._hidden = self._elsewhere()
        if self._traffic.stream is not None:
            self._after_wait = self._traffic.stream.wait(self._kind)
        _at_the_end(self._settled)
        self.spent += time.perf_counter() - entered

    def _settled(self) -> None:
        entered = time.perf_counter()
        if self._after_wait is not None:
            self._after_wait()
            self._after_wait = None
        if self._hidden is not None:
            self._traffic.count(self._kind, max(0.0, self._elsewhere() - self._hidden))
            self._hidden = None
        self._traffic.settle()
        self.after_backward()
        self.spent += time.perf_counter() - entered

    def _elsewhere(self) -> float:
        """A clock that stands still in waits that are counted already."""
        return self._clock.own() - self._traffic.waited_total

    def drop(self) -> None:
        """The step was canceled in the middle of something."""
        self._begun.clear()
        self._hidden = self._after_wait = None
        self._spent_before = self.spent


def _at_the_end(call: Callable[[], None]) -> None:
    """Have the autograd engine call ``call`` when its present run has no more gradients to compute."""
    Variable._execution_engine.queue_callback(call)  # noqa: SLF001 - as DDP and FSDP do; there is no public name


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
