"""``mainstay.recovery.examples.train`` over the backend that behaves as NCCL does."""

from __future__ import annotations

import functools

import mainstay
from bench import lib_nccl_like
from mainstay.recovery.examples import train

if __name__ == "__main__":
    lib_nccl_like.register()
    mainstay.init = functools.partial(mainstay.init, backend=lib_nccl_like.NAME)
    train.main()
