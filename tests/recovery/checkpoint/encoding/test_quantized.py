"""Quantized blobs: sizes, error bounds that hold for every value, and what is never quantized."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from mainstay.recovery.checkpoint.encoding.quantized import (
    BITS,
    can_quantize,
    decode_quantized,
    encode_quantized,
    rounded_to_bfloat16,
)
from mainstay.recovery.checkpoint.encoding.tensor_blob import QuantizedHeader, join, split
from mainstay.recovery.checkpoint.manifest import CheckpointError
from mainstay.recovery.memory.layout import Layout, TensorSpec

Floats = NDArray[np.float32]


def spec_of(values: NDArray[np.generic], dtype: str = "float32") -> TensorSpec:
    return Layout.build({"param.w": (dtype, values.shape)}).tensors[0]


def raw(values: NDArray[np.generic]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)


def decode(spec: TensorSpec, blob: bytes) -> tuple[Floats, Floats, QuantizedHeader]:
    """Values, and the bound and kind of each."""
    header, sections = split(blob, spec)
    assert isinstance(header, QuantizedHeader)
    out = np.zeros(spec.nbytes, np.uint8)
    bound = decode_quantized(header, sections, spec, out)
    values = out.view(np.float32)
    return values, np.repeat(bound, header.group)[: len(values)], header


def table(seed: int, rows: int = 512, width: int = 64) -> Floats:
    """Rows of different sizes, some with an outlier, one constant, one zero."""
    random = np.random.default_rng(seed)
    values = random.normal(0, 0.05, (rows, width)) * random.lognormal(0, 1, (rows, 1))
    values[::7, 3] *= 20
    values[1], values[2] = 0.25, 0
    return values.astype(np.float32)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("width", [1, 5, 64, 100, 128, 1024, 3000])
def test_every_value_is_within_the_bound_of_its_row(bits: int, width: int) -> None:
    values = table(width, rows=37, width=max(width, 4))
    spec = spec_of(values)
    blob = encode_quantized(spec, raw(values), bits)
    assert blob is not None
    decoded, bound, _ = decode(spec, blob)
    error = np.abs(decoded.astype(np.float64) - values.reshape(-1))
    assert (error <= bound).all()
    assert np.median(bound) < np.abs(values).max()


@pytest.mark.parametrize("bits", BITS)
def test_second_moments_keep_their_size_and_zeros_stay_zero(bits: int) -> None:
    random = np.random.default_rng(3)
    values = np.exp(random.normal(-18, 3, (64, 128))).astype(np.float32)
    values[5], values[6, ::2] = 0, 0
    spec = spec_of(values)
    blob = encode_quantized(spec, raw(values), bits)
    assert blob is not None
    decoded, bound, header = decode(spec, blob)
    assert header.kind == "logarithmic"
    flat = values.reshape(-1)
    assert ((decoded == 0) == (flat == 0)).all()
    assert (np.abs(decoded.astype(np.float64) - flat) <= bound.astype(np.float64) * flat).all()
    assert bound.max() < {8: 0.1, 4: 1.5, 2: 1e9}[bits]


@pytest.mark.parametrize("bits", BITS)
def test_no_first_moment_more_than_doubles(bits: int) -> None:
    """Adam divides it by the root of a second moment, which keeps its size: a small one may not become large."""
    random = np.random.default_rng(8)
    values = random.normal(0, 1, (96, 128)) * 10.0 ** random.uniform(-9, 0, (96, 128))
    values[::6], values[1::6] = np.abs(values[::6]), -np.abs(values[1::6])
    values[2::6, ::3] = 0
    values[3::6, 1:] += 5
    values[4::6, 1:] -= 5
    values = values.astype(np.float32)
    spec = spec_of(values)
    blob = encode_quantized(spec, raw(values), bits)
    assert blob is not None
    decoded, _, header = decode(spec, blob)
    assert header.kind == "uniform"
    assert (np.abs(decoded) <= np.abs(values.reshape(-1)) * 2.001).all()


@pytest.mark.parametrize(("bits", "smaller"), [(8, 3.5), (4, 6), (2, 10)])
def test_sizes(bits: int, smaller: float) -> None:
    for values in (table(1, rows=4096), np.square(table(2, rows=4096, width=256))):
        blob = encode_quantized(spec_of(values), raw(values), bits)
        assert blob is not None
        assert values.nbytes / len(blob) >= smaller


def squared_error(values: Floats, bits: int) -> float:
    blob = encode_quantized(spec_of(values), raw(values), bits)
    assert blob is not None
    return float(np.square(decode(spec_of(values), blob)[0] - values.reshape(-1)).sum())


@pytest.mark.parametrize("bits", [4, 2])
def test_searched_ends_beat_the_plain_range(bits: int) -> None:
    values = np.random.default_rng(4).standard_t(4, (256, 512)).astype(np.float32)
    low, high = values.min(axis=1, keepdims=True), values.max(axis=1, keepdims=True)
    step = (high - low) / (2**bits - 1)
    plain = float(np.square(low + np.rint((values - low) / step) * step - values).sum())
    assert squared_error(values, bits) < 0.8 * plain


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision(dtype: str) -> None:
    values = table(7)
    halves = rounded_to_bfloat16(values) if dtype == "bfloat16" else values.astype(np.float16)
    spec = spec_of(halves, dtype)
    assert can_quantize(spec)
    blob = encode_quantized(spec, raw(halves), 8)
    assert blob is not None
    header, sections = split(blob, spec)
    assert isinstance(header, QuantizedHeader)
    out = np.zeros(spec.nbytes, np.uint8)
    decode_quantized(header, sections, spec, out)
    back = (out.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    back = back if dtype == "bfloat16" else out.view(np.float16).astype(np.float32)
    assert np.abs(back.reshape(values.shape) - values).max() < 0.02 * np.abs(values).max()


def test_rounding_to_bfloat16_is_that_of_torch() -> None:
    torch = pytest.importorskip("torch")
    values = np.random.default_rng(8).integers(0, 2**32, 100_000, np.uint32).view(np.float32)
    values = np.concatenate([values[np.isfinite(values)], [0.0, -0.0, 1.00390625, 1.01171875]]).astype(np.float32)
    theirs = torch.from_numpy(values).bfloat16().view(torch.int16).numpy().view(np.uint16)
    assert np.array_equal(rounded_to_bfloat16(values), theirs)


def test_what_is_never_quantized() -> None:
    for bad in (np.inf, np.nan):
        values = np.array([1, 2, bad], np.float32)
        assert encode_quantized(spec_of(values), raw(values), 8) is None
    steps = np.arange(4, dtype=np.int64)
    assert not can_quantize(spec_of(steps, "int64"))
    assert not can_quantize(spec_of(np.zeros(4), "float64"))
    wide = np.array([-3e38, 3e38], np.float32)
    assert encode_quantized(spec_of(wide), raw(wide), 8) is None
    with pytest.raises(ValueError, match="cannot quantize"):
        encode_quantized(spec_of(wide), raw(wide), 3)


def test_damage_is_refused() -> None:
    values = table(9, rows=4)
    spec = spec_of(values)
    blob = encode_quantized(spec, raw(values), 4)
    assert blob is not None
    wanted = decode(spec, blob)[0]
    for at in range(0, len(blob), 3):
        flipped = bytearray(blob)
        flipped[at] ^= 0x10
        try:
            assert np.array_equal(decode(spec, bytes(flipped))[0], wanted)  # the bounds, or a bit without a meaning
        except CheckpointError:
            continue
    header, _ = split(blob, spec)
    for change in ({"bits": 5}, {"group": 7}, {"kind": "other"}, {"unit": 256}, {"unit": 256, "base": 1}):
        import msgspec

        with pytest.raises(CheckpointError):
            decode(spec, join(msgspec.structs.replace(header, **change), [b""]))
