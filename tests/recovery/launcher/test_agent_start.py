"""An agent that is not up in time is ended, and its launcher reports the reason."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from mainstay.recovery.node import agent_supervisor
from mainstay.recovery.node.agent_supervisor import AgentSupervisor
from mainstay.recovery.node.worker_output import OutputPump
from mainstay.recovery.options import RunOptions


@pytest.mark.parametrize(
    ("code", "words"), [("import time; time.sleep(600)", "did not start within"), ("exit(3)", "ended (exit code 3)")]
)
def test_why_it_is_gone(
    code: str, words: str, options: RunOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = 0.2 if "sleep" in code else 60.0
    monkeypatch.setattr(agent_supervisor, "_START_SECONDS", seconds)
    monkeypatch.setattr(AgentSupervisor, "_arguments", lambda *_: ["-c", code])

    async def keep(_: Any) -> None: ...

    monkeypatch.setattr(AgentSupervisor, "_keep", keep)

    async def serve() -> str:
        supervisor = AgentSupervisor(options, tmp_path, OutputPump(), lambda _: None)
        await supervisor._serve()
        await supervisor.stop()
        return supervisor.problem

    assert words in asyncio.run(serve())
