"""Fixtures of a coordinator in this process with fake launchers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from mainstay.recovery.options import RunOptions
from tests.recovery.launcher.fake_launchers import World, running


@pytest.fixture
def options(tmp_path: Path) -> RunOptions:
    """Two nodes of two ranks."""
    return RunOptions(
        nnodes=2, node_rank=0, nproc=2, host="127.0.0.1", port=0, node="node-0", job="job", token="secret", spares=1,
        preload=(), parity_every=0, disk_every=0, checkpoint_dir=None, max_restarts=10, state_dir=tmp_path / "state",
        service=None, service_token="", quorum=2, join_seconds=5.0, ready_seconds=10.0, node_seconds=5.0,
        script="train.py", module=False, argv=(),
    )  # fmt: skip


@pytest.fixture
def play() -> Callable[[Coroutine[Any, Any, None]], None]:
    """Run a test's coroutine."""

    def run(work: Coroutine[Any, Any, None]) -> None:
        asyncio.run(work)

    return run


@pytest.fixture(name="running")
def _running() -> Callable[..., Any]:
    return running


@pytest.fixture(name="new_world")
def _new_world() -> type[World]:
    return World


@pytest.fixture
def forming(new_world: Any) -> Any:
    """A job whose launchers have all come, and that may not have a rank yet."""

    @contextlib.asynccontextmanager
    async def run(options: RunOptions) -> AsyncIterator[Any]:
        world = new_world(options)
        await world.start()
        try:
            for number in range(options.nnodes):
                await world.connect(number)
            yield world
        finally:
            await world.close()

    return run
