"""Erasure codes over equal blocks: XOR and Reed-Solomon. See ``code`` and ``gf``."""

from mainstay.recovery.coding.codes import Code, code

__all__ = ["Code", "code"]
