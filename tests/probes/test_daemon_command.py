"""What ``mainstay node`` refuses, and what it imports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.processes
@pytest.mark.parametrize(("options", "fault"), [
    (["--interval", "0"], "--interval 0.0 must be from"),
    (["--batch", "0"], "--batch 0 must be from"),
    (["--name", "a/b"], "--name 'a/b' is not a legal id"),
    (["--service", "localhost"], "must look like http://host:port"),
    (["--token-file", "/nonexistent"], "No such file"),
    (["--token", "a b\n"], "the token contains invalid characters"),
    (["--rack", "a b"], "--rack 'a b' is not a legal id"),
    (["--power-domain", "pdu 7"], "--power-domain 'pdu 7' is not a legal id"),
    (["--switches", "leaf 3"], "--switches 'leaf 3' is not a legal id"),
    (["--switches", "leaf-3,leaf-3"], "names a switch twice"),
    ([], "no token"),
])  # fmt: skip
def test_bad_input_is_one_clear_line(tmp_path: Path, options: list[str], fault: str) -> None:
    given = [*options, *([] if not options or "--token" in options else ["--token", "t"])]
    done = subprocess.run(
        [sys.executable, "-m", "mainstay", "node", "--data-dir", tmp_path / "data", *given],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert fault in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_parent_imports_neither_the_driver_nor_anything_big() -> None:
    modules = "mainstay.probes.cli, mainstay.probes.daemon, mainstay.probes.node_tasks"
    code = f"import sys, json, {modules}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in json.loads(done.stdout)}
    assert not loaded & {"pynvml", "numpy", "torch", "httpx", "rich", "pydantic", "ctypes", "asyncio"}
