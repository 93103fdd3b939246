"""One conformance suite over every code and library: any loss within the promise comes back bit for bit."""

from __future__ import annotations

from itertools import combinations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from pyeclib.ec_iface import ECDriver

from mainstay.recovery.coding import code, galois_field, gf, isal

SHAPES = [("xor", k, 1) for k in (1, 2, 3, 5)] + [("rs", k, t) for k in (1, 2, 3, 4) for t in (1, 2, 3)]
SIZES = (0, 1, 7, 31, 64, 1000)
LIBRARIES = {"isa-l": isal.Isal(isal.load()).multiply_add, "numpy": gf.multiply_add_by_numpy}


def blocks_of(count, size, seed=0):
    return list(np.random.default_rng(seed).integers(0, 256, (count, size), np.uint8))


def summed(matrix, blocks, multiply_add):
    """Each row of the matrix as agents sum it: one block after the other."""
    out = [np.zeros(len(blocks[0]), np.uint8) for _ in matrix]
    for row, target in zip(matrix, out, strict=True):
        for coefficient, block in zip(row, blocks, strict=True):
            if coefficient:
                multiply_add(int(coefficient), block, target)
    return out


def naive(which, blocks):
    """The definition, symbol by symbol."""
    return galois_field.multiply(which.rows, np.stack(blocks))


@pytest.fixture(params=LIBRARIES)
def library(request):
    return LIBRARIES[request.param]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_loss_within_the_promise_comes_back(shape, library):
    which = code(*shape)
    for size in SIZES:
        blocks = blocks_of(which.data, size)
        everything = blocks + summed(which.rows, blocks, library)
        assert np.array_equal(np.stack(everything[which.data :]), naive(which, blocks))
        for count in range(1, which.parity + 1):
            for lost in combinations(range(len(everything)), count):
                present = [i for i in range(len(everything)) if i not in lost][: which.data]
                coefficients = which.decode_coefficients(present, lost)
                out = summed(coefficients, [everything[i] for i in present], library)
                assert all(np.array_equal(everything[i], found) for i, found in zip(lost, out, strict=True)), lost


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 20), st.integers(1, 5), st.integers(0, 300), st.integers(0, 40), st.integers(0, 2**32 - 1))
def test_libraries_agree_byte_for_byte_at_any_length_and_alignment(data, parity, size, shift, seed):
    rooms = blocks_of(data, size + shift, seed)
    blocks = [room[shift:] for room in rooms]
    results = [summed(code("rs", data, parity).rows, blocks, library) for library in LIBRARIES.values()]
    assert np.array_equal(*map(np.stack, results))
    xors = [summed(code("xor", data, 1).rows, blocks, library)[0] for library in (*LIBRARIES.values(), gf.multiply_add)]
    for xor in xors:
        assert np.array_equal(xor, np.bitwise_xor.reduce(blocks, axis=0))


def test_several_tiles_are_one_block(library):
    blocks = blocks_of(3, 2 * isal.TILE + 4097)
    for which in (code("rs", 3, 2), code("xor", 3, 1)):
        assert np.array_equal(np.stack(summed(which.rows, blocks, library)), naive(which, blocks))
        assert np.array_equal(np.stack(summed(which.rows, blocks, gf.multiply_add)), naive(which, blocks))


@pytest.mark.parametrize("coefficient", [0, 1, 2, 29, 255])
def test_multiply_add_is_the_fields(coefficient):
    block, out = blocks_of(2, 1001)
    wanted = out ^ galois_field.PRODUCTS[coefficient, block]
    gf.multiply_add(coefficient, block, out)
    assert np.array_equal(out, wanted)


def test_a_decode_can_be_shared_out(library):
    which = code("rs", 4, 2)
    blocks = blocks_of(4, 500)
    everything = blocks + summed(which.rows, blocks, library)
    present, missing = [5, 0, 3, 4], [1, 2]
    coefficients = which.decode_coefficients(present, missing)
    assert coefficients.shape == (2, 4)
    for row, index in zip(coefficients, missing, strict=True):
        out = np.zeros(500, np.uint8)
        for coefficient, source in zip(row, present, strict=True):
            gf.multiply_add(int(coefficient), everything[source], out)
        assert np.array_equal(out, everything[index])


