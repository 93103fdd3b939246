"""What we ourselves read of the disk level: JSON with a checksum, written by temporary name, fsync and rename.

``DIR/RUN/run.gG.json``                  the run, as it stood in generation G
``DIR/RUN/step-S/__R_G.distcp``          the state of rank R, committed in generation G
``DIR/RUN/step-S/__R_G.encoded``         or what of it differs from an earlier step, and its encoding
``DIR/RUN/step-S/rank-R.gG.json``        its ``CheckpointPart``: which tensor lies where, with digests. After the data
``DIR/RUN/step-S/.shares-R.json``        the ``Division`` of a copy among R and its replicas, if they share the writing
``DIR/RUN/step-S/parity-R.gG.data``      parity of the slots of R's group, where nodes have disks of their own
``DIR/RUN/step-S/parity-R.gG.json``      its ``CheckpointPart``. After the data
``DIR/RUN/step-S/manifest.json``         the ``Manifest``: the parts that make the step whole. Written last
``DIR/RUN/step-S/.metadata``             the same for ``torch.distributed.checkpoint``, if no part is encoded; not read
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec

from mainstay.probes.decoding import UNREADABLE
from mainstay.probes.durable_files import write_durably
from mainstay.recovery.checkpoint.quantization_bound import QuantizationBound
from mainstay.recovery.memory.digest import digest
from mainstay.recovery.memory.global_slices import SLICES, GlobalSlice, whole
from mainstay.recovery.memory.layout import Layout
from mainstay.recovery.memory.model_names import MARK
from mainstay.recovery.memory.records import NO_EPOCH
from mainstay.recovery.mesh_shape import MeshShape

VERSION: Final = 1
LAYOUT: Final = "mainstay.layout"
MANIFEST: Final = "manifest.json"
METADATA: Final = ".metadata"
MAX_JSON_BYTES: Final = 512 * 1024 * 1024
"""A million tensors with long names take about 150 MB."""

StepEncoding = Literal["full", "exact", "8bit", "4bit"]
"""``exact``: after a full step, differences to an earlier one, which restore the same bits. ``8bit``, ``4bit``: floats
of the model and the optimizer in so many bits, which restore near values."""
QUANTIZED: Final[dict[StepEncoding, int]] = {"8bit": 8, "4bit": 4}
"""Bits of encodings that restore near values."""
Return = tuple[int, int]
"""(epoch, generation): the job went back to the epoch, in the generation."""


class CheckpointError(ValueError):
    """A file of the disk level is missing, damaged or does not fit; one line that names it."""


class DamagedError(CheckpointError):
    """A file has other bytes than were written: to read it again does not help."""


class DiskConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an agent learns about checkpoints each time that the job forms."""

    run: str
    generation: int
    every: int
    """Epochs divisible by this are written; 0: none."""
    once: int = NO_EPOCH
    """One more epoch that is written, on request."""
    dp: int
    pp: int
    tp: int
    depths: tuple[int, ...] = ()
    copies: int = 0
    """Copies of what replicas hold alike, which they divide among themselves to write; 0: each writes its whole state,
    as where they are not known to be equal."""
    encoding: StepEncoding = "full"
    replicated: bool = False
    """Replicas are known to be equal, so that at the end the parts of one of each stage and slice make a step whole."""
    parity: bool = False
    """Parity rows and copies of a written epoch are written too, since each node has a disk of its own."""
    away: tuple[int, ...] = ()
    """Ranks that take no part at present: a step is whole without theirs."""
    returns: tuple[Return, ...] = ()
    resumed: tuple[str, int] | None = None
    upload_every: int = 0
    """Epochs between the steps that are uploaded; 0: the newest one, whenever the last upload has ended."""
    upload_without: tuple[int, ...] = ()
    """Ranks whose nodes cannot upload at present: copies of their parts go up at once."""
    common: tuple[int, ...] = ()
    """Steps that stay where each node has a disk of its own, see ``next_common``; none: those that stayed before."""

    @property
    def shape(self) -> MeshShape:
        return MeshShape(dp=self.dp, pp=self.pp, tp=self.tp, depths=self.depths)

    def writers(self) -> set[int]:
        """Ranks that write."""
        return set(range(self.shape.world_size)).difference(self.away)

    def sharers(self, rank: int) -> tuple[int, ...]:
        """Ranks that divide with ``rank`` what replicas hold alike, in order; it alone: it writes all of that."""
        if not 0 < self.copies < self.dp:
            return (rank,)
        peers = tuple(peer for peer in self.shape.dp_peers(rank) if peer not in self.away)
        copies = min(self.copies, len(peers))
        return peers[peers.index(rank) % copies :: copies]

    def share(self, rank: int) -> tuple[int, int] | None:
        """(index, count): which share of what replicas hold alike ``rank`` writes; None: all of it."""
        sharers = self.sharers(rank)
        return (sharers.index(rank), len(sharers)) if len(sharers) > 1 else None


