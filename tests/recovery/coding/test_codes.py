"""One conformance suite over every code and backend: any loss within the promise comes back bit for bit."""

from __future__ import annotations

from itertools import combinations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from pyeclib.ec_iface import ECDriver

from mainstay.recovery.coding import code, galois_field, gf
from mainstay.recovery.coding.backend import NAMES, find
from mainstay.recovery.coding.isal_backend import TILE

SHAPES = [("xor", k, 1) for k in (1, 2, 3, 5)] + [("rs", k, t) for k in (1, 2, 3, 4) for t in (1, 2, 3)]
SIZES = (0, 1, 7, 31, 64, 1000)


def blocks_of(count, size, seed=0):
    return list(np.random.default_rng(seed).integers(0, 256, (count, size), np.uint8))


def encoded(which, blocks):
    out = [np.full(len(blocks[0]), 0xAA, np.uint8) for _ in range(which.parity)]
    which.encode(blocks, out)
    return out


def naive(which, blocks):
    """The definition, symbol by symbol."""
    return galois_field.multiply(which.rows, np.stack(blocks))


@pytest.fixture(params=NAMES)
def backend(request):
    return request.param


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_loss_within_the_promise_comes_back(shape, backend):
    which = code(*shape, backend=backend)
    assert which.backend == backend
    for size in SIZES:
        blocks = blocks_of(which.data, size)
        everything = blocks + encoded(which, blocks)
        assert np.array_equal(np.stack(everything[which.data :]), naive(which, blocks))
        for count in range(1, which.parity + 1):
            for lost in combinations(range(len(everything)), count):
                present = {i: block for i, block in enumerate(everything) if i not in lost}
                out = [np.full(size, 0x55, np.uint8) for _ in lost]
                which.decode(present, lost, out)
                assert all(np.array_equal(everything[i], found) for i, found in zip(lost, out, strict=True)), lost


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 20), st.integers(1, 5), st.integers(0, 300), st.integers(0, 40), st.integers(0, 2**32 - 1))
def test_backends_agree_byte_for_byte_at_any_length_and_alignment(data, parity, size, shift, seed):
    rooms = blocks_of(data, size + shift, seed)
    blocks = [room[shift:] for room in rooms]
    results = [encoded(code("rs", data, parity, backend=name), blocks) for name in NAMES]
    assert np.array_equal(*map(np.stack, results))
    xors = [encoded(code("xor", data, 1, backend=name), blocks)[0] for name in NAMES]
    assert np.array_equal(xors[0], xors[1])
    assert np.array_equal(xors[0], np.bitwise_xor.reduce(blocks, axis=0))


def test_several_tiles_are_one_block(backend):
    size = 2 * TILE + 4097
    blocks = blocks_of(3, size)
    for which in (code("rs", 3, 2, backend=backend), code("xor", 3, 1, backend=backend)):
        assert np.array_equal(np.stack(encoded(which, blocks)), naive(which, blocks))
        out = np.zeros(size, np.uint8)
        for index in (2, 0, 1):
            gf.multiply_add(int(which.rows[-1, index]), blocks[index], out)
        assert np.array_equal(out, naive(which, blocks)[-1])


@pytest.mark.parametrize("coefficient", [0, 1, 2, 29, 255])
def test_multiply_add_is_the_fields(coefficient):
    block, out = blocks_of(2, 1001)
    wanted = out ^ galois_field.PRODUCTS[coefficient, block]
    gf.multiply_add(coefficient, block, out)
    assert np.array_equal(out, wanted)


def test_a_decode_can_be_shared_out(backend):
    which = code("rs", 4, 2, backend=backend)
    blocks = blocks_of(4, 500)
    everything = blocks + encoded(which, blocks)
    present, missing = [5, 0, 3, 4], [1, 2]
    coefficients = which.decode_coefficients(present, missing)
    assert coefficients.shape == (2, 4)
    for row, index in zip(coefficients, missing, strict=True):
        out = np.zeros(500, np.uint8)
        for coefficient, source in zip(row, present, strict=True):
            gf.multiply_add(int(coefficient), everything[source], out)
        assert np.array_equal(out, everything[index])


@pytest.mark.parametrize(("data", "parity"), [(2, 1), (4, 2), (8, 2), (5, 3)])
def test_an_independent_program_writes_the_same_parity(data, parity, backend):
    """pyeclib's own encoder; each of its fragments has a header before the block."""
    blocks = blocks_of(data, 512)
    fragments = ECDriver(k=data, m=parity, ec_type="isa_l_rs_cauchy").encode(b"".join(b.tobytes() for b in blocks))
    theirs = [np.frombuffer(fragment[-512:], np.uint8) for fragment in fragments]
    assert np.array_equal(np.stack(theirs[:data]), np.stack(blocks)), (
        "the fragments are not what this test takes them for"
    )
    assert np.array_equal(np.stack(theirs[data:]), np.stack(encoded(code("rs", data, parity, backend=backend), blocks)))


def test_an_independent_program_decodes_what_we_encoded(backend):
    driver = ECDriver(k=4, m=2, ec_type="isa_l_rs_cauchy")
    blocks = blocks_of(4, 512)
    message = b"".join(block.tobytes() for block in blocks)
    fragments = driver.encode(message)
    ours = encoded(code("rs", 4, 2, backend=backend), blocks)
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
    which = code("rs", 2, 1)
    good, out = blocks_of(2, 8), [np.zeros(8, np.uint8)]
    for blocks, results, words in [
        (good[:1], out, "takes 2 data blocks, not 1"),
        (good, [], "takes 1 outputs, not 0"),
        ([good[0], good[1][:7]], out, "data block 1 has 7 bytes, the others have 8"),
        (good, [np.zeros(9, np.uint8)], "output 0 has 9 bytes"),
        ([good[0], good[1].astype(np.int16)], out, "data block 1 is int16"),
        ([good[0], np.zeros(16, np.uint8)[::2]], out, "not contiguous"),
    ]:
        with pytest.raises(ValueError, match=words):
            which.encode(blocks, results)
    with pytest.raises(ValueError, match="2 different blocks are needed to decode"):
        which.decode({0: good[0]}, [1], out)
    with pytest.raises(ValueError, match="block 3: this code numbers its blocks 0 to 2"):
        which.decode_coefficients([0, 1], [3])
    with pytest.raises(ValueError, match="coefficient 256"):
        gf.multiply_add(256, good[0], out[0])


def test_without_isal_numpy_does_the_work(monkeypatch):
    monkeypatch.setattr("mainstay.recovery.coding.backend.load", lambda: None)
    find.cache_clear()
    try:
        assert code("rs", 4, 2).backend == "numpy"
        with pytest.raises(ValueError, match=r"mainstay\[codes\]"):
            code("rs", 4, 2, backend="isa-l")
        with pytest.raises(ValueError, match="one of isa-l, numpy"):
            code("rs", 4, 2, backend="fortran")
    finally:
        find.cache_clear()
