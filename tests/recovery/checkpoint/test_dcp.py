"""What torch's own tools make of our steps, and what we make of theirs without executing any of it."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from mainstay.recovery.checkpoint.dcp import ADMITTED, keys, read_metadata
from mainstay.recovery.checkpoint.manifest import CheckpointError
from mainstay.recovery.checkpoint.pickle_codec import (
    Name,
    OpcodesError,
    PickledCall,
    PickledDict,
    PickledObject,
    decode,
    encode,
)
from mainstay.recovery.checkpoint.torchfile import Archive
from mainstay.recovery.memory.layout import DTYPES, Layout

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (4, 5)])
def test_torch_loads_a_tensor_of_every_kind(dtype: str, shape: tuple[int, ...]) -> None:
    (spec,) = Layout.build({"x": (dtype, shape)}).tensors
    data = np.random.default_rng(3).integers(0, 2, spec.nbytes, np.uint8).tobytes()
    archive = Archive(spec, 100)
    raw = archive.head + data + archive.tail
    assert archive.data_at % 64 == 0
    tensor = torch.load(io.BytesIO(raw), weights_only=True)
    assert (tensor.dtype, tuple(tensor.shape)) == (getattr(torch, dtype), shape)
    assert tensor.reshape(-1).view(torch.uint8).numpy().tobytes() == data or not data


def test_the_directory_of_an_archive_beyond_four_gigabytes_is_zip64() -> None:
    """Only its head and tail are made: the sizes stand in 64 bits, and the locator is there."""
    (spec,) = Layout.build({"x": ("uint8", (5 << 30,))}).tensors
    archive = Archive(spec, 0)
    head, tail = archive.head, archive.tail
    assert struct.pack("<HHQQ", 1, 16, 5 << 30, 5 << 30) in head
    assert struct.pack("<HHQQ", 1, 16, 5 << 30, 5 << 30) in tail
    assert b"PK\6\6" in tail
    assert b"PK\6\7" in tail


def test_plain_dcp_loads_a_step(ranks: Callable[..., Any]) -> None:
    job = ranks(dp=2, pp=2)
    job.whole(20)
    wanted = {
        f"pp{stage}.tp0.{name}": torch.zeros_like(torch.from_numpy(job.state(stage, 20)[slot]))
        for stage in range(2)
        for name, slot in (
            ("model.w", "param.w"),
            ("model.n", "buffer.n"),
            ("optimizer.state.w.exp_avg", "optim.w.exp_avg"),
        )
    } | {f"rank{rank}.rng.torch": torch.zeros(33, dtype=torch.uint8) for rank in range(4)}
    dcp.load(wanted, storage_reader=dcp.FileSystemReader(job.run.step(20)), no_dist=True)
    for stage in range(2):
        state = job.state(stage, 20)
        assert wanted[f"pp{stage}.tp0.model.w"].numpy().tobytes() == state["param.w"].tobytes()
        assert wanted[f"pp{stage}.tp0.model.n"].numpy().tobytes() == state["buffer.n"].tobytes()
        assert (
            wanted[f"pp{stage}.tp0.optimizer.state.w.exp_avg"].numpy().tobytes() == state["optim.w.exp_avg"].tobytes()
        )
    for rank in range(4):
        assert wanted[f"rank{rank}.rng.torch"].numpy().tobytes() == job.state(rank, 20)["rng.torch"].tobytes()


def test_torchs_converter_makes_one_file_of_a_step(ranks: Callable[..., Any], tmp_path: Path) -> None:
    job = ranks(dp=2)
    job.whole(20)
    dcp_to_torch_save(job.run.step(20), tmp_path / "one.pt")
    loaded = torch.load(tmp_path / "one.pt", weights_only=True)
    own = [f"rank{rank}.{name}" for rank in (0, 1) for name in ("mainstay.blob", "mainstay.layout", "rng.torch")]
    assert sorted(loaded) == ["model.n", "model.w", "optimizer.state.w.exp_avg", *own]
    assert loaded["model.w"].numpy().tobytes() == job.state(0, 20)["param.w"].tobytes()


def test_what_replicas_do_not_hold_alike_is_listed_for_each(ranks: Callable[..., Any]) -> None:
    job = ranks(dp=2, sharded=True)
    job.whole(20)
    parts = [job.run.part(20, rank, 1) for rank in range(2)]
    assert keys(parts)[1, "param.w"] == "rank1.model.w"
    assert len(set(keys(parts).values())) == len(keys(parts))


def test_metadata_that_torch_wrote_is_read_without_torch(tmp_path: Path) -> None:
    state = {"a.w": torch.arange(6.0).reshape(2, 3), "half": torch.tensor(3, dtype=torch.bfloat16), "n": 5}
    dcp.save(state, checkpoint_id=tmp_path / "theirs", no_dist=True)
    found = {chunk.key: chunk for chunk in read_metadata(tmp_path / "theirs")}
    assert found["n"].dtype == ""
    assert {key: (t.dtype, t.shape) for key, t in found.items() if t.dtype} == {
        "a.w": ("float32", (2, 3)),
        "half": ("bfloat16", ()),
    }
    raw = (tmp_path / "theirs" / found["a.w"].file).read_bytes()[found["a.w"].at :][: found["a.w"].nbytes]
    assert torch.equal(torch.load(io.BytesIO(raw), weights_only=True), state["a.w"])


def test_our_own_metadata_reads_back(ranks: Callable[..., Any]) -> None:
    job = ranks(dp=2)
    job.whole(20)
    assert {t.key for t in read_metadata(job.run.step(20))} == set(
        keys([job.run.part(20, r, 1) for r in range(2)]).values()
    )


EVIL = [
    b"cos\nsystem\n(S'touch /tmp/never'\ntR.",
    encode(PickledCall(Name("builtins", "eval"), ("1",))),
    encode(
        PickledObject(
            Name("torch.distributed.checkpoint.metadata", "Metadata"), {"x": PickledCall(Name("os", "system"), ("x",))}
        )
    ),
    b"\x80\x02ctorch.distributed.checkpoint.metadata\nMetadata\n)\x81}b",
    b"\x80\x02\x8c",
    b"",
    b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\xff.",
    b"\x80\x02(((((((t",
    b"\x80\x02h\x07.",
    b"\x80\x02]}u.",
    b"\x80\x02K\x01K\x02R.",
]


@pytest.mark.parametrize("raw", EVIL, ids=range(len(EVIL)))
def test_hostile_metadata_is_refused_in_words(raw: bytes, tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(raw)
    with pytest.raises(CheckpointError, match=r"\.metadata"):
        read_metadata(tmp_path)


def test_a_tensor_outside_of_the_directory_is_refused(ranks: Callable[..., Any]) -> None:
    job = ranks(dp=1)
    job.whole(5)
    path = job.run.step(5) / ".metadata"
    path.write_bytes(path.read_bytes().replace(b"\x0c\0\0\0__0_1.distcp", b"\x0c\0\0\0../../../e.x"))
    with pytest.raises(CheckpointError, match="lies outside of the directory"):
        read_metadata(job.run.step(5))


def test_flipped_bits_in_metadata_never_do_more_than_say_so(ranks: Callable[..., Any]) -> None:
    job = ranks(dp=1)
    job.whole(5)
    path = job.run.step(5) / ".metadata"
    whole = path.read_bytes()
    chance = np.random.default_rng(5)
    refused = 0
    for _ in range(300):
        at, bit = int(chance.integers(len(whole))), int(chance.integers(8))
        path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << bit)]) + whole[at + 1 :])
        try:
            read_metadata(job.run.step(5))
        except CheckpointError:
            refused += 1
    assert refused > 50  # a flip in a name or a number is another name or number: that is what our manifest is for


def test_terms_survive_the_way_there_and_back() -> None:
    terms = [None, True, 0, 255, 256, -1, 1 << 40, 0.1, "ä", (1, (2,)), [1, "x"], Name("torch", "Size")]
    for term in terms:
        assert decode(encode(term), ADMITTED) == term
    assert decode(encode({"a": 1}), ADMITTED) == PickledDict([("a", 1)])
    with pytest.raises(TypeError, match="bytes is no term"):
        encode(b"")
    with pytest.raises(OpcodesError, match=r"names torch\.hub"):
        decode(encode(Name("torch", "hub")), ADMITTED)
