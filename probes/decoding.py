"""The errors that decoding foreign bytes can raise, named once: a decoder is only as safe as its ``except``.

msgspec checks UTF-8 lazily and recurses: it also raises ``UnicodeDecodeError`` and ``RecursionError``.
"""

from __future__ import annotations

from typing import Final

import msgspec

UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Truncated, of another shape, not UTF-8, or nested deeper than the stack."""
