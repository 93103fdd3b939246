"""What an optimizer's first step would create, found out without taking one.

A stand-in of each parameter, of its shape and without memory (device ``meta``), goes through the step of one of torch's
own optimizers in its place: a few milliseconds, not the half second of Adam over 20 million parameters, and nowhere a
second copy of parameters and state. Where an optimizer cannot, or is third-party code, a real step is taken at once,
without hooks, with zero gradients, and undone: parameters, gradients and hyperparameters are put back bit for bit.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

log = logging.getLogger("mainstay.sdk")


@contextmanager
def first_step_taken(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Inside the block ``optimizer.state`` is as after a first step; afterwards it never has stepped.

    Tensors of that state may be on device ``meta``: they will be made where their parameter is. No-op if the optimizer
    has state already.

    Raises:
        ValueError: the optimizer needs a closure to step.
    """
    if optimizer.state:
        yield
        return
    groups = [copy.deepcopy({k: v for k, v in group.items() if k != "params"}) for group in optimizer.param_groups]
    try:
        if _stood_in(optimizer):
            yield
            return
        _put_back(optimizer.param_groups, groups)
        with _really_taken(optimizer):
            yield
    finally:
        with torch.no_grad():
            _put_back(optimizer.param_groups, groups)
        optimizer.state.clear()


def _stood_in(optimizer: torch.optim.Optimizer) -> bool:
    """Whether stand-ins could take the step; ``state`` is then that of the parameters that they stand for."""
    parameters = [group["params"] for group in optimizer.param_groups]
    if not _is_torchs(optimizer) or any(not _is_plain(p) for params in parameters for p in params):
        return False
    twins = {p: _twin(p, optimizer) for params in parameters for p in params}
    try:
        for group in optimizer.param_groups:
            group["params"] = [twins[p] for p in group["params"]]
        _step(optimizer)
        made = dict(optimizer.state)
    except Exception as error:  # noqa: BLE001 - boundary: what an optimizer cannot do without data it does with data
        log.debug("%s steps on real tensors: %s", type(optimizer).__name__, error)
        return False
    finally:
        for group, params in zip(optimizer.param_groups, parameters, strict=True):
            group["params"] = params
        optimizer.state.clear()
    optimizer.state.update({parameter: made[twin] for parameter, twin in twins.items() if twin in made})
    return True


def _is_torchs(optimizer: torch.optim.Optimizer) -> bool:
    """Third-party code may call peers, or keep parameters of its own."""
    return type(optimizer).__module__.startswith("torch.optim.")


def _is_plain(parameter: torch.Tensor) -> bool:
    return type(parameter) in {torch.nn.Parameter, torch.Tensor} and parameter.layout is torch.strided


def _twin(parameter: torch.Tensor, optimizer: torch.optim.Optimizer) -> torch.nn.Parameter:
    """Of equal shape, strides and type, with a gradient, and no memory."""
    twin = torch.nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=parameter.requires_grad)
    if parameter.requires_grad:
        twin.grad = _zero_gradient(twin, optimizer)
    return twin


def _zero_gradient(parameter: torch.Tensor, optimizer: torch.optim.Optimizer) -> torch.Tensor:
    """Of the kind that ``optimizer`` takes."""
    sparse = isinstance(optimizer, torch.optim.SparseAdam)
    return torch.zeros_like(parameter, layout=torch.sparse_coo) if sparse else torch.zeros_like(parameter)


@contextmanager
def _really_taken(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    kept = [(p, p.detach().clone(), p.grad) for p in parameters]
    try:
        for parameter in parameters:
            parameter.grad = _zero_gradient(parameter, optimizer)
        _step(optimizer)
        yield
    finally:
        with torch.no_grad():
            for parameter, value, gradient in kept:
                parameter.copy_(value)
                parameter.grad = gradient


def _step(optimizer: torch.optim.Optimizer) -> None:
    """Without hooks."""
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
