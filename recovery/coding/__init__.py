"""Erasure codes over equal blocks: XOR and Reed-Solomon, the same bytes from every backend. See ``code``."""

from mainstay.recovery.coding.codes import Code, code

__all__ = ["Code", "code"]
