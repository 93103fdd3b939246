"""Scripts under a real torchrun beside a real standalone agent; and what they left behind."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from mainstay.recovery.agent.shm_lifecycle import node_directory, remove_node_files
from tests.fork_server.processes import Warm

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "docs" / "adapters"
SECONDS = 180
BY_NODE = """
import os, runpy, sys
os.environ["MAINSTAY_NODE"] = "ab"[int(os.environ["RANK"])]
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""A script whose ranks stand on two nodes, a and b, by rank."""


def protected(name: str, folder: Path) -> Path:
    """The example with its diff applied, as a reader of the documentation would have it."""
    folder.mkdir(exist_ok=True)
    script = folder / f"{name}.py"
    script.write_text((EXAMPLES / f"{name}.py").read_text())
    done = subprocess.run(
        ["patch", "--silent", str(script), str(EXAMPLES / f"{name}.diff")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return script


class Agents:
    """Standalone agents of one job with a name of its own, on nodes of its own."""

    def __init__(self, shm: Path) -> None:
        self.job = f"t{secrets.token_hex(4)}"
        self._shm = shm
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._token = shm / "token"
        self._token.write_text("a token of this test")

    def start(self, node: str) -> None:
        words = ["-m", "mainstay.recovery.agent", "--job", self.job, "--node", node, "--token-file", str(self._token)]
        words += ["--shm-dir", str(self._shm)]
        process = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True, cwd=ROOT)
        self._processes[node] = process
        assert process.stdout is not None
        assert process.stdout.readline(), "the agent did not start"

    def lose(self, node: str) -> None:
        """The node and its memory are gone; another one stands in its place."""
        self._end(node, signal.SIGKILL)
        remove_node_files(node_directory(self._shm, self.job, node))
        self.start(node)

    def kill(self, node: str) -> None:
        """The agent alone dies and comes back; its memory stays."""
        self._end(node, signal.SIGKILL)
        self.start(node)

    def environment(self, node: str) -> dict[str, str]:
        return {"MAINSTAY_JOB": self.job, "MAINSTAY_NODE": node, "MAINSTAY_SHM_DIR": str(self._shm)}

    def close(self) -> None:
        for node in [*self._processes]:
            self._end(node, signal.SIGTERM)

    def _end(self, node: str, how: signal.Signals) -> None:
        process = self._processes.pop(node)
        process.send_signal(how)
        process.wait(60)
        assert process.stdout is not None
        process.stdout.close()


@contextmanager
def agents(shm: Path, *nodes: str) -> Iterator[Agents]:
    shm.mkdir(exist_ok=True)
    kept = Agents(shm)
    try:
        for node in nodes:
            kept.start(node)
        yield kept
    finally:
        kept.close()


def torchrun(
    script: Path,
    *words: str,
    warm: Warm | None,
    ranks: int = 2,
    restarts: int = 0,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run ``script`` to its end, on one node; with ``warm`` torchrun and the ranks that it starts are forks of that."""
    with started(script, *words, warm=warm, ranks=ranks, restarts=restarts, env=env) as process:
        out, err = process.communicate(timeout=SECONDS)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@contextmanager
def started(
    script: Path,
    *words: str,
    warm: Warm | None,
    ranks: int = 2,
    restarts: int = 0,
    env: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[str]]:
    """The same, to be ended by the caller's word: SIGTERM, which torchrun hands on to its ranks."""
    python = str(warm.python) if warm else sys.executable
    command = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command += ["--max-restarts", str(restarts), str(script), *words]
    own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{EXAMPLES}", "PYTHON_EXEC": python}
    if restarts:
        # torch 2.13 shares the rendezvous store with the ranks, and restarted ranks then meet keys of the dead ones.
        # A store of their own stands on a port that was free a moment ago, so it is for those alone.
        own["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    all_of_it = {**os.environ, **own, **(env or {})}
    with subprocess.Popen(command, env=all_of_it, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
                process.communicate(timeout=SECONDS)


def parameters(folder: Path) -> dict[str, dict[str, np.ndarray]]:
    """By rank, what ``common.write`` wrote."""
    return {path.stem: dict(np.load(path)) for path in sorted(folder.glob("rank-*.npz"))}


def assert_same(one: Path, other: Path) -> None:
    """Both runs ended with the same bits on every rank."""
    a, b = parameters(one), parameters(other)
    assert a.keys() == b.keys()
    assert a, f"nothing was written to {one}"
    for rank, arrays in a.items():
        for name, array in arrays.items():
            assert array.tobytes() == b[rank][name].tobytes(), f"{rank} {name} differs"
