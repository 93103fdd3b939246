"""What a launcher and the process that checks its node say to each other, msgpack on a socket."""

from __future__ import annotations

from typing import Final

import msgspec

from mainstay.detectors.localize.model import DeviceCheck
from mainstay.probes.benchmarks.pair_protocol import PairTask
from mainstay.probes.benchmarks.result import BenchmarkResult

MAX_BYTES: Final = 256 * 1024
DEVICE_SECONDS: Final = 30.0
"""For all devices together: healthy GPUs take 2 to 3 s, and tens of seconds to set up without persistence mode."""
PAIR_SECONDS: Final = 5.0
"""For one transfer: a healthy one takes 1 s (``probes.benchmarks.pair.BUDGET_SECONDS`` on each side)."""
GRACE_SECONDS: Final = 1.0
"""Then the process is ended: it did not end by its own deadline."""


class CheckOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Launcher to process: what to check."""

    node: str
    devices: int
    """GPUs to check: those that ranks of the job may get."""
    seconds: float
    """Of a pair, from now on."""
    pair: PairTask | None = None
    """None: check the devices."""


class CheckAnswer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Process to launcher: one part of the answer."""

    port: int = 0
    """On which this side of the pair listens."""
    devices: tuple[DeviceCheck, ...] = ()
    """A device that follows again has a result now."""
    pair: BenchmarkResult | None = None


encode = msgspec.msgpack.Encoder().encode
decode_order = msgspec.msgpack.Decoder(CheckOrder).decode
decode_answer = msgspec.msgpack.Decoder(CheckAnswer).decode
