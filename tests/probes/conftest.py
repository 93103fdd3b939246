"""Fixtures of the node floor's tests."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bench.lib_receiver import Receiver
from tests.fakes.fleet import FakeFleet, compile_fake
from tests.fakes.simulated_driver import Driven, StartNvml


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A stand-in for the service that records what it takes."""
    with Receiver() as started:
        yield started


@pytest.fixture(autouse=True)
def _quiet_pool() -> None:
    logging.getLogger("urllib3").setLevel(logging.ERROR)


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The simulated driver's library by variant, built once each."""
    built: dict[str, Path] = {}

    def build(variant: str) -> Path:
        if variant not in built:
            built[variant] = compile_fake(tmp_path_factory.mktemp(variant), variant)
        return built[variant]

    return build


@pytest.fixture
def start_nvml(nvml_library: Callable[[str], Path], tmp_path: Path) -> Iterator[StartNvml]:
    """Start the NVML sampler on a fresh fleet: ``start_nvml(cards, personality, variant, listen=…)``."""
    with ExitStack() as stack:

        def start(
            cards: int = 2, personality: str = "h100", variant: str = "current", *, listen: bool = False
        ) -> tuple[FakeFleet, Driven]:
            fleet = FakeFleet.create(tmp_path / "gpus", cards, personality)
            return fleet, stack.enter_context(Driven(fleet.environment(nvml_library(variant)), listen=listen))

        yield start
