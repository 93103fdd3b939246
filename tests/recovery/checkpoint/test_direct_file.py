"""Files hold what was appended: past the page cache, through it, and where a device refuses the first in the middle."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import xxhash

from mainstay.recovery.checkpoint import save
from mainstay.recovery.checkpoint.direct_file import _PIECE, BLOCK, DirectFile
from mainstay.recovery.memory.errors import TornSlotError
from tests.recovery.checkpoint.conftest import Ranks

SIZES = [5, _PIECE - 1, 0, _PIECE, 64, BLOCK - 3, BLOCK, 1, 3 * BLOCK + 7, _PIECE + 1, 4096]


def written(path: Path, sizes: list[int], *, direct: bool) -> bytes:
    """Append as many bytes each; checks sizes and digests, and returns what the file should hold."""
    random, whole, every = np.random.default_rng(0), xxhash.xxh3_64(), b""
    with DirectFile(path, direct=direct) as file:
        for size in sizes:
            data = random.integers(0, 256, size, np.uint8)
            file.digest = whole
            assert file.append(data) == xxhash.xxh3_64_intdigest(data.data)
            file.digest = None
            every += data.tobytes()
            assert file.size == len(every)
            file.pad()
            every += bytes(file.size - len(every))
        file.finish()
    assert whole.intdigest() != xxhash.xxh3_64_intdigest(b"")
    return every


@pytest.mark.parametrize("direct", [True, False])
def test_pieces_of_any_size_follow_each_other(tmp_path: Path, *, direct: bool) -> None:
    path = tmp_path / "file"
    every = written(path, SIZES, direct=direct)
    assert path.read_bytes() == every
    assert len(every) % 64 == 0


@pytest.mark.parametrize("refused", [1, 3])
def test_a_device_that_refuses_a_direct_write_gets_all_bytes_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    pwrite, calls = os.pwrite, []

    def refuse(fd: int, data: memoryview, at: int) -> int:
        calls.append(at)
        if len(calls) == refused:
            raise OSError(errno.EINVAL, "refused")
        return pwrite(fd, data, at)

    monkeypatch.setattr(os, "pwrite", refuse)
    path = tmp_path / "file"
    every = written(path, SIZES, direct=True)
    assert path.read_bytes() == every


@pytest.mark.parametrize("direct", [True, False])
def test_a_slot_that_is_overwritten_before_all_is_durable_is_no_part(
    ranks: Callable[..., Ranks], monkeypatch: pytest.MonkeyPatch, *, direct: bool
) -> None:
    made = ranks(dp=1)
    target, arena, finish = made.target(), made.step(0, 1), DirectFile.finish
    record = arena.find(1)
    save.begin_step(target)

    def overwritten(self: DirectFile) -> None:
        arena.begin_write(record.slot, 1)
        finish(self)

    monkeypatch.setattr(DirectFile, "finish", overwritten)
    with pytest.raises(TornSlotError):
        save.write_part(arena, record, target, direct=direct)
    assert not list(made.run.step(1).iterdir())
