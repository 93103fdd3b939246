"""Two services on one PostgreSQL, and the clients of each."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mainstay.service.demo.client import ApiClient
from mainstay.service.demo.processes import mainstay_command
from mainstay.service.demo.stack import Stack

NODE = "node-1"
REPORT = {
    "hostname": "h", "os": "Debian 12", "kernel": "6.1", "version": "0.1.0", "boot_id": "b", "cohort": "cpu",
    "cpu_count": 2, "memory_bytes": 2**30, "started_at": 1_700_000_000.0, "catalog": {"narrow": [], "wide": []},
    "devices": [
        {"id": "host", "index": 0, "kind": "host", "model": "EPYC", "serial": None, "uuid": None, "memory_bytes": None}
    ],
}  # fmt: skip


class Pair:
    """Two services on one database, and the clients of each."""

    def __init__(
        self, directory: Path, url: str, free_port: Callable[[], int], make: Callable[..., Stack] = Stack
    ) -> None:
        self.url = url
        env = {"MAINSTAY_DATABASE_URL": url, "MAINSTAY_CLUSTER__LEASE_SECONDS": "2"}
        self.stacks = [make(directory / name, free_port(), env) for name in ("a", "b")]
        a, b = self.stacks
        a.start_service("serve", "--migrate")
        # The second finds an administrator in the database, and makes none.
        self.start(1, *mainstay_command("serve"))
        b.api = ApiClient(b.api.url, a.token)

    def start(self, number: int, *command: str) -> None:
        """Start service ``number`` with this command, and wait until it is ready."""
        stack = self.stacks[number]
        config = stack.directory / "mainstay.toml"
        stack.directory.mkdir(exist_ok=True)
        config.touch()
        place = ["--port", str(stack.port), "--data-dir", str(stack.data_dir), "--config", str(config)]
        stack.children.start("service", [*command, *place], stack.env)
        stack.until(stack.api.ready, 60.0, f"service {number}", vital=("service",))

    def close(self) -> None:
        for number, stack in enumerate(self.stacks):
            if stack.children.exit_code("service") is None:
                os.kill(self.pid(number), signal.SIGCONT)
            stack.close()

    def pid(self, number: int) -> int:
        return self.stacks[number].children.running["service"].pid

    def holder(self, number: int = 1, lease: str = "detection") -> str | None:
        """The URL of the process that does this work, as service ``number`` tells it."""
        told = self.stacks[number].api.get("/cluster")
        by_id = {one["id"]: one["url"] for one in told["processes"]}
        held = {one["name"]: one["holder"] for one in told["leases"]}
        return by_id.get(held.get(lease) or "")

    def xid(self, number: int, code: int, device: str) -> str:
        """An event that a node's kernel reported; its ID."""
        event: dict[str, Any] = {"kind": "xid", "node": NODE, "device": device, "data": {"code": code}}
        event |= {"id": f"00000000-0000-7000-8000-{code:012d}", "time": time.time()}
        self.stacks[number].api.post("/events", {"items": [event]})
        return str(event["id"])

    def found(self, number: int) -> dict[str, bool]:
        """ID → whether it is active, of every finding."""
        incidents = self.stacks[number].api.get("/incidents")["items"]
        detail = [self.stacks[number].api.get(f"/incidents/{one['id']}") for one in incidents]
        return {finding["id"]: finding["active"] for one in detail for finding in one["findings"]}
