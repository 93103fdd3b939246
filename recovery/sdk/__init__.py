"""The training SDK: five lines in a script, and a lost rank costs a step instead of an hour.

    mesh = mainstay.init(dp=2, pp=2)
    …
    run = mainstay.attach(model, optimizer)
    for step in run.steps(total):
        with run.step():
            …
            optimizer.step()

Under ``mainstay run`` the script survives the loss of ranks. Under plain ``python`` or ``torchrun`` the same calls make
ordinary process groups and an ordinary loop; with a standalone agent on the node (``mainstay agent --job NAME``) that
loop resumes from memory when it is started again. DDP, FSDP2 and HSDP take ``attach`` alone, without ``init``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from mainstay.probes.torch_private import check as check_torch
from mainstay.recovery.agent.standalone import job_name
from mainstay.recovery.memory.global_slices import Sharding
from mainstay.recovery.mesh_shape import MeshShape
from mainstay.recovery.sdk.data_order import ResumableSampler, ResumableStream
from mainstay.recovery.sdk.failures import RetryStep
from mainstay.recovery.sdk.gradient_accumulator import GradientAccumulator
from mainstay.recovery.sdk.launcher_client import installed
from mainstay.recovery.sdk.layer_accumulator import LayerGradientAccumulator
from mainstay.recovery.sdk.mesh import Mesh, build_mesh, told_shape
from mainstay.recovery.sdk.run import TrainingRun

if TYPE_CHECKING:
    from mainstay.recovery.sdk.meter import Sent

check_torch()

__all__ = [
    "GradientAccumulator",
    "LayerGradientAccumulator",
    "Mesh",
    "ResumableSampler",
    "ResumableStream",
    "RetryStep",
    "TrainingRun",
    "attach",
    "init",
    "watch",
]

_mesh: Mesh | None = None
_told = False
"""The shape of ``_mesh`` is what the launcher said."""


def init(
    *, dp: int | None = None, pp: int | None = None, tp: int = 1, ep: int | None = None, backend: str | None = None
) -> Mesh:
    """Meet the other ranks and form their process groups. Call it once, before the model is built.

    Args:
        dp: data-parallel replicas; 1 where only ``pp`` is given. With neither, both are what the launcher was told
            (``mainstay run --dp D --pp P``, later ``mainstay job reshape``, or what is left after a loss): read them
            from ``mesh.shape``, and the stages of this rank's own pipeline from ``mesh.stages``. If it was told
            nothing, there is one stage, and as many replicas as the ranks allow.
        pp: pipeline stages, likewise.
        tp: tensor-parallel ranks. Where this gives neither ``dp`` nor ``pp``, the launcher's number counts if it has
            one (``mainstay run --tp T``, ``mainstay job reshape --tp T``): read it from ``mesh.shape``.
        ep: how many consecutive data-parallel ranks divide the experts of a mixture among themselves: for ``mesh.ep``
            and ``mesh.expert_dp``. It must divide ``dp``.
        backend: of ``torch.distributed``; by default NCCL where there are GPUs, else gloo.

    Raises:
        ValueError: ``dp * pp * tp`` is not the number of ranks, or ``ep`` does not divide ``dp``.
        RuntimeError: called twice.
    """
    global _mesh, _told  # noqa: PLW0603 - a process is one rank of one mesh
    if _mesh is not None:
        raise RuntimeError("mainstay.init was called twice")
    _told = dp is None and pp is None
    shape = told_shape(tp) if _told else MeshShape(dp=1 if dp is None else dp, pp=1 if pp is None else pp, tp=tp)
    _mesh = build_mesh(shape, ep, backend=backend, link=installed())
    return _mesh


def attach(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    extra: Mapping[str, Any] | None = None,
    *,
    names: Mapping[str, str] | None = None,
    sharding: Sharding | None = None,
    retry: Iterable[type[Exception]] = (),
) -> TrainingRun:
    """Put ``model`` and ``optimizer`` (and random numbers, always) under protection.

    Args:
        model: this rank's own part.
        optimizer: over the parameters of ``model``.
        extra: what else must come back after a failure: name -> anything with ``state_dict`` and ``load_state_dict``
            (a scheduler, a scaler, a sampler), or a plain dict of numbers and text.
        names: module here -> module in the whole model, for a pipeline stage: so that a step that it saves can be
            resumed from with other stages. ``{}`` where the stage was cut out of the model and kept its names.
        sharding: parameter or buffer (or a pattern with ``*``) -> the dimension along which the script itself cuts it
            evenly among tensor-parallel ranks, or (dimension, rank, ranks) where it cuts it among others, as experts
            among expert-parallel ranks; a list where it does both. So that a step can be resumed from with other
            sizes. A ``DTensor`` needs no entry. Tensors that are cut otherwise (fused projections) must be split first.
        retry: exceptions after which a step is made again by the same processes, with ``RetryStep`` and what a
            broken collective raises. A rank that raises again soon gets a new process.

    Raises:
        ValueError: ``names`` fit nothing, or give two tensors one name; ``sharding`` fits nothing.
        TypeError: ``retry`` holds what is no class of exceptions.
        RuntimeError: before ``init`` under ``mainstay run``; otherwise before there is a process group at all.
    """
    if _mesh is None and installed() is not None:
        raise RuntimeError("call mainstay.init before mainstay.attach: mainstay run forms the process groups")
    # A run imports only what it needs: a plain run needs neither of these modules.
    if _mesh is not None and _mesh.link is not None:
        from mainstay.recovery.sdk.protected import ProtectedRun  # noqa: PLC0415

        return ProtectedRun(
            _mesh, _mesh.link, model, optimizer, extra, names=names, sharding=sharding, told=_told, retry=retry
        )
    if job_name():
        from mainstay.recovery.sdk.torchrun_loop import StandaloneRun  # noqa: PLC0415

        return StandaloneRun(model, optimizer, extra, mesh=_mesh)
    return TrainingRun(_mesh)


def watch(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    start: int = 0,
    on_record: Callable[[Sent], None] | None = None,
) -> TrainingRun:
    """Measure a run and protect nothing: for DDP, FSDP2 and other programs that ``attach`` does not take yet.

    Under ``mainstay run`` the figures go to the launcher, with ``init`` or without it; otherwise to ``on_record``.

    Args:
        model: the root module: what ``forward`` is called on, so the wrapper where there is one.
        optimizer: whose ``step`` is the update.
        start: steps that were made before, as told by a checkpoint.
        on_record: called in the training thread with every ``StepRecord`` and ``Transfers``.
    """
    from mainstay.recovery.sdk.metered import WatchedRun  # noqa: PLC0415 - brings what a plain run does not need

    return WatchedRun(_mesh, installed(), model, optimizer, start=start, on_record=on_record)
