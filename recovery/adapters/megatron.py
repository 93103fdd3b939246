"""For loops in the manner of Megatron-LM: ``save_checkpoint`` and ``load_checkpoint``, by the same names, on memory.

Call ``save_checkpoint`` after every iteration (it costs a copy within the node) and keep Megatron's own for the disk,
less often. ``load_checkpoint`` gives iteration 0 back where memory holds nothing that all ranks have: then load from
the disk as before. Every rank keeps its own part, under any tensor, pipeline and data parallelism, the
distributed optimizer's shards included.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from mainstay.recovery.adapters.state_dict_store import StateDictStore
from mainstay.recovery.memory.rng_state import RngState


def save_checkpoint(
    iteration: int,
    model: Sequence[torch.nn.Module] | torch.nn.Module,
    optimizer: Any,
    opt_param_scheduler: Any,
    num_floating_point_operations_so_far: float = 0,
) -> None:
    """Copy this rank's state after ``iteration`` to the node's standalone agent.

    Args:
        iteration: larger than the last one saved.
        model: this rank's chunks, in order.
        optimizer: with ``state_dict`` of tensors and plain data; None: there is none.
        opt_param_scheduler: the same.
        num_floating_point_operations_so_far: given back by ``load_checkpoint``.

    Raises:
        ValueError: a state dict holds something that is neither tensor nor plain data.
        RuntimeError: a peer is gone.
    """
    arrays, scalars = _generators().capture()
    tree = {
        "iteration": iteration,
        "flops": num_floating_point_operations_so_far,
        "model": [chunk.state_dict() for chunk in _chunks(model)],
        "optimizer": None if optimizer is None else optimizer.state_dict(),
        "scheduler": None if opt_param_scheduler is None else opt_param_scheduler.state_dict(),
        "random": {"arrays": arrays, "scalars": scalars},
    }
    _store().save(tree, iteration)


def load_checkpoint(
    model: Sequence[torch.nn.Module] | torch.nn.Module, optimizer: Any, opt_param_scheduler: Any
) -> tuple[int, float]:
    """Put the newest iteration that every rank has in memory back; (iteration, operations so far), (0, 0) if none.

    Raises:
        ValueError: the number of model chunks differs.
        RuntimeError: a peer is gone, or a state dict does not fit.
    """
    tree = _store().load()
    if tree is None:
        return 0, 0
    for chunk, state in zip(_chunks(model), tree["model"], strict=True):
        chunk.load_state_dict(state)
    for item, state in ((optimizer, tree["optimizer"]), (opt_param_scheduler, tree["scheduler"])):
        if item is not None and state is not None:
            item.load_state_dict(state)
    _generators().restore(tree["random"]["arrays"], tree["random"]["scalars"])
    return tree["iteration"], tree["flops"]


@functools.cache
def _store() -> StateDictStore:
    """The process's one, made when it is asked for."""
    return StateDictStore()


def _chunks(model: Sequence[torch.nn.Module] | torch.nn.Module) -> Sequence[torch.nn.Module]:
    return [model] if isinstance(model, torch.nn.Module) else model


def _generators() -> RngState:
    return RngState((torch.cuda.current_device(),) if torch.cuda.is_available() else ())
