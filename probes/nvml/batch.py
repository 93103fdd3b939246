"""Many fields of one card in one call, one lock of the driver.

The array of questions is built once and copied over the last answers before each call; answers are unpacked in place.
(nvidia-ml-py's own wrapper builds an array of objects at every call, which costs 45 times as much.) One batch serves
one thread at a time.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from mainstay.probes.nvml.errors import GONE, NEVER, STALE, SUCCESS, UNKNOWN, NeverError, check

Key = tuple[int, int]
"""Field number and scope (a link's number; 0 for the card)."""

_ENTRY: Final = struct.Struct("<IIqqIIQ")
"""field, scope, time stamp, latency, value type, return code, value: nvmlFieldValue_t, 40 bytes."""
_FATAL: Final = GONE | STALE


def _double(raw: int) -> float:
    return float(struct.unpack("<d", struct.pack("<Q", raw))[0])


def _signed(bits: int) -> Callable[[int], float]:
    return lambda raw: ((raw & ((1 << bits) - 1)) ^ (1 << (bits - 1))) - (1 << (bits - 1))


_DECODE: Final[tuple[Callable[[int], float], ...]] = (
    _double,
    lambda raw: raw & 0xFFFFFFFF,
    lambda raw: raw,
    lambda raw: raw,
    _signed(64),
    _signed(32),
    lambda raw: raw & 0xFFFF,
)
"""By value type: double, unsigned int, unsigned long, unsigned long long, long long, int, unsigned short. The driver
fills only as many bytes of the value as its type has."""


class FieldBatch:
    """The fields of ``keys`` that this card supports, as far as is known."""

    def __init__(self, nvml: Any, keys: Iterable[Key]) -> None:
        self._nvml = nvml
        self.keys: tuple[Key, ...] = ()
        self.kinds: dict[Key, int] = {}
        """NVML's value type of what was answered."""
        self._questions = b""
        self._buffer: Any = None
        self._ask(tuple(keys))

    def read(self, handle: Any) -> dict[Key, float]:
        """What the card answers now. Empty when the call did not work this time, or never will.

        Raises:
            StaleError, GoneError: see ``mainstay.probes.nvml.errors``.
        """
        if not self.keys:
            return {}
        try:
            code = self._call(handle)
            check(code)
        except NeverError:
            self._ask(())
            return {}
        return self._answers() if code == SUCCESS else {}

    def _call(self, handle: Any) -> int:
        try:
            function = self._nvml.nvmlLib.nvmlDeviceGetFieldValues
        except AttributeError as error:
            raise NeverError("the driver has no nvmlDeviceGetFieldValues") from error
        ctypes.memmove(self._buffer, self._questions, len(self._questions))
        return int(function(handle, len(self.keys), self._buffer))

    def _answers(self) -> dict[Key, float]:
        answers: dict[Key, float] = {}
        dropped = []
        for field, scope, _, _, kind, code, raw in _ENTRY.iter_unpack(self._buffer):
            if code == SUCCESS and kind < len(_DECODE):
                answers[field, scope] = _DECODE[kind](raw)
                self.kinds[field, scope] = kind
            elif code in NEVER:
                dropped.append((field, scope))
            elif code in _FATAL:
                check(code)
        if dropped:
            self._ask(tuple(key for key in self.keys if key not in dropped))
        return answers

    def _ask(self, keys: Sequence[Key]) -> None:
        self.keys = tuple(keys)
        # An entry that the driver leaves alone must not pass for an answer.
        self._questions = b"".join(_ENTRY.pack(field, scope, 0, 0, 0, UNKNOWN, 0) for field, scope in self.keys)
        self._buffer = (ctypes.c_char * len(self._questions))()
