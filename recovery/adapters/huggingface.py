"""``transformers.Trainer`` on memory: ``trainer.train(resume_from_checkpoint=protect(trainer))``.

Every update is copied to the node's standalone agent. A restarted trainer skips the batches that were made (by its own
logic, told by a ``trainer_state.json``) and then, before its first forward pass, gets parameters, optimizer, scheduler
and random numbers back from memory, bit for bit. What the trainer had logged before is not kept.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import torch.distributed as dist
from safetensors.torch import save_model
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from mainstay.recovery.memory.state import TrainerState as SnapshotState
from mainstay.recovery.sdk.standalone import StandaloneSession

_STATE: Final = "trainer_state.json"
_WEIGHTS: Final = "model.safetensors"


def protect(trainer: Trainer) -> str | None:
    """Save ``trainer`` after every update; the checkpoint to resume from, None when training begins again.

    Raises:
        ValueError: the trainer shards its model (FSDP, DeepSpeed): ``adapters.dcp`` is for those.
    """
    if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        raise ValueError("this adapter keeps whole models: for FSDP and DeepSpeed use mainstay.recovery.adapters.dcp")
    session = StandaloneSession(replicas=range(dist.get_world_size()) if dist.is_initialized() else ())
    epoch = session.newest()
    trainer.add_callback(_Protection(session, epoch))
    if epoch is None or session.folder is None:
        return None
    return str(_checkpoint(trainer, epoch, session.folder / f"resume-{session.rank}"))


def _checkpoint(trainer: Trainer, epoch: int, folder: Path) -> Path:
    """The part of a checkpoint that the trainer requires: how far it is, and weights, which memory then replaces."""
    folder.mkdir(exist_ok=True)
    state = TrainerState(global_step=epoch, train_batch_size=trainer.args.train_batch_size)
    state.compute_steps(trainer.args, trainer.args.max_steps)  # type: ignore[no-untyped-call]
    state.save_to_json(str(folder / _STATE))
    assert trainer.model is not None
    save_model(trainer.model, str(folder / _WEIGHTS))
    return folder


class _Protection(TrainerCallback):
    """Saves at the end of each update; restores at the start of the first one."""

    def __init__(self, session: StandaloneSession, epoch: int | None) -> None:
        self._session = session
        self._epoch = epoch
        self._resumed = False

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        optimizer = kwargs["optimizer"]
        optimizer = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it
        self._session.register(SnapshotState(kwargs["model"], optimizer, {"scheduler": kwargs["lr_scheduler"]}))
        optimizer.register_step_pre_hook(self._before_update)

    def _before_update(self, *_: object) -> None:
        self._session.settle()

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._resumed:
            return
        self._resumed = True
        found = self._session.resume()
        if found != (self._epoch or 0):  # a slot proved unreadable, and the trainer cannot be sent back any more
            raise RuntimeError(f"epoch {self._epoch} cannot be read from memory: start again (or MAINSTAY_RESUME=0)")

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._session.save(state.global_step)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._session.close()
