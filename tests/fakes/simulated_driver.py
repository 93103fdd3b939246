"""A sampler in a process of its own, told what to do over a pipe: the test changes its world between two steps.

with Driven(environment) as sampler:
    readings = sampler.sample(1.0)       # device -> signal -> value
    sampler.start_read("nvml/GPU-…", 2.0) # in a thread; may hang
    events = sampler.wait_events(1)      # SourceEvent as dictionaries, "heard" = time.time() of the report
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from tests.fakes.fleet import FakeFleet

ROOT = Path(__file__).resolve().parents[2]


class Driven:
    """The test's end."""

    def __init__(self, environment: dict[str, str], sampler: str = "nvml", *, listen: bool = True) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fakes.simulated_driver", sampler],
            cwd=ROOT, env={**os.environ, **environment}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._log = ""
        self._marks = 0
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        if listen:
            self.do("listen")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait(60)
        self._reader.join(60)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def do(self, what: str, *arguments: Any) -> Any:
        """Run a method of ``Child`` and return what it returns."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([what, *arguments]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the sampler's process ended:\n{self._log}"
        return json.loads(line)

    @property
    def log(self) -> str:
        """Everything that was logged until now."""
        self._marks += 1
        mark = f"-- mark {self._marks} --"
        self.do("mark", mark)
        deadline = time.monotonic() + 60
        while mark not in self._log:
            assert time.monotonic() < deadline, self._log
            time.sleep(0.005)
        return self._log

    def sample(self, t: float) -> dict[str, dict[str, float]]:
        readings: dict[str, dict[str, float]] = self.do("sample", t)
        return readings

    def start_channel(self, name: str, t: float) -> None:
        self.do("start_channel", name, t)

    def channel(self, name: str, timeout: float = 5.0) -> dict[str, dict[str, float]] | None:
        """What the channel that was started gave; None while it hangs."""
        return self.do("channel", name, timeout)  # type: ignore[no-any-return]

    def events(self) -> list[dict[str, Any]]:
        """Everything that was reported so far."""
        return self.do("events")  # type: ignore[no-any-return]

    def wait_events(self, count: int, timeout: float = 60.0, **wanted: Any) -> list[dict[str, Any]]:
        """Events with these values, when there are ``count`` of them.

        Raises:
            AssertionError: they did not come in time.
        """
        deadline = time.monotonic() + timeout
        while True:
            found = [event for event in self.events() if all(event.get(key) == value for key, value in wanted.items())]
            if len(found) >= count:
                return found
            assert time.monotonic() < deadline, f"{len(found)} of {count} events {wanted} came:\n{self._log}"
            time.sleep(0.02)

    def _read_log(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._log += line


StartNvml = Callable[..., tuple[FakeFleet, Driven]]
"""The fixture ``start_nvml``: (cards, personality, variant, listen=) to a fresh fleet and a sampler that reads it."""


class Child:
    """The sampler's end: every method is a command."""

    def __init__(self, name: str) -> None:
        self._sampler = importlib.import_module(f"mainstay.probes.samplers.{name}").CONFIG().build()
        self._told: list[dict[str, Any]] = []
        self._channels: dict[str, threading.Thread] = {}
        self._gave: dict[str, Any] = {}

    def listen(self) -> None:
        def record_event(event: Any) -> None:
            self._told.append({**msgspec.to_builtins(event), "heard": time.time()})

        self._sampler.listen(record_event)

    def supported(self) -> list[Any]:
        support = self._sampler.supported()
        return [support.ok, support.reason]

    def devices(self) -> list[dict[str, Any]]:
        return [msgspec.to_builtins(device) for device in self._sampler.devices()]

    def channels(self) -> list[Any]:
        return [[channel.name, channel.devices] for channel in self._sampler.channels()]

    def sample(self, t: float) -> Any:
        return {str(device): dict(readings) for device, readings in self._sampler.sample(t).items()}

    def start_channel(self, name: str, t: float) -> None:
        (channel,) = [channel for channel in self._sampler.channels() if channel.name == name]
        self._gave.pop(name, None)
        self._channels[name] = threading.Thread(target=lambda: self._gave.update({name: channel.read(t)}), daemon=True)
        self._channels[name].start()

    def channel(self, name: str, timeout: float) -> Any:
        self._channels[name].join(timeout)
        gave = self._gave.get(name)
        return None if gave is None else {device: dict(readings) for device, readings in gave.items()}

    def events(self) -> list[dict[str, Any]]:
        return list(self._told)

    def close(self) -> float:
        started = time.monotonic()
        self._sampler.close()
        return time.monotonic() - started

    def threads(self) -> list[str]:
        return [thread.name for thread in threading.enumerate()]

    def mark(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def clear(self) -> None:
        self._told.clear()


def main(name: str) -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    child = Child(name)
    for line in sys.stdin:
        what, *arguments = json.loads(line)
        print(json.dumps(getattr(child, what)(*arguments)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