class _Checked(msgspec.Struct, frozen=True, kw_only=True):
    """Base of what is written: ``check`` is the xxh3_64 of the rest, so that a flipped bit is seen."""

    version: int = VERSION
    check: str = ""


class RunInfo(_Checked, frozen=True, kw_only=True):
    """One start of a job."""

    run: str
    job: str
    generation: int
    dp: int
    pp: int
    tp: int
    depths: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET
    """Stages of each pipeline where they are unlike; see ``MeshShape``."""
    returns: tuple[Return, ...] = ()
    """What the job has gone back from: see ``holds``."""
    resumed: tuple[str, int] | None = None
    """(run, epoch) from which it continued."""
    upload_every: int | msgspec.UnsetType = msgspec.UNSET
    """See ``DiskConfig``, as of the next three."""
    upload_without: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET
    away: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET
    replicated: bool | msgspec.UnsetType = msgspec.UNSET

    @property
    def shape(self) -> MeshShape:
        return MeshShape(dp=self.dp, pp=self.pp, tp=self.tp, depths=self.depths or ())


class TensorEntry(msgspec.Struct, frozen=True, array_like=True):
    """One tensor in a part's file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    at: int
    """Of its bytes in the file."""
    nbytes: int
    digest: int
    """xxh3_64 of them."""
    archive_at: int
    archive_bytes: int
    """The ``torch.save`` archive around them."""
    place: GlobalSlice | None = None
    """Where it lies in the tensor of the whole model; None: it is that tensor."""

    @property
    def slice(self) -> GlobalSlice:
        return self.place or whole(self.shape)


class CheckpointPart(_Checked, frozen=True, kw_only=True):
    """One rank's state of one step."""

    run: str
    job: str
    rank: int
    epoch: int
    generation: int
    """In which the snapshot was committed."""
    dp: int
    pp: int
    tp: int
    depths: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET
    file: str
    nbytes: int
    """Of the slot."""
    layout_digest: int
    seconds: float
    """That writing took, with fsync."""
    tensors: tuple[TensorEntry, ...]
    described: TensorEntry
    """The layout of the slot as text, for whoever has nothing but the state dict."""
    share: tuple[int, int] | msgspec.UnsetType = msgspec.UNSET
    """(index, count): of what data-parallel replicas hold alike, this is one of ``count`` shares. Not there: all."""
    weights: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET
    """Of all shares of the division. Not there: they are equal."""
    alike_digest: int | msgspec.UnsetType = msgspec.UNSET
    """Of a share: xxh3_64 of all that replicas hold alike, as this rank holds it."""
    layouts: dict[int, str] | msgspec.UnsetType = msgspec.UNSET
    """Digest -> layout of each slot that this is parity of. Not there: it is no parity."""
    encoded: int | msgspec.UnsetType = msgspec.UNSET
    """Bytes of the encoded file; places of tensors in it are not said. Not there: the file is not encoded."""
    base: tuple[int, int] | msgspec.UnsetType = msgspec.UNSET
    """(epoch, generation) of this rank's part that the file holds differences to. Not there: it needs none."""
    quantized: QuantizationBound | msgspec.UnsetType = msgspec.UNSET
    """Digests are of the near values that are restored. Not there: the same bits are."""

    @property
    def is_encoded(self) -> bool:
        return self.encoded is not msgspec.UNSET

    @property
    def file_bytes(self) -> int:
        """Of its file: what is written last there is the layout."""
        return self.encoded or self.described.archive_at + self.described.archive_bytes

    @property
    def listed(self) -> tuple[TensorEntry, ...]:
        """What the state dict of the step has of this rank."""
        return (*self.tensors, self.described)

    @property
    def shape(self) -> MeshShape:
        return MeshShape(dp=self.dp, pp=self.pp, tp=self.tp, depths=self.depths or ())

    @property
    def has_model_names(self) -> bool:
        """Its tensors are called as in the whole model: its script said so, or the model is in one stage."""
        return self.shape.cut(self.rank)[0] == 1 or any(tensor.name == MARK for tensor in self.tensors)

    @property
    def is_sliced(self) -> bool:
        """It says where tensors that are cut among ranks lie in the whole model."""
        return any(tensor.name == SLICES for tensor in self.tensors)

    @property
    def is_share(self) -> bool:
        """Replicas divided what they hold alike: the rest of this rank's slot is in the parts of its peers."""
        return self.share is not msgspec.UNSET

    def layout(self) -> Layout:
        """The slot's layout; of what was written, where that is a share.

        Raises:
            CorruptArenaError: an impossible one.
        """
        return Layout.from_json(msgspec.json.encode([(t.name, t.dtype, t.shape) for t in self.tensors]))


class PartEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A part, as the manifest pins it."""

    rank: int
    generation: int
    nbytes: int
    """Of its tensors; of its file if that is encoded."""
    check: str
    """The part's own."""
    seconds: float | msgspec.UnsetType = msgspec.UNSET
    """That writing took, with fsync; only of a share."""


