"""Fixtures of the node floor's tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from hypothesis import settings

from bench.lib_receiver import Receiver

# A shared machine has slow moments, and a test that fails must fail again.
settings.register_profile("mainstay", deadline=None, derandomize=True)
settings.load_profile("mainstay")


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A stand-in for the service that records what it takes."""
    with Receiver() as started:
        yield started


@pytest.fixture(autouse=True)
def _quiet_pool() -> None:
    logging.getLogger("urllib3").setLevel(logging.ERROR)
