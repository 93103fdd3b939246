"""One mantissa bit flipped in the product of one matrix multiply of a real torch computation, forward or backward.

The flip sits under autograd and under every module (``TorchDispatchMode``): what follows computes on with the wrong
bit, as it would on a device whose multiplier is wrong once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

MANTISSA_BITS = 23
_PRODUCTS = frozenset(("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm"))


class FlipBit(TorchDispatchMode):
    """Counts matrix products; flips ``bit`` of ``element`` of number ``product``, if there is one.

    Args:
        product: which, from 0; None only counts.
        element: in the flattened product, modulo its size.
        bit: of the float32's mantissa, 0 the least.
    """

    def __init__(self, product: int | None = None, element: int = 0, bit: int = 0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.product, self.element, self.bit = product, element, bit
        self.seen = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Torch's hook: every operation of the computation comes through here."""
        made = func(*args, **(kwargs or {}))
        if func.name().split(".")[0] in _PRODUCTS:
            if self.seen == self.product:
                flip(made, self.element, self.bit)
            self.seen += 1
        return made


def flip(product: torch.Tensor, element: int, bit: int) -> None:
    """Flip one mantissa bit in place.

    Raises:
        ValueError: not a contiguous float32 tensor, or no such bit.
    """
    if product.dtype is not torch.float32 or not product.is_contiguous() or not 0 <= bit < MANTISSA_BITS:
        raise ValueError(f"bit {bit} of a {product.dtype} tensor: only bits 0 to 22 of contiguous float32 are flipped")
    flat = product.view(torch.int32).view(-1)
    flat[element % flat.numel()] ^= 1 << bit