@pytest.mark.parametrize(("data", "parity"), [(2, 1), (4, 2), (8, 2), (5, 3)])
def test_an_independent_program_writes_the_same_parity(data, parity, library):
    """pyeclib's own encoder; each of its fragments has a header before the block."""
    blocks = blocks_of(data, 512)
    fragments = ECDriver(k=data, m=parity, ec_type="isa_l_rs_cauchy").encode(b"".join(b.tobytes() for b in blocks))
    theirs = [np.frombuffer(fragment[-512:], np.uint8) for fragment in fragments]
    assert np.array_equal(np.stack(theirs[:data]), np.stack(blocks)), (
        "the fragments are not what this test takes them for"
    )
    ours = summed(code("rs", data, parity).rows, blocks, library)
    assert np.array_equal(np.stack(theirs[data:]), np.stack(ours))


def test_an_independent_program_decodes_what_we_encoded(library):
    driver = ECDriver(k=4, m=2, ec_type="isa_l_rs_cauchy")
    blocks = blocks_of(4, 512)
    message = b"".join(block.tobytes() for block in blocks)
    fragments = driver.encode(message)
    ours = summed(code("rs", 4, 2).rows, blocks, library)
    swapped = [fragments[4 + i][:-512] + parity.tobytes() for i, parity in enumerate(ours)]
    assert driver.decode([fragments[1], fragments[3], *swapped]) == message


def test_the_field_is_a_field():
    values = np.arange(256, dtype=np.uint8)
    assert all(galois_field.PRODUCTS[a, galois_field.inverse(a)] == 1 for a in range(1, 256))
    assert np.array_equal(galois_field.PRODUCTS, galois_field.PRODUCTS.T)
    for a in (3, 77, 200):
        sums = galois_field.PRODUCTS[a, values[:, None] ^ values]
        assert np.array_equal(sums, galois_field.PRODUCTS[a, values][:, None] ^ galois_field.PRODUCTS[a, values])
    with pytest.raises(ZeroDivisionError):
        galois_field.inverse(0)
    with pytest.raises(ValueError, match="no inverse"):
        galois_field.invert(np.zeros((2, 2), np.uint8))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("rot13", 2, 1), "rot13"),
        (("xor", 3, 2), "one parity block"),
        (("rs", 0, 1), "at least one"),
        (("rs", 3, 0), "at least one"),
        (("rs", 250, 6), "at most 255"),
    ],
)
def test_impossible_codes_are_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        code(*arguments)


def test_bad_blocks_are_named():
    good, other = blocks_of(2, 8)
    for coefficient, block, out, words in [
        (2, good, other[:7], "out has 7 bytes, the block has 8"),
        (1, good, np.zeros(9, np.uint8), "out has 9 bytes, the block has 8"),
        (2, good.astype(np.int16), other, r"block is int16\[8\], not contiguous uint8"),
        (1, good, np.zeros(16, np.uint8)[::2], r"out is uint8\[8\], not contiguous"),
        (2, good.reshape(2, 4), other, r"block is uint8\[2, 4\]"),
        (256, good, other, "coefficient 256"),
        (-1, good, other, "coefficient -1"),
    ]:
        with pytest.raises(ValueError, match=words):
            gf.multiply_add(coefficient, block, out)
    which = code("rs", 2, 1)
    with pytest.raises(ValueError, match="2 different blocks are needed to decode"):
        which.decode_coefficients([0], [1])
    with pytest.raises(ValueError, match="2 different blocks are needed to decode"):
        which.decode_coefficients([0, 0], [1])
    with pytest.raises(ValueError, match="block 3: this code numbers its blocks 0 to 2"):
        which.decode_coefficients([0, 1], [3])


def test_without_isal_numpy_does_the_work(monkeypatch):
    monkeypatch.setattr(isal, "load", lambda: None)
    gf.fastest.cache_clear()
    try:
        assert gf.fastest() is gf.multiply_add_by_numpy
    finally:
        gf.fastest.cache_clear()
    monkeypatch.undo()
    assert gf.fastest().__func__ is isal.Isal.multiply_add
