"""What the bench encodes and decodes at once is what agents sum block by block."""

from __future__ import annotations

from itertools import combinations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from bench.lib_coding import Library, decode, encode, libraries
from mainstay.recovery.coding import Code, code, galois_field, isal
from mainstay.recovery.coding.galois_field import Bytes

SHAPES = [("xor", k, 1) for k in (1, 2, 5)] + [("rs", k, t) for k in (1, 3, 4) for t in (1, 2, 3)]


def blocks_of(count: int, size: int, seed: int = 0) -> list[Bytes]:
    return list(np.random.default_rng(seed).integers(0, 256, (count, size), np.uint8))


def encoded(which: Code, library: Library, blocks: list[Bytes]) -> list[Bytes]:
    out = [np.full(len(blocks[0]), 0xAA, np.uint8) for _ in range(which.parity)]
    encode(which, library, blocks, out)
    return out


def test_both_libraries_are_here() -> None:
    assert [library.name for library in libraries()] == ["isa-l", "numpy"]


@pytest.mark.parametrize("library", libraries(), ids=lambda library: library.name)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_loss_within_the_promise_comes_back(shape: tuple[str, int, int], library: Library) -> None:
    which = code(*shape)
    for size in (0, 1, 31, 1000):
        blocks = blocks_of(which.data, size)
        everything = blocks + encoded(which, library, blocks)
        assert np.array_equal(np.stack(everything[which.data :]), galois_field.multiply(which.rows, np.stack(blocks)))
        for lost in combinations(range(len(everything)), which.parity):
            present = {i: block for i, block in enumerate(everything) if i not in lost}
            out = [np.full(size, 0x55, np.uint8) for _ in lost]
            decode(which, library, present, lost, out)
            assert all(np.array_equal(everything[i], found) for i, found in zip(lost, out, strict=True)), lost


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 20), st.integers(1, 5), st.integers(0, 300), st.integers(0, 40), st.integers(0, 2**32 - 1))
def test_libraries_agree_at_any_length_and_alignment(data: int, parity: int, size: int, shift: int, seed: int) -> None:
    blocks = [room[shift:] for room in blocks_of(data, size + shift, seed)]
    for which in (code("rs", data, parity), code("xor", data, 1)):
        assert np.array_equal(*(np.stack(encoded(which, library, blocks)) for library in libraries()))


@pytest.mark.parametrize("library", libraries(), ids=lambda library: library.name)
def test_several_tiles_are_one_block(library: Library) -> None:
    blocks = blocks_of(3, 2 * isal.TILE + 4097)
    for which in (code("rs", 3, 2), code("xor", 3, 1)):
        wanted = galois_field.multiply(which.rows, np.stack(blocks))
        assert np.array_equal(np.stack(encoded(which, library, blocks)), wanted)