class Manifest(_Checked, frozen=True, kw_only=True):
    """A step that is whole: every rank is there, or one replica at least of each where replicas are equal."""

    run: str
    job: str
    epoch: int
    dp: int
    pp: int
    tp: int
    depths: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET
    replicated: bool
    """Data-parallel replicas hold the same tensors, by their digests: any one stands for the others."""
    time: float
    """Unix seconds."""
    parts: tuple[PartEntry, ...]
    model_names: bool | msgspec.UnsetType = msgspec.UNSET
    """All parts are called as in the whole model. Not there: not said, as in steps of several stages before it was."""
    sliced: bool | msgspec.UnsetType = msgspec.UNSET
    """Names and places say which tensor of the whole model each is, so that any rank's is put together from all parts:
    experts, and tensors that are cut among ranks."""
    shares: bool | msgspec.UnsetType = msgspec.UNSET
    """Parts are shares: see ``CheckpointPart.share``."""
    bases: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """Directories of all steps that a restore of this one reads too, in order."""
    state_bytes: int | msgspec.UnsetType = msgspec.UNSET
    """Of the state that is restored. Not there: all that the parts have."""
    quantized: QuantizationBound | msgspec.UnsetType = msgspec.UNSET
    """Of all parts. Not there: a restore gives the same bits."""

    @property
    def shape(self) -> MeshShape:
        return MeshShape(dp=self.dp, pp=self.pp, tp=self.tp, depths=self.depths or ())

    @property
    def checks(self) -> dict[tuple[int, int], str]:
        """(rank, generation) of each part -> its checksum."""
        return {(part.rank, part.generation): part.check for part in self.parts}

    @property
    def has_model_names(self) -> bool:
        return self.pp == 1 or self.model_names is True

    @property
    def needs_all(self) -> bool:
        """A rank's state lies in several parts: it is cut among data-parallel ranks, or they divided the writing."""
        return self.shares is True or (self.sliced is True and not self.replicated)


class Division(_Checked, frozen=True, kw_only=True):
    """How replicas divide what they hold alike in one step; whoever began the step first has written it."""

    ranks: tuple[int, ...]
    weights: tuple[Annotated[int, msgspec.Meta(ge=1)], ...]
    """In the order of ``ranks``; empty: their shares are equal."""


T = TypeVar("T", RunInfo, CheckpointPart, Manifest, Division)
_DECODERS: Final[dict[type, msgspec.json.Decoder[Any]]] = {
    kind: msgspec.json.Decoder(kind) for kind in (RunInfo, CheckpointPart, Manifest, Division)
}
"""Made while there is one thread: see ``agent.messages.REQUESTS``."""


def step_name(epoch: int) -> str:
    return f"step-{epoch:08d}"


def data_name(rank: int, generation: int) -> str:
    return f"__{rank}_{generation}.distcp"


def encoded_name(rank: int, generation: int) -> str:
    return f"__{rank}_{generation}.encoded"


def part_name(rank: int, generation: int) -> str:
    return f"rank-{rank}.g{generation}.json"


def parity_names(rank: int, generation: int) -> tuple[str, str]:
    """Of the data file and of its ``CheckpointPart``."""
    return f"parity-{rank}.g{generation}.data", f"parity-{rank}.g{generation}.json"


def division_name(first: int) -> str:
    """``first``: rank of the first who divide a copy. Hidden: uploads leave it out."""
    return f".shares-{first}.json"


def run_name(generation: int) -> str:
    return f"run.g{generation}.json"


def holds(returns: tuple[Return, ...], epoch: int, generation: int) -> bool:
    """Whether a snapshot of ``epoch``, committed in ``generation``, is of a past that was never given up.

    A job that went back to epoch E in generation g holds nothing of a later epoch that is older than g.
    """
    return all(epoch <= to or generation >= since for to, since in returns)


def write_checked(path: Path, content: T) -> T:
    """Write durably, in one instant as others see it; what was written, with its checksum.

    Raises:
        OSError: the disk refused; nothing is left behind.
    """
    made = msgspec.structs.replace(content, check=_check_of(content))
    write_durably(path, msgspec.json.encode(made))
    return made


def read_checked(path: Path, kind: type[T]) -> T:
    """What ``write_checked`` wrote.

    Raises:
        CheckpointError: missing, too long, damaged, or of another version; names the path.
    """
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise CheckpointError(f"{path} is longer than {MAX_JSON_BYTES} bytes")
        content: T = _DECODERS[kind].decode(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from error
    except UNREADABLE as error:
        raise DamagedError(f"{path} is damaged: {error}") from error
    if content.version != VERSION:
        raise CheckpointError(f"{path} has format version {content.version}, this program reads {VERSION}")
    if content.check != _check_of(content):
        raise DamagedError(f"{path} is damaged: its checksum does not hold")
    return content


def _check_of(content: _Checked) -> str:
    return f"{digest(msgspec.json.encode(msgspec.structs.replace(content, check=''))):016x}"


def remove_file(path: Path) -> None:
    """Remove it if it is there and can be; what stays is no part of anything and goes another time."""
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
