"""An optimizer's state by parameter name, whether it exists already or will only be created by the first step.

To know what a first step would create, one is taken on the spot, without hooks, with zero gradients, and undone: the
parameters, gradients and hyperparameters are put back bit for bit and the state is forgotten again.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from recovery.memory.local import local, wrapper_of

Array = npt.NDArray[np.generic]


class OptimizerState:
    """Names, takes and puts back: tensors as ``optim.PARAMETER.KEY``, everything else as plain data."""

    def __init__(self, optimizer: torch.optim.Optimizer, names: Mapping[str, torch.nn.Parameter]) -> None:
        self.optimizer = optimizer
        self._named: dict[str, tuple[list[str], list[tuple[str, str]]]] = {}
        """Parameter -> keys of its tensors, and (full name, key) of each in order."""
        by_id = {id(p): name for name, p in names.items()}
        self._parameters: dict[str, torch.Tensor] = {
            by_id.get(id(p), f"group{g}.{i}"): p
            for g, group in enumerate(optimizer.param_groups)
            for i, p in enumerate(group["params"])
        }
        with first_step_taken(optimizer):
            self._keys = {n: _tensor_keys(optimizer.state.get(p, {})) for n, p in self._parameters.items()}
            live = self._tensors()
            self._made = {full: torch.empty_like(local(t), device="meta") for full, t in live.items()}
            self._devices = {full: local(t).device for full, t in live.items()}
            self._wraps = {full: wrapper_of(t) for full, t in live.items()}

    def describe(self) -> Iterator[tuple[str, tuple[str, tuple[int, ...]]]]:
        for full, made in self._made.items():
            yield full, (str(made.dtype).removeprefix("torch."), tuple(made.shape))

    def take(self) -> tuple[dict[str, torch.Tensor | None], dict[str, Any]]:
        """The live tensors by name (None: not created yet), and the plain data.

        Raises:
            ValueError: a tensor appeared that the first step did not create; names it.
        """
        live = self._tensors()
        grown = live.keys() - self._made.keys()
        if grown:
            raise ValueError(f"the optimizer has grown state that its snapshot has no place for: {min(grown)!r}")
        plain = {name: _plain(self.optimizer.state.get(p, {})) for name, p in self._parameters.items()}
        scalars = {
            "absent": [index for index, full in enumerate(self._made) if full not in live],
            "groups": [_plain(group) for group in self.optimizer.param_groups],
            "state": {name: values for name, values in plain.items() if values},
        }
        return {full: local(live[full]) if full in live else None for full in self._made}, scalars

    def put(self, arrays: Mapping[str, Array], scalars: dict[str, Any]) -> None:
        """Restore in place; tensors that do not exist yet are made, ones that did not exist then are forgotten."""
        names = list(self._made)
        absent = {names[index] for index in scalars["absent"]}
        live = self._tensors()
        restored = {full: self._restored(full, live.get(full), arrays[full]) for full in names if full not in absent}
        for name, parameter in self._parameters.items():
            fresh: dict[str, Any] = dict(scalars["state"].get(name, {}))
            fresh |= {k: restored[_full(name, k)] for k in self._keys[name] if _full(name, k) in restored}
            self.optimizer.state.pop(parameter, None)
            if fresh:
                self.optimizer.state[parameter] = fresh
        self._put_groups(scalars)

    def put_scalars(self, scalars: dict[str, Any]) -> None:
        """Restore the plain data alone; the tensors are those that it was taken with."""
        for name, parameter in self._parameters.items():
            if name in scalars["state"]:
                self.optimizer.state[parameter].update(scalars["state"][name])
        self._put_groups(scalars)

    def _put_groups(self, scalars: dict[str, Any]) -> None:
        for group, kept in zip(self.optimizer.param_groups, scalars["groups"], strict=True):
            for key, value in kept.items():
                group[key] = tuple(value) if isinstance(group.get(key), tuple) else value

    def _restored(self, full: str, tensor: torch.Tensor | None, array: Array) -> torch.Tensor:
        """Strides are kept: element-wise arithmetic rounds differently along different ones."""
        target = torch.empty_like(self._made[full], device=self._devices[full]) if tensor is None else local(tensor)
        target.copy_(torch.from_numpy(array.reshape(-1).view(np.uint8)).view(target.dtype).reshape(target.shape))
        return self._wraps[full](target) if tensor is None else tensor

    def _tensors(self) -> dict[str, torch.Tensor]:
        """Every tensor that exists now, in an order that depends on names alone."""
        found: dict[str, torch.Tensor] = {}
        for name, parameter in self._parameters.items():
            state = self.optimizer.state.get(parameter, {})
            keys = [key for key, value in state.items() if isinstance(value, torch.Tensor)]
            known = self._named.get(name)
            if known is None or known[0] != keys:  # names are made once: the trainer stands still meanwhile
                known = self._named[name] = (keys, [(_full(name, key), key) for key in sorted(keys)])
            for full, key in known[1]:
                found[full] = state[key]
        for index, group in enumerate(self.optimizer.param_groups):
            found |= {f"optim.groups.{index}.{key}": group[key] for key in _tensor_keys(group)}
        return found


def _full(name: str, key: str) -> str:
    return f"optim.{name}.{key}"


def _tensor_keys(values: Mapping[str, Any]) -> list[str]:
    return sorted(key for key, value in values.items() if isinstance(value, torch.Tensor))


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """What is neither tensor nor list of parameters. Whether it is plain data indeed is checked when it is encoded."""
    return {k: v for k, v in values.items() if k != "params" and not isinstance(v, torch.Tensor)}


@contextmanager
def first_step_taken(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Inside the block the optimizer has stepped once; afterwards it never has. No-op if it already has state.

    Raises:
        ValueError: the optimizer needs a closure to step.
    """
    if optimizer.state:
        yield
        return
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    kept = [(p, p.detach().clone(), p.grad) for p in parameters]
    groups = [copy.deepcopy({k: v for k, v in group.items() if k != "params"}) for group in optimizer.param_groups]
    try:
        _step_with_zeros(optimizer, parameters)
        yield
    finally:
        with torch.no_grad():
            for parameter, value, gradient in kept:
                parameter.copy_(value)
                parameter.grad = gradient
            _put_back(optimizer.param_groups, groups)
        optimizer.state.clear()


def _step_with_zeros(optimizer: torch.optim.Optimizer, parameters: list[torch.Tensor]) -> None:
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    step: Any = type(optimizer).step
    unhooked = step.__wrapped__ if getattr(step, "hooked", False) else step
    try:
        unhooked(optimizer)
    except TypeError as error:
        kind = type(optimizer).__name__
        raise ValueError(f"{kind} does not step without a closure: take its first step, then attach") from error


def _put_back(groups: list[dict[str, Any]], kept: list[dict[str, Any]]) -> None:
    for group, values in zip(groups, kept, strict=True):
        for key, value in values.items():
            if isinstance(value, torch.Tensor):
                group[key].copy_(value)
            else:
                group[key] = value
