"""Exact blobs: every dtype and bit pattern, changed units only, and damage that is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.lib_encoded_slots import decoded, readable
from mainstay.recovery.checkpoint.encoding.exact import encode_exact
from mainstay.recovery.checkpoint.encoding.tensor_blob import ExactHeader, Sections, split, stored
from mainstay.recovery.checkpoint.encoding.units import BLOCK, UnitDigests, unit_bytes, unit_digests
from mainstay.recovery.checkpoint.manifest import CheckpointError
from mainstay.recovery.memory.digest import Bytes
from mainstay.recovery.memory.layout import DTYPES, Layout, TensorSpec


def layout_of(dtype: str, shape: tuple[int, ...]) -> Layout:
    return Layout.build({"param.w": (dtype, shape)})


def decode(layout: Layout, blob: bytes, base: Bytes | None = None) -> Bytes:
    return decoded(layout, [blob], base)[: layout.tensors[0].nbytes]


def read_whole(spec: TensorSpec, base: Bytes) -> UnitDigests:
    """Digests of a base that is read, and so subtracted."""
    return replace(unit_digests(spec, base), read=lambda at, out: np.copyto(out, base[at : at + len(out)]))


def header_of(spec: TensorSpec, blob: bytes) -> ExactHeader:
    header, _ = split(blob, spec)
    assert isinstance(header, ExactHeader)
    return header


@settings(deadline=None, max_examples=200)
@given(
    dtype=st.sampled_from(sorted(DTYPES)),
    shape=st.sampled_from([(), (0,), (1,), (7,), (3, 5), (40, 33), (2, 3, 64), (5, 0)]),
    seed=st.integers(0, 99),
    changed=st.sampled_from([None, 0.0, 0.1, 1.0]),
    reads=st.booleans(),
)
def test_the_same_bits_come_back(
    dtype: str, shape: tuple[int, ...], seed: int, changed: float | None, reads: bool
) -> None:
    layout, random = layout_of(dtype, shape), np.random.default_rng(seed)
    (spec,) = layout.tensors
    data = random.integers(0, 256, spec.nbytes, np.uint8)  # NaN of all kinds, infinities, and subnormal numbers
    base: Bytes | None = None
    known: UnitDigests | None = None
    if changed is not None:
        base = np.where(random.random(spec.nbytes) < changed, random.integers(0, 256, spec.nbytes), data)
        base = base.astype(np.uint8)
        known = read_whole(spec, base) if reads else unit_digests(spec, base)
    assert np.array_equal(decode(layout, encode_exact(spec, data, known), base), data)


@pytest.mark.parametrize("rows", [1, 500, 4097])
def test_only_changed_rows_are_stored(rows: int) -> None:
    layout, random = layout_of("float32", (rows, 64)), np.random.default_rng(1)
    (spec,) = layout.tensors
    base = random.standard_normal((rows, 64)).astype(np.float32)
    data = base.copy()
    touched = random.choice(rows, max(1, rows // 20), replace=False)
    data[touched] += 1
    old, new = base.view(np.uint8).reshape(-1), data.view(np.uint8).reshape(-1)
    blob = encode_exact(spec, new, unit_digests(spec, old))
    assert len(blob) < len(touched) * 256 + rows / 8 + 300
    assert np.array_equal(decode(layout, blob, old), new)


@pytest.mark.parametrize("extra", [0, 1, 999])
def test_blocks_where_there_are_no_rows_and_the_last_may_be_short(extra: int) -> None:
    layout = layout_of("uint8", (5 * BLOCK + extra,))
    (spec,) = layout.tensors
    base = np.random.default_rng(2).integers(0, 256, spec.nbytes, np.uint8)
    data = base.copy()
    data[[0, 3 * BLOCK + 5, -1]] ^= 1
    blob = encode_exact(spec, data, unit_digests(spec, base))
    assert header_of(spec, blob).unit == BLOCK
    assert len(blob) < 3 * BLOCK + 300
    assert np.array_equal(decode(layout, blob, base), data)


@pytest.mark.parametrize(("shape", "unit"), [
    ((9,), BLOCK), ((), BLOCK), ((9, 15), BLOCK), ((9, 16), 64), ((9, 2, 8), 64), ((9, 16384), BLOCK),
    ((9, 16385), BLOCK),
])  # fmt: skip
def test_a_unit_is_a_row_of_a_useful_size(shape: tuple[int, ...], unit: int) -> None:
    assert unit_bytes(layout_of("float32", shape).tensors[0]) == unit


def test_weights_near_their_base_are_smaller_by_differences() -> None:
    layout, random = layout_of("float32", (1 << 18,)), np.random.default_rng(3)
    (spec,) = layout.tensors
    base = random.normal(0, 0.02, 1 << 18).astype(np.float32)
    data = (base * (1 + 1e-3 * random.standard_normal(1 << 18))).astype(np.float32)
    near, below, far = (values.view(np.uint8) for values in (data, base, base[::-1].copy()))
    known = readable(layout, near, below)[spec.name]
    blob, alone = encode_exact(spec, near, known), encode_exact(spec, near)
    assert spec.nbytes / len(alone) > 1.18
    assert spec.nbytes / len(blob) > 1.5
    assert header_of(spec, blob).subtracted
    unlike = header_of(spec, encode_exact(spec, near, readable(layout, near, far)[spec.name]))
    assert not unlike.subtracted
    assert unlike.base is None  # all changed, nothing subtracted


def test_each_flipped_bit_and_each_truncation_is_refused() -> None:
    layout, random = layout_of("float32", (8, 16)), np.random.default_rng(4)
    (spec,) = layout.tensors
    base = random.standard_normal(128).astype(np.float32)
    data = base.copy()
    data[:64] *= 1.001
    old, new = base.view(np.uint8), data.view(np.uint8)
    blob = encode_exact(spec, new, unit_digests(spec, old))
    for length in range(len(blob)):
        with pytest.raises(CheckpointError):
            decode(layout, blob[:length], old)
    for bit in range(len(blob) * 8):
        flipped = bytearray(blob)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            assert np.array_equal(decode(layout, bytes(flipped), old), new)  # a bit that zstd does not use
        except CheckpointError:
            continue
    with pytest.raises(CheckpointError, match="sections"):
        decode(layout, blob + b"x", old)


def test_another_base_another_tensor_and_a_bomb_are_refused() -> None:
    layout = layout_of("float32", (64, 16))
    (spec,) = layout.tensors
    base = np.zeros(spec.nbytes, np.uint8)
    data = base.copy()
    data[:64] = 7
    blob = encode_exact(spec, data, unit_digests(spec, base))
    with pytest.raises(CheckpointError, match="base is another one"):
        decode(layout, blob, base + np.uint8(1))
    with pytest.raises(CheckpointError, match=r"float32\[64, 16\], not float32\[16, 64\]"):
        split(blob, layout_of("float32", (16, 64)).tensors[0])
    bomb = stored(np.zeros(1 << 24, np.uint8))
    with pytest.raises(CheckpointError, match="does not decode to 100 bytes"):
        Sections(memoryview(bomb), (len(bomb),), "a bomb").read(100)


def test_random_text_is_refused() -> None:
    random, (spec,) = np.random.default_rng(5), layout_of("float32", (4,)).tensors
    for size in range(60):
        with pytest.raises(CheckpointError, match=r"param\.w"):
            split(random.bytes(size), spec)
