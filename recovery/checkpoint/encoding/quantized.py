"""Tensors in 8, 4, or 2 bits a value, by groups of a row each (Check-N-Run, NSDI'22, section 4.2).

``uniform``      codes between a least and a greatest value of each group; with fewer than 8 bits these are searched
                 greedily for the least squared error ("adaptive asymmetric" there); zero is a code where it is near,
                 so no value more than doubles: Adam divides small first moments by small second ones
``logarithmic``  codes of the logarithm, where no value is negative: a uniform code would make zeros of small second
                 moments of Adam, and then steps without a limit

The error bound of each group is measured by decoding, and stored. Decoding uses only operations that every processor
rounds alike, so the digest of the decoded values holds everywhere.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from mainstay.recovery.checkpoint.encoding.tensor_blob import QuantizedHeader, Sections, chunks, join, stored
from mainstay.recovery.checkpoint.logical import values_of
from mainstay.recovery.checkpoint.manifest import CheckpointError
from mainstay.recovery.memory.digest import Bytes, digest
from mainstay.recovery.memory.layout import DTYPES, TensorSpec

Floats = npt.NDArray[np.float32]
Codes = npt.NDArray[np.uint8]

BITS: Final = (8, 4, 2)
_DTYPES: Final = ("float32", "bfloat16", "float16")
_GROUP: Final = 128
"""Values of a group where rows are no good groups: 8 bytes of parameters and bound are 6% of 8-bit codes."""
_ROW: Final = (64, 1024)
_PARAMETERS: Final = 6
"""Bytes of the parameters of a group."""
_AT_ONCE: Final = 64 * 1024
"""Values that are searched at once: the passes of the search stay in the cache."""
_BINS, _KEPT = 20, 0.5
"""The greedy search moves an end by range / _BINS until _KEPT of the range is left."""
_LOG_UNIT: Final = 1 << 15
"""Steps of logarithmic codes are multiples of 2^15 of 2^23, about 0.4% of a factor of two."""


def can_quantize(spec: TensorSpec) -> bool:
    """Whether the tensor holds floats of up to 32 bits, and so many that it pays: step counters stay exact."""
    return spec.dtype in _DTYPES and math.prod(spec.shape) >= _GROUP


def encode_quantized(spec: TensorSpec, data: Bytes, bits: int) -> bytes | None:
    """The blob of a tensor; None if a value is not finite, or the range too wide for 32-bit arithmetic.

    Args:
        spec: of the tensor, for which ``can_quantize``.
        data: uint8 [spec.nbytes].
        bits: 8, 4, or 2.

    Raises:
        ValueError: other bits.
    """
    if bits not in BITS:
        raise ValueError(f"cannot quantize to {bits} bits; choose from 8, 4, 2")
    flat = _floats(spec, data)
    if not np.isfinite(flat).all():
        return None
    kind = "uniform" if np.signbit(flat).any() else "logarithmic"
    group = _group(spec)
    values = np.pad(flat, (0, -len(flat) % group), mode="edge").reshape(-1, group)
    codes, parameters = np.empty(values.shape, np.uint8), np.empty((len(values), _PARAMETERS), np.uint8)
    for part in chunks(len(values), max(1, _AT_ONCE // group)):
        codes[part], parameters[part] = _ENCODERS[kind](values[part], bits)
    with np.errstate(over="ignore", invalid="ignore"):
        decoded = _DECODERS[kind](codes, parameters)
        bound = _bounds(values, decoded, relative=kind == "logarithmic")
    if not np.isfinite(decoded).all() or not np.isfinite(bound).all():
        return None
    header = QuantizedHeader(
        dtype=spec.dtype, shape=spec.shape, kind=kind, bits=bits, group=group, error=float(bound.max(initial=0)),
        digest=digest(_bytes(spec, decoded, len(flat))),
    )  # fmt: skip
    halves = (bound.view(np.uint32) >> 16).astype(np.uint16)
    return join(header, [stored(_pack(codes, bits)), stored(parameters), stored(halves)])


def decode_quantized(header: QuantizedHeader, sections: Sections, spec: TensorSpec, out: Bytes) -> Floats:
    """Decode, and give the error bounds.

    Args:
        header: of the blob.
        sections: of the blob.
        spec: of the tensor.
        out: uint8 [spec.nbytes].

    Returns:
        [groups]: the largest error of a value in each group of ``header.group`` values; of ``logarithmic`` groups,
        relative to the value.

    Raises:
        CheckpointError: the sections do not fit, or decode to other values; ``out`` is worthless.
    """
    fits = spec.dtype in _DTYPES and header.kind in _DECODERS and header.bits in BITS
    if not fits or header.group != _group(spec) or header.unit:
        raise CheckpointError(f"{sections.what} has an impossible header")
    count = math.prod(spec.shape)
    groups = -(-count // header.group)
    codes = _unpack(sections.read(groups * header.group * header.bits // 8), header.bits).reshape(groups, header.group)
    parameters = sections.read(groups * _PARAMETERS).reshape(groups, _PARAMETERS)
    bound = (sections.read(groups * 2).view("u2").astype(np.uint32) << 16).view(np.float32)
    sections.finish()
    with np.errstate(over="ignore", invalid="ignore"):
        out[:] = _bytes(spec, _DECODERS[header.kind](codes, parameters), count)
    if digest(out) != header.digest:
        raise CheckpointError(f"{sections.what} decodes to other values than were written")
    return bound


def _group(spec: TensorSpec) -> int:
    row = spec.shape[-1] if spec.shape else 1
    return row if _ROW[0] <= row <= _ROW[1] and row % 4 == 0 else _GROUP


def _floats(spec: TensorSpec, data: Bytes) -> Floats:
    return values_of(data.view(DTYPES[spec.dtype]), spec.dtype).astype(np.float32, copy=False)


def _bytes(spec: TensorSpec, values: Floats, count: int) -> Bytes:
    """The first ``count`` values, without padding, as bytes of the dtype."""
    flat = np.ascontiguousarray(values).reshape(-1)[:count]
    if spec.dtype == "float16":
        return flat.astype(np.float16).view(np.uint8)
    return (rounded_to_bfloat16(flat) if spec.dtype == "bfloat16" else flat).view(np.uint8)


def rounded_to_bfloat16(values: Floats) -> npt.NDArray[np.uint16]:
    """The bits of finite values as bfloat16, rounded to nearest even as torch does."""
    bits = values.view(np.uint32)
    return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)


def _rounded_up(values: Floats) -> Floats:
    """To the next float whose lower 16 bits are zero: what two bytes hold. Not for negative values."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0xFFFF) & np.uint32(0xFFFF0000)).view(np.float32)


