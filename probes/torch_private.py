"""Every undocumented name of PyTorch that Mainstay uses, and nothing else.

PyTorch may rename or remove these names in any release. Each name was seen in all versions from ``OLDEST`` to
``NEWEST``, and no documented name does the same. Other modules import the functions below, and a name that is gone
gives one line with it. ``check`` looks all names of the training SDK up when the SDK is imported: a name that only a
recovery needs must not be found missing during one.

The names of pickled objects in checkpoint files, such as ``torch._utils._rebuild_tensor_v2``, belong to the file format
and stay in ``mainstay.recovery.checkpoint``.
"""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:  # the node daemon runs without torch
    import torch
    from torch.distributed import ProcessGroup, ProcessGroupGloo

OLDEST: Final = "2.6"
NEWEST: Final = "2.13"
"""The newest version that the tests run on. Newer versions may work; ``check`` tells."""

ABORT_PROCESS_GROUP: Final = "torch.distributed.distributed_c10d._abort_process_group"
"""Ends NCCL collectives that wait for a dead rank; the public destroy waits for them."""
WORLD: Final = "torch.distributed.distributed_c10d._world"
"""Has all process groups, and counts them to name them; the count must start over in each generation."""
GLOO: Final = "torch.distributed.distributed_c10d.ProcessGroupGloo"
"""Is replaced while groups form, so that forming can be given up."""
SEQUENCE_NUMBER: Final = "torch.distributed.ProcessGroup._get_sequence_number_for_group"
"""Counts the collectives that C++ code starts."""
FOREACH_NORM: Final = "torch._foreach_norm"
"""Computes the norms of many tensors in one call, as torch.nn.utils.clip_grad_norm_ does."""
FLATTEN_STATE_DICT: Final = "torch.distributed.checkpoint._nested_dict.flatten_state_dict"
"""Names the entries of a state dict as torch.distributed.checkpoint does."""
CREATE_ON_CPU: Final = "torch.distributed._state_dict_utils._create_cpu_state_dict"
"""Makes room for a copy of a state dict, as the BlockingAsyncStager of torch 2.13 does."""
COPY_STATE_DICT: Final = "torch.distributed._state_dict_utils._copy_state_dict"
"""Copies a state dict into that room; the stager of torch 2.6 copies no CPU tensors."""
SHARD_OFFSETS: Final = "torch.distributed.tensor._utils.compute_local_shape_and_global_offset"
"""Says which part of a DTensor a rank holds."""
INT8_MATMUL: Final = "torch._int_mm"
"""Multiplies int8 matrices."""
FP8_MATMUL: Final = "torch._scaled_mm"
"""Multiplies fp8 matrices."""
COMPILER_CONFIG: Final = "torch._inductor.config"
"""Limits the compiler to one process."""
FLIGHT_RECORDER: Final = (
    "torch._C._distributed_c10d._dump_fr_trace_json",
    "torch._C._distributed_c10d._dump_nccl_trace_json",
)
"""Says which collectives a rank has entered and left. The second name is that of torch 2.6, with CUDA only."""
SDK: Final = (ABORT_PROCESS_GROUP, WORLD, GLOO, SEQUENCE_NUMBER, FOREACH_NORM)


class UnsupportedTorchError(ImportError):
    """The installed torch lacks a name that Mainstay needs."""


def check(names: Sequence[str] = SDK) -> None:
    """Look ``names`` up.

    Raises:
        UnsupportedTorchError: the installed torch lacks one of them; the message is one line.
    """
    for name in names:
        _find(name)


@functools.cache
def _find(name: str) -> Any:
    import torch  # noqa: PLC0415 - a missing torch is an error of its own

    try:
        return pkgutil.resolve_name(name)
    except (ImportError, AttributeError) as error:
        raise UnsupportedTorchError(
            f"Mainstay needs {name}, which torch {torch.__version__} does not have. Use torch {OLDEST} to {NEWEST}."
        ) from error


def abort_process_group() -> None:
    """End all pending NCCL collectives of the default group and its subgroups, and forget the groups.

    Does nothing when there is no default group, as after the first call; torch raises an AssertionError then.

    Raises:
        RuntimeError: torch cannot abort them.
    """
    with suppress(AssertionError, ValueError):  # the training thread has just destroyed the groups
        _find(ABORT_PROCESS_GROUP)()


def reset_group_count() -> None:
    """Have torch number the process groups that form next from zero."""
    _find(WORLD).group_count = 0


@contextmanager
def gloo_class(replacement: type[ProcessGroupGloo]) -> Iterator[None]:
    """Have ``torch.distributed`` build ``replacement`` wherever it would build a gloo group."""
    module = pkgutil.resolve_name(GLOO.rpartition(".")[0])
    original = _find(GLOO)
    module.ProcessGroupGloo = replacement
    try:
        yield
    finally:
        module.ProcessGroupGloo = original


def sequence_number(group: ProcessGroup) -> int:
    """Return the number of collectives that ``group`` has started.

    Raises:
        RuntimeError: the backend does not count.
    """
    return int(group._get_sequence_number_for_group())  # type: ignore[attr-defined]  # noqa: SLF001


def flight_recorder() -> bytes:
    """Return the rank's flight recorder, as the JSON that torch writes.

    Raises:
        UnsupportedTorchError: this torch has none.
    """
    try:
        dump = _find(FLIGHT_RECORDER[0])
    except UnsupportedTorchError:
        dump = _find(FLIGHT_RECORDER[1])
    return bytes(dump(True, False))  # with collectives, and not only open ones


def process_groups() -> dict[str, tuple[str, list[int]]]:
    """Return the description and the global ranks of each process group of this rank, by name."""
    world = _find(WORLD)
    names = dict(world.pg_names)
    return {name: (group.group_desc, sorted(world.pg_group_ranks[group])) for group, name in names.items()}


def foreach_norm(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the 2-norm of each tensor."""
    return list(_find(FOREACH_NORM)(list(tensors)))


def flatten_state_dict(state_dict: dict[str, Any]) -> dict[str, Any]:
    """Return the entries of a nested state dict by the names that ``torch.distributed.checkpoint`` gives them."""
    flat: dict[str, Any] = _find(FLATTEN_STATE_DICT)(state_dict)[0]
    return flat


def copy_to_cpu(state_dict: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a nested state dict on the CPU; it is complete when this returns."""
    room = _find(CREATE_ON_CPU)(state_dict)
    copied: dict[str, Any] = _find(COPY_STATE_DICT)(state_dict, room, type_check=False)
    return copied


def shard_offsets(shape: torch.Size, mesh: Any, placements: Any) -> tuple[int, ...]:
    """Return where the local part of a DTensor of this ``shape`` begins, for each dimension."""
    return tuple(_find(SHARD_OFFSETS)(shape, mesh, placements)[1])


def int8_matmul(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Multiply two int8 matrices into int32."""
    product: torch.Tensor = _find(INT8_MATMUL)(left, right)
    return product


def fp8_matmul(left: torch.Tensor, right: torch.Tensor, *, scale: torch.Tensor, out: torch.dtype) -> torch.Tensor:
    """Multiply two fp8 matrices with the same ``scale`` into ``out``; ``right`` is column-major."""
    product: torch.Tensor = _find(FP8_MATMUL)(left, right, scale_a=scale, scale_b=scale, out_dtype=out)
    return product


def compile_in_process() -> None:
    """Have ``torch.compile`` start no pool of compiler processes."""
    _find(COMPILER_CONFIG).compile_threads = 1
