"""Plain data in a fixed room, as msgpack. NaN and infinity survive; objects are refused.

Small tensors inside (a scheduler's learning rates, a sampler's generator) travel as dtype, shape and bits.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np
import torch

from mainstay.probes.decoding import UNREADABLE
from mainstay.recovery.memory import varlen_buffer
from mainstay.recovery.memory.digest import Bytes
from mainstay.recovery.memory.errors import CorruptArenaError
from mainstay.recovery.memory.layout import DTYPES

_TENSOR: Final = "mainstay.tensor"


def _encode_tensor(item: object) -> Any:
    if not isinstance(item, torch.Tensor):
        raise TypeError(f"{type(item).__module__}.{type(item).__name__}")
    bits = item.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return {_TENSOR: [str(item.dtype).removeprefix("torch."), list(item.shape), bits]}


def _revive(item: Any) -> Any:
    if isinstance(item, list):
        return [_revive(part) for part in item]
    if not isinstance(item, dict):
        return item
    if item.keys() == {_TENSOR}:
        name, shape, bits = item[_TENSOR]
        dtype = getattr(torch, name if name in DTYPES else "uint8")
        return torch.from_numpy(np.frombuffer(bits, np.uint8).copy()).view(dtype).reshape(shape)
    return {key: _revive(part) for key, part in item.items()}


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_tensor)


def write(data: dict[str, Any], out: Bytes) -> None:
    """Encode ``data`` into ``out``.

    Raises:
        ValueError: not plain data, or more than ``out`` holds; names the type or the bytes.
    """
    varlen_buffer.write_bytes(_encode(data), out)


def size(data: dict[str, Any]) -> int:
    """Bytes of room that ``write`` would need.

    Raises:
        ValueError: not plain data; names the type.
    """
    return varlen_buffer.needed(_encode(data))


def _encode(data: dict[str, Any]) -> bytes:
    try:
        return _encoder.encode(data)
    except (TypeError, OverflowError) as error:
        raise ValueError(
            f"a snapshot keeps numbers, text, bytes, lists and dicts beside the tensors, not {error}"
        ) from error


def read(raw: Bytes) -> dict[str, Any]:
    """What ``write`` put there.

    Raises:
        CorruptArenaError: something else lies there.
    """
    try:
        data: dict[str, Any] = msgspec.msgpack.decode(varlen_buffer.read_bytes(raw), type=dict[str, Any])
    except UNREADABLE as error:
        raise CorruptArenaError(f"the scalars of the snapshot are damaged: {error}") from error
    return {name: _revive(item) for name, item in data.items()}
