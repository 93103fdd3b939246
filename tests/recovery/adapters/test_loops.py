"""Every framework's example, as its users run it, and with the diff of the documentation under a rank that dies."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fork_server.processes import Warm, warm_process
from tests.recovery.adapters.torchrun import BY_NODE, EXAMPLES, Agents, agents, assert_same, protected, torchrun

pytestmark = pytest.mark.timeout(400)  # a torchrun or two, and frameworks to import

EXAMPLE_NAMES = sorted(path.stem for path in EXAMPLES.glob("*.diff"))
FRAMEWORKS = (
    "torch", "transformers.trainer", "lightning.pytorch", "torch.distributed.elastic.agent.server.api",
    "torch.distributed.checkpoint.state_dict", "torch.distributed.fsdp",
)  # fmt: skip


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    """Knows the frameworks already: each takes longer to import than its example to train."""
    with warm_process(tmp_path_factory.mktemp("frameworks"), *FRAMEWORKS) as process:
        yield process


def test_every_adapter_has_its_diff_and_each_adds_five_lines_at_most() -> None:
    assert EXAMPLE_NAMES == ["dcp", "ddp", "fsdp2", "huggingface", "lightning_fit", "megatron"]
    for name in EXAMPLE_NAMES:
        added = [line for line in (EXAMPLES / f"{name}.diff").read_text().splitlines() if re.match(r"\+(?!\+\+)", line)]
        assert 0 < len(added) <= 5, f"{name} adds {len(added)} lines"


def killed(name: str, folder: Path, kept: Agents, *, warm: Warm | None, ranks: int, env: dict[str, str]) -> str:
    """Run the protected example with one SIGKILL of its last rank in step 7; what it said."""
    words = ("--save", str(folder), "--die-at", "7", "--die-rank", str(ranks - 1))
    script = protected(name, folder.with_name("scripts"))
    done = torchrun(script, *words, warm=warm, ranks=ranks, restarts=1, env=kept.environment("a") | env)
    assert done.returncode == 0, done.stderr
    assert (folder / "struck").exists()
    return done.stderr


@pytest.mark.processes
@pytest.mark.parametrize("name", [*EXAMPLE_NAMES, "hsdp"])
def test_what_torchrun_starts_again_goes_on_from_memory_bit_equal(warm: Warm, tmp_path: Path, name: str) -> None:
    """``ddp`` begins from nothing, as with a user."""
    begun = None if name == "ddp" else warm
    ranks, env = (4, {"REPLICAS": "2"}) if name == "hsdp" else (2, {})
    name = "fsdp2" if name == "hsdp" else name
    whole = torchrun(EXAMPLES / f"{name}.py", "--save", str(tmp_path / "whole"), warm=warm, ranks=ranks, env=env)
    assert whole.returncode == 0, whole.stderr
    with agents(tmp_path / "shm", "a") as kept:
        said = killed(name, tmp_path / "out", kept, warm=begun, ranks=ranks, env=env)
    assert re.search("all ranks resume epoch [67] from memory", said), said
    assert_same(tmp_path / "whole", tmp_path / "out")


@pytest.mark.processes
def test_a_lost_nodes_rank_is_fetched_from_a_replica_and_a_restarted_agent_still_has_its_slots(
    warm: Warm, tmp_path: Path
) -> None:
    whole = torchrun(EXAMPLES / "ddp.py", "--save", str(tmp_path / "whole"), warm=warm)
    assert whole.returncode == 0, whole.stderr
    by_node = tmp_path / "by_node.py"
    by_node.write_text(BY_NODE)
    script = str(protected("ddp", tmp_path / "scripts"))
    with agents(tmp_path / "shm", "a", "b") as kept:
        env = kept.environment("ignored")
        first = torchrun(by_node, script, "--save", str(tmp_path / "part"), "--steps", "7", warm=warm, env=env)
        assert first.returncode == 0, first.stderr
        kept.kill("a")
        kept.lose("b")
        second = torchrun(by_node, script, "--save", str(tmp_path / "out"), warm=warm, env=env)
    assert second.returncode == 0, second.stderr
    assert "all ranks resume epoch 7 from memory" in second.stderr
    assert_same(tmp_path / "whole", tmp_path / "out")


@pytest.mark.processes
def test_without_an_agent_the_script_runs_as_it_always_did_and_says_what_is_missing(warm: Warm, tmp_path: Path) -> None:
    script = protected("ddp", tmp_path / "scripts")
    words = ("--save", str(tmp_path / "out"), "--steps", "3")
    done = torchrun(script, *words, warm=warm, env={"MAINSTAY_JOB": "not-started"})
    assert done.returncode == 0, done.stderr
    assert "start `mainstay agent --job not-started`" in done.stderr