def _bounds(values: Floats, decoded: Floats, *, relative: bool) -> Floats:
    error = np.abs(decoded.astype(np.float64) - values)
    if relative:
        error = np.divide(error, values, out=np.where(error == 0, 0, np.inf), where=values != 0)
    return _rounded_up(np.nextafter(error.max(axis=1).astype(np.float32), np.float32(np.inf)))


def _pack(codes: Codes, bits: int) -> Codes:
    packed: Codes = np.bitwise_or.reduce(codes.reshape(-1, 8 // bits) << _shifts(bits), axis=1)
    return packed


def _unpack(packed: Codes, bits: int) -> Codes:
    return ((packed[:, None] >> _shifts(bits)) & np.uint8(2**bits - 1)).reshape(-1)


def _shifts(bits: int) -> Codes:
    return np.arange(0, 8, bits).astype(np.uint8)


# Uniform: parameters are the least value (float32) and the step (upper half of a float32)


def _uniform_codes(values: Floats, low: Floats, step: Floats, bits: int) -> Floats:
    codes = values - low[:, None]
    codes *= np.divide(1, step, out=np.zeros_like(step), where=step > 0)[:, None]
    np.rint(codes, out=codes)
    return np.clip(codes, 0, 2**bits - 1, out=codes)


def _encode_uniform(values: Floats, bits: int) -> tuple[Codes, Codes]:
    low, high = values.min(axis=1), values.max(axis=1)
    with np.errstate(over="ignore", invalid="ignore"):
        if bits < BITS[0]:
            ends = _search_ends(values, low, high, bits)
            low, high = np.minimum(ends[0], np.maximum(2 * low, 0)), np.maximum(ends[1], np.minimum(2 * high, 0))
        step = _rounded_up((high - low) / (2**bits - 2))
        whole = np.floor(np.divide(low, step, out=np.zeros_like(low), where=step > 0))
        low = np.where((step > 0) & (np.abs(whole) < 2**bits), whole * step, low)
        codes = np.nan_to_num(_uniform_codes(values, low, step, bits)).astype(np.uint8)
    return codes, np.hstack([low[:, None].view(np.uint8), step[:, None].view(np.uint8)[:, 2:]])


def _search_ends(values: Floats, low: Floats, high: Floats, bits: int) -> tuple[Floats, Floats]:
    """Greedy: move the end whose move costs less, keep the ends with the least squared error of all."""
    move: Floats = (high - low) / np.float32(_BINS)
    best = (low, high, _squared_error(values, low, high, bits))
    for _ in range(round(_BINS * (1 - _KEPT))):
        up, down = low + move, high - move
        error_up, error_down = _squared_error(values, up, high, bits), _squared_error(values, low, down, bits)
        rising = error_up < error_down
        low, high = np.where(rising, up, low), np.where(rising, high, down)
        error = np.minimum(error_up, error_down)
        better = error < best[2]
        best = (np.where(better, low, best[0]), np.where(better, high, best[1]), np.minimum(error, best[2]))
    return best[0], best[1]


def _squared_error(values: Floats, low: Floats, high: Floats, bits: int) -> Floats:
    step = (high - low) / (2**bits - 1)
    error = _uniform_codes(values, low, step, bits)
    error *= step[:, None]
    error += low[:, None]
    error -= values
    total: Floats = np.einsum("ij,ij->i", error, error)
    return total


def _decode_uniform(codes: Codes, parameters: Codes) -> Floats:
    low = np.ascontiguousarray(parameters[:, :4]).view(np.float32)
    step = np.pad(parameters[:, 4:], ((0, 0), (2, 0)))
    decoded = codes.astype(np.float32)
    decoded *= step.view(np.float32)
    decoded += low
    return decoded


# Logarithmic: the bits of a positive float, as a number, are its logarithm but for a small bend (Mitchell, 1962).
# Code 0 is zero; parameters are the least number (uint32) and the step (uint16, of _LOG_UNIT)


def _encode_logarithmic(values: Floats, bits: int) -> tuple[Codes, Codes]:
    number, positive = np.ascontiguousarray(values).view(np.uint32), values > 0
    low = number.min(axis=1, where=positive, initial=0x7F800000)
    reach = np.maximum(number.max(axis=1), low) - low
    whole = (2**bits - 2) * _LOG_UNIT
    unit = (reach + (whole - 1)) // whole
    step = np.maximum(unit, 1)[:, None] * np.uint32(_LOG_UNIT)
    codes = np.where(positive, (np.maximum(number, low[:, None]) - low[:, None] + step // 2) // step + 1, 0)
    parameters = np.hstack([low[:, None].view(np.uint8), unit.astype(np.uint16)[:, None].view(np.uint8)])
    return codes.astype(np.uint8), parameters


def _decode_logarithmic(codes: Codes, parameters: Codes) -> Floats:
    low = np.ascontiguousarray(parameters[:, :4]).view(np.uint32)
    step = np.ascontiguousarray(parameters[:, 4:]).view(np.uint16) * np.uint32(_LOG_UNIT)
    number = (codes.astype(np.uint32) - np.uint32(1)) * step + low
    return np.where(codes > 0, number, np.uint32(0)).view(np.float32)


_ENCODERS: Final = {"uniform": _encode_uniform, "logarithmic": _encode_logarithmic}
_DECODERS: Final = {"uniform": _decode_uniform, "logarithmic": _decode_logarithmic}
