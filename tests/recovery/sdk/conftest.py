"""What tests of process groups meet through."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from torch.distributed import TCPStore


@pytest.fixture
def store() -> Iterator[int]:
    """Port of a store that no rank hosts."""
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield server.port
    del server
