"""The disk level: a directory a step that any ``torch.distributed.checkpoint`` tool reads, and manifests that we read.

pickle_codec   a pickle stream as data: written term by term, read without executing anything
torchfile   one tensor as ``torch.save`` has it, its bytes where they can be read without torch
torch_archive a whole file of ``torch.save``, read and written likewise
dcp         the ``.metadata`` of a step
file_errors the error that names a file which cannot be read
manifest    what we ourselves read: runs, parts, manifests, each with its checksum
catalog     what lies in a directory: runs, complete steps, what to keep
direct_file a file written past the page cache, digested in the same pass
listed_files, upload_state   what durable files in a step directory say, as agents and uploads list them
slot_tensors   the tensors of a slot, written as shares and digested
division    in which proportion replicas divide what they hold alike
save        a slot, or a rank's share of it, into a part of a step
load        tensors of a part; slot_reader: a slot of them
tensor_index, reshape   any box of a tensor from the pieces of all parts, for a job of another shape
logical, formats   any program's checkpoint as named global tensors; read, write, convert
writer      the process that writes; the agent feeds it
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mainstay.recovery.checkpoint.logical import LogicalCheckpoint


def open_checkpoint(path: Path | str) -> LogicalCheckpoint:
    """The checkpoint at ``path``, of any format that Mainstay reads, as named global tensors.

    Only metadata is read. ``open_checkpoint(p).tensors["model.W"].read()`` reads one tensor as a numpy array,
    ``.torch()`` as a torch tensor, ``.state_dict()`` the whole as nested dicts for ``load_state_dict``.

    Raises:
        CheckpointError: there is none, or it cannot be read; one line.
    """
    from mainstay.recovery.checkpoint import formats  # noqa: PLC0415 - agents need none of it

    return formats.open_checkpoint(path)
