"""The error bound of quantized values, as parts and manifests state it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class QuantizationBound(msgspec.Struct, frozen=True):
    """How far quantized values may be from those that were saved."""

    bits: int
    """Of a value."""
    absolute: float
    """The largest error, of tensors that have negative values."""
    relative: float
    """The largest error in relation to the value, of tensors that have none."""

    def __str__(self) -> str:
        return (
            f"{self.bits} bits a value, with errors of at most {self.absolute:.2g}, or {self.relative:.2g} of the value"
        )

    @classmethod
    def of_all(cls, bounds: Iterable[QuantizationBound | msgspec.UnsetType]) -> QuantizationBound | msgspec.UnsetType:
        """The bound that holds for all; not there: none of them is quantized."""
        found = [bound for bound in bounds if bound is not msgspec.UNSET]
        if not found:
            return msgspec.UNSET
        return cls(min(b.bits for b in found), max(b.absolute for b in found), max(b.relative for b in found))
