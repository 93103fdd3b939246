"""An optimizer's state by parameter name, whether it exists already or will only be created by the first step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from mainstay.recovery.memory.dtensor import global_slice, local, wrapper_of
from mainstay.recovery.memory.first_step import first_step_taken
from mainstay.recovery.memory.tensor_restore import Array, restore_tensors


class OptimizerState:
    """Names, takes and puts back: tensors as ``optim.PARAMETER.KEY``, everything else as plain data."""

    def __init__(self, optimizer: torch.optim.Optimizer, names: Mapping[str, torch.nn.Parameter]) -> None:
        self.optimizer = optimizer
        self._named: dict[str, tuple[list[str], list[tuple[str, str]]]] = {}
        """Parameter -> keys of its tensors, and (full name, key) of each in order."""
        by_id = {id(p): name for name, p in names.items()}
        groups = [group["params"] for group in optimizer.param_groups]
        self._groups = [[by_id.get(id(p), f"group{g}.{i}") for i, p in enumerate(of)] for g, of in enumerate(groups)]
        """Names of the parameters of each group."""
        self._parameters: dict[str, torch.Tensor] = {
            name: p for names, of in zip(self._groups, groups, strict=True) for name, p in zip(names, of, strict=True)
        }
        with first_step_taken(optimizer):
            self._keys = {n: _tensor_keys(optimizer.state.get(p, {})) for n, p in self._parameters.items()}
            live = self._tensors()
            self._made = {full: torch.empty_like(local(t), device="meta") for full, t in live.items()}
            self._devices = self._places(live)
            self._wraps = {full: wrapper_of(t) for full, t in live.items()}
            self.slices = {full: place for full, t in live.items() if (place := global_slice(t)) is not None}
            """Of tensors that are distributed."""
        self.owners = {full: name for name, keys in self._named.items() for full, _ in keys[1]}
        """Tensor -> the parameter that it belongs to."""

    def _places(self, live: Mapping[str, torch.Tensor]) -> dict[str, torch.device]:
        """Where each tensor is, or will be made: beside its parameter, if it has no memory yet."""
        beside = {
            _full(name, key): local(parameter).device
            for name, parameter in self._parameters.items()
            for key in self._keys[name]
        }
        return {full: beside[full] if t.is_meta else local(t).device for full, t in live.items()}

    def describe(self) -> Iterator[tuple[str, tuple[str, tuple[int, ...]]]]:
        for full, made in self._made.items():
            yield full, (str(made.dtype).removeprefix("torch."), tuple(made.shape))

    def capture(self) -> tuple[dict[str, torch.Tensor | None], dict[str, Any]]:
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
            "parameters": self._groups,
            "state": {name: values for name, values in plain.items() if values},
        }
        return {full: local(live[full]) if full in live else None for full in self._made}, scalars

    def put(self, arrays: Mapping[str, Array], scalars: dict[str, Any]) -> None:
        """Restore in place; tensors that do not exist yet are made, ones that did not exist then are forgotten."""
        names = list(self._made)
        absent = {names[index] for index in scalars["absent"]}
        live = self._tensors()
        targets = {
            full: local(live[full])
            if full in live
            # Strides are kept: element-wise arithmetic rounds differently along different ones.
            else torch.empty_like(self._made[full], device=self._devices[full])
            for full in names
            if full not in absent
        }
        restore_tensors((target.detach(), arrays[full]) for full, target in targets.items())
        restored = {full: live[full] if full in live else self._wraps[full](target) for full, target in targets.items()}
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
