"""Files of torch.save, read as data and written as a stream."""

from __future__ import annotations

import collections
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mainstay.recovery.checkpoint.logical import LogicalTensor, array_tensor
from mainstay.recovery.checkpoint.manifest import CheckpointError
from mainstay.recovery.checkpoint.torch_archive import read_archive, save_file
from mainstay.recovery.memory.layout import DTYPES

W = torch.arange(24.0).reshape(4, 6)


def _bits(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())


@pytest.mark.parametrize("dtype", list(DTYPES))
def test_every_dtype_there_and_back(dtype: str, tmp_path: Path) -> None:
    bits = torch.from_numpy(np.random.default_rng(4).integers(0, 2, 48, np.uint8)).view(getattr(torch, dtype))
    torch.save({"x": bits.reshape(-1, 1), "empty": bits[:0]}, tmp_path / "a.pt")
    item = read_archive(tmp_path / "a.pt")
    assert (item["x"].dtype, item["x"].read().tobytes()) == (dtype, _bits(bits))
    save_file(tmp_path / "b.pt", item)
    for mmap in (False, True):
        again = torch.load(tmp_path / "b.pt", weights_only=True, mmap=mmap)
        assert again["x"].dtype == bits.dtype
        assert _bits(again["x"]) == _bits(bits)
        assert again["x"].data_ptr() % 64 == 0


def test_views_parameters_and_shared_storages(tmp_path: Path) -> None:
    state = collections.OrderedDict(w=W, t=W.t(), part=W[1:, 2:4], p=torch.nn.Parameter(W[2]), scalar=torch.tensor(3))
    state["buffer"] = torch.nn.Buffer(W.bfloat16())
    torch.save(state, tmp_path / "a.pt")
    item = read_archive(tmp_path / "a.pt")
    for name, tensor in state.items():
        assert torch.equal(item[name].torch(), tensor.detach())
    assert item["t"].read((slice(1, 3), slice(0, 2))).tolist() == W.t()[1:3, :2].tolist()


def test_plain_data_survives_and_objects_do_not(tmp_path: Path) -> None:
    plain = {"a": [1, -7, 1 << 40, 0.5, None, True, "ä"], "b": {"c": (1, 2)}, 3: torch.Size([2, 3])}
    torch.save(plain, tmp_path / "a.pt")
    item = read_archive(tmp_path / "a.pt")
    save_file(tmp_path / "b.pt", item)
    assert torch.load(tmp_path / "b.pt", weights_only=True) == plain


def test_a_name_that_is_not_admitted_is_refused(tmp_path: Path) -> None:
    torch.save({"w": W, "x": Path}, tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match=r"names pathlib\.Path, which is not read"):
        read_archive(tmp_path / "a.pt")


def _zip(path: Path, members: dict[str, bytes], how: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", how) as archive:
        for name, body in members.items():
            archive.writestr(name, body)
    return path


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"a/other": b""}, "no data.pkl"),
        ({"a/data.pkl": b"\x80\x02cos\nsystem\nX\x01\0\0\0x\x85R."}, r"names os\.system"),
        ({"a/data.pkl": b"\x80\x02]}u."}, "damaged"),
        ({"a/data.pkl": b"\x80\x02N.", "a/byteorder": b"big"}, "big-endian"),
    ],
)
def test_hostile_archives_are_refused(members: dict[str, bytes], said: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=said):
        read_archive(_zip(tmp_path / "a.pt", members))


def test_compressed_and_other_files_are_refused(tmp_path: Path) -> None:
    torch.save({"w": W}, tmp_path / "a.pt")
    with zipfile.ZipFile(tmp_path / "a.pt") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with pytest.raises(CheckpointError, match="compressed"):
        read_archive(_zip(tmp_path / "b.pt", members, zipfile.ZIP_DEFLATED))
    torch.save({"w": W}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(CheckpointError, match=r"no archive of torch\.save"):
        read_archive(tmp_path / "old.pt")
    with pytest.raises(CheckpointError, match="No such file"):
        read_archive(tmp_path / "none.pt")


def test_a_tensor_larger_than_its_storage_is_refused(tmp_path: Path) -> None:
    torch.save({"w": W}, tmp_path / "a.pt")
    with zipfile.ZipFile(tmp_path / "a.pt") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    short = {name: body[:-1] if name.endswith("data/0") else body for name, body in members.items()}
    with pytest.raises(CheckpointError, match="larger than its storage"):
        read_archive(_zip(tmp_path / "b.pt", short))


def test_flipped_and_missing_bytes_never_do_more_than_say_so(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save({"w": W, "lr": 0.5}, path)
    whole, chance = path.read_bytes(), np.random.default_rng(6)
    refused = 0
    for number in range(300):
        at, bit = int(chance.integers(len(whole))), int(chance.integers(8))
        damaged = whole[:at] + bytes([whole[at] ^ (1 << bit)]) + whole[at + 1 :] if number % 3 else whole[:at]
        other = tmp_path / f"{number}.pt"
        other.write_bytes(damaged)
        try:
            item: Any = read_archive(other)
            for leaf in item.values() if isinstance(item, dict) else ():
                if isinstance(leaf, LogicalTensor):
                    verify = leaf.boxes[0].verify
                    assert verify is not None
                    verify()
        except CheckpointError:
            refused += 1
    assert refused > 150


def test_a_long_tensor_is_written_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainstay.recovery.checkpoint.logical.PIECE", 4096)
    array = np.random.default_rng(7).standard_normal((100, 333)).astype(np.float32)
    save_file(tmp_path / "a.pt", {"w": array_tensor(array, "float32")})
    assert torch.load(tmp_path / "a.pt", weights_only=True)["w"].numpy().tobytes() == array.tobytes()
