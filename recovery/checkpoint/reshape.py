"""A step that was saved in one shape, as the state of a rank of a job that has another: any (dp, pp, tp, ep) from any.

Parts are looked through for the tensors that the rank has, by their names in the whole model (``memory.model_names``)
and their places in the tensors of the whole model (``memory.global_slices``): Universal Checkpointing (Lian et al.
2024, arXiv 2406.18820) with the parts themselves as the atomic form. FSDP2 and ``DTensor`` say how they cut; a script
that cuts tensors itself declares it (``mainstay.attach`` with ``sharding``), otherwise another tensor size is refused.

What is no tensor of the model comes from the rank that stood where this one stands (the same replica, the stage at the
same depth): random numbers, extras. Scalars of optimizers are assigned by parameter name. No torch here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from mainstay.probes.decoding import UNREADABLE
from mainstay.recovery.checkpoint.catalog import RunDirectory
from mainstay.recovery.checkpoint.dcp import BLOB
from mainstay.recovery.checkpoint.manifest import CheckpointError, CheckpointPart, Manifest
from mainstay.recovery.checkpoint.slot_reader import Exchange, Reuse, SlotReader
from mainstay.recovery.memory import varlen_buffer
from mainstay.recovery.memory.digest import Bytes
from mainstay.recovery.memory.global_slices import SLICES, Slices, encode
from mainstay.recovery.memory.layout import Layout, TensorSpec
from mainstay.recovery.memory.model_names import MARK, MODEL
from mainstay.recovery.memory.shard import SHARD
from mainstay.recovery.mesh_shape import MeshShape

Arrays = dict[str, npt.NDArray[np.generic]]
PartOf = tuple[int, int]
"""(rank, generation)."""


def sources(manifest: Manifest, shape: MeshShape, rank: int) -> tuple[PartOf, ...]:
    """The parts out of which ``rank`` of a job of ``shape`` takes its state: the one whose own things it takes first.

    A single one, to be taken whole, where pipeline sizes agree; else one of each stage (see ``GatherReader``).

    Raises:
        CheckpointError: the step does not fit a job of this shape; one line that says why.
    """
    old = manifest.shape
    if not needed(manifest, shape, rank):
        return (substitute_part(manifest, shape, rank),)
    if old.tp not in {1, shape.tp} and not manifest.sliced:
        why = "it does not say how tensors are cut. Give mainstay.attach sharding= before it is saved"
        raise CheckpointError(_made_with(manifest, shape, why))
    if not manifest.has_model_names:
        why = "its names are each stage's own. Give mainstay.attach names= before it is saved"
        raise CheckpointError(_made_with(manifest, shape, why))
    (dp, pp, tp), (depth, *_) = shape.place(rank), shape.cut(rank)
    there = _depth(manifest, depth)
    slim = MeshShape(dp=shape.dp, pp=there, tp=old.tp)
    here = slim.rank_of(dp=dp, pp=pp * there // depth, tp=tp * old.tp // shape.tp)
    if manifest.needs_all:
        kept = {part.rank: part.generation for part in manifest.parts}
        first = here % old.world_size if here % old.world_size in kept else min(kept)
        return ((first, kept[first]), *((peer, made) for peer, made in kept.items() if peer != first))
    ranks = [here, *(slim.rank_of(dp=dp, pp=p, tp=t) for p in range(there) for t in range(old.tp))]
    return tuple(substitute_part(manifest, slim, one) for one in dict.fromkeys(ranks))


def needed(manifest: Manifest, shape: MeshShape, rank: int) -> bool:
    """Whether ``rank`` of ``shape`` needs several parts, or one that is not its own."""
    old, cut = manifest.shape, shape.cut(rank)
    if old.tp != shape.tp or cut[0] not in old.stages or (old.dp != shape.dp and manifest.needs_all):
        return True
    # Of pipelines of unlike depth one may be whole where another is not.
    return bool(old.depths) and not any(old.cut(part.rank) == cut for part in manifest.parts)


def _depth(manifest: Manifest, wanted: int) -> int:
    """Stages of the pipelines whose parts are read: of those that are whole, the depth that is nearest."""
    old = manifest.shape
    held = {old.cut(part.rank) for part in manifest.parts}

    def worth(depth: int) -> tuple[bool, int, int]:
        missing = any((depth, stage, tp) not in held for stage in range(depth) for tp in range(old.tp))
        return missing, abs(depth - wanted), depth

    return min({*old.stages}, key=worth)


def _made_with(manifest: Manifest, shape: MeshShape, why: str) -> str:
    return (
        f"step {manifest.epoch} of run {manifest.run} was made with {_cuts(manifest.shape)}, this job has "
        f"{_cuts(shape)}: {why}"
    )


def gather(
    run: RunDirectory, epoch: int, parts: Sequence[PartOf], layout: Layout, slices: Slices, *, stages: int
) -> Arrays:
    """Every tensor of a slot with ``layout``, read and checked; see ``GatherReader``.

    Returns:
        name -> array, in numpy's types (``memory.layout.DTYPES``).

    Raises:
        CheckpointError: as ``GatherReader`` says.
    """
    slot = np.empty(layout.nbytes, np.uint8)
    GatherReader(run, epoch, parts, layout, slices, stages=stages).read(slot)
    return layout.views(slot)


def substitute_part(manifest: Manifest, shape: MeshShape, rank: int) -> tuple[int, int]:
    """(rank, generation) of the part that ``rank`` of a job of ``shape`` takes its state from.

    The same rank's where data-parallel sizes agree; a replica's of the same stage where it is missing or they do not.

    Raises:
        CheckpointError: the step does not fit a job of this shape; one line that says why.
    """
    old = manifest.shape
    depth, pp, tp = shape.cut(rank)
    alike = [replica for replica, stages in enumerate(old.stages) if stages == depth]
    if old.tp != shape.tp or not alike:
        why = "other pipeline or tensor sizes cannot be resumed from it"
        raise CheckpointError(_made_with(manifest, shape, why))
    there = {part.rank: part.generation for part in manifest.parts}
    turn = shape.dp_peers(rank).index(rank)
    first = old.rank_of(dp=alike[turn % len(alike)], pp=pp, tp=tp)
    same = shape.stages == old.stages
    if same and first in there:
        return first, there[first]
    if not manifest.replicated:
        why = f"dp={old.dp}, this job has dp={shape.dp}" if not same else f"rank {rank}, whose part is missing"
        raise CheckpointError(
            f"step {manifest.epoch} of run {manifest.run} was made with {why}; its state is sharded over "
            "data-parallel ranks, so that no other rank's stands for it"
        )
    candidates = [first, *(peer for peer in old.dp_peers(first) if peer != first)]
    found = next((peer for peer in candidates if peer in there), None)
    if found is None:
        raise CheckpointError(f"step {manifest.epoch} of run {manifest.run} has no part for stage {pp}, tensor {tp}")
    return found, there[found]


def _cuts(shape: MeshShape) -> str:
    """How a job of ``shape`` cuts its model, for people."""
    stages = f"stages={','.join(map(str, shape.depths))}" if shape.depths else f"pp={shape.pp}"
    return f"{stages} tp={shape.tp}"


class GatherReader(SlotReader):
    """Puts a slot together out of parts of a step that was saved in another shape."""

    def __init__(
        self, run: RunDirectory, epoch: int, parts: Sequence[PartOf], layout: Layout, slices: Slices, *, stages: int
    ) -> None:
        """Look through the parts, and put together what is no tensor.

        Args:
            run: that wrote the step.
            epoch: which step.
            parts: as ``sources`` gives them.
            layout: of this rank.
            slices: where its tensors lie in those of the whole model, if they are cut.
            stages: of this job; with a single one, names are the model's in any case.

        Raises:
            CheckpointError: a tensor is missing, has another shape, differs between stages or does not match its
                digest; so does ``read``.
        """
        self._step, self._where = run.step(epoch), run.data_file
        if stages > 1 and MARK not in layout.specs():
            raise CheckpointError(
                f"{self._step} was saved with other pipeline stages, and this script's names are each stage's own: "
                "give mainstay.attach names="
            )
        self._parts = [run.part(epoch, rank, generation) for rank, generation in parts]
        with self._named_step():
            super().__init__(run, self._parts, layout, MODEL)
            self._places = slices
            self._made = dict(self._make())

    @contextmanager
    def _named_step(self) -> Iterator[None]:
        try:
            yield
        except CheckpointError as error:
            raise type(error)(f"{self._step}: {error}") from error

    def _make(self) -> Iterator[tuple[str, Bytes]]:
        """What is in no part as this rank needs it; checks the names of the rest."""
        known = {name.removeprefix("param.") for name in self.layout.specs() if name.startswith("param.")}
        for spec in self.layout.tensors:
            if spec.name == MARK:
                yield spec.name, np.ones(1, np.uint8)
            elif spec.name == SLICES:
                yield spec.name, encode(self._places)
            elif spec.name == BLOB:
                yield spec.name, self._scalars(spec, known)
            else:
                _require_parameter(spec.name, known)

    def read(self, out: Bytes, reuse: Reuse | None = None, exchange: Exchange | None = None) -> int:
        with self._named_step():
            return super().read(out, reuse, exchange)

    # Scalars, as plain msgpack: what is inside does not matter here

    def _scalars(self, spec: TensorSpec, known: set[str]) -> Bytes:
        said = [(part, self._blob(part)) for part in self._parts]
        merged = dict(said[0][1])
        merged["extra"] = self._alike(said, "extra", "what was given to attach as extra")
        mine = [tensor.name for tensor in self.layout.tensors if tensor.name.startswith("optim.")]
        kept = [(part, blob["optimizer"]) for part, blob in said if "optimizer" in blob]
        if kept:
            absent = _absent(kept)
            merged["optimizer"] = {
                "groups": self._alike(kept, "groups", "the hyperparameters of the optimizer's groups"),
                "state": self._states(kept, known),
                "absent": [index for index, name in enumerate(mine) if name in absent],
            }
        out = np.zeros(spec.nbytes, np.uint8)
        varlen_buffer.write_bytes(msgspec.msgpack.encode(merged), out)
        return out

    def _blob(self, part: CheckpointPart) -> dict[str, Any]:
        entry = next((tensor for tensor in part.tensors if tensor.name == BLOB), None)
        if entry is None:
            raise CheckpointError(f"{self._where(part)} has no {BLOB}: it is no rank's state")
        raw = self._index.array(part, entry).view(np.uint8)
        try:
            return msgspec.msgpack.decode(varlen_buffer.read_bytes(raw), type=dict[str, Any])
        except UNREADABLE as error:
            raise CheckpointError(f"{self._where(part)}: the scalars are damaged: {error}") from error

    def _alike(self, said: Sequence[tuple[CheckpointPart, Mapping[str, Any]]], key: str, what: str) -> Any:
        """What all stages say; a rank of another cut could not choose."""
        first = msgspec.msgpack.encode(said[0][1].get(key))
        for part, scalars in said[1:]:
            if msgspec.msgpack.encode(scalars.get(key)) != first:
                raise CheckpointError(
                    f"{self._where(part)} and {self._where(said[0][0])} differ in {what}, which cannot be assigned to "
                    "other stages"
                )
        return said[0][1].get(key)

    def _states(self, kept: Sequence[tuple[CheckpointPart, Mapping[str, Any]]], known: set[str]) -> dict[str, Any]:
        """Scalars of each parameter of this rank."""
        found: dict[str, Any] = {}
        for part, scalars in kept:
            for name in known & scalars["state"].keys():
                if found.setdefault(name, scalars["state"][name]) != scalars["state"][name]:
                    raise CheckpointError(
                        f"{self._where(part)} has other scalars of parameter {name!r} than other parts"
                    )
        return found


def _absent(kept: Sequence[tuple[CheckpointPart, Mapping[str, Any]]]) -> set[str]:
    """Optimizer tensors that no part had created; each counts its own in the order of its slot.

    Experts that saw no token have zeros in their slot, which is what a piece of a tensor begins with.
    """
    absent: set[str] = set()
    created: set[str] = set()
    for part, scalars in kept:
        names = [tensor.name for tensor in part.tensors if tensor.name.startswith("optim.")]
        if scalars["absent"] and _is_divided(part):
            names = _names_of_replicas(part, [peer for peer, _ in kept])
        missing = {names[index] for index in scalars["absent"]}
        absent |= missing
        created |= {*names} - missing
    return absent - created


def _is_divided(part: CheckpointPart) -> bool:
    """Whether the rest of the state is in the parts of other replicas."""
    return part.is_share or any(tensor.name.startswith(SHARD) for tensor in part.tensors)


def _names_of_replicas(part: CheckpointPart, parts: Sequence[CheckpointPart]) -> list[str]:
    """Optimizer tensors of which replicas hold shares, in the order of the state: each share is a range of it."""
    cut = part.shape.cut(part.rank)
    peers = sorted((peer for peer in parts if peer.shape.cut(peer.rank) == cut), key=lambda peer: peer.rank)
    return [*dict.fromkeys(t.name for peer in peers for t in peer.tensors if t.name.startswith("optim."))]


def _require_parameter(name: str, known: set[str]) -> None:
    """An optimizer over tensors that are not the model's counts them, and another rank's count means others."""
    kind, _, rest = name.partition(".")
    if kind == "optim" and not rest.startswith("groups.") and rest.rpartition(".")[0] not in known:
        raise CheckpointError(f"{name!r} belongs to no parameter of the model, so that it has no name in other stages")
