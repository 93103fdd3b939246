"""A real Prometheus Alertmanager, which sends what it makes of alerts to a web hook."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests import machine
from tests.service.conftest import wait_until

CONFIG = """
global: {{resolve_timeout: 1s}}
route: {{receiver: hook, group_by: ['...'], group_wait: 0s, group_interval: 1s, repeat_interval: 1h}}
receivers: [{{name: hook, webhook_configs: [{{url: '{hook}', send_resolved: true}}]}}]
"""


@dataclass(frozen=True)
class AlertServer:
    """The server at ``url``."""

    url: str

    def active(self, group: str) -> list[dict[str, Any]]:
        """The alerts of a group that are not over, by their incidents and severities."""
        query = quote(f'group="{group}"')
        with urllib.request.urlopen(f"{self.url}/api/v2/alerts?filter={query}", timeout=30) as answer:
            found: list[dict[str, Any]] = json.load(answer)
        return sorted(found, key=lambda alert: json.dumps(alert["labels"], sort_keys=True))


@contextmanager
def alert_server(directory: Path, port: int, hook: str) -> Iterator[AlertServer]:
    """Run one in a directory."""
    (directory / "config.yml").write_text(CONFIG.format(hook=hook))
    place = [f"--config.file={directory}/config.yml", f"--storage.path={directory}/data", "--cluster.listen-address="]
    command = [machine.program("prometheus-alertmanager"), *place, f"--web.listen-address=127.0.0.1:{port}"]
    with (directory / "log").open("wb") as log:
        child = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        wait_until(lambda: _is_ready(child, directory, f"http://127.0.0.1:{port}/-/ready"))
        yield AlertServer(f"http://127.0.0.1:{port}")
    finally:
        child.terminate()
        child.wait(30)


def _is_ready(child: subprocess.Popen[bytes], directory: Path, url: str) -> bool:
    assert child.poll() is None, (directory / "log").read_text(errors="replace")[-2000:]
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError):
        return False
