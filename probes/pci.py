"""PCI addresses in one spelling: the kernel, the driver and NVML each write their own."""

from __future__ import annotations

import re
from typing import Final

_ADDRESS: Final = re.compile(r"(?:([0-9a-fA-F]{1,8}):)?([0-9a-fA-F]{1,2}):([0-9a-fA-F]{1,2})(?:\.([0-7]))?")


def canonical(text: str) -> str | None:
    """``0000:0a:00.0`` from ``00000000:0A:00.0``, ``0000:0a:00`` or ``0a:00.0``; None when it is no address.

    Without a function it is the first one, without a domain domain 0: so they are meant where they are left out.
    """
    found = _ADDRESS.fullmatch(text.strip())
    if found is None:
        return None
    domain, bus, device, function = found.groups()
    return f"{int(domain or '0', 16):04x}:{int(bus, 16):02x}:{int(device, 16):02x}.{function or 0}"
